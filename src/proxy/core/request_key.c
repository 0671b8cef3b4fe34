// SPDX-License-Identifier: Apache-2.0
// Builds the keys of a request: their names in the cache and at the origin.

#include "proxy/core/core.h"

const struct sigv4_credentials *request_origin_credentials(const struct request *r)
{
    const struct access_keys_principal *p = r->principal.entry;
    return p != NULL ? p->origin_credentials : NULL;
}

struct span request_realm(const struct request *r)
{
    const struct access_keys_principal *p = r->principal.entry;
    return p != NULL && p->realm.len > 0 ? p->realm : r->pw->proxy->realm;
}

uint64_t request_epoch(const struct request *r)
{
    return fill_epoch(r->pw->store, r->origin, r->origin_bucket);
}

struct object_key *request_object_key_beside(struct request *r, struct span key)
{
    const struct proxy_rule *rule = r->rule;
    check(r->origin != NULL && rule != NULL);
    check(rule->block_size_bytes > 0 && r->origin_bucket.len > 0);
    struct object_key from = {
        .realm = request_realm(r),
        .bucket = r->origin_bucket,
        .key = key,
        .epoch = request_epoch(r),
        .origin = r->origin,
        .limits = {.cache = rule->cache,
                   .max_object_size_bytes = rule->max_object_size_bytes,
                   .block_size_bytes = rule->block_size_bytes,
                   .group = rules_group(r->pw->live, rule, r->s3.bucket, key)},
        .credentials = request_origin_credentials(r)};
    from.table = from.credentials != NULL ? r->principal.table : NULL;
    check(from.credentials == NULL || from.table != NULL); // the table owns the credentials
    return object_key_new_in(&r->spare_key, r->pw->store, &from);
}

struct object_key *request_object_key(struct request *r)
{
    return request_object_key_beside(r, r->s3.key);
}
