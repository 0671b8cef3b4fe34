// SPDX-License-Identifier: Apache-2.0
// Proves: a segment enters only the states that segment_phases.def allows, and the process aborts
// on any other.
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

// For each state, in their order, the letters of those that may follow.
static const char letters[] = "fsoSd";
static const char *const successors[] = {"sS", "od", "Sd", "sd", "f"};

static bool aborts(unsigned from, unsigned to)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(quiet, STDERR_FILENO);
        enter_state(from, to);
        _exit(0);
    }
    int status = 0;
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(segment_phases, only_the_successors_in_the_table_are_entered)
{
    unsigned count = (unsigned)strlen(letters);
    for (unsigned from = 0; from < count; from++) {
        for (unsigned to = 0; to <= count; to++) { // `count` is no state
            char letter = letters[to];
            bool may = letter != 0 && strchr(successors[from], letter) != NULL;
            cr_assert(aborts(from, to) != may, "%u to %u", from, to);
        }
    }
}
