// SPDX-License-Identifier: Apache-2.0
// Cached listings are answered byte for byte to whoever asked the same, until a write or time makes
// them untrue.
#include "doors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static struct proxy proxy;
static struct proxy_worker pw = {.proxy = &proxy};
static struct proxy_rule rule = {.list_ttl_ms = 1000};
static int origin_one, origin_two;

struct ask {
    struct arena *arena;
    struct http_request http;
    struct request r;
};

static void ask_init(struct ask *a, const char *principal, const char *bucket, const char *query)
{
    static struct s3_domains domains;
    memset(a, 0, sizeof(*a));
    a->arena = arena_new(1u << 20);
    a->http.method = SPAN("GET");
    char *target = arena_printf(a->arena, "/%s?%s", bucket, query);
    cr_assert_eq(s3_request_parse(a->arena, a->http.method, SPAN("127.0.0.1"),
                                  span_from_cstr(target), &a->http.headers, &domains, &a->r.s3),
                 ERR_OK);
    static struct live live;
    a->r.pw = &pw;
    a->r.live = &live;
    a->r.http = &a->http;
    a->r.arena = a->arena;
    a->r.rule = &rule;
    a->r.principal.name = span_from_cstr(principal);
    a->r.origin = (struct origin *)(void *)&origin_one;
    a->r.origin_bucket = a->r.s3.bucket;
}

static void ask_done(struct ask *a)
{
    arena_free(a->arena);
}

static void store(const char *principal, const char *bucket, const char *query, const char *body)
{
    struct ask a;
    ask_init(&a, principal, bucket, query);
    struct headers headers = {0};
    cr_assert(headers_add(&headers, a.arena, SPAN("Content-Type"), SPAN("application/xml")));
    struct list_draft *fill = list_cache_begin(&pw, &a.r);
    cr_assert_not_null(fill);
    list_cache_draft_append(fill, span_from_cstr(body));
    list_cache_draft_commit(fill, &headers);
    ask_done(&a);
}

static bool is_cached(const char *principal, const char *bucket, const char *query,
                      const char *body)
{
    struct ask a;
    ask_init(&a, principal, bucket, query);
    struct list_page *page = list_cache_find(&pw, &a.r);
    bool found = page != NULL;
    cr_assert(!found || span_equal_cstr(list_cache_page_body(page), body));
    cr_assert(!found || list_cache_page_headers(page)->count == 1);
    list_cache_page_unref(page);
    ask_done(&a);
    return found;
}

static void drop_at(const void *origin, const char *bucket, const char *key)
{
    struct object_key k = {.origin = (struct origin *)(uintptr_t)origin,
                           .bucket = span_from_cstr(bucket),
                           .key = span_from_cstr(key)};
    list_cache_drop_key(&pw, &k);
}

static void drop(const char *bucket, const char *key)
{
    drop_at(&origin_one, bucket, key);
}

static void end(void)
{
    list_cache_free(pw.list_cache);
    pw.list_cache = NULL;
}

// The same question by the same principal finds the page until its time is over; any other question
// does not.
Test(list_cache, same_question)
{
    store("open", "b", "list-type=2&prefix=a%2F&max-keys=5", "page");
    cr_assert(is_cached("open", "b", "list-type=2&prefix=a%2F&max-keys=5", "page"));
    cr_assert(is_cached("open", "b", "prefix=a/&max-keys=5&list-type=2", "page"));
    store("open", "b", "prefix=a+b", "blank");
    cr_assert(is_cached("open", "b", "prefix=a%20b", "blank"));
    cr_assert(!is_cached("open", "b", "prefix=a%2Bb", "blank"));
    cr_assert(!is_cached("AK", "b", "list-type=2&prefix=a%2F&max-keys=5", "page"));
    cr_assert(!is_cached("open", "c", "list-type=2&prefix=a%2F&max-keys=5", "page"));
    cr_assert(
        !is_cached("open", "b", "list-type=2&prefix=a%2F&max-keys=5&encoding-type=url", "page"));
    doors.now_us += 999999;
    cr_assert(is_cached("open", "b", "list-type=2&prefix=a%2F&max-keys=5", "page"));
    doors.now_us += 1;
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=a%2F&max-keys=5", "page"));
    end();
}

// A change of unknown extent: neither what is there nor what is on its way is found in the next
// epoch.
Test(list_cache, nothing_is_found_in_another_epoch)
{
    store("open", "b", "list-type=2", "old");
    struct ask a;
    ask_init(&a, "open", "b", "list-type=2&prefix=a");
    struct headers headers = {0};
    cr_assert(headers_add(&headers, a.arena, SPAN("Content-Type"), SPAN("application/xml")));
    struct list_draft *fill = list_cache_begin(&pw, &a.r);
    doors.epoch++;
    list_cache_draft_commit(fill, &headers);
    ask_done(&a);
    cr_assert(!is_cached("open", "b", "list-type=2", "old"));
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=a", ""));
    store("open", "b", "list-type=2", "new");
    cr_assert(is_cached("open", "b", "list-type=2", "new"));
    doors.epoch = 0;
    end();
}

// A write drops every page that could show its key, and no other.
Test(list_cache, write_drops_what_it_touches)
{
    store("open", "b", "list-type=2", "all");
    store("open", "b", "list-type=2&prefix=a%2F", "a");
    store("open", "b", "list-type=2&prefix=z", "z");
    store("open", "c", "list-type=2", "other");
    drop_at(&origin_two, "b", "a/k");
    cr_assert(is_cached("open", "b", "list-type=2", "all"));
    drop("b", "a/k");
    cr_assert(!is_cached("open", "b", "list-type=2", "all"));
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=a%2F", "a"));
    cr_assert(is_cached("open", "b", "list-type=2&prefix=z", "z"));
    cr_assert(is_cached("open", "c", "list-type=2", "other"));
    drop("b", ""); // the whole bucket
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=z", "z"));
    cr_assert(is_cached("open", "c", "list-type=2", "other"));
    end();
}

// A listing that began before a write is never kept after it.
Test(list_cache, begun_before_write)
{
    struct ask a;
    ask_init(&a, "open", "b", "list-type=2");
    struct headers none = {0};
    struct list_draft *fill = list_cache_begin(&pw, &a.r);
    list_cache_draft_append(fill, SPAN("old"));
    drop("b", "k");
    list_cache_draft_append(fill, SPAN("er"));
    list_cache_draft_commit(fill, &none);
    cr_assert(!is_cached("open", "b", "list-type=2", "older"));
    fill = list_cache_begin(&pw, &a.r);
    drop("c", "k");
    list_cache_draft_commit(fill, &none);
    struct list_page *page = list_cache_find(&pw, &a.r);
    cr_assert_not_null(page);
    drop("b", "k"); // while a reply still holds the page
    cr_assert_eq(list_cache_page_body(page).len, 0);
    list_cache_page_unref(page);
    ask_done(&a);
    end();
}

// What may select another answer is not kept at all.
Test(list_cache, not_kept)
{
    static const char *const HEADERS[] = {"x-amz-optional-object-attributes",
                                          "x-amz-request-payer",
                                          "x-amz-expected-bucket-owner",
                                          "x-amz-new-thing",
                                          "Origin",
                                          "Range",
                                          "If-None-Match"};
    struct ask a;
    for (size_t i = 0; i < ARRAY_LEN(HEADERS); i++) {
        ask_init(&a, "open", "b", "list-type=2");
        cr_assert(headers_add(&a.http.headers, a.arena, span_from_cstr(HEADERS[i]), SPAN("x")));
        cr_assert_null(list_cache_begin(&pw, &a.r));
        ask_done(&a);
    }
    ask_init(&a, "open", "b", "versions");
    cr_assert_null(list_cache_begin(&pw, &a.r));
    ask_done(&a);
    ask_init(&a, "open", "b", "list-type=2&X-Amz-Signature=00");
    cr_assert_null(list_cache_begin(&pw, &a.r));
    ask_done(&a);
    struct proxy_rule no_rule = {.list_ttl_ms = 0};
    ask_init(&a, "open", "b", "list-type=2");
    a.r.rule = &no_rule;
    cr_assert_null(list_cache_begin(&pw, &a.r));
    ask_done(&a);
}

#define LARGE 900000u
#define CACHE_MAX (16u << 20)

static const char *large_query(unsigned i)
{
    static char query[64];
    (void)snprintf(query, sizeof(query), "list-type=2&prefix=p%u", i);
    return query;
}

// A page has a maximum and so has the cache: the least recently used pages go first.
Test(list_cache, bounds)
{
    static const unsigned counts[] = {1, 17, 18, 19, 40};
    char *large = malloc((1u << 20) + 2);
    memset(large, 'x', (1u << 20) + 1);
    large[(1u << 20) + 1] = '\0';
    store("open", "b", "list-type=2&prefix=large", large);
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=large", large));
    large[LARGE] = '\0';
    for (unsigned c = 0; c < ARRAY_LEN(counts); c++) {
        unsigned kept = 0;
        for (unsigned i = 0; i < counts[c]; i++) {
            store("open", "b", large_query(i), large);
            cr_assert(is_cached("open", "b", large_query(0), large)); // stays the most recent
        }
        for (unsigned i = 0; i < counts[c]; i++) {
            kept += is_cached("open", "b", large_query(i), large);
        }
        cr_assert_leq(kept * LARGE, CACHE_MAX);
        cr_assert(kept == counts[c] || kept >= 17, "%u of %u", kept, counts[c]);
        cr_assert(counts[c] < 40 || !is_cached("open", "b", large_query(1), large));
        cr_assert(is_cached("open", "b", large_query(counts[c] - 1), large));
        end();
    }
    free(large);
}
