// SPDX-License-Identifier: Apache-2.0
// The S3 driver against a scripted server: its requests, the answers that it accepts, the requests
// that it retries and those that it never retries.
#include <sys/stat.h>

#include "base/clock.h"
#include "origin/origin_s3_private.h"
#include "rig.h"
#include "stats/stats.h"
#include "test.h"

#define OBJECT(extra, body_len, body)                                                              \
    "HTTP/1.1 200 OK\r\nETag: \"e1\"\r\nServer: Scripted\r\n" extra "Content-Length: " body_len    \
    "\r\n\r\n" body
#define XML(code) "<Error><Code>" code "</Code><Message>m</Message></Error>"

// A GET is signed, requests the right object, and returns it with its head.
Test(origin_s3, get_is_signed)
{
    struct server_row rows[] = {
        {.answer = OBJECT(
             "Content-Type: text/plain\r\nx-amz-meta-a: b\r\nx-amz-checksum-crc32: AAAA==\r\n"
             "Last-Modified: Thu, 01 Jan 1970 00:00:10 GMT\r\nx-amz-version-id: v\r\n",
             "5", "hello")}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    cr_assert_not_null(strstr(origin_describe(rig.h.origin), "region us-east-1 (auto) path-style, "
                                                             "credentials: environment"));
    cr_assert_str_eq(origin_server_header(rig.h.origin), "AmazonS3");
    struct fetch_run run = {
        .bucket = "my-bkt", .key = "a b+c%\xc3\xa9/../x", .ask_checksums = true};
    fetch_run(&rig.h, 1, &run);
    cr_assert_eq(run.err, ERR_OK, "%s", error_name(run.err));
    cr_assert_eq(run.status, 200);
    cr_assert_eq(run.size_bytes, 5);
    cr_assert_arr_eq(run.body.ptr, "hello", 5);
    cr_assert_str_eq(run.etag, "\"e1\"");
    cr_assert_str_eq(run.version_id, "v");
    cr_assert(run.storable);
    cr_assert_eq(run.last_modified, 10);
    cr_assert_eq(run.checksum_count, 1);
    cr_assert_str_eq(origin_server_header(rig.h.origin), "Scripted");
    cr_assert(rig_asked(&rig, 0, "GET /my-bkt/a%20b%2Bc%25%C3%A9/../x HTTP/1.1\r\n"));
    cr_assert(rig_asked(&rig, 0, "Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") ||
              rig_asked(&rig, 0, "authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"));
    cr_assert(rig_asked(&rig, 0, "/us-east-1/s3/aws4_request"));
    cr_assert(rig_asked(&rig, 0, "x-amz-checksum-mode: ENABLED\r\n"));
    cr_assert(rig_asked(&rig, 0, "x-amz-content-sha256: " SIGV4_EMPTY_SHA256 "\r\n"));
    cr_assert(rig_asked(&rig, 0, "Accept-Encoding: identity\r\n"));
    cr_assert_not(rig_asked(&rig, 0, "secret"));
    fetch_run_done(&run);
    rig_end(&rig);
}

// Ranges, conditions and HEAD are requested correctly, on one connection.
Test(origin_s3, ranges_and_conditions)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e1\"\r\nContent-Range: bytes 2-5/9\r\n"
                   "Content-Length: 4\r\n\r\n2345"},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e1\"\r\nContent-Range: bytes 7-8/9\r\n"
                   "Content-Length: 2\r\n\r\n78"},
        {.answer = "HTTP/1.1 304 Not Modified\r\nETag: \"e1\"\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e1\"\r\nContent-Length: 9\r\n\r\n"},
        {.answer = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */9\r\n"
                   "Content-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        // Asked again without the condition: it is another version.
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e1\"\r\nContent-Length: 2\r\n\r\n01"},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e2\"\r\nContent-Range: bytes 2-5/9\r\n"
                   "Content-Length: 4\r\n\r\n2345"},
        {.answer = OBJECT("", "0", "")},
    };
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct fetch_run runs[] = {
        {.key = "k", .has_range = true, .first = 2, .last = 5, .if_match = "\"e1\""},
        {.key = "k", .has_range = true, .first = 7, .last = UINT64_MAX},
        {.key = "k", .if_none_match = "\"e1\""},
        {.key = "k", .head = true},
        {.key = "k", .has_range = true, .first = 9, .last = 10},
        {.key = "k", .if_match = "\"e0\""},
        {.key = "k", .has_range = true, .first = 2, .last = 5, .if_match = "\"e1\""},
        {.key = "k", .has_range = true, .first = 0, .last = 5},
    };
    static const enum err errs[] = {ERR_OK,
                                    ERR_OK,
                                    ERR_NOT_MODIFIED,
                                    ERR_OK,
                                    ERR_INVALID_RANGE,
                                    ERR_ORIGIN_CHANGED,
                                    ERR_ORIGIN_CHANGED,
                                    ERR_OK};
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        fetch_run(&rig.h, 0, &runs[i]);
        cr_assert_eq(runs[i].err, errs[i], "%zu %s", i, error_name(runs[i].err));
        fetch_run_done(&runs[i]);
    }
    cr_assert_eq(runs[0].body_first, 2);
    cr_assert_eq(runs[0].body_len, 4);
    cr_assert_eq(runs[0].size_bytes, 9);
    cr_assert_eq(runs[3].size_bytes, 9);
    cr_assert_eq(runs[4].size_bytes, 9);
    cr_assert_eq(runs[7].size_bytes, 0);
    cr_assert_eq(runs[7].heads, 1);
    cr_assert(rig_asked(&rig, 0, "Range: bytes=2-5\r\n") &&
              rig_asked(&rig, 0, "If-Match: \"e1\"\r\n"));
    cr_assert(
        rig_asked(&rig, 0, "SignedHeaders=host;if-match;range;x-amz-content-sha256;x-amz-date"));
    cr_assert(rig_asked(&rig, 1, "Range: bytes=7-\r\n"));
    cr_assert(rig_asked(&rig, 2, "If-None-Match: \"e1\"\r\n"));
    cr_assert(rig_asked(&rig, 3, "HEAD /bkt/k HTTP/1.1"));
    // The answers with another ETag than asked for cost their connections; the others share one.
    cr_assert_eq(server_connections(&rig.server), 3);
    rig_end(&rig);
}

// A store refuses HEAD and fails If-Match with its own ETag. It is asked in another way, and soon
// is asked in that way at once.
Test(origin_s3, odd_store)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e1\"\r\nContent-Range: bytes 0-0/9\r\n"
                   "Content-Length: 1\r\n\r\n0"},
        {.answer = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\n"
                   "Content-Length: 0\r\n\r\n"},
        {.answer = OBJECT("", "0", "")},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e1\"\r\nContent-Range: bytes 2-5/9\r\n"
                   "Content-Length: 4\r\n\r\n2345"},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e2\"\r\nContent-Range: bytes 2-5/9\r\n"
                   "Content-Length: 4\r\n\r\n2345"},
    };
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct fetch_run runs[] = {
        {.key = "k", .head = true},
        {.key = "empty", .head = true},
        {.key = "k", .has_range = true, .first = 2, .last = 5, .if_match = "\"e1\""},
        {.key = "k", .has_range = true, .first = 2, .last = 5, .if_match = "\"e1\""},
    };
    static const enum err errs[] = {ERR_OK, ERR_OK, ERR_OK, ERR_ORIGIN_CHANGED};
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        fetch_run(&rig.h, 0, &runs[i]);
        cr_assert_eq(runs[i].err, errs[i], "%zu %s", i, error_name(runs[i].err));
        fetch_run_done(&runs[i]);
    }
    cr_assert_eq(runs[0].size_bytes, 9);
    cr_assert_eq(runs[0].body_len, 0);
    cr_assert_eq(runs[1].size_bytes, 0);
    cr_assert_eq(runs[2].body_len, 4);
    cr_assert(rig_asked(&rig, 0, "HEAD /bkt/k HTTP/1.1"));
    cr_assert(rig_asked(&rig, 1, "Range: bytes=0-0\r\n"));
    cr_assert(rig_asked(&rig, 2, "GET /bkt/empty HTTP/1.1"), "it is remembered");
    cr_assert_not(rig_asked(&rig, 3, "Range:"));
    cr_assert(rig_asked(&rig, 4, "If-Match: \"e1\"\r\n"));
    cr_assert_not(rig_asked(&rig, 5, "If-Match"));
    cr_assert_not(rig_asked(&rig, 6, "If-Match"));
    rig_end(&rig);
}

#define PART(tag)                                                                                  \
    "HTTP/1.1 206 Partial Content\r\nETag: \"" tag "\"\r\nContent-Range: bytes 2-5/9\r\n"          \
    "Content-Length: 4\r\n\r\n2345"

// A store refuses HEAD of one key and answers HEAD of others. If the caller holds bytes, GET
// decides. The key is remembered, for such callers.
Test(origin_s3, head_of_a_key_refused)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e1\"\r\nContent-Length: 9\r\n\r\n"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e1\"\r\nContent-Range: bytes 0-0/9\r\n"
                   "Content-Length: 1\r\n\r\n0"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e1\"\r\nContent-Length: 9\r\n\r\n"},
    };
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct fetch_run runs[] = {
        {.key = "granted", .head = true},
        {.key = "k", .head = true},
        {.key = "k", .head = true, .get_decides = true},
        {.key = "k", .head = true, .get_decides = true},
        {.key = "k", .head = true},
        {.key = "granted", .head = true, .get_decides = true},
    };
    static const enum err errs[] = {
        ERR_OK, ERR_ACCESS_DENIED, ERR_OK, ERR_ACCESS_DENIED, ERR_ACCESS_DENIED, ERR_OK};
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        fetch_run(&rig.h, 0, &runs[i]);
        cr_assert_eq(runs[i].err, errs[i], "%zu %s", i, error_name(runs[i].err));
        fetch_run_done(&runs[i]);
    }
    cr_assert_eq(runs[2].size_bytes, 9);
    cr_assert(rig_asked(&rig, 2, "HEAD /bkt/k HTTP/1.1"));
    cr_assert(rig_asked(&rig, 3, "GET /bkt/k HTTP/1.1"));
    cr_assert(rig_asked(&rig, 4, "GET /bkt/k HTTP/1.1"), "it is remembered");
    cr_assert(rig_asked(&rig, 5, "HEAD /bkt/k HTTP/1.1"), "a client's own HEAD is asked as it is");
    cr_assert(rig_asked(&rig, 6, "HEAD /bkt/granted HTTP/1.1"));
    rig_end(&rig);
}

// Another version answers where a client has bytes of the requested one: other connections are
// asked. An answer with the requested version proves that replicas differ, and then more of them
// are asked. A request that has sent nothing yet learns of the change.
Test(origin_s3, replicas_differ)
{
    struct server_row rows[] = {
        {.answer = PART("e1")},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = PART("e2")},
        {.answer = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"},
        {.answer = PART("e2")},
        {.answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"},
        {.answer = PART("e1")},
        {.answer = PART("e2")},
        {.answer = PART("e2")},
        {.answer = PART("e2")},
        {.answer = PART("e1")},
    };
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct fetch_run asks = {
        .key = "k", .has_range = true, .first = 2, .last = 5, .if_match = "\"e1\""};
    static const enum err errs[] = {ERR_OK, ERR_ORIGIN_CHANGED, ERR_OK, ERR_OK};
    for (size_t i = 0; i < ARRAY_LEN(errs); i++) {
        struct fetch_run run = asks;
        run.is_bound = i > 1;
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, errs[i], "%zu %s", i, error_name(run.err));
        cr_assert_eq(run.storable, i == 0 || i == 1);
        fetch_run_done(&run);
        cr_assert_eq(origin_is_odd(rig.h.origin, ORIGIN_VERSIONS_DIFFER), i > 1);
    }
    cr_assert_not(origin_is_odd(rig.h.origin, ORIGIN_FAILS_IF_MATCH));
    rig_end(&rig);
}

// Statuses and codes become the right errors, with their document. None is retried.
Test(origin_s3, errors)
{
    static const struct {
        const char *status, *code;
        enum err err;
        bool head;
    } cases[] = {
        {"404 Not Found", "NoSuchKey", ERR_NO_SUCH_KEY, false},
        {"404 Not Found", "NoSuchBucket", ERR_NO_SUCH_BUCKET, false},
        {"403 Forbidden", "AccessDenied", ERR_ACCESS_DENIED, false},
        {"403 Forbidden", "SignatureDoesNotMatch", ERR_ORIGIN_REFUSED, false},
        {"400 Bad Request", "InvalidArgument", ERR_INVALID, false},
        {"405 Method Not Allowed", "MethodNotAllowed", ERR_METHOD_NOT_ALLOWED, false},
        {"301 Moved Permanently", "PermanentRedirect", ERR_ORIGIN_UNFIT, false},
        {"302 Found", "Found", ERR_ORIGIN_UNFIT, false},
        {"412 Precondition Failed", "PreconditionFailed", ERR_ORIGIN_PROTOCOL, false},
        {"304 Not Modified", NULL, ERR_ORIGIN_PROTOCOL, false},
        {"501 Not Implemented", "NotImplemented", ERR_NOT_IMPLEMENTED, false},
    };
    struct server_row rows[ARRAY_LEN(cases)] = {{0}};
    char *texts[ARRAY_LEN(cases)];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char xml[256];
        snprintf(xml, sizeof(xml), "<Error><Code>%s</Code></Error>", cases[i].code);
        texts[i] = cases[i].code != NULL ? rig_answer(cases[i].status, "", xml)
                                         : strdup("HTTP/1.1 304 Not Modified\r\n\r\n");
        rows[i].answer = texts[i];
    }
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(cases));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fetch_run run = {.key = "k"};
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, cases[i].err, "%s: %s", cases[i].status, error_name(run.err));
        cr_assert_eq(run.heads, 0);
        if (cases[i].code != NULL && cases[i].err != ERR_ORIGIN_PROTOCOL &&
            cases[i].err != ERR_ORIGIN_REFUSED) {
            cr_assert_not_null(strstr(run.error_answer, cases[i].code));
        }
        fetch_run_done(&run);
        cr_assert_eq(server_requests(&rig.server), i + 1);
    }
    rig_end(&rig);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        free(texts[i]);
    }
}

// Answers that are inconsistent are refused and not retried. The body is never longer or shorter
// than announced.
Test(origin_s3, lies)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 5\r\nContent-Length: "
                   "6\r\n\r\nhello!"},
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 9\r\n\r\nhello",
         .close = true},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Range: bytes 0-9/10\r\n"
                   "\r\nhello",
         .close = true},
        {.answer = "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Range: bytes 0-9/10\r\n"
                   "\r\nhello world!",
         .close = true},
    };
    static const enum err errs[] = {ERR_ORIGIN_PROTOCOL, ERR_ORIGIN_RESET, ERR_ORIGIN_RESET,
                                    ERR_ORIGIN_PROTOCOL};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct fetch_run run = {.key = "k", .has_range = i >= 2, .last = UINT64_MAX};
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, errs[i], "%u: %s", i, error_name(run.err));
        cr_assert_eq(run.heads, i == 0 ? 0 : 1);
        cr_assert_leq(run.body.len, 10);
        cr_assert_eq(server_requests(&rig.server), i + 1);
        fetch_run_done(&run);
    }
    rig_end(&rig);
}

// Failures of a safe request are retried with back-off until the attempts are used up.
Test(origin_s3, retries)
{
    char *slow = rig_answer("503 Slow Down", "", XML("SlowDown"));
    char *internal = rig_answer("500 Internal Server Error", "", XML("InternalError"));
    struct server_row rows[] = {{.answer = slow},
                                {.answer = NULL},
                                {.answer = internal},
                                {.answer = OBJECT("", "5", "hello")},
                                {.answer = slow}};
    struct rig rig;
    uint64_t retries = stats_sum(COUNTER_origin_retries);
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_OK, "%s", error_name(run.err));
    cr_assert_eq(server_requests(&rig.server), 4);
    // The connection that closed without a byte was a reused one, so the transport itself retries.
    cr_assert_eq(stats_sum(COUNTER_origin_retries) - retries, 2);
    // SlowDown has halved this worker's slots.
    cr_assert_eq(rig.h.origin->workers[0].slots_max, 4);
    cr_assert_lt(rig.h.origin->workers[0].limit, 4);
    fetch_run_done(&run);
    struct fetch_run failing = {.key = "k"};
    fetch_run(&rig.h, 1, &failing);
    cr_assert_eq(failing.err, ERR_ORIGIN_SLOWDOWN);
    cr_assert_eq(failing.status, 503);
    cr_assert_eq(server_requests(&rig.server), 8);
    fetch_run_done(&failing);
    rig_end(&rig);
    free(slow);
    free(internal);
}

// The retry budget bounds the extra load of an outage: retries are at most a share of the requests.
Test(origin_s3, retry_budget)
{
    char *slow = rig_answer("503 Slow Down", "", XML("SlowDown"));
    struct server_row rows[] = {{.answer = slow}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    rig.options.retries = 1;
    rig_begin(&rig);
    uint64_t retries = stats_sum(COUNTER_origin_retries);
    uint64_t refused = stats_sum(COUNTER_origin_retry_refused);
    atomic_store(&rig.h.origin->retry_tokens, 0);
    atomic_store(&rig.h.origin->retry_floor_at_us, UINT64_MAX / 4); // no floor in this test
    for (int i = 0; i < 20; i++) {
        struct fetch_run run = {.key = "k"};
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, ERR_ORIGIN_SLOWDOWN);
        fetch_run_done(&run);
    }
    cr_assert_eq(server_requests(&rig.server), 22); // 10 % of 20
    cr_assert_eq(stats_sum(COUNTER_origin_retries) - retries, 2);
    cr_assert_eq(stats_sum(COUNTER_origin_retry_refused) - refused, 18);
    rig_end(&rig);
    free(slow);
}

// There is no server at all: connect errors are retried, then reported.
Test(origin_s3, refused_connection)
{
    struct server_row rows[] = {{.answer = NULL}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    server_stop(&rig.server);
    rig.options.retries = 1;
    rig_begin(&rig);
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_ORIGIN_CONNECT, "%s", error_name(run.err));
    fetch_run_done(&run);
    harness_done(&rig.h);
    server_done(&rig.server);
}

// A silent server ends in a timeout. After that, the endpoint no longer counts as one that has
// answered, because it may lead elsewhere now.
Test(origin_s3, silent_server)
{
    struct server_row rows[] = {{.answer = "HTTP/1.1 100 Continue\r\n\r\n"}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    rig.options.retries = 0;
    rig.options.first_byte_timeout_ms = 100;
    rig_begin(&rig);
    origin_hops_learn(rig.h.origin, 200);
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_ORIGIN_TIMEOUT, "%s", error_name(run.err));
    cr_assert_not(origin_has_answered(rig.h.origin));
    fetch_run_done(&run);
    rig_end(&rig);
}

static void fetch_with_stale(struct rig *rig, enum err err, unsigned requests)
{
    struct fetch_run run = {.key = "k", .has_stale = true};
    unsigned before = rig->server.request_count;
    fetch_run(&rig->h, 0, &run);
    cr_assert_eq(run.err, err, "%s", error_name(run.err));
    cr_assert(requests == UINT32_MAX || rig->server.request_count == before + requests);
    fetch_run_done(&run);
}

// A call whose clients have a stale version is not repeated after a timeout, and once after another
// failure.
Test(origin_s3, calls_with_a_stale_version_are_hardly_repeated)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 100 Continue\r\n\r\n"}, {.close = true}, {.close = true}};
    struct rig rig;
    rig_options(&rig, rows, ARRAY_LEN(rows));
    rig.options.retries = 5;
    rig.options.first_byte_timeout_ms = 100;
    rig_begin(&rig);
    fetch_with_stale(&rig, ERR_ORIGIN_TIMEOUT, 1);
    fetch_with_stale(&rig, ERR_ORIGIN_RESET, 2);
    rig_end(&rig);
}

static void probe_once(struct rig *rig)
{
    sem_t told;
    cr_assert_eq(sem_init(&told, 0, 0), 0);
    origin_probe_start(rig->h.origin, &told);
    cr_assert_eq(sem_wait(&told), 0);
    sem_destroy(&told);
}

// While the origin is silent, such a call fails without a request, because the probe asks. It asks
// without a probe, and if the origin has not answered one yet.
Test(origin_s3, calls_with_a_stale_version_leave_a_silent_origin_to_the_probe)
{
    for (unsigned probes = 0; probes < 3; probes++) {
        static const char *const answer =
            "HTTP/1.1 501 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        struct server_row rows[] = {{.answer = answer}, {.close = true}, {.close = true}};
        bool is_answered = probes == 2;
        struct rig rig;
        rig_options(&rig, rows + !is_answered, ARRAY_LEN(rows) - !is_answered);
        rig.options.retries = 0;
        rig.options.probe = probes > 0;
        rig_begin(&rig);
        if (is_answered) {
            probe_once(&rig);
        }
        cr_assert_not(origin_is_silent(rig.h.origin));
        fetch_with_stale(&rig, ERR_ORIGIN_RESET, 1);
        cr_assert_eq(origin_is_silent(rig.h.origin), is_answered);
        fetch_with_stale(&rig, is_answered ? ERR_ORIGIN_CONNECT : ERR_ORIGIN_RESET, UINT32_MAX);
        rig_end(&rig);
    }
}

static void close_origin(struct fetch_run *run)
{
    origin_close(run->ctx);
}

// A closed origin ends running calls, and later ones, once each, and sends nothing.
Test(origin_s3, closed)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: \"e\"\r\n\r\nhalf"}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    rig_begin(&rig);
    struct fetch_run run = {.key = "k", .on_body_hook = close_origin, .ctx = rig.h.origin};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_CANCELLED, "%s", error_name(run.err));
    cr_assert(run.heads == 1 && run.ends == 1);
    fetch_run_done(&run);
    struct fetch_run late = {.key = "late"};
    fetch_run(&rig.h, 0, &late);
    cr_assert_eq(late.err, ERR_CANCELLED, "%s", error_name(late.err));
    cr_assert(late.heads == 0 && late.ends == 1);
    fetch_run_done(&late);
    struct relay_run relay = {.method = "GET", .target = "/bkt/k?tagging"};
    relay_run(&rig.h, 0, &relay);
    cr_assert_eq(relay.err, ERR_CANCELLED, "%s", error_name(relay.err));
    cr_assert_eq(relay.ends, 1);
    relay_run_done(&relay);
    cr_assert_eq(server_requests(&rig.server), 1);
    rig_end(&rig);
}

// A status that nobody uses comes on a connection that has carried other requests. A request that
// may be retried is retried once, on a new connection. Others are not, and the client learns that
// the origin failed.
Test(origin_s3, foreign_statuses)
{
    static const char *const statuses[] = {
        "HTTP/1.1 499 Gone\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 444 No\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 526 Odd\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 203 Odd\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 700 Odd\r\nContent-Length: 0\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
        struct server_row rows[] = {{.answer = OBJECT("", "1", "a")},
                                    {.answer = statuses[i]},
                                    {.answer = OBJECT("", "1", "b")},
                                    {.answer = statuses[i]}};
        struct rig rig;
        rig_options(&rig, rows, ARRAY_LEN(rows));
        rig.options.retries = 0;
        rig_begin(&rig);
        struct fetch_run first = {.key = "k"}, next = {.key = "k"}, last = {.key = "k"};
        fetch_run(&rig.h, 0, &first);
        fetch_run(&rig.h, 0, &next);
        cr_assert_eq(next.err, ERR_OK, "%zu %s", i, error_name(next.err));
        cr_assert_arr_eq(next.body.ptr, "b", 1);
        cr_assert_eq(server_requests(&rig.server), 3);
        cr_assert_eq(server_connections(&rig.server), 2);
        fetch_run(&rig.h, 0, &last); // twice: it stands
        cr_assert_neq(last.err, ERR_OK);
        cr_assert_eq(server_requests(&rig.server), 5);
        cr_assert_eq(server_connections(&rig.server), 3);
        fetch_run_done(&first);
        fetch_run_done(&next);
        fetch_run_done(&last);
        rig_end(&rig);
    }
    struct server_row rows[] = {{.answer = OBJECT("", "1", "a")}, {.answer = statuses[0]}};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct fetch_run first = {.key = "k"};
    fetch_run(&rig.h, 0, &first);
    struct relay_run put = {
        .method = "PUT", .target = "/bkt/k", .body = ORIGIN_BODY_UNSIGNED, .upload = "some bytes"};
    relay_run(&rig.h, 0, &put);
    cr_assert_eq(put.err, ERR_ORIGIN_RESET, "%s", error_name(put.err));
    cr_assert_eq(put.heads, 0);
    cr_assert_eq(server_requests(&rig.server), 2);
    struct relay_run again = {
        .method = "PUT", .target = "/bkt/k", .body = ORIGIN_BODY_UNSIGNED, .upload = "some bytes"};
    relay_run(&rig.h, 0, &again); // on a new connection it is the origin's answer
    cr_assert_eq(again.status, 499);
    cr_assert_eq(server_connections(&rig.server), 2);
    fetch_run_done(&first);
    relay_run_done(&put);
    relay_run_done(&again);
    rig_end(&rig);
}

// All workers share the region of a bucket that one of them has learnt: eight workers together send
// one request too many for each bucket. If more buckets come than are remembered, they displace
// others and change nothing else.
Test(origin_s3, region_is_learnt_for_all_workers)
{
    char *wrong = rig_answer("400 Bad Request", "",
                             "<Error><Code>AuthorizationHeaderMalformed</Code>"
                             "<Region>eu-west-1</Region></Error>");
    struct server_row rows[] = {
        {.answer = OBJECT("", "1", "a"), .when = "/eu-west-1/s3/", .other = wrong}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    cr_assert_eq(harness_init(&rig.h, 8, DISK_ENGINE_THREADS, &rig.options), ERR_OK);
    static const char *const buckets[] = {"bkt1", "bkt2", "bkt3"};
    for (unsigned b = 0; b < ARRAY_LEN(buckets); b++) {
        for (unsigned worker = 0; worker < 8; worker++) {
            struct fetch_run run = {.bucket = buckets[b], .key = "k"};
            fetch_run(&rig.h, (worker + b) % 8, &run);
            cr_assert_eq(run.err, ERR_OK, "%s", error_name(run.err));
            fetch_run_done(&run);
        }
        cr_assert_eq(server_requests(&rig.server), 9 * (b + 1));
    }
    struct origin_worker *ow = &rig.h.origin->workers[0];
    char name[64];
    for (unsigned i = 0; i < 3 * ORIGIN_S3_REGIONS_MAX; i++) {
        bool known = false;
        snprintf(name, sizeof(name), "many%u", i);
        origin_s3_region_learn(ow, span_from_cstr(name),
                               i % 2 == 0 ? SPAN("eu-even-1") : SPAN("eu-odd-1"));
        struct span region = origin_s3_region_of(ow, span_from_cstr(name), &known);
        cr_assert(known && span_equal_cstr(region, i % 2 == 0 ? "eu-even-1" : "eu-odd-1"));
        origin_s3_region_learn(ow, span_from_cstr(name), SPAN("eu-last-1"));
        region = origin_s3_region_of(ow, span_from_cstr(name), &known);
        cr_assert(known && span_equal_cstr(region, "eu-last-1"));
    }
    for (unsigned i = 0; i < 2 * ORIGIN_S3_REGION_NAMES_MAX; i++) {
        bool known = true;
        snprintf(name, sizeof(name), "region-%u", i);
        origin_s3_region_learn(ow, SPAN("other"),
                               span_from_cstr(name)); // the first of them are kept
        (void)origin_s3_region_of(ow, SPAN("other"), &known);
        cr_assert(known);
    }
    rig_end(&rig);
    free(wrong);
}

// A region learnt from a refusal is used at once and remembered for the bucket.
Test(origin_s3, region_is_learnt)
{
    char *moved = rig_answer("301 Moved Permanently", "x-amz-bucket-region: eu-west-1\r\n",
                             XML("PermanentRedirect"));
    char *malformed = rig_answer(
        "400 Bad Request", "",
        "<Error><Code>AuthorizationHeaderMalformed</Code><Region>ap-south-1</Region></Error>");
    char *head400 = rig_answer("400 Bad Request", "x-amz-bucket-region: eu-north-1\r\n", "");
    struct server_row rows[] = {{.answer = moved},
                                {.answer = OBJECT("", "0", "")},
                                {.answer = OBJECT("", "0", "")},
                                {.answer = malformed},
                                {.answer = OBJECT("", "0", "")},
                                {.answer = head400},
                                {.answer = OBJECT("", "0", "")}};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    static const char *const buckets[] = {"first", "first", "second", "third"};
    for (size_t i = 0; i < ARRAY_LEN(buckets); i++) {
        struct fetch_run run = {.bucket = buckets[i], .key = "k", .head = i == 3};
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, ERR_OK, "%zu %s", i, error_name(run.err));
        fetch_run_done(&run);
    }
    static const char *const regions[] = {"/us-east-1/", "/eu-west-1/",  "/eu-west-1/",
                                          "/us-east-1/", "/ap-south-1/", "/us-east-1/",
                                          "/eu-north-1/"};
    cr_assert_eq(server_requests(&rig.server), ARRAY_LEN(regions));
    for (unsigned i = 0; i < ARRAY_LEN(regions); i++) {
        cr_assert(rig_asked(&rig, i, regions[i]), "%u", i);
    }
    rig_end(&rig);
    free(moved);
    free(malformed);
    free(head400);
}

// A wrong clock is corrected by the origin's Date, and the request is sent once more. The next
// request is right at once.
Test(origin_s3, clock_is_corrected)
{
    char *skewed = rig_answer("403 Forbidden", "Date: Thu, 01 Jan 2037 00:00:00 GMT\r\n",
                              XML("RequestTimeTooSkewed"));
    struct server_row rows[] = {{.answer = skewed},
                                {.answer = OBJECT("", "0", "")},
                                {.answer = OBJECT("", "0", "")},
                                {.answer = skewed}};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    for (int i = 0; i < 2; i++) {
        struct fetch_run run = {.key = "k"};
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, ERR_OK);
        fetch_run_done(&run);
    }
    cr_assert_not(rig_asked(&rig, 0, "/20370101/"));
    cr_assert(rig_asked(&rig, 1, "/20370101/") && rig_asked(&rig, 2, "/20370101/"));
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err,
                 ERR_ORIGIN_REFUSED); // signed by that Date already: asking again changes nothing
    cr_assert_leq(server_requests(&rig.server), 5); // 5 where the second has changed meanwhile
    fetch_run_done(&run);
    rig_end(&rig);
    free(skewed);
}

// A refused token forces one renewal; with new keys in the files the request then succeeds.
Test(origin_s3, expired_token_renews)
{
    char *expired = rig_answer("400 Bad Request", "", XML("ExpiredToken"));
    struct server_row rows[] = {
        {.answer = OBJECT("", "0", ""), .when = "Credential=NEWKEY/", .other = expired}};
    struct rig rig;
    char access[512], secret[512];
    rig_options(&rig, rows, 1);
    harness_make_root(&rig.h);
    harness_write(&rig.h, "access", "OLDKEY\n", 7);
    harness_write(&rig.h, "secret", "s1\n", 3);
    harness_path(&rig.h, "access", access, sizeof(access));
    harness_path(&rig.h, "secret", secret, sizeof(secret));
    cr_assert_eq(chmod(access, 0600) | chmod(secret, 0600), 0);
    rig.options.access_key_file = access;
    rig.options.secret_key_file = secret;
    rig_begin(&rig);
    struct fetch_run refused = {.key = "k"};
    fetch_run(&rig.h, 1, &refused);
    cr_assert_eq(refused.err, ERR_ORIGIN_CREDENTIALS, "%s", error_name(refused.err));
    cr_assert_eq(server_requests(&rig.server), 2);
    fetch_run_done(&refused);
    clock_test_advance_us(10000000); // past the pause between forced renewals
    FILE *file = fopen(access, "w");
    fputs("NEWKEY\n", file);
    fclose(file);
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig.h, 1, &run);
    cr_assert_eq(run.err, ERR_OK, "%s", error_name(run.err));
    fetch_run_done(&run);
    struct fetch_run other = {.key = "k"}; // the other worker has heard of it
    fetch_run(&rig.h, 0, &other);
    cr_assert_eq(other.err, ERR_OK, "%s", error_name(other.err));
    fetch_run_done(&other);
    rig_end(&rig);
    free(expired);
}

// Credentials given with a call are used instead of the origin's, on connections of their own.
Test(origin_s3, own_credentials_own_connections)
{
    struct server_row rows[] = {{.answer = OBJECT("", "0", "")}};
    struct sigv4_credentials keys = {SPAN("OTHERKEY"), SPAN("other"), SPAN("token")};
    struct rig rig;
    rig_start(&rig, rows, 1);
    for (int i = 0; i < 4; i++) {
        struct fetch_run run = {.key = "k", .credentials = i % 2 == 0 ? NULL : &keys};
        fetch_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, ERR_OK);
        fetch_run_done(&run);
        cr_assert(rig_asked(&rig, (unsigned)i,
                            i % 2 == 0 ? "Credential=AKIDEXAMPLE/" : "Credential=OTHERKEY/"));
    }
    cr_assert(rig_asked(&rig, 1, "x-amz-security-token: token") ||
              rig_asked(&rig, 1, "X-Amz-Security-Token: token"));
    cr_assert_eq(server_connections(&rig.server), 2);
    rig_end(&rig);
}

// Anonymous requests carry nothing of a signature.
Test(origin_s3, anonymous)
{
    struct server_row rows[] = {{.answer = OBJECT("", "0", "")}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    rig.options.credentials = ORIGIN_CREDENTIALS_ANONYMOUS;
    rig_begin(&rig);
    struct fetch_run run = {.key = "k"};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_OK);
    cr_assert_null(strcasestr(server_request(&rig.server, 0), "authorization"));
    cr_assert_null(strcasestr(server_request(&rig.server, 0), "x-amz-"));
    fetch_run_done(&run);
    rig_end(&rig);
}

// There are no credentials, and anonymous access is not configured: refused at the start, with the
// remedy.
Test(origin_s3, no_credentials)
{
    struct server_row rows[] = {{.answer = OBJECT("", "0", "")}};
    struct rig rig;
    rig_options(&rig, rows, 1);
    unsetenv("AWS_ACCESS_KEY_ID");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    unsetenv("AWS_PROFILE");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    cr_assert_eq(harness_init(&rig.h, 1, DISK_ENGINE_THREADS, &rig.options),
                 ERR_ORIGIN_CREDENTIALS);
    cr_assert_not_null(strstr(buf_cstr(&rig.h.why), "anonymous"));
    rig_end(&rig);
}

// A fetch is paused, resumed and cancelled at any time. It ends once.
Test(origin_s3, pause_and_cancel)
{
    size_t len = 3000000;
    char *text = malloc(len + 256);
    int head =
        snprintf(text, 256, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: %zu\r\n\r\n", len);
    for (size_t i = 0; i < len; i++) {
        text[(size_t)head + i] = (char)(i * 7 + i / 251);
    }
    struct server_row rows[] = {{.answer = text, .len = len + (size_t)head}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct fetch_run run = {.key = "k", .pause_every_piece = true};
    fetch_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_OK);
    cr_assert_eq(run.body.len, len);
    cr_assert_arr_eq(run.body.ptr, text + head, len);
    fetch_run_done(&run);
    for (unsigned piece = 0; piece < 3; piece++) {
        struct fetch_run cancelled = {
            .key = "k", .cancel_at_once = piece == 0, .cancel_at_piece = piece};
        fetch_run(&rig.h, 0, &cancelled);
        cr_assert_eq(cancelled.err, ERR_CANCELLED);
        cr_assert_eq(cancelled.pieces, piece);
        fetch_run_done(&cancelled);
    }
    struct fetch_run refused = {.key = "k", .head_answer = ERR_NO_MEMORY};
    fetch_run(&rig.h, 0, &refused);
    cr_assert_eq(refused.err, ERR_NO_MEMORY);
    fetch_run_done(&refused);
    rig_end(&rig);
    free(text);
}

// More calls than slots wait in line and all end.
struct crowd {
    struct origin_fetch f;
    struct harness *h;
    struct harness_wait *wait;
    atomic_uint *left;
    char key[16];
};

static enum err crowd_head(struct origin_fetch *f)
{
    (void)f;
    return ERR_OK;
}

static enum err crowd_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void crowd_end(struct origin_fetch *f, enum err err)
{
    struct crowd *crowd = (struct crowd *)f;
    cr_assert_eq(err, ERR_OK);
    cr_assert_leq(crowd->h->origin->workers[0].running_count, 4);
    if (atomic_fetch_sub(crowd->left, 1) == 1) {
        harness_signal(crowd->wait);
    }
}

static void crowd_start(struct worker *w, void *ctx)
{
    struct crowd *crowd = ctx;
    for (unsigned i = 0; i < 40; i++) {
        origin_fetch_start(w, crowd[i].h->origin, &crowd[i].f);
    }
    cr_assert_eq(crowd->h->origin->workers[0].running_count, 4);
    cr_assert_eq(crowd->h->origin->workers[0].waiting_count, 36);
}

Test(origin_s3, slots)
{
    struct server_row rows[] = {{.answer = OBJECT("", "5", "hello")}};
    struct rig rig;
    struct harness_wait wait;
    atomic_uint left = 40;
    struct crowd *crowd = calloc(40, sizeof(*crowd));
    rig_start(&rig, rows, 1);
    harness_wait_init(&wait);
    for (unsigned i = 0; i < 40; i++) {
        crowd[i].h = &rig.h;
        crowd[i].wait = &wait;
        crowd[i].left = &left;
        snprintf(crowd[i].key, sizeof(crowd[i].key), "k%u", i);
        crowd[i].f = (struct origin_fetch){.bucket = SPAN("bkt"),
                                           .key = span_from_cstr(crowd[i].key),
                                           .on_head = crowd_head,
                                           .on_body = crowd_body,
                                           .on_end = crowd_end};
    }
    harness_on_worker(&rig.h, 0, crowd_start, crowd);
    harness_wait_for(&wait);
    cr_assert_eq(server_requests(&rig.server), 40);
    cr_assert_leq(server_connections(&rig.server), 4);
    rig_end(&rig);
    free(crowd);
}

// Calls that still run when everything stops are dropped without a leak and without a callback.
static void stop_start(struct worker *w, void *ctx)
{
    struct crowd *crowd = ctx;
    for (unsigned i = 0; i < 10; i++) {
        origin_fetch_start(w, crowd[i].h->origin, &crowd[i].f);
    }
    harness_signal(crowd->wait);
}

static void stop_end(struct origin_fetch *f, enum err err)
{
    (void)f;
    (void)err;
    cr_assert_fail("a callback after the stop");
}

Test(origin_s3, stop_with_running_calls)
{
    struct server_row rows[] = {{.answer = "HTTP/1.1 100 Continue\r\n\r\n"}};
    struct rig rig;
    struct harness_wait wait;
    struct crowd *crowd = calloc(10, sizeof(*crowd));
    rig_start(&rig, rows, 1);
    harness_wait_init(&wait);
    for (unsigned i = 0; i < 10; i++) {
        crowd[i].h = &rig.h;
        crowd[i].wait = &wait;
        crowd[i].f = (struct origin_fetch){.bucket = SPAN("bkt"),
                                           .key = SPAN("k"),
                                           .on_head = crowd_head,
                                           .on_body = crowd_body,
                                           .on_end = stop_end};
    }
    harness_on_worker(&rig.h, 0, stop_start, crowd);
    harness_wait_for(&wait);
    rig_end(&rig);
    free(crowd);
}
