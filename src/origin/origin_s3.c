// SPDX-License-Identifier: Apache-2.0
// The state of the `s3://` driver: endpoint, credentials, the regions of buckets, and each worker's
// pools of connections. Each set of credentials has its own pool, because libcurl would share a
// pooled connection between requests of different Authorization. origin_s3_call.c makes the calls.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "origin/origin_s3_private.h"

#define REGION_DEFAULT "us-east-1"

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

// Returns the number of the region's name, from 1; 0 if the origin names more regions than there is
// room for.
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

static bool name_unpacks(const struct origin_s3_endpoint *endpoint)
{
    struct span host = span_from_cstr(endpoint->host);
    host.len = span_find(host, ':');
    return span_ends_with(host, SPAN("storage.googleapis.com")) ||
           span_ends_with(host, SPAN(".r2.cloudflarestorage.com"));
}

void origin_s3_unpacks_learn(struct origin_worker *ow, const struct headers *answer)
{
    if (!origin_s3_unpacks(ow) &&
        headers_count(answer, SPAN("x-goog-stored-content-encoding")) > 0) {
        atomic_store(&origin_s3_state_of(ow)->unpacks, true);
    }
}

// --- Connections ---------------------------------------------------------------------------------

// Creates the pool if there is none, and again if the origin's settings have changed.
static void pool_refresh(struct origin_worker *ow, struct origin_s3_pool *pool)
{
    struct origin *origin = ow->origin;
    unsigned number = atomic_load(&origin->live.number); // a later change increments it again
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
    // The first entry is for the origin's own credentials; the others are reused.
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

static void origin_s3_rest(struct origin_worker *ow)
{
    struct origin_s3_part *part = ow->driver_state;
    for (unsigned i = 0; i < ORIGIN_S3_POOLS_MAX; i++) {
        pool_give_back(ow, &part->pools[i]);
    }
}

// --- Life cycle ----------------------------------------------------------------------------------

// Ends all transfers; the calls stay until they are abandoned.
static void origin_s3_stop(struct origin *origin)
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

static void origin_s3_free(struct origin *origin)
{
    struct origin_s3_state *state = origin->driver_state;
    if (state == NULL) {
        return;
    }
    for (unsigned i = 0; i < origin->worker_count; i++) {
        free(origin->workers[i].driver_state);
        origin->workers[i].driver_state = NULL;
    }
    for (unsigned i = 0; i < ORIGIN_S3_REGION_NAMES_MAX; i++) {
        free(atomic_load(&state->region_names[i]));
    }
    credentials_renewer_free(state->renewer);
    origin_s3_endpoint_done(&state->endpoint);
    free(state->region);
    free(state);
    origin->driver_state = NULL;
}

const struct origin_driver origin_s3_driver = {
    .capabilities = {.relays_reads = true,
                     .has_parts = true,
                     .has_checksums = true,
                     .is_remote = true},
    .fetch_start = origin_s3_fetch_start,
    .fetch_pause = origin_s3_call_pause,
    .fetch_resume = origin_s3_call_resume,
    .relay_start = origin_s3_relay_start,
    .relay_pause = origin_s3_call_pause,
    .relay_resume = origin_s3_call_resume,
    .relay_resume_upload = origin_s3_call_resume_upload,
    .call_cancel = origin_s3_call_cancel,
    .rest = origin_s3_rest,
    .stop = origin_s3_stop,
    .call_abandon = origin_s3_call_abandon,
    .free = origin_s3_free,
};

static bool is_set(const char *text)
{
    return text != NULL && text[0] != '\0';
}

// Returns the region from the first of these that has one: configuration, endpoint, environment,
// credentials. Else the default.
static const char *choose_region(const struct origin *origin, const struct origin_s3_state *state,
                                 const struct credentials_set *set)
{
    const char *candidates[] = {state->region_is_fixed ? origin->options.region : NULL,
                                state->endpoint.default_region, getenv("AWS_REGION"),
                                getenv("AWS_DEFAULT_REGION"), set != NULL ? set->region : NULL};
    for (size_t i = 0; i < ARRAY_LEN(candidates); i++) {
        if (is_set(candidates[i]) && origin_s3_region_is_valid(span_from_cstr(candidates[i]))) {
            return candidates[i];
        }
    }
    return REGION_DEFAULT;
}

static void find_place(struct origin *origin, const struct origin_s3_state *state)
{
    struct buf text;
    buf_init(&text, 4096);
    origin_s3_endpoint_place(&state->endpoint, state->region, &text);
    origin->place = strdup(buf_cstr(&text));
    check(origin->place != NULL);
    buf_done(&text);
}

// Sets the origin's name for people: the region replaces "{region}". The rest of the name
// distinguishes origins.
static void show(struct origin *origin, const struct origin_s3_state *state)
{
    static const char mark[] = "{region}";
    const char *name = origin->options.name, *at = strstr(name, mark);
    if (at != NULL) {
        struct buf text;
        buf_init(&text, 16384);
        buf_append(&text, name, (size_t)(at - name));
        buf_append_cstr(&text, state->region);
        buf_append_cstr(&text, at + sizeof(mark) - 1);
        origin->shown = strdup(buf_cstr(&text));
        check(origin->shown != NULL);
        buf_done(&text);
    }
}

static void describe(struct origin *origin, const struct origin_s3_state *state, const char *source)
{
    struct buf text;
    bool is_virtual =
        origin_s3_endpoint_is_virtual(&state->endpoint, origin->options.addressing, SPAN("bucket"));
    buf_init(&text, 4096);
    buf_append_cstr(&text, "s3 ");
    origin_s3_endpoint_show(&state->endpoint, span_from_cstr(state->region), &text);
    buf_printf(&text, " region %s%s %s, credentials: %s", state->region,
               state->region_is_fixed ? "" : " (auto)",
               is_virtual ? "virtual-host-style" : "path-style", source);
    origin->description = strdup(buf_cstr(&text));
    check(origin->description != NULL);
    buf_done(&text);
}

static struct credentials_options credentials_options_of(struct origin *origin,
                                                         const struct origin_options *options,
                                                         const char *region)
{
    return (struct credentials_options){.source = options->credentials,
                                        .access_key_file = options->access_key_file,
                                        .secret_key_file = options->secret_key_file,
                                        .session_token_file = options->session_token_file,
                                        .ca_file = options->ca_file,
                                        .expires_at_s = &origin->credentials_expire_s,
                                        .region = region};
}

enum err origin_s3_credentials(struct origin *origin, const struct origin_options *options,
                               struct credentials_update **ret_update, struct buf *ret_why)
{
    struct origin_s3_state *state = origin->driver_state;
    struct credentials_options credentials = credentials_options_of(origin, options, state->region);
    return credentials_update_new(state->renewer, &credentials, ret_update, ret_why);
}

enum err origin_s3_open(struct origin *origin, struct buf *ret_why)
{
    const struct origin_options *options = &origin->options;
    struct origin_s3_state *state = calloc(1, sizeof(*state));
    check(state != NULL);
    origin->driver_state = state;
    enum err err = origin_s3_endpoint_parse(options->endpoint, &state->endpoint, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    atomic_init(&state->unpacks, name_unpacks(&state->endpoint));
    state->region_is_fixed = is_set(options->region) && strcmp(options->region, "auto") != 0;
    if (state->region_is_fixed && !origin_s3_region_is_valid(span_from_cstr(options->region))) {
        buf_printf(ret_why, "%s: origin.region is not the name of a region", options->region);
        return ERR_INVALID;
    }
    struct credentials_set *set = NULL;
    struct credentials_options credentials =
        credentials_options_of(origin, options, choose_region(origin, state, NULL));
    err = credentials_chain_load(&credentials, &set, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    state->region = strdup(choose_region(origin, state, set));
    check(state->region != NULL);
    credentials.region = state->region;
    find_place(origin, state);
    describe(origin, state, set->source);
    show(origin, state);
    state->renewer = credentials_renewer_new(origin->loop, &credentials, &set);
    for (unsigned i = 0; i < origin->worker_count; i++) {
        origin->workers[i].driver_state = calloc(1, sizeof(struct origin_s3_part));
        check(origin->workers[i].driver_state != NULL);
    }
    return ERR_OK;
}
