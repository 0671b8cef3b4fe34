// SPDX-License-Identifier: Apache-2.0
// What runs a segment holds, from the cheapest place that knows, and the table that says so. All of
// it may block, but segment_list_note(); never on a worker.
#ifndef FOREBAY_STORE_SEGMENT_LIST_H
#define FOREBAY_STORE_SEGMENT_LIST_H

#include "store/segment/segment_log.h"

// A run of the segment is whole. Any worker; the caller has a hold.
void segment_list_note(struct segment *segment, const struct segment_row *row);

// Calls on_row for each whole run of a pinned or dying segment (false stops it: ERR_CANCELLED):
// from memory, else from its table, else from a scan. *ret_salt: the segment's.
enum err segment_list(struct segment *segment,
                      bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx,
                      uint64_t *ret_salt) MUST_USE;
// The same by looking at all of it, whatever is known.
enum err segment_list_scan(struct segment *segment, uint64_t salt,
                           bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx,
                           struct segment_scan_result *ret_result) MUST_USE;

// Nothing of the sealed segment is held any more: table and seal are written, and its rows leave
// memory.
void segment_list_seal(struct segment *segment);
// The table of a segment that goes on, for the next process: written and synced. ERR_IO: it is not
// there.
enum err segment_list_save(struct segment *segment, uint32_t *ret_row_count,
                           uint32_t *ret_table_id) MUST_USE;
// What segment_list_save() has left.
enum err segment_list_load(struct segment *segment, uint64_t salt, uint32_t row_count,
                           uint32_t table_id, struct segment_rows **ret_rows) MUST_USE;
// The run is bad in memory, in the table and in its header, once `fd` is synced. ERR_OK also when
// there is no such run at that place; place->hash is its key's. `fd`: the segment's.
enum err segment_list_mark_bad(struct segment *segment, int fd,
                               const struct store_place *place) MUST_USE;

#endif
