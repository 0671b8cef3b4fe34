// SPDX-License-Identifier: Apache-2.0
// The functions of a worker that other rooms call: time of the turn, current worker, slots,
// deferred work, wake-up. loop.c runs the worker.
#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "loop/loop_private.h"

// A turn runs at most this many events of sockets, or if more are ready, a part of them. Each turn
// asks the kernel again for all sockets that are ready, so short turns would cost more.
#define TURN_EVENTS_LEAST 64u
#define TURN_EVENTS_PART 8u
#define QUICK_LASTS_US 100000u // After a quick answer, more of them are likely for this long.

static __thread struct worker *current_worker;

unsigned worker_index(const struct worker *w)
{
    return w->index;
}

struct event_base *worker_event_base(struct worker *w)
{
    return w->base;
}

struct worker *worker_current(void)
{
    return current_worker;
}

void worker_enter(struct worker *w)
{
    check((w == NULL) != (current_worker == NULL));
    current_worker = w;
}

bool worker_is_mine(const struct worker *w)
{
    return current_worker == w || !w->is_running;
}

uint64_t worker_now_us(const struct worker *w)
{
    if (*w->now_us == 0) {
        *w->now_us = clock_monotonic_us();
    }
    return *w->now_us;
}

struct worker_turn_time worker_last_turn(const struct worker *w)
{
    return (struct worker_turn_time){w->last_turn_at_us, w->last_turn_us};
}

void worker_expect_short(struct worker *w, uint64_t until_us)
{
    w->short_until_us = max_u64(w->short_until_us, until_us);
}

bool worker_expects_short(const struct worker *w)
{
    return worker_now_us(w) < w->short_until_us;
}

void worker_note_quick(struct worker *w)
{
    w->quick_until_us = worker_now_us(w) + QUICK_LASTS_US;
}

bool worker_expects_quick(const struct worker *w)
{
    return worker_now_us(w) < w->quick_until_us;
}

// Ends step 1 after this callback if enough events have run. Each step of a turn passes over all
// requests of the turn, and the memory of a few requests stays in the processor's cache from step
// to step. A turn also submits only as many writes as the queue depth allows, and payload stays in
// memory until its write is submitted. Hits need one step and no writes. Among them, asking the
// kernel more often would cost more than it saves.
void worker_event_ran(struct worker *w)
{
    if (worker_expects_quick(w)) {
        return;
    }
    if (w->events_left == 0) {
        uint64_t ready = (uint64_t)event_base_get_num_events(w->base, EVENT_BASE_COUNT_ACTIVE);
        w->events_left = (unsigned)max_u64(TURN_EVENTS_LEAST, ready / TURN_EVENTS_PART);
    }
    if (--w->events_left == 0) {
        check(event_base_loopbreak(w->base) == 0);
    }
}

void worker_slot_set(struct worker *w, enum worker_slot slot, void *value)
{
    check(slot < WORKER_SLOT_COUNT_);
    check(worker_is_mine(w));
    w->slots[slot] = value;
}

void *worker_slot_get(const struct worker *w, enum worker_slot slot)
{
    check(slot < WORKER_SLOT_COUNT_);
    return w->slots[slot];
}

void worker_expect(struct worker *w)
{
    check(worker_is_mine(w));
    w->expected_count++;
}

void worker_expect_done(struct worker *w)
{
    check(worker_is_mine(w));
    check(w->expected_count > 0);
    w->expected_count--;
}

void worker_wake(struct worker *w)
{
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(w->wake_fd, &one, sizeof(one));
    } while (n < 0 && errno == EINTR);
    // EAGAIN: the eventfd's counter is full, so a wake-up is pending already.
    check(n == (ssize_t)sizeof(one) || errno == EAGAIN);
}

// --- Deferred work and destructors ---------------------------------------------------------------

void worker_task_init(struct task *task, void (*fn)(struct task *task))
{
    check(fn != NULL);
    list_node_init(&task->node);
    task->fn = fn;
}

void worker_defer(struct worker *w, struct task *task)
{
    check(worker_is_mine(w));
    if (!list_node_linked(&task->node)) {
        list_push_back(&w->deferred, &task->node);
    }
}

void worker_task_cancel(struct task *task)
{
    list_remove(&task->node);
}

void worker_run_deferred(struct worker *w)
{
    struct list batch;
    list_init(&batch);
    list_append_all(&batch, &w->deferred);
    struct list_node *node;
    while ((node = list_pop_front(&batch)) != NULL) {
        struct task *task = container_of(node, struct task, node);
        task->fn(task);
    }
}

void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr)
{
    check(worker_is_mine(w));
    if (w->dead_count == w->dead_cap) {
        w->dead_cap = w->dead_cap == 0 ? 64 : w->dead_cap * 2;
        w->dead = realloc(w->dead, w->dead_cap * sizeof(w->dead[0]));
        check(w->dead != NULL);
    }
    w->dead[w->dead_count++] = (struct dead){fn, ptr};
}

void worker_free_dead(struct worker *w)
{
    // Iterate by index, because a destructor may add others, and the array then moves.
    for (unsigned i = 0; i < w->dead_count; i++) {
        struct dead dead = w->dead[i];
        dead.fn(dead.ptr);
    }
    w->dead_count = 0;
}
