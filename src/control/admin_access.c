// SPDX-License-Identifier: Apache-2.0
// Decides who may do what on the admin port. Runs on the admin thread. Another thread may replace
// the rules.
//
//   open     totals without object keys: everybody who reaches the port
//   detail   keys and configuration: the unix socket; loopback, unless admin.trust_loopback is
//            false; the bearer token of admin.token_file
//   control  changes state: the same; over TCP also the header X-Forebay-Control: 1, which no
//            form of a web page can send
//
// Over TCP, detail and control require a Host that is an address, localhost or in
// admin.allowed_hosts. Otherwise a page in a browser on this machine could call us under a host
// name of its own (DNS rebinding). They also refuse requests that the browser attributes to a page
// of another origin (Sec-Fetch-Site). Such a page cannot read the answer, but it could cause
// listings at origins and occupy streams. A request may contain each header that decides only once,
// because two parsers could choose different copies.
#include "control/admin_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/keyvalq_struct.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

struct admin_access {
    char token[ADMIN_TOKEN_MAX + 1]; // the bearer token; "": none is configured
    bool distrusts_loopback;
    char **hosts;
    unsigned host_count;
};

enum caller { CALLER_UNIX, CALLER_LOOPBACK, CALLER_NETWORK };

static enum caller caller_of(struct evhttp_request *req)
{
    struct evhttp_connection *connection = evhttp_request_get_connection(req);
    int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(connection));
    struct sockaddr_storage peer;
    socklen_t len = sizeof(peer);
    memset(&peer, 0, sizeof(peer));
    if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0) {
        return CALLER_NETWORK;
    }
    if (peer.ss_family == AF_UNIX) {
        return CALLER_UNIX;
    }
    if (peer.ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, &peer, sizeof(v4));
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127 ? CALLER_LOOPBACK : CALLER_NETWORK;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, &peer, sizeof(v6));
    bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) || mapped ? CALLER_LOOPBACK : CALLER_NETWORK;
}

static bool host_is_allowed(const struct admin_access *access, const char *host)
{
    char name[256];
    size_t len = host != NULL ? strlen(host) : 0;
    if (len == 0 || len >= sizeof(name)) {
        return false;
    }
    memcpy(name, host, len + 1);
    if (name[0] == '[') {
        char *end = strchr(name, ']');
        struct in6_addr v6;
        if (end == NULL) {
            return false;
        }
        *end = '\0';
        return inet_pton(AF_INET6, name + 1, &v6) == 1;
    }
    char *colon = strchr(name, ':');
    if (colon != NULL) {
        if (colon[1 + strspn(colon + 1, "0123456789")] != '\0') {
            return false;
        }
        *colon = '\0';
    }
    name[span_without_root_dot(span_from_cstr(name)).len] = '\0';
    for (unsigned i = 0; i < access->host_count; i++) {
        struct span allowed = span_without_root_dot(span_from_cstr(access->hosts[i]));
        if (span_equal_nocase(span_from_cstr(name), allowed)) {
            return true;
        }
    }
    struct in_addr v4;
    return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &v4) == 1;
}

static bool has_twice(const struct evkeyvalq *headers)
{
    static const char *const DECIDE[] = {"Host", "Authorization", "X-Forebay-Control",
                                         "Sec-Fetch-Site"};
    unsigned counts[ARRAY_LEN(DECIDE)] = {0};
    bool is_twice = false;
    for (const struct evkeyval *h = headers->tqh_first; h != NULL; h = h->next.tqe_next) {
        for (size_t i = 0; i < ARRAY_LEN(DECIDE); i++) {
            counts[i] += strcasecmp(h->key, DECIDE[i]) == 0;
            is_twice |= counts[i] > 1;
        }
    }
    return is_twice;
}

// Returns true if a browser sent the request for a page of another origin. "none" means that the
// user typed the address. Requests without the header are accepted, because they come from other
// programs or from old browsers.
static bool is_of_foreign_page(const struct evkeyvalq *headers)
{
    const char *site = evhttp_find_header(headers, "Sec-Fetch-Site");
    return site != NULL && strcasecmp(site, "none") != 0 && strcasecmp(site, "same-origin") != 0;
}

enum token { TOKEN_ABSENT, TOKEN_WRONG, TOKEN_RIGHT };

static enum token token_of(const struct admin_access *access, const struct evkeyvalq *headers)
{
    struct span value = span_trim(span_from_cstr(evhttp_find_header(headers, "Authorization")));
    if (value.len == 0) {
        return TOKEN_ABSENT;
    }
    size_t len = strlen(access->token);
    if (len == 0 || value.len < 7 ||
        !span_equal_nocase((struct span){value.ptr, 7}, SPAN("Bearer "))) {
        return TOKEN_WRONG;
    }
    struct span token = span_trim((struct span){value.ptr + 7, value.len - 7});
    return token.len == len && CRYPTO_memcmp(token.ptr, access->token, len) == 0 ? TOKEN_RIGHT
                                                                                 : TOKEN_WRONG;
}

// Returns the ways in that a caller has left. Valid until the next call. Names the socket to
// callers on this machine only, because others cannot use it.
static const char *ways_in(struct admin *admin, enum caller caller)
{
    const struct admin_access *access = admin->guarded.access;
    bool has_socket = caller == CALLER_LOOPBACK && admin->name.path[0] != '\0';
    (void)snprintf(
        admin->ways_in, sizeof(admin->ways_in), "only %s%s%s%swith %s",
        access->distrusts_loopback ? "" : "from this machine, or ",
        has_socket ? "by its unix socket (--admin unix:" : "", has_socket ? admin->name.path : "",
        has_socket ? ", as root or the server's user) or " : "",
        access->token[0] != '\0' ? "the bearer token of admin.token_file (FOREBAY_ADMIN_TOKEN)"
                                 : "the token of admin.token_file, which is not set");
    return admin->ways_in;
}

static unsigned judge(struct admin *admin, struct evhttp_request *req, enum caller caller,
                      enum admin_class class, const char **ret_why)
{
    const struct admin_access *access = admin->guarded.access;
    const struct evkeyvalq *headers = evhttp_request_get_input_headers(req);
    if (has_twice(headers)) {
        *ret_why = "Host, Authorization, X-Forebay-Control and Sec-Fetch-Site stand once at most";
        return 400;
    }
    if (is_of_foreign_page(headers)) {
        *ret_why = "a web page of another origin may not ask this";
        return 403;
    }
    if (!host_is_allowed(access, evhttp_find_header(headers, "Host"))) {
        *ret_why = "Host must be an IP address, localhost or one of admin.allowed_hosts";
        return 403;
    }
    enum token token = token_of(access, headers);
    if (token == TOKEN_WRONG) {
        *ret_why = access->token[0] != '\0' ? "the token is not that of admin.token_file"
                                            : "there is no token here: admin.token_file is not set";
        return 401;
    }
    bool is_trusted = caller == CALLER_LOOPBACK && !access->distrusts_loopback;
    if (token != TOKEN_RIGHT && !is_trusted) {
        *ret_why = ways_in(admin, caller);
        return 401;
    }
    const char *control = evhttp_find_header(headers, "X-Forebay-Control");
    if (class == ADMIN_CLASS_CONTROL && (control == NULL || strcmp(control, "1") != 0)) {
        *ret_why = "the header X-Forebay-Control: 1 is wanted, so that no web page can ask this";
        return 403;
    }
    return 0;
}

unsigned admin_access_judge(struct admin *admin, struct evhttp_request *req, enum admin_class class,
                            const char **ret_why)
{
    enum caller caller = caller_of(req);
    if (class == ADMIN_CLASS_OPEN || caller == CALLER_UNIX) {
        return 0;
    }
    pthread_mutex_lock(&admin->guarded.lock);
    unsigned status = judge(admin, req, caller, class, ret_why);
    pthread_mutex_unlock(&admin->guarded.lock);
    return status;
}

bool admin_access_sees_detail(struct admin *admin, struct evhttp_request *req)
{
    const char *why;
    return admin_access_judge(admin, req, ADMIN_CLASS_DETAIL, &why) == 0;
}

bool admin_access_trusts_loopback(struct admin *admin)
{
    pthread_mutex_lock(&admin->guarded.lock);
    bool trusts = !admin->guarded.access->distrusts_loopback;
    pthread_mutex_unlock(&admin->guarded.lock);
    return trusts;
}

static bool token_load(struct admin_access *access, const char *path, struct buf *why)
{
    char text[ADMIN_TOKEN_MAX + 2];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a FIFO reads as empty
    ssize_t len = fd >= 0 ? read(fd, text, sizeof(text)) : -1;
    int errno_value = errno;
    if (fd >= 0) {
        (void)close(fd); // the file was only read, so a failure loses nothing
    }
    if (len < 0) {
        buf_printf(why, "admin.token_file %s: %s", path, strerror(errno_value));
        return false;
    }
    struct span token = {text, (size_t)len};
    while (token.len > 0 && strchr(" \t\r\n", token.ptr[token.len - 1]) != NULL) {
        token.len--;
    }
    token = span_trim(token);
    bool is_good = token.len >= 16 && token.len <= ADMIN_TOKEN_MAX;
    for (size_t i = 0; i < token.len; i++) {
        is_good = is_good && token.ptr[i] > 0x20 && token.ptr[i] < 0x7f;
    }
    if (!is_good) {
        OPENSSL_cleanse(text, sizeof(text));
        buf_printf(why,
                   "admin.token_file %s: one line of 16 to %u printable characters is wanted "
                   "(openssl rand -hex 32)",
                   path, ADMIN_TOKEN_MAX);
        return false;
    }
    memcpy(access->token, token.ptr, token.len);
    access->token[token.len] = '\0';
    OPENSSL_cleanse(text, sizeof(text));
    return true;
}

struct admin_access *admin_access_new(const struct admin_access_options *options,
                                      struct buf *ret_why)
{
    struct admin_access *access = calloc(1, sizeof(*access));
    check(access != NULL);
    access->distrusts_loopback = options->distrusts_loopback;
    access->hosts = calloc(options->allowed_host_count + 1, sizeof(*access->hosts));
    check(access->hosts != NULL);
    for (unsigned i = 0; i < options->allowed_host_count; i++) {
        access->hosts[access->host_count++] = strdup(options->allowed_hosts[i]);
        check(access->hosts[i] != NULL);
    }
    if (options->token_file != NULL && !token_load(access, options->token_file, ret_why)) {
        admin_access_free(access);
        return NULL;
    }
    return access;
}

void admin_access_use(struct admin *admin, struct admin_access *access)
{
    pthread_mutex_lock(&admin->guarded.lock);
    struct admin_access *former = admin->guarded.access;
    admin->guarded.access = access;
    pthread_mutex_unlock(&admin->guarded.lock);
    admin_access_free(former);
}

void admin_access_free(struct admin_access *access)
{
    if (access == NULL) {
        return;
    }
    OPENSSL_cleanse(access->token, sizeof(access->token));
    for (unsigned i = 0; i < access->host_count; i++) {
        free(access->hosts[i]);
    }
    free(access->hosts);
    free(access);
}
