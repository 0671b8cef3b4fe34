// SPDX-License-Identifier: Apache-2.0
// Declarations that the files of the server share.
#ifndef FOREBAY_SERVER_SERVER_PRIVATE_H
#define FOREBAY_SERVER_SERVER_PRIVATE_H

#include <signal.h>

#include "base/bytes.h"
#include "commands/commands.h"
#include "server/command_limits.h"

// --- command_stop.c ------------------------------------------------------------------------------

// Call it when the drain is over. The process then exits within a bound, whatever still waits. It
// exits sooner after another SIGTERM or SIGINT.
void command_stop_bound(const sigset_t *signals);
// Removes the bound and blocks the signals. Returns true if a stop signal came under the bound.
bool command_stop_bound_end(const sigset_t *signals);

// --- command_memory.c: limits.max_buffer as a whole; main thread, but for the metrics ------------

void command_memory_begin(uint64_t max_buffer_bytes); // before any thread
// Returns the share that requests may use. Long heads and TLS may use as much again. Payload uses
// the rest, and what they leave unused.
uint64_t command_memory_clients_max(uint64_t max_buffer_bytes);
unsigned
command_memory_inflight_max(unsigned wanted,
                            uint64_t max_buffer_bytes); // concurrent requests that fit the share
// Returns memory to the kernel after a burst. Call it once a second; *high_bytes starts at 0.
void command_memory_trim(uint64_t *high_bytes);
void command_memory_metrics(struct buf *out);

#endif
