// SPDX-License-Identifier: Apache-2.0
// Sends keep-alive signs to a service manager that restarts a hung server (WatchdogSec= of a
// systemd unit). Runs on the main thread.
#ifndef FOREBAY_SERVER_COMMAND_WATCHDOG_H
#define FOREBAY_SERVER_COMMAND_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct command_watchdog {
    uint64_t limit_us; // longest time between two signs; 0: no watchdog
    uint64_t fed_ms;   // time of the last sign
};

// Reads the environment, before any thread starts. Logs an invalid WATCHDOG_USEC.
void command_watchdog_init(struct command_watchdog *watchdog);
// Sends a sign if one is due. Call it at least every command_watchdog_pause_ms(). `alive`: every
// part that serving needs has made progress recently. If not, the condition worker-stuck reports
// it.
void command_watchdog_tend(struct command_watchdog *watchdog, bool alive);
uint64_t command_watchdog_pause_ms(const struct command_watchdog *watchdog, uint64_t most_ms);
// Sends a sign, and makes the limit `ms` longer than the configured one. Call it before a task of
// bounded length that blocks the main thread. 0 starts the watchdog, or ends an extension.
void command_watchdog_extend(struct command_watchdog *watchdog, uint64_t ms);
// Renders "WATCHDOG_USEC=...", for the notification that makes another process the main one. The
// text is empty without a watchdog.
void command_watchdog_state(const struct command_watchdog *watchdog, char ret_text[64]);

#endif
