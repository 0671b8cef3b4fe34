// SPDX-License-Identifier: Apache-2.0
// Is a directory that Forebay writes to among the objects of a `dir:` origin, or the other way
// round? The cache's files would be listed and served as objects, with other tenants' bytes in
// them. So such a cache.dir is refused. A log, socket or secret there causes a warning.
//
// Two directories are compared by their real paths, with symbolic links resolved, and by their
// paths inside their file system. The second is needed because a bind mount shows one directory
// under two paths, and whatever is mounted below an origin is part of it. A path that does not
// exist yet is judged by the part of it that does.
#include "config/config_private.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOUNTS_BYTES_MAX (4u << 20)

// One line of /proc/self/mountinfo.
struct mount {
    struct span device; // "259:1"
    char root[PATH_MAX], at[PATH_MAX];
};

// The position of a directory or file in the file tree.
struct place {
    char path[PATH_MAX];   // real path, as far as it exists
    char device[32];       // empty: unknown
    char inside[PATH_MAX]; // path in the file system of that device
};

struct overlap {
    struct loader *loader;
    struct buf mounts; // text of mountinfo; empty if it cannot be read
    struct place cache;
};

static bool is_within(const char *path, const char *dir)
{
    size_t len = strlen(dir);
    if (strcmp(dir, "/") == 0) {
        return true;
    }
    return strncmp(path, dir, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

// Resolves each component that exists. A path that is too long is cut, because no system call
// accepts it.
static void path_resolve(const char *path, char ret_real[PATH_MAX])
{
    struct span rest = span_from_cstr(path), name;
    char real[PATH_MAX], longer[PATH_MAX];
    (void)snprintf(real, sizeof(real), "/");
    while (span_split(&rest, '/', &name)) {
        if (name.len == 0 || span_equal_cstr(name, ".")) {
            continue;
        }
        if (span_equal_cstr(name, "..")) {
            char *slash = strrchr(real, '/');
            slash[slash == real ? 1 : 0] = '\0';
            continue;
        }
        int len = snprintf(longer, sizeof(longer), "%s/%.*s", strcmp(real, "/") == 0 ? "" : real,
                           (int)name.len, name.ptr);
        if (len >= (int)sizeof(longer)) {
            break;
        }
        if (realpath(longer, real) == NULL) {
            memcpy(real, longer, (size_t)len + 1);
        }
    }
    memcpy(ret_real, real, PATH_MAX);
}

// Decodes escapes such as "\040" for a blank. Returns false if the result is too long.
static bool unescape(struct span text, char ret_path[PATH_MAX])
{
    size_t len = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (c == '\\' && i + 3 < text.len) {
            c = (char)((text.ptr[i + 1] - '0') << 6 | (text.ptr[i + 2] - '0') << 3 |
                       (text.ptr[i + 3] - '0'));
            i += 3;
        }
        if (len + 1 >= PATH_MAX) {
            return false;
        }
        ret_path[len++] = c;
    }
    ret_path[len] = '\0';
    return len > 0 && ret_path[0] == '/';
}

// Parses "36 35 98:0 /root /mount/point ...". Lines of another form are skipped.
static bool next_mount(struct span *rest, struct mount *ret_mount)
{
    struct span line;
    while (span_split(rest, '\n', &line)) {
        struct span words[5] = {{NULL, 0}};
        unsigned count = 0;
        while (count < ARRAY_LEN(words) && span_split(&line, ' ', &words[count])) {
            count++;
        }
        if (count == ARRAY_LEN(words) && unescape(words[3], ret_mount->root) &&
            unescape(words[4], ret_mount->at)) {
            ret_mount->device = words[2];
            return true;
        }
    }
    return false;
}

static void mounts_read(struct buf *text)
{
    char piece[4096];
    ssize_t len;
    int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return; // without mountinfo only paths decide
    }
    while ((len = read(fd, piece, sizeof(piece))) > 0) {
        buf_append(text, piece, (size_t)len);
    }
    (void)close(fd); // it was only read
}

static void place_find(const struct overlap *o, const char *path, struct place *ret_place)
{
    struct span rest = buf_span(&o->mounts);
    struct mount m;
    size_t best = 0;
    path_resolve(path, ret_place->path);
    ret_place->device[0] = ret_place->inside[0] = '\0';
    while (next_mount(&rest, &m)) {
        size_t len = strlen(m.at);
        if (!is_within(ret_place->path, m.at) || len < best ||
            m.device.len >= sizeof(ret_place->device)) {
            continue; // of two mounts at one path the later one is on top
        }
        const char *below = ret_place->path + (strcmp(m.at, "/") == 0 ? 0 : len);
        int made = snprintf(ret_place->inside, sizeof(ret_place->inside), "%s%s",
                            strcmp(m.root, "/") == 0 ? "" : m.root, below);
        if (made == 0) {
            (void)snprintf(ret_place->inside, sizeof(ret_place->inside), "/");
        }
        best = len;
        memcpy(ret_place->device, m.device.ptr, m.device.len);
        ret_place->device[m.device.len] = '\0';
    }
}

static bool place_is_within(const struct place *place, const struct place *dir)
{
    return is_within(place->path, dir->path) ||
           (place->device[0] != '\0' && strcmp(place->device, dir->device) == 0 &&
            is_within(place->inside, dir->inside));
}

// The same, and also through a mount below `dir`.
static bool place_is_seen_from(const struct overlap *o, const struct place *place,
                               const struct place *dir)
{
    struct span rest = buf_span(&o->mounts);
    struct mount m;
    bool is_seen = place_is_within(place, dir);
    while (!is_seen && next_mount(&rest, &m)) {
        is_seen = is_within(m.at, dir->path) && span_equal_cstr(m.device, place->device) &&
                  is_within(place->inside, m.root);
    }
    return is_seen;
}

static void refuse(const struct overlap *o, const char *origin, const struct place *dir)
{
    const struct config *c = o->loader->config;
    const char *where = o->loader->raws[SETTING_cache_dir].where;
    bool is_inside = place_is_seen_from(o, &o->cache, dir);
    bool is_around = place_is_within(dir, &o->cache);
    if (is_inside) {
        config_loader_error(o->loader, where != NULL ? where : "cache.dir",
                            "cache.dir \"%.200s\" %s the origin dir:%.200s: what the cache writes "
                            "would be listed and served as objects. Choose a cache.dir outside",
                            c->cache_dir, is_around ? "is" : "lies inside", origin);
    } else if (is_around) {
        config_loader_error(o->loader, where != NULL ? where : "cache.dir",
                            "cache.dir \"%.200s\" has the origin dir:%.200s inside: a cache may be "
                            "removed as a whole, data may not. Choose a directory of its own for "
                            "cache.dir",
                            c->cache_dir, origin);
    }
}

static void warn(const struct overlap *o, const char *key, const char *file, const char *origin,
                 const struct place *dir, const char *what)
{
    struct place place;
    if (file == NULL || file[0] != '/') {
        return;
    }
    place_find(o, file, &place);
    if (place_is_seen_from(o, &place, dir)) {
        config_loader_warning(o->loader, key, "\"%.200s\" lies inside the origin dir:%.200s: %s",
                              file, origin, what);
    }
}

#define SECRET_WARNING                                                                             \
    "whoever may read objects can read this secret. Move it out of the origin's directory"

static void judge_origin(const struct overlap *o, const char *origin)
{
    const struct config *c = o->loader->config;
    const struct {
        const char *key, *file;
    } secrets[] = {{"auth.keys_file", c->auth_keys_file},
                   {"admin.token_file", c->admin_token_file},
                   {"listen_tls.key", c->listen_tls_key},
                   {"credentials.access_key_file", c->credentials_access_key_file},
                   {"credentials.secret_key_file", c->credentials_secret_key_file},
                   {"credentials.session_token_file", c->credentials_session_token_file}};
    struct place dir;
    place_find(o, origin, &dir);
    refuse(o, origin, &dir);
    for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
        warn(o, secrets[i].key, secrets[i].file, origin, &dir, SECRET_WARNING);
    }
    for (unsigned i = 0; i < c->bucket_count; i++) {
        const struct config_bucket *b = &c->buckets[i];
        warn(o, b->source, b->access_key_file, origin, &dir, SECRET_WARNING);
        warn(o, b->source, b->secret_key_file, origin, &dir, SECRET_WARNING);
        warn(o, b->source, b->session_token_file, origin, &dir, SECRET_WARNING);
    }
    warn(o, "access_log.path", c->access_log_path, origin, &dir,
         "its lines are listed and served as an object. Move it out of the origin's directory");
    warn(o, "admin.socket", c->admin_socket_auto ? NULL : c->admin_socket, origin, &dir,
         "it would lie among the objects. Move it out of the origin's directory");
}

void config_overlap_judge(struct loader *l)
{
    const struct config *c = l->config;
    struct overlap o = {.loader = l};
    buf_init(&o.mounts, MOUNTS_BYTES_MAX);
    mounts_read(&o.mounts);
    if (c->cache_dir != NULL) {
        place_find(&o, c->cache_dir, &o.cache);
        if (strncmp(c->origin_endpoint, "dir:/", 5) == 0) {
            judge_origin(&o, c->origin_endpoint + 4);
        }
        for (unsigned i = 0; i < c->bucket_count; i++) {
            if (c->buckets[i].directory != NULL && c->buckets[i].directory[0] == '/') {
                judge_origin(&o, c->buckets[i].directory);
            }
        }
    }
    buf_done(&o.mounts);
}
