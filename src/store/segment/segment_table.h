// SPDX-License-Identifier: Apache-2.0
// The table of a segment's runs: rows in memory while the segment fills, sectors on disk when it is
// sealed. Pure; the caller guards.
#ifndef FOREBAY_STORE_SEGMENT_TABLE_H
#define FOREBAY_STORE_SEGMENT_TABLE_H

#include "store/segment/segment_format.h"

#define TABLE_ROW_LEN 68u
#define TABLE_SECTOR_ROWS 7u
#define TABLE_PAGE_BYTES 4096u
#define TABLE_PAGE_ROWS (TABLE_PAGE_BYTES / SECTOR_SIZE * TABLE_SECTOR_ROWS)
#define TABLE_STEP_PAGES 64u // at most, by one call of those that end in _on

// What the index knows of a run, and whether it is known to be bad.
struct segment_row {
    struct hash128 hash;
    uint64_t generation, object_size_bytes, etag_hash, first_block;
    uint32_t header_offset, header_len, payload_offset, first_unit;
    uint32_t block_size_bytes, block_count;
    bool is_bad;
};
struct segment_row segment_row_of_header(const struct run_header *header);
struct store_place segment_row_place(const struct segment_row *row, uint32_t number, uint64_t salt);

// Bytes at a segment's end that a table of so many rows takes.
uint32_t segment_table_bytes(uint32_t row_count);

// One writing of one segment's table: what each of its sectors and the seal repeat.
struct segment_table_id {
    uint32_t number;
    uint64_t salt;
    uint32_t id; // random
};

// Grows; its pages are the table's on disk but for what segment_rows_finish() writes into them.
struct segment_rows;
struct segment_rows *segment_rows_new(void);
void segment_rows_free(struct segment_rows *rows);
// Copies some of what `copy` lacks, a bounded piece: who guards `rows` lets others in between.
// True: it is all there.
bool segment_rows_copy_on(struct segment_rows *copy, const struct segment_rows *rows) MUST_USE;
void segment_rows_add(struct segment_rows *rows, const struct segment_row *row);
uint32_t segment_rows_count(const struct segment_rows *rows);
void segment_rows_get(const struct segment_rows *rows, uint32_t at, struct segment_row *ret_row);
// The run of that place is bad from now on; *ret_at: its row. False: there is none.
bool segment_rows_mark_bad(struct segment_rows *rows, const struct store_place *place,
                           uint32_t *ret_at);
// Heads and checksums of all sectors: the pages are ready to be written.
void segment_rows_finish(struct segment_rows *rows, const struct segment_table_id *id);
// The same for a bounded piece from *page on, which is 0 at first. True: all are finished.
bool segment_rows_finish_on(struct segment_rows *rows, const struct segment_table_id *id,
                            uint32_t *page) MUST_USE;
// Page `at` of segment_table_bytes() / TABLE_PAGE_BYTES.
char *segment_rows_page(const struct segment_rows *rows, uint32_t at);
// Rows from the bytes of a table; they are the caller's. ERR_CORRUPT: not this table, or not whole.
enum err segment_rows_decode(struct span bytes, uint32_t row_count, uint32_t segment_size_bytes,
                             const struct segment_table_id *id,
                             struct segment_rows **ret_rows) MUST_USE;
// Is this a whole sector of some table of this segment?
bool segment_table_sector_is_ours(const char *sector, uint32_t number, uint64_t salt);

#endif
