// SPDX-License-Identifier: Apache-2.0
// What checks have found out about a store whose answers differ although its objects do not. Any worker.
//
//   HEAD describes objects otherwise than GET (a gateway's own type, length, ETag or no metadata)
//       GET is what clients are given, so checks ask by GET of one byte (origin_s3_odd.c).
//   Last-Modified is the time of the answer
//       It then says nothing, and home_doubt.c compares without it. Proven by MOVED_DATES checks in a row that
//       found nothing else changed; one that finds any older date disproves it.
#include "base/clock.h"
#include "base/log.h"
#include "origin/origin_private.h"

#define DOUBT_US 600000000u
#define MOVED_DATES 3u
#define NOW_S 2

void origin_doubt_head(struct origin *origin)
{
    if (!origin_doubts_head(origin)) {
        log_warn_condition("origin_head_differs", "origin=%s", origin_shown(origin));
    }
    atomic_store(&origin->head_doubted_until_us, clock_monotonic_us() + DOUBT_US);
}

bool origin_doubts_head(const struct origin *origin)
{
    return clock_monotonic_us() <
           atomic_load_explicit(&origin->head_doubted_until_us, memory_order_relaxed);
}

bool origin_is_now(const struct origin *origin, time_t last_modified)
{
    int64_t now_s = (int64_t)clock_wall_s() + atomic_load(&origin->date_skew_s);
    int64_t off_s = (int64_t)last_modified - now_s;
    return last_modified != 0 && off_s >= -NOW_S && off_s <= NOW_S;
}

void origin_note_date(struct origin *origin, bool has_moved)
{
    unsigned count = atomic_load_explicit(&origin->moved_dates, memory_order_relaxed);
    if (!has_moved && count != 0) {
        atomic_store(&origin->moved_dates, 0);
    } else if (has_moved && count < MOVED_DATES &&
               atomic_fetch_add(&origin->moved_dates, 1) + 1 == MOVED_DATES) {
        log_warn_condition("origin_dates_move", "origin=%s", origin_shown(origin));
    }
}

bool origin_dates_move(const struct origin *origin)
{
    return atomic_load_explicit(&origin->moved_dates, memory_order_relaxed) >= MOVED_DATES;
}
