// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the files of the policy. Only the policy's owner may use them. Exceptions
// are `published` and the ghost, which workers read.
#ifndef FOREBAY_STORE_POLICY_PRIVATE_H
#define FOREBAY_STORE_POLICY_PRIVATE_H

#include <assert.h>
#include <stdatomic.h>

#include "base/check.h"
#include "store/policy/policy.h"

// --- stamps: a run's past in 32 bits -------------------------------------------------------------

// tick of the run's last use (20 bits, modular) | reuse class (7) | group (5)
#define POLICY_TICK_BITS 20u
#define POLICY_TICK_MASK ((1u << POLICY_TICK_BITS) - 1)
// The greatest age in ticks. A slow sweep through all stamps lowers greater ages to this one,
// before the 20 bits of the tick wrap.
#define POLICY_AGE_MAX (1u << 18)

#define POLICY_CLASSES 74u
#define POLICY_CLASS_NEW 0u          // the run was never read again
#define POLICY_CLASS_SILENT 73u      // never read again, and first seen in silence (policy_clock.c)
#define POLICY_STAMP_GONE UINT32_MAX // the run is gone; the class field is 127

static_assert(POLICY_TICK_BITS + 7 + 5 == 32, "a stamp is one word");
static_assert(POLICY_GROUPS == 1u << 5, "a group has its bits in a stamp");
static_assert(1 + 8 * 8 + 7 < POLICY_CLASS_SILENT, "no pair of intervals has the silent class");
static_assert(POLICY_CLASS_SILENT + 1 == POLICY_CLASSES, "the last class");
static_assert((POLICY_STAMP_SAME >> 5 & 127) >= POLICY_CLASSES, "no run has this stamp");

static inline uint32_t policy_stamp(uint32_t tick, unsigned reuse_class, unsigned group)
{
    check(reuse_class < POLICY_CLASSES);
    check(group < POLICY_GROUPS);
    return (tick & POLICY_TICK_MASK) << 12 | reuse_class << 5 | group;
}

static inline bool policy_class_is_new(unsigned reuse_class)
{
    return reuse_class == POLICY_CLASS_NEW || reuse_class == POLICY_CLASS_SILENT;
}

static inline unsigned policy_stamp_class(uint32_t stamp)
{
    return stamp >> 5 & 127;
}

static inline unsigned policy_stamp_group(uint32_t stamp)
{
    return stamp & (POLICY_GROUPS - 1);
}

static inline uint32_t policy_stamp_grouped(uint32_t stamp, unsigned group)
{
    check(stamp != POLICY_STAMP_GONE);
    check(group < POLICY_GROUPS);
    return (stamp & ~(POLICY_GROUPS - 1)) | group;
}

// Returns the age in ticks. Workers see the present tick a little late, so a stamp may be later
// than a worker's `now_tick`. The age is then 0.
static inline uint32_t policy_stamp_age(uint32_t stamp, uint32_t now_tick)
{
    uint32_t age = (now_tick - (stamp >> 12)) & POLICY_TICK_MASK;
    return age > POLICY_TICK_MASK / 2 ? 0 : age;
}

// --- policy_clock.c ------------------------------------------------------------------------------

#define POLICY_CAPACITY_TICKS 1024u
#define POLICY_BUCKETS 68u // number of age buckets: four for each octave of ticks

struct policy_clock {
    uint64_t capacity_bytes;
    double tick_bytes;    // length of a tick, in bytes requested of known runs
    double part_bytes;    // bytes counted in the present tick so far
    uint32_t tick;        // the present tick; stamps hold its low bits
    uint32_t same_use;    // in ticks: requests at most this far apart count as one use
    double known_share;   // share of the latest requests that were for stored or ghost runs
    double mean_bytes;    // mean bytes of a request
    uint64_t asked_bytes; // bytes requested so far
    // is_silent: hardly any request is for a stored or ghost run at present. has_suspects: no run
    // from before the latest silence has been read since, so all of them are worth nothing.
    bool is_silent, has_suspects;
    uint32_t onset_tick;    // tick at which the latest silence began
    uint64_t silence_count; // number of silences, except the one at the clock's begin
    double newcomer_share;  // share of the latest reuses that were of runs first seen in silence
};

void policy_clock_init(struct policy_clock *clock, uint64_t capacity_bytes);
void policy_clock_resize(struct policy_clock *clock, uint64_t capacity_bytes);
void policy_clock_advance(struct policy_clock *clock, uint32_t request_bytes);
// Updates known_share after a request for a run of the monitor's sample.
void policy_clock_learn(struct policy_clock *clock, bool is_known);
// Updates newcomer_share when a run of the monitor's sample is read again. is_newcomer: the run was
// first seen in silence (see is_silent), and this is its first reuse.
void policy_clock_learn_newcomer(struct policy_clock *clock, bool is_newcomer);
// Called when a stored run is read again. age_ticks: the time since its previous use.
void policy_clock_hit(struct policy_clock *clock, uint32_t age_ticks);
// Returns whether a run of this age was last read before the latest silence.
static inline bool policy_clock_is_suspect(const struct policy_clock *clock, uint32_t age_ticks)
{
    return age_ticks > clock->tick - clock->onset_tick;
}

// Returns true after a silence if clients read mostly older runs again, and hardly any run that was
// first requested during the silence.
static inline bool policy_clock_newcomers_suspect(const struct policy_clock *clock)
{
    return clock->newcomer_share < 0.1 && !clock->is_silent;
}

// Returns the class of a run that is requested for the first time now. Runs first requested in the
// silence at the clock's begin are not newcomers, because no run is older.
static inline unsigned policy_clock_first_class(const struct policy_clock *clock)
{
    return clock->is_silent && clock->silence_count > 0 ? POLICY_CLASS_SILENT : POLICY_CLASS_NEW;
}

// Returns the bucket of an age. Bucket 0 is age 0; then each octave of ticks has four equal
// buckets.
static inline unsigned policy_bucket(uint32_t age_ticks)
{
    if (age_ticks == 0) {
        return 0;
    }
    unsigned octave = 31 - (unsigned)__builtin_clz(age_ticks);
    unsigned quarter =
        octave >= 2 ? age_ticks >> (octave - 2) & 3 : (age_ticks << (2 - octave)) & 3;
    unsigned bucket = 1 + 4 * octave + quarter;
    return bucket < POLICY_BUCKETS ? bucket : POLICY_BUCKETS - 1;
}
// Returns the age at which a bucket begins, in quarters of a tick.
static inline uint32_t policy_bucket_begin_quarters(unsigned bucket)
{
    check(bucket <= POLICY_BUCKETS); // POLICY_BUCKETS stands for the end of the last bucket
    return bucket == 0 ? 0 : (4 + (bucket - 1) % 4) << (bucket - 1) / 4;
}
static inline double policy_bucket_begin(unsigned bucket)
{
    return policy_bucket_begin_quarters(bucket) * 0.25;
}
static inline double policy_bucket_width(unsigned bucket)
{
    check(bucket < POLICY_BUCKETS);
    return bucket == 0 ? 1 : (double)(1u << (bucket - 1) / 4) * 0.25;
}
// Returns the new class of a run of class `before` that is read again at this age.
unsigned policy_class_next(uint32_t age_ticks, unsigned before);

// --- policy_monitor.c ----------------------------------------------------------------------------

#define POLICY_MONITOR_MAX 16384u
#define POLICY_MONITOR_SLOTS (2 * POLICY_MONITOR_MAX)

struct policy_followed {
    uint32_t key, tick;
    uint32_t due;                // tick at which the key's age exceeds its bucket
    uint8_t reuse_class, bucket; // bucket: bucket of the key's age at the last sweep
    uint8_t waits_again; // not 0: the present use began with a miss and has had no second request
};

struct policy_monitor {
    uint32_t key_max; // keys up to this value are followed
    uint32_t count;   // number of keys followed at present
    uint32_t swept;   // index of the next key that the sweep visits
    // Of the latest uses that began with a miss, the share in which a second request followed.
    float again_share;
    float weight; // weight of a new event; it rises, so that older counts matter less
    // Weighted number of reuses, by the key's class and its age at the reuse.
    float events[POLICY_CLASSES][POLICY_BUCKETS];
    // Weighted number of keys whose age passed a bucket without reuse. Each entry holds the
    // difference from the previous bucket.
    float exposures[POLICY_CLASSES][POLICY_BUCKETS + 1];
    bool has_news[POLICY_CLASSES]; // the class has evidence that its ranks do not include yet
    struct policy_followed followed[POLICY_MONITOR_MAX];
    uint16_t slots[POLICY_MONITOR_SLOTS]; // hash table of indices in `followed`, plus 1; 0: free
};

void policy_monitor_init(struct policy_monitor *monitor); // *monitor must be zeroed
// Records a request that begins a use of `key`, which has this class from now on. is_known: the run
// is stored or in the ghost. is_missed: the whole run was requested and was not stored.
void policy_monitor_touch(struct policy_monitor *monitor, struct policy_clock *clock, uint64_t key,
                          unsigned reuse_class, bool is_known, bool is_missed);
// Records another request for `key` within the present use.
void policy_monitor_again(struct policy_monitor *monitor, uint64_t key);
// Adds a key that an earlier process followed.
void policy_monitor_put(struct policy_monitor *monitor, const struct policy_followed *one);
// Updates the buckets of the next `count` followed keys from their ages.
void policy_monitor_sweep(struct policy_monitor *monitor, uint32_t tick, uint32_t count);
// Reduces the weight of all earlier events, by half for each half life.
void policy_monitor_decay(struct policy_monitor *monitor, double half_lives);

// --- policy_rank.c -------------------------------------------------------------------------------

#define POLICY_RANK_MAX 1e15f // higher than any rank

// A level is the logarithm of a rank in one byte, with eight levels per octave. Level 0 is rank 0.
struct policy_ranks {
    unsigned round;
    bool is_used[POLICY_CLASSES]; // the monitor has followed a key of this class
    float rank[POLICY_CLASSES][POLICY_BUCKETS];
    uint8_t level[128][POLICY_BUCKETS]; // level of each rank; 0 for numbers that are not a class
    float level_rank[256];
};

void policy_ranks_init(struct policy_ranks *ranks); // *ranks must be zeroed
// Recomputes the ranks of the classes that have new evidence, and of an eighth of the others.
void policy_ranks_renew(struct policy_ranks *ranks, struct policy_monitor *monitor);
// Computes the ranks of one class, from its hazard in each bucket.
void policy_rank_of_hazard(const double *hazard, float *ret_rank);
// Returns the number of levels by which this factor raises a rank. Negative if the factor is below
// 1.
int policy_rank_levels(float factor);

#define POLICY_LEVEL_PINNED 255u // level of a run that its pin keeps; above every rank

static inline unsigned policy_level_shift(unsigned level, int shift)
{
    check(level < POLICY_LEVEL_PINNED);
    int shifted = (int)level + shift;
    return level == 0 ? 0 : shifted < 1 ? 1 : shifted > 254 ? 254 : (unsigned)shifted;
}

// --- policy_ghost.c ------------------------------------------------------------------------------

#define POLICY_GHOST_WAYS 4u

struct policy_ghost_set {
    _Atomic uint16_t print[POLICY_GHOST_WAYS]; // 16 bits of the key; 0: the entry is free
    _Atomic uint32_t stamp[POLICY_GHOST_WAYS];
};

struct policy_ghost {
    struct policy_ghost_set *sets; // the array of sets, which is in the region
    uint32_t set_count;
};

// Returns the number of sets that remember this many former runs, and the reverse.
static inline uint32_t policy_ghost_sets(uint32_t former)
{
    return former / POLICY_GHOST_WAYS + 1;
}
static inline uint32_t policy_ghost_former(uint32_t set_count)
{
    return set_count > 0 ? (set_count - 1) * POLICY_GHOST_WAYS : 0;
}
bool policy_ghost_find(const struct policy_ghost *ghost, uint64_t key, uint32_t *ret_stamp);
void policy_ghost_put(struct policy_ghost *ghost, uint64_t key, uint32_t stamp, uint32_t now_tick);
void policy_ghost_forget(struct policy_ghost *ghost, uint64_t key);
// Restores one set from its saved bytes. `groups` maps each saved group to its present group.
void policy_ghost_restore(struct policy_ghost *ghost, uint32_t set, const char *saved,
                          const uint8_t *groups);
// Frees the entries of one set whose stamps are older than POLICY_AGE_MAX, before their ticks wrap.
void policy_ghost_sweep(struct policy_ghost *ghost, uint32_t set, uint32_t now_tick);

// --- policy_segments.c ---------------------------------------------------------------------------

#define POLICY_PAGE_RUNS 16u
#define POLICY_PAGE_CHILDREN 32u
#define POLICY_PAGE_ROOTS 4u

struct policy_run {
    uint32_t start, stamp;
};

union policy_page {
    struct policy_run runs[POLICY_PAGE_RUNS];
    uint32_t children[POLICY_PAGE_CHILDREN];
};

enum policy_segment_state {
    POLICY_SEGMENT_NONE,
    POLICY_SEGMENT_LOADED, // loaded from a saved piece; the store has not begun or sealed it yet
    POLICY_SEGMENT_OPEN,
    POLICY_SEGMENT_SEALED,
    POLICY_SEGMENT_VICTIM, // chosen for eviction; survivors may be rewritten now
};

struct policy_segment {
    uint32_t number, run_count;
    uint32_t end;                      // offset after the last run
    uint32_t sealed_at;                // if sealed: index in the array `sealed`
    uint32_t pages[POLICY_PAGE_ROOTS]; // page numbers of the roots; 0: none
    uint32_t pinned_count : 25;        // number of runs in pinned groups
    uint32_t state : 3;                // enum policy_segment_state
    uint32_t height : 3;               // height of the trees below `pages`
    uint32_t is_probation : 1;         // all of its runs are on probation; none is pinned
};

struct policy_sealed {
    uint32_t at; // index of the segment in `table`
    float cost;  // cost of the segment when the policy last computed it
};

struct policy_segments {
    // These three arrays are in the region.
    struct policy_segment *table; // indexed by the number modulo table_size
    struct policy_sealed *sealed; // in no order
    union policy_page *pages;
    // page_count: pages mapped. page_used: pages that have ever been taken. It includes page 0,
    // which is never taken, because 0 means "none". page_free: first page of the free list; 0: the
    // list is empty.
    uint32_t table_size, sealed_count, page_count, page_used, page_free;
    uint32_t page_max;                     // limit of page_count
    bool (*grow)(void *ctx, size_t bytes); // NULL: all pages are mapped
    void *grow_ctx;
    uint64_t group_bytes[POLICY_GROUPS]; // bytes of the stored runs of each group
    uint32_t pinned_groups;              // bit set of the groups whose runs count in pinned_count
};

struct policy_segment *policy_segments_find(const struct policy_segments *segments,
                                            uint32_t number);
struct policy_run *policy_segments_run(const struct policy_segments *segments,
                                       const struct policy_segment *segment, uint32_t index);
// Returns the run that begins at `start`; NULL if there is none or it is gone.
struct policy_run *policy_segments_run_at(const struct policy_segments *segments,
                                          const struct policy_segment *segment, uint32_t start,
                                          uint32_t *ret_index);
uint32_t policy_segments_run_len(const struct policy_segments *segments,
                                 const struct policy_segment *segment, uint32_t index);
struct policy_segment *policy_segments_begin(struct policy_segments *segments, uint32_t number);
bool policy_segments_append(struct policy_segments *segments, struct policy_segment *segment,
                            uint32_t start, uint32_t len, uint32_t stamp);
// Replaces the run's stamp. POLICY_STAMP_GONE marks the run as gone.
void policy_segments_set_stamp(struct policy_segments *segments, struct policy_segment *segment,
                               uint32_t index, uint32_t stamp);
void policy_segments_set_state(struct policy_segments *segments, struct policy_segment *segment,
                               enum policy_segment_state state);
void policy_segments_free(struct policy_segments *segments, struct policy_segment *segment);
void policy_segments_sweep(struct policy_segments *segments, struct policy_segment *segment,
                           uint32_t now_tick);
size_t policy_segments_bytes(uint32_t segment_max, uint32_t run_max);
void policy_segments_init(struct policy_segments *segments, uint32_t segment_max, uint32_t run_max,
                          void *region);
// Sets the callback that maps more pages when they are needed. Called once, if only
// policy_segments_bytes(segment_max, 0) bytes are mapped.
void policy_segments_may_grow(struct policy_segments *segments,
                              bool (*grow)(void *ctx, size_t bytes), void *ctx);

// --- policy_reclaim.c ----------------------------------------------------------------------------

struct policy_reclaim {
    bool is_full;
    uint32_t best;         // number of the segment with the lowest cost; 0: none
    uint32_t next;         // index in `sealed` of the segment examined last in round-robin order
    float bar;             // cost of the best segment; the worth that a new run must exceed
    float admitted_rank;   // running mean of the ranks of admitted runs
    uint32_t misses;       // misses since a segment was last examined in round-robin order
    double rewrite_credit; // bytes of survivors that may be rewritten now
};

// Returns the level of the run's present worth, including the effect of its rule.
unsigned policy_level(const struct policy *policy, uint32_t stamp);
// Updates the bar after `miss_count` more misses.
void policy_reclaim_tend(struct policy *policy, uint32_t miss_count);
void policy_reclaim_admitted(struct policy *policy, uint32_t stamp, uint32_t len);
// Called when the segment has just been sealed.
void policy_reclaim_sealed(struct policy *policy, const struct policy_segment *segment);

// --- policy_probation.c --------------------------------------------------------------------------

// Called before a run is appended to the segment.
void policy_probation_stored(struct policy *policy, struct policy_segment *segment,
                             bool on_probation);
// Returns the oldest segment on probation that may be evicted; NULL if there is none. If
// `must_be_due`, also returns NULL while the bytes on probation are within their allowance.
struct policy_segment *policy_probation_victim(const struct policy *policy, bool must_be_due,
                                               bool (*may_go)(void *ctx, uint32_t number),
                                               void *ctx);

// --- policy_lru.c --------------------------------------------------------------------------------

struct policy_segment *policy_lru_oldest(const struct policy_segments *segments,
                                         bool (*may_go)(void *ctx, uint32_t number), void *ctx);

// --- policy_group.c ------------------------------------------------------------------------------

struct policy_group_state {
    int level_shift;
    bool is_kept; // the group is pinned, and all pins together are within their limit
    struct policy_group options;
};

struct policy_groups {
    struct policy_group_state of[POLICY_GROUPS];
    uint64_t pinned_bytes, pinned_max_bytes;
    uint32_t limited;  // bit set of groups with a pin or a share
    uint32_t vacating; // bit set of groups whose runs are being moved to other groups
    bool counts_pins;  // the pinned runs of each segment are being recounted
    uint32_t step_at;  // entry of the segment table that policy_groups_step() processes next
    // Maps each group number in the saved pieces to a present group. Until the piece with the
    // groups is loaded, each group that has a rule maps to 0.
    uint8_t now[POLICY_GROUPS];
};

// Published as the factor of a pinned group while pins have room, so that workers admit all of its
// runs.
#define POLICY_FACTOR_PINNED (-1.0f)

void policy_groups_init(struct policy *policy);
// Recomputes the factors of shares and pins after the stored bytes have changed.
void policy_groups_tend(struct policy *policy);
// Returns the group that a run of `len` bytes joins when it is meant for `group`. That is `group`
// itself, or its `plain` if `group` is being vacated or cannot pin the run. `segment`: the run's
// segment; NULL if the policy does not know the segment.
unsigned policy_group_take(const struct policy *policy, const struct policy_segment *segment,
                           unsigned group, uint32_t len);
// Moves a stored run to the group that policy_group_take() returns.
void policy_group_move(struct policy *policy, struct policy_segment *segment, uint32_t index,
                       unsigned group);

// --- policy_publish.c ----------------------------------------------------------------------------

// Values that workers read without a lock, in addition to the ghost. Each value is atomic, but two
// of them may be from different moments.
struct policy_published {
    _Atomic uint32_t tick, same_use, first_class;
    _Atomic float bar;                   // below 0: everything is admitted
    _Atomic float worth[POLICY_CLASSES]; // rank at age 0, divided by the margin of the class
    _Atomic float factor[POLICY_GROUPS]; // factor of priority and share, or POLICY_FACTOR_PINNED
    atomic_bool again_soon;              // the monitor's again_share exceeds AGAIN_SHARE
};

#define POLICY_MAGIC 0x706f6c69u

struct policy {
    uint32_t magic;
    enum policy_kind kind;
    void *memory; // the allocation that contains this struct
    struct policy_options options;
    _Alignas(64) struct policy_published published;
    _Alignas(64) struct policy_clock clock;
    struct policy_reclaim reclaim;
    struct policy_ghost ghost;
    uint64_t probation_fed_at; // asked_bytes when a run was last stored on probation
    struct policy_segments segments;
    uint64_t period_began;                 // asked_bytes when the present period began
    uint32_t period_requests, period_tick; // requests in this period; tick when it began
    uint32_t swept_segment, swept_set;     // the table entry and the ghost set swept last
    struct policy_groups groups;
    struct policy_stats stats;
    struct policy_ranks ranks;
    struct policy_monitor monitor;
};

// Ends the current period: computes the worth of runs from the period's requests.
void policy_period_end(struct policy *policy);
void policy_publish(struct policy *policy);
// Returns the worth that a run would have if it were stored now. Any thread.
float policy_worth(const struct policy *policy, unsigned reuse_class, unsigned group);
// Returns whether the runs that would be evicted for a new run are worth nothing, because they were
// never read again. Any thread.
bool policy_replaces_nothing(const struct policy *policy);
// Computes again what runs are worth, from what the monitor has seen, and publishes that.
void policy_renew(struct policy *policy);

#endif
