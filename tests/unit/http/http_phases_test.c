// SPDX-License-Identifier: Apache-2.0
// Proves: a connection, its run, a body and a reply enter only the phases that phases.def allows,
// and the process aborts on any other.
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "http/http_private.h"
#include "test.h"

static struct http_worker worker;

static void enter_connection(unsigned from, unsigned to)
{
    struct http_connection c = {.phase = from, .hw = &worker};
    http_connection_enter(&c, to);
    cr_assert(c.phase == to);
}

static void enter_run(unsigned from, unsigned to)
{
    struct http_connection c = {.run = from};
    http_run_enter(&c, to);
    cr_assert(c.run == to);
}

static void enter_body(unsigned from, unsigned to)
{
    struct http_exchange x = {.body = from};
    http_body_enter(&x, to);
    cr_assert(x.body == to);
}

static void enter_reply(unsigned from, unsigned to)
{
    struct reply_state r = {.phase = from};
    http_reply_enter(&r, to);
    cr_assert(r.phase == to);
}

// For each phase of a machine, a letter for each phase that may follow.
static const struct {
    const char *name;
    void (*enter)(unsigned from, unsigned to);
    const char *letters; // of the phases, in their order
    const char *successors[8];
} machines[] = {
    {"connection", enter_connection, "soihxdlX", {"oX", "hX", "hX", "xX", "idlX", "ilX", "X", ""}},
    {"run", enter_run, "rRw", {"R", "wr", "Rr"}},
    {"body", enter_body, "nhfpdb", {"", "fd", "pdnb", "fdnb", "nb", ""}},
    {"reply", enter_reply, "npwe", {"pe", "we", "pe", "p"}},
};

static bool aborts(void (*enter)(unsigned from, unsigned to), unsigned from, unsigned to)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(quiet, STDERR_FILENO);
        enter(from, to);
        _exit(0);
    }
    int status = 0;
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(http_phases, only_the_successors_in_the_table_are_entered)
{
    struct loop *loop = NULL;
    struct loop_options options = {.worker_count = 1, .engine = DISK_ENGINE_THREADS};
    cr_assert(loop_new(&options, &loop, NULL) == ERR_OK);
    worker.worker = loop_worker(loop, 0);
    for (unsigned m = 0; m < ARRAY_LEN(machines); m++) {
        unsigned count = (unsigned)strlen(machines[m].letters);
        for (unsigned from = 0; from < count; from++) {
            for (unsigned to = 0; to <= count; to++) { // `count` is no phase
                char letter = machines[m].letters[to];
                bool may = letter != 0 && strchr(machines[m].successors[from], letter) != NULL;
                cr_assert(aborts(machines[m].enter, from, to) != may, "%s: %u to %u",
                          machines[m].name, from, to);
            }
        }
    }
    loop_free(loop);
}

Test(http_phases, a_reply_that_was_not_begun_never_waits, .signal = SIGABRT)
{
    enter_reply(REPLY_NONE, REPLY_WAITS);
}
