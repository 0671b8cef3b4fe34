// SPDX-License-Identifier: Apache-2.0
// `forebay serve`: builds every part, starts the threads, waits for a signal, drains, and tears
// down in reverse order. Main thread only. Signals are blocked in every thread; the main thread
// takes them with sigtimedwait().
//
// Exit codes: 0 drained; 1 port taken, cache directory in use or unknown; 3 configuration or key
// file; 4 origin missing or without credentials.
#include <assert.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/version.h"
#include "config/config.h"
#include "control/control.h"
#include "http/http.h"
#include "loop/loop.h"
#include "net/net.h"
#include "origin/origin.h"
#include "proxy/proxy.h"
#include "s3/s3.h"
#include "server/command_announce.h"
#include "server/command_certificate.h"
#include "server/command_conditions.h"
#include "server/command_holders.h"
#include "server/command_notify.h"
#include "server/command_origins.h"
#include "server/command_reload.h"
#include "server/command_rules.h"
#include "server/command_upgrade.h"
#include "server/command_watchdog.h"
#include "server/server_private.h"
#include "stats/stats.h"
#include "store/store.h"

#define MIN_RATE_GRACE_MS 30000u
#define MIN_RATE_PATIENCE_MS 600000u
#define UPGRADE_LOOK_MS 100u // interval of checks for connections that must end
#define ROUND_MS 1000u       // one round of the main thread
#define END_MAX_MS                                                                                 \
    100000u // longest stop and hand-over; command_stop.c and command_upgrade.c bound both

struct serve {
    char **words; // argv, plus --log.level for -q or -v
    struct config *config;
    struct loop *loop;
    struct store *store;
    _Atomic uint64_t held_bytes; // as the gauge has it
    struct command_origins origins;
    struct origin *sts_origin; // NULL: none, so turning on sts.relay needs a restart
    struct command_rules rules;
    struct access_keys *access_keys;
    struct proxy *proxy;
    struct http_tls *tls; // until `http` owns it
    struct http_server *http;
    struct admin *admin;
    const char **listen;
    const char *addresses[HTTP_LISTENERS_MAX]; // shown by /version
    struct command_limits_plan descriptors;
    sem_t told; // posted once for each probed origin
    struct command_reload reload;
    struct control control;
    struct conditions conditions;
    struct command_refused refused;
    struct command_conditions_parts parts; // at which `conditions` looks
    struct command_upgrade upgrade;
    struct command_watchdog watchdog;
    struct buf why;
    struct buf warnings; // about the configuration; printed after the reason of a failed start
    _Atomic bool started, draining;
};

// Prints warnings after the reason of a failed start, or after the start.
static void serve_say_warnings(struct serve *s)
{
    commands_tell_errors(buf_span(&s->warnings));
    buf_done(&s->warnings);
    command_limits_tell(&s->descriptors, s->config);
}

static int serve_fail(struct serve *s, int exit_code)
{
    command_screen_tell(2, "forebay: %s\n", buf_cstr(&s->why)); // print the reason first
    log_release(LOG_LEVEL_WARN);
    if (log_enabled(LOG_LEVEL_INFO)) {
        log_set_level(
            LOG_LEVEL_WARN); // a process that ends needs no further information in its log
    }
    serve_say_warnings(s);
    command_upgrade_fail(&s->upgrade, buf_cstr(&s->why));
    return exit_code;
}

// --- origins -------------------------------------------------------------------------------------

static enum err serve_origins(struct serve *s)
{
    return command_origins_open(s->config, s->descriptors.origin_connections, s->loop, &s->origins,
                                &s->why);
}

// Opens the origin for STS calls. Forebay forwards them unsigned, so it needs no credentials.
static enum err serve_sts_origin(struct serve *s)
{
    const char *override = getenv("AWS_ENDPOINT_URL_STS");
    struct origin_options options =
        command_origins_options(s->config, s->descriptors.origin_connections);
    struct origin_client client;
    origin_client_read(&client);
    const char *region = options.region != NULL ? options.region : client.region.text;
    bool is_china = strncmp(region, "cn-", 3) == 0;
    options.settings.names[ORIGIN_SETTING_ENDPOINT] = "AWS_ENDPOINT_URL_STS";
    options.probe = false;
    options.endpoint = override != NULL && override[0] != '\0' ? override
                       : is_china ? "https://sts.{region}.amazonaws.com.cn"
                                  : "https://sts.{region}.amazonaws.com";
    options.credentials = ORIGIN_CREDENTIALS_ANONYMOUS;
    options.access_key_file = options.secret_key_file = options.session_token_file = NULL;
    options.addressing = ORIGIN_ADDRESSING_PATH;
    enum err err = origin_new(&options, s->loop, &s->sts_origin, &s->why);
    if (err != ERR_OK && s->config->sts_relay == CONFIG_STS_OFF) {
        buf_done(&s->why); // a reload that turns on sts.relay reports the error
        err = ERR_OK;
    }
    return err;
}

// --- probes --------------------------------------------------------------------------------------

static bool probe_alive(void *ctx, struct buf *why)
{
    const struct serve *s = ctx;
    uint64_t age_ms;
    if (!command_conditions_moves(s->loop, &age_ms)) {
        buf_printf(why, "a worker has not moved for %llu ms", (unsigned long long)age_ms);
        return false;
    }
    buf_append_cstr(why, "all workers move");
    return true;
}

static bool probe_ready(void *ctx, struct buf *why)
{
    struct serve *s = ctx;
    struct store_summary summary;
    store_summarize(s->store, &summary);
    if (s->draining) {
        buf_append_cstr(why, "draining");
        return false;
    }
    if (summary.degraded && s->reload.is_disk_needed) {
        buf_append_cstr(why, "the cache disk does not work");
        return false;
    }
    // Requests go on in any other condition, with no cache at worst.
    buf_append_cstr(why, "ready");
    return true;
}

static bool probe_started(void *ctx, struct buf *why)
{
    struct serve *s = ctx;
    buf_append_cstr(why, s->started ? "listening" : "starting");
    return s->started;
}

static void show_config(void *ctx, struct buf *out)
{
    struct serve *s = ctx;
    command_reload_show(&s->reload, out);
}

// --- parts ---------------------------------------------------------------------------------------

// Logs a change of the default origin since the last start. Nothing else shows that the cache
// answers nothing, although it is full.
static void tell_former_origin(const struct serve *s, const struct store_summary *summary,
                               bool is_back)
{
    if (summary->former_origin != NULL) {
        log_warn("origin_changed", "former=%s now=%s cached_bytes=%llu now_was_cached=%s text=%s",
                 log_quote(span_from_cstr(summary->former_origin)),
                 log_quote(span_from_cstr(origin_name(s->origins.origins[0]))),
                 (unsigned long long)store_held_bytes(s->store), is_back ? "yes" : "no",
                 "\"what is cached of the former origin answers no request until a start names it "
                 "again\"");
    }
}

static int serve_build_store(struct serve *s)
{
    const struct config *c = s->config;
    unsigned holder_count = 0;
    bool verify = c->auth_mode == CONFIG_AUTH_VERIFY;
    if (verify && access_keys_load(c->auth_keys_file, &s->access_keys, &s->why) != ERR_OK) {
        return serve_fail(s, EXIT_CODE_CONFIGURATION);
    }
    buf_append_span(&s->warnings, buf_span(&s->why));
    buf_done(&s->why);
    // Load it before the wait for the cache. After that wait, an upgrade cannot be refused.
    if (command_certificate_load(c, &s->tls, &s->why) != ERR_OK) {
        return serve_fail(s, EXIT_CODE_CONFIGURATION);
    }
    struct store_holder *holders =
        command_holders_list(s->origins.origins, s->origins.origin_count, s->access_keys,
                             s->origins.buckets, s->origins.bucket_count, &holder_count);
    struct store_limits limits = command_store_limits(c);
    struct store_options options = {
        .dir = c->cache_dir,
        .policy = c->cache_policy == CONFIG_POLICY_EPOCH ? STORE_POLICY_EPOCH : STORE_POLICY_LRU,
        .size_bytes = limits.size_bytes,
        .size_percent = limits.size_percent,
        .headroom_percent = limits.headroom_percent,
        .min_free_percent = limits.min_free_percent,
        .scrub_bytes_per_s = limits.scrub_bytes_per_s,
        .verify_always = c->cache_verify == CONFIG_VERIFY_ALWAYS,
        .must_begin = !c->cache_optional,
        .groups = s->rules.groups,
        .group_count = s->rules.group_count,
        .block_size_bytes_max = command_rules_block_size_max(&s->rules),
        .descriptors_max = s->descriptors.segments,
        .holders = holders,
        .holder_count = holder_count,
        .origin = origin_name(s->origins.origins[0]),
        .written_pages_bytes = c->memory_limit_bytes / 8,
        .memory_is_short = host_memory_is_short,
        .memory = host_memory_look};
    if (s->upgrade.former_fd >= 0) {
        log_release(LOG_LEVEL_DEBUG); // write the log now, because the wait below may be long
    }
    if (!command_upgrade_wait_turn(&s->upgrade)) {
        free(holders);
        buf_append_cstr(&s->why, "the former process continues to serve, so this one ends");
        return serve_fail(s, EXIT_CODE_FAILED);
    }
    enum err err = store_open(&options, s->loop, &s->store, &s->why);
    if (err == ERR_OK) {
        err = command_holders_apply(holders, s->origins.origins, s->origins.origin_count,
                                    s->access_keys);
    }
    bool is_back = holders[0].is_back; // the first holder is the default origin
    free(holders);
    if (err != ERR_OK) {
        return serve_fail(s, EXIT_CODE_FAILED);
    }
    struct store_summary summary;
    store_summarize(s->store, &summary);
    tell_former_origin(s, &summary, is_back);
    (void)disk_io_probe_residency(summary.dir);
    return EXIT_CODE_OK;
}

static int serve_build_proxy(struct serve *s)
{
    const struct config *c = s->config;
    bool verify = c->auth_mode == CONFIG_AUTH_VERIFY;
    struct proxy_options options = {.loop = s->loop,
                                    .store = s->store,
                                    .default_origin = s->origins.origins[0],
                                    .auth_mode = verify ? PROXY_AUTH_VERIFY : PROXY_AUTH_OPEN,
                                    .access_keys = s->access_keys,
                                    .realm = "default",
                                    .sts_origin = s->sts_origin,
                                    .access_log_path = command_settings_access_log(c),
                                    .settings = command_proxy_settings(c, &s->rules, &s->origins)};
    enum err err = proxy_new(&options, &s->proxy, &s->why);
    return err == ERR_OK ? EXIT_CODE_OK : serve_fail(s, EXIT_CODE_FAILED);
}

static int serve_build_http(struct serve *s)
{
    static const unsigned unix_modes[] = {0600, 0660, 0666};
    const struct config *c = s->config;
    struct http_inherited inherited[CONFIG_INHERITED_MAX];
    unsigned inherited_count = 0, listen_count = 0;
    s->listen = calloc(c->listen.count, sizeof(*s->listen));
    check(s->listen != NULL);
    for (unsigned i = 0; i < c->listen.count; i++) {
        const struct config_listen *listen = &c->listen.items[i];
        if (listen->inherited) {
            inherited[inherited_count++] =
                (struct http_inherited){.fd = listen->fd,
                                        .is_tls = listen->kind == CONFIG_LISTEN_TLS,
                                        .owns_name = listen->owns_name};
        } else {
            s->listen[listen_count++] = listen->text;
        }
    }
    struct http_options options = {.listen = s->listen,
                                   .listen_count = listen_count,
                                   .unix_mode = unix_modes[c->listen_unix_mode],
                                   .inherited = inherited,
                                   .inherited_count = inherited_count,
                                   .tls = s->tls,
                                   .limits = command_http_limits(c, &s->descriptors),
                                   .min_rate_grace_ms = MIN_RATE_GRACE_MS,
                                   .min_rate_patience_ms = MIN_RATE_PATIENCE_MS,
                                   .handler = proxy_handler(s->proxy)};
    s->tls = NULL; // the server owns it from here on
    enum err err = http_server_new(s->loop, &options, &s->http, &s->why);
    return err == ERR_OK ? EXIT_CODE_OK : serve_fail(s, EXIT_CODE_FAILED);
}

static void render_metrics(void *ctx, struct buf *out)
{
    const struct serve *s = ctx;
    command_memory_metrics(out);
    command_certificate_metrics(out);
    command_origins_metrics(s->origins.origins, s->origins.origin_count, out);
    if (s->reload.names_buckets) {
        proxy_bucket_metrics(s->proxy, out);
    }
}

static void name_origins(void *ctx, struct buf *out)
{
    const struct serve *s = ctx;
    command_origins_names(s->origins.origins, s->origins.origin_count, out);
}

static json_t *show_origins(void *ctx)
{
    const struct serve *s = ctx;
    return command_origins_json(s->origins.origins, s->origins.origin_count);
}

// Brings the gauge of held bytes up to date. Main thread and admin thread.
static void serve_count_held(void *ctx)
{
    struct serve *s = ctx;
    uint64_t held_bytes = store_held_bytes(s->store);
    stats_add(COUNTER_cache_held_bytes, held_bytes - atomic_exchange(&s->held_bytes, held_bytes));
}

static int serve_build_admin(struct serve *s)
{
    const struct config *c = s->config;
    const struct config_listen *at = &c->admin_listen;
    unsigned count = 0;
    for (; count < HTTP_LISTENERS_MAX && http_server_address(s->http, count) != NULL; count++) {
        s->addresses[count] = http_server_address(s->http, count);
    }
    struct admin_options options = {
        .host = at->kind == CONFIG_LISTEN_OFF ? NULL : at->host,
        .port = at->port,
        .inherited_fd = c->admin_inherited_fd,
        .socket_path = c->admin_socket,
        .socket_optional = c->admin_socket_auto,
        .listen = s->addresses,
        .listen_count = count,
        .origins = name_origins,
        .origins_json = show_origins,
        .count_held = serve_count_held,
        .io_engine = loop_engine(s->loop) == DISK_ENGINE_URING ? "io_uring" : "threads",
        .access = command_admin_access(c),
        .auth = c->auth_mode == CONFIG_AUTH_OPEN ? "open" : "verify",
        .alive = probe_alive,
        .ready = probe_ready,
        .conditions = &s->conditions,
        .started = probe_started,
        .metrics = render_metrics,
        .config = show_config,
        .lines = control_lines(s->proxy),
        .ctx = s};
    s->control.proxy = s->proxy;
    s->control.store = s->store;
    s->control.argc = s->reload.argc;
    s->control.argv = s->reload.argv;
    s->parts = (struct command_conditions_parts){.store = s->store,
                                                 .loop = s->loop,
                                                 .origins = &s->origins,
                                                 .reload = &s->reload,
                                                 .refused = &s->refused,
                                                 .control = &s->control,
                                                 .is_draining = &s->draining};
    control_init(&s->control);
    control_actions(options.actions);
    options.action_ctx = &s->control;
    enum err err = admin_start(&options, &s->admin, &s->why);
    return err == ERR_OK ? EXIT_CODE_OK : serve_fail(s, EXIT_CODE_FAILED);
}

// Checks that there are enough descriptors for all workers, because a worker cannot run with fewer
// than it needs.
static bool serve_has_descriptors(struct serve *s)
{
    const struct command_limits_plan *plan = &s->descriptors;
    if (plan->descriptors >= plan->least) {
        return true;
    }
    buf_printf(
        &s->why,
        "the limit of %llu open files is too low for %u workers, which need at least %llu: raise "
        "it (ulimit -n, LimitNOFILE=), or set workers lower",
        (unsigned long long)plan->descriptors, s->config->workers, (unsigned long long)plan->least);
    return false;
}

static int serve_build(struct serve *s)
{
    const struct config *c = s->config;
    if (!serve_has_descriptors(s)) {
        return serve_fail(s, EXIT_CODE_FAILED);
    }
    command_memory_begin(c);
    static_assert(CONFIG_WORKERS_MAX <= LOOP_WORKERS_MAX,
                  "each setting that is taken can be served");
    struct loop_options loop_options = {.worker_count = c->workers,
                                        .engine = (enum disk_engine)c->io_engine,
                                        .disk_threads = c->io_threads * c->workers,
                                        .disk_queue_depth = c->io_queue_depth};
    net_init();
    if (loop_new(&loop_options, &s->loop, &s->why) != ERR_OK) {
        return serve_fail(s, EXIT_CODE_FAILED);
    }
    enum err err = serve_origins(s);
    if (err == ERR_OK) {
        err = serve_sts_origin(s);
    }
    if (err != ERR_OK) {
        return serve_fail(s, err == ERR_INVALID || err == ERR_PERMISSION ? EXIT_CODE_CONFIGURATION
                                                                         : EXIT_CODE_ORIGIN);
    }
    command_rules(c, NULL, &s->rules);
    int exit_code = serve_build_store(s);
    if (exit_code == EXIT_CODE_OK) {
        exit_code = serve_build_proxy(s);
    }
    s->reload.store = s->store;
    s->reload.proxy = s->proxy;
    s->reload.access_keys = &s->access_keys;
    s->reload.rules = &s->rules;
    if (exit_code == EXIT_CODE_OK) {
        exit_code = serve_build_http(s);
    }
    s->reload.http = s->http;
    s->reload.origins = &s->origins;
    s->reload.sts_origin = s->sts_origin;
    s->reload.loop = s->loop;
    s->reload.descriptors = &s->descriptors;
    s->reload.probed = &s->told;
    if (exit_code == EXIT_CODE_OK) {
        exit_code = serve_build_admin(s);
    }
    s->reload.admin = s->admin;
    return exit_code;
}

// --- running -------------------------------------------------------------------------------------

static void serve_signals(sigset_t *ret_set)
{
    (void)sigemptyset(ret_set);
    (void)sigaddset(ret_set, SIGTERM);
    (void)sigaddset(ret_set, SIGINT);
    (void)sigaddset(ret_set, SIGHUP);
    (void)sigaddset(ret_set, SIGUSR1);
    (void)sigaddset(ret_set, SIGUSR2);
    check(pthread_sigmask(SIG_BLOCK, ret_set, NULL) == 0);
    check(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    check(signal(SIGCHLD, SIG_DFL) !=
          SIG_ERR); // if SIGCHLD is ignored, waitpid() finds no exit code
}

// Starts an upgrade. Returns true if the new process is ready and waits for the cache.
static bool serve_upgrade(struct serve *s)
{
    struct command_upgrade_listener listeners[HTTP_LISTENERS_MAX + 1];
    struct buf why;
    unsigned count = 0;
    buf_init(&why, 8192);
    for (; http_server_address(s->http, count) != NULL; count++) {
        bool owns_name;
        int fd = http_server_listener(s->http, count, &owns_name);
        bool is_tls = strncmp(http_server_address(s->http, count), "tls:", 4) == 0;
        listeners[count] = (struct command_upgrade_listener){.fd = fd,
                                                             .name = is_tls      ? "tls"
                                                                     : owns_name ? "s3-unlink"
                                                                                 : "s3"};
    }
    int admin_fd = admin_listen_fd(s->admin);
    if (admin_fd >= 0) {
        listeners[count++] = (struct command_upgrade_listener){.fd = admin_fd, .name = "admin"};
    }
    log_info("upgrade_begun", "path=%s", log_quote(span_from_cstr(s->upgrade.path)));
    uint64_t wait_ms = control_upgrade_wait_ms(&s->control);
    command_watchdog_extend(&s->watchdog, wait_ms);
    bool ok = command_upgrade_begin(&s->upgrade, listeners, count, wait_ms, &why);
    command_watchdog_extend(&s->watchdog, 0);
    if (ok) {
        command_upgrade_commit(&s->upgrade);
    } else {
        log_error("upgrade_failed", "why=%s", log_quote(buf_span(&why)));
    }
    control_upgraded(&s->control, s->upgrade.pid, buf_cstr(&why));
    buf_done(&why);
    return ok;
}

// Tells the service manager that the server is alive, and the log which conditions have changed.
static void serve_report(struct serve *s)
{
    uint64_t age_ms;
    command_watchdog_tend(&s->watchdog, command_conditions_moves(s->loop, &age_ms));
    conditions_look(&s->conditions);
}

static void serve_reload(struct serve *s)
{
    struct command_reload_report report;
    command_reload_report_init(&report);
    enum err err = command_reload_now(&s->reload, &report);
    control_reloaded(&s->control,
                     &(struct control_reload_report){.is_good = err == ERR_OK,
                                                     .errors = buf_span(&report.errors),
                                                     .applied = buf_span(&report.applied),
                                                     .needs_restart = buf_span(&report.restart)});
    command_reload_report_done(&report);
}

static void serve_until_stopped(struct serve *s, const sigset_t *signals)
{
    const uint64_t pause_ms = command_watchdog_pause_ms(&s->watchdog, ROUND_MS);
    const struct timespec pause = {.tv_sec = (time_t)(pause_ms / 1000),
                                   .tv_nsec = (long)(pause_ms % 1000) * 1000000};
    uint64_t high_bytes = 0;
    for (;;) {
        serve_count_held(s);
        int signal_number = sigtimedwait(signals, NULL, &pause);
        serve_report(s);
        command_memory_trim(&high_bytes);
        proxy_pins_tend(s->proxy);
        if (signal_number == SIGUSR1) {
            proxy_reopen_logs(s->proxy);
        } else if (signal_number == SIGHUP) {
            serve_reload(s);
        } else if (signal_number == SIGUSR2 && serve_upgrade(s)) {
            return;
        } else if (signal_number == SIGTERM || signal_number == SIGINT) {
            return;
        } else if (command_reload_is_due(&s->reload)) {
            serve_reload(s);
        }
    }
}

static bool serve_is_busy(const struct serve *s)
{
    return !http_server_has_ended(s->http) || stats_sum(COUNTER_fills_inflight) > 0 ||
           stats_sum(COUNTER_writes_inflight) > 0;
}

// Ends connections that cannot be handed over and have been silent for a moment. These are
// connections with TLS or with half a request head. Until then they may send one more request,
// while connections of new clients wait for the new process.
static void serve_end_waiting(const struct serve *s, uint64_t *looked_ms)
{
    if (s->upgrade.pid != 0 && clock_monotonic_ms() - *looked_ms >= UPGRADE_LOOK_MS) {
        http_server_end_waiting(s->http);
        *looked_ms = clock_monotonic_ms();
    }
}

// Forwards SIGHUP and SIGUSR1 to the new process of an upgrade, because the sender may know only
// this process. The new process has read its files already, so it must read them again. It handles
// the signal once it serves.
static void serve_forward(const struct serve *s, int signal_number)
{
    if (s->upgrade.pid != 0 && (signal_number == SIGHUP || signal_number == SIGUSR1)) {
        (void)kill(s->upgrade.pid,
                   signal_number); // if the new process has died, this one restarts and reads the
                                   // files
    }
}

// Drains: refuses new connections and waits until open exchanges have ended. Stores or drops runs
// in flight. Waits for the answers of writes, even if their clients have left. A second signal or
// the end of the grace time stops the wait. If an upgrade is pending, the first signal cancels it.
static void serve_drain(struct serve *s, const sigset_t *signals)
{
    control_drain(&s->control);
    s->draining = true;
    conditions_look(&s->conditions); // logs it
    uint64_t looked_ms = clock_monotonic_ms();
    uint64_t until_ms = looked_ms + s->reload.grace_ms;
    if (s->upgrade.pid != 0) {
        http_server_pass_on(s->http, s->upgrade.passing_fd, s->upgrade.passed_at_once);
    } else {
        command_stop_begin(until_ms);
        http_server_drain(s->http);
    }
    struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    while (serve_is_busy(s) && clock_monotonic_ms() < until_ms) {
        int signal_number = sigtimedwait(signals, NULL, &pause);
        serve_end_waiting(s, &looked_ms);
        serve_report(s);
        serve_forward(s, signal_number);
        if (signal_number != SIGTERM && signal_number != SIGINT) {
            continue;
        }
        if (s->upgrade.pid == 0) {
            break;
        }
        command_upgrade_call_off(&s->upgrade);
        http_server_call_off(s->http, s->upgrade.passed_fd);
        log_error("upgrade_failed", "why=\"the server is stopping\"");
        command_stop_begin(until_ms);
    }
}

// Ends all exchanges in this order on each worker, as if every client left and every call were
// cancelled. Therefore the usual paths release everything, and keys with a write in flight are
// invalidated once more. loop_stop() waits for all of this. No callback runs after it.
static void serve_end_all(struct serve *s)
{
    http_server_close(s->http);
    command_origins_close(&s->origins);
    origin_close(s->sts_origin);
    loop_stop(s->loop);
}

static void serve_tear_down(struct serve *s, bool running)
{
    admin_halt(s->admin);
    control_drain(&s->control);
    if (running) {
        serve_end_all(s);
    }
    http_server_free(s->http);
    http_tls_free(s->tls);
    control_done(&s->control);
    conditions_done(&s->conditions);
    proxy_free(s->proxy);
    command_origins_free(&s->origins);
    origin_free(s->sts_origin);
    store_close(s->store);
    loop_free(s->loop);
    (void)sem_destroy(&s->told); // nobody waits or posts any more
    access_keys_unref(s->access_keys);
    free(s->rules.rules);
    free(s->listen);
    command_reload_done(&s->reload);
    free(s->words);
    config_free(s->config);
    buf_done(&s->why);
    buf_done(&s->warnings);
    admin_stop(s->admin); // the last, because `forebay drain --wait` returns then
}

// Ends an upgrade, after the cache was closed: lets the new process open the cache, and makes it
// the main process of the service manager.
static void serve_hand_over(struct serve *s, const sigset_t *signals)
{
    char state[64], main_pid[128];
    const struct timespec now = {0};
    int signal_number;
    // Remove the time limit, because command_upgrade_finish() limits its own wait.
    if (command_stop_bound_end(signals)) {
        command_upgrade_call_off(&s->upgrade);
        log_error("upgrade_failed", "why=\"the server is stopping\"");
        return;
    }
    command_upgrade_finish(&s->upgrade);
    while ((signal_number = sigtimedwait(signals, NULL, &now)) > 0) {
        serve_forward(s, signal_number);
        if (signal_number == SIGTERM || signal_number == SIGINT) {
            (void)kill(s->upgrade.pid,
                       signal_number); // a stop request must also stop the new process
        }
    }
    // Send the watchdog's limit too, because the service manager has accepted no signs of the new
    // process so far.
    command_watchdog_state(&s->watchdog, state);
    (void)snprintf(main_pid, sizeof(main_pid), "MAINPID=%d%s%s", (int)s->upgrade.pid,
                   state[0] != '\0' ? "\n" : "", state);
    command_notify(main_pid);
    command_notify_barrier(); // the service manager ignores the message once this process has ended
    log_info("upgraded", "pid=%d", (int)s->upgrade.pid);
    command_upgrade_done(&s->upgrade);
}

// Returns a copy of argv that ends with NULL, with -q or -v added as a --log.level unless the
// command line has one.
static char **serve_words(int *argc, char **argv)
{
    static char warn[] = "--log.level=warn", debug[] = "--log.level=debug";
    const struct command *serve = command_line_find("serve");
    char *level = commands_common()->is_quiet ? warn : commands_common()->is_verbose ? debug : NULL;
    char **words = calloc((size_t)*argc + 2, sizeof(*words));
    check(words != NULL);
    for (int i = 0; i < *argc; i++) {
        words[i] = argv[i];
    }
    for (int i = 0; i < *argc; i += command_line_words(serve, words + i)) {
        bool is_level = strncmp(words[i], "--log.level", 11) == 0 &&
                        (words[i][11] == '=' || words[i][11] == '\0');
        level = is_level ? NULL : level;
    }
    if (level != NULL) {
        words[(*argc)++] = level;
    }
    return words;
}

int command_serve(int argc, char **argv)
{
    struct serve s = {0};
    sigset_t signals;
    int taken_fd;
    command_memory_keep_private();
    command_upgrade_init(&s.upgrade, argc, argv);
    check(sem_init(&s.told, 0, 0) == 0);
    buf_init(&s.why, 65536);
    s.words = serve_words(&argc, argv);
    enum err err = config_load(argc, s.words, &s.config, &s.why);
    if (err != ERR_OK) {
        commands_tell_errors(buf_span(&s.why));
        command_upgrade_fail(&s.upgrade, buf_cstr(&s.why));
        buf_done(&s.why);
        free(s.words);
        return EXIT_CODE_CONFIGURATION;
    }
    conditions_init(&s.conditions, command_conditions_look, &s.parts);
    buf_init(&s.warnings, 65536);
    buf_append_span(&s.warnings, buf_span(&s.why));
    buf_done(&s.why);
    command_reload_init(&s.reload, argc, s.words, s.config);
    log_init((enum log_level)s.config->log_level, s.config->log_format == CONFIG_LOG_JSON);
    log_keys_set((enum log_keys)s.config->log_keys);
    log_hold();
    s.descriptors = command_limits_plan(s.config);
    command_watchdog_init(&s.watchdog);
    serve_signals(&signals);
    int exit_code = serve_build(&s);
    if (exit_code != EXIT_CODE_OK) {
        serve_tear_down(&s, false);
        return exit_code;
    }
    if (loop_start(s.loop) != ERR_OK) {
        buf_append_cstr(&s.why,
                        "threads could not be started: raise the limit on tasks (ulimit -u)");
        exit_code = serve_fail(&s, EXIT_CODE_FAILED);
        serve_tear_down(&s, false);
        return exit_code;
    }
    log_release(LOG_LEVEL_DEBUG);
    serve_say_warnings(&s);
    http_server_start(s.http);
    command_upgrade_serving(&s.upgrade, &taken_fd);
    if (taken_fd >= 0) {
        http_server_take_over(s.http, taken_fd);
    }
    s.started = true;
    for (unsigned i = 0; i < s.origins.origin_count; i++) {
        origin_probe_start(s.origins.origins[i], &s.told);
    }
    command_notify("READY=1");
    command_watchdog_extend(&s.watchdog, 0);
    struct command_announcement announcement = {.config = s.config,
                                                .loop = s.loop,
                                                .store = s.store,
                                                .http = s.http,
                                                .admin = s.admin,
                                                .origins = s.origins.origins,
                                                .origin_count = s.origins.origin_count,
                                                .told = &s.told,
                                                .descriptors = &s.descriptors};
    command_announce(&announcement);
    serve_until_stopped(&s, &signals);
    serve_drain(&s, &signals);
    command_watchdog_extend(&s.watchdog, END_MAX_MS);
    command_stop_bound(&signals);
    serve_tear_down(&s, true);
    if (s.upgrade.pid != 0) {
        serve_hand_over(&s, &signals);
    }
    log_info("stopped", "exit=%d", EXIT_CODE_OK);
    return EXIT_CODE_OK;
}
