// SPDX-License-Identifier: Apache-2.0
// One cache of listings for all workers. It keeps answers to listings, byte for byte, for the
// list_ttl of a rule. If equal listings are in flight at the same time, the origin is asked once.
//
// A page has an owner: the worker that the hash of the page's name selects. Only the owner uses its
// tables of pages and of listings in flight, so there is no lock. The *asker* is the worker of the
// client's request:
//
//   asker -> owner   ask: the name, and an empty page for the answer
//   owner -> asker   a page; or "fetch it"; or nothing yet, if it joined the same listing in flight
//   asker -> owner   (after a fetch) the page, or why there is none
//   owner -> asker   to each that joined: the page, the error, or "ask the origin alone"
//
// The asker sends its page to the owner once. Nobody changes the page after that, and its reference
// count is atomic. The client of the fetch gets the bytes as they arrive. The clients that joined
// get the page when it is complete. If the client of the fetch leaves, the first client that joined
// fetches instead.
//
// Invalidation. A write reaches each worker as INVALIDATE, when it begins and again before its
// client is answered (fill/README.md, rules 24 to 28). On INVALIDATE the owner drops the pages
// whose prefix covers the key. It dooms the fetches in flight whose prefix covers the key: nobody
// joins them from then on, and their pages are not kept. All workers acknowledge before the
// writer's reply. So a client that asks after that reply finds no older page, and joins no fetch
// that began before it. A client that had joined such a fetch asked before the reply. A write of
// unknown extent raises the bucket's epoch, which is part of a page's name.
//
// Memory. Asks and pages are charged to the budget of base/chunk.h, and together use at most an
// eighth of it. When that share is used up, a listing asks the origin without joining another, and
// its answer is not kept. Above three quarters of the share, the owner with the most bytes of pages
// drops its least recently used pages. A reload drops the pages that its rules forbid. An owner
// that keeps a page also drops a few that are too old.
#include "proxy/pass/pass_private.h"

#include <stdlib.h>
#include <string.h>

#define ROOM_MAX (256u << 20)
#define BODY_LEAST 4096u
#define TABLE_BUCKETS 256u
#define PREFIX_BUCKETS 1024u
#define EXPIRED_AT_ONCE 4u

struct list_page {
    struct list_node table_node;  // in list_owner.pages
    struct list_node used_node;   // in list_owner.used, the most recently used last
    struct list_node prefix_node; // in list_owner.by_prefix
    uint64_t prefix_hash;         // hash of bucket and prefix
    atomic_uint refs;
    struct list_room *room;
    uint64_t charged_bytes;
    uint64_t hash;
    // Spans of `text`. `bucket` is the name that the client uses.
    struct span name, bucket, origin_bucket, prefix;
    const struct origin *origin;
    uint64_t since_us; // the origin was asked at this time or later
    uint64_t due_us;   // from this time on the page is too old
    unsigned status;
    struct headers headers;
    char *bytes;
    size_t len, cap;
    char text[];
};

struct list_ask {
    struct message message;
    struct proxy_worker *asker, *owner;
    struct list_page *page; // belongs to the asker until the fetch ends, then to the owner
    uint64_t ttl_us;
    bool wants_new; // the client sent no-cache
    // Used by the asker only:
    struct request *request; // NULL: the client has left
    enum list_verdict verdict;
    enum list_end end;
    enum err err;
    // Used by the owner only:
    struct list_node node;       // in list_owner.granted, or in `waiters` of another ask
    struct list_node table_node; // in list_owner.flights while others can join this ask
    struct list waiters;         // struct list_ask: requests that joined this one
    bool is_doomed;
};

struct list_owner {
    struct list pages[TABLE_BUCKETS], flights[TABLE_BUCKETS];
    // The same pages by prefix, so that a write finds those that may contain its key.
    struct list by_prefix[PREFIX_BUCKETS];
    struct list used;
    struct list granted; // asks whose askers are fetching the page
};

struct trim {
    struct message message;
    struct proxy_worker *pw;
    uint64_t goal_bytes; // target for the memory of all asks and pages together
};

// --- memory --------------------------------------------------------------------------------------

static uint64_t room_max(void)
{
    return min_u64(chunk_budget_max_bytes() / 8, ROOM_MAX);
}

static bool room_take(struct list_room *room, uint64_t bytes)
{
    uint64_t max = room_max(), used = atomic_load(&room->bytes);
    do {
        if (used + bytes > max) {
            stats_add(COUNTER_listings_over_budget, 1);
            return false;
        }
    } while (!atomic_compare_exchange_weak(&room->bytes, &used, used + bytes));
    if (!chunk_budget_try_charge(BUDGET_LISTINGS, 0, bytes)) {
        atomic_fetch_sub(&room->bytes, bytes);
        stats_add(COUNTER_listings_over_budget, 1);
        return false;
    }
    return true;
}

static void room_give(struct list_room *room, uint64_t bytes)
{
    check(atomic_load(&room->bytes) >= bytes);
    atomic_fetch_sub(&room->bytes, bytes);
    chunk_budget_discharge(BUDGET_LISTINGS, bytes);
}

static struct span text_put(char **at, struct span s)
{
    struct span copy = {*at, s.len};
    if (s.len > 0) {
        memcpy(*at, s.ptr, s.len);
    }
    *at += s.len;
    return copy;
}

// The hash of a prefix is computed byte by byte, because a write looks its key up under each
// prefix.
static uint64_t prefix_hash_begin(const struct origin *origin, struct span bucket)
{
    return hash64(bucket.ptr, bucket.len, (uint64_t)(uintptr_t)origin);
}

static uint64_t prefix_hash_step(uint64_t hash, char byte)
{
    return (hash ^ (uint8_t)byte) * 0x100000001b3u; // one step of FNV-1a
}

static struct list *prefix_bucket(struct list_owner *owner, uint64_t hash)
{
    return &owner->by_prefix[(hash >> 32) % PREFIX_BUCKETS];
}

// Returns a new page without bytes, or NULL if the budget is used up.
static struct list_page *page_new(struct list_room *room, const struct request *r, struct span name)
{
    const struct s3_param *param = s3_param_find(&r->s3, "prefix");
    struct span prefix = param != NULL ? param->value : (struct span){"", 0};
    size_t size =
        sizeof(struct list_page) + name.len + r->s3.bucket.len + r->origin_bucket.len + prefix.len;
    if (!room_take(room, size)) {
        return NULL;
    }
    struct list_page *page = calloc(1, size);
    check(page != NULL);
    list_node_init(&page->table_node);
    list_node_init(&page->used_node);
    list_node_init(&page->prefix_node);
    atomic_init(&page->refs, 1);
    page->room = room;
    page->charged_bytes = size;
    page->hash = hash64(name.ptr, name.len, 0);
    char *at = page->text;
    page->name = text_put(&at, name);
    page->bucket = text_put(&at, r->s3.bucket);
    page->origin_bucket = text_put(&at, r->origin_bucket);
    page->prefix = text_put(&at, prefix);
    page->origin = r->origin;
    page->prefix_hash = prefix_hash_begin(r->origin, r->origin_bucket);
    for (size_t i = 0; i < prefix.len; i++) {
        page->prefix_hash = prefix_hash_step(page->prefix_hash, prefix.ptr[i]);
    }
    return page;
}

static struct list_page *page_ref(struct list_page *page)
{
    check(atomic_load(&page->refs) > 0);
    atomic_fetch_add_explicit(&page->refs, 1, memory_order_relaxed);
    return page;
}

void list_cache_page_unref(struct list_page *page)
{
    if (page == NULL || atomic_fetch_sub_explicit(&page->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    room_give(page->room, page->charged_bytes);
    free(page->headers.items);
    free(page->bytes);
    free(page);
}

static bool page_charge(struct list_page *page, uint64_t bytes)
{
    bool has_room = room_take(page->room, bytes);
    page->charged_bytes += has_room ? bytes : 0;
    return has_room;
}

static bool page_grow(struct list_page *page, size_t cap)
{
    check(page->len <= page->cap);
    if (cap <= page->cap) {
        return true;
    }
    if (!page_charge(page, cap - page->cap)) {
        return false;
    }
    page->bytes = realloc(page->bytes, cap);
    check(page->bytes != NULL);
    page->cap = cap;
    return true;
}

static bool page_append(struct list_page *page, struct span data)
{
    check(page->status == 0);
    size_t need = page->len + data.len;
    size_t cap = max_u64(need, min_u64(max_u64(2 * page->cap, BODY_LEAST), LIST_PAGE_MAX));
    if (need > page->cap && !page_grow(page, cap)) {
        return false;
    }
    if (data.len > 0) { // without data, data.ptr may be NULL
        memcpy(page->bytes + page->len, data.ptr, data.len);
        page->len = need;
    }
    return true;
}

// Completes the page: releases unused memory of the body, and copies status and headers into one
// block of memory.
static bool page_finish(struct list_page *page, unsigned status, const struct headers *headers)
{
    check(page->status == 0);
    check(page->headers.items == NULL);
    size_t size = headers->count * sizeof(struct header);
    for (unsigned i = 0; i < headers->count; i++) {
        size += headers->items[i].name.len + headers->items[i].value.len;
    }
    if (page->len > 0 && page->len < page->cap) {
        char *exact = realloc(page->bytes, page->len);
        check(exact != NULL);
        room_give(page->room, page->cap - page->len);
        page->charged_bytes -= page->cap - page->len;
        page->bytes = exact;
        page->cap = page->len;
    }
    if (!page_charge(page, size)) {
        return false;
    }
    page->status = status;
    page->headers.items = malloc(max_u64(size, 1));
    check(page->headers.items != NULL);
    page->headers.count = page->headers.cap = headers->count;
    char *at = (char *)(page->headers.items + headers->count);
    for (unsigned i = 0; i < headers->count; i++) {
        page->headers.items[i].name = text_put(&at, headers->items[i].name);
        page->headers.items[i].value = text_put(&at, headers->items[i].value);
    }
    return true;
}

struct span list_cache_page_body(const struct list_page *page)
{
    return (struct span){page->bytes, page->len};
}

const struct headers *list_cache_page_headers(const struct list_page *page)
{
    return &page->headers;
}

unsigned list_cache_page_status(const struct list_page *page)
{
    return page->status;
}

// --- the owner's tables --------------------------------------------------------------------------

static struct list_owner *owner_of(struct proxy_worker *pw)
{
    if (pw->list_owner == NULL) {
        struct list_owner *owner = calloc(1, sizeof(*owner));
        check(owner != NULL);
        for (unsigned i = 0; i < TABLE_BUCKETS; i++) {
            list_init(&owner->pages[i]);
            list_init(&owner->flights[i]);
        }
        for (unsigned i = 0; i < PREFIX_BUCKETS; i++) {
            list_init(&owner->by_prefix[i]);
        }
        list_init(&owner->used);
        list_init(&owner->granted);
        pw->list_owner = owner;
    }
    return pw->list_owner;
}

// The low bits of the hash have chosen the owner, so the table uses the high bits.
static unsigned bucket_of(const struct list_page *page)
{
    check(page->name.len > 0);
    return (unsigned)(page->hash >> 32) % TABLE_BUCKETS;
}

static bool same_question(const struct list_page *a, const struct list_page *b)
{
    return a->hash == b->hash && span_equal(a->name, b->name);
}

static struct list_page *page_find(struct list_owner *owner, const struct list_page *like)
{
    list_for_each(node, &owner->pages[bucket_of(like)])
    {
        struct list_page *page = container_of(node, struct list_page, table_node);
        if (same_question(page, like)) {
            return page;
        }
    }
    return NULL;
}

static struct list_ask *flight_find(struct list_owner *owner, const struct list_page *like)
{
    list_for_each(node, &owner->flights[bucket_of(like)])
    {
        struct list_ask *flight = container_of(node, struct list_ask, table_node);
        if (same_question(flight->page, like)) {
            return flight;
        }
    }
    return NULL;
}

static uint64_t page_drop(struct proxy_worker *pw, struct list_page *page)
{
    uint64_t bytes = page->charged_bytes;
    check(list_node_linked(&page->table_node));
    check(atomic_load(&pw->proxy->list_room.kept_bytes[pw->index]) >= bytes);
    list_remove(&page->table_node);
    list_remove(&page->used_node);
    list_remove(&page->prefix_node);
    atomic_fetch_sub(&pw->proxy->list_room.kept_bytes[pw->index], bytes);
    list_cache_page_unref(page);
    return bytes;
}

// --- dropping pages for memory -------------------------------------------------------------------

static void on_trim(struct worker *to, struct message *message)
{
    (void)to;
    struct trim *trim = container_of(message, struct trim, message);
    struct proxy_worker *pw = trim->pw;
    struct list_room *room = &pw->proxy->list_room;
    struct list_node *node;
    check(atomic_load(&room->is_trimming[pw->index]));
    uint64_t used = atomic_load(&room->bytes);
    uint64_t surplus = used - min_u64(used, trim->goal_bytes);
    free(trim);
    atomic_store(&room->is_trimming[pw->index], false);
    while (surplus > 0 && (node = list_first(&owner_of(pw)->used)) != NULL) {
        surplus -= min_u64(surplus, page_drop(pw, container_of(node, struct list_page, used_node)));
    }
}

// Makes the owner with the most bytes of pages drop pages, down to `goal_bytes` in all.
static void make_room(struct proxy *proxy, uint64_t goal_bytes)
{
    struct list_room *room = &proxy->list_room;
    unsigned most = 0;
    for (unsigned i = 1; i < proxy->worker_count; i++) {
        if (atomic_load(&room->kept_bytes[i]) > atomic_load(&room->kept_bytes[most])) {
            most = i;
        }
    }
    if (atomic_load(&room->kept_bytes[most]) == 0 ||
        atomic_exchange(&room->is_trimming[most], true)) {
        return;
    }
    struct trim *trim = calloc(1, sizeof(*trim));
    check(trim != NULL);
    trim->message.deliver = on_trim;
    trim->pw = &proxy->workers[most];
    trim->goal_bytes = goal_bytes;
    mailbox_send(trim->pw->worker, &trim->message);
}

// --- the owner -----------------------------------------------------------------------------------

static void ask_free(struct list_ask *ask)
{
    check(list_empty(&ask->waiters));
    check(!list_node_linked(&ask->node));
    room_give(&ask->asker->proxy->list_room, sizeof(*ask));
    list_cache_page_unref(ask->page);
    free(ask);
}

static void on_answer(struct worker *to, struct message *message);

static void answer(struct list_ask *ask, enum list_verdict verdict, enum err err)
{
    check(verdict != LIST_WAITS);
    ask->verdict = verdict;
    ask->err = err;
    ask->message.deliver = on_answer;
    mailbox_send(ask->asker->worker, &ask->message);
}

static void answer_page(struct list_ask *ask, struct list_page *page, enum list_verdict verdict)
{
    check(page->status != 0);
    list_cache_page_unref(ask->page);
    ask->page = page_ref(page);
    answer(ask, verdict, ERR_OK);
}

static void grant(struct list_owner *owner, struct list_ask *ask, uint64_t now_us)
{
    check(!list_node_linked(&ask->node));
    check(!list_node_linked(&ask->table_node));
    check(ask->page->len == 0);
    struct list_ask *older = flight_find(owner, ask->page);
    if (older != NULL) {
        list_remove(&older->table_node);
    }
    ask->page->since_us = now_us;
    ask->page->due_us = now_us + ask->ttl_us;
    list_push_back(&owner->granted, &ask->node);
    list_push_back(&owner->flights[bucket_of(ask->page)], &ask->table_node);
    answer(ask, LIST_FETCH, ERR_OK);
}

// Returns true if the page is too old, by the rule under which it was fetched or by the asker's
// rule.
static bool is_too_old(const struct list_page *page, const struct list_ask *ask, uint64_t now_us)
{
    return now_us >= page->due_us || now_us >= page->since_us + ask->ttl_us;
}

static void on_ask(struct worker *to, struct message *message)
{
    struct list_ask *ask = container_of(message, struct list_ask, message);
    struct list_owner *owner = owner_of(ask->owner);
    check(ask->owner->worker == to);
    check(ask->verdict == LIST_WAITS);
    uint64_t now_us = worker_now_us(to);
    struct list_page *page = page_find(owner, ask->page);
    if (page != NULL && !ask->wants_new && !is_too_old(page, ask, now_us)) {
        list_remove(&page->used_node);
        list_push_back(&owner->used, &page->used_node);
        answer_page(ask, page, LIST_HIT);
        return;
    }
    if (page != NULL) { // the page that will be fetched replaces it
        (void)page_drop(ask->owner, page);
    }
    struct list_ask *flight = flight_find(owner, ask->page);
    if (flight != NULL && !ask->wants_new && !is_too_old(flight->page, ask, now_us)) {
        stats_add(COUNTER_listings_joined, 1);
        list_push_back(&flight->waiters, &ask->node);
        return;
    }
    grant(owner, ask, now_us);
}

// Returns the list_ttl of the rule that applies to the page now. 0: the page may not be kept.
static uint64_t ttl_us_of(const struct proxy_worker *pw, const struct list_page *page)
{
    return rules_find(pw->live, page->bucket, (struct span){"", 0})->list_ttl_ms * 1000;
}

// Drops a few pages that are too old. Called each time that a page is kept.
static void drop_expired(struct proxy_worker *pw, uint64_t now_us)
{
    struct list_node *node;
    for (unsigned i = 0; i < EXPIRED_AT_ONCE && (node = list_first(&pw->list_owner->used)) != NULL;
         i++) {
        struct list_page *page = container_of(node, struct list_page, used_node);
        if (now_us < page->due_us) {
            return;
        }
        (void)page_drop(pw, page);
    }
}

static void keep(struct proxy_worker *pw, struct list_page *page)
{
    struct list_owner *owner = owner_of(pw);
    check(!list_node_linked(&page->table_node));
    check(page->status != 0);
    struct list_page *old = page_find(owner, page);
    if (ttl_us_of(pw, page) == 0 || (old != NULL && old->since_us > page->since_us)) {
        return;
    }
    drop_expired(pw, worker_now_us(pw->worker));
    old = page_find(owner, page);
    if (old != NULL) {
        (void)page_drop(pw, old);
    }
    (void)page_ref(page);
    list_push_back(&owner->pages[bucket_of(page)], &page->table_node);
    list_push_back(&owner->used, &page->used_node);
    list_push_back(prefix_bucket(owner, page->prefix_hash), &page->prefix_node);
    atomic_fetch_add(&pw->proxy->list_room.kept_bytes[pw->index], page->charged_bytes);
    if (atomic_load(&pw->proxy->list_room.bytes) > room_max() / 4 * 3) {
        make_room(pw->proxy, room_max() / 4 * 3);
    }
}

// Called when the client of the fetch has left. The first waiter fetches, and the others wait for
// that fetch.
static void promote(struct list_owner *owner, struct list *waiters, uint64_t now_us)
{
    struct list_node *node = list_pop_front(waiters);
    if (node != NULL) {
        struct list_ask *next = container_of(node, struct list_ask, node);
        list_append_all(&next->waiters, waiters);
        grant(owner, next, now_us);
    }
}

static void on_end(struct worker *to, struct message *message)
{
    struct list_ask *ask = container_of(message, struct list_ask, message);
    check(list_node_linked(&ask->node));
    list_remove(&ask->node);
    list_remove(&ask->table_node);
    if (ask->end == LIST_END_LEFT) {
        promote(owner_of(ask->owner), &ask->waiters, worker_now_us(to));
    } else if (ask->end == LIST_END_WHOLE && ask->page->status == 200 && !ask->is_doomed) {
        keep(ask->owner, ask->page);
    }
    struct list_node *node;
    while ((node = list_pop_front(&ask->waiters)) != NULL) {
        struct list_ask *waiter = container_of(node, struct list_ask, node);
        if (ask->end == LIST_END_WHOLE) {
            answer_page(waiter, ask->page, LIST_JOINED);
        } else {
            answer(waiter, ask->end == LIST_END_FAILED ? LIST_FAILED : LIST_ALONE, ask->err);
        }
    }
    ask_free(ask);
}

// Returns true if the page may contain the key. An empty key stands for the whole bucket.
static bool page_covers(const struct list_page *page, const struct object_key *key)
{
    return page->origin == key->origin && span_equal(page->origin_bucket, key->bucket) &&
           (key->key.len == 0 || span_starts_with(key->key, page->prefix));
}

static void drop_pages_of_bucket(struct proxy_worker *pw, const struct object_key *key)
{
    list_for_each(node, &pw->list_owner->used)
    {
        struct list_page *page = container_of(node, struct list_page, used_node);
        if (page_covers(page, key)) {
            (void)page_drop(pw, page);
        }
    }
}

// Looks up each prefix of the key, so that the cost of a write does not grow with the number of
// other pages.
static void drop_pages_of_key(struct proxy_worker *pw, const struct object_key *key)
{
    uint64_t hash = prefix_hash_begin(key->origin, key->bucket);
    for (size_t i = 0; !list_empty(&pw->list_owner->used); i++) {
        struct list *pages = prefix_bucket(pw->list_owner, hash);
        list_for_each(node, pages)
        {
            struct list_page *page = container_of(node, struct list_page, prefix_node);
            if (page->prefix_hash == hash && page_covers(page, key)) {
                (void)page_drop(pw, page);
            }
        }
        if (i == key->key.len) {
            return;
        }
        hash = prefix_hash_step(hash, key->key.ptr[i]);
    }
}

void list_cache_drop_key(struct proxy_worker *pw, const struct object_key *key)
{
    struct list_owner *owner = pw->list_owner;
    if (owner == NULL) {
        return;
    }
    list_for_each(flight_node, &owner->granted)
    {
        struct list_ask *flight = container_of(flight_node, struct list_ask, node);
        if (page_covers(flight->page, key)) {
            flight->is_doomed = true;
            list_remove(&flight->table_node);
        }
    }
    if (key->key.len == 0) {
        drop_pages_of_bucket(pw, key);
    } else {
        drop_pages_of_key(pw, key);
    }
}

void list_cache_apply_rules(struct proxy_worker *pw)
{
    uint64_t now_us = worker_now_us(pw->worker);
    if (pw->list_owner == NULL) {
        return;
    }
    list_for_each(node, &pw->list_owner->used)
    {
        struct list_page *page = container_of(node, struct list_page, used_node);
        if (now_us >= page->since_us + ttl_us_of(pw, page)) {
            (void)page_drop(pw, page);
        }
    }
}

void list_cache_free(struct proxy_worker *pw)
{
    struct list_owner *owner = pw->list_owner;
    struct list_node *node;
    if (owner == NULL) {
        return;
    }
    while ((node = list_first(&owner->used)) != NULL) {
        (void)page_drop(pw, container_of(node, struct list_page, used_node));
    }
    while ((node = list_pop_front(&owner->granted)) != NULL) {
        struct list_ask *ask = container_of(node, struct list_ask, node);
        while ((node = list_pop_front(&ask->waiters)) != NULL) {
            ask_free(container_of(node, struct list_ask, node));
        }
        ask_free(ask);
    }
    free(owner);
    pw->list_owner = NULL;
}

// --- the asker -----------------------------------------------------------------------------------

bool list_cache_ask(struct request *r)
{
    check(r->list_ask == NULL);
    struct proxy *proxy = r->pw->proxy;
    struct span name = list_question_name(r);
    if (name.len == 0) {
        return false;
    }
    struct list_page *page = page_new(&proxy->list_room, r, name);
    if (page == NULL || !room_take(&proxy->list_room, sizeof(struct list_ask))) {
        list_cache_page_unref(page);
        make_room(proxy, room_max() / 2);
        return false;
    }
    struct list_ask *ask = calloc(1, sizeof(*ask));
    check(ask != NULL);
    list_init(&ask->waiters);
    list_node_init(&ask->node);
    list_node_init(&ask->table_node);
    ask->asker = r->pw;
    ask->owner = &proxy->workers[page->hash % proxy->worker_count];
    ask->page = page;
    ask->ttl_us = r->rule->list_ttl_ms * 1000;
    ask->wants_new = request_is_no_cache(r);
    ask->request = r;
    ask->message.deliver = on_ask;
    r->list_ask = ask;
    mailbox_send(ask->owner->worker, &ask->message);
    return true;
}

static void on_answer(struct worker *to, struct message *message)
{
    (void)to;
    struct list_ask *ask = container_of(message, struct list_ask, message);
    struct request *r = ask->request;
    if (r != NULL) {
        r->list_verdict = ask->verdict;
        request_go(r);
    } else if (ask->verdict == LIST_FETCH) {
        list_cache_end(ask, LIST_END_LEFT, ERR_OK);
    } else {
        ask_free(ask);
    }
}

struct list_page *list_cache_take_page(struct request *r)
{
    struct list_ask *ask = r->list_ask;
    check(ask->verdict == LIST_HIT || ask->verdict == LIST_JOINED);
    r->list_ask = NULL;
    struct list_page *page = page_ref(ask->page);
    ask_free(ask);
    return page;
}

enum err list_cache_take_error(struct request *r)
{
    struct list_ask *ask = r->list_ask;
    check(ask->verdict == LIST_FAILED || ask->verdict == LIST_ALONE);
    enum err err = ask->err;
    r->list_ask = NULL;
    ask_free(ask);
    return err;
}

struct list_ask *list_cache_take_fetch(struct request *r)
{
    struct list_ask *ask = r->list_ask;
    check(ask == NULL || ask->verdict == LIST_FETCH);
    r->list_ask = NULL;
    return ask;
}

void list_cache_leave(struct request *r)
{
    struct list_ask *ask = r->list_ask;
    if (ask == NULL) {
        return;
    }
    r->list_ask = NULL;
    ask->request = NULL;
    if (r->list_verdict == LIST_FETCH) {
        list_cache_end(ask, LIST_END_LEFT, ERR_OK);
    } else if (r->list_verdict != LIST_WAITS) {
        ask_free(ask);
    }
}

static bool fits(struct list_ask *ask, bool has_room)
{
    if (!has_room) {
        make_room(ask->asker->proxy, room_max() / 2);
    }
    return has_room;
}

bool list_cache_expect(struct list_ask *ask, uint64_t length)
{
    return length <= LIST_PAGE_MAX && fits(ask, page_grow(ask->page, length));
}

bool list_cache_append(struct list_ask *ask, struct span data)
{
    check(ask->page->len <= LIST_PAGE_MAX);
    return ask->page->len + data.len <= LIST_PAGE_MAX && fits(ask, page_append(ask->page, data));
}

void list_cache_end_whole(struct list_ask *ask, unsigned status, const struct headers *headers)
{
    bool has_room = page_finish(ask->page, status, headers);
    list_cache_end(ask, has_room ? LIST_END_WHOLE : LIST_END_ALONE, ERR_OK);
}

void list_cache_end(struct list_ask *ask, enum list_end end, enum err err)
{
    check(ask->verdict == LIST_FETCH);
    ask->end = end;
    ask->err = err;
    ask->message.deliver = on_end;
    mailbox_send(ask->owner->worker, &ask->message);
}
