// SPDX-License-Identifier: Apache-2.0
// Fresh or stale, by rule and record; and a version made from an origin's answer. Pure but for the
// record's age.

#include "proxy/proxy_private.h"

enum freshness_verdict freshness_check(const struct proxy_rule *rule, const struct store_view *view)
{
    if (view->rebuilt) {
        return FRESHNESS_STALE; // a rebuild may bring back what a write had removed
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

bool freshness_stale_allowed(const struct proxy_rule *rule, const struct store_view *view)
{
    if (rule->freshness == PROXY_FRESHNESS_STRICT || view->rebuilt || view->age_ms == UINT64_MAX) {
        return false;
    }
    uint64_t limit_ms = 0;
    return add_u64(rule->ttl_ms, rule->stale_if_error_ms, &limit_ms) && view->age_ms <= limit_ms;
}

// Checksums stand last among an object's headers, since only some replies may have them.
static const char CHECKSUM[] = "x-amz-checksum-";

struct span freshness_checksums(struct span headers)
{
    struct span rest = headers, line;
    while (rest.len > 0 && span_split(&rest, '\n', &line)) {
        if (span_starts_with(line, (struct span){CHECKSUM, sizeof(CHECKSUM) - 1})) {
            return (struct span){line.ptr, (size_t)(headers.ptr + headers.len - line.ptr)};
        }
    }
    return (struct span){NULL, 0};
}

static void render_checksums(struct buf *out, const struct headers *checksums)
{
    for (unsigned i = 0; i < checksums->count; i++) {
        struct span name = checksums->items[i].name;
        for (size_t j = 0; j < name.len; j++) {
            char c = name.ptr[j];
            buf_append_char(out, c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c);
        }
        buf_append_cstr(out, ": ");
        buf_append_span(out, checksums->items[i].value);
        buf_append_cstr(out, "\r\n");
    }
}

struct store_object *freshness_object_from_fetch(const struct object_key *key,
                                                 const struct origin_fetch *f,
                                                 const struct store_object *known)
{
    struct buf rendered;
    buf_init(&rendered, STORE_HEADERS_MAX);
    for (unsigned i = 0; i < f->headers.count; i++) {
        buf_append_span(&rendered, f->headers.items[i].name);
        buf_append_cstr(&rendered, ": ");
        buf_append_span(&rendered, f->headers.items[i].value);
        buf_append_cstr(&rendered, "\r\n");
    }
    if (f->checksums.count > 0) {
        render_checksums(&rendered, &f->checksums);
    } else if (known != NULL && known->etag.len > 0 && span_equal(known->etag, f->etag) &&
               known->size_bytes == f->size_bytes) {
        buf_append_span(&rendered, freshness_checksums(known->headers));
    }
    struct store_object *object = NULL;
    if (buf_ok(&rendered)) {
        object = store_object_new(key->hash, key->realm, key->bucket, key->key, f->etag,
                                  f->version_id, buf_span(&rendered), f->size_bytes,
                                  key->rule->block_size_bytes, f->last_modified);
    }
    buf_done(&rendered);
    return object;
}
