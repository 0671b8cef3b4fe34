// SPDX-License-Identifier: Apache-2.0
// Builds the room: tables copied from the options, one context per worker, the handler that http
// calls.

#include "base/random.h"
#include "proxy/pass_private.h"
#include "proxy/proxy_private.h"

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
    if (proxy->options.access_keys != NULL) {
        pw->access_keys = access_keys_ref(proxy->options.access_keys);
    }
    worker_slot_set(pw->worker, WORKER_SLOT_PROXY, pw);
}

static void on_invalidated(void *ctx, struct worker *w, const struct object_key *key)
{
    (void)ctx;
    list_cache_drop_key(proxy_worker_of(w), key);
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
    proxy->buckets = calloc(options->bucket_count + 1, sizeof(*proxy->buckets));
    proxy->rules = calloc(options->rule_count + 1, sizeof(*proxy->rules));
    proxy->domain_spans = calloc(options->domain_count + 1, sizeof(*proxy->domain_spans));
    proxy->workers = calloc(proxy->worker_count, sizeof(*proxy->workers));
    check(proxy->buckets != NULL && proxy->rules != NULL && proxy->domain_spans != NULL &&
          proxy->workers != NULL);
    for (unsigned i = 0; i < options->bucket_count; i++) {
        proxy->buckets[i] = options->buckets[i];
    }
    for (unsigned i = 0; i < options->rule_count; i++) {
        proxy->rules[i] = options->rules[i];
    }
    for (unsigned i = 0; i < options->domain_count; i++) {
        proxy->domain_spans[i] = span_from_cstr(options->domains[i]);
    }
    proxy->domains = (struct s3_domains){proxy->domain_spans, options->domain_count};
    uint32_t start_id = (uint32_t)random_u64();
    hex_encode(&start_id, sizeof(start_id), proxy->id_prefix);
    if (options->access_log_path != NULL) {
        enum err err = access_log_new(options, proxy->worker_count, &proxy->access_log, ret_why);
        if (err != ERR_OK) {
            proxy_free(proxy);
            return err;
        }
    }
    struct fill_options fill = {.loop = proxy->loop,
                                .store = proxy->store,
                                .hide_keys = options->log_keys != PROXY_LOG_KEYS_FULL,
                                .on_invalidated = on_invalidated};
    proxy->fill_room = fill_room_new(&fill);
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        proxy_worker_init(proxy, i);
    }
    *ret_proxy = proxy;
    return ERR_OK;
}

void proxy_free(struct proxy *proxy)
{
    if (proxy == NULL) {
        return;
    }
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        request_pool_free(&proxy->workers[i]);
        access_keys_unref(proxy->workers[i].access_keys);
        list_cache_free(proxy->workers[i].list_cache);
    }
    fill_room_free(proxy->fill_room);
    access_log_free(proxy->access_log);
    free(proxy->buckets);
    free(proxy->rules);
    free(proxy->domain_spans);
    free(proxy->workers);
    free(proxy);
}

void proxy_reopen_logs(struct proxy *proxy)
{
    if (proxy->access_log != NULL) {
        access_log_reopen(proxy->access_log);
    }
}

struct access_keys_message {
    struct message message;
    struct access_keys *access_keys;
};

static void on_access_keys(struct worker *to, struct message *message)
{
    struct access_keys_message *m = container_of(message, struct access_keys_message, message);
    struct proxy_worker *pw = proxy_worker_of(to);
    access_keys_unref(pw->access_keys);
    pw->access_keys = m->access_keys;
    free(m);
}

void proxy_set_access_keys(struct proxy *proxy, struct access_keys *access_keys)
{
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        struct access_keys_message *m = calloc(1, sizeof(*m));
        check(m != NULL);
        m->message.deliver = on_access_keys;
        m->access_keys = access_keys_ref(access_keys);
        mailbox_send_from_any_thread(proxy->workers[i].worker, &m->message);
    }
}
