// SPDX-License-Identifier: Apache-2.0
// Buckets that a write with an unknown outcome may still change; see state_doubt.c.
#ifndef FOREBAY_STORE_STATE_STATE_DOUBT_H
#define FOREBAY_STORE_STATE_STATE_DOUBT_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/disk/disk.h"
#include "store/store.h"

struct store_doubt_slot {
    struct hash128 bucket; // hash of (origin, bucket); final once the slot is within `count`
    _Atomic uint64_t until_mono_ms; // end of the last doubt of this process; 0: none
    _Atomic uint64_t until_wall_ms; // end of a doubt from an earlier process; 0: none
    atomic_bool is_noted;           // `format` notes that the bucket is being written to
};

struct store_doubts {
    struct store_disk *disk;
    atomic_bool any;                // false: no bucket was ever in doubt
    struct store_doubt_slot others; // shared by all buckets without a slot
    atomic_uint count;
    struct store_doubt_slot slots[STATE_DOUBTS_MAX]; // the first `count` are in use, for good
    pthread_mutex_t lock; // guards adding a slot and a doubt; no other lock is taken under it
    atomic_uint passings; // orders a write's check for its note and the removal of notes
    // Monotonic. The supply thread has seen no write since then. 0: it has not checked yet.
    _Atomic uint64_t idle_since_ms;
};

// state_doubts_load() reads the doubts from `format`; called at the opening, before `format` is
// written. state_doubts_settle() puts them into `format` at a clean stop.
void state_doubts_load(struct store_doubts *doubts);
void state_doubts_settle(struct store_doubts *doubts);
// Notes that every bucket is being written to. Called under the lock of `format`, before the caller
// writes `format`.
void state_doubts_note_all(struct store_doubts *doubts);
// Removes the notes if there was no write for STORE_DOUBT_MS. Called each second by the supply
// thread.
void state_doubts_tick(struct store_doubts *doubts);
// The caller has zeroed *doubts.
void state_doubts_init(struct store_doubts *doubts, struct store_disk *disk);
void state_doubts_done(struct store_doubts *doubts);
// Implement store_doubt() and the calls that follow it in store.h.
void state_doubt(struct store_doubts *doubts, struct span origin, struct span bucket);
bool state_is_doubted(const struct store_doubts *doubts, struct span origin, struct span bucket,
                      uint64_t age_ms);
bool state_write_is_noted(const struct store_doubts *doubts, struct span origin,
                          struct span bucket);
void state_write_note(struct worker *w, struct store_doubts *doubts, struct span origin,
                      struct span bucket, struct store_note *note);

#endif
