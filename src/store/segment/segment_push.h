// SPDX-License-Identifier: Apache-2.0
// Written pages go to the device at once, instead of when the kernel finds them many: it then never
// stops who writes, the sync before a commit is short, and what the device still owes is known
// (write_backlog.h). On the worker that wrote.
#ifndef FOREBAY_STORE_SEGMENT_PUSH_H
#define FOREBAY_STORE_SEGMENT_PUSH_H

#include "loop/loop.h"

#define SEGMENT_PUSH_RANGES 8u

struct segment;
struct segment_log;
struct write_backlog;

struct segment_push_range {
    struct segment *segment; // not pinned; NULL: free
    uint32_t number;
    uint64_t first, end, bytes;
    bool counted; // in the backlog
};

// Of one worker.
struct segment_pusher {
    struct worker *worker;
    struct segment_log *log;
    struct write_backlog *backlog;
    struct segment_push_range waiting[SEGMENT_PUSH_RANGES], running;
    struct disk_op op;
};
void segment_push_init(struct segment_pusher *pusher, struct segment_log *log,
                       struct write_backlog *backlog);
// `bytes` were written to [first, end) of the segment, which the caller has pinned.
void segment_push(struct worker *w, struct segment_pusher *pusher, struct segment *segment,
                  uint64_t first, uint64_t end);

#endif
