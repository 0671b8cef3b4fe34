// SPDX-License-Identifier: Apache-2.0
// Says how many clients were refused because of their signature, and why.
#ifndef FOREBAY_SERVER_COMMAND_REFUSED_H
#define FOREBAY_SERVER_COMMAND_REFUSED_H

#include "control/control.h"
#include "proxy/proxy.h"

#define COMMAND_REFUSED_REASONS 3u

struct command_refused {
    uint64_t before[COMMAND_REFUSED_REASONS]; // counts when the condition began
};

// Called as a conditions_look_fn is, under the lock of `conditions`.
void command_refused_look(struct command_refused *refused, const struct proxy *proxy,
                          struct conditions *conditions);

#endif
