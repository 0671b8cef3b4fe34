// SPDX-License-Identifier: Apache-2.0
// Proves: a refusal names the right `any` only if the access key lacks that right and needs it.
#include "auth/auth.h"

#include "test.h"

static struct span refusal(struct arena *arena, unsigned ops, const char *method,
                           const char *target, const char *header)
{
    const struct access_keys_allow allow = {SPAN("data"), SPAN(""), ops};
    const struct access_keys_principal p = {.id = SPAN("ALICE"), .allow = &allow, .allow_count = 1};
    const struct s3_domains no_domains = {NULL, 0};
    struct headers headers = {0};
    struct s3_request r;
    struct s3_effects effects;
    struct s3_error_detail detail = {0};
    if (header != NULL) {
        cr_assert(headers_add(&headers, arena, span_from_cstr(header), SPAN("public-read")));
    }
    cr_assert_eq(s3_request_parse(arena, span_from_cstr(method), SPAN("h"), span_from_cstr(target),
                                  &headers, &no_domains, &r),
                 ERR_OK);
    cr_assert_eq(s3_effects_find(arena, &r, &headers, r.bucket, &effects), ERR_OK);
    enum err err = auth_rights_judge(arena, &p, r.operation, &effects, &detail);
    cr_assert_eq(err, detail.message.len > 0 ? ERR_ACCESS_DENIED : ERR_OK);
    return detail.message;
}

Test(auth_rights, refusal_names_any_only_if_the_key_lacks_and_needs_it)
{
    static const struct {
        unsigned ops;
        const char *method, *target, *header, *what;
    } rows[] = {
        {S3_ALLOW_READ, "GET", "/data?location", NULL, NULL},
        {S3_ALLOW_DELETE, "HEAD", "/data", NULL, NULL},
        {S3_ALLOW_READ, "GET", "/other?location", NULL, "is not allowed GetBucketLocation"},
        {S3_ALLOW_READ, "HEAD", "/other", NULL, "is not allowed HeadBucket"},
        {S3_ALLOW_READ, "POST", "/data?delete", NULL, "is not allowed DeleteObjects"},
        {S3_ALLOW_WRITE, "DELETE", "/data", NULL, "is not allowed DeleteBucket"},
        {S3_ALLOW_WRITE, "PUT", "/data?policy", NULL, "needs the right 'any'"},
        {S3_ALLOW_WRITE, "PATCH", "/data/k", NULL, "needs the right 'any'"},
        {S3_ALLOW_WRITE, "PUT", "/data", NULL, NULL},
        {S3_ALLOW_WRITE, "PUT", "/data", "x-amz-acl", "needs the right 'any'"},
        {S3_ALLOW_ANY, "PUT", "/data", "x-amz-acl", "is not allowed CreateBucket"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena *arena = arena_new(1u << 20);
        const char *want =
            rows[i].what == NULL
                ? ""
                : arena_printf(arena, "Access key ALICE %s on this resource", rows[i].what);
        struct span got =
            refusal(arena, rows[i].ops, rows[i].method, rows[i].target, rows[i].header);
        cr_expect(span_equal_cstr(got, want), "row %zu: %.*s", i, (int)got.len, got.ptr);
        arena_free(arena);
    }
}
