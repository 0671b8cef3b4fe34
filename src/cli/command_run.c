// SPDX-License-Identifier: Apache-2.0
// `forebay run [--KEY VALUE]... -- CMD [ARG]...`: a private cache for one command. The server and
// CMD are child processes. When this process ends, both end too, because the kernel signals
// children when their parent ends. When CMD ends, this process stops the server. If the server
// ends, this process restarts it, at most RESTARTS_MAX times.
//
// The exit code is CMD's own, or 128 + N when signal N ended it. It is 127 when CMD was not found,
// 126 when it cannot be run, and 125 when Forebay did not start.
//
// The cache is kept from one run to the next, in $XDG_CACHE_HOME/forebay. Another run at the same
// time uses the next free directory (forebay-2 ...) instead of the same cache. The reason is that a
// server uses one set of credentials, and a user who may not read an object at the origin must not
// read it from a cache.
#include "cli/cli_private.h"
#include "commands/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/client/command_client.h"
#include "cli/client/command_endpoint.h"
#include "cli/client/command_old_clients.h"
#include "cli/client/command_server.h"
#include "cli/command_run_summary.h"
#include "config/config.h"
#include "origin/origin.h"
#include "server/server.h"
#include "stats/stats.h"
#include "store/offline/offline.h"

#define EXIT_NOT_EXECUTABLE 126
#define EXIT_NOT_FOUND 127
#define EXIT_SIGNAL 128
#define START_TIMEOUT_MS 60000u
#define STOP_TIMEOUT_MS 20000u
#define DIRECTORIES_MAX 16u
#define RESTARTS_MAX 3u
#define TEXT_MAX_BYTES (1u << 20)
#define LOOK_MS 500 // between looks for new conditions
#define SETTLE_MS 20
#define SETTLE_TRIES 50u
#define FLAG_MAX (PATH_MAX + 64)

struct run {
    struct command_server server;
    struct config *config;
    struct origin_client client; // the settings of the AWS SDKs in this environment
    char dir[PATH_MAX];
    bool is_other_dir; // another process uses the first directory
    char dir_flag[FLAG_MAX], socket_flag[FLAG_MAX], endpoint_flag[FLAG_MAX];
    char ca_file_flag[FLAG_MAX];
    char url[64];
    bool is_quiet, is_global;
    unsigned restarts;
    pid_t child;
    struct command_run_conditions told;
};

struct run_signals {
    sigset_t waited, before; // signals blocked during the run; the signal mask before the run
    void (*before_pipe)(int number), (*before_child)(int number); // the handlers before the run
};

static int not_started(const char *why)
{
    static const char prefix[] = "forebay: ";
    why += strncmp(why, prefix, sizeof(prefix) - 1) == 0
               ? sizeof(prefix) - 1
               : 0; // removes the prefix that the server has put before its message
    size_t len = strlen(why);
    while (len > 0 && why[len - 1] == '\n') {
        len--;
    }
    command_screen_tell(2, "forebay run: the cache did not start: %.*s\n", (int)len, why);
    return EXIT_CODE_NOT_STARTED;
}

// --- Settings of the server ----------------------------------------------------------------------

static bool is_default(const struct config *config, const char *key)
{
    return strncmp(config_source_text(config, commands_setting(key)), "default", 7) == 0;
}

// Returns true if the setting comes from the file of the host's own server, which nobody has named
// for this run.
static bool is_of_host(const struct config *config, const char *key)
{
    const char *source = config_source_text(config, commands_setting(key));
    size_t len = config->is_default_file ? strlen(config->file) : 0;
    return len > 0 && strncmp(source, config->file, len) == 0 && source[len] == ':';
}

// Returns true if the user has set it for this run: by a flag, a variable, or a file.
static bool is_given(const struct config *config, const char *key)
{
    return !is_default(config, key) && !is_of_host(config, key);
}

static bool base_directory(const struct config *config, char ret_path[PATH_MAX])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int len;
    if (is_given(config, "cache.dir")) {
        len = snprintf(ret_path, PATH_MAX, "%s", config->cache_dir);
    } else if (cache != NULL && cache[0] == '/') {
        len = snprintf(ret_path, PATH_MAX, "%s/forebay", cache);
    } else if (home != NULL && home[0] == '/') {
        len = snprintf(ret_path, PATH_MAX, "%s/.cache/forebay", home);
    } else {
        len = snprintf(ret_path, PATH_MAX, "%s", config->cache_dir);
    }
    return len > 0 && len < PATH_MAX - 8; // leaves room for a number
}

// Chooses the first unused directory from number *from on. Sets *from to the number after it.
static bool choose_directory(struct run *run, unsigned *from)
{
    char base[PATH_MAX];
    struct store_look look;
    if (!base_directory(run->config, base)) {
        return false;
    }
    while (*from <= DIRECTORIES_MAX) {
        unsigned i = (*from)++;
        int len = i == 1 ? snprintf(run->dir, sizeof(run->dir), "%s", base)
                         : snprintf(run->dir, sizeof(run->dir), "%.4080s-%u", base, i);
        if (len > 0 && (store_look(run->dir, &look) != ERR_OK || !look.is_in_use)) {
            run->is_other_dir = i > 1;
            (void)snprintf(run->dir_flag, sizeof(run->dir_flag), "--cache.dir=%s", run->dir);
            return true; // if store_look() failed, the server reports why
        }
    }
    return false;
}

// Starts the server. Two runs may choose the same directory; the later one then tries the next.
static bool start_server(struct run *run, unsigned *from, struct buf *ret_why)
{
    struct store_look look;
    while (!command_server_start(&run->server, START_TIMEOUT_MS, ret_why)) {
        bool was_taken = store_look(run->dir, &look) == ERR_OK && look.is_in_use;
        if (!was_taken || !choose_directory(run, from)) {
            return false;
        }
        ret_why->len = 0; // drop the message of that server
    }
    return true;
}

// Returns the endpoint that the SDKs of this environment use, which becomes the origin. NULL: there
// is none, or the settings name an origin.
static const char *client_endpoint(const struct run *run)
{
    const char *endpoint = run->client.endpoint.text;
    return endpoint[0] != '\0' && is_default(run->config, "origin.endpoint") ? endpoint : NULL;
}

// Returns the endpoint of the origin, as the client's environment or the settings name it.
static const char *origin_endpoint_of(const struct run *run)
{
    const char *endpoint = client_endpoint(run);
    return endpoint != NULL ? endpoint : run->config->origin_endpoint;
}

// Returns the file of certificate authorities that the SDKs of this environment use, which the
// server uses for its https origin, too. NULL: there is none, or the settings name one.
static const char *client_ca_file(const struct run *run)
{
    const char *file = run->client.ca_file.text;
    bool is_used =
        file[0] != '\0' && strncmp(origin_endpoint_of(run), "https:", strlen("https:")) == 0;
    return is_used && is_default(run->config, "origin.ca_file") ? file : NULL;
}

// Returns the URL of the origin, which may be a constant, or is in ret_whole.
static const char *origin_url(const struct run *run, char ret_whole[COMMAND_ORIGINS_URL_MAX])
{
    const char *url = origin_endpoint_of(run);
    return command_origins_url(url, run->config->origin_region, ret_whole) ? ret_whole : url;
}

// Prints the origin, and the setting, variable or profile that names it: with -v, or if the start
// failed, because a user who gave no --origin.endpoint does not see the reason otherwise.
static void print_origin(const struct run *run, bool has_failed)
{
    const char *setting = config_source_text(run->config, commands_setting("origin.endpoint"));
    bool is_client = client_endpoint(run) != NULL;
    char whole[COMMAND_ORIGINS_URL_MAX];
    const char *url = origin_url(run, whole);
    if (has_failed || commands_common()->is_verbose) {
        command_screen_tell(
            2, "forebay run: the origin is %s (%s)\n", command_client_visible(url),
            command_client_visible(is_client ? run->client.endpoint.source : setting));
        if (client_ca_file(run) != NULL) {
            command_screen_tell(2,
                                "forebay run: its certificate authorities are those in %s (%s)\n",
                                command_client_visible(run->client.ca_file.text),
                                command_client_visible(run->client.ca_file.source));
        }
    }
}

// Names a way out of a fault in the file of the host's own server, which this user cannot correct.
static void tell_of_own_file(const struct config *config, const char *why)
{
    if (config->is_default_file && strstr(why, config->file) != NULL) {
        command_screen_tell(2,
                            "forebay run: %s is for this host's own server; name a file of your "
                            "own, which may be empty: forebay run -c FILE -- CMD\n",
                            config->file);
    }
}

// Says that another profile has another endpoint. A program that chooses a profile itself, as with
// boto3.Session(profile_name=...), would otherwise read from the wrong store without a sign of it.
static void inform_of_other_profile(const struct run *run)
{
    const struct origin_client *client = &run->client;
    if (client->other.text[0] != '\0' && is_default(run->config, "origin.endpoint")) {
        char whole[COMMAND_ORIGINS_URL_MAX];
        command_screen_inform(
            2,
            "forebay run: the command reads from %s, even if it chooses another profile itself; "
            "%s has another endpoint: set AWS_PROFILE to read from it\n",
            command_client_visible(origin_url(run, whole)),
            command_client_visible(client->other.source));
    }
}

// Warns if the environment already points clients to a Forebay on this host, as inside `forebay
// env` or another `forebay run`. Returns true if so.
static bool warn_of_nesting(const struct run *run)
{
    const char *endpoint = client_endpoint(run);
    bool is_nested = endpoint != NULL && command_endpoint_is_forebay(endpoint);
    if (is_nested) {
        command_screen_tell(2,
                            "forebay run: warning: the endpoint of this environment, %s, is a "
                            "Forebay already, so each byte is cached twice; start the command "
                            "without forebay run, or name the store with --origin.endpoint\n",
                            command_client_visible(endpoint));
    }
    return is_nested;
}

// Says that this run does not have the cache of other runs, because a command that reads the same
// data as another one would otherwise be slow for no reason that its user sees.
static void inform_of_directory(const struct run *run)
{
    char base[PATH_MAX];
    if (run->is_other_dir && base_directory(run->config, base)) {
        command_screen_inform(
            2,
            "forebay run: another forebay run or serve uses the cache %s, so this one uses a "
            "second cache, %s. Neither has the data of the other. To share one cache, start "
            "`forebay serve` once, and then each command without forebay run, in a shell after "
            "`eval \"$(forebay env)\"`\n",
            command_client_visible(base), command_client_visible(run->dir));
    }
}

// Reports a flag for an address that each run chooses itself. Those of the file and the environment
// are for `serve`, and are ignored. Returns true if there is none.
static bool check_flags(const struct config *config)
{
    static const char *const chosen[] = {"listen", "admin.socket"};
    for (size_t i = 0; i < ARRAY_LEN(chosen); i++) {
        const char *source = config_source_text(config, commands_setting(chosen[i]));
        if (strncmp(source, "--", 2) == 0) {
            command_screen_tell(2,
                                "forebay run: %s has no effect here: each run takes a free port of "
                                "127.0.0.1 and a socket of its own, and tells the command; for "
                                "another address run `forebay serve`\n",
                                source);
            return false;
        }
    }
    return true;
}

struct run_flag {
    const char *key, *flag;
};

// Passes on the defaults of a private server.
static void tell_defaults(struct run *run)
{
    static const struct run_flag defaults[] = {{"admin.listen", "--admin.listen=off"},
                                               {"access_log.path", "--access_log.path=off"},
                                               {"log.level", "--log.level=warn"},
                                               {"log.format", "--log.format=text"},
                                               {"shutdown.grace", "--shutdown.grace=5s"}};
    for (size_t i = 0; i < ARRAY_LEN(defaults); i++) {
        if (!is_given(run->config, defaults[i].key)) {
            command_server_word(&run->server, defaults[i].flag);
        }
    }
}

// Leaves out what the file of the host's own server has for that server alone: its clients, its
// disk and its secrets, which this user may not read.
static void leave_out_host(struct run *run)
{
    static const struct run_flag left[] = {
        {"listen_tls.cert", "--listen_tls.cert="},
        {"listen_tls.key", "--listen_tls.key="},
        {"admin.token_file", "--admin.token_file="},
        {"auth.mode", "--auth.mode=auto"},
        {"auth.keys_file", "--auth.keys_file="},
        {"cache.size", "--cache.size=80%"},
        {"origin.proxy_auth_file", "--origin.proxy_auth_file="},
        {"credentials.access_key_file", "--credentials.access_key_file="},
        {"credentials.secret_key_file", "--credentials.secret_key_file="},
        {"credentials.session_token_file", "--credentials.session_token_file="}};
    const struct config *config = run->config;
    for (size_t i = 0; i < ARRAY_LEN(left); i++) {
        if (is_of_host(config, left[i].key)) {
            command_server_word(&run->server, left[i].flag);
        }
    }
    if (is_of_host(config, "credentials.source") &&
        config->credentials_source == CONFIG_CREDENTIALS_CONFIG) {
        command_server_word(&run->server, "--credentials.source=auto"); // there are no files
    }
}

static void tell_server(struct run *run, int argc, char **argv)
{
    static const char *const ours[] = {"--cache.dir", NULL};
    const char *endpoint = client_endpoint(run);
    command_server_settings(&run->server, argc, argv, ours);
    (void)snprintf(run->socket_flag, sizeof(run->socket_flag), "--admin.socket=%s",
                   run->server.admin + strlen("unix:"));
    command_server_word(&run->server, run->dir_flag);
    command_server_word(&run->server, run->socket_flag);
    tell_defaults(run);
    leave_out_host(run);
    if (endpoint != NULL) {
        (void)snprintf(run->endpoint_flag, sizeof(run->endpoint_flag), "--origin.endpoint=%s",
                       endpoint);
        command_server_word(&run->server, run->endpoint_flag);
    }
    if (client_ca_file(run) != NULL) {
        (void)snprintf(run->ca_file_flag, sizeof(run->ca_file_flag), "--origin.ca_file=%s",
                       run->client.ca_file.text);
        command_server_word(&run->server, run->ca_file_flag);
    }
}

// --- CMD -----------------------------------------------------------------------------------------

static void set_variable(void *ctx, const char *name, const char *value)
{
    (void)ctx;
    check(setenv(name, value, 1) == 0);
}

// Sets the environment variables of CMD, which commands of Forebay inside CMD use, too. A client
// without keys sends no request. A directory as the origin accepts any keys, so CMD then gets some.
static void set_environment(const struct run *run)
{
    check(command_env_variables(run->url, run->is_global, set_variable, NULL));
    set_variable(NULL, "FOREBAY_ADMIN", run->server.admin);
    if (strncmp(run->config->origin_endpoint, "dir:", 4) == 0 &&
        getenv("AWS_ACCESS_KEY_ID") == NULL && getenv("AWS_PROFILE") == NULL) {
        set_variable(NULL, "AWS_ACCESS_KEY_ID", "forebay");
        set_variable(NULL, "AWS_SECRET_ACCESS_KEY", "forebay");
    }
}

// Starts CMD. Returns 0 if CMD runs, otherwise an exit code. The child writes the errno of a failed
// exec to a pipe, which a successful exec closes.
static int start_child(struct run *run, char **words, const struct run_signals *signals)
{
    int pipes[2], failed = 0;
    pid_t parent = getpid();
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        return not_started(strerror(errno));
    }
    run->child = fork();
    if (run->child == 0) {
        (void)close(pipes[0]); // the parent's end
        set_environment(run);
        (void)signal(SIGPIPE,
                     signals->before_pipe); // a signal that is ignored stays ignored after exec
        (void)signal(SIGCHLD, signals->before_child);
        (void)sigprocmask(SIG_SETMASK, &signals->before, NULL); // cannot fail
        if (prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent) {
            (void)execvp(words[0], words);
        }
        failed = errno;
        (void)!write(pipes[1], &failed, sizeof(failed)); // the parent reads it, or has ended
        _exit(EXIT_NOT_FOUND);
    }
    (void)close(pipes[1]); // the child's end
    if (run->child < 0) {
        (void)close(pipes[0]); // nobody writes to it
        return not_started(strerror(errno));
    }
    ssize_t len;
    do {
        len = read(pipes[0], &failed, sizeof(failed));
    } while (len < 0 && errno == EINTR);
    (void)close(pipes[0]); // nothing was written to it
    if (len != (ssize_t)sizeof(failed)) {
        return 0;
    }
    while (waitpid(run->child, NULL, 0) < 0 && errno == EINTR) {
    }
    run->child = 0;
    command_screen_tell(2, "forebay run: %s: %s\n", words[0], strerror(failed));
    return failed == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
}

static int code_of_status(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_SIGNAL + WTERMSIG(status);
}

// Restarts a server that has ended, on the same port. Connections of CMD wait for it.
static void restart_server(struct run *run)
{
    struct buf why;
    command_server_ended(&run->server);
    buf_init(&why, TEXT_MAX_BYTES);
    bool again = run->restarts++ < RESTARTS_MAX &&
                 command_server_start(&run->server, START_TIMEOUT_MS, &why);
    command_screen_tell(2, "forebay run: the cache has ended%s\n",
                        again ? ", and was started again" : "; further reads of the command fail");
    if (!again) {
        command_screen_tell(2, "%s", buf_cstr(&why));
    }
    buf_done(&why);
}

// Reaps every child that has ended. Returns true if CMD is among them.
static bool reap(struct run *run, int *ret_code)
{
    bool is_over = false;
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == run->child) {
            *ret_code = code_of_status(status);
            is_over = true;
        } else if (pid == run->server.pid) {
            restart_server(run);
        }
    }
    return is_over;
}

// Returns where the keys come from that the server and CMD share. NULL: they need not be the same.
static const char *shared_keys(const struct run *run)
{
    const char *id = getenv("AWS_ACCESS_KEY_ID");
    bool is_auto = is_default(run->config, "credentials.source") &&
                   !is_given(run->config, "credentials.access_key_file");
    return !is_auto ? NULL
           : id != NULL && id[0] != '\0'
               ? "AWS_ACCESS_KEY_ID in the environment, which the command uses, too"
               : "the profile or the role of this environment, which the command uses, too";
}

// Prints conditions of the server that have begun, because nobody sees its log.
static void tell_conditions(struct run *run)
{
    struct buf log;
    buf_init(&log, TEXT_MAX_BYTES);
    command_server_log_next(&run->server, &log);
    command_run_conditions_tell(&run->told, buf_span(&log), shared_keys(run));
    buf_done(&log);
}

// Forwards signals to CMD, except those that the terminal has sent to the whole process group.
static int wait_for_child(struct run *run, const sigset_t *signals)
{
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000l};
    int code = 0;
    for (;;) {
        siginfo_t info;
        int number = sigtimedwait(signals, &info, &pause);
        tell_conditions(run);
        // After each signal, because one SIGCHLD may stand for several children.
        if (reap(run, &code)) {
            return code;
        }
        if (number > 0 && number != SIGCHLD && info.si_code != SI_KERNEL) {
            (void)kill(run->child, number); // the pid is valid, because CMD is not reaped yet
        }
    }
}

// --- The summary ---------------------------------------------------------------------------------

static bool is_in_use(const json_t *summary)
{
    return command_client_double(json_object_get(summary, "counters"),
                                 stats_name(COUNTER_http_connections_active)) > 0;
}

// Waits until the counters settle. The server counts bytes a moment after CMD has read them, and a
// child of CMD may continue reading. Returns NULL if the server does not answer.
static json_t *settled_summary(struct run *run)
{
    json_t *summary = command_server_summary(&run->server);
    for (unsigned tries = 1; tries < SETTLE_TRIES && is_in_use(summary); tries++) {
        (void)poll(NULL, 0, SETTLE_MS); // a signal may shorten the pause
        json_decref(summary);
        summary = command_server_summary(&run->server);
    }
    return summary;
}

static void summarize(struct run *run)
{
    struct buf log;
    json_t *summary = run->is_quiet ? NULL : settled_summary(run);
    buf_init(&log, TEXT_MAX_BYTES);
    command_server_log(&run->server, &log);
    if (summary != NULL) {
        command_run_summary_print(summary, buf_span(&log), run->dir, run->is_global);
    }
    json_decref(summary);
    buf_done(&log);
}

// --- The command ---------------------------------------------------------------------------------

static void block_signals(struct run_signals *ret_signals)
{
    static const int numbers[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    (void)sigemptyset(&ret_signals->waited);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        (void)sigaddset(&ret_signals->waited, numbers[i]);
    }
    check(sigprocmask(SIG_BLOCK, &ret_signals->waited, &ret_signals->before) == 0);
    ret_signals->before_pipe = signal(SIGPIPE, SIG_IGN);
    ret_signals->before_child =
        signal(SIGCHLD, SIG_DFL); // the kernel sends no SIGCHLD while it is ignored
    check(ret_signals->before_pipe != SIG_ERR && ret_signals->before_child != SIG_ERR);
}

// Runs the server, then CMD, and prints the summary. `words` is CMD, ended by NULL. Returns the
// exit code.
static int run_all(struct run *run, int argc, char **argv, char **words)
{
    struct run_signals signals;
    struct buf why;
    block_signals(&signals);
    buf_init(&why, TEXT_MAX_BYTES);
    int code = EXIT_CODE_NOT_STARTED;
    unsigned from = 1;
    if (!choose_directory(run, &from)) {
        buf_append_cstr(&why, "every cache directory is in use: name another one with --cache.dir");
    } else if (command_server_init(&run->server, &why)) {
        tell_server(run, argc, argv);
        (void)snprintf(run->url, sizeof(run->url), "http://127.0.0.1:%u", run->server.port);
        if (start_server(run, &from, &why)) {
            command_screen_inform_more(2, "forebay run: %s answers from %s\n", run->url,
                                       command_client_visible(run->dir));
            command_screen_inform_more(2, "forebay run: to watch it: forebay top --admin %s\n",
                                       run->server.admin);
            print_origin(run, false);
            inform_of_other_profile(run);
            command_old_clients_warn("run", words[0]);
            command_env_warn_of_ignored(&run->client, "run");
            if (!warn_of_nesting(run)) {
                inform_of_directory(run);
            }
            code = start_child(run, words, &signals);
            if (code == 0) {
                code = wait_for_child(run, &signals.waited);
                summarize(run);
            }
            command_server_stop(&run->server, STOP_TIMEOUT_MS);
        }
    }
    if (why.len > 0) {
        code = not_started(buf_cstr(&why));
        tell_of_own_file(run->config, buf_cstr(&why));
        print_origin(run, true);
    }
    buf_done(&why);
    command_server_done(&run->server);
    return code;
}

// Returns the profile that the words of CMD name to aws or s5cmd. NULL: they name none.
static const char *profile_of_words(char *const *words)
{
    static const char flag[] = "--profile";
    const size_t len = sizeof(flag) - 1;
    bool is_known = false;
    for (; *words != NULL; words++) {
        const char *slash = strrchr(*words, '/'), *name = slash != NULL ? slash + 1 : *words;
        is_known = is_known || strcmp(name, "aws") == 0 || strcmp(name, "s5cmd") == 0;
        if (is_known && strcmp(*words, flag) == 0) {
            return words[1];
        }
        if (is_known && strncmp(*words, flag, len) == 0 && (*words)[len] == '=') {
            return *words + len + 1;
        }
    }
    return NULL;
}

// Makes the profile that CMD names the profile of this environment, so that the server has its
// endpoint, region and keys. Keys in variables do not count then, as for these programs.
static void take_profile_of_words(char *const *words)
{
    static const char *const keys[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                                       "AWS_SESSION_TOKEN"};
    const char *profile = profile_of_words(words);
    if (profile == NULL || profile[0] == '\0') {
        return;
    }
    set_variable(NULL, "AWS_PROFILE", profile);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        check(unsetenv(keys[i]) == 0);
    }
    command_screen_inform_more(2, "forebay run: AWS_PROFILE is %s, as --profile of %s says\n",
                               command_client_visible(profile), command_client_visible(words[0]));
}

int command_run(int argc, char **argv)
{
    struct run *run = calloc(1, sizeof(*run));
    check(run != NULL);
    run->server = COMMAND_SERVER_NONE;
    run->is_global = commands_argument_take(&argc, argv, "--global");
    run->is_quiet = commands_common()->is_quiet;
    unsigned operand_count = commands_common()->operand_count;
    char **words = calloc(operand_count + 1, sizeof(*words));
    check(words != NULL);
    memcpy(words, argv, operand_count * sizeof(*words));
    argc -= (int)operand_count;
    argv += operand_count;
    take_profile_of_words(words);
    run->config = commands_load_client(argc, argv); // the server judges its files
    origin_client_read(&run->client);
    int code = EXIT_CODE_NOT_STARTED;
    if (run->config != NULL && check_flags(run->config)) { // otherwise the error has been reported
        code = run_all(run, argc, argv, words);
    }
    free(words);
    config_free(run->config);
    free(run);
    return code;
}
