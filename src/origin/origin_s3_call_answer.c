// SPDX-License-Identifier: Apache-2.0
// Decides what a call does after an answer that is no success, or after no answer at all. It may
// repeat the request in the right region, with the right clock or with new credentials. It may wait
// and retry, or accept the answer as final. origin_s3_call.c carries the decision out.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/date.h"
#include "base/log.h"
#include "origin/origin_s3_call_private.h"
#include "stats/stats.h"

#define REGION_HOPS_MAX 3u
// The back-off after SlowDown does not grow beyond that of this attempt, because the call keeps its
// slot.
#define SLOWDOWN_BACKOFFS 2u
#define THROTTLED_S 60u // A HEAD's 503 within this time after a SlowDown is one, too.
#define SKEW_SEEN_S 600 // From this skew on, a 403 without a code counts as a clock error.

static const struct origin_s3_verdict ask = {.next = S3_NEXT_ASK};

static struct origin_s3_verdict end_with(enum err err)
{
    return (struct origin_s3_verdict){.next = S3_NEXT_END, .err = err};
}

// Drops the redirect, so that later attempts are sent to the endpoint again.
static void leave_redirect(struct origin_s3_call *c)
{
    free(c->redirect_url);
    c->redirect_url = NULL;
}

// Returns true for both meanings of 503. A store that is overloaded uses either.
static bool is_overload(enum err err)
{
    return err == ERR_ORIGIN_SLOWDOWN || err == ERR_ORIGIN_UNAVAILABLE;
}

// Returns true if the request must wait and be sent again, because the origin refused it with
// SlowDown or 503 but answers other requests.
static bool came_too_early(const struct origin_s3_call *c)
{
    const struct origin *origin = c->call.ow->origin;
    if (c->attempts <= origin->live.retries) {
        return origin_answers_others(origin, 0);
    }
    return origin_answers_others(origin, c->first_asked_us) &&
           clock_monotonic_us() - c->first_asked_us < ORIGIN_SLOWDOWN_WAIT_US;
}

// Returns true and sets *ret_verdict if the call may be retried.
static bool may_retry(struct origin_s3_call *c, enum err err, struct origin_s3_verdict *ret_verdict)
{
    struct origin *origin = c->call.ow->origin;
    uint64_t wait_ms = origin_backoff_ms(c->attempts);
    bool has_stale = origin_s3_call_has_stale(c);
    if ((c->call.r != NULL && c->call.r->is_probe) ||
        (has_stale && (err == ERR_ORIGIN_TIMEOUT || c->attempts > 1))) {
        return false;
    }
    if (is_overload(err) && came_too_early(c)) {
        stats_add(COUNTER_origin_slowdown_retries, 1);
        wait_ms = origin_backoff_ms((unsigned)min_u64(c->attempts, SLOWDOWN_BACKOFFS));
    } else if (c->attempts > origin->live.retries || !origin_retry_take(origin)) {
        return false;
    }
    leave_redirect(c);
    *ret_verdict = (struct origin_s3_verdict){.next = S3_NEXT_WAIT, .wait_ms = wait_ms};
    return true;
}

// Returns which trouble of the proxy curl's text shows, after no connection was made.
static enum origin_trouble trouble_of_proxy(const char *detail)
{
    return strstr(detail, "CONNECT") == NULL ? ORIGIN_TROUBLE_PROXY
           : strstr(detail, "407") != NULL   ? ORIGIN_TROUBLE_PROXY_AUTH
                                             : ORIGIN_TROUBLE_PROXY_DENIES;
}

// Records which trouble of the origin a failure without any answer shows.
static void note_failure(struct origin_s3_call *c, enum err err, const char *detail)
{
    struct origin *origin = c->call.ow->origin;
    const struct origin_s3_endpoint *endpoint = &origin_s3_state_of(c->call.ow)->endpoint;
    enum origin_trouble trouble = origin_trouble_of(err, endpoint->is_https, detail);
    if (trouble == ORIGIN_TROUBLE_DNS && origin_s3_call_is_virtual(c)) {
        trouble = ORIGIN_TROUBLE_ANY_DNS; // no name may be resolved, or only those with a bucket
    }
    if (trouble == ORIGIN_TROUBLE_CONNECT && endpoint->is_https &&
        origin_s3_state_of(c->call.ow)->proxy != NULL) {
        trouble = trouble_of_proxy(detail);
    }
    if (c->response_head.head_bytes == 0 && c->redirect_url == NULL) {
        origin_trouble_met(origin, trouble, c->started_us, detail);
    }
}

struct origin_s3_verdict origin_s3_call_failed(struct origin_s3_call *c, enum err err,
                                               const char *detail)
{
    struct origin_s3_verdict retry;
    check(err != ERR_OK);
    if ((err == ERR_ORIGIN_CHANGED && origin_s3_odd_ask_replica(c)) ||
        (err == ERR_ORIGIN_UNFIT && origin_s3_odd_ask_otherwise(c))) {
        return ask;
    }
    bool untouched = (err == ERR_ORIGIN_DNS || err == ERR_ORIGIN_CONNECT) && !c->upload_has_left;
    origin_count_error(err);
    if (c->call.r != NULL && untouched) {
        c->call.r->is_unsure = false;
    }
    if (err == ERR_PERMISSION && c->redirect_url != NULL) {
        // The redirect leads to an address that is more private than allowed. Ask the endpoint once
        // more, and use its answer.
        leave_redirect(c);
        c->mended.redirects = ORIGIN_S3_REDIRECTS_MAX;
        return ask;
    }
    if (err == ERR_ORIGIN_TIMEOUT || err == ERR_ORIGIN_CONNECT) {
        origin_slot_slow_down(c->call.ow);
    }
    if (err == ERR_ORIGIN_TIMEOUT) {
        origin_hops_doubt(c->call.ow->origin);
    }
    if (error_row(err)->retry == RETRY_SAFE && (origin_s3_call_is_safe(c) || untouched) &&
        may_retry(c, err, &retry)) {
        return retry;
    }
    note_failure(c, err, detail);
    if (c->call.f != NULL) {
        c->call.f->status = origin_s3_call_has_head(c) ? c->response_head.status : 0;
    }
    return end_with(err);
}

// Keeps the origin's own error answer for the caller. No error of S3 is longer than the limit.
static void keep_answer(struct origin_s3_call *c)
{
    struct s3_error_answer answer = {.status = c->response_head.status,
                                     .document = buf_span(&c->collected)};
    struct buf packed;
    buf_init(&packed, ORIGIN_ERROR_ANSWER_MAX);
    if (origin_s3_headers_of_error(c->call.arena, &c->response_head.headers, &answer.headers) ==
        ERR_OK) {
        s3_error_pack(&answer, &packed);
        c->call.f->error_answer =
            buf_ok(&packed) ? arena_copy(c->call.arena, buf_span(&packed)) : (struct span){NULL, 0};
    }
    buf_done(&packed);
}

// Keeps the headers that a client may get with a 304: RFC 9110, section 15.4.5.
static void keep_validators(struct origin_s3_call *c)
{
    static const char *const names[] = {"ETag", "Last-Modified", "Cache-Control", "Expires",
                                        "x-amz-version-id"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        struct span name = span_from_cstr(names[i]), value;
        if (headers_get(&c->response_head.headers, name, &value)) {
            (void)!headers_add(&c->call.f->headers, c->call.arena, name,
                               value); // five headers always fit
        }
    }
}

// Accepts the answer as final. A fetch ends with its error; a relay passes the answer on.
static struct origin_s3_verdict answer_is_final(struct origin_s3_call *c, enum err fetch_err)
{
    struct origin_fetch *f = c->call.f;
    if (f == NULL) {
        return (struct origin_s3_verdict){.next = S3_NEXT_HOLD};
    }
    f->status = c->response_head.status;
    keep_answer(c);
    if (fetch_err == ERR_NOT_MODIFIED) {
        keep_validators(c);
    }
    (void)headers_get(&c->response_head.headers, SPAN("x-amz-bucket-region"), &f->bucket_region);
    (void)headers_get(&c->response_head.headers, SPAN("ETag"), &f->etag);
    (void)response_answer_unsatisfied_size(&c->response_head, &f->size_bytes);
    return end_with(fetch_err);
}

// Each of the functions mend_region(), mend_clock() and mend_credentials() returns true if the
// answer refuses the request for its region, clock or token. *ret_verdict then tells whether a
// corrected request follows, or how the call ends.
static bool mend_region(struct origin_s3_call *c, const struct s3_error_body *body,
                        struct origin_s3_verdict *ret_verdict)
{
    struct span hint = {NULL, 0};
    unsigned status = c->response_head.status;
    bool redirect = status >= 300 && status < 400 && status != 304;
    (void)headers_get(&c->response_head.headers, SPAN("x-amz-bucket-region"), &hint);
    if (hint.len == 0) {
        hint = body->region;
    }
    if ((!redirect && status != 400) || !origin_s3_region_is_valid(hint) ||
        span_equal(hint, c->region) || c->mended.regions == REGION_HOPS_MAX) {
        return false;
    }
    c->mended.regions++;
    leave_redirect(c);
    origin_s3_region_learn(c->call.ow, origin_s3_call_bucket(c), hint);
    // After a part of its upload was sent, only the client can repeat the request. Its next request
    // will use the right region.
    *ret_verdict = c->upload_has_left ? end_with(ERR_ORIGIN_RESET) : ask;
    return true;
}

// Returns true if the client sends an encryption key of its own (SSE-C). Such a key must not be
// sent to another host.
static bool carries_customer_key(const struct origin_s3_call *c)
{
    bool carries = false;
    for (unsigned i = 0; c->call.r != NULL && i < c->call.r->headers->count; i++) {
        struct span name = c->call.r->headers->items[i].name;
        struct span suffix = SPAN("-customer-key");
        size_t rest = name.len - min_u64(name.len, suffix.len);
        carries |= span_equal_nocase((struct span){name.ptr + rest, name.len - rest}, suffix);
    }
    return carries;
}

static bool may_follow(const struct origin_s3_call *c)
{
    unsigned status = c->response_head.status;
    bool keeps_method = status == 307 || status == 308;
    bool is_redirect = keeps_method || (status >= 301 && status <= 303);
    return is_redirect && (keeps_method || origin_s3_call_is_safe(c)) && !c->upload_has_left &&
           c->mended.redirects < ORIGIN_S3_REDIRECTS_MAX && !carries_customer_key(c);
}

// Returns true if the redirect names the bucket and key of this call. Also returns true if the
// request has no signature of ours, because such a request may be sent anywhere.
static bool asks_for_the_same(const struct origin_s3_call *c, const struct origin_s3_url *url)
{
    bool is_anonymous =
        (c->set != NULL && c->set->is_anonymous) || (c->call.r != NULL && c->call.r->is_unsigned);
    return is_anonymous ||
           origin_s3_redirect_is_to(url, origin_s3_call_bucket(c), origin_s3_call_key(c));
}

// Returns true if the next attempt follows the redirect of this answer, by the rules at the head of
// origin_s3_redirect.c.
static bool follow_redirect(struct origin_s3_call *c)
{
    struct origin_s3_url url;
    struct span location;
    bool is_presigned = false;
    bool is_https = origin_s3_state_of(c->call.ow)->endpoint.is_https;
    unsigned status = c->response_head.status;
    if (status < 300 || status > 399 || status == 304) {
        return false;
    }
    if (!may_follow(c) || !headers_get(&c->response_head.headers, SPAN("Location"), &location) ||
        origin_s3_redirect_build(c->call.arena, is_https, c->host, location, &url, &is_presigned) !=
            ERR_OK ||
        !origin_s3_host_is_within(url.host, c->redirect_reach) ||
        !(is_presigned || asks_for_the_same(c, &url))) {
        stats_add(COUNTER_origin_redirects_passed, 1);
        return false;
    }
    stats_add(COUNTER_origin_redirects_followed, 1);
    leave_redirect(c);
    c->redirect_url = strdup(url.url);
    check(c->redirect_url != NULL);
    c->mended.redirects++;
    c->attempts--;
    return true;
}

// Returns the origin's clock minus ours, from the answer's Date. Without a Date, returns the value
// that other calls have learnt.
static int64_t skew_by_answer(const struct origin_s3_call *c)
{
    struct span date;
    time_t origin_s = 0;
    if (headers_get(&c->response_head.headers, SPAN("Date"), &date) &&
        date_parse_http(date, &origin_s)) {
        return (int64_t)origin_s - (int64_t)clock_wall_s();
    }
    return atomic_load(&origin_s3_state_of(c->call.ow)->clock_skew_s);
}

// Compares the origin's clock with the skew that this attempt was signed with. The current skew may
// differ: another call may have learnt it since, while this attempt was in flight. The answer to a
// HEAD has no error code, so for a HEAD a large difference decides.
static bool mend_clock(struct origin_s3_call *c, const struct s3_error_body *body,
                       struct origin_s3_verdict *ret_verdict)
{
    if (c->mended.clock || c->response_head.status != 403 || !origin_s3_call_is_signed(c)) {
        return false;
    }
    int64_t skew_s = skew_by_answer(c), off_s = skew_s - c->signed_skew_s;
    bool says_so = span_equal_cstr(body->code, "RequestTimeTooSkewed") && off_s != 0;
    if (!says_so && !(origin_s3_call_is_head(c) && (off_s > SKEW_SEEN_S || off_s < -SKEW_SEEN_S))) {
        return false;
    }
    c->mended.clock = true;
    atomic_store(&origin_s3_state_of(c->call.ow)->clock_skew_s, (long)skew_s);
    log_warn_condition("origin_clock_differs", "origin=%s offset_s=%lld", c->call.ow->origin->shown,
                       (long long)skew_s);
    *ret_verdict = c->upload_has_left ? end_with(ERR_ORIGIN_CREDENTIALS) : ask;
    return true;
}

static enum err keys_expired(struct origin_s3_call *c)
{
    origin_count_error(ERR_ORIGIN_CREDENTIALS);
    origin_trouble_met(c->call.ow->origin, ORIGIN_TROUBLE_KEYS_EXPIRED, c->started_us, "");
    return ERR_ORIGIN_CREDENTIALS;
}

static bool mend_credentials(struct origin_s3_call *c, const struct s3_error_body *body,
                             struct origin_s3_verdict *ret_verdict)
{
    if (c->set == NULL || c->set->is_anonymous || (c->call.r != NULL && c->call.r->is_unsigned) ||
        (c->response_head.status != 400 && c->response_head.status != 403)) {
        return false;
    }
    bool token_refused = origin_s3_status_is_token_error(body->code) ||
                         span_equal_cstr(body->code, "InvalidAccessKeyId") ||
                         (origin_s3_call_is_head(c) && c->response_head.status == 400 &&
                          c->set->keys.session_token.len > 0);
    if (token_refused && !c->mended.credentials) {
        c->mended.credentials = true;
        ret_verdict->next = S3_NEXT_RENEW;
        return true;
    }
    if (origin_s3_status_is_token_error(body->code)) {
        *ret_verdict = end_with(keys_expired(c));
        return true;
    }
    return false;
}

// Returns true if the answer says that the keys lack the right. The answer to a HEAD has no code.
static bool is_denied(const struct origin_s3_call *c, const struct s3_error_body *body)
{
    return c->response_head.status == 403 &&
           (origin_s3_call_is_head(c) || span_equal_cstr(body->code, "AccessDenied"));
}

// Returns true if the origin refuses the credentials of this request. If these are the configured
// ones, all requests are affected, so this is a trouble of the origin.
static bool refuses_credentials(struct origin_s3_call *c, const struct s3_error_body *body)
{
    bool is_own = c->set != NULL;
    char code[64];
    enum origin_trouble trouble = origin_trouble_of_code(body->code);
    if (!origin_s3_call_is_signed(c)) {
        return false;
    }
    // mend_region() handles refusals that name a region
    if (trouble == ORIGIN_TROUBLE_NONE || body->region.len > 0) {
        if (is_own && is_denied(c, body)) {
            origin_failures_note_access(c->call.ow->origin, true);
        }
        if (is_own && body->code.len > 0) {
            origin_trouble_answered(c->call.ow->origin, true, origin_s3_call_is_virtual(c),
                                    c->started_us);
        }
        return false;
    }
    (void)snprintf(code, sizeof(code), "%.*s", (int)min_u64(body->code.len, 63), body->code.ptr);
    if (is_own) {
        origin_trouble_met(c->call.ow->origin, trouble, c->started_us, code);
    }
    return true;
}

// Returns true if this is the answer of a TLS port to a request without TLS.
static bool wants_tls(const struct origin_s3_call *c, const struct s3_error_body *body)
{
    struct span text = buf_span(&c->collected);
    return c->response_head.status == 400 && body->code.len == 0 && text.len > 0 &&
           text.len < 4096 && !origin_s3_state_of(c->call.ow)->endpoint.is_https &&
           (memmem(text.ptr, text.len, "HTTPS port", 10) != NULL ||
            memmem(text.ptr, text.len, "HTTPS server", 12) != NULL);
}

// Returns true if a 503 to a HEAD, which has no body with a code, stands for SlowDown. S3 has its
// own reason phrase for that. Other stores send the ordinary phrase, so the answers to other
// requests have to tell.
static bool is_slow_down_of_head(const struct origin_s3_call *c)
{
    return c->response_head.status == 503 && origin_s3_call_is_head(c) &&
           (c->response_head.says_slow_down || origin_throttles(c->call.ow->origin, THROTTLED_S));
}

static enum err failure_of(const struct origin_s3_call *c, const struct s3_error_body *body)
{
    return is_slow_down_of_head(c) ? ERR_ORIGIN_SLOWDOWN
                                   : origin_s3_status_failure(c->response_head.status, body->code);
}

// Counts a failed request by its last answer. A HEAD that only other answers have shown to be
// throttled must not count as such an answer itself. Otherwise HEADs alone could go on for ever to
// show that the origin throttles.
static void note_last_failure(struct origin_s3_call *c, enum err err)
{
    bool is_shown = !is_slow_down_of_head(c) || c->response_head.says_slow_down;
    if (err == ERR_ORIGIN_SLOWDOWN && is_shown) {
        origin_trouble_throttled(c->call.ow->origin, origin_s3_call_is_virtual(c), c->started_us);
    } else if (err != ERR_ORIGIN_SLOWDOWN && err != ERR_ORIGIN_TIMEOUT) {
        origin_trouble_failed(c->call.ow->origin);
    }
}

static struct s3_error_body read_body(const struct origin_s3_call *c)
{
    struct s3_error_body body = {{NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    if (c->collected.len > 0) {
        (void)s3_error_read(c->call.arena, buf_span(&c->collected), &body);
    }
    return body;
}

enum err origin_s3_call_keys_stay(struct origin_s3_call *c)
{
    struct s3_error_body body = read_body(c);
    if (origin_s3_status_is_token_error(body.code)) {
        return keys_expired(c);
    }
    enum err err = refuses_credentials(c, &body) ? ERR_ORIGIN_REFUSED : ERR_ORIGIN_CREDENTIALS;
    origin_count_error(err);
    return err;
}

struct origin_s3_verdict origin_s3_call_answered(struct origin_s3_call *c)
{
    struct s3_error_body body = read_body(c);
    struct origin_s3_verdict verdict = ask;
    unsigned status = c->response_head.status;
    check(origin_s3_call_has_head(c));
    if (c->call.r != NULL) {
        c->call.r->error_code = body.code;
    }
    if (c->call.r != NULL && span_equal_cstr(body.code, "SlowDown")) {
        c->call.r->is_unsure = false;
    }
    if (mend_region(c, &body, &verdict) || mend_clock(c, &body, &verdict) ||
        mend_credentials(c, &body, &verdict) || follow_redirect(c) ||
        origin_s3_odd_ask_otherwise(c)) {
        return verdict;
    }
    if (wants_tls(c, &body)) {
        origin_trouble_met(c->call.ow->origin, ORIGIN_TROUBLE_HTTPS, UINT64_MAX, "");
        return end_with(ERR_ORIGIN_PROTOCOL);
    }
    if ((status == 400 || status == 401 || status == 403) && refuses_credentials(c, &body)) {
        origin_count_error(ERR_ORIGIN_REFUSED);
        return c->call.f != NULL ? answer_is_final(c, ERR_ORIGIN_REFUSED)
                                 : end_with(ERR_ORIGIN_REFUSED);
    }
    if (status == 508) {
        return answer_is_final(c, ERR_LOOP);
    }
    if (status == 408 || status == 429 || (status >= 500 && status != 501)) {
        enum err err = failure_of(c, &body);
        origin_count_error(err);
        if (is_overload(err)) {
            origin_slot_slow_down(c->call.ow);
        }
        if (origin_s3_call_is_safe(c) && may_retry(c, err, &verdict)) {
            return verdict;
        }
        note_last_failure(c, err);
        if (c->call.r == NULL || !origin_s3_status_is_hidden(status)) {
            return answer_is_final(c, err);
        }
        (void)headers_get(&c->response_head.headers, SPAN("Retry-After"), &c->call.r->retry_after);
        return end_with(err);
    }
    enum err err =
        c->call.f != NULL ? origin_s3_status_error(c->call.f, status, body.code) : ERR_OK;
    origin_count_error(err);
    return answer_is_final(c, err);
}
