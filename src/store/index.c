// SPDX-License-Identifier: Apache-2.0
// The environment and its read side. A look-up renews the worker's one read transaction, copies
// what it needs out of the map, and resets it: no view is kept over a turn of the loop, so pages
// are used again and the file does not grow.
//
// Correctness never rests on what is read here: every value carries a checksum over itself and its
// key, and what it points at proves itself by salt, header and full key. A bad record is a miss.
//
// Taking the environment away while workers serve (the index has to be dropped): `current` becomes
// NULL, then the index writer waits for each reader to leave LMDB, which takes microseconds. A
// reader announces itself (`busy`) before it looks at `current`, both in one total order, so one of
// the two sees the other.
//
// LMDB's rules kept here: never WRITEMAP, one environment per process, the map's size never
// changes, the file is allocated ahead in steps after opening. Damage of the file under the running
// map is SIGBUS: the handler leaves a marker and ends the process, and the next start drops the
// index.
#include "store/index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/store_private.h"

#define MAP_BYTES_MIN (1ull << 30)
#define MAP_BYTES_MAX (1ull << 44)
#define STEP_BYTES_MIN (256u << 10)
#define STEP_BYTES_MAX (16u << 20)
#define REMOVE_DEPTH_MAX 3u
#define EXIT_INDEX_BAD 70
#define LOOKUP_ANY_MAX 8u // places tried for a header when the window has none

static const MDB_val meta_key = {1, (void *)(uintptr_t) "m"};

void index_init(struct index *index, struct store *store)
{
    memset(index, 0, sizeof(*index));
    index->store = store;
    do {
        random_bytes(&index->opener, sizeof(index->opener));
    } while (index->opener == 0);
    index->map_bytes = align_up_u64(
        max_u64(MAP_BYTES_MIN, min_u64(MAP_BYTES_MAX, store->capacity_bytes)), 1u << 20);
    index->step_bytes = STEP_BYTES_MIN;
    while (index->step_bytes < STEP_BYTES_MAX && index->step_bytes < store->capacity_bytes / 128) {
        index->step_bytes *= 2;
    }
    pthread_mutex_init(&index->renewing.lock, NULL);
    index->renewals = calloc(RENEWALS_MAX, sizeof(*index->renewals));
    check(index->renewals != NULL);
}

void index_done(struct index *index)
{
    if (index->renewals != NULL) {
        index_close(index);
        pthread_mutex_destroy(&index->renewing.lock);
        free(index->renewals);
        index->renewals = NULL;
    }
}

// --- guard

static struct {
    _Atomic uintptr_t map, map_end;
    atomic_int index_fd;
    struct sigaction before;
    bool installed;
} guard;

static _Thread_local volatile bool
    guard_opening; // this thread reads the map before its place is known

static void guard_mark_and_exit(void)
{
    int fd = openat(atomic_load(&guard.index_fd), INDEX_BAD_MARKER, O_WRONLY | O_CREAT | O_CLOEXEC,
                    0600);
    if (fd >= 0) {
        (void)fsync(fd); // the process ends either way
    }
    _exit(EXIT_INDEX_BAD);
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    if (guard_opening || (at >= atomic_load(&guard.map) && at < atomic_load(&guard.map_end))) {
        static const char text[] = "level=error event=index_map_failed remedy=restart\n";
        (void)!write(STDERR_FILENO, text, sizeof(text) - 1); // nothing else can be said from here
        guard_mark_and_exit();
    }
    (void)sigaction(number, &guard.before,
                    NULL); // not ours: the instruction is repeated and ends as it would have
}

static void on_lmdb_assert(MDB_env *env, const char *text)
{
    (void)env;
    log_error("index_assert", "text=%s", log_quote(span_from_cstr(text)));
    guard_mark_and_exit();
}

void index_guard_install(struct index *index, int index_fd)
{
    (void)index;
    atomic_store(&guard.index_fd, index_fd);
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    guard.installed = sigaction(SIGBUS, &action, &guard.before) == 0;
}

void index_guard_remove(struct index *index)
{
    (void)index;
    if (guard.installed) {
        (void)sigaction(SIGBUS, &guard.before, NULL);
        guard.installed = false;
    }
}

// --- opening and closing

void index_count(struct index *index, uint64_t objects, uint64_t blocks)
{
    stats_add(COUNTER_cache_objects, objects - atomic_exchange(&index->objects, objects));
    stats_add(COUNTER_cache_blocks, blocks - atomic_exchange(&index->blocks, blocks));
}

static void folder_clear(int fd, unsigned depth)
{
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = again >= 0 ? fdopendir(again) : NULL;
    if (folder == NULL) {
        if (again >= 0) {
            (void)close(again); // nothing was written to it
        }
        return;
    }
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            unlinkat(fd, e->d_name, 0) == 0) {
            continue;
        }
        int inner = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (inner >= 0) {
            if (depth + 1 < REMOVE_DEPTH_MAX) {
                folder_clear(inner, depth + 1);
            }
            (void)close(inner);
            (void)unlinkat(fd, e->d_name,
                           AT_REMOVEDIR); // what stays makes the next opening fail, and say so
        }
    }
    (void)closedir(folder);
}

void index_remove_files(int index_fd)
{
    folder_clear(index_fd, 0);
}

static enum err index_error(int rc)
{
    switch (rc) {
    case 0:
        return ERR_OK;
    case ENOSPC:
    case EDQUOT:
    case MDB_MAP_FULL:
        return ERR_DISK_FULL;
    case ENOMEM:
        return ERR_NO_MEMORY;
    case EIO:
    case EROFS:
    case EACCES:
    case EPERM:
    case EMFILE:
    case ENFILE:
        return ERR_IO;
    default:
        return ERR_CORRUPT;
    }
}

uint64_t index_last_txn(const struct index *index)
{
    struct index_env *env = atomic_load(&index->current);
    MDB_envinfo info;
    return env != NULL && mdb_env_info(env->env, &info) == 0 ? info.me_last_txnid : 0;
}

static int env_tables(struct index *index, struct index_env *env, bool fresh)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(env->env, NULL, fresh ? 0 : MDB_RDONLY, &txn);
    if (rc != 0) {
        return rc;
    }
    unsigned flags = fresh ? MDB_CREATE : 0;
    MDB_val key = meta_key;
    MDB_val value;
    struct index_meta meta = {.blocks = 0};
    memcpy(meta.cache_id, index->store->dir.format.cache_id, CACHE_ID_LEN);
    char bytes[INDEX_META_LEN];
    rc = mdb_dbi_open(txn, "objects", flags, &env->objects);
    rc = rc != 0 ? rc : mdb_dbi_open(txn, "places", flags, &env->places);
    rc = rc != 0 ? rc : mdb_dbi_open(txn, "meta", flags, &env->meta);
    if (rc == 0 && fresh) {
        index_meta_encode(&meta, bytes);
        value = (MDB_val){sizeof(bytes), bytes};
        rc = mdb_put(txn, env->meta, &key, &value, 0);
    } else if (rc == 0) {
        rc = mdb_get(txn, env->meta, &key, &value);
        if (rc == 0 &&
            (!index_meta_decode((struct span){value.mv_data, value.mv_size}, &meta) ||
             memcmp(meta.cache_id, index->store->dir.format.cache_id, CACHE_ID_LEN) != 0)) {
            rc = MDB_INVALID; // another cache's
        }
    }
    MDB_stat stat = {0};
    rc = rc != 0 ? rc : mdb_stat(txn, env->objects, &stat);
    if (rc != 0) {
        mdb_txn_abort(txn);
        return rc == MDB_NOTFOUND ? MDB_INVALID : rc;
    }
    index_count(index, stat.ms_entries, meta.blocks);
    rc = mdb_txn_commit(txn);
    if (rc == 0) {
        rc = mdb_txn_begin(env->env, NULL, MDB_RDONLY, &txn);
    }
    if (rc == 0) {
        rc = mdb_get(txn, env->meta, &key, &value);
        env->map = rc == 0 ? index_map_of(value.mv_data) : NULL;
        env->map_bytes = index->map_bytes;
        mdb_txn_abort(txn);
    }
    return rc;
}

static void env_free(struct index *index, struct index_env *env)
{
    if (env->env != NULL) {
        mdb_env_close(env->env);
    }
    uint64_t bytes = atomic_exchange(&index->allocated_bytes, 0);
    store_space_give(index->store, bytes);
    stats_sub(COUNTER_index_bytes, bytes);
    index_count(index, 0, 0);
    free(env);
}

static uint64_t env_file_bytes(const struct index_env *env)
{
    int fd = -1;
    struct stat st;
    if (mdb_env_get_fd(env->env, &fd) != 0 || fstat(fd, &st) != 0) {
        return 0;
    }
    return max_u64((uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
}

// Counts what the file takes up already, whatever the limit says: the supply thread makes room.
static void env_count_file(struct index *index, const struct index_env *env)
{
    uint64_t bytes = env_file_bytes(env);
    uint64_t before = atomic_load(&index->allocated_bytes);
    if (bytes > before) {
        atomic_fetch_add(&index->store->used_bytes, bytes - before);
        stats_add(COUNTER_cache_bytes, bytes - before);
        stats_add(COUNTER_index_bytes, bytes - before);
        atomic_store(&index->allocated_bytes, bytes);
    }
}

static int env_open_file(struct index *index, struct index_env *env)
{
    struct buf path;
    buf_init(&path, 8192);
    store_dir_index_path(&index->store->dir, &path);
    int rc = mdb_env_create(&env->env);
    rc = rc != 0 ? rc : mdb_env_set_mapsize(env->env, index->map_bytes);
    rc = rc != 0 ? rc : mdb_env_set_maxdbs(env->env, 3);
    rc = rc != 0 ? rc : mdb_env_set_assert(env->env, on_lmdb_assert);
    rc = rc != 0 ? rc
                 : mdb_env_open(env->env, buf_cstr(&path),
                                MDB_NOTLS | MDB_NORDAHEAD | MDB_NOMETASYNC, 0600);
    buf_done(&path);
    return rc;
}

enum err index_open(struct index *index, uint64_t txn_least, bool txn_exact)
{
    struct stat st;
    bool fresh = fstatat(index->store->dir.index_fd, "data.mdb", &st, AT_SYMLINK_NOFOLLOW) != 0;
    if (fresh && txn_least > 0) {
        return ERR_CORRUPT; // there was one: gone with everything in it
    }
    if (!fresh && (!S_ISREG(st.st_mode) || st.st_size == 0)) {
        return ERR_CORRUPT;
    }
    struct index_env *env = calloc(1, sizeof(*env));
    check(env != NULL);
    guard_opening = true;
    int rc = env_open_file(index, env);
    if (rc == 0) {
        MDB_envinfo info;
        rc = mdb_env_info(env->env, &info);
        bool old = rc == 0 &&
                   (txn_exact ? info.me_last_txnid != txn_least : info.me_last_txnid < txn_least);
        rc = rc == 0 && old ? MDB_INVALID : rc;
    }
    rc = rc != 0 ? rc : env_tables(index, env, fresh);
    guard_opening = false;
    enum err err = index_error(rc);
    if (err == ERR_OK) {
        env_count_file(index, env);
        err = index_grow(index, env, atomic_load(&index->allocated_bytes) + 1);
        err = err == ERR_DISK_FULL ? ERR_OK : err; // it can be read, and grows before it is written
    }
    if (err != ERR_OK) {
        log_warn("index_refused", "err=%s lmdb=%s", error_name(err),
                 log_quote(span_from_cstr(mdb_strerror(rc))));
        env_free(index, env);
        return err;
    }
    atomic_store(&guard.map, (uintptr_t)env->map);
    atomic_store(&guard.map_end, (uintptr_t)env->map + env->map_bytes);
    atomic_store(&index->current, env);
    return ERR_OK;
}

void index_close(struct index *index)
{
    struct index_env *env = atomic_exchange(&index->current, NULL);
    if (env == NULL) {
        return;
    }
    for (unsigned i = 0; i < index->reader_count; i++) {
        struct index_reader *reader = index->readers[i];
        while (atomic_load(&reader->busy)) {
            (void)sched_yield(); // a look-up takes microseconds
        }
        if (reader->txn != NULL) {
            mdb_cursor_close(reader->cursor);
            mdb_txn_abort(reader->txn);
            reader->txn = NULL;
            reader->cursor = NULL;
            reader->env = NULL;
        }
    }
    atomic_store(&guard.map, 0);
    atomic_store(&guard.map_end, 0);
    env_free(index, env);
}

enum err index_grow(struct index *index, struct index_env *env, uint64_t bytes)
{
    uint64_t have = atomic_load(&index->allocated_bytes);
    if (bytes <= have) {
        return ERR_OK;
    }
    struct store *store = index->store;
    uint64_t want = align_up_u64(bytes, index->step_bytes);
    if (!store_space_reserve(store, want - have, store->capacity_bytes)) {
        want = align_up_u64(bytes, 65536);
        if (!store_space_reserve(store, want - have, store->capacity_bytes)) {
            segment_log_want(&store->log, true);
            return ERR_DISK_FULL;
        }
    }
    int fd = -1;
    int failed = store_fault_strike(STORE_FAULT_ALLOCATE);
    if (failed == 0) {
        failed = mdb_env_get_fd(env->env, &fd);
    }
    if (failed == 0 && fallocate(fd, 0, 0, (off_t)want) != 0 && errno != EOPNOTSUPP) {
        failed = errno;
    }
    if (failed != 0) {
        store_space_give(store, want - have);
        return error_from_errno(failed);
    }
    stats_add(COUNTER_index_bytes, want - have);
    atomic_store(&index->allocated_bytes, want);
    return ERR_OK;
}

// --- look-up

// The worker is inside LMDB with a fresh view until reader_leave(). NULL: no index, or it cannot be
// read.
static struct index_env *reader_enter(struct index *index, struct index_reader *reader)
{
    atomic_store(&reader->busy, true);
    struct index_env *env = atomic_load(&index->current);
    int rc = env == NULL ? MDB_NOTFOUND : 0;
    if (rc == 0 && reader->txn == NULL) {
        rc = mdb_txn_begin(env->env, NULL, MDB_RDONLY, &reader->txn);
        if (rc == 0) {
            rc = mdb_cursor_open(reader->txn, env->places, &reader->cursor);
            if (rc != 0) {
                mdb_txn_abort(reader->txn);
                reader->txn = NULL;
            }
        }
        reader->env = env;
    } else if (rc == 0) {
        check(reader->env == env);
        rc = mdb_txn_renew(reader->txn);
    }
    if (rc != 0) {
        atomic_store(&reader->busy, false);
        return NULL;
    }
    return env;
}

static void reader_leave(struct index_reader *reader)
{
    mdb_txn_reset(reader->txn);
    atomic_store(&reader->busy, false);
}

// Pinned and not known bad. A place whose segment is gone for good: its entry goes too.
static bool view_pin(struct index *index, struct store_view *view, struct hash128 hash,
                     const struct index_place *place, uint64_t first_block,
                     struct store_place *ret_found)
{
    struct segment_log *log = &index->store->log;
    struct store_place found =
        index_place_to_store(place, view->generation, first_block, view->block_size_bytes);
    struct segment *segment = segment_log_entry(log, place->number);
    if (!segment_pin(segment, place->number)) {
        if (segment_log_lacks(log, place->number)) {
            index_writer_remove_later(&index->store->writer, hash, &found, false);
        }
        return false;
    }
    if (segment_is_bad(segment, place->header_offset) ||
        (uint64_t)place->payload_offset + place->payload_len > log->segment_size_bytes) {
        segment_unpin(segment);
        return false;
    }
    found.segment = segment;
    found.hash = hash;
    found.etag_hash = view->etag_hash;
    *ret_found = found;
    return true;
}

static void view_add(struct index *index, struct store_view *view, struct hash128 hash,
                     const struct index_place *place, uint64_t first_block)
{
    if (view->place_count < STORE_VIEW_PLACES_MAX &&
        view_pin(index, view, hash, place, first_block, &view->places[view->place_count])) {
        view->place_count++;
    }
}

// The place of one row, when it is good and of this version. False: the rows of the version end.
static bool lookup_row(const struct store_view *view, struct hash128 hash, const MDB_val *key,
                       const MDB_val *value, uint64_t *ret_block, struct index_place *ret_place,
                       bool *ret_good)
{
    uint64_t generation;
    struct hash128 owner;
    if (key->mv_size != INDEX_PLACE_KEY_LEN) {
        return false;
    }
    index_place_key_parse(key->mv_data, &generation, ret_block);
    if (generation != view->generation) {
        return false;
    }
    bool decoded = index_place_decode(
        generation, *ret_block, (struct span){value->mv_data, value->mv_size}, &owner, ret_place);
    (void)count_if(!decoded, COUNTER_index_bad_records);
    *ret_good =
        decoded && hash128_equal(owner, hash) &&
        ret_place->payload_len == segment_run_payload_len(view->size_bytes, view->block_size_bytes,
                                                          *ret_block, ret_place->block_count);
    return true;
}

// Places of an object of several runs that overlap [first, end) blocks. A run that begins earlier
// may reach in.
static void lookup_places(struct index *index, struct index_reader *reader, struct hash128 hash,
                          uint64_t first, uint64_t end, struct store_view *view)
{
    uint64_t reach = max_u64(1, STORE_RUN_MAX / view->block_size_bytes) - 1;
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(view->generation, first > reach ? first - reach : 0, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    uint64_t block;
    struct index_place place;
    bool good;
    int rc = mdb_cursor_get(reader->cursor, &key, &value, MDB_SET_RANGE);
    for (unsigned i = 0; rc == 0 && i < 2 * STORE_VIEW_PLACES_MAX; i++) {
        if (!lookup_row(view, hash, &key, &value, &block, &place, &good) || block >= end) {
            break;
        }
        if (good && block + place.block_count > first) {
            view_add(index, view, hash, &place, block);
        }
        rc = mdb_cursor_get(reader->cursor, &key, &value, MDB_NEXT);
    }
}

// Some run of the object, whatever it holds: its header describes the version.
static void lookup_any(struct index *index, struct index_reader *reader, struct hash128 hash,
                       struct store_view *view)
{
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(view->generation, 0, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    uint64_t block;
    struct index_place place;
    bool good;
    int rc = mdb_cursor_get(reader->cursor, &key, &value, MDB_SET_RANGE);
    for (unsigned i = 0; rc == 0 && i < LOOKUP_ANY_MAX; i++) {
        if (!lookup_row(view, hash, &key, &value, &block, &place, &good) ||
            (good && view_pin(index, view, hash, &place, block, &view->any))) {
            break;
        }
        rc = mdb_cursor_get(reader->cursor, &key, &value, MDB_NEXT);
    }
}

static uint64_t age_ms(uint64_t then, uint64_t now)
{
    return now >= then ? now - then : UINT64_MAX;
}

static bool renewal_find(const struct index *index, struct hash128 hash, uint64_t generation,
                         uint64_t *ret_mono_ms);

static void view_age(const struct index *index, struct hash128 hash,
                     const struct index_record *record, struct store_view *view)
{
    uint64_t mono_ms;
    view->rebuilt = (record->flags & INDEX_REBUILT) != 0;
    if (renewal_find(index, hash, record->generation, &mono_ms)) {
        view->rebuilt = false;
        view->age_ms = age_ms(mono_ms, clock_monotonic_ms());
    } else if (view->rebuilt || record->validated_wall_ms == 0) {
        view->age_ms = UINT64_MAX;
    } else if (record->opener == index->opener) {
        view->age_ms = age_ms(record->validated_mono_ms, clock_monotonic_ms());
    } else {
        view->age_ms = age_ms(record->validated_wall_ms, clock_wall_us() / 1000);
    }
}

void index_lookup(struct index *index, struct index_reader *reader, struct hash128 hash,
                  uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                  struct store_view *ret_view)
{
    ret_view->found = false;
    ret_view->place_count = 0;
    ret_view->any.segment = NULL;
    struct index_env *env = reader_enter(index, reader);
    if (env == NULL) {
        return;
    }
    char key_bytes[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    struct index_record record;
    int rc = mdb_get(reader->txn, env->objects, &key, &value);
    bool good =
        rc == 0 && index_object_decode(hash, (struct span){value.mv_data, value.mv_size}, &record);
    (void)count_if(rc == 0 && !good, COUNTER_index_bad_records);
    if (good && record.generation >= floor) {
        ret_view->found = true;
        ret_view->generation = record.generation;
        ret_view->size_bytes = record.size_bytes;
        ret_view->block_size_bytes = record.block_size_bytes;
        ret_view->etag_hash = record.etag_hash;
        view_age(index, hash, &record, ret_view);
        uint64_t blocks = segment_run_object_blocks(record.size_bytes, record.block_size_bytes);
        uint64_t first = first_byte / record.block_size_bytes;
        uint64_t end =
            end_byte / record.block_size_bytes + (end_byte % record.block_size_bytes != 0);
        end = min_u64(max_u64(end, first + 1), blocks);
        bool whole = (record.flags & INDEX_WHOLE) != 0;
        bool cursor = !whole && mdb_cursor_renew(reader->txn, reader->cursor) == 0;
        if (whole && first < end) {
            view_add(index, ret_view, hash, &record.place, 0);
        } else if (cursor && first < end) {
            lookup_places(index, reader, hash, first, end, ret_view);
        }
        if (ret_view->place_count == 0 && whole) {
            (void)view_pin(index, ret_view, hash, &record.place, 0, &ret_view->any);
        } else if (ret_view->place_count == 0 && cursor) {
            lookup_any(index, reader, hash, ret_view);
        }
    }
    reader_leave(reader);
}

// --- renewals

static struct renewal *renewal_slot(const struct index *index, struct hash128 hash, unsigned probe)
{
    return &index->renewals[(hash.lo + probe) % RENEWALS_MAX];
}

// A consistent copy without the lock; false: it changes just now, or is empty.
static bool renewal_read(struct renewal *r, struct renewal_copy *ret_copy)
{
    unsigned before = atomic_load_explicit(&r->sequence, memory_order_acquire);
    struct renewal_copy copy = {
        .hash = {atomic_load_explicit(&r->hi, memory_order_acquire),
                 atomic_load_explicit(&r->lo, memory_order_acquire)},
        .generation = atomic_load_explicit(&r->generation, memory_order_acquire),
        .validated_mono_ms = atomic_load_explicit(&r->validated_mono_ms, memory_order_acquire),
        .validated_wall_ms = atomic_load_explicit(&r->validated_wall_ms, memory_order_acquire),
    };
    if (before % 2 != 0 || atomic_load_explicit(&r->sequence, memory_order_relaxed) != before ||
        copy.generation == 0) {
        return false;
    }
    *ret_copy = copy;
    return true;
}

static void renewal_write_locked(struct renewal *r, const struct renewal_copy *copy)
{
    atomic_fetch_add(&r->sequence, 1);
    atomic_store(&r->hi, copy->hash.hi);
    atomic_store(&r->lo, copy->hash.lo);
    atomic_store(&r->generation, copy->generation);
    atomic_store(&r->validated_mono_ms, copy->validated_mono_ms);
    atomic_store(&r->validated_wall_ms, copy->validated_wall_ms);
    atomic_fetch_add(&r->sequence, 1);
}

static bool renewal_find(const struct index *index, struct hash128 hash, uint64_t generation,
                         uint64_t *ret_mono_ms)
{
    if (atomic_load_explicit(&index->renewal_count, memory_order_acquire) == 0) {
        return false;
    }
    for (unsigned probe = 0; probe < RENEWAL_PROBES; probe++) {
        struct renewal_copy copy;
        if (renewal_read(renewal_slot(index, hash, probe), &copy) &&
            hash128_equal(copy.hash, hash) && copy.generation == generation) {
            *ret_mono_ms = copy.validated_mono_ms;
            return true;
        }
    }
    return false;
}

unsigned index_renew(struct index *index, const struct store_renewal *renewals, size_t count,
                     uint64_t mono_ms, uint64_t wall_ms)
{
    unsigned taken = 0;
    pthread_mutex_lock(&index->renewing.lock);
    for (size_t i = 0; i < count; i++) {
        struct renewal *slot = NULL;
        for (unsigned probe = 0; probe < RENEWAL_PROBES; probe++) {
            struct renewal *r = renewal_slot(index, renewals[i].hash, probe);
            bool same = atomic_load(&r->hi) == renewals[i].hash.hi &&
                        atomic_load(&r->lo) == renewals[i].hash.lo;
            if (atomic_load(&r->generation) == 0) {
                slot = slot != NULL ? slot : r;
            } else if (same) {
                slot = r;
                break;
            }
        }
        if (slot == NULL) {
            continue; // it stays stale and is asked again
        }
        if (atomic_load(&slot->generation) == 0) {
            index->renewing.count++;
        }
        struct renewal_copy copy = {renewals[i].hash, renewals[i].generation, mono_ms, wall_ms};
        renewal_write_locked(slot, &copy);
        taken++;
    }
    atomic_store(&index->renewal_count, index->renewing.count);
    pthread_mutex_unlock(&index->renewing.lock);
    return taken;
}

unsigned index_renewals_take(struct index *index, struct renewal_copy *ret_copies, unsigned max)
{
    unsigned count = 0;
    for (unsigned i = 0; i < RENEWALS_MAX && count < max; i++) {
        if (renewal_read(&index->renewals[i], &ret_copies[count])) {
            count++;
        }
    }
    return count;
}

void index_renewed(struct index *index, const struct renewal_copy *copies, unsigned count)
{
    pthread_mutex_lock(&index->renewing.lock);
    for (unsigned i = 0; i < count; i++) {
        for (unsigned probe = 0; probe < RENEWAL_PROBES; probe++) {
            struct renewal *r = renewal_slot(index, copies[i].hash, probe);
            struct renewal_copy now;
            if (renewal_read(r, &now) && memcmp(&now, &copies[i], sizeof(now)) == 0) {
                renewal_write_locked(r, &(struct renewal_copy){0});
                index->renewing.count--;
                break;
            }
        }
    }
    atomic_store(&index->renewal_count, index->renewing.count);
    pthread_mutex_unlock(&index->renewing.lock);
}
