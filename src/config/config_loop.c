// SPDX-License-Identifier: Apache-2.0
// Does an endpoint lead back to one of our own listeners? This is judged from addresses, localhost
// and this host's name. No resolver is used, because a start must not wait for one. Loops through
// other names and through balancers are detected at run time (origin/hops.c).
#include "config/config_private.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HOST_BYTES 256

// Converts IPv4 to ::ffff:a.b.c.d, and "any" to the loopback address that a connection to it
// reaches.
static bool address_parse(const char *text, struct in6_addr *ret_address)
{
    struct in_addr v4;
    if (inet_pton(AF_INET, text, &v4) == 1) {
        *ret_address = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
        memcpy(&ret_address->s6_addr[12], &v4, sizeof(v4));
        return true;
    }
    return inet_pton(AF_INET6, text, ret_address) == 1;
}

static bool address_is_any(const struct in6_addr *a)
{
    static const uint8_t none[4];
    return IN6_IS_ADDR_UNSPECIFIED(a) ||
           (IN6_IS_ADDR_V4MAPPED(a) && memcmp(&a->s6_addr[12], none, sizeof(none)) == 0);
}

static bool address_is_own(const struct in6_addr *a)
{
    struct ifaddrs *list = NULL;
    bool own = IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
    if (own || getifaddrs(&list) != 0) {
        return own;
    }
    for (const struct ifaddrs *i = list; i != NULL && !own; i = i->ifa_next) {
        if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;
            own = IN6_IS_ADDR_V4MAPPED(a) &&
                  memcmp(&in->sin_addr, &a->s6_addr[12], sizeof(in->sin_addr)) == 0;
        } else if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET6) {
            const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
            own = IN6_ARE_ADDR_EQUAL(&in->sin6_addr, a);
        }
    }
    freeifaddrs(list);
    return own;
}

struct target {
    char host[HOST_BYTES]; // without brackets and root dot
    uint64_t port;
};

static bool target_parse(const char *endpoint, struct target *ret_target)
{
    struct span rest = span_from_cstr(endpoint), host, port = {NULL, 0};
    if (span_starts_with(rest, SPAN("https://"))) {
        rest = (struct span){rest.ptr + 8, rest.len - 8};
        ret_target->port = 443;
    } else if (span_starts_with(rest, SPAN("http://"))) {
        rest = (struct span){rest.ptr + 7, rest.len - 7};
        ret_target->port = 80;
    } else {
        return false; // a directory
    }
    host = (struct span){rest.ptr, span_find(rest, '/')};
    size_t bracket = span_find(host, ']'), from = bracket < host.len ? bracket : 0;
    size_t colon = from + span_find((struct span){host.ptr + from, host.len - from}, ':');
    if (colon < host.len) {
        port = (struct span){host.ptr + colon + 1, host.len - colon - 1};
        host.len = colon;
    }
    if (host.len >= 2 && host.ptr[0] == '[') {
        host = (struct span){host.ptr + 1, host.len - 2};
    } else {
        host = span_without_root_dot(host);
    }
    if (host.len == 0 || host.len >= HOST_BYTES ||
        (port.len > 0 && !span_to_u64(port, &ret_target->port))) {
        return false; // the origin's parser refuses it
    }
    memcpy(ret_target->host, host.ptr, host.len);
    ret_target->host[host.len] = '\0';
    return true;
}

static bool name_is_localhost(struct span name)
{
    struct span suffix = SPAN(".localhost");
    return span_equal_nocase(name, SPAN("localhost")) ||
           (name.len > suffix.len &&
            span_equal_nocase((struct span){name.ptr + name.len - suffix.len, suffix.len}, suffix));
}

// Only a resolver knows which of this host's addresses its name stands for. So the name counts only
// if a listener accepts on all of them.
static bool listener_is_reached(const struct config_listen *listen, const struct target *target)
{
    struct in6_addr at, to;
    if ((listen->kind != CONFIG_LISTEN_TCP && listen->kind != CONFIG_LISTEN_TLS) ||
        listen->port != target->port || listen->port == 0 || !address_parse(listen->host, &at)) {
        return false;
    }
    if (!address_parse(target->host, &to)) {
        char own_name[HOST_BYTES] = "";
        struct span name = span_from_cstr(target->host);
        (void)gethostname(own_name, sizeof(own_name) -
                                        1); // if it fails, own_name stays empty and equals no host
        return name_is_localhost(name)
                   ? address_is_any(&at) || IN6_IS_ADDR_LOOPBACK(&at) ||
                         (IN6_IS_ADDR_V4MAPPED(&at) && at.s6_addr[12] == 127)
                   : address_is_any(&at) && span_equal_nocase(name, span_from_cstr(own_name));
    }
    if (address_is_any(&to)) {
        (void)address_parse(IN6_IS_ADDR_V4MAPPED(&to) ? "127.0.0.1" : "::1", &to);
    }
    if (address_is_any(&at)) {
        return (!IN6_IS_ADDR_V4MAPPED(&at) || IN6_IS_ADDR_V4MAPPED(&to)) && address_is_own(&to);
    }
    return IN6_ARE_ADDR_EQUAL(&at, &to);
}

const struct config_listen *config_leads_back(const struct config *config, const char *endpoint)
{
    struct target target;
    if (!target_parse(endpoint, &target)) {
        return NULL;
    }
    for (unsigned i = 0; i < config->listen.count; i++) {
        if (listener_is_reached(&config->listen.items[i], &target)) {
            return &config->listen.items[i];
        }
    }
    return listener_is_reached(&config->admin_listen, &target) ? &config->admin_listen : NULL;
}

static void refuse(struct loader *l, const char *where, const char *what, const char *endpoint)
{
    const struct config_listen *listen = config_leads_back(l->config, endpoint);
    if (listen != NULL) {
        config_loader_error(l, where, "%s: \"%.200s\" is this Forebay itself (it listens on %s)",
                            what, endpoint, listen->text);
    }
}

void config_loop_judge(struct loader *l)
{
    const struct config *c = l->config;
    refuse(l, l->raws[SETTING_origin_endpoint].where, "origin.endpoint", c->origin_endpoint);
    for (unsigned i = 0; i < c->bucket_count; i++) {
        if (c->buckets[i].endpoint != NULL) {
            refuse(l, c->buckets[i].source, "buckets[].endpoint", c->buckets[i].endpoint);
        }
    }
}
