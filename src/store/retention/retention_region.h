// SPDX-License-Identifier: Apache-2.0
// The policy's arrays, in a file that grows with them. Shared inside the room only.
#ifndef FOREBAY_STORE_RETENTION_REGION_H
#define FOREBAY_STORE_RETENTION_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "store/disk/disk.h"

struct retention_region {
    struct store_disk *disk; // NULL: there is none
    void *map;
    size_t map_bytes;
    int fd; // -1: it is memory, all of it is there, and none of it is counted
    _Atomic uint64_t counted_bytes; // of the file, in store.used_bytes
    uint64_t refused_us;            // when it could not grow; 0: it could
    bool is_refused;                // there should have been a file
};

// `least`: what is there at once; `most`: what it may grow to. Zeroed. False: there is no file, and
// no map yet. `segments_max`: of the cache; the smallest have no file.
bool retention_region_open(struct retention_region *region, struct store_disk *disk,
                           unsigned segments_max, size_t least, size_t most) MUST_USE;
void retention_region_in_memory(struct retention_region *region, size_t bytes);
// For policy_options.grow; ctx: the region.
bool retention_region_grow(void *ctx, size_t bytes);
uint64_t retention_region_counted(const struct retention_region *region);
void retention_region_close(struct retention_region *region); // one that is all zero is fine

#endif
