// SPDX-License-Identifier: Apache-2.0
// The origin as the rest of the program sees it: chooses the driver, limits how many calls run at
// once, and keeps the retry budget of all drivers.
//
// Threads: origin_new() runs before any worker knows the origin, origin_free() when none runs any
// more. Calls run on the worker that started them; shared state is atomic.
//
// Retry budget: a token bucket in thousandths of a retry. Each request adds its percentage, each
// retry takes one. A floor of one retry per second lets even the first failures of a quiet origin
// be retried.
#include "origin/origin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "origin/credentials_chain.h"
#include "origin/origin_private.h"
#include "stats/stats.h"

#define BACKOFF_FIRST_MS 100u
#define BACKOFF_MAX_MS 5000u
#define RETRY_TOKENS_MAX 100000 // 100 retries
#define RETRY_TOKENS_START 10000
#define RETRY_FLOOR_US 1000000u

static struct origin_worker *part_of(struct worker *w, struct origin *origin)
{
    check(origin->magic == ORIGIN_MAGIC);
    check(worker_index(w) < origin->worker_count);
    return &origin->workers[worker_index(w)];
}

// --- The head of a call --------------------------------------------------------------------------

void origin_call_init(struct origin_call *call, struct origin_worker *ow,
                      enum origin_call_kind kind, uint64_t client)
{
    call->magic = ORIGIN_CALL_MAGIC;
    call->driver = ow->origin->driver;
    call->ow = ow;
    call->kind = kind;
    call->client = client;
    list_node_init(&call->live);
    origin_slot_init(call);
    list_push_back(&ow->live, &call->live);
}

void origin_call_done(struct origin_call *call)
{
    origin_slot_leave(call);
    timer_done(&call->slot_timer);
    list_remove(&call->live);
    call->magic = 0;
}

bool origin_has_room(struct worker *w, struct origin *origin, unsigned more)
{
    const struct origin_worker *ow = part_of(w, origin);
    return ow->waiting_count == 0 && ow->running_count + more + origin_slots_spared(ow) < ow->limit;
}

// --- Retries -------------------------------------------------------------------------------------

void origin_budget_request(struct origin *origin)
{
    long share = (long)origin->live.retry_budget_percent * 10;
    if (atomic_fetch_add(&origin->retry_tokens, share) + share > RETRY_TOKENS_MAX) {
        atomic_fetch_sub(&origin->retry_tokens, share); // full
    }
}

bool origin_retry_take(struct origin *origin)
{
    long tokens = atomic_load(&origin->retry_tokens);
    while (tokens >= 1000) {
        if (atomic_compare_exchange_weak(&origin->retry_tokens, &tokens, tokens - 1000)) {
            stats_add(COUNTER_origin_retries, 1);
            return true;
        }
    }
    unsigned long now_us = clock_monotonic_us();
    unsigned long last_us = atomic_load(&origin->retry_floor_at_us);
    if ((last_us == 0 || (int64_t)(now_us - last_us) >= (int64_t)RETRY_FLOOR_US) &&
        atomic_compare_exchange_strong(&origin->retry_floor_at_us, &last_us, now_us)) {
        stats_add(COUNTER_origin_retries, 1);
        return true;
    }
    stats_add(COUNTER_origin_retry_refused, 1);
    return false;
}

bool origin_answers_others(const struct origin *origin, uint64_t since_us)
{
    uint64_t answered_us = atomic_load_explicit(&origin->answered_at_us, memory_order_relaxed);
    return answered_us > since_us && clock_monotonic_us() - answered_us < ORIGIN_ANSWERS_US;
}

uint64_t origin_backoff_ms(unsigned attempt)
{
    check(attempt > 0);
    uint64_t full = BACKOFF_MAX_MS;
    if (attempt < 7) {
        full = min_u64((uint64_t)BACKOFF_FIRST_MS << (attempt - 1), BACKOFF_MAX_MS);
    }
    return full / 2 + random_u64() % (full / 2 + 1);
}

void origin_count_error(enum err err)
{
    switch (err) {
    case ERR_ORIGIN_DNS:
        stats_add(COUNTER_origin_errors_dns, 1);
        break;
    case ERR_ORIGIN_CONNECT:
        stats_add(COUNTER_origin_errors_connect, 1);
        break;
    case ERR_ORIGIN_TLS:
        stats_add(COUNTER_origin_errors_tls, 1);
        break;
    case ERR_ORIGIN_TIMEOUT:
        stats_add(COUNTER_origin_errors_timeout, 1);
        break;
    case ERR_ORIGIN_RESET:
        stats_add(COUNTER_origin_errors_reset, 1);
        break;
    case ERR_ORIGIN_SLOWDOWN:
        stats_add(COUNTER_origin_errors_slowdown, 1);
        break;
    case ERR_ORIGIN_5XX:
        stats_add(COUNTER_origin_errors_5xx, 1);
        break;
    case ERR_ORIGIN_CREDENTIALS:
    case ERR_ORIGIN_REFUSED:
    case ERR_ACCESS_DENIED:
        stats_add(COUNTER_origin_errors_auth, 1);
        break;
    case ERR_ORIGIN_HEAD_TOO_LARGE:
        stats_add(COUNTER_origin_heads_too_large, 1);
        break;
    case ERR_ORIGIN_PROTOCOL:
    case ERR_ORIGIN_UNFIT:
        stats_add(COUNTER_origin_errors_protocol, 1);
        break;
    default:
        break;
    }
}

// --- The Server header ---------------------------------------------------------------------------

void origin_server_header_learn(struct origin *origin, struct span value)
{
    const char *known = atomic_load(&origin->server_header);
    if (value.len == 0 || value.len > 256 || !headers_value_is_clean(value) ||
        (known != NULL && span_equal_cstr(value, known))) {
        return;
    }
    for (unsigned i = 0; i < ORIGIN_SERVER_HEADERS_MAX; i++) {
        char *held = atomic_load(&origin->server_headers[i]);
        if (held == NULL) {
            char *copy = strndup(value.ptr, value.len);
            check(copy != NULL);
            if (atomic_compare_exchange_strong(&origin->server_headers[i], &held, copy)) {
                held = copy;
            } else {
                free(copy); // `held` is the copy of another thread
            }
        }
        if (span_equal_cstr(value, held)) {
            atomic_store(&origin->server_header, held);
            return;
        }
    }
}

const char *origin_server_header(const struct origin *origin)
{
    const char *known = atomic_load(&origin->server_header);
    return known != NULL ? known : "AmazonS3";
}

// --- Life cycle ----------------------------------------------------------------------------------

static const char *copy_text(const char *text)
{
    if (text == NULL) {
        return NULL;
    }
    char *copy = strdup(text);
    check(copy != NULL);
    return copy;
}

static void options_copy(const struct origin_options *from, struct origin_options *to)
{
    *to = *from;
    to->name = copy_text(from->name);
    to->endpoint = copy_text(from->endpoint);
    to->region = copy_text(from->region);
    to->access_key_file = copy_text(from->access_key_file);
    to->secret_key_file = copy_text(from->secret_key_file);
    to->session_token_file = copy_text(from->session_token_file);
    to->ca_file = copy_text(from->ca_file);
}

static void text_free(const char *text)
{
    free((void *)(uintptr_t)text);
}

static void options_done(struct origin_options *options)
{
    text_free(options->name);
    text_free(options->endpoint);
    text_free(options->region);
    text_free(options->access_key_file);
    text_free(options->secret_key_file);
    text_free(options->session_token_file);
    text_free(options->ca_file);
}

static void workers_init(struct origin *origin, bool is_directory)
{
    unsigned count = loop_worker_count(origin->loop);
    unsigned connections =
        origin->options.connections > 0 ? origin->options.connections : ORIGIN_SLOTS_FIRST;
    unsigned first =
        // More calls at once make no directory faster.
        is_directory ? connections : ORIGIN_SLOTS_FIRST;
    origin->worker_count = count;
    origin->workers = calloc(count, sizeof(origin->workers[0]));
    check(origin->workers != NULL);
    for (unsigned i = 0; i < count; i++) {
        struct origin_worker *ow = &origin->workers[i];
        ow->origin = origin;
        ow->w = loop_worker(origin->loop, i);
        list_init(&ow->live);
        origin_slots_init(ow, (connections + count - 1) / count, (first + count - 1) / count);
    }
}

static void live_set(struct origin *origin, const struct origin_options *options)
{
    origin->live.keepalive_ms = options->keepalive_ms;
    origin->live.connect_timeout_ms = options->connect_timeout_ms;
    origin->live.first_byte_timeout_ms = options->first_byte_timeout_ms;
    origin->live.idle_timeout_ms = options->idle_timeout_ms;
    origin->live.retries = options->retries;
    origin->live.retry_budget_percent = options->retry_budget_percent;
    check(pthread_mutex_lock(&origin->live.lock) == 0);
    text_free(origin->live.ca_file);
    origin->live.ca_file = copy_text(options->ca_file);
    check(pthread_mutex_unlock(&origin->live.lock) == 0);
    atomic_fetch_add(&origin->live.number, 1);
}

enum err origin_new(const struct origin_options *options, struct loop *loop,
                    struct origin **ret_origin, struct buf *ret_why)
{
    check(options->name != NULL && options->endpoint != NULL);
    struct origin *origin = calloc(1, sizeof(*origin));
    check(origin != NULL);
    origin->magic = ORIGIN_MAGIC;
    origin->loop = loop;
    options_copy(options, &origin->options);
    origin->live.has_key_files = options->access_key_file != NULL;
    check(pthread_mutex_init(&origin->live.lock, NULL) == 0);
    live_set(origin, options);
    atomic_init(&origin->retry_tokens, RETRY_TOKENS_START);
    bool is_directory = strncmp(options->endpoint, "dir:", 4) == 0;
    workers_init(origin, is_directory);
    origin->driver = is_directory ? &origin_directory_driver : &origin_s3_driver;
    enum err err =
        is_directory ? origin_directory_open(origin, ret_why) : origin_s3_open(origin, ret_why);
    if (err != ERR_OK) {
        origin_free(origin);
        return err;
    }
    origin_probe_new(origin);
    *ret_origin = origin;
    return ERR_OK;
}

// --- updates while it runs -----------------------------------------------------------------------

struct origin_update {
    struct origin *origin;
    struct origin_options options;          // numbers and ca_file; a copy
    struct credentials_update *credentials; // NULL: unchanged
    bool has_key_files;
};

enum err origin_update_new(struct origin *origin, const struct origin_options *options,
                           struct origin_update **ret_update, struct buf *ret_why)
{
    struct origin_update *update = calloc(1, sizeof(*update));
    check(update != NULL);
    update->origin = origin;
    update->options = *options;
    update->options.ca_file = copy_text(options->ca_file);
    update->has_key_files = options->access_key_file != NULL;
    bool may_differ = update->has_key_files || origin->live.has_key_files;
    enum err err = may_differ && origin->driver == &origin_s3_driver
                       ? origin_s3_credentials(origin, options, &update->credentials, ret_why)
                       : ERR_OK;
    if (err != ERR_OK) {
        origin_update_free(update);
        return err;
    }
    *ret_update = update;
    return ERR_OK;
}

void origin_update_use(struct origin_update *update)
{
    if (update->credentials != NULL) {
        credentials_update_use(update->credentials);
        update->credentials = NULL;
    }
    update->origin->live.has_key_files = update->has_key_files;
    live_set(update->origin, &update->options);
    origin_update_free(update);
}

void origin_update_free(struct origin_update *update)
{
    if (update != NULL) {
        credentials_update_free(update->credentials);
        text_free(update->options.ca_file);
        free(update);
    }
}

struct close_order {
    struct message message;
    struct origin *origin;
};

static void on_close_order(struct worker *to, struct message *message)
{
    struct close_order *order = container_of(message, struct close_order, message);
    struct origin_worker *ow = &order->origin->workers[worker_index(to)];
    free(order);
    ow->is_closed = true;
    if (worker_index(to) == 0) {
        origin_probe_close(ow->origin);
    }
    list_for_each(node, &ow->live)
    {
        struct origin_call *call = container_of(node, struct origin_call, live);
        call->driver->call_cancel(call);
    }
}

void origin_close(struct origin *origin)
{
    for (unsigned i = 0; origin != NULL && i < origin->worker_count; i++) {
        struct close_order *order = calloc(1, sizeof(*order));
        check(order != NULL);
        order->message.deliver = on_close_order;
        order->origin = origin;
        mailbox_send_from_any_thread(origin->workers[i].w, &order->message);
    }
}

struct rest_order {
    struct message message;
    struct origin *origin;
    bool rests;
};

static void on_rest_order(struct worker *to, struct message *message)
{
    struct rest_order *order = container_of(message, struct rest_order, message);
    struct origin_worker *ow = &order->origin->workers[worker_index(to)];
    ow->rests = order->rests;
    free(order);
    if (ow->rests && ow->origin->driver->rest != NULL) {
        ow->origin->driver->rest(ow);
    }
}

void origin_rest(struct origin *origin, bool rests)
{
    if (atomic_exchange(&origin->rests, rests) == rests) {
        return;
    }
    if (rests) {
        origin_trouble_forget(origin);
    }
    for (unsigned i = 0; i < origin->worker_count; i++) {
        struct rest_order *order = calloc(1, sizeof(*order));
        check(order != NULL);
        order->message.deliver = on_rest_order;
        order->origin = origin;
        order->rests = rests;
        mailbox_send_from_any_thread(origin->workers[i].w, &order->message);
    }
}

bool origin_rests(const struct origin *origin)
{
    return atomic_load(&origin->rests);
}

void origin_free(struct origin *origin)
{
    if (origin == NULL) {
        return;
    }
    check(origin->magic == ORIGIN_MAGIC);
    if (origin->driver->stop != NULL) {
        origin->driver->stop(origin);
    }
    for (unsigned i = 0; i < origin->worker_count; i++) {
        struct list_node *node;
        while ((node = list_pop_front(&origin->workers[i].live)) != NULL) {
            struct origin_call *call = container_of(node, struct origin_call, live);
            origin_slot_stop_waiting(call);
            timer_done(&call->slot_timer);
            call->driver->call_abandon(call);
        }
    }
    origin->driver->free(origin);
    origin_probe_free(origin);
    origin_trouble_forget(origin);
    for (unsigned i = 0; i < ORIGIN_SERVER_HEADERS_MAX; i++) {
        free(atomic_load(&origin->server_headers[i]));
    }
    text_free(origin->live.ca_file);
    check(pthread_mutex_destroy(&origin->live.lock) == 0);
    options_done(&origin->options);
    free(origin->workers);
    free(origin->description);
    free(origin->shown);
    free(origin->place);
    origin->magic = 0;
    free(origin);
}

const char *origin_name(const struct origin *origin)
{
    return origin->options.name;
}

const char *origin_shown(const struct origin *origin)
{
    return origin->shown != NULL ? origin->shown : origin->options.name;
}

void origin_times(const struct origin *origin, struct origin_times *ret_times)
{
    *ret_times = (struct origin_times){
        .has_skew = atomic_load(&origin->has_date_skew),
        .skew_s = atomic_load(&origin->date_skew_s),
        .credentials_expire_s = atomic_load(&origin->credentials_expire_s),
    };
}

const char *origin_endpoint(const struct origin *origin)
{
    return origin->options.endpoint;
}

void origin_set_number(struct origin *origin, uint64_t number)
{
    origin->number = number;
}

uint64_t origin_number(const struct origin *origin)
{
    return origin->number;
}

const char *origin_place(const struct origin *origin)
{
    return origin->place;
}

const char *origin_describe(const struct origin *origin)
{
    return origin->description;
}

const struct origin_capabilities *origin_capabilities(const struct origin *origin)
{
    return &origin->driver->capabilities;
}

// --- Calls ---------------------------------------------------------------------------------------

void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f)
{
    check(f->on_head != NULL && f->on_body != NULL && f->on_end != NULL);
    f->status = 0;
    f->size_bytes = f->body_first = f->body_len = 0;
    f->etag = f->version_id = f->error_answer = f->bucket_region = f->origin_id =
        (struct span){NULL, 0};
    f->weak_or_no_etag = f->too_young = false;
    f->forbids = ORIGIN_FORBIDS_NOTHING;
    f->last_modified = 0;
    f->headers = f->checksums = (struct headers){0};
    f->arena = arena_new_counted(ORIGIN_ARENA_MAX, BUDGET_ORIGINS);
    f->driver = NULL;
    struct origin_worker *ow = part_of(w, origin);
    origin->driver->fetch_start(ow, f);
    if (ow->is_closed) {
        origin_fetch_cancel(f);
    }
}

// Does nothing for a call that has ended (driver NULL).
void origin_fetch_pause(struct origin_fetch *f)
{
    if (f->driver != NULL) {
        struct origin_call *call = as_origin_call(f->driver);
        call->driver->fetch_pause(call);
    }
}

void origin_fetch_resume(struct origin_fetch *f)
{
    if (f->driver != NULL) {
        struct origin_call *call = as_origin_call(f->driver);
        call->driver->fetch_resume(call);
    }
}

void origin_fetch_hasten(struct origin_fetch *f, uint64_t client)
{
    f->ahead = false;
    f->client = client;
    if (f->driver != NULL) {
        origin_slot_hasten(as_origin_call(f->driver), client);
    }
}

void origin_fetch_cancel(struct origin_fetch *f)
{
    if (f->driver != NULL) {
        struct origin_call *call = as_origin_call(f->driver);
        call->driver->call_cancel(call);
    }
}

void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r)
{
    check(r->on_head != NULL && r->on_body != NULL && r->on_end != NULL);
    check(r->body == ORIGIN_BODY_NONE || r->on_upload != NULL);
    r->status = 0;
    r->headers_answered = (struct headers){0};
    r->has_length = false;
    r->length = r->part_first = 0;
    r->part_etag = r->origin_id = (struct span){NULL, 0};
    r->arena = arena_new_counted(ORIGIN_ARENA_MAX, BUDGET_ORIGINS);
    r->driver = NULL;
    struct origin_worker *ow = part_of(w, origin);
    origin->driver->relay_start(ow, r);
    if (ow->is_closed) {
        origin_relay_cancel(r);
    }
}

void origin_relay_pause(struct origin_relay *r)
{
    if (r->driver != NULL) {
        struct origin_call *call = as_origin_call(r->driver);
        call->driver->relay_pause(call);
    }
}

void origin_relay_resume(struct origin_relay *r)
{
    if (r->driver != NULL) {
        struct origin_call *call = as_origin_call(r->driver);
        call->driver->relay_resume(call);
    }
}

void origin_relay_resume_upload(struct origin_relay *r)
{
    if (r->driver != NULL) {
        struct origin_call *call = as_origin_call(r->driver);
        call->driver->relay_resume_upload(call);
    }
}

void origin_relay_cancel(struct origin_relay *r)
{
    if (r->driver != NULL) {
        struct origin_call *call = as_origin_call(r->driver);
        call->driver->call_cancel(call);
    }
}
