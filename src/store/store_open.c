// SPDX-License-Identifier: Apache-2.0
// Opens and closes the store: creates its parts and gives each its options.
//
// store_open() opens the directory, locks it and reads `format`. It decides the sizes and removes
// segments that exceed them. It opens the remaining segments. A child process verifies the index,
// and the store opens the index. Then it records in `format` that the cache is open, and starts the
// threads: index writer, freeing, retention, supply and recovery. Slow work is done while the store
// serves. store_close() undoes these steps in reverse order and records the clean stop in `format`.
//
// If the directory cannot be used, the store works without it until the next start. If only space
// is missing, the store tries again (store_late.c).
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/care/store_unattached.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_free.h"
#include "store/segment/segment_supply.h"
#include "store/store_private.h"

#define DESCRIPTORS_DEFAULT 1024u
// Those of store_begin_threads(), the scrub thread, and the one of store_late.c.
#define THREADS 8u
static_assert(THREADS <= DISK_SPARES_MAX, "each has a place");

// Returns the smallest cache.size that works with segments of this size.
static uint64_t store_least_bytes(const struct store *store, uint32_t segment_size_bytes)
{
    uint64_t least =
        SEGMENT_COUNT_MIN * segment_cost_bytes(segment_size_bytes) + STORE_OVERHEAD_BYTES;
    return max_u64(STORE_SIZE_MIN, least + store_size_headroom(store));
}

static enum err store_too_small(const struct store *store, uint64_t least, struct buf *ret_why)
{
    buf_printf(ret_why,
               "cache.size is %llu bytes, at least %llu are needed (three segments of at least "
               "twice the largest "
               "block): raise cache.size or free space, or lower block_size",
               (unsigned long long)store->disk.capacity_bytes, (unsigned long long)least);
    return ERR_INVALID;
}

// Keeps the directory's segment size if it is large enough for the blocks and small enough for the
// cache, unless the directory has no segments. Otherwise empties the directory and uses the best
// size.
static enum err store_choose_segments(struct store *store, const struct store_options *options,
                                      struct buf *ret_why)
{
    struct store_format *format = &store->disk.dir.format;
    check(options->block_size_bytes_max <= STORE_BLOCK_SIZE_MAX);
    uint32_t best = segment_size_for(store->disk.capacity_bytes, options->block_size_bytes_max);
    store_size_raise(store, SEGMENT_COUNT_MIN * segment_cost_bytes(best) + STORE_OVERHEAD_BYTES);
    uint64_t least = store_least_bytes(store, best);
    if (store->disk.capacity_bytes < least) {
        return store_too_small(store, least, ret_why);
    }
    bool suits = format->segment_size_bytes >= 2 * options->block_size_bytes_max &&
                 store->disk.capacity_bytes >= store_least_bytes(store, format->segment_size_bytes);
    bool empty = !store->disk.dir.fresh && segment_files_are_empty(store->disk.dir.segments_fd);
    if (store->disk.dir.fresh || !suits || (empty && format->segment_size_bytes != best)) {
        if (!store->disk.dir.fresh) {
            if (!empty) {
                log_warn("cache_emptied", "reason=segment_size was=%u now=%u",
                         format->segment_size_bytes, best);
            }
            segment_files_wipe(store->disk.dir.segments_fd);
            index_remove_files(store->disk.dir.index_fd);
            format->index_txn = 0;
            format->append_count = 0;
            // No segment is left that an index could refer to.
            store->disk.dir.fresh = true;
        }
        format->segment_size_bytes = best;
    }
    check(format->segment_size_bytes >= 2 * options->block_size_bytes_max);
    disk_set_segment_size(&store->disk, format->segment_size_bytes);
    return ERR_OK;
}

static void store_enter_workers(struct store *store)
{
    for (unsigned i = 0; i < store->worker_count; i++) {
        struct store_worker *sw = store->workers[i];
        if (sw != NULL) { // an earlier opening, which failed, has created it
            index_set_reader(&store->index, i, &sw->reader);
            continue;
        }
        sw = aligned_alloc(64, align_up_u64(sizeof(*sw), 64));
        check(sw != NULL);
        memset(sw, 0, sizeof(*sw));
        sw->worker = loop_worker(store->loop, i);
        sw->store = store;
        run_cache_init(&sw->runs, store->worker_count);
        segment_push_init(&sw->pusher, &store->log, &store->backlog);
        store->workers[i] = sw;
        index_set_reader(&store->index, i, &sw->reader);
        worker_slot_set(sw->worker, WORKER_SLOT_STORE, sw);
    }
    index_set_reader(&store->index, store->worker_count, &store->recovery.roll.reader);
}

// Records in `format` that the cache is open, and reserves segment numbers and generations for this
// process.
static enum err store_mark_open(struct store *store, struct buf *ret_why)
{
    struct store_format *format = &store->disk.dir.format;
    check(atomic_load(&store->index.current) != NULL);
    atomic_store(&store->generation, format->next_generation);
    format->next_generation += STORE_GENERATIONS_AHEAD;
    format->next_segment = segment_log_promise(&store->log);
    format->index_txn = index_last_txn(&store->index);
    format->clean = false;
    format->append_count = 0;
    store_boot_id(format->boot_id);
    enum err err = store_dir_write_format(&store->disk.dir);
    if (err != ERR_OK) {
        buf_printf(ret_why, "%s: %s", store->disk.dir.path, error_row(err)->text);
    }
    return err;
}

// Hides the runs of a key that an earlier process condemned, and removes them from the index.
static void on_condemned_key(void *ctx, struct hash128 hash, uint64_t below)
{
    struct store *store = ctx;
    index_memory_hide(&store->index.memory, hash, below);
    index_writer_delete(&store->writer, hash, below, NULL);
}

static void on_run_bad(void *ctx, const struct store_place *place, struct hash128 hash,
                       enum err why)
{
    store_drop_place(ctx, place, hash, why);
}

static void on_run_scrubbed(void *ctx, const struct store_place *place, struct hash128 hash,
                            enum err why)
{
    store_drop_run(ctx, place, hash, why);
}

static void store_open_parts(struct store *store, const struct store_options *options)
{
    segment_log_open(&store->log,
                     &(struct segment_log_options){.disk = &store->disk,
                                                   .host = store_segment_host(store),
                                                   .worker_count = store->worker_count,
                                                   .descriptors_max = store->descriptors_max});
    retention_open(&store->retention,
                   &(struct retention_options){.disk = &store->disk,
                                               .log = &store->log,
                                               .writer = &store->writer,
                                               .condemned = &store->condemned,
                                               .host = {store, on_run_bad},
                                               .worker_count = store->worker_count,
                                               .was_clean = store->disk.dir.format.clean,
                                               .learns = options->policy == STORE_POLICY_EPOCH,
                                               .groups = options->groups,
                                               .group_count = options->group_count});
    index_init(&store->index, &(struct index_options){.disk = &store->disk,
                                                      .log = &store->log,
                                                      .writer = &store->writer,
                                                      .host = store_index_host(store),
                                                      .worker_count = store->worker_count});
    disk_room_set_step(&store->disk, store->index.step_bytes);
}

static enum err store_begin(struct store *store, const struct store_options *options, uint64_t ours,
                            struct buf *ret_why)
{
    check(!store->disk.attached && store->index.renewals == NULL && store->log.table == NULL);
    enum err err = store_size_begin(store, ours);
    err = err != ERR_OK ? err : store_choose_segments(store, options, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    disk_space_begin(&store->disk, store_dir_other_bytes(&store->disk.dir));
    state_pins_open(&store->pins);
    store_open_parts(store, options);
    store_enter_workers(store);
    index_guard_install(store->disk.dir.index_fd);
    err = recovery_open_index(&store->recovery);
    if (err == ERR_OK) {
        recovery_adopt_clean(&store->recovery);
        err = state_condemned_load(&store->condemned);
    }
    if (err != ERR_OK && !buf_ok(ret_why)) {
        return err;
    }
    if (err != ERR_OK && ret_why->len == 0) {
        buf_printf(ret_why, "%s: %s", options->dir, error_row(err)->text);
    }
    return err;
}

// Does everything that needs the directory. After an error the store runs degraded or the caller
// exits; the comment at store_open() in store.h says which.
static enum err store_attach(struct store *store, const struct store_options *options,
                             struct buf *ret_why)
{
    enum err err = store_dir_open(&store->disk.dir, options->dir, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    if (options->origin != NULL) {
        state_origin_exchange(&store->disk.dir, options->origin, store->former_origin);
    }
    state_epochs_load(&store->epochs);
    state_doubts_load(&store->doubts);
    state_holders_load(&store->disk, &store->doubts, options->holders, options->holder_count);
    uint64_t ours = segment_files_bytes(store->disk.dir.segments_fd) +
                    index_file_bytes(store->disk.dir.index_fd);
    err = store_begin(store, options, ours, ret_why);
    err = err == ERR_OK ? store_mark_open(store, ret_why) : err;
    if (err == ERR_OK) {
        state_condemned_each(&store->condemned, on_condemned_key, store);
    }
    return err;
}

// Returns true if the directory never held a cache and cannot hold one. That is a mistake in the
// settings, so the process must exit. A broken cache only degrades the store.
static bool store_never_began(const struct store *store)
{
    static const int mistakes[] = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG};
    bool is_mistake = false;
    for (size_t i = 0; i < ARRAY_LEN(mistakes); i++) {
        is_mistake |= store->disk.dir.failed_errno == mistakes[i];
    }
    return is_mistake && !store->disk.dir.was_used && store->disk.dir.segments_fd < 0;
}

// Undoes those steps of store_begin() that were done.
static void store_give_up(struct store *store)
{
    if (store->index.renewals != NULL) {
        index_done(&store->index);
        index_guard_remove();
    }
    retention_close(&store->retention);
    if (store->log.table != NULL) {
        segment_log_close(&store->log);
    }
    disk_space_end(&store->disk);
    check(store->index.renewals == NULL && store->log.table == NULL);
}

static void store_open_degraded(struct store *store, const struct store_options *options,
                                enum err err, struct buf *why)
{
    check(err != ERR_OK && !store->disk.attached);
    const char *name = strerrorname_np(store->disk.dir.failed_errno);
    bool is_full = err == ERR_DISK_FULL;
    log_error("cache_unusable", "err=%s errno=%s text=%s remedy=%s", error_name(err),
              name != NULL ? name : "0", log_quote(buf_span(why)),
              is_full ? "\"free space in that file system (Forebay retries by itself), or set "
                        "cache.dir to another directory and restart\""
                      : "\"repair it, or set cache.dir to another directory, and restart\"");
    (void)snprintf(store->unusable, sizeof(store->unusable), "%s", buf_cstr(why)); // may be cut
    atomic_store(&store->disk.is_in_trouble, true);
    store_give_up(store);
    store_dir_give_up(&store->disk.dir);
    if (store->disk.dir.format.hash_key == 0) {
        store->disk.dir.format.hash_key = random_u64();
    }
    uint32_t segment_size = store->disk.dir.format.segment_size_bytes;
    disk_set_segment_size(&store->disk, segment_size != 0 ? segment_size : SEGMENT_SIZE_MIN);
    // The wall clock in us is higher than any generation that this process may meet.
    atomic_store(&store->generation, clock_wall_us());
    why->len = 0;
    if (is_full) {
        // The number is 0 if store_attach() failed before it loaded the holders.
        if (store->disk.dir.format.state.others[STATE_HOLDERS].number == 0) {
            state_holders_load(&store->disk, &store->doubts, options->holders,
                               options->holder_count);
        }
        // Set all slots now, because later each worker can set only its own.
        store_enter_workers(store);
        store_late_start(store, options);
    }
}

static void store_free(struct store *store)
{
    for (unsigned i = 0; i < store->worker_count; i++) {
        if (store->workers[i] != NULL) {
            worker_slot_set(store->workers[i]->worker, WORKER_SLOT_STORE, NULL);
            run_cache_done(&store->workers[i]->runs);
            free(store->workers[i]);
        }
    }
    store_dir_close(&store->disk.dir);
    check(pthread_mutex_destroy(&store->disk.opening_lock) == 0);
    disk_spares_done(&store->disk.spares);
    state_epochs_done(&store->epochs);
    state_doubts_done(&store->doubts);
    store_late_done(&store->late);
    page_admission_done(&store->page_admission);
    store_size_done(store);
    free(store);
}

static void store_begin_threads(struct store *store)
{
    check(store->disk.attached);
    stats_add(COUNTER_cache_capacity_bytes, store->disk.capacity_bytes);
    segment_pool_start(&store->log.pool, &store->disk.spares);
    index_writer_start(&store->writer);
    segment_free_start(&store->log);
    retention_start(&store->retention);
    segment_supply_start(&store->log);
    recovery_start(&store->recovery);
}

enum err store_open(const struct store_options *options, struct loop *loop,
                    struct store **ret_store, struct buf *ret_why)
{
    check(options->dir != NULL && options->group_count <= STORE_GROUPS_MAX);
    check(options->size_bytes != 0 || options->size_percent != 0);
    struct store *store = calloc(1, sizeof(*store));
    check(store != NULL);
    disk_spares_init(&store->disk.spares);
    if (!disk_spares_add(&store->disk.spares, THREADS)) {
        disk_spares_done(&store->disk.spares);
        free(store);
        buf_append_cstr(ret_why, "the threads of the cache could not be started: raise the limit "
                                 "on tasks (ulimit -u, or pids.max of the cgroup)");
        return ERR_LIMIT;
    }
    check(pthread_mutex_init(&store->disk.opening_lock, NULL) == 0);
    state_epochs_init(&store->epochs, &store->disk, store_unattached_disown);
    state_doubts_init(&store->doubts, &store->disk);
    state_condemned_init(&store->condemned, &store->disk);
    state_pins_init(&store->pins, &store->disk);
    store_late_init(&store->late, &(struct store_late_host){.begin = store_begin,
                                                            .mark_open = store_mark_open,
                                                            .begin_threads = store_begin_threads,
                                                            .give_up = store_give_up});
    store->loop = loop;
    store_size_init(store, options);
    store->verify_always = options->verify_always;
    store->descriptors_max =
        options->descriptors_max != 0 ? options->descriptors_max : DESCRIPTORS_DEFAULT;
    store->worker_count = loop_worker_count(loop);
    check(store->worker_count <= STORE_WORKERS_MAX);
    write_backlog_init(&store->backlog, options->written_pages_bytes);
    page_admission_init(&store->page_admission, options->memory);
    recovery_init(&store->recovery, &store->index, &store->log, &store->disk, &store->condemned);
    index_writer_init(&store->writer, &store->index, options->written_pages_bytes,
                      options->memory_is_short);
    scrub_init(&store->scrub, &store->log, &store->backlog,
               &(struct scrub_host){store, on_run_scrubbed});
    enum err err = store_attach(store, options, ret_why);
    if (err == ERR_IN_USE || err == ERR_FORMAT || err == ERR_INVALID) {
        store_close(store);
        return err;
    }
    if (err != ERR_OK && options->must_begin && store_never_began(store)) {
        buf_printf(ret_why,
                   " (%s), so nothing could be cached: give cache.dir a directory that user %u may "
                   "write to, or set cache.optional to go without",
                   strerrorname_np(store->disk.dir.failed_errno), (unsigned)geteuid());
        store_close(store);
        return err;
    }
    if (err != ERR_OK) {
        store_open_degraded(store, options, err, ret_why);
        *ret_store = store;
        return ERR_OK;
    }
    disk_set_attached(&store->disk);
    store_begin_threads(store);
    scrub_set_rate(&store->scrub, options->scrub_bytes_per_s);
    *ret_store = store;
    return ERR_OK;
}

static void store_mark_clean(struct store *store, uint64_t index_txn)
{
    struct store_format *format = &store->disk.dir.format;
    check(store->disk.attached && index_txn != 0);
    state_doubts_settle(&store->doubts);
    format->next_generation = atomic_load(&store->generation);
    format->index_txn = index_txn;
    format->clean = true;
    enum err err = store_dir_write_format(&store->disk.dir);
    if (err != ERR_OK) {
        log_warn("clean_stop_not_marked", "err=%s", error_name(err));
    }
}

void store_close(struct store *store)
{
    if (store == NULL) {
        return;
    }
    store_late_stop(store);
    bool rebuilding = atomic_load(&store->recovery.is_rebuilding);
    index_writer_silence(&store->writer);
    scrub_stop(&store->scrub);
    recovery_stop(&store->recovery);
    segment_supply_stop(&store->log);
    retention_stop(&store->retention);
    index_forget_hurry(&store->writer.forget); // the freeing thread may wait in index_forget_add()
    segment_free_stop(&store->log);
    index_writer_stop(&store->writer);
    recovery_done(&store->recovery);
    if (store->disk.attached) {
        segment_pool_stop(&store->log.pool);
    }
    rebuilding = rebuilding || atomic_load(&store->recovery.is_rebuilding);
    uint64_t index_txn = store->index.renewals != NULL ? index_last_txn(&store->index) : 0;
    if (store->disk.attached) {
        stats_sub(COUNTER_cache_capacity_bytes, store->disk.capacity_bytes);
    }
    disk_room_done(&store->disk);
    if (store->index.renewals != NULL) {
        index_done(&store->index);
        index_guard_remove();
    }
    retention_close(&store->retention);
    if (store->log.table != NULL) {
        segment_log_close(&store->log);
    }
    if (store->disk.attached && index_txn != 0 && !rebuilding) {
        store_mark_clean(store, index_txn);
    }
    stats_sub(COUNTER_cache_bytes, atomic_load(&store->disk.used_bytes));
    store_free(store);
}
