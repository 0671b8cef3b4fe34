// SPDX-License-Identifier: Apache-2.0
// One-shot timers of a worker, in a binary heap. Because the heap is our own, starting, moving and
// stopping a timer costs no system call, and a test clock controls the timers too. The worker has
// one libevent timer, for the timer that is due next. Runs on the worker that owns the heap.
//
// Invariant: a running timer t is heap->items[t->heap_slot - 1]; the heap_slot of any other timer
// is 0.
#include <stdlib.h>

#include "loop/loop_private.h"

static void heap_place(struct timer_heap *heap, unsigned at, struct timer *timer)
{
    heap->items[at] = timer;
    timer->heap_slot = at + 1;
}

static void heap_sift_up(struct timer_heap *heap, unsigned at)
{
    struct timer *timer = heap->items[at];
    while (at > 0) {
        unsigned parent = (at - 1) / 2;
        if (heap->items[parent]->due_us <= timer->due_us) {
            break;
        }
        heap_place(heap, at, heap->items[parent]);
        at = parent;
    }
    heap_place(heap, at, timer);
}

static void heap_sift_down(struct timer_heap *heap, unsigned at)
{
    struct timer *timer = heap->items[at];
    for (;;) {
        unsigned child = 2 * at + 1;
        if (child >= heap->count) {
            break;
        }
        if (child + 1 < heap->count &&
            heap->items[child + 1]->due_us < heap->items[child]->due_us) {
            child++;
        }
        if (timer->due_us <= heap->items[child]->due_us) {
            break;
        }
        heap_place(heap, at, heap->items[child]);
        at = child;
    }
    heap_place(heap, at, timer);
}

static void heap_grow(struct timer_heap *heap)
{
    unsigned cap = heap->cap == 0 ? 64 : heap->cap * 2;
    heap->items = realloc(heap->items, cap * sizeof(heap->items[0]));
    check(heap->items != NULL);
    heap->cap = cap;
}

void timer_heap_done(struct timer_heap *heap)
{
    for (unsigned i = 0; i < heap->count; i++) {
        heap->items[i]->heap_slot = 0;
    }
    free(heap->items);
    *heap = (struct timer_heap){0};
}

uint64_t timer_heap_next_us(const struct timer_heap *heap)
{
    return heap->count == 0 ? UINT64_MAX : heap->items[0]->due_us;
}

void timer_heap_run(struct timer_heap *heap, uint64_t now_us)
{
    while (heap->count > 0 && heap->items[0]->due_us <= now_us) {
        struct timer *timer = heap->items[0];
        check(timer->heap_slot == 1);
        timer_stop(timer);
        timer->fn(timer);
    }
}

void timer_init(struct worker *w, struct timer *timer, void (*fn)(struct timer *timer))
{
    check(fn != NULL);
    *timer = (struct timer){.fn = fn, .worker = as_worker(w)};
}

void timer_start(struct timer *timer, uint64_t delay_ms)
{
    struct worker *w = as_worker(timer->worker);
    check(worker_is_mine(w));
    check(delay_ms < UINT64_MAX / 2000);
    struct timer_heap *heap = &w->timers;
    // Due at least 1 us from now. So a timer without a delay fires in the next turn, and a timer
    // that restarts itself cannot keep a turn from ending.
    timer->due_us = worker_now_us(w) + delay_ms * 1000 + 1;
    if (timer->heap_slot == 0) {
        if (heap->count == heap->cap) {
            heap_grow(heap);
        }
        heap_place(heap, heap->count, timer);
        heap->count++;
    }
    heap_sift_up(heap, timer->heap_slot - 1);
    heap_sift_down(heap, timer->heap_slot - 1);
}

void timer_stop(struct timer *timer)
{
    if (timer->heap_slot == 0) {
        return;
    }
    struct worker *w = as_worker(timer->worker);
    check(worker_is_mine(w));
    struct timer_heap *heap = &w->timers;
    unsigned at = timer->heap_slot - 1;
    check(at < heap->count);
    check(heap->items[at] == timer);
    timer->heap_slot = 0;
    heap->count--;
    if (at == heap->count) {
        return;
    }
    struct timer *moved = heap->items[heap->count];
    heap_place(heap, at, moved);
    heap_sift_up(heap, at);
    heap_sift_down(heap, moved->heap_slot - 1);
}

void timer_done(struct timer *timer)
{
    if (timer->worker != NULL) {
        timer_stop(timer);
    }
}
