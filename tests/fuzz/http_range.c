// SPDX-License-Identifier: Apache-2.0
// Ranges, conditions and ETag lists: first <= last < size always. A satisfied range equals that of
// a parser with 128-bit numbers.
#include <string.h>

#include "http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef unsigned __int128 wide;

#define WIDE_MAX ((wide)1 << 100)

// Parses digits, saturated far above 64 bits. Returns false for anything else.
static bool wide_number(struct span s, wide *ret_value)
{
    wide value = 0;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') {
            return false;
        }
        value = value * 10 + (wide)(s.ptr[i] - '0');
        if (value > WIDE_MAX) {
            value = WIDE_MAX;
        }
    }
    *ret_value = value;
    return s.len > 0;
}

static enum http_range_result model(struct span value, uint64_t size, uint64_t *first,
                                    uint64_t *last)
{
    struct span unit = SPAN("bytes=");
    if (value.len < unit.len || !span_equal_nocase((struct span){value.ptr, unit.len}, unit)) {
        return HTTP_RANGE_WHOLE;
    }
    struct span spec = {value.ptr + unit.len, value.len - unit.len};
    size_t dash = span_find(spec, '-');
    if (dash == spec.len) {
        return HTTP_RANGE_WHOLE;
    }
    struct span left = {spec.ptr, dash}, right = {spec.ptr + dash + 1, spec.len - dash - 1};
    wide a = 0, b = WIDE_MAX;
    if (left.len == 0) {
        if (!wide_number(right, &b)) {
            return HTTP_RANGE_WHOLE;
        }
        if (b == 0) {
            return HTTP_RANGE_UNSATISFIABLE;
        }
        if (size == 0) {
            return HTTP_RANGE_WHOLE;
        }
        *first = b >= size ? 0 : size - (uint64_t)b;
        *last = size - 1;
        return HTTP_RANGE_PARTIAL;
    }
    if (!wide_number(left, &a) || (right.len > 0 && (!wide_number(right, &b) || b < a))) {
        return HTTP_RANGE_WHOLE;
    }
    if (a >= size) {
        return HTTP_RANGE_UNSATISFIABLE;
    }
    *first = (uint64_t)a;
    *last = b >= size ? size - 1 : (uint64_t)b;
    return HTTP_RANGE_PARTIAL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 9 || size > 4096) {
        return 0;
    }
    uint64_t object_size;
    memcpy(&object_size, data, sizeof(object_size));
    object_size >>= data[8] % 64;
    struct span text = {(const char *)data + 9, size - 9};

    struct http_range range;
    uint64_t first = 0, last = 0, want_first = 0, want_last = 0;
    http_range_parse(text, &range);
    enum http_range_result result = http_range_resolve(&range, object_size, &first, &last);
    // Numbers beyond the model's range may look reversed to one side and not to the other.
    if (text.len < 36) {
        check(result == model(text, object_size, &want_first, &want_last));
        check(first == want_first && last == want_last);
    }
    check(result != HTTP_RANGE_PARTIAL || (first <= last && last < object_size));

    struct span list = text, etag = SPAN("\"e-1\"");
    (void)http_etag_list_matches(list, etag);
    struct span stripped = http_etag_strip(text);
    check(stripped.len <= text.len);
    check(stripped.len == 0 || http_etag_list_matches(text, text) ||
          memchr(text.ptr, ',', text.len) != NULL);

    struct arena *arena = arena_new(65536);
    struct headers headers = {0};
    static const char *const names[] = {"If-Match", "If-None-Match", "If-Modified-Since",
                                        "If-Unmodified-Since", "If-Range"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if ((data[8] >> i & 1) != 0) {
            check(headers_add(&headers, arena, span_from_cstr(names[i]), text));
        }
    }
    struct http_conditions c;
    http_conditions_parse(&headers, &c);
    enum http_condition verdict = http_conditions_evaluate(&c, etag, 1700000000);
    check((verdict == HTTP_CONDITION_PASS) == (c.failed == NULL));
    (void)http_if_range_holds(&c, etag);
    arena_free(arena);
    return 0;
}
