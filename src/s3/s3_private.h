// SPDX-License-Identifier: Apache-2.0
// Private declarations of this room.
#ifndef FOREBAY_S3_S3_PRIVATE_H
#define FOREBAY_S3_S3_PRIVATE_H

#include "s3/s3.h"

#include <expat.h>
#include <openssl/sha.h>

#define SIGV4_REGION_MAX 128u
#define SIGV4_SERVICE_MAX 32u
// Longest scope of a signature, such as "20130524/us-east-1/s3/aws4_request".
#define SIGV4_SCOPE_MAX (8 + 1 + SIGV4_REGION_MAX + 1 + SIGV4_SERVICE_MAX + sizeof("/aws4_request"))

// Returns `s` without its first `offset` bytes. `s` must have at least `offset` bytes.
static inline struct span span_after(struct span s, size_t offset)
{
    return (struct span){s.ptr + offset, s.len - offset};
}

// Writes 32 bytes. `ret_mac` may be the same memory as `key`.
void sigv4_hmac_sha256(const void *key, size_t key_len, struct span data, uint8_t *ret_mac);

// --- s3_xml_parser.c -----------------------------------------------------------------------------

// A parser of expat with at most S3_XML_PARSER_MAX bytes of memory. It must not move.
struct s3_xml_parser {
    XML_Parser expat; // for handlers
    size_t used_bytes;
    bool is_full; // the document needed more memory
};

// `separator`: see XML_ParserCreate_MM(); NULL: namespaces are not resolved.
void s3_xml_parser_init(struct s3_xml_parser *parser, const char *encoding, const char *separator);
void s3_xml_parser_done(struct s3_xml_parser *parser);
// Returns false if the document is wrong, a handler has stopped the parser, or it is full. The
// caller has charged S3_XML_PARSER_MAX. A handler must not use another parser.
bool s3_xml_parser_feed(struct s3_xml_parser *parser, struct span piece, bool is_last) MUST_USE;
// Reads a whole document, and ends the parser. Charges its memory while it reads. *err is the error
// of the handlers, which stop the parser when they set it. Otherwise returns ERR_XML_TOO_LARGE if
// the parser was full, or ERR_MALFORMED_XML.
enum err s3_xml_parser_read(struct s3_xml_parser *parser, struct span document,
                            const enum err *err) MUST_USE;

// --- sigv4_keys.c --------------------------------------------------------------------------------

struct sigv4_key {
    uint8_t bytes[32];
    SHA256_CTX inner, outer; // SHA-256 states after the inner and the outer pad of HMAC
};

// Returns a signing key. It is either a key in the thread's cache, which stays valid until the next
// call, or *ret_own, which the caller must wipe.
const struct sigv4_key *sigv4_signing_key(struct span access_key, struct span secret,
                                          struct span date, struct span region, struct span service,
                                          struct sigv4_key *ret_own);
void sigv4_key_mac(const struct sigv4_key *key, struct span data, uint8_t *ret_mac);
#ifdef FOREBAY_FAULTS
// Returns how many entries of this thread's cache are not all zero, that is, have a key or leftover
// bytes of one.
unsigned sigv4_cached_keys(void);
#endif

// --- s3_request.c --------------------------------------------------------------------------------

bool s3_bucket_name_is_valid(struct span name);
// Finds the operations that the request could be if a server ignored all parameters but the one
// that names the operation. Each call returns the next one; *position starts at 0. Returns false
// after the last one.
bool s3_route_next(const struct s3_request *r, size_t *position, enum s3_operation *ret_operation);

// --- s3_effects.c --------------------------------------------------------------------------------

#define S3_COPY_SOURCE "x-amz-copy-source"
#define S3_RENAME_SOURCE "x-amz-rename-source"

// Returns true if the id of a version or upload, used in a path, would lead a file-based origin to
// the path of another key.
bool s3_id_climbs(struct span id);
// Appends `data` to the collected tag or text of a listing. `to` has room for `max` bytes. If
// `data` does not fit, it is dropped and *len becomes max + 1, which stops all later appends.
void s3_list_append(char *to, size_t max, size_t *len, struct span data);
// Counts the headers and query parameters with that name, in any case.
unsigned s3_name_count(const struct s3_request *r, const struct headers *headers, const char *name);
// Returns true for an x-amz-* header (in any case) that S3 accepts in a write. Each such header
// describes the object to write, or names a source.
bool s3_header_is_of_write(struct span name);
// Returns true if s3_header_is_of_write() is true for all x-amz-* headers.
bool s3_headers_are_of_write(const struct headers *headers);
// Returns true if the origin may unpack the body as an archive. The keys that such a request writes
// are only in the body.
bool s3_request_unpacks(const struct s3_request *r, const struct headers *headers);

#endif
