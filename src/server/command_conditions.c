// SPDX-License-Identifier: Apache-2.0
// Finds out which conditions of control/conditions.def hold. Asks only for published values, and
// takes only locks that are held for a moment. So any thread may call it.
//
// A shortage that comes and goes within a moment holds for a minute after its last event. So all
// who ask see it, and it does not flap.
#include "server/command_conditions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/human.h"
#include "http/http.h"
#include "server/command_certificate.h"
#include "server/command_limits.h"
#include "stats/stats.h"

#define HEARTBEAT_MAX_MS 5000u
#define STUCK_MAX_MS 10000u
#define SHORTLY_S 60u
#define LATELY_S 900u
#define WARM_S 3600u
#define SKEW_MAX_S 300
#define EXPIRY_S 900

bool command_conditions_moves(const struct loop *loop, uint64_t *ret_age_ms)
{
    uint64_t now_ms = clock_monotonic_ms(), beat_ms = loop_oldest_heartbeat_ms(loop);
    *ret_age_ms = now_ms - min_u64(now_ms, beat_ms); // the beat may be newer than now_ms
    return *ret_age_ms <= HEARTBEAT_MAX_MS;
}

// Records a condition that holds while a count has risen lately.
static void tell_count(struct conditions *conditions, enum condition which, uint64_t count,
                       unsigned window_s)
{
    conditions_tell(conditions, which, conditions_rose(conditions, which, count, window_s));
}

// Records a shortage that holds now, or has held within the last minute.
static void tell_shortage(struct conditions *conditions, enum condition which, bool holds,
                          uint64_t count)
{
    bool rose = conditions_rose(conditions, which, count, SHORTLY_S);
    conditions_tell(conditions, which, holds || rose);
}

// Names the cause and the remedy: which of the failures a restart ends, and which end by
// themselves.
static void look_at_disk(const struct store_summary *s, struct conditions *conditions)
{
    const enum condition which = CONDITION_disk_degraded;
    if (s->refusal != REFUSAL_disk_degraded) {
        conditions_tell(conditions, which, false);
    } else if (s->unusable != NULL) {
        conditions_tell_more(conditions, which,
                             "repair it, or set cache.dir to another directory, and restart",
                             "cache.dir could not be used at the start: %s", s->unusable);
    } else if (s->disk_errno == ENOENT) {
        conditions_tell_more(conditions, which, "restart the server: it makes the directory again",
                             "cache.dir was removed while the server used it: %.200s", s->dir);
    } else {
        conditions_tell_more(
            conditions, which,
            "look at dmesg, and at the mount of cache.dir; no restart is needed once it works",
            "reads or writes of cache.dir fail: %.200s%s%s", s->dir, s->disk_errno != 0 ? ": " : "",
            s->disk_errno != 0 ? strerrordesc_np(s->disk_errno) : "");
    }
}

// Records that others fill the file system, if this has cost the cache a quarter of its size.
static void look_at_size(const struct store_summary *s, struct conditions *conditions)
{
    char now[HUMAN_BYTES_MAX], most[HUMAN_BYTES_MAX];
    struct condition_row row = conditions_row(CONDITION_cache_limited);
    if (s->capacity_bytes < s->capacity_most_bytes / 4 * 3) {
        conditions_tell_more(conditions, CONDITION_cache_limited, row.remedy,
                             "%s: the cache is limited to %s of %s", row.text,
                             human_bytes((double)s->capacity_bytes, now),
                             human_bytes((double)s->capacity_most_bytes, most));
    } else {
        conditions_tell(conditions, CONDITION_cache_limited, false);
    }
}

// Looks at calls that neither succeed nor fail: those of the workers and those of the store's
// threads.
static void look_at_hangs(const struct store_summary *s, const struct loop *loop,
                          struct conditions *conditions)
{
    struct condition_row row = conditions_row(CONDITION_disk_stuck);
    uint64_t stuck_ms = max_u64(s->stuck_ms, loop_disk_stuck_ms(loop));
    if (stuck_ms > STUCK_MAX_MS) {
        conditions_tell_more(conditions, CONDITION_disk_stuck, row.remedy,
                             "reads or writes of cache.dir have not returned for %llu s: %.200s",
                             (unsigned long long)stuck_ms / 1000, s->dir);
    } else {
        conditions_tell(conditions, CONDITION_disk_stuck, false);
    }
}

static void look_at_store(const struct store *store, const struct loop *loop,
                          struct conditions *conditions)
{
    struct store_summary s;
    store_summarize(store, &s);
    enum refusal why = s.refusal;
    uint64_t index_bytes = stats_value(COUNTER_index_bytes);
    look_at_hangs(&s, loop, conditions);
    look_at_disk(&s, conditions);
    conditions_tell(conditions, CONDITION_disk_full, why == REFUSAL_disk_full);
    conditions_tell(conditions, CONDITION_index_degraded, why == REFUSAL_index_degraded);
    conditions_tell(conditions, CONDITION_index_rebuilding, s.rebuilding);
    conditions_tell(conditions, CONDITION_disk_short,
                    s.short_of != NULL && why != REFUSAL_disk_full);
    tell_shortage(conditions, CONDITION_index_full, why == REFUSAL_index_full,
                  refusal_sum(REFUSAL_index_full) + stats_value(COUNTER_index_full));
    look_at_size(&s, conditions);
    conditions_tell(conditions, CONDITION_index_large, index_bytes > s.capacity_bytes / 2);
    tell_shortage(conditions, CONDITION_disk_busy, why == REFUSAL_disk_busy,
                  refusal_sum(REFUSAL_disk_busy));
    tell_shortage(conditions, CONDITION_buffer_full, why == REFUSAL_buffer_full,
                  refusal_sum(REFUSAL_buffer_full));
    tell_shortage(conditions, CONDITION_index_busy, why == REFUSAL_index_busy,
                  refusal_sum(REFUSAL_index_busy));
    tell_shortage(conditions, CONDITION_descriptors, why == REFUSAL_descriptors,
                  refusal_sum(REFUSAL_descriptors) + stats_value(COUNTER_http_accept_paused) +
                      stats_value(COUNTER_segment_open_failures));
}

// Records a condition that `count` origins are in, and names one of them.
static void tell_origin(struct conditions *conditions, enum condition which,
                        const struct origin *origin, unsigned count, const char *text,
                        const char *remedy)
{
    if (count == 0) {
        conditions_tell(conditions, which, false);
    } else if (count == 1) {
        conditions_tell_more(conditions, which, remedy, "origin %.200s: %s", origin_shown(origin),
                             text);
    } else {
        conditions_tell_more(conditions, which, remedy, "origin %.200s: %s; %u origins in all",
                             origin_shown(origin), text, count);
    }
}

// Returns true if the doubt of some bucket has lasted beyond the begin of the condition. As long as
// the origin has not answered since then, cached objects of that bucket cannot be read.
static bool outlasts(const struct store_doubted *doubted, const struct conditions *conditions,
                     enum condition which)
{
    uint64_t since_us = conditions->guarded.items[which].since_us;
    uint64_t from_us = since_us > 0 ? since_us : clock_wall_us();
    return doubted->until_s > (from_us + 999999) / 1000000; // until_s is rounded up, too
}

// Records the first trouble of the kind that `which` is about, and how many origins have one.
static void tell_trouble(const struct command_origins *origins, const struct store_doubted *doubted,
                         struct conditions *conditions, enum condition which,
                         enum origin_trouble_kind kind)
{
    struct origin_trouble_text trouble, first = {0};
    const struct origin *origin = NULL;
    char text[CONDITION_TEXT_MAX], more[CONDITION_TEXT_MAX];
    unsigned count = 0;
    for (unsigned i = 0; i < origins->origin_count; i++) {
        if (origin_in_trouble(origins->origins[i], &trouble) && trouble.kind == kind &&
            count++ == 0) {
            origin = origins->origins[i];
            first = trouble;
        }
    }
    if (first.failures.failed > 0) {
        (void)snprintf(text, sizeof(text), "%s: %llu of the last %llu requests", first.text,
                       (unsigned long long)first.failures.failed,
                       (unsigned long long)first.failures.requests);
        first.text = text;
    }
    if (count > 0 && outlasts(doubted, conditions, which)) {
        (void)snprintf(more, sizeof(more),
                       "%.200s; cached objects of buckets in doubt cannot be read either",
                       first.text);
        first.text = more;
    }
    tell_origin(conditions, which, origin, count, first.text, first.remedy);
}

static void look_at_throttling(const struct command_origins *origins, struct conditions *conditions)
{
    char text[CONDITION_TEXT_MAX];
    struct origin_trouble_text trouble;
    struct origin_failures refused, most = {0};
    const struct origin *origin = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < origins->origin_count; i++) {
        bool fails = origin_in_trouble(origins->origins[i], &trouble) && trouble.is_throttling;
        if (fails || !origin_throttles(origins->origins[i], SHORTLY_S)) {
            continue; // one that refuses nearly all requests makes origin-failing
        }
        refused = origin_throttled(origins->origins[i]);
        if (count++ == 0 || refused.failed * most.requests > most.failed * refused.requests) {
            origin = origins->origins[i];
            most = refused;
        }
    }
    (void)snprintf(text, sizeof(text), ORIGIN_THROTTLES " to %llu of the last %llu requests",
                   (unsigned long long)most.failed, (unsigned long long)most.requests);
    tell_origin(conditions, CONDITION_origin_throttled, origin, count, text,
                conditions_row(CONDITION_origin_throttled).remedy);
}

static void look_at_denials(const struct command_origins *origins, struct conditions *conditions)
{
    char text[CONDITION_TEXT_MAX];
    struct origin_failures denied, most = {0};
    const struct origin *origin = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < origins->origin_count; i++) {
        if (!origin_denies(origins->origins[i], &denied) || origin_rests(origins->origins[i])) {
            continue;
        }
        count++;
        if (denied.failed > most.failed) {
            origin = origins->origins[i];
            most = denied;
        }
    }
    (void)snprintf(text, sizeof(text),
                   "it refused %llu of the last %llu requests of Forebay with 403 AccessDenied",
                   (unsigned long long)most.failed, (unsigned long long)most.requests);
    tell_origin(conditions, CONDITION_access_denied, origin, count, text,
                conditions_row(CONDITION_access_denied).remedy);
}

static void look_at_pace(const struct command_origins *origins, struct conditions *conditions)
{
    char now[HUMAN_TIME_MAX], usual[HUMAN_TIME_MAX], text[CONDITION_TEXT_MAX];
    struct origin_pace pace, slowest = {0};
    const struct origin *origin = NULL;
    unsigned count = 0;
    for (unsigned i = 0; i < origins->origin_count; i++) {
        bool is_slow = origin_is_slow(origins->origins[i], &pace);
        if (!is_slow || origin_rests(origins->origins[i])) {
            continue;
        }
        count++;
        if (pace.median_us > slowest.median_us) {
            origin = origins->origins[i];
            slowest = pace;
        }
    }
    (void)snprintf(text, sizeof(text),
                   "its answers begin after %s%s%s: misses and cached objects past their ttl wait",
                   human_wait(slowest.median_us, now), slowest.usual_us > 0 ? ", usually " : "",
                   slowest.usual_us > 0 ? human_wait(slowest.usual_us, usual) : "");
    tell_origin(conditions, CONDITION_origin_slow, origin, count, text,
                conditions_row(CONDITION_origin_slow).remedy);
}

static void look_at_clocks(const struct command_origins *origins, struct conditions *conditions)
{
    char text[CONDITION_TEXT_MAX], off[HUMAN_TIME_MAX];
    const struct origin *origin = NULL;
    int64_t most_s = 0;
    unsigned count = 0;
    for (unsigned i = 0; i < origins->origin_count; i++) {
        struct origin_times times;
        origin_times(origins->origins[i], &times);
        if (origin_rests(origins->origins[i]) || !times.has_skew ||
            llabs(times.skew_s) <= SKEW_MAX_S) {
            continue;
        }
        count++;
        if (llabs(times.skew_s) > llabs(most_s)) {
            origin = origins->origins[i];
            most_s = times.skew_s;
        }
    }
    (void)snprintf(text, sizeof(text), "the clock of this host is %s %s that of the origin",
                   human_time(llabs(most_s), off), most_s > 0 ? "behind" : "ahead of");
    tell_origin(conditions, CONDITION_clock_skew, origin, count, text,
                conditions_row(CONDITION_clock_skew).remedy);
}

// Names the origin whose calls at once are lowered most, because a larger origin.connections does
// not help there.
static void look_at_connections(const struct command_origins *origins,
                                struct conditions *conditions)
{
    const enum condition which = CONDITION_no_connection;
    uint64_t count =
        stats_value(COUNTER_origin_waits_timed_out) + stats_value(COUNTER_origin_waiters_refused);
    char text[CONDITION_TEXT_MAX];
    struct origin_calls least = {0};
    const struct origin *origin = NULL;
    for (unsigned i = 0; i < origins->origin_count; i++) {
        struct origin_calls calls = origin_calls(origins->origins[i]);
        if (!origin_rests(origins->origins[i]) && calls.is_lowered &&
            (origin == NULL || calls.limit < least.limit)) {
            origin = origins->origins[i];
            least = calls;
        }
    }
    if (!conditions_rose(conditions, which, count, SHORTLY_S) || origin == NULL) {
        tell_count(conditions, which, count, SHORTLY_S);
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "%s: Forebay lowered the calls at once to %u of %u after SlowDown, timeouts or "
                   "failed connections",
                   conditions_row(which).text, least.limit, least.most);
    tell_origin(
        conditions, which, origin, 1, text,
        "see the load and the limits of the origin, or lower --jobs of warm jobs; the calls "
        "at once rise by themselves when the origin answers");
}

// Says how many buckets are in doubt, why, and when that ends. The store knows no names of buckets.
static void look_at_doubts(const struct store_doubted *d, struct conditions *conditions)
{
    char until[HUMAN_TIME_MAX];
    struct condition_row row = conditions_row(CONDITION_in_doubt);
    if (d->buckets == 0 && !d->has_others) {
        conditions_tell(conditions, CONDITION_in_doubt, false);
        return;
    }
    conditions_tell_more(
        conditions, CONDITION_in_doubt, row.remedy,
        "%s: %u bucket%s%s in doubt; each read of a cached object there asks the origin, and fails "
        "while the origin is away; this ends by itself at %s at the latest",
        d->after_crash ? "the server ended without a clean stop during or shortly after writes"
                       : "a write whose outcome is not known may still change objects",
        d->buckets, d->buckets == 1 ? "" : "s",
        d->has_others     ? ", and all that are not tracked one by one, are"
        : d->buckets == 1 ? " is"
                          : " are",
        human_clock(d->until_s, until));
}

static void look_at_origins(const struct command_origins *origins,
                            const struct store_doubted *doubted, struct conditions *conditions)
{
    bool expires = false;
    tell_trouble(origins, doubted, conditions, CONDITION_origin_unreachable, ORIGIN_KIND_SILENT);
    tell_trouble(origins, doubted, conditions, CONDITION_origin_failing, ORIGIN_KIND_FAILS);
    tell_trouble(origins, doubted, conditions, CONDITION_credentials_refused, ORIGIN_KIND_REFUSES);
    look_at_throttling(origins, conditions);
    look_at_denials(origins, conditions);
    look_at_pace(origins, conditions);
    for (unsigned i = 0; i < origins->origin_count; i++) {
        struct origin_times times;
        if (origin_rests(origins->origins[i])) {
            continue;
        }
        origin_times(origins->origins[i], &times);
        int64_t left_s = times.credentials_expire_s - (int64_t)(clock_wall_us() / 1000000);
        expires = expires || (times.credentials_expire_s != 0 && left_s < EXPIRY_S);
    }
    bool failed = conditions_rose(conditions, CONDITION_credentials_expiring,
                                  stats_value(COUNTER_credentials_refresh_failures), LATELY_S);
    conditions_tell(conditions, CONDITION_credentials_expiring, expires && failed);
    look_at_clocks(origins, conditions);
    look_at_connections(origins, conditions);
}

// Records the value of a limit if more clients have reached it since the last look. The main thread
// looks before each reload, so this is the value that refused them.
static void reached_note(struct command_conditions_reached *reached, uint64_t count, uint64_t value)
{
    if (count > reached->count) {
        *reached = (struct command_conditions_reached){count, value};
    }
}

// Appends a limit, its value when clients reached it, its present value if a reload has changed it,
// and how often they reached it.
static void shed_append(struct buf *out, const char *limit,
                        const struct command_conditions_reached *reached, uint64_t now)
{
    if (reached->count > 0) {
        buf_printf(out, "; %s (%llu", limit, (unsigned long long)reached->value);
        if (reached->value != now) {
            buf_printf(out, " then, %llu now", (unsigned long long)now);
        }
        buf_printf(out, ") %llu times", (unsigned long long)reached->count);
    }
}

// Returns how many clients were refused because of a limit of their connections or requests.
// Appends each such limit, its value and its count.
static uint64_t shed_text(struct command_conditions_parts *parts, struct buf *out)
{
    char sockets[HUMAN_BYTES_MAX];
    struct http_limits limits = http_server_limits(parts->reload->http);
    struct command_conditions_reached *connections = &parts->guarded.connections;
    struct command_conditions_reached *inflight = &parts->guarded.inflight;
    struct command_conditions_reached *source = &parts->guarded.source;
    uint64_t shed_sockets = stats_value(COUNTER_http_shed_sockets);
    reached_note(connections, stats_value(COUNTER_http_shed_connections), limits.max_connections);
    reached_note(inflight, stats_value(COUNTER_http_shed_inflight), limits.max_inflight);
    reached_note(source, stats_value(COUNTER_http_shed_source), limits.max_connections_per_source);
    if (shed_sockets > 0) {
        buf_printf(out, "; the memory limit for sockets (%s) %llu times",
                   human_bytes((double)socket_room_bytes(SOCKETS_CLIENTS), sockets),
                   (unsigned long long)shed_sockets);
    }
    shed_append(out,
                connections->value < parts->reload->descriptors->clients_max
                    ? "limits.max_connections"
                    : "the limit on open files, for connections",
                connections, limits.max_connections);
    shed_append(out, "limits.max_inflight", inflight, limits.max_inflight);
    shed_append(out, "limits.max_connections_per_source", source,
                limits.max_connections_per_source);
    return shed_sockets + connections->count + inflight->count + source->count;
}

// Names the limits that were reached since the start, so that the reader knows which one to raise.
static void look_at_shed(struct command_conditions_parts *parts, struct conditions *conditions)
{
    struct buf text;
    buf_init(&text, CONDITION_TEXT_MAX);
    if (conditions_rose(conditions, CONDITION_requests_shed, shed_text(parts, &text), SHORTLY_S)) {
        struct condition_row row = conditions_row(CONDITION_requests_shed);
        conditions_tell_more(conditions, CONDITION_requests_shed, row.remedy,
                             "%s; since the start%s", row.text, buf_cstr(&text) + 1);
    } else {
        conditions_tell(conditions, CONDITION_requests_shed, false);
    }
    buf_done(&text);
}

static void look_at_memory(struct command_conditions_reached *reached,
                           struct conditions *conditions)
{
    char then[HUMAN_BYTES_MAX], now[HUMAN_BYTES_MAX];
    uint64_t max_bytes = chunk_budget_max_bytes();
    reached_note(reached, stats_value(COUNTER_http_shed_memory), max_bytes);
    if (!conditions_rose(conditions, CONDITION_memory, reached->count, SHORTLY_S)) {
        conditions_tell(conditions, CONDITION_memory, false);
        return;
    }
    struct condition_row row = conditions_row(CONDITION_memory);
    bool has_changed = reached->value != max_bytes;
    conditions_tell_more(conditions, CONDITION_memory, row.remedy,
                         "%s: limits.max_buffer (%s%s%s%s) was used up within the last minute: "
                         "clients got SlowDown, or over TLS a close, %llu times since the start",
                         row.text, human_bytes((double)reached->value, then),
                         has_changed ? " then, " : "",
                         has_changed ? human_bytes((double)max_bytes, now) : "",
                         has_changed ? " now" : "", (unsigned long long)reached->count);
}

static void look_at_counts(struct conditions *conditions)
{
    tell_count(conditions, CONDITION_disk_errors,
               stats_value(COUNTER_disk_errors_read) + stats_value(COUNTER_disk_errors_write),
               LATELY_S);
    tell_count(conditions, CONDITION_disk_slow, stats_value(COUNTER_outrun_slow), SHORTLY_S);
    tell_count(conditions, CONDITION_wrong_bytes,
               stats_value(COUNTER_checksum_failures) +
                   stats_value(COUNTER_checksum_failures_scrub),
               LATELY_S);
}

static void look_at_reload(struct command_reload *reload, struct conditions *conditions)
{
    char error[COMMAND_RELOAD_TEXT_MAX];
    if (command_reload_has_failed(reload, error)) {
        conditions_tell_more(conditions, CONDITION_reload_refused, reload->remedy, "%s: %.250s",
                             conditions_row(CONDITION_reload_refused).text, error);
    } else if (command_reload_is_unrenewed(reload, error)) {
        conditions_tell_more(conditions, CONDITION_reload_refused,
                             "complete the files: Forebay reads them again when they change",
                             "the former certificate stays in use: %.250s", error);
    } else {
        conditions_tell(conditions, CONDITION_reload_refused, false);
    }
}

void command_conditions_look(void *ctx, struct conditions *conditions)
{
    struct command_conditions_parts *parts = ctx;
    struct store_doubted doubted;
    uint64_t age_ms;
    conditions_tell(conditions, CONDITION_worker_stuck,
                    !command_conditions_moves(parts->loop, &age_ms));
    look_at_store(parts->store, parts->loop, conditions);
    store_doubted(parts->store, &doubted);
    look_at_doubts(&doubted, conditions);
    look_at_origins(parts->origins, &doubted, conditions);
    look_at_shed(parts, conditions);
    look_at_memory(&parts->guarded.memory, conditions);
    look_at_counts(conditions);
    command_certificate_look(conditions);
    command_refused_look(parts->refused, parts->reload->proxy, conditions);
    conditions_tell(conditions, CONDITION_warm_failed, control_warm_failed(parts->control, WARM_S));
    look_at_reload(parts->reload, conditions);
    conditions_tell(conditions, CONDITION_restart_needed, parts->reload->needs_restart);
    conditions_tell(conditions, CONDITION_draining, *parts->is_draining);
    command_cpu_look(&parts->guarded.cpu, conditions); // last, because it takes others back
}
