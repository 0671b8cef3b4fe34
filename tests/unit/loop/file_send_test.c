// SPDX-License-Identifier: Apache-2.0
// File pages to a socket: the bytes are right however little the socket takes. No page is sent that
// came from the device or lost its mark while it was taken.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop/loop.h"
#include "loop_fixture.h"
#include "test.h"

#define FILE_BYTES (1u << 20)

struct rig {
    struct loop *loop;
    char dir[256];
    char *bytes;
    struct file_range range;
    int sockets[2]; // [0] is sent to, [1] read from
    uint64_t skip, len;
    int64_t result;
};

static void rig_begin(struct rig *rig)
{
    *rig = (struct rig){.bytes = malloc(FILE_BYTES), .len = FILE_BYTES};
    cr_assert(rig->bytes != NULL);
    rig->loop = fixture_loop(DISK_ENGINE_THREADS, 1, 8);
    fixture_dir_make(rig->dir, sizeof(rig->dir));
    fixture_fill(rig->bytes, FILE_BYTES, 7);
    rig->range.fd = fixture_file(rig->dir, "f", rig->bytes, FILE_BYTES);
    rig->range.len = FILE_BYTES;
    cr_assert(fsync(rig->range.fd) == 0);
    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, rig->sockets) ==
              0);
}

static void rig_end(struct rig *rig)
{
    close(rig->sockets[0]);
    close(rig->sockets[1]);
    close(rig->range.fd);
    fixture_loop_end(&rig->loop);
    fixture_dir_remove(rig->dir);
    free(rig->bytes);
}

static void send_on_worker(struct worker *w, void *ctx)
{
    struct rig *rig = ctx;
    rig->result = file_send_range(w, &rig->range, rig->skip, rig->len, rig->sockets[0]);
}

static int64_t rig_send(struct rig *rig, uint64_t skip, uint64_t len)
{
    rig->skip = skip;
    rig->len = len;
    fixture_run_on(loop_worker(rig->loop, 0), send_on_worker, rig);
    return rig->result;
}

// Proves that a socket that is full again and again gets every byte once, in order.
Test(file_send, whole_through_a_full_socket)
{
    struct rig rig;
    rig_begin(&rig);
    static const uint64_t from[] = {0, 1, 4095, 4097, 65536, 123457};
    char *got = malloc(FILE_BYTES);
    cr_assert(got != NULL);
    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        uint64_t sent = from[i], received = from[i];
        while (received < FILE_BYTES) {
            int64_t n = sent < FILE_BYTES ? rig_send(&rig, sent, FILE_BYTES - sent) : 0;
            cr_assert(n >= 0 || n == -EAGAIN, "%lld", (long long)n);
            sent += n > 0 ? (uint64_t)n : 0;
            ssize_t m = read(rig.sockets[1], got + received, FILE_BYTES - received);
            cr_assert(m > 0);
            received += (uint64_t)m;
        }
        cr_assert(memcmp(got + from[i], rig.bytes + from[i], FILE_BYTES - from[i]) == 0);
    }
    free(got);
    rig_end(&rig);
}

static int asked, good_times;

static bool good_for_a_while(const struct file_range *range, uint64_t offset, uint64_t len)
{
    cr_assert(range->verify_unit == 17);
    cr_assert(offset + len <= FILE_BYTES);
    return asked++ < good_times;
}

static void expect_nothing_arrived(struct rig *rig)
{
    char byte;
    cr_assert(read(rig->sockets[1], &byte, 1) < 0 && errno == EAGAIN);
}

// Proves that the owner is asked after the pages were taken, and that its refusal keeps them from
// being sent.
Test(file_send, pages_that_lost_their_mark_are_not_sent)
{
    struct rig rig;
    rig_begin(&rig);
    rig.range.is_good = good_for_a_while;
    rig.range.verify_unit = 17;
    good_times = 0;
    cr_assert(rig_send(&rig, 0, 8192) == -ESTALE);
    cr_assert(asked == 1);
    expect_nothing_arrived(&rig);
    good_times = 100;
    cr_assert(rig_send(&rig, 5, 8192) == 8192);
    char got[8192];
    cr_assert(read(rig.sockets[1], got, sizeof(got)) == (ssize_t)sizeof(got));
    cr_assert(memcmp(got, rig.bytes + 5, sizeof(got)) == 0,
              "nothing is left over from the first try");
    rig_end(&rig);
}

static void read_a_page(struct worker *w, void *ctx)
{
    struct rig *rig = ctx;
    (void)w;
    char byte;
    struct rusage before, after;
    (void)posix_fadvise(rig->range.fd, 0, 0, POSIX_FADV_DONTNEED);
    cr_assert(getrusage(RUSAGE_THREAD, &before) == 0);
    cr_assert(pread(rig->range.fd, &byte, 1, FILE_BYTES / 2) == 1);
    cr_assert(getrusage(RUSAGE_THREAD, &after) == 0);
    rig->result = after.ru_inblock > before.ru_inblock;
    (void)posix_fadvise(rig->range.fd, 0, 0, POSIX_FADV_DONTNEED);
}

// Proves that pages which had to be read from the device are not sent. The next try finds them in
// memory, and the owner decides.
Test(file_send, pages_that_came_from_the_device_are_not_sent)
{
    struct rig rig;
    rig_begin(&rig);
    fixture_run_on(loop_worker(rig.loop, 0), read_a_page, &rig);
    if (rig.result == 0) {
        fprintf(stderr, "file_send: not run: this file system counts no reads from a device\n");
    } else {
        cr_assert(rig_send(&rig, 0, 4096) == -ESTALE);
        expect_nothing_arrived(&rig);
        cr_assert(rig_send(&rig, 0, 4096) == 4096);
    }
    rig_end(&rig);
}

struct elsewhere {
    struct rig *rig;
    struct disk_op op;
    struct iovec iov;
    struct signal over;
    char byte;
    int fd;
    bool is_counted; // the read came from the device, and the kernel counts it for the worker
};

static void read_elsewhere(struct worker *w, void *ctx)
{
    (void)w;
    struct elsewhere *e = ctx;
    struct rusage before, after;
    (void)posix_fadvise(e->fd, 0, 0, POSIX_FADV_DONTNEED);
    cr_assert(getrusage(RUSAGE_THREAD, &before) == 0);
    cr_assert(pread(e->fd, &e->byte, 1, 0) == 1);
    cr_assert(getrusage(RUSAGE_THREAD, &after) == 0);
    e->is_counted = after.ru_inblock > before.ru_inblock;
}

static void on_elsewhere(struct disk_op *op)
{
    signal_raise(&container_of(op, struct elsewhere, op)->over);
}

static void start_elsewhere(struct worker *w, void *ctx)
{
    struct elsewhere *e = ctx;
    (void)posix_fadvise(e->fd, 0, 0, POSIX_FADV_DONTNEED);
    e->iov = (struct iovec){&e->byte, 1};
    e->op = (struct disk_op){
        .kind = DISK_READ, .fd = e->fd, .iov = &e->iov, .iov_count = 1, .done = on_elsewhere};
    disk_io_start(w, &e->op);
}

static void expect_sent(struct rig *rig)
{
    char got[4096];
    cr_assert_eq(rig_send(rig, 0, sizeof(got)), sizeof(got));
    cr_assert(read(rig->sockets[1], got, sizeof(got)) == (ssize_t)sizeof(got));
    cr_assert(memcmp(got, rig->bytes, sizeof(got)) == 0);
}

// Proves that an unannounced read on the worker's thread keeps the next pages from being sent,
// once, and that a read of the disk engine does not.
static void reads_in_between(enum disk_engine engine)
{
    struct rig rig;
    rig_begin(&rig);
    fixture_loop_end(&rig.loop);
    rig.loop = fixture_loop(engine, 1, 8);
    if (rig.loop == NULL) {
        rig.loop = fixture_loop(DISK_ENGINE_THREADS, 1, 8);
        rig_end(&rig);
        return;
    }
    struct worker *w = loop_worker(rig.loop, 0);
    struct elsewhere e = {.rig = &rig, .fd = fixture_file(rig.dir, "g", rig.bytes, FILE_BYTES)};
    signal_init(&e.over);
    cr_assert(fsync(e.fd) == 0);
    expect_sent(&rig);
    fixture_run_on(w, read_elsewhere, &e);
    if (e.is_counted) {
        cr_assert_eq(rig_send(&rig, 0, 4096), -ESTALE);
        expect_nothing_arrived(&rig);
    }
    for (unsigned i = 0; i < 3; i++) {
        expect_sent(&rig);
        fixture_run_on(w, start_elsewhere, &e);
        signal_wait(&e.over);
    }
    expect_sent(&rig);
    signal_done(&e.over);
    close(e.fd);
    rig_end(&rig);
}

Test(file_send, reads_in_between_threads)
{
    reads_in_between(DISK_ENGINE_THREADS);
}

Test(file_send, reads_in_between_uring)
{
    reads_in_between(DISK_ENGINE_URING);
}

// Proves that a file that ends before its range sends nothing, and a peer that left is an error.
Test(file_send, ends)
{
    struct rig rig;
    rig_begin(&rig);
    rig.range.len = FILE_BYTES + 10;
    cr_assert(rig_send(&rig, FILE_BYTES, 10) == -ESTALE);
    close(rig.sockets[1]);
    cr_assert(rig_send(&rig, 0, 10) == -EPIPE);
    rig.sockets[1] = dup(rig.sockets[0]);
    rig_end(&rig);
}
