// SPDX-License-Identifier: Apache-2.0
// What a write makes untrue, at the key's home: the floor and its acknowledgements, the deletes in
// the index, the writes that are open. Rules 22 and 24 to 28 of README.md.
#include "fill/home_private.h"

#include <stdlib.h>

#define HOME_DELETE_AGAIN_MS 1000u // after a failed commit; doubled up to 64 times

// Whatever waited for acknowledgements or deletes and need not wait any more goes on; may free `h`.
static void home_settle(struct home_key *h);

struct home_delete {
    struct store_post post;
    struct home_key *home;
};

// --- deletes in the index ------------------------------------------------------------------------

static void on_delete_done(struct store_post *post)
{
    struct home_delete *delete_post = container_of(post, struct home_delete, post);
    struct home_key *h = delete_post->home;
    if (delete_post->post.err == ERR_OK) {
        h->delete_failures = 0;
    } else if (!h->delete_owed) {
        // The record below the floor may stay visible.
        h->delete_owed = true;
        timer_start(&h->delete_timer, (uint64_t)HOME_DELETE_AGAIN_MS << h->delete_failures);
        h->delete_failures = (unsigned)min_u64(h->delete_failures + 1, 6);
    }
    free(delete_post);
    check(h->deletes > 0);
    h->deletes--;
    home_settle(h);
}

static void home_post_delete(struct home_key *h)
{
    struct home_delete *delete_post = calloc(1, sizeof(*delete_post));
    check(delete_post != NULL);
    delete_post->home = h;
    delete_post->post.store = h->fw->store;
    delete_post->post.kind = STORE_POST_DELETE;
    delete_post->post.hash = h->key->hash;
    delete_post->post.floor = h->floor;
    delete_post->post.urgent = true;
    delete_post->post.done = on_delete_done;
    h->deletes++;
    store_post(h->fw->worker, &delete_post->post);
}

void home_on_delete_timer(struct timer *timer)
{
    struct home_key *h = container_of(timer, struct home_key, delete_timer);
    check(h->delete_owed && h->has_floor);
    h->delete_owed = false;
    home_post_delete(h);
}

// Rule 24. A delete is posted behind puts on their way, so that it removes what they make visible.
void home_invalidate(struct home_key *h)
{
    bool visible = home_look_up(h).found;
    stats_add(COUNTER_invalidations, 1);
    uint64_t floor = store_generation_next(h->fw->store);
    check(floor > h->floor); // rule 3
    h->floor = floor;
    h->has_floor = true;
    home_forget(h);
    if (visible || h->posted > 0) {
        home_post_delete(h);
    }
    for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
        struct floor_message *m = message_invalidate_new(h->fw, h->key);
        m->floor = h->floor;
        message_send(&h->fw->room->workers[i], &m->base);
    }
    home_route_held(h);
}

static bool home_all_acked(const struct home_key *h)
{
    for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
        if (h->acked[i] != h->floor) {
            return false;
        }
    }
    return true;
}

static void home_answer_write(struct list_node *node, struct write_message *m)
{
    m->write = container_of(node, struct key_write, node);
    message_send(m->write->at, &m->base);
}

// Rules 26, 27, 28. A write waits for its delete, failed or not: a broken disk holds up no writes; the
// floor stays until the delete has been repeated with success.
static void home_settle(struct home_key *h)
{
    struct list_node *node;
    while (h->deletes == 0 && (node = list_pop_front(&h->starting)) != NULL) {
        home_answer_write(node, message_write_ready_new(h->fw, NULL));
    }
    bool acked = home_all_acked(h);
    while (acked && (node = list_pop_front(&h->closing)) != NULL) {
        check(h->open_writes > 0);
        h->open_writes--;
        h->doubts -= container_of(node, struct key_write, node)->is_doubt;
        home_answer_write(node, message_write_done_new(h->fw, NULL));
    }
    if (h->has_floor && acked && h->deletes == 0 && !h->delete_owed && h->open_writes == 0) {
        h->has_floor = false;
        for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
            struct floor_message *m = message_floor_lift_new(h->fw, h->key);
            m->floor = h->floor;
            message_send(&h->fw->room->workers[i], &m->base);
        }
    }
    home_maybe_free(h);
}

void home_on_floor_ack(struct fill_worker *fw, struct floor_message *m)
{
    struct home_key *h = home_find(fw, m->base.key->hash);
    check(h != NULL); // its floor stays until this has come
    check(h->has_floor && m->floor <= h->floor && m->floor > h->acked[m->base.from->index]);
    h->acked[m->base.from->index] = m->floor;
    home_settle(h);
}

void home_on_write_begin(struct fill_worker *fw, struct write_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    check(!list_node_linked(&m->write->node));
    h->open_writes++;
    h->doubts += m->write->is_doubt;
    home_invalidate(h);
    list_push_back(&h->starting, &m->write->node);
    home_settle(h);
}

void home_on_write_end(struct fill_worker *fw, struct write_message *m)
{
    struct home_key *h = home_find(fw, m->base.key->hash);
    check(h != NULL && h->open_writes > 0);
    check(!list_node_linked(&m->write->node));
    home_invalidate(h);
    list_push_back(&h->closing, &m->write->node);
    home_settle(h);
}

// Rule 22: the origin denied this version to a run.
void home_on_version_gone(struct fill_worker *fw, struct version_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    if (home_is_current(h, m->object)) {
        home_invalidate(h);
    }
    home_maybe_free(h);
}
