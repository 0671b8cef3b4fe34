// SPDX-License-Identifier: Apache-2.0
// Converts the rules of the configuration into the form that requests use. Each rule with a pin or
// a share gets a group of its own in the store.
#include "server/command_rules.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

static bool is_limited(const struct config_rule *rule)
{
    return rule->pin || rule->share_percent > 0;
}

static uint64_t identity_of(const char *match)
{
    return hash64(match, strlen(match), 0) | 1;
}

// Assigns a group to each rule with a pin or a share, and writes the group's index to ret_at. A
// rule that `was` has too keeps its group. A new rule first gets an index that `was` does not use,
// if there is one, because requests that began before the reload still use the indexes of `was`.
static void groups_place(const struct config *c, const struct command_rules *was, unsigned *ret_at)
{
    bool is_taken[STORE_GROUPS_MAX] = {false};
    static_assert(CONFIG_LIMITED_RULES_MAX == STORE_GROUPS_MAX, "one limit");
    for (unsigned i = 0; i < c->rule_count; i++) {
        ret_at[i] = STORE_GROUPS_MAX;
        for (unsigned j = 0; was != NULL && is_limited(&c->rules[i]) && j < was->group_count; j++) {
            if (!is_taken[j] && was->groups[j].identity == identity_of(c->rules[i].match)) {
                is_taken[j] = true;
                ret_at[i] = j;
                break;
            }
        }
    }
    for (unsigned i = 0; i < c->rule_count; i++) {
        unsigned first = was != NULL ? was->group_count : 0;
        for (unsigned j = 0; is_limited(&c->rules[i]) && ret_at[i] == STORE_GROUPS_MAX; j++) {
            check(j < STORE_GROUPS_MAX); // the configuration has at most that many
            unsigned at = (first + j) % STORE_GROUPS_MAX;
            if (!is_taken[at]) {
                is_taken[at] = true;
                ret_at[i] = at;
            }
        }
    }
}

// Returns the group of a rule. A rule with a pin or a share has a group of its own. All other rules
// of the same priority share one.
static unsigned rule_group(struct command_rules *rules, const struct proxy_rule *rule, unsigned at)
{
    if (at == STORE_GROUPS_MAX) {
        return rule->priority;
    }
    rules->groups[at] = (struct store_group){
        .priority = rule->priority,
        .pin = rule->pin,
        .share_percent = rule->share_percent,
        .identity = identity_of(rule->match),
    };
    rules->group_count = rules->group_count > at + 1 ? rules->group_count : at + 1;
    return STORE_PRIORITIES + at;
}

static struct proxy_rule rule_of(const struct config_rule *from)
{
    static_assert(CONFIG_PRIORITY_NORMAL == STORE_PRIORITY_NORMAL, "one default");
    return (struct proxy_rule){.match = from->match,
                               .where = from->source,
                               .cache = from->cache,
                               .freshness = (enum proxy_freshness)from->freshness,
                               .ttl_ms = from->ttl_ms,
                               .stale_if_error_ms = from->stale_if_error_ms,
                               .list_ttl_ms = from->list_ttl_ms,
                               .max_object_size_bytes = from->max_object_size_bytes,
                               .block_size_bytes = (uint32_t)from->block_size_bytes,
                               .readahead_bytes = from->readahead_bytes,
                               .priority = from->priority,
                               .pin = from->pin,
                               .share_percent = from->share_percent};
}

void command_rules(const struct config *c, const struct command_rules *was,
                   struct command_rules *ret_rules)
{
    *ret_rules = (struct command_rules){.count = c->rule_count + 1};
    struct proxy_rule *rules = ret_rules->rules = calloc(ret_rules->count, sizeof(*rules));
    unsigned *at = calloc(c->rule_count + 1, sizeof(*at));
    check(rules != NULL && at != NULL);
    groups_place(c, was, at);
    for (unsigned i = 0; i < c->rule_count; i++) {
        rules[i] = rule_of(&c->rules[i]);
        rules[i].group = rule_group(ret_rules, &rules[i], at[i]);
    }
    rules[c->rule_count] = rule_of(&c->default_rule);
    rules[c->rule_count].group = c->default_rule.priority;
    free(at);
}

uint64_t command_rules_block_size_max(const struct command_rules *rules)
{
    uint64_t largest = 0;
    for (unsigned i = 0; i < rules->count; i++) {
        largest = max_u64(largest, rules->rules[i].block_size_bytes);
    }
    return largest;
}
