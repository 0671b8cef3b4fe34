// SPDX-License-Identifier: Apache-2.0
// `forebay upgrade`: requests an upgrade, and waits until the new process answers.
#include "cli/client/command_client.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>

#include "base/clock.h"

#define SERVES_WAIT_MS 150000u // longest grace period plus the longest start
#define SERVES_ASKED_MS 50

// Returns the id of the process that answers as a server; 0 if none does.
static uint64_t process_at(const struct command_client *client)
{
    struct buf body;
    unsigned status = 0;
    buf_init(&body, 65536);
    enum err err = admin_client_get(client->address, "/version", 1000, &status, &body);
    json_t *json = err == ERR_OK && status == 200 ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    uint64_t pid = command_client_u64(json, "pid");
    json_decref(json);
    buf_done(&body);
    return pid;
}

static bool is_gone(uint64_t pid)
{
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

// Waits until the process `next` answers. Stops waiting when `next` has died, and either another
// server answers again or the process `old` has died, too.
static bool wait_for_next(const struct command_client *client, uint64_t old, uint64_t next)
{
    uint64_t until_ms = clock_monotonic_ms() + SERVES_WAIT_MS;
    uint64_t pid = 0;
    bool is_undone = false;
    while (pid != next && !is_undone && clock_monotonic_ms() < until_ms) {
        (void)poll(NULL, 0, SERVES_ASKED_MS);
        pid = process_at(client);
        is_undone = pid != next && is_gone(next) && (pid != 0 || is_gone(old));
    }
    return pid == next;
}

int command_upgrade(int argc, char **argv)
{
    struct command_client client;
    json_t *answer = NULL;
    uint64_t wait_s = 0;
    const char *wait = commands_argument_take_value(&argc, argv, "--wait");
    (void)!span_to_u64(span_from_cstr(wait),
                       &wait_s); // commands.def has checked that it is a number
    int code = command_client_open(&client, "upgrade");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    json_t *order = wait != NULL ? json_pack("{s:I}", "wait_s", (json_int_t)wait_s) : json_object();
    code = command_client_post(&client, "/api/v1/upgrade", order, &answer);
    uint64_t next = command_client_u64(answer, "next_pid");
    if (code == EXIT_CODE_OK && (next == 0 || next > INT_MAX)) {
        command_client_error(&client, "the server's answer does not name the new process: is it a "
                                      "Forebay?");
        code = EXIT_CODE_FAILED;
    }
    uint64_t old = command_client_u64(answer, "pid");
    if (code == EXIT_CODE_OK && !wait_for_next(&client, old, next)) {
        command_client_error(&client,
                             "process %llu was ready, but does not serve: the log says why",
                             (unsigned long long)next);
        code = EXIT_CODE_FAILED;
    }
    if (code == EXIT_CODE_OK && !client.is_json) {
        printf("process %llu has taken the place of %llu\n", (unsigned long long)next,
               (unsigned long long)old);
    }
    return command_client_end(&client, code, answer);
}
