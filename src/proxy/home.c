// SPDX-License-Identifier: Apache-2.0
// A key's home: the worker that owns its stripe 0. It alone decides which version is current, names
// generations and posts the key's index changes. All of this runs on that worker; an entry lives
// while something of the key is undecided.
//
// Rules kept here (numbers are used in comments of this room):
//  11 ROUTE: a refused version that is still current is invalidated first. Known: forward as JOIN.
//     Deciding: hold. A visible record not below the floor: AGAIN (the reader's own look-up will see
//     it). Else become deciding and send FIRST.
//  12 VERSION with the current token: known, under the visible record's generation if the ETag is
//     the same, else a new one.
//  13 FIRSTEND: still deciding: forget and route held readers again. Known: forgotten when no posted
//     put is left.
//  14 PUBLISH counts only if no write is open, the sender has acknowledged the last floor, and the
//     ETag is that of the known version, else of the visible record; with neither, and no put
//     posted, it becomes the known version. A run that completes an object whose bytes are not what
//     the origin says they are (whole_sum.c) invalidates it.
//  15 When the index has it, VISIBLE to the block's owner; a failed commit is DROPPED.
//  24 Invalidation: a new floor; forget and route held readers again; delete below the floor; INVAL
//     to every worker.
//  26 When all have acknowledged the last floor, all deletes are visible and no write is open: UNBAR.
//  27 WBEGIN opens a write and invalidates; WREADY when the delete is visible.
//  28 WEND invalidates again; WDONE when every worker has acknowledged that floor.
//  29 Conditional requests count as begun when sent; what precedes an invalidation renews nothing; a
//     strict reader joins only a request not yet sent.
#include "proxy/proxy_private.h"

#include <stdlib.h>
#include <string.h>

#define HOME_WORKERS_MAX 64
#define HOME_DELETE_AGAIN_MS 1000u // after a failed commit; doubled up to 64 times

enum home_state { HOME_NONE, HOME_DECIDING, HOME_KNOWN };

struct held { // a reader that waits here
    struct list_node node;
    struct reader *reader;
};

struct home_check { // one conditional request for all who ask meanwhile
    struct origin_fetch fetch;
    struct home_key *home;
    struct store_object *asked; // its ETag went along; NULL: none
    struct store_object *found;
    struct list waiters;
    uint64_t floor, began_us;
};

struct home_key {
    struct list_node map_node;
    struct proxy_worker *pw;
    struct object_key *key;
    enum home_state state;
    uint64_t token;
    bool first_live;            // the fill that carries the token is in its table
    struct store_object *known; // with its generation
    struct list held;
    unsigned posted; // puts not yet visible
    uint64_t floor;
    uint64_t acked[HOME_WORKERS_MAX];
    bool barred;
    unsigned deletes; // not yet visible
    bool delete_owed; // one failed: the bar stays until it is repeated with success
    struct timer delete_timer;
    unsigned delete_failures;
    unsigned open_writes;
    struct list starting; // writes that wait for the delete
    struct list closing;  // writes that wait for the acknowledgements
    struct home_check *check;
    struct list next_check; // strict readers that came after it was sent
};

struct home_post {
    struct store_post post;
    struct home_key *home;
    struct fill *fill;
    struct proxy_worker *owner;
};

static void home_route(struct home_key *h, struct reader *reader);
static void home_invalidate(struct home_key *h);
static void on_delete_timer(struct timer *timer);

// --- entries -------------------------------------------------------------------------------------

static struct home_key *home_find(struct proxy_worker *pw, struct hash128 hash)
{
    list_for_each(node, key_map_bucket(&pw->homes, hash))
    {
        struct home_key *h = container_of(node, struct home_key, map_node);
        if (hash128_equal(h->key->hash, hash)) {
            return h;
        }
    }
    return NULL;
}

static struct home_key *home_get(struct proxy_worker *pw, struct object_key *key)
{
    struct home_key *h = home_find(pw, key->hash);
    if (h != NULL) {
        return h;
    }
    h = calloc(1, sizeof(*h));
    check(h != NULL);
    h->pw = pw;
    h->key = object_key_ref(key);
    list_node_init(&h->map_node);
    list_init(&h->held);
    list_init(&h->starting);
    list_init(&h->closing);
    list_init(&h->next_check);
    timer_init(pw->worker, &h->delete_timer, on_delete_timer);
    list_push_back(key_map_bucket(&pw->homes, key->hash), &h->map_node);
    pw->homes.count++;
    return h;
}

static void home_free(void *ptr)
{
    struct home_key *h = ptr;
    timer_done(&h->delete_timer);
    store_object_unref(h->known);
    object_key_unref(h->key);
    free(h);
}

static void home_maybe_free(struct home_key *h)
{
    bool idle = h->state == HOME_NONE && h->posted == 0 && !h->barred && h->deletes == 0 &&
                h->open_writes == 0 && h->check == NULL && list_empty(&h->held) &&
                list_empty(&h->starting) && list_empty(&h->closing) && list_empty(&h->next_check);
    if (idle && list_node_linked(&h->map_node)) {
        list_remove(&h->map_node);
        h->pw->homes.count--;
        worker_free_later(h->pw->worker, home_free, h);
    }
}

void homes_free(struct proxy_worker *pw)
{
    for (unsigned i = 0; i < PROXY_MAP_BUCKETS; i++) {
        list_for_each(node, &pw->homes.buckets[i])
        {
            list_remove(node);
            home_free(container_of(node, struct home_key, map_node));
        }
    }
}

static void home_hold(struct list *list, struct reader *reader)
{
    struct held *held = calloc(1, sizeof(*held));
    check(held != NULL);
    list_node_init(&held->node);
    held->reader = reader;
    list_push_back(list, &held->node);
}

static struct reader *home_unhold(struct list *list)
{
    struct list_node *node = list_pop_front(list);
    if (node == NULL) {
        return NULL;
    }
    struct held *held = container_of(node, struct held, node);
    struct reader *reader = held->reader;
    free(held);
    return reader;
}

// The visible record that counts here.
struct visible {
    bool found;
    uint64_t generation, etag_hash;
    uint32_t block_size_bytes;
};

static struct visible home_visible(struct home_key *h)
{
    static _Thread_local struct store_view view;
    store_lookup(h->pw->worker, h->pw->store, h->key->hash, 0, 1, h->floor, &view);
    struct visible v = {.found = view.found};
    if (v.found) {
        v.generation = view.generation;
        v.etag_hash = view.etag_hash;
        v.block_size_bytes = view.block_size_bytes;
    }
    store_view_done(&view);
    return v;
}

static bool visible_is(const struct visible *v, const struct store_object *object)
{
    return v->found && object->etag.len > 0 &&
           v->etag_hash == hash64(object->etag.ptr, object->etag.len, 0);
}

// Is `object` the version that counts now: known here, else visible in the index?
static bool home_is_current(struct home_key *h, const struct store_object *object)
{
    if (h->state == HOME_KNOWN) {
        return span_equal(h->known->etag, object->etag);
    }
    struct visible v = home_visible(h);
    return visible_is(&v, object);
}

// --- deciding ------------------------------------------------------------------------------------

static void home_answer_error(struct home_key *h, struct reader *reader, enum err err,
                              struct span document)
{
    struct wire *wire = wire_new(h->pw, WIRE_ERROR, NULL);
    wire->reader = reader;
    wire->err = err;
    wire->document = span_heap_copy(document);
    wire_send(reader->at, wire);
}

static void home_forward(struct home_key *h, struct reader *reader)
{
    uint64_t first_byte = reader->block * reader->block_size_bytes;
    if (first_byte > 0 && first_byte >= h->known->size_bytes) {
        // The version that others found out is shorter: there is nothing to ask the origin for.
        home_answer_error(h, reader, ERR_INVALID_RANGE, (struct span){0});
        return;
    }
    store_object_unref(reader->object);
    reader->object = store_object_ref(h->known);
    struct wire *wire = wire_new(h->pw, WIRE_JOIN, h->key);
    wire->reader = reader;
    wire_send(object_key_owner(h->pw, h->key, reader->block * reader->block_size_bytes), wire);
}

static void home_answer_again(struct home_key *h, struct reader *reader)
{
    struct wire *wire = wire_new(h->pw, WIRE_AGAIN, NULL);
    wire->reader = reader;
    wire_send(reader->at, wire);
}

static struct store_object **home_described(struct home_key *h)
{
    return &h->pw->described[h->key->hash.lo % PROXY_DESCRIBED];
}

static void home_decide(struct home_key *h, struct reader *reader)
{
    struct store_object *described = *home_described(h);
    if (described != NULL && hash128_equal(described->hash, h->key->hash) &&
        reader->described == NULL) {
        reader->described = store_object_ref(described);
    }
    h->state = HOME_DECIDING;
    h->token = ++h->pw->next_token;
    h->first_live = true;
    struct wire *wire = wire_new(h->pw, WIRE_FIRST, h->key);
    wire->reader = reader;
    wire->token = h->token;
    wire_send(object_key_owner(h->pw, h->key, reader->block * reader->block_size_bytes), wire);
}

static void home_route(struct home_key *h, struct reader *reader)
{
    if (reader->refused != NULL) {
        bool current = home_is_current(h, reader->refused);
        store_object_unref(reader->refused);
        reader->refused = NULL;
        if (current) {
            home_invalidate(h);
        }
    }
    if (h->state != HOME_NONE && reader->check_strict) {
        home_answer_again(h, reader); // what is under way was sent before it came
    } else if (h->state == HOME_KNOWN) {
        home_forward(h, reader);
    } else if (h->state == HOME_DECIDING) {
        home_hold(&h->held, reader);
    } else if (!reader->skip_index && home_visible(h).found) {
        home_answer_again(h, reader);
    } else {
        home_decide(h, reader);
    }
}

static void home_route_held(struct home_key *h)
{
    struct list waiting;
    list_init(&waiting);
    list_append_all(&waiting, &h->held);
    struct reader *reader;
    while ((reader = home_unhold(&waiting)) != NULL) {
        home_route(h, reader);
    }
}

// One error to all who waited for the same first request; a range it could not satisfy says nothing
// about theirs.
static void home_fail_held(struct home_key *h, enum err err, struct span document)
{
    struct reader *reader;
    while ((reader = home_unhold(&h->held)) != NULL) {
        struct wire *wire = wire_new(h->pw, WIRE_ERROR, NULL);
        wire->reader = reader;
        wire->err = err;
        wire->document = span_heap_copy(document);
        wire_send(reader->at, wire);
    }
}

static void home_forget(struct home_key *h)
{
    h->state = HOME_NONE;
    h->token = 0;
    h->first_live = false;
    store_object_unref(h->known);
    h->known = NULL;
}

// Rule 13's second half: known is forgotten when its first run has left and no put is under way.
static void home_forget_if_settled(struct home_key *h)
{
    if (h->state == HOME_KNOWN && !h->first_live && h->posted == 0) {
        home_forget(h);
    }
}

void home_on_route(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_get(pw, wire->key);
    home_route(h, wire->reader);
    home_maybe_free(h);
}

static void home_know(struct home_key *h, const struct store_object *object)
{
    struct visible v = home_visible(h);
    bool same = visible_is(&v, object) && v.block_size_bytes == object->block_size_bytes;
    uint64_t generation = same ? v.generation : store_generation_next(h->pw->store);
    store_object_unref(h->known);
    h->known = store_object_with_generation(object, generation);
    h->state = HOME_KNOWN;
}

void home_on_version(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_find(pw, wire->key->hash);
    if (h == NULL || h->token != wire->token) {
        return;
    }
    if (h->state != HOME_KNOWN || !span_equal(h->known->etag, wire->object->etag)) {
        home_know(h, wire->object);
    }
    home_route_held(h);
}

void home_on_firstend(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_find(pw, wire->key->hash);
    if (h == NULL || h->token != wire->token) {
        return;
    }
    h->first_live = false;
    h->token = 0;
    if (h->state == HOME_DECIDING) {
        h->state = HOME_NONE;
        if (wire->err != ERR_OK && wire->err != ERR_INVALID_RANGE) {
            home_fail_held(h, wire->err, wire->document);
        }
        home_route_held(h);
    } else {
        home_forget_if_settled(h);
    }
    home_maybe_free(h);
}

// --- publication ---------------------------------------------------------------------------------

static void home_answer_fill(struct home_key *h, struct proxy_worker *owner, struct fill *fill,
                             enum wire_type type)
{
    struct wire *wire = wire_new(h->pw, type, NULL);
    wire->fill = fill;
    wire_send(owner, wire);
}

static void on_put_done(struct store_post *post)
{
    struct home_post *put = container_of(post, struct home_post, post);
    struct home_key *h = put->home;
    home_answer_fill(h, put->owner, put->fill, post->err == ERR_OK ? WIRE_VISIBLE : WIRE_DROPPED);
    store_object_unref(post->object);
    free(put);
    h->posted--;
    home_forget_if_settled(h);
    home_maybe_free(h);
}

// Rule 14.
static bool home_accepts(struct home_key *h, const struct wire *wire)
{
    if (h->open_writes > 0 || (h->barred && h->acked[wire->from->index] != h->floor)) {
        return false;
    }
    if (h->state == HOME_KNOWN) {
        return span_equal(h->known->etag, wire->object->etag);
    }
    struct visible v = home_visible(h);
    if (v.found) {
        if (!visible_is(&v, wire->object)) {
            return false;
        }
    } else if (h->posted > 0) {
        return false;
    }
    home_know(h, wire->object); // names the generation for this and the puts beside it
    home_route_held(h);
    return true;
}

// With this run the object may be whole; false: then it is not what the origin says it is.
static bool home_sum_is_right(struct home_key *h, struct wire *wire)
{
    struct s3_checksum_state *sum = wire->sum;
    wire->sum = NULL;
    return sum == NULL ||
           whole_sum_add(h->pw, h->key, wire->object, wire->first_byte, wire->end_byte, sum);
}

void home_on_publish(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_get(pw, wire->key);
    bool accepted = home_accepts(h, wire);
    if (accepted && !home_sum_is_right(h, wire)) {
        home_invalidate(h); // and with it the runs before
        accepted = false;
    }
    if (!accepted) {
        home_answer_fill(h, wire->from, wire->fill, WIRE_DROPPED);
        home_maybe_free(h);
        return;
    }
    struct home_post *put = calloc(1, sizeof(*put));
    check(put != NULL);
    put->home = h;
    put->fill = wire->fill;
    put->owner = wire->from;
    put->post.store = pw->store;
    put->post.kind = STORE_POST_PUT;
    put->post.hash = h->key->hash;
    put->post.object = store_object_with_generation(wire->object, h->known->generation);
    put->post.place = wire->place;
    put->post.done = on_put_done;
    h->posted++;
    store_post(pw->worker, &put->post);
}

// --- invalidation --------------------------------------------------------------------------------

static void home_settle(struct home_key *h);

static void on_delete_done(struct store_post *post)
{
    struct home_post *delete_post = container_of(post, struct home_post, post);
    struct home_key *h = delete_post->home;
    if (delete_post->post.err == ERR_OK) {
        h->delete_failures = 0;
    } else if (!h->delete_owed) {
        // A broken disk must not hold up writes, but the record below the floor may stay visible.
        h->delete_owed = true;
        timer_start(&h->delete_timer, (uint64_t)HOME_DELETE_AGAIN_MS << h->delete_failures);
        h->delete_failures = (unsigned)min_u64(h->delete_failures + 1, 6);
    }
    free(delete_post);
    h->deletes--;
    home_settle(h);
}

static void home_post_delete(struct home_key *h)
{
    struct home_post *delete_post = calloc(1, sizeof(*delete_post));
    check(delete_post != NULL);
    delete_post->home = h;
    delete_post->post.store = h->pw->store;
    delete_post->post.kind = STORE_POST_DELETE;
    delete_post->post.hash = h->key->hash;
    delete_post->post.generation_floor = h->floor;
    delete_post->post.urgent = true;
    delete_post->post.done = on_delete_done;
    h->deletes++;
    store_post(h->pw->worker, &delete_post->post);
}

static void on_delete_timer(struct timer *timer)
{
    struct home_key *h = container_of(timer, struct home_key, delete_timer);
    h->delete_owed = false;
    home_post_delete(h);
}

// Rule 24.
static void home_invalidate(struct home_key *h)
{
    bool visible = home_visible(h).found;
    stats_add(COUNTER_invalidations, 1);
    h->floor = store_generation_next(h->pw->store);
    h->barred = true;
    home_forget(h);
    if (visible || h->posted > 0) {
        home_post_delete(h);
    }
    for (unsigned i = 0; i < h->pw->proxy->worker_count; i++) {
        struct wire *wire = wire_new(h->pw, WIRE_INVAL, h->key);
        wire->floor = h->floor;
        wire_send(&h->pw->proxy->workers[i], wire);
    }
    home_route_held(h);
}

static bool home_all_acked(const struct home_key *h)
{
    for (unsigned i = 0; i < h->pw->proxy->worker_count; i++) {
        if (h->acked[i] != h->floor) {
            return false;
        }
    }
    return true;
}

static void home_answer_write(struct home_key *h, struct key_write *kw, enum wire_type type)
{
    struct wire *wire = wire_new(h->pw, type, NULL);
    wire->write = kw;
    wire_send(kw->at, wire);
}

// Whatever waited for acknowledgements or deletes and need not wait any more goes on.
static void home_settle(struct home_key *h)
{
    struct list_node *node;
    while (h->deletes == 0 && (node = list_pop_front(&h->starting)) != NULL) {
        home_answer_write(h, container_of(node, struct key_write, node), WIRE_WREADY);
    }
    bool acked = home_all_acked(h);
    while (acked && (node = list_pop_front(&h->closing)) != NULL) {
        h->open_writes--;
        home_answer_write(h, container_of(node, struct key_write, node), WIRE_WDONE);
    }
    if (h->barred && acked && h->deletes == 0 && !h->delete_owed && h->open_writes == 0) {
        h->barred = false;
        for (unsigned i = 0; i < h->pw->proxy->worker_count; i++) {
            struct wire *wire = wire_new(h->pw, WIRE_UNBAR, h->key);
            wire->floor = h->floor;
            wire_send(&h->pw->proxy->workers[i], wire);
        }
    }
    home_maybe_free(h);
}

void home_on_ack(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_find(pw, wire->key->hash);
    check(h != NULL); // it is barred until this has come
    h->acked[wire->from->index] = wire->floor;
    home_settle(h);
}

void home_on_wbegin(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_get(pw, wire->key);
    h->open_writes++;
    home_invalidate(h);
    list_push_back(&h->starting, &wire->write->node);
    home_settle(h);
}

void home_on_wend(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_find(pw, wire->key->hash);
    check(h != NULL && h->open_writes > 0);
    home_invalidate(h);
    list_push_back(&h->closing, &wire->write->node);
    home_settle(h);
}

// Rule 22: a fill was told that this version is no more.
void home_on_gonev(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_get(pw, wire->key);
    if (home_is_current(h, wire->object)) {
        home_invalidate(h);
    }
    home_maybe_free(h);
}

// --- conditional requests ------------------------------------------------------------------------

static void home_check_start(struct home_key *h, struct store_object *asked);

static bool check_same(const struct store_object *a, const struct store_object *b)
{
    return a != NULL && b != NULL && a->etag.len > 0 && span_equal(a->etag, b->etag);
}

static void home_check_answer(struct home_check *c, struct reader *reader, enum err err,
                              struct span document)
{
    struct wire *wire = wire_new(c->home->pw, WIRE_CHECKED, NULL);
    wire->reader = reader;
    wire->outcome = OUTCOME_CHECKED;
    wire->err = err;
    if (err == ERR_NOT_MODIFIED && !check_same(reader->object, c->asked)) {
        wire->outcome = OUTCOME_REJOIN; // asked about another version
    } else if (err == ERR_OK && check_same(reader->object, c->found)) {
        wire->err = ERR_NOT_MODIFIED; // an origin that ignores conditions
    } else if (err == ERR_OK) {
        wire->object = store_object_ref(c->found);
    }
    wire->document = span_heap_copy(document);
    wire_send(reader->at, wire);
}

// What the answer means for the record in the index, and for a read that may follow.
static void home_check_conclude(struct home_check *c, enum err err)
{
    struct home_key *h = c->home;
    if (err == ERR_OK && freshness_checksums(c->found->headers).len > 0) {
        struct store_object **described = home_described(h);
        store_object_unref(*described);
        *described = store_object_ref(c->found);
    }
    struct visible v = home_visible(h);
    if (!v.found) {
        return;
    }
    bool same = (err == ERR_NOT_MODIFIED && c->asked != NULL && visible_is(&v, c->asked)) ||
                (err == ERR_OK && visible_is(&v, c->found));
    if (same) {
        struct store_renewal renewal = {.hash = h->key->hash, .generation = v.generation};
        store_renew(h->pw->worker, h->pw->store, &renewal, 1, c->began_us);
    } else if (err == ERR_OK || err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET) {
        home_invalidate(h);
    }
}

static void home_check_free(void *ptr)
{
    struct home_check *c = ptr;
    store_object_unref(c->asked);
    store_object_unref(c->found);
    free(c);
}

static void on_check_end(struct origin_fetch *f, enum err err)
{
    struct home_check *c = f->ctx;
    struct home_key *h = c->home;
    if (err == ERR_OK && c->found == NULL) {
        err = ERR_ORIGIN_PROTOCOL;
    }
    h->check = NULL;
    // Sent before an invalidation it says nothing to anyone. Sent inside a write it is true for its
    // readers, who came before that write's reply, but no longer than the write is open.
    bool outdated = c->floor != h->floor;
    if (!outdated && h->open_writes == 0) {
        home_check_conclude(c, err);
    }
    struct reader *reader;
    while ((reader = home_unhold(&c->waiters)) != NULL) {
        if (outdated) {
            home_answer_again(h, reader);
        } else {
            home_check_answer(c, reader, err, f->error_answer);
        }
    }
    worker_free_later(h->pw->worker, home_check_free, c);
    if (!list_empty(&h->next_check)) {
        struct list_node *first = list_first(&h->next_check);
        home_check_start(h, container_of(first, struct held, node)->reader->object);
        list_append_all(&h->check->waiters, &h->next_check);
    }
    home_maybe_free(h);
}

static enum err on_check_head(struct origin_fetch *f)
{
    struct home_check *c = f->ctx;
    c->found = freshness_object_from_fetch(c->home->key, f, NULL);
    return c->found != NULL ? ERR_OK : ERR_ORIGIN_PROTOCOL;
}

static enum err on_check_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void home_check_start(struct home_key *h, struct store_object *asked)
{
    struct home_check *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->home = h;
    c->asked = asked != NULL ? store_object_ref(asked) : NULL;
    c->floor = h->floor;
    c->began_us = worker_now_us(h->pw->worker);
    list_init(&c->waiters);
    h->check = c;
    c->fetch.head = true;
    c->fetch.bucket = h->key->bucket;
    c->fetch.key = h->key->key;
    c->fetch.credentials = h->key->credentials;
    c->fetch.ask_checksums = true;
    if (asked != NULL) {
        c->fetch.if_none_match = c->asked->etag;
    }
    c->fetch.on_head = on_check_head;
    c->fetch.on_body = on_check_body;
    c->fetch.on_end = on_check_end;
    c->fetch.ctx = c;
    stats_add(COUNTER_revalidations, 1);
    origin_fetch_start(h->pw->worker, h->key->origin, &c->fetch);
}

void home_on_check(struct proxy_worker *pw, struct wire *wire)
{
    struct home_key *h = home_get(pw, wire->key);
    if (h->check == NULL) {
        home_check_start(h, wire->reader->object);
    } else if (wire->reader->check_strict) {
        stats_add(COUNTER_revalidations_joined, 1);
        home_hold(&h->next_check, wire->reader);
        return;
    } else {
        stats_add(COUNTER_revalidations_joined, 1);
    }
    home_hold(&h->check->waiters, wire->reader);
}
