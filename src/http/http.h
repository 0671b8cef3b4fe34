// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on the client side: listeners, connections, the strict request head, replies with
// back-pressure. It knows neither S3 nor the store. A connection stays on one worker for life. An
// exchange is one request and its reply on a connection. Pipelined requests are answered in order:
// the next exchange starts when the previous one has ended.
#ifndef FOREBAY_HTTP_HTTP_H
#define FOREBAY_HTTP_HTTP_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/chunk.h"
#include "base/error.h"
#include "base/headers.h"
#include "loop/loop.h"
#include "stats/stats.h"

// --- limits (request_head.c) ---------------------------------------------------------------------
#define HTTP_LISTENERS_MAX 32
#define HTTP_TARGET_MAX 16384
#define HTTP_HEAD_MAX 49152
#define HTTP_HEADER_COUNT_MAX 512 // more than a request with S3's maximum of 2 KiB of metadata has
#define HTTP_HEADER_MAX 16384
#define HTTP_DRAIN_MAX 65536 // request body bytes that are discarded after an early reply
// Multiple of min_rate_bytes that a client must send while the memory of bodies is short, if its
// body is kept there (http_sink.is_collected).
#define HTTP_COLLECTED_RATE 16u
#define HTTP_PASSED_AT_ONCE 32u // maximum connections in a message to http_server_take_over()
#define HTTP_OUT_HIGH 262144    // the source is not asked while this many reply bytes are in memory
#define HTTP_FILE_SLICE_MAX 524288

// Memory of one request that waits or is being answered: its arena, its state and the run that it
// waits for, without payload. Measured.
#define HTTP_EXCHANGE_BYTES 24576

// --- server --------------------------------------------------------------------------------------

struct http_exchange;

// A request, or a connection, that http refuses. The handler never sees a request of it.
struct http_refusal {
    enum err err;
    enum counter why;      // the counter of the reason; http has added to it
    struct worker *worker; // on which the handler is called
    struct arena *arena;
    // If no head was accepted, it has only the client and the time, and whether the method is HEAD.
    const struct http_request *request;
};

struct http_handler {
    void *ctx;
    // Called with a request whose head was accepted. Runs on the connection's worker, never nested.
    // The handler calls http_reply_start() now or later.
    void (*on_request)(void *ctx, struct http_exchange *x);
    // Called once for each refusal. Appends the body of the error reply (S3 XML) to `out`, and adds
    // its Content-Type and any other headers to `headers`. Both are NULL if the connection ends
    // without a reply.
    void (*on_refused)(void *ctx, const struct http_refusal *refusal, struct headers *headers,
                       struct buf *out);
    // Returns true if paused readers keep files that have to be freed. Then no reader gets
    // min_rate_patience_ms. NULL: never.
    bool (*files_are_short)(void *ctx);
};

// A socket that another process created and that listens already.
struct http_inherited {
    int fd; // owned by the server after http_server_new()
    bool is_tls;
    bool owns_name; // this process removes the name of the unix socket at its end
};

// The limits that may change while the server runs.
struct http_limits {
    unsigned max_connections; // of all workers together; above it: 503 and close
    // per IPv4 address or IPv6 /64; above it: 503 and close; 0: no limit
    unsigned max_connections_per_source;
    unsigned max_inflight;           // exchanges; above it: 503 SlowDown, the connection stays
    unsigned max_inflight_in_memory; // exchanges that fit into memory; above it likewise
    uint64_t max_held_bytes; // memory for long heads and TLS; above it: 503 or a close; 0: no limit
    uint64_t header_timeout_ms; // for a whole head, from its first byte (or from accept)
    uint64_t idle_timeout_ms;   // silence between requests
    uint64_t min_rate_bytes;    // per second, read or sent by a client; see min_rate_grace_ms
};

// Certificate and key of tls: listeners. http_tls_new() reads and checks the PEM files; on
// ERR_INVALID ret_why gets one line. It may block, so do not call it on a worker.
struct http_tls;
enum err http_tls_new(const char *cert_file, const char *key_file, struct http_tls **ret_tls,
                      struct buf *ret_why) MUST_USE;
void http_tls_free(struct http_tls *tls); // for one that no server owns; accepts NULL

struct http_options {
    const char *const *listen; // "127.0.0.1:9000", "[::1]:9000", "unix:/path", "tls:host:port";
                               // port 0: the kernel chooses
    unsigned listen_count;
    unsigned unix_mode;                     // file mode of the sockets of unix: listeners
    const struct http_inherited *inherited; // listeners used before those of `listen` (may be NULL)
    unsigned inherited_count;
    struct http_tls
        *tls; // for tls: listeners, which need it; the server then owns it, on failure too
    struct http_limits limits;
    uint64_t min_rate_grace_ms;    // time over which min_rate_bytes is judged: 30 s
    uint64_t min_rate_patience_ms; // time for slow readers that hold no scarce resource: 10 min
    struct http_handler handler;
};

struct http_server;

// Binds and listens. On ERR_IN_USE (port taken), ERR_PERMISSION or ERR_INVALID (address), ret_why
// gets one line. The server accepts nothing before http_server_start().
enum err http_server_new(struct loop *loop, const struct http_options *options,
                         struct http_server **ret_server, struct buf *ret_why) MUST_USE;
void http_server_start(struct http_server *server);
// Returns the limits in force. Any thread.
struct http_limits http_server_limits(const struct http_server *server);
// Changes the limits. A connection applies the new ones from its next wait on. Any thread.
void http_server_set_limits(struct http_server *server, const struct http_limits *limits);
// Returns the real addresses ("127.0.0.1:43121", "unix:/path", "tls:...") in order; NULL past the
// end.
const char *http_server_address(const struct http_server *server, unsigned i);
// Returns the descriptor of listener i, which the server still owns. Sets *ret_owns_name if the
// listener is a unix socket whose name this process removes at its end. Call it before
// http_server_drain().
int http_server_listener(const struct http_server *server, unsigned i, bool *ret_owns_name);
// Unix times between which the certificate of tls: listeners is valid; 0: there is none.
struct http_certificate_life {
    int64_t from_s, until_s;
};
struct http_certificate_life http_certificate_life(void); // any thread
// Reads and checks files for tls: listeners. *ret_certificate is NULL if no listener needs
// any. On ERR_INVALID ret_why gets one line and nothing has changed. May block, so do not call it
// on a worker.
struct http_certificate;
enum err http_certificate_load(struct http_server *server, const char *cert_file,
                               const char *key_file, struct http_certificate **ret_certificate,
                               struct buf *ret_why) MUST_USE;
// Uses the certificate, which the server then owns, for connections accepted from now on. Do not
// call it after loop_stop().
void http_certificate_use(struct http_server *server, struct http_certificate *certificate);
// Frees a certificate that was never used.
void http_certificate_free(struct http_certificate *certificate);
// Stops accepting. Open exchanges end with Connection: close; idle connections close. Any thread.
void http_server_drain(struct http_server *server);
// Drains like http_server_drain(), but for a process that follows and has copies of the listening
// sockets. Clients in the accept queues wait for that process. The names of unix sockets stay.
// Through `fd`, a unix socket of type SOCK_SEQPACKET, the server sends each connection on which no
// byte of the next request was read. A message carries up to `at_once` connections. The caller owns
// `fd` and keeps it open until loop_stop(). Connections that cannot be sent, such as TLS, end with
// their next reply or by http_server_end_waiting().
void http_server_pass_on(struct http_server *server, int fd, unsigned at_once);
// Ends each connection that has waited for its client in one phase for a second, or has been silent
// for a fifth of a second after its last reply. A connection on which bytes have arrived stays.
// Call it repeatedly after http_server_pass_on(). Any thread.
void http_server_end_waiting(struct http_server *server);
// Cancels http_server_pass_on(), because no process follows. Drains the listening sockets as
// http_server_drain() does. Also takes back the connections that were passed on, and drains them.
// It receives them from `fd`, the other end of the pair, which the caller owns and keeps open until
// loop_stop(). Call it once, after http_server_pass_on(), on the same thread, which also calls
// http_server_has_ended().
void http_server_call_off(struct http_server *server, int fd);
// Accepts the connections that a former process sends through the other end of `fd`, until that
// process closes its end. The server owns `fd` from now on. Call it after http_server_start(). Any
// thread.
void http_server_take_over(struct http_server *server, int fd);
// Returns the number of open connections. Any thread.
unsigned http_server_connections(const struct http_server *server);
// Returns true if every worker has begun to drain, no connection is open, and none will be. Call it
// after http_server_drain(), on the same thread.
bool http_server_has_ended(const struct http_server *server);
// Ends every exchange and every connection, also those that come later. Call it after
// http_server_drain() and before loop_stop(), so that handlers release their resources. Any thread.
void http_server_close(struct http_server *server);
// Call it after loop_stop().
void http_server_free(struct http_server *server);

// --- request -------------------------------------------------------------------------------------

enum http_body_framing {
    HTTP_BODY_NONE,   // the head names no length
    HTTP_BODY_LENGTH, // Content-Length, which may be 0
    HTTP_BODY_CHUNKS
};

struct http_request {
    struct span method, target; // as sent, but an absolute-form target is reduced to its path
    struct span host;           // exactly as the client sent it
    struct headers headers;     // all, in order, spelling kept
    unsigned version_minor;
    enum http_body_framing framing;
    uint64_t content_length; // 0 unless HTTP_BODY_LENGTH
    bool expects_continue;   // the client waits for "100 Continue", which was not sent
    bool keep_alive;
    bool is_head;
    bool loopback; // the client is on loopback or a unix socket
    bool tls;
    struct span peer;    // address of the client, such as "127.0.0.1:5000"
    uint64_t started_us; // worker_now_us() when the head was complete; if it was refused: began
};
static inline bool http_request_has_body(const struct http_request *r)
{
    return r->framing == HTTP_BODY_CHUNKS || r->content_length > 0;
}

// All pointers are valid until on_done. The arena is the request's memory (at most 1 MiB).
const struct http_request *http_exchange_request(const struct http_exchange *x);
struct arena *http_exchange_arena(const struct http_exchange *x);
struct worker *http_exchange_worker(const struct http_exchange *x);

enum http_outcome {
    HTTP_DONE,        // the whole reply went to the socket
    HTTP_CLIENT_GONE, // the client closed, or it had half closed and read nothing more
    HTTP_CLIENT_SLOW, // the client was slower than min_rate_bytes, and was disconnected
    HTTP_CUT          // we closed the connection: the source asked for it, or the server ended
};

// The handler's callback for the end of an exchange. on_done runs exactly once and is the last
// callback; `x` is invalid afterwards.
struct http_user {
    void (*on_done)(struct http_user *user, enum http_outcome outcome);
};
void http_exchange_set_user(struct http_exchange *x, struct http_user *user);

// --- request body --------------------------------------------------------------------------------

// Receives a request body without its HTTP framing. Chunks are decoded, and trailers are dropped.
struct http_sink {
    // Data is valid during the call. The sink must consume all of it, and may call
    // http_body_pause(). An error ends the body: the rest is drained, or the connection closes
    // after the reply.
    enum err (*on_data)(struct http_sink *sink, struct span data);
    // Called exactly once unless on_done came first. ERR_OK: the body was complete.
    void (*on_end)(struct http_sink *sink, enum err err);
    // The sink keeps the body in memory until it is complete, counted as BUDGET_BODIES. While that
    // memory is short, the client must send HTTP_COLLECTED_RATE times as fast.
    bool is_collected;
};
// Starts the delivery of the body to the sink. Sends "100 Continue" first if the client expects it.
// Without this call the body is drained (HTTP_DRAIN_MAX), or the connection closes after the reply.
void http_body_start(struct http_exchange *x, struct http_sink *sink);
void http_body_pause(struct http_exchange *x);
void http_body_resume(struct http_exchange *x);

// --- reply ---------------------------------------------------------------------------------------

struct http_slice {
    enum { HTTP_SLICE_BYTES, HTTP_SLICE_FILE } kind;
    struct span bytes;          // BYTES: the memory is valid until release() is called
    void (*release)(void *ctx); // BYTES: called after they were sent or dropped; may be NULL
    void *release_ctx;
    struct file_range range; // FILE: at most HTTP_FILE_SLICE_MAX; carries its own release
};

enum http_pull {
    HTTP_PULL_SLICE, // *ret_slice is filled
    HTTP_PULL_WAIT,  // the source has nothing now and calls http_reply_ready() later
    HTTP_PULL_END,   // the body is complete; its size is compared with the announced length
    HTTP_PULL_CUT    // the source cannot go on: close the connection, so that the cut is visible
};

// The source of a reply's body. It is asked only while less than HTTP_OUT_HIGH is queued. This
// limit is lower while memory is short. At most one FILE slice is queued, as the last slice.
struct http_source {
    enum http_pull (*pull)(struct http_source *source, struct http_slice *ret_slice);
    // Called when the last FILE slice is no longer resident, which is checked before each sendfile.
    // `unsent` bytes at its end were not sent, and its range is released already. The source must
    // offer those bytes again, from memory. The reply pulls again at once.
    void (*recall)(struct http_source *source, uint64_t unsent);
};

struct http_reply {
    unsigned status;
    const char *reason; // such as "OK"
    const struct headers
        *headers;         // sent in order; a value with control bytes is dropped and counted
    struct span rendered; // complete lines "Name: value\r\n"..., sent after `headers`; may be empty
    bool has_length;      // false: chunked towards HTTP/1.1, close-delimited towards HTTP/1.0
    uint64_t length;      // Content-Length (sent for HEAD, too, where no body follows)
    bool no_length;       // 204, 304: neither Content-Length nor a body
    bool close;           // send Connection: close, and close after this reply
    struct span body;     // a whole small body, valid until on_done; then source is NULL
    struct http_source *source; // or NULL
};
// Starts the reply. Call it once per exchange. It adds Date, Content-Length/Transfer-Encoding and
// Connection. If possible, the head and the first slice are sent in one write. The handler may call
// it inside on_request. on_done never runs inside it.
void http_reply_start(struct http_exchange *x, const struct http_reply *reply);
// Slices are sent as they arrive, so the caller needs no flush.
void http_reply_ready(struct http_exchange *x); // call it after HTTP_PULL_WAIT; else harmless
void http_reply_cut(struct http_exchange *x);   // any time: ends the reply, truncated
bool http_exchange_can_sendfile(const struct http_exchange *x); // false on TLS
// Returns true once a byte of the reply has reached the socket.
bool http_reply_head_sent(const struct http_exchange *x);
uint64_t http_reply_body_bytes(const struct http_exchange *x); // body bytes that reached the socket
// Returns clock_monotonic_us() at the first byte of the reply that was sent; 0: none was sent yet.
uint64_t http_reply_first_byte_us(const struct http_exchange *x);

// --- http_range.c: pure --------------------------------------------------------------------------

enum http_range_kind {
    HTTP_RANGE_NONE,       // none, several, reversed or malformed: the whole object, 200
    HTTP_RANGE_FIRST_LAST, // bytes=a-b
    HTTP_RANGE_FIRST,      // bytes=a-
    HTTP_RANGE_SUFFIX      // bytes=-n
};
struct http_range {
    enum http_range_kind kind;
    uint64_t first, last; // saturated at UINT64_MAX
    uint64_t suffix;
    bool several; // the header has more than one range
};
// Parses Range as S3 does: only one well-formed range counts, everything else is ignored (200,
// whole).
void http_range_parse(struct span value, struct http_range *ret_range);
enum http_range_result { HTTP_RANGE_WHOLE, HTTP_RANGE_PARTIAL, HTTP_RANGE_UNSATISFIABLE };
// Applies a range to an object's size: PARTIAL gives first <= last < size. `bytes=-1` of an empty
// object is WHOLE. Other ranges of an empty object, and `bytes=-0`, are UNSATISFIABLE.
enum http_range_result http_range_resolve(const struct http_range *range, uint64_t size,
                                          uint64_t *ret_first, uint64_t *ret_last);

enum http_condition { HTTP_CONDITION_PASS, HTTP_CONDITION_NOT_MODIFIED, HTTP_CONDITION_FAILED };
struct http_conditions {
    bool has_if_match, has_if_none_match, has_if_modified_since, has_if_unmodified_since,
        has_if_range;
    struct span if_match, if_none_match, if_range;
    time_t if_modified_since, if_unmodified_since;
    const char *failed; // header of the condition that did not hold, set by evaluate; NULL: none
};
void http_conditions_parse(const struct headers *headers, struct http_conditions *ret_conditions);
bool http_conditions_any(const struct http_conditions *c);
// Evaluates RFC 9110 section 13.2 as S3 does: If-Match wins over If-Unmodified-Since, and
// If-None-Match over If-Modified-Since. ETags are compared without quotes; `*` and lists work.
// last_modified 0: unknown, so date conditions are ignored.
enum http_condition http_conditions_evaluate(struct http_conditions *c, struct span etag,
                                             time_t last_modified);
// Returns true if If-Range allows the range: its ETag matches strongly, or there is no If-Range.
bool http_if_range_holds(const struct http_conditions *c, struct span etag);
bool http_etag_list_matches(struct span list, struct span etag);
struct span http_etag_strip(struct span etag); // without W/ and quotes
bool http_etag_is_strong(struct span etag);    // neither weak nor empty: If-Match can name it

#endif
