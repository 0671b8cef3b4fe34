// SPDX-License-Identifier: Apache-2.0
// Proves: runs that a worker remembers are found again, bounded in entries and bytes, and safe
// while in use.
#include "store/segment/run_cache.h"

#include "store/store_private.h"
#include "test.h"

static struct store_object *object_new(size_t header_bytes)
{
    static char lines[STORE_HEADERS_MAX];
    struct store_object *object =
        store_object_new((struct hash128){1, 2}, SPAN("r"), SPAN("b"), SPAN("k"), SPAN("e"),
                         (struct span){NULL, 0}, (struct span){lines, header_bytes}, 10, 65536, 0);
    cr_assert(object != NULL);
    return object;
}

static struct run_info *add(struct run_cache *cache, uint32_t i, uint32_t header_len)
{
    struct store_object *object = object_new(10);
    struct store_place place = {.segment_number = 1, .header_offset = 512 * i, .salt = 5};
    struct run_header header = {.unit_count = 1, .unit_crcs = "abcd", .header_len = header_len};
    struct run_info *info = run_cache_add(cache, &place, object, &header);
    store_object_unref(object);
    return info;
}

Test(run_cache, entries_are_found_and_replaced_within_bounds)
{
    static struct run_cache cache;
    run_cache_init(&cache, 1);
    for (uint32_t i = 1; i <= 8 * RUN_CACHE_SETS * RUN_CACHE_WAYS; i++) {
        (void)add(&cache, i, 300);
        struct store_place place = {.segment_number = 1, .header_offset = 512 * i, .salt = 5};
        cr_assert_not_null(run_cache_find(&cache, &place));
        place.salt = 6;
        cr_assert_null(run_cache_find(&cache, &place));
    }
    unsigned count = 0;
    for (unsigned i = 0; i < RUN_CACHE_SETS * RUN_CACHE_WAYS; i++) {
        count += cache.entries[i / RUN_CACHE_WAYS][i % RUN_CACHE_WAYS] != NULL;
    }
    cr_assert(count > RUN_CACHE_SETS * RUN_CACHE_WAYS * 7 / 8, "%u", count);
    run_cache_done(&cache);
}

Test(run_cache, bytes_are_bounded)
{
    static struct run_cache cache;
    run_cache_init(&cache, 1);
    for (uint32_t i = 1; i <= 5000; i++) {
        (void)add(&cache, i, 16000);
        cr_assert(cache.bytes <= RUN_CACHE_BYTES_MAX);
    }
    run_cache_done(&cache);
    cr_assert_eq(cache.bytes, 0u);
}

// A pod with little memory on a node with many cores.
Test(run_cache, all_workers_share_an_eighth_of_the_budget)
{
    static struct run_cache cache;
    chunk_budget_init(32u << 20);
    run_cache_init(&cache, 64);
    for (uint32_t i = 1; i <= 5000; i++) {
        (void)add(&cache, i, 16000);
        cr_assert(cache.bytes <= (4u << 20) / 64);
    }
    run_cache_done(&cache);
}

Test(run_cache, an_entry_in_use_outlives_its_place)
{
    static struct run_cache cache;
    run_cache_init(&cache, 1);
    struct run_info *info = run_cache_info_ref(add(&cache, 1, 300));
    for (uint32_t i = 2; i <= 5000; i++) {
        (void)add(&cache, i, 300);
    }
    cr_assert(span_equal_cstr(info->object->key, "k"));
    run_cache_info_unref(info);
    run_cache_done(&cache);
}
