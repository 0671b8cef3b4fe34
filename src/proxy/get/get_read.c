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

static void on_timer(struct timer *timer)
{
    struct get_read *read = container_of(timer, struct get_read, timer);
    check(read->request != NULL);
    if (read->state == GET_READ_PUT_OFF && store_takes_read(&read->read)) {
        start(read, GET_READ_PATIENT);
        return;
    }
    if (read->state == GET_READ_PUT_OFF) {
        timer_start(timer, LIMIT_MAX_MS); // meanwhile the origin sends the bytes, or fails
        return;
    }
    check(read->state == GET_READ_TIMED);
    read->state = GET_READ_LATE;
    store_read_late(&read->read);
    if (get_read_limit_ms(read->request) > 0) { // otherwise the request waits
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
        start(read, GET_READ_PATIENT);
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
        start(read, GET_READ_PATIENT);
    }
}

void get_read_leave(struct get_read **slot, bool cancels)
{
    struct get_read *read = *slot;
    *slot = NULL;
    if (read == NULL) {
        return;
    }
    timer_stop(&read->timer);
    if (read->state == GET_READ_PUT_OFF || read->state == GET_READ_OVER) {
        read_free(read);
        return;
    }
    read->request = NULL;
    if (cancels) {
        store_read_cancel(&read->read);
    } else if (read->state == GET_READ_PATIENT) { // the origin was faster
        read->state = GET_READ_LATE;
        store_read_late(&read->read);
    }
}
