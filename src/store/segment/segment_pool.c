// SPDX-License-Identifier: Apache-2.0
// A cache may have more segments than a process may have descriptors. The pool opens a segment's
// file on demand. When it needs a descriptor, it closes a segment that was not used lately.
//
// The field `file` of a segment is one word. Its high half is the descriptor + 1. Its low half has
// the bit "used lately" and the number of current users. segment_borrow() is a compare-and-swap and
// segment_return() a subtraction. Any thread may call them, without a lock. Closing is a
// compare-and-swap that succeeds only while there is no user, so a descriptor in use is never
// closed. A user has the descriptor for one system call or one disk operation. A reply that waits
// for its client has none.
//
// A clock hand finds the segment to close. It passes over the open segments, clears "used lately"
// in each, and closes the first one without the bit. An unlinked segment cannot be opened again, so
// the hand closes it only as a last resort.
//
// open(2) may wait for the disk. Workers leave it to the pool's thread. Other threads of the store
// call it themselves. While all descriptors are in use, both wait up to SEGMENT_OPEN_WAIT_MS for
// one to be returned. After that the segment's blocks count as misses, and the origin supplies
// them. The cached runs stay. For a while after such a failure, Forebay stores nothing, and
// requests of workers do not wait for a descriptor. Otherwise the requests in the queue would wait
// one after the other.
#include "store/segment/segment_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_log.h"

#define USERS 0x7fffffffull
#define USED_LATELY 0x80000000ull
#define FD_SHIFT 32
// The hand makes at most three rounds. In the first two it clears the bits that it meets, and
// closes a segment without the bit. In the third it may also close a segment that is unlinked or
// was used lately.
#define ROUNDS 3u
// Attempts to open a file if the process has no descriptor left. Each first closes another segment.
#define OPEN_TRIES_MAX 64u

struct segment_opening {
    struct message message;
    struct segment_opening *next;
    struct worker *worker;
    struct segment *segment;
    void (*done)(void *ctx, enum err err, int fd);
    void *ctx;
    enum err err;
    int fd;
};

// --- the word `file`

int segment_borrow(struct segment *segment)
{
    uint64_t file = atomic_load_explicit(&segment->file, memory_order_relaxed);
    do {
        if (file >> FD_SHIFT == 0) {
            return -1;
        }
        check((file & USERS) < USERS);
    } while (!atomic_compare_exchange_weak_explicit(&segment->file, &file, (file + 1) | USED_LATELY,
                                                    memory_order_acquire, memory_order_relaxed));
    return (int)(file >> FD_SHIFT) - 1;
}

void segment_return(struct segment *segment)
{
    struct segment_pool *pool = &segment->log->pool;
    uint64_t before = atomic_fetch_sub(&segment->file, 1);
    check((before & USERS) > 0);
    check(before >> FD_SHIFT != 0); // a descriptor in use is not closed
    // The subtraction and this load are sequentially consistent, like the waiter's increment of
    // `waiting` and its later read of the word. So either this thread sees the waiter, or the
    // waiter sees the return.
    if ((before & USERS) == 1 && atomic_load(&pool->waiting) > 0) {
        pthread_mutex_lock(&pool->queue.lock);
        pool->queue.returns++;
        pthread_cond_broadcast(&pool->queue.returned);
        pthread_mutex_unlock(&pool->queue.lock);
    }
}

// Takes the descriptor out of the segment's word `file` and returns it. Returns -1 if the
// descriptor is in use. With `gently`, also returns -1 if it was used lately, and clears that bit.
static int file_take(struct segment *segment, bool gently)
{
    uint64_t file = atomic_load(&segment->file);
    do {
        if ((file & USERS) != 0) {
            return -1;
        }
        if (gently && (file & USED_LATELY) != 0) {
            (void)atomic_compare_exchange_strong(&segment->file, &file, file & ~USED_LATELY);
            return -1; // another thread may set the bit again at once, which does no harm
        }
    } while (!atomic_compare_exchange_weak(&segment->file, &file, 0));
    return (int)(file >> FD_SHIFT) - 1;
}

// --- the array of open segments

static void open_remove_locked(struct segment_pool *pool, struct segment *segment)
{
    check(segment->pool_at < pool->guarded.open_count);
    check(pool->guarded.open[segment->pool_at] == segment);
    struct segment *last = pool->guarded.open[--pool->guarded.open_count];
    pool->guarded.open[segment->pool_at] = last;
    last->pool_at = segment->pool_at;
    stats_sub(COUNTER_segment_descriptors, 1);
}

static void open_add_locked(struct segment_pool *pool, struct segment *segment, int fd,
                            unsigned users)
{
    check(pool->guarded.open_count < pool->limit);
    check(fd >= 0);
    check(atomic_load(&segment->file) >> FD_SHIFT == 0); // each segment has one descriptor at most
    segment->pool_at = pool->guarded.open_count;
    pool->guarded.open[pool->guarded.open_count++] = segment;
    stats_add(COUNTER_segment_descriptors, 1);
    atomic_store(&segment->file, (uint64_t)(fd + 1) << FD_SHIFT | USED_LATELY | users);
}

// Closes a segment that was not used lately, or else any unused one. Returns false if all are in
// use.
static bool close_one_locked(struct segment_pool *pool)
{
    for (unsigned i = 0; i < ROUNDS * pool->guarded.open_count; i++) {
        unsigned round = i / pool->guarded.open_count;
        pool->guarded.hand = (pool->guarded.hand + 1) % pool->guarded.open_count;
        struct segment *segment = pool->guarded.open[pool->guarded.hand];
        bool nameless = (atomic_load(&segment->pins) & SEGMENT_PIN_UNLINKED) != 0;
        int fd = nameless && round + 1 < ROUNDS ? -1 : file_take(segment, round + 1 < ROUNDS);
        if (fd >= 0) {
            open_remove_locked(pool, segment);
            (void)close(fd); // no data is lost, because a later sync may use another descriptor
            stats_add(COUNTER_segment_closes, 1);
            return true;
        }
    }
    return false;
}

// --- opening

// Returns a descriptor of the file, or a negative errno value.
static int file_open(const struct segment_pool *pool, uint32_t number)
{
    check(number != 0);
    char name[SEGMENT_NAME_LEN];
    segment_name(number, name);
    int failed = store_fault_strike(STORE_FAULT_OPEN);
    if (failed != 0) {
        return -failed;
    }
    int fd = openat(pool->folder_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return -errno;
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd); // nothing was written, so an error loses nothing
        return -ENOENT;
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); // only a hint, so it may fail
    return fd;
}

// Borrows the segment, and opens it within the limit if it is not open. Returns a negative errno
// value if it cannot be opened, and -EAGAIN if all descriptors are in use.
static int pool_open_locked(struct segment_pool *pool, struct segment *segment)
{
    int fd = segment_borrow(segment);
    if (fd >= 0) {
        return fd;
    }
    if (pool->guarded.open_count >= pool->limit && !close_one_locked(pool)) {
        return -EAGAIN;
    }
    fd = file_open(pool, atomic_load(&segment->number));
    for (unsigned i = 0; i < OPEN_TRIES_MAX && (fd == -EMFILE || fd == -ENFILE); i++) {
        if (!close_one_locked(pool)) {
            return -EAGAIN; // other parts of the process use all descriptors
        }
        fd = file_open(pool, atomic_load(&segment->number));
    }
    if (fd >= 0) {
        open_add_locked(pool, segment, fd, 1);
    }
    return fd;
}

static int pool_open(struct segment_pool *pool, struct segment *segment)
{
    pthread_mutex_lock(&pool->guarded.lock);
    int fd = pool_open_locked(pool, segment);
    pthread_mutex_unlock(&pool->guarded.lock);
    return fd;
}

// Waits until the count of returns differs from `returns`. Returns false if `until_us` passes
// first, or if the pool stops.
static bool wait_for_return(struct segment_pool *pool, uint64_t returns, uint64_t until_us)
{
    struct timespec until = disk_timespec_of_us(until_us);
    int rc = 0;
    pthread_mutex_lock(&pool->queue.lock);
    while (pool->queue.returns == returns && !pool->queue.stop && rc == 0) {
        rc = pthread_cond_timedwait(&pool->queue.returned, &pool->queue.lock, &until);
    }
    bool again = pool->queue.returns != returns;
    pthread_mutex_unlock(&pool->queue.lock);
    return again;
}

static uint64_t pool_returns(struct segment_pool *pool)
{
    pthread_mutex_lock(&pool->queue.lock);
    uint64_t returns = pool->queue.returns;
    pthread_mutex_unlock(&pool->queue.lock);
    return returns;
}

static int pool_open_wait(struct segment_pool *pool, struct segment *segment)
{
    int fd = pool_open(pool, segment);
    if (fd != -EAGAIN) {
        return fd;
    }
    stats_add(COUNTER_segment_open_waits, 1);
    atomic_fetch_add(&pool->waiting, 1);
    uint64_t until_us = disk_real_us() + SEGMENT_OPEN_WAIT_MS * 1000ull;
    bool again = true;
    while (fd == -EAGAIN && again) { // ends at until_us
        uint64_t returns = pool_returns(pool);
        fd = pool_open(pool, segment);
        again = fd != -EAGAIN || wait_for_return(pool, returns, until_us);
    }
    check(atomic_fetch_sub(&pool->waiting, 1) > 0);
    return fd;
}

static enum err borrow(struct segment *segment, bool may_wait, int *ret_fd)
{
    struct segment_pool *pool = &segment->log->pool;
    int fd = segment_borrow(segment);
    if (fd < 0) {
        fd = may_wait ? pool_open_wait(pool, segment) : pool_open(pool, segment);
    }
    if (fd >= 0) {
        *ret_fd = fd;
        return ERR_OK;
    }
    if (fd == -ENOENT || fd == -ELOOP) {
        return ERR_IO; // the file was removed
    }
    bool is_short = fd == -EMFILE || fd == -ENFILE || fd == -EAGAIN;
    enum err err = is_short ? ERR_DESCRIPTORS : ERR_UNREADABLE;
    stats_add(COUNTER_segment_open_failures, 1);
    disk_fall_short(segment->log->disk, err);
    log_warn_condition("segment_not_opened", "number=%u errno=%d error=%s",
                       atomic_load(&segment->number), -fd,
                       log_quote(span_from_cstr(strerrordesc_np(-fd))));
    return err;
}

enum err segment_borrow_wait(struct segment *segment, int *ret_fd)
{
    return borrow(segment, true, ret_fd);
}

// --- for workers

static void on_opened(struct worker *to, struct message *message)
{
    struct segment_opening *opening = container_of(message, struct segment_opening, message);
    check(opening->worker == to);
    check((opening->err == ERR_OK) == (opening->fd >= 0));
    worker_expect_done(to);
    opening->done(opening->ctx, opening->err, opening->fd);
    free(opening);
}

void segment_borrow_start(struct worker *w, struct segment *segment,
                          void (*done)(void *ctx, enum err err, int fd), void *ctx)
{
    struct segment_pool *pool = &segment->log->pool;
    check(done != NULL && (atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) > 0);
    struct segment_opening *opening = calloc(1, sizeof(*opening));
    check(opening != NULL);
    *opening = (struct segment_opening){
        .worker = w, .segment = segment, .done = done, .ctx = ctx, .fd = -1};
    opening->message.deliver = on_opened;
    worker_expect(w);
    pthread_mutex_lock(&pool->queue.lock);
    *pool->queue.last = opening;
    pool->queue.last = &opening->next;
    pthread_cond_signal(&pool->queue.wanted);
    pthread_mutex_unlock(&pool->queue.lock);
}

static struct segment_opening *pool_next(struct segment_pool *pool)
{
    pthread_mutex_lock(&pool->queue.lock);
    while (pool->queue.first == NULL && !pool->queue.stop) {
        pthread_cond_wait(&pool->queue.wanted, &pool->queue.lock);
    }
    struct segment_opening *opening = pool->queue.first;
    if (opening != NULL) {
        pool->queue.first = opening->next;
        pool->queue.last = opening->next == NULL ? &pool->queue.first : pool->queue.last;
    }
    check((pool->queue.first == NULL) == (pool->queue.last == &pool->queue.first));
    pthread_mutex_unlock(&pool->queue.lock);
    return opening;
}

static void *pool_main(void *ctx)
{
    struct segment_pool *pool = ctx;
    thread_begin("store-opener", THREAD_HELPS);
    struct segment_opening *opening;
    while ((opening = pool_next(pool)) != NULL) {
        opening->err = borrow(opening->segment,
                              disk_shortage(opening->segment->log->disk) == ERR_OK, &opening->fd);
        mailbox_send_from_any_thread(opening->worker, &opening->message);
    }
    return NULL;
}

// --- for the supply thread

void segment_pool_adopt(struct segment_pool *pool, struct segment *segment, int fd)
{
    pthread_mutex_lock(&pool->guarded.lock);
    bool fits = pool->guarded.open_count < pool->limit || close_one_locked(pool);
    if (fits) {
        open_add_locked(pool, segment, fd, 0);
    }
    pthread_mutex_unlock(&pool->guarded.lock);
    if (!fits) {
        (void)close(fd); // the header is written, so the pool can open the file again on demand
    }
}

bool segment_pool_yield(struct segment_pool *pool)
{
    pthread_mutex_lock(&pool->guarded.lock);
    bool closed = close_one_locked(pool);
    pthread_mutex_unlock(&pool->guarded.lock);
    return closed;
}

void segment_pool_close(struct segment_pool *pool, struct segment *segment)
{
    pthread_mutex_lock(&pool->guarded.lock);
    uint64_t file = atomic_exchange(&segment->file, 0);
    if (file >> FD_SHIFT != 0) {
        open_remove_locked(pool, segment);
    }
    pthread_mutex_unlock(&pool->guarded.lock);
    check((file & USERS) == 0);
    if (file >> FD_SHIFT != 0) {
        (void)close((int)(file >> FD_SHIFT) - 1); // unwritten pages are not needed
    }
}

// --- life

void segment_pool_init(struct segment_pool *pool, int folder_fd, unsigned limit)
{
    *pool = (struct segment_pool){.folder_fd = folder_fd};
    pool->limit = (unsigned)min_u64(max_u64(limit, SEGMENT_POOL_MIN), SEGMENT_POOL_MAX);
    pool->guarded.open = calloc(pool->limit, sizeof(*pool->guarded.open));
    check(pool->guarded.open != NULL);
    pool->queue.last = &pool->queue.first;
    pthread_mutex_init(&pool->guarded.lock, NULL);
    pthread_mutex_init(&pool->queue.lock, NULL);
    clock_cond_init(&pool->queue.wanted);
    clock_cond_init(&pool->queue.returned);
}

void segment_pool_start(struct segment_pool *pool, struct disk_spares *spares)
{
    check(!pool->runs && pool->limit >= SEGMENT_POOL_MIN);
    pool->thread = disk_spares_use(spares, pool_main, pool);
    pool->runs = true;
}

void segment_pool_stop(struct segment_pool *pool)
{
    if (!pool->runs) {
        return;
    }
    pthread_mutex_lock(&pool->queue.lock);
    pool->queue.stop = true;
    pthread_cond_signal(&pool->queue.wanted);
    pthread_cond_broadcast(&pool->queue.returned);
    pthread_mutex_unlock(&pool->queue.lock);
    check(pthread_join(pool->thread, NULL) == 0);
    pool->runs = false;
}

void segment_pool_done(struct segment_pool *pool)
{
    check(!pool->runs);
    // Close segments in use, too, because their operations may hang on the disk.
    while (pool->guarded.open_count > 0) {
        struct segment *segment = pool->guarded.open[pool->guarded.open_count - 1];
        uint64_t file = atomic_exchange(&segment->file, 0);
        check(file >> FD_SHIFT != 0);
        open_remove_locked(pool, segment);
        (void)close((int)(file >> FD_SHIFT) - 1); // unwritten pages are not needed
    }
    free(pool->guarded.open);
    pthread_mutex_destroy(&pool->guarded.lock);
    pthread_mutex_destroy(&pool->queue.lock);
    pthread_cond_destroy(&pool->queue.wanted);
    pthread_cond_destroy(&pool->queue.returned);
}
