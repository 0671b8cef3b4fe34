// SPDX-License-Identifier: Apache-2.0
// A worker is a thread with a libevent base, a mailbox, a disk engine and timers. This file runs
// the turns of a worker, and starts and stops a set of workers (struct loop).
//
// The steps of a turn, on the worker's thread:
// - Step 1: wait for events and run those of sockets, ours and curl's. The events of the ring, the
//   eventfd and the timer only end the wait. If many sockets are ready, the turn runs a part of
//   their events, and the next turns run the others; see worker_event_ran().
// - Step 2: run the callbacks of finished disk operations, then due timers. So a worker that comes
//   late to its turn does not take for late what has ended in the meantime. Deliver messages from
//   other threads.
// - Step 3: deliver messages to itself, run deferred work, deliver messages to itself again.
// - Step 4: submit disk operations.
// - Step 5: push outgoing messages to their receivers.
// - Step 6: run the destructors of worker_free_later().
// - Step 7: publish gauges and the heartbeat.
//
// If steps 3 to 6 leave work for another turn, the next turn does not wait. The clock is read once
// a turn, when it is first used after the wait.
//
// Stopping: loop_stop() sets is_stopping. From then on each worker reports in every turn how many
// messages it has sent and delivered, and whether it is quiet. It reports the sent messages before
// they leave, so no message is reported as delivered before it is reported as sent. When all
// workers are quiet and the sums are equal, no message is in flight. Then the workers leave their
// loops and are joined. Running timers and open sockets do not delay this. After STOP_WAIT_US the
// workers are stopped in any case.
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "loop/loop_private.h"

#define IDLE_WAIT_US 500000u    // Longest sleep, so that no heartbeat is older than 1 s.
#define FAKED_IDLE_WAIT_US 5000 // Longest sleep with a test clock, so that its jumps are seen soon.
#define STOP_WAIT_US 10000000u
#define LEFTOVER_ROUNDS_MAX 64
#define BASE_DESCRIPTORS 4u // Those of an event base: epoll, its timer, and a pair for signals.

// --- Simple queries ------------------------------------------------------------------------------

unsigned loop_worker_count(const struct loop *loop)
{
    return loop->worker_count;
}

struct worker *loop_worker(struct loop *loop, unsigned index)
{
    check(index < loop->worker_count);
    return &loop->workers[index];
}

enum disk_engine loop_engine(const struct loop *loop)
{
    return loop->engine;
}

const char *loop_engine_why(const struct loop *loop)
{
    return loop->engine_why;
}

uint64_t loop_oldest_heartbeat_ms(const struct loop *loop)
{
    uint64_t oldest = UINT64_MAX;
    for (unsigned i = 0; i < loop->worker_count; i++) {
        uint64_t beat = atomic_load_explicit(&loop->workers[i].heartbeat_ms, memory_order_relaxed);
        oldest = min_u64(oldest, beat);
    }
    return oldest;
}

// --- The turn ------------------------------------------------------------------------------------

static void on_wake(evutil_socket_t fd, short what, void *ctx)
{
    // Nothing to do: the event has ended the wait, and each turn looks into the mailbox and the
    // engine.
    (void)fd;
    (void)what;
    (void)ctx;
}

static void on_timer_wake(evutil_socket_t fd, short what, void *ctx)
{
    (void)fd;
    (void)what;
    as_worker(ctx)->wake_at_us = 0;
}

static bool worker_has_work(const struct worker *w)
{
    return !list_empty(&w->deferred) || mailbox_has_work(w) || disk_io_has_work(w) ||
           w->dead_count > 0;
}

// Makes the next wait end in time for the next timer. Moves the libevent timer only if it would
// fire too late, so usually this costs nothing.
static void worker_arm_timer(struct worker *w)
{
    uint64_t want_us =
        min_u64(timer_heap_next_us(&w->timers), worker_now_us(w) + w->loop->idle_wait_us);
    if (w->wake_at_us != 0 && w->wake_at_us <= want_us) {
        return;
    }
    uint64_t now_us = clock_monotonic_us();
    uint64_t wait_us = want_us > now_us ? want_us - now_us : 0;
    struct timeval tv = {(time_t)(wait_us / 1000000), (suseconds_t)(wait_us % 1000000)};
    check(event_add(w->timer_event, &tv) == 0);
    w->wake_at_us = want_us;
}

// Reports the worker's message counts, and whether it is quiet, to loop_stop(). Called before the
// worker's messages leave, and again at the end of the turn.
static void worker_report(struct worker *w, bool is_quiet)
{
    struct loop *loop = w->loop;
    check(pthread_mutex_lock(&loop->stop.mutex) == 0);
    loop->stop.worker[w->index].sent_count = w->mailbox.sent_count;
    loop->stop.worker[w->index].delivered_count = w->mailbox.delivered_count;
    loop->stop.worker[w->index].is_quiet = is_quiet;
    loop->stop.worker[w->index].has_reported = true;
    check(pthread_cond_signal(&loop->stop.changed) == 0);
    check(pthread_mutex_unlock(&loop->stop.mutex) == 0);
}

void loop_turn(struct worker *w)
{
    int flags = EVLOOP_ONCE;
    if (worker_has_work(w)) {
        flags |= EVLOOP_NONBLOCK;
    } else {
        worker_arm_timer(w);
    }
    *w->now_us = 0;
    w->events_left = 0;
    check(event_base_loop(w->base, flags) >= 0);

    disk_io_dispatch(w);
    timer_heap_run(&w->timers, worker_now_us(w));
    mailbox_deliver_inbox(w);

    mailbox_deliver_self(w);
    worker_run_deferred(w);
    mailbox_deliver_self(w);

    disk_io_submit(w);
    bool is_stopping = atomic_load_explicit(&w->loop->is_stopping, memory_order_acquire);
    if (is_stopping) {
        worker_report(w, false);
    }
    mailbox_flush(w);
    worker_free_dead(w);

    disk_io_publish(w);
    atomic_store_explicit(&w->heartbeat_ms, worker_now_us(w) / 1000, memory_order_relaxed);
    if (is_stopping) {
        worker_report(w, !worker_has_work(w) && disk_io_is_quiet(w) && w->expected_count == 0);
    }
    uint64_t now_us = clock_monotonic_us();
    w->last_turn_at_us = worker_now_us(w);
    w->last_turn_us = now_us - min_u64(now_us, w->last_turn_at_us);
}

static void *worker_main(void *ctx)
{
    struct worker *w = as_worker(ctx);
    char name[16];
    snprintf(name, sizeof(name), "worker-%u", w->index);
    thread_begin(name, THREAD_SERVES);
    worker_enter(w);
    disk_io_uring_enable(w);
    while (!atomic_load_explicit(&w->loop->is_exiting, memory_order_acquire)) {
        loop_turn(w);
    }
    worker_enter(NULL);
    return NULL;
}

// --- A set of workers ----------------------------------------------------------------------------

// Blocks signals for the threads that the caller starts next, because other threads handle them.
// Signals that a fault raises in the thread itself stay unblocked.
static void loop_block_signals(sigset_t *ret_old)
{
    sigset_t set;
    check(sigfillset(&set) == 0);
    static const int kept[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    for (unsigned i = 0; i < ARRAY_LEN(kept); i++) {
        check(sigdelset(&set, kept[i]) == 0);
    }
    check(pthread_sigmask(SIG_SETMASK, &set, ret_old) == 0);
}

// libevent ends the process if an event base gets no descriptors. So this proves first that they
// are there.
static bool base_has_descriptors(void)
{
    int fds[BASE_DESCRIPTORS];
    unsigned count = 0;
    while (count < ARRAY_LEN(fds) && (fds[count] = eventfd(0, EFD_CLOEXEC)) >= 0) {
        count++;
    }
    int saved = errno;
    bool has_all = count == ARRAY_LEN(fds);
    while (count > 0) {
        (void)close(fds[--count]);
    }
    errno = saved;
    return has_all;
}

// Returns false and sets errno if there are too few descriptors. worker_done() is due then too.
static bool worker_init(struct loop *loop, unsigned index, unsigned queue_depth)
{
    struct worker *w = &loop->workers[index];
    w->magic = WORKER_MAGIC;
    w->index = index;
    w->loop = loop;
    w->now_us = &w->now_us_value;
    list_init(&w->deferred);
    atomic_init(&w->heartbeat_ms, clock_monotonic_ms());
    disk_io_init(w, queue_depth);
    file_send_init(&w->file_send);
    w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->wake_fd < 0 || !base_has_descriptors()) {
        return false;
    }

    // Only the worker's thread uses its base, so libevent needs no locks.
    struct event_config *config = event_config_new();
    check(config != NULL);
    check(event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0);
    check(event_config_require_features(config, EV_FEATURE_ET) == 0);
    w->base = event_base_new_with_config(config);
    event_config_free(config);
    check(w->base != NULL);
    w->wake_event = event_new(w->base, w->wake_fd, EV_READ | EV_PERSIST | EV_ET, on_wake, w);
    w->timer_event = evtimer_new(w->base, on_timer_wake, w);
    check(w->wake_event != NULL);
    check(w->timer_event != NULL);
    return event_add(w->wake_event, NULL) == 0; // fails at the limit on epoll watches
}

static void worker_done(struct worker *w)
{
    worker_free_dead(w);
    free(w->dead);
    disk_io_uring_close(w);
    file_send_done(&w->file_send);
    timer_heap_done(&w->timers);
    if (w->base != NULL) {
        event_free(w->timer_event);
        event_free(w->wake_event);
        event_base_free(w->base);
    }
    if (w->wake_fd >= 0) {
        close(w->wake_fd);
    }
    w->magic = 0;
}

// Opens a ring for each worker. If one fails, closes all.
static enum err loop_open_rings(struct loop *loop, struct buf *why)
{
    enum err err = disk_io_uring_probe(why);
    for (unsigned i = 0; i < loop->worker_count && err == ERR_OK; i++) {
        err = disk_io_uring_open(&loop->workers[i], why);
    }
    for (unsigned i = 0; i < loop->worker_count && err != ERR_OK; i++) {
        disk_io_uring_close(&loop->workers[i]);
    }
    return err;
}

static enum err loop_choose_engine(struct loop *loop, const struct loop_options *options,
                                   struct buf *ret_why)
{
    struct buf why;
    buf_init(&why, sizeof(loop->engine_why));
    enum err err = ERR_INVALID;
    if (options->engine == DISK_ENGINE_THREADS) {
        buf_append_cstr(&why, "requested");
    } else {
        err = loop_open_rings(loop, &why);
    }
    if (err == ERR_OK) {
        loop->engine = DISK_ENGINE_URING;
        loop->engine_calls = &disk_io_uring_calls;
        snprintf(loop->engine_why, sizeof(loop->engine_why), "io_uring: ok");
    } else if (options->engine == DISK_ENGINE_URING) {
        if (ret_why != NULL) {
            buf_printf(ret_why, "io_uring is unavailable: %s", buf_cstr(&why));
        }
        buf_done(&why);
        return ERR_INVALID;
    } else {
        unsigned count = options->disk_threads;
        if (count == 0) {
            // At least two per worker, so that one is free while a slow operation blocks the other.
            count = loop->worker_count < 2 ? 4 : 2 * loop->worker_count;
        }
        loop->engine = DISK_ENGINE_THREADS;
        loop->engine_calls = &disk_io_threads_calls;
        loop->disk_pools[DISK_LANE_READS] = disk_io_threads_pool_new(DISK_LANE_READS, count);
        loop->disk_pools[DISK_LANE_WRITES] =
            disk_io_threads_pool_new(DISK_LANE_WRITES, count > 4 ? count / 2 : 2);
        loop->disk_pools[DISK_LANE_ORIGIN] = disk_io_threads_pool_new(DISK_LANE_ORIGIN, count);
        snprintf(loop->engine_why, sizeof(loop->engine_why), "threads: %s", buf_cstr(&why));
    }
    buf_done(&why);
    return ERR_OK;
}

// Writes libevent's messages to our log, which limits their rate.
static void on_libevent_log(int severity, const char *text)
{
    if (severity != EVENT_LOG_DEBUG) {
        log_event(severity == EVENT_LOG_ERR ? LOG_LEVEL_ERROR : LOG_LEVEL_WARN, "libevent",
                  "text=%s", log_quote(span_from_cstr(text)));
    }
}

// Counts only workers that loop_free() must free, so that it can be called after a failure.
static enum err loop_init_workers(struct loop *loop, unsigned count, unsigned queue_depth,
                                  struct buf *ret_why)
{
    while (loop->worker_count < count) {
        unsigned index = loop->worker_count++;
        if (!worker_init(loop, index, queue_depth)) {
            if (ret_why != NULL) {
                buf_printf(ret_why,
                           "worker %u gets no descriptors: %s; raise the limit on open files "
                           "(ulimit -n), or use fewer workers",
                           index, strerror(errno));
            }
            return ERR_LIMIT;
        }
    }
    return ERR_OK;
}

enum err loop_new(const struct loop_options *options, struct loop **ret_loop, struct buf *ret_why)
{
    event_set_log_callback(on_libevent_log);
    unsigned depth =
        options->disk_queue_depth == 0 ? DISK_QUEUE_DEPTH_DEFAULT : options->disk_queue_depth;
    if (options->worker_count == 0 || options->worker_count > LOOP_WORKERS_MAX ||
        depth > DISK_QUEUE_DEPTH_MAX) {
        if (ret_why != NULL) {
            buf_printf(ret_why, "1 to %d workers and a disk queue depth of at most %d",
                       LOOP_WORKERS_MAX, DISK_QUEUE_DEPTH_MAX);
        }
        return ERR_INVALID;
    }
    check(signal(SIGPIPE, SIG_IGN) != SIG_ERR);

    struct loop *loop = calloc(1, sizeof(*loop));
    check(loop != NULL);
    loop->workers = calloc(options->worker_count, sizeof(loop->workers[0]));
    check(loop->workers != NULL);
    loop->idle_wait_us = IDLE_WAIT_US;
#ifdef FOREBAY_FAULTS
    if (getenv("FOREBAY_CLOCK_FILE") != NULL) {
        loop->idle_wait_us = FAKED_IDLE_WAIT_US;
    }
#endif
    check(pthread_mutex_init(&loop->stop.mutex, NULL) == 0);
    clock_cond_init(&loop->stop.changed);
    enum err err = loop_init_workers(loop, options->worker_count, depth, ret_why);
    if (err == ERR_OK) {
        err = loop_choose_engine(loop, options, ret_why);
    }
    if (err != ERR_OK) {
        loop_free(loop);
        return err;
    }
    for (unsigned i = 0; i < BLOCKING_LANE_COUNT; i++) {
        loop->blocking_pools[i] = blocking_pool_new(i);
    }
    *ret_loop = loop;
    return ERR_OK;
}

enum err loop_start(struct loop *loop)
{
    check(!loop->is_started);
    check(worker_current() == NULL);
    sigset_t old;
    loop_block_signals(&old);
    enum err err = ERR_OK;
    for (unsigned i = 0; i < DISK_LANE_COUNT && loop->disk_pools[i] != NULL && err == ERR_OK; i++) {
        err = thread_pool_start(loop->disk_pools[i]);
    }
    for (unsigned i = 0; i < BLOCKING_LANE_COUNT && err == ERR_OK; i++) {
        err = thread_pool_start(loop->blocking_pools[i]);
    }
    for (unsigned i = 0; i < loop->worker_count && err == ERR_OK; i++) {
        struct worker *w = &loop->workers[i];
        w->is_running = true;
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            w->is_running = false;
            err = ERR_LIMIT;
        }
    }
    check(pthread_sigmask(SIG_SETMASK, &old, NULL) == 0);
    loop->is_started = true;
    if (err != ERR_OK) {
        loop_stop(loop);
    }
    return err;
}

// Returns true if all workers are quiet and every message has been delivered, or if no worker runs,
// because then nothing would deliver them.
static bool loop_is_quiet_locked(struct loop *loop)
{
    uint64_t delivered = 0, sent = 0;
    unsigned running_count = 0;
    for (unsigned i = 0; i < loop->worker_count; i++) {
        if (!loop->workers[i].is_running) {
            continue;
        }
        running_count++;
        if (!loop->stop.worker[i].has_reported || !loop->stop.worker[i].is_quiet) {
            return false;
        }
        delivered += loop->stop.worker[i].delivered_count;
        sent += loop->stop.worker[i].sent_count;
    }
    return running_count == 0 || delivered == sent + atomic_load(&loop->outside_sent_count);
}

static void loop_wait_quiet(struct loop *loop)
{
    struct timespec until;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += STOP_WAIT_US / 1000000;
    check(pthread_mutex_lock(&loop->stop.mutex) == 0);
    int rc = 0;
    while (!loop_is_quiet_locked(loop) && rc == 0) {
        rc = pthread_cond_timedwait(&loop->stop.changed, &loop->stop.mutex, &until);
    }
    check(pthread_mutex_unlock(&loop->stop.mutex) == 0);
    if (rc != 0) {
        log_warn("loop_stop_timeout", "waited_ms=%u", STOP_WAIT_US / 1000);
    }
}

static void loop_wake_all(struct loop *loop)
{
    for (unsigned i = 0; i < loop->worker_count; i++) {
        worker_wake(&loop->workers[i]);
    }
}

// Delivers messages from pools and other threads that arrived after the workers had ended. Their
// deliver() runs on this thread, which acts as each worker in turn.
static void loop_deliver_leftovers(struct loop *loop)
{
    for (unsigned round = 0; round < LEFTOVER_ROUNDS_MAX; round++) {
        bool had_work = false;
        for (unsigned i = 0; i < loop->worker_count; i++) {
            struct worker *w = &loop->workers[i];
            had_work |= mailbox_has_work(w) || !list_empty(&w->deferred);
            worker_enter(w);
            *w->now_us = 0;
            mailbox_deliver_inbox(w);
            mailbox_deliver_self(w);
            worker_run_deferred(w);
            mailbox_flush(w);
            worker_free_dead(w);
            worker_enter(NULL);
        }
        if (!had_work) {
            break;
        }
    }
}

void loop_stop(struct loop *loop)
{
    if (loop == NULL || !loop->is_started) {
        return;
    }
    check(worker_current() == NULL);
    atomic_store_explicit(&loop->is_stopping, true, memory_order_release);
    loop_wake_all(loop);
    loop_wait_quiet(loop);
    atomic_store_explicit(&loop->is_exiting, true, memory_order_release);
    loop_wake_all(loop);
    for (unsigned i = 0; i < loop->worker_count; i++) {
        struct worker *w = &loop->workers[i];
        if (w->is_running) {
            check(pthread_join(w->thread, NULL) == 0);
            w->is_running = false;
        }
    }
    for (unsigned i = 0; i < BLOCKING_LANE_COUNT; i++) {
        thread_pool_stop(loop->blocking_pools[i]);
    }
    for (unsigned i = 0; i < DISK_LANE_COUNT && loop->disk_pools[i] != NULL; i++) {
        thread_pool_stop(loop->disk_pools[i]);
    }
    loop_deliver_leftovers(loop);
    loop->is_started = false;
}

void loop_free(struct loop *loop)
{
    if (loop == NULL) {
        return;
    }
    check(!loop->is_started);
    for (unsigned i = 0; i < loop->worker_count; i++) {
        worker_done(&loop->workers[i]);
    }
    for (unsigned i = 0; i < BLOCKING_LANE_COUNT; i++) {
        thread_pool_free(loop->blocking_pools[i]);
    }
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        thread_pool_free(loop->disk_pools[i]);
    }
    check(pthread_cond_destroy(&loop->stop.changed) == 0);
    check(pthread_mutex_destroy(&loop->stop.mutex) == 0);
    free(loop->workers);
    free(loop);
}
