// SPDX-License-Identifier: Apache-2.0
// Proves: a realm that was away gets a new number, an origin its former one, other holders keep
// theirs, and no number is given twice.
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_private.h"
#include "test.h"

static struct store store;

static struct store_holder holder(const char *name, bool is_origin)
{
    return (struct store_holder){
        .kind = SPAN("kind"), .name = span_from_cstr(name), .is_origin = is_origin};
}

static void load(struct store_holder *holders, unsigned count)
{
    state_holders_load(&store.disk, &store.doubts, holders, count);
}

// Returns true if what was confirmed `age_ms` ago of an origin does not count.
static bool is_doubted(const char *name, uint64_t age_ms)
{
    return store_is_doubted(&store, span_from_cstr(name), SPAN(""), age_ms);
}

static void begin(void)
{
    memset(&store, 0, sizeof(store));
    state_doubts_init(&store.doubts, &store.disk);
}

Test(store_holder, a_realm_that_comes_back_gets_a_new_number_and_others_keep_theirs)
{
    begin();
    struct store_holder all[] = {holder("origin", true), holder("a", false), holder("b", false)};
    load(all, 3);
    cr_assert(all[0].number == 0 && all[1].number > 0 && all[2].number > 0);
    cr_assert_neq(all[1].number, all[2].number);
    uint64_t a = all[1].number, b = all[2].number;
    struct store_holder two[] = {holder("b", false), holder("origin", true)};
    load(two, 2);
    cr_assert(two[0].number == b && two[1].number == 0);
    struct store_holder added[] = {holder("b", false), holder("a", false)};
    cr_assert_eq(store_holders_add(&store, added, 2), ERR_OK);
    cr_assert(added[0].number == b && added[1].number > b, "it was away");
    cr_assert_neq(added[1].number, a);
    load(all, 3);
    cr_assert(all[0].number == 0 && all[1].number == added[1].number && all[2].number == b);
    cr_assert(!all[0].is_back && !all[1].is_back);
}

// A bucket that used the one that leaves may use another one now, at the same store.
Test(store_holder, copies_of_all_origins_are_revalidated_once_when_one_leaves)
{
    begin();
    struct store_holder all[] = {holder("stays", true), holder("leaves", true)};
    load(all, 2);
    store_doubt(&store, SPAN("place"), SPAN("bucket"));
    clock_test_advance_us((STORE_DOUBT_MS + 5000) * 1000ull);
    load(all, 2);
    cr_assert_not(is_doubted("stays", UINT64_MAX), "none has left");
    load(all, 1);
    clock_test_advance_us(5000000);
    cr_assert(is_doubted("stays", 6000) && !is_doubted("stays", 4000));
    cr_assert(store_is_doubted(&store, SPAN("place"), SPAN("bucket"), 6000));
    cr_assert_eq(all[0].number, 0);
    load(all, 1);
    cr_assert_not(is_doubted("stays", 4000), "once");
}

Test(store_holder, an_origin_that_comes_back_gets_its_number_and_what_it_had_is_revalidated)
{
    begin();
    struct store_holder first[] = {holder("first", true)}, other[] = {holder("other", true)};
    load(first, 1);
    load(other, 1);
    cr_assert(other[0].number > 0 && !other[0].is_back);
    load(other, 1);
    clock_test_advance_us(10000000);
    cr_assert_not(is_doubted("first", 9000));
    load(first, 1);
    cr_assert(first[0].number == 0 && first[0].is_back);
    clock_test_advance_us(5000000);
    cr_assert(is_doubted("first", 6000) && is_doubted("first", UINT64_MAX));
    cr_assert_not(is_doubted("first", 4000), "confirmed since it came back");
    uint64_t number = other[0].number;
    cr_assert_eq(store_holders_add(&store, other, 1), ERR_OK);
    cr_assert(other[0].number == number && other[0].is_back && is_doubted("other", 1));
    cr_assert_eq(store.disk.dir.format.state.count[STATE_FORMER], 0);
    cr_assert(state_table_has(&store.disk.dir.format.state, STATE_DOUBTS), "the next start doubts");
}

Test(store_holder, an_origin_is_doubted_as_long_as_writes_of_the_former_process_may_be_applied)
{
    begin();
    struct store_holder first[] = {holder("first", true)}, other[] = {holder("other", true)};
    load(first, 1);
    load(other, 1);
    store_doubt(&store, SPAN("other"), SPAN("bucket"));
    load(first, 1);
    cr_assert(is_doubted("first", 0), "the write may be one to the same place");
    clock_test_advance_us((STORE_DOUBT_MS + 5000) * 1000ull);
    cr_assert(!is_doubted("first", 0) && is_doubted("first", 60000));
}

// An earlier version gave the stores of several regions one name. It leaves no line of the rule.
Test(store_holder, copies_under_a_name_that_several_stores_had_are_revalidated_once)
{
    begin();
    store.disk.dir.fresh = true;
    struct store_holder all[] = {holder("aws", true), holder("other", true)};
    all[0].was_shared = true;
    load(all, 2);
    cr_assert_not(is_doubted("aws", UINT64_MAX), "a new directory has no copies");
    struct state_table *state = &store.disk.dir.format.state;
    state_table_remove(state, STATE_HOLDERS, state_table_rows(state, STATE_HOLDERS)[2].key);
    store.disk.dir.fresh = false;
    clock_test_advance_us(10000000);
    load(all, 2);
    cr_assert_eq(all[0].number, 0, "its copies are not lost");
    clock_test_advance_us(5000000);
    cr_assert(is_doubted("aws", 6000) && !is_doubted("aws", 4000));
    cr_assert_not(is_doubted("other", UINT64_MAX));
    load(all, 2);
    cr_assert_not(is_doubted("aws", 4000), "once");
    cr_assert_eq(state->count[STATE_FORMER], 0);
}

static void expect_format(const char *first_line)
{
    struct buf text;
    struct store_format again;
    buf_init(&text, 131072);
    store.disk.dir.format.segment_size_bytes = SEGMENT_SIZE_MIN;
    store_format_render(&store.disk.dir.format, &text);
    cr_assert(buf_ok(&text) && span_starts_with(buf_span(&text), span_from_cstr(first_line)));
    cr_assert_eq(store_format_parse(buf_span(&text), &again), ERR_OK);
    cr_assert_eq(again.state.count[STATE_HOLDERS],
                 store.disk.dir.format.state.count[STATE_HOLDERS]);
    buf_done(&text);
}

Test(store_holder, above_the_bound_the_holders_that_left_first_are_forgotten)
{
    enum { COUNT = STATE_FORMER_MAX + 2 };
    static char names[COUNT][16];
    begin();
    uint64_t before = stats_sum(COUNTER_holders_unnoted), numbers[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%u", i);
        struct store_holder one[] = {holder(names[i], true)};
        load(one, 1);
        numbers[i] = one[0].number;
    }
    cr_assert_eq(stats_sum(COUNTER_holders_unnoted) - before, 1);
    expect_format("forebay-cache 4\n"); // an earlier program must refuse it
    struct store_holder lost[] = {holder(names[0], true)}, kept[] = {holder(names[1], true)};
    cr_assert_eq(store_holders_add(&store, kept, 1), ERR_OK);
    cr_assert(kept[0].number == numbers[1] && kept[0].is_back);
    cr_assert_eq(store_holders_add(&store, lost, 1), ERR_OK);
    cr_assert(lost[0].number > numbers[COUNT - 1] && !lost[0].is_back);
}

// Above the number of lines: each start gives a new number, and never one that was used.
Test(store_holder, bounds)
{
    enum { COUNT = STATE_HOLDERS_MAX + 3 };
    static struct store_holder all[COUNT];
    static char names[COUNT][16];
    begin();
    for (unsigned i = 0; i < COUNT; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%u", i);
        all[i] = holder(names[i], false);
    }
    uint64_t before = stats_sum(COUNTER_holders_unnoted);
    load(all, COUNT);
    uint64_t last = store.disk.dir.format.state.others[STATE_HOLDERS].number, noted = all[0].number;
    cr_assert_eq(stats_sum(COUNTER_holders_unnoted) - before, 3);
    cr_assert_not(is_doubted("n0", UINT64_MAX));
    load(all, COUNT);
    cr_assert(is_doubted("n0", UINT64_MAX), "one without a line may have left");
    cr_assert_eq(all[0].number, noted);
    for (unsigned i = STATE_HOLDERS_MAX; i < COUNT; i++) {
        cr_assert_gt(all[i].number, last);
    }
    expect_format("forebay-cache 2\n");
    cr_assert_eq(store.disk.dir.format.state.count[STATE_HOLDERS], STATE_HOLDERS_MAX);
}
