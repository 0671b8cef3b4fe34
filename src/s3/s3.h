// SPDX-License-Identifier: Apache-2.0
// The S3 dialect: routing of a request to an operation, error documents, the XML we read and write,
// aws-chunked bodies, SigV4 in both directions, access key tables. Pure: no I/O but for
// access_keys_load(), no threads, no clock (times are arguments). Views returned point into the
// caller's memory or arena.
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

// operations.def: S3_OPERATION(name, flags, rights, scope); the names are those of the S3 API
// ("GetObject").
enum s3_operation {
#define S3_OPERATION(name, flags, rights, scope) S3_##name,
#include "s3/operations.def"
#undef S3_OPERATION
    S3_OPERATION_COUNT_
};

enum s3_operation_flags {
    S3_OP_READ = 1,        // GET/HEAD semantics: changes nothing
    S3_OP_CHANGES_KEY = 2, // may change the key, or the bucket, that its scope names
    S3_OP_LISTING = 4,     // ListObjects, ListObjectsV2
    S3_OP_BODY = 8,        // carries object data (PutObject, UploadPart)
    S3_OP_CACHEABLE = 16   // GetObject, HeadObject without anything that selects another answer
};

// One decoded query parameter.
struct s3_param {
    struct span name, value;         // percent-decoded once, a raw '+' is a blank
    struct span raw_name, raw_value; // as sent
    bool has_value;                  // "=" was there
};

enum s3_host_kind { S3_HOST_IP, S3_HOST_LOCALHOST, S3_HOST_DOMAIN, S3_HOST_OTHER };

struct s3_request {
    enum s3_operation operation;
    unsigned flags;     // of the operation
    struct span method; // "GET"
    struct span bucket; // empty: service level
    struct span key;    // decoded bytes, opaque; empty: bucket level. Never normalised
    bool virtual_host;  // bucket came from Host
    enum s3_host_kind host_kind;
    struct span raw_path; // as sent, up to '?'; in virtual-host style without the bucket
    struct span raw_query;
    struct s3_param params[S3_QUERY_PARAMS_MAX];
    unsigned param_count;
    bool presigned;         // X-Amz-Signature or AWSAccessKeyId in the query
    struct span version_id; // present when has_version_id
    bool has_version_id;
    uint64_t part_number; // ?partNumber=N on GET/HEAD
    bool has_part_number;
    bool has_response_overrides; // response-content-type and its kin
    const char
        *bypass_reason; // why a GET/HEAD of a key may not be answered from cache: "sub-resource",
                        // "sse-c", "expected-owner", "payer", "version", ... NULL: it may
};

// Extra suffixes for virtual-host requests; IP literals (with port) and localhost are built in.
struct s3_domains {
    const struct span *suffixes;
    unsigned count;
};

// What Host names. bucket is set for virtual-host style ("b.localhost", "b.127.0.0.1",
// "b.<domain>", longest configured suffix wins; a bucket may contain dots); empty otherwise. The
// port and one root dot ("b.localhost.:9000") are ignored. S3_HOST_OTHER: none of ours (refused in
// open mode).
enum s3_host_kind s3_host_parse(struct span host, const struct s3_domains *domains,
                                struct span *ret_bucket);

// Routes a request. `target` is the raw request target in origin form, headers decide too (copy
// source, SSE-C, expected owner, payer). Everything unknown (query parameter, method) routes to
// S3_Unknown with flags that pass it through and, for methods other than GET and HEAD on a key,
// invalidate. Errors: ERR_INVALID_URI (broken escape), ERR_KEY_TOO_LONG, ERR_INVALID_BUCKET_NAME,
// ERR_INVALID_ARGUMENT (partNumber), ERR_NO_MEMORY.
enum err s3_request_parse(struct arena *arena, struct span method, struct span host,
                          struct span target, const struct headers *headers,
                          const struct s3_domains *domains,
                          struct s3_request *ret_request) MUST_USE;
// Is a read answered alike with and without this header? So are those of the signature, the
// client's library and checksums.
bool s3_header_is_neutral(struct span name);

const char *s3_operation_name(enum s3_operation operation);
// First parameter of that (decoded) name; NULL when absent.
const struct s3_param *s3_param_find(const struct s3_request *r, const char *name);

// What stands below such a name is the client's secret, in a header or, by presigners that put
// headers into the query, there.
bool s3_name_is_secret(struct span name);

// Reads the key again with each raw '+' as a space: for a request whose signature holds only so
// (sigv4_mismatch.plus_is_space). It is then never answered from cache. ERR_INVALID_URI,
// ERR_NO_MEMORY.
enum err s3_request_plus_is_space(struct arena *arena, struct s3_request *r) MUST_USE;
// --- s3_effects.c: what a request may read, write, delete and list -------------------------------

// Rights of a principal; ANY is what none of the others covers, and implies none of them.
enum s3_allow_ops {
    S3_ALLOW_READ = 1,
    S3_ALLOW_LIST = 2,
    S3_ALLOW_WRITE = 4,
    S3_ALLOW_DELETE = 8,
    S3_ALLOW_ANY = 16
};

enum s3_scope {
    S3_SCOPE_SERVICE,   // no bucket: LIST in any bucket is enough
    S3_SCOPE_BUCKET,    // the whole of it
    S3_SCOPE_PREFIX,    // all keys below `key`
    S3_SCOPE_KEY,       // that one
    S3_SCOPE_SOMEWHERE, // one of the rights anywhere in the bucket; keys in the body are judged
                        // later
};

// One thing that a request may do at the origin.
struct s3_effect {
    unsigned rights; // all of these (SOMEWHERE: one of them) are needed
    enum s3_scope scope;
    struct span bucket, key;
    bool changes; // what is cached of it is no longer true
};

// Another key that a request names in x-amz-copy-source or x-amz-rename-source, whether the name
// stands among the headers or, as presigning puts it, among the parameters.
struct s3_source {
    bool is_there;
    bool is_understood; // an access point's ARN is not: only where nobody is judged may it pass
    bool is_rename;
    struct span bucket; // of a rename: empty where the value is a bare key
    struct span key;
    struct span version; // present when has_version
    bool has_version;
};

#define S3_EFFECTS_MAX 5 // the target, a copy's source, three readings of a rename's
struct s3_effects {
    struct s3_effect items[S3_EFFECTS_MAX];
    unsigned count;
    struct s3_source copy, rename;
    bool asks_what_is_there; // by its outcome: READ besides, of keys in a body as well
};

// From method, path, all parameters and all headers of a routed request. What is not known is
// taken for more, not for less: an unknown read needs the rights of every operation it could be,
// an unknown write needs ANY. `origin_bucket` is the name that the bucket has at the origin.
// ERR_INVALID_ARGUMENT: a source that is there twice, cannot be read, or stands where none belongs.
// ERR_KEY_TOO_LONG, ERR_NO_MEMORY.
enum err s3_effects_find(struct arena *arena, const struct s3_request *r,
                         const struct headers *headers, struct span origin_bucket,
                         struct s3_effects *ret_effects) MUST_USE;
// A key as an origin reads it that keeps objects as files: '\\' is '/', empty and "." segments are
// nothing, ".." takes off the one before it. A '/' at its end stays.
struct s3_path {
    char text[S3_KEY_MAX + 1];
    size_t len;
    bool differs; // from the key
    bool climbs;  // there is a ".." in it
    bool leaves;  // and that leads out of the bucket
};
void s3_key_as_path(struct span key, struct s3_path *ret_path);
// Does a versionId or an uploadId, in any case, lead an origin on files out of the key's place?
bool s3_ids_climb(const struct s3_request *r);
// A source as it is sent on, escaped: "/bucket/key?versionId=V" with that bucket, a rename's
// without the first '/', which would belong to a bare key. A bare key stays one.
void s3_source_render(const struct s3_source *source, struct span origin_bucket, struct buf *out);
// Is that the name of a source, in any case?
bool s3_name_is_source(struct span name);
// Of what says more of one: its range, its conditions, its key?
bool s3_name_is_of_source(struct span name);

// --- s3_error.c ----------------------------------------------------------------------------------

// Optional elements; empty spans are left out.
struct s3_error_detail {
    struct span code, message; // instead of the table's
    struct span elements;      // more of them, rendered
    struct span resource, request_id, host_id;
    struct span key, bucket_name;
    struct span range_requested;
    bool has_actual_object_size;
    uint64_t actual_object_size;
    struct span condition;
    struct span region, endpoint;
    struct span string_to_sign, canonical_request;
    struct span argument_name, argument_value;
};

// May this name be shown? It is valid during the call.
typedef bool s3_list_names_fn(void *ctx, struct span name);

// Appends the <Error> document (XML declaration first). Status is error_row(err)->status.
void s3_error_render(enum err err, const struct s3_error_detail *detail, struct buf *out);

// An origin's error on its way to clients, in one piece of bytes: its status, the headers that
// belong to it, its document (empty: none).
struct s3_error_answer {
    unsigned status;
    struct headers headers;
    struct span document;
};
// Appends the answer; a header whose value could not be read back is left out.
void s3_error_pack(const struct s3_error_answer *answer, struct buf *out);
// Views into `packed`, the list of headers in `arena`. False: nothing that was packed.
bool s3_error_unpack(struct arena *arena, struct span packed,
                     struct s3_error_answer *ret_answer) MUST_USE;
// What of the document goes on, into `detail`, in `arena`: code, message, and the elements that
// tell the client about its own request. Names of the origin's (resource, bucket, ids) do not:
// whoever renders the document puts the client's there. Bounded. False: no S3 error.
bool s3_error_adopt(struct arena *arena, struct span document, struct s3_error_detail *detail,
                    bool *ret_names_key, bool *ret_names_bucket) MUST_USE;
// Appends an <Error> document without the elements that name what the client may not see: another
// key, prefix or position, or a resource that contains one. Names that `asked` has itself may stay.
// False, and nothing is appended: it is no error document, or all of it may be shown. Appends
// nothing either if more than 64 KiB would be left.
bool s3_error_hide(struct span document, const struct s3_request *asked, s3_list_names_fn *may_show,
                   void *ctx, struct buf *out) MUST_USE;
// "Not Found" and so on; "Unknown" for the rest. 503 is "Slow Down".
const char *s3_status_reason(unsigned status);

// --- s3_xml.c ------------------------------------------------------------------------------------

// Writer: escapes & < > " ' and, as S3 does, control bytes as &#xN;. Default namespace, no pretty
// printing.
void s3_xml_escape(struct buf *out, struct span text);
// The text of an element as it stands there, references resolved; ret_bytes takes text.len. False:
// with one that is none of XML's own.
bool s3_xml_unescape(struct span text, char *ret_bytes, size_t *ret_len);
void s3_xml_element(struct buf *out, const char *name, struct span text);
void s3_xml_element_u64(struct buf *out, const char *name, uint64_t value);

// Reader: expat without DTDs or entities, depth <= 16, size <= S3_XML_BODY_MAX.
// Calls back with the path ("Delete/Object/Key") and the text of each leaf element, in order.
typedef void s3_xml_leaf_fn(void *ctx, const char *path, struct span text);
enum err s3_xml_read(struct span document, s3_xml_leaf_fn *on_leaf, void *ctx) MUST_USE;

// What of an <Error> document matters. Views into `arena`. False: not an error document.
struct s3_error_body {
    struct span code, message, region, endpoint;
};
bool s3_error_read(struct arena *arena, struct span document, struct s3_error_body *ret_body);

// --- listing: rendered by drivers that have no S3 behind them ------------------------------------

struct s3_listing_entry {
    struct span key;
    uint64_t size;
    time_t last_modified;
    unsigned last_modified_ms;
    struct span etag; // without quotes
};

// What a client asked of ListObjects or ListObjectsV2, from its parameters.
struct s3_listing_query {
    bool v2;
    struct span bucket, prefix, delimiter;
    struct span after; // start-after, marker or the decoded continuation token: exclusive
    struct span start_after, marker, continuation_token; // as sent, to be echoed
    bool has_start_after, has_marker, has_continuation_token;
    unsigned max_keys; // <= 1000
    bool encoding_url, fetch_owner;
};
// Continuation tokens made here are opaque: s3_listing_token() of the last name; decoded by this
// call. ERR_INVALID_ARGUMENT: negative or non-numeric max-keys, unknown encoding-type, bad token;
// then `detail` gets S3's message, and the argument's name and value.
enum err s3_listing_parse(struct arena *arena, const struct s3_request *r,
                          struct s3_listing_query *ret_query,
                          struct s3_error_detail *detail) MUST_USE;
void s3_listing_token(struct span last_name, struct buf *out);

struct s3_listing_page {
    const struct s3_listing_entry *entries; // in order of key bytes
    size_t entry_count;
    const struct span *common_prefixes; // in order
    size_t common_prefix_count;
    bool truncated;
    struct span last_name; // last key or common prefix on the page: the next page starts after it
};
void s3_listing_render(const struct s3_listing_query *q, const struct s3_listing_page *page,
                       struct buf *out);
struct s3_bucket_entry {
    struct span name;
    time_t created;
};
void s3_buckets_render(const struct s3_bucket_entry *buckets, size_t count, struct buf *out);
void s3_location_render(struct span region, struct buf *out); // empty for us-east-1

// --- s3_xml_strict.c: bodies that say what to do to which keys -----------------------------------

// As the body says it; spans with a NULL pointer were not there.
struct s3_delete_object {
    struct span key, version_id, etag, last_modified_time, size;
};
struct s3_delete {
    struct s3_delete_object *objects;
    size_t count; // 1 to 1000
    bool has_quiet, is_quiet;
};
// Anything that the schema of DeleteObjects does not have is ERR_MALFORMED_XML. Views into `arena`.
enum err s3_delete_read(struct arena *arena, struct span document,
                        struct s3_delete *ret_delete) MUST_USE;
void s3_delete_render(const struct s3_delete *delete, struct buf *out);

struct s3_restore {
    struct span days, tier, description, glacier_tier;
};
// The same for RestoreObject; one that selects, and so writes elsewhere, is ERR_MALFORMED_XML, too.
enum err s3_restore_read(struct arena *arena, struct span document,
                         struct s3_restore *ret_restore) MUST_USE;
void s3_restore_render(const struct s3_restore *restore, struct buf *out);

// --- sigv4.c -------------------------------------------------------------------------------------

struct sigv4_credentials {
    struct span access_key, secret_key, session_token; // token may be empty
};

#define SIGV4_EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SIGV4_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"

// The general form, for any service; `normalize_path` and `double_encode` false for S3.
struct sigv4_scope {
    struct span region, service; // service "s3"
    bool normalize_path, double_encode;
};

// Signs a request that is about to be sent: the canonical query (sorted, encoded) and every header
// in `headers` that is signed by S3 rules (host, x-amz-*, range, content-md5, content-type, if-*;
// never hop-by-hop, expect, user-agent, accept-encoding) enter the signature. The caller has put
// host, x-amz-content-sha256 and no authorization into `headers`; x-amz-date, x-amz-security-token
// and authorization are added here (in `arena`). Uri path is `canonical_path` (already encoded by
// buf_append_uri_encoded). ret_signature (64 hex) may be NULL; it seeds chunk signatures.
enum err sigv4_sign(struct arena *arena, const struct sigv4_credentials *credentials,
                    const struct sigv4_scope *scope, time_t now, struct span method,
                    struct span canonical_path, struct span canonical_query,
                    struct headers *headers, struct span payload_hash,
                    char *ret_signature) MUST_USE;

// name=value&name=value sorted by encoded name, then value, from raw query text (valueless ->
// "name="; a raw '+' is a blank, as S3 reads it and signs it). `skip_signature` leaves out
// X-Amz-Signature.
enum err sigv4_canonical_query(struct arena *arena, struct span raw_query, bool skip_signature,
                               struct span *ret_query) MUST_USE;

// How the body is bound, from x-amz-content-sha256 and its kin.
enum sigv4_payload {
    SIGV4_PAYLOAD_HASH,      // a real SHA-256: check it against the body
    SIGV4_PAYLOAD_UNSIGNED,  // UNSIGNED-PAYLOAD or presigned
    SIGV4_PAYLOAD_STREAMING, // STREAMING-AWS4-HMAC-SHA256-PAYLOAD
    SIGV4_PAYLOAD_STREAMING_TRAILER,
    SIGV4_PAYLOAD_UNSIGNED_TRAILER, // STREAMING-UNSIGNED-PAYLOAD-TRAILER
    SIGV4_PAYLOAD_NONE              // nothing said (anonymous)
};

// What a client's signature says, found before the secret is known.
struct sigv4_claim {
    bool present;   // some form of SigV4 is there
    bool presigned; // in the query
    bool version2;  // SigV2 header or query (present is false)
    struct span access_key, date, region, service, signed_headers, signature, security_token;
    struct span
        scope; // "20130524/us-east-1/s3/aws4_request"; with amz_date it seeds chunk verification
    time_t time;
    char amz_date[DATE_AMZ_LEN + 1]; // the same time as it is signed
    uint64_t expires_s;              // presigned
    enum sigv4_payload payload;
    struct span payload_hash; // x-amz-content-sha256 as sent, or UNSIGNED-PAYLOAD
};
// ERR_AUTHORIZATION_MALFORMED, ERR_AUTHORIZATION_QUERY, ERR_MISSING_SECURITY_HEADER,
// ERR_ACCESS_DENIED (no date), ERR_NOT_IMPLEMENTED (SigV4a), ERR_INVALID_ARGUMENT (header and query
// both sign; not a hash).
enum err sigv4_claim_parse(const struct s3_request *r, const struct headers *headers,
                           struct sigv4_claim *ret_claim) MUST_USE;

// The payload part of a claim alone, for who does not care about the signature. `presigned`:
// nothing said means UNSIGNED-PAYLOAD. ERR_INVALID_ARGUMENT (neither a hash nor a known word),
// ERR_NOT_IMPLEMENTED (SigV4a).
enum err sigv4_payload_parse(const struct headers *headers, bool presigned,
                             enum sigv4_payload *ret_payload, struct span *ret_hash) MUST_USE;

// Texts filled on ERR_SIGNATURE_MISMATCH, in the arena, for the error document (empty when it has
// no room). plus_is_space is set on ERR_OK: the path holds a raw '+' and the signature took it for
// a space (then call s3_request_plus_is_space()).
struct sigv4_mismatch {
    struct span string_to_sign, canonical_request;
    bool plus_is_space;
};

// Verifies the claim against the raw request: method, raw target path exactly as sent (`raw_path`
// of the whole target, bucket included in path style), raw query, raw headers. Constant-time
// compare; tries %2B then %20 for a literal '+' in the path. Checks: skew <= 15 min
// (ERR_TIME_SKEWED), presigned expiry (ERR_EXPIRED), expires <= 7 days, scope date, host signed,
// every x-amz-* header signed (ERR_HEADERS_NOT_SIGNED). ret_signing_key (32 bytes) seeds chunk
// verification; may be NULL.
enum err sigv4_verify(struct arena *arena, const struct sigv4_claim *claim, struct span secret_key,
                      time_t now, struct span method, struct span raw_path, struct span raw_query,
                      const struct headers *headers, uint8_t *ret_signing_key,
                      struct sigv4_mismatch *ret_mismatch) MUST_USE;

void sigv4_sha256_hex(struct span data, char *ret_hex); // 65 bytes

// --- aws_chunked.c -------------------------------------------------------------------------------

// Is the body aws-chunked? Any one of the three signs (streaming sentinel, Content-Encoding,
// x-amz-decoded-content-length).
bool aws_chunked_detect(const struct headers *headers);
// A Content-Encoding without aws-chunked, which is framing of an upload and no property of the
// object: the value itself when it has none, empty when it has nothing else. False: no memory.
bool aws_chunked_strip(struct arena *arena, struct span value, struct span *ret_value) MUST_USE;

// Streaming decoder; pure. Bound: chunk header <= 256 bytes, trailer <= 16 KiB.
struct aws_chunked_decoder;
struct aws_chunked_options {
    bool has_signatures;         // verify the chain
    const uint8_t *signing_key;  // 32 bytes, when has_signatures
    struct span amz_date, scope; // "20130524T000000Z", "20130524/us-east-1/s3/aws4_request"
    struct span seed_signature;  // 64 hex
    bool has_decoded_length;
    uint64_t decoded_length;
    bool has_trailer; // trailer lines are expected
};
struct aws_chunked_decoder *aws_chunked_decoder_new(const struct aws_chunked_options *options);
void aws_chunked_decoder_free(struct aws_chunked_decoder *d);
// Feeds input; payload bytes go to `on_data` in order (views into the input).
// ERR_SIGNATURE_MISMATCH, ERR_INCOMPLETE_BODY (length lie), ERR_BAD_REQUEST (framing). A signed
// chunk's bytes are handed on before its signature is known (chunk ends later), so the caller must
// hold back the end of its upload until finish.
typedef enum err aws_chunked_data_fn(void *ctx, struct span data);
enum err aws_chunked_decode(struct aws_chunked_decoder *d, struct span input,
                            aws_chunked_data_fn *on_data, void *ctx) MUST_USE;
bool aws_chunked_finished(
    const struct aws_chunked_decoder *d); // last chunk and trailer seen and right
const struct headers *aws_chunked_trailers(const struct aws_chunked_decoder *d);

// Encoder of unsigned-trailer framing with fixed chunks; length known up front.
uint64_t aws_chunked_encoded_length(uint64_t decoded_length, uint64_t chunk_size,
                                    struct span trailer_name, size_t trailer_value_len);
void aws_chunked_chunk_head(uint64_t chunk_len, struct buf *out); // "hex\r\n"
void aws_chunked_tail(struct span trailer_name, struct span trailer_value, struct buf *out);

// --- s3_list_scan.c: sizes that a listing names, while its bytes pass ----------------------------

// `key` is valid during the call.
typedef void s3_list_scan_fn(void *ctx, struct span key, uint64_t size_bytes);
struct s3_list_scan {
    bool is_encoded; // the client asked for keys in percent coding
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
    bool in_tag, in_common;
    const struct s3_list_element *open; // whose text is read; NULL: of none
    uint64_t pending_bytes; // so many of those that were fed, the last ones, are of a name not
                            // judged yet
    size_t tag_len, text_len;
    char tag[128], text[6 * S3_KEY_MAX], name[6 * S3_KEY_MAX]; // a byte is a reference of 6 at most
};
// `asked`, which lives as long: what it says itself may be repeated. NULL: nothing may.
// `is_encoded`: names in percent coding were asked for.
void s3_list_names_begin(struct s3_list_names *names, const struct s3_request *asked,
                         bool is_encoded);
// False: there is a name that may not be shown, in this piece or in one before.
bool s3_list_names_feed(struct s3_list_names *names, struct span data, s3_list_names_fn *may_show,
                        void *ctx);

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
// From a header or trailer name ("x-amz-checksum-crc32"); NONE for one we cannot compute.
enum s3_checksum s3_checksum_from_name(struct span header_name);
struct s3_checksum_state *
s3_checksum_new(enum s3_checksum kind); // ISA-L for CRC32C, CRC32, CRC64NVME; OpenSSL
void s3_checksum_free(struct s3_checksum_state *s);
void s3_checksum_update(struct s3_checksum_state *s, struct span data);
// Can the sum of a whole be put together from those of its pieces? So it is with CRCs.
bool s3_checksum_combines(enum s3_checksum kind);
// `s` becomes the sum of its own bytes with the `next_len` bytes of `next` behind them; both of one
// kind that combines.
void s3_checksum_append(struct s3_checksum_state *s, const struct s3_checksum_state *next,
                        uint64_t next_len);
// The value so far, of a kind that combines, and a state of that value.
uint64_t s3_checksum_crc(const struct s3_checksum_state *s);
struct s3_checksum_state *s3_checksum_of_crc(enum s3_checksum kind, uint64_t crc);
// Base64 of the value; buffer of at least 64 bytes. May be called once.
void s3_checksum_final(struct s3_checksum_state *s, char *ret_base64);

// --- s3_sums.c: the checksum headers of an object in few bytes -----------------------------------

#define S3_SUMS_MAX 71u
#define S3_SUMS_TEXT_MAX 2560u // what they become at most
// Packs lines "x-amz-checksum-NAME: VALUE\r\n"; a line of another form is left out. Returns how
// many bytes, 0 of no lines. Lines that do not fit together become S3_SUMS_TOO_LONG.
size_t s3_sums_pack(struct span lines, uint8_t ret_bytes[S3_SUMS_MAX]);
// A packed form of one byte: they are known, and somewhere else.
#define S3_SUMS_ELSEWHERE 0x05u
// A packed form of one byte: only the store can name them. They are too long to be kept, or the
// store's answers about the object contradict each other.
#define S3_SUMS_TOO_LONG 0x06u
// The lines again, in `ret_text`; empty if they are elsewhere or too long, or `packed` is not what
// s3_sums_pack() makes.
struct span s3_sums_render(struct span packed, char ret_text[S3_SUMS_TEXT_MAX]);
// Do they say that the object has no checksum?
bool s3_sums_has_none(struct span packed);
bool s3_sums_are_too_long(struct span packed);

// --- access_keys.c: the table of principals for auth.mode verify ---------------------------------

struct access_keys_allow {
    struct span bucket; // "*" any
    struct span prefix; // "" any
    unsigned ops;
};

struct access_keys_principal {
    struct span id, secret;
    const struct access_keys_allow *allow;
    unsigned allow_count;
    // Who shares cached bytes with whom: principals of one realm do. Empty: the common one.
    struct span realm;
    const struct sigv4_credentials *origin_credentials; // NULL: the origin's own
};

// Immutable table, refcounted, swapped on reload.
struct access_keys;
// YAML list of {id, secret, allow: [{bucket, prefix, ops: [read, list, write, delete, any]}],
// realm, // origin_access_key_file, origin_secret_key_file, origin_session_token_file}. The
// origin's files are read here and now. A principal with origin keys and no realm has a realm of
// its own, since what its keys may read says nothing of what others' may. File modes must not grant
// others, and a group may at most read. At most ACCESS_KEYS_REALMS_MAX realms. Errors as
// FILE:LINE:COL lines in ret_errors, where there may be warnings, too, when all is well.
enum err access_keys_load(const char *path, struct access_keys **ret_access_keys,
                          struct buf *ret_errors) MUST_USE;
// The realms besides the common one, each once.
#define ACCESS_KEYS_REALMS_MAX 64u
const struct span *access_keys_realms(const struct access_keys *table, size_t *ret_count);
// Each of them is told by its number, too, from here on: the same realm with another number shares
// nothing with it. In the order of access_keys_realms(), while nobody else sees `table` yet.
// ERR_NO_MEMORY.
enum err access_keys_number_realms(struct access_keys *table, const uint64_t *numbers) MUST_USE;
// Adds those that only `before` knows, while nobody else sees `table` yet: a later file may name
// them again, so writes go on reaching what is cached there. ERR_NO_MEMORY.
enum err access_keys_keep_realms(struct access_keys *table,
                                 const struct access_keys *before) MUST_USE;
struct access_keys *access_keys_ref(struct access_keys *table);
void access_keys_unref(struct access_keys *table);
// Constant-time over the secret only; NULL when unknown (the caller then verifies against
// access_keys_dummy_secret() so that both cases cost the same).
const struct access_keys_principal *access_keys_find(const struct access_keys *table,
                                                     struct span access_key);
struct span access_keys_dummy_secret(void);
// Default deny. A listing is allowed where its prefix lies under an allowed one; on a whole bucket
// only rows with an empty prefix grant anything. A key or prefix with ".." must be allowed as the
// path that it is, too; one that leaves its bucket is not allowed.
bool access_keys_allowed(const struct access_keys_principal *p, const struct s3_effect *effect);
// May a listing show it this name, by its bytes?
bool access_keys_may_see(const struct access_keys_principal *p, struct span bucket,
                         struct span name);

#endif
