// SPDX-License-Identifier: Apache-2.0
// The event loop of a worker thread. A worker is a thread with a libevent base, a disk I/O engine
// and a mailbox. This room also contains the disk interface with its two engines, and thread pools
// for blocking calls. It contains no HTTP.
//
// Rules for every asynchronous operation here:
// - A function that starts an operation never runs the callback before it returns.
// - The callback runs exactly once, on the worker that started the operation. After a cancel it
//   usually gets ERR_CANCELLED, unless the operation was already complete.
// - No object is freed inside its own callback; use worker_free_later().
#ifndef FOREBAY_LOOP_LOOP_H
#define FOREBAY_LOOP_LOOP_H

#include <errno.h>
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
// The work of one turn of the loop, in this order: run events (sockets, curl, timers, disk
// completions, messages), run deferred work, submit disk operations, send outgoing messages, run
// the destructors of worker_free_later(), publish counters.

enum disk_engine { DISK_ENGINE_AUTO, DISK_ENGINE_URING, DISK_ENGINE_THREADS };

#define LOOP_WORKERS_MAX 64

struct loop_options {
    unsigned worker_count;   // From 1 to LOOP_WORKERS_MAX workers.
    enum disk_engine engine; // AUTO: io_uring, if a real read through a ring succeeds.
    // Threads of the engine `threads`, for all workers together. 0: two per worker, at least 4.
    unsigned disk_threads;
    unsigned disk_queue_depth;
};

// A set of workers and the state that they share. Their threads run from loop_start() on.
struct loop;
// Creates a set of workers. Returns ERR_INVALID if the options are invalid, or if DISK_ENGINE_URING
// is requested but unavailable. Returns ERR_LIMIT if there are too few descriptors. Then appends
// the reason to ret_why, unless that is NULL.
enum err loop_new(const struct loop_options *options, struct loop **ret_loop,
                  struct buf *ret_why) MUST_USE;
// Returns ERR_LIMIT if the threads cannot be started. Then none runs, and loop_free() is due.
enum err loop_start(struct loop *loop) MUST_USE;
// Stops all workers and joins their threads, after queued messages have been delivered and queued
// work has run.
void loop_stop(struct loop *loop);
void loop_free(struct loop *loop);
unsigned loop_worker_count(const struct loop *loop);
struct worker *loop_worker(struct loop *loop, unsigned index);
enum disk_engine loop_engine(const struct loop *loop); // The chosen engine; never AUTO.
// Returns why this engine was chosen, such as "io_uring: ok" or "threads: io_uring_setup: EPERM".
const char *loop_engine_why(const struct loop *loop);
// Returns the oldest heartbeat of all workers, in monotonic ms. Each worker updates its heartbeat
// at least once a second. So an old value means that a worker hangs. Any thread.
uint64_t loop_oldest_heartbeat_ms(const struct loop *loop);
// Returns for how long the cache's disk has answered nothing although a worker waits for a read or
// write of it. Operations on an origin's files do not count. Any thread.
uint64_t loop_disk_stuck_ms(const struct loop *loop);

// --- worker.c ------------------------------------------------------------------------------------

unsigned worker_index(const struct worker *w);
struct event_base *worker_event_base(struct worker *w);
struct worker *worker_current(void); // NULL if the calling thread is not a worker.
// Returns true if the calling thread may access the worker's own fields: it is the worker, or the
// worker is not running.
bool worker_is_mine(const struct worker *w);
// Counts an event of a socket. The event's callback calls it on the worker, when it has run. If
// many sockets are ready and no quick answers are expected, the rest of their events run in the
// next turn.
void worker_event_ran(struct worker *w);
uint64_t worker_now_us(const struct worker *w); // Monotonic time. It does not change during a turn.
// When the previous turn of a worker began, and how long it lasted.
struct worker_turn_time {
    uint64_t began_us, lasted_us;
};
struct worker_turn_time worker_last_turn(const struct worker *w);
// Announces that short work is expected until `until_us`. Short work must wait for all other work
// of its turn, so until then long work takes a smaller share of each turn.
void worker_expect_short(struct worker *w, uint64_t until_us);
bool worker_expects_short(const struct worker *w);
// Records that a request was answered in the turn in which it arrived (a hit). The latency of such
// requests depends only on the length of this worker's turns, so users of the loop keep the turns
// short for a while.
void worker_note_quick(struct worker *w);
// Returns true for 0.1 s after worker_note_quick().
bool worker_expects_quick(const struct worker *w);

// A slot is a pointer to the state that one room has on this worker. It is set before loop_start(),
// or on the worker itself.
enum worker_slot { WORKER_SLOT_STORE, WORKER_SLOT_FILL, WORKER_SLOT_PROXY, WORKER_SLOT_COUNT_ };
void worker_slot_set(struct worker *w, enum worker_slot slot, void *value);
void *worker_slot_get(const struct worker *w, enum worker_slot slot);

// Deferred work, which runs once, after the events of the turn. When fn() runs, the task is no
// longer queued, so fn() may defer it again; it then runs in the next turn. Deferring a queued task
// has no effect.
struct task {
    struct list_node node;
    void (*fn)(struct task *task);
};
void worker_task_init(struct task *task, void (*fn)(struct task *task));
void worker_defer(struct worker *w, struct task *task);
void worker_task_cancel(struct task *task);

// A one-shot timer, embedded in its owner. Starting a running timer changes the time at which it
// fires. A stopped timer never fires.
struct timer {
    void (*fn)(struct timer *timer);
    // Private.
    uint64_t due_us;
    struct worker *worker;
    unsigned heap_slot; // Index in the worker's heap, plus 1; 0: stopped.
};
void timer_init(struct worker *w, struct timer *timer, void (*fn)(struct timer *timer));
void timer_start(struct timer *timer, uint64_t delay_ms);
void timer_stop(struct timer *timer);
void timer_done(struct timer *timer); // Stops the timer; call it before its owner is freed.

// Announces a message that a thread other than a worker is going to send to this worker, so that
// the worker does not stop before it has arrived. Call worker_expect_done() on the worker when it
// has received the message.
void worker_expect(struct worker *w);
void worker_expect_done(struct worker *w);

// Runs fn(ptr) at the end of the current turn.
void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr);

// --- mailbox.c -----------------------------------------------------------------------------------

// A message to a worker. The sender allocates it. deliver() runs on the receiver, which then owns
// the message and frees it. Messages from one sender to one receiver are delivered in order. A
// message to the sender itself is delivered, in order, after the current callback returns.
//
// Mailboxes have no limit, because the number of messages is bounded: each message is an answer, or
// belongs to an object whose number is limited (reader, fill, write).
struct message {
    struct message *next;
    void (*deliver)(struct worker *to, struct message *message);
};
// Sends a message: at the end of the turn if the caller is a worker, otherwise at once.
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
    // Writes the dirty pages of the range to the device, and waits until they are written.
    DISK_PUSH
};

// Every file system that has direct I/O accepts this alignment of offsets, addresses and lengths,
// unless its blocks are larger.
#define DISK_DIRECT_ALIGN 4096u

// One disk operation, embedded in its owner, which container_of() finds. Buffers, paths and iov
// must stay valid until the callback. This layer itself continues short reads and writes, and
// repeats calls after EINTR. A read past the end of the file is no error: `result` is then smaller
// than requested.
struct disk_op {
    struct list_node node;
    enum disk_op_kind kind;
    int fd; // OPEN, STATX, UNLINK: `path` is relative to it.
    uint64_t offset;
    struct iovec *iov;  // READ, WRITE: the caller's array. This layer changes it.
    unsigned iov_count; // At most 64 buffers.
    const char *path;   // The path for OPEN, STATX and UNLINK.
    int open_flags;
    unsigned open_mode;
    uint64_t open_resolve; // RESOLVE_* flags for openat2. 0: use openat.
    int at_flags; // AT_* flags for STATX and UNLINK. STATX adds AT_EMPTY_PATH if the path is empty.
    uint64_t length; // The length of the range for FALLOCATE and PUSH.
    void *statx;     // Result of STATX: a struct statx.
    bool is_origins; // The file is of a `dir:` origin, so a separate queue is used.
    // READ, WRITE: the descriptor passes the page cache. The offset and all buffers are multiples
    // of DISK_DIRECT_ALIGN. EINVAL then means that the file system refuses direct I/O.
    bool is_direct;
    void (*done)(struct disk_op *op);
    // Results, valid in done().
    enum err err;
    int errno_value;
    int64_t result; // Bytes transferred, or the descriptor for OPEN.
    uint64_t started_us;
    // Private.
    struct worker *worker;
    uint64_t engine_private[3];
    uint64_t progress_bytes, remaining_bytes;
    unsigned iov_next, repeat_count;
    int state;
    atomic_bool is_cancelled;
    bool is_first_short;
};

// Starts an operation on the calling worker, which submits it at the end of the turn. The caller
// zero-initialises the operation before its first use. If the queue depth is reached, the operation
// waits in a queue of this layer. No operation is ever lost. COUNTER_disk_queue_full counts those
// that wait.
void disk_io_start(struct worker *w, struct disk_op *op);
// Returns true if the file system refused a direct operation that has ended.
static inline bool disk_op_is_refused(const struct disk_op *op)
{
    return op->is_direct && op->errno_value == EINVAL;
}
// Cancels the operation. done() still runs, once the I/O is over, with ERR_CANCELLED or the real
// result. So the caller must close a descriptor that was opened. Does nothing if the operation is
// not running.
void disk_io_cancel(struct disk_op *op);

// Reads without blocking (preadv2 with RWF_NOWAIT). Returns ERR_AGAIN if the read would block, or
// if the file system has no such reads. Returns ERR_IO and others on failure.
enum err disk_io_read_nowait(int fd, const struct iovec *iov, unsigned iov_count, uint64_t offset,
                             size_t *ret_bytes) MUST_USE;

// Returns true if all pages of the range are in the page cache. Uses cachestat(2) or mincore(2),
// whichever the probe below found to work. If neither works, always returns false.
bool disk_io_resident(int fd, uint64_t offset, uint64_t len);
enum disk_residency { DISK_RESIDENCY_CACHESTAT, DISK_RESIDENCY_MINCORE, DISK_RESIDENCY_NONE };
// Tests both methods on a new file in `dir`, and chooses one for the whole process. The test is
// needed because some file systems give wrong answers: cachestat on overlayfs always reports 0
// pages.
enum disk_residency disk_io_probe_residency(const char *dir);
enum disk_residency disk_io_residency_mode(void);

// Runs fdatasync(), which blocks. For threads that are not workers.
int disk_io_sync_blocking(int fd) MUST_USE;

#ifdef FOREBAY_FAULTS
// Scripted fault injection, for tests; absent from release builds. The script comes from the
// environment variable FOREBAY_DISK_FAULTS or from disk_fault_set(). It is a comma-separated list
// of rules `op:when:what[:arg]`:
// - op: read|write|sync|open|fallocate|unlink|push|any, or a name with a dot in it.
// - when: `/100` every 100th operation; `5` only the 5th; `5+` the 5th and all later ones;
//   `file=PATH` while PATH exists.
// - what: eio|enospc|erofs|emfile|eacces|short|slow (arg: ms)|rate (arg: bytes per second, shared
// by
//   all operations that the rule hits)|hold (with file=: until PATH is gone).
// disk_io_read_nowait() obeys the script too, and disk_io_sync_blocking() obeys hold. While a rule
// for the name `pages.gone` applies, disk_io_resident() returns false.
void disk_fault_set(const char *script);
// For system calls that a room makes on its own threads. Returns the errno that a rule for `name`
// injects now, or 0.
int disk_fault_errno(const char *name);
#endif

// --- file_send.c ---------------------------------------------------------------------------------

// A range of a file that is to be sent to a socket. release() releases the pin on the range, and
// runs exactly once.
struct file_range {
    bool was_ready; // file_send_ready() has just returned true for the range.
    int fd;
    // Optional, used instead of `fd`. borrow() returns a descriptor that file_send.c uses during
    // one call, or -1 if the file is not open now. give_back() ends its use. Both get release_ctx.
    int (*borrow)(void *ctx);
    void (*give_back)(void *ctx);
    uint64_t offset, len;
    void (*release)(void *ctx);
    void *release_ctx;
    // Returns true if the pages of these bytes in the page cache are still those whose checksums
    // were verified. NULL: they always are. Uses release_ctx, check_offset and verify_unit.
    bool (*is_good)(const struct file_range *range, uint64_t offset, uint64_t len);
    uint64_t check_offset;
    uint32_t verify_unit;
};

// Returns true if the bytes [skip, skip + len) of the range are in the page cache and pass
// is_good().
bool file_send_ready(const struct file_range *range, uint64_t skip, uint64_t len);
// Sends the bytes [skip, skip + len) of the range to a non-blocking socket without a copy. Sends
// only pages that were in memory, and that passed is_good() when they were taken from the page
// cache. Returns the number of bytes that the socket accepted. Fewer than `len` means that the
// socket is full, or that the next page cannot be sent this way.
//
// If nothing was sent, returns a negative errno:
//
// - -EAGAIN: the socket is full.
// - -ESTALE: the next page had to come from the device, failed is_good(), or is past the end of the
//   file. The caller reads and verifies the bytes instead.
// - Otherwise the socket's error.
int64_t file_send_range(struct worker *w, const struct file_range *range, uint64_t skip,
                        uint64_t len, int socket);

// --- blocking_pool.c -----------------------------------------------------------------------------

// Runs calls that have no asynchronous form. Each lane has its own threads, so that jobs blocked on
// one stalled device do not delay unrelated jobs. A lane queues at most 4,096 jobs. If it is full,
// work() does not run, and done() runs with ERR_LIMIT.
enum blocking_lane {
    BLOCKING_GENERAL, // Loads credentials and certificates.
    BLOCKING_STORE,   // Runs calls in the cache directory.
    BLOCKING_ORIGIN,  // Reads folders of `dir:` origins.
    BLOCKING_LANE_COUNT
};
struct blocking_job {
    struct list_node node;
    enum blocking_lane lane;
    void (*work)(struct blocking_job *job); // Runs on a pool thread.
    void (*done)(struct blocking_job *job); // Runs on the worker that started the job.
    struct worker *worker;
    struct message message;
    enum err err;
};
void blocking_pool_run(struct worker *w, struct blocking_job *job);

// --- unix sockets --------------------------------------------------------------------------------

#define UNIX_PATH_SIZE 108 // Size of sun_path in struct sockaddr_un.

struct unix_listener {
    int fd; // The caller closes it.
    char path[UNIX_PATH_SIZE];
    dev_t dev; // `dev` and `ino` identify the socket's file.
    ino_t ino;
};

// Listens at `path`. The socket file gets exactly `mode`, and never has wider permissions, not even
// briefly. A socket of this user that nobody listens on is replaced. If anything else is at `path`,
// returns ERR_IN_USE. On errors, ret_why gets one line. Blocks, so it is only for start-up.
enum err unix_socket_open(const char *path, unsigned mode, struct unix_listener *ret_listener,
                          struct buf *ret_why) MUST_USE;
// Records that this process has a permanent lock on the folder `fd`, which excludes all other
// processes. unix_socket_open() then takes no lock of its own in that folder. It could not get one,
// because the permanent lock would block it. Only one folder can be recorded; -1: none any more.
void unix_socket_folder_is_locked(int fd);
// Removes the socket file if it still belongs to this socket. Call it before the descriptor is
// closed. Otherwise another process could meanwhile take the file for a stale one and replace it.
void unix_socket_remove(const struct unix_listener *listener);

// --- socket_room.c -------------------------------------------------------------------------------
// Room for the kernel's buffers of TCP sockets, because a cgroup of version 2 counts them against
// the memory limit. Sockets of clients share a quarter of the limit, and those of origins share an
// eighth. The first sockets get the most, and later ones get less as the share fills. The kernel
// chooses the sizes for a socket with much room, and for all sockets without a memory limit. Any
// thread.

// The room of one socket; all 0 without a memory limit.
struct socket_room {
    uint64_t bytes;
    // The most bytes to write at once, and only while the socket polls as writable: the kernel
    // fills up the last packet, of up to 64 KiB, even if the buffer is full. 0: no such bound.
    unsigned piece;
};

enum socket_side { SOCKETS_CLIENTS, SOCKETS_ORIGINS, SOCKETS_SIDES };

void socket_room_init(uint64_t memory_limit_bytes); // 0: none; sockets keep the room that they have
uint64_t socket_room_bytes(enum socket_side side);  // what all sockets of the side have

// Takes room for one socket, and sets the sizes of its buffers: of an accepted one, or of one that
// is not connected yet. Returns false if clients have used up their share. An origin always gets
// room, because origin.connections and the memory for transfers limit how many there are.
bool socket_room_take(enum socket_side side, int fd, struct socket_room *ret_room) MUST_USE;
bool socket_room_is_scarce(enum socket_side side); // three quarters of the share are taken
void socket_room_give_back(enum socket_side side, const struct socket_room *room);

// Sets the size of the receive buffer for future connections of a listener.
// `*set_bytes` is the room that the listener was set for; 0: none so far.
void socket_room_apply_listener(int fd, uint64_t *set_bytes);

#endif
