// SPDX-License-Identifier: Apache-2.0
// POST /api/v1/doctor: runs `forebay doctor` with the settings of this server, as a separate
// process, and answers with its findings. `buckets` names the buckets to try. Only one runs at a
// time, and further calls wait for their turn. Each call is answered DOCTOR_WAIT_MS after it came,
// at the latest. A thread runs them one after the other, and ends when no call waits. A drain ends
// all of them.
//
// GET does the same, but repeats findings that are younger than KEPT_MS. Otherwise a caller with
// read access could make the server query its origin all the time.
//
// Findings about clients are left out, because clients do not run in the environment of the server.
// The command `forebay doctor` adds those of its own environment.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/thread.h"
#include "control/control_private.h"

#define DOCTOR_WAIT_MS 50000u // below ADMIN_CALL_WAIT_MAX_MS
#define KEPT_MS 60000u
#define OUTPUT_MAX_BYTES (256u << 10)
#define BUCKETS_MAX 16u
#define WHY_MAX 128u

// A call that waits for its report.
struct doctor_ask {
    struct list_node node;
    struct admin_call *call;
    uint64_t until_ms;                // when it is answered at the latest
    bool takes_kept;                  // recent findings will do
    const char *buckets[BUCKETS_MAX]; // in the body of the call
    unsigned bucket_count;
    char admin[ADMIN_ADDRESS_MAX + sizeof("--admin=")];
};

struct command_doctor_run {
    int argc; // argc and argv of this server's settings
    char **argv;
    pthread_t thread;
    bool has_thread; // used by the admin thread; after its end, by the main thread
    struct {
        pthread_mutex_t lock;
        struct list asks; // those that wait, the first first
        bool is_busy;     // the thread takes the asks
        pid_t pid;        // 0: no process
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
    list_init(&run->guarded.asks);
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

// Returns the command line of the process. The caller frees the array, but not the strings. The
// buckets follow "--", because a name that begins with "-" would be read as an option.
static char **words_of(const struct command_doctor_run *run, const struct doctor_ask *ask)
{
    const char *first[] = {"forebay", "doctor", "--local", "--json", ask->admin};
    size_t count = ARRAY_LEN(first);
    char **words = calloc(count + (size_t)run->argc + 1 + BUCKETS_MAX + 1, sizeof(*words));
    check(words != NULL);
    memcpy(words, first, sizeof(first)); // argv is not const, but nothing writes to it
    memcpy(words + count, run->argv, (size_t)run->argc * sizeof(*words));
    count += (size_t)run->argc;
    words[count++] = (char *)(uintptr_t) "--";
    memcpy(words + count, ask->buckets, ask->bucket_count * sizeof(*words));
    return words;
}

// Starts the process. It inherits only the three standard descriptors, and no blocked or ignored
// signals. Returns 0 or an errno.
static int spawn(struct command_doctor_run *run, const struct doctor_ask *ask, int to,
                 pid_t *ret_pid)
{
    char **words = words_of(run, ask);
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
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

static bool has_text(const json_t *row, const char *name, const char *text)
{
    const char *value = json_string_value(json_object_get(row, name));
    return value != NULL && strcmp(value, text) == 0;
}

// Returns the findings, and the exit code of the doctor. NULL: the output is not whole.
static json_t *report_of(const struct buf *out)
{
    struct span rest = buf_span(out), line;
    json_t *findings = json_array(), *result = NULL;
    bool is_red = false;
    while (span_split(&rest, '\n', &line)) {
        json_t *row = line.len > 0 ? json_loadb(line.ptr, line.len, 0, NULL) : NULL;
        if (has_text(row, "type", "item") && !has_text(row, "check", "clients")) {
            is_red = is_red || has_text(row, "state", "red");
            check(json_object_del(row, "type") == 0);
            check(json_array_append(findings, row) == 0);
        } else if (has_text(row, "type", "result")) {
            json_decref(result);
            result = json_incref(row);
        }
        json_decref(row);
    }
    json_int_t code = is_red ? json_integer_value(json_object_get(result, "exit")) : 0;
    json_t *report = json_pack("{s:O, s:I}", "findings", findings, "exit", code);
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

// Says why a process that has run gave no report.
static void describe_end(int status, bool has_ended, char ret_why[WHY_MAX])
{
    bool is_killed = WIFSIGNALED(status);
    if (!has_ended) {
        (void)snprintf(ret_why, WHY_MAX, "the doctor did not end within %u s",
                       DOCTOR_WAIT_MS / 1000);
        return;
    }
    (void)snprintf(ret_why, WHY_MAX, "the doctor ended without a report (%s %d)",
                   is_killed ? "signal" : "exit code",
                   is_killed ? WTERMSIG(status) : WEXITSTATUS(status));
}

// Runs the process of an ask. Returns its report; NULL, with the reason, if there is none.
static json_t *report_for(struct command_doctor_run *run, const struct doctor_ask *ask,
                          char ret_why[WHY_MAX])
{
    struct buf out;
    int pipes[2] = {-1, -1};
    pid_t pid = 0;
    json_t *report = NULL;
    uint64_t now_ms = clock_monotonic_ms();
    if (now_ms >= ask->until_ms) {
        (void)snprintf(ret_why, WHY_MAX, "the doctors before it took too long");
        return NULL;
    }
    buf_init(&out, OUTPUT_MAX_BYTES);
    int failed = pipe2(pipes, O_CLOEXEC) != 0 ? errno : spawn(run, ask, pipes[1], &pid);
    if (pipes[1] >= 0) {
        (void)close(pipes[1]); // the child's end
    }
    (void)snprintf(ret_why, WHY_MAX, "the doctor could not be run: %s", strerror(failed));
    if (failed == 0) {
        int status = 0;
        bool has_ended = child_read_output(pipes[0], ask->until_ms - now_ms, &out);
        if (!has_ended) {
            end_child(run, false);
        }
        pthread_mutex_lock(&run->guarded.lock);
        run->guarded.pid = 0; // so that nobody signals the process once it is reaped
        pthread_mutex_unlock(&run->guarded.lock);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        report = report_of(&out);
        describe_end(status, has_ended, ret_why);
    }
    if (pipes[0] >= 0) {
        (void)close(pipes[0]); // the pipe was only read, so a failure loses nothing
    }
    buf_done(&out);
    return report;
}

// Returns the next ask, which the caller owns. NULL: none waits, and the thread must end.
static struct doctor_ask *next_ask(struct command_doctor_run *run)
{
    pthread_mutex_lock(&run->guarded.lock);
    struct list_node *node = list_pop_front(&run->guarded.asks);
    run->guarded.is_busy = node != NULL;
    pthread_mutex_unlock(&run->guarded.lock);
    return node != NULL ? container_of(node, struct doctor_ask, node) : NULL;
}

static void *run_main(void *ctx)
{
    struct command_doctor_run *run = ctx;
    struct doctor_ask *ask;
    thread_begin("doctor", THREAD_HELPS);
    while ((ask = next_ask(run)) != NULL) {
        char why[WHY_MAX];
        json_t *kept = ask->takes_kept ? kept_answer(run) : NULL;
        json_t *report = kept == NULL ? report_for(run, ask, why) : NULL;
        if (report != NULL && ask->bucket_count == 0) {
            keep(run, report);
        }
        if (kept != NULL || report != NULL) {
            admin_call_answer(&ask->call, 200, kept != NULL ? kept : answer_of(report, 0));
        } else {
            log_warn("doctor_failed", "reason=%s", log_quote(span_from_cstr(why)));
            admin_call_refuse(&ask->call, 503, why);
        }
        free(ask);
    }
    return NULL;
}

// Takes the buckets that a call names; returns false if they are none.
static bool buckets_take(struct doctor_ask *ask)
{
    const json_t *buckets = admin_call_member(ask->call, "buckets");
    bool is_good =
        buckets == NULL || (json_is_array(buckets) && json_array_size(buckets) <= BUCKETS_MAX);
    for (size_t i = 0; is_good && i < json_array_size(buckets); i++) {
        const char *name = json_string_value(json_array_get(buckets, i));
        is_good = name != NULL && name[0] != '\0';
        ask->buckets[ask->bucket_count++] = name;
    }
    return is_good;
}

// Queues an ask, and starts the thread unless it runs.
static void queue(struct command_doctor_run *run, struct doctor_ask *ask)
{
    pthread_mutex_lock(&run->guarded.lock);
    bool was_busy = run->guarded.is_busy;
    run->guarded.is_busy = true;
    list_push_back(&run->guarded.asks, &ask->node);
    pthread_mutex_unlock(&run->guarded.lock);
    if (was_busy) {
        return;
    }
    if (run->has_thread) {
        check(pthread_join(run->thread, NULL) == 0); // short: it has found no ask
    }
    run->has_thread = pthread_create(&run->thread, NULL, run_main, run) == 0;
    if (!run->has_thread) {
        ask = next_ask(run); // the only one, because this thread alone queues them
        admin_call_refuse(&ask->call, 503, "no thread for the doctor");
        free(ask);
        check(next_ask(run) == NULL);
    }
}

static void ask_for(struct command_doctor_run *run, struct admin_call *call, bool takes_kept)
{
    struct doctor_ask *ask = calloc(1, sizeof(*ask));
    char address[ADMIN_ADDRESS_MAX];
    check(ask != NULL);
    ask->call = call;
    ask->takes_kept = takes_kept;
    ask->until_ms = clock_monotonic_ms() + DOCTOR_WAIT_MS;
    list_node_init(&ask->node);
    if (!buckets_take(ask)) {
        admin_call_refuse(&ask->call, 400, "buckets is a list of at most 16 names");
        free(ask);
        return;
    }
    admin_call_address(call, address);
    (void)snprintf(ask->admin, sizeof(ask->admin), "--admin=%s", address);
    queue(run, ask);
}

void control_doctor(void *ctx, struct admin_call *call)
{
    ask_for(((struct control *)ctx)->doctor, call, false);
}

void control_doctor_last(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    json_t *kept = kept_answer(control->doctor);
    if (kept != NULL) {
        admin_call_answer(&call, 200, kept);
    } else {
        ask_for(control->doctor, call, true);
    }
}
