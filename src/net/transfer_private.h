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
#define IDLE_HANDLES_LEAST 32u
#define LANE_CONNECTIONS 32u

// A lane of a pool: a curl multi handle with its connections; see transfer_lane.c.
struct transfer_lane {
    unsigned magic;
    struct transfer_pool *pool;
    CURLM *multi;            // NULL: the lane is not open.
    unsigned most;           // The most connections in this lane.
    unsigned running;        // Transfers in this lane that have not ended.
    struct list connections; // Sockets opened for curl; see transfer_connection.c.
    struct list sockets;
    struct list_node due_node; // Links the lane into pool->due.
    struct timer timer;        // The timer that curl has asked for.
    bool is_timeout_due;
    // The next transfer must look the host name up again, because one of its addresses failed.
    bool must_look_up;
    struct timer unused_timer; // Closes the lane if no transfer used it for keepalive_ms.
};

// Limits on how much a pool receives in one turn of the worker's loop; see transfer_turn.c.
struct transfer_turn {
    uint64_t at_us;             // When the turn began.
    uint64_t left;              // Bytes of long bodies that may still be received.
    uint64_t room_us, spent_us; // Time for reading sockets: allowed, used.
};

struct transfer_pool {
    unsigned magic;
    struct worker *worker;
    struct transfer_pool_options options;
    // The file options.ca_file, or else the system's. NULL: libcurl was built for no file.
    char *ca_file;
    struct curl_slist *names; // The addresses in options.names, in curl's form.
    struct transfer_lane *lanes;
    unsigned lane_count;
    struct list transfers; // All transfers of the pool.
    unsigned transfer_count;
    struct list changed; // Transfers that pool_drive() must act on.
    struct list due;     // Lanes whose timer is due, or where a transfer may have ended.
    struct list waiting; // Transfers that wait until they may receive again.
    struct transfer_turn turn;
    struct task drive;
    bool is_in_curl;   // A curl call that may run callbacks is in progress.
    bool is_reporting; // An on_end() is running.
    bool is_freeing;
    CURL **idle; // Unused curl handles, for later requests; see handle_give_back().
    unsigned idle_count, idle_cap;
};

// A socket that was opened for curl.
struct pool_connection {
    struct list_node node;
    struct socket_room room;
    curl_socket_t fd;
    ino_t inode;                   // Tells the socket from others that get its descriptor later.
    const struct transfer *opener; // The transfer for which it was opened. NULL: that has ended.
    int local_port;                // The socket's local port. 0: not known yet.
};

enum transfer_state { STARTING, RUNNING, ENDED };
enum transfer_wait { WAIT_CONNECT, WAIT_UPLOAD, WAIT_FIRST_BYTE, WAIT_BODY };
// The kind of head that is being received. HEAD_FINAL also stands for the time before any head.
enum transfer_head { HEAD_FINAL, HEAD_INTERIM, HEAD_OVER };
#define TRANSFER_LENGTH_UNKNOWN UINT64_MAX

// Whether one direction of a transfer should be paused, and whether curl has paused it.
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
    uint64_t active_us;      // Time of the last progress in the current wait.
    uint64_t passed_over_us; // Time since which its readable socket is unread. 0: it is read.
    uint64_t first_byte_timeout_ms, idle_timeout_ms; // 0: no timeout.
    uint64_t late_timeout_ms; // Used instead of idle_timeout_ms in the body of a 2xx.

    enum err abort_err; // The error with which the transfer is being aborted; ERR_OK: it is not.
    struct transfer_pause body_pause, upload_pause;
    enum transfer_head head;
    // curl chose a connection that is not clean: transfer_connection_is_clean(). The request needs
    // another one.
    bool must_reconnect;
    bool is_proxied; // The connection is to the pool's proxy.
    bool has_opened; // curl has opened a socket for the transfer.
    enum transfer_reach reach;
    bool is_out_of_reach; // We refused an address because of `reach`.
    // curl may have another address to try, but needs a push; see transfer_run_connect().
    bool must_run;
    unsigned status;     // Status of the latest response head. 0: none yet.
    uint64_t held_bytes; // Bytes charged to the memory budget.
    // The length of the body by its head, or TRANSFER_LENGTH_UNKNOWN, and how much has been
    // received.
    uint64_t body_announced, body_received;
    char error[CURL_ERROR_SIZE];
};

#define CURL_MULTI_SET(multi, option, value)                                                       \
    check(curl_multi_setopt((multi), (option), (value)) == CURLM_OK)
#define CURL_SET(easy, option, value) check(curl_easy_setopt((easy), (option), (value)) == CURLE_OK)

// --- transfer.c ----------------------------------------------------------------------------------
// Changes the state; nothing else may. Aborts the process if `state` may not follow the current
// state.
void transfer_enter(struct transfer *t, enum transfer_state state);

// --- transfer_pause.c ----------------------------------------------------------------------------
// Makes pool_drive() act on the transfer.
void transfer_changed(struct transfer *t);
// Makes pool_drive() end the transfer with `err`. Only the first call sets the error.
void transfer_abort(struct transfer *t, enum err err);
// Called when curl opens or drops a socket. If the transfer is still connecting, makes
// transfer_run_connect() run curl for it.
void transfer_note_socket(struct transfer *t);
// Pauses and resumes the transfer in curl as body_pause, upload_pause and the turn require.
CURLcode transfer_tell_curl(struct transfer *t);
void transfer_wait(struct transfer *t); // Pauses the transfer in curl until it may receive again.
// Makes pool_drive() act on the lane, because its timer is due or a transfer in it may have ended.
void transfer_lane_is_due(struct transfer_lane *lane);

// --- transfer_turn.c -----------------------------------------------------------------------------
// Records that a piece of the body has arrived. Returns false if the rest must wait for a later
// turn.
bool transfer_turn_received(struct transfer *t, uint64_t len) MUST_USE;
bool transfer_turn_takes(const struct transfer *t); // Returns true if the transfer may receive now.
void transfer_turn_wait(struct transfer *t);
// Returns true if the transfer's readable socket may be read in this turn. Otherwise records that
// the socket is left unread.
bool transfer_turn_takes_socket(struct transfer *t) MUST_USE;
// Returns true if we have left data in the socket unread, so that the origin must not be timed out.
bool transfer_turn_is_passed_over(const struct transfer *t);
// Measures the time spent receiving from a socket. Pass the result of transfer_turn_begun() to
// transfer_turn_spent().
uint64_t transfer_turn_begun(struct transfer_pool *pool);
void transfer_turn_spent(struct transfer_pool *pool, uint64_t begun_us);
// Removes and returns the next waiting transfer that may receive now. Returns NULL if none waits,
// or if the turn's limit is used up.
struct transfer *transfer_turn_next(struct transfer_pool *pool);

// --- transfer_lane.c -----------------------------------------------------------------------------
void transfer_lanes_init(struct transfer_pool *pool);
// Closes all lanes. Call it after the last transfer has ended.
void transfer_lanes_done(struct transfer_pool *pool);
// Returns the lane for one more transfer, with an open multi handle. Release it with
// transfer_lane_leave().
struct transfer_lane *transfer_lane_enter(struct transfer_pool *pool);
void transfer_lane_leave(struct transfer_lane *lane);
// Removes an ended transfer from all socket records of the lane. Call it after the handle has left
// curl's multi handle.
void transfer_lane_forget(struct transfer_lane *lane, const struct transfer *t);
// Callback for CURLOPT_OPENSOCKETFUNCTION; ctx is the transfer.
curl_socket_t transfer_open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *addr);
// Callback for CURLOPT_CLOSESOCKETFUNCTION; ctx is the lane.
int transfer_close_socket(void *ctx, curl_socket_t fd);
// Runs curl's timer work for the lane, if its timer is due.
void transfer_lane_run_timer(struct transfer_lane *lane);

// --- transfer_memory.c ---------------------------------------------------------------------------
void transfer_memory_init(void); // Initialises curl and sets its allocator; once per process.
// From now on this thread keeps freed pieces for reuse, until it ends.
void transfer_memory_keep(void);
void *transfer_memory_alloc(size_t bytes);
void *transfer_memory_realloc(void *ptr, size_t bytes);
void transfer_memory_free(void *ptr);
#define TRANSFER_MEMORY_KEPT_MOST (1024u * 1024) // The most bytes that a thread keeps.

// --- transfer_setup.c ----------------------------------------------------------------------------
// Sets the request's options on t->easy, except for the callbacks, and sets t->held_bytes.
// t->body_length must be set before. Returns ERR_INVALID or ERR_LIMIT if the request must not be
// sent.
enum err transfer_setup(struct transfer *t, const struct transfer_request *request) MUST_USE;
enum err transfer_error_from_curl(const struct transfer *t, CURLcode code);

// --- transfer_tls.c ------------------------------------------------------------------------------
// Sets the certificate authorities that the origin's certificate is checked against.
void transfer_set_authorities(struct transfer *t);

// --- transfer_connection.c -----------------------------------------------------------------------
// Returns true if the connection from this local port may carry the request, because no unexpected
// bytes have arrived on it. Always true for a connection without a port (Unix socket). For
// CURLOPT_PREREQFUNCTION.
bool transfer_connection_is_clean(const struct transfer *t, int local_port);
// Called at the end of the response head. After an upload, forbids reuse of the connection if
// another request on it could be misunderstood.
void transfer_judge_upload(struct transfer *t);
// Makes curl close the connection after this transfer.
void transfer_forbid_reuse(struct transfer *t);

// Returns true for an address at which clouds hand out credentials.
bool transfer_address_is_metadata(const struct sockaddr *addr);
// Returns how private an address is; LOCAL if it is no IP address.
enum transfer_reach transfer_reach_of(const struct sockaddr *addr);

#endif
