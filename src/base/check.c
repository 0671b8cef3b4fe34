// SPDX-License-Identifier: Apache-2.0
// Ends the process when check() finds a state that must not occur.
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void check_failed(const char *file, int line, const char *condition)
{
    // Writes once and without stdio, because the failing thread may hold stdio's locks.
    char text[512];
    int len = snprintf(text, sizeof(text), "event=check_failed at=%s:%d condition=\"%s\"\n", file,
                       line, condition);
    if (len > 0) {
        size_t size = (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1;
        if (write(STDERR_FILENO, text, size) < 0) {
            abort(); // there is nowhere else to report the failure
        }
    }
    abort();
}
