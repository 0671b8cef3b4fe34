// SPDX-License-Identifier: Apache-2.0
// The scripted server and the blocking client of front.h.
#include "front.h"

#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

char front_pattern(uint64_t offset)
{
    return (char)(offset * 31 + offset / 251 + offset / 65521);
}

// --- handler -------------------------------------------------------------------------------------

struct call {
    struct http_user user;
    struct http_source source;
    struct http_sink sink;
    struct http_exchange *x;
    struct front *front;
    struct task task;
    void (*task_fn)(struct call *call);
    uint64_t n, slice, wait, at, sent, memory_left, slice_number;
    bool file, ready, evict, waited, ends_early, too_long, fail_sink, slow_sink, early, replied;
    uint64_t body_len, body_sum;
    struct headers headers;
};

static __thread unsigned depth;

static void enter(struct front *f)
{
    if (depth++ > 0) {
        atomic_fetch_add(&f->nested, 1);
    }
}

static void leave(void)
{
    depth--;
}

static bool parameter(struct span target, const char *name, uint64_t *ret_value)
{
    size_t mark = span_find(target, '?');
    if (mark == target.len) {
        return false;
    }
    struct span rest = {target.ptr + mark + 1, target.len - mark - 1}, piece;
    while (span_split(&rest, '&', &piece)) {
        size_t equals = span_find(piece, '=');
        if (span_equal_cstr((struct span){piece.ptr, equals}, name)) {
            return span_to_u64((struct span){piece.ptr + equals + 1, piece.len - equals - 1},
                               ret_value);
        }
    }
    return false;
}

static void on_done(struct http_user *user, enum http_outcome outcome)
{
    struct call *call = container_of(user, struct call, user);
    enter(call->front);
    worker_task_cancel(&call->task);
    atomic_uint *counters[] = {[HTTP_DONE] = &call->front->done,
                               [HTTP_CLIENT_GONE] = &call->front->gone,
                               [HTTP_CLIENT_SLOW] = &call->front->slow,
                               [HTTP_CUT] = &call->front->cut};
    atomic_fetch_add(counters[outcome], 1);
    leave();
}

static void on_task(struct task *task)
{
    struct call *call = container_of(task, struct call, task);
    call->task_fn(call);
}

static void wake(struct call *call)
{
    http_reply_ready(call->x);
}

static void release_bytes(void *ctx)
{
    struct front **owner = ctx;
    atomic_fetch_add(&(*owner)->releases, 1);
    free(owner);
}

static void release_range(void *ctx)
{
    struct front *f = ctx;
    atomic_fetch_add(&f->releases, 1);
}

static bool is_good(const struct file_range *range, uint64_t offset, uint64_t len)
{
    struct front *f = range->release_ctx;
    cr_assert(offset + len <= FRONT_FILE_SIZE);
    atomic_fetch_add(&f->questions, 1);
    return true;
}

static void bytes_slice(struct call *call, uint64_t len, struct http_slice *ret_slice)
{
    struct front **owner = malloc(sizeof(struct front *) + len);
    char *bytes = (char *)(owner + 1);
    *owner = call->front;
    for (uint64_t i = 0; i < len; i++) {
        bytes[i] = front_pattern(call->sent + i);
    }
    *ret_slice = (struct http_slice){.kind = HTTP_SLICE_BYTES,
                                     .bytes = {bytes, len},
                                     .release = release_bytes,
                                     .release_ctx = owner};
}

static enum http_pull pull(struct http_source *source, struct http_slice *ret_slice)
{
    struct call *call = container_of(source, struct call, source);
    enter(call->front);
    enum http_pull result = HTTP_PULL_SLICE;
    uint64_t end = call->n - call->ends_early;
    uint64_t len = min_u64(call->slice, end - call->sent);
    if (call->at != UINT64_MAX && call->sent >= call->at) {
        result = HTTP_PULL_CUT;
    } else if (call->sent == end) {
        result = HTTP_PULL_END;
    } else if (call->wait != 0 && call->slice_number % call->wait == 0 && !call->waited) {
        call->waited = true;
        call->task_fn = wake;
        worker_defer(http_exchange_worker(call->x), &call->task);
        result = HTTP_PULL_WAIT;
    } else {
        call->waited = false;
        call->slice_number++;
        atomic_fetch_add(&call->front->slices, 1);
        if (call->file && call->memory_left == 0) {
            len = min_u64(len, HTTP_FILE_SLICE_MAX);
            if (call->evict) {
                (void)posix_fadvise(call->front->file, (off_t)call->sent, (off_t)len,
                                    POSIX_FADV_DONTNEED);
            }
            *ret_slice = (struct http_slice){.kind = HTTP_SLICE_FILE,
                                             .range = {.was_ready = call->ready,
                                                       .fd = call->front->file,
                                                       .is_good = is_good,
                                                       .offset = call->sent,
                                                       .len = len,
                                                       .release = release_range,
                                                       .release_ctx = call->front}};
        } else {
            if (call->memory_left > 0) {
                len = min_u64(len, call->memory_left);
                call->memory_left -= len;
            }
            bytes_slice(call, len + call->too_long, ret_slice);
        }
        call->sent += len;
    }
    leave();
    return result;
}

static void recall(struct http_source *source, uint64_t unsent)
{
    struct call *call = container_of(source, struct call, source);
    atomic_fetch_add(&call->front->recalls, 1);
    call->sent -= unsent;
    call->memory_left = unsent;
}

static void small(struct call *call)
{
    char worker[16];
    snprintf(worker, sizeof(worker), "%u", worker_index(http_exchange_worker(call->x)));
    struct arena *arena = http_exchange_arena(call->x);
    cr_assert(headers_add(&call->headers, arena, SPAN("X-Worker"),
                          arena_copy(arena, span_from_cstr(worker))));
    struct http_reply reply = {.status = 200,
                               .reason = "OK",
                               .headers = &call->headers,
                               .has_length = true,
                               .length = 6,
                               .body = SPAN("hello\n")};
    http_reply_start(call->x, &reply);
}

static void text_reply(struct call *call, unsigned status, const char *text)
{
    struct span body = arena_copy(http_exchange_arena(call->x), span_from_cstr(text));
    struct http_reply reply = {
        .status = status, .reason = "X", .has_length = true, .length = body.len, .body = body};
    call->replied = true;
    http_reply_start(call->x, &reply);
}

static void resume(struct call *call)
{
    http_body_resume(call->x);
}

static enum err on_data(struct http_sink *sink, struct span data)
{
    struct call *call = container_of(sink, struct call, sink);
    enter(call->front);
    for (size_t i = 0; i < data.len; i++) {
        call->body_sum = call->body_sum * 31 + (unsigned char)data.ptr[i];
    }
    call->body_len += data.len;
    if (call->early && !call->replied) {
        text_reply(call, 503, "early\n");
    }
    if (call->slow_sink) {
        http_body_pause(call->x);
        call->task_fn = resume;
        worker_defer(http_exchange_worker(call->x), &call->task);
    }
    leave();
    return call->fail_sink ? ERR_BAD_DIGEST : ERR_OK;
}

static void on_end(struct http_sink *sink, enum err err)
{
    struct call *call = container_of(sink, struct call, sink);
    enter(call->front);
    atomic_fetch_add(&call->front->sinks_ended, 1);
    char text[64];
    snprintf(text, sizeof(text), "%llu %llu\n", (unsigned long long)call->body_len,
             (unsigned long long)call->body_sum);
    if (!call->replied) {
        text_reply(call, err == ERR_OK ? 200 : 400, err == ERR_OK ? text : error_name(err));
    }
    leave();
}

static void source_reply(struct call *call, bool has_length)
{
    struct http_reply reply = {.status = 200,
                               .reason = "OK",
                               .has_length = has_length,
                               .length = call->n,
                               .source = &call->source};
    http_reply_start(call->x, &reply);
}

static void odd_headers(struct call *call)
{
    static const struct header rows[] = {
        {{"X-Good", 6}, {"a\tb", 3}},       {{"X-Cr", 4}, {"a\r\nX-Split: 1", 13}},
        {{"X-Nul", 5}, {"a\0b", 3}},        {{"X Bad", 5}, {"x", 1}},
        {{"Content-Length", 14}, {"1", 1}}, {{"transfer-encoding", 17}, {"chunked", 7}},
        {{"Connection", 10}, {"close", 5}}, {{"Date", 4}, {"x", 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert(
            headers_add(&call->headers, http_exchange_arena(call->x), rows[i].name, rows[i].value));
    }
    struct http_reply reply = {.status = 200,
                               .reason = "OK",
                               .headers = &call->headers,
                               .rendered = SPAN("X-Rendered: yes\r\n"),
                               .has_length = true};
    http_reply_start(call->x, &reply);
}

static void bodiless(struct call *call, unsigned status)
{
    struct http_reply reply = {.status = status, .reason = "X", .no_length = true};
    http_reply_start(call->x, &reply);
}

static void act(struct call *call, struct span path)
{
    if (span_equal(path, SPAN("/small"))) {
        small(call);
    } else if (span_equal(path, SPAN("/late"))) {
        call->task_fn = small;
        worker_defer(http_exchange_worker(call->x), &call->task);
    } else if (span_equal(path, SPAN("/chunked"))) {
        source_reply(call, false);
    } else if (span_equal(path, SPAN("/refuse"))) {
        text_reply(call, 403, "no\n");
    } else if (span_equal(path, SPAN("/never"))) {
    } else if (span_equal(path, SPAN("/headers"))) {
        odd_headers(call);
    } else if (span_equal(path, SPAN("/204"))) {
        bodiless(call, 204);
    } else if (span_equal(path, SPAN("/304"))) {
        bodiless(call, 304);
    } else if (span_ends_with(path, SPAN("put")) || span_equal(path, SPAN("/bad")) || call->early) {
        http_body_start(call->x, &call->sink);
    } else {
        source_reply(call, true);
    }
}

static void on_request(void *ctx, struct http_exchange *x)
{
    struct front *f = ctx;
    const struct http_request *r = http_exchange_request(x);
    struct call *call = arena_alloc(http_exchange_arena(x), sizeof(*call));
    enter(f);
    atomic_fetch_add(&f->requests, 1);
    call->user.on_done = on_done;
    call->source = (struct http_source){pull, recall};
    call->sink = (struct http_sink){.on_data = on_data, .on_end = on_end};
    call->x = x;
    call->front = f;
    worker_task_init(&call->task, on_task);
    call->slice = 10000;
    call->at = UINT64_MAX;
    (void)parameter(r->target, "n", &call->n);
    (void)parameter(r->target, "slice", &call->slice);
    (void)parameter(r->target, "wait", &call->wait);
    (void)parameter(r->target, "at", &call->at);
    struct span path = {r->target.ptr, span_find(r->target, '?')};
    call->evict = span_equal(path, SPAN("/evicted"));
    call->ready = span_equal(path, SPAN("/ready"));
    call->file = call->evict || call->ready || span_equal(path, SPAN("/file"));
    if (call->file) {
        call->slice = HTTP_FILE_SLICE_MAX;
    }
    call->ends_early = span_equal(path, SPAN("/short"));
    call->too_long = span_equal(path, SPAN("/long"));
    call->fail_sink = span_equal(path, SPAN("/bad"));
    call->early = span_equal(path, SPAN("/early"));
    call->slow_sink = span_equal(path, SPAN("/slowput"));
    http_exchange_set_user(x, &call->user);
    act(call, path);
    leave();
}

static void on_refused(void *ctx, const struct http_refusal *refusal, struct headers *headers,
                       struct buf *out)
{
    struct front *f = ctx;
    cr_assert(worker_is_mine(refusal->worker));
    cr_assert(refusal->request->peer.len > 0 && refusal->request->started_us > 0);
    cr_assert((headers == NULL) == (out == NULL));
    atomic_store(&f->refused_for, (unsigned)refusal->why);
    atomic_fetch_add(&f->refusals, 1);
    if (out != NULL) {
        cr_assert(
            headers_add(headers, refusal->arena, SPAN("Content-Type"), SPAN("application/xml")));
        buf_printf(out, "<Error><Code>%s</Code></Error>", error_name(refusal->err));
    }
}

// --- server --------------------------------------------------------------------------------------

static int pattern_file(void)
{
    const char *dir = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof(path), "%s/forebay-http-XXXXXX", dir == NULL ? "/tmp" : dir);
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    unlink(path);
    char *bytes = malloc(FRONT_FILE_SIZE);
    for (uint64_t i = 0; i < FRONT_FILE_SIZE; i++) {
        bytes[i] = front_pattern(i);
    }
    cr_assert(write(fd, bytes, FRONT_FILE_SIZE) == (ssize_t)FRONT_FILE_SIZE);
    cr_assert(fsync(fd) == 0);
    free(bytes);
    return fd;
}

static uint64_t or_default(uint64_t value, uint64_t standard)
{
    return value != 0 ? value : standard;
}

struct front *front_new(struct http_options options, unsigned workers)
{
    static const char *const loopback[] = {"127.0.0.1:0"};
    struct front *f = calloc(1, sizeof(*f));
    struct loop_options loop_options = {
        .worker_count = workers, .engine = DISK_ENGINE_THREADS, .disk_queue_depth = 16};
    struct buf why;
    buf_init(&why, 4096);
    cr_assert(loop_new(&loop_options, &f->loop, &why) == ERR_OK, "%s", buf_cstr(&why));
    if (options.listen_count == 0) {
        options.listen = loopback;
        options.listen_count = 1;
    }
    options.limits.max_connections = (unsigned)or_default(options.limits.max_connections, 1000);
    options.limits.max_inflight = (unsigned)or_default(options.limits.max_inflight, 1000);
    options.limits.max_inflight_in_memory =
        (unsigned)or_default(options.limits.max_inflight_in_memory, 1000);
    options.limits.header_timeout_ms = or_default(options.limits.header_timeout_ms, 60000);
    options.limits.idle_timeout_ms = or_default(options.limits.idle_timeout_ms, 60000);
    options.unix_mode = (unsigned)or_default(options.unix_mode, 0600);
    options.min_rate_grace_ms = or_default(options.min_rate_grace_ms, 60000);
    options.handler =
        (struct http_handler){.ctx = f, .on_request = on_request, .on_refused = on_refused};
    enum err err = http_server_new(f->loop, &options, &f->server, &why);
    cr_assert(err == ERR_OK, "%s", buf_cstr(&why));
    buf_done(&why);
    f->file = pattern_file();
    f->address = http_server_address(f->server, 0);
    for (unsigned i = 0; i < COUNTER_COUNT_; i++) {
        f->counted_before[i] = stats_sum((enum counter)i);
    }
    cr_assert(loop_start(f->loop) == ERR_OK);
    http_server_start(f->server);
    return f;
}

void front_free(struct front *f)
{
    loop_stop(f->loop);
    http_server_free(f->server);
    loop_free(f->loop);
    cr_assert(f->requests == f->done + f->gone + f->slow + f->cut, "each exchange ends once");
    cr_assert(f->nested == 0);
    close(f->file);
    free(f);
}

unsigned long front_counted(const struct front *f, enum counter c)
{
    return stats_sum(c) - f->counted_before[c];
}

// --- client --------------------------------------------------------------------------------------

int client_connect(const char *address)
{
    struct span text = span_from_cstr(address);
    struct timeval limit = {20, 0};
    int fd;
    int rc;
    if (span_starts_with(text, SPAN("unix:"))) {
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        snprintf(un.sun_path, sizeof(un.sun_path), "%s", address + 5);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        rc = connect(fd, (struct sockaddr *)&un, sizeof(un));
    } else {
        const char *port = strrchr(address, ':') + 1;
        struct sockaddr_in in = {.sin_family = AF_INET,
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                 .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
        fd = socket(AF_INET, SOCK_STREAM, 0);
        rc = connect(fd, (struct sockaddr *)&in, sizeof(in));
    }
    cr_assert(fd >= 0);
    if (rc != 0) {
        close(fd);
        return -1;
    }
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0);
    return fd;
}

void client_send(int fd, const void *bytes, size_t len)
{
    const char *at = bytes;
    while (len > 0) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        if (n < 0) {
            cr_assert(errno == EPIPE || errno == ECONNRESET, "send: %s", strerror(errno));
            return;
        }
        at += n;
        len -= (size_t)n;
    }
}

void client_send_text(int fd, const char *text)
{
    client_send(fd, text, strlen(text));
}

// 0 at a close or a reset.
static size_t receive(int fd, char *bytes, size_t max)
{
    ssize_t n;
    do {
        n = recv(fd, bytes, max, 0);
    } while (n < 0 && errno == EINTR);
    cr_assert(n >= 0 || errno == ECONNRESET, "recv: %s", strerror(errno));
    return n > 0 ? (size_t)n : 0;
}

void client_read_exactly(int fd, char *bytes, size_t len)
{
    while (len > 0) {
        size_t n = receive(fd, bytes, len);
        cr_assert(n > 0, "closed with %zu bytes missing", len);
        bytes += n;
        len -= n;
    }
}

void client_reset(int fd)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    cr_assert(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)) == 0);
    close(fd);
}

bool client_at_end(int fd)
{
    char byte;
    return receive(fd, &byte, 1) == 0;
}

static bool read_line(int fd, char *line, size_t size)
{
    size_t len = 0;
    while (len < 2 || line[len - 2] != '\r' || line[len - 1] != '\n') {
        cr_assert(len + 1 < size);
        if (receive(fd, line + len, 1) == 0) {
            return false;
        }
        len++;
    }
    line[len] = '\0';
    return true;
}

bool client_header(const struct client_reply *reply, const char *name, char *ret_value, size_t size)
{
    const char *line = strstr(reply->head, "\r\n");
    while (line != NULL && line[2] != '\r' && line[2] != '\0') {
        line += 2;
        const char *end = strstr(line, "\r\n");
        const char *colon = strchr(line, ':');
        cr_assert(end != NULL && colon != NULL && colon < end && colon[1] == ' ', "%s",
                  reply->head);
        struct span got = {line, (size_t)(colon - line)};
        if (span_equal_nocase(got, span_from_cstr(name))) {
            snprintf(ret_value, size, "%.*s", (int)(end - colon - 2), colon + 2);
            return true;
        }
        line = end;
    }
    return false;
}

static void body_append(struct client_reply *reply, int fd, uint64_t len, bool *ret_complete)
{
    reply->body = realloc(reply->body, reply->body_len + len + 1);
    *ret_complete = true;
    while (len > 0) {
        size_t n = receive(fd, reply->body + reply->body_len, len);
        if (n == 0) {
            *ret_complete = false;
            return;
        }
        reply->body_len += n;
        len -= n;
    }
}

static void read_chunks(int fd, struct client_reply *reply)
{
    char line[64];
    for (;;) {
        if (!read_line(fd, line, sizeof(line))) {
            return;
        }
        uint64_t len = strtoull(line, NULL, 16);
        bool complete;
        body_append(reply, fd, len, &complete);
        if (!complete || !read_line(fd, line, sizeof(line))) {
            return;
        }
        cr_assert_str_eq(line, "\r\n");
        if (len == 0) {
            reply->complete = true;
            return;
        }
    }
}

bool client_read(int fd, bool is_head, struct client_reply *ret_reply)
{
    struct client_reply *r = ret_reply;
    *r = (struct client_reply){0};
    size_t len = 0;
    while (len < 4 || memcmp(r->head + len - 4, "\r\n\r\n", 4) != 0) {
        cr_assert(len + 1 < sizeof(r->head));
        if (receive(fd, r->head + len, 1) == 0) {
            cr_assert(len == 0, "closed in a head");
            return false;
        }
        len++;
    }
    cr_assert(strncmp(r->head, "HTTP/1.1 ", 9) == 0, "%s", r->head);
    r->status = (unsigned)strtoul(r->head + 9, NULL, 10);
    char value[64];
    r->close = client_header(r, "Connection", value, sizeof(value)) && strcmp(value, "close") == 0;
    r->chunked = client_header(r, "Transfer-Encoding", value, sizeof(value));
    r->has_length = client_header(r, "Content-Length", value, sizeof(value));
    cr_assert(!r->chunked || !r->has_length);
    if (is_head || r->status == 100 || r->status == 204 || r->status == 304) {
        r->complete = true;
    } else if (r->has_length) {
        body_append(r, fd, strtoull(value, NULL, 10), &r->complete);
    } else if (r->chunked) {
        read_chunks(fd, r);
    } else {
        for (bool more = true; more;) {
            body_append(r, fd, 1, &more);
        }
        r->complete = true;
    }
    return true;
}

void client_reply_done(struct client_reply *reply)
{
    free(reply->body);
    reply->body = NULL;
}
