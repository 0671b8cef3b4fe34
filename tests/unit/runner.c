// SPDX-License-Identifier: Apache-2.0
// The tsan build's runner: every registered test in turn, in one process; an argument "suite" or
// "suite/name" picks. A test that must end by a signal runs in a child process.
#include "test.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct unit_test *first;

void unit_test_register(struct unit_test *test)
{
    test->next = first;
    first = test;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void run(const struct unit_test *test)
{
    if (test->signal == 0) {
        test->fn();
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(test->signal, SIG_DFL);
        test->fn();
        _exit(0);
    }
    int status = 0;
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == test->signal, "%s returned", test->name);
}

int main(int argc, char **argv)
{
    int count = 0;
    for (struct unit_test *t = first; t != NULL; t = t->next) {
        char full[256];
        snprintf(full, sizeof(full), "%s/%s", t->suite, t->name);
        if (argc > 1 && strcmp(argv[1], t->suite) != 0 && strcmp(argv[1], full) != 0) {
            continue;
        }
        fprintf(stderr, "[ RUN ] %s\n", full);
        double begun_s = now_s();
        run(t);
        fprintf(stderr, "[ PASS ] %s: (%.2fs)\n", full, now_s() - begun_s);
        count++;
    }
    printf("[====] Synthesis: Tested: %d | Passing: %d | Failing: 0 | Crashing: 0\n", count, count);
    return count > 0 ? 0 : 1;
}
