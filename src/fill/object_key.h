// SPDX-License-Identifier: Apache-2.0
// The key of an object, as workers pass it to each other. It contains everything that is needed to
// request the object from the origin and to find it in the store. Immutable, with an atomic
// reference count; any thread may use it.
#ifndef FOREBAY_FILL_OBJECT_KEY_H
#define FOREBAY_FILL_OBJECT_KEY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash.h"

struct access_keys;
struct origin;
struct sigv4_credentials;
struct store;

// The cache rules that apply to an object.
struct object_limits {
    bool cache;                     // false: runs of the object are not stored
    uint64_t max_object_size_bytes; // larger objects are not stored; 0: no limit
    uint32_t block_size_bytes;
    unsigned group; // number of the object's group in the store's policy; see store.h
};

struct object_key {
    atomic_uint refs;
    uint32_t room; // bytes of memory after the struct, for the names
    struct hash128 hash;
    // `realm` includes the origin's name and the bucket's epoch. `bucket` is the origin's name for
    // it.
    struct span realm, bucket, key;
    size_t realm_own_len; // length of the realm alone, without origin and epoch
    uint64_t epoch;
    struct origin *origin;
    struct object_limits limits;
    // The client's credentials for the origin. NULL: Forebay uses the origin's own.
    const struct sigv4_credentials *credentials;
    struct access_keys *table; // reference, keeps the credentials valid; or NULL
};

// Returns a key with copies of the names in `from` and a reference to its table. Does not read
// `refs` and `hash` of `from`. The new hash covers realm, origin, bucket, key and, if the bucket
// has one, the bucket's epoch.
struct object_key *object_key_new(const struct store *store, const struct object_key *from);
// As object_key_new(), but reuses the memory in *spare, which may be NULL. Sets *spare to NULL.
struct object_key *object_key_new_in(struct object_key **spare, const struct store *store,
                                     const struct object_key *from);
struct object_key *object_key_ref(struct object_key *key);
void object_key_unref(struct object_key *key); // NULL is fine
// As object_key_unref(), but the last reference leaves the memory in *spare, for another key. The
// caller releases it with free().
void object_key_unref_to(struct object_key *key, struct object_key **spare);
// Returns true if Forebay sends the origin the same requests for both keys and applies the same
// rule. Both keys must name the same object.
bool object_key_asks_alike(const struct object_key *a, const struct object_key *b);
// Returns true if an object with this stored realm, as in object_key.realm, came from the origin.
bool object_key_realm_is_of(struct span realm, const struct origin *origin);
// Returns the epoch in a stored realm: that of the bucket when the object's key was built.
uint64_t object_key_realm_epoch(struct span realm);

#endif
