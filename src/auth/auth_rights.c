// SPDX-License-Identifier: Apache-2.0
// Decides whether the rights of an access key cover the effects of a request. Pure; any thread.
#include "auth/auth.h"

// Says why the key may not have this effect. Names `any` only if it is what the key lacks, because
// an operator who reads the message may grant it.
static struct span refusal(struct arena *arena, const struct access_keys_principal *p,
                           enum s3_operation operation, const struct s3_effect *effect)
{
    struct s3_effect any = *effect;
    any.rights = S3_ALLOW_ANY;
    bool needs_any = effect->scope != S3_SCOPE_SOMEWHERE && (effect->rights & S3_ALLOW_ANY) != 0;
    const char *what = needs_any && !access_keys_allowed(p, &any)
                           ? "needs the right 'any'"
                           : arena_printf(arena, "is not allowed %s", s3_operation_name(operation));
    return span_from_cstr(arena_printf(arena, "Access key %.*s %s on this resource",
                                       (int)min_u64(p->id.len, 128), p->id.ptr, what));
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
            ret_detail->message = refusal(arena, p, operation, &effects->items[i]);
            return ERR_ACCESS_DENIED;
        }
    }
    return ERR_OK;
}
