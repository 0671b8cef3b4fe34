// SPDX-License-Identifier: Apache-2.0
// The actions of the control interface but for jobs (command_control_jobs.c). They begin on the
// admin thread and are answered from wherever their answer is found: explain, ls and evict on a
// worker, reload on the main thread.
#include "commands/command_control.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "commands/command_control_private.h"
#include "commands/command_upgrade.h"
#include "commands/command_uri.h"

#define EVICT_MAX 1000u // objects in one call

// --- as JSON -------------------------------------------------------------------------------------

static json_t *uri_json(struct span bucket, struct span key)
{
    json_t *first = command_control_text(bucket), *rest = command_control_text(key);
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
                  "where", command_control_text(span_from_cstr(rule->where)), "cache", rule->cache,
                  "freshness", freshness[rule->freshness], "ttl_s", (double)rule->ttl_ms / 1e3,
                  "block_size", (json_int_t)rule->block_size_bytes, "max_object_size",
                  (json_int_t)rule->max_object_size_bytes, "priority", (int)rule->priority, "pin",
                  rule->pin, "share_percent", (int)rule->share_percent);
    check(json != NULL);
    return json;
}

// --- explain -------------------------------------------------------------------------------------

struct verdict {
    const char *reason, *text, *remedy;
};

// The first piece of the range that would not be stored; NULL: there is none, or it is not known.
static const struct store_explain_run *refused_piece(const struct store_explain *policy)
{
    for (unsigned i = 0; policy != NULL && i < policy->run_count; i++) {
        if (policy->runs[i].state == STORE_EXPLAIN_REFUSED) {
            return &policy->runs[i];
        }
    }
    return NULL;
}

// There is nothing to keep, or no way to get it.
static struct verdict verdict_of_origin(enum err err)
{
    switch ((int)err) {
    case ERR_NO_SUCH_KEY:
        return (struct verdict){"no-such-key",
                                "the origin has no object of this name, or not this bucket",
                                "check the spelling: forebay ls shows the names that there are"};
    case ERR_NO_SUCH_BUCKET:
        return (struct verdict){"no-such-bucket", "the origin has no bucket of this name",
                                "check the spelling, and buckets[] in the configuration"};
    case ERR_ACCESS_DENIED:
    case ERR_ORIGIN_REFUSED:
        return (struct verdict){"refused", "the origin does not let Forebay read it",
                                "forebay doctor BUCKET looks at the rights of its credentials"};
    default:
        return (struct verdict){"origin", "nothing of it is cached, and the origin does not answer",
                                "forebay doctor looks at the way to the origin"};
    }
}

static struct verdict verdict_of_refusal(enum refusal why)
{
    const struct refusal_text *row = refusal_text(why);
    return (struct verdict){row->word, row->text, row->remedy};
}

// The first that holds of what keeps a read from being answered from the cache.
static struct verdict verdict_of(const struct proxy_object *o, const struct store_summary *store)
{
    const struct proxy_rule *rule = o->rule;
    bool has_some = o->range_cached_blocks > 0;
    bool has_all = o->is_known && o->range_cached_blocks == o->range_blocks;
    if (store->is_blind) {
        return verdict_of_refusal(store->refusal);
    }
    if (!rule->cache) {
        return verdict_of_refusal(REFUSAL_rule);
    }
    if (rule->max_object_size_bytes > 0 && o->size_bytes > rule->max_object_size_bytes) {
        return verdict_of_refusal(REFUSAL_too_large);
    }
    if (o->is_known && o->is_doubted) {
        return (struct verdict){
            "in-doubt",
            "a write whose outcome is not known may have changed its bucket: the "
            "origin is asked before it is used",
            "nothing to do; that ends by itself"};
    }
    if (o->is_known && o->is_rebuilt) {
        return (struct verdict){"rebuilt",
                                "it was found again after a crash: the origin confirms it once",
                                "nothing to do; that ends with the next read"};
    }
    if (has_all && !o->is_fresh) {
        return rule->freshness == PROXY_FRESHNESS_STRICT
                   ? (struct verdict){"strict",
                                      "its rule is strict: the origin confirms it on each read",
                                      "a rule with freshness: ttl or immutable"}
                   : (struct verdict){
                         "stale",
                         "its ttl is over: the next read asks the origin whether it has "
                         "changed, and has its bytes from the cache",
                         "a longer ttl; freshness: immutable if it never changes"};
    }
    if (has_all) {
        return (struct verdict){"hit", "the next read is answered from the cache", ""};
    }
    if (o->trouble.text != NULL && o->trouble.text[0] != '\0') {
        return (struct verdict){"origin", o->trouble.text, o->trouble.remedy};
    }
    if (o->was_origin_asked && o->origin_err != ERR_OK) {
        return verdict_of_origin(o->origin_err);
    }
    if (o->forbids != ORIGIN_FORBIDS_NOTHING) {
        const struct origin_forbids_text *forbids = origin_forbids_text(o->forbids);
        return (struct verdict){
            forbids->word, forbids->text,
            "what the origin, or a balancer in front of it, adds to its answers"};
    }
    if (store->refusal != REFUSAL_none) {
        return verdict_of_refusal(store->refusal);
    }
    const struct store_explain_run *refused = refused_piece(o->policy);
    if (refused != NULL && rule->share_percent > 0 &&
        o->policy->group_bytes >= o->policy->group_max_bytes) {
        return (struct verdict){refusal_text(REFUSAL_not_admitted)->word,
                                "the cache is full, and the objects of its rule take their share",
                                "a larger share in its rule, or a larger cache.size"};
    }
    if (refused != NULL || (o->policy == NULL && !o->is_wanted)) {
        struct verdict verdict = verdict_of_refusal(REFUSAL_not_admitted);
        if (refused != NULL && refused->refusals_left > 0) {
            verdict.remedy = "after refusals_left more reads soon it is stored; else raise "
                             "cache.size, or its priority in a rule";
        }
        return verdict;
    }
    return has_some ? (struct verdict){"partial",
                                       "a part of it has not been read, or was evicted: the origin "
                                       "is asked for that part",
                                       "forebay warm fetches what is missing"}
                    : (struct verdict){"absent",
                                       "nothing of it is cached: it has not been read, or was "
                                       "evicted or replaced",
                                       "forebay warm fetches it; the next read keeps it"};
}

static json_t *or_null(uint64_t value)
{
    return value == UINT64_MAX ? json_null() : json_integer((json_int_t)value);
}

// What the retention policy goes by; null where it was not asked.
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
        json_t *piece = json_pack(
            "{s:I, s:i, s:s, s:b, s:b, s:i, s:f, s:f, s:o, s:o, s:I, s:I}", "first_block",
            (json_int_t)run->first_block, "blocks", (int)run->block_count, "state",
            states[run->state], "pinned", run->is_pinned, "on_probation", run->is_on_probation,
            "priority", (int)run->priority, "worth", (double)run->rank, "bar", (double)run->bar,
            "age_bytes", or_null(run->age_bytes), "age_s", seconds_json(run->age_ms),
            "interval_bytes", (json_int_t)run->interval_bytes, "refusals_left",
            (json_int_t)run->refusals_left);
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

// What its store does against S3's promises.
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
    struct command_control *control;
};

static void on_explained(void *ctx, const struct proxy_object *o)
{
    struct question *q = ctx;
    struct store_summary summary;
    store_summarize(q->control->store, &summary);
    struct verdict verdict = verdict_of(o, &summary);
    static const char *const checksums[] = {[PROXY_CHECKSUMS_UNKNOWN] = "unknown",
                                            [PROXY_CHECKSUMS_NONE] = "none",
                                            [PROXY_CHECKSUMS_KNOWN] = "known"};
    json_t *json = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:s, s:I, s:I, s:o, s:b, s:b, s:b, s:b, s:i, s:I, "
        "s:I, s:I, s:o, s:o, s:{s:s, s:s, s:s}}",
        "uri", uri_json(o->bucket, o->key), "origin",
        command_control_text(span_from_cstr(o->origin)), "oddities", oddities_json(o),
        "origin_bucket", command_control_text(o->origin_bucket), "rule", rule_json(o->rule),
        "known", o->is_known, "etag",
        o->etag[0] != '\0' ? command_control_text(span_from_cstr(o->etag)) : json_null(),
        "checksums", checksums[o->checksums], "size", (json_int_t)o->size_bytes, "block_size",
        (json_int_t)o->block_size_bytes, "age_s", seconds_json(o->age_ms), "fresh", o->is_fresh,
        "rebuilt", o->is_rebuilt, "in_doubt", o->is_doubted, "would_keep", o->is_wanted,
        "home_worker", (int)o->home, "blocks", (json_int_t)(o->is_known ? o->block_count : 0),
        "cached_blocks", (json_int_t)o->cached_blocks, "cached_bytes", (json_int_t)o->cached_bytes,
        "range",
        json_pack("{s:I, s:I, s:I, s:I, s:o}", "first", (json_int_t)o->first_byte, "end",
                  (json_int_t)o->end_byte, "blocks", (json_int_t)o->range_blocks, "cached_blocks",
                  (json_int_t)o->range_cached_blocks, "cells", cells_json(o)),
        "policy", policy_json(o->policy), "verdict", "reason", verdict.reason, "text", verdict.text,
        "remedy", verdict.remedy);
    check(json != NULL);
    admin_call_answer(&q->call, 200, json);
    free(q);
}

static struct question *question_new(struct command_control *control, struct admin_call *call)
{
    struct question *q = calloc(1, sizeof(*q));
    check(q != NULL);
    q->call = call;
    q->control = control;
    return q;
}

static void control_explain(void *ctx, struct admin_call *call)
{
    struct command_control *control = ctx;
    struct command_uri uri;
    uint64_t first = 0, end = UINT64_MAX;
    struct span range = admin_call_parameter(call, "range");
    struct span ask = admin_call_parameter(call, "ask"); // else nobody is asked
    if (!command_control_take_object(&call, admin_call_parameter(call, "uri"), &uri)) {
        return;
    }
    if (range.ptr != NULL && !command_uri_parse_range(range, &first, &end)) {
        admin_call_refuse(&call, 400, "range is FIRST-LAST or FIRST-, in bytes");
    } else if (ask.ptr != NULL && !span_equal_cstr(ask, "origin")) {
        admin_call_refuse(&call, 400, "ask is origin, or not there");
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
        admin_call_refuse(&q->call, 502, why);
        free(q);
        return;
    }
    json_t *objects = json_array();
    for (unsigned i = 0; i < listing->count; i++) {
        const struct proxy_object *o = &listing->objects[i];
        json_t *row = json_pack("{s:o, s:b, s:I, s:b, s:b, s:b, s:I, s:I, s:I, s:b, s:b, s:o}",
                                "key", command_control_text(o->key), "coded",
                                !command_control_is_text(o->key), "size", (json_int_t)o->size_bytes,
                                "known", o->is_known, "realms", listing->has_realms, "answers",
                                listing->has_answers, "cached_bytes", (json_int_t)o->cached_bytes,
                                "blocks", (json_int_t)(o->is_known ? o->block_count : 0),
                                "cached_blocks", (json_int_t)o->cached_blocks, "fresh", o->is_fresh,
                                "changed", o->is_changed, "age_s", seconds_json(o->age_ms));
        check(row != NULL && json_array_append_new(objects, row) == 0);
    }
    json_t *json =
        json_pack("{s:o, s:o}", "objects", objects, "next",
                  listing->next.len > 0 ? command_control_text(listing->next) : json_null());
    check(json != NULL);
    admin_call_answer(&q->call, 200, json);
    free(q);
}

static void control_ls(void *ctx, struct admin_call *call)
{
    struct command_control *control = ctx;
    struct command_uri uri;
    uint64_t max = PROXY_LIST_MAX;
    struct span text = admin_call_parameter(call, "max");
    if (!command_control_take_uri(&call, admin_call_parameter(call, "uri"), &uri)) {
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

#define EVICT_AT_ONCE 64u // objects of one call

// A call's objects; each answers in a slot of its own. The end of one starts the next.
struct evict_one {
    struct evict_all *all;
    struct command_uri uri;
    char *decoded; // its key, where that came in percent coding
    uint64_t cached_bytes, cached_blocks;
    bool is_known;
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
            one->err == ERR_OK, "known", one->is_known, "cached_bytes",
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

static void on_evicted(void *ctx, enum err err)
{
    struct evict_one *one = ctx;
    struct evict_all *all = one->all;
    one->err = err;
    evict_next(all);
    if (atomic_fetch_sub(&all->left, 1) == 1) {
        evict_answer(all);
    }
}

static void on_evict_looked(void *ctx, const struct proxy_object *object)
{
    struct evict_one *one = ctx;
    one->is_known = object->is_known;
    one->cached_bytes = object->cached_bytes;
    proxy_evict(one->all->proxy, one->uri.bucket, one->uri.key, on_evicted, one);
}

// The caller has counted one that has not ended, so `all` stays.
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

// What of a URI is its key out of percent coding; false: it is none.
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

// "URI" of an object or bucket, or {"object": URI}, whose key may end as a prefix does, and is in
// percent coding where {"coded": URI} names it, as ls does for what is no text. False: the call is
// answered.
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
        return command_control_take_object(call, uri, &one->uri);
    }
    if (!command_control_take_uri(call, uri, &one->uri)) {
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
    struct command_control *control = ctx;
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
    all->call = call; // and with it the names
    atomic_fetch_add(&all->left, 1);
    for (unsigned i = 0; i < EVICT_AT_ONCE; i++) {
        evict_next(all);
    }
    if (atomic_fetch_sub(&all->left, 1) == 1) {
        evict_answer(all);
    }
}

// --- the process ---------------------------------------------------------------------------------

static void control_drain(void *ctx, struct admin_call *call)
{
    (void)ctx;
    admin_call_answer(&call, 200, json_pack("{s:b}", "draining", true));
    check(kill(getpid(), SIGTERM) == 0); // the main thread takes it as any other
}

// Of the calls that wait for the main thread: on a drain it takes none any more, nor those that
// come while it begins. Whichever thread finds one answers it.
static void refuse_waiting(struct command_control *control)
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

// Sends the main thread to a call that waits for it.
static void tell_main(struct command_control *control, int signal)
{
    if (atomic_load(&control->is_draining)) {
        refuse_waiting(control);
        return;
    }
    check(kill(getpid(), signal) == 0);
}

static void control_upgrade(void *ctx, struct admin_call *call)
{
    struct command_control *control = ctx;
    const json_t *wait = admin_call_member(call, "wait_s");
    struct admin_call *none = NULL;
    json_int_t wait_s = wait != NULL ? json_integer_value(wait) : UPGRADE_READY_MS_DEFAULT / 1000;
    if (wait_s < 1 || wait_s > UPGRADE_READY_MS_MAX / 1000) {
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

unsigned command_control_upgrade_wait_ms(struct command_control *control)
{
    unsigned wait_ms = atomic_exchange(&control->upgrade_wait_ms, 0);
    return wait_ms != 0 ? wait_ms : UPGRADE_READY_MS_DEFAULT;
}

void command_control_upgraded(struct command_control *control, int pid, const char *why)
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
    struct command_control *control = ctx;
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
            check(json_array_append_new(lines, command_control_text(line)) == 0);
        }
    }
    return lines;
}

void command_control_reload(struct command_control *control)
{
    struct command_reload_report report;
    command_reload_report_init(&report);
    enum err err = command_reload_now(control->reload, &report);
    struct admin_call *call = atomic_exchange(&control->reload_call, NULL);
    if (call != NULL) {
        json_t *json = json_pack("{s:b, s:o, s:o, s:o}", "ok", err == ERR_OK, "errors",
                                 lines_json(buf_span(&report.errors)), "applied",
                                 lines_json(buf_span(&report.applied)), "needs_restart",
                                 lines_json(buf_span(&report.restart)));
        check(json != NULL);
        admin_call_answer(&call, 200, json);
    }
    command_reload_report_done(&report);
}

void command_control_init(struct command_control *control)
{
    control->jobs = command_control_jobs_new(control->proxy);
    control->doctor = command_control_doctor_new(control->reload->argc, control->reload->argv);
}

void command_control_drain(struct command_control *control)
{
    atomic_store(&control->is_draining, true);
    refuse_waiting(control);
    command_control_jobs_cancel(control->jobs);
    command_control_doctor_cancel(control->doctor);
}

void command_control_done(struct command_control *control)
{
    command_control_jobs_free(control->jobs);
    control->jobs = NULL;
    command_control_doctor_free(control->doctor);
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

struct admin_lines command_control_lines(struct proxy *proxy)
{
    return (struct admin_lines){
        .fd = proxy_live_fd(proxy), .turn = lines_turn, .take = lines_take, .ctx = proxy};
}

void command_control_actions(admin_action_fn actions[ADMIN_ACTION_COUNT_])
{
    actions[ADMIN_ACTION_explain] = control_explain;
    actions[ADMIN_ACTION_ls] = control_ls;
    actions[ADMIN_ACTION_requests] = command_control_requests;
    actions[ADMIN_ACTION_trace] = command_control_trace;
    actions[ADMIN_ACTION_buckets] = command_control_buckets;
    actions[ADMIN_ACTION_evict] = control_evict;
    actions[ADMIN_ACTION_warm] = command_control_warm;
    actions[ADMIN_ACTION_jobs] = command_control_jobs;
    actions[ADMIN_ACTION_job] = command_control_job;
    actions[ADMIN_ACTION_job_cancel] = command_control_job_cancel;
    actions[ADMIN_ACTION_scrub] = command_control_scrub;
    actions[ADMIN_ACTION_scrub_begin] = command_control_scrub_begin;
    actions[ADMIN_ACTION_scrub_cancel] = command_control_scrub_cancel;
    actions[ADMIN_ACTION_pin] = command_control_pin;
    actions[ADMIN_ACTION_unpin] = command_control_unpin;
    actions[ADMIN_ACTION_pins] = command_control_pins;
    actions[ADMIN_ACTION_doctor] = command_control_doctor;
    actions[ADMIN_ACTION_doctor_last] = command_control_doctor_last;
    actions[ADMIN_ACTION_drain] = control_drain;
    actions[ADMIN_ACTION_reload] = control_reload;
    actions[ADMIN_ACTION_upgrade] = control_upgrade;
    actions[ADMIN_ACTION_loglevel] = control_loglevel;
}
