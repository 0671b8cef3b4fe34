// SPDX-License-Identifier: Apache-2.0
// Object keys are built once and then shared by reference between workers. The key of a hit is not
// shared, so the next hit reuses its memory.
#include "fill/object_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/auth.h"
#include "base/check.h"
#include "fill/fill_private.h"

// Minimum bytes for the names of a key, so that the memory most likely fits the next key too.
#define KEY_ROOM_MIN 256u

struct object_key *object_key_ref(struct object_key *key)
{
    unsigned before = atomic_fetch_add_explicit(&key->refs, 1, memory_order_relaxed);
    check(before > 0);
    return key;
}

// Drops a reference. Returns true if it was the last one.
static bool unref(struct object_key *key)
{
    if (key == NULL) {
        return false;
    }
    unsigned before = atomic_fetch_sub_explicit(&key->refs, 1, memory_order_acq_rel);
    check(before > 0);
    if (before != 1) {
        return false;
    }
    access_keys_unref(key->table);
    return true;
}

void object_key_unref(struct object_key *key)
{
    if (unref(key)) {
        free(key);
    }
}

void object_key_unref_to(struct object_key *key, struct object_key **spare)
{
#ifdef FOREBAY_ASAN // with a real free(), the sanitizer reports a later use
    (void)spare;
    object_key_unref(key);
#else
    if (unref(key)) {
        free(*spare);
        *spare = key;
    }
#endif
}

bool object_key_asks_alike(const struct object_key *a, const struct object_key *b)
{
    return a->origin == b->origin && a->credentials == b->credentials && a->table == b->table &&
           a->limits.cache == b->limits.cache &&
           a->limits.max_object_size_bytes == b->limits.max_object_size_bytes &&
           a->limits.block_size_bytes == b->limits.block_size_bytes &&
           a->limits.group == b->limits.group;
}

// Returns a zeroed key with room for at least `len` bytes of names.
static struct object_key *key_alloc(struct object_key **spare, size_t len)
{
    struct object_key *k = *spare;
    *spare = NULL;
    if (k == NULL || k->room < len) {
        free(k);
        uint32_t room = (uint32_t)max_u64(len, KEY_ROOM_MIN);
        k = malloc(sizeof(*k) + room);
        check(k != NULL);
        k->room = room;
    }
    check(k->room >= len);
    *k = (struct object_key){.room = k->room};
    return k;
}

static char *key_copy(char *at, struct span from, struct span *ret)
{
    if (from.len > 0) {
        memcpy(at, from.ptr, from.len);
    }
    *ret = (struct span){at, from.len};
    return at + from.len;
}

// --- the stored realm ----------------------------------------------------------------------------

// The stored realm is the realm, '|' and the origin's name. The origin's number and the bucket's
// epoch follow, unless they are 0, in hexadecimal, each after a byte that no name contains.
#define BEFORE_NUMBER '\001'
#define BEFORE_EPOCH '\0'
#define MARKED_MAX (1 + 16 + 1)

bool object_key_realm_is_of(struct span realm, const struct origin *origin)
{
    struct span name = span_from_cstr(origin_name(origin));
    realm.len = span_find(realm, BEFORE_EPOCH);
    realm.len = span_find(realm, BEFORE_NUMBER);
    return realm.len > name.len && realm.ptr[realm.len - name.len - 1] == '|' &&
           span_ends_with(realm, name);
}

uint64_t object_key_realm_epoch(struct span realm)
{
    uint64_t epoch = 0;
    for (size_t i = span_find(realm, BEFORE_EPOCH) + 1; i < realm.len; i++) {
        epoch = epoch << 4 | (uint64_t)hex_digit(realm.ptr[i]);
    }
    return epoch;
}

// Writes `before` and the value to ret_text. Returns them; returns nothing for 0.
static struct span marked(char before, uint64_t value, char ret_text[MARKED_MAX])
{
    if (value == 0) {
        return (struct span){0};
    }
    int len = snprintf(ret_text + 1, MARKED_MAX - 1, "%llx", (unsigned long long)value);
    ret_text[0] = before;
    return (struct span){ret_text, 1 + (size_t)len};
}

struct object_key *object_key_new_in(struct object_key **spare, const struct store *store,
                                     const struct object_key *from)
{
    struct span name = span_from_cstr(origin_name(from->origin));
    char number_text[MARKED_MAX], epoch_text[MARKED_MAX];
    struct span number = marked(BEFORE_NUMBER, origin_number(from->origin), number_text);
    struct span epoch = marked(BEFORE_EPOCH, from->epoch, epoch_text);
    size_t realm_len = from->realm.len + 1 + name.len + number.len + epoch.len;
    struct object_key *k = key_alloc(spare, realm_len + from->bucket.len + from->key.len);
    atomic_init(&k->refs, 1);
    char *at = (char *)(k + 1);
    struct span piece;
    k->realm = (struct span){at, realm_len};
    k->realm_own_len = from->realm.len;
    at = key_copy(at, from->realm, &piece);
    *at++ = '|';
    at = key_copy(at, name, &piece);
    at = key_copy(at, number, &piece);
    at = key_copy(at, epoch, &piece);
    at = key_copy(at, from->bucket, &k->bucket);
    at = key_copy(at, from->key, &k->key);
    check(at <= (char *)(k + 1) + k->room);
    k->hash = store_hash(store, k->realm, k->bucket, k->key);
    k->epoch = from->epoch;
    k->origin = from->origin;
    k->limits = from->limits;
    k->credentials = from->credentials;
    k->table = from->table != NULL ? access_keys_ref(from->table) : NULL;
    return k;
}

struct object_key *object_key_new(const struct store *store, const struct object_key *from)
{
    struct object_key *none = NULL;
    return object_key_new_in(&none, store, from);
}

static struct object_key *key_as(const struct store *store, const struct object_key *key,
                                 struct span realm, uint64_t epoch)
{
    struct object_key from = {.realm = realm,
                              .bucket = key->bucket,
                              .key = key->key,
                              .epoch = epoch,
                              .origin = key->origin,
                              .limits = key->limits,
                              .credentials = key->credentials,
                              .table = key->table};
    return object_key_new(store, &from);
}

struct object_key *object_key_in_epoch(const struct fill_worker *fw, const struct object_key *key,
                                       uint64_t epoch)
{
    struct span realm = {key->realm.ptr, key->realm_own_len};
    return key_as(fw->room->options.store, key, realm, epoch);
}

struct fill_worker *object_key_owner(const struct fill_worker *fw, const struct object_key *key,
                                     uint64_t first_byte)
{
    const struct fill_room *room = fw->room;
    check(room->worker_count > 0 && room->options.stripe_bytes > 0);
    uint64_t stripe = first_byte / room->options.stripe_bytes;
    return &room->workers[(key->hash.lo + stripe) % room->worker_count];
}
