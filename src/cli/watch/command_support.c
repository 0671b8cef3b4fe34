// SPDX-License-Identifier: Apache-2.0
// `forebay support [-o FILE]`: writes one text file with all facts that support asks for. It has no
// secrets: settings name files with secrets, but not their contents. Environment variables appear
// only by name, except FOREBAY_*, which also have their values. It contains no object keys; users
// add logs themselves.
#include "commands/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/child.h"
#include "base/date.h"

#define OUTPUT_MAX_BYTES (16u << 20)
#define FILE_SHOWN_BYTES 65536u
#define INTERVAL_MAX_S 3600u

extern char **environ;

static void title(struct buf *out, const char *name)
{
    buf_printf(out, "\n===== %s =====\n", name);
}

// --- Output of this program ----------------------------------------------------------------------

static void read_all(int fd, struct buf *out)
{
    char piece[4096];
    ssize_t len;
    while ((len = read(fd, piece, sizeof(piece))) != 0) {
        if (len > 0) {
            buf_append(out, piece, (size_t)len);
        } else if (errno != EINTR) {
            return;
        }
    }
}

// Appends the output of `forebay WORD [flag] settings...`, stdout and stderr.
static void run_self(struct buf *out, const char *word, const char *flag, int argc, char **argv)
{
    const char *const first[] = {"forebay", word, flag};
    unsigned count = flag != NULL ? 3 : 2;
    int pipes[2];
    pid_t pid;
    title(out, word);
    if (pipe2(pipes, O_CLOEXEC) != 0) {
        buf_printf(out, "%s\n", strerror(errno));
        return;
    }
    char **words = calloc(ARRAY_LEN(first) + (size_t)argc + 1, sizeof(*words));
    check(words != NULL);
    memcpy(words, first, count * sizeof(*words)); // argv is not const, but nothing writes to it
    for (int i = 0; i < argc; i++) {
        words[count++] = argv[i];
    }
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    child_attributes_init(&attributes);
    check(posix_spawn_file_actions_init(&actions) == 0);
    check(posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO) == 0);
    check(posix_spawn_file_actions_adddup2(&actions, pipes[1], STDERR_FILENO) == 0);
    int failed = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, words, environ);
    free(words);
    (void)posix_spawnattr_destroy(&attributes);       // cannot fail
    (void)posix_spawn_file_actions_destroy(&actions); // cannot fail
    (void)close(pipes[1]);                            // the child's end
    if (failed == 0) {
        int status = 0;
        read_all(pipes[0], out);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        buf_printf(out, "(exit %d)\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    } else {
        buf_printf(out, "%s\n", strerror(failed));
    }
    (void)close(pipes[0]); // nothing was written to it
}

// --- A running server ----------------------------------------------------------------------------

// Appends the server's answer for `path`. Returns false if the server does not answer.
static bool ask(struct buf *out, const struct config *config, const char *path)
{
    unsigned status = 0;
    title(out, path);
    enum err err = commands_ask_server(config, path, &status, out);
    if (err != ERR_OK) {
        buf_printf(out, "no server answers%s: %s\n", commands_tried(), error_row(err)->text);
        return false;
    }
    buf_printf(out, "\n(status %u)\n", status);
    return true;
}

static bool ask_all(struct buf *out, const struct config *config, uint64_t interval_s)
{
    static const char *const paths[] = {"/version", "/livez", "/readyz", "/api/v1/config",
                                        "/metrics"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (!ask(out, config, paths[i])) {
            return false;
        }
    }
    (void)poll(NULL, 0, (int)(1000 * interval_s)); // a signal may shorten the pause
    return ask(out, config, "/metrics");
}

// --- This host -----------------------------------------------------------------------------------

static void show_file(struct buf *out, const char *path)
{
    char text[FILE_SHOWN_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    title(out, path);
    ssize_t len = fd >= 0 ? read(fd, text, sizeof(text)) : -1;
    if (len >= 0) {
        buf_append(out, text, (size_t)len);
    } else {
        buf_printf(out, "%s\n", strerror(errno));
    }
    if (fd >= 0) {
        (void)close(fd); // the file was only read
    }
}

static bool may_hold_secret(struct span name)
{
    static const char *const words[] = {"KEY", "SECRET", "TOKEN", "PASSWORD"};
    bool may = false;
    for (size_t w = 0; w < ARRAY_LEN(words) && !may; w++) {
        struct span word = span_from_cstr(words[w]);
        for (size_t i = 0; i + word.len <= name.len && !may; i++) {
            may = memcmp(name.ptr + i, word.ptr, word.len) == 0;
        }
    }
    return may;
}

static void show_environment(struct buf *out)
{
    title(out, "environment");
    for (char **at = environ; *at != NULL; at++) {
        struct span entry = span_from_cstr(*at);
        struct span name = {entry.ptr, span_find(entry, '=')};
        bool is_ours = span_starts_with(name, SPAN("FOREBAY_")) && !may_hold_secret(name);
        if (is_ours) {
            buf_printf(out, "%s\n", *at);
        } else if (span_starts_with(name, SPAN("FOREBAY_")) ||
                   span_starts_with(name, SPAN("AWS_")) || span_ends_with(name, SPAN("_proxy")) ||
                   span_ends_with(name, SPAN("_PROXY"))) {
            buf_printf(out, "%.*s is set\n", (int)name.len, name.ptr);
        }
    }
}

static void show_host(struct buf *out)
{
    static const char *const files[] = {"/proc/version",
                                        "/proc/self/limits",
                                        "/proc/meminfo",
                                        "/proc/self/cgroup",
                                        "/sys/fs/cgroup/memory.max",
                                        "/sys/fs/cgroup/memory.high",
                                        "/sys/fs/cgroup/cpu.max",
                                        "/sys/fs/cgroup/cpu.stat",
                                        "/proc/pressure/cpu",
                                        "/proc/self/mounts",
                                        "/proc/diskstats",
                                        "/proc/sys/kernel/io_uring_disabled"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        show_file(out, files[i]);
    }
    show_environment(out);
}

// --- The file ------------------------------------------------------------------------------------

// Writes a new file, for its owner alone. Never overwrites an existing file.
static int write_file(const char *path, const struct buf *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && buf_ok(text) && commands_write_all(fd, buf_span(text));
    if (fd >= 0 && close(fd) != 0) {
        ok = false;
    }
    if (!ok) {
        command_screen_tell(2, "forebay support: %s: %s\n", path, strerror(errno));
    }
    return ok ? EXIT_CODE_OK : EXIT_CODE_FAILED;
}

static void name_by_time(char ret_path[64])
{
    char date[DATE_AMZ_LEN + 1];
    date_format_amz(time(NULL), date);
    (void)snprintf(ret_path, 64, "forebay-support-%s.txt", date);
}

int command_support(int argc, char **argv)
{
    char path[64];
    uint64_t interval_s = 5;
    const char *file = commands_argument_take_value(&argc, argv, "-o");
    if (!commands_argument_take_number(&argc, argv, "--interval", 0, INTERVAL_MAX_S, &interval_s)) {
        return commands_usage_error("support", "--interval is 0 to 3600 seconds");
    }
    bool is_guess;
    struct config *config = commands_load_admin(argc, argv, &is_guess);
    if (config == NULL) {
        return EXIT_CODE_CONFIGURATION;
    }
    struct buf out;
    buf_init(&out, OUTPUT_MAX_BYTES);
    run_self(&out, "version", NULL, 0, NULL);
    run_self(&out, "check", "-T", argc, argv);
    run_self(&out, "doctor", NULL, argc, argv);
    bool has_server = ask_all(&out, config, interval_s);
    show_host(&out);
    name_by_time(path);
    file = file != NULL ? file : path;
    int code = strcmp(file, "-") == 0 ? commands_print_result(&out) : write_file(file, &out);
    if (code == EXIT_CODE_OK && strcmp(file, "-") != 0) {
        printf("%s: read it before you send it; the server's log is not in it\n", file);
    }
    config_free(config);
    buf_done(&out);
    return code == EXIT_CODE_OK && !has_server ? EXIT_CODE_PARTLY : code;
}
