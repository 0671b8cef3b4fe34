// SPDX-License-Identifier: Apache-2.0
// Proves: which client may use which route of the admin port, and that parameters and bodies are
// checked. An action's answer reaches its caller from any thread, or is dropped.
#include "test.h"

#include "control/admin.h"
#include "stats/stats.h"
#include "waiting.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static char token_path[64];
static struct admin_call *held[ADMIN_CALLS_MAX];
static atomic_uint held_count;

static void explain(void *ctx, struct admin_call *call)
{
    (void)ctx;
    struct span uri = admin_call_parameter(call, "uri");
    json_t *json = json_pack("{s:s%, s:b}", "uri", uri.ptr != NULL ? uri.ptr : "", uri.len, "range",
                             admin_call_parameter(call, "range").ptr != NULL);
    admin_call_answer(&call, 200, json);
}

static void evict(void *ctx, struct admin_call *call)
{
    (void)ctx;
    json_t *json =
        json_pack("{s:i}", "count", (int)json_array_size(admin_call_member(call, "uris")));
    admin_call_answer(&call, 200, json);
}

static void hold(void *ctx, struct admin_call *call)
{
    (void)ctx;
    held[atomic_load(&held_count)] = call;
    atomic_fetch_add(&held_count, 1);
}

static void job_cancel(void *ctx, struct admin_call *call)
{
    (void)ctx;
    struct span id = admin_call_parameter(call, "id");
    admin_call_answer(&call, 200, json_pack("{s:s%}", "id", id.ptr, id.len));
}

static struct admin_options options(void)
{
    struct admin_options o = {.host = "127.0.0.1", .io_engine = "threads"};
    o.actions[ADMIN_ACTION_explain] = explain;
    o.actions[ADMIN_ACTION_evict] = evict;
    o.actions[ADMIN_ACTION_reload] = hold;
    o.actions[ADMIN_ACTION_job_cancel] = job_cancel;
    return o;
}

static struct admin *start(const struct admin_options *o)
{
    struct buf why;
    struct admin *admin = NULL;
    buf_init(&why, 4096);
    cr_assert_eq(admin_start(o, &admin, &why), ERR_OK, "%s", buf_cstr(&why));
    buf_done(&why);
    return admin;
}

static void write_token(const char *text)
{
    snprintf(token_path, sizeof(token_path), "/tmp/forebay-token-XXXXXX");
    int fd = mkstemp(token_path);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static int connect_to(struct admin *admin)
{
    unsigned port = 0;
    cr_assert_eq(sscanf(admin_listen_address(admin), "127.0.0.1:%u", &port), 1);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval t = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

static char answer[1 << 20];

static void read_all(int fd)
{
    size_t len = 0;
    ssize_t got;
    while ((got = recv(fd, answer + len, sizeof(answer) - 1 - len, 0)) > 0) {
        len += (size_t)got;
    }
    answer[len] = '\0';
    close(fd);
}

// Sends "METHOD /path" with more header lines and a body. Returns the status, and leaves the whole
// reply in `answer`.
static unsigned ask(struct admin *admin, const char *what, const char *headers, const char *body)
{
    char request[8192];
    int len = snprintf(request, sizeof(request), "%s HTTP/1.1\r\n%s%sContent-Length: %zu\r\n\r\n%s",
                       what, strstr(headers, "Host:") != NULL ? "" : "Host: 127.0.0.1\r\n", headers,
                       strlen(body), body);
    int fd = connect_to(admin);
    cr_assert_eq(send(fd, request, (size_t)len, MSG_NOSIGNAL), len);
    read_all(fd);
    return (unsigned)strtoul(answer + 9, NULL, 10);
}

#define CONTROL "X-Forebay-Control: 1\r\n"
#define GOOD "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
#define BAD "Authorization: Bearer 0123456789abcdef0123456789abcdeX\r\n"

// The right to see details is tested with GET explain, control with POST evict, open access with
// GET summary.
Test(admin_routes, the_rights_matrix)
{
    static const struct row {
        bool has_token, distrusts_loopback;
        const char *headers;
        unsigned detail, control;
    } rows[] = {
        {false, false, "", 200, 403},
        {false, false, CONTROL, 200, 200},
        {false, false, "X-Forebay-Control: yes\r\n", 200, 403},
        {false, false, CONTROL "Host: evil.example\r\n", 403, 403},
        {false, false, CONTROL "Host: cache.svc\r\n", 200, 200},
        {false, false, CONTROL "Host: LOCALHOST:1\r\n", 200, 200},
        {false, false, CONTROL GOOD, 401, 401},
        {false, true, CONTROL, 401, 401},
        {true, false, CONTROL, 200, 200},
        {true, false, CONTROL BAD, 401, 401},
        {true, true, CONTROL, 401, 401},
        {true, true, CONTROL BAD, 401, 401},
        {true, true, CONTROL "Authorization: Basic Zm9v\r\n", 401, 401},
        {true, true, CONTROL GOOD, 200, 200},
        {true, true, GOOD, 200, 403},
        {true, true, CONTROL GOOD "Host: evil.example\r\n", 403, 403},
        {true, true, CONTROL GOOD "Host: cache.svc:9001\r\n", 200, 200},
    };
    static const char *const hosts[] = {"cache.svc"};
    write_token("0123456789abcdef0123456789abcdef\n");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct admin_options o = options();
        o.access.token_file = rows[i].has_token ? token_path : NULL;
        o.access.distrusts_loopback = rows[i].distrusts_loopback;
        o.access.allowed_hosts = hosts;
        o.access.allowed_host_count = 1;
        struct admin *admin = start(&o);
        cr_assert_eq(ask(admin, "GET /api/v1/summary", rows[i].headers, ""), 200, "row %zu", i);
        cr_assert_eq(ask(admin, "GET /api/v1/explain?uri=s3://b/k", rows[i].headers, ""),
                     rows[i].detail, "row %zu: %s", i, answer);
        cr_assert_eq(ask(admin, "POST /api/v1/evict", rows[i].headers, "{\"uris\":[\"s3://b/k\"]}"),
                     rows[i].control, "row %zu: %s", i, answer);
        admin_stop(admin);
    }
    unlink(token_path);
}

Test(admin_routes, a_token_file_that_cannot_be_used)
{
    static const char *const texts[] = {"", "short\n", "0123456789abcdef with blanks", "\n\n"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct admin_options o = options();
        struct admin *admin = NULL;
        struct buf why;
        write_token(texts[i]);
        o.access.token_file = token_path;
        buf_init(&why, 4096);
        cr_assert_eq(admin_start(&o, &admin, &why), ERR_INVALID, "%s", texts[i]);
        cr_assert_not_null(strstr(buf_cstr(&why), "openssl rand -hex 32"));
        unlink(token_path);
        why.len = 0;
        cr_assert_eq(admin_start(&o, &admin, &why), ERR_INVALID);
        cr_assert_not_null(strstr(buf_cstr(&why), "No such file"));
        buf_done(&why);
    }
}

Test(admin_routes, parameters_and_bodies_are_judged)
{
    static const struct row {
        const char *what, *body;
        unsigned status;
        const char *says;
    } rows[] = {
        {"GET /api/v1/explain?uri=s3://b/k&range=0-1", "", 200,
         "{\"uri\":\"s3://b/k\",\"range\":true}"},
        {"GET /api/v1/explain?uri=s3://b/a%20b%2Bc", "", 200, "\"s3://b/a b+c\""},
        {"GET /api/v1/explain?uri=s3://b/a%0Ab", "", 200, "\"s3://b/a\\nb\""},
        {"GET /api/v1/explain?uri=a&uri=b", "", 400, "stands twice"},
        {"GET /api/v1/explain?url=a", "", 400,
         "unknown parameter \\\"url\\\" (known: uri range ask)"},
        {"GET /api/v1/explain?uri=a%00b", "", 400, "NAME=VALUE"},
        {"GET /api/v1/explain?uri", "", 400, "NAME=VALUE"},
        {"GET /api/v1/summary?x=1", "", 400, "there are none"},
        {"GET /livez?x=1", "", 200, "ok"},
        {"POST /api/v1/evict", "{\"uris\":[\"a\",\"b\"]}", 200, "{\"count\":2}"},
        {"POST /api/v1/evict", "", 200, "{\"count\":0}"},
        {"POST /api/v1/evict?uris=a", "", 400, "belong into the body"},
        {"POST /api/v1/evict", "{\"uri\":1}", 400, "unknown parameter \\\"uri\\\""},
        {"POST /api/v1/evict", "[1]", 400, "no JSON object"},
        {"POST /api/v1/evict", "{\"uris\":", 400, "no JSON object"},
        {"POST /api/v1/evict", "{\"uris\":1,\"uris\":2}", 400, "no JSON object"},
        {"GET /api/v1/evict", "", 405, "only POST"},
        {"PUT /api/v1/evict", "", 405, "Allow: POST\r\n"},
        {"POST /api/v1/explain", "", 405, "Allow: GET, HEAD\r\n"},
        {"DELETE /api/v1/jobs/17", "", 200, "{\"id\":\"17\"}"},
        {"DELETE /api/v1/jobs/", "", 404, "no such page"},
        {"DELETE /api/v1/jobs/1/2", "", 404, "no such page"},
        {"DELETE /api/v1/jobs/1\rX", "", 404, "no such page"}, // evhttp lets it through
        {"GET /api/v1/jobs", "", 404, "no such page"},         // no action
        {"GET /api/v2/summary", "", 404, "no such page"},
    };
    struct admin_options o = options();
    struct admin *admin = start(&o);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert_eq(ask(admin, rows[i].what, CONTROL, rows[i].body), rows[i].status, "%s: %s",
                     rows[i].what, answer);
        cr_assert_not_null(strstr(answer, rows[i].says), "%s: %s", rows[i].what, answer);
    }
    admin_stop(admin);
}

Test(admin_routes, a_body_that_is_too_long)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    int fd = connect_to(admin);
    char head[200];
    int len = snprintf(head, sizeof(head),
                       "POST /api/v1/evict HTTP/1.1\r\nHost: ::1\r\nContent-Length: %u\r\n\r\n",
                       ADMIN_BODY_MAX + 1);
    cr_assert_eq(send(fd, head, (size_t)len, MSG_NOSIGNAL), len);
    read_all(fd);
    cr_assert_eq(strncmp(answer, "HTTP/1.1 413 ", 13), 0, "%s", answer);
    cr_assert_eq(ask(admin, "GET /livez", "", ""), 200);
    admin_stop(admin);
}

static void *answer_all(void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < ADMIN_CALLS_MAX; i++) {
        admin_call_answer(&held[i], 200, json_pack("{s:i}", "number", (int)i));
    }
    return NULL;
}

// The limit of calls is reached. Callers leave, and answers come after the thread is gone.
Test(admin_routes, calls_are_answered_from_another_thread)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    static const char request[] =
        "POST /api/v1/reload HTTP/1.1\r\nHost: [::1]\r\n" CONTROL "Content-Length: 0\r\n\r\n";
    int fds[ADMIN_CALLS_MAX];
    pthread_t thread;
    atomic_store(&held_count, 0);
    for (unsigned i = 0; i < ADMIN_CALLS_MAX; i++) {
        fds[i] = connect_to(admin);
        cr_assert_gt(send(fds[i], request, sizeof(request) - 1, MSG_NOSIGNAL), 0);
        wait_for(atomic_load(&held_count) == i + 1);
    }
    uint64_t refused = stats_sum(COUNTER_admin_calls_refused);
    cr_assert_eq(ask(admin, "POST /api/v1/reload", CONTROL, ""), ADMIN_STATUS_BUSY);
    cr_assert_eq(stats_sum(COUNTER_admin_calls_refused), refused + 1);
    cr_assert_eq(ask(admin, "GET /livez", "", ""), 200); // nobody waits for them
    close(fds[0]);
    cr_assert_eq(pthread_create(&thread, NULL, answer_all, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    for (unsigned i = 1; i < ADMIN_CALLS_MAX; i++) {
        char expected[32];
        read_all(fds[i]);
        snprintf(expected, sizeof(expected), "{\"number\":%u}", i);
        cr_assert_not_null(strstr(answer, expected), "%s", answer);
    }
    atomic_store(&held_count, 0);
    fds[0] = connect_to(admin);
    cr_assert_gt(send(fds[0], request, sizeof(request) - 1, MSG_NOSIGNAL), 0);
    wait_for(atomic_load(&held_count) == 1);
    admin_stop(admin);
    admin_call_refuse(&held[0], 503, "too late");
    close(fds[0]);
}

static void refuse_and_note(void *ctx, struct admin_call *call)
{
    (void)ctx;
    admin_call_refuse(&call, 503, "stopping");
    atomic_fetch_add(&held_count, 1);
}

// An answer that is ready when the thread is stopped is still sent, so a client that asks for the
// drain gets its reply.
Test(admin_routes, a_client_that_asks_for_a_drain_gets_its_answer)
{
    static const char request[] =
        "POST /api/v1/drain HTTP/1.1\r\nHost: [::1]\r\n" CONTROL "Content-Length: 0\r\n\r\n";
    struct admin_options o = options();
    o.actions[ADMIN_ACTION_drain] = refuse_and_note;
    for (unsigned i = 0; i < 20; i++) {
        struct admin *admin = start(&o);
        atomic_store(&held_count, 0);
        int fd = connect_to(admin);
        cr_assert_gt(send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL), 0);
        wait_for(atomic_load(&held_count) == 1);
        admin_stop(admin);
        read_all(fd);
        cr_assert_eq(strncmp(answer, "HTTP/1.1 503 ", 13), 0, "%s", answer);
    }
}

// 32 idle connections take no slot from calls, watchers or probes.
Test(admin_routes, events_come_once_a_second_and_are_bounded)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    static const char request[] = "GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n";
    int fds[ADMIN_STREAMS_MAX], idle[ADMIN_CONNECTIONS_MAX];
    for (unsigned i = 0; i < ADMIN_STREAMS_MAX; i++) {
        fds[i] = connect_to(admin);
        cr_assert_gt(send(fds[i], request, sizeof(request) - 1, MSG_NOSIGNAL), 0);
        cr_assert_gt(recv(fds[i], answer, sizeof(answer), 0), 0);
        cr_assert_eq(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
    }
    cr_assert_eq(ask(admin, "GET /api/v1/events", "", ""), 503);
    for (unsigned i = 0; i < ADMIN_CONNECTIONS_MAX; i++) {
        idle[i] = connect_to(admin);
    }
    cr_assert_eq(ask(admin, "GET /livez", "", ""), 200);
    // fds[0] leaves; the others get two more events.
    close(fds[0]);
    for (unsigned i = 1; i < ADMIN_STREAMS_MAX; i++) {
        size_t len = 0;
        unsigned events = 0;
        while (events < 3) {
            ssize_t got = recv(fds[i], answer + len, sizeof(answer) - 1 - len, 0);
            cr_assert_gt(got, 0);
            len += (size_t)got;
            answer[len] = '\0';
            events = 0;
            for (const char *at = answer; (at = strstr(at, "\ndata: {\"time\":")) != NULL; at++) {
                events++;
            }
        }
    }
    int again = connect_to(admin); // the place of the one that left is free
    cr_assert_gt(send(again, request, sizeof(request) - 1, MSG_NOSIGNAL), 0);
    cr_assert_gt(recv(again, answer, sizeof(answer), 0), 0);
    cr_assert_eq(strncmp(answer, "HTTP/1.1 200 ", 13), 0);
    admin_stop(admin);
    for (unsigned i = 1; i < ADMIN_STREAMS_MAX; i++) {
        close(fds[i]);
    }
    for (unsigned i = 0; i < ADMIN_CONNECTIONS_MAX; i++) {
        close(idle[i]);
    }
    close(again);
}

Test(admin_routes, the_summary_has_every_row_of_the_table)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    uint64_t before = stats_sum(COUNTER_hit_small); // tsan's runner has one process for all tests
    stats_add(COUNTER_hit_small, 3);
    stats_sub(COUNTER_http_inflight, 1); // seen before its up
    stats_observe_us(HISTOGRAM_first_byte_hit, 700);
    stats_count_request("GetObject", 200);
    stats_count_request("HeadObject", 200);
    stats_count_result("GetObject", "hit");
    stats_count_bypass("rule");
    cr_assert_eq(ask(admin, "GET /api/v1/summary", "", ""), 200);
    json_t *json = json_loads(strstr(answer, "\r\n\r\n"), 0, NULL);
    cr_assert_not_null(json);
    const json_t *counters = json_object_get(json, "counters");
    cr_assert_eq(json_object_size(counters), COUNTER_COUNT_);
    cr_assert_eq(json_object_size(json_object_get(json, "histograms")), HISTOGRAM_COUNT_);
    cr_assert_eq((uint64_t)json_integer_value(json_object_get(counters, "hit_small")), before + 3);
    cr_assert_eq(json_integer_value(json_object_get(counters, "http_inflight")), 0);
    cr_assert(json_is_array(json_object_get(json, "conditions")));
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(json, "requests"), "200")), 2);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(json, "results"), "hit")), 1);
    cr_assert_eq(json_integer_value(json_object_get(json_object_get(json, "bypass"), "rule")), 1);
    const json_t *first = json_object_get(json_object_get(json, "histograms"), "first_byte_hit");
    cr_assert_eq(json_integer_value(json_array_get(json_object_get(first, "counts"), 2)), 1);
    json_decref(json);
    admin_stop(admin);
}
