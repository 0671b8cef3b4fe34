// SPDX-License-Identifier: Apache-2.0
#ifndef FOREBAY_SERVER_COMMAND_RULES_H
#define FOREBAY_SERVER_COMMAND_RULES_H

#include "config/config.h"
#include "proxy/proxy.h"

struct command_rules {
    struct proxy_rule *rules; // for free(); strings stay the configuration's
    unsigned count;
    struct store_group groups[STORE_GROUPS_MAX]; // of rules with a pin or a share
    unsigned group_count;
};
// `was`: those of before; a rule that matches the same keeps its group. NULL: there are none.
void command_rules(const struct config *c, const struct command_rules *was,
                   struct command_rules *ret_rules);
// The largest block that any of them asks for.
uint64_t command_rules_block_size_max(const struct command_rules *rules);

#endif
