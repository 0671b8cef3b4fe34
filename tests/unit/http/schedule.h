// SPDX-License-Identifier: Apache-2.0
// The HTTP front under a schedule: a server whose one worker is driven turn by turn, clients on
// non-blocking sockets, a handler that does what each request's plan says, and a judge of what the
// clients read. One thread; nothing waits.
//
//   talk   one connection: its requests as bytes, what was sent and read of it
//   turn   one request on it: what it asks, how it is to be answered, what has happened
//
// Reply bytes follow from talk, turn and offset; request bodies look like requests. So bytes of
// another reply, and a body taken for a request, are seen.
#ifndef FOREBAY_TESTS_UNIT_HTTP_SCHEDULE_H
#define FOREBAY_TESTS_UNIT_HTTP_SCHEDULE_H

#include "http/http.h"

#define TALKS_MAX 3
#define TURNS_MAX 6
#define NEVER UINT32_MAX
#define REQUEST_BODY_MAX 400000u

enum moment { AT_ONCE, AT_TICK, AT_BODY, AT_END, AT_NO_TIME };
enum framing { NO_BODY, BY_LENGTH, BY_CHUNKS };
enum flaw { FLAWLESS, BAD_HEAD, BAD_CHUNK };
enum reply_kind { BY_BODY, BY_SOURCE, BY_FILE, BY_NOTHING };

struct talk;

struct turn {
    struct talk *talk;
    unsigned index;
    // the request
    bool is_head, is_http10, expects, asks_close, asks_keep_alive;
    enum framing framing;
    enum flaw flaw;
    uint32_t body_len;
    // how it is answered
    enum moment body_when, reply_when;
    uint32_t reply_at;                                 // AT_BODY: bytes of the body
    uint32_t sink_fails_at;                            // bytes of the body
    unsigned pause_one_in, wait_one_in, recall_one_in; // 0 = never
    unsigned status;
    enum reply_kind kind;
    uint32_t reply_len, slice_max;
    bool has_length, closes;
    uint32_t source_cut_at; // bytes of the reply
    unsigned cut_after;     // ticks until http_reply_cut(); 0 = never
    // the state of the exchange
    struct http_exchange *x; // NULL: not begun, or done
    struct http_user user;
    struct http_source source;
    struct http_sink sink;
    bool has_begun, is_done, body_started, sink_ended, sink_failed, is_paused, has_replied;
    bool is_waiting, source_ended, may_be_cut;
    bool done_early; // in front of bytes that the client had still to send
    bool continue_due, must_close, may_close;
    enum http_outcome outcome;
    uint32_t got, given, from_memory;
};

struct talk {
    unsigned number;
    struct turn turns[TURNS_MAX];
    unsigned turn_count, begun;
    int fd; // -1: closed
    struct buf out, in;
    size_t sent;
    bool is_shut, is_reset, at_end;
    bool client_left; // closed or reset in the middle
};

// --- chance --------------------------------------------------------------------------------------

void chance_seed(uint64_t seed);
unsigned pick(unsigned below);
bool one_in(unsigned n); // false for 0

// --- the server, one for many schedules ----------------------------------------------------------

void schedule_open(void);
void schedule_close(void);
void schedule_turn(void); // one turn of the worker
void schedule_advance(uint64_t us);
unsigned schedule_connections(void);
bool talk_connect(struct talk *talk, bool on_tcp);

// --- one schedule --------------------------------------------------------------------------------

// `talks` stay where they are until schedule_end().
void schedule_begin(struct talk *talks, unsigned count, bool trace);
void schedule_end(void);                                       // checks that nothing is left over
void schedule_note(const char *format, ...) PRINTF_LIKE(1, 2); // a line of the trace
_Noreturn void schedule_fail(const char *file, int line, const char *condition, const char *format,
                             ...) PRINTF_LIKE(4, 5);
#define must(condition, ...)                                                                       \
    ((condition) ? (void)0 : schedule_fail(__FILE__, __LINE__, #condition, __VA_ARGS__))

void talk_compose(struct talk *talk); // the turns' bytes into `out`
// The handler's turn to do what it has put off.
bool turn_tick(struct turn *turn); // false: there was nothing
struct span request_body(uint32_t len);
char reply_byte(const struct turn *turn, uint64_t offset);

// Checks that the bytes which the client has read may be on the wire. `is_late`: timeouts may have
// fired.
void talk_judge(const struct talk *talk, bool is_late);

#endif
