// SPDX-License-Identifier: Apache-2.0
// Sends a GET of the S3 API to one of the listeners that the server names (choose()). Signs it with
// the keys of the environment if the server requires keys. Ignores proxies of the environment,
// because the server is the user's own.
#include "cli/client/command_fetch.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/headers.h"
#include "s3/s3.h"

#define URL_MAX_BYTES 16384u
#define ERROR_MAX_BYTES 4096u
#define SILENCE_MAX_S 120L
#define ARENA_MAX_BYTES 65536u

struct transfer {
    struct command_fetch *fetch;
    CURL *curl;
    char base[512], socket_path[512]; // "http://HOST:PORT"; path of the unix socket, or ""
    bool is_open;                     // the server requires no keys
    struct buf path;                  // path of the object, percent-encoded
    struct curl_slist *headers;
    struct buf error; // an error document instead of the object
    bool is_refused;  // on_bytes() has refused the bytes
};

// --- choosing a listener -------------------------------------------------------------------------

// Chooses a listener. Prefers http to https, whose certificate may be for another name, and both to
// a unix socket.
static bool choose(struct transfer *t, const json_t *listen)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < json_array_size(listen); i++) {
            const char *text = json_string_value(json_array_get(listen, i));
            bool is_unix = text != NULL && strncmp(text, "unix:", 5) == 0;
            if (kind == 2 && is_unix) {
                (void)snprintf(t->base, sizeof(t->base), "http://localhost");
                (void)snprintf(t->socket_path, sizeof(t->socket_path), "%s", text + 5);
                return true;
            }
            if (text != NULL && kind < 2 && commands_advertise(text, t->base, sizeof(t->base)) &&
                (strncmp(t->base, "https:", 6) == 0) == (kind == 1)) {
                return true;
            }
        }
    }
    return false;
}

static int find_server(struct command_client *client, struct transfer *t)
{
    json_t *version = NULL;
    int code = command_client_get(client, "/version", &version);
    if (code == EXIT_CODE_OK) {
        t->is_open = strcmp(command_client_text(version, "auth"), "open") == 0;
        if (!choose(t, json_object_get(version, "listen"))) {
            command_client_error(client, "the server names no address where it serves");
            code = EXIT_CODE_FAILED;
        }
    }
    json_decref(version);
    return code;
}

// --- the request ---------------------------------------------------------------------------------

static void add_header(struct transfer *t, const char *name, struct span value)
{
    struct buf line;
    buf_init(&line, URL_MAX_BYTES);
    buf_printf(&line, "%s: %.*s", name, (int)value.len, value.ptr);
    t->headers = curl_slist_append(t->headers, buf_cstr(&line));
    check(t->headers != NULL);
    buf_done(&line);
}

static bool sign(struct transfer *t, const char *id, const char *secret)
{
    static const char *const sent[] = {"x-amz-content-sha256", "x-amz-date", "x-amz-security-token",
                                       "authorization"};
    struct arena *arena = arena_new(ARENA_MAX_BYTES);
    struct headers headers = {.count = 0};
    const char *token = getenv("AWS_SESSION_TOKEN"), *region = getenv("AWS_REGION");
    struct sigv4_credentials keys = {span_from_cstr(id), span_from_cstr(secret),
                                     span_from_cstr(token != NULL ? token : "")};
    struct sigv4_scope scope = {.region = span_from_cstr(region != NULL ? region : "us-east-1"),
                                .service = SPAN("s3")};
    const char *host = strstr(t->base, "://") + 3;
    bool is_good =
        headers_add(&headers, arena, SPAN("host"), span_from_cstr(host)) &&
        headers_add(&headers, arena, SPAN("x-amz-content-sha256"), SPAN(SIGV4_EMPTY_SHA256)) &&
        sigv4_sign(arena, &keys, &scope, time(NULL), SPAN("GET"), buf_span(&t->path), SPAN(""),
                   &headers, SPAN(SIGV4_EMPTY_SHA256), NULL) == ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(sent) && is_good; i++) {
        struct span value;
        if (headers_get(&headers, span_from_cstr(sent[i]), &value)) {
            add_header(t, sent[i], value);
        }
    }
    arena_free(arena);
    return is_good;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *ctx)
{
    struct transfer *t = ctx;
    long status = 0;
    size_t len = size * count;
    (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) {
        buf_append(&t->error, bytes,
                   min_u64(len, ERROR_MAX_BYTES - min_u64(t->error.len, ERROR_MAX_BYTES)));
        return len;
    }
    t->fetch->bytes += len;
    t->is_refused = !t->fetch->on_bytes(t->fetch->ctx, (struct span){bytes, len});
    return t->is_refused ? 0 : len;
}

static void keep(struct span line, const char *name, char *ret_text, size_t size)
{
    size_t len = strlen(name);
    if (line.len > len && strncasecmp(line.ptr, name, len) == 0) {
        struct span value = span_trim((struct span){line.ptr + len, line.len - len});
        (void)snprintf(ret_text, size, "%.*s", (int)value.len, value.ptr);
    }
}

static size_t on_header(char *bytes, size_t size, size_t count, void *ctx)
{
    struct transfer *t = ctx;
    struct span line = {bytes, size * count};
    keep(line, "cache-status:", t->fetch->cache_status, sizeof(t->fetch->cache_status));
    keep(line, "etag:", t->fetch->etag, sizeof(t->fetch->etag));
    return line.len;
}

#define set(t, option, value) check(curl_easy_setopt((t)->curl, option, value) == CURLE_OK)

static void prepare(struct transfer *t, const char *url)
{
    set(t, CURLOPT_URL, url);
    set(t, CURLOPT_PATH_AS_IS, 1L);
    set(t, CURLOPT_PROXY, "");
    set(t, CURLOPT_NOSIGNAL, 1L);
    set(t, CURLOPT_PROTOCOLS_STR, "http,https");
    set(t, CURLOPT_CONNECTTIMEOUT_MS, (long)commands_common()->timeout_ms);
    set(t, CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(t, CURLOPT_LOW_SPEED_TIME, SILENCE_MAX_S);
    set(t, CURLOPT_WRITEFUNCTION, on_body);
    set(t, CURLOPT_WRITEDATA, t);
    set(t, CURLOPT_HEADERFUNCTION, on_header);
    set(t, CURLOPT_HEADERDATA, t);
    set(t, CURLOPT_HTTPHEADER, t->headers);
    if (t->socket_path[0] != '\0') {
        set(t, CURLOPT_UNIX_SOCKET_PATH, t->socket_path);
    }
    if (t->fetch->range != NULL) {
        set(t, CURLOPT_RANGE, t->fetch->range);
    }
}

// --- the answer ----------------------------------------------------------------------------------

// Describes an error document, such as "NoSuchKey: The specified key does not exist."
static void describe(const struct transfer *t, char *ret_text, size_t size)
{
    struct s3_error_body body = {0};
    struct arena *arena = arena_new(ARENA_MAX_BYTES);
    (void)s3_error_read(arena, buf_span(&t->error),
                        &body); // if it is no error document, only the status is shown
    (void)snprintf(ret_text, size, "%.*s%s%.*s", (int)body.code.len,
                   body.code.len > 0 ? body.code.ptr : "", body.message.len > 0 ? ": " : "",
                   (int)body.message.len, body.message.len > 0 ? body.message.ptr : "");
    arena_free(arena);
}

static int judge(struct command_client *client, struct transfer *t, CURLcode rc)
{
    long status = 0;
    char why[ERROR_MAX_BYTES + 8];
    (void)curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    (void)curl_easy_getinfo(t->curl, CURLINFO_STARTTRANSFER_TIME, &t->fetch->first_s);
    (void)curl_easy_getinfo(t->curl, CURLINFO_TOTAL_TIME, &t->fetch->total_s);
    if (t->is_refused) {
        return EXIT_CODE_FAILED; // on_bytes() has reported the reason
    }
    if (rc == CURLE_OK && (status == 200 || status == 206)) {
        return EXIT_CODE_OK;
    }
    if (rc != CURLE_OK) {
        bool is_cut = status == 200 || status == 206;
        command_client_error(client, "%s: %s (%s)", t->fetch->uri,
                             is_cut ? "the server ended it in the middle: ask again"
                                    : "the server does not answer",
                             curl_easy_strerror(rc));
        return is_cut ? EXIT_CODE_ORIGIN : EXIT_CODE_UNREACHABLE;
    }
    bool is_folder = status == 404 && t->fetch->uri[strlen(t->fetch->uri) - 1] == '/';
    describe(t, why, sizeof(why));
    command_client_error(client, "%s: %ld %s%s%s%s", t->fetch->uri, status, why,
                         is_folder ? "; this is the name of one object: `forebay ls " : "",
                         is_folder ? t->fetch->uri : "", is_folder ? "` shows those below it" : "");
    return status == 404 || status == 416 ? EXIT_CODE_FAILED : EXIT_CODE_ORIGIN;
}

static int run(struct command_client *client, struct transfer *t, const struct s3_uri *uri)
{
    const char *id = getenv("AWS_ACCESS_KEY_ID"), *secret = getenv("AWS_SECRET_ACCESS_KEY");
    int code = find_server(client, t);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    buf_append_char(&t->path, '/');
    buf_append_uri_encoded(&t->path, uri->bucket, true);
    buf_append_char(&t->path, '/');
    buf_append_uri_encoded(&t->path, uri->key, true);
    if (!t->is_open && (id == NULL || id[0] == '\0' || secret == NULL || !sign(t, id, secret))) {
        command_client_error(client, "the server wants keys: set AWS_ACCESS_KEY_ID and "
                                     "AWS_SECRET_ACCESS_KEY (forebay keys new makes some)");
        return EXIT_CODE_ORIGIN;
    }
    struct buf url;
    buf_init(&url, URL_MAX_BYTES);
    buf_printf(&url, "%s%s", t->base, buf_cstr(&t->path));
    if (buf_ok(&url)) {
        prepare(t, buf_cstr(&url));
        code = judge(client, t, curl_easy_perform(t->curl));
    } else {
        command_client_error(client, "%s: too long", t->fetch->uri);
        code = EXIT_CODE_USAGE;
    }
    buf_done(&url);
    return code;
}

int command_fetch(struct command_client *client, struct command_fetch *fetch)
{
    struct transfer t = {.fetch = fetch};
    struct s3_uri uri;
    const char *why = "";
    uint64_t first, end;
    if (!s3_uri_parse_object(span_from_cstr(fetch->uri), &uri, &why)) {
        command_client_error(client, "%s: %s", fetch->uri, why);
        return EXIT_CODE_USAGE;
    }
    if (fetch->range != NULL && !s3_uri_parse_range(span_from_cstr(fetch->range), &first, &end)) {
        command_client_error(client, "--range is FIRST-LAST or FIRST-, in bytes");
        return EXIT_CODE_USAGE;
    }
    check(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
    t.curl = curl_easy_init();
    check(t.curl != NULL);
    buf_init(&t.path, URL_MAX_BYTES);
    buf_init(&t.error, 2 * ERROR_MAX_BYTES);
    int code = run(client, &t, &uri);
    buf_done(&t.path);
    buf_done(&t.error);
    curl_slist_free_all(t.headers);
    curl_easy_cleanup(t.curl);
    curl_global_cleanup();
    return code;
}

void command_fetch_tell(const struct command_client *client, const struct command_fetch *fetch)
{
    double speed = fetch->total_s > 0 ? (double)fetch->bytes / fetch->total_s : 0;
    command_screen_tell(
        2, "forebay %s: %s, first byte after %.1f ms, all after %.1f ms (%s/s); %s\n", client->name,
        command_bytes((double)fetch->bytes), fetch->first_s * 1e3, fetch->total_s * 1e3,
        command_bytes(speed), command_client_visible(fetch->cache_status));
}
