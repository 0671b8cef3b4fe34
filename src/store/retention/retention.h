// SPDX-License-Identifier: Apache-2.0
// Connects the store with its retention policy (policy.h). The store reports reads, misses, stored
// runs and removed runs. Retention decides which runs to admit and which segment to evict, and
// rewrites the survivors of that segment.
#ifndef FOREBAY_STORE_RETENTION_H
#define FOREBAY_STORE_RETENTION_H

#include <pthread.h>

#include "store/policy/policy.h"
#include "store/policy/policy_ring.h"
#include "store/retention/retention_region.h"
#include "store/segment/segment_log.h"
#include "store/segment/segment_table.h"
#include "store/store.h"

// After this many jobs in a row found no room for pinned runs, pinned runs are evicted.
#define RETENTION_PINS_TRIES 3u
#define RETENTION_HISTORY 64u // ticks whose time is remembered, to convert ages to milliseconds

struct index_writer;
struct segment_rows;
struct store_condemned;

// Callback to the store. drop() removes a run that could not be read or is corrupt. The retention
// thread calls it.
struct retention_host {
    void *ctx;
    void (*drop)(void *ctx, const struct store_place *place, struct hash128 hash, enum err why);
};

struct retention_options {
    struct store_disk *disk;
    struct segment_log *log;
    struct index_writer *writer;
    struct store_condemned *condemned;
    struct retention_host host;
    unsigned worker_count;
    bool was_clean;                   // the last process stopped cleanly
    bool learns;                      // the policy is `epoch`, not `lru`
    const struct store_group *groups; // groups of the rules; borrowed for the call
    unsigned group_count;
};

// Retention's state of a segment, in addition to its entry in the log's table.
struct retention_segment {
    // The retention's lock guards the first three fields. is_ranked: the policy knows the segment.
    // is_rank_sealed: the policy knows that the segment is full.
    bool is_ranked, is_rank_sealed;
    // The value of lost_runs in struct retention when the segment was last listed.
    unsigned lost_runs_then;
    // The policy learned some runs of the segment from its table, which does not say whether they
    // are pinned. Retention thread only.
    bool wants_review;
};

enum retention_phase {
#define RETENTION_PHASE(name, ...) RETENTION_##name,
#include "store/retention/retention_phases.def"
};

// State of pins, and the last values of their counters.
struct retention_pins {
    atomic_bool by_rules;    // a rule has a pin
    atomic_bool by_command;  // a command has pinned something
    atomic_bool keeps_spare; // pins exist, so the last spare segment is reserved for survivors
    // The retention's lock guards the fields below.
    unsigned tries;                // successive jobs that found no room for their pinned runs
    uint64_t refused, lost, bytes; // the policy's values as last added to the statistics
    uint64_t told_us;              // real time of the last pins_full message in the log; 0: none
};

struct retention {
    struct store_disk *disk;
    struct segment_log *log;
    struct index_writer *writer;
    struct store_condemned *condemned;
    struct retention_host host;
    bool was_clean; // the last process stopped cleanly
    // Used under `lock`, except by policy_admit(). NULL for the policy `lru`. Every run is then
    // admitted, the oldest segment is evicted, and no field below is used except the phase.
    struct policy *policy;
    struct retention_region region;     // memory of the policy's arrays
    struct retention_segment *segments; // the same index as in the log's table
    struct policy_ring *rings;          // one for each worker, then one for the index writer
    unsigned ring_count;
    uint64_t *woken_us;   // for each worker: when a refused run last woke the retention thread
    pthread_mutex_t lock; // held for milliseconds at most; the log's lock may be taken under it
    // `lock` guards the fields from here to survivor_max.
    enum retention_phase phase; // only retention_enter() changes it
    struct retention_pins pins;
    struct retention_history {
        uint32_t tick;            // tick of the policy's clock
        uint64_t us;              // real time of that tick
    } history[RETENTION_HISTORY]; // ring buffer of the times of past ticks
    unsigned history_count;       // entries written so far
    uint32_t *survivors;          // buffer for policy_victim()
    uint32_t survivor_max;        // number of entries of `survivors`
    uint64_t saved_us;            // real time of the last save; retention thread only
    pthread_t thread;
    _Atomic uint64_t state_bytes; // size of the policy's state file
    uint64_t state_bytes_then;    // the file's size when retention was opened
    // Number of POLICY_STORED events lost because a ring was full. The retention thread later finds
    // these runs in the lists of full segments.
    atomic_uint lost_runs;
    struct {
        pthread_mutex_t lock; // held while group_of() runs; group_of() may take other locks
        store_group_fn group_of;
        void *ctx;
    } names;
    // Reviews that were asked for and have not begun: a bit set of enum store_review and
    // RETENTION_REVIEW_*.
    atomic_uint reviews;
    // The review in progress; NULL: none. Only the retention thread sets and uses it.
    struct retention_review *_Atomic review;
    bool reviews_again; // one more review is due after the next save; retention thread only
    // The segment whose survivors are being rewritten; NULL: none. The supply thread sets it, and
    // the retention thread clears it when it is done.
    struct retention_job *_Atomic job;
#ifdef FOREBAY_FAULTS
    // For tests. Ignores the policy: admits every run, and keeps every other run of a victim.
    atomic_bool keeps_half;
#endif
    struct {
        // Held briefly. Workers take it, and no lock is taken under it.
        pthread_mutex_t lock;
        pthread_cond_t wake;
        bool wanted, stop;
    } guarded;
};

// Opens retention. Called after segment_log_open(), before threads start. Uses plain memory if the
// file system has no room for the map.
void retention_open(struct retention *retention, const struct retention_options *options);
void retention_start(struct retention *retention);
// Stops the thread and saves the policy's knowledge. Called when the workers have stopped. A job in
// progress ends early, and its segment stays.
void retention_stop(struct retention *retention);
void retention_close(struct retention *retention); // accepts a zeroed struct
// Returns the bytes of cache.size that retention uses, minus the size that the state file had at
// the start. Any thread.
uint64_t retention_bytes(const struct retention *retention);
// Called when the log's segments_max has changed. Not on a worker.
void retention_resize(struct retention *retention);
// Applies changed rules. The parameters are those of store_set_groups().
void retention_set_groups(struct retention *retention, const struct store_group *groups,
                          unsigned group_count);
// Sets the function by which a review finds the group of a run's name. Any thread.
void retention_set_group_of(struct retention *retention, store_group_fn group_of, void *ctx);
// Sets whether a command has pinned anything. Any thread.
void retention_set_listed_pins(struct retention *retention, bool has_pins);

// --- events: called by workers, except retention_gone(), which the index writer calls

// The policy's answer about a run, for retention_missed() and retention_stored().
struct retention_answer {
    uint32_t stamp;
    unsigned group; // the policy's group for the run's rule
    bool is_part, on_probation;
};
// Decides whether to store the run, and if so, whether on probation.
enum policy_verdict retention_admit(const struct retention *retention, struct hash128 hash,
                                    uint64_t first_block, unsigned group, bool is_part,
                                    struct retention_answer *ret_answer) MUST_USE;
// Reports a miss. `is_stored`: the run is being stored.
void retention_missed(struct worker *w, struct retention *retention, struct hash128 hash,
                      uint64_t first_block, uint64_t payload_len,
                      const struct retention_answer *answer, bool is_stored);
void retention_stored(struct worker *w, struct retention *retention, const struct segment_row *row,
                      uint32_t number, const struct retention_answer *answer);
void retention_read(struct worker *w, struct retention *retention, const struct store_place *place,
                    uint64_t bytes, unsigned group);
void retention_gone(struct retention *retention, struct hash128 hash, uint64_t first_block,
                    uint32_t number, uint32_t header_offset);

// Returns whether the policy is `epoch`. Any thread.
static inline bool retention_learns(const struct retention *r)
{
    return r->policy != NULL;
}

// Changes the phase. Aborts if retention_phases.def does not name `to` as a successor of the
// present phase. Called under the retention's lock, or while no other thread runs.
void retention_enter(struct retention *retention, enum retention_phase to);
// Returns whether the policy takes events and picks segments. Called under the retention's lock, or
// on the retention thread.
bool retention_is_ready(const struct retention *retention);

static inline struct retention_segment *retention_segment_of(const struct retention *r,
                                                             const struct segment *segment)
{
    return &r->segments[segment - r->log->table];
}

// Returns the bytes from the run's header to the end of its payload.
static inline uint32_t retention_row_bytes(const struct segment_row *row, uint32_t payload_len)
{
    return row->payload_offset - row->header_offset + payload_len;
}

// Converts a group of the store to the policy's group, and back.
unsigned retention_policy_group(unsigned group);
unsigned retention_group_of_policy(unsigned policy_group);

// Passes the events in the rings to the policy. Must not be called on a worker.
void retention_drain(struct retention *retention);
bool retention_stopping(struct retention *retention);
void retention_wake(struct retention *retention); // wakes the retention thread; any thread

// Fills in what the policy knows of each run in explain->runs. Must not be called on a worker.
void retention_explain(struct retention *retention, struct store_explain *explain);
// Records the time of the policy's present tick, so that ages in ticks can be converted to
// milliseconds. Called regularly on the retention thread.
void retention_note_time(struct retention *retention);
// Adds an evicted run that was last used `age_ticks` ago to the statistics. Called under the
// retention's lock.
void retention_note_age_locked(const struct retention *retention, uint32_t age_ticks);

// --- segments

// Adds a segment to the policy. Called when the entry is about to become segment `number`, whose
// file was just created.
void retention_begin(struct retention *retention, struct segment *segment, uint32_t number);
// Picks the segment to evict, for segment_host.pick (segment_log.h).
enum segment_pick retention_pick(struct retention *retention,
                                 bool (*may_go)(void *ctx, uint32_t number), void *ctx,
                                 bool may_rewrite, uint32_t *ret_number);
// Returns whether runs are stored on probation. A cache of few segments stores none, because it
// cannot spare a segment for them. Any thread.
bool retention_has_probation(const struct retention *retention);
// Returns whether nothing has been stored on probation for a while.
bool retention_probation_ended(struct retention *retention) MUST_USE;
// Returns the number of spare segments that this slot may not use. If there are pins, the last
// spare segment is reserved for survivors. Any thread.
unsigned retention_pins_spares(const struct retention *retention, const struct segment_slot *slot);
// Returns the bytes of disk that the policy's arrays take in a new cache of this size without runs.
uint64_t retention_least_bytes(uint64_t capacity_bytes);
// Tells the policy that the cache has room, so that it admits every run until the next
// retention_pick().
void retention_has_room(struct retention *retention);
// Removes a segment from the policy. Called when the segment is being freed. `removals`: its runs,
// as far as they are known.
void retention_forget(struct retention *retention, struct segment *segment,
                      const struct segment_removal *removals, unsigned count);

#endif
