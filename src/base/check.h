// SPDX-License-Identifier: Apache-2.0
// check() is an assertion that is part of every build. It is for mistakes in our own code. Faults
// of input, disk, network or kernel are returned as errors instead.
#ifndef FOREBAY_BASE_CHECK_H
#define FOREBAY_BASE_CHECK_H

#include <stddef.h>

// Prints file, line and condition to stderr and aborts. Never returns.
_Noreturn void check_failed(const char *file, int line, const char *condition);

#define check(condition)                                                                           \
    (__builtin_expect(!!(condition), 1) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

// Returns the struct of type `type` whose member `member` is at `ptr`.
#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_index, first_index)                                                     \
    __attribute__((format(printf, format_index, first_index)))
#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))

// Checks that `to` may follow `from`. The array `next` has the successors of each state as bits.
#define check_step(next, from, to)                                                                 \
    check((unsigned)(from) < ARRAY_LEN(next) && (unsigned)(to) < ARRAY_LEN(next) &&                \
          ((next)[from] >> (to)&1) == 1)

#endif
