// SPDX-License-Identifier: Apache-2.0
// Proves: each block of the span is in one piece, cached or not, with the policy's explanation. The
// question is no access and leaves no pin.
#include "stats/stats.h"
#include "store/policy/policy_private.h"
#include "store/store_fixture.h"
#include "test.h"

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

struct call {
    struct box *box;
    const char *key;
    uint64_t first_byte, end_byte;
    struct store_explain *explain;
};

static void do_look(struct worker *w, void *ctx)
{
    const struct call *call = ctx;
    store_explain_look(w, call->box->store, box_hash(call->box, call->key), call->first_byte,
                       call->end_byte, 0, BLOCK, 7, call->explain);
}

static void do_look_pinned(struct worker *w, void *ctx)
{
    const struct call *call = ctx;
    store_explain_look(w, call->box->store, box_hash(call->box, call->key), call->first_byte,
                       call->end_byte, 0, BLOCK, STORE_PRIORITIES, call->explain);
}

static struct store_explain *explain(struct box *box, const char *key, uint64_t end_byte)
{
    static struct store_explain explain;
    struct call call = {box, key, 0, end_byte, &explain};
    box_on_worker(box, 0, do_look, &call);
    store_explain_judge(box->store, &explain);
    return &explain;
}

static bool box_begin(struct box *box, enum disk_engine engine, enum store_policy policy)
{
    box_init(box, engine, 64 * MIB);
    box->options.policy = policy;
    if (!box_open(box)) {
        box_remove(box);
        return false;
    }
    return true;
}

static void judge_run(const struct store_explain *explain, unsigned at, uint64_t first_block,
                      uint32_t block_count, enum store_explain_state state)
{
    const struct store_explain_run *run = &explain->runs[at];
    cr_assert_lt(at, explain->run_count);
    cr_assert_eq(run->first_block, first_block);
    cr_assert_eq(run->block_count, block_count);
    cr_assert_eq(run->state, state);
    cr_assert_eq(run->segment_number != 0,
                 state == STORE_EXPLAIN_KEPT || state == STORE_EXPLAIN_UNRANKED);
}

Test(store_explain, tells_held_pieces_from_gaps)
{
    for (unsigned e = 0; e < ARRAY_LEN(engines); e++) {
        struct box box;
        if (!box_begin(&box, engines[e], STORE_POLICY_EPOCH)) {
            continue;
        }
        struct object object = {"k", "\"e\"", 20 * BLOCK - 5, BLOCK, 7};
        cr_assert_eq(box_put_run(&box, &object, 2, 3), ERR_OK);
        cr_assert_eq(box_put_run(&box, &object, 9, 1), ERR_OK);
        const struct store_explain *why = explain(&box, "k", 16 * MIB);
        cr_assert(why->learns && why->refusal == REFUSAL_none && why->keeps_up);
        cr_assert_not(why->is_full);
        cr_assert_eq(why->run_count, 5u);
        judge_run(why, 0, 0, 2, STORE_EXPLAIN_WANTED);
        judge_run(why, 1, 2, 3, STORE_EXPLAIN_KEPT);
        judge_run(why, 2, 5, 4, STORE_EXPLAIN_WANTED);
        judge_run(why, 3, 9, 1, STORE_EXPLAIN_KEPT);
        judge_run(why, 4, 10, 10, STORE_EXPLAIN_WANTED);
        cr_assert_eq(why->runs[1].priority, STORE_PRIORITY_NORMAL); // as it was stored
        cr_assert_eq(why->runs[0].priority, 7u);                    // as it was asked about
        cr_assert_lt(why->runs[1].age_bytes, 64 * MIB);
        cr_assert_eq(why->runs[0].age_bytes, UINT64_MAX);
        box_close(&box);
        box_remove(&box);
    }
}

static void do_read(struct worker *w, void *ctx)
{
    const struct call *call = ctx;
    struct store_view view;
    store_lookup(w, call->box->store, box_hash(call->box, call->key), 0, BLOCK, 0, &view);
    cr_assert_eq(view.place_count, 1u);
    store_note_read(w, call->box->store, &view.places[0], BLOCK, STORE_PRIORITIES);
    store_view_done(&view);
}

Test(store_explain, explains_pins_and_their_bytes)
{
    struct box box;
    struct store_group group = {.priority = 3, .pin = true, .identity = 9};
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    box.options.policy = STORE_POLICY_EPOCH;
    box.options.groups = &group;
    box.options.group_count = 1;
    cr_assert(box_open(&box));
    struct object object = {"k", "\"e\"", BLOCK, BLOCK, 7};
    cr_assert_eq(box_put(&box, &object), ERR_OK);
    struct call call = {.box = &box, .key = "k"};
    cr_assert_not(explain(&box, "k", BLOCK)->runs[0].is_pinned);
    box_on_worker(&box, 0, do_read, &call); // read under the rule
    retention_drain(&box.store->retention);
    static struct store_explain why;
    call.explain = &why;
    call.end_byte = BLOCK;
    box_on_worker(&box, 0, do_look_pinned, &call);
    store_explain_judge(box.store, &why);
    cr_assert(why.runs[0].is_pinned);
    cr_assert_eq(why.runs[0].priority, 3u);
    cr_assert_geq(why.group_bytes, BLOCK);
    cr_assert_gt(why.group_max_bytes, 20 * MIB);
    cr_assert_lt(why.group_max_bytes, 52 * MIB);
    box_close(&box);
    box_remove(&box);
}

Test(store_explain, is_no_access)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS, STORE_POLICY_EPOCH));
    struct object object = {"k", "\"e\"", BLOCK, BLOCK, 7};
    cr_assert_eq(box_put(&box, &object), ERR_OK);
    (void)explain(&box, "k", BLOCK);
    struct policy *policy = box.store->retention.policy;
    uint64_t asked = policy->clock.asked_bytes;
    for (unsigned i = 0; i < 3; i++) {
        judge_run(explain(&box, "k", BLOCK), 0, 0, 1, STORE_EXPLAIN_KEPT);
    }
    cr_assert_eq(policy->clock.asked_bytes, asked);
    uint32_t number = explain(&box, "k", BLOCK)->runs[0].segment_number;
    cr_assert_eq(atomic_load(&segment_log_entry(&box.store->log, number)->pins) & SEGMENT_PIN_COUNT,
                 0u);
    box_close(&box);
    box_remove(&box);
}

Test(store_explain, an_unknown_object_is_one_gap_as_long_as_was_asked)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS, STORE_POLICY_EPOCH));
    const struct store_explain *why = explain(&box, "nothing", 16 * MIB);
    cr_assert_eq(why->run_count, 1u);
    judge_run(why, 0, 0, STORE_EXPLAIN_RUNS_MAX, STORE_EXPLAIN_WANTED);
    box_close(&box);
    box_remove(&box);
}

Test(store_explain, lru_explains_only_cached_runs)
{
    struct box box;
    cr_assert(box_begin(&box, DISK_ENGINE_THREADS, STORE_POLICY_LRU));
    struct object object = {"k", "\"e\"", 2 * BLOCK, BLOCK, 7};
    cr_assert_eq(box_put_run(&box, &object, 0, 1), ERR_OK);
    const struct store_explain *why = explain(&box, "k", 2 * BLOCK);
    cr_assert_not(why->learns);
    cr_assert_eq(why->run_count, 2u);
    judge_run(why, 0, 0, 1, STORE_EXPLAIN_UNRANKED);
    judge_run(why, 1, 1, 1, STORE_EXPLAIN_WANTED);
    box_close(&box);
    box_remove(&box);
}
