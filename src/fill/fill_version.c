// SPDX-License-Identifier: Apache-2.0
// Builds the description of an object's version from an origin's answer, and compares descriptions.
#include "fill/fill_version.h"

#include "fill/checksums.h"
#include "fill/object_key.h"
#include "origin/origin.h"
#include "s3/s3.h"
#include "store/store.h"

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
    bool is_known = known != NULL && known->etag.len > 0 && span_equal(known->etag, f->etag) &&
                    known->size_bytes == f->size_bytes;
    checksums_append(&rendered, key->origin, f, is_known ? known : NULL);
    struct store_object *object = NULL;
    if (buf_ok(&rendered)) {
        object = store_object_new(key->hash, key->realm, key->bucket, key->key, f->etag,
                                  f->version_id, buf_span(&rendered), f->size_bytes,
                                  key->limits.block_size_bytes, f->last_modified);
    }
    buf_done(&rendered);
    return object;
}

// Returns all headers except the checksums.
static struct span plain_headers(const struct store_object *object)
{
    struct span plain = object->headers;
    plain.len -= checksums_lines(plain).len;
    return plain;
}

// Returns a copy of `object` with the headers of `described` and these checksums.
static struct store_object *put_together(const struct store_object *object,
                                         const struct store_object *described,
                                         struct span checksums)
{
    struct buf rendered;
    buf_init(&rendered, STORE_HEADERS_MAX);
    buf_append_span(&rendered, plain_headers(described));
    buf_append_span(&rendered, checksums);
    struct store_object *copy = NULL;
    if (buf_ok(&rendered)) {
        copy =
            store_object_new(object->hash, object->realm, object->bucket, object->key, object->etag,
                             described->version_id, buf_span(&rendered), object->size_bytes,
                             object->block_size_bytes, described->last_modified);
    }
    if (copy != NULL) {
        copy->generation = described->generation;
        copy->learnt_us = described->learnt_us;
    }
    buf_done(&rendered);
    return copy;
}

struct store_object *fill_version_with_checksums(const struct store_object *object,
                                                 struct span checksums)
{
    return put_together(object, object, checksums);
}

void fill_version_take_checksums(struct store_object **object, const struct store_object *known)
{
    check(*object != NULL);
    struct store_object *with =
        checksums_are_named(known, *object)
            ? fill_version_with_checksums(*object, checksums_lines(known->headers))
            : NULL;
    if (with != NULL) {
        store_object_unref(*object);
        *object = with;
    }
}

struct store_object *fill_version_described_by(const struct store_object *object,
                                               const struct store_object *described)
{
    struct span checksums = checksums_lines(object->headers);
    return put_together(object, described,
                        checksums.len > 0 ? checksums : checksums_lines(described->headers));
}

// --- two answers about one version ---------------------------------------------------------------

struct header_line {
    struct span name, value;
};

static bool next_line(struct span *rest, struct header_line *ret)
{
    struct span line;
    if (rest->len == 0 || !span_split(rest, '\n', &line)) {
        return false;
    }
    size_t colon = span_find(line, ':');
    ret->name = (struct span){line.ptr, colon};
    ret->value = colon < line.len
                     ? span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1})
                     : (struct span){NULL, 0};
    return true;
}

enum header_presence { HEADER_ABSENT, HEADER_OTHER, HEADER_SAME };

static enum header_presence look_for(struct span headers, const struct header_line *wanted)
{
    enum header_presence found = HEADER_ABSENT;
    struct header_line line;
    while (found != HEADER_SAME && next_line(&headers, &line)) {
        if (span_equal_nocase(line.name, wanted->name)) {
            found = span_equal(line.value, wanted->value) ? HEADER_SAME : HEADER_OTHER;
        }
    }
    return found;
}

static bool is_expires(struct span name)
{
    return span_equal_nocase(name, SPAN("Expires"));
}

static bool is_tag_count(struct span name)
{
    return span_equal_nocase(name, SPAN("x-amz-tagging-count"));
}

static bool is_date(struct span name)
{
    return span_equal_nocase(name, SPAN("Last-Modified"));
}

static bool has_all_of(struct span headers, struct span wanted, bool but_date)
{
    struct header_line line;
    bool has = true;
    while (has && next_line(&wanted, &line)) {
        enum header_presence found = look_for(headers, &line);
        has = found == HEADER_SAME || (found == HEADER_OTHER && is_expires(line.name)) ||
              (found == HEADER_OTHER && but_date && is_date(line.name)) ||
              (found == HEADER_ABSENT && is_tag_count(line.name));
    }
    return has;
}

bool fill_version_is_alike(const struct store_object *a, const struct store_object *b)
{
    struct span left = plain_headers(a), right = plain_headers(b);
    return span_equal(left, right) ||
           (has_all_of(left, right, false) && has_all_of(right, left, false));
}

bool fill_version_is_alike_but_date(const struct store_object *a, const struct store_object *b)
{
    struct span left = plain_headers(a), right = plain_headers(b);
    return has_all_of(left, right, true) && has_all_of(right, left, true);
}

uint64_t fill_version_headers_hash(const struct store_object *object)
{
    struct span rest = plain_headers(object);
    struct header_line line;
    uint64_t sum = 0;
    while (next_line(&rest, &line)) {
        if (!is_expires(line.name) && !is_tag_count(line.name)) {
            sum += hash64(line.value.ptr, line.value.len, hash64(line.name.ptr, line.name.len, 0));
        }
    }
    return sum;
}
