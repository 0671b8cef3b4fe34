// SPDX-License-Identifier: Apache-2.0
#include "base/child.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
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
