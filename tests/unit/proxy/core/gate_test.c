// SPDX-License-Identifier: Apache-2.0
// Proves: the gate admits only authorised requests: by Host in open mode, by signature and rights
// in verify mode.
#include "proxy/pass/pass_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "auth/auth.h"
#include "test.h"

static const char KEYS[] = "- id: READER\n"
                           "  secret: reader-secret\n"
                           "  allow:\n"
                           "    - {bucket: data, prefix: train/, ops: [read, list]}\n"
                           "- id: WRITER\n"
                           "  secret: writer-secret\n"
                           "  allow:\n"
                           "    - {bucket: ckpt, ops: [read, list, write, delete]}\n"
                           "    - {bucket: data, ops: [read]}\n";

static struct proxy proxy;
static struct live live;
static struct proxy_worker pw = {.proxy = &proxy, .live = &live};

static struct access_keys *load_keys(void)
{
    const char *dir = getenv("TMPDIR");
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/gate_test.XXXXXX", dir != NULL ? dir : "/tmp");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, KEYS, sizeof(KEYS) - 1), (ssize_t)sizeof(KEYS) - 1);
    (void)close(fd);
    struct access_keys *table = NULL;
    struct buf errors;
    buf_init(&errors, 4096);
    cr_assert_eq(access_keys_load(path, &table, &errors), ERR_OK, "%s", buf_cstr(&errors));
    buf_done(&errors);
    (void)unlink(path);
    return table;
}

struct ask {
    struct arena *arena;
    struct http_request http;
    struct request r;
    struct s3_error_detail detail;
};

static void ask_init(struct ask *a, const char *method, const char *host, const char *target)
{
    memset(a, 0, sizeof(*a));
    a->arena = arena_new(1u << 20);
    a->http.method = span_from_cstr(method);
    a->http.is_head = strcmp(method, "HEAD") == 0;
    a->http.host = span_from_cstr(host);
    a->http.target = span_from_cstr(target);
    cr_assert(headers_add(&a->http.headers, a->arena, SPAN("host"), a->http.host));
    a->r.http = &a->http;
    a->r.arena = a->arena;
    a->r.pw = &pw;
    a->r.live = &live;
}

static void header(struct ask *a, const char *name, const char *value)
{
    cr_assert(headers_add(&a->http.headers, a->arena, span_from_cstr(name), span_from_cstr(value)));
}

static void sign(struct ask *a, const char *id, const char *secret)
{
    struct sigv4_credentials c = {.access_key = span_from_cstr(id),
                                  .secret_key = span_from_cstr(secret)};
    struct sigv4_scope scope = {.region = SPAN("eu-north-1"), .service = SPAN("s3")};
    size_t question = span_find(a->http.target, '?');
    struct span path = {a->http.target.ptr, question}, query = {NULL, 0}, canonical;
    if (question < a->http.target.len) {
        query = (struct span){a->http.target.ptr + question + 1, a->http.target.len - question - 1};
    }
    cr_assert_eq(sigv4_canonical_query(a->arena, query, false, &canonical), ERR_OK);
    header(a, "x-amz-content-sha256", SIGV4_EMPTY_SHA256);
    cr_assert_eq(sigv4_sign(a->arena, &c, &scope, (time_t)clock_wall_s(), a->http.method, path,
                            canonical, &a->http.headers, SPAN(SIGV4_EMPTY_SHA256), NULL),
                 ERR_OK);
}

static enum err check_gate(struct ask *a)
{
    cr_assert_eq(s3_request_parse(a->arena, a->http.method, a->http.host, a->http.target,
                                  &a->http.headers, &live.domains, &a->r.s3),
                 ERR_OK);
    enum err err = gate_authorize(&a->r, &a->r.principal, &a->detail);
    cr_assert(err == ERR_OK || (!a->r.principal.verified && a->r.principal.table == NULL));
    return err;
}

static void ask_done(struct ask *a)
{
    gate_release(&a->r.principal);
    arena_free(a->arena);
}

// A page whose name was pointed at this machine cannot use its own name. Names that clients use
// pass.
Test(gate, open_host)
{
    static const struct {
        const char *host;
        enum err err;
    } rows[] = {
        {"127.0.0.1:9000", ERR_OK},
        {"[::1]:9000", ERR_OK},
        {"localhost", ERR_OK},
        {"bkt.localhost:9000", ERR_OK},
        {"bkt.s3.internal", ERR_OK},
        {"s3.internal:80", ERR_OK},
        {"b.127.0.0.1:9000", ERR_OK},
        {"evil.example", ERR_HOST_REFUSED},
        {"localhost.evil.example", ERR_HOST_REFUSED},
        {"xs3.internal", ERR_HOST_REFUSED},
        {"169.254.169.254.evil.example", ERR_HOST_REFUSED},
    };
    static struct span domain;
    domain = SPAN("s3.internal");
    live.domains = (struct s3_domains){&domain, 1};
    proxy.options.auth_mode = PROXY_AUTH_OPEN;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct ask a;
        ask_init(&a, "GET", rows[i].host, "/b/k");
        cr_expect(check_gate(&a) == rows[i].err, "%s", rows[i].host);
        cr_expect(rows[i].err != ERR_OK || span_equal_cstr(a.r.principal.name, "open"));
        cr_expect(rows[i].err == ERR_OK || a.detail.message.len > 0);
        ask_done(&a);
    }
}

// Where no client signs, a browser's request for a page passes only if the page's origin is listed.
Test(gate, open_browser)
{
    static const struct {
        const char *origin, *site;
        enum err err;
    } rows[] = {
        {NULL, NULL, ERR_OK},
        {NULL, "none", ERR_OK},
        {NULL, "same-origin", ERR_OK},
        {NULL, "same-site", ERR_BROWSER_REFUSED},
        {NULL, "cross-site", ERR_BROWSER_REFUSED},
        {NULL, "Cross-Site", ERR_BROWSER_REFUSED},
        {NULL, "", ERR_BROWSER_REFUSED},
        {NULL, "new-word", ERR_BROWSER_REFUSED},
        {"http://evil.example", NULL, ERR_BROWSER_REFUSED},
        {"http://evil.example", "none", ERR_BROWSER_REFUSED},
        {"http://127.0.0.1:9000", "same-origin", ERR_BROWSER_REFUSED},
        {"null", NULL, ERR_BROWSER_REFUSED},
        {"", NULL, ERR_BROWSER_REFUSED},
        {"https://good.example:8443", NULL, ERR_OK},
        {"https://good.example:8443", "cross-site", ERR_OK},
        {"https://GOOD.example:8443", "same-site", ERR_OK},
        {"https://good.example", NULL, ERR_BROWSER_REFUSED},
        {"http://good.example:8443", NULL, ERR_BROWSER_REFUSED},
        {"https://good.example:8443.evil", NULL, ERR_BROWSER_REFUSED},
        {"https://good.example:8443, http://evil.example", NULL, ERR_BROWSER_REFUSED},
    };
    static const char *const allowed[] = {"http://other.example", "https://good.example:8443"};
    proxy.options.auth_mode = PROXY_AUTH_OPEN;
    live.settings.allowed_origins = allowed;
    live.settings.allowed_origin_count = ARRAY_LEN(allowed);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (unsigned copies = 1; copies <= 2; copies++) {
            struct ask a;
            ask_init(&a, "POST", "127.0.0.1:9000", "/b?delete");
            for (unsigned j = 0; rows[i].origin != NULL && j < copies; j++) {
                cr_assert(headers_add(&a.http.headers, a.arena, SPAN("origin"),
                                      j == 0 ? span_from_cstr(rows[i].origin)
                                             : SPAN("http://evil.example")));
            }
            if (rows[i].site != NULL) {
                cr_assert(headers_add(&a.http.headers, a.arena, SPAN("sec-fetch-site"),
                                      span_from_cstr(rows[i].site)));
            }
            enum err want =
                rows[i].origin != NULL && copies == 2 ? ERR_BROWSER_REFUSED : rows[i].err;
            cr_expect(check_gate(&a) == want, "row %zu, %u", i, copies);
            cr_expect(want == ERR_OK || a.detail.message.len > 0);
            ask_done(&a);
        }
    }
    live.settings.allowed_origin_count = 0;
}

// Each principal may do what its rows say and nothing else; everything unsigned or wrongly signed
// is refused. Only a valid signature names a requester, whether the request is allowed or not.
Test(gate, verify)
{
    static const struct {
        const char *id, *secret, *method, *target;
        enum err err;
    } rows[] = {
        {"READER", "reader-secret", "GET", "/data/train/a%20b", ERR_OK},
        {"READER", "reader-secret", "HEAD", "/data/train/x", ERR_OK},
        {"READER", "reader-secret", "GET", "/data/?list-type=2&prefix=train%2Fa", ERR_OK},
        {"READER", "reader-secret", "GET", "/data/?list-type=2", ERR_ACCESS_DENIED},
        {"READER", "reader-secret", "GET", "/data/val/x", ERR_ACCESS_DENIED},
        {"READER", "reader-secret", "GET", "/ckpt/x", ERR_ACCESS_DENIED},
        {"READER", "reader-secret", "PUT", "/data/train/x", ERR_ACCESS_DENIED},
        {"READER", "reader-secret", "DELETE", "/data/train/x", ERR_ACCESS_DENIED},
        {"READER", "reader-secret", "POST", "/data?delete", ERR_ACCESS_DENIED},
        {"READER", "writer-secret", "GET", "/data/train/x", ERR_SIGNATURE_MISMATCH},
        {"NOBODY", "reader-secret", "GET", "/data/train/x", ERR_INVALID_ACCESS_KEY},
        {"WRITER", "writer-secret", "PUT", "/ckpt/x", ERR_OK},
        {"WRITER", "writer-secret", "POST", "/ckpt?delete", ERR_OK},
        {"WRITER", "writer-secret", "POST", "/data?delete", ERR_ACCESS_DENIED},
        {"WRITER", "writer-secret", "DELETE", "/ckpt/x?tagging", ERR_OK},
        {"WRITER", "writer-secret", "GET", "/ckpt?session", ERR_NOT_IMPLEMENTED},
        {NULL, NULL, "GET", "/data/train/x", ERR_ACCESS_DENIED},
        {NULL, NULL, "POST", "/ckpt", ERR_ACCESS_DENIED},
    };
    proxy.options.auth_mode = PROXY_AUTH_VERIFY;
    pw.access_keys = load_keys();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct ask a;
        ask_init(&a, rows[i].method, "any.host", rows[i].target);
        if (rows[i].id != NULL) {
            sign(&a, rows[i].id, rows[i].secret);
        }
        enum err err = check_gate(&a);
        cr_expect(err == rows[i].err, "row %zu: %s", i, error_name(err));
        cr_expect(err != ERR_OK || span_equal_cstr(a.r.principal.name, rows[i].id));
        cr_expect(err != ERR_SIGNATURE_MISMATCH || a.detail.string_to_sign.len > 0);
        const char *id = rows[i].id != NULL ? rows[i].id : "";
        bool is_forged = err == ERR_SIGNATURE_MISMATCH || err == ERR_INVALID_ACCESS_KEY;
        cr_expect(span_equal_cstr(a.r.requester, is_forged ? "" : id), "row %zu", i);
        cr_expect(span_equal_cstr(a.r.claimed_key, is_forged ? id : ""), "row %zu", i);
        ask_done(&a);
    }
    access_keys_unref(pw.access_keys);
    pw.access_keys = NULL;
}

// A copy needs the right to read its source. A key that is known only later is checked with the
// same principal.
Test(gate, second_questions)
{
    static const struct {
        const char *source;
        enum err err;
    } rows[] = {{"/ckpt/a", ERR_OK},
                {"data/val/x", ERR_OK},
                {"/secret/a", ERR_ACCESS_DENIED},
                {"nonsense", ERR_INVALID_ARGUMENT}};
    proxy.options.auth_mode = PROXY_AUTH_VERIFY;
    pw.access_keys = load_keys();
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct ask a;
        ask_init(&a, "PUT", "h", "/ckpt/copy");
        header(&a, "x-amz-copy-source", rows[i].source);
        sign(&a, "WRITER", "writer-secret");
        cr_expect(check_gate(&a) == rows[i].err, "%s", rows[i].source);
        if (rows[i].err == ERR_OK) {
            cr_expect(gate_allows(&a.r, S3_ALLOW_DELETE, SPAN("k")));
            cr_expect(!gate_allows(&a.r, S3_ALLOW_ANY, SPAN("k")));
        }
        ask_done(&a);
    }
    access_keys_unref(pw.access_keys);
    pw.access_keys = NULL;
}

// Without a table of keys, with SigV2 and for a signed read with a body the answer is no.
Test(gate, refused_forms)
{
    proxy.options.auth_mode = PROXY_AUTH_VERIFY;
    struct ask a;
    ask_init(&a, "GET", "h", "/data/train/x");
    sign(&a, "READER", "reader-secret");
    cr_assert_eq(check_gate(&a), ERR_ACCESS_DENIED);
    ask_done(&a);

    pw.access_keys = load_keys();
    ask_init(&a, "GET", "h", "/data/train/x?AWSAccessKeyId=READER&Signature=x&Expires=1");
    cr_assert_eq(check_gate(&a), ERR_SIGNATURE_V2);
    ask_done(&a);

    ask_init(&a, "GET", "h", "/data/train/x");
    sign(&a, "READER", "reader-secret");
    a.http.framing = HTTP_BODY_LENGTH;
    a.http.content_length = 1;
    cr_assert_eq(check_gate(&a), ERR_BAD_REQUEST);
    ask_done(&a);

    // A reload does not free the table while a request uses it.
    ask_init(&a, "GET", "h", "/data/train/x");
    sign(&a, "READER", "reader-secret");
    cr_assert_eq(check_gate(&a), ERR_OK);
    access_keys_unref(pw.access_keys);
    pw.access_keys = NULL;
    cr_assert(span_equal_cstr(a.r.principal.name, "READER"));
    cr_assert(gate_allows(&a.r, S3_ALLOW_READ, SPAN("train/x")));
    ask_done(&a);
}
