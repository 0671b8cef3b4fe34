// SPDX-License-Identifier: Apache-2.0
// Replaces the door of http and the request around serve_get.c: clients that ask and take slices,
// and writers. Judges what each client sees.
#include "proxy/get/get_private.h"
#include "world_private.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

// --- http ----------------------------------------------------------------------------------------

bool http_exchange_can_sendfile(const struct http_exchange *x)
{
    (void)x;
    return world.options.pages_percent > 0;
}

bool http_reply_head_sent(const struct http_exchange *x)
{
    return world.clients[x->client].replied;
}

void http_reply_ready(struct http_exchange *x)
{
    struct client *c = &world.clients[x->client];
    c->wants = c->replied && !c->ended;
}

static void client_end(struct client *c, enum client_outcome outcome)
{
    check(!c->ended);
    c->ended = true;
    c->wants = false;
    c->outcome = outcome;
}

// A version was current at the origin within the ttl, unless the origin fails.
static void client_meets_ttl(const struct client *c, uint64_t replaced_us)
{
    bool is_judged = world.options.ttl && c->result != RESULT_STALE && replaced_us != 0;
    cr_assert(!is_judged || replaced_us + world.rule.ttl_ms * 1000 >= c->start_us,
              "a version that was replaced %llu ms before: seed %llu",
              (unsigned long long)(c->start_us - replaced_us) / 1000,
              (unsigned long long)world.options.seed);
}

static void client_names_version(struct client *c, int version)
{
    client_meets_ttl(c, c->key->replaced_us[version]);
    c->version = version;
    cr_assert(version >= c->floor_version, "stale read: version %d of at least %d, seed %llu",
              version, c->floor_version, (unsigned long long)world.options.seed);
    if (!world.options.no_etag) { // without names nobody can say which is newer
        c->key->seen_version = max_int(c->key->seen_version, version);
    }
}

// Those that a reply names are of its own version.
static void client_names_checksums(struct client *c, struct span lines)
{
    struct span line;
    while (c->version != 0 && lines.len > 0 && span_split(&lines, '\n', &line)) {
        char text[64];
        snprintf(text, sizeof(text), "x-amz-checksum-crc32: v%d", c->version);
        if (span_starts_with(line, SPAN("x-amz-checksum-"))) {
            cr_assert(span_starts_with(line, span_from_cstr(text)),
                      "checksums of another version: seed %llu",
                      (unsigned long long)world.options.seed);
            c->has_checksums = true;
        }
    }
}

static void client_names_edition(struct client *c, struct span lines)
{
    struct span line;
    uint64_t edition = 0;
    while (lines.len > 0 && span_split(&lines, '\n', &line)) {
        const struct span name = SPAN("x-amz-meta-edition: ");
        if (span_starts_with(line, name)) {
            check(
                span_to_u64((struct span){line.ptr + name.len, line.len - name.len - 1}, &edition));
            cr_assert((int)edition >= c->floor_edition,
                      "stale headers: edition %d of at least %d, seed %llu", (int)edition,
                      c->floor_edition, (unsigned long long)world.options.seed);
            client_meets_ttl(c, c->key->redescribed_us[edition]);
            c->key->seen_edition = max_int(c->key->seen_edition, (int)edition);
        }
    }
}

// Only a client with a condition is answered that it does not hold, and only if that may be so.
static void client_meets_condition(const struct client *c, unsigned status)
{
    unsigned long long seed = (unsigned long long)world.options.seed;
    bool is_judged = status == 304 || status == 412;
    cr_assert(!is_judged || http_conditions_any(&c->r->get->conditions),
              "%u without a condition: seed %llu", status, seed);
    // While the origin fails, a client may get a stale version if that is allowed.
    bool may_be_old = world.options.no_etag || world.options.fail_percent > 0;
    bool holds =
        !may_be_old && c->if_match == c->start_version && c->start_version == c->key->version;
    cr_assert(status != 412 || !holds, "412 although it holds: seed %llu", seed);
}

void http_reply_start(struct http_exchange *x, const struct http_reply *reply)
{
    struct client *c = &world.clients[x->client];
    check(!c->replied);
    c->replied = true;
    c->status = reply->status;
    client_meets_condition(c, reply->status);
    c->result = c->r->result;
    c->length = c->http.is_head ? 0 : reply->length;
    if (reply->status >= 400) {
        client_end(c, CLIENT_ERROR);
        return;
    }
    struct span etag = serve_get_version(c->r);
    if (reply->status == 304 && etag.len == 0) { // the origin's own
        (void)headers_get(reply->headers, SPAN("ETag"), &etag);
    }
    if (etag.len > 0) {
        client_names_version(c, version_of(etag));
        // A reply to HEAD has the length that the origin named, which nothing contradicts.
        uint64_t size = c->key->size_bytes[c->version];
        bool may_lack = c->http.is_head && world.has_shortened;
        cr_assert(reply->status != 200 || may_lack || reply->length == size,
                  "a length of another version");
    }
    client_names_checksums(c, reply->rendered);
    client_names_edition(c, reply->rendered);
    x->source = reply->source;
    cr_assert(all_bytes_are(reply->body, letter_of(c->key, c->version)), "a wrong byte");
    c->received = reply->body.len;
    c->wants = true;
}

// All of it leaves, or a part, and the source has the rest back.
static void client_take_range(struct client *c, struct file_range *range)
{
    const struct segment *s = range->release_ctx;
    if (c->version == 0) {
        client_names_version(c, s->version);
    }
    cr_assert(s->key == c->key && s->version == c->version, "pages of another version: seed %llu",
              (unsigned long long)world.options.seed);
    bool recalls = world.options.pages_percent < 100 && rnd(4) == 0;
    uint64_t unsent = recalls ? rnd((unsigned)range->len + 1) : 0;
    c->received += range->len - unsent;
    cr_assert(c->received <= c->length);
    range->release(range->release_ctx);
    if (unsent > 0) {
        c->x->source->recall(c->x->source, unsent);
    }
    c->wants = true;
}

static void client_take(struct client *c, struct http_slice *slice)
{
    if (slice->kind == HTTP_SLICE_FILE) {
        client_take_range(c, &slice->range);
        return;
    }
    if (c->version == 0) { // no ETag: the first byte names it
        client_names_version(c, slice->bytes.ptr[0] - letter_of(c->key, 0));
    }
    cr_assert(all_bytes_are(slice->bytes, letter_of(c->key, c->version)),
              "a byte is of another version than the ETag: seed %llu",
              (unsigned long long)world.options.seed);
    c->received += slice->bytes.len;
    cr_assert(c->received <= c->length);
    if (slice->release != NULL) {
        slice->release(slice->release_ctx);
    }
    c->wants = true;
}

void client_pull(struct client *c)
{
    c->wants = false;
    world.current = c->worker;
    if (c->x->source == NULL) {
        cr_assert(c->received == c->length || c->status == 304, "a body without its source");
        client_end(c, CLIENT_COMPLETE);
        turn_end(c->worker);
        return;
    }
    struct http_slice slice = {0};
    switch (c->x->source->pull(c->x->source, &slice)) {
    case HTTP_PULL_SLICE:
        client_take(c, &slice);
        break;
    case HTTP_PULL_END:
        cr_assert(c->received == c->length, "a clean end before the announced length");
        client_end(c, CLIENT_COMPLETE);
        break;
    case HTTP_PULL_CUT:
        client_end(c, CLIENT_CUT);
        break;
    case HTTP_PULL_WAIT:
        break;
    }
    turn_end(c->worker);
}

// --- the request around serve_get.c --------------------------------------------------------------

static enum step_result step_pass(struct request *r)
{
    r->step = REQUEST_WAIT;
    client_end(&world.clients[r->x->client], CLIENT_PASSED);
    return STEP_DONE;
}

static enum step_result step_wait(struct request *r)
{
    (void)r;
    return STEP_WAIT;
}

typedef enum step_result step_fn(struct request *r);

void request_go(struct request *r)
{
    static step_fn *const steps[] = {
        [REQUEST_GET_LOOKUP] = serve_get_step_lookup,
        [REQUEST_GET_DESCRIBE] = serve_get_step_describe,
        [REQUEST_GET_FRESHNESS] = serve_get_step_freshness,
        [REQUEST_GET_REVALIDATED] = serve_get_step_revalidated,
        [REQUEST_GET_FIRST] = serve_get_step_first,
        [REQUEST_GET_REPLY] = get_reply_step,
        [REQUEST_PASS] = step_pass,
        [REQUEST_WAIT] = step_wait,
    };
    if (r->going || r->ended) {
        return;
    }
    r->going = true;
    enum step_result result = STEP_AGAIN;
    for (unsigned i = 0; result == STEP_AGAIN; i++) {
        cr_assert(i < 64 && r->step < ARRAY_LEN(steps) && steps[r->step] != NULL,
                  "step %d at turn %u: seed %llu", (int)r->step, i,
                  (unsigned long long)world.options.seed);
        result = steps[r->step](r);
    }
    r->going = false;
}

static void judge_not_found(struct client *c)
{
    bool was_missing = false;
    for (int v = c->floor_version; v <= c->key->version; v++) {
        was_missing |= c->key->missing[v];
    }
    cr_assert(was_missing, "404 of an object that was there: seed %llu",
              (unsigned long long)world.options.seed);
    int missing = c->floor_version;
    while (!c->key->missing[missing]) {
        missing++;
    }
    c->key->seen_version = max_int(c->key->seen_version, missing);
}

enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    (void)detail;
    struct client *c = &world.clients[r->x->client];
    c->err = err;
    if (err == ERR_NO_SUCH_KEY) {
        judge_not_found(c);
    } else if (err == ERR_PRECONDITION_FAILED && serve_get_version(r).len > 0) {
        client_names_version(c, version_of(serve_get_version(r)));
    }
    struct http_reply reply = {.status = error_row(err)->status};
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

enum step_result request_fail_by_origin(struct request *r, enum err err, struct span packed)
{
    (void)packed;
    return request_fail(r, err, NULL);
}

void request_header(struct request *r, struct headers *headers, const char *name, struct span value)
{
    (void)r, (void)headers, (void)name, (void)value;
}

void request_common_headers(struct request *r, struct headers *headers)
{
    (void)r, (void)headers;
}

struct span request_lines(struct request *r, struct span before, struct span behind,
                          struct span stored)
{
    static char text[2 * STORE_HEADERS_MAX]; // judged at once
    struct span_writer w = {text, text + sizeof(text)};
    (void)r, (void)before;
    span_writer_put(&w, SPAN("Server: played\r\n"));
    span_writer_put(&w, behind); // checksums that the record names
    span_writer_put(&w, stored);
    return (struct span){text, (size_t)(w.at - text)};
}

struct object_key *object_key_of(struct world_key *key)
{
    static const char names[] = "01";
    struct object_key from = {
        .key = {names + key->index, 1},
        .limits = {.cache = world.rule.cache, .block_size_bytes = world.rule.block_size_bytes}};
    return object_key_new(NULL, &from);
}

const struct sigv4_credentials *credentials_of(unsigned principal)
{
    check(principal < WORLD_PRINCIPALS); // nothing looks into the credentials
    return principal == 0 ? NULL : (const struct sigv4_credentials *)&world.principals[principal];
}

struct object_key *request_object_key(struct request *r)
{
    const struct client *c = &world.clients[r->x->client];
    struct object_key *key = object_key_of(c->key);
    key->credentials = credentials_of(c->principal);
    return key;
}

// After each object comes the other one, no matter which was read before.
bool series_next(struct series_table *table, const struct object_key *key,
                 char ret_text[S3_KEY_MAX], struct span *ret_name)
{
    (void)table;
    ret_text[0] = key->key.ptr[0] == '0' ? '1' : '0';
    *ret_name = (struct span){ret_text, 1};
    return true;
}

bool series_begin(struct series_table *table, const struct object_key *key)
{
    (void)table, (void)key;
    return false;
}

void series_end(struct series_table *table)
{
    (void)table;
}

void series_refuse(struct series_table *table, const struct object_key *key, bool is_gone)
{
    (void)table, (void)key, (void)is_gone;
}

bool series_missed(struct series_table *table, const struct object_key *key)
{
    (void)table, (void)key;
    return true;
}

struct object_key *request_object_key_beside(struct request *r, struct span key)
{
    (void)r;
    return object_key_of(&world.keys[key.ptr[0] - '0']);
}

const struct proxy_rule *rules_find(const struct live *live, struct span bucket, struct span key)
{
    (void)live, (void)bucket, (void)key;
    return &world.rule;
}

unsigned rules_group(const struct live *live, const struct proxy_rule *rule, struct span bucket,
                     struct span key)
{
    (void)live, (void)bucket, (void)key;
    return rule->group;
}

bool gate_allows(const struct request *r, unsigned rights, struct span key)
{
    (void)r, (void)rights, (void)key;
    return true;
}

void request_recycle(struct request *r)
{
    free(r->spare_key);
    free(r->get);
    free(r);
}

// --- clients -------------------------------------------------------------------------------------

static void client_header(struct client *c, struct span name, const char *text)
{
    struct span value = arena_copy(c->arena, span_from_cstr(text));
    check(headers_add(&c->http.headers, c->arena, name, value));
}

static void client_headers(struct client *c, const struct client_ask *ask)
{
    char text[64], etag[32];
    if (ask->suffix != 0) {
        snprintf(text, sizeof(text), "bytes=-%llu", (unsigned long long)ask->suffix);
        client_header(c, SPAN("Range"), text);
    } else if (ask->has_range && ask->last == UINT64_MAX) {
        snprintf(text, sizeof(text), "bytes=%llu-", (unsigned long long)ask->first);
        client_header(c, SPAN("Range"), text);
    } else if (ask->has_range) {
        snprintf(text, sizeof(text), "bytes=%llu-%llu", (unsigned long long)ask->first,
                 (unsigned long long)ask->last);
        client_header(c, SPAN("Range"), text);
    }
    if (ask->if_match != 0) {
        snprintf(text, sizeof(text), "%s", etag_of(ask->if_match, etag, sizeof(etag)).ptr);
        client_header(c, SPAN("If-Match"), text);
    }
    if (ask->if_none_match != 0) {
        snprintf(text, sizeof(text), "%s", etag_of(ask->if_none_match, etag, sizeof(etag)).ptr);
        client_header(c, SPAN("If-None-Match"), text);
    }
    if (ask->checksums) {
        client_header(c, SPAN("x-amz-checksum-mode"), "ENABLED");
    }
    if (ask->no_cache) {
        client_header(c, SPAN("Cache-Control"), "no-cache");
    }
}

int client_start(const struct client_ask *ask)
{
    int i = 0;
    while (world.clients[i].used) {
        i++;
        check(i < MAX_CLIENTS);
    }
    struct client *c = &world.clients[i];
    bool strict = world.options.strict || ask->no_cache || world.key->doubts > 0;
    int given = max_int(world.key->acked_version, world.key->seen_version);
    *c = (struct client){.used = true,
                         .worker = &world.workers[ask->worker],
                         .key = world.key,
                         .principal = ask->principal,
                         .start_version = world.key->version,
                         .start_us = world.now_us,
                         .if_match = ask->if_match,
                         .slow = rnd(100) < world.options.slow_percent,
                         .floor_version = strict ? world.key->version : given,
                         .floor_edition = strict ? world.key->edition : world.key->seen_edition};
    c->arena = arena_new(1 << 20);
    c->http.method = ask->head ? SPAN("HEAD") : SPAN("GET");
    c->http.is_head = ask->head;
    client_headers(c, ask);
    c->x = calloc(1, sizeof(*c->x));
    c->r = calloc(1, sizeof(*c->r));
    check(c->x != NULL && c->r != NULL);
    c->x->client = i;
    c->r->magic = REQUEST_MAGIC;
    c->r->pw = &world.pw[ask->worker];
    c->r->live = &world.live;
    c->r->x = c->x;
    c->r->http = &c->http;
    c->r->arena = c->arena;
    c->r->rule = &world.rule;
    c->r->origin = (struct origin *)&world; // nothing here looks into it
    world.current = c->worker;
    c->r->step = REQUEST_GET_LOOKUP;
    request_go(c->r);
    turn_end(c->worker);
    return i;
}

int client_get(unsigned worker, uint64_t first, uint64_t last)
{
    return client_start(&(struct client_ask){.worker = worker,
                                             .has_range = first != 0 || last != UINT64_MAX,
                                             .first = first,
                                             .last = last});
}

int client_head(unsigned worker)
{
    return client_start(&(struct client_ask){.worker = worker, .head = true});
}

void client_tell_done(struct client *c)
{
    c->told = true;
    struct request *r = c->r;
    world.current = c->worker;
    r->ended = true;
    serve_get_done(r);
    request_recycle(r);
    turn_end(c->worker);
    free(c->x);
    arena_free(c->arena);
    c->x = NULL;
    c->r = NULL;
}

void client_leave(int client)
{
    struct client *c = &world.clients[client];
    if (!c->ended) {
        client_end(c, CLIENT_LEFT);
        client_tell_done(c);
    }
}

enum client_outcome client_outcome(int client)
{
    return world.clients[client].outcome;
}

int client_version(int client)
{
    return world.clients[client].version;
}

enum err client_err(int client)
{
    return world.clients[client].err;
}

unsigned client_status(int client)
{
    return world.clients[client].status;
}

uint64_t client_length(int client)
{
    return world.clients[client].length;
}

uint64_t client_received(int client)
{
    return world.clients[client].received;
}

bool client_has_checksums(int client)
{
    return world.clients[client].has_checksums;
}

enum request_result client_result(int client)
{
    return world.clients[client].result;
}

// --- readers past the cache ----------------------------------------------------------------------

static void on_told(void *ctx, struct subscription *sub)
{
    struct teller *t = ctx;
    check(!t->answered && sub->state == SUBSCRIPTION_ENDED);
    t->answered = true;
    t->key->seen_version = max_int(t->key->seen_version, t->version);
    subscription_leave(sub);
}

int teller_start(unsigned worker, int version)
{
    int i = 0;
    while (world.tellers[i].used) {
        i++;
        check(i < MAX_TELLERS);
    }
    struct teller *t = &world.tellers[i];
    *t = (struct teller){
        .used = true, .key = world.key, .worker = &world.workers[worker], .version = version};
    struct object_key *key = object_key_of(world.key);
    struct store_object *object = NULL;
    char text[32];
    if (version != 0) {
        const struct span none = {NULL, 0};
        object = store_object_new(key->hash, key->realm, key->bucket, key->key,
                                  etag_of(version, text, sizeof(text)), none, none, 0,
                                  key->limits.block_size_bytes, 0);
    }
    struct fill_ask ask = {
        .kind = FILL_ASK_TELL, .key = key, .object = object, .asked_us = world.now_us};
    world.current = t->worker;
    t->sub = subscription_ask(world.pw[worker].fill, &ask, on_told, t);
    turn_end(t->worker);
    store_object_unref(object);
    object_key_unref(key);
    return i;
}

bool teller_answered(int teller)
{
    return world.tellers[teller].answered;
}

// --- writers -------------------------------------------------------------------------------------

static void on_write_ready(struct key_write *kw)
{
    struct writer *w = container_of(kw, struct writer, kw);
    check(!w->ready);
    w->ready = true;
    w->refused = kw->err != ERR_OK;
    w->key->doubts += kw->is_doubt;
}

static void on_write_ended(struct key_write *kw)
{
    struct writer *w = container_of(kw, struct writer, kw);
    check(w->wrote && !w->replied);
    w->replied = true;
    w->key->acked_version = w->version > w->key->acked_version ? w->version : w->key->acked_version;
    object_key_unref(kw->key);
    open_keys_close(w->open);
    w->open = NULL;
}

static int begin_write(unsigned worker, bool is_doubt)
{
    int i = 0;
    while (world.writers[i].used) {
        i++;
        check(i < MAX_WRITERS);
    }
    struct writer *w = &world.writers[i];
    *w = (struct writer){.used = true, .key = world.key};
    w->kw.key = object_key_of(world.key);
    w->kw.on_ready = on_write_ready;
    w->kw.on_ended = on_write_ended;
    w->kw.is_doubt = is_doubt;
    world.current = &world.workers[worker];
    if (is_doubt) {
        invalidate_begin(world.pw[worker].fill, &w->kw);
    } else {
        const struct object_key *key = w->kw.key;
        w->open = open_keys_new(world.pw[worker].fill, 1);
        open_keys_add(w->open, key->origin, key->bucket, key->key);
        invalidate_listed_begin(world.pw[worker].fill, &w->kw);
    }
    turn_end(&world.workers[worker]);
    return i;
}

int writer_begin(unsigned worker)
{
    return begin_write(worker, false);
}

int doubt_begin(unsigned worker)
{
    return begin_write(worker, true);
}

bool writer_ready(int writer)
{
    return world.writers[writer].ready;
}

static void end_write(struct writer *w)
{
    w->wrote = true;
    world.current = w->kw.at->worker;
    if (w->open != NULL) {
        invalidate_listed_end(w->kw.at, &w->kw);
    } else {
        invalidate_end(w->kw.at, &w->kw);
    }
    turn_end(w->kw.at->worker);
}

void writer_write(int writer)
{
    struct writer *w = &world.writers[writer];
    check(w->ready && !w->wrote);
    if (!w->refused) {
        doubt_apply(writer);
    }
    end_write(w);
}

void doubt_apply(int writer)
{
    struct writer *w = &world.writers[writer];
    struct world_key *before = world.key;
    check(w->ready && !w->wrote);
    world.key = w->key;
    origin_overwrite();
    world.key = before;
    w->version = w->key->version;
}

void doubt_end(int writer)
{
    struct writer *w = &world.writers[writer];
    check(w->ready && !w->wrote && w->kw.is_doubt);
    w->key->doubts--;
    end_write(w);
}

bool writer_refused(int writer)
{
    return world.writers[writer].refused;
}

bool writer_replied(int writer)
{
    return world.writers[writer].replied;
}
