// SPDX-License-Identifier: Apache-2.0
// What a write that passes through makes untrue is removed on every worker: the writer's side of
// it, and every worker's answer to an invalidation. The home (home.c) decides; rules 24-28 of its
// head comment.
//
// A change of unknown extent has no keys to send round. It raises the bucket's epoch
// (store_epoch.c), which is part of every key and of every listing's name: whoever looks from then
// on finds nothing that was asked for before. Who began earlier keeps the key he has.
//
// The two meet where the epoch of a bucket moves while a write to one of its keys is open: a reader
// may have cached the key's old version under the new epoch. So the write goes through the same
// again with the key of the epoch that counts when the origin has answered.

#include "proxy/proxy_private.h"

#include <stdlib.h>

static struct bar *bar_find(struct proxy_worker *pw, struct hash128 hash)
{
    list_for_each(node, key_map_bucket(&pw->bars, hash))
    {
        struct bar *bar = container_of(node, struct bar, map_node);
        if (hash128_equal(bar->hash, hash)) {
            return bar;
        }
    }
    return NULL;
}

uint64_t bar_floor(struct proxy_worker *pw, struct hash128 hash)
{
    if (pw->bars.count == 0) {
        return 0;
    }
    struct bar *bar = bar_find(pw, hash);
    return bar != NULL ? bar->floor : 0;
}

// Rule 25: raise the bar, doom every run of the key in flight here, forget what is remembered of
// it, acknowledge.
void invalidate_on_inval(struct proxy_worker *pw, struct wire *wire)
{
    struct bar *bar = bar_find(pw, wire->key->hash);
    if (bar == NULL) {
        bar = calloc(1, sizeof(*bar));
        check(bar != NULL);
        list_node_init(&bar->map_node);
        bar->hash = wire->key->hash;
        list_push_back(key_map_bucket(&pw->bars, bar->hash), &bar->map_node);
        pw->bars.count++;
    }
    check(bar->floor < wire->floor);
    bar->floor = wire->floor;
    fill_doom(pw, wire->key->hash);
    list_cache_drop_key(pw, wire->key);
    struct wire *ack = wire_new(pw, WIRE_ACK, wire->key);
    ack->floor = wire->floor;
    wire_send(wire->from, ack);
}

// Rule 26: a worker lifts only a bar equal to that floor.
void invalidate_on_unbar(struct proxy_worker *pw, struct wire *wire)
{
    struct bar *bar = bar_find(pw, wire->key->hash);
    if (bar != NULL && bar->floor == wire->floor) {
        list_remove(&bar->map_node);
        pw->bars.count--;
        free(bar);
    }
}

void bars_free(struct proxy_worker *pw)
{
    for (unsigned i = 0; i < PROXY_MAP_BUCKETS; i++) {
        list_for_each(node, &pw->bars.buckets[i])
        {
            list_remove(node);
            free(container_of(node, struct bar, map_node));
        }
    }
}

// --- a write to one key --------------------------------------------------------------------------

static void write_send(struct key_write *kw, enum wire_type type)
{
    struct wire *wire = wire_new(kw->at, type, kw->key);
    wire->write = kw;
    wire_send(object_key_home(kw->at, kw->key), wire);
}

static struct span origin_place(const struct object_key *key)
{
    return span_from_cstr(origin_endpoint(key->origin));
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

void invalidate_begin(struct proxy_worker *pw, struct key_write *kw)
{
    const struct object_key *key = kw->key;
    list_node_init(&kw->node);
    kw->at = pw;
    kw->has_moved = false;
    (void)write_moves(kw, store_epoch_hold(pw->store, origin_place(key), key->bucket));
    write_send(kw, WIRE_WBEGIN);
}

void invalidate_end(struct proxy_worker *pw, struct key_write *kw)
{
    check(kw->at == pw);
    write_send(kw, WIRE_WEND);
}

void invalidate_on_wready(struct proxy_worker *pw, struct wire *wire)
{
    struct key_write *kw = wire->write;
    if (kw->has_moved) {
        invalidate_end(pw, kw); // the origin has answered already
    } else {
        kw->on_ready(kw);
    }
}

void invalidate_on_wdone(struct proxy_worker *pw, struct wire *wire)
{
    struct key_write *kw = wire->write;
    struct span place = origin_place(kw->key);
    if (!kw->has_moved && write_moves(kw, store_epoch(pw->store, place, kw->key->bucket))) {
        kw->has_moved = true; // once: a later epoch began after the origin's answer
        write_send(kw, WIRE_WBEGIN);
        return;
    }
    store_epoch_release(pw->store, place, kw->key->bucket);
    kw->on_ended(kw);
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

void invalidate_bucket_begin(struct proxy_worker *pw, struct bucket_write *bw,
                             const struct origin *origin, struct span origin_bucket)
{
    bw->at = pw;
    bw->err = ERR_OK;
    bw->change.done = on_epoch_raised;
    task_init(&bw->task, on_bucket_ended);
    store_epoch_begin(pw->worker, pw->store, span_from_cstr(origin_endpoint(origin)), origin_bucket,
                      &bw->change);
}

void invalidate_bucket_end(struct proxy_worker *pw, struct bucket_write *bw)
{
    check(bw->at == pw);
    if (bw->err == ERR_OK) {
        store_epoch_end(&bw->change);
    }
    worker_defer(pw->worker, &bw->task);
}
