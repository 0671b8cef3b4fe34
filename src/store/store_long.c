// SPDX-License-Identifier: Apache-2.0
// Long runs in a small cache. In a segment of 4 MiB, a run of up to a quarter of the segment needs
// no special treatment: it finds room in the current segment of its slot, or in the next. A longer
// run may need a segment of its own. Still, an object of 3 MiB should be fetched with one request.
//
// So the caller gets a promise before it asks the origin for a long run. A promise needs two
// conditions:
// - There are enough spare segments: one for this run, one for each slot, one more, and one for
//   each run that is promised already.
// - Long runs use only a part of the cache, because segments that are being written cannot be
//   evicted, and other runs need room too.
//
// Without a promise the caller fetches a short run, and the next request fetches the rest. A single
// block is never long, whatever its size, because it cannot be fetched in parts.
//
// A promise reserves nothing. It is a guess that there will be room when the origin answers,
// because the supply thread replaces used spare segments in the meantime. After a long run the
// supply thread keeps more spare segments, until LONG_LATELY segments have been created without
// another long run. Promises alone do not raise that number. Most promises are never used, because
// each fetch of an object of unknown length makes one. An eviction for each of them would cost
// hits. The unused rest of a long run's segment returns to the file system (segment_trim.c). If the
// file system cannot do that, there are no long runs.
//
// No promise is needed if segments are at least four times as large as the longest run. Any thread.
#include "store/store_long.h"

#include "store/segment/segment_trim.h"
#include "store/store_private.h"

#define LONG_PART 8u    // at most 1/8 of the segments hold promised or running long runs
#define LONG_LATELY 32u // a run is recent until this many further segments were created

uint64_t store_run_bytes_max(const struct store *store)
{
    return segment_run_bytes_max(store->disk.segment_size_bytes);
}

uint64_t store_run_bytes_long(const struct store *store)
{
    uint64_t room = segment_file_bytes(store->disk.segment_size_bytes) - SEGMENT_DATA_OFFSET -
                    SECTOR_SIZE - RUN_HEADER_MAX - RUN_PAYLOAD_ALIGN - segment_table_bytes(1);
    uint64_t bytes = STORE_CHECKSUM_UNIT;
    check(room < segment_file_bytes(store->disk.segment_size_bytes));
    while (bytes < STORE_RUN_MAX && bytes * 2 <= room) {
        bytes *= 2;
    }
    return max_u64(bytes, store_run_bytes_max(store));
}

static bool is_room_for_another(const struct store *store)
{
    const struct segment_log *log = &store->log;
    unsigned promised = atomic_load(&store->longs.promised);
    unsigned running = atomic_load(&store->longs.running);
    unsigned segments = atomic_load(&log->segments_max);
    return segments >= SEGMENT_TRIM_SEGMENTS_MIN && !atomic_load(&store->log.no_holes) &&
           promised + running < segments / LONG_PART &&
           promised + 2 + atomic_load(&log->slot_count) <= atomic_load(&log->room);
}

static bool is_lately(const struct store *store, unsigned made_then)
{
    return made_then != 0 && atomic_load(&store->log.made) + 1 - made_then <= LONG_LATELY;
}

bool store_long_note(struct store *store)
{
    unsigned made = atomic_load(&store->log.made) + 1;
    return !is_lately(store, atomic_exchange(&store->longs.made_then, made));
}

bool store_long_are_used(const struct store *store)
{
    return is_lately(store, atomic_load(&store->longs.made_then));
}

bool store_long_promise(struct store *store)
{
    bool is_promised = is_room_for_another(store);
    if (is_promised) {
        atomic_fetch_add(&store->longs.promised, 1);
    }
    return is_promised;
}

void store_long_release(struct store *store)
{
    unsigned before = atomic_fetch_sub(&store->longs.promised, 1);
    check(before > 0);
}
