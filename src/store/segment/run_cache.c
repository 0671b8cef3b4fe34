// SPDX-License-Identifier: Apache-2.0
// Four-way sets with round-robin replacement. A look-up costs one hash and at most four compares. A
// read in flight has a reference to its entry, so the entry stays valid after it has left the
// table.
#include "store/segment/run_cache.h"

#include <stdlib.h>

void run_cache_init(struct run_cache *cache, unsigned workers)
{
    check(workers > 0);
    memset(cache, 0, sizeof(*cache));
    uint64_t budget = chunk_budget_max_bytes(); // 0: there is no limit
    cache->bytes_max =
        budget > 0 ? min_u64(budget / 8 / workers, RUN_CACHE_BYTES_MAX) : RUN_CACHE_BYTES_MAX;
}

struct run_info *run_cache_info_ref(struct run_info *info)
{
    check(info->refs > 0);
    info->refs++;
    return info;
}

void run_cache_info_unref(struct run_info *info)
{
    if (info == NULL) {
        return;
    }
    check(info->refs > 0);
    if (--info->refs == 0) {
        store_object_unref(info->object);
        free(info);
    }
}

static void run_cache_clear(struct run_cache *cache, unsigned set, unsigned way)
{
    struct run_info *info = cache->entries[set][way];
    if (info != NULL) {
        check(cache->bytes >= info->bytes);
        cache->bytes -= info->bytes;
        cache->entries[set][way] = NULL;
        run_cache_info_unref(info);
    }
}

void run_cache_done(struct run_cache *cache)
{
    for (unsigned set = 0; set < RUN_CACHE_SETS; set++) {
        for (unsigned way = 0; way < RUN_CACHE_WAYS; way++) {
            run_cache_clear(cache, set, way);
        }
    }
    check(cache->bytes == 0);
}

static unsigned run_cache_set(const struct store_place *place)
{
    uint64_t mixed = (place->salt ^ (uint64_t)place->header_offset << 20 ^ place->header_offset) *
                     0x9E3779B97F4A7C15u;
    return (unsigned)(mixed >> 48) % RUN_CACHE_SETS;
}

static bool run_info_is_at(const struct run_info *info, const struct store_place *place)
{
    return info != NULL && info->salt == place->salt &&
           info->header_offset == place->header_offset &&
           info->segment_number == place->segment_number;
}

struct run_info *run_cache_find(const struct run_cache *cache, const struct store_place *place)
{
    unsigned set = run_cache_set(place);
    for (unsigned way = 0; way < RUN_CACHE_WAYS; way++) {
        if (run_info_is_at(cache->entries[set][way], place)) {
            return cache->entries[set][way];
        }
    }
    return NULL;
}

struct run_info *run_cache_add(struct run_cache *cache, const struct store_place *place,
                               struct store_object *object, const struct run_header *header)
{
    check(object != NULL && header->unit_count <= RUN_UNITS_MAX);
    size_t crc_bytes = (size_t)header->unit_count * sizeof(uint32_t);
    struct run_info *info = malloc(sizeof(*info) + crc_bytes);
    check(info != NULL);
    *info = (struct run_info){
        .refs = 1,
        .segment_number = place->segment_number,
        .header_offset = place->header_offset,
        .salt = place->salt,
        .etag_hash = place->etag_hash,
        .object = store_object_ref(object),
        .bytes = (uint32_t)(sizeof(*info) + crc_bytes + sizeof(*object) + header->header_len),
        .unit_count = header->unit_count,
    };
    for (uint32_t i = 0; i < header->unit_count; i++) {
        info->unit_crc[i] = run_header_unit_crc(header, i);
    }
    unsigned set = run_cache_set(place);
    unsigned way = cache->next_way[set];
    for (unsigned i = 0; i < RUN_CACHE_WAYS; i++) {
        if (run_info_is_at(cache->entries[set][i], place)) {
            way = i;
        }
    }
    cache->next_way[set] = (uint8_t)((way + 1) % RUN_CACHE_WAYS);
    run_cache_clear(cache, set, way);
    for (unsigned i = 0; i < RUN_CACHE_SETS && cache->bytes + info->bytes > cache->bytes_max; i++) {
        cache->hand = (cache->hand + 1) % RUN_CACHE_SETS;
        for (unsigned j = 0; j < RUN_CACHE_WAYS; j++) {
            run_cache_clear(cache, cache->hand, j);
        }
    }
    check(cache->entries[set][way] == NULL);
    cache->bytes += info->bytes;
    cache->entries[set][way] = info;
    return info;
}
