// SPDX-License-Identifier: Apache-2.0
// Keeps epochs. A bucket's epoch is part of the name under which its objects are stored. So raising
// the epoch makes all of them unreachable permanently: on every worker, in every realm, for fills
// in flight, after SIGKILL, and after a rebuild from segments, because the run headers have the old
// name. Eviction frees their space.
//
// Threads: look-ups run on any thread, without a lock. A change of a bucket begins on a thread of
// the blocking pool, which holds store_dir.format_lock. A change ends, and a hold begins and ends,
// on any thread, which holds guarded.lock briefly.
//
// Each bucket has two numbers. This process uses `now`. `start` is in `format`, and the next
// process begins with it. While a change is open, `start` is above every `now` in use. The reason:
// bytes that are fetched during the change may be of the old state or of the new one, and must not
// survive a crash. The steps of a change:
//
//   begin   start += 3, written and synced; then now += 1
//   end     now += 1; then, if nothing else is open, now = start, so that bytes fetched from here
//           on survive a restart
//
// "Nothing else" means no other change of the bucket, and no write to a single key in it. Such a
// write is called a hold. It invalidates its key under the epoch that it has read. If the epoch
// changes during the write, it invalidates the key again before it answers its client
// (fill/invalidate.c). Until then the key's old version may be cached under the new epoch, and must
// not survive a crash either. So a hold reads the epoch, and an end takes its last step, under one
// lock, and whichever is second sees the first. While `now` is below `start`, this process serves
// the bucket as usual, but the next process finds no cached object of it.
//
// At most STATE_EPOCHS_MAX buckets have an epoch of their own. All others share one epoch, so a
// change of one of them makes the objects of all of them unreachable. The metrics count these
// changes. The shared `now` never reaches its `start`.
#include <stdlib.h>

#include "base/log.h"
#include "stats/stats.h"
#include "store/state/state_epoch.h"

// A change raises `now` up to three times: when it begins, when it ends, and in the step to
// `start`.
#define EPOCH_STRIDE 3u

static struct hash128 epoch_hash(const struct store_epochs *epochs, struct span origin,
                                 struct span bucket)
{
    return disk_hash(epochs->disk, origin, bucket, SPAN("epoch"));
}

// Returns the bucket's slot. Returns `others` if it has none.
static const struct store_epoch_slot *epoch_find(const struct store_epochs *epochs,
                                                 struct hash128 bucket)
{
    for (unsigned i = 0; i < EPOCH_TABLE_SIZE; i++) {
        const struct store_epoch_slot *slot = &epochs->table[(bucket.lo + i) % EPOCH_TABLE_SIZE];
        if (!atomic_load_explicit(&slot->is_used, memory_order_acquire)) {
            break;
        }
        if (hash128_equal(slot->bucket, bucket)) {
            return slot;
        }
    }
    return &epochs->others;
}

uint64_t state_epoch(const struct store_epochs *epochs, struct span origin, struct span bucket)
{
    if (!atomic_load(&epochs->any)) {
        return 0;
    }
    return atomic_load(&epoch_find(epochs, epoch_hash(epochs, origin, bucket))->now);
}

uint64_t state_epoch_hold(struct store_epochs *epochs, struct span origin, struct span bucket)
{
    struct hash128 hash = epoch_hash(epochs, origin, bucket);
    pthread_mutex_lock(&epochs->guarded.lock);
    check(epochs->guarded.holds[hash.lo % EPOCH_HOLD_COUNT] < UINT32_MAX);
    epochs->guarded.holds[hash.lo % EPOCH_HOLD_COUNT]++;
    uint64_t now = atomic_load(&epoch_find(epochs, hash)->now);
    pthread_mutex_unlock(&epochs->guarded.lock);
    return now;
}

void state_epoch_release(struct store_epochs *epochs, struct span origin, struct span bucket)
{
    struct hash128 hash = epoch_hash(epochs, origin, bucket);
    pthread_mutex_lock(&epochs->guarded.lock);
    check(epochs->guarded.holds[hash.lo % EPOCH_HOLD_COUNT] > 0);
    epochs->guarded.holds[hash.lo % EPOCH_HOLD_COUNT]--;
    pthread_mutex_unlock(&epochs->guarded.lock);
}

// --- the table; callers hold format_lock, unless no other thread runs yet ------------------------

static struct store_epoch_slot *epoch_add(struct store_epochs *epochs, const struct state_row *row,
                                          unsigned line)
{
    struct store_epoch_slot *slot = NULL;
    for (unsigned i = 0; i < EPOCH_TABLE_SIZE; i++) {
        slot = &epochs->table[(row->key.lo + i) % EPOCH_TABLE_SIZE];
        if (!atomic_load(&slot->is_used)) {
            break;
        }
    }
    check(
        !atomic_load(&slot->is_used)); // there is a free slot, because half of the table stays free
    check(line < STATE_EPOCHS_MAX);
    slot->bucket = row->key;
    slot->line = line;
    atomic_store(&slot->now, row->number);
    atomic_store(&slot->start, row->number);
    atomic_store_explicit(&slot->is_used, true, memory_order_release);
    return slot;
}

// Returns the bucket's slot. At the bucket's first change, adds a slot and a row in `format`. If no
// row is free, returns `others`, which the bucket continues to share.
static struct store_epoch_slot *epoch_slot_locked(struct store_epochs *epochs,
                                                  struct hash128 bucket)
{
    struct state_table *state = &epochs->disk->dir.format.state;
    // The cast removes `const`: look-ups only read a slot, but this thread holds the lock and may
    // write it.
    struct store_epoch_slot *slot =
        (struct store_epoch_slot *)(uintptr_t)epoch_find(epochs, bucket);
    if (slot != &epochs->others) {
        return slot;
    }
    struct state_row *row = state_table_put(state, STATE_EPOCHS, bucket);
    if (row == &state->others[STATE_EPOCHS]) {
        return slot;
    }
    // The bucket has used the shared epoch until now. The row gets a number that is equal or
    // higher.
    row->number = atomic_load(&epochs->others.start);
    return epoch_add(epochs, row, (unsigned)(row - state_table_rows(state, STATE_EPOCHS)));
}

static uint64_t *epoch_line_locked(struct store_epochs *epochs, const struct store_epoch_slot *slot)
{
    struct state_table *state = &epochs->disk->dir.format.state;
    check(slot == &epochs->others || slot->line < state->count[STATE_EPOCHS]);
    return slot == &epochs->others ? &state->others[STATE_EPOCHS].number
                                   : &state_table_rows(state, STATE_EPOCHS)[slot->line].number;
}

static enum err epoch_raise_locked(struct store_epochs *epochs, struct store_epoch_slot *slot)
{
    uint64_t start = atomic_load(&slot->start);
    uint64_t *line = epoch_line_locked(epochs, slot);
    check(atomic_load(&slot->now) <= start);
    atomic_fetch_add(&slot->open_count, 1);
    *line = start + EPOCH_STRIDE;
    enum err err = disk_commit_state(epochs->disk);
    if (err != ERR_OK) {
        *line = start; // safe even if the higher number is on disk, because none in use reaches it
        atomic_fetch_sub(&slot->open_count, 1);
        return err;
    }
    atomic_store(&slot->start, start + EPOCH_STRIDE);
    check(atomic_fetch_add(&slot->now, 1) < start + EPOCH_STRIDE);
    atomic_store(&epochs->any, true);
    return ERR_OK;
}

// --- a change ------------------------------------------------------------------------------------

static void on_begin(struct blocking_job *job)
{
    struct store_epoch_change *change = container_of(job, struct store_epoch_change, job);
    struct store_epochs *epochs = change->epochs;
    check(change->slot == NULL);
    job->err = epochs->disk->attached ? ERR_OK : epochs->disown(epochs->disk);
    if (job->err != ERR_OK) {
        return;
    }
    pthread_mutex_lock(&epochs->disk->dir.format_lock);
    change->slot = epoch_slot_locked(epochs, change->bucket);
    job->err = epoch_raise_locked(epochs, change->slot);
    pthread_mutex_unlock(&epochs->disk->dir.format_lock);
}

static void on_begun(struct blocking_job *job)
{
    struct store_epoch_change *change = container_of(job, struct store_epoch_change, job);
    if (job->err != ERR_OK) {
        stats_add(COUNTER_bucket_invalidation_failures, 1);
        log_warn_condition("epoch_not_kept", "err=%s dir=%s", error_name(job->err),
                           log_quote(span_from_cstr(change->epochs->disk->dir.path)));
    } else {
        stats_add(COUNTER_bucket_invalidations, 1);
        stats_add(COUNTER_bucket_invalidations_shared,
                  change->slot == &change->epochs->others ? 1 : 0);
    }
    change->done(change, job->err);
}

void state_epoch_begin(struct worker *w, struct store_epochs *epochs, struct span origin,
                       struct span bucket, struct store_epoch_change *change)
{
    check(change->done != NULL);
    change->epochs = epochs;
    change->bucket = epoch_hash(epochs, origin, bucket);
    change->slot = NULL;
    change->job = (struct blocking_job){.lane = BLOCKING_STORE, .work = on_begin, .done = on_begun};
    blocking_pool_run(w, &change->job);
}

void store_epoch_end(struct store_epoch_change *change)
{
    struct store_epochs *epochs = change->epochs;
    struct store_epoch_slot *slot = change->slot;
    // The caller has begun the change.
    check(slot != NULL && atomic_load(&slot->open_count) > 0);
    pthread_mutex_lock(&epochs->guarded.lock);
    uint64_t now = atomic_fetch_add(&slot->now, 1) + 1;
    // Read `start` after `now`, because a change that begins raises `start` first.
    uint64_t start = atomic_load(&slot->start);
    check(now <= start);
    bool is_last = atomic_fetch_sub(&slot->open_count, 1) == 1;
    bool is_held = epochs->guarded.holds[change->bucket.lo % EPOCH_HOLD_COUNT] > 0;
    if (is_last && !is_held && slot != &epochs->others) {
        // Another change may begin at this moment. If it has already raised `now`, the exchange
        // fails. If it raises `now` later, `now` is still below the `start` that it has written.
        (void)atomic_compare_exchange_strong(&slot->now, &now, start);
    }
    pthread_mutex_unlock(&epochs->guarded.lock);
}

// --- start and end -------------------------------------------------------------------------------

void state_epochs_init(struct store_epochs *epochs, struct store_disk *disk,
                       enum err (*disown)(struct store_disk *disk))
{
    check(disk != NULL && disown != NULL);
    epochs->disk = disk;
    epochs->disown = disown;
    check(pthread_mutex_init(&epochs->guarded.lock, NULL) == 0);
}

void state_epochs_done(struct store_epochs *epochs)
{
    check(pthread_mutex_destroy(&epochs->guarded.lock) == 0);
}

void state_epochs_load(struct store_epochs *epochs)
{
    struct state_table *state = &epochs->disk->dir.format.state;
    unsigned count = state->count[STATE_EPOCHS];
    uint64_t others = state->others[STATE_EPOCHS].number;
    check(!atomic_load(&epochs->any) && count <= STATE_EPOCHS_MAX);
    for (unsigned i = 0; i < count; i++) {
        (void)epoch_add(epochs, &state_table_rows(state, STATE_EPOCHS)[i], i);
    }
    atomic_store(&epochs->others.now, others);
    atomic_store(&epochs->others.start, others);
    atomic_store(&epochs->any, count > 0 || others > 0);
}
