// SPDX-License-Identifier: Apache-2.0
// Computes how much data a cache of some size holds, for `forebay plan`. Pure; any thread.
//
// A cache evicts nothing as long as these fit into cache.size without its headroom:
//
//   segments with data   whole runs only, so on average half a run at the end is unused. A full
//                        segment gives that back later, but perhaps not before it is needed.
//   open segments        one for each slot, which may have just begun
//   spare segments       as many as the supply thread keeps when there is no ample space
//   the rest             the index, the arrays of the policy, folders
//
// Segments grow with cache.size in steps. So just above a step a larger cache may hold less.
#include "store/segment/segment_supply.h"
#include "store/store_private.h"

#define SIZE_MOST (1ull << 62)
#define BLOCK_BYTES (1u << 20) // the default of cache.block_size
#define HEADER_BYTES 1024u     // a run's header, with the ETag and the usual headers of a version
#define INDEX_ENTRY_BYTES 512u // of an object, in pages that are half full
#define RANK_BYTES 32u         // of a run, in the arrays of the policy
#define SEGMENTS_AHEAD 16u     // a cache with these more segments holds more
#define INDEX_BYTES (2u << 20) // of an empty index and its first batches

// Returns the longest run in which such objects are stored in segments of this size.
static uint32_t run_bytes(const struct store_plan *plan, uint32_t segment_size)
{
    uint64_t most = max_u64(segment_run_bytes_max(segment_size), BLOCK_BYTES);
    return (uint32_t)max_u64(1, min_u64(plan->object_bytes, most));
}

// Returns how many bytes of objects a segment holds, on average.
static uint64_t segment_holds(uint32_t segment_size, uint32_t payload)
{
    struct run_layout layout;
    segment_run_layout_make(0, HEADER_BYTES, payload, &layout);
    uint64_t run = layout.end_offset, room = segment_file_bytes(segment_size) - SEGMENT_DATA_OFFSET;
    room -= segment_table_bytes((uint32_t)(room / run + 1));
    return min_u64(room / run * payload, (room - run / 2) * payload / run);
}

// Returns the number of segments that hold data, if `segments` fit into the cache. With a few more
// a cache may have one more slot, and so hold less. The least number counts, so that it never falls
// as `segments` grows.
static uint64_t segments_with_data(const struct store_plan *plan, uint64_t segments, bool has_long)
{
    uint64_t least = UINT64_MAX;
    for (uint64_t most = segments; most < segments + SEGMENTS_AHEAD; most++) {
        unsigned slots = segment_log_slots(most, plan->workers);
        uint64_t kept = slots + segment_supply_spares(most, slots, true, has_long);
        least = min_u64(least, most > kept ? most - kept : 0);
    }
    return least;
}

uint64_t store_plan_holds(const struct store_plan *plan, uint64_t size_bytes)
{
    uint32_t segment_size = segment_size_for(size_bytes, BLOCK_BYTES);
    uint32_t payload = run_bytes(plan, segment_size);
    uint64_t data_bytes = segment_holds(segment_size, payload);
    uint64_t limit = size_bytes - size_bytes / 100 * plan->headroom_percent;
    uint64_t rest = STORE_OVERHEAD_BYTES + INDEX_BYTES + retention_least_bytes(size_bytes);
    uint64_t cost = segment_cost_bytes(segment_size) + data_bytes / payload * RANK_BYTES +
                    data_bytes / plan->object_bytes * INDEX_ENTRY_BYTES;
    bool has_long = plan->object_bytes > segment_run_bytes_max(segment_size);
    uint64_t segments = limit > rest ? (limit - rest) / cost : 0;
    return segments_with_data(plan, segments, has_long) * data_bytes;
}

// Returns the least size with segments as large as those of `size_bytes`.
static uint64_t step_begins(uint64_t size_bytes)
{
    uint64_t least = STORE_SIZE_MIN, most = size_bytes;
    while (least < most) {
        uint64_t middle = least + (most - least) / 2;
        if (segment_size_for(middle, BLOCK_BYTES) < segment_size_for(size_bytes, BLOCK_BYTES)) {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    return least;
}

// Returns the least size from `least` to `most` that holds the data, or 0. All of these sizes have
// segments of the same size, so the larger ones hold more.
static uint64_t least_size(const struct store_plan *plan, uint64_t data_bytes, uint64_t least,
                           uint64_t most)
{
    if (store_plan_holds(plan, most) < data_bytes) {
        return 0;
    }
    while (least < most) {
        uint64_t middle = least + (most - least) / 2;
        if (store_plan_holds(plan, middle) < data_bytes) {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    return least;
}

uint64_t store_plan_size(const struct store_plan *plan, uint64_t data_bytes)
{
    uint64_t above = SIZE_MOST, begin = step_begins(above);
    uint64_t size = least_size(plan, data_bytes, begin, above);
    // If all sizes of a step hold the data, the step below may hold it, too.
    while (size == begin && begin > STORE_SIZE_MIN) {
        above = begin - 1;
        begin = step_begins(above);
        uint64_t least = least_size(plan, data_bytes, begin, above);
        if (least == 0) {
            break;
        }
        size = least;
    }
    return size != 0 ? size : SIZE_MOST;
}
