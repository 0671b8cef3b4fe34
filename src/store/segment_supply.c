// SPDX-License-Identifier: Apache-2.0
// The supply thread: one thread that keeps spare segments ready and frees segments when there is no
// room for new ones, so that no worker ever makes, lists or unlinks a file.
//
// Space is reserved before a file is made and given back after its last descriptor is closed, which
// may be long after the unlink: slow readers keep their pins. When a quarter of all segments are
// held like that, only segments that nobody reads are picked, so that slow readers cannot stop the
// others from being replaced.
//
// Freeing one: no more pins -> its places leave the index, in batches that are committed -> unlink
// -> at the last unpin, close. A crash in between leaves entries that name a missing segment; they
// are misses and go when met.
#include "store/segment_supply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/segment_list.h"
#include "store/store_private.h"

#define TICK_MS 1000u     // free space is looked at, seals are written
#define FORGET_BATCH 512u // places that leave the index in one commit
#define SPARE_AMPLE 4u    // while the cache is far from full, and more if they are small:
#define SPARE_AHEAD_BYTES (128u << 20)
#define SPARE_AHEAD_MAX 32u
#define START_SEGMENTS_MAX 4u // made before the start is over
#define NUMBERS_AHEAD 4096u   // segment numbers promised by one writing of `format`
#define MAKE_TRIES_MAX 1000u  // names already taken by something else

// --- making

static uint32_t number_take(struct segment_log *log)
{
    uint32_t number = 0;
    pthread_mutex_lock(&log->guarded.lock);
    uint32_t next = log->guarded.next_number;
    for (uint32_t i = 0; i <= log->table_mask && next < UINT32_MAX; i++, next++) {
        if (segment_log_entry(log, next)->state == SEGMENT_FREE) {
            number = next++;
            break;
        }
    }
    log->guarded.next_number = next;
    bool promised = next < log->guarded.number_limit;
    pthread_mutex_unlock(&log->guarded.lock);
    if (!promised && number != 0) {
        struct store_dir *dir = &log->store->dir;
        uint32_t limit = number <= UINT32_MAX - NUMBERS_AHEAD ? number + NUMBERS_AHEAD : UINT32_MAX;
        pthread_mutex_lock(&dir->format_lock);
        dir->format.next_segment = limit;
        enum err err = store_dir_write_format(dir);
        pthread_mutex_unlock(&dir->format_lock);
        if (err != ERR_OK) {
            store_filling_off(log->store, "format", errno);
            return 0;
        }
        pthread_mutex_lock(&log->guarded.lock);
        log->guarded.number_limit = limit;
        pthread_mutex_unlock(&log->guarded.lock);
    }
    return number;
}

static int segment_write_header(int fd, uint32_t number, uint64_t salt,
                                const struct segment_log *log)
{
    struct segment_header header = {
        .number = number,
        .salt = salt,
        .size_bytes = log->segment_size_bytes,
        .created_us = clock_wall_us(),
    };
    memcpy(header.cache_id, log->store->dir.format.cache_id, CACHE_ID_LEN);
    char sector[SECTOR_SIZE];
    segment_header_encode(&header, sector);
    ssize_t written = pwrite(fd, sector, sizeof(sector), 0);
    return written == (ssize_t)sizeof(sector) ? 0 : written < 0 ? errno : ENOSPC;
}

// Makes the file; errno value, EEXIST when the name is taken.
static int segment_make_file(const struct segment_log *log, uint32_t number, uint64_t salt,
                             int *ret_fd)
{
    char name[SEGMENT_NAME_LEN];
    segment_name(number, name);
    int folder = log->store->dir.segments_fd;
    int failed = store_fault_strike(STORE_FAULT_CREATE);
    if (failed != 0) {
        return failed;
    }
    int fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return errno;
    }
    failed = store_fault_strike(STORE_FAULT_ALLOCATE);
    if (failed == 0 && fallocate(fd, 0, 0, log->segment_size_bytes) != 0) {
        failed = errno == EOPNOTSUPP ? 0 : errno;
        if (failed == 0 && ftruncate(fd, log->segment_size_bytes) != 0) {
            failed = errno;
        }
    }
    if (failed == 0) {
        failed = segment_write_header(fd, number, salt, log);
    }
    if (failed != 0) {
        (void)close(fd); // it goes anyway
        (void)unlinkat(folder, name, 0);
        return failed;
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); // a hint
    *ret_fd = fd;
    return 0;
}

// A new spare segment; false: no space or no luck.
static bool supply_make(struct segment_log *log)
{
    struct store *store = log->store;
    if (!store_space_reserve(store, log->segment_cost_bytes, store->segment_limit_bytes)) {
        return false;
    }
    uint64_t salt = random_u64();
    int fd = -1;
    int failed = EEXIST;
    uint32_t number = 0;
    bool again = true;
    for (unsigned i = 0; i < MAKE_TRIES_MAX && again; i++) {
        number = number_take(log);
        failed = number == 0 ? ENOSPC : segment_make_file(log, number, salt, &fd);
        again = failed == EEXIST ||
                ((failed == EMFILE || failed == ENFILE) && segment_pool_yield(&log->pool));
    }
    if (failed != 0) {
        store_space_give(store, log->segment_cost_bytes);
        store_filling_off(store, "segment", failed);
        return false;
    }
    struct segment *segment = segment_log_entry(log, number);
    segment_pool_adopt(&log->pool, segment, fd);
    pthread_mutex_lock(&log->guarded.lock);
    segment_enter(segment, number, SEGMENT_SPARE);
    segment->salt = salt;
    segment->rows = segment_rows_new(); // nobody else knows the segment yet
    // In front: segments that already hold something are used first.
    check(log->guarded.spare_count < SEGMENT_SPARE_MAX);
    memmove(&log->guarded.spare[1], &log->guarded.spare[0],
            log->guarded.spare_count * sizeof(log->guarded.spare[0]));
    log->guarded.spare[0] = segment;
    log->guarded.spare_count++;
    atomic_store(&log->room, log->guarded.spare_count);
    pthread_mutex_unlock(&log->guarded.lock);
    (void)fsync(
        store->dir.segments_fd); // the name is only at risk in a power cut, with all it would hold
    return true;
}

// --- freeing

static void doom_locked(struct segment_log *log, struct segment *segment, bool index_forgotten)
{
    check(segment->state != SEGMENT_FREE && segment->state != SEGMENT_DYING);
    if (segment->state == SEGMENT_SPARE) {
        unsigned kept = 0;
        for (unsigned i = 0; i < log->guarded.spare_count; i++) {
            if (log->guarded.spare[i] != segment) {
                log->guarded.spare[kept++] = log->guarded.spare[i];
            }
        }
        log->guarded.spare_count = kept;
        atomic_store(&log->room, kept);
    }
    segment->state = SEGMENT_DYING;
    segment->index_forgotten = index_forgotten;
    segment->next = log->guarded.doomed;
    log->guarded.doomed = segment;
    log->guarded.dying_count++;
    atomic_fetch_or(&segment->pins, SEGMENT_PIN_DYING);
}

static void doom_one(struct segment_log *log, struct segment *segment, bool index_forgotten)
{
    pthread_mutex_lock(&log->guarded.lock);
    if (segment->state != SEGMENT_FREE && segment->state != SEGMENT_DYING) {
        doom_locked(log, segment, index_forgotten);
        segment->is_distrusted = true;
        log->guarded.wanted = true;
        pthread_cond_signal(&log->guarded.wake);
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

// Picks one that can go; false: none.
static bool supply_evict_one(struct segment_log *log)
{
    bool picked = false;
    if (!atomic_load(&log->examined)) {
        return false; // segments with room may be found yet
    }
    pthread_mutex_lock(&log->guarded.lock);
    unsigned max = (unsigned)max_u64(2, log->segments_max / 4);
    uint32_t size = log->table_mask + 1;
    bool idle_only = log->guarded.dying_count + 1 >= max;
    struct policy_candidate *candidates =
        log->guarded.dying_count < 2 * max ? calloc(size, sizeof(*candidates)) : NULL;
    size_t count = 0;
    for (uint32_t i = 0; i < size && candidates != NULL; i++) {
        struct segment *segment = &log->table[i];
        bool idle = (atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) == 0;
        if (segment->state == SEGMENT_SEALED && atomic_load(&segment->holds) == 0 &&
            (idle || !idle_only)) {
            candidates[count++] = (struct policy_candidate){
                .number = atomic_load(&segment->number),
                .last_used_s = atomic_load_explicit(&segment->last_used_s, memory_order_relaxed),
            };
        }
    }
    if (count > 0) {
        size_t victim = policy_victim(&log->store->policy, candidates, count);
        doom_locked(log, segment_log_entry(log, candidates[victim].number), false);
        picked = true;
    }
    pthread_mutex_unlock(&log->guarded.lock);
    free(candidates);
    return picked;
}

struct forgetting {
    struct store *store;
    uint32_t number;
    uint64_t salt;
    unsigned count;
    struct index_removal *removals;
    uint64_t blocks, bytes;
};

static bool forget_flush(struct forgetting *f)
{
    bool ok =
        f->count == 0 || index_writer_remove(&f->store->writer, f->removals, f->count) == ERR_OK;
    f->count = 0;
    return ok;
}

static bool on_row_forgotten(void *ctx, const struct segment_row *row)
{
    struct forgetting *f = ctx;
    struct store_place place = segment_row_place(row, f->number, f->salt);
    f->blocks += place.block_count;
    f->bytes += place.payload_len;
    if (!row->is_bad) { // else it has left the index
        f->removals[f->count++] = (struct index_removal){row->hash, place};
    }
    return f->count < FORGET_BATCH || forget_flush(f);
}

// Its places leave the index. What cannot be listed is swept out by number.
static void supply_forget(struct segment_log *log, struct segment *segment)
{
    struct forgetting f = {.store = log->store,
                           .number = atomic_load(&segment->number),
                           .removals = calloc(FORGET_BATCH, sizeof(struct index_removal))};
    check(f.removals != NULL);
    enum err err = segment_list(segment, on_row_forgotten, &f, &f.salt);
    if (err != ERR_OK || !forget_flush(&f)) {
        index_writer_sweep(&log->store->writer, atomic_load(&segment->number));
    }
    free(f.removals);
    stats_add(COUNTER_evicted_blocks_capacity, f.blocks);
    stats_add(COUNTER_evicted_bytes_capacity, f.bytes);
    log_info("segment_freed", "number=%u blocks=%llu bytes=%llu", atomic_load(&segment->number),
             (unsigned long long)f.blocks, (unsigned long long)f.bytes);
}

static void slots_let_go(struct segment_log *log, const struct segment *segment)
{
    for (unsigned i = 0; i < log->slot_count; i++) {
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
    check(segment->state == SEGMENT_DYING);
    atomic_store(&segment->number, 0);
    segment->state = SEGMENT_FREE;
    log->guarded.dying_count--;
    struct segment_rows *rows = segment->rows; // nobody has a pin any more
    segment->rows = NULL;
    pthread_mutex_unlock(&log->guarded.lock);
    segment_rows_free(rows);
    atomic_fetch_sub(&log->segment_count, 1);
    stats_sub(COUNTER_segments, 1);
    store_space_give(log->store, log->segment_cost_bytes);
}

void segment_supply_close(struct segment *segment)
{
    struct segment_log *log = segment->log;
    pthread_mutex_lock(&log->guarded.lock);
    segment->next = log->guarded.closable;
    log->guarded.closable = segment;
    log->guarded.wanted = true;
    pthread_cond_signal(&log->guarded.wake);
    pthread_mutex_unlock(&log->guarded.lock);
}

static void supply_free_one(struct segment_log *log, struct segment *segment)
{
    slots_let_go(log, segment);
    if (!segment->index_forgotten) {
        supply_forget(log, segment);
        segment->index_forgotten = true;
    }
    // Whoever has a pin may read on, and without a name it cannot be opened any more.
    int fd;
    if ((atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) != 0 &&
        segment_borrow_wait(segment, &fd) == ERR_OK) {
        segment_return(segment);
    }
    char name[SEGMENT_NAME_LEN];
    segment_name(atomic_load(&segment->number), name);
    int failed = store_fault_strike(STORE_FAULT_UNLINK);
    if (failed == 0 && unlinkat(log->store->dir.segments_fd, name, 0) != 0 && errno != ENOENT) {
        failed = errno;
    }
    if (failed != 0) { // it goes on counting; tried again at the next tick
        store_filling_off(log->store, "unlink", failed);
        pthread_mutex_lock(&log->guarded.lock);
        segment->next = log->guarded.doomed;
        log->guarded.doomed = segment;
        pthread_mutex_unlock(&log->guarded.lock);
        return;
    }
    if (segment->is_distrusted) {
        // Or a power cut brings back what must not be found. A disk that refuses this too has been
        // told all that can be told.
        (void)fsync(log->store->dir.segments_fd);
    }
    unsigned before = atomic_fetch_or(&segment->pins, SEGMENT_PIN_UNLINKED);
    if ((before & SEGMENT_PIN_COUNT) == 0) {
        segment_closed(segment);
    }
}

static struct segment *list_take(struct segment_log *log, struct segment **list)
{
    pthread_mutex_lock(&log->guarded.lock);
    struct segment *taken = *list;
    *list = NULL;
    pthread_mutex_unlock(&log->guarded.lock);
    return taken;
}

static void supply_free_all(struct segment_log *log)
{
    struct segment *next;
    for (struct segment *s = list_take(log, &log->guarded.closable); s != NULL; s = next) {
        next = s->next;
        segment_closed(s);
    }
    for (struct segment *s = list_take(log, &log->guarded.doomed); s != NULL; s = next) {
        next = s->next;
        supply_free_one(log, s);
    }
}

// --- a round

// A seal says that no run in there is unknown to the index; so it waits until nothing is held.
static void supply_write_seals(struct segment_log *log)
{
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        pthread_mutex_lock(&log->guarded.lock);
        bool due = segment->state == SEGMENT_SEALED && !segment->seal_written &&
                   atomic_load(&segment->holds) == 0;
        // Once: when it fails a later start only looks through it again.
        segment->seal_written = segment->seal_written || due;
        pthread_mutex_unlock(&log->guarded.lock);
        if (due) {
            segment_list_seal(segment);
        }
    }
}

enum disk_room { DISK_ROOM_AMPLE, DISK_ROOM_NONE, DISK_ROOM_BELOW };

// May a segment be made as far as the file system is concerned?
static enum disk_room supply_disk_room(const struct segment_log *log)
{
    uint64_t free_bytes, size_bytes;
    if (store_dir_space(&log->store->dir, &free_bytes, &size_bytes) != ERR_OK) {
        return DISK_ROOM_NONE;
    }
    uint64_t least = size_bytes / 100 * log->store->min_free_percent;
    if (free_bytes < least) {
        return DISK_ROOM_BELOW;
    }
    return free_bytes - least >= log->segment_cost_bytes ? DISK_ROOM_AMPLE : DISK_ROOM_NONE;
}

static bool supply_is_ample(const struct segment_log *log)
{
    uint64_t least = max_u64(SPARE_AMPLE, log->slot_count);
    return atomic_load(&log->store->used_bytes) + 2 * least * log->segment_cost_bytes <=
           log->store->segment_limit_bytes;
}

// Runs that begin while none is ready are not stored, so a burst has to find enough of them however
// late this thread gets to run.
static unsigned supply_spare_wanted(const struct segment_log *log, bool *ret_ample)
{
    uint64_t used = atomic_load(&log->store->used_bytes);
    uint64_t cost = log->segment_cost_bytes;
    uint64_t limit = log->store->segment_limit_bytes;
    uint64_t least = max_u64(SPARE_AMPLE, log->slot_count);
    uint64_t ahead = min_u64(SPARE_AHEAD_MAX, SPARE_AHEAD_BYTES / log->segment_size_bytes);
    if (!atomic_load(&log->examined)) {
        *ret_ample = false;
        return supply_is_ample(log) ? log->slot_count : 1;
    }
    *ret_ample = supply_is_ample(log);
    if (used + 2 * max_u64(least, ahead) * cost <= limit) {
        return (unsigned)max_u64(least, ahead);
    }
    if (*ret_ample) {
        return (unsigned)least;
    }
    return log->segments_max <= 8 ? 1 : 2;
}

// Makes segments while there is space, frees some when there is none. Each round makes or frees
// one.
static void supply_make_room(struct segment_log *log, bool evict)
{
    struct store *store = log->store;
    for (unsigned round = 0; round < SEGMENT_TABLE_MAX; round++) {
        pthread_mutex_lock(&log->guarded.lock);
        unsigned spare = log->guarded.spare_count;
        bool stop = log->guarded.stop;
        pthread_mutex_unlock(&log->guarded.lock);
        enum disk_room room = supply_disk_room(log);
        bool over = atomic_load(&store->used_bytes) > store->segment_limit_bytes && spare == 0;
        over = over || atomic_load(&store->used_bytes) > store->capacity_bytes;
        bool ample;
        unsigned wanted = supply_spare_wanted(log, &ample);
        bool freed = false;
        if (stop) {
            return;
        }
        if (evict || over || room == DISK_ROOM_BELOW) {
            evict = false;
            freed = supply_evict_one(log);
        } else if (spare >= wanted) {
            atomic_store(&log->no_room, false);
            return;
        } else if (room == DISK_ROOM_AMPLE && store_is_filling(store) && supply_make(log)) {
            continue;
        } else if (spare == 0 || !ample) {
            freed = store_is_filling(store) && supply_evict_one(log);
        }
        supply_free_all(log);
        if (!freed) {
            atomic_store(&log->no_room, spare == 0);
            return;
        }
    }
}

static void *supply_main(void *ctx)
{
    struct segment_log *log = ctx;
    (void)pthread_setname_np(pthread_self(), "store-supply"); // only for people
    pthread_mutex_lock(&log->guarded.lock);
    while (!log->guarded.stop) {
        bool evict = log->guarded.evict_wanted;
        log->guarded.wanted = log->guarded.evict_wanted = false;
        pthread_mutex_unlock(&log->guarded.lock);
        supply_free_all(log);
        supply_make_room(log, evict);
        supply_write_seals(log);
        store_doubts_tick(log->store);
        struct timespec until;
        check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
        until.tv_sec += TICK_MS / 1000;
        pthread_mutex_lock(&log->guarded.lock);
        while (!log->guarded.stop && !log->guarded.wanted &&
               pthread_cond_timedwait(&log->guarded.wake, &log->guarded.lock, &until) == 0) {
        }
    }
    pthread_mutex_unlock(&log->guarded.lock);
    supply_free_all(log);
    return NULL;
}

void segment_supply_start(struct segment_log *log)
{
    // One for each slot, so that the first runs find room before the thread has run at all.
    for (unsigned i = 0; i < min_u64(log->slot_count, START_SEGMENTS_MAX); i++) {
        if (log->guarded.spare_count > i || !store_is_filling(log->store) ||
            supply_disk_room(log) != DISK_ROOM_AMPLE || (i > 0 && !supply_is_ample(log))) {
            continue;
        }
        (void)supply_make(log); // the thread tries again
    }
    check(pthread_create(&log->supply, NULL, supply_main, log) == 0);
    log->supply_runs = true;
}

void segment_supply_stop(struct segment_log *log)
{
    if (!log->supply_runs) {
        return;
    }
    pthread_mutex_lock(&log->guarded.lock);
    log->guarded.stop = true;
    pthread_cond_signal(&log->guarded.wake);
    pthread_mutex_unlock(&log->guarded.lock);
    check(pthread_join(log->supply, NULL) == 0);
    log->supply_runs = false;
}

// What the next process has to know of a segment that it may go on writing to. False: it is not to.
static bool segment_leave(struct segment *segment, struct store_append *ret_append)
{
    *ret_append = (struct store_append){
        .number = atomic_load(&segment->number),
        .offset = segment->append_offset,
        .unit_count = segment->unit_count,
        .run_count = segment->run_count,
    };
    return segment_list_save(segment, &ret_append->row_count, &ret_append->table_id) == ERR_OK;
}

void segment_log_close(struct segment_log *log)
{
    struct store_format *format = &log->store->dir.format;
    format->append_count = 0;
    if (log->store->attached) {
        supply_write_seals(log); // the last holds went with the index writer
    }
    for (uint32_t i = 0; log->table != NULL && i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        bool room = segment->state == SEGMENT_SPARE || segment->state == SEGMENT_OPEN;
        if (room && log->store->attached && format->append_count < STORE_APPEND_MAX &&
            segment_leave(segment, &format->append[format->append_count])) {
            format->append_count++;
        }
        if (segment->state != SEGMENT_FREE) {
            stats_sub(COUNTER_segments, 1);
        }
        free(atomic_load(&segment->verified));
        segment_rows_free(segment->rows);
    }
    format->next_segment = log->guarded.next_number;
    segment_pool_done(&log->pool);
    free(log->table);
    log->table = NULL;
    for (unsigned i = 0; i < log->slot_count; i++) {
        pthread_mutex_destroy(&log->slots[i].guarded.lock);
    }
    free(log->slots);
    log->slots = NULL;
    pthread_mutex_destroy(&log->guarded.lock);
    pthread_mutex_destroy(&log->rows_guard);
    pthread_mutex_destroy(&log->seal_lock);
    pthread_cond_destroy(&log->guarded.wake);
}
