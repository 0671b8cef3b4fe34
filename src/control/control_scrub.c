// SPDX-License-Identifier: Apache-2.0
// Actions that make a running server verify its cache (store/care/scrub.c). They run on the admin
// thread, and block only for the scrub thread's lock.
#include "control/control_private.h"

#define RATE_DEFAULT (256ll << 20) // used if neither the call nor cache.scrub_rate sets a rate
#define RATE_MAX (100ll << 30)     // the maximum of cache.scrub_rate

static void answer_state(struct control *control, struct admin_call **call)
{
    static const char *const states[] = {
        [STORE_SCRUB_NONE] = "none",           [STORE_SCRUB_WAITS] = "waiting",
        [STORE_SCRUB_RUNS] = "running",        [STORE_SCRUB_DONE] = "done",
        [STORE_SCRUB_CANCELLED] = "cancelled", [STORE_SCRUB_GIVEN_UP] = "given_up"};
    struct store_scrub scrub;
    store_scrub_read(control->store, &scrub);
    json_t *json = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:b}", "state", states[scrub.state],
        "round", (json_int_t)scrub.round, "segments", (json_int_t)scrub.segments, "segments_done",
        (json_int_t)scrub.segments_done, "segments_left_out", (json_int_t)scrub.segments_left_out,
        "runs", (json_int_t)scrub.runs, "bytes", (json_int_t)scrub.bytes, "bad_runs",
        (json_int_t)scrub.bad_runs, "elapsed_s", (double)scrub.elapsed_us / 1e6, "rate",
        (json_int_t)scrub.bytes_per_s, "possible", !scrub.is_impossible);
    check(json != NULL);
    admin_call_answer(call, 200, json);
}

void control_scrub(void *ctx, struct admin_call *call)
{
    answer_state(ctx, &call);
}

void control_scrub_cancel(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    store_scrub_cancel(control->store);
    answer_state(control, &call);
}

void control_scrub_begin(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    const json_t *member = admin_call_member(call, "rate");
    struct store_scrub scrub;
    store_scrub_read(control->store, &scrub);
    json_int_t rate = scrub.bytes_per_s > 0 ? (json_int_t)scrub.bytes_per_s : RATE_DEFAULT;
    if (member != NULL) {
        rate = json_integer_value(member);
    }
    if ((member != NULL && !json_is_integer(member)) || rate < 1 || rate > RATE_MAX) {
        admin_call_refuse(&call, 400, "rate is a number of bytes a second, above 0");
        return;
    }
    switch (store_scrub_begin(control->store, (uint64_t)rate)) {
    case ERR_OK:
        answer_state(control, &call);
        return;
    case ERR_INVALID:
        admin_call_refuse(&call, 503,
                          "the file system of cache.dir cannot be read past the page cache, so "
                          "nothing would be verified: use xfs or ext4");
        return;
    case ERR_AGAIN:
        admin_call_refuse(&call, 503, "the round that was cancelled is about to end: try again");
        return;
    default:
        admin_call_refuse(&call, 503,
                          "the cache directory does not work: there is nothing to verify");
        return;
    }
}
