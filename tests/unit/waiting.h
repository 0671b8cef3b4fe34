// SPDX-License-Identifier: Apache-2.0
// The one way to wait for a state that sends no event: check again every millisecond. A test that
// waits in vain for half a minute fails.
#ifndef FOREBAY_TESTS_UNIT_WAITING_H
#define FOREBAY_TESTS_UNIT_WAITING_H

#include <unistd.h>

#include "test.h"

#define WAIT_LOOKS_MAX 30000u

#define wait_for(condition)                                                                        \
    do {                                                                                           \
        for (unsigned looks = 0; !(condition); looks++) {                                          \
            cr_assert(looks < WAIT_LOOKS_MAX, "waited in vain for %s", #condition);                \
            (void)usleep(1000);                                                                    \
        }                                                                                          \
    } while (0)

#endif
