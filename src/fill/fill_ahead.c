// SPDX-License-Identifier: Apache-2.0
// Remembers which blocks read-ahead fetched and nobody has read yet. When such bytes are read for
// the first time, they count as sent by the origin, not by the cache.
//
// A mark names a block of an object, and says up to where readers have read the block. When the
// owner begins to store a run, it marks the run's blocks if read-ahead began the run, and otherwise
// removes their marks. So marks of blocks that were evicted, or never came, do no harm. Readers
// move a mark on, and remove it at the block's end.
//
// All workers share the marks. A mark is lost if its set is full and another one takes its place,
// or if two workers write to its place at the same time. Then the first read of its block counts as
// a hit.
#include "fill/fill_private.h"

#define MARK_WAYS 4u       // places in a set
#define MARK_READ_BITS 24u // the low bits say how many bytes of the block are read
#define MARK_READ_MASK ((UINT64_C(1) << MARK_READ_BITS) - 1)
#define MARK_USED (UINT64_C(1) << MARK_READ_BITS) // 0 is an empty place
static_assert(STORE_BLOCK_SIZE_MAX <= 1u << MARK_READ_BITS, "every position in a block fits");

// Returns the mark of a block of which nothing is read. It spreads the blocks of an object evenly
// over the sets.
static uint64_t mark_of(const struct object_key *key, uint64_t block)
{
    uint64_t mark = ((key->hash.lo + block) * UINT64_C(0x9e3779b97f4a7c15)) ^ key->hash.hi;
    return (mark & ~MARK_READ_MASK) | MARK_USED;
}

static _Atomic uint64_t *set_of(struct fill_worker *fw, uint64_t mark)
{
    uint64_t sets = FILL_AHEAD_MARKS / MARK_WAYS;
    return &fw->room->ahead[((mark >> 32) * sets >> 32) * MARK_WAYS];
}

// Returns the place of `wanted` in the set, however much of the block is read. NULL: there is none.
static _Atomic uint64_t *find(_Atomic uint64_t *set, uint64_t wanted)
{
    for (unsigned i = 0; i < MARK_WAYS; i++) {
        uint64_t value = atomic_load_explicit(&set[i], memory_order_relaxed);
        if ((value & ~MARK_READ_MASK) == wanted) {
            return &set[i];
        }
    }
    return NULL;
}

static void mark_set(struct fill_worker *fw, uint64_t mark)
{
    _Atomic uint64_t *set = set_of(fw, mark), *place = find(set, mark);
    place = place != NULL ? place : find(set, 0);
    place = place != NULL ? place : &set[(mark >> MARK_READ_BITS >> 1) % MARK_WAYS];
    atomic_store_explicit(place, mark, memory_order_relaxed);
}

static void mark_remove(struct fill_worker *fw, uint64_t mark)
{
    _Atomic uint64_t *place = find(set_of(fw, mark), mark);
    if (place != NULL) {
        atomic_store_explicit(place, 0, memory_order_relaxed);
    }
}

void fill_ahead_mark(const struct fill *fill)
{
    for (unsigned i = 0; i < fill->block_count; i++) {
        uint64_t mark = mark_of(fill->key, fill->first_block + i);
        if (fill->is_readahead) {
            mark_set(fill->fw, mark);
        } else {
            mark_remove(fill->fw, mark);
        }
    }
}

// Returns how many bytes from `first` to `end` of a block nobody has read. Both count from the
// block's first byte. `is_rest`: the block ends at `end`.
static uint64_t mark_read(struct fill_worker *fw, uint64_t mark, uint64_t first, uint64_t end,
                          bool is_rest)
{
    _Atomic uint64_t *place = find(set_of(fw, mark), mark);
    uint64_t value = place != NULL ? atomic_load_explicit(place, memory_order_relaxed) : 0;
    uint64_t read_end = value & MARK_READ_MASK;
    if ((value & ~MARK_READ_MASK) != mark || read_end >= end) {
        return 0;
    }
    // If it fails, another reader is moving the mark.
    (void)atomic_compare_exchange_strong(place, &value, is_rest ? 0 : mark | end);
    return end - max_u64(first, read_end);
}

uint64_t fill_ahead_read(struct fill_worker *fw, const struct object_key *key,
                         const struct store_object *object, uint64_t first_byte, uint64_t end_byte)
{
    uint64_t size = object->block_size_bytes, unread = 0;
    check(size > 0 && end_byte <= object->size_bytes);
    for (uint64_t at = first_byte; at < end_byte;) {
        uint64_t begin = at / size * size, block_end = min_u64(begin + size, object->size_bytes);
        uint64_t to = min_u64(block_end, end_byte);
        unread += mark_read(fw, mark_of(key, at / size), at - begin, to - begin, to == block_end);
        at = to;
    }
    return unread;
}
