// SPDX-License-Identifier: Apache-2.0
// Proves: a table returns its rows, or is refused if it is flipped, cut, of another segment, of an
// earlier life of the segment, or of another writing.
#include "store/segment/segment_table.h"

#include <stdlib.h>

#include "test.h"

#define SIZE (1u << 20)

static const struct segment_table_id id = {9, 77, 5};

static struct segment_row sample(uint32_t i)
{
    return (struct segment_row){
        .hash = {i, ~(uint64_t)i},
        .generation = 1000 + i,
        .object_size_bytes = 300000,
        .etag_hash = 3 * i,
        .first_block = i % 5,
        .header_offset = SEGMENT_DATA_OFFSET + 512 * i,
        .header_len = RUN_HEADER_FIXED + i % 100,
        .payload_offset = 2 * SEGMENT_DATA_OFFSET + 512 * i,
        .first_unit = i,
        .block_size_bytes = STORE_BLOCK_SIZE_MIN,
        .block_count = 1,
        .is_bad = i % 7 == 3,
    };
}

static struct segment_rows *rows_of(uint32_t count)
{
    struct segment_rows *rows = segment_rows_new();
    for (uint32_t i = 0; i < count; i++) {
        struct segment_row row = sample(i);
        segment_rows_add(rows, &row);
    }
    return rows;
}

static char *bytes_of(struct segment_rows *rows, size_t *ret_len)
{
    *ret_len = segment_table_bytes(segment_rows_count(rows));
    char *bytes = malloc(*ret_len + 1);
    segment_rows_finish(rows, &id);
    for (uint32_t page = 0; page < *ret_len / TABLE_PAGE_BYTES; page++) {
        memcpy(bytes + (size_t)page * TABLE_PAGE_BYTES, segment_rows_page(rows, page),
               TABLE_PAGE_BYTES);
    }
    return bytes;
}

static bool decodes(const char *bytes, size_t len, uint32_t count,
                    const struct segment_table_id *as)
{
    struct segment_rows *rows;
    bool ok = segment_rows_decode((struct span){bytes, len}, count, SIZE, as, &rows) == ERR_OK;
    if (ok) {
        segment_rows_free(rows);
    }
    return ok;
}

Test(segment_table, rows_come_back_as_they_were)
{
    static const uint32_t counts[] = {0, 1, 6, 7, 8, 55, 56, 57, 300};
    for (unsigned c = 0; c < ARRAY_LEN(counts); c++) {
        size_t len;
        struct segment_rows *rows = rows_of(counts[c]);
        char *bytes = bytes_of(rows, &len);
        struct segment_rows *again;
        cr_assert(segment_rows_decode((struct span){bytes, len}, counts[c], SIZE, &id, &again) ==
                  ERR_OK);
        cr_assert_eq(segment_rows_count(again), counts[c]);
        for (uint32_t i = 0; i < counts[c]; i++) {
            struct segment_row row;
            struct segment_row was = sample(i);
            segment_rows_get(again, i, &row);
            cr_assert(hash128_equal(row.hash, was.hash) && row.is_bad == was.is_bad);
            struct store_place a = segment_row_place(&row, 9, 77);
            struct store_place b = segment_row_place(&was, 9, 77);
            cr_assert(a.generation == b.generation && a.header_offset == b.header_offset);
            cr_assert(a.payload_len == b.payload_len && a.first_unit == b.first_unit);
            cr_assert(a.etag_hash == b.etag_hash && a.header_len == b.header_len);
        }
        segment_rows_free(again);
        segment_rows_free(rows);
        free(bytes);
    }
}

Test(segment_table, each_flipped_bit_refuses_the_table)
{
    size_t len;
    struct segment_rows *rows = rows_of(60);
    char *bytes = bytes_of(rows, &len);
    cr_assert(decodes(bytes, len, 60, &id));
    for (size_t bit = 0; bit < 8 * len; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        cr_assert(!decodes(bytes, len, 60, &id), "bit %zu", bit);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    segment_rows_free(rows);
    free(bytes);
}

Test(segment_table, a_table_of_another_life_or_writing_is_none)
{
    size_t len;
    struct segment_rows *rows = rows_of(20);
    char *bytes = bytes_of(rows, &len);
    const struct segment_table_id others[] = {{8, 77, 5}, {9, 76, 5}, {9, 77, 4}};
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        cr_assert(!decodes(bytes, len, 20, &others[i]), "%u", i);
    }
    cr_assert(!decodes(bytes, len - TABLE_PAGE_BYTES, 20, &id));
    cr_assert(!decodes(bytes, len, 57, &id), "more rows than pages");
    cr_assert(!decodes(bytes, len, 21, &id), "rows that are no runs");
    // Two writings mixed, as a power cut leaves them.
    struct segment_table_id later = id;
    later.id++;
    segment_rows_finish(rows, &later);
    memcpy(bytes + SECTOR_SIZE, segment_rows_page(rows, 0) + SECTOR_SIZE, SECTOR_SIZE);
    cr_assert(!decodes(bytes, len, 20, &id));
    cr_assert(!decodes(bytes, len, 20, &later));
    segment_rows_free(rows);
    free(bytes);
}

Test(segment_table, runs_that_cannot_lie_there_are_refused)
{
    for (unsigned lie = 0; lie < 6; lie++) {
        struct segment_rows *rows = segment_rows_new();
        struct segment_row row = sample(1);
        row.header_offset = lie == 0 ? 512 : lie == 1 ? 4097 : row.header_offset;
        row.payload_offset = lie == 2 ? SIZE - TABLE_PAGE_BYTES : row.payload_offset;
        row.block_size_bytes = lie == 3 ? 1000 : row.block_size_bytes;
        row.block_count = lie == 4 ? 0 : lie == 5 ? 9 : row.block_count;
        segment_rows_add(rows, &row);
        size_t len;
        char *bytes = bytes_of(rows, &len);
        cr_assert(!decodes(bytes, len, 1, &id), "lie %u", lie);
        segment_rows_free(rows);
        free(bytes);
    }
}

Test(segment_table, only_the_run_of_a_place_is_marked)
{
    struct segment_rows *rows = rows_of(30);
    struct segment_row row = sample(20);
    struct store_place place = segment_row_place(&row, 9, 77);
    uint32_t at;
    struct store_place wrong = place;
    wrong.hash.lo++;
    cr_assert(!segment_rows_mark_bad(rows, &wrong, &at));
    wrong = place;
    wrong.header_offset += 512;
    cr_assert(!segment_rows_mark_bad(rows, &wrong, &at));
    cr_assert(segment_rows_mark_bad(rows, &place, &at));
    cr_assert_eq(at, 20u);
    for (uint32_t i = 0; i < 30; i++) {
        segment_rows_get(rows, i, &row);
        cr_assert_eq(row.is_bad, sample(i).is_bad || i == 20);
    }
    segment_rows_free(rows);
}

static bool rows_are_equal(const struct segment_rows *a, const struct segment_rows *b)
{
    bool equal = segment_rows_count(a) == segment_rows_count(b);
    for (uint32_t i = 0; equal && i < segment_rows_count(a); i++) {
        struct segment_row x, y;
        segment_rows_get(a, i, &x);
        segment_rows_get(b, i, &y);
        equal = hash128_equal(x.hash, y.hash) && x.header_offset == y.header_offset;
    }
    return equal;
}

// Each step holds the lock for TABLE_STEP_PAGES pages only.
Test(segment_table, many_rows_are_copied_and_finished_in_pieces_while_more_are_added)
{
    enum { COUNT = 5 * TABLE_STEP_PAGES * TABLE_PAGE_ROWS / 2 };
    struct segment_rows *rows = rows_of(COUNT);
    struct segment_rows *copy = segment_rows_new();
    cr_assert(!segment_rows_copy_on(copy, rows));
    cr_assert_eq(segment_rows_count(copy), TABLE_STEP_PAGES * TABLE_PAGE_ROWS);
    for (uint32_t i = COUNT; i < COUNT + 10; i++) {
        struct segment_row row = sample(i);
        segment_rows_add(rows, &row);
    }
    cr_assert(!segment_rows_copy_on(copy, rows));
    cr_assert(segment_rows_copy_on(copy, rows));
    cr_assert(rows_are_equal(copy, rows));
    struct segment_row row = sample(COUNT + 10); // to a page that is there in part
    segment_rows_add(rows, &row);
    cr_assert(segment_rows_copy_on(copy, rows));
    cr_assert(rows_are_equal(copy, rows));
    uint32_t page = 0;
    cr_assert(!segment_rows_finish_on(rows, &id, &page));
    cr_assert_eq(page, TABLE_STEP_PAGES);
    cr_assert(!segment_rows_finish_on(rows, &id, &page));
    cr_assert(segment_rows_finish_on(rows, &id, &page));
    cr_assert(segment_table_sector_is_ours(
        segment_rows_page(rows, page - 1) + TABLE_PAGE_BYTES - SECTOR_SIZE, id.number, id.salt));
    segment_rows_free(copy);
    copy = segment_rows_new();
    struct segment_rows *none = segment_rows_new();
    cr_assert(segment_rows_copy_on(copy, none));
    segment_rows_free(none);
    segment_rows_free(copy);
    segment_rows_free(rows);
}
