// SPDX-License-Identifier: Apache-2.0
// Proves over real sockets that replies carry the right bytes on each path, that calls to the
// source keep its contract, and that every cut is visible.
#include "test.h"
#include "waiting.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/date.h"
#include "front.h"
#include "stats/stats.h"

#define HOST "Host: localhost\r\n"

static struct client_reply get(int fd, const char *target, const char *more)
{
    char text[512];
    struct client_reply reply;
    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\n" HOST "%s\r\n", target, more);
    client_send_text(fd, text);
    cr_assert(client_read(fd, false, &reply), "closed: %s", target);
    return reply;
}

static void assert_pattern(const struct client_reply *reply, uint64_t len)
{
    cr_assert(reply->complete && reply->body_len == len, "%zu of %llu bytes", reply->body_len,
              (unsigned long long)len);
    for (uint64_t i = 0; i < len; i++) {
        cr_assert(reply->body[i] == front_pattern(i), "byte %llu", (unsigned long long)i);
    }
}

static void assert_get(int fd, const char *target, uint64_t len)
{
    struct client_reply reply = get(fd, target, "");
    cr_assert(reply.status == 200);
    assert_pattern(&reply, len);
    client_reply_done(&reply);
}

// Bodies from memory, in one piece and in many, with and without waiting, on one connection.
Test(http_reply, bytes)
{
    struct front *f = front_new((struct http_options){0}, 2);
    int fd = client_connect(f->address);
    static const unsigned sizes[] = {0, 1, 9999, 10000, 10001, 262144, 262145, 3000000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (unsigned wait = 0; wait < 3; wait++) {
            char target[64];
            snprintf(target, sizeof(target), "/bytes?n=%u&wait=%u", sizes[i], wait);
            assert_get(fd, target, sizes[i]);
            snprintf(target, sizeof(target), "/chunked?n=%u&wait=%u", sizes[i], wait);
            assert_get(fd, target, sizes[i]);
        }
    }
    assert_get(fd, "/bytes?n=5000&slice=7", 5000);
    assert_get(fd, "/chunked?n=5000&slice=7", 5000);
    assert_get(fd, "/bytes?n=3000000&slice=1000000", 3000000);
    close(fd);
    wait_for(f->done >= f->requests);
    cr_assert(f->slices == f->releases);
    front_free(f);
}

// Bodies from a file, when the kernel answers that they are resident.
Test(http_reply, files)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    (void)disk_io_probe_residency("/tmp");
    static const unsigned sizes[] = {1, 4096, 100000, 524288, 524289, FRONT_FILE_SIZE};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char target[64];
        snprintf(target, sizeof(target), "/file?n=%u", sizes[i]);
        assert_get(fd, target, sizes[i]);
    }
    if (disk_io_residency_mode() == DISK_RESIDENCY_NONE) {
        cr_assert(f->recalls > 0); // the answer is always no: everything came from memory
    }
    close(fd);
    wait_for(f->done >= f->requests);
    cr_assert(f->slices == f->releases);
    front_free(f);
}

// The source is not asked again about bytes that it has reported ready, until they are sent.
Test(http_reply, ready_is_asked_once)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    (void)disk_io_probe_residency("/tmp");
    assert_get(fd, "/file?n=50000", 50000);
    unsigned asked = f->questions;
    assert_get(fd, "/ready?n=50000", 50000);
    unsigned asked_once = f->questions - asked;
    if (disk_io_residency_mode() != DISK_RESIDENCY_NONE && f->recalls == 0) {
        cr_assert(asked == 2, "%u: before and after the pages were taken", asked);
        cr_assert(asked_once == 1, "%u", asked_once);
    }
    close(fd);
    wait_for(f->done >= f->requests);
    front_free(f);
}

static bool pages_can_be_dropped(const struct front *f)
{
    (void)disk_io_probe_residency("/tmp");
    bool was_resident = disk_io_resident(f->file, 0, 65536);
    (void)posix_fadvise(f->file, 0, FRONT_FILE_SIZE, POSIX_FADV_DONTNEED);
    bool dropped = was_resident && !disk_io_resident(f->file, 0, 65536);
    char *bytes = malloc(FRONT_FILE_SIZE);
    cr_assert(pread(f->file, bytes, FRONT_FILE_SIZE, 0) == (ssize_t)FRONT_FILE_SIZE);
    free(bytes);
    return dropped;
}

// Ranges whose pages are gone at send time are given back and come from memory. The bytes are
// right.
Test(http_reply, recall)
{
    struct front *f = front_new((struct http_options){0}, 1);
    bool droppable = pages_can_be_dropped(f);
    int fd = client_connect(f->address);
    for (unsigned i = 0; i < 3; i++) {
        assert_get(fd, "/evicted?n=3000000", 3000000);
    }
    cr_assert(!droppable || f->recalls >= 3 * 6, "%u", f->recalls);
    cr_assert(front_counted(f, COUNTER_http_range_recalled) == f->recalls);
    close(fd);
    wait_for(f->done >= f->requests);
    cr_assert(f->slices == f->releases);
    front_free(f);
}

static void recall_in_mid_slice(const char *request)
{
    struct front *f = front_new((struct http_options){0}, 1);
    bool droppable = pages_can_be_dropped(f);
    int fd = client_connect(f->address);
    int small = 262144; // a smaller window than a loopback segment would crawl
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    client_send_text(fd, request);
    char head[1024];
    size_t have = 0;
    while (have < 4 || memcmp(head + have - 4, "\r\n\r\n", 4) != 0) {
        client_read_exactly(fd, head + have++, 1);
    }
    char *body = malloc(FRONT_FILE_SIZE);
    for (size_t at = 0; at < FRONT_FILE_SIZE; at += 1 << 18) {
        (void)posix_fadvise(f->file, 0, FRONT_FILE_SIZE, POSIX_FADV_DONTNEED);
        client_read_exactly(fd, body + at, 1 << 18);
    }
    for (size_t i = 0; i < FRONT_FILE_SIZE; i++) {
        cr_assert(body[i] == front_pattern(i), "byte %zu", i);
    }
    free(body);
    cr_assert(!droppable || f->recalls > 0);
    close(fd);
    wait_for(f->done >= f->requests);
    cr_assert(f->slices == f->releases);
    front_free(f);
}

// The same when part of the range has been sent already and the socket was full in between.
Test(http_reply, recall_in_mid_slice)
{
    recall_in_mid_slice("GET /file?n=8388608 HTTP/1.1\r\n" HOST "\r\n");
}

// Bytes that the source has reported ready count only for the pass in which it did, not after the
// socket was full.
Test(http_reply, ready_bytes_can_be_recalled)
{
    recall_in_mid_slice("GET /ready?n=8388608 HTTP/1.1\r\n" HOST "\r\n");
}

// A slow reader: the source is held back, the bytes are right, and no byte is requested beyond the
// high-water mark.
Test(http_reply, back_pressure)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    int small = 4096;
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    client_send_text(fd, "GET /bytes?n=67108864&slice=65536 HTTP/1.1\r\n" HOST "\r\n");
    char byte;
    client_read_exactly(fd, &byte, 1);
    // The other connection's replies show that the worker has done passes in between.
    int other = client_connect(f->address);
    for (unsigned i = 0; i < 50; i++) {
        assert_get(other, "/bytes?n=1000&slice=1000", 1000);
    }
    // Socket buffers may hold a few MiB; 64 MiB were never asked for.
    cr_assert(f->slices < 50 + 512, "%u", f->slices);
    close(other);
    close(fd);
    wait_for(f->gone >= 1);
    cr_assert(f->slices == f->releases);
    front_free(f);
}

// A reply that ends before its announced length is cut. There is never a clean end, never padding,
// and never a byte above the length.
Test(http_reply, cuts_are_visible)
{
    struct front *f = front_new((struct http_options){0}, 1);
    static const char *const targets[] = {"/cut?n=50000&at=20000", "/cut?n=50000&at=0",
                                          "/short?n=50000", "/long?n=50000"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        int fd = client_connect(f->address);
        char text[256];
        struct client_reply reply;
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\n" HOST "\r\n", targets[i]);
        client_send_text(fd, text);
        if (client_read(fd, false, &reply)) {
            cr_assert(!reply.complete && reply.body_len < 50000);
            client_reply_done(&reply);
        }
        close(fd);
    }
    wait_for(f->cut >= ARRAY_LEN(targets));
    cr_assert(f->slices == f->releases);
    front_free(f);
}

// Chunked: a cut has no last chunk; towards HTTP/1.0 it is a reset.
Test(http_reply, cut_without_length)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    struct client_reply reply;
    client_send_text(fd, "GET /chunked?n=50000&at=20000&wait=1 HTTP/1.1\r\n" HOST "\r\n");
    if (client_read(fd, false, &reply)) {
        cr_assert(reply.chunked && !reply.complete);
        client_reply_done(&reply);
    }
    close(fd);
    fd = client_connect(f->address);
    client_send_text(fd, "GET /chunked?n=50000 HTTP/1.0\r\n" HOST "\r\n");
    cr_assert(client_read(fd, false, &reply));
    cr_assert(!reply.chunked && !reply.has_length && reply.close);
    assert_pattern(&reply, 50000);
    client_reply_done(&reply);
    close(fd);
    wait_for(f->cut >= 1);
    front_free(f);
}

// HEAD, 204 and 304 have no body, and the connection continues in step.
Test(http_reply, no_body)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    struct client_reply reply;
    char value[64];
    client_send_text(fd, "HEAD /bytes?n=12345 HTTP/1.1\r\n" HOST "\r\n");
    cr_assert(client_read(fd, true, &reply));
    cr_assert(client_header(&reply, "Content-Length", value, sizeof(value)));
    cr_assert_str_eq(value, "12345");
    client_send_text(fd, "HEAD /small HTTP/1.1\r\n" HOST "\r\n");
    cr_assert(client_read(fd, true, &reply));
    client_send_text(fd, "HEAD /chunked?n=5 HTTP/1.1\r\n" HOST "\r\n");
    cr_assert(client_read(fd, true, &reply));
    for (int status = 204; status <= 304; status += 100) {
        char target[16];
        snprintf(target, sizeof(target), "/%d", status);
        reply = get(fd, target, "");
        cr_assert(reply.status == (unsigned)status && !reply.has_length && !reply.chunked);
    }
    assert_get(fd, "/bytes?n=10", 10);
    close(fd);
    front_free(f);
}

// Control bytes never leave in a header. Only the server itself writes framing headers.
Test(http_reply, headers)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int fd = client_connect(f->address);
    char value[64];
    struct client_reply reply = get(fd, "/headers", "");
    cr_assert(client_header(&reply, "X-Good", value, sizeof(value)));
    cr_assert_str_eq(value, "a\tb");
    cr_assert(client_header(&reply, "X-Rendered", value, sizeof(value)));
    cr_assert(client_header(&reply, "Date", value, sizeof(value)));
    cr_assert(strlen(value) == DATE_HTTP_LEN);
    cr_assert(client_header(&reply, "Content-Length", value, sizeof(value)));
    cr_assert_str_eq(value, "0");
    cr_assert(!client_header(&reply, "X-Cr", value, sizeof(value)));
    cr_assert(!client_header(&reply, "X-Split", value, sizeof(value)));
    cr_assert(!client_header(&reply, "X-Nul", value, sizeof(value)));
    cr_assert(!client_header(&reply, "Connection", value, sizeof(value)));
    cr_assert(strstr(reply.head, "X Bad") == NULL && !reply.chunked);
    client_reply_done(&reply);
    cr_assert(front_counted(f, COUNTER_http_headers_dropped) == 3);
    close(fd);
    front_free(f);
}

// A client that leaves in the middle of a reply ends the exchange once. Every slice is given back,
// and no other client is affected.
Test(http_reply, vanishing_clients)
{
    struct front *f = front_new((struct http_options){0}, 2);
    static const char *const targets[] = {"/bytes?n=67108864", "/chunked?n=67108864&wait=3",
                                          "/file?n=8388608", "/evicted?n=8388608", "/never"};
    unsigned left = 0;
    for (unsigned i = 0; i < 60; i++) {
        int fd = client_connect(f->address);
        char text[256];
        char bytes[1000];
        const char *target = targets[i % ARRAY_LEN(targets)];
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\n" HOST "\r\n", target);
        client_send_text(fd, text);
        if (i % 2 == 0 && strcmp(target, "/never") != 0) {
            client_read_exactly(fd, bytes, sizeof(bytes));
        } else {
            wait_for(f->requests >= i + 1);
        }
        if (strcmp(target, "/never") == 0) {
            client_reset(fd); // nothing is ever sent that would show a close
        } else {
            close(fd);
        }
        left++;
    }
    wait_for(f->done + f->gone + f->cut >= left);
    cr_assert(f->done + f->gone == left && f->cut == 0);
    cr_assert(f->slices == f->releases);
    int fd = client_connect(f->address);
    assert_get(fd, "/bytes?n=100", 100);
    close(fd);
    front_free(f);
}

// One reply at a time may fill the pipe. The others on the worker still get their bytes.
Test(http_reply, fair_to_others)
{
    struct front *f = front_new((struct http_options){0}, 1);
    int greedy = client_connect(f->address);
    client_send_text(greedy, "GET /bytes?n=400000000&slice=262144 HTTP/1.1\r\n" HOST "\r\n");
    char *sink = malloc(1 << 20);
    int fd = client_connect(f->address);
    for (unsigned i = 0; i < 20; i++) {
        client_read_exactly(greedy, sink, 1 << 20);
        assert_get(fd, "/bytes?n=1000", 1000);
    }
    free(sink);
    close(fd);
    close(greedy);
    wait_for(f->gone >= 1);
    front_free(f);
}
