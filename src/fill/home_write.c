// SPDX-License-Identifier: Apache-2.0
// Invalidation at the key's home: the floor and its acknowledgements, the deletes in the index, and
// the open writes. Rules 22 and 24 to 28 of README.md.
//
// A write's deletes, flushes and reply have this order, and no step can be moved. Step 0 comes
// first: store_write_note() notes on disk, in the file `format`, that the bucket is written to.
//
//   1  floor            The home names a floor. The memory side hides everything below it from
//                       every look-up. Then the home sends INVALIDATE.
//   2  delete, durable  The index commits once. LMDB flushes the commit before the store answers.
//   3  WRITE_READY      No delete is in flight. Only now does the writer ask the origin.
//   4  WRITE_END        Whatever the origin has answered, the home names a second floor, above all
//                       that was read in between, as in 1.
//   5  delete, durable  As in 2. Also, every worker has doomed its runs and then acknowledged the
//                       floor.
//   6  WRITE_DONE       Only now does the client get its reply.
//
// A crash may come between any two steps (kill -9, or a power failure with a disk that keeps what
// it has confirmed). The next process then finds:
//
//   before 2   Perhaps the old record. The origin was not asked, so the record is true.
//   2 to 3     Nothing older than the first floor. The origin was not asked: a miss.
//   3 to 6     Nothing from before 1, and nothing newer: while a write is open no run is published
//              (home_is_undoomed()). Nobody knows whether the origin has applied the write. The
//              client has no reply, and the note of step 0 makes the next process confirm
//              everything in the bucket before use.
//   after 6    The same as from 3 to 6, so nothing that the reply makes untrue.
//
// - The floor comes before the delete is posted, because a look-up between the two would find the
//   old record, and a reader would get it after the origin had been asked.
// - Deletes and puts of a key stay in order, because only its home posts them, through one queue. A
//   batch keeps that order for each key (index_batch.c).
// - A run's bytes need no flush here, because a delete names none. A run may have been written
//   whole before the crash without a committed put. Such a run is found in its segment only when
//   the index is rebuilt or a segment has no seal. It is confirmed before use (rule 30), and a
//   durable delete stays in force (index_memory.c).
//
// In two cases store_delete() reports success although the delete is not durable. In the first, the
// disk does not answer in time, but the note of step 0 is on disk. The note then stays until the
// delete is durable. If a crash after 3 leaves the old record, the note makes the next process
// confirm it before use. In the second, a commit has failed, but the next process will not trust
// the index at all (index_writer.c). In any other case, or after STORE_DELETE_WAIT_MS,
// store_delete() reports an error. The write is then refused before the origin has been asked
// (home_start_write()). At step 5 the write can no longer be refused, and need not be. Nothing was
// published between the two floors, and the first delete was durable before the origin was asked.
// So the second delete finds at most what the first has left. The reply is sent when the index
// writer has answered.
#include "fill/home_private.h"

#include <stdlib.h>

struct home_delete {
    struct store_delete post;
    struct home_key *home;
    bool is_unsure;
    bool is_awaited; // readers wait for it
};

// --- deletes in the index ------------------------------------------------------------------------

static void on_delete_done(struct store_delete *post)
{
    struct home_delete *delete_post = container_of(post, struct home_delete, post);
    struct home_key *h = delete_post->home;
    bool is_unsure = delete_post->is_unsure;
    unsigned *count = is_unsure ? &h->unsure : &h->deletes;
    unsigned *wait_count = delete_post->is_awaited ? &h->awaited : &h->fw->unawaited;
    if (!is_unsure) {
        h->delete_err = post->err;
    }
    free(delete_post);
    check(*count > 0 && *wait_count > 0);
    --*count;
    --*wait_count;
    h->is_hidden &= h->unsure > 0;
    home_settle(h);
}

// Rule 31: readers do not wait for a late delete. The index hides the old record already.
static void on_delete_late(struct store_delete *post)
{
    struct home_delete *delete_post = container_of(post, struct home_delete, post);
    struct home_key *h = delete_post->home;
    check(delete_post->is_awaited && h->awaited > 0);
    if (h->fw->unawaited < HOME_UNAWAITED_MAX) {
        delete_post->is_awaited = false;
        h->awaited--;
        h->fw->unawaited++;
        home_settle(h);
    }
}

static void home_delete_below(struct home_key *h, uint64_t floor, bool is_unsure)
{
    struct home_delete *delete_post = calloc(1, sizeof(*delete_post));
    check(delete_post != NULL);
    check(floor > 0);
    delete_post->home = h;
    delete_post->is_unsure = is_unsure;
    delete_post->is_awaited = !is_unsure;
    delete_post->post.hash = h->key->hash;
    delete_post->post.floor = floor;
    delete_post->post.origin = span_from_cstr(origin_place(h->key->origin));
    delete_post->post.bucket = h->key->bucket;
    delete_post->post.done = on_delete_done;
    delete_post->post.on_late = is_unsure ? NULL : on_delete_late;
    ++*(is_unsure ? &h->unsure : &h->deletes);
    ++*(is_unsure ? &h->fw->unawaited : &h->awaited);
    store_delete(h->fw->worker, h->fw->store, &delete_post->post);
}

void home_delete_unseen(struct home_key *h)
{
    if (h->is_hidden) {
        return;
    }
    if (h->fw->unawaited >= HOME_UNAWAITED_MAX) {
        // Records of a bucket in doubt are confirmed before use, which needs no entry for each key.
        store_doubt(h->fw->store, span_from_cstr(origin_place(h->key->origin)), h->key->bucket);
        stats_add(COUNTER_unseen_deletes_left_out, 1);
        return;
    }
    h->is_hidden = true;
    home_delete_below(h, store_generation_next(h->fw->store), true);
}

static void home_raise_floor(struct home_key *h, uint64_t floor, bool deletes)
{
    check(floor > h->floor); // rule 3: generations only rise
    h->floor = floor;
    h->has_floor = true;
    home_forget(h);
    home_kept_outdate(h);
    if (deletes) {
        home_delete_below(h, floor, false);
    }
    for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
        struct floor_message *m = message_invalidate_new(h->fw, h->key);
        m->floor = h->floor;
        message_send(&h->fw->room->workers[i], &m->base);
    }
    home_publish_held(h);
    home_route_held(h);
}

// Invalidates the key (rules 24 and 33). The delete completes at once if the store knows that the
// disk holds nothing of the key.
void home_invalidate(struct home_key *h)
{
    stats_add(COUNTER_invalidations, 1);
    home_raise_floor(h, store_generation_next(h->fw->store), true);
}

// --- bytes that stay -----------------------------------------------------------------------------

struct take_over {
    struct store_delete post;
    struct home_key *home;
    uint64_t generation;
};

// Called when the index has answered a take-over of headers (rule 24). If it succeeded, look-ups
// find the new headers from here on, and a crash cannot bring back the old ones. The floor becomes
// the version's new generation, so that nothing of the old generation counts. If a newer floor
// exists, its delete has removed both generations.
static void on_taken_over(struct store_delete *post)
{
    struct take_over *keep = container_of(post, struct take_over, post);
    struct home_key *h = keep->home;
    struct store_object *kept = h->described;
    check(kept != NULL && keep->generation > 0);
    h->described = NULL;
    if (post->err != ERR_OK) {
        home_invalidate(h); // the index may still take the headers over
    } else if (keep->generation > h->floor) {
        stats_add(COUNTER_redescribed_kept, 1);
        store_object_unref(h->put);
        h->put = store_object_with_generation(kept, keep->generation);
        home_raise_floor(h, keep->generation, false);
    }
    store_object_unref(kept);
    free(keep);
    home_settle(h);
}

bool home_take_over(struct home_key *h, const struct home_visible *v, struct store_object *found,
                    uint64_t asked_us)
{
    bool is_strong = found->etag.len > 2 && found->etag.ptr[0] == '"';
    if (!is_strong || !home_visible_is(v, found) || v->size_bytes != found->size_bytes ||
        h->described != NULL || h->deletes > 0 || home_is_open(h) ||
        !origin_capabilities(h->key->origin)->is_remote) {
        return false;
    }
    struct take_over *keep = calloc(1, sizeof(*keep));
    check(keep != NULL);
    keep->home = h;
    keep->generation = store_generation_next(h->fw->store);
    keep->post.done = on_taken_over;
    struct store_redescription r = {.hash = h->key->hash,
                                    .from = v->generation,
                                    .generation = keep->generation,
                                    .validated_us = asked_us,
                                    .object = found,
                                    .sums = checksums_of(found)};
    if (!store_redescribe(h->fw->worker, h->fw->store, &r, &keep->post)) {
        free(keep);
        return false;
    }
    h->described = store_object_ref(found);
    return true;
}

static void home_answer_write(struct list_node *node, struct write_message *m)
{
    m->write = container_of(node, struct key_write, node);
    message_send(m->write->at, &m->base);
}

// Rule 27: after a failed delete the origin must not be asked, because a later process would
// believe the old record.
static void home_start_write(struct home_key *h, struct list_node *node)
{
    struct key_write *kw = container_of(node, struct key_write, node);
    check(h->deletes == 0 && h->open_writes > 0);
    kw->err = h->delete_err;
    if (kw->err != ERR_OK) {
        stats_add(COUNTER_invalidation_failures, 1);
    }
    h->open_writes -= kw->is_listed; // from here on open_keys.c keeps the key open
    home_answer_write(node, message_write_ready_new(h->fw, NULL));
}

// Continues everything that has waited for acknowledgements or deletes (rules 26, 27, 28 and 31).
void home_settle(struct home_key *h)
{
    struct list_node *node;
    while (h->deletes == 0 && (node = list_pop_front(&h->starting)) != NULL) {
        home_start_write(h, node);
    }
    if (home_may_decide(h) && h->described == NULL) {
        home_answer_concluded(h);
    }
    bool settled = home_is_settled(h);
    while (settled && (node = list_pop_front(&h->closing)) != NULL) {
        check(h->open_writes > 0);
        h->open_writes--;
        h->doubts -= container_of(node, struct key_write, node)->is_doubt;
        home_answer_write(node, message_write_done_new(h->fw, NULL));
    }
    if (h->has_floor && settled && h->open_writes == 0) {
        check(list_empty(&h->starting) && list_empty(&h->closing)); // rule 26: no write is left
        h->has_floor = false;
        for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
            struct floor_message *m = message_floor_lift_new(h->fw, h->key);
            m->floor = h->floor;
            message_send(&h->fw->room->workers[i], &m->base);
        }
    }
    if (h->state == HOME_NONE && home_may_decide(h)) {
        home_route_held(h);
    }
    home_maybe_free(h);
}

void home_on_floor_ack(struct fill_worker *fw, struct floor_message *m)
{
    struct home_key *h = home_find(fw, m->base.key->hash);
    check(h != NULL); // a home with a floor lives until every acknowledgement has come
    check(h->has_floor && m->floor <= h->floor && m->floor > h->acked[m->base.from->index]);
    h->acked[m->base.from->index] = m->floor;
    home_settle(h);
}

void home_on_write_begin(struct fill_worker *fw, struct write_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    check(!list_node_linked(&m->write->node) && m->write->at == m->base.from);
    h->open_writes++;
    h->doubts += m->write->is_doubt;
    m->write->had_version |= home_kept(h) != NULL || h->state != HOME_NONE;
    home_invalidate(h);
    list_push_back(&h->starting, &m->write->node);
    home_settle(h);
}

void home_on_write_end(struct fill_worker *fw, struct write_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    h->open_writes += m->write->is_listed;
    check(h->open_writes > 0);
    check(!list_node_linked(&m->write->node) && m->write->at == m->base.from);
    home_unkeep(h); // most likely the object has new checksums
    home_invalidate(h);
    list_push_back(&h->closing, &m->write->node);
    home_settle(h);
}

// Handles VERSION_GONE (rule 22): the origin has denied this version to a run. Invalidates the
// version if it is still current.
void home_on_version_gone(struct fill_worker *fw, struct version_message *m)
{
    check(m->object != NULL);
    struct home_key *h = home_get(fw, m->base.key);
    if (home_is_current(h, m->object)) {
        home_invalidate(h);
    }
    home_maybe_free(h);
}
