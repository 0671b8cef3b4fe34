// SPDX-License-Identifier: Apache-2.0
// Proves: of the bytes that a run of read-ahead brings, each counts as unread once, and bytes of
// other runs never do.
#include "fill/fill_private.h"

#include "test.h"

#define BLOCK (1u << 20)
#define BLOCKS 12u
#define SIZE ((uint64_t)BLOCKS * BLOCK - 100)

static _Atomic uint64_t ahead[FILL_AHEAD_MARKS];
static struct fill_room room = {.ahead = ahead};
static struct fill_worker fw = {.room = &room};
static struct store_object object = {.size_bytes = SIZE, .block_size_bytes = BLOCK};

static void store_run(struct object_key *key, uint64_t first, uint32_t count, bool is_readahead)
{
    struct fill fill = {.fw = &fw,
                        .key = key,
                        .first_block = first,
                        .block_count = count,
                        .block_size_bytes = BLOCK,
                        .is_readahead = is_readahead};
    fill_ahead_mark(&fill);
}

static uint64_t read_bytes(const struct object_key *key, uint64_t first, uint64_t end)
{
    return fill_ahead_read(&fw, key, &object, first, end);
}

Test(fill_ahead, bytes_count_as_unread_once)
{
    for (uint64_t n = 0; n < 20000; n++) {
        struct object_key key = {.hash = {n, n * n}};
        cr_assert_eq(read_bytes(&key, 0, SIZE), 0);
        store_run(&key, 0, BLOCKS, true);
        cr_assert_eq(read_bytes(&key, 0, SIZE), SIZE, "of object %u", (unsigned)n);
        cr_assert_eq(read_bytes(&key, 0, SIZE), 0);
    }
}

Test(fill_ahead, parts_of_blocks_count_once_and_the_rest_later)
{
    struct object_key key = {.hash = {1, 2}};
    store_run(&key, 2, 4, true);
    cr_assert_eq(read_bytes(&key, 0, 2 * BLOCK + 7), 7);
    cr_assert_eq(read_bytes(&key, 2 * BLOCK, 2 * BLOCK + 10), 3);
    cr_assert_eq(read_bytes(&key, 2 * BLOCK + 10, 3 * BLOCK + 5), BLOCK - 10 + 5);
    cr_assert_eq(read_bytes(&key, 2 * BLOCK, 3 * BLOCK + 5), 0);
    cr_assert_eq(read_bytes(&key, 0, SIZE), 3 * BLOCK - 5);
    cr_assert_eq(read_bytes(&key, SIZE, SIZE), 0);
}

// Such as a warm job, or a reader for whom a block was fetched after it had been evicted unread.
Test(fill_ahead, another_run_of_the_same_blocks_makes_them_hits)
{
    struct object_key key = {.hash = {1, 2}};
    store_run(&key, 0, BLOCKS, true);
    store_run(&key, 3, 2, false);
    cr_assert_eq(read_bytes(&key, 0, SIZE), SIZE - 2 * BLOCK);
}

Test(fill_ahead, a_block_fetched_ahead_again_is_unread_again)
{
    struct object_key key = {.hash = {1, 2}};
    store_run(&key, 0, 1, true);
    cr_assert_eq(read_bytes(&key, 0, 1000), 1000);
    store_run(&key, 0, 1, true);
    cr_assert_eq(read_bytes(&key, 0, BLOCK), BLOCK);
}

// The latest blocks are found, whatever was never read before.
Test(fill_ahead, more_unread_blocks_than_there_are_marks)
{
    struct object_key key = {.hash = {1, 2}};
    object.size_bytes = UINT64_MAX;
    for (uint64_t block = 0; block < 3 * FILL_AHEAD_MARKS; block++) {
        store_run(&key, block, 1, true);
        if (block % 2 == 0) {
            cr_assert_eq(read_bytes(&key, block * BLOCK, (block + 1) * BLOCK), BLOCK);
        }
    }
}

// The blocks of many sequences at once keep their marks.
Test(fill_ahead, a_hundred_objects_are_unread_at_a_time)
{
    struct object_key keys[100];
    for (unsigned n = 0; n < ARRAY_LEN(keys); n++) {
        keys[n] = (struct object_key){.hash = {hash64(&n, sizeof(n), 1), hash64(&n, sizeof(n), 2)}};
        store_run(&keys[n], 0, BLOCKS, true);
    }
    for (unsigned n = 0; n < ARRAY_LEN(keys); n++) {
        cr_assert_eq(read_bytes(&keys[n], 0, SIZE), SIZE);
    }
}
