// SPDX-License-Identifier: Apache-2.0
// The rules as requests go by them: those of the file, with the defaults filled in, and the default rule.
#include "commands/command_rules.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

// A priority is a group of many rules; a pin or a share has one of its own.
static unsigned rule_group(struct command_rules *rules, const struct proxy_rule *rule)
{
    if (!rule->pin && rule->share_percent == 0) {
        return rule->priority;
    }
    static_assert(CONFIG_LIMITED_RULES_MAX == STORE_GROUPS_MAX, "one limit");
    check(rules->group_count < STORE_GROUPS_MAX); // as the configuration was checked
    rules->groups[rules->group_count] = (struct store_group){
        .priority = rule->priority,
        .pin = rule->pin,
        .share_percent = rule->share_percent,
        .identity = hash64(rule->match, strlen(rule->match), 0) | 1,
    };
    return STORE_PRIORITIES + rules->group_count++;
}

void command_rules(const struct config *c, struct command_rules *ret_rules)
{
    *ret_rules = (struct command_rules){.count = c->rule_count + 1};
    struct proxy_rule *rules = ret_rules->rules = calloc(ret_rules->count, sizeof(*rules));
    check(rules != NULL);
    struct proxy_rule defaults = {.match = "**",
                                  .where = "default",
                                  .cache = true,
                                  .freshness = PROXY_FRESHNESS_TTL,
                                  .ttl_ms = c->cache_ttl_ms,
                                  .stale_if_error_ms = c->cache_stale_if_error_ms,
                                  .list_ttl_ms = c->cache_list_ttl_ms,
                                  .max_object_size_bytes = c->cache_max_object_size_bytes,
                                  .block_size_bytes = (uint32_t)c->cache_block_size_bytes,
                                  .readahead_bytes = c->cache_readahead_bytes,
                                  .group = STORE_PRIORITY_NORMAL,
                                  .priority = STORE_PRIORITY_NORMAL};
    for (unsigned i = 0; i < c->rule_count; i++) {
        const struct config_rule *from = &c->rules[i];
        struct proxy_rule *to = &rules[i];
        *to = defaults;
        to->match = from->match;
        to->where = from->source;
        to->cache = from->has_cache ? from->cache : to->cache;
        to->freshness = from->has_freshness ? (enum proxy_freshness)from->freshness : to->freshness;
        to->ttl_ms = from->has_ttl ? from->ttl_ms : to->ttl_ms;
        to->list_ttl_ms = from->has_list_ttl ? from->list_ttl_ms : to->list_ttl_ms;
        to->stale_if_error_ms =
            from->has_stale_if_error ? from->stale_if_error_ms : to->stale_if_error_ms;
        to->block_size_bytes =
            from->has_block_size ? (uint32_t)from->block_size_bytes : to->block_size_bytes;
        to->max_object_size_bytes =
            from->has_max_object_size ? from->max_object_size_bytes : to->max_object_size_bytes;
        to->readahead_bytes = from->has_readahead ? from->readahead_bytes : to->readahead_bytes;
        to->priority = from->has_priority ? from->priority : to->priority;
        to->pin = from->pin;
        to->share_percent = from->share_percent;
        to->group = rule_group(ret_rules, to);
    }
    rules[c->rule_count] = defaults;
}
