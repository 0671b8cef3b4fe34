// SPDX-License-Identifier: Apache-2.0
#include "loop_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

struct loop *fixture_loop(enum disk_engine engine, unsigned worker_count, unsigned queue_depth)
{
    struct loop_options options = {
        .worker_count = worker_count, .engine = engine, .disk_queue_depth = queue_depth};
    struct loop *loop = NULL;
    struct buf why;
    buf_init(&why, 1000);
    if (loop_new(&options, &loop, &why) != ERR_OK) {
        fprintf(stderr, "io_uring: not run: %s\n", buf_cstr(&why));
        cr_assert(engine == DISK_ENGINE_URING);
        buf_done(&why);
        return NULL;
    }
    buf_done(&why);
    cr_assert(engine == DISK_ENGINE_AUTO || loop_engine(loop) == engine);
    cr_assert(loop_start(loop) == ERR_OK);
    return loop;
}

void fixture_loop_end(struct loop **loop)
{
    loop_stop(*loop);
    loop_free(*loop);
    *loop = NULL;
}

void signal_init(struct signal *signal)
{
    cr_assert(sem_init(&signal->sem, 0, 0) == 0);
}

void signal_raise(struct signal *signal)
{
    cr_assert(sem_post(&signal->sem) == 0);
}

void signal_wait(struct signal *signal)
{
    struct timespec until;
    cr_assert(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 60;
    int rc;
    do {
        rc = sem_timedwait(&signal->sem, &until);
    } while (rc != 0 && errno == EINTR);
    cr_assert(rc == 0);
}

void signal_done(struct signal *signal)
{
    cr_assert(sem_destroy(&signal->sem) == 0);
}

struct run {
    struct message message;
    void (*fn)(struct worker *w, void *ctx);
    void *ctx;
    struct signal over;
};

static void on_run(struct worker *w, struct message *message)
{
    struct run *run = container_of(message, struct run, message);
    cr_assert(worker_current() == w);
    run->fn(w, run->ctx);
    signal_raise(&run->over);
}

void fixture_run_on(struct worker *w, void (*fn)(struct worker *w, void *ctx), void *ctx)
{
    // On the heap, because the worker's sem_post may still touch the semaphore after our wait has
    // ended.
    struct run *run = calloc(1, sizeof(*run));
    cr_assert(run != NULL);
    run->message.deliver = on_run;
    run->fn = fn;
    run->ctx = ctx;
    signal_init(&run->over);
    mailbox_send_from_any_thread(w, &run->message);
    signal_wait(&run->over);
    signal_done(&run->over);
    free(run);
}

void fixture_dir_make(char *ret_path, size_t cap)
{
    const char *tmp = getenv("TMPDIR");
    int len = snprintf(ret_path, cap, "%s/forebay-loop-XXXXXX", tmp != NULL ? tmp : "/tmp");
    cr_assert(len > 0 && (size_t)len < cap);
    cr_assert(mkdtemp(ret_path) != NULL);
}

void fixture_dir_remove(const char *path)
{
    DIR *dir = opendir(path);
    cr_assert(dir != NULL);
    struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            cr_assert(unlinkat(dirfd(dir), entry->d_name, 0) == 0);
        }
    }
    closedir(dir);
    cr_assert(rmdir(path) == 0);
}

int fixture_file(const char *dir, const char *name, const void *bytes, size_t len)
{
    char path[4096];
    int path_len = snprintf(path, sizeof(path), "%s/%s", dir, name);
    cr_assert(path_len > 0 && (size_t)path_len < sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    cr_assert(fd >= 0);
    cr_assert(len == 0 || pwrite(fd, bytes, len, 0) == (ssize_t)len);
    return fd;
}

void fixture_fill(char *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * 1103515245u + 12345u;
        bytes[i] = (char)(seed >> 16);
    }
}
