// SPDX-License-Identifier: Apache-2.0
// Saves and loads the policy's knowledge. A piece is a header of 40 bytes and a body, in the byte
// order of the host. On a host with another byte order the magic differs:
//
//     u32 magic | u16 version | u16 kind | u32 body length | u32 number of all ghost sets |
//     u64 identity of the cache | u64 kind's argument | u64 XXH3 of all but this field
//
//     kind      argument                 body
//     CLOCK     0                        struct saved_clock
//     HAZARD    class                    events, then exposures, as floats of weight 1
//     FOLLOWED  index of the first       struct policy_followed each
//     SEGMENT   number, index of the     u32 end, then start and stamp of each run
//               first run << 32
//     GHOST     first set, number of     struct policy_ghost_set each
//               all sets << 32
//     GROUPS    0                        struct saved_group each; the first piece, because
//                                        stamps in later pieces contain group numbers
//
// Only the store knows which segments exist. A loaded segment counts as existing once the store
// begins or seals it.
//
// Ages are saved in ticks, and a tick is a part of the capacity. If the new cache has another
// capacity, an age keeps its number of ticks and becomes the same part of the new capacity. A ghost
// is loaded only into one with as many sets. So every piece says how many sets the saved one has,
// or 0 if an early release saved it.
#include "store/policy/policy_private.h"

#include <math.h>

#define PIECE_MAGIC 0x70436246u
#define PIECE_VERSION 3u

enum piece_kind {
    PIECE_CLOCK,
    PIECE_HAZARD,
    PIECE_FOLLOWED,
    PIECE_SEGMENT,
    PIECE_GHOST,
    PIECE_GROUPS,
    PIECE_KINDS
};

struct piece_header {
    uint32_t magic;
    uint16_t version, kind;
    uint32_t body_len, ghost_sets;
    uint64_t identity, argument, checksum;
};

static_assert(sizeof(struct piece_header) == POLICY_PIECE_HEAD, "as its description says");

struct saved_clock {
    double part, known_share, mean_bytes, newcomer_share;
    uint32_t tick, key_max;
    float admitted_rank, bar;
};

struct saved_group {
    uint64_t identity;
    uint32_t plain, zero;
};

static_assert(sizeof(struct saved_clock) == 48, "saved as it is");
static_assert(sizeof(struct saved_group) == 16, "saved as it is");
static_assert(sizeof(struct policy_followed) == 16, "saved as it is");
static_assert(sizeof(struct policy_run) == 8, "saved as it is");
static_assert(sizeof(struct policy_ghost_set) == 24, "saved as it is");

#define BODY_MAX (POLICY_PIECE_MAX - sizeof(struct piece_header))
#define FOLLOWED_IN_PIECE (BODY_MAX / sizeof(struct policy_followed))
#define RUNS_IN_PIECE ((BODY_MAX - 4) / sizeof(struct policy_run))
#define SETS_IN_PIECE (BODY_MAX / sizeof(struct policy_ghost_set))

static_assert(POLICY_GROUPS * sizeof(struct saved_group) <= BODY_MAX, "all fit in a piece");
static_assert((2 * POLICY_BUCKETS + 1) * sizeof(float) <= BODY_MAX, "a class fits in a piece");

static uint64_t piece_checksum(const char *piece, size_t body_len)
{
    uint64_t of_header = hash64(piece, offsetof(struct piece_header, checksum), 0);
    return hash64(piece + sizeof(struct piece_header), body_len, of_header);
}

static size_t piece_seal(const struct policy *policy, enum piece_kind kind, uint64_t argument,
                         size_t body_len, char *piece)
{
    struct piece_header header = {
        .magic = PIECE_MAGIC,
        .version = PIECE_VERSION,
        .kind = (uint16_t)kind,
        .body_len = (uint32_t)body_len,
        .ghost_sets = policy->ghost.set_count,
        .identity = policy->options.identity,
        .argument = argument,
    };
    check(body_len <= BODY_MAX);
    memcpy(piece, &header, sizeof(header));
    header.checksum = piece_checksum(piece, body_len);
    memcpy(piece, &header, sizeof(header));
    return sizeof(header) + body_len;
}

// --- saving: each function saves the next piece of its kind, or returns 0 if there is none left --

static size_t save_clock(const struct policy *policy, struct policy_cursor *cursor, char *piece)
{
    const struct policy_clock *clock = &policy->clock;
    struct saved_clock saved = {
        .part = clock->part_bytes / clock->tick_bytes,
        .known_share = clock->known_share,
        .mean_bytes = clock->mean_bytes,
        .newcomer_share = clock->newcomer_share,
        .tick = clock->tick,
        .key_max = policy->monitor.key_max,
        .admitted_rank = policy->reclaim.admitted_rank,
        .bar = policy->reclaim.bar,
    };
    if (cursor->at++ > 0) {
        return 0;
    }
    memcpy(piece + sizeof(struct piece_header), &saved, sizeof(saved));
    return piece_seal(policy, PIECE_CLOCK, 0, sizeof(saved), piece);
}

static size_t save_hazard(const struct policy *policy, struct policy_cursor *cursor, char *piece)
{
    const struct policy_monitor *monitor = &policy->monitor;
    while (cursor->at < POLICY_CLASSES && !policy->ranks.is_used[cursor->at]) {
        cursor->at++;
    }
    if (cursor->at == POLICY_CLASSES) {
        return 0;
    }
    check(cursor->at < POLICY_CLASSES);
    unsigned c = cursor->at++;
    float numbers[2 * POLICY_BUCKETS + 1];
    for (unsigned b = 0; b < ARRAY_LEN(numbers); b++) {
        numbers[b] = (b < POLICY_BUCKETS ? monitor->events[c][b]
                                         : monitor->exposures[c][b - POLICY_BUCKETS]) /
                     monitor->weight;
    }
    memcpy(piece + sizeof(struct piece_header), numbers, sizeof(numbers));
    return piece_seal(policy, PIECE_HAZARD, c, sizeof(numbers), piece);
}

static size_t save_followed(const struct policy *policy, struct policy_cursor *cursor, char *piece)
{
    const struct policy_monitor *monitor = &policy->monitor;
    if (cursor->at >= monitor->count) {
        return 0;
    }
    uint32_t first = cursor->at;
    size_t count = min_u64(monitor->count - first, FOLLOWED_IN_PIECE);
    size_t len = count * sizeof(struct policy_followed);
    memcpy(piece + sizeof(struct piece_header), &monitor->followed[first], len);
    cursor->at += (uint32_t)count;
    return piece_seal(policy, PIECE_FOLLOWED, first, len, piece);
}

static size_t save_segment(const struct policy *policy, struct policy_cursor *cursor, char *piece)
{
    const struct policy_segments *segments = &policy->segments;
    while (cursor->at < segments->table_size &&
           (segments->table[cursor->at].number == 0 ||
            cursor->run >= segments->table[cursor->at].run_count)) {
        cursor->at++;
        cursor->run = 0;
    }
    if (cursor->at == segments->table_size) {
        return 0;
    }
    const struct policy_segment *segment = &segments->table[cursor->at];
    check(cursor->run < segment->run_count);
    char *body = piece + sizeof(struct piece_header);
    uint32_t first = cursor->run;
    uint32_t count = (uint32_t)min_u64(segment->run_count - first, RUNS_IN_PIECE);
    memcpy(body, &segment->end, 4);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(body + 4 + i * sizeof(struct policy_run),
               policy_segments_run(segments, segment, first + i), sizeof(struct policy_run));
    }
    cursor->run += count;
    return piece_seal(policy, PIECE_SEGMENT, segment->number | (uint64_t)first << 32,
                      4 + count * sizeof(struct policy_run), piece);
}

static size_t save_ghost(const struct policy *policy, struct policy_cursor *cursor, char *piece)
{
    const struct policy_ghost *ghost = &policy->ghost;
    if (cursor->at >= ghost->set_count) {
        return 0;
    }
    uint32_t first = cursor->at;
    size_t count = min_u64(ghost->set_count - first, SETS_IN_PIECE);
    size_t len = count * sizeof(struct policy_ghost_set);
    memcpy(piece + sizeof(struct piece_header), &ghost->sets[first], len);
    cursor->at += (uint32_t)count;
    return piece_seal(policy, PIECE_GHOST, first | (uint64_t)ghost->set_count << 32, len, piece);
}

static size_t save_groups(const struct policy *policy, struct policy_cursor *cursor, char *piece)
{
    struct saved_group saved[POLICY_GROUPS] = {0};
    if (cursor->at++ > 0) {
        return 0;
    }
    for (unsigned i = 0; i < POLICY_GROUPS; i++) {
        const struct policy_group *options = &policy->groups.of[i].options;
        saved[i] = (struct saved_group){.identity = options->identity, .plain = options->plain};
    }
    memcpy(piece + sizeof(struct piece_header), saved, sizeof(saved));
    return piece_seal(policy, PIECE_GROUPS, 0, sizeof(saved), piece);
}

size_t policy_save(struct policy *policy, struct policy_cursor *cursor, void *ret_piece)
{
    static size_t (*const savers[PIECE_KINDS])(const struct policy *policy,
                                               struct policy_cursor *cursor, char *piece) = {
        save_groups, save_clock, save_hazard, save_followed, save_segment, save_ghost};
    check(policy->magic == POLICY_MAGIC);
    check(cursor->step <= PIECE_KINDS);
    if (cursor->step == 0 && cursor->at == 0) {
        policy_period_end(policy); // the loaded policy cannot continue this period
    }
    for (; cursor->step < PIECE_KINDS; cursor->step++, cursor->at = cursor->run = 0) {
        size_t len = savers[cursor->step](policy, cursor, ret_piece);
        if (len > 0) {
            return len;
        }
    }
    return 0;
}

// --- loading: each function checks its whole body first, so a refused piece changes nothing ------

static bool is_share(double value)
{
    return value >= 0 && value <= 1;
}

static bool clock_is_valid(const struct saved_clock *saved)
{
    return fabs(saved->part) <= 2 && is_share(saved->known_share) &&
           is_share(saved->newcomer_share) && saved->mean_bytes >= 0 &&
           isfinite(saved->mean_bytes) && saved->admitted_rank >= 0 &&
           isfinite(saved->admitted_rank) && saved->bar >= 0 && isfinite(saved->bar);
}

static bool load_clock(struct policy *policy, uint64_t argument, const char *body, size_t len)
{
    struct saved_clock saved;
    struct policy_clock *clock = &policy->clock;
    if (len != sizeof(saved) || argument != 0) {
        return false;
    }
    memcpy(&saved, body, sizeof(saved));
    if (!clock_is_valid(&saved)) {
        return false;
    }
    clock->tick = policy->period_tick = saved.tick;
    clock->part_bytes = saved.part * clock->tick_bytes;
    clock->known_share = saved.known_share;
    clock->mean_bytes = saved.mean_bytes;
    clock->newcomer_share = saved.newcomer_share;
    clock->asked_bytes = 1; // with 0, policy_clock_advance() would replace mean_bytes
    policy->monitor.key_max = saved.key_max;
    policy->reclaim.admitted_rank = saved.admitted_rank;
    policy->reclaim.bar = saved.bar;
    return true;
}

static bool load_hazard(struct policy *policy, uint64_t argument, const char *body, size_t len)
{
    struct policy_monitor *monitor = &policy->monitor;
    float numbers[2 * POLICY_BUCKETS + 1];
    if (len != sizeof(numbers) || argument >= POLICY_CLASSES) {
        return false;
    }
    memcpy(numbers, body, sizeof(numbers));
    for (unsigned b = 0; b < ARRAY_LEN(numbers); b++) {
        if (!isfinite(numbers[b]) || (b < POLICY_BUCKETS && numbers[b] < 0)) {
            return false;
        }
    }
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        monitor->events[argument][b] = numbers[b] * monitor->weight;
    }
    for (unsigned b = 0; b <= POLICY_BUCKETS; b++) {
        monitor->exposures[argument][b] = numbers[POLICY_BUCKETS + b] * monitor->weight;
    }
    monitor->has_news[argument] = true;
    return true;
}

static bool load_followed(struct policy *policy, uint64_t argument, const char *body, size_t len)
{
    size_t count = len / sizeof(struct policy_followed);
    if (count * sizeof(struct policy_followed) != len || argument > POLICY_MONITOR_MAX ||
        count > POLICY_MONITOR_MAX - argument) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct policy_followed one;
        memcpy(&one, body + i * sizeof(one), sizeof(one));
        if (one.reuse_class < POLICY_CLASSES && one.bucket < POLICY_BUCKETS) {
            policy_monitor_put(&policy->monitor, &one);
        }
    }
    return true;
}

static struct policy_run run_of_saved(const char *body, size_t index)
{
    struct policy_run run;
    memcpy(&run, body + 4 + index * sizeof(run), sizeof(run));
    return run;
}

static bool runs_are_valid(const char *body, size_t count, uint32_t end)
{
    for (size_t i = 0; i < count; i++) {
        struct policy_run run = run_of_saved(body, i);
        bool gone = run.stamp == POLICY_STAMP_GONE;
        if (run.start >= end || (!gone && policy_stamp_class(run.stamp) >= POLICY_CLASSES)) {
            return false;
        }
    }
    return true;
}

static bool load_segment(struct policy *policy, uint64_t argument, const char *body, size_t len)
{
    struct policy_segments *segments = &policy->segments;
    uint32_t number = (uint32_t)argument, first = (uint32_t)(argument >> 32), end = 0;
    size_t count = len < 4 ? 0 : (len - 4) / sizeof(struct policy_run);
    struct policy_segment *segment = policy_segments_find(segments, number);
    if (4 + count * sizeof(struct policy_run) != len || (first == 0) != (segment == NULL) ||
        (segment != NULL &&
         (segment->state != POLICY_SEGMENT_LOADED || segment->run_count != first))) {
        return false;
    }
    memcpy(&end, body, 4);
    if (!runs_are_valid(body, count, end)) {
        return false;
    }
    if (segment == NULL) {
        segment = policy_segments_begin(segments, number);
    }
    if (segment == NULL) {
        return false;
    }
    segment->state = POLICY_SEGMENT_LOADED;
    for (size_t i = 0; i < count; i++) {
        struct policy_run run = run_of_saved(body, i);
        if (run.stamp != POLICY_STAMP_GONE) {
            unsigned group = policy->groups.now[policy_stamp_group(run.stamp)];
            run.stamp = policy_stamp_grouped(run.stamp, group);
        }
        if (!policy_segments_append(segments, segment, run.start, end - run.start, run.stamp)) {
            break; // there is no memory, so the remaining runs are not ranked
        }
    }
    return true;
}

static bool load_ghost(struct policy *policy, uint64_t argument, const char *body, size_t len)
{
    struct policy_ghost *ghost = &policy->ghost;
    uint32_t first = (uint32_t)argument;
    size_t count = len / sizeof(struct policy_ghost_set);
    if (count * sizeof(struct policy_ghost_set) != len || argument >> 32 != ghost->set_count ||
        first > ghost->set_count || count > ghost->set_count - first) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        policy_ghost_restore(ghost, first + (uint32_t)i, body + i * sizeof(struct policy_ghost_set),
                             policy->groups.now);
        policy_ghost_sweep(ghost, first + (uint32_t)i, policy->clock.tick);
    }
    return true;
}

// Returns the present group of the rule that had this group number when it was saved. If the rule
// no longer exists, returns the group that its runs now belong to.
static unsigned group_of_saved(const struct policy *policy, const struct saved_group *saved,
                               unsigned number)
{
    const struct policy_group_state *groups = policy->groups.of;
    for (unsigned i = 0; i < POLICY_GROUPS && saved[number].identity != 0; i++) {
        if (groups[i].options.identity == saved[number].identity) {
            return i;
        }
    }
    unsigned plain = saved[number].identity == 0 ? number : saved[number].plain;
    return groups[plain].options.identity == 0 ? plain : 0;
}

static bool load_groups(struct policy *policy, uint64_t argument, const char *body, size_t len)
{
    struct saved_group saved[POLICY_GROUPS];
    if (len != sizeof(saved) || argument != 0) {
        return false;
    }
    memcpy(saved, body, sizeof(saved));
    for (unsigned i = 0; i < POLICY_GROUPS; i++) {
        if (saved[i].plain >= POLICY_GROUPS) {
            return false;
        }
    }
    for (unsigned i = 0; i < POLICY_GROUPS; i++) {
        policy->groups.now[i] = (uint8_t)group_of_saved(policy, saved, i);
    }
    return true;
}

uint32_t policy_saved_former(const void *piece, size_t len)
{
    struct piece_header header;
    if (len < sizeof(header)) {
        return 0;
    }
    memcpy(&header, piece, sizeof(header));
    bool says = header.magic == PIECE_MAGIC && header.version == PIECE_VERSION;
    return says ? policy_ghost_former(header.ghost_sets) : 0;
}

enum err policy_load(struct policy *policy, const void *piece, size_t len)
{
    static bool (*const loaders[PIECE_KINDS])(struct policy * policy, uint64_t argument,
                                              const char *body, size_t len) = {
        load_clock, load_hazard, load_followed, load_segment, load_ghost, load_groups};
    struct piece_header header;
    check(policy->magic == POLICY_MAGIC);
    if (len < sizeof(header) || len > POLICY_PIECE_MAX) {
        return ERR_CORRUPT;
    }
    memcpy(&header, piece, sizeof(header));
    if (header.magic != PIECE_MAGIC || header.version != PIECE_VERSION ||
        header.identity != policy->options.identity) {
        return ERR_FORMAT;
    }
    if (header.body_len != len - sizeof(header) || header.kind >= PIECE_KINDS ||
        header.checksum != piece_checksum(piece, header.body_len)) {
        return ERR_CORRUPT;
    }
    const char *body = (const char *)piece + sizeof(header);
    return loaders[header.kind](policy, header.argument, body, header.body_len) ? ERR_OK
                                                                                : ERR_CORRUPT;
}

void policy_load_done(struct policy *policy)
{
    check(policy->magic == POLICY_MAGIC);
    for (uint32_t i = 0; i < policy->segments.table_size; i++) {
        if (policy->segments.table[i].state == POLICY_SEGMENT_LOADED) {
            policy_segments_free(&policy->segments, &policy->segments.table[i]);
        }
    }
    policy_groups_tend(policy);
    policy_renew(policy);
}
