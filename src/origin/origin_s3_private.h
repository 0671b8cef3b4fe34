// SPDX-License-Identifier: Apache-2.0
// What the files of the S3 driver share: where requests go, how they are built and signed, regions,
// credentials.
#ifndef FOREBAY_ORIGIN_S3_PRIVATE_H
#define FOREBAY_ORIGIN_S3_PRIVATE_H

#include "net/net.h"
#include "origin/credentials_chain.h"
#include "origin/origin_private.h"

#define ORIGIN_S3_REGIONS_MAX 256u     // buckets whose region is remembered
#define ORIGIN_S3_REGION_NAMES_MAX 64u // different regions
#define ORIGIN_S3_REGION_MAX 63u       // bytes of a name
#define ORIGIN_S3_REDIRECTS_MAX 4u     // that one call follows
#define ORIGIN_S3_LOCATION_MAX 8192u   // bytes of one that is followed
#define ORIGIN_S3_HEADS_REFUSED 256u // keys whose HEAD is refused that an origin remembers, at most
#define ORIGIN_S3_POOLS_MAX 16u      // credential sets with connections of their own, per worker

// --- origin_s3_endpoint.c: pure ------------------------------------------------------------------

// Where an origin is. `host` may hold "{region}".
struct origin_s3_endpoint {
    bool is_https, is_aws;
    char *host;           // with the port, as it goes into Host; lower case
    char *base_path;      // "" or "/prefix", already percent-encoded
    char *default_region; // named by the endpoint itself; NULL: none
};
// ERR_INVALID with one clear line in ret_why.
enum err origin_s3_endpoint_parse(const char *text, struct origin_s3_endpoint *ret_endpoint,
                                  struct buf *ret_why) MUST_USE;
void origin_s3_endpoint_done(struct origin_s3_endpoint *endpoint);
// Where that is, however it is spelt, with this region in a template: scheme, host without the dot
// at its end, port unless it is the scheme's, path. Hosts that differ in what looks like a region
// are the same, and Amazon's hosts of S3 are all the same: one that is wrongly taken for another
// costs hits, one that is not recognised would cost the truth. Appended.
void origin_s3_endpoint_place(const struct origin_s3_endpoint *endpoint, const char *region,
                              struct buf *out);
// As people read it, with this region in a template. Appended.
void origin_s3_endpoint_show(const struct origin_s3_endpoint *endpoint, struct span region,
                             struct buf *out);
bool origin_s3_endpoint_has_region(
    const struct origin_s3_endpoint *endpoint); // "{region}" in the host
// Is the bucket addressed by host name? Only names that are safe in one, and never dotted ones
// under https.
bool origin_s3_endpoint_is_virtual(const struct origin_s3_endpoint *endpoint,
                                   enum origin_addressing addressing, struct span bucket);

// What goes on the wire, in `arena`. `path` and `query` are canonical: what is signed is what is
// sent.
struct origin_s3_url {
    const char *url;
    struct span host, path, query;
};
// `key` is decoded bytes; `query` is canonical or empty.
enum err origin_s3_url_build(struct arena *arena, const struct origin_s3_endpoint *endpoint,
                             enum origin_addressing addressing, struct span region,
                             struct span bucket, struct span key, struct span query,
                             struct origin_s3_url *ret_url) MUST_USE;

// A name, an IPv4 address or an [IPv6 address], and an optional port. `may_be_template`: "{region}"
// may stand in a name.
bool origin_s3_host_is_valid(struct span host, bool may_be_template);

// --- origin_s3_redirect.c: pure ------------------------------------------------------------------

// Builds the URL of a redirect from its `location` and the `host` that sent it, with the endpoint's
// scheme. Path and query are canonical, or exactly as sent if they carry a signature
// (*ret_is_presigned). ERR_INVALID: the redirect may not be followed. ERR_NO_MEMORY.
enum err origin_s3_redirect_build(struct arena *arena, bool is_https, struct span host,
                                  struct span location, struct origin_s3_url *ret_url,
                                  bool *ret_is_presigned) MUST_USE;
// Does it name this object (an empty key: this bucket), in path or virtual-hosted style?
bool origin_s3_redirect_is_to(const struct origin_s3_url *url, struct span bucket, struct span key);
// Is this host a name, or an address no further inside than `reach`?
bool origin_s3_host_is_within(struct span host, enum transfer_reach reach);

// --- origin_s3_headers.c: pure -------------------------------------------------------------------

// Client headers that a relayed request keeps, by S3's rules for signing again, into `ret_headers`.
// ERR_INVALID: a value that must not be sent. `framed`: the body stays aws-chunked.
enum err origin_s3_headers_forward(struct arena *arena, const struct headers *client, bool framed,
                                   struct headers *ret_headers) MUST_USE;
// The query without what a presigned link adds, canonical.
enum err origin_s3_query_forward(struct arena *arena, const struct s3_request *request,
                                 struct span *ret_query) MUST_USE;
// Headers of an answer that a client may see.
enum err origin_s3_headers_answered(struct arena *arena, const struct headers *origin,
                                    struct headers *ret_headers) MUST_USE;

// Those of an error's answer that belong to the error and not to its document or to one hop.
enum err origin_s3_headers_of_error(struct arena *arena, const struct headers *origin,
                                    struct headers *ret_headers) MUST_USE;

// --- origin_s3_status.c: pure --------------------------------------------------------------------

// Answers to a relay whose body is judged before any of it is passed on.
bool origin_s3_status_must_collect(unsigned status);
// Answers a client never sees: it gets a 503 of our own.
bool origin_s3_status_is_hidden(unsigned status);
// None that S3, or a gateway in front of it, gives. On a connection that has carried others it is
// no answer to our request.
bool origin_s3_status_is_foreign(unsigned status);
bool origin_s3_status_is_token_error(struct span code);
// Of 408, 429 and 5xx.
enum err origin_s3_status_failure(unsigned status);
// How a fetch ends that was answered by neither 200 nor 206.
enum err origin_s3_status_error(const struct origin_fetch *f, unsigned status, struct span code);

// --- The driver's state --------------------------------------------------------------------------

struct origin_s3_state {
    struct origin_s3_endpoint endpoint;
    char *region; // configured or found at the start; NULL: to be learnt, us-east-1 until then
    bool region_is_fixed;
    struct credentials_renewer *renewer;
    atomic_long clock_skew_s; // origin's clock minus ours, once it has complained
    atomic_bool unpacks;      // origin_s3_unpacks()
    // origin_s3_odd.c
    atomic_ulong head_answered_until_us, if_match_answered_until_us; // monotonic
    atomic_ulong heads_refused[ORIGIN_S3_HEADS_REFUSED]; // keys; a hash and a time; 0: none
    atomic_bool is_stopping;

    // Which bucket is where: all workers read and write it without a lock. A row is a bucket's
    // hash, and in its last byte the number of its region's name, from 1 on; names stay until the
    // end.
    _Atomic(char *) region_names[ORIGIN_S3_REGION_NAMES_MAX];
    atomic_uint_least64_t bucket_regions[ORIGIN_S3_REGIONS_MAX]; // 0: free
    atomic_uint region_next;                                     // the row that makes room
};

struct origin_s3_pool {
    char access_key[129]; // "" = the origin's own credentials
    struct transfer_pool *pool;
    unsigned use_count; // running calls
    unsigned number;    // of the changes of the origin that it goes by
    uint64_t used_at_us;
};

// On one worker.
struct origin_s3_part {
    struct origin_s3_pool pools[ORIGIN_S3_POOLS_MAX];
};

// --- origin_s3.c: what calls of one worker share -------------------------------------------------

static inline struct origin_s3_state *origin_s3_state_of(const struct origin_worker *ow)
{
    return ow->origin->driver_state;
}

// The region a bucket's requests are signed for, and whether that is known or only assumed.
struct span origin_s3_region_of(const struct origin_worker *ow, struct span bucket,
                                bool *ret_known);
bool origin_s3_region_is_valid(struct span region);
void origin_s3_region_learn(struct origin_worker *ow, struct span bucket, struct span region);
// Connections for these credentials, NULL: the origin's own. NULL when too many sets are busy.
// Given back with origin_s3_pool_leave().
struct origin_s3_pool *origin_s3_pool_enter(struct origin_worker *ow,
                                            const struct sigv4_credentials *credentials);
void origin_s3_pool_leave(struct origin_worker *ow, struct origin_s3_pool *pool);

// Google's store and Cloudflare's R2 unpack an object that is stored with Content-Encoding: gzip,
// unless a request says Accept-Encoding: gzip. The unpacked answer has no length and no ranges, but
// the ETag of the packed bytes. So fetches ask such a store for gzip. The cache then holds the
// bytes that the store holds, which ETag and size name. Fetches ask every other origin for
// identity, because a proxy in front of it might pack the answer. A proxied read keeps its client's
// own Accept-Encoding.
static inline bool origin_s3_unpacks(const struct origin_worker *ow)
{
    return atomic_load_explicit(&origin_s3_state_of(ow)->unpacks, memory_order_relaxed);
}
// Learnt from the headers of an answer, where the endpoint's name does not say so.
void origin_s3_unpacks_learn(struct origin_worker *ow, const struct headers *answer);

// --- origin_s3_call.c ----------------------------------------------------------------------------

void origin_s3_fetch_start(struct origin_worker *ow, struct origin_fetch *f);
void origin_s3_relay_start(struct origin_worker *ow, struct origin_relay *r);
void origin_s3_call_pause(struct origin_call *call);
void origin_s3_call_resume(struct origin_call *call);
void origin_s3_call_resume_upload(struct origin_call *call);
void origin_s3_call_cancel(struct origin_call *call);
void origin_s3_call_abandon(struct origin_call *call);

#endif
