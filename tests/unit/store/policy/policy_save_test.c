// SPDX-License-Identifier: Apache-2.0
// Proves: what a policy knows is the same after save and load; a damaged piece, one of another
// cache or version changes nothing and the others count; segments that are not there any more are
// forgotten.
#include "store/policy/policy_fixture.h"
#include "test.h"

#include <stdlib.h>

#define SEGMENTS 16u
#define PIECES_MAX 64u

struct pieces {
    unsigned count;
    size_t lens[PIECES_MAX];
    char (*bytes)[POLICY_PIECE_MAX];
};

static void pieces_save(struct pieces *pieces, struct policy *policy)
{
    struct policy_cursor cursor = {0};
    pieces->bytes = malloc((size_t)PIECES_MAX * POLICY_PIECE_MAX);
    cr_assert_not_null(pieces->bytes);
    pieces->count = 0;
    for (size_t len; (len = policy_save(policy, &cursor, pieces->bytes[pieces->count])) > 0;) {
        cr_assert_leq(len, POLICY_PIECE_MAX);
        pieces->lens[pieces->count++] = len;
        cr_assert_lt(pieces->count, PIECES_MAX);
    }
}

// Creates a history of some epochs, three segments, one of them open, and ghosts.
static void live(struct shelf *shelf)
{
    uint32_t stamp;
    for (uint64_t i = 0; i < 3; i++) {
        (void)shelf_fill(shelf, i * SEGMENT_RUNS, 3);
    }
    policy_segments_set_state(&shelf->policy->segments,
                              policy_segments_find(&shelf->policy->segments, 3),
                              POLICY_SEGMENT_OPEN);
    policy_set_full(shelf->policy, true);
    for (unsigned epoch = 0; epoch < 20; epoch++) {
        for (uint64_t block = 0; block < 200; block++) {
            if (block < 3 * SEGMENT_RUNS) {
                shelf_read(shelf, block, (uint32_t)block / SEGMENT_RUNS + 1, block % SEGMENT_RUNS);
            } else {
                (void)shelf_miss(shelf, block, 0, &stamp);
            }
        }
    }
    struct policy_event gone = {.kind = POLICY_GONE, .segment = 2, .start = RUN_BYTES};
    policy_take(shelf->policy, &gone, 1);
}

static void expect_same_run(const struct shelf *a, const struct shelf *b, uint32_t number,
                            uint32_t i)
{
    const struct policy_segments *left = &a->policy->segments, *right = &b->policy->segments;
    struct policy_run *x = policy_segments_run(left, policy_segments_find(left, number), i);
    struct policy_run *y = policy_segments_run(right, policy_segments_find(right, number), i);
    cr_assert_eq(x->start, y->start);
    cr_assert_eq(x->stamp, y->stamp);
}

Test(policy_save, a_saved_policy_is_loaded_unchanged)
{
    struct shelf before, after;
    struct pieces pieces;
    shelf_init(&before, POLICY_EPOCH, SEGMENTS);
    live(&before);
    pieces_save(&pieces, before.policy);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    for (unsigned i = pieces.count; i-- > 0;) { // in any order
        cr_assert_eq(policy_load(after.policy, pieces.bytes[i], pieces.lens[i]), ERR_OK);
    }
    cr_assert(policy_segment_knows(after.policy, 3));
    policy_segment_seal(after.policy, 1);
    policy_segment_seal(after.policy, 2);
    policy_load_done(after.policy);
    cr_assert_not(policy_segment_knows(after.policy, 3));
    for (unsigned i = 0; i < 8; i++) { // each class at least once
        policy_renew(before.policy);
    }
    for (uint32_t number = 1; number <= 2; number++) {
        for (uint32_t i = 0; i < SEGMENT_RUNS; i++) {
            expect_same_run(&before, &after, number, i);
        }
    }
    cr_assert_eq(after.policy->clock.tick, before.policy->clock.tick);
    cr_assert_eq(after.policy->monitor.count, before.policy->monitor.count);
    for (uint64_t block = 3 * SEGMENT_RUNS; block < 200; block++) {
        uint32_t left, right;
        bool had = policy_ghost_find(&before.policy->ghost, shelf_key(block), &left);
        cr_assert_eq(policy_ghost_find(&after.policy->ghost, shelf_key(block), &right), had);
        cr_assert(!had || left == right);
    }
    for (unsigned c = 0; c < POLICY_CLASSES; c++) {
        for (unsigned b = 0; b < POLICY_BUCKETS && before.policy->ranks.is_used[c]; b++) {
            float left = before.policy->ranks.rank[c][b], right = after.policy->ranks.rank[c][b];
            cr_assert(right >= left * 0.99f && right <= left * 1.01f, "class %u bucket %u", c, b);
        }
    }
    free(pieces.bytes);
    shelf_done(&before);
    shelf_done(&after);
}

// Reads of a process that ends before its first period has ended.
Test(policy_save, few_requests_are_learnt_before_they_are_saved)
{
    struct shelf before, after;
    struct pieces pieces;
    shelf_init(&before, POLICY_EPOCH, SEGMENTS);
    (void)shelf_fill(&before, 0, 0);
    shelf_pass(&before, 500);
    for (uint64_t block = 0; block < SEGMENT_RUNS; block++) {
        shelf_read(&before, block, 1, (uint32_t)block);
    }
    cr_assert_eq(before.policy->ranks.round, 0u); // no period has ended
    pieces_save(&pieces, before.policy);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    for (unsigned i = 0; i < pieces.count; i++) {
        cr_assert_eq(policy_load(after.policy, pieces.bytes[i], pieces.lens[i]), ERR_OK);
    }
    policy_load_done(after.policy);
    cr_assert_gt(after.policy->ranks.rank[POLICY_CLASS_NEW][0], 0.0f);
    free(pieces.bytes);
    shelf_done(&before);
    shelf_done(&after);
}

Test(policy_save, damage_is_found_and_changes_nothing)
{
    struct shelf before, after;
    struct pieces pieces;
    shelf_init(&before, POLICY_EPOCH, SEGMENTS);
    live(&before);
    pieces_save(&pieces, before.policy);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    for (unsigned i = 0; i < pieces.count; i++) {
        for (size_t at = 0; at < pieces.lens[i]; at += at < 64 ? 1 : 97) {
            pieces.bytes[i][at] ^= 0x10;
            cr_assert_neq(policy_load(after.policy, pieces.bytes[i], pieces.lens[i]), ERR_OK);
            pieces.bytes[i][at] ^= 0x10;
        }
        cr_assert_eq(policy_load(after.policy, pieces.bytes[i], pieces.lens[i] - 1), ERR_CORRUPT);
        cr_assert_eq(policy_load(after.policy, pieces.bytes[i], 7), ERR_CORRUPT);
    }
    cr_assert_eq(after.policy->monitor.count, 0u);
    cr_assert_not(policy_segment_knows(after.policy, 1));
    cr_assert_eq(after.policy->clock.tick, 0u);
    shelf_done(&after);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    after.policy->options.identity = 8;
    cr_assert_eq(policy_load(after.policy, pieces.bytes[0], pieces.lens[0]), ERR_FORMAT);
    policy_load_done(after.policy);
    free(pieces.bytes);
    shelf_done(&before);
    shelf_done(&after);
}

Test(policy_save, a_piece_that_comes_twice_counts_once)
{
    struct shelf before, after;
    struct pieces pieces;
    shelf_init(&before, POLICY_EPOCH, SEGMENTS);
    live(&before);
    pieces_save(&pieces, before.policy);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    for (unsigned i = 0; i < 2 * pieces.count; i++) {
        enum err err = policy_load(after.policy, pieces.bytes[i / 2], pieces.lens[i / 2]);
        cr_assert(i % 2 == 1 || err == ERR_OK); // the second time it may be refused
    }
    cr_assert_eq(policy_segment_run_count(after.policy, 1), SEGMENT_RUNS);
    cr_assert_eq(after.policy->monitor.count, before.policy->monitor.count);
    cr_assert(policy_segment_begin(after.policy, 3)); // begun again: its runs are known
    cr_assert_eq(policy_segment_run_count(after.policy, 3), SEGMENT_RUNS);
    free(pieces.bytes);
    shelf_done(&before);
    shelf_done(&after);
}

Test(policy_save, a_large_segment_is_several_pieces)
{
    struct policy_options options = {
        .kind = POLICY_EPOCH, .capacity_bytes = 1u << 30, .segment_max = 4, .run_max = 40000};
    size_t bytes = align_up_u64(policy_region_bytes(&options), 64);
    void *regions[2] = {aligned_alloc(64, bytes), aligned_alloc(64, bytes)};
    struct policy *policies[2];
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_not_null(regions[i]);
        memset(regions[i], 0, bytes);
        policies[i] = policy_new(&options, regions[i]);
    }
    cr_assert(policy_segment_begin(policies[0], 1));
    for (uint32_t i = 0; i < 30000; i++) {
        cr_assert(policy_segment_append(policies[0], 1, i * 600, 600, shelf_key(i), i << 12));
    }
    struct pieces pieces;
    pieces_save(&pieces, policies[0]);
    for (unsigned i = 0; i < pieces.count; i++) {
        cr_assert_eq(policy_load(policies[1], pieces.bytes[i], pieces.lens[i]), ERR_OK);
    }
    cr_assert_eq(policy_segment_run_count(policies[1], 1), 30000u);
    uint32_t start;
    cr_assert(policy_segment_run(policies[1], 1, 29999, &start));
    cr_assert_eq(start, 29999u * 600);
    free(pieces.bytes);
    for (unsigned i = 0; i < 2; i++) {
        policy_free(policies[i]);
        free(regions[i]);
    }
}

// --- groups of rules

static const uint64_t identities[] = {501, 502, 503};

static void groups_set(struct policy *policy, unsigned first, unsigned second)
{
    policy_group_set(
        policy, 10,
        &(struct policy_group){
            .factor = 1, .is_pinned = true, .plain = 3, .identity = identities[first]});
    policy_group_set(
        policy, 11,
        &(struct policy_group){
            .factor = 1, .share_percent = 50, .plain = 2, .identity = identities[second]});
    policy_pins_set_max(policy, 1u << 30);
}

static void expect_group(const struct shelf *shelf, uint32_t number, unsigned group)
{
    const struct policy_segments *segments = &shelf->policy->segments;
    const struct policy_segment *segment = policy_segments_find(segments, number);
    for (uint32_t i = 0; i < segment->run_count; i++) {
        cr_assert_eq(policy_stamp_group(policy_segments_run(segments, segment, i)->stamp), group);
    }
}

// `pieces` of runs of two rules, and of a priority, for a process with other rules.
static void load_with(struct pieces *pieces, unsigned first, unsigned second, unsigned from,
                      const unsigned *expected)
{
    struct shelf shelf;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    groups_set(shelf.policy, first, second);
    for (unsigned i = from; i < pieces->count; i++) {
        cr_assert_eq(policy_load(shelf.policy, pieces->bytes[i], pieces->lens[i]), ERR_OK);
    }
    for (uint32_t number = 1; number <= 3; number++) {
        cr_assert(policy_segment_begin(shelf.policy, number));
        expect_group(&shelf, number, expected[number - 1]);
    }
    policy_load_done(shelf.policy);
    cr_assert_eq(policy_segment_pinned_count(shelf.policy, 1) > 0, expected[0] == 10);
    shelf_done(&shelf);
}

Test(policy_save, runs_stay_with_their_rule_at_any_position)
{
    struct shelf shelf;
    struct pieces pieces;
    shelf_init(&shelf, POLICY_EPOCH, SEGMENTS);
    groups_set(shelf.policy, 0, 1);
    (void)shelf_fill(&shelf, 0, 10);
    (void)shelf_fill(&shelf, 100, 11);
    (void)shelf_fill(&shelf, 200, 1);
    pieces_save(&pieces, shelf.policy);
    load_with(&pieces, 0, 1, 0, (unsigned[]){10, 11, 1});
    load_with(&pieces, 1, 0, 0, (unsigned[]){11, 10, 1}); // they have changed places
    load_with(&pieces, 2, 1, 0, (unsigned[]){3, 11, 1});  // one is gone: its priority is left
    load_with(&pieces, 0, 1, 1, (unsigned[]){0, 0, 1});   // whose is whose is not known
    free(pieces.bytes);
    shelf_done(&shelf);
}

#define PIECE_HEADER 40u
#define PIECE_CHECKSUM 32u // where it is in the header
#define KIND_CLOCK 0u
#define KIND_HAZARD 1u
#define KIND_SEGMENT 3u

// Puts a number into the first piece of that kind, whose checksum is right again afterwards.
static enum err load_forged(struct shelf *shelf, struct pieces *pieces, uint16_t kind_wanted,
                            size_t at, const void *bytes, size_t len)
{
    uint16_t kind;
    for (unsigned i = 0; i < pieces->count; i++) {
        char *piece = pieces->bytes[i];
        memcpy(&kind, piece + 6, sizeof(kind));
        if (kind == kind_wanted) {
            memcpy(piece + PIECE_HEADER + at, bytes, len);
            uint64_t checksum = hash64(piece + PIECE_HEADER, pieces->lens[i] - PIECE_HEADER,
                                       hash64(piece, PIECE_CHECKSUM, 0));
            memcpy(piece + PIECE_CHECKSUM, &checksum, sizeof(checksum));
            return policy_load(shelf->policy, piece, pieces->lens[i]);
        }
    }
    return ERR_INTERNAL;
}

Test(policy_save, numbers_that_no_policy_can_have_are_refused)
{
    struct shelf before, after;
    struct pieces pieces;
    double share = 0.5, too_much = 1.5;
    float number = 1, nan = __builtin_nanf("");
    shelf_init(&before, POLICY_EPOCH, SEGMENTS);
    live(&before);
    pieces_save(&pieces, before.policy);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    cr_assert_eq(load_forged(&after, &pieces, KIND_CLOCK, 8, &too_much, 8), ERR_CORRUPT);
    cr_assert_eq(after.policy->clock.tick, 0u);
    cr_assert_eq(load_forged(&after, &pieces, KIND_CLOCK, 8, &share, 8), ERR_OK);
    cr_assert_eq(load_forged(&after, &pieces, KIND_HAZARD, 4, &nan, 4), ERR_CORRUPT);
    cr_assert_eq(load_forged(&after, &pieces, KIND_HAZARD, 4, &number, 4), ERR_OK);
    free(pieces.bytes);
    shelf_done(&before);
    shelf_done(&after);
}

// The second run of the piece is impossible, so the first one must not be loaded either.
Test(policy_save, a_refused_segment_leaves_no_run)
{
    struct shelf before, after;
    struct pieces pieces;
    uint32_t nowhere = UINT32_MAX;
    shelf_init(&before, POLICY_EPOCH, SEGMENTS);
    live(&before);
    pieces_save(&pieces, before.policy);
    shelf_init(&after, POLICY_EPOCH, SEGMENTS);
    cr_assert_eq(load_forged(&after, &pieces, KIND_SEGMENT, 4 + sizeof(struct policy_run), &nowhere,
                             sizeof(nowhere)),
                 ERR_CORRUPT);
    for (uint32_t number = 1; number < SEGMENTS; number++) {
        cr_assert_eq(policy_segment_run_count(after.policy, number), 0u);
        cr_assert_not(policy_segment_knows(after.policy, number));
    }
    free(pieces.bytes);
    shelf_done(&before);
    shelf_done(&after);
}
