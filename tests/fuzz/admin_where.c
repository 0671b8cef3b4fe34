// SPDX-License-Identifier: Apache-2.0
// Any expression against any line: no crash. Of an expression and its negation, exactly one
// matches.
#include "control/admin_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char why[ADMIN_WHERE_WHY_MAX], *contrary = NULL;
    struct span rest = {(const char *)bytes, len}, text;
    if (len > 4096 || memchr(bytes, '\0', len) != NULL || !span_split(&rest, '\n', &text)) {
        return 0;
    }
    check(asprintf(&contrary, "not (%.*s)", (int)text.len, text.ptr) > 0);
    char *copy = strndup(text.ptr, text.len);
    struct admin_where *where = admin_where_new(copy, why);
    struct admin_where *other = admin_where_new(contrary, why);
    if (where != NULL && other != NULL) {
        check(admin_where_holds(where, rest) != admin_where_holds(other, rest));
    }
    admin_where_free(where);
    admin_where_free(other);
    free(copy);
    free(contrary);
    return 0;
}
