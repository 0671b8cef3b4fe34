// SPDX-License-Identifier: Apache-2.0
// What libcurl lets through and a cache must not believe: two Content-Lengths, Content-Length
// beside Transfer-Encoding, odd numbers, bare line feeds, folded lines, a 200 to a ranged request,
// a 206 with another range. Whatever bears on where the body ends is an error at once; other
// malformed lines are dropped, never repeated to a client, and make the answer unstorable.
#include "origin/response_gate.h"

#include "s3/s3.h"

#include <string.h>

void response_gate_init(struct response_gate *g, struct arena *arena, bool is_head_request)
{
    memset(g, 0, sizeof(*g));
    g->arena = arena;
    g->is_head_request = is_head_request;
    g->is_strict = true;
}

// --- Lines ---------------------------------------------------------------------------------------

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// "HTTP/1.x NNN[ reason]"
static enum err take_status_line(struct response_gate *g, struct span line)
{
    if (line.len < 12 || memcmp(line.ptr, "HTTP/1.", 7) != 0 ||
        (line.ptr[7] != '0' && line.ptr[7] != '1') || line.ptr[8] != ' ' ||
        (line.len > 12 && line.ptr[12] != ' ')) {
        return ERR_ORIGIN_PROTOCOL;
    }
    g->version_minor = (unsigned)(line.ptr[7] - '0');
    g->status = 0;
    for (int i = 9; i < 12; i++) {
        if (!is_digit(line.ptr[i])) {
            return ERR_ORIGIN_PROTOCOL;
        }
        g->status = g->status * 10 + (unsigned)(line.ptr[i] - '0');
    }
    if (g->status == 101 || g->status < 100 || g->status > 599) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (!header_value_is_clean(line)) {
        g->is_strict = false;
    }
    if (g->status < 200) {
        g->state = RESPONSE_INTERIM;
        return ++g->interim_count > RESPONSE_INTERIM_MAX ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    g->state = RESPONSE_HEADERS;
    return ERR_OK;
}

static enum err take_length(struct response_gate *g, struct span value)
{
    uint64_t length = 0;
    if (g->is_chunked || !span_to_u64(value, &length) || length > INT64_MAX) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (g->has_length) {
        g->is_strict = false;
        return length == g->length ? ERR_OK : ERR_ORIGIN_PROTOCOL;
    }
    g->has_length = true;
    g->length = length;
    return ERR_OK;
}

static enum err take_transfer_encoding(struct response_gate *g, struct span value)
{
    if (g->has_length || g->is_chunked || g->version_minor == 0 ||
        !span_equal_nocase(value, SPAN("chunked"))) {
        return ERR_ORIGIN_PROTOCOL;
    }
    g->is_chunked = true;
    return ERR_OK;
}

// Names on which it depends where the body ends or what it is.
static bool is_framing_name(struct span name)
{
    return span_equal_nocase(name, SPAN("Content-Length")) ||
           span_equal_nocase(name, SPAN("Transfer-Encoding")) ||
           span_equal_nocase(name, SPAN("Content-Range"));
}

static enum err take_folded(struct response_gate *g)
{
    g->is_strict = false;
    if (g->last_was_framing) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (g->has_last && g->headers.count > 0) {
        g->headers.count--; // only half of it is known
        g->has_last = false;
    }
    return ERR_OK;
}

static enum err take_header(struct response_gate *g, struct span line)
{
    if (line.ptr[0] == ' ' || line.ptr[0] == '\t') {
        return take_folded(g);
    }
    size_t colon = span_find(line, ':');
    struct span name = {line.ptr, colon};
    g->has_last = false;
    g->last_was_framing = is_framing_name(span_trim(name));
    if (colon == line.len || !header_name_is_token(name)) {
        g->is_strict = false;
        return g->last_was_framing ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    struct span value = span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1});
    if (!header_value_is_clean(value)) {
        g->is_strict = false;
        return g->last_was_framing ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    enum err err = ERR_OK;
    if (span_equal_nocase(name, SPAN("Content-Length"))) {
        err = take_length(g, value);
    } else if (span_equal_nocase(name, SPAN("Transfer-Encoding"))) {
        err = take_transfer_encoding(g, value);
    }
    if (err != ERR_OK) {
        return err;
    }
    struct span name_copy = arena_copy(g->arena, name), value_copy = arena_copy(g->arena, value);
    if (name_copy.ptr == NULL || value_copy.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    if (g->headers.count == RESPONSE_HEADERS_MAX) {
        return ERR_ORIGIN_PROTOCOL; // more headers than anybody sends
    }
    if (!headers_add(&g->headers, g->arena, name_copy, value_copy)) {
        return ERR_NO_MEMORY;
    }
    g->has_last = true;
    return ERR_OK;
}

static void head_complete(struct response_gate *g)
{
    g->state = RESPONSE_DONE;
    if (response_gate_has_body(g) && !g->has_length) {
        g->is_strict = false; // chunked, or ends with the connection
    }
    if (!response_gate_has_body(g) && g->is_chunked && !g->is_head_request) {
        g->is_strict = false;
    }
}

enum err response_gate_line(struct response_gate *g, struct span line, bool *ret_done)
{
    *ret_done = g->state == RESPONSE_DONE;
    if (*ret_done) {
        return ERR_OK; // a trailer: nothing of it is used
    }
    g->head_bytes += line.len;
    if (g->head_bytes > RESPONSE_HEAD_MAX || memchr(line.ptr, '\0', line.len) != NULL) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (line.len > 0 && line.ptr[line.len - 1] == '\n') {
        line.len--;
    } else {
        g->is_strict = false;
    }
    if (line.len > 0 && line.ptr[line.len - 1] == '\r') {
        line.len--;
    } else {
        g->is_strict = false; // a bare line feed
    }
    switch (g->state) {
    case RESPONSE_STATUS_LINE:
        return take_status_line(g, line);
    case RESPONSE_INTERIM:
        if (line.len == 0) {
            g->state = RESPONSE_STATUS_LINE;
        }
        return ERR_OK;
    case RESPONSE_HEADERS:
        if (line.len == 0) {
            head_complete(g);
            *ret_done = true;
            return ERR_OK;
        }
        return take_header(g, line);
    case RESPONSE_DONE:
        break;
    }
    return ERR_OK;
}

bool response_gate_has_body(const struct response_gate *g)
{
    return !g->is_head_request && g->status != 204 && g->status != 304;
}

// --- What the head says --------------------------------------------------------------------------

bool response_gate_is_replayed(struct span name)
{
    static const char *const names[] = {
        "ETag",
        "Last-Modified",
        "Content-Type",
        "Content-Encoding",
        "Content-Language",
        "Content-Disposition",
        "Cache-Control",
        "Expires",
        "x-amz-missing-meta",
        "x-amz-version-id",
        "x-amz-storage-class",
        "x-amz-tagging-count",
        "x-amz-restore",
        "x-amz-website-redirect-location",
        "x-amz-expiration",
        "x-amz-replication-status",
    };
    static const char *const prefixes[] = {"x-amz-meta-", "x-amz-server-side-encryption",
                                           "x-amz-object-lock-"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (span_equal_nocase(name, span_from_cstr(names[i]))) {
            return true;
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        struct span prefix = span_from_cstr(prefixes[i]);
        if (name.len >= prefix.len &&
            span_equal_nocase((struct span){name.ptr, prefix.len}, prefix)) {
            return true;
        }
    }
    return false;
}

static bool has_name_prefix(struct span name, struct span prefix)
{
    return name.len > prefix.len && span_equal_nocase((struct span){name.ptr, prefix.len}, prefix);
}

// "bytes a-b/total"; numbers only.
static bool parse_content_range(struct span value, uint64_t *ret_first, uint64_t *ret_last,
                                uint64_t *ret_total)
{
    if (value.len < 6 || !span_equal_nocase((struct span){value.ptr, 6}, SPAN("bytes "))) {
        return false;
    }
    struct span rest = {value.ptr + 6, value.len - 6};
    size_t dash = span_find(rest, '-'), slash = span_find(rest, '/');
    if (dash >= slash || slash >= rest.len) {
        return false;
    }
    return span_to_u64((struct span){rest.ptr, dash}, ret_first) &&
           span_to_u64((struct span){rest.ptr + dash + 1, slash - dash - 1}, ret_last) &&
           span_to_u64((struct span){rest.ptr + slash + 1, rest.len - slash - 1}, ret_total);
}

bool response_gate_unsatisfied_size(const struct response_gate *g, uint64_t *ret_size)
{
    struct span value;
    if (!headers_get(&g->headers, SPAN("Content-Range"), &value) ||
        !span_starts_with(value, SPAN("bytes */"))) {
        return false;
    }
    return span_to_u64((struct span){value.ptr + 8, value.len - 8}, ret_size);
}

// A strong entity tag: quoted, nothing but its own two quotes.
static bool is_strong_etag(struct span etag)
{
    return etag.len >= 3 && etag.ptr[0] == '"' && etag.ptr[etag.len - 1] == '"' &&
           memchr(etag.ptr + 1, '"', etag.len - 2) == NULL;
}

// What we always send the same way may be named in Vary.
static bool vary_is_harmless(struct span value)
{
    static const char *const fixed[] = {"Origin", "Accept-Encoding",
                                        "Access-Control-Request-Headers",
                                        "Access-Control-Request-Method"};
    struct span piece;
    while (span_split(&value, ',', &piece)) {
        bool known = span_trim(piece).len == 0;
        for (size_t i = 0; i < ARRAY_LEN(fixed); i++) {
            known = known || span_equal_nocase(span_trim(piece), span_from_cstr(fixed[i]));
        }
        if (!known) {
            return false;
        }
    }
    return true;
}

static bool headers_forbid_storing(const struct response_gate *g)
{
    bool speaks_s3 = false, plain_forbids = false;
    for (unsigned i = 0; i < g->headers.count; i++) {
        struct span name = g->headers.items[i].name, value = g->headers.items[i].value;
        if (span_equal_nocase(name, SPAN("Vary")) && !vary_is_harmless(value)) {
            return true;
        }
        if (has_name_prefix(name, SPAN("x-amz-server-side-encryption-customer-")) ||
            span_equal_nocase(name, SPAN("Set-Cookie"))) {
            return true;
        }
        if (has_name_prefix(name, SPAN("x-amz-"))) {
            speaks_s3 = true;
        }
        // Of an S3 object these are what its writer set for clients; of a plain web server they
        // bind us.
        if (span_equal_nocase(name, SPAN("Cache-Control")) &&
            (header_list_has(value, SPAN("private")) || header_list_has(value, SPAN("no-store")))) {
            plain_forbids = true;
        }
        if (span_equal_nocase(name, SPAN("Content-Encoding")) &&
            !span_equal_nocase(value, SPAN("identity"))) {
            plain_forbids = true;
        }
    }
    return plain_forbids && !speaks_s3;
}

static bool collect_headers(struct response_gate *g, bool whole, struct response_answer *answer)
{
    bool ok = true;
    for (unsigned i = 0; ok && i < g->headers.count; i++) {
        struct span name = g->headers.items[i].name, value = g->headers.items[i].value;
        if (has_name_prefix(name, SPAN("x-amz-checksum-"))) {
            ok = !whole || headers_add(&answer->checksums, g->arena, name, value);
            continue;
        }
        if (!response_gate_is_replayed(name)) {
            continue;
        }
        if (!has_name_prefix(name, SPAN("x-amz-meta-")) &&
            headers_count(&answer->headers, name) > 0) {
            continue; // the first of a name counts
        }
        if (span_equal_nocase(name, SPAN("Content-Encoding"))) {
            if (!aws_chunked_strip(g->arena, value, &value)) {
                return false;
            }
            if (value.len == 0) {
                continue;
            }
        }
        ok = headers_add(&answer->headers, g->arena, name, value);
    }
    return ok;
}

// --- Judgement -----------------------------------------------------------------------------------

static enum err judge_partial(const struct response_gate *g, const struct response_asked *asked,
                              struct response_answer *answer)
{
    uint64_t first = 0, last = 0, total = 0;
    struct span value, type;
    if (!asked->has_range || asked->head ||
        headers_count(&g->headers, SPAN("Content-Range")) != 1 ||
        !headers_get(&g->headers, SPAN("Content-Range"), &value) ||
        !parse_content_range(value, &first, &last, &total)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (headers_get(&g->headers, SPAN("Content-Type"), &type) && type.len >= 20 &&
        span_equal_nocase((struct span){type.ptr, 20}, SPAN("multipart/byteranges"))) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (total == 0 || total > INT64_MAX || first != asked->first ||
        last != min_u64(asked->last, total - 1) || last < first ||
        (g->has_length && g->length != last - first + 1)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    answer->size_bytes = total;
    answer->body_first = first;
    answer->body_len = last - first + 1;
    return ERR_OK;
}

static enum err judge_whole(const struct response_gate *g, const struct response_asked *asked,
                            struct response_answer *answer)
{
    if (!g->has_length || headers_count(&g->headers, SPAN("Content-Range")) > 0) {
        return ERR_ORIGIN_PROTOCOL; // the object's size is not known
    }
    // To a range only an empty object may be answered whole.
    if (asked->has_range && !asked->head && !(g->length == 0 && asked->first == 0)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    answer->size_bytes = g->length;
    answer->body_first = 0;
    answer->body_len = asked->head ? 0 : g->length;
    return ERR_OK;
}

enum err response_gate_judge(struct response_gate *g, const struct response_asked *asked,
                             struct response_answer *ret_answer)
{
    struct response_answer answer;
    struct span value = {NULL, 0};
    memset(&answer, 0, sizeof(answer));
    check(g->state == RESPONSE_DONE);
    enum err err = g->status == 206   ? judge_partial(g, asked, &answer)
                   : g->status == 200 ? judge_whole(g, asked, &answer)
                                      : ERR_ORIGIN_PROTOCOL;
    if (err != ERR_OK) {
        return err;
    }
    (void)headers_get(&g->headers, SPAN("ETag"), &answer.etag);
    answer.weak_or_no_etag =
        headers_count(&g->headers, SPAN("ETag")) != 1 || !is_strong_etag(answer.etag);
    if (asked->if_match.len > 0 && !span_equal_cstr(asked->if_match, "*") &&
        !span_equal(asked->if_match, answer.etag)) {
        return ERR_ORIGIN_CHANGED;
    }
    (void)headers_get(&g->headers, SPAN("x-amz-version-id"), &answer.version_id);
    if (headers_get(&g->headers, SPAN("Last-Modified"), &value) &&
        !http_date_parse(value, &answer.last_modified)) {
        answer.last_modified = 0;
    }
    answer.storable = g->is_strict && !answer.weak_or_no_etag && !headers_forbid_storing(g);
    bool whole = g->status == 200 || (answer.body_first == 0 && answer.size_bytes > 0 &&
                                      answer.body_len == answer.size_bytes);
    if (!collect_headers(g, whole, &answer)) {
        return ERR_NO_MEMORY;
    }
    *ret_answer = answer;
    return ERR_OK;
}
