// SPDX-License-Identifier: Apache-2.0
// Decides whether the file system has room for another segment.
#ifndef FOREBAY_STORE_DISK_ROOM_H
#define FOREBAY_STORE_DISK_ROOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct store_disk;

// The resources that may run short.
enum disk_room_of {
    DISK_ROOM_OF_SIZE,     // cache.size was lowered below what is used
    DISK_ROOM_OF_MIN_FREE, // less is free than cache.min_free
    DISK_ROOM_OF_INODES,
    DISK_ROOM_OF_SPACE, // the file system refuses space that it reports as free
    DISK_ROOM_OF_COUNT_
};

struct disk_room { // used by the supply thread
    bool is_short[DISK_ROOM_OF_COUNT_], is_told[DISK_ROOM_OF_COUNT_];
    uint64_t told_us[DISK_ROOM_OF_COUNT_];
    // Monotonic time of the last refusal of a segment; 0: none since the last success.
    uint64_t refused_us;
    unsigned refusals;      // number of refusals in a row
    bool has_given;         // a segment was evicted to make room since the last success or refusal
    unsigned given_in_vain; // evictions since the last segment was created
    uint64_t shown_free_bytes; // as shown in the metrics
    uint64_t index_step_bytes; // step by which the index grows; set before threads start
    uint64_t free_bytes;       // bytes free for segments at the last disk_room_look(); 0: none
    atomic_uint index_answer;  // whether the index could grow since the last disk_room_look()
    bool was_index_refused;    // the last growth of the index was refused; used by the index writer
};

enum disk_room_answer {
    DISK_ROOM_AMPLE,
    DISK_ROOM_NONE,  // no room for another segment until one is evicted
    DISK_ROOM_LATER, // try nothing now
    DISK_ROOM_BELOW, // remove segments
};

// Returns whether a segment of `segment_cost_bytes` may be created. `going_bytes` are about to be
// freed. Supply thread.
enum disk_room_answer disk_room_look(struct store_disk *disk, uint64_t segment_cost_bytes,
                                     uint64_t going_bytes);
// Reports that the directory cannot be used because its file system lacks `missing` bytes; 0: it
// has room again. Called by the thread that waits for room.
void disk_room_wait(struct store_disk *disk, uint64_t missing);
// Returns true if the file system refused a segment a moment ago, whatever it reported before.
bool disk_room_refuses(const struct store_disk *disk);
// Called when a segment could not be created for lack of room, or was created. From a refusal to
// the next success, make_err says why.
void disk_room_refused(struct store_disk *disk);
void disk_room_granted(struct store_disk *disk);
// Called when a segment is evicted so that another can be created, or the index can grow.
void disk_room_given(struct store_disk *disk);
// Returns true if evicting a segment for the index may help.
bool disk_room_gives(const struct store_disk *disk);
// Called by the index writer when the index could not grow and needs an eviction, or could grow.
// Returns true if the supply thread must look at it.
bool disk_room_answer_index(struct store_disk *disk, bool refused) MUST_USE;
// Sets the step by which the index grows. Called before threads start.
void disk_room_set_step(struct store_disk *disk, uint64_t bytes);
void disk_room_done(struct store_disk *disk);

#endif
