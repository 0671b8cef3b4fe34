// SPDX-License-Identifier: Apache-2.0
// A key's home: the worker that owns its stripe 0. It alone decides which version is current, names
// generations and posts the key's index changes. All of this runs on that worker; an entry lives
// while something of the key is undecided (home_private.h). Rules 11 to 15 of README.md.
//
// What an entry knows of the version, by its state:
//
//   NONE      ROUTE: a visible record not below the floor: AGAIN (the reader's own look-up sees it).
//             Else a new token goes out with FIRST: DECIDING.
//   DECIDING  ROUTE: held. VERSION with the token: KNOWN, the held are routed. FIRST_END with the
//             token: NONE, the held are routed again, or fail with the origin's error.
//   KNOWN     ROUTE: JOIN to the stripe's owner. VERSION of another ETag: that one is known. NONE
//             when the first run has left its table and no put is posted.
//   (any)     an invalidation (home_write.c): NONE, the held are routed again; a VERSION or FIRST_END
//             that still comes has an old token and is ignored.
#include "fill/home_private.h"

#include <stdlib.h>

struct home_post {
    struct store_post post;
    struct home_key *home;
    struct fill *fill;
    struct fill_worker *owner;
};

// --- entries -------------------------------------------------------------------------------------

struct home_key *home_find(struct fill_worker *fw, struct hash128 hash)
{
    list_for_each(node, fill_map_bucket(&fw->homes, hash))
    {
        struct home_key *h = container_of(node, struct home_key, map_node);
        if (hash128_equal(h->key->hash, hash)) {
            return h;
        }
    }
    return NULL;
}

struct home_key *home_get(struct fill_worker *fw, struct object_key *key)
{
    check(object_key_home(fw, key) == fw); // rule 1
    struct home_key *h = home_find(fw, key->hash);
    if (h != NULL) {
        return h;
    }
    h = calloc(1, sizeof(*h));
    check(h != NULL);
    h->fw = fw;
    h->key = object_key_ref(key);
    list_node_init(&h->map_node);
    list_init(&h->held);
    list_init(&h->starting);
    list_init(&h->closing);
    list_init(&h->next_revalidation);
    timer_init(fw->worker, &h->delete_timer, home_on_delete_timer);
    list_push_back(fill_map_bucket(&fw->homes, key->hash), &h->map_node);
    fw->homes.count++;
    return h;
}

static void home_free(void *ptr)
{
    struct home_key *h = ptr;
    check(h->state == HOME_NONE && !list_node_linked(&h->map_node));
    timer_done(&h->delete_timer);
    store_object_unref(h->known);
    object_key_unref(h->key);
    free(h);
}

void home_maybe_free(struct home_key *h)
{
    fill_assert_home(h);
    bool idle = h->state == HOME_NONE && h->posted == 0 && !h->has_floor && h->deletes == 0 &&
                h->open_writes == 0 && h->revalidation == NULL && list_empty(&h->held) &&
                list_empty(&h->starting) && list_empty(&h->closing) &&
                list_empty(&h->next_revalidation);
    if (idle && list_node_linked(&h->map_node)) {
        check(h->fw->homes.count > 0);
        list_remove(&h->map_node);
        h->fw->homes.count--;
        worker_free_later(h->fw->worker, home_free, h);
    }
}

void home_free_all(struct fill_worker *fw)
{
    for (unsigned i = 0; i < FILL_MAP_BUCKETS; i++) {
        list_for_each(node, &fw->homes.buckets[i])
        {
            list_remove(node);
            home_free(container_of(node, struct home_key, map_node));
        }
    }
}

void home_hold(struct list *list, struct subscription *sub)
{
    struct held *held = calloc(1, sizeof(*held));
    check(held != NULL);
    list_node_init(&held->node);
    held->subscription = sub;
    list_push_back(list, &held->node);
}

struct subscription *home_unhold(struct list *list)
{
    struct list_node *node = list_pop_front(list);
    if (node == NULL) {
        return NULL;
    }
    struct held *held = container_of(node, struct held, node);
    struct subscription *sub = held->subscription;
    free(held);
    return sub;
}

struct home_visible home_look_up(struct home_key *h)
{
    static _Thread_local struct store_view view;
    store_lookup(h->fw->worker, h->fw->store, h->key->hash, 0, 1, h->floor, &view);
    struct home_visible v = {.found = view.found};
    if (v.found) {
        v.generation = view.generation;
        v.etag_hash = view.etag_hash;
        v.block_size_bytes = view.block_size_bytes;
    }
    store_view_done(&view);
    return v;
}

bool home_visible_is(const struct home_visible *v, const struct store_object *object)
{
    return v->found && object->etag.len > 0 &&
           v->etag_hash == hash64(object->etag.ptr, object->etag.len, 0);
}

bool home_is_current(struct home_key *h, const struct store_object *object)
{
    if (h->state == HOME_KNOWN) {
        return span_equal(h->known->etag, object->etag);
    }
    struct home_visible v = home_look_up(h);
    return home_visible_is(&v, object);
}

// --- deciding ------------------------------------------------------------------------------------

static void home_answer_error(struct home_key *h, struct subscription *sub, enum err err,
                              struct span document)
{
    struct error_message *m = message_error_new(h->fw, NULL);
    m->subscription = sub;
    m->err = err;
    m->document = message_document(document);
    message_send(sub->at, &m->base);
}

// Rule 11, version known: the owner is asked for that version.
static void home_forward(struct home_key *h, struct subscription *sub)
{
    check(h->state == HOME_KNOWN);
    uint64_t first_byte = sub->ask.block * sub->ask.block_size_bytes;
    if (first_byte > 0 && first_byte >= h->known->size_bytes) {
        // The version that others found out is shorter: there is nothing to ask the origin for.
        home_answer_error(h, sub, ERR_INVALID_RANGE, (struct span){0});
        return;
    }
    store_object_unref(sub->ask.object);
    sub->ask.object = store_object_ref(h->known);
    struct ask_message *m = message_join_new(h->fw, h->key);
    m->subscription = sub;
    message_send(object_key_owner(h->fw, h->key, sub->ask.block * sub->ask.block_size_bytes),
                 &m->base);
}

void home_answer_again(struct home_key *h, struct subscription *sub)
{
    struct again_message *m = message_again_new(h->fw, NULL);
    m->subscription = sub;
    message_send(sub->at, &m->base);
}

struct store_object **home_described(struct home_key *h)
{
    return &h->fw->described[h->key->hash.lo % FILL_DESCRIBED];
}

// Rule 11, nothing known: the first request decides.
static void home_decide(struct home_key *h, struct subscription *sub)
{
    check(h->state == HOME_NONE && list_empty(&h->held));
    struct store_object *described = *home_described(h);
    if (described != NULL && hash128_equal(described->hash, h->key->hash) &&
        sub->described == NULL) {
        sub->described = store_object_ref(described);
    }
    h->state = HOME_DECIDING;
    h->token = ++h->fw->next_token;
    struct first_message *m = message_first_new(h->fw, h->key);
    m->subscription = sub;
    m->token = h->token;
    message_send(object_key_owner(h->fw, h->key, sub->ask.block * sub->ask.block_size_bytes),
                 &m->base);
}

// Rule 11.
static void home_route(struct home_key *h, struct subscription *sub)
{
    if (sub->ask.refused != NULL) {
        bool current = home_is_current(h, sub->ask.refused);
        store_object_unref(sub->ask.refused);
        sub->ask.refused = NULL;
        if (current) {
            home_invalidate(h);
        }
    }
    sub->ask.strict |= h->doubts > 0;
    if (h->state != HOME_NONE && sub->ask.strict) {
        home_answer_again(h, sub); // what is under way was sent before it came
    } else if (h->state == HOME_KNOWN) {
        home_forward(h, sub);
    } else if (h->state == HOME_DECIDING) {
        home_hold(&h->held, sub);
    } else if (!sub->ask.skip_index && home_look_up(h).found) {
        // Not for a reader that could not read what the record names: it would ask again for ever.
        home_answer_again(h, sub);
    } else {
        home_decide(h, sub);
    }
}

void home_route_held(struct home_key *h)
{
    struct list waiting;
    list_init(&waiting);
    list_append_all(&waiting, &h->held);
    struct subscription *sub;
    while ((sub = home_unhold(&waiting)) != NULL) {
        home_route(h, sub);
    }
}

// Rule 22: one error to all who waited for the same first request and for whom it is true. A range past
// the end is that reader's own.
static void home_fail_held(struct home_key *h, struct first_end_message *m)
{
    struct list others;
    struct subscription *sub;
    list_init(&others);
    while ((sub = home_unhold(&h->held)) != NULL) {
        if (m->err != ERR_INVALID_RANGE &&
            fill_error_is_shared(m->err, m->base.key->credentials, sub->ask.key->credentials)) {
            home_answer_error(h, sub, m->err, m->document);
        } else {
            home_hold(&others, sub);
        }
    }
    list_append_all(&h->held, &others);
}

void home_forget(struct home_key *h)
{
    h->state = HOME_NONE;
    h->token = 0;
    store_object_unref(h->known);
    h->known = NULL;
}

// Rule 13's second half: known is forgotten when its first run has left and no put is under way.
static void home_forget_if_settled(struct home_key *h)
{
    if (h->state == HOME_KNOWN && h->token == 0 && h->posted == 0) {
        home_forget(h);
    }
}

void home_on_route(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    home_route(h, m->subscription);
    home_maybe_free(h);
}

// A run of the visible version is put beside those that the index has; a run of another one, or in
// blocks of another size, gets a generation of its own, whose first put removes the older one.
static void home_know(struct home_key *h, const struct store_object *object)
{
    struct home_visible v = home_look_up(h);
    bool same = home_visible_is(&v, object) && v.block_size_bytes == object->block_size_bytes;
    uint64_t generation = same ? v.generation : store_generation_next(h->fw->store);
    store_object_unref(h->known);
    h->known = store_object_with_generation(object, generation);
    h->state = HOME_KNOWN;
}

// Rule 12. Known already it may be by a PUBLISH that came first.
void home_on_version(struct fill_worker *fw, struct version_message *m)
{
    struct home_key *h = home_find(fw, m->base.key->hash);
    check(m->token != 0 && m->object != NULL);
    if (h == NULL || h->token != m->token) {
        return;
    }
    if (h->state != HOME_KNOWN || !span_equal(h->known->etag, m->object->etag)) {
        home_know(h, m->object);
    }
    home_route_held(h);
    fill_assert_home(h);
}

// Rule 13.
void home_on_first_end(struct fill_worker *fw, struct first_end_message *m)
{
    struct home_key *h = home_find(fw, m->base.key->hash);
    check(m->token != 0);
    if (h == NULL || h->token != m->token) {
        return;
    }
    h->token = 0;
    if (h->state == HOME_DECIDING) {
        h->state = HOME_NONE;
        if (m->err != ERR_OK) {
            home_fail_held(h, m);
        }
        home_route_held(h);
    } else {
        home_forget_if_settled(h);
    }
    home_maybe_free(h);
}

// --- publication ---------------------------------------------------------------------------------

static void home_answer_fill(struct fill_worker *owner, struct fill *fill,
                             struct verdict_message *m)
{
    m->fill = fill;
    message_send(owner, &m->base);
}

// Rule 15.
static void on_put_done(struct store_post *post)
{
    struct home_post *put = container_of(post, struct home_post, post);
    struct home_key *h = put->home;
    home_answer_fill(put->owner, put->fill,
                     post->err == ERR_OK ? message_visible_new(h->fw, NULL)
                                         : message_dropped_new(h->fw, NULL));
    store_object_unref(post->object);
    free(put);
    check(h->posted > 0);
    h->posted--;
    home_forget_if_settled(h);
    home_maybe_free(h);
}

// Rule 14. A put on its way while no version is known is of one that an invalidation has met.
static bool home_accepts(struct home_key *h, const struct publish_message *m)
{
    if (h->open_writes > 0 || (h->has_floor && h->acked[m->base.from->index] != h->floor)) {
        return false;
    }
    if (h->state == HOME_KNOWN) {
        return span_equal(h->known->etag, m->object->etag);
    }
    struct home_visible v = home_look_up(h);
    if (v.found) {
        if (!home_visible_is(&v, m->object)) {
            return false;
        }
    } else if (h->posted > 0) {
        return false;
    }
    home_know(h, m->object); // names the generation for this and the puts beside it
    home_route_held(h);
    return true;
}

// With this run the object may be whole; false: then it is not what the origin says it is.
static bool home_sum_is_right(struct home_key *h, struct publish_message *m)
{
    struct s3_checksum_state *sum = m->sum;
    m->sum = NULL;
    return sum == NULL || whole_sum_add(h->fw, h->key, m->object, m->first_byte, m->end_byte, sum);
}

void home_on_publish(struct fill_worker *fw, struct publish_message *m)
{
    check(m->fill != NULL && m->object != NULL && m->place.segment != NULL);
    check(m->first_byte <= m->end_byte && m->end_byte <= m->object->size_bytes);
    struct home_key *h = home_get(fw, m->base.key);
    bool accepted = home_accepts(h, m);
    if (accepted && !home_sum_is_right(h, m)) {
        store_condemn(fw->store, h->key->hash, &m->place);
        home_invalidate(h); // and with it the runs before
        accepted = false;
    }
    if (!accepted) {
        home_answer_fill(m->base.from, m->fill, message_dropped_new(fw, NULL));
        home_maybe_free(h);
        return;
    }
    check(h->state == HOME_KNOWN && h->open_writes == 0);
    struct home_post *put = calloc(1, sizeof(*put));
    check(put != NULL);
    put->home = h;
    put->fill = m->fill;
    put->owner = m->base.from;
    put->post.store = fw->store;
    put->post.kind = STORE_POST_PUT;
    put->post.hash = h->key->hash;
    put->post.object = store_object_with_generation(m->object, h->known->generation);
    put->post.place = m->place;
    put->post.done = on_put_done;
    h->posted++;
    store_post(fw->worker, &put->post);
}
