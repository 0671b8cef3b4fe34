// SPDX-License-Identifier: Apache-2.0
// Proves: each rule has the right group, over reloads.
#include "server/command_rules.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>

static struct command_rules rules_of(const struct config_rule *rules, unsigned count,
                                     struct command_rules *was)
{
    struct config c = {.rules = rules, .rule_count = count};
    struct command_rules now;
    command_rules(&c, was, &now);
    cr_assert_eq(now.count, count + 1);
    if (was != NULL) {
        free(was->rules);
    }
    return now;
}

// A rule with an unchanged match keeps its group at any position. A new rule gets an unused number.
Test(command_rules, groups_follow_the_match_of_rules)
{
    const struct config_rule first[] = {{.match = "a", .pin = true},
                                        {.match = "b", .priority = CONFIG_PRIORITY_NORMAL},
                                        {.match = "c", .share_percent = 10}};
    const struct config_rule second[] = {{.match = "n", .pin = true},
                                         {.match = "c", .pin = true},
                                         {.match = "b", .share_percent = 20}};
    struct command_rules now = rules_of(first, 3, NULL);
    cr_assert_eq(now.rules[0].group, STORE_PRIORITIES);
    cr_assert_eq(now.rules[1].group, STORE_PRIORITY_NORMAL);
    cr_assert_eq(now.rules[2].group, STORE_PRIORITIES + 1);
    now = rules_of(second, 3, &now);
    cr_assert_eq(now.rules[1].group, STORE_PRIORITIES + 1);
    cr_assert_eq(now.rules[0].group, STORE_PRIORITIES + 2);
    cr_assert_eq(now.rules[2].group, STORE_PRIORITIES + 3);
    cr_assert_eq(now.group_count, 4);
    cr_assert_eq(now.groups[0].identity, 0); // that of `a`, which is gone
    cr_assert(now.groups[1].pin);
    now = rules_of(first, 3, &now);
    cr_assert_eq(now.rules[2].group, STORE_PRIORITIES + 1);
    cr_assert_neq(now.rules[0].group, STORE_PRIORITIES + 1);
    free(now.rules);
}

// The maximum number of rules, all different, and the same rule twice: each has a group of its own.
Test(command_rules, as_many_as_there_may_be)
{
    struct config_rule rules[CONFIG_LIMITED_RULES_MAX];
    char names[2][CONFIG_LIMITED_RULES_MAX][16];
    struct command_rules now = {0};
    for (unsigned turn = 0; turn < 6; turn++) {
        for (unsigned i = 0; i < CONFIG_LIMITED_RULES_MAX; i++) {
            unsigned name = turn == 3 ? 0 : (i * (turn + 1)) % 23; // at 3 all match the same
            (void)snprintf(names[turn % 2][i], sizeof(names[0][0]), "%u/%u", turn % 3, name);
            rules[i] = (struct config_rule){.match = names[turn % 2][i], .pin = true};
        }
        now = rules_of(rules, CONFIG_LIMITED_RULES_MAX, turn > 0 ? &now : NULL);
        unsigned seen = 0;
        for (unsigned i = 0; i < CONFIG_LIMITED_RULES_MAX; i++) {
            unsigned at = now.rules[i].group - STORE_PRIORITIES;
            cr_assert_lt(at, STORE_GROUPS_MAX);
            cr_assert_eq(seen >> at & 1, 0);
            seen |= 1u << at;
        }
    }
    free(now.rules);
}
