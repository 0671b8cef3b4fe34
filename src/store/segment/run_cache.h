// SPDX-License-Identifier: Apache-2.0
// What a worker remembers of runs whose header it has verified: the object and the checksums of the
// payload. Bounded in entries and bytes. Used by its own worker only.
#ifndef FOREBAY_STORE_RUN_CACHE_H
#define FOREBAY_STORE_RUN_CACHE_H

#include "store/segment/segment_format.h"

#define RUN_CACHE_SETS 1024u
#define RUN_CACHE_WAYS 4u
#define RUN_CACHE_BYTES_MAX                                                                        \
    (4u << 20) // and no more than an eighth of limits.max_buffer for all workers

struct run_info {
    unsigned refs; // of this worker only
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
    unsigned hand; // set that gives way next when there are too many bytes
    uint64_t bytes, bytes_max;
};

// `workers`: how many workers have such a cache. They share what limits.max_buffer allows for all.
void run_cache_init(struct run_cache *cache, unsigned workers);
void run_cache_done(struct run_cache *cache);
// Borrowed until the next call that adds; NULL when unknown.
struct run_info *run_cache_find(const struct run_cache *cache, const struct store_place *place);
// Remembers; takes a reference of its own to `object`, whose generation is the place's. Returns the
// entry (borrowed).
struct run_info *run_cache_add(struct run_cache *cache, const struct store_place *place,
                               struct store_object *object, const struct run_header *header);
struct run_info *run_cache_info_ref(struct run_info *info);
void run_cache_info_unref(struct run_info *info); // NULL is fine

#endif
