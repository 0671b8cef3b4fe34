// SPDX-License-Identifier: Apache-2.0
// One request on its way through pass-through, between the played doors of doors.h: the bytes that
// its client sends and reads, and that its origin takes and answers. One at a time, from ask_init()
// to ask_finish().
#ifndef FOREBAY_TESTS_PROXY_ASK_H
#define FOREBAY_TESTS_PROXY_ASK_H

#include "doors.h"

struct ask {
    struct arena *arena;
    struct http_request http;
    struct request r;
    struct buf uploaded; // bytes of the client's body that the origin has
    struct buf received; // bytes of the reply's body that the client has
};
extern struct ask ask;
extern struct proxy ask_proxy; // one rule for everything
extern struct live ask_live;

struct origin *ask_origin(unsigned i); // 0 is the default, 1 another
void ask_init(const char *method, const char *target);
void ask_header(const char *name, const char *value);
void ask_body_of(uint64_t n); // Content-Length
void ask_start(void);         // parsed, and into serve_pass.c
// Ends the exchange, unless it has ended. Checks that everything has been given back.
void ask_finish(void);

// The client.
void ask_give(const char *data);
void ask_give_end(void);
// It takes what there is; the last answer of the source.
enum http_pull ask_reads(void);
void ask_exchange_ends(void);
bool ask_reply_has(const char *header);

// The origin. ERR_OK: it has the whole body.
enum err ask_upload(void);
void ask_origin_head(unsigned status, int64_t length); // must be taken
void ask_origin_body(const char *data);

// The writes: every key that waits.
void ask_all_ready(void);
void ask_all_ended(void);

#endif
