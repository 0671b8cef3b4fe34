// SPDX-License-Identifier: Apache-2.0
// Proves: a date counts as "now" by the origin's own clock. Only a series of checks makes a store
// count as one whose dates are meaningless.
#include "base/clock.h"
#include "rig.h"
#include "test.h"

// The second may end at any line, so no case here depends on that.
Test(origin_doubt, now_is_by_the_clock_of_the_origin)
{
    static const struct {
        int off_s;
        bool is_now;
    } cases[] = {{-3600, false}, {-3, false}, {-1, true}, {0, true}, {2, true}, {4, false}};
    struct harness h = {0};
    harness_make_root(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    static const long long skews_s[] = {0, -1200, 1200};
    for (size_t s = 0; s < ARRAY_LEN(skews_s); s++) {
        atomic_store(&h.origin->date_skew_s, skews_s[s]);
        for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
            time_t date = (time_t)(clock_wall_s() + skews_s[s] + cases[i].off_s);
            cr_assert_eq(origin_is_now(h.origin, date), cases[i].is_now, "skew %lld, off %d",
                         skews_s[s], cases[i].off_s);
        }
        cr_assert_not(origin_is_now(h.origin, 0), "no date");
    }
    harness_done(&h);
}

Test(origin_doubt, three_moved_dates_in_a_row_and_no_older_one)
{
    struct harness h = {0};
    harness_make_root(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    for (unsigned round = 0; round < 2; round++) {
        origin_note_date(h.origin, true);
        origin_note_date(h.origin, true);
        origin_note_date(h.origin, false);
        for (unsigned i = 0; i < 3; i++) {
            cr_assert_not(origin_dates_move(h.origin));
            origin_note_date(h.origin, true);
        }
        cr_assert(origin_dates_move(h.origin));
        origin_note_date(h.origin, true);
        cr_assert(origin_dates_move(h.origin));
        origin_note_date(h.origin, false);
        cr_assert_not(origin_dates_move(h.origin));
    }
    harness_done(&h);
}
