// SPDX-License-Identifier: Apache-2.0
// Proves: children have no blocked signals and the default action for SIGPIPE. Their output is read
// to its end, within a time and a size. A
// child ends when its reader does.
#include "test.h"

#include "base/child.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
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

// Reads a pipe that holds `text`. Its other end is closed unless `stays_open`.
static bool read_pipe(const char *text, bool stays_open, size_t max, struct buf *out)
{
    int fds[2];
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(write(fds[1], text, strlen(text)), (ssize_t)strlen(text));
    cr_assert(stays_open || close(fds[1]) == 0);
    buf_init(out, max);
    bool is_whole = child_read_output(fds[0], stays_open ? 1 : 60000, out);
    cr_assert(close(fds[0]) == 0 && (!stays_open || close(fds[1]) == 0));
    return is_whole;
}

Test(child, output_is_read_to_its_end)
{
    struct buf out;
    cr_assert(read_pipe("some text", false, 100, &out));
    cr_assert_str_eq(buf_cstr(&out), "some text");
    buf_done(&out);
}

Test(child, output_without_an_end_or_too_long_is_not_whole)
{
    struct buf out;
    cr_assert_not(read_pipe("some text", true, 100, &out));
    buf_done(&out);
    cr_assert_not(read_pipe("some text", false, 4, &out));
    buf_done(&out);
}

// Returns the status of a child that has called child_end_with_reader() and then waits for ever.
// Its reader goes away before that call, or after the child has said that it waits.
static int status_of_unread_child(bool is_unread_before)
{
    int out[2], said[2], status = 0;
    char byte = 'x';
    cr_assert(pipe(out) == 0 && pipe(said) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        bool ok = close(out[0]) == 0 && (!is_unread_before || read(said[0], &byte, 1) == 1);
        child_end_with_reader(out[1]);
        ok = ok && write(out[1], &byte, 1) == 1 && write(said[1], &byte, 1) == 1;
        for (; ok;) {
            pause();
        }
        _exit(2);
    }
    cr_assert_eq(close(out[1]), 0);
    if (!is_unread_before) {
        cr_assert(read(out[0], &byte, 1) == 1 && read(said[0], &byte, 1) == 1);
        cr_assert_eq(waitpid(pid, &status, WNOHANG), 0); // a reader that reads does not end it
    }
    cr_assert_eq(close(out[0]), 0);
    cr_assert(!is_unread_before || write(said[1], &byte, 1) == 1);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(close(said[0]) == 0 && close(said[1]) == 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(child, child_without_a_reader_ends)
{
    cr_assert_eq(status_of_unread_child(false), 1);
    cr_assert_eq(status_of_unread_child(true), 1);
}
