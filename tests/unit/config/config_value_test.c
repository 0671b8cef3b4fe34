// SPDX-License-Identifier: Apache-2.0
// Proves: the pure parsers of values at their edges.
#include "test.h"

#include "base/host.h"
#include "config/config_private.h"

#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char why[WHY_MAX];

Test(config_value, times)
{
    uint64_t ms = 0;
    cr_assert(config_value_parse_ms(SPAN("250ms"), &ms, why) && ms == 250);
    cr_assert(config_value_parse_ms(SPAN("7d"), &ms, why) && ms == 7ull * 86400000);
    cr_assert(config_value_parse_ms(SPAN("0s"), &ms, why) && ms == 0);
    cr_assert(config_value_parse_ms(SPAN("1.5h"), &ms, why) && ms == 5400000);
    cr_assert(config_value_parse_ms(SPAN("0.25s"), &ms, why) && ms == 250);
    cr_assert_not(config_value_parse_ms(SPAN("0.0001s"), &ms, why));
    cr_assert_str_eq(why, "\"0.0001s\" is less than 1ms");
    const char *bad[] = {"",
                         "s",
                         "1",
                         "0",
                         "-1s",
                         "1 s",
                         "1.5",
                         "1.s",
                         ".5s",
                         "1.5.2s",
                         "1h30m",
                         "99999999999999999999s",
                         "99999999999999999d"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(config_value_parse_ms(span_from_cstr(bad[i]), &ms, why));
        cr_assert_gt(strlen(why), 0);
    }
}

Test(config_value, sizes)
{
    uint64_t bytes = 0;
    struct config_size size;
    cr_assert(config_value_parse_bytes(SPAN("64MiB"), &bytes, why) && bytes == 64 << 20);
    cr_assert(config_value_parse_bytes(SPAN("2GB"), &bytes, why) && bytes == 2000000000);
    cr_assert(config_value_parse_bytes(SPAN("107374182400"), &bytes, why) && bytes == 107374182400);
    cr_assert_not(config_value_parse_bytes(SPAN("16EiB"), &bytes, why));
    cr_assert_not(config_value_parse_bytes(SPAN("mib"), &bytes, why));
    cr_assert_not(config_value_parse_bytes(SPAN("1mib"), &bytes, why));
    cr_assert_not_null(strstr(why, "(1MiB?)"));
    cr_assert(config_value_parse_size(SPAN("90%"), &size, why) && size.percent == 90 &&
              size.bytes == 0);
    cr_assert(config_value_parse_size(SPAN("1TiB"), &size, why) && size.percent == 0);
    cr_assert_not(config_value_parse_size(SPAN("101%"), &size, why));
    cr_assert(config_value_parse_rate(SPAN("0"), &bytes, why) && bytes == 0);
    cr_assert(config_value_parse_rate(SPAN("2MiB/s"), &bytes, why) && bytes == 2 << 20);
    cr_assert_not(config_value_parse_rate(SPAN("/s"), &bytes, why));
    config_value_format_bytes(4 << 20, why);
    cr_assert_str_eq(why, "4MiB");
    config_value_format_bytes(1025, why);
    cr_assert_str_eq(why, "1025");
}

Test(config_value, fraction_of_a_unit_is_exact_and_rounded_down_to_a_byte)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"1.5GiB", 1610612736},
                 {"1.2GB", 1200000000},
                 {"0.1KiB", 102}, // 102.4
                 {"1.50MiB", 1572864},
                 {"1.0B", 1},
                 {"0.0GiB", 0},
                 // 0.1 * 2^60 is 115292150460684697.6
                 {"0.1EiB", 115292150460684697},
                 {"0.99999999999999999999999999999999999999EiB", (1ull << 60) - 1},
                 {"1.00000000000000000000000000000000000001KiB", 1024},
                 {"15.99999999999999999999999999999999999999EiB", UINT64_MAX}};
    uint64_t bytes = 0;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        cr_assert(config_value_parse_bytes(span_from_cstr(sizes[i].text), &bytes, why), "%s: %s",
                  sizes[i].text, why);
        cr_assert_eq(bytes, sizes[i].bytes, "%s", sizes[i].text);
    }
    cr_assert(config_value_parse_rate(SPAN("1.5GB/s"), &bytes, why) && bytes == 1500000000);
    cr_assert(config_value_parse_block_size(SPAN("0.5MiB"), &bytes, why) && bytes == 512 << 10);
}

Test(config_value, malformed_fraction_is_refused_with_the_reason)
{
    static const char *const refusals[][2] = {
        {"1.", "\"1.\" is not a size such as 64MiB, 1.5GiB or 2GB"},
        {"1.GiB", "\"1.GiB\" is not a size such as 64MiB, 1.5GiB or 2GB"},
        {".5", "\".5\" is not a size such as 64MiB, 1.5GiB or 2GB"},
        {".5GiB", "\".5GiB\" is not a size such as 64MiB, 1.5GiB or 2GB"},
        {"1.5.2GiB", "\"1.5.2GiB\" is not a size such as 64MiB, 1.5GiB or 2GB"},
        {"1.5", "\"1.5\" needs a unit (1.5GiB?)"},
        {"1.5gib", "\"1.5gib\" has an unknown unit (1.5GiB?)"},
        {"0.5B", "\"0.5B\" is less than 1B"},
        {"16.5EiB", "\"16.5EiB\" is too large"}};
    uint64_t bytes = 0;
    for (size_t i = 0; i < ARRAY_LEN(refusals); i++) {
        cr_assert_not(config_value_parse_bytes(span_from_cstr(refusals[i][0]), &bytes, why));
        cr_assert_str_eq(why, refusals[i][1]);
    }
    unsigned percent = 0;
    cr_assert_not(config_value_parse_percent(SPAN("10.5%"), &percent, why));
    cr_assert_str_eq(why, "\"10.5%\" is not a share in whole percent such as 10%");
    cr_assert_not(config_value_parse_rate(SPAN("0.0001KiB/s"), &bytes, why));
    cr_assert_str_eq(why, "\"0.0001KiB\" is less than 1B");
}

Test(config_value, block_sizes)
{
    uint64_t bytes = 0;
    cr_assert(config_value_parse_block_size(SPAN("64KiB"), &bytes, why) && bytes == 65536);
    cr_assert(config_value_parse_block_size(SPAN("16MiB"), &bytes, why));
    cr_assert_not(config_value_parse_block_size(SPAN("32KiB"), &bytes, why));
    cr_assert_not_null(strstr(why, "(64KiB?)"));
    cr_assert_not(config_value_parse_block_size(SPAN("32MiB"), &bytes, why));
    cr_assert_not_null(strstr(why, "(16MiB?)"));
}

Test(config_value, globs)
{
    const char *good[] = {"**", "a/*", "b/{x,y}/?", "a\\{b", "a\\\\", "*/manifests/**"};
    const char *bad[] = {"", "a{b", "a}b", "{a,{b}}", "a\\"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        cr_assert(config_value_is_glob(span_from_cstr(good[i]), why), "%s", good[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(config_value_is_glob(span_from_cstr(bad[i]), why), "%s", bad[i]);
    }
}

Test(config_value, endpoints)
{
    const char *good[] = {
        "http://127.0.0.1:8333",    "https://s3.{region}.amazonaws.com",
        "https://h/prefix",         "dir:/data",
        "http://[::1]:80",          "https://s3.dualstack.eu-west-1.amazonaws.com/",
        "https://s3.example.com/b", "https://bucket.vpce-1.s3.eu-west-1.vpce.amazonaws.com"};
    const char *bad[] = {"",
                         "s3.amazonaws.com",
                         "dir:data",
                         "dir:",
                         "http://",
                         "http://:80",
                         "http://h:443:80",
                         "http://h:443:80/path",
                         "http://h:",
                         "http://h:0",
                         "http://h:65536",
                         "http://h:x",
                         "http://fe80::1",
                         "http://[::1]9000",
                         "http://[::1]:9000:80",
                         "http://u@host",
                         "http://h?x=1",
                         "ftp://h",
                         "http://h a",
                         "https://b.s3.amazonaws.com",
                         "https://s3.eu-west-1.amazonaws.com/b"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        cr_assert(config_value_is_endpoint(span_from_cstr(good[i]), why), "%s", good[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_not(config_value_is_endpoint(span_from_cstr(bad[i]), why), "%s", bad[i]);
    }
}

Test(config_value, an_endpoint_with_two_ports_is_refused_with_the_form_of_one)
{
    cr_assert_not(config_value_is_endpoint(SPAN("http://h:443:80"), why));
    cr_assert_str_eq(why, "\"http://h:443:80\": the host may be followed by one port from 1 to "
                          "65535 (http://h:9000?); write an IPv6 address in brackets");
}

Test(config_value, spellings_of_one_endpoint_have_one_form)
{
    static const char *const forms[][2] = {
        {"http://127.0.0.1:8333", "http://127.0.0.1:8333"},
        {"http://127.0.0.1:8333//", "http://127.0.0.1:8333"},
        {"https://S3.Example.com:443/B/c/", "https://s3.example.com/B/c"},
        {"http://h:443", "http://h:443"},
        {"http://h:80/", "http://h"},
        {"http://h:8080", "http://h:8080"},
        {"http://[::1]:80", "http://[::1]"},
        {"http://[fe80::80]", "http://[fe80::80]"},
        {"https://s3.{region}.amazonaws.com/", "https://s3.{region}.amazonaws.com"},
        {"dir:/data//sets/", "dir:/data/sets"},
        {"dir:/Data", "dir:/Data"},
        {"dir:///", "dir:/"},
        {"dir:/", "dir:/"},
    };
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct buf out;
        buf_init(&out, 4096);
        config_value_endpoint_render(span_from_cstr(forms[i][0]), &out);
        cr_assert_str_eq(buf_cstr(&out), forms[i][1], "%s: %s", forms[i][0], buf_cstr(&out));
        buf_done(&out);
    }
}

static unsigned played_cpus; // 0: the machine's

// Stands before the C library's.
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *ret_set)
{
    if (played_cpus == 0) {
        return syscall(SYS_sched_getaffinity, pid, size, ret_set) < 0 ? -1 : 0;
    }
    CPU_ZERO(ret_set);
    for (unsigned i = 0; i < played_cpus; i++) {
        CPU_SET(i, ret_set);
    }
    return 0;
}

Test(config_value, a_large_machine_gets_no_more_workers_than_can_be)
{
    played_cpus = 192;
    cr_assert_leq(host_workers(CONFIG_WORKERS_MAX),
                  CONFIG_WORKERS_MAX); // fewer, where a cgroup says so
    played_cpus = 0;
}

Test(config_value, host_limits_are_sane)
{
    cr_assert_geq(host_workers(CONFIG_WORKERS_MAX), 1);
    cr_assert_gt(host_memory_bytes(), 1 << 20);
}
