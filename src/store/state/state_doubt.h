// SPDX-License-Identifier: Apache-2.0
// Buckets that may still change without notice, see state_doubt.c.
#ifndef FOREBAY_STORE_STATE_STATE_DOUBT_H
#define FOREBAY_STORE_STATE_STATE_DOUBT_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/disk/disk.h"
#include "store/store.h"

struct store_doubt_slot {
    struct hash128 bucket;          // set before the slot counts
    _Atomic uint64_t until_mono_ms; // of this process; 0: never was in doubt
    _Atomic uint64_t until_wall_ms; // of those before it; 0: as above
    atomic_bool is_noted;           // `format` says that it is being written to
};

struct store_doubts {
    struct store_disk *disk;
    atomic_bool any;                // false: nothing was ever in doubt
    struct store_doubt_slot others; // all buckets that have no slot
    atomic_uint count;
    struct store_doubt_slot slots[STATE_DOUBTS_MAX]; // never given back
    pthread_mutex_t lock;                            // of who adds a slot; alone
    atomic_uint passings; // of threads that look for a note, and of the one that removes notes
    _Atomic uint64_t idle_since_ms; // the supply thread's: no write was seen since
};

// From `format`, at the opening, before it is written; into `format`, at a clean stop.
void state_doubts_load(struct store_doubts *doubts);
void state_doubts_settle(struct store_doubts *doubts);
// As if every bucket were being written to. Under the lock of `format`, which is written next.
void state_doubts_note_all(struct store_doubts *doubts);
// Each second, on the supply thread: takes back notes that are of no use any more.
void state_doubts_tick(struct store_doubts *doubts);
void state_doubts_init(struct store_doubts *doubts, struct store_disk *disk); // zeroed before
void state_doubts_done(struct store_doubts *doubts);
// As store_doubt() and the calls behind it.
void state_doubt(struct store_doubts *doubts, struct span origin, struct span bucket);
bool state_is_doubted(const struct store_doubts *doubts, struct span origin, struct span bucket,
                      uint64_t age_ms);
bool state_write_is_noted(const struct store_doubts *doubts, struct span origin,
                          struct span bucket);
void state_write_note(struct worker *w, struct store_doubts *doubts, struct span origin,
                      struct span bucket, struct store_note *note);

#endif
