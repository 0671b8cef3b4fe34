// SPDX-License-Identifier: Apache-2.0
// Recovery at a start. Before the store serves, recovery drops the index in four cases: a marker
// says so; the child process of index_verify.c found damage; the index belongs to another cache;
// the index is an old copy, because its last commit is older than the one recorded in `format`.
// Then the store serves, and one thread examines the segments, newest first:
//
//   not a segment of this cache     the file is removed
//   stopped cleanly                 the index knows its runs; only its head is read
//   sealed                          the index knows its runs
//   not sealed after a crash        the runs that the index lacks are added; writing continues
//                                   after the last one
//
// After that, eviction may begin. If the index was dropped, the thread then adds the runs of all
// segments to the new index.
//
// Runs added from segments are marked and must be revalidated before their first use, because runs
// of invalidated versions are found, too. So blocks that clients request in the meantime need not
// be deleted: new runs of a version join those that recovery finds. If the process stopped
// uncleanly and the machine has booted since, all records must be revalidated. After all this, the
// thread verifies the index slice by slice (index_roll.c). It also waits for orders to rebuild the
// index. Any thread that finds damage orders a rebuild.
//
// A disk in trouble may cause one rebuild after another. The second rebuild begins an eighth of a
// second after the end of the first. Each further pause is twice as long as the previous one. After
// ten minutes without a rebuild, the pauses begin with the shortest again.
#include "store/care/recovery.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/index/index_verify.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_list.h"
#include "store/segment/segment_log.h"
#include "store/state/state_condemned.h"

#define REBUILD_PAUSE_US 125000u
#define REBUILD_PAUSES_MAX 12u // how often the pause may double
#define REBUILD_CALM_US 600000000u
static_assert(((uint64_t)REBUILD_PAUSE_US << REBUILD_PAUSES_MAX) <= REBUILD_CALM_US,
              "the longest pause is no calm");

void recovery_init(struct recovery *recovery, struct index *index, struct segment_log *log,
                   struct store_disk *disk, struct store_condemned *condemned)
{
    *recovery = (struct recovery){.index = index, .log = log, .disk = disk, .condemned = condemned};
    check(index != NULL && log != NULL && disk != NULL && condemned != NULL);
    check(pthread_mutex_init(&recovery->guarded.lock, NULL) == 0);
    clock_cond_init(&recovery->guarded.wake);
}

static void want_rebuild(struct recovery *recovery, bool drop)
{
    pthread_mutex_lock(&recovery->guarded.lock);
    recovery->guarded.rebuild_wanted = true;
    atomic_store(&recovery->is_rebuilding, true);
    // From now on, the memory side keeps deletes, because the new index needs them.
    index_memory_recovering(&recovery->index->memory, true);
    if (drop) { // the drop is queued before the runs that the rebuild adds
        index_writer_drop_injured(recovery->index->writer);
    }
    pthread_cond_signal(&recovery->guarded.wake);
    pthread_mutex_unlock(&recovery->guarded.lock);
}

void recovery_want_rebuild(struct recovery *recovery)
{
    want_rebuild(recovery, false);
}

void recovery_want_new_index(struct recovery *recovery)
{
    want_rebuild(recovery, true);
}

void recovery_want_round(struct recovery *recovery)
{
    pthread_mutex_lock(&recovery->guarded.lock);
    recovery->guarded.round_wanted = true;
    pthread_cond_signal(&recovery->guarded.wake);
    pthread_mutex_unlock(&recovery->guarded.lock);
}

// --- the index

// Called when the whole index has been verified. The next round can then wait.
static void recovery_rests(struct recovery *recovery)
{
    recovery->roll_due_us = disk_real_us() + INDEX_ROLL_REST_MS * 1000ull;
    atomic_store(&recovery->is_verified, true);
}

static enum err recovery_open_new(struct recovery *recovery, const char *why)
{
    recovery_rests(recovery);
    index_remove_files(recovery->disk->dir.index_fd);
    if (why != NULL) {
        log_warn("index_dropped", "reason=%s", why);
        recovery_want_rebuild(recovery);
    }
    return index_open(recovery->index, 0, false);
}

// Counts boots that may have been power failures: the process stopped uncleanly and the machine
// booted. Deletes were synced, but drives may lie about syncs, and disk images may be restored. So
// all records must be revalidated before their first use, as runs found in segments must be.
static void recovery_judge_boot(struct recovery *recovery)
{
    struct store_format *format = &recovery->disk->dir.format;
    char boot_id[STORE_BOOT_ID_MAX + 1];
    store_boot_id(boot_id);
    if (!format->clean && !recovery->disk->dir.fresh && strcmp(boot_id, format->boot_id) != 0) {
        format->cuts++;
        log_warn("other_boot", "cuts=%u", format->cuts);
    }
    index_set_cuts(recovery->index, format->cuts);
}

enum err recovery_open_index(struct recovery *recovery)
{
    const struct store_format *format = &recovery->disk->dir.format;
    check(atomic_load(&recovery->index->current) == NULL);
    check(recovery->guarded.thread.phase == DISK_THREAD_NEW);
    recovery->was_clean = format->clean;
    recovery_judge_boot(recovery);
    if (recovery->disk->dir.fresh) {
        return recovery_open_new(recovery, NULL);
    }
    if (faccessat(recovery->disk->dir.index_fd, INDEX_BAD_MARKER, F_OK, 0) == 0) {
        return recovery_open_new(recovery, "marked");
    }
    if (faccessat(recovery->disk->dir.index_fd, "data.mdb", F_OK, 0) != 0) {
        return recovery_open_new(recovery, "missing");
    }
    if (!index_verify_tables(recovery->disk->dir.index_fd)) {
        return recovery_open_new(recovery, "tables");
    }
    struct buf path;
    buf_init(&path, 8192);
    buf_printf(&path, "%s/index", recovery->disk->dir.path);
    enum index_verdict verdict =
        index_verify(buf_cstr(&path), recovery->index->map_bytes, format->cache_id);
    buf_done(&path);
    if (verdict == INDEX_VERDICT_BAD) {
        return recovery_open_new(recovery, "damaged");
    }
    enum err err = index_open(recovery->index, format->index_txn, format->clean);
    if (err == ERR_CORRUPT) {
        return recovery_open_new(recovery, "refused");
    }
    if (err == ERR_OK && verdict == INDEX_VERDICT_GOOD) {
        index_proof_all(recovery->index);
        recovery_rests(recovery);
    }
    return err;
}

// --- segments

static bool recovery_stopping(struct recovery *recovery)
{
    pthread_mutex_lock(&recovery->guarded.lock);
    bool stop = disk_thread_stops(&recovery->guarded.thread);
    pthread_mutex_unlock(&recovery->guarded.lock);
    return stop;
}

void recovery_adopt_clean(struct recovery *recovery)
{
    const struct store_format *format = &recovery->disk->dir.format;
    check(format->append_count <= ARRAY_LEN(format->append));
    check(recovery->was_clean == format->clean); // `format` still has the state of the last process
    for (unsigned i = 0; recovery->was_clean && i < format->append_count; i++) {
        const struct store_append *a = &format->append[i];
        struct segment *segment = segment_log_entry(recovery->log, a->number);
        struct segment_header header;
        struct segment_seal seal;
        struct segment_found found = {.end_offset = a->offset,
                                      .unit_count = a->unit_count,
                                      .run_count = a->run_count,
                                      .was_spare = true};
        if (a->number == 0 || !segment_pin(segment, a->number)) {
            continue;
        }
        if (segment_log_identify(segment, &header, &seal) == ERR_OK && seal.number == 0 &&
            a->offset >= SEGMENT_DATA_OFFSET && a->offset <= recovery->log->segment_size_bytes &&
            a->offset % RUN_ALIGN == 0 && a->unit_count <= recovery->log->unit_max &&
            a->row_count <= a->run_count &&
            segment_list_load(segment, header.salt, a->row_count, a->table_id, &found.rows) ==
                ERR_OK) {
            found.salt = header.salt;
            if (!segment_log_adopt(recovery->log, segment, &found)) {
                segment_log_drop(recovery->log, segment); // empty, and there are enough of these
            }
        }
        segment_unpin(segment);
    }
}

static bool on_row_found(void *ctx, const struct segment_row *row)
{
    struct recovery *recovery = ctx;
    check(recovery->number != 0);
    if (!row->is_bad && recovery->rows != NULL) {
        segment_rows_add(recovery->rows, row);
    }
    if (!row->is_bad && !state_condemned_has(recovery->condemned, row->hash, row->generation)) {
        struct store_place place = segment_row_place(row, recovery->number, recovery->salt);
        index_writer_put_rebuilt(recovery->index->writer, row, &place);
    }
    return !recovery_stopping(recovery);
}

// Examines a segment that was not sealed before a crash. Only a scan finds its runs.
static enum err examine_unsealed(struct recovery *recovery, struct segment *segment,
                                 struct segment_found *found)
{
    struct segment_scan_result result = {0};
    check(recovery->rows == NULL && recovery->number != 0);
    recovery->rows = segment_rows_new();
    enum err err = segment_list_scan(segment, found->salt, on_row_found, recovery, &result);
    found->rows = recovery->rows;
    recovery->rows = NULL;
    check(result.end_offset <= recovery->log->segment_size_bytes || err != ERR_OK);
    found->end_offset = result.end_offset;
    found->unit_count = result.unit_count;
    found->run_count = result.run_count;
    // Write nothing more to the segment, because the bytes that cannot be read now may be readable
    // later.
    found->sealed = result.is_partial;
    return err;
}

static void examine(struct recovery *recovery, struct segment *segment, bool rebuild)
{
    struct segment_header header;
    struct segment_seal seal;
    enum err err = segment_log_identify(segment, &header, &seal);
    if (err == ERR_FORMAT || err == ERR_CORRUPT) {
        log_warn_condition("segment_refused", "number=%u err=%s", atomic_load(&segment->number),
                           error_name(err));
        segment_log_drop(recovery->log, segment);
        return;
    }
    if (err != ERR_OK) {
        return; // the segment cannot be read now, so its places are misses
    }
    struct segment_found found = {
        .salt = header.salt, .end_offset = recovery->log->segment_size_bytes, .sealed = true};
    recovery->number = header.number;
    recovery->salt = header.salt;
    if (!recovery->was_clean && seal.number == 0 && segment_log_is_recovered(segment)) {
        err = examine_unsealed(recovery, segment, &found);
    } else if (rebuild) {
        err = segment_list(segment, on_row_found, recovery, &recovery->salt);
    }
    if (err == ERR_OK && !segment_log_adopt(recovery->log, segment, &found)) {
        segment_log_drop(recovery->log, segment);
    }
    segment_rows_free(found.rows);
}

static int number_descending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static void examine_all(struct recovery *recovery, bool rebuild)
{
    struct segment_log *log = recovery->log;
    uint32_t *numbers = calloc((size_t)log->table_mask + 1, sizeof(*numbers));
    check(numbers != NULL);
    size_t count = 0;
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        uint32_t number = atomic_load(&log->table[i].number);
        if (number != 0) {
            numbers[count++] = number;
        }
    }
    check(count <= (size_t)log->table_mask + 1);
    qsort(numbers, count, sizeof(*numbers), number_descending);
    for (size_t i = 0; i < count && !recovery_stopping(recovery); i++) {
        struct segment *segment = segment_log_entry(log, numbers[i]);
        if (rebuild) {
            (void)store_fault_strike(STORE_FAULT_REBUILD); // a test may stall the thread here
        }
        if (segment_pin(segment, numbers[i])) {
            if (rebuild || segment_log_is_recovered(segment)) {
                examine(recovery, segment, rebuild);
            }
            segment_unpin(segment);
        }
    }
    free(numbers);
}

// Ends the recovery, unless a rebuild was ordered in the meantime.
static void recovery_ends(struct recovery *recovery)
{
    pthread_mutex_lock(&recovery->guarded.lock);
    if (!recovery->guarded.rebuild_wanted) {
        index_memory_recovering(&recovery->index->memory, false);
        atomic_store(&recovery->is_rebuilding, false);
    }
    pthread_mutex_unlock(&recovery->guarded.lock);
}

static void rebuild_ended(struct recovery *recovery)
{
    uint64_t now_us = disk_real_us();
    bool calm = recovery->rebuilt_us == 0 || now_us - recovery->rebuilt_us > REBUILD_CALM_US;
    recovery->pauses = calm ? 0 : (unsigned)min_u64(recovery->pauses + 1, REBUILD_PAUSES_MAX);
    check(recovery->pauses <= REBUILD_PAUSES_MAX && now_us > 0);
    recovery->rebuilt_us = now_us;
}

static void rebuild_all(struct recovery *recovery)
{
    check(atomic_load(&recovery->is_rebuilding)); // it stays true until recovery_ends()
    check(atomic_load(&recovery->index->memory.recovering));
    log_info("index_rebuild_begun", "segments=%u", atomic_load(&recovery->log->segment_count));
    stats_add(COUNTER_index_rebuilds, 1);
    examine_all(recovery, true);
    (void)index_writer_flush(recovery->index->writer); // if a change failed, its run is a miss
    recovery_ends(recovery);
    rebuild_ended(recovery);
    log_info("index_rebuild_done", "objects=%lu blocks=%lu", atomic_load(&recovery->index->objects),
             atomic_load(&recovery->index->blocks));
}

// Returns the time of the thread's next action.
static uint64_t due_us_locked(struct recovery *recovery)
{
    if (recovery->guarded.rebuild_wanted) {
        bool first = recovery->rebuilt_us == 0;
        return first ? 0 : recovery->rebuilt_us + ((uint64_t)REBUILD_PAUSE_US << recovery->pauses);
    }
    // An ordered round begins after the current round.
    if (recovery->guarded.round_wanted && recovery->roll.env_id == 0) {
        recovery->guarded.round_wanted = false;
        recovery->roll_due_us = 0;
    }
    return recovery->roll_due_us;
}

// Returns true if the next action is due. Otherwise waits until then, or until a rebuild or a round
// is ordered, and returns false.
static bool recovery_wait_locked(struct recovery *recovery)
{
    uint64_t due_us = due_us_locked(recovery);
    if (disk_real_us() >= due_us) {
        return true;
    }
    struct timespec until = disk_timespec_of_us(due_us);
    // The caller checks again in any case, so the result does not matter.
    (void)pthread_cond_timedwait(&recovery->guarded.wake, &recovery->guarded.lock, &until);
    return false;
}

static void roll_on(struct recovery *recovery)
{
    if (index_roll_slice(&recovery->roll, recovery->index)) {
        recovery_rests(recovery);
    } else {
        recovery->roll_due_us = disk_real_us() + INDEX_ROLL_PAUSE_MS * 1000ull;
    }
}

static bool take_rebuild_locked(struct recovery *recovery)
{
    bool wanted = recovery->guarded.rebuild_wanted;
    recovery->guarded.rebuild_wanted = false;
    return wanted;
}

static void *recovery_main(void *ctx)
{
    struct recovery *recovery = ctx;
    check(!atomic_load(&recovery->log->examined));
    thread_begin("store-recovery", THREAD_BEHIND);
    examine_all(recovery, false);
    segment_log_set_examined(recovery->log);
    if (!recovery->was_clean) {
        (void)index_writer_flush(recovery->index->writer); // if a change failed, its run is a miss
    }
    recovery_ends(recovery);
    pthread_mutex_lock(&recovery->guarded.lock);
    while (!disk_thread_stops(&recovery->guarded.thread)) {
        if (!recovery_wait_locked(recovery)) {
            continue;
        }
        bool rebuild = take_rebuild_locked(recovery);
        pthread_mutex_unlock(&recovery->guarded.lock);
        if (rebuild) {
            rebuild_all(recovery);
        } else {
            roll_on(recovery);
        }
        pthread_mutex_lock(&recovery->guarded.lock);
    }
    pthread_mutex_unlock(&recovery->guarded.lock);
    return NULL;
}

void recovery_start(struct recovery *recovery)
{
    index_memory_recovering(&recovery->index->memory, true);
    disk_thread_start(&recovery->guarded.thread, &recovery->disk->spares, recovery_main, recovery);
}

void recovery_stop(struct recovery *recovery)
{
    disk_thread_stop(&recovery->guarded.thread, &recovery->guarded.lock, &recovery->guarded.wake);
}

void recovery_done(struct recovery *recovery)
{
    check(pthread_mutex_destroy(&recovery->guarded.lock) == 0);
    pthread_cond_destroy(&recovery->guarded.wake);
}
