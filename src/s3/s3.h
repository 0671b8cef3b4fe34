// SPDX-License-Identifier: Apache-2.0
// The S3 dialect: routing of a request to an operation, error documents, the XML that we read and
// write, aws-chunked bodies, SigV4 signing and verification. Pure: no I/O, no threads, no clock
// (times are arguments). Returned views point into the caller's memory or arena.
#ifndef FOREBAY_S3_S3_H
#define FOREBAY_S3_S3_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/date.h"
#include "base/error.h"
#include "base/headers.h"
#include "s3/s3_uri.h"

// --- s3_request.c: method + host + target -> operation, bucket, key ------------------------------

#define S3_KEY_MAX 1024 // bytes, after decoding (S3 user guide)
#define S3_QUERY_PARAMS_MAX 64
#define S3_XML_BODY_MAX (8u << 20)
#define S3_XML_PARSER_MAX (256u << 10) // memory of a parser, without what it has reported

// Operations, under the names of the S3 API ("GetObject"). operations.def lists them as
// S3_OPERATION(name, flags, rights, scope).
enum s3_operation {
#define S3_OPERATION(name, flags, rights, scope) S3_##name,
#include "s3/operations.def"
#undef S3_OPERATION
    S3_OPERATION_COUNT_
};

enum s3_operation_flags {
    S3_OP_READ = 1,        // changes nothing at the origin, like GET and HEAD
    S3_OP_CHANGES_KEY = 2, // may change the key or bucket that its scope names
    S3_OP_LISTING = 4,     // ListObjects, ListObjectsV2
    S3_OP_BODY = 8,        // carries object data (PutObject, UploadPart)
    S3_OP_CACHEABLE = 16   // a GetObject or HeadObject that the cache may answer
};

// A query parameter, decoded.
struct s3_param {
    struct span name, value;         // percent-decoded once; a raw '+' becomes a space
    struct span raw_name, raw_value; // as sent
    bool has_value;                  // false for "name" without a '='
};

enum s3_host_kind { S3_HOST_IP, S3_HOST_LOCALHOST, S3_HOST_DOMAIN, S3_HOST_OTHER };

struct s3_request {
    enum s3_operation operation;
    unsigned flags;     // flags of the operation
    struct span method; // "GET"
    struct span bucket; // empty if the request names no bucket, such as ListBuckets
    struct span key;    // decoded bytes, never normalised; empty if the request names no key
    bool virtual_host;  // the bucket came from the Host header
    enum s3_host_kind host_kind;
    struct span raw_path; // the target as sent, up to '?'; in virtual-host style the bucket is not
                          // part of it
    struct span raw_query;
    struct s3_param params[S3_QUERY_PARAMS_MAX];
    unsigned param_count;
    bool presigned;         // the query has X-Amz-Signature or AWSAccessKeyId
    struct span version_id; // only if has_version_id
    bool has_version_id;
    uint64_t part_number; // ?partNumber=N on GET/HEAD
    bool has_part_number;
    bool has_response_overrides; // response-content-type and similar

    // Why the cache must not answer this GET or HEAD of a key: "sub-resource", "sse-c",
    // "expected-owner", "payer", "version", ... NULL if the cache may answer. "payer" is set only
    // if the request has no other reason, except a part number. The request then keeps
    // S3_OP_CACHEABLE, because the configuration may say that Forebay pays.
    const char *bypass_reason;
};

// The configured domains (s3.domains) of virtual-host requests, whose Host is "BUCKET.DOMAIN". IP
// addresses and localhost need no entry.
struct s3_domains {
    const struct span *suffixes;
    unsigned count;
};

// Parses the Host header and returns its kind. In virtual-host style ("b.localhost", "b.127.0.0.1",
// "b.<domain>") *ret_bucket becomes the bucket's name, which may contain dots; otherwise it is
// empty. If several domains fit, the longest one decides. The port and one trailing dot
// ("b.localhost.:9000") are ignored. S3_HOST_OTHER means that the name is neither an IP address,
// localhost nor one of `domains`. Without authentication (auth.mode open) such a request is
// refused.
enum s3_host_kind s3_host_parse(struct span host, const struct s3_domains *domains,
                                struct span *ret_bucket);

// Resets the request to an empty one.
void s3_request_clear(struct s3_request *r);
// Routes a request. `target` is the raw request target in origin form. The headers for copy source,
// SSE-C, expected owner and payer are read too. A request with an unknown method or query parameter
// becomes S3_Unknown, which is passed through to the origin. Its flag is S3_OP_READ for GET and
// HEAD. For any other method the flag is S3_OP_CHANGES_KEY, so that the request invalidates.
// Errors: ERR_INVALID_URI (broken escape), ERR_KEY_TOO_LONG, ERR_INVALID_BUCKET_NAME,
// ERR_INVALID_ARGUMENT (partNumber), ERR_NO_MEMORY.
enum err s3_request_parse(struct arena *arena, struct span method, struct span host,
                          struct span target, const struct headers *headers,
                          const struct s3_domains *domains,
                          struct s3_request *ret_request) MUST_USE;
// Returns true for a header that does not change the answer to a read: a header of the signature,
// of the client's library or of a checksum.
bool s3_header_is_neutral(struct span name);

const char *s3_operation_name(enum s3_operation operation);
// Returns the first parameter whose decoded name is `name`; NULL if there is none.
const struct s3_param *s3_param_find(const struct s3_request *r, const char *name);

// Returns true if values under this name are secret, such as a session token or a customer's
// encryption key. `name` may be the name of a header, or of a query parameter, because presigning
// moves headers into the query.
bool s3_name_is_secret(struct span name);

// Decodes the key again with each raw '+' as a space. Call it if the signature matches only with
// that reading (sigv4_mismatch.plus_is_space). After it, the request bypasses the cache. Errors:
// ERR_INVALID_URI, ERR_NO_MEMORY.
enum err s3_request_plus_is_space(struct arena *arena, struct s3_request *r) MUST_USE;
// --- s3_effects.c: what a request may read, write, delete and list -------------------------------

// Rights of a principal. ANY allows what none of the other rights allows. It includes none of them.
enum s3_allow_ops {
    S3_ALLOW_READ = 1,
    S3_ALLOW_LIST = 2,
    S3_ALLOW_WRITE = 4,
    S3_ALLOW_DELETE = 8,
    S3_ALLOW_ANY = 16
};

enum s3_scope {
    S3_SCOPE_SERVICE, // no bucket. LIST may be on any bucket; each other right must be on "*"
    S3_SCOPE_BUCKET,  // the whole bucket
    S3_SCOPE_PREFIX,  // all keys that begin with `key`
    S3_SCOPE_KEY,     // one key
    // An unknown part of the bucket. One of the needed rights, on any prefix, is enough at this
    // point. If the request names keys in its body, they are checked once the body has been read.
    S3_SCOPE_SOMEWHERE,
};

// One effect that a request may have at the origin, and the rights that it needs.
struct s3_effect {
    unsigned rights; // all of these are needed; for S3_SCOPE_SOMEWHERE only one of them
    enum s3_scope scope;
    struct span bucket, key;
    bool changes; // cached data in this scope becomes out of date
};

// A second key that a request names, in the header x-amz-copy-source or x-amz-rename-source. A
// presigned request may name it in a query parameter instead.
struct s3_source {
    bool is_there;
    // false for the ARN of an access point; such a copy is refused if rights are checked
    bool is_understood;
    bool is_rename;
    struct span bucket; // empty for a rename whose value is a key without a bucket
    struct span key;
    struct span version; // only if has_version
    bool has_version;
};

// most effects of a request: its target, a copy's source, the readings of a rename's source
#define S3_EFFECTS_MAX 5
struct s3_effects {
    struct s3_effect items[S3_EFFECTS_MAX];
    unsigned count;
    struct s3_source copy, rename;
    // The outcome tells the client about existing objects, so the request needs READ in addition,
    // for the keys in its body too.
    bool asks_what_is_there;
};

// Finds the effects of a routed request from its method, path, parameters and headers. Assumes the
// worst of what it does not know: an unknown read needs the rights of every operation that it could
// be, and an unknown write needs ANY. `origin_bucket` is the bucket's name at the origin.
// Errors: ERR_INVALID_ARGUMENT (a source that is repeated, unreadable, or not allowed in this
// request), ERR_KEY_TOO_LONG, ERR_NO_MEMORY.
enum err s3_effects_find(struct arena *arena, const struct s3_request *r,
                         const struct headers *headers, struct span origin_bucket,
                         struct s3_effects *ret_effects) MUST_USE;
// A key as a file-based origin would read it. Such an origin stores each object as a file. Empty
// and "." segments are removed, and ".." removes the segment before it. A trailing '/' stays.
struct s3_path {
    char text[S3_KEY_MAX + 1];
    size_t len;
    bool differs; // the path's bytes are not those of the key
    bool climbs;  // the key has a ".." segment
    bool leaves;  // a ".." segment leads out of the bucket
};
// Origins differ in two ways: some read '\\' as '/' (bit 0 of a reading), and some end the name at
// a NUL (bit 1).
#define S3_PATH_READINGS 4u
// Converts the key to a path, in one of the S3_PATH_READINGS readings. Returns false if the key has
// no '\\' or no NUL that this reading would treat differently. Reading 0 always succeeds.
bool s3_key_as_path(struct span key, unsigned reading, struct s3_path *ret_path);
// Returns true if a versionId or uploadId (name in any case) would lead a file-based origin to the
// path of another key.
bool s3_ids_climb(const struct s3_request *r);
// Appends the source in the form that is sent to the origin, escaped: "/BUCKET/KEY?versionId=V",
// where BUCKET is `origin_bucket`. A rename's source has no leading '/', because an origin could
// take it for part of a key. A source without a bucket stays without one.
void s3_source_render(const struct s3_source *source, struct span origin_bucket, struct buf *out);
// Returns true if `name`, in any case, is x-amz-copy-source or x-amz-rename-source.
bool s3_name_is_source(struct span name);
// Returns true for a name that qualifies a source, such as its range, its conditions or its
// encryption key.
bool s3_name_is_of_source(struct span name);

// --- s3_error.c ----------------------------------------------------------------------------------

// Optional elements of an error document. Empty spans are left out.
struct s3_error_detail {
    struct span code, message; // used instead of those in the error table
    struct span elements;      // more elements, already rendered as XML
    struct span resource, request_id, host_id;
    struct span key, bucket_name;
    struct span range_requested;
    bool has_actual_object_size;
    uint64_t actual_object_size;
    struct span condition;
    struct span region, endpoint;
    struct span string_to_sign, canonical_request;
    struct span argument_name, argument_value;
    struct span retry_after; // no element: value of the reply's header Retry-After
};

// Returns true if the client may see this name. `name` is valid only during the call.
typedef bool s3_list_names_fn(void *ctx, struct span name);

// Appends the <Error> document, including the XML declaration. The HTTP status is not part of it:
// see error_row(err)->status.
void s3_error_render(enum err err, const struct s3_error_detail *detail, struct buf *out);

// An origin's error in a form that can be passed between workers: the status, the headers that
// belong to it, and the document, which may be empty. s3_error_pack() turns it into one string of
// bytes.
struct s3_error_answer {
    unsigned status;
    struct headers headers;
    struct span document;
};
// Appends the packed answer. Leaves out a header that could not be unpacked again.
void s3_error_pack(const struct s3_error_answer *answer, struct buf *out);
// Unpacks an answer. Its spans are views into `packed`; its header list is in `arena`. Returns
// false if `packed` is not a packed answer.
bool s3_error_unpack(struct arena *arena, struct span packed,
                     struct s3_error_answer *ret_answer) MUST_USE;
// Copies into `detail` the parts of an origin's error that the client may see: the code, the
// message, and the elements about the client's own request. Leaves out the origin's own names
// (resource, bucket, ids), because s3_error_render() writes the client's names instead. The copies
// are in `arena` and limited in size. *ret_names_key and *ret_names_bucket tell whether the error
// names a key or a bucket. Returns false if `document` is not an S3 error.
bool s3_error_adopt(struct arena *arena, struct span document, struct s3_error_detail *detail,
                    bool *ret_names_key, bool *ret_names_bucket) MUST_USE;
// Appends an <Error> document without the elements that name something the client may not see:
// another key, prefix or position, or a resource that contains one. Names that the request `asked`
// contains may stay. Returns false, and appends nothing, if `document` is not an error document or
// may be shown whole. Returns true, but appends nothing, if more than 64 KiB would remain.
bool s3_error_hide(struct span document, const struct s3_request *asked, s3_list_names_fn *may_show,
                   void *ctx, struct buf *out) MUST_USE;
// Returns the reason phrase of a status, such as "Not Found"; "Unknown" for unlisted statuses. As
// with S3, that of 503 is "Slow Down" if the error's `code` is SlowDown.
const char *s3_status_reason(unsigned status, struct span code);

// --- s3_xml.c ------------------------------------------------------------------------------------

// Writer. Escapes & < > " ' and, as S3 does, control bytes as &#xN;. Writes neither namespace
// prefixes nor white space between elements.
void s3_xml_escape(struct buf *out, struct span text);
// Replaces the references ("&amp;", "&#65;") in an element's raw text. ret_bytes must have room for
// text.len bytes. Returns false for a reference that XML does not define.
bool s3_xml_unescape(struct span text, char *ret_bytes, size_t *ret_len);
void s3_xml_element(struct buf *out, const char *name, struct span text);
void s3_xml_element_u64(struct buf *out, const char *name, uint64_t value);

// Reader: expat without DTDs and entities. The depth is at most 16, the size at most
// S3_XML_BODY_MAX, the memory for names at most S3_XML_PARSER_MAX (ERR_XML_TOO_LARGE). Calls back
// for each leaf element, in order, with its path ("Delete/Object/Key") and its text.
typedef void s3_xml_leaf_fn(void *ctx, const char *path, struct span text);
enum err s3_xml_read(struct span document, s3_xml_leaf_fn *on_leaf, void *ctx) MUST_USE;

// The fields of an <Error> document that we use, as views into `arena`. s3_error_read() returns
// false if `document` is not an error document.
struct s3_error_body {
    struct span code, message, region, endpoint;
};
bool s3_error_read(struct arena *arena, struct span document, struct s3_error_body *ret_body);

// --- s3_listing.c: listings for drivers without S3
// ------------------------------------------------

struct s3_listing_entry {
    struct span key;
    uint64_t size;
    time_t last_modified;
    unsigned last_modified_ms;
    struct span etag; // without the quotes
};

// A client's ListObjects or ListObjectsV2 request, from its query parameters.
struct s3_listing_query {
    bool v2;
    struct span bucket, prefix, delimiter;
    // The listing starts after this name. It comes from start-after, marker or the continuation
    // token.
    struct span after;
    struct span start_after, marker, continuation_token; // as the client sent them; repeated in the
                                                         // answer
    bool has_start_after, has_marker, has_continuation_token;
    unsigned max_keys; // <= 1000
    bool encoding_url, fetch_owner;
};
// Parses a listing's parameters. A continuation token must come from s3_listing_token(). Returns
// ERR_INVALID_ARGUMENT if max-keys is negative or not a number, encoding-type is unknown, or the
// token is bad. `detail` then gets S3's message and the argument's name and value.
enum err s3_listing_parse(struct arena *arena, const struct s3_request *r,
                          struct s3_listing_query *ret_query,
                          struct s3_error_detail *detail) MUST_USE;
void s3_listing_token(struct span last_name, struct buf *out);

struct s3_listing_page {
    const struct s3_listing_entry *entries; // sorted by key bytes
    size_t entry_count;
    const struct span *common_prefixes; // sorted
    size_t common_prefix_count;
    bool truncated;
    struct span last_name; // last key or common prefix on the page; the next page starts after it
};
void s3_listing_render(const struct s3_listing_query *q, const struct s3_listing_page *page,
                       struct buf *out);
struct s3_bucket_entry {
    struct span name;
    time_t created;
};
void s3_buckets_render(const struct s3_bucket_entry *buckets, size_t count, struct buf *out);
void s3_location_render(struct span region, struct buf *out); // empty for us-east-1

// --- s3_xml_strict.c: bodies that change objects -----------------------------------

// The fields as they are in the body. The pointer of a span is NULL if the field was absent.
struct s3_delete_object {
    struct span key, version_id, etag, last_modified_time, size;
};
struct s3_delete {
    struct s3_delete_object *objects;
    size_t count; // 1 to 1000
    bool has_quiet, is_quiet;
};
// Reads the body of DeleteObjects. Returns ERR_MALFORMED_XML for anything outside its schema. Spans
// are views into `arena`.
enum err s3_delete_read(struct arena *arena, struct span document,
                        struct s3_delete *ret_delete) MUST_USE;
void s3_delete_render(const struct s3_delete *delete, struct buf *out);

struct s3_restore {
    struct span days, tier, description, glacier_tier;
};
// Reads the body of RestoreObject in the same way. A restore with a select is ERR_MALFORMED_XML
// too, because it writes its result to a bucket that the body names.
enum err s3_restore_read(struct arena *arena, struct span document,
                         struct s3_restore *ret_restore) MUST_USE;
void s3_restore_render(const struct s3_restore *restore, struct buf *out);

// --- sigv4.c -------------------------------------------------------------------------------------

struct sigv4_credentials {
    struct span access_key, secret_key, session_token; // the token may be empty
};

#define SIGV4_EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SIGV4_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"

// The scope of a signature, for any AWS service. Both flags are false for S3; other services sign
// the path in another form.
struct sigv4_scope {
    struct span region, service; // "s3" for S3
    bool normalize_path, double_encode;
};

// Signs a request that is about to be sent. The signature covers `canonical_query` (sorted,
// encoded), and those of `headers` that S3's rules select: host, x-amz-*, range, content-md5,
// content-type and if-*. It never covers hop-by-hop headers, expect, user-agent or accept-encoding.
// Before the call, `headers` must have host and x-amz-content-sha256, but no authorization. The
// call adds x-amz-date, x-amz-security-token and authorization, in `arena`. `canonical_path` must
// already be encoded by buf_append_uri_encoded(). ret_signature may be NULL. It gets 64 hex digits,
// the seed of chunk signatures.
enum err sigv4_sign(struct arena *arena, const struct sigv4_credentials *credentials,
                    const struct sigv4_scope *scope, time_t now, struct span method,
                    struct span canonical_path, struct span canonical_query,
                    struct headers *headers, struct span payload_hash,
                    char *ret_signature) MUST_USE;

// Builds "name=value&name=value" from raw query text, sorted by encoded name, then value. A name
// without a value becomes "name=". A raw '+' counts as a space, because S3 reads and signs it so.
// `skip_signature` leaves out X-Amz-Signature.
enum err sigv4_canonical_query(struct arena *arena, struct span raw_query, bool skip_signature,
                               struct span *ret_query) MUST_USE;

// How the signature covers the body, according to x-amz-content-sha256.
enum sigv4_payload {
    SIGV4_PAYLOAD_HASH,      // a SHA-256, to be checked against the body
    SIGV4_PAYLOAD_UNSIGNED,  // UNSIGNED-PAYLOAD or presigned
    SIGV4_PAYLOAD_STREAMING, // STREAMING-AWS4-HMAC-SHA256-PAYLOAD
    SIGV4_PAYLOAD_STREAMING_TRAILER,
    SIGV4_PAYLOAD_UNSIGNED_TRAILER, // STREAMING-UNSIGNED-PAYLOAD-TRAILER
    SIGV4_PAYLOAD_NONE // the request says nothing about its body, as without a signature
};

// A client's signature, parsed but not verified. Parsing does not need the secret.
struct sigv4_claim {
    bool present;   // the request has a SigV4 signature
    bool presigned; // the signature is in the query
    bool version2;  // the request has a SigV2 signature; `present` is false
    struct span access_key, date, region, service, signed_headers, signature, security_token;
    // "20130524/us-east-1/s3/aws4_request". Needed with amz_date to verify chunks.
    struct span scope;
    time_t time;
    char amz_date[DATE_AMZ_LEN + 1]; // `time` in the form that is signed
    uint64_t expires_s;              // only if presigned
    enum sigv4_payload payload;
    struct span payload_hash; // x-amz-content-sha256 as sent, or UNSIGNED-PAYLOAD
};
// Parses the claim. Errors: ERR_AUTHORIZATION_MALFORMED, ERR_AUTHORIZATION_QUERY,
// ERR_MISSING_SECURITY_HEADER, ERR_ACCESS_DENIED (no date), ERR_NOT_IMPLEMENTED (SigV4a),
// ERR_INVALID_ARGUMENT (a signature in both header and query, or a payload hash that is none).
enum err sigv4_claim_parse(const struct s3_request *r, const struct headers *headers,
                           struct sigv4_claim *ret_claim) MUST_USE;

// Parses only the payload part of a claim, for callers that do not need the signature. If
// x-amz-content-sha256 is missing, a presigned request counts as UNSIGNED-PAYLOAD. Errors:
// ERR_INVALID_ARGUMENT (neither a hash nor a known word), ERR_NOT_IMPLEMENTED (SigV4a).
enum err sigv4_payload_parse(const struct headers *headers, bool presigned,
                             enum sigv4_payload *ret_payload, struct span *ret_hash) MUST_USE;

#define SIGV4_SKEW_MAX_S 900

// More about the result of sigv4_verify(). After ERR_SIGNATURE_MISMATCH, it has the texts for the
// error document, in the arena; they are empty if the arena has no room. After ERR_OK,
// plus_is_space tells that the path has a raw '+' which the signature counts as a space. The caller
// must then call s3_request_plus_is_space().
struct sigv4_mismatch {
    struct span string_to_sign, canonical_request;
    bool plus_is_space;
};

// Verifies the claim against the raw request: method, path, query and headers. `raw_path` is the
// path of the target exactly as sent, with the bucket in path style. Signatures are compared in
// constant time. For a literal '+' in the path, %2B is tried first, then %20. Checks that:
// - the clocks differ by at most SIGV4_SKEW_MAX_S (ERR_TIME_SKEWED); a presigned request may be
//   older, but not newer (ERR_NOT_YET_VALID)
// - a presigned request has not expired (ERR_EXPIRED); sigv4_claim_parse() limits it to 7 days
// - the date of the scope is the day of the request
// - host and every x-amz-* header are signed (ERR_HEADERS_NOT_SIGNED)
// ret_signing_key may be NULL. It gets 32 bytes, the key for verifying chunks.
enum err sigv4_verify(struct arena *arena, const struct sigv4_claim *claim, struct span secret_key,
                      time_t now, struct span method, struct span raw_path, struct span raw_query,
                      const struct headers *headers, uint8_t *ret_signing_key,
                      struct sigv4_mismatch *ret_mismatch) MUST_USE;

void sigv4_sha256_hex(struct span data, char *ret_hex); // ret_hex must have room for 65 bytes

// --- aws_chunked.c -------------------------------------------------------------------------------

// Returns true if the body is aws-chunked. One of three signs is enough: x-amz-content-sha256
// begins with STREAMING-, Content-Encoding names aws-chunked, or x-amz-decoded-content-length is
// present.
bool aws_chunked_detect(const struct headers *headers);
// Removes aws-chunked from a Content-Encoding, because it describes the upload and not the object.
// *ret_value is `value` itself if it has no aws-chunked, and empty if it has nothing else. Returns
// false if out of memory.
bool aws_chunked_strip(struct arena *arena, struct span value, struct span *ret_value) MUST_USE;
// Returns true if the answer's body has a coding, such as gzip, that Forebay does not undo. S3 may
// give back aws-chunked, which belonged to the upload.
bool s3_answer_is_coded(const struct headers *answered);

// Streaming decoder; pure. A chunk header has at most 256 bytes, a trailer at most 16 KiB.
struct aws_chunked_decoder;
struct aws_chunked_options {
    bool has_signatures;         // verify the signatures of the chunks
    const uint8_t *signing_key;  // 32 bytes, when has_signatures
    struct span amz_date, scope; // "20130524T000000Z", "20130524/us-east-1/s3/aws4_request"
    struct span seed_signature;  // 64 hex digits: the signature of the request's head
    bool has_decoded_length;
    uint64_t decoded_length;
    bool has_trailer; // trailer lines may follow the last chunk
};
struct aws_chunked_decoder *aws_chunked_decoder_new(const struct aws_chunked_options *options);
void aws_chunked_decoder_free(struct aws_chunked_decoder *d);
// Decodes input and passes payload bytes to `on_data` in order, as views into the input. A chunk's
// bytes are passed on before its signature is checked, which happens at the end of the chunk. So
// the caller must hold back the end of its upload until aws_chunked_finished().
// Errors: ERR_SIGNATURE_MISMATCH, ERR_INCOMPLETE_BODY (wrong length), ERR_BAD_REQUEST (framing).
typedef enum err aws_chunked_data_fn(void *ctx, struct span data);
enum err aws_chunked_decode(struct aws_chunked_decoder *d, struct span input,
                            aws_chunked_data_fn *on_data, void *ctx) MUST_USE;
// Returns true once the last chunk and the trailer have arrived and are valid.
bool aws_chunked_finished(const struct aws_chunked_decoder *d);
const struct headers *aws_chunked_trailers(const struct aws_chunked_decoder *d);

// Encoder for the form with an unsigned trailer. All chunks but the last have the same size. The
// total length is known before the first byte.
uint64_t aws_chunked_encoded_length(uint64_t decoded_length, uint64_t chunk_size,
                                    struct span trailer_name, size_t trailer_value_len);
void aws_chunked_chunk_head(uint64_t chunk_len, struct buf *out); // "hex\r\n"
void aws_chunked_tail(struct span trailer_name, struct span trailer_value, struct buf *out);

// --- s3_list_scan.c: sizes that a listing names, while its bytes pass ----------------------------

// `key` is valid only during the call.
typedef void s3_list_scan_fn(void *ctx, struct span key, uint64_t size_bytes);
struct s3_list_scan {
    bool is_encoded; // the client asked for percent-encoded keys
    bool in_tag, takes_text, has_key, has_size;
    size_t tag_len, text_len, key_len;
    uint64_t size_bytes;
    char tag[16], text[3 * S3_KEY_MAX], key[3 * S3_KEY_MAX];
};
void s3_list_scan_begin(struct s3_list_scan *scan, bool is_encoded);
void s3_list_scan_feed(struct s3_list_scan *scan, struct span data, s3_list_scan_fn *on_entry,
                       void *ctx);

// --- s3_list_names.c: which names a listing shows, while its bytes pass --------------------------

struct s3_list_element;

struct s3_list_names {
    const struct s3_request *asked;
    bool is_encoded, is_bad;
    bool is_unreadable; // bad because the document is not XML in UTF-8
    bool has_begun, in_tag, in_common;
    const struct s3_list_element *open; // the element whose text is being read; NULL if none
    // Bytes at the end of the input so far that belong to a name not yet judged.
    uint64_t pending_bytes;
    size_t tag_len, text_len;
    // The 6 is for XML, which may write one byte of a name as a reference of up to 6 bytes.
    char tag[128], text[6 * S3_KEY_MAX], name[6 * S3_KEY_MAX];
};
// Starts a scan. The listing may repeat names that the request `asked` contains, for example its
// prefix. `asked` must outlive the scan, or may be NULL. `is_encoded`: the request asked for
// percent-encoded names.
void s3_list_names_begin(struct s3_list_names *names, const struct s3_request *asked,
                         bool is_encoded);
// Returns false if this piece or an earlier one cannot be parsed, or contains a name that the
// client may not see.
bool s3_list_names_feed(struct s3_list_names *names, struct span data, s3_list_names_fn *may_show,
                        void *ctx);

// --- s3_list_buckets.c: which buckets a list of them shows ---------------------------------------

#define S3_LIST_BUCKETS_PIECE 8192u
#define S3_LIST_BUCKETS_BYTES (S3_XML_PARSER_MAX + 90112u) // memory of a struct s3_list_buckets

struct s3_list_buckets;
// Starts to filter an origin's list of buckets.
struct s3_list_buckets *s3_list_buckets_new(s3_list_names_fn *may_show, void *ctx);
void s3_list_buckets_free(struct s3_list_buckets *list); // accepts NULL
// Reads at most S3_LIST_BUCKETS_PIECE bytes of the document. *ret_shown is what the client gets for
// them, valid until the next call. Returns false if the document cannot be filtered.
bool s3_list_buckets_feed(struct s3_list_buckets *list, struct span piece,
                          struct span *ret_shown) MUST_USE;
// Called after the last byte. Returns false if the document is not complete.
bool s3_list_buckets_end(struct s3_list_buckets *list) MUST_USE;
// Returns true if the document was refused because it took more than S3_XML_PARSER_MAX.
bool s3_list_buckets_is_full(const struct s3_list_buckets *list);

// --- checksums -----------------------------------------------------------------------------------

enum s3_checksum {
    S3_CHECKSUM_NONE,
    S3_CHECKSUM_CRC32,
    S3_CHECKSUM_CRC32C,
    S3_CHECKSUM_CRC64NVME,
    S3_CHECKSUM_SHA1,
    S3_CHECKSUM_SHA256,
    S3_CHECKSUM_MD5
};
struct s3_checksum_state;
// Returns the algorithm for a header or trailer name ("x-amz-checksum-crc32"); S3_CHECKSUM_NONE if
// we cannot compute it.
enum s3_checksum s3_checksum_from_name(struct span header_name);
// Starts a checksum. ISA-L computes CRC32 and CRC32C, our code CRC64NVME, OpenSSL the others.
struct s3_checksum_state *s3_checksum_new(enum s3_checksum kind);
void s3_checksum_free(struct s3_checksum_state *s);
void s3_checksum_update(struct s3_checksum_state *s, struct span data);
// Returns true if the checksum of an object can be computed from the checksums of its pieces. That
// holds for the CRCs.
bool s3_checksum_combines(enum s3_checksum kind);
// Makes `s` the checksum of its own bytes followed by the `next_len` bytes of `next`. Both must
// have the same kind, and it must be one that combines.
void s3_checksum_append(struct s3_checksum_state *s, const struct s3_checksum_state *next,
                        uint64_t next_len);
// Converts between a state and the value of its CRC. s3_checksum_crc() returns the value of all
// bytes so far. s3_checksum_of_crc() makes a state that continues from `crc`. Only for kinds that
// combine.
uint64_t s3_checksum_crc(const struct s3_checksum_state *s);
struct s3_checksum_state *s3_checksum_of_crc(enum s3_checksum kind, uint64_t crc);
// Writes the checksum in Base64 to a buffer of at least 64 bytes. May be called once.
void s3_checksum_final(struct s3_checksum_state *s, char *ret_base64);

// --- s3_sums.c: the checksum headers of an object in few bytes -----------------------------------

#define S3_SUMS_MAX 71u
#define S3_SUMS_TEXT_MAX 2560u // largest text that packed sums expand to
// Packs lines "x-amz-checksum-NAME: VALUE\r\n". Leaves out a line of another form. Returns the
// number of bytes; 0 if `lines` is empty. If the lines do not fit, the result is S3_SUMS_TOO_LONG.
size_t s3_sums_pack(struct span lines, uint8_t ret_bytes[S3_SUMS_MAX]);
// A packed form of one byte: the checksums are known, but kept with the object's headers instead of
// here.
#define S3_SUMS_ELSEWHERE 0x05u
// A packed form of one byte: only the origin can supply the checksums. They are too long to keep,
// or the origin's answers about the object contradict each other.
#define S3_SUMS_TOO_LONG 0x06u
// Unpacks the lines into `ret_text`. Returns an empty span if the checksums are elsewhere or too
// long, or if `packed` was not made by s3_sums_pack().
struct span s3_sums_render(struct span packed, char ret_text[S3_SUMS_TEXT_MAX]);
// Returns true if the origin has said that the object has no checksum.
bool s3_sums_has_none(struct span packed);
bool s3_sums_are_too_long(struct span packed);

#endif
