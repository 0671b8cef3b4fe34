// SPDX-License-Identifier: Apache-2.0
// The condition cpu-short. It begins when a CPU limit of the cgroup was used up in three tenths of
// the last ten seconds, and ends a minute after the last time at which that was so. A start or a
// burst that uses the limit up for less than three seconds is no shortage.
//
// A lack of CPU time without such a limit, as on a busy host, is not judged. A late turn of the
// event loop is no proof of it, because Forebay itself may have made the turn before it long.
#include "server/command_cpu.h"

#include "base/clock.h"

#define SAMPLE_US 1000000u
#define WINDOW_US 10000000u
#define SHORTLY_S 60u

// Conditions that rest on how late something came. A server that gets no CPU time sees everything
// late: the answers of the store and of the disk, and the turns of its workers.
static const enum condition late_ones[] = {CONDITION_worker_stuck, CONDITION_origin_slow,
                                           CONDITION_disk_slow};

// Returns the oldest sample of the window. If all are older than the window, returns the last one.
static const struct command_cpu_sample *window_begin(const struct command_cpu *cpu, uint64_t now_us)
{
    const struct command_cpu_sample *first = &cpu->samples[cpu->last];
    for (unsigned i = 0; i < COMMAND_CPU_SAMPLES; i++) {
        const struct command_cpu_sample *sample = &cpu->samples[i];
        bool is_within = sample->at_us != 0 && now_us - sample->at_us < WINDOW_US + SAMPLE_US;
        first = is_within && sample->at_us < first->at_us ? sample : first;
    }
    return first;
}

// Compares a new sample with the begin of the window.
static void judge(struct command_cpu *cpu, const struct command_cpu_sample *now)
{
    const struct command_cpu_sample *first = window_begin(cpu, now->at_us);
    struct host_cpu_limit limit = host_cpu_between(&first->cpu, &now->cpu);
    if (first->at_us != 0 &&
        host_cpu_is_short(&limit, max_u64(now->at_us - first->at_us, WINDOW_US))) {
        cpu->short_count++;
        cpu->limit = limit;
        cpu->since_us = cpu->since_us != 0 ? cpu->since_us : first->at_us;
    }
}

static void take_sample(struct command_cpu *cpu)
{
    struct command_cpu_sample now = {.at_us = clock_monotonic_us()};
    if (now.at_us - cpu->samples[cpu->last].at_us < SAMPLE_US) {
        return;
    }
    host_cpu_look(&now.cpu);
    judge(cpu, &now);
    cpu->last = (cpu->last + 1) % COMMAND_CPU_SAMPLES;
    cpu->samples[cpu->last] = now;
}

void command_cpu_look(struct command_cpu *cpu, struct conditions *conditions)
{
    const struct host_cpu_limit *limit = &cpu->limit;
    take_sample(cpu);
    if (!conditions_rose(conditions, CONDITION_cpu_short, cpu->short_count, SHORTLY_S)) {
        conditions_tell(conditions, CONDITION_cpu_short, false);
        cpu->since_us = 0;
        return;
    }
    conditions_tell_more(
        conditions, CONDITION_cpu_short, conditions_row(CONDITION_cpu_short).remedy,
        "the CPU limit of the cgroup (%.2f CPUs) held the server back in %llu of "
        "%llu periods of %llu ms, so all requests wait",
        (double)limit->quota_us / (double)limit->period_us, (unsigned long long)limit->throttled,
        (unsigned long long)limit->periods, (unsigned long long)limit->period_us / 1000);
    for (unsigned i = 0; i < ARRAY_LEN(late_ones); i++) {
        conditions_take_back(conditions, late_ones[i], cpu->since_us);
    }
}
