// SPDX-License-Identifier: Apache-2.0
// An index of headers by name: buckets of a hash, each a chain in order of arrival. Peers choose
// the names, so the hash is keyed and no peer can make one chain long. Any thread.
#include "base/headers_index.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"

static_assert(HEADERS_MAX < HEADERS_INDEX_NONE, "positions fit");

static uint64_t seed_of_process(void)
{
    static _Atomic uint64_t seed; // key of the hash; 0: not chosen yet
    uint64_t have = atomic_load_explicit(&seed, memory_order_relaxed);
    if (have == 0) {
        uint64_t chosen = random_u64() | 1;
        have = atomic_compare_exchange_strong(&seed, &have, chosen) ? chosen : have;
    }
    return have;
}

static unsigned bucket_of(struct span name)
{
    char lower[64];
    uint64_t hash = seed_of_process();
    for (size_t at = 0; at < name.len; at += sizeof(lower)) {
        size_t len = (size_t)min_u64(name.len - at, sizeof(lower));
        for (size_t i = 0; i < len; i++) {
            char c = name.ptr[at + i];
            lower[i] = c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
        }
        hash = hash64(lower, len, hash);
    }
    return (unsigned)(hash % HEADERS_INDEX_BUCKETS);
}

void headers_index_build(struct headers_index *index, const struct headers *headers)
{
    check(headers->count <= HEADERS_MAX);
    index->headers = headers;
    if (headers->count <= HEADERS_INDEX_WALKED) {
        return;
    }
    memset(index->first, 0xff, sizeof(index->first));
    for (unsigned i = headers->count; i-- > 0;) { // from the end, so that chains keep the order
        uint16_t *first = &index->first[bucket_of(headers->items[i].name)];
        index->next[i] = *first;
        *first = (uint16_t)i;
    }
}

static inline bool is_named(const struct headers *headers, unsigned position, struct span name)
{
    const struct span *have = &headers->items[position].name;
    return have->len == name.len && span_equal_nocase(*have, name);
}

static unsigned walk_list(const struct headers *headers, unsigned position, struct span name)
{
    while (position < headers->count && !is_named(headers, position, name)) {
        position++;
    }
    return position < headers->count ? position : HEADERS_INDEX_NONE;
}

static unsigned walk_chain(const struct headers_index *index, unsigned position, struct span name)
{
    while (position != HEADERS_INDEX_NONE && !is_named(index->headers, position, name)) {
        position = index->next[position];
    }
    return position;
}

unsigned headers_index_find(const struct headers_index *index, struct span name)
{
    return index->headers->count <= HEADERS_INDEX_WALKED
               ? walk_list(index->headers, 0, name)
               : walk_chain(index, index->first[bucket_of(name)], name);
}

unsigned headers_index_next(const struct headers_index *index, unsigned position)
{
    struct span name = index->headers->items[position].name;
    return index->headers->count <= HEADERS_INDEX_WALKED
               ? walk_list(index->headers, position + 1, name)
               : walk_chain(index, index->next[position], name);
}
