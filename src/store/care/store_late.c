// SPDX-License-Identifier: Apache-2.0
// If the file system is full at the start, the cache directory cannot be used: there is no room for
// its index, or even for `format`. Nothing is stored then, and the thread of this file tries to
// open the directory again every two seconds, until that works or the store closes. From then on
// the store is like any other on a file system that is almost full (disk_room.c).
//
// The cache begins empty, whatever is in the directory. An existing index may be missing writes
// that were proxied while the directory was not attached, so it is removed. So no cached byte is
// older than the moment of attaching. A write in progress is handled by its key's home, as always.
// (A full disk with a used cache does not get here: at the start its oldest segments make room,
// store_fit.c.)
//
// The process keeps its state and writes it to the new `format`: hash key, epochs, doubts, numbers
// of holders, and generations. Writes that began without a note in `format` may be in progress. So
// all buckets are noted until no write is.
//
// A hung disk may make an attempt last. So the thread holds none of the locks that a reload or the
// admin port needs while it waits for the disk. It copies the settings (limits, groups) first. If
// one of them changes during the attempt, the attempt fails, and the next one follows at once.
//
// The late thread sets `attached` once everything works. It then holds two locks. It holds
// format_lock, because all changes of the state until then must be in the `format` that was just
// written, and later ones are written to it. And it holds the lock of the settings, so that a call
// that changes one finds the store either attached or not. A thread that has read `attached` as
// false works without a store. A thread that waits for disk->opening_lock to disown the index
// (store_unattached.c) finds the store attached.
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

// Writes this process's state to `format`.
static enum err late_take_over_locked(struct store *store, struct store_dir *found)
{
    struct store_dir *dir = &store->disk.dir;
    check(dir->format.hash_key != 0);
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

// Removes the directory's content and makes it this process's.
static enum err late_take_over(struct store *store, struct store_dir *found)
{
    struct store_dir *dir = &store->disk.dir;
    check(dir->fd < 0 && dir->lock_fd < 0 && dir->segments_fd < 0 && dir->index_fd < 0);
    check(found->segments_fd >= 0 && found->index_fd >= 0);
    segment_files_wipe(found->segments_fd);
    index_remove_files(found->index_fd);
    if (!found->fresh) {
        log_warn("cache_emptied", "reason=late");
    }
    pthread_mutex_lock(&dir->format_lock);
    enum err err = late_take_over_locked(store, found);
    pthread_mutex_unlock(&dir->format_lock);
    return err;
}

// Sets `attached`. ERR_AGAIN: a setting has changed, so the attempt is worth nothing. Under the
// lock of `format`.
static enum err late_take_effect(struct store *store)
{
    struct store_late *late = &store->late;
    pthread_mutex_lock(&late->guarded.lock);
    bool is_same = late->guarded.settings.changes == late->now.changes;
    if (is_same) {
        scrub_set_rate(&store->scrub, late->now.limits.scrub_bytes_per_s); // nothing is stored yet
        atomic_store(&store->disk.is_in_trouble, false); // nobody can report trouble yet
        disk_room_wait(&store->disk, 0);
        disk_set_attached(&store->disk);
    }
    pthread_mutex_unlock(&late->guarded.lock);
    return is_same ? ERR_OK : ERR_AGAIN;
}

// Does the rest of the opening, now that the directory is this process's.
static enum err late_begin(struct store *store, struct buf *why)
{
    struct store_late *late = &store->late;
    enum err err = late->host.begin(store, &late->options, 0, why);
    if (err != ERR_OK) {
        return err;
    }
    check(late->now.limits.block_size_bytes_max <= store->log.segment_size_bytes / 2);
    (void)disk_io_probe_residency(store->disk.dir.path); // not possible earlier
    state_pins_set_unread(&store->pins);
    retention_set_group_of(&store->retention, late->now.group_of, late->now.group_ctx);
    pthread_mutex_lock(&store->disk.dir.format_lock);
    err = late->host.mark_open(store, why);
    err = err == ERR_OK ? late_take_effect(store) : err;
    pthread_mutex_unlock(&store->disk.dir.format_lock);
    return err;
}

// Opens the directory with the current settings.
static enum err late_open(struct store *store, struct buf *why)
{
    struct store_late *late = &store->late;
    check(!store->disk.attached && late->options.dir != NULL);
    pthread_mutex_lock(&late->guarded.lock);
    late->now = late->guarded.settings;
    pthread_mutex_unlock(&late->guarded.lock);
    if (late->now.has_new_limits) {
        store_size_set_limits(store, &late->now.limits);
    }
    late->options.block_size_bytes_max = late->now.limits.block_size_bytes_max;
    late->options.group_count = late->now.group_count;
    store_dir_leave(&store->disk.dir); // otherwise our own locks on it would make the opening fail
    struct store_dir found;
    enum err err = store_dir_open(&found, late->options.dir, why);
    err = err == ERR_OK ? late_take_over(store, &found) : err;
    if (err == ERR_OK && late->options.origin != NULL) {
        char former[STATE_ORIGIN_MAX + 1]; // unused: nothing is cached of any origin
        state_origin_exchange(&store->disk.dir, late->options.origin, former);
    }
    err = err == ERR_OK ? late_begin(store, why) : err;
    store_dir_close(&found);
    if (err != ERR_OK) {
        late->host.give_up(store);
    }
    return err;
}

// Returns true if the directory is attached.
static bool late_attach(struct store *store)
{
    struct buf why;
    buf_init(&why, WHY_MAX);
    pthread_mutex_lock(&store->disk.opening_lock);
    enum err err;
    do {
        err = late_open(store, &why);
    } while (err == ERR_AGAIN);
    pthread_mutex_unlock(&store->disk.opening_lock);
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

// Waits for the next attempt. Returns false if the thread must stop.
static bool late_wait(struct store_late *late)
{
    struct timespec until = disk_timespec_of_us(disk_real_us() + PAUSE_US);
    pthread_mutex_lock(&late->guarded.lock);
    while (!disk_thread_stops(&late->guarded.thread) &&
           pthread_cond_timedwait(&late->guarded.wake, &late->guarded.lock, &until) == 0) {
    }
    bool goes_on = !disk_thread_stops(&late->guarded.thread);
    pthread_mutex_unlock(&late->guarded.lock);
    return goes_on;
}

static void *late_main(void *ctx)
{
    struct store *store = ctx;
    struct store_late *late = &store->late;
    thread_begin("store-late", THREAD_HELPS);
    while (late_wait(late) && !late_attach(store)) {
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
        late->guarded.settings.limits = *limits;
        late->guarded.settings.has_new_limits = true;
        late->guarded.settings.changes++;
    }
    pthread_mutex_unlock(&late->guarded.lock);
    return is_late;
}

static void settings_take_groups(struct store_late_settings *settings,
                                 const struct store_group *groups, unsigned group_count)
{
    check(group_count <= STORE_GROUPS_MAX);
    for (unsigned i = 0; i < group_count; i++) {
        settings->groups[i] = groups[i];
    }
    settings->group_count = group_count;
}

bool store_late_groups(struct store *store, const struct store_group *groups, unsigned group_count)
{
    struct store_late *late = &store->late;
    pthread_mutex_lock(&late->guarded.lock);
    bool is_late = !store->disk.attached;
    if (is_late) {
        settings_take_groups(&late->guarded.settings, groups, group_count);
        late->guarded.settings.changes++;
    }
    pthread_mutex_unlock(&late->guarded.lock);
    return is_late;
}

bool store_late_group_of(struct store *store, store_group_fn group_of, void *ctx)
{
    struct store_late *late = &store->late;
    pthread_mutex_lock(&late->guarded.lock);
    bool is_late = !store->disk.attached;
    if (is_late) {
        late->guarded.settings.group_of = group_of;
        late->guarded.settings.group_ctx = ctx;
        late->guarded.settings.changes++;
    }
    pthread_mutex_unlock(&late->guarded.lock);
    return is_late;
}

// --- life cycle ----------------------------------------------------------------------------------

void store_late_init(struct store_late *late, const struct store_late_host *host)
{
    check(host->begin != NULL && host->mark_open != NULL);
    check(host->begin_threads != NULL && host->give_up != NULL);
    late->host = *host;
    check(pthread_mutex_init(&late->guarded.lock, NULL) == 0);
    clock_cond_init(&late->guarded.wake);
}

void store_late_done(struct store_late *late)
{
    check(late->guarded.thread.phase == DISK_THREAD_NEW ||
          late->guarded.thread.phase == DISK_THREAD_ENDED);
    free((char *)(uintptr_t)late->options.dir);
    free((char *)(uintptr_t)late->options.origin);
    check(pthread_cond_destroy(&late->guarded.wake) == 0);
    check(pthread_mutex_destroy(&late->guarded.lock) == 0);
}

void store_late_start(struct store *store, const struct store_options *options)
{
    struct store_late *late = &store->late;
    check(!store->disk.attached);
    late->options = *options;
    late->options.dir = strdup(options->dir);
    late->options.origin = options->origin != NULL ? strdup(options->origin) : NULL;
    check(late->options.dir != NULL && (late->options.origin != NULL) == (options->origin != NULL));
    late->options.holders = NULL; // their numbers are in `format`
    late->options.holder_count = 0;
    late->options.groups = late->now.groups;
    late->guarded.settings.limits = store_size_limits(store);
    settings_take_groups(&late->guarded.settings, options->groups, options->group_count);
    disk_room_wait(&store->disk, STORE_SIZE_MIN);
    disk_thread_start(&late->guarded.thread, &store->disk.spares, late_main, store);
}

void store_late_stop(struct store *store)
{
    struct store_late *late = &store->late;
    disk_thread_stop(&late->guarded.thread, &late->guarded.lock, &late->guarded.wake);
}
