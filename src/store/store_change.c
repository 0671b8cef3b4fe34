// SPDX-License-Identifier: Apache-2.0
// Changes of the index, requested by the home of a key. Each change takes effect in the memory side
// at once, and is queued for the index writer. Runs on the home's worker.
#include <stdlib.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_private.h"

static uint64_t wall_ms_at(struct worker *w, uint64_t at_us)
{
    uint64_t now_us = worker_now_us(w);
    return (clock_wall_us() - (now_us > at_us ? now_us - at_us : 0)) / 1000;
}

void store_put(struct worker *w, struct store *store, const struct store_object *object,
               const struct store_place *place, const struct store_sums *sums,
               uint64_t validated_us)
{
    check(object->generation != 0);
    check(place->segment != NULL);
    // `place` must be the place of a complete run, not of one that is still being written.
    check(place->header_len > 0 && place->block_count > 0);
    check(sums == NULL || sums->len <= STORE_SUMS_MAX);
    if (!store->disk.attached) {
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
        .sums = sums != NULL ? *sums : (struct store_sums){0},
    };
    bool entered = index_memory_put(&store->index.memory, &put);
    if (entered && lives) {
        segment_hold_again(mine.segment);
        index_writer_put(&store->writer, &put); // takes ownership of pin and hold
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

// Returns true if the index has no run of the key, and none is on its way into it.
static bool delete_is_needless(struct worker *w, struct store *store, struct hash128 hash)
{
    struct index *index = &store->index;
    return !atomic_load(&index->memory.recovering) && disk_is_reading(&store->disk) &&
           atomic_load(&store->writer.condemning) == 0 &&
           !index_memory_knows(&index->memory, hash) &&
           index_lookup_durable(index, &store_worker_of(w)->reader, hash) == INDEX_ABSENT;
}

// --- deletes with a waiting caller

struct deletion {
    struct index_answer answer;
    struct store *store;
    struct store_delete *caller; // NULL: the delete timed out, and the caller has its answer
    bool is_owed;                // its caller relies on the note of its bucket
    uint64_t left_ms;            // the wait that follows the one for which the timer runs
    struct timer timer;
};

// Returns true if there is no use in a wait, because the disk has kept the index waiting before.
static bool deletes_hang(const struct store *store)
{
    return disk_call_age_ms(&store->disk, DISK_CALL_INDEX) >= STORE_NOTE_WAIT_MS;
}

static void deletion_tell(struct deletion *deletion, enum err err)
{
    struct store_delete *d = deletion->caller;
    check(d != NULL);
    deletion->caller = NULL;
    d->err = err;
    d->done(d);
}

static void on_deletion_over(struct worker *to, struct message *message)
{
    struct deletion *deletion = container_of(message, struct deletion, answer.message);
    check(to == deletion->answer.worker);
    worker_expect_done(to);
    timer_done(&deletion->timer);
    if (deletion->caller != NULL) {
        deletion_tell(deletion, deletion->answer.err);
    } else {
        check(atomic_fetch_sub(&deletion->store->late_deletes, 1) > 0);
    }
    if (deletion->is_owed && deletion->answer.err == ERR_OK) {
        state_doubts_pay(&deletion->store->doubts);
    }
    free(deletion);
}

// Called when the delete has timed out. Tells the caller, and leaves the delete in the queue. If
// the bucket is not noted as written to, the delete is only late: the caller waits longer once. If
// too many such deletes are queued already, it waits longer, too. The number of waiting callers is
// bounded.
static void on_deletion_late(struct timer *timer)
{
    struct deletion *deletion = container_of(timer, struct deletion, timer);
    struct store *store = deletion->store;
    check(deletion->caller != NULL);
    bool waits = store_fault_is_steady();
    if (!waits && atomic_fetch_add(&store->late_deletes, 1) >= MEMORY_PENDING_MAX) {
        atomic_fetch_sub(&store->late_deletes, 1);
        waits = true;
    }
    if (waits) {
        timer_start(&deletion->timer, STORE_DELETE_WAIT_MS);
        return;
    }
    struct store_delete *d = deletion->caller;
    deletion->is_owed = d->bucket.len > 0 && state_doubts_owe(&store->doubts, d->origin, d->bucket);
    if (!deletion->is_owed && deletion->left_ms > 0) {
        atomic_fetch_sub(&store->late_deletes, 1);
        timer_start(&deletion->timer, deletion->left_ms);
        deletion->left_ms = 0;
        if (d->on_late != NULL) {
            d->on_late(d);
        }
        return;
    }
    stats_add(COUNTER_index_deletes_late, 1);
    deletion_tell(deletion, deletion->is_owed ? ERR_OK : ERR_IO);
}

static struct index_answer *deletion_new(struct worker *w, struct store *store,
                                         struct store_delete *d, uint64_t wait_ms, uint64_t left_ms)
{
    check(d->done != NULL && wait_ms > 0);
    struct deletion *deletion = calloc(1, sizeof(*deletion));
    check(deletion != NULL);
    deletion->answer.message.deliver = on_deletion_over;
    deletion->answer.worker = w;
    deletion->store = store;
    deletion->caller = d;
    deletion->left_ms = left_ms;
    timer_init(w, &deletion->timer, on_deletion_late);
    timer_start(&deletion->timer, wait_ms);
    return &deletion->answer;
}

// --- deletes of a store that could not use its directory

static void on_disown(struct blocking_job *job)
{
    job->err = store_unattached_disown(&container_of(job, struct store_delete, job)->store->disk);
}

static void on_disowned(struct blocking_job *job)
{
    struct store_delete *d = container_of(job, struct store_delete, job);
    d->err = job->err;
    d->done(d);
}

void store_delete(struct worker *w, struct store *store, struct store_delete *d)
{
    check(d->done != NULL);
    d->worker = w;
    d->store = store;
    d->err = ERR_OK;
    if (!store->disk.attached && !atomic_load(&store->disk.is_disowned)) {
        d->job =
            (struct blocking_job){.lane = BLOCKING_STORE, .work = on_disown, .done = on_disowned};
        blocking_pool_run(w, &d->job);
        return;
    }
    if (!store->disk.attached || delete_is_needless(w, store, d->hash)) {
        d->message.deliver = on_delete_known;
        mailbox_send(w, &d->message);
        return;
    }
    index_memory_hide(&store->index.memory, d->hash, d->floor);
    worker_expect(w);
    uint64_t wait_ms = deletes_hang(store) ? 1 : STORE_NOTE_WAIT_MS;
    index_writer_delete(&store->writer, d->hash, d->floor,
                        deletion_new(w, store, d, wait_ms, STORE_DELETE_WAIT_MS - wait_ms));
}

bool store_redescribe(struct worker *w, struct store *store, const struct store_redescription *r,
                      struct store_delete *d)
{
    const struct store_object *object = r->object;
    check(r->generation != 0 && r->from != 0);
    check(hash128_equal(object->hash, r->hash));
    char described[STORE_DESCRIBED_MAX];
    size_t len = index_described_encode(object, described);
    if (!store->disk.attached || len == 0 || deletes_hang(store) ||
        store_object_block_count(object) > STORE_REDESCRIBED_BLOCKS_MAX) {
        return false;
    }
    struct index_change change = {
        .hash = r->hash,
        .generation = r->generation,
        .from = r->from,
        .size_bytes = object->size_bytes,
        .etag_hash = hash64(object->etag.ptr, object->etag.len, 0),
        .validated_mono_ms = r->validated_us / 1000,
        .validated_wall_ms = wall_ms_at(w, r->validated_us),
        .sums = r->sums,
        .described = malloc(STORE_DESCRIBED_MAX),
        .described_len = len,
    };
    check(change.described != NULL);
    memcpy(change.described, described, len);
    d->worker = w;
    d->store = store;
    d->err = ERR_OK;
    worker_expect(w);
    change.answer = deletion_new(w, store, d, STORE_REDESCRIBE_WAIT_MS, 0);
    index_writer_redescribe(&store->writer, &change);
    return true;
}

struct condemnation {
    struct blocking_job job;
    struct store *store;
};

static void on_condemn(struct blocking_job *job)
{
    struct condemnation *c = container_of(job, struct condemnation, job);
    job->err = state_condemned_save(&c->store->condemned);
}

static void on_condemned(struct blocking_job *job)
{
    stats_add(COUNTER_condemned_unwritten, job->err != ERR_OK ? 1 : 0);
    free(container_of(job, struct condemnation, job));
}

void store_condemn(struct worker *w, struct store *store, struct hash128 hash,
                   const struct store_place *place)
{
    if (!store->disk.attached) {
        return;
    }
    check(place == NULL || place->segment_number != 0);
    uint64_t below = store_generation_next(store);
    struct condemnation *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->store = store;
    state_condemned_add(&store->condemned, hash, below);
    c->job =
        (struct blocking_job){.lane = BLOCKING_STORE, .work = on_condemn, .done = on_condemned};
    index_writer_condemn(&store->writer, hash, place);
    // Save the row from here, too, because the index writer may do it much later.
    blocking_pool_run(w, &c->job);
}

void store_renew(struct worker *w, struct store *store, const struct store_renewal *renewals,
                 size_t count, uint64_t began_us)
{
    if (!store->disk.attached || count == 0) {
        return;
    }
    uint64_t wall_ms = wall_ms_at(w, began_us);
    bool first = atomic_load(&store->index.renewal_count) == 0;
    for (size_t i = 0; i < count; i++) {
        check(renewals[i].generation != 0 && renewals[i].sums.len <= STORE_SUMS_MAX);
        index_memory_renew(&store->index.memory, renewals[i].hash, renewals[i].generation,
                           began_us / 1000, wall_ms);
    }
    unsigned taken = index_renew(&store->index, renewals, count, began_us / 1000, wall_ms);
    if (taken > 0 && first) {
        index_writer_wake(&store->writer);
    }
}
