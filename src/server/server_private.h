// SPDX-License-Identifier: Apache-2.0
// Declarations that the files of the server share.
#ifndef FOREBAY_SERVER_SERVER_PRIVATE_H
#define FOREBAY_SERVER_SERVER_PRIVATE_H

#include <signal.h>

#include "base/bytes.h"
#include "commands/commands.h"
#include "server/command_limits.h"
#include "server/command_settings.h"

// --- command_stop.c ------------------------------------------------------------------------------

// Tells the service manager that the server stops, and to wait for a drain that ends at `until_ms`
// of clock_monotonic_ms() and for the rest of the stop. Call it when the drain begins.
void command_stop_begin(uint64_t until_ms);
// Call it when the drain is over. The process then exits within a time limit, even if something
// still waits. It exits sooner after another SIGTERM or SIGINT.
void command_stop_bound(const sigset_t *signals);
// Removes the time limit and blocks the signals. Returns true if a stop signal arrived before.
bool command_stop_bound_end(const sigset_t *signals);

// --- command_memory.c: divides limits.max_buffer; main thread unless noted otherwise -------------

void command_memory_begin(const struct config *config); // before any thread starts
// Lets no core file and no other process of the user show the memory. Before any thread starts.
void command_memory_keep_private(void);
// Returns the share of the memory that requests may use. Long heads and TLS may use a second share
// of the same size. Payload may use the rest, and the unused parts of both shares.
uint64_t command_memory_clients_max(uint64_t max_buffer_bytes);
// Returns how many concurrent requests fit into that share.
unsigned command_memory_inflight_max(uint64_t max_buffer_bytes);
// Returns freed memory to the kernel after a burst. Call it once a second. *high_bytes is its state
// between calls, 0 initially.
void command_memory_trim(uint64_t *high_bytes);
void command_memory_metrics(struct buf *out); // any thread

#endif
