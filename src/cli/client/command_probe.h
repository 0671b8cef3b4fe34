// SPDX-License-Identifier: Apache-2.0
// The configured origins, asked one thing at a time by a command: the very drivers and credentials
// that serve uses, in a loop of one worker. Main thread.
#ifndef FOREBAY_CLI_COMMAND_PROBE_H
#define FOREBAY_CLI_COMMAND_PROBE_H

#include "server/server.h"

struct command_probe {
    struct loop *loop;
    struct command_origins origins;
    bool is_running;
    bool is_stuck; // a call did not end when it was cancelled: nothing is asked any more
};

// Opens what the configuration names; requests have `timeout_ms` for each of their waits, and are
// not repeated. ret_why has one line. command_probe_close() in any case.
enum err command_probe_open(struct command_probe *probe, const struct config *config,
                            uint64_t timeout_ms, struct buf *ret_why) MUST_USE;
void command_probe_close(struct command_probe *probe);

enum command_probe_kind { PROBE_BUCKETS, PROBE_LIST, PROBE_HEAD, PROBE_GET };

#define PROBE_KEY_MAX 1025u // S3's longest, and its end
#define PROBE_TEXT_MAX 1024u

struct command_probe_ask {
    enum command_probe_kind kind;
    struct origin *origin;
    const char *bucket, *key; // not all kinds have them
    uint64_t first, last;     // GET: the range
};

struct command_probe_answer {
    enum err err;
    unsigned status;   // 0: there was none
    uint64_t first_us; // until its head
    uint64_t total_us;
    uint64_t bytes;            // of the body
    uint64_t size_bytes;       // HEAD, GET: of the object; LIST: of the first one
    char key[PROBE_KEY_MAX];   // LIST: the first one's; BUCKETS: the first bucket; empty: there is
                               // none
    char text[PROBE_TEXT_MAX]; // of an error document, its beginning
};

// Asks and waits, at most `timeout_ms` and a moment.
void command_probe_ask(struct command_probe *probe, const struct command_probe_ask *ask,
                       uint64_t timeout_ms, struct command_probe_answer *ret_answer);
// `count` of them at once; for each an answer.
void command_probe_ask_all(struct command_probe *probe, const struct command_probe_ask *asks,
                           unsigned count, uint64_t timeout_ms,
                           struct command_probe_answer *ret_answers);

#endif
