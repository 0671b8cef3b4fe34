// SPDX-License-Identifier: Apache-2.0
// Proves: each kind of persisted state finds its rows, and does beyond its bound what
// state_table.def says. Lines are read, and written the same.
#include "store/disk/state_table.h"

#include <string.h>

#include "test.h"

static struct state_table table;

static struct hash128 key(uint64_t number)
{
    return (struct hash128){number, ~number};
}

Test(state_table, a_kind_beyond_its_bound_shares_a_row_or_goes_without)
{
    static const struct {
        unsigned max;
        bool shares;
    } kinds[] = {
        [STATE_EPOCHS] = {256, true}, [STATE_HOLDERS] = {512, false}, [STATE_DOUBTS] = {64, true}};
    for (unsigned kind = 0; kind < ARRAY_LEN(kinds); kind++) {
        memset(&table, 0, sizeof(table));
        for (unsigned i = 0; i < kinds[kind].max; i++) {
            cr_assert_null(state_table_find(&table, kind, key(i)));
            struct state_row *row = state_table_put(&table, kind, key(i));
            cr_assert(row == &state_table_rows(&table, kind)[i] && row->number == 0 && !row->flag);
            row->number = i;
        }
        struct state_row *beyond = kinds[kind].shares ? &table.others[kind] : NULL;
        cr_assert_eq(state_table_put(&table, kind, key(kinds[kind].max)), beyond);
        cr_assert_eq(table.count[kind], kinds[kind].max);
        cr_assert_eq(state_table_put(&table, kind, key(7))->number, 7);
        state_table_clear(&table, kind);
        cr_assert(table.count[kind] == 0 && state_table_find(&table, kind, key(7)) == NULL);
        cr_assert_eq(state_table_put(&table, kind, key(7))->number, 0,
                     "a row that was removed is gone");
    }
}

Test(state_table, beyond_its_bound_the_lowest_condemned_key_makes_room)
{
    memset(&table, 0, sizeof(table));
    cr_assert_not(state_table_has(&table, STATE_CONDEMNED));
    for (unsigned i = 0; i < STATE_CONDEMNED_MAX; i++) {
        state_table_put(&table, STATE_CONDEMNED, key(i))->number = 1000 - i;
    }
    unsigned lowest = STATE_CONDEMNED_MAX - 1;
    struct state_row *row = state_table_put(&table, STATE_CONDEMNED, key(lowest + 1));
    cr_assert(row->number == 0 && hash128_equal(row->key, key(lowest + 1)));
    cr_assert_null(state_table_find(&table, STATE_CONDEMNED, key(lowest)));
    cr_assert_eq(table.others[STATE_CONDEMNED].number, 1000 - lowest);
    row->number = 1; // the others' number never falls
    cr_assert(state_table_put(&table, STATE_CONDEMNED, key(lowest + 2)) == row);
    cr_assert_eq(table.others[STATE_CONDEMNED].number, 1000 - lowest);
    cr_assert_eq(table.count[STATE_CONDEMNED], STATE_CONDEMNED_MAX);
    state_table_clear(&table, STATE_CONDEMNED);
    cr_assert(state_table_has(&table, STATE_CONDEMNED), "the others' line stays");
}

Test(state_table, beyond_its_bound_the_former_holder_that_was_added_first_makes_room)
{
    memset(&table, 0, sizeof(table));
    for (unsigned i = 0; i <= STATE_FORMER_MAX; i++) {
        state_table_put(&table, STATE_FORMER, key(i))->number = i + 1;
    }
    cr_assert_eq(table.count[STATE_FORMER], STATE_FORMER_MAX);
    cr_assert_null(state_table_find(&table, STATE_FORMER, key(0)));
    cr_assert_eq(state_table_rows(&table, STATE_FORMER)->number, 2);
    cr_assert_eq(state_table_find(&table, STATE_FORMER, key(STATE_FORMER_MAX))->number,
                 STATE_FORMER_MAX + 1);
    state_table_remove(&table, STATE_FORMER, key(2));
    state_table_remove(&table, STATE_FORMER, key(2));
    cr_assert_eq(table.count[STATE_FORMER], STATE_FORMER_MAX - 1);
    cr_assert_eq(state_table_rows(&table, STATE_FORMER)[1].number, 4, "the order stays");
}

Test(state_table, reads_what_it_writes)
{
    static const char text[] = "other-epochs 12\n"
                               "epoch 0000000000000001ffffffffffffffff 3\n"
                               "holders 7\n"
                               "holder 80000000000000000000000000000005 7\n"
                               "holder 00000000000000030000000000000000 0\n"
                               "other-doubts 5 0\n"
                               "doubt 00000000000000080000000000000001 0 1\n"
                               "doubt 00000000000000090000000000000002 9223372036854775807 0\n"
                               "other-condemned 4\n"
                               "condemned 000000000000000a0000000000000003 9\n"
                               "other-former 1\n"
                               "former 000000000000000b0000000000000004 6\n";
    struct span rest = SPAN(text);
    struct buf out;
    buf_init(&out, sizeof(text));
    memset(&table, 0, sizeof(table));
    cr_assert(state_table_parse(&rest, &table) && rest.len == 0);
    cr_assert(table.others[STATE_EPOCHS].number == 12 && table.others[STATE_HOLDERS].number == 7);
    cr_assert_eq(state_table_find(&table, STATE_EPOCHS, (struct hash128){1, UINT64_MAX})->number,
                 3);
    cr_assert(state_table_find(&table, STATE_DOUBTS, (struct hash128){8, 1})->flag);
    state_table_render(&table, &out);
    cr_assert(span_equal_cstr(buf_span(&out), text), "%s", buf_cstr(&out));
    buf_done(&out);
}

Test(state_table, refuses_damaged_lines)
{
    static const char *const bad[] = {
        "other-epochs x\n",
        "epoch 00 3\n",
        "epoch 0000000000000001ffffffffffffffff\n",
        "other-epochs 9223372036854775808\n",
        "epoch 0000000000000001ffffffffffffffff 18446744073709551615\n",
        "epoch 0000000000000001ffffffffffffffff 3 1\n",
        "other-doubts 5\n",
        "other-doubts 5 2\n",
        "doubt 00000000000000080000000000000001 1\n",
        "doubt 00000000000000080000000000000001 x 1\n"};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct span rest = span_from_cstr(bad[i]);
        memset(&table, 0, sizeof(table));
        cr_assert_not(state_table_parse(&rest, &table), "%s", bad[i]);
    }
}
