// SPDX-License-Identifier: Apache-2.0
// The last two hours of the server: a ring of numbers, one row every five seconds, and a ring of
// events. The memory is fixed. Only the admin thread uses it. history.c knows no counters;
// admin_history.c samples them.
//
// A step is five seconds of the wall clock. Its number is the seconds since the epoch divided by
// five. A row holds what was sampled in its step. A step without a sample, because the machine
// slept or the process was stopped, has a row of unknown values.
#ifndef FOREBAY_CONTROL_HISTORY_H
#define FOREBAY_CONTROL_HISTORY_H

#include <stdint.h>

#include "base/bytes.h"

#define HISTORY_STEP_S 5u
#define HISTORY_STEPS 1440u // two hours
#define HISTORY_EVENTS 64u
#define HISTORY_JSON_MAX (512u << 10) // bytes of the longest answer

enum history_series {
#define TOTAL(name, unit, value) HISTORY_##name,
#define LEVEL(name, unit, value) HISTORY_##name,
#define QUANTILE(name, q, histogram) HISTORY_##name,
#include "control/history.def"
    HISTORY_SERIES
};

struct history_event {
    uint64_t wall_us;
    const char *word, *text; // constants
    bool is_bad;
};

struct history {
    uint64_t last_step; // number of the latest step that is over or has a row
    unsigned count;     // rows
    float rows[HISTORY_STEPS][HISTORY_SERIES]; // of a step: number % HISTORY_STEPS; NAN: unknown
    uint64_t event_count;                      // ever noted
    struct history_event events[HISTORY_EVENTS];
};

void history_init(struct history *history, uint64_t wall_us);
// Returns true if a new step has begun, so that a sample is due. It is due too after somebody has
// set the clock back by more than a step.
bool history_is_due(const struct history *history, uint64_t wall_us);
// Adds the row of the current step, which must be due. If the clock was set back, all older rows
// are dropped, because their times would be wrong.
void history_add(struct history *history, uint64_t wall_us, const float row[HISTORY_SERIES]);
// Notes an event. `word` and `text` must be constants.
void history_note(struct history *history, uint64_t wall_us, const char *word, const char *text,
                  bool is_bad);
// Appends the JSON of the rows after `after_s` (seconds since the epoch) and of all events.
void history_render(const struct history *history, uint64_t after_s, struct buf *out);

#endif
