// SPDX-License-Identifier: Apache-2.0
// Proves: a cache directory is prepared, and an older cache is removed only on request. Nothing
// else is touched: no cache of this or a newer format, none in use, no other directory, nothing
// behind a symbolic link.
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/disk/store_dir.h"
#include "store/offline/offline.h"
#include "store/segment/segment_format.h"
#include "store/store.h"

static char base[64];

static const char *path_of(const char *name)
{
    static char paths[32][512];
    static unsigned next;
    char *path = paths[next++ % 32];
    (void)snprintf(path, sizeof(paths[0]), "%s/%s", base, name);
    return path;
}

static void begin(void)
{
    (void)snprintf(base, sizeof(base), "/tmp/forebay-prepare-XXXXXX");
    cr_assert_not_null(mkdtemp(base));
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "w");
    cr_assert_not_null(file);
    cr_assert(fputs(text, file) >= 0);
    cr_assert_eq(fclose(file), 0);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(path_of(name), &st) == 0;
}

static enum err prepare(const char *name, bool wipe_older, const char *wanted)
{
    struct store_prepare_options options = {.dir = path_of(name),
                                            .has_owner = true,
                                            .uid = geteuid(),
                                            .gid = getegid(),
                                            .wipe_older = wipe_older};
    struct buf what;
    buf_init(&what, 4096);
    enum err err = store_prepare(&options, &what);
    cr_assert_not_null(strstr(buf_cstr(&what), wanted), "%s: %s", wanted, buf_cstr(&what));
    buf_done(&what);
    return err;
}

// Makes a cache as a store leaves it, with its format rewritten to that version.
static void put_cache(const char *name, unsigned version)
{
    struct store_dir dir;
    struct buf why, text, other;
    char inside[128];
    buf_init(&why, 4096);
    buf_init(&text, 65536);
    buf_init(&other, 65536);
    cr_assert_eq(store_dir_open(&dir, path_of(name), &why), ERR_OK);
    store_format_render(&dir.format, &text);
    store_dir_close(&dir);
    struct span rest = buf_span(&text), line;
    cr_assert(span_split(&rest, '\n', &line));
    buf_printf(&other, "forebay-cache %u\n", version);
    buf_append(&other, rest.ptr, rest.len - (sizeof("checksum 00000000\n") - 1));
    buf_printf(&other, "checksum %08x\n", disk_crc32c(other.ptr, other.len));
    (void)snprintf(inside, sizeof(inside), "%s/format", name);
    put(inside, buf_cstr(&other));
    (void)snprintf(inside, sizeof(inside), "%s/segments/00000001.seg", name);
    put(inside, "bytes");
    (void)snprintf(inside, sizeof(inside), "%s/index/data.mdb", name);
    put(inside, "bytes");
    (void)snprintf(inside, sizeof(inside), "%s/policy", name);
    put(inside, "bytes");
    static const char *const others[] = {"condemned", "pins", "pins.new", "pins.bad"};
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        (void)snprintf(inside, sizeof(inside), "%s/%s", name, others[i]);
        put(inside, "bytes");
    }
    buf_done(&why);
    buf_done(&text);
    buf_done(&other);
}

Test(store_prepare, a_directory_is_made_and_found_ready_again)
{
    struct stat st;
    begin();
    cr_assert_eq(prepare("a/b/cache", false, "ready"), ERR_OK);
    cr_assert_eq(stat(path_of("a/b/cache"), &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
    cr_assert_eq(prepare("a/b/cache/", true, "ready"), ERR_OK);
    for (unsigned version = STORE_FORMAT_VERSION_MIN; version <= STORE_FORMAT_VERSION_MAX;
         version++) {
        put_cache("a/b/cache", version);
        cr_assert_eq(prepare("a/b/cache", true, "ready"), ERR_OK);
        cr_assert(is_there("a/b/cache/segments/00000001.seg"));
    }
}

Test(store_prepare, an_older_cache_is_removed_on_request)
{
    begin();
    put_cache("cache", SEGMENT_FORMAT_VERSION - 1);
    cr_assert_eq(prepare("cache", false, "--wipe-older removes it"), ERR_FORMAT);
    cr_assert(is_there("cache/segments/00000001.seg"));
    cr_assert_eq(prepare("cache", true, "wiped a cache of an older format"), ERR_OK);
    cr_assert(!is_there("cache/segments") && !is_there("cache/format") &&
              !is_there("cache/policy") && !is_there("cache/condemned") &&
              !is_there("cache/pins") && !is_there("cache/pins.new") &&
              !is_there("cache/pins.bad"));
    cr_assert_eq(prepare("cache", true, "ready"), ERR_OK);
}

Test(store_prepare, a_newer_cache_one_in_use_and_others_data_stay)
{
    begin();
    put_cache("newer", STORE_FORMAT_VERSION_MAX + 1);
    cr_assert_eq(prepare("newer", true, "newer than this program's"), ERR_FORMAT);
    put_cache("used", SEGMENT_FORMAT_VERSION - 1);
    int fd = open(path_of("used/lock"), O_RDWR);
    cr_assert(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    cr_assert_eq(prepare("used", true, "in use by another process"), ERR_IN_USE);
    cr_assert_eq(close(fd), 0);
    put_cache("mixed", SEGMENT_FORMAT_VERSION - 1);
    put("mixed/thesis.tex", "x");
    cr_assert_eq(prepare("mixed", true, "also contains \"thesis.tex\""), ERR_INVALID);
    cr_assert_eq(mkdir(path_of("home"), 0755), 0);
    put("home/thesis.tex", "x");
    cr_assert_eq(prepare("home", true, "neither empty nor a cache"), ERR_FORMAT);
    put("home/format", "forebay-cache 1\n"); // a name is not enough
    cr_assert_eq(prepare("home", true, "neither empty nor a cache"), ERR_FORMAT);
    cr_assert(is_there("newer/segments/00000001.seg") && is_there("used/segments/00000001.seg") &&
              is_there("mixed/segments/00000001.seg") && is_there("home/thesis.tex"));
}

Test(store_prepare, no_symbolic_link_is_followed)
{
    begin();
    cr_assert_eq(mkdir(path_of("victim"), 0755), 0);
    cr_assert_eq(symlink(path_of("victim"), path_of("link")), 0);
    cr_assert_eq(prepare("link", false, "symbolic link"), ERR_INVALID);
    cr_assert_eq(prepare("link/cache", false, "symbolic link"), ERR_INVALID);
    cr_assert(!is_there("victim/cache"));
    struct stat st;
    cr_assert_eq(stat(path_of("victim"), &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0755);
    // Inside an older cache, too.
    put("victim/file", "x");
    put_cache("cache", SEGMENT_FORMAT_VERSION - 1);
    cr_assert_eq(rename(path_of("cache/segments"), path_of("cache/moved")), 0);
    cr_assert_eq(rename(path_of("cache/moved"), path_of("aside")), 0);
    cr_assert_eq(symlink(path_of("victim"), path_of("cache/segments")), 0);
    cr_assert_neq(prepare("cache", true, "cache"), ERR_OK);
    cr_assert(is_there("victim/file") && is_there("cache/format"));
}

// The rest wants root, and is skipped without.
Test(store_prepare, a_cache_goes_to_its_new_owner_but_no_file_with_a_second_name)
{
    struct stat st;
    struct buf what;
    begin();
    if (geteuid() != 0) {
        return;
    }
    buf_init(&what, 4096);
    put_cache("cache", SEGMENT_FORMAT_VERSION);
    struct store_prepare_options options = {
        .dir = path_of("cache"), .has_owner = true, .uid = 65532, .gid = 65532};
    cr_assert_eq(store_prepare(&options, &what), ERR_OK);
    cr_assert_eq(stat(path_of("cache/segments/00000001.seg"), &st), 0);
    cr_assert(st.st_uid == 65532 && st.st_gid == 65532);
    cr_assert_eq(stat(path_of("cache"), &st), 0);
    cr_assert(st.st_uid == 65532 && (st.st_mode & 07777) == 0700);
    put("precious", "x");
    cr_assert_eq(link(path_of("precious"), path_of("cache/segments/00000002.seg")), 0);
    options.uid = 65533;
    cr_assert_eq(store_prepare(&options, &what), ERR_PERMISSION);
    cr_assert_eq(stat(path_of("precious"), &st), 0);
    cr_assert_eq(st.st_uid, 0);
    buf_done(&what);
}
