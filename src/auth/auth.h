// SPDX-License-Identifier: Apache-2.0
// Verifies clients and their rights: the table of access keys, the signature of a request, and the
// rights that the request needs. No network, no clock (times are arguments). Returned views point
// into the caller's memory or arena.
#ifndef FOREBAY_AUTH_AUTH_H
#define FOREBAY_AUTH_AUTH_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/headers.h"
#include "s3/s3.h"

// --- access_keys.c: the table of principals for auth.mode verify ---------------------------------

struct access_keys_allow {
    struct span bucket; // "*" means any bucket
    struct span prefix; // "" means any key
    unsigned ops;
};

struct access_keys_principal {
    struct span id, secret;
    const struct access_keys_allow *allow;
    unsigned allow_count;
    // Principals of one realm share cached bytes. Empty for the common realm.
    struct span realm;
    // Credentials for this principal's requests at the origin. NULL: the origin's own apply.
    const struct sigv4_credentials *origin_credentials;
};

// An immutable table of principals with a reference count. A reload replaces the whole table.
struct access_keys;
// Loads a YAML list of {id, secret, allow: [{bucket, prefix, ops: [read, list, write, delete,
// any]}], realm, origin_access_key_file, origin_secret_key_file, origin_session_token_file}. Reads
// the three origin files during the call.
// A principal with its own origin keys but no realm gets a realm of its own, because other
// principals may lack the rights of those keys. The mode of each file must give others no access,
// and the group at most read access. There may be at most ACCESS_KEYS_REALMS_MAX realms.
// ret_errors gets errors as FILE:LINE:COL lines. After success it may hold warnings.
enum err access_keys_load(const char *path, struct access_keys **ret_access_keys,
                          struct buf *ret_errors) MUST_USE;
// Returns all realms except the common one, each once.
#define ACCESS_KEYS_REALMS_MAX 64u
const struct span *access_keys_realms(const struct access_keys *table, size_t *ret_count);
// Adds `numbers[i]` to the name of each realm, in the order of access_keys_realms(). A realm that
// gets another number later shares nothing with its earlier cached bytes. Call it before any other
// thread sees `table`. Returns ERR_NO_MEMORY if memory is short.
enum err access_keys_number_realms(struct access_keys *table, const uint64_t *numbers) MUST_USE;
// Adds the realms that `before` has and `table` lacks. A later file may name them again, so a write
// must still invalidate their cached objects. Call it before any other thread sees `table`. Returns
// ERR_NO_MEMORY if memory is short.
enum err access_keys_keep_realms(struct access_keys *table,
                                 const struct access_keys *before) MUST_USE;
struct access_keys *access_keys_ref(struct access_keys *table);
void access_keys_unref(struct access_keys *table);
// Finds a principal by its id, in a time that depends on the id, because only secrets need a
// constant time. If it returns NULL, the caller verifies against access_keys_dummy_secret(), so
// that an unknown id takes as long as a known one.
const struct access_keys_principal *access_keys_find(const struct access_keys *table,
                                                     struct span access_key);
struct span access_keys_dummy_secret(void);
// Returns true if an allow rule grants the effect. A listing needs a rule whose prefix is the start
// of the listing's prefix. An effect on a whole bucket needs a rule with an empty prefix. A key
// must also be allowed as each path that a file-based origin may make of it, and is denied if such
// a path leaves its bucket. The same holds for a listing's prefix with "..".
bool access_keys_allowed(const struct access_keys_principal *p, const struct s3_effect *effect);
// Returns true if a listing may show this name to the principal. The name is compared by its bytes.
bool access_keys_may_see(const struct access_keys_principal *p, struct span bucket,
                         struct span name);
// Returns true if a list of buckets may show this one: some rule grants a right in it. An empty
// name stands for any bucket.
bool access_keys_may_see_bucket(const struct access_keys_principal *p, struct span bucket);

// --- auth_signature.c ----------------------------------------------------------------------------

// A request exactly as the client sent it.
struct auth_request {
    struct arena *arena;
    struct span method, target;
    const struct headers *headers;
    struct s3_request *s3; // changed if the signature counts '+' as a space in the key
};

// Verifies the signature over the raw request. An unknown access key costs the same work as a known
// one. Fills ret_claim as far as the request can be parsed. *ret_entry becomes the principal if the
// signature is right, even if the request is refused then. ret_signing_key gets the 32 bytes for
// verifying signed chunks. On refusal, fills ret_detail.
enum err auth_signature_verify(const struct auth_request *r, const struct access_keys *table,
                               time_t now, struct sigv4_claim *ret_claim, uint8_t *ret_signing_key,
                               const struct access_keys_principal **ret_entry,
                               struct s3_error_detail *ret_detail) MUST_USE;

// --- auth_rights.c -------------------------------------------------------------------------------

// Returns ERR_OK if the principal has every right that the request needs. On refusal, fills
// ret_detail, in the arena.
enum err auth_rights_judge(struct arena *arena, const struct access_keys_principal *p,
                           enum s3_operation operation, const struct s3_effects *effects,
                           struct s3_error_detail *ret_detail) MUST_USE;

#endif
