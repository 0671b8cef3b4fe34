// SPDX-License-Identifier: Apache-2.0
// Changes of the index as a key's home makes them: into the memory side at once, then to the index
// writer. On the home's worker.
#include "base/clock.h"
#include "store/store_private.h"

static uint64_t wall_ms_at(struct worker *w, uint64_t at_us)
{
    uint64_t now_us = worker_now_us(w);
    return (clock_wall_us() - (now_us > at_us ? now_us - at_us : 0)) / 1000;
}

void store_put(struct worker *w, struct store *store, const struct store_object *object,
               const struct store_place *place, uint64_t validated_us)
{
    check(object->generation != 0);
    check(place->segment != NULL);
    if (!store->attached) {
        return;
    }
    struct store_place mine = *place;
    mine.generation = object->generation;
    bool lives = store_place_pin(&mine);
    struct memory_put put = {
        .hash = object->hash,
        .generation = object->generation,
        .size_bytes = object->size_bytes,
        .etag_hash = hash64(object->etag.ptr, object->etag.len, 0),
        .block_size_bytes = object->block_size_bytes,
        .validated_mono_ms = validated_us / 1000,
        .validated_wall_ms = wall_ms_at(w, validated_us),
        .place = lives ? &mine : NULL,
    };
    bool entered = index_memory_put(&store->index.memory, &put);
    if (entered && lives) {
        segment_hold_again(mine.segment);
        index_writer_put(&store->writer, &put); // pin and hold are its own now
    } else if (entered) {
        index_writer_delete(&store->writer, put.hash, put.generation, NULL);
    } else if (lives) {
        store_place_unpin(&mine);
    }
}

static void on_delete_known(struct worker *to, struct message *message)
{
    (void)to;
    struct store_delete *d = container_of(message, struct store_delete, message);
    d->done(d);
}

// Nothing of the key is held, nor on its way.
static bool delete_is_needless(struct worker *w, struct store *store, struct hash128 hash)
{
    struct index *index = &store->index;
    return !atomic_load(&index->memory.recovering) && store_is_reading(store) &&
           atomic_load(&store->writer.condemning) == 0 &&
           !index_memory_knows(&index->memory, hash) &&
           index_lookup_durable(index, &store_worker_of(w)->reader, hash) == INDEX_ABSENT;
}

void store_delete(struct worker *w, struct store *store, struct store_delete *d)
{
    d->worker = w;
    d->err = ERR_OK;
    if (!store->attached || delete_is_needless(w, store, d->hash)) {
        d->message.deliver = on_delete_known;
        mailbox_send(w, &d->message);
        return;
    }
    index_memory_hide(&store->index.memory, d->hash, d->floor);
    worker_expect(w);
    index_writer_delete(&store->writer, d->hash, d->floor, d);
}

void store_condemn(struct store *store, struct hash128 hash, const struct store_place *place)
{
    if (store->attached) {
        index_writer_condemn(&store->writer, hash, place);
    }
}

void store_renew(struct worker *w, struct store *store, const struct store_renewal *renewals,
                 size_t count, uint64_t began_us)
{
    if (!store->attached || count == 0) {
        return;
    }
    uint64_t wall_ms = wall_ms_at(w, began_us);
    bool first = atomic_load(&store->index.renewal_count) == 0;
    for (size_t i = 0; i < count; i++) {
        index_memory_renew(&store->index.memory, renewals[i].hash, renewals[i].generation,
                           began_us / 1000, wall_ms);
    }
    unsigned taken = index_renew(&store->index, renewals, count, began_us / 1000, wall_ms);
    if (taken > 0 && first) {
        index_writer_renewals_wait(&store->writer);
    }
}
