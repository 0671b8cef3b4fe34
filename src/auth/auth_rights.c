// SPDX-License-Identifier: Apache-2.0
// Decides whether the rights of an access key cover the effects of a request. Pure; any thread.
#include "auth/auth.h"

static enum err refuse_with(struct arena *arena, struct s3_error_detail *ret_detail,
                            const char *what, struct span name, enum err err)
{
    char *text = arena_printf(arena, "Access key %.*s %s on this resource",
                              (int)min_u64(name.len, 128), name.ptr != NULL ? name.ptr : "", what);
    ret_detail->message = span_from_cstr(text);
    return err;
}

// Checks the right for every effect of the request. If the body names keys, gate_allows() checks
// them once the body has been read.
enum err auth_rights_judge(struct arena *arena, const struct access_keys_principal *p,
                           enum s3_operation operation, const struct s3_effects *effects,
                           struct s3_error_detail *ret_detail)
{
    if (effects->copy.is_there && !effects->copy.is_understood) {
        ret_detail->message = SPAN("Copy Source must be a bucket and a key here");
        return ERR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < effects->count; i++) {
        if (!access_keys_allowed(p, &effects->items[i])) {
            bool is_unknown = (effects->items[i].rights & S3_ALLOW_ANY) != 0;
            const char *what =
                is_unknown ? "needs the right 'any'"
                           : arena_printf(arena, "is not allowed %s", s3_operation_name(operation));
            return refuse_with(arena, ret_detail, what, p->id, ERR_ACCESS_DENIED);
        }
    }
    return ERR_OK;
}
