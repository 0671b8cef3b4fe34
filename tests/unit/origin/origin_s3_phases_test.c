// SPDX-License-Identifier: Apache-2.0
// A call to an S3 origin goes only from one phase to another that origin_s3_phases.def names after
// it, and a transfer runs in exactly the phases that need one.
#include <signal.h>

#include "origin/origin_s3_call_private.h"
#include "test.h"

static struct transfer *running(void)
{
    static char place;
    return (struct transfer *)(void *)&place; // only compared with NULL
}

static struct origin_s3_call call_in(enum origin_s3_phase phase)
{
    return (struct origin_s3_call){.phase = phase};
}

Test(origin_s3_phases, refused_answer_is_held_after_a_second_attempt)
{
    struct origin_relay relay = {.status = 0};
    struct origin_s3_call c = call_in(S3_PHASE_SLOT);
    c.call.r = &relay;
    origin_s3_call_enter(&c, S3_PHASE_ASK);
    c.transfer = running();
    origin_s3_call_enter(&c, S3_PHASE_COLLECT);
    c.transfer = NULL;
    origin_s3_call_enter(&c, S3_PHASE_WAIT);
    origin_s3_call_enter(&c, S3_PHASE_ASK);
    c.transfer = running();
    origin_s3_call_enter(&c, S3_PHASE_COLLECT);
    origin_s3_call_enter(&c, S3_PHASE_CUT);
    c.transfer = NULL;
    origin_s3_call_enter(&c, S3_PHASE_HELD);
    origin_s3_call_enter(&c, S3_PHASE_OVER);
    cr_assert_eq(c.phase, S3_PHASE_OVER);
}

// The transfer may end while the caller still has to get the bytes that were collected before.
Test(origin_s3_phases, body_may_end_before_its_collected_part_is_passed_on)
{
    struct origin_relay relay = {.status = 0};
    struct origin_s3_call c = call_in(S3_PHASE_BODY);
    c.call.r = &relay;
    origin_s3_call_enter(&c, S3_PHASE_HELD);
    origin_s3_call_enter(&c, S3_PHASE_OVER);
    cr_assert_eq(c.phase, S3_PHASE_OVER);
}

Test(origin_s3_phases, each_phase_but_the_last_can_be_cancelled)
{
    for (enum origin_s3_phase phase = 0; phase < S3_PHASE_CANCELLED; phase++) {
        struct origin_s3_call c = call_in(phase);
        origin_s3_call_enter(&c, S3_PHASE_CANCELLED);
        cr_assert_eq(c.phase, S3_PHASE_CANCELLED);
    }
}

Test(origin_s3_phases, nothing_is_retried_after_a_head_was_handed_on, .signal = SIGABRT)
{
    struct origin_s3_call c = call_in(S3_PHASE_BODY);
    origin_s3_call_enter(&c, S3_PHASE_ASK);
}

Test(origin_s3_phases, cancelled_call_does_not_ask_again, .signal = SIGABRT)
{
    struct origin_s3_call c = call_in(S3_PHASE_CANCELLED);
    origin_s3_call_enter(&c, S3_PHASE_ASK);
}

Test(origin_s3_phases, call_ends_once, .signal = SIGABRT)
{
    struct origin_s3_call c = call_in(S3_PHASE_OVER);
    origin_s3_call_enter(&c, S3_PHASE_OVER);
}

Test(origin_s3_phases, call_does_not_wait_while_its_transfer_runs, .signal = SIGABRT)
{
    struct origin_s3_call c = call_in(S3_PHASE_ASK);
    c.transfer = running();
    origin_s3_call_enter(&c, S3_PHASE_WAIT);
}

Test(origin_s3_phases, call_without_an_error_cannot_fail, .signal = SIGABRT)
{
    struct origin_s3_call c = call_in(S3_PHASE_ASK);
    origin_s3_call_enter(&c, S3_PHASE_ENDING);
}
