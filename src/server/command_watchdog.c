// SPDX-License-Identifier: Apache-2.0
// Implements sd_watchdog_enabled(3) without the library. The server is alive under two conditions:
// - The main thread runs its loop, so it handles signals.
// - The event loop of every worker has run recently, so it serves each connection.
//
// Origins, the disk and the cache do not count. They can hang for hours, and a restart would not
// help.
//
// The order of calls is init, then extend by 0 once requests are served, then tend repeatedly. The
// main thread extends the limit before a long task, and calls extend by 0 after it, which ends the
// extension.
#include "server/command_watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/command_notify.h"

#define SIGNS_PER_LIMIT 4u // so that two signs may be late
#define LIMIT_MAX_US (UINT64_MAX / 8)

void command_watchdog_init(struct command_watchdog *w)
{
    struct span limit = span_from_cstr(getenv("WATCHDOG_USEC")),
                pid = span_from_cstr(getenv("WATCHDOG_PID"));
    uint64_t number = 0, limit_us = 0;
    *w = (struct command_watchdog){0};
    if (pid.len > 0 && (!span_to_u64(pid, &number) || number != (uint64_t)getpid())) {
        // The watchdog is for another process, so keep it from our child processes too.
        (void)unsetenv("WATCHDOG_USEC");
        (void)unsetenv("WATCHDOG_PID");
    } else if (limit.len > 0 &&
               (!span_to_u64(limit, &limit_us) || limit_us == 0 || limit_us > LIMIT_MAX_US)) {
        log_warn("watchdog_ignored", "variable=WATCHDOG_USEC value=%s why=\"not a time in us\"",
                 log_quote(limit));
    } else {
        w->limit_us = limit_us;
    }
}

static uint64_t every_ms(const struct command_watchdog *w)
{
    return max_u64(w->limit_us / SIGNS_PER_LIMIT / 1000, 1);
}

void command_watchdog_tend(struct command_watchdog *w, bool alive)
{
    uint64_t now_ms = clock_monotonic_ms();
    if (w->limit_us == 0 || !alive || now_ms - w->fed_ms < every_ms(w)) {
        return;
    }
    command_notify("WATCHDOG=1");
    w->fed_ms = now_ms;
}

uint64_t command_watchdog_pause_ms(const struct command_watchdog *w, uint64_t most_ms)
{
    return w->limit_us == 0 ? most_ms : min_u64(every_ms(w), most_ms);
}

void command_watchdog_extend(struct command_watchdog *w, uint64_t ms)
{
    char text[64];
    if (w->limit_us == 0) {
        return;
    }
    struct command_watchdog longer = {.limit_us = w->limit_us + ms * 1000};
    command_watchdog_state(&longer, text);
    command_notify(text);
    command_notify("WATCHDOG=1");
    w->fed_ms = clock_monotonic_ms();
}

void command_watchdog_state(const struct command_watchdog *w, char ret_text[64])
{
    ret_text[0] = '\0';
    if (w->limit_us != 0) {
        (void)snprintf(ret_text, 64, "WATCHDOG_USEC=%llu", (unsigned long long)w->limit_us);
    }
}
