// SPDX-License-Identifier: Apache-2.0
// Verifies the signature of a request. Pure; any thread.
#include "auth/auth.h"

#include "base/date.h"

// Appends `piece`, which is a name, `separator` and a value. If the value is a secret, appends
// "***" in its place.
static void append_without_secret(struct buf *out, struct span piece, char separator)
{
    struct span name = {piece.ptr, span_find(piece, separator)};
    bool hides = name.len < piece.len && s3_name_is_secret(name);
    buf_append_span(out, hides ? (struct span){piece.ptr, name.len + 1} : piece);
    buf_append_cstr(out, hides ? "***" : "");
}

// Returns the canonical request with "***" in place of the client's secrets, because the client may
// log the error document. The third line is the query; lines of headers follow.
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

// Returns both times as S3 states them, so that the client's user sees which clock is wrong.
static struct span skew_elements(struct arena *arena, const struct sigv4_claim *claim, time_t now)
{
    char server_time[DATE_ISO_LEN + 1];
    date_format_iso(now, 0, server_time);
    return span_from_cstr(
        arena_printf(arena,
                     "<RequestTime>%s</RequestTime><ServerTime>%.19sZ</ServerTime>"
                     "<MaxAllowedSkewMilliseconds>%d</MaxAllowedSkewMilliseconds>",
                     claim->amz_date, server_time, SIGV4_SKEW_MAX_S * 1000));
}

enum err auth_signature_verify(const struct auth_request *r, const struct access_keys *table,
                               time_t now, struct sigv4_claim *ret_claim, uint8_t *ret_signing_key,
                               const struct access_keys_principal **ret_entry,
                               struct s3_error_detail *ret_detail)
{
    enum err err = sigv4_claim_parse(r->s3, r->headers, ret_claim);
    if (err != ERR_OK) {
        return err;
    }
    if (ret_claim->version2) {
        return ERR_SIGNATURE_V2;
    }
    if (!ret_claim->present) {
        if (r->s3->operation == S3_PostObject) {
            ret_detail->message = SPAN("A form's own signature is not accepted here: use PutObject "
                                       "or a presigned PUT, or post the form to the origin");
        }
        return ERR_ACCESS_DENIED;
    }
    const struct access_keys_principal *p = access_keys_find(table, ret_claim->access_key);
    struct span raw_path = {r->target.ptr, span_find(r->target, '?')};
    struct span raw_query = {NULL, 0};
    if (raw_path.len < r->target.len) {
        raw_query =
            (struct span){r->target.ptr + raw_path.len + 1, r->target.len - raw_path.len - 1};
    }
    struct sigv4_mismatch mismatch = {0};
    err = sigv4_verify(r->arena, ret_claim, p != NULL ? p->secret : access_keys_dummy_secret(), now,
                       r->method, raw_path, raw_query, r->headers, ret_signing_key, &mismatch);
    if (p == NULL) {
        return ERR_INVALID_ACCESS_KEY;
    }
    if (err == ERR_TIME_SKEWED) {
        ret_detail->elements = skew_elements(r->arena, ret_claim, now);
    }
    if (err == ERR_SIGNATURE_MISMATCH) {
        ret_detail->string_to_sign = mismatch.string_to_sign;
        ret_detail->canonical_request = without_secrets(r->arena, mismatch.canonical_request);
    }
    if (err != ERR_OK) {
        return err;
    }
    *ret_entry = p;
    return mismatch.plus_is_space ? s3_request_plus_is_space(r->arena, r->s3) : ERR_OK;
}
