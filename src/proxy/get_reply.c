// SPDX-License-Identifier: Apache-2.0
// The head of a GET's or HEAD's reply, once the version is known: conditions, range, headers, what
// Cache-Status says. Runs on the request's worker.
#include "proxy/get_private.h"

// The stored lines become headers that can be replaced.
static void get_unrender(struct request *r, struct headers *headers, struct span *rendered)
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

// Checksums are of the whole object, and only for who asked for them; servers leave them out where a
// Range stands, even one that they ignore.
static bool get_wants_checksums(const struct request *r)
{
    struct span mode;
    return headers_count(&r->http->headers, SPAN("Range")) == 0 &&
           headers_get(&r->http->headers, SPAN("x-amz-checksum-mode"), &mode) &&
           span_equal_nocase(span_trim(mode), SPAN("ENABLED"));
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
    struct span checksums = fill_version_checksums(g->object->headers);
    if (checksums.len > 0 && (status != 200 || !get_wants_checksums(r))) {
        reply.rendered.len -= checksums.len;
    }
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
        char digits[U64_DIGITS_MAX];
        struct span age = arena_copy(r->arena, span_of_u64(g->view.age_ms / 1000, digits));
        request_header(r, headers, "Age", age);
    }
    if (r->s3.has_response_overrides && status != 304) {
        get_unrender(r, headers, &reply.rendered);
        response_overrides_apply(r, headers);
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
    return origin_capabilities(r->origin)->has_parts && span_find(etag, '-') < etag.len;
}

enum step_result serve_get_step_reply(struct request *r)
{
    struct get_state *g = get_of(r);
    struct store_object *object = g->object;
    if (r->s3.has_part_number && etag_is_multipart(r)) {
        get_forget_version(g);
        r->result = RESULT_BYPASS;
        r->reason = "part-number";
        r->step = REQUEST_PASS;
        return STEP_AGAIN;
    }
    struct s3_error_detail detail = {0};
    enum err err = response_overrides_judge(r, &detail.message);
    if (err != ERR_OK) {
        return request_fail(r, err, &detail);
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
        bool kept = g->is_head || g->have_record || g->readers[0] != NULL;
        if (object->size_bytes == 0 && !kept) { // so that the next one is answered from here
            g->first = g->end = g->pos = 0;
            r->step = REQUEST_GET_FIRST;
            return STEP_AGAIN;
        }
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
        if (status == 200 && get_wants_checksums(r) &&
            origin_capabilities(r->origin)->has_checksums &&
            fill_version_checksums(object->headers).len == 0) {
            get_forget_version(g); // it is asked for by name, and no fill has brought it
            r->result = RESULT_BYPASS;
            r->reason = "checksum";
            r->step = REQUEST_PASS;
            return STEP_AGAIN;
        }
        return get_send(r, status, g->end - g->first, false);
    }
    struct subscription *sub = g->readers[0];
    if (sub != NULL && sub->weak && sub->run_end_byte < g->end) {
        get_forget_version(g); // several reads could not be known to be of one version
        r->result = RESULT_BYPASS;
        r->reason = "no-etag";
        r->step = REQUEST_PASS;
        return STEP_AGAIN;
    }
    bool at_hand = g->small.len > 0 || sub != NULL || get_place(g, g->pos) != NULL;
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
