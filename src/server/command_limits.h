// SPDX-License-Identifier: Apache-2.0
// How the descriptors of the process are shared out.
#ifndef FOREBAY_SERVER_COMMAND_LIMITS_H
#define FOREBAY_SERVER_COMMAND_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

// Who may have how many of the process's descriptors at once.
struct command_limits_plan {
    uint64_t descriptors;
    uint64_t least;              // with fewer it does not begin
    unsigned clients;            // connections, all listeners
    unsigned clients_max;        // so many there is room for
    unsigned origin_connections; // to each origin
    uint64_t origin_descriptors; // for all origins
    unsigned segments;           // files of the cache
    bool is_short;               // fewer than configured
};
// `more`: origins that a reload may add, where there is room for them.
struct command_limits_plan command_limits_plan_for(uint64_t descriptors, unsigned workers,
                                                   unsigned origins, unsigned clients,
                                                   unsigned origin_connections);
// What an origin with so many connections takes.
uint64_t command_limits_origin(unsigned connections, unsigned workers);
// Raises the soft limit.
struct command_limits_plan command_limits_plan(const struct config *config);
// Says in one line of the log what follows from it.
void command_limits_tell(const struct command_limits_plan *plan, const struct config *config);

#endif
