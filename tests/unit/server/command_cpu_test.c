// SPDX-License-Identifier: Apache-2.0
// Proves: a CPU limit that is used up in three tenths of ten seconds makes the condition cpu-short,
// which ends a minute later. Meanwhile no condition begins that lateness explains.
#include "server/command_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "test.h"

#define SECOND_US 1000000u

static struct {
    char folder[40], own[64], max[64], stat[64];
    struct command_cpu cpu;
    struct conditions conditions;
    uint64_t periods, throttled;
    bool is_stuck, is_origin_slow, is_disk_full;
    uint64_t slow_reads;
} rig;

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void look(void *ctx, struct conditions *c)
{
    (void)ctx;
    conditions_tell(c, CONDITION_worker_stuck, rig.is_stuck);
    conditions_tell(c, CONDITION_origin_slow, rig.is_origin_slow);
    conditions_tell(c, CONDITION_disk_full, rig.is_disk_full);
    conditions_tell(c, CONDITION_disk_slow,
                    conditions_rose(c, CONDITION_disk_slow, rig.slow_reads, 60));
    command_cpu_look(&rig.cpu, c);
}

static bool holds(enum condition which)
{
    bool all[CONDITION_COUNT_];
    conditions_read(&rig.conditions, all);
    return all[which];
}

// Lets seconds of ten periods pass, of which `throttled` used the limit up, with a look at each.
static void pass(unsigned seconds, unsigned throttled)
{
    char text[96];
    for (unsigned i = 0; i < seconds; i++) {
        rig.periods += 10;
        rig.throttled += throttled;
        (void)snprintf(text, sizeof(text), "nr_periods %llu\nnr_throttled %llu\n",
                       (unsigned long long)rig.periods, (unsigned long long)rig.throttled);
        put(rig.stat, text);
        clock_test_advance_us(SECOND_US);
        conditions_look(&rig.conditions);
    }
}

// Begins in a cgroup of a tenth of a CPU, which was held back before.
static void begin(void)
{
    memset(&rig, 0, sizeof(rig)); // some runs have one process for all tests
    (void)snprintf(rig.folder, sizeof(rig.folder), "/tmp/forebay-cpu-XXXXXX");
    cr_assert(mkdtemp(rig.folder) != NULL);
    (void)snprintf(rig.own, sizeof(rig.own), "%s/own", rig.folder);
    (void)snprintf(rig.max, sizeof(rig.max), "%s/cpu.max", rig.folder);
    (void)snprintf(rig.stat, sizeof(rig.stat), "%s/cpu.stat", rig.folder);
    put(rig.own, "0::/\n");
    put(rig.max, "10000 100000\n");
    host_test_cgroups(rig.folder, rig.own);
    rig.periods = rig.throttled = 1000;
    conditions_init(&rig.conditions, look, NULL);
    pass(1, 0);
}

static void end(void)
{
    conditions_done(&rig.conditions);
    host_test_cgroups("/sys/fs/cgroup", "/proc/self/cgroup");
    cr_assert(unlink(rig.own) == 0 && unlink(rig.max) == 0 && unlink(rig.stat) == 0);
    cr_assert(rmdir(rig.folder) == 0);
}

Test(command_cpu, a_limit_used_up_for_three_of_ten_seconds_is_a_shortage)
{
    begin();
    cr_assert(!holds(CONDITION_cpu_short), "the time before the start does not count");
    pass(2, 10);
    pass(20, 0);
    cr_assert(!holds(CONDITION_cpu_short), "a burst of two seconds is none");
    pass(30, 2);
    cr_assert(!holds(CONDITION_cpu_short), "a fifth of the time is none");
    pass(3, 10);
    cr_assert(holds(CONDITION_cpu_short));
    end();
}

Test(command_cpu, the_text_has_the_limit_and_the_periods)
{
    begin();
    pass(20, 8);
    json_t *json = conditions_json(&rig.conditions, true);
    const json_t *row = json_array_get(json, 0);
    cr_assert_str_eq(json_string_value(json_object_get(row, "name")), "cpu-short");
    cr_assert_str_eq(json_string_value(json_object_get(row, "severity")), "warning");
    const char *text = json_string_value(json_object_get(row, "text"));
    cr_assert_str_eq(text, "the CPU limit of the cgroup (0.10 CPUs) held the server back in 80 of "
                           "100 periods of 100 ms, so all requests wait");
    json_decref(json);
    end();
}

Test(command_cpu, a_shortage_ends_a_minute_after_the_last_look_that_found_it)
{
    begin();
    pass(10, 10);
    cr_assert(holds(CONDITION_cpu_short));
    pass(60, 0);
    cr_assert(holds(CONDITION_cpu_short));
    pass(8, 0); // for eight seconds after the last such period, it was used up often enough
    cr_assert(!holds(CONDITION_cpu_short));
    end();
}

Test(command_cpu, a_server_that_seldom_looks_finds_the_shortage)
{
    begin();
    rig.periods += 290; // of 30 s
    rig.throttled += 120;
    clock_test_advance_us(29 * SECOND_US);
    pass(1, 10);
    cr_assert(holds(CONDITION_cpu_short));
    end();
}

Test(command_cpu, lateness_begins_no_condition_during_a_shortage)
{
    begin();
    rig.is_stuck = rig.is_origin_slow = rig.is_disk_full = true;
    rig.slow_reads = 1;
    pass(2, 10);
    cr_assert(holds(CONDITION_origin_slow), "there is no shortage yet");
    pass(1, 10);
    cr_assert(holds(CONDITION_cpu_short));
    cr_assert(!holds(CONDITION_origin_slow), "it began together with the shortage");
    cr_assert(!holds(CONDITION_worker_stuck));
    cr_assert(!holds(CONDITION_disk_slow));
    cr_assert(holds(CONDITION_disk_full), "lateness does not explain it");
    rig.slow_reads = 2;
    pass(10, 10);
    cr_assert(!holds(CONDITION_worker_stuck));
    cr_assert(!holds(CONDITION_disk_slow));
    pass(70, 0);
    cr_assert(!holds(CONDITION_cpu_short));
    cr_assert(holds(CONDITION_worker_stuck), "it holds without a shortage");
    cr_assert(!holds(CONDITION_disk_slow), "its events were those of the shortage");
    rig.slow_reads = 3;
    cr_assert(holds(CONDITION_disk_slow));
    end();
}

Test(command_cpu, a_condition_that_began_before_the_shortage_goes_on)
{
    begin();
    rig.is_stuck = true;
    pass(11, 0);
    cr_assert(holds(CONDITION_worker_stuck));
    pass(10, 10);
    cr_assert(holds(CONDITION_cpu_short));
    cr_assert(holds(CONDITION_worker_stuck));
    rig.is_stuck = false;
    pass(1, 10);
    rig.is_stuck = true;
    pass(1, 10);
    cr_assert(!holds(CONDITION_worker_stuck), "it ended, and began again during the shortage");
    end();
}
