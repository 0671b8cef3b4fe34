// SPDX-License-Identifier: Apache-2.0
#include "base/child.h"

#include <signal.h>
#include <stddef.h>

#include "base/check.h"

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
