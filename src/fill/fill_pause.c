// SPDX-License-Identifier: Apache-2.0
// Pauses a run's transfer, and frees its place at the origin. Runs on the stripe's owner.
//
// A paused transfer keeps its connection and one of the few places at the origin (origin/origin.c).
// So a transfer that stays paused is ended, and the run is *parked*. When nothing pauses the run
// any more, the rest is requested with Range and If-Match, as after a broken body. A version
// without a strong ETag cannot be requested so, and keeps its place.
//
//   state               event                          next state
//   fetching, running   a reason to pause              fetching, paused; the timer starts
//   fetching, paused    the reason is gone in time     fetching, running
//   fetching, paused    the timer ends                 parking; the call is cancelled
//   parking             the call has ended             parked
//   parked              no reason to pause any more    fetching, running
//
// After it was parked, an unstored run is requested in pieces. A piece fits in its window, and is
// requested when its reader has taken most of the previous one. So no bytes are thrown away with a
// transfer, and a slow reader holds a place only while its piece comes. If a reader takes a piece
// quickly, the whole rest is requested again.
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

// Pauses an unstored run that is more than a window ahead of its fastest reader.
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
    // Writes only a change, because a store here would delay the load of the neighbouring flags.
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
    if (list_empty(&fill->readers) || !fill->finishing) { // the remaining readers need the place
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
    if (fill->head_waits) { // the run continues without checksums
        origin_fetch_cancel(&fill->describe);
        return;
    }
    // The run waits for the disk no longer. It is not stored, and its bytes are streamed.
    if (fill->paused_disk) {
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
    origin_fetch_cancel(&fill->fetch); // on_fetch_end() parks the run
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
