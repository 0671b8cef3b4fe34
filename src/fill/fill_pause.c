// SPDX-License-Identifier: Apache-2.0
// Pauses a run's transfer, and ends a transfer that stays paused, to free its slot at the origin.
// Runs on the stripe's owner.
//
// A paused transfer keeps its connection and one of the few slots at the origin (origin/origin.c).
// So a transfer that stays paused is ended, and the run is *parked*. When nothing pauses the run
// any more, the rest is requested with Range and If-Match, as after a broken body. A version
// without a strong ETag cannot be continued like that, so its transfer keeps the slot. The transfer
// of a parked run passes through these phases of phases.def: RUNNING, PAUSED, CANCELLED, PARKED,
// RUNNING.
//
// An unstored run that was parked is requested in pieces. Each piece fits in the run's window, and
// is requested when the fastest reader has taken most of the previous piece. So no received bytes
// are thrown away when a transfer ends, and a slow reader holds a slot only while its piece comes.
// If a reader takes a piece quickly, the whole rest is requested again.
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
    if (!fill_is_unstored(fill)) {
        return;
    }
    check(fill->pause == FILL_PAUSE_NONE || fill->pause == FILL_PAUSE_WINDOW);
    uint64_t window = chunk_budget_share(FILL_UNSTORED_WINDOW);
    if (fill->transfer == TRANSFER_PARKED) {
        window /= FILL_PIECES_PER_WINDOW;
    }
    bool waits = fill->phase == FILL_BODY && fill->received > fill_window_fastest(fill) + window;
    enum fill_pause pause = waits ? FILL_PAUSE_WINDOW : FILL_PAUSE_NONE;
    // Writes only a change, because a store here would delay the load of the neighbouring fields.
    if (pause != fill->pause) {
        fill->pause = pause;
    }
}

// Returns the end of the next piece of an unstored run.
static uint64_t fill_piece_end(const struct fill *fill)
{
    check(fill_is_unstored(fill) && fill->received < fill->end_byte);
    uint64_t window = chunk_budget_share(FILL_UNSTORED_WINDOW);
    uint64_t most = max_u64(window - window / FILL_PIECES_PER_WINDOW, CHUNK_SIZE);
    uint64_t chunks = (fill->received - fill->first_byte + most) / CHUNK_SIZE;
    return min_u64(fill->first_byte + chunks * CHUNK_SIZE, fill->end_byte);
}

void fill_park(struct fill *fill)
{
    check(fill->phase == FILL_BODY && fill->received < fill->end_byte && !fill->weak);
    fill_transfer_enter(fill, TRANSFER_PARKED);
    fill->parked_us = worker_now_us(fill->fw->worker);
    fill_window_update(fill);
    fill_pause_update(fill);
}

// Requests the rest of a parked run, or its next piece.
static void fill_unpark(struct fill *fill)
{
    check(fill->transfer == TRANSFER_PARKED && fill->pause == FILL_PAUSE_NONE);
    uint64_t parked_ms = (worker_now_us(fill->fw->worker) - fill->parked_us) / 1000;
    bool in_pieces = fill_is_unstored(fill) && parked_ms >= FILL_PAUSE_MAX_MS;
    fill->asked_end_byte = in_pieces ? fill_piece_end(fill) : fill->end_byte;
    fill_fetch(fill);
}

// Pauses, resumes or unparks the transfer when a reason to pause has come or gone.
void fill_pause_update(struct fill *fill)
{
    bool waits = fill->pause != FILL_PAUSE_NONE;
    switch (fill->transfer) {
    case TRANSFER_PARKED:
        if (!waits) {
            fill_unpark(fill);
        }
        break;
    case TRANSFER_RUNNING:
        if (waits) {
            fill_transfer_enter(fill, TRANSFER_PAUSED);
            origin_fetch_pause(&fill->fetch);
            if (fill_has_head(fill) && !fill->weak) {
                timer_start(&fill->timer, FILL_PAUSE_MAX_MS);
            }
        }
        break;
    case TRANSFER_PAUSED:
        if (!waits) {
            fill_transfer_enter(fill, TRANSFER_RUNNING);
            origin_fetch_resume(&fill->fetch);
        }
        break;
    case TRANSFER_IDLE:
    case TRANSFER_RESUMING:
    case TRANSFER_HELD:      // its head stays held, whatever `pause` is
    case TRANSFER_CANCELLED: // on_fetch_end() decides when it ends
        break;
    }
}

void fill_wait_for_place(struct fill *fill)
{
    check(fill->phase == FILL_WRITING);
    if (list_empty(&fill->readers)) { // otherwise all readers in it wait for the run's place
        return;
    }
    if (!store_keeps_up(fill->fw->worker, fill->fw->store)) {
        fill_final_all(fill, OUTCOME_REJOIN, ERR_OK, (struct span){0});
    } else if (fill->place_waits < FILL_PLACE_WAITS_MAX) {
        timer_start(&fill->timer, FILL_PAUSE_MAX_MS);
    }
}

// Called when a transfer has been paused for FILL_PAUSE_MAX_MS. A run that waits for the disk goes
// on unstored. Any other run is parked, which frees its slot at the origin.
static void fill_pause_expired(struct fill *fill)
{
    check(fill->phase == FILL_BODY && !fill->weak);
    if (fill->pause == FILL_PAUSE_DISK) {
        // The run stops waiting for the disk. It is not stored, and its bytes are streamed.
        store_run_give_up(fill->run);
        fill_pause_end(fill, FILL_PAUSE_DISK);
        fill_pause_update(fill);
        return;
    }
    stats_add(COUNTER_fills_parked, 1);
    fill_cancel(fill); // on_fetch_end() parks the run
}

void fill_on_timer(struct timer *timer)
{
    struct fill *fill = fill_of(container_of(timer, struct fill, timer));
    switch (fill->transfer) {
    case TRANSFER_RESUMING:
        fill_fetch(fill);
        break;
    case TRANSFER_PAUSED:
        fill_pause_expired(fill);
        break;
    case TRANSFER_HELD: // the run continues without checksums
        origin_fetch_cancel(&fill->describe);
        break;
    case TRANSFER_IDLE:
        fill->place_waits++;
        fill_wait_for_place(fill);
        break;
    case TRANSFER_PARKED:
    case TRANSFER_RUNNING:
    case TRANSFER_CANCELLED:
        check(false); // these phases start no timer
    }
    fill_assert_run(fill);
}
