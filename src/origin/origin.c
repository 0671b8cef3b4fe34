// SPDX-License-Identifier: Apache-2.0
// Opens an origin with the driver that its endpoint needs, changes its settings, and frees it.
//
// Threads: origin_new() runs before any worker knows the origin, and origin_free() after all
// workers have stopped. Calls run on the worker that started them. Shared state is atomic.
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
    to->bucket = copy_text(from->bucket);
    for (unsigned i = 0; i < ORIGIN_SETTING_COUNT; i++) {
        to->settings.names[i] = copy_text(from->settings.names[i]);
    }
    to->endpoint = copy_text(from->endpoint);
    to->region = copy_text(from->region);
    to->access_key_file = copy_text(from->access_key_file);
    to->secret_key_file = copy_text(from->secret_key_file);
    to->session_token_file = copy_text(from->session_token_file);
    to->ca_file = copy_text(from->ca_file);
    to->proxy = copy_text(from->proxy);
    to->proxy_auth_file = copy_text(from->proxy_auth_file);
}

static void text_free(const char *text)
{
    free((void *)(uintptr_t)text);
}

static void options_done(struct origin_options *options)
{
    text_free(options->bucket);
    for (unsigned i = 0; i < ORIGIN_SETTING_COUNT; i++) {
        text_free(options->settings.names[i]);
    }
    text_free(options->endpoint);
    text_free(options->region);
    text_free(options->access_key_file);
    text_free(options->secret_key_file);
    text_free(options->session_token_file);
    text_free(options->ca_file);
    text_free(options->proxy);
    text_free(options->proxy_auth_file);
}

static void workers_init(struct origin *origin, bool is_directory)
{
    unsigned count = loop_worker_count(origin->loop);
    unsigned connections =
        origin->options.connections > 0 ? origin->options.connections : ORIGIN_SLOTS_FIRST;
    unsigned first =
        // A directory gets all its slots at once, because more calls make it no faster.
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
    if (atomic_exchange(&origin->live.max_rate_bytes_per_s, options->max_rate_bytes_per_s) !=
        options->max_rate_bytes_per_s) {
        // A debt at a small rate may last for minutes.
        atomic_store(&origin->rate_clients_paid_us, 0);
        atomic_store(&origin->rate_paid_us, 0);
    }
    check(pthread_mutex_lock(&origin->live.lock) == 0);
    text_free(origin->live.ca_file);
    origin->live.ca_file = copy_text(options->ca_file);
    check(pthread_mutex_unlock(&origin->live.lock) == 0);
    atomic_fetch_add(&origin->live.number, 1);
}

enum err origin_new(const struct origin_options *options, struct loop *loop,
                    struct origin **ret_origin, struct buf *ret_why)
{
    check(options->endpoint != NULL);
    struct origin *origin = calloc(1, sizeof(*origin));
    check(origin != NULL);
    origin->magic = ORIGIN_MAGIC;
    origin->loop = loop;
    options_copy(options, &origin->options);
    origin_trouble_init(origin);
    origin->live.has_key_files = options->access_key_file != NULL;
    check(pthread_mutex_init(&origin->live.lock, NULL) == 0);
    live_set(origin, options);
    origin_retry_init(origin);
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
    struct origin_options options; // Only the numbers and ca_file are valid; ca_file is a copy.
    struct credentials_update *credentials; // NULL: unchanged.
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

// A message to every worker about its part of an origin.
struct order {
    struct message message;
    struct origin *origin;
    bool rests; // The argument of origin_rest().
};

static void order_all(struct origin *origin, bool rests,
                      void (*deliver)(struct worker *to, struct message *message))
{
    for (unsigned i = 0; i < origin->worker_count; i++) {
        struct order *order = calloc(1, sizeof(*order));
        check(order != NULL);
        *order = (struct order){.message.deliver = deliver, .origin = origin, .rests = rests};
        mailbox_send_from_any_thread(origin->workers[i].w, &order->message);
    }
}

static void on_close_order(struct worker *to, struct message *message)
{
    struct order *order = container_of(message, struct order, message);
    struct origin_worker *ow = &order->origin->workers[worker_index(to)];
    free(order);
    ow->is_closed = true;
    if (worker_index(to) == 0) {
        origin_probe_close(ow->origin);
    }
    list_for_each(node, &ow->live)
    {
        struct origin_call *call = container_of(node, struct origin_call, live);
        call->ops->cancel(call);
    }
}

void origin_close(struct origin *origin)
{
    if (origin != NULL) {
        order_all(origin, false, on_close_order);
    }
}

static void on_rest_order(struct worker *to, struct message *message)
{
    struct order *order = container_of(message, struct order, message);
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
    order_all(origin, rests, on_rest_order);
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
        timer_done(&origin->workers[i].rate_timer);
        while ((node = list_pop_front(&origin->workers[i].live)) != NULL) {
            struct origin_call *call = container_of(node, struct origin_call, live);
            origin_slot_stop_waiting(call);
            timer_done(&call->slot_timer);
            arena_free(call->arena);
            call->ops->free(call);
        }
    }
    origin->driver->free(origin);
    origin_probe_free(origin);
    origin_trouble_forget(origin);
    origin_trouble_done(origin);
    for (unsigned i = 0; i < ORIGIN_SERVER_HEADERS_MAX; i++) {
        free(atomic_load(&origin->server_headers[i]));
    }
    text_free(origin->live.ca_file);
    check(pthread_mutex_destroy(&origin->live.lock) == 0);
    options_done(&origin->options);
    free(origin->workers);
    free(origin->description);
    free(origin->name);
    free(origin->shown);
    free(origin->place);
    origin->magic = 0;
    free(origin);
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

bool origin_requester_pays(const struct origin *origin)
{
    return origin->options.requester_pays;
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
