// SPDX-License-Identifier: Apache-2.0
// Proves over real sockets: refusals are one answer and a close, keep-alive and pipelining stay in
// step, bodies and Expect, time limits.
#include "test.h"
#include "waiting.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "front.h"
#include "malformed.h"
#include "stats/stats.h"

#define HOST "Host: localhost\r\n"
#define NEXT "GET /small HTTP/1.1\r\n" HOST "\r\n"

static void assert_refused(struct front *f, struct span bytes, size_t cut, enum err want,
                           unsigned row)
{
    (void)row; // only told where asserts have texts
    int fd = client_connect(f->address);
    struct client_reply reply;
    client_send(fd, bytes.ptr, cut);
    client_send(fd, bytes.ptr + cut, bytes.len - cut);
    client_send_text(fd, NEXT);
    if (client_read(fd, false, &reply)) {
        cr_assert(reply.status >= 400 && reply.close, "row %u: %u", row, reply.status);
        cr_assert(want == ERR_OK || reply.status == error_row(want)->status, "row %u: %u", row,
                  reply.status);
        cr_assert(reply.complete, "row %u", row);
        client_reply_done(&reply);
    } else {
        cr_assert(want == ERR_OK, "row %u: no answer", row); // 0x16 first: a TLS hello has none
    }
    cr_assert(client_at_end(fd), "row %u: it went on", row);
    close(fd);
}

// Every malformed head gets one 4xx or 5xx and a close. The request after it is never answered.
Test(http_connection, malformed_rows)
{
    struct front *f = front_new((struct http_options){0}, 2);
    unsigned random = 12345;
    for (unsigned i = 0; i < malformed_count(); i++) {
        struct buf b;
        enum err want;
        buf_init(&b, 1 << 20);
        malformed_append(i, &b, &want);
        random = random * 1103515245 + 12345;
        assert_refused(f, buf_span(&b), 0, want, i);
        assert_refused(f, buf_span(&b), (random >> 8) % b.len, want, i);
        buf_done(&b);
    }
    cr_assert(f->requests == 0);
    front_free(f);
}

// A good request is answered the same when it is cut at every byte, and when it comes byte by byte.
Test(http_connection, split_at_every_byte)
{
    struct front *f = front_new((struct http_options){0}, 1);
    const char *text = "PUT /put HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nX: y\r\n\r\n"
                       "5;e=1\r\nhello\r\n6\r\n world\r\n0\r\nT: z\r\n\r\n";
    int fd = client_connect(f->address);
    struct client_reply reply;
    char want[64] = "";
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        if (cut < strlen(text)) {
            client_send(fd, text, cut);
            client_send_text(fd, text + cut);
        } else {
            for (size_t i = 0; text[i] != '\0'; i++) {
                client_send(fd, text + i, 1);
            }
        }
        cr_assert(client_read(fd, false, &reply) && reply.status == 200 && !reply.close);
        snprintf(cut == 0 ? want : (char[64]){0}, sizeof(want), "%.*s", (int)reply.body_len,
                 reply.body);
        cr_assert(strncmp(want, "11 ", 3) == 0 && strncmp(want, reply.body, reply.body_len) == 0);
        client_reply_done(&reply);
    }
    close(fd);
    front_free(f);
}

// Pipelined requests of every kind are answered in order. Reading stops at one head in advance.
Test(http_connection, pipelining)
{
    struct front *f = front_new((struct http_options){0}, 2);
    struct buf b;
    buf_init(&b, 1 << 20);
    for (unsigned i = 0; i < 200; i++) {
        buf_printf(&b, "GET /%s?n=%u HTTP/1.1\r\n" HOST "\r\n", i % 3 == 0 ? "chunked" : "bytes",
                   i);
        buf_append_cstr(&b, "PUT /put HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc");
        buf_append_cstr(&b, "GET /late HTTP/1.1\r\n" HOST "\r\n");
    }
    int fd = client_connect(f->address);
    client_send(fd, b.ptr, b.len);
    for (unsigned i = 0; i < 200; i++) {
        struct client_reply reply;
        cr_assert(client_read(fd, false, &reply) && reply.body_len == i);
        client_reply_done(&reply);
        cr_assert(client_read(fd, false, &reply) && strncmp(reply.body, "3 ", 2) == 0);
        client_reply_done(&reply);
        cr_assert(client_read(fd, false, &reply) && reply.body_len == 6);
        client_reply_done(&reply);
    }
    buf_done(&b);
    close(fd);
    front_free(f);
}

// After a request without a reply yet, the server does not read an endless stream.
Test(http_connection, pipelined_flood_is_bounded)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    client_send_text(fd, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    wait_for(f->requests >= 1);
    char *flood = malloc(1 << 20);
    size_t sent = 0;
    for (size_t i = 0; i < 1 << 20; i++) {
        flood[i] = (NEXT)[i % strlen(NEXT)];
    }
    for (unsigned i = 0; i < 64; i++) {
        ssize_t n = send(fd, flood, 1 << 20, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            break;
        }
        sent += (size_t)n;
    }
    cr_assert(sent < 64u << 20);
    free(flood);
    close(fd);
    front_free(f); // ends it
}

// Connection: close, HTTP/1.0 with and without keep-alive.
Test(http_connection, keep_alive)
{
    static const struct {
        const char *head;
        bool close;
    } rows[] = {
        {"GET /small HTTP/1.1\r\n" HOST "\r\n", false},
        {"GET /small HTTP/1.1\r\n" HOST "Connection: keep-alive\r\n\r\n", false},
        {"GET /small HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n", true},
        {"GET /small HTTP/1.1\r\n" HOST "Connection: x, CLOSE\r\n\r\n", true},
        {"GET /small HTTP/1.0\r\n" HOST "\r\n", true},
        {"GET /small HTTP/1.0\r\n" HOST "Connection: keep-alive\r\n\r\n", false},
        {"\r\nGET /small HTTP/1.1\r\n" HOST "\r\n", false},
    };
    struct front *f = front_new((struct http_options){0}, 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        int fd = client_connect(f->address);
        struct client_reply reply;
        client_send_text(fd, rows[i].head);
        cr_assert(client_read(fd, false, &reply) && reply.status == 200 && reply.complete);
        cr_assert(reply.close == rows[i].close, "row %zu", i);
        client_reply_done(&reply);
        if (rows[i].close) {
            cr_assert(client_at_end(fd));
        } else {
            client_send_text(fd, NEXT);
            cr_assert(client_read(fd, false, &reply) && reply.status == 200);
            client_reply_done(&reply);
        }
        close(fd);
    }
    front_free(f);
}

static void put(int fd, const char *target, uint64_t len, const char *headers, bool send_body)
{
    struct buf b;
    buf_init(&b, 16 << 20);
    buf_printf(&b, "PUT %s HTTP/1.1\r\n" HOST "Content-Length: %llu\r\n%s\r\n", target,
               (unsigned long long)len, headers);
    for (uint64_t i = 0; send_body && i < len; i++) {
        buf_append_char(&b, front_pattern(i));
    }
    client_send(fd, b.ptr, b.len);
    buf_done(&b);
}

// Bodies of many sizes reach the sink whole, with pauses and without. The next request is in step.
Test(http_connection, bodies)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    static const uint64_t sizes[] = {0, 1, 1000, 65536, 65537, 1000000, 5000000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint64_t sum = 0;
        for (uint64_t k = 0; k < sizes[i]; k++) {
            sum = sum * 31 + (unsigned char)front_pattern(k);
        }
        for (unsigned slow = 0; slow < 2; slow++) {
            char want[64];
            struct client_reply reply;
            put(fd, slow ? "/slowput" : "/put", sizes[i], "", true);
            cr_assert(client_read(fd, false, &reply) && reply.status == 200);
            snprintf(want, sizeof(want), "%llu %llu\n", (unsigned long long)sizes[i],
                     (unsigned long long)sum);
            cr_assert(reply.body_len == strlen(want) &&
                      memcmp(reply.body, want, reply.body_len) == 0);
            client_reply_done(&reply);
        }
    }
    close(fd);
    wait_for(f->done >= f->requests);
    cr_assert(f->sinks_ended == f->requests);
    front_free(f);
}

// 100 Continue is sent as soon as the handler wants the body, also an empty one. Otherwise the
// final status and a close are sent.
Test(http_connection, expect)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    struct client_reply reply;
    for (unsigned len = 0; len <= 5; len += 5) {
        put(fd, "/put", len, "Expect: 100-continue\r\n", false);
        cr_assert(client_read(fd, false, &reply) && reply.status == 100);
        cr_assert(strncmp(reply.head, "HTTP/1.1 100 Continue\r\n\r\n", 25) == 0);
        client_send(fd, "hello", len);
        cr_assert(client_read(fd, false, &reply) && reply.status == 200 && !reply.close);
        client_reply_done(&reply);
    }
    client_send_text(fd, "GET /small HTTP/1.1\r\n" HOST "Expect: 100-continue\r\n\r\n");
    cr_assert(client_read(fd, false, &reply) && reply.status == 100);
    cr_assert(client_read(fd, false, &reply) && reply.status == 200 && !reply.close);
    client_reply_done(&reply);
    put(fd, "/refuse", 5, "Expect: 100-continue\r\n", false);
    cr_assert(client_read(fd, false, &reply) && reply.status == 403 && reply.close);
    client_reply_done(&reply);
    cr_assert(client_at_end(fd));
    close(fd);
    front_free(f);
}

// An early reply: a short rest of the body is discarded and the connection stays open. A long rest
// ends the connection cleanly.
Test(http_connection, early_replies)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    struct client_reply reply;
    for (unsigned i = 0; i < 3; i++) {
        put(fd, "/refuse", HTTP_DRAIN_MAX, "", true);
        cr_assert(client_read(fd, false, &reply) && reply.status == 403 && !reply.close);
        client_reply_done(&reply);
    }
    put(fd, "/bad", 40000, "", true);
    cr_assert(client_read(fd, false, &reply) && reply.status == 400);
    client_reply_done(&reply);
    close(fd);
    fd = client_connect(f->address);
    put(fd, "/refuse", 800000, "", true);
    cr_assert(client_read(fd, false, &reply) && reply.status == 403 && reply.close &&
              reply.complete);
    client_reply_done(&reply);
    cr_assert(client_at_end(fd));
    close(fd);
    fd = client_connect(f->address);
    client_send_text(fd, "PUT /refuse HTTP/1.1\r\n" HOST
                         "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    cr_assert(client_read(fd, false, &reply) && reply.status == 403 && reply.close);
    client_reply_done(&reply);
    cr_assert(client_at_end(fd));
    close(fd);
    front_free(f);
}

// A sink still takes the body when the reply has been sent. It gets nothing of the rest, which is
// discarded as it arrives. The next request is in step.
Test(http_connection, reply_before_the_body_is_whole)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    struct client_reply reply;
    char half[500] = {0};
    for (unsigned i = 0; i < 3; i++) {
        put(fd, "/early", 2 * sizeof(half), "", false);
        client_send(fd, half, sizeof(half));
        cr_assert(client_read(fd, false, &reply) && reply.status == 503 && !reply.close);
        client_reply_done(&reply);
        client_send(fd, half, sizeof(half));
        client_send_text(fd, NEXT);
        cr_assert(client_read(fd, false, &reply) && reply.status == 200 && !reply.close);
        client_reply_done(&reply);
    }
    close(fd);
    wait_for(f->done >= 6);
    cr_assert(f->sinks_ended == 0); // on_done came first
    front_free(f);
}

// Broken chunked framing is reported to the sink, answered once, and ends the connection.
Test(http_connection, broken_chunks)
{
    static const char *const bodies[] = {
        "5\r\nhelloX\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n",    "\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",    "5\r\nhello\r\n0\r\nX\r\n\r\n", "ffffffffffffffffff\r\n"};
    struct front *f = front_new((struct http_options){0}, 1);
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        int fd = client_connect(f->address);
        struct client_reply reply;
        client_send_text(fd, "PUT /put HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n");
        client_send_text(fd, bodies[i]);
        client_send_text(fd, NEXT);
        cr_assert(client_read(fd, false, &reply) && reply.status == 400 && reply.close, "row %zu",
                  i);
        client_reply_done(&reply);
        cr_assert(client_at_end(fd));
        close(fd);
    }
    cr_assert(f->requests == ARRAY_LEN(bodies));
    front_free(f);
}

// A client that leaves in the middle of its body ends the exchange.
Test(http_connection, body_cut_by_client)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    put(fd, "/put", 1000, "", false);
    client_send(fd, "abc", 3);
    wait_for(f->requests >= 1);
    close(fd);
    wait_for(f->gone >= 1);
    front_free(f);
}

#define TIMEOUT_MS 3600000u // nothing here lasts as long by itself

// Waits until the server sends or closes. It may have seen the connection only after the clock
// moved.
static void let_time_pass(int fd)
{
    struct pollfd watched = {.fd = fd, .events = POLLIN};
    unsigned looks = 0;
    do {
        cr_assert(looks++ < 300, "no time is long enough");
        clock_test_advance_us(TIMEOUT_MS * 1000ull);
    } while (poll(&watched, 1, 100) == 0);
}

// A head that does not end in time is answered and cut, however slowly it arrives. An idle
// connection is closed without an answer.
Test(http_connection, head_and_idle_timeouts)
{
    struct http_options options = {.limits.header_timeout_ms = TIMEOUT_MS,
                                   .limits.idle_timeout_ms = TIMEOUT_MS};
    struct front *f = front_new(options, 1);
    struct client_reply reply;
    int fd = client_connect(f->address);
    client_send_text(fd, "GET /small HTTP/1.1\r\nX");
    let_time_pass(fd);
    cr_assert(client_read(fd, false, &reply));
    cr_assert(reply.status == 400 && reply.close);
    client_reply_done(&reply);
    cr_assert(client_at_end(fd));
    close(fd);
    fd = client_connect(f->address);
    let_time_pass(fd);
    cr_assert(client_at_end(fd)); // nothing was ever sent
    close(fd);
    cr_assert(front_counted(f, COUNTER_http_timeout_header) == 2);
    fd = client_connect(f->address);
    client_send_text(fd, NEXT);
    cr_assert(client_read(fd, false, &reply) && reply.status == 200);
    client_reply_done(&reply);
    let_time_pass(fd);
    cr_assert(client_at_end(fd));
    cr_assert(front_counted(f, COUNTER_http_timeout_idle) == 1);
    close(fd);
    front_free(f);
}

// Slow bodies and slow readers are cut after the grace. A slow handler is not.
Test(http_connection, least_rate)
{
    struct http_options options = {.limits.min_rate_bytes = 1024, .min_rate_grace_ms = 80};
    struct front *f = front_new(options, 1);
    int body = client_connect(f->address);
    put(body, "/put", 100000, "", false);
    client_send(body, "abc", 3);
    int reader = client_connect(f->address);
    int small = 4096;
    cr_assert(setsockopt(reader, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    client_send_text(reader, "GET /bytes?n=400000000&slice=262144 HTTP/1.1\r\n" HOST "\r\n");
    int patient = client_connect(f->address);
    client_send_text(patient, "GET /never HTTP/1.1\r\n" HOST "\r\n");
    wait_for(f->requests >= 3);
    wait_for(f->slow >= 2);
    cr_assert(front_counted(f, COUNTER_http_timeout_rate) == 2);
    cr_assert(f->slow == 2 && f->gone == 0 && f->requests == 3);
    cr_assert(client_at_end(body));
    close(body);
    close(reader);
    client_reset(patient);
    wait_for(f->gone >= 1);
    front_free(f);
}

static int stalled_reader(const struct front *f, const char *path)
{
    char text[128];
    int fd = client_connect(f->address), small = 4096;
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    snprintf(text, sizeof(text), "GET /%s?n=400000000&slice=262144 HTTP/1.1\r\n" HOST "\r\n", path);
    client_send_text(fd, text);
    return fd;
}

// A reader that takes nothing is cut after the patience, not after the grace. An upload is cut
// after the grace.
Test(http_connection, readers_may_pause_for_longer_than_uploads)
{
    struct front *f = front_new((struct http_options){.limits.min_rate_bytes = 1024,
                                                      .min_rate_grace_ms = 50,
                                                      .min_rate_patience_ms = 500},
                                1);
    int readers[] = {stalled_reader(f, "bytes"), stalled_reader(f, "file")};
    wait_for(front_counted(f, COUNTER_http_slow_kept) >= 2);
    int body = client_connect(f->address);
    put(body, "/put", 100000, "", false);
    client_send(body, "abc", 3);
    wait_for(f->slow >= 3);
    cr_assert(front_counted(f, COUNTER_http_timeout_rate) == 3 && f->gone == 0);
    // At most nine windows of at least 50 ms each fit before the tenth reaches 500 ms.
    unsigned long kept = front_counted(f, COUNTER_http_slow_kept);
    cr_assert(kept >= 2 && kept <= 18, "%lu", kept);
    close(body);
    close(readers[0]);
    close(readers[1]);
    front_free(f);
}

// While memory is short, a reader whose bytes are in memory gets no patience. A reader of a file
// range does.
Test(http_connection, readers_of_memory_are_cut_first_while_it_is_short)
{
    struct chunk *chunks[10];
    chunk_budget_init(16 * CHUNK_SIZE);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        chunks[i] = chunk_new();
        cr_assert_not_null(chunks[i]);
    }
    cr_assert(chunk_budget_is_short());
    struct front *f = front_new((struct http_options){.limits.min_rate_bytes = 1024,
                                                      .min_rate_grace_ms = 50,
                                                      .min_rate_patience_ms = 3600000},
                                1);
    int memory = stalled_reader(f, "bytes"), file = stalled_reader(f, "ready");
    wait_for(f->slow >= 1);
    wait_for(front_counted(f, COUNTER_http_slow_kept) >= 2);
    cr_assert(f->slow == 1 && front_counted(f, COUNTER_http_timeout_rate) == 1);
    client_reset(file);
    wait_for(f->gone >= 1);
    close(memory);
    front_free(f);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        chunk_unref(chunks[i]);
    }
}

// While three quarters of the connections or of the requests are in use, no reader gets patience.
Test(http_connection, slow_readers_make_room_while_connections_or_requests_are_short)
{
    for (unsigned i = 0; i < 2; i++) {
        struct front *f = front_new((struct http_options){.limits.min_rate_bytes = 1024,
                                                          .min_rate_grace_ms = 50,
                                                          .min_rate_patience_ms = 3600000,
                                                          .limits.max_connections = i == 0 ? 4 : 0,
                                                          .limits.max_inflight = i == 1 ? 4 : 0},
                                    1);
        int readers[3];
        for (size_t j = 0; j < ARRAY_LEN(readers); j++) {
            readers[j] = stalled_reader(f, "file");
        }
        wait_for(f->slow >= 1); // two are left, which is no longer a crowd
        client_reset(readers[0]);
        client_reset(readers[1]);
        client_reset(readers[2]);
        wait_for(f->slow + f->gone >= 3);
        front_free(f);
    }
}

// A TLS hello on a plain port is counted and closed at once, without an answer.
Test(http_connection, tls_hello)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    struct client_reply reply;
    client_send(fd, "\x16\x03\x01\x02\x00\x01\x00", 7);
    cr_assert(!client_read(fd, false, &reply));
    close(fd);
    cr_assert(front_counted(f, COUNTER_http_tls_hello_on_plain) == 1);
    cr_assert(f->refusals == 0);
    front_free(f);
}
