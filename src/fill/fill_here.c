// SPDX-License-Identifier: Apache-2.0
// Which blocks are here though the index does not show them yet: of runs that have come whole and are
// being written or published (rule 32). Any worker may ask, without a message; the run's owner says so and
// takes it back. Two names in one slot: the later one is kept. So it is a hint, for what a reply says of
// itself; its bytes are had by joining the run.
#include "fill/fill_private.h"

static uint64_t block_name(struct hash128 key, uint64_t etag_hash, uint32_t block_size_bytes,
                           uint64_t block)
{
    uint64_t words[5] = {key.lo, key.hi, etag_hash, block_size_bytes, block};
    return max_u64(hash64(words, sizeof(words), 0), 1);
}

static _Atomic uint64_t *slot_of(const struct fill_room *room, uint64_t name)
{
    return &room->here[name % FILL_HERE_SLOTS];
}

void fill_here_note(const struct fill *fill, bool is_here)
{
    if (fill->object == NULL) {
        return;
    }
    uint64_t etag_hash = hash64(fill->object->etag.ptr, fill->object->etag.len, 0);
    for (uint32_t i = 0; i < fill->block_count; i++) {
        uint64_t name =
            block_name(fill->key->hash, etag_hash, fill->block_size_bytes, fill->first_block + i);
        _Atomic uint64_t *slot = slot_of(fill->fw->room, name);
        uint64_t ours = name;
        if (is_here) {
            atomic_store_explicit(slot, name, memory_order_relaxed);
        } else {
            (void)atomic_compare_exchange_strong(slot, &ours, 0); // else it is another's by now
        }
    }
}

bool fill_here_has(const struct fill_worker *fw, struct hash128 key, uint64_t etag_hash,
                   uint32_t block_size_bytes, uint64_t block)
{
    uint64_t name = block_name(key, etag_hash, block_size_bytes, block);
    return atomic_load_explicit(slot_of(fw->room, name), memory_order_relaxed) == name;
}
