// SPDX-License-Identifier: Apache-2.0
// Counts which share of the requests to an origin end with a server error (5xx), and which with
// SlowDown, so that origin_trouble.c can tell an origin that fails from the single errors that
// every store has. A request counts once, by its last answer: an error that a retry has mended does
// not count. An answer below 500, or 501, counts as good, also if the object does not exist or may
// not be read.
// Among the requests that may fail, those that end with SlowDown do not count.
//
// It also counts which share of the requests that Forebay signs with its own keys end with
// AccessDenied. Single clients may ask for objects that these keys may not read. So only nearly all
// of some tens of requests show that the keys have lost their rights.
//
// The counts cover the present window and the one before it. A window lasts until it is old enough
// and has enough requests. So at a high rate the counts cover the last minute at most, and at a low
// rate the last few requests, however long ago they were. While many requests have failed, the
// probe alone sends enough, so that the counts are never much older than a minute.
#include "base/clock.h"
#include "origin/origin_private.h"

#define WINDOW_US 30000000u
#define WINDOW_REQUESTS 6u // the probe of a failing origin sends as many in a window
#define FAILURES_MIN 5u    // fewer are never many
#define DENIED_US 60000000u
#define FAILURE ((uint64_t)1 << 32)

// The number and the percentage that are many: from `begin` on, until they are below `end`.
static const struct {
    unsigned begin_min, begin, end;
} manys[ORIGIN_SHARES] = {[ORIGIN_SHARE_FAILED] = {FAILURES_MIN, 10, 5},
                          [ORIGIN_SHARE_REFUSED] = {FAILURES_MIN, 90, 75},
                          [ORIGIN_SHARE_DENIED] = {20, 90, 75}};

static uint64_t requests_of(uint64_t window)
{
    return window & (FAILURE - 1);
}

static void note(struct origin_share *share, bool failed)
{
    unsigned long now_us = clock_monotonic_us();
    unsigned long began_us = atomic_load_explicit(&share->began_us, memory_order_relaxed);
    // The thread that moves the beginning starts the next window. A request that another thread
    // counts at this moment may get lost, which does not matter.
    if (now_us - began_us >= WINDOW_US &&
        requests_of(atomic_load_explicit(&share->window, memory_order_relaxed)) >=
            WINDOW_REQUESTS &&
        atomic_compare_exchange_strong(&share->began_us, &began_us, now_us)) {
        atomic_store(&share->former, atomic_exchange(&share->window, 0));
    }
    atomic_fetch_add_explicit(&share->window, failed ? FAILURE + 1 : 1, memory_order_relaxed);
}

void origin_failures_note(struct origin *origin, enum origin_outcome outcome)
{
    if (outcome != ORIGIN_OUTCOME_REFUSED) {
        note(&origin->shares[ORIGIN_SHARE_FAILED], outcome == ORIGIN_OUTCOME_FAILED);
    }
    note(&origin->shares[ORIGIN_SHARE_REFUSED], outcome == ORIGIN_OUTCOME_REFUSED);
}

void origin_failures_note_access(struct origin *origin, bool was_denied)
{
    note(&origin->shares[ORIGIN_SHARE_DENIED], was_denied);
    if (was_denied) {
        atomic_store(&origin->denied_at_us, clock_monotonic_us());
    }
}

void origin_failures_forget(struct origin *origin)
{
    for (unsigned i = 0; i < ORIGIN_SHARES; i++) {
        atomic_store(&origin->shares[i].window, 0);
        atomic_store(&origin->shares[i].former, 0);
    }
}

struct origin_failures origin_failures_of(const struct origin *origin, enum origin_share_of which)
{
    const struct origin_share *share = &origin->shares[which];
    uint64_t sum = atomic_load_explicit(&share->window, memory_order_relaxed) +
                   atomic_load_explicit(&share->former, memory_order_relaxed);
    return (struct origin_failures){.failed = sum / FAILURE, .requests = requests_of(sum)};
}

bool origin_failures_are_many(const struct origin *origin, enum origin_share_of which,
                              bool were_many)
{
    struct origin_failures count = origin_failures_of(origin, which);
    unsigned least = were_many ? FAILURES_MIN : manys[which].begin_min;
    unsigned percent = were_many ? manys[which].end : manys[which].begin;
    return count.failed >= least && count.failed * 100 >= count.requests * percent;
}

// Without requests the counts stay. So the origin denies only if it did so within the last minute.
bool origin_denies(struct origin *origin, struct origin_failures *ret_denied)
{
    bool lately = clock_monotonic_us() < atomic_load(&origin->denied_at_us) + DENIED_US;
    bool denies = lately && origin_failures_are_many(origin, ORIGIN_SHARE_DENIED,
                                                     atomic_load(&origin->is_denied));
    atomic_store(&origin->is_denied, denies);
    *ret_denied = origin_failures_of(origin, ORIGIN_SHARE_DENIED);
    return denies;
}
