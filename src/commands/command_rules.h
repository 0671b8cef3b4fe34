// SPDX-License-Identifier: Apache-2.0
#ifndef FOREBAY_COMMANDS_COMMAND_RULES_H
#define FOREBAY_COMMANDS_COMMAND_RULES_H

#include "config/config.h"
#include "proxy/proxy.h"

struct command_rules {
    struct proxy_rule *rules; // for free(); strings stay the configuration's
    unsigned count;
    struct store_group groups[STORE_GROUPS_MAX]; // of rules with a pin or a share
    unsigned group_count;
};
void command_rules(const struct config *c, struct command_rules *ret_rules);

#endif
