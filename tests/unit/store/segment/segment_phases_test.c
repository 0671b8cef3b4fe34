// SPDX-License-Identifier: Apache-2.0
// Proves: a segment and a thread of the log enter only the phases that segment_phases.def allows,
// and the process aborts on any other.
#include "store/segment/segment_log.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static void enter_state(unsigned from, unsigned to)
{
    struct segment segment = {.state = from};
    segment_enter_state(&segment, to);
    cr_assert(segment.state == to);
}

static void enter_thread(unsigned from, unsigned to)
{
    enum segment_thread_phase phase = from;
    segment_thread_enter(&phase, to);
    cr_assert(phase == to);
}

// For each phase of a machine, a letter for each phase that may follow.
static const struct {
    void (*enter)(unsigned from, unsigned to);
    const char *letters; // of the phases, in their order
    const char *successors[8];
} machines[] = {
    {enter_state, "fsoSd", {"sS", "od", "Sd", "sd", "f"}},
    {enter_thread, "nrs", {"r", "s", "n"}},
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

Test(segment_phases, only_the_successors_in_the_table_are_entered)
{
    for (unsigned m = 0; m < ARRAY_LEN(machines); m++) {
        unsigned count = (unsigned)strlen(machines[m].letters);
        for (unsigned from = 0; from < count; from++) {
            for (unsigned to = 0; to <= count; to++) { // `count` is no phase
                char letter = machines[m].letters[to];
                bool may = letter != 0 && strchr(machines[m].successors[from], letter) != NULL;
                cr_assert(aborts(machines[m].enter, from, to) != may, "%u: %u to %u", m, from, to);
            }
        }
    }
}
