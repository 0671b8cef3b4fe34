// SPDX-License-Identifier: Apache-2.0
// The beginning of any form upload: no crash; a key that was found is found again, and is the same,
// when more of the form has come.
#include "proxy/pass_private.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena *arena = arena_new(8 << 20);
    struct span rest = {(const char *)bytes, len}, type;
    if (len <= 16384 && span_split(&rest, '\n', &type) && rest.ptr != NULL) {
        struct span key = {NULL, 0}, first = {NULL, 0};
        bool is_found = false, is_signed;
        size_t step = rest.len / 16 + 1;
        for (size_t have = 0; have <= rest.len; have += step) {
            struct span head = {rest.ptr, have};
            if (pass_form_find_key(arena, type, head, &key, &is_signed) != PASS_FORM_KEY) {
                check(!is_found);
                continue;
            }
            check(!is_found || span_equal(key, first));
            first = key;
            is_found = true;
        }
    }
    arena_free(arena);
    return 0;
}
