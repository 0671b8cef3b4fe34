// SPDX-License-Identifier: Apache-2.0
#include "cli/ops/command_progress.h"

#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

#define LOOK_MS 200
#define LINE_EVERY_MS 5000u // at first; then longer and longer
#define LINE_EVERY_MAX_MS 60000u
#define LINE_BYTES 512u
#define CLEAR_LINE "\r\033[K"

// Returns how much of the text fits in one row. Cuts at a comma, so that no number loses digits.
static size_t row_of(struct span text)
{
    unsigned columns = command_screen_columns(STDERR_FILENO);
    size_t len = command_screen_fit(text, columns > 0 ? columns - 1 : 0); // the cursor takes one
    size_t end = len;
    while (len < text.len && end > 0 && text.ptr[end] != ',') {
        end--;
    }
    return end > 0 ? end : len;
}

int command_progress_follow(struct command_client *client, const struct command_progress *progress,
                            json_t **state)
{
    bool is_terminal = isatty(STDERR_FILENO) == 1, is_quiet = commands_common()->is_quiet;
    uint64_t shown_ms = clock_monotonic_ms(), every_ms = LINE_EVERY_MS;
    int code = EXIT_CODE_OK;
    while (code == EXIT_CODE_OK && progress->goes_on(progress->ctx, *state)) {
        if (!is_quiet && (is_terminal || clock_monotonic_ms() - shown_ms >= every_ms)) {
            char text[LINE_BYTES];
            json_t *json = progress->describe(*state, text, sizeof(text));
            (void)fprintf(stderr, is_terminal ? CLEAR_LINE "%.*s" : "%.*s\n",
                          (int)row_of(span_from_cstr(text)), text);
            every_ms = is_terminal ? every_ms : min_u64(2 * every_ms, LINE_EVERY_MAX_MS);
            commands_line("progress", json);
            (void)fflush(stdout); // commands_result() reports a failure
            shown_ms = clock_monotonic_ms();
        }
        (void)poll(NULL, 0, LOOK_MS); // a signal ends the process
        json_t *now = NULL;
        code = command_client_get(client, progress->path, &now);
        if (code == EXIT_CODE_OK) {
            json_decref(*state);
            *state = now;
        }
    }
    if (!is_quiet && is_terminal) {
        (void)fputs(CLEAR_LINE, stderr); // a failure to write to stderr cannot be reported
    }
    return code;
}
