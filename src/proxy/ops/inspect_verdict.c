// SPDX-License-Identifier: Apache-2.0
// Explains in words why a read of an object is or is not answered from the cache: the first reason
// that applies, with a remedy. Pure; any thread.
#include "proxy/proxy.h"

// Returns the first piece of the range that would not be stored. NULL: none, or it is not known.
static const struct store_explain_run *refused_piece(const struct store_explain *policy)
{
    for (unsigned i = 0; policy != NULL && i < policy->run_count; i++) {
        if (policy->runs[i].state == STORE_EXPLAIN_REFUSED) {
            return &policy->runs[i];
        }
    }
    return NULL;
}

// Explains an error of the origin, when nothing of the object is cached.
static struct proxy_verdict verdict_of_origin(enum err err)
{
    switch ((int)err) {
    case ERR_NO_SUCH_KEY:
        return (struct proxy_verdict){
            "no-such-key", "the origin has no object of this name, or not this bucket",
            "check the spelling: forebay ls shows the names that there are"};
    case ERR_NO_SUCH_BUCKET:
        return (struct proxy_verdict){"no-such-bucket", "the origin has no bucket of this name",
                                      "check the spelling, and buckets[] in the configuration"};
    case ERR_ACCESS_DENIED:
    case ERR_ORIGIN_REFUSED:
        return (struct proxy_verdict){
            "refused", "the origin does not let Forebay read it",
            "forebay doctor BUCKET looks at the rights of its credentials"};
    case ERR_ORIGIN_SLOWDOWN:
    case ERR_ORIGIN_UNAVAILABLE: // the answer to a HEAD has no body that tells them apart
        return (struct proxy_verdict){
            "origin", "nothing of it is cached, and the origin answers 503: it throttles or fails",
            "forebay status tells which, and has the remedy"};
    default:
        return (struct proxy_verdict){"origin",
                                      "nothing of it is cached, and the origin does not answer",
                                      "forebay doctor looks at the way to the origin"};
    }
}

static struct proxy_verdict verdict_of_refusal(enum refusal why)
{
    const struct refusal_text *row = refusal_text(why);
    check(why != REFUSAL_none && row->word != NULL);
    return (struct proxy_verdict){row->word, row->text, row->remedy};
}

static const struct proxy_verdict verdict_elsewhere = {
    "absent",
    "nothing of it is cached from this origin, and this start has another origin.endpoint than the "
    "last one",
    "if that is a mistake, restart with the former endpoint, which the log names in "
    "origin_changed: what is cached of it counts again"};

// Returns true if nothing of the object is cached, maybe because the default origin has changed.
static bool is_elsewhere(const struct proxy_object *o, const struct store_summary *store)
{
    return o->copy == PROXY_COPY_NONE && o->is_at_default && store->former_origin != NULL;
}

// Returns true if the origin must confirm the cached copy, and cannot do so now.
static bool is_unconfirmed(const struct proxy_object *o)
{
    return o->copy != PROXY_COPY_NONE && !proxy_object_is_fresh(o) && o->trouble.text != NULL &&
           o->trouble.text[0] != '\0';
}

static struct proxy_verdict verdict_of_unconfirmed(const struct proxy_object *o)
{
    check(is_unconfirmed(o));
    if (o->trouble.is_verdict) {
        return (struct proxy_verdict){"origin",
                                      "the origin must confirm it, and refuses the requests of "
                                      "Forebay: the next read fails with 403",
                                      o->trouble.remedy};
    }
    if (o->is_doubted) {
        return (struct proxy_verdict){"origin",
                                      "the origin has not confirmed it since the server was killed "
                                      "during writes, a write had an unknown outcome, or another "
                                      "origin was configured; it must do so, and fails or cannot "
                                      "be used: the next read fails unless it answers by then",
                                      o->trouble.remedy};
    }
    if (!o->may_be_stale) {
        return (struct proxy_verdict){"origin",
                                      "the origin must confirm it, and fails or cannot be used: "
                                      "the next read fails unless it answers by then",
                                      o->trouble.remedy};
    }
    return (struct proxy_verdict){"stale-if-error",
                                  "its ttl is over, and the origin fails or cannot be used: unless "
                                  "it answers, reads get the stale bytes until stale_if_error ends",
                                  o->trouble.remedy};
}

struct proxy_verdict proxy_verdict(const struct proxy_object *o, const struct store_summary *store)
{
    const struct proxy_rule *rule = o->rule;
    bool has_some = o->range_cached_blocks > 0;
    bool has_all = o->copy != PROXY_COPY_NONE && o->range_cached_blocks == o->range_blocks;
    check(rule != NULL && o->range_cached_blocks <= o->range_blocks);
    check(o->copy != PROXY_COPY_NONE || o->cached_blocks == 0);
    if (store->is_blind) {
        return verdict_of_refusal(store->refusal);
    }
    enum refusal excluded = proxy_rule_excludes(rule, o->size_bytes);
    if (excluded != REFUSAL_none) {
        return verdict_of_refusal(excluded);
    }
    if (is_unconfirmed(o)) {
        return verdict_of_unconfirmed(o);
    }
    if (o->copy != PROXY_COPY_NONE && o->is_doubted) {
        return (struct proxy_verdict){
            "in-doubt",
            "it may have changed while Forebay could not see it, by a write whose outcome is not "
            "known or while another origin was configured: the origin is asked before it is used",
            "nothing to do; that ends by itself"};
    }
    if (o->copy == PROXY_COPY_REBUILT) {
        return (struct proxy_verdict){
            "rebuilt", "it was found again after a crash: the origin confirms it once",
            "nothing to do; that ends with the next read"};
    }
    if (has_all && !proxy_object_is_fresh(o)) {
        return rule->freshness == PROXY_FRESHNESS_STRICT
                   ? (struct proxy_verdict){"strict",
                                            "its rule is strict: the origin confirms it on each "
                                            "read",
                                            "a rule with freshness: ttl or immutable"}
                   : (struct proxy_verdict){
                         "stale",
                         "its ttl is over: the next read asks the origin whether it has "
                         "changed, and has its bytes from the cache",
                         "a longer ttl; freshness: immutable if it never changes"};
    }
    if (has_all) {
        return (struct proxy_verdict){"hit", "the next read is answered from the cache", ""};
    }
    if (o->trouble.text != NULL && o->trouble.text[0] != '\0') {
        return is_elsewhere(o, store)
                   ? verdict_elsewhere
                   : (struct proxy_verdict){"origin", o->trouble.text, o->trouble.remedy};
    }
    if (o->origin_err != ERR_OK) {
        return verdict_of_origin(o->origin_err);
    }
    if (o->forbids != ORIGIN_FORBIDS_NOTHING) {
        const struct origin_forbids_text *forbids = origin_forbids_text(o->forbids);
        return (struct proxy_verdict){
            forbids->word, forbids->text,
            "what the origin, or a balancer in front of it, adds to its answers"};
    }
    if (store->refusal != REFUSAL_none) {
        return verdict_of_refusal(store->refusal);
    }
    const struct store_explain_run *refused = refused_piece(o->policy);
    if (refused != NULL && rule->share_percent > 0 &&
        o->policy->group_bytes >= o->policy->group_max_bytes) {
        return (struct proxy_verdict){
            refusal_text(REFUSAL_not_admitted)->word,
            "the cache is full, and the objects of its rule take their share",
            "a larger share in its rule, or a larger cache.size"};
    }
    if ((refused != NULL || (o->policy == NULL && !o->is_wanted)) && store->short_of != NULL) {
        return (struct proxy_verdict){
            refusal_text(REFUSAL_not_admitted)->word,
            "the file system has no room for cache.size, and what would be evicted is worth more",
            "see the condition disk-short in forebay status: a larger cache.size does not help"};
    }
    if (refused != NULL || (o->policy == NULL && !o->is_wanted)) {
        return verdict_of_refusal(REFUSAL_not_admitted);
    }
    if (is_elsewhere(o, store)) {
        return verdict_elsewhere;
    }
    return has_some
               ? (struct proxy_verdict){"partial",
                                        "a part of it has not been read, was read but not "
                                        "admitted, or was evicted: the origin is asked for that "
                                        "part",
                                        "forebay warm fetches what is missing"}
               : (struct proxy_verdict){"absent",
                                        "nothing of it is cached: it has not been read, was read "
                                        "but not admitted, was evicted, or was replaced",
                                        "forebay warm fetches it; the next read keeps it"};
}
