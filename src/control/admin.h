// SPDX-License-Identifier: Apache-2.0
// The operators' interface over HTTP: probes, metrics and control. It runs on a thread of its own,
// so that a busy worker never delays an answer and a slow scraper never delays a worker. routes.def
// lists what it answers; admin_access.c decides who may ask.
//
// The thread never waits: it answers from published numbers. A request that only other threads can
// answer is an action, which may be answered later, from any thread.
#ifndef FOREBAY_CONTROL_ADMIN_H
#define FOREBAY_CONTROL_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/bytes.h"
#include "base/error.h"
#include "control/conditions.h"
#include "control/log_fields.h"
#include "stats/stats.h"

#define ADMIN_CONNECTIONS_MAX 32u    // open at once; beyond it, the oldest idle one is closed
#define ADMIN_BODY_MAX (256u << 10)  // bytes of a request's body
#define ADMIN_ANSWER_MAX (8u << 20)  // bytes of an action's answer
#define ADMIN_STATUS_BUSY 429        // the action is busy: the caller may retry
#define ADMIN_CALLS_MAX 16u          // actions in progress; a further one gets 429
#define ADMIN_CALLS_ORDERS 4u        // of these, reserved for changes of state: a query may hang
#define ADMIN_CALL_WAIT_MAX_MS 60000 // a call that takes longer gets 504
// How long a command waits for such a call: long enough to get that 504.
#define ADMIN_CALL_CLIENT_MS (ADMIN_CALL_WAIT_MAX_MS + 5000u)
#define ADMIN_STREAMS_MAX 8u   // clients of /api/v1/events; a further one gets 503
#define ADMIN_FOLLOWERS_MAX 4u // clients of /api/v1/log; a further one gets 503
#define ADMIN_RANKERS_MAX 3u   // clients of /api/v1/top; a further one gets 503

// Returns the result of a probe; true means 200. Appends the reason in words to `why` in both
// cases, at most 512 bytes. Runs on the admin thread.
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

// A request that an action has not answered yet. The action owns the call and answers it exactly
// once.
struct admin_call;
// Runs on the admin thread and must not wait.
typedef void (*admin_action_fn)(void *ctx, struct admin_call *call);
// Returns a parameter, valid as long as the call; ptr is NULL if the parameter is missing. In the
// body of a POST it finds only members that are strings.
struct span admin_call_parameter(const struct admin_call *call, const char *name);
// Returns a member of a POST's body, or NULL if it is missing. Borrowed.
const json_t *admin_call_member(const struct admin_call *call, const char *name);
// Writes the address at which this server answers its own commands, without a token if it has one
// that lets them in. Admin thread, in an action.
#define ADMIN_ADDRESS_MAX 512
void admin_call_address(const struct admin_call *call, char ret_address[ADMIN_ADDRESS_MAX]);
// Answers with `json` and takes ownership of it. Sets *call to NULL. Any thread.
void admin_call_answer(struct admin_call **call, unsigned status, json_t *json);
// Answers with {"status": "refused", "reason": why}. Any thread.
void admin_call_refuse(struct admin_call **call, unsigned status, const char *why);

// The source of the lines of /api/v1/log: one line of JSON for each request that has ended. Only
// the admin thread and admin_stop() call its functions.
typedef void (*admin_lines_fn)(void *ctx, struct span lines); // whole lines, valid during the call
struct admin_lines {
    int fd;                              // readable while lines are available
    void (*turn)(void *ctx, bool is_on); // starts or stops the source
    uint64_t (*take)(void *ctx, admin_lines_fn on_lines,
                     void *lines_ctx); // returns how many were lost
    void *ctx;
};

// The rights of callers that do not use the unix socket. Texts are copied.
struct admin_access_options {
    const char *token_file;  // file with the bearer token, read during the call; NULL: no token
    bool distrusts_loopback; // callers on loopback need the token, too
    const char *const *allowed_hosts; // accepted in addition to IP addresses and localhost
    unsigned allowed_host_count;
};

// admin_start() copies this struct and the rules in `access`. Everything else that a pointer in it
// leads to must live until admin_halt().
struct admin_options {
    const char *host;        // numeric address; NULL: no TCP listener
    uint16_t port;           // 0: the kernel chooses one
    int inherited_fd;        // inherited listener to use instead; 0: none. The admin then owns it
    const char *socket_path; // NULL: no unix socket
    bool socket_optional;    // if the socket fails, the log gets a warning, and the start succeeds
    const char *const *listen; // addresses of the S3 API as clients reach them, for /version
    unsigned listen_count;
    admin_render_fn origins; // names of the origins, for /version; NULL: unknown. Admin thread
    json_t *(*origins_json)(void *ctx); // the origins of the summary; NULL: none. Admin thread
    // Recounts the cached bytes for the summary; NULL: they are not counted. Admin thread
    void (*count_held)(void *ctx);
    const char *io_engine; // "io_uring" or "threads", for forebay_build_info and /version
    const char *auth;      // "open" or "verify", for /version; NULL: "unknown"
    struct admin_access_options access;
    admin_probe_fn alive; // checks the heartbeat of every worker
    admin_probe_fn ready;
    admin_probe_fn started;
    struct conditions *conditions;                // NULL: none
    admin_render_fn metrics;                      // more rows of Prometheus text; NULL = none
    admin_render_fn config;                       // JSON of /api/v1/config; NULL = 404
    admin_action_fn actions[ADMIN_ACTION_COUNT_]; // NULL = 404
    struct admin_lines lines;                     // for /api/v1/log; if `turn` is NULL: 404
    void *ctx;        // passed to the callbacks from `alive` to `config`
    void *action_ctx; // passed to the actions
};

struct admin;

// Binds and starts the thread. On failure nothing is left behind, and `ret_why` gets one line: what
// could not be bound and what to do.
enum err admin_start(const struct admin_options *options, struct admin **ret_admin,
                     struct buf *ret_why) MUST_USE;
// Reads and checks other access rules, without applying them. Returns NULL and the reason in
// ret_why if they cannot be used. Blocks.
struct admin_access;
struct admin_access *admin_access_new(const struct admin_access_options *options,
                                      struct buf *ret_why);
// Applies the rules from the next request on, and takes ownership. Only one thread may call it.
void admin_access_use(struct admin *admin, struct admin_access *access);
void admin_access_free(struct admin_access *access); // for rules never applied; accepts NULL
// Returns "127.0.0.1:9001" with the real port, or "" without a TCP listener. Valid as long as
// `admin`.
const char *admin_listen_address(const struct admin *admin);
// Stops the thread, closes the listeners and removes the socket's file. Open connections stay open
// without an answer until admin_stop(), so that a client can wait for the end of the server.
// Actions may still answer their calls afterwards. Accepts NULL.
void admin_halt(struct admin *admin);
// Does the same, closes all connections and frees `admin`. Accepts NULL.
void admin_stop(struct admin *admin);

// Returns the listener's descriptor, which the admin still owns; -1: none.
int admin_listen_fd(const struct admin *admin);

// Appends the JSON on one line, and releases it. Any thread.
void admin_json_append(struct buf *out, json_t *json);

// Renders /metrics without the rows that admin_options.metrics adds. Any thread.
void admin_render_metrics(struct buf *out, const char *io_engine);

// The client side, for commands: sends one request to "unix:/PATH", "http://HOST:PORT" or
// "HOST:PORT". Returns ERR_ORIGIN_CONNECT if nothing listens there, ERR_ORIGIN_TIMEOUT if the
// answer does not end in time, ERR_ORIGIN_RESET if the connection ends without an answer, and
// ERR_ORIGIN_PROTOCOL if the answer is not HTTP, or too long. Blocks for about `timeout_ms` at
// most. The body is appended to `ret_body`.
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

// Like admin_client_send(), but for an endless answer. Calls on_line() with each line, without the
// line end, and with an empty line after a signal. Returns ERR_OK if on_line() returned false, or
// if *ret_status is not 200 and ret_body holds the answer. Returns ERR_ORIGIN_RESET if the server
// ended the answer, and ERR_ORIGIN_TIMEOUT if the server sent nothing for `silence_max_ms`.
typedef bool (*admin_client_line_fn)(void *ctx, struct span line);
enum err admin_client_follow(const struct admin_client_request *request, unsigned silence_max_ms,
                             admin_client_line_fn on_line, void *ctx, unsigned *ret_status,
                             struct buf *ret_body) MUST_USE;

#endif
