// SPDX-License-Identifier: Apache-2.0
// Age, classes and silence. Age counts bytes that were asked for, not seconds, in ticks of a 1024th
// of the capacity; and the clock runs at the share of requests that concern known runs, so that a
// scan that nobody repeats makes nothing older. Where nothing is learnt of that share for a while,
// as all that is asked for belongs to uses that have begun, it runs at full speed, or they would
// never end.
//
// Silence is how a new data set gets in: when nothing known is asked for any more, and nothing of
// what is held has been read for a quarter of a typical interval, what was last read before is
// suspect, and worth nothing until one of them is read. At most one capacity is given away so.
#include "store/policy/policy_private.h"

#include <math.h>

#define SILENT_SHARE 0.01  // of known requests: below it nothing known is asked for
#define SHARE_WINDOW 256.0 // followed requests over which the share runs
#define SHARE_AGE_CAPACITIES                                                                       \
    64                       // one of so many parts of the capacity asked for: the share is stale
#define INTERVAL_WINDOW 64.0 // reuses over which the typical interval runs
#define QUIET_INTERVALS 0.25 // so long nothing may be read for what is held to be suspect
#define SAME_USE_TICKS 2u    // sub-reads of one run, and of several readers side by side:
#define SAME_USE_REQUESTS 64.0
#define SAME_USE_MAX (POLICY_CAPACITY_TICKS / 8) // or a small cache would see no reuse at all

// Of the bytes asked for. In silence it runs at full speed: what is new ages as it would in a cache
// of its own.
static double clock_rate(const struct policy_clock *clock)
{
    bool is_stale =
        clock->asked_bytes - clock->learnt_at > clock->capacity_bytes / SHARE_AGE_CAPACITIES;
    return clock->is_silent || is_stale ? 1 : clock->known_share;
}

static void clock_settle(struct policy_clock *clock)
{
    double request_ticks = clock->mean_bytes * clock_rate(clock) / clock->tick_bytes;
    double side_by_side = ceil(SAME_USE_REQUESTS * request_ticks);
    clock->same_use = side_by_side < SAME_USE_TICKS ? SAME_USE_TICKS
                      : side_by_side > SAME_USE_MAX ? SAME_USE_MAX
                                                    : (uint32_t)side_by_side;
}

void policy_clock_init(struct policy_clock *clock, uint64_t capacity_bytes)
{
    *clock = (struct policy_clock){
        .known_share = 1,
        .interval_ticks = 4.0 * POLICY_CAPACITY_TICKS,
    };
    policy_clock_resize(clock, capacity_bytes);
}

void policy_clock_resize(struct policy_clock *clock, uint64_t capacity_bytes)
{
    clock->capacity_bytes = max_u64(capacity_bytes, POLICY_CAPACITY_TICKS);
    clock->tick_bytes = (double)clock->capacity_bytes / POLICY_CAPACITY_TICKS;
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
        clock->is_silent = true;
        clock->has_suspects = false;
        clock->onset_tick = clock->tick;
        clock->quiet_since = clock->asked_bytes;
        clock->give_away_bytes = clock->capacity_bytes;
        clock->silence_count++;
        clock->newcomer_share = 0.5;
    }
    double quiet_bytes = (double)(clock->asked_bytes - clock->quiet_since);
    if (quiet_bytes > clock->interval_ticks * clock->tick_bytes * QUIET_INTERVALS) {
        clock->has_suspects = true;
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
    clock->learnt_at = clock->asked_bytes;
}

void policy_clock_learn_interval(struct policy_clock *clock, uint32_t age_ticks, bool was_newcomer)
{
    clock->newcomer_share += ((was_newcomer ? 1.0 : 0.0) - clock->newcomer_share) / INTERVAL_WINDOW;
    clock->interval_ticks += (age_ticks - clock->interval_ticks) / INTERVAL_WINDOW;
}

void policy_clock_hit(struct policy_clock *clock, uint32_t age_ticks)
{
    if (policy_clock_is_suspect(clock, age_ticks)) {
        clock->has_suspects = false;
        clock->quiet_since = clock->asked_bytes;
    }
}

// A class is 1 + 8 * (pair of octaves of the interval before, 0: none) + pair of octaves of the
// last one, counted from 0.
unsigned policy_class_next(uint32_t age_ticks, unsigned before)
{
    unsigned octave = 32 - (unsigned)__builtin_clz(age_ticks | 1);
    unsigned pair = octave > 16 ? 7 : (octave - 1) / 2;
    bool had_interval = before != POLICY_CLASS_NEW && before != POLICY_CLASS_SILENT;
    unsigned former = had_interval ? (before - 1) % 8 + 1 : 0;
    return 1 + former * 8 + pair;
}
