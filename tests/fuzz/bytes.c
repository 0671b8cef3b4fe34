// SPDX-License-Identifier: Apache-2.0
// Numbers, hex, percent coding, dates and header lists of any bytes: no crash. A parsed value that
// is written again reads the same.
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/date.h"
#include "base/headers.h"
#include "base/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_numbers(struct span s)
{
    uint64_t value, again;
    uint8_t raw[32];
    char text[80];
    if (span_to_u64(s, &value)) {
        int n = snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
        check(s.len >= (size_t)n && span_to_u64((struct span){text, (size_t)n}, &again));
        check(again == value);
    }
    if (hex_decode(s, raw, sizeof(raw))) {
        hex_encode(raw, sizeof(raw), text);
        check(span_equal_nocase(s, span_from_cstr(text)));
    }
}

static void check_uri(struct span s)
{
    static char decoded[8192];
    size_t decoded_len;
    struct buf b;
    buf_init(&b, 1 << 16);
    if (span_uri_decode(s, decoded, &decoded_len)) {
        check(decoded_len <= s.len);
    }
    for (int keep_slash = 0; keep_slash < 2; keep_slash++) {
        b.len = 0;
        buf_append_uri_encoded(&b, s, keep_slash != 0);
        struct span coded = buf_span(&b);
        static char again[3 * 8192];
        check(buf_ok(&b) && span_uri_decode(coded, again, &decoded_len));
        check(span_equal((struct span){again, decoded_len}, s));
    }
    buf_done(&b);
}

static void check_dates(struct span s)
{
    char text[64];
    time_t t, again;
    if (date_parse_http(s, &t) && t >= 0 && t < 253402300800) {
        date_format_http(t, text);
        check(date_parse_http(span_from_cstr(text), &again) && again == t);
    }
    if (date_parse_amz(s, &t)) {
        date_format_amz(t, text);
        check(date_parse_amz(span_from_cstr(text), &again) && again == t);
        check(span_equal(s, span_from_cstr(text)));
    }
}

static void check_pieces(struct span s)
{
    struct span rest = s, piece;
    size_t sum = 0, count = 0;
    while (span_split(&rest, ',', &piece)) {
        check(piece.ptr >= s.ptr && piece.ptr + piece.len <= s.ptr + s.len);
        check(memchr(piece.ptr, ',', piece.len) == NULL);
        sum += piece.len;
        count++;
    }
    check(s.len == 0 || sum + count - 1 == s.len);
    (void)headers_list_has(s, SPAN("close"));
    (void)headers_is_hop_by_hop(s);
    (void)headers_value_is_clean(s);
    (void)headers_name_is_token(s);
    for (const char *c = log_quote(s); *c != '\0'; c++) {
        check((unsigned char)*c >= ' ');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span s = {(const char *)bytes, len};
    if (len == 0 || len > 4096) {
        return 0;
    }
    check_numbers(s);
    check_uri(s);
    check_dates(s);
    check_pieces(s);
    return 0;
}
