// SPDX-License-Identifier: Apache-2.0
// The state that outlives a life: the origin, the acknowledged writes, the clocks. It is in memory
// that the test and the lives share. And the model of what the store may return.
//
// Version n of a key has bytes of its own, and its ETag says n. A generation is a promise of the
// store's order. After the last life, and all through the next:
// - A version that is found and needs no confirmation was put with a generation that no answered
//   delete has passed. It is not older than the version that the last acknowledged write left at
//   the origin.
// - A condemned copy is not found at all, confirmed or not.
// - Every byte that is read is of the version that was found.
// - On an honest disk, a version that was put and had the time to become durable is there and not
//   damaged. A version that was put later may be found by its header alone. The index is never
//   discarded.
// - An answered change of the bucket's epoch lasts. Generations rise.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_PAST_H
#define FOREBAY_TESTS_UNIT_SIMULATION_PAST_H

#include "base/bytes.h"
#include "plan.h"

#define KEYS (PLAN_KEYS + PLAN_BULK_KEYS)
#define VERSIONS_MAX 256u
#define PUTS_MAX 1024u
#define DURABLE_US 1000000u // a run put this long ago is on disk, unless the disk is slow

struct key_past {
    unsigned number;       // the origin's version now
    unsigned acked_number; // what the last acknowledged write left there
    uint64_t floor;        // an answered delete's
    uint64_t condemned_below;
    bool is_kept;    // the last put since anything was invalidated ...
    bool is_durable; // ... is on the disk
    uint64_t kept_at_us;
};

struct put_past {
    unsigned key, life;
    uint32_t segment_number, header_offset;
    uint64_t salt, at_us;
    bool is_durable;
};

enum tally {
    TALLY_READ, // of them found, and judged byte for byte:
    TALLY_SERVED,
    TALLY_UNCONFIRMED,
    TALLY_DAMAGED,
    TALLY_STORED,
    TALLY_REFUSED,
    TALLY_ACKNOWLEDGED,
    TALLY_DELETES_FAILED,
    TALLY_CONDEMNED,
    TALLY_EPOCHS,
    TALLY_KILLS,
    TALLY_CUTS,
    TALLY_CUTS_AT_START, // of both, before the store had opened
    TALLY_LIES,
    TALLY_REMOVED,
    TALLY_REWRITTEN, // KiB of survivors
    TALLY_GIVEN,     // KiB of segments that went back to the file system
    TALLY_COUNT_
};

struct past {
    struct plan plan;
    unsigned life;
    bool is_opening;
    bool has_lied; // a sync, in any life so far
    bool is_loud;
    unsigned boot;
    uint64_t monotonic_us, wall_us;
    uint64_t generation; // the last that was seen
    uint64_t epoch;      // the last that was answered
    bool has_index;      // a store has been open
    bool has_bulk;       // so much was put that something may have had to go
    struct key_past keys[KEYS];
    struct put_past puts[PUTS_MAX];
    unsigned put_count;
    unsigned long tally[TALLY_COUNT_];
    char failure[512];
};
extern struct past *past;

#define LIFE_STRUCK 7
#define LIFE_FAILED 8
#define LIFE_REFUSED 9    // somebody has to remove the directory
#define LIFE_INDEX_BAD 70 // the store itself ended it: the file below its map is damaged

// Runs past->plan.lives[past->life] in this process, and ends it.
void store_life(const char *dir) __attribute__((noreturn));

#endif
