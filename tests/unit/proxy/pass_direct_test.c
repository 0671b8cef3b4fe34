// SPDX-License-Identifier: Apache-2.0
// A directory's object read past the cache: one version from HEAD to last byte, conditions and
// ranges as on a hit.
#include "proxy/pass_private.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

// What pass_direct.c asks of its neighbours is recorded.
static struct {
    unsigned starts, replies, failures, settled;
    enum err fail_err;
    struct s3_error_detail detail;
    struct origin_fetch *fetch;
} fake;

static void fake_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f)
{
    (void)w;
    (void)origin;
    fake.starts++;
    fake.fetch = f;
}
static enum step_result fake_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    (void)r;
    fake.failures++;
    fake.fail_err = err;
    fake.detail = detail != NULL ? *detail : (struct s3_error_detail){0};
    return STEP_DONE;
}
static void fake_header(struct request *r, struct headers *headers, const char *name,
                        struct span value)
{
    cr_assert(headers_add(headers, r->arena, span_from_cstr(name), value));
}
static void fake_reply_start(struct pass_state *p)
{
    cr_assert(p->head_came);
    fake.replies++;
}
static void fake_settle(struct pass_state *p)
{
    (void)p;
    fake.settled++;
}
static void fake_take_body(struct pass_state *p, struct span data)
{
    p->received_bytes += data.len;
}

#define origin_fetch_start fake_fetch_start
#define origin_is_directory(origin) true
#define request_fail fake_fail
#define request_header fake_header
#define pass_answer_start fake_reply_start
#define pass_outcome_settle fake_settle
#define pass_answer_take fake_take_body
#define pass_direct_wanted test_direct_wanted
#define pass_direct_start test_direct_start
#include "../../../src/proxy/pass_direct.c"

static struct proxy_worker pw;
static struct pass_state p;
static struct request r;
static struct http_request http;

static void ask(const char *method, const char *target, const char *header, const char *value)
{
    static struct s3_domains domains;
    memset(&fake, 0, sizeof(fake));
    memset(&p, 0, sizeof(p));
    memset(&r, 0, sizeof(r));
    memset(&http, 0, sizeof(http));
    r.arena = arena_new(1u << 20);
    r.http = &http;
    r.pw = &pw;
    http.method = span_from_cstr(method);
    http.is_head = strcmp(method, "HEAD") == 0;
    if (header != NULL) {
        cr_assert(
            headers_add(&http.headers, r.arena, span_from_cstr(header), span_from_cstr(value)));
    }
    cr_assert_eq(s3_request_parse(r.arena, http.method, SPAN("127.0.0.1"), span_from_cstr(target),
                                  &http.headers, &domains, &r.s3),
                 ERR_OK);
    r.origin_bucket = r.s3.bucket;
    p.magic = PASS_MAGIC;
    p.pw = &pw;
    p.request = &r;
    p.arena = arena_new(1u << 20);
    cr_assert(pass_direct_wanted(&r));
    cr_assert_eq(pass_direct_start(&p), ERR_OK);
    cr_assert(fake.fetch->head);
}

static void describe(uint64_t size)
{
    struct origin_fetch *f = fake.fetch;
    f->size_bytes = size;
    f->etag = SPAN("\"e\"");
    f->last_modified = 1000;
    cr_assert(headers_add(&f->headers, r.arena, SPAN("ETag"), f->etag));
    cr_assert_eq(f->on_head(f), ERR_OK);
    f->on_end(f, ERR_OK);
}

static void done(void)
{
    arena_free(p.arena);
    arena_free(r.arena);
}

// Every range S3 knows is asked of the one version, or refused.
Test(pass_direct, ranges)
{
    static const struct {
        const char *range;
        unsigned status;
        uint64_t size, first, last;
    } rows[] = {
        {"bytes=0-9", 206, 100, 0, 9},      {"bytes=-1", 206, 100, 99, 99},
        {"bytes=90-999", 206, 100, 90, 99}, {"bytes=x", 200, 100, 0, 99},
        {"bytes=100-", 416, 100, 0, 0},     {"bytes=0-0", 416, 0, 0, 0},
        {"bytes=-1", 200, 0, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        ask("GET", "/b/k", "Range", rows[i].range);
        describe(rows[i].size);
        if (rows[i].status == 416) {
            cr_assert_eq(fake.fail_err, ERR_INVALID_RANGE);
            cr_assert_eq(fake.detail.actual_object_size, rows[i].size);
        } else if (rows[i].size == 0) {
            cr_assert_eq(fake.starts, 1);
            cr_assert_eq(fake.replies, 1);
            cr_assert_eq(p.relay.length, 0);
        } else {
            cr_assert_eq(fake.starts, 2);
            cr_assert_eq(fake.replies, 0); // the head waits for the body's
            cr_assert_eq(fake.fetch->first, rows[i].first);
            cr_assert_eq(fake.fetch->last, rows[i].last);
            cr_assert(span_equal_cstr(fake.fetch->if_match, "\"e\""));
            cr_assert_eq(fake.fetch->on_head(fake.fetch), ERR_OK);
            cr_assert_eq(fake.replies, 1);
            cr_assert_eq(p.relay.status, rows[i].status);
            cr_assert_eq(p.relay.length, rows[i].last - rows[i].first + 1);
            cr_assert_eq(headers_count(&p.answered, SPAN("Content-Range")),
                         rows[i].status == 206 ? 1 : 0);
            fake.fetch->on_end(fake.fetch, ERR_OK);
            cr_assert_eq(fake.settled, 1);
        }
        done();
    }
}

// Conditions are judged on the version that the HEAD found.
Test(pass_direct, conditions)
{
    ask("GET", "/b/k", "If-None-Match", "\"e\"");
    describe(10);
    cr_assert_eq(p.relay.status, 304);
    cr_assert_eq(fake.starts, 1);
    cr_assert_eq(fake.replies, 1);
    done();

    ask("GET", "/b/k", "If-Match", "other");
    describe(10);
    cr_assert_eq(fake.fail_err, ERR_PRECONDITION_FAILED);
    cr_assert(span_equal_cstr(fake.detail.condition, "If-Match"));
    done();

    ask("HEAD", "/b/k", NULL, NULL);
    describe(10);
    cr_assert_eq(fake.starts, 1);
    cr_assert_eq(p.relay.length, 10);
    cr_assert_eq(fake.replies, 1);
    done();
}

// A file that changes between HEAD and body is told as "try again", not as a condition of the
// client's that failed.
Test(pass_direct, changed_between)
{
    ask("GET", "/b/k", NULL, NULL);
    describe(10);
    fake.fetch->on_end(fake.fetch, ERR_ORIGIN_CHANGED);
    cr_assert_eq(fake.replies, 0);
    cr_assert_eq(fake.settled, 1);
    cr_assert_eq(p.relay_err, ERR_ORIGIN_BUSY);
    cr_assert(!p.head_came);
    done();

    ask("GET", "/b/k", NULL, NULL);
    fake.fetch->on_end(fake.fetch, ERR_NO_SUCH_KEY);
    cr_assert_eq(p.relay_err, ERR_NO_SUCH_KEY);
    cr_assert_eq(fake.settled, 1);
    done();
}
