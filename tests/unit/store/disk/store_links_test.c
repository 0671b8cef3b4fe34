// SPDX-License-Identifier: Apache-2.0
// Proves: no file that Forebay opens in its cache directory is reached through a symbolic link. The
// target of a link stays unchanged.
#include "store/disk/store_links.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_fixture.h"
#include "test.h"

static const struct object OBJECT = {"bkt/a", "\"a\"", 4 * BLOCK, BLOCK, 1};

// A cache that holds an object, closed.
static void make_cache(struct box *box)
{
    box_init(box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(box));
    struct store_place place;
    cr_assert_eq(box_write(box, 0, &OBJECT, 0, 4, 4, &place), ERR_OK);
    cr_assert_eq(box_post_put(box, &OBJECT, &place), ERR_OK);
    box_let_go(&place);
    box_close(box);
}

static void make_path(char *ret_path, const struct box *box, const char *name)
{
    cr_assert((size_t)snprintf(ret_path, 1024, "%s/%s", box->dir, name) < 1024);
}

// Makes a file outside the cache. Its time of change and its bytes show whether anything wrote to
// it.
static void make_victim(const char *path)
{
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL && fputs("as it was", file) > 0 && fclose(file) == 0);
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    cr_assert_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void victim_is_as_it_was(const char *path, const char *name)
{
    char text[32] = "";
    struct stat st;
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL && fgets(text, sizeof(text), file) != NULL && fclose(file) == 0);
    cr_assert_str_eq(text, "as it was", "%s", name);
    cr_assert(stat(path, &st) == 0 && st.st_mtim.tv_sec == 1000, "%s", name);
}

// Starts over a cache whose file `name` is a link, to a file and then to nothing.
static void refuses_link(struct box *box, const char *name)
{
    char path[1024], aside[1024], victim[1024];
    struct stat st;
    make_path(path, box, name);
    (void)snprintf(aside, sizeof(aside), "%s.aside", box->dir);
    (void)snprintf(victim, sizeof(victim), "%s.victim", box->dir);
    bool was_there = rename(path, aside) == 0;
    for (unsigned dangling = 0; dangling < 2; dangling++) {
        struct buf why;
        buf_init(&why, 4000);
        if (!dangling) {
            make_victim(victim);
        }
        cr_assert_eq(symlink(victim, path), 0, "%s", path);
        cr_assert_eq(box_try_open(box, &why), ERR_FORMAT, "%s", name);
        cr_assert_not_null(strstr(buf_cstr(&why), path), "%s", buf_cstr(&why));
        cr_assert_not_null(strstr(buf_cstr(&why), "remove the link"), "%s", buf_cstr(&why));
        if (dangling) {
            cr_assert(lstat(victim, &st) != 0, "%s made a file", name);
        } else {
            victim_is_as_it_was(victim, name);
            cr_assert_eq(unlink(victim), 0);
        }
        cr_assert(lstat(path, &st) == 0 && S_ISLNK(st.st_mode), "%s", name);
        cr_assert_eq(unlink(path), 0);
        buf_done(&why);
    }
    cr_assert(!was_there || rename(aside, path) == 0);
}

// Every entry that a run leaves in the folder, except segments, which other tests cover. The list
// is read from the folder, so that a file that is added later is tested, too.
static unsigned refuses_each_of(struct box *box, const char *folder)
{
    char path[1024], names[64][256];
    unsigned count = 0;
    make_path(path, box, folder);
    DIR *d = opendir(path);
    cr_assert_not_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (e->d_name[0] != '.') {
            cr_assert(count < ARRAY_LEN(names));
            (void)snprintf(names[count++], sizeof(names[0]), "%s%s%.200s", folder,
                           folder[0] != '\0' ? "/" : "", e->d_name);
        }
    }
    closedir(d);
    for (unsigned i = 0; i < count; i++) {
        refuses_link(box, names[i]);
    }
    return count;
}

Test(store_links, no_link_in_place_of_an_own_file_is_followed)
{
    static const char *const passing[] = {"format.new", "index/bad", "pins",       "pins.new",
                                          "policy.new", "pins.bad",  "policy.map", "policy"};
    struct box box;
    make_cache(&box);
    cr_assert(refuses_each_of(&box, "") >= 4); // lock, format, index, segments
    cr_assert(refuses_each_of(&box, "index") >= 1);
    for (size_t i = 0; i < ARRAY_LEN(passing); i++) { // there for a moment only, or by order
        refuses_link(&box, passing[i]);
    }
    cr_assert(box_open(&box)); // without links all is as before
    struct store_summary summary;
    store_summarize(box.store, &summary);
    cr_assert_not(summary.degraded);
    box_close(&box);
    box_remove(&box);
}

Test(store_links, a_link_in_place_of_a_segment_is_not_followed)
{
    struct box box;
    char folder[1024], victim[1024], path[2048];
    make_cache(&box);
    make_path(folder, &box, "segments");
    (void)snprintf(victim, sizeof(victim), "%s.victim", box.dir);
    make_victim(victim);
    DIR *d = opendir(folder);
    cr_assert_not_null(d);
    unsigned count = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (e->d_name[0] != '.') {
            (void)snprintf(path, sizeof(path), "%s/%.200s", folder, e->d_name);
            cr_assert(unlink(path) == 0 && symlink(victim, path) == 0);
            count++;
        }
    }
    closedir(d);
    cr_assert(count > 0);
    cr_assert(box_open(&box));
    box_close(&box);
    victim_is_as_it_was(victim, "segment");
    cr_assert_eq(unlink(victim), 0);
    box_remove(&box);
}

static void opens_and_removes(struct box *box, const char *path)
{
    struct stat st;
    cr_assert(box_open(box));
    cr_assert(lstat(path, &st) != 0 && errno == ENOENT);
    box_close(box);
}

// Tries a link to a file, a link to nothing, and the file of an older release.
Test(store_links, a_link_in_place_of_the_lock_file_of_the_index_is_removed_and_not_followed)
{
    struct box box;
    char victim[1024], path[1024];
    make_cache(&box);
    make_path(path, &box, "index/lock.mdb");
    (void)snprintf(victim, sizeof(victim), "%s.victim", box.dir);
    make_victim(victim);
    cr_assert_eq(symlink(victim, path), 0);
    opens_and_removes(&box, path);
    victim_is_as_it_was(victim, "index/lock.mdb");
    cr_assert_eq(unlink(victim), 0);
    cr_assert_eq(symlink(victim, path), 0);
    opens_and_removes(&box, path);
    cr_assert(access(victim, F_OK) != 0);
    make_victim(path);
    opens_and_removes(&box, path);
    box_remove(&box);
}

Test(store_links, closing_a_cache_follows_no_link_that_was_made_after_the_start)
{
    struct box box;
    char victim[1024], path[1024];
    make_cache(&box);
    (void)snprintf(victim, sizeof(victim), "%s.victim", box.dir);
    make_path(path, &box, "index/lock.mdb");
    make_victim(victim);
    cr_assert(box_open(&box));
    cr_assert_eq(symlink(victim, path), 0);
    int folder = open(box.dir, O_RDONLY | O_DIRECTORY);
    cr_assert(store_links_is_link(folder, "index/lock.mdb"));
    cr_assert_not(store_links_is_link(folder, "index/data.mdb"));
    close(folder);
    box_close(&box);
    victim_is_as_it_was(victim, "index/lock.mdb");
    cr_assert(unlink(path) == 0 && unlink(victim) == 0);
    box_remove(&box);
}
