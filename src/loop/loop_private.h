// SPDX-License-Identifier: Apache-2.0
// What the files of this room share: the worker, its parts, and the face of a disk engine.
//
// Threads: everything in struct worker belongs to its worker, except the fields named atomic.
// Before loop_start() and after loop_stop() it belongs to whoever holds the loop.
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
// Runs what is due now; timers started meanwhile wait for the next turn.
void timer_heap_run(struct timer_heap *heap, uint64_t now_us);
// UINT64_MAX when no timer runs.
uint64_t timer_heap_next_us(const struct timer_heap *heap);

// --- mailbox.c -----------------------------------------------------------------------------------
struct mailbox {
    _Atomic(struct message *) pushed; // newest first; any thread pushes, the owner takes all
    struct message *inbox;            // taken, in order of arrival
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
// `name` and `kind`: thread_begin(). Its threads call run() with each piece of work.
struct thread_pool *thread_pool_new(const char *name, enum thread_kind kind, unsigned thread_count,
                                    void (*run)(struct list_node *work));
void thread_pool_start(struct thread_pool *pool);
// Takes all `count` nodes of `work`, in their order, or none: ERR_LIMIT where more than
// `queued_max` would wait, ERR_SHUTDOWN once the pool stops. From any thread.
enum err thread_pool_add(struct thread_pool *pool, struct list *work, unsigned count,
                         unsigned queued_max) MUST_USE;
void thread_pool_stop(struct thread_pool *pool); // finishes what is queued and joins
void thread_pool_free(struct thread_pool *pool); // NULL is fine

// --- disk_io.c and its engines -------------------------------------------------------------------

// Three kinds of operations go apart: a device that takes no more writes holds back writes alone,
// and a file server that hangs holds back nothing of the cache's.
enum disk_lane_kind { DISK_LANE_READS, DISK_LANE_WRITES, DISK_LANE_ORIGIN, DISK_LANE_COUNT };
struct disk_lane {
    struct list waiting; // started, not yet given to the engine
    unsigned waiting_count, inflight_count, depth;
    struct list issued; // threads: in this pass, not yet given to the pool
    unsigned issued_count;
};
struct disk_io {
    struct disk_lane lanes[DISK_LANE_COUNT];
    struct list finished;        // results known, done() still to run
    unsigned inflight_published; // what the gauge says of us
    // io_uring
    struct io_uring ring;
    bool has_ring, is_ring_enabled;
    struct event *ring_event;
    // threads
    _Atomic(struct list_node *) completed; // newest first, linked by node.next
};

struct disk_engine_calls {
    // Takes the operation; false = no room now.
    bool (*issue)(struct worker *w, struct disk_op *op);
    // Hands over what was issued since the last flush.
    void (*flush)(struct worker *w);
    // Appends operations whose result is known to `finished`, others that must go on to `again`.
    void (*collect)(struct worker *w, struct list *finished, struct list *again);
};
extern const struct disk_engine_calls disk_io_uring_calls;
extern const struct disk_engine_calls disk_io_threads_calls;

// One real read through a real ring; on ERR_INVALID the reason is in *ret_why (a static or errno
// text).
enum err disk_io_uring_probe(struct buf *why) MUST_USE;
enum err disk_io_uring_open(struct worker *w, struct buf *why) MUST_USE;
void disk_io_uring_enable(struct worker *w); // on the worker's own thread, first thing
void disk_io_uring_close(struct worker *w);

// One for each lane, for all workers together.
struct thread_pool *disk_io_threads_pool_new(enum disk_lane_kind lane, unsigned thread_count);

void disk_io_init(struct worker *w, unsigned depth);
void disk_io_dispatch(struct worker *w); // collects completions, then runs their done()
void disk_io_submit(struct worker *w);
bool disk_io_has_work(const struct worker *w); // something to do without waiting
bool disk_io_is_quiet(const struct worker *w); // nothing under way at all
void disk_io_publish(struct worker *w);

enum disk_lane_kind disk_op_lane(const struct disk_op *op);

// Helpers of the engines. The next piece of a READ or WRITE: false = use iov/iov_count, true = one
// buffer.
bool disk_op_next_piece(struct disk_op *op, struct iovec *ret_one, struct iovec **ret_iov,
                        unsigned *ret_count);
// Takes one system call's result (bytes or -errno) into account. False: the operation goes on.
bool disk_op_take_result(struct disk_op *op, int64_t result) MUST_USE;

// --- blocking_pool.c -----------------------------------------------------------------------------
struct thread_pool *blocking_pool_new(enum blocking_lane lane);

// --- worker.c ------------------------------------------------------------------------------------
struct dead {
    void (*fn)(void *ptr);
    void *ptr;
};

// file_send.c: a pipe that is empty between two calls, and a place to empty it into.
struct file_send {
    int take, give, nowhere; // -1: none
    long blocks;             // that the worker's thread had read when it was last asked
    bool is_counted;         // and has not read since, as far as is known
};
void file_send_init(struct file_send *fs);
void file_send_done(struct file_send *fs);

struct worker {
    unsigned magic;
    unsigned index;
    struct loop *loop;
    struct event_base *base;
    struct event *wake_event;  // eventfd, edge triggered: never read
    struct event *timer_event; // the nearest moment we must be awake
    int wake_fd;
    pthread_t thread;
    bool is_running;

    uint64_t now_us_value;
    uint64_t *now_us; // of now_us_value; 0 = not asked yet in this turn
    uint64_t wake_at_us;
    uint64_t short_until_us;                // short work is expected
    uint64_t quick_until_us;                // worker_note_quick() lets us expect others
    uint64_t last_turn_at_us, last_turn_us; // when the turn before began, how long it lasted
    struct timer_heap timers;
    struct list deferred;
    struct dead *dead;
    unsigned dead_count, dead_cap;
    struct mailbox mailbox;
    struct disk_io disk;
    struct file_send file_send;
    unsigned expected_count; // messages of other threads that are due
    void *slots[WORKER_SLOT_COUNT_];

    atomic_ulong heartbeat_ms; // any thread reads
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
    uint64_t idle_wait_us;           // the longest wait of a worker
    atomic_ulong outside_sent_count; // messages from threads that are no worker
    atomic_bool is_stopping;         // workers report after each turn
    atomic_bool is_exiting;          // workers leave after this turn

    // Only while stopping: what each worker said after its last turn. Last in the order of locks.
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
// One turn, see worker.c. On its thread; or by whoever holds a loop that is not started.
void worker_turn(struct worker *w);

static inline struct worker *as_worker(void *ptr)
{
    struct worker *w = ptr;
    check(w != NULL);
    check(w->magic == WORKER_MAGIC);
    return w;
}

#endif
