// SPDX-License-Identifier: Apache-2.0
// Where the private servers of `forebay run` have their admin sockets: each in a folder
// forebay-XXXXXX of the runtime directory or of /tmp. Commands in another terminal find them there.
#include "commands/commands.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_NAME "admin.sock"
#define LOCK_NAME "run.lock"
#define ASK_TIMEOUT_MS 500u

// Returns the directory of the folders. It is NULL if there is none, or if the path of a socket
// there would be too long.
static const char *runtime_directory(void)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");
    bool fits = dir != NULL && dir[0] == '/' &&
                strlen(dir) + sizeof("/forebay-XXXXXX/" SOCKET_NAME) <=
                    sizeof(((struct sockaddr_un *)NULL)->sun_path);
    return fits && access(dir, W_OK) == 0 ? dir : NULL;
}

// --- Folders -------------------------------------------------------------------------------------
//
// A run holds a lock on a file in its folder. The kernel releases it when the run ends in whatever
// way. So a folder with such a file and without a lock was left by a run that was killed.

static void remove_files(int folder_fd, const char *folder)
{
    (void)unlinkat(folder_fd, SOCKET_NAME, 0); // the server removes it if it stops normally
    (void)unlinkat(folder_fd, LOCK_NAME, 0);
    (void)rmdir(folder); // if it holds anything else, it stays
}

static void sweep_folder(const char *folder)
{
    struct stat st;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool is_ours = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid();
    int lock = is_ours ? openat(fd, LOCK_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0) {
        remove_files(fd, folder);
    }
    if (lock >= 0) {
        (void)close(lock); // releases the lock
    }
    if (fd >= 0) {
        (void)close(fd); // nothing was written
    }
}

static void sweep(const char *dir)
{
    char pattern[COMMANDS_ADDRESS_MAX];
    glob_t found;
    int len = snprintf(pattern, sizeof(pattern), "%s/forebay-*/" LOCK_NAME, dir);
    if (len >= (int)sizeof(pattern) || glob(pattern, GLOB_NOSORT, NULL, &found) != 0) {
        return;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        *strrchr(found.gl_pathv[i], '/') = '\0';
        sweep_folder(found.gl_pathv[i]);
    }
    globfree(&found);
}

// Makes the file with the lock. It gets its name when it is locked, so no other run finds it
// without the lock.
static int lock_folder(const char *folder)
{
    char before[COMMANDS_ADDRESS_MAX], after[COMMANDS_ADDRESS_MAX];
    (void)snprintf(before, sizeof(before), "%s/" LOCK_NAME ".new", folder);
    (void)snprintf(after, sizeof(after), "%s/" LOCK_NAME, folder);
    int fd = open(before, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) != 0 || rename(before, after) != 0)) {
        (void)close(fd); // nothing was written
        fd = -1;
    }
    return fd;
}

int commands_run_make(char *ret_folder, char *ret_admin, size_t size)
{
    const char *dir = runtime_directory();
    dir = dir != NULL ? dir : "/tmp";
    sweep(dir);
    (void)snprintf(ret_folder, size, "%s/forebay-XXXXXX", dir);
    if (mkdtemp(ret_folder) == NULL) {
        ret_folder[0] = '\0';
        return -1;
    }
    (void)snprintf(ret_admin, size, "unix:%s/" SOCKET_NAME, ret_folder);
    return lock_folder(ret_folder);
}

void commands_run_remove(const char *folder)
{
    int fd = folder[0] != '\0' ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        remove_files(fd, folder);
        (void)close(fd); // nothing was written
    }
}

// --- The hint ------------------------------------------------------------------------------------

// Returns true if a server of this user answers at the socket.
static bool answers(const char *address)
{
    struct stat status;
    struct buf body;
    unsigned code = 0;
    if (lstat(address + strlen("unix:"), &status) != 0 || !S_ISSOCK(status.st_mode) ||
        status.st_uid != geteuid()) {
        return false;
    }
    buf_init(&body, ADMIN_ANSWER_MAX);
    bool is_there =
        admin_client_get(address, "/livez", ASK_TIMEOUT_MS, &code, &body) == ERR_OK && code == 200;
    buf_done(&body);
    return is_there;
}

static bool find(const char *dir, char ret_address[COMMANDS_ADDRESS_MAX])
{
    char pattern[COMMANDS_ADDRESS_MAX];
    glob_t found;
    bool is_found = false;
    if (snprintf(pattern, sizeof(pattern), "%s/forebay-*/" SOCKET_NAME, dir) >=
            (int)sizeof(pattern) ||
        glob(pattern, GLOB_NOSORT, NULL, &found) != 0) {
        return false;
    }
    for (size_t i = 0; i < found.gl_pathc && !is_found; i++) {
        int len = snprintf(ret_address, COMMANDS_ADDRESS_MAX, "unix:%s", found.gl_pathv[i]);
        is_found = len < COMMANDS_ADDRESS_MAX && answers(ret_address);
    }
    globfree(&found);
    return is_found;
}

const char *commands_run_hint(void)
{
    static char hint[COMMANDS_ADDRESS_MAX + 64]; // only the main thread uses it
    char address[COMMANDS_ADDRESS_MAX];
    const char *dir = runtime_directory();
    hint[0] = '\0';
    if ((dir != NULL && find(dir, address)) || find("/tmp", address)) {
        (void)snprintf(hint, sizeof(hint), "; a forebay run of yours answers at --admin %s",
                       commands_visible(address, strlen(address)));
    }
    return hint;
}
