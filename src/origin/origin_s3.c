// SPDX-License-Identifier: Apache-2.0
// Opens and frees an origin of the `s3://` driver. origin_s3_shared.c has the state that its calls
// share, and origin_s3_call.c makes the calls.
#include <stdlib.h>
#include <string.h>

#include "origin/origin_s3_private.h"

#define REGION_DEFAULT "us-east-1"

// --- Life cycle ----------------------------------------------------------------------------------

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
    free(state->proxy);
    free(state);
    origin->driver_state = NULL;
}

const struct origin_driver origin_s3_driver = {
    .capabilities = {.relays_reads = true,
                     .has_parts = true,
                     .has_checksums = true,
                     .is_remote = true},
    .fetch_start = origin_s3_fetch_start,
    .relay_start = origin_s3_relay_start,
    .rest = origin_s3_rest,
    .stop = origin_s3_stop,
    .free = origin_s3_free,
};

static bool name_unpacks(const struct origin_s3_endpoint *endpoint)
{
    struct span host = span_from_cstr(endpoint->host);
    host.len = span_find(host, ':');
    return span_ends_with(host, SPAN("storage.googleapis.com")) ||
           span_ends_with(host, SPAN(".r2.cloudflarestorage.com"));
}

// Returns the region. It comes from the first of these that has a valid one: configuration,
// endpoint, environment or profile, credentials. Otherwise it is the default.
static const char *choose_region(const struct origin *origin, const char *client_region,
                                 const struct credentials_set *set)
{
    const struct origin_s3_state *state = origin->driver_state;
    const char *candidates[] = {state->region_is_fixed ? origin->options.region : NULL,
                                state->endpoint.default_region, client_region,
                                set != NULL ? set->region : NULL};
    for (size_t i = 0; i < ARRAY_LEN(candidates); i++) {
        if (credentials_text_is_set(candidates[i]) &&
            origin_s3_region_is_valid(span_from_cstr(candidates[i]))) {
            return candidates[i];
        }
    }
    return REGION_DEFAULT;
}

// Returns a copy of the text, which the caller owns, and frees the buffer.
static char *text_take(struct buf *text)
{
    char *copy = strdup(buf_cstr(text));
    check(copy != NULL);
    buf_done(text);
    return copy;
}

static void find_place(struct origin *origin, const struct origin_s3_state *state)
{
    struct buf text;
    buf_init(&text, 4096);
    origin_s3_endpoint_place(&state->endpoint, state->region, &text);
    origin->place = text_take(&text);
}

// Sets the names for cache keys and for messages to people. Both end in the bucket, because it
// distinguishes origins.
static void find_names(struct origin *origin, const struct origin_s3_state *state)
{
    struct buf shown;
    buf_init(&shown, 8192);
    origin_s3_endpoint_show(&state->endpoint, span_from_cstr(state->region), &shown);
    bool is_one_store = origin_s3_endpoint_is_one_store(&state->endpoint, state->region);
    origin->name =
        origin_name_at(origin, is_one_store ? origin->options.endpoint : buf_cstr(&shown));
    origin->shown = origin_name_at(origin, buf_cstr(&shown));
    origin->name_was_shared =
        state->endpoint.is_aws && origin_s3_endpoint_has_region(&state->endpoint);
    buf_done(&shown);
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
    if (state->proxy != NULL && state->endpoint.is_https) {
        buf_printf(&text, ", proxy: %s", origin->options.proxy);
    }
    origin->description = text_take(&text);
}

static struct credentials_options credentials_options_of(struct origin *origin,
                                                         const struct origin_options *options,
                                                         const char *region)
{
    const struct origin_s3_state *state = origin->driver_state;
    return (struct credentials_options){.source = options->credentials,
                                        .access_key_file = options->access_key_file,
                                        .secret_key_file = options->secret_key_file,
                                        .session_token_file = options->session_token_file,
                                        .ca_file = options->ca_file,
                                        .proxy = state->proxy,
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
    const char *setting = origin_settings_name(&options->settings, ORIGIN_SETTING_ENDPOINT);
    enum err err = origin_s3_endpoint_parse(setting, options->endpoint, &state->endpoint, ret_why);
    if (err == ERR_OK) {
        err = origin_proxy_url(options->proxy, options->proxy_auth_file, &state->proxy, ret_why);
    }
    if (err != ERR_OK) {
        return err;
    }
    atomic_init(&state->unpacks, name_unpacks(&state->endpoint));
    state->region_is_fixed =
        credentials_text_is_set(options->region) && strcmp(options->region, "auto") != 0;
    if (state->region_is_fixed && !origin_s3_region_is_valid(span_from_cstr(options->region))) {
        buf_printf(ret_why, "%s: %s is not the name of a region", options->region,
                   origin_settings_name(&options->settings, ORIGIN_SETTING_REGION));
        return ERR_INVALID;
    }
    struct origin_client client;
    origin_client_read(&client);
    struct credentials_set *set = NULL;
    struct credentials_options credentials =
        credentials_options_of(origin, options, choose_region(origin, client.region.text, NULL));
    err = credentials_chain_load(&credentials, &set, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    state->region = strdup(choose_region(origin, client.region.text, set));
    check(state->region != NULL);
    credentials.region = state->region;
    find_place(origin, state);
    describe(origin, state, set->source);
    find_names(origin, state);
    state->renewer = credentials_renewer_new(origin->loop, &credentials, &set);
    for (unsigned i = 0; i < origin->worker_count; i++) {
        origin->workers[i].driver_state = calloc(1, sizeof(struct origin_s3_part));
        check(origin->workers[i].driver_state != NULL);
    }
    return ERR_OK;
}
