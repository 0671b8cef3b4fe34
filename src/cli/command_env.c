// SPDX-License-Identifier: Apache-2.0
// `forebay env`: prints every variable that S3 clients read for their endpoint, so that one line
// points all of them to Forebay. The address is a number, because with an IP host the SDKs choose
// path style by themselves.
#include "cli/cli_private.h"
#include "commands/commands.h"

#include "base/headers.h"
#include "cli/client/command_old_clients.h"

#include <arpa/inet.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUTPUT_MAX_BYTES 65536u
#define URL_MAX 512
// Characters of a list of hosts that a shell passes on unchanged.
#define PLAIN_BYTES "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[],/*_ "

enum shell { SHELL_BASH, SHELL_FISH, SHELL_DOTENV, SHELL_K8S, SHELL_DOCKER, SHELL_COUNT };
static const char *const shell_names[SHELL_COUNT] = {"bash", "fish", "dotenv", "k8s", "docker"};

// The endpoint of clients, "http://127.0.0.1:9000", in pieces.
struct endpoint {
    bool tls;
    char address[URL_MAX]; // host:port
};

// --- The endpoint --------------------------------------------------------------------------------

// Accepts only scheme, host and port, because a shell reads the output.
static bool endpoint_from_url(const char *url, struct endpoint *ret_endpoint)
{
    struct endpoint e = {.tls = false};
    struct span rest = span_from_cstr(url);
    if (span_starts_with(rest, SPAN("https://"))) {
        e.tls = true;
        rest = (struct span){rest.ptr + 8, rest.len - 8};
    } else if (span_starts_with(rest, SPAN("http://"))) {
        rest = (struct span){rest.ptr + 7, rest.len - 7};
    }
    while (rest.len > 0 && rest.ptr[rest.len - 1] == '/') {
        rest.len--;
    }
    for (size_t i = 0; i < rest.len; i++) {
        char c = rest.ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && strchr("-.:[]", c) == NULL) {
            return false;
        }
    }
    if (rest.len == 0 || rest.len >= sizeof(e.address)) {
        return false;
    }
    memcpy(e.address, rest.ptr, rest.len);
    *ret_endpoint = e;
    return true;
}

// Parses an endpoint from the command line: a host to which clients can connect, and perhaps a
// port.
static bool endpoint_from_flag(const char *url, struct endpoint *ret_endpoint, struct buf *ret_why)
{
    struct endpoint e;
    struct in6_addr v6;
    struct in_addr v4;
    uint64_t port = 0;
    bool has_scheme = strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
    if (!endpoint_from_url(url, &e) || (!has_scheme && strchr(e.address, ':') == NULL)) {
        buf_printf(ret_why, "--endpoint is http://HOST:PORT or https://HOST:PORT, not \"%.200s\"",
                   url);
        return false;
    }
    char host[URL_MAX];
    (void)snprintf(host, sizeof(host), "%s", e.address);
    char *end = host[0] == '[' ? strchr(host, ']') : host, *colon = NULL;
    if (end != NULL) {
        colon = strchr(end, ':');
    }
    if (colon != NULL) {
        *colon = '\0';
    }
    bool has_port = colon == NULL || (span_to_u64(span_from_cstr(colon + 1), &port) && port > 0 &&
                                      port <= UINT16_MAX);
    size_t len = strlen(host);
    bool is_v6 = len > 2 && host[0] == '[' && host[len - 1] == ']';
    if (is_v6) {
        host[len - 1] = '\0';
        is_v6 = inet_pton(AF_INET6, host + 1, &v6) == 1;
    }
    bool is_v4 = inet_pton(AF_INET, host, &v4) == 1;
    bool is_name = host[strcspn(host, "[]:")] == '\0' && host[0] != '.' && host[0] != '-' &&
                   strstr(host, "..") == NULL && host[strspn(host, "0123456789.")] != '\0';
    if (!has_port || end == NULL || (!is_v6 && !is_v4 && !is_name)) {
        buf_printf(ret_why,
                   "--endpoint \"%.200s\" has no host, or no port from 1 to 65535: "
                   "http://HOST:PORT is wanted",
                   url);
        return false;
    }
    if ((is_v4 && v4.s_addr == htonl(INADDR_ANY)) || (is_v6 && IN6_IS_ADDR_UNSPECIFIED(&v6))) {
        buf_printf(
            ret_why,
            "--endpoint \"%.200s\" is where a server listens, and none to connect to: name one "
            "address of its host (%s://127.0.0.1%s%s?)",
            url, e.tls ? "https" : "http", colon != NULL ? ":" : "",
            colon != NULL ? colon + 1 : "");
        return false;
    }
    *ret_endpoint = e;
    return true;
}

// Fields of a server's /version.
struct answer {
    bool has_server, has_endpoint; // a server may listen on unix sockets alone
    bool is_open;                  // clients may use any keys
    struct endpoint endpoint;
};

// Reads the first TCP listener and the authentication mode from a server's /version.
static void read_version(const char *body, struct answer *answer)
{
    json_t *json = json_loads(body, 0, NULL);
    json_t *listen = json_object_get(json, "listen");
    const char *auth = json_string_value(json_object_get(json, "auth"));
    answer->is_open = auth != NULL && strcmp(auth, "open") == 0;
    for (size_t i = 0; i < json_array_size(listen) && !answer->has_endpoint; i++) {
        char url[URL_MAX];
        const char *text = json_string_value(json_array_get(listen, i));
        answer->has_endpoint = text != NULL && commands_advertise(text, url, sizeof(url)) &&
                               endpoint_from_url(url, &answer->endpoint);
    }
    json_decref(json);
}

static struct answer ask_server(const struct config *config)
{
    struct buf body;
    struct answer answer = {.has_server = false};
    unsigned status = 0;
    buf_init(&body, OUTPUT_MAX_BYTES);
    answer.has_server =
        commands_ask_server(config, "/version", &status, &body) == ERR_OK && status == 200;
    if (answer.has_server) {
        read_version(buf_cstr(&body), &answer);
    }
    buf_done(&body);
    return answer;
}

// --- Printing ------------------------------------------------------------------------------------

struct printer {
    struct buf out;
    enum shell shell;
    command_env_variable_fn *on_variable; // called instead of printing
    void *ctx;
};

static void print_comment(struct printer *p, const char *text)
{
    if (p->shell != SHELL_DOCKER) { // docker reads each line as an argument
        buf_printf(&p->out, "# %s\n", text);
    }
}

static void print_variable(struct printer *p, const char *name, const char *value)
{
    static const char *const forms[SHELL_COUNT] = {
        [SHELL_BASH] = "export %s='%s'\n", [SHELL_FISH] = "set -gx %s '%s'\n",
        [SHELL_DOTENV] = "%s=%s\n",        [SHELL_K8S] = "- name: %s\n  value: \"%s\"\n",
        [SHELL_DOCKER] = "--env %s=%s\n",
    };
    if (p->on_variable != NULL) {
        p->on_variable(p->ctx, name, value);
        return;
    }
    // The forms contain no untrusted text, and endpoint_from_url() accepts no value with a quote.
    const char *form = forms[p->shell];
    const char *first = strstr(form, "%s");
    const char *second = strstr(first + 2, "%s");
    buf_append(&p->out, form, (size_t)(first - form));
    buf_append_cstr(&p->out, name);
    buf_append(&p->out, first + 2, (size_t)(second - first - 2));
    buf_append_cstr(&p->out, value);
    buf_append_cstr(&p->out, second + 2);
}

// Returns true if the variables add to this process's environment. Otherwise they are for another
// process, whose environment is unknown here.
static bool adds_to_environment(const struct printer *p)
{
    return p->on_variable != NULL || p->shell == SHELL_BASH || p->shell == SHELL_FISH;
}

static const char *const no_proxy_names[] = {"NO_PROXY", "no_proxy"};

// Returns the hosts that `name` of no_proxy_names excludes from a proxy already. If only the other
// name is set, its hosts count, because most programs read one name first and ignore the other.
static const char *hosts_without_proxy(const struct printer *p, const char *name)
{
    if (!adds_to_environment(p)) {
        return "";
    }
    const char *hosts = getenv(name);
    for (size_t i = 0; i < ARRAY_LEN(no_proxy_names) && hosts == NULL; i++) {
        hosts = getenv(no_proxy_names[i]);
    }
    return hosts != NULL && hosts[strspn(hosts, PLAIN_BYTES)] == '\0' ? hosts : "";
}

// The SDKs send requests through a proxy of the environment unless a list excludes the host. That
// proxy cannot reach the localhost of this machine. The output keeps the existing entries of the
// list.
static void print_no_proxy(struct printer *p, const struct endpoint *e)
{
    char host[URL_MAX], value[4096];
    (void)snprintf(host, sizeof(host), "%s", e->address);
    char *port = strrchr(host, ':');
    if (port != NULL && port[strspn(port, ":0123456789")] == '\0') {
        *port = '\0';
    }
    size_t len_host = strlen(host);
    if (host[0] == '[' && host[len_host - 1] == ']') { // no_proxy has IPv6 without brackets
        memmove(host, host + 1, len_host - 2);
        host[len_host - 2] = '\0';
    }
    for (size_t i = 0; i < ARRAY_LEN(no_proxy_names); i++) {
        const char *hosts = hosts_without_proxy(p, no_proxy_names[i]);
        bool is_there = headers_list_has(span_from_cstr(hosts), span_from_cstr(host));
        int len = snprintf(value, sizeof(value), "%s%s%s", hosts,
                           hosts[0] != '\0' && !is_there ? "," : "", is_there ? "" : host);
        if (len > 0 && (size_t)len < sizeof(value)) {
            print_variable(p, no_proxy_names[i], value);
        }
    }
}

// Prints the variables of GDAL, which rasterio, rioxarray and QGIS use too. rio-tiler, odc and R's
// duckdbfs read AWS_S3_ENDPOINT and AWS_HTTPS as GDAL does: a host without a scheme, and YES or NO.
// Other programs expect a URL in AWS_S3_ENDPOINT, so an existing value with a scheme is kept.
// `forebay run` keeps any existing value, because it may name another store than the origin.
static void print_gdal(struct printer *p, const struct endpoint *e)
{
    const char *now = adds_to_environment(p) ? getenv("AWS_S3_ENDPOINT") : NULL;
    if (now != NULL && (p->on_variable != NULL || strstr(now, "://") != NULL)) {
        return;
    }
    print_variable(p, "AWS_S3_ENDPOINT", e->address);
    print_variable(p, "AWS_HTTPS", e->tls ? "YES" : "NO");
    print_variable(p, "AWS_VIRTUAL_HOSTING", "FALSE");
    if (!adds_to_environment(p) || getenv("GDAL_DISABLE_READDIR_ON_OPEN") == NULL) {
        print_variable(p, "GDAL_DISABLE_READDIR_ON_OPEN", "EMPTY_DIR");
    }
}

// Prints the variables of htslib (samtools, bcftools, pysam). With them htslib sends s3:// names to
// this host over HTTPS, and s3+http:// names over HTTP. On a plain HTTP endpoint s3:// names then
// fail, while without the variables they reach AWS. A person at a shell can write s3+http:// names
// instead. So on a plain endpoint, containers and the command of `forebay run` do not get the
// variables.
static void print_htslib(struct printer *p, const struct endpoint *e)
{
    bool is_for_a_person = p->on_variable == NULL && adds_to_environment(p);
    if (!e->tls && !is_for_a_person) {
        return;
    }
    print_variable(p, "HTS_S3_HOST", e->address);
    print_variable(p, "HTS_S3_ADDRESS_STYLE", "path");
}

static void print_all(struct printer *p, const struct endpoint *e, bool global)
{
    char url[URL_MAX + 16];
    (void)snprintf(url, sizeof(url), "%s://%s", e->tls ? "https" : "http", e->address);
    print_variable(p, "AWS_ENDPOINT_URL_S3", url);
    print_variable(p, "S3_ENDPOINT_URL", url);
    print_variable(p, "S3_ENDPOINT", e->address);
    print_variable(p, "S3_USE_HTTPS", e->tls ? "1" : "0");
    print_variable(p, "S3_VERIFY_SSL", e->tls ? "1" : "0");
    print_variable(p, "FSSPEC_S3_ENDPOINT_URL", url);
    print_variable(p, "DUCKDB_S3_ENDPOINT", e->address);
    print_variable(p, "DUCKDB_S3_USE_SSL", e->tls ? "true" : "false");
    print_variable(p, "RCLONE_S3_ENDPOINT", url);
    print_variable(p, "AWS_ALLOW_HTTP", e->tls ? "false" : "true");
    print_variable(p, "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0");
    print_gdal(p, e);
    print_htslib(p, e);
    print_no_proxy(p, e);
    if (global) {
        print_comment(
            p, "This one also moves STS and every other AWS service of clients that read it:");
        print_comment(p, "use it only for clients that know no AWS_ENDPOINT_URL_S3.");
        print_variable(p, "AWS_ENDPOINT_URL", url);
    }
}

bool command_env_variables(const char *url, bool global, command_env_variable_fn *on_variable,
                           void *ctx)
{
    struct printer p = {.shell = SHELL_DOCKER, .on_variable = on_variable, .ctx = ctx};
    struct endpoint e;
    if (!endpoint_from_url(url, &e)) {
        return false;
    }
    print_all(&p, &e, global);
    return true;
}

// AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false is not one of the variables, because calls to other
// services would then go to endpoints that clients ignore now.
void command_env_warn_of_ignored(const struct origin_client *client, const char *name)
{
    if (client->ignores_endpoints) {
        command_screen_tell(
            2,
            "forebay %s: warning: AWS_IGNORE_CONFIGURED_ENDPOINT_URLS, or the profile, makes the "
            "AWS SDKs ignore AWS_ENDPOINT_URL_S3, so they ask AWS and not Forebay. To use Forebay, "
            "`export AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false`, and name the store with "
            "--origin.endpoint\n",
            name);
    }
}

static enum shell default_shell(void)
{
    const char *shell = getenv("SHELL");
    struct span s = span_from_cstr(shell);
    return span_ends_with(s, SPAN("/fish")) ? SHELL_FISH : SHELL_BASH;
}

static bool parse_shell(const char *name, enum shell *ret_shell)
{
    for (int i = 0; i < SHELL_COUNT; i++) {
        if (strcmp(name, shell_names[i]) == 0) {
            *ret_shell = (enum shell)i;
            return true;
        }
    }
    return false;
}

// Checks for keys in the environment. Clients need keys to sign even if the server accepts any,
// because without keys they send no request.
static bool has_client_keys(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_PROFILE",
                                        "AWS_SHARED_CREDENTIALS_FILE",
                                        "AWS_WEB_IDENTITY_TOKEN_FILE",
                                        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"};
    char path[4096];
    const char *home = getenv("HOME");
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            return true;
        }
    }
    (void)snprintf(path, sizeof(path), "%s/.aws/credentials", home != NULL ? home : "");
    return access(path, R_OK) == 0;
}

// Asks the running server for its address. On failure reports the error and returns its exit code.
static int find_endpoint(int argc, char **argv, struct answer *ret_answer)
{
    bool is_guess;
    struct config *config = commands_load_admin(argc, argv, &is_guess);
    if (config == NULL) {
        return EXIT_CODE_CONFIGURATION;
    }
    *ret_answer = ask_server(config);
    config_free(config);
    if (!ret_answer->has_server) {
        command_screen_tell(
            2,
            "forebay env: no server answers%s: start one (forebay serve), say where it "
            "is (--admin), or which endpoint you mean (--endpoint http://HOST:PORT)%s\n",
            commands_tried(), commands_run_hint());
        return EXIT_CODE_UNREACHABLE;
    }
    if (!ret_answer->has_endpoint) {
        command_screen_tell(
            2, "forebay env: the server listens on unix sockets only, which S3 clients "
               "do not speak: add HOST:PORT to listen\n");
        return EXIT_CODE_FAILED;
    }
    return EXIT_CODE_OK;
}

int command_env(int argc, char **argv)
{
    bool global = commands_argument_take(&argc, argv, "--global");
    bool any_keys = commands_argument_take(&argc, argv, "--any-keys");
    const char *shell = commands_argument_take_value(&argc, argv, "--shell");
    const char *url = commands_argument_take_value(&argc, argv, "--endpoint");
    struct printer p = {.shell = default_shell()};
    struct answer answer = {.has_server = false};
    if (shell != NULL) {
        check(parse_shell(shell, &p.shell)); // commands.def has the same words
    }
    struct buf why;
    buf_init(&why, 2048);
    if (url != NULL && !endpoint_from_flag(url, &answer.endpoint, &why)) {
        int wrong = commands_usage_error("env", buf_cstr(&why));
        buf_done(&why);
        return wrong;
    }
    if (url != NULL && argc > 0) {
        return commands_usage_error("env", "unexpected argument");
    }
    int code = url == NULL ? find_endpoint(argc, argv, &answer) : EXIT_CODE_OK;
    if (code != EXIT_CODE_OK) {
        return code;
    }
    buf_init(&p.out, OUTPUT_MAX_BYTES);
    print_all(&p, &answer.endpoint, global);
    if (any_keys) {
        print_variable(&p, "AWS_ACCESS_KEY_ID", "any");
        print_variable(&p, "AWS_SECRET_ACCESS_KEY", "any");
    } else if (answer.is_open && !has_client_keys()) {
        command_screen_inform(
            2, "forebay env: clients want keys to sign with, and none are set; this server "
               "verifies none (auth.mode open), so any do: add --any-keys\n");
    }
    code = commands_print_result(&p.out);
    if (adds_to_environment(&p)) {
        struct origin_client client;
        origin_client_read(&client);
        command_old_clients_warn("env", NULL);
        command_env_warn_of_ignored(&client, "env");
    }
    buf_done(&p.out);
    return code;
}
