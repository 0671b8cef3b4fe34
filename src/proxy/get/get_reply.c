// SPDX-License-Identifier: Apache-2.0
// Starts the reply to a GET or HEAD once the version is known: evaluates conditions and the range,
// and writes the headers and Cache-Status. Runs on the request's worker.
#include "proxy/get/get_private.h"

#include <string.h>

// Parses the rendered lines back into headers, so that overrides can replace them.
static void unrender(struct request *r, struct headers *headers, struct span *rendered)
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
}

static void classify(struct request *r)
{
    struct get_state *g = get_of(r);
    uint32_t block = get_state_block_size(r);
    check(block > 0 && g->first <= g->end);
    uint64_t blocks = g->end > g->first ? (g->end - 1) / block - g->first / block + 1 : 1;
    r->blocks_total = (unsigned)min_u64(blocks, UINT32_MAX);
    g->reply_block_size_bytes = block;
    unsigned there = 0;
    uint64_t window = g->view_end > 0 ? g->view_end : g->first;
    window = min_u64(g->end, g->is_home_known ? g->first + STORE_WINDOW_MAX : window);
    // Bytes of a run that is being fetched for this reply count as missed, even if all have come by
    // now.
    bool is_from_origin = get_state_is_from_origin(g), is_head = r->http->is_head;
    uint64_t own_end = is_from_origin ? g->runs[0]->run_end_byte : 0;
    for (uint64_t b = g->first / block; b * block < window; b++) {
        there += get_state_at_hand(g, max_u64(b * block, g->first)) ||
                 (b * block >= own_end &&
                  fill_here_has(r->pw->fill, g->key->hash, g->etag_hash, block, b));
    }
    r->blocks_hit = there;
    if (r->result == RESULT_REVALIDATED || r->result == RESULT_STALE) {
        return;
    }
    if (is_from_origin) {
        r->has_run = true;
        r->unstored_why = g->runs[0]->unstored_why;
    }
    r->origin_status = is_head ? 200 : g->runs[0] != NULL ? g->runs[0]->origin_status : 0;
    bool is_held = get_state_has_record(g) || g->is_home_known;
    if (is_from_origin || (!is_held && !is_head)) {
        r->result = r->collapsed ? RESULT_COALESCED : RESULT_MISS;
        r->result = there > 0 ? RESULT_PARTIAL : r->result;
    } else if (!is_held) {
        r->result = RESULT_MISS;
    } else {
        uint64_t seen = window > g->first ? (window - 1) / block - g->first / block + 1 : 0;
        r->result = there >= seen || is_head ? RESULT_HIT : RESULT_PARTIAL;
    }
}

// Returns the checksums in the version's index record. NULL: there is no record of this version.
static const struct store_sums *record_sums(const struct get_state *g)
{
    bool counts = get_state_has_record(g) && g->view.size_bytes == g->object->size_bytes;
    return counts ? &g->view.sums : NULL;
}

// Returns the stored header lines that belong in this reply. If the reply must have checksums and
// the lines contain none, *ret_more gets those of the index record, in `ret_text`.
static struct span stored_lines(struct request *r, unsigned status, char ret_text[S3_SUMS_TEXT_MAX],
                                struct span *ret_more)
{
    static const char *const WORDS[] = {[CHECKSUMS_UNKNOWN] = "unknown",
                                        [CHECKSUMS_TOO_LONG] = "unknown",
                                        [CHECKSUMS_NONE] = "none",
                                        [CHECKSUMS_KNOWN] = "sent"};
    struct span lines = r->get->object->headers;
    struct span checksums = checksums_lines(lines);
    enum checksums_known known = CHECKSUMS_UNKNOWN;
    *ret_more = (struct span){0};
    if (status == 200 && get_state_wants_checksums(r)) {
        known = checksums_known(lines, record_sums(r->get));
        r->checksums = WORDS[known];
    }
    if (known != CHECKSUMS_KNOWN) {
        lines.len -= checksums.len;
    } else if (checksums.len == 0) {
        *ret_more = checksums_render(record_sums(r->get), ret_text);
    }
    return lines;
}

#define CONTENT_RANGE_MAX (sizeof("Content-Range: bytes -/\r\n") + 3 * U64_DIGITS_MAX)
#define ACCEPT_RANGES "Accept-Ranges: bytes\r\n"

// Renders the headers as text, so that a hit needs no list of headers. Returns false if the arena
// is used up.
static bool add_headers(struct request *r, struct headers *headers, struct http_reply *reply)
{
    struct get_state *g = get_of(r);
    char before[CONTENT_RANGE_MAX + sizeof(ACCEPT_RANGES)];
    char behind[sizeof("Age: \r\n") + U64_DIGITS_MAX + S3_SUMS_TEXT_MAX];
    char text[S3_SUMS_TEXT_MAX];
    struct span sums, stored = stored_lines(r, reply->status, text, &sums);
    struct span_writer w = {before, before + sizeof(before)};
    if (reply->status == 206) {
        check(g->first < g->end && g->end <= g->object->size_bytes);
        span_writer_put(&w, SPAN("Content-Range: bytes "));
        span_writer_put_u64(&w, g->first);
        span_writer_put(&w, SPAN("-"));
        span_writer_put_u64(&w, g->end - 1);
        span_writer_put(&w, SPAN("/"));
        span_writer_put_u64(&w, g->object->size_bytes);
        span_writer_put(&w, SPAN("\r\n"));
    }
    if (reply->status != 304) {
        span_writer_put(&w, SPAN(ACCEPT_RANGES));
    }
    struct span_writer age = {behind, behind + sizeof(behind)};
    if ((get_state_has_record(g) || g->is_home_known) && !get_state_is_from_origin(g) &&
        g->view.age_ms != UINT64_MAX && !g->is_confirmed) {
        span_writer_put(&age, SPAN("Age: "));
        span_writer_put_u64(&age, g->view.age_ms / 1000);
        span_writer_put(&age, SPAN("\r\n"));
    }
    span_writer_put(&age, sums);
    reply->rendered = request_lines(r, (struct span){before, (size_t)(w.at - before)},
                                    (struct span){behind, (size_t)(age.at - behind)}, stored);
    if (reply->rendered.len == 0) {
        return false;
    }
    if (r->s3.has_response_overrides && reply->status != 304) {
        unrender(r, headers, &reply->rendered);
        response_overrides_apply(r, headers);
    }
    return true;
}

// Adds the body to the reply. Returns the phase that the request then enters.
static enum get_phase add_body(struct request *r, struct http_reply *reply)
{
    struct get_state *g = get_of(r);
    if (r->http->is_head || reply->length == 0) {
        return GET_PHASE_SENT;
    }
    if (g->small.len > 0) {
        check(g->end <= g->small.len);
        reply->body = (struct span){g->small.ptr + g->first, (size_t)reply->length};
        r->bytes_memory = reply->length;
        store_note_read(r->pw->worker, r->pw->store, &g->view.places[0], reply->length,
                        rules_group(r->pw->live, r->rule, r->s3.bucket, r->s3.key));
        stats_add(COUNTER_hit_small, 1);
        return GET_PHASE_SENT;
    }
    r->source.pull = get_body_pull;
    r->source.recall = get_body_recall;
    reply->source = &r->source;
    return GET_PHASE_CHOOSE;
}

static enum step_result send(struct request *r, unsigned status)
{
    struct get_state *g = get_of(r);
    struct headers headers = {0}; // needed only until http_reply_start() returns
    check(g->phase == GET_PHASE_STEPS && g->object != NULL);
    check(status == 200 || status == 206 || status == 304);
    classify(r);
    struct http_reply reply = {.status = status,
                               .reason = s3_status_reason(status, (struct span){NULL, 0}),
                               .headers = &headers,
                               .no_length = status == 304,
                               .has_length = status != 304,
                               .length = g->end - g->first};
    if (!add_headers(r, &headers, &reply)) {
        return request_fail(r, ERR_NO_MEMORY, NULL);
    }
    get_phase_enter(g, add_body(r, &reply));
    r->status = status;
    r->object_size_bytes = g->object->size_bytes;
    get_state_check(r);
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

enum step_result get_reply_not_modified(struct request *r, struct span packed)
{
    struct s3_error_answer answer = {0};
    struct headers *headers = arena_alloc(r->arena, sizeof(*headers));
    if (headers == NULL || !s3_error_unpack(r->arena, packed, &answer)) {
        return request_fail(r, ERR_NO_MEMORY, NULL);
    }
    r->result = RESULT_MISS;
    r->status = r->origin_status = 304;
    for (unsigned i = 0; i < answer.headers.count; i++) {
        struct header *h = &answer.headers.items[i];
        // There is room, because these headers are few.
        (void)!headers_add(headers, r->arena, arena_copy(r->arena, h->name),
                           arena_copy(r->arena, h->value));
    }
    request_common_headers(r, headers);
    struct http_reply reply = {.status = 304,
                               .reason = s3_status_reason(304, (struct span){NULL, 0}),
                               .headers = headers,
                               .no_length = true};
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

// Answers 412. A weak ETag, or none, can never match If-Match, but some stores compare in another
// way. So the origin judges If-Match for such a version.
static enum step_result condition_failed(struct request *r)
{
    const struct get_state *g = get_of(r);
    check(g->conditions.failed != NULL);
    if (g->conditions.has_if_match && !http_etag_is_strong(g->object->etag)) {
        return get_state_bypass(r, "no-etag");
    }
    struct s3_error_detail detail = {.condition = span_from_cstr(get_of(r)->conditions.failed)};
    return request_fail(r, ERR_PRECONDITION_FAILED, &detail);
}

static enum step_result ask_first(struct request *r)
{
    check(!r->http->is_head);
    r->step = REQUEST_GET_FIRST;
    return STEP_AGAIN;
}

static enum step_result unsatisfiable(struct request *r)
{
    struct get_state *g = get_of(r);
    check(g->range.kind != HTTP_RANGE_NONE);
    bool kept = r->http->is_head || get_state_has_record(g) || g->runs[0] != NULL;
    // Fetches the empty object, so that the next request hits the cache.
    if (g->object->size_bytes == 0 && !kept) {
        g->first = g->end = g->pos = 0;
        return ask_first(r);
    }
    struct s3_error_detail detail = {.has_actual_object_size = true,
                                     .actual_object_size = g->object->size_bytes};
    (void)headers_get(&r->http->headers, SPAN("Range"), &detail.range_requested);
    r->object_size_bytes = g->object->size_bytes;
    return request_fail(r, ERR_INVALID_RANGE, &detail);
}

static bool etag_is_multipart(const struct request *r)
{
    struct span etag = http_etag_strip(r->get->object->etag);
    return origin_capabilities(r->origin)->has_parts && span_find(etag, '-') < etag.len;
}

// Computes the range of the object to send, and the status. Returns false if the range has no byte
// of the object.
static bool resolve_range(struct request *r, unsigned *ret_status)
{
    struct get_state *g = get_of(r);
    uint64_t size = g->object->size_bytes, last = 0;
    struct http_range range = g->range;
    if (!http_if_range_holds(&g->conditions, g->object->etag)) {
        range.kind = HTTP_RANGE_NONE;
    }
    enum http_range_result resolved = http_range_resolve(&range, size, &g->first, &last);
    if (resolved == HTTP_RANGE_UNSATISFIABLE) {
        return false;
    }
    bool partial = resolved == HTTP_RANGE_PARTIAL;
    if (!partial) {
        g->first = 0;
        partial = r->s3.has_part_number && size > 0;
        last = size > 0 ? size - 1 : 0;
    }
    g->end = size > 0 ? last + 1 : 0;
    g->pos = g->first;
    check(g->first <= g->end && g->end <= size);
    *ret_status = partial ? 206 : 200;
    return true;
}

// S3 sends no checksums in answers to ranges. If the checksums are too long for the index record,
// only a HEAD asks the home for them.
bool get_reply_lacks_checksums(const struct request *r)
{
    const struct store_object *object = r->get->object;
    enum checksums_known known = checksums_known(object->headers, record_sums(r->get));
    return object->etag.len > 0 && get_state_wants_checksums(r) &&
           origin_capabilities(r->origin)->has_checksums &&
           (known == CHECKSUMS_UNKNOWN || (known == CHECKSUMS_TOO_LONG && r->http->is_head));
}

static enum step_result reply_body(struct request *r, unsigned status)
{
    struct get_state *g = get_of(r);
    const struct subscription *run = g->runs[0];
    if (run != NULL && run->weak && run->run_end_byte < g->end) {
        // Without a strong ETag, several runs could be of different versions.
        return get_state_bypass(r, "no-etag");
    }
    if (run != NULL && run->state == SUBSCRIPTION_ATTACHED && g->pos < g->end &&
        !get_state_run_covers(run, g->pos)) {
        // If-Range does not match, so the reply begins at another byte.
        get_state_leave(&g->runs[0]);
        run = NULL;
    }
    if (g->index == FILL_INDEX_SLOW) { // the home has named the version, so the view was left
        g->index = FILL_INDEX_COUNTS;
        get_state_view(r, g->pos, max_u64(g->end, g->pos + 1));
    }
    bool at_hand = g->small.len > 0 || run != NULL || get_state_place(g, g->pos) != NULL;
    if (!at_hand && get_state_has_record(g) && g->pos != g->view_first && g->pos < g->end) {
        get_state_view(r, g->pos, g->end); // for a suffix range, the window is known only now
        at_hand = get_state_place(g, g->pos) != NULL;
    }
    if (!at_hand && !(get_state_has_record(g) && g->object->size_bytes == 0)) {
        return ask_first(r);
    }
    if (status == 200 && get_reply_lacks_checksums(r)) {
        get_ask_to_learn_checksums(r); // this body is sent without them
    }
    return send(r, status);
}

enum step_result get_reply_step(struct request *r)
{
    struct get_state *g = get_of(r);
    check(g->phase == GET_PHASE_STEPS);
    check(g->object != NULL && g->revalidation == NULL);
    if (r->s3.has_part_number && etag_is_multipart(r)) {
        return get_state_bypass(r, "part-number");
    }
    struct s3_error_detail detail = {0};
    enum err err = response_overrides_judge(r, &detail.message);
    if (err != ERR_OK) {
        return request_fail(r, err, &detail);
    }
    switch (http_conditions_evaluate(&g->conditions, g->object->etag, g->object->last_modified)) {
    case HTTP_CONDITION_FAILED:
        return condition_failed(r);
    case HTTP_CONDITION_NOT_MODIFIED:
        g->first = g->pos = g->end = 0;
        return send(r, 304);
    case HTTP_CONDITION_PASS:
        break;
    }
    unsigned status = 200;
    if (!resolve_range(r, &status)) {
        return unsatisfiable(r);
    }
    if (!r->http->is_head) {
        return reply_body(r, status);
    }
    // Only the origin's answer to HEAD has the checksums, and some origins refuse HEAD.
    if (status == 200 && get_reply_lacks_checksums(r) &&
        !origin_is_odd(r->origin, ORIGIN_REFUSES_HEAD)) {
        return ++g->restarts > PROXY_RESTARTS_MAX ? get_state_bypass(r, "checksum")
                                                  : get_ask_checksums(r);
    }
    return send(r, status);
}
