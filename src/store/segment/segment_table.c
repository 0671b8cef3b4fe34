// SPDX-License-Identifier: Apache-2.0
// A sealed segment ends with a table of its runs. The table is needed when the segment is evicted,
// when the index is rebuilt, and when a run is marked as bad. It takes about a hundredth of the
// segment, so no scan of the whole segment is needed.
//
// The freeing thread writes the table from memory when no run of the segment is being written or
// waits for the index (segment_list.c). The last page of the table is the last page of the segment.
// Sectors are in ascending order, with seven rows each. Like the segment's other sectors, each has
// a head and a CRC:
//
//   0   8  magic "FBTABLE1"       Row
//   8   4  format version         0   16 keyed hash of realm, bucket, key
//   12  4  segment number         16  8  generation, as in the run's header
//   16  8  salt                   24  8  object size
//   24  4  id of the table        32  8  hash of the ETag
//   28  4  ordinal of the sector  40  8  first block
//   32     rows of 68 bytes       48  4  header offset
//   508 4  CRC of 0..507          52  4  payload offset
//                                 56  4  ordinal of its first checksum unit
//                                 60  4  block size
//                                 64  2  length of the header
//                                 66  2  number of blocks; high bit: known to be bad
//
// The id is random, and new each time that the table is written. The seal has the number of rows
// and the id. A reader accepts a table only if all of this is true:
//
// - Every sector is complete and belongs to this segment, by number and salt.
// - Every sector has the same id as the seal, and the ordinals count up from 0.
// - Every row describes a run that fits at the offset that the row states.
//
// Otherwise the segment counts as having no table, and is scanned.
#include "store/segment/segment_table.h"

#include <stdlib.h>

#define SECTOR_HEAD 32u
#define ROW_HEADER_OFFSET 48u
#define ROW_BAD 0x8000u
#define PAGE_SECTORS (TABLE_PAGE_BYTES / SECTOR_SIZE)

static_assert(SECTOR_HEAD + TABLE_SECTOR_ROWS * TABLE_ROW_LEN + 4 == SECTOR_SIZE,
              "a sector is full");
static_assert(RUN_UNITS_MAX < ROW_BAD, "blocks and the mark fit");
static_assert(RUN_HEADER_MAX <= UINT16_MAX, "the header's length fits");

static const char magic_table[8] = {'F', 'B', 'T', 'A', 'B', 'L', 'E', '1'};

struct segment_rows {
    char **pages;
    uint32_t page_count, page_max, count;
};

// --- rows

struct segment_row segment_row_of_header(const struct run_header *h)
{
    return (struct segment_row){
        .hash = h->hash,
        .generation = h->generation,
        .object_size_bytes = h->object_size_bytes,
        .etag_hash = hash64(h->etag.ptr, h->etag.len, 0),
        .first_block = h->first_block,
        .header_offset = h->header_offset,
        .header_len = h->header_len,
        .payload_offset = h->payload_offset,
        .first_unit = h->first_unit,
        .block_size_bytes = h->block_size_bytes,
        .block_count = h->block_count,
    };
}

static uint64_t row_payload_len(const struct segment_row *row)
{
    return segment_run_payload_len(row->object_size_bytes, row->block_size_bytes, row->first_block,
                                   row->block_count);
}

struct store_place segment_row_place(const struct segment_row *row, uint32_t number, uint64_t salt)
{
    return (struct store_place){
        .segment_number = number,
        .header_offset = row->header_offset,
        .header_len = row->header_len,
        .payload_offset = row->payload_offset,
        .payload_len = (uint32_t)row_payload_len(row),
        .first_unit = row->first_unit,
        .salt = salt,
        .generation = row->generation,
        .first_block = row->first_block,
        .block_count = row->block_count,
        .block_size_bytes = row->block_size_bytes,
        .hash = row->hash,
        .etag_hash = row->etag_hash,
    };
}

static void row_encode(const struct segment_row *row, char *b)
{
    check(row->header_len <= RUN_HEADER_MAX);
    check(row->block_count <= RUN_UNITS_MAX);
    wire_put_u64(b, row->hash.hi);
    wire_put_u64(b + 8, row->hash.lo);
    wire_put_u64(b + 16, row->generation);
    wire_put_u64(b + 24, row->object_size_bytes);
    wire_put_u64(b + 32, row->etag_hash);
    wire_put_u64(b + 40, row->first_block);
    wire_put_u32(b + ROW_HEADER_OFFSET, row->header_offset);
    wire_put_u32(b + 52, row->payload_offset);
    wire_put_u32(b + 56, row->first_unit);
    wire_put_u32(b + 60, row->block_size_bytes);
    wire_put_u16(b + 64, (uint16_t)row->header_len);
    wire_put_u16(b + 66, (uint16_t)(row->block_count | (row->is_bad ? ROW_BAD : 0)));
}

static void row_decode(const char *b, struct segment_row *ret_row)
{
    uint16_t blocks = wire_get_u16(b + 66);
    *ret_row = (struct segment_row){
        .hash = {wire_get_u64(b), wire_get_u64(b + 8)},
        .generation = wire_get_u64(b + 16),
        .object_size_bytes = wire_get_u64(b + 24),
        .etag_hash = wire_get_u64(b + 32),
        .first_block = wire_get_u64(b + 40),
        .header_offset = wire_get_u32(b + ROW_HEADER_OFFSET),
        .payload_offset = wire_get_u32(b + 52),
        .first_unit = wire_get_u32(b + 56),
        .block_size_bytes = wire_get_u32(b + 60),
        .header_len = wire_get_u16(b + 64),
        .block_count = blocks & (ROW_BAD - 1),
        .is_bad = (blocks & ROW_BAD) != 0,
    };
}

static bool row_is_consistent(const struct segment_row *row, uint32_t table_offset)
{
    if (row->header_offset < SEGMENT_DATA_OFFSET || row->header_offset % RUN_ALIGN != 0 ||
        row->header_len < RUN_HEADER_FIXED || row->header_len > RUN_HEADER_MAX ||
        row->block_size_bytes < STORE_BLOCK_SIZE_MIN ||
        row->block_size_bytes > STORE_BLOCK_SIZE_MAX ||
        row->block_size_bytes % STORE_CHECKSUM_UNIT != 0) {
        return false;
    }
    uint64_t blocks = segment_run_object_blocks(row->object_size_bytes, row->block_size_bytes);
    if (row->block_count == 0 || row->block_count > RUN_UNITS_MAX || row->first_block >= blocks ||
        row->block_count > blocks - row->first_block) {
        return false;
    }
    return row->payload_offset >= (uint64_t)row->header_offset + row->header_len &&
           row->payload_offset + row_payload_len(row) <= table_offset;
}

uint32_t segment_table_bytes(uint32_t row_count)
{
    return (row_count / TABLE_PAGE_ROWS + (row_count % TABLE_PAGE_ROWS != 0)) * TABLE_PAGE_BYTES;
}

// --- in memory

struct segment_rows *segment_rows_new(void)
{
    struct segment_rows *rows = calloc(1, sizeof(*rows));
    check(rows != NULL);
    return rows;
}

void segment_rows_free(struct segment_rows *rows)
{
    for (uint32_t i = 0; rows != NULL && i < rows->page_count; i++) {
        free(rows->pages[i]);
    }
    if (rows != NULL) {
        free(rows->pages);
    }
    free(rows);
}

static char *rows_page_new(struct segment_rows *rows)
{
    check(rows->page_count <= rows->page_max);
    if (rows->page_count == rows->page_max) {
        rows->page_max = (uint32_t)max_u64(8, 2ull * rows->page_max);
        rows->pages = realloc(rows->pages, rows->page_max * sizeof(*rows->pages));
        check(rows->pages != NULL);
    }
    char *page = calloc(1, TABLE_PAGE_BYTES);
    check(page != NULL);
    rows->pages[rows->page_count++] = page;
    return page;
}

bool segment_rows_copy_on(struct segment_rows *copy, const struct segment_rows *rows)
{
    // Index of the first page that is not complete in `copy`.
    uint32_t at = copy->count / TABLE_PAGE_ROWS;
    check(copy->count <= rows->count && copy->page_count <= rows->page_count);
    for (uint32_t i = 0; i < TABLE_STEP_PAGES && at < rows->page_count; i++, at++) {
        char *page = at < copy->page_count ? copy->pages[at] : rows_page_new(copy);
        memcpy(page, rows->pages[at], TABLE_PAGE_BYTES);
        copy->count = (uint32_t)min_u64(rows->count, (at + 1ull) * TABLE_PAGE_ROWS);
    }
    return copy->count == rows->count;
}

static char *rows_sector(const struct segment_rows *rows, uint32_t sector)
{
    check(sector / PAGE_SECTORS < rows->page_count);
    return rows->pages[sector / PAGE_SECTORS] + (size_t)(sector % PAGE_SECTORS) * SECTOR_SIZE;
}

static char *rows_at(const struct segment_rows *rows, uint32_t at)
{
    return rows_sector(rows, at / TABLE_SECTOR_ROWS) + SECTOR_HEAD +
           (size_t)(at % TABLE_SECTOR_ROWS) * TABLE_ROW_LEN;
}

void segment_rows_add(struct segment_rows *rows, const struct segment_row *row)
{
    check(rows->count <= rows->page_count * TABLE_PAGE_ROWS);
    if (rows->count == rows->page_count * TABLE_PAGE_ROWS) {
        (void)rows_page_new(rows); // rows_at() finds the new page by its index
    }
    row_encode(row, rows_at(rows, rows->count));
    rows->count++;
}

uint32_t segment_rows_count(const struct segment_rows *rows)
{
    return rows->count;
}

void segment_rows_get(const struct segment_rows *rows, uint32_t at, struct segment_row *ret_row)
{
    check(at < rows->count);
    row_decode(rows_at(rows, at), ret_row);
}

bool segment_rows_mark_bad(struct segment_rows *rows, const struct store_place *place,
                           uint32_t *ret_at)
{
    for (uint32_t at = 0; at < rows->count; at++) {
        struct segment_row row;
        if (wire_get_u32(rows_at(rows, at) + ROW_HEADER_OFFSET) != place->header_offset) {
            continue; // true for almost every row
        }
        row_decode(rows_at(rows, at), &row);
        if (row.header_offset == place->header_offset && row.header_len == place->header_len &&
            hash128_equal(row.hash, place->hash)) {
            row.is_bad = true;
            row_encode(&row, rows_at(rows, at));
            *ret_at = at;
            return true;
        }
    }
    return false;
}

// --- on disk

bool segment_rows_finish_on(struct segment_rows *rows, const struct segment_table_id *id,
                            uint32_t *page)
{
    check(*page <= rows->page_count && id->number != 0);
    uint32_t end = (uint32_t)min_u64(rows->page_count, (uint64_t)*page + TABLE_STEP_PAGES);
    for (uint32_t i = *page * PAGE_SECTORS; i < end * PAGE_SECTORS; i++) {
        char *sector = rows_sector(rows, i);
        segment_sector_head(sector, magic_table, id->number, id->salt);
        wire_put_u32(sector + 24, id->id);
        wire_put_u32(sector + 28, i);
        segment_sector_end(sector);
    }
    *page = end;
    return end == rows->page_count;
}

void segment_rows_finish(struct segment_rows *rows, const struct segment_table_id *id)
{
    uint32_t page = 0;
    while (!segment_rows_finish_on(rows, id, &page)) {
    }
}

char *segment_rows_page(const struct segment_rows *rows, uint32_t at)
{
    check(at < rows->page_count);
    return rows->pages[at];
}

bool segment_table_sector_is_ours(const char *sector, uint32_t number, uint64_t salt)
{
    return segment_sector_verify(sector, magic_table) == ERR_OK &&
           wire_get_u32(sector + 12) == number && wire_get_u64(sector + 16) == salt;
}

enum err segment_rows_decode(struct span bytes, uint32_t row_count, uint32_t segment_size_bytes,
                             const struct segment_table_id *id, struct segment_rows **ret_rows)
{
    check(segment_size_bytes > SEGMENT_DATA_OFFSET);
    uint32_t table_bytes = segment_table_bytes(row_count);
    if (bytes.len != table_bytes || table_bytes > segment_size_bytes - SEGMENT_DATA_OFFSET) {
        return ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < table_bytes / SECTOR_SIZE; i++) {
        const char *sector = bytes.ptr + (size_t)i * SECTOR_SIZE;
        if (!segment_table_sector_is_ours(sector, id->number, id->salt) ||
            wire_get_u32(sector + 24) != id->id || wire_get_u32(sector + 28) != i) {
            return ERR_CORRUPT;
        }
    }
    struct segment_rows *rows = segment_rows_new();
    for (size_t at = 0; at < bytes.len; at += TABLE_PAGE_BYTES) {
        memcpy(rows_page_new(rows), bytes.ptr + at, TABLE_PAGE_BYTES);
    }
    rows->count = row_count;
    for (uint32_t at = 0; at < row_count; at++) {
        struct segment_row row;
        segment_rows_get(rows, at, &row);
        if (!row_is_consistent(&row, segment_size_bytes - table_bytes)) {
            segment_rows_free(rows);
            return ERR_CORRUPT;
        }
    }
    *ret_rows = rows;
    return ERR_OK;
}
