// SPDX-License-Identifier: Apache-2.0
// Implements struct store_object: a version as run headers describe it. An object is one allocation
// with an atomic reference count. It never changes once it is shared. Any thread.
#include <stdlib.h>

#include "store/segment/segment_format.h"

static struct span object_copy(char **at, struct span s)
{
    struct span copy = {*at, s.len};
    if (s.len > 0) {
        memcpy(*at, s.ptr, s.len);
    }
    *at += s.len;
    return copy;
}

struct store_object *store_object_new(struct hash128 hash, struct span realm, struct span bucket,
                                      struct span key, struct span etag, struct span version_id,
                                      struct span headers, uint64_t size_bytes,
                                      uint32_t block_size_bytes, time_t last_modified)
{
    if (segment_run_header_len(realm, bucket, key, etag, version_id, headers, 0) == 0 ||
        block_size_bytes < STORE_BLOCK_SIZE_MIN || block_size_bytes > STORE_BLOCK_SIZE_MAX) {
        return NULL;
    }
    size_t len = realm.len + bucket.len + key.len + etag.len + version_id.len + headers.len;
    struct store_object *object = malloc(sizeof(*object) + len);
    check(object != NULL);
    char *at = (char *)(object + 1);
    atomic_init(&object->refs, 1);
    object->hash = hash;
    object->generation = 0;
    object->learnt_us = 0;
    object->size_bytes = size_bytes;
    object->block_size_bytes = block_size_bytes;
    object->last_modified = last_modified;
    object->realm = object_copy(&at, realm);
    object->bucket = object_copy(&at, bucket);
    object->key = object_copy(&at, key);
    object->etag = object_copy(&at, etag);
    object->version_id = object_copy(&at, version_id);
    object->headers = object_copy(&at, headers);
    check(at == (char *)(object + 1) + len);
    return object;
}

struct store_object *store_object_ref(struct store_object *object)
{
    unsigned before = atomic_fetch_add_explicit(&object->refs, 1, memory_order_relaxed);
    check(before > 0);
    return object;
}

void store_object_unref(struct store_object *object)
{
    if (object == NULL) {
        return;
    }
    unsigned before = atomic_fetch_sub_explicit(&object->refs, 1, memory_order_acq_rel);
    check(before > 0);
    if (before == 1) {
        free(object);
    }
}

struct store_object *store_object_with_generation(const struct store_object *object,
                                                  uint64_t generation)
{
    struct store_object *copy = store_object_new(
        object->hash, object->realm, object->bucket, object->key, object->etag, object->version_id,
        object->headers, object->size_bytes, object->block_size_bytes, object->last_modified);
    check(copy != NULL);
    copy->generation = generation;
    copy->learnt_us = object->learnt_us;
    return copy;
}

struct store_object *store_object_from_header(const struct run_header *header, uint64_t generation)
{
    struct store_object *object =
        store_object_new(header->hash, header->realm, header->bucket, header->key, header->etag,
                         header->version_id, header->headers, header->object_size_bytes,
                         header->block_size_bytes, (time_t)header->last_modified);
    if (object != NULL) {
        object->generation = generation;
    }
    return object;
}

uint64_t store_object_block_count(const struct store_object *object)
{
    return segment_run_object_blocks(object->size_bytes, object->block_size_bytes);
}
