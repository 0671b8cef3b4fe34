// SPDX-License-Identifier: Apache-2.0
// Proves: a slow measurement of the doctor has the remedy of the CPU limit if that was used up
// during the measurement, and its own remedy otherwise.
#include "test.h"

#include "base/clock.h"
#include "cli/doctor/command_doctor.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[40], own[64], max[64], stat_file[64];

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void begin(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/forebay-cpu-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    (void)snprintf(own, sizeof(own), "%s/own", folder);
    (void)snprintf(max, sizeof(max), "%s/cpu.max", folder);
    (void)snprintf(stat_file, sizeof(stat_file), "%s/cpu.stat", folder);
    put(own, "0::/\n");
    put(max, "1000 100000\n");
    put(stat_file, "nr_periods 50\nnr_throttled 50\n");
    host_test_cgroups(folder, own);
}

static void end(void)
{
    host_test_cgroups("/sys/fs/cgroup", "/proc/self/cgroup");
    cr_assert(unlink(own) == 0 && unlink(max) == 0 && unlink(stat_file) == 0 && rmdir(folder) == 0);
}

// Measures for a second, and compares what is reported.
static void expect(const char *stat_after, bool is_slow, const char *state, const char *found,
                   const char *remedy)
{
    struct doctor doctor = {.rows = json_array()};
    struct doctor_cpu cpu;
    command_doctor_cpu_begin(&cpu);
    put(stat_file, stat_after);
    clock_test_advance_us(1000000);
    command_doctor_cpu_find(&doctor, &cpu, "disk", "use another disk", is_slow, "read in 90 ms");
    const json_t *row = json_array_get(doctor.rows, 0);
    cr_assert_str_eq(json_string_value(json_object_get(row, "state")), state);
    cr_assert_str_eq(json_string_value(json_object_get(row, "found")), found);
    const char *advice = json_string_value(json_object_get(row, "remedy"));
    cr_assert(strstr(advice != NULL ? advice : "", remedy) != NULL, "%s", advice);
    json_decref(doctor.rows);
}

Test(command_doctor_cpu, a_slow_measurement_names_the_cpu_limit_that_was_used_up)
{
    begin();
    expect("nr_periods 60\nnr_throttled 58\n", true, "yellow",
           "read in 90 ms, while the CPU limit of the cgroup (0.01 CPUs) held this check back in 8 "
           "of 10 periods",
           "CPUQuota=");
    end();
}

Test(command_doctor_cpu, a_slow_measurement_with_enough_cpu_time_has_its_own_remedy)
{
    begin();
    expect("nr_periods 60\nnr_throttled 52\n", true, "yellow", "read in 90 ms", "use another disk");
    end();
}

Test(command_doctor_cpu, a_fast_measurement_is_green_at_any_cpu_limit)
{
    begin();
    expect("nr_periods 60\nnr_throttled 60\n", false, "green", "read in 90 ms", "");
    end();
}
