// SPDX-License-Identifier: Apache-2.0
// Recovery at a start: verifies the index, examines the segments, and adds runs that the index
// lacks.
#ifndef FOREBAY_STORE_RECOVERY_H
#define FOREBAY_STORE_RECOVERY_H

#include <pthread.h>

#include "store/disk/disk_thread.h"
#include "store/index/index_roll.h"

struct segment_log;
struct store_condemned;

struct recovery {
    struct index *index;
    struct segment_log *log;
    struct store_disk *disk;
    struct store_condemned *condemned;
    atomic_bool is_rebuilding; // the index is being rebuilt from segments
    bool was_clean;            // the last process stopped cleanly
    // The previous process's index was verified. If it was bad, it was dropped.
    atomic_bool is_verified;
    struct index_roll roll; // used by the recovery thread
    uint64_t roll_due_us;   // real monotonic time of the next slice
    // Real monotonic time when the last rebuild ended; 0: none yet. Used by the thread.
    uint64_t rebuilt_us;
    uint64_t salt;             // salt of the segment that is being examined
    uint32_t number;           // number of the segment that is being examined
    struct segment_rows *rows; // collects the good runs of that segment, or NULL
    unsigned pauses;           // how often the pause before the next rebuild has doubled
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        bool rebuild_wanted, round_wanted;
        struct disk_thread thread;
    } guarded;
};

void recovery_init(struct recovery *recovery, struct index *index, struct segment_log *log,
                   struct store_disk *disk, struct store_condemned *condemned);
// Opens the index, or creates a new one if it is missing or bad. Called before threads start. An
// error means that the disk failed.
enum err recovery_open_index(struct recovery *recovery) MUST_USE;
// Lets the store continue segments that were not full at a clean stop.
void recovery_adopt_clean(struct recovery *recovery);
// Starts the thread, which continues while the store serves.
void recovery_start(struct recovery *recovery);
void recovery_stop(struct recovery *recovery);
// Frees the resources. Called after the freeing thread and the index writer have stopped, because
// both may order a rebuild or a round even after recovery_stop().
void recovery_done(struct recovery *recovery);
// Orders a rebuild, which adds the runs of all segments to the index. For an index that was dropped
// or has lost something. Any thread.
void recovery_want_rebuild(struct recovery *recovery);
// Drops the index because it is damaged, and orders a rebuild. Any thread.
void recovery_want_new_index(struct recovery *recovery);
// Orders a round through the index (index_roll.c), because the index has unknown places in a
// segment that is gone. Any thread.
void recovery_want_round(struct recovery *recovery);

#endif
