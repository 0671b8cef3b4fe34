// SPDX-License-Identifier: Apache-2.0
// The ring of numbers and the ring of events. Pure: the caller gives the time.
#include "control/history.h"

#include <math.h>
#include <string.h>

#define STEP_US (HISTORY_STEP_S * UINT64_C(1000000))

static const struct {
    const char *name, *unit;
} series[] = {
#define TOTAL(name, unit, value) {#name, unit},
#define LEVEL(name, unit, value) {#name, unit},
#define QUANTILE(name, q, histogram) {#name, "s"},
#include "control/history.def"
};

void history_init(struct history *history, uint64_t wall_us)
{
    history->last_step = wall_us / STEP_US;
    history->count = 0;
    history->event_count = 0;
}

bool history_is_due(const struct history *history, uint64_t wall_us)
{
    uint64_t step = wall_us / STEP_US;
    return step > history->last_step || step + 1 < history->last_step;
}

static float *row_of(struct history *history, uint64_t step)
{
    return history->rows[step % HISTORY_STEPS];
}

void history_add(struct history *history, uint64_t wall_us, const float row[HISTORY_SERIES])
{
    uint64_t step = wall_us / STEP_US;
    check(history_is_due(history, wall_us));
    if (step < history->last_step) {
        history->count = 0;
        history->last_step = step - 1;
    }
    uint64_t passed = step - history->last_step;
    // Only the rows that the ring can hold need to be marked.
    for (uint64_t i = 1; i < min_u64(passed, HISTORY_STEPS); i++) {
        for (unsigned s = 0; s < HISTORY_SERIES; s++) {
            row_of(history, step - i)[s] = NAN;
        }
    }
    memcpy(row_of(history, step), row, sizeof(history->rows[0]));
    history->last_step = step;
    history->count = (unsigned)min_u64(history->count + passed, HISTORY_STEPS);
}

void history_note(struct history *history, uint64_t wall_us, const char *word, const char *text,
                  bool is_bad)
{
    history->events[history->event_count++ % HISTORY_EVENTS] =
        (struct history_event){wall_us, word, text, is_bad};
}

static void render_series(const struct history *history, unsigned s, uint64_t first,
                          struct buf *out)
{
    buf_printf(out, "%s\"%s\":{\"unit\":\"%s\",\"values\":[", s > 0 ? "," : "", series[s].name,
               series[s].unit);
    for (uint64_t step = first; step <= history->last_step; step++) {
        float value = history->rows[step % HISTORY_STEPS][s];
        buf_append_cstr(out, step > first ? "," : "");
        if (isfinite(value)) {
            buf_printf(out, "%.5g", (double)value);
        } else {
            buf_append_cstr(out, "null");
        }
    }
    buf_append_cstr(out, "]}");
}

void history_render(const struct history *history, uint64_t after_s, struct buf *out)
{
    uint64_t first = max_u64(history->last_step + 1 - history->count,
                             min_u64(after_s / HISTORY_STEP_S, history->last_step) + 1);
    buf_printf(out, "{\"step_s\":%u,\"steps\":%u,\"first\":%llu,\"last\":%llu,\"series\":{",
               HISTORY_STEP_S, HISTORY_STEPS, (unsigned long long)first * HISTORY_STEP_S,
               (unsigned long long)history->last_step * HISTORY_STEP_S);
    for (unsigned s = 0; s < HISTORY_SERIES; s++) {
        render_series(history, s, first, out);
    }
    buf_append_cstr(out, "},\"events\":[");
    uint64_t oldest =
        history->event_count > HISTORY_EVENTS ? history->event_count - HISTORY_EVENTS : 0;
    for (uint64_t i = oldest; i < history->event_count; i++) {
        const struct history_event *e = &history->events[i % HISTORY_EVENTS];
        buf_printf(out, "%s[%.3f,\"%s\",\"%s\",%s]", i > oldest ? "," : "",
                   (double)e->wall_us / 1e6, e->word, e->text, e->is_bad ? "true" : "false");
    }
    buf_append_cstr(out, "]}\n");
}
