// SPDX-License-Identifier: Apache-2.0
// Proves: while the table has room, each block that was added is found, and no other.
#include "fill/fill_private.h"

#include "test.h"

#define BLOCKS 12u

static _Atomic uint64_t here[FILL_HERE_SLOTS];
static struct fill_room room = {.here = here};
static struct fill_worker fw = {.room = &room};

static unsigned found(const struct fill *fill)
{
    uint64_t etag_hash = hash64(fill->object->etag.ptr, fill->object->etag.len, 0);
    unsigned count = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        count += fill_here_has(&fw, fill->key->hash, etag_hash, fill->block_size_bytes, i);
    }
    return count;
}

Test(fill_here, each_block_of_a_run_is_found_until_it_is_taken_back)
{
    for (uint64_t n = 0; n < 20000; n++) {
        struct object_key key = {.hash = {n, n * n}};
        struct store_object object = {.etag = SPAN("\"a\"")};
        struct fill fill = {.fw = &fw,
                            .key = &key,
                            .object = &object,
                            .block_size_bytes = 1u << 20,
                            .block_count = BLOCKS};
        cr_assert_eq(found(&fill), 0);
        fill_here_note(&fill, true);
        fill_here_note(&fill, true);
        cr_assert_eq(found(&fill), BLOCKS, "of run %u", (unsigned)n);
        fill_here_note(&fill, false);
        cr_assert_eq(found(&fill), 0);
    }
}

// The latest blocks are found, whatever the slots held before.
Test(fill_here, more_blocks_than_there_are_slots)
{
    struct object_key key = {.hash = {1, 2}};
    struct store_object object = {.etag = SPAN("\"a\"")};
    struct fill fill = {
        .fw = &fw, .key = &key, .object = &object, .block_size_bytes = 1u << 20, .block_count = 1};
    uint64_t etag_hash = hash64(object.etag.ptr, object.etag.len, 0);
    for (fill.first_block = 0; fill.first_block < 3 * FILL_HERE_SLOTS; fill.first_block++) {
        fill_here_note(&fill, true);
        cr_assert(fill_here_has(&fw, key.hash, etag_hash, fill.block_size_bytes, fill.first_block));
    }
    for (fill.first_block = 0; fill.first_block < 3 * FILL_HERE_SLOTS; fill.first_block++) {
        fill_here_note(&fill, false);
    }
}
