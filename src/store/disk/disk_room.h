// SPDX-License-Identifier: Apache-2.0
// Decides whether the file system has room for another segment.
#ifndef FOREBAY_STORE_DISK_ROOM_H
#define FOREBAY_STORE_DISK_ROOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct store_disk;

// Resources that may run short.
enum disk_room_of {
    DISK_ROOM_OF_SIZE,     // more is used than cache.size, which was lowered
    DISK_ROOM_OF_MIN_FREE, // less is free than cache.min_free
    DISK_ROOM_OF_INODES,
    DISK_ROOM_OF_SPACE, // the file system refuses space although it reports it as free
    DISK_ROOM_OF_COUNT_
};

struct disk_room { // used by the supply thread, unless a field says otherwise
    atomic_bool is_short[DISK_ROOM_OF_COUNT_]; // any thread may read it
    atomic_bool is_cramped; // the file system has less room than cache.size; any thread
    uint64_t cramped_bytes; // the smallest size that the file system allowed while is_cramped
    // Monotonic time when a segment was last refused; 0: not since the last success.
    uint64_t refused_us;
    unsigned refusals;      // how often in a row the file system refused space
    bool has_given;         // a segment was evicted to make room, since the last success or refusal
    unsigned given_in_vain; // evictions that have not helped to create a segment yet
    uint64_t shown_free_bytes; // the free bytes that the metrics show
    uint64_t index_step_bytes; // bytes by which the index grows at once; set before threads start
    uint64_t free_bytes; // bytes free for segments, found by the last disk_room_look(); 0: none
    // Whether the index could grow, as the index writer has reported since the last
    // disk_room_look().
    atomic_uint index_answer;
    bool was_index_refused; // the index could not grow the last time; used by the index writer
};

enum disk_room_answer {
    DISK_ROOM_AMPLE,
    DISK_ROOM_NONE,  // no room for another segment, unless one is evicted
    DISK_ROOM_LATER, // do nothing now, and ask again later
    DISK_ROOM_BELOW, // less is free than cache.min_free: evict segments
};

// Returns whether a segment that takes `segment_cost_bytes` may be created. `going_bytes`: bytes
// that will be freed soon. Supply thread.
enum disk_room_answer disk_room_look(struct store_disk *disk, uint64_t segment_cost_bytes,
                                     uint64_t going_bytes);
// Reports that the directory cannot be used because its file system lacks `missing` bytes. 0: it
// has room again. Called by the thread that waits for room (store_late.c).
void disk_room_wait(struct store_disk *disk, uint64_t missing);
bool disk_room_is_short(const struct store_disk *disk, enum disk_room_of of); // any thread
// Returns what the file system lacks for a cache of cache.size: "min_free", "inodes" or "space".
// NULL: nothing. Any thread.
const char *disk_room_short_of(const struct store_disk *disk);
// Returns true if the file system refused a segment a moment ago, whatever space it reports.
bool disk_room_refuses(const struct store_disk *disk);
// Called when a segment could not be created for lack of room, and when one was created.
// disk_room_refused() sets make_err (disk.h) to ERR_DISK_FULL, and disk_room_granted() clears that
// error.
void disk_room_refused(struct store_disk *disk);
void disk_room_granted(struct store_disk *disk);
// Called when a segment is evicted so that another can be created, or the index can grow.
void disk_room_given(struct store_disk *disk);
// Returns true if evicting a segment may help the index to grow.
bool disk_room_gives(const struct store_disk *disk);
// Called by the index writer when the index could not grow and needs an eviction, or when it could
// grow. Returns true if the caller must wake the supply thread, so that it makes room or learns of
// the success.
bool disk_room_answer_index(struct store_disk *disk, bool refused) MUST_USE;
// Sets the step by which the index grows. Called before threads start.
void disk_room_set_step(struct store_disk *disk, uint64_t bytes);
void disk_room_done(struct store_disk *disk);

#endif
