// SPDX-License-Identifier: Apache-2.0
// Proves: a directory whose file system was full at the start is attached when there is room,
// empty, with all later settings. A directory that it cannot use stays unchanged and is tried
// again. A stop need not wait for any of it.
#include "store/care/store_late.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "loop/loop.h"
#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "thread_limit.h"
#include "waiting.h"

#define SIZE_BYTES (1000 * MIB)

static const struct object first = {"first", "\"e\"", 700000, BLOCK, 1};

// --- a full file system

static struct {
    atomic_bool is_full;         // no folder can be made
    _Atomic uint64_t free_bytes; // as long as is_played
    atomic_bool is_played;
    atomic_uint tries;
    atomic_bool hangs; // mkdir() waits for `go_on`
    atomic_bool is_hung;
    sem_t go_on;
} played;

int mkdir(const char *path, mode_t mode)
{
    atomic_fetch_add(&played.tries, 1);
    if (atomic_exchange(&played.hangs, false)) {
        atomic_store(&played.is_hung, true);
        while (sem_wait(&played.go_on) != 0) {
        }
    }
    if (atomic_load(&played.is_full)) {
        errno = ENOSPC;
        return -1;
    }
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int statvfs(const char *path, struct statvfs *st)
{
    int (*real)(const char *, struct statvfs *);
    *(void **)&real = dlsym(RTLD_NEXT, "statvfs");
    int rc = real(path, st);
    if (atomic_load(&played.is_played) && rc == 0) {
        *st = (struct statvfs){.f_bsize = 4096,
                               .f_frsize = 1,
                               .f_blocks = SIZE_BYTES,
                               .f_bavail = atomic_load(&played.free_bytes),
                               .f_files = 1000000,
                               .f_favail = 1000000};
    }
    return rc;
}

static void fill_up(void)
{
    atomic_store(&played.free_bytes, 0);
    atomic_store(&played.is_played, true);
    atomic_store(&played.is_full, true);
}

static void give_room(void)
{
    atomic_store(&played.is_full, false);
    atomic_store(&played.free_bytes, SIZE_BYTES);
}

static const enum counter gauges[] = {COUNTER_cache_bytes, COUNTER_cache_capacity_bytes};
static uint64_t before[ARRAY_LEN(gauges)]; // of other tests in the same process

static uint64_t gauge(enum counter counter)
{
    for (unsigned i = 0; i < ARRAY_LEN(gauges); i++) {
        if (gauges[i] == counter) {
            return stats_sum(counter) - before[i];
        }
    }
    cr_assert(false);
    return 0;
}

static enum refusal refusal_of(const struct box *box)
{
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return summary.refusal;
}

static bool is_in_trouble(const struct box *box)
{
    return disk_trouble(&box->store->disk) != REFUSAL_none;
}

static void begin(struct box *box)
{
    for (unsigned i = 0; i < ARRAY_LEN(gauges); i++) {
        before[i] = stats_sum(gauges[i]);
    }
    box_init(box, DISK_ENGINE_THREADS, 64 * MIB);
    box->options.min_free_percent = 10;
}

// Opens on a full file system.
static void open_late(struct box *box)
{
    begin(box);
    fill_up();
    cr_assert(box_open(box));
    cr_assert(!box->store->disk.attached);
}

static void leave(struct box *box)
{
    box_close(box);
    for (unsigned i = 0; i < ARRAY_LEN(gauges); i++) {
        cr_assert_eq(gauge(gauges[i]), 0, "%u", i);
    }
    box_remove(box);
}

// --- it comes on

Test(store_late, comes_on_when_there_is_room)
{
    struct box box;
    open_late(&box);
    cr_assert_eq(refusal_of(&box), REFUSAL_disk_full);
    cr_assert_eq(box_put(&box, &first), ERR_DISK_FULL);
    unsigned tries_then = atomic_load(&played.tries);
    wait_for(atomic_load(&played.tries) > tries_then);
    cr_assert(!box.store->disk.attached);
    cr_assert_eq(refusal_of(&box), REFUSAL_disk_full);
    give_room();
    wait_for(!is_in_trouble(&box));
    wait_for(box.store->disk.attached);
    cr_assert_eq(disk_room_short_of(&box.store->disk), NULL);
    cr_assert_eq(atomic_load(&box.store->disk.capacity_bytes), 64 * MIB);
    wait_for(box_put(&box, &first) == ERR_OK);
    cr_assert_eq(box_read(&box, 1, &first), first.size);
    box_close(&box);
    cr_assert(box_open(&box), "and like any other at the next start");
    cr_assert(box.store->disk.attached);
    cr_assert_eq(box_read(&box, 0, &first), first.size);
    leave(&box);
}

// Writes may have passed that the copies in the directory do not know.
Test(store_late, begins_empty_whatever_the_directory_holds)
{
    struct box box;
    begin(&box);
    cr_assert(box_open(&box));
    cr_assert_eq(box_put(&box, &first), ERR_OK);
    uint64_t generation = store_generation_next(box.store);
    box_close(&box);
    fill_up();
    cr_assert(box_open(&box));
    cr_assert_eq(box_read(&box, 0, &first), 0);
    give_room();
    wait_for(box.store->disk.attached);
    cr_assert_eq(box_read(&box, 0, &first), 0);
    cr_assert(store_generation_next(box.store) > generation);
    uint64_t others = dir_bytes(box.dir);
    cr_assert(others < 64 * MIB, "%llu", (unsigned long long)others);
    leave(&box);
}

Test(store_late, a_stop_does_not_wait_for_room)
{
    struct box box;
    open_late(&box);
    leave(&box);
    open_late(&box);
    give_room(); // nor where it comes at this very moment
    leave(&box);
}

// A relative path names the same directory at the start and later.
Test(store_late, relative_directory_is_made_when_there_is_room)
{
    struct box box;
    begin(&box);
    fill_up();
    int home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(home >= 0 && chdir(box.dir) == 0);
    box.options.dir = "cache";
    cr_assert(box_open(&box));
    give_room();
    wait_for(box.store->disk.attached);
    wait_for(box_put(&box, &first) == ERR_OK);
    cr_assert_eq(box_read(&box, 0, &first), first.size);
    leave(&box);
    cr_assert(fchdir(home) == 0 && close(home) == 0);
}

// Pages in memory are sent from there, as after any other start.
Test(store_late, residency_is_probed_after_a_late_attach)
{
    struct box box;
    cr_assert_eq(disk_io_probe_residency("/tmp/forebay-not-there"), DISK_RESIDENCY_NONE);
    begin(&box);
    enum disk_residency there = disk_io_probe_residency(box.dir);
    box_remove(&box);
    fill_up();
    cr_assert(box_open(&box));
    cr_assert_eq(disk_io_residency_mode(), DISK_RESIDENCY_NONE, "it was not there to be asked");
    give_room();
    wait_for(!is_in_trouble(&box));
    cr_assert_eq(disk_io_residency_mode(), there);
    leave(&box);
}

// --- what it cannot use

static void path_in(const struct box *box, const char *name, char ret_path[1024])
{
    (void)snprintf(ret_path, 1024, "%s/%s", box->dir, name);
}

// Not even a small file may have fitted at the start.
Test(store_late, notes_the_origin_of_this_start)
{
    struct box box;
    char path[1024], line[64] = "";
    begin(&box);
    box.options.origin = "http://now";
    fill_up();
    cr_assert(box_open(&box) && !box.store->disk.attached);
    path_in(&box, "origin", path);
    (void)unlink(path);
    give_room();
    wait_for(box.store->disk.attached);
    int fd = open(path, O_RDONLY);
    cr_assert(fd >= 0 && read(fd, line, sizeof(line) - 1) > 0);
    cr_assert_str_eq(line, "http://now\n");
    (void)close(fd);
    leave(&box);
}

static unsigned tries(void)
{
    return atomic_load(&played.tries);
}

// Somebody's, or of another version: it stays as it is.
Test(store_late, a_directory_that_is_not_ours_is_left_alone)
{
    struct box box;
    char path[1024], text[32] = "";
    open_late(&box);
    path_in(&box, "format", path);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs("forebay-cache 1\n", file) >= 0 && fclose(file) == 0);
    unsigned tries_then = tries();
    give_room();
    wait_for(tries() > tries_then);
    wait_for(refusal_of(&box) == REFUSAL_disk_degraded);
    cr_assert(!box.store->disk.attached);
    file = fopen(path, "r");
    cr_assert(file != NULL && fgets(text, sizeof(text), file) != NULL && fclose(file) == 0);
    cr_assert_str_eq(text, "forebay-cache 1\n");
    cr_assert(box_post_delete(&box, first.key, 100) == ERR_OK, "writes pass");
    leave(&box);
}

Test(store_late, one_that_another_process_has_is_left_to_it)
{
    struct box box;
    open_late(&box);
    int folder = open(box.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(folder >= 0 && flock(folder, LOCK_EX | LOCK_NB) == 0);
    unsigned tries_then = tries();
    give_room();
    wait_for(tries() > tries_then);
    cr_assert(!box.store->disk.attached);
    char path[1024];
    path_in(&box, "format", path);
    cr_assert(access(path, F_OK) != 0, "nothing is made in it");
    cr_assert(close(folder) == 0);
    leave(&box);
}

// The attach fails after everything has been prepared: nothing is left of that, and the next try
// starts from there.
Test(store_late, a_late_attach_that_fails_is_tried_again)
{
    struct box box;
    open_late(&box);
    char path[1024];
    path_in(&box, "format.new", path);
    cr_assert(syscall(SYS_mkdirat, AT_FDCWD, path, 0700) == 0);
    unsigned tries_then = tries();
    give_room();
    wait_for(tries() > tries_then);
    cr_assert(!box.store->disk.attached);
    cr_assert_eq(gauge(COUNTER_cache_bytes), 0);
    cr_assert(rmdir(path) == 0);
    wait_for(box.store->disk.attached);
    wait_for(box_put(&box, &first) == ERR_OK);
    leave(&box);
}

Test(store_late, attaches_at_the_limit_of_threads)
{
    struct box box;
    open_late(&box);
    thread_limit_reached(true);
    give_room();
    wait_for(box.store->disk.attached);
    thread_limit_reached(false);
    wait_for(box_put(&box, &first) == ERR_OK);
    leave(&box);
}

// --- settings from before the attach

Test(store_late, limits_set_before_the_attach_hold)
{
    struct box box;
    struct buf why;
    buf_init(&why, 1000);
    open_late(&box);
    struct store_limits limits = {.size_bytes = 32 * MIB,
                                  .headroom_percent = 10,
                                  .scrub_bytes_per_s = 1000,
                                  .verify_always = true};
    cr_assert(store_set_limits(box.store, &limits, &why) == ERR_OK);
    buf_done(&why);
    give_room();
    wait_for(box.store->disk.attached && !is_in_trouble(&box));
    cr_assert_eq(atomic_load(&box.store->disk.capacity_bytes), 32 * MIB);
    cr_assert(atomic_load(&box.store->verify_always));
    uint64_t rate = 0;
    wait_for({
        pthread_mutex_lock(&box.store->scrub.guarded.lock);
        rate = box.store->scrub.guarded.bytes_per_s;
        pthread_mutex_unlock(&box.store->scrub.guarded.lock);
        rate == 1000;
    });
    leave(&box);
}

// A rule from a reload has larger blocks than the rules of the start.
Test(store_late, larger_blocks_of_a_reload_before_the_attach_find_segments)
{
    struct box box;
    struct buf why;
    buf_init(&why, 1000);
    open_late(&box);
    struct store_limits limits = {
        .size_bytes = 64 * MIB, .headroom_percent = 10, .block_size_bytes_max = 4 * MIB};
    cr_assert(store_set_limits(box.store, &limits, &why) == ERR_OK);
    give_room();
    wait_for(box.store->disk.attached);
    cr_assert(store_block_size_max(box.store) >= 4 * MIB);
    struct object large = {"large", "\"e\"", 4 * MIB, 4 * MIB, store_generation_next(box.store)};
    wait_for(box_put(&box, &large) == ERR_OK);
    cr_assert_eq(box_read(&box, 0, &large), large.size);
    limits.block_size_bytes_max = 1ull << 30; // judged and set in one
    cr_assert(store_set_limits(box.store, &limits, &why) == ERR_INVALID && why.len > 0);
    buf_done(&why);
    leave(&box);
}

static unsigned group_of(void *ctx, struct span realm, struct span bucket, struct span key)
{
    (void)ctx;
    (void)realm;
    (void)bucket;
    (void)key;
    return STORE_PRIORITY_NORMAL;
}

// The disk hangs during an attempt. A reload does not wait for it, and its settings hold after the
// attach, although the attempt began before.
Test(store_late, reload_does_not_wait_for_a_hung_attempt)
{
    struct box box;
    struct buf why;
    buf_init(&why, 1000);
    struct store_holder holder = {.kind = SPAN("realm"), .name = SPAN("one")};
    struct store_holder later = {.kind = SPAN("realm"), .name = SPAN("two")};
    cr_assert(sem_init(&played.go_on, 0, 0) == 0);
    begin(&box);
    box.options.holders = &holder;
    box.options.holder_count = 1;
    fill_up();
    cr_assert(box_open(&box));
    atomic_store(&played.is_hung, false);
    atomic_store(&played.hangs, true);
    give_room();
    wait_for(atomic_load(&played.is_hung));
    struct store_limits limits = {.size_bytes = 64 * MIB,
                                  .headroom_percent = 10,
                                  .verify_always = true,
                                  .block_size_bytes_max = 4 * MIB};
    struct store_group groups[] = {{.priority = STORE_PRIORITY_NORMAL, .pin = true, .identity = 7}};
    cr_assert_eq(store_holders_add(box.store, &holder, 1), ERR_OK);
    cr_assert_eq(store_holders_add(box.store, &later, 1), ERR_OK);
    cr_assert_eq(store_set_limits(box.store, &limits, &why), ERR_OK);
    store_set_groups(box.store, groups, 1);
    store_set_group_of(box.store, group_of, &box);
    cr_assert(!box.store->disk.attached);
    cr_assert(sem_post(&played.go_on) == 0);
    wait_for(box.store->disk.attached);
    cr_assert(atomic_load(&box.store->verify_always));
    cr_assert(store_block_size_max(box.store) >= 4 * MIB);
    struct retention *r = &box.store->retention;
    pthread_mutex_lock(&r->names.lock);
    cr_assert(r->names.group_of == group_of && r->names.ctx == &box);
    pthread_mutex_unlock(&r->names.lock);
    wait_for(box_put(&box, &first) == ERR_OK);
    buf_done(&why);
    leave(&box);
}

Test(store_late, groups_set_before_the_attach_are_known)
{
    struct box box;
    open_late(&box);
    struct store_group groups[] = {{.priority = STORE_PRIORITY_NORMAL, .pin = true, .identity = 7}};
    store_set_groups(box.store, groups, 1);
    store_set_group_of(box.store, group_of, &box);
    give_room();
    wait_for(box.store->disk.attached);
    struct retention *r = &box.store->retention;
    pthread_mutex_lock(&r->names.lock);
    cr_assert(r->names.group_of == group_of && r->names.ctx == &box);
    pthread_mutex_unlock(&r->names.lock);
    leave(&box);
}
