// SPDX-License-Identifier: Apache-2.0
// Proves: a process that can use its directory learns of writes during an earlier process that
// could not. The index is disowned before a delete is reported done, or else the delete fails.
#include "store/care/store_unattached.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

static const struct object written = {"written", "\"e\"", 100000, BLOCK, 1};
static const struct object other = {"other", "\"e\"", 700000, BLOCK, 2};

static bool is_built(void *ctx)
{
    struct box *box = ctx;
    struct store_summary summary;
    store_summarize(box->store, &summary);
    return !summary.rebuilding && atomic_load(&box->store->log.examined);
}

static void folder(const struct box *box, const char *name, bool make)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", box->dir, name);
    cr_assert((make ? mkdir(path, 0700) : rmdir(path)) == 0, "%s", path);
}

// A folder has the name of a file that every start writes.
static void in_the_way(struct box *box, const char *name, bool refuses)
{
    box_init(box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(box));
    cr_assert(box_put(box, &written) == ERR_OK);
    cr_assert(box_put(box, &other) == ERR_OK);
    box_close(box);
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", box->dir, name);
    (void)unlink(path);
    folder(box, name, true);
    cr_assert(box_open(box));
    cr_assert(!box->store->disk.attached);
    store_fault_set(STORE_FAULT_DISOWN, refuses ? 1 : 0, true, EROFS);
    store_fault_set(STORE_FAULT_REMOVE, refuses ? 1 : 0, true, EROFS);
}

static void expect_disowned(struct box *box)
{
    static struct store_view view;
    cr_assert(box_open(box));
    cr_assert(box->store->disk.attached);
    wait_for(is_built(box));
    index_writer_flush(&box->store->writer);
    box_look(box, &written, &view);
    cr_assert(!view.found || view.rebuilt);
    cr_assert(box_read(box, 0, &other) == other.size, "the runs in the segments are there");
    box_close(box);
    box_remove(box);
}

Test(store_unattached, a_delete_disowns_the_index)
{
    struct box box;
    in_the_way(&box, "format.new", false);
    cr_assert(box_post_delete(&box, written.key, 100) == ERR_OK);
    box_close(&box);
    folder(&box, "format.new", false);
    expect_disowned(&box);
}

Test(store_unattached, without_a_delete_the_index_stays)
{
    struct box box;
    static struct store_view view;
    in_the_way(&box, "format.new", false);
    box_close(&box);
    folder(&box, "format.new", false);
    cr_assert(box_open(&box));
    box_look(&box, &written, &view);
    cr_assert(view.found && !view.rebuilt);
    box_close(&box);
    box_remove(&box);
}

Test(store_unattached, a_delete_that_the_directory_does_not_take_is_an_error)
{
    struct box box;
    in_the_way(&box, "format.new", true);
    cr_assert(box_post_delete(&box, written.key, 100) != ERR_OK);
    store_fault_set(STORE_FAULT_REMOVE, 0, false, 0);
    cr_assert(box_post_delete(&box, written.key, 100) == ERR_OK, "the second try");
    box_close(&box);
    folder(&box, "format.new", false);
    store_fault_set(STORE_FAULT_DISOWN, 0, false, 0);
    expect_disowned(&box);
}

Test(store_unattached, a_directory_that_could_not_be_entered_at_the_start)
{
    struct box box;
    in_the_way(&box, "lock", false);
    cr_assert(box_post_delete(&box, written.key, 100) != ERR_OK);
    folder(&box, "lock", false);
    cr_assert(box_post_delete(&box, written.key, 100) == ERR_OK, "it was repaired");
    box_close(&box);
    expect_disowned(&box);
}

// The start had the lock when it failed. It gives the lock back, which keeps out no process, not
// even its own.
Test(store_unattached, a_format_that_could_not_be_read_at_the_start)
{
    struct box box;
    char format[1024], aside[1024];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(box_put(&box, &written) == ERR_OK);
    cr_assert(box_put(&box, &other) == ERR_OK);
    box_close(&box);
    (void)snprintf(format, sizeof(format), "%s/format", box.dir);
    (void)snprintf(aside, sizeof(aside), "%s/lost+found", box.dir);
    cr_assert(rename(format, aside) == 0);
    folder(&box, "format", true);
    cr_assert(box_open(&box));
    cr_assert(!box.store->disk.attached);
    cr_assert(box_post_delete(&box, written.key, 100) != ERR_OK);
    folder(&box, "format", false);
    cr_assert(rename(aside, format) == 0);
    int fd = open(box.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, "another process may have it");
    cr_assert(close(fd) == 0);
    cr_assert(box_post_delete(&box, written.key, 100) == ERR_OK, "it was repaired");
    box_close(&box);
    expect_disowned(&box);
}

Test(store_unattached, without_an_old_cache_nothing_is_refused)
{
    struct box box;
    char path[1024];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    (void)snprintf(path, sizeof(path), "%s/file", box.dir);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fclose(file) == 0);
    (void)snprintf(path, sizeof(path), "%s/file/cache", box.dir);
    box.options.dir = path;
    cr_assert(box_open(&box));
    cr_assert(!box.store->disk.attached);
    cr_assert(box_post_delete(&box, written.key, 100) == ERR_OK);
    box_close(&box);
    box_remove(&box);
}
