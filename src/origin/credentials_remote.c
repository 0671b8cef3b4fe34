// SPDX-License-Identifier: Apache-2.0
// Loads keys from services: STS for a web identity token, the container endpoint (ECS, EKS Pod
// Identity), and the instance metadata service (IMDSv2). Each request uses its own curl handle and
// blocks for some seconds at most, so no worker runs this.
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "net/net.h"
#include "origin/credentials_chain.h"
#include "s3/s3.h"

#define ANSWER_MAX 262144u
#define STS_TIMEOUT_MS 10000L
#define CONTAINER_TIMEOUT_MS 2000L
#define CONTAINER_TRIES 3
#define INSTANCE_TIMEOUT_MS 1000L

// --- One request ---------------------------------------------------------------------------------

struct ask {
    const char *method, *url, *body; // `body` is NULL if there is none.
    const char *headers[4];          // Each is "Name: value".
    const char *ca_file, *proxy;
    long timeout_ms;
    struct buf answer;
    long status;
    char error[CURL_ERROR_SIZE];
};

static size_t on_answer(char *data, size_t size, size_t count, void *ctx)
{
    struct ask *ask = ctx;
    buf_append(&ask->answer, data, size * count);
    return buf_ok(&ask->answer) ? size * count : 0;
}

// Sends the request and waits for the answer. Returns false if there is none; ask->error then has
// the reason.
static bool ask_run(struct ask *ask)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = NULL;
    check(curl != NULL);
    buf_init(&ask->answer, ANSWER_MAX);
    headers = curl_slist_append(headers, "Expect:");
    for (size_t i = 0; i < ARRAY_LEN(ask->headers) && ask->headers[i] != NULL; i++) {
        headers = curl_slist_append(headers, ask->headers[i]);
    }
    check(headers != NULL);
    (void)curl_easy_setopt(curl, CURLOPT_URL, ask->url);
    (void)curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    bool is_proxied = ask->proxy != NULL && strncmp(ask->url, "https://", 8) == 0;
    (void)curl_easy_setopt(curl, CURLOPT_NOPROXY, is_proxied ? "" : "*");
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, is_proxied ? ask->proxy : "");
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, ask->timeout_ms);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, ask->timeout_ms);
    (void)curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, ask->error);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_answer);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, ask);
    const char *ca_file = ask->ca_file != NULL ? ask->ca_file : transfer_system_authorities();
    if (ca_file != NULL) {
        (void)curl_easy_setopt(curl, CURLOPT_CAINFO, ca_file);
    }
    if (ask->body != NULL) {
        (void)curl_easy_setopt(curl, CURLOPT_POSTFIELDS, ask->body);
    }
    (void)curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, ask->method);
    CURLcode code = curl_easy_perform(curl);
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &ask->status);
    if (code != CURLE_OK && ask->error[0] == '\0') {
        (void)snprintf(ask->error, sizeof(ask->error), "%s", curl_easy_strerror(code));
    }
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code == CURLE_OK;
}

// --- Web identity --------------------------------------------------------------------------------

struct sts_answer {
    struct buf access_key, secret_key, token;
    int64_t expires_at_s;
};

static void on_sts_leaf(void *ctx, const char *path, struct span text)
{
    struct sts_answer *answer = ctx;
    const char *leaf = strrchr(path, '/');
    if (leaf == NULL || strstr(path, "/Credentials/") == NULL) {
        return;
    }
    if (strcmp(leaf, "/AccessKeyId") == 0) {
        buf_append_span(&answer->access_key, text);
    } else if (strcmp(leaf, "/SecretAccessKey") == 0) {
        buf_append_span(&answer->secret_key, text);
    } else if (strcmp(leaf, "/SessionToken") == 0) {
        buf_append_span(&answer->token, text);
    } else if (strcmp(leaf, "/Expiration") == 0 &&
               !credentials_parse_time(text, &answer->expires_at_s)) {
        answer->expires_at_s = 0;
    }
}

static void sts_url(const char *region, char *ret_url, size_t size)
{
    const char *override = getenv("AWS_ENDPOINT_URL_STS");
    if (credentials_text_is_set(override)) {
        (void)snprintf(ret_url, size, "%s", override);
    } else {
        region = credentials_text_is_set(region) ? region : "us-east-1";
        (void)snprintf(ret_url, size, "https://sts.%s.amazonaws.com%s/", region,
                       strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
    }
}

static enum err sts_answer_read(struct ask *ask, struct credentials_set **ret_set,
                                struct buf *ret_why)
{
    struct sts_answer answer = {.expires_at_s = 0};
    struct buf *parts[] = {&answer.access_key, &answer.secret_key, &answer.token};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        buf_init(parts[i], 16384);
    }
    enum err err = s3_xml_read(buf_span(&ask->answer), on_sts_leaf, &answer);
    if (err == ERR_OK && answer.access_key.len > 0 && answer.secret_key.len > 0 &&
        buf_ok(&answer.token)) {
        *ret_set = credentials_set_new("web identity", buf_span(&answer.access_key),
                                       buf_span(&answer.secret_key), buf_span(&answer.token),
                                       answer.expires_at_s);
    } else {
        buf_append_cstr(ret_why, "web identity: STS gave no credentials");
        err = ERR_ORIGIN_CREDENTIALS;
    }
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        credentials_buf_done(parts[i]);
    }
    return err;
}

enum err credentials_from_web_identity(const struct credentials_options *options,
                                       const char *role_arn, const char *token_file,
                                       const char *session_name, struct credentials_set **ret_set,
                                       struct buf *ret_why)
{
    struct buf token, body;
    char url[512], session[64];
    buf_init(&token, CREDENTIALS_FILE_MAX);
    buf_init(&body, 4u << 20);
    (void)snprintf(session, sizeof(session), "forebay-%016llx", (unsigned long long)random_u64());
    enum err err = credentials_read_file(token_file, &token);
    if (err != ERR_OK) {
        buf_printf(ret_why, "web identity: %s: %s", token_file, error_row(err)->text);
        err = ERR_ORIGIN_CREDENTIALS;
    }
    buf_append_cstr(&body, "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=");
    buf_append_uri_encoded(&body, span_from_cstr(role_arn), false);
    buf_append_cstr(&body, "&RoleSessionName=");
    buf_append_uri_encoded(
        &body, span_from_cstr(credentials_text_is_set(session_name) ? session_name : session),
        false);
    buf_append_cstr(&body, "&WebIdentityToken=");
    buf_append_uri_encoded(&body, credentials_trim_lines(buf_span(&token)), false);
    if (err == ERR_OK) {
        sts_url(options->region, url, sizeof(url));
        struct ask ask = {.method = "POST",
                          .url = url,
                          .body = buf_cstr(&body),
                          .ca_file = credentials_text_is_set(getenv("AWS_ENDPOINT_URL_STS"))
                                         ? options->ca_file
                                         : NULL,
                          .proxy = options->proxy,
                          .headers = {"Content-Type: application/x-www-form-urlencoded"},
                          .timeout_ms = STS_TIMEOUT_MS};
        bool answered = ask_run(&ask);
        if (answered && ask.status == 200) {
            err = sts_answer_read(&ask, ret_set, ret_why);
        } else {
            buf_printf(ret_why, "web identity: %s answered %ld %s", url, ask.status,
                       answered ? "" : ask.error);
            err = ERR_ORIGIN_CREDENTIALS;
        }
        credentials_buf_done(&ask.answer);
    }
    credentials_buf_done(&token);
    credentials_buf_done(&body);
    return err;
}

// --- Container endpoint --------------------------------------------------------------------------

bool credentials_container_url_is_allowed(const char *url)
{
    static const char *const hosts[] = {"localhost", "169.254.170.2", "169.254.170.23",
                                        "[fd00:ec2::23]", "[::1]"};
    struct span rest = span_from_cstr(url);
    if (span_starts_with(rest, SPAN("https://"))) {
        return true;
    }
    if (!span_starts_with(rest, SPAN("http://"))) {
        return false;
    }
    rest = (struct span){rest.ptr + 7, rest.len - 7};
    size_t end = 0;
    while (end < rest.len && strchr("/?#", rest.ptr[end]) == NULL) {
        end++;
    }
    struct span host = {rest.ptr, end};
    if (memchr(host.ptr, '@', host.len) != NULL || memchr(host.ptr, '\\', host.len) != NULL) {
        return false;
    }
    size_t host_end =
        host.len > 0 && host.ptr[0] == '[' ? span_find(host, ']') + 1 : span_find(host, ':');
    host.len = host_end < host.len ? host_end : host.len;
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        if (span_equal_nocase(host, span_from_cstr(hosts[i]))) {
            return true;
        }
    }
    // 127.0.0.0/8, in dotted decimal form
    unsigned a = 0, b = 0, c = 0, d = 0;
    char text[32], extra = '\0';
    if (host.len >= sizeof(text)) {
        return false;
    }
    memcpy(text, host.ptr, host.len);
    text[host.len] = '\0';
    return sscanf(text, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &extra) == 4 && a == 127 && b < 256 &&
           c < 256 && d < 256;
}

// Writes "Authorization: ..." to `header`, or nothing if no token is configured. A token file takes
// precedence over the variable, and is read again each time.
static enum err container_authorization(struct buf *header, struct buf *ret_why)
{
    const char *file = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *token = getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    if (credentials_text_is_set(file)) {
        struct buf text;
        buf_init(&text, CREDENTIALS_FILE_MAX);
        enum err err = credentials_read_file(file, &text);
        if (err == ERR_OK) {
            buf_append_cstr(header, "Authorization: ");
            buf_append_span(header, credentials_trim_lines(buf_span(&text)));
        } else {
            buf_printf(ret_why, "container endpoint: %s: %s", file, error_row(err)->text);
        }
        credentials_buf_done(&text);
        if (err != ERR_OK) {
            return ERR_ORIGIN_CREDENTIALS;
        }
    } else if (credentials_text_is_set(token)) {
        buf_append_cstr(header, "Authorization: ");
        buf_append_cstr(header, token);
    }
    if (header->len > 0 && !headers_value_is_clean(buf_span(header))) {
        buf_append_cstr(ret_why, "container endpoint: the authorization token holds control bytes");
        return ERR_ORIGIN_CREDENTIALS;
    }
    return ERR_OK;
}

static enum err ask_container(const char *url, const char *authorization,
                              struct credentials_set **ret_set, struct buf *ret_why)
{
    enum err err = ERR_ORIGIN_CREDENTIALS;
    for (int tries = 0; tries < CONTAINER_TRIES; tries++) {
        struct ask ask = {.method = "GET",
                          .url = url,
                          .headers = {authorization[0] != '\0' ? authorization : NULL},
                          .timeout_ms = CONTAINER_TIMEOUT_MS};
        bool answered = ask_run(&ask);
        bool is_final = answered && ask.status < 500;
        if (answered && ask.status == 200) {
            err = credentials_parse_json("container endpoint", buf_span(&ask.answer), false,
                                         ret_set, ret_why);
        } else if (is_final || tries + 1 == CONTAINER_TRIES) {
            buf_printf(ret_why, "container endpoint: %s answered %ld %s", url, ask.status,
                       answered ? "" : ask.error);
        }
        credentials_buf_done(&ask.answer);
        if (is_final) {
            break;
        }
    }
    return err;
}

enum err credentials_from_container(struct credentials_set **ret_set, struct buf *ret_why)
{
    const char *relative = getenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = getenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    char url[2048];
    if (credentials_text_is_set(relative)) {
        if (relative[0] != '/' || strlen(relative) > 1024) {
            buf_append_cstr(ret_why, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI must begin with /");
            return ERR_ORIGIN_CREDENTIALS;
        }
        (void)snprintf(url, sizeof(url), "http://169.254.170.2%s", relative);
    } else if (credentials_text_is_set(full)) {
        if (strlen(full) >= sizeof(url) || !credentials_container_url_is_allowed(full)) {
            buf_append_cstr(ret_why, "AWS_CONTAINER_CREDENTIALS_FULL_URI must be https, or http to "
                                     "loopback, 169.254.170.2, 169.254.170.23 or [fd00:ec2::23]");
            return ERR_ORIGIN_CREDENTIALS;
        }
        (void)snprintf(url, sizeof(url), "%s", full);
    } else {
        return ERR_NOT_FOUND;
    }
    struct buf header;
    buf_init(&header, CREDENTIALS_FILE_MAX + 64);
    enum err err = container_authorization(&header, ret_why);
    if (err == ERR_OK) {
        err = ask_container(url, buf_cstr(&header), ret_set, ret_why);
    }
    credentials_buf_done(&header);
    return err;
}

// --- Instance metadata ---------------------------------------------------------------------------

static const char *instance_endpoint(void)
{
    const char *override = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    const char *mode = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    if (credentials_text_is_set(override)) {
        return override;
    }
    return credentials_text_is_set(mode) && strcasecmp(mode, "IPv6") == 0
               ? "http://[fd00:ec2::254]"
               : "http://169.254.169.254";
}

// Writes the endpoint, without the slashes at its end, and the path.
static void instance_url(const char *path, char *ret_url, size_t size)
{
    const char *endpoint = instance_endpoint();
    size_t len = strlen(endpoint);
    while (len > 0 && endpoint[len - 1] == '/') {
        len--;
    }
    (void)snprintf(ret_url, size, "%.*s%s", (int)len, endpoint, path);
}

// Sends one GET with the session token. Returns false unless the status is 200.
static bool instance_get(const char *path, const char *token_header, struct buf *ret_text)
{
    char url[1024];
    instance_url(path, url, sizeof(url));
    struct ask ask = {
        .method = "GET", .url = url, .headers = {token_header}, .timeout_ms = INSTANCE_TIMEOUT_MS};
    bool ok = ask_run(&ask) && ask.status == 200;
    if (ok) {
        buf_append_span(ret_text, buf_span(&ask.answer));
    }
    credentials_buf_done(&ask.answer);
    return ok && buf_ok(ret_text);
}

static bool instance_token(struct buf *ret_header)
{
    char url[1024];
    instance_url("/latest/api/token", url, sizeof(url));
    struct ask ask = {.method = "PUT",
                      .url = url,
                      .body = "",
                      .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600", "Content-Type:"},
                      .timeout_ms = INSTANCE_TIMEOUT_MS};
    bool ok = ask_run(&ask) && ask.status == 200 && ask.answer.len > 0 &&
              headers_value_is_clean(buf_span(&ask.answer));
    if (ok) {
        buf_append_cstr(ret_header, "X-aws-ec2-metadata-token: ");
        buf_append_span(ret_header, buf_span(&ask.answer));
    }
    credentials_buf_done(&ask.answer);
    return ok;
}

// Returns true if the role's name has only characters that are allowed in role names. It becomes
// part of a path, so it must be checked.
static bool role_is_valid(struct span role)
{
    for (size_t i = 0; i < role.len; i++) {
        char c = role.ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && strchr("+=,.@_-", c) == NULL) {
            return false;
        }
    }
    return role.len > 0 && role.len <= 128;
}

static enum err instance_keys(const char *token_header, struct credentials_set **ret_set,
                              struct buf *ret_why)
{
    static const char folder[] = "/latest/meta-data/iam/security-credentials/";
    struct buf role, keys, region;
    char path[256];
    buf_init(&role, 4096);
    buf_init(&keys, ANSWER_MAX);
    buf_init(&region, 64);
    enum err err = ERR_NOT_FOUND;
    if (instance_get(folder, token_header, &role)) {
        struct span first = buf_span(&role);
        first.len = span_find(first, '\n');
        first = credentials_trim_lines(first);
        if (role_is_valid(first)) {
            (void)snprintf(path, sizeof(path), "%s%.*s", folder, (int)first.len, first.ptr);
            err = instance_get(path, token_header, &keys)
                      ? credentials_parse_json("instance metadata", buf_span(&keys), false, ret_set,
                                               ret_why)
                      : ERR_NOT_FOUND;
        }
    }
    if (err == ERR_OK) {
        (*ret_set)->is_extendable = true;
        if (instance_get("/latest/meta-data/placement/region", token_header, &region)) {
            (*ret_set)->region = strdup(buf_cstr(&region));
        }
    }
    buf_done(&role);
    buf_done(&region);
    credentials_buf_done(&keys);
    return err;
}

static bool instance_is_disabled(void)
{
    const char *disabled = getenv("AWS_EC2_METADATA_DISABLED");
    return credentials_text_is_set(disabled) && strcasecmp(disabled, "true") == 0;
}

enum origin_metadata origin_metadata_ask(const char **ret_endpoint)
{
    struct buf header;
    *ret_endpoint = instance_endpoint();
    if (instance_is_disabled()) {
        return ORIGIN_METADATA_DISABLED;
    }
    buf_init(&header, 16384);
    bool answers = instance_token(&header);
    credentials_buf_done(&header);
    return answers ? ORIGIN_METADATA_ANSWERS : ORIGIN_METADATA_SILENT;
}

enum err credentials_from_instance(struct credentials_set **ret_set, struct buf *ret_why)
{
    if (instance_is_disabled()) {
        return ERR_NOT_FOUND;
    }
    struct buf header;
    buf_init(&header, 16384);
    enum err err = instance_token(&header) ? instance_keys(buf_cstr(&header), ret_set, ret_why)
                                           : ERR_NOT_FOUND;
    credentials_buf_done(&header);
    return err;
}
