// SPDX-License-Identifier: Apache-2.0
// The facade: opening and closing, space, degraded states, and the small calls of the door.
//
// Order of a start: directory, lock and `format`; sizes; what is there made to fit them; the index
// looked through by a child and opened; the segments that are there; then `format` says open, the
// index writer, the freeing, the supply and the recovery thread start, and each worker gets its
// context. Everything slow goes on behind serving. A stop is the reverse, and `format` says clean
// at its end.
//
// Space: used_bytes is what the directory may take up on disk. It is raised before anything is
// made, so it is never above capacity_bytes because of us; segments stop at segment_limit_bytes,
// the rest is for the index.
//
// Degraded: a write that fails turns filling off for 5 s, then 10 s and so on up to 60 s; many
// failing reads turn look-ups off for 10 s. A directory that cannot be used at the start is not
// looked at again, unless it was for want of room: store_late.c.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/index_verify.h"
#include "store/segment_files.h"
#include "store/segment_free.h"
#include "store/segment_supply.h"
#include "store/store_private.h"

#define FILLING_OFF_MS_MIN 5000u
#define FILLING_OFF_MS_MAX 60000u
#define READ_ERRORS_MAX 100u
#define READ_ERRORS_WINDOW_US 60000000u
#define READING_OFF_US 10000000u
#define DESCRIPTORS_DEFAULT 1024u

// --- space

bool store_space_reserve(struct store *store, uint64_t bytes, uint64_t limit_bytes)
{
    uint64_t used = atomic_load(&store->used_bytes);
    do {
        if (used > limit_bytes || bytes > limit_bytes - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&store->used_bytes, &used, used + bytes));
    stats_add(COUNTER_cache_bytes, bytes);
    return true;
}

void store_space_give(struct store *store, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub(&store->used_bytes, bytes);
    check(before >= bytes);
    stats_sub(COUNTER_cache_bytes, bytes);
}

// --- degraded states

void store_tell_trouble(struct store *store, bool trouble)
{
    if (atomic_exchange(&store->disk_trouble_told, trouble) != trouble) {
        if (trouble) {
            stats_add(COUNTER_degraded_disk, 1);
        } else {
            stats_sub(COUNTER_degraded_disk, 1);
            log_info("disk_recovered", "dir=%s", log_quote(span_from_cstr(store->dir.path)));
        }
    }
}

void store_filling_off(struct store *store, const char *what, int errno_value)
{
    unsigned pause_ms = atomic_load(&store->filling_off_ms);
    uint64_t now_us = clock_monotonic_us();
    if (errno_value == EMFILE || errno_value == ENFILE) { // the disk works
        segment_pool_fall_short(&store->log.pool, ERR_DESCRIPTORS);
        log_warn_condition("descriptors_short", "cause=%s errno=%d error=%s remedy=%s", what,
                           errno_value, log_quote(span_from_cstr(strerrordesc_np(errno_value))),
                           "raise_the_limit_on_open_files");
        return;
    }
    if (atomic_load(&store->filling_off_until_us) > now_us) {
        return; // off already
    }
    pause_ms =
        pause_ms == 0 ? FILLING_OFF_MS_MIN : (unsigned)min_u64(2ull * pause_ms, FILLING_OFF_MS_MAX);
    atomic_store(&store->filling_off_ms, pause_ms);
    atomic_store(&store->filling_off_errno, errno_value);
    atomic_store(&store->filling_off_until_us, now_us + pause_ms * 1000ull);
    store_tell_trouble(store, true);
    log_warn("filling_off", "cause=%s errno=%d error=%s pause_ms=%u", what, errno_value,
             log_quote(span_from_cstr(strerrordesc_np(errno_value))), pause_ms);
}

void store_filling_well(struct store *store)
{
    if (atomic_load_explicit(&store->filling_off_ms, memory_order_relaxed) != 0 &&
        store_is_filling(store)) {
        atomic_store(&store->filling_off_ms, 0);
        atomic_store(&store->filling_off_until_us, 0);
        store_tell_trouble(store, false);
    }
}

bool store_is_filling(const struct store *store)
{
    uint64_t until_us = atomic_load_explicit(&store->filling_off_until_us, memory_order_relaxed);
    return until_us == 0 || clock_monotonic_us() >= until_us;
}

enum err store_shortage(const struct store *store)
{
    if (!store->attached) {
        return ERR_IO;
    }
    if (!store_is_filling(store)) {
        int failed = atomic_load(&store->filling_off_errno);
        return failed == ENOSPC || failed == EDQUOT ? ERR_DISK_FULL : ERR_IO;
    }
    enum err err = segment_pool_shortage(&store->log.pool);
    return err != ERR_OK                                  ? err
           : index_is_full(&store->index)                 ? ERR_INDEX_FULL
           : !index_memory_has_room(&store->index.memory) ? ERR_INDEX_BUSY
                                                          : ERR_OK;
}

enum refusal store_refuses(const struct store *store)
{
    enum err err = store_shortage(store);
    return err != ERR_OK                           ? refusal_of_error(err)
           : atomic_load(&store->log.no_room)      ? REFUSAL_disk_full
           : !write_backlog_takes(&store->backlog) ? REFUSAL_disk_busy
                                                   : REFUSAL_none;
}

bool store_is_reading(const struct store *store)
{
    uint64_t until_us = atomic_load_explicit(&store->reading_off_until_us, memory_order_relaxed);
    return until_us == 0 || clock_monotonic_us() >= until_us;
}

void store_read_failed(struct store *store)
{
    uint64_t now_us = clock_monotonic_us();
    if (now_us - atomic_load(&store->read_errors_since_us) > READ_ERRORS_WINDOW_US) {
        atomic_store(&store->read_errors_since_us, now_us);
        atomic_store(&store->read_errors, 0);
    }
    if (atomic_fetch_add(&store->read_errors, 1) + 1 == READ_ERRORS_MAX) {
        atomic_store(&store->read_errors, 0);
        atomic_store(&store->reading_off_until_us, now_us + READING_OFF_US);
        log_error("reading_off", "errors=%u pause_ms=%u", READ_ERRORS_MAX, READING_OFF_US / 1000);
    }
}

void store_drop_run(struct store *store, const struct store_place *place, struct hash128 hash,
                    enum err why)
{
    segment_set_bad(place->segment, place->header_offset);
    index_writer_remove_later(&store->writer, hash, place, why == ERR_CORRUPT);
    if (why == ERR_CORRUPT) {
        stats_add(COUNTER_evicted_bytes_corrupt, place->payload_len);
    }
    log_warn_condition("run_dropped", "err=%s segment=%u offset=%u first_block=%llu blocks=%u",
                       error_name(why), place->segment_number, place->header_offset,
                       (unsigned long long)place->first_block, place->block_count);
}

void store_drop_place(struct store *store, const struct store_place *place, struct hash128 hash,
                      enum err why)
{
    if (why == ERR_CORRUPT) {
        stats_add(COUNTER_checksum_failures, 1);
    } else {
        store_read_failed(store);
    }
    store_drop_run(store, place, hash, why);
}

// --- opening

// The smallest cache that works with these segments.
static uint64_t store_least_bytes(const struct store *store, uint32_t segment_size_bytes)
{
    uint64_t least =
        STORE_SEGMENTS_MIN * segment_cost_bytes(segment_size_bytes) + STORE_OVERHEAD_BYTES;
    return max_u64(STORE_SIZE_MIN, least + store_size_headroom(store));
}

static enum err store_too_small(const struct store *store, uint64_t least, struct buf *ret_why)
{
    buf_printf(ret_why,
               "cache.size is %llu bytes, at least %llu are needed (three segments of at least "
               "twice the largest "
               "block): raise cache.size or free space, or lower block_size",
               (unsigned long long)store->capacity_bytes, (unsigned long long)least);
    return ERR_INVALID;
}

// Keeps the segment size of the directory while it suits, or is the best one; else everything in it
// goes.
static enum err store_choose_segments(struct store *store, const struct store_options *options,
                                      struct buf *ret_why)
{
    struct store_format *format = &store->dir.format;
    uint32_t best = segment_size_for(store->capacity_bytes, options->block_size_bytes_max);
    store_size_raise(store, STORE_SEGMENTS_MIN * segment_cost_bytes(best) + STORE_OVERHEAD_BYTES);
    uint64_t least = store_least_bytes(store, best);
    if (store->capacity_bytes < least) {
        return store_too_small(store, least, ret_why);
    }
    bool suits = format->segment_size_bytes >= 2 * options->block_size_bytes_max &&
                 store->capacity_bytes >= store_least_bytes(store, format->segment_size_bytes);
    bool empty = !store->dir.fresh && segment_files_are_empty(store->dir.segments_fd);
    if (store->dir.fresh || !suits || (empty && format->segment_size_bytes != best)) {
        if (!store->dir.fresh) {
            if (!empty) {
                log_warn("cache_emptied", "reason=segment_size was=%u now=%u",
                         format->segment_size_bytes, best);
            }
            segment_files_wipe(store->dir.segments_fd);
            index_remove_files(store->dir.index_fd);
            format->index_txn = 0;
            format->append_count = 0;
            store->dir.fresh = true; // nothing is left that an index could name
        }
        format->segment_size_bytes = best;
    }
    store->segment_size_bytes = format->segment_size_bytes;
    return ERR_OK;
}

static void store_enter_workers(struct store *store)
{
    for (unsigned i = 0; i < store->worker_count; i++) {
        struct store_worker *sw = store->workers[i];
        if (sw != NULL) { // of a start that came to nothing
            sw->reader = (struct index_reader){.number = i};
            store->index.readers[i] = &sw->reader;
            continue;
        }
        sw = aligned_alloc(64, align_up_u64(sizeof(*sw), 64));
        check(sw != NULL);
        memset(sw, 0, sizeof(*sw));
        sw->worker = loop_worker(store->loop, i);
        sw->store = store;
        run_cache_init(&sw->runs, store->worker_count);
        segment_push_init(&sw->pusher, store);
        store->workers[i] = sw;
        sw->reader.number = i;
        store->index.readers[i] = &sw->reader;
        worker_slot_set(sw->worker, WORKER_SLOT_STORE, sw);
    }
    store->index.readers[store->worker_count] = &store->recovery.roll.reader;
    store->index.reader_count = store->worker_count + 1;
}

// `format` says that we are at it, and promises numbers and generations to this process.
static enum err store_mark_open(struct store *store)
{
    struct store_format *format = &store->dir.format;
    struct segment_log *log = &store->log;
    atomic_store(&store->generation, format->next_generation);
    format->next_generation += STORE_GENERATIONS_AHEAD;
    format->next_segment = (uint32_t)min_u64(UINT32_MAX, (uint64_t)log->guarded.next_number + 64);
    log->guarded.number_limit = format->next_segment;
    format->index_txn = index_last_txn(&store->index);
    format->clean = false;
    format->append_count = 0;
    store_boot_id(format->boot_id);
    return store_dir_write_format(&store->dir);
}

// Everything that needs the directory. An error here is the disk's (degraded) or the caller's to
// exit on.
static enum err store_attach(struct store *store, const struct store_options *options,
                             struct buf *ret_why)
{
    enum err err = store_dir_open(&store->dir, options->dir, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    store_epochs_load(store);
    store_doubts_load(store);
    store_holders_load(store, options->holders, options->holder_count);
    uint64_t ours =
        segment_files_bytes(store->dir.segments_fd) + index_file_bytes(store->dir.index_fd);
    return store_begin(store, options, ours, ret_why);
}

enum err store_begin(struct store *store, const struct store_options *options, uint64_t ours,
                     struct buf *ret_why)
{
    enum err err = store_size_begin(store, ours);
    err = err != ERR_OK ? err : store_choose_segments(store, options, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    store->other_bytes = store_dir_other_bytes(&store->dir);
    atomic_store(&store->used_bytes, store->other_bytes);
    stats_add(COUNTER_cache_bytes, atomic_load(&store->used_bytes));
    store_pins_open(store);
    err = segment_log_open(&store->log, store);
    retention_open(&store->retention, store, options->policy == STORE_POLICY_EPOCH, options->groups,
                   options->group_count);
    index_init(&store->index, store);
    store_enter_workers(store);
    index_guard_install(&store->index, store->dir.index_fd);
    err = err != ERR_OK ? err : recovery_open_index(&store->recovery);
    if (err == ERR_OK) {
        recovery_adopt_clean(&store->recovery);
        err = store_mark_open(store);
    }
    if (err == ERR_OK) {
        store_condemned_load(store);
    }
    if (err != ERR_OK && !buf_ok(ret_why)) {
        return err;
    }
    if (err != ERR_OK && ret_why->len == 0) {
        buf_printf(ret_why, "%s: %s", options->dir, error_row(err)->text);
    }
    return err;
}

// It is not a cache that has broken, but a place where there has never been one and cannot be: a
// mistake, and nothing to bear.
static bool store_never_began(const struct store *store)
{
    static const int mistakes[] = {EACCES, EPERM, EROFS, ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG};
    bool is_mistake = false;
    for (size_t i = 0; i < ARRAY_LEN(mistakes); i++) {
        is_mistake |= store->dir.failed_errno == mistakes[i];
    }
    return is_mistake && !store->dir.was_used && store->dir.segments_fd < 0;
}

void store_give_up(struct store *store)
{
    if (store->index.renewals != NULL) {
        index_done(&store->index);
        index_guard_remove(&store->index);
    }
    retention_close(&store->retention);
    if (store->log.table != NULL) {
        segment_log_close(&store->log);
    }
    uint64_t used = atomic_exchange(&store->used_bytes, 0);
    stats_sub(COUNTER_cache_bytes, used);
    store->capacity_bytes = 0;
}

static void store_open_degraded(struct store *store, const struct store_options *options,
                                enum err err, struct buf *why)
{
    const char *name = strerrorname_np(store->dir.failed_errno);
    bool is_full = err == ERR_DISK_FULL;
    log_error(
        "cache_unusable", "err=%s errno=%s text=%s remedy=%s", error_name(err),
        name != NULL ? name : "0", log_quote(buf_span(why)),
        is_full
            ? "\"free space there, or give cache.dir another place and restart; it is looked for\""
            : "\"repair it, or give cache.dir another place, and restart\"");
    store_tell_trouble(store, true);
    store_give_up(store);
    store_dir_give_up(&store->dir);
    if (store->dir.format.hash_key == 0) {
        store->dir.format.hash_key = random_u64();
    }
    if (store->dir.format.segment_size_bytes == 0) {
        store->dir.format.segment_size_bytes = SEGMENT_SIZE_MIN;
    }
    store->segment_size_bytes = store->dir.format.segment_size_bytes;
    atomic_store(&store->generation, clock_wall_us()); // above all that this process may meet
    why->len = 0;
    if (is_full) {
        if (store->dir.format.last_holder == 0) { // it did not come to that
            store_holders_load(store, options->holders, options->holder_count);
        }
        store_enter_workers(store); // which nobody but a worker may do later
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
    store_dir_close(&store->dir);
    store_epochs_done(&store->epochs);
    store_doubts_done(&store->doubts);
    store_condemned_done(&store->condemned);
    store_late_done(&store->late);
    store_size_done(store);
    free(store);
}

void store_begin_threads(struct store *store)
{
    stats_add(COUNTER_cache_capacity_bytes, store->capacity_bytes);
    segment_pool_start(&store->log.pool);
    index_writer_start(&store->writer);
    segment_free_start(&store->log);
    retention_start(&store->retention);
    segment_supply_start(&store->log);
    recovery_start(&store->recovery);
}

enum err store_open(const struct store_options *options, struct loop *loop,
                    struct store **ret_store, struct buf *ret_why)
{
    struct store *store = calloc(1, sizeof(*store));
    check(store != NULL);
    store_epochs_init(&store->epochs);
    store_doubts_init(&store->doubts);
    store_condemned_init(&store->condemned);
    store_late_init(&store->late);
    store->loop = loop;
    store_size_init(store, options);
    store->verify_always = options->verify_always;
    store->written.max_bytes = options->written_pages_bytes;
    store->written.is_short = options->memory_is_short;
    store->descriptors_max =
        options->descriptors_max != 0 ? options->descriptors_max : DESCRIPTORS_DEFAULT;
    store->worker_count = loop_worker_count(loop);
    check(store->worker_count <= STORE_WORKERS_MAX);
    recovery_init(&store->recovery, store);
    index_writer_init(&store->writer, store);
    scrub_init(&store->scrub, store);
    enum err err = store_attach(store, options, ret_why);
    if (err == ERR_IN_USE || err == ERR_FORMAT || err == ERR_INVALID) {
        store_close(store);
        return err;
    }
    if (err != ERR_OK && options->must_begin && store_never_began(store)) {
        buf_printf(ret_why,
                   " (%s), so nothing could be cached: give cache.dir a directory that user %u may "
                   "write to, or set cache.optional to go without",
                   strerrorname_np(store->dir.failed_errno), (unsigned)geteuid());
        store_close(store);
        return err;
    }
    if (err != ERR_OK) {
        store_open_degraded(store, options, err, ret_why);
        *ret_store = store;
        return ERR_OK;
    }
    store->attached = true;
    store_begin_threads(store);
    scrub_set_rate(&store->scrub, options->scrub_bytes_per_s);
    *ret_store = store;
    return ERR_OK;
}

static void store_mark_clean(struct store *store, uint64_t index_txn)
{
    struct store_format *format = &store->dir.format;
    store_doubts_settle(store);
    format->next_generation = atomic_load(&store->generation);
    format->index_txn = index_txn;
    format->clean = true;
    enum err err = store_dir_write_format(&store->dir);
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
    bool rebuilding = atomic_load(&store->rebuilding);
    atomic_store(&store->writer.silent, true);
    scrub_stop(&store->scrub);
    recovery_stop(&store->recovery);
    segment_supply_stop(&store->log);
    retention_stop(&store->retention);
    segment_free_stop(&store->log);
    index_writer_stop(&store->writer);
    if (store->attached) {
        segment_pool_stop(&store->log.pool);
    }
    rebuilding = rebuilding || atomic_load(&store->rebuilding);
    uint64_t index_txn = store->index.renewals != NULL ? index_last_txn(&store->index) : 0;
    if (store->attached) {
        stats_sub(COUNTER_cache_capacity_bytes, store->capacity_bytes);
    }
    disk_room_done(store);
    if (store->index.renewals != NULL) {
        index_done(&store->index);
        index_guard_remove(&store->index);
    }
    retention_close(&store->retention);
    if (store->log.table != NULL) {
        segment_log_close(&store->log);
    }
    if (store->attached && index_txn != 0 && !rebuilding) {
        store_mark_clean(store, index_txn);
    }
    stats_sub(COUNTER_cache_bytes, atomic_load(&store->used_bytes));
    if (atomic_load(&store->disk_trouble_told)) { // that is not over, but nobody's any more
        stats_sub(COUNTER_degraded_disk, 1);
    }
    store_free(store);
}

// --- small calls

void store_summarize(const struct store *store, struct store_summary *ret_summary)
{
    bool is_blind =
        !store->attached || !store_is_reading(store) || atomic_load(&store->index.current) == NULL;
    *ret_summary = (struct store_summary){
        .dir = store->dir.path,
        .capacity_bytes = store->capacity_bytes,
        .used_bytes = atomic_load(&store->used_bytes),
        .segment_size_bytes = store->segment_size_bytes,
        .objects = atomic_load(&store->index.objects),
        .blocks = atomic_load(&store->index.blocks),
        .degraded = is_blind || !store_is_filling(store) || atomic_load(&store->log.no_room),
        .is_blind = is_blind,
        .refusal = is_blind && store->attached && store_is_reading(store) ? REFUSAL_index_degraded
                   : is_blind                                             ? REFUSAL_disk_degraded
                                                                          : store_refuses(store),
        .rebuilding = atomic_load(&store->rebuilding),
    };
}

bool store_waits_for_readers(struct store *store)
{
    return store->attached && segment_supply_waits_for_readers(&store->log);
}

struct hash128 store_hash(const struct store *store, struct span realm, struct span bucket,
                          struct span key)
{
    const struct span pieces[] = {realm, bucket, key};
    return hash128_of(pieces, ARRAY_LEN(pieces), store->dir.format.hash_key);
}

uint64_t store_generation_next(struct store *store)
{
    return atomic_fetch_add(&store->generation, 1);
}

bool store_place_pin(struct store_place *place)
{
    check(place->segment != NULL);
    return segment_pin(place->segment, place->segment_number);
}

void store_set_groups(struct store *store, const struct store_group *groups, unsigned group_count)
{
    if (!store_late_groups(store, groups, group_count)) {
        retention_set_groups(&store->retention, groups, group_count);
    }
}

void store_place_unpin(struct store_place *place)
{
    if (place->segment != NULL) {
        segment_unpin(place->segment);
        place->segment = NULL;
    }
}

void store_place_unhold(struct store_place *place)
{
    check(place->segment != NULL);
    segment_unhold(place->segment);
}

void store_note_read(struct worker *w, struct store *store, const struct store_place *place,
                     uint64_t bytes, unsigned group)
{
    if (place->header_len > 0) { // else its run is being written, and that was the access
        retention_read(w, &store->retention, place, bytes, group);
    }
}

static enum policy_verdict store_guess(const struct store *store, struct hash128 hash,
                                       uint64_t first_block, unsigned group)
{
    struct retention_answer answer;
    if (!store->attached) {
        return POLICY_STORE;
    }
    return retention_admit(&store->retention, hash, first_block, group, false, &answer);
}

bool store_would_keep(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group)
{
    return store_guess(store, hash, first_block, group) == POLICY_STORE;
}

bool store_would_take(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group)
{
    return store_guess(store, hash, first_block, group) != POLICY_REFUSE;
}

void store_lookup(struct worker *w, struct store *store, struct hash128 hash, uint64_t first_byte,
                  uint64_t end_byte, uint64_t floor, struct store_view *ret_view)
{
    check(first_byte <= end_byte);
    check(end_byte - first_byte <= STORE_WINDOW_MAX);
    ret_view->found = ret_view->unknown = false;
    ret_view->place_count = 0;
    ret_view->any.segment = NULL;
    if (!store->attached) {
        return; // nothing is held
    }
    uint64_t began_us = clock_monotonic_us();
    index_lookup(&store->index, &store_worker_of(w)->reader, store_is_reading(store), hash,
                 first_byte, end_byte, floor, ret_view);
    stats_observe_us(HISTOGRAM_index_lookup, clock_monotonic_us() - began_us);
}

void store_view_done(struct store_view *view)
{
    for (unsigned i = 0; i < view->place_count; i++) {
        store_place_unpin(&view->places[i]);
    }
    view->place_count = 0;
    store_place_unpin(&view->any);
}

// --- faults

#ifdef FOREBAY_FAULTS
static struct {
    atomic_uint left; // calls until it strikes; 0: never
    atomic_bool repeat;
    atomic_int errno_value;
    atomic_bool stalled;
} faults[STORE_FAULT_COUNT_];

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned waiting[STORE_FAULT_COUNT_];
} stalls = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

void store_fault_stall(enum store_fault fault, bool stall)
{
    pthread_mutex_lock(&stalls.lock);
    atomic_store(&faults[fault].stalled, stall);
    pthread_cond_broadcast(&stalls.changed);
    pthread_mutex_unlock(&stalls.lock);
}

void store_fault_stall_reached(enum store_fault fault)
{
    pthread_mutex_lock(&stalls.lock);
    while (stalls.waiting[fault] == 0) {
        pthread_cond_wait(&stalls.changed, &stalls.lock);
    }
    pthread_mutex_unlock(&stalls.lock);
}

static void fault_wait(enum store_fault fault)
{
    pthread_mutex_lock(&stalls.lock);
    stalls.waiting[fault]++;
    pthread_cond_broadcast(&stalls.changed);
    while (atomic_load(&faults[fault].stalled)) {
        pthread_cond_wait(&stalls.changed, &stalls.lock);
    }
    stalls.waiting[fault]--;
    pthread_mutex_unlock(&stalls.lock);
}

void store_fault_set(enum store_fault fault, unsigned nth, bool repeat, int errno_value)
{
    atomic_store(&faults[fault].repeat, repeat);
    atomic_store(&faults[fault].errno_value, errno_value);
    atomic_store(&faults[fault].left, nth);
}

int store_fault_strike(enum store_fault fault)
{
    static const char *const names[] = {
        "store.sync",   "store.commit",  "store.create",  "store.allocate", "store.unlink",
        "store.open",   "store.scan",    "store.table",   "store.mark",     "store.note",
        "store.disown", "store.remove",  "store.rewrite", "store.roll",     "store.scrub",
        "store.pins",   "store.rebuild", "store.trim"};
    static_assert(ARRAY_LEN(names) == STORE_FAULT_COUNT_, "a name for each");
    if (atomic_load_explicit(&faults[fault].stalled, memory_order_relaxed)) {
        fault_wait(fault);
    }
    unsigned left = atomic_load_explicit(&faults[fault].left, memory_order_relaxed);
    do {
        if (left == 0) {
            return disk_fault_errno(names[fault]);
        }
        if (left == 1 && atomic_load(&faults[fault].repeat)) {
            return atomic_load(&faults[fault].errno_value);
        }
    } while (!atomic_compare_exchange_weak(&faults[fault].left, &left, left - 1));
    return left == 1 ? atomic_load(&faults[fault].errno_value) : 0;
}
#endif
