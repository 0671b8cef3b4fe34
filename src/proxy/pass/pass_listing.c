// SPDX-License-Identifier: Apache-2.0
// Reads the names in a listing while it passes through. A client that may list only a part of the
// bucket sees no names outside that part. This check is needed because an origin may list from the
// start position (marker, start-after, a token) whatever the prefix (SeaweedFS 4.30 does). If a
// client has rights in some buckets only, its list of buckets leaves out the others. The listing is
// also used for two hints. The first is the sizes of objects: if a client reads one of them for the
// first time and wants its checksums, Forebay may request it whole. The second is the order of
// large objects, because clients may read them in that order (series.c). On the request's worker.
#include "proxy/pass/pass_private.h"

#include "stats/stats.h"

#include <string.h>

// Returns true if the listing has the objects in their order and leaves none out between two names.
// With a delimiter other than "/" it may leave some out.
static bool names_all(const struct s3_request *s3)
{
    const struct s3_param *delimiter = s3_param_find(s3, "delimiter");
    return delimiter == NULL || delimiter->value.len == 0 || span_equal_cstr(delimiter->value, "/");
}

static bool names_keys(enum s3_operation operation)
{
    return operation == S3_ListObjects || operation == S3_ListObjectsV2 ||
           operation == S3_ListObjectVersions || operation == S3_ListMultipartUploads;
}

static bool is_encoded(const struct s3_request *s3)
{
    const struct s3_param *encoding = s3_param_find(s3, "encoding-type");
    return encoding != NULL && span_equal_nocase(encoding->value, SPAN("url"));
}

bool pass_listing_is_limited(const struct request *r)
{
    const struct span everything = {"", 0};
    return r->principal.verified && r->principal.entry != NULL && r->s3.bucket.len > 0 &&
           !access_keys_may_see(r->principal.entry, r->s3.bucket, everything);
}

static void judge_begin(struct pass_state *p)
{
    check(p->list_names == NULL);
    if (!names_keys(p->s3.operation) || !pass_listing_is_limited(p->request)) {
        return;
    }
    p->list_names = arena_alloc(p->arena, sizeof(*p->list_names));
    check(p->list_names != NULL); // a request cannot fill the arena
    s3_list_names_begin(p->list_names, &p->s3, is_encoded(&p->s3));
}

static bool may_show_bucket(void *ctx, struct span name)
{
    const struct request *r = ((const struct pass_state *)ctx)->request;
    check(r != NULL && r->principal.entry != NULL);
    return access_keys_may_see_bucket(r->principal.entry, name);
}

// Returns true if the request lists buckets and the client may see only some of them. The reply
// then leaves out the others.
static bool hides_buckets(const struct pass_state *p)
{
    const struct request *r = p->request;
    const struct span any = {"", 0};
    bool lists_buckets =
        p->s3.operation == S3_ListBuckets || p->s3.operation == S3_ListDirectoryBuckets;
    return lists_buckets && r->principal.verified &&
           !access_keys_may_see_bucket(r->principal.entry, any);
}

// Only a whole list can be judged, because a part may begin or end within a name. So the origin is
// not asked for a part. S3 ignores Range here, too.
static void ask_for_whole(struct pass_state *p)
{
    headers_remove(&p->headers, SPAN("Range"));
    headers_remove(&p->headers, SPAN("If-Range"));
}

enum err pass_listing_plan(struct pass_state *p)
{
    bool hides = hides_buckets(p);
    if (hides || (names_keys(p->s3.operation) && pass_listing_is_limited(p->request))) {
        ask_for_whole(p);
    }
    if (!hides) {
        return ERR_OK;
    }
    if (!chunk_budget_try_charge(BUDGET_LISTINGS, 0, S3_LIST_BUCKETS_BYTES)) {
        return ERR_OVERLOAD;
    }
    p->list_buckets = s3_list_buckets_new(may_show_bucket, p);
    return ERR_OK;
}

void pass_listing_done(struct pass_state *p)
{
    if (p->list_buckets != NULL) {
        s3_list_buckets_free(p->list_buckets);
        chunk_budget_discharge(BUDGET_LISTINGS, S3_LIST_BUCKETS_BYTES);
    }
}

void pass_listing_begin(struct pass_state *p)
{
    check(p->list_scan == NULL);
    check(p->call.phase == CALL_NONE);
    judge_begin(p);
    bool is_listing = p->s3.operation == S3_ListObjects || p->s3.operation == S3_ListObjectsV2;
    char *former = is_listing && names_all(&p->s3) ? arena_alloc(p->arena, S3_KEY_MAX) : NULL;
    p->list_former = (struct span){former, 0};
    bool is_of_use = former != NULL || origin_capabilities(p->request->origin)->has_checksums;
    p->list_scan = is_listing && is_of_use ? arena_alloc(p->arena, sizeof(*p->list_scan)) : NULL;
    if (p->list_scan == NULL) {
        return;
    }
    s3_list_scan_begin(p->list_scan, is_encoded(&p->s3));
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

// Records the order of large objects for read-ahead. A smaller object is read in one run anyway.
static void note_order(struct pass_state *p, struct span key, uint64_t size_bytes)
{
    struct span former = p->list_former;
    check(former.len <= S3_KEY_MAX);
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
    check(as_pass(p)->request != NULL);
    if (origin_capabilities(p->request->origin)->has_checksums) {
        fill_describe_listed(p->pw->fill, p->relay.bucket, key, size_bytes);
    }
    note_order(p, key, size_bytes);
}

bool pass_listing_may_show(void *ctx, struct span name)
{
    const struct request *r = ((const struct pass_state *)ctx)->request;
    check(r != NULL);
    check(r->principal.entry != NULL);
    return access_keys_may_see(r->principal.entry, r->s3.bucket, name);
}

// Returns true if the answer is, or may hold, a list.
static bool is_list(const struct pass_state *p)
{
    return p->relay.status / 100 == 2;
}

bool pass_listing_take(struct pass_state *p, struct span data)
{
    check(p->request != NULL);
    check(pass_has_head(p));
    if (!is_list(p)) {
        return true;
    }
    if (p->list_names != NULL &&
        !s3_list_names_feed(p->list_names, data, pass_listing_may_show, p)) {
        bool is_first = p->err == ERR_OK && !p->list_names->is_unreadable;
        stats_add(COUNTER_listings_refused, is_first ? 1 : 0); // counted once per request
        return false;
    }
    if (p->list_scan != NULL) {
        s3_list_scan_feed(p->list_scan, data, on_entry, p);
    }
    return true;
}

bool pass_listing_is_filtered(const struct pass_state *p)
{
    return p->list_buckets != NULL && is_list(p);
}

// Returns the message for a list of buckets that Forebay cannot filter.
static struct span unreadable(const struct pass_state *p)
{
    return s3_list_buckets_is_full(p->list_buckets)
               ? SPAN("The origin's list of buckets has more different names of elements and "
                      "attributes, or longer ones, than Forebay reads, and this access key has "
                      "rights in some buckets only")
               : SPAN("The origin's list of buckets cannot be read, and this access key has rights "
                      "in some buckets only");
}

bool pass_listing_filter(struct pass_state *p, struct span data)
{
    check(pass_listing_is_filtered(p));
    while (data.len > 0) {
        struct span shown, piece = {data.ptr, min_u64(data.len, S3_LIST_BUCKETS_PIECE)};
        if (!s3_list_buckets_feed(p->list_buckets, piece, &shown)) {
            pass_upload_refuse(p, ERR_ORIGIN_PROTOCOL, unreadable(p));
            return false;
        }
        byte_queue_append(&p->down, shown);
        data.ptr += piece.len;
        data.len -= piece.len;
    }
    return true;
}

void pass_listing_end(struct pass_state *p)
{
    check(p->call.phase == CALL_ENDED);
    if (p->request == NULL || p->err != ERR_OK || !pass_has_head(p) ||
        !pass_listing_is_filtered(p)) {
        return;
    }
    if (p->call.err != ERR_OK) {
        p->err = p->call.err; // the head waits for the list: the client gets an error instead
    } else if (!pass_is_bodiless(p) && !s3_list_buckets_end(p->list_buckets)) {
        p->err = ERR_ORIGIN_PROTOCOL;
        p->err_message = unreadable(p);
    }
}

bool pass_listing_is_judged(const struct pass_state *p)
{
    return (p->list_names != NULL && is_list(p)) || pass_listing_is_filtered(p);
}

bool pass_listing_is_unreadable(const struct pass_state *p, struct span *ret_why)
{
    *ret_why = (struct span){NULL, 0};
    if (!pass_listing_is_judged(p)) {
        return false;
    }
    if (p->relay.status == 206) {
        *ret_why = SPAN("The origin sends only a part of the list, and this access key may not see "
                        "all names");
    } else if (s3_answer_is_coded(&p->relay.headers_answered)) {
        *ret_why = SPAN("The origin sends the list with a Content-Encoding, so its names cannot be "
                        "read, and this access key may not see all names");
    } else if (p->list_names != NULL && p->list_names->is_unreadable) {
        *ret_why = SPAN("The origin's list is not XML in UTF-8, so its names cannot be read, and "
                        "this access key may not see all names");
    }
    return ret_why->ptr != NULL;
}

bool pass_listing_may_start(const struct pass_state *p)
{
    bool has_enough = !pass_listing_is_filtered(p) || byte_queue_full(&p->down);
    return pass_listing_is_judged(p) && has_enough && p->err == ERR_OK;
}

uint64_t pass_listing_pending(const struct pass_state *p)
{
    return p->list_names != NULL && is_list(p) ? p->list_names->pending_bytes : 0;
}
