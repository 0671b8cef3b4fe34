// SPDX-License-Identifier: Apache-2.0
// Shared by the files of this room.
#ifndef FOREBAY_S3_S3_PRIVATE_H
#define FOREBAY_S3_S3_PRIVATE_H

#include "s3/s3.h"

#include <openssl/sha.h>

#define SIGV4_REGION_MAX 128u
#define SIGV4_SERVICE_MAX 32u
// "20130524/us-east-1/s3/aws4_request"
#define SIGV4_SCOPE_MAX (8 + 1 + SIGV4_REGION_MAX + 1 + SIGV4_SERVICE_MAX + sizeof("/aws4_request"))

// Returns `s` without its first `offset` bytes; it has at least as many.
static inline struct span span_after(struct span s, size_t offset)
{
    return (struct span){s.ptr + offset, s.len - offset};
}

// 32 bytes; `ret_mac` may be `key`.
void sigv4_hmac_sha256(const void *key, size_t key_len, struct span data, uint8_t *ret_mac);

// --- sigv4_keys.c --------------------------------------------------------------------------------

struct sigv4_key {
    uint8_t bytes[32];
    SHA256_CTX inner, outer; // of HMAC: what its two pads leave
};

// The thread's own, good until it asks for the next one, or the caller's, who wipes it.
const struct sigv4_key *sigv4_signing_key(struct span access_key, struct span secret,
                                          struct span date, struct span region, struct span service,
                                          struct sigv4_key *ret_own);
void sigv4_key_mac(const struct sigv4_key *key, struct span data, uint8_t *ret_mac);
#ifdef FOREBAY_FAULTS
// How many of them, or what was left of them, this thread holds.
unsigned sigv4_cached_keys(void);
#endif

// --- s3_request.c --------------------------------------------------------------------------------

bool s3_bucket_name_is_valid(struct span name);
// The operations that a request could be if its other parameters did not matter, one by one;
// *position starts at 0.
bool s3_route_next(const struct s3_request *r, size_t *position, enum s3_operation *ret_operation);

// --- s3_effects.c --------------------------------------------------------------------------------

#define S3_COPY_SOURCE "x-amz-copy-source"
#define S3_RENAME_SOURCE "x-amz-rename-source"

// Would an origin on files that puts the id of a version or an upload into a path be led out of its
// key's place?
bool s3_id_climbs(struct span id);
// To a piece of a listing that is MAX bytes at most. What does not fit is left out, and *len is
// above MAX from then on.
void s3_list_append(char *to, size_t max, size_t *len, struct span data);
// How often that name, in any case, stands among the headers and the parameters.
unsigned s3_name_count(const struct s3_request *r, const struct headers *headers, const char *name);
// Is that an x-amz-* header, in any case, which S3 takes with a write? Each says something of the
// object that is written, or names a source.
bool s3_header_is_of_write(struct span name);
bool s3_headers_are_of_write(const struct headers *headers); // all x-amz-* of them
// Does its body unpack into keys that only it names?
bool s3_request_unpacks(const struct s3_request *r, const struct headers *headers);

#endif
