// SPDX-License-Identifier: Apache-2.0
#include "base/human.h"

#include "base/bytes.h"
#include "test.h"

Test(human, a_wait_has_two_digits_and_a_unit)
{
    static const struct {
        uint64_t wait_us;
        const char *text;
    } cases[] = {{0, "0 us"},        {850, "850 us"},   {1000, "1.0 ms"},   {9940, "9.9 ms"},
                 {9960, "10 ms"},    {30400, "30 ms"},  {999400, "999 ms"}, {999500, "1.0 s"},
                 {5060000, "5.1 s"}, {61000000, "61 s"}};
    char text[HUMAN_TIME_MAX];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert_str_eq(human_wait(cases[i].wait_us, text), cases[i].text);
    }
}

Test(human, rounded_up_bytes_are_shown_exactly)
{
    static const double cases[] = {0, 1, 1000, 1023, 1024, 1025, 10 << 20, 1e6, 1e9 + 1, 3e12};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        double binary = human_bytes_up(cases[i]), decimal = human_bytes_decimal_up(cases[i]);
        cr_assert_geq(binary, cases[i]);
        cr_assert_geq(decimal, cases[i]);
        cr_assert_lt(binary, 1.11 * cases[i] + 1);
        cr_assert_lt(decimal, 1.11 * cases[i] + 1);
    }
    char text[HUMAN_BYTES_MAX];
    cr_assert_str_eq(human_bytes(human_bytes_up(1.01 * (1 << 20)), text), "1.1 MiB");
    cr_assert_str_eq(human_bytes_decimal(human_bytes_decimal_up(1.01e6), text), "1.1 MB");
    cr_assert_str_eq(human_bytes_decimal(human_bytes_decimal_up(2e6), text), "2.0 MB");
}

Test(human, clock)
{
    char text[HUMAN_TIME_MAX];
    cr_assert_str_eq(human_clock(0, text), "00:00:00 UTC");
    cr_assert_str_eq(human_clock(20000 * 86400ull + 45296, text), "12:34:56 UTC");
}
