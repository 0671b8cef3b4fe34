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

// Reads the name from a line "[ name ]". Returns false for other lines.
static bool section_name(struct span line, struct span *ret_name)
{
    line = span_trim(line);
    if (line.len < 2 || line.ptr[0] != '[') {
        return false;
    }
    size_t end = span_find(line, ']');
    if (end == line.len) {
        return false;
    }
    *ret_name = span_trim((struct span){line.ptr + 1, end - 1});
    return true;
}

static bool next_line(struct span *rest, struct span *ret_line)
{
    if (!span_split(rest, '\n', ret_line)) {
        return false;
    }
    if (ret_line->len > 0 && ret_line->ptr[ret_line->len - 1] == '\r') {
        ret_line->len--;
    }
    return true;
}

bool credentials_profile_has_section(struct span text, struct span section)
{
    struct span line, name;
    while (next_line(&text, &line)) {
        if (section_name(line, &name) && span_equal(name, section)) {
            return true;
        }
    }
    return false;
}

bool credentials_profile_value(struct span text, struct span section, const char *name,
                               struct span *ret_value)
{
    struct span line, found;
    bool inside = false;
    while (next_line(&text, &line)) {
        if (section_name(line, &found)) {
            inside = span_equal(found, section);
            continue;
        }
        // Skip comments, and indented lines, which belong to a nested setting and not to the
        // profile itself.
        if (!inside || line.len == 0 || strchr("#; \t", line.ptr[0]) != NULL) {
            continue;
        }
        size_t equals = span_find(line, '=');
        if (equals == line.len ||
            !span_equal_nocase(span_trim((struct span){line.ptr, equals}), span_from_cstr(name))) {
            continue;
        }
        *ret_value = span_trim((struct span){line.ptr + equals + 1, line.len - equals - 1});
        return ret_value->len > 0;
    }
    return false;
}

struct profile {
    struct buf credentials_text, config_text;
    struct span credentials_section, config_section;
    char config_name[300];
};

static bool profile_value(const struct profile *p, const char *name, struct span *ret_value)
{
    return credentials_profile_value(buf_span(&p->credentials_text), p->credentials_section, name,
                                     ret_value) ||
           credentials_profile_value(buf_span(&p->config_text), p->config_section, name, ret_value);
}

static void shared_path(const char *variable, const char *name, struct buf *ret_path)
{
    const char *path = getenv(variable), *home = getenv("HOME");
    if (credentials_text_is_set(path)) {
        buf_append_cstr(ret_path, path);
    } else if (home != NULL) {
        buf_printf(ret_path, "%s/.aws/%s", home, name);
    }
}

static enum err read_shared(const char *variable, const char *name, struct buf *ret_text,
                            struct buf *ret_why)
{
    struct buf path;
    enum err err = ERR_NOT_FOUND;
    buf_init(&path, 4096);
    shared_path(variable, name, &path);
    if (path.len > 0) {
        err = credentials_read_file(buf_cstr(&path), ret_text);
    }
    if (err == ERR_PERMISSION) {
        buf_printf(ret_why, "%s: the shared file may not be read", buf_cstr(&path));
    }
    buf_done(&path);
    return err == ERR_PERMISSION ? err : ERR_OK;
}

static enum err refuse(struct buf *why, struct span profile, const char *what, const char *remedy)
{
    buf_printf(why, "profile %.*s uses %s, which is not supported here; %s", (int)profile.len,
               profile.ptr, what, remedy);
    return ERR_ORIGIN_CREDENTIALS;
}

static char *copy_text(struct span s)
{
    char *copy = strndup(s.ptr, s.len);
    check(copy != NULL);
    return copy;
}

static enum err from_profile_web_identity(const struct credentials_options *options,
                                          const struct profile *p, struct span role,
                                          struct span token_file, struct credentials_set **ret_set,
                                          struct buf *ret_why)
{
    struct span session = {NULL, 0};
    char *role_text = copy_text(role), *file_text = copy_text(token_file), *session_text = NULL;
    if (profile_value(p, "role_session_name", &session)) {
        session_text = copy_text(session);
    }
    enum err err = credentials_from_web_identity(options, role_text, file_text, session_text,
                                                 ret_set, ret_why);
    free(role_text);
    free(file_text);
    free(session_text);
    return err;
}

static enum err from_profile(const struct credentials_options *options, const struct profile *p,
                             struct span name, struct credentials_set **ret_set,
                             struct buf *ret_why)
{
    struct span access_key, secret_key, token = {NULL, 0}, role, value;
    if (profile_value(p, "role_arn", &role)) {
        if (profile_value(p, "web_identity_token_file", &value)) {
            return from_profile_web_identity(options, p, role, value, ret_set, ret_why);
        }
        return refuse(ret_why, name, "role_arn with source_profile or credential_source",
                      "use credential_process, web identity or the role's own keys");
    }
    if (profile_value(p, "aws_access_key_id", &access_key)) {
        if (!profile_value(p, "aws_secret_access_key", &secret_key)) {
            buf_printf(ret_why, "profile %.*s has aws_access_key_id but no aws_secret_access_key",
                       (int)name.len, name.ptr);
            return ERR_ORIGIN_CREDENTIALS;
        }
        (void)profile_value(p, "aws_session_token", &token);
        *ret_set = credentials_set_new("profile", access_key, secret_key, token, 0);
        (*ret_set)->is_from_files = true;
        return ERR_OK;
    }
    if (profile_value(p, "credential_process", &value)) {
        char *command = copy_text(value);
        enum err err = credentials_from_process(command, ret_set, ret_why);
        free(command);
        return err;
    }
    if (profile_value(p, "sso_session", &value) || profile_value(p, "sso_start_url", &value) ||
        profile_value(p, "sso_account_id", &value)) {
        return refuse(ret_why, name, "single sign-on",
                      "use credential_process = aws configure export-credentials");
    }
    return ERR_NOT_FOUND;
}

enum err credentials_from_profile(const struct credentials_options *options,
                                  struct credentials_set **ret_set, struct buf *ret_why)
{
    struct profile p;
    const char *chosen = getenv("AWS_PROFILE");
    bool is_chosen = credentials_text_is_set(chosen);
    struct span name = span_from_cstr(is_chosen ? chosen : "default");
    struct span region;
    memset(&p, 0, sizeof(p));
    buf_init(&p.credentials_text, CREDENTIALS_FILE_MAX);
    buf_init(&p.config_text, CREDENTIALS_FILE_MAX);
    enum err err =
        read_shared("AWS_SHARED_CREDENTIALS_FILE", "credentials", &p.credentials_text, ret_why);
    if (err == ERR_OK) {
        err = read_shared("AWS_CONFIG_FILE", "config", &p.config_text, ret_why);
    }
    p.credentials_section = p.config_section = name;
    if (name.len < 256) {
        (void)snprintf(p.config_name, sizeof(p.config_name), "profile %.*s", (int)name.len,
                       name.ptr);
        if (!span_equal_cstr(name, "default") ||
            credentials_profile_has_section(buf_span(&p.config_text),
                                            span_from_cstr(p.config_name))) {
            p.config_section = span_from_cstr(p.config_name);
        }
    }
    if (err == ERR_OK) {
        err = from_profile(options, &p, name, ret_set, ret_why);
    }
    if (err == ERR_OK && profile_value(&p, "region", &region)) {
        free((*ret_set)->region);
        (*ret_set)->region = copy_text(region);
    }
    if (err == ERR_NOT_FOUND && is_chosen) {
        buf_printf(ret_why, "AWS_PROFILE names %s, but no shared file has keys for it", chosen);
        err = ERR_ORIGIN_CREDENTIALS;
    }
    credentials_buf_done(&p.credentials_text);
    credentials_buf_done(&p.config_text);
    return err;
}
