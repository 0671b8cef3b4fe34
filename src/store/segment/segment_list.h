// SPDX-License-Identifier: Apache-2.0
// Lists the runs of a segment from the cheapest source: memory, its table, or a scan. Also writes
// the table. All functions except segment_list_note() may block and must not run on a worker.
#ifndef FOREBAY_STORE_SEGMENT_LIST_H
#define FOREBAY_STORE_SEGMENT_LIST_H

#include "store/segment/segment_log.h"

// Adds the row of a complete run. Any worker; the caller has a hold.
void segment_list_note(struct segment *segment, const struct segment_row *row);

// Calls on_row() for each complete run of a pinned or dying segment. Uses the rows in memory. If
// they are not in memory, reads the table; if that fails, scans the segment. Stops with
// ERR_CANCELLED if on_row() returns false. Sets *ret_salt to the segment's salt.
enum err segment_list(struct segment *segment,
                      bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx,
                      uint64_t *ret_salt) MUST_USE;
// Like segment_list(), but always scans the segment.
enum err segment_list_scan(struct segment *segment, uint64_t salt,
                           bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx,
                           struct segment_scan_result *ret_result) MUST_USE;

// Writes the table and the seal of a full segment without holds, and frees its rows.
void segment_list_seal(struct segment *segment);
// Writes and syncs the table of a segment that the next process will continue to write. After an
// error the table may be missing or incomplete on disk.
enum err segment_list_save(struct segment *segment, uint32_t *ret_row_count,
                           uint32_t *ret_table_id) MUST_USE;
// Reads the table that segment_list_save() wrote.
enum err segment_list_load(struct segment *segment, uint64_t salt, uint32_t row_count,
                           uint32_t table_id, struct segment_rows **ret_rows) MUST_USE;
// Marks the run as bad in its row, in memory or in the table, and in its header. The marks are
// durable once the caller has synced `fd`, a descriptor of the segment. Also returns ERR_OK if
// there is no such run at that place. place->hash is the hash of the run's key.
enum err segment_list_mark_bad(struct segment *segment, int fd,
                               const struct store_place *place) MUST_USE;

#endif
