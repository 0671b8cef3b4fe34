// SPDX-License-Identifier: Apache-2.0
// Proves: windows of a folder, one after another, return all its names once and in order, whatever
// the budget allows, and hold no more than their share of it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "origin/origin_directory_private.h"
#include "test.h"

#define NAMES 60000u

static unsigned given_back;

static bool nothing_to_give_back(void *ctx)
{
    (void)ctx;
    given_back++;
    return false;
}

static struct span name_of(unsigned i, char *text)
{
    bool is_folder = i % 5 == 0;
    int len =
        snprintf(text, 64, "%05u%s%s", i, i % 3 == 0 ? "-a-longer-name" : "", is_folder ? "/" : "");
    return (struct span){text, (size_t)len};
}

// As a folder gives them: in no order.
static void add_all(struct origin_directory_window *w)
{
    char text[64];
    for (unsigned i = 0; i < NAMES; i++) {
        unsigned at = (unsigned)((uint64_t)i * 7919 % NAMES);
        enum origin_directory_kind kind =
            at % 5 == 0 ? ORIGIN_DIRECTORY_FOLDER : ORIGIN_DIRECTORY_FILE;
        cr_assert_eq(
            origin_directory_window_add(w, name_of(at, text), kind, nothing_to_give_back, NULL),
            ERR_OK);
    }
    origin_directory_window_sort(w);
}

static unsigned windows_of_all(uint64_t others, uint64_t most)
{
    struct origin_directory_window w;
    unsigned windows = 0, seen = 0;
    bool more = true;
    chunk_budget_charge(BUDGET_FOLDERS, others);
    origin_directory_window_init(&w);
    while (more) {
        windows++;
        add_all(&w);
        cr_assert_leq(w.charged_bytes, most);
        cr_assert_geq(w.charged_bytes, w.bytes.cap + w.name_cap * sizeof(w.names[0]));
        cr_assert_eq(chunk_budget_kind_bytes(BUDGET_FOLDERS), others + w.charged_bytes);
        for (size_t i = 0; i < w.name_count; i++, seen++) {
            char text[64];
            cr_assert(span_equal(origin_directory_window_name(&w, i), name_of(seen, text)));
            cr_assert_eq(w.names[i].kind == ORIGIN_DIRECTORY_FOLDER, seen % 5 == 0);
        }
        more = origin_directory_window_is_cut(&w);
        origin_directory_window_advance(&w);
    }
    cr_assert_eq(seen, NAMES);
    origin_directory_window_done(&w);
    chunk_budget_discharge(BUDGET_FOLDERS, others);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
    return windows;
}

Test(origin_directory_window, windows_give_every_name_once_and_in_order)
{
    chunk_budget_init(64u << 20);
    cr_assert_eq(windows_of_all(0, 4u << 20), 1);
    cr_assert_eq(given_back, 0);
    chunk_budget_init(2u << 20);
    unsigned some = windows_of_all(1, (2u << 20) / 4);
    cr_assert(some > 1 && given_back > 0, "%u windows", some);
    unsigned many = windows_of_all((2u << 20) / 4, 65536);
    cr_assert_gt(many, some);
    chunk_budget_init(0);
}
