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
//   policy.c            events and segments come in here
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

#define POLICY_GROUPS 32u // groups of runs, see store.h

enum policy_kind {
    POLICY_LRU,   // everything is admitted, the oldest segment goes
    POLICY_EPOCH, // learns when what is read again
};

struct policy_options {
    enum policy_kind kind;
    uint64_t capacity_bytes; // of all segments together
    uint32_t segment_max;    // segments there may be at once, whatever their state
    uint32_t run_max;        // runs ranked at once; others are evicted with their segment
    uint32_t former_max;     // dropped and refused runs to remember, roughly; 0: run_max
    uint64_t identity;       // of the cache; policy_load() refuses what another cache saved
    // Set if only the first policy_region_least() bytes of the region are mapped initially. Extends
    // the mapped part to `bytes` bytes. If it returns false, the run that needs them is not ranked.
    // Called when a run is added.
    bool (*grow)(void *ctx, size_t bytes);
    void *grow_ctx;
};

struct policy;

// Returns the bytes that runs and remembered former runs need: at most 16 for each of `run_max` if
// a segment holds 64 runs or more.
size_t policy_region_bytes(const struct policy_options *options);
// Returns the part of these bytes that is needed while there are no runs.
size_t policy_region_least(const struct policy_options *options);
// `region`: policy_region_bytes() zeroed bytes, aligned to 64. The caller owns it, and it must
// outlive the policy. The policy allocates its fixed part itself: less than 1 MiB.
struct policy *policy_new(const struct policy_options *options, void *region);
void policy_free(struct policy *policy); // NULL is fine
// Changes the capacity. Events that the policy has learnt keep their ticks; newer ones replace them
// in time.
void policy_resize(struct policy *policy, uint64_t capacity_bytes);
// Sets whether a new segment needs the eviction of another one. Until then everything is admitted.
// Choosing a victim sets it, too.
void policy_set_full(struct policy *policy, bool is_full);

// Returns the key of a run: the run begins at block `first_block` of the object with that hash. All
// versions of an object have the same keys.
static inline uint64_t policy_key(struct hash128 hash, uint64_t first_block)
{
    uint64_t key = hash.lo ^ (first_block * 0x9e3779b97f4a7c15u);
    key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
    return key ^ key >> 32;
}

// --- what workers do -----------------------------------------------------------------------------

enum policy_verdict {
    POLICY_REFUSE,
    POLICY_PROBATION, // stored in a segment of such runs, which is evicted soon
    POLICY_STORE,
};

// Decides whether to store a run that was missed. Any thread, no lock. `is_part`: the request wants
// only a part of the run. Others will want the rest soon, so the run is not refused, whatever it is
// worth. *ret_stamp goes into the event of this miss and, if the run is stored, into its
// POLICY_STORED event.
enum policy_verdict policy_admit(const struct policy *policy, uint64_t key, unsigned group,
                                 bool is_part, uint32_t *ret_stamp);

enum policy_event_kind {
    // After each colon: the fields that this kind needs.
    POLICY_READ,     // a stored run was read: segment, start
    POLICY_ADMITTED, // a miss was admitted: stamp
    POLICY_REFUSED,  // a miss was refused, or could not be stored: stamp
    POLICY_STORED,   // a run was stored: segment, start, len, stamp
    POLICY_GONE,     // a run was deleted or overwritten: segment, start
};

struct policy_event {
    uint64_t key;
    uint32_t segment, start; // number of the segment; where the run begins in it
    uint32_t len;            // bytes: of the run (POLICY_STORED), otherwise of the request
    uint32_t stamp;
    uint32_t group; // of its present rule (POLICY_READ, POLICY_STORED)
    enum policy_event_kind kind;
    bool is_part;      // a miss: as passed to policy_admit()
    bool on_probation; // POLICY_STORED: the verdict was POLICY_PROBATION
};

void policy_take(struct policy *policy, const struct policy_event *events, size_t count);

// --- segments ------------------------------------------------------------------------------------

// Adds a segment. Returns false if its place in the table is taken: its runs are then not ranked. A
// segment of that number from policy_load() keeps its runs: see policy_save.c.
bool policy_segment_begin(struct policy *policy, uint32_t number);
bool policy_segment_knows(const struct policy *policy, uint32_t number);
// Stamp of a request that belongs to the same use as the one before. In policy_segment_append():
// the caller knows nothing of the run's past.
#define POLICY_STAMP_SAME (UINT32_MAX - 1)
// Adds a stored run to the segment. Runs come in ascending order of `start`, or nearly so.
// Returns false if there is no room: the run is then not ranked.
bool policy_segment_append(struct policy *policy, uint32_t number, uint32_t start, uint32_t len,
                           uint64_t key, uint32_t stamp);
void policy_segment_seal(struct policy *policy, uint32_t number);
uint32_t policy_segment_run_count(const struct policy *policy, uint32_t number);
// Gets the start of the run at `index`. Returns false if it is gone, or there is none.
bool policy_segment_run(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_start);

// Gets the index of the run that begins at `start`. Returns false if it is gone, or there is none.
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
// Returns true if no run has been stored on probation for a while, so no segment has to stay open
// for such runs.
bool policy_probation_is_idle(const struct policy *policy);
// Records that a survivor was rewritten to the segment `to`, at `start`.
void policy_segment_move(struct policy *policy, uint32_t from, uint32_t index, uint32_t to,
                         uint32_t start, uint32_t len);
// Gets how long ago the run was used last, in ticks of the policy's clock. Returns false if it is
// gone.
bool policy_segment_age(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_ticks);
// Drops the run, and remembers its past under `key`.
void policy_segment_drop(struct policy *policy, uint32_t number, uint32_t index, uint64_t key);
void policy_segment_free(struct policy *policy, uint32_t number); // with its remaining runs

// --- rules ---------------------------------------------------------------------------------------

// Settings for the runs of a group. A change holds for stored runs, too. A run belongs to the group
// that it was stored or read with last.
struct policy_group {
    float factor;           // multiplies the worth of its runs
    bool is_pinned;         // its runs stay while all pinned runs are within their limit
    unsigned share_percent; // of the capacity: above it, its runs lose worth; 0: no limit
    // Group without a pin. It gets the runs that should be pinned and find no room, and all runs of
    // this group when it is vacated.
    unsigned plain;
    uint64_t identity; // of its rule, the same after a restart; 0: its number identifies it
};
// Sets the options of a group that is not being vacated. Initially each group has factor 1 and
// nothing else. Afterwards call policy_groups_step() until it returns false.
void policy_group_set(struct policy *policy, unsigned group, const struct policy_group *options);
uint64_t policy_group_identity(const struct policy *policy, unsigned group);
// Vacates groups (a bit each), because their rules are gone. Each run moves to the `plain` group of
// its group. Once policy_groups_step() has returned false, these groups have their initial options.
void policy_groups_vacate(struct policy *policy, uint32_t groups);
// Goes through the runs of some segments: about `runs_max` runs, or all of one segment. Returns
// false when all segments are done.
bool policy_groups_step(struct policy *policy, uint32_t runs_max);
// Sets the limit of all pinned runs together; 0 at first: nothing is pinned. If the pinned runs
// exceed a lower limit, no pin keeps its run until they fit.
void policy_pins_set_max(struct policy *policy, uint64_t bytes);

struct policy_group_figures {
    // Held, and the limit. Pinned: of all pinned groups together. Limit 0 if neither pin nor share.
    uint64_t bytes, bytes_max;
    bool is_pinned;
    unsigned share_percent;
    unsigned plain; // as in its options; without an identity, the group itself
};
void policy_group_figures(const struct policy *policy, unsigned group,
                          struct policy_group_figures *ret_figures);
// Returns how many runs of a segment are kept by their pins, or whether one run is.
uint32_t policy_segment_pinned_count(const struct policy *policy, uint32_t number);
bool policy_segment_is_pinned(const struct policy *policy, uint32_t number, uint32_t index);
// Returns the group of that run; POLICY_GROUPS if it is gone, or there is none.
unsigned policy_segment_group(const struct policy *policy, uint32_t number, uint32_t index);
// Moves the run to that group, as a read does. If the group is pinned and pins have no room, the
// run goes to the `plain` group instead.
void policy_segment_regroup(struct policy *policy, uint32_t number, uint32_t index, unsigned group);

// --- across restarts -----------------------------------------------------------------------------

#define POLICY_PIECE_MAX 65536u

// Saves the policy's knowledge in pieces of at most POLICY_PIECE_MAX bytes, so that no step takes
// long; each is whole by itself. Begin with a zeroed cursor. Returns the length of the piece; 0
// after the last one. A value that changes between two pieces is saved as it was or as it is.
struct policy_cursor {
    uint32_t step, at, run;
};
size_t policy_save(const struct policy *policy, struct policy_cursor *cursor, void *ret_piece);
// Loads a saved piece into a new policy, before its first event. Pieces may come in any order.
// ERR_FORMAT: of another version or another cache; ERR_CORRUPT: damaged. Such a piece changes
// nothing: what it knew is learnt again. Set the groups before: the first piece maps the groups of
// the former process to them. Loaded segments are no victims until they are sealed.
enum err policy_load(struct policy *policy, const void *piece, size_t len) MUST_USE;
// Forgets loaded segments that were not begun or sealed since, because they no longer exist.
void policy_load_done(struct policy *policy);

// --- figures -------------------------------------------------------------------------------------

struct policy_stats {
    uint64_t admitted_bytes, refused_bytes, rewritten_bytes, dropped_bytes;
    uint64_t unranked_runs; // found no room in the region
    uint64_t silences;      // begun
    uint64_t pinned_bytes, pinned_max_bytes;
    uint64_t pins_refused; // runs that should have been pinned, but pins had no room
    uint64_t pins_lost;    // pinned runs that were dropped all the same
    float bar, known_share;
    uint32_t tick; // of its clock
    bool is_full, is_silent;
};
void policy_stats(const struct policy *policy, struct policy_stats *ret_stats);

// --- why -----------------------------------------------------------------------------------------

#define POLICY_UNKNOWN UINT64_MAX

struct policy_explanation {
    bool is_stored;       // and ranked
    bool is_known;        // its past is known: it is stored, or remembered
    bool is_pinned;       // stored, and kept by its pin
    bool is_on_probation; // stored, and evicted soon
    bool would_be_taken;  // a request now would store it for its worth, not on probation
    unsigned group;
    // Requested from the cache since its last use, by the policy's clock; or POLICY_UNKNOWN.
    uint64_t age_bytes;
    uint32_t age_ticks; // the same in ticks
    // Lower bounds of the interval between its last two uses, and of the interval before that one;
    // 0: there was none.
    uint64_t interval_bytes, former_interval_bytes;
    float rank; // worth of the stored run; otherwise its worth to a request that would store it
    float bar;  // a run is stored if it is worth more; below 0: every run is stored
};
// Explains the run of `key`. It is stored in segment `number` at `start`; number 0: it is not
// stored. `group`: as for policy_admit().
void policy_explain(const struct policy *policy, uint64_t key, unsigned group, uint32_t number,
                    uint32_t start, struct policy_explanation *ret_explanation);

#endif
