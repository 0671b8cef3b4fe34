// SPDX-License-Identifier: Apache-2.0
// Payload memory and its budget. Any thread.
//
// The reference count of a chunk, the numbers of the budget and the number of waiters are atomic. A
// chunk without references becomes a resting chunk. It is first put on a small stack of the thread
// that dropped the last reference. When that stack is full, 16 chunks are moved to a pool that all
// threads share, under `pool.lock`. The pool is needed because the owner of a fill allocates
// chunks, and readers on other threads drop them. If neither has room, the chunk is freed. Under
// ASan no chunk rests, so that a use after the last unref is detected.
//
// At most as many chunks rest as are in use. So the next burst reuses the memory of the last one,
// without the page faults and the zeroing that fresh pages cost. Resting chunks and chunks in use
// together stay within the budget. As use falls, each returned chunk also frees one resting chunk,
// until the resting chunks take an eighth of the budget.
//
// Each chunk is a mapping of its own, so that freeing it returns its memory to the kernel at once.
// A heap might keep the memory, because one small allocation after the chunk prevents the heap from
// shrinking, and each thread has its own heap. `waiting.lock`, `pool.lock` and `stranded.lock` are
// never held together.
#include "base/chunk.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"

#define LOCAL_MAX 32u
#define TRANSFER 16u
#define POOL_MAX 4096u // 256 MiB
#define WAITERS_MAX 4096u

static atomic_ulong budget_max;
static atomic_ulong budget_kinds[BUDGET_KINDS];
static atomic_ulong budget_peak; // highest sum of all kinds so far
static atomic_ulong resting;     // bytes of resting chunks

struct waiter {
    void (*fn)(void *ctx);
    void *ctx;
};

static atomic_uint waiter_count; // length of waiting.queue, readable without the lock
static struct {
    pthread_mutex_t lock;
    unsigned first, count; // `queue` is a ring: position of the oldest waiter, and their number
    struct waiter queue[WAITERS_MAX];
} waiting = {.lock = PTHREAD_MUTEX_INITIALIZER};

// --- Resting chunks ------------------------------------------------------------------------------

#ifdef FOREBAY_ASAN
static void chunk_destroy(struct chunk *chunk)
{
    free(chunk->data);
    free(chunk);
}

static struct chunk *chunk_create(void)
{
    struct chunk *chunk = malloc(sizeof(*chunk));
    check(chunk != NULL);
    void *data = NULL;
    check(posix_memalign(&data, 4096, CHUNK_SIZE) == 0);
    chunk->data = data;
    return chunk;
}

static struct chunk *chunk_take(void)
{
    return chunk_create();
}

static void chunk_rest(struct chunk *chunk)
{
    chunk_destroy(chunk);
}
#else
static struct {
    pthread_mutex_t lock;
    struct chunk *first;
} stranded = {.lock = PTHREAD_MUTEX_INITIALIZER};

// The kernel merges neighbouring mappings into one, so unmapping a chunk in the middle makes two.
// If the process already has as many mappings as it may have (vm.max_map_count), munmap() fails.
// Then only the pages are freed, and the address range is reused for the next chunk.
static void chunk_strand(struct chunk *chunk)
{
    check(madvise(chunk->data, CHUNK_SIZE, MADV_DONTNEED) == 0);
    pthread_mutex_lock(&stranded.lock);
    chunk->next = stranded.first;
    stranded.first = chunk;
    pthread_mutex_unlock(&stranded.lock);
}

static void chunk_destroy(struct chunk *chunk)
{
    if (munmap(chunk->data, CHUNK_SIZE) == 0) {
        free(chunk);
    } else {
        chunk_strand(chunk);
    }
}

static struct chunk *chunk_create(void)
{
    pthread_mutex_lock(&stranded.lock);
    struct chunk *chunk = stranded.first;
    if (chunk != NULL) {
        stranded.first = chunk->next;
    }
    pthread_mutex_unlock(&stranded.lock);
    if (chunk != NULL) {
        return chunk;
    }
    chunk = malloc(sizeof(*chunk));
    check(chunk != NULL);
    void *data = mmap(NULL, CHUNK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(data != MAP_FAILED);
    chunk->data = data;
    return chunk;
}

static struct {
    pthread_mutex_t lock;
    unsigned count;
    struct chunk *chunks[POOL_MAX];
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct local {
    unsigned count;
    struct chunk *chunks[LOCAL_MAX];
};

static _Thread_local struct local *local;
static pthread_key_t local_key; // the key's destructor frees a thread's stack when the thread ends
static pthread_once_t local_once = PTHREAD_ONCE_INIT;

static void local_free(void *ctx)
{
    struct local *mine = ctx;
    for (unsigned i = 0; i < mine->count; i++) {
        atomic_fetch_sub_explicit(&resting, CHUNK_SIZE, memory_order_relaxed);
        chunk_destroy(mine->chunks[i]);
    }
    free(mine);
    local = NULL;
}

static void local_key_make(void)
{
    check(pthread_key_create(&local_key, local_free) == 0);
}

static struct local *local_get(void)
{
    if (local == NULL) {
        check(pthread_once(&local_once, local_key_make) == 0);
        local = calloc(1, sizeof(*local));
        check(local != NULL);
        check(pthread_setspecific(local_key, local) == 0);
    }
    return local;
}

// Returns a resting chunk, from this thread's stack or the pool. Returns NULL if none rests.
static struct chunk *chunk_wake(struct local *mine)
{
    if (mine->count == 0) {
        pthread_mutex_lock(&pool.lock);
        while (pool.count > 0 && mine->count < TRANSFER) {
            mine->chunks[mine->count++] = pool.chunks[--pool.count];
        }
        pthread_mutex_unlock(&pool.lock);
    }
    if (mine->count == 0) {
        return NULL;
    }
    atomic_fetch_sub_explicit(&resting, CHUNK_SIZE, memory_order_relaxed);
    return mine->chunks[--mine->count];
}

static struct chunk *chunk_take(void)
{
    struct chunk *chunk = chunk_wake(local_get());
    return chunk != NULL ? chunk : chunk_create();
}

static unsigned long resting_max(void)
{
    unsigned long max = atomic_load_explicit(&budget_max, memory_order_relaxed);
    unsigned long used = atomic_load_explicit(&budget_kinds[BUDGET_PAYLOAD], memory_order_relaxed);
    return max_u64(max / 8, min_u64(used, max - min_u64(used, max)));
}

static void chunk_rest(struct chunk *chunk)
{
    struct local *mine = local_get();
    unsigned long most = resting_max();
    unsigned long others = atomic_fetch_add_explicit(&resting, CHUNK_SIZE, memory_order_relaxed);
    if (others + CHUNK_SIZE > most) {
        atomic_fetch_sub_explicit(&resting, CHUNK_SIZE, memory_order_relaxed);
        chunk_destroy(chunk);
        struct chunk *surplus = others > most ? chunk_wake(mine) : NULL;
        if (surplus != NULL) {
            chunk_destroy(surplus);
        }
        return;
    }
    if (mine->count == LOCAL_MAX) {
        pthread_mutex_lock(&pool.lock);
        while (pool.count < POOL_MAX && mine->count > LOCAL_MAX - TRANSFER) {
            pool.chunks[pool.count++] = mine->chunks[--mine->count];
        }
        pthread_mutex_unlock(&pool.lock);
    }
    if (mine->count < LOCAL_MAX) {
        mine->chunks[mine->count++] = chunk;
    } else {
        atomic_fetch_sub_explicit(&resting, CHUNK_SIZE, memory_order_relaxed);
        chunk_destroy(chunk);
    }
}
#endif

// --- The budget ----------------------------------------------------------------------------------

void chunk_budget_init(uint64_t max_bytes)
{
    atomic_store(&budget_max, max_bytes);
}

uint64_t chunk_budget_max_bytes(void)
{
    return atomic_load(&budget_max);
}

uint64_t chunk_budget_kind_bytes(enum chunk_budget_kind kind)
{
    return atomic_load(&budget_kinds[kind]);
}

static unsigned long held_bytes(void)
{
    unsigned long held = 0;
    for (unsigned i = 0; i < BUDGET_KINDS; i++) {
        held += i != BUDGET_PAYLOAD ? atomic_load(&budget_kinds[i]) : 0;
    }
    return held;
}

uint64_t chunk_budget_used_bytes(void)
{
    return atomic_load(&budget_kinds[BUDGET_PAYLOAD]) + held_bytes();
}

uint64_t chunk_budget_peak_bytes(void)
{
    return atomic_load(&budget_peak);
}

uint64_t chunk_budget_resting_bytes(void)
{
    return atomic_load(&resting);
}

// Returns the limit, in bytes, of all chunks together at present.
static unsigned long payload_max(void)
{
    unsigned long max = atomic_load_explicit(&budget_max, memory_order_relaxed);
    return max - min_u64(held_bytes(), max - max / 8);
}

static unsigned long payload_used(void)
{
    return atomic_load(&budget_kinds[BUDGET_PAYLOAD]);
}

bool chunk_budget_kind_is_short(enum chunk_budget_kind kind)
{
    uint64_t max = chunk_budget_max_bytes();
    return max > 0 && chunk_budget_kind_bytes(kind) > max / 8;
}

bool chunk_budget_is_full(void)
{
    uint64_t max = chunk_budget_max_bytes();
    return max > 0 && held_bytes() >= max - max / 8;
}

bool chunk_budget_is_used_up(void)
{
    return payload_used() + CHUNK_SIZE > payload_max();
}

bool chunk_budget_is_short(void)
{
    return payload_used() > payload_max() / 2;
}

bool chunk_budget_is_ample(void)
{
    return payload_used() < payload_max() / 8;
}

uint64_t chunk_budget_lean(uint64_t plenty)
{
    return chunk_budget_is_short() ? plenty / 8 : plenty;
}

uint64_t chunk_budget_share(uint64_t plenty)
{
    return chunk_budget_is_used_up() ? 1 : max_u64(chunk_budget_lean(plenty), 1);
}

static void note_peak(void)
{
    unsigned long used = chunk_budget_used_bytes();
    unsigned long peak = atomic_load_explicit(&budget_peak, memory_order_relaxed);
    while (used > peak && !atomic_compare_exchange_weak(&budget_peak, &peak, used)) {
    }
}

static struct chunk *chunk_counted(void)
{
    note_peak();
    struct chunk *chunk = chunk_take();
    atomic_init(&chunk->refs, 1);
    chunk->len = 0;
    return chunk;
}

struct chunk *chunk_new(void)
{
    unsigned long max = payload_max();
    unsigned long used = payload_used();
    do {
        if (used + CHUNK_SIZE > max) {
            return NULL;
        }
    } while (
        !atomic_compare_exchange_weak(&budget_kinds[BUDGET_PAYLOAD], &used, used + CHUNK_SIZE));
    return chunk_counted();
}

struct chunk *chunk_new_forced(void)
{
    atomic_fetch_add(&budget_kinds[BUDGET_PAYLOAD], CHUNK_SIZE);
    return chunk_counted();
}

struct chunk *chunk_ref(struct chunk *chunk)
{
    unsigned before = atomic_fetch_add_explicit(&chunk->refs, 1, memory_order_relaxed);
    check(before > 0);
    return chunk;
}

// Runs waiters, oldest first, as many as there are free chunks. If no chunk is in use, runs all of
// them, because no chunk will be freed later that could wake the rest.
static void wake_waiters(void)
{
    struct waiter woken[64];
    unsigned woken_count;
    do {
        unsigned long max = payload_max();
        unsigned long used = payload_used();
        unsigned long room = used == 0 ? WAITERS_MAX : used < max ? (max - used) / CHUNK_SIZE : 0;
        woken_count = 0;
        pthread_mutex_lock(&waiting.lock);
        while (waiting.count > 0 && woken_count < room && woken_count < 64) {
            woken[woken_count++] = waiting.queue[waiting.first];
            waiting.first = (waiting.first + 1) % WAITERS_MAX;
            waiting.count--;
        }
        atomic_store(&waiter_count, waiting.count);
        pthread_mutex_unlock(&waiting.lock);
        for (unsigned i = 0; i < woken_count; i++) {
            woken[i].fn(woken[i].ctx);
        }
        // After 64 waiters there may be more room, so repeat. The loop ends, because a waiter that
        // ran has left the queue, and one that queues again runs only while there is room.
    } while (woken_count == 64);
}

void chunk_unref(struct chunk *chunk)
{
    if (chunk == NULL) {
        return;
    }
    unsigned before = atomic_fetch_sub_explicit(&chunk->refs, 1, memory_order_acq_rel);
    check(before > 0);
    if (before > 1) {
        return;
    }
    chunk_rest(chunk);
    chunk_budget_discharge(BUDGET_PAYLOAD, CHUNK_SIZE);
}

void chunk_budget_charge(enum chunk_budget_kind kind, uint64_t bytes)
{
    atomic_fetch_add(&budget_kinds[kind], bytes);
    note_peak();
}

bool chunk_budget_try_charge(enum chunk_budget_kind kind, uint64_t held, uint64_t bytes)
{
    unsigned long max = atomic_load_explicit(&budget_max, memory_order_relaxed);
    unsigned long had = atomic_load(&budget_kinds[kind]);
    do {
        if (max > 0 && had > held &&
            (had + bytes > max / 4 || held_bytes() + bytes > max - max / 8)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&budget_kinds[kind], &had, had + bytes));
    note_peak();
    return true;
}

void chunk_budget_discharge(enum chunk_budget_kind kind, uint64_t bytes)
{
    unsigned long used = atomic_fetch_sub(&budget_kinds[kind], bytes);
    check(used >= bytes);
    // This function first changes the bytes in use and then reads the number of waiters.
    // chunk_budget_wait() first changes the number of waiters and then reads the bytes. All four
    // steps are sequentially consistent, so at least one of the two threads sees the other's
    // change.
    if (atomic_load(&waiter_count) > 0) {
        wake_waiters();
    }
}

void chunk_budget_wait(void (*fn)(void *ctx), void *ctx)
{
    bool queued = false;
    pthread_mutex_lock(&waiting.lock);
    if (waiting.count < WAITERS_MAX) {
        waiting.queue[(waiting.first + waiting.count) % WAITERS_MAX] = (struct waiter){fn, ctx};
        waiting.count++;
        atomic_store(&waiter_count, waiting.count);
        queued = true;
    }
    pthread_mutex_unlock(&waiting.lock);
    if (!queued) {
        fn(ctx);
    } else if (payload_used() + CHUNK_SIZE <= payload_max()) {
        wake_waiters(); // memory may have become free since the chunk was refused
    }
}
