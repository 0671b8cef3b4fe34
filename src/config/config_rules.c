// SPDX-License-Identifier: Apache-2.0
// Warns of rules that never apply: no BUCKET/KEY can match them, or an earlier rule matches
// everything that they match. They are no errors, because they do no harm. One thread, at the end
// of a load.
#include "config/config_private.h"

#include <stdio.h>
#include <string.h>

// Returns the length of a pattern before its first wildcard.
static size_t literal_len(const char *match)
{
    return strcspn(match, "*?{\\");
}

// Returns why the pattern can match no object; NULL if it may match one. ret_better becomes a
// suggestion, or empty.
static const char *why_never(const char *match, char *ret_better, size_t size)
{
    const char *double_star = strstr(match, "**");
    const char *url = strstr(match, "://");
    ret_better[0] = '\0';
    if (url != NULL && url < match + literal_len(match)) {
        (void)snprintf(ret_better, size, "%.200s", url + 3);
        return "names a URL, and rules match BUCKET/KEY";
    }
    if (match[0] == '/') {
        (void)snprintf(ret_better, size, "%.200s", match + 1);
        return "begins with a slash, and rules match BUCKET/KEY";
    }
    if (strchr(match, '/') == NULL && double_star == NULL) {
        (void)snprintf(ret_better, size, "%.200s/**", match);
        return "names a bucket without its keys";
    }
    const char *bracket = strchr(match, '[');
    if (bracket != NULL && strchr(bracket, ']') == NULL) {
        return "has a bracket, which is no wildcard: it matches itself (wildcards are *, **, ? and "
               "{a,b})";
    }
    return NULL;
}

// Returns true if `earlier` matches everything that `later` can match. Finds only equal patterns,
// and an `earlier` that is plain text followed by "**".
static bool takes_all(const char *earlier, const char *later)
{
    size_t len = literal_len(earlier);
    if (strcmp(earlier, later) == 0) {
        return true;
    }
    return strcmp(earlier + len, "**") == 0 && literal_len(later) >= len &&
           strncmp(earlier, later, len) == 0;
}

void config_rules_judge(struct loader *l)
{
    const struct config *c = l->config;
    char better[256];
    for (unsigned i = 0; i < c->rule_count; i++) {
        const struct config_rule *rule = &c->rules[i];
        const char *why = why_never(rule->match, better, sizeof(better));
        if (why != NULL) {
            config_loader_warning(l, rule->source, "match \"%.200s\" %s%s%s%s", rule->match, why,
                                  better[0] != '\0' ? " (\"" : "", better,
                                  better[0] != '\0' ? "\"?)" : "");
            continue;
        }
        for (unsigned j = 0; j < i; j++) {
            if (takes_all(c->rules[j].match, rule->match)) {
                config_loader_warning(
                    l, rule->source,
                    "match \"%.200s\" is never reached: \"%.200s\" at %s comes first "
                    "and takes all of it",
                    rule->match, c->rules[j].match, c->rules[j].source);
                break;
            }
        }
    }
}
