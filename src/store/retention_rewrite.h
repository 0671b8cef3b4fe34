// SPDX-License-Identifier: Apache-2.0
// Copies what survives a segment into another one. Shared inside the room only.
#ifndef FOREBAY_STORE_RETENTION_REWRITE_H
#define FOREBAY_STORE_RETENTION_REWRITE_H

#include "store/retention.h"

// A segment that goes, and where its survivors begin, rising.
struct retention_job {
    uint32_t number, count;
    uint32_t *starts; // rising
    bool *pinned;     // of each of them; NULL: none is
};

// When it returns the segment is being freed, and what could be rewritten of it lies elsewhere; or it
// stays for its pins, which found no room. On the retention thread.
void retention_rewrite(struct retention *retention, const struct retention_job *job);

#endif
