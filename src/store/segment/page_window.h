// SPDX-License-Identifier: Apache-2.0
// Limits the page cache of written bytes. While memory is short, only the bytes written last stay.
#ifndef FOREBAY_STORE_PAGE_WINDOW_H
#define FOREBAY_STORE_PAGE_WINDOW_H

#include "store/segment/segment_log.h"

#define PAGE_WINDOW_RANGES 4096u

struct page_range {
    uint32_t segment_number, offset, len;
};

struct page_window {
    uint64_t max_bytes;      // limit of `bytes`; 0: the window is off, and no page is dropped
    bool (*is_short)(void);  // returns whether memory is short
    bool presses;            // the last result of is_short()
    uint64_t unlooked_bytes; // bytes added since the last call of is_short()
    uint64_t bytes;          // total length of all ranges
    unsigned first, count;   // first entry and number of entries of the ring buffer `ranges`
    struct page_range ranges[PAGE_WINDOW_RANGES];
};

// Adds the payload of the run at that place, which has just been synced. Older ranges leave the
// window. Their pages are dropped only while memory is short.
void page_window_add(struct page_window *window, struct segment_log *log,
                     const struct store_place *place);

#endif
