// SPDX-License-Identifier: Apache-2.0
// Settings that may change while the process runs: rules, buckets, and what else requests go by.
// Each worker has a copy of its own, which proxy_set() makes and a message brings; a request, an
// object of a warm job and a question of an operator hold the one that they began with, and with
// the last of them it is gone. So nothing is shared, and what a request goes by does not change
// under it.
#include "proxy/core/core.h"

#include <stdlib.h>
#include <string.h>

#define LIVE_MAX ((size_t)64 << 20) // a file of 1 MiB makes no more

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

struct live *live_new(const struct proxy_settings *settings)
{
    struct live *live = calloc(1, sizeof(*live));
    check(live != NULL && settings->rule_count > 0);
    struct arena *arena = live->arena = arena_new(LIVE_MAX);
    struct proxy_rule *rules = copy_room(arena, settings->rule_count, sizeof(*rules));
    struct span *domains = copy_room(arena, settings->domain_count, sizeof(*domains));
    live->refs = 1;
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
    return live;
}

void live_unref(struct live *live)
{
    if (live != NULL && --live->refs == 0) {
        arena_free(live->arena);
        free(live);
    }
}

struct origin *live_find_origin(const struct proxy *proxy, const struct live *live,
                                struct span bucket, struct span *ret_origin_bucket)
{
    const struct proxy_bucket *listed = live_bucket(live, bucket);
    *ret_origin_bucket = listed != NULL ? span_from_cstr(listed->origin_bucket) : bucket;
    return listed != NULL ? listed->origin : proxy->options.default_origin;
}
