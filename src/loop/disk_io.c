// SPDX-License-Identifier: Apache-2.0
// The disk operations that all rooms use. An operation is embedded in its owner, and belongs to the
// worker that started it.
//
// Operations that write have a lane of their own with half the queue depth, so that reads can
// overtake writes on a slow device. Operations on an origin's files have a third lane.
//
// The states of an operation:
// - WAITING: started by disk_io_start(). It waits in its lane until the end of the turn, or longer
//   if the lane is at its depth.
// - INFLIGHT: the engine has it. After a short transfer or EINTR, the operation becomes WAITING
//   again for the rest, or the engine itself does the rest.
// - FINISHED: it has its result. The next disk_io_dispatch() sets it to IDLE and runs done().
// - IDLE: it may be started again, also from inside done().
//
// If an operation is cancelled while it is WAITING, it is FINISHED at once. If it is INFLIGHT, it
// is FINISHED when its I/O ends.
//
// Runs on the worker. disk_io_read_nowait(), disk_io_resident() and the probe may run on any
// thread.
#include "loop/loop_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "loop/disk_fault.h"
#include "stats/stats.h"

enum { STATE_IDLE, STATE_WAITING, STATE_INFLIGHT, STATE_FINISHED };

static const uint32_t state_next[] = {
    [STATE_IDLE] = 1u << STATE_WAITING,
    [STATE_WAITING] = 1u << STATE_INFLIGHT | 1u << STATE_FINISHED,
    [STATE_INFLIGHT] = 1u << STATE_WAITING | 1u << STATE_FINISHED,
    [STATE_FINISHED] = 1u << STATE_IDLE,
};

#define IOV_MAX_OURS 64
#define REPEATS_MAX 10000u // The most repeats of one operation after EINTR or EAGAIN.

void disk_io_init(struct worker *w, unsigned depth)
{
    check(depth > 0);
    list_init(&w->disk.finished);
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        struct disk_lane *lane = &w->disk.lanes[i];
        list_init(&lane->waiting);
        list_init(&lane->issued);
        lane->depth = i == DISK_LANE_WRITES && depth > 1 ? depth / 2 : depth;
    }
}

enum disk_lane_kind disk_op_lane(const struct disk_op *op)
{
    bool writes = op->kind == DISK_WRITE || op->kind == DISK_SYNC || op->kind == DISK_FALLOCATE ||
                  op->kind == DISK_PUSH;
    return op->is_origins ? DISK_LANE_ORIGIN : writes ? DISK_LANE_WRITES : DISK_LANE_READS;
}

static void op_enter(struct disk_op *op, int state)
{
    check_step(state_next, op->state, state);
    op->state = state;
}

static void lane_moved(struct worker *w, struct disk_lane *lane)
{
    uint64_t at_ms = lane->inflight_count > 0 ? worker_now_us(w) / 1000 : 0;
    atomic_store_explicit(&lane->moved_ms, at_ms, memory_order_relaxed);
}

static void lane_takes(struct worker *w, struct disk_lane *lane)
{
    if (lane->inflight_count++ == 0) {
        lane_moved(w, lane);
    }
}

static void lane_lands(struct worker *w, struct disk_lane *lane)
{
    check(lane->inflight_count > 0);
    lane->inflight_count--;
    lane_moved(w, lane);
}

static struct disk_lane *lane_of(struct worker *w, const struct disk_op *op)
{
    return &w->disk.lanes[disk_op_lane(op)];
}

static unsigned inflight_of(const struct disk_io *disk)
{
    unsigned inflight = 0;
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        inflight += disk->lanes[i].inflight_count;
    }
    return inflight;
}

static bool lane_can_go(const struct disk_lane *lane)
{
    return lane->waiting_count > 0 && lane->inflight_count < lane->depth;
}

bool disk_io_has_work(const struct worker *w)
{
    const struct disk_io *disk = &w->disk;
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        if (lane_can_go(&disk->lanes[i])) {
            return true;
        }
    }
    return !list_empty(&disk->finished) ||
           (disk->has_ring &&
            (io_uring_cq_ready(&disk->ring) > 0 || io_uring_sq_ready(&disk->ring) > 0)) ||
           atomic_load_explicit(&disk->completed, memory_order_relaxed) != NULL;
}

bool disk_io_is_quiet(const struct worker *w)
{
    const struct disk_io *disk = &w->disk;
    unsigned waiting = 0;
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        waiting += disk->lanes[i].waiting_count;
    }
    return waiting == 0 && inflight_of(disk) == 0 && list_empty(&disk->finished);
}

void disk_io_publish(struct worker *w)
{
    struct disk_io *disk = &w->disk;
    unsigned inflight = inflight_of(disk);
    if (disk->inflight_published != inflight) {
        stats_add(COUNTER_disk_inflight, (unsigned long)inflight - disk->inflight_published);
        disk->inflight_published = inflight;
    }
}

uint64_t loop_disk_stuck_ms(const struct loop *loop)
{
    uint64_t now_ms = clock_monotonic_ms(), stuck_ms = 0;
    for (unsigned i = 0; i < loop->worker_count; i++) {
        for (unsigned lane = 0; lane < DISK_LANE_ORIGIN; lane++) {
            uint64_t moved_ms = atomic_load_explicit(&loop->workers[i].disk.lanes[lane].moved_ms,
                                                     memory_order_relaxed);
            uint64_t ms = moved_ms != 0 ? now_ms - min_u64(now_ms, moved_ms) : 0;
            stuck_ms = max_u64(stuck_ms, ms);
        }
    }
    return stuck_ms;
}

// --- Starting, cancelling ------------------------------------------------------------------------

static bool op_is_transfer(const struct disk_op *op)
{
    return op->kind == DISK_READ || op->kind == DISK_WRITE;
}

// Proves that EINVAL of a direct operation is the file system's refusal, and no mistake of ours.
static void op_check_alignment(const struct disk_op *op)
{
    check(op->offset % DISK_DIRECT_ALIGN == 0);
    for (unsigned i = 0; i < op->iov_count; i++) {
        check((uintptr_t)op->iov[i].iov_base % DISK_DIRECT_ALIGN == 0);
        check(op->iov[i].iov_len % DISK_DIRECT_ALIGN == 0);
    }
}

void disk_io_start(struct worker *w, struct disk_op *op)
{
    check(worker_is_mine(w));
    check(op->done != NULL);
    op_enter(op, STATE_WAITING);
    struct disk_lane *lane = lane_of(w, op);
    op->worker = w;
    op->err = ERR_OK;
    op->errno_value = 0;
    op->result = 0;
    op->started_us = worker_now_us(w);
    op->progress_bytes = op->remaining_bytes = 0;
    op->iov_next = op->repeat_count = 0;
    op->is_first_short = false;
    atomic_store_explicit(&op->is_cancelled, false, memory_order_relaxed);
    if (op_is_transfer(op)) {
        check(op->iov_count > 0);
        check(op->iov_count <= IOV_MAX_OURS);
        for (unsigned i = 0; i < op->iov_count; i++) {
            check(add_u64(op->remaining_bytes, op->iov[i].iov_len, &op->remaining_bytes));
        }
        if (op->is_direct) {
            op_check_alignment(op);
        }
    }
    (void)count_if(lane->waiting_count + lane->inflight_count >= lane->depth,
                   COUNTER_disk_queue_full);
    list_node_init(&op->node);
    list_push_back(&lane->waiting, &op->node);
    lane->waiting_count++;
}

static void op_fail(struct disk_op *op, enum err err, int errno_value)
{
    op->err = err;
    op->errno_value = errno_value;
    op->result = -1;
}

static void op_finish_unissued(struct worker *w, struct disk_op *op)
{
    list_push_back(&w->disk.finished, &op->node);
    op_enter(op, STATE_FINISHED);
}

void disk_io_cancel(struct disk_op *op)
{
    if (op->state != STATE_WAITING && op->state != STATE_INFLIGHT) {
        return;
    }
    struct worker *w = as_worker(op->worker);
    check(worker_is_mine(w));
    atomic_store_explicit(&op->is_cancelled, true, memory_order_relaxed);
    if (op->state == STATE_WAITING) {
        list_remove(&op->node);
        lane_of(w, op)->waiting_count--;
        op_fail(op, ERR_CANCELLED, ECANCELED);
        op_finish_unissued(w, op);
    }
}

// --- Pieces and results, for the engines ---------------------------------------------------------

bool disk_op_next_piece(struct disk_op *op, struct iovec *ret_one, struct iovec **ret_iov,
                        unsigned *ret_count)
{
    check(op->iov_next < op->iov_count);
    struct iovec *iov = &op->iov[op->iov_next];
    *ret_iov = iov;
    *ret_count = op->iov_count - op->iov_next;
    if (op->is_first_short) {
        op->is_first_short = false;
        *ret_one =
            (struct iovec){iov->iov_base, iov->iov_len > 1 ? iov->iov_len / 2 : iov->iov_len};
        return true;
    }
    *ret_one = *iov;
    // Limit the length, so that it fits into the fields of both engines. The rest continues as
    // after a short transfer.
    ret_one->iov_len = min_u64(iov->iov_len, 1u << 30);
    return *ret_count == 1;
}

static void op_advance(struct disk_op *op, uint64_t bytes)
{
    check(bytes <= op->remaining_bytes);
    op->progress_bytes += bytes;
    op->remaining_bytes -= bytes;
    while (op->iov_next < op->iov_count && bytes >= op->iov[op->iov_next].iov_len) {
        bytes -= op->iov[op->iov_next].iov_len;
        op->iov_next++;
    }
    if (bytes > 0) {
        struct iovec *iov = &op->iov[op->iov_next];
        iov->iov_base = (char *)iov->iov_base + bytes;
        iov->iov_len -= bytes;
    }
}

bool disk_op_take_result(struct disk_op *op, int64_t result)
{
    bool is_cancelled = atomic_load_explicit(&op->is_cancelled, memory_order_relaxed);
    if (result == -EINTR || result == -EAGAIN) {
        if (!is_cancelled && ++op->repeat_count < REPEATS_MAX) {
            return false;
        }
        op_fail(op, is_cancelled ? ERR_CANCELLED : ERR_IO, (int)-result);
        return true;
    }
    if (result < 0) {
        op_fail(op, error_from_errno((int)-result), (int)-result);
        return true;
    }
    if (!op_is_transfer(op)) {
        op->result = result;
        return true;
    }
    if (result == 0 && op->remaining_bytes > 0 && op->kind == DISK_WRITE) {
        // Otherwise a write of 0 bytes without an error would be repeated without end.
        op_fail(op, ERR_IO, EIO);
        return true;
    }
    op_advance(op, (uint64_t)result);
    if (result > 0 && op->remaining_bytes > 0) {
        if (!is_cancelled) {
            return false;
        }
        op_fail(op, ERR_CANCELLED, ECANCELED);
        return true;
    }
    // all bytes, or for a read those before the end of the file
    op->result = (int64_t)op->progress_bytes;
    return true;
}

// --- Submitting ----------------------------------------------------------------------------------

// Makes the operation the next one of its lane, because it has already waited.
static void op_wait_again(struct worker *w, struct disk_op *op)
{
    struct disk_lane *lane = lane_of(w, op);
    op_enter(op, STATE_WAITING);
    list_push_front(&lane->waiting, &op->node);
    lane->waiting_count++;
}

#ifdef FOREBAY_FAULTS

struct slow_op {
    struct timer timer;
    struct disk_op *op;
    bool is_held;
};

static void on_slow_over(struct timer *timer)
{
    struct slow_op *slow = container_of(timer, struct slow_op, timer);
    struct worker *w = as_worker(timer->worker);
    if (slow->is_held && !atomic_load_explicit(&slow->op->is_cancelled, memory_order_relaxed) &&
        disk_fault_is_held(slow->op->kind)) {
        timer_start(&slow->timer, DISK_FAULT_HOLD_MS);
        return;
    }
    lane_lands(w, lane_of(w, slow->op));
    if (atomic_load_explicit(&slow->op->is_cancelled, memory_order_relaxed)) {
        op_fail(slow->op, ERR_CANCELLED, ECANCELED);
        op_finish_unissued(w, slow->op);
    } else {
        op_wait_again(w, slow->op);
    }
    free(slow);
}

// Returns true if fault injection has taken over the operation.
static bool op_injected(struct worker *w, struct disk_op *op)
{
    // An operation gets at most one fault, and none for the rest after a short transfer or a delay.
    if (op->progress_bytes > 0 || op->repeat_count > 0) {
        return false;
    }
    op->repeat_count++;
    struct disk_fault fault = disk_fault_next(op->kind, op->remaining_bytes);
    switch (fault.what) {
    case DISK_FAULT_NONE:
        return false;
    case DISK_FAULT_SHORT:
        op->is_first_short = op_is_transfer(op) && op->remaining_bytes > 1;
        return false;
    case DISK_FAULT_ERRNO:
        op_fail(op, error_from_errno(fault.errno_value), fault.errno_value);
        op_finish_unissued(w, op);
        return true;
    case DISK_FAULT_HOLD:
    case DISK_FAULT_SLOW: {
        struct slow_op *slow = calloc(1, sizeof(*slow));
        check(slow != NULL);
        slow->op = op;
        slow->is_held = fault.what == DISK_FAULT_HOLD;
        op_enter(op, STATE_INFLIGHT);
        lane_takes(w, lane_of(w, op));
        timer_init(w, &slow->timer, on_slow_over);
        timer_start(&slow->timer, fault.delay_ms);
        return true;
    }
    }
    return false;
}

#else

static bool op_injected(struct worker *w, struct disk_op *op)
{
    (void)w;
    (void)op;
    return false;
}

#endif

static bool lane_submit(struct worker *w, struct disk_lane *lane)
{
    bool has_issued = false;
    while (lane_can_go(lane)) {
        struct list_node *node = list_pop_front(&lane->waiting);
        struct disk_op *op = container_of(node, struct disk_op, node);
        lane->waiting_count--;
        if (op_injected(w, op)) {
            continue;
        }
        op_enter(op, STATE_INFLIGHT);
        if (!w->loop->engine_calls->issue(w, op)) {
            op_wait_again(w, op);
            break;
        }
        lane_takes(w, lane);
        has_issued = true;
    }
    return has_issued;
}

void disk_io_submit(struct worker *w)
{
    struct disk_io *disk = &w->disk;
    bool has_issued = false;
    for (unsigned i = 0; i < DISK_LANE_COUNT; i++) {
        has_issued |= lane_submit(w, &disk->lanes[i]);
    }
    if (has_issued || (disk->has_ring && io_uring_sq_ready(&disk->ring) > 0)) {
        w->loop->engine_calls->flush(w);
        w->file_send.is_counted = false;
    }
}

int disk_io_sync_blocking(int fd)
{
#ifdef FOREBAY_FAULTS
    while (disk_fault_is_held(DISK_SYNC)) {
        (void)poll(NULL, 0, DISK_FAULT_HOLD_MS); // an interruption only shortens the pause
    }
#endif
    return fdatasync(fd);
}

// --- Finishing -----------------------------------------------------------------------------------

static void op_count(const struct disk_op *op, uint64_t now_us)
{
    uint64_t took_us = now_us > op->started_us ? now_us - op->started_us : 0;
    // A full file system is no error of the disk: the condition disk-full names it. A file system
    // without direct I/O is none either.
    bool has_failed = op->err != ERR_OK && op->err != ERR_CANCELLED && op->err != ERR_DISK_FULL &&
                      !disk_op_is_refused(op);
    switch (op->kind) {
    case DISK_READ:
        stats_observe_us(HISTOGRAM_disk_read, took_us);
        (void)count_if(has_failed, COUNTER_disk_errors_read);
        break;
    case DISK_WRITE:
        stats_observe_us(HISTOGRAM_disk_write, took_us);
        (void)count_if(has_failed, COUNTER_disk_errors_write);
        break;
    case DISK_SYNC:
    case DISK_FALLOCATE:
    case DISK_PUSH:
        (void)count_if(has_failed, COUNTER_disk_errors_write);
        break;
    case DISK_OPEN:
    case DISK_STATX:
    case DISK_UNLINK:
        break; // a missing file is no disk error
    }
}

static void disk_io_collect(struct worker *w)
{
    struct list done, again;
    list_init(&done);
    list_init(&again);
    w->loop->engine_calls->collect(w, &done, &again);
    struct list_node *node;
    while ((node = list_pop_front(&done)) != NULL) {
        struct disk_op *op = container_of(node, struct disk_op, node);
        lane_lands(w, lane_of(w, op));
        op_finish_unissued(w, op);
    }
    while ((node = list_last(&again)) != NULL) {
        list_remove(node);
        struct disk_op *op = container_of(node, struct disk_op, node);
        lane_lands(w, lane_of(w, op));
        op_wait_again(w, op);
    }
}

void disk_io_dispatch(struct worker *w)
{
    disk_io_collect(w);
    struct list batch;
    list_init(&batch);
    list_append_all(&batch, &w->disk.finished);
    struct list_node *node;
    while ((node = list_pop_front(&batch)) != NULL) {
        struct disk_op *op = container_of(node, struct disk_op, node);
        op_enter(op, STATE_IDLE);
        op_count(op, worker_now_us(w));
        op->done(op);
    }
}

// --- Without waiting -----------------------------------------------------------------------------

enum err disk_io_read_nowait(int fd, const struct iovec *iov, unsigned iov_count, uint64_t offset,
                             size_t *ret_bytes)
{
#ifdef FOREBAY_FAULTS
    struct iovec half;
    struct disk_fault fault = disk_fault_next(DISK_READ, 0);
    if (fault.what == DISK_FAULT_ERRNO) {
        return error_from_errno(fault.errno_value);
    }
    if (fault.what == DISK_FAULT_SLOW || fault.what == DISK_FAULT_HOLD) {
        return ERR_AGAIN;
    }
    if (fault.what == DISK_FAULT_SHORT && iov[0].iov_len > 1) {
        half = (struct iovec){iov[0].iov_base, iov[0].iov_len / 2};
        iov = &half;
        iov_count = 1;
    }
#endif
    ssize_t n = -1;
    for (unsigned i = 0; i < REPEATS_MAX; i++) {
        n = preadv2(fd, iov, (int)iov_count, (off_t)offset, RWF_NOWAIT);
        if (n >= 0 || errno != EINTR) {
            break;
        }
    }
    if (n >= 0) {
        *ret_bytes = (size_t)n;
        return ERR_OK;
    }
    switch (errno) {
    case EAGAIN:
    case EINTR:
    case EOPNOTSUPP: // the file system or the kernel has no reads that never block
    case ENOSYS:
        return ERR_AGAIN;
    default:
        return error_from_errno(errno);
    }
}

// --- Residency -----------------------------------------------------------------------------------

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

struct cachestat_range_v1 {
    uint64_t offset, len;
};

struct cachestat_v1 {
    uint64_t cached_pages, dirty_pages, writeback_pages, evicted_pages, recently_evicted_pages;
};

// Set by the probe before workers read it. Relaxed order is enough, because the answers are valid
// with any mode.
static _Atomic(enum disk_residency) residency_mode = DISK_RESIDENCY_NONE;

static uint64_t page_size_bytes(void)
{
    static _Atomic(uint64_t) cached;
    uint64_t size = atomic_load_explicit(&cached, memory_order_relaxed);
    if (size == 0) {
        size = (uint64_t)sysconf(_SC_PAGESIZE);
        atomic_store_explicit(&cached, size, memory_order_relaxed);
    }
    return size;
}

static bool cachestat_is_resident(int fd, uint64_t offset, uint64_t len)
{
    uint64_t page = page_size_bytes();
    uint64_t first = offset / page, end = (offset + len + page - 1) / page;
    struct cachestat_range_v1 range = {first * page, (end - first) * page};
    struct cachestat_v1 answer = {0};
    if (syscall(SYS_cachestat, fd, &range, &answer, 0) != 0) {
        return false;
    }
    return answer.cached_pages >= end - first;
}

static bool mincore_is_resident(int fd, uint64_t offset, uint64_t len)
{
    uint64_t page = page_size_bytes();
    uint64_t first = offset / page, end = (offset + len + page - 1) / page;
    size_t size = (size_t)((end - first) * page);
    void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, (off_t)(first * page));
    if (map == MAP_FAILED) {
        return false;
    }
    bool is_resident = true;
    unsigned char pages[256];
    for (uint64_t at = 0; at < end - first && is_resident; at += sizeof(pages)) {
        uint64_t count = min_u64(sizeof(pages), end - first - at);
        is_resident = mincore((char *)map + at * page, (size_t)(count * page), pages) == 0;
        for (uint64_t i = 0; i < count && is_resident; i++) {
            is_resident = (pages[i] & 1) != 0;
        }
    }
    (void)munmap(map, size); // munmap cannot fail for a mapping that was just made
    return is_resident;
}

bool disk_io_resident(int fd, uint64_t offset, uint64_t len)
{
    uint64_t end;
    if (len == 0 || !add_u64(offset, len, &end) || end > INT64_MAX) {
        return len == 0;
    }
#ifdef FOREBAY_FAULTS
    if (disk_fault_errno("pages.gone") != 0) {
        return false;
    }
#endif
    switch (disk_io_residency_mode()) {
    case DISK_RESIDENCY_CACHESTAT:
        return cachestat_is_resident(fd, offset, len);
    case DISK_RESIDENCY_MINCORE:
        return mincore_is_resident(fd, offset, len);
    case DISK_RESIDENCY_NONE:
        return false;
    }
    return false;
}

enum disk_residency disk_io_residency_mode(void)
{
    return atomic_load_explicit(&residency_mode, memory_order_relaxed);
}

// The probe writes PROBE_PAGES pages and leaves a hole of the same size after them. It trusts a
// method that reports the pages as resident, and the hole as not.
#define PROBE_PAGES 16u

static int probe_file(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) {
        return fd;
    }
    char path[4096];
    int len = snprintf(path, sizeof(path), "%s/.residency-XXXXXX", dir);
    if (len < 0 || (size_t)len >= sizeof(path)) {
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        (void)unlink(path); // if this fails, the file that is left does no harm
    }
    return fd;
}

static bool probe_write(int fd, uint64_t bytes)
{
    char page[4096];
    memset(page, 0x5a, sizeof(page));
    for (uint64_t at = 0; at < bytes; at += sizeof(page)) {
        if (pwrite(fd, page, sizeof(page), (off_t)at) != (ssize_t)sizeof(page)) {
            return false;
        }
    }
    return ftruncate(fd, (off_t)(2 * bytes)) == 0;
}

enum disk_residency disk_io_probe_residency(const char *dir)
{
    enum disk_residency mode = DISK_RESIDENCY_NONE;
    uint64_t bytes = PROBE_PAGES * page_size_bytes();
    int fd = probe_file(dir);
    if (fd >= 0 && probe_write(fd, bytes)) {
        if (cachestat_is_resident(fd, 0, bytes) && !cachestat_is_resident(fd, bytes, bytes)) {
            mode = DISK_RESIDENCY_CACHESTAT;
        } else if (mincore_is_resident(fd, 0, bytes) && !mincore_is_resident(fd, bytes, bytes)) {
            mode = DISK_RESIDENCY_MINCORE;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    atomic_store_explicit(&residency_mode, mode, memory_order_relaxed);
    return mode;
}
