// SPDX-License-Identifier: Apache-2.0
// Proves: the page at / is one small file. Browsers may run only its own script and style, and it
// sends requests only to its own server.
#include "test.h"

#include "control/admin.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <arpa/inet.h>

#define PAGE_MAX (60u << 10)

static char answer[PAGE_MAX + 4096];
static size_t answer_len;

// The whole answer as text. Returns its body.
static const char *get(const char *method)
{
    struct admin_options o = {.host = "127.0.0.1"};
    struct admin *admin = NULL;
    struct buf why;
    unsigned port = 0;
    char request[100];
    buf_init(&why, 4096);
    cr_assert_eq(admin_start(&o, &admin, &why), ERR_OK);
    buf_done(&why);
    cr_assert_eq(sscanf(admin_listen_address(admin), "127.0.0.1:%u", &port), 1);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval t = {.tv_sec = 20};
    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    int len = snprintf(request, sizeof(request), "%s / HTTP/1.1\r\nHost: page\r\n\r\n", method);
    cr_assert_eq(send(fd, request, (size_t)len, 0), len);
    ssize_t got;
    answer_len = 0;
    while ((got = recv(fd, answer + answer_len, sizeof(answer) - 1 - answer_len, 0)) > 0) {
        answer_len += (size_t)got;
    }
    answer[answer_len] = '\0';
    cr_assert_lt(answer_len, sizeof(answer) - 1);
    close(fd);
    admin_stop(admin);
    cr_assert_eq(strncmp(answer, "HTTP/1.1 200 ", 13), 0, "%.100s", answer);
    const char *body = strstr(answer, "\r\n\r\n");
    cr_assert_not_null(body);
    return body + 4;
}

static unsigned count(const char *text, const char *word)
{
    unsigned n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word)) {
        n++;
    }
    return n;
}

// Writes "'sha256-...'" of the text inside the only element of this name.
static void source_of(const char *body, const char *name, char ret_text[64])
{
    char begin[16], end[16];
    unsigned char hash[32], text[48];
    snprintf(begin, sizeof(begin), "<%s>", name);
    snprintf(end, sizeof(end), "</%s>", name);
    cr_assert_eq(count(body, begin), 1);
    cr_assert_eq(count(body, end), 1);
    const char *from = strstr(body, begin) + strlen(begin);
    cr_assert_eq(
        EVP_Digest(from, (size_t)(strstr(body, end) - from), hash, NULL, EVP_sha256(), NULL), 1);
    cr_assert_eq(EVP_EncodeBlock(text, hash, sizeof(hash)), 44);
    snprintf(ret_text, 64, "'sha256-%s'", (const char *)text);
}

Test(admin_index, only_the_script_and_style_of_the_page_may_run)
{
    char hash[64], policy[100];
    const char *body = get("GET");
    cr_assert_not_null(strstr(answer, "Content-Type: text/html; charset=utf-8\r\n"));
    cr_assert_not_null(strstr(answer, "Content-Security-Policy: default-src 'none'; "));
    source_of(body, "script", hash);
    snprintf(policy, sizeof(policy), " script-src %s;", hash);
    cr_assert_not_null(strstr(answer, policy));
    source_of(body, "style", hash);
    snprintf(policy, sizeof(policy), " style-src %s;", hash);
    cr_assert_not_null(strstr(answer, policy));
    cr_assert_not_null(strstr(answer, " connect-src 'self';"));
    cr_assert_eq(count(answer, "unsafe"), 0);
}

Test(admin_index, page_is_small_and_alone)
{
    static const char *const bad[] = {"innerHTML",      "outerHTML", "insertAdjacentHTML",
                                      "document.write", "eval(",     "new Function",
                                      " style=",        " onclick=", " onload=",
                                      "<iframe",        "<img",      "src=",
                                      "@import",        "url(",      "\"//"};
    const char *body = get("GET");
    cr_assert_leq(strlen(body), PAGE_MAX);
    cr_assert_not_null(strstr(body, "</html>"));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_null(strstr(body, bad[i]), "%s", bad[i]);
    }
    for (const char *at = body; (at = strstr(at, "href=\"")) != NULL;) {
        at += 6;
        size_t len = strcspn(at, "\"");
        bool is_ours = strncmp(at, "data:,\"", 7) == 0 || memchr(at, ':', len) == NULL;
        cr_assert(is_ours && at[0] != '/', "%.40s", at);
    }
    static const char *const schemes[] = {"http://", "https://", "ws://", "wss://"};
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++) { // in texts: without an address
        for (const char *at = body; (at = strstr(at, schemes[i])) != NULL;) {
            at += strlen(schemes[i]);
            cr_assert(at[0] == '"' || at[0] == '\'', "%.60s", at);
        }
    }
}

Test(admin_index, head_tells_its_length)
{
    char length[64];
    snprintf(length, sizeof(length), "Content-Length: %zu\r\n", strlen(get("GET")));
    cr_assert_eq(strlen(get("HEAD")), 0);
    cr_assert_not_null(strstr(answer, length), "%.600s", answer);
}
