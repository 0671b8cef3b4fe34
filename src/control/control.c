// SPDX-License-Identifier: Apache-2.0
// The actions of the control interface, except jobs (control_jobs.c). They begin on the admin
// thread and are answered on the thread that finds the answer: explain, ls and evict on a worker,
// reload on the main thread.
#include "control/control.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/human.h"
#include "base/log.h"
#include "control/control_private.h"
#include "s3/s3.h"

#define EVICT_MAX 1000u // objects in one call

// --- as JSON -------------------------------------------------------------------------------------

static json_t *uri_json(struct span bucket, struct span key)
{
    json_t *first = control_text(bucket), *rest = control_text(key);
    json_t *json = json_sprintf("s3://%s/%s", json_string_value(first), json_string_value(rest));
    check(json != NULL);
    json_decref(first);
    json_decref(rest);
    return json;
}

static json_t *seconds_json(uint64_t ms)
{
    return ms == UINT64_MAX ? json_null() : json_real((double)ms / 1e3);
}

static json_t *rule_json(const struct proxy_rule *rule)
{
    static const char *const freshness[] = {"ttl", "immutable", "strict"};
    json_t *json =
        json_pack("{s:s, s:o, s:b, s:s, s:f, s:I, s:I, s:i, s:b, s:i}", "match", rule->match,
                  "where", control_text(span_from_cstr(rule->where)), "cache", rule->cache,
                  "freshness", freshness[rule->freshness], "ttl_s", (double)rule->ttl_ms / 1e3,
                  "block_size", (json_int_t)rule->block_size_bytes, "max_object_size",
                  (json_int_t)rule->max_object_size_bytes, "priority", (int)rule->priority, "pin",
                  rule->pin, "share_percent", (int)rule->share_percent);
    check(json != NULL);
    return json;
}

// --- explain -------------------------------------------------------------------------------------

static json_t *or_null(uint64_t value)
{
    return value == UINT64_MAX ? json_null() : json_integer((json_int_t)value);
}

// Renders the values by which the retention policy decides; null if the policy was not asked.
static json_t *policy_json(const struct store_explain *policy)
{
    static const char *const states[] = {[STORE_EXPLAIN_KEPT] = "kept",
                                         [STORE_EXPLAIN_UNRANKED] = "unranked",
                                         [STORE_EXPLAIN_WANTED] = "wanted",
                                         [STORE_EXPLAIN_REFUSED] = "refused"};
    if (policy == NULL) {
        return json_null();
    }
    json_t *pieces = json_array();
    for (unsigned i = 0; i < policy->run_count; i++) {
        const struct store_explain_run *run = &policy->runs[i];
        json_t *piece =
            json_pack("{s:I, s:i, s:s, s:b, s:b, s:i, s:f, s:f, s:o, s:I}", "first_block",
                      (json_int_t)run->first_block, "blocks", (int)run->block_count, "state",
                      states[run->state], "pinned", run->is_pinned, "on_probation",
                      run->is_on_probation, "priority", (int)run->priority, "worth",
                      (double)run->rank, "bar", (double)run->bar, "age_bytes",
                      or_null(run->age_bytes), "interval_bytes", (json_int_t)run->interval_bytes);
        check(piece != NULL && json_array_append_new(pieces, piece) == 0);
    }
    json_t *json = json_pack(
        "{s:b, s:b, s:b, s:b, s:b, s:I, s:I, s:o}", "stores", policy->refusal == REFUSAL_none,
        "keeps_up", policy->keeps_up, "learns", policy->learns, "full", policy->is_full, "silent",
        policy->is_silent, "group_bytes", (json_int_t)policy->group_bytes, "group_max_bytes",
        (json_int_t)policy->group_max_bytes, "pieces", pieces);
    check(json != NULL);
    return json;
}

static json_t *cells_json(const struct proxy_object *o)
{
    json_t *cells = json_array();
    for (unsigned i = 0; i < o->cell_count; i++) {
        json_t *cell = json_pack("[i, i]", (int)o->cell_cached_blocks[i], (int)o->cell_blocks[i]);
        check(cell != NULL && json_array_append_new(cells, cell) == 0);
    }
    return cells;
}

// Lists the ways in which the object's origin deviates from S3.
static json_t *oddities_json(const struct proxy_object *o)
{
    json_t *oddities = json_array();
    for (unsigned i = 0; i < ORIGIN_ODDITIES; i++) {
        const struct origin_oddity_text *text = origin_oddity_text((enum origin_oddity)i);
        json_t *oddity =
            o->oddities[i] ? json_pack("{s:s, s:s}", "word", text->word, "text", text->text) : NULL;
        check(oddity == NULL ? !o->oddities[i] : json_array_append_new(oddities, oddity) == 0);
    }
    return oddities;
}

struct question {
    struct admin_call *call;
    struct control *control;
};

// Returns the verdict's text, with the end of the doubt of a cached object that is in doubt.
static json_t *verdict_json(const struct proxy_object *o, const char *text)
{
    char until[HUMAN_TIME_MAX];
    bool names_end = o->copy != PROXY_COPY_NONE && o->doubted_until_s > 0;
    json_t *json = names_end ? json_sprintf("%s; it is in doubt until %s at the latest", text,
                                            human_clock(o->doubted_until_s, until))
                             : json_string(text);
    check(json != NULL);
    return json;
}

// Returns why the object's rule does not store it; null if it does.
static json_t *excluded_json(const struct proxy_object *o)
{
    enum refusal why = proxy_rule_excludes(o->rule, o->size_bytes);
    json_t *json = why == REFUSAL_none ? json_null()
                                       : json_pack("{s:s, s:s}", "reason", refusal_text(why)->word,
                                                   "text", refusal_text(why)->text);
    check(json != NULL);
    return json;
}

static void on_explained(void *ctx, const struct proxy_object *o)
{
    struct question *q = ctx;
    struct store_summary summary;
    store_summarize(q->control->store, &summary);
    struct proxy_verdict verdict = proxy_verdict(o, &summary);
    json_t *json = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:b, s:o, s:s, s:I, s:I, s:o, s:b, s:b, s:b, s:b, "
        "s:i, s:I, "
        "s:I, s:I, s:o, s:o, s:o, s:{s:s, s:o, s:o}}",
        "uri", uri_json(o->bucket, o->key), "origin", control_text(span_from_cstr(o->origin)),
        "oddities", oddities_json(o), "origin_bucket", control_text(o->origin_bucket), "rule",
        rule_json(o->rule), "known", o->copy != PROXY_COPY_NONE, "realms", o->has_realms, "answers",
        o->has_answers, "etag",
        o->etag[0] != '\0' ? control_text(span_from_cstr(o->etag)) : json_null(), "checksums",
        o->checksums, "size", (json_int_t)o->size_bytes, "block_size",
        (json_int_t)o->block_size_bytes, "age_s", seconds_json(o->age_ms), "fresh",
        proxy_object_is_fresh(o), "rebuilt", o->copy == PROXY_COPY_REBUILT, "in_doubt",
        o->is_doubted, "would_keep", o->is_wanted, "home_worker", (int)o->home, "blocks",
        (json_int_t)(o->copy != PROXY_COPY_NONE ? o->block_count : 0), "cached_blocks",
        (json_int_t)o->cached_blocks, "cached_bytes", (json_int_t)o->cached_bytes, "range",
        json_pack("{s:I, s:I, s:I, s:I, s:o}", "first", (json_int_t)o->first_byte, "end",
                  (json_int_t)o->end_byte, "blocks", (json_int_t)o->range_blocks, "cached_blocks",
                  (json_int_t)o->range_cached_blocks, "cells", cells_json(o)),
        "policy", policy_json(o->policy), "excluded", excluded_json(o), "verdict", "reason",
        verdict.reason, "text", verdict_json(o, verdict.text), "remedy",
        control_text(span_from_cstr(verdict.remedy)));
    check(json != NULL);
    admin_call_answer(&q->call, 200, json);
    free(q);
}

static struct question *question_new(struct control *control, struct admin_call *call)
{
    struct question *q = calloc(1, sizeof(*q));
    check(q != NULL);
    q->call = call;
    q->control = control;
    return q;
}

static void control_explain(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    struct s3_uri uri;
    uint64_t first = 0, end = UINT64_MAX;
    struct span range = admin_call_parameter(call, "range");
    struct span ask = admin_call_parameter(call, "ask"); // without this parameter, the origin is
                                                         // not asked
    if (!control_take_object(&call, admin_call_parameter(call, "uri"), &uri)) {
        return;
    }
    if (range.ptr != NULL && !s3_uri_parse_range(range, &first, &end)) {
        admin_call_refuse(&call, 400, "range is FIRST-LAST or FIRST-, in bytes");
    } else if (ask.ptr != NULL && !span_equal_cstr(ask, "origin")) {
        admin_call_refuse(&call, 400, "ask must be origin, or absent");
    } else {
        proxy_explain(control->proxy, uri.bucket, uri.key, first, end, true, ask.ptr != NULL,
                      on_explained, question_new(control, call));
    }
}

// --- ls ------------------------------------------------------------------------------------------

static void on_listed(void *ctx, const struct proxy_listing *listing)
{
    struct question *q = ctx;
    if (listing->err != ERR_OK) {
        char why[256];
        (void)snprintf(why, sizeof(why), "the origin cannot list it: %s",
                       error_row(listing->err)->text);
        admin_call_refuse(&q->call, listing->err == ERR_NO_SUCH_BUCKET ? 404 : 502, why);
        free(q);
        return;
    }
    json_t *objects = json_array();
    for (unsigned i = 0; i < listing->count; i++) {
        const struct proxy_object *o = &listing->objects[i];
        json_t *row = json_pack(
            "{s:o, s:b, s:I, s:b, s:b, s:b, s:I, s:I, s:I, s:b, s:b, s:o, s:o}", "key",
            control_text(o->key), "coded", !control_is_text(o->key), "size",
            (json_int_t)o->size_bytes, "known", o->copy != PROXY_COPY_NONE, "realms", o->has_realms,
            "answers", o->has_answers, "cached_bytes", (json_int_t)o->cached_bytes, "blocks",
            (json_int_t)(o->copy != PROXY_COPY_NONE ? o->block_count : 0), "cached_blocks",
            (json_int_t)o->cached_blocks, "fresh", proxy_object_is_fresh(o), "changed",
            o->is_changed, "age_s", seconds_json(o->age_ms), "excluded", excluded_json(o));
        check(row != NULL && json_array_append_new(objects, row) == 0);
    }
    json_t *json = json_pack("{s:o, s:o}", "objects", objects, "next",
                             listing->next.len > 0 ? control_text(listing->next) : json_null());
    check(json != NULL);
    admin_call_answer(&q->call, 200, json);
    free(q);
}

static void control_ls(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    struct s3_uri uri;
    uint64_t max = PROXY_LIST_MAX;
    struct span text = admin_call_parameter(call, "max");
    if (!control_take_uri(&call, admin_call_parameter(call, "uri"), &uri)) {
        return;
    }
    if (text.ptr != NULL && (!span_to_u64(text, &max) || max == 0 || max > PROXY_LIST_MAX)) {
        admin_call_refuse(&call, 400, "max is 1 to 500");
        return;
    }
    proxy_list(control->proxy, uri.bucket, uri.key, admin_call_parameter(call, "after"),
               (unsigned)max, on_listed, question_new(control, call));
}

// --- evict ---------------------------------------------------------------------------------------

#define EVICT_AT_ONCE 64u // objects of one call in progress

// One item of an evict call: an object or a bucket, and its result. When its eviction has ended,
// the next waiting item starts.
struct evict_one {
    struct evict_all *all;
    struct s3_uri uri;
    char *decoded; // the decoded key, if the item was percent-coded
    uint64_t cached_bytes;
    bool was_cached;
    enum err err;
};

struct evict_all {
    struct admin_call *call;
    struct proxy *proxy;
    unsigned count;
    atomic_uint next, left;
    struct evict_one items[];
};

static void evict_free(struct evict_all *all)
{
    for (unsigned i = 0; i < all->count; i++) {
        free(all->items[i].decoded);
    }
    free(all);
}

static void evict_answer(struct evict_all *all)
{
    json_t *objects = json_array();
    for (unsigned i = 0; i < all->count; i++) {
        const struct evict_one *one = &all->items[i];
        json_t *row = json_pack(
            "{s:o, s:b, s:b, s:I, s:o}", "uri", uri_json(one->uri.bucket, one->uri.key), "ok",
            one->err == ERR_OK, "known", one->was_cached, "cached_bytes",
            (json_int_t)one->cached_bytes, "why",
            one->err == ERR_OK ? json_null()
                               : json_string("the cache directory does not take the change"));
        check(row != NULL && json_array_append_new(objects, row) == 0);
    }
    json_t *json = json_pack("{s:o}", "objects", objects);
    check(json != NULL);
    admin_call_answer(&all->call, 200, json);
    evict_free(all);
}

static void evict_next(struct evict_all *all);

static void on_evicted(void *ctx, enum err err, bool was_cached)
{
    struct evict_one *one = ctx;
    struct evict_all *all = one->all;
    one->err = err;
    one->was_cached = was_cached;
    evict_next(all);
    if (atomic_fetch_sub(&all->left, 1) == 1) {
        evict_answer(all);
    }
}

static void on_evict_looked(void *ctx, const struct proxy_object *object)
{
    struct evict_one *one = ctx;
    one->cached_bytes = object->cached_bytes;
    proxy_evict(one->all->proxy, one->uri.bucket, one->uri.key, on_evicted, one);
}

// Starts the next item. `all` is valid, because the item that the caller ends still counts in
// all->left.
static void evict_next(struct evict_all *all)
{
    unsigned i = atomic_fetch_add(&all->next, 1);
    struct evict_one *one = i < all->count ? &all->items[i] : NULL;
    if (one != NULL && one->uri.key.len > 0) {
        proxy_explain(all->proxy, one->uri.bucket, one->uri.key, 0, UINT64_MAX, false, false,
                      on_evict_looked, one);
    } else if (one != NULL) {
        proxy_evict(all->proxy, one->uri.bucket, one->uri.key, on_evicted, one);
    }
}

// Decodes the percent-coded key of a URI. Returns false if the coding is invalid.
static bool evict_decode(struct span uri, struct evict_one *one, struct span *ret_uri)
{
    size_t bucket_len = min_u64(uri.len, 5), key_len = 0;
    bucket_len += span_find((struct span){uri.ptr + bucket_len, uri.len - bucket_len}, '/');
    one->decoded = malloc(uri.len + 1);
    check(one->decoded != NULL);
    if (bucket_len > 0) {
        memcpy(one->decoded, uri.ptr, bucket_len);
    }
    struct span key = {uri.ptr + bucket_len, uri.len - bucket_len};
    bool is_good = uri.len > 0 && span_uri_decode(key, one->decoded + bucket_len, &key_len);
    *ret_uri = (struct span){one->decoded, bucket_len + key_len};
    return is_good;
}

// Reads one item: "URI" of an object or bucket, {"object": URI} or {"coded": URI}. The last two
// always name an object, even if the key ends like a prefix. The key in "coded" is percent-coded,
// as ls prints keys that are not text. Returns false if it has answered the call.
static bool evict_take_one(struct admin_call **call, const json_t *item, struct evict_one *one)
{
    const json_t *object = json_object_get(item, "object"), *coded = json_object_get(item, "coded");
    const json_t *text = coded != NULL ? coded : object != NULL ? object : item;
    struct span uri = {json_string_value(text), json_string_length(text)};
    if (coded != NULL && !evict_decode(uri, one, &uri)) {
        admin_call_refuse(call, 400, "coded is a URI whose key is in percent coding");
        return false;
    }
    if (coded != NULL || object != NULL) {
        return control_take_object(call, uri, &one->uri);
    }
    if (!control_take_uri(call, uri, &one->uri)) {
        return false;
    }
    if (one->uri.is_prefix && one->uri.key.len > 0) {
        admin_call_refuse(call, 400, "objects or whole buckets are wanted here, not prefixes");
        return false;
    }
    return true;
}

static bool evict_take(struct evict_all *all, struct admin_call **call, const json_t *uris)
{
    for (unsigned i = 0; i < all->count; i++) {
        struct evict_one *one = &all->items[i];
        one->all = all;
        if (!evict_take_one(call, json_array_get(uris, i), one)) {
            return false;
        }
    }
    return true;
}

static void control_evict(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    const json_t *uris = admin_call_member(call, "uris");
    size_t count = json_array_size(uris);
    if (count == 0 || count > EVICT_MAX) {
        admin_call_refuse(&call, 400, "uris is a list of 1 to 1000");
        return;
    }
    struct evict_all *all = calloc(1, sizeof(*all) + count * sizeof(all->items[0]));
    check(all != NULL);
    all->proxy = control->proxy;
    all->count = (unsigned)count;
    atomic_init(&all->left, (unsigned)count);
    if (!evict_take(all, &call, uris)) {
        evict_free(all);
        return;
    }
    all->call = call; // `all` owns the call from here on, because the items point into its body
    atomic_fetch_add(&all->left, 1);
    for (unsigned i = 0; i < EVICT_AT_ONCE; i++) {
        evict_next(all);
    }
    if (atomic_fetch_sub(&all->left, 1) == 1) {
        evict_answer(all);
    }
}

// --- the process ---------------------------------------------------------------------------------

static void order_drain(void *ctx, struct admin_call *call)
{
    (void)ctx;
    admin_call_answer(&call, 200, json_pack("{s:b}", "draining", true));
    check(kill(getpid(), SIGTERM) == 0); // the main thread handles it like any other
}

// Refuses calls that wait for the main thread, because it handles none during a drain. A call may
// arrive as the drain begins, so two threads may run this at once. The thread that takes a call out
// of `control` answers it.
static void refuse_waiting(struct control *control)
{
    struct admin_call *calls[] = {atomic_exchange(&control->reload_call, NULL),
                                  atomic_exchange(&control->upgrade_call, NULL)};
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        if (calls[i] != NULL) {
            admin_call_refuse(
                &calls[i], 503,
                "the server is stopping, or another process is about to take its place");
        }
    }
}

// Signals the main thread to handle a waiting call.
static void tell_main(struct control *control, int signal)
{
    if (atomic_load(&control->is_draining)) {
        refuse_waiting(control);
        return;
    }
    check(kill(getpid(), signal) == 0);
}

static void control_upgrade(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    const json_t *wait = admin_call_member(call, "wait_s");
    struct admin_call *none = NULL;
    json_int_t wait_s = wait != NULL ? json_integer_value(wait) : CONTROL_UPGRADE_MS_DEFAULT / 1000;
    if (wait_s < 1 || wait_s > CONTROL_UPGRADE_MS_MAX / 1000) {
        admin_call_refuse(&call, 400, "wait_s is 1 to 50");
        return;
    }
    if (!atomic_compare_exchange_strong(&control->upgrade_call, &none, call)) {
        admin_call_refuse(&call, 503, "an upgrade is under way");
        return;
    }
    atomic_store(&control->upgrade_wait_ms, (unsigned)wait_s * 1000);
    tell_main(control, SIGUSR2);
}

unsigned control_upgrade_wait_ms(struct control *control)
{
    unsigned wait_ms = atomic_exchange(&control->upgrade_wait_ms, 0);
    return wait_ms != 0 ? wait_ms : CONTROL_UPGRADE_MS_DEFAULT;
}

void control_upgraded(struct control *control, int pid, const char *why)
{
    struct admin_call *call = atomic_exchange(&control->upgrade_call, NULL);
    if (call != NULL && pid != 0) {
        admin_call_answer(&call, 200,
                          json_pack("{s:i, s:i}", "pid", (int)getpid(), "next_pid", pid));
    } else if (call != NULL) {
        admin_call_refuse(&call, 409, why);
    }
}

static void control_loglevel(void *ctx, struct admin_call *call)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    struct span text = admin_call_parameter(call, "level");
    (void)ctx;
    for (int i = LOG_LEVEL_ERROR; i <= LOG_LEVEL_DEBUG; i++) {
        if (span_equal_cstr(text, names[i])) {
            log_set_level((enum log_level)i);
            admin_call_answer(&call, 200, json_pack("{s:s}", "level", names[i]));
            return;
        }
    }
    admin_call_refuse(&call, 400, "level is error, warn, info or debug");
}

static void control_reload(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    struct admin_call *none = NULL;
    if (!atomic_compare_exchange_strong(&control->reload_call, &none, call)) {
        admin_call_refuse(&call, 503, "a reload is under way");
        return;
    }
    tell_main(control, SIGHUP);
}

static json_t *lines_json(struct span text)
{
    json_t *lines = json_array();
    struct span line;
    while (span_split(&text, '\n', &line)) {
        if (line.len > 0) {
            check(json_array_append_new(lines, control_text(line)) == 0);
        }
    }
    return lines;
}

void control_reloaded(struct control *control, const struct control_reload_report *report)
{
    struct admin_call *call = atomic_exchange(&control->reload_call, NULL);
    if (call != NULL) {
        json_t *json = json_pack("{s:b, s:o, s:o, s:o}", "ok", report->is_good, "errors",
                                 lines_json(report->errors), "applied", lines_json(report->applied),
                                 "needs_restart", lines_json(report->needs_restart));
        check(json != NULL);
        admin_call_answer(&call, 200, json);
    }
}

void control_init(struct control *control)
{
    control->jobs = control_jobs_new(control->proxy);
    control->doctor = control_doctor_new(control->argc, control->argv);
}

void control_drain(struct control *control)
{
    atomic_store(&control->is_draining, true);
    refuse_waiting(control);
    control_jobs_cancel(control->jobs);
    control_doctor_cancel(control->doctor);
}

void control_done(struct control *control)
{
    control_jobs_free(control->jobs);
    control->jobs = NULL;
    control_doctor_free(control->doctor);
    control->doctor = NULL;
}

static void lines_turn(void *ctx, bool is_on)
{
    proxy_live_turn(ctx, is_on);
}

static uint64_t lines_take(void *ctx, admin_lines_fn on_lines, void *lines_ctx)
{
    return proxy_live_take(ctx, on_lines, lines_ctx);
}

struct admin_lines control_lines(struct proxy *proxy)
{
    return (struct admin_lines){
        .fd = proxy_live_fd(proxy), .turn = lines_turn, .take = lines_take, .ctx = proxy};
}

void control_actions(admin_action_fn actions[ADMIN_ACTION_COUNT_])
{
    actions[ADMIN_ACTION_explain] = control_explain;
    actions[ADMIN_ACTION_ls] = control_ls;
    actions[ADMIN_ACTION_requests] = control_requests;
    actions[ADMIN_ACTION_trace] = control_trace;
    actions[ADMIN_ACTION_buckets] = control_buckets;
    actions[ADMIN_ACTION_evict] = control_evict;
    actions[ADMIN_ACTION_warm] = control_warm;
    actions[ADMIN_ACTION_jobs] = control_jobs;
    actions[ADMIN_ACTION_job] = control_job;
    actions[ADMIN_ACTION_job_cancel] = control_job_cancel;
    actions[ADMIN_ACTION_scrub] = control_scrub;
    actions[ADMIN_ACTION_scrub_begin] = control_scrub_begin;
    actions[ADMIN_ACTION_scrub_cancel] = control_scrub_cancel;
    actions[ADMIN_ACTION_pin] = control_pin;
    actions[ADMIN_ACTION_unpin] = control_unpin;
    actions[ADMIN_ACTION_pins] = control_pins;
    actions[ADMIN_ACTION_doctor] = control_doctor;
    actions[ADMIN_ACTION_doctor_last] = control_doctor_last;
    actions[ADMIN_ACTION_drain] = order_drain;
    actions[ADMIN_ACTION_reload] = control_reload;
    actions[ADMIN_ACTION_upgrade] = control_upgrade;
    actions[ADMIN_ACTION_loglevel] = control_loglevel;
}
