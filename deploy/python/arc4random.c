// SPDX-License-Identifier: Apache-2.0
// The random functions that libexpat.a and libevent.a of Debian 12 call. The C library has them
// only since version 2.36. Defined here, they let the static binary run from glibc 2.34 on (Red Hat
// 9, Ubuntu 22.04, Amazon Linux 2023). Both libraries call them seldom, so each call asks the
// kernel.
#include <stdlib.h>
#include <sys/random.h>

void arc4random_buf(void *to, size_t size);
unsigned arc4random(void);

void arc4random_buf(void *to, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t got = getrandom((char *)to + done, size - done, 0);
        if (got > 0) {
            done += (size_t)got; // otherwise a signal came first
        }
    }
}

unsigned arc4random(void)
{
    unsigned value;
    arc4random_buf(&value, sizeof(value));
    return value;
}
