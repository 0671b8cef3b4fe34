// SPDX-License-Identifier: Apache-2.0
// Included by every unit test: Criterion, or in the tsan build (where Criterion does not start) a
// small one-process runner with the same macros: Test(suite, name), cr_assert*, cr_expect.
#ifndef FOREBAY_TESTS_UNIT_TEST_H
#define FOREBAY_TESTS_UNIT_TEST_H

#ifndef FOREBAY_TSAN
#include <criterion/criterion.h>
#else
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit_test {
    const char *suite, *name;
    void (*fn)(void);
    struct unit_test *next;
    int signal;     // the test must end by this signal; 0: it must return
    double timeout; // Criterion's; not used here
};
void unit_test_register(struct unit_test *test);

#define Test(test_suite, test_name, ...)                                                           \
    static void test_suite##_##test_name##_fn(void);                                               \
    static struct unit_test test_suite##_##test_name##_row = {                                     \
        .suite = #test_suite,                                                                      \
        .name = #test_name,                                                                        \
        .fn = test_suite##_##test_name##_fn __VA_OPT__(, ) __VA_ARGS__};                           \
    __attribute__((constructor)) static void test_suite##_##test_name##_register(void)             \
    {                                                                                              \
        unit_test_register(&test_suite##_##test_name##_row);                                       \
    }                                                                                              \
    static void test_suite##_##test_name##_fn(void)

// A message, where there is one, begins with a literal format.
#define cr_assert(condition, ...)                                                                  \
    ((condition) ? (void)0                                                                         \
                 : (fprintf(stderr, "%s:%d: failed: %s", __FILE__, __LINE__, #condition),          \
                    __VA_OPT__(fprintf(stderr, ": " __VA_ARGS__), ) fputc('\n', stderr), exit(1)))
#define cr_expect cr_assert
#define cr_assert_not(a, ...) cr_assert(!(a)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_expect_eq cr_assert_eq
#define cr_assert_neq(a, b, ...) cr_assert((a) != (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_lt(a, b, ...) cr_assert((a) < (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_leq(a, b, ...) cr_assert((a) <= (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b)__VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_null(a, ...) cr_assert((a) == NULL __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_not_null(a, ...) cr_assert((a) != NULL __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp((a), (b)) == 0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) cr_assert(strcmp((a), (b)) != 0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...)                                                             \
    cr_assert(memcmp((a), (b), (n)) == 0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_assert_fail(...) cr_assert(0 __VA_OPT__(, ) __VA_ARGS__)
#define cr_log_info(...) ((void)snprintf(NULL, 0, __VA_ARGS__))
#endif

#endif
