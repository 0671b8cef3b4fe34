// SPDX-License-Identifier: Apache-2.0
// Listings of a `dir:` origin are in the order of full key bytes, page by page, and never lead out
// of the tree. Operations that a folder cannot do are refused in S3's form.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "origin/origin_directory_private.h"
#include "test.h"

// All texts of <name> elements, joined by '|'.
static void elements(const char *xml, const char *name, struct buf *out)
{
    char open[64], close[64];
    snprintf(open, sizeof(open), "<%s>", name);
    snprintf(close, sizeof(close), "</%s>", name);
    out->len = 0;
    while ((xml = strstr(xml, open)) != NULL) {
        const char *end = strstr(xml, close);
        xml += strlen(open);
        if (out->len > 0) {
            buf_append_char(out, '|');
        }
        buf_append(out, xml, (size_t)(end - xml));
        xml = end;
    }
}

static void list(struct harness *h, const char *target, struct relay_run *run)
{
    *run = (struct relay_run){.method = "GET", .target = target};
    relay_run(h, 0, run);
    cr_assert_eq(run->err, ERR_OK, "%s", error_name(run->err));
}

static void expect_list(struct harness *h, const char *target, const char *keys,
                        const char *prefixes)
{
    struct relay_run run;
    struct buf found;
    buf_init(&found, 1 << 20);
    list(h, target, &run);
    cr_assert_eq(run.status, 200, "%s: %u", target, run.status);
    elements(buf_cstr(&run.answer), "Key", &found);
    cr_assert_str_eq(buf_cstr(&found), keys, "%s: %s", target, buf_cstr(&found));
    found.len = 0;
    struct buf *answer = &run.answer;
    const char *at = strstr(buf_cstr(answer), "<CommonPrefixes>");
    if (at != NULL) {
        elements(at, "Prefix", &found);
    }
    cr_assert_str_eq(buf_cstr(&found), prefixes, "%s: %s", target, buf_cstr(&found));
    buf_done(&found);
    relay_run_done(&run);
}

static void make_tree(struct harness *h)
{
    static const char *const files[] = {"a-b",   "a/x",      "a/y/z",  "a0",         "b/c/d",
                                        "b/c/e", "b/f",      "c",      "\xc3\xa9/1", "sp ace",
                                        "pl+us", "per%cent", ".hidden"};
    char path[256];
    harness_make_root(h);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof(path), "bkt/%s", files[i]);
        harness_write(h, path, files[i], strlen(files[i]));
    }
    harness_mkdir(h, "bkt/empty/deep");
    harness_mkdir(h, "other");
    harness_mkdir(h, ".snapshot");
    harness_write(h, "top-file", "x", 1);
}

// Keys come in the order of their bytes. Prefix, delimiter and start-after work as in S3.
Test(origin_directory_relay, listing_order)
{
    struct harness h = {0};
    make_tree(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    expect_list(&h, "/bkt?list-type=2",
                ".hidden|a-b|a/x|a/y/z|a0|b/c/d|b/c/e|b/f|c|per%cent|pl+us|sp ace|\xc3\xa9/1", "");
    expect_list(&h, "/bkt",
                ".hidden|a-b|a/x|a/y/z|a0|b/c/d|b/c/e|b/f|c|per%cent|pl+us|sp ace|\xc3\xa9/1", "");
    expect_list(&h, "/bkt?list-type=2&delimiter=/", ".hidden|a-b|a0|c|per%cent|pl+us|sp ace",
                "a/|b/|\xc3\xa9/");
    expect_list(&h, "/bkt?list-type=2&prefix=a", "a-b|a/x|a/y/z|a0", "");
    expect_list(&h, "/bkt?list-type=2&prefix=a/", "a/x|a/y/z", "");
    expect_list(&h, "/bkt?list-type=2&prefix=a/&delimiter=/", "a/x", "a/y/");
    expect_list(&h, "/bkt?list-type=2&prefix=a&delimiter=/", "a-b|a0", "a/");
    expect_list(&h, "/bkt?list-type=2&prefix=b/c&delimiter=/", "", "b/c/");
    expect_list(&h, "/bkt?list-type=2&prefix=b/c/d", "b/c/d", "");
    expect_list(&h, "/bkt?list-type=2&prefix=nope/x", "", "");
    expect_list(&h, "/bkt?list-type=2&prefix=../", "", "");
    expect_list(&h, "/bkt?list-type=2&prefix=a//", "", "");
    expect_list(&h, "/bkt?list-type=2&prefix=/", "", "");
    expect_list(&h, "/bkt?list-type=2&prefix=c/", "", "");
    expect_list(&h, "/bkt?list-type=2&start-after=a/x",
                "a/y/z|a0|b/c/d|b/c/e|b/f|c|per%cent|pl+us|sp ace|\xc3\xa9/1", "");
    expect_list(&h, "/bkt?list-type=2&start-after=b/c/dd",
                "b/c/e|b/f|c|per%cent|pl+us|sp ace|\xc3\xa9/1", "");
    expect_list(&h, "/bkt?marker=pl%2Bus", "sp ace|\xc3\xa9/1", "");
    expect_list(&h, "/bkt?list-type=2&delimiter=-",
                ".hidden|a/x|a/y/z|a0|b/c/d|b/c/e|b/f|c|per%cent|pl+us|sp ace|\xc3\xa9/1", "a-");
    expect_list(&h, "/bkt?list-type=2&delimiter=/c/",
                ".hidden|a-b|a/x|a/y/z|a0|b/f|c|per%cent|pl+us|sp ace|\xc3\xa9/1", "b/c/");
    expect_list(&h, "/bkt?list-type=2&max-keys=0", "", "");
    expect_list(&h, "/other?list-type=2", "", "");
    harness_done(&h);
}

// Pages of every size, with and without delimiter, V1 and V2, add up to the same listing as one
// page.
Test(origin_directory_relay, paging)
{
    static const char *const forms[] = {"list-type=2",
                                        "list-type=2&delimiter=/",
                                        "list-type=2&delimiter=-",
                                        "list-type=2&prefix=b/",
                                        "delimiter=/",
                                        "delimiter=-",
                                        "prefix=a"};
    struct harness h = {0};
    make_tree(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    for (size_t f = 0; f < ARRAY_LEN(forms); f++) {
        for (unsigned size = 1; size <= 5; size++) {
            struct buf whole, pages, found, target, next;
            struct relay_run run;
            struct buf *all[] = {&whole, &pages, &found, &target, &next};
            for (size_t i = 0; i < ARRAY_LEN(all); i++) {
                buf_init(all[i], 1 << 20);
            }
            buf_printf(&target, "/bkt?%s", forms[f]);
            list(&h, buf_cstr(&target), &run);
            elements(buf_cstr(&run.answer), "Key", &whole);
            relay_run_done(&run);
            bool v2 = strstr(forms[f], "list-type=2") != NULL;
            for (unsigned page = 0; page < 40; page++) {
                target.len = 0;
                buf_printf(&target, "/bkt?%s&max-keys=%u", forms[f], size);
                if (page > 0) {
                    buf_append_cstr(&target, v2 ? "&continuation-token=" : "&marker=");
                    buf_append_uri_encoded(&target, buf_span(&next), false);
                }
                list(&h, buf_cstr(&target), &run);
                cr_assert_eq(run.status, 200);
                elements(buf_cstr(&run.answer), "Key", &found);
                if (found.len > 0) {
                    buf_append_cstr(&pages, pages.len > 0 ? "|" : "");
                    buf_append_span(&pages, buf_span(&found));
                }
                bool more = strstr(buf_cstr(&run.answer), "<IsTruncated>true") != NULL;
                elements(buf_cstr(&run.answer), v2 ? "NextContinuationToken" : "NextMarker", &next);
                if (more && next.len == 0) { // V1 without delimiter: the last key
                    const char *last = strrchr(buf_cstr(&found), '|');
                    buf_append_cstr(&next, last != NULL ? last + 1 : buf_cstr(&found));
                }
                cr_assert_eq(more, next.len > 0);
                relay_run_done(&run);
                if (!more) {
                    break;
                }
            }
            cr_assert_str_eq(buf_cstr(&pages), buf_cstr(&whole), "%s by %u: %s", forms[f], size,
                             buf_cstr(&pages));
            for (size_t i = 0; i < ARRAY_LEN(all); i++) {
                buf_done(all[i]);
            }
        }
    }
    harness_done(&h);
}

// A page that was cut parks its walk, and the next page takes it. The number of parked walks is
// bounded.
Test(origin_directory_relay, walks_are_parked)
{
    struct harness h = {0};
    struct relay_run run;
    make_tree(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    struct origin_directory *directory = h.origin->driver_state;
    list(&h, "/bkt?list-type=2&max-keys=2&prefix=b/", &run);
    cr_assert_eq(origin_directory_scans_parked(directory->scans), 1);
    struct buf token;
    buf_init(&token, 4096);
    elements(buf_cstr(&run.answer), "NextContinuationToken", &token);
    relay_run_done(&run);
    struct buf target;
    buf_init(&target, 4096);
    buf_append_cstr(&target, "/bkt?list-type=2&max-keys=2&prefix=b/&continuation-token=");
    buf_append_uri_encoded(&target, buf_span(&token), false);
    list(&h, buf_cstr(&target), &run);
    cr_assert_eq(origin_directory_scans_parked(directory->scans), 0);
    relay_run_done(&run);
    // The same page again: no walk is parked for it, so it is found by seeking.
    list(&h, buf_cstr(&target), &run);
    cr_assert_not_null(strstr(buf_cstr(&run.answer), "<Key>b/f</Key>"));
    relay_run_done(&run);
    for (unsigned i = 0; i < 40; i++) {
        target.len = 0;
        buf_printf(&target, "/bkt?list-type=2&max-keys=1&start-after=%c", 'A' + (int)i % 26);
        list(&h, buf_cstr(&target), &run);
        relay_run_done(&run);
    }
    cr_assert_leq(origin_directory_scans_parked(directory->scans), 16);
    buf_done(&token);
    buf_done(&target);
    harness_done(&h);
}

// Links inside the tree are listed as their targets, and links out of it are not listed. A loop
// ends.
Test(origin_directory_relay, links)
{
    struct harness h = {0};
    char path[512];
    harness_make_root(&h);
    harness_write(&h, "bkt/real/file", "x", 1);
    harness_write(&h, "other/secret", "x", 1);
    static const char *const links[][2] = {{"bkt/link", "real/file"}, {"bkt/real/loop", ".."},
                                           {"bkt/dirlink", "real"},   {"bkt/out", "/etc/passwd"},
                                           {"bkt/outdir", "/etc"},    {"bkt/dangling", "nothing"}};
    for (size_t i = 0; i < ARRAY_LEN(links); i++) {
        harness_path(&h, links[i][0], path, sizeof(path));
        cr_assert_eq(symlink(links[i][1], path), 0);
    }
    harness_path(&h, "bkt/pipe", path, sizeof(path));
    cr_assert_eq(mkfifo(path, 0600), 0);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    expect_list(&h, "/bkt?list-type=2", "dirlink/file|link|real/file", "");
    expect_list(&h, "/bkt?list-type=2&delimiter=/", "link", "dirlink/|real/");
    harness_done(&h);
}

static void expect_status(struct harness *h, const char *script, const char *method,
                          const char *target, unsigned status)
{
    struct relay_run run = {.method = method, .target = target};
    disk_fault_set(script);
    relay_run(h, 0, &run);
    disk_fault_set("");
    cr_assert_eq(run.err, ERR_OK);
    cr_assert_eq(run.status, status, "%s %s %s: %u", script, method, target, run.status);
    relay_run_done(&run);
}

// Makes the first call of a listing fail, then the second, and so on, until the listing has fewer
// calls. Returns how many calls it has.
static unsigned expect_whole_or_error(struct harness *h, const char *name, const char *what,
                                      const char *target)
{
    struct relay_run whole, run;
    list(h, target, &whole);
    unsigned nth = 0;
    bool has_failed = true;
    while (has_failed) {
        char script[64];
        snprintf(script, sizeof(script), "%s:%u:%s", name, ++nth, what);
        disk_fault_set(script);
        list(h, target, &run);
        has_failed = run.status == 503;
        cr_assert(has_failed || strcmp(buf_cstr(&run.answer), buf_cstr(&whole.answer)) == 0,
                  "%s %s: %u %s", script, target, run.status, buf_cstr(&run.answer));
        relay_run_done(&run);
    }
    disk_fault_set("");
    relay_run_done(&whole);
    return nth - 1;
}

// If a folder or a file cannot be opened or read to its end, the listing fails. It is never shorter
// than the tree.
Test(origin_directory_relay, listing_is_whole_or_fails)
{
    static const char *const targets[] = {"/", "/bkt?list-type=2", "/bkt?list-type=2&delimiter=/",
                                          "/bkt?list-type=2&prefix=b/c/",
                                          "/bkt?list-type=2&prefix=b/&delimiter=/"};
    struct harness h = {0};
    char path[512];
    make_tree(&h);
    harness_path(&h, "bkt/b/link", path, sizeof(path));
    cr_assert_eq(symlink("c/d", path), 0);
    harness_path(&h, "bkt/dirlink", path, sizeof(path));
    cr_assert_eq(symlink("b/c", path), 0);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        cr_assert_geq(expect_whole_or_error(&h, "tree.open", "eio", targets[i]), 1);
        cr_assert_geq(expect_whole_or_error(&h, "tree.open", "emfile", targets[i]), 1);
        cr_assert_geq(expect_whole_or_error(&h, "tree.read", "eio", targets[i]), 1);
    }
    harness_done(&h);
}

// If the bucket's folder cannot be opened, it is unknown whether the bucket exists. So the answer
// is not NoSuchBucket.
Test(origin_directory_relay, bucket_that_cannot_be_opened_is_an_error)
{
    struct harness h = {0};
    make_tree(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    expect_status(&h, "tree.open:1:eio", "HEAD", "/bkt", 503);
    expect_status(&h, "tree.open:1:emfile", "HEAD", "/bkt", 503);
    expect_status(&h, "tree.open:1:emfile", "GET", "/bkt?location", 503);
    expect_status(&h, "tree.open:1:eacces", "HEAD", "/bkt", 403);
    expect_status(&h, "", "HEAD", "/nobucket", 404);
    harness_done(&h);
}

// A listing leaves out subfolders that Forebay may not read. But if Forebay may not read the folder
// that the client names, the listing is denied.
Test(origin_directory_relay, unreadable_folders)
{
    struct harness h = {0};
    struct relay_run run;
    harness_make_root(&h);
    harness_write(&h, "bkt/file", "x", 1);
    harness_write(&h, "bkt/sub/file", "x", 1);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    // Opens: the bucket, its folder, the file, the subfolder.
    disk_fault_set("tree.open:4:eacces");
    list(&h, "/bkt?list-type=2", &run);
    disk_fault_set("");
    cr_assert_eq(run.status, 200);
    cr_assert_not_null(strstr(buf_cstr(&run.answer), "<Key>file</Key>"));
    cr_assert_null(strstr(buf_cstr(&run.answer), "sub/file"));
    relay_run_done(&run);
    expect_status(&h, "tree.open:2:eacces", "GET", "/bkt?list-type=2", 403);
    expect_status(&h, "tree.open:3:eacces", "GET", "/bkt?list-type=2&prefix=sub/", 403);
    harness_done(&h);
}

// While it is not NULL, readdir() returns it once, instead of the next name.
static struct dirent *extra_entry;

// Replaces that of the C library, because no file system of a test has names longer than 255 bytes.
struct dirent *readdir(DIR *dir)
{
    struct dirent *(*real)(DIR *) = (struct dirent * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir");
    struct dirent *entry = extra_entry;
    extra_entry = NULL;
    return entry != NULL ? entry : real(dir);
}

// A FUSE file system may have names of more than 255 bytes. A listing takes them, up to the longest
// key.
Test(origin_directory_relay, names_longer_than_name_max)
{
    static const size_t lens[] = {255, 256, 257, 1023, 1024, 1025, 1500};
    static const char *const targets[] = {"/bkt?list-type=2", "/bkt?list-type=2&delimiter=/"};
    struct harness h = {0};
    harness_make_root(&h);
    harness_write(&h, "bkt/file", "x", 1);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    struct dirent *entry = calloc(1, sizeof(*entry) + 2000);
    for (size_t i = 0; i < ARRAY_LEN(lens) * ARRAY_LEN(targets); i++) {
        memset(entry->d_name, 'n', lens[i / 2]);
        (&entry->d_name[0])[lens[i / 2]] = '\0';
        entry->d_type = DT_DIR;
        extra_entry = entry;
        expect_list(&h, targets[i % 2], "file", "");
        cr_assert_null(extra_entry);
    }
    free(entry);
    harness_done(&h);
}

// Buckets are the first-level folders; other operations are refused in S3's form.
Test(origin_directory_relay, other_operations)
{
    struct harness h = {0};
    struct relay_run run;
    struct buf found;
    make_tree(&h);
    harness_init_directory(&h, 1, DISK_ENGINE_THREADS);
    buf_init(&found, 4096);
    list(&h, "/", &run);
    elements(buf_cstr(&run.answer), "Name", &found);
    cr_assert_str_eq(buf_cstr(&found), "bkt|other");
    relay_run_done(&run);
    list(&h, "/bkt?location", &run);
    cr_assert_eq(run.status, 200);
    cr_assert_not_null(strstr(buf_cstr(&run.answer), "LocationConstraint"));
    relay_run_done(&run);
    static const struct {
        const char *method, *target;
        unsigned status;
        const char *code;
    } cases[] = {
        {"HEAD", "/bkt", 200, ""},
        {"HEAD", "/nobucket", 404, ""},
        {"GET", "/nobucket?list-type=2", 404, "NoSuchBucket"},
        {"GET", "/nobucket?location", 404, "NoSuchBucket"},
        {"GET", "/bkt?list-type=2&continuation-token=%00bad", 400, "InvalidArgument"},
        {"GET", "/bkt?acl", 501, "NotImplemented"},
        {"DELETE", "/bkt/a/x", 501, "NotImplemented"},
        {"PUT", "/bkt/new", 501, "NotImplemented"},
        {"POST", "/bkt/a?uploads", 501, "NotImplemented"},
        {"GET", "/bkt/a/x?versionId=1", 501, "NotImplemented"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        run = (struct relay_run){.method = cases[i].method, .target = cases[i].target};
        relay_run(&h, 0, &run);
        cr_assert_eq(run.err, ERR_OK);
        cr_assert_eq(run.status, cases[i].status, "%s %s: %u", cases[i].method, cases[i].target,
                     run.status);
        cr_assert_not_null(strstr(buf_cstr(&run.answer), cases[i].code));
        cr_assert(strcmp(cases[i].method, "HEAD") != 0 || run.answer.len == 0);
        relay_run_done(&run);
    }
    char path[512];
    harness_path(&h, "bkt/a/x", path, sizeof(path));
    cr_assert_eq(access(path, F_OK), 0);
    buf_done(&found);
    harness_done(&h);
}
