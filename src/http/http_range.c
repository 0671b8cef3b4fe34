// SPDX-License-Identifier: Apache-2.0
// Range, If-Range and conditional requests as S3 reads them: only one well-formed range counts, and
// malformed headers are ignored instead of refused. Pure; any thread; allocates nothing.
#include "base/date.h"
#include "http/http.h"

#include <string.h>

// --- Range ---------------------------------------------------------------------------------------

struct range_spec {
    struct span first, last; // digits, either may be empty but not both
};

static bool is_digits(struct span s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') {
            return false;
        }
    }
    return true;
}

static bool range_spec_parse(struct span piece, struct range_spec *ret_spec)
{
    size_t dash = span_find(piece, '-');
    if (dash == piece.len) {
        return false;
    }
    struct range_spec spec = {
        .first = {piece.ptr, dash},
        .last = {piece.ptr + dash + 1, piece.len - dash - 1},
    };
    if (!is_digits(spec.first) || !is_digits(spec.last) ||
        (spec.first.len == 0 && spec.last.len == 0)) {
        return false;
    }
    *ret_spec = spec;
    return true;
}

static struct span without_leading_zeros(struct span digits)
{
    while (digits.len > 0 && digits.ptr[0] == '0') {
        digits.ptr++;
        digits.len--;
    }
    return digits;
}

// Compares numbers of any length, so that a reversed range is detected beyond 64 bits too.
static int compare_digits(struct span a, struct span b)
{
    a = without_leading_zeros(a);
    b = without_leading_zeros(b);
    if (a.len != b.len) {
        return a.len < b.len ? -1 : 1;
    }
    return a.len == 0 ? 0 : memcmp(a.ptr, b.ptr, a.len);
}

static uint64_t saturated(struct span digits)
{
    uint64_t value;
    digits = without_leading_zeros(digits);
    if (digits.len == 0) {
        return 0;
    }
    return span_to_u64(digits, &value) ? value : UINT64_MAX;
}

static bool range_spec_is_reversed(const struct range_spec *spec)
{
    return spec->first.len > 0 && spec->last.len > 0 && compare_digits(spec->first, spec->last) > 0;
}

void http_range_parse(struct span value, struct http_range *ret_range)
{
    *ret_range = (struct http_range){.kind = HTTP_RANGE_NONE};
    struct span unit = SPAN("bytes=");
    if (value.len <= unit.len || !span_equal_nocase((struct span){value.ptr, unit.len}, unit)) {
        return;
    }
    struct span rest = {value.ptr + unit.len, value.len - unit.len};
    struct range_spec spec = {{NULL, 0}, {NULL, 0}};
    struct span piece;
    unsigned count = 0;
    while (span_split(&rest, ',', &piece)) {
        if (!range_spec_parse(count == 0 ? piece : span_trim(piece), &spec) ||
            range_spec_is_reversed(&spec)) {
            return;
        }
        count++;
    }
    if (count != 1) {
        ret_range->several = count > 1;
        return;
    }
    if (spec.first.len == 0) {
        ret_range->kind = HTTP_RANGE_SUFFIX;
        ret_range->suffix = saturated(spec.last);
        return;
    }
    ret_range->first = saturated(spec.first);
    if (spec.last.len == 0) {
        ret_range->kind = HTTP_RANGE_FIRST;
        ret_range->last = UINT64_MAX;
        return;
    }
    ret_range->kind = HTTP_RANGE_FIRST_LAST;
    ret_range->last = saturated(spec.last);
}

enum http_range_result http_range_resolve(const struct http_range *range, uint64_t size,
                                          uint64_t *ret_first, uint64_t *ret_last)
{
    if (range->kind == HTTP_RANGE_NONE) {
        return HTTP_RANGE_WHOLE;
    }
    if (range->kind == HTTP_RANGE_SUFFIX) {
        if (range->suffix == 0) {
            return HTTP_RANGE_UNSATISFIABLE;
        }
        if (size == 0) {
            return HTTP_RANGE_WHOLE;
        }
        *ret_first = range->suffix >= size ? 0 : size - range->suffix;
        *ret_last = size - 1;
        return HTTP_RANGE_PARTIAL;
    }
    if (range->first >= size) {
        return HTTP_RANGE_UNSATISFIABLE;
    }
    *ret_first = range->first;
    *ret_last = min_u64(range->last, size - 1);
    check(*ret_first <= *ret_last);
    return HTTP_RANGE_PARTIAL;
}

// --- ETags ---------------------------------------------------------------------------------------

static bool etag_is_weak(struct span etag)
{
    etag = span_trim(etag);
    return span_starts_with(etag, SPAN("W/"));
}

struct span http_etag_strip(struct span etag)
{
    etag = span_trim(etag);
    if (span_starts_with(etag, SPAN("W/"))) {
        etag.ptr += 2;
        etag.len -= 2;
    }
    // Strips all quotes, because clients also send unquoted and doubly quoted forms.
    while (etag.len > 0 && etag.ptr[0] == '"') {
        etag.ptr++;
        etag.len--;
    }
    while (etag.len > 0 && etag.ptr[etag.len - 1] == '"') {
        etag.len--;
    }
    return etag;
}

bool http_etag_is_strong(struct span etag)
{
    return !etag_is_weak(etag) && http_etag_strip(etag).len > 0;
}

static bool etag_matches(struct span candidate, struct span etag, bool strong)
{
    if (strong && (etag_is_weak(candidate) || etag_is_weak(etag))) {
        return false;
    }
    struct span a = http_etag_strip(candidate), b = http_etag_strip(etag);
    return a.len > 0 && span_equal(a, b);
}

static bool etag_list_matches(struct span list, struct span etag, bool strong)
{
    if (span_equal(http_etag_strip(list), SPAN("*")) || etag_matches(list, etag, strong)) {
        return true; // etag_matches() here is for a list of one ETag that contains a comma
    }
    struct span piece;
    while (span_split(&list, ',', &piece)) {
        if (etag_matches(piece, etag, strong)) {
            return true;
        }
    }
    return false;
}

bool http_etag_list_matches(struct span list, struct span etag)
{
    return etag_list_matches(list, etag, false);
}

// --- Conditions ----------------------------------------------------------------------------------

void http_conditions_parse(const struct headers *headers, struct http_conditions *ret_conditions)
{
    struct http_conditions c = {0};
    struct span value;
    c.has_if_match = headers_get(headers, SPAN("If-Match"), &c.if_match);
    c.has_if_none_match = headers_get(headers, SPAN("If-None-Match"), &c.if_none_match);
    c.has_if_range = headers_get(headers, SPAN("If-Range"), &c.if_range);
    // A date that cannot be parsed counts as absent.
    c.has_if_modified_since = headers_get(headers, SPAN("If-Modified-Since"), &value) &&
                              date_parse_http(value, &c.if_modified_since);
    c.has_if_unmodified_since = headers_get(headers, SPAN("If-Unmodified-Since"), &value) &&
                                date_parse_http(value, &c.if_unmodified_since);
    *ret_conditions = c;
}

bool http_conditions_any(const struct http_conditions *c)
{
    return c->has_if_match || c->has_if_none_match || c->has_if_modified_since ||
           c->has_if_unmodified_since || c->has_if_range;
}

enum http_condition http_conditions_evaluate(struct http_conditions *c, struct span etag,
                                             time_t last_modified)
{
    c->failed = NULL;
    if (c->has_if_match) {
        if (!etag_list_matches(c->if_match, etag, true)) {
            c->failed = "If-Match";
            return HTTP_CONDITION_FAILED;
        }
    } else if (c->has_if_unmodified_since && last_modified > c->if_unmodified_since) {
        c->failed = "If-Unmodified-Since";
        return HTTP_CONDITION_FAILED;
    }
    if (c->has_if_none_match) {
        if (etag_list_matches(c->if_none_match, etag, false)) {
            c->failed = "If-None-Match";
            return HTTP_CONDITION_NOT_MODIFIED;
        }
    } else if (c->has_if_modified_since && last_modified != 0 &&
               last_modified <= c->if_modified_since) {
        c->failed = "If-Modified-Since";
        return HTTP_CONDITION_NOT_MODIFIED;
    }
    return HTTP_CONDITION_PASS;
}

bool http_if_range_holds(const struct http_conditions *c, struct span etag)
{
    return !c->has_if_range || etag_matches(c->if_range, etag, true);
}
