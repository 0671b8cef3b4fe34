// SPDX-License-Identifier: Apache-2.0
// The `dir:` driver: objects of a folder are answered as S3 would, nothing outside the tree is
// read, and a file that changes while it is read is never reported as complete.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness.h"
#include "origin/origin_directory_private.h"
#include "test.h"

static const enum disk_engine engines[] = {DISK_ENGINE_AUTO, DISK_ENGINE_THREADS};

static char *pattern(size_t len)
{
    char *bytes = malloc(len + 1);
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (char)(i * 31 + (i >> 8) * 7 + (i >> 16));
    }
    return bytes;
}

static void start(struct harness *h, enum disk_engine engine)
{
    harness_init_directory(h, 2, engine);
    clock_test_advance_us(10000000); // so that files written just now count as old
}

static void expect(struct harness *h, struct fetch_run ask, enum err err, unsigned status)
{
    fetch_run(h, 0, &ask);
    cr_assert_eq(ask.err, err, "%s: %s", ask.key, error_name(ask.err));
    cr_assert_eq(ask.status, status, "%s: %u", ask.key, ask.status);
    fetch_run_done(&ask);
}

// A whole object, ranges of it and its head are answered byte for byte, on both engines.
Test(origin_directory, whole_and_ranges)
{
    const size_t len = 900001;
    char *bytes = pattern(len);
    for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
        struct harness h = {0};
        harness_make_root(&h);
        harness_write(&h, "bkt/a/b.json", bytes, len);
        start(&h, engines[e]);
        struct fetch_run run = {.key = "a/b.json"};
        fetch_run(&h, 0, &run);
        cr_assert_eq(run.err, ERR_OK);
        cr_assert_eq(run.status, 200);
        cr_assert_eq(run.size_bytes, len);
        cr_assert_eq(run.body.len, len);
        cr_assert_arr_eq(run.body.ptr, bytes, len);
        cr_assert_eq(strlen(run.etag), 36);
        cr_assert(run.etag[0] == '"' && strcmp(run.etag + 33, "-1\"") == 0);
        cr_assert_str_eq(run.content_type, "application/json");
        cr_assert(run.storable && !run.too_young && !run.weak_or_no_etag);
        struct fetch_run range = {.key = "a/b.json",
                                  .has_range = true,
                                  .first = 70000,
                                  .last = 699999,
                                  .if_match = run.etag};
        fetch_run(&h, 1, &range);
        cr_assert_eq(range.err, ERR_OK);
        cr_assert_eq(range.status, 206);
        cr_assert_eq(range.body_first, 70000);
        cr_assert_eq(range.body_len, 630000);
        cr_assert_arr_eq(range.body.ptr, bytes + 70000, 630000);
        cr_assert_str_eq(range.etag, run.etag);
        struct fetch_run end = {
            .key = "a/b.json", .has_range = true, .first = len - 1, .last = UINT64_MAX};
        fetch_run(&h, 0, &end);
        cr_assert_eq(end.status, 206);
        cr_assert_eq(end.body.len, 1);
        struct fetch_run head = {.key = "a/b.json", .head = true};
        fetch_run(&h, 0, &head);
        cr_assert_eq(head.status, 200);
        cr_assert_eq(head.body.len, 0);
        cr_assert_eq(head.size_bytes, len);
        cr_assert_eq(head.heads, 1);
        struct fetch_run paused = {.key = "a/b.json", .pause_every_piece = true};
        fetch_run(&h, 1, &paused);
        cr_assert_eq(paused.err, ERR_OK);
        cr_assert_gt(paused.pieces, 2);
        cr_assert_arr_eq(paused.body.ptr, bytes, len);
        fetch_run_done(&run);
        fetch_run_done(&range);
        fetch_run_done(&end);
        fetch_run_done(&head);
        fetch_run_done(&paused);
        harness_done(&h);
    }
    free(bytes);
}

// Missing objects, missing buckets, bad ranges and conditions each have an error of their own.
Test(origin_directory, errors)
{
    struct harness h = {0};
    harness_make_root(&h);
    harness_write(&h, "bkt/file", "0123456789", 10);
    harness_write(&h, "bkt/empty", "", 0);
    harness_mkdir(&h, "bkt/folder/deep");
    start(&h, DISK_ENGINE_AUTO);
    expect(&h, (struct fetch_run){.key = "none"}, ERR_NO_SUCH_KEY, 404);
    expect(&h, (struct fetch_run){.key = "file", .bucket = "nobkt"}, ERR_NO_SUCH_BUCKET, 404);
    expect(&h, (struct fetch_run){.key = "file", .bucket = ".."}, ERR_NO_SUCH_BUCKET, 404);
    expect(&h, (struct fetch_run){.key = "file", .bucket = ""}, ERR_NO_SUCH_BUCKET, 404);
    expect(&h, (struct fetch_run){.key = "a//b", .bucket = "nobkt"}, ERR_NO_SUCH_BUCKET, 404);
    static const char *const keys[] = {
        "folder",    "folder/", "file/", "/file",  "folder//file", "./file",         "../bkt/file",
        "folder/..", "..",      ".",     "file/x", "folder/./x",   "folder/../file", "//"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        expect(&h, (struct fetch_run){.key = keys[i]}, ERR_NO_SUCH_KEY, 404);
    }
    char long_key[1200];
    memset(long_key, 'k', sizeof(long_key));
    long_key[1100] = '\0';
    expect(&h, (struct fetch_run){.key = long_key}, ERR_NO_SUCH_KEY, 404);
    long_key[300] = '\0'; // longer than a file name may be
    expect(&h, (struct fetch_run){.key = long_key}, ERR_NO_SUCH_KEY, 404);
    expect(&h, (struct fetch_run){.key = "file", .has_range = true, .first = 10, .last = 20},
           ERR_INVALID_RANGE, 416);
    expect(&h, (struct fetch_run){.key = "empty", .has_range = true, .first = 0, .last = 20},
           ERR_INVALID_RANGE, 416);
    expect(&h, (struct fetch_run){.key = "empty"}, ERR_OK, 200);
    expect(&h, (struct fetch_run){.key = "file", .if_match = "\"x\""}, ERR_ORIGIN_CHANGED, 412);
    struct fetch_run run = {.key = "file"};
    fetch_run(&h, 0, &run);
    expect(&h, (struct fetch_run){.key = "file", .if_match = run.etag}, ERR_OK, 200);
    expect(&h, (struct fetch_run){.key = "file", .if_none_match = run.etag}, ERR_NOT_MODIFIED, 304);
    expect(&h, (struct fetch_run){.key = "file", .head = true, .if_none_match = run.etag},
           ERR_NOT_MODIFIED, 304);
    expect(&h, (struct fetch_run){.key = "file", .if_none_match = "\"x\""}, ERR_OK, 200);
    expect(&h, (struct fetch_run){.key = "file", .head_answer = ERR_NO_MEMORY}, ERR_NO_MEMORY, 200);
    fetch_run_done(&run);
    harness_done(&h);
}

// If the bucket's folder cannot be opened, it is unknown whether the bucket exists. So a missing
// object is then neither NoSuchKey nor NoSuchBucket.
Test(origin_directory, bucket_that_cannot_be_opened_is_an_error)
{
    for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
        struct harness h = {0};
        harness_make_root(&h);
        harness_mkdir(&h, "bkt");
        start(&h, engines[e]);
        disk_fault_set("open:2:emfile"); // the first is that of the file
        expect(&h, (struct fetch_run){.key = "none"}, ERR_LIMIT, 503);
        disk_fault_set("open:2:eio");
        expect(&h, (struct fetch_run){.key = "none"}, ERR_ORIGIN_5XX, 503);
        disk_fault_set("");
        expect(&h, (struct fetch_run){.key = "none"}, ERR_NO_SUCH_KEY, 404);
        harness_done(&h);
    }
}

// Symbolic links work inside the tree and never lead out of it. Special files are no objects.
Test(origin_directory, links_stay_inside)
{
    struct harness h = {0};
    char path[512], out[512];
    harness_make_root(&h);
    harness_write(&h, "root/bkt/real/file", "inside", 6);
    harness_write(&h, "outside/secret", "secret", 6);
    static const struct {
        const char *link, *target;
    } links[] = {{"root/bkt/good", "real/file"},
                 {"root/bkt/gooddir", "real"},
                 {"root/bkt/up", "../../outside/secret"},
                 {"root/bkt/updir", "../../outside"},
                 {"root/bkt/abs", NULL},
                 {"root/bkt/proc", "/proc/self/root"},
                 {"root/bkt/loop", "loop"},
                 {"root/other", "bkt"},
                 {"root/outbkt", "../outside"}};
    snprintf(out, sizeof(out), "%s/outside/secret", h.root);
    for (size_t i = 0; i < ARRAY_LEN(links); i++) {
        harness_path(&h, links[i].link, path, sizeof(path));
        cr_assert_eq(symlink(links[i].target != NULL ? links[i].target : out, path), 0);
    }
    harness_path(&h, "root/bkt/pipe", path, sizeof(path));
    cr_assert_eq(mkfifo(path, 0600), 0);
    char endpoint[300];
    snprintf(endpoint, sizeof(endpoint), "dir:%s/root", h.root);
    struct origin_options options = harness_options(endpoint);
    cr_assert_eq(harness_init(&h, 1, DISK_ENGINE_AUTO, &options), ERR_OK);
    expect(&h, (struct fetch_run){.key = "good"}, ERR_OK, 200);
    expect(&h, (struct fetch_run){.key = "gooddir/file"}, ERR_OK, 200);
    expect(&h, (struct fetch_run){.key = "real/file", .bucket = "other"}, ERR_OK, 200);
    static const char *const keys[] = {"up",   "updir/secret", "abs", "proc/etc/passwd",
                                       "loop", "pipe"};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        expect(&h, (struct fetch_run){.key = keys[i]}, ERR_NO_SUCH_KEY, 404);
        expect(&h, (struct fetch_run){.key = keys[i], .head = true}, ERR_NO_SUCH_KEY, 404);
    }
    expect(&h, (struct fetch_run){.key = "secret", .bucket = "outbkt"}, ERR_NO_SUCH_BUCKET, 404);
    harness_done(&h);
}

static void append_to_file(struct fetch_run *run)
{
    int fd = open(run->ctx, O_WRONLY | O_APPEND);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, "x", 1), 1);
    close(fd);
}

static void truncate_file(struct fetch_run *run)
{
    cr_assert_eq(truncate(run->ctx, 3), 0);
}

static void rewrite_same_size(struct fetch_run *run)
{
    int fd = open(run->ctx, O_WRONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(pwrite(fd, "y", 1, 0), 1);
    close(fd);
}

static void replace_by_rename(struct fetch_run *run)
{
    char other[600];
    snprintf(other, sizeof(other), "%s.new", (const char *)run->ctx);
    int fd = open(other, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(rename(other, run->ctx), 0);
}

// A file that changes between the two stat calls is never complete. A file that is replaced by a
// new one is read to its end as it was.
Test(origin_directory, changed_while_read)
{
    void (*const changes[])(struct fetch_run *) = {append_to_file, truncate_file,
                                                   rewrite_same_size};
    const size_t lens[] = {1000, 700000};
    for (size_t c = 0; c < ARRAY_LEN(changes); c++) {
        for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
            struct harness h = {0};
            char path[512];
            char *bytes = pattern(lens[l]);
            harness_make_root(&h);
            harness_write(&h, "bkt/file", bytes, lens[l]);
            harness_path(&h, "bkt/file", path, sizeof(path));
            start(&h, DISK_ENGINE_AUTO);
            // The kernel stamps files with the time of its last tick, so the change below must come
            // after that tick.
            struct timespec past[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
            cr_assert_eq(utimensat(AT_FDCWD, path, past, 0), 0);
            struct fetch_run run = {.key = "file", .ctx = path, .on_head_hook = changes[c]};
            fetch_run(&h, 0, &run);
            cr_assert_eq(run.err, ERR_ORIGIN_CHANGED, "%zu %zu %s", c, l, error_name(run.err));
            cr_assert_lt(run.body.len, lens[l]);
            if (lens[l] < 65536) {
                cr_assert_eq(run.body.len, 0);
            }
            fetch_run_done(&run);
            free(bytes);
            harness_done(&h);
        }
    }
    struct harness h = {0};
    char path[512];
    char *bytes = pattern(700000);
    harness_make_root(&h);
    harness_write(&h, "bkt/file", bytes, 700000);
    harness_path(&h, "bkt/file", path, sizeof(path));
    start(&h, DISK_ENGINE_AUTO);
    struct fetch_run run = {.key = "file", .ctx = path, .on_head_hook = replace_by_rename};
    fetch_run(&h, 0, &run);
    // On most file systems the rename changes the old inode's ctime. So either answer is right, but
    // a mixed body is not.
    cr_assert(run.err == ERR_OK || run.err == ERR_ORIGIN_CHANGED);
    cr_assert_arr_eq(run.body.ptr, bytes, run.body.len);
    fetch_run_done(&run);
    free(bytes);
    harness_done(&h);
}

// A file is young if its ctime is less than two seconds ago, or if its mtime is near the present.
Test(origin_directory, age)
{
    static const struct {
        int64_t mtime_s, ctime_s;
        bool young;
    } cases[] = {{0, 1000, true},  {0, 999, true},    {0, 998, false},
                 {999, 900, true}, {1001, 900, true}, {2000, 900, false},
                 {0, 2000, true},  {-5, 900, false},  {INT64_MAX, 900, false}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct statx stat = {.stx_mtime.tv_sec = cases[i].mtime_s,
                             .stx_ctime.tv_sec = cases[i].ctime_s};
        cr_assert_eq(origin_directory_file_too_young(&stat, 1000u * 1000000u), cases[i].young,
                     "%zu", i);
    }
}

#ifndef FOREBAY_TSAN // there all tests share one process, and one clock that others have moved
// A file that changed less than two seconds ago is reported as too young to be kept.
Test(origin_directory, too_young)
{
    struct harness h = {0};
    harness_make_root(&h);
    harness_write(&h, "bkt/file", "0123456789", 10);
    harness_init_directory(&h, 1, DISK_ENGINE_AUTO);
    struct fetch_run young = {.key = "file"};
    fetch_run(&h, 0, &young);
    cr_assert(young.too_young);
    clock_test_advance_us(3000000);
    struct fetch_run old = {.key = "file"};
    fetch_run(&h, 0, &old);
    cr_assert_not(old.too_young);
    cr_assert_str_eq(old.etag, young.etag);
    fetch_run_done(&young);
    fetch_run_done(&old);
    harness_done(&h);
}

#endif

// A cancelled fetch ends exactly once with ERR_CANCELLED, in any state.
Test(origin_directory, cancel)
{
    struct harness h = {0};
    char *bytes = pattern(900000);
    harness_make_root(&h);
    harness_write(&h, "bkt/file", bytes, 900000);
    start(&h, DISK_ENGINE_AUTO);
    for (unsigned piece = 0; piece < 5; piece++) {
        struct fetch_run run = {
            .key = "file", .cancel_at_once = piece == 0, .cancel_at_piece = piece};
        fetch_run(&h, 0, &run);
        cr_assert_eq(run.err, ERR_CANCELLED);
        cr_assert_eq(run.pieces, piece);
        fetch_run_done(&run);
    }
    free(bytes);
    harness_done(&h);
}

// An unusable root is refused at the start, with the reason.
Test(origin_directory, start_errors)
{
    struct harness h = {0};
    struct origin_options options = harness_options("dir:relative");
    cr_assert_eq(harness_init(&h, 1, DISK_ENGINE_AUTO, &options), ERR_INVALID);
    cr_assert_not_null(strstr(buf_cstr(&h.why), "absolute"));
    buf_done(&h.why);
    options = harness_options("dir:/nonexistent-folder");
    cr_assert_eq(harness_init(&h, 1, DISK_ENGINE_AUTO, &options), ERR_NOT_FOUND);
    cr_assert_not_null(strstr(buf_cstr(&h.why), "/nonexistent-folder"));
    cr_assert_not_null(strstr(buf_cstr(&h.why), "origin.endpoint must name"));
    buf_done(&h.why);
    options.settings.names[ORIGIN_SETTING_ENDPOINT] = "buckets[near].origin";
    cr_assert_eq(harness_init(&h, 1, DISK_ENGINE_AUTO, &options), ERR_NOT_FOUND);
    cr_assert_not_null(strstr(buf_cstr(&h.why), "buckets[near].origin must name"));
    buf_done(&h.why);
}
