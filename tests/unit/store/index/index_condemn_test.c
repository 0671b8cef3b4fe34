// SPDX-License-Identifier: Apache-2.0
// Condemned bytes do not come back: not after kill -9, not after a rebuild of the index from the
// segments, and not when the mark itself cannot be written.
#include "store/index/index_condemn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define RUNS 3u

static const struct object bad = {"bad", "\"e\"", RUNS * 8ull * BLOCK, BLOCK, 5};
static const struct object small = {"small", "\"e\"", 900, BLOCK, 6};
static const struct object good = {"good", "\"e\"", 40000, BLOCK, 7};

static bool is_built(void *ctx)
{
    struct box *box = ctx;
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return !summary.rebuilding && atomic_load(&box->store->log.examined);
}

// Opens with an index that is rebuilt from the segments.
static void open_rebuilt(struct box *box)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box->dir);
    cr_assert(unlink(path) == 0);
    cr_assert(box_open(box));
    wait_for(is_built(box));
    index_writer_flush(&box->store->writer);
}

static bool is_found(struct box *box, const struct object *object)
{
    static struct store_view view;
    box_look(box, object, &view);
    return view.found;
}

// Two of three runs are visible; the third one completes the object, which is wrong.
static void condemn(struct box *box)
{
    struct store_place last;
    cr_assert(box_put(box, &small) == ERR_OK);
    cr_assert(box_put_run(box, &bad, 0, 8) == ERR_OK);
    cr_assert(box_put(box, &good) == ERR_OK);
    cr_assert(box_put_run(box, &bad, 8, 8) == ERR_OK);
    cr_assert(box_write(box, 0, &bad, 16, 8, 8, &last) == ERR_OK);
    box_condemn(box, bad.key, &last);
    cr_assert(box_post_delete(box, bad.key, 100) == ERR_OK);
    box_let_go(&last);
}

static void killed_after_condemning(struct box *box)
{
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        cr_assert(box_open(box));
        condemn(box);
        (void)raise(SIGKILL);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(index_condemn, bytes_that_contradict_the_origin_do_not_come_back_after_kill_9)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < 2; e++) {
        struct box box;
        box_init(&box, engines[e], 64 * MIB);
        if (!box_open(&box)) {
            box_remove(&box);
            continue;
        }
        box_close(&box);
        killed_after_condemning(&box);
        cr_assert(box_open(&box)); // the open segment is gone through
        wait_for(is_built(&box));
        index_writer_flush(&box.store->writer);
        cr_assert(!is_found(&box, &bad));
        cr_assert(box_read(&box, 0, &small) == small.size);
        cr_assert(box_read(&box, 0, &good) == good.size);
        box_close(&box);
        open_rebuilt(&box);
        cr_assert(!is_found(&box, &bad));
        cr_assert(box_read(&box, 0, &small) == small.size);
        cr_assert(box_read(&box, 0, &good) == good.size);
        box_close(&box);
        box_remove(&box);
    }
}

Test(index_condemn, a_waiting_put_is_marked_too)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_write(&box, 0, &small, 0, 1, 1, &place) == ERR_OK);
    struct index_change put = {
        .kind = INDEX_PUT, .hash = box_hash(&box, small.key), .place = place};
    struct index_change condemned = {.kind = INDEX_CONDEMN, .hash = put.hash};
    put.next = &condemned;
    index_condemn_batch(&box.store->index, &put);
    box_let_go(&place);
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(!is_found(&box, &small));
    box_close(&box);
    box_remove(&box);
}

Test(index_condemn, a_segment_that_cannot_be_marked_is_dropped)
{
    static const enum store_fault faults[] = {STORE_FAULT_MARK, STORE_FAULT_SYNC};
    for (unsigned i = 0; i < ARRAY_LEN(faults); i++) {
        struct box box;
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        cr_assert(box_open(&box));
        cr_assert(box_put(&box, &small) == ERR_OK);
        store_fault_set(faults[i], 1, false, EIO);
        box_condemn(&box, small.key, NULL);
        cr_assert(box_post_delete(&box, small.key, 100) == ERR_OK);
        box_close(&box);
        open_rebuilt(&box);
        cr_assert(!is_found(&box, &small), "%u", i);
        box_close(&box);
        box_remove(&box);
    }
}

// Returns the version of `format`. 3 means that it has a line of a condemned key.
static unsigned version_of(const struct box *box)
{
    int fd = open(box->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(fd >= 0);
    unsigned version = store_dir_version(fd);
    cr_assert(close(fd) == 0);
    return version;
}

// The index writer is stalled in a sync. The verdict has been noted, and nothing else.
static bool is_noted(void *ctx)
{
    return version_of(ctx) == 3;
}

static void killed_before_the_marks(struct box *box)
{
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        struct store_place last, next;
        cr_assert(box_open(box));
        cr_assert(box_put(box, &small) == ERR_OK);
        cr_assert(box_put_run(box, &bad, 0, 8) == ERR_OK);
        cr_assert(box_put_run(box, &bad, 8, 8) == ERR_OK);
        cr_assert(box_write(box, 0, &bad, 16, 8, 8, &last) == ERR_OK);
        cr_assert(box_write(box, 1, &good, 0, 1, 1, &next) == ERR_OK);
        store_fault_stall(STORE_FAULT_SYNC, true);
        box_enter(box, &good, &next);
        store_fault_stall_reached(STORE_FAULT_SYNC);
        box_condemn(box, bad.key, &last);
        wait_for(is_noted(box));
        (void)raise(SIGKILL);
    }
    int status;
    cr_assert(waitpid(pid, &status, 0) == pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(index_condemn, a_kill_before_the_marks_does_not_bring_the_bytes_back)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < 2; e++) {
        struct box box;
        box_init(&box, engines[e], 64 * MIB);
        if (!box_open(&box)) {
            box_remove(&box);
            continue;
        }
        box_close(&box);
        killed_before_the_marks(&box);
        cr_assert(box_open(&box));
        cr_assert(!is_found(&box, &bad), "at once, by the index");
        wait_for(is_built(&box));
        index_writer_flush(&box.store->writer);
        cr_assert(!is_found(&box, &bad), "by what is found in the open segment");
        cr_assert(box_read(&box, 0, &small) == small.size);
        cr_assert(box_read(&box, 0, &good) == good.size);
        box_close(&box);
        open_rebuilt(&box);
        cr_assert(!is_found(&box, &bad), "by a rebuild");
        cr_assert(box_read(&box, 0, &small) == small.size);
        struct object again = bad;
        again.generation = store_generation_next(box.store);
        cr_assert(box_put(&box, &again) == ERR_OK);
        box_close(&box);
        open_rebuilt(&box);
        cr_assert(box_read(&box, 0, &again) == again.size, "what was fetched since is good");
        box_close(&box);
        box_remove(&box);
    }
}

Test(index_condemn, runs_that_a_rebuild_has_not_found_yet_are_condemned_too)
{
    struct box box;
    char path[1024];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &bad) == ERR_OK);
    cr_assert(box_put(&box, &good) == ERR_OK);
    box_close(&box);
    (void)snprintf(path, sizeof(path), "%s/index/data.mdb", box.dir);
    cr_assert(unlink(path) == 0);
    store_fault_stall(STORE_FAULT_SCAN, true);
    cr_assert(box_open(&box));
    store_fault_stall_reached(STORE_FAULT_SCAN);
    box_condemn(&box, bad.key, NULL);
    cr_assert(box_post_delete(&box, bad.key, 100) == ERR_OK);
    store_fault_stall(STORE_FAULT_SCAN, false);
    wait_for(is_built(&box));
    index_writer_flush(&box.store->writer);
    cr_assert(!is_found(&box, &bad));
    cr_assert(box_read(&box, 0, &good) == good.size);
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(!is_found(&box, &bad), "a second one");
    cr_assert(box_read(&box, 0, &good) == good.size);
    box_close(&box);
    box_remove(&box);
}

Test(index_condemn, a_line_that_the_disk_refused_is_written_later)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &bad) == ERR_OK);
    store_fault_set(STORE_FAULT_NOTE, 1, true, ENOSPC);
    box_condemn(&box, bad.key, NULL);
    cr_assert(box_post_delete(&box, bad.key, 100) == ERR_OK);
    index_writer_flush(&box.store->writer);
    cr_assert(!is_found(&box, &bad));
    cr_assert(!is_noted(&box));
    store_fault_set(STORE_FAULT_NOTE, 0, false, 0);
    wait_for(is_noted(&box));
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(!is_found(&box, &bad));
    box_close(&box);
    box_remove(&box);
}

Test(index_condemn, a_run_whose_put_was_refused_is_condemned_too)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &good) == ERR_OK);
    cr_assert(box_write(&box, 0, &small, 0, 1, 1, &place) == ERR_OK);
    store_fault_set(STORE_FAULT_COMMIT, 1, false, EIO);
    box_enter(&box, &small, &place);
    index_writer_flush(&box.store->writer);
    box_let_go(&place);
    cr_assert(!is_found(&box, &small));
    box_condemn(&box, small.key, NULL);
    cr_assert(box_post_delete(&box, small.key, 100) == ERR_OK);
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(!is_found(&box, &small));
    cr_assert(box_read(&box, 0, &good) == good.size);
    box_close(&box);
    box_remove(&box);
}

// The note is coarse, but never forgets. A key whose line was pushed out is not believed, nor is
// any key as old.
Test(index_condemn, more_keys_than_there_are_lines)
{
    struct box box;
    char key[32];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &small) == ERR_OK);
    uint64_t before = stats_sum(COUNTER_condemned_shared);
    box_condemn(&box, small.key, NULL);
    cr_assert(box_post_delete(&box, small.key, 100) == ERR_OK);
    struct object later = good;
    later.generation = store_generation_next(box.store);
    cr_assert(box_put(&box, &later) == ERR_OK);
    for (unsigned i = 0; i < STATE_CONDEMNED_MAX; i++) {
        (void)snprintf(key, sizeof(key), "other-%u", i);
        box_condemn(&box, key, NULL);
    }
    index_writer_flush(&box.store->writer);
    cr_assert_eq(stats_sum(COUNTER_condemned_shared) - before, 1);
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(
        state_condemned_has(&box.store->condemned, box_hash(&box, small.key), small.generation));
    cr_assert(!is_found(&box, &small));
    cr_assert(box_read(&box, 0, &later) == later.size);
    box_close(&box);
    box_remove(&box);
}

// Writes the file in which earlier versions kept condemned keys: a line for the key, or a torn one.
static void put_old_file(const struct box *box, struct hash128 hash, uint64_t below,
                         uint64_t others_below, bool is_torn)
{
    char path[1024], line[64] = "FBCD";
    (void)snprintf(path, sizeof(path), "%s/condemned", box->dir);
    wire_put_u64(line + 8, hash.hi);
    wire_put_u64(line + 16, hash.lo);
    wire_put_u64(line + 24, below);
    wire_put_u64(line + 32, others_below);
    wire_put_u32(line + 4, disk_crc32c(line + 8, sizeof(line) - 8) + is_torn);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && write(fd, line, sizeof(line)) == (ssize_t)sizeof(line) && close(fd) == 0);
}

static bool has_old_file(const struct box *box)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/condemned", box->dir);
    return access(path, F_OK) == 0;
}

// A person who empties the directory may leave the earlier version's file behind. Its generations
// are not those of the new cache. A cache that is emptied because its segments do not fit any more
// starts its generations again.
Test(index_condemn, lines_do_not_outlive_their_cache)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert_eq(version_of(&box), 2);
    box_condemn(&box, small.key, NULL);
    index_writer_flush(&box.store->writer);
    box_close(&box);
    cr_assert_eq(version_of(&box), 3);
    put_old_file(&box, (struct hash128){1, 2}, 1000, 1000, false);
    box.options.block_size_bytes_max = 4 * MIB;
    cr_assert(box_open(&box));
    cr_assert(!atomic_load(&box.store->condemned.any));
    cr_assert(!has_old_file(&box));
    cr_assert_eq(version_of(&box), 2);
    box_close(&box);
    box_remove(&box);
}

// An earlier version condemned two keys. One had a line, and the other had lost its line to it.
Test(index_condemn, keys_that_an_earlier_version_condemned_stay_condemned)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned e = 0; e < 2; e++) {
        struct box box;
        box_init(&box, engines[e], 64 * MIB);
        if (!box_open(&box)) {
            box_remove(&box);
            continue;
        }
        struct object first = small, wrong = bad, last = good;
        first.generation = store_generation_next(box.store);
        cr_assert(box_put(&box, &first) == ERR_OK);
        wrong.generation = store_generation_next(box.store);
        cr_assert(box_put_run(&box, &wrong, 0, 8) == ERR_OK);
        uint64_t below = store_generation_next(box.store);
        last.generation = store_generation_next(box.store);
        cr_assert(box_put(&box, &last) == ERR_OK);
        cr_assert(is_found(&box, &wrong));
        struct hash128 hash = box_hash(&box, wrong.key);
        box_close(&box);
        put_old_file(&box, hash, below, first.generation + 1, false);
        cr_assert(box_open(&box));
        cr_assert(!has_old_file(&box) && version_of(&box) == 3);
        cr_assert(!is_found(&box, &wrong), "at once, by the index");
        box_close(&box);
        for (unsigned i = 0; i < 2; i++) { // `format` says it, again and again
            open_rebuilt(&box);
            cr_assert(!is_found(&box, &wrong) && !is_found(&box, &first), "by a rebuild");
            cr_assert(box_read(&box, 0, &last) == last.size);
            box_close(&box);
            cr_assert_eq(version_of(&box), 3);
        }
        box_remove(&box);
    }
}

Test(index_condemn, an_earlier_file_is_removed_only_when_format_has_its_keys)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &good) == ERR_OK);
    box_close(&box);
    put_old_file(&box, (struct hash128){1, 2}, 1000, 0, true);
    cr_assert(box_open(&box));
    cr_assert(!has_old_file(&box) && version_of(&box) == 2, "a torn line says nothing");
    cr_assert(box_read(&box, 0, &good) == good.size);
    box_close(&box);
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/condemned", box.dir);
    cr_assert(mkdir(path, 0700) == 0); // it cannot be read
    cr_assert(box_open(&box));
    cr_assert(!atomic_load(&box.store->disk.attached), "unread keys must not be ignored");
    box_close(&box);
    cr_assert(has_old_file(&box) && rmdir(path) == 0);
    box_remove(&box);
}

Test(index_condemn, a_place_that_does_not_match_its_run_marks_nothing)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_write(&box, 0, &good, 0, 1, 1, &place) == ERR_OK);
    cr_assert(box_post_put(&box, &good, &place) == ERR_OK);
    struct store_place wrong[] = {place, place, place, place};
    struct hash128 other = box_hash(&box, small.key);
    wrong[0].hash = other;
    wrong[1].salt++;
    wrong[2].header_offset += RUN_ALIGN;
    wrong[3].header_len -= 1;
    for (unsigned i = 0; i < ARRAY_LEN(wrong); i++) {
        box_condemn(&box, small.key, &wrong[i]);
    }
    index_writer_flush(&box.store->writer);
    box_let_go(&place);
    cr_assert(box_read(&box, 0, &good) == good.size);
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(box_read(&box, 0, &good) == good.size);
    box_close(&box);
    box_remove(&box);
}

Test(index_condemn, a_run_that_fails_its_checksum_is_not_found_again)
{
    struct box box;
    struct store_place place;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &small) == ERR_OK);
    cr_assert(box_write(&box, 0, &good, 0, 1, 1, &place) == ERR_OK);
    cr_assert(box_post_put(&box, &good, &place) == ERR_OK);
    int fd;
    char byte;
    cr_assert(segment_borrow_wait(place.segment, &fd) == ERR_OK);
    cr_assert(pread(fd, &byte, 1, place.payload_offset + 100) == 1);
    byte ^= 1;
    cr_assert(pwrite(fd, &byte, 1, place.payload_offset + 100) == 1);
    segment_return(place.segment);
    segment_set_verified(place.segment, place.first_unit, 1, false);
    box_let_go(&place);
    cr_assert(box_read(&box, 0, &good) == 0);
    index_writer_flush(&box.store->writer);
    box_close(&box);
    open_rebuilt(&box);
    cr_assert(!is_found(&box, &good));
    cr_assert(box_read(&box, 0, &small) == small.size);
    box_close(&box);
    box_remove(&box);
}
