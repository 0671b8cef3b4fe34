// SPDX-License-Identifier: Apache-2.0
// Pass-through in every order that matters: the origin is asked after the invalidation and the
// client answered after the second one; a body that is wrong never becomes whole at the origin;
// whoever leaves, the write is closed.
#include "proxy/pass_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

// The neighbours of serve_pass.c are the test's: it says when each of them answers.
static struct {
    struct http_sink *sink;
    bool body_paused, cut;
    unsigned replies, failures, ready_calls;
    struct http_reply reply;
    enum err fail_err;
    struct origin_relay *relay;
    struct origin *relay_origin;
    bool relay_running, relay_cancelled, relay_paused;
    struct key_write *begun[1100], *ending[1100];
    unsigned begun_count, ending_count;
    struct bucket_write *bucket_begun, *bucket_ending;
    void *to_free[8];
    unsigned to_free_count;
    struct buf uploaded, received;
    struct arena *relay_arena;
} fake;

static void fake_body_start(struct http_exchange *x, struct http_sink *sink)
{
    (void)x;
    fake.sink = sink;
}
static void fake_body_pause(struct http_exchange *x)
{
    (void)x;
    fake.body_paused = true;
}
static void fake_body_resume(struct http_exchange *x)
{
    (void)x;
    fake.body_paused = false;
}
static void fake_reply_start(struct http_exchange *x, const struct http_reply *reply)
{
    (void)x;
    fake.replies++;
    fake.reply = *reply;
}
static void fake_reply_ready(struct http_exchange *x)
{
    (void)x;
    fake.ready_calls++;
}
static void fake_reply_cut(struct http_exchange *x)
{
    (void)x;
    fake.cut = true;
}
static void fake_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r)
{
    (void)w;
    cr_assert(!fake.relay_running);
    fake.relay = r;
    fake.relay_origin = origin;
    fake.relay_running = true;
    fake.relay_arena = arena_new(1u << 20);
}
static void fake_relay_pause(struct origin_relay *r)
{
    (void)r;
    fake.relay_paused = true;
}
static void fake_relay_resume(struct origin_relay *r)
{
    (void)r;
    fake.relay_paused = false;
}
static void fake_relay_resume_upload(struct origin_relay *r)
{
    cr_assert_eq(r, fake.relay);
}
static void fake_relay_cancel(struct origin_relay *r)
{
    cr_assert_eq(r, fake.relay);
    cr_assert(!fake.relay_cancelled);
    fake.relay_cancelled = true;
}
static void fake_begin(struct fill_worker *pw, struct key_write *kw)
{
    (void)pw;
    fake.begun[fake.begun_count++] = kw;
}
static void fake_end(struct fill_worker *pw, struct key_write *kw)
{
    (void)pw;
    fake.ending[fake.ending_count++] = kw;
}
static void fake_bucket_begin(struct fill_worker *pw, struct bucket_write *bw,
                              const struct origin *origin, struct span origin_bucket)
{
    (void)pw, (void)origin;
    cr_assert(span_equal_cstr(origin_bucket, "b"));
    bw->err = ERR_OK;
    fake.bucket_begun = bw;
}
static void fake_bucket_end(struct fill_worker *pw, struct bucket_write *bw)
{
    (void)pw;
    fake.bucket_ending = bw;
}
static enum step_result fake_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    (void)detail;
    fake.failures++;
    fake.fail_err = err;
    r->err = err;
    return STEP_DONE;
}
static void fake_common_headers(struct request *r, struct headers *headers)
{
    cr_assert(headers_add(headers, r->arena, SPAN("x-amz-request-id"), SPAN("1")));
}
// Each at an endpoint of its own.
static const char *fake_endpoint(const struct origin *origin)
{
    static char texts[2][32];
    static unsigned next;
    char *text = texts[next++ % 2];
    (void)snprintf(text, sizeof(texts[0]), "%p", (const void *)origin);
    return text;
}
static struct object_key *fake_object_key(struct request *r, struct origin *origin,
                                          struct span realm, struct span bucket, struct span key,
                                          const struct proxy_rule *rule)
{
    (void)r, (void)origin, (void)rule, (void)bucket;
    struct object_key *k = calloc(1, sizeof(*k) + key.len + 1);
    char *copy = (char *)(k + 1);
    memcpy(copy, key.ptr != NULL ? key.ptr : "", key.len);
    k->key = (struct span){copy, key.len};
    k->realm = realm;
    return k;
}
static void fake_key_unref(struct object_key *k)
{
    free(k);
}
static void fake_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr)
{
    (void)w;
    (void)fn;
    fake.to_free[fake.to_free_count++] = ptr;
}

#define http_body_start fake_body_start
#define http_body_pause fake_body_pause
#define http_body_resume fake_body_resume
#define http_reply_start fake_reply_start
#define http_reply_ready fake_reply_ready
#define http_reply_cut fake_reply_cut
#define origin_relay_start fake_relay_start
#define origin_relay_pause fake_relay_pause
#define origin_relay_resume fake_relay_resume
#define origin_relay_resume_upload fake_relay_resume_upload
#define origin_relay_cancel fake_relay_cancel
#define invalidate_begin fake_begin
#define invalidate_end fake_end
#define invalidate_bucket_begin fake_bucket_begin
#define invalidate_bucket_end fake_bucket_end
#define request_fail fake_fail
#define request_common_headers fake_common_headers
#define request_object_key_in fake_object_key
#define origin_endpoint fake_endpoint
#define object_key_unref fake_key_unref
#define worker_free_later fake_free_later
#define list_cache_find(pw, r) NULL
#define list_cache_begin(pw, r) NULL
#define list_fill_append(fill, data) ((void)(data))
#define list_fill_commit(fill, headers) ((void)(headers))
#define list_fill_abort(fill) ((void)(fill))
#define list_page_unref(page) ((void)(page))
#define list_page_body(page) ((struct span){NULL, 0})
#define list_page_headers(page) NULL
#define origin_fetch_pause(fetch) ((void)(fetch))
#define origin_fetch_resume(fetch) ((void)(fetch))
#define origin_fetch_cancel(fetch) ((void)(fetch))
#define pass_direct_wanted(r) false
#define pass_direct_start(p) ERR_OK
#define pass_state_new test_pass_state_new
#define pass_state_free test_pass_state_free
#define pass_state_copy_span test_pass_state_copy_span
#define pass_state_copy_request test_pass_state_copy_request
#define pass_state_copy_headers test_pass_state_copy_headers
#define pass_state_check test_pass_state_check
#define pass_origin_pause test_pass_origin_pause
#define pass_origin_resume test_pass_origin_resume
#define pass_origin_cancel test_pass_origin_cancel
#define pass_answer_headers test_pass_answer_headers
#define pass_answer_start test_pass_answer_start
#define pass_answer_take test_pass_answer_take
#define pass_answer_is_bodiless test_pass_answer_is_bodiless
#define pass_answer_list_end test_pass_answer_list_end
#define pass_upload_take test_pass_upload_take
#define pass_upload_wake test_pass_upload_wake
#define pass_upload_drop test_pass_upload_drop
#define pass_outcome_settle test_pass_outcome_settle
#define pass_outcome_refuse test_pass_outcome_refuse
#define pass_outcome_free_unneeded test_pass_outcome_free_unneeded
#define pass_relay_begin test_pass_relay_begin
#define pass_receive_start test_pass_receive_start
#define pass_sources_send test_pass_sources_send
#define pass_keys_of_head test_pass_keys_of_head
#define pass_keys_of_form test_pass_keys_of_form
#define pass_keys_of_body test_pass_keys_of_body
#define pass_keys_of_new_realms test_pass_keys_of_new_realms
#define pass_relay_begin_late test_pass_relay_begin_late
#define serve_pass_step_start test_pass_start
#define serve_pass_done test_pass_done
struct pass_state *pass_state_new(struct request *r);
void pass_state_free(void *ptr);
bool pass_state_copy_span(struct arena *arena, struct span *s);
bool pass_state_copy_request(struct arena *arena, const struct s3_request *from,
                             struct s3_request *ret_to);
bool pass_state_copy_headers(struct arena *arena, const struct headers *from, struct headers *to);
void pass_state_check(const struct pass_state *p);
void pass_origin_pause(struct pass_state *p);
void pass_origin_resume(struct pass_state *p);
void pass_origin_cancel(struct pass_state *p);
void pass_answer_headers(struct pass_state *p);
void pass_answer_start(struct pass_state *p);
void pass_answer_take(struct pass_state *p, struct span data);
bool pass_answer_is_bodiless(const struct pass_state *p);
void pass_answer_list_end(struct pass_state *p, bool is_good);
enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len) MUST_USE;
void pass_upload_wake(struct pass_state *p);
void pass_upload_drop(struct pass_state *p);
void pass_outcome_settle(struct pass_state *p);
void pass_outcome_refuse(struct pass_state *p, enum err err, struct span message);
void pass_outcome_free_unneeded(struct pass_state *p);
void pass_relay_begin(struct pass_state *p);
void pass_relay_begin_late(struct pass_state *p);
void pass_keys_of_new_realms(struct pass_state *p);
void pass_receive_start(struct pass_state *p);
enum err pass_sources_send(struct pass_state *p, struct span *ret_message) MUST_USE;
#include "../../../src/proxy/pass_answer.c"
#include "../../../src/proxy/pass_keys.c"
#include "../../../src/proxy/pass_origin.c"
#include "../../../src/proxy/pass_outcome.c"
#include "../../../src/proxy/pass_receive.c"
#include "../../../src/proxy/pass_relay.c"
#include "../../../src/proxy/pass_sources.c"
#include "../../../src/proxy/pass_state.c"
#include "../../../src/proxy/pass_upload.c"
#include "../../../src/proxy/serve_pass.c"

static struct proxy_rule rules[] = {{.match = "**"}};
static struct proxy proxy = {.rules = rules, .options.rule_count = 1};
static struct proxy_worker pw = {.proxy = &proxy};
static int origins[2];

static struct {
    struct arena *arena;
    struct http_request http;
    struct request r;
} ask;

static struct origin *origin_number(unsigned i)
{
    return (struct origin *)(void *)&origins[i];
}

static void ask_init(const char *method, const char *target)
{
    memset(&fake, 0, sizeof(fake));
    memset(&ask, 0, sizeof(ask));
    chunk_budget_init(64u << 20);
    buf_init(&fake.uploaded, 64u << 20);
    buf_init(&fake.received, 64u << 20);
    proxy.options.default_origin = origin_number(0);
    ask.arena = arena_new(1u << 20);
    ask.http.method = span_from_cstr(method);
    ask.http.is_head = strcmp(method, "HEAD") == 0;
    ask.http.target = span_from_cstr(target);
    ask.r.http = &ask.http;
    ask.r.arena = ask.arena;
    ask.r.pw = &pw;
    ask.r.rule = &rules[0];
    ask.r.origin = origin_number(0);
}

static void header(const char *name, const char *value)
{
    cr_assert(
        headers_add(&ask.http.headers, ask.arena, span_from_cstr(name), span_from_cstr(value)));
}

static void body_of(uint64_t n)
{
    ask.http.has_content_length = true;
    ask.http.content_length = n;
    ask.http.has_body = n > 0;
}

static void start(void)
{
    static struct s3_domains domains;
    cr_assert_eq(s3_request_parse(ask.arena, ask.http.method, SPAN("127.0.0.1"), ask.http.target,
                                  &ask.http.headers, &domains, &ask.r.s3),
                 ERR_OK);
    ask.r.origin_bucket = ask.r.s3.bucket;
    cr_assert_eq(s3_effects_find(ask.arena, &ask.r.s3, &ask.http.headers, ask.r.origin_bucket,
                                 &ask.r.effects),
                 ERR_OK);
    (void)test_pass_start(&ask.r);
}

static void give(const char *data)
{
    (void)fake.sink->on_data(fake.sink, span_from_cstr(data));
}

static void give_end(void)
{
    fake.sink->on_end(fake.sink, ERR_OK);
}

// The origin reads what it may; ERR_OK at the end of the body.
static enum err upload(void)
{
    char buf[4096];
    size_t len;
    enum err err;
    while ((err = fake.relay->on_upload(fake.relay, buf, sizeof(buf), &len)) == ERR_OK && len > 0) {
        buf_append(&fake.uploaded, buf, len);
    }
    return err;
}

static void all_ready(void)
{
    unsigned n = fake.begun_count;
    for (unsigned i = 0; i < n; i++) {
        fake.begun[i]->on_ready(fake.begun[i]);
    }
}

static void all_ended(void)
{
    unsigned n = fake.ending_count;
    for (unsigned i = 0; i < n; i++) {
        fake.ending[i]->on_ended(fake.ending[i]);
    }
}

static void origin_head(unsigned status, int64_t length)
{
    fake.relay->status = status;
    fake.relay->has_length = length >= 0;
    fake.relay->length = length >= 0 ? (uint64_t)length : 0;
    fake.relay->arena = fake.relay_arena;
    cr_assert(
        headers_add(&fake.relay->headers_answered, fake.relay_arena, SPAN("ETag"), SPAN("\"e\"")));
    cr_assert(
        headers_add(&fake.relay->headers_answered, fake.relay_arena, SPAN("Server"), SPAN("x")));
    cr_assert_eq(fake.relay->on_head(fake.relay), ERR_OK);
}

static void origin_body(const char *data)
{
    cr_assert_eq(fake.relay->on_body(fake.relay, span_from_cstr(data)), ERR_OK);
}

static void origin_end(enum err err)
{
    cr_assert(fake.relay_running);
    fake.relay_running = false;
    fake.relay->on_end(fake.relay, err);
    arena_free(fake.relay_arena);
    fake.relay_arena = NULL;
}

// The client takes what there is; the last answer of the source.
static enum http_pull client_reads(void)
{
    struct http_slice slice;
    enum http_pull got;
    cr_assert_not_null(fake.reply.source);
    while ((got = fake.reply.source->pull(fake.reply.source, &slice)) == HTTP_PULL_SLICE) {
        buf_append_span(&fake.received, slice.bytes);
        slice.release(slice.release_ctx);
    }
    return got;
}

static void exchange_ends(void)
{
    test_pass_done(&ask.r);
    cr_assert_null(ask.r.pass);
}

// Everything must have been given back.
static void finish(void)
{
    if (ask.r.pass != NULL) {
        exchange_ends();
    }
    cr_assert(!fake.relay_running);
    for (unsigned i = 0; i < fake.to_free_count; i++) {
        pass_state_free(fake.to_free[i]);
    }
    cr_assert_leq(fake.to_free_count, 1);
    cr_assert_eq(chunk_budget_used_bytes(), 0);
    buf_done(&fake.uploaded);
    buf_done(&fake.received);
    arena_free(ask.arena);
}

static bool reply_has(const char *name)
{
    return headers_count(fake.reply.headers, span_from_cstr(name)) > 0;
}

// A read asks at once, invalidates nothing and streams as the origin sends.
Test(serve_pass, read)
{
    ask_init("GET", "/b/k?acl");
    start();
    cr_assert_eq(fake.begun_count, 0);
    cr_assert(fake.relay_running);
    cr_assert_null(fake.relay->on_upload);
    origin_head(200, 5);
    cr_assert_eq(fake.replies, 1);
    cr_assert_eq(fake.reply.status, 200);
    cr_assert(reply_has("etag"));
    cr_assert(!reply_has("server"));
    origin_body("he");
    cr_assert_eq(client_reads(), HTTP_PULL_WAIT);
    origin_body("llo");
    origin_end(ERR_OK);
    cr_assert_eq(client_reads(), HTTP_PULL_END);
    cr_assert(span_equal_cstr(buf_span(&fake.received), "hello"));
    finish();
}

// A body that breaks off is never ended cleanly.
Test(serve_pass, read_broken)
{
    ask_init("GET", "/b/k?acl");
    start();
    origin_head(200, -1);
    origin_body("he");
    origin_end(ERR_ORIGIN_RESET);
    cr_assert_eq(client_reads(), HTTP_PULL_CUT);
    finish();
}

// Failures before the head become S3 errors, gateway statuses too.
Test(serve_pass, read_failures)
{
    ask_init("GET", "/b/k?acl");
    start();
    origin_end(ERR_ORIGIN_CONNECT);
    cr_assert_eq(fake.fail_err, ERR_ORIGIN_CONNECT);
    finish();

    static const unsigned STATUSES[] = {408, 429, 502, 504};
    for (size_t i = 0; i < ARRAY_LEN(STATUSES); i++) {
        ask_init("GET", "/b/k?acl");
        start();
        origin_head(STATUSES[i], 0);
        cr_assert(fake.relay_cancelled);
        origin_end(ERR_CANCELLED);
        cr_assert_eq(fake.fail_err, ERR_ORIGIN_5XX);
        cr_assert_eq(fake.replies, 0);
        finish();
    }
}

// The origin is not asked before the old record is gone; the client hears nothing before the second
// invalidation.
Test(serve_pass, write_order)
{
    ask_init("PUT", "/b/k");
    header("x-amz-content-sha256",
           "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    body_of(5);
    start();
    cr_assert_eq(fake.begun_count, 1);
    cr_assert(span_equal_cstr(fake.begun[0]->key->key, "k"));
    cr_assert(!fake.relay_running);
    give("hello"); // arrives before the origin may be asked
    give_end();
    all_ready();
    cr_assert(fake.relay_running);
    cr_assert_eq(fake.relay->body, ORIGIN_BODY_HASH);
    cr_assert_eq(upload(), ERR_OK);
    cr_assert(span_equal_cstr(buf_span(&fake.uploaded), "hello"));
    origin_head(200, 0);
    cr_assert_eq(fake.ending_count, 1);
    origin_end(ERR_OK);
    cr_assert_eq(fake.replies, 0);
    all_ended();
    cr_assert_eq(fake.replies, 1);
    cr_assert_eq(fake.reply.status, 200);
    cr_assert(!fake.reply.close);
    finish();
    cr_assert_eq(fake.ending_count, 1);
}

// Nothing more than a refused write's first bytes reaches the origin, and the client gets S3's
// error.
Test(serve_pass, write_wrong_hash)
{
    ask_init("PUT", "/b/k");
    header("x-amz-content-sha256",
           "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    body_of(5);
    start();
    all_ready();
    give("jello");
    cr_assert_eq(upload(), ERR_AGAIN);
    cr_assert_eq(fake.uploaded.len, 4);
    give_end();
    cr_assert(fake.relay_cancelled);
    cr_assert_eq(upload(), ERR_CONTENT_SHA256_MISMATCH);
    cr_assert_eq(fake.failures, 0);
    origin_end(ERR_CANCELLED);
    cr_assert_eq(fake.ending_count, 1);
    all_ended();
    cr_assert_eq(fake.failures, 1);
    cr_assert_eq(fake.fail_err, ERR_CONTENT_SHA256_MISMATCH);
    finish();
}

// What fails while the invalidation is still under way never asks the origin, but closes the write.
Test(serve_pass, write_refused_early)
{
    ask_init("PUT", "/b/k");
    body_of(5);
    start();
    fake.sink->on_end(fake.sink, ERR_INCOMPLETE_BODY);
    cr_assert_eq(fake.failures, 0);
    all_ready();
    cr_assert(!fake.relay_running);
    cr_assert_eq(fake.ending_count, 1);
    all_ended();
    cr_assert_eq(fake.fail_err, ERR_INCOMPLETE_BODY);
    finish();
}

// Every outcome closes the write: an error of the origin, a lost connection, a time-out.
Test(serve_pass, write_failures)
{
    ask_init("DELETE", "/b/k");
    start();
    all_ready();
    origin_end(ERR_ORIGIN_TIMEOUT);
    cr_assert_eq(fake.ending_count, 1);
    cr_assert_eq(fake.failures, 0);
    all_ended();
    cr_assert_eq(fake.fail_err, ERR_ORIGIN_TIMEOUT);
    finish();

    ask_init("DELETE", "/b/k");
    start();
    all_ready();
    origin_head(403, 3);
    origin_body("<E>");
    origin_end(ERR_OK);
    cr_assert_eq(fake.replies, 0);
    all_ended();
    cr_assert_eq(fake.reply.status, 403);
    cr_assert_eq(client_reads(), HTTP_PULL_END);
    cr_assert(span_equal_cstr(buf_span(&fake.received), "<E>"));
    finish();
}

// A client that leaves in mid-body: the upload is cut and the write closed once the origin is
// through.
Test(serve_pass, client_leaves_in_body)
{
    ask_init("PUT", "/b/k");
    body_of(5);
    start();
    all_ready();
    give("he");
    (void)upload();
    exchange_ends();
    cr_assert(fake.relay_cancelled);
    cr_assert_eq(fake.ending_count, 0);
    origin_end(ERR_CANCELLED);
    cr_assert_eq(fake.ending_count, 1);
    cr_assert_eq(fake.to_free_count, 0);
    all_ended();
    cr_assert_eq(fake.to_free_count, 1);
    finish();
}

// A client that leaves when the origin has everything: the write runs to its end, unpaused, and is
// closed.
Test(serve_pass, client_leaves_after_body)
{
    ask_init("DELETE", "/b/k");
    start();
    all_ready();
    exchange_ends();
    cr_assert(!fake.relay_cancelled);
    origin_head(204, 0);
    cr_assert_eq(fake.ending_count, 1);
    origin_end(ERR_OK);
    all_ended();
    cr_assert_eq(fake.to_free_count, 1);
    finish();
}

// A client that leaves while the invalidation is under way: nothing is asked, the write is closed.
Test(serve_pass, client_leaves_before_relay)
{
    ask_init("DELETE", "/b/k");
    start();
    exchange_ends();
    cr_assert_eq(fake.to_free_count, 0);
    all_ready();
    cr_assert(!fake.relay_running);
    cr_assert_eq(fake.ending_count, 1);
    all_ended();
    cr_assert_eq(fake.to_free_count, 1);
    finish();
}

// A 200 that may still turn into an error is relayed as it comes; its last byte waits for the
// invalidation.
Test(serve_pass, early_200)
{
    ask_init("POST", "/b/k?uploadId=1");
    body_of(3);
    start();
    all_ready();
    give("<C>");
    give_end();
    cr_assert_eq(upload(), ERR_OK);
    origin_head(200, -1);
    cr_assert_eq(fake.replies, 1);
    origin_body(" ");
    cr_assert_eq(client_reads(), HTTP_PULL_WAIT);
    origin_body("  ");
    cr_assert_eq(client_reads(), HTTP_PULL_WAIT);
    cr_assert(span_equal_cstr(buf_span(&fake.received), "  "));
    cr_assert_eq(fake.ending_count, 0);
    origin_body("<Error/>");
    origin_end(ERR_OK);
    cr_assert_eq(fake.ending_count, 1);
    cr_assert_eq(client_reads(), HTTP_PULL_WAIT);
    cr_assert(span_equal_cstr(buf_span(&fake.received), "   <Error/"));
    all_ended();
    cr_assert_eq(client_reads(), HTTP_PULL_END);
    cr_assert(span_equal_cstr(buf_span(&fake.received), "   <Error/>"));
    finish();
}

// An answer before the end of the body ends the upload and the connection.
Test(serve_pass, early_answer)
{
    ask_init("PUT", "/b/k?partNumber=1&uploadId=u");
    body_of(100);
    start();
    cr_assert_eq(fake.begun_count, 0); // a part changes no object
    give("some");
    (void)upload();
    origin_head(403, 1);
    cr_assert(fake.reply.close);
    cr_assert_eq(fake.sink->on_data(fake.sink, SPAN("more")), ERR_CANCELLED);
    cr_assert_eq(upload(), ERR_OK);
    cr_assert_eq(fake.uploaded.len, 4);
    origin_body("e");
    origin_end(ERR_ORIGIN_RESET); // the origin closed; its answer is whole
    cr_assert_eq(client_reads(), HTTP_PULL_END);
    finish();
}

// A form with a signed policy goes out without a signature of ours, for the origin to judge; where
// clients sign with our keys it is refused.
Test(serve_pass, signed_form)
{
    static const char form[] = "--B\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n"
                               "--B\r\nContent-Disposition: form-data; name=\"policy\"\r\n\r\n"
                               "e30=\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; "
                               "filename=\"f\"\r\n\r\nbytes\r\n--B--\r\n";
    for (int verified = 0; verified < 2; verified++) {
        ask_init("POST", "/b");
        ask.r.principal.verified = verified != 0;
        header("Content-Type", "multipart/form-data; boundary=B");
        body_of(sizeof(form) - 1);
        start();
        give(form);
        if (verified != 0) {
            cr_assert_eq(fake.fail_err, ERR_INVALID_ARGUMENT);
            cr_assert_eq(fake.begun_count, 0);
            finish();
            continue;
        }
        cr_assert_eq(fake.begun_count, 1);
        give_end();
        all_ready();
        cr_assert(fake.relay->is_unsigned);
        cr_assert_eq(upload(), ERR_OK);
        cr_assert(span_equal_cstr(buf_span(&fake.uploaded), form));
        origin_head(204, 0);
        origin_end(ERR_OK);
        all_ended();
        cr_assert_eq(fake.reply.status, 204);
        finish();
    }
}

static const char *md5_of(const char *text)
{
    static char base64[64];
    struct s3_checksum_state *state = s3_checksum_new(S3_CHECKSUM_MD5);
    s3_checksum_update(state, span_from_cstr(text));
    s3_checksum_final(state, base64);
    s3_checksum_free(state);
    return base64;
}

// Every key of a batch is invalidated before the origin hears of it, entities decoded; what goes on
// is what was understood, under digests of its own.
Test(serve_pass, batch_delete)
{
    static const char sent[] =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a&amp;b</Key>"
        "</Object><Object><Key>c</Key></Object></Delete>";
    static const char body[] = "<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key>"
                               "</Object></Delete>";
    ask_init("POST", "/b?delete");
    body_of(sizeof(body) - 1);
    start();
    give(body);
    cr_assert_eq(fake.begun_count, 0);
    give_end();
    cr_assert_eq(fake.begun_count, 2);
    cr_assert(span_equal_cstr(fake.begun[0]->key->key, "a&b"));
    cr_assert(span_equal_cstr(fake.begun[1]->key->key, "c"));
    fake.begun[0]->on_ready(fake.begun[0]);
    cr_assert(!fake.relay_running);
    fake.begun[1]->on_ready(fake.begun[1]);
    cr_assert(fake.relay_running);
    cr_assert_eq(upload(), ERR_OK);
    cr_assert(span_equal_cstr(buf_span(&fake.uploaded), sent));
    struct span md5;
    cr_assert(headers_get(fake.relay->headers, SPAN("content-md5"), &md5));
    cr_assert(span_equal_cstr(md5, md5_of(sent)), "%.*s", (int)md5.len, md5.ptr);
    origin_head(200, 4);
    origin_body("<ok>");
    origin_end(ERR_OK);
    cr_assert_eq(fake.ending_count, 2);
    cr_assert_eq(client_reads(), HTTP_PULL_WAIT);
    all_ended();
    cr_assert_eq(client_reads(), HTTP_PULL_END);
    finish();

    ask_init("POST", "/b?delete");
    header("content-md5", md5_of(body));
    header("x-amz-checksum-crc32", "8QJryg==");
    header("x-amz-sdk-checksum-algorithm", "CRC32");
    header("x-amz-checksum-xxhash64", "AAAAAAAAAAA=");
    body_of(sizeof(body) - 1);
    start();
    give(body);
    give_end();
    all_ready();
    cr_assert_eq(headers_count(fake.relay->headers, SPAN("content-md5")), 1);
    cr_assert(headers_get(fake.relay->headers, SPAN("content-md5"), &md5));
    cr_assert(span_equal_cstr(md5, md5_of(sent)));
    cr_assert(headers_get(fake.relay->headers, SPAN("x-amz-checksum-crc32"), &md5));
    cr_assert(span_equal_cstr(md5, "wWu3Hw=="), "%.*s", (int)md5.len, md5.ptr);
    cr_assert_eq(headers_count(fake.relay->headers, SPAN("x-amz-sdk-checksum-algorithm")), 1);
    cr_assert_eq(headers_count(fake.relay->headers, SPAN("x-amz-checksum-xxhash64")), 0);
    origin_head(200, 0);
    origin_end(ERR_OK);
    all_ended();
    finish();

    static const struct {
        const char *name, *value;
        enum err err;
    } digests[] = {{"Content-MD5", "client's own", ERR_INVALID_DIGEST},
                   {"Content-MD5", "E1RLOqMr77FCET3kXHJ9Xx==", ERR_BAD_DIGEST},
                   {"x-amz-checksum-crc32", "AAAAAA==", ERR_BAD_DIGEST}};
    for (size_t i = 0; i < ARRAY_LEN(digests); i++) {
        ask_init("POST", "/b?delete");
        header(digests[i].name, digests[i].value);
        body_of(sizeof(body) - 1);
        start();
        give(body);
        give_end();
        cr_assert_eq(fake.fail_err, digests[i].err);
        cr_assert_eq(fake.begun_count, 0);
        finish();
    }

    ask_init("POST", "/b?delete");
    body_of(8);
    start();
    give("<Delete>");
    give_end();
    cr_assert_eq(fake.fail_err, ERR_MALFORMED_XML);
    cr_assert_eq(fake.begun_count, 0);
    finish();
}

// A form's key is invalidated before its first byte goes on; a form without one goes nowhere.
Test(serve_pass, form)
{
    static const char head[] =
        "--B\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nup/k\r\n";
    static const char tail[] = "--B\r\nContent-Disposition: form-data; name=\"file\"; "
                               "filename=\"f\"\r\n\r\nbytes\r\n--B--\r\n";
    ask_init("POST", "/b");
    header("Content-Type", "multipart/form-data; boundary=B");
    body_of(sizeof(head) + sizeof(tail) - 2);
    start();
    give(head);
    cr_assert_eq(fake.begun_count, 0);
    give(tail);
    cr_assert_eq(fake.begun_count, 1);
    cr_assert(span_equal_cstr(fake.begun[0]->key->key, "up/k"));
    give_end();
    cr_assert(!fake.relay_running);
    all_ready();
    cr_assert_eq(upload(), ERR_OK);
    cr_assert_eq(fake.uploaded.len, sizeof(head) + sizeof(tail) - 2);
    cr_assert(!fake.relay->is_unsigned);
    origin_head(204, 0);
    origin_end(ERR_OK);
    all_ended();
    cr_assert_eq(fake.reply.status, 204);
    finish();

    ask_init("POST", "/b");
    header("Content-Type", "multipart/form-data; boundary=B");
    body_of(sizeof(tail) - 1);
    start();
    give(tail);
    cr_assert_eq(fake.fail_err, ERR_INVALID_ARGUMENT);
    finish();
}

// A rename drops both names.
Test(serve_pass, rename)
{
    ask_init("PUT", "/b/new?renameObject");
    header("x-amz-rename-source", "/b/old%20name");
    body_of(0);
    start();
    cr_assert_eq(fake.begun_count, 3);
    cr_assert(span_equal_cstr(fake.begun[0]->key->key, "new"));
    cr_assert(span_equal_cstr(fake.begun[1]->key->key, "old name"));
    cr_assert(span_equal_cstr(fake.begun[2]->key->key, "b/old name"));
    all_ready();
    origin_end(ERR_NOT_IMPLEMENTED);
    all_ended();
    finish();
}

// What may change any key of a bucket drops all of it before the origin is asked, and again before
// the client is answered; where that cannot be noted, the origin is not asked.
Test(serve_pass, whole_bucket)
{
    static const char *const requests[][2] = {
        {"DELETE", "/b"}, {"POST", "/b?delete&z=1"}, {"PUT", "/b?what"}, {"PATCH", "/b"}};
    for (unsigned i = 0; i < ARRAY_LEN(requests); i++) {
        ask_init(requests[i][0], requests[i][1]);
        start();
        cr_assert_eq(fake.begun_count, 0);
        cr_assert(!fake.relay_running);
        fake.bucket_begun->on_ready(fake.bucket_begun);
        cr_assert(fake.relay_running);
        origin_head(204, 0);
        origin_end(ERR_OK);
        cr_assert_eq(fake.replies, 0);
        cr_assert_eq(fake.bucket_ending, fake.bucket_begun);
        fake.bucket_ending->on_ended(fake.bucket_ending);
        cr_assert_eq(fake.reply.status, 204);
        finish();

        ask_init(requests[i][0], requests[i][1]);
        start();
        fake.bucket_begun->err = ERR_DISK_FULL;
        fake.bucket_begun->on_ready(fake.bucket_begun);
        cr_assert(!fake.relay_running);
        fake.bucket_ending->on_ended(fake.bucket_ending);
        cr_assert_eq(fake.fail_err, ERR_LIMIT);
        finish();
    }
    ask_init("OPTIONS", "/b");
    start();
    cr_assert_null(fake.bucket_begun);
    all_ready();
    origin_head(200, 0);
    origin_end(ERR_OK);
    all_ended();
    finish();
}

// A copy's source is named as its origin knows it, and never taken from another origin.
Test(serve_pass, copy_source)
{
    static struct proxy_bucket buckets[2];
    buckets[0] = (struct proxy_bucket){"b", origin_number(0), "real-b"};
    buckets[1] = (struct proxy_bucket){"other", origin_number(1), "other"};
    proxy.buckets = buckets;
    proxy.options.bucket_count = 2;
    ask_init("PUT", "/b/k");
    header("x-amz-copy-source", "/b/dir/a%20b?versionId=v");
    body_of(0);
    start();
    all_ready();
    struct span source;
    cr_assert(headers_get(fake.relay->headers, SPAN("x-amz-copy-source"), &source));
    cr_assert(span_equal_cstr(source, "/real-b/dir/a%20b?versionId=v"));
    origin_head(200, -1);
    origin_end(ERR_OK);
    all_ended();
    finish();

    // As presigning moves it into the query: it goes on as the header that it is.
    ask_init("PUT", "/b/k?partNumber=1&X-Amz-Copy-Source=b%2Fa&uploadId=u"
                    "&x-amz-copy-source-range=bytes%3D0-9");
    body_of(0);
    start();
    cr_assert(headers_get(fake.relay->headers, SPAN("x-amz-copy-source"), &source));
    cr_assert(span_equal_cstr(source, "/real-b/a"));
    cr_assert(headers_get(fake.relay->headers, SPAN("x-amz-copy-source-range"), &source));
    cr_assert(span_equal_cstr(source, "bytes=0-9"));
    cr_assert_eq(fake.relay->request->param_count, 2);
    origin_head(200, -1);
    origin_end(ERR_OK);
    finish();

    ask_init("PUT", "/b/k");
    header("x-amz-copy-source", "/other/k");
    body_of(0);
    start();
    cr_assert_eq(fake.fail_err, ERR_NOT_IMPLEMENTED);
    finish();
    proxy.options.bucket_count = 0;
}

// Neither direction keeps more than its queue: the client is paused, and so is the origin.
Test(serve_pass, back_pressure)
{
    static char block[CHUNK_SIZE];
    ask_init("PUT", "/b/k");
    body_of(100 * sizeof(block));
    start();
    unsigned given = 0;
    while (!fake.body_paused) {
        (void)fake.sink->on_data(fake.sink, (struct span){block, sizeof(block)});
        cr_assert_lt(++given, 10);
    }
    all_ready();
    cr_assert_eq(upload(), ERR_AGAIN);
    cr_assert(!fake.body_paused);
    exchange_ends();
    origin_end(ERR_CANCELLED);
    all_ended();
    finish();

    ask_init("GET", "/b/k?torrent");
    start();
    origin_head(200, -1);
    given = 0;
    while (!fake.relay_paused) {
        (void)fake.relay->on_body(fake.relay, (struct span){block, sizeof(block)});
        cr_assert_lt(++given, 10);
    }
    cr_assert_eq(client_reads(), HTTP_PULL_WAIT);
    cr_assert(!fake.relay_paused);
    exchange_ends();
    cr_assert(fake.relay_cancelled);
    origin_end(ERR_CANCELLED);
    finish();
}

// What is no S3 request at all names the remedy instead of going to the store.
Test(serve_pass, not_s3)
{
    ask_init("POST", "/");
    body_of(0);
    start();
    cr_assert_eq(fake.fail_err, ERR_NOT_IMPLEMENTED);
    cr_assert_null(ask.r.pass);
    finish();
}
