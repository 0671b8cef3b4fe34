// SPDX-License-Identifier: Apache-2.0
// Evicts an object or a bucket when an operator requests it, as if a write had changed it. Each
// realm may have a copy of the object in the cache, under a name of its own. The home of each name
// invalidates the copy. From then on no reader on any worker gets that copy, even if a run of it is
// in flight. To evict a whole bucket, its epoch is raised, and a review removes what is stored
// under the former epoch. The bytes stay on disk until their segment is evicted.
//
// An operator may name a thousand objects in many realms. A worker has only a few names in flight
// at a time, which it charges to BUDGET_WRITES. It allocates nothing for the others. An eviction
// runs on one worker.
#include "proxy/ops/ops.h"

#include "proxy/ops/inspect_private.h"

#include <stdlib.h>

struct eviction {
    struct message message;
    struct list_node node; // in pw->evictions until all of its names have been started
    struct proxy *proxy;
    struct live *live;
    void (*done)(void *ctx, enum err err, bool was_cached);
    void *ctx;
    struct span bucket, key;
    enum err err;
    bool was_cached;
    struct access_keys *table; // the keys file with the realms (reference); NULL: there is none
    size_t realm;              // index of the next realm
    unsigned in_flight;
    struct bucket_write bucket_write;
    char names[];
};

struct evicted_name {
    struct key_write kw;
    struct eviction *eviction;
};

static void eviction_end(struct eviction *e, struct worker *w)
{
    check(e->in_flight == 0 && !list_node_linked(&e->node));
    e->done(e->ctx, e->err, e->was_cached);
    access_keys_unref(e->table);
    live_unref(e->live);
    worker_free_later(w, free, e);
}

// --- an object, under each of its names ----------------------------------------------------------

static void on_name_ready(struct key_write *kw)
{
    struct evicted_name *name = container_of(kw, struct evicted_name, kw);
    struct eviction *e = name->eviction;
    e->err = kw->err != ERR_OK ? ERR_NOT_RECORDED : e->err;
    e->was_cached |= kw->had_version;
    invalidate_end(proxy_worker_of(worker_current())->fill, kw);
}

static void on_name_ended(struct key_write *kw)
{
    struct evicted_name *name = container_of(kw, struct evicted_name, kw);
    struct eviction *e = name->eviction;
    struct proxy_worker *pw = proxy_worker_of(worker_current());
    check(e->in_flight > 0 && pw->evicting > 0);
    object_key_unref(kw->key);
    worker_free_later(pw->worker, free, name);
    chunk_budget_discharge(BUDGET_WRITES, PROXY_KEY_BYTES);
    pw->evicting--;
    if (--e->in_flight == 0 && !list_node_linked(&e->node)) {
        eviction_end(e, pw->worker);
    }
    worker_defer(pw->worker, &pw->evict_task);
}

static bool is_stored(struct proxy_worker *pw, const struct object_key *key)
{
    static _Thread_local struct store_view view;
    store_lookup(pw->worker, pw->store, key->hash, 0, 1, fill_floor(pw->fill, key->hash), &view);
    bool is_found = view.found;
    store_view_done(&view);
    return is_found;
}

// Starts the invalidation of the object's name in the next realm. The realms are the common one,
// then those of the keys file. After the last one the eviction is removed from the list.
static void name_start(struct proxy_worker *pw, struct eviction *e)
{
    size_t count = 0;
    const struct span *realms = e->table != NULL ? access_keys_realms(e->table, &count) : NULL;
    struct evicted_name *name = calloc(1, sizeof(*name));
    check(name != NULL && e->realm <= count);
    name->eviction = e;
    check(list_node_linked(&e->node) && pw->evicting < PROXY_KEYS_WINDOW);
    name->kw.key =
        inspect_key(e->proxy, e->live, e->realm == 0 ? e->proxy->realm : realms[e->realm - 1],
                    e->bucket, e->key);
    e->was_cached |= is_stored(pw, name->kw.key);
    name->kw.on_ready = on_name_ready;
    name->kw.on_ended = on_name_ended;
    if (e->realm++ == count) {
        list_remove(&e->node);
    }
    e->in_flight++;
    pw->evicting++;
    invalidate_begin(pw->fill, &name->kw);
}

// Charges the memory of one name. Returns false if memory is short or PROXY_KEYS_WINDOW names are
// in flight. The first PROXY_KEYS_AT_ONCE names in flight are always charged, so that an eviction
// makes progress while memory is short.
static bool name_charge(const struct proxy_worker *pw)
{
    if (pw->evicting < PROXY_KEYS_AT_ONCE) {
        chunk_budget_charge(BUDGET_WRITES, PROXY_KEY_BYTES);
        return true;
    }
    return pw->evicting < PROXY_KEYS_WINDOW &&
           chunk_budget_try_charge(BUDGET_WRITES, 0, PROXY_KEY_BYTES);
}

static void on_evict_turn(struct task *task)
{
    struct proxy_worker *pw = container_of(task, struct proxy_worker, evict_task);
    struct list_node *node;
    unsigned most = PROXY_KEYS_PER_TURN;
    while (most > 0 && (node = list_first(&pw->evictions)) != NULL && name_charge(pw)) {
        name_start(pw, container_of(node, struct eviction, node));
        most--;
    }
    if (most == 0) {
        worker_defer(pw->worker, &pw->evict_task);
    }
}

void evict_worker_init(struct proxy_worker *pw)
{
    check(pw->evicting == 0);
    list_init(&pw->evictions);
    worker_task_init(&pw->evict_task, on_evict_turn);
}

// --- a bucket ------------------------------------------------------------------------------------

static void on_bucket_ready(struct bucket_write *bw)
{
    struct eviction *e = bw->ctx;
    check(bw == &e->bucket_write && e->key.len == 0);
    e->err = bw->err != ERR_OK ? ERR_NOT_RECORDED : ERR_OK;
    invalidate_bucket_end(proxy_worker_of(worker_current())->fill, bw);
}

static void on_bucket_ended(struct bucket_write *bw)
{
    struct eviction *e = bw->ctx;
    if (e->err == ERR_OK) {
        store_review(e->proxy->store, STORE_REVIEW_PINNED | STORE_REVIEW_OTHERS);
    }
    eviction_end(e, worker_current());
}

static void on_evict(struct worker *to, struct message *message)
{
    struct eviction *e = container_of(message, struct eviction, message);
    check(e->in_flight == 0 && e->table == NULL && e->live == NULL);
    struct proxy_worker *pw = proxy_worker_of(to);
    if (e->key.len > 0) {
        e->table = pw->known != NULL ? access_keys_ref(pw->known) : NULL;
        e->live = live_ref(pw->live);
        list_push_back(&pw->evictions, &e->node);
        worker_defer(pw->worker, &pw->evict_task);
        return;
    }
    struct span origin_bucket;
    struct origin *origin = live_find_origin(e->proxy, pw->live, e->bucket, &origin_bucket);
    e->bucket_write.ctx = e;
    e->bucket_write.on_ready = on_bucket_ready;
    e->bucket_write.on_ended = on_bucket_ended;
    invalidate_bucket_begin(pw->fill, &e->bucket_write, origin, origin_bucket);
}

void proxy_evict(struct proxy *proxy, struct span bucket, struct span key,
                 void (*done)(void *ctx, enum err err, bool was_cached), void *ctx)
{
    struct eviction *e = calloc(1, sizeof(*e) + bucket.len + key.len + 1);
    check(e != NULL && bucket.len > 0 && done != NULL);
    e->proxy = proxy;
    e->done = done;
    e->ctx = ctx;
    char *at = e->names;
    e->bucket = ops_name_copy(&at, bucket);
    e->key = ops_name_copy(&at, key);
    list_node_init(&e->node);
    e->message.deliver = on_evict;
    mailbox_send_from_any_thread(ops_worker(proxy)->worker, &e->message);
}
