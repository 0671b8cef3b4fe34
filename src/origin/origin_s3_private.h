// SPDX-License-Identifier: Apache-2.0
// Declares what the files of the S3 driver share: endpoints, building and signing requests,
// regions, credentials.
#ifndef FOREBAY_ORIGIN_S3_PRIVATE_H
#define FOREBAY_ORIGIN_S3_PRIVATE_H

#include "net/net.h"
#include "origin/credentials_chain.h"
#include "origin/origin_private.h"

#define ORIGIN_S3_REGIONS_MAX 256u     // The most buckets whose region is remembered.
#define ORIGIN_S3_REGION_NAMES_MAX 64u // The most region names.
#define ORIGIN_S3_REGION_MAX 63u       // The most bytes of a region name.
#define ORIGIN_S3_REDIRECTS_MAX 4u     // The most redirects that one call follows.
#define ORIGIN_S3_LOCATION_MAX 8192u   // The longest Location that is followed.
#define ORIGIN_S3_HEADS_REFUSED 256u   // The most keys with a refused HEAD that are remembered.
#define ORIGIN_S3_POOLS_MAX 16u        // The most pools of connections, per worker.

// --- origin_s3_endpoint.c: pure ------------------------------------------------------------------

// The parsed endpoint of an origin. `host` may contain "{region}".
struct origin_s3_endpoint {
    bool is_https, is_aws;
    char *host;           // With the port, as in the Host header. Lower case.
    char *base_path;      // "" or "/prefix", already percent-encoded.
    char *default_region; // The region in the endpoint's name. NULL: none.
};
// Parses the endpoint that `setting` has. On ERR_INVALID, ret_why has one line.
enum err origin_s3_endpoint_parse(const char *setting, const char *text,
                                  struct origin_s3_endpoint *ret_endpoint,
                                  struct buf *ret_why) MUST_USE;
void origin_s3_endpoint_done(struct origin_s3_endpoint *endpoint);
// Appends the canonical form of the endpoint for origin_place(), with `region` in place of
// "{region}". It consists of the scheme, the host without a final dot, the port unless it is the
// default, and the path. Hosts that differ only in a label that looks like a region get the same
// form, and so do all of Amazon's S3 hosts. If two different origins get the same form, that only
// costs hits. If one origin got two forms, clients could read stale objects.
void origin_s3_endpoint_place(const struct origin_s3_endpoint *endpoint, const char *region,
                              struct buf *out);
// Appends the endpoint as people read it, with `region` in place of "{region}".
void origin_s3_endpoint_show(const struct origin_s3_endpoint *endpoint, struct span region,
                             struct buf *out);
// Returns true if the host contains "{region}".
bool origin_s3_endpoint_has_region(const struct origin_s3_endpoint *endpoint);
// Returns true if all regions for which it returns true are one store, so that a name of a bucket
// means the same bucket in each. Each other region may be a store of its own.
bool origin_s3_endpoint_is_one_store(const struct origin_s3_endpoint *endpoint, const char *region);
// Returns true if requests for this bucket have it in the host name. This needs a bucket name that
// is safe in a host name and that, under https, has no dot.
bool origin_s3_endpoint_is_virtual(const struct origin_s3_endpoint *endpoint,
                                   enum origin_addressing addressing, struct span bucket);

// A request's URL. `path` and `query` are canonical, so that the signed bytes are exactly the sent
// bytes.
struct origin_s3_url {
    const char *url;
    struct span host, path, query;
};
// Builds the URL in `arena`. `key` is decoded bytes; `query` is canonical or empty.
enum err origin_s3_url_build(struct arena *arena, const struct origin_s3_endpoint *endpoint,
                             enum origin_addressing addressing, struct span region,
                             struct span bucket, struct span key, struct span query,
                             struct origin_s3_url *ret_url) MUST_USE;

// Returns true for a name, an IPv4 address or an [IPv6 address], with or without a port.
// may_be_template: a name may contain "{region}".
bool origin_s3_host_is_valid(struct span host, bool may_be_template);

// --- origin_s3_redirect.c: pure ------------------------------------------------------------------

// Builds the URL of a redirect from its `location`, the `host` that sent it, and the endpoint's
// scheme. Path and query become canonical, unless they carry a signature (*ret_is_presigned); then
// they stay exactly as sent. Returns ERR_INVALID if the redirect may not be followed, or
// ERR_NO_MEMORY.
enum err origin_s3_redirect_build(struct arena *arena, bool is_https, struct span host,
                                  struct span location, struct origin_s3_url *ret_url,
                                  bool *ret_is_presigned) MUST_USE;
// Returns true if the URL names this object, in path or virtual-hosted style. An empty key stands
// for the bucket.
bool origin_s3_redirect_is_to(const struct origin_s3_url *url, struct span bucket, struct span key);
// Returns true unless the host is a literal address that is more private than `reach`.
bool origin_s3_host_is_within(struct span host, enum transfer_reach reach);

// --- origin_s3_headers.c: pure -------------------------------------------------------------------

// Adds to `ret_headers` the client's headers that a relayed request keeps, by S3's rules for
// requests that are signed again. framed: the body stays aws-chunked. Returns ERR_INVALID if a
// header has a value that must not be sent.
enum err origin_s3_headers_forward(struct arena *arena, const struct headers *client, bool framed,
                                   struct headers *ret_headers) MUST_USE;
// Returns the canonical query without the parameters of a presigned URL.
enum err origin_s3_query_forward(struct arena *arena, const struct s3_request *request,
                                 struct span *ret_query) MUST_USE;
// Adds the headers of an answer that a client may see.
enum err origin_s3_headers_answered(struct arena *arena, const struct headers *origin,
                                    struct headers *ret_headers) MUST_USE;

// Adds the headers of an error answer that describe the error itself, such as Allow and
// Retry-After. Leaves out those that describe its document or belong to one connection.
enum err origin_s3_headers_of_error(struct arena *arena, const struct headers *origin,
                                    struct headers *ret_headers) MUST_USE;

// --- origin_s3_status.c: pure --------------------------------------------------------------------

// Returns true if an answer to a relay with this status must be collected, because Forebay examines
// its body before it passes any of it on.
bool origin_s3_status_must_collect(unsigned status);
// Returns true if clients never see an answer with this status. They get a 503 of Forebay instead.
bool origin_s3_status_is_hidden(unsigned status);
// Returns true for a status that neither S3 nor a gateway in front of it sends. If it arrives on a
// reused connection, it does not answer our request.
bool origin_s3_status_is_foreign(unsigned status);
bool origin_s3_status_is_token_error(struct span code);
// Returns the error for a status that shows a failure: 408, 429 or 5xx. `code` is that of the error
// document, or empty.
enum err origin_s3_status_failure(unsigned status, struct span code);
// Returns the error for a fetch whose answer has this status, neither 200 nor 206.
enum err origin_s3_status_error(const struct origin_fetch *f, unsigned status, struct span code);

// --- The driver's state --------------------------------------------------------------------------

struct origin_s3_state {
    struct origin_s3_endpoint endpoint;
    char *region; // Configured, or chosen when the origin was opened.
    bool region_is_fixed;
    char *proxy; // The result of origin_proxy_url().
    struct credentials_renewer *renewer;
    // The origin's clock minus ours; 0 until it refuses a request for its time.
    atomic_long clock_skew_s;
    atomic_bool unpacks; // The origin may decompress gzip objects; origin_s3_unpacks().
    // Only origin_s3_odd.c uses these fields.
    atomic_ulong head_answered_until_us, if_match_answered_until_us; // Monotonic.
    // Keys whose HEAD was refused: each entry has the key's hash and a time. 0: a free entry.
    atomic_ulong heads_refused[ORIGIN_S3_HEADS_REFUSED];
    atomic_bool is_stopping;

    // The regions of buckets, which all workers read and write without a lock. An entry of
    // bucket_regions is the hash of the bucket. Its last byte is replaced by a number that names
    // the region: the index in region_names plus 1. Region names are never freed while the origin
    // exists.
    _Atomic(char *) region_names[ORIGIN_S3_REGION_NAMES_MAX];
    atomic_uint_least64_t bucket_regions[ORIGIN_S3_REGIONS_MAX]; // 0: a free entry.
    atomic_uint region_next; // The entry of bucket_regions to replace next.
};

struct origin_s3_pool {
    char access_key[129]; // "": the origin's own credentials.
    struct transfer_pool *pool;
    unsigned use_count; // Number of running calls.
    unsigned number;    // Value of origin.live.number when the options were set.
    uint64_t used_at_us;
};

// The driver's state on one worker.
struct origin_s3_part {
    struct origin_s3_pool pools[ORIGIN_S3_POOLS_MAX];
};

// --- origin_s3_shared.c --------------------------------------------------------------------------

static inline struct origin_s3_state *origin_s3_state_of(const struct origin_worker *ow)
{
    return ow->origin->driver_state;
}

// Returns the region for signing a bucket's requests. Sets *ret_known to false if the region is
// only a guess.
struct span origin_s3_region_of(const struct origin_worker *ow, struct span bucket,
                                bool *ret_known);
bool origin_s3_region_is_valid(struct span region);
void origin_s3_region_learn(struct origin_worker *ow, struct span bucket, struct span region);
// Returns a pool of connections for these credentials (NULL: the origin's own). Returns NULL if too
// many sets of credentials are in use. The caller returns the pool with origin_s3_pool_leave().
struct origin_s3_pool *origin_s3_pool_enter(struct origin_worker *ow,
                                            const struct sigv4_credentials *credentials);
void origin_s3_pool_leave(struct origin_worker *ow, struct origin_s3_pool *pool);
void origin_s3_rest(struct origin_worker *ow); // Frees the worker's unused pools.
void origin_s3_stop(struct origin *origin);    // Ends all transfers, but not their calls.

// Returns true if the origin may decompress objects. Google's store and Cloudflare's R2 decompress
// an object stored with Content-Encoding: gzip, unless the request has Accept-Encoding: gzip. The
// decompressed answer has no length and no ranges, but the ETag of the compressed bytes.
//
// So fetches ask such an origin for gzip. The cache then stores the bytes as the origin stores
// them, and the ETag and the size describe these bytes. Fetches ask every other origin for identity
// encoding, because a proxy in front of it might compress the answer. A proxied read keeps its
// client's own Accept-Encoding.
static inline bool origin_s3_unpacks(const struct origin_worker *ow)
{
    return atomic_load_explicit(&origin_s3_state_of(ow)->unpacks, memory_order_relaxed);
}
// Learns from the headers of an answer that the store decompresses. Needed where the endpoint's
// name does not show it.
void origin_s3_unpacks_learn(struct origin_worker *ow, const struct headers *answer);

// --- origin_s3_call.c ----------------------------------------------------------------------------

void origin_s3_fetch_start(struct origin_worker *ow, struct origin_fetch *f);
void origin_s3_relay_start(struct origin_worker *ow, struct origin_relay *r);

#endif
