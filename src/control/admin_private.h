// SPDX-License-Identifier: Apache-2.0
// Declarations that the admin_*.c files share. Only the admin thread uses them unless noted
// otherwise.
//   admin_http.c         the thread, its listeners, the number of connections
//   admin_routes.c       from a request to its answer; parameters
//   admin_access.c       rights of callers
//   admin_call.c         actions: requests that are answered later
//   admin_pages.c        answers of the admin thread itself
//   admin_summary.c      the numbers of counters.def as JSON
//   admin_history.c      the numbers and events of the last two hours
//   admin_stream.c       endless answers
//   admin_events.c       an endless answer with these numbers once a second
//   admin_log.c          an endless answer with each request that has ended
//   admin_top.c          an endless answer with the most frequent names in requests
//   admin_where.c        filters of requests
//   admin_reply.c        queries, heads and bodies
#ifndef FOREBAY_ADMIN_PRIVATE_H
#define FOREBAY_ADMIN_PRIVATE_H

#include <pthread.h>

#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>

#include "base/list.h"
#include "control/admin.h"
#include "loop/loop.h"

#define ADMIN_MAGIC 0x61646d696e000001u
#define ADMIN_LISTENERS_MAX 2u
#define ADMIN_TOKEN_MAX 512u
#define ADMIN_WHY_MAX_BYTES 512u

struct admin_hub;     // admin_call.c
struct admin_where;   // admin_where.c
struct admin_top;     // admin_top.c
struct admin_history; // admin_history.c

enum admin_stream_kind {
    ADMIN_STREAM_EVENTS,
    ADMIN_STREAM_LOG,
    ADMIN_STREAM_TOP,
    ADMIN_STREAM_KINDS_
};

struct admin {
    uint64_t magic;
    struct admin_options options;
    struct event_base *base;
    struct evhttp *http;
    struct event *stop_event;
    int stop_fd;
    struct evhttp_bound_socket *listeners[ADMIN_LISTENERS_MAX];
    unsigned listener_count;
    struct bufferevent
        *open[ADMIN_CONNECTIONS_MAX]; // oldest first; admin holds a reference to each
    unsigned open_count;
    struct event *sweep_event, *resume_event;
    struct admin_hub *hub;
    struct admin_history *history;
    struct event *answer_event;
    unsigned call_count; // calls that are not freed yet
    struct list calls;   // struct admin_call.node of calls whose caller still waits
    struct list streams; // struct admin_stream.node
    unsigned stream_counts[ADMIN_STREAM_KINDS_];
    struct event *tick_event;               // fires once a second while there are streams
    struct event *lines_event, *take_event; // log lines are available; time to take them
    uint64_t started_us;
    struct {
        pthread_mutex_t lock; // held for a moment; no other lock is taken under it
        struct admin_access *access;
    } guarded;
    pthread_t thread;
    bool thread_runs, is_halted;
    int tcp_fd; // TCP listener; -1: none
    char address[64];
    struct unix_listener name; // listener of the unix socket; empty path: none
    char ways_in[512];         // text of a refusal, for admin_access.c
};

static inline struct admin *as_admin(void *ptr)
{
    struct admin *admin = ptr;
    check(admin->magic == ADMIN_MAGIC);
    return admin;
}

// --- admin_reply.c -------------------------------------------------------------------------------

// Parses the query of the request's URL; a request without a query has no parameters. Returns false
// if the query is malformed. The caller clears the parameters in both cases.
bool admin_reply_query(struct evhttp_request *req, struct evkeyvalq *ret_parameters);
void admin_reply_headers(struct evhttp_request *req, const char *type);
void admin_reply_text(struct evhttp_request *req, unsigned status, const char *type,
                      struct span body);
void admin_reply_json(struct evhttp_request *req, unsigned status, json_t *json); // takes ownership
void admin_reply_refusal(struct evhttp_request *req, unsigned status, const char *why);
json_t *admin_refusal(const char *why);
// Returns a JSON string. Replaces bytes that are not UTF-8, because json_string() refuses them.
json_t *admin_json_text(struct span text);

// --- admin_access.c ------------------------------------------------------------------------------

enum admin_class { ADMIN_CLASS_OPEN, ADMIN_CLASS_DETAIL, ADMIN_CLASS_CONTROL };
// Returns 0 if allowed, otherwise the HTTP status and the reason for the refusal.
unsigned admin_access_judge(struct admin *admin, struct evhttp_request *req, enum admin_class class,
                            const char **ret_why);
// Returns true if the caller may know object keys and settings.
bool admin_access_sees_detail(struct admin *admin, struct evhttp_request *req);
// Returns true if callers on loopback need no token. Any thread.
bool admin_access_trusts_loopback(struct admin *admin);

// --- admin_routes.c ------------------------------------------------------------------------------

void admin_routes_dispatch(struct admin *admin, struct evhttp_request *req);

// --- admin_call.c --------------------------------------------------------------------------------

struct admin_hub *admin_hub_new(void);
int admin_hub_fd(const struct admin_hub *hub); // descriptor that is readable if there are answers
void admin_hub_unref(struct admin_hub *hub);
// Takes ownership of the parameters and the body. Returns false, and frees both, if too many calls
// are in progress.
bool admin_call_start(struct admin *admin, struct evhttp_request *req, enum admin_action action,
                      bool is_order, struct evkeyvalq *parameters, json_t *body);
void admin_call_deliver(struct admin *admin); // sends the answers that the hub holds
void admin_calls_forget(struct admin *admin); // drops all callers; after the thread has stopped
bool admin_call_uses(struct admin *admin, const struct bufferevent *bev);

// --- admin_stream.c ------------------------------------------------------------------------------

struct admin_stream;
// Delivers one line of the log, with its line end, to the stream.
typedef void admin_line_fn(struct admin_stream *stream, struct span line);

struct admin_stream {
    struct list_node node;
    enum admin_stream_kind kind;
    struct admin *admin;
    struct evhttp_request *req;
    struct bufferevent *bev; // the client's connection
    void (*left)(
        struct admin *admin);  // called after the stream has left stream_counts; may be NULL
    admin_line_fn *line;       // for streams that take lines; NULL: the stream takes none
    struct evbuffer *pending;  // collects the next piece to send
    struct admin_where *where; // filter of the log, owned; NULL: all lines
    struct admin_top *top;     // counts of an ADMIN_STREAM_TOP stream, owned; NULL: another kind
    uint64_t lost;             // dropped lines that the client has not been informed of yet
    unsigned silence_s;
    bool sees_detail; // false: only totals; streams of other kinds then end
};

// Begins an endless answer. Returns NULL if the request already has its whole answer, because it is
// a HEAD or there are too many streams.
struct admin_stream *admin_stream_begin(struct admin *admin, struct evhttp_request *req,
                                        enum admin_stream_kind kind, const char *type);
size_t
admin_stream_waiting(const struct admin_stream *stream); // bytes that the client has not read yet
void admin_stream_add(struct admin_stream *stream, struct span text); // appends to the next piece
void admin_stream_send(struct admin_stream *stream);                  // sends the piece
// Applies the current access rules to all streams. Called before each piece, because the rules may
// have been replaced. A stream of the log ends if its client may no longer see detail.
void admin_streams_judge(struct admin *admin);
void admin_stream_arm(struct admin *admin);     // schedules a tick if there are streams
void admin_streams_forget(struct admin *admin); // drops all streams; after the thread has stopped
bool admin_streams_use(struct admin *admin, const struct bufferevent *bev);

// --- admin_events.c, admin_log.c, admin_top.c ----------------------------------------------------

void admin_events_tick(struct admin *admin);
void admin_log_tick(struct admin *admin);
// Begins a stream of the log lines that match the parameter `where`, or refuses the request. Takes
// ownership of `top`, which may be NULL.
void admin_log_follow(struct admin *admin, struct evhttp_request *req,
                      const struct evkeyvalq *parameters, struct admin_top *top,
                      admin_line_fn *on_line);
void admin_log_wake(struct admin *admin); // call it when log lines are available
void admin_top_tick(struct admin *admin);
void admin_log_take(struct admin *admin);

// --- admin_where.c: pure -------------------------------------------------------------------------

#define ADMIN_WHERE_WHY_MAX 640u
// Parses a filter. Returns NULL, and the reason in ret_why, if the text is not a valid filter.
struct admin_where *admin_where_new(const char *text, char ret_why[ADMIN_WHERE_WHY_MAX]);
void admin_where_free(struct admin_where *where); // accepts NULL
// Returns true if the filter matches a line of the access log in JSON.
bool admin_where_holds(const struct admin_where *where, struct span line);

// --- admin_summary.c -----------------------------------------------------------------------------

// `detail`: the caller has the right to ADMIN_CLASS_DETAIL.
json_t *admin_summary(const struct admin *admin, bool detail);
json_t *admin_conditions(const struct admin *admin,
                         bool detail); // conditions_json(); empty if there are none
// Returns whether the server is ready. Appends the reason, and a critical condition if there is
// one.
bool admin_ready(const struct admin *admin, bool detail, struct buf *why);

// --- admin_history.c -----------------------------------------------------------------------------

// Starts to sample. `conditions` may be NULL.
struct admin_history *admin_history_new(struct event_base *base, struct conditions *conditions);
void admin_history_free(struct admin_history *history);

#define PAGE(method, path, class, parameters, name)                                                \
    void admin_page_##name(struct admin *admin, struct evhttp_request *req);
#define ACTION(method, path, class, parameters, name)
#include "control/routes.def"
#undef PAGE
#undef ACTION

#endif
