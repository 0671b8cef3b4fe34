// SPDX-License-Identifier: Apache-2.0
// Verifies clients and their rights: the table of access keys, the signature of a request, and the
// rights that it needs. No network, no clock (times are arguments). Views returned point into the
// caller's memory or arena.
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
    struct span bucket; // "*": any bucket
    struct span prefix; // "": any key
    unsigned ops;
};

struct access_keys_principal {
    struct span id, secret;
    const struct access_keys_allow *allow;
    unsigned allow_count;
    // Principals of one realm share cached bytes. Empty: the common realm.
    struct span realm;
    const struct sigv4_credentials *origin_credentials; // NULL: use the origin's own
};

// An immutable table with a reference count. A reload replaces it as a whole.
struct access_keys;
// Loads a YAML list of {id, secret, allow: [{bucket, prefix, ops: [read, list, write, delete,
// any]}], realm, origin_access_key_file, origin_secret_key_file, origin_session_token_file}. The
// three origin files are read during the call.
// A principal with origin keys and no realm gets a realm of its own, because its keys' rights say
// nothing about the rights of others. File modes must give others no access, and the group at most
// read access. At most ACCESS_KEYS_REALMS_MAX realms. Errors go to ret_errors as FILE:LINE:COL
// lines. On success it may hold warnings.
enum err access_keys_load(const char *path, struct access_keys **ret_access_keys,
                          struct buf *ret_errors) MUST_USE;
// The realms other than the common one, each once.
#define ACCESS_KEYS_REALMS_MAX 64u
const struct span *access_keys_realms(const struct access_keys *table, size_t *ret_count);
// Adds `numbers[i]` to the name of each realm, in the order of access_keys_realms(). The same realm
// with another number then shares nothing with it. Call it before any other thread sees `table`.
// ERR_NO_MEMORY.
enum err access_keys_number_realms(struct access_keys *table, const uint64_t *numbers) MUST_USE;
// Adds the realms that only `before` has. A later file may name them again, so writes must still
// reach what is cached for them. Call it before any other thread sees `table`. ERR_NO_MEMORY.
enum err access_keys_keep_realms(struct access_keys *table,
                                 const struct access_keys *before) MUST_USE;
struct access_keys *access_keys_ref(struct access_keys *table);
void access_keys_unref(struct access_keys *table);
// Finds a principal. Only the comparison of secrets needs constant time, so the look-up does not.
// If it returns NULL, the caller verifies against access_keys_dummy_secret(), so that both cases
// cost the same.
const struct access_keys_principal *access_keys_find(const struct access_keys *table,
                                                     struct span access_key);
struct span access_keys_dummy_secret(void);
// Returns true if the effect is allowed; the default is to deny. A listing is allowed if its prefix
// is under an allowed prefix. On a whole bucket only rows with an empty prefix grant anything. A
// key or prefix with ".." must also be allowed as the path that it stands for, and is denied if
// that path leaves its bucket.
bool access_keys_allowed(const struct access_keys_principal *p, const struct s3_effect *effect);
// Returns true if a listing may show the principal this name, by its bytes.
bool access_keys_may_see(const struct access_keys_principal *p, struct span bucket,
                         struct span name);

// --- auth_signature.c ----------------------------------------------------------------------------

// A request exactly as the client sent it.
struct auth_request {
    struct arena *arena;
    struct span method, target;
    const struct headers *headers;
    struct s3_request *s3; // its key is decoded again if the signature counts '+' as a space
};

// Verifies the signature over the raw request. An unknown access key costs the same work as a known
// one. Fills ret_claim as far as the request can be parsed. *ret_entry becomes the principal, or
// NULL. ret_signing_key has 32 bytes and verifies signed chunks. On refusal fills ret_detail.
enum err auth_signature_verify(const struct auth_request *r, const struct access_keys *table,
                               time_t now, struct sigv4_claim *ret_claim, uint8_t *ret_signing_key,
                               const struct access_keys_principal **ret_entry,
                               struct s3_error_detail *ret_detail) MUST_USE;

// --- auth_rights.c -------------------------------------------------------------------------------

// Returns ERR_OK if the principal has every right that the request needs. On refusal fills
// ret_detail, in the arena.
enum err auth_rights_judge(struct arena *arena, const struct access_keys_principal *p,
                           enum s3_operation operation, const struct s3_effects *effects,
                           struct s3_error_detail *ret_detail) MUST_USE;

#endif
