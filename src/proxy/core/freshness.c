// SPDX-License-Identifier: Apache-2.0
// Judges whether a record is fresh or stale, by its rule. Pure, except for the record's age.

#include "proxy/core/core.h"

enum freshness_verdict freshness_check(const struct proxy_rule *rule, const struct store_view *view)
{
    if (view->rebuilt) {
        return FRESHNESS_STALE; // an index rebuild may restore a record that a write removed
    }
    switch (rule->freshness) {
    case PROXY_FRESHNESS_IMMUTABLE:
        return FRESHNESS_FRESH;
    case PROXY_FRESHNESS_STRICT:
        return FRESHNESS_STALE;
    case PROXY_FRESHNESS_TTL:
        break;
    }
    return view->age_ms <= rule->ttl_ms ? FRESHNESS_FRESH : FRESHNESS_STALE;
}

uint64_t freshness_max_age_ms(const struct proxy_rule *rule)
{
    switch (rule->freshness) {
    case PROXY_FRESHNESS_IMMUTABLE:
        return UINT64_MAX;
    case PROXY_FRESHNESS_STRICT:
        return 0;
    case PROXY_FRESHNESS_TTL:
        break;
    }
    return rule->ttl_ms;
}

bool freshness_stale_allowed(const struct proxy_rule *rule, const struct store_view *view)
{
    if (rule->freshness == PROXY_FRESHNESS_STRICT || view->rebuilt || view->age_ms == UINT64_MAX) {
        return false;
    }
    uint64_t limit_ms = 0;
    return add_u64(rule->ttl_ms, rule->stale_if_error_ms, &limit_ms) && view->age_ms <= limit_ms;
}
