// SPDX-License-Identifier: Apache-2.0
// The writer's side of an invalidation, and every worker's answer to one. The home decides
// (home_write.c). Rules 24 to 28 of README.md.
//
// A change of unknown extent names no keys. It raises the bucket's epoch (state_epoch.c), which is
// part of every key and of every listing's name. Look-ups from then on find nothing that was
// fetched earlier. Requests that began earlier continue under the key they have.
//
// A bucket's epoch may rise while a write to one of its keys is open. A reader may then have cached
// the key's old version under the new epoch. So, when the origin has answered, the write goes
// through the same steps again with the key of the current epoch.

#include "fill/fill_private.h"

#include <stdlib.h>

// Rule 25: raises the floor, dooms every run of the key in flight on this worker, forgets what the
// worker remembers of the key, and acknowledges.
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

// Rule 26: lifts the key's floor if it is still the one in the message. A higher one stays.
void invalidate_on_floor_lift(struct fill_worker *fw, struct floor_message *m)
{
    fill_floor_lift(fw, m->base.key->hash, m->floor);
}

// --- a write to one key --------------------------------------------------------------------------

static void write_send(struct key_write *kw, struct write_message *m)
{
    check(kw->at != NULL && !list_node_linked(&kw->node));
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

// Earlier versions of Forebay stored a bucket's epoch under its origin's endpoint as the
// configuration spells it. Now it is stored under the origin's place, the canonical endpoint.
// Another spelling of an endpoint is not the place of any origin, so the epoch stored under it does
// not rise any more. The two are added, so that names stay above every epoch that was raised.
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

bool fill_is_doubted(const struct store *store, const struct origin *origin, struct span bucket,
                     uint64_t age_ms)
{
    return store_is_doubted(store, span_from_cstr(origin_place(origin)), bucket, age_ms) ||
           store_is_doubted(store, span_from_cstr(origin_name(origin)), SPAN(""), age_ms);
}

uint64_t fill_doubt_until_s(const struct store *store, const struct origin *origin,
                            struct span bucket)
{
    return max_u64(store_doubt_until_s(store, span_from_cstr(origin_place(origin)), bucket),
                   store_doubt_until_s(store, span_from_cstr(origin_name(origin)), SPAN("")));
}

// Returns true if the bucket's epoch has changed, and moves the key to it.
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
    kw->had_version = kw->has_moved = false;
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
    kw->had_version = kw->has_moved = false;
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
        kw->on_ended(kw); // open_keys.c holds the bucket's epoch
        return;
    }
    uint64_t epoch = fill_epoch(fw->store, kw->key->origin, kw->key->bucket);
    if (!kw->has_moved && write_moves(kw, epoch)) {
        kw->has_moved = true; // once only: a later epoch began after the origin's answer
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
