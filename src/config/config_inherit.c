// SPDX-License-Identifier: Apache-2.0
// Sockets that systemd or an earlier process passes in (sd_listen_fds(3)) replace `listen`. Later
// checks use their real addresses, as if the setting had named them. LISTEN_FDNAMES
// (FileDescriptorName= in a systemd unit) names the use of each socket. "tls" is for TLS. "admin"
// replaces `admin.listen`. "s3-unlink" is a unix socket whose file this process removes when it
// ends; a server passes it on when it is upgraded. Any other name means plain HTTP.
#include "config/config_private.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_FDS_FIRST 3
#define WHERE "env LISTEN_FDS"

// Writes the socket's address: "127.0.0.1:9000", "[::1]:9000" or "unix:/path". A unix socket
// without a path becomes "unix:@name" or "unix:".
static bool describe(struct loader *l, const struct sockaddr_storage *addr, socklen_t len,
                     bool is_tls, struct config_listen *ret_listen)
{
    char host[INET6_ADDRSTRLEN] = "", text[sizeof(struct sockaddr_un) + 8];
    const char *scheme = is_tls ? "tls:" : "";
    struct config_listen *listen = ret_listen;
    if (addr->ss_family == AF_UNIX) {
        const struct sockaddr_un *un = (const struct sockaddr_un *)(const void *)addr;
        size_t name_len = len - min_u64(len, offsetof(struct sockaddr_un, sun_path));
        bool abstract = name_len > 1 && un->sun_path[0] == '\0';
        listen->kind = CONFIG_LISTEN_UNIX;
        listen->loopback = true;
        (void)snprintf(text, sizeof(text), "unix:%s%.*s", abstract ? "@" : "",
                       (int)(name_len - abstract), un->sun_path + abstract);
        listen->text = config_loader_cstr(l, span_from_cstr(text));
        listen->path = listen->text + strlen("unix:");
        return true;
    }
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;
        (void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        (void)snprintf(text, sizeof(text), "%s%s:%u", scheme, host, ntohs(in->sin_port));
    } else if (addr->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)addr;
        (void)inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof(host));
        (void)snprintf(text, sizeof(text), "%s[%s]:%u", scheme, host, ntohs(in->sin6_port));
    } else {
        return false;
    }
    char why[WHY_MAX];
    return config_value_parse_listen(l, span_from_cstr(text), listen, why);
}

static bool inherit_one(struct loader *l, int fd, struct span name,
                        struct config_listen *ret_listen)
{
    struct sockaddr_storage addr = {0};
    socklen_t addr_len = sizeof(addr) - 1, type_len = sizeof(int), accepting_len = sizeof(int);
    int type = 0, accepting = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len) != 0) {
        config_loader_error(l, WHERE, "descriptor %d is not a socket", fd);
        return false;
    }
    if (type != SOCK_STREAM ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &accepting_len) != 0 ||
        accepting == 0) {
        config_loader_error(l, WHERE, "descriptor %d is not a stream socket that listens", fd);
        return false;
    }
    if (getsockname(fd, (struct sockaddr *)&addr, &addr_len) != 0 ||
        !describe(l, &addr, addr_len, span_equal_cstr(name, "tls"), ret_listen)) {
        config_loader_error(l, WHERE, "descriptor %d is neither an IPv4, an IPv6 nor a unix socket",
                            fd);
        return false;
    }
    if (span_equal_cstr(name, "tls") && ret_listen->kind != CONFIG_LISTEN_TLS) {
        config_loader_error(l, WHERE, "descriptor %d is a unix socket, which speaks no TLS", fd);
        return false;
    }
    if (span_equal_cstr(name, "admin") && ret_listen->kind != CONFIG_LISTEN_TCP) {
        config_loader_error(l, WHERE, "descriptor %d is a unix socket; set admin.socket instead",
                            fd);
        return false;
    }
    ret_listen->inherited = true;
    ret_listen->owns_name = span_equal_cstr(name, "s3-unlink");
    ret_listen->fd = fd;
    return true;
}

void config_inherit(struct loader *l)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    uint64_t number = 0, count = 0;
    if (pid == NULL || fds == NULL || !span_to_u64(span_from_cstr(pid), &number) ||
        number != (uint64_t)getpid()) {
        return; // no sockets, or they are for another process
    }
    if (!span_to_u64(span_from_cstr(fds), &count) || count > CONFIG_INHERITED_MAX) {
        config_loader_error(l, WHERE, "\"%.40s\" is not a number of at most %d sockets", fds,
                            CONFIG_INHERITED_MAX);
        return;
    }
    if (count == 0) {
        return;
    }
    struct span names = span_from_cstr(getenv("LISTEN_FDNAMES")), name = {NULL, 0};
    struct config_listen *items = config_loader_alloc(l, count * sizeof(*items));
    const char *texts = NULL;
    memset(items, 0, count * sizeof(*items));
    unsigned taken = 0;
    for (unsigned i = 0; i < count; i++) {
        struct config_listen *item = &items[taken];
        if (!span_split(&names, ':', &name)) {
            name = (struct span){NULL, 0};
        }
        if (!inherit_one(l, LISTEN_FDS_FIRST + (int)i, name, item)) {
            return;
        }
        if (span_equal_cstr(name, "admin")) {
            l->config->admin_inherited_fd = item->fd;
            continue;
        }
        texts = texts == NULL ? item->text : arena_printf(l->arena, "%s, %s", texts, item->text);
        check(texts != NULL);
        taken++;
    }
    if (taken == 0) {
        return;
    }
    l->config->listen = (struct config_listens){items, taken};
    l->raws[SETTING_listen].where = WHERE;
    l->config->private_->texts[SETTING_listen] = texts;
    l->config->private_->sources[SETTING_listen] = WHERE;
}
