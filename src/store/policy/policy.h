// SPDX-License-Identifier: Apache-2.0
// Decides which runs to admit, which segment to evict, and which of its runs to rewrite. It knows
// no files, and of an object only a key for each run.
//
// Threads: one owns the policy (the store's). Only the owner may call, except where a comment says
// any thread. Workers call policy_admit(), and put their events into a ring each (policy_ring.h),
// which the owner drains into policy_take(). Nothing here locks, blocks, or allocates after
// policy_new().
//
// The life of a segment: begin -> append (its runs, from rings or directly) -> seal -> named by
// policy_victim() -> move (a survivor, rewritten elsewhere) or drop (each other run) -> free.
//
// Files:
//   policy.c            the door
//   policy_publish.c    answers to workers
//   policy_clock.c      age, classes and silence
//   policy_monitor.c    evidence: reuse by age
//   policy_rank.c       the worth of a run, from the evidence
//   policy_ghost.c      dropped and refused runs
//   policy_probation.c  runs that are stored in spite of low worth
//   policy_segments.c   the runs of each segment
//   policy_reclaim.c    the bar and the victim
//   policy_lru.c        the oldest segment
//   policy_group.c      priorities
//   policy_save.c       across restarts
//   policy_explain.c    reasons
#ifndef FOREBAY_STORE_POLICY_H
#define FOREBAY_STORE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"

#define POLICY_GROUPS 32u // rules that runs may belong to; 0 is everybody's

enum policy_kind {
    POLICY_LRU,   // everything is admitted, the oldest segment goes
    POLICY_EPOCH, // learns when what is read again
};

struct policy_options {
    enum policy_kind kind;
    uint64_t capacity_bytes; // of all segments together
    uint32_t segment_max;    // segments there may be at once, whatever their state
    uint32_t run_max;        // runs known at once; more go unranked, with their segment
    uint32_t former_max;     // former runs that are remembered, about; 0: run_max
    uint64_t identity;       // of the cache: what was saved of another one is refused
    // Set if only the first policy_region_least() bytes of the region are mapped initially. Extends
    // the mapped part to `bytes` bytes. If it returns false, the run or segment that needs them
    // goes unranked. Called when a run is added.
    bool (*grow)(void *ctx, size_t bytes);
    void *grow_ctx;
};

struct policy;

// Bytes the runs and what is remembered of former ones need: at most 16 for each of `run_max` where
// a segment holds 64 of them or more.
size_t policy_region_bytes(const struct policy_options *options);
// The part of these bytes that is needed while there are no runs.
size_t policy_region_least(const struct policy_options *options);
// `region`: that many zeroed bytes, aligned to 64; the caller's, for as long as the policy lives.
// The fixed part is the policy's own, and below 1 MiB.
struct policy *policy_new(const struct policy_options *options, void *region);
void policy_free(struct policy *policy); // NULL is fine
// Changes the capacity. Events that the policy has learnt keep their ticks; newer ones replace them
// in time.
void policy_resize(struct policy *policy, uint64_t capacity_bytes);
// Sets whether a new segment needs the eviction of another one. Until then everything is admitted.
// Choosing a victim sets it, too.
void policy_set_full(struct policy *policy, bool is_full);

// One thing that is read again as a whole, whichever version of the object: block `first_block` of
// the object of that hash.
static inline uint64_t policy_key(struct hash128 hash, uint64_t first_block)
{
    uint64_t key = hash.lo ^ (first_block * 0x9e3779b97f4a7c15u);
    key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
    return key ^ key >> 32;
}

// --- what workers do -----------------------------------------------------------------------------

enum policy_verdict {
    POLICY_REFUSE,
    POLICY_PROBATION, // stored in a segment with others like it, which goes soon
    POLICY_STORE,
};

// Is it stored? Any thread, no lock. A part of it is wanted (`is_part`): the others will be, soon,
// and it is not refused, whatever it is worth. *ret_stamp goes into the event of this request and,
// when it is stored, into that of its storing.
enum policy_verdict policy_admit(const struct policy *policy, uint64_t key, unsigned group,
                                 bool is_part, uint32_t *ret_stamp);

enum policy_event_kind {
    POLICY_READ,     // of a run that is stored: segment, start
    POLICY_ADMITTED, // a miss that was admitted: stamp
    POLICY_REFUSED,  // a miss that was refused, or could not be stored: stamp
    POLICY_STORED,   // a run has its place now: segment, start, len, stamp
    POLICY_GONE,     // a run was deleted or overwritten: segment, start
};

struct policy_event {
    uint64_t key;
    uint32_t segment, start; // its number; where the run begins, rising within a segment
    uint32_t len;            // bytes: of the run when stored, else those that were asked for
    uint32_t stamp;
    uint32_t group; // when read or stored: of its rule now
    enum policy_event_kind kind;
    bool is_part;      // of a miss: as it was asked
    bool on_probation; // of a run that is stored
};

void policy_take(struct policy *policy, const struct policy_event *events, size_t count);

// --- segments ------------------------------------------------------------------------------------

// False: no room for one more, or its place in the table is taken; what it holds goes unranked. A
// segment that was loaded and begins again with the same number keeps its runs: see policy_save.c.
bool policy_segment_begin(struct policy *policy, uint32_t number);
bool policy_segment_knows(const struct policy *policy, uint32_t number);
// The stamp of a request that belongs to the use before; of what is stored, that nothing is known
// of it.
#define POLICY_STAMP_SAME (UINT32_MAX - 1)
// A run was stored there, behind all earlier ones or not far before. False: it goes unranked.
bool policy_segment_append(struct policy *policy, uint32_t number, uint32_t start, uint32_t len,
                           uint64_t key, uint32_t stamp);
void policy_segment_seal(struct policy *policy, uint32_t number);
uint32_t policy_segment_run_count(const struct policy *policy, uint32_t number);
// Where the run of that index begins; false: it is gone, or there is none.
bool policy_segment_run(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_start);

// The index of the run that begins there; false: it is gone, or there is none.
bool policy_segment_find(const struct policy *policy, uint32_t number, uint32_t start,
                         uint32_t *ret_index);

struct policy_victim {
    uint32_t number;
    uint32_t survivor_count;
};
// Chooses the segment to evict. Returns false if none may go. ret_survivors gets the indices of the
// runs to be rewritten, ascending, at most `survivor_max` of them.
bool policy_victim(struct policy *policy, bool (*may_go)(void *ctx, uint32_t number), void *ctx,
                   uint32_t *ret_survivors, uint32_t survivor_max,
                   struct policy_victim *ret_victim);
// Returns whether nothing has been stored on probation for a while: no segment is to be kept open
// for that.
bool policy_probation_is_idle(const struct policy *policy);
// A survivor lies elsewhere now.
void policy_segment_move(struct policy *policy, uint32_t from, uint32_t index, uint32_t to,
                         uint32_t start, uint32_t len);
// How long ago the run was used last, in ticks of the policy's clock; false: it is gone.
bool policy_segment_age(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_ticks);
// Drops the run; its past is kept under `key`.
void policy_segment_drop(struct policy *policy, uint32_t number, uint32_t index, uint64_t key);
void policy_segment_free(struct policy *policy, uint32_t number); // with its remaining runs

// --- rules ---------------------------------------------------------------------------------------

// Settings for the runs of a group. A change holds for stored runs, too. A run belongs to the group
// that it was stored or read with last.
struct policy_group {
    float factor;   // on what its runs are worth
    bool is_pinned; // they stay, while pins take no more than they may
    unsigned
        share_percent; // of the capacity; what is above that is worth less and less; 0: no limit
    unsigned plain;    // the group of what is to be pinned and finds no room: one without a pin
    uint64_t identity; // of its rule, over restarts; 0: the group's number is
};
// Any time but while it is being vacated; each has factor 1 at first. policy_groups_step() until it
// says that it is over.
void policy_group_set(struct policy *policy, unsigned group, const struct policy_group *options);
uint64_t policy_group_identity(const struct policy *policy, unsigned group);
// Their rules are gone: what is held of these (a bit each) counts as it would without them, and
// each is as it was at first, when policy_groups_step() says that it is over.
void policy_groups_vacate(struct policy *policy, uint32_t groups);
// Goes through the runs of some segments: about `runs_max` runs, or all of one segment. Returns
// false when all segments are done.
bool policy_groups_step(struct policy *policy, uint32_t runs_max);
// Sets the limit of all pinned runs together; 0 at first: nothing is pinned. If the pinned runs
// exceed a lower limit, no pin keeps its run until they fit.
void policy_pins_set_max(struct policy *policy, uint64_t bytes);

struct policy_group_figures {
    uint64_t bytes, bytes_max; // held, and at most, or 0; of pins all together
    bool is_pinned;
    unsigned share_percent;
    unsigned plain; // the group of its priority alone
};
void policy_group_figures(const struct policy *policy, unsigned group,
                          struct policy_group_figures *ret_figures);
// How many runs of a segment, or is that one, kept by their pins?
uint32_t policy_segment_pinned_count(const struct policy *policy, uint32_t number);
bool policy_segment_is_pinned(const struct policy *policy, uint32_t number, uint32_t index);
// The group of that run; POLICY_GROUPS: it is gone, or there is none.
unsigned policy_segment_group(const struct policy *policy, uint32_t number, uint32_t index);
// It belongs to that group from now on, as if it had been read: a pin wants room.
void policy_segment_regroup(struct policy *policy, uint32_t number, uint32_t index, unsigned group);

// --- across restarts -----------------------------------------------------------------------------

#define POLICY_PIECE_MAX 65536u

// Saves the policy's knowledge in pieces of at most POLICY_PIECE_MAX bytes, so that no step takes
// long; each is whole by itself. Begin with a zeroed cursor; 0: that was all. A value that changes
// between two pieces is saved as it was or as it is.
struct policy_cursor {
    uint32_t step, at, run;
};
size_t policy_save(const struct policy *policy, struct policy_cursor *cursor, void *ret_piece);
// Into a new policy, before its first event, in any order. ERR_FORMAT: of another version or
// another cache; ERR_CORRUPT: damaged. Such a piece changes nothing: what it knew is learnt again.
// The groups are set before; the first piece says which of them are which.
// Loaded segments are no victims until they are sealed.
enum err policy_load(struct policy *policy, const void *piece, size_t len) MUST_USE;
// Forgets the segments that were loaded and not begun or sealed since: they do not exist.
void policy_load_done(struct policy *policy);

// --- figures -------------------------------------------------------------------------------------

struct policy_stats {
    uint64_t admitted_bytes, refused_bytes, rewritten_bytes, dropped_bytes;
    uint64_t unranked_runs; // found no room in the region
    uint64_t silences;      // begun
    uint64_t pinned_bytes, pinned_max_bytes;
    uint64_t pins_refused; // runs that were to be pinned and found no room for that
    uint64_t pins_lost;    // pinned runs that went all the same, as there was no other way
    float bar, known_share;
    uint32_t tick; // of its clock
    bool is_full, is_silent;
};
void policy_stats(const struct policy *policy, struct policy_stats *ret_stats);

// --- why -----------------------------------------------------------------------------------------

#define POLICY_UNKNOWN UINT64_MAX

struct policy_explanation {
    bool is_stored;       // and ranked
    bool is_known;        // its past is: stored, or remembered
    bool is_pinned;       // and its pin keeps it
    bool is_on_probation; // and goes soon
    bool would_be_taken;  // asked for now it would be stored for its worth, not for a while only
    unsigned group;
    uint64_t
        age_bytes; // asked of the cache since its last use, as its clock counts; POLICY_UNKNOWN
    uint32_t age_ticks; // the same
    // Least that lay between its last use and the one before, and between that and the one before;
    // 0: there was none.
    uint64_t interval_bytes, former_interval_bytes;
    float rank; // worth of the run where it is stored, or else to a request that would store it
    float bar;  // what a run must be worth to be stored; below 0: anything is
};
// The run of `key`, of which policy_admit() would be asked with `group`; it is stored in segment
// `number` at `start`, or (number 0) it is not.
void policy_explain(const struct policy *policy, uint64_t key, unsigned group, uint32_t number,
                    uint32_t start, struct policy_explanation *ret_explanation);

#endif
