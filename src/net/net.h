// SPDX-License-Identifier: Apache-2.0
// The HTTP client: requests through libcurl in a worker's loop, with their connections, TLS and
// name look-up, and the strict scanner of what a server answers. Knows no S3.
//
// Rules for every asynchronous call here: as in loop/loop.h.
#ifndef FOREBAY_NET_NET_H
#define FOREBAY_NET_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/headers.h"
#include "loop/loop.h"

// libcurl's global state, once a process; before other threads exist.
void net_init(void);

// --- transfer.c ----------------------------------------------------------------------------------
// HTTP/1.1 requests through a curl multi handle in the worker's loop.

// One pool per worker, origin and credential set: libcurl may reuse a connection only inside a
// pool.
struct transfer_pool_options {
    unsigned max_connections;       // per host; more requests wait
    uint64_t connect_timeout_ms;    // 3 s
    uint64_t first_byte_timeout_ms; // from the request being sent to the first header; 10 s
    uint64_t idle_timeout_ms; // longest pause inside a body we are not pausing ourselves; 10 s
    uint64_t keepalive_ms;    // idle connections older than this are not reused (4 s)
    const char *ca_file;      // NULL: system bundle
    bool deny_link_local;     // refuse to connect where clouds hand out credentials
    const char *names;        // NULL; in tests "NAME:PORT:ADDRESS,ADDRESS", which is not looked up
};
struct transfer_pool;
struct transfer_pool *transfer_pool_new(struct worker *w,
                                        const struct transfer_pool_options *options);
// Transfers that start from now on go by these; max_connections and names stay, and so do
// connections.
void transfer_pool_set(struct transfer_pool *pool, const struct transfer_pool_options *options);
// The authorities of that file, read anew: ERR_INVALID where it has none that can be used. Any
// thread; blocks.
struct transfer_authorities;
enum err transfer_authorities_load(const char *ca_file,
                                   struct transfer_authorities **ret_fresh) MUST_USE;
// New connections of pools with that file go by them; takes them. Any thread.
void transfer_authorities_use(struct transfer_authorities *fresh);
void transfer_authorities_free(
    struct transfer_authorities *fresh); // those that are not used; NULL is fine
// Running transfers end with ERR_CANCELLED first. On the worker, not inside on_end(), or after
// loop_stop(); before loop_free().
void transfer_pool_free(struct transfer_pool *pool);

struct transfer;
struct transfer_calls {
    // Every raw header line as received, status lines included, CRLF included, 1xx heads too;
    // trailer fields not.
    // Anything but ERR_OK aborts the transfer with that error (origin: the response head).
    enum err (*on_header_line)(void *ctx, struct span line);
    // Body bytes. All of them must be taken. May call transfer_pause().
    enum err (*on_body)(void *ctx, struct span data);
    // Upload: fill up to `max` bytes; *ret_len 0 with ERR_OK = end of body; ERR_AGAIN = paused
    // until transfer_resume_upload(); other errors abort. NULL without a body.
    enum err (*on_upload)(void *ctx, char *buf, size_t max, size_t *ret_len);
    // The end, exactly once: ERR_OK = the message was complete by its framing. The transfer is gone
    // after.
    void (*on_end)(void *ctx, enum err err, const char *detail);
};
// How private an address is, in rising order. A transfer that follows a redirect may not go to a
// more private address than that of the host that sent the redirect.
enum transfer_reach {
    TRANSFER_REACH_ANY,     // no limit, or not known
    TRANSFER_REACH_PUBLIC,  // the internet
    TRANSFER_REACH_PRIVATE, // private and shared ranges (RFC 1918, 6598, 4193)
    TRANSFER_REACH_LOCAL    // this machine, or its link
};
enum transfer_reach transfer_reach_of_text(const char *address); // ANY: no literal address

struct transfer_request {
    struct span method;
    const char *url; // finished: sent as is (CURLOPT_PATH_AS_IS)
    // All of them, Host included; nothing is added but what HTTP framing needs. Content-Length,
    // Transfer-Encoding and Expect are ours and left out: a body goes with its length, and PUT and
    // POST without one as length 0.
    const struct header *headers;
    unsigned header_count;
    bool has_body;
    uint64_t body_length;  // always known
    bool fresh_connection; // a request that must not be repeated on a dead reused connection
    uint64_t first_byte_timeout_ms; // 0 = the pool's
    uint64_t late_timeout_ms;       // longest pause inside the body of a success; 0 = the pool's
    const char *unix_socket;        // NULL
    enum transfer_reach reach;      // ERR_PERMISSION if all addresses are further inside
};
// on_end may already have been noted but never runs inside this call. Calls get `ctx`.
struct transfer *transfer_start(struct transfer_pool *pool, const struct transfer_request *request,
                                const struct transfer_calls *calls, void *ctx);
void transfer_pause(struct transfer *t);  // stop body deliveries; allowed in callbacks
void transfer_resume(struct transfer *t); // goes on in the next turn, never inside this call
void transfer_resume_upload(struct transfer *t);
// No callback but on_end(ERR_CANCELLED) later.
void transfer_cancel(struct transfer *t);
// In a callback: did the connection carry a request before this one?
bool transfer_reused_connection(const struct transfer *t);

// In a callback: where the connection leads; PUBLIC where that is not known.
enum transfer_reach transfer_reach_of_peer(const struct transfer *t);

// --- response_head.c -----------------------------------------------------------------------------
// Strict check of a server's answer from its raw header lines, before anyone believes it. Pure: no
// I/O, no clock; memory only from the caller's arena. One thread at a time.
//
// Life: response_head_init(), response_head_line() for every raw line until it says that the head
// is complete, then the fields may be read.

// Metadata of 2 KiB, as S3 allows it, may be several hundred headers. ERR_ORIGIN_HEAD_TOO_LARGE
// names both figures. libcurl refuses heads of 300 KiB.
#define RESPONSE_HEADERS_MAX 1024u     // of a head; below HEADERS_MAX by what a reply of ours adds
#define RESPONSE_HEAD_MAX (256u << 10) // bytes of all header lines, interim heads included
#define RESPONSE_INTERIM_MAX 16u       // 1xx heads before the final one

struct response_head {
    struct arena *arena;
    bool is_head_request;
    enum { RESPONSE_STATUS_LINE, RESPONSE_HEADERS, RESPONSE_INTERIM, RESPONSE_DONE } state;
    size_t head_bytes;
    unsigned interim_count;

    // After the head is complete
    unsigned status, version_minor;
    bool is_strict;  // every line was well formed; false: never store
    bool has_length; // Content-Length
    uint64_t length;
    bool is_chunked;        // Transfer-Encoding: chunked
    struct headers headers; // all that were well formed, values trimmed; copies in the arena

    bool last_was_framing, has_last; // what a folded line would continue
};

void response_head_init(struct response_head *h, struct arena *arena, bool is_head_request);
// Takes one raw line, CRLF included. *ret_done: the head is complete (further lines are trailers
// and ignored). ERR_ORIGIN_PROTOCOL: the answer must not be believed; close the connection.
// ERR_ORIGIN_HEAD_TOO_LARGE: likewise, more than RESPONSE_HEADERS_MAX headers or RESPONSE_HEAD_MAX
// bytes. ERR_NO_MEMORY.
enum err response_head_line(struct response_head *h, struct span line, bool *ret_done) MUST_USE;

#endif
