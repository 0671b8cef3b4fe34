// SPDX-License-Identifier: Apache-2.0
// Age, classes and silence. Ages are in requested bytes, not seconds. A tick is a 1024th of the
// capacity. A run is known if it is stored or in the ghost. The clock's speed is the share of
// requests that are for known runs, so a scan that is never repeated does not age other runs.
//
// Silence lets a new data set replace an old one. It begins when clients request hardly any known
// run. All runs that were last read before the silence are then suspect: they are worth nothing
// until one of them is read.
//
// A new cache begins in a silence without suspects, because nothing has been read again yet. So
// the first pass over a data set larger than the cache does not evict what it has stored.
#include "store/policy/policy_private.h"

#include <math.h>

#define SILENT_SHARE 0.01    // silence begins if at most this share of requests is for known runs
#define SHARE_WINDOW 256.0   // window of the mean known_share, in followed requests
#define NEWCOMER_WINDOW 64.0 // window of the mean newcomer_share, in reuses
// Reads of one run, also by parallel readers, count as one use if they are close together. The
// limit is SAME_USE_TICKS or SAME_USE_REQUESTS mean requests, whichever is more. It is at most
// SAME_USE_MAX, because a small cache would otherwise never see reuse.
#define SAME_USE_TICKS 2u
#define SAME_USE_REQUESTS 64.0
#define SAME_USE_MAX (POLICY_CAPACITY_TICKS / 8)

// Returns the share of the requested bytes that the clock counts. In silence the clock counts all
// bytes, so new runs age as they would in a separate cache.
static double clock_rate(const struct policy_clock *clock)
{
    return clock->is_silent ? 1 : clock->known_share;
}

static void clock_settle(struct policy_clock *clock)
{
    double request_ticks = clock->mean_bytes * clock_rate(clock) / clock->tick_bytes;
    check(request_ticks >= 0); // this check fails for NaN, too
    double side_by_side = ceil(SAME_USE_REQUESTS * request_ticks);
    clock->same_use = side_by_side < SAME_USE_TICKS ? SAME_USE_TICKS
                      : side_by_side > SAME_USE_MAX ? SAME_USE_MAX
                                                    : (uint32_t)side_by_side;
}

void policy_clock_init(struct policy_clock *clock, uint64_t capacity_bytes)
{
    *clock = (struct policy_clock){.is_silent = true};
    policy_clock_resize(clock, capacity_bytes);
}

void policy_clock_resize(struct policy_clock *clock, uint64_t capacity_bytes)
{
    clock->capacity_bytes = max_u64(capacity_bytes, POLICY_CAPACITY_TICKS);
    clock->tick_bytes = (double)clock->capacity_bytes / POLICY_CAPACITY_TICKS;
    check(clock->tick_bytes >= 1);
    clock->part_bytes = 0;
    clock_settle(clock);
}

static void clock_watch_silence(struct policy_clock *clock)
{
    if (clock->known_share > SILENT_SHARE) {
        clock->is_silent = false;
        return;
    }
    if (!clock->is_silent) {
        clock->is_silent = clock->has_suspects = true;
        clock->onset_tick = clock->tick;
        clock->silence_count++;
        clock->newcomer_share = 0.5;
    }
}

void policy_clock_advance(struct policy_clock *clock, uint32_t request_bytes)
{
    if (clock->asked_bytes == 0) {
        clock->mean_bytes = request_bytes;
        clock_settle(clock);
    }
    clock->asked_bytes += request_bytes;
    clock->mean_bytes += (request_bytes - clock->mean_bytes) / SHARE_WINDOW;
    clock_watch_silence(clock);
    clock->part_bytes += request_bytes * clock_rate(clock);
    if (clock->part_bytes >= clock->tick_bytes) {
        uint32_t ticks = (uint32_t)(clock->part_bytes / clock->tick_bytes);
        clock->part_bytes -= ticks * clock->tick_bytes;
        clock->tick += ticks;
        clock_settle(clock);
    }
}

void policy_clock_learn(struct policy_clock *clock, bool is_known)
{
    clock->known_share += ((is_known ? 1.0 : 0.0) - clock->known_share) / SHARE_WINDOW;
    check(clock->known_share >= 0 && clock->known_share <= 1);
}

void policy_clock_learn_newcomer(struct policy_clock *clock, bool is_newcomer)
{
    clock->newcomer_share += ((is_newcomer ? 1.0 : 0.0) - clock->newcomer_share) / NEWCOMER_WINDOW;
    check(clock->newcomer_share >= 0 && clock->newcomer_share <= 1);
}

void policy_clock_hit(struct policy_clock *clock, uint32_t age_ticks)
{
    clock->has_suspects = clock->has_suspects && !policy_clock_is_suspect(clock, age_ticks);
}

// A class is 1 + 8 * former + last. `last` stands for the latest interval between two uses: 0 to 7,
// each number for two octaves of ticks. `former` stands for the interval before that in the same
// way, but from 1 to 8. 0: there was none.
unsigned policy_class_next(uint32_t age_ticks, unsigned before)
{
    check(before < POLICY_CLASSES);
    unsigned octave = 32 - (unsigned)__builtin_clz(age_ticks | 1);
    unsigned pair = octave > 16 ? 7 : (octave - 1) / 2;
    bool had_interval = before != POLICY_CLASS_NEW && before != POLICY_CLASS_SILENT;
    unsigned former = had_interval ? (before - 1) % 8 + 1 : 0;
    check(pair < 8 && former <= 8);
    return 1 + former * 8 + pair;
}
