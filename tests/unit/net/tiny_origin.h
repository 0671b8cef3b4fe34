// SPDX-License-Identifier: Apache-2.0
// A small HTTP server on loopback, told by the path what to do:
//   /bytes/N        200 with N bytes of the pattern
//   /cut/N/M        200, Content-Length N, M bytes, then closes
//   /chunked/N      200, chunked, N bytes in chunks of 1000, with a trailer field
//   /chunkcut/N     the same without its end
//   /stall/N/M      200, Content-Length N, M bytes, then silence until the client goes
//   /late/N/M       as /bytes/N, but what follows M bytes only after tiny_origin_go_on()
//   /silent         no answer until the client goes
//   /head           200 with the request's head as the body
//   /echo           200 with the request's body
//   /early          403 and a close before the body is read
//   /nobody         no body is read, no answer, until tiny_origin_free()
//   /interim/N      103, then as /bytes/N
//   /once/N         as /bytes/N, but closes after the answer without saying so
//   /none           204
//   /refuse/N       reads the body, answers status N, stays open
//   /hasty/N        answers status N before it reads the body, which it reads then; stays open
//   /granted/N      100 and, in one piece, status N before it reads the body; stays open
//   /stray/N        as /bytes/N, and with it, in one piece, another answer that nobody asked for
// A thread per connection; counters say what was seen.
#ifndef FOREBAY_TESTS_UNIT_NET_TINY_ORIGIN_H
#define FOREBAY_TESTS_UNIT_NET_TINY_ORIGIN_H

#include <stdatomic.h>
#include <stddef.h>

struct tiny_origin;
// Listens on an ephemeral port of 127.0.0.1, or on a unix socket when path is given.
struct tiny_origin *tiny_origin_new(const char *unix_path);
// Another one, on the same port of 127.0.0.2.
struct tiny_origin *tiny_origin_new_beside(const struct tiny_origin *origin);
void tiny_origin_free(
    struct tiny_origin *origin); // all connections must be over or closed by the client
unsigned tiny_origin_port(const struct tiny_origin *origin);
unsigned tiny_origin_connections(const struct tiny_origin *origin);
unsigned tiny_origin_requests(const struct tiny_origin *origin);
// Sends the delayed rest of answers, now and from now on.
void tiny_origin_go_on(struct tiny_origin *origin);
// Sends HTTP on the first connection without a request. A TLS client must refuse it.
void tiny_origin_answer_in_plain(struct tiny_origin *origin);
// Sends an unrequested answer on the latest connection, and waits until it has arrived.
void tiny_origin_answer_unasked(struct tiny_origin *origin);
// Byte i of every body.
char tiny_origin_byte(size_t i);

#endif
