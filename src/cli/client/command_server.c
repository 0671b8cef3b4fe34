// SPDX-License-Identifier: Apache-2.0
// The command itself opens the port and hands it over by LISTEN_FDS. So the port is known before
// the server runs, and stays open when the server has ended. A restarted server has the same port,
// and connections wait for it. The server reports READY=1 on NOTIFY_SOCKET, an abstract socket. The
// kernel ends the server when its parent ends, for whatever reason. The server has a session of its
// own, so that the terminal's signals reach only the command.
#include "cli/client/command_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/random.h"
#include "commands/commands.h"
#include "control/control.h"

#define BACKLOG 1024
#define HANDED_OVER 3 // first descriptor of LISTEN_FDS
// Descriptors from this number on do not collide with those that are handed over.
#define HIGH_FD 10
#define SUMMARY_TIMEOUT_MS 5000u
#define LOG_SHOWN_BYTES 8192
#define LOG_MAX_BYTES (1 << 20)

static bool fail(struct buf *ret_why, const char *what)
{
    buf_printf(ret_why, "%s: %s", what, strerror(errno));
    return false;
}

// --- Resources -----------------------------------------------------------------------------------

static bool open_port(struct command_server *s, struct buf *ret_why)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    s->listen_fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD) : -1;
    if (fd >= 0) {
        (void)close(fd); // only the copy is used
    }
    if (s->listen_fd < 0 || bind(s->listen_fd, (struct sockaddr *)&at, len) != 0 ||
        listen(s->listen_fd, BACKLOG) != 0 ||
        getsockname(s->listen_fd, (struct sockaddr *)&at, &len) != 0) {
        return fail(ret_why, "no port on 127.0.0.1");
    }
    s->port = ntohs(at.sin_port);
    return true;
}

static bool open_notify(struct command_server *s, struct buf *ret_why)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    (void)snprintf(s->notify, sizeof(s->notify), "@forebay-%d-%016llx", (int)getpid(),
                   (unsigned long long)random_u64());
    size_t len = strlen(s->notify);
    memcpy(at.sun_path, s->notify, len);
    at.sun_path[0] = '\0';
    s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return (s->notify_fd >= 0 &&
            bind(s->notify_fd, (struct sockaddr *)&at,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) == 0) ||
           fail(ret_why, "no socket to be notified by");
}

static bool make_folder(struct command_server *s, struct buf *ret_why)
{
    int fd = commands_run_make(s->folder, s->admin, sizeof(s->folder));
    s->lock_fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD) : -1;
    if (fd >= 0) {
        (void)close(fd); // only the copy is used, which keeps the lock
    }
    return s->lock_fd >= 0 || fail(ret_why, "no folder for a socket");
}

bool command_server_init(struct command_server *s, struct buf *ret_why)
{
    *s = COMMAND_SERVER_NONE;
    int fd = memfd_create("forebay-log", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    s->log_fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD) : -1;
    if (fd >= 0) {
        (void)close(fd); // only the copy is used
    }
    if (s->log_fd < 0 || ftruncate(s->log_fd, LOG_MAX_BYTES) != 0 ||
        fcntl(s->log_fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) !=
            0) { // the file cannot grow, so output beyond LOG_MAX_BYTES is refused
        return fail(ret_why, "no file for its log");
    }
    command_server_word(s, "forebay");
    command_server_word(s, "serve");
    return open_port(s, ret_why) && open_notify(s, ret_why) && make_folder(s, ret_why);
}

void command_server_word(struct command_server *s, const char *word)
{
    s->words = realloc(s->words, (s->word_count + 2) * sizeof(*s->words));
    check(s->words != NULL);
    s->words[s->word_count++] = (char *)(uintptr_t)word; // argv is not const; nobody writes to it
    s->words[s->word_count] = NULL;
}

static bool is_skipped(const char *word, const char *const *skipped)
{
    bool is = false;
    for (size_t i = 0; skipped[i] != NULL && !is; i++) {
        size_t len = strlen(skipped[i]);
        is = strncmp(word, skipped[i], len) == 0 && (word[len] == '\0' || word[len] == '=');
    }
    return is;
}

void command_server_settings(struct command_server *s, int argc, char **argv,
                             const char *const *skipped)
{
    for (int i = 0; i < argc; i++) {
        bool has_value = strchr(argv[i], '=') == NULL && i + 1 < argc; // the next word is the value
        if (!is_skipped(argv[i], skipped)) {
            command_server_word(s, argv[i]);
            if (has_value) {
                command_server_word(s, argv[i + 1]);
            }
        }
        i += has_value;
    }
}

// --- Start and stop ------------------------------------------------------------------------------

// Runs in the child, which has one thread. Does not return.
static void become_server(const struct command_server *s, pid_t parent)
{
    char number[16];
    child_reset_signals();
    (void)setsid(); // a fresh child leads no group, so it cannot fail
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool ok = prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 && getppid() == parent && null >= 0 &&
              dup2(null, STDIN_FILENO) >= 0 && dup2(s->log_fd, STDOUT_FILENO) >= 0 &&
              dup2(s->log_fd, STDERR_FILENO) >= 0 && dup2(s->listen_fd, HANDED_OVER) >= 0;
    (void)snprintf(number, sizeof(number), "%d", (int)getpid());
    ok = ok && setenv("LISTEN_PID", number, 1) == 0 && setenv("LISTEN_FDS", "1", 1) == 0 &&
         unsetenv("LISTEN_FDNAMES") == 0 && setenv("NOTIFY_SOCKET", s->notify, 1) == 0;
    if (ok) {
        (void)execv("/proc/self/exe", s->words);
    }
    _exit(127);
}

static bool is_ready(struct command_server *s)
{
    char text[256];
    bool ready = false;
    for (;;) {
        ssize_t len = recv(s->notify_fd, text, sizeof(text) - 1, 0);
        if (len <= 0) {
            return ready; // EAGAIN: no more messages
        }
        text[len] = '\0';
        ready = ready || strstr(text, "READY=1") != NULL;
    }
}

bool command_server_start(struct command_server *s, uint64_t timeout_ms, struct buf *ret_why)
{
    pid_t parent = getpid();
    check(s->pid == 0);
    (void)is_ready(s); // discards messages of a former server
    pid_t pid = fork();
    if (pid < 0) {
        return fail(ret_why, "no process for the server");
    }
    if (pid == 0) {
        become_server(s, parent);
    }
    s->pid = pid;
    int ended = (int)syscall(SYS_pidfd_open, pid, 0);
    uint64_t until_ms = clock_monotonic_ms() + timeout_ms;
    bool ready = false;
    for (uint64_t now_ms = 0; !ready && (now_ms = clock_monotonic_ms()) < until_ms;) {
        struct pollfd fds[] = {{.fd = s->notify_fd, .events = POLLIN},
                               {.fd = ended, .events = POLLIN}};
        int count = poll(fds, ARRAY_LEN(fds), (int)min_u64(until_ms - now_ms, 60000));
        ready = count > 0 && is_ready(s);
        if (!ready && count > 0 && (fds[1].revents & POLLIN) != 0) {
            break; // the server has ended
        }
    }
    if (ended >= 0) {
        (void)close(ended); // nothing was written to it
    }
    if (!ready) {
        command_server_stop(s, 0);
        command_server_log(s, ret_why);
    }
    return ready;
}

void command_server_ended(struct command_server *s)
{
    s->pid = 0;
}

void command_server_log(struct command_server *s, struct buf *ret_text)
{
    char text[LOG_SHOWN_BYTES];
    // The offset is shared with the server, so it is the end of the log.
    off_t size = lseek(s->log_fd, 0, SEEK_CUR);
    off_t from = size > LOG_SHOWN_BYTES ? size - LOG_SHOWN_BYTES : 0;
    ssize_t len = pread(s->log_fd, text, (size_t)(size - from), from);
    if (len > 0) {
        buf_append(ret_text, text, (size_t)len);
    }
}

void command_server_log_next(struct command_server *s, struct buf *ret_text)
{
    char text[LOG_SHOWN_BYTES];
    ssize_t len = 0;
    do {
        off_t size = lseek(s->log_fd, 0, SEEK_CUR) - s->log_read;
        len = pread(s->log_fd, text, (size_t)min_u64((uint64_t)size, sizeof(text)), s->log_read);
        if (len > 0) {
            buf_append(ret_text, text, (size_t)len);
            s->log_read += len;
        }
    } while (len > 0);
}

json_t *command_server_summary(struct command_server *s)
{
    struct buf text;
    unsigned status = 0;
    buf_init(&text, ADMIN_ANSWER_MAX);
    bool is_read = s->pid > 0 &&
                   admin_client_get(s->admin, "/api/v1/summary", SUMMARY_TIMEOUT_MS, &status,
                                    &text) == ERR_OK &&
                   status == 200;
    json_t *summary = is_read ? json_loadb(text.ptr, text.len, 0, NULL) : NULL;
    buf_done(&text);
    return summary;
}

void command_server_stop(struct command_server *s, uint64_t grace_ms)
{
    if (s->pid == 0) {
        return;
    }
    int ended = (int)syscall(SYS_pidfd_open, s->pid, 0);
    struct pollfd fd = {.fd = ended, .events = POLLIN};
    (void)kill(s->pid, SIGTERM); // the pid is valid, because our child is not reaped yet
    if (grace_ms == 0 || ended < 0 || poll(&fd, 1, (int)min_u64(grace_ms, 600000)) <= 0) {
        (void)kill(s->pid, SIGKILL);
    }
    if (ended >= 0) {
        (void)close(ended); // nothing was written to it
    }
    while (waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    s->pid = 0;
}

void command_server_done(struct command_server *s)
{
    const int fds[] = {s->listen_fd, s->notify_fd, s->log_fd, s->lock_fd};
    command_server_stop(s, 0);
    free(s->words);
    s->words = NULL;
    s->word_count = 0;
    commands_run_remove(s->folder); // before the lock is released
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]); // no data is pending, so a failure loses nothing
        }
    }
}
