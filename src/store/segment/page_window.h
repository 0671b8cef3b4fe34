// SPDX-License-Identifier: Apache-2.0
// Page cache of what we wrote: while memory is short the latest bytes stay, and older ones go.
#ifndef FOREBAY_STORE_PAGE_WINDOW_H
#define FOREBAY_STORE_PAGE_WINDOW_H

#include "store/segment/segment_log.h"

#define PAGE_WINDOW_RANGES 4096u

struct page_range {
    uint32_t segment_number, offset, len;
};

struct page_window {
    uint64_t max_bytes; // 0: off
    bool (*is_short)(void);
    bool presses;            // memory was short when it was looked at last
    uint64_t unlooked_bytes; // added since
    uint64_t bytes;
    unsigned first, count; // a ring
    struct page_range ranges[PAGE_WINDOW_RANGES];
};

// What was written there is on the device now.
void page_window_add(struct page_window *window, struct segment_log *log,
                     const struct store_place *place);

#endif
