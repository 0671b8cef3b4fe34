// SPDX-License-Identifier: Apache-2.0
// Replays a trace through the retention policy, on segments that exist only in memory, to find what
// the policy would have kept. For commands that plan, and for tests that judge the policy; a server
// does not use it. One thread.
//
// Space is counted as in the store. A segment counts as a whole one until it is full. After that it
// counts by its content, if that is smaller than a whole one by at least a 64th (segment_trim.c).
#include <stdlib.h>
#include <sys/mman.h>

#include "store/offline/offline.h"
#include "store/policy/policy.h"

#define BATCH_MAX 1024u
#define RECLAIMS_MAX 8u // segments that may be evicted to make room for one run, at most
// The policy gets room for at most this many runs per block of the trace.
#define RUNS_FOR_BLOCK_MAX 64u
#define TRIM_PARTS 64u // same value as in segment_trim.c
#define TRIM_SEGMENTS_MIN 8u
// Up to this many trimmed segments may fit into the space of a whole one, as in the store's table.
#define SEGMENTS_FOR_ROOM 4u

struct segment {
    uint32_t number, used_bytes, run_count;
    uint32_t cost_bytes; // bytes of the capacity that the segment uses
    uint32_t *blocks;    // its runs in order; each run is one block, given by its index
    uint32_t cap;
};

struct place {
    uint32_t number, start;
};

struct store_replay {
    const uint32_t *lens; // length of each block, in bytes
    struct policy *policy;
    void *region;
    size_t region_bytes;
    uint32_t segment_bytes, runs_max; // runs_max: maximum runs in a segment
    uint32_t segment_max, spares;     // segment_max: how many whole segments fit into the capacity
    uint32_t live;
    uint64_t room_bytes;
    uint32_t table_size, next_number;
    struct segment *table;                         // indexed by number % table_size
    struct segment *fresh, *survivors, *probation; // the three open segments
    struct place *places;                          // indexed by block; number 0: not stored
    uint32_t *indices;
    uint64_t *keys;
    struct policy_event events[BATCH_MAX];
    uint32_t event_count, batch;
};

static uint64_t key_of(uint32_t block)
{
    return policy_key((struct hash128){block, block * 0x2545f4914f6cdd1du}, block);
}

static void replay_drain(struct store_replay *r)
{
    if (r->event_count > 0) {
        policy_take(r->policy, r->events, r->event_count);
        r->event_count = 0;
    }
}

static void replay_tell(struct store_replay *r, struct policy_event event)
{
    check(r->event_count < r->batch && r->batch <= BATCH_MAX);
    r->events[r->event_count++] = event;
    if (r->event_count >= r->batch) {
        replay_drain(r);
    }
}

// Begins a segment. Returns NULL if there is no space for a whole one.
static struct segment *segment_begin(struct store_replay *r)
{
    struct segment *segment;
    if (r->room_bytes < r->segment_bytes || r->live == r->table_size - 1) {
        return NULL;
    }
    do {
        segment = &r->table[++r->next_number % r->table_size];
    } while (segment->number != 0 || r->next_number == 0);
    segment->number = r->next_number;
    segment->used_bytes = segment->run_count = 0;
    segment->cost_bytes = r->segment_bytes;
    r->room_bytes -= segment->cost_bytes;
    r->live++;
    check(r->live < r->table_size);
    check(policy_segment_begin(r->policy, segment->number));
    return segment;
}

static void segment_seal(struct store_replay *r, struct segment *segment)
{
    check(segment->number != 0 && segment->cost_bytes == r->segment_bytes);
    check(segment->used_bytes <= r->segment_bytes);
    policy_segment_seal(r->policy, segment->number);
    uint32_t left = r->segment_bytes - segment->used_bytes;
    if (r->segment_max >= TRIM_SEGMENTS_MIN && left >= r->segment_bytes / TRIM_PARTS) {
        segment->cost_bytes -= left;
        r->room_bytes += left;
    }
}

static bool segment_takes(const struct store_replay *r, const struct segment *segment, uint32_t len)
{
    return segment != NULL && segment->used_bytes + len <= r->segment_bytes &&
           segment->run_count < r->runs_max;
}

// Returns an open segment with room for `len` bytes, or NULL. Seals *open and begins another
// segment if needed.
static struct segment *segment_with_room(struct store_replay *r, struct segment **open,
                                         uint32_t len)
{
    if (!segment_takes(r, *open, len)) {
        replay_drain(r); // before it seals the segment, the policy must know the segment's runs
        if (*open != NULL) {
            segment_seal(r, *open);
        }
        *open = segment_begin(r);
    }
    check(*open == NULL || segment_takes(r, *open, len));
    return *open;
}

static uint32_t segment_add(struct store_replay *r, struct segment *segment, uint32_t block)
{
    check(segment->used_bytes + r->lens[block] <= r->segment_bytes);
    check(segment->run_count < r->runs_max);
    uint32_t start = segment->used_bytes;
    if (segment->run_count == segment->cap) {
        segment->cap = (uint32_t)min_u64(max_u64(64, 2ull * segment->cap), r->runs_max);
        segment->blocks = realloc(segment->blocks, segment->cap * sizeof(*segment->blocks));
        check(segment->blocks != NULL);
    }
    segment->blocks[segment->run_count++] = block;
    segment->used_bytes += r->lens[block];
    r->places[block] = (struct place){segment->number, start};
    return start;
}

static bool replay_reclaim(struct store_replay *r)
{
    struct policy_victim victim;
    replay_drain(r);
    if (!policy_victim(r->policy, NULL, NULL, r->indices, r->runs_max, &victim)) {
        return false;
    }
    struct segment *from = &r->table[victim.number % r->table_size];
    check(victim.number != 0 && from->number == victim.number);
    // The segment is sealed, so it is none of the open ones.
    check(from != r->fresh && from != r->survivors && from != r->probation);
    check(victim.survivor_count <= from->run_count);
    uint32_t next = 0;
    // Free the victim first, because survivors may need its space.
    r->room_bytes += from->cost_bytes;
    for (uint32_t i = 0; i < from->run_count; i++) {
        uint32_t block = from->blocks[i];
        uint32_t len = r->lens[block];
        struct segment *to = NULL;
        if (next < victim.survivor_count && r->indices[next] == i) {
            next++;
            to = segment_with_room(r, &r->survivors, len);
        }
        if (to != NULL) {
            check(to != from);
            uint32_t start = segment_add(r, to, block);
            policy_segment_move(r->policy, victim.number, i, to->number, start, len);
        } else {
            r->places[block].number = 0;
            policy_segment_drop(r->policy, victim.number, i, r->keys[block]);
        }
    }
    check(r->live > 0);
    policy_segment_free(r->policy, victim.number);
    from->number = 0;
    r->live--;
    if (policy_probation_is_idle(r->policy) && r->probation != NULL) {
        segment_seal(r, r->probation);
        r->probation = NULL;
    }
    return true;
}

static void replay_store(struct store_replay *r, uint32_t block, bool on_probation, uint32_t stamp)
{
    uint32_t len = r->lens[block];
    struct segment **open = on_probation ? &r->probation : &r->fresh;
    if (!segment_takes(r, *open, len)) {
        uint64_t wanted = (r->spares + 1ull) * r->segment_bytes;
        for (unsigned i = 0; i < RECLAIMS_MAX && r->room_bytes < wanted; i++) {
            if (!replay_reclaim(r)) {
                break;
            }
        }
    }
    struct segment *segment = segment_with_room(r, open, len);
    if (segment == NULL) {
        return;
    }
    uint32_t start = segment_add(r, segment, block);
    replay_tell(r, (struct policy_event){.kind = POLICY_STORED,
                                         .key = r->keys[block],
                                         .segment = segment->number,
                                         .start = start,
                                         .len = len,
                                         .stamp = stamp,
                                         .on_probation = on_probation});
}

bool store_replay_access(struct store_replay *r, uint32_t block, bool is_part)
{
    struct place place = r->places[block];
    uint64_t key = r->keys[block];
    uint32_t len = r->lens[block];
    check(place.number == 0 || r->table[place.number % r->table_size].number == place.number);
    if (place.number != 0) {
        replay_tell(r, (struct policy_event){.kind = POLICY_READ,
                                             .key = key,
                                             .segment = place.number,
                                             .start = place.start,
                                             .len = is_part ? len / STORE_REPLAY_PARTS : len});
        return true;
    }
    uint32_t stamp;
    enum policy_verdict verdict = policy_admit(r->policy, key, 0, is_part, &stamp);
    bool admitted = verdict != POLICY_REFUSE && len <= r->segment_bytes;
    bool on_probation = verdict == POLICY_PROBATION;
    replay_tell(r, (struct policy_event){.kind = admitted ? POLICY_ADMITTED : POLICY_REFUSED,
                                         .key = key,
                                         .len = len,
                                         .stamp = stamp,
                                         .is_part = is_part});
    if (admitted) {
        replay_store(r, block, on_probation, stamp);
    }
    return false;
}

// --- life cycle ----------------------------------------------------------------------------------

static void *take(size_t count, size_t size)
{
    void *taken = calloc(count, size);
    check(taken != NULL);
    return taken;
}

// Returns the size of a segment: 64 mean blocks, or fewer if the cache would otherwise have less
// than 64 segments.
static uint32_t segment_bytes_of(const struct store_replay_options *options)
{
    check(options->mean_bytes > 0);
    uint64_t mean = options->mean_bytes, blocks = 64;
    while (blocks > 4 && options->capacity_bytes / mean / blocks < 64) {
        blocks /= 2;
    }
    return options->segment_bytes != 0
               ? options->segment_bytes
               : (uint32_t)min_u64(max_u64(blocks * mean, options->segment_bytes_min),
                                   UINT32_MAX / 2);
}

uint64_t store_replay_segments(const struct store_replay_options *options)
{
    return options->capacity_bytes / segment_bytes_of(options);
}

static void replay_measure(struct store_replay *r, const struct store_replay_options *options)
{
    r->segment_bytes = segment_bytes_of(options);
    r->segment_max = (uint32_t)max_u64(store_replay_segments(options), STORE_REPLAY_SEGMENTS_MIN);
    uint32_t shortest = UINT32_MAX;
    for (uint32_t i = 0; i < options->block_count; i++) {
        shortest = (uint32_t)min_u64(shortest, options->lens[i]);
    }
    check(shortest > 0 && r->segment_bytes > 0);
    r->runs_max = r->segment_bytes / shortest + 1;
}

struct store_replay *store_replay_new(const struct store_replay_options *options)
{
    struct store_replay *r = take(1, sizeof(*r));
    check(options->block_count > 0 && options->mean_bytes > 0 && options->batch > 0 &&
          options->batch <= BATCH_MAX);
    r->lens = options->lens;
    r->batch = options->batch;
    r->spares = options->spares;
    replay_measure(r, options);
    uint64_t runs = options->capacity_bytes / r->segment_bytes * r->runs_max;
    struct policy_options policy = {
        .kind = options->policy == STORE_POLICY_LRU ? POLICY_LRU : POLICY_EPOCH,
        .capacity_bytes = options->capacity_bytes,
        .segment_max = SEGMENTS_FOR_ROOM * r->segment_max + 1,
        .run_max = (uint32_t)max_u64(
            64, min_u64(runs, (uint64_t)RUNS_FOR_BLOCK_MAX * options->block_count)),
    };
    r->region_bytes = align_up_u64(policy_region_bytes(&policy), 64);
    r->region =
        mmap(NULL, r->region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(r->region != MAP_FAILED);
    r->policy = policy_new(&policy, r->region);
    check(r->policy != NULL && policy.segment_max > STORE_REPLAY_SEGMENTS_MIN);
    r->table_size = policy.segment_max;
    r->room_bytes = (uint64_t)r->segment_max * r->segment_bytes;
    r->table = take(r->table_size, sizeof(*r->table));
    r->indices = take(r->runs_max, sizeof(*r->indices));
    r->places = take(options->block_count, sizeof(*r->places));
    r->keys = take(options->block_count, sizeof(*r->keys));
    for (uint32_t i = 0; i < options->block_count; i++) {
        r->keys[i] = key_of(i);
    }
    return r;
}

void store_replay_figures(struct store_replay *r, struct store_replay_figures *ret_figures)
{
    struct policy_stats stats;
    replay_drain(r);
    policy_stats(r->policy, &stats);
    *ret_figures = (struct store_replay_figures){.admitted_bytes = stats.admitted_bytes,
                                                 .rewritten_bytes = stats.rewritten_bytes,
                                                 .unranked_runs = stats.unranked_runs};
}

void store_replay_free(struct store_replay *r)
{
    check(r->event_count < r->batch && r->live < r->table_size);
    policy_free(r->policy);
    for (uint32_t i = 0; i < r->table_size; i++) {
        free(r->table[i].blocks);
    }
    (void)munmap(r->region, r->region_bytes); // cannot fail: this is the whole mapping
    free(r->table);
    free(r->indices);
    free(r->places);
    free(r->keys);
    free(r);
}
