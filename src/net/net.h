// SPDX-License-Identifier: Apache-2.0
// The HTTP client: sends requests with libcurl in a worker's loop, and handles their connections,
// TLS and name look-up. It also checks the response heads strictly. It knows nothing of S3.
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
// Sends HTTP/1.1 requests by curl multi handles in the worker's loop.

// A pool of connections. There is one per worker, origin and credential set, because libcurl reuses
// a connection only inside a pool.
struct transfer_pool_options {
    unsigned max_connections;       // The most connections per host. Further requests wait.
    uint64_t connect_timeout_ms;    // Limit for name look-up and connecting; 3 s.
    uint64_t first_byte_timeout_ms; // Limit from the request's end to the first header line; 10 s.
    uint64_t idle_timeout_ms;       // Longest silence inside a body that we have not paused; 10 s.
    uint64_t keepalive_ms;          // A connection that was idle for longer is not reused; 4 s.
    const char *ca_file;            // File of certificate authorities. NULL: the system's.
    // The proxy for https URLs, "http://[USER:PASSWORD@]HOST:PORT". NULL: none. Proxies that the
    // environment names are ignored. The text must outlive the pool.
    const char *proxy;
    bool deny_link_local; // Refuse addresses at which clouds hand out credentials.
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
// Returns the system's file of certificate authorities: the first that exists of the places that
// distributions use. If none exists, it is the one that libcurl
// was built for, or NULL. Any thread.
const char *transfer_system_authorities(void);
// Reads the certificate authorities of a file again, for transfer_authorities_use(). Returns
// ERR_INVALID if the file has no usable authority. Any thread; blocks.
struct transfer_authorities;
enum err transfer_authorities_load(const char *ca_file,
                                   struct transfer_authorities **ret_fresh) MUST_USE;
// Makes all pools with that file use `fresh` for new connections. Takes ownership of `fresh`. Any
// thread.
void transfer_authorities_use(struct transfer_authorities *fresh);
// Frees authorities that were not passed to transfer_authorities_use(). Accepts NULL.
void transfer_authorities_free(struct transfer_authorities *fresh);
// Frees a pool. Its running transfers first end with ERR_CANCELLED. Call it on the pool's worker,
// except inside on_end(). After loop_stop(), the thread that owns the loop may also call it.
void transfer_pool_free(struct transfer_pool *pool);

#define TRANSFER_PIECE_MAX (128u << 10) // The most bytes in one call of on_body().

struct transfer;
struct transfer_calls {
    // Gets every raw header line as received, with its CRLF. Status lines and 1xx heads are
    // included, trailer fields are not. Any result but ERR_OK aborts the transfer with that error.
    enum err (*on_header_line)(void *ctx, struct span line);
    // Gets bytes of the body, and must use or copy all of them. May call transfer_pause(). Any
    // result but ERR_OK aborts the transfer with that error.
    enum err (*on_body)(void *ctx, struct span data);
    // Writes the next bytes of an upload into `buf`, up to `max`. NULL if the request has no body.
    // ERR_AGAIN pauses the upload until transfer_resume_upload(). Any other error aborts the
    // transfer, and so does ERR_OK with *ret_len 0 before body_length is reached.
    enum err (*on_upload)(void *ctx, char *buf, size_t max, size_t *ret_len);
    // Called exactly once, at the end. ERR_OK: the answer is complete by its HTTP framing. The
    // transfer is freed after this call.
    void (*on_end)(void *ctx, enum err err, const char *detail);
};
// How private an address is, in rising order. A transfer that follows a redirect may connect only
// to addresses that are no more private than that of the host that sent the redirect.
enum transfer_reach {
    TRANSFER_REACH_ANY,     // No limit, or unknown.
    TRANSFER_REACH_PUBLIC,  // An address on the internet.
    TRANSFER_REACH_PRIVATE, // A private or shared range (RFC 1918, 6598, 4193).
    TRANSFER_REACH_LOCAL    // This machine or its network link.
};
// Returns how private a literal address is. Returns ANY if the text is no literal address.
enum transfer_reach transfer_reach_of_text(const char *address);

struct transfer_request {
    struct span method;
    const char *url; // Complete; its path is sent unchanged (CURLOPT_PATH_AS_IS).
    // All headers to send, Host included, except for the framing headers. Content-Length,
    // Transfer-Encoding and Expect are ignored, because this layer writes the framing itself. A
    // body is sent with its length, and a PUT or POST without a body with length 0.
    const struct header *headers;
    unsigned header_count;
    bool has_body;
    uint64_t body_length; // Length of the body in bytes. It must be known.
    bool expects_long;    // The answer will be long: it gets a larger receive buffer.
    // Use a new connection. Needed for a request that must not be repeated, because a reused
    // connection may be dead.
    bool fresh_connection;
    uint64_t first_byte_timeout_ms; // 0: the pool's timeout applies.
    uint64_t late_timeout_ms; // Replaces idle_timeout_ms in the body of a 2xx, unless it is 0.
    const char *unix_socket;  // The path of a socket to connect to. NULL: the URL's host.
    // The most private kind of address that the transfer may connect to. If all addresses of the
    // host are more private, the transfer fails with ERR_PERMISSION.
    enum transfer_reach reach;
};
// Starts a transfer, whose callbacks get `ctx`. No callback runs inside this call. Even an
// immediate failure is reported later, by on_end().
struct transfer *transfer_start(struct transfer_pool *pool, const struct transfer_request *request,
                                const struct transfer_calls *calls, void *ctx);
void transfer_pause(struct transfer *t);  // Stops the delivery of the body. Allowed in callbacks.
void transfer_resume(struct transfer *t); // Delivery continues in the next turn, not in this call.
void transfer_resume_upload(struct transfer *t);
// Cancels the transfer. The only callback that still runs is on_end(ERR_CANCELLED).
void transfer_cancel(struct transfer *t);
// Returns true if the connection has carried an earlier request. Only for use in a callback.
bool transfer_reused_connection(const struct transfer *t);

// Returns how private the address of the server is. PUBLIC if unknown, as behind a proxy. Only for
// use in a callback.
enum transfer_reach transfer_reach_of_peer(const struct transfer *t);

// --- response_head.c -----------------------------------------------------------------------------
// Checks a server's response head strictly, from its raw header lines, before any other code trusts
// the head. Pure: no I/O and no clock; memory comes only from the caller's arena. Not thread-safe.
//
// Usage: response_head_init(), then response_head_line() for every raw line until it reports a
// complete head. Then the fields may be read.

// S3 allows 2 KiB of metadata, which may be several hundred headers. The error text of
// ERR_ORIGIN_HEAD_TOO_LARGE states both limits. libcurl itself refuses heads above 300 KiB.
#define RESPONSE_HEADERS_MAX 1024u // Per head; below HEADERS_MAX, because our replies add headers.
// The most bytes of all header lines, interim heads included.
#define RESPONSE_HEAD_MAX (256u << 10)
#define RESPONSE_INTERIM_MAX 16u // The most 1xx heads before the final one.

struct response_head {
    struct arena *arena;
    bool is_head_request;
    enum { RESPONSE_STATUS_LINE, RESPONSE_HEADERS, RESPONSE_INTERIM, RESPONSE_DONE } state;
    size_t head_bytes;
    unsigned interim_count;

    // Valid once the head is complete.
    unsigned status, version_minor;
    bool says_slow_down; // The reason phrase is "Slow Down".
    bool is_strict;      // Every line was well formed. If false, the answer must not be stored.
    bool has_length;     // There is a Content-Length.
    uint64_t length;
    bool is_chunked;        // There is "Transfer-Encoding: chunked".
    struct headers headers; // Copies of the well-formed headers, with trimmed values.

    // The previous header line, which a folded line would continue.
    enum { PREVIOUS_NOT_KEPT, PREVIOUS_KEPT, PREVIOUS_FRAMING } previous;
};

void response_head_init(struct response_head *h, struct arena *arena, bool is_head_request);
// Reads one raw line, with its CRLF. Sets *ret_done once the head is complete. Further lines are
// then trailers and are ignored. Errors:
//
// - ERR_ORIGIN_PROTOCOL: the answer cannot be trusted, so the caller closes the connection.
// - ERR_ORIGIN_HEAD_TOO_LARGE: the head has more than RESPONSE_HEADERS_MAX headers or
//   RESPONSE_HEAD_MAX bytes. The caller closes the connection too.
// - ERR_NO_MEMORY.
enum err response_head_line(struct response_head *h, struct span line, bool *ret_done) MUST_USE;

#endif
