// SPDX-License-Identifier: Apache-2.0
// The condition cpu-short: a CPU limit of the cgroup holds the server back.
#ifndef FOREBAY_SERVER_COMMAND_CPU_H
#define FOREBAY_SERVER_COMMAND_CPU_H

#include "base/host.h"
#include "control/control.h"

#define COMMAND_CPU_SAMPLES 10u

struct command_cpu_sample {
    uint64_t at_us; // monotonic; 0: none yet
    struct host_cpu cpu;
};

struct command_cpu {
    struct command_cpu_sample samples[COMMAND_CPU_SAMPLES]; // a ring; `last` is the newest
    unsigned last;
    uint64_t short_count;        // samples that found the limit used up
    uint64_t since_us;           // begin of the shortage that holds; monotonic
    struct host_cpu_limit limit; // that was used up
};

// Called as a conditions_look_fn is, under the lock of `conditions`. Also takes back the conditions
// that lateness explains, if they have begun during the shortage.
void command_cpu_look(struct command_cpu *cpu, struct conditions *conditions);

#endif
