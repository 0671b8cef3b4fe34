// SPDX-License-Identifier: Apache-2.0
// A page that is gone from memory before it is read again costs its allocation, a copy and its
// eviction, and often evicts a page that would have been read. So a hit whose bytes are not in
// memory reads them past the page cache, and a miss writes them past it (store_write.c), unless one
// of these is true:
//
// - All bytes of the cache fit into the memory that the page cache can use.
// - There is free memory. Then nothing is evicted.
// - The same bytes were read or written before, and since then fewer bytes than fit into memory
//   were brought from the device or the origin. Then the page cache would still have them. The
//   kernel finds its working set by the same distance.
//
// The last reads and writes are in a table of one slot each. A later read may take the slot of
// another one, whose bytes then need one more read until they are admitted. For machines of much
// memory the table is limited, and finds only shorter distances. This does no harm while the cache
// fits.
#include "store/segment/page_admission.h"

#include <assert.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "loop/loop.h"
#include "stats/stats.h"
#include "store/disk/disk_fault.h"

#define UNITS 8192u // the clock counts in this part of the memory, so that 16 bits are enough
#define UNIT_BYTES_MIN 65536u
#define SLOT_BYTES 65536u // there is a slot for each of these bytes of the memory
#define SLOTS_MIN 1024u
#define SLOTS_MAX (1u << 20)
#define LOOK_MS 1000u // between two looks at the memory, which read files of the kernel
#define FREE_PART 8u  // memory is free if this part of it is
static_assert(UNITS < UINT16_MAX / 4, "times of old reads differ from those within reach");

static void compare(struct page_admission *admission, const struct host_memory *now,
                    uint64_t cached_bytes)
{
    check(now->free_bytes <= now->room_bytes && now->room_bytes <= now->most_bytes);
    uint64_t reach = min_u64(now->room_bytes / admission->unit_bytes, UNITS);
    atomic_store(&admission->reach, reach);
    atomic_store(&admission->is_ample,
                 cached_bytes < now->room_bytes - now->room_bytes / FREE_PART ||
                     now->free_bytes >= now->most_bytes / FREE_PART);
}

void page_admission_init(struct page_admission *admission,
                         bool (*memory)(struct host_memory *ret_memory))
{
    struct host_memory now;
    *admission = (struct page_admission){.is_ample = true};
    if (memory == NULL || !memory(&now)) {
        return;
    }
    admission->memory = memory;
    admission->unit_bytes = max_u64(now.most_bytes / UNITS, UNIT_BYTES_MIN);
    uint64_t slots = SLOTS_MIN;
    while (slots < SLOTS_MAX && slots * SLOT_BYTES < now.most_bytes) {
        slots *= 2;
    }
    admission->slot_mask = (uint32_t)slots - 1;
    admission->slots = calloc(slots, sizeof(*admission->slots));
    check(admission->slots != NULL);
    compare(admission, &now, 0);
}

void page_admission_done(struct page_admission *admission)
{
    free(admission->slots);
    admission->slots = NULL;
}

void page_admission_look(struct page_admission *admission, uint64_t cached_bytes)
{
    struct host_memory now;
    if (admission->memory == NULL || !admission->memory(&now)) {
        atomic_store(&admission->is_ample, true);
        return;
    }
    compare(admission, &now, cached_bytes);
}

void page_admission_tick(struct page_admission *admission, uint64_t cached_bytes)
{
    uint64_t now_ms = clock_monotonic_ms();
    if (admission->looked_ms == 0 || now_ms - admission->looked_ms >= LOOK_MS) {
        admission->looked_ms = now_ms;
        page_admission_look(admission, cached_bytes);
    }
}

bool page_admission_take(struct page_admission *admission, uint32_t segment_number, uint32_t unit,
                         uint64_t bytes)
{
    bool is_ample = atomic_load_explicit(&admission->is_ample, memory_order_relaxed);
    if (admission->slots == NULL) {
        return is_ample && !store_fault_pages_are_gone();
    }
    const uint32_t name[] = {segment_number, unit};
    uint64_t mixed = hash64(name, sizeof(name), 0);
    uint64_t before = atomic_fetch_add_explicit(&admission->clock, bytes, memory_order_relaxed);
    uint16_t now = (uint16_t)(before / admission->unit_bytes);
    uint16_t tag = (uint16_t)((mixed >> 48) | 1); // 0 is an unused slot
    atomic_uint *slot = &admission->slots[mixed & admission->slot_mask];
    unsigned last = atomic_exchange_explicit(slot, (unsigned)tag << 16 | now, memory_order_relaxed);
    bool is_known = last >> 16 == tag;
    uint16_t distance = (uint16_t)(now - (uint16_t)last);
    uint64_t reach = atomic_load_explicit(&admission->reach, memory_order_relaxed);
    return (is_ample || (is_known && distance <= reach)) && !store_fault_pages_are_gone();
}
