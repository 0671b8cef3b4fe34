// SPDX-License-Identifier: Apache-2.0
// A push starts the write-back of a range. Each worker has at most one push in flight. Until that
// push ends, the pusher collects the ranges written meanwhile, by segment. So the slower the device
// is, the larger is the next push. A range shorter than PUSH_MIN waits for more bytes, because
// small runs share pages. If ranges of SEGMENT_PUSH_RANGES segments wait, the kernel writes back
// other ranges later.
//
// A failed push is treated like a failed sync, because the kernel reports a lost page only once.
#include <errno.h>

#include "stats/stats.h"
#include "store/segment/segment_log.h"
#include "store/segment/segment_push.h"
#include "store/segment/write_backlog.h"

#define PUSH_MIN (1u << 20)

static void push_next(struct segment_pusher *pusher);

static void push_over(struct segment_pusher *pusher)
{
    struct segment_push_range *range = &pusher->running;
    check(range->segment != NULL && range->counted);
    write_backlog_pushed(pusher->backlog, range->bytes);
    segment_unpin(range->segment);
    range->segment = NULL;
}

static void on_pushed(struct disk_op *op)
{
    struct segment_pusher *pusher = container_of(op, struct segment_pusher, op);
    check(pusher->running.segment != NULL);
    struct segment *segment = pusher->running.segment;
    segment_return(segment);
    bool lost = op->err != ERR_OK && (op->errno_value == EIO || op->errno_value == ENOSPC);
    if (lost) {
        segment_log_abandon(pusher->log, segment);
        disk_filling_off(pusher->log->disk, "push", op->errno_value);
    }
    push_over(pusher);
    push_next(pusher);
}

// Returns false if the segment is gone or has no open descriptor. The kernel then writes the pages
// back later.
static bool push_start(struct segment_pusher *pusher, struct segment_push_range *range)
{
    check(pusher->running.segment == NULL && range->segment != NULL);
    check(range->counted && range->first < range->end);
    pusher->running = *range;
    *range = (struct segment_push_range){0};
    struct segment *segment = pusher->running.segment;
    if (!segment_pin(segment, pusher->running.number)) {
        write_backlog_pushed(pusher->backlog, pusher->running.bytes);
        pusher->running.segment = NULL;
        return false;
    }
    int fd = segment_borrow(segment);
    if (fd < 0) {
        push_over(pusher);
        return false;
    }
    pusher->op = (struct disk_op){.kind = DISK_PUSH,
                                  .fd = fd,
                                  .offset = pusher->running.first,
                                  .length = pusher->running.end - pusher->running.first,
                                  .done = on_pushed};
    disk_io_start(pusher->worker, &pusher->op);
    return true;
}

static void push_next(struct segment_pusher *pusher)
{
    for (unsigned i = 0; i < SEGMENT_PUSH_RANGES && pusher->running.segment == NULL; i++) {
        struct segment_push_range *range = &pusher->waiting[i];
        if (range->segment != NULL && range->counted) {
            (void)push_start(pusher, range);
        }
    }
}

static struct segment_push_range *range_of(struct segment_pusher *pusher, struct segment *segment)
{
    struct segment_push_range *unused = NULL;
    uint32_t number = atomic_load(&segment->number);
    for (unsigned i = 0; i < SEGMENT_PUSH_RANGES; i++) {
        struct segment_push_range *range = &pusher->waiting[i];
        if (range->segment == segment && range->number == number) {
            return range;
        }
        bool is_worse = unused == NULL || (unused->segment != NULL && range->segment == NULL);
        unused = !range->counted && is_worse ? range : unused;
    }
    if (unused != NULL) {
        *unused =
            (struct segment_push_range){.segment = segment, .number = number, .first = UINT64_MAX};
    }
    return unused;
}

void segment_push_init(struct segment_pusher *pusher, struct segment_log *log,
                       struct write_backlog *backlog)
{
    *pusher = (struct segment_pusher){.log = log, .backlog = backlog};
}

void segment_push(struct worker *w, struct segment_pusher *pusher, struct segment *segment,
                  uint64_t first, uint64_t end)
{
    check(first < end);
    check(pusher->worker == NULL || pusher->worker == w);
    check((atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) > 0);
    pusher->worker = w;
    struct segment_push_range *range = range_of(pusher, segment);
    if (range == NULL) {
        return;
    }
    range->first = min_u64(range->first, first);
    range->end = max_u64(range->end, end);
    range->bytes += end - first;
    check(range->first < range->end && range->bytes >= end - first);
    if (range->counted) {
        write_backlog_push(pusher->backlog, end - first);
    } else if (range->bytes >= PUSH_MIN) {
        range->counted = true;
        write_backlog_push(pusher->backlog, range->bytes);
    }
    push_next(pusher);
}
