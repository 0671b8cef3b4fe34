// SPDX-License-Identifier: Apache-2.0
// Random bytes from the kernel. Any thread.
#include "base/random.h"

#include <errno.h>
#include <sys/random.h>

#include "base/check.h"

void random_bytes(void *ret_bytes, size_t len)
{
    char *at = ret_bytes;
    while (len > 0) {
        ssize_t got = getrandom(at, len, 0);
        if (got < 0) {
            check(errno == EINTR);
            continue;
        }
        at += got;
        len -= (size_t)got;
    }
}

uint64_t random_u64(void)
{
    uint64_t value;
    random_bytes(&value, sizeof(value));
    return value;
}
