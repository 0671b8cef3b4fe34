// SPDX-License-Identifier: Apache-2.0
// Loads the configuration: gather, parse, finish (see config_private.h). One thread, at the start
// and on each reload.
#include "config/config.h"

#include "base/headers.h"
#include "base/host.h"
#include "base/log.h"
#include "config/config_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA_MAX_BYTES (64u << 20)
#define WARNINGS_MAX_BYTES (1u << 20)

extern char **environ;

// --- Gather: flags and environment ---------------------------------------------------------------

// Records the text of a setting from a flag, a variable or the defaults. In such a text, commas
// separate the items of a list.
static void set_raw(struct loader *l, unsigned id, const char *text, const char *where)
{
    const char **items = config_loader_alloc(l, CONFIG_LIST_MAX * sizeof(*items));
    unsigned count = 0;
    if (!settings_is_list(settings_row(id)->kind)) {
        items[count++] = config_loader_cstr(l, span_from_cstr(text));
    } else {
        struct span rest = span_from_cstr(text), piece;
        while (span_split(&rest, ',', &piece)) {
            piece = span_trim(piece);
            if (count == CONFIG_LIST_MAX) {
                config_loader_error(l, where, "at most %d values", CONFIG_LIST_MAX);
                return;
            }
            if (piece.len > 0) {
                items[count++] = config_loader_cstr(l, piece);
            }
        }
    }
    l->raws[id] = (struct raw){items, count, where, false};
}

static void unknown_flag(struct loader *l, const char *argument, struct span key)
{
    const char *near = settings_suggest_key(key);
    const struct config_list *list = config_list_of(key);
    if (list != NULL) {
        config_loader_error(l, argument, "no flag: %s are given in the file that -c names:\n%s",
                            list->name, list->example);
    } else if (near != NULL && settings_find(span_from_cstr(near)) < SETTING_COUNT_) {
        config_loader_error(l, argument, "unknown flag (did you mean \"--%s\"?)", near);
    } else {
        config_loader_error(l, argument, "unknown flag");
    }
}

// Reads a flag, and the next argument as its value unless the flag is "--KEY=VALUE". Returns how
// many arguments were read.
static int take_flag(struct loader *l, int left, char **argv, const char **ret_file)
{
    const char *argument = argv[0];
    bool is_file = strcmp(argument, "-c") == 0;
    if (!is_file && strncmp(argument, "--", 2) != 0) {
        config_loader_error(l, argument, "unexpected argument");
        return 1;
    }
    struct span key = span_from_cstr(is_file ? argument + 1 : argument + 2);
    const char *equals = is_file ? NULL : strchr(argument, '=');
    if (equals != NULL) {
        key.len = (size_t)(equals - key.ptr);
    }
    unsigned id = settings_find(key);
    if (!is_file && id == SETTING_COUNT_) {
        unknown_flag(l, argument, key);
        return equals == NULL && left > 1 && argv[1][0] != '-' ? 2 : 1;
    }
    if (equals == NULL && left < 2) {
        config_loader_error(l, argument, "needs a value");
        return 1;
    }
    const char *value = equals != NULL ? equals + 1 : argv[1];
    if (is_file ? *ret_file != NULL : l->raws[id].where != NULL) {
        config_loader_error(l, argument, "is given twice; remove one");
    } else if (is_file) {
        *ret_file = config_loader_cstr(l, span_from_cstr(value));
    } else {
        char *where = arena_printf(l->arena, "--%s", settings_row(id)->public_.key);
        check(where != NULL);
        set_raw(l, id, value, where);
    }
    return equals != NULL ? 1 : 2;
}

// Returns true if `name` is a variable that Kubernetes sets for a Service with the name forebay or
// forebay-...
static bool is_service_link(struct span name)
{
    if (span_ends_with(name, SPAN("_SERVICE_HOST")) || span_ends_with(name, SPAN("_PORT"))) {
        return true;
    }
    for (size_t i = 0; i < name.len; i++) {
        struct span rest = {name.ptr + i, name.len - i};
        if (span_starts_with(rest, SPAN("_SERVICE_PORT"))) {
            return true;
        }
        if (span_starts_with(rest, SPAN("_PORT_")) && rest.len > 6 && rest.ptr[6] >= '0' &&
            rest.ptr[6] <= '9') {
            return true;
        }
    }
    return false;
}

// Returns true if `name` is a variable of Forebay that is not a setting. There are two kinds.
// Commands read some, to find the configuration file and the running server's address and token.
// Only tests use the others.
static bool is_other_variable(struct span name)
{
    static const char *const names[] = {"FOREBAY_CONFIG", "FOREBAY_ADMIN", "FOREBAY_ADMIN_TOKEN"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (span_equal_cstr(name, names[i])) {
            return true;
        }
    }
#ifdef FOREBAY_FAULTS
    if (span_equal(name, SPAN("FOREBAY_CLOCK_FILE")) ||
        span_equal(name, SPAN("FOREBAY_DISK_FAULTS"))) {
        return true;
    }
#endif
    return span_starts_with(name, SPAN("FOREBAY_TEST_")) || span_equal(name, SPAN("FOREBAY_BIN"));
}

static unsigned find_by_variable(struct span name)
{
    unsigned id = 0;
    char candidate[CONFIG_NAME_MAX];
    for (; id < SETTING_COUNT_; id++) {
        config_environment_name(settings_row(id)->public_.key, candidate);
        if (span_equal_cstr(name, candidate)) {
            break;
        }
    }
    return id;
}

static void unknown_variable(struct loader *l, struct span name)
{
    char names[SETTING_COUNT_][CONFIG_NAME_MAX];
    const char *candidates[SETTING_COUNT_];
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        config_environment_name(settings_row(id)->public_.key, names[id]);
        candidates[id] = names[id];
    }
    const char *near = settings_suggest(name, candidates, SETTING_COUNT_);
    char where[128];
    (void)snprintf(where, sizeof(where), "env %.*s", (int)(name.len < 100 ? name.len : 100),
                   name.ptr);
    if (near != NULL) {
        config_loader_warning(l, where, "unknown variable, ignored (did you mean \"%s\"?)", near);
    } else {
        config_loader_warning(l, where, "unknown variable, ignored");
    }
}

// An empty variable counts as not set, because manifests set optional values to an empty text.
static void gather_environment(struct loader *l)
{
    for (char **at = environ; *at != NULL; at++) {
        struct span entry = span_from_cstr(*at);
        struct span name = {entry.ptr, span_find(entry, '=')};
        if (!span_starts_with(name, SPAN("FOREBAY_")) || name.len + 1 >= entry.len) {
            continue;
        }
        unsigned id = find_by_variable(name);
        if (id < SETTING_COUNT_) {
            char *where = arena_printf(l->arena, "env %.*s", (int)name.len, name.ptr);
            check(where != NULL);
            set_raw(l, id, entry.ptr + name.len + 1, where);
        } else if (!is_service_link(name) && !is_other_variable(name)) {
            unknown_variable(l, name);
        }
    }
}

static void gather_file(struct loader *l, const char *from_flag)
{
    const char *path = from_flag;
    const char *from_environment = getenv("FOREBAY_CONFIG");
    if (path == NULL && from_environment != NULL && from_environment[0] != '\0') {
        path = config_loader_cstr(l, span_from_cstr(from_environment));
    }
    if (path == NULL && access(CONFIG_DEFAULT_FILE, F_OK) == 0) {
        path = CONFIG_DEFAULT_FILE;
        l->config->is_default_file = true;
    }
    if (path != NULL) {
        l->config->file = path;
        l->is_file_unread = !config_file_read(l, path);
    }
}

// Collects the texts of all sources. Flags are parsed first, because -c names the file. They
// override the environment, which overrides the file.
static void gather(struct loader *l, int argc, char **argv)
{
    const char *file = NULL;
    struct raw from_flags[SETTING_COUNT_];
    for (int i = 0; i < argc;) {
        i += take_flag(l, argc - i, argv + i, &file);
    }
    memcpy(from_flags, l->raws, sizeof(from_flags));
    memset(l->raws, 0, sizeof(l->raws));
    gather_file(l, file);
    gather_environment(l);
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        if (from_flags[id].where != NULL) {
            l->raws[id] = from_flags[id];
        }
    }
}

// --- Parse ---------------------------------------------------------------------------------------

static bool parse_list(struct loader *l, const struct setting *row, const struct raw *raw,
                       void *field, char *why)
{
    if (row->kind == KIND_TEXTS) {
        *(struct config_texts *)field = (struct config_texts){raw->items, raw->count};
        return true;
    }
    struct config_listen *items = config_loader_alloc(l, (raw->count + 1) * sizeof(*items));
    for (unsigned i = 0; i < raw->count; i++) {
        if (!config_value_parse_listen(l, span_from_cstr(raw->items[i]), &items[i], why)) {
            return false;
        }
    }
    *(struct config_listens *)field = (struct config_listens){items, raw->count};
    if (raw->count == 0) {
        (void)snprintf(why, WHY_MAX, "names no address");
        return false;
    }
    return true;
}

static const char *join_items(struct loader *l, const struct raw *raw)
{
    const char *joined = raw->count > 0 ? raw->items[0] : "";
    for (unsigned i = 1; i < raw->count; i++) {
        joined = arena_printf(l->arena, "%s, %s", joined, raw->items[i]);
        check(joined != NULL);
    }
    return joined;
}

static void parse_setting(struct loader *l, unsigned id)
{
    const struct setting *row = settings_row(id);
    void *field = (char *)l->config + row->offset;
    char why[WHY_MAX] = "";
    if (l->raws[id].where == NULL) {
        set_raw(l, id, row->public_.default_text, "default");
    }
    const struct raw *raw = &l->raws[id];
    bool ok = settings_is_list(row->kind)
                  ? parse_list(l, row, raw, field, why)
                  : config_value_parse(l, row, span_from_cstr(raw->items[0]), field, why);
    if (!ok && raw->from_file) {
        config_loader_error(l, raw->where, "%s: %s", row->public_.key, why);
    } else if (!ok) {
        config_loader_error(l, raw->where, "%s", why);
    }
    l->config->private_->texts[id] = join_items(l, raw);
    l->config->private_->sources[id] = raw->where;
}

// --- Finish --------------------------------------------------------------------------------------

// Records the value that replaces auto, and notes "auto" in its source.
static void resolved(struct loader *l, unsigned id, const char *text)
{
    struct config_private *p = l->config->private_;
    p->texts[id] = text;
    p->sources[id] = arena_printf(l->arena, "%s, auto", p->sources[id]);
    check(text != NULL && p->sources[id] != NULL);
}

static bool was_auto(const struct loader *l, unsigned id)
{
    return strcmp(l->config->private_->texts[id], "auto") == 0;
}

static void finish_cache_dir(struct loader *l)
{
    struct config *c = l->config;
    const char *where = l->raws[SETTING_cache_dir].where;
    if (c->cache_dir == NULL) {
        config_loader_error(l, where, "cache.dir is empty");
        return;
    }
    if (was_auto(l, SETTING_cache_dir)) {
        const char *user_cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
        const char *of_unit = getenv("CACHE_DIRECTORY"); // systemd sets it: systemd.exec(5)
        if (of_unit != NULL && of_unit[0] == '/' && strchr(of_unit, ':') == NULL) {
            c->cache_dir = arena_printf(l->arena, "%s", of_unit);
        } else if (geteuid() == 0) {
            c->cache_dir = "/var/cache/forebay";
        } else if (user_cache != NULL && user_cache[0] == '/') {
            c->cache_dir = arena_printf(l->arena, "%s/forebay", user_cache);
        } else if (home != NULL && home[0] == '/') {
            c->cache_dir = arena_printf(l->arena, "%s/.cache/forebay", home);
        } else {
            config_loader_error(l, where,
                                "cache.dir: neither XDG_CACHE_HOME nor HOME is set; set cache.dir");
            return;
        }
        resolved(l, SETTING_cache_dir, c->cache_dir);
    } else if (c->cache_dir[0] == '~') {
        // Shells do not expand it in a file, nor after "=". A directory of that name in the working
        // directory is never meant, and dangerous to remove.
        config_loader_error(l, where, "cache.dir: \"%.200s\" begins with ~: write the whole path",
                            c->cache_dir);
    } else if (c->cache_dir[0] != '/') {
        char folder[4096];
        if (getcwd(folder, sizeof(folder)) == NULL) {
            config_loader_error(l, where, "cache.dir: \"%.200s\" is not an absolute path",
                                c->cache_dir);
            return;
        }
        c->cache_dir = arena_printf(l->arena, "%s/%s", folder, c->cache_dir);
        check(c->cache_dir != NULL);
    }
}

static void finish_admin_socket(struct loader *l)
{
    struct config *c = l->config;
    if (c->admin_socket != NULL && strcmp(c->admin_socket, "off") == 0) {
        c->admin_socket = NULL;
    }
    if (c->admin_socket != NULL && was_auto(l, SETTING_admin_socket)) {
        const char *folder = getenv("RUNTIME_DIRECTORY");
        if (folder == NULL || folder[0] != '/') {
            folder = getenv("XDG_RUNTIME_DIR");
        }
        bool ours = folder != NULL && folder[0] == '/' && access(folder, W_OK) == 0;
        // The runtime directory is the same for all servers of a user, so only one server gets this
        // socket. For the others its failure is no error (admin_socket_auto).
        c->admin_socket = ours ? arena_printf(l->arena, "%s/forebay.sock", folder)
                               : arena_printf(l->arena, "%s/admin.sock",
                                              c->cache_dir != NULL ? c->cache_dir : "");
        resolved(l, SETTING_admin_socket, c->admin_socket);
        c->admin_socket_auto = true;
    }
}

#define BUFFER_AUTO_MAX (256ull << 20)
#define BUFFER_AUTO_MIN (4ull << 20)

static void finish_sizes(struct loader *l)
{
    struct config *c = l->config;
    if (was_auto(l, SETTING_workers)) {
        c->workers = host_workers(CONFIG_WORKERS_MAX);
        resolved(l, SETTING_workers, arena_printf(l->arena, "%u", c->workers));
    }
    c->memory_limit_bytes = host_memory_limit_bytes();
    if (was_auto(l, SETTING_limits_max_buffer_bytes)) {
        char text[WHY_MAX];
        uint64_t mib = min_u64(host_memory_bytes() / 4, BUFFER_AUTO_MAX) >> 20;
        c->limits_max_buffer_bytes = max_u64(mib << 20, BUFFER_AUTO_MIN);
        config_value_format_bytes(c->limits_max_buffer_bytes, text);
        resolved(l, SETTING_limits_max_buffer_bytes, config_loader_cstr(l, span_from_cstr(text)));
    }
    if (c->log_format == CONFIG_LOG_AUTO) {
        c->log_format = isatty(STDERR_FILENO) ? CONFIG_LOG_TEXT : CONFIG_LOG_JSON;
        resolved(l, SETTING_log_format, c->log_format == CONFIG_LOG_TEXT ? "text" : "json");
    }
    if (c->access_log_format == CONFIG_ACCESS_LOG_AUTO) {
        bool is_terminal = isatty(STDOUT_FILENO) == 1 && c->access_log_path != NULL &&
                           strcmp(c->access_log_path, "stdout") == 0;
        c->access_log_format = is_terminal ? CONFIG_ACCESS_LOG_TEXT : CONFIG_ACCESS_LOG_JSON;
        resolved(l, SETTING_access_log_format, is_terminal ? "text" : "json");
    }
}

// Returns the first listener that is not loopback, or NULL.
static const struct config_listen *network_listener(const struct config *c)
{
    for (unsigned i = 0; i < c->listen.count; i++) {
        if (!c->listen.items[i].loopback) {
            return &c->listen.items[i];
        }
    }
    return NULL;
}

static void finish_auth(struct loader *l)
{
    struct config *c = l->config;
    const char *where = l->raws[SETTING_listen].where;
    const struct config_listen *network = network_listener(c);
    bool automatic = c->auth_mode == CONFIG_AUTH_AUTO;
    if (automatic) {
        c->auth_mode = network == NULL ? CONFIG_AUTH_OPEN : CONFIG_AUTH_VERIFY;
        resolved(l, SETTING_auth_mode, network == NULL ? "open" : "verify");
    }
    if (c->auth_mode == CONFIG_AUTH_VERIFY && c->auth_keys_file == NULL) {
        if (automatic) {
            config_loader_error(
                l, where,
                "listen %s makes auth.mode verify, but auth.keys_file is not set (set it, "
                "or listen on loopback)",
                network->text);
        } else {
            config_loader_error(l, l->raws[SETTING_auth_mode].where,
                                "auth.mode verify needs auth.keys_file");
        }
    }
    if (c->auth_mode == CONFIG_AUTH_OPEN && c->auth_keys_file != NULL) {
        config_loader_warning(
            l, l->raws[SETTING_auth_keys_file].where,
            "auth.keys_file is not used: auth.mode is open%s; set auth.mode to verify",
            automatic ? " where every listener is loopback or a unix socket" : "");
    }
    if (c->auth_mode == CONFIG_AUTH_OPEN && network != NULL && !c->auth_allow_open_network) {
        config_loader_error(
            l, l->raws[SETTING_auth_mode].where,
            "auth.mode open lets whoever reaches %s read, write and delete whatever Forebay's keys "
            "may: use verify, listen on loopback, or set auth.allow_open_network",
            network->text);
    }
}

static bool is_web_origin(struct span text)
{
    static const char SEPARATOR[] = "://";
    size_t colon = span_find(text, ':');
    struct span rest = {text.ptr + colon, text.len - colon};
    if (colon == 0 || !span_starts_with(rest, SPAN(SEPARATOR)) ||
        rest.len == sizeof(SEPARATOR) - 1) {
        return false;
    }
    for (size_t i = sizeof(SEPARATOR) - 1; i < rest.len; i++) {
        if (strchr("/?#@* ", rest.ptr[i]) != NULL) {
            return false;
        }
    }
    return true;
}

static void finish_allowed_origins(struct loader *l)
{
    const struct config_texts *origins = &l->config->auth_allowed_origins;
    for (unsigned i = 0; i < origins->count; i++) {
        if (!is_web_origin(span_from_cstr(origins->items[i]))) {
            config_loader_error(l, l->raws[SETTING_auth_allowed_origins].where,
                                "\"%.200s\" is no web origin: it takes http://HOST:PORT or "
                                "https://HOST:PORT, without a path or wildcard",
                                origins->items[i]);
        }
    }
}

// Reports a file of the server that cannot be read. NULL: the setting names none.
static void judge_file(struct loader *l, unsigned id, const char *path)
{
    if (path != NULL && !l->is_client && access(path, R_OK) != 0) {
        config_loader_error(l, l->raws[id].where, "\"%.200s\" cannot be read: %s", path,
                            strerror(errno));
    }
}

static void finish_listeners(struct loader *l)
{
    const struct config *c = l->config;
    const char *where = l->raws[SETTING_listen].where;
    for (unsigned i = 0; i < c->listen.count; i++) {
        const struct config_listen *listen = &c->listen.items[i];
        if (listen->kind == CONFIG_LISTEN_TCP && !listen->loopback &&
            c->listen_plaintext == CONFIG_PLAINTEXT_LOOPBACK) {
            config_loader_error(
                l, where,
                "listen %s is plain HTTP on a network address: use tls:%s%s, or set "
                "listen_plaintext to network",
                listen->text, listen->text,
                listen->inherited ? " in listen and pass in no socket" : "");
        }
        if (listen->kind == CONFIG_LISTEN_TLS &&
            (c->listen_tls_cert == NULL || c->listen_tls_key == NULL)) {
            config_loader_error(l, where, "listen %s needs listen_tls.cert and listen_tls.key",
                                listen->text);
        }
    }
    judge_file(l, SETTING_listen_tls_cert, c->listen_tls_cert);
}

// Refuses addressing `virtual` for an endpoint with an IP address: "BUCKET.ADDRESS" is no name that
// DNS could resolve.
static void judge_addressing(struct loader *l, const char *where, enum config_addressing addressing,
                             const char *endpoint)
{
    if (addressing == CONFIG_ADDRESSING_VIRTUAL && strncmp(endpoint, "dir:", 4) != 0 &&
        config_value_is_address(span_from_cstr(endpoint))) {
        config_loader_error(l, where, "%s is an IP address: set addressing to path", endpoint);
    }
}

static bool has_https_origin(const struct config *c)
{
    bool found = strncmp(c->origin_endpoint, "https://", 8) == 0;
    for (unsigned i = 0; i < c->bucket_count; i++) {
        const char *endpoint = c->buckets[i].endpoint;
        found |= endpoint != NULL && strncmp(endpoint, "https://", 8) == 0;
    }
    return found;
}

// libcurl would take port 1080 for a proxy without one.
static bool names_port(struct span host)
{
    uint64_t port;
    return config_value_find_port(host, &port) && port > 0;
}

// No message has the value, because a user may have written a password into it.
static void finish_proxy(struct loader *l)
{
    const struct config *c = l->config;
    const char *where = l->raws[SETTING_origin_proxy].where, *proxy = c->origin_proxy;
    if (proxy == NULL) {
        if (c->origin_proxy_auth_file != NULL) {
            config_loader_error(l, l->raws[SETTING_origin_proxy_auth_file].where,
                                "origin.proxy_auth_file needs origin.proxy");
        }
        return;
    }
    struct span host = span_from_cstr(proxy), scheme = SPAN("http://");
    bool is_http = span_starts_with(host, scheme);
    host = is_http ? (struct span){host.ptr + scheme.len, host.len - scheme.len} : host;
    if (span_find(host, '@') < host.len) {
        config_loader_error(l, where,
                            "origin.proxy: user and password belong into the file of "
                            "origin.proxy_auth_file");
    } else if (!is_http || !names_port(host) || strcspn(host.ptr, "/?# ,") < host.len) {
        config_loader_error(l, where, "origin.proxy is no http://HOST:PORT");
    } else if (!has_https_origin(c)) {
        config_loader_error(l, where,
                            "origin.proxy is for https origins, and no origin is https: forebay "
                            "asks http origins directly");
    }
}

static void finish_origin(struct loader *l)
{
    const struct config *c = l->config;
    char why[WHY_MAX];
    const char *where = l->raws[SETTING_origin_endpoint].where;
    if (!config_value_is_endpoint(span_from_cstr(c->origin_endpoint), why)) {
        // If a flag or a variable set the value, `where` names it, so the message need not.
        bool is_named = !l->raws[SETTING_origin_endpoint].from_file;
        config_loader_error(l, where, "%s%s", is_named ? "" : "origin.endpoint: ", why);
    } else {
        l->config->origin_endpoint = config_value_endpoint(l, span_from_cstr(c->origin_endpoint));
        judge_addressing(l, l->raws[SETTING_origin_addressing].where, c->origin_addressing,
                         c->origin_endpoint);
    }
    judge_file(l, SETTING_origin_ca_file, c->origin_ca_file);
    finish_proxy(l);
    bool files = c->credentials_access_key_file != NULL && c->credentials_secret_key_file != NULL;
    if (c->credentials_source == CONFIG_CREDENTIALS_CONFIG && !files) {
        config_loader_error(l, l->raws[SETTING_credentials_source].where,
                            "credentials.source config needs credentials.access_key_file and "
                            "credentials.secret_key_file");
    } else if ((c->credentials_access_key_file == NULL) !=
               (c->credentials_secret_key_file == NULL)) {
        config_loader_error(l, "credentials",
                            "access_key_file and secret_key_file belong together, one is not set");
    }
    for (unsigned i = 0; i < c->bucket_count; i++) {
        const struct config_bucket *bucket = &c->buckets[i];
        if (bucket->has_addressing) {
            judge_addressing(l, bucket->source, bucket->addressing,
                             bucket->endpoint != NULL ? bucket->endpoint : c->origin_endpoint);
        }
        for (unsigned j = 0; j < i; j++) {
            if (c->buckets[i].name != NULL && c->buckets[j].name != NULL &&
                strcmp(c->buckets[i].name, c->buckets[j].name) == 0) {
                config_loader_error(l, c->buckets[i].source, "bucket \"%.64s\" is listed twice",
                                    c->buckets[i].name);
            }
        }
    }
}

// --- The door ------------------------------------------------------------------------------------

static struct loader loader_new(struct buf *errors)
{
    struct arena *arena = arena_new(ARENA_MAX_BYTES);
    struct config *config = arena_alloc(arena, sizeof(*config));
    check(config != NULL);
    config->private_ = arena_alloc(arena, sizeof(*config->private_));
    check(config->private_ != NULL);
    config->private_->arena = arena;
    struct loader l = {.arena = arena, .config = config, .errors = errors};
    buf_init(&l.warnings, WARNINGS_MAX_BYTES);
    return l;
}

static enum err load(bool is_client, int argc, char **argv, struct config **ret_config,
                     struct buf *ret_errors)
{
    struct loader l = loader_new(ret_errors);
    l.is_client = is_client;
    gather(&l, argc, argv);
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        parse_setting(&l, id);
    }
    config_inherit(&l);
    if (l.error_count == 0) {
        config_rules_inherit(&l);
        finish_cache_dir(&l);
        finish_admin_socket(&l);
        finish_sizes(&l);
        finish_listeners(&l);
        finish_auth(&l);
        finish_allowed_origins(&l);
        finish_origin(&l);
        config_overlap_judge(&l);
        config_buckets_judge(&l);
        config_rules_judge(&l);
    }
    if (l.error_count > CONFIG_ERRORS_MAX) {
        buf_printf(ret_errors, "forebay: and %u more errors\n", l.error_count - CONFIG_ERRORS_MAX);
    }
    buf_append_span(ret_errors, buf_span(&l.warnings)); // errors come before warnings
    buf_done(&l.warnings);
    if (l.error_count > 0) {
        config_free(l.config);
        return ERR_INVALID;
    }
    *ret_config = l.config;
    return ERR_OK;
}

enum err config_load(int argc, char **argv, struct config **ret_config, struct buf *ret_errors)
{
    return load(false, argc, argv, ret_config, ret_errors);
}

enum err config_load_client(int argc, char **argv, struct config **ret_config,
                            struct buf *ret_errors)
{
    return load(true, argc, argv, ret_config, ret_errors);
}

struct config *config_load_admin(int argc, char **argv, bool *ret_is_file_unread)
{
    struct buf ignored; // config_load_client() has reported these errors
    buf_init(&ignored, WARNINGS_MAX_BYTES);
    struct loader l = loader_new(&ignored);
    gather(&l, argc, argv);
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        bool is_used = id == SETTING_admin_listen || id == SETTING_admin_socket ||
                       id == SETTING_cache_dir; // admin.socket may be in cache.dir
        unsigned before = l.error_count;
        if (is_used) {
            parse_setting(&l, id);
        }
        if (!is_used || l.error_count > before) {
            l.raws[id] = (struct raw){.where = NULL};
            parse_setting(&l, id);
        }
    }
    finish_cache_dir(&l);
    finish_admin_socket(&l);
    buf_done(&l.warnings);
    buf_done(&ignored);
    *ret_is_file_unread = l.is_file_unread;
    return l.config;
}

void config_free(struct config *config)
{
    if (config != NULL) {
        arena_free(config->private_->arena); // the struct itself is in this arena
    }
}

void config_compare(const struct config *was, const struct config *now,
                    void (*on_changed)(void *ctx, const char *key, bool live), void *ctx)
{
    static const char *const lists[] = {"rules", "buckets"};
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        if (strcmp(was->private_->texts[id], now->private_->texts[id]) != 0) {
            on_changed(ctx, settings_row(id)->public_.key, settings_row(id)->public_.live);
        }
    }
    for (unsigned i = 0; i < ARRAY_LEN(lists); i++) {
        if (was->private_->lists[i] != now->private_->lists[i]) {
            on_changed(ctx, lists[i], true);
        }
    }
}

const char *config_value_text(const struct config *config, unsigned i)
{
    check(i < SETTING_COUNT_);
    return config->private_->texts[i];
}

const char *config_source_text(const struct config *config, unsigned i)
{
    check(i < SETTING_COUNT_);
    return config->private_->sources[i];
}
