// SPDX-License-Identifier: Apache-2.0
// A version of an object, made from an origin's answer. Pure; any thread.
#ifndef FOREBAY_FILL_FILL_VERSION_H
#define FOREBAY_FILL_FILL_VERSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct object_key;
struct origin_fetch;
struct store_object;
struct store_sums;

// NULL when it cannot be described: its headers, ETag or version id are larger than a run can
// store. `known` may be NULL; the same version's checksums are kept where this answer has none. An
// answer that would name them and does not is kept in mind: the object has none.
struct store_object *fill_version_from_fetch(const struct object_key *key,
                                             const struct origin_fetch *f,
                                             const struct store_object *known);
// The lines of a version's headers that are checksums of the whole object; they stand last. Empty:
// none are known. They may say that there are none.
struct span fill_version_checksums(struct span headers);
// Are these the lines of an object that has none? Not to be confused with none being known.
bool fill_version_has_none(struct span checksums);
// Copies `object` with these lines as its checksums. NULL if they do not fit.
struct store_object *fill_version_with_checksums(const struct store_object *object,
                                                 struct span checksums);
// Packs these lines for an index record. A len of 0: nothing is known.
struct store_sums fill_version_sums(struct span checksums);
// Returns `object`, an answer about the version `described`, with that version's headers. Its
// checksums are its own, or those of `described` where it names none. NULL when they do not fit.
struct store_object *fill_version_described_by(const struct store_object *object,
                                               const struct store_object *described);
// Do two answers describe one upload of one version? True if both replay the same headers. Ignores
// the order of the headers, checksums, a tag count that one of them lacks (HEAD may leave it out)
// and the value of Expires (web servers compute it for each answer).
bool fill_version_is_alike(const struct store_object *a, const struct store_object *b);
// Likewise, whatever the values of Last-Modified are.
bool fill_version_is_alike_but_date(const struct store_object *a, const struct store_object *b);
// Returns a hash of the headers, which is the same for answers that are alike.
uint64_t fill_version_headers_hash(const struct store_object *object);

#endif
