// SPDX-License-Identifier: Apache-2.0
// Error documents hold code, text and the elements given, and stay well-formed whatever a client
// sent.
#include "s3/s3.h"

#include <string.h>

#include "test.h"

static struct buf out;

static const char *render(enum err err, const struct s3_error_detail *detail)
{
    buf_done(&out);
    buf_init(&out, 1 << 20);
    s3_error_render(err, detail, &out);
    cr_assert(buf_ok(&out));
    return buf_cstr(&out);
}

Test(s3_error, code_and_text_come_from_the_table)
{
    cr_assert_str_eq(render(ERR_NO_SUCH_KEY, NULL),
                     "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>NoSuchKey</Code>"
                     "<Message>The specified key does not exist.</Message></Error>");
}

Test(s3_error, details_are_escaped_elements)
{
    struct s3_error_detail detail = {.message = SPAN("no \"<&>\""),
                                     .resource = SPAN("/b/k"),
                                     .request_id = SPAN("R1"),
                                     .host_id = SPAN("H1"),
                                     .key = SPAN("a\x01<b"),
                                     .range_requested = SPAN("bytes=9-"),
                                     .has_actual_object_size = true};
    const char *xml = render(ERR_INVALID_RANGE, &detail);
    cr_assert_not_null(strstr(xml, "<Message>no &quot;&lt;&amp;&gt;&quot;</Message>"));
    cr_assert_not_null(strstr(xml, "<Key>a&#x1;&lt;b</Key>"));
    cr_assert_not_null(strstr(xml, "<RangeRequested>bytes=9-</RangeRequested>"));
    cr_assert_not_null(strstr(xml, "<ActualObjectSize>0</ActualObjectSize>"));
    cr_assert_not_null(strstr(xml, "<Resource>/b/k</Resource><RequestId>R1</RequestId>"
                                   "<HostId>H1</HostId></Error>"));
    cr_assert_null(strstr(xml, "<Condition>"));
}

Test(s3_error, bytes_that_are_not_utf8_are_shown_escaped)
{
    static const char *const BAD[] = {"a\xff",    "\xc0\xaf",         "\xed\xa0\x80",
                                      "\xe2\x82", "\xf5\x80\x80\x80", "\x80"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        struct s3_error_detail detail = {.key = span_from_cstr(BAD[i])};
        const char *xml = render(ERR_NO_SUCH_KEY, &detail);
        for (const char *c = xml; *c != '\0'; c++) {
            cr_assert((unsigned char)*c < 0x80, "%zu", i);
        }
    }
    struct s3_error_detail good = {.key = SPAN("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80")};
    cr_assert_not_null(strstr(render(ERR_NO_SUCH_KEY, &good), "<Key>\xc3\xa9"));
}

Test(s3_error, a_rendered_error_can_be_read)
{
    struct s3_error_detail detail = {.region = SPAN("eu-central-1"), .endpoint = SPAN("e&f")};
    const char *xml = render(ERR_AUTHORIZATION_MALFORMED, &detail);
    struct arena *arena = arena_new(1 << 16);
    struct s3_error_body body;
    cr_assert(s3_error_read(arena, span_from_cstr(xml), &body));
    cr_assert(span_equal_cstr(body.code, "AuthorizationHeaderMalformed"));
    cr_assert(span_equal_cstr(body.region, "eu-central-1"));
    cr_assert(span_equal_cstr(body.endpoint, "e&f"));
    arena_free(arena);
}

Test(s3_error, every_status_of_the_table_has_a_reason)
{
    for (int err = 1; err < ERR_COUNT_; err++) {
        const struct error_row *row = error_row((enum err)err);
        cr_assert_str_neq(s3_status_reason(row->status, span_from_cstr(row->s3_code)), "Unknown",
                          "%s", row->name);
    }
    cr_assert_str_eq(s3_status_reason(503, SPAN("SlowDown")), "Slow Down");
    cr_assert_str_eq(s3_status_reason(503, SPAN("")), "Service Unavailable");
    cr_assert_str_eq(s3_status_reason(799, SPAN("")), "Unknown");
}

// SlowDown tells clients to send less. So only throttling and Forebay's own limits have it, and no
// failure to reach the origin.
Test(s3_error, slow_down_means_throttling_or_a_limit)
{
    static const enum err slow[] = {ERR_NO_MEMORY,       ERR_LIMIT,       ERR_DESCRIPTORS,
                                    ERR_ORIGIN_SLOWDOWN, ERR_ORIGIN_FULL, ERR_OVERLOAD};
    for (int err = 1; err < ERR_COUNT_; err++) {
        const struct error_row *row = error_row((enum err)err);
        bool is_slow = false;
        for (size_t i = 0; i < ARRAY_LEN(slow); i++) {
            is_slow |= slow[i] == (enum err)err;
        }
        const char *code = is_slow ? "SlowDown" : "ServiceUnavailable";
        cr_assert(row->status == 503 ? strcmp(row->s3_code, code) == 0 : !is_slow, "%s", row->name);
    }
}

// Proves that a packed answer is unpacked unchanged, and that an answer which was never packed, or
// is cut, is refused.
Test(s3_error, packed_answers_come_back)
{
    struct arena *arena = arena_new(1 << 20);
    struct s3_error_answer answer = {.status = 404, .document = SPAN("<Error>\n\n</Error>")}, back;
    cr_assert(headers_add(&answer.headers, arena, SPAN("x-amz-delete-marker"), SPAN("true")));
    cr_assert(headers_add(&answer.headers, arena, SPAN("Allow"), SPAN("GET: x, y")));
    cr_assert(headers_add(&answer.headers, arena, SPAN("x-empty"), SPAN("")));
    cr_assert(headers_add(&answer.headers, arena, SPAN("x-evil"), SPAN("a\nb: c")));
    struct buf packed;
    buf_init(&packed, 1 << 16);
    s3_error_pack(&answer, &packed);
    cr_assert(s3_error_unpack(arena, buf_span(&packed), &back));
    cr_assert_eq(back.status, 404);
    cr_assert_eq(back.headers.count, 3);
    struct span value;
    cr_assert(headers_get(&back.headers, SPAN("allow"), &value));
    cr_assert(span_equal(value, SPAN("GET: x, y")));
    cr_assert(span_equal(back.document, answer.document));
    size_t head = packed.len - answer.document.len;
    for (size_t len = 0; len < head; len++) {
        cr_assert(!s3_error_unpack(arena, (struct span){packed.ptr, len}, &back), "%zu", len);
    }
    static const char *const bad[] = {
        "", "\n", "x\n\n", "1000\n\n", "404", "404\n", "404\nno colon\n\n"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert(!s3_error_unpack(arena, span_from_cstr(bad[i]), &back), "%zu", i);
    }
    buf_done(&packed);
    arena_free(arena);
}

// Proves which parts of an origin's document the client gets: its code, message and details,
// escaped again. Left out are parts that name the origin or its keys, and parts that not every
// parser takes for XML.
Test(s3_error, code_message_and_details_are_adopted)
{
    struct arena *arena = arena_new(1 << 20);
    struct s3_error_detail detail = {.resource = SPAN("/mine")};
    bool key = false, bucket = false;
    cr_assert(s3_error_adopt(
        arena,
        SPAN("<Error><Code>Odd</Code><Message>a &amp; b</Message><Key>k</Key><A>&lt;x&gt;</A>"
             "<Deep><B>no</B></Deep><y:>no</y:><x:y:z>no</x:y:z>"
             "<RequestId>theirs</RequestId><HostId>theirs</HostId>"
             "<Resource>/theirs</Resource><StringToSign>theirs</StringToSign></Error>"),
        &detail, &key, &bucket));
    cr_assert(key && !bucket);
    cr_assert_str_eq(render(ERR_NO_SUCH_KEY, &detail),
                     "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>Odd</Code>"
                     "<Message>a &amp; b</Message><A>&lt;x&gt;</A><Resource>/mine</Resource>"
                     "</Error>");
    static const char *const bad[] = {"",
                                      "<html/>",
                                      "<Error/>",
                                      "<Error><Code></Code></Error>",
                                      "<Error><Code>a</Code>",
                                      "<E><Code>a</Code></E>"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert(!s3_error_adopt(arena, span_from_cstr(bad[i]), &detail, &key, &bucket), "%zu", i);
    }
    arena_free(arena);
}
