// SPDX-License-Identifier: Apache-2.0
// `forebay ls URI` and `forebay du [URI]`: show how much of a prefix is cached, object by object or
// in total. The server asks the origin for the names. Objects that the origin does not have any
// more are not listed.
#include "cli/client/command_pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "s3/s3.h"

#define URI_MAX_BYTES 4096u
#define FOLDERS_MAX 100000u

struct sums {
    uint64_t objects, cached_objects, bytes, cached_bytes;
};

static void sums_add(struct sums *sums, const json_t *object)
{
    uint64_t cached = command_client_u64(object, "cached_bytes");
    sums->objects++;
    bool is_empty = command_client_bool(object, "known") && command_client_u64(object, "size") == 0;
    sums->cached_objects += cached > 0 || is_empty;
    sums->bytes += command_client_u64(object, "size");
    sums->cached_bytes += cached;
}

static json_t *sums_json(const struct sums *sums)
{
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:I}", "objects", (json_int_t)sums->objects, "cached_objects",
                  (json_int_t)sums->cached_objects, "bytes", (json_int_t)sums->bytes,
                  "cached_bytes", (json_int_t)sums->cached_bytes);
    check(json != NULL);
    return json;
}

static void print_sums(const struct sums *sums, const char *uri)
{
    printf("%10s of %10s  %5.1f %%  %llu of %llu objects  %s\n",
           command_bytes((double)sums->cached_bytes), command_bytes((double)sums->bytes),
           sums->bytes > 0 ? 100 * (double)sums->cached_bytes / (double)sums->bytes : 0,
           (unsigned long long)sums->cached_objects, (unsigned long long)sums->objects,
           command_client_visible(uri));
}

// A total of nothing is more often a misspelt prefix than a result.
static int print_total(const struct command_client *client, int code, const struct sums *sums,
                       const char *uri)
{
    if (code == EXIT_CODE_OK && !client->is_json) {
        print_sums(sums, uri);
        if (sums->objects == 0) {
            command_screen_inform(2, "forebay %s: nothing lies below %s: check its spelling\n",
                                  client->name, command_client_visible(uri));
        }
    }
    return code;
}

// --- ls ------------------------------------------------------------------------------------------

struct ls {
    struct command_client client;
    const char *uri;
    bool all;
    struct sums sums;
    struct buf path;
};

static int on_listed(void *ctx, const json_t *object)
{
    struct ls *ls = ctx;
    sums_add(&ls->sums, object);
    if (!ls->all && command_client_u64(object, "cached_bytes") == 0 &&
        !command_client_bool(object, "known")) {
        return EXIT_CODE_OK;
    }
    command_pages_uri(ls->uri, command_client_text(object, "key"), &ls->path);
    if (!ls->client.is_json) {
        bool is_known = command_client_bool(object, "known");
        printf("%10s of %10s  %-7s %s\n",
               command_bytes(command_client_double(object, "cached_bytes")),
               command_bytes(command_client_double(object, "size")),
               !is_known                                ? "-"
               : command_client_bool(object, "changed") ? "changed"
               : command_client_bool(object, "fresh")   ? "fresh"
                                                        : "stale",
               command_client_visible(buf_cstr(&ls->path)));
    }
    json_t *item = json_pack("{s:o}", "uri", control_text(buf_span(&ls->path)));
    check(item != NULL && json_object_update_missing(item, (json_t *)(uintptr_t)object) == 0);
    commands_line("item", item);
    return EXIT_CODE_OK;
}

int command_ls(int argc, char **argv)
{
    struct ls ls = {.all = commands_argument_take(&argc, argv, "--all")};
    check(argc == 1); // commands.def requires one operand
    int code = command_client_open(&ls.client, "ls");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    ls.uri = argv[0];
    buf_init(&ls.path, URI_MAX_BYTES);
    code = command_pages_walk(&ls.client, ls.uri, on_listed, &ls);
    code = print_total(&ls.client, code, &ls.sums, ls.uri);
    buf_done(&ls.path);
    return command_client_end(&ls.client, code, sums_json(&ls.sums));
}

// --- du ------------------------------------------------------------------------------------------

struct folder {
    char *name; // up to and including the first '/' after the prefix
    struct sums sums;
};

struct du {
    struct command_client client;
    const char *uri;
    size_t prefix_len; // bytes of the prefix in each key
    struct sums sums;
    struct folder *folders;
    size_t count, capacity;
    size_t left_out; // objects in folders beyond FOLDERS_MAX
};

// Returns the folder of a key. Keys arrive in order, so the keys of one folder follow each other.
static struct folder *folder_of(struct du *du, const char *key)
{
    size_t skip = du->prefix_len < strlen(key) ? du->prefix_len : 0;
    const char *slash = strchr(key + skip, '/');
    size_t len =
        slash != NULL ? (size_t)(slash - key) + 1 : 0; // no slash: directly below the prefix
    if (du->count > 0) {
        struct folder *last = &du->folders[du->count - 1];
        if (strlen(last->name) == len && strncmp(last->name, key, len) == 0) {
            return last;
        }
    }
    for (size_t i = 0; len == 0 && i < du->count; i++) {
        if (du->folders[i].name[0] == '\0') {
            return &du->folders[i];
        }
    }
    if (du->count == FOLDERS_MAX) {
        return NULL;
    }
    if (du->count == du->capacity) {
        du->capacity = du->capacity > 0 ? 2 * du->capacity : 64;
        du->folders = realloc(du->folders, du->capacity * sizeof(*du->folders));
        check(du->folders != NULL);
    }
    struct folder *folder = &du->folders[du->count++];
    *folder = (struct folder){.name = strndup(key, len)};
    check(folder->name != NULL);
    return folder;
}

static int on_summed(void *ctx, const json_t *object)
{
    struct du *du = ctx;
    struct folder *folder = folder_of(du, command_client_text(object, "key"));
    sums_add(&du->sums, object);
    if (folder != NULL) {
        sums_add(&folder->sums, object);
    } else {
        du->left_out++;
    }
    return EXIT_CODE_OK;
}

static void print_item(const struct du *du, const struct sums *sums, struct buf *uri)
{
    json_t *item = json_pack("{s:o}", "uri", control_text(buf_span(uri)));
    json_t *json = sums_json(sums);
    check(item != NULL && json_object_update_missing(item, json) == 0);
    json_decref(json);
    if (!du->client.is_json) {
        print_sums(sums, buf_cstr(uri));
    }
    commands_line("item", item);
}

static void print_folders(struct du *du)
{
    struct buf uri;
    buf_init(&uri, URI_MAX_BYTES);
    for (size_t i = 0; i < du->count; i++) {
        if (du->folders[i].name[0] != '\0') {
            command_pages_uri(du->uri, du->folders[i].name, &uri);
            print_item(du, &du->folders[i].sums, &uri);
        }
        free(du->folders[i].name);
    }
    if (du->left_out > 0) {
        command_screen_tell(
            2, "forebay du: %zu objects are in folders beyond the first %u, which are not shown\n",
            du->left_out, FOLDERS_MAX);
    }
    free(du->folders);
    buf_done(&uri);
}

static int du_below(struct du *du, const char *text)
{
    struct s3_uri uri = {0};
    if (!command_client_take_uri(&du->client, text, &uri)) {
        return EXIT_CODE_USAGE;
    }
    du->uri = text;
    du->prefix_len = uri.key.len;
    int code = command_pages_walk(&du->client, text, on_summed, du);
    print_folders(du);
    return print_total(&du->client, code, &du->sums, text);
}

static int on_bucket_summed(void *ctx, const json_t *object)
{
    sums_add(ctx, object);
    return EXIT_CODE_OK;
}

// Sums up each bucket that the server has seen since its start. A bucket that the origin does not
// list does not keep the others from being shown.
static int du_buckets(struct du *du)
{
    json_t *answer = NULL, *summary = NULL;
    struct buf uri;
    int code = command_client_get(&du->client, "/api/v1/buckets", &answer);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    buf_init(&uri, URI_MAX_BYTES);
    const json_t *buckets = json_object_get(answer, "buckets");
    for (size_t i = 0; i < json_array_size(buckets); i++) {
        const char *name = command_client_text(json_array_get(buckets, i), "bucket");
        struct sums sums = {0};
        uri.len = 0;
        buf_printf(&uri, "s3://%s/", name);
        int listed = command_pages_walk(&du->client, buf_cstr(&uri), on_bucket_summed, &sums);
        if (listed == EXIT_CODE_OK) {
            print_item(du, &sums, &uri);
            du->sums.objects += sums.objects;
            du->sums.cached_objects += sums.cached_objects;
            du->sums.bytes += sums.bytes;
            du->sums.cached_bytes += sums.cached_bytes;
        } else {
            code = listed;
        }
    }
    buf_done(&uri);
    if (command_client_get(&du->client, "/api/v1/summary", &summary) == EXIT_CODE_OK &&
        !du->client.is_json) {
        const json_t *counters = json_object_get(summary, "counters");
        printf("%10s of %10s  in the whole cache\n",
               command_bytes(command_client_double(counters, "cache_held_bytes")),
               command_bytes(command_client_double(counters, "cache_capacity_bytes")));
        command_screen_inform(
            2, "forebay du: %s; forebay du s3://BUCKET/ shows the folders of a bucket\n",
            json_array_size(buckets) > 0 ? "these buckets were read since the server's start"
                                         : "no bucket was read since the server's start");
    }
    json_decref(summary);
    json_decref(answer);
    return code;
}

int command_du(int argc, char **argv)
{
    struct du du = {0};
    int code = command_client_open(&du.client, "du");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    code = argc > 0 ? du_below(&du, argv[0]) : du_buckets(&du);
    return command_client_end(&du.client, code, sums_json(&du.sums));
}
