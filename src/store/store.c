// SPDX-License-Identifier: Apache-2.0
// Small functions of store.h, and the reasons why nothing is stored.
#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/segment/segment_supply.h"
#include "store/store_private.h"

// --- refusals

enum err store_shortage(const struct store *store)
{
    if (!store->disk.attached) {
        return disk_trouble(&store->disk) == REFUSAL_disk_full ? ERR_DISK_FULL : ERR_IO;
    }
    if (!disk_is_filling(&store->disk)) {
        int failed = atomic_load(&store->disk.filling_off_errno);
        return failed == ENOSPC || failed == EDQUOT ? ERR_DISK_FULL : ERR_IO;
    }
    enum err err = disk_shortage(&store->disk);
    return err != ERR_OK                                  ? err
           : index_is_full(&store->index)                 ? ERR_INDEX_FULL
           : !index_memory_has_room(&store->index.memory) ? ERR_INDEX_BUSY
                                                          : ERR_OK;
}

enum refusal store_refuses(const struct store *store)
{
    enum err err = store_shortage(store);
    return err != ERR_OK                      ? refusal_of_error(err)
           : atomic_load(&store->log.no_room) ? REFUSAL_disk_full
           : write_backlog_takes(&store->backlog)
               ? REFUSAL_none
               : refusal_of_error(write_backlog_error(&store->backlog, clock_monotonic_us()));
}

enum refusal store_refuses_all(const struct store *store)
{
    enum err err = store_shortage(store);
    return err != ERR_OK && err != ERR_INDEX_BUSY ? refusal_of_error(err) : REFUSAL_none;
}

void store_drop_run(struct store *store, const struct store_place *place, struct hash128 hash,
                    enum err why)
{
    check(place->segment != NULL && place->segment_number != 0);
    check(why != ERR_OK && why != ERR_AGAIN && why != ERR_CANCELLED);
    segment_set_bad(place->segment, place->header_offset);
    index_writer_remove_later(&store->writer, hash, place, why == ERR_CORRUPT);
    if (why == ERR_CORRUPT) {
        stats_add(COUNTER_evicted_bytes_corrupt, place->payload_len);
    }
    log_warn_condition("run_dropped", "err=%s segment=%u offset=%u first_block=%llu blocks=%u",
                       error_name(why), place->segment_number, place->header_offset,
                       (unsigned long long)place->first_block, place->block_count);
}

void store_drop_place(struct store *store, const struct store_place *place, struct hash128 hash,
                      enum err why)
{
    if (why == ERR_CORRUPT) {
        stats_add(COUNTER_checksum_failures, 1);
    } else {
        disk_read_failed(&store->disk);
    }
    store_drop_run(store, place, hash, why);
}

// --- small calls

// Returns the age of the oldest call that waits for the disk.
static uint64_t stuck_ms(const struct store_disk *disk)
{
    uint64_t age_ms = 0;
    for (unsigned i = 0; i < DISK_CALL_COUNT; i++) {
        age_ms = max_u64(age_ms, disk_call_age_ms(disk, i));
    }
    return age_ms;
}

void store_summarize(const struct store *store, struct store_summary *ret_summary)
{
    bool is_reading = store->disk.attached && disk_is_reading(&store->disk);
    bool is_blind = !is_reading || atomic_load(&store->index.current) == NULL;
    enum refusal refusal = disk_trouble(&store->disk);
    if (refusal == REFUSAL_none) {
        refusal = !is_reading ? REFUSAL_disk_degraded
                  : is_blind  ? REFUSAL_index_degraded
                              : store_refuses(store);
    }
    *ret_summary = (struct store_summary){
        .dir = store->disk.dir.path,
        .capacity_bytes = store->disk.capacity_bytes,
        .capacity_most_bytes = store_size_most_since_set(store),
        .used_bytes = atomic_load(&store->disk.used_bytes),
        .segment_size_bytes = store->disk.segment_size_bytes,
        .objects = atomic_load(&store->index.objects),
        .blocks = atomic_load(&store->index.blocks),
        .degraded = is_blind || !disk_is_filling(&store->disk) || atomic_load(&store->log.no_room),
        .is_blind = is_blind,
        .refusal = refusal,
        .short_of = disk_room_short_of(&store->disk),
        .rebuilding = atomic_load(&store->recovery.is_rebuilding),
        .unusable = store->disk.attached ? NULL : store->unusable,
        .disk_errno = atomic_load(&store->disk.filling_off_errno),
        .stuck_ms = stuck_ms(&store->disk),
        .former_origin = store->former_origin[0] != '\0' ? store->former_origin : NULL,
    };
}

bool store_waits_for_readers(struct store *store)
{
    return store->disk.attached && segment_supply_waits_for_readers(&store->log);
}

struct hash128 store_hash(const struct store *store, struct span realm, struct span bucket,
                          struct span key)
{
    return disk_hash(&store->disk, realm, bucket, key);
}

uint64_t store_generation_next(struct store *store)
{
    uint64_t generation = atomic_fetch_add(&store->generation, 1);
    check(generation != 0);
    return generation;
}

enum err store_set_limits(struct store *store, const struct store_limits *limits,
                          struct buf *ret_why)
{
    // True: the directory is not attached, and the next attempt will use the limits.
    if (store_late_limits(store, limits)) {
        disk_set_min_free(&store->disk, limits->min_free_percent);
        return ERR_OK;
    }
    return store_size_order(store, limits, ret_why);
}

void store_set_groups(struct store *store, const struct store_group *groups, unsigned group_count)
{
    check(group_count == 0 || groups != NULL);
    if (!store_late_groups(store, groups, group_count)) {
        retention_set_groups(&store->retention, groups, group_count);
    }
}

void store_note_read(struct worker *w, struct store *store, const struct store_place *place,
                     uint64_t bytes, unsigned group)
{
    check(group <= STORE_GROUP_PINS);
    // The place of a run that is still being written has no header. The policy counted the request
    // when the run began.
    if (place->header_len > 0) {
        retention_read(w, &store->retention, place, bytes, group);
    }
}

static enum policy_verdict store_guess(const struct store *store, struct hash128 hash,
                                       uint64_t first_block, unsigned group)
{
    struct retention_answer answer;
    check(group <= STORE_GROUP_PINS);
    if (!store->disk.attached) {
        return POLICY_STORE;
    }
    return retention_admit(&store->retention, hash, first_block, group, false, &answer);
}

bool store_would_keep(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group)
{
    return store_guess(store, hash, first_block, group) == POLICY_STORE;
}

bool store_would_take(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group)
{
    return store_guess(store, hash, first_block, group) != POLICY_REFUSE;
}

void store_note_refused(struct worker *w, struct store *store, struct hash128 hash,
                        uint64_t first_block, uint64_t payload_len, unsigned group)
{
    struct retention_answer answer;
    check(group <= STORE_GROUP_PINS && store->disk.attached);
    (void)!retention_admit(&store->retention, hash, first_block, group, false, &answer);
    retention_missed(w, &store->retention, hash, first_block, payload_len, &answer, false);
}

void store_lookup(struct worker *w, struct store *store, struct hash128 hash, uint64_t first_byte,
                  uint64_t end_byte, uint64_t floor, struct store_view *ret_view)
{
    check(first_byte <= end_byte);
    check(end_byte - first_byte <= STORE_WINDOW_MAX);
    ret_view->found = ret_view->unknown = false;
    ret_view->place_count = 0;
    ret_view->any.segment = NULL;
    if (!store->disk.attached) {
        return; // nothing is cached
    }
    uint64_t began_us = clock_monotonic_us();
    index_lookup(&store->index, &store_worker_of(w)->reader, disk_is_reading(&store->disk), hash,
                 first_byte, end_byte, floor, ret_view);
    check(ret_view->place_count <= STORE_VIEW_PLACES_MAX);
    check(ret_view->found || (ret_view->place_count == 0 && ret_view->any.segment == NULL));
    stats_observe_us(HISTOGRAM_index_lookup, clock_monotonic_us() - began_us);
}

void store_view_done(struct store_view *view)
{
    for (unsigned i = 0; i < view->place_count; i++) {
        store_place_unpin(&view->places[i]);
    }
    view->place_count = 0;
    store_place_unpin(&view->any);
}
