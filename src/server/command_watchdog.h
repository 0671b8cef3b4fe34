// SPDX-License-Identifier: Apache-2.0
// A service manager that ends and starts anew a server which stands still (WatchdogSec= of a
// systemd unit) is fed here. Main thread.
#ifndef FOREBAY_SERVER_COMMAND_WATCHDOG_H
#define FOREBAY_SERVER_COMMAND_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct command_watchdog {
    uint64_t limit_us; // so long it waits for a sign; 0: nobody waits
    uint64_t fed_ms;   // when it had the last one
    bool is_hungry;    // a sign was due and not given
};

// Before any thread starts. Says in the log what of WATCHDOG_USEC cannot be understood.
void command_watchdog_init(struct command_watchdog *watchdog);
// The server serves: from now on it is waited for. Also after command_watchdog_extend().
void command_watchdog_begin(struct command_watchdog *watchdog);
// To be called at least every command_watchdog_pause_ms(). `alive`: each part without which nothing
// is served has moved lately.
void command_watchdog_tend(struct command_watchdog *watchdog, bool alive);
uint64_t command_watchdog_pause_ms(const struct command_watchdog *watchdog, uint64_t most_ms);
// For the next `ms` it cannot be tended, for a reason that has an end of its own.
void command_watchdog_extend(struct command_watchdog *watchdog, uint64_t ms);
// "WATCHDOG_USEC=...", for the words that make another process the main one; "" where nobody waits.
void command_watchdog_state(const struct command_watchdog *watchdog, char ret_text[64]);

#endif
