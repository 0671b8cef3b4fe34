// SPDX-License-Identifier: Apache-2.0
#ifndef FOREBAY_SERVER_COMMAND_ANNOUNCE_H
#define FOREBAY_SERVER_COMMAND_ANNOUNCE_H

#include <semaphore.h>

#include "commands/commands.h"
#include "http/http.h"
#include "origin/origin.h"
#include "store/store.h"

struct command_announcement {
    const struct config *config;
    const struct loop *loop;
    struct store *store;
    const struct http_server *http;
    const struct admin *admin;
    struct origin *const *origins;
    unsigned origin_count;
    sem_t *told; // the probe of each origin posts it once
    const struct command_limits_plan *descriptors;
};
// Prints the start summary to stderr and logs `started`. Waits at most 250 ms for the probes.
void command_announce(const struct command_announcement *s);

#endif
