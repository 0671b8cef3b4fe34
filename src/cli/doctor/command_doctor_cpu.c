// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: says of a slow measurement whether a CPU limit of the cgroup explains it.
#include "base/clock.h"
#include "cli/doctor/command_doctor.h"
#include "control/control.h"

void command_doctor_cpu_begin(struct doctor_cpu *ret_cpu)
{
    host_cpu_look(&ret_cpu->before);
    ret_cpu->began_us = clock_monotonic_us();
}

void command_doctor_cpu_find(struct doctor *d, const struct doctor_cpu *cpu, const char *name,
                             const char *slow_remedy, bool is_slow, const char *found)
{
    struct host_cpu now;
    host_cpu_look(&now);
    struct host_cpu_limit limit = host_cpu_between(&cpu->before, &now);
    if (!is_slow) {
        command_doctor_find(d, DOCTOR_GREEN, name, NULL, "%s", found);
    } else if (host_cpu_is_short(&limit, clock_monotonic_us() - cpu->began_us)) {
        command_doctor_find(d, DOCTOR_YELLOW, name, conditions_row(CONDITION_cpu_short).remedy,
                            "%s, while the CPU limit of the cgroup (%.2f CPUs) held this check "
                            "back in %llu of %llu periods",
                            found, (double)limit.quota_us / (double)limit.period_us,
                            (unsigned long long)limit.throttled, (unsigned long long)limit.periods);
    } else {
        command_doctor_find(d, DOCTOR_YELLOW, name, slow_remedy, "%s", found);
    }
}
