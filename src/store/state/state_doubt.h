// SPDX-License-Identifier: Apache-2.0
// Remembers buckets that a write with an unknown outcome may still change. See state_doubt.c.
#ifndef FOREBAY_STORE_STATE_STATE_DOUBT_H
#define FOREBAY_STORE_STATE_STATE_DOUBT_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/disk/disk.h"
#include "store/store.h"

struct store_doubt_slot {
    struct hash128 bucket; // hash of (origin, bucket); never changes once the slot is in `count`
    _Atomic uint64_t until_mono_ms; // monotonic end of the last doubt of this process; 0: none
    _Atomic uint64_t until_wall_ms; // wall-clock end of an earlier process's doubt; 0: none
    atomic_bool is_noted;           // `format` notes that the bucket is being written to
};

struct store_doubts {
    struct store_disk *disk;
    atomic_bool any; // false: no bucket was ever in doubt
    // Monotonic end of the doubts that state_doubts_load() found notes of. 0: it found no note.
    _Atomic uint64_t crash_until_ms;
    // Above 0: the next write saves `format` before it is sent, or before it ends. Either `format`
    // has lines of former holders (state_holder.c), or a doubt that a reload began may not be in
    // it.
    atomic_uint unsaved;
    struct store_doubt_slot others; // shared by all buckets without a slot
    atomic_uint count;              // number of slots in use; it only rises
    struct store_doubt_slot slots[STATE_DOUBTS_MAX];
    // Held while a slot or a doubt is added. No other lock is taken while it is held.
    pthread_mutex_t lock;
    // Deletes that are not durable yet, or that the disk has refused, although a write went on
    // because its bucket is noted. All notes stay until there is none.
    atomic_uint owed;
    // Incremented between the two steps of a write and of a removal of notes; see state_doubt.c.
    atomic_uint passings;
    // Monotonic time since which the supply thread has seen no write. 0: it has not checked yet.
    _Atomic uint64_t idle_since_ms;
};

// Reads the doubts from `format`. Called when the store opens, before `format` is written.
void state_doubts_load(struct store_doubts *doubts);
// Puts the doubts into `format` at a clean stop. Keeps the notes if some write has not ended.
void state_doubts_settle(struct store_doubts *doubts);
// Notes in the rows of `format` that every bucket is being written to. The caller holds the lock of
// `format` and then writes it.
void state_doubts_note_all(struct store_doubts *doubts);
// Requires that each record of the origin that was confirmed before now is revalidated before use,
// and puts the doubts into `format`. `origin` is the origin's name. The caller holds the lock of
// `format`, unless no other thread runs yet, and then writes it.
void state_doubt_origin(struct store_doubts *doubts, struct span origin);
// Requires the same of each record of all origins.
void state_doubt_all(struct store_doubts *doubts);
// Saves the doubts of a reload if a write is in flight. Removes the notes if there was no write for
// STORE_DOUBT_MS. The supply thread calls it every second.
void state_doubts_tick(struct store_doubts *doubts);
// Returns true if the bucket is noted as written to. All notes then stay until state_doubts_pay().
// Any thread.
bool state_doubts_owe(struct store_doubts *doubts, struct span origin, struct span bucket) MUST_USE;
void state_doubts_pay(struct store_doubts *doubts);
// The caller has zeroed *doubts.
void state_doubts_init(struct store_doubts *doubts, struct store_disk *disk);
void state_doubts_done(struct store_doubts *doubts);
// These functions implement store_doubt() and the calls that follow it in store.h.
void state_doubt(struct store_doubts *doubts, struct span origin, struct span bucket);
void state_doubt_begin(struct store_doubts *doubts, struct span origin, struct span bucket,
                       struct store_doubt_open *ret_open);
void state_doubt_end(struct store_doubts *doubts, const struct store_doubt_open *open);
bool state_is_doubted(const struct store_doubts *doubts, struct span origin, struct span bucket,
                      uint64_t age_ms);
uint64_t state_doubt_until_s(const struct store_doubts *doubts, struct span origin,
                             struct span bucket);
void state_doubted(const struct store_doubts *doubts, struct store_doubted *ret_doubted);
bool state_write_is_noted(const struct store_doubts *doubts, struct span origin,
                          struct span bucket);
void state_write_note(struct worker *w, struct store_doubts *doubts, struct span origin,
                      struct span bucket, struct store_note *note);

#endif
