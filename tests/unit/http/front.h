// SPDX-License-Identifier: Apache-2.0
// A server on a kernel-chosen loopback port with a scripted handler, and a blocking client, for
// tests with real sockets.
//
// The handler obeys the target (numbers are decimal):
//   /small               "hello\n", X-Worker: index
//   /bytes?n&slice&wait  n pattern bytes in slices; waits once before every `wait`-th slice
//   /chunked?n&slice     the same without a length
//   /file?n              n pattern bytes of a file by file slices; recalled ones come from memory
//   /ready?n             the same, and the source has found each slice ready already
//   /evicted?n           the same, the file's pages dropped before each slice is offered
//   /cut?n&at            announces n, cuts after `at` bytes
//   /short?n             announces n, ends one byte early; /long?n gives one byte too many
//   /put                 reads the body, answers "LEN SUM\n"; /slowput pauses after each piece
//   /early               reads the body, answers 503 at its first piece
//   /refuse              403 without touching the body; /bad fails in the sink, then 400
//   /late                as /small, from deferred work
//   /never               no reply
//   /headers             reply headers of which some must not be emitted
//   /204, /304           no body, no length
#ifndef FOREBAY_TESTS_UNIT_HTTP_FRONT_H
#define FOREBAY_TESTS_UNIT_HTTP_FRONT_H

#include <stdatomic.h>

#include "http/http.h"
#include "stats/stats.h"

struct front {
    struct loop *loop;
    struct http_server *server;
    const char *address;     // of the first listener
    int file;                // pattern bytes, FRONT_FILE_SIZE
    atomic_uint refused_for; // the enum counter of the last refusal
    atomic_uint requests, refusals, done, gone, slow, cut, releases, slices, recalls, sinks_ended;
    atomic_uint questions; // whether pages of a slice are good
    unsigned long counted_before[COUNTER_COUNT_];
    atomic_uint nested; // callbacks inside callbacks: must stay 0
};

#define FRONT_FILE_SIZE (8u << 20)

// Defaults for what is 0 in `options`. One listener on 127.0.0.1 unless `listen` says otherwise.
struct front *front_new(struct http_options options, unsigned workers);
void front_free(struct front *f);
unsigned long front_counted(const struct front *f, enum counter c); // since front_new()
char front_pattern(uint64_t offset);

// --- client: every call fails the test after 20 s ------------------------------------------------
int client_connect(const char *address);
void client_send(int fd, const void *bytes, size_t len); // a peer that is gone is not an error
void client_send_text(int fd, const char *text);
void client_reset(int fd); // closes it with a reset
struct client_reply {
    unsigned status;
    char head[8192];
    char *body; // free with client_reply_done
    size_t body_len;
    bool has_length, chunked, close, complete; // complete: the body is whole by its framing
};
// Returns false at a close before any byte. `is_head`: no body follows.
bool client_read(int fd, bool is_head, struct client_reply *ret_reply);
void client_reply_done(struct client_reply *reply);
bool client_header(const struct client_reply *reply, const char *name, char *ret_value,
                   size_t size);
bool client_at_end(int fd); // waits for the close; false when a byte comes
void client_read_exactly(int fd, char *bytes, size_t len);

#endif
