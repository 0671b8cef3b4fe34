// SPDX-License-Identifier: Apache-2.0
// Starts the write-back of pages soon after they were written, before the kernel has too many dirty
// pages. So the kernel never blocks the writer, the sync before a commit is short, and the device's
// backlog is known (write_backlog.h). Runs on the worker that wrote the pages.
#ifndef FOREBAY_STORE_SEGMENT_PUSH_H
#define FOREBAY_STORE_SEGMENT_PUSH_H

#include "loop/loop.h"

#define SEGMENT_PUSH_RANGES 8u

struct segment;
struct segment_log;
struct write_backlog;

struct segment_push_range {
    struct segment *segment; // the segment of the range, not pinned; NULL: this entry is free
    uint32_t number;
    uint64_t first, end, bytes;
    bool counted; // the backlog includes these bytes
};

// Collects the ranges that one worker wrote, and pushes them. At most one push is in flight:
// `running`.
struct segment_pusher {
    struct worker *worker;
    struct segment_log *log;
    struct write_backlog *backlog;
    struct segment_push_range waiting[SEGMENT_PUSH_RANGES], running;
    struct disk_op op;
};
void segment_push_init(struct segment_pusher *pusher, struct segment_log *log,
                       struct write_backlog *backlog);
// Adds the bytes in [first, end) of the segment, which were just written, to the next push. The
// caller has pinned the segment.
void segment_push(struct worker *w, struct segment_pusher *pusher, struct segment *segment,
                  uint64_t first, uint64_t end);

#endif
