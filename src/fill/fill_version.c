// SPDX-License-Identifier: Apache-2.0
// A version of an object, made from an origin's answer.
#include "fill/fill_version.h"

#include <assert.h>

#include "fill/object_key.h"
#include "origin/origin.h"
#include "s3/s3.h"
#include "store/store.h"

static_assert(S3_SUMS_MAX == STORE_SUMS_MAX, "what is packed is kept");

// Checksums stand last among an object's headers, since only some replies may have them.
static const char CHECKSUM[] = "x-amz-checksum-";
// In their place, of an object that the origin has named none for though it was asked; never sent.
static const char NO_CHECKSUM[] = "x-amz-checksum-none: -\r\n";

struct span fill_version_checksums(struct span headers)
{
    struct span rest = headers, line;
    while (rest.len > 0 && span_split(&rest, '\n', &line)) {
        if (span_starts_with(line, (struct span){CHECKSUM, sizeof(CHECKSUM) - 1})) {
            return (struct span){line.ptr, (size_t)(headers.ptr + headers.len - line.ptr)};
        }
    }
    return (struct span){NULL, 0};
}

bool fill_version_has_none(struct span checksums)
{
    return span_equal_cstr(checksums, NO_CHECKSUM);
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

struct store_object *fill_version_from_fetch(const struct object_key *key,
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
    // S3 names them in answers to HEAD and of whole objects, not of ranges.
    bool has_none = f->ask_checksums && f->status == 200 && f->checksums.count == 0 &&
                    origin_capabilities(key->origin)->has_checksums;
    if (f->checksums.count > 0) {
        render_checksums(&rendered, &f->checksums);
    } else if (known != NULL && known->etag.len > 0 && span_equal(known->etag, f->etag) &&
               known->size_bytes == f->size_bytes) {
        buf_append_span(&rendered, fill_version_checksums(known->headers));
        has_none &= fill_version_checksums(known->headers).len == 0;
    }
    if (has_none && buf_span(&rendered).len + sizeof(NO_CHECKSUM) <= STORE_HEADERS_MAX) {
        buf_append_cstr(&rendered, NO_CHECKSUM);
    }
    struct store_object *object = NULL;
    if (buf_ok(&rendered)) {
        object = store_object_new(key->hash, key->realm, key->bucket, key->key, f->etag,
                                  f->version_id, buf_span(&rendered), f->size_bytes,
                                  key->limits.block_size_bytes, f->last_modified);
    }
    buf_done(&rendered);
    return object;
}

struct store_object *fill_version_with_checksums(const struct store_object *object,
                                                 struct span checksums)
{
    struct buf rendered;
    buf_init(&rendered, STORE_HEADERS_MAX);
    struct span own = object->headers;
    own.len -= fill_version_checksums(own).len;
    buf_append_span(&rendered, own);
    buf_append_span(&rendered, checksums);
    struct store_object *copy = NULL;
    if (buf_ok(&rendered)) {
        copy =
            store_object_new(object->hash, object->realm, object->bucket, object->key, object->etag,
                             object->version_id, buf_span(&rendered), object->size_bytes,
                             object->block_size_bytes, object->last_modified);
    }
    if (copy != NULL) {
        copy->generation = object->generation;
    }
    buf_done(&rendered);
    return copy;
}

struct store_sums fill_version_sums(struct span checksums)
{
    struct store_sums sums = {0};
    sums.len = (uint8_t)s3_sums_pack(checksums, sums.bytes);
    return sums;
}
