// SPDX-License-Identifier: Apache-2.0
// The bounds of a response head. tests/unit/origin/response_answer_test.c has the heads that lie.
#include <string.h>

#include "net/net.h"
#include "test.h"

#define OK200 "HTTP/1.1 200 OK\r\n"

// NUL bytes, endless heads and endless interim heads are refused.
Test(response_head, bounds)
{
    struct arena *arena = arena_new(1 << 20);
    struct response_head head;
    bool done = false;
    response_head_init(&head, arena, false);
    cr_assert_eq(response_head_line(&head, SPAN(OK200), &done), ERR_OK);
    cr_assert_eq(response_head_line(&head, SPAN("x: a\0b\r\n"), &done), ERR_ORIGIN_PROTOCOL);
    response_head_init(&head, arena, false);
    cr_assert_eq(response_head_line(&head, SPAN(OK200), &done), ERR_OK);
    enum err err = ERR_OK;
    unsigned lines = 0;
    while (err == ERR_OK) {
        err = response_head_line(&head, SPAN("x-amz-meta-a: b\r\n"), &done);
        lines++;
    }
    cr_assert_eq(lines, RESPONSE_HEADERS_MAX + 1);
    cr_assert_eq(err, ERR_ORIGIN_HEAD_TOO_LARGE);
    static char big[RESPONSE_HEAD_MAX];
    memset(big, 'a', sizeof(big));
    response_head_init(&head, arena, false);
    cr_assert_eq(response_head_line(&head, SPAN(OK200), &done), ERR_OK);
    cr_assert_eq(response_head_line(&head, (struct span){big, sizeof(big)}, &done),
                 ERR_ORIGIN_HEAD_TOO_LARGE);
    response_head_init(&head, arena, false);
    unsigned heads = 0;
    err = ERR_OK;
    while (err == ERR_OK) {
        err = response_head_line(&head, SPAN("HTTP/1.1 100 Continue\r\n"), &done);
        if (err == ERR_OK) {
            err = response_head_line(&head, SPAN("\r\n"), &done);
        }
        heads++;
    }
    cr_assert_eq(heads, RESPONSE_INTERIM_MAX + 1);
    arena_free(arena);
}

// libcurl takes any line that begins with a carriage return for the end of the head.
Test(response_head, line_that_begins_with_a_carriage_return_is_refused)
{
    static const char *const LINES[] = {"\r\r\n", "\rX: y\r\n", "\rX\n"};
    struct arena *arena = arena_new(1 << 20);
    struct response_head head;
    bool done = false;
    for (size_t i = 0; i < ARRAY_LEN(LINES); i++) {
        struct span line = span_from_cstr(LINES[i]);
        response_head_init(&head, arena, false);
        cr_assert_eq(response_head_line(&head, SPAN(OK200), &done), ERR_OK);
        cr_assert_eq(response_head_line(&head, line, &done), ERR_ORIGIN_PROTOCOL);
        response_head_init(&head, arena, false);
        cr_assert_eq(response_head_line(&head, SPAN("HTTP/1.1 100 Continue\r\n"), &done), ERR_OK);
        cr_assert_eq(response_head_line(&head, line, &done), ERR_ORIGIN_PROTOCOL);
    }
    arena_free(arena);
}
