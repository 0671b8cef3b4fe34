// SPDX-License-Identifier: Apache-2.0
// Settings that may change while the process runs: rules of the configuration and by command,
// buckets, and the rest of proxy_settings. Each worker has a copy of its own, which a message
// delivers. A request, an object of a warm job and a question of an operator keep the copy that
// they began with. The last of them to end frees that copy. So the workers share only the immutable
// table of pins, and a request's settings do not change while it runs.
#include "proxy/core/core.h"

#include <stdlib.h>
#include <string.h>

#define LIVE_MAX ((size_t)64 << 20) // enough for a configuration file of the maximum size, 1 MiB

static void *copy_room(struct arena *arena, size_t count, size_t size)
{
    void *room = arena_alloc(arena, count * size + 1);
    check(room != NULL);
    return room;
}

static const char *copy_text(struct arena *arena, const char *text)
{
    char *copy = text != NULL ? arena_cstr(arena, span_from_cstr(text)) : NULL;
    check(text == NULL || copy != NULL);
    return copy;
}

static const char *const *copy_texts(struct arena *arena, const char *const *texts, unsigned count)
{
    const char **copies = copy_room(arena, count, sizeof(*copies));
    for (unsigned i = 0; i < count; i++) {
        copies[i] = copy_text(arena, texts[i]);
    }
    return copies;
}

static const struct proxy_bucket *copy_buckets(struct arena *arena,
                                               const struct proxy_settings *settings)
{
    struct proxy_bucket *copies = copy_room(arena, settings->bucket_count, sizeof(*copies));
    for (unsigned i = 0; i < settings->bucket_count; i++) {
        const struct proxy_bucket *from = &settings->buckets[i];
        copies[i] = (struct proxy_bucket){.name = copy_text(arena, from->name),
                                          .origin = from->origin,
                                          .origin_bucket = copy_text(arena, from->origin_bucket)};
    }
    return copies;
}

// Returns a copy of the settings with one reference.
static struct live *live_new(const struct proxy_settings *settings, struct pins_table *pins)
{
    struct live *live = calloc(1, sizeof(*live));
    check(live != NULL && settings->rule_count > 0);
    struct arena *arena = live->arena = arena_new(LIVE_MAX);
    struct proxy_rule *rules = copy_room(arena, settings->rule_count, sizeof(*rules));
    struct span *domains = copy_room(arena, settings->domain_count, sizeof(*domains));
    live->refs = 1;
    live->pins = pins != NULL ? pins_table_ref(pins) : NULL;
    live->settings = *settings;
    for (unsigned i = 0; i < settings->rule_count; i++) {
        rules[i] = settings->rules[i];
        rules[i].match = copy_text(arena, rules[i].match);
        rules[i].where = copy_text(arena, rules[i].where);
    }
    live->settings.rules = rules;
    live->settings.buckets = copy_buckets(arena, settings);
    live->settings.domains = copy_texts(arena, settings->domains, settings->domain_count);
    live->settings.allowed_origins =
        copy_texts(arena, settings->allowed_origins, settings->allowed_origin_count);
    for (unsigned i = 0; i < settings->domain_count; i++) {
        domains[i] = span_from_cstr(live->settings.domains[i]);
    }
    live->domains = (struct s3_domains){domains, settings->domain_count};
    check(live->settings.rules[settings->rule_count - 1].match != NULL);
    return live;
}

void live_unref(struct live *live)
{
    check(live == NULL || live->refs > 0);
    if (live != NULL && --live->refs == 0) {
        pins_table_unref(live->pins);
        arena_free(live->arena);
        free(live);
    }
}

// --- changes -------------------------------------------------------------------------------------

struct live_round {
    struct proxy *proxy;
    void (*done)(void *ctx);
    void *ctx;
    atomic_uint left; // workers that have yet to receive their copy
};

static void on_live(struct worker *to, struct message *message)
{
    struct proxy_worker *pw = proxy_worker_of(to);
    struct live *live = container_of(message, struct live, message);
    struct live_round *round = live->round;
    check(round != NULL && live->refs == 1 && pw->live != NULL);
    live_unref(pw->live);
    pw->live = live;
    round->proxy->live.on_change(pw);
    if (atomic_fetch_sub(&round->left, 1) == 1) {
        round->done(round->ctx);
        free(round);
    }
}

void live_publish(struct proxy *proxy, const struct proxy_settings *settings,
                  struct pins_table *pins, void (*done)(void *ctx), void *ctx)
{
    struct live_round *round = malloc(sizeof(*round));
    check(round != NULL);
    *round = (struct live_round){.proxy = proxy, .done = done, .ctx = ctx};
    atomic_init(&round->left, proxy->worker_count);
    pthread_mutex_lock(&proxy->live.lock);
    struct live *before = proxy->live.now;
    check(before != NULL && proxy->worker_count > 0);
    settings = settings != NULL ? settings : &before->settings;
    pins = pins != NULL ? pins : before->pins;
    proxy->live.now = live_new(settings, pins);
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        struct live *live = live_new(settings, pins);
        live->round = round;
        live->message.deliver = on_live;
        mailbox_send_from_any_thread(proxy->workers[i].worker, &live->message);
    }
    live_unref(before);
    pthread_mutex_unlock(&proxy->live.lock);
}

struct pins_table *live_pins(struct proxy *proxy)
{
    pthread_mutex_lock(&proxy->live.lock);
    struct pins_table *pins = pins_table_ref(proxy->live.now->pins);
    pthread_mutex_unlock(&proxy->live.lock);
    return pins;
}

void live_start(struct proxy *proxy, struct pins_table *pins)
{
    check(proxy->live.now == NULL);
    check(pthread_mutex_init(&proxy->live.lock, NULL) == 0);
    proxy->live.now = live_new(&proxy->options.settings, pins);
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        proxy->workers[i].live = live_new(&proxy->options.settings, pins);
    }
    pins_table_unref(pins);
}

void live_stop(struct proxy *proxy)
{
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        live_unref(proxy->workers[i].live);
    }
    if (proxy->live.now != NULL) {
        live_unref(proxy->live.now);
        check(pthread_mutex_destroy(&proxy->live.lock) == 0);
    }
}
