// SPDX-License-Identifier: Apache-2.0
// Learns from a store's answers: its Server header, and two ways in which it differs from S3. Any
// worker.
//
// - HEAD and GET describe an object differently: for HEAD, a gateway makes up type, length or ETag,
//   or omits the metadata. Clients get the answers of GET, so revalidations use a GET of one byte
//   (origin_s3_odd.c).
// - Last-Modified is the time of the answer. The date then shows no change, and home_doubt.c
//   compares versions without it. Forebay assumes this after MOVED_DATES revalidations in a row in
//   which nothing but the date has changed. One revalidation that finds an older date ends the
//   assumption.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "origin/origin_private.h"

#define DOUBT_US 600000000u
#define MOVED_DATES 3u
#define NOW_S 2

const struct origin_oddity_text *origin_oddity_text(enum origin_oddity oddity)
{
    static const struct origin_oddity_text texts[ORIGIN_ODDITIES] = {
        [ORIGIN_REFUSES_HEAD] =
            {"refuses-head", "the store refuses HEAD: Forebay checks objects by GET of one byte"},
        [ORIGIN_HEAD_DIFFERS] = {"head-differs",
                                 "the store's HEAD and GET describe objects "
                                 "differently: Forebay checks them by GET of one byte"},
        [ORIGIN_FAILS_IF_MATCH] = {"fails-if-match",
                                   "the store fails If-Match for its own ETag: Forebay leaves it "
                                   "out and compares the ETag of each answer"},
        [ORIGIN_DATES_MOVE] = {"dates-move", "the store dates each answer by its clock: Forebay "
                                             "compares objects without Last-Modified"},
        [ORIGIN_VERSIONS_DIFFER] = {"versions-differ",
                                    "the store's replicas answer with several versions of an "
                                    "object in turn: Forebay passes reads of such keys through"},
    };
    check(oddity < ORIGIN_ODDITIES);
    return &texts[oddity];
}

bool origin_is_odd(const struct origin *origin, enum origin_oddity oddity)
{
    switch (oddity) {
    case ORIGIN_REFUSES_HEAD:
        return origin_holds(&origin->head_refused_until_us);
    case ORIGIN_HEAD_DIFFERS:
        return origin_holds(&origin->head_doubted_until_us);
    case ORIGIN_FAILS_IF_MATCH:
        return origin_holds(&origin->if_match_fails_until_us);
    case ORIGIN_VERSIONS_DIFFER:
        return origin_holds(&origin->versions_differ_until_us);
    default:
        return origin_dates_move(origin);
    }
}

void origin_doubt_head(struct origin *origin)
{
    if (!origin_doubts_head(origin)) {
        log_warn_condition("origin_head_differs", "origin=%s", origin->shown);
    }
    atomic_store(&origin->head_doubted_until_us, clock_monotonic_us() + DOUBT_US);
}

bool origin_doubts_head(const struct origin *origin)
{
    return origin_is_odd(origin, ORIGIN_HEAD_DIFFERS);
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
        log_warn_condition("origin_dates_move", "origin=%s", origin->shown);
    }
}

bool origin_dates_move(const struct origin *origin)
{
    return atomic_load_explicit(&origin->moved_dates, memory_order_relaxed) >= MOVED_DATES;
}

// --- The Server header ---------------------------------------------------------------------------

void origin_server_header_learn(struct origin *origin, struct span value)
{
    const char *known = atomic_load(&origin->server_header);
    if (value.len == 0 || value.len > 256 || !headers_value_is_clean(value) ||
        (known != NULL && span_equal_cstr(value, known))) {
        return;
    }
    for (unsigned i = 0; i < ORIGIN_SERVER_HEADERS_MAX; i++) {
        char *held = atomic_load(&origin->server_headers[i]);
        if (held == NULL) {
            char *copy = strndup(value.ptr, value.len);
            check(copy != NULL);
            if (atomic_compare_exchange_strong(&origin->server_headers[i], &held, copy)) {
                held = copy;
            } else {
                free(copy); // another thread was first; `held` is its copy
            }
        }
        if (span_equal_cstr(value, held)) {
            atomic_store(&origin->server_header, held);
            return;
        }
    }
}

const char *origin_server_header(const struct origin *origin)
{
    const char *known = atomic_load(&origin->server_header);
    return known != NULL ? known : "AmazonS3";
}
