// SPDX-License-Identifier: Apache-2.0
// `forebay get URI [FILE]`: reads an object through the cache, into a file. Replaces a regular file
// once the whole object has arrived, and leaves it alone otherwise. Writes the bytes to a device or
// a FIFO as they arrive.
#include "cli/client/command_fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct get {
    struct command_client client;
    char path[PATH_MAX], part[PATH_MAX]; // part: the name until the whole object has arrived
    int fd;
};

static bool on_bytes(void *ctx, struct span bytes)
{
    struct get *g = ctx;
    if (!commands_write_all(g->fd, bytes)) {
        command_client_error(&g->client, "%s: %s", g->path, strerror(errno));
        return false;
    }
    return true;
}

// Chooses the path to write: FILE, or a file in FILE if that is a directory. Without FILE, the last
// part of the key is the name.
static bool name_file(struct get *g, const char *uri, const char *file)
{
    const char *slash = strrchr(uri, '/');
    const char *base = slash != NULL ? slash + 1 : uri;
    struct stat st;
    bool is_directory = file != NULL && stat(file, &st) == 0 && S_ISDIR(st.st_mode);
    if (file == NULL || is_directory) {
        bool is_odd = base[0] == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0;
        int len = snprintf(g->path, sizeof(g->path), "%s%s%s", is_directory ? file : "",
                           is_directory ? "/" : "", base);
        return !is_odd && len > 0 && (size_t)len < sizeof(g->path);
    }
    int len = snprintf(g->path, sizeof(g->path), "%s", file);
    return len > 0 && (size_t)len < sizeof(g->path);
}

static int fail(struct get *g, const char *what)
{
    command_client_error(&g->client, "%s: %s", what, strerror(errno));
    return EXIT_CODE_FAILED;
}

static int keep(struct get *g)
{
    mode_t mask = umask(0);
    (void)umask(mask);
    if (fchmod(g->fd, 0666 & ~mask) != 0 || fsync(g->fd) != 0 || rename(g->part, g->path) != 0) {
        return fail(g, g->path);
    }
    return EXIT_CODE_OK;
}

static int run(struct get *g, struct command_fetch *fetch)
{
    if (commands_open_special(g->path, &g->fd)) {
        int code = g->fd < 0 ? fail(g, g->path) : command_fetch(&g->client, fetch);
        return g->fd < 0 || close(g->fd) == 0 || code != EXIT_CODE_OK ? code : fail(g, g->path);
    }
    int len = snprintf(g->part, sizeof(g->part), "%s.part-XXXXXX", g->path);
    if (len < 0 || (size_t)len >= sizeof(g->part)) {
        errno = ENAMETOOLONG;
        return fail(g, g->path);
    }
    g->fd = mkostemp(g->part, O_CLOEXEC);
    if (g->fd < 0) {
        return fail(g, g->part);
    }
    int code = command_fetch(&g->client, fetch);
    code = code == EXIT_CODE_OK ? keep(g) : code;
    if (code != EXIT_CODE_OK) {
        (void)unlink(g->part); // if this fails, the file stays under a name that shows what it is
    }
    (void)close(g->fd); // the file was synced, or is not wanted
    return code;
}

int command_get(int argc, char **argv)
{
    struct get g = {.fd = -1};
    unsigned operands = commands_common()->operand_count;
    bool is_told = commands_common()->is_verbose;
    const char *range = commands_argument_take_value(&argc, argv, "--range");
    if (!name_file(&g, argv[0], operands > 1 ? argv[1] : NULL)) {
        return commands_usage_error("get", "name a FILE: the key has no name for one");
    }
    int code = command_client_open(&g.client, "get");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    struct command_fetch fetch = {.uri = argv[0], .range = range, .on_bytes = on_bytes, .ctx = &g};
    code = run(&g, &fetch);
    if (code == EXIT_CODE_OK && is_told) {
        command_fetch_tell(&g.client, &fetch);
    }
    json_t *result = NULL;
    if (code == EXIT_CODE_OK) {
        result = json_pack("{s:o, s:o, s:I, s:f, s:f, s:o, s:o}", "uri",
                           control_text(span_from_cstr(argv[0])), "file",
                           control_text(span_from_cstr(g.path)), "bytes", (json_int_t)fetch.bytes,
                           "first_byte_s", fetch.first_s, "elapsed_s", fetch.total_s, "etag",
                           control_text(span_from_cstr(fetch.etag)), "cache_status",
                           control_text(span_from_cstr(fetch.cache_status)));
        check(result != NULL);
    }
    return command_client_end(&g.client, code, result);
}
