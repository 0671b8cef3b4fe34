// SPDX-License-Identifier: Apache-2.0
// Proves: borders of pieces count, short and long inputs take the same hash, errors have rows,
// circles are found.
#include "test.h"

#include "base/circle.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <xxhash.h>

static struct hash128 hash2(struct span a, struct span b, uint64_t seed)
{
    struct span pieces[] = {a, b};
    return hash128_of(pieces, 2, seed);
}

Test(hash, piece_borders_and_seed_count)
{
    struct hash128 h = hash2(SPAN("a"), SPAN("bc"), 1);
    cr_assert(hash128_equal(h, hash2(SPAN("a"), SPAN("bc"), 1)));
    cr_assert_not(hash128_equal(h, hash2(SPAN("ab"), SPAN("c"), 1)));
    cr_assert_not(hash128_equal(h, hash2(SPAN("a"), SPAN("bc"), 2)));
    cr_assert_not(hash128_equal(hash2(SPAN(""), SPAN("x"), 1), hash2(SPAN("x"), SPAN(""), 1)));
}

// The value is part of the disk format.
Test(hash, is_frozen)
{
    struct hash128 h = hash2(SPAN("bucket"), SPAN("key"), 42);
    cr_assert_eq(h.hi, 0x728d4d6641956ef8u);
    cr_assert_eq(h.lo, 0x94bbe295ae43565cu);
}

// Both ways hash the same bytes: length, piece, length, piece.
Test(hash, around_the_size_where_the_way_changes)
{
    static char bytes[2000], joined[2100];
    memset(bytes, 'k', sizeof(bytes));
    for (uint64_t len = 1400; len < 1700; len++) {
        uint64_t first = htole64(1), second = htole64(len);
        memcpy(joined, &first, 8);
        joined[8] = 'b';
        memcpy(joined + 9, &second, 8);
        memcpy(joined + 17, bytes, len);
        XXH128_hash_t expected = XXH3_128bits_withSeed(joined, 17 + len, 9);
        struct hash128 h = hash2(SPAN("b"), (struct span){bytes, len}, 9);
        cr_assert_eq(h.hi, expected.high64);
        cr_assert_eq(h.lo, expected.low64);
    }
}

Test(hash, random_bytes_differ)
{
    cr_assert_neq(random_u64(), random_u64());
}

Test(error, every_row_is_complete)
{
    for (int e = 0; e < ERR_COUNT_; e++) {
        const struct error_row *row = error_row((enum err)e);
        cr_assert_not_null(row->name);
        cr_assert_not_null(row->s3_code);
        cr_assert_not_null(row->text);
        cr_assert(row->status >= 200 && row->status < 600);
    }
    cr_assert_eq(error_from_errno(ENOSPC), ERR_DISK_FULL);
    cr_assert_eq(error_from_errno(EDQUOT), ERR_DISK_FULL);
    cr_assert_eq(error_from_errno(ENOENT), ERR_NOT_FOUND);
    cr_assert_eq(error_from_errno(EACCES), ERR_PERMISSION);
    cr_assert_eq(error_from_errno(EIO), ERR_IO);
    cr_assert_str_eq(error_name(ERR_ORIGIN_TIMEOUT), "ORIGIN_TIMEOUT");
}

Test(hash, a_chain_that_leads_in_a_circle)
{
    for (uint64_t tail = 0; tail < 20; tail++) {
        for (uint64_t round = 1; round < 20; round++) {
            struct circle circle = {0};
            uint64_t steps = 0, at = 0;
            while (!circle_closes(&circle, at)) {
                at = at + 1 < tail + round ? at + 1 : tail;
                cr_assert(++steps <= 4 * (tail + round), "tail %d round %d", (int)tail, (int)round);
            }
        }
    }
    struct circle none = {0};
    for (uint64_t i = 0; i < 1000; i++) {
        cr_assert(!circle_closes(&none, i));
    }
}
