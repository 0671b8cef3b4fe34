// SPDX-License-Identifier: Apache-2.0
// Tracks how soon an origin answers reads: the times from a request to the first byte of its answer
// within the last minute, and the time that is usual. Writes do not count, because their bodies
// take time. Any thread.
//
// The times are counted by steps in a ring of windows. The present window and those before it cover
// the last minute, so an old time never passes for a present one. The thread that sees a new window
// first clears it. An answer that another thread counts at this moment may get lost, which does not
// matter. An answer costs two loads and one addition.
//
// The usual time is learnt at the end of each window, from the last minute. It falls within
// minutes, but rises so slowly that an origin which has become slow counts as slow for about a day.
//
// The slots of a worker keep an average of their own, which follows each answer at once and needs
// no atomics (origin_slots.c).
#include "origin/origin_private.h"

#define WINDOW_US 10000000u
#define STEP_BITS 3u     // log2 of the steps between a time and its double: exact to a sixteenth
#define STEP_MIN_BITS 6u // times below 64 us count as 64 us
// Fewer answers in a minute than this show neither what is usual nor that the origin is slow.
#define ANSWERS_MIN 8u
// An answer is slow from this time on, if it usually takes less than a quarter of it. Clients do
// not notice smaller differences among their own delays.
#define SLOW_US 1000000u
#define SLOW_TIMES 4u
// While no usual time is known, this time is slow in any case: no store takes so long in health.
#define SLOW_ALONE_US 2000000u
#define END_SHARE 2u // It ends at half of the time at which it begins, so that it does not flap.
// By which part of the difference the usual time falls in a window: by half in four minutes.
#define FALL_SHARE 32u
// By which part of itself the usual time rises in a window at most: 2.7-fold in six hours.
#define RISE_SHARE 2048u

// Returns the number of the present window. It is never 0.
static uint64_t window_now(void)
{
    return clock_monotonic_us() / WINDOW_US + 1;
}

static unsigned step_of(uint64_t us)
{
    unsigned bits = 63 - (unsigned)__builtin_clzll(max_u64(us, 1u << STEP_MIN_BITS));
    uint64_t part = max_u64(us, 1u << STEP_MIN_BITS) >> (bits - STEP_BITS);
    uint64_t step = ((uint64_t)(bits - STEP_MIN_BITS) << STEP_BITS) + part - (1u << STEP_BITS);
    return (unsigned)min_u64(step, ORIGIN_PACE_STEPS - 1);
}

// Returns the time in the middle of a step.
static uint64_t step_us(unsigned step)
{
    unsigned shift = (step >> STEP_BITS) + STEP_MIN_BITS - STEP_BITS;
    uint64_t part = (1u << STEP_BITS) + (step & ((1u << STEP_BITS) - 1));
    return (2 * part + 1) << shift >> 1;
}

// Returns the time that `rank` of the counted answers do not exceed.
static uint64_t time_at(const uint64_t counts[ORIGIN_PACE_STEPS], uint64_t rank)
{
    unsigned step = 0;
    for (uint64_t below = counts[0]; below < rank; below += counts[step]) {
        step++;
    }
    return step_us(step);
}

// Returns the pace of the minute that ends with the window `last`.
static struct origin_pace pace_at(const struct origin_paces *paces, uint64_t last)
{
    uint64_t counts[ORIGIN_PACE_STEPS] = {0};
    struct origin_pace pace = {.usual_us = atomic_load(&paces->usual_us)};
    for (unsigned i = 0; i < ORIGIN_PACE_WINDOWS; i++) {
        const struct origin_pace_window *window = &paces->windows[i];
        uint64_t number = atomic_load(&window->number);
        if (number == 0 || number > last || last - number >= ORIGIN_PACE_WINDOWS) {
            continue;
        }
        for (unsigned step = 0; step < ORIGIN_PACE_STEPS; step++) {
            uint64_t count = atomic_load_explicit(&window->counts[step], memory_order_relaxed);
            counts[step] += count;
            pace.answers += count;
        }
    }
    if (pace.answers > 0) {
        pace.median_us = time_at(counts, (pace.answers + 1) / 2);
        pace.p99_us = time_at(counts, (99 * pace.answers + 99) / 100);
    }
    return pace;
}

// Adapts the usual time at the end of the window `last`.
static void learn(struct origin_paces *paces, uint64_t last)
{
    struct origin_pace pace = pace_at(paces, last);
    uint64_t usual_us = pace.usual_us;
    if (pace.answers < ANSWERS_MIN) {
        return;
    }
    if (usual_us == 0) {
        usual_us = pace.median_us <= SLOW_ALONE_US ? pace.median_us : 0;
    } else if (pace.median_us < usual_us) {
        usual_us -= (usual_us - pace.median_us) / FALL_SHARE;
    } else {
        usual_us += min_u64(pace.median_us - usual_us, usual_us / RISE_SHARE + 1);
    }
    atomic_store(&paces->usual_us, usual_us);
}

static void window_begin(struct origin_pace_window *window, uint64_t number)
{
    for (unsigned step = 0; step < ORIGIN_PACE_STEPS; step++) {
        atomic_store_explicit(&window->counts[step], 0, memory_order_relaxed);
    }
    atomic_store(&window->number, number);
}

void origin_pace_note(struct origin *origin, uint64_t first_byte_us)
{
    struct origin_paces *paces = &origin->paces;
    uint64_t now = window_now();
    struct origin_pace_window *window = &paces->windows[now % ORIGIN_PACE_WINDOWS];
    unsigned long last = atomic_load_explicit(&paces->last, memory_order_relaxed);
    if (now > last && atomic_compare_exchange_strong(&paces->last, &last, now)) {
        learn(paces, last);
        window_begin(window, now);
    }
    if (atomic_load_explicit(&window->number, memory_order_acquire) == now) {
        atomic_fetch_add_explicit(&window->counts[step_of(first_byte_us)], 1, memory_order_relaxed);
    }
}

struct origin_pace origin_pace(const struct origin *origin)
{
    return pace_at(&origin->paces, window_now());
}

bool origin_is_slow(struct origin *origin, struct origin_pace *ret_pace)
{
    struct origin_pace pace = origin_pace(origin);
    uint64_t slow_us =
        pace.usual_us > 0 ? max_u64(SLOW_US, SLOW_TIMES * pace.usual_us) : SLOW_ALONE_US;
    bool is_slow = atomic_load(&origin->paces.is_slow)
                       ? pace.median_us > slow_us / END_SHARE
                       : pace.answers >= ANSWERS_MIN && pace.median_us > slow_us;
    atomic_store(&origin->paces.is_slow, is_slow);
    *ret_pace = pace;
    return is_slow;
}
