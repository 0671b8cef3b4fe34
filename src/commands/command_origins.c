// SPDX-License-Identifier: Apache-2.0
// The origins that a configuration names: the default one, and one for each bucket that has its own. Main
// thread, before loop_start().
#include "commands/command_origins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct origin_options command_origins_options(const struct config *c, unsigned connections)
{
    return (struct origin_options){
        .name = c->origin_endpoint,
        .endpoint = c->origin_endpoint,
        .region = strcmp(c->origin_region, "auto") == 0 ? NULL : c->origin_region,
        .addressing = (enum origin_addressing)c->origin_addressing,
        .credentials = (enum origin_credentials_source)c->credentials_source,
        .access_key_file = c->credentials_access_key_file,
        .secret_key_file = c->credentials_secret_key_file,
        .session_token_file = c->credentials_session_token_file,
        .ca_file = c->origin_ca_file,
        .connections = connections,
        .keepalive_ms = c->origin_keepalive_ms,
        .connect_timeout_ms = c->origin_connect_timeout_ms,
        .first_byte_timeout_ms = c->origin_first_byte_timeout_ms,
        .idle_timeout_ms = c->origin_idle_timeout_ms,
        .retries = c->origin_retries,
        .retry_budget_percent = c->origin_retry_budget_percent,
        .probe = c->origin_probe,
    };
}

static bool bucket_has_own_origin(const struct config_bucket *b)
{
    return b->kind == CONFIG_BUCKET_DIRECTORY || b->endpoint != NULL || b->region != NULL ||
           b->has_addressing || b->anonymous || b->access_key_file != NULL;
}

bool command_origins_url(const struct config *c, const char *endpoint,
                         char ret_url[COMMAND_ORIGINS_URL_MAX])
{
    static const char mark[] = "{region}";
    const char *at = strstr(endpoint, mark), *region = c->origin_region;
    if (strncmp(endpoint, "dir:", 4) == 0) {
        return false;
    }
    if (strcmp(region, "auto") == 0) {
        region = getenv("AWS_REGION") != NULL ? getenv("AWS_REGION") : getenv("AWS_DEFAULT_REGION");
        region = region != NULL && region[0] != '\0' ? region : "us-east-1";
    }
    if (at == NULL) {
        (void)snprintf(ret_url, COMMAND_ORIGINS_URL_MAX, "%s", endpoint);
    } else {
        (void)snprintf(ret_url, COMMAND_ORIGINS_URL_MAX, "%.*s%s%s", (int)(at - endpoint), endpoint,
                       region, at + sizeof(mark) - 1);
    }
    return true;
}

// dir:/data/set becomes the origin dir:/data with the bucket "set".
static const char *bucket_directory_split(const struct config_bucket *b, char *ret_endpoint,
                                          size_t size)
{
    const char *slash = strrchr(b->directory, '/');
    int parent_len = slash == b->directory ? 1 : (int)(slash - b->directory);
    (void)snprintf(ret_endpoint, size, "dir:%.*s", parent_len, b->directory);
    return slash + 1;
}

static void bucket_credentials(const struct config_bucket *b, struct origin_options *options)
{
    if (b->anonymous) {
        options->credentials = ORIGIN_CREDENTIALS_ANONYMOUS;
    } else if (b->access_key_file != NULL) {
        options->credentials = ORIGIN_CREDENTIALS_CONFIG;
        options->access_key_file = b->access_key_file;
        options->secret_key_file = b->secret_key_file;
        options->session_token_file = b->session_token_file;
    }
}

static enum err open_bucket(struct command_origins *o, const struct config_bucket *b,
                            struct origin_options options, struct loop *loop,
                            struct proxy_bucket *ret_bucket, struct buf *ret_why)
{
    char endpoint[4096], name[8192];
    ret_bucket->origin_bucket = b->origin_bucket != NULL ? b->origin_bucket : b->name;
    if (b->kind == CONFIG_BUCKET_DIRECTORY) {
        ret_bucket->origin_bucket = bucket_directory_split(b, endpoint, sizeof(endpoint));
        options.endpoint = endpoint;
    } else if (b->endpoint != NULL) {
        options.endpoint = b->endpoint;
    }
    if (b->region != NULL) {
        options.region = b->region;
    }
    if (b->has_addressing) {
        options.addressing = (enum origin_addressing)b->addressing;
    }
    bucket_credentials(b, &options);
    (void)snprintf(name, sizeof(name), "%s#%s", options.endpoint, b->name);
    options.name = name;
    enum err err = origin_new(&options, loop, &o->origins[o->origin_count], ret_why);
    if (err == ERR_OK) {
        ret_bucket->origin = o->origins[o->origin_count++];
    }
    return err;
}

enum err command_origins_open(const struct config *c, unsigned connections, struct loop *loop,
                              struct command_origins *o, struct buf *ret_why)
{
    *o = (struct command_origins){.origins = calloc(c->bucket_count + 1, sizeof(*o->origins)),
                                  .buckets = calloc(c->bucket_count + 1, sizeof(*o->buckets))};
    check(o->origins != NULL && o->buckets != NULL);
    struct origin_options options = command_origins_options(c, connections);
    enum err err = origin_new(&options, loop, &o->origins[0], ret_why);
    if (err != ERR_OK) {
        return err;
    }
    o->origin_count = 1;
    for (unsigned i = 0; i < c->bucket_count && err == ERR_OK; i++) {
        const struct config_bucket *b = &c->buckets[i];
        o->buckets[i].name = b->name;
        if (bucket_has_own_origin(b)) {
            err = open_bucket(o, b, options, loop, &o->buckets[i], ret_why);
        } else {
            o->buckets[i].origin = o->origins[0];
            o->buckets[i].origin_bucket = b->origin_bucket != NULL ? b->origin_bucket : b->name;
        }
    }
    return err;
}

enum err command_origins_update(const struct config *first, const struct config *c,
                                struct origin *const *origins, struct origin_update **ret_updates,
                                struct buf *ret_why)
{
    struct origin_options by_default = command_origins_options(c, 0);
    by_default.credentials = (enum origin_credentials_source)first->credentials_source;
    unsigned count = 1;
    enum err err = origin_update_new(origins[0], &by_default, &ret_updates[0], ret_why);
    for (unsigned i = 0; i < first->bucket_count && err == ERR_OK; i++) {
        struct origin_options options = by_default;
        bucket_credentials(&first->buckets[i], &options);
        if (bucket_has_own_origin(&first->buckets[i])) {
            err = origin_update_new(origins[count], &options, &ret_updates[count], ret_why);
            count++;
        }
    }
    return err;
}

// Without labels: an endpoint is a setting, and the metrics are for everybody. Rows of what nobody knows
// are left out, so that no alarm goes by them.
void command_origins_metrics(struct origin *const *origins, unsigned count, struct buf *out)
{
    int64_t skew_s = 0, expire_s = 0;
    bool has_skew = false;
    for (unsigned i = 0; i < count; i++) {
        struct origin_times times;
        origin_times(origins[i], &times);
        has_skew = has_skew || times.has_skew;
        skew_s = llabs(times.skew_s) > llabs(skew_s) ? times.skew_s : skew_s;
        if (times.credentials_expire_s != 0 &&
            (expire_s == 0 || times.credentials_expire_s < expire_s)) {
            expire_s = times.credentials_expire_s;
        }
    }
    buf_append_cstr(out,
                    "# HELP forebay_clock_skew_seconds an origin's clock less ours, by the Date "
                    "of its last answer; of several origins, the one farthest off\n"
                    "# TYPE forebay_clock_skew_seconds gauge\n");
    if (has_skew) {
        buf_printf(out, "forebay_clock_skew_seconds %lld\n", (long long)skew_s);
    }
    buf_append_cstr(out,
                    "# HELP forebay_credentials_expiry_timestamp_seconds when the credentials for "
                    "an origin expire that do so first\n"
                    "# TYPE forebay_credentials_expiry_timestamp_seconds gauge\n");
    if (expire_s != 0) {
        buf_printf(out, "forebay_credentials_expiry_timestamp_seconds %lld\n", (long long)expire_s);
    }
}
