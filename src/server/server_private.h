// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the server.
#ifndef FOREBAY_SERVER_SERVER_PRIVATE_H
#define FOREBAY_SERVER_SERVER_PRIVATE_H

#include <signal.h>

#include "base/bytes.h"
#include "commands/commands.h"
#include "server/command_limits.h"

// --- command_stop.c ------------------------------------------------------------------------------

// From now on, when the drain is over, the process ends within a bound, and soon after one more of
// `signals`, whatever still waits.
void command_stop_bound(const sigset_t *signals);
// There is no such bound any more, and the signals are blocked. True: one to stop came meanwhile.
bool command_stop_bound_end(const sigset_t *signals);

// --- command_memory.c: limits.max_buffer as a whole; main thread, but for the metrics ------------

void command_memory_begin(uint64_t max_buffer_bytes); // before any thread
// The part that requests may take, and as much long heads and TLS; the rest, and what they leave,
// is for payload.
uint64_t command_memory_clients_max(uint64_t max_buffer_bytes);
unsigned
command_memory_inflight_max(unsigned wanted,
                            uint64_t max_buffer_bytes); // requests at once within that part
// Once a second: after a burst, gives back what malloc kept of it. *high_bytes starts at 0.
void command_memory_trim(uint64_t *high_bytes);
void command_memory_metrics(struct buf *out);

#endif
