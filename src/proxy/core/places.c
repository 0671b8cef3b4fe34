// SPDX-License-Identifier: Apache-2.0
// The names, other than the default origin's, under which copies of keys may be cached: each origin
// that the configuration gives, or once gave, to a bucket. A reload may give a bucket another
// origin and later the former one again. So a write must also invalidate copies under names that
// are not in use now. Settings only add places, and a place lasts as long as the process. If a
// later process knows an origin again that others before it did not know, it revalidates what is
// cached of it (state_holder.c).
#include "proxy/core/core.h"

#include <stdlib.h>
#include <string.h>

static bool has(const struct places *places, const struct proxy_bucket *bucket)
{
    check(bucket->origin != NULL && bucket->origin_bucket != NULL);
    unsigned count = atomic_load(&places->count);
    check(count <= PROXY_PLACES_MAX);
    for (unsigned i = 0; i < count; i++) {
        if (places->items[i].origin == bucket->origin &&
            strcmp(places->items[i].bucket, bucket->origin_bucket) == 0) {
            return true;
        }
    }
    return false;
}

void places_add(struct proxy *proxy, const struct proxy_settings *settings)
{
    struct places *places = &proxy->places;
    // Allocates the maximum count, because other threads read while places are added.
    if (places->items == NULL) {
        places->items = calloc(PROXY_PLACES_MAX, sizeof(*places->items));
        check(places->items != NULL);
    }
    for (unsigned i = 0; i < settings->bucket_count; i++) {
        const struct proxy_bucket *bucket = &settings->buckets[i];
        unsigned count = atomic_load(&places->count);
        if (bucket->origin == proxy->options.default_origin || has(places, bucket)) {
            continue;
        }
        check(count < PROXY_PLACES_MAX);
        places->items[count] =
            (struct place){.origin = bucket->origin, .bucket = strdup(bucket->origin_bucket)};
        check(places->items[count].bucket != NULL);
        atomic_store_explicit(&places->count, count + 1, memory_order_release);
        check(has(places, bucket)); // a write must find the place
    }
}

void places_free(struct proxy *proxy)
{
    check(places_count(proxy) == 0 || proxy->places.items != NULL);
    for (unsigned i = 0; i < places_count(proxy); i++) {
        free(proxy->places.items[i].bucket);
    }
    free(proxy->places.items);
}
