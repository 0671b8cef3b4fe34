// SPDX-License-Identifier: Apache-2.0
// GET and HEAD of an object that may be answered from the cache: hit, partial hit, miss, range.
//
// Before the reply, step by step (steps.def):
//   LOOKUP     one index look-up for the first window; a small object comes with its header in one
//              read
//   DESCRIBE   the version's headers, from the run header
//   FRESHNESS  fresh goes on; stale, or If-Match of another version, asks the home
//   CHECKED    unchanged: as cached. Changed or unknown: the new version's head, body from a fill.
//              Origin down: maybe stale
//   FIRST      no byte at hand: ROUTE (nothing known) or JOIN (version known), until the fill's
//              head has come
//   REPLY      conditions, range, reply head (get_reply.c)
// After it, http pulls slices (get_body.c): from pieces of a fill, from a place (sendfile, or a
// checked read), else the next window is looked up or the missing run joined. The first byte binds
// the reply to its version for good: whatever is found later under another ETag is not used, and a
// 412 cuts.
//
// Ways out of a place: small (header and body in one NOWAIT read), fast (verified and resident:
// sendfile), else an asynchronous read whose checksum is verified before a byte is sent. A bad
// block is dropped by the store and becomes a miss here.
//
// Owns: the view's pins, the version's reference, up to two readers (the current run and the next
// one), one disk read. All of it lives in struct get_state, which stays with the pooled request;
// with a disk read out it is recycled when that ends.

#include "proxy/get_private.h"

#include <stdlib.h>
#include <string.h>

// A change of the subscription of the request `ctx`.
static void serve_get_on_change(void *ctx, struct subscription *sub);

// --- letting go ----------------------------------------------------------------------------------

void get_view_done(struct get_state *g)
{
    if (g->view_open) {
        store_view_done(&g->view);
        g->view_open = false;
    }
}

void get_drop_reader(struct subscription **slot)
{
    if (*slot != NULL) {
        subscription_leave(*slot);
        *slot = NULL;
    }
}

void get_drop_read_buffers(struct get_state *g)
{
    if (g->read_ready) {
        for (unsigned i = 0; i < ARRAY_LEN(g->read.chunks); i++) {
            chunk_unref(g->read.chunks[i]);
            g->read.chunks[i] = NULL;
        }
        g->read_ready = false;
    }
}

void get_forget_version(struct get_state *g)
{
    get_view_done(g);
    store_place_unpin(&g->extra);
    get_drop_reader(&g->check);
    get_drop_reader(&g->readers[0]);
    get_drop_reader(&g->readers[1]);
    store_object_unref(g->object);
    g->object = NULL;
    chunk_unref(g->small_chunk);
    g->small_chunk = NULL;
    g->small = (struct span){0};
    g->have_record = false;
    g->from_origin = false;
}

bool serve_get_done(struct request *r)
{
    struct get_state *g = r->get;
    if (g == NULL || g->key == NULL) {
        return true;
    }
    if (g->reading) { // the read leans on the view's pin and the key
        store_read_cancel(&g->read);
        return false;
    }
    get_forget_version(g);
    get_drop_read_buffers(g);
    store_object_unref(g->refused);
    g->refused = NULL;
    object_key_unref(g->key);
    g->key = NULL;
    return true;
}

struct span serve_get_version(const struct request *r)
{
    const struct get_state *g = r->get;
    return g != NULL && g->key != NULL && g->object != NULL ? g->object->etag : (struct span){0};
}

// Begins anew while nothing has been sent. An object that changes faster than that is passed
// through: the origin alone can say which version is current.
static enum step_result get_restart(struct request *r)
{
    struct get_state *g = get_of(r);
    check(!g->replied);
    get_forget_version(g);
    g->checked = false;
    r->result = RESULT_NONE;
    r->reason = NULL;
    r->collapsed = false;
    if (++g->restarts > PROXY_RESTARTS_MAX) {
        r->result = RESULT_BYPASS;
        r->reason = "changing";
        r->step = REQUEST_PASS;
        return STEP_AGAIN;
    }
    r->step = REQUEST_GET_LOOKUP;
    return STEP_AGAIN;
}

// --- LOOKUP --------------------------------------------------------------------------------------

static void get_begin(struct request *r)
{
    if (r->get == NULL) {
        r->get = malloc(sizeof(*r->get));
        check(r->get != NULL);
    }
    struct get_state *g = r->get;
    // The view is large and written by the look-up.
    memset(g, 0, offsetof(struct get_state, view));
    memset(&g->view_first, 0, sizeof(*g) - offsetof(struct get_state, view_first));
    g->owner = r;
    g->key = request_object_key(r);
    g->is_head = r->http->is_head;
    struct span value;
    if (headers_get(&r->http->headers, SPAN("Range"), &value)) {
        http_range_parse(value, &g->range);
    }
    http_conditions_parse(&r->http->headers, &g->conditions);
    g->needs_head = g->is_head || g->range.kind == HTTP_RANGE_SUFFIX || r->s3.has_part_number ||
                    http_conditions_any(&g->conditions);
    g->client_no_cache = r->pw->proxy->options.obey_no_cache &&
                         headers_get(&r->http->headers, SPAN("Cache-Control"), &value) &&
                         headers_list_has(value, SPAN("no-cache"));
}

void get_view(struct request *r, uint64_t first_byte, uint64_t end_byte)
{
    struct get_state *g = get_of(r);
    get_view_done(g);
    uint64_t end = min_u64(end_byte, first_byte + STORE_WINDOW_MAX);
    store_lookup(r->pw->worker, r->pw->store, g->key->hash, first_byte, end,
                 fill_floor(r->pw->fill, g->key->hash), &g->view);
    g->view_open = true;
    g->view_first = first_byte;
    g->view_end = end;
}

// The bytes the client seems to want, before the size is known.
static void get_wanted(const struct get_state *g, uint64_t *ret_first, uint64_t *ret_end)
{
    *ret_first = 0;
    *ret_end = STORE_WINDOW_MAX;
    if (g->range.kind == HTTP_RANGE_FIRST || g->range.kind == HTTP_RANGE_FIRST_LAST) {
        *ret_first = min_u64(g->range.first, UINT64_MAX / 2);
        *ret_end = *ret_first + STORE_WINDOW_MAX;
        if (g->range.kind == HTTP_RANGE_FIRST_LAST) {
            *ret_end = min_u64(*ret_end - 1, max_u64(g->range.last, *ret_first)) + 1;
        }
    }
}

static bool get_is_strict(const struct request *r)
{
    return r->rule->freshness == PROXY_FRESHNESS_STRICT || r->get->client_no_cache;
}

// Asks the home whether the version, or which one, is current.
static enum step_result get_check(struct request *r)
{
    struct get_state *g = get_of(r);
    struct fill_ask ask = {
        .key = g->key, .object = g->object, .revalidate = true, .strict = get_is_strict(r)};
    g->check = subscription_ask(r->pw->fill, &ask, serve_get_on_change, r);
    r->step = REQUEST_GET_CHECKED;
    return STEP_WAIT;
}

enum step_result serve_get_step_lookup(struct request *r)
{
    if (r->get == NULL || r->get->key == NULL) {
        get_begin(r);
    }
    struct get_state *g = get_of(r);
    uint64_t first = 0, end = 0;
    get_wanted(g, &first, &end);
    get_view(r, first, end);
    // Rule 9: what answered 412 may still be in the index here; the home has it removed.
    bool refused = g->refused != NULL && g->view.found &&
                   g->view.etag_hash == hash64(g->refused->etag.ptr, g->refused->etag.len, 0);
    if (!g->view.found || g->skip_index || refused) {
        if (r->hops > 0 && !origin_has_answered(r->origin)) {
            r->result = RESULT_BYPASS;
            r->reason = "hops";
            r->step = REQUEST_PASS;
            return STEP_AGAIN;
        }
        if (g->needs_head) {
            return get_check(r);
        }
        r->step = REQUEST_GET_FIRST;
        return STEP_AGAIN;
    }
    g->have_record = true;
    r->known = true;
    g->etag_hash = g->view.etag_hash;
    g->stale_allowed = freshness_stale_allowed(r->rule, &g->view);
    r->step = REQUEST_GET_DESCRIBE;
    if (g->view.place_count == 1 && g->view.size_bytes <= STORE_SMALL_MAX &&
        g->view.places[0].payload_len == g->view.size_bytes) {
        enum err err = store_read_small(r->pw->worker, r->pw->store, &g->view.places[0],
                                        g->key->hash, g->key->realm, g->key->bucket, g->key->key,
                                        &g->object, &g->small_chunk, &g->small);
        if (err == ERR_OK) {
            r->step = REQUEST_GET_FRESHNESS;
        }
    }
    return STEP_AGAIN;
}

// --- DESCRIBE ------------------------------------------------------------------------------------

static enum step_result get_unreadable(struct request *r)
{
    get_of(r)->skip_index = true; // the index names what the disk does not give: go to the origin
    return get_restart(r);
}

enum step_result serve_get_step_describe(struct request *r)
{
    struct get_state *g = get_of(r);
    if (g->object != NULL) {
        r->step = REQUEST_GET_FRESHNESS;
        return STEP_AGAIN;
    }
    struct store_place *place = g->view.place_count > 0 ? &g->view.places[0] : &g->view.any;
    if (place->segment == NULL) {
        return get_unreadable(r);
    }
    enum err err = store_object_get(r->pw->worker, r->pw->store, place, g->key->hash, g->key->realm,
                                    g->key->bucket, g->key->key, &g->object);
    if (err == ERR_OK) {
        r->step = REQUEST_GET_FRESHNESS;
        return STEP_AGAIN;
    }
    if (err != ERR_AGAIN) {
        return get_unreadable(r);
    }
    memset(&g->read, 0, sizeof(g->read));
    g->read.store = r->pw->store;
    g->read.place = *place;
    g->read.header = true;
    g->read.hash = g->key->hash;
    g->read.realm = g->key->realm;
    g->read.bucket = g->key->bucket;
    g->read.key = g->key->key;
    g->read.done = get_on_read_done;
    g->reading = true;
    g->read_header = true;
    store_read_start(r->pw->worker, &g->read);
    return STEP_WAIT;
}

void get_on_header_read(struct request *r)
{
    struct get_state *g = get_of(r);
    if (g->read.err == ERR_OK) {
        g->object = g->read.object;
        g->read.object = NULL;
        request_go(r);
        return;
    }
    r->going = true; // get_unreadable() answers a step; give it one
    enum step_result result = get_unreadable(r);
    r->going = false;
    if (result == STEP_AGAIN) {
        request_go(r);
    }
}

// --- FRESHNESS and CHECKED -----------------------------------------------------------------------

enum step_result serve_get_step_freshness(struct request *r)
{
    struct get_state *g = get_of(r);
    bool stale = freshness_check(r->rule, &g->view) == FRESHNESS_STALE || g->client_no_cache;
    bool other = g->conditions.has_if_match &&
                 !http_etag_list_matches(g->conditions.if_match, g->object->etag);
    if (!g->checked && (stale || other)) {
        return get_check(r);
    }
    r->step = REQUEST_GET_REPLY;
    return STEP_AGAIN;
}

enum step_result serve_get_step_checked(struct request *r)
{
    struct get_state *g = get_of(r);
    struct subscription *sub = g->check;
    if (sub == NULL || sub->state != SUBSCRIPTION_ENDED) {
        return STEP_WAIT;
    }
    r->attempts++;
    if (sub->outcome == OUTCOME_REJOIN) {
        return get_restart(r);
    }
    enum err err = sub->err;
    if (err == ERR_NOT_MODIFIED) {
        get_drop_reader(&g->check);
        g->checked = true;
        r->result = RESULT_REVALIDATED;
        r->reason = g->client_no_cache ? "client-no-cache" : NULL;
        r->step = REQUEST_GET_REPLY;
        return STEP_AGAIN;
    }
    if (err == ERR_OK) {
        struct store_object *found = store_object_ref(sub->answer);
        get_forget_version(g);
        g->object = found;
        g->etag_hash = hash64(found->etag.ptr, found->etag.len, 0);
        g->checked = true;
        r->step = REQUEST_GET_REPLY;
        return STEP_AGAIN;
    }
    bool origin_failed = error_row(err)->status == 503 || err == ERR_INTERNAL;
    if (origin_failed && g->have_record && g->stale_allowed && !g->client_no_cache) {
        get_drop_reader(&g->check);
        stats_add(COUNTER_stale_served, 1);
        g->checked = true;
        r->result = RESULT_STALE;
        r->step = REQUEST_GET_REPLY;
        return STEP_AGAIN;
    }
    return request_fail_by_origin(r, err, sub->error_answer);
}

// --- asking for bytes ----------------------------------------------------------------------------

uint32_t get_block_size(const struct request *r)
{
    const struct get_state *g = r->get;
    return g->have_record && g->view_open && g->view.found ? g->view.block_size_bytes
           : g->object != NULL                             ? g->object->block_size_bytes
                                                           : r->rule->block_size_bytes;
}

struct subscription *get_ask(struct request *r, uint64_t byte, uint64_t end)
{
    struct get_state *g = get_of(r);
    struct fill_ask ask = {.key = g->key,
                           .object = g->object,
                           .refused = g->refused,
                           .strict = g->object == NULL && get_is_strict(r),
                           .has_sent = g->replied,
                           .skip_index = g->skip_index,
                           .first_byte = byte,
                           .block_size_bytes = get_block_size(r)};
    uint64_t size = ask.block_size_bytes;
    ask.block = byte / size;
    uint64_t last_block = end > byte ? (end - 1) / size : ask.block;
    uint64_t count = min_u64(last_block - ask.block + 1, STORE_RUN_BLOCKS_MAX);
    for (uint64_t i = 1; i < count; i++) {
        if (get_place(g, (ask.block + i) * size) != NULL) {
            count = i;
        }
    }
    ask.block_count = (uint32_t)count;
    struct subscription *sub = subscription_ask(r->pw->fill, &ask, serve_get_on_change, r);
    store_object_unref(g->refused); // the home is told once
    g->refused = NULL;
    return sub;
}

enum step_result serve_get_step_first(struct request *r)
{
    struct get_state *g = get_of(r);
    struct subscription *sub = g->readers[0];
    if (sub == NULL) {
        uint64_t first = g->pos, end = g->end;
        if (g->object == NULL) {
            get_wanted(g, &first, &end);
        }
        g->readers[0] = get_ask(r, first, end);
        return STEP_WAIT;
    }
    bool ended = sub->state == SUBSCRIPTION_ENDED;
    if (sub->answer != NULL) { // HEAD, or PLACE
        if (g->object != NULL && !span_equal(g->object->etag, sub->answer->etag)) {
            return get_restart(r); // conditions were judged on another version
        }
        if (g->object == NULL) {
            g->object = store_object_ref(sub->answer);
            g->etag_hash = hash64(g->object->etag.ptr, g->object->etag.len, 0);
        }
        g->from_origin = true;
        r->step = REQUEST_GET_REPLY;
        return STEP_AGAIN;
    }
    if (!ended) {
        return STEP_WAIT;
    }
    r->attempts++;
    if (sub->outcome == OUTCOME_ERROR && sub->err == ERR_INVALID_RANGE && g->object == NULL) {
        get_drop_reader(&g->readers[0]);
        return get_check(r); // HEAD tells an empty object from a range past the end
    }
    if (sub->outcome == OUTCOME_ERROR) {
        return request_fail_by_origin(r, sub->err, sub->error_answer);
    }
    // Others' request was sent before this one came: ask which version is current now.
    g->needs_head |= sub->outcome == OUTCOME_REJOIN && sub->ask.strict;
    if (sub->outcome == OUTCOME_GONE && g->object != NULL) {
        store_object_unref(g->refused);
        g->refused = store_object_ref(g->object);
    }
    return get_restart(r);
}

static void serve_get_on_change(void *ctx, struct subscription *sub)
{
    struct request *r = ctx;
    struct get_state *g = get_of(r);
    r->collapsed |= sub->joined;
    if (r->ended) {
        return;
    }
    if (!g->replied) {
        if (sub == g->check || sub == g->readers[0]) {
            request_go(r);
        }
        return;
    }
    http_reply_ready(r->x);
}
