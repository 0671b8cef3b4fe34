// SPDX-License-Identifier: Apache-2.0
// Any form upload: no crash. A key that was found is found again, and is the same, when more of the
// form has arrived. The rest is judged the same in one piece and byte by byte.
#include "proxy/pass/pass_private.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_tail(struct span boundary, struct span data)
{
    struct pass_form_tail whole, bytewise;
    pass_form_tail_init(&whole, boundary);
    pass_form_tail_init(&bytewise, boundary);
    enum err err = ERR_OK;
    for (size_t i = 0; err == ERR_OK && i < data.len; i++) {
        err = pass_form_tail_feed(&bytewise, (struct span){data.ptr + i, 1});
    }
    check(pass_form_tail_feed(&whole, data) == err);
    check(err != ERR_OK || pass_form_tail_is_closed(&whole) == pass_form_tail_is_closed(&bytewise));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena *arena = arena_new(8 << 20);
    struct span rest = {(const char *)bytes, len}, type;
    if (len <= 16384 && span_split(&rest, '\n', &type) && rest.ptr != NULL) {
        struct headers headers = {0};
        struct pass_form form;
        struct span first = {NULL, 0};
        bool is_found = false;
        size_t step = rest.len / 16 + 1;
        check(headers_add(&headers, arena, SPAN("Content-Type"), type));
        for (size_t have = 0; have <= rest.len; have += step) {
            struct span head = {rest.ptr, have};
            if (pass_form_read(arena, &headers, SPAN("bkt"), head, &form) != PASS_FORM_KEY) {
                check(!is_found);
                continue;
            }
            check(form.file_at <= have && form.key.len > 0);
            check(!is_found || span_equal(form.key, first));
            first = form.key;
            is_found = true;
        }
        if (is_found) {
            check_tail(form.boundary,
                       (struct span){rest.ptr + form.file_at, rest.len - form.file_at});
        }
    }
    arena_free(arena);
    return 0;
}
