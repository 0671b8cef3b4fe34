// SPDX-License-Identifier: Apache-2.0
// Where the private servers of `forebay run` have their admin sockets: each in a folder
// forebay-XXXXXX of the runtime directory or of /tmp. Commands in another terminal find them there.
#include "commands/commands.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define SOCKET_NAME "admin.sock"
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

bool commands_run_make(char *ret_folder, char *ret_admin, size_t size)
{
    const char *dir = runtime_directory();
    (void)snprintf(ret_folder, size, "%s/forebay-XXXXXX", dir != NULL ? dir : "/tmp");
    if (mkdtemp(ret_folder) == NULL) {
        ret_folder[0] = '\0';
        return false;
    }
    (void)snprintf(ret_admin, size, "unix:%s/" SOCKET_NAME, ret_folder);
    return true;
}

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
