// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: runs a check in a process of its own, with a time limit. A call on a disk that
// hangs cannot be cancelled, and its process cannot be killed until the disk answers. So that
// process has no descriptor but the pipe to the doctor, which does not wait for its end.
//
// Call it before this process starts any thread, because a process with threads must not fork.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "cli/doctor/command_doctor.h"

#define REPORT_MAX_BYTES (64u << 10)

// Runs in the child. Does not return.
static void run_check(struct doctor *d, int to, void (*check_fn)(struct doctor *doctor))
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool ok = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && null >= 0 && dup2(null, STDIN_FILENO) >= 0 &&
              dup2(null, STDOUT_FILENO) >= 0 && dup2(null, STDERR_FILENO) >= 0;
    d->rows = json_array();
    if (ok && d->rows != NULL) {
        check_fn(d);
        char *text = json_dumps(d->rows, JSON_COMPACT);
        ok = text != NULL && commands_write_all(to, span_from_cstr(text));
    }
    _exit(ok ? 0 : 1);
}

bool command_doctor_apart(struct doctor *d, const char *check_name,
                          void (*check_fn)(struct doctor *doctor), uint64_t limit_ms)
{
    struct buf out;
    int pipes[2];
    pid_t pid = pipe2(pipes, O_CLOEXEC) == 0 ? fork() : -1;
    if (pid == 0) {
        run_check(d, pipes[1], check_fn);
    }
    if (pid < 0) {
        command_doctor_find(d, DOCTOR_RED, check_name, "raise the limit on tasks (ulimit -u)",
                            "no process for the check: %s", strerror(errno));
        return false;
    }
    (void)close(pipes[1]); // the child's end
    buf_init(&out, REPORT_MAX_BYTES);
    bool is_back = child_read_output(pipes[0], limit_ms, &out);
    (void)close(pipes[0]); // the pipe was only read, so a failure loses nothing
    json_t *rows = is_back ? json_loadb(out.ptr, out.len, 0, NULL) : NULL;
    if (is_back) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) { // short: it has closed the pipe
        }
    } else {
        (void)kill(pid, SIGKILL); // acts when the disk answers, so this process does not wait
    }
    if (rows != NULL) {
        command_doctor_repeat(d, rows);
    } else {
        command_doctor_find(d, DOCTOR_RED, check_name,
                            "look at dmesg and at the mount (fsfreeze, a network file system)",
                            is_back ? "%s: the check crashed"
                                    : "%s: the check did not come back within %llu s: calls hang",
                            d->config->cache_dir, (unsigned long long)limit_ms / 1000);
    }
    json_decref(rows);
    buf_done(&out);
    return is_back;
}
