// SPDX-License-Identifier: Apache-2.0
// Computes the activity of a running server from two samples, for stats and top.
#ifndef FOREBAY_CLI_COMMAND_STATS_H
#define FOREBAY_CLI_COMMAND_STATS_H

#include "cli/client/command_client.h"
#include "stats/stats.h"

// A sample of a summary: totals since the server's start.
struct command_sample {
    double time;
    double requests, reads, hits;
    double value[COUNTER_COUNT_];
    double first_byte[HISTOGRAM_BUCKETS + 1]; // requests per bucket, not cumulative
};

// Takes a sample. The caller owns *ret_summary (NULL: not wanted). Returns an exit code.
int command_stats_take(struct command_client *client, struct command_sample *ret_sample,
                       json_t **ret_summary);

#define COMMAND_FIGURES 10u
struct command_figure {
    const char *title, *field;
    double value, scale;      // people see value times scale
    const char *label, *unit; // the title in two words
};
void command_stats_figures(const struct command_sample *from, const struct command_sample *to,
                           struct command_figure ret_figures[COMMAND_FIGURES]);

#endif
