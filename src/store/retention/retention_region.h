// SPDX-License-Identifier: Apache-2.0
// Memory for the policy's arrays: a mapped file that grows with them. Shared inside the room only.
#ifndef FOREBAY_STORE_RETENTION_REGION_H
#define FOREBAY_STORE_RETENTION_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "store/disk/disk.h"

struct retention_region {
    struct store_disk *disk; // NULL: not open
    void *map;
    size_t map_bytes;
    int fd; // -1: plain memory, which is mapped whole and not counted in store.used_bytes
    _Atomic uint64_t counted_bytes; // bytes of the file that are counted in store.used_bytes
    // Real time of the last failure to grow the file; 0: none since it last grew.
    uint64_t refused_us;
    bool is_refused; // the file could not be created or allocated
};

// Maps a file of zeroed bytes. Allocates `least` bytes now; the file may grow to `most`. Returns
// false, and maps nothing, if the file system allows no such file, or if the cache is too small for
// one according to `segments_max`.
bool retention_region_open(struct retention_region *region, struct store_disk *disk,
                           unsigned segments_max, size_t least, size_t most) MUST_USE;
// Maps plain memory. Called after retention_region_open() has returned false.
void retention_region_in_memory(struct retention_region *region, size_t bytes);
// Implements policy_options.grow. `ctx` is the region.
bool retention_region_grow(void *ctx, size_t bytes);
uint64_t retention_region_counted(const struct retention_region *region);
void retention_region_close(struct retention_region *region); // accepts a zeroed struct

#endif
