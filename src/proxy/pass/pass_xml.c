// SPDX-License-Identifier: Apache-2.0
// Parses request bodies that list keys or an action for a key. Forebay verifies the client's bytes
// by the digests that came with them, and parses them strictly. It forwards only what it has
// parsed, with digests that it computes. On the request's worker, when the body is complete and its
// hash is verified.
#include "proxy/pass/pass_private.h"

#include <string.h>

#define MD5_BASE64_LEN 24u

// Returns true if the header contains a digest of the body. *ret_kind is NONE if Forebay cannot
// compute that digest.
static bool is_digest(struct span name, enum s3_checksum *ret_kind)
{
    if (span_equal_nocase(name, SPAN("content-md5"))) {
        *ret_kind = S3_CHECKSUM_MD5;
        return true;
    }
    struct span prefix = SPAN("x-amz-checksum-");
    if (name.len == prefix.len || !span_starts_with_nocase(name, prefix) ||
        span_equal_nocase(name, SPAN("x-amz-checksum-algorithm")) ||
        span_equal_nocase(name, SPAN("x-amz-checksum-type")) ||
        span_equal_nocase(name, SPAN("x-amz-checksum-mode"))) {
        return false;
    }
    *ret_kind = s3_checksum_from_name(name);
    return true;
}

static void digest_of(enum s3_checksum kind, struct span bytes, char *ret_base64)
{
    check(kind != S3_CHECKSUM_NONE);
    struct s3_checksum_state *state = s3_checksum_new(kind);
    s3_checksum_update(state, bytes);
    s3_checksum_final(state, ret_base64);
    s3_checksum_free(state);
}

static enum err verify_digests(const struct pass_state *p)
{
    check(p->body.collect && p->body.is_verified);
    const struct headers *headers = &p->headers;
    for (unsigned i = 0; i < headers->count; i++) {
        enum s3_checksum kind;
        struct header h = headers->items[i];
        if (!is_digest(h.name, &kind) || kind == S3_CHECKSUM_NONE) {
            continue;
        }
        if (kind == S3_CHECKSUM_MD5 && h.value.len != MD5_BASE64_LEN) {
            return ERR_INVALID_DIGEST;
        }
        char computed[64];
        digest_of(kind, buf_span(&p->body.whole), computed);
        if (!span_equal_cstr(h.value, computed)) {
            return ERR_BAD_DIGEST;
        }
    }
    return ERR_OK;
}

static bool add_digest(struct pass_state *p, struct headers *to, struct span name,
                       enum s3_checksum kind)
{
    char base64[64];
    digest_of(kind, buf_span(&p->body.whole), base64);
    struct span value = arena_copy(p->arena, span_from_cstr(base64));
    return value.ptr != NULL && headers_add(to, p->arena, name, value);
}

// Replaces the digests: adds Content-MD5, because older stores require it, and those digests that
// the client sent and Forebay can compute.
static enum err renew_digests(struct pass_state *p)
{
    check(p->body.length == p->body.whole.len);
    struct headers renewed = {0};
    bool ok = add_digest(p, &renewed, SPAN("Content-MD5"), S3_CHECKSUM_MD5);
    bool has_checksum = false;
    for (unsigned i = 0; ok && i < p->headers.count; i++) {
        struct header h = p->headers.items[i];
        enum s3_checksum kind;
        if (!is_digest(h.name, &kind)) {
            ok = headers_add(&renewed, p->arena, h.name, h.value);
        } else if (kind != S3_CHECKSUM_NONE && !span_equal_nocase(h.name, SPAN("content-md5"))) {
            has_checksum = true;
            ok = add_digest(p, &renewed, h.name, kind);
        }
    }
    if (!has_checksum) {
        headers_remove(&renewed, SPAN("x-amz-sdk-checksum-algorithm"));
    }
    p->headers = renewed;
    return ok ? ERR_OK : ERR_NO_MEMORY;
}

// Forwards `rendered` in place of the client's body.
static enum err send_on(struct pass_state *p, struct buf *rendered)
{
    check(p->phase == PASS_READ);
    enum err err = pass_body_replace(&p->body, p->arena, rendered);
    return err == ERR_OK ? renew_digests(p) : err;
}

enum err pass_xml_delete(struct pass_state *p, struct s3_delete *ret_delete)
{
    enum err err = verify_digests(p);
    if (err == ERR_OK) {
        err = s3_delete_read(p->arena, buf_span(&p->body.whole), ret_delete);
    }
    if (err != ERR_OK) {
        return err;
    }
    struct buf rendered;
    buf_init(&rendered, PASS_COLLECT_MAX);
    s3_delete_render(ret_delete, &rendered);
    return send_on(p, &rendered);
}

enum err pass_xml_restore(struct pass_state *p)
{
    struct s3_restore restore;
    enum err err = verify_digests(p);
    if (err == ERR_OK) {
        err = s3_restore_read(p->arena, buf_span(&p->body.whole), &restore);
    }
    if (err != ERR_OK) {
        p->err_message = SPAN("Forebay accepts a RestoreRequest with Days, Tier and Description "
                              "only, not one that selects data or writes to another bucket");
        return err;
    }
    struct buf rendered;
    buf_init(&rendered, PASS_COLLECT_MAX);
    s3_restore_render(&restore, &rendered);
    return send_on(p, &rendered);
}
