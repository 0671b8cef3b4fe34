// SPDX-License-Identifier: Apache-2.0
// Proves: the budget holds, waiters run exactly once when memory comes free, chunks survive travel
// between threads.
#include "test.h"

#include "base/check.h"
#include "base/chunk.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_int woken;

static void wake(void *ctx)
{
    (void)ctx;
    atomic_fetch_add(&woken, 1);
}

Test(chunk, budget_refuses_and_forced_goes_over)
{
    chunk_budget_init(3 * CHUNK_SIZE + 1);
    struct chunk *held[4];
    for (int i = 0; i < 3; i++) {
        held[i] = chunk_new();
        cr_assert_not_null(held[i]);
        cr_assert_eq((uintptr_t)held[i]->data % 4096, 0);
        memset(held[i]->data, i, CHUNK_SIZE);
    }
    cr_assert_null(chunk_new());
    held[3] = chunk_new_forced();
    cr_assert_eq(chunk_budget_used_bytes(), 4 * CHUNK_SIZE);
    cr_assert_geq(chunk_budget_peak_bytes(), 4 * CHUNK_SIZE);
    chunk_unref(chunk_ref(held[0]));
    cr_assert_eq(held[0]->data[5], 0);
    for (int i = 0; i < 4; i++) {
        chunk_unref(held[i]);
    }
    chunk_unref(NULL);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
}

// A kind may have a quarter of the budget, and all kinds but payload together seven eighths. A kind
// that is alone may have as much as it requests.
Test(chunk, charge_is_refused_beyond_the_share_of_its_kind)
{
    chunk_budget_init(800);
    cr_assert(chunk_budget_try_charge(BUDGET_BODIES, 0, 199));
    cr_assert_not(chunk_budget_try_charge(BUDGET_BODIES, 0, 2));
    cr_assert(chunk_budget_try_charge(BUDGET_BODIES, 0, 1));
    cr_assert(chunk_budget_try_charge(BUDGET_BODIES, 200, 100), "nobody else holds any");
    cr_assert(chunk_budget_try_charge(BUDGET_WRITES, 0, 100));
    chunk_budget_charge(BUDGET_CLIENTS, 300);
    cr_assert_not(chunk_budget_try_charge(BUDGET_WRITES, 0, 1));
    chunk_budget_discharge(BUDGET_CLIENTS, 300);
    cr_assert(chunk_budget_try_charge(BUDGET_WRITES, 0, 100));
    chunk_budget_discharge(BUDGET_BODIES, 300);
    chunk_budget_discharge(BUDGET_WRITES, 200);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
}

Test(chunk, waiters_run_once_when_there_is_room)
{
    chunk_budget_init(2 * CHUNK_SIZE);
    atomic_store(&woken, 0);
    struct chunk *a = chunk_new(), *b = chunk_new(), *over = chunk_new_forced();
    chunk_budget_wait(wake, NULL);
    chunk_budget_wait(wake, NULL);
    chunk_unref(over); // exactly at the maximum: no room yet
    cr_assert_eq(atomic_load(&woken), 0);
    chunk_unref(a);
    cr_assert_eq(atomic_load(&woken), 1);
    chunk_unref(b); // nothing in use: all that are left
    cr_assert_eq(atomic_load(&woken), 2);
    chunk_budget_wait(wake, NULL); // room already
    cr_assert_eq(atomic_load(&woken), 3);
}

Test(chunk, a_buffer_gets_less_as_the_budget_is_used_up)
{
    chunk_budget_init(4 * CHUNK_SIZE);
    struct chunk *chunks[4] = {chunk_new(), chunk_new()};
    cr_assert(!chunk_budget_is_short());
    cr_assert_eq(chunk_budget_share(1 << 20), 1 << 20);
    chunks[2] = chunk_new();
    cr_assert(chunk_budget_is_short());
    cr_assert_eq(chunk_budget_share(1 << 20), 1 << 17);
    cr_assert_eq(chunk_budget_share(3), 1); // never nothing
    chunks[3] = chunk_new();
    cr_assert_eq(chunk_budget_share(1 << 20), 1);
    for (int i = 0; i < 4; i++) {
        chunk_unref(chunks[i]);
    }
    cr_assert_eq(chunk_budget_share(1 << 20), 1 << 20);
}

Test(chunk, waiters_are_bounded)
{
    chunk_budget_init(CHUNK_SIZE);
    atomic_store(&woken, 0);
    struct chunk *a = chunk_new();
    for (int i = 0; i < 4096; i++) {
        chunk_budget_wait(wake, NULL);
    }
    cr_assert_eq(atomic_load(&woken), 0);
    chunk_budget_wait(wake, NULL);
    cr_assert_eq(atomic_load(&woken), 1); // the one too many ran at once
    chunk_unref(a);
    cr_assert_eq(atomic_load(&woken), 4097);
}

Test(chunk, charged_bytes_leave_less_for_chunks)
{
    chunk_budget_init(16 * CHUNK_SIZE);
    atomic_store(&woken, 0);
    chunk_budget_charge(BUDGET_CLIENTS, 8 * CHUNK_SIZE);
    chunk_budget_charge(BUDGET_ORIGINS, 6 * CHUNK_SIZE);
    cr_assert_eq(chunk_budget_used_bytes(), 14 * CHUNK_SIZE);
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_ORIGINS), 6 * CHUNK_SIZE);
    struct chunk *a = chunk_new(), *b = chunk_new();
    cr_assert(a != NULL && b != NULL);
    cr_assert_null(chunk_new());
    cr_assert(chunk_budget_is_short());
    chunk_budget_wait(wake, NULL);
    chunk_budget_discharge(BUDGET_CLIENTS, 8 * CHUNK_SIZE); // makes room as a chunk does
    cr_assert_eq(atomic_load(&woken), 1);
    cr_assert(!chunk_budget_is_short());
    chunk_budget_charge(BUDGET_CLIENTS, 100 * CHUNK_SIZE); // an eighth is left whatever happens
    chunk_unref(a);
    a = chunk_new();
    cr_assert_not_null(a);
    cr_assert_null(chunk_new());
    chunk_unref(a);
    chunk_unref(b);
    cr_assert_geq(chunk_budget_peak_bytes(), 108 * CHUNK_SIZE);
    chunk_budget_discharge(BUDGET_CLIENTS, 100 * CHUNK_SIZE);
    chunk_budget_discharge(BUDGET_ORIGINS, 6 * CHUNK_SIZE);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
}

Test(chunk, free_chunks_go_back_to_the_kernel)
{
    chunk_budget_init(64 * CHUNK_SIZE);
    struct chunk *chunks[64];
    for (unsigned i = 0; i < 64; i++) {
        chunks[i] = chunk_new();
    }
    cr_assert_eq(chunk_budget_resting_bytes(), 0);
    for (unsigned i = 0; i < 64; i++) {
        chunk_unref(chunks[i]);
    }
    cr_assert_leq(chunk_budget_resting_bytes(), 8 * CHUNK_SIZE);
    chunks[0] = chunk_new();
    cr_assert_leq(chunk_budget_resting_bytes(), 7 * CHUNK_SIZE);
    chunk_unref(chunks[0]);
}

// While memory is in use, freed chunks stay for the next request. Both stay within the budget.
Test(chunk, free_chunks_serve_the_next_burst)
{
    chunk_budget_init(64 * CHUNK_SIZE);
    struct chunk *chunks[64];
    for (unsigned i = 0; i < 48; i++) {
        chunks[i] = chunk_new();
    }
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 24; i < 48; i++) {
            chunk_unref(chunks[i]);
            uint64_t held = chunk_budget_resting_bytes() + chunk_budget_used_bytes();
            cr_assert_leq(held, 64 * CHUNK_SIZE);
        }
#ifndef FOREBAY_ASAN
        cr_assert_geq(chunk_budget_resting_bytes(), 22 * CHUNK_SIZE);
#endif
        for (unsigned i = 24; i < 48; i++) {
            chunks[i] = chunk_new();
        }
    }
    for (unsigned i = 0; i < 48; i++) {
        chunk_unref(chunks[i]);
    }
    cr_assert_leq(chunk_budget_resting_bytes(), 8 * CHUNK_SIZE);
}

// One side allocates, the other frees: free chunks must travel back, and the budget must hold
// throughout.
#define RING 64
#define TRAVELS 20000

static _Atomic(struct chunk *) ring[RING];
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_open = PTHREAD_COND_INITIALIZER;
static int room_seen;

static void open_gate(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&gate);
    room_seen = 1;
    pthread_cond_signal(&gate_open);
    pthread_mutex_unlock(&gate);
}

static void *drop_all(void *ctx)
{
    (void)ctx;
    for (int i = 0; i < TRAVELS; i++) {
        struct chunk *chunk;
        while ((chunk = atomic_exchange(&ring[i % RING], NULL)) == NULL) {
        }
        check(chunk->data[0] == (char)i && chunk->len == (uint32_t)i);
        chunk_unref(chunk);
    }
    return NULL;
}

#if !defined(FOREBAY_ASAN) && !defined(FOREBAY_TSAN)
// More pieces of memory than the kernel allows mappings, every other one freed. No request is
// refused, and freed memory is used again.
Test(chunk, a_large_budget_in_small_pieces)
{
    enum { MAPPINGS_MAX = 70000 }; // Linux's default and some more
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    unsigned mappings = 0;
    cr_assert(limit != NULL && fscanf(limit, "%u", &mappings) == 1);
    (void)fclose(limit);
    if (mappings > MAPPINGS_MAX) {
        cr_skip("vm.max_map_count is %u", mappings);
    }
    unsigned count = 2 * mappings + 4096;
    chunk_budget_init((uint64_t)count * CHUNK_SIZE);
    struct chunk **chunks = calloc(count, sizeof(*chunks));
    cr_assert_not_null(chunks);
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < count; i++) {
            chunks[i] = chunks[i] != NULL ? chunks[i] : chunk_new();
            cr_assert_not_null(chunks[i]);
        }
        for (unsigned i = 0; i < count; i += 2) {
            chunk_unref(chunks[i]);
            chunks[i] = NULL;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        chunk_unref(chunks[i]);
    }
    cr_assert_eq(chunk_budget_used_bytes(), 0);
    free(chunks);
}
#endif

Test(chunk, travels_between_threads_within_the_budget)
{
    chunk_budget_init(8 * CHUNK_SIZE);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, drop_all, NULL), 0);
    for (int i = 0; i < TRAVELS; i++) {
        struct chunk *chunk;
        while ((chunk = chunk_new()) == NULL) {
            room_seen = 0;
            chunk_budget_wait(open_gate, NULL);
            pthread_mutex_lock(&gate);
            while (!room_seen) {
                pthread_cond_wait(&gate_open, &gate);
            }
            pthread_mutex_unlock(&gate);
        }
        cr_assert_leq(chunk_budget_used_bytes(), 8 * CHUNK_SIZE);
        chunk->data[0] = (char)i;
        chunk->len = (uint32_t)i;
        struct chunk *empty = NULL;
        while (!atomic_compare_exchange_weak(&ring[i % RING], &empty, chunk)) {
            empty = NULL;
        }
    }
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
}

Test(chunk, a_counted_buffer_is_charged_for_its_capacity_until_it_is_done)
{
    struct buf b;
    chunk_budget_init(1u << 20);
    buf_init_counted(&b, 100000, BUDGET_WARM);
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_WARM), 0);
    for (unsigned i = 0; i < 100000; i++) {
        buf_append_char(&b, 'x');
        cr_assert_eq(chunk_budget_kind_bytes(BUDGET_WARM), b.cap);
    }
    buf_append_char(&b, 'x');
    cr_assert_not(buf_ok(&b));
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_WARM), b.cap);
    buf_done(&b);
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_WARM), 0);
    buf_append_cstr(&b, "again");
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_WARM), b.cap);
    buf_done(&b);
    cr_assert_eq(chunk_budget_kind_bytes(BUDGET_WARM), 0);
}
