// SPDX-License-Identifier: Apache-2.0
// SIGHUP: the configuration and the keys file are read again. Runs on the main thread.
//
// All or nothing: a file that does not load, a certificate that is none, or a size that cannot be gone by,
// leaves everything as it is, and the log says where. Settings of the LIVE rows of settings.def are gone by at once; of others, of
// buckets and of rules that have changed the log names each, and they wait for a restart.
//
// The parts keep pointing into the configuration of the start, so that stays; of a later one only values
// are used. What /config shows of LIVE rows is the later one's, under a lock that the admin thread takes.
#include "commands/command_reload.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "commands/command_holders.h"
#include "commands/command_settings.h"
#include "stats/stats.h"

static void good_since_now(struct command_reload *reload)
{
    uint64_t now_s = (uint64_t)clock_wall_s();
    stats_add(COUNTER_config_reload_time, now_s - reload->good_since_s);
    reload->good_since_s = now_s;
}

void command_reload_init(struct command_reload *reload, int argc, char **argv,
                         const struct config *config)
{
    *reload = (struct command_reload){.argc = argc, .argv = argv, .first = config};
    check(pthread_mutex_init(&reload->guarded.lock, NULL) == 0);
    stats_add(COUNTER_config_reload_good, 1);
    good_since_now(reload);
}

void command_reload_done(struct command_reload *reload)
{
    if (reload->first != NULL) {
        config_free(reload->guarded.latest);
        check(pthread_mutex_destroy(&reload->guarded.lock) == 0);
    }
}

static const struct config *in_force(void *ctx, const struct config_setting *setting)
{
    const struct command_reload *reload = ctx;
    bool is_latest = setting != NULL && setting->live && reload->guarded.latest != NULL;
    return is_latest ? reload->guarded.latest : reload->first;
}

void command_reload_show(void *ctx, struct buf *out)
{
    struct command_reload *reload = ctx;
    pthread_mutex_lock(&reload->guarded.lock);
    command_settings_render(out, in_force, reload);
    pthread_mutex_unlock(&reload->guarded.lock);
}

static void reload_failed(struct command_reload *reload, const struct buf *why)
{
    struct span rest = buf_span(why);
    struct span line;
    if (!reload->has_failed) { // before the line that is waited for
        reload->has_failed = true;
        stats_sub(COUNTER_config_reload_good, 1);
    }
    while (span_split(&rest, '\n', &line)) {
        if (line.len > 0) {
            log_error("reload_failed", "why=%s", log_quote(line));
        }
    }
}

struct store_limits command_store_limits(const struct config *c)
{
    return (struct store_limits){
        .size_bytes = c->cache_size.percent == 0 ? c->cache_size.bytes : 0,
        .size_percent = c->cache_size.percent,
        .headroom_percent = c->cache_headroom_percent,
        .min_free_percent = c->cache_min_free_percent,
        .scrub_bytes_per_s = c->cache_scrub_bytes_per_s,
    };
}

static void on_changed(void *ctx, const char *key, bool live)
{
    if (!live) {
        log_warn("reload_needs_restart", "key=%s", key);
        buf_printf(ctx, "%s\n", key);
    }
}

// Realms that are new get their numbers before anybody can use them.
static enum err keys_prepare(struct command_reload *reload, struct access_keys *fresh)
{
    unsigned count = 0;
    struct store_holder *holders = command_holders_list(NULL, 0, fresh, &count);
    enum err err = store_holders_add(reload->store, holders, count);
    if (err == ERR_OK) {
        err = command_holders_apply(holders, NULL, 0, fresh);
    }
    free(holders);
    return err == ERR_OK ? access_keys_keep_realms(fresh, *reload->access_keys) : err;
}

// NULL without an error: keys are not in use.
static enum err keys_load(struct command_reload *reload, struct access_keys **ret_fresh,
                          struct buf *why)
{
    *ret_fresh = NULL;
    if (reload->first->auth_mode != CONFIG_AUTH_VERIFY) {
        return ERR_OK;
    }
    enum err err = access_keys_load(reload->first->auth_keys_file, ret_fresh, why);
    if (err == ERR_OK) {
        buf_done(why); // warnings, which `check` tells
        err = keys_prepare(reload, *ret_fresh);
        if (err != ERR_OK) {
            buf_printf(why, "%s: its realms cannot be noted: %s", reload->first->auth_keys_file,
                       error_row(err)->text);
            access_keys_unref(*ret_fresh);
            *ret_fresh = NULL;
        }
    }
    return err;
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

// NULL without an error: its files are those of before, which are looked at all the time.
static enum err certificate_load(struct command_reload *reload, const struct config *latest,
                                 struct http_certificate **ret_certificate, struct buf *why)
{
    const struct config *was = reload->guarded.latest != NULL ? reload->guarded.latest
                                                              : reload->first; // only we change it
    if (is_same(was->listen_tls_cert, latest->listen_tls_cert) &&
        is_same(was->listen_tls_key, latest->listen_tls_key)) {
        return ERR_OK;
    }
    return http_certificate_load(reload->http, latest->listen_tls_cert, latest->listen_tls_key,
                                 ret_certificate, why);
}

// What a reload has prepared.
struct fresh {
    struct config *latest;
    struct http_certificate *certificate;
    struct access_keys *keys;
};

static void reload_apply(struct command_reload *reload, const struct fresh *fresh,
                         struct buf *ret_restart)
{
    struct config *latest = fresh->latest;
    config_compare(reload->first, latest, on_changed, ret_restart);
    http_certificate_use(reload->http, fresh->certificate);
    if (fresh->keys != NULL) {
        proxy_set_access_keys(reload->proxy, fresh->keys);
        access_keys_unref(*reload->access_keys);
        *reload->access_keys = fresh->keys;
    }
    pthread_mutex_lock(&reload->guarded.lock);
    config_free(reload->guarded.latest);
    reload->guarded.latest = latest;
    pthread_mutex_unlock(&reload->guarded.lock);
    good_since_now(reload);
    if (reload->has_failed) {
        reload->has_failed = false;
        stats_add(COUNTER_config_reload_good, 1);
    }
    log_info("reloaded", "file=%s keys=%s",
             log_quote(span_from_cstr(latest->file != NULL ? latest->file : "")),
             log_quote(span_from_cstr(fresh->keys != NULL ? reload->first->auth_keys_file : "")));
}

enum err command_reload_now(struct command_reload *reload, struct buf *ret_errors,
                            struct buf *ret_restart)
{
    struct buf why;
    struct fresh fresh = {0};
    buf_init(&why, 65536);
    enum err err = config_load(reload->argc, reload->argv, &fresh.latest, &why);
    if (err == ERR_OK) {
        buf_done(&why); // warnings, which the start has told
        err = certificate_load(reload, fresh.latest, &fresh.certificate, &why);
    }
    err = err != ERR_OK ? err : keys_load(reload, &fresh.keys, &why);
    if (err == ERR_OK) {
        struct store_limits limits = command_store_limits(fresh.latest);
        err = store_set_limits(reload->store, &limits, &why);
    }
    if (err == ERR_OK) {
        reload_apply(reload, &fresh, ret_restart);
    } else {
        reload_failed(reload, &why);
        buf_append_span(ret_errors, buf_span(&why));
        access_keys_unref(fresh.keys);
        http_certificate_free(fresh.certificate);
        config_free(fresh.latest);
    }
    buf_done(&why);
    return err;
}
