// SPDX-License-Identifier: Apache-2.0
// The driven server and the handler of schedule.h.
#include "schedule.h"

#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "front.h"
#include "loop/loop_private.h"

#define FILE_BYTES (1u << 20)

// --- chance --------------------------------------------------------------------------------------

static uint64_t chance;

void chance_seed(uint64_t seed)
{
    chance = seed * 0x9e3779b97f4a7c15u + 1;
}

unsigned pick(unsigned below)
{
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((chance >> 33) % below);
}

bool one_in(unsigned n)
{
    return n != 0 && pick(n) == 0;
}

// --- trace and failure ---------------------------------------------------------------------------

static bool is_traced;

void schedule_note(const char *format, ...)
{
    va_list args;
    if (!is_traced) {
        return;
    }
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
}

void schedule_fail(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "%s:%d: not so: %s: ", file, line, condition);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    abort();
}

// --- the server ----------------------------------------------------------------------------------

static struct {
    struct loop *loop;
    struct worker *worker;
    struct http_server *server;
    int file;
    char *file_bytes;
    char *lure; // the bytes of every request's body
    struct talk *talks;
    unsigned talk_count;
    unsigned depth; // a callback or a call of ours is on the stack
    unsigned long slices, releases;
} at;

static void enter(void)
{
    must(at.depth == 0, "a callback inside a call");
    at.depth++;
}

static void leave(void)
{
    at.depth--;
}

char reply_byte(const struct turn *turn, uint64_t offset)
{
    uint64_t base = (turn->talk->number * TURNS_MAX + turn->index) * 7919u;
    return at.file_bytes[(base + offset) % (FILE_BYTES / 2)];
}

struct span request_body(uint32_t len)
{
    must(len <= REQUEST_BODY_MAX, "too long");
    return (struct span){at.lure, len};
}

static uint64_t file_offset(const struct turn *turn, uint64_t offset)
{
    uint64_t base = (turn->talk->number * TURNS_MAX + turn->index) * 7919u;
    return (base + offset) % (FILE_BYTES / 2); // the file holds its first half twice
}

// --- the handler ---------------------------------------------------------------------------------

static struct turn *turn_of_user(struct http_user *user)
{
    return container_of(user, struct turn, user);
}

static void on_done(struct http_user *user, enum http_outcome outcome)
{
    struct turn *t = turn_of_user(user);
    enter();
    schedule_note("  talk %u turn %u: done, outcome %d", t->talk->number, t->index, (int)outcome);
    must(t->x != NULL && !t->is_done, "on_done twice");
    t->is_done = true;
    t->done_early = t->talk->sent < t->talk->out.len;
    t->outcome = outcome;
    t->x = NULL;
    leave();
}

static void release_slice(void *ctx)
{
    at.releases++;
    free(ctx);
}

static void release_range(void *ctx)
{
    (void)ctx;
    at.releases++;
}

static bool range_is_good(const struct file_range *range, uint64_t offset, uint64_t len)
{
    const struct turn *t = range->release_ctx;
    (void)offset;
    (void)len;
    return !one_in(t->recall_one_in);
}

static void give_bytes(struct turn *t, uint32_t len, struct http_slice *ret_slice)
{
    char *bytes = malloc(len);
    for (uint32_t i = 0; i < len; i++) {
        bytes[i] = reply_byte(t, t->given + i);
    }
    *ret_slice = (struct http_slice){.kind = HTTP_SLICE_BYTES,
                                     .bytes = {bytes, len},
                                     .release = release_slice,
                                     .release_ctx = bytes};
}

static enum http_pull give_slice(struct turn *t, struct http_slice *ret_slice)
{
    uint32_t len = 1 + pick(t->slice_max);
    len = len < t->reply_len - t->given ? len : t->reply_len - t->given;
    uint64_t offset = file_offset(t, t->given);
    if (t->kind == BY_FILE && t->from_memory == 0 && offset + len <= FILE_BYTES) {
        *ret_slice = (struct http_slice){.kind = HTTP_SLICE_FILE,
                                         .range = {.fd = at.file,
                                                   .offset = offset,
                                                   .len = len,
                                                   .release = release_range,
                                                   .release_ctx = t,
                                                   .is_good = range_is_good}};
    } else {
        if (t->from_memory > 0) {
            len = len < t->from_memory ? len : t->from_memory;
            t->from_memory -= len;
        }
        give_bytes(t, len, ret_slice);
    }
    at.slices++;
    t->given += len;
    return HTTP_PULL_SLICE;
}

static enum http_pull pull(struct http_source *source, struct http_slice *ret_slice)
{
    struct turn *t = container_of(source, struct turn, source);
    enum http_pull result;
    enter();
    must(t->x != NULL && t->has_replied && !t->source_ended && !t->is_waiting, "a pull too many");
    if (t->given >= t->source_cut_at) {
        t->source_ended = true;
        result = HTTP_PULL_CUT;
    } else if (t->given == t->reply_len) {
        t->source_ended = true;
        result = HTTP_PULL_END;
    } else if (one_in(t->wait_one_in)) {
        t->is_waiting = true;
        result = HTTP_PULL_WAIT;
    } else {
        result = give_slice(t, ret_slice);
    }
    leave();
    return result;
}

static void recall(struct http_source *source, uint64_t unsent)
{
    struct turn *t = container_of(source, struct turn, source);
    must(t->x != NULL && unsent <= t->given, "a wrong recall");
    t->given -= (uint32_t)unsent;
    t->from_memory = (uint32_t)unsent;
    t->is_waiting = false;
    t->source_ended = false;
}

// Sets what the reply must and may say about the end of the connection, as the door promises it.
static void expect_close(struct turn *t)
{
    bool has_body = t->framing == BY_CHUNKS || (t->framing == BY_LENGTH && t->body_len > 0);
    bool keep = t->is_http10 ? t->asks_keep_alive : !t->asks_close;
    bool unframed = t->kind == BY_SOURCE && !t->has_length && t->is_http10 && !t->is_head;
    t->continue_due = t->expects && (!has_body || t->body_started);
    t->must_close = t->closes || !keep || unframed;
    if (has_body && !(t->sink_ended && !t->sink_failed)) {
        bool is_long = t->framing == BY_CHUNKS || t->body_len - t->got > HTTP_DRAIN_MAX;
        t->must_close |= (is_long && !t->sink_failed) || (t->expects && !t->continue_due);
        t->may_close = is_long; // more may have been thrown away since its sink failed
    }
    t->must_close |= t->flaw == BAD_CHUNK && t->sink_ended && !t->sink_failed;
    t->may_close |= t->must_close || t->flaw == BAD_CHUNK;
}

static void reply(struct turn *t)
{
    struct arena *arena = http_exchange_arena(t->x);
    struct headers *headers = arena_alloc(arena, sizeof(*headers));
    struct http_reply r = {.status = t->status, .reason = "Why", .headers = headers};
    char id[32];
    int id_len = snprintf(id, sizeof(id), "%u/%u", t->talk->number, t->index);
    *headers = (struct headers){0};
    must(headers_add(headers, arena, SPAN("X-Id"),
                     arena_copy(arena, (struct span){id, (size_t)id_len})),
         "headers");
    r.close = t->closes;
    r.has_length = t->has_length && t->kind != BY_NOTHING;
    r.length = t->reply_len;
    r.no_length = t->kind == BY_NOTHING;
    if (t->kind == BY_BODY) {
        char *bytes = arena_alloc(arena, t->reply_len + 1);
        for (uint32_t i = 0; i < t->reply_len; i++) {
            bytes[i] = reply_byte(t, i);
        }
        r.body = (struct span){bytes, t->reply_len};
    } else if (t->kind != BY_NOTHING) {
        r.source = &t->source;
    }
    schedule_note("  talk %u turn %u: replies %u, %u bytes, %s", t->talk->number, t->index,
                  t->status, t->reply_len, t->closes ? "closes" : "");
    t->has_replied = true;
    expect_close(t);
    if (t->source_cut_at != NEVER && r.source != NULL && !t->is_head) {
        t->may_be_cut = true;
    }
    http_reply_start(t->x, &r);
}

static void start_body(struct turn *t)
{
    t->body_started = true;
    http_body_start(t->x, &t->sink);
}

static enum err on_data(struct http_sink *sink, struct span data)
{
    struct turn *t = container_of(sink, struct turn, sink);
    enum err err = ERR_OK;
    enter();
    must(t->x != NULL && !t->sink_ended && !t->is_paused, "data at a wrong time");
    must(data.len > 0 && data.len <= t->body_len - t->got, "more data than there is");
    must(memcmp(data.ptr, at.lure + t->got, data.len) == 0, "wrong data");
    t->got += (uint32_t)data.len;
    if (t->got > t->sink_fails_at) {
        t->sink_failed = true;
        err = ERR_BAD_DIGEST;
    } else if (one_in(t->pause_one_in)) {
        t->is_paused = true;
        http_body_pause(t->x);
    }
    if (t->reply_when == AT_BODY && t->got >= t->reply_at && !t->has_replied) {
        reply(t);
    }
    leave();
    return err;
}

static void on_end(struct http_sink *sink, enum err err)
{
    struct turn *t = container_of(sink, struct turn, sink);
    enter();
    schedule_note("  talk %u turn %u: body ends, %u bytes, %s", t->talk->number, t->index, t->got,
                  error_name(err));
    must(t->x != NULL && !t->sink_ended, "the body ends twice");
    must(err != ERR_OK || (t->got == t->body_len && t->flaw == FLAWLESS), "a body is not whole");
    must(err == ERR_OK || t->flaw == BAD_CHUNK || t->sink_failed, "a good body fails");
    t->sink_ended = true;
    if (!t->has_replied && (t->reply_when == AT_BODY || t->reply_when == AT_END)) {
        reply(t);
    }
    leave();
}

static struct turn *turn_of_request(const struct http_request *r)
{
    unsigned number, index;
    char text[64];
    snprintf(text, sizeof(text), "%.*s", (int)min_u64(r->target.len, 60), r->target.ptr);
    must(sscanf(text, "/t%u/%u", &number, &index) == 2, "a body was taken for a request: %s", text);
    for (unsigned i = 0; i < at.talk_count; i++) {
        struct talk *talk = &at.talks[i];
        if (talk->number == number) {
            must(index == talk->begun && index < talk->turn_count, "request %u out of order",
                 index);
            must(index == 0 || talk->turns[index - 1].is_done, "request %u before its turn", index);
            return &talk->turns[index];
        }
    }
    schedule_fail(__FILE__, __LINE__, "its talk", "a request of nobody: %s", text);
}

static void on_request(void *ctx, struct http_exchange *x)
{
    const struct http_request *r = http_exchange_request(x);
    (void)ctx;
    enter();
    struct turn *t = turn_of_request(r);
    schedule_note("  talk %u turn %u: begins", t->talk->number, t->index);
    must(t->flaw != BAD_HEAD, "a bad head was believed");
    must(r->is_head == t->is_head && (r->framing == HTTP_BODY_CHUNKS) == (t->framing == BY_CHUNKS),
         "misread");
    must(r->content_length == (t->framing == BY_LENGTH ? t->body_len : 0), "misread");
    must(r->expects_continue == t->expects && r->version_minor == !t->is_http10, "misread");
    t->talk->begun++;
    t->has_begun = true;
    t->x = x;
    t->user.on_done = on_done;
    t->source = (struct http_source){pull, recall};
    t->sink = (struct http_sink){.on_data = on_data, .on_end = on_end};
    http_exchange_set_user(x, &t->user);
    if (t->body_when == AT_ONCE) {
        start_body(t);
    }
    if (t->reply_when == AT_ONCE) {
        reply(t);
    }
    leave();
}

static void on_refused(void *ctx, const struct http_refusal *refusal, struct headers *headers,
                       struct buf *out)
{
    (void)ctx;
    (void)headers;
    buf_append_cstr(out, error_name(refusal->err));
}

static bool reply_is_due(const struct turn *t)
{
    if (t->has_replied || t->reply_when == AT_NO_TIME) {
        return false;
    }
    return t->reply_when == AT_TICK || t->sink_ended || t->body_when == AT_NO_TIME;
}

bool turn_tick(struct turn *t)
{
    bool did = false;
    if (t->x == NULL) {
        return false;
    }
    enter();
    if (t->cut_after > 0 && --t->cut_after == 0) {
        schedule_note("  talk %u turn %u: cut", t->talk->number, t->index);
        t->may_be_cut = true;
        http_reply_cut(t->x);
        leave();
        return true;
    }
    if (t->body_when == AT_TICK && !t->body_started) {
        start_body(t);
        did = true;
    }
    if (reply_is_due(t)) {
        reply(t);
        did = true;
    }
    if (t->is_waiting) {
        t->is_waiting = false;
        http_reply_ready(t->x);
        did = true;
    }
    if (t->is_paused) {
        t->is_paused = false;
        http_body_resume(t->x);
        did = true;
    }
    leave();
    return did;
}

// --- life ----------------------------------------------------------------------------------------

static void make_file(void)
{
    static const char LURE[] = "GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n0\r\n\r\n";
    const char *dir = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof(path), "%s/forebay-schedule-XXXXXX", dir == NULL ? "/tmp" : dir);
    at.file = mkstemp(path);
    must(at.file >= 0, "no file");
    unlink(path);
    at.file_bytes = malloc(FILE_BYTES);
    at.lure = malloc(REQUEST_BODY_MAX);
    for (uint64_t i = 0; i < FILE_BYTES; i++) {
        at.file_bytes[i] = front_pattern(i % (FILE_BYTES / 2));
    }
    for (size_t i = 0; i < REQUEST_BODY_MAX; i++) {
        at.lure[i] = LURE[i % (sizeof(LURE) - 1)];
    }
    must(write(at.file, at.file_bytes, FILE_BYTES) == (ssize_t)FILE_BYTES, "no file");
}

void schedule_open(void)
{
    static char path[128];
    const char *const listen[] = {path, "127.0.0.1:0"};
    struct loop_options loop_options = {
        .worker_count = 1, .engine = DISK_ENGINE_THREADS, .disk_queue_depth = 16};
    struct http_options options = {
        .listen = listen,
        .listen_count = 2,
        .limits.max_connections = 1000,
        .limits.max_inflight = 1000,
        .limits.max_inflight_in_memory = 1000,
        .limits.header_timeout_ms = 60000,
        .limits.idle_timeout_ms = 100000,
        .limits.min_rate_bytes = 1000,
        .min_rate_grace_ms = 80000,
        .handler = {NULL, on_request, on_refused},
    };
    struct buf why;
    snprintf(path, sizeof(path), "unix:/tmp/forebay-schedule-%d", (int)getpid());
    buf_init(&why, 4096);
    must(loop_new(&loop_options, &at.loop, &why) == ERR_OK, "%s", buf_cstr(&why));
    at.worker = loop_worker(at.loop, 0);
    must(http_server_new(at.loop, &options, &at.server, &why) == ERR_OK, "%s", buf_cstr(&why));
    buf_done(&why);
    make_file();
    http_server_start(at.server);
    schedule_turn();
}

void schedule_close(void)
{
    http_server_free(at.server);
    loop_free(at.loop);
    close(at.file);
    free(at.file_bytes);
    free(at.lure);
}

static void on_nothing(struct task *task)
{
    (void)task;
}

void schedule_turn(void)
{
    static struct task task;
    worker_task_init(&task, on_nothing);
    worker_defer(at.worker, &task); // so that the turn does not wait
    loop_turn(at.worker);
}

void schedule_advance(uint64_t us)
{
    clock_test_advance_us(us);
}

unsigned schedule_connections(void)
{
    return http_server_connections(at.server);
}

bool talk_connect(struct talk *talk, bool on_tcp)
{
    int one = 1;
    talk->fd = client_connect(http_server_address(at.server, on_tcp));
    // Sent bytes must arrive at once, because nothing here waits for real time to pass.
    return talk->fd >= 0 && fcntl(talk->fd, F_SETFL, O_NONBLOCK) == 0 &&
           (!on_tcp || setsockopt(talk->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
}

void schedule_begin(struct talk *talks, unsigned count, bool trace)
{
    at.talks = talks;
    at.talk_count = count;
    at.slices = at.releases = 0;
    is_traced = trace;
}

void schedule_end(void)
{
    must(http_server_connections(at.server) == 0, "connections are left");
    must(stats_sum(COUNTER_http_inflight) == 0, "exchanges are left");
    must(at.slices == at.releases, "%lu slices, %lu given back", at.slices, at.releases);
    for (unsigned i = 0; i < at.talk_count; i++) {
        for (unsigned k = 0; k < at.talks[i].turn_count; k++) {
            const struct turn *t = &at.talks[i].turns[k];
            must(!t->has_begun || t->is_done, "talk %u turn %u never ended", i, k);
        }
    }
    at.talk_count = 0;
}
