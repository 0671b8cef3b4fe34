// SPDX-License-Identifier: Apache-2.0
// Decides which runs to admit, which segment to evict, and which of its runs to rewrite. The policy
// does no file I/O, and identifies each run only by a key.
//
// Threads: one thread of the store owns the policy. Only the owner may call, except where a comment
// says any thread. Workers call policy_admit(). Each worker puts its events into its own ring
// (policy_ring.h), which the owner drains into policy_take(). Nothing here locks, blocks, or
// allocates after policy_new().
//
// The life of a segment: begin -> append (its runs, from rings or directly) -> seal -> chosen by
// policy_victim() -> move (a survivor, rewritten elsewhere) or drop (each other run) -> free.
//
// Files:
//   policy.c            the functions that callers use, and the events
//   policy_publish.c    answers to workers
//   policy_clock.c      age, classes and silence
//   policy_monitor.c    evidence: reuse by age
//   policy_rank.c       the worth of a run, from the evidence
//   policy_ghost.c      the past of dropped and refused runs
//   policy_probation.c  runs that are stored in spite of low worth
//   policy_segments.c   the runs of each segment
//   policy_reclaim.c    the bar for admission, and the victim of eviction
//   policy_lru.c        evicts the oldest segment
//   policy_group.c      priorities
//   policy_save.c       save and load, across restarts
//   policy_explain.c    reasons for a decision
#ifndef FOREBAY_STORE_POLICY_H
#define FOREBAY_STORE_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"

#define POLICY_GROUPS 32u // number of groups; group 0: normal priority, or the rule is unknown

enum policy_kind {
    POLICY_LRU,   // admits every run, evicts the oldest segment
    POLICY_EPOCH, // learns after which interval runs are read again
};

struct policy_options {
    enum policy_kind kind;
    uint64_t capacity_bytes; // capacity of all segments together
    uint32_t segment_max;    // limit on the number of segments in all states together
    uint32_t run_max;        // limit on ranked runs; further runs are stored but not ranked
    uint32_t former_max;     // about how many former runs are remembered; 0: run_max
    uint64_t identity;       // identifies the cache; policy_load() refuses pieces of another one
    // Set if only the first policy_region_least() bytes of the region are mapped initially. The
    // policy calls it when a run is added. It extends the mapped part to `bytes` bytes. If it
    // returns false, the policy does not rank the run that needs the memory.
    bool (*grow)(void *ctx, size_t bytes);
    void *grow_ctx;
};

struct policy;

// Returns the size of the region, which describes the stored runs and remembers former ones. It
// needs at most 16 bytes for each of `run_max` runs if each segment holds 64 runs or more.
size_t policy_region_bytes(const struct policy_options *options);
// Returns the part of policy_region_bytes() that is needed while there are no runs.
size_t policy_region_least(const struct policy_options *options);
// `region`: policy_region_bytes() zeroed bytes, aligned to 64. The caller owns them and keeps them
// until policy_free(). All other memory of the policy is allocated here, less than 1 MiB.
struct policy *policy_new(const struct policy_options *options, void *region);
void policy_free(struct policy *policy); // accepts NULL
// Changes the capacity, and so the length of a tick. The policy has learnt ages in ticks. They keep
// their number of ticks until newer evidence replaces them.
void policy_resize(struct policy *policy, uint64_t capacity_bytes);
// Sets whether a new segment needs the eviction of another one. While false, every run is admitted.
// policy_victim() sets it to true.
void policy_set_full(struct policy *policy, bool is_full);

// Returns the key of the run that begins at block `first_block` of the object with that hash. All
// versions of the object share the key.
static inline uint64_t policy_key(struct hash128 hash, uint64_t first_block)
{
    uint64_t key = hash.lo ^ (first_block * 0x9e3779b97f4a7c15u);
    key = (key ^ key >> 32) * 0xd6e8feb86659fd93u;
    return key ^ key >> 32;
}

// --- what workers do -----------------------------------------------------------------------------

enum policy_verdict {
    POLICY_REFUSE,
    POLICY_PROBATION, // store it in a segment for runs on probation, which is evicted soon
    POLICY_STORE,
};

// Decides whether to store the run. `is_part`: the client requested only a part of the run. It will
// probably request the other parts soon, so the run is never refused. The caller copies *ret_stamp
// into the event of this request and, if the run is stored, into its POLICY_STORED event. Any
// thread, no lock.
enum policy_verdict policy_admit(const struct policy *policy, uint64_t key, unsigned group,
                                 bool is_part, uint32_t *ret_stamp);

enum policy_event_kind {
    // Each comment ends with the fields of struct policy_event that are set in addition to `key`.
    POLICY_READ,     // a stored run was read: segment, start, len, group
    POLICY_ADMITTED, // a miss was admitted: len, stamp, is_part
    POLICY_REFUSED,  // a miss was refused, or could not be stored: len, stamp, is_part
    POLICY_STORED,   // a run was stored: segment, start, len, group, stamp, on_probation
    POLICY_GONE,     // a stored run was deleted or overwritten: segment, start
};

struct policy_event {
    uint64_t key;
    uint32_t segment, start; // segment number, and the run's offset in it
    uint32_t len;            // POLICY_STORED: bytes of the run; else bytes requested
    uint32_t stamp;          // the stamp that policy_admit() returned
    uint32_t group;          // group of the rule that now applies to the run
    enum policy_event_kind kind;
    bool is_part;      // the value that was passed to policy_admit()
    bool on_probation; // policy_admit() returned POLICY_PROBATION
};

void policy_take(struct policy *policy, const struct policy_event *events, size_t count);

// --- segments ------------------------------------------------------------------------------------

// Adds a new segment. Returns false if another segment uses its entry of the table; its runs are
// then not ranked. A segment that policy_load() has added keeps its loaded runs.
bool policy_segment_begin(struct policy *policy, uint32_t number);
bool policy_segment_knows(const struct policy *policy, uint32_t number);
// Stamp of a request that follows another one for the same run so soon that both count as one use.
// When a run is stored with this stamp, the policy takes the run's past from the ghost, if known.
#define POLICY_STAMP_SAME (UINT32_MAX - 1)
// Adds a stored run to its segment. Runs may be added in an order that differs slightly from that
// of their offsets. Returns false if the policy cannot rank the run, because its segment is unknown
// or the region is full.
bool policy_segment_append(struct policy *policy, uint32_t number, uint32_t start, uint32_t len,
                           uint64_t key, uint32_t stamp);
void policy_segment_seal(struct policy *policy, uint32_t number);
uint32_t policy_segment_run_count(const struct policy *policy, uint32_t number);
// Sets *ret_start to the offset of the run with that index. Returns false if the run is gone, or
// there is no such index.
bool policy_segment_run(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_start);

// Sets *ret_index to the index of the run at offset `start`. Returns false if the run is gone, or
// none begins there.
bool policy_segment_find(const struct policy *policy, uint32_t number, uint32_t start,
                         uint32_t *ret_index);

struct policy_victim {
    uint32_t number;
    uint32_t survivor_count;
};
// Chooses the segment to evict among those for which may_go() returns true. Returns false if there
// is none. Writes to ret_survivors the indices of the runs to rewrite, in ascending order and at
// most `survivor_max` of them.
bool policy_victim(struct policy *policy, bool (*may_go)(void *ctx, uint32_t number), void *ctx,
                   uint32_t *ret_survivors, uint32_t survivor_max,
                   struct policy_victim *ret_victim);
// Returns true if nothing has been stored on probation for a while. The caller may then seal the
// open segment for such runs.
bool policy_probation_is_idle(const struct policy *policy);
// Records that a survivor was rewritten to segment `to` at offset `start`.
void policy_segment_move(struct policy *policy, uint32_t from, uint32_t index, uint32_t to,
                         uint32_t start, uint32_t len);
// Sets *ret_ticks to the time since the run's last use, in ticks of the policy's clock. Returns
// false if the run is gone.
bool policy_segment_age(const struct policy *policy, uint32_t number, uint32_t index,
                        uint32_t *ret_ticks);
// Removes an evicted run, and remembers its past under `key`.
void policy_segment_drop(struct policy *policy, uint32_t number, uint32_t index, uint64_t key);
// Removes the segment and its remaining runs.
void policy_segment_free(struct policy *policy, uint32_t number);

// --- rules ---------------------------------------------------------------------------------------

// Settings for the runs of a group. A change also applies to runs that are already stored. A run
// belongs to the group of its latest POLICY_STORED or POLICY_READ event.
struct policy_group {
    float factor;           // multiplies the worth of the group's runs
    bool is_pinned;         // pins the group's runs, up to the limit of policy_pins_set_max()
    unsigned share_percent; // part of the capacity beyond which worth falls steeply; 0: no limit
    // The group with the same priority but without pin and share. It receives the group's runs when
    // the rule is removed, and runs that cannot be pinned because pins have no room.
    unsigned plain;
    uint64_t identity; // identifies the rule across restarts; 0: the group's number does that
};
// Changes the settings of a group. Initially each group has factor 1, no pin and no share. Must not
// be called while the group is being vacated. Afterwards the owner calls policy_groups_step() until
// it returns false.
void policy_group_set(struct policy *policy, unsigned group, const struct policy_group *options);
uint64_t policy_group_identity(const struct policy *policy, unsigned group);
// Starts to empty the groups in this bit set, because their rules were removed.
// policy_groups_step() moves their runs to the groups' `plain`. When it returns false, the groups
// have their initial settings.
void policy_groups_vacate(struct policy *policy, uint32_t groups);
// Moves stored runs to other groups, and counts pinned runs again, after policy_group_set() or
// policy_groups_vacate(). Visits one segment after the other, until it has visited at least
// `runs_max` runs. Returns false when all segments are done.
bool policy_groups_step(struct policy *policy, uint32_t runs_max);
// Sets the limit on the bytes of all pinned runs together. It is 0 initially, so nothing is pinned.
// While the pinned runs exceed the limit, the policy ignores all pins.
void policy_pins_set_max(struct policy *policy, uint64_t bytes);

struct policy_group_figures {
    // Bytes of the group's stored runs, and their limit (0: none). For a pinned group, both are of
    // all pinned groups together.
    uint64_t bytes, bytes_max;
    bool is_pinned;
    unsigned share_percent;
    unsigned plain; // `plain` of struct policy_group; the group itself if it has no rule
};
void policy_group_figures(const struct policy *policy, unsigned group,
                          struct policy_group_figures *ret_figures);
// Returns how many runs of the segment are kept by their pins.
uint32_t policy_segment_pinned_count(const struct policy *policy, uint32_t number);
// Returns whether that run is kept by its pin.
bool policy_segment_is_pinned(const struct policy *policy, uint32_t number, uint32_t index);
// Returns the group of that run; POLICY_GROUPS if the run is gone, or there is no such index.
unsigned policy_segment_group(const struct policy *policy, uint32_t number, uint32_t index);
// Moves the run to that group, as a POLICY_READ event would. If the group is pinned and pins have
// no room, the run moves to the group's `plain`.
void policy_segment_regroup(struct policy *policy, uint32_t number, uint32_t index, unsigned group);

// --- across restarts -----------------------------------------------------------------------------

#define POLICY_PIECE_MAX 65536u
#define POLICY_PIECE_HEAD 40u

// The position up to which policy_save() has saved. The caller zeroes it to begin.
struct policy_cursor {
    uint32_t step, at, run;
};
// Saves the policy's knowledge in pieces of at most POLICY_PIECE_MAX bytes, so that no step takes
// long. Each piece can be loaded without the others. Returns the length of the next piece; 0 after
// the last one. A value that changes between two pieces is saved as before or as after the change.
// The first call also makes the policy learn from the latest requests, however few they are.
size_t policy_save(struct policy *policy, struct policy_cursor *cursor, void *ret_piece);
// Loads a piece into a new policy, before its first event. The caller must have set the groups.
// Pieces may be loaded in any order. But the first saved piece maps the saved groups to the present
// ones, so it should be loaded first. Returns ERR_FORMAT if the piece is from another version or
// cache, ERR_CORRUPT if it is damaged. A refused piece changes nothing, and the policy learns its
// content again. A loaded segment is not evicted until it is sealed.
enum err policy_load(struct policy *policy, const void *piece, size_t len) MUST_USE;
// Returns the `former_max` of the policy that saved this piece, of which the first
// POLICY_PIECE_HEAD bytes are enough; 0: unknown. policy_load() refuses what a policy with another
// `former_max` remembers of former runs.
uint32_t policy_saved_former(const void *piece, size_t len);
// Removes the loaded segments that the store has neither begun nor sealed, because they no longer
// exist.
void policy_load_done(struct policy *policy);

// --- figures -------------------------------------------------------------------------------------

struct policy_stats {
    uint64_t admitted_bytes, refused_bytes, rewritten_bytes, dropped_bytes;
    uint64_t unranked_runs; // runs stored without a rank, because a page or table entry was lacking
    uint64_t silences;      // number of silences (policy_clock.c) so far
    uint64_t pinned_bytes, pinned_max_bytes;
    uint64_t pins_refused; // runs stored without their pin because pins had no room
    uint64_t pins_lost;    // pinned runs that were evicted nevertheless
    float bar, known_share;
    uint32_t tick; // present tick of the policy's clock
    bool is_full, is_silent;
};
void policy_stats(const struct policy *policy, struct policy_stats *ret_stats);

// --- why -----------------------------------------------------------------------------------------

#define POLICY_UNKNOWN UINT64_MAX

struct policy_explanation {
    bool is_stored;       // the run is stored and ranked
    bool is_known;        // the run's past is known, because it is stored or in the ghost
    bool is_pinned;       // a pin keeps the run
    bool is_on_probation; // the run's segment is on probation
    bool would_be_taken;  // a request now would store the run, and not on probation
    unsigned group;
    // Time since the run's last use, in requested bytes as the policy's clock counts them.
    // POLICY_UNKNOWN: no use is known.
    uint64_t age_bytes;
    // Lower bounds of the last interval between two uses of the run, and of the interval before
    // that one. 0: there was no such interval.
    uint64_t interval_bytes, former_interval_bytes;
    float rank; // worth of the stored run; if it is not stored, its worth if stored now
    float bar;  // the worth that a new run must exceed; below 0: every run is admitted
};
// Explains the decisions about the run with that key. `group`: as for policy_admit(). `number`,
// `start`: the run's segment and offset; number 0 if it is not stored.
void policy_explain(const struct policy *policy, uint64_t key, unsigned group, uint32_t number,
                    uint32_t start, struct policy_explanation *ret_explanation);

#endif
