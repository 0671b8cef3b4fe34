// SPDX-License-Identifier: Apache-2.0
// Draws the screen of `forebay top` from two states of a server. Main thread.
#ifndef FOREBAY_CLI_COMMAND_TOP_FRAME_H
#define FOREBAY_CLI_COMMAND_TOP_FRAME_H

#include "cli/client/command_client.h"
#include "cli/watch/command_stats.h"

#define COMMAND_TOP_ROWS 39u // rows of a frame if stdout is no terminal
#define COMMAND_TOP_PAST 60u // values of a figure that are remembered

struct top_state {
    struct command_sample sample;
    json_t *summary, *buckets; // buckets: NULL if unknown
};

struct top {
    struct command_client client;
    bool is_screen;
    int code; // exit code of the last request
    struct top_state before, now;
    json_t *keys; // the last line of the server; NULL: none
    unsigned past_count;
    float past[COMMAND_FIGURES][COMMAND_TOP_PAST]; // the last values, oldest first
};

// Adds the present figures to the past.
void command_top_remember(struct top *top);
void command_top_render(const struct top *top, struct buf *out);
// Returns the figures, keys, buckets and reasons.
json_t *command_top_json(const struct top *top);
void command_top_done(struct top *top); // frees the states

#endif
