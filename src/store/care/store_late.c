// SPDX-License-Identifier: Apache-2.0
// If the file system is full at the start, the cache directory cannot be used: there is no room for
// its index, or even for `format`. Nothing is stored then, and the thread of this file looks for
// room each second. When there is enough for the smallest cache above cache.min_free, it opens the
// directory. If that fails, it retries after 5 s, then 10 s and so on up to a minute.
//
// The cache begins empty, whatever is in the directory. An existing index may be missing writes
// that were proxied meanwhile. So no cached byte can be older than this moment. A write in progress
// is handled by its key's home, as always. (A full disk with a used cache does not get here: at the
// start its oldest segments make room, store_fit.c.)
//
// The process keeps its state and writes it to the new `format`: hash key, epochs, doubts, numbers
// of holders, and generations. Writes that began without a note in `format` may be in progress. So
// all buckets are noted until no write is. Limits, rules and pins are the current ones: a directory
// prepared with segments too small for a block of a newer rule is prepared again.
// `attached` is set under the lock of `format`, once everything works. A thread that saw it unset
// works without a store. A thread that waits for the lock to disown the index (store_unattached.c)
// then finds that there is none to disown.
#include "store/care/store_late.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/retention/retention.h"
#include "store/segment/segment_files.h"
#include "store/store_private.h"

#define LOOK_US 1000000u
#define PAUSE_US_MIN 5000000u
#define PAUSE_US_MAX 60000000u
#define WHY_MAX 4000u
#define LATE_INODES 16u // for folders, `format`, index and the first segments

// Returns the bytes missing on the file system of the directory, or of its nearest existing parent.
static uint64_t late_missing(const struct store *store)
{
    struct statvfs st;
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s", store->late.options.dir);
    while (statvfs(path, &st) != 0) { // one component less each time, down to `/` or `.`
        char *slash = strrchr(path, '/');
        if (errno != ENOENT || path[1] == '\0') {
            return STORE_SIZE_MIN;
        }
        path[0] = slash == NULL ? '.' : path[0];
        path[slash == NULL || slash == path ? 1 : slash - path] = '\0';
    }
    uint64_t free_bytes = (uint64_t)st.f_bavail * st.f_frsize;
    uint64_t least =
        (uint64_t)st.f_blocks * st.f_frsize / 100 * atomic_load(&store->disk.min_free_percent);
    bool has_inodes = st.f_files == 0 || st.f_favail >= LATE_INODES;
    uint64_t wanted = least + STORE_SIZE_MIN;
    return wanted > free_bytes ? wanted - free_bytes : has_inodes ? 0 : 1;
}

// Removes the directory's content and writes this process's state to `format`. Under the lock of
// `format`.
static enum err late_take_over(struct store *store, struct store_dir *found)
{
    struct store_dir *dir = &store->disk.dir;
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

// Applies the settings that were changed meanwhile. Later changes find the store attached. Returns
// false if the segments are too small for the blocks that are allowed now.
static bool late_take_settings(struct store *store)
{
    struct store_late *late = &store->late;
    pthread_mutex_lock(&late->guarded.lock);
    struct store_limits limits = store_size_limits(store);
    bool suits = limits.block_size_bytes_max <= store->log.segment_size_bytes / 2;
    if (suits) {
        scrub_set_rate(&store->scrub, limits.scrub_bytes_per_s); // nothing is stored yet
        retention_set_groups(&store->retention, late->guarded.groups, late->guarded.group_count);
        retention_set_group_of(&store->retention, late->guarded.group_of, late->guarded.group_ctx);
        disk_tell_trouble(&store->disk, false); // nobody can report trouble yet
        disk_set_attached(&store->disk);
    }
    pthread_mutex_unlock(&late->guarded.lock);
    return suits;
}

static enum err late_attach_locked(struct store *store, struct buf *why)
{
    store_dir_leave(&store->disk.dir); // its own locks would keep us out
    struct store_dir found;
    store->late.options.block_size_bytes_max = store_size_limits(store).block_size_bytes_max;
    enum err err = store_dir_open(&found, store->late.options.dir, why);
    if (err == ERR_OK) {
        err = late_take_over(store, &found);
        err = err == ERR_OK ? store->late.host.begin(store, &store->late.options, 0, why) : err;
    }
    store_dir_close(&found);
    if (err == ERR_OK) {
        (void)disk_io_probe_residency(store->disk.dir.path); // not possible earlier
        state_pins_set_unread(&store->pins);
        err = late_take_settings(store) ? ERR_OK : ERR_AGAIN;
    }
    if (err != ERR_OK) {
        store->late.host.give_up(store);
    }
    return err;
}

static bool late_attach(struct store *store)
{
    struct buf why;
    buf_init(&why, WHY_MAX);
    pthread_mutex_lock(&store->disk.dir.format_lock);
    enum err err = late_attach_locked(store, &why);
    pthread_mutex_unlock(&store->disk.dir.format_lock);
    if (err == ERR_OK) {
        store->late.host.begin_threads(store);
        log_info("cache_usable", "dir=%s capacity_bytes=%llu",
                 log_quote(span_from_cstr(store->disk.dir.path)),
                 (unsigned long long)atomic_load(&store->disk.capacity_bytes));
    } else {
        log_warn("cache_still_unusable", "err=%s text=%s", error_name(err),
                 log_quote(buf_span(&why)));
    }
    buf_done(&why);
    return err == ERR_OK;
}

// Returns false if the thread must stop.
static bool late_wait(struct store_late *late, uint64_t us)
{
    struct timespec until = disk_timespec_of_us(disk_real_us() + us);
    int rc = 0;
    pthread_mutex_lock(&late->guarded.lock);
    while (!late->guarded.stop && rc == 0) {
        rc = pthread_cond_timedwait(&late->guarded.wake, &late->guarded.lock, &until);
    }
    bool goes_on = !late->guarded.stop;
    pthread_mutex_unlock(&late->guarded.lock);
    return goes_on;
}

static void *late_main(void *ctx)
{
    struct store *store = ctx;
    thread_begin("store-late", THREAD_HELPS); // the store's threads inherit from it
    uint64_t wait_us = LOOK_US, pause_us = PAUSE_US_MIN;
    while (late_wait(&store->late, wait_us)) {
        uint64_t missing = late_missing(store);
        disk_room_wait(&store->disk, missing);
        wait_us = LOOK_US;
        if (missing == 0 && late_attach(store)) {
            break;
        }
        if (missing == 0) {
            wait_us = pause_us;
            pause_us = min_u64(2ull * pause_us, PAUSE_US_MAX);
        }
    }
    return NULL;
}

// --- settings changed meanwhile ------------------------------------------------------------------

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
    if (is_late && group_count > 0) {
        memcpy(late->guarded.groups, groups, group_count * sizeof(*groups));
    }
    late->guarded.group_count = is_late ? group_count : 0;
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
    late->host = *host;
    check(pthread_mutex_init(&late->guarded.lock, NULL) == 0);
    clock_cond_init(&late->guarded.wake);
}

void store_late_done(struct store_late *late)
{
    check(!late->runs);
    free((char *)(uintptr_t)late->options.dir);
    check(pthread_cond_destroy(&late->guarded.wake) == 0);
    check(pthread_mutex_destroy(&late->guarded.lock) == 0);
}

void store_late_start(struct store *store, const struct store_options *options)
{
    struct store_late *late = &store->late;
    late->options = *options;
    late->options.dir = strdup(options->dir);
    check(late->options.dir != NULL);
    late->options.holders = NULL;
    late->options.groups = NULL;
    late->options.holder_count = late->options.group_count = 0;
    (void)store_late_groups(store, options->groups, options->group_count);
    disk_room_wait(&store->disk, late_missing(store));
    check(pthread_create(&late->thread, NULL, late_main, store) == 0);
    late->runs = true;
}

void store_late_stop(struct store *store)
{
    struct store_late *late = &store->late;
    if (!late->runs) {
        return;
    }
    pthread_mutex_lock(&late->guarded.lock);
    late->guarded.stop = true;
    pthread_cond_signal(&late->guarded.wake);
    pthread_mutex_unlock(&late->guarded.lock);
    check(pthread_join(late->thread, NULL) == 0);
    late->runs = false;
}
