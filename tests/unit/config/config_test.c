// SPDX-License-Identifier: Apache-2.0
// Proves: precedence, positions of errors, suggestions, checks across keys, and that every
// rendering of the table is complete.
#include "test.h"

#include "base/log.h"
#include "config/config_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256], file_path[300];
static struct buf errors;

// Starts from a clean state: no file of the machine, no variables, no errors.
static void begin(void)
{
    static char parent[200]; // kept over clearenv(), which later tests of one process see
    if (parent[0] == '\0') {
        const char *tmp = getenv("TMPDIR");
        snprintf(parent, sizeof(parent), "%s", tmp != NULL ? tmp : "/tmp");
    }
    clearenv();
    setenv("HOME", "/home/nobody", 1);
    snprintf(folder, sizeof(folder), "%s/forebay-config-XXXXXX", parent);
    cr_assert_not_null(mkdtemp(folder));
    snprintf(file_path, sizeof(file_path), "%s/f.yaml", folder);
    buf_done(&errors);
    buf_init(&errors, 1 << 16);
}

static void write_at(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

static void end(void)
{
    unlink(file_path);
    rmdir(folder);
    buf_done(&errors);
}

// Loads with a file that holds `text` (NULL: no file), and up to four more arguments.
static struct config *load(const char *text, const char *a, const char *b)
{
    char *argv[8] = {NULL};
    int argc = 0;
    struct config *config = NULL;
    errors.len = 0;
    if (text != NULL) {
        write_at(file_path, text, 0644);
        argv[argc++] = (char *)(uintptr_t) "-c";
        argv[argc++] = file_path;
    }
    if (a != NULL) {
        argv[argc++] = (char *)(uintptr_t)a;
    }
    if (b != NULL) {
        argv[argc++] = (char *)(uintptr_t)b;
    }
    enum err err = config_load(argc, argv, &config, &errors);
    cr_assert_eq(err == ERR_OK, config != NULL);
    return config;
}

// Expects that loading `text` fails, and that one line of the errors is FILE:`expected`.
static void fails_with(const char *text, const char *expected)
{
    struct config *config = load(text, NULL, NULL);
    char line[1400];
    snprintf(line, sizeof(line), "%s:%s\n", file_path, expected);
    cr_assert_null(config);
    cr_assert_not_null(strstr(buf_cstr(&errors), line), "wanted %s got %s", line,
                       buf_cstr(&errors));
}

Test(config, defaults_are_valid_and_as_documented)
{
    begin();
    struct config *c = load("", NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->listen.count, 1);
    cr_assert_str_eq(c->listen.items[0].host, "127.0.0.1");
    cr_assert_eq(c->listen.items[0].port, 9000);
    cr_assert(c->listen.items[0].loopback);
    cr_assert_eq(c->admin_listen.port, 9001);
    cr_assert_eq(c->cache_size.percent, 80);
    cr_assert_eq(c->cache_block_size_bytes, 1 << 20);
    cr_assert_eq(c->cache_ttl_ms, 60000);
    cr_assert_eq(c->cache_stale_if_error_ms, 3600000);
    cr_assert_eq(c->limits_min_rate_bytes_per_s, 1024);
    cr_assert_eq(c->auth_mode, CONFIG_AUTH_OPEN);
    cr_assert_eq(c->log_level, LOG_LEVEL_INFO);
    cr_assert_eq(c->io_threads, 0);
    cr_assert_geq(c->workers, 1);
    cr_assert_geq(c->limits_max_buffer_bytes, 4 << 20);
    cr_assert_leq(c->limits_max_buffer_bytes, 256 << 20);
    cr_assert_eq(c->access_log_sample, 1.0);
    cr_assert_null(c->auth_keys_file);
    cr_assert_eq(c->rule_count, 0);
    cr_assert_eq(c->cache_dir[0], '/');
    cr_assert(c->admin_socket_auto);
    config_free(c);
    config_free(NULL);
    end();
}

// systemd.exec(5): CacheDirectory= names one folder, or several with colons between them.
Test(config, the_units_cache_directory_is_the_automatic_one)
{
    begin();
    setenv("CACHE_DIRECTORY", "/var/cache/of-unit", 1);
    struct config *c = load(NULL, NULL, NULL);
    cr_assert_str_eq(c->cache_dir, "/var/cache/of-unit");
    config_free(c);
    setenv("CACHE_DIRECTORY", "/var/cache/a:/var/cache/b", 1);
    c = load(NULL, NULL, NULL);
    cr_assert_str_neq(c->cache_dir, "/var/cache/a:/var/cache/b");
    config_free(c);
    unsetenv("CACHE_DIRECTORY");
    end();
}

Test(config, flag_beats_environment_beats_file_beats_default)
{
    begin();
    const char *file = "cache: {ttl: 1s, list_ttl: 1s, size: 1GiB}\n";
    setenv("FOREBAY_CACHE_TTL", "2s", 1);
    setenv("FOREBAY_CACHE_LIST_TTL", "2s", 1);
    setenv("FOREBAY_CACHE_SIZE", "", 1); // set to nothing counts as not set
    struct config *c = load(file, "--cache.ttl", "3s");
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->cache_ttl_ms, 3000);
    cr_assert_eq(c->cache_list_ttl_ms, 2000);
    cr_assert_eq(c->cache_size.bytes, 1 << 30);
    cr_assert_eq(c->cache_stale_if_error_ms, 3600000);
    cr_assert_str_eq(config_source_text(c, SETTING_cache_ttl_ms), "--cache.ttl");
    cr_assert_str_eq(config_source_text(c, SETTING_cache_list_ttl_ms),
                     "env FOREBAY_CACHE_LIST_TTL");
    cr_assert_str_eq(config_source_text(c, SETTING_cache_stale_if_error_ms), "default");
    char where[400];
    snprintf(where, sizeof(where), "%s:1:38", file_path);
    cr_assert_str_eq(config_source_text(c, SETTING_cache_size), where);
    cr_assert_str_eq(config_value_text(c, SETTING_cache_size), "1GiB");
    config_free(c);
    end();
}

Test(config, file_comes_from_the_environment_too)
{
    begin();
    write_at(file_path, "cache.ttl: 9s\n", 0644);
    setenv("FOREBAY_CONFIG", file_path, 1);
    struct config *c = load(NULL, "--listen=127.0.0.1:0,[::1]:0, unix:/tmp/s", NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->cache_ttl_ms, 9000);
    cr_assert_str_eq(c->file, file_path);
    cr_assert_eq(c->listen.count, 3);
    cr_assert_str_eq(c->listen.items[1].host, "::1");
    cr_assert_eq(c->listen.items[1].port, 0);
    cr_assert_eq(c->listen.items[2].kind, CONFIG_LISTEN_UNIX);
    cr_assert_str_eq(c->listen.items[2].path, "/tmp/s");
    config_free(c);
    end();
}

static struct config *load_admin(const char *text, bool *ret_is_unread)
{
    char *argv[] = {(char *)(uintptr_t) "-c", file_path, NULL};
    write_at(file_path, text, 0644);
    return config_load_admin(2, argv, ret_is_unread);
}

Test(config, admin_address_is_found_in_a_file_with_errors)
{
    bool is_unread = true;
    begin();
    struct config *c = load_admin("listen: [x]\ncache: {sise: 1, dir: /c}\nrules: 7\n"
                                  "admin: {listen: '127.0.0.1:7001'}\n",
                                  &is_unread);
    cr_assert_str_eq(c->admin_listen.text, "127.0.0.1:7001");
    cr_assert_str_eq(c->admin_socket, "/c/admin.sock");
    cr_assert_not(is_unread);
    config_free(c);
    c = load_admin("admin: {listen: nowhere, socket: /s}\n", &is_unread);
    cr_assert_str_eq(c->admin_listen.text, "127.0.0.1:9001");
    cr_assert_str_eq(c->admin_socket, "/s");
    cr_assert_not(is_unread);
    config_free(c);
    c = load_admin("admin: [\n", &is_unread);
    cr_assert_str_eq(c->admin_listen.text, "127.0.0.1:9001");
    cr_assert(is_unread);
    config_free(c);
    end();
}

Test(config, errors_name_place_and_remedy)
{
    begin();
    fails_with("cache:\n  sise: 1\n",
               "2:3: error: unknown key \"cache.sise\" (did you mean \"cache.size\"?)");
    fails_with("ttl: 5s\n", "1:1: error: unknown key \"ttl\" (did you mean \"cache.ttl\"?)");
    fails_with("cahce: {}\n", "1:1: error: unknown key \"cahce\" (did you mean \"cache\"?)");
    fails_with("cache:\n  block_size: 4MB\n",
               "2:15: error: cache.block_size: \"4MB\" is not a power of two between 64KiB and "
               "16MiB (4MiB?)");
    fails_with("cache: {ttl: 60}\n", "1:14: error: cache.ttl: \"60\" needs a unit (60s?)");
    fails_with("cache: {ttl: 60sec}\n",
               "1:14: error: cache.ttl: \"60sec\" has an unknown unit (60s?)");
    fails_with("cache: {size: 5Gi}\n",
               "1:15: error: cache.size: \"5Gi\" has an unknown unit (5GiB?)");
    fails_with("origin: {max_rate: 2Gbit}\n",
               "1:20: error: origin.max_rate: \"2Gbit\" is in bits; write bytes: 2Gbit/s is "
               "250MB/s");
    fails_with("origin: {max_rate: 500Mbps/s}\n",
               "1:20: error: origin.max_rate: \"500Mbps\" is in bits; write bytes: 2Gbit/s is "
               "250MB/s");
    fails_with("cache: {size: 1MiB}\n",
               "1:15: error: cache.size: \"1MiB\" is not between 16MiB and 1EiB");
    fails_with("cache: {size: 99999999999EiB}\n",
               "1:15: error: cache.size: \"99999999999EiB\" is too large");
    fails_with("cache: {size: 0%}\n", "1:15: error: cache.size: \"0%\" leaves no room at all");
    fails_with("cache: {headroom: 10}\n",
               "1:19: error: cache.headroom: \"10\" needs a unit (10%?)");
    fails_with(
        "io: {engine: uring}\n",
        "1:14: error: io.engine: \"uring\" is not one of auto, io_uring, threads (did you mean "
        "\"io_uring\"?)");
    fails_with("limits: {min_rate: 1KiB}\n",
               "1:20: error: limits.min_rate: \"1KiB\" is not a rate (1KiB/s?)");
    fails_with("limits: {max_inflight: 0}\n",
               "1:24: error: limits.max_inflight: \"0\" is not between 1 and 1000000");
    fails_with("access_log: {sample: 1.5}\n",
               "1:22: error: access_log.sample: \"1.5\" is not a share between 0 and 1");
    fails_with("workers: many\n", "1:10: error: workers: \"many\" is not a whole number");
    fails_with("listen: nowhere:9000\n",
               "1:9: error: listen: \"nowhere:9000\": the host must be an IP address or localhost");
    fails_with("listen: ::1:9000\n", "1:9: error: listen: \"::1:9000\": write an IPv6 address in "
                                     "brackets ([::1]:9000?)");
    fails_with("listen: 127.0.0.1:70000\n",
               "1:9: error: listen: \"127.0.0.1:70000\" is not HOST:PORT (127.0.0.1:9000?)");
    fails_with("listen: []\n", "1:9: error: listen: names no address");
    fails_with("cache: {dir: [/a, /b]}\n", "1:14: error: cache.dir takes exactly one directory");
    fails_with("cache: {dir: ~/a}\n",
               "1:14: error: cache.dir: \"~/a\" begins with ~: write the whole path");
    fails_with(
        "origin: {endpoint: \"s3.example.com\"}\n",
        "1:20: error: origin.endpoint: \"s3.example.com\" is neither http://..., https://... "
        "nor dir:/PATH (https://s3.example.com?)");
    end();
}

Test(config, errors_of_environment_and_flags)
{
    begin();
    setenv("FOREBAY_CACHE_TTL", "60", 1);
    setenv("FOREBAY_CACHE_SISE", "1", 1);
    setenv("FOREBAY_PORT", "tcp://1", 1);
    setenv("FOREBAY_PORT_80_TCP_ADDR", "x", 1);
    setenv("FOREBAY_SERVICE_PORT_S3", "x", 1);
    setenv("FOREBAY_PEERS_SERVICE_HOST", "x", 1);
    setenv("FOREBAY_ADMIN_TOKEN", "x", 1);
    cr_assert_null(load(NULL, "--cache.sise=3", "--cache.verify"));
    cr_assert_str_eq(buf_cstr(&errors),
                     "--cache.sise=3: error: unknown flag (did you mean \"--cache.size\"?)\n"
                     "--cache.verify: error: needs a value\n"
                     "env FOREBAY_CACHE_TTL: error: \"60\" needs a unit (60s?)\n"
                     "env FOREBAY_CACHE_SISE: warning: unknown variable, ignored (did you mean "
                     "\"FOREBAY_CACHE_SIZE\"?)\n");
    unsetenv("FOREBAY_CACHE_TTL");
    struct config *c = load(NULL, NULL, NULL);
    cr_assert_not_null(c); // a warning is no error
    config_free(c);
    end();
}

Test(config, yaml_that_hides_things_is_refused)
{
    begin();
    fails_with("a: &x 1\n", "1:4: error: anchors are not accepted here");
    fails_with("workers: !!int 3\n", "1:10: error: tags are not accepted here");
    fails_with("workers: 3\n---\nworkers: 4\n",
               "2:1: error: the file holds more than one document");
    fails_with("workers: 3\nworkers: 4\n",
               "2:1: error: \"workers\" is given twice, first in line 1; remove one");
    fails_with("cache:\n  ttl: 1s\nworkers: 3\ncache: {size: 1GiB}\n",
               "4:1: error: \"cache\" is given twice, first in line 1; move its contents there");
    fails_with("rules:\n  - {match: a}\nrules:\n  - {match: b}\n",
               "3:1: error: \"rules\" is given twice, first in line 1; move its contents there");
    struct buf many;
    buf_init(&many, 4096);
    for (unsigned i = 0; i < 300; i++) {
        buf_append_cstr(&many, "cache:\n");
    }
    fails_with(buf_cstr(&many), "257:1: error: at most 256 keys may stand side by side");
    buf_done(&many);
    char twice[500];
    snprintf(twice, sizeof(twice),
             "2:1: error: \"cache.ttl\" is given twice, first at %s:1:14; remove one", file_path);
    fails_with("cache: {ttl: 1s}\ncache.ttl: 2s\n", twice);
    fails_with("a: [[[[[[[[[1]]]]]]]]]\n", "1:11: error: nested too deeply");
    fails_with("- 1\n", "1:1: error: the file must hold KEY: VALUE lines");
    fails_with("cache: 3\n", "1:8: error: cache is a section: its keys go below it, indented");
    fails_with("workers: {a: 1}\n", "1:10: error: workers takes one value");
    fails_with("workers:\n", "1:9: error: workers has no value");
    fails_with("log: {level: \"in\\0fo\"}\n", "1:14: error: log.level holds a control character");
    cr_assert_null(load("a: [1\nb: }", NULL, NULL));
    cr_assert_null(load("a: \xff\xfe", NULL, NULL));
    end();
}

Test(config, a_fifo_is_refused_and_does_not_block)
{
    char path[300];
    begin();
    (void)snprintf(path, sizeof(path), "%s/fifo", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert_null(load(NULL, "-c", path));
    cr_assert_not_null(strstr(buf_cstr(&errors), "is not a file of at most 1MiB"), "%s",
                       buf_cstr(&errors));
    (void)unlink(path);
    end();
}

// The position of each setting repeats the path. Without a limit, they would fill the arena.
Test(config, a_long_file_with_a_long_path_is_refused)
{
    enum { ROWS = 24000, DEPTH = 11, NAME = 250 };
    char path[4096], name[NAME + 2] = "/";
    char *text = calloc(ROWS + 1, 12);
    size_t len = 0;
    cr_assert_not_null(text);
    begin();
    memset(name + 1, 'd', NAME);
    (void)snprintf(path, sizeof(path), "%s", folder);
    for (unsigned i = 0; i < DEPTH; i++) {
        (void)snprintf(path + strlen(path), sizeof(path) - strlen(path), "%s", name);
        cr_assert_eq(mkdir(path, 0700), 0);
    }
    (void)snprintf(path + strlen(path), sizeof(path) - strlen(path), "/f");
    for (unsigned i = 0; i < ROWS; i++) {
        len += (size_t)snprintf(text + len, 13, "k%u: 1\n", i);
    }
    write_at(path, text, 0600);
    free(text);
    cr_assert_null(load(NULL, "-c", path));
    cr_assert_not_null(strstr(buf_cstr(&errors), "k0"), "%.200s", buf_cstr(&errors));
    while (strcmp(path, folder) != 0) {
        (void)remove(path);
        *strrchr(path, '/') = '\0';
    }
    end();
}

Test(config, at_most_twenty_errors)
{
    begin();
    char text[2048] = "";
    for (int i = 0; i < 30; i++) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "nonsense%d: 1\n", i);
    }
    cr_assert_null(load(text, NULL, NULL));
    unsigned lines = 0;
    for (const char *at = buf_cstr(&errors); (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    cr_assert_eq(lines, 21);
    cr_assert_not_null(strstr(buf_cstr(&errors), "and 10 more errors"));
    end();
}

Test(config, buckets_and_rules)
{
    begin();
    struct config *c = load("buckets:\n"
                            "  - {name: a, origin: s3://other, endpoint: https://e, region: r, "
                            "addressing: path, credentials: anonymous}\n"
                            "  - {name: b, origin: dir:/data}\n"
                            "  - name: c\n"
                            "rules:\n"
                            "  - {match: 'a/**', cache: false, freshness: immutable, ttl: 5m, "
                            "list_ttl: 1s, stale_if_error: 0s, block_size: 64KiB, max_object_size: "
                            "1GiB, readahead: 0}\n"
                            "  - match: '{x,y}/\\{*'\n",
                            NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->bucket_count, 3);
    cr_assert_str_eq(c->buckets[0].origin_bucket, "other");
    cr_assert_eq(c->buckets[0].addressing, CONFIG_ADDRESSING_PATH);
    cr_assert(c->buckets[0].anonymous);
    cr_assert_eq(c->buckets[1].kind, CONFIG_BUCKET_DIRECTORY);
    cr_assert_str_eq(c->buckets[1].directory, "/data");
    cr_assert_str_eq(c->buckets[2].origin_bucket, "c");
    cr_assert_eq(c->rule_count, 2);
    cr_assert_not(c->rules[0].cache);
    cr_assert_eq(c->rules[0].freshness, CONFIG_FRESHNESS_IMMUTABLE);
    cr_assert_eq(c->rules[0].ttl_ms, 300000);
    cr_assert_eq(c->rules[0].stale_if_error_ms, 0);
    cr_assert_eq(c->rules[0].block_size_bytes, 65536);
    cr_assert_eq(c->rules[0].readahead_bytes, 0);
    cr_assert(c->rules[1].cache);
    cr_assert_eq(c->rules[1].readahead_bytes, c->cache_readahead_bytes);
    cr_assert_str_eq(c->default_rule.match, "**");
    cr_assert_eq(c->default_rule.ttl_ms, c->cache_ttl_ms);
    cr_assert_eq(c->default_rule.priority, CONFIG_PRIORITY_NORMAL);
    config_free(c);
    c = load("rules:\n  - {match: a, pin: true, priority: 9}\n  - {match: b, share: 25%}\n"
             "  - {match: c, pin: false, share: 100%}\n",
             NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert(c->rules[0].pin);
    cr_assert_eq(c->rules[0].share_percent, 0u);
    cr_assert_eq(c->rules[0].priority, 9u);
    cr_assert_not(c->rules[1].pin);
    cr_assert_eq(c->rules[1].share_percent, 25u);
    cr_assert_eq(c->rules[2].share_percent, 100u);
    config_free(c);
    fails_with(
        "buckets:\n  - {name: a, requester_pays: true, credentials: anonymous}\n",
        "2:5: error: requester_pays: the credentials of bucket \"a\" are anonymous, and only "
        "the owner of keys can pay: set access_key_file and secret_key_file");
    fails_with(
        "credentials: {source: anonymous}\nbuckets:\n  - {name: a, requester_pays: true}\n",
        "3:5: error: requester_pays: the credentials of bucket \"a\" are anonymous, and only "
        "the owner of keys can pay: set access_key_file and secret_key_file");
    fails_with("buckets:\n  - {name: a, origin: 'dir:/data', requester_pays: true}\n",
               "2:5: error: requester_pays: nobody pays for a bucket from a directory");
    fails_with("rules:\n  - {match: a, share: 0%}\n",
               "2:23: error: rules[].share: \"0%\" is not between 1% and 100%");
    fails_with("rules:\n  - {match: a, share: 25}\n",
               "2:23: error: rules[].share: \"25\" needs a unit (25%?)");
    fails_with("rules:\n  - {match: a, pin: 1}\n",
               "2:21: error: rules[].pin: \"1\" is not one of true, false");
    fails_with("rules:\n  - {match: a, pin: true, share: 10%}\n",
               "2:5: error: a rule has a pin or a share, not both");
    fails_with("rules:\n  - {match: a, readahead: 17GiB}\n",
               "2:27: error: rules[].readahead: \"17GiB\" is not between 0 and 16GiB");
    fails_with("rules:\n  - {match: a, frshness: ttl}\n",
               "2:16: error: unknown field \"frshness\" of rules[] (did you mean \"freshness\"?)");
    fails_with("rules:\n  - {match: 'a/{b'}\n",
               "2:13: error: rules[].match: \"a/{b\" opens a brace and does not close it");
    fails_with("rules:\n  - {cache: true}\n", "2:5: error: an entry of rules needs a match");
    fails_with("rules:\n  - {match: a, cache: maybe}\n",
               "2:23: error: rules[].cache: \"maybe\" is not one of true, false");
    fails_with("buckets:\n  - {name: a}\n  - {name: a}\n",
               "3:5: error: bucket \"a\" is listed twice");
    fails_with("buckets:\n  - {name: a, origin: s3://x/y}\n",
               "2:23: error: buckets[].origin: must be s3://BUCKET or dir:/PATH");
    fails_with("buckets:\n  - {name: a, origin: dir:/x, region: r}\n",
               "2:5: error: a bucket from a directory has neither endpoint, region, addressing nor "
               "credentials");
    fails_with("buckets: {}\n", "1:10: error: buckets is a list");
    end();
}

Test(config, rules_with_a_pin_or_a_share_are_few)
{
    struct buf text;
    buf_init(&text, 4096);
    buf_append_cstr(&text, "rules:\n");
    for (unsigned i = 0; i < CONFIG_LIMITED_RULES_MAX; i++) {
        buf_printf(&text, "  - {match: a%u, %s}\n", i, i % 2 == 0 ? "pin: true" : "share: 1%");
    }
    buf_append_cstr(&text, "  - {match: b, priority: 9}\n");
    begin();
    struct config *c = load(buf_cstr(&text), NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    config_free(c);
    buf_append_cstr(&text, "  - {match: c, share: 1%}\n");
    fails_with(buf_cstr(&text), "2:3: error: 22 rules have a pin or a share, 21 may");
    end();
    buf_done(&text);
}

Test(config, listeners_decide_about_authorisation)
{
    begin();
    fails_with(
        "listen: 0.0.0.0:9000\nlisten_plaintext: network\n",
        "1:9: error: listen 0.0.0.0:9000 makes auth.mode verify, but auth.keys_file is not set "
        "(set it, or listen on loopback)");
    fails_with("listen: 0.0.0.0:9000\nauth: {mode: open, allow_open_network: true}\n",
               "1:9: error: listen 0.0.0.0:9000 is plain HTTP on a network address: use "
               "tls:0.0.0.0:9000, or set listen_plaintext to network");
    fails_with(
        "listen: 0.0.0.0:9000\nlisten_plaintext: network\nauth: {mode: open}\n",
        "3:14: error: auth.mode open lets whoever reaches 0.0.0.0:9000 read, write and delete "
        "whatever Forebay's keys may: use verify, listen on loopback, or set "
        "auth.allow_open_network");
    fails_with("listen: tls:127.0.0.1:9000\n",
               "1:9: error: listen tls:127.0.0.1:9000 needs listen_tls.cert and listen_tls.key");
    fails_with("auth: {allowed_origins: ['http://a', '*']}\n",
               "1:25: error: \"*\" is no web origin: it takes http://HOST:PORT or "
               "https://HOST:PORT, without a path or wildcard");
    fails_with("auth: {mode: verify}\n", "1:14: error: auth.mode verify needs auth.keys_file");
    struct config *c = load("listen: 0.0.0.0:9000\nlisten_plaintext: network\n"
                            "auth: {mode: open, allow_open_network: true}\n",
                            NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    config_free(c);
    end();
}

Test(config, client_does_not_judge_files_of_the_server)
{
    begin();
    char *argv[] = {(char *)(uintptr_t) "-c", file_path, NULL};
    struct config *c = NULL;
    write_at(file_path,
             "listen: tls:127.0.0.1:9000\nlisten_tls: {cert: /none/cert, key: /none/key}\n"
             "auth: {mode: verify, keys_file: /none/keys}\norigin: {ca_file: /none/ca}\n"
             "buckets:\n  - {name: b, credentials: {access_key_file: /none/a,"
             " secret_key_file: /none/s}}\n",
             0644);
    cr_assert_eq(config_load(2, argv, &c, &errors), ERR_INVALID);
    errors.len = 0;
    cr_assert_eq(config_load_client(2, argv, &c, &errors), ERR_OK, "%s", buf_cstr(&errors));
    cr_assert_str_eq(buf_cstr(&errors), "");
    cr_assert_str_eq(c->auth_keys_file, "/none/keys");
    cr_assert_str_eq(c->buckets[0].access_key_file, "/none/a");
    cr_assert_not(c->is_default_file);
    config_free(c);
    c = NULL;
    // All else is judged.
    write_at(file_path, "cache: {sise: 1}\n", 0644);
    cr_assert_eq(config_load_client(2, argv, &c, &errors), ERR_INVALID);
    end();
}

Test(config, secret_files_must_be_private)
{
    begin();
    char path[300], text[512];
    snprintf(path, sizeof(path), "%s/keys", folder);
    snprintf(text, sizeof(text), "auth: {mode: verify, keys_file: %s}\n", path);
    cr_assert_null(load(text, NULL, NULL));
    cr_assert_not_null(strstr(buf_cstr(&errors), "cannot be read: No such file or directory"));
    write_at(path, "x", 0644);
    cr_assert_null(load(text, NULL, NULL));
    cr_assert_not_null(
        strstr(buf_cstr(&errors), "is open to other users (mode 0644); chmod 600 it"));
    if (geteuid() == 0) { // a file of another user, as in a volume of Kubernetes
        cr_assert_eq(chown(path, 65534, 65534), 0);
        cr_assert_null(load(text, NULL, NULL));
        cr_assert_not_null(strstr(buf_cstr(&errors), "set defaultMode: 0440"));
        cr_assert_eq(chown(path, 0, 0), 0);
    }
    cr_assert_eq(chmod(path, 0600), 0);
    struct config *c = load(text, NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->auth_mode, CONFIG_AUTH_VERIFY);
    cr_assert_str_eq(c->auth_keys_file, path);
    config_free(c);
    // Named, but nobody is asked for a key.
    snprintf(text, sizeof(text), "auth: {keys_file: %s}\n", path);
    c = load(text, NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->auth_mode, CONFIG_AUTH_OPEN);
    cr_assert_not_null(strstr(buf_cstr(&errors),
                              "warning: auth.keys_file is not used: auth.mode is "
                              "open where every listener is loopback"),
                       "%s", buf_cstr(&errors));
    config_free(c);
    unlink(path);
    end();
}

// --- The table -----------------------------------------------------------------------------------

Test(config, variable_names_are_distinct_and_no_service_links)
{
    char names[SETTING_COUNT_][CONFIG_NAME_MAX];
    for (unsigned i = 0; i < SETTING_COUNT_; i++) {
        config_environment_name(config_setting(i)->key, names[i]);
        struct span name = span_from_cstr(names[i]);
        cr_assert_not(span_ends_with(name, SPAN("_SERVICE_HOST")));
        cr_assert_not(span_ends_with(name, SPAN("_PORT")));
        cr_assert_null(strstr(names[i], "_SERVICE_PORT"));
        cr_assert_null(strstr(names[i], "_PORT_"));
        for (unsigned j = 0; j < i; j++) {
            cr_assert_neq(strcmp(names[i], names[j]), 0);
        }
    }
}

// A misspelt section is near to its own name.
Test(config, every_section_is_suggested)
{
    for (unsigned i = 0; i < SETTING_COUNT_; i++) {
        const char *key = config_setting(i)->key, *dot = strchr(key, '.');
        if (dot == NULL || dot - key < 4) {
            continue; // too short to be near to anything
        }
        char word[64];
        snprintf(word, sizeof(word), "%.*sx", (int)(dot - key), key);
        const char *near = settings_suggest_key(span_from_cstr(word));
        cr_assert_not_null(near, "%s", word);
        cr_assert_eq(strncmp(near, key, (size_t)(dot - key)), 0, "%s for %s", near, word);
    }
}

// With every '#' before a key removed, the sample is still valid, and every setting comes from the
// file.
Test(config, sample_holds_every_setting_and_is_valid)
{
    begin();
    struct buf sample, active;
    buf_init(&sample, 1 << 20);
    buf_init(&active, 1 << 20);
    config_render_sample(&sample);
    struct config *c = load(buf_cstr(&sample), NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    config_free(c);
    struct span rest = buf_span(&sample), line;
    while (span_split(&rest, '\n', &line)) {
        size_t hash = span_find(line, '#');
        if (span_starts_with(line, SPAN("#buckets:"))) {
            break; // examples follow
        }
        if (hash + 1 < line.len && line.ptr[hash + 1] != ' ') {
            buf_append(&active, line.ptr, hash);
            buf_append(&active, line.ptr + hash + 1, line.len - hash - 1);
        } else {
            buf_append_span(&active, line);
        }
        buf_append_char(&active, '\n');
    }
    c = load(buf_cstr(&active), NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    for (unsigned i = 0; i < SETTING_COUNT_; i++) {
        cr_assert_eq(strncmp(config_source_text(c, i), file_path, strlen(file_path)), 0, "%s",
                     config_setting(i)->key);
    }
    config_free(c);
    buf_done(&sample);
    buf_done(&active);
    end();
}

Test(config, section_without_keys_may_be_given_again)
{
    begin();
    struct config *c =
        load("cache:\nrules:\ncache: {ttl: 9s}\nrules: [{match: a}]\ncache:\n", NULL, NULL);
    cr_assert_not_null(c, "%s", buf_cstr(&errors));
    cr_assert_eq(c->cache_ttl_ms, 9000);
    cr_assert_eq(c->rule_count, 1);
    config_free(c);
    end();
}

Test(config, schema_and_docs_hold_every_setting)
{
    struct buf schema, docs;
    buf_init(&schema, 1 << 20);
    buf_init(&docs, 1 << 20);
    config_render_schema(&schema);
    config_render_docs(&docs);
    for (unsigned i = 0; i < SETTING_COUNT_; i++) {
        char text[128];
        const char *key = config_setting(i)->key, *dot = strrchr(key, '.');
        snprintf(text, sizeof(text), "\"%s\": {", dot != NULL ? dot + 1 : key);
        cr_assert_not_null(strstr(buf_cstr(&schema), text), "%s", text);
        snprintf(text, sizeof(text), "| `%s` |", key);
        cr_assert_not_null(strstr(buf_cstr(&docs), text), "%s", text);
    }
    buf_done(&schema);
    buf_done(&docs);
}

// The enums of config.h have the order of the table's choices.
Test(config, choices_match_their_enums)
{
    static const struct {
        const char *key, *word;
        unsigned value;
    } rows[] = {
        {"listen_plaintext", "network", CONFIG_PLAINTEXT_NETWORK},
        {"listen_unix_mode", "0660", CONFIG_UNIX_0660},
        {"listen_unix_mode", "0666", CONFIG_UNIX_0666},
        {"origin.addressing", "virtual", CONFIG_ADDRESSING_VIRTUAL},
        {"credentials.source", "imds", CONFIG_CREDENTIALS_IMDS},
        {"credentials.source", "anonymous", CONFIG_CREDENTIALS_ANONYMOUS},
        {"auth.mode", "verify", CONFIG_AUTH_VERIFY},
        {"sts.relay", "on", CONFIG_STS_ON},
        {"cache.verify", "always", CONFIG_VERIFY_ALWAYS},
        {"cache.client_directives", "all", CONFIG_DIRECTIVES_ALL},
        {"cache.disk_failure", "fail", CONFIG_DISK_FAILURE_FAIL},
        {"io.engine", "threads", CONFIG_IO_THREADS},
        {"log.level", "debug", LOG_LEVEL_DEBUG},
        {"log.format", "json", CONFIG_LOG_JSON},
        {"log.keys", "hash", LOG_KEYS_HASH},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char why[WHY_MAX];
        unsigned choice = 99, id = settings_find(span_from_cstr(rows[i].key));
        cr_assert(config_value_parse_choice(span_from_cstr(rows[i].word),
                                            settings_row(id)->public_.accepts, &choice, why));
        cr_assert_eq(choice, rows[i].value, "%s", rows[i].key);
    }
}

static void on_changed(void *ctx, const char *key, bool live)
{
    buf_printf(ctx, "%s%s ", key, live ? "" : "!");
}

Test(config, settings_that_differ_between_two_loads_are_named)
{
    static const char first[] = "cache: {size: 1GiB, scrub_rate: 10MiB/s}\n"
                                "rules: [{match: a/**, freshness: immutable}, {match: b/**}]\n";
    static const struct {
        const char *text, *expected; // ! behind what waits for a restart
    } rows[] = {
        {first, ""},
        {"cache: {size: 2GiB, scrub_rate: 10MiB/s}\n"
         "rules: [{match: a/**, freshness: immutable}, {match: b/**}]\n",
         "cache.size "},
        {"cache: {size: 1GiB, ttl: 1h}\nlog: {level: warn}\n"
         "rules: [{match: b/**}, {match: a/**, freshness: immutable}]\n"
         "buckets: {x: {bucket: y}}\n",
         NULL},
        {"cache: {size: 1GiB, min_free: 7%}\n", "cache.min_free cache.scrub_rate rules "},
        {"cache: {size: 1GiB, policy: lru}\nlog: {level: warn}\n"
         "rules: [{match: b/**}, {match: a/**, freshness: immutable}]\n"
         "buckets: [{name: x, origin: s3://y}]\n",
         "cache.policy! cache.scrub_rate log.level rules buckets "},
    };
    begin();
    struct config *was = load(first, NULL, NULL);
    cr_assert_not_null(was, "%s", buf_cstr(&errors));
    struct buf named;
    buf_init(&named, 1000);
    for (unsigned i = 0; i < ARRAY_LEN(rows); i++) {
        struct config *now = load(rows[i].text, NULL, NULL);
        cr_assert_eq(now != NULL, rows[i].expected != NULL, "%u: %s", i, buf_cstr(&errors));
        if (now != NULL) {
            named.len = 0;
            config_compare(was, now, on_changed, &named);
            cr_assert_str_eq(buf_cstr(&named), rows[i].expected, "%u: %s", i, buf_cstr(&named));
        }
        config_free(now);
    }
    config_free(was);
    buf_done(&named);
    end();
}
