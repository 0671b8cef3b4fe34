// SPDX-License-Identifier: Apache-2.0
// The `dir:` driver, for a POSIX tree whose first-level folders are buckets. All file calls go
// through disk_io, and listings run on the pool for blocking calls. Nothing here blocks a worker.
//
// The steps of a fetch, all on one worker: open (openat2, which cannot leave the tree) -> statx,
// which gives the version -> on_head -> read, deliver, read, ... -> statx again -> deliver the last
// piece -> on_end.
//
// The last piece is delivered only if the second statx shows the same version. So if the file
// changes during the read, an object of one piece never reaches the caller. For a larger object
// on_end gets ERR_ORIGIN_CHANGED.
//
// A fetch has one operation in flight at a time, and none while it is paused. It owns its
// descriptor. The memory of a piece is chunks, which the budget counts. They are allocated for the
// read and freed after the delivery. So a paused fetch has none, except perhaps for its last piece.
// While the budget is used up, a piece is one chunk.
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/date.h"
#include "base/log.h"
#include "origin/origin_directory_private.h"
#include "stats/stats.h"

#define PIECE_CHUNKS 4u // The most chunks of a piece; the first piece is one chunk.
#define OPEN_TRIES_MAX 16u

enum phase {
    PHASE_OPEN,
    PHASE_OPEN_BUCKET, // The key does not exist; looks for its bucket, to choose the error.
    PHASE_STAT,
    PHASE_READ,
    PHASE_STAT_AGAIN,
    PHASE_LAST // The last piece may be delivered.
};

struct origin_directory_fetch {
    struct origin_call call; // Must be the first member.
    enum phase phase;
    bool op_running, paused, cancelled;
    enum err start_err; // The fetch got no slot, and ends with this error.
    unsigned open_tries;
    int fd;
    char *path;   // The path of the file, in the fetch's arena.
    char *bucket; // The bucket's name as a C string, in the same arena.
    struct disk_op op;
    struct chunk *piece[PIECE_CHUNKS];
    struct iovec iov[PIECE_CHUNKS];
    unsigned piece_chunks;
    uint64_t offset, remaining; // The part of the body that is not read yet.
    struct statx stat, stat_again;
    struct task task;
    uint64_t started_us;
};

static struct origin_directory_fetch *as_origin_directory_fetch(struct origin_call *call)
{
    return container_of(call, struct origin_directory_fetch, call);
}

static struct origin_directory *origin_directory_of(const struct origin_directory_fetch *d)
{
    return d->call.ow->origin->driver_state;
}

// --- The end -------------------------------------------------------------------------------------

static void piece_drop(struct origin_directory_fetch *d)
{
    for (unsigned i = 0; i < d->piece_chunks; i++) {
        chunk_unref(d->piece[i]);
    }
    d->piece_chunks = 0;
}

static void fetch_free(void *ptr)
{
    struct origin_directory_fetch *d = ptr;
    if (d->fd >= 0) {
        (void)close(d->fd); // opened for reading, so an error loses no data
    }
    free(d);
}

static unsigned status_of(const struct origin_fetch *f, enum err err)
{
    return err == ERR_OK ? f->status : error_row(err)->status;
}

static void fetch_end(struct origin_directory_fetch *d, enum err err)
{
    struct origin_fetch *f = d->call.f;
    check(!d->op_running);
    piece_drop(d);
    worker_task_cancel(&d->task);
    if (err != ERR_CANCELLED) {
        stats_count_origin(origin_fetch_is_head(f) ? "HeadObject" : "GetObject", status_of(f, err));
        stats_observe_us(HISTOGRAM_origin_request, clock_monotonic_us() - d->started_us);
        origin_count_error(err);
    }
    if (err != ERR_OK && f->status == 0) {
        f->status = error_row(err)->status;
    }
    origin_call_end(&d->call, err);
}

// --- Operations ----------------------------------------------------------------------------------

static void on_op_done(struct disk_op *op);

static void op_start(struct origin_directory_fetch *d, struct disk_op op)
{
    check(!d->op_running);
    d->op = op;
    list_node_init(&d->op.node);
    d->op.is_origins = true;
    d->op.done = on_op_done;
    d->op_running = true;
    disk_io_start(d->call.ow->w, &d->op);
}

static void start_open(struct origin_directory_fetch *d)
{
    d->phase = PHASE_OPEN;
    d->open_tries++;
    op_start(d, (struct disk_op){.kind = DISK_OPEN,
                                 .fd = origin_directory_of(d)->root_fd,
                                 .path = d->path,
                                 .open_flags = (origin_fetch_is_head(d->call.f)
                                                    ? O_PATH
                                                    : O_RDONLY | O_NONBLOCK | O_NOCTTY) |
                                               O_CLOEXEC,
                                 .open_resolve = ORIGIN_DIRECTORY_RESOLVE});
}

static void start_open_bucket(struct origin_directory_fetch *d)
{
    d->phase = PHASE_OPEN_BUCKET;
    d->open_tries++;
    op_start(d, (struct disk_op){.kind = DISK_OPEN,
                                 .fd = origin_directory_of(d)->root_fd,
                                 .path = d->bucket,
                                 .open_flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
                                 .open_resolve = ORIGIN_DIRECTORY_RESOLVE});
}

static void start_stat(struct origin_directory_fetch *d, enum phase phase)
{
    bool again = phase == PHASE_STAT_AGAIN;
    d->phase = phase;
    // The second statx must ask the file server instead of using a cached answer.
    op_start(d, (struct disk_op){.kind = DISK_STATX,
                                 .fd = d->fd,
                                 .path = "",
                                 .at_flags = AT_EMPTY_PATH | (again ? AT_STATX_FORCE_SYNC : 0),
                                 .statx = again ? &d->stat_again : &d->stat});
}

// Allocates chunks for `max_bytes`, or as many as the budget allows, but at least one.
static void piece_take(struct origin_directory_fetch *d, uint64_t max_bytes)
{
    size_t len = 0;
    check(d->piece_chunks == 0);
    while (d->piece_chunks < PIECE_CHUNKS && len < max_bytes) {
        struct chunk *chunk = chunk_new();
        if (chunk == NULL && len > 0) {
            break;
        }
        chunk = chunk != NULL ? chunk : chunk_new_forced();
        size_t n = (size_t)min_u64(max_bytes - len, CHUNK_SIZE);
        d->iov[d->piece_chunks] = (struct iovec){chunk->data, n};
        d->piece[d->piece_chunks++] = chunk;
        len += n;
    }
}

static void start_read(struct origin_directory_fetch *d)
{
    bool first = d->remaining == d->call.f->body_len;
    uint64_t most = first ? CHUNK_SIZE : chunk_budget_share(PIECE_CHUNKS * CHUNK_SIZE);
    piece_take(d, min_u64(d->remaining, max_u64(most, CHUNK_SIZE)));
    d->phase = PHASE_READ;
    op_start(d, (struct disk_op){.kind = DISK_READ,
                                 .fd = d->fd,
                                 .offset = d->offset,
                                 .iov = d->iov,
                                 .iov_count = d->piece_chunks});
}

// --- The answer's head ---------------------------------------------------------------------------

static bool add_header(struct origin_fetch *f, struct span name, struct span value)
{
    return value.ptr != NULL && headers_add(&f->headers, f->arena, name, value);
}

// Fills in the headers and the version of the answer from the file's `stat`.
static enum err describe_version(struct origin_directory_fetch *d)
{
    struct origin_fetch *f = d->call.f;
    char etag[ORIGIN_DIRECTORY_ETAG_LEN + 1], date[DATE_HTTP_LEN + 1];
    origin_directory_file_etag(&d->stat, etag);
    char *quoted = arena_printf(f->arena, "\"%s\"", etag);
    f->etag = span_from_cstr(quoted);
    f->last_modified = (time_t)d->stat.stx_mtime.tv_sec;
    date_format_http(f->last_modified, date);
    f->size_bytes = d->stat.stx_size;
    f->forbids = ORIGIN_FORBIDS_NOTHING;
    f->too_young = origin_directory_file_too_young(&d->stat, clock_wall_us());
    bool ok = add_header(f, SPAN("ETag"), f->etag) &&
              add_header(f, SPAN("Last-Modified"), arena_copy(f->arena, span_from_cstr(date))) &&
              add_header(f, SPAN("Content-Type"), origin_directory_content_type(f->key));
    return ok ? ERR_OK : ERR_NO_MEMORY;
}

static bool condition_names(struct span condition, struct span etag)
{
    return span_equal_cstr(condition, "*") || span_equal(condition, etag);
}

// Evaluates a client's condition for the file's version.
static enum err judge_condition(const struct origin_fetch *f)
{
    const struct origin_condition *c = f->condition;
    struct span value = span_from_cstr(c->value);
    time_t since = 0;
    bool is_dated = c->kind == ORIGIN_IF_MODIFIED_SINCE || c->kind == ORIGIN_IF_UNMODIFIED_SINCE;
    bool is_since = is_dated && date_parse_http(value, &since) && f->last_modified > since;
    switch (c->kind) {
    case ORIGIN_IF_MATCH:
        return condition_names(value, f->etag) ? ERR_OK : ERR_ORIGIN_CHANGED;
    case ORIGIN_IF_UNMODIFIED_SINCE:
        return is_since ? ERR_ORIGIN_CHANGED : ERR_OK;
    case ORIGIN_IF_NONE_MATCH:
        return condition_names(value, f->etag) ? ERR_NOT_MODIFIED : ERR_OK;
    case ORIGIN_IF_MODIFIED_SINCE:
        return is_since ? ERR_OK : ERR_NOT_MODIFIED;
    case ORIGIN_CONDITION_NONE:
        break;
    }
    return ERR_OK;
}

// Evaluates the conditions and the range for the file's version. Sets the status and the body's
// position and length.
static enum err judge(struct origin_fetch *f)
{
    enum err err = f->condition != NULL ? judge_condition(f) : ERR_OK;
    if (err != ERR_OK) {
        f->status = err == ERR_NOT_MODIFIED ? 304 : 412;
        return err;
    }
    if (f->if_match.len > 0 && !condition_names(f->if_match, f->etag)) {
        f->status = 412;
        return ERR_ORIGIN_CHANGED;
    }
    if (f->if_none_match.len > 0 && condition_names(f->if_none_match, f->etag)) {
        f->status = 304;
        return ERR_NOT_MODIFIED;
    }
    if (f->kind != ORIGIN_GET_RANGE) {
        f->status = 200;
        f->body_first = 0;
        f->body_len = origin_fetch_is_head(f) ? 0 : f->size_bytes;
        return ERR_OK;
    }
    uint64_t first = f->suffix > 0 ? f->size_bytes - min_u64(f->suffix, f->size_bytes) : f->first;
    uint64_t last = f->suffix > 0 ? UINT64_MAX : f->last;
    if (first >= f->size_bytes || last < first) {
        f->status = 416;
        return ERR_INVALID_RANGE;
    }
    f->status = 206;
    f->body_first = first;
    f->body_len = min_u64(last, f->size_bytes - 1) - first + 1;
    return ERR_OK;
}

static void fetch_go(struct origin_directory_fetch *d);

static void on_stat(struct origin_directory_fetch *d)
{
    struct origin_fetch *f = d->call.f;
    if ((d->stat.stx_mask & ORIGIN_DIRECTORY_STATX_MASK) != ORIGIN_DIRECTORY_STATX_MASK ||
        !S_ISREG(d->stat.stx_mode)) {
        fetch_end(d, ERR_NO_SUCH_KEY);
        return;
    }
    enum err err = describe_version(d);
    if (err == ERR_OK) {
        err = judge(f);
    }
    if (err != ERR_OK) {
        fetch_end(d, err);
        return;
    }
    d->offset = f->body_first;
    d->remaining = f->body_len;
    uint64_t first_byte_us = clock_monotonic_us() - d->started_us;
    stats_observe_us(HISTOGRAM_origin_first_byte, first_byte_us);
    origin_pace_note(d->call.ow->origin, first_byte_us);
    err = f->on_head(f);
    if (err != ERR_OK) {
        fetch_end(d, err);
        return;
    }
    // An empty body needs no second statx, because the caller gets no bytes.
    d->phase = d->remaining == 0 ? PHASE_LAST : PHASE_READ;
    fetch_go(d);
}

static enum err deliver(struct origin_directory_fetch *d)
{
    enum err err = ERR_OK;
    for (unsigned i = 0; i < d->piece_chunks && err == ERR_OK && !d->cancelled; i++) {
        stats_add(COUNTER_origin_received_bytes, d->iov[i].iov_len);
        (void)origin_rate_received(&d->call, d->iov[i].iov_len); // delays the next calls only
        err = d->call.f->on_body(d->call.f, (struct span){d->piece[i]->data, d->iov[i].iov_len});
    }
    piece_drop(d);
    return err;
}

static void on_read(struct origin_directory_fetch *d)
{
    uint64_t asked = 0;
    for (unsigned i = 0; i < d->piece_chunks; i++) {
        asked += d->iov[i].iov_len;
    }
    if (d->op.result < 0 || (uint64_t)d->op.result != asked) {
        fetch_end(d, ERR_ORIGIN_CHANGED); // the file has become shorter
        return;
    }
    d->offset += asked;
    d->remaining -= asked;
    if (d->remaining == 0) {
        start_stat(d, PHASE_STAT_AGAIN);
        return;
    }
    enum err err = deliver(d);
    if (err != ERR_OK) {
        fetch_end(d, err);
        return;
    }
    fetch_go(d);
}

static void on_open(struct origin_directory_fetch *d)
{
    if (d->op.err == ERR_OK) {
        d->fd = (int)d->op.result;
        start_stat(d, PHASE_STAT);
    } else if (d->op.errno_value == EAGAIN && d->open_tries < OPEN_TRIES_MAX) {
        start_open(d); // something on the path was renamed during the look-up
    } else if (origin_directory_error(d->op.errno_value) == ERR_NO_SUCH_KEY) {
        start_open_bucket(d);
    } else {
        fetch_end(d, origin_directory_error(d->op.errno_value));
    }
}

static void on_open_bucket(struct origin_directory_fetch *d)
{
    if (d->op.err == ERR_OK) {
        d->fd = (int)d->op.result;
        fetch_end(d, ERR_NO_SUCH_KEY);
    } else if (d->op.errno_value == EAGAIN && d->open_tries < OPEN_TRIES_MAX) {
        start_open_bucket(d);
    } else {
        fetch_end(d, origin_directory_bucket_error(d->op.errno_value, d->bucket));
    }
}

static void on_op_done(struct disk_op *op)
{
    struct origin_directory_fetch *d = container_of(op, struct origin_directory_fetch, op);
    d->op_running = false;
    if (d->cancelled) {
        if (op->kind == DISK_OPEN && op->err == ERR_OK) {
            d->fd = (int)op->result; // fetch_end() closes it
        }
        fetch_end(d, ERR_CANCELLED);
        return;
    }
    if (d->phase == PHASE_OPEN) {
        on_open(d);
        return;
    }
    if (d->phase == PHASE_OPEN_BUCKET) {
        on_open_bucket(d);
        return;
    }
    if (op->err != ERR_OK) {
        fetch_end(d, origin_directory_error(op->errno_value));
        return;
    }
    switch (d->phase) {
    case PHASE_STAT:
        on_stat(d);
        break;
    case PHASE_READ:
        on_read(d);
        break;
    case PHASE_STAT_AGAIN:
        d->phase = PHASE_LAST;
        if (!origin_directory_file_same(&d->stat, &d->stat_again)) {
            fetch_end(d, ERR_ORIGIN_CHANGED);
        } else {
            fetch_go(d);
        }
        break;
    default:
        check(!"a phase without an operation");
    }
}

// Continues the fetch, unless it is paused or waits for an operation.
static void fetch_go(struct origin_directory_fetch *d)
{
    if (d->op_running) {
        return;
    }
    if (d->cancelled) {
        fetch_end(d, ERR_CANCELLED);
        return;
    }
    switch (d->phase) {
    case PHASE_OPEN:
        if (d->start_err != ERR_OK) {
            fetch_end(d, d->start_err);
        } else if (d->path == NULL) {
            fetch_end(d, d->bucket == NULL ? ERR_NO_SUCH_BUCKET : ERR_NO_SUCH_KEY);
        } else {
            start_open(d);
        }
        break;
    case PHASE_OPEN_BUCKET:
        start_open_bucket(d);
        break;
    case PHASE_READ:
        if (!d->paused) {
            start_read(d);
        }
        break;
    case PHASE_LAST:
        if (!d->paused) {
            enum err err = deliver(d);
            fetch_end(d, d->cancelled ? ERR_CANCELLED : err);
        }
        break;
    default:
        check(!"nothing to go on with");
    }
}

static void on_task(struct task *task)
{
    fetch_go(container_of(task, struct origin_directory_fetch, task));
}

static void on_ready(struct origin_call *call)
{
    fetch_go(as_origin_directory_fetch(call));
}

static void on_refused(struct origin_call *call, enum err err)
{
    fetch_end(as_origin_directory_fetch(call), err);
}

// --- Driver calls --------------------------------------------------------------------------------

static void fetch_pause(struct origin_call *call)
{
    as_origin_directory_fetch(call)->paused = true;
}

static void fetch_resume(struct origin_call *call)
{
    struct origin_directory_fetch *d = as_origin_directory_fetch(call);
    if (d->paused) {
        d->paused = false;
        if (!d->op_running && d->call.has_slot) {
            worker_defer(d->call.ow->w, &d->task);
        }
    }
}

static void fetch_cancel(struct origin_call *call)
{
    struct origin_directory_fetch *d = as_origin_directory_fetch(call);
    if (d->cancelled) {
        return;
    }
    d->cancelled = true;
    origin_slot_stop_waiting(call);
    if (d->op_running) {
        disk_io_cancel(&d->op);
    } else {
        worker_defer(d->call.ow->w, &d->task);
    }
}

static void origin_directory_fetch_start(struct origin_worker *ow, struct origin_fetch *f)
{
    static const struct origin_call_ops ops = {.ready = on_ready,
                                               .refused = on_refused,
                                               .pause = fetch_pause,
                                               .resume = fetch_resume,
                                               .cancel = fetch_cancel,
                                               .free = fetch_free};
    struct origin_directory_fetch *d = calloc(1, sizeof(*d));
    check(d != NULL);
    origin_call_init(&d->call, &ops, ow, f, NULL);
    d->fd = -1;
    d->started_us = clock_monotonic_us();
    worker_task_init(&d->task, on_task);
    if (origin_directory_bucket_is_valid(f->bucket)) {
        d->bucket = arena_cstr(f->arena, f->bucket);
        d->path = origin_directory_file_path(f->arena, f->bucket, f->key);
        // No file can have this key, so only the existence of its bucket matters.
        d->phase = d->path == NULL && d->bucket != NULL ? PHASE_OPEN_BUCKET : PHASE_OPEN;
    }
    bool now = false;
    d->start_err = origin_slot_enter(&d->call, &now);
    if (d->start_err != ERR_OK) {
        d->phase = PHASE_OPEN;
    }
    if (now || d->start_err != ERR_OK) {
        worker_defer(ow->w, &d->task);
    }
}

static void origin_directory_free(struct origin *origin)
{
    struct origin_directory *directory = origin->driver_state;
    if (directory != NULL) {
        origin_directory_scans_free(directory->scans);
        if (directory->root_fd >= 0) {
            (void)close(directory->root_fd);
        }
        free(directory);
        origin->driver_state = NULL;
    }
}

const struct origin_driver origin_directory_driver = {
    .fetch_start = origin_directory_fetch_start,
    .relay_start = origin_directory_relay_start,
    .free = origin_directory_free,
};

// --- Start ---------------------------------------------------------------------------------------

static void report_top_files(int root_fd, const char *path)
{
    struct buf names;
    buf_init(&names, 1024);
    size_t count = origin_directory_top_files(root_fd, &names);
    if (count > 0) {
        log_warn("directory_files_outside_buckets", "path=%s count=%zu first=%s",
                 log_quote(span_from_cstr(path)), count, log_quote(buf_span(&names)));
    }
    buf_done(&names);
}

enum err origin_directory_open(struct origin *origin, struct buf *ret_why)
{
    const char *path = origin->options.endpoint + strlen("dir:");
    if (path[0] != '/') {
        buf_printf(ret_why, "%s: the path after dir: must be absolute, for example dir:/data",
                   origin->options.endpoint);
        return ERR_INVALID;
    }
    int root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) {
        int saved = errno;
        buf_printf(ret_why, "%s: %s; %s must name an existing directory", path, strerror(saved),
                   origin_settings_name(&origin->options.settings, ORIGIN_SETTING_ENDPOINT));
        return saved == EACCES ? ERR_PERMISSION : ERR_NOT_FOUND;
    }
    int probe = origin_directory_file_open_blocking(root_fd, ".", O_PATH | O_DIRECTORY);
    if (probe < 0 && errno != ENOENT) {
        buf_printf(ret_why,
                   "openat2: %s; dir: needs Linux 5.6 and a seccomp profile that allows openat2",
                   strerror(errno));
        (void)close(root_fd);
        return ERR_INVALID;
    }
    (void)close(probe);
    struct origin_directory *directory = calloc(1, sizeof(*directory));
    check(directory != NULL);
    directory->root_fd = root_fd;
    directory->scans = origin_directory_scans_new(root_fd);
    origin->driver_state = directory;
    struct buf text;
    buf_init(&text, 8192);
    buf_printf(&text, "dir:%s", path);
    origin->description = strdup(buf_cstr(&text));
    // No write passes through Forebay, so different spellings of the path do no harm.
    origin->place = strdup(origin->options.endpoint);
    origin->name = origin_name_at(origin, origin->options.endpoint);
    origin->shown = origin_name_at(origin, origin->options.endpoint);
    check(origin->place != NULL);
    check(origin->description != NULL);
    buf_done(&text);
    report_top_files(root_fd, path);
    return ERR_OK;
}
