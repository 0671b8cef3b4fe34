// SPDX-License-Identifier: Apache-2.0
// The hits of a cache that knows the future. If all blocks have one length, the optimum is exact:
// the block that is next read last is evicted first, and a new block may be that one. For several
// lengths the exact optimum is a packing problem, so an upper bound takes its place:
//
// To keep a block from one request to the next costs its length times the number of requests in
// between. The room for that is the capacity times the number of all requests that are judged. The
// cheapest hits fill it first.
#include "traces_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define NEVER UINT32_MAX

// Of each request, the next one of its block.
static uint32_t *next_requests(const struct trace *trace)
{
    uint32_t *next = trace_take(trace->request_count, sizeof(*next));
    uint32_t *seen = trace_take(trace->block_count, sizeof(*seen));
    memset(seen, 0xff, trace->block_count * sizeof(*seen));
    for (uint32_t i = trace->request_count; i-- > 0;) {
        next[i] = seen[trace->blocks[i]];
        seen[trace->blocks[i]] = i;
    }
    free(seen);
    return next;
}

// --- of one length -------------------------------------------------------------------------------

// A heap by next use. Outdated entries are skipped when they come to the top.
struct future {
    uint32_t next, block;
};

struct heap {
    struct future *items;
    size_t count;
};

static void heap_push(struct heap *heap, struct future item)
{
    size_t at = heap->count++;
    for (; at > 0 && heap->items[(at - 1) / 2].next < item.next; at = (at - 1) / 2) {
        heap->items[at] = heap->items[(at - 1) / 2];
    }
    heap->items[at] = item;
}

static void heap_pop(struct heap *heap)
{
    struct future last = heap->items[--heap->count];
    size_t at = 0;
    for (size_t child = 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && heap->items[child + 1].next > heap->items[child].next) {
            child++;
        }
        if (heap->items[child].next <= last.next) {
            break;
        }
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
}

struct optimum {
    const struct trace *trace;
    struct heap heap;
    uint32_t *held_until; // by block: its next use; NEVER: it is not held
    uint64_t used, capacity;
};

// Makes room by evicting blocks that are next read later than `next`.
static bool optimum_make_room(struct optimum *o, uint32_t len, uint32_t next)
{
    while (o->used + len > o->capacity) {
        while (o->heap.count > 0 &&
               o->held_until[o->heap.items[0].block] != o->heap.items[0].next) {
            heap_pop(&o->heap);
        }
        if (o->heap.count == 0 || o->heap.items[0].next <= next) {
            return false;
        }
        uint32_t victim = o->heap.items[0].block;
        heap_pop(&o->heap);
        o->held_until[victim] = NEVER;
        o->used -= trace_len(o->trace, victim);
    }
    return true;
}

static uint64_t optimum_of_equals(const struct trace *trace, uint64_t capacity_units)
{
    uint32_t *next = next_requests(trace);
    uint32_t *held_until = trace_take(trace->block_count, sizeof(*held_until));
    memset(held_until, 0xff, trace->block_count * sizeof(*held_until));
    struct optimum o = {
        .trace = trace,
        .heap.items = trace_take(trace->request_count, sizeof(struct future)),
        .held_until = held_until,
        .capacity = capacity_units,
    };
    uint64_t hits = 0;
    for (uint32_t i = 0; i < trace->request_count; i++) {
        uint32_t block = trace->blocks[i], len = trace_len(trace, block);
        bool is_hit = o.held_until[block] != NEVER;
        hits += is_hit && (trace->flags[i] & TRACE_COUNTS) != 0;
        if (is_hit && next[i] == NEVER) {
            o.used -= len;
        } else if (!is_hit && (next[i] == NEVER || !optimum_make_room(&o, len, next[i]))) {
            continue; // it passes by
        } else if (!is_hit) {
            o.used += len;
        }
        o.held_until[block] = next[i];
        if (next[i] != NEVER) {
            heap_push(&o.heap, (struct future){next[i], block});
        }
    }
    free(o.heap.items);
    free(next);
    free(held_until);
    return hits;
}

// --- of many lengths -----------------------------------------------------------------------------

static int by_need(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t bound_of_any(const struct trace *trace, uint64_t capacity_units)
{
    uint32_t *next = next_requests(trace);
    uint64_t *needs = trace_take(trace->request_count, sizeof(*needs));
    uint32_t first = trace->first_counted, count = 0;
    for (uint32_t i = 0; i < trace->request_count; i++) {
        uint64_t len = trace_len(trace, trace->blocks[i]);
        if (next[i] != NEVER && (trace->flags[next[i]] & TRACE_COUNTS) != 0 &&
            len <= capacity_units) {
            needs[count++] = len * (next[i] - (i > first ? i : first)); // of what is judged
        }
    }
    qsort(needs, count, sizeof(*needs), by_need);
    double room = (double)capacity_units * (trace->request_count - first);
    uint64_t hits = 0;
    while (hits < count && (double)needs[hits] <= room) {
        room -= (double)needs[hits++];
    }
    free(needs);
    free(next);
    return hits + (hits < count); // rounding must not make it less than it is
}

bool trace_is_of_one_length(const struct trace *trace)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < trace->request_count && trace->len_units != NULL; i++) {
        uint32_t its = trace_len(trace, trace->blocks[i]);
        if (len != 0 && its != len) {
            return false;
        }
        len = its;
    }
    return true;
}

uint64_t trace_optimum(const struct trace *trace, uint64_t capacity_units)
{
    return trace_is_of_one_length(trace) ? optimum_of_equals(trace, capacity_units)
                                         : bound_of_any(trace, capacity_units);
}
