// SPDX-License-Identifier: Apache-2.0
// The LMDB environment, and the renewals that LMDB does not hold yet. index_lookup.c reads the
// index, index_apply.c writes it, and index_memory.c holds the changes that are not durable yet.
//
// The index may be dropped while workers serve. index_close() sets `current` to NULL and then waits
// until each reader has left LMDB, which takes microseconds. A reader sets `busy` before it reads
// `current`. These accesses are in one total order, so either the closing thread sees `busy`, or
// the reader sees NULL.
//
// A commit and its meta page are on disk when the commit returns, because MDB_NOMETASYNC is not
// set. So a deleted record cannot come back after a power cut, and a client's write that waited for
// the delete is safe.
//
// This file keeps LMDB's rules: never MDB_WRITEMAP, one environment per process, and a map size
// that never changes. The file is allocated in steps before it is written. If the file is truncated
// or unreadable under the map, the kernel raises SIGBUS. The handler leaves a marker and ends the
// process, and the next start drops the index.
#include "store/index/index.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/segment/segment_log.h"

#define MAP_BYTES_MIN (1ull << 30)
#define MAP_BYTES_MAX (1ull << 44)
#define STEP_BYTES_MIN (256u << 10)
#define STEP_BYTES_MAX (16u << 20)
#define GROW_ALIGN 65536u
#define LOCK_FILE "lock.mdb"
#define LOCK_FILE_BYTES 8192 // with LMDB's 126 readers
#define REMOVE_DEPTH_MAX 3u
#define EXIT_INDEX_BAD 70
static_assert(MEMORY_READERS_MAX < INDEX_READERS_MAX, "each worker reads both, recovery one");
static_assert(STEP_BYTES_MIN % GROW_ALIGN == 0, "each step ends where the file may end");
static_assert(RENEWAL_PROBES <= RENEWALS_MAX / 4, "a full table has free entries to find");

static const MDB_val meta_key = {1, (void *)(uintptr_t) "m"};

void index_init(struct index *index, const struct index_options *options)
{
    const struct store_disk *disk = options->disk;
    const struct index_host *host = &options->host;
    check(disk != NULL && options->log != NULL && options->writer != NULL);
    check(host->want_rebuild != NULL && host->want_new_index != NULL && host->want_round != NULL);
    check(host->may_stay != NULL && host->gone != NULL);
    check(host->condemned_save != NULL);
    check(options->worker_count > 0 && options->worker_count < INDEX_READERS_MAX);
    memset(index, 0, sizeof(*index));
    index->disk = options->disk;
    index->log = options->log;
    index->writer = options->writer;
    index->host = options->host;
    do {
        random_bytes(&index->opener, sizeof(index->opener));
    } while (index->opener == 0);
    index->map_bytes = align_up_u64(
        max_u64(MAP_BYTES_MIN, min_u64(MAP_BYTES_MAX, disk->capacity_bytes)), 1u << 20);
    index->step_bytes = STEP_BYTES_MIN;
    while (index->step_bytes < STEP_BYTES_MAX && index->step_bytes < disk->capacity_bytes / 128) {
        index->step_bytes *= 2;
    }
    check(index->map_bytes % GROW_ALIGN == 0 && index->step_bytes % GROW_ALIGN == 0);
    check(pthread_mutex_init(&index->renewing.lock, NULL) == 0);
    index->renewals = calloc(RENEWALS_MAX, sizeof(*index->renewals));
    check(index->renewals != NULL);
    index_memory_init(&index->memory, options->worker_count);
    index_set_pending_max(index, disk->segment_limit_bytes / 2);
}

void index_set_reader(struct index *index, unsigned number, struct index_reader *reader)
{
    check(number < INDEX_READERS_MAX);
    check(index->readers[number] == NULL || index->readers[number] == reader);
    check(reader->txn == NULL && atomic_load(&index->current) == NULL);
    *reader = (struct index_reader){.number = number};
    index->readers[number] = reader;
    index->reader_count = max_u64(index->reader_count, number + 1);
}

void index_set_cuts(struct index *index, uint8_t cuts)
{
    index->cuts = cuts;
}

void index_set_pending_max(struct index *index, uint64_t bytes)
{
    check(bytes > 0);
    atomic_store(&index->memory.pending_bytes_max, bytes);
}

void index_done(struct index *index)
{
    if (index->renewals != NULL) {
        index_close(index);
        check(pthread_mutex_destroy(&index->renewing.lock) == 0);
        free(index->renewals);
        index->renewals = NULL;
        index_memory_done(&index->memory);
    }
}

// --- the guard against SIGBUS

static struct {
    _Atomic uintptr_t map, map_end;
    atomic_int index_fd;
    struct sigaction before;
    bool installed;
} guard;

// Set while this thread opens an environment. Until the open has ended, `guard` lacks the address
// of the environment's map.
static _Thread_local volatile bool guard_opening;

static void guard_mark_and_exit(void)
{
    int fd = openat(atomic_load(&guard.index_fd), INDEX_BAD_MARKER,
                    O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd >= 0) {
        (void)fsync(fd); // may fail, but the process ends in any case
    }
    _exit(EXIT_INDEX_BAD);
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    if (guard_opening || (at >= atomic_load(&guard.map) && at < atomic_load(&guard.map_end))) {
        static const char text[] = "level=error event=index_map_failed remedy=restart\n";
        (void)!write(STDERR_FILENO, text, sizeof(text) - 1); // a signal handler cannot do more
        guard_mark_and_exit();
    }
    // The fault is not in LMDB's map. After the return, the instruction runs again and faults
    // again, now under the previous handler.
    (void)sigaction(number, &guard.before, NULL);
}

static void on_lmdb_assert(MDB_env *env, const char *text)
{
    (void)env;
    log_error("index_assert", "text=%s", log_quote(span_from_cstr(text)));
    guard_mark_and_exit();
}

void index_guard_install(int index_fd)
{
    check(index_fd >= 0);
    atomic_store(&guard.index_fd, index_fd);
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    guard.installed = sigaction(SIGBUS, &action, &guard.before) == 0;
}

void index_guard_remove(void)
{
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

static int folder_sync(int fd)
{
    return fsync(fd) == 0 ? 0 : errno;
}

static void folder_clear(int fd, unsigned depth)
{
    check(depth < REMOVE_DEPTH_MAX);
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = again >= 0 ? fdopendir(again) : NULL;
    if (folder == NULL) {
        if (again >= 0) {
            (void)close(again); // nothing was written, so an error loses nothing
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
            // If this fails, the next attempt to open the index fails and reports it.
            (void)unlinkat(fd, e->d_name, AT_REMOVEDIR);
        }
    }
    (void)closedir(folder);
}

void index_remove_files(int index_fd)
{
    check(index_fd >= 0);
    // Remove data.mdb before the marker. If the process is killed in between, the next one must not
    // trust the remaining files. If data.mdb cannot be removed, the next opening reports it.
    (void)!unlinkat(index_fd, "data.mdb", 0);
    (void)folder_sync(index_fd);
    folder_clear(index_fd, 0);
    (void)folder_sync(index_fd);
}

static int marker_write(int index_fd)
{
    int fd = openat(index_fd, INDEX_BAD_MARKER,
                    O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        return errno;
    }
    int failed = fsync(fd) == 0 ? 0 : errno;
    (void)close(fd); // nothing was written to the file, so an error loses nothing
    return failed != 0 ? failed : folder_sync(index_fd);
}

enum err index_disown(int index_fd, bool *ret_removed)
{
    check(index_fd >= 0 && ret_removed != NULL);
    int failed = store_fault_strike(STORE_FAULT_DISOWN);
    failed = failed != 0 ? failed : marker_write(index_fd);
    if (failed == 0) {
        *ret_removed = false;
        return ERR_OK;
    }
    failed = store_fault_strike(STORE_FAULT_REMOVE);
    if (failed == 0 && unlinkat(index_fd, "data.mdb", 0) != 0 && errno != ENOENT) {
        failed = errno;
    }
    failed = failed != 0 ? failed : folder_sync(index_fd);
    if (failed == 0) {
        *ret_removed = true;
    }
    return failed == 0 ? ERR_OK : error_from_errno(failed);
}

bool index_is_gone(const struct index *index)
{
    int index_fd = index->disk->dir.index_fd;
    check(index_fd >= 0);
    return faccessat(index_fd, "data.mdb", F_OK, 0) != 0 && errno == ENOENT &&
           folder_sync(index_fd) == 0;
}

void index_own(struct index *index)
{
    if (atomic_load(&index->current) != NULL) {
        // If this fails, the marker stays, and the next start rebuilds the index once.
        (void)unlinkat(index->disk->dir.index_fd, INDEX_BAD_MARKER, 0);
    }
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
        return ERR_IO;
    case EMFILE:
    case ENFILE:
        return ERR_DESCRIPTORS;
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
    memcpy(meta.cache_id, index->disk->dir.format.cache_id, CACHE_ID_LEN);
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
             memcmp(meta.cache_id, index->disk->dir.format.cache_id, CACHE_ID_LEN) != 0)) {
            rc = MDB_INVALID; // the file is the index of another cache
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
    check(atomic_load(&index->current) != env);
    if (env->env != NULL) {
        mdb_env_close(env->env);
    }
    uint64_t bytes = atomic_exchange(&index->allocated_bytes, 0);
    disk_space_give(index->disk, bytes);
    stats_sub(COUNTER_index_bytes, bytes);
    index_count(index, 0, 0);
    index_proof_done(&env->proof);
    free(env);
}

uint64_t index_file_bytes(int index_fd)
{
    struct stat st;
    check(index_fd >= 0);
    if (fstatat(index_fd, "data.mdb", &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return 0;
    }
    return max_u64((uint64_t)st.st_blocks * 512, (uint64_t)st.st_size);
}

// Returns the bytes of all pages up to the last one that any commit has used, including free pages.
static uint64_t env_used_bytes(const struct index_env *env)
{
    MDB_envinfo info;
    MDB_stat stat;
    bool known = mdb_env_info(env->env, &info) == 0 && mdb_env_stat(env->env, &stat) == 0;
    return known ? (info.me_last_pgno + 1) * (uint64_t)stat.ms_psize : 0;
}

// Counts the bytes that the file already takes, even if they exceed cache.size. The supply thread
// then makes room.
static void env_count_file(struct index *index)
{
    uint64_t bytes = index_file_bytes(index->disk->dir.index_fd);
    uint64_t before = atomic_load(&index->allocated_bytes);
    if (bytes > before) {
        atomic_fetch_add(&index->disk->used_bytes, bytes - before);
        stats_add(COUNTER_cache_bytes, bytes - before);
        stats_add(COUNTER_index_bytes, bytes - before);
        atomic_store(&index->allocated_bytes, bytes);
    }
}

// Creates lock.mdb on disk. LMDB writes to a map of it, so on a full disk a page without space
// would end the process by SIGBUS. Hence all of it is allocated.
static int lock_on_disk(int index_fd)
{
    int fd = openat(index_fd, LOCK_FILE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return errno;
    }
    bool failed = fallocate(fd, 0, 0, LOCK_FILE_BYTES) != 0 && errno != EOPNOTSUPP;
    int rc = failed ? errno : 0;
    (void)close(fd); // nothing was written, so an error loses nothing
    return rc;
}

// Creates lock.mdb as a symbolic link to a file in memory. Each look-up of a worker writes to
// LMDB's map of this file. On a file system that takes no writes, the worker would wait in the
// kernel. Returns the descriptor of the file in memory, or -1 if there can be none, as without
// /proc.
static int lock_in_memory(int index_fd)
{
    char link[40];
    struct stat st;
    int fd = memfd_create("forebay-index-lock", MFD_CLOEXEC);
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (fd >= 0 && (stat(link, &st) != 0 || symlinkat(link, index_fd, LOCK_FILE) != 0)) {
        (void)close(fd); // nothing was written, so an error loses nothing
        return -1;
    }
    return fd;
}

// Opens the environment with a new lock file. Removes the file's name when LMDB has opened it, so
// no other process uses this lock file. The lock of the cache directory keeps other processes out.
static int env_open_locked(const struct index *index, const struct index_env *env, const char *path)
{
    int index_fd = index->disk->dir.index_fd;
    // An older release leaves the file, and a process that is killed here may leave its name.
    if (unlinkat(index_fd, LOCK_FILE, 0) != 0 && errno != ENOENT) {
        return errno;
    }
    int fd = lock_in_memory(index_fd);
    if (fd < 0) {
        log_warn("index_lock_on_disk", "dir=%s", log_quote(span_from_cstr(index->disk->dir.path)));
    }
    int rc = fd >= 0 ? 0 : lock_on_disk(index_fd);
    rc = rc != 0 ? rc : mdb_env_open(env->env, path, MDB_NOTLS | MDB_NORDAHEAD, 0600);
    (void)unlinkat(index_fd, LOCK_FILE, 0); // if this fails, the next opening removes it
    if (fd >= 0) {
        (void)close(fd); // LMDB has its own descriptor
    }
    return rc;
}

static int env_open_file(struct index *index, struct index_env *env)
{
    struct buf path;
    buf_init(&path, 8192);
    store_dir_index_path(&index->disk->dir, &path);
    int rc = mdb_env_create(&env->env);
    rc = rc != 0 ? rc : mdb_env_set_mapsize(env->env, index->map_bytes);
    rc = rc != 0 ? rc : mdb_env_set_maxdbs(env->env, 3);
    rc = rc != 0 ? rc : mdb_env_set_assert(env->env, on_lmdb_assert);
    rc = rc != 0 ? rc : env_open_locked(index, env, buf_cstr(&path));
    buf_done(&path);
    int fd; // LMDB opens it without close-on-exec
    if (rc == 0 && mdb_env_get_fd(env->env, &fd) == 0) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC); // cannot fail
    }
    return rc;
}

enum err index_open(struct index *index, uint64_t txn_least, bool txn_exact)
{
    struct stat st;
    check(atomic_load(&index->current) == NULL && atomic_load(&index->allocated_bytes) == 0);
    check(index->disk->dir.index_fd >= 0);
    bool fresh = fstatat(index->disk->dir.index_fd, "data.mdb", &st, AT_SYMLINK_NOFOLLOW) != 0;
    if (fresh && txn_least > 0) {
        return ERR_CORRUPT; // the cache had an index, but its file is gone
    }
    if (!fresh && (!S_ISREG(st.st_mode) || st.st_size == 0)) {
        return ERR_CORRUPT;
    }
    struct index_env *env = calloc(1, sizeof(*env));
    check(env != NULL);
    env->id = ++index->openings;
    atomic_init(&env->proof.is_whole, fresh);
    guard_opening = true;
    int rc = env_open_file(index, env);
    if (rc == 0) {
        MDB_envinfo info;
        rc = mdb_env_info(env->env, &info);
        index_proof_init(&env->proof, rc == 0 ? info.me_last_pgno + 1 : 0);
        bool old = rc == 0 &&
                   (txn_exact ? info.me_last_txnid != txn_least : info.me_last_txnid < txn_least);
        rc = rc == 0 && old ? MDB_INVALID : rc;
    }
    rc = rc != 0 ? rc : env_tables(index, env, fresh);
    // An older release committed without syncing the meta page. Sync it now, because this process
    // relies on those commits, and they must survive a power cut.
    rc = rc != 0 ? rc : mdb_env_sync(env->env, 1);
    rc = rc == 0 && fresh ? folder_sync(index->disk->dir.index_fd) : rc;
    guard_opening = false;
    enum err err = index_error(rc);
    if (err == ERR_OK) {
        env_count_file(index);
        // Allocate some room after the last page. If there is none, the index still opens: reads
        // need no room, and the file grows before each write.
        err = index_grow(index, env, env_used_bytes(env) + 1);
        err = err == ERR_DISK_FULL ? ERR_OK : err;
    }
    if (err != ERR_OK) {
        log_warn_condition("index_refused", "err=%s lmdb=%s", error_name(err),
                           log_quote(span_from_cstr(mdb_strerror(rc))));
        env_free(index, env);
        return err;
    }
    check(env->map != NULL && (uintptr_t)env->map % INDEX_PAGE_BYTES == 0);
    check(env->proof.pages != NULL);
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
            (void)sched_yield(); // the wait is short, because a look-up takes microseconds
        }
        check((reader->txn == NULL) == (reader->cursor == NULL));
        if (reader->txn != NULL) {
            check(reader->env == env);
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

bool index_has_room(const struct index *index, uint64_t bytes)
{
    uint64_t have = atomic_load(&index->allocated_bytes);
    uint64_t used = atomic_load(&index->disk->used_bytes);
    uint64_t ceiling = atomic_load(&index->disk->ceiling_bytes);
    return bytes <= have ||
           (used <= ceiling && align_up_u64(bytes, GROW_ALIGN) - have <= ceiling - used);
}

bool index_is_full(const struct index *index)
{
    uint64_t until_us = atomic_load_explicit(&index->full_until_us, memory_order_relaxed);
    return until_us != 0 && clock_monotonic_us() < until_us;
}

// Records for disk_room.c whether the file system gave the index room or refused it. Wakes the
// supply thread if that changed.
static void room_answer(struct index *index, bool refused)
{
    if (disk_room_answer_index(index->disk, refused)) {
        segment_log_want(index->log, refused);
    }
}

enum err index_grow(struct index *index, struct index_env *env, uint64_t bytes)
{
    uint64_t have = atomic_load(&index->allocated_bytes);
    index->is_short = false;
    if (bytes <= have) {
        return ERR_OK;
    }
    struct store_disk *disk = index->disk;
    check(env != NULL);
    uint64_t want = align_up_u64(bytes, index->step_bytes);
    if (!disk_space_reserve(disk, want - have, disk->ceiling_bytes)) {
        want = align_up_u64(bytes, GROW_ALIGN);
        if (!disk_space_reserve(disk, want - have, disk->ceiling_bytes)) {
            index->is_short = true;
            segment_log_want(index->log, true);
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
        disk_space_give(disk, want - have);
        if (failed == ENOSPC || failed == EDQUOT) {
            room_answer(index, true);
        }
        return error_from_errno(failed);
    }
    room_answer(index, false);
    check(want >= bytes && want > have);
    stats_add(COUNTER_index_bytes, want - have);
    atomic_store(&index->allocated_bytes, want);
    return ERR_OK;
}

// Truncates the part that was allocated ahead. This is safe, because no thread reads after the last
// page that any commit has used.
static void index_cut(struct index *index, struct index_env *env)
{
    int fd = -1;
    uint64_t used = env_used_bytes(env);
    if (used == 0 || mdb_env_get_fd(env->env, &fd) != 0) {
        return;
    }
    uint64_t have = atomic_load(&index->allocated_bytes);
    uint64_t need = align_up_u64(used, GROW_ALIGN);
    if (need < have && ftruncate(fd, (off_t)need) == 0) {
        atomic_store(&index->allocated_bytes, need);
        disk_space_give(index->disk, have - need);
        stats_sub(COUNTER_index_bytes, have - need);
    }
}

bool index_fit(struct index *index)
{
    struct index_env *env = atomic_load(&index->current);
    if (env == NULL) {
        return true;
    }
    index_cut(index, env);
    if (disk_excess(index->disk) == 0 ||
        index->host.may_stay(index->host.ctx, atomic_load(&index->allocated_bytes))) {
        return true;
    }
    log_warn("index_dropped", "reason=size");
    // Request the rebuild before the caller drops the index. From the request on, the memory side
    // keeps deletes until the rebuild ends, because the new index needs them.
    index->host.want_rebuild(index->host.ctx);
    return false;
}

// --- renewals

static struct renewal *renewal_slot(const struct index *index, struct hash128 hash, unsigned probe)
{
    return &index->renewals[(hash.lo + probe) % RENEWALS_MAX];
}

// Copies a renewal without the lock. Returns false if it is being changed, or is empty.
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
    uint64_t sums[RENEWAL_SUMS];
    for (unsigned i = 0; i < RENEWAL_SUMS; i++) {
        sums[i] = atomic_load_explicit(&r->sums[i], memory_order_acquire);
    }
    if (before % 2 != 0 || atomic_load_explicit(&r->sequence, memory_order_relaxed) != before ||
        copy.generation == 0) {
        return false;
    }
    memcpy(&copy.sums, sums, sizeof(sums));
    *ret_copy = copy;
    return true;
}

static void renewal_write_locked(struct renewal *r, const struct renewal_copy *copy)
{
    // It is even, because the lock keeps other writers out.
    check(atomic_load(&r->sequence) % 2 == 0);
    check(copy->sums.len <= STORE_SUMS_MAX);
    atomic_fetch_add(&r->sequence, 1);
    atomic_store(&r->hi, copy->hash.hi);
    atomic_store(&r->lo, copy->hash.lo);
    atomic_store(&r->generation, copy->generation);
    atomic_store(&r->validated_mono_ms, copy->validated_mono_ms);
    atomic_store(&r->validated_wall_ms, copy->validated_wall_ms);
    uint64_t sums[RENEWAL_SUMS];
    memcpy(sums, &copy->sums, sizeof(sums));
    for (unsigned i = 0; i < RENEWAL_SUMS; i++) {
        atomic_store(&r->sums[i], sums[i]);
    }
    atomic_fetch_add(&r->sequence, 1);
}

bool index_renewal_find(const struct index *index, struct hash128 hash,
                        struct renewal_copy *ret_copy)
{
    if (atomic_load_explicit(&index->renewal_count, memory_order_acquire) == 0) {
        return false;
    }
    for (unsigned probe = 0; probe < RENEWAL_PROBES; probe++) {
        struct renewal_copy copy;
        if (renewal_read(renewal_slot(index, hash, probe), &copy) &&
            hash128_equal(copy.hash, hash)) {
            *ret_copy = copy;
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
            // No free entry nearby: drop the renewal, so the version stays stale and is revalidated
            // again.
            continue;
        }
        if (atomic_load(&slot->generation) == 0) {
            check(index->renewing.count < RENEWALS_MAX);
            index->renewing.count++;
            stats_add(COUNTER_index_renewals_waiting, 1);
        }
        struct renewal_copy copy = {renewals[i].hash, renewals[i].generation, mono_ms, wall_ms,
                                    renewals[i].sums};
        struct renewal_copy before;
        if (copy.sums.len == 0 && renewal_read(slot, &before) &&
            before.generation == copy.generation) {
            copy.sums = before.sums;
        }
        renewal_write_locked(slot, &copy);
        taken++;
    }
    atomic_store(&index->renewal_count, index->renewing.count);
    pthread_mutex_unlock(&index->renewing.lock);
    return taken;
}

unsigned index_renewals_take(struct index *index, struct renewal_copy *ret_copies, unsigned max)
{
    // The table is large, so it is not read if no renewal waits.
    unsigned count = 0, slots = atomic_load(&index->renewal_count) > 0 ? RENEWALS_MAX : 0;
    uint64_t mono_ms, wall_ms;
    check(max > 0);
    for (unsigned i = 0; i < slots && count < max; i++) {
        struct renewal_copy *copy = &ret_copies[count];
        if (renewal_read(&index->renewals[i], copy) &&
            (copy->sums.len == 0 ||
             !index_memory_validated(&index->memory, copy->hash, copy->generation, &mono_ms,
                                     &wall_ms))) {
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
                check(index->renewing.count > 0);
                renewal_write_locked(r, &(struct renewal_copy){0});
                index->renewing.count--;
                stats_sub(COUNTER_index_renewals_waiting, 1);
                break;
            }
        }
    }
    atomic_store(&index->renewal_count, index->renewing.count);
    pthread_mutex_unlock(&index->renewing.lock);
}
