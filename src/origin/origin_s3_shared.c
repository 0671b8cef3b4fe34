// SPDX-License-Identifier: Apache-2.0
// State that the calls of the `s3://` driver share: the regions of buckets, and each worker's pools
// of connections. Each set of credentials has a pool of its own. In one pool, libcurl would reuse a
// connection for requests with different Authorization.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "origin/origin_s3_private.h"

// --- Regions -------------------------------------------------------------------------------------

#define REGION_OF_ROW 0xffu

static uint64_t row_of_bucket(struct span bucket)
{
    return hash64(bucket.ptr, bucket.len, 0) & ~(uint64_t)REGION_OF_ROW;
}

struct span origin_s3_region_of(const struct origin_worker *ow, struct span bucket, bool *ret_known)
{
    struct origin_s3_state *state = origin_s3_state_of(ow);
    uint64_t wanted = row_of_bucket(bucket), row;
    for (unsigned i = 0;
         i < ORIGIN_S3_REGIONS_MAX && (row = atomic_load(&state->bucket_regions[i])) != 0; i++) {
        if ((row & ~(uint64_t)REGION_OF_ROW) == wanted) {
            *ret_known = true;
            return span_from_cstr(atomic_load(&state->region_names[(row & REGION_OF_ROW) - 1]));
        }
    }
    *ret_known = state->region_is_fixed;
    return span_from_cstr(state->region);
}

bool origin_s3_region_is_valid(struct span region)
{
    for (size_t i = 0; i < region.len; i++) {
        char c = region.ptr[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
            c != '-') {
            return false;
        }
    }
    return region.len > 0 && region.len <= ORIGIN_S3_REGION_MAX;
}

// Returns the index of the region in region_names plus 1, and adds a new region. Returns 0 if the
// table is full.
static unsigned region_number(struct origin_s3_state *state, struct span region)
{
    char *copy = strndup(region.ptr, region.len);
    check(copy != NULL);
    unsigned number = 0;
    for (unsigned i = 0; i < ORIGIN_S3_REGION_NAMES_MAX && number == 0; i++) {
        char *name = NULL;
        if (atomic_compare_exchange_strong(&state->region_names[i], &name, copy)) {
            return i + 1;
        }
        number = span_equal_cstr(region, name) ? i + 1 : 0;
    }
    free(copy);
    return number;
}

void origin_s3_region_learn(struct origin_worker *ow, struct span bucket, struct span region)
{
    struct origin_s3_state *state = origin_s3_state_of(ow);
    unsigned number =
        origin_s3_region_is_valid(region) && bucket.len > 0 ? region_number(state, region) : 0;
    if (number == 0) {
        return;
    }
    uint64_t row = row_of_bucket(bucket), there;
    for (unsigned i = 0; i < ORIGIN_S3_REGIONS_MAX; i++) {
        there = 0;
        if (atomic_compare_exchange_strong(&state->bucket_regions[i], &there, row | number)) {
            return;
        }
        if ((there & ~(uint64_t)REGION_OF_ROW) == row) {
            atomic_store(&state->bucket_regions[i], row | number);
            return;
        }
    }
    unsigned oldest = atomic_fetch_add(&state->region_next, 1) % ORIGIN_S3_REGIONS_MAX;
    atomic_store(&state->bucket_regions[oldest], row | number);
}

// --- Stores that decompress ----------------------------------------------------------------------

void origin_s3_unpacks_learn(struct origin_worker *ow, const struct headers *answer)
{
    if (!origin_s3_unpacks(ow) &&
        headers_count(answer, SPAN("x-goog-stored-content-encoding")) > 0) {
        atomic_store(&origin_s3_state_of(ow)->unpacks, true);
    }
}

// --- Connections ---------------------------------------------------------------------------------

// Creates the pool if there is none. Gives it the origin's new settings if these have changed.
static void pool_refresh(struct origin_worker *ow, struct origin_s3_pool *pool)
{
    struct origin *origin = ow->origin;
    // Read first: settings that change later have another number.
    unsigned number = atomic_load(&origin->live.number);
    if (pool->pool != NULL && pool->number == number) {
        return;
    }
    check(pthread_mutex_lock(&origin->live.lock) == 0);
    struct transfer_pool_options options = {
        .max_connections = ow->slots_max,
        .connect_timeout_ms = origin->live.connect_timeout_ms,
        .first_byte_timeout_ms = origin->live.first_byte_timeout_ms,
        .idle_timeout_ms = origin->live.idle_timeout_ms,
        .keepalive_ms = origin->live.keepalive_ms,
        .ca_file = origin->live.ca_file,
        .proxy = origin_s3_state_of(ow)->proxy,
        .deny_link_local = true,
    };
    if (pool->pool == NULL) {
        pool->pool = transfer_pool_new(ow->w, &options);
    } else {
        transfer_pool_set(pool->pool, &options);
    }
    check(pthread_mutex_unlock(&origin->live.lock) == 0);
    pool->number = number;
}

static void pool_free_later(void *ptr)
{
    transfer_pool_free(ptr);
}

struct origin_s3_pool *origin_s3_pool_enter(struct origin_worker *ow,
                                            const struct sigv4_credentials *credentials)
{
    struct origin_s3_part *part = ow->driver_state;
    struct span key = credentials != NULL ? credentials->access_key : (struct span){NULL, 0};
    struct origin_s3_pool *found = NULL, *oldest = NULL;
    if (key.len >= sizeof(part->pools[0].access_key)) {
        return NULL;
    }
    // Only the first entry is for the origin's own credentials. The others serve changing sets.
    for (unsigned i = 0; i < ORIGIN_S3_POOLS_MAX && found == NULL; i++) {
        struct origin_s3_pool *pool = &part->pools[i];
        if (pool->pool != NULL
                ? span_equal_cstr(key, pool->access_key) && (i == 0) == (key.len == 0)
                : i == 0 && key.len == 0) {
            found = pool;
        } else if (i > 0 && pool->use_count == 0 &&
                   (oldest == NULL || pool->used_at_us < oldest->used_at_us)) {
            oldest = pool;
        }
    }
    if (found == NULL) {
        if (oldest == NULL) {
            return NULL;
        }
        if (oldest->pool != NULL) {
            worker_free_later(ow->w, pool_free_later, oldest->pool);
        }
        memset(oldest, 0, sizeof(*oldest));
        if (key.len > 0) {
            memcpy(oldest->access_key, key.ptr, key.len);
        }
        found = oldest;
    }
    pool_refresh(ow, found);
    found->use_count++;
    found->used_at_us = clock_monotonic_us();
    return found;
}

static void pool_give_back(struct origin_worker *ow, struct origin_s3_pool *pool)
{
    if (pool->pool != NULL && pool->use_count == 0) {
        worker_free_later(ow->w, pool_free_later, pool->pool);
        pool->pool = NULL;
    }
}

void origin_s3_pool_leave(struct origin_worker *ow, struct origin_s3_pool *pool)
{
    check(pool->use_count > 0);
    pool->use_count--;
    if (ow->rests && !atomic_load(&origin_s3_state_of(ow)->is_stopping)) {
        pool_give_back(ow, pool);
    }
}

void origin_s3_rest(struct origin_worker *ow)
{
    struct origin_s3_part *part = ow->driver_state;
    for (unsigned i = 0; i < ORIGIN_S3_POOLS_MAX; i++) {
        pool_give_back(ow, &part->pools[i]);
    }
}

void origin_s3_stop(struct origin *origin)
{
    struct origin_s3_state *state = origin->driver_state;
    if (state == NULL) {
        return;
    }
    atomic_store(&state->is_stopping, true);
    for (unsigned i = 0; i < origin->worker_count; i++) {
        struct origin_s3_part *part = origin->workers[i].driver_state;
        for (unsigned p = 0; part != NULL && p < ORIGIN_S3_POOLS_MAX; p++) {
            transfer_pool_free(part->pools[p].pool);
            part->pools[p].pool = NULL;
        }
    }
}
