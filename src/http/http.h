// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on the client side: listeners, connections, the strict request head, replies with
// back-pressure. Knows no S3 and no store. A connection lives and dies on one worker; an exchange
// is one request and its reply on it. Pipelined requests are answered in order: the next exchange
// starts when the one before has ended.
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

// --- limits (request_head.c) ---------------------------------------------------------------------
#define HTTP_LISTENERS_MAX 32
#define HTTP_TARGET_MAX 16384
#define HTTP_HEAD_MAX 49152
#define HTTP_HEADER_COUNT_MAX 512 // as many small metadata headers as S3's 2 KiB allow, and more
#define HTTP_HEADER_MAX 16384
#define HTTP_DRAIN_MAX 65536    // request body bytes read and thrown away after an early reply
#define HTTP_COLLECTED_RATE 16u // times min_rate_bytes, see http_sink.is_collected
#define HTTP_PASSED_AT_ONCE 32u // connections of a message that http_server_take_over() takes
#define HTTP_OUT_HIGH 262144    // reply bytes queued in memory before the source is no longer asked
#define HTTP_FILE_SLICE_MAX 524288

// What a request holds while it waits or is answered, its payload apart: arena, state, the run that
// it waits for, as measured.
#define HTTP_EXCHANGE_BYTES 24576

// --- server --------------------------------------------------------------------------------------

struct http_exchange;

struct http_handler {
    void *ctx;
    // A request whose head was accepted. Runs on the connection's worker, never nested. The
    // handler answers with http_reply_start() now or later.
    void (*on_request)(void *ctx, struct http_exchange *x);
    // The head was refused, or a limit was met before a request existed: body and content type
    // of the error reply (S3 XML), appended to `out`. Also used for overload (ERR_OVERLOAD).
    // Headers: the handler may add some.
    void (*on_refused)(void *ctx, enum err err, struct arena *arena, struct headers *headers,
                       struct buf *out);
    // Do paused readers hold up files that are to be freed? Then none of them gets
    // min_rate_patience_ms. NULL: never.
    bool (*files_are_short)(void *ctx);
};

// A socket that another process has made and that listens already.
struct http_inherited {
    int fd; // the server's from then on
    bool is_tls;
    bool owns_name; // a unix socket whose name goes with this process
};

struct http_options {
    const char *const *listen; // "127.0.0.1:9000", "[::1]:9000", "unix:/path", "tls:host:port";
                               // port 0: kernel's choice
    unsigned listen_count;
    unsigned unix_mode;                     // of the files of unix: listeners
    const struct http_inherited *inherited; // used before `listen` (may be NULL)
    unsigned inherited_count;
    const char *tls_cert_file,
        *tls_key_file;        // PEM, reread on change (mtime looked at once a second at most)
    unsigned max_connections; // all workers together; above: 503 and close
    unsigned
        max_connections_per_source; // one IPv4 address or IPv6 /64; above likewise; 0: no limit
    unsigned max_inflight;          // exchanges; above: 503 SlowDown, connection kept
    uint64_t max_held_bytes;        // of long heads and of TLS; above: 503 or a close; 0: no limit
    uint64_t header_timeout_ms;     // whole head, from its first byte (or from accept)
    uint64_t idle_timeout_ms;       // between requests
    uint64_t min_rate_bytes;    // per second, bodies and replies, judged after min_rate_grace_ms
    uint64_t min_rate_grace_ms; // 30 s
    uint64_t
        min_rate_patience_ms; // the same for a reader while it holds nothing that is short: 10 min
    struct http_handler handler;
};

struct http_server;

// Binds and listens (ERR_IN_USE: port taken; ERR_PERMISSION; ERR_INVALID: address) with one clear
// line in ret_why. Nothing is accepted before http_server_start().
enum err http_server_new(struct loop *loop, const struct http_options *options,
                         struct http_server **ret_server, struct buf *ret_why) MUST_USE;
void http_server_start(struct http_server *server);
// Those limits of the options that may change while it runs.
struct http_limits {
    unsigned max_connections, max_connections_per_source, max_inflight;
    uint64_t max_held_bytes; // 0: no limit
    uint64_t header_timeout_ms, idle_timeout_ms, min_rate_bytes;
};
// Connections go by them from the next thing they wait for. Any thread.
void http_server_set_limits(struct http_server *server, const struct http_limits *limits);
// Real addresses ("127.0.0.1:43121", "unix:/path", "tls:..."), in order; NULL past the end.
const char *http_server_address(const struct http_server *server, unsigned i);
// Its descriptor, which stays the server's, before http_server_drain(). *ret_owns_name: it is a
// unix socket whose name goes with this process.
int http_server_listener(const struct http_server *server, unsigned i, bool *ret_owns_name);
// Other files for tls: listeners, read and found good; NULL: no listener needs any. ERR_INVALID,
// with one line in ret_why: nothing has changed. May block: not on a worker.
struct http_certificate;
enum err http_certificate_load(struct http_server *server, const char *cert_file,
                               const char *key_file, struct http_certificate **ret_certificate,
                               struct buf *ret_why) MUST_USE;
// Connections that are accepted from now on get it, and it is the server's; not after loop_stop().
void http_certificate_use(struct http_server *server, struct http_certificate *certificate);
void http_certificate_free(struct http_certificate *certificate); // one that is not used
// Stops accepting; open exchanges end with Connection: close; idle connections close. Any thread.
void http_server_drain(struct http_server *server);
// The same for a process that follows, which has copies of the listening sockets: who waits there
// waits for it, names of unix sockets stay, and connections of whose next request nothing has been
// read are sent through `fd`, a unix socket of type SOCK_SEQPACKET that is the caller's and open
// until loop_stop(), up to `at_once` in a message. What cannot be sent, which TLS never can, ends
// with its next reply, or by http_server_end_waiting().
void http_server_pass_on(struct http_server *server, int fd, unsigned at_once);
// Connections that have been in one state that waits for their clients for a second of it, or have
// heard nothing for a fifth behind their last reply, end, unless bytes are there. After
// http_server_pass_on(), again and again. Any thread.
void http_server_end_waiting(struct http_server *server);
// Nobody follows after all: the listening sockets are drained as by http_server_drain(), and so is
// what has been passed on, from `fd`, the pair's other end, which is the caller's and open until
// loop_stop(). Once, after http_server_pass_on(), from the same thread, which also asks
// http_server_has_ended().
void http_server_call_off(struct http_server *server, int fd);
// Accepts what a former process has sent through the other end, whose copy here is taken over,
// until that process has closed its own. After http_server_start(). Any thread.
void http_server_take_over(struct http_server *server, int fd);
unsigned http_server_connections(const struct http_server *server); // open now; any thread
// After http_server_drain(), from the same thread: every worker has begun to, and no connection is
// open, nor will be.
bool http_server_has_ended(const struct http_server *server);
// Ends every exchange, and every connection: those that come from then on at once. Before
// loop_stop(), so that handlers give back what they hold. After http_server_drain(). Any thread.
void http_server_close(struct http_server *server);
// After loop_stop().
void http_server_free(struct http_server *server);

// --- request -------------------------------------------------------------------------------------

struct http_request {
    struct span method, target; // raw, as sent (origin form; absolute-form is reduced to its path)
    struct span host;           // exactly as sent
    struct headers headers;     // all, in order, spelling kept
    unsigned version_minor;
    bool has_body; // Content-Length > 0 or chunked
    bool chunked;
    uint64_t content_length; // when !chunked
    bool has_content_length;
    bool expects_continue;
    bool keep_alive;
    bool is_head;
    bool loopback; // peer is loopback or a unix socket
    bool tls;
    struct span peer;    // "127.0.0.1:5000"
    uint64_t started_us; // worker_now_us() when the head was complete
};

// All pointers live until on_done. The arena is the request's memory (1 MiB at most).
const struct http_request *http_exchange_request(const struct http_exchange *x);
struct arena *http_exchange_arena(const struct http_exchange *x);
struct worker *http_exchange_worker(const struct http_exchange *x);

enum http_outcome {
    HTTP_DONE,        // the whole reply went to the socket
    HTTP_CLIENT_GONE, // the client closed before that, or had half closed and took nothing more
    HTTP_CLIENT_SLOW, // it sent or took less than min_rate_bytes before that, and was cut
    HTTP_CUT          // we cut (source said so, or the server ended)
};

// What the handler hangs on an exchange. on_done runs exactly once, last of all callbacks; x is
// gone after.
struct http_user {
    void (*on_done)(struct http_user *user, enum http_outcome outcome);
};
void http_exchange_set_user(struct http_exchange *x, struct http_user *user);

// --- request body --------------------------------------------------------------------------------

// HTTP framing is taken off (chunked decoded, trailers dropped).
struct http_sink {
    // Data is valid during the call and must be taken whole; may call http_body_pause(). An error
    // ends the exchange's body: the rest is drained or the connection closed after the reply.
    enum err (*on_data)(struct http_sink *sink, struct span data);
    // Exactly once unless on_done came first: ERR_OK = the body was complete.
    void (*on_end)(struct http_sink *sink, enum err err);
    // The body is kept in memory until it is complete, counted as BUDGET_BODIES. While that is
    // short it must come faster.
    bool is_collected;
};
// Sends "100 Continue" first when the client expects it. Without this call the body is drained
// (HTTP_DRAIN_MAX) or the connection closed after the reply.
void http_body_start(struct http_exchange *x, struct http_sink *sink);
void http_body_pause(struct http_exchange *x);
void http_body_resume(struct http_exchange *x);

// --- reply ---------------------------------------------------------------------------------------

struct http_slice {
    enum { HTTP_SLICE_BYTES, HTTP_SLICE_FILE } kind;
    struct span bytes;          // BYTES: valid until release
    void (*release)(void *ctx); // BYTES: once sent or dropped; NULL is fine
    void *release_ctx;
    struct file_range range; // FILE: at most HTTP_FILE_SLICE_MAX; carries its own release
};

enum http_pull {
    HTTP_PULL_SLICE, // *ret_slice is filled
    HTTP_PULL_WAIT,  // nothing now; http_reply_ready() will be called
    HTTP_PULL_END,   // all was given (checked against the length announced)
    HTTP_PULL_CUT    // cannot go on: close the connection so that the truncation is visible
};

// Where a reply's body comes from. Asked only while less than HTTP_OUT_HIGH, or its share while
// memory is short, is queued; at most one FILE slice is queued, and nothing behind it.
struct http_source {
    enum http_pull (*pull)(struct http_source *source, struct http_slice *ret_slice);
    // The last FILE slice is no longer resident (asked before each sendfile): `unsent` bytes of its
    // end did not go out, its range is released already. The source must offer those bytes again,
    // from memory. The reply waits for the next pull at once.
    void (*recall)(struct http_source *source, uint64_t unsent);
};

struct http_reply {
    unsigned status;
    const char *reason; // "OK"
    const struct headers
        *headers;         // emitted in order; a value with control bytes is dropped and counted
    struct span rendered; // ready lines "Name: value\r\n"..., emitted after `headers`; may be empty
    bool has_length;      // false: chunked towards HTTP/1.1, close-delimited towards HTTP/1.0
    uint64_t length;      // Content-Length (sent for HEAD, too, where no body follows)
    bool no_length;       // 204, 304: neither Content-Length nor a body
    bool close;           // Connection: close after this
    struct span body;     // a whole small body, valid until on_done; then source is NULL
    struct http_source *source; // or NULL
};
// Once per exchange. Date, Content-Length/Transfer-Encoding and Connection are added here. The
// reply's first bytes are written in one call with the first slice where possible. May be called
// inside on_request. on_done never runs inside.
void http_reply_start(struct http_exchange *x, const struct http_reply *reply);
// An interim "white space" or chunk flush is not needed: slices are sent as they come.
void http_reply_ready(struct http_exchange *x);                 // after WAIT; harmless otherwise
void http_reply_cut(struct http_exchange *x);                   // at any time: close visibly
bool http_exchange_can_sendfile(const struct http_exchange *x); // false on TLS
bool http_reply_head_sent(
    const struct http_exchange *x); // did any byte of the reply reach the socket?
uint64_t http_reply_body_bytes(const struct http_exchange *x); // body bytes that reached the socket
uint64_t
http_reply_first_byte_us(const struct http_exchange *x); // clock_monotonic_us() then; 0 = none yet

// --- http_range.c: pure --------------------------------------------------------------------------

enum http_range_kind {
    HTTP_RANGE_NONE,       // no, several, reversed or malformed range: the whole object, 200
    HTTP_RANGE_FIRST_LAST, // bytes=a-b
    HTTP_RANGE_FIRST,      // bytes=a-
    HTTP_RANGE_SUFFIX      // bytes=-n
};
struct http_range {
    enum http_range_kind kind;
    uint64_t first, last; // saturated at UINT64_MAX
    uint64_t suffix;
    bool several; // more than one range was asked for
};
// S3's reading of Range: only a well-formed single range counts, everything else is ignored (200,
// whole).
void http_range_parse(struct span value, struct http_range *ret_range);
enum http_range_result { HTTP_RANGE_WHOLE, HTTP_RANGE_PARTIAL, HTTP_RANGE_UNSATISFIABLE };
// Against an object's size: PARTIAL gives first <= last < size. `bytes=-1` of an empty object is
// WHOLE, other ranges of it are UNSATISFIABLE, so is `bytes=-0`.
enum http_range_result http_range_resolve(const struct http_range *range, uint64_t size,
                                          uint64_t *ret_first, uint64_t *ret_last);

enum http_condition { HTTP_CONDITION_PASS, HTTP_CONDITION_NOT_MODIFIED, HTTP_CONDITION_FAILED };
struct http_conditions {
    bool has_if_match, has_if_none_match, has_if_modified_since, has_if_unmodified_since,
        has_if_range;
    struct span if_match, if_none_match, if_range;
    time_t if_modified_since, if_unmodified_since;
    const char *failed; // after evaluate: "If-Match" ...
};
void http_conditions_parse(const struct headers *headers, struct http_conditions *ret_conditions);
bool http_conditions_any(const struct http_conditions *c);
// RFC 9110 section 13.2 as S3 evaluates it (If-Match wins over If-Unmodified-Since, If-None-Match
// over If-Modified-Since). ETags compare after stripping quotes; `*` and lists work. last_modified
// 0: not known, and no date says anything about it.
enum http_condition http_conditions_evaluate(struct http_conditions *c, struct span etag,
                                             time_t last_modified);
// Does If-Range allow the range? Strong ETag match, or no If-Range.
bool http_if_range_holds(const struct http_conditions *c, struct span etag);
bool http_etag_list_matches(struct span list, struct span etag);
struct span http_etag_strip(struct span etag); // without W/ and quotes
bool http_etag_is_strong(struct span etag);    // neither weak nor empty: If-Match can name it

#endif
