// SPDX-License-Identifier: Apache-2.0
// Asks other workers on behalf of a GET: for a run of blocks, or for the current version. Each
// change of an answer continues the request: its steps before the reply, its body afterwards. On
// the request's worker.
#include "proxy/get/get_private.h"

#include <string.h>

void get_ask_wanted(const struct get_state *g, uint64_t *ret_first, uint64_t *ret_end)
{
    *ret_first = 0;
    *ret_end = UINT64_MAX;
    if (g->range.kind == HTTP_RANGE_FIRST || g->range.kind == HTTP_RANGE_FIRST_LAST) {
        *ret_first = min_u64(g->range.first, UINT64_MAX / 2);
        if (g->range.kind == HTTP_RANGE_FIRST_LAST) {
            *ret_end = min_u64(max_u64(g->range.last, *ret_first), UINT64_MAX / 2) + 1;
        }
    }
}

static bool is_strict(const struct request *r)
{
    return r->rule->freshness == PROXY_FRESHNESS_STRICT || request_is_no_cache(r) ||
           r->get->is_doubted;
}

static bool is_of(const char *bytes, struct span value)
{
    for (size_t i = 0; i < value.len; i++) {
        if (value.ptr[i] == '\0' || strchr(bytes, value.ptr[i]) == NULL) {
            return false;
        }
    }
    return value.len > 0;
}

// Reads the headers by which a client identifies its request in its own logs and traces. The fetch
// that carries them serves many clients, so a value is used only if it can be nothing but an
// identifier.
static void read_trace(const struct headers *client, struct origin_trace *ret_trace)
{
    struct span value;
    *ret_trace = (struct origin_trace){.traceparent = ""};
    if (headers_get(client, SPAN("traceparent"), &value) &&
        value.len == sizeof(ret_trace->traceparent) - 1 && is_of("0123456789abcdef-", value)) {
        span_to_text(value, ret_trace->traceparent, sizeof(ret_trace->traceparent));
    }
    if (headers_get(client, SPAN("x-request-id"), &value) &&
        is_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.:", value)) {
        span_to_text(value, ret_trace->request_id, sizeof(ret_trace->request_id));
    }
}

static void on_change(void *ctx, struct subscription *sub)
{
    struct request *r = ctx;
    struct get_state *g = get_of(r);
    check(r->magic == REQUEST_MAGIC && g->owner == r);
    r->collapsed |= sub->joined;
    if (r->ended) {
        return;
    }
    if (get_phase_has_replied(g)) {
        http_reply_ready(r->x);
        return;
    }
    check(sub == g->revalidation || sub == g->runs[0]);
    request_go(r);
}

struct subscription *get_ask_run(struct request *r, uint64_t byte, uint64_t end)
{
    struct get_state *g = get_of(r);
    check(byte <= end);
    struct fill_ask ask = {.key = g->key,
                           .client = request_client(r),
                           .object = g->object,
                           .refused = g->refused,
                           .strict = g->object == NULL && is_strict(r),
                           .has_sent = get_phase_has_replied(g),
                           .index = g->index,
                           .with_checksums = g->object == NULL && get_state_wants_checksums(r),
                           .no_pages = byte < g->buffer_until || !http_exchange_can_sendfile(r->x),
                           .first_byte = byte,
                           .end_byte = end,
                           .block_size_bytes = get_state_block_size(r)};
    read_trace(&r->http->headers, &ask.trace);
    uint64_t size = ask.block_size_bytes;
    check(size > 0);
    ask.block = byte / size;
    uint64_t last_block = end > byte ? (end - 1) / size : ask.block;
    uint64_t count = min_u64(last_block - ask.block + 1, STORE_RUN_BLOCKS_MAX);
    // In place of a slow disk, the origin is asked for cached blocks only. The run is not stored,
    // and may be longer than these blocks. It ends before a block that is known as not cached,
    // because a run of that block may be stored.
    bool wants_cached = g->index == FILL_INDEX_SLOW;
    for (uint64_t i = 1; i < count; i++) {
        uint64_t at = (ask.block + i) * size;
        if ((get_state_place(g, at) != NULL) != wants_cached) {
            count = i;
            ask.end_byte = wants_cached && at < g->view_end ? at : end;
        }
    }
    ask.block_count = (uint32_t)count;
    if (g->object == NULL) {
        ask.condition = g->condition;
        ask.kind = http_conditions_any(&g->conditions) ? FILL_ASK_BYTES_OR_VERSION : FILL_ASK_BYTES;
        ask.fresh_ms = freshness_max_age_ms(r->rule);
        ask.suffix_bytes = g->range.kind == HTTP_RANGE_SUFFIX ? g->range.suffix : 0;
    }
    g->has_asked = true;
    g->asked_us = clock_monotonic_us();
    check(ask.block_count > 0 && ask.block_count <= STORE_RUN_BLOCKS_MAX);
    check(ask.block * size <= byte && byte < (ask.block + ask.block_count) * size);
    check(g->object == NULL || byte <= g->object->size_bytes);
    struct subscription *sub = subscription_ask(r->pw->fill, &ask, on_change, r);
    store_object_unref(g->refused); // the home must get the refused version only once
    g->refused = NULL;
    return sub;
}

static enum step_result ask_home(struct request *r, bool strict)
{
    struct get_state *g = get_of(r);
    check(!get_phase_has_replied(g) && g->revalidation == NULL);
    struct fill_ask ask = {.kind = r->http->is_head ? FILL_ASK_CURRENT : FILL_ASK_CURRENT_TO_READ,
                           .key = g->key,
                           .client = request_client(r),
                           .object = g->object,
                           .refused = g->refused,
                           .strict = strict,
                           .has_stale = get_state_may_be_stale(r),
                           .index = g->index};
    read_trace(&r->http->headers, &ask.trace);
    g->revalidation = subscription_ask(r->pw->fill, &ask, on_change, r);
    store_object_unref(g->refused);
    g->refused = NULL;
    g->asked_us = clock_monotonic_us();
    r->step = REQUEST_GET_REVALIDATED;
    return STEP_WAIT;
}

enum step_result get_ask_home(struct request *r)
{
    struct get_state *g = get_of(r);
    bool is_other = g->object != NULL && get_state_is_other(g, g->object->etag);
    return ask_home(r, is_strict(r) || is_other);
}

enum step_result get_ask_home_again(struct request *r)
{
    get_state_leave(&get_of(r)->revalidation);
    return ask_home(r, true);
}

static struct fill_ask ask_for_checksums(struct request *r, enum fill_ask_kind kind)
{
    struct get_state *g = get_of(r);
    check(g->phase == GET_PHASE_STEPS && g->object != NULL);
    struct fill_ask ask = {
        .kind = kind, .key = g->key, .object = g->object, .client = request_client(r)};
    read_trace(&r->http->headers, &ask.trace);
    return ask;
}

enum step_result get_ask_checksums(struct request *r)
{
    check(get_of(r)->revalidation == NULL);
    struct fill_ask ask = ask_for_checksums(r, FILL_ASK_CHECKSUMS_NOW);
    get_of(r)->revalidation = subscription_ask(r->pw->fill, &ask, on_change, r);
    get_of(r)->asked_us = clock_monotonic_us();
    r->step = REQUEST_GET_REVALIDATED;
    return STEP_WAIT;
}

void get_ask_to_learn_checksums(struct request *r)
{
    if (!checksums_learn_claim(r->pw->fill, get_of(r)->key, get_of(r)->object)) {
        return;
    }
    struct fill_ask ask = ask_for_checksums(r, FILL_ASK_CHECKSUMS);
    subscription_leave(subscription_ask(r->pw->fill, &ask, on_change, r));
}
