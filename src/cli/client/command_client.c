// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_client.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "base/human.h"
#include "commands/commands.h"

#define ANSWER_MAX_BYTES (ADMIN_ANSWER_MAX + 1024u)
#define BUSY_MS 200

int command_client_open(struct command_client *client, const char *name)
{
    *client = (struct command_client){.name = name, .is_json = commands_common()->is_json};
    client->token = getenv("FOREBAY_ADMIN_TOKEN");
    if (client->token != NULL && client->token[0] == '\0') {
        client->token = NULL;
    }
    if (!commands_address(client->address)) {
        command_client_error(client, "the address of the server is too long");
        return commands_result(EXIT_CODE_USAGE, NULL);
    }
    if (client->address[0] != '\0') {
        return EXIT_CODE_OK;
    }
    const char *file = commands_common()->file;
    char *words[] = {(char *)(uintptr_t) "-c", (char *)(uintptr_t)file, NULL}; // only read
    client->config = commands_load_admin(file != NULL ? 2 : 0, words, &client->is_guess);
    return client->config != NULL ? EXIT_CODE_OK : commands_result(EXIT_CODE_CONFIGURATION, NULL);
}

void command_client_close(struct command_client *client)
{
    config_free(client->config);
    client->config = NULL;
}

// --- requests ------------------------------------------------------------------------------------

// Maps the status of a refusal to an exit code: a mistake of the caller, the origin or the server.
static int code_of(unsigned status)
{
    return status == 400 || status == 405   ? EXIT_CODE_USAGE
           : status == 502 || status == 504 ? EXIT_CODE_ORIGIN
                                            : EXIT_CODE_FAILED;
}

// Reports the reason of a wait once, and only before the job has begun. Later waits are for the
// job's own work.
static void tell_wait(struct command_client *client, const struct buf *answer)
{
    if (client->tells_wait) {
        json_t *json = json_loadb(answer->ptr, answer->len, 0, NULL);
        command_client_warn(client, "waits: %s", command_client_text(json, "reason"));
        (void)fflush(stdout); // commands_result() reports a failure
        json_decref(json);
        client->tells_wait = false;
    }
}

// --- signals -------------------------------------------------------------------------------------

static volatile sig_atomic_t is_interrupted, is_resized;
static bool catches; // catch_interrupts() was called

static void on_interrupt(int number)
{
    (void)number;
    is_interrupted = 1;
}

static void on_resize(int number)
{
    (void)number;
    is_resized = 1;
}

// Lets SIGWINCH, SIGINT, SIGQUIT and SIGTERM interrupt recv(2) with EINTR. The same signal a second
// time ends the process.
static void catch_interrupts(void)
{
    struct sigaction resize = {.sa_handler = on_resize};
    sigemptyset(&resize.sa_mask);
    check(sigaction(SIGWINCH, &resize, NULL) == 0);
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    check(sigaction(SIGINT, &action, NULL) == 0 && sigaction(SIGTERM, &action, NULL) == 0);
    check(sigaction(SIGQUIT, &action, NULL) == 0);
    catches = true;
}

static struct termios keys_before;

static void restore_keys(void)
{
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &keys_before); // a terminal that is gone has no keys
}

void command_client_quit_by_key(void)
{
    struct termios keys;
    if (tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &keys_before) != 0) {
        return; // no terminal, or one that another job reads from
    }
    keys = keys_before;
    keys.c_cc[VQUIT] = 'q';
    keys.c_lflag &= ~(tcflag_t)ECHO;
    catch_interrupts();
    check(atexit(restore_keys) == 0);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &keys); // if this fails, Ctrl-C still works
}

// Blocks these signals, so that none interrupts a request. Returns the signal mask before.
static sigset_t block_interrupts(void)
{
    sigset_t interrupts, before;
    (void)sigemptyset(&interrupts);
    (void)sigaddset(&interrupts, SIGINT);
    (void)sigaddset(&interrupts, SIGQUIT);
    (void)sigaddset(&interrupts, SIGTERM);
    (void)sigaddset(&interrupts, SIGWINCH);
    check(sigprocmask(SIG_BLOCK, &interrupts, &before) == 0);
    return before;
}

// --- requests ------------------------------------------------------------------------------------

static int ask(struct command_client *client, const char *method, const char *path, json_t *body,
               json_t **ret_answer)
{
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    check(body == NULL || text != NULL);
    json_decref(body);
    if (client->is_guess && strcmp(method, "GET") != 0) {
        free(text);
        command_client_error(client, "the configuration does not say which server to change: "
                                     "correct it, or name the server with --admin");
        return EXIT_CODE_CONFIGURATION;
    }
    struct admin_client_request request = {.method = method,
                                           .path = path,
                                           .body = span_from_cstr(text),
                                           .token = client->token,
                                           .timeout_ms = commands_common()->timeout_ms};
    bool is_action = strncmp(path, "/api/v1/summary", 15) != 0;
    if (is_action && request.timeout_ms < ADMIN_CALL_CLIENT_MS) {
        request.timeout_ms = ADMIN_CALL_CLIENT_MS; // the server answers within this time
    }
    struct buf answer;
    unsigned status = 0;
    buf_init(&answer, ANSWER_MAX_BYTES);
    sigset_t before;
    (void)sigemptyset(&before);
    bool is_following = catches;
    if (is_following) { // without handlers, a signal ends the process
        before = block_interrupts();
    }
    enum err err = commands_ask(client->config, &request, client->address, &status, &answer);
    while (err == ERR_OK && status == ADMIN_STATUS_BUSY && client->waits) {
        tell_wait(client, &answer);
        (void)poll(NULL, 0, BUSY_MS); // a signal may shorten the pause
        answer.len = 0;
        err = commands_ask(client->config, &request, client->address, &status, &answer);
    }
    if (is_following) {
        check(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    }
    free(text);
    client->status = status;
    int code = EXIT_CODE_OK;
    json_t *json = err == ERR_OK ? json_loadb(answer.ptr, answer.len, 0, NULL) : NULL;
    if (err != ERR_OK) {
        command_client_error(
            client, "no server answers%s (is it running? else set --admin or FOREBAY_ADMIN)%s",
            commands_tried(), commands_run_hint());
        code = EXIT_CODE_UNREACHABLE;
    } else if (status != 200) {
        const char *why = command_client_text(json, "reason");
        if (client->keeps_why) {
            (void)snprintf(client->why, sizeof(client->why), "%s", why);
        } else if (why[0] != '\0') {
            command_client_error(client, "%s", why);
        } else {
            command_client_error(client,
                                 "%s answers %u and is no admin address: use that of admin.listen "
                                 "(default: 127.0.0.1:9001), not that of the S3 API",
                                 commands_visible(client->address, strlen(client->address)),
                                 status);
        }
        code = code_of(status);
    } else if (json == NULL) {
        command_client_error(client, "the server's answer is not JSON: is it a Forebay?");
        code = EXIT_CODE_FAILED;
    }
    buf_done(&answer);
    if (code == EXIT_CODE_OK) {
        *ret_answer = json;
    } else {
        json_decref(json);
    }
    return code;
}

int command_client_get(struct command_client *client, const char *path, json_t **ret_answer)
{
    return ask(client, "GET", path, NULL, ret_answer);
}

int command_client_post(struct command_client *client, const char *path, json_t *body,
                        json_t **ret_answer)
{
    return ask(client, "POST", path, body, ret_answer);
}

int command_client_delete(struct command_client *client, const char *path, json_t **ret_answer)
{
    return ask(client, "DELETE", path, NULL, ret_answer);
}

// --- following -----------------------------------------------------------------------------------

#define SILENCE_MAX_MS 20000u // a server without news sends an empty line more often
#define STOP_MAX_MS 60000u    // server/command_stop.c bounds a stop by half of it

bool command_client_wait(uint64_t ms)
{
    const struct timespec time = {.tv_sec = (time_t)(ms / 1000),
                                  .tv_nsec = (long)(ms % 1000) * 1000000};
    sigset_t waiting = block_interrupts();
    (void)sigdelset(&waiting, SIGINT);
    (void)sigdelset(&waiting, SIGQUIT);
    (void)sigdelset(&waiting, SIGTERM);
    (void)sigdelset(&waiting, SIGWINCH);
    catch_interrupts();
    (void)ppoll(NULL, 0, &time, &waiting);
    return is_interrupted == 0;
}

struct following {
    admin_client_line_fn on_line;
    void *ctx;
};

static bool on_followed(void *ctx, struct span line)
{
    const struct following *f = ctx;
    bool goes_on = true;
    while (goes_on && is_interrupted == 0 && (line.len > 0 || is_resized != 0)) {
        is_resized = 0;
        goes_on = f->on_line(f->ctx, line);
        line = SPAN("");
    }
    return goes_on && is_interrupted == 0;
}

// Sets *ret_err to the reason why the answer has ended, which is ERR_OK after a signal.
static int follow(struct command_client *client, const char *path, unsigned silence_max_ms,
                  admin_client_line_fn on_line, void *ctx, enum err *ret_err)
{
    json_t *summary = NULL;
    // This also finds the server's address.
    int code = command_client_get(client, "/api/v1/summary", &summary);
    json_decref(summary);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    struct following following = {on_line, ctx};
    struct admin_client_request request = {.address = client->address,
                                           .method = "GET",
                                           .path = path,
                                           .token = client->token,
                                           .timeout_ms = commands_common()->timeout_ms};
    struct buf body;
    unsigned status = 0;
    buf_init(&body, ANSWER_MAX_BYTES);
    commands_inform_request(request.method, request.address, path, ERR_OK, 0);
    catch_interrupts();
    enum err err =
        admin_client_follow(&request, silence_max_ms, on_followed, &following, &status, &body);
    if (err == ERR_OK && status != 200) {
        json_t *json = json_loadb(body.ptr, body.len, 0, NULL);
        const char *why = command_client_text(json, "reason");
        command_client_error(client, "%s", why[0] != '\0' ? why : "the server refused that");
        json_decref(json);
        code = code_of(status);
    }
    buf_done(&body);
    *ret_err = is_interrupted == 0 ? err : ERR_OK;
    return code;
}

int command_client_follow(struct command_client *client, const char *path,
                          admin_client_line_fn on_line, void *ctx)
{
    enum err err = ERR_OK;
    int code = follow(client, path, SILENCE_MAX_MS, on_line, ctx, &err);
    if (code == EXIT_CODE_OK && err != ERR_OK) {
        command_client_error(client, "the server at %s has ended", client->address);
        code = EXIT_CODE_UNREACHABLE;
    }
    return code;
}

int command_client_follow_to_end(struct command_client *client, const char *path,
                                 admin_client_line_fn on_line, void *ctx)
{
    enum err err = ERR_OK;
    int code = follow(client, path, STOP_MAX_MS, on_line, ctx, &err);
    if (code == EXIT_CODE_OK && err != ERR_ORIGIN_RESET) {
        if (err != ERR_OK) {
            command_client_error(client, "the server at %s does not answer, and has not ended",
                                 client->address);
        }
        code = EXIT_CODE_FAILED;
    }
    return code;
}

void command_client_parameter(struct buf *path, const char *name, struct span value)
{
    struct span sofar = buf_span(path);
    buf_append_char(path, span_find(sofar, '?') < sofar.len ? '&' : '?');
    buf_append_cstr(path, name);
    buf_append_char(path, '=');
    buf_append_uri_encoded(path, value, false);
}

// --- output --------------------------------------------------------------------------------------

// Prints a message on stderr, after the text `before`. With --json also prints it as a line of
// `type`.
PRINTF_LIKE(4, 0)
static void tell(const struct command_client *client, const char *type, const char *before,
                 const char *format, va_list args)
{
    char text[1024];
    (void)vsnprintf(text, sizeof(text), format, args);
    command_screen_tell(2, "forebay %s: %s%s\n", client->name, before,
                        command_client_visible(text));
    json_t *reason = json_string(text);
    if (reason == NULL) { // not UTF-8, or cut inside a character
        reason = json_string(command_client_visible(text));
    }
    commands_line(type, json_pack("{s:o}", "reason", reason));
}

void command_client_error(const struct command_client *client, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(client, "error", "", format, args);
    va_end(args);
}

void command_client_warn(const struct command_client *client, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(client, "warning", "warning: ", format, args);
    va_end(args);
}

bool command_client_take_uri(const struct command_client *client, const char *text,
                             struct s3_uri *ret_uri)
{
    const char *why = "not UTF-8";
    json_t *as_json = json_string(text);
    bool is_good = as_json != NULL && s3_uri_parse(span_from_cstr(text), ret_uri, &why);
    json_decref(as_json);
    if (!is_good) {
        command_client_error(client, "%s: %s", text, why);
    }
    return is_good;
}

void command_client_warn_of_star(const struct command_client *client, const char *text,
                                 const struct s3_uri *uri)
{
    struct span prefix;
    if (s3_uri_has_star(span_from_cstr(text), uri, &prefix)) {
        command_client_warn(
            client,
            "%s: the * inside is taken by the letter, only one at the end stands for "
            "more (\"%.*s\"?)",
            text, (int)prefix.len, prefix.ptr);
    }
}

int command_client_end(struct command_client *client, int code, json_t *json)
{
    code = commands_result(code, json);
    command_client_close(client);
    return code;
}

// --- reading an answer ---------------------------------------------------------------------------

uint64_t command_client_u64(const json_t *json, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(json, name));
    return value > 0 ? (uint64_t)value : 0;
}

double command_client_double(const json_t *json, const char *name)
{
    return json_number_value(json_object_get(json, name));
}

uint64_t command_client_sum(const json_t *object)
{
    const char *name;
    json_t *value;
    uint64_t sum = 0;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        sum += (uint64_t)json_integer_value(value);
    }
    return sum;
}

const char *command_client_text(const json_t *json, const char *name)
{
    const char *text = json_string_value(json_object_get(json, name));
    return text != NULL ? text : "";
}

bool command_client_bool(const json_t *json, const char *name)
{
    return json_is_true(json_object_get(json, name));
}

const char *command_client_visible(const char *text)
{
    return commands_visible(text, strlen(text));
}

const char *command_client_shown(const json_t *json, const char *name)
{
    const json_t *member = json_object_get(json, name);
    const char *text = json_string_value(member);
    return text != NULL ? commands_visible(text, json_string_length(member)) : "";
}

static char *next_text(void)
{
    static char texts[8][HUMAN_BYTES_MAX];
    static unsigned turn;
    return texts[turn++ % ARRAY_LEN(texts)];
}

const char *command_bytes(double bytes)
{
    return human_bytes(bytes, next_text());
}

const char *command_time(double seconds)
{
    char *text = next_text();
    uint64_t s = seconds > 0 ? (uint64_t)seconds : 0;
    unsigned long d = s / 86400, h = s / 3600 % 24, m = s / 60 % 60;
    if (d > 0) {
        (void)snprintf(text, HUMAN_BYTES_MAX, "%lu d %lu h", d, h);
    } else if (h > 0) {
        (void)snprintf(text, HUMAN_BYTES_MAX, "%lu h %lu min", h, m);
    } else if (m > 0) {
        (void)snprintf(text, HUMAN_BYTES_MAX, "%lu min %lu s", m, (unsigned long)s % 60);
    } else {
        (void)snprintf(text, HUMAN_BYTES_MAX, "%lu s", (unsigned long)s);
    }
    return text;
}

// Returns a time of an answer for people.
static const char *wait_text(const json_t *origin, const char *name, char ret_text[HUMAN_TIME_MAX])
{
    return human_wait((uint64_t)(1e6 * command_client_double(origin, name)), ret_text);
}

bool command_pace_append(struct buf *out, const json_t *origin)
{
    char p50[HUMAN_TIME_MAX], p99[HUMAN_TIME_MAX], usual[HUMAN_TIME_MAX];
    if (command_client_u64(origin, "answers") == 0) {
        return false;
    }
    buf_printf(out, "%s, p99 %s", wait_text(origin, "first_byte_p50_s", p50),
               wait_text(origin, "first_byte_p99_s", p99));
    if (command_client_double(origin, "first_byte_usual_s") > 0) {
        buf_printf(out, ", usually %s", wait_text(origin, "first_byte_usual_s", usual));
    }
    return true;
}

static void append_money(struct buf *out, double dollars)
{
    if (dollars > 0 && dollars < 0.01) {
        buf_append_cstr(out, "under $0.01");
    } else {
        buf_printf(out, "$%.2f", dollars);
    }
}

void command_saved_append(struct buf *out, const json_t *savings)
{
    uint64_t extra = command_client_u64(savings, "extra_requests");
    buf_append_cstr(out, command_bytes(command_client_double(savings, "bytes")));
    if (extra > 0) {
        buf_printf(out, " of the origin, and cost %llu more requests than without a cache",
                   (unsigned long long)extra);
    } else {
        buf_printf(out, " and %llu requests of the origin",
                   (unsigned long long)command_client_u64(savings, "requests"));
    }
}

void command_savings_append(struct buf *out, const json_t *savings)
{
    double inside = command_client_double(savings, "cost_requests");
    double all = command_client_double(savings, "cost_bytes") + inside;
    double wait_s = command_client_double(savings, "wait_s"); // 0 if no miss was seen yet
    double miss_ms = 1000 * command_client_double(savings, "miss_s");
    bool has_wait = wait_s >= 0.05; // less would print as 0.0 s
    if (all > 0) {
        append_money(out, all);
        buf_append_cstr(out, " if the bytes leave the origin's region, else ");
        append_money(out, inside);
    }
    if (has_wait) {
        buf_append_cstr(out, all > 0 ? "; " : "");
        if (wait_s < 60) {
            buf_printf(out, "%.1f s", wait_s);
        } else {
            buf_append_cstr(out, command_time(wait_s));
        }
        buf_printf(out, " of waiting summed over all readers, at %.*f ms a miss",
                   miss_ms < 10 ? 1 : 0, miss_ms);
    }
}
