// SPDX-License-Identifier: Apache-2.0
// Decides whether the file system has room for another segment, and reports a lack of room. The log
// has a line when a lack begins and each minute while it lasts. Runs on the supply thread.
//
// A lack of room is not treated as a failure: bytes that cannot be stored are only streamed to the
// client. The cases:
//
// - Less is free than cache.min_free: the store removes segments one by one.
// - Another segment does not fit, or no inode is left: an older segment is evicted for it.
// - The file system refuses space that it reports as free, because of a quota or another program:
//   the store retries every few seconds. If it is refused again and again, it evicts an older
//   segment.
//
// An eviction may not help if inodes or a quota are used up. After VAIN_MAX evictions that did not
// help, the store stops evicting until it can create a segment.
//
// The index also needs space, to record runs in existing segments. So a segment is created only if
// the file system also has room for the index to grow by a step.
#include "store/disk/disk_room.h"

#include <assert.h>

#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/disk/disk.h"

#define FREED_SEGMENTS (DISK_GOING_MAX + 2u)
#define REFUSED_US 5000000u
#define REFUSALS_MAX 3u // after this many refusals an older segment is evicted
// Free inodes that are needed: one for the segment, one for `format` while it is rewritten.
#define INODES_MIN 2u
#define VAIN_MAX 3u // after this many evictions that did not help, the store stops evicting

enum { ANSWER_NONE, ANSWER_REFUSED, ANSWER_GRANTED };

static const struct {
    const char *name, *text;
} shortages[] = {
    [DISK_ROOM_OF_SIZE] = {"size", "the cache is larger than cache.size, so it evicts older data"},
    [DISK_ROOM_OF_MIN_FREE] = {"min_free",
                               "less than cache.min_free is free, so the cache evicts older data"},
    [DISK_ROOM_OF_INODES] = {"inodes",
                             "the file system of cache.dir has no inode for another segment"},
    [DISK_ROOM_OF_SPACE] = {"space",
                            "the file system of cache.dir refuses space for another segment"},
};
static_assert(ARRAY_LEN(shortages) == DISK_ROOM_OF_COUNT_, "a name and a text for each");

bool disk_room_is_short(const struct store_disk *disk, enum disk_room_of of)
{
    check(of < DISK_ROOM_OF_COUNT_);
    return atomic_load(&disk->room.is_short[of]);
}

const char *disk_room_short_of(const struct store_disk *disk)
{
    for (unsigned of = DISK_ROOM_OF_SIZE + 1; of < DISK_ROOM_OF_COUNT_; of++) {
        if (atomic_load(&disk->room.is_short[of])) {
            return shortages[of].name;
        }
    }
    return atomic_load(&disk->room.is_cramped) ? shortages[DISK_ROOM_OF_SPACE].name : NULL;
}

static void show_free(struct disk_room *room, uint64_t bytes)
{
    stats_add(COUNTER_disk_free_bytes, bytes - room->shown_free_bytes);
    room->shown_free_bytes = bytes;
}

static void room_tell(struct store_disk *disk, enum disk_room_of of, bool is_short,
                      uint64_t missing)
{
    check(!is_short || missing > 0);
    atomic_store(&disk->room.is_short[of], is_short);
    if (is_short) {
        log_warn_condition("cache_short",
                           "of=%s text=\"%s\" missing=%llu used_bytes=%llu capacity_bytes=%llu",
                           shortages[of].name, shortages[of].text, (unsigned long long)missing,
                           (unsigned long long)atomic_load(&disk->used_bytes),
                           (unsigned long long)atomic_load(&disk->capacity_bytes));
    }
}

void disk_room_wait(struct store_disk *disk, uint64_t missing)
{
    room_tell(disk, DISK_ROOM_OF_SPACE, missing > 0, missing);
}

bool disk_room_refuses(const struct store_disk *disk)
{
    const struct disk_room *room = &disk->room;
    return room->refused_us != 0 && clock_monotonic_us() - room->refused_us < REFUSED_US;
}

// Records whether the file system keeps the cache below cache.size. `spare`: free bytes that the
// cache may take. The state ends when others have freed room for FREED_SEGMENTS. An eviction does
// not end it: what it frees was the cache's before, so `within` stays the same. But file systems
// may show freed blocks late, and then `within` is too small for a moment, by the segments that are
// being evicted.
static void room_tell_cramped(struct store_disk *disk, uint64_t segment_cost_bytes, uint64_t spare)
{
    struct disk_room *room = &disk->room;
    uint64_t wanted = segment_cost_bytes + room->index_step_bytes;
    uint64_t used = atomic_load(&disk->used_bytes);
    uint64_t within = used + spare; // the size that the cache may have on this file system
    uint64_t limit = atomic_load(&disk->segment_limit_bytes);
    bool was_cramped = atomic_load(&room->is_cramped);
    room->cramped_bytes = was_cramped ? min_u64(room->cramped_bytes, within) : within;
    bool is_cramped =
        was_cramped ? within < room->cramped_bytes + FREED_SEGMENTS * wanted : spare < wanted;
    atomic_store(&room->is_cramped, is_cramped && used + segment_cost_bytes <= limit);
}

enum disk_room_answer disk_room_look(struct store_disk *disk, uint64_t segment_cost_bytes,
                                     uint64_t going_bytes)
{
    struct disk_room *room = &disk->room;
    uint64_t excess = disk_excess(disk);
    check(segment_cost_bytes > 0 && room->index_step_bytes > 0);
    check((room->refusals > 0) == (room->refused_us != 0));
    struct store_space space;
    unsigned index = atomic_exchange(&room->index_answer, ANSWER_NONE);
    if (index == ANSWER_REFUSED) {
        disk_room_refused(disk);
    } else if (index == ANSWER_GRANTED) {
        disk_room_granted(disk);
    }
    room_tell(disk, DISK_ROOM_OF_SIZE, excess > 0, excess);
    room->free_bytes = 0;
    if (store_dir_space(&disk->dir, &space) != ERR_OK) {
        return DISK_ROOM_LATER;
    }
    show_free(room, space.free_bytes);
    uint64_t least = space.size_bytes / 100 * atomic_load(&disk->min_free_percent);
    uint64_t missing = least > space.free_bytes ? least - space.free_bytes : 0;
    bool has_inodes = !space.has_inodes || space.free_inodes >= INODES_MIN;
    room_tell(disk, DISK_ROOM_OF_MIN_FREE, missing > 0, missing);
    room_tell(disk, DISK_ROOM_OF_INODES, !has_inodes, has_inodes ? 0 : INODES_MIN);
    room_tell(disk, DISK_ROOM_OF_SPACE, room->refusals > 0, segment_cost_bytes);
    room_tell_cramped(disk, segment_cost_bytes, missing > 0 ? 0 : space.free_bytes - least);
    if (missing > going_bytes) {
        return DISK_ROOM_BELOW;
    }
    if (disk_room_refuses(disk)) {
        return DISK_ROOM_LATER;
    }
    uint64_t wanted = segment_cost_bytes + room->index_step_bytes;
    if (missing > 0 || space.free_bytes - least < wanted) {
        return DISK_ROOM_NONE;
    }
    bool in_vain = room->given_in_vain >= VAIN_MAX;
    if (has_inodes && (room->refusals < REFUSALS_MAX || room->has_given || in_vain)) {
        check(space.free_bytes >= least);
        room->free_bytes = space.free_bytes - least;
        return DISK_ROOM_AMPLE;
    }
    return going_bytes == 0 && !in_vain ? DISK_ROOM_NONE : DISK_ROOM_LATER;
}

bool disk_room_gives(const struct store_disk *disk)
{
    return disk->room.refusals == 0 || disk->room.given_in_vain < VAIN_MAX;
}

void disk_room_given(struct store_disk *disk)
{
    struct disk_room *room = &disk->room;
    room->has_given = true;
    room->given_in_vain += room->refusals > 0 || room->is_short[DISK_ROOM_OF_INODES];
}

bool disk_room_answer_index(struct store_disk *disk, bool refused)
{
    struct disk_room *room = &disk->room;
    if (refused || room->was_index_refused) {
        room->was_index_refused = refused;
        atomic_store(&room->index_answer, refused ? ANSWER_REFUSED : ANSWER_GRANTED);
        return true;
    }
    return false;
}

void disk_room_refused(struct store_disk *disk)
{
    disk->room.refused_us = clock_monotonic_us();
    disk->room.refusals++;
    disk->room.has_given = false;
    atomic_store(&disk->make_err, ERR_DISK_FULL);
    stats_add(COUNTER_segments_refused, 1);
}

void disk_room_granted(struct store_disk *disk)
{
    disk->room.refused_us = 0;
    disk->room.refusals = 0;
    disk->room.has_given = false;
    disk->room.given_in_vain = 0;
    int full = ERR_DISK_FULL;
    (void)atomic_compare_exchange_strong(&disk->make_err, &full, ERR_OK);
}

void disk_room_set_step(struct store_disk *disk, uint64_t bytes)
{
    check(bytes > 0);
    disk->room.index_step_bytes = bytes;
}

void disk_room_done(struct store_disk *disk)
{
    show_free(&disk->room, 0);
}
