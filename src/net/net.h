// SPDX-License-Identifier: Apache-2.0
// The HTTP client: sends requests with libcurl in a worker's loop, and owns their connections, TLS
// and name look-up. It also checks the response heads strictly. It knows no S3.
//
// The rules of loop/loop.h for asynchronous calls hold here too.
#ifndef FOREBAY_NET_NET_H
#define FOREBAY_NET_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/headers.h"
#include "loop/loop.h"

// Initialises libcurl's global state, once per process. Call it before other threads exist.
void net_init(void);

// --- transfer.c ----------------------------------------------------------------------------------
// HTTP/1.1 requests through curl multi handles in the worker's loop.

// One pool per worker, origin and credential set: libcurl may reuse a connection only inside a
// pool.
struct transfer_pool_options {
    unsigned max_connections;       // per host; requests above it wait
    uint64_t connect_timeout_ms;    // 3 s
    uint64_t first_byte_timeout_ms; // from the end of the request to the first header; 10 s
    uint64_t idle_timeout_ms;       // longest silence inside a body, unless we paused it; 10 s
    uint64_t keepalive_ms;          // idle connections older than this are not reused (4 s)
    const char *ca_file;            // NULL: system bundle
    bool deny_link_local;           // refuse addresses at which clouds hand out credentials
    // For tests: "NAME:PORT:ADDRESS,ADDRESS" gives the addresses of NAME instead of a look-up.
    // Otherwise NULL.
    const char *names;
};
struct transfer_pool;
struct transfer_pool *transfer_pool_new(struct worker *w,
                                        const struct transfer_pool_options *options);
// Changes the options for transfers that start from now on. max_connections, names and existing
// connections stay as they are.
void transfer_pool_set(struct transfer_pool *pool, const struct transfer_pool_options *options);
// Reads the certificate authorities of a file again. Returns ERR_INVALID if it has no usable one.
// Any thread; blocks.
struct transfer_authorities;
enum err transfer_authorities_load(const char *ca_file,
                                   struct transfer_authorities **ret_fresh) MUST_USE;
// Uses `fresh` for new connections of all pools with that file. Takes ownership of `fresh`. Any
// thread.
void transfer_authorities_use(struct transfer_authorities *fresh);
// Frees authorities that were not passed to transfer_authorities_use(). NULL is allowed.
void transfer_authorities_free(struct transfer_authorities *fresh);
// Frees a pool. Its running transfers first end with ERR_CANCELLED. Call it on the worker, but not
// inside on_end(), or between loop_stop() and loop_free().
void transfer_pool_free(struct transfer_pool *pool);

struct transfer;
struct transfer_calls {
    // Gets every raw header line as received, CRLF included: status lines and 1xx heads too, but no
    // trailer fields. Any result but ERR_OK aborts the transfer with that error.
    enum err (*on_header_line)(void *ctx, struct span line);
    // Gets body bytes and must take all of them. May call transfer_pause().
    enum err (*on_body)(void *ctx, struct span data);
    // Upload: writes up to `max` bytes into `buf`. ERR_OK with *ret_len 0 means the end of the
    // body. ERR_AGAIN pauses the upload until transfer_resume_upload(). Other errors abort. NULL
    // without a body.
    enum err (*on_upload)(void *ctx, char *buf, size_t max, size_t *ret_len);
    // Called exactly once, at the end. ERR_OK: the message was complete by its framing. The
    // transfer is freed after this call.
    void (*on_end)(void *ctx, enum err err, const char *detail);
};
// How private an address is, in rising order. A transfer that follows a redirect may not connect to
// an address that is more private than the address of the host that sent the redirect.
enum transfer_reach {
    TRANSFER_REACH_ANY,     // no limit, or unknown
    TRANSFER_REACH_PUBLIC,  // the internet
    TRANSFER_REACH_PRIVATE, // private and shared ranges (RFC 1918, 6598, 4193)
    TRANSFER_REACH_LOCAL    // this machine or its network link
};
// Returns ANY if the text is not a literal address.
enum transfer_reach transfer_reach_of_text(const char *address);

struct transfer_request {
    struct span method;
    const char *url; // complete; sent unchanged (CURLOPT_PATH_AS_IS)
    // All headers to send, Host included. Only HTTP framing headers are added. Content-Length,
    // Transfer-Encoding and Expect are dropped from this list, because this layer writes them. A
    // body is sent with its length, and a PUT or POST without a body with length 0.
    const struct header *headers;
    unsigned header_count;
    bool has_body;
    uint64_t body_length; // always known
    // Use a new connection, because a reused one may be dead and the request must not be repeated.
    bool fresh_connection;
    uint64_t first_byte_timeout_ms; // 0: the pool's
    uint64_t late_timeout_ms;       // longest silence inside the body of a 2xx; 0: idle_timeout_ms
    const char *unix_socket;        // path of the socket to connect to; NULL: use the URL's host
    // The most private kind of address allowed. ERR_PERMISSION if the name has no such address.
    enum transfer_reach reach;
};
// Starts a transfer. No callback runs inside this call; even an immediate failure reports on_end()
// later. The callbacks get `ctx`.
struct transfer *transfer_start(struct transfer_pool *pool, const struct transfer_request *request,
                                const struct transfer_calls *calls, void *ctx);
void transfer_pause(struct transfer *t);  // stops body delivery; allowed in callbacks
void transfer_resume(struct transfer *t); // continues in the next turn, never inside this call
void transfer_resume_upload(struct transfer *t);
// Cancels the transfer. The only callback after this is on_end(ERR_CANCELLED).
void transfer_cancel(struct transfer *t);
// Only in a callback: returns true if the connection has carried an earlier request.
bool transfer_reused_connection(const struct transfer *t);

// Only in a callback: returns the reach of the peer's address; PUBLIC if unknown.
enum transfer_reach transfer_reach_of_peer(const struct transfer *t);

// --- response_head.c -----------------------------------------------------------------------------
// Checks a server's response head strictly, from its raw header lines, before any other code trusts
// the head. Pure: no I/O and no clock; memory comes only from the caller's arena. Not thread-safe.
//
// Usage: response_head_init(), then response_head_line() for every raw line until it reports a
// complete head. Then the fields may be read.

// S3 allows 2 KiB of metadata, which may be several hundred headers. The text of
// ERR_ORIGIN_HEAD_TOO_LARGE names both limits. libcurl itself refuses heads above 300 KiB.
#define RESPONSE_HEADERS_MAX 1024u     // per head; less than HEADERS_MAX, as a reply adds its own
#define RESPONSE_HEAD_MAX (256u << 10) // bytes of all header lines, interim heads included
#define RESPONSE_INTERIM_MAX 16u       // 1xx heads before the final one

struct response_head {
    struct arena *arena;
    bool is_head_request;
    enum { RESPONSE_STATUS_LINE, RESPONSE_HEADERS, RESPONSE_INTERIM, RESPONSE_DONE } state;
    size_t head_bytes;
    unsigned interim_count;

    // Valid once the head is complete.
    unsigned status, version_minor;
    bool is_strict;  // every line was well formed; false: never store
    bool has_length; // Content-Length
    uint64_t length;
    bool is_chunked;        // Transfer-Encoding: chunked
    struct headers headers; // the well-formed headers, values trimmed; copies in the arena

    // About the previous header line, which a folded line would continue: whether there is one, and
    // whether it is a framing header.
    bool last_was_framing, has_last;
};

void response_head_init(struct response_head *h, struct arena *arena, bool is_head_request);
// Takes one raw line, CRLF included. *ret_done: the head is complete; further lines are trailers
// and are ignored. ERR_ORIGIN_PROTOCOL: the answer cannot be trusted; close the connection.
// ERR_ORIGIN_HEAD_TOO_LARGE: the same, for more than RESPONSE_HEADERS_MAX headers or
// RESPONSE_HEAD_MAX bytes. Also ERR_NO_MEMORY.
enum err response_head_line(struct response_head *h, struct span line, bool *ret_done) MUST_USE;

#endif
