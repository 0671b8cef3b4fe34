// SPDX-License-Identifier: Apache-2.0
// Proves: slots follow demand. They double while first bytes come as early as before. They are
// halved, and grow slowly, once the origin has refused a request for its limit. The refused call is
// the next to get a slot.
#include "base/clock.h"
#include "harness.h"
#include "stats/stats.h"
#include "test.h"

enum { CALLS = 200, FIRST = 8, MOST = 64 };

struct slots_rig {
    struct loop *loop;
    struct origin origin;
    struct origin_worker ow;
    struct origin_call calls[CALLS];
    unsigned running, ready[CALLS], ready_count;
};

static void begin(struct slots_rig *rig)
{
    struct loop_options options = {.worker_count = 1, .engine = DISK_ENGINE_THREADS};
    struct buf why;
    buf_init(&why, 4096);
    memset(rig, 0, sizeof(*rig));
    cr_assert_eq(loop_new(&options, &rig->loop, &why), ERR_OK);
    buf_done(&why);
    rig->ow.origin = &rig->origin;
    rig->ow.w = loop_worker(rig->loop, 0);
    origin_slots_init(&rig->ow, MOST, FIRST);
    for (unsigned i = 0; i < CALLS; i++) {
        rig->calls[i].ow = &rig->ow;
        origin_slot_init(&rig->calls[i]);
    }
}

static void demand(struct slots_rig *rig, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        bool now = false;
        cr_assert_eq(origin_slot_enter(&rig->calls[i], &now), ERR_OK);
        rig->running += now;
    }
}

static void enter(struct slots_rig *rig, unsigned i, enum origin_call_kind kind, uint64_t client)
{
    bool now = false;
    rig->calls[i].kind = kind;
    rig->calls[i].client = client;
    cr_assert_eq(origin_slot_enter(&rig->calls[i], &now), ERR_OK);
    rig->running += now;
}

// Whose turn it is, taken out of its line.
static unsigned next_in_line(struct slots_rig *rig, enum origin_call_kind kind)
{
    struct origin_lines *lines = &rig->ow.waiters[kind];
    struct origin_call *call = origin_lines_first(lines);
    origin_slot_stop_waiting(call);
    origin_lines_next(lines, call);
    return (unsigned)(call - rig->calls);
}

static void end(struct slots_rig *rig)
{
    for (unsigned i = 0; i < CALLS; i++) {
        origin_slot_leave(&rig->calls[i]);
        timer_done(&rig->calls[i].slot_timer);
    }
    timer_done(&rig->ow.rate_timer);
    loop_free(rig->loop);
}

static void answers(struct slots_rig *rig, unsigned count, uint64_t first_byte_us)
{
    for (unsigned i = 0; i < count; i++) {
        origin_slot_success(&rig->ow, first_byte_us);
    }
}

Test(origin_slots, they_double_in_a_round_trip_while_calls_wait)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, CALLS);
    cr_assert_eq(rig.running, FIRST);
    answers(&rig, FIRST, 30000);
    cr_assert_eq(rig.ow.limit, 2 * FIRST);
    answers(&rig, 2 * FIRST, 35000);
    cr_assert_eq(rig.ow.limit, 4 * FIRST);
    answers(&rig, 1000, 30000);
    cr_assert_eq(rig.ow.limit, MOST);
    end(&rig);
}

Test(origin_slots, slots_do_not_grow_without_waiting_calls)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, FIRST);
    answers(&rig, 1000, 30000);
    cr_assert_eq(rig.ow.limit, FIRST);
    end(&rig);
}

Test(origin_slots, first_bytes_that_come_later_for_it_end_the_growth)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, CALLS);
    answers(&rig, FIRST, 30000);
    answers(&rig, 200, 150000);
    unsigned held = rig.ow.limit;
    cr_assert_lt(held, 3 * FIRST);
    answers(&rig, 200, 150000);
    cr_assert_eq(rig.ow.limit, held);
    answers(&rig, 200, 30000); // as early as before
    cr_assert_gt(rig.ow.limit, held);
    end(&rig);
}

Test(origin_slots, after_slowdown_one_more_for_as_many_answers_as_there_are)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, CALLS);
    answers(&rig, 3 * FIRST, 30000);
    cr_assert_eq(rig.ow.limit, 4 * FIRST);
    rig.origin.workers = &rig.ow;
    rig.origin.worker_count = 1;
    struct origin_calls calls = origin_calls(&rig.origin);
    cr_assert(calls.limit == 4 * FIRST && calls.most == MOST && !calls.is_lowered);
    origin_slot_slow_down(&rig.ow);
    cr_assert_eq(rig.ow.limit, 2 * FIRST);
    calls = origin_calls(&rig.origin);
    cr_assert(calls.limit == 2 * FIRST && calls.is_lowered, "what others read");
    answers(&rig, 2 * FIRST, 30000);
    cr_assert_eq(rig.ow.limit, 2 * FIRST + 1);
    while (rig.ow.limit < 4 * FIRST) {
        cr_assert(origin_calls(&rig.origin).is_lowered);
        answers(&rig, 1, 30000);
    }
    cr_assert(!origin_calls(&rig.origin).is_lowered, "it is as high again");
    end(&rig);
}

#ifdef FOREBAY_FAULTS
Test(origin_slots, they_double_up_to_the_first_number_once_the_origin_has_refused_nothing_for_10_s)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, CALLS);
    answers(&rig, 1, 30000);
    for (unsigned i = 0; i < 1000; i++) {
        origin_slot_slow_down(&rig.ow);
    }
    cr_assert_eq(rig.ow.limit, 1);
    answers(&rig, 1, 5000000);
    cr_assert_eq(rig.ow.limit, 1, "the origin may still refuse");
    clock_test_advance_us(10000000);
    for (unsigned limit = 1; limit < FIRST; limit *= 2) {
        cr_assert_eq(rig.ow.limit, limit);
        answers(&rig, limit, 5000000); // late, which so few requests do not cause
    }
    cr_assert_eq(rig.ow.limit, FIRST);
    answers(&rig, FIRST - 1, 5000000);
    cr_assert_eq(rig.ow.limit, FIRST, "above the first number it grows slowly, as before");
    end(&rig);
}
#endif

Test(origin_slots, a_round_trip_of_refusals_halves_them_and_one_refusal_among_many_answers_does_not)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, CALLS);
    answers(&rig, 1000, 30000);
    origin_slot_slow_down(&rig.ow);
    cr_assert_eq(rig.ow.limit, MOST / 2);
    for (unsigned i = 0; i < MOST / 2; i++) {
        origin_slot_slow_down(&rig.ow);
    }
    cr_assert_eq(rig.ow.limit, MOST / 4);
    for (unsigned i = 0; i < 20; i++) {
        origin_slot_slow_down(&rig.ow);
        answers(&rig, MOST, 30000);
    }
    cr_assert_gt(rig.ow.limit, MOST / 2);
    for (unsigned i = 0; i < 1000; i++) {
        origin_slot_slow_down(&rig.ow);
    }
    cr_assert_eq(rig.ow.limit, 1);
    end(&rig);
}

Test(origin_slots,
     who_is_refused_gives_its_place_back_if_there_are_fewer_now_and_is_the_first_in_line)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, CALLS);
    origin_slot_slow_down(&rig.ow);
    for (unsigned i = 0; i < FIRST / 2; i++) {
        cr_assert(origin_slot_yield(&rig.calls[i]));
    }
    cr_assert_not(origin_slot_yield(&rig.calls[FIRST / 2]));
    cr_assert_eq(rig.ow.running_count, FIRST / 2);
    cr_assert_eq(origin_lines_first(&rig.ow.waiters[ORIGIN_CALL_FETCH]), &rig.calls[FIRST / 2 - 1]);
    end(&rig);
}

Test(origin_slots, clients_take_turns_however_many_calls_of_one_wait)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, FIRST);
    for (unsigned i = FIRST; i < FIRST + 50; i++) {
        enter(&rig, i, ORIGIN_CALL_FETCH, 7);
    }
    enter(&rig, 100, ORIGIN_CALL_FETCH, 8);
    enter(&rig, 101, ORIGIN_CALL_FETCH, 8);
    enter(&rig, 102, ORIGIN_CALL_FETCH, 9);
    unsigned expected[] = {FIRST, 100, 102, FIRST + 1, 101, FIRST + 2, FIRST + 3};
    for (unsigned i = 0; i < ARRAY_LEN(expected); i++) {
        cr_assert_eq(next_in_line(&rig, ORIGIN_CALL_FETCH), expected[i], "%u", i);
    }
    end(&rig);
}

Test(origin_slots, more_clients_than_lines_share_them)
{
    struct slots_rig rig;
    begin(&rig);
    demand(&rig, FIRST);
    bool seen[CALLS] = {false};
    for (unsigned i = FIRST; i < CALLS; i++) {
        enter(&rig, i, ORIGIN_CALL_FETCH, 1000 + i);
    }
    cr_assert_eq(rig.ow.waiting_count, CALLS - FIRST);
    for (unsigned i = FIRST; i < CALLS; i++) {
        unsigned next = next_in_line(&rig, ORIGIN_CALL_FETCH);
        cr_assert_not(seen[next]);
        seen[next] = true;
    }
    cr_assert_eq(rig.ow.waiting_count, 0);
    cr_assert_eq(rig.ow.waiters[ORIGIN_CALL_FETCH].taken, 0);
    end(&rig);
}

static void on_ready(struct origin_call *call)
{
    struct slots_rig *rig = container_of(call->ow, struct slots_rig, ow);
    rig->ready[rig->ready_count++] = (unsigned)(call - rig->calls);
}

static void wake(struct slots_rig *rig)
{
    rig->ow.wake.fn(&rig->ow.wake);
}

static bool is_limited_for_ms(struct slots_rig *rig, unsigned i, uint64_t least_ms)
{
    return origin_rate_wait_ms(&rig->calls[i]) > 0 &&
           rig->calls[i].rate_paid_us > clock_monotonic_us() + least_ms * 1000;
}

// With origin.max_rate, received bytes delay the next fetches. A client's fetch gets its turn even
// if more is received all the time; read-ahead and warm jobs wait until everything is paid for.
Test(origin_slots, rate_lets_clients_have_turns_and_read_ahead_what_they_leave)
{
    static const struct origin_call_ops ops = {.ready = on_ready};
    enum { RATE = 1 << 20 };
    struct slots_rig rig;
    begin(&rig);
    for (unsigned i = 0; i < CALLS; i++) {
        rig.calls[i].ops = &ops;
    }
    cr_assert_eq(origin_rate_received(&rig.calls[0], RATE), 0, "no limit");
    rig.origin.live.max_rate_bytes_per_s = RATE;
    cr_assert_eq(origin_rate_received(&rig.calls[0], 1), 0, "too short a debt");
    uint64_t waits = stats_sum(COUNTER_origin_rate_waits);
    cr_assert_gt(origin_rate_received(&rig.calls[0], RATE), 0);
    cr_assert(is_limited_for_ms(&rig, 0, 990));
    enter(&rig, 1, ORIGIN_CALL_AHEAD, 7);
    enter(&rig, 2, ORIGIN_CALL_FETCH, 8);
    enter(&rig, 3, ORIGIN_CALL_FETCH, 8);
    cr_assert_eq(rig.running, 0);
    cr_assert_eq(stats_sum(COUNTER_origin_rate_waits), waits + 2, "the body, and the worker");
    enter(&rig, 4, ORIGIN_CALL_RELAY, 9);
    cr_assert_eq(rig.running, 1, "a relay does not wait");
    cr_assert_gt(origin_rate_received(&rig.calls[0], RATE), 0);
    cr_assert(is_limited_for_ms(&rig, 0, 1990));
    wake(&rig);
    cr_assert_eq(rig.ready_count, 0);
    clock_test_advance_us(1100000);
    wake(&rig);
    cr_assert(rig.ready_count == 1 && rig.ready[0] == 2);
    wake(&rig);
    cr_assert_eq(rig.ready_count, 1, "one fetch a turn");
    cr_assert_eq(origin_rate_wait_ms(&rig.calls[2]), 0, "it has received nothing");
    cr_assert_gt(origin_rate_wait_ms(&rig.calls[1]), 0);
    clock_test_advance_us(1100000);
    wake(&rig);
    cr_assert(rig.ready_count == 3 && rig.ready[1] == 3 && rig.ready[2] == 1);
    cr_assert_gt(origin_rate_received(&rig.calls[1], RATE), 0);
    cr_assert(is_limited_for_ms(&rig, 1, 990));
    enter(&rig, 5, ORIGIN_CALL_FETCH, 8);
    cr_assert_eq(rig.running, 2, "bytes of read-ahead do not delay clients");
    enter(&rig, 6, ORIGIN_CALL_AHEAD, 8);
    cr_assert_gt(origin_rate_received(&rig.calls[5], RATE / 4), 0);
    cr_assert(is_limited_for_ms(&rig, 5, 240));
    enter(&rig, 7, ORIGIN_CALL_FETCH, 8);
    clock_test_advance_us(300000);
    wake(&rig);
    cr_assert(rig.ready_count == 4 && rig.ready[3] == 7, "its turn is before read-ahead's");
    end(&rig);
}

// Bytes that take hours to pay for delay nothing after a reload, and a call of read-ahead does not
// pay for other read-ahead once a client waits for it.
Test(origin_slots, rate_that_changes_and_a_client_that_comes_end_a_long_wait)
{
    struct slots_rig rig;
    begin(&rig);
    rig.origin.live.max_rate_bytes_per_s = 1;
    rig.calls[0].kind = rig.calls[1].kind = ORIGIN_CALL_AHEAD;
    cr_assert_leq(origin_rate_received(&rig.calls[0], 1 << 20), 1000, "it looks again soon");
    cr_assert(is_limited_for_ms(&rig, 0, 1000000000));
    origin_slot_hasten(&rig.calls[0], 7);
    cr_assert_eq(origin_rate_wait_ms(&rig.calls[0]), 0, "clients have received nothing");
    cr_assert_leq(origin_rate_received(&rig.calls[0], 1 << 20), 1000);
    cr_assert(is_limited_for_ms(&rig, 0, 1000000000));
    rig.origin.rate_paid_us = rig.origin.rate_clients_paid_us = 0; // as a reload does
    cr_assert_eq(origin_rate_wait_ms(&rig.calls[0]), 0);
    rig.origin.rate_paid_us = rig.origin.rate_clients_paid_us = UINT64_MAX;
    rig.origin.live.max_rate_bytes_per_s = 0;
    cr_assert_eq(origin_rate_wait_ms(&rig.calls[0]), 0);
    cr_assert_eq(origin_rate_wait_ms(&rig.calls[1]), 0);
    end(&rig);
}

Test(origin_slots, read_ahead_leaves_slots_and_comes_after_all_waiting_calls)
{
    struct slots_rig rig;
    begin(&rig);
    for (unsigned i = 0; i < FIRST; i++) {
        enter(&rig, i, ORIGIN_CALL_AHEAD, 7);
    }
    cr_assert_eq(rig.running, FIRST - FIRST / 4);
    for (unsigned i = 20; i < 20 + FIRST; i++) {
        enter(&rig, i, ORIGIN_CALL_FETCH, 7);
    }
    cr_assert_eq(rig.running, FIRST);
    answers(&rig, 1000, 30000);
    rig.ow.limit = 1000; // room for all: the deferred turn takes demand first, then what is ahead
    origin_slot_leave(&rig.calls[0]);
    rig.ow.limit = 1;
    origin_slot_hasten(&rig.calls[FIRST - 1], 9); // somebody waits for it now
    cr_assert_eq(rig.calls[FIRST - 1].kind, ORIGIN_CALL_FETCH);
    cr_assert_eq(rig.ow.waiters[ORIGIN_CALL_AHEAD].count, FIRST / 4 - 1);
    cr_assert_eq(next_in_line(&rig, ORIGIN_CALL_FETCH), 20 + FIRST / 4 * 1);
    cr_assert_eq(next_in_line(&rig, ORIGIN_CALL_FETCH), FIRST - 1);
    end(&rig);
}
