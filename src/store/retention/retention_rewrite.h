// SPDX-License-Identifier: Apache-2.0
// Copies the survivors of a segment into another segment. Shared inside the room only.
#ifndef FOREBAY_STORE_RETENTION_REWRITE_H
#define FOREBAY_STORE_RETENTION_REWRITE_H

#include "store/retention/retention.h"
#include "store/segment/segment_format.h"

// A segment to evict, and the survivors to rewrite first.
struct retention_job {
    uint32_t number, count;
    uint32_t *starts; // offsets of the survivors, ascending
    bool *pinned;     // whether each survivor is pinned; NULL: none is pinned
};

// Rewrites the survivors and starts to free the segment. The segment may stay if its pinned runs
// found no room. Called on the retention thread.
void retention_rewrite(struct retention *retention, const struct retention_job *job);

// Reads and verifies the header of a run, as for a reader. The run's segment is pinned, and `fd` is
// its borrowed descriptor. The spans of *ret_header point into `bytes`, which must have room for
// RUN_HEADER_MAX. Returns ERR_IO or ERR_CORRUPT on failure. Must not be called on a worker.
enum err retention_head_read(const struct store_disk *disk, const struct store_place *from, int fd,
                             char *bytes, struct run_header *ret_header) MUST_USE;

#endif
