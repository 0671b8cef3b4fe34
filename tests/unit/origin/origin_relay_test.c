// SPDX-License-Identifier: Apache-2.0
// Relayed requests: the parts of a client's request that reach the origin, and the parts of the
// answer that come back. A request that changes something is never sent twice.
#include "rig.h"
#include "test.h"

// A client's listing is sent with our signature instead of the client's, in canonical form, with
// the client's own headers.
Test(origin_relay, listing)
{
    struct server_row rows[] = {
        {.answer =
             "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nx-amz-request-id: R\r\n"
             "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nConnection: keep-alive, x-hop\r\nx-hop: 1\r\n"
             "x-amz-bucket-region: us-east-1\r\nTransfer-Encoding: chunked\r\n\r\n"
             "3\r\n<a>\r\n4\r\n</a>\r\n0\r\n\r\n"}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct relay_run run = {
        .method = "GET",
        .target = "/bkt?prefix=a%2fb%20c&list-type=2&delimiter=/&X-Amz-Signature=ff&X-Amz-Date=1",
        .headers = {"Authorization: AWS4-HMAC-SHA256 Credential=CLIENT/x",
                    "X-Amz-Date: 20200101T000000Z", "x-amz-content-sha256: UNSIGNED-PAYLOAD",
                    "x-amz-security-token: clienttoken",
                    "x-amz-optional-object-attributes: RestoreStatus", "User-Agent: agent/1",
                    "amz-sdk-invocation-id: 1", "X-Forwarded-For: 1.2.3.4", "Accept-Encoding: gzip",
                    "Connection: keep-alive, x-own-hop", "x-own-hop: 1", "Expect: 100-continue",
                    "Cookie: a=b", "TE: trailers"}};
    relay_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_OK, "%s", error_name(run.err));
    cr_assert_eq(run.status, 200);
    cr_assert_not(run.has_length);
    cr_assert(span_equal_cstr(buf_span(&run.answer), "<a></a>"));
    cr_assert_str_eq(buf_cstr(&run.answer_headers),
                     "Content-Type: application/xml\nx-amz-bucket-region: us-east-1\n");
    cr_assert(rig_asked_nocase(&rig, 0,
                               "GET /bkt?delimiter=%2F&list-type=2&prefix=a%2Fb%20c HTTP/1.1\r\n"));
    cr_assert(rig_asked_nocase(&rig, 0, "Credential=AKIDEXAMPLE/"));
    cr_assert(rig_asked_nocase(&rig, 0, "x-amz-optional-object-attributes"));
    cr_assert(rig_asked_nocase(&rig, 0,
                               "SignedHeaders=host;x-amz-content-sha256;x-amz-date;"
                               "x-amz-optional-object-attributes"));
    cr_assert(rig_asked_nocase(&rig, 0, "User-Agent: agent/1\r\n"));
    cr_assert(rig_asked_nocase(&rig, 0, "Accept-Encoding: identity\r\n"));
    static const char *const gone[] = {"CLIENT/",  "20200101",         "clienttoken",
                                       "amz-sdk",  "X-Forwarded",      "gzip",
                                       "own-hop",  "100-continue",     "Cookie",
                                       "trailers", "UNSIGNED-PAYLOAD", "X-Amz-Signature="};
    for (size_t i = 0; i < ARRAY_LEN(gone); i++) {
        cr_assert_not(rig_asked_nocase(&rig, 0, gone[i]), "%s", gone[i]);
    }
    relay_run_done(&run);
    rig_end(&rig);
}

// Uploads are framed by their length, bound by their hash, and streamed in pieces.
Test(origin_relay, uploads)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 0\r\n\r\n"}};
    size_t len = 100000;
    char *bytes = malloc(len + 1);
    memset(bytes, 'u', len);
    bytes[len] = '\0';
    static const struct {
        enum origin_body body;
        const char *expected;
        bool keeps_framing;
    } cases[] = {
        {ORIGIN_BODY_HASH, "x-amz-content-sha256: 0123456789abcdef", false},
        {ORIGIN_BODY_UNSIGNED, "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n", false},
        {ORIGIN_BODY_UNSIGNED_TRAILER,
         "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n", true},
    };
    struct rig rig;
    rig_start(&rig, rows, 1);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct relay_run run = {
            .method = "PUT",
            .target = "/bkt/k",
            .body = cases[i].body,
            .upload = bytes,
            .pause_upload = true,
            .payload_hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            .headers = {"Content-Type: text/x", "Content-Length: 7",
                        "Content-Encoding: aws-chunked,gzip", "x-amz-decoded-content-length: 5",
                        "x-amz-trailer: x-amz-checksum-crc32", "If-None-Match: *",
                        "x-amz-meta-a: b", "Transfer-Encoding: chunked"}};
        relay_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, ERR_OK, "%s", error_name(run.err));
        cr_assert(run.has_length && run.length == 0);
        cr_assert(rig_asked_nocase(&rig, i, cases[i].expected));
        cr_assert(rig_asked_nocase(&rig, i, "Content-Length: 100000\r\n"));
        cr_assert(rig_asked_nocase(&rig, i, "If-None-Match: *\r\n") &&
                  rig_asked_nocase(&rig, i, "x-amz-meta-a: b\r\n"));
        cr_assert_not(rig_asked_nocase(&rig, i, "Transfer-Encoding"));
        cr_assert_eq(rig_asked_nocase(&rig, i, "x-amz-trailer"), cases[i].keeps_framing);
        cr_assert_eq(rig_asked_nocase(&rig, i, "Content-Encoding: aws-chunked,gzip\r\n"),
                     cases[i].keeps_framing);
        cr_assert_eq(rig_asked_nocase(&rig, i, "Content-Encoding: gzip\r\n"),
                     !cases[i].keeps_framing);
        const char *body = strstr(server_request(&rig.server, i), "\r\n\r\n") + 4;
        cr_assert_str_eq(body, bytes);
        relay_run_done(&run);
    }
    rig_end(&rig);
    free(bytes);
}

// Failures: a safe request is retried, and a request that changes something never is. Errors that
// clients take for fatal are hidden.
Test(origin_relay, retries)
{
    static const char slow[] = "HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nslow";
    static const char gateway[] = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad";
    struct server_row rows[] = {
        {.answer = slow},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"},
        {.answer = slow},
        {.answer = gateway},
        {.answer = NULL},
        {.answer = NULL},
        {.answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"},
        {.answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"},
        {.answer = "HTTP/1.1 204 No Content\r\n\r\n"}};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct relay_run runs[] = {
        {.method = "GET", .target = "/bkt?acl"},
        {.method = "DELETE", .target = "/bkt/k"},
        {.method = "POST", .target = "/bkt/k?uploads"},
        {.method = "DELETE", .target = "/bkt/k"},
        {.method = "PUT", .target = "/bkt/k", .body = ORIGIN_BODY_UNSIGNED, .upload = "body"},
        {.method = "GET", .target = "/bkt?acl"},
        {.method = "GET", .target = "/bkt?acl", .pause_every_piece = true},
        {.method = "DELETE", .target = "/bkt/k"},
    };
    static const struct {
        enum err err;
        unsigned status;
        const char *body;
        unsigned requests;
    } expected[] = {
        {ERR_OK, 200, "ok", 2},       {ERR_OK, 503, "slow", 3},     {ERR_ORIGIN_5XX, 0, "", 4},
        {ERR_ORIGIN_RESET, 0, "", 5}, {ERR_ORIGIN_RESET, 0, "", 6}, {ERR_OK, 404, "none", 7},
        {ERR_OK, 403, "no", 8},       {ERR_OK, 204, "", 9},
    };
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        relay_run(&rig.h, 0, &runs[i]);
        cr_assert_eq(runs[i].err, expected[i].err, "%zu %s", i, error_name(runs[i].err));
        cr_assert_eq(runs[i].status, expected[i].status);
        cr_assert_str_eq(buf_cstr(&runs[i].answer), expected[i].body);
        cr_assert_eq(server_requests(&rig.server), expected[i].requests, "%zu", i);
        relay_run_done(&runs[i]);
    }
    cr_assert(rig_asked_nocase(&rig, 2, "DELETE /bkt/k HTTP/1.1"));
    cr_assert(rig_asked_nocase(&rig, 3, "POST /bkt/k?uploads= HTTP/1.1"));
    rig_end(&rig);
}

// A redirect to another region is resolved inside if no byte of a body has left. Otherwise the
// client is asked to retry, and the next upload goes to the right region.
Test(origin_relay, region)
{
    static const char moved[] =
        "HTTP/1.1 307 Temporary Redirect\r\nx-amz-bucket-region: eu-west-1\r\n"
        "Location: http://elsewhere/\r\nContent-Length: 0\r\n\r\n";
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    struct server_row rows[] = {
        {.answer = moved}, {.answer = ok}, {.answer = moved}, {.answer = ok}};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    struct relay_run runs[] = {
        {.method = "DELETE", .target = "/first/k"},
        {.method = "PUT", .target = "/second/k", .body = ORIGIN_BODY_UNSIGNED, .upload = "body"},
        {.method = "PUT", .target = "/second/k", .body = ORIGIN_BODY_UNSIGNED, .upload = "body"},
    };
    static const enum err errs[] = {ERR_OK, ERR_ORIGIN_RESET, ERR_OK};
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        relay_run(&rig.h, 0, &runs[i]);
        cr_assert_eq(runs[i].err, errs[i], "%zu %s", i, error_name(runs[i].err));
        relay_run_done(&runs[i]);
    }
    cr_assert_eq(server_requests(&rig.server), 4);
    cr_assert(rig_asked_nocase(&rig, 1, "/eu-west-1/") && rig_asked_nocase(&rig, 3, "/eu-west-1/"));
    rig_end(&rig);
}

// White space that a slow operation sends early is relayed as it is sent.
Test(origin_relay, early_answer)
{
    struct server_row rows[] = {{.answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: "
                                           "chunked\r\n\r\n1\r\n \r\n1\r\n \r\n7\r\n<Error>\r\n"
                                           "0\r\n\r\n"}};
    struct rig rig;
    rig_start(&rig, rows, 1);
    struct relay_run run = {.method = "POST",
                            .target = "/bkt/k?uploadId=1",
                            .body = ORIGIN_BODY_UNSIGNED,
                            .upload = "<CompleteMultipartUpload/>"};
    relay_run(&rig.h, 0, &run);
    cr_assert_eq(run.err, ERR_OK);
    cr_assert_eq(run.status, 200);
    cr_assert_str_eq(buf_cstr(&run.answer), "  <Error>");
    relay_run_done(&run);
    rig_end(&rig);
}

// A relayed answer with two lengths is never accepted, and no redirect to another scheme is
// followed.
Test(origin_relay, lies)
{
    struct server_row rows[] = {
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc"},
        {.answer =
             "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
        {.answer =
             "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"},
        {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", .close = true}};
    static const enum err errs[] = {ERR_ORIGIN_PROTOCOL, ERR_ORIGIN_PROTOCOL, ERR_OK,
                                    ERR_ORIGIN_RESET};
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct relay_run run = {.method = "GET", .target = "/bkt?acl"};
        relay_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, errs[i], "%zu %s", i, error_name(run.err));
        cr_assert_eq(run.heads, i >= 2);
        cr_assert_eq(server_requests(&rig.server), i + 1);
        relay_run_done(&run);
    }
    rig_end(&rig);
}

// The body of an error that is too long to be collected is passed on whole. While the caller has
// paused the relay, or after it has cancelled it, it gets no bytes.
Test(origin_relay, long_error_obeys_pause_and_cancel)
{
    static const size_t lens[] = {65537, 66000, 300000};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        char *body = malloc(lens[i] + 1);
        for (size_t b = 0; b < lens[i]; b++) {
            body[b] = (char)('a' + b % 23);
        }
        body[lens[i]] = '\0';
        char *answer = rig_answer("403 Forbidden", "", body);
        struct server_row rows[4] = {{0}};
        for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
            rows[r].answer = answer;
        }
        struct relay_run runs[] = {
            {.method = "GET", .target = "/bkt?acl", .pause_at_head = true},
            {.method = "GET", .target = "/bkt?acl", .pause_every_piece = true},
            {.method = "GET", .target = "/bkt?acl", .cancel_at_head = true},
            {.method = "GET",
             .target = "/bkt?acl",
             .pause_at_head = true,
             .cancel_on_resume = true}, // in the same turn
        };
        struct rig rig;
        rig_start(&rig, rows, ARRAY_LEN(rows));
        for (size_t r = 0; r < ARRAY_LEN(runs); r++) {
            bool is_cancelled = runs[r].cancel_at_head || runs[r].cancel_on_resume;
            relay_run(&rig.h, 0, &runs[r]);
            cr_assert_eq(runs[r].err, is_cancelled ? ERR_CANCELLED : ERR_OK);
            cr_assert_eq(runs[r].heads, 1);
            cr_assert_str_eq(buf_cstr(&runs[r].answer), is_cancelled ? "" : body);
            relay_run_done(&runs[r]);
        }
        rig_end(&rig);
        free(answer);
        free(body);
    }
}

// An answer that is compressed because its client accepts that is not continued by our own request,
// which does not accept it.
Test(origin_relay, an_answer_compressed_for_a_client_names_no_part)
{
    static const struct {
        const char *accepts;
        bool is_packed, names_part;
    } cases[] = {{NULL, false, true},
                 {NULL, true, true}, // stored like that, whoever asks
                 {"Accept-Encoding: gzip", false, true},
                 {"Accept-Encoding: gzip", true, false}};
    struct server_row rows[ARRAY_LEN(cases)] = {{0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        rows[i].answer =
            cases[i].is_packed
                ? "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nx-amz-id-2: 1\r\nContent-Encoding: gzip\r\n"
                  "Content-Length: 2\r\n\r\nab"
                : "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nx-amz-id-2: 1\r\nContent-Length: 2\r\n\r\nab";
    }
    struct rig rig;
    rig_start(&rig, rows, ARRAY_LEN(rows));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct relay_run run = {.method = "GET", .target = "/bkt/k", .headers = {cases[i].accepts}};
        relay_run(&rig.h, 0, &run);
        cr_assert_eq(run.err, ERR_OK);
        cr_assert_eq(run.names_part, cases[i].names_part, "%zu", i);
        cr_assert(rig_asked(&rig, (unsigned)i,
                            cases[i].accepts != NULL ? "Accept-Encoding: gzip\r\n"
                                                     : "Accept-Encoding: identity\r\n"));
        relay_run_done(&run);
    }
    rig_end(&rig);
}
