// SPDX-License-Identifier: Apache-2.0
// Drops written pages from the page cache. Runs on the index writer's thread, which has just synced
// the pages. They are clean, so dropping them does not wait for the device. No worker waits for it.
//
// The memory limit of a cgroup counts all page cache. Without this, pages that Forebay wrote and no
// client reads would replace pages that clients read, and the kernel would search them at each page
// fault. So while memory is short, a written range is dropped once max_bytes more have been
// written. Pages that are being sent stay, because the kernel keeps pages in use. While memory is
// not short, all pages stay, and replies are sent from them. A run that was written past the page
// cache has only pages that were read again soon, so they stay, too (page_admission.c).
#include "store/segment/page_window.h"

#include <fcntl.h>

#include "stats/stats.h"

#define LOOK_EVERY_BYTES (1u << 20)

static void range_drop(struct segment_log *log, const struct page_range *range)
{
    struct segment *segment = segment_log_entry(log, range->segment_number);
    if (!segment_pin(segment, range->segment_number)) {
        return; // the segment's file is gone, and so are its pages
    }
    int fd = segment_borrow(segment);
    if (fd >= 0) {
        int failed =
            posix_fadvise(fd, (off_t)range->offset, (off_t)range->len, POSIX_FADV_DONTNEED);
        segment_return(segment);
        stats_add(COUNTER_page_cache_dropped_bytes, failed == 0 ? range->len : 0);
    }
    segment_unpin(segment);
}

void page_window_add(struct page_window *window, struct segment_log *log,
                     const struct store_place *place)
{
    if (window->max_bytes == 0 || place->payload_len == 0 || place->has_no_pages) {
        return;
    }
    unsigned at = (window->first + window->count) % PAGE_WINDOW_RANGES;
    check(window->count < PAGE_WINDOW_RANGES && window->is_short != NULL);
    check((window->count == 0) == (window->bytes == 0));
    window->ranges[at] =
        (struct page_range){place->segment_number, place->payload_offset, place->payload_len};
    window->bytes += place->payload_len;
    window->count++;
    window->unlooked_bytes += place->payload_len;
    if (window->unlooked_bytes >= LOOK_EVERY_BYTES) {
        window->unlooked_bytes = 0;
        window->presses = window->is_short();
    }
    while (window->bytes > window->max_bytes || window->count == PAGE_WINDOW_RANGES) {
        const struct page_range *oldest = &window->ranges[window->first];
        check(window->count > 0 && window->bytes >= oldest->len);
        if (window->presses) {
            range_drop(log, oldest);
        }
        window->bytes -= oldest->len;
        window->first = (window->first + 1) % PAGE_WINDOW_RANGES;
        window->count--;
    }
}
