// SPDX-License-Identifier: Apache-2.0
// Builds the description of an object's version from an origin's answer, and compares descriptions.
// Pure; any thread.
#ifndef FOREBAY_FILL_FILL_VERSION_H
#define FOREBAY_FILL_FILL_VERSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct object_key;
struct origin_fetch;
struct store_object;

// Returns the description of the version that the answer `f` names. Returns NULL if the answer's
// headers, ETag or version id are larger than a run can store. `known` may be NULL. If it is the
// same version, the result has its checksums when the answer has none. If the answer had to name
// checksums and does not, the result says that the object has none.
struct store_object *fill_version_from_fetch(const struct object_key *key,
                                             const struct origin_fetch *f,
                                             const struct store_object *known);
// Returns a copy of `object` with these lines as its checksums, or NULL if they do not fit.
struct store_object *fill_version_with_checksums(const struct store_object *object,
                                                 struct span checksums);
// Replaces *object, a reference, by a copy with the checksums of `known`, if `known` names any for
// the same version and size and they fit. `known` may be NULL.
void fill_version_take_checksums(struct store_object **object, const struct store_object *known);
// Returns a copy of `object`, an answer about the version `described`, with that version's headers.
// The checksums are those of `object`, or those of `described` if `object` names none. Returns NULL
// if they do not fit.
struct store_object *fill_version_described_by(const struct store_object *object,
                                               const struct store_object *described);
// Returns true if two answers describe one upload of one version, which is so if both have the same
// headers. Ignores the order of the headers, checksums, a tag count that one of them lacks (HEAD
// may omit it) and the value of Expires (web servers compute it for each answer).
bool fill_version_is_alike(const struct store_object *a, const struct store_object *b);
// As fill_version_is_alike(), but ignores the value of Last-Modified too.
bool fill_version_is_alike_but_date(const struct store_object *a, const struct store_object *b);
// Returns a hash of the headers that is equal for answers that are alike.
uint64_t fill_version_headers_hash(const struct store_object *object);

#endif
