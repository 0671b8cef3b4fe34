// SPDX-License-Identifier: Apache-2.0
// A worker's cache of verified run headers: the object's description and the payload's checksums.
// The number of entries and their bytes are limited. Only its own worker uses the cache.
#ifndef FOREBAY_STORE_RUN_CACHE_H
#define FOREBAY_STORE_RUN_CACHE_H

#include "store/segment/segment_format.h"

#define RUN_CACHE_SETS 1024u
#define RUN_CACHE_WAYS 4u
// Limit for one worker. In addition, all workers together use at most an eighth of
// limits.max_buffer.
#define RUN_CACHE_BYTES_MAX (4u << 20)

struct run_info {
    unsigned refs; // only this worker has references, so the counter is not atomic
    uint32_t segment_number, header_offset;
    uint64_t salt, etag_hash;
    struct store_object *object;
    uint32_t bytes;
    uint32_t unit_count;
    uint32_t unit_crc[];
};

struct run_cache {
    struct run_info *entries[RUN_CACHE_SETS][RUN_CACHE_WAYS];
    uint8_t next_way[RUN_CACHE_SETS];
    // Index of the set that was emptied last, because `bytes` would have exceeded bytes_max.
    unsigned hand;
    uint64_t bytes, bytes_max;
};

// `workers`: the number of workers that have such a cache and share the limit.
void run_cache_init(struct run_cache *cache, unsigned workers);
void run_cache_done(struct run_cache *cache);
// Returns the entry, borrowed until the next run_cache_add(); NULL if the run is not cached.
struct run_info *run_cache_find(const struct run_cache *cache, const struct store_place *place);
// Adds a run and takes a new reference to `object`, which has the generation of the place. Returns
// the entry, borrowed until the next run_cache_add().
struct run_info *run_cache_add(struct run_cache *cache, const struct store_place *place,
                               struct store_object *object, const struct run_header *header);
struct run_info *run_cache_info_ref(struct run_info *info);
void run_cache_info_unref(struct run_info *info); // accepts NULL

#endif
