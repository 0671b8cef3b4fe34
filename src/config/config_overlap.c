// SPDX-License-Identifier: Apache-2.0
// Finds files of Forebay inside the directory of a `dir:` origin. A cache.dir inside is refused,
// because the cache's files would be listed and served as objects, with other tenants' bytes in
// them. A cache.dir that contains such a directory is refused too. A log, socket or secret inside
// such a directory causes a warning.
//
// A path is compared by its device and its path in that device's file system, because a bind mount
// shows one directory under two paths. Symbolic links are resolved first. A directory includes what
// is mounted below it. If a path does not exist yet, only the part of it that exists is resolved.
#include "config/config_private.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A mount point, from one line of /proc/self/mountinfo.
struct mount {
    const char *device, *root, *at; // "259:1"; path in its file system; path where it is mounted
};

struct place {
    char path[PATH_MAX];   // real path, as far as it exists
    const char *device;    // "" if unknown
    char inside[PATH_MAX]; // path in the file system of that device
};

struct overlap {
    struct loader *loader;
    char *text; // contents of mountinfo; `mounts` points into it
    struct mount *mounts;
    size_t mount_count;
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

// Resolves symbolic links in each component that exists. A path that is too long for any system
// call is cut.
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

// Decodes the octal escapes of mountinfo, such as "\040" for a space.
static void unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at != '\0'; at++) {
        bool is_escape = at[0] == '\\' && strspn(at + 1, "01234567") >= 3;
        *to++ = is_escape ? (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0')) : *at;
        at += is_escape ? 3 : 0;
    }
    *to = '\0';
}

// Reads the mounts. A line is "36 35 98:0 /root /mount/point ...". Without mountinfo, only paths
// are compared.
static void mounts_read(struct overlap *o)
{
    size_t size = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    if (file == NULL) {
        return;
    }
    char *rest = getdelim(&o->text, &size, '\0', file) > 0 ? o->text : NULL, *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *words[5] = {NULL};
        for (size_t i = 0; i < ARRAY_LEN(words) && line != NULL; i++) {
            words[i] = strsep(&line, " ");
        }
        if (words[4] != NULL) {
            unescape(words[3]);
            unescape(words[4]);
            o->mounts = reallocarray(o->mounts, o->mount_count + 1, sizeof(*o->mounts));
            check(o->mounts != NULL);
            o->mounts[o->mount_count++] = (struct mount){words[2], words[3], words[4]};
        }
    }
    (void)fclose(file); // the file was only read, so a failure loses nothing
}

static void place_find(const struct overlap *o, const char *path, struct place *ret_place)
{
    size_t best = 0;
    path_resolve(path, ret_place->path);
    memcpy(ret_place->inside, ret_place->path, PATH_MAX);
    ret_place->device = "";
    for (size_t i = 0; i < o->mount_count; i++) {
        const struct mount *m = &o->mounts[i];
        size_t len = strlen(m->at);
        if (!is_within(ret_place->path, m->at) || len < best) {
            continue; // of two mounts at one path, the later one hides the earlier
        }
        const char *root = strcmp(m->root, "/") == 0 ? "" : m->root;
        const char *below = ret_place->path + (len > 1 ? len : 0); // len is 1 for "/"
        if (snprintf(ret_place->inside, PATH_MAX, "%s%s", root, below) == 0) {
            (void)snprintf(ret_place->inside, PATH_MAX, "/");
        }
        best = len;
        ret_place->device = m->device;
    }
}

// Returns true if `place` is inside `dir`, or on a file system that is mounted below `dir`.
static bool is_seen_from(const struct overlap *o, const struct place *place,
                         const struct place *dir)
{
    bool is_seen = strcmp(place->device, dir->device) == 0 && is_within(place->inside, dir->inside);
    for (size_t i = 0; i < o->mount_count && !is_seen; i++) {
        const struct mount *m = &o->mounts[i];
        is_seen = is_within(m->at, dir->path) && strcmp(m->device, place->device) == 0 &&
                  is_within(place->inside, m->root);
    }
    return is_seen;
}

static void refuse(const struct overlap *o, const char *origin, const struct place *dir)
{
    const struct config *c = o->loader->config;
    const char *where = o->loader->raws[SETTING_cache_dir].where;
    bool is_inside = is_seen_from(o, &o->cache, dir);
    bool is_around = is_seen_from(o, dir, &o->cache);
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
    if (is_seen_from(o, &place, dir)) {
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
                   {"origin.proxy_auth_file", c->origin_proxy_auth_file},
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
    if (c->cache_dir != NULL) {
        mounts_read(&o);
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
    free(o.mounts);
    free(o.text);
}
