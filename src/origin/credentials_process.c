// SPDX-License-Identifier: Apache-2.0
// Loads keys from a program, the credential_process of a profile. Also parses the JSON and the
// timestamps that metadata services use too. This file splits the command line into words; no shell
// runs. Blocks, so no worker runs it.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/child.h"
#include "origin/credentials_chain.h"

#define PROCESS_MS_MAX 30000u
#define PROCESS_OUTPUT_MAX 65536u
#define PROCESS_WORDS_MAX 64u

extern char **environ;

// --- Words ---------------------------------------------------------------------------------------

bool credentials_split_command(const char *text, char *ret_storage, char **ret_words, unsigned max,
                               unsigned *ret_count)
{
    unsigned count = 0;
    char *out = ret_storage;
    const char *in = text;
    while (true) {
        while (*in == ' ' || *in == '\t') {
            in++;
        }
        if (*in == '\0') {
            break;
        }
        if (count == max) {
            return false;
        }
        ret_words[count++] = out;
        char quote = '\0';
        while (*in != '\0' && (quote != '\0' || (*in != ' ' && *in != '\t'))) {
            if (quote == '\0' && (*in == '"' || *in == '\'')) {
                quote = *in++;
            } else if (*in == quote && quote != '\0') {
                quote = '\0';
                in++;
            } else if (*in == '\\' && quote != '\'' && in[1] != '\0') {
                // Inside double quotes, a backslash escapes only a quote or another backslash.
                if (quote == '"' && in[1] != '"' && in[1] != '\\') {
                    *out++ = *in;
                }
                in++;
                *out++ = *in++;
            } else {
                *out++ = *in++;
            }
        }
        if (quote != '\0') {
            return false;
        }
        if (*in != '\0') {
            in++;
        }
        *out++ = '\0';
    }
    *ret_count = count;
    return true;
}

// --- JSON and time -------------------------------------------------------------------------------

static bool digits(struct span s, size_t at, size_t count, int *ret_value)
{
    int value = 0;
    if (at + count > s.len) {
        return false;
    }
    for (size_t i = at; i < at + count; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') {
            return false;
        }
        value = value * 10 + (s.ptr[i] - '0');
    }
    *ret_value = value;
    return true;
}

bool credentials_parse_time(struct span text, int64_t *ret_s)
{
    struct tm tm;
    int year = 0, month = 0, hours = 0, minutes = 0;
    memset(&tm, 0, sizeof(tm));
    if (text.len < 20 || text.ptr[4] != '-' || text.ptr[7] != '-' || text.ptr[10] != 'T' ||
        text.ptr[13] != ':' || text.ptr[16] != ':' || !digits(text, 0, 4, &year) ||
        !digits(text, 5, 2, &month) || !digits(text, 8, 2, &tm.tm_mday) ||
        !digits(text, 11, 2, &tm.tm_hour) || !digits(text, 14, 2, &tm.tm_min) ||
        !digits(text, 17, 2, &tm.tm_sec)) {
        return false;
    }
    size_t at = 19;
    if (text.ptr[at] == '.') {
        at++;
        while (at < text.len && text.ptr[at] >= '0' && text.ptr[at] <= '9') {
            at++;
        }
    }
    struct span zone = {text.ptr + at, text.len - at};
    int64_t offset_s = 0;
    if (zone.len >= 5 && (zone.ptr[0] == '+' || zone.ptr[0] == '-')) {
        size_t colon = zone.len > 3 && zone.ptr[3] == ':' ? 1 : 0;
        if (!digits(zone, 1, 2, &hours) || !digits(zone, 3 + colon, 2, &minutes)) {
            return false;
        }
        offset_s = (int64_t)hours * 3600 + (int64_t)minutes * 60;
        offset_s = zone.ptr[0] == '-' ? -offset_s : offset_s;
    } else if (!span_equal_cstr(zone, "Z")) {
        return false;
    }
    if (month < 1 || month > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 ||
        tm.tm_min > 59 || tm.tm_sec > 60) {
        return false;
    }
    tm.tm_year = year - 1900;
    tm.tm_mon = month - 1;
    *ret_s = (int64_t)timegm(&tm) - offset_s;
    return true;
}

static struct span json_text(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_string(value)
               ? (struct span){json_string_value(value), json_string_length(value)}
               : (struct span){NULL, 0};
}

static enum err set_from_json(const char *source, const json_t *object, bool needs_version,
                              struct credentials_set **ret_set, struct buf *ret_why)
{
    struct span code = json_text(object, "Code"), expiration = json_text(object, "Expiration");
    struct span access_key = json_text(object, "AccessKeyId");
    struct span secret_key = json_text(object, "SecretAccessKey");
    struct span token = json_text(object, needs_version ? "SessionToken" : "Token");
    int64_t expires_at_s = 0;
    if (needs_version && json_integer_value(json_object_get(object, "Version")) != 1) {
        buf_printf(ret_why, "%s: the answer has no \"Version\": 1", source);
        return ERR_ORIGIN_CREDENTIALS;
    }
    if (code.len > 0 && !span_equal_cstr(code, "Success")) {
        buf_printf(ret_why, "%s: the answer says %.64s", source, code.ptr);
        return ERR_ORIGIN_CREDENTIALS;
    }
    if (access_key.len == 0 || secret_key.len == 0) {
        buf_printf(ret_why, "%s: the answer lacks AccessKeyId or SecretAccessKey", source);
        return ERR_ORIGIN_CREDENTIALS;
    }
    if (expiration.len > 0 && !credentials_parse_time(expiration, &expires_at_s)) {
        buf_printf(ret_why, "%s: the answer's Expiration is no time", source);
        return ERR_ORIGIN_CREDENTIALS;
    }
    *ret_set = credentials_set_new(source, access_key, secret_key, token, expires_at_s);
    return ERR_OK;
}

enum err credentials_parse_json(const char *source, struct span json, bool needs_version,
                                struct credentials_set **ret_set, struct buf *ret_why)
{
    json_error_t error;
    json_t *object =
        json_loadb(json.ptr != NULL ? json.ptr : "", json.len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) {
        json_decref(object);
        buf_printf(ret_why, "%s: the answer is not a JSON object", source);
        return ERR_ORIGIN_CREDENTIALS;
    }
    enum err err = set_from_json(source, object, needs_version, ret_set, ret_why);
    json_decref(object);
    return err;
}

// --- The program ---------------------------------------------------------------------------------

static enum err run_words(char *const *words, struct buf *output, struct buf *ret_why)
{
    int pipe_fds[2];
    pid_t pid = 0;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        buf_printf(ret_why, "credential_process: pipe: %s", strerror(errno));
        return ERR_ORIGIN_CREDENTIALS;
    }
    check(posix_spawn_file_actions_init(&actions) == 0);
    check(posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0) == 0);
    check(posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1) == 0);
    // Close all other descriptors in the program, because libraries may have some open that it
    // would inherit.
    check(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
    child_attributes_init(&attributes);
    int spawned = posix_spawnp(&pid, words[0], &actions, &attributes, words, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(pipe_fds[1]);
    if (spawned != 0) {
        (void)close(pipe_fds[0]);
        buf_printf(ret_why, "credential_process: %s: %s", words[0], strerror(spawned));
        return ERR_ORIGIN_CREDENTIALS;
    }
    bool complete = child_read_output(pipe_fds[0], PROCESS_MS_MAX, output);
    (void)close(pipe_fds[0]);
    if (!complete) {
        (void)kill(pid, SIGKILL); // the pid is still our child's, because it is not reaped yet
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (!complete || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        buf_printf(ret_why, "credential_process: %s %s", words[0],
                   complete ? "failed" : "timed out, or its output was too long");
        return ERR_ORIGIN_CREDENTIALS;
    }
    return ERR_OK;
}

enum err credentials_from_process(const char *command, struct credentials_set **ret_set,
                                  struct buf *ret_why)
{
    char *words[PROCESS_WORDS_MAX + 1] = {NULL};
    unsigned count = 0;
    char *storage = malloc(strlen(command) + 1);
    check(storage != NULL);
    if (!credentials_split_command(command, storage, words, PROCESS_WORDS_MAX, &count) ||
        count == 0) {
        free(storage);
        buf_append_cstr(ret_why, "credential_process: the command line cannot be split into words");
        return ERR_ORIGIN_CREDENTIALS;
    }
    struct buf output;
    buf_init(&output, PROCESS_OUTPUT_MAX);
    enum err err = run_words(words, &output, ret_why);
    if (err == ERR_OK) {
        err =
            credentials_parse_json("credential_process", buf_span(&output), true, ret_set, ret_why);
    }
    if (err == ERR_OK && (*ret_set)->expires_at_s == 0) {
        // Without an expiry, only a refusal of the keys makes us run the program again.
        (*ret_set)->is_from_files = false;
    }
    credentials_buf_done(&output);
    free(storage);
    return err;
}
