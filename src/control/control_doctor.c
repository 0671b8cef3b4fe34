// SPDX-License-Identifier: Apache-2.0
// POST /api/v1/doctor: runs `forebay doctor` with the settings of this server, as a separate
// process, and answers with its findings. Only one runs at a time. A thread waits for it, at most
// DOCTOR_WAIT_MS. A drain ends it.
//
// GET does the same, but repeats findings that are younger than KEPT_MS. Otherwise a caller with
// read access could make the server query its origin all the time.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/thread.h"
#include "control/control_private.h"

#define DOCTOR_WAIT_MS 50000u // below ADMIN_CALL_WAIT_MAX_MS
#define KEPT_MS 60000u
#define OUTPUT_MAX_BYTES (256u << 10)

struct command_doctor_run {
    int argc; // argc and argv of this server's settings
    char **argv;
    pthread_t thread;
    bool has_thread; // used by the admin thread; after its end, by the main thread
    atomic_bool is_busy;
    struct admin_call *call; // used by the doctor's thread while is_busy is true
    struct {
        pthread_mutex_t lock;
        pid_t pid; // 0: no process
        bool is_stopping;
        json_t *last; // latest report; NULL: none yet
        uint64_t last_ms;
    } guarded;
};

struct command_doctor_run *control_doctor_new(int argc, char **argv)
{
    struct command_doctor_run *run = calloc(1, sizeof(*run));
    check(run != NULL);
    run->argc = argc;
    run->argv = argv;
    check(pthread_mutex_init(&run->guarded.lock, NULL) == 0);
    return run;
}

static void end_child(struct command_doctor_run *run, bool for_good)
{
    pthread_mutex_lock(&run->guarded.lock);
    run->guarded.is_stopping |= for_good;
    if (run->guarded.pid != 0) {
        (void)kill(run->guarded.pid, SIGKILL); // not reaped yet, so the id is still its own
    }
    pthread_mutex_unlock(&run->guarded.lock);
}

void control_doctor_cancel(struct command_doctor_run *run)
{
    if (run != NULL) {
        end_child(run, true);
    }
}

void control_doctor_free(struct command_doctor_run *run)
{
    if (run == NULL) {
        return;
    }
    end_child(run, true);
    if (run->has_thread) {
        check(pthread_join(run->thread, NULL) == 0);
    }
    json_decref(run->guarded.last);
    check(pthread_mutex_destroy(&run->guarded.lock) == 0);
    free(run);
}

// Starts the process. It inherits only the three standard descriptors, and no blocked or ignored
// signals. Returns 0 or an errno.
static int spawn(struct command_doctor_run *run, int to, pid_t *ret_pid)
{
    const char *first[] = {"forebay", "doctor", "--local", "--json", "--timeout=2"};
    char **words = calloc(ARRAY_LEN(first) + (size_t)run->argc + 1, sizeof(*words));
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    check(words != NULL);
    memcpy(words, first, sizeof(first)); // argv is not const, but nothing writes to it
    memcpy(words + ARRAY_LEN(first), run->argv, (size_t)run->argc * sizeof(*words));
    child_attributes_init(&attributes);
    check(posix_spawn_file_actions_init(&actions) == 0 &&
          posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0) == 0 &&
          posix_spawn_file_actions_adddup2(&actions, to, STDOUT_FILENO) == 0 &&
          posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0) ==
              0 &&
          posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1) == 0);
    pthread_mutex_lock(&run->guarded.lock);
    int failed = run->guarded.is_stopping ? ECANCELED
                                          : posix_spawn(ret_pid, "/proc/self/exe", &actions,
                                                        &attributes, words, environ);
    run->guarded.pid = failed == 0 ? *ret_pid : 0;
    pthread_mutex_unlock(&run->guarded.lock);
    free(words);
    (void)posix_spawn_file_actions_destroy(&actions); // cannot fail
    (void)posix_spawnattr_destroy(&attributes);
    return failed;
}

// Reads the output to its end. Returns false if that takes longer than DOCTOR_WAIT_MS.
static bool read_output(int fd, struct buf *out)
{
    uint64_t until_ms = clock_monotonic_ms() + DOCTOR_WAIT_MS, now_ms;
    char piece[4096];
    while ((now_ms = clock_monotonic_ms()) < until_ms) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, (int)(until_ms - now_ms)) <= 0) {
            continue;
        }
        ssize_t len = read(fd, piece, sizeof(piece));
        if (len == 0 || (len < 0 && errno != EINTR && errno != EAGAIN)) {
            return true;
        }
        buf_append(out, piece, len > 0 ? (size_t)len : 0);
    }
    return false;
}

// Returns the findings, and the exit code of the doctor. NULL: the output is not whole.
static json_t *report_of(const struct buf *out)
{
    struct span rest = buf_span(out), line;
    json_t *findings = json_array(), *result = NULL;
    while (span_split(&rest, '\n', &line)) {
        json_t *row = line.len > 0 ? json_loadb(line.ptr, line.len, 0, NULL) : NULL;
        const char *type = json_string_value(json_object_get(row, "type"));
        if (type != NULL && strcmp(type, "item") == 0) {
            check(json_object_del(row, "type") == 0);
            check(json_array_append(findings, row) == 0);
        } else if (type != NULL && strcmp(type, "result") == 0) {
            json_decref(result);
            result = json_incref(row);
        }
        json_decref(row);
    }
    json_t *report =
        json_pack("{s:O, s:O?}", "findings", findings, "exit", json_object_get(result, "exit"));
    json_decref(findings);
    if (!buf_ok(out) || result == NULL) {
        json_decref(report);
        report = NULL;
    }
    json_decref(result);
    return report;
}

// Turns a report into an answer.
static json_t *answer_of(json_t *report, uint64_t age_ms)
{
    check(json_object_set_new(report, "age_s", json_real((double)age_ms / 1e3)) == 0);
    return report;
}

static void keep(struct command_doctor_run *run, const json_t *report)
{
    json_t *copy = json_deep_copy(report);
    check(copy != NULL);
    pthread_mutex_lock(&run->guarded.lock);
    json_decref(run->guarded.last);
    run->guarded.last = copy;
    run->guarded.last_ms = clock_monotonic_ms();
    pthread_mutex_unlock(&run->guarded.lock);
}

// Returns a recent report as an answer; NULL if there is none.
static json_t *kept_answer(struct command_doctor_run *run)
{
    json_t *report = NULL;
    pthread_mutex_lock(&run->guarded.lock);
    uint64_t age_ms = clock_monotonic_ms() - run->guarded.last_ms;
    if (run->guarded.last != NULL && age_ms < KEPT_MS) {
        report = json_deep_copy(run->guarded.last);
        check(report != NULL);
    }
    pthread_mutex_unlock(&run->guarded.lock);
    return report != NULL ? answer_of(report, age_ms) : NULL;
}

static void *run_main(void *ctx)
{
    struct command_doctor_run *run = ctx;
    thread_begin("doctor", THREAD_HELPS);
    struct buf out;
    int pipes[2] = {-1, -1};
    pid_t pid = 0;
    json_t *report = NULL;
    buf_init(&out, OUTPUT_MAX_BYTES);
    int failed = pipe2(pipes, O_CLOEXEC) != 0 ? errno : spawn(run, pipes[1], &pid);
    if (pipes[1] >= 0) {
        (void)close(pipes[1]); // the child's end
    }
    if (failed == 0) {
        if (!read_output(pipes[0], &out)) {
            end_child(run, false);
        }
        pthread_mutex_lock(&run->guarded.lock);
        run->guarded.pid = 0; // so that nobody signals the process once it is reaped
        pthread_mutex_unlock(&run->guarded.lock);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        report = report_of(&out);
    }
    if (pipes[0] >= 0) {
        (void)close(pipes[0]); // the pipe was only read, so a failure loses nothing
    }
    buf_done(&out);
    if (report != NULL) {
        keep(run, report);
    }
    struct admin_call *call = run->call;
    atomic_store(&run->is_busy, false);
    if (report != NULL) {
        admin_call_answer(&call, 200, answer_of(report, 0));
    } else {
        admin_call_refuse(&call, 503,
                          "the doctor could not be run or did not end; try `forebay doctor`");
    }
    return NULL;
}

void control_doctor(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    struct command_doctor_run *run = control->doctor;
    if (atomic_exchange(&run->is_busy, true)) {
        admin_call_refuse(&call, 503, "a doctor is under way");
        return;
    }
    if (run->has_thread) {
        check(pthread_join(run->thread, NULL) == 0); // short: it only has to answer its call
    }
    run->call = call;
    run->has_thread = pthread_create(&run->thread, NULL, run_main, run) == 0;
    if (!run->has_thread) {
        atomic_store(&run->is_busy, false);
        admin_call_refuse(&call, 503, "no thread for the doctor");
    }
}

void control_doctor_last(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    json_t *kept = kept_answer(control->doctor);
    if (kept != NULL) {
        admin_call_answer(&call, 200, kept);
    } else {
        control_doctor(ctx, call);
    }
}
