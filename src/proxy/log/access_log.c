// SPDX-License-Identifier: Apache-2.0
// One line per request. A worker writes the line into a ring of its own, without a lock and without
// ever waiting: a line that does not fit is counted and lost. The log thread copies the rings to
// the file or to stdout, and may block there.
//
// The thread sleeps on an eventfd and says so in `is_asleep`; the first line after that wakes it.
// It waits LINGER_MS before it copies, so that a busy server pays one wake-up for many lines. It
// runs even if the log is off, so that a reload which turns the log on needs no new thread.
//
// access_log_line.c has the pieces of a line, and each format has a file of its own.
#include "base/random.h"
#include "base/thread.h"
#include "proxy/log/access_log_private.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING_BYTES (1u << 20)
#define LINGER_MS 10
#define FILE_WRITE_MAX (256u * 1024u)
#define PIPE_WRITE_MAX 4096u // a writable pipe takes this much at once without blocking
#define STOP_WAIT_MS 1000    // at shutdown, for a pipe whose reader does not read

struct ring {
    struct access_log_ring lines;
    // used by the worker only
    uint64_t sample_state;
    struct access_log_date date;
};

struct proxy_access_log_file {
    char *path;   // NULL: stdout, or off
    int fd;       // -1: off, lines are dropped
    bool is_file; // a regular file, so writes do not block
    // For each ring, access_log_ring_filled() when this file replaced another. NULL: it is the
    // first.
    unsigned long *since;
};

struct access_log {
    struct proxy_access_log_file *file;           // used by the thread only
    _Atomic(struct proxy_access_log_file *) next; // the file to switch to; NULL: none
    struct ring *rings;
    unsigned ring_count;
    int wake_fd;
    atomic_bool is_asleep;
    atomic_bool stopping;
    atomic_bool reopening;
    pthread_t thread;
    char *batch; // FILE_WRITE_MAX bytes, used by the thread only
};

// --- the log thread ------------------------------------------------------------------------------

static void wake(struct access_log *log)
{
    check(log->wake_fd >= 0);
    uint64_t one = 1;
    (void)!write(log->wake_fd, &one, sizeof(one)); // a full counter wakes as well
}

static int open_path(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
}

static bool fd_is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

static void reopen(struct access_log *log)
{
    struct proxy_access_log_file *file = log->file;
    check(file != NULL);
    if (file->path == NULL) {
        return;
    }
    int fd = open_path(file->path);
    if (fd < 0) {
        log_warn("access_log_reopen_failed", "path=%s errno=%d",
                 log_quote(span_from_cstr(file->path)), errno);
        return;
    }
    (void)close(file->fd);
    file->fd = fd;
    file->is_file = fd_is_file(fd);
}

static void lines_lost(const char *bytes, size_t len, int errno_value)
{
    check(len > 0);
    unsigned long lines = 0;
    for (size_t i = 0; i < len; i++) {
        lines += bytes[i] == '\n';
    }
    stats_add(COUNTER_access_log_dropped, lines);
    log_warn_condition("access_log_write_failed", "errno=%d", errno_value);
}

// Returns the length of the whole lines that fit in one write.
static size_t write_len(const struct access_log *log, const char *bytes, size_t len)
{
    check(len > 0);
    if (log->file->is_file || len <= PIPE_WRITE_MAX) {
        return len;
    }
    const char *end = memrchr(bytes, '\n', PIPE_WRITE_MAX);
    check(len > PIPE_WRITE_MAX);
    return end != NULL ? (size_t)(end - bytes) + 1 : PIPE_WRITE_MAX;
}

static void write_all(struct access_log *log, const char *bytes, size_t len)
{
    check(len <= FILE_WRITE_MAX);
    while (len > 0 && log->file->fd >= 0) {
        if (!log->file->is_file) {
            struct pollfd p = {.fd = log->file->fd, .events = POLLOUT};
            int rc = poll(&p, 1, STOP_WAIT_MS);
            if (rc <= 0 && !atomic_load(&log->stopping)) {
                continue;
            }
            if (rc <= 0) {
                lines_lost(bytes, len, ETIMEDOUT);
                return;
            }
        }
        ssize_t n = write(log->file->fd, bytes, write_len(log, bytes, len));
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (n <= 0) {
            lines_lost(bytes, len, errno);
            return;
        }
        bytes += n;
        len -= (size_t)n;
    }
}

// Writes the lines that were in the ring when access_log_ring_filled() returned `filled`. Returns
// false if there were none.
static bool ring_drain_to(struct access_log *log, struct ring *ring, unsigned long filled)
{
    check(filled <= access_log_ring_filled(&ring->lines));
    size_t done = 0, len;
    while ((len = access_log_ring_take(&ring->lines, log->batch, FILE_WRITE_MAX, filled)) > 0) {
        write_all(log, log->batch, len);
        done += len;
    }
    return done > 0;
}

static bool drain(struct access_log *log)
{
    bool any = false;
    for (unsigned i = 0; i < log->ring_count; i++) {
        struct ring *ring = &log->rings[i];
        unsigned long filled = access_log_ring_filled(&ring->lines);
        any = ring_drain_to(log, ring, filled) || any;
    }
    return any;
}

// Switches to the next file, if there is one. The lines written before it was set still go to the
// previous file.
static void take_next(struct access_log *log)
{
    struct proxy_access_log_file *next = atomic_exchange(&log->next, NULL);
    if (next != NULL) {
        check(next->since != NULL);
        for (unsigned i = 0; i < log->ring_count; i++) {
            (void)ring_drain_to(log, &log->rings[i], next->since[i]);
        }
        proxy_access_log_close(log->file);
        log->file = next;
    }
}

static void *run_thread(void *ctx)
{
    struct access_log *log = ctx;
    thread_begin("access-log", THREAD_BEHIND);
    for (;;) {
        bool stopping = atomic_load(&log->stopping);
        take_next(log);
        if (atomic_exchange(&log->reopening, false)) {
            reopen(log);
        }
        if (drain(log)) {
            continue;
        }
        if (stopping) {
            return NULL;
        }
        // Sequentially consistent, as is the workers' load of it.
        atomic_store(&log->is_asleep, true);
        if (drain(log)) {
            atomic_store(&log->is_asleep, false);
            continue;
        }
        uint64_t count;
        (void)!read(log->wake_fd, &count, sizeof(count));
        atomic_store(&log->is_asleep, false);
        if (!atomic_load(&log->stopping)) {
            (void)poll(NULL, 0, LINGER_MS);
        }
    }
}

// --- birth and end -------------------------------------------------------------------------------

static enum err cannot_open(const char *path, int errno_value, struct buf *ret_why)
{
    buf_printf(ret_why,
               "access_log.path %s cannot be opened: %s; name a file in a folder that exists and "
               "that this user may write to (of the packaged unit: /var/log/forebay)",
               path, strerror(errno_value));
    return error_from_errno(errno_value);
}

enum err proxy_access_log_check(const char *path, struct buf *ret_why)
{
    struct stat st;
    if (path == NULL || strcmp(path, "-") == 0) {
        return ERR_OK;
    }
    int errno_value = stat(path, &st) != 0 ? errno : S_ISDIR(st.st_mode) ? EISDIR : 0;
    char copy[PATH_MAX]; // a longer path is refused with ENAMETOOLONG
    (void)snprintf(copy, sizeof(copy), "%s", path);
    if ((errno_value == 0 && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0) ||
        (errno_value == ENOENT &&
         faccessat(AT_FDCWD, dirname(copy), W_OK | X_OK, AT_EACCESS) != 0)) {
        errno_value = errno;
    } else if (errno_value == ENOENT) {
        errno_value = 0; // it can be created
    }
    return errno_value == 0 ? ERR_OK : cannot_open(path, errno_value, ret_why);
}

enum err proxy_access_log_open(const char *path, struct proxy_access_log_file **ret_file,
                               struct buf *ret_why)
{
    bool is_stdout = path != NULL && strcmp(path, "-") == 0;
    int fd = path == NULL ? -1
             : is_stdout  ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)
                          : open_path(path);
    if (path != NULL && fd < 0) {
        return cannot_open(path, errno, ret_why);
    }
    struct proxy_access_log_file *file = calloc(1, sizeof(*file));
    check(fd >= 0 || path == NULL);
    check(file != NULL);
    file->path = path == NULL || is_stdout ? NULL : strdup(path);
    file->fd = fd;
    file->is_file = fd >= 0 && fd_is_file(fd);
    *ret_file = file;
    return ERR_OK;
}

void proxy_access_log_close(struct proxy_access_log_file *file)
{
    if (file == NULL) {
        return;
    }
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    free(file->path);
    free(file->since);
    free(file);
}

static void log_done(struct access_log *log)
{
    check(log->file != NULL);
    for (unsigned i = 0; i < log->ring_count; i++) {
        access_log_ring_done(&log->rings[i].lines);
    }
    free(log->rings);
    free(log->batch);
    proxy_access_log_close(log->file);
    proxy_access_log_close(atomic_load(&log->next));
    (void)close(log->wake_fd);
    free(log);
}

struct access_log *access_log_new(struct proxy_access_log_file *file, unsigned worker_count)
{
    check(file != NULL && file->since == NULL);
    check(worker_count > 0);
    struct access_log *log = calloc(1, sizeof(*log));
    check(log != NULL);
    log->file = file;
    log->ring_count = worker_count;
    log->rings = aligned_alloc(64, worker_count * sizeof(*log->rings));
    check(log->rings != NULL);
    memset(log->rings, 0, worker_count * sizeof(*log->rings));
    for (unsigned i = 0; i < worker_count; i++) {
        access_log_ring_init(&log->rings[i].lines, RING_BYTES);
        log->rings[i].sample_state = random_u64() | 1;
        log->rings[i].date.s = INT64_MIN;
    }
    log->batch = malloc(FILE_WRITE_MAX);
    check(log->batch != NULL);
    log->wake_fd = eventfd(0, EFD_CLOEXEC);
    check(log->wake_fd >= 0);
    if (pthread_create(&log->thread, NULL, run_thread, log) != 0) {
        log_done(log);
        return NULL;
    }
    return log;
}

void access_log_free(struct access_log *log)
{
    if (log == NULL) {
        return;
    }
    atomic_store(&log->stopping, true);
    wake(log);
    (void)pthread_join(log->thread, NULL);
    log_done(log);
}

void access_log_reopen(struct access_log *log)
{
    atomic_store(&log->reopening, true);
    wake(log);
}

void access_log_switch(struct access_log *log, struct proxy_access_log_file *file)
{
    check(log != NULL && file != NULL);
    check(file->since == NULL);
    file->since = calloc(log->ring_count, sizeof(*file->since));
    check(file->since != NULL);
    for (unsigned i = 0; i < log->ring_count; i++) {
        file->since[i] = access_log_ring_filled(&log->rings[i].lines);
    }
    proxy_access_log_close(atomic_exchange(&log->next, file));
    wake(log);
}

// --- from a request to the ring ------------------------------------------------------------------

static bool is_sampled(double sample, struct ring *ring)
{
    if (sample >= 1) {
        return true;
    }
    uint64_t x = ring->sample_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    ring->sample_state = x;
    return (double)(x >> 11) * 0x1p-53 < sample;
}

void access_log_write(struct access_log *log, const struct log_entry *entry)
{
    const struct request *r = entry->r;
    const struct proxy_settings *settings = &r->live->settings;
    check(r->pw->index < log->ring_count);
    struct ring *ring = &log->rings[r->pw->index];
    bool is_error = r->status >= 400 || r->err != ERR_OK || entry->outcome != HTTP_DONE;
    if (!is_error && !is_sampled(settings->access_log_sample, ring)) {
        return;
    }
    struct access_log_line line;
    access_log_line_init(&line, &ring->date);
    static void (*const forms[])(struct access_log_line *, const struct log_entry *) = {
        [PROXY_ACCESS_LOG_JSON] = access_log_json,
        [PROXY_ACCESS_LOG_S3] = access_log_s3,
        [PROXY_ACCESS_LOG_TEXT] = access_log_text};
    check((size_t)settings->access_log_format < ARRAY_LEN(forms));
    forms[settings->access_log_format](&line, entry);
    check(line.is_full || line.bytes[line.len - 1] == '\n');
    if (line.is_full || !access_log_ring_put(&ring->lines, line.bytes, line.len)) {
        stats_add(COUNTER_access_log_dropped, 1);
        return;
    }
    if (atomic_load(&log->is_asleep) && atomic_exchange(&log->is_asleep, false)) {
        wake(log);
    }
}
