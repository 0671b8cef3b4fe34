// SPDX-License-Identifier: Apache-2.0
// A key on its way between workers: what it takes to ask the origin for an object and to find it in
// the store. Immutable, refcounted (atomic); any thread.
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

// How an object is kept.
struct object_limits {
    bool cache;                     // false: its runs are not stored
    uint64_t max_object_size_bytes; // larger ones are not stored; 0: no limit
    uint32_t block_size_bytes;
    unsigned group; // store.h
};

struct object_key {
    atomic_uint refs;
    uint32_t room; // bytes behind it, for the names
    struct hash128 hash;
    struct span realm, bucket,
        key; // realm holds the origin's name and the bucket's epoch too; bucket as the origin calls
             // it
    size_t realm_own_len; // of realm, without origin and epoch
    uint64_t epoch;
    struct origin *origin;
    struct object_limits limits;
    const struct sigv4_credentials *credentials; // towards the origin; NULL: its own
    struct access_keys *table;                   // reference that keeps them alive, or NULL
};

// Copies the names of `from` (refs and hash are not read) and takes a reference to its table. The
// name that a key is held under is realm, origin and, once the bucket has one, its epoch.
struct object_key *object_key_new(const struct store *store, const struct object_key *from);
// The same in the memory of *spare, which may be NULL and is used up.
struct object_key *object_key_new_in(struct object_key **spare, const struct store *store,
                                     const struct object_key *from);
struct object_key *object_key_ref(struct object_key *key);
void object_key_unref(struct object_key *key); // NULL is fine
// The same; was it the last reference, *spare is memory for another afterwards, which free() gives
// back.
void object_key_unref_to(struct object_key *key, struct object_key **spare);
// Is the origin asked in the same way for both, which are of one object?
bool object_key_asks_alike(const struct object_key *a, const struct object_key *b);

#endif
