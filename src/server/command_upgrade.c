// SPDX-License-Identifier: Apache-2.0
// Replaces an old process by a new one. Runs on the main thread of both. The two exchange one
// message per step over a pair of sockets:
//
//   old                                          new
//   starts the new one, which inherits the
//   listening sockets (LISTEN_FDS) and this pair
//                                                reads its configuration and prepares all that
//                                                needs no cache directory. Sends READY and how many
//                                                connections per message it takes (default: 1), or
//                                                FAILED and the reason.
//   COMMIT. Accepts no more: new clients wait in
//   the sockets' queues. Sends connections with
//   no bytes of a next request into a second
//   pair, where they wait.
//   Waits for open exchanges, shutdown.grace at
//   most. Closes the cache and releases its lock.
//   YOURS                                        opens the cache. SERVING. Accepts from the queues
//                                                and from the second pair.
//   ends
//
// Deaths and stops:
// - Before COMMIT nothing has changed. The old process continues. A new process without an old one
//   ends.
// - If the old process must stop before YOURS, it ends the new one too, and takes back the
//   connections that it has sent. After YOURS it forwards the signal, because a stop request must
//   leave no server.
// - The old process also forwards SIGHUP and SIGUSR1, because the new one has read its files before
//   COMMIT.
// - If the old process dies after COMMIT, the new one continues as after YOURS. The kernel has
//   released the lock.
// - If the new process fails, or does not serve in time, the old one ends it. It then restarts
//   itself from /proc/self/exe, which exists even if the file does not.
//
// So at most one process has the cache directory at any time, and at least one has the listening
// sockets open.
//
// The new process has another process id, and the supervisor of the server must know it. Forebay
// reports it to systemd (MAINPID). Process 1 of a container cannot end without the container, so it
// refuses to upgrade.
//
// Until it is READY, the new process leads a process group, which is killed if it fails. The
// program may be a script that has started others. They and all later children inherit only the
// descriptors that are handed over.
#include "server/command_upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/log.h"
#include "commands/commands.h"
#include "http/http.h"

#define VARIABLE "FOREBAY_HANDOVER" // PID:CONTROL:PASSED:FORMER:PATH, ids and descriptors
#define FIRST_FD 3                  // first descriptor of LISTEN_FDS
#define HIGH_FD 64                  // above all descriptors that are handed over
#define SERVING_MS 60000u           // from YOURS to SERVING
#define DYING_MS 10000              // longest wait until a dead process has closed its descriptors
#define WHY_MAX 4000
#define WORDS_MAX 1024
#define PASSING_BYTES (4 << 20) // send buffer of `passing_fd`; the kernel may allow less

enum step { READY = 'R', FAILED = 'F', COMMIT = 'C', YOURS = 'Y', SERVING = 'S' };

static void fd_close(int *fd)
{
    if (*fd >= 0) {
        (void)close(*fd); // no data is pending in these sockets, so a failure loses nothing
        *fd = -1;
    }
}

static void say(int fd, enum step step, const char *why)
{
    char text[WHY_MAX + 2];
    int len = snprintf(text, sizeof(text), "%c%s", step, why);
    (void)send(fd, text, min_u64((uint64_t)len, sizeof(text) - 1),
               MSG_NOSIGNAL); // if the peer has gone, the next read reports it
}

// Receives the next message, ended by NUL. Returns false if the other side is gone, has sent
// nothing in time, or `signals` (a descriptor; -1: none) is readable.
static bool listen_to(int fd, int signals, uint64_t wait_ms, char ret_text[WHY_MAX + 2],
                      const char **ret_trouble)
{
    uint64_t until_ms = clock_monotonic_ms() + wait_ms;
    for (;;) {
        uint64_t now_ms = clock_monotonic_ms();
        struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        int wait = wait_ms == UINT64_MAX ? -1
                   : until_ms > now_ms   ? (int)min_u64(until_ms - now_ms, 600000)
                                         : 0;
        int count = poll(fds, ARRAY_LEN(fds), wait);
        if (count < 0) {
            continue; // EINTR
        }
        *ret_trouble = count == 0 ? "late" : fds[0].revents == 0 ? "stopped" : "gone";
        if (count == 0 || fds[0].revents == 0) {
            return false;
        }
        ssize_t len = recv(fd, ret_text, WHY_MAX + 1, 0);
        if (len > 0) {
            ret_text[len] = '\0';
            return true;
        }
        if (len == 0 || errno != EINTR) {
            return false;
        }
    }
}

// --- the new process -----------------------------------------------------------------------------

static int take_descriptor(struct span text)
{
    uint64_t number = 0;
    if (!span_to_u64(text, &number) || number < FIRST_FD || number > INT_MAX ||
        fcntl((int)number, F_SETFD, FD_CLOEXEC) != 0) {
        return -1;
    }
    return (int)number;
}

static void find_former(struct command_upgrade *u)
{
    struct span text = span_from_cstr(getenv(VARIABLE)), pid, control, passed, former;
    uint64_t number = 0, former_number = 0;
    if (span_split(&text, ':', &pid) && span_to_u64(pid, &number) && number == (uint64_t)getpid() &&
        span_split(&text, ':', &control) && span_split(&text, ':', &passed) &&
        span_split(&text, ':', &former) && span_to_u64(former, &former_number) &&
        text.ptr != NULL && text.len < sizeof(u->path)) {
        u->former_fd = take_descriptor(control);
        u->taken_fd = take_descriptor(passed);
        u->former_pid = (pid_t)former_number;
        memcpy(u->path, text.ptr, text.len); // the array was zeroed, so a NUL follows
    }
    (void)unsetenv(VARIABLE); // children must not inherit it
}

static void find_path(struct command_upgrade *u)
{
    const char *name = (const char *)(uintptr_t)getauxval(AT_EXECFN);
    char cwd[PATH_MAX];
    ssize_t len = 0;
    if (name == NULL || strncmp(name, "/proc/", 6) == 0 || strncmp(name, "/dev/", 5) == 0) {
        len = readlink("/proc/self/exe", u->path, sizeof(u->path) - 1);
        u->path[len > 0 ? len : 0] = '\0';
    } else if (name[0] == '/') {
        len = snprintf(u->path, sizeof(u->path), "%s", name);
    } else if (getcwd(cwd, sizeof(cwd)) != NULL) {
        len = snprintf(u->path, sizeof(u->path), "%s/%s", cwd, name);
    }
    if (len <= 0 || (size_t)len >= sizeof(u->path)) {
        u->path[0] = '\0';
    }
}

void command_upgrade_init(struct command_upgrade *u, int argc, char **argv)
{
    *u = (struct command_upgrade){.argc = argc,
                                  .argv = argv,
                                  .former_fd = -1,
                                  .taken_fd = -1,
                                  .control_fd = -1,
                                  .passing_fd = -1,
                                  .passed_fd = -1};
    find_former(u);
    if (u->path[0] == '\0') {
        find_path(u);
    }
}

// Waits until the former process has ended. When it dies, its socket to this process may close
// earlier than its other descriptors, which include the lock of the cache.
static void wait_for_end_of_former(const struct command_upgrade *u)
{
    int fd = (int)syscall(SYS_pidfd_open, u->former_pid, 0);
    struct pollfd end = {.fd = fd, .events = POLLIN};
    if (fd >= 0) {
        (void)poll(&end, 1, DYING_MS); // store_open() finds out if the lock is still held
        (void)close(fd);               // nothing was written to it
    }
}

bool command_upgrade_wait_turn(struct command_upgrade *u)
{
    char text[WHY_MAX + 2];
    const char *trouble;
    if (u->former_fd < 0) {
        return true;
    }
    // Return to the group of the former process, so that a terminal's signals reach both.
    pid_t group = getpgid(u->former_pid);
    if (group > 0) {
        (void)setpgid(0, group);
    }
    char at_once[16];
    (void)snprintf(at_once, sizeof(at_once), "%u", HTTP_PASSED_AT_ONCE);
    say(u->former_fd, READY, at_once);
    if (!listen_to(u->former_fd, -1, UINT64_MAX, text, &trouble) || text[0] != COMMIT) {
        return false; // the former process continues, or was stopped before it handed anything over
    }
    bool is_free = listen_to(u->former_fd, -1, UINT64_MAX, text, &trouble);
    if (!is_free) {
        log_warn("upgrade_took_over", "why=\"the process before has died\"");
        wait_for_end_of_former(u);
    }
    return true;
}

// Joins the lines of `why`, because the former process logs and prints them as one line.
void command_upgrade_fail(struct command_upgrade *u, const char *why)
{
    struct span rest = span_from_cstr(why), line;
    struct buf joined;
    if (u->former_fd < 0) {
        return;
    }
    buf_init(&joined, 2 * rest.len + 1);
    while (span_split(&rest, '\n', &line)) {
        buf_append_cstr(&joined, joined.len > 0 && line.len > 0 ? "; " : "");
        buf_append_span(&joined, line);
    }
    say(u->former_fd, FAILED, buf_cstr(&joined));
    buf_done(&joined);
    fd_close(&u->former_fd);
}

void command_upgrade_serving(struct command_upgrade *u, int *ret_fd)
{
    *ret_fd = u->taken_fd;
    u->taken_fd = -1;
    if (u->former_fd >= 0) {
        say(u->former_fd, SERVING, "");
        fd_close(&u->former_fd);
    }
}

// --- starting a process --------------------------------------------------------------------------

// The arguments of execve(), made before the fork. The child only fills in its own process id.
struct start {
    char *argv[WORDS_MAX + 4];
    char **envp;
    char listen_pid[40], listen_fds[40],
        listen_names[sizeof("LISTEN_FDNAMES=") + 16 * CONFIG_INHERITED_MAX];
    char handover[PATH_MAX + 96];
    char *handover_pid, *listen_pid_pid; // positions of PID_DIGITS digits
    int fds[CONFIG_INHERITED_MAX + 2];   // high copies, in the order of their final numbers
    unsigned fd_count;
};

#define PID_DIGITS 10

extern char **environ;

static bool is_ours(const char *variable)
{
    // WATCHDOG_PID names this process. Without it, WATCHDOG_USEC applies to the started process.
    static const char *const names[] = {
        "LISTEN_PID=", "LISTEN_FDS=", "LISTEN_FDNAMES=", "WATCHDOG_PID=", VARIABLE "="};
    bool is = false;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        is |= strncmp(variable, names[i], strlen(names[i])) == 0;
    }
    return is;
}

static void start_words(const struct command_upgrade *u, struct start *s)
{
    static char program[] = "forebay", serve[] = "serve", quiet[] = "-q", verbose[] = "-v";
    int count = 0;
    s->argv[count++] = program;
    s->argv[count++] = serve;
    if (commands_common()->is_quiet || commands_common()->is_verbose) {
        s->argv[count++] = commands_common()->is_quiet ? quiet : verbose;
    }
    check(u->argc >= 0 && u->argc <= WORDS_MAX);
    for (int i = 0; i < u->argc; i++) {
        s->argv[count++] = u->argv[i];
    }
    s->argv[count] = NULL;
}

// Builds the environment of the new process. It leaves room for the child's process id, which the
// child fills in with leading zeros. Programs that parse a number accept these.
static void start_environment(const struct command_upgrade *u, struct start *s, bool has_control)
{
    size_t count = 0, kept = 0;
    while (environ[count] != NULL) {
        count++;
    }
    s->envp = calloc(count + 5, sizeof(*s->envp));
    check(s->envp != NULL);
    for (size_t i = 0; i < count; i++) {
        if (!is_ours(environ[i])) {
            s->envp[kept++] = environ[i];
        }
    }
    int control = FIRST_FD + (int)u->listen_count;
    (void)snprintf(s->listen_pid, sizeof(s->listen_pid), "LISTEN_PID=%0*d", PID_DIGITS, 0);
    s->listen_pid_pid = s->listen_pid + strlen("LISTEN_PID=");
    (void)snprintf(s->listen_fds, sizeof(s->listen_fds), "LISTEN_FDS=%u", u->listen_count);
    (void)snprintf(s->listen_names, sizeof(s->listen_names), "LISTEN_FDNAMES=%s", u->listen_names);
    (void)snprintf(s->handover, sizeof(s->handover), VARIABLE "=%0*d:%d:%d:%d:%s", PID_DIGITS, 0,
                   has_control ? control : -1, control + has_control, (int)getpid(), u->path);
    s->handover_pid = s->handover + strlen(VARIABLE "=");
    s->envp[kept++] = s->listen_pid;
    s->envp[kept++] = s->listen_fds;
    s->envp[kept++] = s->listen_names;
    s->envp[kept++] = s->handover;
}

static bool start_descriptors(const struct command_upgrade *u, struct start *s, int control_fd)
{
    int fds[ARRAY_LEN(s->fds)];
    unsigned count = 0;
    for (unsigned i = 0; i < u->listen_count; i++) {
        fds[count++] = u->listen_fds[i];
    }
    if (control_fd >= 0) {
        fds[count++] = control_fd;
    }
    fds[count++] = u->passed_fd;
    for (unsigned i = 0; i < count; i++) {
        int high = fcntl(fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
        if (high < 0) {
            return false;
        }
        s->fds[s->fd_count++] = high;
    }
    return true;
}

static void start_done(struct start *s)
{
    for (unsigned i = 0; i < s->fd_count; i++) {
        fd_close(&s->fds[i]);
    }
    free(s->envp);
}

static void write_pid(char *to, pid_t pid)
{
    for (unsigned i = PID_DIGITS; i-- > 0; pid /= 10) {
        to[i] = (char)('0' + pid % 10);
    }
}

// Replaces the process image by `path`. Uses only calls that are allowed between fork() and
// execve() in a process with many threads. Returns an errno.
static int start_become(struct start *s, const char *path)
{
    child_reset_signals();
    // Closes descriptors that libraries opened without close-on-exec. Before Linux 5.11 the call
    // fails, and the new process inherits these few.
    (void)close_range(FIRST_FD, ~0u, CLOSE_RANGE_CLOEXEC);
    write_pid(s->listen_pid_pid, getpid());
    write_pid(s->handover_pid, getpid());
    for (unsigned i = 0; i < s->fd_count; i++) {
        if (dup2(s->fds[i], FIRST_FD + (int)i) < 0) {
            return errno;
        }
    }
    (void)execve(path, s->argv, s->envp);
    return errno;
}

// --- the old process -----------------------------------------------------------------------------

static bool keep_listeners(struct command_upgrade *u,
                           const struct command_upgrade_listener *listeners, unsigned count,
                           struct buf *ret_why)
{
    size_t len = 0;
    if (count > CONFIG_INHERITED_MAX) {
        buf_printf(ret_why, "more than %d listeners cannot be handed over", CONFIG_INHERITED_MAX);
        return false;
    }
    for (unsigned i = 0; i < count; i++) {
        int fd = fcntl(listeners[i].fd, F_DUPFD_CLOEXEC, HIGH_FD);
        if (fd < 0) {
            buf_append_cstr(ret_why, "out of file descriptors");
            return false;
        }
        u->listen_fds[u->listen_count++] = fd;
        int more = snprintf(u->listen_names + len, sizeof(u->listen_names) - len, "%s%s",
                            i > 0 ? ":" : "", listeners[i].name);
        check(more > 0 && len + (size_t)more < sizeof(u->listen_names));
        len += (size_t)more;
    }
    return true;
}

static bool open_pairs(struct command_upgrade *u, int *ret_theirs, struct buf *ret_why)
{
    int control[2], passing[2], size = PASSING_BYTES;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) != 0) {
        buf_append_cstr(ret_why, "out of file descriptors");
        return false;
    }
    u->control_fd = control[0];
    *ret_theirs = control[1];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, passing) != 0) {
        buf_append_cstr(ret_why, "out of file descriptors");
        return false;
    }
    u->passing_fd = passing[0];
    u->passed_fd = passing[1];
    (void)setsockopt(u->passing_fd, SOL_SOCKET, SO_SNDBUF, &size,
                     sizeof(size)); // on failure, the socket keeps its default size
    return true;
}

static bool start_child(struct command_upgrade *u, int theirs, struct buf *ret_why)
{
    struct start s = {0};
    start_words(u, &s);
    start_environment(u, &s, true);
    bool ok = start_descriptors(u, &s, theirs);
    pid_t pid = ok ? fork() : -1;
    if (pid == 0) {
        char text[2] = {FAILED, 0};
        (void)setpgid(0, 0); // its own group, so that its children can be killed with it
        int number = start_become(&s, u->path);
        text[1] = (char)(number < 128 ? number : EIO);
        (void)send(FIRST_FD + (int)u->listen_count, text, 2,
                   MSG_NOSIGNAL); // on failure, the parent notices the exit
        _exit(127);
    }
    if (pid < 0) {
        buf_printf(ret_why, "no process could be started: %s",
                   ok ? strerror(errno) : "out of file descriptors");
    }
    if (pid > 0) {
        (void)setpgid(pid, pid); // parent and child both set it, because either may run first
    }
    u->pid = pid > 0 ? pid : 0;
    start_done(&s);
    return pid > 0;
}

static void explain(const struct command_upgrade *u, bool has_spoken, const char *text,
                    const char *trouble, uint64_t wait_ms, struct buf *ret_why)
{
    int number = has_spoken ? text[1] : 0;
    if (has_spoken && number > 0 && number < ' ' && text[2] == '\0') {
        buf_printf(ret_why, "%s cannot be started: %s", u->path, strerror(number));
    } else if (has_spoken) {
        buf_append_cstr(ret_why, text[1] != '\0' ? text + 1 : "it has ended, its log says why");
    } else if (strcmp(trouble, "late") == 0) {
        buf_printf(ret_why, "%s was not ready within %llu s", u->path,
                   (unsigned long long)(wait_ms / 1000));
    } else if (strcmp(trouble, "stopped") == 0) {
        buf_append_cstr(ret_why, "the server is stopping");
    } else {
        buf_printf(ret_why, "%s ended before it was ready", u->path);
    }
}

static void end_child(struct command_upgrade *u, struct buf *ret_why)
{
    int status = 0;
    (void)kill(-u->pid, SIGKILL); // children of a script hold the listening sockets too
    (void)kill(u->pid, SIGKILL);  // it may have left that group; it is not reaped yet
    while (waitpid(u->pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (ret_why != NULL && WIFEXITED(status)) {
        buf_printf(ret_why, " (exit code %d)", WEXITSTATUS(status));
    } else if (ret_why != NULL && WTERMSIG(status) != SIGKILL) {
        buf_printf(ret_why, " (signal %d)", WTERMSIG(status));
    }
    u->pid = 0;
}

static int stop_signals(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK); // if -1, signals are handled later
}

static bool child_is_ready(struct command_upgrade *u, uint64_t wait_ms, struct buf *ret_why)
{
    char text[WHY_MAX + 2] = "";
    const char *trouble = "";
    int signals = stop_signals();
    bool has_spoken = listen_to(u->control_fd, signals, wait_ms, text, &trouble);
    fd_close(&signals);
    if (has_spoken && text[0] == READY) {
        uint64_t at_once;
        bool is_said = span_to_u64(span_from_cstr(text + 1), &at_once) && at_once > 0;
        u->passed_at_once = is_said ? (unsigned)min_u64(at_once, HTTP_PASSED_AT_ONCE) : 1;
        return true;
    }
    explain(u, has_spoken, text, trouble, wait_ms, ret_why);
    end_child(u, ret_why);
    return false;
}

bool command_upgrade_begin(struct command_upgrade *u,
                           const struct command_upgrade_listener *listeners, unsigned count,
                           uint64_t wait_ms, struct buf *ret_why)
{
    int theirs = -1;
    check(u->pid == 0);
    bool ok = false;
    if (getpid() == 1) {
        buf_append_cstr(ret_why,
                        "this server is process 1 of its container, which would end with it: "
                        "roll out another image instead");
    } else if (u->path[0] == '\0' || u->argc > WORDS_MAX) {
        buf_append_cstr(ret_why, "where this program was started from is not known");
    } else {
        ok = keep_listeners(u, listeners, count, ret_why) && open_pairs(u, &theirs, ret_why) &&
             start_child(u, theirs, ret_why);
    }
    fd_close(&theirs);
    ok = ok && child_is_ready(u, wait_ms, ret_why);
    if (!ok) {
        command_upgrade_done(u);
    }
    return ok;
}

void command_upgrade_commit(struct command_upgrade *u)
{
    say(u->control_fd, COMMIT, "");
}

static void close_listeners(struct command_upgrade *u)
{
    for (unsigned i = 0; i < u->listen_count; i++) {
        fd_close(&u->listen_fds[i]);
    }
    u->listen_count = 0;
    u->listen_names[0] = '\0';
}

void command_upgrade_call_off(struct command_upgrade *u)
{
    end_child(u, NULL);
    close_listeners(u); // workers may still send into the pair, so keep its descriptors
}

// Restarts this process, and does not return. Ignores SIGHUP and SIGUSR1, because the restart reads
// all files, and SIGUSR2, because this upgrade has failed.
static void start_anew(struct command_upgrade *u)
{
    struct start s = {0};
    check(signal(SIGHUP, SIG_IGN) != SIG_ERR); // drops a pending signal
    check(signal(SIGUSR1, SIG_IGN) != SIG_ERR);
    check(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    start_words(u, &s);
    start_environment(u, &s, false);
    bool ok = start_descriptors(u, &s, -1);
    int number = ok ? start_become(&s, "/proc/self/exe") : EMFILE;
    number = ok ? start_become(&s, u->path) : number; // if that failed, as without /proc
    log_error("upgrade_not_undone", "errno=%d", number);
    _exit(EXIT_CODE_FAILED);
}

void command_upgrade_finish(struct command_upgrade *u)
{
    char text[WHY_MAX + 2] = "";
    const char *trouble = "";
    fd_close(&u->passing_fd); // marks the end of the sent connections
    say(u->control_fd, YOURS, "");
    bool has_spoken = listen_to(u->control_fd, -1, SERVING_MS, text, &trouble);
    if (!has_spoken || text[0] != SERVING) {
        struct buf why;
        buf_init(&why, 2 * WHY_MAX);
        explain(u, has_spoken, text, trouble, SERVING_MS, &why);
        end_child(u, &why);
        log_error("upgrade_undone", "why=%s", log_quote(buf_span(&why)));
        buf_done(&why);
        start_anew(u);
    }
}

void command_upgrade_done(struct command_upgrade *u)
{
    close_listeners(u);
    fd_close(&u->control_fd);
    fd_close(&u->passing_fd);
    fd_close(&u->passed_fd);
}
