// SPDX-License-Identifier: Apache-2.0
#ifndef FOREBAY_COMMANDS_COMMAND_RULES_H
#define FOREBAY_COMMANDS_COMMAND_RULES_H

#include "config/config.h"
#include "proxy/proxy.h"

// For free(); strings stay the configuration's.
struct proxy_rule *command_rules(const struct config *c, unsigned *ret_count);

#endif
