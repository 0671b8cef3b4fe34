// SPDX-License-Identifier: Apache-2.0
#ifndef FOREBAY_SERVER_COMMAND_RULES_H
#define FOREBAY_SERVER_COMMAND_RULES_H

#include "config/config.h"
#include "proxy/proxy.h"

struct command_rules {
    struct proxy_rule *rules; // owned, freed with free(); the configuration owns the strings
    unsigned count;
    struct store_group groups[STORE_GROUPS_MAX]; // of rules with a pin or a share
    unsigned group_count;
};
// Builds the rules. `was`: the previous rules; a rule with the same match keeps its group. NULL:
// none.
void command_rules(const struct config *c, const struct command_rules *was,
                   struct command_rules *ret_rules);
// Returns the largest block size of all rules.
uint64_t command_rules_block_size_max(const struct command_rules *rules);

#endif
