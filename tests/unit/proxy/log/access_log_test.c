// SPDX-License-Identifier: Apache-2.0
// Proves: each request has one line, which no key, header or slow reader can break, and which never
// holds a secret.
#include "proxy/core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "proxy/log/log.h"
#include "test.h"
#include "thread_limit.h"

static struct live live;
static struct proxy_worker pw = {.live = &live};
static char path[512];

static void path_init(void)
{
    const char *dir = getenv("TMPDIR");
    (void)snprintf(path, sizeof(path), "%s/access_log_test.XXXXXX", dir != NULL ? dir : "/tmp");
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    (void)close(fd);
}

static struct proxy_access_log_file *file_open(const char *at)
{
    struct proxy_access_log_file *file;
    struct buf why;
    buf_init(&why, 1024);
    cr_assert_eq(proxy_access_log_open(at, &file, &why), ERR_OK);
    buf_done(&why);
    return file;
}

static struct access_log *log_new(void)
{
    path_init();
    return access_log_new(file_open(path), 1);
}

// Closes the log. Returns the text of the file, to be freed with free().
static char *log_end(struct access_log *log)
{
    access_log_free(log);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    char *text = calloc(1, 64u << 20);
    size_t len = fread(text, 1, (64u << 20) - 1, file);
    text[len] = '\0';
    (void)fclose(file);
    (void)unlink(path);
    return text;
}

struct ask {
    struct arena *arena;
    struct http_request http;
    struct request r;
};

static void ask_init(struct ask *a, const char *method, const char *target)
{
    static struct s3_domains domains;
    memset(a, 0, sizeof(*a));
    a->arena = arena_new(1u << 20);
    a->http.method = span_from_cstr(method);
    a->http.target = span_from_cstr(target);
    a->http.host = SPAN("127.0.0.1:9000");
    a->http.peer = SPAN("127.0.0.1:5000");
    a->http.version_minor = 1;
    a->http.started_us = clock_monotonic_us();
    cr_assert_eq(s3_request_parse(a->arena, a->http.method, a->http.host, a->http.target,
                                  &a->http.headers, &domains, &a->r.s3),
                 ERR_OK);
    a->r.http = &a->http;
    a->r.arena = a->arena;
    a->r.magic = REQUEST_MAGIC;
    a->r.pw = &pw;
    a->r.live = &live;
    live.settings = (struct proxy_settings){.access_log_sample = 1};
    a->r.status = 200;
    a->r.result = RESULT_HIT;
    (void)snprintf(a->r.id, sizeof(a->r.id), "0123456789ABCDEF");
}

static void header(struct ask *a, const char *name, const char *value)
{
    cr_assert(headers_add(&a->http.headers, a->arena, span_from_cstr(name), span_from_cstr(value)));
}

static void write_line(struct access_log *log, const struct request *r, enum http_outcome outcome)
{
    const struct log_entry entry = {.r = r, .outcome = outcome, .body_bytes = 123};
    access_log_write(log, &entry);
}

static char *one_line(struct ask *a, enum http_outcome outcome)
{
    struct access_log *log = log_new();
    write_line(log, &a->r, outcome);
    return log_end(log);
}

static const char *text_of(json_t *line, const char *name)
{
    return json_string_value(json_object_get(line, name));
}

// Writes a byte of a header as a JSON reader sees it in a line. A byte that is not UTF-8 becomes
// one character.
static size_t put_shown(char *text, unsigned char byte)
{
    if (byte < 0x80) {
        text[0] = (char)byte;
        return 1;
    }
    text[0] = (char)(0xc0 | byte >> 6);
    text[1] = (char)(0x80 | (byte & 0x3f));
    return 2;
}

// The escaping checks eight bytes at once. It finds a byte that ends a string at each of the eight
// positions.
Test(access_log, without_a_thread_to_have_there_is_no_log)
{
    path_init();
    thread_limit_reached(true);
    cr_assert_null(access_log_new(file_open(path), 1));
    thread_limit_reached(false);
    (void)unlink(path);
}

Test(access_log, any_byte_anywhere)
{
    enum { PLACES = 17 };
    char agent[PLACES], shown[PLACES + 2];
    struct access_log *log = log_new();
    struct ask a;
    ask_init(&a, "GET", "/bkt/x");
    cr_assert(headers_add(&a.http.headers, a.arena, SPAN("User-Agent"),
                          (struct span){agent, sizeof(agent)}));
    for (unsigned i = 0; i < PLACES * 255; i++) {
        memset(agent, 'a', sizeof(agent));
        agent[i / 255] = (char)(1 + i % 255);
        write_line(log, &a.r, HTTP_DONE);
    }
    char *text = log_end(log), *rest = text;
    for (unsigned i = 0; i < PLACES * 255; i++) {
        char *line = strsep(&rest, "\n");
        json_t *fields = json_loads(line, 0, NULL);
        memset(shown, 'a', sizeof(shown));
        size_t len = put_shown(shown + i / 255, (unsigned char)(1 + i % 255));
        shown[PLACES - 1 + len] = '\0';
        cr_assert(fields != NULL && strcmp(text_of(fields, "ua"), shown) == 0, "%s", line);
        json_decref(fields);
    }
    free(text);
    arena_free(a.arena);
}

// Each field is where a JSON reader expects it, even if key and agent try to break out of their
// strings.
Test(access_log, json)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/a%22b%0A%5C%01%FF%C3%A9%C2%85/x");
    header(&a, "User-Agent", "evil\"\\\xff agent");
    header(&a, "Range", "bytes=0-9");
    header(&a, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    header(&a, "Authorization", "SECRET");
    header(&a, "x-amz-security-token", "SECRET");
    a.r.bytes_disk = 1;
    a.r.blocks_hit = 2;
    a.r.blocks_total = 3;
    a.r.object_size_bytes = 5000000000;
    char *text = one_line(&a, HTTP_DONE);
    cr_assert_null(strstr(text, "SECRET"));
    cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1);
    json_error_t error;
    json_t *line = json_loads(text, 0, &error);
    cr_assert_not_null(line, "%s in %s", error.text, text);
    cr_assert_str_eq(text_of(line, "op"), "GetObject");
    cr_assert_str_eq(text_of(line, "id"), "0123456789ABCDEF");
    cr_assert_str_eq(text_of(line, "bucket"), "bkt");
    cr_assert_str_eq(text_of(line, "key"), "a\"b\n\\\x01\xc3\xbf\xc3\xa9\xc3\x82\xc2\x85/x");
    cr_assert_str_eq(text_of(line, "range"), "bytes=0-9");
    cr_assert_str_eq(text_of(line, "trace_id"), "0af7651916cd43dd8448eb211c80319c");
    cr_assert_str_eq(text_of(line, "result"), "hit");
    cr_assert_str_eq(text_of(line, "source"), "disk");
    cr_assert_eq(json_integer_value(json_object_get(line, "status")), 200);
    cr_assert_eq(json_integer_value(json_object_get(line, "bytes")), 123);
    cr_assert_eq(json_integer_value(json_object_get(line, "object_size")), 5000000000);
    cr_assert_eq(strlen(text_of(line, "ts")), DATE_ISO_LEN);
    json_decref(line);
    free(text);
    arena_free(a.arena);
}

// Presigned values are cut out of the request line, in any spelling.
Test(access_log, s3_form)
{
    struct ask a;
    ask_init(&a, "GET",
             "/bkt/"
             "a%20b?X-Amz-Signature=SECRET&x-amz-security-token=SECRET&X-Amz-%53ignature=SECRET&"
             "versionId=v1");
    live.settings.access_log_format = PROXY_ACCESS_LOG_S3;
    header(&a, "User-Agent", "agent \"x\"");
    header(&a, "Referer", "http://h/p?X-Amz-Signature=SECRET");
    a.r.object_size_bytes = 10;
    char *text = one_line(&a, HTTP_DONE);
    cr_assert_null(strstr(text, "SECRET"), "%s", text);
    cr_assert_not_null(
        strstr(text,
               " REST.GET.OBJECT a%20b \"GET /bkt/a%20b?X-Amz-Signature=-&"
               "x-amz-security-token=-&X-Amz-%53ignature=-&versionId=v1 HTTP/1.1\" 200 - 123 10 "),
        "%s", text);
    cr_assert_not_null(strstr(text, " \"http://h/p\" \"agent %22x%22\" - "), "%s", text);
    cr_assert_not_null(strstr(text, "- bkt ["), "%s", text);
    free(text);
    arena_free(a.arena);

    ask_init(&a, "GET", "/bkt/k?versionId=v1");
    live.settings.access_log_format = PROXY_ACCESS_LOG_S3;
    text = one_line(&a, HTTP_DONE);
    cr_assert_not_null(strstr(text, " \"-\" \"-\" v1 "), "%s", text);
    free(text);
    arena_free(a.arena);

    ask_init(&a, "GET", "/bkt?list-type=2");
    live.settings.access_log_format = PROXY_ACCESS_LOG_S3;
    text = one_line(&a, HTTP_DONE);
    cr_assert_not_null(strstr(text, " REST.GET.BUCKET - \"GET /bkt?list-type=2 HTTP/1.1\""), "%s",
                       text);
    free(text);
    arena_free(a.arena);
}

// Shortened and hashed keys leave no trace of the key anywhere in the line, in all forms.
Test(access_log, keys_hidden)
{
    static const enum log_keys KEYS[] = {LOG_KEYS_PREFIX, LOG_KEYS_HASH};
    for (unsigned i = 0; i < 6; i++) {
        log_keys_set(KEYS[i % 2]);
        struct ask a;
        ask_init(&a, "GET", "/bkt/dir/private.bin?prefix=private");
        live.settings.access_log_format = (enum proxy_access_log_format)(i / 2);
        header(&a, "Referer", "http://h/private");
        char *text = one_line(&a, HTTP_DONE);
        cr_assert_null(strstr(text, "private"), "%s", text);
        cr_assert((strstr(text, "dir/") != NULL) == (KEYS[i % 2] == LOG_KEYS_PREFIX), "%s", text);
        free(text);
        arena_free(a.arena);
    }
    log_keys_set(LOG_KEYS_FULL);
}

// A line for people has columns. Nothing breaks them, and reason and error come last.
Test(access_log, text_form)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/a%20b%0Ac");
    live.settings.access_log_format = PROXY_ACCESS_LOG_TEXT;
    header(&a, "Range", "bytes=0-9");
    char *text = one_line(&a, HTTP_DONE);
    cr_assert_eq(text[2], ':', "%s", text);
    cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1);
    cr_assert_not_null(strstr(text, " 200 hit           123 B  "), "%s", text);
    cr_assert_not_null(strstr(text, " ms GetObject bkt/a%20b%0Ac bytes=0-9\n"), "%s", text);
    free(text);
    a.r.err = ERR_ORIGIN_CONNECT;
    a.r.error_code = "ServiceUnavailable";
    a.r.status = 503;
    a.r.result = RESULT_NONE;
    text = one_line(&a, HTTP_DONE);
    cr_assert_not_null(strstr(text, " 503 -  "), "%s", text);
    cr_assert_not_null(strstr(text, " ServiceUnavailable why=connect\n"), "%s", text);
    free(text);
    arena_free(a.arena);
}

// A line names the client, the IDs that join it with the logs of both sides, and the reason of a
// failure.
Test(access_log, a_line_names_the_requester_both_ids_and_the_reason)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/k");
    header(&a, "x-request-id", "client-7");
    a.r.requester = SPAN("TRAINER");
    (void)snprintf(a.r.origin_id, sizeof(a.r.origin_id), "ORIGIN1");
    a.r.err = ERR_ORIGIN_REFUSED;
    a.r.status = 403;
    char *text = one_line(&a, HTTP_DONE);
    cr_assert_not_null(strstr(text, "\"request_id\":\"client-7\""), "%s", text);
    cr_assert_not_null(strstr(text, "\"requester\":\"TRAINER\""), "%s", text);
    cr_assert_not_null(strstr(text, "\"origin_id\":\"ORIGIN1\""), "%s", text);
    cr_assert_not_null(strstr(text, "\"why\":\"credentials\""), "%s", text);
    free(text);
    a.r.requester = SPAN("");
    a.r.claimed_key = SPAN("NOBODY");
    a.r.result = RESULT_NONE;
    text = one_line(&a, HTTP_DONE);
    cr_assert_not_null(strstr(text, "\"claimed_key\":\"NOBODY\""), "%s", text);
    cr_assert_null(strstr(text, "\"result\""), "%s", text);
    cr_assert_null(strstr(text, "TRAINER"), "%s", text);
    free(text);
    arena_free(a.arena);
}

// Sampling leaves out successes only.
Test(access_log, sampling)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/k");
    live.settings.access_log_sample = 0;
    struct access_log *log = log_new();
    for (unsigned i = 0; i < 100; i++) {
        write_line(log, &a.r, HTTP_DONE);
    }
    write_line(log, &a.r, HTTP_CLIENT_GONE);
    write_line(log, &a.r, HTTP_CLIENT_SLOW);
    a.r.status = 404;
    a.r.err = ERR_NO_SUCH_KEY;
    a.r.error_code = "NoSuchKey";
    write_line(log, &a.r, HTTP_DONE);
    char *text = log_end(log);
    cr_assert_not_null(strstr(text, "\"error\":\"ClientGone\""));
    cr_assert_not_null(strstr(text, "\"error\":\"ClientSlow\""));
    cr_assert_not_null(strstr(text, "\"status\":404,\"error\":\"NoSuchKey\""));
    unsigned lines = 0;
    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    cr_assert_eq(lines, 3);
    free(text);
    arena_free(a.arena);
}

// Far more lines come than the ring holds. Lines that do not fit are counted, and each line in the
// log is whole.
Test(access_log, full_ring)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/some/key/of/usual/length.bin");
    unsigned long before = stats_sum(COUNTER_access_log_dropped);
    struct access_log *log = log_new();
    enum { LINES = 20000 };
    for (unsigned i = 0; i < LINES; i++) {
        a.r.object_size_bytes = i + 1;
        write_line(log, &a.r, HTTP_DONE);
    }
    char *text = log_end(log);
    unsigned long lines = 0;
    for (char *at = text; *at != '\0'; lines++) {
        char *end = strchr(at, '\n');
        cr_assert_not_null(end);
        cr_assert(at[0] == '{' && end[-1] == '}');
        at = end + 1;
    }
    cr_assert_eq(lines + (stats_sum(COUNTER_access_log_dropped) - before), LINES);
    cr_assert_gt(lines, 0);
    free(text);
    arena_free(a.arena);
}

// After a rename and a reopen, lines go to a new file, and no line is lost.
Test(access_log, reopening)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/k");
    struct access_log *log = log_new();
    write_line(log, &a.r, HTTP_DONE);
    char old[600];
    (void)snprintf(old, sizeof(old), "%s.1", path);
    cr_assert_eq(rename(path, old), 0);
    access_log_reopen(log);
    write_line(log, &a.r, HTTP_DONE);
    access_log_free(log);
    struct stat st_new, st_old;
    cr_assert_eq(stat(path, &st_new), 0);
    cr_assert_eq(stat(old, &st_old), 0);
    cr_assert_gt(st_new.st_size + st_old.st_size, 0);
    struct proxy_access_log_file *none = NULL;
    struct buf why;
    buf_init(&why, 1024);
    cr_assert_eq(proxy_access_log_open("/nonexistent/dir/log", &none, &why), ERR_NOT_FOUND);
    cr_assert_gt(why.len, 0);
    buf_done(&why);
    (void)unlink(path);
    (void)unlink(old);
    arena_free(a.arena);
}

// After a change of the file, earlier lines stay in the first file, and later ones go to the
// second. With `off`, they go nowhere.
Test(access_log, switching)
{
    struct ask a;
    ask_init(&a, "GET", "/bkt/k");
    struct access_log *log = log_new();
    char first[sizeof(path)];
    memcpy(first, path, sizeof(path));
    a.r.object_size_bytes = 111;
    write_line(log, &a.r, HTTP_DONE);
    path_init();
    access_log_switch(log, file_open(path));
    access_log_switch(log, file_open(NULL)); // nobody has taken the one before yet, or somebody has
    access_log_switch(log, file_open(path));
    struct stat st;
    do {
        a.r.object_size_bytes = 222;
        write_line(log, &a.r, HTTP_DONE);
        cr_assert_eq(stat(path, &st), 0);
    } while (st.st_size == 0);
    char *text = log_end(log);
    cr_assert_null(strstr(text, "\"object_size\":111,"), "%s", text);
    free(text);
    memcpy(path, first, sizeof(path));
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_gt(st.st_size, 0);
    cr_assert_eq(unlink(path), 0);
    arena_free(a.arena);
}

Test(access_log, a_check_refuses_what_cannot_be_opened_and_creates_nothing)
{
    static const char *const names[] = {"none/log", "file/log", "", "new"};
    char folder[] = "/tmp/access_log_check.XXXXXX", at[600], file[600];
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(file, sizeof(file), "%s/file", folder);
    proxy_access_log_close(file_open(file));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct proxy_access_log_file *opened = NULL;
        struct buf check_why, open_why;
        buf_init(&check_why, 1024);
        buf_init(&open_why, 1024);
        (void)snprintf(at, sizeof(at), "%s/%s", folder, names[i]);
        enum err err = proxy_access_log_check(at, &check_why);
        cr_assert_eq(access(at, F_OK) == 0, i == 2, "%s", at);
        cr_assert_eq(proxy_access_log_open(at, &opened, &open_why), err, "%s", at);
        cr_assert_str_eq(buf_cstr(&check_why), buf_cstr(&open_why));
        cr_assert_eq(err == ERR_OK, i == 3, "%s", at);
        proxy_access_log_close(opened);
        buf_done(&check_why);
        buf_done(&open_why);
    }
    struct buf none;
    buf_init(&none, 1024);
    cr_assert_eq(proxy_access_log_check(NULL, &none), ERR_OK);
    cr_assert_eq(proxy_access_log_check("-", &none), ERR_OK);
    cr_assert_eq(proxy_access_log_check(file, &none), ERR_OK);
    cr_assert(unlink(at) == 0 && unlink(file) == 0 && rmdir(folder) == 0);
}
