// SPDX-License-Identifier: Apache-2.0
// Decides which bytes enter the page cache when a hit reads them from the device, or a miss writes
// them.
#ifndef FOREBAY_STORE_PAGE_ADMISSION_H
#define FOREBAY_STORE_PAGE_ADMISSION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"

struct page_admission {
    // Returns the memory that the page cache could use. NULL: it is unknown.
    bool (*memory)(struct host_memory *ret_memory);
    uint64_t looked_ms;   // when page_admission_tick() looked last; 0: never
    uint64_t unit_bytes;  // unit of the clock
    uint32_t slot_mask;   // number of slots - 1
    atomic_uint *slots;   // the last accesses: 16 bits identify one, and 16 bits are its time
    atomic_ulong clock;   // bytes that were brought from the device or the origin
    atomic_ulong reach;   // distance of two accesses up to which the second is admitted, in units
    atomic_bool is_ample; // all bytes are admitted
};

// `memory` may be NULL; then everything is admitted.
void page_admission_init(struct page_admission *admission,
                         bool (*memory)(struct host_memory *ret_memory));
void page_admission_done(struct page_admission *admission);
// Compares the memory with the bytes in the cache.
void page_admission_look(struct page_admission *admission, uint64_t cached_bytes);
// Does so once a second at most. Called often, on one thread.
void page_admission_tick(struct page_admission *admission, uint64_t cached_bytes);
// Notes that bytes which are not in memory are read or written. Returns true if the page cache
// shall keep them. `unit` is the first of these checksum units in the segment. Any thread, never
// waits.
bool page_admission_take(struct page_admission *admission, uint32_t segment_number, uint32_t unit,
                         uint64_t bytes);

#endif
