// SPDX-License-Identifier: Apache-2.0
// Transfers against a small server on loopback: framing, reuse of connections, pauses, cancelling,
// timeouts, uploads, the header gate, failures.
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/headers.h"
#include "loop/loop.h"
#include "loop/loop_fixture.h"
#include "net/net.h"
#include "net/tiny_origin.h"
#include "net/transfer_private.h"
#include "test.h"
#include "waiting.h"

#define BODY_KEPT 4096

// One request and its result. Owned by the test; the worker uses it while it runs.
struct fetch {
    // told by the test
    const char *method, *path, *url; // url: instead of the tiny origin's
    const struct header *headers;
    unsigned header_count;
    bool has_body, fresh_connection, expects_long;
    uint64_t body_length, upload_ends_at; // 0 = at body_length
    uint64_t first_byte_timeout_ms, late_timeout_ms;
    enum transfer_reach reach;
    const char *unix_socket;
    uint64_t pause_at, cancel_at;          // body offsets; 0 = never
    uint64_t upload_pause_at;              // offset; 0 = never
    enum err header_verdict, body_verdict; // answered to the first line, the first piece
    bool is_cancelled_at_once, is_paused_at_once;
    // seen
    struct rig *rig;
    struct transfer *transfer;
    uint64_t body_len, uploaded;
    uint64_t charged_bytes; // at the start
    uint64_t most_bytes;    // in one piece
    unsigned line_count, end_count;
    char head[BODY_KEPT + 1], body[BODY_KEPT + 1];
    size_t head_len;
    bool is_starting, is_wrong, is_paused, has_stopped_upload;
    enum err err;
    char detail[300];
    struct signal over, paused, body_seen;
    int unread_least;     // told: in the socket before the head is taken
    uint64_t first_bytes; // seen: of the body, before other work had its turn
    uint64_t kept_bytes;  // by curl, then
    struct task others_turn;
};

struct rig {
    struct tiny_origin *origin;
    struct loop *loop;
    struct worker *worker;
    struct transfer_pool_options options;
    struct transfer_pool *pool;
};

static void make_pool(struct worker *w, void *ctx)
{
    struct rig *rig = ctx;
    rig->pool = transfer_pool_new(w, &rig->options);
}

static void free_pool(struct worker *w, void *ctx)
{
    (void)w;
    struct rig *rig = ctx;
    transfer_pool_free(rig->pool);
    rig->pool = NULL;
}

static void rig_begin(struct rig *rig)
{
    if (rig->options.max_connections == 0) {
        rig->options.max_connections = 8;
    }
    if (rig->options.connect_timeout_ms == 0) {
        rig->options.connect_timeout_ms = 10000;
    }
    if (rig->options.first_byte_timeout_ms == 0) {
        rig->options.first_byte_timeout_ms = 60000;
    }
    if (rig->options.idle_timeout_ms == 0) {
        rig->options.idle_timeout_ms = 60000;
    }
    if (rig->options.keepalive_ms == 0) {
        rig->options.keepalive_ms = 60000;
    }
    rig->origin = tiny_origin_new(NULL);
    rig->loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    rig->worker = loop_worker(rig->loop, 0);
    fixture_run_on(rig->worker, make_pool, rig);
}

static void rig_end(struct rig *rig)
{
    if (rig->pool != NULL) {
        fixture_run_on(rig->worker, free_pool, rig);
    }
    fixture_loop_end(&rig->loop);
    tiny_origin_free(rig->origin);
}

// The one socket of this process that leads to the origin.
static int socket_to(unsigned port)
{
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t len = sizeof(peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.sin_family == AF_INET &&
            ntohs(peer.sin_port) == port) {
            return fd;
        }
    }
    return -1;
}

static int unread_bytes(const struct fetch *fetch)
{
    int unread = 0;
    int fd = socket_to(tiny_origin_port(fetch->rig->origin));
    cr_assert(fd >= 0);
    cr_assert(ioctl(fd, FIONREAD, &unread) == 0);
    return unread;
}

static void wait_for_unread(const struct fetch *fetch, int least)
{
    for (unsigned i = 0; i < 10000 && unread_bytes(fetch) < least; i++) {
        (void)poll(NULL, 0, 1);
    }
    cr_assert(unread_bytes(fetch) >= least);
}

// Bytes of the only answer that are received from that socket and not passed to us.
static uint64_t kept_by_curl(const struct fetch *fetch)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    int fd = socket_to(tiny_origin_port(fetch->rig->origin));
    uint64_t ours = fetch->body_len + fetch->head_len, received;
    int unread;
    do { // more may come between the two questions
        unread = unread_bytes(fetch);
        cr_assert(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
        received = info.tcpi_bytes_received;
    } while (unread_bytes(fetch) != unread);
    cr_assert(received >= ours + (uint64_t)unread);
    return received - ours - (uint64_t)unread;
}

static void on_others_turn(struct task *task)
{
    struct fetch *fetch = container_of(task, struct fetch, others_turn);
    fetch->first_bytes = fetch->body_len;
    fetch->kept_bytes = kept_by_curl(fetch);
}

static enum err on_line(void *ctx, struct span line)
{
    struct fetch *fetch = ctx;
    if (fetch->line_count == 0 && fetch->unread_least > 0) {
        wait_for_unread(fetch, fetch->unread_least);
    }
    cr_assert(!fetch->is_starting);
    cr_assert(fetch->end_count == 0);
    cr_assert(fetch->body_len == 0); // no trailer field comes as a header
    cr_assert(line.len >= 2);
    cr_assert(memcmp(line.ptr + line.len - 2, "\r\n", 2) == 0);
    fetch->line_count++;
    size_t len = line.len < BODY_KEPT - fetch->head_len ? line.len : BODY_KEPT - fetch->head_len;
    memcpy(fetch->head + fetch->head_len, line.ptr, len);
    fetch->head_len += len;
    return fetch->header_verdict;
}

static enum err on_body(void *ctx, struct span data)
{
    struct fetch *fetch = ctx;
    cr_assert(!fetch->is_starting);
    cr_assert(fetch->end_count == 0);
    cr_assert(!fetch->is_paused); // nothing comes while paused
    cr_assert(data.len > 0);
    for (size_t i = 0; i < data.len; i++) {
        fetch->is_wrong |= data.ptr[i] != tiny_origin_byte(fetch->body_len + i);
        if (fetch->body_len + i < BODY_KEPT) {
            fetch->body[fetch->body_len + i] = data.ptr[i];
        }
    }
    fetch->most_bytes = max_u64(fetch->most_bytes, data.len);
    uint64_t before = fetch->body_len;
    fetch->body_len += data.len;
    if (fetch->unread_least > 0 && before == 0) {
        worker_defer(fetch->rig->worker, &fetch->others_turn);
    }
    if (before == 0) {
        signal_raise(&fetch->body_seen);
    }
    if (fetch->pause_at > 0 && before < fetch->pause_at && fetch->body_len >= fetch->pause_at) {
        transfer_pause(fetch->transfer);
        fetch->is_paused = true;
        signal_raise(&fetch->paused);
    }
    if (fetch->cancel_at > 0 && fetch->body_len >= fetch->cancel_at) {
        transfer_cancel(fetch->transfer);
    }
    return fetch->body_verdict;
}

static enum err on_upload(void *ctx, char *buf, size_t max, size_t *ret_len)
{
    struct fetch *fetch = ctx;
    cr_assert(fetch->end_count == 0);
    cr_assert(max > 0);
    if (fetch->upload_pause_at > 0 && fetch->uploaded >= fetch->upload_pause_at &&
        !fetch->has_stopped_upload) {
        fetch->has_stopped_upload = true;
        signal_raise(&fetch->paused);
        return ERR_AGAIN;
    }
    uint64_t end = fetch->upload_ends_at > 0 ? fetch->upload_ends_at : fetch->body_length;
    size_t len = (size_t)min_u64(max, end - fetch->uploaded);
    if (fetch->upload_pause_at > 0) {
        len = (size_t)min_u64(len, 1000);
    }
    for (size_t i = 0; i < len; i++) {
        buf[i] = tiny_origin_byte(fetch->uploaded + i);
    }
    fetch->uploaded += len;
    *ret_len = len;
    return ERR_OK;
}

static void on_end(void *ctx, enum err err, const char *detail)
{
    struct fetch *fetch = ctx;
    cr_assert(!fetch->is_starting);
    cr_assert(worker_current() == fetch->rig->worker);
    cr_assert(++fetch->end_count == 1);
    cr_assert(detail != NULL);
    cr_assert(err == ERR_OK || detail[0] != '\0');
    fetch->err = err;
    snprintf(fetch->detail, sizeof(fetch->detail), "%s", detail);
    signal_raise(&fetch->over);
}

static const struct transfer_calls calls = {on_line, on_body, on_upload, on_end};

static void start_fetch(struct worker *w, void *ctx)
{
    struct fetch *fetch = ctx;
    struct rig *rig = fetch->rig;
    (void)w;
    char url[300];
    if (fetch->url == NULL) {
        snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", tiny_origin_port(rig->origin),
                 fetch->path);
    }
    struct transfer_request request = {
        .method = span_from_cstr(fetch->method != NULL ? fetch->method : "GET"),
        .url = fetch->url != NULL ? fetch->url : url,
        .headers = fetch->headers,
        .header_count = fetch->header_count,
        .has_body = fetch->has_body,
        .body_length = fetch->body_length,
        .expects_long = fetch->expects_long,
        .fresh_connection = fetch->fresh_connection,
        .first_byte_timeout_ms = fetch->first_byte_timeout_ms,
        .late_timeout_ms = fetch->late_timeout_ms,
        .reach = fetch->reach,
        .unix_socket = fetch->unix_socket,
    };
    fetch->is_starting = true;
    uint64_t before = chunk_budget_kind_bytes(BUDGET_ORIGINS);
    fetch->transfer = transfer_start(rig->pool, &request, &calls, fetch);
    fetch->charged_bytes = chunk_budget_kind_bytes(BUDGET_ORIGINS) - before;
    if (fetch->is_paused_at_once) {
        transfer_pause(fetch->transfer);
        fetch->is_paused = true;
    }
    if (fetch->is_cancelled_at_once) {
        transfer_cancel(fetch->transfer);
        transfer_cancel(fetch->transfer);
    }
    fetch->is_starting = false;
}

static void fetch_begin(struct rig *rig, struct fetch *fetch)
{
    fetch->rig = rig;
    signal_init(&fetch->over);
    signal_init(&fetch->paused);
    signal_init(&fetch->body_seen);
    worker_task_init(&fetch->others_turn, on_others_turn);
    fixture_run_on(rig->worker, start_fetch, fetch);
}

static enum err fetch_end(struct fetch *fetch)
{
    signal_wait(&fetch->over);
    signal_done(&fetch->over);
    signal_done(&fetch->paused);
    signal_done(&fetch->body_seen);
    return fetch->err;
}

static enum err fetch_run(struct rig *rig, struct fetch *fetch)
{
    fetch_begin(rig, fetch);
    return fetch_end(fetch);
}

static void resume(struct worker *w, void *ctx)
{
    struct fetch *fetch = ctx;
    (void)w;
    fetch->is_paused = false;
    transfer_resume(fetch->transfer);
    transfer_resume_upload(fetch->transfer);
}

static void resume_upload(struct worker *w, void *ctx)
{
    (void)w;
    transfer_resume_upload(((struct fetch *)ctx)->transfer);
}

static void cancel(struct worker *w, void *ctx)
{
    (void)w;
    transfer_cancel(((struct fetch *)ctx)->transfer);
}

static void nothing(struct worker *w, void *ctx)
{
    (void)w;
    (void)ctx;
}

// --- What is sent, what arrives ------------------------------------------------------------------

// Proves that a request is sent as described: the target unchanged, our headers, and none of
// curl's.
Test(transfer, request_is_sent_as_described)
{
    struct rig rig = {0};
    rig_begin(&rig);
    const struct header headers[] = {
        {SPAN("Host"), SPAN("bucket.example:80")},
        {SPAN("x-amz-date"), SPAN("20060102T150405Z")},
        {SPAN("x-empty"), SPAN("")},
        {SPAN("Accept-Encoding"), SPAN("identity")},
        {SPAN("Expect"), SPAN("100-continue")},
        {SPAN("Content-Length"), SPAN("99")},
    };
    struct fetch fetch = {.path = "/head/a/../b//./c%2B?x=%20&y",
                          .headers = headers,
                          .header_count = ARRAY_LEN(headers)};
    cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
    cr_assert_str_eq(fetch.body, "GET /head/a/../b//./c%2B?x=%20&y HTTP/1.1\r\n"
                                 "Host: bucket.example:80\r\n"
                                 "x-amz-date: 20060102T150405Z\r\n"
                                 "x-empty:\r\n"
                                 "Accept-Encoding: identity\r\n\r\n");
    cr_assert(strncmp(fetch.head, "HTTP/1.1 200 OK\r\nContent-Length: ", 33) == 0);
    cr_assert(fetch.line_count == 4);

    struct fetch delete_fetch = {.method = "DELETE", .path = "/head/x"};
    cr_assert(fetch_run(&rig, &delete_fetch) == ERR_OK);
    cr_assert(strncmp(delete_fetch.body, "DELETE /head/x HTTP/1.1\r\nHost: 127.0.0.1", 40) == 0);
    cr_assert(strstr(delete_fetch.body, "Content-Length") == NULL);

    struct fetch post = {.method = "POST", .path = "/head/x"};
    cr_assert(fetch_run(&rig, &post) == ERR_OK);
    cr_assert(strncmp(post.body, "POST /head/x HTTP/1.1\r\n", 23) == 0);
    cr_assert(strstr(post.body, "Content-Length: 0\r\n") != NULL);
    cr_assert(strstr(post.body, "Content-Type") == NULL);
    cr_assert(strstr(post.body, "Expect") == NULL);
    rig_end(&rig);
}

// Proves that bodies of all sizes arrive whole, chunked ones too, and that one connection serves
// them in turn.
Test(transfer, bodies_arrive_on_one_connection)
{
    struct rig rig = {0};
    rig_begin(&rig);
    static const struct {
        const char *path;
        uint64_t len;
    } rows[] = {{"/bytes/0", 0},         {"/bytes/1", 1},
                {"/bytes/16384", 16384}, {"/bytes/5000000", 5000000},
                {"/chunked/3500", 3500}, {"/chunked/0", 0},
                {"/interim/10", 10}};
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct fetch fetch = {.path = rows[i].path};
        cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
        cr_assert(fetch.body_len == rows[i].len);
        cr_assert(!fetch.is_wrong);
        cr_assert_str_eq(fetch.detail, "");
    }
    struct fetch head = {.method = "HEAD", .path = "/bytes/1000"};
    cr_assert(fetch_run(&rig, &head) == ERR_OK);
    cr_assert(head.body_len == 0);
    cr_assert(strstr(head.head, "Content-Length: 1000\r\n") != NULL);
    struct fetch none = {.path = "/none"};
    cr_assert(fetch_run(&rig, &none) == ERR_OK);
    cr_assert(tiny_origin_connections(rig.origin) == 1);

    struct fetch fresh = {.path = "/bytes/1", .fresh_connection = true};
    cr_assert(fetch_run(&rig, &fresh) == ERR_OK);
    cr_assert(tiny_origin_connections(rig.origin) == 2);
    rig_end(&rig);
}

// Proves that interim heads reach the gate too, before the final one.
Test(transfer, interim_heads_are_shown)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/interim/10"};
    cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
    static const char expected[] =
        "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n";
    cr_assert(strncmp(fetch.head, expected, strlen(expected)) == 0);
    rig_end(&rig);
}

// Proves that an idle connection which the origin has closed costs nothing but a new connection.
Test(transfer, dead_idle_connection_is_replaced)
{
    struct rig rig = {0};
    rig_begin(&rig);
    for (unsigned i = 0; i < 5; i++) {
        struct fetch fetch = {.path = "/once/100"};
        cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
        cr_assert(fetch.body_len == 100);
    }
    rig_end(&rig);
}

// Proves that transfers above the number of connections wait their turn, and do not fail.
Test(transfer, connection_limit_is_hit)
{
    struct rig rig = {.options.max_connections = 2};
    rig_begin(&rig);
    struct fetch *fetches = calloc(20, sizeof(*fetches));
    cr_assert(fetches != NULL);
    for (unsigned i = 0; i < 20; i++) {
        fetches[i].path = "/bytes/100000";
        fetch_begin(&rig, &fetches[i]);
    }
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(fetch_end(&fetches[i]) == ERR_OK);
        cr_assert(fetches[i].body_len == 100000);
        cr_assert(!fetches[i].is_wrong);
    }
    cr_assert(tiny_origin_connections(rig.origin) <= 2);
    cr_assert(tiny_origin_requests(rig.origin) == 20);
    free(fetches);
    rig_end(&rig);
}

// Proves that a named unix socket is used.
Test(transfer, unix_socket)
{
    struct rig rig = {0};
    char dir[256], path[300];
    fixture_dir_make(dir, sizeof(dir));
    snprintf(path, sizeof(path), "%s/s", dir);
    rig_begin(&rig);
    struct tiny_origin *other = tiny_origin_new(path);
    struct fetch fetch = {.url = "http://localhost/bytes/10", .unix_socket = path};
    cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
    cr_assert(fetch.body_len == 10);
    cr_assert(tiny_origin_requests(other) == 1);
    rig_end(&rig);
    tiny_origin_free(other);
    fixture_dir_remove(dir);
}

// Proves that the first bytes of a long body are delivered before all bytes in the socket are read,
// and that curl keeps no bytes that it must not deliver.
Test(transfer, first_bytes_leave_before_the_rest_is_read)
{
    struct rig rig = {0};
    chunk_budget_init(3 * CHUNK_SIZE);
    struct chunk *held[] = {chunk_new(),
                            chunk_new()}; // memory is short: curl receives 16 KiB at once
    rig_begin(&rig);
    struct fetch fetch = {.path = "/bytes/600000", .unread_least = 40 << 10};
    cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
    cr_assert(fetch.body_len == 600000);
    cr_assert(!fetch.is_wrong);
    cr_assert(fetch.first_bytes > 0);
    cr_assert(fetch.first_bytes <= 16 << 10, "%llu", (unsigned long long)fetch.first_bytes);
    cr_assert(fetch.kept_bytes == 0, "%llu", (unsigned long long)fetch.kept_bytes);
    rig_end(&rig);
    chunk_unref(held[0]);
    chunk_unref(held[1]);
    chunk_budget_init(0);
}

Test(transfer, long_answer_gets_a_larger_buffer_that_is_charged)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/bytes/600000"};
    struct fetch longer = {.path = "/bytes/8000000", .expects_long = true};
    cr_assert(fetch_run(&rig, &fetch) == ERR_OK && !fetch.is_wrong);
    cr_assert(fetch_run(&rig, &longer) == ERR_OK && !longer.is_wrong);
    cr_assert_eq(longer.body_len, 8000000);
    cr_assert_leq(fetch.most_bytes, TRANSFER_PIECE_MAX / 2);
    cr_assert_leq(longer.most_bytes, TRANSFER_PIECE_MAX);
    cr_assert_eq(longer.charged_bytes, fetch.charged_bytes + TRANSFER_PIECE_MAX / 2);
    rig_end(&rig);
}

// --- Pausing and cancelling ----------------------------------------------------------------------

// Proves that nothing is delivered while a transfer is paused, that all bytes arrive afterwards,
// and that our own pause does not count as idle time.
Test(transfer, pause_and_resume)
{
    struct rig rig = {.options.idle_timeout_ms = 10000};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/bytes/8000000", .pause_at = 100000};
    fetch_begin(&rig, &fetch);
    signal_wait(&fetch.paused);
    clock_test_advance_us(60 * 1000 * 1000);
    for (unsigned i = 0; i < 200; i++) {
        fixture_run_on(rig.worker, nothing, NULL); // as many passes
    }
    cr_assert(fetch.body_len < 8000000);
    cr_assert(fetch.end_count == 0);
    fetch.pause_at = 4000000;
    fixture_run_on(rig.worker, resume, &fetch);
    signal_wait(&fetch.paused);
    fixture_run_on(rig.worker, resume, &fetch);
    cr_assert(fetch_end(&fetch) == ERR_OK);
    cr_assert(fetch.body_len == 8000000);
    cr_assert(!fetch.is_wrong);
    rig_end(&rig);
}

// Proves that pausing and resuming at every piece, in the body callback's turn, loses and repeats
// nothing.
Test(transfer, many_pauses)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/bytes/3000000", .pause_at = 1};
    fetch_begin(&rig, &fetch);
    for (uint64_t at = 1; at < 3000000; at += 50000) {
        signal_wait(&fetch.paused);
        fetch.pause_at = at + 50000;
        fixture_run_on(rig.worker, resume, &fetch);
    }
    cr_assert(fetch_end(&fetch) == ERR_OK);
    cr_assert(fetch.body_len == 3000000);
    cr_assert(!fetch.is_wrong);
    rig_end(&rig);
}

// In the turn in which more comes.
static void pause_late(struct worker *w, void *ctx)
{
    struct fetch *fetch = ctx;
    (void)w;
    fetch->is_paused = true;
    transfer_pause(fetch->transfer);
    tiny_origin_go_on(fetch->rig->origin);
    wait_for_unread(fetch, 49000);
}

// Proves that a transfer paused between two pieces leaves all later bytes in its socket.
Test(transfer, a_pause_reads_nothing)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/late/50000/1000"};
    fetch_begin(&rig, &fetch);
    signal_wait(&fetch.body_seen);
    fixture_run_on(rig.worker, pause_late, &fetch);
    for (unsigned i = 0; i < 200; i++) {
        fixture_run_on(rig.worker, nothing, NULL);
    }
    cr_assert(fetch.body_len == 1000);
    cr_assert(kept_by_curl(&fetch) == 0);
    fixture_run_on(rig.worker, resume, &fetch);
    cr_assert(fetch_end(&fetch) == ERR_OK);
    cr_assert(fetch.body_len == 50000);
    cr_assert(!fetch.is_wrong);
    rig_end(&rig);
}

// Proves that a transfer paused before it began brings its head, but no body until resumed.
Test(transfer, paused_from_the_start)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/bytes/200000", .is_paused_at_once = true};
    fetch_begin(&rig, &fetch);
    for (unsigned i = 0; i < 200; i++) {
        fixture_run_on(rig.worker, nothing, NULL);
    }
    fixture_run_on(rig.worker, resume, &fetch);
    cr_assert(fetch_end(&fetch) == ERR_OK);
    cr_assert(fetch.body_len == 200000);
    rig_end(&rig);
}

// Proves that a cancelled transfer ends once with ERR_CANCELLED: at once, in mid-body, from its own
// callback, paused.
Test(transfer, cancelled)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch at_once = {.path = "/bytes/10", .is_cancelled_at_once = true};
    cr_assert(fetch_run(&rig, &at_once) == ERR_CANCELLED);
    cr_assert(at_once.line_count == 0);

    struct fetch inside = {.path = "/bytes/1000000", .cancel_at = 50000};
    cr_assert(fetch_run(&rig, &inside) == ERR_CANCELLED);
    cr_assert(inside.body_len < 1000000);

    struct fetch stalled = {.path = "/stall/1000/10"};
    fetch_begin(&rig, &stalled);
    signal_wait(&stalled.body_seen);
    fixture_run_on(rig.worker, cancel, &stalled);
    cr_assert(fetch_end(&stalled) == ERR_CANCELLED);

    struct fetch paused = {.path = "/bytes/5000000", .pause_at = 1};
    fetch_begin(&rig, &paused);
    signal_wait(&paused.paused);
    fixture_run_on(rig.worker, cancel, &paused);
    cr_assert(fetch_end(&paused) == ERR_CANCELLED);
    rig_end(&rig);
}

// Proves that freeing the pool ends what runs and what waits with ERR_CANCELLED.
Test(transfer, pool_free_cancels)
{
    struct rig rig = {.options.max_connections = 1};
    rig_begin(&rig);
    struct fetch running = {.path = "/stall/1000/10"}, waiting = {.path = "/bytes/10"};
    fetch_begin(&rig, &running);
    signal_wait(&running.body_seen);
    fetch_begin(&rig, &waiting);
    fixture_run_on(rig.worker, free_pool, &rig);
    cr_assert(fetch_end(&running) == ERR_CANCELLED);
    cr_assert(fetch_end(&waiting) == ERR_CANCELLED);
    rig_end(&rig);
}

// --- Failures ------------------------------------------------------------------------------------

// Proves that a body cut short is ERR_ORIGIN_RESET, never a clean end, whatever its framing.
Test(transfer, cut_bodies)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch cut = {.path = "/cut/100000/60000"};
    cr_assert(fetch_run(&rig, &cut) == ERR_ORIGIN_RESET);
    cr_assert(cut.body_len == 60000);
    struct fetch chunks = {.path = "/chunkcut/2500"};
    cr_assert(fetch_run(&rig, &chunks) == ERR_ORIGIN_RESET);
    struct fetch all_but_one = {.path = "/cut/100000/99999"};
    cr_assert(fetch_run(&rig, &all_but_one) == ERR_ORIGIN_RESET);
    rig_end(&rig);
}

static void expect_timeout(struct rig *rig, struct fetch *fetch, struct signal *when)
{
    fetch_begin(rig, fetch);
    if (when != NULL) {
        signal_wait(when);
    } else {
        while (tiny_origin_requests(rig->origin) == 0) {
            fixture_run_on(rig->worker, nothing, NULL);
        }
    }
    fixture_run_on(rig->worker, nothing, NULL);
    clock_test_advance_us(11 * 1000 * 1000);
    cr_assert(fetch_end(fetch) == ERR_ORIGIN_TIMEOUT);
    cr_assert(strstr(fetch->detail, "for 10000 ms") != NULL);
}

// Proves the timeout for the first byte of an answer.
Test(transfer, first_byte_timeout)
{
    struct rig rig = {.options.first_byte_timeout_ms = 10000};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/silent"};
    expect_timeout(&rig, &fetch, NULL);
    rig_end(&rig);
}

// Proves that a request's own limit for the first byte takes precedence over the pool's.
Test(transfer, first_byte_timeout_of_the_request)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/silent", .first_byte_timeout_ms = 10000};
    expect_timeout(&rig, &fetch, NULL);
    rig_end(&rig);
}

// Proves the timeout inside a body.
Test(transfer, idle_timeout)
{
    struct rig rig = {.options.idle_timeout_ms = 10000};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/stall/1000/10"};
    fetch_begin(&rig, &fetch);
    signal_wait(&fetch.body_seen);
    fixture_run_on(rig.worker, nothing, NULL);
    clock_test_advance_us(11 * 1000 * 1000);
    cr_assert(fetch_end(&fetch) == ERR_ORIGIN_TIMEOUT);
    cr_assert(fetch.body_len == 10);
    rig_end(&rig);
}

// Proves that an origin that stops taking an upload runs into the idle timeout.
Test(transfer, upload_timeout)
{
    struct rig rig = {.options.idle_timeout_ms = 10000};
    rig_begin(&rig);
    struct fetch fetch = {
        .method = "PUT", .path = "/nobody", .has_body = true, .body_length = 1ull << 30};
    expect_timeout(&rig, &fetch, NULL);
    cr_assert(fetch.uploaded < 1ull << 30);
    rig_end(&rig);
}

static void is_not_over(struct worker *w, void *ctx)
{
    (void)w;
    const struct fetch *fetch = ctx;
    cr_assert(fetch->end_count == 0);
}

// Proves that the body of a success may have a longer limit of its own, and gets it.
Test(transfer, late_timeout)
{
    struct rig rig = {.options.idle_timeout_ms = 10000};
    rig_begin(&rig);
    struct fetch fetch = {.path = "/stall/1000/10", .late_timeout_ms = 600000};
    fetch_begin(&rig, &fetch);
    signal_wait(&fetch.body_seen);
    fixture_run_on(rig.worker, nothing, NULL);
    clock_test_advance_us(599ull * 1000 * 1000);
    for (unsigned i = 0; i < 50; i++) {
        fixture_run_on(rig.worker, is_not_over, &fetch);
    }
    clock_test_advance_us(2ull * 1000 * 1000);
    cr_assert(fetch_end(&fetch) == ERR_ORIGIN_TIMEOUT);
    rig_end(&rig);
}

// Proves that a refused connection and a forbidden address are ERR_ORIGIN_CONNECT.
Test(transfer, no_connection)
{
    struct rig rig = {.options.deny_link_local = true};
    rig_begin(&rig);
    struct tiny_origin *gone = tiny_origin_new(NULL);
    char url[100];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/bytes/1", tiny_origin_port(gone));
    tiny_origin_free(gone);
    struct fetch refused = {.url = url};
    cr_assert(fetch_run(&rig, &refused) == ERR_ORIGIN_CONNECT);
    static const char *const urls[] = {"http://169.254.169.254/", "http://[fe80::1]/",
                                       "http://[::ffff:169.254.169.254]/"};
    for (unsigned i = 0; i < ARRAY_LEN(urls); i++) {
        struct fetch denied = {.url = urls[i]};
        cr_assert(fetch_run(&rig, &denied) == ERR_ORIGIN_CONNECT);
    }
    rig_end(&rig);
}

// Proves that a socket that never connected gives back its room. curl closes such a socket without
// telling us, if the transfer is cancelled.
Test(transfer, a_cancelled_connect_gives_back_its_room)
{
    struct rig rig = {0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, len), 0);
    cr_assert_eq(listen(listener, 0), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&address, &len), 0);
    int first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); // the kernel ignores all later ones
    cr_assert_eq(connect(first, (struct sockaddr *)&address, len), 0);
    socket_room_init(1u << 30);
    rig_begin(&rig);
    char url[100];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(address.sin_port));
    struct fetch fetch = {.url = url};
    fetch_begin(&rig, &fetch);
    wait_for(socket_room_bytes(SOCKETS_ORIGINS) > 0);
    fixture_run_on(rig.worker, cancel, &fetch);
    cr_assert_eq(fetch_end(&fetch), ERR_CANCELLED);
    cr_assert_eq(socket_room_bytes(SOCKETS_ORIGINS), 0);
    rig_end(&rig);
    close(first);
    close(listener);
}

// Proves that a transfer with a limited reach connects to no inner address beyond it, named or
// literal, and that it connects where it may.
Test(transfer, reach)
{
    struct rig rig = {.options.deny_link_local = true,
                      .options.names = "inside.test:80:127.0.0.1,10.0.0.1"};
    rig_begin(&rig);
    static const char *const urls[] = {"http://127.0.0.1:1/",  "http://[::1]:1/",
                                       "http://0.0.0.0:1/",    "http://10.0.0.1:1/",
                                       "http://2130706433:1/", "http://169.254.169.254/",
                                       "http://inside.test/"};
    for (unsigned i = 0; i < ARRAY_LEN(urls); i++) {
        struct fetch fetch = {.url = urls[i], .reach = TRANSFER_REACH_PUBLIC};
        cr_assert(fetch_run(&rig, &fetch) == ERR_PERMISSION, "%s", urls[i]);
    }
    struct fetch metadata = {.url = urls[5], .reach = TRANSFER_REACH_LOCAL};
    cr_assert(fetch_run(&rig, &metadata) == ERR_PERMISSION);
    struct fetch allowed = {.path = "/bytes/1", .reach = TRANSFER_REACH_LOCAL};
    cr_assert(fetch_run(&rig, &allowed) == ERR_OK);
    rig_end(&rig);
}

// Proves that an origin without TLS is ERR_ORIGIN_TLS where TLS was configured.
Test(transfer, no_tls)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct tiny_origin *plain = tiny_origin_new(NULL);
    char url[100];
    snprintf(url, sizeof(url), "https://127.0.0.1:%u/early", tiny_origin_port(plain));
    struct fetch fetch = {.url = url, .first_byte_timeout_ms = 60000};
    fetch_begin(&rig, &fetch);
    while (tiny_origin_connections(plain) == 0) {
        fixture_run_on(rig.worker, nothing, NULL);
    }
    tiny_origin_answer_in_plain(plain);
    cr_assert(fetch_end(&fetch) == ERR_ORIGIN_TLS);
    cr_assert(fetch.line_count == 0);
    rig_end(&rig);
    tiny_origin_free(plain);
}

// Proves that forbidden requests are refused before anything is sent: other schemes, broken
// headers.
Test(transfer, invalid_requests)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch file = {.url = "file:///etc/passwd"};
    cr_assert(fetch_run(&rig, &file) == ERR_ORIGIN_PROTOCOL);
    const struct header split = {SPAN("X"), SPAN("a\r\nEvil: b")};
    struct fetch header = {.path = "/bytes/1", .headers = &split, .header_count = 1};
    cr_assert(fetch_run(&rig, &header) == ERR_INVALID);
    const struct header name = {SPAN("X y"), SPAN("a")};
    struct fetch bad_name = {.path = "/bytes/1", .headers = &name, .header_count = 1};
    cr_assert(fetch_run(&rig, &bad_name) == ERR_INVALID);
    struct fetch method = {.method = "GE T", .path = "/bytes/1"};
    cr_assert(fetch_run(&rig, &method) == ERR_INVALID);
    cr_assert(tiny_origin_requests(rig.origin) == 0);
    rig_end(&rig);
}

// Proves that the gate's verdict ends the transfer with its own error, before any body.
Test(transfer, gate_refuses)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch header = {.path = "/bytes/100000", .header_verdict = ERR_ORIGIN_CHANGED};
    cr_assert(fetch_run(&rig, &header) == ERR_ORIGIN_CHANGED);
    cr_assert(header.line_count == 1);
    cr_assert(header.body_len == 0);
    struct fetch body = {.path = "/bytes/100000", .body_verdict = ERR_NO_MEMORY};
    cr_assert(fetch_run(&rig, &body) == ERR_NO_MEMORY);
    rig_end(&rig);
}

// --- Uploads -------------------------------------------------------------------------------------

// Proves that PUT and POST send their body with its length, empty and large, and bring back the
// answer.
Test(transfer, uploads)
{
    struct rig rig = {0};
    rig_begin(&rig);
    static const uint64_t lengths[] = {0, 1, 70000, 3000000};
    for (unsigned i = 0; i < 2 * ARRAY_LEN(lengths); i++) {
        struct fetch fetch = {.method = i % 2 == 0 ? "PUT" : "POST",
                              .path = "/echo",
                              .has_body = true,
                              .body_length = lengths[i / 2]};
        cr_assert(fetch_run(&rig, &fetch) == ERR_OK);
        cr_assert(fetch.uploaded == lengths[i / 2]);
        cr_assert(fetch.body_len == lengths[i / 2]);
        cr_assert(!fetch.is_wrong);
    }
    cr_assert(tiny_origin_connections(rig.origin) == 1);
    rig_end(&rig);
}

// Proves that an upload whose source has no bytes yet waits without a timeout, and continues later.
Test(transfer, upload_pauses)
{
    struct rig rig = {.options.idle_timeout_ms = 10000};
    rig_begin(&rig);
    struct fetch fetch = {.method = "PUT",
                          .path = "/echo",
                          .has_body = true,
                          .body_length = 100000,
                          .upload_pause_at = 5000};
    fetch_begin(&rig, &fetch);
    signal_wait(&fetch.paused);
    fixture_run_on(rig.worker, nothing, NULL);
    clock_test_advance_us(60 * 1000 * 1000);
    for (unsigned i = 0; i < 50; i++) {
        fixture_run_on(rig.worker, nothing, NULL);
    }
    cr_assert(fetch.end_count == 0);
    cr_assert(fetch.uploaded == 5000);
    fixture_run_on(rig.worker, resume, &fetch);
    cr_assert(fetch_end(&fetch) == ERR_OK);
    cr_assert(fetch.body_len == 100000);
    cr_assert(!fetch.is_wrong);
    rig_end(&rig);
}

// Proves that a source that ends before its announced length cuts the upload instead of ending it.
Test(transfer, upload_cut_by_its_source)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {.method = "PUT",
                          .path = "/echo",
                          .has_body = true,
                          .body_length = 100000,
                          .upload_ends_at = 50000};
    cr_assert(fetch_run(&rig, &fetch) == ERR_INCOMPLETE_BODY);
    rig_end(&rig);
}

// Proves that an answer that comes before the end of the upload is delivered.
Test(transfer, early_answer)
{
    struct rig rig = {0};
    rig_begin(&rig);
    struct fetch fetch = {
        .method = "PUT", .path = "/early", .has_body = true, .body_length = 200000000};
    enum err err = fetch_run(&rig, &fetch);
    cr_assert(err == ERR_OK || err == ERR_ORIGIN_RESET);
    cr_assert(strncmp(fetch.head, "HTTP/1.1 403", 12) == 0);
    cr_assert(fetch.uploaded < 200000000);
    rig_end(&rig);
}

// --- Which connection serves again ---------------------------------------------------------------

// Proves that a connection carries no other request if an upload on it did not end in success: it
// was refused after its body, or answered (either way) before its body was whole.
Test(transfer, connection_of_a_failed_upload)
{
    static const struct {
        const char *path;
        uint64_t length;
        bool is_kept;
    } rows[] = {
        {"/refuse/503", 1000, false}, {"/refuse/403", 1, false},   {"/refuse/499", 70000, false},
        {"/refuse/307", 10, false},   {"/refuse/200", 1000, true}, {"/refuse/204", 1000, true},
        {"/refuse/503", 0, true}, // nothing of it could be in the way
    };
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct rig rig = {0};
        rig_begin(&rig);
        struct fetch upload = {
            .method = "PUT", .path = rows[i].path, .has_body = true, .body_length = rows[i].length};
        cr_assert(fetch_run(&rig, &upload) == ERR_OK);
        struct fetch next = {.path = "/bytes/10"};
        cr_assert(fetch_run(&rig, &next) == ERR_OK);
        cr_assert(next.body_len == 10 && !next.is_wrong);
        cr_assert(tiny_origin_connections(rig.origin) == (rows[i].is_kept ? 1 : 2), "row %u", i);
        rig_end(&rig);
    }
}

// Proves the same for an upload that was answered while its source paused, by a refusal or by a
// success that came too soon, also if an interim head came in one piece with it.
Test(transfer, connection_of_an_upload_answered_early)
{
    static const char *const paths[] = {"/hasty/503",   "/hasty/403",   "/hasty/200",
                                        "/granted/503", "/granted/403", "/granted/200"};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        struct rig rig = {0};
        rig_begin(&rig);
        struct fetch upload = {.method = "PUT",
                               .path = paths[i],
                               .has_body = true,
                               .body_length = 100000,
                               .upload_pause_at = 5000};
        fetch_begin(&rig, &upload);
        if (strstr(paths[i], "/200") != NULL) { // a refusal ends it wherever it is
            signal_wait(&upload.paused);
            signal_wait(&upload.body_seen);
            fixture_run_on(rig.worker, resume_upload, &upload);
        }
        cr_assert(fetch_end(&upload) == ERR_OK);
        struct fetch next = {.path = "/bytes/10"};
        cr_assert(fetch_run(&rig, &next) == ERR_OK);
        cr_assert(next.body_len == 10 && !next.is_wrong);
        cr_assert(tiny_origin_connections(rig.origin) == 2);
        rig_end(&rig);
    }
}

// Proves that a connection with unread bytes is closed instead of being used again. The later
// request gets its own answer from another connection, and nothing else about it changes.
Test(transfer, connection_with_bytes_waiting)
{
    static const char *const methods[] = {"GET", "HEAD", "PUT", "POST", "DELETE"};
    for (unsigned i = 0; i < ARRAY_LEN(methods); i++) {
        struct rig rig = {0};
        rig_begin(&rig);
        bool has_body = methods[i][0] == 'P';
        for (unsigned round = 0; round < 3; round++) {
            struct fetch first = {.path = "/bytes/1000"};
            cr_assert(fetch_run(&rig, &first) == ERR_OK);
            cr_assert(tiny_origin_connections(rig.origin) == 1 + round);
            tiny_origin_answer_unasked(rig.origin);
            struct fetch next = {.method = methods[i],
                                 .path = has_body ? "/echo" : "/bytes/10",
                                 .has_body = has_body,
                                 .body_length = has_body ? 10 : 0};
            cr_assert(fetch_run(&rig, &next) == ERR_OK);
            cr_assert(next.body_len == (methods[i][0] == 'H' ? 0 : 10));
            cr_assert(!next.is_wrong);
            cr_assert(tiny_origin_connections(rig.origin) == 2 + round);
            cr_assert(tiny_origin_requests(rig.origin) == 2 * (round + 1));
        }
        rig_end(&rig);
    }
}

// Proves that a second answer in the same piece is not taken for the answer to the next request.
Test(transfer, connection_with_two_answers)
{
    struct rig rig = {0};
    rig_begin(&rig);
    static const char *const paths[] = {"/stray/1000", "/stray/1", "/stray/0"};
    for (unsigned i = 0; i < ARRAY_LEN(paths); i++) {
        struct fetch first = {.path = paths[i]}, next = {.path = "/bytes/20"};
        cr_assert(fetch_run(&rig, &first) == ERR_OK);
        cr_assert(!first.is_wrong);
        cr_assert(fetch_run(&rig, &next) == ERR_OK);
        cr_assert(next.body_len == 20 && !next.is_wrong);
    }
    struct fetch head = {.method = "HEAD", .path = "/stray/1000"}, next = {.path = "/bytes/20"};
    cr_assert(fetch_run(&rig, &head) == ERR_OK);
    cr_assert(head.body_len == 0);
    cr_assert(fetch_run(&rig, &next) == ERR_OK);
    cr_assert(next.body_len == 20 && !next.is_wrong);
    rig_end(&rig);
}

// Proves that a request keeps its turn, and can be paused and cancelled, while it changes
// connections. A limit of one connection does not prevent that.
Test(transfer, connection_with_bytes_waiting_under_a_limit)
{
    struct rig rig = {.options.max_connections = 1};
    rig_begin(&rig);
    struct fetch first = {.path = "/bytes/1000"};
    cr_assert(fetch_run(&rig, &first) == ERR_OK);
    tiny_origin_answer_unasked(rig.origin);
    struct fetch paused = {.path = "/bytes/200000", .is_paused_at_once = true};
    struct fetch cancelled = {.path = "/bytes/10", .is_cancelled_at_once = true};
    struct fetch waiting = {.path = "/bytes/30"};
    fetch_begin(&rig, &paused);
    fetch_begin(&rig, &cancelled);
    fetch_begin(&rig, &waiting);
    fixture_run_on(rig.worker, resume, &paused);
    cr_assert(fetch_end(&paused) == ERR_OK);
    cr_assert(paused.body_len == 200000 && !paused.is_wrong);
    cr_assert(fetch_end(&cancelled) == ERR_CANCELLED);
    cr_assert(fetch_end(&waiting) == ERR_OK);
    cr_assert(waiting.body_len == 30 && !waiting.is_wrong);
    cr_assert(tiny_origin_connections(rig.origin) == 2);
    rig_end(&rig);
}

// All spellings of the addresses where clouds hand out credentials, and neighbouring addresses.
Test(transfer, metadata_addresses)
{
    static const struct {
        const char *text;
        bool denied;
    } rows[] = {{"169.254.169.254", true},
                {"169.254.170.2", true},
                {"169.254.170.23", true},
                {"169.254.0.0", true},
                {"169.253.255.255", false},
                {"169.255.0.0", false},
                {"100.100.100.200", true},
                {"100.100.100.201", false},
                {"127.0.0.1", false},
                {"::ffff:169.254.169.254", true},
                {"::169.254.169.254", true},
                {"64:ff9b::a9fe:a9fe", true},
                {"64:ff9b::1", false},
                {"2002:a9fe:a9fe::1", true},
                {"2002:a9ff:a9fe::1", false},
                {"::ffff:100.100.100.200", true},
                {"::ffff:10.0.0.1", false},
                {"fe80::1", true},
                {"febf::1", true},
                {"fec0::1", false},
                {"fd00:ec2::254", true},
                {"fd00:ec2::23", true},
                {"fd00:ec2::253", false},
                {"fd00:ec2:1::254", false},
                {"fd20:ce::254", true},
                {"::1", false},
                {"2600::1", false}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
        const void *addr = &v4;
        if (inet_pton(AF_INET, rows[i].text, &v4.sin_addr) != 1) {
            cr_assert_eq(inet_pton(AF_INET6, rows[i].text, &v6.sin6_addr), 1);
            addr = &v6;
        }
        cr_assert_eq(transfer_address_is_metadata(addr), rows[i].denied, "%s", rows[i].text);
    }
}
