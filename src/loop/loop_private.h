// SPDX-License-Identifier: Apache-2.0
// Private declarations of this room: the worker, its parts, and the interface of a disk engine.
//
// Threads: the fields of struct worker belong to the worker's thread, except for the atomic ones.
// Before loop_start() and after loop_stop(), they belong to the thread that owns the loop.
#ifndef FOREBAY_LOOP_LOOP_PRIVATE_H
#define FOREBAY_LOOP_LOOP_PRIVATE_H

#include <liburing.h>
#include <pthread.h>

#include "base/thread.h"
#include "loop/loop.h"

#define WORKER_MAGIC 0x776f726bu
#define DISK_QUEUE_DEPTH_DEFAULT 128
#define DISK_QUEUE_DEPTH_MAX 4096
#define BLOCKING_QUEUE_MAX 4096
#define DISK_PUSH_FLAGS                                                                            \
    (SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER)

// --- timer.c -------------------------------------------------------------------------------------
struct timer_heap {
    struct timer **items; // Binary heap by due_us.
    unsigned count, cap;
};
void timer_heap_done(struct timer_heap *heap);
// Runs all timers that are due now. Timers that their callbacks start wait for the next turn.
void timer_heap_run(struct timer_heap *heap, uint64_t now_us);
// Returns when the next timer is due; UINT64_MAX if no timer runs.
uint64_t timer_heap_next_us(const struct timer_heap *heap);

// --- mailbox.c -----------------------------------------------------------------------------------
struct mailbox {
    // Newest first. Any thread pushes; only the owner takes messages, all at once.
    _Atomic(struct message *) pushed;
    struct message *inbox; // Messages that the owner has taken; oldest first.
    struct message *self_first, *self_last;
    // The messages sent in this turn, for each receiver; newest first.
    struct {
        struct message *newest, *oldest;
    } outgoing[LOOP_WORKERS_MAX];
    bool has_outgoing;
    uint64_t sent_count, delivered_count;
};
void mailbox_deliver_inbox(struct worker *w);
void mailbox_deliver_self(struct worker *w);
void mailbox_flush(struct worker *w);
bool mailbox_has_work(const struct worker *w);

// --- thread_pool.c -------------------------------------------------------------------------------
struct thread_pool;
// Creates a pool. Its threads call thread_begin() with `name` and `kind`, and then run() with each
// piece of work.
struct thread_pool *thread_pool_new(const char *name, enum thread_kind kind, unsigned thread_count,
                                    void (*run)(struct list_node *work));
// Starts as many threads as the system allows. Returns ERR_LIMIT if that is none.
enum err thread_pool_start(struct thread_pool *pool) MUST_USE;
// Queues all `count` nodes of `work` in order, or none of them. Returns ERR_LIMIT if more than
// `queued_max` would be queued, and ERR_SHUTDOWN once the pool is stopping. Any thread may call it.
enum err thread_pool_add(struct thread_pool *pool, struct list *work, unsigned count,
                         unsigned queued_max) MUST_USE;
void thread_pool_stop(struct thread_pool *pool); // Runs the queued work, then joins the threads.
void thread_pool_free(struct thread_pool *pool); // Accepts NULL.

// --- disk_io.c and its engines -------------------------------------------------------------------

// Each lane has its own queue and depth. So a device that writes slowly delays only writes, and a
// file server that hangs delays only the operations on an origin's files.
enum disk_lane_kind { DISK_LANE_READS, DISK_LANE_WRITES, DISK_LANE_ORIGIN, DISK_LANE_COUNT };
struct disk_lane {
    struct list waiting; // Started, but not yet passed to the engine.
    unsigned waiting_count, inflight_count, depth;
    // When the last operation came back, or the first of those in flight was passed to the engine.
    // Monotonic; 0: none is in flight. Any thread reads it.
    atomic_ulong moved_ms;
    struct list issued; // Threads engine: operations to pass to the pool at the next flush.
    unsigned issued_count;
};
struct disk_io {
    struct disk_lane lanes[DISK_LANE_COUNT];
    struct list finished;        // Operations that have a result, but whose done() has not run.
    unsigned inflight_published; // This worker's part of the gauge, as last published.
    // Only for the io_uring engine.
    struct io_uring ring;
    bool has_ring, is_ring_enabled;
    struct event *ring_event;
    // Only for the threads engine.
    _Atomic(struct list_node *) completed; // Newest first, linked by node.next.
};

struct disk_engine_calls {
    // Accepts an operation. Returns false if the engine has no room for it now.
    bool (*issue)(struct worker *w, struct disk_op *op);
    // Submits the operations issued since the last flush.
    void (*flush)(struct worker *w);
    // Appends complete operations to `finished`, and those that must be continued to `again`.
    void (*collect)(struct worker *w, struct list *finished, struct list *again);
};
extern const struct disk_engine_calls disk_io_uring_calls;
extern const struct disk_engine_calls disk_io_threads_calls;

// Tests io_uring by one real read. On ERR_INVALID, appends the reason to *why.
enum err disk_io_uring_probe(struct buf *why) MUST_USE;
enum err disk_io_uring_open(struct worker *w, struct buf *why) MUST_USE;
void disk_io_uring_enable(struct worker *w); // Called first, on the worker's own thread.
void disk_io_uring_close(struct worker *w);

// Creates the pool of one lane, which serves all workers.
struct thread_pool *disk_io_threads_pool_new(enum disk_lane_kind lane, unsigned thread_count);

void disk_io_init(struct worker *w, unsigned depth);
void disk_io_dispatch(struct worker *w); // Collects completions, then runs their done().
void disk_io_submit(struct worker *w);
// Returns true if some work can be done without waiting.
bool disk_io_has_work(const struct worker *w);
// Returns true if no operation is waiting, in flight, or finished with its done() still to run.
bool disk_io_is_quiet(const struct worker *w);
void disk_io_publish(struct worker *w);

enum disk_lane_kind disk_op_lane(const struct disk_op *op);

// Returns the buffers for the next system call of a READ or WRITE. True: it is the single buffer
// *ret_one. False: it is the array *ret_iov with *ret_count buffers.
bool disk_op_next_piece(struct disk_op *op, struct iovec *ret_one, struct iovec **ret_iov,
                        unsigned *ret_count);
// Applies the result of one system call (bytes, or -errno) to the operation. Returns false if the
// operation needs another call.
bool disk_op_take_result(struct disk_op *op, int64_t result) MUST_USE;

// --- blocking_pool.c -----------------------------------------------------------------------------
struct thread_pool *blocking_pool_new(enum blocking_lane lane);

// --- worker.c ------------------------------------------------------------------------------------
struct dead {
    void (*fn)(void *ptr);
    void *ptr;
};

// State of file_send.c: a pipe, which is empty between two calls, and a descriptor of /dev/null,
// into which bytes are discarded.
struct file_send {
    int take, give, nowhere; // The pipe's write end, its read end, and /dev/null. -1: closed.
    long blocks;             // Blocks that this thread had read at the last getrusage().
    bool is_counted;         // `blocks` is valid, so the next splice needs no getrusage().
};
void file_send_init(struct file_send *fs);
void file_send_done(struct file_send *fs);

struct worker {
    unsigned magic;
    unsigned index;
    struct loop *loop;
    struct event_base *base;
    struct event *wake_event;  // For wake_fd. Edge-triggered, so wake_fd need not be read.
    struct event *timer_event; // Ends the wait at wake_at_us.
    int wake_fd;
    pthread_t thread;
    bool is_running;

    uint64_t now_us_value;
    uint64_t *now_us; // Points to now_us_value, which is 0 until the clock is read in this turn.
    uint64_t wake_at_us;
    uint64_t short_until_us;                // Short work is expected until this time.
    uint64_t quick_until_us;                // More quick answers are expected until this time.
    uint64_t last_turn_at_us, last_turn_us; // Start and duration of the previous turn.
    unsigned events_left; // How many more events of sockets this turn runs. 0: none has run yet.
    struct timer_heap timers;
    struct list deferred;
    struct dead *dead;
    unsigned dead_count, dead_cap;
    struct mailbox mailbox;
    struct disk_io disk;
    struct file_send file_send;
    unsigned expected_count; // How many messages other threads are going to send.
    void *slots[WORKER_SLOT_COUNT_];

    atomic_ulong heartbeat_ms; // Updated in each turn, and read by any thread.
};

struct loop {
    struct worker *workers;
    unsigned worker_count;
    enum disk_engine engine;
    const struct disk_engine_calls *engine_calls;
    char engine_why[160];
    struct thread_pool *disk_pools[DISK_LANE_COUNT]; // NULL if the engine is io_uring.
    struct thread_pool *blocking_pools[BLOCKING_LANE_COUNT];
    bool is_started;
    uint64_t idle_wait_us;           // Longest time that a worker sleeps.
    atomic_ulong outside_sent_count; // Messages sent by threads that are no workers.
    atomic_bool is_stopping;         // Set by loop_stop(). Workers then report in each turn.
    atomic_bool is_exiting;          // Workers end after their current turn.

    // Only used while stopping: the latest report of each worker. No other lock is taken while this
    // mutex is locked.
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct {
            uint64_t sent_count, delivered_count;
            bool is_quiet, has_reported;
        } worker[LOOP_WORKERS_MAX];
    } stop;
};

void worker_wake(struct worker *w); // Ends the worker's wait. Any thread.
// Makes the calling thread the worker `w`. NULL: the thread is no worker any more.
void worker_enter(struct worker *w);
void worker_run_deferred(struct worker *w);
void worker_free_dead(struct worker *w);

// --- loop.c --------------------------------------------------------------------------------------
// Runs one turn, see loop.c. Called on the worker's thread, or by the thread that owns a loop that
// has not started.
void loop_turn(struct worker *w);

static inline struct worker *as_worker(void *ptr)
{
    struct worker *w = ptr;
    check(w != NULL);
    check(w->magic == WORKER_MAGIC);
    return w;
}

#endif
