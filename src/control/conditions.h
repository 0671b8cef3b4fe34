// SPDX-License-Identifier: Apache-2.0
// The conditions of conditions.def that hold now, and since when. The owner of the struct gives a
// function that looks at the parts of the server. Any thread may ask; each answer looks again. The
// log gets a line when a condition begins and a line when it ends.
#ifndef FOREBAY_CONTROL_CONDITIONS_H
#define FOREBAY_CONTROL_CONDITIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/bytes.h"
#include "stats/stats.h"

enum condition {
#define CONDITION(name, word, severity, text, remedy) CONDITION_##name,
#define CONDITION_REFUSAL(name, severity) CONDITION_##name,
#include "control/conditions.def"
#undef CONDITION
#undef CONDITION_REFUSAL
    CONDITION_COUNT_
};

enum condition_severity {
    CONDITION_SEVERITY_CRITICAL,
    CONDITION_SEVERITY_WARNING,
    CONDITION_SEVERITY_INFO
};

struct condition_row {
    const char *word, *text, *remedy;
    enum condition_severity severity;
};
struct condition_row conditions_row(enum condition which);

struct conditions;
// Calls conditions_tell() for each condition. Runs under the lock, on the thread that asks, and
// must not wait.
typedef void (*conditions_look_fn)(void *ctx, struct conditions *conditions);

#define CONDITION_TEXT_MAX 384u

struct condition_state {
    uint64_t since_us;       // wall clock; 0: the condition does not hold
    uint64_t begun_us;       // monotonic
    uint64_t count, rose_us; // for conditions_rose(); rose_us is monotonic, 0: never
    uint64_t logged_us;      // when the log got the last line about a begin; monotonic, 0: never
    bool is_logged;          // the last line in the log says that the condition holds
    char text[CONDITION_TEXT_MAX];
    const char *remedy;
};

struct conditions {
    conditions_look_fn look;
    void *ctx;
    struct {
        pthread_mutex_t lock;
        struct condition_state items[CONDITION_COUNT_];
    } guarded;
};

void conditions_init(struct conditions *conditions, conditions_look_fn look, void *ctx);
void conditions_done(struct conditions *conditions);

// --- for the function that looks

// Records whether the condition holds, with the words of the table.
void conditions_tell(struct conditions *conditions, enum condition which, bool holds);
// Records that the condition holds, with a text and a remedy that tell more than the table.
void conditions_tell_more(struct conditions *conditions, enum condition which, const char *remedy,
                          const char *format, ...) PRINTF_LIKE(4, 5);
// Returns true if this count of events rose within the last `window_s` seconds. Each condition has
// one count.
bool conditions_rose(struct conditions *conditions, enum condition which, uint64_t count,
                     unsigned window_s);

// Ends a condition that has begun since `since_us` (monotonic), and forgets the events that began
// it.
void conditions_take_back(struct conditions *conditions, enum condition which, uint64_t since_us);

// --- answers; any thread

// Only looks, so that `since` and the log are exact although nobody asks.
void conditions_look(struct conditions *conditions);
// Looks, and says for each condition whether it holds.
void conditions_read(struct conditions *conditions, bool ret_holds[CONDITION_COUNT_]);
// `detail`: the text and the remedy of conditions_tell_more(), which may name objects and settings.
// Without it, they are those of the table.

// Returns [{name, severity, text, remedy, since}] of the conditions that hold, the most severe
// first. `since` is in seconds of the wall clock.
json_t *conditions_json(struct conditions *conditions, bool detail);
// Appends the first critical condition in words, and the number of all critical ones: "; NAME:
// text: remedy". Appends nothing if there is none.
void conditions_say(struct conditions *conditions, bool detail, struct buf *out);
// Appends the metric forebay_condition.
void conditions_metrics(struct conditions *conditions, struct buf *out);

#endif
