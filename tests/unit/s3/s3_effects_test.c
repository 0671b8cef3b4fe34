// SPDX-License-Identifier: Apache-2.0
// Proves: the effects of a request at an origin. Each known operation has those of its row, and
// everything else more rather than less. Each source is found exactly once, at any position.
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>

#include "test.h"

static struct arena *arena;
static struct s3_request r;
static struct s3_effects effects;

enum { READ = 1, LIST = 2, WRITE = 4, DELETE = 8, ANY = 16 };

// `header_lines`: "name: value" lines, or NULL.
static enum err find(const char *method, const char *target, const char *header_lines)
{
    arena_free(arena);
    arena = arena_new(1 << 20);
    struct headers headers = {0};
    struct span rest = span_from_cstr(header_lines != NULL ? header_lines : "");
    struct span line;
    while (span_split(&rest, '\n', &line) && line.len > 0) {
        size_t colon = span_find(line, ':');
        struct span value = {line.ptr + colon + 1, line.len - colon - 1};
        cr_assert(headers_add(&headers, arena, (struct span){line.ptr, colon}, span_trim(value)));
    }
    cr_assert_eq(s3_request_parse(arena, span_from_cstr(method), SPAN("127.0.0.1"),
                                  span_from_cstr(target), &headers, NULL, &r),
                 ERR_OK);
    return s3_effects_find(arena, &r, &headers, SPAN("real"), &effects);
}

static void expect(const char *method, const char *target, const char *header_lines,
                   const char *wanted)
{
    static const char *const SCOPES[] = {"service", "bucket", "prefix", "key", "somewhere"};
    cr_assert_eq(find(method, target, header_lines), ERR_OK, "%s %s", method, target);
    struct buf out;
    buf_init(&out, 4096);
    for (unsigned i = 0; i < effects.count; i++) {
        const struct s3_effect *e = &effects.items[i];
        buf_append_cstr(&out, i > 0 ? ", " : "");
        for (unsigned bit = 0; bit < 5; bit++) {
            if ((e->rights & 1u << bit) != 0) {
                buf_append_char(&out, "rlwda"[bit]);
            }
        }
        buf_printf(&out, " %s %.*s/%.*s%s", SCOPES[e->scope], (int)e->bucket.len, e->bucket.ptr,
                   (int)e->key.len, e->key.ptr != NULL ? e->key.ptr : "",
                   e->changes ? " changes" : "");
    }
    cr_assert_str_eq(buf_cstr(&out), wanted, "%s %s: %s, not %s", method, target, buf_cstr(&out),
                     wanted);
    buf_done(&out);
}

Test(s3_effects, known_operations_have_their_row)
{
    expect("GET", "/", NULL, "l service /");
    expect("GET", "/b/k", NULL, "r key b/k");
    expect("HEAD", "/b/k?partNumber=1", NULL, "r key b/k");
    expect("GET", "/b/k?uploadId=u", NULL, "l key b/k");
    expect("GET", "/b?list-type=2&prefix=a%2Fb", NULL, "l prefix b/a/b");
    expect("GET", "/b", NULL, "l prefix b/");
    expect("GET", "/b?policy", NULL, "rl bucket b/");
    expect("HEAD", "/b", NULL, "rlwda somewhere b/");
    expect("PUT", "/b/k", NULL, "w key b/k changes");
    expect("PUT", "/b/k?uploadId=u&partNumber=1", NULL, "w key b/k");
    expect("DELETE", "/b/k?versionId=v", NULL, "d key b/k changes");
    expect("POST", "/b/k?restore", NULL, "w key b/k changes");
    expect("POST", "/b?delete", NULL, "d somewhere b/");
    expect("POST", "/b", "content-type: multipart/form-data; boundary=x", "w somewhere b/");
    expect("DELETE", "/b", NULL, "wd bucket b/ changes");
    expect("PUT", "/b?lifecycle", NULL, "wd bucket b/");
    expect("PUT", "/b?replication", NULL, "a bucket b/");
}

// A request that decides who may read, or that makes the store write elsewhere, needs more than the
// rights to write and delete.
Test(s3_effects, giving_access_needs_all_of_the_bucket_or_reading_the_key)
{
    static const char *const SETTINGS[] = {"abac",
                                           "acl",
                                           "analytics&id=a",
                                           "cors",
                                           "encryption",
                                           "inventory&id=a",
                                           "logging",
                                           "metadataInventoryTable",
                                           "notification",
                                           "metadataJournalTable",
                                           "ownershipControls",
                                           "policy",
                                           "replication",
                                           "publicAccessBlock",
                                           "tagging",
                                           "website"};
    for (size_t i = 0; i < ARRAY_LEN(SETTINGS); i++) {
        char target[64];
        (void)snprintf(target, sizeof(target), "/b?%s", SETTINGS[i]);
        expect("PUT", target, NULL, "a bucket b/");
    }
    expect("POST", "/b?metadataConfiguration", NULL, "a bucket b/");
    expect("POST", "/b?metadataTable", NULL, "a bucket b/");
    expect("DELETE", "/b?policy", NULL, "a bucket b/");
    expect("DELETE", "/b?publicAccessBlock", NULL, "a bucket b/");
    expect("DELETE", "/b?ownershipControls", NULL, "a bucket b/");
    expect("DELETE", "/b?encryption", NULL, "a bucket b/");
    expect("DELETE", "/b?tagging", NULL, "a bucket b/");
    expect("DELETE", "/b?website", NULL, "wd bucket b/");
    expect("PUT", "/b/k?acl", NULL, "rw key b/k changes");
    expect("PUT", "/b/k?acl&versionId=v", NULL, "rw key b/k changes");
    expect("PUT", "/b/k?tagging", NULL, "rw key b/k changes");
    expect("DELETE", "/b/k?tagging", NULL, "rw key b/k changes");
    expect("PUT", "/b/k?encryption", NULL, "rw key b/k changes");
    expect("PUT", "/b", NULL, "w bucket b/");
    expect("PUT", "/b", "x-amz-acl: public-read", "wa bucket b/");
    expect("PUT", "/b", "X-Amz-Grant-Read: id=1", "wa bucket b/");
    expect("PUT", "/b?x-amz-object-ownership=ObjectWriter", NULL, "wa bucket b/");
    expect("PUT", "/b/k", "x-amz-acl: public-read", "w key b/k changes"); // of bytes of its own
    expect("POST", "/b/k?uploads", "x-amz-grant-read: id=1", "w key b/k");
}

Test(s3_effects, a_write_on_a_condition_tells_what_is_there)
{
    static const char *const HEADERS[] = {"If-Match: \"a\"",
                                          "if-match: *",
                                          "If-None-Match: \"a\"",
                                          "If-Unmodified-Since: x",
                                          "If-Modified-Since: x",
                                          "x-amz-if-match-size: 1",
                                          "X-Amz-Write-Offset-Bytes: 7",
                                          "x-amz-object-if-match: a",
                                          "If-None-Match: *\nIf-Match: \"a\""};
    for (size_t i = 0; i < ARRAY_LEN(HEADERS); i++) {
        expect("PUT", "/b/k", HEADERS[i], "rw key b/k changes");
        expect("DELETE", "/b/k", HEADERS[i], "rd key b/k changes");
        expect("POST", "/b/k?uploadId=u", HEADERS[i], "rw key b/k changes");
        expect("PUT", "/b/k?z=1", HEADERS[i], "ra key b/k changes");
        expect("POST", "/b?delete", HEADERS[i], "d somewhere b/"); // each of its keys, later
        cr_assert(effects.asks_what_is_there);
        expect("GET", "/b/k?acl", HEADERS[i], "r key b/k");
    }
    expect("DELETE", "/b/k?x-amz-if-match-size=1", NULL, "rd key b/k changes");
    expect("PUT", "/b/k", "If-None-Match: *", "w key b/k changes");
    expect("PUT", "/b/k", "x-amz-copy-source: s/a\nx-amz-copy-source-if-match: a",
           "w key b/k changes, r key s/a");
    cr_assert(!effects.asks_what_is_there);
}

Test(s3_effects, unknown_reads_need_the_rights_of_all_they_could_be)
{
    expect("GET", "/b/k?z=1", NULL, "r key b/k");
    expect("GET", "/b/k?uploadId=u&z=1", NULL, "rl key b/k");
    expect("HEAD", "/b/k?acl", NULL, "r key b/k");
    expect("GET", "/b?z=1", NULL, "l bucket b/");
    expect("GET", "/b?prefix=a&prefix=", NULL, "l bucket b/");
    expect("GET", "/b?policy&z=1", NULL, "rl bucket b/");
    expect("HEAD", "/b?z=1", NULL, "l bucket b/");
    expect("GET", "/?z=1", NULL, "a service /");
}

Test(s3_effects, unknown_writes_need_any)
{
    static const char *const TARGETS[] = {"/b/k?z=1",
                                          "/b/k?versionId=x",
                                          "/b/k?partNumber=1",
                                          "/b/k?x-id=PutObject&x-id=PutObject",
                                          "/b/k?uploadId=a&partNumber=1&z=1",
                                          "/b/k?renameObject&z=1",
                                          "/b/k?x-amz-new=1"};
    for (size_t i = 0; i < ARRAY_LEN(TARGETS); i++) {
        expect("PUT", TARGETS[i], NULL, "a key b/k changes");
    }
    expect("PATCH", "/b/k", NULL, "a key b/k changes");
    expect("get", "/b/k", NULL, "a key b/k changes");
    expect("DELETE", "/b/k?z=1", NULL, "a key b/k changes");
    expect("POST", "/b?delete&z=1", NULL, "a bucket b/ changes");
    expect("POST", "/b/k?delete", NULL, "a bucket b/ changes"); // its body may name keys
    expect("POST", "/b/k", NULL, "a bucket b/ changes");
    expect("PUT", "/b?z=1", NULL, "a bucket b/ changes");
    expect("POST", "/b", "content-type: text/plain", "a bucket b/ changes");
    expect("PUT", "/b/k", "X-Amz-Meta-Snowball-Auto-Extract: true", "a bucket b/ changes");
    expect("POST", "/", NULL, "a service /");
}

Test(s3_effects, sources_count_whatever_the_request_is_called)
{
    expect("PUT", "/b/k", "x-amz-copy-source: /s/a%20b?versionId=7",
           "w key b/k changes, r key s/a b");
    expect("PUT", "/b/k?uploadId=u&partNumber=1", "X-Amz-Copy-Source: s%2Fa",
           "w key b/k, r key s/a");
    expect("PUT", "/b/k?z=1", "x-amz-copy-source: s/a", "a key b/k changes, r key s/a");
    expect("PUT", "/b/k?x-amz-copy-source=s%2Fa%2520b", NULL, "w key b/k changes, r key s/a b");
    expect("PUT", "/b/k?z=1&X-Amz-Copy-Source=s/a", NULL, "a key b/k changes, r key s/a");
    expect("PATCH", "/b/k", "x-amz-copy-source: s/a", "a key b/k changes, r key s/a");
    expect("PUT", "/b/k", "x-amz-copy-source: s//../a+b%252F",
           "w key b/k changes, r key s//../a+b%2F");
    expect("PUT", "/b/k?renameObject", "x-amz-rename-source: b/old",
           "w key b/k changes, rd key b/old changes, rd key b/real/old changes");
    expect("PUT", "/b/k?renameObject", "x-amz-rename-source: old%20one",
           "w key b/k changes, rd key b/old one changes");
    expect("PUT", "/b/k?renameObject", "x-amz-rename-source: real/old",
           "w key b/k changes, rd key b/real/old changes, rd key b/old changes");
    expect("PUT", "/b/k?renameObject&z=1", "x-amz-rename-source: c/old",
           "a key b/k changes, rd key b/c/old changes, rd key c/old changes");
    expect("PUT", "/b/k?z=1", "x-amz-rename-source: old\nx-amz-copy-source: s/a",
           "a key b/k changes, r key s/a, rd key b/old changes");
}

Test(s3_effects, sources_stand_once_where_they_belong_and_can_be_read)
{
    static const struct {
        const char *method, *target, *headers;
        enum err err;
    } ROWS[] = {
        {"PUT", "/b/k", "x-amz-copy-source: b/a\nx-amz-copy-source: s/a", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b/a\nX-AMZ-Copy-Source: b/a", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?x-amz-copy-source=s/a", "x-amz-copy-source: b/a", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?x-amz-copy-source=s/a&X-Amz-Copy-Source=b/a", NULL, ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?renameObject", "x-amz-rename-source: a\nx-amz-rename-source: a",
         ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?renameObject", NULL, ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?renameObject", "x-amz-rename-source: /", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?renameObject", "x-amz-rename-source: %zz", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?renameObject", "x-amz-rename-source: a\nx-amz-copy-source: b/a",
         ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-rename-source: a", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k?tagging", "x-amz-copy-source: b/a", ERR_INVALID_ARGUMENT},
        {"POST", "/b/k?uploads", "x-amz-copy-source: b/a", ERR_INVALID_ARGUMENT},
        {"POST", "/b?delete", "x-amz-copy-source: b/a", ERR_INVALID_ARGUMENT},
        {"DELETE", "/b/k", "x-amz-copy-source: b/a", ERR_INVALID_ARGUMENT},
        {"GET", "/b/k", "x-amz-copy-source: b/a", ERR_INVALID_ARGUMENT},
        {"GET", "/b/k?x-amz-rename-source=a", NULL, ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source:", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b/", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: //b/a", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: ../b/a", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b/%4", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b/a?versionId=", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b/a?x=1", ERR_INVALID_ARGUMENT},
        {"PUT", "/b/k", "x-amz-copy-source: b/a?versionId=1&versionId=2", ERR_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert_eq(find(ROWS[i].method, ROWS[i].target, ROWS[i].headers), ROWS[i].err, "%s %s %s",
                     ROWS[i].method, ROWS[i].target,
                     ROWS[i].headers != NULL ? ROWS[i].headers : "");
    }
    cr_assert_eq(find("PUT", "/b/k", "x-amz-copy-source: arn:aws:s3:r:1:accesspoint/a/object/k"),
                 ERR_OK);
    cr_assert(effects.copy.is_there && !effects.copy.is_understood);
    cr_assert_eq(find("PUT", "/b/k", "x-amz-copy-source: arn%3Aaws%3As3%3Ar%3A1%3Aaccesspoint/a/k"),
                 ERR_OK);
    cr_assert(effects.copy.is_there && !effects.copy.is_understood);
    char longest[2 * S3_KEY_MAX] = "x-amz-copy-source: b/";
    memset(longest + strlen(longest), 'k', S3_KEY_MAX + 1);
    cr_assert_eq(find("PUT", "/b/k", longest), ERR_KEY_TOO_LONG);
}

Test(s3_effects, sources_are_sent_on_as_they_were_read)
{
    static const struct {
        const char *header, *sent;
    } ROWS[] = {
        {"x-amz-copy-source: b/a", "/there/a"},
        {"x-amz-copy-source: /b/a%2Fb+c%2B%3F d", "/there/a/b%2Bc%2B%3F%20d"},
        {"x-amz-copy-source: b%2Fa?versionId=a/b%20", "/there/a?versionId=a%2Fb%20"},
        {"x-amz-rename-source: /b/a b", "there/a%20b"},
        {"x-amz-rename-source: a%20b/c", "a%20b/c"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        bool renames = ROWS[i].header[6] == 'r';
        cr_assert_eq(find("PUT", renames ? "/b/k?renameObject" : "/b/k", ROWS[i].header), ERR_OK);
        struct buf out;
        buf_init(&out, 4096);
        s3_source_render(renames ? &effects.rename : &effects.copy, SPAN("there"), &out);
        cr_assert_str_eq(buf_cstr(&out), ROWS[i].sent);
        buf_done(&out);
    }
}

Test(s3_effects, keys_are_paths)
{
    static const struct {
        const char *key, *path;
        bool climbs, leaves;
    } ROWS[] = {
        {"a/b", "a/b", false, false},
        {"a/b/", "a/b/", false, false},
        {"a//b", "a/b", false, false},
        {"/a", "a", false, false},
        {"//", "", false, false},
        {"a/./b", "a/b", false, false},
        {"a/.", "a", false, false},
        {"a..b/c", "a..b/c", false, false},
        {"a/../b", "b", true, false},
        {"a/b/..", "a", true, false},
        {"a/b/../", "a", true, false},
        {"a/..", "", true, false},
        {"../a", "a", true, true},
        {"a/../../b", "b", true, true},
        {"..", "", true, true},
        {"a/b/../../c/", "c/", true, false},
        {"a/.../b", "a/.../b", false, false},
        {"a\\..\\b", "a\\..\\b", false, false},
        {"a\\b/../c", "c", true, false},
        {"", "", false, false},
    };
    struct s3_path path;
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        cr_assert(s3_key_as_path(span_from_cstr(ROWS[i].key), 0, &path));
        cr_assert(span_equal_cstr((struct span){path.text, path.len}, ROWS[i].path), "row %zu", i);
        cr_assert_eq(path.climbs, ROWS[i].climbs, "row %zu", i);
        cr_assert_eq(path.leaves, ROWS[i].leaves, "row %zu", i);
        cr_assert_eq(path.differs, strcmp(ROWS[i].key, ROWS[i].path) != 0, "row %zu", i);
    }
    char overlong[2 * S3_KEY_MAX];
    memset(overlong, 'a', sizeof(overlong));
    cr_assert(s3_key_as_path((struct span){overlong, S3_KEY_MAX}, 0, &path));
    cr_assert(!path.leaves && !path.differs && path.len == S3_KEY_MAX);
    cr_assert(s3_key_as_path((struct span){overlong, sizeof(overlong)}, 0, &path));
    cr_assert(path.leaves && path.differs && !path.climbs && path.len == 0);
}

Test(s3_effects, backslashes_and_nuls_give_a_key_more_readings)
{
    static const struct {
        struct span key;
        const char *paths[S3_PATH_READINGS]; // NULL: no such reading
    } ROWS[] = {
        {SPAN("a//b"), {"a/b", NULL, NULL, NULL}},
        {SPAN("a\\b"), {"a\\b", "a/b", NULL, NULL}},
        {SPAN("a/..\\..\\b\\"), {"a/..\\..\\b\\", "b/", NULL, NULL}},
        {SPAN("a\\b/../c"), {"c", "a/c", NULL, NULL}},
        {SPAN("b/.\0x"), {NULL, NULL, "b", NULL}},
        {SPAN("b\\.\0x"), {NULL, NULL, "b\\.", "b"}},
        {SPAN("b\0\\x"), {NULL, NULL, "b", NULL}},
    };
    struct s3_path path;
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        for (unsigned reading = 0; reading < S3_PATH_READINGS; reading++) {
            const char *wanted = ROWS[i].paths[reading];
            bool is_there = s3_key_as_path(ROWS[i].key, reading, &path);
            if (wanted != NULL) {
                cr_assert(is_there, "row %zu, reading %u", i, reading);
                cr_assert(span_equal_cstr((struct span){path.text, path.len}, wanted),
                          "row %zu, reading %u", i, reading);
            } else if (reading > 1 || span_find(ROWS[i].key, '\0') == ROWS[i].key.len) {
                cr_assert_not(is_there, "row %zu, reading %u", i, reading);
            }
        }
    }
}
