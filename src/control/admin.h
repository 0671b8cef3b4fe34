// SPDX-License-Identifier: Apache-2.0
// What operators see and do: probes, metrics, and the control interface over HTTP, on a thread of
// its own, so that a busy worker never delays an answer and a slow scraper never delays a worker.
// What it answers stands in routes.def; who may, in admin_access.c.
//
// The thread waits for nobody: it reads what is published, and what only others can do is an
// action, which answers later, from whatever thread.
#ifndef FOREBAY_CONTROL_ADMIN_H
#define FOREBAY_CONTROL_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/bytes.h"
#include "base/error.h"
#include "stats/stats.h"

#define ADMIN_CONNECTIONS_MAX 32u    // at once; more wait to be accepted, or are closed
#define ADMIN_BODY_MAX (256u << 10)  // of a request
#define ADMIN_ANSWER_MAX (8u << 20)  // of an action
#define ADMIN_STATUS_BUSY 429        // an action takes no more now: the same may be asked again
#define ADMIN_CALLS_MAX 16u          // actions that wait for their answer; above: 429
#define ADMIN_CALLS_ORDERS 4u        // of them for orders alone: what is only looked at may hang
#define ADMIN_CALL_WAIT_MAX_MS 60000 // then the caller is told that nobody has answered
#define ADMIN_STREAMS_MAX 8u         // of events; above: 503
#define ADMIN_FOLLOWERS_MAX 4u       // of the log; above: 503
#define ADMIN_RANKERS_MAX 3u         // of /api/v1/top; above: 503

// Answers a probe. True = 200. `why` takes a reason in words (also when true); at most 512 bytes.
// Runs on the admin thread.
typedef bool (*admin_probe_fn)(void *ctx, struct buf *why);
// Appends text. Runs on the admin thread.
typedef void (*admin_render_fn)(void *ctx, struct buf *out);

enum admin_action {
#define PAGE(method, path, class, parameters, name)
#define ACTION(method, path, class, parameters, name) ADMIN_ACTION_##name,
#include "control/routes.def"
#undef PAGE
#undef ACTION
    ADMIN_ACTION_COUNT_
};

// A request that waits for its answer. The action owns it until it has answered, exactly once.
struct admin_call;
// Runs on the admin thread, and does not wait there.
typedef void (*admin_action_fn)(void *ctx, struct admin_call *call);
// A parameter; ptr NULL: it is not there. Of a POST only those that are texts. Lives as long as the
// call.
struct span admin_call_parameter(const struct admin_call *call, const char *name);
// Of a POST: a member of its body; NULL: it is not there. Borrowed.
const json_t *admin_call_member(const struct admin_call *call, const char *name);
// Answers with `json`, which it takes over. Any thread. *call is NULL after.
void admin_call_answer(struct admin_call **call, unsigned status, json_t *json);
// {"status": "refused", "reason": why}. Any thread.
void admin_call_refuse(struct admin_call **call, unsigned status, const char *why);

// Requests as they end, a line of JSON each. All calls come from the admin thread, or from
// admin_stop().
typedef void (*admin_lines_fn)(void *ctx, struct span lines); // whole ones, valid during the call
struct admin_lines {
    int fd; // readable: there are some
    void (*turn)(void *ctx, bool is_on);
    uint64_t (*take)(void *ctx, admin_lines_fn on_lines, void *lines_ctx); // how many were lost
    void *ctx;
};

// Who may what besides callers on the unix socket. Texts are copied.
struct admin_access_options {
    const char *token_file;           // of the bearer token, read when this is; NULL: there is none
    bool distrusts_loopback;          // callers on loopback need the token, too
    const char *const *allowed_hosts; // names besides addresses and localhost
    unsigned allowed_host_count;
};

// All pointers are copied or used only while admin runs; strings must outlive it.
struct admin_options {
    const char *host; // numeric address; NULL = no TCP listener
    uint16_t port;    // 0 = chosen by the kernel
    int inherited_fd; // listens already, and is used instead; 0 = none. The admin's from then on
    const char *socket_path;   // NULL = no unix socket
    bool socket_optional;      // a socket that cannot be had is a warning in the log, not an error
    const char *const *listen; // addresses of the S3 API as clients reach them, for /version
    unsigned listen_count;
    const char *io_engine; // "io_uring" or "threads", for forebay_build_info and /version
    const char *auth;      // "open" or "verify", for /version; NULL: "unknown"
    struct admin_access_options access;
    admin_probe_fn alive; // heartbeat of every worker
    admin_probe_fn ready;
    admin_probe_fn started;
    enum refusal (*refusal)(
        void *ctx);          // why nothing is stored now; NULL = never known. Admin thread
    admin_render_fn metrics; // more rows of Prometheus text; NULL = none
    admin_render_fn config;  // JSON of /api/v1/config; NULL = 404
    admin_action_fn actions[ADMIN_ACTION_COUNT_]; // NULL = 404
    struct admin_lines lines;                     // of /api/v1/log; turn NULL = 404
    void *ctx;                                    // of the callbacks above actions
    void *action_ctx;
};

struct admin;

// Binds and starts the thread. On failure nothing is left behind and `ret_why` says in one line
// what could not be bound and what to do.
enum err admin_start(const struct admin_options *options, struct admin **ret_admin,
                     struct buf *ret_why) MUST_USE;
// Other rules, read and judged; nothing goes by them yet. NULL: ret_why says what cannot be used.
// Blocks.
struct admin_access;
struct admin_access *admin_access_new(const struct admin_access_options *options,
                                      struct buf *ret_why);
// From the next request on. Takes it. One thread.
void admin_access_use(struct admin *admin, struct admin_access *access);
void admin_access_free(struct admin_access *access); // one that is not used; NULL is fine
// "127.0.0.1:9001" with the real port, "" without a TCP listener. Lives as long as `admin`.
const char *admin_listen_address(const struct admin *admin);
// Stops the thread, closes everything, removes the socket's file. Calls that are not answered yet
// still may be. NULL is fine.
void admin_stop(struct admin *admin);

// The descriptor of that, which stays the admin's; -1 = none.
int admin_listen_fd(const struct admin *admin);

// Everything /metrics says, without the callback's part. Any thread.
void admin_render_metrics(struct buf *out, const char *io_engine);

// The other end, for commands: one request at "unix:/PATH", "http://HOST:PORT" or "HOST:PORT".
// ERR_ORIGIN_CONNECT when nobody answers there, ERR_ORIGIN_PROTOCOL when what answers is no HTTP.
// Blocks at most about `timeout_ms`. The body is appended to `ret_body`.
struct admin_client_request {
    const char *address;
    const char *method; // "GET", "POST" or "DELETE"
    const char *path;   // with its query
    struct span body;   // JSON; sent with POST
    const char *token;  // bearer token; NULL: none
    unsigned timeout_ms;
};
enum err admin_client_send(const struct admin_client_request *request, unsigned *ret_status,
                           struct buf *ret_body) MUST_USE;
enum err admin_client_get(const char *address, const char *path, unsigned timeout_ms,
                          unsigned *ret_status, struct buf *ret_body) MUST_USE;

// The same for an answer without an end, line by line: on_line() gets each without its end, and an
// empty one when a signal came, too. ERR_OK: it has returned false, or *ret_status is not 200 and
// ret_body has what was said; ERR_ORIGIN_RESET: the other side has ended it; ERR_ORIGIN_TIMEOUT:
// nothing came for so long.
typedef bool (*admin_client_line_fn)(void *ctx, struct span line);
enum err admin_client_follow(const struct admin_client_request *request, unsigned silence_max_ms,
                             admin_client_line_fn on_line, void *ctx, unsigned *ret_status,
                             struct buf *ret_body) MUST_USE;

#endif
