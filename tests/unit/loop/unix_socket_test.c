// SPDX-License-Identifier: Apache-2.0
// Proves: a unix listener's file has exactly its mode whatever the umask, and is never more open.
// If several processes start at once, one of them replaces a left-over file. Files of others are
// never removed.
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "loop/loop.h"
#include "test.h"

static char folder[80], path[100];

static void begin(void)
{
    // A socket's name must be short. If TMPDIR is too long, /tmp is used.
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/forebay-unix-XXXXXX",
             tmp != NULL && strlen(tmp) < 50 ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
}

static void end(void)
{
    unlink(path);
    cr_assert_eq(rmdir(folder), 0, "nothing else is left in the folder");
}

static enum err try_open(unsigned mode, struct unix_listener *ret_listener)
{
    struct buf why;
    buf_init(&why, 512);
    enum err err = unix_socket_open(path, mode, ret_listener, &why);
    cr_assert_eq(err == ERR_OK, why.len == 0, "%s", buf_cstr(&why));
    cr_assert(err == ERR_OK || strstr(buf_cstr(&why), path) != NULL);
    buf_done(&why);
    return err;
}

static void stop(struct unix_listener *u)
{
    unix_socket_remove(u);
    close(u->fd);
}

static unsigned mode_of(const char *name)
{
    struct stat st;
    cr_assert_eq(lstat(name, &st), 0);
    return st.st_mode & 07777;
}

static void leave_behind(int type, bool alive)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    memcpy(un.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, type, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
    if (!alive) {
        close(fd);
    } else if (type == SOCK_STREAM) {
        cr_assert_eq(listen(fd, 1), 0);
    }
}

Test(unix_socket, mode_is_exact_whatever_the_umask)
{
    static const unsigned modes[] = {0600, 0660, 0666}, masks[] = {0, 022, 077, 0777};
    begin();
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        for (size_t j = 0; j < ARRAY_LEN(masks); j++) {
            struct unix_listener u;
            mode_t before = umask((mode_t)masks[j]);
            enum err err = try_open(modes[i], &u);
            umask(before);
            cr_assert_eq(err, ERR_OK);
            cr_assert_eq(mode_of(path), modes[i], "%o under %o", modes[i], masks[j]);
            stop(&u);
            cr_assert_neq(access(path, F_OK), 0);
        }
    }
    end();
}

static atomic_bool watching;

static void *watch(void *ctx)
{
    unsigned *seen = ctx;
    struct stat st;
    while (atomic_load(&watching)) {
        if (lstat(path, &st) == 0) {
            *seen |= st.st_mode & 0777;
        }
    }
    return NULL;
}

Test(unix_socket, never_more_open_than_its_mode)
{
    pthread_t thread;
    unsigned seen = 0;
    begin();
    mode_t before = umask(0);
    atomic_store(&watching, true);
    cr_assert_eq(pthread_create(&thread, NULL, watch, &seen), 0);
    for (unsigned i = 0; i < 300; i++) {
        struct unix_listener u;
        cr_assert_eq(try_open(0600, &u), ERR_OK);
        stop(&u);
    }
    atomic_store(&watching, false);
    pthread_join(thread, NULL);
    umask(before);
    cr_assert_eq(seen & ~0600u, 0, "%o", seen);
    end();
}

Test(unix_socket, files_and_sockets_of_others_stay)
{
    struct unix_listener u;
    char other[120];
    begin();
    snprintf(other, sizeof(other), "%s/other", folder);

    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    cr_assert_eq(try_open(0600, &u), ERR_IN_USE, "a file");
    cr_assert_eq(unlink(path), 0);

    cr_assert_eq(mkdir(path, 0700), 0);
    cr_assert_eq(try_open(0600, &u), ERR_IN_USE, "a folder");
    cr_assert_eq(rmdir(path), 0);

    cr_assert_eq(symlink(other, path), 0);
    cr_assert_eq(try_open(0600, &u), ERR_IN_USE, "a link");
    cr_assert_eq(unlink(path), 0);
    cr_assert_neq(access(other, F_OK), 0);

    leave_behind(SOCK_STREAM, true);
    cr_assert_eq(try_open(0600, &u), ERR_IN_USE, "a live socket");
    cr_assert_eq(unlink(path), 0);
    leave_behind(SOCK_DGRAM, true);
    cr_assert_eq(try_open(0600, &u), ERR_IN_USE, "a live datagram socket");
    cr_assert_eq(unlink(path), 0);

    leave_behind(SOCK_STREAM, false);
    if (geteuid() == 0) {
        cr_assert_eq(lchown(path, 12345, (gid_t)-1), 0);
        cr_assert_eq(try_open(0600, &u), ERR_IN_USE, "another user's");
        cr_assert_eq(access(path, F_OK), 0);
        cr_assert_eq(lchown(path, 0, (gid_t)-1), 0);
    }
    cr_assert_eq(try_open(0600, &u), ERR_OK, "a left-over one of ours");

    // Somebody else's by now.
    cr_assert_eq(rename(path, other), 0);
    leave_behind(SOCK_STREAM, false);
    stop(&u);
    cr_assert_eq(access(path, F_OK), 0);
    cr_assert_eq(unlink(other), 0);
    end();
}

#define STARTERS 8

static pthread_barrier_t all_ready;

static void *starter(void *ctx)
{
    struct unix_listener *u = ctx;
    struct buf why;
    buf_init(&why, 512);
    pthread_barrier_wait(&all_ready);
    if (unix_socket_open(path, 0600, u, &why) != ERR_OK) {
        u->fd = -1;
    }
    buf_done(&why);
    return NULL;
}

Test(unix_socket, one_of_all_that_start_at_once_gets_the_socket)
{
    begin();
    cr_assert_eq(pthread_barrier_init(&all_ready, NULL, STARTERS), 0);
    for (unsigned round = 0; round < 20; round++) {
        pthread_t threads[STARTERS];
        struct unix_listener u[STARTERS];
        unsigned open_count = 0, winner = 0;
        leave_behind(SOCK_STREAM, false);
        for (unsigned i = 0; i < STARTERS; i++) {
            cr_assert_eq(pthread_create(&threads[i], NULL, starter, &u[i]), 0);
        }
        for (unsigned i = 0; i < STARTERS; i++) {
            pthread_join(threads[i], NULL);
            open_count += u[i].fd >= 0;
            winner = u[i].fd >= 0 ? i : winner;
        }
        cr_assert_eq(open_count, 1, "%u of %u", open_count, STARTERS);
        stop(&u[winner]);
    }
    pthread_barrier_destroy(&all_ready);
    end();
}
