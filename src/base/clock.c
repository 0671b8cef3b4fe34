// SPDX-License-Identifier: Apache-2.0
// The clocks. Any thread. In builds with faults, an atomic offset is added to each reading.
#include "base/clock.h"

#include <time.h>

#include "base/check.h"

#ifdef FOREBAY_FAULTS
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bytes.h"
#endif

static uint64_t read_clock_us(clockid_t id)
{
    struct timespec now;
    check(clock_gettime(id, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

#ifdef FOREBAY_FAULTS
#define FILE_INTERVAL_US 5000

static _Atomic uint64_t advanced_us; // total of clock_test_advance_us()
static _Atomic uint64_t file_us;     // last value read from FOREBAY_CLOCK_FILE
// Real monotonic time of the next read of FOREBAY_CLOCK_FILE; 0: the variable is not set.
static _Atomic uint64_t file_next_us = 1;

void clock_test_advance_us(uint64_t us)
{
    atomic_fetch_add(&advanced_us, us);
}

static void read_clock_file(const char *path)
{
    char text[32];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t len = read(fd, text, sizeof(text));
    (void)close(fd); // the file was only read, so a failure loses nothing
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' ')) {
        len--;
    }
    uint64_t ms;
    if (len > 0 && span_to_u64((struct span){text, (size_t)len}, &ms)) {
        atomic_store(&file_us, ms * 1000);
    }
}

static uint64_t offset_us(void)
{
    uint64_t due = atomic_load_explicit(&file_next_us, memory_order_relaxed);
    if (due != 0) {
        uint64_t now = read_clock_us(CLOCK_MONOTONIC);
        if (now >= due &&
            atomic_compare_exchange_strong(&file_next_us, &due, now + FILE_INTERVAL_US)) {
            const char *path = getenv("FOREBAY_CLOCK_FILE");
            if (path != NULL) {
                read_clock_file(path);
            } else {
                atomic_store(&file_next_us, 0);
            }
        }
    }
    return atomic_load_explicit(&advanced_us, memory_order_relaxed) +
           atomic_load_explicit(&file_us, memory_order_relaxed);
}
#else
static uint64_t offset_us(void)
{
    return 0;
}
#endif

uint64_t clock_monotonic_us(void)
{
    return read_clock_us(CLOCK_MONOTONIC) + offset_us();
}

uint64_t clock_wall_us(void)
{
    return read_clock_us(CLOCK_REALTIME) + offset_us();
}

void clock_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    check(pthread_condattr_init(&attr) == 0);
    check(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    check(pthread_cond_init(cond, &attr) == 0);
    check(pthread_condattr_destroy(&attr) == 0);
}
