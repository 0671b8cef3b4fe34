// SPDX-License-Identifier: Apache-2.0
// The other names that copies of keys may be held under, in addition to the default origin's: each
// origin that a bucket has, or has had, of its own. A reload may give a bucket another origin and
// later the former one again. So copies under a name that is not in use must not miss a write to
// the same place. Settings only add places, which last as long as the process. The next process
// gives each origin that it does not know a name under which nothing is held (state_holder.c).
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
    if (places->items == NULL) { // all there may be, since others read while some are added
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
        check(has(places, bucket)); // a write must find it
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
