// SPDX-License-Identifier: Apache-2.0
// A GET's read of the cache disk, and its time limit: never worse than no cache. README.md in this
// folder has the design.
//
// The read has a place pin and a key reference of its own. So the request can leave it in flight
// and go on, or end. The device then still writes into the read's chunks, which on_done() frees. On
// the request's worker.
#include "proxy/get/get_private.h"

#include <stdlib.h>

#define LIMIT_MIN_MS 50u
#define LIMIT_MAX_MS 1000u // also if it is not known how fast the origin answers
#define LIMIT_ANSWERS 4u   // the limit, in times of the origin's first byte

static void read_free(struct get_read *read)
{
    check(read->state == GET_READ_PUT_OFF || read->state == GET_READ_OVER);
    for (unsigned i = 0; i < ARRAY_LEN(read->read.chunks); i++) {
        chunk_unref(read->read.chunks[i]);
    }
    store_object_unref(read->read.object);
    store_place_unpin(&read->read.place);
    object_key_unref(read->key);
    timer_done(&read->timer);
    worker_free_later(read->worker, free, read);
}

static void on_done(struct store_read *store_read)
{
    struct get_read *read = container_of(store_read, struct get_read, read);
    check(read->state != GET_READ_PUT_OFF && read->state != GET_READ_OVER);
    timer_stop(&read->timer);
    if (read->state == GET_READ_LATE) {
        store_read_late_over(store_read);
    } else if (read->state == GET_READ_TIMED && store_read->err == ERR_OK) {
        store_read_in_time(store_read);
    }
    read->state = GET_READ_OVER;
    if (read->request != NULL) {
        read->on_end(read->request);
    } else {
        read_free(read);
    }
}

static void start(struct get_read *read, enum get_read_state state)
{
    check(read->state == GET_READ_PUT_OFF && state != GET_READ_PUT_OFF);
    read->state = state;
    store_read_start(read->worker, &read->read);
}

// Starts the read without a time limit. While the disk ends no read, the read is put off, so that
// no more of them pile up there.
static void start_patient(struct get_read *read)
{
    const struct store_read *r = &read->read;
    bool is_cold = r->header || !store_is_in_memory(read->worker, &r->place, r->first_byte, r->len);
    read->insists = is_cold && store_is_stuck(r->store);
    if (read->insists) {
        timer_start(&read->timer, LIMIT_MAX_MS);
    } else {
        start(read, GET_READ_PATIENT);
    }
}

static void on_timer_put_off(struct get_read *read)
{
    if (read->insists) {
        start_patient(read);
    } else if (store_takes_read(&read->read)) {
        start(read, GET_READ_PATIENT);
    } else {
        timer_start(&read->timer, LIMIT_MAX_MS); // meanwhile the origin sends the bytes, or fails
    }
}

static void on_timer(struct timer *timer)
{
    struct get_read *read = container_of(timer, struct get_read, timer);
    if (read->state == GET_READ_PUT_OFF) {
        on_timer_put_off(read);
        return;
    }
    check(read->state == GET_READ_TIMED);
    read->state = GET_READ_LATE;
    store_read_late(&read->read);
    // Otherwise the request has ended, or waits.
    if (read->request != NULL && get_read_limit_ms(read->request) > 0) {
        stats_add(store_is_slow(read->read.store) ? COUNTER_outrun_slow : COUNTER_outrun_late, 1);
        read->on_late(read->request);
    }
}

uint64_t get_read_limit_ms(struct request *r)
{
    uint64_t recent_us = origin_recent_us(r->pw->worker, r->origin);
    bool is_fit = fill_uncacheable(r->pw->fill, r->get->key->hash) == ORIGIN_FORBIDS_NOTHING;
    if (recent_us == UINT64_MAX || !is_fit || !store_times_reads()) {
        return 0;
    }
    uint64_t limit_ms = LIMIT_ANSWERS * recent_us / 1000;
    return recent_us == 0 ? LIMIT_MAX_MS : min_u64(max_u64(limit_ms, LIMIT_MIN_MS), LIMIT_MAX_MS);
}

struct get_read *get_read_new(struct request *r, const struct store_place *place)
{
    struct get_state *g = get_of(r);
    check(g->read == NULL && place->segment != NULL);
    struct get_read *read = calloc(1, sizeof(*read));
    check(read != NULL);
    read->request = r;
    read->worker = r->pw->worker;
    read->key = object_key_ref(g->key);
    read->read = (struct store_read){.store = r->pw->store,
                                     .place = *place,
                                     .hash = g->key->hash,
                                     .realm = g->key->realm,
                                     .bucket = g->key->bucket,
                                     .key = g->key->key,
                                     .done = on_done};
    store_place_pin_again(&read->read.place);
    timer_init(read->worker, &read->timer, on_timer);
    g->read = read;
    return read;
}

bool get_read_begin(struct get_read *read, uint64_t limit_ms)
{
    if (limit_ms == 0) {
        start_patient(read);
        return true;
    }
    timer_start(&read->timer, limit_ms);
    if (!store_takes_read(&read->read)) {
        stats_add(COUNTER_outrun_slow, 1);
        return false;
    }
    start(read, GET_READ_TIMED);
    return true;
}

void get_read_insist(struct get_read *read)
{
    if (read->state == GET_READ_PUT_OFF) {
        timer_stop(&read->timer);
        start_patient(read);
    }
}

// The request ends. Its read is late, too, if the device does not end it in time.
static void cancel(struct get_read *read)
{
    store_read_cancel(&read->read);
    if (read->state == GET_READ_PATIENT && store_times_reads()) {
        read->state = GET_READ_TIMED;
        timer_start(&read->timer, LIMIT_MAX_MS);
    }
}

void get_read_leave(struct get_read **slot, bool cancels)
{
    struct get_read *read = *slot;
    *slot = NULL;
    if (read == NULL) {
        return;
    }
    if (read->state == GET_READ_PUT_OFF || read->state == GET_READ_OVER) {
        timer_stop(&read->timer);
        read_free(read);
        return;
    }
    read->request = NULL;
    if (cancels) {
        cancel(read);
    } else if (read->state == GET_READ_PATIENT) { // the origin was faster
        read->state = GET_READ_LATE;
        store_read_late(&read->read);
    }
}
