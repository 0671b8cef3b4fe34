// SPDX-License-Identifier: Apache-2.0
// What libcurl lets through and a cache must not believe: two Content-Lengths, Content-Length
// beside Transfer-Encoding, odd numbers, bare line feeds, folded lines, a 206 with another range.
// Whatever bears on where the body ends is an error at once; other malformed lines are dropped,
// never repeated to a client, and make the answer unstorable.
#include "origin/response_head.h"

#include <string.h>

#include "base/date.h"
#include "s3/s3.h"

void response_head_init(struct response_head *h, struct arena *arena, bool is_head_request)
{
    memset(h, 0, sizeof(*h));
    h->arena = arena;
    h->is_head_request = is_head_request;
    h->is_strict = true;
}

// --- Lines ---------------------------------------------------------------------------------------

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// "HTTP/1.x NNN[ reason]"
static enum err take_status_line(struct response_head *h, struct span line)
{
    if (line.len < 12 || memcmp(line.ptr, "HTTP/1.", 7) != 0 ||
        (line.ptr[7] != '0' && line.ptr[7] != '1') || line.ptr[8] != ' ' ||
        (line.len > 12 && line.ptr[12] != ' ')) {
        return ERR_ORIGIN_PROTOCOL;
    }
    h->version_minor = (unsigned)(line.ptr[7] - '0');
    h->status = 0;
    for (int i = 9; i < 12; i++) {
        if (!is_digit(line.ptr[i])) {
            return ERR_ORIGIN_PROTOCOL;
        }
        h->status = h->status * 10 + (unsigned)(line.ptr[i] - '0');
    }
    if (h->status == 101 || h->status < 100 || h->status > 599) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (!headers_value_is_clean(line)) {
        h->is_strict = false;
    }
    if (h->status < 200) {
        h->state = RESPONSE_INTERIM;
        return ++h->interim_count > RESPONSE_INTERIM_MAX ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    h->state = RESPONSE_HEADERS;
    return ERR_OK;
}

static enum err take_length(struct response_head *h, struct span value)
{
    uint64_t length = 0;
    if (h->is_chunked || !span_to_u64(value, &length) || length > INT64_MAX) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (h->has_length) {
        h->is_strict = false;
        return length == h->length ? ERR_OK : ERR_ORIGIN_PROTOCOL;
    }
    h->has_length = true;
    h->length = length;
    return ERR_OK;
}

static enum err take_transfer_encoding(struct response_head *h, struct span value)
{
    if (h->has_length || h->is_chunked || h->version_minor == 0 ||
        !span_equal_nocase(value, SPAN("chunked"))) {
        return ERR_ORIGIN_PROTOCOL;
    }
    h->is_chunked = true;
    return ERR_OK;
}

// Names on which it depends where the body ends or what it is.
static bool is_framing_name(struct span name)
{
    return span_equal_nocase(name, SPAN("Content-Length")) ||
           span_equal_nocase(name, SPAN("Transfer-Encoding")) ||
           span_equal_nocase(name, SPAN("Content-Range"));
}

static enum err take_folded(struct response_head *h)
{
    h->is_strict = false;
    if (h->last_was_framing) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (h->has_last && h->headers.count > 0) {
        h->headers.count--; // only half of it is known
        h->has_last = false;
    }
    return ERR_OK;
}

static enum err take_header(struct response_head *h, struct span line)
{
    if (line.ptr[0] == ' ' || line.ptr[0] == '\t') {
        return take_folded(h);
    }
    size_t colon = span_find(line, ':');
    struct span name = {line.ptr, colon};
    h->has_last = false;
    h->last_was_framing = is_framing_name(span_trim(name));
    if (colon == line.len || !headers_name_is_token(name)) {
        h->is_strict = false;
        return h->last_was_framing ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    struct span value = span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1});
    if (!headers_value_is_clean(value)) {
        h->is_strict = false;
        return h->last_was_framing ? ERR_ORIGIN_PROTOCOL : ERR_OK;
    }
    enum err err = ERR_OK;
    if (span_equal_nocase(name, SPAN("Content-Length"))) {
        err = take_length(h, value);
    } else if (span_equal_nocase(name, SPAN("Transfer-Encoding"))) {
        err = take_transfer_encoding(h, value);
    }
    if (err != ERR_OK) {
        return err;
    }
    struct span name_copy = arena_copy(h->arena, name), value_copy = arena_copy(h->arena, value);
    if (name_copy.ptr == NULL || value_copy.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    if (h->headers.count == RESPONSE_HEADERS_MAX) {
        return ERR_ORIGIN_HEAD_TOO_LARGE;
    }
    if (!headers_add(&h->headers, h->arena, name_copy, value_copy)) {
        return ERR_NO_MEMORY;
    }
    h->has_last = true;
    return ERR_OK;
}

static bool has_body(const struct response_head *h)
{
    return !h->is_head_request && h->status != 204 && h->status != 304;
}

static void head_complete(struct response_head *h)
{
    h->state = RESPONSE_DONE;
    if (has_body(h) && !h->has_length) {
        h->is_strict = false; // chunked, or ends with the connection
    }
    if (!has_body(h) && h->is_chunked && !h->is_head_request) {
        h->is_strict = false;
    }
}

enum err response_head_line(struct response_head *h, struct span line, bool *ret_done)
{
    *ret_done = h->state == RESPONSE_DONE;
    if (*ret_done) {
        return ERR_OK; // a trailer: nothing of it is used
    }
    h->head_bytes += line.len;
    if (h->head_bytes > RESPONSE_HEAD_MAX) {
        return ERR_ORIGIN_HEAD_TOO_LARGE;
    }
    if (memchr(line.ptr, '\0', line.len) != NULL) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (line.len > 0 && line.ptr[line.len - 1] == '\n') {
        line.len--;
    } else {
        h->is_strict = false;
    }
    if (line.len > 0 && line.ptr[line.len - 1] == '\r') {
        line.len--;
    } else {
        h->is_strict = false; // a bare line feed
    }
    switch (h->state) {
    case RESPONSE_STATUS_LINE:
        return take_status_line(h, line);
    case RESPONSE_INTERIM:
        if (line.len == 0) {
            h->state = RESPONSE_STATUS_LINE;
        }
        return ERR_OK;
    case RESPONSE_HEADERS:
        if (line.len == 0) {
            head_complete(h);
            *ret_done = true;
            return ERR_OK;
        }
        return take_header(h, line);
    case RESPONSE_DONE:
        break;
    }
    return ERR_OK;
}

// --- What the head says --------------------------------------------------------------------------

// Is this a header that a reply from cache repeats? Checksums are not among them.
static bool is_replayed(struct span name)
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

struct content_range {
    bool is_unsatisfied; // "bytes */total"
    bool has_total;      // not "bytes first-last/*"
    uint64_t first, last, total;
};

// RFC 9110, 14.4: "bytes first-last/total", "bytes first-last/*", "bytes */total". The unit in any
// case, and blanks after it; numbers only.
static bool parse_content_range(struct span value, struct content_range *ret_range)
{
    struct content_range range = {0};
    if (value.len < 6 || !span_equal_nocase((struct span){value.ptr, 5}, SPAN("bytes")) ||
        (value.ptr[5] != ' ' && value.ptr[5] != '\t')) {
        return false;
    }
    struct span rest = span_trim((struct span){value.ptr + 6, value.len - 6});
    size_t slash = span_find(rest, '/');
    if (slash >= rest.len) {
        return false;
    }
    struct span bytes = {rest.ptr, slash}, total = {rest.ptr + slash + 1, rest.len - slash - 1};
    size_t dash = span_find(bytes, '-');
    range.is_unsatisfied = span_equal_cstr(bytes, "*");
    range.has_total = range.is_unsatisfied || !span_equal_cstr(total, "*");
    bool is_known =
        range.is_unsatisfied ||
        (dash < bytes.len && span_to_u64((struct span){bytes.ptr, dash}, &range.first) &&
         span_to_u64((struct span){bytes.ptr + dash + 1, bytes.len - dash - 1}, &range.last));
    *ret_range = range;
    return is_known && (!range.has_total || span_to_u64(total, &ret_range->total));
}

bool response_head_unsatisfied_size(const struct response_head *h, uint64_t *ret_size)
{
    struct span value;
    struct content_range range;
    if (!headers_get(&h->headers, SPAN("Content-Range"), &value) ||
        !parse_content_range(value, &range) || !range.is_unsatisfied) {
        return false;
    }
    *ret_size = range.total;
    return true;
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

// Stores say so in each answer; a web server, or a page of a balancer, does not.
static bool speaks_s3(const struct response_head *h)
{
    bool speaks = false;
    for (unsigned i = 0; i < h->headers.count && !speaks; i++) {
        speaks = has_name_prefix(h->headers.items[i].name, SPAN("x-amz-")) ||
                 has_name_prefix(h->headers.items[i].name, SPAN("x-goog-"));
    }
    return speaks;
}

// Does this header of a plain web server forbid storing? An S3 object's Cache-Control and
// Content-Encoding were set by its writer, for clients. A cookie in an S3 answer comes from a
// balancer, and is neither stored nor passed on.
static enum origin_forbids header_of_web_forbids(struct span name, struct span value)
{
    if (span_equal_nocase(name, SPAN("Set-Cookie"))) {
        return ORIGIN_FORBIDS_COOKIE;
    }
    if (span_equal_nocase(name, SPAN("Cache-Control")) &&
        (headers_list_has(value, SPAN("private")) || headers_list_has(value, SPAN("no-store")))) {
        return ORIGIN_FORBIDS_CACHE_CONTROL;
    }
    if (span_equal_nocase(name, SPAN("Content-Encoding")) &&
        !span_equal_nocase(value, SPAN("identity"))) {
        return ORIGIN_FORBIDS_CODING;
    }
    return ORIGIN_FORBIDS_NOTHING;
}

static enum origin_forbids headers_forbid_storing(const struct response_head *h, bool is_s3)
{
    enum origin_forbids forbids = ORIGIN_FORBIDS_NOTHING;
    for (unsigned i = 0; i < h->headers.count && forbids == ORIGIN_FORBIDS_NOTHING; i++) {
        struct span name = h->headers.items[i].name, value = h->headers.items[i].value;
        if (span_equal_nocase(name, SPAN("Vary")) && !vary_is_harmless(value)) {
            forbids = ORIGIN_FORBIDS_VARY;
        } else if (has_name_prefix(name, SPAN("x-amz-server-side-encryption-customer-"))) {
            forbids = ORIGIN_FORBIDS_CUSTOMER_KEY;
        } else if (!is_s3) {
            forbids = header_of_web_forbids(name, value);
        }
    }
    return forbids;
}

// Has each header of this name this value? Of checksums that contradict each other nobody knows
// which one is right.
static bool is_consistent(const struct response_head *h, struct span name, struct span value)
{
    bool is_same = true;
    for (unsigned i = 0; is_same && i < h->headers.count; i++) {
        is_same = !span_equal_nocase(h->headers.items[i].name, name) ||
                  span_equal(h->headers.items[i].value, value);
    }
    return is_same;
}

static bool collect_headers(struct response_head *h, bool whole, struct response_answer *answer)
{
    bool ok = true;
    for (unsigned i = 0; ok && i < h->headers.count; i++) {
        struct span name = h->headers.items[i].name, value = h->headers.items[i].value;
        if (has_name_prefix(name, SPAN("x-amz-checksum-"))) {
            if (whole && headers_count(&answer->checksums, name) == 0 &&
                is_consistent(h, name, value)) {
                ok = headers_add(&answer->checksums, h->arena, name, value);
            }
            continue;
        }
        if (!is_replayed(name)) {
            continue;
        }
        if (!has_name_prefix(name, SPAN("x-amz-meta-")) &&
            headers_count(&answer->headers, name) > 0) {
            continue; // the first of a name counts
        }
        if (span_equal_nocase(name, SPAN("Content-Encoding"))) {
            if (!aws_chunked_strip(h->arena, value, &value)) {
                return false;
            }
            if (value.len == 0) {
                continue;
            }
        }
        ok = headers_add(&answer->headers, h->arena, name, value);
    }
    return ok;
}

// --- Judgement -----------------------------------------------------------------------------------

// Of a 206: the one range that its body is.
static bool one_range(const struct response_head *h, struct content_range *ret_range)
{
    struct span value, type;
    bool has_parts = headers_get(&h->headers, SPAN("Content-Type"), &type) && type.len >= 20 &&
                     span_equal_nocase((struct span){type.ptr, 20}, SPAN("multipart/byteranges"));
    return !has_parts && headers_count(&h->headers, SPAN("Content-Range")) == 1 &&
           headers_get(&h->headers, SPAN("Content-Range"), &value) &&
           parse_content_range(value, ret_range) && !ret_range->is_unsatisfied;
}

// An error if the answer names no bytes, contradicts itself or names bytes that the request did not
// ask for. A correct answer that says less than a fill needs (no total, fewer bytes than requested)
// is passed on uncached.
static enum err judge_partial(const struct response_head *h, const struct response_asked *asked,
                              struct response_answer *answer)
{
    struct content_range range;
    uint64_t asked_first = asked->has_range ? asked->first : 0;
    uint64_t asked_last = asked->has_range ? asked->last : UINT64_MAX;
    if (asked->head) {
        return ERR_ORIGIN_UNFIT;
    }
    if (!one_range(h, &range)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (asked->suffix > 0) {
        asked_first =
            range.has_total ? range.total - min_u64(asked->suffix, range.total) : range.first;
        asked_last = UINT64_MAX;
    }
    if (range.first != asked_first || range.last > asked_last || range.last < range.first ||
        range.last >= INT64_MAX || (range.has_total && range.last >= range.total) ||
        (h->has_length && h->length != range.last - range.first + 1)) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (!range.has_total || range.total > INT64_MAX ||
        range.last != min_u64(asked_last, range.total - 1)) {
        return ERR_ORIGIN_UNFIT;
    }
    answer->size_bytes = range.total;
    answer->body_first = range.first;
    answer->body_len = range.last - range.first + 1;
    return ERR_OK;
}

static enum err judge_whole(const struct response_head *h, const struct response_asked *asked,
                            struct response_answer *answer)
{
    // To a range only an empty object may be answered whole.
    bool from_start = asked->first == 0 || asked->suffix > 0;
    bool is_whole_to_range = asked->has_range && !asked->head && !(h->length == 0 && from_start);
    // Without a length the object's size is not known, and its end may be the connection's.
    // Content-Range has no meaning here: the body may be all of the object, or only what it says.
    if (!h->has_length || is_whole_to_range ||
        headers_count(&h->headers, SPAN("Content-Range")) > 0) {
        return ERR_ORIGIN_UNFIT;
    }
    answer->size_bytes = h->length;
    answer->body_first = 0;
    answer->body_len = asked->head ? 0 : h->length;
    return ERR_OK;
}

enum err response_head_judge(struct response_head *h, const struct response_asked *asked,
                             struct response_answer *ret_answer)
{
    struct response_answer answer;
    struct span value = {NULL, 0};
    memset(&answer, 0, sizeof(answer));
    check(h->state == RESPONSE_DONE);
    enum err err = h->status == 206   ? judge_partial(h, asked, &answer)
                   : h->status == 200 ? judge_whole(h, asked, &answer)
                                      : ERR_ORIGIN_PROTOCOL;
    if (err != ERR_OK) {
        return err;
    }
    (void)headers_get(&h->headers, SPAN("ETag"), &answer.etag);
    answer.weak_or_no_etag =
        headers_count(&h->headers, SPAN("ETag")) != 1 || !is_strong_etag(answer.etag);
    if (asked->if_match.len > 0 && !span_equal_cstr(asked->if_match, "*") &&
        !span_equal(asked->if_match, answer.etag)) {
        return ERR_ORIGIN_CHANGED;
    }
    (void)headers_get(&h->headers, SPAN("x-amz-version-id"), &answer.version_id);
    if (headers_get(&h->headers, SPAN("Last-Modified"), &value) &&
        !date_parse_http(value, &answer.last_modified)) {
        answer.last_modified = 0;
    }
    answer.forbids = answer.weak_or_no_etag ? ORIGIN_FORBIDS_ETAG
                     : !h->is_strict        ? ORIGIN_FORBIDS_FRAMING
                                     : headers_forbid_storing(h, asked->of_store || speaks_s3(h));
    bool whole = h->status == 200 || (answer.body_first == 0 && answer.size_bytes > 0 &&
                                      answer.body_len == answer.size_bytes);
    if (!collect_headers(h, whole, &answer)) {
        return ERR_NO_MEMORY;
    }
    *ret_answer = answer;
    return ERR_OK;
}

bool response_head_names_part(const struct response_head *h, struct span *ret_etag,
                              uint64_t *ret_first)
{
    struct content_range range = {0};
    struct span etag = {NULL, 0};
    check(h->state == RESPONSE_DONE);
    if (!h->is_strict || !h->has_length || h->length == 0 ||
        headers_forbid_storing(h, speaks_s3(h)) != ORIGIN_FORBIDS_NOTHING ||
        headers_count(&h->headers, SPAN("ETag")) != 1 ||
        !headers_get(&h->headers, SPAN("ETag"), &etag) || !is_strong_etag(etag)) {
        return false;
    }
    bool is_whole = h->status == 200 && headers_count(&h->headers, SPAN("Content-Range")) == 0;
    bool is_range = h->status == 206 && one_range(h, &range) && range.has_total &&
                    range.first <= range.last && range.last < range.total &&
                    h->length - 1 == range.last - range.first;
    if (!is_whole && !is_range) {
        return false;
    }
    *ret_etag = etag;
    *ret_first = range.first;
    return true;
}
