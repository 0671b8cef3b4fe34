// SPDX-License-Identifier: Apache-2.0
// Long runs in a small cache. Segments of 4 MiB take runs of a quarter of that without ado: whoever
// wants such a run finds room in the segment that is being filled, or in the next one. A run longer
// than a quarter may need a segment for itself, and an object of 3 MiB is to be asked for once all
// the same.
//
// So who is about to ask the origin for a long run gets a promise first. It is given while a spare
// segment is left for it beside one for each slot, one more and those promised before, and while
// long runs hold a part of the cache only: what is being written cannot go, and the others have to
// find room meanwhile. Without a promise the run is a short one, and the rest is asked for with the
// next. A single block is never long, however large it is: it cannot be asked for in parts.
//
// A promise reserves nothing: it is a guess that there will be room when the origin's answer is
// there, as the spare segments are replaced meanwhile; more of them are kept while long runs come,
// and for some segments more. Promises do not count for that: most come to nothing, as who asks for
// an object of unknown length makes one, and what went for the sake of each of them would be
// missed. What is left over of the segment goes back to the file system (segment_trim.c); where
// that cannot be done there are no long runs.
//
// In caches whose segments are four times as large as the longest run there is nothing to promise.
// Any thread.
#include "store/store_long.h"

#include "store/segment/segment_trim.h"
#include "store/store_private.h"

#define LONG_PART 8u    // of the segments: as many long runs at once
#define LONG_LATELY 32u // segments made since the latest one came

uint64_t store_run_bytes_max(const struct store *store)
{
    return segment_run_bytes_max(store->disk.segment_size_bytes);
}

uint64_t store_run_bytes_long(const struct store *store)
{
    uint64_t room = segment_file_bytes(store->disk.segment_size_bytes) - SEGMENT_DATA_OFFSET -
                    SECTOR_SIZE - RUN_HEADER_MAX - RUN_PAYLOAD_ALIGN - segment_table_bytes(1);
    uint64_t bytes = STORE_CHECKSUM_UNIT;
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
    bool is_promised = !store->disk.attached || is_room_for_another(store); // else all is streamed
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
