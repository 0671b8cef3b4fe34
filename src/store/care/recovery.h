// SPDX-License-Identifier: Apache-2.0
// What a start does about what it finds: the index is looked through, segments are looked at, what
// is missing is put back.
#ifndef FOREBAY_STORE_RECOVERY_H
#define FOREBAY_STORE_RECOVERY_H

#include <pthread.h>

#include "store/index/index_roll.h"

struct segment_log;
struct store_condemned;

struct recovery {
    struct index *index;
    struct segment_log *log;
    struct store_disk *disk;
    struct store_condemned *condemned;
    atomic_bool is_rebuilding; // the index is being rebuilt from segments
    pthread_t thread;
    bool runs;
    bool was_clean;            // the last process stopped cleanly
    atomic_bool is_verified;   // the index as it was at the start; a bad one is being rebuilt
    struct index_roll roll;    // of the thread
    uint64_t roll_due_us;      // real; the next slice
    uint64_t rebuilt_us;       // of the thread: when the last rebuild ended; 0: none yet
    uint64_t salt;             // of the segment that is being listed
    uint32_t number;           // and its number
    struct segment_rows *rows; // its good runs are gathered here, or NULL
    unsigned pauses;           // how often the pause before the next one is doubled
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        bool rebuild_wanted, round_wanted, stop;
    } guarded;
};

void recovery_init(struct recovery *recovery, struct index *index, struct segment_log *log,
                   struct store_disk *disk, struct store_condemned *condemned);
// Before there are threads: opens the index, or a new one when it is missing or bad. An error is
// the disk's.
enum err recovery_open_index(struct recovery *recovery) MUST_USE;
// Segments that a clean stop left with room can be written on at once.
void recovery_adopt_clean(struct recovery *recovery);
// Goes on behind serving.
void recovery_start(struct recovery *recovery);
void recovery_stop(struct recovery *recovery);
// The index was dropped (or has lost something): put back what segments hold. Any thread.
void recovery_want_rebuild(struct recovery *recovery);
// The index is injured: it goes, and the same. Any thread.
void recovery_want_new_index(struct recovery *recovery);
// It holds places of a segment that is gone, nobody knows which: a round finds them. Any thread.
void recovery_want_round(struct recovery *recovery);

#endif
