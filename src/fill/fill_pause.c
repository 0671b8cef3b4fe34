// SPDX-License-Identifier: Apache-2.0
// Pauses of a run's transfer, and its place at the origin. Runs on the stripe's owner.
//
// A transfer that is paused keeps one of the few places at the origin (origin/origin.c), and its
// connection. So one that stays paused is ended: the run is *parked*. When nothing pauses it any
// more the rest is asked for with Range and If-Match, as after a body that broke. A version that
// cannot be named keeps its place.
//
//   fetching, running   pausing: paused, the timer runs
//   fetching, paused    pause over in time: running. Timer: the call is cancelled, parking
//   parking             the call's end: parked
//   parked              nothing pauses it: fetching, running
//
// The rest of an unstored run that was parked is asked for in pieces of its window, each only when
// its reader has taken most of the one before: nothing is thrown away with a transfer then, and a
// slow reader holds a place only while its piece comes. A reader that takes a piece quickly gets
// the whole rest again.
#include "fill/fill_private.h"

uint64_t fill_window_fastest(const struct fill *fill)
{
    uint64_t fastest = fill->first_byte;
    list_for_each(node, &fill->readers)
    {
        fastest = max_u64(fastest, container_of(node, struct attachment, node)->acked_byte);
    }
    return fastest;
}

// An unstored run may not run ahead of its fastest reader by more than a window.
void fill_window_update(struct fill *fill)
{
    if (!fill->unstored) {
        return;
    }
    uint64_t window = chunk_budget_share(FILL_UNSTORED_WINDOW);
    if (fill->parked) {
        window /= FILL_PIECES_PER_WINDOW;
    }
    bool waits = fill->state == FILL_BODY && fill->received > fill_window_fastest(fill) + window;
    // Not without need: a store here would hold up the load of the flags beside it.
    if (waits != fill->paused_window) {
        fill->paused_window = waits;
    }
}

uint64_t fill_piece_end(const struct fill *fill)
{
    if (!fill->in_pieces) {
        return fill->end_byte;
    }
    uint64_t window = chunk_budget_share(FILL_UNSTORED_WINDOW);
    uint64_t most = max_u64(window - window / FILL_PIECES_PER_WINDOW, CHUNK_SIZE);
    uint64_t chunks = (fill->received - fill->first_byte + most) / CHUNK_SIZE;
    return min_u64(fill->first_byte + chunks * CHUNK_SIZE, fill->end_byte);
}

void fill_park(struct fill *fill)
{
    check(fill->has_head && !fill->fetching && !fill->parked && !fill->weak);
    fill->parking = false;
    fill->parked = true;
    fill->parked_us = worker_now_us(fill->fw->worker);
    fill->in_pieces = fill->unstored;
    fill_window_update(fill);
    fill_pause_update(fill);
}

void fill_wait_for_place(struct fill *fill)
{
    if (list_empty(&fill->readers) || !fill->finishing) { // those that are left need the place
        return;
    }
    if (!store_keeps_up(fill->fw->worker, fill->fw->store)) {
        fill_final_all(fill, OUTCOME_REJOIN, ERR_OK, (struct span){0});
    } else if (fill->place_waits < FILL_PLACE_WAITS_MAX) {
        timer_start(&fill->pause_timer, FILL_PAUSE_MAX_MS);
    }
}

void fill_on_pause_timer(struct timer *timer)
{
    struct fill *fill = fill_of(container_of(timer, struct fill, pause_timer));
    if (fill->state == FILL_WRITING) {
        fill->place_waits++;
        fill_wait_for_place(fill);
        fill_assert_run(fill);
        return;
    }
    check(fill->paused && fill->fetching && !fill->parking && !fill->weak);
    if (fill->head_waits) { // it goes on without
        origin_fetch_cancel(&fill->describe);
        return;
    }
    if (fill->paused_disk) { // it waits no longer: what comes is streamed
        store_run_give_up(fill->run);
        fill->paused_disk = false;
        fill_pause_update(fill);
    }
    if (!fill->paused) {
        fill_assert_run(fill);
        return;
    }
    stats_add(COUNTER_fills_parked, 1);
    fill->parking = true;
    fill->paused = false;
    origin_fetch_cancel(&fill->fetch); // on_fetch_end() parks it
    fill_assert_run(fill);
}

void fill_pause_over(struct fill *fill)
{
    fill->paused = false;
    timer_stop(&fill->pause_timer);
}

void fill_pause_update(struct fill *fill)
{
    bool pause =
        fill->paused_memory || fill->paused_window || fill->paused_disk || fill->head_waits;
    if (fill->parked && !pause) {
        uint64_t parked_ms = (worker_now_us(fill->fw->worker) - fill->parked_us) / 1000;
        fill->in_pieces &= parked_ms >= FILL_PAUSE_MAX_MS;
        fill->parked = false;
        fill_fetch(fill);
        return;
    }
    if (pause == fill->paused || !fill->fetching || fill->parking) {
        return;
    }
    if (!pause) {
        fill_pause_over(fill);
        origin_fetch_resume(&fill->fetch);
        return;
    }
    fill->paused = true;
    origin_fetch_pause(&fill->fetch);
    if (fill->has_head && !fill->weak) {
        timer_start(&fill->pause_timer, FILL_PAUSE_MAX_MS);
    }
}
