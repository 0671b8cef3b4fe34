// SPDX-License-Identifier: Apache-2.0
// Private declarations of the transfer_*.c files. A transfer and its pool belong to one worker.
#ifndef FOREBAY_NET_TRANSFER_PRIVATE_H
#define FOREBAY_NET_TRANSFER_PRIVATE_H

#include <curl/curl.h>
#include <sys/socket.h>

#include "net/net.h"

#define POOL_MAGIC 0x706f6f6cu
#define TRANSFER_MAGIC 0x78666572u
#define LANE_MAGIC 0x6c616e65u
#define IDLE_HANDLES_MAX 32
#define LANE_CONNECTIONS 32u

// A curl multi handle and its connections.
struct transfer_lane {
    unsigned magic;
    struct transfer_pool *pool;
    CURLM *multi;            // NULL: not open
    unsigned most;           // most connections in this lane
    unsigned running;        // transfers in this lane that have not ended
    struct list connections; // sockets opened for curl, see transfer_connection.c
    struct list sockets;
    struct list_node due_node; // in pool->due
    struct timer timer;        // the timer that curl asked for
    bool is_timeout_due;
    bool must_look_up;         // look the host name up again, because one of its addresses failed
    struct timer unused_timer; // closes the lane when it has been unused for keepalive_ms
};

// Limits on what a pool receives in one turn of the worker's loop.
struct transfer_turn {
    uint64_t at_us;             // when the turn began
    uint64_t left;              // bytes of long bodies that may still be received
    uint64_t room_us, spent_us; // time for receiving from sockets: allowed, and used so far
};

struct transfer_pool {
    unsigned magic;
    struct worker *worker;
    struct transfer_pool_options options;
    char *ca_file; // options.ca_file, or the system's; NULL: the system has only a folder
    struct curl_slist *names; // options.names
    struct transfer_lane *lanes;
    unsigned lane_count;
    struct list transfers; // all transfers of the pool
    struct list changed;   // transfers that pool_drive() must look at
    struct list due;       // lanes whose timer is due or in which a transfer may have ended
    struct list waiting;   // transfers that wait for their turn to receive
    struct transfer_turn turn;
    struct task drive;
    bool is_in_curl;   // inside a curl call that may run callbacks
    bool is_reporting; // inside on_end()
    bool is_freeing;
    CURL *idle[IDLE_HANDLES_MAX]; // reset handles for later requests
    unsigned idle_count;
};

// A socket opened for curl.
struct pool_connection {
    struct list_node node;
    curl_socket_t fd;
    int local_port; // 0: unknown so far
};

enum transfer_state { STARTING, RUNNING, ENDED };
enum transfer_wait { WAIT_CONNECT, WAIT_UPLOAD, WAIT_FIRST_BYTE, WAIT_BODY };
enum transfer_head { HEAD_FINAL, HEAD_INTERIM, HEAD_OVER }; // HEAD_FINAL: also before it begins
#define TRANSFER_LENGTH_UNKNOWN UINT64_MAX

// The pause of one direction of a transfer: whether it should be paused, and whether it is
// paused in curl.
struct transfer_pause {
    bool is_wanted, is_in_curl;
};

struct transfer {
    unsigned magic;
    enum transfer_state state;
    struct transfer_pool *pool;
    struct transfer_lane *lane;
    struct list_node node, changed_node, turn_node;
    CURL *easy;
    struct curl_slist *headers;
    struct transfer_calls calls;
    void *ctx;
    uint64_t body_length, body_sent;

    enum transfer_wait wait;
    struct timer timer;
    uint64_t active_us;      // time of the last progress in the current wait
    uint64_t passed_over_us; // since when its readable socket has been left unread; 0: it is read
    uint64_t first_byte_timeout_ms, idle_timeout_ms; // 0 = none
    uint64_t late_timeout_ms; // replaces idle_timeout_ms in the body of a success

    enum err abort_err; // the error with which we abort the transfer; ERR_OK: we do not
    struct transfer_pause body_pause, upload_pause;
    enum transfer_head head;
    bool must_reconnect; // the request needs a connection other than the one that curl chose
    bool has_opened;     // has opened a socket
    enum transfer_reach reach;
    bool is_out_of_reach; // an address was refused because of `reach`
    bool must_run;        // curl may have an address left to try, but no event would start that
    unsigned status;      // of the latest response head; 0: none yet
    uint64_t held_bytes;  // bytes charged to the memory budget
    // body_announced: length of the body by its head, or TRANSFER_LENGTH_UNKNOWN.
    uint64_t body_announced, body_received;
    char error[CURL_ERROR_SIZE];
};

#define CURL_MULTI_SET(multi, option, value)                                                       \
    check(curl_multi_setopt((multi), (option), (value)) == CURLM_OK)
#define CURL_SET(easy, option, value) check(curl_easy_setopt((easy), (option), (value)) == CURLE_OK)

// --- transfer.c ----------------------------------------------------------------------------------
// Changes the state; nothing else may. Aborts if `state` may not follow the current one.
void transfer_enter(struct transfer *t, enum transfer_state state);

// --- transfer_pause.c ----------------------------------------------------------------------------
// Makes pool_drive() look at the transfer.
void transfer_changed(struct transfer *t);
// Makes pool_drive() end the transfer with `err`. Later calls do not change the error.
void transfer_abort(struct transfer *t, enum err err);
// Called when curl opens or drops a socket. If the transfer is still connecting, makes curl look at
// it once more.
void transfer_note_socket(struct transfer *t);
// Makes the pauses in curl match body_pause and upload_pause.
CURLcode transfer_tell_curl(struct transfer *t);
void transfer_wait(struct transfer *t); // pauses it in curl until its turn to receive
// Makes pool_drive() look at the lane, because a transfer may have ended in it.
void transfer_lane_is_due(struct transfer_lane *lane);

// --- transfer_turn.c -----------------------------------------------------------------------------
// Records that a piece of the body has arrived. Returns false if the rest must wait for a later
// turn.
bool transfer_turn_received(struct transfer *t, uint64_t len) MUST_USE;
bool transfer_turn_takes(const struct transfer *t); // true if the transfer may receive now
void transfer_turn_wait(struct transfer *t);
// Returns true if the transfer's readable socket may be read in this turn. Otherwise records that
// the socket is left unread.
bool transfer_turn_takes_socket(struct transfer *t) MUST_USE;
// Returns true if we left data in the socket unread, so that no timeout of the origin applies.
bool transfer_turn_is_passed_over(const struct transfer *t);
// Measures the time spent receiving from a socket. Pass the result of transfer_turn_begun() to
// transfer_turn_spent().
uint64_t transfer_turn_begun(struct transfer_pool *pool);
void transfer_turn_spent(struct transfer_pool *pool, uint64_t begun_us);
// Removes and returns the next waiting transfer that may receive now. NULL: none waits, or none may
// receive yet.
struct transfer *transfer_turn_next(struct transfer_pool *pool);

// --- transfer_lane.c -----------------------------------------------------------------------------
void transfer_lanes_init(struct transfer_pool *pool);
// Call it after the last transfer has ended.
void transfer_lanes_done(struct transfer_pool *pool);
// Returns the lane for one more transfer, with an open multi handle. Release it with
// transfer_lane_leave().
struct transfer_lane *transfer_lane_enter(struct transfer_pool *pool);
void transfer_lane_leave(struct transfer_lane *lane);
// Removes an ended transfer from all socket records of the lane.
void transfer_lane_forget(struct transfer_lane *lane, const struct transfer *t);
// Callback for CURLOPT_OPENSOCKETFUNCTION; ctx is the transfer.
curl_socket_t transfer_open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *addr);
// Callback for CURLOPT_CLOSESOCKETFUNCTION; ctx is the lane.
int transfer_close_socket(void *ctx, curl_socket_t fd);
// Lets curl act on the lane's timer, if the timer is due.
void transfer_lane_run_timer(struct transfer_lane *lane);

// --- transfer_memory.c ---------------------------------------------------------------------------
void transfer_memory_init(void); // initialises curl and sets its allocator; once per process
void transfer_memory_keep(void); // this thread keeps freed pieces until it ends
void *transfer_memory_alloc(size_t bytes);
void *transfer_memory_realloc(void *ptr, size_t bytes);
void transfer_memory_free(void *ptr);
#define TRANSFER_MEMORY_KEPT_MOST (1024u * 1024) // most bytes kept on a thread

// --- transfer_setup.c ----------------------------------------------------------------------------
// Sets the request's options on t->easy, except callbacks. Sets t->held_bytes; t->body_length must
// be set. Returns ERR_INVALID or ERR_LIMIT if the request must not be sent.
enum err transfer_setup(struct transfer *t, const struct transfer_request *request) MUST_USE;
enum err transfer_error_from_curl(const struct transfer *t, CURLcode code);

// --- transfer_tls.c ------------------------------------------------------------------------------
// Sets which certificate authorities the origin's certificate is checked against.
void transfer_set_authorities(struct transfer *t);

// --- transfer_connection.c -----------------------------------------------------------------------
// For CURLOPT_PREREQFUNCTION: returns true if the connection from this local port may carry the
// request. A connection without a port (Unix socket) always may.
bool transfer_connection_is_clean(const struct transfer *t, int local_port);
// Called at the end of the response head. Forbids reuse of the connection if it is not fit for
// another request after this upload.
void transfer_judge_upload(struct transfer *t);
// Makes curl close the connection after the transfer instead of keeping it.
void transfer_forbid_reuse(struct transfer *t);

// Returns true for an address at which clouds hand out credentials.
bool transfer_address_is_metadata(const struct sockaddr *addr);
// Returns how private an address is; LOCAL if it is no IP address.
enum transfer_reach transfer_reach_of(const struct sockaddr *addr);

#endif
