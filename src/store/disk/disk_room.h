// SPDX-License-Identifier: Apache-2.0
// Whether the file system has room for another segment.
#ifndef FOREBAY_STORE_DISK_ROOM_H
#define FOREBAY_STORE_DISK_ROOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct store_disk;

// What there may be too little of.
enum disk_room_of {
    DISK_ROOM_OF_SIZE,     // cache.size was made smaller than what is held
    DISK_ROOM_OF_MIN_FREE, // less is free than cache.min_free wants
    DISK_ROOM_OF_INODES,
    DISK_ROOM_OF_SPACE, // the file system refuses what it says that it has
    DISK_ROOM_OF_COUNT_
};

struct disk_room { // of the supply thread
    bool is_short[DISK_ROOM_OF_COUNT_], is_told[DISK_ROOM_OF_COUNT_];
    uint64_t told_us[DISK_ROOM_OF_COUNT_];
    uint64_t refused_us;    // 0: not lately
    unsigned refusals;      // in a row
    bool has_given;         // a segment has gone for another since the last one was made or refused
    unsigned given_in_vain; // so many have since the last one was made
    uint64_t shown_free_bytes; // in the metrics
    uint64_t index_step_bytes; // the index grows by this; set before there are threads
    uint64_t free_bytes;       // that segments may take, as of the last look; 0: none at present
    atomic_uint index_answer;  // what the index writer has heard since the last look
    bool was_index_refused;    // the index writer's
};

enum disk_room_answer {
    DISK_ROOM_AMPLE,
    DISK_ROOM_NONE,  // for another segment: one has to go before
    DISK_ROOM_LATER, // nothing is to be tried now
    DISK_ROOM_BELOW, // segments are to be given back
};

// May a segment be made, which takes so many bytes? `going_bytes` are about to be freed. On the
// supply thread.
enum disk_room_answer disk_room_look(struct store_disk *disk, uint64_t segment_cost_bytes,
                                     uint64_t going_bytes);
// There is no room to begin with. On the thread that waits for it.
void disk_room_wait(struct store_disk *disk, uint64_t missing);
// It refused one a moment ago, whatever the look before that said.
bool disk_room_refuses(const struct store_disk *disk);
// A segment could not be made for want of room, or was made. Until it is, refusals name the disk
// (make_err).
void disk_room_refused(struct store_disk *disk);
void disk_room_granted(struct store_disk *disk);
// One goes so that another can be made, or the index can grow.
void disk_room_given(struct store_disk *disk);
// Is there a point in having one go for the index?
bool disk_room_gives(const struct store_disk *disk);
// The index could not grow, and a segment is to go for it; or it could. On the index writer. True:
// the supply thread must look at it.
bool disk_room_answer_index(struct store_disk *disk, bool refused) MUST_USE;
// The index grows by so many bytes. Before there are threads.
void disk_room_set_step(struct store_disk *disk, uint64_t bytes);
void disk_room_done(struct store_disk *disk);

#endif
