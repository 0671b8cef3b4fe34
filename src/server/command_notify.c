// SPDX-License-Identifier: Apache-2.0
#include "server/command_notify.h"

#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <fcntl.h>

#define BARRIER_MS 5000

// Sends `state` and the descriptor `fd` (-1: none) to NOTIFY_SOCKET. Ignores errors.
static void send_state(const char *state, int fd)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = path != NULL ? strlen(path) : 0;
    if (len == 0 || (path[0] != '/' && path[0] != '@') || len >= sizeof(address.sun_path)) {
        return;
    }
    memcpy(address.sun_path, path, len);
    if (path[0] == '@') {
        address.sun_path[0] = '\0';
    }
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    char text[128];
    size_t text_len = strnlen(state, sizeof(text));
    memcpy(text, state, text_len);
    struct iovec iov = {.iov_base = text, .iov_len = text_len};
    struct msghdr message = {.msg_name = &address,
                             .msg_namelen =
                                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len),
                             .msg_iov = &iov,
                             .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    int to = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (to >= 0) {
        (void)!sendmsg(to, &message, MSG_NOSIGNAL);
        (void)close(to);
    }
}

void command_notify(const char *state)
{
    send_state(state, -1);
}

void command_notify_barrier(void)
{
    int ends[2];
    if (getenv("NOTIFY_SOCKET") == NULL || pipe2(ends, O_CLOEXEC) != 0) {
        return;
    }
    send_state("BARRIER=1", ends[1]);
    (void)close(ends[1]); // from here on only the service manager has this end
    struct pollfd end = {.fd = ends[0]};
    (void)poll(&end, 1, BARRIER_MS); // hangs up when the service manager closes its copy
    (void)close(ends[0]);
}
