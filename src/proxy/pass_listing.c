// SPDX-License-Identifier: Apache-2.0
// The sizes of objects that a listing names, kept as a hint while it passes through: who reads one of
// them for the first time and wants its checksums may ask for it whole. On the request's worker.
#include "proxy/pass_private.h"

void pass_listing_begin(struct pass_state *p)
{
    bool is_listing = p->s3.operation == S3_ListObjects || p->s3.operation == S3_ListObjectsV2;
    if (!is_listing || !origin_capabilities(p->request->origin)->has_checksums) {
        return;
    }
    p->list_scan = arena_alloc(p->arena, sizeof(*p->list_scan));
    if (p->list_scan == NULL) {
        return;
    }
    const struct s3_param *encoding = s3_param_find(&p->s3, "encoding-type");
    s3_list_scan_begin(p->list_scan,
                       encoding != NULL && span_equal_nocase(encoding->value, SPAN("url")));
}

static void on_entry(void *ctx, struct span key, uint64_t size_bytes)
{
    struct pass_state *p = ctx;
    fill_describe_listed(p->pw->fill, p->relay.bucket, key, size_bytes);
}

void pass_listing_take(struct pass_state *p, struct span data)
{
    if (p->list_scan != NULL && p->relay.status == 200) {
        s3_list_scan_feed(p->list_scan, data, on_entry, p);
    }
}
