// SPDX-License-Identifier: Apache-2.0
// Proves: one cache of all workers answers equal listings byte for byte. It asks for each once,
// until a write or time makes it untrue. A listing that began before a write is given to no request
// that comes after the write.
#include "proxy/doors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "test.h"

#define WORKERS 3u
#define BUDGET (64u << 20)
#define ROOM (BUDGET / 8)

static struct proxy_worker workers[WORKERS];
static struct proxy proxy = {.workers = workers, .worker_count = WORKERS};
static struct proxy_rule rule = {.match = "**", .list_ttl_ms = 1000};
static struct live live = {.settings = {.obey_no_cache = true, .rules = &rule, .rule_count = 1}};
static int origin_one, origin_two;

struct ask {
    struct arena *arena;
    struct http_request http;
    struct request r;
};

static void begin(void)
{
    static char threads[WORKERS];
    doors_open();
    chunk_budget_init(BUDGET);
    for (unsigned i = 0; i < WORKERS; i++) {
        workers[i].proxy = &proxy;
        workers[i].index = i;
        workers[i].live = &live;
        workers[i].worker = (struct worker *)(void *)&threads[i];
    }
}

static void end(void)
{
    doors_deliver_all();
    for (unsigned i = 0; i < WORKERS; i++) {
        list_cache_free(&workers[i]);
    }
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_LISTINGS), 0);
    cr_assert_eq(atomic_load(&proxy.list_room.bytes), 0);
    for (unsigned i = 0; i < WORKERS; i++) {
        cr_assert_eq(atomic_load(&proxy.list_room.kept_bytes[i]), 0);
        cr_assert(!atomic_load(&proxy.list_room.is_trimming[i]));
    }
}

static void ask_init(struct ask *a, unsigned worker, const char *principal, const char *bucket,
                     const char *query)
{
    static struct s3_domains domains;
    memset(a, 0, sizeof(*a));
    a->arena = arena_new(1u << 20);
    a->http.method = SPAN("GET");
    char *target = arena_printf(a->arena, "/%s?%s", bucket, query);
    cr_assert_eq(s3_request_parse(a->arena, a->http.method, SPAN("127.0.0.1"),
                                  span_from_cstr(target), &a->http.headers, &domains, &a->r.s3),
                 ERR_OK);
    a->r.pw = &workers[worker];
    a->r.live = &live;
    a->r.http = &a->http;
    a->r.arena = a->arena;
    a->r.rule = &rule;
    a->r.principal.name = span_from_cstr(principal);
    a->r.origin = (struct origin *)(void *)&origin_one;
    a->r.origin_bucket = a->r.s3.bucket;
}

static void ask_header(struct ask *a, const char *name, const char *value)
{
    cr_assert(headers_add(&a->http.headers, a->arena, span_from_cstr(name), span_from_cstr(value)));
}

// The owner's answer is on its way.
static bool ask_send(struct ask *a)
{
    doors.current = a->r.pw->worker;
    return list_cache_ask(&a->r);
}

static enum list_verdict ask_now(struct ask *a)
{
    bool is_sent = ask_send(a);
    doors_deliver_all();
    return is_sent ? a->r.list_verdict : LIST_ALONE;
}

static void ask_done(struct ask *a)
{
    doors.current = a->r.pw->worker;
    list_cache_leave(&a->r);
    arena_free(a->arena);
}

static void fetch_end(struct ask *a, struct list_ask *fetch, unsigned status)
{
    struct headers headers = {0};
    cr_assert(headers_add(&headers, a->arena, SPAN("Content-Type"), SPAN("application/xml")));
    doors.current = a->r.pw->worker;
    list_cache_end_whole(fetch, status, &headers);
}

// Does the fetch that the verdict asked for.
static void fetch(struct ask *a, const char *body)
{
    cr_assert_eq(a->r.list_verdict, LIST_FETCH);
    struct list_ask *fetch = list_cache_take_fetch(&a->r);
    doors.current = a->r.pw->worker;
    if (list_cache_append(fetch, span_from_cstr(body))) {
        fetch_end(a, fetch, 200);
    } else {
        list_cache_end(fetch, LIST_END_ALONE, ERR_OK);
    }
    doors_deliver_all();
}

static void judge_page(struct ask *a, const char *body)
{
    struct list_page *page = list_cache_take_page(&a->r);
    cr_assert(span_equal_cstr(list_cache_page_body(page), body));
    cr_assert_eq(list_cache_page_headers(page)->count, 1);
    cr_assert(span_equal_cstr(list_cache_page_headers(page)->items[0].value, "application/xml"));
    list_cache_page_unref(page);
}

static void store(const char *principal, const char *bucket, const char *query, const char *body)
{
    struct ask a;
    ask_init(&a, 0, principal, bucket, query);
    if (ask_now(&a) == LIST_FETCH) {
        fetch(&a, body);
    }
    ask_done(&a);
}

// On every worker, or on none.
static bool is_cached(const char *principal, const char *bucket, const char *query,
                      const char *body)
{
    unsigned found = 0;
    for (unsigned i = 0; i < WORKERS; i++) {
        struct ask a;
        ask_init(&a, i, principal, bucket, query);
        if (ask_now(&a) == LIST_HIT) {
            judge_page(&a, body);
            found++;
        }
        ask_done(&a);
        doors_deliver_all();
    }
    cr_assert(found == 0 || found == WORKERS);
    return found > 0;
}

static void drop_on(unsigned worker, const void *origin, const char *bucket, const char *key)
{
    struct object_key k = {.origin = (struct origin *)(uintptr_t)origin,
                           .bucket = span_from_cstr(bucket),
                           .key = span_from_cstr(key)};
    doors.current = workers[worker].worker;
    list_cache_drop_key(&workers[worker], &k);
}

static void drop(const char *bucket, const char *key)
{
    for (unsigned i = 0; i < WORKERS; i++) {
        drop_on(i, &origin_one, bucket, key);
    }
}

// The same question by the same principal finds the page on any worker until it expires. Any other
// question does not.
Test(list_cache, same_question)
{
    begin();
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

// Equal questions of all workers wait for one fetch, whatever its result. Only a 200 is kept.
Test(list_cache, equal_questions_in_flight_are_joined)
{
    static const unsigned statuses[] = {200, 403};
    begin();
    for (unsigned s = 0; s < ARRAY_LEN(statuses); s++) {
        struct ask first, joined[2 * WORKERS];
        const char *query = s == 0 ? "list-type=2" : "list-type=2&prefix=x";
        ask_init(&first, 0, "open", "b", query);
        cr_assert_eq(ask_now(&first), LIST_FETCH);
        for (unsigned i = 0; i < ARRAY_LEN(joined); i++) {
            ask_init(&joined[i], i % WORKERS, "open", "b", query);
            cr_assert_eq(ask_now(&joined[i]), LIST_WAITS);
        }
        ask_done(&joined[3]); // its client leaves
        struct list_ask *fetch = list_cache_take_fetch(&first.r);
        cr_assert(list_cache_append(fetch, SPAN("pa")) && list_cache_append(fetch, SPAN("ge")));
        fetch_end(&first, fetch, statuses[s]);
        doors_deliver_all();
        for (unsigned i = 0; i < ARRAY_LEN(joined); i++) {
            if (i != 3) {
                cr_assert_eq(joined[i].r.list_verdict, LIST_JOINED);
                judge_page(&joined[i], "page");
                ask_done(&joined[i]);
            }
        }
        ask_done(&first);
        cr_assert_eq(is_cached("open", "b", query, "page"), statuses[s] == 200);
    }
    end();
}

// If the client of a fetch leaves, the next one makes the fetch. A fetch that fails, fails for all.
// If the answer cannot be kept, each client fetches for itself.
Test(list_cache, fetch_without_a_page)
{
    begin();
    struct ask asks[3];
    for (unsigned i = 0; i < ARRAY_LEN(asks); i++) {
        ask_init(&asks[i], i, "open", "b", "list-type=2");
        (void)ask_now(&asks[i]);
    }
    ask_done(&asks[0]);
    doors_deliver_all();
    cr_assert_eq(asks[1].r.list_verdict, LIST_FETCH);
    cr_assert_eq(asks[2].r.list_verdict, LIST_WAITS);
    doors.current = workers[1].worker;
    list_cache_end(list_cache_take_fetch(&asks[1].r), LIST_END_FAILED, ERR_ORIGIN_CONNECT);
    ask_init(&asks[0], 0, "open", "b", "list-type=2");
    doors_deliver_all();
    cr_assert_eq(asks[2].r.list_verdict, LIST_FAILED);
    cr_assert_eq(list_cache_take_error(&asks[2].r), ERR_ORIGIN_CONNECT);
    ask_done(&asks[2]);
    cr_assert_eq(ask_now(&asks[0]), LIST_FETCH);
    ask_init(&asks[2], 2, "open", "b", "list-type=2");
    cr_assert_eq(ask_now(&asks[2]), LIST_WAITS);
    doors.current = workers[0].worker;
    list_cache_end(list_cache_take_fetch(&asks[0].r), LIST_END_ALONE, ERR_OK);
    doors_deliver_all();
    cr_assert_eq(asks[2].r.list_verdict, LIST_ALONE);
    for (unsigned i = 0; i < ARRAY_LEN(asks); i++) {
        ask_done(&asks[i]);
    }
    end();
}

// A change of unknown extent: neither a page nor a fetch in flight is found in the next epoch.
Test(list_cache, nothing_is_found_in_another_epoch)
{
    begin();
    store("open", "b", "list-type=2", "old");
    struct ask a;
    ask_init(&a, 0, "open", "b", "list-type=2&prefix=a");
    cr_assert_eq(ask_now(&a), LIST_FETCH);
    doors.epoch++;
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=a", ""));
    fetch(&a, "old");
    ask_done(&a);
    cr_assert(!is_cached("open", "b", "list-type=2", "old"));
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=a", "old"));
    store("open", "b", "list-type=2", "new");
    cr_assert(is_cached("open", "b", "list-type=2", "new"));
    doors.epoch = 0;
    end();
}

// A write drops every page that could show its key, and no other.
Test(list_cache, write_drops_the_pages_it_touches)
{
    begin();
    store("open", "b", "list-type=2", "all");
    store("open", "b", "list-type=2&prefix=a%2F", "a");
    store("open", "b", "list-type=2&prefix=z", "z");
    store("open", "c", "list-type=2", "other");
    for (unsigned i = 0; i < WORKERS; i++) {
        drop_on(i, &origin_two, "b", "a/k");
    }
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

// Pages of every prefix: a write drops those whose prefix its key begins with, and no other.
Test(list_cache, write_finds_the_pages_of_all_prefixes_of_its_key)
{
    static const char bytes[] = "aab/b";
    char prefixes[40][8], query[400];
    uint64_t dice = 7;
    for (unsigned round = 0; round < 30; round++) {
        begin();
        for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++) {
            dice = hash64(&dice, sizeof(dice), i);
            unsigned len = (unsigned)(dice % sizeof(prefixes[i]));
            for (unsigned j = 0; j < len; j++) {
                prefixes[i][j] = bytes[(dice >> (8 + 3 * j)) % (sizeof(bytes) - 1)];
            }
            prefixes[i][len] = '\0';
            (void)snprintf(query, sizeof(query), "list-type=2&max-keys=%u&prefix=%s", i + 1,
                           prefixes[i]);
            store("open", "b", query, prefixes[i]);
        }
        const char *key = round % 2 == 0 ? "aab/bbaa/" : "ab";
        drop("b", key);
        for (unsigned i = 0; i < ARRAY_LEN(prefixes); i++) {
            (void)snprintf(query, sizeof(query), "list-type=2&max-keys=%u&prefix=%s", i + 1,
                           prefixes[i]);
            bool is_prefix = strncmp(key, prefixes[i], strlen(prefixes[i])) == 0;
            cr_assert_eq(is_cached("open", "b", query, prefixes[i]), !is_prefix, "%s", query);
        }
        end();
    }
}

// A listing that began before a write is not kept, and not joined after it.
Test(list_cache, begun_before_write)
{
    begin();
    struct ask a, before, after;
    ask_init(&a, 0, "open", "b", "list-type=2");
    ask_init(&before, 1, "open", "b", "list-type=2");
    ask_init(&after, 2, "open", "b", "list-type=2");
    cr_assert_eq(ask_now(&a), LIST_FETCH);
    cr_assert_eq(ask_now(&before), LIST_WAITS);
    drop("b", "k");
    cr_assert_eq(ask_now(&after), LIST_FETCH);
    fetch(&a, "older");
    cr_assert_eq(before.r.list_verdict, LIST_JOINED);
    judge_page(&before, "older");
    cr_assert(!is_cached("open", "b", "list-type=2", "older"));
    fetch(&after, "newer");
    cr_assert(is_cached("open", "b", "list-type=2", "newer"));
    ask_done(&a);
    ask_init(&a, 0, "open", "b", "list-type=2");
    cr_assert_eq(ask_now(&a), LIST_HIT);
    drop("b", "k"); // while a reply still holds the page
    judge_page(&a, "newer");
    ask_done(&a);
    ask_done(&before);
    ask_done(&after);
    end();
}

// A request with no-cache joins no fetch and finds no page. Its answer replaces only older ones.
Test(list_cache, pages_that_a_rule_forbids_are_dropped_with_it)
{
    begin();
    store("open", "b", "list-type=2&prefix=a", "a");
    struct ask late;
    ask_init(&late, 0, "open", "b", "list-type=2&prefix=late");
    cr_assert_eq(ask_now(&late), LIST_FETCH);
    rule.list_ttl_ms = 0;
    for (unsigned i = 0; i < WORKERS; i++) {
        list_cache_apply_rules(&workers[i]);
        cr_assert_eq(atomic_load(&proxy.list_room.kept_bytes[i]), 0);
    }
    fetch(&late, "late"); // it began before
    ask_done(&late);
    doors_deliver_all();
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_LISTINGS), 0);
    rule.list_ttl_ms = 1000;
    end();
}

Test(list_cache, expired_pages_make_way_for_others)
{
    begin();
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 50; i++) {
            char query[64];
            snprintf(query, sizeof(query), "list-type=2&prefix=%u.%u", round, i);
            store("open", "b", query, "page");
        }
        doors.now_us += 1000000;
    }
    uint64_t kept = chunk_budget_kind_bytes(BUDGET_LISTINGS);
    cr_assert_lt(kept, 3 * 50 * 600, "%llu", (unsigned long long)kept);
    end();
}

Test(list_cache, no_cache)
{
    begin();
    struct ask plain, fresh;
    ask_init(&plain, 0, "open", "b", "list-type=2");
    cr_assert_eq(ask_now(&plain), LIST_FETCH);
    doors.now_us++;
    ask_init(&fresh, 1, "open", "b", "list-type=2");
    ask_header(&fresh, "Cache-Control", "no-cache");
    cr_assert_eq(ask_now(&fresh), LIST_FETCH);
    fetch(&fresh, "new");
    fetch(&plain, "old");
    ask_done(&plain);
    ask_done(&fresh);
    cr_assert(is_cached("open", "b", "list-type=2", "new"));
    ask_init(&fresh, 1, "open", "b", "list-type=2");
    ask_header(&fresh, "Cache-Control", "no-cache");
    cr_assert_eq(ask_now(&fresh), LIST_FETCH);
    ask_init(&plain, 0, "open", "b", "list-type=2");
    cr_assert_eq(ask_now(&plain), LIST_WAITS); // is shown nothing older than that
    fetch(&fresh, "newest");
    cr_assert_eq(plain.r.list_verdict, LIST_JOINED);
    judge_page(&plain, "newest");
    ask_done(&plain);
    ask_done(&fresh);
    end();
}

// A header that may select another answer is part of the name, or the answer is not kept.
Test(list_cache, headers)
{
    static const char *const NEUTRAL[] = {
        "x-amz-api-version",    "x-amz-date", "x-amz-checksum-mode", "x-amz-sdk-checksum-algorithm",
        "x-amz-security-token", "User-Agent", "x-amzn-trace-id",     "amz-sdk-invocation-id"};
    static const char *const NAMED[] = {"x-amz-optional-object-attributes", "x-amz-request-payer",
                                        "x-amz-expected-bucket-owner"};
    static const char *const OTHERS[] = {"x-amz-new-thing", "Origin", "Range", "If-None-Match"};
    struct ask a;
    begin();
    store("open", "b", "list-type=2", "page");
    for (size_t i = 0; i < ARRAY_LEN(NEUTRAL); i++) {
        ask_init(&a, 0, "open", "b", "list-type=2");
        ask_header(&a, NEUTRAL[i], "x");
        cr_assert_eq(ask_now(&a), LIST_HIT, "%s", NEUTRAL[i]);
        judge_page(&a, "page");
        ask_done(&a);
    }
    for (size_t i = 0; i < ARRAY_LEN(NAMED); i++) {
        for (unsigned same = 0; same < 2; same++) {
            ask_init(&a, 0, "open", "b", "list-type=2");
            ask_header(&a, NAMED[i], "x");
            cr_assert_eq(ask_now(&a), same ? LIST_HIT : LIST_FETCH);
            if (!same) {
                fetch(&a, NAMED[i]);
            } else {
                judge_page(&a, NAMED[i]);
            }
            ask_done(&a);
        }
        ask_init(&a, 0, "open", "b", "list-type=2");
        ask_header(&a, NAMED[i], "x");
        ask_header(&a, NAMED[i], "x");
        cr_assert(!ask_send(&a));
        ask_done(&a);
    }
    for (size_t i = 0; i < ARRAY_LEN(OTHERS); i++) {
        ask_init(&a, 0, "open", "b", "list-type=2");
        ask_header(&a, OTHERS[i], "x");
        cr_assert(!ask_send(&a), "%s", OTHERS[i]);
        ask_done(&a);
    }
    ask_init(&a, 0, "open", "b", "versions");
    cr_assert(!ask_send(&a));
    ask_done(&a);
    ask_init(&a, 0, "open", "b", "list-type=2&X-Amz-Signature=00");
    cr_assert(!ask_send(&a));
    ask_done(&a);
    struct proxy_rule no_rule = {.list_ttl_ms = 0};
    ask_init(&a, 0, "open", "b", "list-type=2");
    a.r.rule = &no_rule;
    cr_assert(!ask_send(&a));
    ask_done(&a);
    end();
}

#define LARGE 900000u

static const char *large_query(unsigned i)
{
    static char query[64];
    (void)snprintf(query, sizeof(query), "list-type=2&prefix=p%u", i);
    return query;
}

// A page has a maximum, and all pages have a share of the budget. Beyond three quarters of it the
// pages that were used least recently are dropped. A page that does not fit is not kept.
Test(list_cache, bounds)
{
    static const unsigned counts[] = {1, 5, 9, 40};
    char *large = malloc(LIST_PAGE_MAX + 2);
    memset(large, 'x', LIST_PAGE_MAX + 1);
    large[LIST_PAGE_MAX + 1] = '\0';
    begin();
    store("open", "b", "list-type=2&prefix=large", large);
    cr_assert(!is_cached("open", "b", "list-type=2&prefix=large", large));
    end();
    large[LARGE] = '\0';
    for (unsigned c = 0; c < ARRAY_LEN(counts); c++) {
        unsigned kept = 0;
        begin();
        for (unsigned i = 0; i < counts[c]; i++) {
            store("open", "b", large_query(i), large);
            cr_assert_leq(chunk_budget_kind_bytes(BUDGET_LISTINGS), ROOM);
        }
        for (unsigned i = 0; i < counts[c]; i++) {
            kept += is_cached("open", "b", large_query(i), large);
        }
        cr_assert(kept == counts[c] || kept * LARGE > ROOM / 4, "%u of %u", kept, counts[c]);
        cr_assert(counts[c] < 40 || !is_cached("open", "b", large_query(1), large));
        cr_assert(is_cached("open", "b", large_query(counts[c] - 1), large));
        end();
    }
    free(large);
    // The number of questions is limited. Questions above it are passed on.
    begin();
    chunk_budget_init(64 << 10);
    static struct ask many[32];
    unsigned asked = 0;
    for (unsigned i = 0; i < ARRAY_LEN(many); i++) {
        ask_init(&many[i], i % WORKERS, "open", "b", large_query(i));
        asked += ask_now(&many[i]) == LIST_FETCH;
        cr_assert_leq(chunk_budget_kind_bytes(BUDGET_LISTINGS), 8u << 10);
    }
    cr_assert(asked > 4 && asked < ARRAY_LEN(many), "%u", asked);
    for (unsigned i = 0; i < ARRAY_LEN(many); i++) {
        ask_done(&many[i]);
    }
    end();
}

// --- whatever the order --------------------------------------------------------------------------

#define CLIENTS 12u

// A client's listing: asked, then told; a fetch reads the origin at a moment of its own.
struct client {
    struct ask ask;
    bool is_there, has_read;
    struct list_ask *fetch;
    unsigned must_show; // writes whose reply had come when it asked
    unsigned shows;     // writes that its own fetch has seen
};

static struct client clients[CLIENTS];
static unsigned applied, replied; // writes
static enum { WRITE_NONE, WRITE_BEGUN, WRITE_APPLIED } write_phase;
static bool has_invalidated[WORKERS];

static void write_step(uint64_t dice)
{
    unsigned at = (unsigned)(dice % WORKERS);
    if (write_phase == WRITE_NONE) {
        write_phase = WRITE_BEGUN;
        memset(has_invalidated, 0, sizeof(has_invalidated));
    }
    if (!has_invalidated[at]) {
        has_invalidated[at] = true;
        drop_on(at, &origin_one, "b", "k");
    }
    for (unsigned i = 0; i < WORKERS; i++) {
        if (!has_invalidated[i]) {
            return;
        }
    }
    if (write_phase == WRITE_BEGUN) {
        write_phase = WRITE_APPLIED;
        applied++;
        memset(has_invalidated, 0, sizeof(has_invalidated));
    } else {
        write_phase = WRITE_NONE;
        replied = applied;
    }
}

static void client_leave(struct client *c)
{
    if (c->fetch != NULL) {
        doors.current = c->ask.r.pw->worker;
        list_cache_end(c->fetch, LIST_END_LEFT, ERR_OK);
        c->fetch = NULL;
    }
    ask_done(&c->ask);
    c->is_there = false;
}

static void client_fetch(struct client *c, uint64_t dice)
{
    char text[16];
    if (c->fetch == NULL) {
        c->fetch = list_cache_take_fetch(&c->ask.r);
        c->has_read = false;
    } else if (!c->has_read) {
        c->has_read = true;
        c->shows = applied;
        cr_assert_geq(c->shows, c->must_show);
        (void)snprintf(text, sizeof(text), "%u", c->shows);
        cr_assert(list_cache_append(c->fetch, span_from_cstr(text)));
    } else {
        doors.current = c->ask.r.pw->worker;
        if (dice % 8 == 0) {
            list_cache_end(c->fetch, dice % 16 == 0 ? LIST_END_ALONE : LIST_END_FAILED, ERR_LIMIT);
        } else {
            fetch_end(&c->ask, c->fetch, dice % 8 == 1 ? 404 : 200);
        }
        c->fetch = NULL;
        client_leave(c);
    }
}

static void client_page(struct client *c, uint64_t seed)
{
    uint64_t shown;
    struct list_page *page = list_cache_take_page(&c->ask.r);
    cr_assert(span_to_u64(list_cache_page_body(page), &shown));
    cr_assert_geq(shown, c->must_show, "seed %llu: a listing shows %llu writes, %u had replied",
                  (unsigned long long)seed, (unsigned long long)shown, c->must_show);
    list_cache_page_unref(page);
    client_leave(c);
}

static void client_step(struct client *c, uint64_t dice, uint64_t seed)
{
    if (!c->is_there) {
        c->is_there = true;
        c->must_show = replied;
        ask_init(&c->ask, (unsigned)(dice % WORKERS), "open", "b",
                 dice % 5 == 0 ? "list-type=2&prefix=k" : "list-type=2");
        if (dice % 11 == 0) {
            ask_header(&c->ask, "Cache-Control", "no-cache");
        }
        cr_assert(ask_send(&c->ask));
    } else if (dice % 13 == 0) {
        client_leave(c);
    } else if (c->fetch != NULL || c->ask.r.list_verdict == LIST_FETCH) {
        client_fetch(c, dice >> 8);
    } else if (c->ask.r.list_verdict == LIST_HIT || c->ask.r.list_verdict == LIST_JOINED) {
        client_page(c, seed);
    } else if (c->ask.r.list_verdict != LIST_WAITS) {
        client_leave(c);
    }
}

// Clients, writes, time and messages come in any order. No client gets a listing without the writes
// whose replies had come when it asked, and nothing is left in the end.
Test(list_cache, schedules)
{
    struct seeds seeds = seeds_wanted(seeds_scaled(20000, 400));
    for (uint64_t seed = seeds.first; seed <= seeds.last; seed++) {
        uint64_t dice = seed;
        begin();
        applied = replied = 0;
        write_phase = WRITE_NONE;
        for (unsigned step = 0; step < 600; step++) {
            dice = hash64(&dice, sizeof(dice), seed);
            uint64_t more = dice >> 8;
            if (dice % 16 < 7 && doors.mail_count > 0) {
                doors_deliver((unsigned)(more % doors.mail_count));
            } else if (dice % 16 < 13) {
                client_step(&clients[more % CLIENTS], more >> 8, seed);
            } else if (dice % 16 < 15) {
                write_step(more);
            } else {
                doors.now_us += more % 300000;
            }
        }
        for (unsigned i = 0; i < CLIENTS; i++) {
            if (clients[i].is_there) {
                client_leave(&clients[i]);
            }
        }
        end();
    }
}
