// SPDX-License-Identifier: Apache-2.0
// Reads the headers and the range of an origin's answer, and checks that it answers the request.
#include "origin/response_answer.h"

#include <string.h>

#include "base/date.h"
#include "s3/s3.h"

// --- Reading the head ----------------------------------------------------------------------------

// Returns true for headers that replies from the cache repeat. Checksums are not among them.
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
        if (span_starts_with_nocase(name, span_from_cstr(prefixes[i]))) {
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
    bool is_unsatisfied; // The header is "bytes */total".
    bool has_total;      // The header is not "bytes first-last/*".
    uint64_t first, last, total;
};

// Parses a Content-Range (RFC 9110, 14.4): "bytes first-last/total", "bytes first-last/*" or "bytes
// */total". "bytes" may be in any case, and several blanks may follow.
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

bool response_answer_unsatisfied_size(const struct response_head *h, uint64_t *ret_size)
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

// Returns true for a strong ETag: at least one character in quotes, and no other quotes.
static bool is_strong_etag(struct span etag)
{
    return etag.len >= 3 && etag.ptr[0] == '"' && etag.ptr[etag.len - 1] == '"' &&
           memchr(etag.ptr + 1, '"', etag.len - 2) == NULL;
}

// Returns true if Vary names only headers that all fetches send with the same value, or not at all.
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

// Returns true if the headers show that an S3 store answered. A web server, or a load balancer with
// an error page, has no such headers.
static bool speaks_s3(const struct response_head *h)
{
    bool speaks = false;
    for (unsigned i = 0; i < h->headers.count && !speaks; i++) {
        speaks = has_name_prefix(h->headers.items[i].name, SPAN("x-amz-")) ||
                 has_name_prefix(h->headers.items[i].name, SPAN("x-goog-"));
    }
    return speaks;
}

// Returns why this header forbids storing an answer that is not S3's. In an S3 answer, the object's
// writer has set Cache-Control and Content-Encoding, for clients. A cookie in an S3 answer comes
// from a load balancer. It is neither stored nor passed on, so it forbids nothing.
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

// Returns true if all headers of this name have the same value. Checksums that contradict each
// other are dropped, because nobody knows which is right.
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
            continue; // only the first header of a name counts
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

// Reads the range that is the body of a 206. Returns false if there is no valid range, or more than
// one.
static bool one_range(const struct response_head *h, struct content_range *ret_range)
{
    struct span value, type;
    bool has_parts = headers_get(&h->headers, SPAN("Content-Type"), &type) && type.len >= 20 &&
                     span_equal_nocase((struct span){type.ptr, 20}, SPAN("multipart/byteranges"));
    return !has_parts && headers_count(&h->headers, SPAN("Content-Range")) == 1 &&
           headers_get(&h->headers, SPAN("Content-Range"), &value) &&
           parse_content_range(value, ret_range) && !ret_range->is_unsatisfied;
}

// Checks the range of a 206. ERR_ORIGIN_PROTOCOL: the answer names no bytes, contradicts itself, or
// names bytes that were not requested. ERR_ORIGIN_UNFIT: it is correct, but has less than a fill
// needs (no total, or fewer bytes than requested), so it is passed on uncached.
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
    // A 200 may answer a range request only if the object is empty.
    bool from_start = asked->first == 0 || asked->suffix > 0;
    bool is_whole_to_range = asked->has_range && !asked->head && !(h->length == 0 && from_start);
    // Without a length, the size of the object is unknown, and the body may end with the
    // connection. With a Content-Range, the body of a 200 may be the whole object, or only that
    // range.
    if (!h->has_length || is_whole_to_range ||
        headers_count(&h->headers, SPAN("Content-Range")) > 0) {
        return ERR_ORIGIN_UNFIT;
    }
    answer->size_bytes = h->length;
    answer->body_first = 0;
    answer->body_len = asked->head ? 0 : h->length;
    return ERR_OK;
}

enum err response_answer_judge(struct response_head *h, const struct response_asked *asked,
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

bool response_answer_names_part(const struct response_head *h, struct span *ret_etag,
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
