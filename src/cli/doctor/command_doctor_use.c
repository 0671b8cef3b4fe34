// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: checks the settings of clients that are started from this environment, and who
// could reach the server.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utmpx.h>

#include "cli/client/command_client.h"
#include "cli/client/command_endpoint.h"
#include "cli/client/command_old_clients.h"
#include "cli/doctor/command_doctor.h"
#include "origin/origin.h"

#define USERS_MAX 16u
#define URL_MAX 1024u

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

// Returns true if clients would use a proxy for an address on this host. Reads NO_PROXY as
// libraries do: names between commas.
static bool proxy_takes_loopback(void)
{
    const char *exceptions =
        variable("no_proxy") != NULL ? variable("no_proxy") : variable("NO_PROXY");
    struct span rest = span_from_cstr(exceptions), piece;
    if (variable("http_proxy") == NULL && variable("HTTP_PROXY") == NULL &&
        variable("ALL_PROXY") == NULL && variable("all_proxy") == NULL) {
        return false;
    }
    while (rest.ptr != NULL && span_split(&rest, ',', &piece)) {
        piece = span_trim(piece);
        if (span_equal_cstr(piece, "*") || span_equal_cstr(piece, "127.0.0.1") ||
            span_equal_cstr(piece, "127.0.0.0/8")) {
            return false;
        }
    }
    return true;
}

// Returns true if the URL is https and has the address and port of a listener that speaks http.
static bool is_https_of_http(const char *url, commands_address_fn address, const void *ctx)
{
    char plain[URL_MAX];
    return strncmp(url, "https://", 8) == 0 &&
           snprintf(plain, sizeof(plain), "http%s", url + 5) < (int)sizeof(plain) &&
           command_endpoint_leads_to(plain, address, ctx);
}

// Writes the URL by which clients on this host reach the server; "" if no listener has a port yet.
static void own_url(commands_address_fn address, const void *ctx, char ret_url[URL_MAX])
{
    ret_url[0] = '\0';
    for (unsigned i = 0; address(ctx, i) != NULL && ret_url[0] == '\0'; i++) {
        if (!commands_advertise(address(ctx, i), ret_url, URL_MAX) ||
            span_ends_with(span_from_cstr(ret_url), SPAN(":0"))) {
            ret_url[0] = '\0';
        }
    }
}

// Reports whether the endpoint of clients leads to a Forebay.
static void find_way(struct doctor *d, const struct origin_client_value *endpoint,
                     commands_address_fn address, const void *ctx)
{
    const char *shown = command_client_visible(endpoint->text);
    char url[URL_MAX], remedy[URL_MAX + 64];
    own_url(address, ctx, url);
    (void)snprintf(remedy, sizeof(remedy),
                   url[0] != '\0' ? "export AWS_ENDPOINT_URL_S3=%s"
                                  : "start the server, then: eval \"$(forebay env)\"",
                   url);
    if (endpoint->text[0] == '\0') {
        command_doctor_find(d, DOCTOR_YELLOW, "clients", remedy,
                            "clients here ask AWS, because nothing in this environment leads them "
                            "to Forebay; those of `forebay run` are led there");
    } else if (command_endpoint_leads_to(endpoint->text, address, ctx)) {
        command_doctor_find(d, DOCTOR_GREEN, "clients", NULL, "%s (%s)", shown, endpoint->source);
    } else if (command_endpoint_answers(endpoint->text)) {
        command_doctor_find(d, DOCTOR_GREEN, "clients", NULL,
                            "%s (%s): a Forebay answers there, but at no address of `listen`",
                            shown, endpoint->source);
    } else {
        command_doctor_find(d, DOCTOR_YELLOW, "clients", remedy,
                            "clients here ask %s (%s), and no Forebay: the server does not listen "
                            "there",
                            shown, endpoint->source);
    }
}

void command_doctor_clients(struct doctor *d, commands_address_fn address, const void *ctx)
{
    struct origin_client client;
    origin_client_read(&client);
    const char *endpoint = client.endpoint.text[0] != '\0' ? client.endpoint.text : NULL;
    unsigned before = d->count[DOCTOR_YELLOW] + d->count[DOCTOR_RED];
    if (client.ignores_endpoints) {
        command_doctor_find(d, DOCTOR_YELLOW, "clients",
                            "export AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false",
                            "clients here ignore AWS_ENDPOINT_URL_S3, because "
                            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS or their profile says so");
    }
    if (variable("AWS_ENDPOINT_URL") != NULL && variable("AWS_WEB_IDENTITY_TOKEN_FILE") != NULL) {
        command_doctor_find(d, DOCTOR_YELLOW, "clients",
                            "set AWS_ENDPOINT_URL_S3 instead: it moves nothing but S3",
                            "AWS_ENDPOINT_URL moves STS as well, and a web identity "
                            "(AWS_WEB_IDENTITY_TOKEN_FILE) needs that");
    }
    if (endpoint != NULL && is_https_of_http(endpoint, address, ctx)) {
        command_doctor_find(d, DOCTOR_RED, "clients",
                            "say http:// there, or put tls: before the address in `listen`",
                            "clients here speak https (%s), and that listener speaks http",
                            command_client_visible(endpoint));
    }
    if (endpoint != NULL && strstr(endpoint, "://localhost") != NULL) {
        command_doctor_find(
            d, DOCTOR_YELLOW, "clients",
            "say http://127.0.0.1:PORT: with a number they put the bucket into the path",
            "clients here ask %s, and most put the bucket in front of a name (bucket.localhost)",
            endpoint);
    }
    if (proxy_takes_loopback()) {
        command_doctor_find(d, DOCTOR_YELLOW, "clients",
                            variable("no_proxy") != NULL ? "export no_proxy=127.0.0.1,$no_proxy"
                                                         : "export NO_PROXY=127.0.0.1,$NO_PROXY",
                            "clients here go through an HTTP proxy, to this host as well");
    }
    for (unsigned i = 0; i < COMMAND_OLD_CLIENTS; i++) {
        struct command_old_client old;
        if (command_old_client(i, NULL, &old)) {
            command_doctor_find(d, DOCTOR_YELLOW, "clients", old.remedy, "%s", old.what);
        }
    }
    if (before == d->count[DOCTOR_YELLOW] + d->count[DOCTOR_RED]) {
        find_way(d, &client.endpoint, address, ctx);
    }
}

static unsigned logged_in_users(void)
{
    char names[USERS_MAX][sizeof(((struct utmpx *)0)->ut_user)];
    unsigned count = 0;
    setutxent();
    for (struct utmpx *entry = getutxent(); entry != NULL && count < USERS_MAX;
         entry = getutxent()) {
        bool is_known = entry->ut_type != USER_PROCESS;
        for (unsigned i = 0; i < count && !is_known; i++) {
            is_known = strncmp(names[i], entry->ut_user, sizeof(names[i])) == 0;
        }
        if (!is_known) {
            memcpy(names[count++], entry->ut_user, sizeof(names[0]));
        }
    }
    endutxent();
    return count;
}

void command_doctor_exposure(struct doctor *d)
{
    const struct config *c = d->config;
    unsigned users = logged_in_users(), before = d->count[DOCTOR_YELLOW];
    bool has_tcp = false;
    for (unsigned i = 0; i < c->listen.count; i++) {
        const struct config_listen *listen = &c->listen.items[i];
        has_tcp = has_tcp || listen->kind != CONFIG_LISTEN_UNIX;
        if (listen->kind == CONFIG_LISTEN_TCP && !listen->loopback) {
            command_doctor_find(d, DOCTOR_YELLOW, "exposure",
                                "use tls:HOST:PORT with listen_tls.cert and listen_tls.key",
                                "%s carries data and signatures in plain HTTP over a network",
                                listen->text);
        }
        if (c->auth_mode == CONFIG_AUTH_OPEN && !listen->loopback) {
            command_doctor_find(d, DOCTOR_YELLOW, "exposure",
                                "set auth.mode to verify, with `forebay keys new` for each client",
                                "whoever reaches %s reads, writes and deletes whatever Forebay's "
                                "keys may",
                                listen->text);
        }
    }
    if (c->auth_mode == CONFIG_AUTH_OPEN && has_tcp && users > 1) {
        command_doctor_find(
            d, DOCTOR_YELLOW, "exposure", "set auth.mode to verify, or listen on unix:/PATH",
            "%u users are logged in here, and each of them reads, writes and deletes whatever "
            "Forebay's keys may",
            users);
    }
    if (before == d->count[DOCTOR_YELLOW]) {
        command_doctor_find(d, DOCTOR_GREEN, "exposure", NULL, "%s",
                            c->auth_mode == CONFIG_AUTH_OPEN ? "open to this host alone"
                                                             : "signatures are verified");
    }
}
