// SPDX-License-Identifier: Apache-2.0
// Lists the blocks of runs that were received completely and are being written or published. The
// index does not show them yet (rule 32). The run's owner adds and removes them; any worker may
// look without a message. Each name hashes to a set of FILL_HERE_WAYS slots. If the set is full, a
// new name replaces another. So the list is only a hint, which a reply uses to describe its source.
// A reader gets the bytes by joining the run.
#include "fill/fill_private.h"

static_assert(FILL_HERE_SLOTS % FILL_HERE_WAYS == 0, "the sets fill the table");

static uint64_t block_name(struct hash128 key, uint64_t etag_hash, uint32_t block_size_bytes,
                           uint64_t block)
{
    uint64_t words[5] = {key.lo, key.hi, etag_hash, block_size_bytes, block};
    return max_u64(hash64(words, sizeof(words), 0), 1);
}

// Returns the first slot of the name's set.
static _Atomic uint64_t *set_of(const struct fill_room *room, uint64_t name)
{
    return &room->here[name % (FILL_HERE_SLOTS / FILL_HERE_WAYS) * FILL_HERE_WAYS];
}

static bool set_has(_Atomic uint64_t *set, uint64_t name)
{
    bool has = false;
    for (unsigned i = 0; i < FILL_HERE_WAYS && !has; i++) {
        has = atomic_load_explicit(&set[i], memory_order_relaxed) == name;
    }
    return has;
}

static void set_add(_Atomic uint64_t *set, uint64_t name)
{
    if (set_has(set, name)) {
        return;
    }
    for (unsigned i = 0; i < FILL_HERE_WAYS; i++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&set[i], &none, name)) {
            return;
        }
    }
    atomic_store_explicit(&set[(name >> 32) % FILL_HERE_WAYS], name, memory_order_relaxed);
}

static void set_remove(_Atomic uint64_t *set, uint64_t name)
{
    for (unsigned i = 0; i < FILL_HERE_WAYS; i++) {
        uint64_t ours = name;
        (void)atomic_compare_exchange_strong(&set[i], &ours, 0); // fails if the slot was reused
    }
}

void fill_here_note(const struct fill *fill, bool is_here)
{
    if (fill->object == NULL || fill_is_unstored(fill)) {
        return;
    }
    check(fill->block_count > 0 && fill->block_size_bytes > 0);
    uint64_t etag_hash = hash64(fill->object->etag.ptr, fill->object->etag.len, 0);
    for (uint32_t i = 0; i < fill->block_count; i++) {
        uint64_t name =
            block_name(fill->key->hash, etag_hash, fill->block_size_bytes, fill->first_block + i);
        (is_here ? set_add : set_remove)(set_of(fill->fw->room, name), name);
    }
}

bool fill_here_has(const struct fill_worker *fw, struct hash128 key, uint64_t etag_hash,
                   uint32_t block_size_bytes, uint64_t block)
{
    uint64_t name = block_name(key, etag_hash, block_size_bytes, block);
    return set_has(set_of(fw->room, name), name);
}
