// SPDX-License-Identifier: Apache-2.0
// Computes how much of the cache's space runs were written to. A new cache holds none, although its
// first segments and its index already count against cache.size. An evicted run counts until its
// segment is freed, because its space is free only then. Not on a worker, because this reads all
// entries of the segment table under the log's lock.
#include "store/store_private.h"

uint64_t store_held_bytes(struct store *store)
{
    struct segment_log *log = &store->log;
    uint64_t bytes = 0;
    if (!store->disk.attached) {
        return 0;
    }
    pthread_mutex_lock(&log->guarded.lock);
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        const struct segment *segment = &log->table[i];
        if (segment->state == SEGMENT_SEALED && segment->recovered) {
            // Recovery has not examined the segment yet, so it counts as full.
            bytes += log->segment_size_bytes - segment->given_bytes;
        } else if (segment->state == SEGMENT_SEALED || segment->state == SEGMENT_SPARE) {
            // Of a sealed segment that the start found, only its size is known.
            uint32_t size = log->segment_size_bytes - segment->given_bytes;
            check(segment->append_offset >= SEGMENT_DATA_OFFSET);
            bytes += min_u64(size, segment->append_offset) - SEGMENT_DATA_OFFSET;
        }
    }
    pthread_mutex_unlock(&log->guarded.lock);
    // Add the runs in the segments that are being written.
    for (unsigned i = 0; i < log->slot_max + SEGMENT_SLOTS_APART; i++) {
        struct segment_slot *slot = &log->slots[i];
        pthread_mutex_lock(&slot->guarded.lock);
        if (slot->guarded.current != NULL) {
            check(slot->guarded.current->append_offset >= SEGMENT_DATA_OFFSET);
            bytes += slot->guarded.current->append_offset - SEGMENT_DATA_OFFSET;
        }
        pthread_mutex_unlock(&slot->guarded.lock);
    }
    return bytes;
}
