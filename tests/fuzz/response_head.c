// SPDX-License-Identifier: Apache-2.0
// Any bytes as an origin's head: no crash. A storable answer names one length, one strong version
// and the requested range, and none of its replayed headers holds a control byte. First byte: the
// kind of request.
#include "origin/response_answer.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_answer(const struct response_head *head, const struct response_asked *asked,
                         const struct response_answer *answer)
{
    for (unsigned i = 0; i < answer->headers.count; i++) {
        check(headers_name_is_token(answer->headers.items[i].name));
        check(headers_value_is_clean(answer->headers.items[i].value));
    }
    check(answer->body_len <= answer->size_bytes);
    check(answer->body_first + answer->body_len <= answer->size_bytes);
    if (asked->has_range && !asked->head && answer->size_bytes > 0) {
        check(head->status == 206 && answer->body_first == asked->first);
        check(answer->body_first + answer->body_len - 1 ==
              min_u64(asked->last, answer->size_bytes - 1));
    }
    if (answer->forbids == ORIGIN_FORBIDS_NOTHING) {
        check(head->is_strict && head->has_length && !head->is_chunked);
        check(!answer->weak_or_no_etag && answer->etag.len >= 3 && answer->etag.ptr[0] == '"');
        check(asked->head || head->length == answer->body_len);
    }
    if (asked->if_match.len > 0) {
        check(span_equal(asked->if_match, answer->etag));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    if (len < 1 || len > 100000) {
        return 0;
    }
    struct arena *arena = arena_new(4u << 20);
    struct response_asked asked = {.head = (bytes[0] & 1) != 0,
                                   .has_range = (bytes[0] & 2) != 0,
                                   .first = (bytes[0] & 4) != 0 ? 100 : 0,
                                   .last = (bytes[0] & 8) != 0 ? UINT64_MAX : 199};
    if ((bytes[0] & 16) != 0) {
        asked.if_match = SPAN("\"e\"");
    }
    struct response_head head;
    struct response_answer answer;
    struct span rest = {(const char *)bytes + 1, len - 1};
    bool done = false;
    enum err err = ERR_OK;
    response_head_init(&head, arena, asked.head);
    while (err == ERR_OK && !done && rest.len > 0) {
        size_t end = span_find(rest, '\n');
        struct span line = {rest.ptr, end < rest.len ? end + 1 : rest.len};
        err = response_head_line(&head, line, &done);
        rest = (struct span){rest.ptr + line.len, rest.len - line.len};
    }
    if (err == ERR_OK && done && response_answer_judge(&head, &asked, &answer) == ERR_OK) {
        check_answer(&head, &asked, &answer);
    }
    arena_free(arena);
    return 0;
}
