// SPDX-License-Identifier: Apache-2.0
// Builds the room: tables copied from the options, one context per worker, the handler that http
// calls.

#include "base/random.h"
#include "proxy/core/core.h"
#include "proxy/get/get.h"
#include "proxy/log/log.h"
#include "proxy/ops/ops.h"
#include "proxy/pass/pass.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void proxy_worker_init(struct proxy *proxy, unsigned index)
{
    struct proxy_worker *pw = &proxy->workers[index];
    pw->proxy = proxy;
    pw->store = proxy->store;
    pw->worker = loop_worker(proxy->loop, index);
    pw->index = index;
    pw->fill = fill_worker_of(pw->worker);
    list_init(&pw->request_pool);
    list_init(&pw->doubts);
    evict_worker_init(pw);
    pw->recent = recent_new();
    pw->bucket_counts = bucket_counts_new();
    if (proxy->options.access_keys != NULL) {
        pw->access_keys = access_keys_ref(proxy->options.access_keys);
        pw->known = access_keys_ref(proxy->options.access_keys);
    }
    worker_slot_set(pw->worker, WORKER_SLOT_PROXY, pw);
}

static void on_invalidated(void *ctx, struct worker *w, const struct object_key *key)
{
    (void)ctx;
    list_cache_drop_key(proxy_worker_of(w), key);
}

int64_t proxy_client_skew_s(const struct proxy *proxy)
{
    return atomic_load(&proxy->client_skew_s);
}

enum err proxy_new(const struct proxy_options *options, struct proxy **ret_proxy,
                   struct buf *ret_why)
{
    struct proxy *proxy = calloc(1, sizeof(*proxy));
    check(proxy != NULL);
    proxy->loop = options->loop;
    proxy->store = options->store;
    proxy->options = *options;
    proxy->realm = span_from_cstr(options->realm);
    proxy->worker_count = loop_worker_count(options->loop);
    proxy->workers = calloc(proxy->worker_count, sizeof(*proxy->workers));
    check(proxy->workers != NULL);
    places_add(proxy, &options->settings);
    proxy->series = series_table_new();
    uint32_t start_id = (uint32_t)random_u64();
    hex_encode(&start_id, sizeof(start_id), proxy->id_prefix);
    proxy->log_live = access_log_live_new(proxy->worker_count);
    struct proxy_access_log_file *file;
    enum err err = proxy_access_log_open(options->access_log_path, &file, ret_why);
    if (err == ERR_OK) {
        proxy->access_log = access_log_new(file, proxy->worker_count);
        if (proxy->access_log == NULL) {
            buf_append_cstr(ret_why, "the thread of the access log could not be started: raise the "
                                     "limit on tasks (ulimit -u, or pids.max of the cgroup)");
            err = ERR_LIMIT;
        }
    }
    if (err != ERR_OK) {
        proxy_free(proxy);
        return err;
    }
    proxy->options.settings.logs_access = options->access_log_path != NULL;
    struct fill_options fill = {
        .loop = proxy->loop, .store = proxy->store, .on_invalidated = on_invalidated};
    proxy->fill_room = fill_room_new(&fill);
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        proxy_worker_init(proxy, i);
    }
    proxy->live.on_change = list_cache_apply_rules;
    live_start(proxy, pins_load(proxy));
    pins_room_new(proxy);
    *ret_proxy = proxy;
    return ERR_OK;
}

void proxy_free(struct proxy *proxy)
{
    if (proxy == NULL) {
        return;
    }
    if (proxy->pins != NULL) {
        pins_room_free(proxy);
    }
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        request_pool_free(&proxy->workers[i]);
        recent_free(proxy->workers[i].recent);
        bucket_counts_free(proxy->workers[i].bucket_counts);
        pass_doubt_free_all(&proxy->workers[i]);
        access_keys_unref(proxy->workers[i].access_keys);
        access_keys_unref(proxy->workers[i].known);
        list_cache_free(&proxy->workers[i]);
        readahead_free(proxy->workers[i].readahead);
    }
    live_stop(proxy);
    series_table_free(proxy->series);
    fill_room_free(proxy->fill_room);
    access_log_free(proxy->access_log);
    access_log_live_free(proxy->log_live);
    places_free(proxy);
    free(proxy->workers);
    free(proxy);
}

void proxy_reopen_logs(struct proxy *proxy)
{
    access_log_reopen(proxy->access_log);
}

// --- new keys ------------------------------------------------------------------------------------

// In two rounds, because of writes in flight: first every worker learns the new realms, then the
// first worker admits requests by the new keys. So a write that ends after a run was stored in a
// new realm knows that realm (pass_keys.c), wherever the write ends.
struct reload {
    struct proxy *proxy;
    struct access_keys *access_keys;
    uint64_t number;       // reloads may overtake one another in their second round
    _Atomic unsigned left; // workers that have yet to take part in this round
};

struct reload_message {
    struct message message;
    struct reload *reload;
};

static void reload_round(struct reload *reload,
                         void (*deliver)(struct worker *to, struct message *message))
{
    struct proxy *proxy = reload->proxy; // the last message may be the end of the reload
    atomic_store(&reload->left, proxy->worker_count);
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        struct reload_message *m = calloc(1, sizeof(*m));
        check(m != NULL);
        m->message.deliver = deliver;
        m->reload = reload;
        mailbox_send_from_any_thread(proxy->workers[i].worker, &m->message);
    }
}

// Takes the message; NULL unless this worker is the last one of the round.
static struct reload *reload_take(struct message *message, struct access_keys **held,
                                  uint64_t *held_number)
{
    struct reload_message *m = container_of(message, struct reload_message, message);
    struct reload *reload = m->reload;
    free(m);
    if (reload->number > *held_number) {
        access_keys_unref(*held);
        *held = access_keys_ref(reload->access_keys);
        *held_number = reload->number;
    }
    return atomic_fetch_sub(&reload->left, 1) == 1 ? reload : NULL;
}

static void on_use(struct worker *to, struct message *message)
{
    struct proxy_worker *pw = proxy_worker_of(to);
    struct reload *last = reload_take(message, &pw->access_keys, &pw->access_keys_number);
    if (last != NULL) {
        access_keys_unref(last->access_keys);
        free(last);
    }
}

static void on_known(struct worker *to, struct message *message)
{
    struct proxy_worker *pw = proxy_worker_of(to);
    struct reload *last = reload_take(message, &pw->known, &pw->known_number);
    if (last != NULL) {
        reload_round(last, on_use);
    }
}

void proxy_set_access_keys(struct proxy *proxy, struct access_keys *access_keys)
{
    struct reload *reload = calloc(1, sizeof(*reload));
    check(reload != NULL);
    reload->proxy = proxy;
    reload->access_keys = access_keys_ref(access_keys);
    reload->number = ++proxy->reloads;
    reload_round(reload, on_known);
}

static void on_set(void *ctx)
{
    check(sem_post(ctx) == 0);
}

void proxy_set(struct proxy *proxy, const struct proxy_settings *settings,
               struct proxy_access_log_file *log_file, sem_t *told)
{
    if (log_file != NULL) {
        access_log_switch(proxy->access_log, log_file);
    }
    places_add(proxy, settings); // before anybody reads or writes there
    live_publish(proxy, settings, NULL, on_set, told);
}
