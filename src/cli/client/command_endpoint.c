// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_endpoint.h"

#include <curl/curl.h>
#include <string.h>
#include <strings.h>

#include "base/bytes.h"
#include "base/check.h"
#include "commands/commands.h"
#include "origin/origin.h"

#define LOOK_TIMEOUT_MS 2000u
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

bool command_endpoint_is_forebay(const char *url)
{
    bool is_forebay = false;
    CURL *curl = is_loopback(url) ? curl_easy_init() : NULL;
    if (curl == NULL) {
        return false;
    }
    check(curl_easy_setopt(curl, CURLOPT_URL, url) == CURLE_OK);
    check(curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "TRACE") == CURLE_OK);
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
