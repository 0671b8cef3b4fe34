// SPDX-License-Identifier: Apache-2.0
#ifndef FOREBAY_SERVER_COMMAND_RULES_H
#define FOREBAY_SERVER_COMMAND_RULES_H

#include "config/config.h"
#include "proxy/proxy.h"

struct command_rules {
    struct proxy_rule *rules; // owned, freed with free(); the configuration owns the strings
    unsigned count;
    struct store_group groups[STORE_GROUPS_MAX]; // one for each rule with a pin or a share
    unsigned group_count;
};
// Builds the rules. A rule with the same match as a rule of `was`, the previous rules, keeps its
// group. `was` may be NULL.
void command_rules(const struct config *c, const struct command_rules *was,
                   struct command_rules *ret_rules);
// Returns the largest block size of all rules.
uint64_t command_rules_block_size_max(const struct command_rules *rules);

#endif
