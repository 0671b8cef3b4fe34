// SPDX-License-Identifier: Apache-2.0
// The one gate before routing: it authenticates and authorizes each request. Only gate_authorize()
// makes a principal. Runs on the request's worker. The principal is part of struct request and
// holds a reference to its table of keys, so a reload of the keys does not affect a request in
// flight.
//
// Open mode requires no signature, but Host must be an address, localhost or a configured domain.
// Otherwise a web page could let its own domain name resolve to this listener, and read the cache
// through a browser on this machine. Requests that a browser sends for a page are refused, too
// (gate_browser.c).
//
// Verify mode demands a signature over the raw request, and a rule that allows the operation.
// Everything else is refused. An unknown key id costs the same work as a known one.
#include "proxy/core/core.h"

#include <string.h>

static enum err judge_host(const struct request *r, struct s3_error_detail *ret_detail)
{
    if (r->s3.host_kind == S3_HOST_OTHER) {
        ret_detail->message = span_from_cstr(error_row(ERR_HOST_REFUSED)->text);
        return ERR_HOST_REFUSED;
    }
    return ERR_OK;
}

bool gate_allows(const struct request *r, unsigned rights, struct span key)
{
    const struct s3_effect effect = {rights, S3_SCOPE_KEY, r->s3.bucket, key, true};
    return r->pw->proxy->options.auth_mode == PROXY_AUTH_OPEN ||
           (r->principal.verified && access_keys_allowed(r->principal.entry, &effect));
}

// Finds the effects of the request. Refuses a read with a body, because different parsers could
// disagree on where that request ends.
static enum err find_effects(struct request *r, struct s3_error_detail *ret_detail)
{
    if ((r->http->is_head || span_equal(r->http->method, SPAN("GET"))) &&
        http_request_has_body(r->http)) {
        return ERR_BAD_REQUEST;
    }
    if (s3_ids_climb(&r->s3)) {
        ret_detail->message = SPAN("versionId and uploadId must not contain a path");
        return ERR_INVALID_ARGUMENT;
    }
    enum err err =
        s3_effects_find(r->arena, &r->s3, &r->http->headers, r->origin_bucket, &r->effects);
    if (err == ERR_INVALID_ARGUMENT) {
        ret_detail->message = SPAN("x-amz-copy-source or x-amz-rename-source occurs twice, is "
                                   "malformed, or does not belong to this operation");
    }
    return err;
}

static enum err authorize_signed(struct request *r, struct principal *principal,
                                 struct s3_error_detail *ret_detail)
{
    if (r->pw->access_keys == NULL) {
        return ERR_ACCESS_DENIED;
    }
    principal->table = access_keys_ref(r->pw->access_keys);
    const struct auth_request request = {.arena = r->arena,
                                         .method = r->http->method,
                                         .target = r->http->target,
                                         .headers = &r->http->headers,
                                         .s3 = &r->s3};
    enum err err =
        auth_signature_verify(&request, principal->table, (time_t)clock_wall_s(), &principal->claim,
                              principal->signing_key, &principal->entry, ret_detail);
    if (err != ERR_OK) {
        return err;
    }
    principal->name = principal->entry->id;
    check(principal->name.len > 0);
    if (r->s3.operation == S3_CreateSession) {
        ret_detail->message = SPAN("Forebay does not support sessions for directory buckets: set "
                                   "AWS_S3_DISABLE_EXPRESS_SESSION_AUTH=true");
        return ERR_NOT_IMPLEMENTED;
    }
    enum sigv4_payload payload = principal->claim.payload;
    if ((payload == SIGV4_PAYLOAD_STREAMING || payload == SIGV4_PAYLOAD_STREAMING_TRAILER ||
         payload == SIGV4_PAYLOAD_UNSIGNED_TRAILER) &&
        (r->s3.flags & S3_OP_BODY) == 0) {
        ret_detail->message =
            SPAN("x-amz-content-sha256 must be UNSIGNED-PAYLOAD or a valid sha256 value here: only "
                 "PutObject and UploadPart take bodies in signed chunks");
        return ERR_INVALID_ARGUMENT;
    }
    enum err found = find_effects(r, ret_detail);
    return found == ERR_OK ? auth_rights_judge(r->arena, principal->entry, r->s3.operation,
                                               &r->effects, ret_detail)
                           : found;
}

static enum counter refusal_counter(enum err err, const struct principal *principal)
{
    switch (err) {
    case ERR_TIME_SKEWED:
    case ERR_NOT_YET_VALID:
        return COUNTER_auth_skewed;
    case ERR_INVALID_ACCESS_KEY:
        return COUNTER_auth_unknown_keys;
    case ERR_SIGNATURE_MISMATCH:
        return COUNTER_auth_signatures;
    case ERR_BROWSER_REFUSED:
        return COUNTER_browser_refused;
    case ERR_ACCESS_DENIED:
        return principal->entry != NULL ? COUNTER_auth_rights : COUNTER_auth_denied;
    default:
        return COUNTER_auth_denied;
    }
}

// Notes for the access log whose request it is. A key in a request that it did not sign may be
// anyone's.
static void note_client(struct request *r, const struct principal *principal)
{
    bool is_verified = principal->entry != NULL;
    *(is_verified ? &r->requester : &r->claimed_key) = principal->claim.access_key;
}

static void count_refusal(struct request *r, enum err err, const struct principal *principal)
{
    enum counter counter = refusal_counter(err, principal);
    stats_add(counter, 1);
    if (counter == COUNTER_auth_skewed) {
        atomic_store(&r->pw->proxy->client_skew_s, principal->claim.time - (time_t)clock_wall_s());
    }
}

enum err gate_authorize(struct request *r, struct principal *ret_principal,
                        struct s3_error_detail *ret_detail)
{
    // Called once per request, by the step AUTHORIZE. A unit test has no steps.
    check(r->step == REQUEST_AUTHORIZE || r->steps == NULL);
    check(r->principal.table == NULL && !r->principal.verified);
    struct principal principal = {.name = SPAN("open")};
    enum err err;
    if (r->pw->proxy->options.auth_mode == PROXY_AUTH_OPEN) {
        err = judge_host(r, ret_detail);
        if (err == ERR_OK) {
            err = gate_authorize_browser(r, ret_detail);
        }
        if (err == ERR_OK) {
            err = find_effects(r, ret_detail);
        }
    } else if (gate_is_sts(r)) {
        principal.name = SPAN("sts"); // STS judges the proof; "/" gives access to no S3 data
        err = ERR_OK;
    } else if (gate_is_preflight(r)) {
        // Unsigned. The bucket's own CORS rules decide the answer.
        principal.name = SPAN("preflight");
        err = ERR_OK;
    } else {
        err = authorize_signed(r, &principal, ret_detail);
        principal.verified = err == ERR_OK;
    }
    note_client(r, &principal);
    if (err != ERR_OK) {
        count_refusal(r, err, &principal);
        gate_release(&principal);
        return err;
    }
    *ret_principal = principal;
    check(!principal.verified || (principal.entry != NULL && principal.table != NULL));
    return ERR_OK;
}

void gate_release(struct principal *principal)
{
    explicit_bzero(principal->signing_key, sizeof(principal->signing_key));
    access_keys_unref(principal->table);
    principal->table = NULL;
    principal->entry = NULL;
    principal->verified = false;
}
