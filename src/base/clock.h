// SPDX-License-Identifier: Apache-2.0
// Monotonic and wall time. Intervals use the monotonic clock; headers, signatures and logs the wall
// clock. A test may replace both (FOREBAY_FAULTS builds only).
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

// A condition variable whose timed waits go by the monotonic clock, which nobody sets.
void clock_cond_init(pthread_cond_t *cond);

#ifdef FOREBAY_FAULTS
// Adds `us` to what both clocks say from now on. Environment FOREBAY_CLOCK_FILE names a file
// holding a decimal number of milliseconds that is read again at most every 5 ms and added too: how
// a scenario test moves a running server's time.
void clock_test_advance_us(uint64_t us);
#endif

#endif
