// SPDX-License-Identifier: Apache-2.0
// Answers to listings, kept for a rule's list_ttl: byte for byte, per principal with its
// realm, bucket and canonical query. A page is fetched without the client's headers (only Via goes on), so that it
// fits every client. One cache per worker, touched by that worker only; a page answers only requests
// on the worker that fetched it.
//
// A write drops, on every worker, every page of the bucket whose prefix covers the key, and marks
// the pages still on their way that it covers: those are never kept. Both happen when the write
// begins and again before its client is answered, so a listing asked after that answer is new. A
// change of unknown extent moves the bucket to another epoch, under which no older page is found. A
// page larger than PAGE_MAX is not kept; above CACHE_MAX the least recently used pages go.
//
// The life of a page: list_cache_begin() -> draft -> append ... -> commit -> page in the table ->
// found, dropped or too old -> freed with its last reference.
#include "proxy/pass_private.h"

#include <stdlib.h>
#include <string.h>

#define CACHE_MAX (16u << 20)
#define PAGE_MAX (1u << 20)
#define PAGE_ARENA_MAX (64u << 10) // key, prefix and headers of a page
#define TABLE_BUCKETS 256u

struct list_page {
    struct list_node table_node; // in list_cache.table
    struct list_node used_node;  // in list_cache.used, most recent last
    unsigned refs;               // of the table and of replies
    uint64_t hash;
    struct arena *arena;
    struct span name; // principal, bucket and its epoch, query
    const struct origin *origin;
    struct span origin_bucket, prefix;
    struct headers headers;
    struct buf body;
    uint64_t since_us, due_us; // too old from then on
    uint64_t size_bytes;
};

struct list_draft {
    struct list_node node; // in list_cache.drafts
    struct list_cache *cache;
    struct list_page *page;
    bool is_doomed;
};

struct list_cache {
    struct list table[TABLE_BUCKETS];
    struct list used;
    struct list drafts;
    uint64_t size_bytes;
};

static struct list_cache *cache_of(struct proxy_worker *pw)
{
    if (pw->list_cache == NULL) {
        struct list_cache *cache = calloc(1, sizeof(*cache));
        check(cache != NULL);
        for (unsigned i = 0; i < TABLE_BUCKETS; i++) {
            list_init(&cache->table[i]);
        }
        list_init(&cache->used);
        list_init(&cache->drafts);
        pw->list_cache = cache;
    }
    return pw->list_cache;
}

void list_cache_page_unref(struct list_page *page)
{
    if (page == NULL || --page->refs > 0) {
        return;
    }
    buf_done(&page->body);
    arena_free(page->arena);
    free(page);
}

static void page_drop(struct list_cache *cache, struct list_page *page)
{
    list_remove(&page->table_node);
    list_remove(&page->used_node);
    cache->size_bytes -= page->size_bytes;
    list_cache_page_unref(page);
}

static bool has_prefix(struct span name, struct span prefix)
{
    return name.len >= prefix.len && span_equal_nocase((struct span){name.ptr, prefix.len}, prefix);
}

// A header that could select another answer excludes the request: it passes through with the header,
// and its answer is not kept.
static bool header_changes_nothing(struct span name)
{
    static const char *const KNOWN[] = {"x-amz-date", "x-amz-content-sha256",
                                        "x-amz-security-token", "x-amz-user-agent", "x-amz-te"};
    if (!has_prefix(name, SPAN("x-amz-"))) {
        return !has_prefix(name, SPAN("if-")) && !span_equal_nocase(name, SPAN("range")) &&
               !span_equal_nocase(name, SPAN("origin"));
    }
    for (size_t i = 0; i < ARRAY_LEN(KNOWN); i++) {
        if (span_equal_nocase(name, span_from_cstr(KNOWN[i]))) {
            return true;
        }
    }
    return false;
}

// While a write may still reach a key, nothing says when a page that names it gets old.
static bool may_change_silently(const struct request *r)
{
    return atomic_load(&r->pw->proxy->doubt_count) > 0 ||
           store_is_doubted(r->pw->store, span_from_cstr(origin_place(r->origin)), r->origin_bucket,
                            0);
}

static bool request_is_cacheable(const struct request *r)
{
    if ((r->s3.flags & S3_OP_LISTING) == 0 || r->rule == NULL || r->rule->list_ttl_ms == 0 ||
        r->s3.presigned || !span_equal(r->http->method, SPAN("GET")) || may_change_silently(r)) {
        return false;
    }
    for (unsigned i = 0; i < r->http->headers.count; i++) {
        if (!header_changes_nothing(r->http->headers.items[i].name)) {
            return false;
        }
    }
    return true;
}

// Principal, its realm, bucket, where it is now, its epoch and query with their lengths, so that no two of them read the
// same: a reload may give a principal other keys at the origin, which lists something else to it;
// empty when there is no room. Origins are not freed before pages are.
static struct span page_name(const struct request *r)
{
    struct span query;
    if (sigv4_canonical_query(r->arena, r->s3.raw_query, false, &query) != ERR_OK) {
        return (struct span){NULL, 0};
    }
    struct span realm = request_realm(r);
    return span_from_cstr(arena_printf(
        r->arena, "%zu %zu %zu %.*s %.*s %.*s %p %zu %.*s %llx %.*s", r->principal.name.len,
        realm.len, r->s3.bucket.len, (int)r->principal.name.len, r->principal.name.ptr,
        (int)realm.len, realm.len > 0 ? realm.ptr : "", (int)r->s3.bucket.len, r->s3.bucket.ptr,
        (const void *)r->origin, r->origin_bucket.len, (int)r->origin_bucket.len,
        r->origin_bucket.ptr, (unsigned long long)request_epoch(r), (int)query.len,
        query.len > 0 ? query.ptr : ""));
}

static struct list_page *page_find(struct list_cache *cache, struct span name, uint64_t hash)
{
    list_for_each(node, &cache->table[hash % TABLE_BUCKETS])
    {
        struct list_page *page = container_of(node, struct list_page, table_node);
        if (page->hash == hash && span_equal(page->name, name)) {
            return page;
        }
    }
    return NULL;
}

struct list_page *list_cache_find(struct proxy_worker *pw, const struct request *r)
{
    if (pw->list_cache == NULL || !request_is_cacheable(r) || request_is_no_cache(r)) {
        return NULL;
    }
    struct span name = page_name(r);
    struct list_page *page = page_find(pw->list_cache, name, hash64(name.ptr, name.len, 0));
    if (page == NULL) {
        return NULL;
    }
    // By its rule then, and by that of now.
    uint64_t now_us = worker_now_us(pw->worker);
    if (now_us >= page->due_us || now_us >= page->since_us + r->rule->list_ttl_ms * 1000) {
        page_drop(pw->list_cache, page);
        return NULL;
    }
    list_remove(&page->used_node);
    list_push_back(&pw->list_cache->used, &page->used_node);
    page->refs++;
    return page;
}

struct list_draft *list_cache_begin(struct proxy_worker *pw, const struct request *r)
{
    if (!request_is_cacheable(r)) {
        return NULL;
    }
    struct span name = page_name(r);
    if (name.len == 0) {
        return NULL;
    }
    struct list_draft *draft = calloc(1, sizeof(*draft));
    struct list_page *page = calloc(1, sizeof(*page));
    check(draft != NULL);
    check(page != NULL);
    list_node_init(&draft->node);
    list_node_init(&page->table_node);
    list_node_init(&page->used_node);
    buf_init(&page->body, PAGE_MAX);
    page->arena = arena_new(PAGE_ARENA_MAX);
    page->refs = 1;
    page->hash = hash64(name.ptr, name.len, 0);
    page->name = arena_copy(page->arena, name);
    page->origin = r->origin;
    page->origin_bucket = arena_copy(page->arena, r->origin_bucket);
    const struct s3_param *prefix = s3_param_find(&r->s3, "prefix");
    page->prefix = arena_copy(page->arena, prefix != NULL ? prefix->value : (struct span){"", 0});
    page->since_us = worker_now_us(pw->worker);
    page->due_us = page->since_us + r->rule->list_ttl_ms * 1000;
    draft->page = page;
    draft->cache = cache_of(pw);
    draft->is_doomed =
        page->name.ptr == NULL || page->origin_bucket.ptr == NULL || page->prefix.ptr == NULL;
    list_push_back(&draft->cache->drafts, &draft->node);
    return draft;
}

void list_cache_draft_append(struct list_draft *draft, struct span data)
{
    if (draft->is_doomed) {
        return;
    }
    buf_append_span(&draft->page->body, data);
    if (!buf_ok(&draft->page->body)) {
        draft->is_doomed = true;
        buf_done(&draft->page->body);
    }
}

void list_cache_draft_abort(struct list_draft *draft)
{
    if (draft == NULL) {
        return;
    }
    list_remove(&draft->node);
    list_cache_page_unref(draft->page);
    free(draft);
}

static bool headers_keep(struct list_page *page, const struct headers *headers)
{
    for (unsigned i = 0; i < headers->count; i++) {
        struct span name = arena_copy(page->arena, headers->items[i].name);
        struct span value = arena_copy(page->arena, headers->items[i].value);
        if (name.ptr == NULL || value.ptr == NULL ||
            !headers_add(&page->headers, page->arena, name, value)) {
            return false;
        }
    }
    return true;
}

void list_cache_draft_commit(struct list_draft *draft, const struct headers *headers)
{
    if (draft == NULL) {
        return;
    }
    struct list_cache *cache = draft->cache;
    struct list_page *page = draft->page;
    if (draft->is_doomed || !headers_keep(page, headers)) {
        list_cache_draft_abort(draft);
        return;
    }
    list_remove(&draft->node);
    free(draft);
    struct list_page *old = page_find(cache, page->name, page->hash);
    if (old != NULL) {
        page_drop(cache, old);
    }
    page->size_bytes = sizeof(*page) + page->body.cap + page->name.len + page->prefix.len + 1024;
    while (cache->size_bytes + page->size_bytes > CACHE_MAX) {
        page_drop(cache, container_of(list_first(&cache->used), struct list_page, used_node));
    }
    cache->size_bytes += page->size_bytes;
    list_push_back(&cache->table[page->hash % TABLE_BUCKETS], &page->table_node);
    list_push_back(&cache->used, &page->used_node);
}

// An empty key stands for the whole bucket.
static bool page_covers(const struct list_page *page, const struct object_key *key)
{
    return page->origin == key->origin && span_equal(page->origin_bucket, key->bucket) &&
           (key->key.len == 0 || span_starts_with(key->key, page->prefix));
}

void list_cache_drop_key(struct proxy_worker *pw, const struct object_key *key)
{
    struct list_cache *cache = pw->list_cache;
    if (cache == NULL) {
        return;
    }
    list_for_each(draft_node, &cache->drafts)
    {
        struct list_draft *draft = container_of(draft_node, struct list_draft, node);
        draft->is_doomed = draft->is_doomed || page_covers(draft->page, key);
    }
    list_for_each(node, &cache->used)
    {
        struct list_page *page = container_of(node, struct list_page, used_node);
        if (page_covers(page, key)) {
            page_drop(cache, page);
        }
    }
}

struct span list_cache_page_body(const struct list_page *page)
{
    return buf_span(&page->body);
}

const struct headers *list_cache_page_headers(const struct list_page *page)
{
    return &page->headers;
}

void list_cache_free(struct list_cache *cache)
{
    if (cache == NULL) {
        return;
    }
    struct list_node *node;
    while ((node = list_first(&cache->used)) != NULL) {
        page_drop(cache, container_of(node, struct list_page, used_node));
    }
    while ((node = list_first(&cache->drafts)) != NULL) {
        list_cache_draft_abort(container_of(node, struct list_draft, node));
    }
    free(cache);
}
