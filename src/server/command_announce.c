// SPDX-License-Identifier: Apache-2.0
// Prints the start summary: listeners, cache, state of the origins, and how to configure a client.
// Also logs it in one line. Runs on the main thread, once requests are served.
#include "server/command_announce.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/version.h"
#include "server/command_reload.h"
#include "server/server_private.h"
#include "stats/stats.h"

#define TEXT_COLUMN 13u    // where the text of a line begins
#define PROBE_SHOWN_MS 250 // longest wait of the summary for the origin probes

static const char *residency_text(void)
{
    switch (disk_io_residency_mode()) {
    case DISK_RESIDENCY_CACHESTAT:
        return "sendfile (residency by cachestat)";
    case DISK_RESIDENCY_MINCORE:
        return "sendfile (residency by mincore)";
    case DISK_RESIDENCY_NONE:
        break;
    }
    return "checked reads (this file system does not tell what is resident)";
}

static void human_size(uint64_t bytes, char *ret_text, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit + 1 < ARRAY_LEN(units)) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(ret_text, size, "%.1f %s", value, units[unit]);
}

static bool has_immutable_rule(const struct config *c)
{
    for (unsigned i = 0; i < c->rule_count; i++) {
        if (c->rules[i].freshness == CONFIG_FRESHNESS_IMMUTABLE) {
            return true;
        }
    }
    return false;
}

static const char *url_of(const char *address, char *ret_url, size_t size)
{
    bool tls = strncmp(address, "tls:", 4) == 0, local = strncmp(address, "unix:", 5) == 0;
    (void)snprintf(ret_url, size, "%s%s",
                   tls     ? "https://"
                   : local ? ""
                           : "http://",
                   tls ? address + 4 : address);
    return ret_url;
}

// Prints what the probes have found after a short wait. Forebay already serves requests.
static void announce_origins(const struct command_announcement *s)
{
    struct timespec until;
    unsigned told = 0;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_nsec += PROBE_SHOWN_MS * 1000 * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (told < s->origin_count && sem_clockwait(s->told, CLOCK_MONOTONIC, &until) == 0) {
        told++;
    }
    for (unsigned i = 0; i < s->origin_count; i++) {
        struct origin_trouble_text trouble;
        bool is_wrong = origin_in_trouble(s->origins[i], &trouble);
        command_screen_tell(TEXT_COLUMN, "  origin     %s%s\n", origin_describe(s->origins[i]),
                            is_wrong || told == s->origin_count ? "" : " (has not answered yet)");
        if (is_wrong) {
            command_screen_tell(TEXT_COLUMN, "             NOT USABLE: %s. Remedy: %s\n",
                                trouble.text, trouble.remedy);
        }
    }
}

static void announce_cache(const struct command_announcement *s,
                           const struct store_summary *summary, uint64_t room_bytes)
{
    char capacity[32], held[32], reserved[32], room[32];
    human_size(summary->capacity_bytes, capacity, sizeof(capacity));
    uint64_t held_bytes = store_held_bytes(s->store);
    human_size(held_bytes, held, sizeof(held));
    human_size(summary->used_bytes - min_u64(summary->used_bytes, held_bytes), reserved,
               sizeof(reserved));
    const struct refusal_text *why =
        summary->refusal != REFUSAL_none ? refusal_text(summary->refusal) : NULL;
    command_screen_tell(TEXT_COLUMN, "  cache      %s: %s held of %s (%s reserved)%s%s\n",
                        summary->dir, held, capacity, reserved,
                        why != NULL ? "; NOTHING IS STORED: " : "", why != NULL ? why->text : "");
    if (room_bytes != 0) {
        human_size(room_bytes, room, sizeof(room));
        command_screen_tell(
            TEXT_COLUMN,
            "             MORE THAN THE DISK HAS ROOM FOR (%s): lower cache.size, free "
            "space, or use a percentage\n",
            room);
    }
}

// Names the command that shows the state of this server. An address other than the default is part
// of it, because the command does not know this server's flags.
static void announce_admin(const struct command_announcement *s)
{
    const char *admin = admin_listen_address(s->admin), *socket = s->config->admin_socket;
    char url[512], usual[512];
    unsigned listen = commands_setting("admin.listen");
    if (s->config->admin_listen.kind == CONFIG_LISTEN_OFF) {
        if (socket != NULL && access(socket, R_OK | W_OK) == 0) {
            command_screen_tell(TEXT_COLUMN, "  status     forebay status --admin unix:%s\n",
                                socket);
        }
        return;
    }
    command_screen_tell(TEXT_COLUMN, "  admin      http://%s/metrics\n", admin);
    if (commands_advertise(admin, url, sizeof(url)) &&
        commands_advertise(config_setting(listen)->default_text, usual, sizeof(usual))) {
        bool is_usual = strcmp(url, usual) == 0;
        command_screen_tell(TEXT_COLUMN,
                            "  page       %s/ in a browser\n  status     forebay status%s%s\n", url,
                            is_usual ? "" : " --admin ", is_usual ? "" : url);
    }
}

static const char *address_of(const void *ctx, unsigned i)
{
    return http_server_address(ctx, i);
}

// Names the variable or the profile that gives S3 clients another endpoint. Does not print the
// endpoint, because it may contain a password.
static void announce_client(const struct command_announcement *s)
{
    struct origin_client client;
    origin_client_read(&client);
    const struct origin_client_value *endpoint = &client.endpoint;
    if (endpoint->text[0] != '\0' &&
        commands_endpoint_is_unused(s->config, endpoint->text, address_of, s->http)) {
        command_screen_tell(
            TEXT_COLUMN,
            "             %s names an endpoint, and serve does not use it: to read from there, "
            "give --origin.endpoint %s\n",
            commands_visible(endpoint->source, strlen(endpoint->source)), endpoint->word);
    }
}

static void announce_to_people(const struct command_announcement *s,
                               const struct store_summary *summary, uint64_t room_bytes)
{
    char url[512];
    command_screen_tell(TEXT_COLUMN, "forebay %s (%s)\n", version_text(), version_revision());
    for (unsigned i = 0; http_server_address(s->http, i) != NULL; i++) {
        command_screen_tell(TEXT_COLUMN, "  listening  %s%s\n",
                            url_of(http_server_address(s->http, i), url, sizeof(url)),
                            s->config->auth_mode == CONFIG_AUTH_OPEN
                                ? "  (open: whoever reaches it reads, writes and deletes "
                                  "whatever Forebay's keys may)"
                                : "  (signatures are verified)");
    }
    announce_cache(s, summary, room_bytes);
    command_screen_tell(TEXT_COLUMN, "  disk       %s; hits leave by %s\n",
                        loop_engine_why(s->loop), residency_text());
    command_screen_tell(
        TEXT_COLUMN, "  files      %llu: %u for clients, %u for each origin, %u for segments%s\n",
        (unsigned long long)s->descriptors->descriptors, s->descriptors->clients,
        s->descriptors->origin_connections, s->descriptors->segments,
        s->descriptors->is_short ? "; FEWER than configured: raise ulimit -n" : "");
    announce_admin(s);
    bool is_reached = false;
    for (unsigned i = 0; http_server_address(s->http, i) != NULL && !is_reached; i++) {
        is_reached = commands_advertise(http_server_address(s->http, i), url, sizeof(url));
    }
    command_screen_tell(
        TEXT_COLUMN, "  clients    %s%s\n", is_reached ? "export AWS_ENDPOINT_URL_S3=" : "",
        is_reached ? url : "S3 clients cannot connect: add a HOST:PORT listener to listen");
    announce_origins(s);
    announce_client(s);
    if (!has_immutable_rule(s->config)) {
        command_screen_tell(
            TEXT_COLUMN,
            "  hint       add a rule `{match: \"BUCKET/**\", freshness: immutable}` for data that "
            "never changes; without it every object is revalidated after %llu s\n",
            (unsigned long long)s->config->cache_ttl_ms / 1000);
    }
}

void command_announce(const struct command_announcement *s)
{
    struct store_summary summary;
    store_summarize(s->store, &summary);
    uint64_t room_bytes = command_size_beyond(s->config, s->store);
    if (!commands_common()->is_quiet) {
        announce_to_people(s, &summary, room_bytes);
    }
    const char *listen = http_server_address(s->http, 0);
    const char *admin =
        s->config->admin_listen.kind == CONFIG_LISTEN_OFF ? "off" : admin_listen_address(s->admin);
    log_info("started",
             "version=%s listen=%s admin=%s engine=%s origin=%s cache=%s capacity=%llu pid=%d",
             version_text(), log_quote(span_from_cstr(listen != NULL ? listen : "off")),
             log_quote(span_from_cstr(admin)),
             loop_engine(s->loop) == DISK_ENGINE_URING ? "io_uring" : "threads",
             log_quote(span_from_cstr(origin_describe(s->origins[0]))),
             log_quote(span_from_cstr(summary.dir)), (unsigned long long)summary.capacity_bytes,
             (int)getpid());
}
