// SPDX-License-Identifier: Apache-2.0
// The origins that a configuration names: the default one, and one for each bucket that has its
// own. Runs on the main thread: at the start before loop_start(), in a reload while workers run.
//
// A reload opens new origins. It closes none: an origin that no bucket uses any more rests
// (origin_rest()) until the process ends. Requests that began with it, writes of unknown outcome,
// and keys in memory still point to it. If a later reload gives the origin back to a bucket, its
// cached objects are still there. Writes to the same place have invalidated them as needed
// (proxy/core/places.c). But two endpoints may be two names of one store. So if a reload gives a
// bucket another origin, the objects that are cached there are in doubt, and each is revalidated
// once. A write that is in flight then puts them in doubt again when it ends (pass_doubt.c), and is
// answered when the cache directory has that doubt. The objects that are cached at the former
// origin are in doubt, too, because a restart may give it back to the bucket after writes to the
// new one.
//
// The identity of an origin is what it connects to, without timeouts and retries. An origin with
// another identity is another origin. If a bucket's configuration is switched between two endpoints
// again and again, only two origins are opened. At most COMMAND_ORIGINS_MAX are ever opened.
#include "server/command_origins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/log.h"
#include "control/control.h"
#include "server/command_holders.h"
#include "server/server_private.h"

struct origin_options command_origins_options(const struct config *c, unsigned connections)
{
    return (struct origin_options){
        .endpoint = c->origin_endpoint,
        .region = strcmp(c->origin_region, "auto") == 0 ? NULL : c->origin_region,
        .addressing = (enum origin_addressing)c->origin_addressing,
        .credentials = (enum origin_credentials_source)c->credentials_source,
        .access_key_file = c->credentials_access_key_file,
        .secret_key_file = c->credentials_secret_key_file,
        .session_token_file = c->credentials_session_token_file,
        .ca_file = c->origin_ca_file,
        .proxy = c->origin_proxy,
        .proxy_auth_file = c->origin_proxy_auth_file,
        .max_rate_bytes_per_s = c->origin_max_rate_bytes_per_s,
        .connections = connections,
        .keepalive_ms = c->origin_keepalive_ms,
        .connect_timeout_ms = c->origin_connect_timeout_ms,
        .first_byte_timeout_ms = c->origin_first_byte_timeout_ms,
        .idle_timeout_ms = c->origin_idle_timeout_ms,
        .retries = c->origin_retries,
        .retry_budget_percent = c->origin_retry_budget_percent,
        .probe = c->origin_probe,
    };
}

static bool bucket_has_own_origin(const struct config_bucket *b)
{
    return b->kind == CONFIG_BUCKET_DIRECTORY || b->endpoint != NULL || b->region != NULL ||
           b->has_addressing || b->anonymous || b->access_key_file != NULL || b->requester_pays;
}

bool command_origins_url(const char *endpoint, const char *region,
                         char ret_url[COMMAND_ORIGINS_URL_MAX])
{
    static const char mark[] = "{region}";
    const char *at = strstr(endpoint, mark);
    struct origin_client client;
    if (strncmp(endpoint, "dir:", 4) == 0) {
        return false;
    }
    if (strcmp(region, "auto") == 0) {
        origin_client_read(&client);
        region = client.region.text[0] != '\0' ? client.region.text : "us-east-1";
    }
    if (at == NULL) {
        (void)snprintf(ret_url, COMMAND_ORIGINS_URL_MAX, "%s", endpoint);
    } else {
        (void)snprintf(ret_url, COMMAND_ORIGINS_URL_MAX, "%.*s%.200s%s", (int)(at - endpoint),
                       endpoint, region, at + sizeof(mark) - 1);
    }
    return true;
}

// Splits a directory: dir:/data/set becomes the origin dir:/data with the bucket "set".
static const char *bucket_directory_split(const struct config_bucket *b, char *ret_endpoint,
                                          size_t size)
{
    const char *slash = strrchr(b->directory, '/');
    int parent_len = slash == b->directory ? 1 : (int)(slash - b->directory);
    (void)snprintf(ret_endpoint, size, "dir:%.*s", parent_len, b->directory);
    return slash + 1;
}

static const char *bucket_setting(struct arena *arena, const struct config_bucket *b,
                                  const char *field)
{
    const char *name = arena_printf(arena, "buckets[%s].%s", b->name, field);
    check(name != NULL);
    return name;
}

struct origin_settings command_origins_settings(struct arena *arena, const struct config_bucket *b)
{
    struct origin_settings s = {
        {[ORIGIN_SETTING_REGION] = bucket_setting(arena, b, "region"),
         [ORIGIN_SETTING_ADDRESSING] = bucket_setting(arena, b, "addressing")}};
    if (b->kind == CONFIG_BUCKET_DIRECTORY || b->endpoint != NULL) {
        s.names[ORIGIN_SETTING_ENDPOINT] =
            bucket_setting(arena, b, b->kind == CONFIG_BUCKET_DIRECTORY ? "origin" : "endpoint");
    }
    if (b->anonymous || b->access_key_file != NULL) {
        s.names[ORIGIN_SETTING_CREDENTIALS] = bucket_setting(arena, b, "credentials");
    }
    return s;
}

static void bucket_credentials(const struct config_bucket *b, struct origin_options *options)
{
    if (b->anonymous) {
        options->credentials = ORIGIN_CREDENTIALS_ANONYMOUS;
    } else if (b->access_key_file != NULL) {
        options->credentials = ORIGIN_CREDENTIALS_CONFIG;
        options->access_key_file = b->access_key_file;
        options->secret_key_file = b->secret_key_file;
        options->session_token_file = b->session_token_file;
    }
}

// The origin that a bucket's configuration asks for: options and identity. The arena or the
// configuration owns all texts.
struct wanted {
    const struct config_bucket *bucket;
    struct origin_options options;
    const char *origin_bucket;
    const char *identity;
};

static const char *or_none(const char *text)
{
    return text != NULL ? text : "";
}

static const char *text_in(struct arena *arena, const char *text)
{
    const char *copy = arena_cstr(arena, span_from_cstr(text));
    check(copy != NULL);
    return copy;
}

// Returns the identity of an origin as a text. It includes the length of each part, so that two
// different origins never get the same identity. It says whether the entry has the endpoint itself,
// because messages about the origin name the setting that has it. It leaves out settings that a
// reload changes for all origins at once, because such a change does not make a new origin.
static const char *identity_of(struct arena *arena, const struct config_bucket *b,
                               const struct origin_options *o, const char *origin_bucket)
{
    const char *texts[] = {o->bucket,
                           o->endpoint,
                           or_none(b->region),
                           origin_bucket,
                           or_none(b->access_key_file),
                           or_none(b->secret_key_file),
                           or_none(b->session_token_file)};
    struct buf text;
    buf_init(&text, 65536);
    buf_printf(&text, "%u %d %d %d", (unsigned)o->addressing, b->anonymous, b->requester_pays,
               b->endpoint != NULL);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        buf_printf(&text, " %zu:%s", strlen(texts[i]), texts[i]);
    }
    const char *identity = text_in(arena, buf_cstr(&text));
    buf_done(&text);
    return identity;
}

static struct wanted wanted_of(struct arena *arena, const struct config_bucket *b,
                               const struct origin_options *by_default)
{
    char endpoint[4096];
    struct wanted w = {.bucket = b, .options = *by_default};
    w.origin_bucket = b->origin_bucket != NULL ? b->origin_bucket : b->name;
    if (b->kind == CONFIG_BUCKET_DIRECTORY) {
        w.origin_bucket = bucket_directory_split(b, endpoint, sizeof(endpoint));
        w.options.endpoint = text_in(arena, endpoint);
    } else if (b->endpoint != NULL) {
        w.options.endpoint = b->endpoint;
    }
    if (b->region != NULL) {
        w.options.region = b->region;
    }
    if (b->has_addressing) {
        w.options.addressing = (enum origin_addressing)b->addressing;
    }
    bucket_credentials(b, &w.options);
    w.options.requester_pays = b->requester_pays;
    w.options.bucket = b->name;
    w.options.settings = command_origins_settings(arena, b);
    w.identity = identity_of(arena, b, &w.options, w.origin_bucket);
    return w;
}

static unsigned find(const struct command_origins *o, const char *identity)
{
    for (unsigned i = 1; i < o->origin_count; i++) {
        if (strcmp(o->items[i].identity, identity) == 0) {
            return i;
        }
    }
    return 0;
}

static enum err open_one(struct command_origins *o, const struct wanted *w, uint64_t descriptors,
                         struct loop *loop, struct buf *ret_why)
{
    unsigned i = o->origin_count;
    check(i <= COMMAND_ORIGINS_MAX);
    enum err err = origin_new(&w->options, loop, &o->origins[i], ret_why);
    if (err == ERR_OK) {
        o->items[i] =
            (struct command_origin){.identity = strdup(w->identity), .descriptors = descriptors};
        check(o->items[i].identity != NULL);
        o->origin_count = i + 1; // other threads may use it from here on
    }
    return err;
}

static void bucket_set(const struct command_origins *o, struct proxy_bucket *bucket,
                       const struct config_bucket *b, unsigned origin, const char *origin_bucket)
{
    *bucket = (struct proxy_bucket){
        .name = b->name, .origin = o->origins[origin], .origin_bucket = origin_bucket};
}

static const char *bucket_at_default(const struct config_bucket *b)
{
    return b->origin_bucket != NULL ? b->origin_bucket : b->name;
}

#define NAMES_SHOWN 3u
#define WANTED_ARENA_MAX ((size_t)64 << 20) // enough for a configuration of 1 MiB

// Warns if the environment names a proxy for https and the configuration names none. The value may
// contain a password, so the line has only the variable's name.
static void warn_of_ignored_proxy(const struct command_origins *o, const struct config *c)
{
    static const char *const names[] = {"HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"};
    bool is_https = false;
    for (unsigned i = 0; i < o->origin_count; i++) {
        is_https |= strncmp(origin_endpoint(o->origins[i]), "https://", 8) == 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(names) && is_https && c->origin_proxy == NULL; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            log_warn("proxy_ignored", "variable=%s remedy=%s", names[i],
                     log_quote(SPAN("Forebay asks origins directly; set origin.proxy if they are "
                                    "reached through a proxy only")));
            return;
        }
    }
}

enum err command_origins_open(const struct config *c, unsigned connections, struct loop *loop,
                              struct command_origins *o, struct buf *ret_why)
{
    *o = (struct command_origins){
        .origins = calloc(COMMAND_ORIGINS_MAX + 1, sizeof(struct origin *)),
        .items = calloc(COMMAND_ORIGINS_MAX + 1, sizeof(struct command_origin)),
        .buckets = calloc(c->bucket_count + 1, sizeof(*o->buckets))};
    check(o->origins != NULL && o->items != NULL && o->buckets != NULL);
    struct origin_options options = command_origins_options(c, connections);
    uint64_t descriptors = (uint64_t)connections + c->workers; // each worker's share, rounded up
    enum err err = origin_new(&options, loop, &o->origins[0], ret_why);
    if (err != ERR_OK) {
        return err;
    }
    struct arena *arena = arena_new(WANTED_ARENA_MAX);
    o->items[0].descriptors = descriptors;
    o->origin_count = 1;
    for (unsigned i = 0; i < c->bucket_count && err == ERR_OK; i++) {
        const struct config_bucket *b = &c->buckets[i];
        if (bucket_has_own_origin(b)) {
            struct wanted w = wanted_of(arena, b, &options);
            err = open_one(o, &w, descriptors, loop, ret_why);
            if (err == ERR_OK) {
                // `origin_bucket` may be a part of the directory's name. The configuration owns
                // both.
                bucket_set(o, &o->buckets[i], b, o->origin_count - 1, w.origin_bucket);
            }
        } else {
            bucket_set(o, &o->buckets[i], b, 0, bucket_at_default(b));
        }
        o->bucket_count += err == ERR_OK;
    }
    arena_free(arena);
    o->numbered_count = o->origin_count; // store_open() assigns the numbers
    warn_of_ignored_proxy(o, c);
    return err;
}

void command_origins_close(struct command_origins *o)
{
    for (unsigned i = 0; i < o->origin_count; i++) {
        origin_close(o->origins[i]);
    }
}

void command_origins_free(struct command_origins *o)
{
    for (unsigned i = 0; i < o->origin_count; i++) {
        origin_free(o->origins[i]);
        free(o->items[i].identity);
    }
    free(o->origins);
    free(o->items);
    free(o->buckets);
    o->origin_count = 0;
    o->origins = NULL;
    o->items = NULL;
    o->buckets = NULL;
}

// --- a reload ------------------------------------------------------------------------------------

// Returns the options of the default origin after a reload. Settings that need a restart come from
// `first`, all others from `latest`.
static struct origin_options options_now(const struct config *first, const struct config *latest)
{
    struct origin_options options = command_origins_options(latest, 0);
    struct origin_options at_start = command_origins_options(first, 0);
    options.endpoint = at_start.endpoint;
    options.region = at_start.region;
    options.addressing = at_start.addressing;
    options.credentials = at_start.credentials;
    options.proxy = at_start.proxy;
    options.proxy_auth_file = at_start.proxy_auth_file;
    options.probe = at_start.probe;
    return options;
}

// Returns how many connections each of `added` new origins may have, within the descriptors
// reserved for origins. Origins that were open and are still used keep theirs. Returns 0 if the
// rest is too small for all new origins.
static unsigned connections_left(const struct command_origins *o,
                                 const struct command_origins_now *now,
                                 const struct command_origins_reload *r, unsigned added)
{
    uint64_t of_none = command_limits_origin(0, r->first->workers), taken = 0;
    for (unsigned i = 0; i < o->origin_count; i++) {
        taken += now->is_used[i] ? o->items[i].descriptors : 0;
    }
    if (taken > r->plan->origin_descriptors) {
        return 0;
    }
    uint64_t each = (r->plan->origin_descriptors - taken) / max_u64(added, 1);
    uint64_t left = each > of_none ? each - of_none : 0;
    return added > 0 ? (unsigned)min_u64(r->plan->origin_connections, left) : 1;
}

// Opens the new origins. They rest until the reload uses them.
static enum err open_new(struct command_origins *o, const struct command_origins_reload *r,
                         const struct wanted *wanted, unsigned count, struct buf *ret_why)
{
    enum err err = ERR_OK;
    for (unsigned i = 0; i < count && err == ERR_OK; i++) {
        struct buf why;
        buf_init(&why, 8192);
        err = open_one(o, &wanted[i],
                       command_limits_origin(wanted[i].options.connections, r->first->workers),
                       r->loop, &why);
        if (err == ERR_OK) {
            origin_rest(o->origins[o->origin_count - 1], true);
        } else {
            buf_printf(ret_why, "%s: bucket \"%.64s\": %s", wanted[i].bucket->source,
                       wanted[i].bucket->name, buf_cstr(&why));
        }
        buf_done(&why);
    }
    return err;
}

// Has the store assign numbers to the origins that have none yet, before requests use the numbers.
static enum err number_new(struct command_origins *o, struct store *store, struct buf *ret_why)
{
    struct origin **origins = o->origins + o->numbered_count;
    unsigned count = 0, new_count = o->origin_count - o->numbered_count;
    struct store_holder *holders = command_holders_list(origins, new_count, NULL, NULL, 0, &count);
    enum err err = store_holders_add(store, holders, count);
    if (err == ERR_OK) {
        err = command_holders_apply(holders, origins, count, NULL);
        o->numbered_count = o->origin_count;
    } else {
        buf_printf(ret_why, "buckets: their origins cannot be saved in the cache directory: %s",
                   error_row(err)->text);
    }
    free(holders);
    return err;
}

static enum err updates_make(struct command_origins *o, struct command_origins_now *now,
                             const struct wanted *wanted, unsigned count,
                             const struct origin_options *by_default, struct buf *ret_why)
{
    enum err err = origin_update_new(o->origins[0], by_default, &now->updates[0], ret_why);
    for (unsigned i = 0; i < count && err == ERR_OK; i++) {
        unsigned at = find(o, wanted[i].identity);
        if (at < now->known_count && now->updates[at] == NULL) {
            err = origin_update_new(o->origins[at], &wanted[i].options, &now->updates[at], ret_why);
        }
    }
    return err;
}

// Moves the origins of `wanted` that are not open yet to its front, and checks that there is room
// for them.
static enum err judge_new(struct command_origins *o, const struct command_origins_reload *r,
                          struct command_origins_now *now, struct wanted *wanted, unsigned count,
                          unsigned *ret_added, struct buf *ret_why)
{
    unsigned added = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned at = find(o, wanted[i].identity);
        now->is_used[at] = true;
        if (at == 0) {
            struct wanted first = wanted[added];
            wanted[added++] = wanted[i];
            wanted[i] = first;
        }
    }
    *ret_added = added;
    if (o->origin_count + added > COMMAND_ORIGINS_MAX + 1) {
        buf_printf(ret_why,
                   "buckets: with these, more than %u origins of buckets have been open since the "
                   "start: a restart or an upgrade forgets those that are not in use",
                   COMMAND_ORIGINS_MAX);
        return ERR_LIMIT;
    }
    unsigned connections = connections_left(o, now, r, added);
    for (unsigned i = 0; i < added; i++) {
        wanted[i].options.connections = connections;
    }
    if (connections == 0) {
        buf_append_cstr(ret_why, "buckets: there are no descriptors left for connections to these "
                                 "origins: raise the limit (ulimit -n), and restart");
        return ERR_LIMIT;
    }
    return ERR_OK;
}

enum err command_origins_prepare(struct command_origins *o, const struct command_origins_reload *r,
                                 struct command_origins_now *now, struct buf *ret_why)
{
    const struct config *c = r->latest;
    struct origin_options by_default = options_now(r->first, c);
    struct wanted *wanted = calloc(c->bucket_count + 1, sizeof(*wanted));
    struct arena *arena = arena_new(WANTED_ARENA_MAX);
    unsigned count = 0, added = 0;
    *now = (struct command_origins_now){
        .known_count = o->origin_count,
        .is_used = calloc(COMMAND_ORIGINS_MAX + 1, sizeof(bool)),
        .updates = calloc(COMMAND_ORIGINS_MAX + 1, sizeof(struct origin_update *)),
        .buckets = calloc(c->bucket_count + 1, sizeof(*now->buckets))};
    check(wanted != NULL && now->is_used != NULL && now->updates != NULL && now->buckets != NULL);
    for (unsigned i = 0; i < c->bucket_count; i++) {
        if (bucket_has_own_origin(&c->buckets[i])) {
            wanted[count++] = wanted_of(arena, &c->buckets[i], &by_default);
        }
    }
    now->is_used[0] = true;
    enum err err = judge_new(o, r, now, wanted, count, &added, ret_why);
    if (err == ERR_OK) {
        err = open_new(o, r, wanted, added, ret_why);
    }
    if (err == ERR_OK) {
        err = number_new(o, r->store, ret_why);
    }
    if (err == ERR_OK) {
        err = updates_make(o, now, wanted, count, &by_default, ret_why);
    }
    for (unsigned i = 0; i < c->bucket_count && err == ERR_OK; i++) {
        const struct config_bucket *b = &c->buckets[i];
        bucket_set(o, &now->buckets[i], b, 0, bucket_at_default(b));
        for (unsigned n = 0; n < count; n++) {
            if (wanted[n].bucket == b) {
                unsigned at = find(o, wanted[n].identity);
                now->is_used[at] = true;
                bucket_set(o, &now->buckets[i], b, at, wanted[n].origin_bucket);
            }
        }
    }
    now->bucket_count = c->bucket_count;
    arena_free(arena);
    free(wanted);
    return err;
}

void command_origins_now_free(struct command_origins_now *now)
{
    for (unsigned i = 0; now->updates != NULL && i <= COMMAND_ORIGINS_MAX; i++) {
        origin_update_free(now->updates[i]);
    }
    free(now->updates);
    free(now->moved);
    free(now->is_used);
    free(now->buckets);
    *now = (struct command_origins_now){0};
}

static const struct proxy_bucket *listed(const struct proxy_bucket *buckets, unsigned count,
                                         const char *name)
{
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(buckets[i].name, name) == 0) {
            return &buckets[i];
        }
    }
    return NULL;
}

// Puts the bucket in doubt at its former origin and its new one, unless these are the same. NULL:
// the default origin, where the bucket has the name that clients use.
static void doubt_if_moved(const struct command_origins *o, struct command_origins_now *now,
                           struct store *store, const struct proxy_bucket *from,
                           const struct proxy_bucket *to)
{
    const char *name = from != NULL ? from->name : to->name;
    struct proxy_bucket unlisted = {.name = name, .origin = o->origins[0], .origin_bucket = name};
    from = from != NULL ? from : &unlisted;
    to = to != NULL ? to : &unlisted;
    if (from->origin != to->origin || strcmp(from->origin_bucket, to->origin_bucket) != 0) {
        struct command_origins_move *move = &now->moved[now->moved_count++];
        store_doubt_begin(store, span_from_cstr(origin_place(from->origin)),
                          span_from_cstr(from->origin_bucket), &move->from);
        store_doubt_begin(store, span_from_cstr(origin_place(to->origin)),
                          span_from_cstr(to->origin_bucket), &move->to);
    }
}

static void doubt_moved(const struct command_origins *o, struct command_origins_now *now,
                        struct store *store)
{
    now->moved = calloc(now->bucket_count + o->bucket_count + 1, sizeof(*now->moved));
    check(now->moved != NULL && now->moved_count == 0);
    for (unsigned i = 0; i < now->bucket_count; i++) {
        const struct proxy_bucket *to = &now->buckets[i];
        doubt_if_moved(o, now, store, listed(o->buckets, o->bucket_count, to->name), to);
    }
    for (unsigned i = 0; i < o->bucket_count; i++) {
        const struct proxy_bucket *from = &o->buckets[i];
        if (listed(now->buckets, now->bucket_count, from->name) == NULL) {
            doubt_if_moved(o, now, store, from, NULL);
        }
    }
}

void command_origins_use(struct command_origins *o, struct command_origins_now *now,
                         struct store *store, sem_t *probed)
{
    doubt_moved(o, now, store);
    for (unsigned i = 0; i < o->origin_count; i++) {
        if (now->updates[i] != NULL) {
            origin_update_use(now->updates[i]);
            now->updates[i] = NULL;
        }
        if (now->is_used[i] && origin_rests(o->origins[i])) {
            origin_rest(o->origins[i], false);
            origin_probe_start(o->origins[i], probed);
        }
    }
    free(o->buckets);
    o->buckets = now->buckets;
    o->bucket_count = now->bucket_count;
    now->buckets = NULL;
}

void command_origins_rest(struct command_origins *o, struct command_origins_now *now,
                          struct store *store, bool by_all)
{
    bool has_writes =
        stats_sum(COUNTER_writes_inflight) > 0 || stats_sum(COUNTER_writes_in_doubt) > 0;
    for (unsigned i = 0; i < o->origin_count; i++) {
        if (!now->is_used[i]) {
            origin_rest(o->origins[i], true);
        }
    }
    for (unsigned i = by_all ? now->moved_count : 0; i-- > 0;) {
        if (!has_writes) { // else they may still change what the new origin confirms
            store_doubt_end(store, &now->moved[i].to);
        }
        store_doubt_end(store, &now->moved[i].from);
    }
}

void command_origins_names(struct origin *const *origins, unsigned count, struct buf *out)
{
    unsigned shown = 0, more = 0;
    for (unsigned i = 0; i < count; i++) {
        if (origin_rests(origins[i])) {
            continue;
        }
        if (shown == NAMES_SHOWN) {
            more++;
            continue;
        }
        buf_printf(out, "%s%s", shown++ > 0 ? ", " : "", origin_shown(origins[i]));
    }
    if (more > 0) {
        buf_printf(out, " and %u more", more);
    }
}

struct paced {
    const struct origin *origin;
    struct origin_pace pace;
};

static int by_median(const void *a, const void *b)
{
    uint64_t p = ((const struct paced *)a)->pace.median_us;
    uint64_t q = ((const struct paced *)b)->pace.median_us;
    return (p < q) - (p > q);
}

static json_t *seconds_json(uint64_t us)
{
    return us > 0 ? json_real((double)us / 1e6) : json_null();
}

json_t *command_origins_json(struct origin *const *origins, unsigned count)
{
    struct paced *rows = calloc(count, sizeof(*rows));
    json_t *json = json_array();
    unsigned used = 0;
    check(rows != NULL && json != NULL);
    for (unsigned i = 0; i < count; i++) {
        if (!origin_rests(origins[i])) {
            rows[used++] = (struct paced){origins[i], origin_pace(origins[i])};
        }
    }
    qsort(rows, used, sizeof(*rows), by_median);
    for (unsigned i = 0; i < used; i++) {
        const struct origin_pace *pace = &rows[i].pace;
        struct origin_calls calls = origin_calls(rows[i].origin);
        struct origin_failures failures = origin_failed(rows[i].origin);
        json_t *row = json_pack(
            "{s:o, s:I, s:o, s:o, s:o, s:I, s:I, s:b, s:I, s:I}", "name",
            control_text(span_from_cstr(origin_shown(rows[i].origin))), "answers",
            (json_int_t)pace->answers, "first_byte_p50_s", seconds_json(pace->median_us),
            "first_byte_p99_s", seconds_json(pace->p99_us), "first_byte_usual_s",
            seconds_json(pace->usual_us), "calls_limit", (json_int_t)calls.limit, "calls_most",
            (json_int_t)calls.most, "calls_lowered", calls.is_lowered, "ended",
            (json_int_t)failures.requests, "failed", (json_int_t)failures.failed);
        check(row != NULL && json_array_append_new(json, row) == 0);
    }
    free(rows);
    return json;
}

// Renders rows without labels, because an endpoint is a setting but everybody may read metrics.
// Leaves out rows with unknown values, so that no alarm fires on them.
void command_origins_metrics(struct origin *const *origins, unsigned count, struct buf *out)
{
    int64_t skew_s = 0, expire_s = 0;
    bool has_skew = false;
    for (unsigned i = 0; i < count; i++) {
        struct origin_times times;
        if (origin_rests(origins[i])) {
            continue;
        }
        origin_times(origins[i], &times);
        has_skew = has_skew || times.has_skew;
        skew_s = llabs(times.skew_s) > llabs(skew_s) ? times.skew_s : skew_s;
        if (times.credentials_expire_s != 0 &&
            (expire_s == 0 || times.credentials_expire_s < expire_s)) {
            expire_s = times.credentials_expire_s;
        }
    }
    buf_append_cstr(out,
                    "# HELP forebay_clock_skew_seconds an origin's clock less ours, by the Date "
                    "of its last answer; of several origins, the one farthest off\n"
                    "# TYPE forebay_clock_skew_seconds gauge\n");
    if (has_skew) {
        buf_printf(out, "forebay_clock_skew_seconds %lld\n", (long long)skew_s);
    }
    buf_append_cstr(out,
                    "# HELP forebay_credentials_expiry_timestamp_seconds when the credentials for "
                    "an origin expire that do so first\n"
                    "# TYPE forebay_credentials_expiry_timestamp_seconds gauge\n");
    if (expire_s != 0) {
        buf_printf(out, "forebay_credentials_expiry_timestamp_seconds %lld\n", (long long)expire_s);
    }
}
