// SPDX-License-Identifier: Apache-2.0
#include "ask.h"

#include <string.h>

#include "test.h"

static struct proxy_rule rules[] = {{.match = "**"}};
struct live ask_live = {.settings = {.rules = rules, .rule_count = 1}, .refs = 1};
struct proxy ask_proxy;
static struct proxy_worker pw = {.proxy = &ask_proxy, .live = &ask_live};
struct ask ask;

struct origin *ask_origin(unsigned i)
{
    static int origins[2];
    return (struct origin *)(void *)&origins[i];
}

void ask_init(const char *method, const char *target)
{
    doors_open();
    memset(&ask, 0, sizeof(ask));
    chunk_budget_init(64u << 20);
    buf_init(&ask.uploaded, 64u << 20);
    buf_init(&ask.received, 64u << 20);
    ask_proxy.options.default_origin = ask_origin(0);
    ask.arena = arena_new(1u << 20);
    ask.http.method = span_from_cstr(method);
    ask.http.is_head = strcmp(method, "HEAD") == 0;
    ask.http.target = span_from_cstr(target);
    ask.r.http = &ask.http;
    ask.r.arena = ask.arena;
    ask.r.pw = &pw;
    ask.r.live = &ask_live;
    ask.r.rule = &rules[0];
    ask.r.origin = ask_origin(0);
}

void ask_header(const char *name, const char *value)
{
    cr_assert(
        headers_add(&ask.http.headers, ask.arena, span_from_cstr(name), span_from_cstr(value)));
}

void ask_body_of(uint64_t n)
{
    ask.http.framing = HTTP_BODY_LENGTH;
    ask.http.content_length = n;
}

void ask_start(void)
{
    static struct s3_domains domains;
    cr_assert_eq(s3_request_parse(ask.arena, ask.http.method, SPAN("127.0.0.1"), ask.http.target,
                                  &ask.http.headers, &domains, &ask.r.s3),
                 ERR_OK);
    ask.r.origin_bucket = ask.r.s3.bucket;
    cr_assert_eq(s3_effects_find(ask.arena, &ask.r.s3, &ask.http.headers, ask.r.origin_bucket,
                                 &ask.r.effects),
                 ERR_OK);
    (void)serve_pass_step_start(&ask.r);
}

void ask_finish(void)
{
    if (ask.r.pass != NULL) {
        ask_exchange_ends();
    }
    cr_assert_leq(doors.dead_count, 1);
    doors_close();
    cr_assert_eq(chunk_budget_used_bytes(), 0);
    buf_done(&ask.uploaded);
    buf_done(&ask.received);
    arena_free(ask.arena);
}

void ask_give(const char *data)
{
    (void)doors.sink->on_data(doors.sink, span_from_cstr(data));
}

void ask_give_end(void)
{
    doors.sink->on_end(doors.sink, ERR_OK);
}

enum http_pull ask_reads(void)
{
    struct http_slice slice;
    enum http_pull got;
    cr_assert_not_null(doors.reply.source);
    while ((got = doors.reply.source->pull(doors.reply.source, &slice)) == HTTP_PULL_SLICE) {
        buf_append_span(&ask.received, slice.bytes);
        slice.release(slice.release_ctx);
    }
    return got;
}

void ask_exchange_ends(void)
{
    serve_pass_done(&ask.r);
    cr_assert_null(ask.r.pass);
}

bool ask_reply_has(const char *header)
{
    return headers_count(doors.reply.headers, span_from_cstr(header)) > 0;
}

enum err ask_upload(void)
{
    char buf[4096];
    size_t len;
    enum err err;
    while ((err = doors_relay_upload(buf, sizeof(buf), &len)) == ERR_OK && len > 0) {
        buf_append(&ask.uploaded, buf, len);
    }
    return err;
}

void ask_origin_head(unsigned status, int64_t length)
{
    cr_assert_eq(doors_relay_head(status, length), ERR_OK);
}

void ask_origin_body(const char *data)
{
    cr_assert_eq(doors.relay->on_body(doors.relay, span_from_cstr(data)), ERR_OK);
}

void ask_all_ready(void)
{
    do {
        while (doors.ready_count < doors.begun_count) {
            struct key_write *kw = doors.begun[doors.ready_count++];
            kw->on_ready(kw);
        }
    } while (doors_turn());
}

void ask_all_ended(void)
{
    do {
        while (doors.ended_count < doors.ending_count) {
            struct key_write *kw = doors.ending[doors.ended_count++];
            kw->on_ended(kw);
        }
    } while (doors_turn());
}
