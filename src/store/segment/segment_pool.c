// SPDX-License-Identifier: Apache-2.0
// A cache may have more segments than a process may have descriptors. The pool opens a segment's
// file on demand. When it needs a descriptor, it closes a segment that was not used lately.
//
// Each descriptor of a segment has one word. Its high half is the descriptor + 1. Its low half has
// the bit "used lately" and the number of current users. segment_borrow() is a compare-and-swap and
// segment_return() a subtraction. Any thread may call them, without a lock. Closing is a
// compare-and-swap that succeeds only while there is no user, so a descriptor in use is never
// closed. A user has the descriptor for one system call or one disk operation. A reply that waits
// for its client has none.
//
// A clock hand finds the descriptor to close. It passes over the open ones, clears "used lately"
// in each, and closes the first one without the bit. An unlinked segment cannot be opened again, so
// the hand closes it only as a last resort.
//
// A descriptor for direct I/O is a convenience: if it cannot be opened, the caller uses the page
// cache. So nobody waits for one to be returned, a failure to open it counts nowhere, and no
// unlinked segment is closed for it.
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
// was used lately. The third is not made for a descriptor for direct I/O.
#define ROUNDS 3u
// Attempts to open a file if the process has no descriptor left. Each first closes another segment.
#define OPEN_TRIES_MAX 64u

static_assert(RUN_PAYLOAD_ALIGN % DISK_DIRECT_ALIGN == 0, "direct I/O reads and writes payload");

struct segment_opening {
    struct message message;
    struct segment_opening *next;
    struct worker *worker;
    struct segment *segment;
    void (*done)(void *ctx, enum err err, int fd);
    void *ctx;
    bool is_direct;
    enum err err;
    int fd;
};

// --- the word of a descriptor

static int word_borrow(struct segment_file_use *use)
{
    uint64_t word = atomic_load_explicit(&use->word, memory_order_relaxed);
    do {
        if (word >> FD_SHIFT == 0) {
            return -1;
        }
        check((word & USERS) < USERS);
    } while (!atomic_compare_exchange_weak_explicit(&use->word, &word, (word + 1) | USED_LATELY,
                                                    memory_order_acquire, memory_order_relaxed));
    return (int)(word >> FD_SHIFT) - 1;
}

int segment_borrow(struct segment *segment)
{
    return word_borrow(&segment->paged);
}

static bool refuses_direct(const struct segment *segment)
{
    return atomic_load_explicit(&segment->log->pool.refuses_direct, memory_order_relaxed);
}

int segment_borrow_direct(struct segment *segment)
{
    return refuses_direct(segment) ? -1 : word_borrow(&segment->direct);
}

static void word_return(struct segment_pool *pool, struct segment_file_use *use)
{
    uint64_t before = atomic_fetch_sub(&use->word, 1);
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

void segment_return(struct segment *segment)
{
    word_return(&segment->log->pool, &segment->paged);
}

void segment_return_direct(struct segment *segment)
{
    word_return(&segment->log->pool, &segment->direct);
}

// Takes the descriptor out of its word and returns it. Returns -1 if the descriptor is in use. With
// `gently`, also returns -1 if it was used lately, and clears that bit.
static int word_take(struct segment_file_use *use, bool gently)
{
    uint64_t word = atomic_load(&use->word);
    do {
        if ((word & USERS) != 0) {
            return -1;
        }
        if (gently && (word & USED_LATELY) != 0) {
            (void)atomic_compare_exchange_strong(&use->word, &word, word & ~USED_LATELY);
            return -1; // another thread may set the bit again at once, which does no harm
        }
    } while (!atomic_compare_exchange_weak(&use->word, &word, 0));
    return (int)(word >> FD_SHIFT) - 1;
}

// --- the array of open files

static struct segment *segment_of(struct segment_file_use *use)
{
    return use->is_direct ? container_of(use, struct segment, direct)
                          : container_of(use, struct segment, paged);
}

static void open_remove_locked(struct segment_pool *pool, const struct segment_file_use *use)
{
    check(use->pool_at < pool->guarded.open_count);
    check(pool->guarded.open[use->pool_at] == use);
    struct segment_file_use *last = pool->guarded.open[--pool->guarded.open_count];
    pool->guarded.open[use->pool_at] = last;
    last->pool_at = use->pool_at;
    stats_sub(COUNTER_segment_descriptors, 1);
}

static void open_add_locked(struct segment_pool *pool, struct segment_file_use *use, int fd,
                            bool is_direct, unsigned users)
{
    check(pool->guarded.open_count < pool->limit);
    check(fd >= 0);
    check(atomic_load(&use->word) >> FD_SHIFT == 0);
    use->is_direct = is_direct;
    use->pool_at = pool->guarded.open_count;
    pool->guarded.open[pool->guarded.open_count++] = use;
    stats_add(COUNTER_segment_descriptors, 1);
    atomic_store(&use->word, (uint64_t)(fd + 1) << FD_SHIFT | USED_LATELY | users);
}

// Closes a descriptor that was not used lately, or else any unused one. Returns false if `rounds`
// find none.
static bool close_one_locked(struct segment_pool *pool, unsigned rounds)
{
    for (unsigned i = 0; i < rounds * pool->guarded.open_count; i++) {
        unsigned round = i / pool->guarded.open_count;
        pool->guarded.hand = (pool->guarded.hand + 1) % pool->guarded.open_count;
        struct segment_file_use *use = pool->guarded.open[pool->guarded.hand];
        bool nameless = (atomic_load(&segment_of(use)->pins) & SEGMENT_PIN_UNLINKED) != 0;
        int fd = nameless && round + 1 < ROUNDS ? -1 : word_take(use, round + 1 < ROUNDS);
        if (fd >= 0) {
            open_remove_locked(pool, use);
            (void)close(fd); // no data is lost, because a later sync may use another descriptor
            stats_add(COUNTER_segment_closes, 1);
            return true;
        }
    }
    return false;
}

// --- opening

// Keeps the kernel from reading ahead. It would bring bytes into the page cache that nobody wants.
static void expect_random_reads(int fd)
{
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); // only a hint, so it may fail
}

// Returns a descriptor of the file, or a negative errno value.
static int file_open(const struct segment_pool *pool, uint32_t number, bool is_direct)
{
    check(number != 0);
    char name[SEGMENT_NAME_LEN];
    segment_name(number, name);
    int failed = store_fault_strike(STORE_FAULT_OPEN);
    if (failed != 0) {
        return -failed;
    }
    int flags = is_direct ? O_RDWR | O_DIRECT : O_RDWR;
    int fd = openat(pool->folder_fd, name, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return -errno;
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd); // nothing was written, so an error loses nothing
        return -ENOENT;
    }
    expect_random_reads(fd);
    return fd;
}

// Borrows the segment, and opens it within the limit if it is not open. Returns a negative errno
// value if it cannot be opened, and -EAGAIN if all descriptors are in use.
static int pool_open_locked(struct segment_pool *pool, struct segment *segment, bool is_direct)
{
    struct segment_file_use *use = is_direct ? &segment->direct : &segment->paged;
    int fd = word_borrow(use);
    if (fd >= 0) {
        return fd;
    }
    unsigned rounds = is_direct ? ROUNDS - 1 : ROUNDS;
    if (pool->guarded.open_count >= pool->limit && !close_one_locked(pool, rounds)) {
        return -EAGAIN;
    }
    fd = file_open(pool, atomic_load(&segment->number), is_direct);
    for (unsigned i = 0; i < OPEN_TRIES_MAX && (fd == -EMFILE || fd == -ENFILE); i++) {
        if (!close_one_locked(pool, rounds)) {
            return -EAGAIN; // other parts of the process use all descriptors
        }
        fd = file_open(pool, atomic_load(&segment->number), is_direct);
    }
    if (fd >= 0) {
        open_add_locked(pool, use, fd, is_direct, 1);
    }
    return fd;
}

static int pool_open(struct segment_pool *pool, struct segment *segment, bool is_direct)
{
    pthread_mutex_lock(&pool->guarded.lock);
    int fd = pool_open_locked(pool, segment, is_direct);
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
    int fd = pool_open(pool, segment, false);
    if (fd != -EAGAIN) {
        return fd;
    }
    stats_add(COUNTER_segment_open_waits, 1);
    atomic_fetch_add(&pool->waiting, 1);
    uint64_t until_us = disk_real_us() + SEGMENT_OPEN_WAIT_MS * 1000ull;
    bool again = true;
    while (fd == -EAGAIN && again) { // ends at until_us
        uint64_t returns = pool_returns(pool);
        fd = pool_open(pool, segment, false);
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
        fd = may_wait ? pool_open_wait(pool, segment) : pool_open(pool, segment, false);
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

static void refuse_direct(struct segment *segment, const char *call, uint64_t offset,
                          uint64_t length)
{
    char name[SEGMENT_NAME_LEN];
    segment_name(atomic_load(&segment->number), name);
    if (!atomic_exchange(&segment->log->pool.refuses_direct, true)) {
        log_info("direct_io_unavailable",
                 "call=%s file=%s offset=%llu length=%llu cache_io=page_cache", call, name,
                 (unsigned long long)offset, (unsigned long long)length);
    }
}

static enum err borrow_direct(struct segment *segment, int *ret_fd)
{
    struct segment_pool *pool = &segment->log->pool;
    *ret_fd = pool_open(pool, segment, true);
    if (*ret_fd == -EINVAL) {
        refuse_direct(segment, "open", 0, 0);
    }
    return *ret_fd >= 0 ? ERR_OK : ERR_UNREADABLE;
}

void segment_direct_refused(struct segment *segment, const struct disk_op *op)
{
    check(disk_op_is_refused(op));
    if (op->progress_bytes == 0) {
        refuse_direct(segment, op->kind == DISK_WRITE ? "write" : "read", op->offset,
                      op->remaining_bytes);
    }
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

static void borrow_start(struct worker *w, struct segment *segment, bool is_direct,
                         void (*done)(void *ctx, enum err err, int fd), void *ctx)
{
    struct segment_pool *pool = &segment->log->pool;
    check(done != NULL && (atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) > 0);
    struct segment_opening *opening = calloc(1, sizeof(*opening));
    check(opening != NULL);
    *opening = (struct segment_opening){.worker = w,
                                        .segment = segment,
                                        .is_direct = is_direct,
                                        .done = done,
                                        .ctx = ctx,
                                        .fd = -1};
    opening->message.deliver = on_opened;
    worker_expect(w);
    pthread_mutex_lock(&pool->queue.lock);
    *pool->queue.last = opening;
    pool->queue.last = &opening->next;
    pthread_cond_signal(&pool->queue.wanted);
    pthread_mutex_unlock(&pool->queue.lock);
}

void segment_borrow_start(struct worker *w, struct segment *segment,
                          void (*done)(void *ctx, enum err err, int fd), void *ctx)
{
    borrow_start(w, segment, false, done, ctx);
}

bool segment_borrow_direct_start(struct worker *w, struct segment *segment,
                                 void (*done)(void *ctx, enum err err, int fd), void *ctx)
{
    if (refuses_direct(segment) || (atomic_load(&segment->pins) & SEGMENT_PIN_UNLINKED) != 0) {
        return false;
    }
    borrow_start(w, segment, true, done, ctx);
    return true;
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
        struct segment *segment = opening->segment;
        opening->err =
            opening->is_direct
                ? borrow_direct(segment, &opening->fd)
                : borrow(segment, disk_shortage(segment->log->disk) == ERR_OK, &opening->fd);
        mailbox_send_from_any_thread(opening->worker, &opening->message);
    }
    return NULL;
}

// --- for the supply thread

void segment_pool_adopt(struct segment_pool *pool, struct segment *segment, int fd)
{
    pthread_mutex_lock(&pool->guarded.lock);
    bool fits = pool->guarded.open_count < pool->limit || close_one_locked(pool, ROUNDS);
    if (fits) {
        expect_random_reads(fd);
        open_add_locked(pool, &segment->paged, fd, false, 0);
    }
    pthread_mutex_unlock(&pool->guarded.lock);
    if (!fits) {
        (void)close(fd); // the header is written, so the pool can open the file again on demand
    }
}

bool segment_pool_yield(struct segment_pool *pool)
{
    pthread_mutex_lock(&pool->guarded.lock);
    bool closed = close_one_locked(pool, ROUNDS);
    pthread_mutex_unlock(&pool->guarded.lock);
    return closed;
}

// Closes the descriptor if it is open. It has no user.
static void close_locked(struct segment_pool *pool, struct segment_file_use *use)
{
    uint64_t word = atomic_exchange(&use->word, 0);
    check((word & USERS) == 0);
    if (word >> FD_SHIFT != 0) {
        open_remove_locked(pool, use);
        (void)close((int)(word >> FD_SHIFT) - 1); // unwritten pages are not needed
    }
}

void segment_pool_close(struct segment_pool *pool, struct segment *segment)
{
    pthread_mutex_lock(&pool->guarded.lock);
    close_locked(pool, &segment->paged);
    close_locked(pool, &segment->direct);
    pthread_mutex_unlock(&pool->guarded.lock);
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
        struct segment_file_use *use = pool->guarded.open[pool->guarded.open_count - 1];
        uint64_t word = atomic_exchange(&use->word, 0);
        check(word >> FD_SHIFT != 0);
        open_remove_locked(pool, use);
        (void)close((int)(word >> FD_SHIFT) - 1); // unwritten pages are not needed
    }
    free(pool->guarded.open);
    pthread_mutex_destroy(&pool->guarded.lock);
    pthread_mutex_destroy(&pool->queue.lock);
    pthread_cond_destroy(&pool->queue.wanted);
    pthread_cond_destroy(&pool->queue.returned);
}
