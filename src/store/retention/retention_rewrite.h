// SPDX-License-Identifier: Apache-2.0
// Copies what survives a segment into another one. Shared inside the room only.
#ifndef FOREBAY_STORE_RETENTION_REWRITE_H
#define FOREBAY_STORE_RETENTION_REWRITE_H

#include "store/retention/retention.h"
#include "store/segment/segment_format.h"

// A segment that goes, and where its survivors begin, rising.
struct retention_job {
    uint32_t number, count;
    uint32_t *starts; // rising
    bool *pinned;     // of each of them; NULL: none is
};

// When it returns the segment is being freed, and what could be rewritten of it lies elsewhere; or
// it stays for its pins, which found no room. On the retention thread.
void retention_rewrite(struct retention *retention, const struct retention_job *job);

// The header of a run, of a pinned segment that `fd` is borrowed of, as checked as for a reader;
// its spans lie in `bytes`, RUN_HEADER_MAX of them. ERR_IO, ERR_CORRUPT. Not on a worker.
enum err retention_head_read(const struct store_disk *disk, const struct store_place *from, int fd,
                             char *bytes, struct run_header *ret_header) MUST_USE;

#endif
