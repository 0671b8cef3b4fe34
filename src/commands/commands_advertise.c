// SPDX-License-Identifier: Apache-2.0
// Endpoints of clients on this machine: how they reach a listener, and whether one is that of a
// listener.
#include "commands/commands.h"

#include <stdio.h>
#include <string.h>

bool commands_advertise(const char *listen, char *ret_url, size_t size)
{
    struct span rest = span_from_cstr(listen);
    bool tls = span_starts_with(rest, SPAN("tls:"));
    rest.ptr += tls ? 4 : 0;
    const char *port = strrchr(rest.ptr, ':');
    if (port == NULL || span_starts_with(rest, SPAN("unix:"))) {
        return false;
    }
    const char *host =
        strncmp(rest.ptr, "0.0.0.0:", 8) == 0 || strncmp(rest.ptr, "localhost:", 10) == 0
            ? "127.0.0.1"
        : strncmp(rest.ptr, "[::]:", 5) == 0 ? "[::1]"
                                             : NULL;
    int len = host != NULL
                  ? snprintf(ret_url, size, "%s://%s%s", tls ? "https" : "http", host, port)
                  : snprintf(ret_url, size, "%s://%s", tls ? "https" : "http", rest.ptr);
    return len > 0 && (size_t)len < size;
}

const char *commands_listen_address(const void *ctx, unsigned i)
{
    const struct config *config = ctx;
    return i < config->listen.count ? config->listen.items[i].text : NULL;
}

// Returns true if the URL leads clients to one of these addresses.
static bool leads_to(const char *url, commands_address_fn address_fn, const void *ctx)
{
    char own[512], other[512], address[512];
    bool is_tls = strncmp(url, "https://", 8) == 0;
    const char *host = strstr(url, "://");
    int len = snprintf(address, sizeof(address), "%s%s", is_tls ? "tls:" : "",
                       host != NULL ? host + 3 : url);
    while (len > 0 && (size_t)len < sizeof(address) && address[len - 1] == '/') {
        address[--len] = '\0';
    }
    if (!commands_advertise(address, other, sizeof(other))) {
        return false;
    }
    for (unsigned i = 0; address_fn(ctx, i) != NULL; i++) {
        if (commands_advertise(address_fn(ctx, i), own, sizeof(own)) && strcmp(own, other) == 0) {
            return true;
        }
    }
    return false;
}

bool commands_endpoint_is_unused(const struct config *config, const char *endpoint,
                                 commands_address_fn address, const void *ctx)
{
    const char *source = config_source_text(config, commands_setting("origin.endpoint"));
    return strncmp(source, "default", 7) == 0 && !leads_to(endpoint, address, ctx);
}
