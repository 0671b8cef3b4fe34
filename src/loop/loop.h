// SPDX-License-Identifier: Apache-2.0
// What a thread is made of: a worker (thread + libevent base + disk I/O engine + mailbox), the one
// disk interface with its two back ends, a pool for blocking calls. Knows no HTTP.
//
// Rules for every asynchronous call here: a start call never calls back before it returns; the
// callback runs exactly once, also after a cancel (ERR_CANCELLED); it runs on the worker that
// started it. Nothing is freed inside its own callback: worker_free_later().
#ifndef FOREBAY_LOOP_LOOP_H
#define FOREBAY_LOOP_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/bytes.h"
#include "base/chunk.h"
#include "base/error.h"
#include "base/list.h"

struct event_base;
struct worker;

// --- worker.c ------------------------------------------------------------------------------------
// The order of a turn: time -> events (sockets, disk completions, curl, timers, mailbox) ->
// deferred work -> submit disk operations -> deliver outgoing messages -> free the dead -> publish
// counters.

enum disk_engine { DISK_ENGINE_AUTO, DISK_ENGINE_URING, DISK_ENGINE_THREADS };

#define LOOP_WORKERS_MAX 64

struct loop_options {
    unsigned worker_count;   // 1..LOOP_WORKERS_MAX
    enum disk_engine engine; // AUTO probes a real ring with one real read
    unsigned disk_threads;   // for the thread back end, all workers together; 0 = 2 per worker
    unsigned disk_queue_depth;
};

// A set of workers and what they share. Threads run after loop_start().
struct loop;
// ERR_INVALID: io_uring forced but refused (text in ret_why).
enum err loop_new(const struct loop_options *options, struct loop **ret_loop,
                  struct buf *ret_why) MUST_USE;
enum err loop_start(struct loop *loop) MUST_USE;
// Asks every worker to leave its loop and joins the threads. Messages and work still queued are
// delivered first.
void loop_stop(struct loop *loop);
void loop_free(struct loop *loop);
unsigned loop_worker_count(const struct loop *loop);
struct worker *loop_worker(struct loop *loop, unsigned index);
enum disk_engine loop_engine(const struct loop *loop); // the one in use, never AUTO
// "io_uring: ok", "threads: io_uring_setup: EPERM"
const char *loop_engine_why(const struct loop *loop);
// Monotonic ms of the oldest heartbeat of any worker (each beats at least once a second); any
// thread.
uint64_t loop_oldest_heartbeat_ms(const struct loop *loop);

unsigned worker_index(const struct worker *w);
struct event_base *worker_event_base(struct worker *w);
struct worker *worker_current(void); // NULL off the workers
// True where the caller may touch the worker's own fields.
bool worker_is_mine(const struct worker *w);
uint64_t worker_now_us(const struct worker *w); // monotonic, one value a turn
// When the turn before this one began, and how long it lasted.
struct worker_turn_time {
    uint64_t began_us, lasted_us;
};
struct worker_turn_time worker_last_turn(const struct worker *w);
// Short work is expected until then. It waits for whatever else is done in a turn, so long work
// takes less of each meanwhile.
void worker_expect_short(struct worker *w, uint64_t until_us);
bool worker_expects_short(const struct worker *w);
// A request has been answered in the turn in which it came: such wait for nothing but this worker's
// turns.
void worker_note_quick(struct worker *w);
bool worker_expects_quick(const struct worker *w); // there was one of late

// A slot per room for what it keeps per worker (set before loop_start or on the worker itself).
enum worker_slot {
    WORKER_SLOT_HTTP,
    WORKER_SLOT_STORE,
    WORKER_SLOT_ORIGIN,
    WORKER_SLOT_FILL,
    WORKER_SLOT_PROXY,
    WORKER_SLOT_COUNT_
};
void worker_slot_set(struct worker *w, enum worker_slot slot, void *value);
void *worker_slot_get(const struct worker *w, enum worker_slot slot);

// Deferred work of this turn: runs after the events of the turn, once. The task is in no list when
// fn runs and may be posted again. Posting a posted task is harmless.
struct task {
    struct list_node node;
    void (*fn)(struct task *task);
};
void worker_task_init(struct task *task, void (*fn)(struct task *task));
void worker_defer(struct worker *w, struct task *task);
void worker_task_cancel(struct task *task);

// One-shot timer, embedded. Starting a running timer moves it. Stopped timers never fire.
struct timer {
    void (*fn)(struct timer *timer);
    // private
    uint64_t due_us;
    struct worker *worker;
    unsigned heap_slot; // place in the worker's heap + 1; 0 = stopped
};
void timer_init(struct worker *w, struct timer *timer, void (*fn)(struct timer *timer));
void timer_start(struct timer *timer, uint64_t delay_ms);
void timer_stop(struct timer *timer);
void timer_done(struct timer *timer); // stop and give back what it holds; before its owner is freed

// A message from a thread that is no worker is due: the worker does not stop before. On the worker,
// the second call when the message is there.
void worker_expect(struct worker *w);
void worker_expect_done(struct worker *w);

// fn(ptr) runs at the end of the current turn.
void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr);

// --- mailbox.c -----------------------------------------------------------------------------------

// A message is allocated by its sender and given away; deliver() runs on the receiver and frees it.
// FIFO per sender and receiver. To oneself: runs after the current callback has returned, in order.
// Unbounded queues do not exist here because every message answers or is owned by a bounded thing
// (reader, fill, write).
struct message {
    struct message *next;
    void (*deliver)(struct worker *to, struct message *message);
};
// From a worker: leaves at the end of the turn. From any other thread: at once.
void mailbox_send(struct worker *to, struct message *message);
// The same, callable from threads that are no worker.
void mailbox_send_from_any_thread(struct worker *to, struct message *message);

// --- disk_io.c -----------------------------------------------------------------------------------

enum disk_op_kind {
    DISK_READ,
    DISK_WRITE,
    DISK_SYNC,
    DISK_OPEN,
    DISK_STATX,
    DISK_UNLINK,
    DISK_FALLOCATE,
    DISK_PUSH // what was written to the range goes to the device, and has arrived when it is over
};

// One operation, embedded in its owner; recover it with container_of. Buffers, paths and iov stay
// alive until the callback. Short reads and writes are continued and EINTR repeated here; a read
// past the end of file completes with fewer bytes in `result`.
struct disk_op {
    struct list_node node;
    enum disk_op_kind kind;
    int fd; // for OPEN: the directory (AT_FDCWD)
    uint64_t offset;
    struct iovec *iov;  // READ, WRITE: caller's array, may be changed by us
    unsigned iov_count; // <= 64
    const char *path;   // OPEN, STATX, UNLINK
    int open_flags;
    unsigned open_mode;
    uint64_t open_resolve; // openat2 RESOLVE_* flags; 0 = plain openat
    int at_flags;          // STATX, UNLINK: AT_* flags; AT_EMPTY_PATH is added for an empty path
    uint64_t length;       // FALLOCATE, PUSH
    void *statx;           // struct statx *
    bool is_origins;       // on an origin's files: apart from what the cache asks of its device
    void (*done)(struct disk_op *op);
    // results
    enum err err;
    int errno_value;
    int64_t result; // bytes, or descriptor for OPEN
    uint64_t started_us;
    // private
    struct worker *worker;
    uint64_t engine_private[3];
    uint64_t progress_bytes, remaining_bytes;
    unsigned iov_next, repeat_count;
    int state;
    atomic_bool is_cancelled;
    bool is_first_short;
};

// The operation is zero-initialised before its first use. Queues it on the calling worker; it is
// submitted at the end of the turn. Above the queue depth it waits in our own queue (never lost,
// counted).
void disk_io_start(struct worker *w, struct disk_op *op);
// Drops the interest: done() runs with ERR_CANCELLED or the real result (an opened descriptor is
// the caller's to close), once the I/O is over. Harmless on an operation that is not under way.
void disk_io_cancel(struct disk_op *op);

// Without waiting (preadv2 RWF_NOWAIT): bytes read into iov, or ERR_AGAIN when that would block (or
// the file system does not know), ERR_IO ...
enum err disk_io_read_nowait(int fd, const struct iovec *iov, unsigned iov_count, uint64_t offset,
                             size_t *ret_bytes) MUST_USE;

// Are all pages of the range in the page cache (cachestat(2), else mincore(2), else always no)?
bool disk_io_resident(int fd, uint64_t offset, uint64_t len);
enum disk_residency { DISK_RESIDENCY_CACHESTAT, DISK_RESIDENCY_MINCORE, DISK_RESIDENCY_NONE };
// Probes on a file just written in `dir` (overlayfs answers 0 always) and fixes the answer for the
// process.
enum disk_residency disk_io_probe_residency(const char *dir);
enum disk_residency disk_io_residency_mode(void);

// fdatasync() for a thread that is no worker.
int disk_io_sync_blocking(int fd) MUST_USE;

#ifdef FOREBAY_FAULTS
// Fault hook, named and scripted: environment FOREBAY_DISK_FAULTS or disk_fault_set():
// comma-separated `op:when:what[:arg]`, op = read|write|sync|open|fallocate|unlink|push|any or a
// name with a point in it, when = every n-th (`/100`), the n-th (`5`), from the n-th on (`5+`) or
// `file=PATH` (active while PATH exists), what = eio|enospc|erofs|emfile|short|slow (arg ms)|rate
// (arg bytes per second, of all that strike together)|hold (with file=: until PATH is gone). Also
// obeyed by disk_io_read_nowait, and hold by disk_io_sync_blocking. `pages.gone`: for
// disk_io_resident() no page is in memory. Absent from release builds.
void disk_fault_set(const char *script);
// For calls that a room's own threads make: errno of the rule for `name` that strikes now, or 0.
int disk_fault_errno(const char *name);
#endif

// --- file_send.c ---------------------------------------------------------------------------------

// A piece of a file on its way from store to socket. `release` gives back the pin; runs exactly
// once.
struct file_range {
    bool was_ready; // file_send_ready() has just been answered: yes
    int fd;
    // Instead of `fd`: its descriptor for the length of one call here, -1 when it is not open now,
    // and back again. Both get release_ctx.
    int (*borrow)(void *ctx);
    void (*give_back)(void *ctx);
    uint64_t offset, len;
    void (*release)(void *ctx);
    void *release_ctx;
    // Are the pages in memory of these bytes of the file still the ones that were checked? NULL:
    // always. Uses release_ctx and the two fields after it.
    bool (*is_good)(const struct file_range *range, uint64_t offset, uint64_t len);
    uint64_t check_offset;
    uint32_t verify_unit;
};

// Are `len` bytes from `skip` on in memory, and good?
bool file_send_ready(const struct file_range *range, uint64_t skip, uint64_t len);
// Sends bytes of the range, [skip, skip + len), to a non-blocking socket without a copy: only pages
// that were in memory and good when they were taken. Returns how many bytes the socket took (fewer
// than len: it is full), or -EAGAIN, -ESTALE (nothing sent: the next page came from the device, was
// not good any more, or the file is shorter), or the socket's error, negative.
int64_t file_send_range(struct worker *w, const struct file_range *range, uint64_t skip,
                        uint64_t len, int socket);

// --- blocking_pool.c -----------------------------------------------------------------------------

// For calls with no asynchronous form. Each lane has threads of its own, so that jobs on a device
// that stands still hold up none that have nothing to do with it. At most 4,096 are queued in a
// lane; above that the job's done runs with ERR_LIMIT.
enum blocking_lane {
    BLOCKING_GENERAL, // credentials, certificates
    BLOCKING_STORE,   // the cache directory
    BLOCKING_ORIGIN,  // folders of `dir:` origins
    BLOCKING_LANE_COUNT
};
struct blocking_job {
    struct list_node node;
    enum blocking_lane lane;
    void (*work)(struct blocking_job *job); // on a pool thread
    void (*done)(struct blocking_job *job); // on the worker that started it
    struct worker *worker;
    struct message message;
    enum err err;
};
void blocking_pool_run(struct worker *w, struct blocking_job *job);

// --- unix sockets --------------------------------------------------------------------------------

#define UNIX_PATH_SIZE 108 // of sun_path

struct unix_listener {
    int fd; // the caller's to close
    char path[UNIX_PATH_SIZE];
    dev_t dev; // of the name
    ino_t ino;
};

// Listens at `path`, which gets exactly `mode` and is at no moment open to more. A socket of this
// user that nobody listens behind is replaced; anything else there is ERR_IN_USE. One line in
// ret_why. Blocks: at start.
enum err unix_socket_open(const char *path, unsigned mode, struct unix_listener *ret_listener,
                          struct buf *ret_why) MUST_USE;
// This process keeps a lock on the folder behind `fd`, and whoever else wants it for good is
// refused: sockets in it need no lock of their own, which this one would never let them have. One
// folder; -1: none any more.
void unix_socket_folder_is_locked(int fd);
// Removes the name if it is still this socket's. Before the descriptor is closed: nobody takes the
// name for a left-over one meanwhile.
void unix_socket_remove(const struct unix_listener *listener);

#endif
