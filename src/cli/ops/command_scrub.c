// SPDX-License-Identifier: Apache-2.0
// `forebay scrub`: makes a running server verify its disk, follows the round, and reports. The
// round belongs to the server and continues without this command.
#include "cli/ops/command_progress.h"

#include <stdio.h>
#include <string.h>

#include "config/config.h"

static bool is_state(const json_t *scrub, const char *state)
{
    return strcmp(command_client_text(scrub, "state"), state) == 0;
}

static bool is_under_way(void *ctx, const json_t *scrub)
{
    (void)ctx;
    return is_state(scrub, "running") || is_state(scrub, "waiting");
}

// Estimates from the number of segments, because the bytes in a full segment are unknown until it
// has been read.
static double seconds_left(const json_t *scrub)
{
    double done = command_client_double(scrub, "segments_done");
    double left = command_client_double(scrub, "segments") - done;
    return done > 0 ? command_client_double(scrub, "elapsed_s") / done * left : -1;
}

static void describe(const json_t *scrub, char *ret_text, size_t size)
{
    double elapsed_s = command_client_double(scrub, "elapsed_s");
    double read = command_client_double(scrub, "bytes");
    (void)snprintf(ret_text, size, "%llu of %llu segments, %s read at %s/s, %llu runs, %llu bad",
                   (unsigned long long)command_client_u64(scrub, "segments_done"),
                   (unsigned long long)command_client_u64(scrub, "segments"), command_bytes(read),
                   command_bytes(elapsed_s > 0 ? read / elapsed_s : 0),
                   (unsigned long long)command_client_u64(scrub, "runs"),
                   (unsigned long long)command_client_u64(scrub, "bad_runs"));
}

static json_t *describe_progress(const json_t *scrub, char *ret_text, size_t size)
{
    char text[256];
    double left_s = seconds_left(scrub), elapsed_s = command_client_double(scrub, "elapsed_s");
    describe(scrub, text, sizeof(text));
    (void)snprintf(ret_text, size, "%s%s%s", text, left_s >= 0 ? ", left " : "",
                   left_s >= 0 ? command_time(left_s) : "");
    return json_pack("{s:I, s:I, s:I, s:f, s:o}", "done",
                     (json_int_t)command_client_u64(scrub, "segments_done"), "total",
                     (json_int_t)command_client_u64(scrub, "segments"), "bytes",
                     (json_int_t)command_client_u64(scrub, "bytes"), "rate",
                     elapsed_s > 0 ? command_client_double(scrub, "bytes") / elapsed_s : 0.0, "eta",
                     left_s >= 0 ? json_real(left_s) : json_null());
}

static void report(const struct command_client *client, const json_t *scrub)
{
    char text[256];
    if (client->is_json) {
        return;
    }
    if (is_state(scrub, "none")) {
        printf("nothing was verified since the server started\n");
        return;
    }
    describe(scrub, text, sizeof(text));
    command_screen_print(2, "%s: %s\n", command_client_text(scrub, "state"), text);
    if (command_client_u64(scrub, "segments_left_out") > 0) {
        command_screen_print(
            2, "%llu segments were left out: they are still written to, or went meanwhile\n",
            (unsigned long long)command_client_u64(scrub, "segments_left_out"));
    }
    if (command_client_u64(scrub, "bad_runs") > 0) {
        command_screen_print(
            2, "what was bad is dropped and will be fetched again: look at the disk (dmesg, "
               "smartctl)\n");
    }
}

static int judge(const struct command_client *client, const json_t *scrub)
{
    if (command_client_u64(scrub, "bad_runs") > 0) {
        return EXIT_CODE_PARTLY;
    }
    if (is_state(scrub, "given_up")) {
        command_client_error(client, "%s",
                             command_client_bool(scrub, "possible")
                                 ? "stopped: the device cannot be read any more"
                                 : "stopped: the file system of cache.dir cannot be read past the "
                                   "page cache (use xfs or ext4)");
    }
    return is_state(scrub, "given_up") || is_state(scrub, "cancelled") ? EXIT_CODE_FAILED
                                                                       : EXIT_CODE_OK;
}

struct order {
    bool is_status, is_cancel;
    uint64_t rate; // bytes per second; 0: the server's default
};

static int run(struct command_client *client, const struct order *order)
{
    const struct command_progress progress = {"/api/v1/scrub", is_under_way, describe_progress,
                                              NULL};
    json_t *scrub = NULL, *body = json_object();
    int code;
    if (order->rate > 0) {
        check(json_object_set_new(body, "rate", json_integer((json_int_t)order->rate)) == 0);
    }
    if (order->is_cancel) {
        code = command_client_delete(client, "/api/v1/scrub", &scrub);
    } else if (order->is_status) {
        code = command_client_get(client, "/api/v1/scrub", &scrub);
    } else {
        code = command_client_post(client, "/api/v1/scrub", json_incref(body), &scrub);
        code = code == EXIT_CODE_OK ? command_progress_follow(client, &progress, &scrub) : code;
    }
    json_decref(body);
    if (code == EXIT_CODE_OK) {
        report(client, scrub);
        code = order->is_cancel ? EXIT_CODE_OK : judge(client, scrub);
    }
    return commands_result(code, scrub);
}

int command_scrub(int argc, char **argv)
{
    struct command_client client;
    char why[CONFIG_WHY_MAX];
    struct order order = {.is_status = commands_argument_take(&argc, argv, "--status"),
                          .is_cancel = commands_argument_take(&argc, argv, "--cancel")};
    const char *rate = commands_argument_take_value(&argc, argv, "--rate");
    if (rate != NULL &&
        (!config_value_parse_rate(span_from_cstr(rate), &order.rate, why) || order.rate == 0)) {
        return commands_usage_error("scrub", "--rate is bytes a second, as 200MiB/s");
    }
    if (order.is_status && order.is_cancel) {
        return commands_usage_error("scrub", "--status or --cancel, not both");
    }
    int code = command_client_open(&client, "scrub");
    if (code == EXIT_CODE_OK) {
        code = run(&client, &order);
        command_client_close(&client);
    }
    return code;
}
