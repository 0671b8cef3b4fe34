// SPDX-License-Identifier: Apache-2.0
// Proves: pieces have the requested size and keep their bytes when they grow. Freed pieces serve
// the next request on the same thread, up to a bound for each size and one for all. Any thread may
// free any piece.
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "net/transfer_private.h"
#include "test.h"

static bool holds(const char *piece, char byte, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (piece[i] != byte) {
            return false;
        }
    }
    return true;
}

Test(transfer_memory, pieces_of_any_size_are_whole_and_apart)
{
    transfer_memory_keep();
    for (unsigned round = 0; round < 3; round++) {
        for (size_t size = 1; size < 300000; size += 1 + size / 3) {
            for (size_t bytes = size > 2 ? size - 2 : 1; bytes <= size + 34; bytes++) {
                char *a = transfer_memory_alloc(bytes), *b = transfer_memory_alloc(bytes);
                cr_assert_eq((uintptr_t)a % _Alignof(max_align_t), 0);
                memset(a, 'a', bytes);
                memset(b, 'b', bytes);
                cr_assert(holds(a, 'a', bytes));
                transfer_memory_free(a);
                cr_assert(holds(b, 'b', bytes));
                transfer_memory_free(b);
            }
        }
    }
    transfer_memory_free(NULL);
    cr_assert_null(transfer_memory_alloc(SIZE_MAX));
    cr_assert_null(transfer_memory_alloc(SIZE_MAX - 15));
}

Test(transfer_memory, growing_keeps_the_bytes)
{
    transfer_memory_keep();
    char *piece = transfer_memory_realloc(NULL, 1);
    *piece = 'x';
    for (size_t bytes = 2; bytes < 1000000; bytes += 1 + bytes / 2) {
        piece = transfer_memory_realloc(piece, bytes);
        cr_assert(holds(piece, 'x', bytes > 2 ? bytes * 2 / 3 : 1));
        memset(piece, 'x', bytes);
    }
    cr_assert_null(transfer_memory_realloc(piece, SIZE_MAX));
    piece = transfer_memory_realloc(piece, 10);
    cr_assert(holds(piece, 'x', 10));
    transfer_memory_free(piece);
}

static void *free_it(void *piece)
{
    transfer_memory_free(piece);
    return NULL;
}

static void *keep_and_free(void *piece)
{
    transfer_memory_keep();
    transfer_memory_free(piece);
    return transfer_memory_alloc(100); // perhaps the very one
}

Test(transfer_memory, any_thread_may_free_any_piece)
{
    void *(*const threads[])(void *) = {free_it, keep_and_free};
    transfer_memory_keep();
    for (unsigned i = 0; i < 2; i++) {
        pthread_t thread;
        void *came = NULL;
        cr_assert_eq(pthread_create(&thread, NULL, threads[i], transfer_memory_alloc(100)), 0);
        cr_assert_eq(pthread_join(thread, &came), 0);
        transfer_memory_free(came);
    }
}

Test(transfer_memory, many_that_are_freed_at_once)
{
    enum { COUNT = 10000 };
    static char *pieces[COUNT];
    transfer_memory_keep();
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            pieces[i] = transfer_memory_alloc(200);
            memset(pieces[i], (char)i, 200);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            cr_assert(holds(pieces[i], (char)i, 200));
            transfer_memory_free(pieces[i]);
        }
    }
}

// Bytes that malloc has handed out. Always 0 where a sanitizer replaces malloc, which this test is
// not about.
static size_t malloced_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

Test(transfer_memory, memory_that_a_thread_keeps_is_bounded)
{
    enum { COUNT = 40 };
    static char *pieces[COUNT];
    transfer_memory_keep();
    size_t before = malloced_bytes();
    for (size_t bytes = 100; bytes < 128 << 10; bytes += bytes / 3) {
        for (unsigned i = 0; i < COUNT; i++) {
            pieces[i] = transfer_memory_alloc(bytes);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            transfer_memory_free(pieces[i]);
        }
    }
    size_t waiting = malloced_bytes() - before, overhead = TRANSFER_MEMORY_KEPT_MOST / 4;
    cr_assert_leq(waiting, TRANSFER_MEMORY_KEPT_MOST + overhead);
    if (before > 0) {
        cr_assert_gt(waiting, TRANSFER_MEMORY_KEPT_MOST / 2);
    }
}
