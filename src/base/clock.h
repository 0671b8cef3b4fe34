// SPDX-License-Identifier: Apache-2.0
// Monotonic and wall time. Intervals use the monotonic clock; headers, signatures and logs use the
// wall clock. Tests can move both (FOREBAY_FAULTS builds only).
#ifndef FOREBAY_BASE_CLOCK_H
#define FOREBAY_BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>

// Any thread. Cheap (vDSO).
uint64_t clock_monotonic_us(void);
uint64_t clock_wall_us(void);

static inline uint64_t clock_monotonic_ms(void)
{
    return clock_monotonic_us() / 1000;
}

static inline int64_t clock_wall_s(void)
{
    return (int64_t)(clock_wall_us() / 1000000);
}

// Initialises a condition variable whose timed waits use the monotonic clock, which nobody can set.
void clock_cond_init(pthread_cond_t *cond);

#ifdef FOREBAY_FAULTS
// Adds `us` to both clocks from now on. The environment variable FOREBAY_CLOCK_FILE names a file
// with a decimal number of milliseconds, which is added too. The file is read at most every 5 ms.
// Scenario tests move a running server's time with it.
void clock_test_advance_us(uint64_t us);
#endif

#endif
