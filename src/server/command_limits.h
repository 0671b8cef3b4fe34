// SPDX-License-Identifier: Apache-2.0
// Divides the process's file descriptors among clients, origins and segments.
#ifndef FOREBAY_SERVER_COMMAND_LIMITS_H
#define FOREBAY_SERVER_COMMAND_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

// Limits on the descriptors that each kind of user may hold at once.
struct command_limits_plan {
    uint64_t descriptors;
    uint64_t least;              // minimum that a start needs
    unsigned clients;            // client connections of all listeners
    unsigned clients_max;        // most client connections that the descriptors allow
    unsigned origin_connections; // connections to each origin
    uint64_t origin_descriptors; // descriptors for all origins together
    unsigned segments;           // open segment files of the cache
    // A limit is lower than configured. For a plan of a configuration: lower than the user has set,
    // or low for everybody.
    bool is_short;
};
// Computes the plan. If there is room, it includes a reserve for origins that a reload may add.
struct command_limits_plan command_limits_plan_for(uint64_t descriptors, unsigned workers,
                                                   unsigned origins, unsigned clients,
                                                   unsigned origin_connections);
// Returns the number of descriptors that an origin with `connections` connections needs.
uint64_t command_limits_origin(unsigned connections, unsigned workers);
// Raises the soft limit of descriptors and computes the plan for it.
struct command_limits_plan command_limits_plan(const struct config *config);
// Computes the plan of a process that may open this many descriptors.
struct command_limits_plan command_limits_plan_with(const struct config *config,
                                                    uint64_t descriptors);
// Logs the plan in one line.
void command_limits_tell(const struct command_limits_plan *plan, const struct config *config);

#endif
