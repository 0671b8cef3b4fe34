// SPDX-License-Identifier: Apache-2.0
// Declarations that the files of this room share. Only one worker uses an object unless noted
// otherwise.
#ifndef FOREBAY_HTTP_HTTP_PRIVATE_H
#define FOREBAY_HTTP_HTTP_PRIVATE_H

#include <assert.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/date.h"
#include "base/list.h"
#include "http/http.h"
#include "stats/stats.h"

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// --- request_head.c ------------------------------------------------------------------------------

// Progress of the scan of a request head that may still be arriving. Offsets count from the first
// byte.
struct request_head {
    enum err err;
    uint8_t state, version_minor, method_len;
    uint32_t at;    // bytes scanned; the head's length once complete
    uint32_t start; // offset of the method: 2 after an empty line, else 0
    uint32_t mark;  // offset at which the part being read starts
    uint32_t target, target_len;
    uint32_t header_count;
};

enum request_head_verdict {
    REQUEST_HEAD_MORE,     // the head is not complete, and has no fault so far
    REQUEST_HEAD_COMPLETE, // the head is complete: its first h->at bytes
    REQUEST_HEAD_REFUSED   // the head is refused; h->err says why
};

void request_head_init(struct request_head *h);
// Continues the scan where the last call ended. `buffered` holds all bytes of the head so far.
enum request_head_verdict request_head_scan(struct request_head *h, struct span buffered);
// Turns a scanned head into a request. Call it after REQUEST_HEAD_COMPLETE. `head` is the head's
// bytes, in memory that lives as long as the request. It leaves the peer and the times zero. After
// an error the caller sends one reply and closes the connection.
enum err request_head_accept(const struct request_head *h, struct span head, struct arena *arena,
                             struct http_request *ret_request) MUST_USE;
#ifdef FOREBAY_FAULTS
// --- request_head_check.c ------------------------------------------------------------------------
// Aborts unless llhttp reads `head`, from its method on, as the request `r`.
void request_head_check(struct span head, const struct http_request *r);
#endif
bool request_head_byte_is_token(unsigned char b);
bool request_head_byte_is_value(unsigned char b);

// --- http_chunked.c ------------------------------------------------------------------------------

struct http_chunked {
    uint8_t state, digits;
    uint32_t extension_bytes, extension_total, trailer_bytes;
    uint64_t left; // bytes of the chunk that have not arrived
};

enum http_chunked_step {
    HTTP_CHUNKED_MORE, // *rest is consumed; call again with more bytes
    HTTP_CHUNKED_DATA, // *ret_data is part of the body; call again
    HTTP_CHUNKED_END,  // the body is complete; *rest is what follows it
    HTTP_CHUNKED_BAD
};

void http_chunked_init(struct http_chunked *c);
enum http_chunked_step http_chunked_next(struct http_chunked *c, struct span *rest,
                                         struct span *ret_data);

// --- http_reply.c --------------------------------------------------------------------------------

#define REPLY_QUEUE_MAX 16
#define REPLY_PREFIX_MAX 24

// One piece of the reply body that is being sent, and the chunk framing before it.
struct reply_entry {
    struct http_slice slice;
    uint64_t sent; // bytes of the slice that were sent
    // FILE: the reply_state.pass in which the source confirmed that the range is resident. 0: the
    // source has not confirmed it.
    uint32_t asked;
    char prefix[REPLY_PREFIX_MAX];
    uint8_t prefix_len, prefix_sent;
};

// Slices that wait to be sent, in a ring in the exchange's arena. The first is sent first. Only the
// last one may be a FILE.
struct reply_queue {
    struct reply_entry entries[REPLY_QUEUE_MAX];
    unsigned first, count;
    uint64_t queued_bytes; // not sent yet
};

enum reply_phase {
#define REPLY_PHASE(name, ...) REPLY_##name,
#include "http/phases.def"
};

// How the client finds the end of the body.
enum reply_framing {
    REPLY_BY_LENGTH,
    REPLY_BY_CHUNKS,
    REPLY_BY_CLOSE // by the end of the connection, so only a reset shows a cut
};

struct reply_state {
    enum reply_phase phase;
    enum reply_framing framing;
    bool head_sent, close;
    struct span interim;     // unsent part of "100 Continue"
    struct span head;        // unsent part of the head
    struct span body;        // unsent part of a whole small body
    uint64_t length, pulled; // announced length; bytes pulled from the source so far
    struct http_source *source;
    struct reply_queue *queue; // NULL: the reply has no source
    uint32_t pass;             // number of the current http_reply_write() call, from 1 on
    uint64_t body_bytes, first_byte_us;
};

enum reply_progress {
    REPLY_IDLE,    // nothing to send now: no reply yet, or its source waits
    REPLY_BLOCKED, // the socket takes no more, or this turn's share is used up: wait for
                   // writability
    REPLY_DONE,    // the whole reply went out
    REPLY_GONE,    // the client is gone
    REPLY_CUT      // the source cannot go on
};

// Writes as much as the socket accepts now. May call the source, but never the handler.
enum reply_progress http_reply_write(struct http_exchange *x);
// Releases every slice that is still queued.
void http_reply_release(struct http_exchange *x);
// Returns true if the reply waits with body bytes in memory. A file range does not count, because
// it only holds a pinned segment.
bool http_reply_holds_memory(const struct http_exchange *x);

// --- http_body.c ---------------------------------------------------------------------------------

struct http_connection;
// Consumes one piece of the body; returns false if there is none.
bool http_body_step(struct http_connection *c);
void http_body_end(struct http_exchange *x, enum err err); // notifies the sink, once

// --- http_share.c --------------------------------------------------------------------------------

#define HTTP_SHARE_MOST 2097152u // bytes that one connection may send in a turn
#define HTTP_SHARE_LEAST                                                                           \
    131072u // smallest share, because a turn has a fixed cost; replies up to this size are small
#define HTTP_TURN_BYTES 1048576u    // bytes of all connections in a turn with small replies
#define HTTP_SMALL_LASTS_US 100000u // after a small reply, more of them are expected for this long

// The turn of a worker's loop, and how many connections have sent in it.
struct http_turn {
    uint64_t at_us; // start of the turn
    uint64_t small_until_us;
    unsigned senders, senders_before;
};

// How many bytes a connection may still send in the turn that began at `at_us`.
struct http_share {
    uint64_t at_us;
    uint64_t left;
};

// Returns how many bytes a connection may still send in the turn that began at `now_us`.
uint64_t http_share_left(struct http_turn *turn, struct http_share *share, uint64_t now_us);
// Notes that a reply of `body_bytes` was sent.
void http_share_note_reply(struct http_turn *turn, uint64_t body_bytes, uint64_t now_us);

// --- http_quota.c --------------------------------------------------------------------------------

// Limits on what all clients of a server may use, and what they use now. Any thread.
struct http_quota {
    // The current values of struct http_limits.
    atomic_uint max_connections, max_connections_per_source, max_inflight, max_inflight_in_memory;
    _Atomic uint64_t max_held_bytes, header_timeout_ms, idle_timeout_ms, min_rate_bytes;
    uint64_t source_seed;
    atomic_uint *sources; // number of connections of each source, by hash of the source
    char apart[64]; // puts counts and limits in different cache lines, because counts often change
    atomic_uint connection_count, inflight_count;
    atomic_ullong held_bytes;
};

void http_quota_init(struct http_quota *quota, const struct http_limits *limits);
void http_quota_done(struct http_quota *quota);
void http_quota_set(struct http_quota *quota, const struct http_limits *limits);
struct http_limits http_quota_limits(const struct http_quota *quota);
// The parts of limits that a connection holds as long as it lives.
struct http_admission {
    unsigned source; // slot that counts its client, see http_quota.c; 0: none
    struct socket_room room;
};
// Counts one more connection. `fd` is its socket, and `held` the memory that it takes, in bytes.
// Returns false if a limit forbids the connection, and the counter of such refusals in *ret_why.
bool http_quota_connection_enter(struct http_quota *quota, const struct sockaddr_storage *addr,
                                 int fd, uint64_t held, struct http_admission *ret_admission,
                                 enum counter *ret_why);
void http_quota_connection_leave(struct http_quota *quota, const struct http_admission *admission,
                                 uint64_t held);
// Counts one more exchange. Returns false if max_inflight are in flight already, or if their memory
// is used up; *ret_why is the counter of such refusals.
bool http_quota_request_enter(struct http_quota *quota, enum counter *ret_why);
void http_quota_request_leave(struct http_quota *quota);
// Counts `to` bytes of client memory instead of `from`. If `to` is more and above the limit,
// returns false and leaves `from` counted. With `force` the limit does not apply.
bool http_quota_hold(struct http_quota *quota, uint64_t from, uint64_t to, bool force);
bool http_quota_memory_is_full(const struct http_quota *quota);
// Returns true if three quarters of the allowed connections, of the requests in flight, or of the
// room for sockets are in use.
bool http_quota_is_scarce(const struct http_quota *quota);

// --- http_connection.c ---------------------------------------------------------------------------

#define HTTP_IN_MAX 65536 // bytes received and not yet used, per connection
static_assert(HTTP_HEAD_MAX + 2 < HTTP_IN_MAX, "the longest head fits, after an empty line");

enum body_phase {
#define BODY_PHASE(name, ...) BODY_##name,
#include "http/phases.def"
};

enum connection_phase {
#define CONNECTION_PHASE(name, ...) CONNECTION_##name,
#include "http/phases.def"
};

enum run_phase {
#define RUN_PHASE(name, ...) RUN_##name,
#include "http/phases.def"
};

struct http_exchange {
    struct http_request request;
    uint32_t head_bytes; // length, plus HTTP_HEADER_BYTES for each header above HTTP_HEADERS_FREE
    struct arena *arena;
    struct http_user *user;
    struct http_sink *sink; // NULL: there is no sink, or it was notified of the body's end
    struct reply_state reply;
    enum body_phase body;
    bool counted;           // the exchange counts in max_inflight, and the handler has seen it
    uint64_t charged_bytes; // charged to the budget while it waits
    bool cut;               // http_reply_cut() was called
    uint64_t body_left;     // bytes of Content-Length that have not arrived
    struct http_chunked chunked;
};

struct http_connection {
    uint64_t magic;
    struct list_node node; // in its worker's list
    struct http_worker *hw;
    int fd;
    SSL *ssl; // NULL on a plain connection
    enum connection_phase phase;
    enum run_phase run;
    bool blocked; // the socket accepts no more of the reply
    bool loopback;
    bool eof; // the client has shut its sending side
    struct event read_event, write_event;
    struct timer timer;
    uint64_t timer_due_us;  // when the timer fires; 0: it is not running
    uint64_t deadline_us;   // when the current wait ends; 0: never
    uint64_t since_us;      // start of the phase; after eof and in LINGER: when a byte last moved
    uint64_t wait_since_us; // start of the wait for the client to send or read; 0 = not waiting
    uint64_t waited_us, moved_bytes; // in the current rate window
    uint64_t slow_us;                // total of the latest windows, all below the minimum rate
    uint64_t drained_bytes;          // bytes discarded in DRAIN and LINGER
    struct http_share share;         // bytes that the connection may still send in this turn
    struct task task;
    struct span fresh;                // just received, in the worker's buffer; empty between events
    struct buf in;                    // received earlier and not used yet
    size_t in_used;                   // bytes of `in` that were consumed
    struct request_head request_head; // scan of the current or the next head
    char peer[128];                   // NUL-terminated
    struct http_admission admission;  // of the limits on connections
    uint64_t held_bytes;              // memory counted by http_quota_hold()
    struct http_exchange x;
};

// How a connection's memory is counted:
//   Heads         up to 2 KiB are free, so that usual requests are never refused. Longer ones
//                 count twice, because a head is copied and split.
//   Many headers  above HTTP_HEADERS_FREE each counts HTTP_HEADER_BYTES, also twice: an entry in
//                 the lists of the exchange, of the pass and of the origin's call, and curl's copy.
//   OpenSSL       HTTP_TLS_IDLE_BYTES between records, otherwise HTTP_TLS_BUSY_BYTES; measured.
#define HTTP_HELD_FREE 2048u
#define HTTP_HEADERS_FREE 64u
#define HTTP_HEADER_BYTES 128u
#define HTTP_TLS_IDLE_BYTES 16384u
#define HTTP_TLS_BUSY_BYTES 49152u

#define HTTP_CONNECTION_MAGIC 0x68747470636f6e6eu
#define HTTP_ARENA_SPARES 64
#define HTTP_RECEIVE_SIZE 65536
#define HTTP_TLS_RECORD 16384

// The socket through which a draining server passes its connections on; fd -1: it passes on none.
struct http_passing {
    int fd;
    unsigned at_once;
};

struct http_worker {
    struct worker *worker;
    struct http_quota *quota; // owned by the server, as the options are
    const struct http_options *options;
    struct list connections;
    atomic_uint connection_count; // here or on their way to this worker; the acceptor reads it
    bool draining;
    uint64_t drain_since_us;
    struct http_passing passing;
    bool is_closed; // closes new connections at once
    struct arena *spares[HTTP_ARENA_SPARES];
    unsigned spare_count;
    struct http_turn turn;
    int64_t date_s; // the second that `date` shows
    char date[DATE_HTTP_LEN + 1];
    char *receive; // buffer of HTTP_RECEIVE_SIZE bytes, used inside one read only
    char *record;  // buffer of HTTP_TLS_RECORD bytes, used inside one TLS write only; or NULL
};

// Makes connection_run() run in this turn, or after the callback that is on the stack.
void http_connection_wake(struct http_connection *c);
void http_connection_note_moved(struct http_connection *c, uint64_t bytes);
// Returns the bytes that were received and not consumed yet, in one piece. They are valid until
// they are consumed or the event ends.
struct span http_connection_input(const struct http_connection *c);
void http_connection_consume(struct http_connection *c, size_t len);
// Appends the bytes of `fresh` that were not consumed to `in`.
void http_connection_keep_input(struct http_connection *c);
static inline struct http_connection *connection_of(const struct http_exchange *x)
{
    struct http_connection *c =
        (struct http_connection *)(uintptr_t)((const char *)x -
                                              offsetof(struct http_connection, x));
    check(c->magic == HTTP_CONNECTION_MAGIC);
    return c;
}
// Returns the bytes written, -EAGAIN or another negative errno. `more`: more bytes follow at once
// (MSG_MORE).
int64_t http_connection_send(struct http_connection *c, const struct iovec *iov, unsigned iov_count,
                             bool more);
const char *http_connection_date(struct http_worker *hw);
static inline uint64_t connection_now_us(const struct http_connection *c)
{
    return worker_now_us(c->hw->worker);
}
// Counts the memory that the connection holds now. Returns false if it grew beyond the limit of all
// connections. With `force` the limit does not apply.
bool http_connection_hold(struct http_connection *c, bool force);
// Begins a new rate window, with no time waited and no bytes moved.
void http_connection_reset_rate(struct http_connection *c);
// Closes the socket at once; the memory is freed at the end of the turn. No exchange may be open.
void http_connection_close(struct http_connection *c, bool reset);
// Shuts our side of the connection, and discards what arrives for a moment. See CONNECTION_LINGER.
void http_connection_linger(struct http_connection *c);
const char *http_reason(unsigned status); // such as "Not Found"; "" if unknown

static inline const struct http_options *connection_options(const struct http_connection *c)
{
    return c->hw->options;
}

// --- http_phases.c -------------------------------------------------------------------------------

// Moves a connection to a phase. Restarts since_us and drained_bytes.
void http_connection_enter(struct http_connection *c, enum connection_phase to);
void http_run_enter(struct http_connection *c, enum run_phase to);
void http_body_enter(struct http_exchange *x, enum body_phase to);
void http_reply_enter(struct reply_state *r, enum reply_phase to);

// --- http_run.c ----------------------------------------------------------------------------------

// Starts a connection that the quota and hw->connection_count count already. Takes ownership of fd
// and ssl (NULL: plain). Runs on the worker of `hw`.
void http_run_start(struct http_worker *hw, int fd, SSL *ssl, const char *peer, bool loopback,
                    const struct http_admission *admission);
// Call it after the loop has stopped: ends every exchange and frees every connection.
void http_run_end_all(struct http_worker *hw);

// --- http_listener.c -----------------------------------------------------------------------------

struct listener {
    struct http_server *server;
    int fd;
    bool is_tls, is_unix, is_inherited, event_on;
    char address[128];
    uint64_t room;             // see socket_room_apply_listener()
    struct unix_listener name; // the name that this process removes; empty path: none
    struct event event;
};

// Binds and listens at `address`. A unix socket gets `unix_mode`.
enum err http_listener_open(struct listener *l, const char *address, unsigned unix_mode,
                            struct buf *ret_why) MUST_USE;
enum err http_listener_inherit(struct listener *l, const struct http_inherited *inherited,
                               struct buf *ret_why) MUST_USE;
// Writes "127.0.0.1:5000", "[::1]:5000" or "unix:PATH".
void http_address_format(const struct sockaddr_storage *addr, socklen_t len, char *ret_text,
                         size_t size);
bool http_address_is_loopback(const struct sockaddr_storage *addr); // true for a unix socket too

// --- http_drain.c --------------------------------------------------------------------------------

extern const struct http_passing http_passing_none;
// Begins the drain of a worker. From now on idle connections are sent through `passing`, or closed
// if its fd is -1.
void http_connection_drain_all(struct http_worker *hw, const struct http_passing *passing);
// Ends the connection if the server drains and no request is open. If a process follows, passes the
// connection on to it, unless that is impossible. Otherwise closes the connection, unless a further
// request has begun. Returns false if the connection stays.
bool http_connection_leave(struct http_connection *c);
// Closes connections that could not be passed on, after they have waited for their client in one
// phase for a second. After their last reply they wait for a shorter time.
void http_connection_end_waiting(struct http_worker *hw);
// The control data of one message, which carries descriptors to another process.
union http_passed_control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(HTTP_PASSED_AT_ONCE * sizeof(int))];
};
// Sends the connections `fds` to the other process; returns how many, from the first on, were sent.
unsigned http_passing_send(const struct http_passing *to, const int *fds, unsigned count);

// --- http_taking.c -------------------------------------------------------------------------------

// Calls adopt(ctx, fd), on `w`, with each connection that arrives through `fd`. Any thread.
struct http_taking;
struct http_taking *http_taking_start(struct worker *w, int fd, void (*adopt)(void *ctx, int fd),
                                      void *ctx);
// Stops taking connections over. Sends the connections that still wait through `passing`, or
// accepts those that it cannot send. Runs on `w`; accepts NULL.
void http_taking_drain(struct http_taking *taking, const struct http_passing *passing);
// Takes back connections that were sent to a process that will not follow after all. Reads them
// from `fd`, the other end of the pair, and calls adopt(ctx, fd) for each. Runs on the worker that
// accepts.
void http_taking_recall(int fd, void (*adopt)(void *ctx, int fd), void *ctx);
void http_taking_free(struct http_taking *taking); // after loop_stop(); accepts NULL

// --- http_exchange.c -----------------------------------------------------------------------------

// Begins an exchange and calls the handler, or refuses the head. The connection's input must begin
// with a head for which request_head_scan() has returned REQUEST_HEAD_COMPLETE.
void http_exchange_accept_head(struct http_connection *c);
// Begins an exchange that answers the connection's input with an error. The input is not read as a
// request, and the connection closes after the reply. `why` counts it.
void http_exchange_refuse_head(struct http_connection *c, enum err err, enum counter why);
// Counts and reports a refusal between exchanges. The caller closes the connection without a reply.
void http_exchange_refuse_silently(struct http_connection *c, enum err err, enum counter why);
void http_exchange_charge(struct http_exchange *x); // counts the memory of an exchange that waits
// Ends an exchange whose whole reply was sent. Then the connection waits for the next head,
// discards the rest of the request body, or ends.
void http_exchange_done(struct http_connection *c);
// Ends an exchange whose reply cannot be completed.
void http_exchange_cut(struct http_connection *c);
void http_exchange_timed_out(struct http_connection *c,
                             enum http_outcome outcome);        // the client was too slow
void http_exchange_gone(struct http_connection *c, bool reset); // the client has left
// Ends the exchange and releases its memory. on_done is the handler's last callback. Only the
// framing of an unread body stays. The caller decides what happens to the connection.
void http_exchange_end(struct http_connection *c, enum http_outcome outcome);

// --- http_tickets.c ------------------------------------------------------------------------------

struct http_tickets; // keys of TLS session tickets; any thread
struct http_tickets *http_tickets_new(void);
void http_tickets_free(struct http_tickets *t); // free all SSL and SSL_CTX first; accepts NULL
void http_tickets_attach(struct http_tickets *t, SSL_CTX *ctx);

// --- http_tls.c ----------------------------------------------------------------------------------

// http_tls_load() loads as http_certificate_load() does. http_tls_use() passes the result to the
// worker that accepts.
enum err http_tls_load(struct http_tls *tls, const char *cert_file, const char *key_file,
                       struct http_certificate **ret_certificate, struct buf *ret_why) MUST_USE;
void http_tls_use(struct http_certificate *certificate, struct worker *accepting);
// Returns the server side of a new handshake on fd, or NULL if memory is short.
SSL *http_tls_accept(struct http_tls *tls, int fd);
// Returns 1 if done, -EAGAIN, -EPROTONOSUPPORT if the client speaks plain HTTP, or another negative
// errno.
int http_tls_handshake(SSL *ssl);
int64_t http_tls_receive(SSL *ssl, char *bytes, size_t max); // returns 0 at the stream's end
int64_t http_tls_send(SSL *ssl, char *record, const struct iovec *iov, unsigned iov_count);

#endif
