// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: measures how fast an origin delivers the first object found, over one
// connection and over several. It reads at most 48 MiB, for at most twice the timeout of an answer.
// The reads keep to origin.max_rate. If that makes them slow, the finding says so and is green.
// `forebay bench` measures more.
#include <stdio.h>
#include <string.h>

#include "cli/client/command_client.h"
#include "cli/client/command_probe.h"
#include "cli/doctor/command_doctor.h"
#include "commands/commands.h"

#define SIZE_MIN (1u << 20) // smaller objects measure only round trips
#define ONE_MAX (16u << 20)
#define PIECE_MAX (4u << 20) // maximum bytes that a fill requests at once
#define MANY 8u
#define SLOW_BYTES_PER_S 20e6 // a slower origin is yellow, because every kind of disk is faster
#define MAX_RATE_PART 0.7 // from this part of origin.max_rate on, the setting explains a slow read

// Returns the rate of the received bytes, even if the timeout cut the answers short; 0: none
// arrived.
static double rate_of(const struct command_probe_answer *answers, unsigned count)
{
    uint64_t bytes = 0, us = 1;
    for (unsigned i = 0; i < count; i++) {
        bytes += answers[i].bytes;
        us = max_u64(us, answers[i].total_us);
    }
    return (double)bytes * 1e6 / (double)us;
}

void command_doctor_speed(struct doctor *d, struct command_probe *probe,
                          const struct command_probe_ask *ask, uint64_t size_bytes)
{
    struct command_probe_ask asks[MANY];
    struct command_probe_answer answers[MANY];
    struct doctor_cpu cpu;
    char found[512], why[80] = ""; // a bucket's name has at most 255 bytes
    bool is_directory = strncmp(origin_describe(ask->origin), "dir:", 4) == 0;
    if (d->has_speed || is_directory || size_bytes < SIZE_MIN) {
        return;
    }
    d->has_speed = true;
    unsigned many = (unsigned)min_u64(MANY, d->config->origin_connections);
    uint64_t piece = min_u64(PIECE_MAX, size_bytes), timeout_ms = command_doctor_probe_ms(d);
    command_doctor_cpu_begin(&cpu);
    asks[0] = *ask;
    asks[0].kind = PROBE_GET;
    asks[0].first = 0;
    asks[0].last = min_u64(ONE_MAX, size_bytes) - 1;
    command_probe_ask(probe, &asks[0], timeout_ms, &answers[0]);
    double one = rate_of(answers, 1);
    for (unsigned i = 0; i < many; i++) {
        asks[i] = asks[0];
        asks[i].first = (uint64_t)i * piece % (size_bytes - piece + 1);
        asks[i].last = asks[i].first + piece - 1;
    }
    command_probe_ask_all(probe, asks, many, timeout_ms, answers);
    double all = rate_of(answers, many);
    double max_rate = (double)d->config->origin_max_rate_bytes_per_s;
    bool is_slow = one < SLOW_BYTES_PER_S && all < SLOW_BYTES_PER_S;
    bool is_limited = is_slow && max_rate > 0 && all >= MAX_RATE_PART * max_rate;
    if (is_limited) {
        (void)snprintf(why, sizeof(why), "; origin.max_rate (%s/s) limits this",
                       command_bytes(max_rate));
    }
    (void)snprintf(found, sizeof(found), "%s: %s/s by one connection, %s/s by %u%s", ask->bucket,
                   command_bytes(one), command_bytes(all), many, why);
    command_doctor_cpu_find(d, &cpu, "throughput",
                            "look at what is in between (region, NAT gateway, VPC endpoint, "
                            "proxy); `forebay bench` measures more",
                            is_slow && !is_limited, found);
}
