// SPDX-License-Identifier: Apache-2.0
// Endpoints of clients on this machine: how they reach a listener, and what the environment says.
#include "commands/commands.h"

#include <stdio.h>
#include <stdlib.h>
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

const char *commands_client_endpoint(const char **ret_name)
{
    static const char *const names[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') { // the first one decides
            *ret_name = names[i];
            return value;
        }
    }
    return NULL;
}
