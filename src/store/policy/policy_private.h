// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the policy. All of it belongs to the policy's owner, except `published`
// and the ghost, which workers read.
#ifndef FOREBAY_STORE_POLICY_PRIVATE_H
#define FOREBAY_STORE_POLICY_PRIVATE_H

#include <assert.h>
#include <stdatomic.h>

#include "base/check.h"
#include "store/policy/policy.h"

// --- stamps: the past of a run, in 32 bits -------------------------------------------------------

// tick of its last use (20 bits, modular) | class (7) | group (5)
#define POLICY_TICK_BITS 20u
#define POLICY_TICK_MASK ((1u << POLICY_TICK_BITS) - 1)
// Greatest age. A slow sweep rewrites older stamps to this age before they would wrap.
#define POLICY_AGE_MAX (1u << 18)

#define POLICY_CLASSES 74u
#define POLICY_CLASS_NEW 0u          // never read again
#define POLICY_CLASS_SILENT 73u      // the same, first seen in silence
#define POLICY_STAMP_GONE UINT32_MAX // class 127: no run

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

// Returns the age in ticks. A stamp may be later than `now_tick`, because workers see the tick a
// little late: its age is 0.
static inline uint32_t policy_stamp_age(uint32_t stamp, uint32_t now_tick)
{
    uint32_t age = (now_tick - (stamp >> 12)) & POLICY_TICK_MASK;
    return age > POLICY_TICK_MASK / 2 ? 0 : age;
}

// --- policy_clock.c ------------------------------------------------------------------------------

#define POLICY_CAPACITY_TICKS 1024u
#define POLICY_BUCKETS 68u // of age: four to an octave of ticks

struct policy_clock {
    uint64_t capacity_bytes;
    double tick_bytes;    // length of a tick, in bytes of requests for known runs
    double part_bytes;    // the part of the current tick that has passed
    uint32_t tick;        // stamps hold its low bits
    uint32_t same_use;    // ticks: a request that soon after another belongs to the same use
    double known_share;   // of the latest requests
    double mean_bytes;    // of a request
    uint64_t asked_bytes; // of all requests
    // Silence: clients request no known run.
    bool is_silent, has_suspects;
    uint32_t onset_tick;
    uint64_t silence_count;
    double newcomer_share; // of the latest reuses: of runs first seen in silence
};

void policy_clock_init(struct policy_clock *clock, uint64_t capacity_bytes);
void policy_clock_resize(struct policy_clock *clock, uint64_t capacity_bytes);
void policy_clock_advance(struct policy_clock *clock, uint32_t request_bytes);
// A request came for a run that is followed, known or not.
void policy_clock_learn(struct policy_clock *clock, bool is_known);
// A run that is followed was read again. is_newcomer: it was first seen in silence.
void policy_clock_learn_newcomer(struct policy_clock *clock, bool is_newcomer);
// A stored run was read that was last read at this age.
void policy_clock_hit(struct policy_clock *clock, uint32_t age_ticks);
// Returns whether a run of this age was last read before the silence.
static inline bool policy_clock_is_suspect(const struct policy_clock *clock, uint32_t age_ticks)
{
    return age_ticks > clock->tick - clock->onset_tick;
}

// Returns whether clients read the runs again that were known before the silence, and none that
// came in it.
static inline bool policy_clock_newcomers_suspect(const struct policy_clock *clock)
{
    return clock->newcomer_share < 0.1 && !clock->is_silent;
}

// HDR-like: 0, then four linear steps for each octave of ticks.
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
// Start of a bucket, in quarters of a tick.
static inline uint32_t policy_bucket_begin_quarters(unsigned bucket)
{
    check(bucket <= POLICY_BUCKETS); // the end of the last one, too
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
// Class of a run that is read again at this age, given its class before.
unsigned policy_class_next(uint32_t age_ticks, unsigned before);

// --- policy_monitor.c ----------------------------------------------------------------------------

#define POLICY_MONITOR_MAX 16384u
#define POLICY_MONITOR_SLOTS (2 * POLICY_MONITOR_MAX)

struct policy_followed {
    uint32_t key, tick;
    uint32_t due;                // tick at which it leaves its bucket
    uint8_t reuse_class, bucket; // bucket: of its age when it was last looked at
    uint8_t waits_again; // not 0: its latest use began with a miss; no second request has come yet
};

struct policy_monitor {
    uint32_t key_max; // keys up to it are followed
    uint32_t count;
    uint32_t swept;    // index of the key that the sweep looks at next
    float again_share; // of recent uses that began with a miss: the part with a second request
    float weight;      // of a new event; it rises, so that earlier events count less and less
    float events[POLICY_CLASSES][POLICY_BUCKETS];
    // How many keys lived through each bucket, as the difference from the bucket before.
    float exposures[POLICY_CLASSES][POLICY_BUCKETS + 1];
    bool has_news[POLICY_CLASSES];
    struct policy_followed followed[POLICY_MONITOR_MAX];
    uint16_t slots[POLICY_MONITOR_SLOTS]; // 0: none; else index + 1
};

void policy_monitor_init(struct policy_monitor *monitor); // zeroed
// Notes a request for `key`, which is of this class from now on. is_known: it is stored, or a
// ghost. is_missed: all of it was requested, and it was not stored.
void policy_monitor_touch(struct policy_monitor *monitor, struct policy_clock *clock, uint64_t key,
                          unsigned reuse_class, bool is_known, bool is_missed);
// Notes one more request for `key` within a use.
void policy_monitor_again(struct policy_monitor *monitor, uint64_t key);
// Adds a key that a former process followed.
void policy_monitor_put(struct policy_monitor *monitor, const struct policy_followed *one);
// Looks at the ages of `count` runs.
void policy_monitor_sweep(struct policy_monitor *monitor, uint32_t tick, uint32_t count);
// Halves the weight of all earlier events after one half life.
void policy_monitor_decay(struct policy_monitor *monitor, double half_lives);

// --- policy_rank.c -------------------------------------------------------------------------------

#define POLICY_RANK_MAX 1e15f // more than any rank

// The rank as a logarithm in one byte: eight levels to an octave; level 0 is rank 0.
struct policy_ranks {
    unsigned round;
    bool is_used[POLICY_CLASSES]; // a followed key has had this class
    float rank[POLICY_CLASSES][POLICY_BUCKETS];
    uint8_t level[128][POLICY_BUCKETS]; // 0 for numbers that are no class
    float level_rank[256];
};

void policy_ranks_init(struct policy_ranks *ranks); // zeroed
void policy_ranks_renew(struct policy_ranks *ranks, struct policy_monitor *monitor);
// Computes the ranks of one class from the hazards of its buckets.
void policy_rank_of_hazard(const double *hazard, float *ret_rank);
int policy_rank_levels(float factor); // how many levels a rank rises when multiplied by `factor`

#define POLICY_LEVEL_PINNED 255u // no rank

static inline unsigned policy_level_shift(unsigned level, int shift)
{
    check(level < POLICY_LEVEL_PINNED);
    int shifted = (int)level + shift;
    return level == 0 ? 0 : shifted < 1 ? 1 : shifted > 254 ? 254 : (unsigned)shifted;
}

// --- policy_ghost.c ------------------------------------------------------------------------------

#define POLICY_GHOST_WAYS 4u

struct policy_ghost_set {
    _Atomic uint16_t print[POLICY_GHOST_WAYS]; // of the key; 0: free
    _Atomic uint32_t stamp[POLICY_GHOST_WAYS];
};

struct policy_ghost {
    struct policy_ghost_set *sets; // in the region
    uint32_t set_count;
};

bool policy_ghost_find(const struct policy_ghost *ghost, uint64_t key, uint32_t *ret_stamp);
void policy_ghost_put(struct policy_ghost *ghost, uint64_t key, uint32_t stamp, uint32_t now_tick);
void policy_ghost_forget(struct policy_ghost *ghost, uint64_t key);
// Restores one set; `saved` is its saved bytes, `groups` the present group of each saved one.
void policy_ghost_restore(struct policy_ghost *ghost, uint32_t set, const char *saved,
                          const uint8_t *groups);
// Rewrites the stamps of one set that are about to wrap.
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
    POLICY_SEGMENT_LOADED, // from a former process; not seen yet
    POLICY_SEGMENT_OPEN,
    POLICY_SEGMENT_SEALED,
    POLICY_SEGMENT_VICTIM, // its survivors are being rewritten
};

struct policy_segment {
    uint32_t number, run_count;
    uint32_t end;       // end of its last run
    uint32_t sealed_at; // in the list of the sealed
    uint32_t pages[POLICY_PAGE_ROOTS];
    uint32_t pinned_count : 25; // of its runs, those of groups that are pinned
    uint32_t state : 3;
    uint32_t height : 3;       // of the trees below `pages`
    uint32_t is_probation : 1; // all of its runs are on probation; none is pinned
};

struct policy_sealed {
    uint32_t at; // in the table
    float cost;  // when it was looked at last
};

struct policy_segments {
    // All three in the region.
    struct policy_segment *table; // by number, modulo its size
    struct policy_sealed *sealed; // in no order
    union policy_page *pages;
    uint32_t table_size, sealed_count, page_count, page_used, page_free; // page_free: 0: none
    uint32_t page_max;                                                   // page_count at most
    bool (*grow)(void *ctx, size_t bytes);                               // NULL: it cannot grow
    void *grow_ctx;
    uint64_t group_bytes[POLICY_GROUPS]; // of the runs that are not gone
    uint32_t pinned_groups;              // groups that are pinned, a bit each
};

struct policy_segment *policy_segments_find(const struct policy_segments *segments,
                                            uint32_t number);
struct policy_run *policy_segments_run(const struct policy_segments *segments,
                                       const struct policy_segment *segment, uint32_t index);
// The run that begins at `start`; NULL: none, or gone.
struct policy_run *policy_segments_run_at(const struct policy_segments *segments,
                                          const struct policy_segment *segment, uint32_t start,
                                          uint32_t *ret_index);
uint32_t policy_segments_run_len(const struct policy_segments *segments,
                                 const struct policy_segment *segment, uint32_t index);
struct policy_segment *policy_segments_begin(struct policy_segments *segments, uint32_t number);
bool policy_segments_append(struct policy_segments *segments, struct policy_segment *segment,
                            uint32_t start, uint32_t len, uint32_t stamp);
// Gives the run another stamp; POLICY_STAMP_GONE: the run is gone.
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
// Initially only policy_segments_bytes() for no runs are usable. grow() extends them.
void policy_segments_may_grow(struct policy_segments *segments,
                              bool (*grow)(void *ctx, size_t bytes), void *ctx);

// --- policy_reclaim.c ----------------------------------------------------------------------------

struct policy_reclaim {
    bool is_full;
    uint32_t best;         // number of the segment that costs least; 0: none
    uint32_t next;         // the one to look at next, in the list of the sealed
    float bar;             // what the best one costs
    float admitted_rank;   // running mean
    uint32_t misses;       // since a segment was looked at
    double rewrite_credit; // bytes
};

// Level of the run's present worth, with its rule taken into account.
unsigned policy_level(const struct policy *policy, uint32_t stamp);
// Renews the bar, after `miss_count` misses.
void policy_reclaim_tend(struct policy *policy, uint32_t miss_count);
void policy_reclaim_admitted(struct policy *policy, uint32_t stamp, uint32_t len);
// Called when the segment has just been sealed.
void policy_reclaim_sealed(struct policy *policy, const struct policy_segment *segment);

// --- policy_probation.c --------------------------------------------------------------------------

// Called when a run is about to become the next one of the segment.
void policy_probation_stored(struct policy *policy, struct policy_segment *segment,
                             bool on_probation);
// Returns the oldest segment on probation that may go. Returns NULL if there is none or, with
// `must_be_due`, if there are no more such segments than are kept.
struct policy_segment *policy_probation_victim(const struct policy *policy, bool must_be_due,
                                               bool (*may_go)(void *ctx, uint32_t number),
                                               void *ctx);

// --- policy_lru.c --------------------------------------------------------------------------------

struct policy_segment *policy_lru_oldest(const struct policy_segments *segments,
                                         bool (*may_go)(void *ctx, uint32_t number), void *ctx);

// --- policy_group.c ------------------------------------------------------------------------------

struct policy_group_state {
    int level_shift;
    bool is_kept; // its pins keep their runs
    struct policy_group options;
};

struct policy_groups {
    struct policy_group_state of[POLICY_GROUPS];
    uint64_t pinned_bytes, pinned_max_bytes;
    uint32_t limited;  // groups with a pin or a share, a bit each
    uint32_t vacating; // groups that are being vacated, a bit each
    bool counts_pins;  // the pins of each segment are being counted again
    uint32_t step_at;  // next entry of the table of segments, for either of these
    // Present group of each group of a former process; until that is known, 0 for each group that a
    // rule has.
    uint8_t now[POLICY_GROUPS];
};

// Published as the factor of a group whose runs are all admitted.
#define POLICY_FACTOR_PINNED (-1.0f)

void policy_groups_init(struct policy *policy);
// Recomputes the factors of shares and pins after the stored bytes have changed.
void policy_groups_tend(struct policy *policy);
// Returns the group that a run of `len` bytes gets if it should join `group`. `segment`: where the
// run is; NULL: it is not ranked.
unsigned policy_group_take(const struct policy *policy, const struct policy_segment *segment,
                           unsigned group, uint32_t len);
// Moves a run to another group: its rule has changed, or there is room for its pin.
void policy_group_move(struct policy *policy, struct policy_segment *segment, uint32_t index,
                       unsigned group);

// --- policy_publish.c ----------------------------------------------------------------------------

// Values that workers read without a lock, in addition to the ghost. Each value is whole; two of
// them may be of different moments.
struct policy_published {
    _Atomic uint32_t tick, same_use, first_class;
    _Atomic float bar;                   // below 0: everything is admitted
    _Atomic float worth[POLICY_CLASSES]; // rank at age 0, divided by the margin of the class
    _Atomic float factor[POLICY_GROUPS]; // or POLICY_FACTOR_PINNED
    atomic_bool again_soon;              // missed runs are often requested again soon
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
    uint64_t probation_fed_at; // asked_bytes when a run was stored on probation last
    struct policy_segments segments;
    uint64_t period_began;                 // asked_bytes
    uint32_t period_requests, period_tick; // when it began
    uint32_t swept_segment, swept_set;
    struct policy_groups groups;
    struct policy_stats stats;
    struct policy_ranks ranks;
    struct policy_monitor monitor;
};

void policy_publish(struct policy *policy);
// Returns the worth that a run would have if a request stored it now. Any thread.
float policy_worth(const struct policy *policy, unsigned reuse_class, unsigned group);
// Returns true if the runs that a new one would replace are worth nothing, because they were never
// read again. Any thread.
bool policy_replaces_nothing(const struct policy *policy);
// Turns the evidence into new ranks.
void policy_renew(struct policy *policy);

#endif
