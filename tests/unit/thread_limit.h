// SPDX-License-Identifier: Apache-2.0
// Plays a limit of tasks that the process has reached: pthread_create() fails with EAGAIN.
#ifndef FOREBAY_TESTS_UNIT_THREAD_LIMIT_H
#define FOREBAY_TESTS_UNIT_THREAD_LIMIT_H

#include <stdbool.h>

void thread_limit_reached(bool is_reached);

#endif
