// SPDX-License-Identifier: Apache-2.0
// Loads keys from files: the key files that the configuration names, and the profiles in the shared
// credentials and config files. Blocks on file reads, so no worker runs it.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "origin/credentials_chain.h"
#include "origin/shared_profile.h"

// --- Key files -----------------------------------------------------------------------------------

static enum err read_key_file(const char *path, struct buf *text, struct span *ret_key,
                              struct buf *ret_why)
{
    struct stat stat_of;
    if (stat(path, &stat_of) == 0 && (stat_of.st_mode & (S_IROTH | S_IWOTH)) != 0) {
        buf_printf(ret_why, "%s: other users may read or write it (mode %04o); %s", path,
                   (unsigned)(stat_of.st_mode & 07777), host_secret_file_remedy(stat_of.st_uid));
        return ERR_PERMISSION;
    }
    enum err err = credentials_read_file(path, text);
    if (err != ERR_OK) {
        buf_printf(ret_why, "%s: %s", path,
                   err == ERR_NOT_FOUND    ? "no such key file"
                   : err == ERR_PERMISSION ? "the key file may not be read"
                                           : "the key file cannot be read");
        return ERR_PERMISSION;
    }
    *ret_key = credentials_trim_lines(buf_span(text));
    if (ret_key->len == 0 || memchr(ret_key->ptr, '\n', ret_key->len) != NULL) {
        buf_printf(ret_why, "%s: must hold one line with one key", path);
        return ERR_ORIGIN_CREDENTIALS;
    }
    return ERR_OK;
}

enum err credentials_from_key_files(const struct credentials_options *options,
                                    struct credentials_set **ret_set, struct buf *ret_why)
{
    if (!credentials_text_is_set(options->access_key_file) &&
        !credentials_text_is_set(options->secret_key_file)) {
        return ERR_NOT_FOUND;
    }
    if (!credentials_text_is_set(options->access_key_file) ||
        !credentials_text_is_set(options->secret_key_file)) {
        buf_append_cstr(ret_why, "access key file and secret key file must both be set");
        return ERR_ORIGIN_CREDENTIALS;
    }
    struct buf texts[3];
    struct span keys[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    const char *const paths[3] = {options->access_key_file, options->secret_key_file,
                                  options->session_token_file};
    enum err err = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        buf_init(&texts[i], CREDENTIALS_FILE_MAX);
        if (err == ERR_OK && credentials_text_is_set(paths[i])) {
            err = read_key_file(paths[i], &texts[i], &keys[i], ret_why);
        }
    }
    if (err == ERR_OK) {
        *ret_set = credentials_set_new("key files", keys[0], keys[1], keys[2], 0);
        (*ret_set)->is_from_files = true;
    }
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        credentials_buf_done(&texts[i]);
    }
    return err;
}

enum err origin_proxy_url(const char *proxy, const char *auth_file, char **ret_url,
                          struct buf *ret_why)
{
    static const char scheme[] = "http://";
    struct buf file, url;
    struct span user, password = {NULL, 0};
    enum err err = ERR_OK;
    *ret_url = NULL;
    if (!credentials_text_is_set(proxy)) {
        return ERR_OK;
    }
    check(strncmp(proxy, scheme, sizeof(scheme) - 1) == 0);
    buf_init(&file, CREDENTIALS_FILE_MAX);
    buf_init(&url, 3 * CREDENTIALS_FILE_MAX + strlen(proxy)); // an encoded byte has three
    buf_append_cstr(&url, scheme);
    if (credentials_text_is_set(auth_file)) {
        err = read_key_file(auth_file, &file, &password, ret_why);
        if (err == ERR_OK &&
            (!span_split(&password, ':', &user) || user.len == 0 || password.ptr == NULL)) {
            buf_printf(ret_why, "%s: must hold one line USER:PASSWORD", auth_file);
            err = ERR_ORIGIN_CREDENTIALS;
        }
        if (err == ERR_OK) {
            buf_append_uri_encoded(&url, user, false);
            buf_append_char(&url, ':');
            buf_append_uri_encoded(&url, password, false);
            buf_append_char(&url, '@');
        }
    }
    buf_append_cstr(&url, proxy + sizeof(scheme) - 1);
    if (err == ERR_OK) {
        check(buf_ok(&url));
        *ret_url = strdup(buf_cstr(&url));
        check(*ret_url != NULL);
    }
    credentials_buf_done(&file);
    credentials_buf_done(&url);
    return err;
}

// --- Profiles ------------------------------------------------------------------------------------

static char *copy_text(struct span s)
{
    char *copy = strndup(s.ptr, s.len);
    check(copy != NULL);
    return copy;
}

static enum err from_profile_web_identity(const struct credentials_options *options,
                                          const struct shared_profile *p, struct span role,
                                          struct span token_file, struct credentials_set **ret_set,
                                          struct buf *ret_why)
{
    struct span session = {NULL, 0};
    char *role_text = copy_text(role), *file_text = copy_text(token_file), *session_text = NULL;
    if (shared_profile_value(p, "role_session_name", &session)) {
        session_text = copy_text(session);
    }
    enum err err = credentials_from_web_identity(options, role_text, file_text, session_text,
                                                 ret_set, ret_why);
    free(role_text);
    free(file_text);
    free(session_text);
    return err;
}

static enum err from_profile_keys(const struct shared_profile *p, struct span access_key,
                                  struct credentials_set **ret_set, struct buf *ret_why)
{
    struct span secret_key, token = {NULL, 0};
    if (!shared_profile_value(p, "aws_secret_access_key", &secret_key)) {
        buf_printf(ret_why, "profile %.*s has aws_access_key_id but no aws_secret_access_key",
                   (int)p->name.len, p->name.ptr);
        return ERR_ORIGIN_CREDENTIALS;
    }
    (void)shared_profile_value(p, "aws_session_token", &token);
    *ret_set = credentials_set_new("profile", access_key, secret_key, token, 0);
    (*ret_set)->is_from_files = true;
    return ERR_OK;
}

// Refuses a profile whose keys only the AWS CLI can get, with a command that makes it get them. The
// CLI looks for credential_process after role_arn and single sign-on, so that it does not call
// itself. It cannot ask for an MFA code as a credential_process, because that has no terminal.
static enum err refuse(const struct shared_profile *p, const char *what, struct buf *ret_why)
{
    struct span value;
    int len = (int)p->name.len;
    const char *name = p->name.ptr, *quote = span_find(p->name, ' ') < p->name.len ? "\"" : "";
    buf_printf(ret_why, "profile %.*s uses %s, and Forebay needs AWS CLI 2 for that: ", len, name,
               what);
    if (shared_profile_value(p, "mfa_serial", &value)) {
        buf_printf(ret_why,
                   "run `eval \"$(aws configure export-credentials --format env --profile "
                   "%s%.*s%s)\"` in your shell; these keys are not renewed, and end after an hour "
                   "or so",
                   quote, len, name, quote);
    } else {
        buf_printf(ret_why,
                   "run `aws configure set --profile %s%.*s%s credential_process 'aws configure "
                   "export-credentials --profile %s%.*s%s'` once; Forebay then gets keys, and new "
                   "ones when they expire, as long as the CLI itself gets them",
                   quote, len, name, quote, quote, len, name, quote);
    }
    return ERR_ORIGIN_CREDENTIALS;
}

static enum err from_profile(const struct credentials_options *options,
                             const struct shared_profile *p, struct credentials_set **ret_set,
                             struct buf *ret_why)
{
    struct span access_key, role, value;
    bool has_role = shared_profile_value(p, "role_arn", &role);
    if (has_role && shared_profile_value(p, "web_identity_token_file", &value)) {
        return from_profile_web_identity(options, p, role, value, ret_set, ret_why);
    }
    if (!has_role && shared_profile_value(p, "aws_access_key_id", &access_key)) {
        return from_profile_keys(p, access_key, ret_set, ret_why);
    }
    if (shared_profile_value(p, "credential_process", &value)) {
        char *command = copy_text(value);
        enum err err = credentials_from_process(command, ret_set, ret_why);
        free(command);
        return err;
    }
    if (has_role) {
        return refuse(p, "role_arn with source_profile or credential_source", ret_why);
    }
    if (shared_profile_value(p, "sso_session", &value) ||
        shared_profile_value(p, "sso_start_url", &value) ||
        shared_profile_value(p, "sso_account_id", &value) ||
        shared_profile_value(p, "login_session", &value)) {
        return refuse(p, "single sign-on", ret_why);
    }
    return ERR_NOT_FOUND;
}

enum err credentials_from_profile(const struct credentials_options *options,
                                  struct credentials_set **ret_set, struct buf *ret_why)
{
    struct shared_profile p;
    enum err err = shared_profile_read(&p, ret_why);
    if (err == ERR_OK) {
        err = from_profile(options, &p, ret_set, ret_why);
    }
    if (err == ERR_NOT_FOUND && p.is_chosen) {
        buf_printf(ret_why, "AWS_PROFILE names %.*s, but no shared file has keys for it",
                   (int)p.name.len, p.name.ptr);
        err = ERR_ORIGIN_CREDENTIALS;
    }
    shared_profile_done(&p);
    return err;
}
