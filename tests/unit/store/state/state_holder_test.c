// SPDX-License-Identifier: Apache-2.0
// Proves: a holder that was away gets a new number, other holders keep theirs, and no number is
// given twice.
#include <stdio.h>
#include <string.h>

#include "stats/stats.h"
#include "store/store_private.h"
#include "test.h"

static struct store store;

static struct store_holder holder(const char *name, bool is_origin)
{
    return (struct store_holder){
        .kind = SPAN("kind"), .name = span_from_cstr(name), .is_origin = is_origin};
}

// Starts one after another, each with the holders that it names. Returns their numbers in the same
// order.
Test(store_holder, numbers)
{
    memset(&store, 0, sizeof(store));
    struct store_holder all[] = {holder("origin", true), holder("a", false), holder("b", false)};
    state_holders_load(&store.disk, all, 3);
    cr_assert(all[0].number == 0 && all[1].number > 0 && all[2].number > 0);
    cr_assert_neq(all[1].number, all[2].number);
    uint64_t a = all[1].number, b = all[2].number;
    struct store_holder two[] = {holder("b", false), holder("origin", true)};
    state_holders_load(&store.disk, two, 2);
    cr_assert(two[0].number == b && two[1].number == 0);
    struct store_holder added[] = {holder("b", false), holder("a", false)};
    cr_assert_eq(store_holders_add(&store, added, 2), ERR_OK);
    cr_assert(added[0].number == b && added[1].number > b, "it was away");
    cr_assert_neq(added[1].number, a);
    state_holders_load(&store.disk, all, 3);
    cr_assert(all[0].number == 0 && all[1].number == added[1].number && all[2].number == b);
    state_holders_load(&store.disk, NULL, 0);
    state_holders_load(&store.disk, all, 3);
    cr_assert(all[0].number > added[1].number, "an origin that was away, too");
}

// Above the number of lines: each start gives a new number, and never one that was used.
Test(store_holder, bounds)
{
    enum { COUNT = STATE_HOLDERS_MAX + 3 };
    static struct store_holder all[COUNT];
    static char names[COUNT][16];
    memset(&store, 0, sizeof(store));
    for (unsigned i = 0; i < COUNT; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%u", i);
        all[i] = holder(names[i], false);
    }
    uint64_t before = stats_sum(COUNTER_holders_unnoted);
    state_holders_load(&store.disk, all, COUNT);
    uint64_t last = store.disk.dir.format.state.others[STATE_HOLDERS].number, noted = all[0].number;
    cr_assert_eq(stats_sum(COUNTER_holders_unnoted) - before, 3);
    state_holders_load(&store.disk, all, COUNT);
    cr_assert_eq(all[0].number, noted);
    for (unsigned i = STATE_HOLDERS_MAX; i < COUNT; i++) {
        cr_assert_gt(all[i].number, last);
    }
    struct buf text;
    struct store_format again;
    buf_init(&text, 65536);
    store.disk.dir.format.segment_size_bytes = SEGMENT_SIZE_MIN;
    store_format_render(&store.disk.dir.format, &text);
    cr_assert(buf_ok(&text) && store_format_parse(buf_span(&text), &again) == ERR_OK);
    cr_assert_eq(again.state.count[STATE_HOLDERS], STATE_HOLDERS_MAX);
    buf_done(&text);
}
