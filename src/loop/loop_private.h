// SPDX-License-Identifier: Apache-2.0
// Private declarations of this room: the worker, its parts, and the interface of a disk engine.
//
// Threads: each field of struct worker belongs to its worker's thread, except fields marked atomic.
// Before loop_start() and after loop_stop() it belongs to the thread that holds the loop.
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
    struct timer **items; // binary heap by due_us
    unsigned count, cap;
};
void timer_heap_done(struct timer_heap *heap);
// Runs all timers that are due now. Timers started by their callbacks wait for the next turn.
void timer_heap_run(struct timer_heap *heap, uint64_t now_us);
// Returns the time of the next timer; UINT64_MAX if none runs.
uint64_t timer_heap_next_us(const struct timer_heap *heap);

// --- mailbox.c -----------------------------------------------------------------------------------
struct mailbox {
    // newest first; any thread pushes, the owner takes all of them
    _Atomic(struct message *) pushed;
    struct message *inbox; // taken by the owner, oldest first
    struct message *self_first, *self_last;
    // Messages of this turn per receiver, newest first.
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
// `name` and `kind` go to thread_begin(). The pool's threads call run() with each piece of work.
struct thread_pool *thread_pool_new(const char *name, enum thread_kind kind, unsigned thread_count,
                                    void (*run)(struct list_node *work));
void thread_pool_start(struct thread_pool *pool);
// Queues all `count` nodes of `work` in order, or none of them. Returns ERR_LIMIT if more than
// `queued_max` would be queued, and ERR_SHUTDOWN once the pool is stopping. Any thread may call it.
enum err thread_pool_add(struct thread_pool *pool, struct list *work, unsigned count,
                         unsigned queued_max) MUST_USE;
void thread_pool_stop(struct thread_pool *pool); // finishes the queued work, then joins
void thread_pool_free(struct thread_pool *pool); // accepts NULL

// --- disk_io.c and its engines -------------------------------------------------------------------

// Each lane has its own queue and depth. A device that is slow to write delays only writes. A file
// server that hangs delays only the operations on an origin's files.
enum disk_lane_kind { DISK_LANE_READS, DISK_LANE_WRITES, DISK_LANE_ORIGIN, DISK_LANE_COUNT };
struct disk_lane {
    struct list waiting; // started, not yet given to the engine
    unsigned waiting_count, inflight_count, depth;
    struct list issued; // threads engine: issued since the last flush, not yet in the pool
    unsigned issued_count;
};
struct disk_io {
    struct disk_lane lanes[DISK_LANE_COUNT];
    struct list finished;        // operations with a result whose done() has not run yet
    unsigned inflight_published; // the worker's in-flight operations as last added to the gauge
    // io_uring
    struct io_uring ring;
    bool has_ring, is_ring_enabled;
    struct event *ring_event;
    // threads
    _Atomic(struct list_node *) completed; // newest first, linked by node.next
};

struct disk_engine_calls {
    // Accepts the operation. Returns false if there is no room now.
    bool (*issue)(struct worker *w, struct disk_op *op);
    // Submits the operations issued since the last flush.
    void (*flush)(struct worker *w);
    // Appends operations that are complete to `finished`, and those that must continue to `again`.
    void (*collect)(struct worker *w, struct list *finished, struct list *again);
};
extern const struct disk_engine_calls disk_io_uring_calls;
extern const struct disk_engine_calls disk_io_threads_calls;

// Does one real read through a real ring. On ERR_INVALID, the reason is appended to *why.
enum err disk_io_uring_probe(struct buf *why) MUST_USE;
enum err disk_io_uring_open(struct worker *w, struct buf *why) MUST_USE;
void disk_io_uring_enable(struct worker *w); // on the worker's own thread, before anything else
void disk_io_uring_close(struct worker *w);

// Creates the pool of one lane. It serves all workers.
struct thread_pool *disk_io_threads_pool_new(enum disk_lane_kind lane, unsigned thread_count);

void disk_io_init(struct worker *w, unsigned depth);
void disk_io_dispatch(struct worker *w); // collects completions, then runs their done()
void disk_io_submit(struct worker *w);
bool disk_io_has_work(const struct worker *w); // there is work that needs no waiting
bool disk_io_is_quiet(const struct worker *w); // no operation is waiting, in flight or finished
void disk_io_publish(struct worker *w);

enum disk_lane_kind disk_op_lane(const struct disk_op *op);

// Returns the next piece of a READ or WRITE, for the engines. True: use the single buffer *ret_one.
// False: use *ret_iov and *ret_count.
bool disk_op_next_piece(struct disk_op *op, struct iovec *ret_one, struct iovec **ret_iov,
                        unsigned *ret_count);
// Applies the result of one system call (bytes or -errno). Returns false if the operation must
// continue.
bool disk_op_take_result(struct disk_op *op, int64_t result) MUST_USE;

// --- blocking_pool.c -----------------------------------------------------------------------------
struct thread_pool *blocking_pool_new(enum blocking_lane lane);

// --- worker.c ------------------------------------------------------------------------------------
struct dead {
    void (*fn)(void *ptr);
    void *ptr;
};

// State of file_send.c: a pipe, which is empty between two calls, and a descriptor of /dev/null
// that receives bytes to be discarded.
struct file_send {
    int take, give, nowhere; // the pipe's write end, its read end, /dev/null; -1: not open
    long blocks;             // blocks the thread had read from devices at the last getrusage()
    bool is_counted;         // `blocks` is still current, as far as this worker knows
};
void file_send_init(struct file_send *fs);
void file_send_done(struct file_send *fs);

struct worker {
    unsigned magic;
    unsigned index;
    struct loop *loop;
    struct event_base *base;
    struct event *wake_event;  // on wake_fd, edge triggered, so wake_fd is never read
    struct event *timer_event; // ends the wait at wake_at_us
    int wake_fd;
    pthread_t thread;
    bool is_running;

    uint64_t now_us_value;
    uint64_t *now_us; // points to now_us_value; 0 = clock not read yet in this turn
    uint64_t wake_at_us;
    uint64_t short_until_us;                // short work is expected until then
    uint64_t quick_until_us;                // more quick answers are expected until then
    uint64_t last_turn_at_us, last_turn_us; // start and duration of the previous turn
    struct timer_heap timers;
    struct list deferred;
    struct dead *dead;
    unsigned dead_count, dead_cap;
    struct mailbox mailbox;
    struct disk_io disk;
    struct file_send file_send;
    unsigned expected_count; // messages that other threads are going to send
    void *slots[WORKER_SLOT_COUNT_];

    atomic_ulong heartbeat_ms; // any thread may read it
};

struct loop {
    struct worker *workers;
    unsigned worker_count;
    enum disk_engine engine;
    const struct disk_engine_calls *engine_calls;
    char engine_why[160];
    struct thread_pool *disk_pools[DISK_LANE_COUNT]; // NULL with io_uring
    struct thread_pool *blocking_pools[BLOCKING_LANE_COUNT];
    bool is_started;
    uint64_t idle_wait_us;           // longest time that a worker sleeps
    atomic_ulong outside_sent_count; // messages sent by non-worker threads
    atomic_bool is_stopping;         // set by loop_stop(): workers report after each turn
    atomic_bool is_exiting;          // workers end after the present turn

    // Used only while stopping: each worker's report after its last turn. In the lock order this
    // mutex comes last.
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct {
            uint64_t sent_count, delivered_count;
            bool is_quiet, has_reported;
        } worker[LOOP_WORKERS_MAX];
    } stop;
};

void worker_wake(struct worker *w); // any thread
// Makes `w` the worker of the calling thread. NULL: the thread is no longer a worker.
void worker_enter(struct worker *w);
void worker_run_deferred(struct worker *w);
void worker_free_dead(struct worker *w);

// --- loop.c --------------------------------------------------------------------------------------
// Runs one turn, see loop.c. Called on the worker's thread, or by the holder of a loop that has
// not started.
void loop_turn(struct worker *w);

static inline struct worker *as_worker(void *ptr)
{
    struct worker *w = ptr;
    check(w != NULL);
    check(w->magic == WORKER_MAGIC);
    return w;
}

#endif
