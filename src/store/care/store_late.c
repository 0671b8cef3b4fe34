// SPDX-License-Identifier: Apache-2.0
// If the file system is full at the start, the cache directory cannot be used: there is no room for
// its index, or even for `format`. The store then holds nothing. The thread of this file tries to
// open the directory every two seconds, until that succeeds or the store closes. After success, the
// store is like any other on a file system that is almost full (disk_room.c).
//
// The cache begins empty, whatever is in the directory. An existing index may be missing writes
// that were proxied while the directory was not attached, so it is removed. So no cached byte is
// older than the moment of attaching. If a write is in progress at that moment, the key's home
// handles it as usual. (A full disk with a used cache does not get here: its oldest segments make
// room at the start, store_fit.c.)
//
// The process keeps its state and writes it to the new `format`: hash key, epochs, doubts, numbers
// of holders, and generations. Writes may be in progress that began without a note in `format`. So
// all buckets are noted as being written to, until no write is in progress.
//
// The thread holds its lock during each attempt, so that limits, rules and pins cannot change
// meanwhile. A call that sets one of them waits for the lock. It then either changes the options of
// the next attempt, or finds the store attached. `attached` is set under the lock of `format`, when
// everything works. A thread that has read it as false works without a store. A thread that waits
// for the lock of `format` to disown the index (store_unattached.c) then finds nothing to disown.
#include "store/care/store_late.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/retention/retention.h"
#include "store/segment/segment_files.h"
#include "store/store_private.h"

#define PAUSE_US 2000000u
#define WHY_MAX 4000u

// Removes the directory's content and writes this process's state to a new `format`. Under the lock
// of `format`.
static enum err late_take_over(struct store *store, struct store_dir *found)
{
    struct store_dir *dir = &store->disk.dir;
    check(dir->fd < 0 && dir->lock_fd < 0 && dir->segments_fd < 0 && dir->index_fd < 0);
    check(found->segments_fd >= 0 && found->index_fd >= 0);
    check(dir->format.hash_key != 0);
    segment_files_wipe(found->segments_fd);
    index_remove_files(found->index_fd);
    if (!found->fresh) {
        log_warn("cache_emptied", "reason=late");
    }
    struct store_format *format = &dir->format;
    uint64_t generation = atomic_load(&store->generation) + STORE_GENERATIONS_AHEAD;
    format->next_generation = max_u64(generation, found->format.next_generation);
    format->next_segment = max_u64(1, max_u64(format->next_segment, found->format.next_segment));
    uint64_t *last_holder = &format->state.others[STATE_HOLDERS].number;
    *last_holder = max_u64(*last_holder, found->format.state.others[STATE_HOLDERS].number);
    format->clean = true;
    format->index_txn = 0;
    format->append_count = 0;
    random_bytes(format->cache_id, CACHE_ID_LEN);
    dir->fd = found->fd;
    dir->lock_fd = found->lock_fd;
    dir->segments_fd = found->segments_fd;
    dir->index_fd = found->index_fd;
    dir->fresh = true;
    dir->failed_errno = 0;
    found->fd = found->lock_fd = found->segments_fd = found->index_fd = -1;
    state_doubts_note_all(&store->doubts);
    return store_dir_write_format(dir);
}

// Opens the directory with the current limits and rules. Under the lock of `format`.
static enum err late_open_locked(struct store *store, struct buf *why)
{
    struct store_late *late = &store->late;
    struct store_limits limits = store_size_limits(store);
    check(!store->disk.attached && late->options.dir != NULL);
    // Otherwise this process's own locks would make store_dir_open() fail.
    store_dir_leave(&store->disk.dir);
    struct store_dir found;
    late->options.block_size_bytes_max = limits.block_size_bytes_max;
    enum err err = store_dir_open(&found, late->options.dir, why);
    if (err == ERR_OK) {
        err = late_take_over(store, &found);
        err = err == ERR_OK ? late->host.begin(store, &late->options, 0, why) : err;
    }
    store_dir_close(&found);
    if (err != ERR_OK) {
        late->host.give_up(store);
        return err;
    }
    check(limits.block_size_bytes_max <= store->log.segment_size_bytes / 2);
    (void)disk_io_probe_residency(store->disk.dir.path); // needs a directory that can be written
    state_pins_set_unread(&store->pins);
    // limits.scrub_bytes_per_s may have changed since the start.
    scrub_set_rate(&store->scrub, limits.scrub_bytes_per_s);
    retention_set_group_of(&store->retention, late->guarded.group_of, late->guarded.group_ctx);
    disk_tell_trouble(&store->disk, false); // no other thread can report trouble yet
    disk_room_wait(&store->disk, 0);
    disk_set_attached(&store->disk);
    return ERR_OK;
}

// Tries once. Returns true if the directory is now attached.
static bool late_attach_locked(struct store *store)
{
    struct buf why;
    buf_init(&why, WHY_MAX);
    pthread_mutex_lock(&store->disk.dir.format_lock);
    enum err err = late_open_locked(store, &why);
    pthread_mutex_unlock(&store->disk.dir.format_lock);
    check(atomic_load(&store->disk.attached) == (err == ERR_OK));
    if (err == ERR_OK) {
        store->late.host.begin_threads(store);
        log_info("cache_usable", "dir=%s capacity_bytes=%llu",
                 log_quote(span_from_cstr(store->disk.dir.path)),
                 (unsigned long long)atomic_load(&store->disk.capacity_bytes));
    } else {
        disk_room_wait(&store->disk, err == ERR_DISK_FULL ? STORE_SIZE_MIN : 0);
        log_warn_condition("cache_still_unusable", "err=%s text=%s", error_name(err),
                           log_quote(buf_span(&why)));
    }
    buf_done(&why);
    return err == ERR_OK;
}

static void *late_main(void *ctx)
{
    struct store *store = ctx;
    struct store_late *late = &store->late;
    thread_begin("store-late", THREAD_HELPS); // threads that it starts inherit this
    pthread_mutex_lock(&late->guarded.lock);
    do {
        struct timespec until = disk_timespec_of_us(disk_real_us() + PAUSE_US);
        while (!disk_thread_stops(&late->guarded.thread) &&
               pthread_cond_timedwait(&late->guarded.wake, &late->guarded.lock, &until) == 0) {
        }
    } while (!disk_thread_stops(&late->guarded.thread) && !late_attach_locked(store));
    pthread_mutex_unlock(&late->guarded.lock);
    return NULL;
}

// --- settings that change before the directory is attached --------------------------------------

bool store_late_limits(struct store *store, const struct store_limits *limits)
{
    struct store_late *late = &store->late;
    pthread_mutex_lock(&late->guarded.lock);
    bool is_late = !store->disk.attached;
    if (is_late) {
        store_size_set_limits(store, limits);
    }
    pthread_mutex_unlock(&late->guarded.lock);
    return is_late;
}

bool store_late_groups(struct store *store, const struct store_group *groups, unsigned group_count)
{
    struct store_late *late = &store->late;
    check(group_count <= STORE_GROUPS_MAX);
    pthread_mutex_lock(&late->guarded.lock);
    bool is_late = !store->disk.attached;
    for (unsigned i = 0; is_late && i < group_count; i++) {
        late->groups[i] = groups[i];
    }
    late->options.group_count = group_count;
    pthread_mutex_unlock(&late->guarded.lock);
    return is_late;
}

bool store_late_group_of(struct store *store, store_group_fn group_of, void *ctx)
{
    struct store_late *late = &store->late;
    pthread_mutex_lock(&late->guarded.lock);
    bool is_late = !store->disk.attached;
    late->guarded.group_of = group_of;
    late->guarded.group_ctx = ctx;
    pthread_mutex_unlock(&late->guarded.lock);
    return is_late;
}

// --- life cycle ----------------------------------------------------------------------------------

void store_late_init(struct store_late *late, const struct store_late_host *host)
{
    check(host->begin != NULL && host->begin_threads != NULL && host->give_up != NULL);
    late->host = *host;
    check(pthread_mutex_init(&late->guarded.lock, NULL) == 0);
    clock_cond_init(&late->guarded.wake);
}

void store_late_done(struct store_late *late)
{
    check(late->guarded.thread.phase == DISK_THREAD_NEW ||
          late->guarded.thread.phase == DISK_THREAD_ENDED);
    free((char *)(uintptr_t)late->options.dir);
    check(pthread_cond_destroy(&late->guarded.wake) == 0);
    check(pthread_mutex_destroy(&late->guarded.lock) == 0);
}

void store_late_start(struct store *store, const struct store_options *options)
{
    struct store_late *late = &store->late;
    check(!store->disk.attached);
    late->options = *options;
    late->options.dir = strdup(options->dir);
    check(late->options.dir != NULL);
    late->options.holders = NULL; // `format` already has their numbers
    late->options.holder_count = 0;
    late->options.groups = late->groups;
    (void)store_late_groups(store, options->groups, options->group_count);
    disk_room_wait(&store->disk, STORE_SIZE_MIN);
    disk_thread_start(&late->guarded.thread, late_main, store);
}

void store_late_stop(struct store *store)
{
    struct store_late *late = &store->late;
    disk_thread_stop(&late->guarded.thread, &late->guarded.lock, &late->guarded.wake);
}
