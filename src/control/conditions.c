// SPDX-License-Identifier: Apache-2.0
// Keeps the conditions of conditions.def, logs their changes, and renders them for the admin port.
//
// A condition that begins and ends repeatedly is logged once a minute. But the last line about it
// is right in the end: a begin that was not logged is logged later if the condition still holds,
// and the end of a logged condition is always logged.
#include "control/conditions.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/human.h"
#include "base/log.h"
#include "control/admin_private.h"

#define QUIET_US 60000000u

static const struct {
    struct condition_row row; // without words if `refusal` has them
    enum refusal refusal;
} rows[CONDITION_COUNT_] = {
#define CONDITION(name, word, severity, text, remedy)                                              \
    [CONDITION_##name] = {{word, text, remedy, CONDITION_SEVERITY_##severity}, REFUSAL_none},
#define CONDITION_REFUSAL(name, severity)                                                          \
    [CONDITION_##name] = {{NULL, NULL, NULL, CONDITION_SEVERITY_##severity}, REFUSAL_##name},
#include "control/conditions.def"
#undef CONDITION
#undef CONDITION_REFUSAL
};

static const char *const severities[] = {"critical", "warning", "info"};
static const enum log_level levels[] = {LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO};

struct condition_row conditions_row(enum condition which)
{
    check(which < CONDITION_COUNT_);
    struct condition_row row = rows[which].row;
    if (rows[which].refusal != REFUSAL_none) {
        const struct refusal_text *text = refusal_text(rows[which].refusal);
        row.word = text->word;
        row.text = text->text;
        row.remedy = text->remedy;
    }
    return row;
}

void conditions_init(struct conditions *conditions, conditions_look_fn look, void *ctx)
{
    *conditions = (struct conditions){.look = look, .ctx = ctx};
    check(pthread_mutex_init(&conditions->guarded.lock, NULL) == 0);
}

void conditions_done(struct conditions *conditions)
{
    check(pthread_mutex_destroy(&conditions->guarded.lock) == 0);
}

// --- looking -------------------------------------------------------------------------------------

static void begin(struct condition_state *state, const char *remedy)
{
    if (state->since_us == 0) {
        state->since_us = clock_wall_us();
        state->begun_us = clock_monotonic_us();
    }
    state->remedy = remedy;
}

void conditions_tell(struct conditions *conditions, enum condition which, bool holds)
{
    struct condition_state *state = &conditions->guarded.items[which];
    struct condition_row row = conditions_row(which);
    if (!holds) {
        state->since_us = 0;
        return;
    }
    begin(state, row.remedy);
    (void)snprintf(state->text, sizeof(state->text), "%s", row.text);
}

void conditions_tell_more(struct conditions *conditions, enum condition which, const char *remedy,
                          const char *format, ...)
{
    struct condition_state *state = &conditions->guarded.items[which];
    va_list args;
    begin(state, remedy);
    va_start(args, format);
    (void)vsnprintf(state->text, sizeof(state->text), format, args); // a longer text is cut
    va_end(args);
}

bool conditions_rose(struct conditions *conditions, enum condition which, uint64_t count,
                     unsigned window_s)
{
    struct condition_state *state = &conditions->guarded.items[which];
    uint64_t now_us = clock_monotonic_us();
    if (count > state->count) {
        state->rose_us = now_us;
    }
    state->count = count;
    return state->rose_us != 0 && now_us - state->rose_us < window_s * 1000000ull;
}

void conditions_take_back(struct conditions *conditions, enum condition which, uint64_t since_us)
{
    struct condition_state *state = &conditions->guarded.items[which];
    if (state->since_us != 0 && state->begun_us >= since_us) {
        state->since_us = 0;
        state->rose_us = 0;
    }
}

// Leaves out the text of the state: its figures were true while the condition held.
static void log_end(struct condition_state *state, struct condition_row row, uint64_t now_us)
{
    char text[64], held[HUMAN_TIME_MAX];
    uint64_t held_us = now_us - state->begun_us;
    state->is_logged = false;
    (void)snprintf(text, sizeof(text), "it held for %s", human_wait(held_us, held));
    log_info("condition_ended", "name=%s severity=%s held_ms=%llu text=%s", row.word,
             severities[row.severity], (unsigned long long)held_us / 1000,
             log_quote(span_from_cstr(text)));
}

static void log_begin(struct condition_state *state, struct condition_row row, uint64_t now_us)
{
    state->is_logged = true;
    state->logged_us = now_us;
    log_event(levels[row.severity], "condition_begun", "name=%s severity=%s text=%s remedy=%s",
              row.word, severities[row.severity], log_quote(span_from_cstr(state->text)),
              log_quote(span_from_cstr(state->remedy)));
}

// Logs what has changed. The ends come first, so that the last line names a condition that holds.
static void log_changes_locked(struct conditions *conditions)
{
    uint64_t now_us = clock_monotonic_us();
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        struct condition_state *state = &conditions->guarded.items[i];
        if (state->since_us == 0 && state->is_logged) {
            log_end(state, conditions_row(i), now_us);
        }
    }
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        struct condition_state *state = &conditions->guarded.items[i];
        bool is_due = state->logged_us == 0 || now_us - state->logged_us >= QUIET_US;
        if (state->since_us != 0 && !state->is_logged && is_due) {
            log_begin(state, conditions_row(i), now_us);
        }
    }
}

static void look_locked(struct conditions *conditions)
{
    conditions->look(conditions->ctx, conditions);
    log_changes_locked(conditions);
}

void conditions_look(struct conditions *conditions)
{
    pthread_mutex_lock(&conditions->guarded.lock);
    look_locked(conditions);
    pthread_mutex_unlock(&conditions->guarded.lock);
}

// --- answers -------------------------------------------------------------------------------------

void conditions_read(struct conditions *conditions, bool ret_holds[CONDITION_COUNT_])
{
    pthread_mutex_lock(&conditions->guarded.lock);
    look_locked(conditions);
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        ret_holds[i] = conditions->guarded.items[i].since_us != 0;
    }
    pthread_mutex_unlock(&conditions->guarded.lock);
}

// Returns the table's row; with `detail`, it has the text and the remedy of the state.
static struct condition_row words_of(const struct condition_state *state, enum condition which,
                                     bool detail)
{
    struct condition_row row = conditions_row(which);
    row.text = detail ? state->text : row.text;
    row.remedy = detail ? state->remedy : row.remedy;
    return row;
}

json_t *conditions_json(struct conditions *conditions, bool detail)
{
    json_t *json = json_array();
    pthread_mutex_lock(&conditions->guarded.lock);
    look_locked(conditions);
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        const struct condition_state *state = &conditions->guarded.items[i];
        if (state->since_us != 0) {
            struct condition_row row = words_of(state, i, detail);
            json_t *item = json_pack("{s:s, s:s, s:o, s:o, s:f}", "name", row.word, "severity",
                                     severities[row.severity], "text",
                                     admin_json_text(span_from_cstr(row.text)), "remedy",
                                     admin_json_text(span_from_cstr(row.remedy)), "since",
                                     (double)state->since_us / 1e6);
            check(item != NULL && json_array_append_new(json, item) == 0);
        }
    }
    pthread_mutex_unlock(&conditions->guarded.lock);
    return json;
}

void conditions_say(struct conditions *conditions, bool detail, struct buf *out)
{
    unsigned critical = 0;
    pthread_mutex_lock(&conditions->guarded.lock);
    look_locked(conditions);
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        const struct condition_state *state = &conditions->guarded.items[i];
        if (state->since_us != 0 && rows[i].row.severity == CONDITION_SEVERITY_CRITICAL &&
            critical++ == 0) {
            struct condition_row row = words_of(state, i, detail);
            buf_printf(out, "; %s: %.200s: %.200s", row.word, row.text, row.remedy);
        }
    }
    pthread_mutex_unlock(&conditions->guarded.lock);
    if (critical > 1) {
        buf_printf(out, "; %u conditions in all", critical);
    }
}

void conditions_metrics(struct conditions *conditions, struct buf *out)
{
    buf_append_cstr(out, "# HELP forebay_condition 1 while the condition holds.\n"
                         "# TYPE forebay_condition gauge\n");
    pthread_mutex_lock(&conditions->guarded.lock);
    look_locked(conditions);
    for (unsigned i = 0; i < CONDITION_COUNT_; i++) {
        buf_printf(out, "forebay_condition{condition=\"%s\",severity=\"%s\"} %d\n",
                   conditions_row(i).word, severities[rows[i].row.severity],
                   conditions->guarded.items[i].since_us != 0);
    }
    pthread_mutex_unlock(&conditions->guarded.lock);
}
