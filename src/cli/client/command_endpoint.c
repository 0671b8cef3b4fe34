// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_endpoint.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "commands/commands.h"
#include "origin/origin.h"

#define LOOK_TIMEOUT_MS 2000u
#define URL_MAX 1024u
#define MARK "cache-status: forebay" // each reply of a Forebay has this header

static bool is_loopback(const char *url)
{
    static const char *const hosts[] = {"http://127.", "http://localhost:", "http://[::1]:"};
    bool is_found = false;
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) {
        is_found |= strncmp(url, hosts[i], strlen(hosts[i])) == 0;
    }
    return is_found;
}

static size_t on_header(char *bytes, size_t size, size_t count, void *ctx)
{
    size_t len = size * count;
    bool *is_forebay = ctx;
    *is_forebay |= len >= strlen(MARK) && strncasecmp(bytes, MARK, strlen(MARK)) == 0;
    return len;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *ctx)
{
    (void)bytes, (void)ctx; // only the headers matter
    return size * count;
}

bool command_endpoint_answers(const char *url)
{
    bool is_forebay = false;
    CURL *curl = curl_easy_init();
    check(curl != NULL && curl_easy_setopt(curl, CURLOPT_URL, url) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK); // no secret is sent
    check(curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "TRACE") == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)LOOK_TIMEOUT_MS) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_HEADERDATA, &is_forebay) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK);
    (void)curl_easy_perform(curl); // no answer, or half of one, is not that of a Forebay
    curl_easy_cleanup(curl);
    return is_forebay;
}

bool command_endpoint_is_forebay(const char *url)
{
    return is_loopback(url) && command_endpoint_answers(url);
}

// --- Is it a listener of this host? --------------------------------------------------------------

#define PLACE_ADDRESSES_MAX 16u

// Where a URL leads: IPv6 addresses, or IPv4 addresses in their mapped form.
struct place {
    bool is_tls;
    uint16_t port;
    unsigned count;
    struct in6_addr addresses[PLACE_ADDRESSES_MAX];
};

static void add_address(struct place *place, const struct sockaddr *address)
{
    struct in6_addr *to = &place->addresses[place->count];
    if (place->count == PLACE_ADDRESSES_MAX) {
        return;
    }
    if (address->sa_family == AF_INET6) {
        memcpy(to, (const char *)address + offsetof(struct sockaddr_in6, sin6_addr), sizeof(*to));
        place->count++;
    } else if (address->sa_family == AF_INET) {
        *to = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
        memcpy(&to->s6_addr[12], (const char *)address + offsetof(struct sockaddr_in, sin_addr), 4);
        place->count++;
    }
}

static void resolve(struct place *place, char *host)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    size_t len = strlen(host);
    if (host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = '\0';
        host++;
    }
    if (getaddrinfo(host, NULL, &hints, &found) == 0) {
        for (const struct addrinfo *i = found; i != NULL; i = i->ai_next) {
            add_address(place, i->ai_addr);
        }
        freeaddrinfo(found);
    }
}

static struct place place_of(const char *url)
{
    struct place place = {.count = 0};
    char *scheme = NULL, *host = NULL, *port = NULL;
    CURLU *parts = curl_url();
    check(parts != NULL);
    if (curl_url_set(parts, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK) {
        uint64_t number = 0;
        place.is_tls = strcmp(scheme, "https") == 0;
        place.port = span_to_u64(span_from_cstr(port), &number) ? (uint16_t)number : 0;
        resolve(&place, host);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(parts);
    return place;
}

// Returns true if this host has the address: the kernel binds no socket to another one.
static bool is_here(const struct in6_addr *address)
{
    const struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = *address};
    struct sockaddr_in at4 = {.sin_family = AF_INET};
    memcpy(&at4.sin_addr, &address->s6_addr[12], sizeof(at4.sin_addr));
    bool is_v4 = IN6_IS_ADDR_V4MAPPED(address);
    int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool is = fd >= 0 && (is_v4 ? bind(fd, (const struct sockaddr *)&at4, sizeof(at4))
                                : bind(fd, (const struct sockaddr *)&at, sizeof(at))) == 0;
    if (fd >= 0) {
        (void)close(fd); // nothing was sent
    }
    return is;
}

// Returns true if a socket that listens on `own` accepts connections to `other`.
static bool accepts(const struct in6_addr *own, const struct in6_addr *other)
{
    static const struct in6_addr any_v4 = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
    if (IN6_IS_ADDR_UNSPECIFIED(own)) { // this socket accepts IPv4 as well
        return is_here(other);
    }
    return memcmp(own, &any_v4, sizeof(any_v4)) == 0 ? IN6_IS_ADDR_V4MAPPED(other) && is_here(other)
                                                     : memcmp(own, other, sizeof(*own)) == 0;
}

static bool is_place(const struct place *own, const struct place *other)
{
    bool is = false;
    for (unsigned i = 0; i < own->count * other->count && !is; i++) {
        is = accepts(&own->addresses[i / other->count], &other->addresses[i % other->count]);
    }
    return is && own->is_tls == other->is_tls && own->port == other->port;
}

bool command_endpoint_leads_to(const char *url, commands_address_fn address, const void *ctx)
{
    const struct place place = place_of(url);
    char text[URL_MAX];
    bool leads = false;
    for (unsigned i = 0; address(ctx, i) != NULL && !leads; i++) {
        const char *listen = address(ctx, i);
        bool is_tls = strncmp(listen, "tls:", 4) == 0;
        int len = snprintf(text, sizeof(text), "%s://%s", is_tls ? "https" : "http",
                           listen + (is_tls ? 4 : 0));
        if (strncmp(listen, "unix:", 5) != 0 && len > 0 && (size_t)len < sizeof(text)) {
            const struct place own = place_of(text);
            leads = is_place(&own, &place);
        }
    }
    return leads;
}

bool command_endpoint_unused(const struct config *config, struct origin_client_value *ret_endpoint)
{
    struct origin_client client;
    origin_client_read(&client);
    const char *url = client.endpoint.text;
    *ret_endpoint = client.endpoint;
    return url[0] != '\0' &&
           commands_endpoint_is_unused(config, url, commands_listen_address, config) &&
           !command_endpoint_is_forebay(url);
}
