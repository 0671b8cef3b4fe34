// SPDX-License-Identifier: Apache-2.0
// The only thread that writes the index. All changes pass through one queue, so each worker's
// changes are applied in order. The writer takes a batch when one of these is true:
//
// - The oldest change is 100 ms old, one change is urgent, or there are 1,024 changes.
// - The runs of queued puts hold a 16th of the cache. A segment can be evicted only when all its
//   runs are durable. While the segments written last cannot be evicted, the store evicts more
//   valuable ones instead.
//
// The writer syncs the batch's segments and commits the batch in one or more transactions
// (index_batch.c). Then it removes the changes from the memory side and sends the answers. A crash
// loses at most the fills of 200 ms. Even of these, complete runs are found again in segments.
//
// If cache.size has no room for a batch, the batch waits until a segment is evicted (index_room.c).
// If no segment can be evicted, the puts are removed from the memory side and counted. The disk has
// not failed, so Forebay continues to store runs.
//
// After a failed sync the writer abandons the segment, because the kernel may have dropped its
// pages. After a failed commit it removes the puts from the memory side, and Forebay stores nothing
// for a while. If LMDB reports a damaged file, the writer drops the index, and the recovery thread
// rebuilds it.
//
// A delete in a failed commit is owed, and its key stays hidden. The writer retries owed deletes
// after a second, then after twice that time, and so on up to 64 s, and as soon as another commit
// succeeds. If a client's write waits for the delete, the delete still succeeds if the writer can
// make sure that the next process does not trust the index. For this it writes the marker, or else
// removes data.mdb. It removes the marker when no delete is owed any more. A process that does not
// trust the index rebuilds it, and revalidates all runs that it finds in segments.
//
// Limits of the queue. MEMORY_PENDING_MAX limits puts. The number of client writes that wait limits
// deletes. The store queues at most 4,096 changes of its own: then threads wait and workers skip.
#include "store/index/index_writer.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/index/index_batch.h"
#include "store/index/index_condemn.h"
#include "store/index/index_room.h"
#include "store/index/index_sync.h"
#include "store/segment/segment_log.h"

#define RENEW_BATCH 1024u
#define RENEW_EARLY (RENEWALS_MAX / 4) // if this many renewals wait, a batch is due at once
static_assert(RENEW_EARLY >= RENEW_BATCH, "a batch that is due early is full");

struct index_waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
    enum err err;
};

// --- queue

void index_writer_init(struct index_writer *writer, struct index *index,
                       uint64_t written_pages_bytes, bool (*memory_is_short)(void))
{
    check(index != NULL);
    check(written_pages_bytes == 0 || memory_is_short != NULL);
    *writer = (struct index_writer){.index = index, .txn_cpu_us = INDEX_TXN_CPU_US};
    writer->written.max_bytes = written_pages_bytes;
    writer->written.is_short = memory_is_short;
    check(pthread_mutex_init(&writer->guarded.lock, NULL) == 0);
    clock_cond_init(&writer->guarded.wake);
    clock_cond_init(&writer->guarded.changed);
    writer->guarded.last = &writer->guarded.first;
    index_forget_init(&writer->forget);
}

// Queues `change` and takes ownership of it. It is applied only while the thread runs.
static void writer_push_locked(struct index_writer *writer, struct index_change *change)
{
    check(change->answer == NULL || (change->urgent && !change->is_ours));
    check(change->waiter == NULL || change->is_ours);
    check(change->described == NULL || change->kind == INDEX_REDESCRIBE);
    check(*writer->guarded.last == NULL);
    change->next = NULL;
    *writer->guarded.last = change;
    writer->guarded.last = &change->next;
    writer->guarded.count++;
    writer->guarded.ours_count += change->is_ours;
    writer->guarded.urgent_count += change->urgent;
    check(writer->guarded.ours_count <= INDEX_QUEUE_MAX);
    if (writer->guarded.count == 1 || change->urgent || writer->guarded.count == INDEX_BATCH_MAX) {
        pthread_cond_signal(&writer->guarded.wake);
    }
}

static struct index_change *change_new(enum index_change_kind kind, struct hash128 hash)
{
    struct index_change *change = calloc(1, sizeof(*change));
    check(change != NULL);
    change->kind = kind;
    change->hash = hash;
    return change;
}

static void writer_push(struct index_writer *writer, struct index_change *change)
{
    pthread_mutex_lock(&writer->guarded.lock);
    writer_push_locked(writer, change);
    pthread_mutex_unlock(&writer->guarded.lock);
}

void index_writer_put(struct index_writer *writer, const struct memory_put *put)
{
    struct index_memory *memory = &writer->index->memory;
    check(put->generation != 0 && put->place != NULL);
    check(put->place->segment != NULL && put->place->block_count > 0);
    check(put->place->generation == put->generation);
    struct index_change *change = change_new(INDEX_PUT, put->hash);
    change->generation = put->generation;
    change->size_bytes = put->size_bytes;
    change->etag_hash = put->etag_hash;
    change->block_size_bytes = put->block_size_bytes;
    change->validated_mono_ms = put->validated_mono_ms;
    change->validated_wall_ms = put->validated_wall_ms;
    change->place = *put->place;
    change->sums = put->sums;
    bool was_heavy = index_memory_is_heavy(memory);
    atomic_fetch_add(&memory->pending, 1);
    atomic_fetch_add(&memory->pending_bytes, put->place->payload_len);
    chunk_budget_charge(BUDGET_RUNS, MEMORY_PENDING_BYTES);
    writer_push(writer, change);
    if (!was_heavy && index_memory_is_heavy(memory)) {
        index_writer_wake(writer);
    }
}

void index_writer_redescribe(struct index_writer *writer, const struct index_change *change)
{
    check(change->answer != NULL && change->waiter == NULL);
    check(change->described != NULL && change->described_len <= STORE_DESCRIBED_MAX);
    check(change->generation != 0 && change->generation != change->from);
    struct index_change *mine = change_new(INDEX_REDESCRIBE, change->hash);
    *mine = *change;
    mine->kind = INDEX_REDESCRIBE;
    mine->urgent = true;
    writer_push(writer, mine);
}

void index_writer_delete(struct index_writer *writer, struct hash128 hash, uint64_t floor,
                         struct index_answer *answer)
{
    check(answer == NULL || answer->worker != NULL);
    struct index_change *change = change_new(INDEX_DELETE, hash);
    change->generation = floor;
    change->answer = answer;
    change->urgent = answer != NULL;
    writer_push(writer, change);
}

void index_writer_remove_later(struct index_writer *writer, struct hash128 hash,
                               const struct store_place *place, bool is_bad)
{
    check(place->segment_number != 0);
    pthread_mutex_lock(&writer->guarded.lock);
    if (writer->guarded.ours_count < INDEX_QUEUE_MAX) {
        struct index_change *change = change_new(INDEX_DELETE_AT, hash);
        change->place = *place;
        change->is_ours = true;
        change->is_bad = is_bad;
        writer_push_locked(writer, change);
    }
    pthread_mutex_unlock(&writer->guarded.lock);
}

void index_writer_condemn(struct index_writer *writer, struct hash128 hash,
                          const struct store_place *place)
{
    struct index_change *change = change_new(INDEX_CONDEMN, hash);
    if (place != NULL) {
        change->place = *place;
    }
    change->urgent = true;
    atomic_fetch_add(&writer->condemning, 1);
    writer_push(writer, change);
}

void index_writer_wake(struct index_writer *writer)
{
    pthread_mutex_lock(&writer->guarded.lock);
    pthread_cond_signal(&writer->guarded.wake);
    pthread_mutex_unlock(&writer->guarded.lock);
}

static void writer_push_ours(struct index_writer *writer, struct index_change *change)
{
    check(change->answer == NULL); // only threads that may block wait for room here
    change->is_ours = true;
    pthread_mutex_lock(&writer->guarded.lock);
    while (writer->guarded.ours_count >= INDEX_QUEUE_MAX) {
        pthread_cond_wait(&writer->guarded.changed, &writer->guarded.lock);
    }
    writer_push_locked(writer, change);
    pthread_mutex_unlock(&writer->guarded.lock);
}

void index_writer_forget(struct index_writer *writer, struct segment_removal *removals,
                         unsigned count)
{
    index_forget_add(&writer->forget, removals, count);
    index_writer_wake(writer);
}

void index_writer_drop_injured(struct index_writer *writer)
{
    struct index_change *change = change_new(INDEX_DROP, (struct hash128){0, 0});
    change->urgent = true;
    writer_push(writer, change);
}

void index_writer_fit(struct index_writer *writer)
{
    writer_push(writer, change_new(INDEX_FIT, (struct hash128){0, 0}));
}

enum err index_writer_flush(struct index_writer *writer)
{
    struct index_waiter waiter = {.err = ERR_OK};
    check(pthread_mutex_init(&waiter.lock, NULL) == 0);
    check(pthread_cond_init(&waiter.done, NULL) == 0);
    struct index_change *change = change_new(INDEX_NOTHING, (struct hash128){0, 0});
    change->waiter = &waiter;
    change->urgent = true;
    writer_push_ours(writer, change);
    pthread_mutex_lock(&waiter.lock);
    while (!waiter.is_done) {
        pthread_cond_wait(&waiter.done, &waiter.lock);
    }
    pthread_mutex_unlock(&waiter.lock);
    check(pthread_mutex_destroy(&waiter.lock) == 0);
    pthread_cond_destroy(&waiter.done);
    return waiter.err;
}

void index_writer_move(struct index_writer *writer, struct index_move *move)
{
    check(move->to.segment != NULL && move->to.block_count == move->from.block_count);
    check(move->to.segment_number != move->from.segment_number);
    check(move->to.first_block == move->from.first_block);
    struct index_change *change = change_new(INDEX_MOVE, move->hash);
    change->place = move->to;
    change->move = move;
    writer_push_ours(writer, change);
}

void index_writer_put_rebuilt(struct index_writer *writer, const struct segment_row *row,
                              const struct store_place *place)
{
    check(place->segment_number != 0 && !row->is_bad);
    struct index_change *change = change_new(INDEX_PUT_REBUILT, row->hash);
    change->place = *place;
    change->generation = row->generation;
    change->size_bytes = row->object_size_bytes;
    change->block_size_bytes = row->block_size_bytes;
    change->etag_hash = row->etag_hash;
    writer_push_ours(writer, change);
}

// --- answers

static void change_finish(struct index_writer *writer, struct index_change *change)
{
    struct index_answer *answer = change->answer;
    if (answer != NULL && !atomic_load(&writer->silent)) {
        answer->err = change->err;
        mailbox_send_from_any_thread(answer->worker, &answer->message);
    }
    struct index_waiter *waiter = change->waiter;
    if (waiter != NULL) {
        check(change->kind == INDEX_NOTHING && change->err != ERR_CANCELLED);
        pthread_mutex_lock(&waiter->lock);
        check(!waiter->is_done);
        waiter->is_done = true;
        waiter->err = change->err;
        pthread_cond_signal(&waiter->done);
        pthread_mutex_unlock(&waiter->lock);
    }
    free(change->described);
    free(change);
}

// --- a batch

// Drops the index because the file is damaged. Recovery then rebuilds it from the segments.
static void writer_drop_index(struct index_writer *writer)
{
    struct index *index = writer->index;
    index_close(index);
    index_remove_files(index->disk->dir.index_fd);
    bool removed;
    if (!index_is_gone(index) && index_disown(index->disk->dir.index_fd, &removed) == ERR_OK) {
        // After a power cut, data.mdb may be back and the marker gone.
        writer->marked = true;
    }
    if (writer->given_up && !index_is_gone(index)) {
        // The file could not be removed and must not be trusted, so the next batch tries again.
        return;
    }
    enum err err = index_open(index, 0, false);
    if (err != ERR_OK) {
        disk_filling_off(index->disk, "index",
                         err == ERR_DISK_FULL     ? ENOSPC
                         : err == ERR_DESCRIPTORS ? EMFILE
                                                  : EIO);
    }
}

static bool rc_means_broken(int rc)
{
    return rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_INVALID ||
           rc == MDB_VERSION_MISMATCH || rc == MDB_CURSOR_FULL || rc == MDB_BAD_TXN ||
           rc == MDB_BAD_VALSIZE || rc == MDB_BAD_DBI || rc == MDB_PAGE_FULL ||
           rc == MDB_INCOMPATIBLE;
}

static void writer_commit_failed(struct index_writer *writer, int rc)
{
    struct index *index = writer->index;
    check(rc != 0);
    stats_add(COUNTER_index_commit_failures, 1);
    log_condition(LOG_LEVEL_ERROR, "index_commit_failed", "lmdb=%s",
                  log_quote(span_from_cstr(mdb_strerror(rc))));
    if (rc_means_broken(rc)) {
        // Request the rebuild before dropping the index. From the request on, the memory side keeps
        // deletes until the rebuild ends, because the new index needs them.
        index->host.want_rebuild(index->host.ctx);
        writer_drop_index(writer);
        return;
    }
    // LMDB could not write a meta page. Open the file again, so that LMDB uses the last good one.
    if (rc == MDB_PANIC) {
        index_close(index);
        if (index_open(index, 0, false) != ERR_OK) {
            index->host.want_rebuild(index->host.ctx);
        }
        index->host.want_round(index->host.ctx); // the pages must be verified again
    }
    disk_filling_off(index->disk, "commit", rc > 0 ? rc : EIO);
}

// Commits the next transaction of the batch. Sets *ret_all if the batch is then complete. Sets
// *ret_rc to LMDB's error or 0. Returns ERR_DISK_FULL if nothing was applied for lack of room.
static enum err batch_txn(struct index_writer *writer, struct index_batch *changes, bool *ret_all,
                          int *ret_rc)
{
    struct index *index = writer->index;
    struct index_txn t;
    *ret_rc = 0;
    if (!index_batch_ready(changes, index)) {
        *ret_rc = MDB_CORRUPTED;
        return ERR_IO;
    }
    uint64_t began_us = clock_monotonic_us();
    struct index_batch_left left = index_batch_left(changes);
    check(left.puts + left.deletes + left.forgets > 0);
    enum err err = index_room_begin(writer, changes, &t, ret_rc);
    if (err == ERR_DISK_FULL && left.forgets > 0) { // continue without the places to forget
        changes->forget = NULL;
        writer->again_due_us = disk_real_us() + INDEX_AGAIN_MS * 1000ull;
        if (left.puts + left.deletes == 0) {
            *ret_all = true;
            return ERR_OK;
        }
        err = index_room_begin(writer, changes, &t, ret_rc);
    }
    if (err == ERR_OK) {
        index_batch_apply(changes, index, &t, writer->txn_cpu_us);
        *ret_rc = index_txn_commit(&t);
        err = *ret_rc == 0                                   ? ERR_OK
              : *ret_rc == ENOSPC || *ret_rc == MDB_MAP_FULL ? ERR_DISK_FULL
                                                             : ERR_IO;
    }
    if (err == ERR_OK) {
        atomic_store(&index->full_until_us, 0);
        *ret_all = index_batch_committed(changes);
        stats_add(COUNTER_index_batches_cut, !*ret_all);
    }
    stats_observe_us(HISTOGRAM_index_commit, clock_monotonic_us() - began_us);
    return err;
}

// Commits the batch and sets each change's error. Returns false if a part is not committed. The
// committed changes have `is_in` set.
static bool batch_commit(struct index_writer *writer, struct index_change *batch,
                         struct index_change *owed, unsigned count)
{
    struct index *index = writer->index;
    check((batch == NULL && owed == NULL) == (count == 0));
    struct renewal_copy renewals[RENEW_BATCH];
    unsigned renewal_count = index_renewals_take(index, renewals, RENEW_BATCH);
    bool refused = disk_real_us() < writer->again_due_us && !writer->stopping;
    unsigned forget_max = writer->stopping ? INDEX_FORGET_SLICE_LAST : INDEX_FORGET_SLICE;
    unsigned forget_count = refused ? 0 : index_forget_take(&writer->forget, forget_max);
    if (count == 0 && renewal_count == 0 && forget_count == 0) {
        return true;
    }
    if (atomic_load(&index->current) == NULL &&
        (writer->given_up || index_open(index, 0, false) != ERR_OK)) {
        writer_drop_index(writer);
    }
    struct index_batch changes;
    index_batch_init(&changes, owed, batch, count);
    changes.renewals = renewals;
    changes.renewal_count = renewal_count;
    changes.forget = forget_count > 0 ? &writer->forget : NULL;
    int rc = 0;
    enum err err;
    bool is_all = false;
    do { // each transaction commits some of the changes
        err = batch_txn(writer, &changes, &is_all, &rc);
    } while (err == ERR_OK && !is_all);
    check(changes.in.changes <= count && changes.in.renewals <= renewal_count);
    check(changes.in.removals <= forget_count);
    index_batch_done(&changes);
    index_renewed(index, renewals, changes.in.renewals);
    if (changes.in.removals > 0) {
        index_forget_forgotten(&writer->forget, changes.in.removals);
    }
    if (err != ERR_OK) {
        for (struct index_change *c = batch; c != NULL; c = c->next) {
            c->err = c->is_in && c->waiter == NULL ? c->err : err;
        }
        if (err == ERR_DISK_FULL && index->is_short) {
            index_room_none(index);
        } else {
            writer_commit_failed(writer, rc != 0 ? rc : ENOSPC);
        }
        writer->again_due_us = disk_real_us() + INDEX_AGAIN_MS * 1000ull;
        return false;
    }
    if (changes.in.changes + changes.in.renewals + changes.in.removals == 0) {
        return false; // every change waits for room
    }
    writer->given_up = false;
    return true;
}

// --- the memory side after a batch

static void writer_owe(struct index_writer *writer, struct index_change *change)
{
    check(change->kind == INDEX_DELETE && change->generation != 0);
    check(change->answer == NULL && change->waiter == NULL);
    check(writer->owed == NULL || writer->owed_count > 0);
    change->next = writer->owed;
    writer->owed = change;
    writer->owed_count++;
    atomic_fetch_add(&writer->index->memory.pending, 1);
}

// Removes the first change of the list.
static void owed_drop(struct index_writer *writer, struct index_change **list)
{
    struct index_change *change = *list;
    check(writer->owed_count > 0);
    *list = change->next;
    writer->owed_count--;
    check(atomic_fetch_sub(&writer->index->memory.pending, 1) > 0);
    free(change);
}

// Drops the index, because the disk refused deletes of more keys than the writer can remember.
// Recovery rebuilds it. The runs that it finds in segments are revalidated before their first use.
static void writer_give_up_index(struct index_writer *writer)
{
    if (!writer->given_up) {
        stats_add(COUNTER_index_given_up, 1);
        log_warn("index_given_up", "refused_deletes=%u", writer->owed_count);
        writer->given_up = true;
        writer->index->host.want_rebuild(writer->index->host.ctx);
        writer_drop_index(writer);
    }
    while (writer->owed != NULL) {
        owed_drop(writer, &writer->owed);
    }
    check(writer->owed_count == 0);
    index_memory_forgive(&writer->index->memory);
}

static void change_settle(struct index_writer *writer, struct index_change *c, bool committed)
{
    struct index *index = writer->index;
    struct index_memory *memory = &index->memory;
    bool hides = c->kind == INDEX_PUT || c->kind == INDEX_DELETE;
    check(!committed || c->err != ERR_AGAIN);
    check((c->move != NULL) == (c->kind == INDEX_MOVE));
    if (hides && committed) {
        index_memory_floor_durable(memory, c->hash, c->generation);
    } else if (hides && index_memory_owe(memory, c->hash, c->generation)) {
        struct index_change *again = change_new(INDEX_DELETE, c->hash);
        again->generation = c->generation;
        writer_owe(writer, again);
    }
    if (c->kind == INDEX_PUT) {
        uint64_t bytes = c->place.payload_len;
        index_memory_drop_place(memory, c->hash, c->generation, &c->place);
        check(atomic_fetch_sub(&memory->pending, 1) > 0);
        check(atomic_fetch_sub(&memory->pending_bytes, bytes) >= bytes);
        chunk_budget_discharge(BUDGET_RUNS, MEMORY_PENDING_BYTES);
    } else if (c->kind == INDEX_MOVE) {
        c->move->err = c->err;
    }
    if (c->kind == INDEX_PUT || c->kind == INDEX_MOVE) {
        segment_unhold(c->place.segment);
        store_place_unpin(&c->place);
    }
    if (c->kind == INDEX_CONDEMN) {
        check(atomic_fetch_sub(&writer->condemning, 1) > 0);
    }
    if (c->kind == INDEX_DELETE_AT && committed) {
        struct segment *segment = segment_log_entry(index->log, c->place.segment_number);
        if (segment_pin(segment, c->place.segment_number)) {
            segment_clear_bad(segment, c->place.header_offset);
            segment_unpin(segment);
        }
    }
    stats_add(COUNTER_recovered_runs,
              c->kind == INDEX_PUT_REBUILT && committed && c->err == ERR_OK);
}

// Called after a commit with deletes has failed. Returns true if it has made sure that no later
// process will trust the index.
static bool writer_disown(struct index_writer *writer)
{
    struct index *index = writer->index;
    bool removed;
    if (index_disown(index->disk->dir.index_fd, &removed) != ERR_OK) {
        return false;
    }
    writer->marked = true;
    if (removed) {
        index->host.want_rebuild(index->host.ctx);
        writer_drop_index(writer);
    }
    log_warn_condition("index_disowned", "way=%s", removed ? "removed" : "marked");
    return true;
}

static void batch_settle(struct index_writer *writer, struct index_change *batch, bool committed)
{
    bool tried = committed, disowned = false;
    for (struct index_change *c = batch; c != NULL; c = c->next) {
        check(c->is_in || !committed);
        check(c->answer == NULL || c->kind == INDEX_DELETE || c->kind == INDEX_REDESCRIBE);
        bool answers = c->answer != NULL && !c->is_in && c->kind == INDEX_DELETE;
        if (answers && !tried) {
            disowned = writer_disown(writer);
            tried = true;
        }
        if (answers && disowned) {
            c->err = ERR_OK;
        }
        change_settle(writer, c, c->is_in);
    }
    index_memory_reclaim(&writer->index->memory);
}

// --- owed deletes

// Removes the owed deletes that a later change has made unnecessary.
static void owed_prune(struct index_writer *writer)
{
    struct index_memory *memory = &writer->index->memory;
    struct index_change **at = &writer->owed;
    while (*at != NULL) { // at most MEMORY_PENDING_MAX, and those that client writes wait for
        struct index_change *c = *at;
        c->generation = index_memory_owed(memory, c->hash);
        if (c->generation != 0) {
            at = &c->next;
            continue;
        }
        owed_drop(writer, at);
    }
}

static struct index_change *owed_take(struct index_writer *writer, unsigned *ret_count)
{
    struct index_change *taken = NULL;
    *ret_count = 0;
    if (writer->owed == NULL || disk_real_us() < writer->owed_due_us) {
        return NULL;
    }
    owed_prune(writer);
    while (writer->owed != NULL && *ret_count < INDEX_BATCH_MAX) {
        struct index_change *c = writer->owed;
        writer->owed = c->next;
        c->next = taken;
        taken = c;
        ++*ret_count;
    }
    check(*ret_count <= writer->owed_count);
    return taken;
}

static void owed_settle(struct index_writer *writer, struct index_change *taken, bool committed)
{
    struct index_change *next;
    check(taken == NULL || writer->owed_count > 0);
    for (struct index_change *c = taken; c != NULL; c = next) {
        next = c->next;
        if (committed) {
            index_memory_floor_durable(&writer->index->memory, c->hash, c->generation);
        }
        c->next = writer->owed;
        writer->owed = c;
    }
    if (!committed && writer->owed_count > MEMORY_PENDING_MAX) {
        writer_give_up_index(writer);
    } else if (!committed && writer->owed != NULL) {
        check(writer->owed_failures <= 6);
        writer->owed_due_us =
            disk_real_us() + ((uint64_t)INDEX_AGAIN_MS * 1000 << writer->owed_failures);
        writer->owed_failures = (unsigned)min_u64(writer->owed_failures + 1, 6);
    } else if (committed) {
        writer->owed_due_us = 0; // the disk accepts commits again
        writer->owed_failures = 0;
        owed_prune(writer);
        if (writer->owed == NULL && writer->marked) {
            index_own(writer->index);
            writer->marked = false;
        }
    }
}

static bool batch_process(struct index_writer *writer, struct index_change *batch, unsigned count)
{
    struct index *index = writer->index;
    check((batch == NULL) == (count == 0) && count <= INDEX_BATCH_MAX);
    index_sync_batch(writer, batch);
    index_condemn_batch(index, batch);
    for (struct index_change *c = batch; c != NULL; c = c->next) {
        struct index_env *env = atomic_load(&index->current);
        bool is_injured = c->kind == INDEX_DROP && env != NULL && atomic_load(&env->proof.is_bad);
        if (is_injured) {
            log_warn("index_dropped", "reason=injured");
        }
        if (is_injured || (c->kind == INDEX_FIT && !index_fit(index))) {
            writer_drop_index(writer);
        }
    }
    unsigned owed_count;
    struct index_change *owed = owed_take(writer, &owed_count);
    bool committed = batch_commit(writer, batch, owed, count + owed_count);
    batch_settle(writer, batch, committed);
    owed_settle(writer, owed, committed);
    struct index_change *next;
    for (struct index_change *c = batch; c != NULL; c = next) {
        next = c->next;
        change_finish(writer, c);
    }
    return committed;
}

// --- the thread

// Waits until a batch is due. Returns false if the thread must stop and nothing is left.
static bool writer_wait_locked(struct index_writer *writer)
{
    struct index *index = writer->index;
    uint64_t batch_due_us = 0;
    uint64_t renew_due_us = 0;
    for (;;) {
        unsigned renewals = atomic_load(&index->renewal_count);
        uint64_t now_us = disk_real_us();
        unsigned forget = atomic_load(&writer->forget.waiting);
        if ((writer->guarded.count > 0 || forget > 0) && batch_due_us == 0) {
            batch_due_us = now_us + INDEX_LINGER_MS * 1000;
        }
        if (writer->guarded.count == 0 && forget > 0) {
            batch_due_us = max_u64(batch_due_us, writer->again_due_us);
        } else if (writer->guarded.count > 0) { // changes wait, and not only places to forget
            batch_due_us = min_u64(batch_due_us, now_us + INDEX_LINGER_MS * 1000);
        }
        if (renewals > 0 && renew_due_us == 0) {
            renew_due_us = now_us + INDEX_RENEW_LINGER_MS * 1000;
        }
        if (disk_thread_stops(&writer->guarded.thread)) {
            return writer->guarded.count > 0 || renewals > 0 || forget > 0;
        }
        bool owed_due = writer->owed != NULL && now_us >= writer->owed_due_us;
        bool forget_due = forget >= INDEX_FORGET_SLICE && now_us >= writer->again_due_us;
        bool renew_early = renewals >= RENEW_EARLY && now_us >= writer->again_due_us;
        bool is_heavy = writer->guarded.count > 0 && index_memory_is_heavy(&index->memory);
        stats_add(COUNTER_index_batches_heavy, is_heavy);
        if (is_heavy || owed_due || forget_due || writer->guarded.urgent_count > 0 ||
            writer->guarded.count >= INDEX_BATCH_MAX || renew_early ||
            (batch_due_us != 0 && now_us >= batch_due_us) ||
            (renew_due_us != 0 && now_us >= renew_due_us)) {
            return true;
        }
        uint64_t due_us = batch_due_us != 0 && (renew_due_us == 0 || batch_due_us < renew_due_us)
                              ? batch_due_us
                              : renew_due_us;
        if (writer->owed != NULL && (due_us == 0 || writer->owed_due_us < due_us)) {
            due_us = writer->owed_due_us;
        }
        if (due_us == 0) {
            pthread_cond_wait(&writer->guarded.wake, &writer->guarded.lock);
        } else {
            struct timespec until = disk_timespec_of_us(due_us);
            // The loop checks all conditions again, so the result does not matter.
            (void)pthread_cond_timedwait(&writer->guarded.wake, &writer->guarded.lock, &until);
        }
    }
}

static struct index_change *writer_take_locked(struct index_writer *writer, unsigned *ret_count)
{
    struct index_change *batch = writer->guarded.first;
    struct index_change **end = &batch;
    unsigned count = 0;
    while (*end != NULL && count < INDEX_BATCH_MAX) {
        writer->guarded.ours_count -= (*end)->is_ours;
        writer->guarded.urgent_count -= (*end)->urgent;
        end = &(*end)->next;
        count++;
    }
    writer->guarded.first = *end;
    *end = NULL;
    if (writer->guarded.first == NULL) {
        writer->guarded.last = &writer->guarded.first;
    }
    writer->guarded.count -= count;
    check((writer->guarded.first == NULL) == (writer->guarded.count == 0));
    check(writer->guarded.ours_count <= writer->guarded.count);
    check(writer->guarded.urgent_count <= writer->guarded.count);
    pthread_cond_broadcast(&writer->guarded.changed);
    *ret_count = count;
    return batch;
}

// Tries the owed deletes a last time, and drops those that fail again. For each dropped delete,
// either the marker makes the next process rebuild the index, or the client received an error.
static void owed_end(struct index_writer *writer)
{
    writer->owed_due_us = 0;
    if (writer->owed != NULL) {
        (void)batch_process(writer, NULL, 0); // refused deletes are dropped below
    }
    while (writer->owed != NULL) {
        owed_drop(writer, &writer->owed);
    }
}

static void *writer_main(void *ctx)
{
    struct index_writer *writer = ctx;
    thread_begin("index-writer", THREAD_HELPS);
    unsigned failures_at_stop = 0;
    pthread_mutex_lock(&writer->guarded.lock);
    while (writer_wait_locked(writer)) {
        unsigned count;
        struct index_change *batch = writer_take_locked(writer, &count);
        writer->stopping = disk_thread_stops(&writer->guarded.thread);
        pthread_mutex_unlock(&writer->guarded.lock);
        bool committed = batch_process(writer, batch, count);
        pthread_mutex_lock(&writer->guarded.lock);
        if (writer->stopping && count == 0 && !committed && ++failures_at_stop > 16) {
            break; // the rest is renewals and places to forget, which the disk refuses
        }
    }
    pthread_mutex_unlock(&writer->guarded.lock);
    owed_end(writer);
    return NULL;
}

void index_writer_start(struct index_writer *writer)
{
    check(writer->index->disk != NULL && writer->index->writer == writer);
    disk_thread_start(&writer->guarded.thread, &writer->index->disk->spares, writer_main, writer);
}

void index_writer_silence(struct index_writer *writer)
{
    atomic_store(&writer->silent, true);
}

void index_writer_stop(struct index_writer *writer)
{
    disk_thread_stop(&writer->guarded.thread, &writer->guarded.lock, &writer->guarded.wake);
    // The thread may have found damage in its last batch and then queued a drop of the index.
    for (struct index_change *c = writer->guarded.first, *next; c != NULL; c = next) {
        next = c->next;
        change_finish(writer, c);
    }
    check(writer->owed == NULL && atomic_load(&writer->condemning) == 0);
    index_forget_done(&writer->forget);
    check(pthread_mutex_destroy(&writer->guarded.lock) == 0);
    pthread_cond_destroy(&writer->guarded.wake);
    pthread_cond_destroy(&writer->guarded.changed);
}
