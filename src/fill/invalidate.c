// SPDX-License-Identifier: Apache-2.0
// What a write that passes through makes untrue is removed on every worker: the writer's side of
// it, and every worker's answer to an invalidation. The home decides (home_write.c): rules 24 to 28
// of README.md.
//
// A change of unknown extent has no keys to send round. It raises the bucket's epoch
// (state_epoch.c), which is part of every key and of every listing's name: whoever looks from then
// on finds nothing that was asked for before. What began earlier goes on under the key it has.
//
// The two meet where the epoch of a bucket moves while a write to one of its keys is open: a reader
// may have cached the key's old version under the new epoch. So the write goes through the same
// again with the key of the epoch that counts when the origin has answered.

#include "fill/fill_private.h"

#include <stdlib.h>

// Rule 25: raise the floor, doom every run of the key in flight here, forget what is remembered of
// it, acknowledge.
void invalidate_on_invalidate(struct fill_worker *fw, struct floor_message *m)
{
    fill_floor_raise(fw, m->base.key->hash, m->floor);
    fill_doom(fw, m->base.key->hash);
    fill_uncacheable_forget(fw, m->base.key->hash);
    const struct fill_options *options = &fw->room->options;
    options->on_invalidated(options->ctx, fw->worker, m->base.key);
    struct floor_message *ack = message_floor_ack_new(fw, m->base.key);
    ack->floor = m->floor;
    message_send(m->base.from, &ack->base);
}

// Rule 26: a worker lifts only the floor that is named.
void invalidate_on_floor_lift(struct fill_worker *fw, struct floor_message *m)
{
    fill_floor_lift(fw, m->base.key->hash, m->floor);
}

// --- a write to one key --------------------------------------------------------------------------

static void write_send(struct key_write *kw, struct write_message *m)
{
    m->write = kw;
    message_send(object_key_home(kw->at, kw->key), &m->base);
}

static void write_send_begin(struct key_write *kw)
{
    write_send(kw, message_write_begin_new(kw->at, kw->key));
}

static struct span key_place(const struct object_key *key)
{
    return span_from_cstr(origin_place(key->origin));
}

// Directories from before a place had one name have epochs of a bucket under its origin's endpoint
// as it is spelt. No endpoint that is no place is any place, so those do not rise any more: they
// are added, and names stay above all that they were raised for.
static uint64_t epoch_as_spelt(const struct store *store, const struct origin *origin,
                               struct span bucket)
{
    struct span spelt = span_from_cstr(origin_endpoint(origin));
    return span_equal_cstr(spelt, origin_place(origin)) ? 0 : store_epoch(store, spelt, bucket);
}

uint64_t fill_epoch(const struct store *store, const struct origin *origin, struct span bucket)
{
    return store_epoch(store, span_from_cstr(origin_place(origin)), bucket) +
           epoch_as_spelt(store, origin, bucket);
}

// True: the bucket's epoch is another one by now, and so is the key.
static bool write_moves(struct key_write *kw, uint64_t epoch)
{
    if (kw->key->epoch == epoch) {
        return false;
    }
    struct object_key *moved = object_key_in_epoch(kw->at, kw->key, epoch);
    object_key_unref(kw->key);
    kw->key = moved;
    return true;
}

void invalidate_begin(struct fill_worker *fw, struct key_write *kw)
{
    check(kw->key != NULL && kw->on_ready != NULL && kw->on_ended != NULL);
    const struct object_key *key = kw->key;
    list_node_init(&kw->node);
    kw->at = fw;
    kw->err = ERR_OK;
    kw->has_moved = false;
    uint64_t epoch = store_epoch_hold(fw->store, key_place(key), key->bucket);
    (void)write_moves(kw, epoch + epoch_as_spelt(fw->store, key->origin, key->bucket));
    write_send_begin(kw);
}

void invalidate_end(struct fill_worker *fw, struct key_write *kw)
{
    check(kw->at == fw);
    write_send(kw, message_write_end_new(kw->at, kw->key));
}

static void listed_init(struct fill_worker *fw, struct key_write *kw)
{
    check(kw->key != NULL && kw->on_ready != NULL && kw->on_ended != NULL);
    list_node_init(&kw->node);
    kw->at = fw;
    kw->err = ERR_OK;
    kw->has_moved = false;
    kw->is_listed = true;
}

void invalidate_listed_begin(struct fill_worker *fw, struct key_write *kw)
{
    listed_init(fw, kw);
    write_send_begin(kw);
}

void invalidate_listed_end(struct fill_worker *fw, struct key_write *kw)
{
    listed_init(fw, kw);
    invalidate_end(fw, kw);
}

void invalidate_on_write_ready(struct fill_worker *fw, struct write_message *m)
{
    struct key_write *kw = m->write;
    check(kw->at == fw && !list_node_linked(&kw->node));
    if (kw->has_moved) {
        invalidate_end(fw, kw); // the origin has answered already
    } else {
        kw->on_ready(kw);
    }
}

void invalidate_on_write_done(struct fill_worker *fw, struct write_message *m)
{
    struct key_write *kw = m->write;
    check(kw->at == fw && !list_node_linked(&kw->node));
    if (kw->is_listed) {
        kw->on_ended(kw); // open_keys holds its bucket's epoch
        return;
    }
    uint64_t epoch = fill_epoch(fw->store, kw->key->origin, kw->key->bucket);
    if (!kw->has_moved && write_moves(kw, epoch)) {
        kw->has_moved = true; // once: a later epoch began after the origin's answer
        write_send_begin(kw);
        return;
    }
    store_epoch_release(fw->store, key_place(kw->key), kw->key->bucket);
    kw->on_ended(kw);
}

// --- a key whose bytes are wrong -----------------------------------------------------------------

static void drop_free(void *ptr)
{
    struct key_write *drop = ptr;
    object_key_unref(drop->key);
    free(drop);
}

static void drop_on_ready(struct key_write *drop)
{
    invalidate_end(drop->at, drop);
}

static void drop_on_ended(struct key_write *drop)
{
    worker_free_later(drop->at->worker, drop_free, drop);
}

void invalidate_wrong(struct fill_worker *fw, struct object_key *key)
{
    struct key_write *drop = calloc(1, sizeof(*drop));
    check(drop != NULL);
    drop->key = object_key_ref(key);
    drop->on_ready = drop_on_ready;
    drop->on_ended = drop_on_ended;
    invalidate_begin(fw, drop);
}

// --- a change of unknown extent ------------------------------------------------------------------

static void on_epoch_raised(struct store_epoch_change *change, enum err err)
{
    struct bucket_write *bw = container_of(change, struct bucket_write, change);
    bw->err = err;
    bw->on_ready(bw);
}

static void on_bucket_ended(struct task *task)
{
    struct bucket_write *bw = container_of(task, struct bucket_write, task);
    bw->on_ended(bw);
}

void invalidate_bucket_begin(struct fill_worker *fw, struct bucket_write *bw,
                             const struct origin *origin, struct span origin_bucket)
{
    check(bw->on_ready != NULL && bw->on_ended != NULL);
    bw->at = fw;
    bw->err = ERR_OK;
    bw->change.done = on_epoch_raised;
    worker_task_init(&bw->task, on_bucket_ended);
    store_epoch_begin(fw->worker, fw->store, span_from_cstr(origin_place(origin)), origin_bucket,
                      &bw->change);
}

void invalidate_bucket_end(struct fill_worker *fw, struct bucket_write *bw)
{
    check(bw->at == fw);
    if (bw->err == ERR_OK) {
        store_epoch_end(&bw->change);
    }
    worker_defer(fw->worker, &bw->task);
}
