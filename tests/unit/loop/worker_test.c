// SPDX-License-Identifier: Apache-2.0
// Workers: the order of a turn, deferred work, freeing later, timers, stopping, heartbeat, options.
#include <errno.h>
#include <event2/event.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "loop/loop.h"
#include "loop_fixture.h"
#include "test.h"
#include "thread_limit.h"

// --- Options -------------------------------------------------------------------------------------

// Proves that impossible options are refused with a message, and not obeyed in part.
Test(worker, bad_options_are_refused)
{
    struct loop_options options = {.worker_count = 0};
    struct loop *loop = NULL;
    struct buf why;
    buf_init(&why, 1000);
    cr_assert(loop_new(&options, &loop, &why) == ERR_INVALID);
    cr_assert(loop == NULL);
    cr_assert(strlen(buf_cstr(&why)) > 0);
    options.worker_count = 65;
    cr_assert(loop_new(&options, &loop, &why) == ERR_INVALID);
    options.worker_count = 1;
    options.disk_queue_depth = 1000000;
    cr_assert(loop_new(&options, &loop, NULL) == ERR_INVALID);
    buf_done(&why);
}

// Proves that a loop made and never started can be freed, and that AUTO always finds an engine and
// says why.
Test(worker, auto_finds_an_engine)
{
    struct loop_options options = {.worker_count = 3};
    struct loop *loop = NULL;
    cr_assert(loop_new(&options, &loop, NULL) == ERR_OK);
    cr_assert(loop_worker_count(loop) == 3);
    cr_assert(loop_engine(loop) != DISK_ENGINE_AUTO);
    if (loop_engine(loop) == DISK_ENGINE_URING) {
        cr_assert_str_eq(loop_engine_why(loop), "io_uring: ok");
    } else {
        cr_assert(strncmp(loop_engine_why(loop), "threads: ", 9) == 0);
    }
    loop_free(loop);
    loop_free(NULL);
    loop_stop(NULL);
}

// Proves that a loop whose threads the system refuses does not start, and can be freed.
Test(worker, loop_does_not_start_at_the_limit_of_threads)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_AUTO, DISK_ENGINE_THREADS};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        struct loop_options options = {.worker_count = 2, .engine = engines[i]};
        struct loop *loop = NULL;
        cr_assert(loop_new(&options, &loop, NULL) == ERR_OK);
        thread_limit_reached(true);
        cr_assert(loop_start(loop) == ERR_LIMIT);
        thread_limit_reached(false);
        loop_free(loop);
    }
}

static int slot_value;

static void check_identity(struct worker *w, void *ctx)
{
    struct loop *loop = ctx;
    cr_assert(loop_worker(loop, worker_index(w)) == w);
    cr_assert(worker_event_base(w) != NULL);
    cr_assert(worker_slot_get(w, WORKER_SLOT_STORE) == &slot_value);
    cr_assert(worker_slot_get(w, WORKER_SLOT_FILL) == NULL);
    worker_slot_set(w, WORKER_SLOT_FILL, loop);
    cr_assert(worker_slot_get(w, WORKER_SLOT_FILL) == loop);
}

// Proves that a worker knows itself, and that its slots keep the values from before the start.
Test(worker, identity_and_slots)
{
    struct loop_options options = {.worker_count = 2, .engine = DISK_ENGINE_THREADS};
    struct loop *loop = NULL;
    cr_assert(loop_new(&options, &loop, NULL) == ERR_OK);
    for (unsigned i = 0; i < 2; i++) {
        worker_slot_set(loop_worker(loop, i), WORKER_SLOT_STORE, &slot_value);
    }
    cr_assert(loop_start(loop) == ERR_OK);
    cr_assert(worker_current() == NULL);
    for (unsigned i = 0; i < 2; i++) {
        fixture_run_on(loop_worker(loop, i), check_identity, loop);
    }
    fixture_loop_end(&loop);
}

// --- The order of a turn -------------------------------------------------------------------------

struct order {
    char log[64];
    struct task first, second, cancelled;
    struct message to_self;
    struct worker *worker;
    unsigned rounds;
    struct signal over;
    uint64_t now_us;
};

static void order_note(struct order *order, const char *what)
{
    cr_assert(strlen(order->log) + strlen(what) < sizeof(order->log));
    memcpy(order->log + strlen(order->log), what, strlen(what) + 1);
}

static void on_dead(void *ptr)
{
    struct order *order = ptr;
    order_note(order, "F");
    signal_raise(&order->over);
}

static void on_dead_first(void *ptr)
{
    struct order *order = ptr;
    order_note(order, "f");
    worker_free_later(order->worker, on_dead, order); // a destructor may bury others
}

static void on_self_message(struct worker *w, struct message *message)
{
    struct order *order = container_of(message, struct order, to_self);
    cr_assert(worker_now_us(w) == order->now_us);
    order_note(order, "m");
}

static void on_first_task(struct task *task)
{
    struct order *order = container_of(task, struct order, first);
    order_note(order, "1");
    if (++order->rounds < 3) {
        worker_defer(order->worker, task);
    } else {
        worker_free_later(order->worker, on_dead_first, order);
    }
}

static void on_second_task(struct task *task)
{
    struct order *order = container_of(task, struct order, second);
    order_note(order, "2");
    worker_task_cancel(&order->cancelled); // it is in the same batch
}

static void on_never(struct task *task)
{
    (void)task;
    cr_assert_fail();
}

static void start_order(struct worker *w, void *ctx)
{
    struct order *order = ctx;
    order->worker = w;
    order->now_us = worker_now_us(w);
    worker_task_init(&order->first, on_first_task);
    worker_task_init(&order->second, on_second_task);
    worker_task_init(&order->cancelled, on_never);
    worker_defer(w, &order->first);
    worker_defer(w, &order->second);
    worker_defer(w, &order->first); // harmless
    worker_defer(w, &order->cancelled);
    order->to_self.deliver = on_self_message;
    mailbox_send(w, &order->to_self);
    order_note(order, "e");
}

// Proves the order of events, messages to oneself, deferred work and freeing. A task that is posted
// again runs in the next turn. A cancelled one does not run. The time does not change within a
// turn.
Test(worker, order_of_a_turn)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    struct order order = {0};
    signal_init(&order.over);
    fixture_run_on(loop_worker(loop, 0), start_order, &order);
    signal_wait(&order.over);
    cr_assert_str_eq(order.log, "em1211fF");
    fixture_loop_end(&loop);
    signal_done(&order.over);
}

// --- Events of sockets ---------------------------------------------------------------------------

#define READY_SOCKETS 100u

struct ready {
    struct worker *worker;
    struct task turn_end;
    struct event *events[READY_SOCKETS];
    bool are_hits;
    unsigned ran, turns;
    struct signal over;
};

static void on_turn_end(struct task *task)
{
    struct ready *ready = container_of(task, struct ready, turn_end);
    ready->turns++;
    if (ready->ran == READY_SOCKETS) {
        signal_raise(&ready->over);
    }
}

static void on_socket_ready(evutil_socket_t fd, short what, void *ctx)
{
    struct ready *ready = ctx;
    (void)fd;
    cr_assert_eq(what, EV_READ);
    ready->ran++;
    if (ready->are_hits) {
        worker_note_quick(ready->worker);
    }
    worker_defer(ready->worker, &ready->turn_end);
    worker_event_ran(ready->worker);
}

static void start_ready(struct worker *w, void *ctx)
{
    struct ready *ready = ctx;
    ready->worker = w;
    worker_task_init(&ready->turn_end, on_turn_end);
    for (unsigned i = 0; i < READY_SOCKETS; i++) {
        ready->events[i] = event_new(worker_event_base(w), -1, EV_READ, on_socket_ready, ready);
        cr_assert_not_null(ready->events[i]);
        event_active(ready->events[i], EV_READ, 0);
    }
}

static void end_ready(struct worker *w, void *ctx)
{
    struct ready *ready = ctx;
    (void)w;
    for (unsigned i = 0; i < READY_SOCKETS; i++) {
        event_free(ready->events[i]);
    }
}

// Returns how many turns it took to run the events of READY_SOCKETS, each of them once.
static unsigned ready_turns(bool are_hits)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    struct ready ready = {.are_hits = are_hits};
    signal_init(&ready.over);
    fixture_run_on(loop_worker(loop, 0), start_ready, &ready);
    signal_wait(&ready.over);
    fixture_run_on(loop_worker(loop, 0), end_ready, &ready);
    cr_assert_eq(ready.ran, READY_SOCKETS);
    fixture_loop_end(&loop);
    signal_done(&ready.over);
    return ready.turns;
}

Test(worker, turn_runs_a_part_of_many_socket_events)
{
    cr_assert_eq(ready_turns(false), 2);
}

Test(worker, turn_runs_all_socket_events_among_hits)
{
    cr_assert_eq(ready_turns(true), 1);
}

// --- Timers --------------------------------------------------------------------------------------

#define TIMERS 500

struct timers {
    struct {
        struct timer timer;
        uint64_t delay_ms, started_us;
        unsigned fired;
        bool is_stopped;
    } item[TIMERS];
    struct timer zero;
    unsigned zero_rounds;
    unsigned left;
    uint64_t last_due_us;
    struct signal over;
};

static struct timers *running_timers;

static void on_many(struct timer *timer)
{
    struct timers *all = running_timers;
    struct worker *w = worker_current();
    for (unsigned i = 0; i < TIMERS; i++) {
        if (&all->item[i].timer == timer) {
            uint64_t due_us = all->item[i].started_us + all->item[i].delay_ms * 1000;
            cr_assert(!all->item[i].is_stopped);
            cr_assert(++all->item[i].fired == 1);
            cr_assert(worker_now_us(w) >= due_us); // never early
            cr_assert(due_us >= all->last_due_us); // earliest first
            all->last_due_us = due_us;
        }
    }
    if (--all->left == 0) {
        signal_raise(&all->over);
    }
}

static void on_zero(struct timer *timer)
{
    struct timers *all = container_of(timer, struct timers, zero);
    if (++all->zero_rounds < 5) {
        timer_start(timer, 0); // the next turn, not an endless loop in this one
    } else if (--all->left == 0) {
        signal_raise(&all->over);
    }
}

static void start_timers(struct worker *w, void *ctx)
{
    struct timers *all = ctx;
    running_timers = all;
    unsigned seed = 1;
    for (unsigned i = 0; i < TIMERS; i++) {
        timer_init(w, &all->item[i].timer, on_many);
        timer_start(&all->item[i].timer, 100000);
    }
    for (unsigned i = 0; i < TIMERS; i++) {
        seed = seed * 1103515245u + 12345u;
        all->item[i].delay_ms = (seed >> 16) % 50;
        all->item[i].started_us = worker_now_us(w);
        timer_start(&all->item[i].timer, all->item[i].delay_ms); // moves it
        if (i % 3 == 0) {
            timer_stop(&all->item[i].timer);
            timer_stop(&all->item[i].timer); // harmless
            all->item[i].is_stopped = true;
        } else {
            all->left++;
        }
    }
    timer_init(w, &all->zero, on_zero);
    timer_start(&all->zero, 0);
    all->left++;
}

static void end_timers(struct worker *w, void *ctx)
{
    struct timers *all = ctx;
    (void)w;
    for (unsigned i = 0; i < TIMERS; i++) {
        cr_assert(all->item[i].fired == (all->item[i].is_stopped ? 0 : 1));
        timer_done(&all->item[i].timer);
    }
    timer_done(&all->zero);
}

// Proves that timers, also moved and stopped ones, fire once, in order of their due time, and never
// early.
Test(worker, timers_fire_in_order)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    struct timers *all = calloc(1, sizeof(*all));
    cr_assert(all != NULL);
    signal_init(&all->over);
    fixture_run_on(loop_worker(loop, 0), start_timers, all);
    signal_wait(&all->over);
    fixture_run_on(loop_worker(loop, 0), end_timers, all);
    fixture_loop_end(&loop);
    signal_done(&all->over);
    free(all);
}

struct far {
    struct timer timer;
    struct signal over;
};

static void on_far(struct timer *timer)
{
    signal_raise(&container_of(timer, struct far, timer)->over);
}

static void start_far(struct worker *w, void *ctx)
{
    struct far *far = ctx;
    timer_init(w, &far->timer, on_far);
    timer_start(&far->timer, 3600 * 1000);
}

// Proves that timers follow a clock that a test moves: an hour passes at once.
Test(worker, timers_follow_the_test_clock)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    struct far far;
    signal_init(&far.over);
    fixture_run_on(loop_worker(loop, 0), start_far, &far);
    clock_test_advance_us(3601ull * 1000 * 1000);
    signal_wait(&far.over);
    fixture_loop_end(&loop);
    signal_done(&far.over);
}

// --- Heartbeat -----------------------------------------------------------------------------------

struct stuck {
    struct message message;
    struct signal entered, leave;
};

static void on_stuck(struct worker *w, struct message *message)
{
    struct stuck *stuck = container_of(message, struct stuck, message);
    (void)w;
    signal_raise(&stuck->entered);
    signal_wait(&stuck->leave);
}

// Proves that the heartbeat of a stuck worker is late while others continue, and catches up
// afterwards.
Test(worker, heartbeat_shows_a_stuck_worker)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 2, 0);
    struct stuck stuck = {.message = {.deliver = on_stuck}};
    signal_init(&stuck.entered);
    signal_init(&stuck.leave);
    mailbox_send_from_any_thread(loop_worker(loop, 0), &stuck.message);
    signal_wait(&stuck.entered);
    uint64_t before_ms = clock_monotonic_ms();
    clock_test_advance_us(5000 * 1000);
    fixture_run_on(loop_worker(loop, 1), start_far, &(struct far){0});
    cr_assert(loop_oldest_heartbeat_ms(loop) <= before_ms);
    signal_raise(&stuck.leave);
    while (loop_oldest_heartbeat_ms(loop) < before_ms + 5000) {
        sched_yield(); // a beat comes at least once a second
    }
    fixture_loop_end(&loop);
    signal_done(&stuck.entered);
    signal_done(&stuck.leave);
}

// --- Stopping ------------------------------------------------------------------------------------

struct hop {
    struct message message;
    struct loop *loop;
    unsigned left;
    struct disk_op op;
    struct blocking_job job;
    struct iovec iov;
    char byte;
    int fd;
};

static atomic_uint hops_over;

static void on_hop_read(struct disk_op *op)
{
    struct hop *hop = container_of(op, struct hop, op);
    cr_assert(op->err == ERR_OK);
    mailbox_send(loop_worker(hop->loop, hop->left % 3), &hop->message);
}

static void hop_work(struct blocking_job *job)
{
    (void)job;
}

static void on_hop_job(struct blocking_job *job)
{
    struct hop *hop = container_of(job, struct hop, job);
    hop->iov = (struct iovec){&hop->byte, 1};
    hop->op = (struct disk_op){
        .kind = DISK_READ, .fd = hop->fd, .iov = &hop->iov, .iov_count = 1, .done = on_hop_read};
    disk_io_start(job->worker, &hop->op);
}

static void on_hop(struct worker *w, struct message *message)
{
    struct hop *hop = container_of(message, struct hop, message);
    if (hop->left-- == 0) {
        atomic_fetch_add(&hops_over, 1);
        free(hop);
    } else if (hop->left % 10 == 0) {
        hop->job = (struct blocking_job){.work = hop_work, .done = on_hop_job};
        blocking_pool_run(w, &hop->job);
    } else {
        mailbox_send(loop_worker(hop->loop, hop->left % 3), &hop->message);
    }
}

static void stop_delivers_all(enum disk_engine engine)
{
    char dir[256];
    fixture_dir_make(dir, sizeof(dir));
    int fd = fixture_file(dir, "f", "x", 1);
    atomic_store(&hops_over, 0);
    struct loop *loop = fixture_loop(engine, 3, 4);
    if (loop != NULL) {
        for (unsigned i = 0; i < 50; i++) {
            struct hop *hop = calloc(1, sizeof(*hop));
            cr_assert(hop != NULL);
            hop->message.deliver = on_hop;
            hop->loop = loop;
            hop->left = 100 + i;
            hop->fd = fd;
            mailbox_send_from_any_thread(loop_worker(loop, i % 3), &hop->message);
        }
        loop_stop(loop);
        cr_assert(atomic_load(&hops_over) == 50);
        loop_free(loop);
    }
    close(fd);
    fixture_dir_remove(dir);
}

// Proves that loop_stop() waits for chains of messages, jobs and disk operations over all workers.
Test(worker, stop_delivers_all_threads)
{
    stop_delivers_all(DISK_ENGINE_THREADS);
}

Test(worker, stop_delivers_all_uring)
{
    stop_delivers_all(DISK_ENGINE_URING);
}

#ifndef FOREBAY_TSAN // a seccomp filter stays for the rest of the process

// Makes io_uring_setup fail as default container profiles do.
static void refuse_io_uring(int errno_value)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)errno_value),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LEN(code), code};
    cr_assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    cr_assert(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// Makes the start of any thread fail, as at the limit on tasks.
static void refuse_threads(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS), // so that the C library uses clone
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LEN(code), code};
    cr_assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    cr_assert(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void never_delivered(struct worker *to, struct message *message)
{
    (void)to;
    (void)message;
}

static void thread_limit_fails_start(enum disk_engine engine)
{
    struct loop_options options = {.worker_count = 2, .engine = engine};
    struct loop *loop = NULL;
    cr_assert(loop_new(&options, &loop, NULL) == ERR_OK);
    struct message message = {.deliver = never_delivered};
    mailbox_send_from_any_thread(loop_worker(loop, 0), &message);
    refuse_threads();
    cr_assert(loop_start(loop) == ERR_LIMIT);
    loop_free(loop);
}

// At the limit on tasks, the start fails with ERR_LIMIT instead of an abort.
Test(worker, thread_limit_fails_start_of_ring)
{
    thread_limit_fails_start(DISK_ENGINE_AUTO);
}

Test(worker, thread_limit_fails_start_of_threads)
{
    thread_limit_fails_start(DISK_ENGINE_THREADS);
}

// At the limit on open files, loop_new() fails with ERR_LIMIT and names the limit, wherever it
// meets the limit.
Test(worker, descriptor_limit_fails_new)
{
    struct loop_options options = {.worker_count = 3, .engine = DISK_ENGINE_THREADS};
    struct rlimit old, low;
    cr_assert(getrlimit(RLIMIT_NOFILE, &old) == 0);
    enum err err = ERR_LIMIT;
    unsigned failed_count = 0;
    for (low = old, low.rlim_cur = 3; err != ERR_OK; low.rlim_cur++) {
        struct loop *loop = NULL;
        struct buf why;
        buf_init(&why, 1000);
        cr_assert(setrlimit(RLIMIT_NOFILE, &low) == 0);
        err = loop_new(&options, &loop, &why);
        cr_assert(setrlimit(RLIMIT_NOFILE, &old) == 0);
        cr_assert(err == ERR_OK || err == ERR_LIMIT);
        cr_assert(err == ERR_OK || strstr(buf_cstr(&why), "ulimit -n") != NULL);
        failed_count += err != ERR_OK;
        loop_free(loop);
        buf_done(&why);
    }
    cr_assert(failed_count >= 3 * 5); // an eventfd and the event base of each worker
}

static void refused_ring_falls_back(int errno_value, const char *name)
{
    refuse_io_uring(errno_value);
    struct loop_options options = {.worker_count = 2};
    struct loop *loop = NULL;
    cr_assert(loop_new(&options, &loop, NULL) == ERR_OK);
    cr_assert(loop_engine(loop) == DISK_ENGINE_THREADS);
    cr_assert(strstr(loop_engine_why(loop), name) != NULL);
    loop_free(loop);

    options.engine = DISK_ENGINE_URING;
    struct buf why;
    buf_init(&why, 1000);
    cr_assert(loop_new(&options, &loop, &why) == ERR_INVALID);
    cr_assert(strstr(buf_cstr(&why), name) != NULL);
    buf_done(&why);
    stop_delivers_all(DISK_ENGINE_AUTO);
}

// Proves that a refused ring makes the loop use threads and report the reason, and is an error if
// the ring was forced.
Test(worker, refused_ring_eperm)
{
    refused_ring_falls_back(EPERM, "EPERM");
}

Test(worker, refused_ring_enosys)
{
    refused_ring_falls_back(ENOSYS, "ENOSYS");
}

#endif
