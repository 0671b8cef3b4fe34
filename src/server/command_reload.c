// SPDX-License-Identifier: Apache-2.0
// Reads the configuration again, and the files that it names. Runs on the main thread.
//
// A reload applies everything or nothing. It reads and checks everything before it changes
// anything. It changes nothing if a file does not load, a certificate is invalid, a log cannot be
// opened or a size cannot be used; the log then says where. Otherwise the next request uses the new
// rules, buckets and LIVE settings of settings.def. The log names each other setting that has
// changed; these need a restart. If something is refused after the reload has opened origins for
// buckets, those origins rest, and the next reload finds them.
//
// The configuration of the start is never freed, because parts that a reload does not change point
// into it. From the latest configuration, most other parts copy what they need, but the current
// rules and buckets point into it. So the next reload first replaces these, and then frees it.
// /api/v1/config shows the LIVE settings of the latest configuration, so a lock protects the
// pointer to it from the admin thread.
#include "server/command_reload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/net.h"
#include "server/command_holders.h"
#include "server/command_origins.h"
#include "server/server_private.h"
#include "stats/stats.h"

#define WORKERS_WAIT_S 2

static void good_since_now(struct command_reload *reload)
{
    uint64_t now_s = (uint64_t)clock_wall_s();
    stats_add(COUNTER_config_reload_time, now_s - reload->good_since_s);
    reload->good_since_s = now_s;
}

static void values_take(struct command_reload *reload, const struct config *c)
{
    reload->grace_ms = c->shutdown_grace_ms;
    reload->is_disk_needed = c->cache_disk_failure == CONFIG_DISK_FAILURE_FAIL;
    reload->names_buckets = c->admin_bucket_metrics;
}

// --- files to watch ------------------------------------------------------------------------------

static bool is_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

// Returns the configuration in use. Only the main thread changes it.
static const struct config *config_before(const struct command_reload *reload)
{
    return reload->guarded.latest != NULL ? reload->guarded.latest : reload->first;
}

// Watches the files of a configuration, which are read after this. If it is then refused, a change
// of its files has it read again.
static void files_watch(struct command_reload *reload, const struct config *c)
{
    bool has_keys = reload->first->auth_mode == CONFIG_AUTH_VERIFY;
    const char *paths[COMMAND_WATCH_FILES] = {reload->first->file,
                                              has_keys ? c->auth_keys_file : NULL,
                                              c->listen_tls_cert, c->listen_tls_key};
    for (unsigned i = 0; i < COMMAND_WATCH_FILES; i++) {
        command_watch_set(&reload->watch, i, paths[i]);
    }
}

bool command_reload_is_due(struct command_reload *reload)
{
    const char *changed = command_watch_look(&reload->watch);
    if (changed == NULL) {
        return false;
    }
    log_info("config_changed", "file=%s", log_quote(span_from_cstr(changed)));
    return true;
}

// --- life ----------------------------------------------------------------------------------------

void command_reload_init(struct command_reload *reload, int argc, char **argv,
                         const struct config *config)
{
    *reload = (struct command_reload){.argc = argc, .argv = argv, .first = config};
    check(pthread_mutex_init(&reload->guarded.lock, NULL) == 0);
    check(sem_init(&reload->told, 0, 0) == 0);
    (void)snprintf(reload->remedy, sizeof(reload->remedy),
                   "correct what it names (forebay check%s%.180s finds all but what depends on the "
                   "running server), then forebay reload",
                   config->file != NULL ? " -c " : "", config->file != NULL ? config->file : "");
    good_since_now(reload);
    values_take(reload, config);
    files_watch(reload, config);
}

void command_reload_done(struct command_reload *reload)
{
    if (reload->first != NULL) {
        command_watch_done(&reload->watch);
        config_free(reload->guarded.latest);
        check(sem_destroy(&reload->told) == 0);
        check(pthread_mutex_destroy(&reload->guarded.lock) == 0);
    }
}

void command_reload_show(void *ctx, struct buf *out)
{
    struct command_reload *reload = ctx;
    pthread_mutex_lock(&reload->guarded.lock);
    const struct config *latest = reload->guarded.latest;
    command_settings_render(out, reload->first, latest != NULL ? latest : reload->first);
    pthread_mutex_unlock(&reload->guarded.lock);
}

// Copies a text that the lock guards. Returns true if it is not empty.
static bool copy_text(struct command_reload *reload, const char text[COMMAND_RELOAD_TEXT_MAX],
                      char ret_text[COMMAND_RELOAD_TEXT_MAX])
{
    pthread_mutex_lock(&reload->guarded.lock);
    memcpy(ret_text, text, COMMAND_RELOAD_TEXT_MAX);
    pthread_mutex_unlock(&reload->guarded.lock);
    return ret_text[0] != '\0';
}

bool command_reload_has_failed(struct command_reload *reload,
                               char ret_error[COMMAND_RELOAD_TEXT_MAX])
{
    return copy_text(reload, reload->guarded.failed, ret_error);
}

bool command_reload_is_unrenewed(struct command_reload *reload,
                                 char ret_why[COMMAND_RELOAD_TEXT_MAX])
{
    return copy_text(reload, reload->guarded.unrenewed, ret_why);
}

// Records the first error of a failed reload; "": the reload succeeded.
static void note_failure(struct command_reload *reload, struct span error)
{
    pthread_mutex_lock(&reload->guarded.lock);
    (void)snprintf(reload->guarded.failed, COMMAND_RELOAD_TEXT_MAX, "%.*s", (int)error.len,
                   error.len > 0 ? error.ptr : "");
    pthread_mutex_unlock(&reload->guarded.lock);
}

static bool is_error(struct span line)
{
    struct span warning = SPAN(": warning: ");
    return line.len > 0 && span_find_text(line, warning) == line.len;
}

// Returns the first line of `errors` that is no warning.
static struct span first_error(const struct buf *errors)
{
    struct span rest = buf_span(errors), line, error = SPAN("no reason is known");
    bool is_found = false;
    while (!is_found && span_split(&rest, '\n', &line)) {
        is_found = is_error(line);
        error = is_found ? line : error;
    }
    return error;
}

// Logs the errors. The warnings among them are not why the reload failed, and `forebay reload`
// prints them.
static void reload_failed(struct command_reload *reload, const struct buf *why)
{
    struct span rest = buf_span(why);
    struct span line;
    stats_add(COUNTER_config_reloads_refused, 1);
    note_failure(reload, first_error(why)); // before the log line, for which callers wait
    while (span_split(&rest, '\n', &line)) {
        if (is_error(line)) {
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
        .verify_always = c->cache_verify == CONFIG_VERIFY_ALWAYS,
    };
}

struct proxy_settings command_proxy_settings(const struct config *c,
                                             const struct command_rules *rules,
                                             const struct command_origins *origins)
{
    return (struct proxy_settings){
        .rules = rules->rules,
        .rule_count = rules->count,
        .domains = c->s3_domains.items,
        .domain_count = c->s3_domains.count,
        .allowed_origins = c->auth_allowed_origins.items,
        .allowed_origin_count = c->auth_allowed_origins.count,
        .relays_sts = c->sts_relay != CONFIG_STS_OFF,
        .sts_over_tls = c->sts_relay == CONFIG_STS_ON,
        .logs_access = command_settings_access_log(c) != NULL,
        .access_log_format =
            (enum proxy_access_log_format)(c->access_log_format - CONFIG_ACCESS_LOG_JSON),
        .access_log_sample = c->access_log_sample,
        .obey_no_cache = c->cache_client_directives != CONFIG_DIRECTIVES_IGNORE,
        .obey_no_store = c->cache_client_directives == CONFIG_DIRECTIVES_ALL,
        .buckets = origins->buckets,
        .bucket_count = origins->bucket_count,
    };
}

struct http_limits command_http_limits(const struct config *c,
                                       const struct command_limits_plan *descriptors)
{
    uint64_t max_buffer_bytes = c->limits_max_buffer_bytes;
    return (struct http_limits){
        .max_connections = (unsigned)min_u64(c->limits_max_connections, descriptors->clients_max),
        .max_held_bytes = command_memory_clients_max(max_buffer_bytes),
        .max_connections_per_source = c->limits_max_connections_per_source,
        .max_inflight = c->limits_max_inflight,
        .max_inflight_in_memory = command_memory_inflight_max(max_buffer_bytes),
        .header_timeout_ms = c->limits_header_timeout_ms,
        .idle_timeout_ms = c->limits_idle_timeout_ms,
        .min_rate_bytes = c->limits_min_rate_bytes_per_s};
}

struct admin_access_options command_admin_access(const struct config *c)
{
    return (struct admin_access_options){.token_file = c->admin_token_file,
                                         .distrusts_loopback = !c->admin_trust_loopback,
                                         .allowed_hosts = c->admin_allowed_hosts.items,
                                         .allowed_host_count = c->admin_allowed_hosts.count};
}

static void on_changed_since_start(void *ctx, const char *key, bool live)
{
    struct command_reload_report *report = ctx;
    if (!live) {
        log_warn("reload_needs_restart", "key=%s", key);
        buf_printf(&report->restart, "%s\n", key);
    }
}

uint64_t command_size_beyond(const struct config *c, const struct store *store)
{
    struct store_summary summary;
    store_summarize(store, &summary);
    uint64_t room = commands_cache_room(c, summary.used_bytes);
    if (c->cache_size.bytes <= room) { // a percentage has no bytes
        return 0;
    }
    log_warn("cache_size_beyond_disk", "size_bytes=%llu room_bytes=%llu remedy=%s",
             (unsigned long long)c->cache_size.bytes, (unsigned long long)room,
             "\"lower cache.size, free space, or use a percentage\"");
    return room;
}

// Reports a cache.size that applies only in part until a restart, or for which the disk is small.
static void size_judge(const struct command_reload *reload, const struct config *latest,
                       struct command_reload_report *report)
{
    struct store_limits limits = command_store_limits(latest);
    uint64_t most = store_size_cut(reload->store, &limits);
    if (most != 0) {
        log_warn("reload_needs_restart", "key=cache.size most_bytes=%llu",
                 (unsigned long long)most);
        buf_printf(&report->restart, "cache.size (until then it is %llu bytes)\n",
                   (unsigned long long)most);
    }
    (void)command_size_beyond(latest, reload->store);
}

static void on_changed(void *ctx, const char *key, bool live)
{
    struct command_reload_report *report = ctx;
    if (live) {
        log_info("reload_applied", "key=%s", key);
        buf_printf(&report->applied, "%s\n", key);
    }
}

void command_reload_report_init(struct command_reload_report *report)
{
    buf_init(&report->errors, 65536);
    buf_init(&report->applied, 65536);
    buf_init(&report->restart, 65536);
}

void command_reload_report_done(struct command_reload_report *report)
{
    buf_done(&report->errors);
    buf_done(&report->applied);
    buf_done(&report->restart);
}

// --- preparation: reads and checks, and changes nothing ------------------------------------------

struct fresh {
    struct config *latest;
    struct http_certificate *certificate;
    char unrenewed[COMMAND_RELOAD_TEXT_MAX]; // why the former certificate stays in use; or ""
    struct access_keys *keys;
    struct command_rules rules;
    struct proxy_access_log_file *log_file;
    struct transfer_authorities *authorities;
    struct command_origins_now origins;
    struct origin_update *sts;
    struct admin_access *access;
};

static void fresh_done(struct fresh *fresh)
{
    access_keys_unref(fresh->keys);
    http_certificate_free(fresh->certificate);
    proxy_access_log_close(fresh->log_file);
    transfer_authorities_free(fresh->authorities);
    admin_access_free(fresh->access);
    origin_update_free(fresh->sts);
    command_origins_now_free(&fresh->origins);
    free(fresh->rules.rules);
    config_free(fresh->latest);
}

// Assigns numbers to the realms of a new key table, before requests can use it.
static enum err keys_prepare(struct command_reload *reload, struct access_keys *fresh)
{
    unsigned count = 0;
    struct store_holder *holders = command_holders_list(NULL, 0, fresh, NULL, 0, &count);
    enum err err = store_holders_add(reload->store, holders, count);
    if (err == ERR_OK) {
        err = command_holders_apply(holders, NULL, 0, fresh);
    }
    free(holders);
    return err == ERR_OK ? access_keys_keep_realms(fresh, *reload->access_keys) : err;
}

// Loads the access keys. Loads none, without an error, if auth.mode does not use them.
static enum err keys_load(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    const char *path = fresh->latest->auth_keys_file;
    if (reload->first->auth_mode != CONFIG_AUTH_VERIFY) {
        return ERR_OK;
    }
    if (path == NULL) {
        buf_append_cstr(why, "auth.keys_file is not set, and auth.mode is verify until a restart");
        return ERR_INVALID;
    }
    enum err err = access_keys_load(path, &fresh->keys, why);
    if (err == ERR_OK) {
        buf_done(why); // drop warnings, which `forebay check` reports
        err = keys_prepare(reload, fresh->keys);
        if (err != ERR_OK) {
            buf_printf(why, "%s: its realms cannot be saved in the cache directory: %s", path,
                       error_row(err)->text);
        }
    }
    return err;
}

// If a renewal of the files in use is not complete, the old certificate stays, and the other
// changes hold all the same. Among them may be a key that was revoked.
static enum err certificate_load(struct command_reload *reload, struct fresh *fresh,
                                 struct buf *why)
{
    const struct config *was = config_before(reload), *latest = fresh->latest;
    enum err err = http_certificate_load(reload->http, latest->listen_tls_cert,
                                         latest->listen_tls_key, &fresh->certificate, why);
    if (err != ERR_OK && is_same(was->listen_tls_cert, latest->listen_tls_cert) &&
        is_same(was->listen_tls_key, latest->listen_tls_key)) {
        log_warn_condition("certificate_not_renewed", "text=%s remedy=%s", log_quote(buf_span(why)),
                           log_quote(SPAN("complete the files: Forebay reads them again when they "
                                          "change")));
        (void)snprintf(fresh->unrenewed, sizeof(fresh->unrenewed), "%s", buf_cstr(why));
        buf_done(why);
        err = ERR_OK;
    }
    return err;
}

static enum err rules_prepare(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    command_rules(fresh->latest, reload->rules, &fresh->rules);
    for (unsigned i = 0; i < fresh->rules.count; i++) {
        const struct proxy_rule *rule = &fresh->rules.rules[i];
        if (rule->block_size_bytes > store_block_size_max(reload->store)) {
            buf_printf(why,
                       "%s: a block_size of %u bytes is more than the %llu that this cache has "
                       "segments for: restart to apply this; the restart empties the cache",
                       rule->where, rule->block_size_bytes,
                       (unsigned long long)store_block_size_max(reload->store));
            return ERR_INVALID;
        }
    }
    return ERR_OK;
}

// Opens the access log. Opens none, without an error, if its path is unchanged.
static enum err log_open(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    const char *path = command_settings_access_log(fresh->latest);
    return is_same(path, command_settings_access_log(config_before(reload)))
               ? ERR_OK
               : proxy_access_log_open(path, &fresh->log_file, why);
}

static enum err access_load(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    (void)reload;
    struct admin_access_options options = command_admin_access(fresh->latest);
    fresh->access = admin_access_new(&options, why);
    return fresh->access != NULL ? ERR_OK : ERR_INVALID;
}

static enum err connections_judge(struct command_reload *reload, struct fresh *fresh,
                                  struct buf *why)
{
    unsigned max = reload->descriptors->clients_max, wanted = fresh->latest->limits_max_connections;
    if (wanted <= max || wanted <= reload->first->limits_max_connections) {
        return ERR_OK; // the start has already reported the shortage
    }
    buf_printf(why,
               "limits.max_connections: this process has descriptors for %u: raise the limit "
               "(ulimit -n), and restart",
               max);
    return ERR_INVALID;
}

static enum err sts_prepare(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    struct origin_options options = command_origins_options(fresh->latest, 0);
    options.credentials = ORIGIN_CREDENTIALS_ANONYMOUS;
    options.access_key_file = options.secret_key_file = options.session_token_file = NULL;
    if (reload->sts_origin != NULL) {
        return origin_update_new(reload->sts_origin, &options, &fresh->sts, why);
    }
    if (fresh->latest->sts_relay != CONFIG_STS_OFF) {
        buf_append_cstr(why,
                        "sts.relay: what AWS_ENDPOINT_URL_STS said at the start cannot be used");
        return ERR_INVALID;
    }
    return ERR_OK;
}

static enum err origins_prepare(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    const char *ca_file = fresh->latest->origin_ca_file;
    struct command_origins_reload step = {.first = reload->first,
                                          .latest = fresh->latest,
                                          .store = reload->store,
                                          .loop = reload->loop,
                                          .plan = reload->descriptors};
    if (ca_file != NULL && transfer_authorities_load(ca_file, &fresh->authorities) != ERR_OK) {
        buf_printf(why, "origin.ca_file %s: it holds no certificates in PEM form", ca_file);
        return ERR_INVALID;
    }
    return command_origins_prepare(reload->origins, &step, &fresh->origins, why);
}

// Loads and checks everything. The limits of the store come last, because store_set_limits() checks
// and applies them in one step.
static enum err prepare(struct command_reload *reload, struct fresh *fresh, struct buf *why)
{
    static enum err (*const steps[])(struct command_reload * reload, struct fresh * fresh,
                                     struct buf * why) = {
        certificate_load, keys_load,   rules_prepare,     log_open,
        access_load,      sts_prepare, connections_judge, origins_prepare};
    enum err err = config_load(reload->argc, reload->argv, &fresh->latest, why);
    if (err == ERR_OK) {
        files_watch(reload, fresh->latest);
    }
    for (size_t i = 0; i < ARRAY_LEN(steps) && err == ERR_OK; i++) {
        buf_done(why); // drop warnings, which the start has reported
        err = steps[i](reload, fresh, why);
    }
    if (err == ERR_OK) {
        struct store_limits limits = command_store_limits(fresh->latest);
        limits.block_size_bytes_max = command_rules_block_size_max(&fresh->rules);
        err = store_set_limits(reload->store, &limits, why);
    }
    return err;
}

// --- application: cannot fail --------------------------------------------------------------------

// Applies the settings of the log. A level that `forebay loglevel` has set stays until log.level
// changes in the configuration.
static void log_apply(const struct config *was, const struct config *c)
{
    if (was->log_level != c->log_level) {
        log_set_level((enum log_level)c->log_level);
    }
    log_set_json(c->log_format == CONFIG_LOG_JSON);
    log_keys_set((enum log_keys)c->log_keys);
}

// Applies the rules. The store gets the groups first, so that no request names a group that the
// store does not know.
static void rules_apply(struct command_reload *reload, struct fresh *fresh)
{
    struct proxy_settings settings =
        command_proxy_settings(fresh->latest, &fresh->rules, reload->origins);
    store_set_groups(reload->store, fresh->rules.groups, fresh->rules.group_count);
    proxy_set(reload->proxy, &settings, fresh->log_file, &reload->told);
    reload->told_due++;
    free(reload->rules->rules);
    *reload->rules = fresh->rules;
}

// Waits until every worker uses the new settings, so that a request after the reload sees them. The
// wait has a limit, so that a stuck worker does not block the main thread. Returns false at the
// limit.
static bool wait_for_workers(struct command_reload *reload)
{
    struct timespec until;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += WORKERS_WAIT_S;
    bool is_late = false;
    while (reload->told_due > 0 && !is_late) { // a reload before this one may have been late
        bool is_told = sem_clockwait(&reload->told, CLOCK_MONOTONIC, &until) == 0;
        reload->told_due -= is_told;
        is_late = !is_told && errno != EINTR;
    }
    return !is_late;
}

static void keys_apply(struct command_reload *reload, struct fresh *fresh)
{
    if (fresh->keys != NULL) {
        proxy_set_access_keys(reload->proxy, fresh->keys);
        access_keys_unref(*reload->access_keys);
        *reload->access_keys = fresh->keys;
    }
}

static void origins_apply(struct command_reload *reload, struct fresh *fresh)
{
    if (fresh->authorities != NULL) {
        transfer_authorities_use(fresh->authorities);
    }
    if (fresh->sts != NULL) {
        origin_update_use(fresh->sts);
    }
    command_origins_use(reload->origins, &fresh->origins, reload->store, reload->probed);
}

// Says in the answer and in a condition whether the former certificate stays in use.
static void unrenewed_tell(struct command_reload *reload, const struct fresh *fresh,
                           struct command_reload_report *report)
{
    if (fresh->unrenewed[0] != '\0') {
        buf_printf(&report->errors, "warning: the former certificate stays in use: %s\n",
                   fresh->unrenewed);
    }
    pthread_mutex_lock(&reload->guarded.lock);
    memcpy(reload->guarded.unrenewed, fresh->unrenewed, COMMAND_RELOAD_TEXT_MAX);
    pthread_mutex_unlock(&reload->guarded.lock);
}

static void reload_apply(struct command_reload *reload, struct fresh *fresh,
                         struct command_reload_report *report)
{
    struct config *latest = fresh->latest;
    log_apply(config_before(reload), latest);
    config_compare(config_before(reload), latest, on_changed, report);
    config_compare(reload->first, latest, on_changed_since_start, report);
    size_judge(reload, latest, report);
    http_certificate_use(reload->http, fresh->certificate);
    struct http_limits limits = command_http_limits(latest, reload->descriptors);
    command_memory_begin(latest);
    http_server_set_limits(reload->http, &limits);
    admin_access_use(reload->admin, fresh->access);
    origins_apply(reload, fresh);
    keys_apply(reload, fresh);
    rules_apply(reload, fresh);
    values_take(reload, latest);
    pthread_mutex_lock(&reload->guarded.lock);
    config_free(reload->guarded.latest);
    reload->guarded.latest = latest;
    pthread_mutex_unlock(&reload->guarded.lock);
    bool by_all = wait_for_workers(reload);
    command_origins_rest(reload->origins, &fresh->origins, reload->store, by_all);
    command_origins_now_free(&fresh->origins);
    good_since_now(reload);
    stats_add(COUNTER_config_reloads, 1);
    note_failure(reload, SPAN(""));
    unrenewed_tell(reload, fresh, report);
    reload->needs_restart = report->restart.len > 0;
    log_info("reloaded", "file=%s keys=%s",
             log_quote(span_from_cstr(latest->file != NULL ? latest->file : "")),
             log_quote(span_from_cstr(fresh->keys != NULL ? latest->auth_keys_file : "")));
}

enum err command_reload_now(struct command_reload *reload, struct command_reload_report *report)
{
    struct fresh fresh = {0};
    command_watch_note(&reload->watch);
    enum err err = prepare(reload, &fresh, &report->errors);
    if (err == ERR_OK) {
        buf_done(&report->errors);
        reload_apply(reload, &fresh, report);
    } else {
        reload_failed(reload, &report->errors);
        fresh_done(&fresh);
    }
    return err;
}
