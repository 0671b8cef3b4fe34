// SPDX-License-Identifier: Apache-2.0
// A directory's object read past the cache: one version from HEAD to last byte, conditions and
// ranges as on a hit.
#include "proxy/ask.h"

#include "test.h"

static void ask_directory(const char *method, const char *target, const char *header,
                          const char *value)
{
    ask_init(method, target);
    doors.is_directory = true;
    if (header != NULL) {
        ask_header(header, value);
    }
    ask_start();
    cr_assert_eq(doors.fetch_starts, 1);
    cr_assert(origin_fetch_is_head(doors.fetch));
}

static void describe(uint64_t size)
{
    struct origin_fetch *f = doors.fetch;
    f->size_bytes = size;
    f->etag = SPAN("\"e\"");
    f->last_modified = 1000;
    cr_assert(headers_add(&f->headers, ask.arena, SPAN("ETag"), f->etag));
    cr_assert_eq(f->on_head(f), ERR_OK);
    f->on_end(f, ERR_OK);
    doors_told();
}

static uint64_t announced(void)
{
    return ask.r.pass->relay.length;
}

// Every range that S3 knows is requested of the one version, or refused.
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
        ask_directory("GET", "/b/k", "Range", rows[i].range);
        describe(rows[i].size);
        if (rows[i].status == 416) {
            cr_assert_eq(doors.fail_err, ERR_INVALID_RANGE);
            cr_assert_eq(doors.fail_detail.actual_object_size, rows[i].size);
        } else if (rows[i].size == 0) {
            cr_assert_eq(doors.fetch_starts, 1);
            cr_assert_eq(doors.replies, 1);
            cr_assert_eq(announced(), 0);
        } else {
            cr_assert_eq(doors.fetch_starts, 2);
            cr_assert_eq(doors.replies, 0); // the head waits for the body's
            cr_assert_eq(doors.fetch->first, rows[i].first);
            cr_assert_eq(doors.fetch->last, rows[i].last);
            cr_assert(span_equal_cstr(doors.fetch->if_match, "\"e\""));
            cr_assert_eq(doors.fetch->on_head(doors.fetch), ERR_OK);
            cr_assert_eq(doors.replies, 0); // and for the key's home
            doors_told();
            cr_assert_eq(doors.replies, 1);
            cr_assert_eq(doors.reply.status, rows[i].status);
            cr_assert_eq(announced(), rows[i].last - rows[i].first + 1);
            cr_assert_eq(ask_reply_has("Content-Range"), rows[i].status == 206);
            static const char bytes[100];
            cr_assert_eq(doors.fetch->on_body(doors.fetch, (struct span){bytes, announced()}),
                         ERR_OK);
            cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
            doors.fetch->on_end(doors.fetch, ERR_OK);
            cr_assert_eq(ask_reads(), HTTP_PULL_END);
            cr_assert_eq(ask.received.len, announced());
        }
        ask_finish();
    }
}

// Conditions are judged against the version that the HEAD found.
Test(pass_direct, conditions)
{
    ask_directory("GET", "/b/k", "If-None-Match", "\"e\"");
    describe(10);
    cr_assert_eq(doors.reply.status, 304);
    cr_assert_eq(doors.fetch_starts, 1);
    cr_assert_eq(doors.replies, 1);
    ask_finish();

    ask_directory("GET", "/b/k", "If-Match", "other");
    describe(10);
    cr_assert_eq(doors.fail_err, ERR_PRECONDITION_FAILED);
    cr_assert(span_equal_cstr(doors.fail_detail.condition, "If-Match"));
    ask_finish();

    ask_directory("HEAD", "/b/k", NULL, NULL);
    describe(10);
    cr_assert_eq(doors.fetch_starts, 1);
    cr_assert_eq(announced(), 10);
    cr_assert_eq(doors.replies, 1);
    ask_finish();
}

// A file that changes between HEAD and body is reported as "try again", not as a failed condition
// of the client.
Test(pass_direct, changed_between)
{
    ask_directory("GET", "/b/k", NULL, NULL);
    describe(10);
    doors.fetch->on_end(doors.fetch, ERR_ORIGIN_CHANGED);
    cr_assert_eq(doors.replies, 0);
    cr_assert_eq(doors.fail_err, ERR_ORIGIN_BUSY);
    ask_finish();

    ask_directory("GET", "/b/k", NULL, NULL);
    doors.fetch->on_end(doors.fetch, ERR_NO_SUCH_KEY);
    cr_assert_eq(doors.replies + doors.failures, 0); // it waits for the key's home
    doors_told();
    cr_assert_eq(doors.replies, 0);
    cr_assert_eq(doors.fail_err, ERR_NO_SUCH_KEY);
    ask_finish();
}
