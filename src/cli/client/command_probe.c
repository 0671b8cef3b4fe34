// SPDX-License-Identifier: Apache-2.0
// The main thread sends each request as a message to the only worker, which starts a fetch or a
// relay. The end of the call wakes the main thread. At the timeout the call is cancelled, and the
// main thread waits until it has ended, so that nothing outlives command_probe_ask().
#include "cli/client/command_probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/net.h"
#include "s3/s3.h"

#define ARENA_MAX_BYTES (1u << 20)
#define DOCUMENT_MAX_BYTES 65536u
#define CANCEL_WAIT_MS 2000u
#define QUEUE_DEPTH 16u
#define PROBE_CONNECTIONS 256u

struct calls { // calls in progress, for which the main thread waits
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned running;
};

struct call {
    struct message start, cancel;
    struct calls *calls;
    struct command_probe_ask ask;
    struct command_probe_answer answer;
    struct arena *arena;
    struct s3_request request;
    struct headers headers;
    struct origin_fetch fetch;
    struct origin_relay relay;
    struct s3_list_scan scan;
    struct buf document; // the error document or the list of buckets
    uint64_t began_us;
    bool is_over;
};

static void one_less(void *ptr)
{
    struct calls *calls = ptr;
    check(pthread_mutex_lock(&calls->lock) == 0);
    calls->running--;
    check(pthread_cond_signal(&calls->changed) == 0);
    check(pthread_mutex_unlock(&calls->lock) == 0);
}

static void call_end(struct call *call, enum err err)
{
    struct command_probe_answer *answer = &call->answer;
    answer->err = err;
    answer->total_us = clock_monotonic_us() - call->began_us;
    (void)snprintf(answer->text, sizeof(answer->text), "%s", buf_cstr(&call->document));
    call->is_over = true;
    worker_free_later(worker_current(), one_less,
                      call->calls); // the driver still uses the call in this turn of the loop
}

static void took_head(struct call *call, unsigned status)
{
    call->answer.status = status;
    call->answer.first_us = clock_monotonic_us() - call->began_us;
}

// --- One object ----------------------------------------------------------------------------------

static enum err on_fetch_head(struct origin_fetch *f)
{
    struct call *call = f->ctx;
    took_head(call, f->status);
    call->answer.size_bytes = f->size_bytes;
    return ERR_OK;
}

static enum err on_fetch_body(struct origin_fetch *f, struct span data)
{
    ((struct call *)f->ctx)->answer.bytes += data.len;
    return ERR_OK;
}

static void on_fetch_end(struct origin_fetch *f, enum err err)
{
    struct call *call = f->ctx;
    call->answer.status = f->status;
    call_end(call, err);
}

static void start_fetch(struct worker *w, struct call *call)
{
    call->fetch = (struct origin_fetch){.kind = call->ask.kind == PROBE_HEAD  ? ORIGIN_HEAD
                                                : call->ask.kind == PROBE_GET ? ORIGIN_GET_RANGE
                                                                              : ORIGIN_GET_WHOLE,
                                        .bucket = span_from_cstr(call->ask.bucket),
                                        .key = span_from_cstr(call->ask.key),
                                        .first = call->ask.first,
                                        .last = call->ask.last,
                                        .on_head = on_fetch_head,
                                        .on_body = on_fetch_body,
                                        .on_end = on_fetch_end,
                                        .ctx = call};
    origin_fetch_start(w, call->ask.origin, &call->fetch);
}

// --- Listings ------------------------------------------------------------------------------------

static void on_list_entry(void *ctx, struct span key, uint64_t size_bytes)
{
    struct command_probe_answer *answer = &((struct call *)ctx)->answer;
    if (answer->key[0] == '\0' && key.len < PROBE_KEY_MAX) {
        memcpy(answer->key, key.ptr, key.len);
        answer->key[key.len] = '\0';
        answer->size_bytes = size_bytes;
    }
}

static enum err on_relay_head(struct origin_relay *r)
{
    took_head(r->ctx, r->status);
    return ERR_OK;
}

static enum err on_relay_body(struct origin_relay *r, struct span data)
{
    struct call *call = r->ctx;
    call->answer.bytes += data.len;
    if (r->status == 200 && call->ask.kind == PROBE_LIST) {
        s3_list_scan_feed(&call->scan, data, on_list_entry, call);
    } else if (data.len <= DOCUMENT_MAX_BYTES - call->document.len) {
        buf_append_span(&call->document, data);
    }
    return ERR_OK;
}

static void take_first_bucket(struct call *call)
{
    const char *begin = strstr(buf_cstr(&call->document), "<Bucket><Name>");
    const char *end = begin != NULL ? strstr(begin, "</Name>") : NULL;
    if (end != NULL) {
        begin += strlen("<Bucket><Name>");
        on_list_entry(call, (struct span){begin, (size_t)(end - begin)}, 0);
    }
}

static void on_relay_end(struct origin_relay *r, enum err err)
{
    struct call *call = r->ctx;
    if (err == ERR_OK && call->ask.kind == PROBE_BUCKETS && r->status == 200) {
        take_first_bucket(call);
        call->document.len = 0;
    }
    call_end(call, err);
}

static void start_relay(struct worker *w, struct call *call)
{
    const struct s3_domains none = {NULL, 0};
    const char *target =
        call->ask.kind == PROBE_BUCKETS
            ? "/"
            : arena_printf(call->arena, "/%s?list-type=2&max-keys=1", call->ask.bucket);
    check(target != NULL);
    enum err err = s3_request_parse(call->arena, SPAN("GET"), SPAN("127.0.0.1"),
                                    span_from_cstr(target), &call->headers, &none, &call->request);
    if (err == ERR_OK && call->ask.kind != PROBE_BUCKETS &&
        !span_equal_cstr(call->request.bucket, call->ask.bucket)) {
        err = ERR_INVALID_BUCKET_NAME; // it holds a slash or a question mark
    }
    if (err != ERR_OK) {
        call_end(call, err);
        return;
    }
    call->relay = (struct origin_relay){.request = &call->request,
                                        .method = SPAN("GET"),
                                        .bucket = span_from_cstr(call->ask.bucket),
                                        .headers = &call->headers,
                                        .body = ORIGIN_BODY_NONE,
                                        .on_head = on_relay_head,
                                        .on_body = on_relay_body,
                                        .on_end = on_relay_end,
                                        .ctx = call};
    s3_list_scan_begin(&call->scan, false);
    origin_relay_start(w, call->ask.origin, &call->relay);
}

// --- From the main thread ------------------------------------------------------------------------

static bool is_fetch(const struct call *call)
{
    return call->ask.kind == PROBE_HEAD || call->ask.kind == PROBE_GET;
}

static void deliver_start(struct worker *to, struct message *message)
{
    struct call *call = container_of(message, struct call, start);
    call->began_us = clock_monotonic_us();
    (is_fetch(call) ? start_fetch : start_relay)(to, call);
}

static void deliver_cancel(struct worker *to, struct message *message)
{
    struct call *call = container_of(message, struct call, cancel);
    if (!call->is_over && is_fetch(call)) {
        origin_fetch_cancel(&call->fetch);
    } else if (!call->is_over) {
        origin_relay_cancel(&call->relay);
    }
    worker_free_later(to, one_less, call->calls);
}

static bool wait_for_all(struct calls *calls, uint64_t timeout_ms)
{
    struct timespec until;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += (time_t)(timeout_ms / 1000);
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    check(pthread_mutex_lock(&calls->lock) == 0);
    int result = 0;
    while (calls->running > 0 && result == 0) {
        result = pthread_cond_timedwait(&calls->changed, &calls->lock, &until);
    }
    bool all = calls->running == 0;
    check(pthread_mutex_unlock(&calls->lock) == 0);
    return all;
}

// Cancels all calls. Returns false if one of them hangs in the kernel, so that it may end at any
// later time.
static bool cancel_all(struct worker *w, struct calls *calls, struct call *all, unsigned count)
{
    check(pthread_mutex_lock(&calls->lock) == 0);
    calls->running += count; // each cancel message counts too, so wait_for_all() waits for them
    check(pthread_mutex_unlock(&calls->lock) == 0);
    for (unsigned i = 0; i < count; i++) {
        all[i].cancel.deliver = deliver_cancel;
        mailbox_send_from_any_thread(w, &all[i].cancel);
    }
    return wait_for_all(calls, CANCEL_WAIT_MS);
}

static void calls_init(struct calls *calls, unsigned count)
{
    *calls = (struct calls){.running = count};
    check(pthread_mutex_init(&calls->lock, NULL) == 0);
    clock_cond_init(&calls->changed);
}

static void start_all(struct worker *w, struct calls *calls, struct call *all,
                      const struct command_probe_ask *asks, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct call *call = &all[i];
        *call = (struct call){.calls = calls, .ask = asks[i]};
        call->arena = arena_new(ARENA_MAX_BYTES);
        // Copy the texts, because a call that hangs may outlive the caller's texts.
        call->ask.bucket = arena_cstr(call->arena, span_from_cstr(asks[i].bucket));
        call->ask.key = arena_cstr(call->arena, span_from_cstr(asks[i].key));
        check(call->ask.bucket != NULL && call->ask.key != NULL);
        buf_init(&call->document, DOCUMENT_MAX_BYTES + 1);
        call->start.deliver = deliver_start;
        mailbox_send_from_any_thread(w, &call->start);
    }
}

static void calls_free(struct calls *calls, struct call *all, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        arena_free(all[i].arena);
        buf_done(&all[i].document);
    }
    (void)pthread_cond_destroy(&calls->changed); // nobody waits
    (void)pthread_mutex_destroy(&calls->lock);   // nobody holds it
    free(calls);
    free(all);
}

void command_probe_ask_all(struct command_probe *probe, const struct command_probe_ask *asks,
                           unsigned count, uint64_t timeout_ms,
                           struct command_probe_answer *ret_answers)
{
    struct worker *w = loop_worker(probe->loop, 0);
    struct call *all = calloc(count, sizeof(*all));
    struct calls *calls = calloc(1, sizeof(*calls));
    check(all != NULL && calls != NULL && probe->is_running);
    calls_init(calls, count);
    if (!probe->is_stuck) {
        start_all(w, calls, all, asks, count);
        probe->is_stuck = !wait_for_all(calls, timeout_ms) && !cancel_all(w, calls, all, count);
    }
    for (unsigned i = 0; i < count; i++) {
        ret_answers[i] =
            probe->is_stuck ? (struct command_probe_answer){.err = ERR_CANCELLED} : all[i].answer;
    }
    if (!probe->is_stuck) {
        calls_free(calls, all, count);
    } // otherwise they leak, because the call that hangs still uses them
}

void command_probe_ask(struct command_probe *probe, const struct command_probe_ask *ask,
                       uint64_t timeout_ms, struct command_probe_answer *ret_answer)
{
    command_probe_ask_all(probe, ask, 1, timeout_ms, ret_answer);
}

enum err command_probe_open(struct command_probe *probe, const struct config *config,
                            uint64_t timeout_ms, struct buf *ret_why)
{
    struct loop_options options = {.worker_count = 1,
                                   .engine = DISK_ENGINE_THREADS,
                                   .disk_threads = 1,
                                   .disk_queue_depth = QUEUE_DEPTH};
    struct config once = *config; // a copy with other timeouts and no retries
    once.origin_retries = 0;
    once.origin_connect_timeout_ms = min_u64(once.origin_connect_timeout_ms, timeout_ms);
    once.origin_first_byte_timeout_ms = min_u64(once.origin_first_byte_timeout_ms, timeout_ms);
    once.origin_idle_timeout_ms = min_u64(once.origin_idle_timeout_ms, timeout_ms);
    *probe = (struct command_probe){.is_running = false};
    net_init();
    enum err err = loop_new(&options, &probe->loop, ret_why);
    if (err == ERR_OK) {
        err = command_origins_open(&once, PROBE_CONNECTIONS, probe->loop, &probe->origins, ret_why);
    }
    if (err == ERR_OK) {
        err = loop_start(probe->loop);
        probe->is_running = err == ERR_OK;
        if (err != ERR_OK) {
            buf_append_cstr(ret_why,
                            "threads could not be started: raise the limit on tasks (ulimit -u)");
        }
    }
    return err;
}

void command_probe_close(struct command_probe *probe)
{
    struct command_origins *o = &probe->origins;
    if (probe->is_stuck) {
        return; // a call that never ends still uses the parts; the process ends soon
    }
    if (probe->is_running) {
        command_origins_close(o);
        loop_stop(probe->loop);
    }
    command_origins_free(o);
    loop_free(probe->loop);
    *probe = (struct command_probe){.is_running = false};
}
