// SPDX-License-Identifier: Apache-2.0
// Finds the settings that the AWS SDKs of this process's environment use for S3, by the rules of
// the SDKs: variables first, then the profile in the shared files.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "origin/credentials_chain.h"
#include "origin/origin.h"
#include "origin/origin_s3_private.h"
#include "origin/shared_profile.h"

// Reads the profile, or as much of it as can be read. A file that may not be read is an error of
// the keys, which credentials_chain_load() reports.
static void read_profile(struct shared_profile *p)
{
    struct buf why;
    buf_init(&why, 4096);
    (void)shared_profile_read(p, &why);
    buf_done(&why);
}

static bool is_true(struct span text)
{
    return span_equal_nocase(text, SPAN("true"));
}

// Returns true if the SDKs ignore all endpoints of variables and files.
static bool ignores(const struct shared_profile *p)
{
    const char *variable = getenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    struct span value;
    if (credentials_text_is_set(variable)) {
        return is_true(span_from_cstr(variable));
    }
    return shared_profile_value(p, "ignore_configured_endpoint_urls", &value) && is_true(value);
}

// Returns the first of the variables that is set, or NULL.
static const char *first_set(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (credentials_text_is_set(getenv(names[i]))) {
            return names[i];
        }
    }
    return NULL;
}

// Copies a value and where it comes from: a variable, or if that is NULL, the profile.
static void note(const struct shared_profile *p, struct span value, const char *variable,
                 const char *part, struct origin_client_value *ret_value)
{
    span_to_text(value, ret_value->text, sizeof(ret_value->text));
    if (variable != NULL) {
        (void)snprintf(ret_value->source, sizeof(ret_value->source), "env %s", variable);
        (void)snprintf(ret_value->word, sizeof(ret_value->word), "\"$%s\"", variable);
    } else {
        (void)snprintf(ret_value->source, sizeof(ret_value->source), "%sprofile %.*s", part,
                       (int)min_u64(p->name.len, 200), p->name.ptr);
        (void)snprintf(ret_value->word, sizeof(ret_value->word), "URL");
    }
}

static void find_profile_endpoint(const struct shared_profile *p,
                                  struct origin_client_value *endpoint)
{
    struct span value;
    if (shared_profile_service_value(p, "s3", "endpoint_url", &value)) {
        note(p, value, NULL, "the services of ", endpoint);
    } else if (shared_profile_value(p, "endpoint_url", &value)) {
        note(p, value, NULL, "", endpoint);
    }
}

// Finds the first other profile whose endpoint is not `endpoint`.
static void find_other(const struct shared_profile *p, const char *endpoint,
                       struct origin_client_value *ret_other)
{
    struct shared_profile other = *p;
    struct span rest = buf_span(&p->config_text);
    other.config_kind = "profile";
    while (ret_other->text[0] == '\0' &&
           shared_profile_next_section(&rest, other.config_kind, &other.name)) {
        if (!span_equal(other.name, p->name)) {
            find_profile_endpoint(&other, ret_other);
        }
        if (strcmp(ret_other->text, endpoint) == 0) {
            memset(ret_other, 0, sizeof(*ret_other));
        }
    }
}

static void find_endpoint(const struct shared_profile *p, struct origin_client *client)
{
    static const char *const names[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"};
    const char *variable = first_set(names, ARRAY_LEN(names));
    if (variable != NULL) {
        note(p, span_from_cstr(getenv(variable)), variable, "", &client->endpoint);
        return;
    }
    find_profile_endpoint(p, &client->endpoint);
    if (!p->is_chosen) {
        find_other(p, client->endpoint.text, &client->other);
    }
}

static void find_region(const struct shared_profile *p, struct origin_client_value *region)
{
    static const char *const names[] = {"AWS_REGION", "AWS_DEFAULT_REGION"};
    struct span value;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        value = span_from_cstr(getenv(names[i]));
        if (origin_s3_region_is_valid(value)) {
            note(p, value, names[i], "", region);
            return;
        }
    }
    if (shared_profile_value(p, "region", &value) && origin_s3_region_is_valid(value)) {
        note(p, value, NULL, "", region);
    }
}

static void find_ca_file(const struct shared_profile *p, struct origin_client_value *ca_file)
{
    static const char *const names[] = {"AWS_CA_BUNDLE"};
    const char *variable = first_set(names, ARRAY_LEN(names));
    struct span value;
    if (variable != NULL) {
        note(p, span_from_cstr(getenv(variable)), variable, "", ca_file);
    } else if (shared_profile_value(p, "ca_bundle", &value)) {
        note(p, value, NULL, "", ca_file);
    }
}

void origin_client_read(struct origin_client *ret_client)
{
    struct shared_profile p;
    memset(ret_client, 0, sizeof(*ret_client));
    read_profile(&p);
    ret_client->ignores_endpoints = ignores(&p);
    if (!ret_client->ignores_endpoints) {
        find_endpoint(&p, ret_client);
    }
    find_region(&p, &ret_client->region);
    find_ca_file(&p, &ret_client->ca_file);
    shared_profile_done(&p);
}
