// SPDX-License-Identifier: Apache-2.0
// The event loop of a worker thread. A worker is a thread with a libevent base, a disk I/O engine
// and a mailbox. This room also contains the disk interface with its two engines, and a thread pool
// for blocking calls. It has no code for HTTP.
//
// Rules for every asynchronous operation here:
// - A function that starts an operation never runs the callback before it returns.
// - The callback runs exactly once, on the worker that started the operation. After a cancel it
//   usually gets ERR_CANCELLED.
// - No object is freed inside its own callback; use worker_free_later().
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

// --- loop.c --------------------------------------------------------------------------------------
// The order of work in one turn of the loop: read the clock, run events (sockets, disk completions,
// curl, timers, mailbox), run deferred work, submit disk operations, deliver outgoing messages, run
// the destructors of worker_free_later(), publish counters.

enum disk_engine { DISK_ENGINE_AUTO, DISK_ENGINE_URING, DISK_ENGINE_THREADS };

#define LOOP_WORKERS_MAX 64

struct loop_options {
    unsigned worker_count;   // 1..LOOP_WORKERS_MAX
    enum disk_engine engine; // AUTO probes a real ring with one real read
    unsigned disk_threads;   // threads engine: total for all workers; 0 = 2 per worker
    unsigned disk_queue_depth;
};

// A set of workers and the state they share. The threads run after loop_start().
struct loop;
// Returns ERR_INVALID for invalid options, and if io_uring is forced but unavailable. The reason is
// appended to ret_why.
enum err loop_new(const struct loop_options *options, struct loop **ret_loop,
                  struct buf *ret_why) MUST_USE;
enum err loop_start(struct loop *loop) MUST_USE;
// Stops every worker and joins the threads. Queued messages and queued work are delivered first.
void loop_stop(struct loop *loop);
void loop_free(struct loop *loop);
unsigned loop_worker_count(const struct loop *loop);
struct worker *loop_worker(struct loop *loop, unsigned index);
enum disk_engine loop_engine(const struct loop *loop); // the engine in use; never AUTO
// Returns the reason for the engine, like "io_uring: ok" or "threads: io_uring_setup: EPERM".
const char *loop_engine_why(const struct loop *loop);
// Returns the oldest heartbeat of any worker, in monotonic ms. Each worker updates its heartbeat at
// least once a second. Any thread may call this.
uint64_t loop_oldest_heartbeat_ms(const struct loop *loop);

// --- worker.c ------------------------------------------------------------------------------------

unsigned worker_index(const struct worker *w);
struct event_base *worker_event_base(struct worker *w);
struct worker *worker_current(void); // NULL if the calling thread is not a worker
// Returns true if the caller may access the worker's own fields.
bool worker_is_mine(const struct worker *w);
uint64_t worker_now_us(const struct worker *w); // monotonic; the same value for a whole turn
// Start and duration of the previous turn.
struct worker_turn_time {
    uint64_t began_us, lasted_us;
};
struct worker_turn_time worker_last_turn(const struct worker *w);
// Announces that short work is expected until `until_us`. Short work waits for all other work of
// its turn. So until then, long work takes a smaller share of each turn.
void worker_expect_short(struct worker *w, uint64_t until_us);
bool worker_expects_short(const struct worker *w);
// Records that a request was answered in the turn in which it arrived. The latency of such requests
// depends only on the length of this worker's turns.
void worker_note_quick(struct worker *w);
// Returns true for a short time after worker_note_quick().
bool worker_expects_quick(const struct worker *w);

// A slot is a pointer to one room's state on this worker. Set it before loop_start() or on the
// worker itself.
enum worker_slot { WORKER_SLOT_STORE, WORKER_SLOT_FILL, WORKER_SLOT_PROXY, WORKER_SLOT_COUNT_ };
void worker_slot_set(struct worker *w, enum worker_slot slot, void *value);
void *worker_slot_get(const struct worker *w, enum worker_slot slot);

// Deferred work, which runs once after the events of this turn. When fn runs, the task is no longer
// queued, so fn may defer it again. Deferring a queued task has no effect.
struct task {
    struct list_node node;
    void (*fn)(struct task *task);
};
void worker_task_init(struct task *task, void (*fn)(struct task *task));
void worker_defer(struct worker *w, struct task *task);
void worker_task_cancel(struct task *task);

// A one-shot timer, embedded in its owner. Starting a running timer moves it. A stopped timer never
// fires.
struct timer {
    void (*fn)(struct timer *timer);
    // private
    uint64_t due_us;
    struct worker *worker;
    unsigned heap_slot; // index in the worker's heap + 1; 0 = stopped
};
void timer_init(struct worker *w, struct timer *timer, void (*fn)(struct timer *timer));
void timer_start(struct timer *timer, uint64_t delay_ms);
void timer_stop(struct timer *timer);
void timer_done(struct timer *timer); // stops the timer; call it before its owner is freed

// Counts a message that a non-worker thread is going to send. The worker does not stop before the
// message has arrived. Call worker_expect_done() on the worker when it has received the message.
void worker_expect(struct worker *w);
void worker_expect_done(struct worker *w);

// Runs fn(ptr) at the end of the current turn.
void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr);

// --- mailbox.c -----------------------------------------------------------------------------------

// The sender allocates a message and transfers its ownership. deliver() runs on the receiver and
// frees it. Messages from one sender to one receiver are delivered in order. A message to the
// sender itself is delivered, in order, after the current callback returns. Mailboxes have no
// limit, because each message is an answer or belongs to an object whose number is limited (reader,
// fill, write).
struct message {
    struct message *next;
    void (*deliver)(struct worker *to, struct message *message);
};
// Sends a message. A worker sends it at the end of its turn, any other thread at once.
void mailbox_send(struct worker *to, struct message *message);
// Like mailbox_send(), for threads that are not workers.
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
    DISK_PUSH // writes dirty pages of the range to the device and waits for them
};

// One operation, embedded in its owner; use container_of to get the owner. Buffers, paths and iov
// must stay valid until the callback. This layer continues short reads and writes, and repeats
// calls after EINTR. A read past the end of the file completes with fewer bytes in `result`.
struct disk_op {
    struct list_node node;
    enum disk_op_kind kind;
    int fd; // for OPEN: the directory (AT_FDCWD)
    uint64_t offset;
    struct iovec *iov;  // READ, WRITE: the caller's array; disk_io may change it
    unsigned iov_count; // <= 64
    const char *path;   // OPEN, STATX, UNLINK
    int open_flags;
    unsigned open_mode;
    uint64_t open_resolve; // openat2 RESOLVE_* flags; 0 = plain openat
    int at_flags;          // STATX, UNLINK: AT_* flags; AT_EMPTY_PATH is added for an empty path
    uint64_t length;       // FALLOCATE, PUSH
    void *statx;           // struct statx *
    bool is_origins;       // on a file of a `dir:` origin; has a separate queue
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

// Queues the operation on the calling worker, which submits it at the end of the turn. The caller
// zero-initialises the operation before its first use. Operations above the queue depth wait in a
// queue of this layer. They are never lost, and a counter counts them.
void disk_io_start(struct worker *w, struct disk_op *op);
// Cancels the operation. done() still runs once the I/O is over, with ERR_CANCELLED or the real
// result; the caller must close an opened descriptor. Harmless on an operation that is not in
// flight.
void disk_io_cancel(struct disk_op *op);

// Reads without blocking (preadv2 with RWF_NOWAIT). Returns ERR_AGAIN if the read would block or
// the file system does not support this, ERR_IO and others on failure.
enum err disk_io_read_nowait(int fd, const struct iovec *iov, unsigned iov_count, uint64_t offset,
                             size_t *ret_bytes) MUST_USE;

// Returns true if all pages of the range are in the page cache. Uses cachestat(2) or mincore(2), as
// the probe below decided; without either, the answer is always false.
bool disk_io_resident(int fd, uint64_t offset, uint64_t len);
enum disk_residency { DISK_RESIDENCY_CACHESTAT, DISK_RESIDENCY_MINCORE, DISK_RESIDENCY_NONE };
// Tests the methods on a new file in `dir` and fixes the choice for the process. The test is needed
// because, for example, cachestat on overlayfs always reports 0 pages.
enum disk_residency disk_io_probe_residency(const char *dir);
enum disk_residency disk_io_residency_mode(void);

// Runs fdatasync(). For threads that are not workers.
int disk_io_sync_blocking(int fd) MUST_USE;

#ifdef FOREBAY_FAULTS
// Scripted fault injection; absent from release builds. The script comes from the environment
// variable FOREBAY_DISK_FAULTS or from disk_fault_set(). It is a comma-separated list of
// `op:when:what[:arg]`:
// - op: read|write|sync|open|fallocate|unlink|push|any, or a name with a dot in it.
// - when: `/100` every 100th operation; `5` only the 5th; `5+` the 5th and all later ones;
//   `file=PATH` while PATH exists.
// - what: eio|enospc|erofs|emfile|short|slow (arg: ms)|rate (arg: bytes per second, shared by all
//   operations that the rule hits)|hold (with file=: until PATH is gone).
// disk_io_read_nowait() obeys the script too, and disk_io_sync_blocking() obeys hold. While the
// rule `pages.gone` strikes, disk_io_resident() returns false.
void disk_fault_set(const char *script);
// For system calls that a room makes on its own threads. Returns the errno of the rule for `name`
// that strikes now, or 0.
int disk_fault_errno(const char *name);
#endif

// --- file_send.c ---------------------------------------------------------------------------------

// A range of a file to be sent to a socket. `release` releases the pin and runs exactly once.
struct file_range {
    bool was_ready; // file_send_ready() has just returned true
    int fd;
    // Optional, instead of `fd`. borrow() returns a descriptor for the duration of one call here,
    // or -1 if the file is not open now. give_back() returns it. Both get release_ctx.
    int (*borrow)(void *ctx);
    void (*give_back)(void *ctx);
    uint64_t offset, len;
    void (*release)(void *ctx);
    void *release_ctx;
    // Returns true if the cached pages of these bytes are still the pages whose checksums were
    // verified. NULL: they always are. It uses release_ctx and the two fields after it.
    bool (*is_good)(const struct file_range *range, uint64_t offset, uint64_t len);
    uint64_t check_offset;
    uint32_t verify_unit;
};

// Returns true if `len` bytes from `skip` on are in the page cache and pass is_good().
bool file_send_ready(const struct file_range *range, uint64_t skip, uint64_t len);
// Sends bytes [skip, skip + len) of the range to a non-blocking socket without a copy. It sends
// only pages that were in memory and passed is_good() when it took them. Returns the number of
// bytes the socket accepted; fewer than `len` means that the socket is full, or that the next page
// cannot be sent this way.
// If nothing was sent, returns a negative errno: -EAGAIN if the socket is full; -ESTALE if the next
// page had to come from the device, failed is_good(), or is past the end of the file; otherwise the
// socket's error.
int64_t file_send_range(struct worker *w, const struct file_range *range, uint64_t skip,
                        uint64_t len, int socket);

// --- blocking_pool.c -----------------------------------------------------------------------------

// For calls that have no asynchronous form. Each lane has its own threads, so that jobs blocked on
// one stalled device do not delay unrelated jobs. A lane queues at most 4,096 jobs; above that, a
// job's done() runs with ERR_LIMIT.
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
    int fd; // the caller closes it
    char path[UNIX_PATH_SIZE];
    dev_t dev; // of the socket's file
    ino_t ino;
};

// Listens at `path`. The socket file gets exactly `mode` and never has wider permissions, not even
// briefly. A socket of this user without a listener is replaced. Anything else at `path` gives
// ERR_IN_USE. ret_why gets one line. Blocks, so it is for start-up.
enum err unix_socket_open(const char *path, unsigned mode, struct unix_listener *ret_listener,
                          struct buf *ret_why) MUST_USE;
// Records that this process holds a permanent lock on the folder `fd`, which excludes all other
// processes. Sockets in that folder then take no lock of their own; they could not, because the
// permanent lock would block it. At most one folder; -1: none any more.
void unix_socket_folder_is_locked(int fd);
// Removes the socket file if it is still this socket's. Call it before the descriptor is closed, so
// that no other process can mistake the file for a stale one in between.
void unix_socket_remove(const struct unix_listener *listener);

#endif
