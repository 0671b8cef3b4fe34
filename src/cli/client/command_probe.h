// SPDX-License-Identifier: Apache-2.0
// Sends single requests to the configured origins, for commands. Uses the same drivers and
// credentials as serve, in a loop with one worker. Main thread.
#ifndef FOREBAY_CLI_COMMAND_PROBE_H
#define FOREBAY_CLI_COMMAND_PROBE_H

#include "server/server.h"

struct command_probe {
    struct loop *loop;
    struct command_origins origins;
    bool is_running;
    bool is_stuck; // a cancelled call did not end, so further requests are refused
};

// Opens the configured origins. Each wait of a request takes at most `timeout_ms`, and requests are
// not retried. On failure *ret_why gets one line. The caller calls command_probe_close() in any
// case.
enum err command_probe_open(struct command_probe *probe, const struct config *config,
                            uint64_t timeout_ms, struct buf *ret_why) MUST_USE;
void command_probe_close(struct command_probe *probe);

enum command_probe_kind { PROBE_BUCKETS, PROBE_LIST, PROBE_HEAD, PROBE_GET };

#define PROBE_KEY_MAX 1025u // longest key of S3, and a NUL
#define PROBE_TEXT_MAX 1024u

struct command_probe_ask {
    enum command_probe_kind kind;
    struct origin *origin;
    const char *bucket, *key; // some kinds do not use them
    uint64_t first, last;     // GET: the range
};

struct command_probe_answer {
    enum err err;
    unsigned status;   // 0: no answer
    uint64_t first_us; // time to the head of the answer
    uint64_t total_us;
    uint64_t bytes;            // bytes of the body
    uint64_t size_bytes;       // HEAD, GET: the object's size; LIST: the size of the first object
    char key[PROBE_KEY_MAX];   // LIST: the first key; BUCKETS: the first bucket; "": there is none
    char text[PROBE_TEXT_MAX]; // the beginning of an error document
};

// Sends a request and waits for the answer, for slightly more than `timeout_ms` at most.
void command_probe_ask(struct command_probe *probe, const struct command_probe_ask *ask,
                       uint64_t timeout_ms, struct command_probe_answer *ret_answer);
// Sends `count` requests at once. Fills in one answer for each.
void command_probe_ask_all(struct command_probe *probe, const struct command_probe_ask *asks,
                           unsigned count, uint64_t timeout_ms,
                           struct command_probe_answer *ret_answers);

#endif
