// SPDX-License-Identifier: Apache-2.0
// `forebay top`: shows on one screen what a running server does, and for whom. command_top_frame.c
// draws the screen.
//
// The server counts keys while this command runs, and sends the counts in lines (admin_top.c). The
// command redraws the screen for each line, and when the terminal changes size. If the server
// refuses to count, the screen has no keys and no buckets.
#include "cli/watch/command_top_frame.h"
#include "cli/watch/command_top_rank.h"
#include "commands/commands.h"

#include <stdio.h>

#define INTERVAL_MAX_S 86400u
#define RANK_INTERVAL_MAX_S 3600u // the longest interval that a server accepts
#define FRAME_MAX_BYTES (256u << 10)
#define PATH_BYTES 64u

static int take(struct top *top)
{
    json_t *summary = NULL, *answer = NULL;
    struct command_sample sample;
    int code = command_stats_take(&top->client, &sample, &summary);
    if (code == EXIT_CODE_OK && top->keys != NULL) { // then the server shows buckets, too
        code = command_client_get(&top->client, "/api/v1/buckets", &answer);
    }
    if (code != EXIT_CODE_OK) {
        json_decref(summary);
        return code;
    }
    bool is_first = top->now.summary == NULL;
    json_decref(top->before.summary);
    json_decref(top->before.buckets);
    top->before = top->now;
    top->now = (struct top_state){sample, summary, answer};
    if (is_first) {
        top->before = (struct top_state){sample, json_incref(summary), NULL};
    } else {
        command_top_remember(top);
    }
    return EXIT_CODE_OK;
}

static void show(const struct top *top)
{
    struct buf frame;
    if (top->client.is_json) {
        return;
    }
    buf_init(&frame, FRAME_MAX_BYTES);
    command_top_render(top, &frame);
    command_screen_show(buf_span(&frame), top->is_screen, COMMAND_TOP_ROWS);
    buf_done(&frame);
}

static bool on_line(void *ctx, struct span line)
{
    struct top *top = ctx;
    json_t *keys = json_loadb(line.ptr, line.len, 0, NULL);
    if (keys != NULL) {
        json_decref(top->keys);
        top->keys = keys;
        top->code = take(top);
    }
    if (top->code == EXIT_CODE_OK && (keys != NULL || top->is_screen)) {
        show(top);
    }
    return top->code == EXIT_CODE_OK && (keys == NULL || top->is_screen) && ferror(stdout) == 0;
}

// Shows one frame per interval, without reading the keyboard.
static int follow_alone(struct top *top, uint64_t interval_s)
{
    while (command_client_wait(1000 * interval_s)) {
        int code = take(top);
        if (code != EXIT_CODE_OK) {
            return code;
        }
        show(top);
        if (!top->is_screen) {
            break;
        }
    }
    return EXIT_CODE_OK;
}

static int run(struct top *top, uint64_t interval_s)
{
    char path[PATH_BYTES];
    int code = take(top);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    if (top->is_screen) {
        command_client_quit_by_key();
        show(top);
    }
    (void)snprintf(path, sizeof(path), "/api/v1/top?by=keys&seconds=%llu",
                   (unsigned long long)interval_s);
    code = command_client_follow(&top->client, path, on_line, top);
    if (top->code != EXIT_CODE_OK) {
        return top->code;
    }
    bool is_refused = code != EXIT_CODE_OK && code != EXIT_CODE_UNREACHABLE && top->keys == NULL;
    return is_refused ? follow_alone(top, interval_s) : code;
}

int command_top(int argc, char **argv)
{
    struct top top = {.is_screen = false};
    bool is_once = commands_argument_take(&argc, argv, "--once");
    uint64_t seconds = 1;
    const char *where = commands_argument_take_value(&argc, argv, "--where");
    if (!commands_argument_take_number(&argc, argv, "-i", 1, INTERVAL_MAX_S, &seconds)) {
        return commands_usage_error("top", "-i is a number above 0");
    }
    seconds = min_u64(seconds, RANK_INTERVAL_MAX_S);
    if (argc == 1) {
        return command_top_rank(argv[0], seconds, where, is_once);
    }
    if (where != NULL) {
        return commands_usage_error(
            "top", "--where wants one of keys, prefixes, buckets, clients, reasons");
    }
    int code = command_client_open(&top.client, "top");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    top.is_screen = command_screen_is_wanted(is_once);
    code = run(&top, seconds);
    code =
        command_client_end(&top.client, code, code == EXIT_CODE_OK ? command_top_json(&top) : NULL);
    command_top_done(&top);
    return code;
}
