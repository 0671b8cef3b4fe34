// SPDX-License-Identifier: Apache-2.0
// Tracks whether an origin as a whole is in trouble: it cannot be reached, it fails, or it refuses
// our credentials. One atomic has the present trouble. The calls of all workers update it. The
// probe (origin_probe.c) updates it too, because there may be no calls. Any thread.
//
// A failure is ignored if any call was answered after the failed call was sent. While there is no
// trouble, an answer costs one atomic load. The answer to a request that was sent before the
// trouble began does not end it.
//
// The log reports a trouble once, or at most once a minute if it starts and ends repeatedly. The
// last line in the log still becomes correct. A trouble that was not logged at first is logged when
// a later call meets it. The end of a logged trouble is always logged.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "origin/origin_private.h"

#define BUCKET_DNS_US 60000000u
#define REMEDY_MAX_BYTES 4096u

static const struct trouble_row {
    const char *why, *text, *remedy;
    enum origin_trouble_kind kind;
} rows[ORIGIN_TROUBLE_COUNT_] = {
    [ORIGIN_TROUBLE_NONE] = {"", "", "", ORIGIN_KIND_SILENT},
#define TROUBLE(name, why, kind, text, remedy)                                                     \
    [ORIGIN_TROUBLE_##name] = {why, text, remedy, ORIGIN_KIND_##kind},
#include "origin/troubles.def"
#undef TROUBLE
};

void origin_trouble_init(struct origin *origin)
{
    for (unsigned i = 0; i < ORIGIN_TROUBLE_COUNT_; i++) {
        struct buf remedy;
        buf_init(&remedy, REMEDY_MAX_BYTES);
        origin_settings_render(&origin->options.settings, rows[i].remedy, &remedy);
        origin->remedies[i] = strdup(buf_cstr(&remedy));
        check(origin->remedies[i] != NULL);
        buf_done(&remedy);
    }
}

void origin_trouble_done(struct origin *origin)
{
    for (unsigned i = 0; i < ORIGIN_TROUBLE_COUNT_; i++) {
        free(origin->remedies[i]);
    }
}

// Returns false if another thread has changed the trouble. That thread does the rest.
static bool change(struct origin *origin, enum origin_trouble from, enum origin_trouble to)
{
    unsigned was = from;
    return atomic_compare_exchange_strong(&origin->trouble, &was, to);
}

enum origin_trouble origin_trouble_of(enum err err, bool is_https, const char *detail)
{
    switch (err) {
    case ERR_ORIGIN_DNS:
        return ORIGIN_TROUBLE_DNS;
    // A server without TLS may take our TLS hello for a part of a request, and wait for the rest.
    case ERR_ORIGIN_CONNECT:
        return strstr(detail, "SSL connection timeout") != NULL ? ORIGIN_TROUBLE_PLAIN
                                                                : ORIGIN_TROUBLE_CONNECT;
    case ERR_ORIGIN_TIMEOUT:
        return ORIGIN_TROUBLE_TIMEOUT;
    case ERR_ORIGIN_RESET:
        return ORIGIN_TROUBLE_RESET;
    case ERR_ORIGIN_5XX:
        return ORIGIN_TROUBLE_FAILING;
    case ERR_ORIGIN_CREDENTIALS:
        return ORIGIN_TROUBLE_KEYS_NONE;
    case ERR_ORIGIN_PROTOCOL: // a TLS server answers plain HTTP with an alert
        return is_https ? ORIGIN_TROUBLE_PROTOCOL : ORIGIN_TROUBLE_HTTPS;
    case ERR_ORIGIN_TLS:
        // `detail` is OpenSSL's text, which curl passes on, or the text of net/transfer.c.
        return strstr(detail, "wrong version number") != NULL ||
                       strstr(detail, "packet length too long") != NULL
                   ? ORIGIN_TROUBLE_PLAIN
               : strstr(detail, "has expired") != NULL ? ORIGIN_TROUBLE_CERTIFICATE_EXPIRED
               : strstr(detail, "does not match") != NULL ||
                       strstr(detail, "no alternative") != NULL
                   ? ORIGIN_TROUBLE_CERTIFICATE_NAME
               : strstr(detail, "no certificate authorities") != NULL ? ORIGIN_TROUBLE_AUTHORITIES
               : strstr(detail, "certificate") != NULL                ? ORIGIN_TROUBLE_CERTIFICATE
                                                                      : ORIGIN_TROUBLE_TLS;
    default:
        return ORIGIN_TROUBLE_NONE;
    }
}

enum origin_trouble origin_trouble_of_code(struct span code)
{
    static const struct {
        const char *code;
        enum origin_trouble trouble;
    } codes[] = {
        {"SignatureDoesNotMatch", ORIGIN_TROUBLE_KEYS_WRONG},
        {"InvalidAccessKeyId", ORIGIN_TROUBLE_KEYS_UNKNOWN},
        {"InvalidSecurity", ORIGIN_TROUBLE_KEYS_WRONG},
        {"NotSignedUp", ORIGIN_TROUBLE_KEYS_UNKNOWN},
        {"ExpiredToken", ORIGIN_TROUBLE_KEYS_EXPIRED},
        {"InvalidToken", ORIGIN_TROUBLE_KEYS_EXPIRED},
        {"TokenRefreshRequired", ORIGIN_TROUBLE_KEYS_EXPIRED},
        {"RequestTimeTooSkewed", ORIGIN_TROUBLE_CLOCK},
        {"AuthorizationHeaderMalformed", ORIGIN_TROUBLE_REGION},
        {"SecondLevelDomainForbidden", ORIGIN_TROUBLE_ADDRESSING},
    };
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        if (span_equal_cstr(code, codes[i].code)) {
            return codes[i].trouble;
        }
    }
    return ORIGIN_TROUBLE_NONE;
}

// Logs the end of a logged trouble. The thread that ends a trouble first changes `trouble` and then
// reads `trouble_told`. The thread that logs a trouble first writes `trouble_told` and then reads
// `trouble`. So at least one of them sees the other's change.
static void tell_end(struct origin *origin)
{
    if (atomic_load(&origin->trouble) == ORIGIN_TROUBLE_NONE &&
        atomic_exchange(&origin->trouble_told, ORIGIN_TROUBLE_NONE) != ORIGIN_TROUBLE_NONE) {
        uint64_t since_us = atomic_load(&origin->trouble_since_us);
        log_info("origin_back", "origin=%s after_ms=%llu", log_quote(span_from_cstr(origin->shown)),
                 (unsigned long long)(clock_monotonic_us() - since_us) / 1000);
    }
}

static void tell(struct origin *origin, enum origin_trouble trouble, const char *detail)
{
    // The events have the names of the conditions, which are the warnings. This line adds what is
    // known of one origin.
    static const char *const events[] = {[ORIGIN_KIND_SILENT] = "origin_unreachable",
                                         [ORIGIN_KIND_FAILS] = "origin_failing",
                                         [ORIGIN_KIND_REFUSES] = "credentials_refused"};
    const struct trouble_row *row = &rows[trouble];
    if (log_condition(LOG_LEVEL_INFO, events[row->kind],
                      "origin=%s why=%s text=%s detail=%s remedy=%s",
                      log_quote(span_from_cstr(origin->shown)), row->why,
                      log_quote(span_from_cstr(row->text)), log_quote(span_from_cstr(detail)),
                      log_quote(span_from_cstr(origin->remedies[trouble])))) {
        atomic_store(&origin->trouble_told, trouble);
        tell_end(origin);
    }
}

void origin_trouble_met(struct origin *origin, enum origin_trouble trouble, uint64_t asked_us,
                        const char *detail)
{
    enum origin_trouble was = atomic_load(&origin->trouble);
    if (trouble == ORIGIN_TROUBLE_ANY_DNS) {
        atomic_store(&origin->bucket_dns_at_us, clock_monotonic_us());
        // Keep a result that a look-up of the endpoint's own name has given.
        trouble = was == ORIGIN_TROUBLE_DNS || was == ORIGIN_TROUBLE_BUCKET_DNS ? was : trouble;
    }
    bool is_of_way = rows[trouble].kind != ORIGIN_KIND_REFUSES;
    if (trouble == ORIGIN_TROUBLE_NONE || atomic_load(&origin->rests) ||
        (is_of_way && atomic_load(&origin->heard_at_us) > asked_us)) {
        return;
    }
    if (was == trouble) {
        if (atomic_load(&origin->trouble_told) != trouble) {
            tell(origin, trouble, detail);
        }
        return;
    }
    atomic_store(&origin->trouble_at_us, clock_monotonic_us());
    if (!change(origin, was, trouble)) {
        return;
    }
    // The origin may have begun to rest since the check above. Then this thread or the resting one
    // clears the trouble.
    if (atomic_load(&origin->rests)) {
        origin_trouble_forget(origin);
        return;
    }
    if (was == ORIGIN_TROUBLE_NONE) {
        atomic_store(&origin->trouble_since_us, clock_monotonic_us());
    }
    tell(origin, trouble, detail);
    if (origin->on_trouble != NULL) {
        origin->on_trouble(origin);
    }
}

static void over(struct origin *origin, bool takes_keys)
{
    enum origin_trouble was = atomic_load(&origin->trouble);
    bool is_over = rows[was].kind != ORIGIN_KIND_REFUSES || takes_keys;
    if (was != ORIGIN_TROUBLE_NONE && is_over && change(origin, was, ORIGIN_TROUBLE_NONE)) {
        tell_end(origin);
    }
}

// Returns true if the trouble is that host names with a bucket are not resolved. An answer from the
// endpoint's own name does not end this trouble. It ends when no such name has failed for
// BUCKET_DNS_US.
static bool is_of_bucket_names(struct origin *origin)
{
    enum origin_trouble was = atomic_load(&origin->trouble);
    uint64_t since_us = clock_monotonic_us() - atomic_load(&origin->bucket_dns_at_us);
    if ((was != ORIGIN_TROUBLE_ANY_DNS && was != ORIGIN_TROUBLE_BUCKET_DNS) ||
        since_us >= BUCKET_DNS_US) {
        return false;
    }
    if (was == ORIGIN_TROUBLE_ANY_DNS && change(origin, was, ORIGIN_TROUBLE_BUCKET_DNS)) {
        tell(origin, ORIGIN_TROUBLE_BUCKET_DNS, "");
    }
    return true;
}

static enum origin_share_of share_of(enum origin_trouble trouble)
{
    check(rows[trouble].kind == ORIGIN_KIND_FAILS);
    return trouble == ORIGIN_TROUBLE_THROTTLING ? ORIGIN_SHARE_REFUSED : ORIGIN_SHARE_FAILED;
}

// Returns true if the trouble is that requests fail, and many of the last ones did. One answer does
// not end this trouble, because a store may fail for some objects only.
static bool is_of_failures(struct origin *origin)
{
    enum origin_trouble trouble = atomic_load(&origin->trouble);
    return rows[trouble].kind == ORIGIN_KIND_FAILS &&
           origin_failures_are_many(origin, share_of(trouble), true);
}

void origin_trouble_answered(struct origin *origin, bool takes_keys, bool by_bucket_name,
                             uint64_t asked_us)
{
    atomic_store_explicit(&origin->heard_at_us, clock_monotonic_us(), memory_order_relaxed);
    if (atomic_load_explicit(&origin->trouble, memory_order_relaxed) != ORIGIN_TROUBLE_NONE &&
        asked_us >= atomic_load(&origin->trouble_at_us) &&
        (by_bucket_name || !is_of_bucket_names(origin)) && !is_of_failures(origin)) {
        over(origin, takes_keys);
    }
}

// Begins the trouble if many of the last requests ended so.
static void judge_share(struct origin *origin, enum origin_trouble trouble)
{
    char detail[96];
    if (origin_failures_are_many(origin, share_of(trouble), false)) {
        struct origin_failures count = origin_failures_of(origin, share_of(trouble));
        (void)snprintf(detail, sizeof(detail), "%llu of the last %llu requests",
                       (unsigned long long)count.failed, (unsigned long long)count.requests);
        origin_trouble_met(origin, trouble, UINT64_MAX, detail);
    }
}

void origin_trouble_failed(struct origin *origin)
{
    origin_failures_note(origin, ORIGIN_OUTCOME_FAILED);
    judge_share(origin, ORIGIN_TROUBLE_FAILING);
}

void origin_trouble_forget(struct origin *origin)
{
    (void)change(origin, atomic_load(&origin->trouble), ORIGIN_TROUBLE_NONE);
    atomic_store(&origin->trouble_told, ORIGIN_TROUBLE_NONE);
    origin_failures_forget(origin);
}

bool origin_in_trouble(const struct origin *origin, struct origin_trouble_text *ret_text)
{
    enum origin_trouble trouble = atomic_load(&origin->trouble);
    const struct trouble_row *row = &rows[trouble];
    bool is_verdict = row->kind == ORIGIN_KIND_REFUSES && trouble != ORIGIN_TROUBLE_KEYS_NONE;
    *ret_text = (struct origin_trouble_text){.why = row->why,
                                             .text = row->text,
                                             .remedy = origin->remedies[trouble],
                                             .kind = row->kind,
                                             .is_verdict = is_verdict};
    if (row->kind == ORIGIN_KIND_FAILS) {
        ret_text->is_throttling = trouble == ORIGIN_TROUBLE_THROTTLING;
        ret_text->failures = origin_failures_of(origin, share_of(trouble));
    }
    return trouble != ORIGIN_TROUBLE_NONE;
}

struct origin_advice origin_advice_if_closed(void)
{
    const struct trouble_row *row = &rows[ORIGIN_TROUBLE_RESET];
    return (struct origin_advice){row->text, row->remedy};
}

// An answer of the endpoint's own name, which the probe asks, does not show whether host names with
// a bucket are resolved. They may be resolved for other buckets. An answer of the origin shows a
// loop. A store may answer requests for objects only, and a probe of it never shows that it is
// back.
bool origin_is_silent(const struct origin *origin)
{
    unsigned trouble = atomic_load_explicit(&origin->trouble, memory_order_relaxed);
    bool is_elsewhere = trouble == ORIGIN_TROUBLE_ANY_DNS || trouble == ORIGIN_TROUBLE_BUCKET_DNS ||
                        trouble == ORIGIN_TROUBLE_LOOP;
    return trouble != ORIGIN_TROUBLE_NONE && rows[trouble].kind == ORIGIN_KIND_SILENT &&
           !is_elsewhere && atomic_load_explicit(&origin->answers_probe, memory_order_relaxed);
}

void origin_trouble_throttled(struct origin *origin, bool by_bucket_name, uint64_t asked_us)
{
    atomic_store(&origin->throttled_at_us, clock_monotonic_us());
    origin_failures_note(origin, ORIGIN_OUTCOME_REFUSED);
    origin_trouble_answered(origin, false, by_bucket_name, asked_us);
    judge_share(origin, ORIGIN_TROUBLE_THROTTLING);
}

struct origin_failures origin_throttled(const struct origin *origin)
{
    return origin_failures_of(origin, ORIGIN_SHARE_REFUSED);
}

struct origin_failures origin_failed(const struct origin *origin)
{
    return origin_failures_of(origin, ORIGIN_SHARE_FAILED);
}

bool origin_throttles(const struct origin *origin, unsigned window_s)
{
    uint64_t at_us = atomic_load(&origin->throttled_at_us), now_us = clock_monotonic_us();
    return at_us != 0 && now_us - min_u64(now_us, at_us) < window_s * 1000000ull;
}
