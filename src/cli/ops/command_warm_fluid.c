// SPDX-License-Identifier: Apache-2.0
// `forebay warm --fluid`: fetches what a DataLoad of Fluid requests from a CacheRuntime. Fluid
// starts the command of the CacheRuntimeClass (dataOperationSpecs) in a job with these variables:
//
//   FLUID_DATALOAD_DATA_PATH    paths in the data set, "/imagenet/train:/labels"
//   FLUID_RUNTIME_CONFIG_PATH   a JSON file with the data set's "mounts". Each mount has a
//                               mountPoint, here s3://BUCKET/PREFIX. It also has its path in the
//                               data set, or a name, which means the path "/" and the name.
//
// The command ignores two more variables. FLUID_DATALOAD_METADATA has no effect, because a fetch
// always includes the names and sizes of objects. FLUID_DATALOAD_PATH_REPLICAS has none, because a
// cache holds each object once.
//
// A path may be a folder or a file, which is a prefix or an object in S3. To find out which, the
// command asks the server whether the prefix has objects.
#include "cli/ops/command_warm.h"

#include <stdlib.h>
#include <string.h>

#define CONFIG_PATH "/etc/fluid/config/config.json"
#define URI_MAX_BYTES 4096u

struct fluid {
    struct command_client *client;
    const json_t *mounts;
    command_warm_add_fn add;
    void *ctx;
    struct buf uri;
};

static struct span skip(struct span s, size_t len)
{
    return (struct span){s.ptr + len, s.len - len};
}

static struct span without_slashes(struct span path)
{
    while (path.len > 0 && path.ptr[path.len - 1] == '/') {
        path.len--;
    }
    return path;
}

// Returns the mount's path in the data set, without the slash at the end; empty: the whole data
// set.
static struct span mount_path(const json_t *mount)
{
    struct span path = span_from_cstr(command_client_text(mount, "path"));
    struct span name = span_from_cstr(command_client_text(mount, "name"));
    return without_slashes(path.len > 0 ? path : name);
}

// Returns true if `path` is `folder` or below it. Ignores leading slashes, because paths have one
// and names of mounts have none.
static bool is_below(struct span path, struct span folder, struct span *ret_rest)
{
    folder = folder.len > 0 && folder.ptr[0] == '/' ? skip(folder, 1) : folder;
    path = path.len > 0 && path.ptr[0] == '/' ? skip(path, 1) : path;
    bool is = folder.len == 0 || path.len == folder.len ||
              (path.len > folder.len && path.ptr[folder.len] == '/');
    is = is && path.len >= folder.len && memcmp(path.ptr, folder.ptr, folder.len) == 0;
    *ret_rest = is ? skip(path, folder.len) : (struct span){NULL, 0};
    return is;
}

static int uri_of_mount(struct fluid *f, const json_t *mount)
{
    struct span point = without_slashes(span_from_cstr(command_client_text(mount, "mountPoint")));
    if (!span_starts_with(point, SPAN("s3://")) || point.len == strlen("s3://")) {
        command_client_error(f->client,
                             "the data set's mountPoint \"%.*s\" is no s3://BUCKET/PREFIX",
                             (int)point.len, point.ptr);
        return EXIT_CODE_CONFIGURATION;
    }
    buf_done(&f->uri); // empties the buffer
    buf_append_span(&f->uri, point);
    return EXIT_CODE_OK;
}

// Asks the server whether there are objects below f->uri, which ends in '/'.
static int ask_folder(struct fluid *f, bool *ret_is)
{
    struct buf path;
    json_t *page = NULL;
    buf_init(&path, 4 * URI_MAX_BYTES); // percent coding uses three bytes for most other characters
    buf_append_cstr(&path, "/api/v1/ls");
    command_client_parameter(&path, "uri", buf_span(&f->uri));
    command_client_parameter(&path, "max", SPAN("1"));
    int code = command_client_get(f->client, buf_cstr(&path), &page);
    *ret_is = json_array_size(json_object_get(page, "objects")) > 0;
    json_decref(page);
    buf_done(&path);
    return code;
}

static int add_below(struct fluid *f, const json_t *mount, struct span rest)
{
    bool is_folder = true;
    int code = uri_of_mount(f, mount);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    rest = without_slashes(rest);
    buf_append_span(&f->uri, rest);
    buf_append_char(&f->uri, '/');
    if (!buf_ok(&f->uri)) {
        command_client_error(f->client, "a path of FLUID_DATALOAD_DATA_PATH is too long");
        return EXIT_CODE_USAGE;
    }
    code = rest.len > 0 ? ask_folder(f, &is_folder) : EXIT_CODE_OK;
    f->uri.len -= !is_folder;
    return code == EXIT_CODE_OK ? f->add(f->ctx, buf_cstr(&f->uri)) : code;
}

// Adds the path in the innermost mount that contains it, and all mounts below the path.
static int add_path(struct fluid *f, struct span path)
{
    const json_t *mount, *inner = NULL;
    size_t i, longest = 0, found = 0;
    struct span rest, inner_rest = {NULL, 0};
    int code = EXIT_CODE_OK;
    json_array_foreach(f->mounts, i, mount)
    {
        struct span at = mount_path(mount);
        if (is_below(path, at, &rest) && (inner == NULL || at.len >= longest)) {
            inner = mount;
            inner_rest = rest;
            longest = at.len;
        }
    }
    json_array_foreach(f->mounts, i, mount)
    {
        if (code == EXIT_CODE_OK && mount != inner && is_below(mount_path(mount), path, &rest)) {
            found++;
            code = add_below(f, mount, (struct span){NULL, 0});
        }
    }
    if (code == EXIT_CODE_OK && inner != NULL) {
        code = add_below(f, inner, inner_rest);
    } else if (code == EXIT_CODE_OK && found == 0) {
        command_client_error(f->client,
                             "\"%.*s\" of FLUID_DATALOAD_DATA_PATH is in no mount of the data set",
                             (int)path.len, path.ptr);
        code = EXIT_CODE_USAGE;
    }
    return code;
}

int command_warm_fluid(struct command_client *client, command_warm_add_fn add, void *ctx)
{
    const char *config = getenv("FLUID_RUNTIME_CONFIG_PATH");
    struct span paths = span_from_cstr(getenv("FLUID_DATALOAD_DATA_PATH")), path;
    json_error_t why;
    config = config != NULL && config[0] != '\0' ? config : CONFIG_PATH;
    if (paths.len == 0) {
        command_client_error(
            client, "FLUID_DATALOAD_DATA_PATH is not set: --fluid is for a DataLoad of Fluid");
        return EXIT_CODE_USAGE;
    }
    json_t *json = json_load_file(config, 0, &why);
    if (json == NULL || !json_is_array(json_object_get(json, "mounts"))) {
        command_client_error(client, "%s: %s", config,
                             json == NULL ? why.text : "it names no mounts of a data set");
        json_decref(json);
        return EXIT_CODE_CONFIGURATION;
    }
    struct fluid f = {
        .client = client, .mounts = json_object_get(json, "mounts"), .add = add, .ctx = ctx};
    buf_init(&f.uri, URI_MAX_BYTES);
    int code = EXIT_CODE_OK;
    while (code == EXIT_CODE_OK && span_split(&paths, ':', &path)) {
        code = path.len > 0 ? add_path(&f, path) : EXIT_CODE_OK;
    }
    buf_done(&f.uri);
    json_decref(json);
    return code;
}
