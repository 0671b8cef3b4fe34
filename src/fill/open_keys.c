// SPDX-License-Identifier: Apache-2.0
// Lists the keys that writes hold open. Each key is listed once, although copies of it may be
// stored under several names (realms, names of an origin, epochs of a bucket). Until its writer
// closes it, no home publishes a run of such a key: rules 14, 27 and 28 of README.md. So a writer
// can invalidate the names one after another, without a record for each name while the origin
// works.
//
// Writers add keys before they send the first WRITE_BEGIN, and close them after the last
// WRITE_DONE. If a home handles a PUBLISH before that WRITE_BEGIN arrives, it may miss the key
// here. The WRITE_BEGIN then removes the run.
//
// Any worker may call these functions. One lock protects the list. Hits do not use it.
#include "fill/fill_private.h"

#include <stdlib.h>

struct open_key {
    struct list_node node;
    struct hash128 hash;
    struct span place, bucket; // name the bucket whose epoch is held
};

struct open_keys {
    struct fill_room *room;
    size_t count, max;
    struct open_key items[];
};

static struct hash128 open_hash(const struct fill_room *room, const struct origin *origin,
                                struct span bucket, struct span key)
{
    return store_hash(room->options.store, span_from_cstr(origin_place(origin)), bucket, key);
}

static struct list *bucket_of(struct fill_room *room, struct hash128 hash)
{
    return &room->open.buckets[hash.lo % FILL_OPEN_BUCKETS];
}

void open_keys_init(struct fill_room *room)
{
    check(pthread_mutex_init(&room->open.lock, NULL) == 0);
    for (unsigned i = 0; i < FILL_OPEN_BUCKETS; i++) {
        list_init(&room->open.buckets[i]);
    }
}

void open_keys_done(struct fill_room *room)
{
    check(pthread_mutex_destroy(&room->open.lock) == 0);
}

size_t open_keys_bytes(size_t max)
{
    return sizeof(struct open_keys) + max * sizeof(struct open_key);
}

struct open_keys *open_keys_new(struct fill_worker *fw, size_t max)
{
    struct open_keys *keys = malloc(open_keys_bytes(max));
    if (keys != NULL) {
        keys->room = fw->room;
        keys->count = 0;
        keys->max = max;
    }
    return keys;
}

void open_keys_add(struct open_keys *keys, const struct origin *origin, struct span bucket,
                   struct span key)
{
    struct fill_room *room = keys->room;
    check(keys->count < keys->max);
    struct open_key *open = &keys->items[keys->count++];
    list_node_init(&open->node);
    open->hash = open_hash(room, origin, bucket, key);
    open->place = span_from_cstr(origin_place(origin));
    open->bucket = bucket;
    (void)store_epoch_hold(room->options.store, open->place, bucket);
    pthread_mutex_lock(&room->open.lock);
    list_push_back(bucket_of(room, open->hash), &open->node);
    pthread_mutex_unlock(&room->open.lock);
    atomic_fetch_add(&room->open.count, 1);
}

void open_keys_close(struct open_keys *keys)
{
    if (keys == NULL) {
        return;
    }
    struct fill_room *room = keys->room;
    check(keys->count <= keys->max);
    for (size_t i = 0; i < keys->count; i++) {
        struct open_key *open = &keys->items[i];
        pthread_mutex_lock(&room->open.lock);
        list_remove(&open->node);
        pthread_mutex_unlock(&room->open.lock);
        unsigned before = atomic_fetch_sub(&room->open.count, 1);
        check(before > 0);
        store_epoch_release(room->options.store, open->place, open->bucket);
    }
    free(keys);
}

bool open_keys_has(struct fill_room *room, const struct object_key *key)
{
    bool found = false;
    if (atomic_load(&room->open.count) == 0) {
        return false;
    }
    struct hash128 hash = open_hash(room, key->origin, key->bucket, key->key);
    pthread_mutex_lock(&room->open.lock);
    list_for_each(node, bucket_of(room, hash))
    {
        found |= hash128_equal(container_of(node, struct open_key, node)->hash, hash);
    }
    pthread_mutex_unlock(&room->open.lock);
    return found;
}
