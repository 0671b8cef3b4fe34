// SPDX-License-Identifier: Apache-2.0
// Inspects a cache directory from outside, and prepares one for the user whose process will use it.
// For commands; no store is open in this process. Main thread; blocks.
//
// The command often runs as root in a folder that others may change, so no path is resolved twice.
// Each component is opened relative to the previous one, and never through a symbolic link. Changes
// use descriptors. If a file has a second name, it may belong to somebody else, so its owner is not
// changed. The command removes nothing but an older cache, whose files are all known by name. It
// holds that cache's lock while it removes them.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/disk/store_dir.h"
#include "store/offline/offline.h"

#define FORMAT_TEXT_MAX 4096u // maximum length of a message
#define FOLDER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

// The entries at the top of a cache directory, of any version of Forebay.
static const char *const cache_files[] = {
    "format.new", "lock",     "policy",     "policy.new",   "policy.map", "condemned", "pins",
    "pins.new",   "pins.bad", "admin.sock", "forebay.sock", "origin",     "origin.new"};
static const char *const cache_folders[] = {"segments", "index"};

static bool is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

// --- Inspecting ----------------------------------------------------------------------------------

static bool skip_of_cache(const char *name)
{
    return strcmp(name, "lost+found") == 0 || strcmp(name, "format") == 0 ||
           is_one_of(name, cache_files, ARRAY_LEN(cache_files)) ||
           is_one_of(name, cache_folders, ARRAY_LEN(cache_folders));
}

// Takes both locks of a cache. Returns false, and takes neither, if another process has one.
// *ret_lock is -1 if there is no lock file.
static bool locks_take(int fd, int *ret_lock)
{
    check(fd >= 0);
    int lock = openat(fd, "lock", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    taken = taken || (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    if (taken && lock >= 0) {
        (void)close(lock); // nothing was written, so an error loses nothing
        lock = -1;
    }
    check(!taken || lock < 0);
    *ret_lock = lock;
    return !taken;
}

static void locks_give_back(int fd, int lock)
{
    (void)flock(fd, LOCK_UN);
    if (lock >= 0) {
        (void)close(lock); // this also releases the lock
    }
}

static void look_at(int fd, struct store_look *look)
{
    check(fd >= 0 && !look->is_in_use);
    struct stat st;
    char name[NAME_MAX + 1];
    int lock;
    if (fstat(fd, &st) == 0) {
        look->uid = st.st_uid;
        look->gid = st.st_gid;
        look->mode = st.st_mode & 07777;
    }
    look->version = store_dir_version(fd);
    look->found = look->version > STORE_FORMAT_VERSION_MAX    ? STORE_FOUND_NEWER
                  : look->version >= STORE_FORMAT_VERSION_MIN ? STORE_FOUND_CACHE
                  : look->version > 0                         ? STORE_FOUND_OLDER
                  : store_dir_is_foreign(fd, name)            ? STORE_FOUND_OTHER
                                                              : STORE_FOUND_EMPTY;
    look->is_in_use = !locks_take(fd, &lock);
    if (!look->is_in_use) {
        locks_give_back(fd, lock);
    }
}

// Opens the private folder of a directory that others may change, if it has a cache. Otherwise
// returns -1.
static int open_private(int fd)
{
    struct stat st;
    bool has_none = fstatat(fd, "format", &st, AT_SYMLINK_NOFOLLOW) == 0 ||
                    fstatat(fd, STORE_DIR_PRIVATE "/format", &st, AT_SYMLINK_NOFOLLOW) != 0;
    return has_none ? -1 : openat(fd, STORE_DIR_PRIVATE, FOLDER);
}

enum err store_look(const char *path, struct store_look *ret_look)
{
    struct store_look look = {.found = STORE_FOUND_NOTHING};
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        *ret_look = look;
        return errno == ENOENT ? ERR_OK : error_from_errno(errno);
    }
    int inner = open_private(fd);
    look_at(inner >= 0 ? inner : fd, &look);
    if (inner >= 0) {
        (void)close(inner); // nothing was written, so an error loses nothing
    }
    (void)close(fd); // nothing was written, so an error loses nothing
    *ret_look = look;
    return ERR_OK;
}

// --- Opening the directory to prepare ------------------------------------------------------------

static enum err refuse_component(int at_fd, const char *name, const char *path, int failed,
                                 struct buf *ret_why)
{
    struct stat st;
    if (fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)) {
        buf_printf(ret_why,
                   "%s goes through the symbolic link \"%s\": name the directory itself "
                   "(realpath %s)",
                   path, name, path);
        return ERR_INVALID;
    }
    buf_printf(ret_why, "%s: \"%s\": %s", path, name, strerror(failed));
    return error_from_errno(failed);
}

// Opens the component `name` in the directory at_fd, and creates it if it does not exist.
static int open_component(int at_fd, const char *name, bool is_last, bool *ret_is_new)
{
    check(at_fd >= 0 && name[0] != 0 && strchr(name, '/') == NULL);
    int flags = (is_last ? O_RDONLY : O_PATH) | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(at_fd, name, flags);
    *ret_is_new = false;
    if (fd < 0 && errno == ENOENT) {
        if (mkdirat(at_fd, name, is_last ? 0700 : 0755) != 0 && errno != EEXIST) {
            return -1;
        }
        *ret_is_new = true;
        fd = openat(at_fd, name, flags);
    }
    return fd;
}

// Returns true if the directory already belongs to the new owner alone. A root user without root's
// usual rights cannot look into it, and need not.
static bool is_theirs_already(int at_fd, const char *name,
                              const struct store_prepare_options *options)
{
    struct stat st;
    return options->has_owner && fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISDIR(st.st_mode) && st.st_uid == options->uid && st.st_gid == options->gid &&
           (st.st_mode & 077) == 0;
}

// Opens options->dir. With ERR_OK, *ret_fd is -1 if the directory cannot be opened, but already
// belongs to the new owner alone.
static enum err open_directory(const struct store_prepare_options *options, int *ret_fd,
                               bool *ret_is_new, struct buf *ret_what)
{
    char name[NAME_MAX + 1];
    struct span rest = span_from_cstr(options->dir), piece;
    int at_fd = open(options->dir[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    enum err err = at_fd < 0 ? error_from_errno(errno) : ERR_OK;
    while (rest.len > 0 && rest.ptr[rest.len - 1] == '/') {
        rest.len--;
    }
    bool has_name = false;
    while (err == ERR_OK && span_split(&rest, '/', &piece)) {
        if (piece.len == 0 || span_equal(piece, SPAN("."))) {
            continue;
        }
        if (piece.len > NAME_MAX) {
            err = ERR_INVALID;
            buf_printf(ret_what, "%s: a name in it is too long", options->dir);
            break;
        }
        memcpy(name, piece.ptr, piece.len);
        name[piece.len] = '\0';
        has_name = true;
        int fd = open_component(at_fd, name, rest.ptr == NULL, ret_is_new);
        int failed = errno;
        if (fd < 0 && failed == EACCES && rest.ptr == NULL &&
            is_theirs_already(at_fd, name, options)) {
            (void)close(at_fd); // O_PATH: nothing was written, so an error loses nothing
            *ret_fd = -1;
            return ERR_OK;
        }
        if (fd < 0) {
            err = refuse_component(at_fd, name, options->dir, failed, ret_what);
        } else {
            (void)close(at_fd); // O_PATH: nothing was written, so an error loses nothing
            at_fd = fd;
        }
    }
    check(err != ERR_OK || at_fd >= 0);
    if (err == ERR_OK && !has_name) {
        err = ERR_INVALID;
        buf_printf(ret_what, "\"%s\" names no directory of its own", options->dir);
    }
    if (err != ERR_OK && at_fd >= 0) {
        (void)close(at_fd); // O_PATH: nothing was written, so an error loses nothing
        at_fd = -1;
    }
    *ret_fd = at_fd;
    return err;
}

// --- Owner ---------------------------------------------------------------------------------------

static enum err give_file(int at_fd, const char *name, const struct store_prepare_options *options)
{
    check(options->has_owner);
    struct stat st;
    int fd = openat(at_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return error_from_errno(errno);
    }
    enum err err = ERR_OK;
    if (fstat(fd, &st) != 0) {
        err = error_from_errno(errno);
    } else if (!S_ISDIR(st.st_mode) && st.st_nlink != 1) {
        // Leave the file alone, because its other name may belong to another user.
        err = ERR_PERMISSION;
    } else if (!S_ISLNK(st.st_mode) && (st.st_uid != options->uid || st.st_gid != options->gid) &&
               fchownat(fd, "", options->uid, options->gid, AT_EMPTY_PATH) != 0) {
        err = error_from_errno(errno);
    }
    (void)close(fd); // O_PATH: nothing was written, so an error loses nothing
    return err;
}

// Gives the entries of a folder to the new owner, but not what is in subfolders.
static enum err give_entries(int fd, const struct store_prepare_options *options)
{
    check(fd >= 0 && options->has_owner);
    int again = openat(fd, ".", FOLDER);
    DIR *folder = again >= 0 ? fdopendir(again) : NULL;
    if (folder == NULL) {
        int failed = errno;
        if (again >= 0) {
            (void)close(again); // nothing was written, so an error loses nothing
        }
        return error_from_errno(failed);
    }
    enum err err = ERR_OK;
    for (struct dirent *e = readdir(folder); e != NULL && err == ERR_OK; e = readdir(folder)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            err = give_file(fd, e->d_name, options);
        }
    }
    (void)closedir(folder); // nothing was written, so an error loses nothing
    return err;
}

static enum err give_cache(int fd, const struct store_prepare_options *options)
{
    check(fd >= 0 && options->has_owner);
    enum err err = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(cache_folders) && err == ERR_OK; i++) {
        int folder = openat(fd, cache_folders[i], FOLDER);
        if (folder >= 0) {
            err = give_entries(folder, options);
            (void)close(folder); // nothing was written, so an error loses nothing
        } else if (errno != ENOENT) {
            err = error_from_errno(errno);
        }
    }
    return err == ERR_OK ? give_entries(fd, options) : err;
}

// Gives the directory to the new owner. Changes the mode first, because after a change of the owner
// this user can no longer change it. If no owner is given, leaves a directory of another user (such
// as the root of a volume) unchanged; the server then uses a private folder in it.
static enum err give_directory(int fd, const struct store_prepare_options *options)
{
    check(fd >= 0);
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return error_from_errno(errno);
    }
    if (!options->has_owner && geteuid() != 0 && st.st_uid != geteuid()) {
        return faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) == 0 ? ERR_OK : error_from_errno(errno);
    }
    if ((st.st_mode & 07777) != 0700 && fchmod(fd, 0700) != 0) {
        return error_from_errno(errno);
    }
    if (options->has_owner && (st.st_uid != options->uid || st.st_gid != options->gid) &&
        fchown(fd, options->uid, options->gid) != 0) {
        return error_from_errno(errno);
    }
    return ERR_OK;
}

// --- Removing an older cache ---------------------------------------------------------------------

static enum err wipe_folder(int fd, const char *name)
{
    check(fd >= 0 && strchr(name, '/') == NULL);
    int folder_fd = openat(fd, name, FOLDER);
    DIR *folder = folder_fd >= 0 ? fdopendir(folder_fd) : NULL;
    if (folder == NULL) {
        int failed = errno;
        if (folder_fd >= 0) {
            (void)close(folder_fd); // nothing was written, so an error loses nothing
        }
        return failed == ENOENT ? ERR_OK : error_from_errno(failed);
    }
    enum err err = ERR_OK;
    for (struct dirent *e = readdir(folder); e != NULL && err == ERR_OK; e = readdir(folder)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            unlinkat(folder_fd, e->d_name, 0) != 0) {
            err = error_from_errno(errno);
        }
    }
    (void)closedir(folder); // nothing was written, so an error loses nothing
    if (err == ERR_OK && unlinkat(fd, name, AT_REMOVEDIR) != 0) {
        err = error_from_errno(errno);
    }
    return err;
}

// Removes an older cache. Removes `format` last: as long as it exists, the directory counts as a
// cache, so the removal can be repeated.
static enum err wipe(int fd, const char *path, struct buf *ret_what)
{
    char other[NAME_MAX + 1];
    if (store_dir_other(fd, skip_of_cache, other)) {
        buf_printf(ret_what,
                   "%s also contains \"%s\", which does not belong to a cache: remove that, or the "
                   "whole directory, yourself",
                   path, other);
        return ERR_INVALID;
    }
    enum err err = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(cache_folders) && err == ERR_OK; i++) {
        err = wipe_folder(fd, cache_folders[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(cache_files) && err == ERR_OK; i++) {
        if (unlinkat(fd, cache_files[i], 0) != 0 && errno != ENOENT) {
            err = error_from_errno(errno);
        }
    }
    if (err == ERR_OK && unlinkat(fd, "format", 0) != 0) {
        err = error_from_errno(errno);
    }
    return err;
}

// --- called by commands --------------------------------------------------------------------------

static enum err refuse(const struct store_prepare_options *options, const struct store_look *look,
                       struct buf *ret_what)
{
    check(ret_what->len == 0);
    if (look->is_in_use) {
        buf_printf(ret_what, "%s is in use by another process: stop it first", options->dir);
        return ERR_IN_USE;
    }
    switch (look->found) {
    case STORE_FOUND_OLDER:
        buf_printf(ret_what,
                   "%s holds a cache of format version %u, this program's is version %u: "
                   "--wipe-older removes it (what it held is fetched again)",
                   options->dir, look->version, STORE_FORMAT_VERSION_MIN);
        return ERR_FORMAT;
    case STORE_FOUND_NEWER:
        buf_printf(ret_what,
                   "%s holds a cache of format version %u, newer than this program's %u: it is "
                   "left alone; remove it yourself, or run the newer program",
                   options->dir, look->version, STORE_FORMAT_VERSION_MAX);
        return ERR_FORMAT;
    case STORE_FOUND_OTHER:
    case STORE_FOUND_CACHE:
    case STORE_FOUND_EMPTY:
    case STORE_FOUND_NOTHING:
    default:
        buf_printf(ret_what,
                   "%s is neither empty nor a cache: it is left alone; name another directory",
                   options->dir);
        return ERR_FORMAT;
    }
}

static enum err prepare_opened(int fd, const struct store_prepare_options *options,
                               const struct store_look *look, struct buf *ret_what)
{
    bool is_other_owner =
        options->has_owner && (look->uid != options->uid || look->gid != options->gid);
    enum err err = ERR_OK;
    const char *done = "ready";
    check(!look->is_in_use);
    check(look->found != STORE_FOUND_OTHER && look->found != STORE_FOUND_NEWER);
    check(look->found != STORE_FOUND_OLDER || options->wipe_older);
    if (look->found == STORE_FOUND_OLDER) {
        err = wipe(fd, options->dir, ret_what);
        done = "wiped a cache of an older format; ready";
    } else if (look->found == STORE_FOUND_CACHE && is_other_owner) {
        err = give_cache(fd, options);
        done = "gave the cache to its new owner; ready";
    }
    if (err == ERR_OK) {
        err = give_directory(fd, options);
    }
    if (err == ERR_OK) {
        buf_printf(ret_what, "%s: %s", options->dir, done);
    } else if (ret_what->len == 0) {
        buf_printf(ret_what, "%s: %s", options->dir, error_row(err)->text);
    }
    return err;
}

enum err store_prepare(const struct store_prepare_options *options, struct buf *ret_what)
{
    bool is_new = false;
    int fd = -1, lock = -1;
    enum err err = open_directory(options, &fd, &is_new, ret_what);
    if (err != ERR_OK) {
        return err;
    }
    if (fd < 0) {
        buf_printf(ret_what, "%s: belongs to its owner alone already; not looked into",
                   options->dir);
        return ERR_OK;
    }
    struct store_look look = {.found = STORE_FOUND_NOTHING};
    int inner = open_private(fd);
    int at = inner >= 0 ? inner : fd;
    look_at(at, &look);
    bool may_go_on = look.found == STORE_FOUND_EMPTY || look.found == STORE_FOUND_CACHE ||
                     (look.found == STORE_FOUND_OLDER && options->wipe_older);
    if (look.is_in_use || !may_go_on || !locks_take(at, &lock)) {
        err = refuse(options, &look, ret_what);
    } else {
        err = prepare_opened(at, options, &look, ret_what);
        if (err == ERR_OK && inner >= 0) {
            err = give_directory(fd, options);
        }
        locks_give_back(at, lock);
    }
    if (inner >= 0) {
        (void)close(inner); // nothing was written, so an error loses nothing
    }
    (void)close(fd); // nothing was written, so an error loses nothing
    return err;
}

void store_discard(const char *path)
{
    struct buf what;
    int lock, fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return; // the directory was never created
    }
    buf_init(&what, FORMAT_TEXT_MAX);
    unsigned version = store_dir_version(fd);
    if (version >= STORE_FORMAT_VERSION_MIN && version <= STORE_FORMAT_VERSION_MAX &&
        locks_take(fd, &lock)) {
        if (wipe(fd, path, &what) == ERR_OK) {
            (void)rmdir(path); // if this fails, a directory without a cache stays
        }
        locks_give_back(fd, lock);
    }
    buf_done(&what);
    (void)close(fd); // nothing was written, so an error loses nothing
}
