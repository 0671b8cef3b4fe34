// SPDX-License-Identifier: Apache-2.0
// `forebay evict URI...`: removes objects, prefixes or buckets from the cache. For a prefix it
// removes the cached objects that the origin lists below it. A bucket is removed as a whole, listed
// or not.
#include "cli/client/command_pages.h"

#include <stdio.h>
#include <string.h>

#include "cli/client/command_screen.h"
#include "s3/s3.h"

#define BATCH_MAX 500u           // objects in one call
#define BATCH_BYTES (128u << 10) // bytes of the names in one call
#define URI_MAX_BYTES 4096u
#define LINE_MAX_BYTES 32768u
#define BYTES_UNKNOWN UINT64_MAX // of a whole bucket, which is not listed

struct evict {
    struct command_client client;
    const char *uri;
    bool dry_run;
    bool has_realms; // objects may be cached under realms, which the listing does not show
    bool is_walk;    // the argument is a prefix: reports only objects that may be cached
    json_t *batch;   // URIs of the next call
    size_t batch_bytes;
    struct buf path;
    uint64_t objects, bytes, failed, buckets;
};

static void tell(struct evict *e, const char *uri, uint64_t bytes, bool ok, const char *why)
{
    if (!e->client.is_json) {
        struct buf line;
        buf_init(&line, LINE_MAX_BYTES);
        buf_printf(&line, "%s %10s  ",
                   !ok          ? "FAILED "
                   : e->dry_run ? "would  "
                                : "evicted",
                   bytes != BYTES_UNKNOWN ? command_bytes((double)bytes) : "all of");
        command_screen_row_named(&line, command_client_visible(uri));
        buf_done(&line);
    }
    json_t *item = json_pack("{s:s, s:b, s:I}", "uri", uri, "ok", ok, "cached_bytes",
                             (json_int_t)(bytes != BYTES_UNKNOWN ? bytes : 0));
    check(item != NULL);
    if (!ok) {
        (void)fprintf(stderr, "forebay evict: %s: %s\n", command_client_visible(uri),
                      command_client_visible(why));
        check(json_object_set_new(item, "why", json_string(why)) == 0);
    }
    commands_line("item", item);
}

static int send_batch(struct evict *e)
{
    if (json_array_size(e->batch) == 0) {
        return EXIT_CODE_OK;
    }
    json_t *body = json_pack("{s:o}", "uris", e->batch), *answer = NULL;
    check(body != NULL);
    e->batch = json_array();
    e->batch_bytes = 0;
    int code = command_client_post(&e->client, "/api/v1/evict", body, &answer);
    const json_t *objects = json_object_get(answer, "objects");
    for (size_t i = 0; i < json_array_size(objects); i++) {
        const json_t *row = json_array_get(objects, i);
        bool ok = command_client_bool(row, "ok");
        uint64_t bytes = command_client_u64(row, "cached_bytes");
        e->failed += !ok;
        e->objects += ok && command_client_bool(row, "known");
        e->bytes += ok ? bytes : 0;
        if (!ok || !e->is_walk || e->has_realms || command_client_bool(row, "known")) {
            tell(e, command_client_text(row, "uri"), bytes, ok, command_client_text(row, "why"));
        }
    }
    json_decref(answer);
    return code;
}

static int add(struct evict *e, const char *uri, json_t *item)
{
    check(item != NULL && json_array_append_new(e->batch, item) == 0);
    e->batch_bytes += strlen(uri);
    bool is_full = json_array_size(e->batch) >= BATCH_MAX || e->batch_bytes >= BATCH_BYTES;
    return is_full ? send_batch(e) : EXIT_CODE_OK;
}

static int on_object(void *ctx, const json_t *object)
{
    struct evict *e = ctx;
    uint64_t bytes = command_client_u64(object, "cached_bytes");
    e->has_realms = command_client_bool(object, "realms");
    // True if the cache may hold the answer of a HEAD for this object. The listing says only that
    // it holds some answers, not for which objects.
    bool may_be_told = command_client_bool(object, "answers") && !e->dry_run;
    if (!command_client_bool(object, "known") && !e->has_realms && !may_be_told) {
        return EXIT_CODE_OK;
    }
    command_pages_uri(e->uri, command_client_text(object, "key"), &e->path);
    if (!e->dry_run) {
        const char *uri = buf_cstr(&e->path);
        const char *form = command_client_bool(object, "coded") ? "coded" : "object";
        return add(e, uri, json_pack("{s:s}", form, uri));
    }
    e->objects++;
    e->bytes += bytes;
    tell(e, buf_cstr(&e->path), bytes, true, "");
    return EXIT_CODE_OK;
}

// With --dry-run, shows the cached part of an object.
static int try_object(struct evict *e)
{
    json_t *explanation = NULL;
    e->path.len = 0;
    buf_append_cstr(&e->path, "/api/v1/explain");
    command_client_parameter(&e->path, "uri", span_from_cstr(e->uri));
    int code = command_client_get(&e->client, buf_cstr(&e->path), &explanation);
    if (code == EXIT_CODE_OK) {
        uint64_t bytes = command_client_u64(explanation, "cached_bytes");
        e->objects += command_client_bool(explanation, "known");
        e->bytes += bytes;
        tell(e, e->uri, bytes, true, "");
    }
    json_decref(explanation);
    return code;
}

static int evict_bucket(struct evict *e)
{
    json_t *body = json_pack("{s:[s]}", "uris", e->uri), *answer = NULL;
    check(body != NULL);
    int code = command_client_post(&e->client, "/api/v1/evict", body, &answer);
    const json_t *row = json_array_get(json_object_get(answer, "objects"), 0);
    if (code == EXIT_CODE_OK) {
        bool ok = command_client_bool(row, "ok");
        e->failed += !ok;
        e->buckets += ok;
        tell(e, e->uri, BYTES_UNKNOWN, ok, command_client_text(row, "why"));
    }
    json_decref(answer);
    return code;
}

static int evict_prefix(struct evict *e)
{
    int code = send_batch(e); // sends the URIs before this one
    e->is_walk = true;
    if (code == EXIT_CODE_OK) {
        code = command_pages_walk(&e->client, e->uri, on_object, e);
    }
    if (code == EXIT_CODE_OK) {
        code = send_batch(e);
    }
    e->is_walk = false;
    return code;
}

static int evict_uri(struct evict *e, const char *text)
{
    struct s3_uri uri = {0};
    e->uri = text;
    if (!command_client_take_uri(&e->client, text, &uri)) {
        return EXIT_CODE_USAGE;
    }
    command_client_warn_of_star(&e->client, text, &uri);
    if (uri.key.len == 0 && !e->dry_run) {
        return evict_bucket(e);
    }
    if (uri.is_prefix) {
        return evict_prefix(e);
    }
    return e->dry_run ? try_object(e) : add(e, text, json_string(text));
}

static void print_total(const struct evict *e)
{
    const char *end = e->dry_run || e->objects + e->buckets == 0
                          ? ""
                          : ": their room on disk goes to what is stored next";
    if (e->buckets > 0 && e->objects == 0) {
        command_screen_print(2, "evicted %llu whole bucket%s%s\n", (unsigned long long)e->buckets,
                             e->buckets > 1 ? "s" : "", end);
        return;
    }
    command_screen_print(2, "%s%llu objects, %s%s%s\n", e->dry_run ? "would evict " : "evicted ",
                         (unsigned long long)e->objects, command_bytes((double)e->bytes),
                         e->buckets > 0 ? ", and whole buckets" : "", end);
}

int command_evict(int argc, char **argv)
{
    struct evict e = {.dry_run = commands_argument_take(&argc, argv, "--dry-run")};
    int code = command_client_open(&e.client, "evict");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    e.batch = json_array();
    buf_init(&e.path, URI_MAX_BYTES + URI_MAX_BYTES);
    for (int i = 0; i < argc && code == EXIT_CODE_OK; i++) {
        code = evict_uri(&e, argv[i]);
    }
    if (code == EXIT_CODE_OK) {
        code = send_batch(&e);
    }
    if (code == EXIT_CODE_OK && e.failed > 0) {
        code = EXIT_CODE_PARTLY;
    }
    if (!e.client.is_json && code != EXIT_CODE_USAGE) {
        print_total(&e);
    }
    json_decref(e.batch);
    buf_done(&e.path);
    return command_client_end(&e.client, code,
                              json_pack("{s:I, s:I, s:I, s:I, s:b}", "objects",
                                        (json_int_t)e.objects, "bytes", (json_int_t)e.bytes,
                                        "failed", (json_int_t)e.failed, "buckets",
                                        (json_int_t)e.buckets, "dry_run", e.dry_run));
}
