// SPDX-License-Identifier: Apache-2.0
// Listening Unix sockets, each with a file in the file system. Used at start and stop, on any
// thread. Blocks on the file system.
//
// The file never has wider permissions than requested. The socket gets its mode before bind(),
// which gives the file the same mode, less the umask. Nobody can connect before listen().
//
// A file left by a killed process is replaced. To do this, unix_socket_open() locks the folder, so
// that two processes that start at the same time do not remove each other's file. If this process
// has a permanent lock on the folder (the cache directory), that lock is enough.
//
// This code never removes a file that is not a socket, nor another user's socket. At stop, it does
// not remove a file that has become another process's socket.
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "loop/loop.h"

#define UNIX_BACKLOG 4096
#define LOCK_TRIES 200
#define LOCK_PAUSE_MS 10

// The folder that this process has locked permanently; inode 0: none.
static atomic_ullong locked_dev, locked_ino;

void unix_socket_folder_is_locked(int fd)
{
    struct stat st = {0};
    if (fd >= 0) {
        check(fstat(fd, &st) == 0);
    }
    atomic_store(&locked_dev, st.st_dev);
    atomic_store(&locked_ino, st.st_ino);
}

static bool folder_is_locked(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_ino == atomic_load(&locked_ino) &&
           st.st_dev == atomic_load(&locked_dev);
}

static void fd_close(int fd)
{
    if (fd >= 0) {
        (void)close(fd); // nothing was written, so an error loses nothing
    }
}

// Locks the folder of `path`. Sets *ret_fd to -1, without a lock, if the folder cannot be opened or
// does not support locks. Any other problem shows at bind(). Returns ERR_IN_USE if another process
// has the lock.
static enum err folder_lock(const char *path, int *ret_fd)
{
    char folder[UNIX_PATH_SIZE];
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    (void)snprintf(folder, sizeof(folder), "%.*s", len > 0 ? (int)len : 1, len > 0 ? path : ".");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_locked = fd >= 0 && folder_is_locked(fd);
    for (unsigned i = 0; fd >= 0 && !is_locked && flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK || i == LOCK_TRIES) {
            bool busy = errno == EWOULDBLOCK;
            fd_close(fd);
            fd = -1;
            if (busy) {
                return ERR_IN_USE;
            }
            break;
        }
        (void)poll(NULL, 0, LOCK_PAUSE_MS); // this code runs at start-up, never on a worker
    }
    *ret_fd = fd;
    return ERR_OK;
}

static bool socket_is_stale(const struct sockaddr_un *un)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)un, sizeof(*un)) != 0 &&
                 errno == ECONNREFUSED;
    fd_close(fd);
    return stale;
}

static enum err name_make_free(const struct sockaddr_un *un, struct buf *ret_why)
{
    struct stat st;
    const char *trouble = NULL;
    if (lstat(un->sun_path, &st) != 0) {
        return ERR_OK; // the name is free, or bind() reports the problem
    }
    if (!S_ISSOCK(st.st_mode)) {
        trouble = "the path exists and is not a socket";
    } else if (!socket_is_stale(un)) {
        trouble = "another server listens there";
    } else if (st.st_uid != geteuid()) {
        trouble = "another user's socket is there";
    } else if (unlink(un->sun_path) != 0) {
        trouble = strerror(errno);
    }
    if (trouble != NULL) {
        buf_printf(ret_why, "%s: %s (choose another path)", un->sun_path, trouble);
    }
    return trouble == NULL ? ERR_OK : ERR_IN_USE;
}

// Restores the mode bits that the umask removed. Works on a descriptor, so that a symbolic link
// cannot make it change another file.
static bool name_settle(struct unix_listener *u, unsigned mode)
{
    char link[32];
    struct stat st;
    int fd = open(u->path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    bool ok = fd >= 0 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
    if (ok) {
        u->dev = st.st_dev;
        u->ino = st.st_ino;
        ok = ((st.st_mode & 0777) == mode || chmod(link, mode) == 0) && fstat(fd, &st) == 0 &&
             (st.st_mode & 0777) == mode;
    }
    fd_close(fd);
    return ok;
}

static enum err bind_and_listen(struct unix_listener *u, const struct sockaddr_un *un,
                                unsigned mode, struct buf *ret_why)
{
    u->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool bound = u->fd >= 0 && fchmod(u->fd, mode) == 0 &&
                 bind(u->fd, (const struct sockaddr *)un, sizeof(*un)) == 0;
    if (bound && name_settle(u, mode) && listen(u->fd, UNIX_BACKLOG) == 0) {
        return ERR_OK;
    }
    int error = errno;
    buf_printf(ret_why, "%s: %s", u->path, strerror(error));
    if (bound) {
        unix_socket_remove(u);
    }
    fd_close(u->fd);
    u->fd = -1;
    return error == EADDRINUSE                 ? ERR_IN_USE
           : error == EACCES || error == EPERM ? ERR_PERMISSION
                                               : ERR_INVALID;
}

enum err unix_socket_open(const char *path, unsigned mode, struct unix_listener *ret_listener,
                          struct buf *ret_why)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct unix_listener u = {.fd = -1};
    int lock = -1;
    static_assert(UNIX_PATH_SIZE == sizeof(un.sun_path), "one byte is for the end");
    check((mode & ~0777u) == 0);
    if (path[0] == '\0' || strlen(path) >= sizeof(un.sun_path)) {
        buf_printf(ret_why, "%s: a path of 1 to %zu bytes is needed", path,
                   sizeof(un.sun_path) - 1);
        return ERR_INVALID;
    }
    memcpy(un.sun_path, path, strlen(path));
    memcpy(u.path, un.sun_path, sizeof(u.path));
    enum err err = folder_lock(path, &lock);
    if (err != ERR_OK) {
        buf_printf(ret_why, "%s: another process holds a lock on the folder", path);
        return err;
    }
    err = name_make_free(&un, ret_why);
    if (err == ERR_OK) {
        err = bind_and_listen(&u, &un, mode, ret_why);
    }
    fd_close(lock);
    if (err == ERR_OK) {
        *ret_listener = u;
    }
    return err;
}

void unix_socket_remove(const struct unix_listener *listener)
{
    struct stat st;
    if (listener->path[0] != '\0' && lstat(listener->path, &st) == 0 &&
        st.st_dev == listener->dev && st.st_ino == listener->ino && S_ISSOCK(st.st_mode)) {
        (void)unlink(listener->path); // the file may already be gone
    }
}
