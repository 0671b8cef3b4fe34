// SPDX-License-Identifier: Apache-2.0
// The supply thread keeps spare segments ready, so that no worker ever creates, lists or unlinks a
// file. When there is no space for a spare segment, it picks a segment to evict, and the freeing
// thread (segment_free.c) removes it. The number of segments that are being evicted at a time is
// the number of missing spare segments.
//
// The supply thread reserves space before it creates a file. The file's space becomes free when its
// descriptor is closed. This may be long after the unlink, because slow readers keep their pins.
// When readers hold a quarter of all segments in this way, only segments without readers are
// picked. So slow readers cannot stop the replacement of the other segments.
#include "store/segment/segment_supply.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_free.h"
#include "store/segment/segment_list.h"
#include "store/segment/segment_log.h"

#define TICK_MS 1000u // interval at which the thread checks the directory and the free space
// Least number of spare segments while the cache is far from full. Small segments need more.
#define SPARE_AMPLE 4u
#define SPARE_SEGMENTS_MIN 32u // a cache with fewer segments keeps only one or two spare segments
#define SPARE_LONG 3u          // additional spare segments for long runs
#define SPARE_AHEAD_BYTES (128u << 20)
#define SPARE_AHEAD_MAX 32u
#define START_SEGMENTS_MAX 4u // spare segments created before the start is complete, at most
#define NUMBERS_AHEAD 4096u   // segment numbers reserved by one write of `format`
// If this many segments have room, the next one needs no eviction.
#define ROOM_SEGMENTS_MIN 2u
#define MAKE_TRIES_MAX 1000u // attempts to create a file, in case names exist already

// --- creating

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
    check(next >= log->guarded.next_number && number < next);
    log->guarded.next_number = next;
    bool promised = next < log->guarded.number_limit;
    pthread_mutex_unlock(&log->guarded.lock);
    if (!promised && number != 0) {
        struct store_dir *dir = &log->disk->dir;
        uint32_t limit = number <= UINT32_MAX - NUMBERS_AHEAD ? number + NUMBERS_AHEAD : UINT32_MAX;
        check(limit > number);
        pthread_mutex_lock(&dir->format_lock);
        dir->format.next_segment = limit;
        enum err err = store_dir_write_format(dir);
        int failed = dir->failed_errno;
        pthread_mutex_unlock(&dir->format_lock);
        if (err == ERR_DISK_FULL) {
            return 0;
        }
        if (err != ERR_OK) {
            disk_filling_off(log->disk, "format", failed);
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
    memcpy(header.cache_id, log->disk->dir.format.cache_id, CACHE_ID_LEN);
    char sector[SECTOR_SIZE];
    segment_header_encode(&header, sector);
    ssize_t written = pwrite(fd, sector, sizeof(sector), 0);
    return written == (ssize_t)sizeof(sector) ? 0 : written < 0 ? errno : ENOSPC;
}

// Creates the file. Returns 0 or an errno value; EEXIST if the name is taken.
static int segment_make_file(const struct segment_log *log, uint32_t number, uint64_t salt,
                             int *ret_fd)
{
    char name[SEGMENT_NAME_LEN];
    segment_name(number, name);
    int folder = log->disk->dir.segments_fd;
    check(number != 0 && folder >= 0);
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
        (void)close(fd); // the file is removed anyway
        (void)unlinkat(folder, name, 0);
        return failed;
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); // only a hint, so it may fail
    *ret_fd = fd;
    return 0;
}

// Returns true if disk and descriptors allow a new segment now.
static bool supply_works(const struct segment_log *log)
{
    return disk_is_filling(log->disk) && disk_shortage(log->disk) == ERR_OK;
}

// Releases the space reserved for a segment that could not be created, and records why.
static void supply_failed(struct segment_log *log, int errno_value)
{
    check(errno_value > 0);
    struct store_disk *disk = log->disk;
    disk_space_give(disk, log->segment_cost_bytes);
    if (errno_value == ENOSPC || errno_value == EDQUOT) {
        disk_room_refused(disk);
    } else {
        bool is_short = errno_value == EMFILE || errno_value == ENFILE;
        disk_set_make_err(disk, is_short ? ERR_DESCRIPTORS : ERR_IO);
        disk_filling_off(disk, "segment", errno_value);
    }
}

// Creates a spare segment. Returns false if there is no space or an operation failed.
static bool supply_make(struct segment_log *log)
{
    struct store_disk *disk = log->disk;
    if (!disk_space_reserve(disk, log->segment_cost_bytes, disk->segment_limit_bytes)) {
        return false;
    }
    uint64_t salt = random_u64();
    int fd = -1;
    int failed = EEXIST;
    uint32_t number = 0;
    bool again = true;
    disk_call_begins(disk, DISK_CALL_SEGMENT);
    for (unsigned i = 0; i < MAKE_TRIES_MAX && again; i++) {
        number = number_take(log);
        failed = number == 0 ? ENOSPC : segment_make_file(log, number, salt, &fd);
        again = failed == EEXIST ||
                ((failed == EMFILE || failed == ENFILE) && segment_pool_yield(&log->pool));
    }
    disk_call_ends(disk, DISK_CALL_SEGMENT);
    if (failed != 0) {
        supply_failed(log, failed);
        return false;
    }
    disk_set_make_err(disk, ERR_OK);
    check(fd >= 0 && number != 0);
    check(atomic_load(&disk->used_bytes) >= log->segment_cost_bytes);
    disk_room_granted(disk);
    struct segment *segment = segment_log_entry(log, number);
    segment_pool_adopt(&log->pool, segment, fd);
    log->host.begin(log->host.ctx, segment, number);
    pthread_mutex_lock(&log->guarded.lock);
    // Hold rows_guard until the rows are set, because a thread that finds the segment must also
    // find its rows.
    pthread_mutex_lock(&log->rows_guard);
    segment_enter(log, number, SEGMENT_SPARE);
    segment->salt = salt;
    segment->rows = segment_rows_new();
    pthread_mutex_unlock(&log->rows_guard);
    // Put the new segment at the front. Spare segments are taken from the end, so that those that
    // already hold runs are used first.
    check(log->guarded.spare_count < SEGMENT_SPARE_MAX);
    memmove(&log->guarded.spare[1], &log->guarded.spare[0],
            log->guarded.spare_count * sizeof(log->guarded.spare[0]));
    log->guarded.spare[0] = segment;
    log->guarded.spare_count++;
    atomic_store(&log->room, log->guarded.spare_count);
    pthread_mutex_unlock(&log->guarded.lock);
    atomic_fetch_add(&log->made, 1);
    // Before the index writer commits a place in the new segment, it syncs the folder.
    atomic_store(&log->names_unsynced, true);
    return true;
}

// --- slots

// Seals the slot's current segment and leaves the slot without one.
static void slot_retire(struct segment_log *log, unsigned at)
{
    check(at < log->slot_max + SEGMENT_SLOTS_APART);
    struct segment_slot *slot = &log->slots[at];
    pthread_mutex_lock(&slot->guarded.lock);
    pthread_mutex_lock(&log->guarded.lock);
    struct segment *segment = slot->guarded.current;
    if (segment != NULL && segment->state == SEGMENT_OPEN) {
        segment_enter_state(segment, SEGMENT_SEALED);
    }
    slot->guarded.current = NULL;
    pthread_mutex_unlock(&log->guarded.lock);
    pthread_mutex_unlock(&slot->guarded.lock);
}

// Retires the workers' slots from `first` on. Of SEGMENT_SLOTS_APART, retires those for which the
// cache has too few segments, or all if `first` is 0.
static void slots_retire(struct segment_log *log, unsigned first)
{
    check(first <= log->slot_max);
    static const unsigned segments_min[SEGMENT_SLOTS_APART] = {
        [SEGMENT_SLOT_SURVIVORS] = SEGMENT_REWRITE_SEGMENTS_MIN,
        [SEGMENT_SLOT_PROBATION] = SEGMENT_PROBATION_SEGMENTS_MIN,
    };
    for (unsigned i = first; i < log->slot_max; i++) {
        slot_retire(log, i);
    }
    for (unsigned i = 0; i < SEGMENT_SLOTS_APART; i++) {
        if (first == 0 || atomic_load(&log->segments_max) < segments_min[i]) {
            slot_retire(log, log->slot_max + i);
        }
    }
}

// --- picking a segment to evict

struct picking {
    struct segment_log *log;
    bool idle_only;
};

static bool supply_may_go(void *ctx, uint32_t number)
{
    struct picking *picking = ctx;
    struct segment_log *log = picking->log;
    struct segment *segment = segment_log_entry(log, number);
    pthread_mutex_lock(&log->guarded.lock);
    bool idle = (atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) == 0;
    bool may = segment->state == SEGMENT_SEALED && atomic_load(&segment->number) == number &&
               atomic_load(&segment->holds) == 0 && (idle || !picking->idle_only);
    pthread_mutex_unlock(&log->guarded.lock);
    return may;
}

// Returns how many segments may be DYING before only segments without readers are picked.
static unsigned dying_most(const struct segment_log *log)
{
    return (unsigned)max_u64(2, atomic_load(&log->segments_max) / 4);
}

bool segment_supply_waits_for_readers(struct segment_log *log)
{
    pthread_mutex_lock(&log->guarded.lock);
    check(log->guarded.doomed_count <= log->guarded.dying_count);
    unsigned held = log->guarded.dying_count - log->guarded.doomed_count;
    pthread_mutex_unlock(&log->guarded.lock);
    return held + 1 >= dying_most(log);
}

// Picks a segment to evict. Returns false if there is none. `may_rewrite`: no thread waits for the
// space, so survivors may be rewritten first. Pinned survivors may be rewritten even without it.
static bool supply_evict_one(struct segment_log *log, bool may_rewrite)
{
    struct picking picking = {.log = log};
    if (!atomic_load(&log->examined)) {
        return false; // evict nothing yet, because recovery may still find segments that have room
    }
    unsigned max = dying_most(log);
    pthread_mutex_lock(&log->guarded.lock);
    check(log->guarded.doomed_count <= log->guarded.dying_count);
    unsigned dying = log->guarded.dying_count;
    pthread_mutex_unlock(&log->guarded.lock);
    if (dying >= 2 * max) {
        return false;
    }
    picking.idle_only = dying + 1 >= max;
    uint32_t number = 0;
    enum segment_pick pick =
        log->host.pick(log->host.ctx, supply_may_go, &picking, may_rewrite, &number);
    check(pick != SEGMENT_PICK_GOES || number != 0);
    if (log->host.probation_ended(log->host.ctx)) {
        slot_retire(log, log->slot_max + SEGMENT_SLOT_PROBATION);
    }
    if (pick == SEGMENT_PICK_GOES) {
        segment_free_doom_full(log, segment_log_entry(log, number));
    }
    return pick != SEGMENT_PICK_NONE;
}

// Starts to remove a spare segment; with `only_empty`, only one without runs. Returns false if
// there is none.
static bool supply_take_spare(struct segment_log *log, bool only_empty)
{
    bool taken = false;
    pthread_mutex_lock(&log->guarded.lock);
    for (unsigned i = 0; i < log->guarded.spare_count && !taken; i++) {
        struct segment *segment = log->guarded.spare[i];
        check(segment->state == SEGMENT_SPARE);
        bool empty = segment->run_count == 0;
        if (atomic_load(&segment->holds) == 0 && (empty || !only_empty)) {
            segment_free_doom_locked(log, segment, empty);
            taken = true;
        }
    }
    pthread_mutex_unlock(&log->guarded.lock);
    return taken;
}

// Removes one segment to return its space. Tries an empty spare segment first, then the policy's
// pick, then any spare segment. With `all`, which is set when other programs need the space, seals
// and evicts segments that are being written, too. Returns false if there is nothing to remove.
static bool supply_give_back(struct segment_log *log, bool all)
{
    if (!atomic_load(&log->examined)) {
        return false;
    }
    bool given = supply_take_spare(log, true) || supply_evict_one(log, false) ||
                 supply_take_spare(log, false);
    if (!given && all) {
        slots_retire(log, 0);
        given = supply_evict_one(log, false);
    }
    stats_add(COUNTER_segments_given_back, given);
    return given;
}

// --- a turn

// Returns the bytes that may be allocated without an eviction. cache.size and the file system's
// free space, as last measured, limit them.
static uint64_t supply_room(const struct segment_log *log)
{
    uint64_t used = atomic_load(&log->disk->used_bytes);
    uint64_t limit = atomic_load(&log->disk->segment_limit_bytes);
    return used < limit ? min_u64(limit - used, log->disk->room.free_bytes) : 0;
}

// Returns the least number of spare segments while there is ample room: one for each slot, whose
// segment may become full, and some for runs that need their own segment (store_long.c).
static uint64_t supply_least(const struct segment_log *log)
{
    return max_u64(SPARE_AMPLE, log->slot_count + SPARE_LONG);
}

static bool supply_is_ample(const struct segment_log *log)
{
    uint64_t least = supply_least(log);
    return supply_room(log) >= 2 * least * log->segment_cost_bytes;
}

unsigned segment_supply_spares(uint64_t segments, unsigned slots, bool has_survivors,
                               bool has_long_runs)
{
    if (segments < SPARE_SEGMENTS_MIN) {
        return segments < SEGMENT_REWRITE_SEGMENTS_MIN ? 1 : 2;
    }
    // One for each slot, whose segment may become full, one for survivors, and two because creating
    // the next ones takes time.
    unsigned spares = slots + 2 + has_survivors + (has_long_runs ? SPARE_LONG : 0);
    check(spares <= SEGMENT_SPARE_MAX);
    return spares;
}

// Returns the number of spare segments to keep. A run that begins while there is none is not
// stored. So there must be enough for a burst, even if this thread is scheduled late.
static unsigned supply_spare_wanted(const struct segment_log *log, bool *ret_ample)
{
    uint64_t cost = log->segment_cost_bytes;
    uint64_t least = supply_least(log);
    uint64_t ahead = min_u64(SPARE_AHEAD_MAX, SPARE_AHEAD_BYTES / log->segment_size_bytes);
    if (!atomic_load(&log->examined)) {
        *ret_ample = false;
        return supply_is_ample(log) ? log->slot_count : 1;
    }
    *ret_ample = supply_is_ample(log);
    if (supply_room(log) >= 2 * max_u64(least, ahead) * cost) {
        return (unsigned)max_u64(least, ahead);
    }
    if (*ret_ample) {
        return (unsigned)least;
    }
    // The file system may have room for fewer segments than cache.size allows.
    uint64_t most = atomic_load(&log->segment_count) + log->disk->room.free_bytes / cost;
    return segment_supply_spares(min_u64(most, log->segments_max), log->slot_count,
                                 log->host.has_survivors(log->host.ctx),
                                 log->host.has_long_runs(log->host.ctx));
}

// Creates segments while there is space, and picks segments to evict when there is none. Each round
// creates or picks one. The freeing thread wakes this thread when it has removed a segment.
static void supply_make_room(struct segment_log *log, bool evict)
{
    struct store_disk *disk = log->disk;
    for (unsigned round = 0; round < SEGMENT_TABLE_MAX; round++) {
        pthread_mutex_lock(&log->guarded.lock);
        check(log->guarded.supply.phase != DISK_THREAD_NEW);
        unsigned spare = log->guarded.spare_count;
        uint64_t going_bytes = log->guarded.doomed_count * log->segment_cost_bytes;
        unsigned going = log->guarded.doomed_count + log->host.rewrites(log->host.ctx);
        bool stop = disk_thread_stops(&log->guarded.supply);
        pthread_mutex_unlock(&log->guarded.lock);
        enum disk_room_answer room = disk_room_look(disk, log->segment_cost_bytes, going_bytes);
        bool gives = room == DISK_ROOM_BELOW || disk_excess(disk) > going_bytes;
        bool over = atomic_load(&disk->used_bytes) > disk->segment_limit_bytes && spare == 0;
        evict = evict && disk_room_gives(disk);
        bool ample;
        unsigned wanted = supply_spare_wanted(log, &ample);
        if (ample ||
            (spare >= wanted && supply_room(log) >= ROOM_SEGMENTS_MIN * log->segment_cost_bytes)) {
            // Tell the host that the next segment needs no eviction.
            log->host.has_room(log->host.ctx);
        }
        bool picked = false;
        bool gone = false; // a segment was evicted for the index or for the next segment
        if (stop) {
            return;
        }
        if (gives) {
            picked = going < DISK_GOING_MAX && supply_give_back(log, room == DISK_ROOM_BELOW);
        } else if (evict || over) {
            // The index repeats its request until it has room, so one eviction at a time is enough.
            picked = going < (evict ? 1 : DISK_GOING_MAX) && supply_evict_one(log, false);
            gone = picked && evict;
            evict = false;
        } else if (spare >= wanted) {
            atomic_store(&log->no_room, false);
            return;
        } else if (room == DISK_ROOM_AMPLE && supply_works(log) && supply_make(log)) {
            continue;
        } else if (room != DISK_ROOM_LATER && !disk_room_refuses(disk) && (spare == 0 || !ample) &&
                   spare + going < wanted) {
            gone = picked = supply_works(log) && supply_evict_one(log, spare > 0);
        }
        if (gone) {
            disk_room_given(disk);
        }
        if (!picked) {
            bool is_stuck = spare == 0 && going == 0 && atomic_load(&log->examined) &&
                            disk_shortage(log->disk) == ERR_OK;
            atomic_store(&log->no_room, is_stuck);
            return;
        }
    }
}

static void *supply_main(void *ctx)
{
    struct segment_log *log = ctx;
    thread_begin("store-supply", THREAD_HELPS);
    pthread_mutex_lock(&log->guarded.lock);
    while (!disk_thread_stops(&log->guarded.supply)) {
        bool evict = log->guarded.wish == SEGMENT_WISH_EVICT;
        log->guarded.wish = SEGMENT_WISH_NOTHING;
        pthread_mutex_unlock(&log->guarded.lock);
        log->host.turn(log->host.ctx);
        disk_look_at_directory(log->disk);
        slots_retire(log, log->slot_count);
        supply_make_room(log, evict);
        struct timespec until = disk_timespec_of_us(disk_real_us() + TICK_MS * 1000);
        pthread_mutex_lock(&log->guarded.lock);
        while (!disk_thread_stops(&log->guarded.supply) &&
               log->guarded.wish == SEGMENT_WISH_NOTHING &&
               pthread_cond_timedwait(&log->guarded.wake, &log->guarded.lock, &until) == 0) {
        }
    }
    check(log->guarded.supply.phase == DISK_THREAD_STOPS);
    pthread_mutex_unlock(&log->guarded.lock);
    return NULL;
}

void segment_supply_start(struct segment_log *log)
{
    // Create segments for the slots, so that the first runs find room before the thread is
    // scheduled.
    for (unsigned i = 0; i < min_u64(log->slot_count, START_SEGMENTS_MAX); i++) {
        if (log->guarded.spare_count > i || !supply_works(log) ||
            disk_room_look(log->disk, log->segment_cost_bytes, 0) != DISK_ROOM_AMPLE ||
            (i > 0 && !supply_is_ample(log))) {
            continue;
        }
        (void)supply_make(log); // if this fails, the supply thread tries again
    }
    disk_thread_start(&log->guarded.supply, &log->disk->spares, supply_main, log);
}

void segment_supply_stop(struct segment_log *log)
{
    if (log->guarded.supply.phase == DISK_THREAD_NEW) {
        return; // if the log was never opened, its lock does not exist
    }
    disk_thread_stop(&log->guarded.supply, &log->guarded.lock, &log->guarded.wake);
}

// Records what the next process needs to continue writing the segment. Returns false if the next
// process must not continue it, because its table could not be saved.
static bool segment_leave(struct segment *segment, struct store_append *ret_append)
{
    // A segment that has given unused bytes back to the file system is never written again.
    check(segment->given_bytes == 0);
    check(segment->append_offset >= SEGMENT_DATA_OFFSET);
    check(segment->append_offset <= segment->log->segment_size_bytes);
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
    check(log->guarded.supply.phase == DISK_THREAD_NEW ||
          log->guarded.supply.phase == DISK_THREAD_ENDED);
    check(log->guarded.freer.phase == DISK_THREAD_NEW ||
          log->guarded.freer.phase == DISK_THREAD_ENDED);
    struct store_format *format = &log->disk->dir.format;
    format->append_count = 0;
    if (log->disk->attached) {
        // No segment has a hold any more, because the index writer has released them and stopped.
        segment_free_seal_all(log);
    }
    for (uint32_t i = 0; log->table != NULL && i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        bool room = segment->state == SEGMENT_SPARE || segment->state == SEGMENT_OPEN;
        if (room && log->disk->attached && format->append_count < STORE_APPEND_MAX &&
            segment_leave(segment, &format->append[format->append_count])) {
            format->append_count++;
        }
        if (segment->state != SEGMENT_FREE) {
            stats_sub(COUNTER_segments, 1);
        }
        segment_free_marks(segment);
        segment_rows_free(segment->rows);
    }
    format->next_segment = log->guarded.next_number;
    segment_pool_done(&log->pool);
    free(log->table);
    log->table = NULL;
    for (unsigned i = 0; i < log->slot_max + SEGMENT_SLOTS_APART; i++) {
        pthread_mutex_destroy(&log->slots[i].guarded.lock);
    }
    free(log->slots);
    log->slots = NULL;
    pthread_mutex_destroy(&log->guarded.lock);
    pthread_mutex_destroy(&log->rows_guard);
    pthread_mutex_destroy(&log->seal_lock);
    pthread_cond_destroy(&log->guarded.wake);
    pthread_cond_destroy(&log->guarded.free_wake);
}
