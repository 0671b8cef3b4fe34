// SPDX-License-Identifier: Apache-2.0
// The table of a segment's runs: rows in memory while the segment fills, sectors on disk once it is
// sealed. Pure; the caller holds the necessary locks.
#ifndef FOREBAY_STORE_SEGMENT_TABLE_H
#define FOREBAY_STORE_SEGMENT_TABLE_H

#include "store/segment/segment_format.h"

#define TABLE_ROW_LEN 68u
#define TABLE_SECTOR_ROWS 7u
#define TABLE_PAGE_BYTES 4096u
#define TABLE_PAGE_ROWS (TABLE_PAGE_BYTES / SECTOR_SIZE * TABLE_SECTOR_ROWS)
// The most pages that one call of segment_rows_copy_on() or segment_rows_finish_on() handles.
#define TABLE_STEP_PAGES 64u

// A run as the index stores it, and whether the run is bad.
struct segment_row {
    struct hash128 hash;
    uint64_t generation, object_size_bytes, etag_hash, first_block;
    uint32_t header_offset, header_len, payload_offset, first_unit;
    uint32_t block_size_bytes, block_count;
    bool is_bad;
};
struct segment_row segment_row_of_header(const struct run_header *header);
struct store_place segment_row_place(const struct segment_row *row, uint32_t number, uint64_t salt);

// Returns the bytes that a table of `row_count` rows takes at the end of a segment.
uint32_t segment_table_bytes(uint32_t row_count);

// Identifies one writing of a segment's table. A table that is written again gets a new id. Each
// sector of the table repeats all three fields, and so does the seal.
struct segment_table_id {
    uint32_t number;
    uint64_t salt;
    uint32_t id; // random, so that two writings of the table differ
};

// A growing array of rows. Its pages have the format of the table on disk. Only
// segment_rows_finish() fills in the heads and checksums of their sectors.
struct segment_rows;
struct segment_rows *segment_rows_new(void);
void segment_rows_free(struct segment_rows *rows);
// Copies a bounded number of the rows that `copy` lacks, so that the caller can release the lock
// between calls. Returns true when the copy is complete.
bool segment_rows_copy_on(struct segment_rows *copy, const struct segment_rows *rows) MUST_USE;
void segment_rows_add(struct segment_rows *rows, const struct segment_row *row);
uint32_t segment_rows_count(const struct segment_rows *rows);
void segment_rows_get(const struct segment_rows *rows, uint32_t at, struct segment_row *ret_row);
// Marks the run at that place as bad and sets *ret_at to the index of its row. Returns false if
// there is no such row.
bool segment_rows_mark_bad(struct segment_rows *rows, const struct store_place *place,
                           uint32_t *ret_at);
// Fills in the heads and checksums of all sectors, so that the pages can be written.
void segment_rows_finish(struct segment_rows *rows, const struct segment_table_id *id);
// Like segment_rows_finish(), for a bounded number of pages from *page on. The caller sets *page to
// 0 before the first call. Returns true when all pages are finished.
bool segment_rows_finish_on(struct segment_rows *rows, const struct segment_table_id *id,
                            uint32_t *page) MUST_USE;
// Returns page `at`, which is below segment_table_bytes() / TABLE_PAGE_BYTES.
char *segment_rows_page(const struct segment_rows *rows, uint32_t at);
// Decodes the bytes of a table into rows, which the caller owns. Returns ERR_CORRUPT if the bytes
// are another table or an incomplete one.
enum err segment_rows_decode(struct span bytes, uint32_t row_count, uint32_t segment_size_bytes,
                             const struct segment_table_id *id,
                             struct segment_rows **ret_rows) MUST_USE;
// Returns true if this is a complete sector of any table of this segment.
bool segment_table_sector_is_ours(const char *sector, uint32_t number, uint64_t salt);

#endif
