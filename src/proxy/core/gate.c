// SPDX-License-Identifier: Apache-2.0
// The one gate before routing: who is it, may they. Only gate_authorize() makes a principal. Runs
// on the request's worker; the principal lives in struct request and holds a reference to the table
// it came from, so that a reload takes nothing away from a request under way.
//
// Open mode asks for no signature, but Host must be an address, localhost or a configured domain: a
// page in a browser on this machine that had its own name pointed here must not be able to read the
// cache; and what a browser sends for a page is refused (gate_browser.c). Verify mode demands a
// signature over the raw request and a rule that allows the operation; everything is refused by
// default. An unknown key id does the same work as a known one.
#include "proxy/core/core.h"

#include <string.h>

static enum err refuse_with(struct request *r, struct s3_error_detail *ret_detail, const char *what,
                            struct span name, enum err err)
{
    char *text = arena_printf(r->arena, "Access key %.*s is not allowed %s on this resource",
                              (int)min_u64(name.len, 128), name.ptr != NULL ? name.ptr : "", what);
    ret_detail->message = span_from_cstr(text);
    return err;
}

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

// Everything that the request may do must be allowed. Keys that stand in its body are judged once
// it has been read (gate_allows()).
static enum err authorize_effects(struct request *r, const struct access_keys_principal *p,
                                  struct s3_error_detail *ret_detail)
{
    const struct s3_effects *effects = &r->effects;
    if (effects->copy.is_there && !effects->copy.is_understood) {
        ret_detail->message = SPAN("Copy Source must be a bucket and a key here");
        return ERR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < effects->count; i++) {
        if (!access_keys_allowed(p, &effects->items[i])) {
            bool is_unknown = (effects->items[i].rights & S3_ALLOW_ANY) != 0;
            return refuse_with(r, ret_detail,
                               is_unknown ? "what only the right 'any' allows"
                                          : s3_operation_name(r->s3.operation),
                               p->id, ERR_ACCESS_DENIED);
        }
    }
    return ERR_OK;
}

// "NAME" and what follows it, from `separator` on; of a secret, "***" instead.
static void append_without_secret(struct buf *out, struct span piece, char separator)
{
    struct span name = {piece.ptr, span_find(piece, separator)};
    bool hides = name.len < piece.len && s3_name_is_secret(name);
    buf_append_span(out, hides ? (struct span){piece.ptr, name.len + 1} : piece);
    buf_append_cstr(out, hides ? "***" : "");
}

// The canonical request goes back to the client, and from there into logs: values that are secrets
// of the client's are left out. Its third line is the query, headers follow.
static struct span without_secrets(struct arena *arena, struct span canonical)
{
    struct buf out;
    buf_init(&out, 2 * canonical.len + 64);
    struct span line, parameter;
    for (unsigned i = 0; span_split(&canonical, '\n', &line); i++) {
        if (i == 2) {
            while (span_split(&line, '&', &parameter)) {
                append_without_secret(&out, parameter, '=');
                buf_append_cstr(&out, line.ptr != NULL ? "&" : "");
            }
        } else {
            append_without_secret(&out, line, ':');
        }
        buf_append_cstr(&out, canonical.ptr != NULL ? "\n" : "");
    }
    struct span kept = buf_ok(&out) ? arena_copy(arena, buf_span(&out)) : (struct span){NULL, 0};
    buf_done(&out);
    return kept;
}

// The signature over the raw request. Fills principal.claim and signing_key.
static enum err verify_signature(struct request *r, struct principal *principal,
                                 struct s3_error_detail *ret_detail)
{
    const struct http_request *http = r->http;
    struct sigv4_claim *claim = &principal->claim;
    enum err err = sigv4_claim_parse(&r->s3, &http->headers, claim);
    if (err != ERR_OK) {
        return err;
    }
    if (claim->version2) {
        return ERR_SIGNATURE_V2;
    }
    if (!claim->present) {
        if (r->s3.operation == S3_PostObject) {
            ret_detail->message = SPAN("A form's own signature is not accepted here: use PutObject "
                                       "or a presigned PUT, or post the form to the origin");
        }
        return ERR_ACCESS_DENIED;
    }
    const struct access_keys_principal *p = access_keys_find(principal->table, claim->access_key);
    struct span raw_path = {http->target.ptr, span_find(http->target, '?')};
    struct span raw_query = {NULL, 0};
    if (raw_path.len < http->target.len) {
        raw_query =
            (struct span){http->target.ptr + raw_path.len + 1, http->target.len - raw_path.len - 1};
    }
    struct sigv4_mismatch mismatch = {0};
    err = sigv4_verify(r->arena, claim, p != NULL ? p->secret : access_keys_dummy_secret(),
                       (time_t)clock_wall_s(), http->method, raw_path, raw_query, &http->headers,
                       principal->signing_key, &mismatch);
    if (p == NULL) {
        return ERR_INVALID_ACCESS_KEY;
    }
    if (err == ERR_SIGNATURE_MISMATCH) {
        ret_detail->string_to_sign = mismatch.string_to_sign;
        ret_detail->canonical_request = without_secrets(r->arena, mismatch.canonical_request);
    }
    if (err == ERR_OK && mismatch.plus_is_space) {
        err = s3_request_plus_is_space(r->arena, &r->s3);
    }
    principal->entry = p;
    return err;
}

// What the request may do. A read with a body is none: two parsers may see two requests in it.
static enum err find_effects(struct request *r, struct s3_error_detail *ret_detail)
{
    if ((r->http->is_head || span_equal(r->http->method, SPAN("GET"))) && r->http->has_body) {
        return ERR_BAD_REQUEST;
    }
    if (s3_ids_climb(&r->s3)) {
        ret_detail->message = SPAN("A versionId or uploadId is no path");
        return ERR_INVALID_ARGUMENT;
    }
    enum err err =
        s3_effects_find(r->arena, &r->s3, &r->http->headers, r->origin_bucket, &r->effects);
    if (err == ERR_INVALID_ARGUMENT) {
        ret_detail->message = SPAN("x-amz-copy-source or x-amz-rename-source stands there twice, "
                                   "cannot be read, or belongs to no such request");
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
    enum err err = verify_signature(r, principal, ret_detail);
    if (err != ERR_OK) {
        return err;
    }
    principal->name = principal->entry->id;
    if (r->s3.operation == S3_CreateSession) {
        ret_detail->message = SPAN("Sessions for directory buckets are not known here: set "
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
    return found == ERR_OK ? authorize_effects(r, principal->entry, ret_detail) : found;
}

enum err gate_authorize(struct request *r, struct principal *ret_principal,
                        struct s3_error_detail *ret_detail)
{
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
        principal.name = SPAN("sts"); // its proof is for STS to judge; nothing of S3 is behind "/"
        err = ERR_OK;
    } else if (gate_is_preflight(r)) {
        principal.name = SPAN("preflight"); // what it asks is the bucket's to answer, unsigned
        err = ERR_OK;
    } else {
        err = authorize_signed(r, &principal, ret_detail);
        principal.verified = err == ERR_OK;
    }
    if (err != ERR_OK) {
        r->claimed_key = principal.claim.access_key;
        gate_release(&principal);
        return err;
    }
    *ret_principal = principal;
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
