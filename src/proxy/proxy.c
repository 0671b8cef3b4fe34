// SPDX-License-Identifier: Apache-2.0
// Builds the room: tables copied from the options, one context per worker, the handler that http
// calls.

#include "proxy/pass_private.h"
#include "proxy/proxy_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void key_map_init(struct key_map *map)
{
    for (unsigned i = 0; i < PROXY_MAP_BUCKETS; i++) {
        list_init(&map->buckets[i]);
    }
    map->count = 0;
}

// --- keys between workers ------------------------------------------------------------------------

struct object_key *object_key_ref(struct object_key *key)
{
    atomic_fetch_add_explicit(&key->refs, 1, memory_order_relaxed);
    return key;
}

void object_key_unref(struct object_key *key)
{
    if (key != NULL && atomic_fetch_sub_explicit(&key->refs, 1, memory_order_acq_rel) == 1) {
        credentials_unref(key->table);
        free(key);
    }
}

struct proxy_worker *object_key_owner(const struct proxy_worker *pw, const struct object_key *key,
                                      uint64_t first_byte)
{
    uint64_t stripe = first_byte / PROXY_STRIPE_BYTES;
    return &pw->proxy->workers[(key->hash.lo + stripe) % pw->proxy->worker_count];
}

static char *key_copy(char *at, struct span from, struct span *ret)
{
    if (from.len > 0) {
        memcpy(at, from.ptr, from.len);
    }
    *ret = (struct span){at, from.len};
    return at + from.len;
}

const struct sigv4_credentials *request_origin_credentials(const struct request *r)
{
    const struct credentials_principal *p = r->principal.credentials;
    return p != NULL ? p->origin_credentials : NULL;
}

struct object_key *request_object_key(struct request *r)
{
    const struct credentials_principal *p = r->principal.credentials;
    struct span realm = p != NULL && p->realm.len > 0 ? p->realm : r->pw->proxy->realm;
    return request_object_key_in(r, r->origin, realm, r->origin_bucket, r->s3.key, r->rule);
}

static uint64_t origin_epoch(const struct request *r, const struct origin *origin,
                             struct span origin_bucket)
{
    return store_epoch(r->pw->store, span_from_cstr(origin_endpoint(origin)), origin_bucket);
}

uint64_t request_epoch(const struct request *r)
{
    return origin_epoch(r, r->origin, r->origin_bucket);
}

// The name that a key is held under: realm, origin and, once the bucket has one, its epoch, behind a
// byte that no name has.
static struct object_key *key_new(const struct proxy *proxy, struct span realm,
                                  struct origin *origin, struct span bucket, uint64_t epoch,
                                  struct span key)
{
    struct span name = span_from_cstr(origin_name(origin));
    char epoch_text[1 + 16 + 1];
    size_t epoch_len = 0;
    if (epoch > 0) {
        epoch_len = 1 + (size_t)snprintf(epoch_text + 1, sizeof(epoch_text) - 1, "%llx",
                                         (unsigned long long)epoch);
        epoch_text[0] = '\0';
    }
    size_t realm_len = realm.len + 1 + name.len + epoch_len;
    struct object_key *k = calloc(1, sizeof(*k) + realm_len + bucket.len + key.len);
    check(k != NULL);
    atomic_init(&k->refs, 1);
    char *at = (char *)(k + 1);
    struct span piece;
    k->realm = (struct span){at, realm_len};
    k->realm_own_len = realm.len;
    k->epoch = epoch;
    at = key_copy(at, realm, &piece);
    *at++ = '|';
    at = key_copy(at, name, &piece);
    at = key_copy(at, (struct span){epoch_text, epoch_len}, &piece);
    at = key_copy(at, bucket, &k->bucket);
    (void)key_copy(at, key, &k->key);
    k->origin = origin;
    k->hash = store_hash(proxy->store, k->realm, k->bucket, k->key);
    return k;
}

struct object_key *request_object_key_in(struct request *r, struct origin *origin,
                                         struct span realm, struct span bucket, struct span key,
                                         const struct proxy_rule *rule)
{
    struct object_key *k =
        key_new(r->pw->proxy, realm, origin, bucket, origin_epoch(r, origin, bucket), key);
    k->rule = rule;
    k->credentials = request_origin_credentials(r);
    k->table = k->credentials != NULL ? credentials_ref(r->principal.table) : NULL;
    return k;
}

static struct object_key *key_as(const struct proxy_worker *pw, const struct object_key *key,
                                 struct span realm, uint64_t epoch)
{
    struct object_key *k = key_new(pw->proxy, realm, key->origin, key->bucket, epoch, key->key);
    k->rule = key->rule;
    k->credentials = key->credentials;
    k->table = key->table != NULL ? credentials_ref(key->table) : NULL;
    return k;
}

struct object_key *object_key_in_realm(const struct proxy_worker *pw, const struct object_key *key,
                                       struct span realm)
{
    return key_as(pw, key, realm, key->epoch);
}

struct object_key *object_key_in_epoch(const struct proxy_worker *pw, const struct object_key *key,
                                       uint64_t epoch)
{
    struct span realm = {key->realm.ptr, key->realm_own_len};
    return key_as(pw, key, realm, epoch);
}

// --- build and tear down -------------------------------------------------------------------------

static void proxy_worker_init(struct proxy *proxy, unsigned index)
{
    struct proxy_worker *pw = &proxy->workers[index];
    pw->proxy = proxy;
    pw->store = proxy->store;
    pw->worker = loop_worker(proxy->loop, index);
    pw->index = index;
    key_map_init(&pw->fills);
    key_map_init(&pw->homes);
    key_map_init(&pw->bars);
    list_init(&pw->request_pool);
    if (proxy->options.credentials != NULL) {
        pw->credentials = credentials_ref(proxy->options.credentials);
        pw->known = credentials_ref(proxy->options.credentials);
    }
    worker_slot_set(pw->worker, WORKER_SLOT_PROXY, pw);
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
        homes_free(&proxy->workers[i]);
        bars_free(&proxy->workers[i]);
        credentials_unref(proxy->workers[i].credentials);
        credentials_unref(proxy->workers[i].known);
        list_cache_free(proxy->workers[i].list_cache);
        whole_sums_free(proxy->workers[i].whole_sums);
        for (unsigned j = 0; j < PROXY_DESCRIBED; j++) {
            store_object_unref(proxy->workers[i].described[j]);
        }
    }
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

// --- new keys ------------------------------------------------------------------------------------

// In two rounds, for the sake of writes that are under way: first every worker learns which realms
// there are, then the first one lets somebody in by them. So a write that ends after anything has
// been kept in a new realm knows of it (pass_keys.c), wherever it ends.
struct reload {
    struct proxy *proxy;
    struct credentials *credentials;
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
static struct reload *reload_take(struct message *message, struct credentials **held,
                                  uint64_t *held_number)
{
    struct reload_message *m = container_of(message, struct reload_message, message);
    struct reload *reload = m->reload;
    free(m);
    if (reload->number > *held_number) {
        credentials_unref(*held);
        *held = credentials_ref(reload->credentials);
        *held_number = reload->number;
    }
    return atomic_fetch_sub(&reload->left, 1) == 1 ? reload : NULL;
}

static void on_use(struct worker *to, struct message *message)
{
    struct proxy_worker *pw = proxy_worker_of(to);
    struct reload *last = reload_take(message, &pw->credentials, &pw->credentials_number);
    if (last != NULL) {
        credentials_unref(last->credentials);
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

void proxy_set_credentials(struct proxy *proxy, struct credentials *credentials)
{
    struct reload *reload = calloc(1, sizeof(*reload));
    check(reload != NULL);
    reload->proxy = proxy;
    reload->credentials = credentials_ref(credentials);
    reload->number = ++proxy->reloads;
    reload_round(reload, on_known);
}
