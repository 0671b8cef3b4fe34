// SPDX-License-Identifier: Apache-2.0
// Asks an S3 origin whether it answers and accepts our credentials. It asks once at the start, and
// later only while something is wrong (origin_trouble.c), so that the end of a trouble is noticed
// even without requests. The probe sends ListBuckets for one bucket. An S3 server answers this
// request even if it does not allow it, and either answer shows that all is well. Runs on worker 0.
//
// - idle: nothing is wrong, or the probe of the start has not been sent yet.
// - running: a request of one attempt is in flight.
// - waiting: the timer runs until the next request. Each failure doubles the wait, up to
//   PROBE_WAIT_MAX_MS, or up to PROBE_WAIT_REFUSED_MS of an origin that refuses our requests. Of an
//   origin with server errors the wait is always PROBE_WAIT_MAX_MS, because these answers must
//   replace the counts of origin_failures.c where clients ask little. While an origin is silent,
//   readers of stale objects do not ask it (origin_is_silent()), so the probe must soon.
#include <stdlib.h>

#include "base/clock.h"
#include "origin/origin_private.h"

#define PROBE_WAIT_MIN_MS 1000u
#define PROBE_WAIT_MAX_MS 5000u
#define PROBE_WAIT_REFUSED_MS 30000u

struct origin_probe {
    struct origin *origin;
    struct timer timer;
    struct origin_relay relay;
    struct s3_request request;
    struct headers headers;
    struct header header;
    bool is_running, is_closed;
    unsigned failures;
    uint64_t asked_us;
    sem_t *told; // The semaphore of origin_probe_start(); NULL once it is posted.
};

struct probe_order {
    struct message message;
    struct origin_probe *probe;
    sem_t *told;
};

static void probe_told(struct origin_probe *probe)
{
    if (probe->told != NULL) {
        (void)sem_post(probe->told); // fails only if the semaphore is at its maximum
        probe->told = NULL;
    }
}

static enum err on_head(struct origin_relay *relay)
{
    (void)relay;
    return ERR_OK; // the S3 driver has already recorded what the answer shows
}

static enum err on_body(struct origin_relay *relay, struct span data)
{
    (void)relay;
    (void)data;
    return ERR_OK;
}

static uint64_t probe_wait_ms(const struct origin_probe *probe, enum origin_trouble_kind kind)
{
    uint64_t doubled_ms = (uint64_t)PROBE_WAIT_MIN_MS << min_u64(probe->failures, 5);
    return kind == ORIGIN_KIND_FAILS     ? PROBE_WAIT_MAX_MS
           : kind == ORIGIN_KIND_REFUSES ? min_u64(doubled_ms, PROBE_WAIT_REFUSED_MS)
                                         : min_u64(doubled_ms, PROBE_WAIT_MAX_MS);
}

static void on_end(struct origin_relay *relay, enum err err)
{
    struct origin_probe *probe = relay->ctx;
    struct origin *origin = probe->origin;
    struct origin_trouble_text text;
    probe->is_running = false;
    if (relay->status != 0) {
        atomic_store(&origin->answers_probe, true);
    }
    bool is_failing = err == ERR_ORIGIN_5XX || (relay->status >= 500 && relay->status != 501);
    // 508 means a loop, because the probe's Via names only this process. A SlowDown is ignored
    // here, because the S3 driver has recorded it after asked_us: see origin_trouble_throttled().
    if (is_failing) {
        origin_trouble_met(origin,
                           relay->status == 508 ? ORIGIN_TROUBLE_LOOP : ORIGIN_TROUBLE_FAILING,
                           probe->asked_us, "");
    }
    probe_told(probe);
    if (!probe->is_closed && origin_in_trouble(origin, &text)) {
        timer_start(&probe->timer, probe_wait_ms(probe, text.kind));
        probe->failures++;
    }
}

static void probe_run(struct origin_probe *probe)
{
    static const struct s3_param one = {.raw_name = SPAN("max-buckets"),
                                        .raw_value = SPAN("1"),
                                        .name = SPAN("max-buckets"),
                                        .value = SPAN("1"),
                                        .has_value = true};
    struct origin_worker *ow = &probe->origin->workers[0];
    probe->header =
        (struct header){.name = SPAN("User-Agent"), .value = SPAN("forebay/" FOREBAY_VERSION)};
    probe->headers = (struct headers){.items = &probe->header, .count = 1};
    probe->request = (struct s3_request){.operation = S3_ListBuckets,
                                         .method = SPAN("GET"),
                                         .raw_path = SPAN("/"),
                                         .params = {one},
                                         .param_count = 1};
    probe->relay = (struct origin_relay){.request = &probe->request,
                                         .method = SPAN("GET"),
                                         .headers = &probe->headers,
                                         .is_probe = true,
                                         .on_head = on_head,
                                         .on_body = on_body,
                                         .on_end = on_end,
                                         .ctx = probe};
    probe->is_running = true;
    probe->asked_us = clock_monotonic_us();
    origin_relay_start(ow->w, probe->origin, &probe->relay);
}

static void on_timer(struct timer *timer)
{
    struct origin_probe *probe = container_of(timer, struct origin_probe, timer);
    struct origin_trouble_text text;
    if (!probe->is_running && origin_in_trouble(probe->origin, &text)) {
        probe_run(probe);
    }
}

static void on_order(struct worker *to, struct message *message)
{
    struct probe_order *order = container_of(message, struct probe_order, message);
    struct origin_probe *probe = order->probe;
    check(worker_index(to) == 0);
    if (probe->timer.fn == NULL) {
        timer_init(to, &probe->timer, on_timer);
    }
    probe->is_closed |= probe->origin->workers[0].is_closed;
    bool is_idle = !probe->is_running && probe->timer.heap_slot == 0;
    if (order->told != NULL) {
        probe->told = order->told;
        if (!probe->is_running) {
            probe_run(probe);
        }
    } else if (is_idle && !probe->is_closed) {
        probe->failures = 0;
        timer_start(&probe->timer, PROBE_WAIT_MIN_MS);
    }
    free(order);
}

static void probe_order(struct origin *origin, sem_t *told, bool from_worker)
{
    struct probe_order *order = calloc(1, sizeof(*order));
    check(order != NULL);
    order->message.deliver = on_order;
    order->probe = origin->probe;
    order->told = told;
    if (from_worker) {
        mailbox_send(origin->workers[0].w, &order->message);
    } else {
        mailbox_send_from_any_thread(origin->workers[0].w, &order->message);
    }
}

void origin_probe_start(struct origin *origin, sem_t *told)
{
    if (origin->probe == NULL) {
        (void)sem_post(told); // nothing to wait for, because this origin is not probed
        return;
    }
    probe_order(origin, told, false);
}

static void on_trouble(struct origin *origin)
{
    probe_order(origin, NULL, true);
}

void origin_probe_close(struct origin *origin)
{
    if (origin->probe != NULL && origin->probe->timer.fn != NULL) {
        origin->probe->is_closed = true;
        timer_stop(&origin->probe->timer);
    }
}

void origin_probe_new(struct origin *origin)
{
    if (origin->options.probe && origin->driver->capabilities.is_remote) {
        origin->probe = calloc(1, sizeof(*origin->probe));
        check(origin->probe != NULL);
        origin->probe->origin = origin;
        origin->on_trouble = on_trouble;
    }
}

void origin_probe_free(struct origin *origin)
{
    if (origin->probe != NULL && origin->probe->timer.fn != NULL) {
        timer_done(&origin->probe->timer);
    }
    free(origin->probe);
    origin->probe = NULL;
}
