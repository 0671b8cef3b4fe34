// SPDX-License-Identifier: Apache-2.0
// Proves: children have no blocked signals and the default action for SIGPIPE.
#include "test.h"

#include "base/child.h"

#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// Blocks SIGTERM and ignores SIGPIPE, as the threads of a server do.
static void become_like_a_server(void)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    cr_assert_eq(sigprocmask(SIG_BLOCK, &blocked, NULL), 0);
    cr_assert_neq(signal(SIGPIPE, SIG_IGN), SIG_ERR);
}

static int signal_of(pid_t pid)
{
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static const struct {
    const char *script;
    int number;
} cases[] = {{"kill -PIPE $$", SIGPIPE}, {"kill -TERM $$", SIGTERM}};

Test(child, spawned_child_has_default_signals)
{
    become_like_a_server();
    for (unsigned i = 0; i < 2; i++) {
        char *words[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                         (char *)(uintptr_t)cases[i].script, NULL};
        posix_spawnattr_t attributes;
        pid_t pid;
        child_attributes_init(&attributes);
        cr_assert_eq(posix_spawn(&pid, "/bin/sh", NULL, &attributes, words, environ), 0);
        posix_spawnattr_destroy(&attributes);
        cr_assert_eq(signal_of(pid), cases[i].number, "%s", cases[i].script);
    }
}

Test(child, forked_child_has_default_signals)
{
    become_like_a_server();
    for (unsigned i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            child_reset_signals();
            execl("/bin/sh", "sh", "-c", cases[i].script, NULL);
            _exit(127);
        }
        cr_assert_eq(signal_of(pid), cases[i].number, "%s", cases[i].script);
    }
}
