// SPDX-License-Identifier: Apache-2.0
// What transfer.c, transfer_lane.c, transfer_setup.c, transfer_tls.c, transfer_connection.c share.
// A transfer and its pool belong to one worker.
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
    CURLM *multi;            // NULL: none is open
    unsigned most;           // connections
    unsigned running;        // transfers that have not ended
    struct list connections; // what has been opened for curl, transfer_connection.c
    struct list sockets;
    struct list_node due_node; // in pool->due
    struct timer timer;        // curl's
    bool is_timeout_due;
    bool must_look_up;         // an address of the name has failed: the next look-up is made anew
    struct timer unused_timer; // nothing has run for as long as connections are kept
};

struct transfer_turn {
    uint64_t at_us;             // when it began
    uint64_t left;              // bytes of long bodies that there is room for
    uint64_t room_us, spent_us; // for receiving from sockets, and so far
};

struct transfer_pool {
    unsigned magic;
    struct worker *worker;
    struct transfer_pool_options options;
    char *ca_file; // options.ca_file, else the system's; NULL: it has only a folder of them
    struct curl_slist *names; // options.names
    struct transfer_lane *lanes;
    unsigned lane_count;
    struct list transfers; // all of them
    struct list changed;   // those pool_drive() must look at
    struct list due;       // lanes in which something may have ended, or whose time has come
    struct list waiting;   // transfers, for their turn to receive
    struct transfer_turn turn;
    struct task drive;
    bool is_in_curl;   // inside a call of curl's that may call back
    bool is_reporting; // inside on_end()
    bool is_freeing;
    CURL *idle[IDLE_HANDLES_MAX]; // reset, for the next requests
    unsigned idle_count;
};

enum transfer_state { STARTING, RUNNING, ENDED };
enum transfer_wait { WAIT_CONNECT, WAIT_UPLOAD, WAIT_FIRST_BYTE, WAIT_BODY };

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
    uint64_t active_us;      // when the wait last made progress
    uint64_t passed_over_us; // since when its socket holds what was not received, 0: it does not
    uint64_t first_byte_timeout_ms, idle_timeout_ms; // 0 = none
    uint64_t late_timeout_ms; // instead of the latter, in the body of a success

    enum err abort_err; // why we end it; ERR_OK = curl decides
    bool is_cancelled;
    bool is_paused, is_held_by_curl; // wanted; as curl has it
    bool is_upload_paused, is_upload_held_by_curl;
    bool is_interim_head, is_head_over;
    bool must_reconnect; // the connection that curl chose may carry no request
    bool has_opened;     // a socket
    enum transfer_reach reach;
    bool is_out_of_reach; // an address was refused for it
    bool must_run;        // curl may have an address to try, and nothing that would make it
    bool has_length;      // body_announced
    unsigned status;      // of the head that has come, 0: none
    uint64_t held_bytes;  // charged to the budget
    uint64_t body_announced, body_received;
    char error[CURL_ERROR_SIZE];
};

#define CURL_MULTI_SET(multi, option, value)                                                       \
    check(curl_multi_setopt((multi), (option), (value)) == CURLM_OK)
#define CURL_SET(easy, option, value) check(curl_easy_setopt((easy), (option), (value)) == CURLE_OK)

// --- transfer.c ----------------------------------------------------------------------------------
// A socket has come or gone: while the transfer connects, curl is made to look at it once more.
void transfer_note_socket(struct transfer *t);
void transfer_wait(struct transfer *t); // held up in curl until it is its turn to receive

// --- transfer_turn.c -----------------------------------------------------------------------------
// A piece of its body has come. False: more must wait.
bool transfer_turn_received(struct transfer *t, uint64_t len) MUST_USE;
bool transfer_turn_takes(const struct transfer *t); // may it receive now?
void transfer_turn_wait(struct transfer *t);
// The socket of one that waits for its answer holds something. False: it is passed over in this
// turn.
bool transfer_turn_takes_socket(struct transfer *t) MUST_USE;
// What has come lies in the socket because of us: not the origin's time.
bool transfer_turn_is_passed_over(const struct transfer *t);
// Receiving from a socket: transfer_turn_spent() is told what transfer_turn_begun() gave.
uint64_t transfer_turn_begun(struct transfer_pool *pool);
void transfer_turn_spent(struct transfer_pool *pool, uint64_t begun_us);
// Takes the next one out that may receive now; NULL: nobody waits, or who waits must go on waiting.
struct transfer *transfer_turn_next(struct transfer_pool *pool);

// --- transfer_lane.c -----------------------------------------------------------------------------
void transfer_lanes_init(struct transfer_pool *pool);
// After the last transfer's end.
void transfer_lanes_done(struct transfer_pool *pool);
// The lane that one more transfer runs in, with its multi handle. Given back by
// transfer_lane_leave().
struct transfer_lane *transfer_lane_enter(struct transfer_pool *pool);
void transfer_lane_leave(struct transfer_lane *lane);
// The transfer ends: no socket is its any more.
void transfer_lane_forget(struct transfer_lane *lane, const struct transfer *t);
// A descriptor is about to be closed, or has been.
void transfer_lane_forget_socket(struct transfer_lane *lane, curl_socket_t fd);
// Something may have ended in it: pool->drive looks.
void transfer_lane_is_due(struct transfer_lane *lane);
// Lets curl act on the lane's timer, if it is time.
void transfer_lane_run_timer(struct transfer_lane *lane);

// --- transfer_memory.c ---------------------------------------------------------------------------
void transfer_memory_init(void); // curl's, and with it what it allocates from; once a process
void transfer_memory_keep(void); // this thread keeps what is freed on it, until it ends
void *transfer_memory_alloc(size_t bytes);
void *transfer_memory_realloc(void *ptr, size_t bytes);
void transfer_memory_free(void *ptr);
#define TRANSFER_MEMORY_KEPT_MOST (1024u * 1024) // bytes that wait on a thread for the next

// --- transfer_setup.c ----------------------------------------------------------------------------
// Describes the request to t->easy, callbacks apart; t->body_length is set. ERR_INVALID or
// ERR_LIMIT: what may not be sent.
enum err transfer_setup(struct transfer *t, const struct transfer_request *request) MUST_USE;
enum err transfer_error_from_curl(const struct transfer *t, CURLcode code);

// --- transfer_tls.c ------------------------------------------------------------------------------
// Which certificates of its origin's are accepted.
void transfer_set_authorities(struct transfer *t);

// --- transfer_connection.c -----------------------------------------------------------------------
// curl's CURLOPT_OPENSOCKETFUNCTION; ctx is the transfer.
curl_socket_t transfer_open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *addr);
// curl's CURLOPT_CLOSESOCKETFUNCTION; ctx is the lane.
int transfer_close_socket(void *ctx, curl_socket_t fd);
// Forgets what is still open; after curl has.
void transfer_connections_done(struct transfer_lane *lane);
// In CURLOPT_PREREQFUNCTION: may the connection that leads from this port carry the request? Those
// without a port (unix sockets) are not judged.
bool transfer_connection_is_clean(const struct transfer *t, int local_port);
// At the end of the answer's head: is the connection fit for another request after this upload?
void transfer_judge_upload(struct transfer *t);
// curl closes the connection when the transfer is over, instead of keeping it.
void transfer_forbid_reuse(struct transfer *t);

// May no origin be reached at this address?
bool transfer_address_is_metadata(const struct sockaddr *addr);

#endif
