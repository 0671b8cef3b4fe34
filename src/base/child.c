// SPDX-License-Identifier: Apache-2.0
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"

void child_attributes_init(posix_spawnattr_t *ret_attributes)
{
    sigset_t none, defaults;
    check(sigemptyset(&none) == 0 && sigemptyset(&defaults) == 0 &&
          sigaddset(&defaults, SIGPIPE) == 0);
    check(posix_spawnattr_init(ret_attributes) == 0 &&
          posix_spawnattr_setsigmask(ret_attributes, &none) == 0 &&
          posix_spawnattr_setsigdefault(ret_attributes, &defaults) == 0 &&
          posix_spawnattr_setflags(ret_attributes,
                                   POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF) == 0);
}

void child_reset_signals(void)
{
    sigset_t none;
    (void)sigemptyset(&none);
    (void)signal(SIGPIPE, SIG_DFL);              // cannot fail
    (void)sigprocmask(SIG_SETMASK, &none, NULL); // cannot fail
}

bool child_read_output(int fd, uint64_t limit_ms, struct buf *out)
{
    uint64_t until_ms = clock_monotonic_ms() + limit_ms, now_ms;
    char piece[4096];
    while (buf_ok(out) && (now_ms = clock_monotonic_ms()) < until_ms) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (poll(&ready, 1, (int)(until_ms - now_ms)) <= 0) {
            continue;
        }
        ssize_t len = read(fd, piece, sizeof(piece));
        if (len == 0 || (len < 0 && errno != EINTR)) {
            return len == 0;
        }
        buf_append(out, piece, len > 0 ? (size_t)len : 0);
    }
    return false;
}

static int watched_fd;

// The kernel sends the signal when the reader closes its end, and also whenever it has read.
static void on_reader(int number)
{
    int kept = errno;
    struct pollfd pipe_end = {.fd = watched_fd};
    (void)number;
    if (poll(&pipe_end, 1, 0) == 1 && (pipe_end.revents & POLLERR) != 0) {
        _exit(1);
    }
    errno = kept;
}

void child_end_with_reader(int fd)
{
    struct sigaction action = {.sa_handler = on_reader, .sa_flags = SA_RESTART};
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISFIFO(st.st_mode)) {
        return;
    }
    watched_fd = fd;
    (void)sigemptyset(&action.sa_mask); // cannot fail
    int flags = fcntl(fd, F_GETFL);
    check(sigaction(SIGIO, &action, NULL) == 0 && flags >= 0 &&
          fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_SETFL, flags | O_ASYNC) == 0);
    on_reader(SIGIO); // the reader may have gone before
}
