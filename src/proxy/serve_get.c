// SPDX-License-Identifier: Apache-2.0
// GET and HEAD of an object that may be answered from the cache: hit, partial hit, miss, range.
//
// Before the reply:
//   LOOKUP     one index look-up for the first window; a small object comes with its header in one
//   read DESCRIBE   the version's headers, from the run header FRESHNESS  fresh goes on; stale (or
//   If-Match of another version) asks the home: CHECKED CHECKED    unchanged: as cached. Changed or
//   unknown: the new version's head, body from a fill. Origin down: maybe stale FIRST      no byte
//   at hand: ROUTE (nothing known) or JOIN (version known), until the fill's head has come REPLY
//   conditions, range, reply head
// After it, http pulls slices (get_pull): from pieces of a fill, from a place (sendfile, or a
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

#include "proxy/proxy_private.h"

#include <stdlib.h>
#include <string.h>

#define GET_AGAIN_MAX 16u // look-ups that lead nowhere without a byte of progress
#define GET_READ_BYTES STORE_READ_MAX

struct get_state {
    struct request *owner;
    bool is_head;
    bool needs_head; // suffix range, condition or partNumber: an unknown object is described first
    struct http_range range;
    struct http_conditions conditions;
    bool client_no_cache;

    bool view_open;
    struct store_view view;
    uint64_t view_first, view_end; // bytes the view covers
    struct store_place extra;      // pinned by a fill's answer; before the index shows it
    bool have_record;              // the version is the index's
    bool checked;                  // the origin has confirmed it for this request
    bool stale_allowed;

    struct store_object *object; // the version answered with (reference)
    uint64_t etag_hash;
    struct chunk *small_chunk;
    struct span small;

    struct object_key *key; // made on the first look-up
    struct reader *check;
    struct reader *readers[2];
    struct store_object *refused; // answered 412: the home is told
    bool skip_index;              // what the index names could not be read
    unsigned restarts, again;

    bool replied;
    bool from_origin;         // first bytes come from a fill
    uint64_t first, end, pos; // bytes of the object to send, and how far
    uint64_t buffer_until;    // a range was recalled: bytes below this go by the read way

    struct store_read read;
    bool reading, read_ready;
    unsigned read_span; // next span to hand out
    bool read_header;
};

static enum http_pull get_pull(struct http_source *source, struct http_slice *ret_slice);
static void get_recall(struct http_source *source, uint64_t unsent);
static void on_read_done(struct store_read *read);

static struct get_state *get_of(struct request *r)
{
    check(r->get != NULL);
    return r->get;
}

// --- letting go
// ---------------------------------------------------------------------------------------------------

static void get_view_done(struct get_state *g)
{
    if (g->view_open) {
        store_view_done(&g->view);
        g->view_open = false;
    }
}

static void get_drop_reader(struct reader **slot)
{
    if (*slot != NULL) {
        reader_drop(*slot);
        *slot = NULL;
    }
}

static void get_drop_read_buffers(struct get_state *g)
{
    if (g->read_ready) {
        for (unsigned i = 0; i < ARRAY_LEN(g->read.chunks); i++) {
            chunk_unref(g->read.chunks[i]);
            g->read.chunks[i] = NULL;
        }
        g->read_ready = false;
    }
}

// Everything that belongs to the version tried so far.
static void get_forget_version(struct get_state *g)
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

// --- LOOKUP
// ---------------------------------------------------------------------------------------------------------

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
                         header_list_has(value, SPAN("no-cache"));
}

static void get_view(struct request *r, uint64_t first_byte, uint64_t end_byte)
{
    struct get_state *g = get_of(r);
    get_view_done(g);
    uint64_t end = min_u64(end_byte, first_byte + STORE_WINDOW_MAX);
    store_lookup(r->pw->worker, r->pw->store, g->key->hash, first_byte, end,
                 bar_floor(r->pw, g->key->hash), &g->view);
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

static struct reader *get_check(struct request *r)
{
    struct get_state *g = get_of(r);
    struct reader *reader = reader_new(r->pw, r, g->key);
    reader->object = g->object != NULL ? store_object_ref(g->object) : NULL;
    reader->check_strict = get_is_strict(r);
    g->check = reader;
    r->step = REQUEST_GET_CHECKED;
    reader_check(reader);
    return reader;
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
        if (g->needs_head) {
            (void)get_check(r);
            return STEP_WAIT;
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

// --- DESCRIBE
// --------------------------------------------------------------------------------------------------------

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
    g->read.done = on_read_done;
    g->reading = true;
    g->read_header = true;
    store_read_start(r->pw->worker, &g->read);
    return STEP_WAIT;
}

static void on_header_read(struct request *r)
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

// --- FRESHNESS and CHECKED
// -------------------------------------------------------------------------------------------

enum step_result serve_get_step_freshness(struct request *r)
{
    struct get_state *g = get_of(r);
    bool stale = freshness_check(r->rule, &g->view) == FRESHNESS_STALE || g->client_no_cache;
    bool other = g->conditions.has_if_match &&
                 !http_etag_list_matches(g->conditions.if_match, g->object->etag);
    if (!g->checked && (stale || other)) {
        (void)get_check(r);
        return STEP_WAIT;
    }
    r->step = REQUEST_GET_REPLY;
    return STEP_AGAIN;
}

static enum step_result get_fail_from(struct request *r, enum err err, struct span document)
{
    struct s3_error_detail detail = {0};
    struct s3_error_body body;
    if (document.len > 0 && s3_error_read(r->arena, document, &body)) {
        detail.message = arena_copy(r->arena, body.message);
    }
    return request_fail(r, err, &detail);
}

enum step_result serve_get_step_checked(struct request *r)
{
    struct get_state *g = get_of(r);
    struct reader *reader = g->check;
    if (reader == NULL || reader->state != READER_ENDED) {
        return STEP_WAIT;
    }
    r->attempts++;
    if (reader->outcome == OUTCOME_REJOIN) {
        return get_restart(r);
    }
    enum err err = reader->err;
    if (err == ERR_NOT_MODIFIED) {
        get_drop_reader(&g->check);
        g->checked = true;
        r->result = RESULT_REVALIDATED;
        r->reason = g->client_no_cache ? "client-no-cache" : NULL;
        r->step = REQUEST_GET_REPLY;
        return STEP_AGAIN;
    }
    if (err == ERR_OK) {
        struct store_object *found = store_object_ref(reader->answer);
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
    return get_fail_from(r, err, reader->error_document);
}

// --- asking for bytes
// -----------------------------------------------------------------------------------------------------

static uint32_t get_block_size(const struct request *r)
{
    const struct get_state *g = r->get;
    return g->have_record && g->view_open && g->view.found ? g->view.block_size_bytes
           : g->object != NULL                             ? g->object->block_size_bytes
                                                           : r->rule->block_size_bytes;
}

static const struct store_place *get_place(struct get_state *g, uint64_t byte);

// A run that begins at `byte`: not past what the client wants or the next block that is there.
static struct reader *get_ask(struct request *r, uint64_t byte, uint64_t end)
{
    struct get_state *g = get_of(r);
    struct reader *reader = reader_new(r->pw, r, g->key);
    reader->object = g->object != NULL ? store_object_ref(g->object) : NULL;
    if (g->refused != NULL) {
        reader->refused = g->refused;
        g->refused = NULL;
    }
    reader->has_sent = g->replied;
    reader->skip_index = g->skip_index;
    reader->block_size_bytes = get_block_size(r);
    reader->first_byte = byte;
    reader->block = byte / reader->block_size_bytes;
    uint64_t last_block = end > byte ? (end - 1) / reader->block_size_bytes : reader->block;
    uint64_t count = min_u64(last_block - reader->block + 1, STORE_RUN_BLOCKS_MAX);
    for (uint64_t i = 1; i < count; i++) {
        if (get_place(g, (reader->block + i) * reader->block_size_bytes) != NULL) {
            count = i;
        }
    }
    reader->block_count = (uint32_t)count;
    return reader;
}

enum step_result serve_get_step_first(struct request *r)
{
    struct get_state *g = get_of(r);
    struct reader *reader = g->readers[0];
    if (reader == NULL) {
        uint64_t first = g->pos, end = g->end;
        if (g->object == NULL) {
            get_wanted(g, &first, &end);
        }
        g->readers[0] = get_ask(r, first, end);
        if (g->object != NULL) {
            reader_join(g->readers[0]);
        } else {
            g->readers[0]->check_strict = get_is_strict(r);
            reader_route(g->readers[0]);
        }
        return STEP_WAIT;
    }
    bool ended = reader->state == READER_ENDED;
    if (reader->answer != NULL) { // HEAD, or PLACE
        if (g->object != NULL && !span_equal(g->object->etag, reader->answer->etag)) {
            return get_restart(r); // conditions were judged on another version
        }
        if (g->object == NULL) {
            g->object = store_object_ref(reader->answer);
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
    if (reader->outcome == OUTCOME_ERROR && reader->err == ERR_INVALID_RANGE && g->object == NULL) {
        get_drop_reader(&g->readers[0]);
        (void)get_check(r); // HEAD tells an empty object from a range past the end
        return STEP_WAIT;
    }
    if (reader->outcome == OUTCOME_ERROR) {
        return get_fail_from(r, reader->err, reader->error_document);
    }
    // Others' request was sent before this one came: ask which version is current now.
    g->needs_head |= reader->outcome == OUTCOME_REJOIN && reader->check_strict;
    if (reader->outcome == OUTCOME_GONE && g->object != NULL) {
        store_object_unref(g->refused);
        g->refused = store_object_ref(g->object);
    }
    return get_restart(r);
}

// --- REPLY
// ---------------------------------------------------------------------------------------------------------------------

static void get_override(struct request *r, struct headers *headers, const char *param,
                         const char *name)
{
    const struct s3_param *p = s3_param_find(&r->s3, param);
    if (p != NULL && header_value_is_clean(p->value)) {
        headers_remove(headers, span_from_cstr(name));
        request_header(r, headers, name, p->value);
    }
}

// response-*: the stored lines become headers, then the overrides replace them.
static void get_apply_overrides(struct request *r, struct headers *headers, struct span *rendered)
{
    struct span rest = *rendered, line;
    while (span_split(&rest, '\n', &line)) {
        size_t colon = span_find(line, ':');
        if (colon < line.len) {
            struct span value = {line.ptr + colon + 1, line.len - colon - 1};
            if (span_ends_with(value, SPAN("\r"))) {
                value.len--;
            }
            (void)!headers_add(headers, r->arena, (struct span){line.ptr, colon}, span_trim(value));
        }
    }
    *rendered = (struct span){0};
    get_override(r, headers, "response-content-type", "Content-Type");
    get_override(r, headers, "response-content-language", "Content-Language");
    get_override(r, headers, "response-expires", "Expires");
    get_override(r, headers, "response-cache-control", "Cache-Control");
    get_override(r, headers, "response-content-disposition", "Content-Disposition");
    get_override(r, headers, "response-content-encoding", "Content-Encoding");
}

static void get_classify(struct request *r)
{
    struct get_state *g = get_of(r);
    uint32_t block = get_block_size(r);
    uint64_t blocks = g->end > g->first ? (g->end - 1) / block - g->first / block + 1 : 1;
    r->blocks_total = (unsigned)min_u64(blocks, UINT32_MAX);
    unsigned there = 0;
    uint64_t window = min_u64(g->end, g->view_open ? g->view_end : g->first);
    for (uint64_t b = g->first / block; b * block < window; b++) {
        there += get_place(g, max_u64(b * block, g->first)) != NULL;
    }
    r->blocks_hit = there;
    if (r->result == RESULT_REVALIDATED || r->result == RESULT_STALE) {
        return;
    }
    if (g->from_origin || (!g->have_record && !g->is_head)) {
        r->result = r->collapsed ? RESULT_COALESCED : RESULT_MISS;
        r->result = there > 0 ? RESULT_PARTIAL : r->result;
    } else if (!g->have_record) {
        r->result = RESULT_MISS;
    } else {
        uint64_t seen = window > g->first ? (window - 1) / block - g->first / block + 1 : 0;
        r->result = there >= seen || g->is_head ? RESULT_HIT : RESULT_PARTIAL;
    }
}

static enum step_result get_send(struct request *r, unsigned status, uint64_t length, bool body)
{
    struct get_state *g = get_of(r);
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    if (headers == NULL) {
        return request_fail(r, ERR_NO_MEMORY, NULL);
    }
    get_classify(r);
    struct http_reply reply = {.status = status,
                               .reason = s3_status_reason(status),
                               .headers = headers,
                               .rendered = g->object->headers};
    if (status == 206) {
        char *text =
            arena_printf(r->arena, "bytes %llu-%llu/%llu", (unsigned long long)g->first,
                         (unsigned long long)g->end - 1, (unsigned long long)g->object->size_bytes);
        request_header(r, headers, "Content-Range", span_from_cstr(text));
    }
    if (status != 304) {
        request_header(r, headers, "Accept-Ranges", SPAN("bytes"));
    }
    request_common_headers(r, headers);
    if (g->have_record && !g->from_origin && g->view.age_ms != UINT64_MAX && !g->checked) {
        char *age = arena_printf(r->arena, "%llu", (unsigned long long)g->view.age_ms / 1000);
        request_header(r, headers, "Age", span_from_cstr(age));
    }
    if (r->s3.has_response_overrides && status != 304) {
        get_apply_overrides(r, headers, &reply.rendered);
    }
    if (status == 304) {
        reply.no_length = true;
    } else {
        reply.has_length = true;
        reply.length = length;
    }
    r->status = status;
    r->object_size_bytes = g->object->size_bytes;
    if (body && length > 0 && g->small.len > 0) {
        reply.body = (struct span){g->small.ptr + g->first, (size_t)length};
        r->bytes_memory = length;
        stats_add(COUNTER_hit_small, 1);
    } else if (body && length > 0) {
        r->source.pull = get_pull;
        r->source.recall = get_recall;
        reply.source = &r->source;
    }
    g->replied = true;
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

static enum step_result get_condition_failed(struct request *r)
{
    struct s3_error_detail detail = {.condition = span_from_cstr(get_of(r)->conditions.failed)};
    return request_fail(r, ERR_PRECONDITION_FAILED, &detail);
}

static enum step_result get_unsatisfiable(struct request *r)
{
    struct get_state *g = get_of(r);
    struct s3_error_detail detail = {.has_actual_object_size = true,
                                     .actual_object_size = g->object->size_bytes};
    (void)headers_get(&r->http->headers, SPAN("Range"), &detail.range_requested);
    r->object_size_bytes = g->object->size_bytes;
    return request_fail(r, ERR_INVALID_RANGE, &detail);
}

static bool etag_is_multipart(const struct request *r)
{
    struct span etag = http_etag_strip(r->get->object->etag);
    return !origin_is_directory(r->origin) && span_find(etag, '-') < etag.len;
}

enum step_result serve_get_step_reply(struct request *r)
{
    struct get_state *g = get_of(r);
    struct store_object *object = g->object;
    struct span value;
    if (r->s3.has_part_number && etag_is_multipart(r)) {
        get_forget_version(g);
        r->result = RESULT_BYPASS;
        r->reason = "part-number";
        r->step = REQUEST_PASS;
        return STEP_AGAIN;
    }
    if (r->s3.has_response_overrides && !r->s3.presigned &&
        !headers_get(&r->http->headers, SPAN("Authorization"), &value)) {
        struct s3_error_detail detail = {
            .message = SPAN(
                "Request specific response headers cannot be used for anonymous GET requests.")};
        return request_fail(r, ERR_INVALID, &detail);
    }
    switch (http_conditions_evaluate(&g->conditions, object->etag, object->last_modified)) {
    case HTTP_CONDITION_FAILED:
        return get_condition_failed(r);
    case HTTP_CONDITION_NOT_MODIFIED:
        g->first = g->end = 0;
        return get_send(r, 304, 0, false);
    case HTTP_CONDITION_PASS:
        break;
    }
    struct http_range range = g->range;
    if (!http_if_range_holds(&g->conditions, object->etag)) {
        range.kind = HTTP_RANGE_NONE;
    }
    uint64_t last = 0;
    enum http_range_result resolved =
        http_range_resolve(&range, object->size_bytes, &g->first, &last);
    if (resolved == HTTP_RANGE_UNSATISFIABLE) {
        return get_unsatisfiable(r);
    }
    bool partial = resolved == HTTP_RANGE_PARTIAL;
    if (!partial) {
        g->first = 0;
        partial = r->s3.has_part_number && object->size_bytes > 0;
        last = object->size_bytes > 0 ? object->size_bytes - 1 : 0;
    }
    g->end = object->size_bytes > 0 ? last + 1 : 0;
    g->pos = g->first;
    unsigned status = partial ? 206 : 200;
    if (g->is_head) {
        return get_send(r, status, g->end - g->first, false);
    }
    struct reader *reader = g->readers[0];
    if (reader != NULL && reader->weak && reader->run_end_byte < g->end) {
        get_forget_version(g); // several reads could not be known to be of one version
        r->result = RESULT_BYPASS;
        r->reason = "no-etag";
        r->step = REQUEST_PASS;
        return STEP_AGAIN;
    }
    bool at_hand = g->small.len > 0 || reader != NULL || get_place(g, g->pos) != NULL;
    if (!at_hand && g->have_record && g->pos != g->view_first) {
        get_view(r, g->pos, g->end); // a suffix range: now the window is known
        at_hand = get_place(g, g->pos) != NULL;
    }
    if (!at_hand && !(g->have_record && object->size_bytes == 0)) {
        r->step = REQUEST_GET_FIRST;
        return STEP_AGAIN;
    }
    return get_send(r, status, g->end - g->first, true);
}

// --- places
// ------------------------------------------------------------------------------------------------------------------------

static bool place_covers(const struct store_place *place, uint64_t byte)
{
    uint64_t first = place->first_block * place->block_size_bytes;
    return place->segment != NULL && byte >= first && byte - first < place->payload_len;
}

// Where `byte` of this very version lies; NULL: nowhere we know.
static const struct store_place *get_place(struct get_state *g, uint64_t byte)
{
    if (place_covers(&g->extra, byte)) {
        return &g->extra;
    }
    if (!g->view_open || !g->view.found || g->view.etag_hash != g->etag_hash) {
        return NULL;
    }
    for (unsigned i = 0; i < g->view.place_count; i++) {
        if (place_covers(&g->view.places[i], byte)) {
            return &g->view.places[i];
        }
    }
    return NULL;
}

static void get_release_passed(struct get_state *g)
{
    if (g->extra.segment != NULL && !place_covers(&g->extra, g->pos)) {
        store_place_unpin(&g->extra);
    }
    for (unsigned i = 0; g->view_open && i < g->view.place_count; i++) {
        struct store_place *p = &g->view.places[i];
        if (p->segment != NULL && p->first_block * p->block_size_bytes + p->payload_len <= g->pos) {
            store_place_unpin(p);
        }
    }
}

static void get_read_start(struct request *r, const struct store_place *place)
{
    struct get_state *g = get_of(r);
    uint64_t place_end = place->first_block * place->block_size_bytes + place->payload_len;
    memset(&g->read, 0, sizeof(g->read));
    g->read.store = r->pw->store;
    g->read.place = *place;
    g->read.first_byte = g->pos;
    g->read.len = min_u64(min_u64(g->end, place_end) - g->pos, GET_READ_BYTES);
    g->read.done = on_read_done;
    g->reading = true;
    g->read_header = false;
    store_read_start(r->pw->worker, &g->read);
}

static void on_read_done(struct store_read *read)
{
    struct get_state *g = container_of(read, struct get_state, read);
    struct request *owner = g->owner;
    g->reading = false;
    if (owner->ended) {
        for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
            chunk_unref(read->chunks[i]);
        }
        store_object_unref(read->object);
        check(serve_get_done(owner));
        request_recycle(owner);
        return;
    }
    if (g->read_header) {
        on_header_read(owner);
        return;
    }
    if (read->err == ERR_OK) {
        g->read_ready = true;
        g->read_span = 0;
        owner->bytes_disk += read->len;
        stats_add(COUNTER_hit_read, 1);
    } else { // lost or bad: fetched again inside this reply
        g->skip_index = true;
        get_view_done(g);
        store_place_unpin(&g->extra);
    }
    http_reply_ready(owner->x);
}

// --- pulling
// -------------------------------------------------------------------------------------------------------------------------

static void release_chunk(void *ctx)
{
    chunk_unref(ctx);
}

static void get_progress(struct request *r, uint64_t bytes)
{
    struct get_state *g = get_of(r);
    g->pos += bytes;
    g->again = 0;
    check(g->pos <= g->end);
    get_release_passed(g);
}

static bool pull_read(struct request *r, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    if (!g->read_ready) {
        return false;
    }
    struct span bytes = g->read.spans[g->read_span];
    // Each span lies in one chunk; the slice keeps that chunk.
    struct chunk *chunk = g->read.chunks[g->read_span];
    ret_slice->kind = HTTP_SLICE_BYTES;
    ret_slice->bytes = bytes;
    ret_slice->release = release_chunk;
    ret_slice->release_ctx = chunk_ref(chunk);
    g->read_span++;
    if (g->read_span == g->read.span_count) {
        get_drop_read_buffers(g);
    }
    get_progress(r, bytes.len);
    return true;
}

// Bytes of a fill, if they begin at pos (or before it: what was sent already is skipped).
static bool pull_piece(struct request *r, struct reader *reader, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    struct list_node *node;
    while (reader != NULL && (node = list_first(&reader->pieces)) != NULL) {
        struct piece *piece = container_of(node, struct piece, node);
        if (piece->first_byte > g->pos) {
            return false;
        }
        uint64_t skip = g->pos - piece->first_byte;
        uint32_t taken = piece->len;
        list_remove(node);
        if (skip >= piece->len) {
            chunk_unref(piece->chunk);
            free(piece);
            reader_taken(reader, taken);
            continue;
        }
        uint64_t len = min_u64(piece->len - skip, g->end - g->pos);
        ret_slice->kind = HTTP_SLICE_BYTES;
        ret_slice->bytes = (struct span){piece->chunk->data + piece->offset + skip, (size_t)len};
        ret_slice->release = release_chunk;
        ret_slice->release_ctx = piece->chunk;
        free(piece);
        reader_taken(reader, taken);
        r->bytes_origin += len;
        get_progress(r, len);
        return true;
    }
    return false;
}

static bool pull_range(struct request *r, const struct store_place *place,
                       struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    if (!http_exchange_can_sendfile(r->x) || g->pos < g->buffer_until) {
        return false;
    }
    uint64_t place_end = place->first_block * place->block_size_bytes + place->payload_len;
    uint64_t len = min_u64(min_u64(g->end, place_end) - g->pos, HTTP_FILE_SLICE_MAX);
    if (!store_range_ready(r->pw->worker, r->pw->store, place, g->pos, len, &ret_slice->range)) {
        return false;
    }
    ret_slice->kind = HTTP_SLICE_FILE;
    r->bytes_memory += ret_slice->range.len;
    stats_add(COUNTER_hit_sendfile, 1);
    get_progress(r, len);
    return true;
}

// A reader asks for [first_byte, run end) and covers a byte until its answers are all in.
static bool reader_covers(const struct reader *reader, uint64_t byte)
{
    return reader != NULL && byte >= reader->first_byte &&
           byte < (reader->block + reader->block_count) * (uint64_t)reader->block_size_bytes &&
           (reader->answer == NULL || byte < reader->run_end_byte);
}

// One run ahead of a sequential reader, on the same interface.
static void get_prefetch(struct request *r)
{
    struct get_state *g = get_of(r);
    struct reader *current = g->readers[0];
    if (g->readers[1] != NULL || current == NULL || current->answer == NULL || current->weak) {
        return;
    }
    uint64_t next = current->run_end_byte;
    if (next >= g->end || next <= g->pos || get_place(g, next) != NULL) {
        return;
    }
    g->readers[1] = get_ask(r, next, g->end);
    reader_join(g->readers[1]);
}

// A reader whose data is used up: what it left behind (a place, a verdict) decides how the reply
// goes on.
static enum http_pull get_reader_ended(struct request *r)
{
    struct get_state *g = get_of(r);
    struct reader *reader = g->readers[0];
    enum reader_outcome outcome = reader->outcome;
    if (reader->place.segment != NULL) {
        store_place_unpin(&g->extra);
        g->extra = reader->place;
        reader->place.segment = NULL;
    }
    get_drop_reader(&g->readers[0]);
    if (outcome == OUTCOME_GONE || outcome == OUTCOME_ERROR) {
        return HTTP_PULL_CUT;
    }
    if (outcome == OUTCOME_REJOIN) {
        get_view_done(g);
        g->skip_index = false;
        g->again++;
    }
    return HTTP_PULL_SLICE; // go on
}

// No bytes at pos from any reader: the place, the next window, or a run to join.
static enum http_pull get_more(struct request *r, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    const struct store_place *place = get_place(g, g->pos);
    if (place == NULL && !g->skip_index &&
        (!g->view_open || g->pos < g->view_first || g->pos >= g->view_end)) {
        get_view(r, g->pos, g->end);
        place = get_place(g, g->pos);
    }
    if (place != NULL) {
        if (pull_range(r, place, ret_slice)) {
            return HTTP_PULL_SLICE;
        }
        get_read_start(r, place);
        return HTTP_PULL_WAIT;
    }
    if (g->again > GET_AGAIN_MAX) {
        return HTTP_PULL_CUT;
    }
    g->readers[0] = get_ask(r, g->pos, g->end);
    reader_join(g->readers[0]);
    g->skip_index = false;
    return HTTP_PULL_WAIT;
}

static enum http_pull get_pull(struct http_source *source, struct http_slice *ret_slice)
{
    struct request *r = container_of(source, struct request, source);
    struct get_state *g = get_of(r);
    for (unsigned i = 0; i < GET_AGAIN_MAX; i++) {
        if (g->pos == g->end) {
            return HTTP_PULL_END;
        }
        if (pull_read(r, ret_slice)) {
            return HTTP_PULL_SLICE;
        }
        if (g->reading) {
            return HTTP_PULL_WAIT;
        }
        if (!reader_covers(g->readers[0], g->pos) && reader_covers(g->readers[1], g->pos)) {
            get_drop_reader(&g->readers[0]);
            g->readers[0] = g->readers[1];
            g->readers[1] = NULL;
        }
        struct reader *reader = g->readers[0];
        if (pull_piece(r, reader, ret_slice)) {
            get_prefetch(r);
            return HTTP_PULL_SLICE;
        }
        if (reader == NULL) {
            return get_more(r, ret_slice);
        }
        if (reader->state != READER_ENDED) {
            if (!reader_covers(reader, g->pos)) {
                get_drop_reader(&g->readers[0]); // its run is behind us
                continue;
            }
            get_prefetch(r);
            return HTTP_PULL_WAIT;
        }
        if (get_reader_ended(r) == HTTP_PULL_CUT) {
            return HTTP_PULL_CUT;
        }
    }
    return HTTP_PULL_CUT;
}

// The tail of a file range is no longer resident: those bytes go by the read way.
static void get_recall(struct http_source *source, uint64_t unsent)
{
    struct request *r = container_of(source, struct request, source);
    struct get_state *g = get_of(r);
    check(unsent <= g->pos - g->first);
    g->buffer_until = g->pos;
    g->pos -= unsent;
    r->bytes_memory -= unsent;
    if (get_place(g, g->pos) == NULL) {
        get_view_done(g); // released as passed: look it up again
    }
}

void serve_get_on_reader(struct request *r, struct reader *reader)
{
    struct get_state *g = get_of(r);
    if (r->ended) {
        return;
    }
    if (!g->replied) {
        if (reader == g->check || reader == g->readers[0]) {
            request_go(r);
        }
        return;
    }
    http_reply_ready(r->x);
}
