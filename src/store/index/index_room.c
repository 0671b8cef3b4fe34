// SPDX-License-Identifier: Apache-2.0
// The index and the segments share cache.size. Segments leave a headroom for the growth of the
// index. When it is used up, the index writer has a segment evicted and waits for the space before
// it begins a transaction. During the wait, new puts wait in the writer's queue. When the memory
// side is full of them, new runs are refused with the reason index-busy.
//
// Slow readers may hold every segment that could be evicted. After INDEX_ROOM_WAIT_MS the batch
// continues change by change, as long as there is room for one more. The rest of the batch is then
// dropped: its puts become misses, and its deletes are owed. No batch waits again until a
// transaction has found room. Runs that begin within the next second are refused with the reason
// index-full. The disk has not failed, so Forebay stores runs again after that.
#include "store/index/index_room.h"

#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_log.h"

#define LOOK_US 2000u
#define CHANGES_LEAST 16u // a transaction waits until this many changes have room
static_assert(CHANGES_LEAST <= INDEX_BATCH_MAX, "a batch has as many");
static_assert(LOOK_US * 10 < INDEX_ROOM_WAIT_MS * 1000, "it looks often while it waits");

// Waits briefly, or until another change is queued.
static void room_wait(struct index_writer *writer)
{
    struct timespec until = disk_timespec_of_us(disk_real_us() + LOOK_US);
    pthread_mutex_lock(&writer->guarded.lock);
    (void)pthread_cond_timedwait(&writer->guarded.wake, &writer->guarded.lock, &until);
    pthread_mutex_unlock(&writer->guarded.lock);
}

enum err index_room_begin(struct index_writer *writer, const struct index_batch *batch,
                          struct index_txn *t, int *ret_rc)
{
    struct index *index = writer->index;
    uint64_t until_us = clock_monotonic_us() + INDEX_ROOM_WAIT_MS * 1000ull;
    struct index_batch_left left = index_batch_left(batch);
    unsigned removals = left.deletes + left.forgets;
    check(left.puts + removals > 0);
    enum err err = index_txn_begin(t, index, left.puts, removals, CHANGES_LEAST, ret_rc);
    if (left.forgets > 0) {
        return err; // places to forget can wait, so the batch continues without them
    }
    while (err == ERR_DISK_FULL && index->is_short && !writer->waited_in_vain &&
           !writer->stopping) {
        room_wait(writer);
        err = index_txn_begin(t, index, left.puts, removals, CHANGES_LEAST, ret_rc);
        writer->waited_in_vain = err == ERR_DISK_FULL && clock_monotonic_us() >= until_us;
    }
    writer->waited_in_vain = writer->waited_in_vain && err != ERR_OK;
    if (err == ERR_DISK_FULL && index->is_short) {
        err = index_txn_begin(t, index, left.puts, removals, 1, ret_rc);
    }
    return err;
}

void index_room_none(struct index *index)
{
    stats_add(COUNTER_index_full, 1);
    atomic_store(&index->full_until_us, clock_monotonic_us() + INDEX_AGAIN_MS * 1000ull);
    log_warn_condition(
        "index_full", "index_bytes=%llu used_bytes=%llu capacity_bytes=%llu remedy=%s",
        (unsigned long long)atomic_load(&index->allocated_bytes),
        (unsigned long long)atomic_load(&index->disk->used_bytes),
        (unsigned long long)atomic_load(&index->disk->capacity_bytes), "raise_cache_size");
}
