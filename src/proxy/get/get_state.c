// SPDX-License-Identifier: Apache-2.0
// Acquires and releases the resources of a GET: the pins of a view, a reference to the version,
// subscriptions to at most two runs, and one disk read. The memory stays with the pooled request.
// On the request's worker.
#include "base/date.h"
#include "proxy/get/get_private.h"

#include <stdlib.h>
#include <string.h>

static bool has_control(struct span value)
{
    for (size_t i = 0; i < value.len; i++) {
        if ((unsigned char)value.ptr[i] <= ' ' || value.ptr[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

// Chooses a condition with one quoted ETag for the origin, unchanged. Forebay itself evaluates a
// list, `*` or an unquoted ETag.
static void send_etag(struct origin_condition *ret, enum origin_condition_kind kind,
                      struct span value)
{
    value = span_trim(value);
    struct span inner = {value.ptr + 1, value.len - min_u64(value.len, 2)};
    if (value.len > 2 && value.len < ORIGIN_CONDITION_MAX && value.ptr[0] == '"' &&
        value.ptr[value.len - 1] == '"' && !has_control(inner) &&
        span_find(inner, '"') == inner.len && span_find(inner, ',') == inner.len) {
        ret->kind = kind;
        span_to_text(value, ret->value, sizeof(ret->value));
    }
}

static void send_date(struct origin_condition *ret, enum origin_condition_kind kind, time_t date)
{
    ret->kind = kind;
    date_format_http(date, ret->value);
}

// Chooses the condition with the highest precedence for the origin (RFC 9110, section 13.2.2).
// Forebay evaluates the others when the head has come.
static void choose_condition(struct get_state *g)
{
    const struct http_conditions *c = &g->conditions;
    if (c->has_if_match) {
        send_etag(&g->condition, ORIGIN_IF_MATCH, c->if_match);
    } else if (c->has_if_unmodified_since) {
        send_date(&g->condition, ORIGIN_IF_UNMODIFIED_SINCE, c->if_unmodified_since);
    } else if (c->has_if_none_match) {
        send_etag(&g->condition, ORIGIN_IF_NONE_MATCH, c->if_none_match);
        // The answer is likely a 304, for which a HEAD suffices.
        g->needs_head |= g->condition.kind == ORIGIN_CONDITION_NONE;
    } else if (c->has_if_modified_since) {
        send_date(&g->condition, ORIGIN_IF_MODIFIED_SINCE, c->if_modified_since);
    }
}

void get_state_begin(struct request *r)
{
    check(r->rule != NULL && r->rule->cache && r->origin != NULL);
    if (r->get == NULL) {
        r->get = malloc(sizeof(*r->get));
        check(r->get != NULL);
    }
    struct get_state *g = r->get;
    // The view is large, and the look-up writes all of it, so it is not zeroed.
    memset(g, 0, offsetof(struct get_state, view));
    memset(&g->view_first, 0, sizeof(*g) - offsetof(struct get_state, view_first));
    // The pins of the previous request have been released.
    check(g->view.place_count == 0 || !g->view_end);
    g->owner = r;
    g->key = request_object_key(r);
    checksums_reply_begin(r->pw->fill, g->key->hash, &g->sum);
    struct span value;
    if (headers_get(&r->http->headers, SPAN("Range"), &value)) {
        http_range_parse(value, &g->range);
    }
    http_conditions_parse(&r->http->headers, &g->conditions);
    bool is_long_suffix =
        g->range.kind == HTTP_RANGE_SUFFIX &&
        !subscription_takes_suffix(r->pw->store, r->rule->block_size_bytes, g->range.suffix);
    g->needs_head = r->http->is_head || is_long_suffix || r->s3.has_part_number;
    choose_condition(g);
    check(g->phase == GET_PHASE_STEPS && g->view_end == 0);
}

// --- releasing -----------------------------------------------------------------------------------

void get_state_view_done(struct get_state *g)
{
    if (g->view_end > 0) {
        store_view_done(&g->view);
        g->view_first = g->view_end = 0;
    }
}

void get_state_leave(struct subscription **slot)
{
    if (*slot != NULL) {
        subscription_leave(*slot);
        *slot = NULL;
    }
}

void get_state_cut(struct get_state *g)
{
    get_phase_enter(g, GET_PHASE_CUT);
    get_read_leave(&g->read, true);
}

void get_state_forget_version(struct get_state *g)
{
    check(!get_phase_is_reading(g));
    get_state_view_done(g);
    store_place_unpin(&g->extra);
    get_state_leave(&g->revalidation);
    get_state_leave(&g->runs[0]);
    get_state_leave(&g->runs[1]);
    store_object_unref(g->object);
    g->object = NULL;
    chunk_unref(g->small_chunk);
    g->small_chunk = NULL;
    g->small = (struct span){0};
    g->etag_hash = 0;
    g->is_home_known = false;
}

void get_state_release(struct request *r)
{
    struct get_state *g = r->get;
    if (g == NULL || g->key == NULL) {
        return;
    }
    get_phase_enter(g, GET_PHASE_OVER);
    get_read_leave(&g->read, true);
    get_state_forget_version(g);
    checksums_reply_done(&g->sum);
    store_object_unref(g->refused);
    g->refused = NULL;
    object_key_unref_to(g->key, &r->spare_key);
    g->key = NULL;
}

enum step_result get_state_bypass(struct request *r, const char *reason)
{
    check(get_of(r)->phase == GET_PHASE_STEPS);
    get_state_forget_version(get_of(r));
    r->result = RESULT_BYPASS;
    r->reason = reason;
    r->step = REQUEST_PASS;
    return STEP_AGAIN;
}

// --- where bytes are -----------------------------------------------------------------------------

void get_state_judge_doubt(struct request *r, uint64_t age_ms)
{
    r->get->is_doubted = fill_is_doubted(r->pw->store, r->origin, r->origin_bucket, age_ms);
}

void get_state_view(struct request *r, uint64_t first_byte, uint64_t end_byte)
{
    struct get_state *g = get_of(r);
    check(!get_phase_is_reading(g));
    check(first_byte < end_byte);
    get_state_view_done(g);
    uint64_t end = min_u64(end_byte, first_byte + STORE_WINDOW_MAX);
    store_lookup(r->pw->worker, r->pw->store, g->key->hash, first_byte, end,
                 fill_floor(r->pw->fill, g->key->hash), &g->view);
    if (!get_phase_has_replied(g)) {
        get_state_judge_doubt(r, g->view.found ? g->view.age_ms : 0);
        if (!g->view.found) {
            g->view.age_ms = UINT64_MAX;
            g->view.rebuilt = false;
        }
    }
    g->view_first = first_byte;
    g->view_end = end;
}

bool get_state_has_record(const struct get_state *g)
{
    return g->view_end > 0 && g->view.found && g->view.etag_hash == g->etag_hash;
}

bool get_state_is_from_origin(const struct get_state *g)
{
    const struct subscription *run = g->runs[0];
    return run != NULL && run->answer != NULL && !run->whole;
}

static bool place_covers(const struct store_place *place, uint64_t byte)
{
    check(place->segment == NULL || place->block_size_bytes > 0);
    uint64_t first = place->first_block * place->block_size_bytes;
    return place->segment != NULL && byte >= first && byte - first < place->payload_len;
}

const struct store_place *get_state_place(struct get_state *g, uint64_t byte)
{
    if (place_covers(&g->extra, byte)) {
        return &g->extra;
    }
    if (!get_state_has_record(g)) {
        return NULL;
    }
    for (unsigned i = 0; i < g->view.place_count; i++) {
        if (place_covers(&g->view.places[i], byte)) {
            return &g->view.places[i];
        }
    }
    return NULL;
}

bool get_state_covers(struct get_state *g, uint64_t first_byte, uint64_t end_byte)
{
    uint64_t size = g->view.size_bytes;
    check(get_state_has_record(g) && first_byte < end_byte);
    bool is_bounded = g->range.kind == HTTP_RANGE_FIRST_LAST;
    uint64_t wanted_end = is_bounded ? min_u64(g->range.last, size - 1) + 1 : size;
    if (size > 0 && wanted_end > end_byte) {
        return false;
    }
    for (uint64_t at = first_byte; size > 0 && at < wanted_end;) {
        const struct store_place *place = get_state_place(g, at);
        if (place == NULL) {
            return false;
        }
        at = place->first_block * place->block_size_bytes + place->payload_len;
    }
    return true;
}

bool get_state_at_hand(struct get_state *g, uint64_t byte)
{
    const struct subscription *run = g->runs[0];
    bool is_whole = run != NULL && run->whole && byte >= run->ask.first_byte;
    if (is_whole && run->state == SUBSCRIPTION_ATTACHED) {
        return byte < run->run_end_byte;
    }
    return (is_whole && place_covers(&run->place, byte)) || get_state_place(g, byte) != NULL;
}

bool get_state_run_covers(const struct subscription *sub, uint64_t byte)
{
    if (sub == NULL || byte < sub->ask.first_byte) {
        return false;
    }
    bool has_head = sub->answer != NULL;
    // A run that is not stored may be longer than its reader asked for, and ends without a reader.
    bool is_bounded = !has_head || sub->unstored_why == NULL;
    uint64_t end = (sub->ask.block + sub->ask.block_count) * (uint64_t)sub->ask.block_size_bytes;
    return (!is_bounded || byte < end) && (!has_head || byte < sub->run_end_byte);
}

void get_state_release_passed(struct get_state *g)
{
    if (g->extra.segment != NULL && !place_covers(&g->extra, g->pos)) {
        store_place_unpin(&g->extra);
    }
    for (unsigned i = 0; g->view_end > 0 && i < g->view.place_count; i++) {
        struct store_place *p = &g->view.places[i];
        if (p->segment != NULL && p->first_block * p->block_size_bytes + p->payload_len <= g->pos) {
            store_place_unpin(p);
        }
    }
}

uint32_t get_state_block_size(const struct request *r)
{
    const struct get_state *g = r->get;
    return get_state_has_record(g) ? g->view.block_size_bytes
           : g->object != NULL     ? g->object->block_size_bytes
                                   : r->rule->block_size_bytes;
}

// S3 leaves checksums out of an answer if the request has a Range, even one that S3 ignores.
bool get_state_wants_checksums(const struct request *r)
{
    struct span mode;
    return headers_get(&r->http->headers, SPAN("x-amz-checksum-mode"), &mode) &&
           span_equal_nocase(span_trim(mode), SPAN("ENABLED")) &&
           headers_count(&r->http->headers, SPAN("Range")) == 0 && !r->s3.has_part_number;
}

bool get_state_is_other(const struct get_state *g, struct span etag)
{
    return g->conditions.has_if_match && !http_etag_list_matches(g->conditions.if_match, etag);
}

bool get_state_may_be_stale(const struct request *r)
{
    const struct get_state *g = r->get;
    bool is_held = g->object != NULL && (get_state_has_record(g) || g->is_home_known);
    return is_held && freshness_stale_allowed(r->rule, &g->view) && !request_is_no_cache(r) &&
           !g->is_doubted;
}

void get_state_check(const struct request *r)
{
    const struct get_state *g = r->get;
    bool has_replied = get_phase_has_replied(g);
    check(r->magic == REQUEST_MAGIC && !r->ended);
    check(g->owner == r);
    check(g->key != NULL);
    check(r->pass == NULL);
    check(g->phase < GET_PHASE_OVER);
    check((g->read != NULL) == (get_phase_is_reading(g) || g->phase == GET_PHASE_SPANS));
    check(g->phase != GET_PHASE_SPANS || g->read_span < g->read->read.span_count);
    check((g->phase != GET_PHASE_RUN && g->phase != GET_PHASE_RACE) || g->runs[0] != NULL);
    check((g->phase != GET_PHASE_READ && g->phase != GET_PHASE_SPANS) || g->runs[0] == NULL);
    check(g->view_end == 0 || g->view_first < g->view_end);
    check(g->view_end - g->view_first <= STORE_WINDOW_MAX);
    check(has_replied || g->runs[1] == NULL);
    check(!has_replied || g->object != NULL);
    check(!has_replied || g->revalidation == NULL);
    check(!has_replied || (g->first <= g->pos && g->pos <= g->end));
    check(!has_replied || g->end <= g->object->size_bytes);
}
