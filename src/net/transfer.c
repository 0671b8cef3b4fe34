// SPDX-License-Identifier: Apache-2.0
// Runs HTTP/1.1 requests by curl multi handles (transfer_lane.c) in the worker's event base.
// Everything here runs on the pool's worker.
//
// curl forbids multi calls inside its callbacks, and loop/loop.h forbids callbacks inside the calls
// that start an operation. So calls from outside (start, pause, resume, cancel) and curl's
// callbacks only record what must be done, put the transfer on the pool's list `changed` and defer
// pool_drive(). Only pool_drive() acts: it adds and removes handles, pauses and resumes, runs
// curl's timers, and reports ends.
//
// The states of a transfer, which only transfer_enter() changes:
// - STARTING: its handle is not yet in curl's multi handle.
// - RUNNING: its handle is in the multi handle, and curl calls back for headers, body and upload.
// - ENDED: its handle is out of the multi handle. on_end() runs, and then the transfer is freed.
//
// A transfer ends when curl reports its end, when a callback of the caller returns an error, when
// one of our own timeouts strikes, or by transfer_cancel().
//
// Timeouts: curl limits the time for name look-up and connecting together. We limit three waits:
// for the first line of the answer after the request was sent, for the origin to accept more of an
// upload, and for more of a body. These timeouts do not apply while our side holds the transfer
// back. Progress does not move the timer: when the timer fires, it compares with the time of the
// last progress.
//
// Pausing: a paused transfer returns CURL_WRITEFUNC_PAUSE for data that curl has already read, and
// curl keeps that data, which is at most one receive buffer. After that, the transfer is paused in
// curl, so that the socket's buffer fills up and the origin must wait. A transfer that waits for
// its turn to receive (transfer_turn.c) is paused in curl too, but still accepts the data that curl
// has already read.
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "base/log.h"
#include "net/transfer_private.h"
#include "stats/stats.h"

static struct transfer_pool *as_pool(void *ptr)
{
    struct transfer_pool *pool = ptr;
    check(pool != NULL);
    check(pool->magic == POOL_MAGIC);
    return pool;
}

static struct transfer *as_transfer(void *ptr)
{
    struct transfer *t = ptr;
    check(t != NULL);
    check(t->magic == TRANSFER_MAGIC);
    return t;
}

static void curl_init(void)
{
    transfer_memory_init();
    if ((curl_version_info(CURLVERSION_NOW)->features & CURL_VERSION_ASYNCHDNS) == 0) {
        log_warn("curl_without_asynchdns", "effect=\"name look-ups block a worker\"");
    }
}

void net_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    check(pthread_once(&once, curl_init) == 0);
}

void transfer_enter(struct transfer *t, enum transfer_state state)
{
    static const uint8_t successors[] = {
        [STARTING] = 1u << RUNNING | 1u << ENDED,
        // STARTING: it starts once more, on a new connection
        [RUNNING] = 1u << STARTING | 1u << ENDED,
        [ENDED] = 0,
    };
    check_step(successors, t->state, state);
    t->state = state;
}

// --- Marks for pool_drive() ----------------------------------------------------------------------

void transfer_pause(struct transfer *t)
{
    check(as_transfer(t)->state != ENDED);
    if (!t->body_pause.is_wanted) {
        t->body_pause.is_wanted = true;
        list_remove(&t->turn_node);
        transfer_changed(t);
    }
}

static void transfer_touch(struct transfer *t);

void transfer_resume(struct transfer *t)
{
    check(as_transfer(t)->state != ENDED);
    if (t->body_pause.is_wanted) {
        t->body_pause.is_wanted = false;
        transfer_touch(t);
        transfer_changed(t);
    }
}

void transfer_resume_upload(struct transfer *t)
{
    check(as_transfer(t)->state != ENDED);
    if (t->upload_pause.is_wanted) {
        t->upload_pause.is_wanted = false;
        transfer_touch(t);
        transfer_changed(t);
    }
}

void transfer_cancel(struct transfer *t)
{
    if (as_transfer(t)->state != ENDED) {
        t->abort_err = ERR_CANCELLED; // a cancel replaces any other error
        transfer_changed(t);
    }
}

// --- Timeouts ------------------------------------------------------------------------------------

static uint64_t transfer_limit_ms(const struct transfer *t)
{
    switch (t->wait) {
    case WAIT_CONNECT:
        return 0; // curl applies its own timeout
    case WAIT_UPLOAD:
        return t->upload_pause.is_wanted ? 0 : t->idle_timeout_ms;
    case WAIT_FIRST_BYTE:
        return t->first_byte_timeout_ms;
    case WAIT_BODY:
        return t->body_pause.is_wanted ? 0
               : t->status < 300       ? t->late_timeout_ms
                                       : t->idle_timeout_ms;
    }
    return 0;
}

// Records progress, from which the timeout of the current wait counts.
static void transfer_touch(struct transfer *t)
{
    t->active_us = worker_now_us(t->pool->worker);
    t->passed_over_us = 0;
    uint64_t limit_ms = transfer_limit_ms(t);
    if (limit_ms > 0 && t->timer.heap_slot == 0) {
        timer_start(&t->timer, limit_ms);
    }
}

static void transfer_wait_for(struct transfer *t, enum transfer_wait wait)
{
    if (t->wait != wait) {
        t->wait = wait;
        timer_stop(&t->timer); // the new wait may have another limit
    }
    transfer_touch(t);
}

static void on_transfer_timer(struct timer *timer)
{
    struct transfer *t = as_transfer(container_of(timer, struct transfer, timer));
    uint64_t limit_ms = transfer_limit_ms(t);
    if (limit_ms == 0) {
        return; // our side holds it back; when it resumes, it calls transfer_touch()
    }
    uint64_t passed_us = worker_now_us(t->pool->worker) - t->active_us;
    if (passed_us < limit_ms * 1000) {
        timer_start(&t->timer, (limit_ms * 1000 - passed_us + 999) / 1000);
        return;
    }
    if (transfer_turn_is_passed_over(t)) {
        timer_start(&t->timer, 1);
        return;
    }
    static const char *const what[] = {"connection", "progress of the upload", "answer",
                                       "progress of the body"};
    snprintf(t->error, sizeof(t->error), "no %s for %llu ms", what[t->wait],
             (unsigned long long)limit_ms);
    transfer_abort(t, ERR_ORIGIN_TIMEOUT);
}

// --- curl's callbacks for one transfer -----------------------------------------------------------

static bool transfer_is_doomed(const struct transfer *t)
{
    return t->abort_err != ERR_OK;
}

// curl calls this just before it sends the request on an established connection.
static int on_curl_prereq(void *ctx, char *primary_ip, char *local_ip, int primary_port,
                          int local_port)
{
    (void)primary_ip;
    (void)local_ip;
    (void)primary_port;
    struct transfer *t = as_transfer(ctx);
    if (!transfer_connection_is_clean(t, local_port)) {
        transfer_forbid_reuse(t);
        t->must_reconnect = true;
        return CURL_PREREQFUNC_ABORT;
    }
    transfer_wait_for(t, t->body_sent < t->body_length ? WAIT_UPLOAD : WAIT_FIRST_BYTE);
    return transfer_is_doomed(t) ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static void transfer_note_head(struct transfer *t, struct span line)
{
    if (span_starts_with(line, SPAN("HTTP/"))) {
        size_t at = span_find(line, ' ');
        t->head = at + 1 < line.len && line.ptr[at + 1] == '1' ? HEAD_INTERIM : HEAD_FINAL;
        t->status = 0;
        for (size_t i = at + 1; i < line.len && i < at + 4; i++) {
            t->status = t->status * 10 + (unsigned)(line.ptr[i] - '0');
        }
    } else if ((span_equal(line, SPAN("\r\n")) || span_equal(line, SPAN("\n"))) &&
               t->head == HEAD_FINAL) {
        t->head = HEAD_OVER;
        transfer_judge_upload(t);
        if (t->status >= 300 && t->upload_pause.is_wanted) {
            // curl will send no more of the upload, but does not end the transfer while that is
            // paused.
            t->upload_pause.is_wanted = false;
            transfer_changed(t);
        }
    }
}

static size_t on_curl_header(char *ptr, size_t size, size_t count, void *ctx)
{
    struct transfer *t = as_transfer(ctx);
    size_t len = size * count;
    if (transfer_is_doomed(t)) {
        return 0;
    }
    if (t->head == HEAD_OVER) {
        transfer_touch(t);
        return len; // trailer fields are ignored
    }
    struct span line = {ptr, len};
    transfer_note_head(t, line);
    if (t->head == HEAD_INTERIM) {
        transfer_touch(t);
    } else {
        transfer_wait_for(t, WAIT_BODY);
    }
    enum err err = t->calls.on_header_line(t->ctx, line);
    if (err != ERR_OK) {
        transfer_abort(t, err);
    }
    return transfer_is_doomed(t) ? 0 : len;
}

static size_t on_curl_body(char *ptr, size_t size, size_t count, void *ctx)
{
    struct transfer *t = as_transfer(ctx);
    size_t len = size * count;
    if (transfer_is_doomed(t)) {
        return CURL_WRITEFUNC_ERROR;
    }
    if (t->body_pause.is_wanted) {
        t->body_pause.is_in_curl = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (len == 0) {
        return 0;
    }
    transfer_touch(t);
    bool goes_on = transfer_turn_received(t, len);
    enum err err = t->calls.on_body(t->ctx, (struct span){ptr, len});
    if (err != ERR_OK) {
        transfer_abort(t, err);
    } else if (!goes_on && !t->body_pause.is_wanted) {
        transfer_wait(t);
    }
    return transfer_is_doomed(t) ? CURL_WRITEFUNC_ERROR : len;
}

static size_t on_curl_upload(char *buf, size_t size, size_t count, void *ctx)
{
    struct transfer *t = as_transfer(ctx);
    size_t max = (size_t)min_u64(size * count, t->body_length - t->body_sent);
    if (transfer_is_doomed(t)) {
        return CURL_READFUNC_ABORT;
    }
    if (max == 0) {
        return 0;
    }
    size_t len = 0;
    enum err err = t->calls.on_upload(t->ctx, buf, max, &len);
    if (err == ERR_AGAIN) {
        t->upload_pause.is_wanted = t->upload_pause.is_in_curl = true;
        return CURL_READFUNC_PAUSE;
    }
    if (err == ERR_OK && len == 0) {
        err = ERR_INCOMPLETE_BODY; // the body ended before its announced length
    }
    if (err != ERR_OK) {
        transfer_abort(t, err);
    }
    if (transfer_is_doomed(t)) {
        return CURL_READFUNC_ABORT;
    }
    check(len <= max);
    t->body_sent += len;
    // If the answer came early, its own wait has begun already and must not be replaced.
    if (t->wait == WAIT_UPLOAD && t->body_sent == t->body_length) {
        transfer_wait_for(t, WAIT_FIRST_BYTE);
    } else {
        transfer_touch(t);
    }
    return len;
}

// --- Handles -------------------------------------------------------------------------------------

static CURL *handle_take(struct transfer_pool *pool)
{
    if (pool->idle_count > 0) {
        return pool->idle[--pool->idle_count];
    }
    CURL *easy = curl_easy_init();
    check(easy != NULL);
    return easy;
}

static void handle_keep(struct transfer_pool *pool, CURL *easy)
{
    if (pool->idle_count == pool->idle_cap) {
        pool->idle_cap += IDLE_HANDLES_LEAST;
        pool->idle = realloc(pool->idle, pool->idle_cap * sizeof(CURL *));
        check(pool->idle != NULL);
    }
    curl_easy_reset(easy);
    pool->idle[pool->idle_count++] = easy;
}

// Keeps a handle for later requests, or frees it. At most as many are kept as there are transfers,
// but at least IDLE_HANDLES_LEAST. As transfers end, each one also frees a kept handle above that.
// A handle whose request failed is freed, because it may still have its receive buffer.
static void handle_give_back(struct transfer_pool *pool, CURL *easy, bool has_succeeded)
{
    unsigned most = (unsigned)max_u64(IDLE_HANDLES_LEAST, pool->transfer_count);
    if (has_succeeded && pool->idle_count < most) {
        handle_keep(pool, easy);
    } else {
        curl_easy_cleanup(easy);
    }
    if (pool->idle_count > most) {
        curl_easy_cleanup(handle_take(pool));
    }
}

// --- Ends ----------------------------------------------------------------------------------------

// Returns true if curl connected to an address, or tried to, and the transfer failed before any
// answer came from there.
static bool address_has_failed(const struct transfer *t, enum err err)
{
    return (err == ERR_ORIGIN_CONNECT || err == ERR_ORIGIN_TLS || err == ERR_ORIGIN_RESET ||
            err == ERR_ORIGIN_TIMEOUT) &&
           t->status == 0 && t->has_opened;
}

static void transfer_end(struct transfer *t, enum err err, const char *detail)
{
    struct transfer_pool *pool = t->pool;
    t->lane->must_look_up |= address_has_failed(t, err);
    check(!pool->is_in_curl);
    if (t->state == RUNNING) {
        pool->is_in_curl = true;
        check(curl_multi_remove_handle(t->lane->multi, t->easy) == CURLM_OK);
        pool->is_in_curl = false;
    }
    transfer_enter(t, ENDED);
    transfer_lane_forget(t->lane, t);
    list_remove(&t->node);
    pool->transfer_count--;
    list_remove(&t->changed_node);
    list_remove(&t->turn_node);
    timer_done(&t->timer);
    chunk_budget_discharge(BUDGET_ORIGINS, t->held_bytes);
    handle_give_back(pool, t->easy, err == ERR_OK);
    curl_slist_free_all(t->headers);
    transfer_lane_leave(t->lane);

    bool was_reporting = pool->is_reporting;
    pool->is_reporting = true;
    t->calls.on_end(t->ctx, err, detail);
    pool->is_reporting = was_reporting;
    t->magic = 0;
    free(t);
}

// Ends an aborted transfer with our own error. curl knows only that a callback refused to go on.
static void transfer_end_doomed(struct transfer *t)
{
    bool is_ours = t->abort_err == ERR_ORIGIN_TIMEOUT && t->error[0] != '\0';
    transfer_end(t, t->abort_err, is_ours ? t->error : error_row(t->abort_err)->text);
}

// Starts the request again on a new connection. This is safe for any request, because no byte of it
// has been sent.
static void transfer_reconnect(struct transfer *t)
{
    struct transfer_pool *pool = t->pool;
    check(!pool->is_in_curl);
    stats_add(COUNTER_origin_connections_stray, 1);
    pool->is_in_curl = true;
    check(curl_multi_remove_handle(t->lane->multi, t->easy) == CURLM_OK);
    pool->is_in_curl = false;
    t->must_reconnect = false;
    t->error[0] = '\0';
    t->body_pause.is_in_curl = t->upload_pause.is_in_curl = false;
    t->wait = WAIT_CONNECT;
    timer_stop(&t->timer);
    CURL_SET(t->easy, CURLOPT_FORBID_REUSE, 0L);
    CURL_SET(t->easy, CURLOPT_FRESH_CONNECT, 1L);
    transfer_enter(t, STARTING);
    transfer_changed(t);
}

static void transfer_end_by_curl(struct transfer *t, CURLcode code)
{
    if (transfer_is_doomed(t)) {
        transfer_end_doomed(t);
        return;
    }
    if (t->must_reconnect) {
        transfer_reconnect(t);
        return;
    }
    enum err err = transfer_error_from_curl(t, code);
    if (code == CURLE_SSL_CACERT_BADFILE) {
        (void)snprintf(t->error, sizeof(t->error), "no certificate authorities in %s",
                       t->pool->ca_file != NULL ? t->pool->ca_file : "the system's folder");
    }
    const char *detail = t->error[0] != '\0' ? t->error : curl_easy_strerror(code);
    transfer_end(t, err, err == ERR_OK ? "" : detail);
}

// --- Driving curl --------------------------------------------------------------------------------

static void lane_report_ends(struct transfer_lane *lane)
{
    int left;
    CURLMsg *msg;
    // This loop ends, because on_end() cannot add finished transfers: it only queues new ones.
    while ((msg = curl_multi_info_read(lane->multi, &left)) != NULL) {
        if (msg->msg == CURLMSG_DONE) {
            CURLcode code = msg->data.result;
            void *ptr = NULL;
            check(curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, (char **)&ptr) == CURLE_OK);
            transfer_end_by_curl(as_transfer(ptr), code);
        }
    }
}

static void transfer_apply_pauses(struct transfer *t)
{
    CURLcode code = transfer_tell_curl(t);
    if (code != CURLE_OK) {
        transfer_end_by_curl(t, code);
    }
}

// Makes curl try the next address of a host. When an address refuses or does not answer in time,
// curl 7.88 chooses the next one. It connects there only when it runs again, and no socket event
// makes it run. Without another run, the transfer waits until the connect timeout ends it. Pausing
// and resuming makes curl run, and has no other effect before the request is sent.
static void transfer_run_connect(struct transfer *t)
{
    bool must_run = t->must_run && t->wait == WAIT_CONNECT;
    t->must_run = false;
    if (must_run) {
        t->pool->is_in_curl = true;
        (void)curl_easy_pause(t->easy, CURLPAUSE_SEND); // this fails if curl has ended the transfer
        (void)curl_easy_pause(t->easy, CURLPAUSE_CONT);
        t->pool->is_in_curl = false;
        transfer_lane_is_due(t->lane);
    }
}

static void transfer_act(struct transfer *t)
{
    if (transfer_is_doomed(t)) {
        transfer_end_doomed(t);
    } else if (t->state == STARTING) {
        t->pool->is_in_curl = true;
        CURLMcode code = curl_multi_add_handle(t->lane->multi, t->easy);
        t->pool->is_in_curl = false;
        check(code == CURLM_OK);
        transfer_enter(t, RUNNING);
    } else {
        transfer_run_connect(t);
        if (t->body_pause.is_in_curl && !t->body_pause.is_wanted && !transfer_turn_takes(t)) {
            transfer_turn_wait(t);
        }
        transfer_apply_pauses(t);
    }
}

static void pool_run_lanes(struct transfer_pool *pool)
{
    struct list batch;
    list_init(&batch);
    list_append_all(&batch, &pool->due);
    struct list_node *node;
    while ((node = list_pop_front(&batch)) != NULL) {
        struct transfer_lane *lane = container_of(node, struct transfer_lane, due_node);
        transfer_lane_run_timer(lane);
        lane_report_ends(lane);
    }
}

static void pool_drive(struct task *task)
{
    struct transfer_pool *pool = as_pool(container_of(task, struct transfer_pool, drive));
    struct list batch;
    list_init(&batch);
    // run the lanes first, because transfers that curl has ended must not be acted on
    pool_run_lanes(pool);
    list_append_all(&batch, &pool->changed);
    struct list_node *node;
    while ((node = list_pop_front(&batch)) != NULL) {
        transfer_act(as_transfer(container_of(node, struct transfer, changed_node)));
    }
    pool_run_lanes(pool);
    struct transfer *t;
    while ((t = transfer_turn_next(pool)) != NULL) {
        transfer_apply_pauses(as_transfer(t));
        pool_run_lanes(pool); // this receives the transfer's data
    }
    if (!list_empty(&pool->waiting)) {
        worker_defer(pool->worker, &pool->drive);
    }
}

// --- Pools ---------------------------------------------------------------------------------------

static void pool_set_ca_file(struct transfer_pool *pool, const char *ca_file)
{
    ca_file = ca_file != NULL ? ca_file : transfer_system_authorities();
    free(pool->ca_file);
    pool->ca_file = ca_file != NULL ? strdup(ca_file) : NULL;
    check(ca_file == NULL || pool->ca_file != NULL);
}

void transfer_pool_set(struct transfer_pool *pool, const struct transfer_pool_options *options)
{
    check(worker_is_mine(as_pool(pool)->worker));
    unsigned max_connections = pool->options.max_connections;
    pool->options = *options;
    pool->options.max_connections = max_connections;
    pool_set_ca_file(pool, options->ca_file);
}

struct transfer_pool *transfer_pool_new(struct worker *w,
                                        const struct transfer_pool_options *options)
{
    check(worker_is_mine(w));
    net_init();
    transfer_memory_keep();
    struct transfer_pool *pool = calloc(1, sizeof(*pool));
    check(pool != NULL);
    pool->magic = POOL_MAGIC;
    pool->worker = w;
    pool->options = *options;
    pool_set_ca_file(pool, options->ca_file);
    if (options->names != NULL) {
        pool->names = curl_slist_append(NULL, options->names);
        check(pool->names != NULL);
    }
    list_init(&pool->transfers);
    list_init(&pool->changed);
    list_init(&pool->due);
    list_init(&pool->waiting);
    worker_task_init(&pool->drive, pool_drive);
    transfer_lanes_init(pool);
    return pool;
}

void transfer_pool_free(struct transfer_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    check(worker_is_mine(as_pool(pool)->worker));
    check(!pool->is_in_curl);
    check(!pool->is_reporting); // callers inside on_end() use worker_free_later()
    pool->is_freeing = true;
    struct list_node *node;
    while ((node = list_first(&pool->transfers)) != NULL) {
        transfer_end(as_transfer(container_of(node, struct transfer, node)), ERR_CANCELLED,
                     "cancelled");
    }
    while (pool->idle_count > 0) {
        curl_easy_cleanup(handle_take(pool));
    }
    free(pool->idle);
    transfer_lanes_done(pool);
    worker_task_cancel(&pool->drive);
    curl_slist_free_all(pool->names);
    free(pool->ca_file);
    pool->magic = 0;
    free(pool);
}

// --- Starting ------------------------------------------------------------------------------------

static void transfer_set_callbacks(struct transfer *t)
{
    CURL *easy = t->easy;
    CURL_SET(easy, CURLOPT_PRIVATE, t);
    CURL_SET(easy, CURLOPT_ERRORBUFFER, t->error);
    CURL_SET(easy, CURLOPT_HEADERFUNCTION, on_curl_header);
    CURL_SET(easy, CURLOPT_HEADERDATA, t);
    CURL_SET(easy, CURLOPT_WRITEFUNCTION, on_curl_body);
    CURL_SET(easy, CURLOPT_WRITEDATA, t);
    // There is no seek callback, because a body is sent only once.
    CURL_SET(easy, CURLOPT_READFUNCTION, on_curl_upload);
    CURL_SET(easy, CURLOPT_READDATA, t);
    CURL_SET(easy, CURLOPT_PREREQFUNCTION, on_curl_prereq);
    CURL_SET(easy, CURLOPT_PREREQDATA, t);
    CURL_SET(easy, CURLOPT_OPENSOCKETFUNCTION, transfer_open_socket);
    CURL_SET(easy, CURLOPT_OPENSOCKETDATA, t);
    CURL_SET(easy, CURLOPT_CLOSESOCKETFUNCTION, transfer_close_socket);
    CURL_SET(easy, CURLOPT_CLOSESOCKETDATA, t->lane);
}

struct transfer *transfer_start(struct transfer_pool *pool, const struct transfer_request *request,
                                const struct transfer_calls *calls, void *ctx)
{
    check(worker_is_mine(as_pool(pool)->worker));
    check(!pool->is_freeing);
    check(calls->on_header_line != NULL);
    check(calls->on_body != NULL);
    check(calls->on_end != NULL);
    struct transfer *t = calloc(1, sizeof(*t));
    check(t != NULL);
    t->magic = TRANSFER_MAGIC;
    t->pool = pool;
    t->calls = *calls;
    t->ctx = ctx;
    t->body_length = request->has_body ? request->body_length : 0;
    t->first_byte_timeout_ms = request->first_byte_timeout_ms > 0
                                   ? request->first_byte_timeout_ms
                                   : pool->options.first_byte_timeout_ms;
    t->reach = request->reach;
    t->idle_timeout_ms = pool->options.idle_timeout_ms;
    t->late_timeout_ms =
        request->late_timeout_ms > 0 ? request->late_timeout_ms : t->idle_timeout_ms;
    timer_init(pool->worker, &t->timer, on_transfer_timer);
    list_node_init(&t->node);
    list_node_init(&t->changed_node);
    list_node_init(&t->turn_node);
    list_push_back(&pool->transfers, &t->node);
    pool->transfer_count++;
    t->lane = transfer_lane_enter(pool);
    t->easy = handle_take(pool);

    transfer_set_callbacks(t);
    enum err err = transfer_setup(t, request);
    chunk_budget_charge(BUDGET_ORIGINS, t->held_bytes);
    if (err != ERR_OK) {
        transfer_abort(t, err);
    }
    transfer_changed(t);
    return t;
}
