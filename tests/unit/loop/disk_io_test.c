// SPDX-License-Identifier: Apache-2.0
// The disk interface on both engines: every kind of operation, short transfers, the queue depth,
// cancelling, the fault hook; reads without waiting and residency.
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "loop/loop_private.h"
#include "loop_fixture.h"
#include "stats/stats.h"
#include "test.h"

// Both engines run each of these; a refused io_uring says so loudly.
#define BOTH_ENGINES(name)                                                                         \
    static void name(struct rig *rig);                                                             \
    Test(disk_io, name##_threads)                                                                  \
    {                                                                                              \
        rig_run(DISK_ENGINE_THREADS, name);                                                        \
    }                                                                                              \
    Test(disk_io, name##_uring)                                                                    \
    {                                                                                              \
        rig_run(DISK_ENGINE_URING, name);                                                          \
    }                                                                                              \
    static void name(struct rig *rig)

#define QUEUE_DEPTH 8

struct rig {
    struct loop *loop;
    struct worker *worker;
    char dir[256];
};

static void rig_run(enum disk_engine engine, void (*fn)(struct rig *rig))
{
    struct rig rig = {0};
    disk_fault_set("");
    rig.loop = fixture_loop(engine, 1, QUEUE_DEPTH);
    if (rig.loop == NULL) {
        return;
    }
    rig.worker = loop_worker(rig.loop, 0);
    fixture_dir_make(rig.dir, sizeof(rig.dir));
    fn(&rig);
    fixture_loop_end(&rig.loop);
    fixture_dir_remove(rig.dir);
    disk_fault_set("");
}

// One operation run from here: started on the worker, waited for.
struct single {
    struct disk_op op;
    bool is_starting, is_over, is_cancelled_at_once;
    struct signal over;
};

static void on_single(struct disk_op *op)
{
    struct single *single = container_of(op, struct single, op);
    cr_assert(!single->is_starting); // never inside the starting call
    cr_assert(!single->is_over);     // exactly once
    cr_assert(worker_current() == op->worker);
    single->is_over = true;
    signal_raise(&single->over);
}

static void start_single(struct worker *w, void *ctx)
{
    struct single *single = ctx;
    single->op.done = on_single;
    single->is_over = false;
    single->is_starting = true;
    disk_io_start(w, &single->op);
    if (single->is_cancelled_at_once) {
        disk_io_cancel(&single->op);
        disk_io_cancel(&single->op);
    }
    single->is_starting = false;
}

static enum err run_single(struct rig *rig, struct single *single)
{
    signal_init(&single->over);
    fixture_run_on(rig->worker, start_single, single);
    signal_wait(&single->over);
    signal_done(&single->over);
    return single->op.err;
}

static int64_t read_at(struct rig *rig, int fd, char *buf, size_t len, uint64_t offset)
{
    struct iovec iov = {buf, len};
    struct single single = {
        .op = {.kind = DISK_READ, .fd = fd, .offset = offset, .iov = &iov, .iov_count = 1}};
    return run_single(rig, &single) == ERR_OK ? single.op.result : -single.op.errno_value;
}

// --- Every kind of operation ---------------------------------------------------------------------

// Proves open, fallocate, write, sync, statx, read and unlink end to end, their results and their
// errors.
BOTH_ENGINES(every_operation)
{
    int dir = open(rig->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(dir >= 0);
    struct single open_op = {.op = {.kind = DISK_OPEN,
                                    .fd = dir,
                                    .path = "file",
                                    .open_flags = O_RDWR | O_CREAT | O_EXCL,
                                    .open_mode = 0600}};
    cr_assert(run_single(rig, &open_op) == ERR_OK);
    int fd = (int)open_op.op.result;
    cr_assert(fd >= 0);
    cr_assert((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);

    struct single again = {.op = {.kind = DISK_OPEN,
                                  .fd = dir,
                                  .path = "file",
                                  .open_flags = O_RDWR | O_CREAT | O_EXCL,
                                  .open_mode = 0600}};
    cr_assert(run_single(rig, &again) == ERR_IO);
    cr_assert(again.op.errno_value == EEXIST);

    struct single allocate = {
        .op = {.kind = DISK_FALLOCATE, .fd = fd, .offset = 0, .length = 65536}};
    cr_assert(run_single(rig, &allocate) == ERR_OK);

    char head[] = "head", body[] = "-body-", back[11] = "";
    struct iovec iov[3] = {{head, 4}, {NULL, 0}, {body, 6}};
    struct single write_op = {
        .op = {.kind = DISK_WRITE, .fd = fd, .offset = 100, .iov = iov, .iov_count = 3}};
    cr_assert(run_single(rig, &write_op) == ERR_OK);
    cr_assert(write_op.op.result == 10);

    struct single sync_op = {.op = {.kind = DISK_SYNC, .fd = fd}};
    cr_assert(run_single(rig, &sync_op) == ERR_OK);

    cr_assert(read_at(rig, fd, back, 10, 100) == 10);
    cr_assert_str_eq(back, "head-body-");
    struct iovec parts[2] = {{back, 3}, {back + 3, 7}};
    memset(back, 0, sizeof(back));
    struct single readv_op = {
        .op = {.kind = DISK_READ, .fd = fd, .offset = 100, .iov = parts, .iov_count = 2}};
    cr_assert(run_single(rig, &readv_op) == ERR_OK);
    cr_assert_str_eq(back, "head-body-");

    struct statx st;
    struct single statx_op = {.op = {.kind = DISK_STATX, .fd = dir, .path = "file", .statx = &st}};
    cr_assert(run_single(rig, &statx_op) == ERR_OK);
    cr_assert(st.stx_size == 65536);
    memset(&st, 0, sizeof(st));
    struct single fstat_op = {.op = {.kind = DISK_STATX, .fd = fd, .path = "", .statx = &st}};
    cr_assert(run_single(rig, &fstat_op) == ERR_OK);
    cr_assert(st.stx_size == 65536);

    struct single unlink_op = {.op = {.kind = DISK_UNLINK, .fd = dir, .path = "file"}};
    cr_assert(run_single(rig, &unlink_op) == ERR_OK);
    cr_assert(run_single(rig, &unlink_op) == ERR_OK || unlink_op.op.err == ERR_NOT_FOUND);
    cr_assert(unlink_op.op.err == ERR_OK || unlink_op.op.errno_value == ENOENT);
    cr_assert(faccessat(dir, "file", F_OK, 0) != 0);
    close(fd);
    close(dir);

    cr_assert(read_at(rig, fd, back, 10, 0) == -EBADF);
}

// Proves that hung operations on an origin's files, more of them than there are slots and threads,
// delay neither the worker nor the cache's reads and writes.
BOTH_ENGINES(an_origin_that_hangs_holds_up_nobody)
{
    enum { HUNG = 3 * QUEUE_DEPTH };
    static struct single hung[HUNG];
    int dir = open(rig->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(dir >= 0);
    cr_assert(mkfifoat(dir, "pipe", 0600) == 0); // open() waits for a writer
    int fd = fixture_file(rig->dir, "cache", "0123456789", 10);
    memset(hung, 0, sizeof(hung));
    for (unsigned i = 0; i < HUNG; i++) {
        hung[i].op = (struct disk_op){.kind = DISK_OPEN,
                                      .fd = dir,
                                      .path = "pipe",
                                      .open_flags = O_RDONLY,
                                      .is_origins = true};
        signal_init(&hung[i].over);
        fixture_run_on(rig->worker, start_single, &hung[i]);
    }
    char back[11] = "";
    struct iovec iov = {(char[]){"ab"}, 2};
    struct single write_op = {
        .op = {.kind = DISK_WRITE, .fd = fd, .offset = 4, .iov = &iov, .iov_count = 1}};
    cr_assert(run_single(rig, &write_op) == ERR_OK);
    struct single sync_op = {.op = {.kind = DISK_SYNC, .fd = fd}};
    cr_assert(run_single(rig, &sync_op) == ERR_OK);
    cr_assert(read_at(rig, fd, back, 10, 0) == 10);
    cr_assert_str_eq(back, "0123ab6789");
    struct single open_op = {
        .op = {.kind = DISK_OPEN, .fd = dir, .path = "cache", .open_flags = O_RDONLY}};
    cr_assert(run_single(rig, &open_op) == ERR_OK);
    close((int)open_op.op.result);

    int writer = openat(dir, "pipe", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    cr_assert(writer >= 0);
    for (unsigned i = 0; i < HUNG; i++) {
        signal_wait(&hung[i].over);
        cr_assert(hung[i].op.err == ERR_OK);
        close((int)hung[i].op.result);
        signal_done(&hung[i].over);
    }
    close(writer);
    close(fd);
    close(dir);
}

// Proves that openat2's resolve flags are obeyed: a link out of the tree is refused.
BOTH_ENGINES(open_stays_beneath)
{
    int dir = open(rig->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(dir >= 0);
    cr_assert(symlinkat("/etc/passwd", dir, "out") == 0);
    struct single open_op = {.op = {.kind = DISK_OPEN,
                                    .fd = dir,
                                    .path = "out",
                                    .open_flags = O_RDONLY,
                                    .open_resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS}};
    cr_assert(run_single(rig, &open_op) != ERR_OK);
    cr_assert(open_op.op.errno_value == EXDEV);
    open_op.op.open_resolve = 0;
    cr_assert(run_single(rig, &open_op) == ERR_OK);
    close((int)open_op.op.result);
    close(dir);
}

// --- Lengths -------------------------------------------------------------------------------------

// Proves that a read past the end completes with the bytes that are there, and a read that begins
// after the end with none.
BOTH_ENGINES(read_stops_at_the_end)
{
    char bytes[5000], back[8192];
    fixture_fill(bytes, sizeof(bytes), 1);
    int fd = fixture_file(rig->dir, "f", bytes, sizeof(bytes));
    cr_assert(read_at(rig, fd, back, sizeof(back), 0) == 5000);
    cr_assert_arr_eq(back, bytes, sizeof(bytes));
    cr_assert(read_at(rig, fd, back, sizeof(back), 4999) == 1);
    cr_assert(read_at(rig, fd, back, sizeof(back), 5000) == 0);
    cr_assert(read_at(rig, fd, back, sizeof(back), 1u << 20) == 0);
    cr_assert(read_at(rig, fd, back, 0, 0) == 0);
    close(fd);
}

// Proves that short transfers continue with the rest, across the borders of the pieces, for reads
// and writes.
BOTH_ENGINES(short_transfers_go_on)
{
    enum { LEN = 300000 };
    char *bytes = malloc(LEN), *back = malloc(LEN);
    cr_assert(bytes != NULL && back != NULL);
    fixture_fill(bytes, LEN, 2);
    int fd = fixture_file(rig->dir, "f", NULL, 0);
    disk_fault_set("write:1+:short,read:1+:short");
    struct iovec out[3] = {{bytes, 100001}, {bytes + 100001, 1}, {bytes + 100002, LEN - 100002}};
    struct single write_op = {
        .op = {.kind = DISK_WRITE, .fd = fd, .offset = 777, .iov = out, .iov_count = 3}};
    cr_assert(run_single(rig, &write_op) == ERR_OK);
    cr_assert(write_op.op.result == LEN);
    struct iovec in[4] = {{back, 1}, {back + 1, 99}, {back + 100, 0}, {back + 100, LEN - 100}};
    struct single read_op = {
        .op = {.kind = DISK_READ, .fd = fd, .offset = 777, .iov = in, .iov_count = 4}};
    cr_assert(run_single(rig, &read_op) == ERR_OK);
    cr_assert(read_op.op.result == LEN);
    cr_assert_arr_eq(back, bytes, LEN);
    close(fd);
    free(bytes);
    free(back);
}

// --- The queue -----------------------------------------------------------------------------------

#define MANY 500

struct many {
    struct {
        struct disk_op op;
        struct iovec iov;
        uint32_t value;
        unsigned done_count;
    } item[MANY];
    unsigned over_count, ok_count, cancelled_count;
    unsigned cancel_every; // 0 = none
    int fd;
    struct signal over;
};

static struct many *running_many;

static void on_many(struct disk_op *op)
{
    struct many *many = running_many;
    for (unsigned i = 0; i < MANY; i++) {
        if (&many->item[i].op == op) {
            cr_assert(++many->item[i].done_count == 1);
            cr_assert(op->err == ERR_CANCELLED || many->item[i].value == i);
        }
    }
    many->ok_count += op->err == ERR_OK && op->result == 4;
    many->cancelled_count += op->err == ERR_CANCELLED;
    if (++many->over_count == MANY) {
        signal_raise(&many->over);
    }
}

static void start_many(struct worker *w, void *ctx)
{
    struct many *many = ctx;
    running_many = many;
    for (unsigned i = 0; i < MANY; i++) {
        many->item[i].iov = (struct iovec){&many->item[i].value, 4};
        many->item[i].op = (struct disk_op){.kind = DISK_READ,
                                            .fd = many->fd,
                                            .offset = 4ull * i,
                                            .iov = &many->item[i].iov,
                                            .iov_count = 1,
                                            .done = on_many};
        disk_io_start(w, &many->item[i].op);
        if (many->cancel_every > 0 && i % many->cancel_every == 0) {
            disk_io_cancel(&many->item[i].op);
        }
    }
    cr_assert(many->over_count == 0);
}

static struct many *many_run(struct rig *rig, unsigned cancel_every)
{
    uint32_t values[MANY];
    for (unsigned i = 0; i < MANY; i++) {
        values[i] = i;
    }
    struct many *many = calloc(1, sizeof(*many));
    cr_assert(many != NULL);
    many->cancel_every = cancel_every;
    many->fd = fixture_file(rig->dir, "many", values, sizeof(values));
    signal_init(&many->over);
    fixture_run_on(rig->worker, start_many, many);
    signal_wait(&many->over);
    signal_done(&many->over);
    close(many->fd);
    return many;
}

// Proves that operations above the queue depth are all done, once each, and are counted as held
// back.
BOTH_ENGINES(queue_depth_is_hit)
{
    uint64_t before = stats_sum(COUNTER_disk_queue_full);
    struct many *many = many_run(rig, 0);
    cr_assert(many->ok_count == MANY);
    cr_assert(stats_sum(COUNTER_disk_queue_full) - before == MANY - QUEUE_DEPTH);
    free(many);
}

static void nothing(struct worker *w, void *ctx)
{
    (void)w;
    (void)ctx;
}

// Proves that the gauge of operations in flight returns to 0.
BOTH_ENGINES(gauge_returns_to_zero)
{
    free(many_run(rig, 0));
    fixture_run_on(rig->worker, nothing, NULL); // the turn that published has ended
    fixture_run_on(rig->worker, nothing, NULL);
    cr_assert(stats_sum(COUNTER_disk_inflight) == 0);
}

// Proves that cancelled operations that wait are done once with ERR_CANCELLED, and the others as
// usual.
BOTH_ENGINES(waiting_ones_are_cancelled)
{
    struct many *many = many_run(rig, 3);
    cr_assert(many->cancelled_count == (MANY + 2) / 3);
    cr_assert(many->ok_count == MANY - (MANY + 2) / 3);
    free(many);
}

// Proves that an operation cancelled in the call that started it is still done later, once.
BOTH_ENGINES(cancelled_at_once)
{
    char byte;
    int fd = fixture_file(rig->dir, "f", "x", 1);
    struct iovec iov = {&byte, 1};
    struct single single = {.op = {.kind = DISK_READ, .fd = fd, .iov = &iov, .iov_count = 1},
                            .is_cancelled_at_once = true};
    cr_assert(run_single(rig, &single) == ERR_CANCELLED);
    disk_io_cancel(&single.op); // harmless when over
    close(fd);
}

static void cancel_single(struct worker *w, void *ctx)
{
    (void)w;
    disk_io_cancel(&((struct single *)ctx)->op);
}

// Proves that an operation in flight on a stalled disk is done once with ERR_CANCELLED after its
// cancel.
BOTH_ENGINES(cancelled_in_flight)
{
    char byte;
    int fd = fixture_file(rig->dir, "f", "x", 1);
    struct iovec iov = {&byte, 1};
    struct single single = {.op = {.kind = DISK_READ, .fd = fd, .iov = &iov, .iov_count = 1}};
    disk_fault_set("read:1:slow:50");
    signal_init(&single.over);
    fixture_run_on(rig->worker, start_single, &single);
    fixture_run_on(rig->worker, cancel_single, &single);
    signal_wait(&single.over);
    signal_done(&single.over);
    cr_assert(single.op.err == ERR_CANCELLED);
    close(fd);
}

#define HELD_WRITES (2 * QUEUE_DEPTH)

struct held {
    struct disk_op ops[HELD_WRITES];
    struct iovec iov[HELD_WRITES];
    atomic_uint over_count;
    struct signal over;
    int fd;
};
static struct held held;

static void on_held(struct disk_op *op)
{
    cr_assert(op->err == ERR_OK);
    if (atomic_fetch_add(&held.over_count, 1) + 1 == HELD_WRITES) {
        signal_raise(&held.over);
    }
}

static void start_held(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < HELD_WRITES; i++) {
        held.iov[i] = (struct iovec){(void *)(uintptr_t) "x", 1};
        held.ops[i] = (struct disk_op){.kind = DISK_WRITE,
                                       .fd = held.fd,
                                       .offset = i,
                                       .iov = &held.iov[i],
                                       .iov_count = 1,
                                       .done = on_held};
        disk_io_start(w, &held.ops[i]);
    }
}

// Proves that a device which takes no writes delays no read, however many writes wait.
BOTH_ENGINES(reads_go_past_writes)
{
    char gate[300], script[400], byte;
    snprintf(gate, sizeof(gate), "%s/gate", rig->dir);
    snprintf(script, sizeof(script), "write:file=%s:hold", gate);
    close(fixture_file(rig->dir, "gate", "", 0));
    disk_fault_set(script);
    memset(&held, 0, sizeof(held));
    held.fd = fixture_file(rig->dir, "f", "y", 1);
    signal_init(&held.over);
    fixture_run_on(rig->worker, start_held, NULL);
    cr_assert(read_at(rig, held.fd, &byte, 1, 0) == 1);
    cr_assert(byte == 'y');
    cr_assert(atomic_load(&held.over_count) == 0);
    cr_assert(unlink(gate) == 0);
    signal_wait(&held.over);
    signal_done(&held.over);
    cr_assert(read_at(rig, held.fd, &byte, 1, HELD_WRITES - 1) == 1);
    cr_assert(byte == 'x');
    close(held.fd);
}

struct chain {
    struct disk_op op;
    struct iovec iov;
    char byte;
    unsigned left;
    struct signal over;
};

static void on_link(struct disk_op *op)
{
    struct chain *chain = container_of(op, struct chain, op);
    cr_assert(op->err == ERR_OK);
    cr_assert(op->result == 1);
    chain->iov = (struct iovec){&chain->byte, 1};
    if (--chain->left == 0) {
        signal_raise(&chain->over);
    } else {
        disk_io_start(op->worker, op);
    }
}

static void start_chain(struct worker *w, void *ctx)
{
    disk_io_start(w, &((struct chain *)ctx)->op);
}

// Proves that done() may start the same operation again, and that no completion is missed.
BOTH_ENGINES(started_again_inside_done)
{
    int fd = fixture_file(rig->dir, "f", "x", 1);
    struct chain chain = {.left = 3000};
    chain.iov = (struct iovec){&chain.byte, 1};
    chain.op = (struct disk_op){
        .kind = DISK_READ, .fd = fd, .iov = &chain.iov, .iov_count = 1, .done = on_link};
    signal_init(&chain.over);
    fixture_run_on(rig->worker, start_chain, &chain);
    signal_wait(&chain.over);
    signal_done(&chain.over);
    close(fd);
}

// --- Faults --------------------------------------------------------------------------------------

// Proves each word of the fault script, when it strikes, and that errors are counted.
BOTH_ENGINES(faults_strike_when_told)
{
    char byte;
    int fd = fixture_file(rig->dir, "f", "x", 1);
    uint64_t errors = stats_sum(COUNTER_disk_errors_read);
    disk_fault_set("read:/3:eio");
    for (unsigned i = 1; i <= 9; i++) {
        cr_assert(read_at(rig, fd, &byte, 1, 0) == (i % 3 == 0 ? -EIO : 1));
    }
    cr_assert(stats_sum(COUNTER_disk_errors_read) - errors == 3);
    disk_fault_set("read:2:enospc");
    for (unsigned i = 1; i <= 4; i++) {
        cr_assert(read_at(rig, fd, &byte, 1, 0) == (i == 2 ? -ENOSPC : 1));
    }
    disk_fault_set("write:1:eio,any:3+:eio");
    for (unsigned i = 1; i <= 4; i++) {
        cr_assert(read_at(rig, fd, &byte, 1, 0) == (i >= 3 ? -EIO : 1));
    }
    disk_fault_set("any:1:slow:1");
    cr_assert(read_at(rig, fd, &byte, 1, 0) == 1);
    disk_fault_set("read:1+:rate:1000"); // a byte takes a millisecond, and waits for those before
    uint64_t began_us = clock_monotonic_us();
    for (unsigned i = 0; i < 20; i++) {
        cr_assert(read_at(rig, fd, &byte, 1, 0) == 1);
    }
    cr_assert(clock_monotonic_us() - began_us >= 15000);

    char flag[300], script[400];
    snprintf(flag, sizeof(flag), "%s/flag", rig->dir);
    snprintf(script, sizeof(script), "write:file=%s:enospc", flag);
    disk_fault_set(script);
    struct iovec iov = {&byte, 1};
    struct single write_op = {.op = {.kind = DISK_WRITE, .fd = fd, .iov = &iov, .iov_count = 1}};
    cr_assert(run_single(rig, &write_op) == ERR_OK);
    close(fixture_file(rig->dir, "flag", NULL, 0));
    write_op.op.iov = &(struct iovec){&byte, 1};
    cr_assert(run_single(rig, &write_op) == ERR_DISK_FULL);
    cr_assert(unlink(flag) == 0);
    write_op.op.iov = &(struct iovec){&byte, 1};
    cr_assert(run_single(rig, &write_op) == ERR_OK);

    static const struct {
        enum disk_op_kind kind;
        const char *script;
    } others[] = {{DISK_SYNC, "sync:1:eio"},
                  {DISK_OPEN, "open:1:eio"},
                  {DISK_FALLOCATE, "fallocate:1:enospc"},
                  {DISK_UNLINK, "unlink:1:eio"}};
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        disk_fault_set(others[i].script);
        struct single single = {.op = {.kind = others[i].kind, .fd = fd, .path = "nothing"}};
        cr_assert(run_single(rig, &single) != ERR_OK);
        cr_assert(single.op.errno_value == EIO || single.op.errno_value == ENOSPC);
    }
    close(fd);
}

// --- Without waiting, residency ------------------------------------------------------------------

// Proves that a resident range is read at once, and that the fault hook works there too.
Test(disk_io, read_nowait)
{
    char dir[256], bytes[10000], back[10000];
    fixture_dir_make(dir, sizeof(dir));
    fixture_fill(bytes, sizeof(bytes), 3);
    int fd = fixture_file(dir, "f", bytes, sizeof(bytes));
    disk_fault_set("");
    struct iovec iov[2] = {{back, 4000}, {back + 4000, 6000}};
    size_t got = 0;
    enum err err = disk_io_read_nowait(fd, iov, 2, 0, &got);
    cr_assert(err == ERR_OK || err == ERR_AGAIN);
    if (err == ERR_OK) {
        cr_assert(got == sizeof(bytes));
        cr_assert_arr_eq(back, bytes, sizeof(bytes));
        disk_fault_set("read:1:short");
        cr_assert(disk_io_read_nowait(fd, iov, 2, 0, &got) == ERR_OK);
        cr_assert(got == 2000);
    } else {
        fprintf(stderr, "read_nowait: not run: this file system does not know RWF_NOWAIT\n");
    }
    disk_fault_set("read:1:eio");
    cr_assert(disk_io_read_nowait(fd, iov, 2, 0, &got) == ERR_IO);
    disk_fault_set("read:1:slow");
    cr_assert(disk_io_read_nowait(fd, iov, 2, 0, &got) == ERR_AGAIN);
    disk_fault_set("");
    cr_assert(disk_io_read_nowait(-1, iov, 2, 0, &got) == ERR_IO);
    close(fd);
    fixture_dir_remove(dir);
}

// Proves that residency is answered yes for bytes just written, no for a hole, and no for anything
// once a probe found no way to tell.
Test(disk_io, residency)
{
    char dir[256], bytes[65536];
    fixture_dir_make(dir, sizeof(dir));
    fixture_fill(bytes, sizeof(bytes), 4);
    int fd = fixture_file(dir, "f", bytes, sizeof(bytes));
    cr_assert(ftruncate(fd, 4 << 20) == 0);
    cr_assert(disk_io_residency_mode() == DISK_RESIDENCY_NONE);
    cr_assert(!disk_io_resident(fd, 0, 100));
    if (disk_io_probe_residency(dir) == DISK_RESIDENCY_NONE) {
        fprintf(stderr, "residency: not run: no way to tell on this file system\n");
    } else {
        cr_assert(disk_io_resident(fd, 0, sizeof(bytes)));
        cr_assert(disk_io_resident(fd, 4000, 200));
        cr_assert(!disk_io_resident(fd, 1 << 20, 1));
        cr_assert(!disk_io_resident(fd, 65535, 4097));
        cr_assert(disk_io_resident(fd, 0, 0));
        cr_assert(!disk_io_resident(fd, UINT64_MAX - 10, 100));
        cr_assert(!disk_io_resident(-1, 0, 100));
    }
    cr_assert(disk_io_probe_residency("/nonexistent") == DISK_RESIDENCY_NONE);
    cr_assert(!disk_io_resident(fd, 0, 100));
    close(fd);
    fixture_dir_remove(dir);
}

// --- A worker that comes late --------------------------------------------------------------------

struct late_turn {
    struct disk_op op;
    struct timer timer;
    bool is_over, was_over_before_timer;
    struct signal over;
};

static void on_late_turn_read(struct disk_op *op)
{
    container_of(op, struct late_turn, op)->is_over = true;
}

static void on_late_turn_timer(struct timer *timer)
{
    struct late_turn *late = container_of(timer, struct late_turn, timer);
    late->was_over_before_timer = late->is_over;
    signal_raise(&late->over);
}

// Runs at the end of the turn, when the read has been submitted.
static void stay_away(void *ctx)
{
    struct late_turn *late = ctx;
    struct worker *w = worker_current();
    while (!disk_io_has_work(w) || clock_monotonic_us() <= late->timer.due_us) {
    }
}

static void late_turn_begin(struct worker *w, void *ctx)
{
    struct late_turn *late = ctx;
    late->op.done = on_late_turn_read;
    timer_init(w, &late->timer, on_late_turn_timer);
    timer_start(&late->timer, 1);
    disk_io_start(w, &late->op);
    worker_free_later(w, stay_away, late);
}

// Proves that a read which has ended in time counts as such, although its worker was away until
// after the time limit.
BOTH_ENGINES(read_that_has_ended_is_told_before_a_timer_that_is_due)
{
    char path[300], byte;
    snprintf(path, sizeof(path), "%s/file", rig->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && write(fd, "x", 1) == 1);
    struct iovec iov = {&byte, 1};
    struct late_turn late = {.op = {.kind = DISK_READ, .fd = fd, .iov = &iov, .iov_count = 1}};
    signal_init(&late.over);
    fixture_run_on(rig->worker, late_turn_begin, &late);
    signal_wait(&late.over);
    signal_done(&late.over);
    cr_assert(late.was_over_before_timer);
    (void)close(fd);
}
