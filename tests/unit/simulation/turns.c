// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "disk.h"
#include "life.h"
#include "schedule.h"

#define OPS_MAX 512u
#define JOBS_MAX 64u
#define TIMERS_MAX 256u

#define DEAD_MAX 256u

struct queue {
    struct message *first, **last;
};

struct worker {
    unsigned index;
    void *slots[WORKER_SLOT_COUNT_];
    struct list tasks;
    struct queue mail[TURNS_WORKERS + 1]; // from each worker, and from all other threads
    int expected;
};

static struct {
    struct worker workers[TURNS_WORKERS];
    struct disk_op *ops[OPS_MAX];
    unsigned op_count;
    struct blocking_job *jobs[JOBS_MAX];
    unsigned job_count;
    struct timer *timers[TIMERS_MAX];
    unsigned timer_count;
    struct {
        void (*fn)(void *ptr);
        void *ptr;
    } dead[DEAD_MAX];
    unsigned dead_count;
    bool (*also)(void);
} turns;

static _Thread_local struct worker *current; // whose turn it is; NULL on the store's own threads

void turns_begin(bool (*also)(void))
{
    turns.also = also;
    for (unsigned i = 0; i < TURNS_WORKERS; i++) {
        struct worker *w = &turns.workers[i];
        w->index = i;
        list_init(&w->tasks);
        for (unsigned from = 0; from <= TURNS_WORKERS; from++) {
            w->mail[from].last = &w->mail[from].first;
        }
    }
}

struct worker *turns_worker(unsigned index)
{
    return &turns.workers[index];
}

// --- worker

unsigned loop_worker_count(const struct loop *loop)
{
    (void)loop;
    return TURNS_WORKERS;
}

struct worker *loop_worker(struct loop *loop, unsigned index)
{
    (void)loop;
    return &turns.workers[index];
}

unsigned worker_index(const struct worker *w)
{
    return w->index;
}

uint64_t worker_now_us(const struct worker *w)
{
    (void)w;
    return schedule_monotonic_us();
}

void worker_slot_set(struct worker *w, enum worker_slot slot, void *value)
{
    w->slots[slot] = value;
}

void *worker_slot_get(const struct worker *w, enum worker_slot slot)
{
    return w->slots[slot];
}

void worker_task_init(struct task *task, void (*fn)(struct task *task))
{
    list_node_init(&task->node);
    task->fn = fn;
}

void worker_defer(struct worker *w, struct task *task)
{
    if (!list_node_linked(&task->node)) {
        list_push_back(&w->tasks, &task->node);
    }
}

void worker_task_cancel(struct task *task)
{
    list_remove(&task->node);
}

void worker_expect(struct worker *w)
{
    w->expected++;
}

void worker_expect_done(struct worker *w)
{
    w->expected--;
    check(w->expected >= 0);
}

static void turn_end(struct worker *w)
{
    struct list_node *node;
    while ((node = list_pop_front(&w->tasks)) != NULL) {
        struct task *task = container_of(node, struct task, node);
        task->fn(task);
    }
    for (unsigned i = 0; i < turns.dead_count; i++) {
        turns.dead[i].fn(turns.dead[i].ptr);
    }
    turns.dead_count = 0;
    current = NULL;
}

void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr)
{
    (void)w;
    check(turns.dead_count < DEAD_MAX);
    turns.dead[turns.dead_count].fn = fn;
    turns.dead[turns.dead_count++].ptr = ptr;
}

void turns_on_worker(unsigned index, void (*fn)(struct worker *w, void *ctx), void *ctx)
{
    struct worker *before = current; // a callback may begin something within its turn
    check(before == NULL || before == &turns.workers[index]);
    current = &turns.workers[index];
    fn(current, ctx);
    if (before == NULL) {
        turn_end(&turns.workers[index]);
    }
    current = before;
}

// --- timers

void timer_init(struct worker *w, struct timer *timer, void (*fn)(struct timer *timer))
{
    *timer = (struct timer){.fn = fn, .worker = w};
}

void timer_stop(struct timer *timer)
{
    if (timer->heap_slot != 0) {
        struct timer *last = turns.timers[--turns.timer_count];
        turns.timers[timer->heap_slot - 1] = last;
        last->heap_slot = timer->heap_slot;
        timer->heap_slot = 0;
    }
}

void timer_start(struct timer *timer, uint64_t delay_ms)
{
    timer_stop(timer);
    check(turns.timer_count < TIMERS_MAX);
    timer->due_us = schedule_monotonic_us() + delay_ms * 1000;
    turns.timers[turns.timer_count++] = timer;
    timer->heap_slot = turns.timer_count;
}

void timer_done(struct timer *timer)
{
    timer_stop(timer);
}

// --- messages

void mailbox_send(struct worker *to, struct message *message)
{
    struct queue *queue = &to->mail[current != NULL ? current->index : TURNS_WORKERS];
    message->next = NULL;
    *queue->last = message;
    queue->last = &message->next;
    schedule_wake();
}

void mailbox_send_from_any_thread(struct worker *to, struct message *message)
{
    mailbox_send(to, message);
}

static bool deliver(struct worker *w)
{
    unsigned first = schedule_random(TURNS_WORKERS + 1);
    for (unsigned i = 0; i <= TURNS_WORKERS; i++) {
        struct queue *queue = &w->mail[(first + i) % (TURNS_WORKERS + 1)];
        struct message *message = queue->first;
        if (message != NULL) {
            queue->first = message->next;
            if (queue->first == NULL) {
                queue->last = &queue->first;
            }
            current = w;
            message->deliver(w, message);
            turn_end(w);
            return true;
        }
    }
    return false;
}

static bool has_mail(const struct worker *w)
{
    for (unsigned from = 0; from <= TURNS_WORKERS; from++) {
        if (w->mail[from].first != NULL) {
            return true;
        }
    }
    return false;
}

// --- jobs

static void on_job_over(struct worker *w, struct message *message)
{
    (void)w;
    struct blocking_job *job = container_of(message, struct blocking_job, message);
    job->done(job);
}

void blocking_pool_run(struct worker *w, struct blocking_job *job)
{
    job->worker = w;
    job->err = ERR_OK;
    job->message.deliver = on_job_over;
    check(turns.job_count < JOBS_MAX);
    turns.jobs[turns.job_count++] = job;
}

static void job_run(void)
{
    struct blocking_job *job = turns.jobs[0];
    for (unsigned i = 1; i < turns.job_count; i++) {
        turns.jobs[i - 1] = turns.jobs[i];
    }
    turns.job_count--;
    job->work(job);
    mailbox_send(job->worker, &job->message);
}

// --- the disk

void disk_io_start(struct worker *w, struct disk_op *op)
{
    check(turns.op_count < OPS_MAX);
    op->worker = w;
    atomic_store(&op->is_cancelled, false);
    turns.ops[turns.op_count++] = op;
}

void disk_io_cancel(struct disk_op *op)
{
    atomic_store(&op->is_cancelled, true);
}

static uint64_t op_bytes(const struct disk_op *op)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < op->iov_count; i++) {
        bytes += op->iov[i].iov_len;
    }
    return bytes;
}

static int64_t op_call(struct disk_op *op)
{
    switch (op->kind) {
    case DISK_READ:
        return preadv(op->fd, op->iov, (int)op->iov_count, (off_t)op->offset);
    case DISK_WRITE:
        return pwritev(op->fd, op->iov, (int)op->iov_count, (off_t)op->offset);
    case DISK_SYNC:
        return fdatasync(op->fd);
    case DISK_OPEN:
        return openat(op->fd, op->path, op->open_flags | O_CLOEXEC, op->open_mode);
    case DISK_UNLINK:
        return unlinkat(op->fd, op->path, op->at_flags);
    case DISK_FALLOCATE:
        return fallocate(op->fd, 0, (off_t)op->offset, (off_t)op->length);
    case DISK_PUSH: // a hint: what it brings to the disk is among what may be there
        return 0;
    case DISK_STATX:
        break;
    }
    errno = EINVAL;
    return -1;
}

static void op_run(unsigned at)
{
    struct disk_op *op = turns.ops[at];
    turns.ops[at] = turns.ops[--turns.op_count];
    uint64_t bytes = op_bytes(op);
    if (atomic_load(&op->is_cancelled)) {
        op->err = ERR_CANCELLED;
        op->result = 0;
    } else {
        op->result = op_call(op);
        op->errno_value = op->result < 0 ? errno : 0;
        op->err = op->result < 0 ? error_from_errno(op->errno_value) : ERR_OK;
        check(op->kind != DISK_WRITE || op->result < 0 || (uint64_t)op->result == bytes);
    }
    struct worker *w = op->worker;
    current = w;
    op->done(op);
    turn_end(w);
}

enum err disk_io_read_nowait(int fd, const struct iovec *iov, unsigned iov_count, uint64_t offset,
                             size_t *ret_bytes)
{
    if (schedule_random(4) == 0) {
        return ERR_AGAIN;
    }
    ssize_t got = preadv(fd, iov, (int)iov_count, (off_t)offset);
    *ret_bytes = got < 0 ? 0 : (size_t)got;
    return got < 0 ? error_from_errno(errno) : ERR_OK;
}

bool disk_io_resident(int fd, uint64_t offset, uint64_t len)
{
    (void)fd, (void)offset, (void)len;
    return schedule_random(4) != 0;
}

enum disk_residency disk_io_probe_residency(const char *dir)
{
    (void)dir;
    return disk_io_residency_mode();
}

enum disk_residency disk_io_residency_mode(void)
{
    return DISK_RESIDENCY_CACHESTAT;
}

int disk_io_sync_blocking(int fd)
{
    return fdatasync(fd);
}

// --- turns

static struct timer *timer_due(uint64_t *ret_next_us)
{
    struct timer *due = NULL;
    for (unsigned i = 0; i < turns.timer_count; i++) {
        struct timer *timer = turns.timers[i];
        *ret_next_us = min_u64(*ret_next_us, timer->due_us);
        if (timer->due_us <= schedule_monotonic_us()) {
            due = timer;
        }
    }
    return due;
}

bool turns_are_over(void)
{
    unsigned expected = 0;
    unsigned mail = 0;
    for (unsigned i = 0; i < TURNS_WORKERS; i++) {
        expected += (unsigned)turns.workers[i].expected;
        mail += has_mail(&turns.workers[i]);
    }
    return turns.op_count + turns.job_count + expected + mail == 0;
}

void turns_step(uint64_t us)
{
    uint64_t now_us = schedule_monotonic_us();
    uint64_t next_us = now_us + us;
    struct timer *due = timer_due(&next_us);
    unsigned from = schedule_random(2);
    for (unsigned i = 0; i < TURNS_WORKERS; i++) {
        struct worker *w = &turns.workers[(from + i) % TURNS_WORKERS];
        if (schedule_random(2) == 0 && deliver(w)) {
            return;
        }
    }
    if (turns.also != NULL && schedule_random(2) == 0 && turns.also()) {
        return;
    }
    if (turns.job_count > 0 && schedule_random(2) == 0) {
        job_run();
    } else if (turns.op_count > 0 && schedule_random(4) != 0) {
        op_run(schedule_random(turns.op_count));
    } else if (due != NULL) {
        timer_stop(due);
        struct worker *w = due->worker;
        current = w;
        due->fn(due);
        turn_end(w);
    } else if (turns.also != NULL && turns.also()) {
        return;
    } else if (turns.op_count + turns.job_count == 0 && !has_mail(&turns.workers[0]) &&
               !has_mail(&turns.workers[1])) {
        schedule_sleep_us(next_us > now_us ? next_us - now_us : 1);
    } else {
        schedule_point(1);
    }
}
