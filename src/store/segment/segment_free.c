// SPDX-License-Identifier: Apache-2.0
// The freeing thread removes evicted segments. It runs in parallel with the supply thread, which
// creates segments, and the index writer, which forgets their entries at its own pace.
//
// The segment accepts no new pins from the moment at which its eviction begins. The thread lists
// its runs (segment_list.c) and unlinks the file. When the last pin is gone, it closes the file and
// returns the space. It passes the runs to the index writer, and does not wait until their entries
// are removed from the index. An entry names its segment by number and salt. Neither is ever
// reused, so each entry is a miss once new pins are refused. A crash may leave such entries in the
// index. A look-up that finds one has it removed.
//
// If very many entries wait for removal, this thread waits for the index writer, but only after it
// has returned the space. If the index writer removes nothing for long, because the disk accepts no
// commits, the entries stay in the index and are counted.
#include "store/segment/segment_free.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_list.h"
#include "store/segment/segment_log.h"
#include "store/segment/segment_supply.h"

#define TICK_MS 1000u // interval at which the thread writes seals and retries failed unlinks

// --- dooming segments

void segment_free_doom_locked(struct segment_log *log, struct segment *segment,
                              bool index_forgotten)
{
    if (segment->state == SEGMENT_SPARE) {
        unsigned kept = 0;
        for (unsigned i = 0; i < log->guarded.spare_count; i++) {
            if (log->guarded.spare[i] != segment) {
                log->guarded.spare[kept++] = log->guarded.spare[i];
            }
        }
        check(kept + 1 == log->guarded.spare_count); // the segment was in the array exactly once
        log->guarded.spare_count = kept;
        atomic_store(&log->room, kept);
    }
    check((atomic_load(&segment->pins) & SEGMENT_PIN_LIVE) != 0);
    check((atomic_load(&segment->pins) & SEGMENT_PIN_UNLINKED) == 0);
    segment_enter_state(segment, SEGMENT_DYING);
    segment->index_forgotten = index_forgotten;
    segment->next = log->guarded.doomed;
    log->guarded.doomed = segment;
    log->guarded.doomed_count++;
    log->guarded.dying_count++;
    check(log->guarded.doomed_count <= log->guarded.dying_count);
    atomic_fetch_and(&segment->pins, ~SEGMENT_PIN_LIVE);
    log->guarded.free_wanted = true;
    pthread_cond_signal(&log->guarded.free_wake);
}

void segment_free_doom_full(struct segment_log *log, struct segment *segment)
{
    pthread_mutex_lock(&log->guarded.lock);
    if (segment->state == SEGMENT_SEALED) {
        segment_free_doom_locked(log, segment, false);
    }
    pthread_mutex_unlock(&log->guarded.lock);
}

static void doom_one(struct segment_log *log, struct segment *segment, bool index_forgotten)
{
    pthread_mutex_lock(&log->guarded.lock);
    if (segment->state != SEGMENT_FREE && segment->state != SEGMENT_DYING) {
        segment_free_doom_locked(log, segment, index_forgotten);
        segment->is_distrusted = true;
    }
    pthread_mutex_unlock(&log->guarded.lock);
}

void segment_log_abandon(struct segment_log *log, struct segment *segment)
{
    doom_one(log, segment, false);
}

void segment_log_drop(struct segment_log *log, struct segment *segment)
{
    doom_one(log, segment, true);
}

// --- the entries that the index must forget

struct forgetting {
    uint32_t number, count, max;
    uint64_t salt;
    struct segment_removal *removals;
    uint64_t blocks, bytes;
};

static bool on_row_forgotten(void *ctx, const struct segment_row *row)
{
    struct forgetting *f = ctx;
    struct store_place place = segment_row_place(row, f->number, f->salt);
    f->blocks += place.block_count;
    f->bytes += place.payload_len;
    if (f->count == f->max) {
        f->max = (uint32_t)max_u64(64, 2ull * f->max);
        f->removals = realloc(f->removals, f->max * sizeof(*f->removals));
        check(f->removals != NULL);
    }
    f->removals[f->count++] = (struct segment_removal){row->hash, place};
    return true;
}

// Lists the runs of the segment. Returns false if they cannot be listed. A round through the index
// must then find their entries.
static bool free_list(struct segment *segment, struct forgetting *f)
{
    *f = (struct forgetting){.number = atomic_load(&segment->number)};
    return segment_list(segment, on_row_forgotten, f, &f->salt) == ERR_OK;
}

// --- freeing

static void slots_forget(struct segment_log *log, const struct segment *segment)
{
    for (unsigned i = 0; i < log->slot_max + SEGMENT_SLOTS_APART; i++) {
        pthread_mutex_lock(&log->slots[i].guarded.lock);
        if (log->slots[i].guarded.current == segment) {
            log->slots[i].guarded.current = NULL;
        }
        pthread_mutex_unlock(&log->slots[i].guarded.lock);
    }
}

static void segment_closed(struct segment *segment)
{
    struct segment_log *log = segment->log;
    segment_pool_close(&log->pool, segment);
    pthread_mutex_lock(&log->guarded.lock);
    check((atomic_load(&segment->pins) & ~SEGMENT_PIN_UNLINKED) == 0);
    check(atomic_load(&segment->holds) == 0); // a thread with a hold has a pin, and no pin is left
    check(log->guarded.dying_count > log->guarded.doomed_count);
    check(segment->given_bytes < log->segment_cost_bytes);
    segment_free_marks(segment); // no thread can use them, because the last pin is gone
    atomic_store(&segment->number, 0);
    segment_enter_state(segment, SEGMENT_FREE);
    uint64_t cost = log->segment_cost_bytes - segment->given_bytes;
    log->guarded.dying_count--;
    struct segment_rows *rows = segment->rows;
    segment->rows = NULL;
    pthread_mutex_unlock(&log->guarded.lock);
    segment_rows_free(rows);
    check(atomic_fetch_sub(&log->segment_count, 1) > 0);
    stats_sub(COUNTER_segments, 1);
    disk_space_give(log->disk, cost);
    segment_log_want(log, false); // wake the supply thread, because there is room for a new segment
}

void segment_free_close(struct segment *segment)
{
    struct segment_log *log = segment->log;
    pthread_mutex_lock(&log->guarded.lock);
    check(segment->state == SEGMENT_DYING);
    check(atomic_load(&segment->pins) == SEGMENT_PIN_UNLINKED);
    segment->next = log->guarded.closable;
    log->guarded.closable = segment;
    log->guarded.free_wanted = true;
    pthread_cond_signal(&log->guarded.free_wake);
    pthread_mutex_unlock(&log->guarded.lock);
}

// Returns false if the file could not be unlinked. The file then still counts in cache.size, and
// the thread tries again at the next tick.
static bool free_unlink(struct segment_log *log, struct segment *segment)
{
    // Readers with a pin may continue to read after the unlink. So open the file now, because an
    // unlinked file cannot be opened.
    int fd;
    if ((atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) != 0 &&
        segment_borrow_wait(segment, &fd) == ERR_OK) {
        segment_return(segment);
    }
    char name[SEGMENT_NAME_LEN];
    segment_name(atomic_load(&segment->number), name);
    int failed = store_fault_strike(STORE_FAULT_UNLINK);
    if (failed == 0 && unlinkat(log->disk->dir.segments_fd, name, 0) != 0 && errno != ENOENT) {
        failed = errno;
    }
    if (failed != 0) {
        disk_filling_off(log->disk, "unlink", failed);
        pthread_mutex_lock(&log->guarded.lock);
        segment->next = log->guarded.doomed;
        log->guarded.doomed = segment;
        pthread_mutex_unlock(&log->guarded.lock);
        return false;
    }
    if (segment->is_distrusted) {
        // Without this sync, a power cut could bring back a file that must not be found. If the
        // sync fails, too, nothing more can be done.
        (void)fsync(log->disk->dir.segments_fd);
    }
    return true;
}

static void free_one(struct segment_log *log, struct segment *segment)
{
    struct forgetting f = {0};
    uint32_t number = atomic_load(&segment->number);
    check(number != 0 && segment->state == SEGMENT_DYING);
    slots_forget(log, segment);
    bool forgets = !segment->index_forgotten;
    uint64_t moved_blocks = segment->moved_blocks, moved_bytes = segment->moved_bytes;
    bool listed = forgets && free_list(segment, &f);
    log->host.dies(log->host.ctx, segment, f.removals, listed ? f.count : 0);
    // This call passes the segment's entries to the index below. If the unlink fails, the next try
    // must not pass them again.
    segment->index_forgotten = true;
    bool unlinked = free_unlink(log, segment);
    if (unlinked) {
        pthread_mutex_lock(&log->guarded.lock);
        check(log->guarded.doomed_count > 0);
        log->guarded.doomed_count--;
        pthread_mutex_unlock(&log->guarded.lock);
        unsigned before = atomic_fetch_or(&segment->pins, SEGMENT_PIN_UNLINKED);
        check((before & (SEGMENT_PIN_LIVE | SEGMENT_PIN_UNLINKED)) == 0);
        if ((before & SEGMENT_PIN_COUNT) == 0) {
            segment_closed(segment);
        } else {
            // Readers may keep the space for long, so the supply thread picks another segment.
            segment_log_want(log, false);
        }
    }
    if (!forgets) {
        return;
    }
    if (listed) {
        log->host.forget(log->host.ctx, f.removals, f.count);
    } else {
        free(f.removals);
        log->host.forget_unlisted(log->host.ctx);
    }
    f.blocks -= min_u64(f.blocks, moved_blocks);
    f.bytes -= min_u64(f.bytes, moved_bytes);
    stats_add(COUNTER_evicted_blocks_capacity, f.blocks);
    stats_add(COUNTER_evicted_bytes_capacity, f.bytes);
    log_debug("segment_freed", "number=%u blocks=%llu bytes=%llu", number,
              (unsigned long long)f.blocks, (unsigned long long)f.bytes);
}

static struct segment *list_take(struct segment_log *log, struct segment **list)
{
    pthread_mutex_lock(&log->guarded.lock);
    struct segment *taken = *list;
    *list = NULL;
    pthread_mutex_unlock(&log->guarded.lock);
    return taken;
}

static void free_all(struct segment_log *log)
{
    struct segment *next;
    for (struct segment *s = list_take(log, &log->guarded.closable); s != NULL; s = next) {
        next = s->next;
        segment_closed(s);
    }
    for (struct segment *s = list_take(log, &log->guarded.doomed); s != NULL; s = next) {
        next = s->next;
        free_one(log, s);
    }
}

// --- sealing

// Writes the seal of a full segment that has no holds. A seal promises that the index knows all
// runs of the segment.
static bool seal_due(struct segment_log *log, struct segment *segment)
{
    if (atomic_load(&segment->number) == 0) {
        return false; // the entry is free, as most entries of the table are
    }
    pthread_mutex_lock(&log->guarded.lock);
    bool due = segment->state == SEGMENT_SEALED && !segment->seal_written &&
               atomic_load(&segment->holds) == 0;
    // A seal is tried only once. If that fails, a later start scans the segment.
    segment->seal_written = segment->seal_written || due;
    pthread_mutex_unlock(&log->guarded.lock);
    if (due) {
        segment_list_seal(segment);
    }
    return due;
}

void segment_free_seal_all(struct segment_log *log)
{
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        (void)seal_due(log, &log->table[i]);
    }
}

// --- the thread

static void *free_main(void *ctx)
{
    struct segment_log *log = ctx;
    thread_begin("store-free", THREAD_BEHIND);
    uint64_t tick_us = disk_real_us() + TICK_MS * 1000;
    pthread_mutex_lock(&log->guarded.lock);
    while (!disk_thread_stops(&log->guarded.freer)) {
        int rc = 0;
        struct timespec tick = disk_timespec_of_us(tick_us);
        while (!disk_thread_stops(&log->guarded.freer) && !log->guarded.free_wanted && rc == 0) {
            rc = pthread_cond_timedwait(&log->guarded.free_wake, &log->guarded.lock, &tick);
        }
        log->guarded.free_wanted = false;
        pthread_mutex_unlock(&log->guarded.lock);
        free_all(log);
        if (rc != 0 || disk_real_us() >= tick_us) {
            for (uint32_t i = 0; i <= log->table_mask; i++) {
                if (seal_due(log, &log->table[i])) {
                    free_all(log); // an eviction must not wait until all full segments are sealed
                }
            }
            tick_us = disk_real_us() + TICK_MS * 1000;
        }
        pthread_mutex_lock(&log->guarded.lock);
    }
    check(log->guarded.freer.phase == DISK_THREAD_STOPS);
    pthread_mutex_unlock(&log->guarded.lock);
    free_all(log);
    return NULL;
}

void segment_free_start(struct segment_log *log)
{
    disk_thread_start(&log->guarded.freer, &log->disk->spares, free_main, log);
}

void segment_free_stop(struct segment_log *log)
{
    if (log->guarded.freer.phase == DISK_THREAD_NEW) {
        return; // if the log was never opened, its lock does not exist
    }
    disk_thread_stop(&log->guarded.freer, &log->guarded.lock, &log->guarded.free_wake);
}
