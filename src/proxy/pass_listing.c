// SPDX-License-Identifier: Apache-2.0
// What a listing names, kept as a hint while it passes through: the sizes of objects, because who reads one of
// them for the first time and wants its checksums may ask for it whole; and in which order the large ones
// stand, because they may be read in it (series.c). On the request's worker.
#include "proxy/pass_private.h"

#include <string.h>

// Names that other ones are hidden behind have gaps between them.
static bool names_all(const struct s3_request *s3)
{
    const struct s3_param *delimiter = s3_param_find(s3, "delimiter");
    return delimiter == NULL || delimiter->value.len == 0 || span_equal_cstr(delimiter->value, "/");
}

void pass_listing_begin(struct pass_state *p)
{
    bool is_listing = p->s3.operation == S3_ListObjects || p->s3.operation == S3_ListObjectsV2;
    char *former = is_listing && names_all(&p->s3) ? arena_alloc(p->arena, S3_KEY_MAX) : NULL;
    p->list_former = (struct span){former, 0};
    bool is_of_use = former != NULL || origin_capabilities(p->request->origin)->has_checksums;
    p->list_scan = is_listing && is_of_use ? arena_alloc(p->arena, sizeof(*p->list_scan)) : NULL;
    if (p->list_scan == NULL) {
        return;
    }
    const struct s3_param *encoding = s3_param_find(&p->s3, "encoding-type");
    s3_list_scan_begin(p->list_scan,
                       encoding != NULL && span_equal_nocase(encoding->value, SPAN("url")));
}

static bool are_of_one_folder(struct span a, struct span b)
{
    size_t same = 0;
    while (same < a.len && same < b.len && a.ptr[same] == b.ptr[same]) {
        same++;
    }
    return memchr(a.ptr + same, '/', a.len - same) == NULL &&
           memchr(b.ptr + same, '/', b.len - same) == NULL;
}

// Objects that read-ahead follows: others are read in one run.
static void note_order(struct pass_state *p, struct span key, uint64_t size_bytes)
{
    struct span former = p->list_former;
    if (former.ptr == NULL || key.len > S3_KEY_MAX ||
        size_bytes <= store_run_bytes_max(p->pw->store)) {
        return;
    }
    bool follows =
        former.len > 0 && span_compare(former, key) < 0 && are_of_one_folder(former, key);
    series_listed(p->pw->proxy->series, p->request->origin, p->relay.bucket, key, follows);
    memcpy((char *)(uintptr_t)former.ptr, key.ptr, key.len);
    p->list_former.len = key.len;
}

static void on_entry(void *ctx, struct span key, uint64_t size_bytes)
{
    struct pass_state *p = ctx;
    if (origin_capabilities(p->request->origin)->has_checksums) {
        fill_describe_listed(p->pw->fill, p->relay.bucket, key, size_bytes);
    }
    note_order(p, key, size_bytes);
}

void pass_listing_take(struct pass_state *p, struct span data)
{
    if (p->list_scan != NULL && p->relay.status == 200) {
        s3_list_scan_feed(p->list_scan, data, on_entry, p);
    }
}
