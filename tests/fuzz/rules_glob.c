// SPDX-License-Identifier: Apache-2.0
// Any pattern against any text: no crash. A pattern of plain bytes matches itself and nothing else.
#include "proxy/core/core.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span rest = {(const char *)bytes, len}, pattern;
    if (len > 2048 || memchr(bytes, '\0', len) != NULL || !span_split(&rest, '\n', &pattern) ||
        pattern.len > 256) {
        return 0;
    }
    char *copy = strndup(pattern.ptr, pattern.len);
    bool matches = rules_glob_match(copy, rest);
    if (strpbrk(copy, "*?{}[],\\") == NULL) {
        check(matches == span_equal(pattern, rest));
        check(rules_glob_match(copy, pattern));
    }
    free(copy);
    return 0;
}
