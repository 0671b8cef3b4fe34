// SPDX-License-Identifier: Apache-2.0
// Proves: a state machine enters only the phases that phases.def allows, and aborts on any other.
#include "fill/home_private.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static void enter_run(unsigned from, unsigned to)
{
    struct fill fill = {.phase = from};
    fill_enter(&fill, to);
    cr_assert(fill.phase == to);
}

static void enter_transfer(unsigned from, unsigned to)
{
    struct fill fill = {.transfer = from};
    fill_transfer_enter(&fill, to);
    cr_assert(fill.transfer == to);
}

static void enter_subscription(unsigned from, unsigned to)
{
    struct subscription sub = {.state = from};
    fill_subscription_enter(&sub, to);
    cr_assert(sub.state == to);
}

static void enter_home(unsigned from, unsigned to)
{
    struct home_key home = {.state = from};
    fill_home_enter(&home, to);
    cr_assert(home.state == to);
}

// For each phase of a machine, a letter for each phase that may follow.
static const struct {
    const char *name;
    void (*enter)(unsigned from, unsigned to);
    const char *letters; // of the phases, in their order
    const char *successors[8];
} machines[] = {
    {"run", enter_run, "abwWlf", {"bl", "wl", "Wl", "l", "f", ""}},
    {"transfer", enter_transfer, "ikrRphc", {"Rkr", "Ri", "Ri", "phci", "Rci", "pci", "i"}},
    {"subscription", enter_subscription, "aAle", {"Ae", "l", "e", ""}},
    {"home", enter_home, "ndk", {"d", "kn", "n"}},
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

Test(phases, only_the_successors_in_the_table_are_entered)
{
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
}

Test(phases, a_run_never_returns_to_the_table, .signal = SIGABRT)
{
    enter_run(FILL_LEFT, FILL_ASKED);
}
