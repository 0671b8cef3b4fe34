// SPDX-License-Identifier: Apache-2.0
// Finds rows of refusals.def by number, by an error of the store, or by word.
#include <string.h>

#include "base/check.h"
#include "stats/stats.h"

static const struct {
    struct refusal_text text;
    enum err err;
    int counter; // enum counter; -1: the row has none
} rows[REFUSAL_COUNT_] = {
    [REFUSAL_none] = {.counter = -1},
#define REFUSAL(name, err, word, passes, text, remedy)                                             \
    [REFUSAL_##name] = {{word, text, remedy, passes}, err, COUNTER_admission_rejected_##name},
#define REFUSAL_STATE(name, word, text, remedy)                                                    \
    [REFUSAL_##name] = {{word, text, remedy, true}, ERR_OK, -1},
#include "stats/refusals.def"
#undef REFUSAL
#undef REFUSAL_STATE
};

const struct refusal_text *refusal_text(enum refusal why)
{
    check(why > REFUSAL_none && why < REFUSAL_COUNT_);
    return &rows[why].text;
}

enum refusal refusal_of_error(enum err err)
{
    check(err != ERR_OK);
    for (int i = REFUSAL_none + 1; i < REFUSAL_COUNT_; i++) {
        if (rows[i].err == err) {
            return (enum refusal)i;
        }
    }
    return REFUSAL_disk_degraded;
}

enum refusal refusal_of_word(const char *word)
{
    for (int i = REFUSAL_none + 1; word != NULL && i < REFUSAL_COUNT_; i++) {
        if (strcmp(rows[i].text.word, word) == 0) {
            return (enum refusal)i;
        }
    }
    return REFUSAL_none;
}

void refusal_count(enum refusal why)
{
    check(rows[why].counter >= 0);
    stats_add((enum counter)rows[why].counter, 1);
}

uint64_t refusal_sum(enum refusal why)
{
    return rows[why].counter < 0 ? 0 : stats_value((enum counter)rows[why].counter);
}
