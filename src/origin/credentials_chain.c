// SPDX-License-Identifier: Apache-2.0
// Loads a credential set: tries the sources in their order. Any thread; may block.
#include "origin/credentials_chain.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

static enum err from_environment(struct credentials_set **ret_set, struct buf *ret_why)
{
    const char *access_key = getenv("AWS_ACCESS_KEY_ID");
    const char *secret_key = getenv("AWS_SECRET_ACCESS_KEY");
    const char *token = getenv("AWS_SESSION_TOKEN");
    bool has_access = credentials_text_is_set(access_key);
    bool has_secret = credentials_text_is_set(secret_key);
    if (!has_access && !has_secret) {
        return ERR_NOT_FOUND;
    }
    if (has_access != has_secret) {
        buf_printf(ret_why, "%s is set but %s is not",
                   has_access ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                   has_access ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
        return ERR_ORIGIN_CREDENTIALS;
    }
    *ret_set = credentials_set_new("environment", span_from_cstr(access_key),
                                   span_from_cstr(secret_key), span_from_cstr(token), 0);
    return ERR_OK;
}

static enum err from_web_identity_environment(const struct credentials_options *options,
                                              struct credentials_set **ret_set, struct buf *ret_why)
{
    const char *role = getenv("AWS_ROLE_ARN"), *file = getenv("AWS_WEB_IDENTITY_TOKEN_FILE");
    if (!credentials_text_is_set(role) || !credentials_text_is_set(file)) {
        return ERR_NOT_FOUND;
    }
    return credentials_from_web_identity(options, role, file, getenv("AWS_ROLE_SESSION_NAME"),
                                         ret_set, ret_why);
}

static enum err from_source(enum origin_credentials_source source,
                            const struct credentials_options *options,
                            struct credentials_set **ret_set, struct buf *ret_why)
{
    switch (source) {
    case ORIGIN_CREDENTIALS_CONFIG:
        return credentials_from_key_files(options, ret_set, ret_why);
    case ORIGIN_CREDENTIALS_ENV:
        return from_environment(ret_set, ret_why);
    case ORIGIN_CREDENTIALS_IRSA:
        return from_web_identity_environment(options, ret_set, ret_why);
    case ORIGIN_CREDENTIALS_PROFILE:
        return credentials_from_profile(options, ret_set, ret_why);
    case ORIGIN_CREDENTIALS_CONTAINER:
        return credentials_from_container(ret_set, ret_why);
    case ORIGIN_CREDENTIALS_IMDS:
        return credentials_from_instance(ret_set, ret_why);
    case ORIGIN_CREDENTIALS_ANONYMOUS:
        *ret_set = credentials_set_new("anonymous", (struct span){NULL, 0}, (struct span){NULL, 0},
                                       (struct span){NULL, 0}, 0);
        return ERR_OK;
    case ORIGIN_CREDENTIALS_AUTO:
        break;
    }
    return ERR_NOT_FOUND;
}

static const char *what_is_missing(enum origin_credentials_source source)
{
    switch (source) {
    case ORIGIN_CREDENTIALS_CONFIG:
        return "the files for access key and secret key are not set";
    case ORIGIN_CREDENTIALS_ENV:
        return "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set";
    case ORIGIN_CREDENTIALS_IRSA:
        return "AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE are not set";
    case ORIGIN_CREDENTIALS_PROFILE:
        return "no such profile in the shared credentials and config files";
    case ORIGIN_CREDENTIALS_CONTAINER:
        return "AWS_CONTAINER_CREDENTIALS_FULL_URI and _RELATIVE_URI are not set";
    case ORIGIN_CREDENTIALS_IMDS:
        return "the instance metadata service gives none";
    case ORIGIN_CREDENTIALS_ANONYMOUS:
    case ORIGIN_CREDENTIALS_AUTO:
        break;
    }
    return "neither key files, environment, web identity, shared files, container endpoint nor "
           "instance metadata give any";
}

enum err credentials_chain_load(const struct credentials_options *options,
                                struct credentials_set **ret_set, struct buf *ret_why)
{
    static const enum origin_credentials_source order[] = {
        ORIGIN_CREDENTIALS_CONFIG,  ORIGIN_CREDENTIALS_ENV,       ORIGIN_CREDENTIALS_IRSA,
        ORIGIN_CREDENTIALS_PROFILE, ORIGIN_CREDENTIALS_CONTAINER, ORIGIN_CREDENTIALS_IMDS};
    enum err err = ERR_NOT_FOUND;
    if (options->source != ORIGIN_CREDENTIALS_AUTO) {
        err = from_source(options->source, options, ret_set, ret_why);
    } else {
        for (size_t i = 0; i < ARRAY_LEN(order) && err == ERR_NOT_FOUND; i++) {
            err = from_source(order[i], options, ret_set, ret_why);
        }
    }
    if (err == ERR_NOT_FOUND) {
        buf_printf(ret_why,
                   "no credentials: %s; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                   "AWS_PROFILE to a profile with keys, or credentials.source to anonymous for a "
                   "public bucket",
                   what_is_missing(options->source));
        return ERR_ORIGIN_CREDENTIALS;
    }
    return err;
}
