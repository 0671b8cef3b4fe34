// SPDX-License-Identifier: Apache-2.0
// Proves: a form as browsers and SDKs write it has one key, wherever the bytes are cut. A form that
// another parser could read differently is refused.
#include "proxy/pass/pass_private.h"

#include <string.h>

#include "test.h"

#define TYPE "multipart/form-data; boundary=\"B\""
#define PART(disposition, value)                                                                   \
    "--B\r\nContent-Disposition: form-data; " disposition "\r\n\r\n" value "\r\n"
#define FIELD(name, value) PART("name=\"" name "\"", value)
#define FILE_HEAD(filename)                                                                        \
    "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" filename                   \
    "\"\r\nContent-Type: text/plain\r\n\r\n"
#define FILE_PART(filename) FILE_HEAD(filename) "bytes\r\n--B--\r\n"

static enum pass_form_state read_form(const char *type, const char *head, size_t len, char *ret_key)
{
    struct arena *arena = arena_new(1u << 20);
    struct pass_form form;
    struct headers headers = {0};
    cr_assert(headers_add(&headers, arena, SPAN("Content-Type"), span_from_cstr(type)));
    enum pass_form_state state =
        pass_form_read(arena, &headers, SPAN("bkt"), (struct span){head, len}, &form);
    ret_key[0] = '\0';
    if (state == PASS_FORM_KEY) {
        memcpy(ret_key, form.key.ptr, form.key.len);
        ret_key[form.key.len] = '\0';
        cr_assert_leq(form.file_at, len);
    }
    arena_free(arena);
    return state;
}

Test(pass_form, keys)
{
    static const struct {
        const char *type, *head, *key;
    } rows[] = {
        {TYPE, FIELD("key", "a/b c") FILE_PART("x"), "a/b c"},
        {TYPE, FIELD("acl", "private") FIELD("key", "k") FILE_PART("x"), "k"},
        {TYPE, FIELD("bucket", "bkt") FIELD("key", "k") FILE_PART(""), "k"},
        {TYPE, FIELD("key", "up/${filename}") FILE_PART("x y.txt"), "up/x y.txt"},
        {TYPE, FIELD("key", "up/${filename}-${filename}") FILE_PART("y"), "up/y-y"},
        {TYPE, FIELD("key", "k") FILE_PART("%22a/b%0A"), "k"},
        {TYPE, FIELD("key", "k") PART("name=\"file\"", "b"), "k"},
        {"Multipart/Form-Data;boundary=B", FIELD("Key", "k") FILE_PART("x"), "k"},
        {"multipart/form-data; boundary=B",
         "--B\r\ncontent-disposition: form-data; name=\"key\"\r\n\r\nk\r\n" FILE_PART("x"), "k"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char key[1100];
        cr_expect(read_form(rows[i].type, rows[i].head, strlen(rows[i].head), key) == PASS_FORM_KEY,
                  "row %zu", i);
        cr_expect(strcmp(key, rows[i].key) == 0, "row %zu: %s", i, key);
    }
}

#define K FIELD("key", "k")
#define F FILE_PART("x")

Test(pass_form, ambiguous_forms_are_refused)
{
    static const struct {
        const char *type, *head;
    } rows[] = {
        // the kind and its boundary
        {"text/plain", K F},
        {"multipart/form-data", K F},
        {"multipart/form-data; boundary=", K F},
        {"multipart/form-data; boundary=B; boundary=C", K F},
        {"multipart/form-data; boundary=C; boundary=B", K F},
        {"multipart/form-data; boundary=\"B\"; charset=utf-16", K F},
        {"multipart/form-data; charset=utf-8; boundary=B", K F},
        {"multipart/form-data; boundary=\"\\B\"", K F},
        {"multipart/form-data; boundary=B\"", K F},
        {"multipart/form-data; boundary*=utf-8''B", K F},
        {"multipart/form-data, text/plain; boundary=B", K F},
        {"multipart/form-dataX; boundary=B", K F},
        {TYPE, "preamble\r\n" K F},
        {TYPE, "\r\n" K F},
        {TYPE, "--Bx" K F},
        {TYPE, "--B \r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n" F},
        // the key
        {TYPE, F},
        {TYPE, FIELD("key", "a") FIELD("key", "b") F},
        {TYPE, FIELD("key", "a") FIELD("KEY", "b") F},
        {TYPE, FIELD("acl", "x") "--B--\r\n"},
        {TYPE, FIELD("key", "") F},
        {TYPE, FIELD("key", "a\tb") F},
        {TYPE, FIELD("key", "a\r\nb") F},
        {TYPE, FIELD("key", "a\r\n") F},
        {TYPE, FIELD("key", "${filename}") FILE_PART("")},
        {TYPE, FIELD("key", "${filename}") FILE_PART("dir/x")},
        {TYPE, FIELD("key", "${filename}") FILE_PART("a%2Fb")},
        {TYPE, FIELD("key", "${filename}") PART("name=\"file\"", "b")},
        {TYPE, FIELD("bucket", "other") K F},
        {TYPE, FIELD("x-amz-copy-source", "/other/secret") K F},
        {TYPE, K FIELD("X-Amz-Rename-Source", "victim") F},
        // how a name is written
        {TYPE, PART("name*=utf-8''key", "victim") K F},
        {TYPE, PART("name=\"acl\"; name*=utf-8''key", "victim") K F},
        {TYPE, PART("name=key", "victim") F},
        {TYPE, PART("name='key'", "victim") F},
        {TYPE, PART("name=\"acl\"; name=\"key\"", "victim") K F},
        {TYPE, PART("name=\"\\key\"", "victim") K F},
        {TYPE, PART("name=\"k\\\"ey\"", "victim") K F},
        {TYPE, PART("name=\"\"", "victim") K F},
        {TYPE, PART("x=\"y\"; name=\"key\"", "victim") F},
        {TYPE, PART("name=\"key\" ; x", "victim") F},
        {TYPE, PART("name=\"key\"; filename=\"f\"", "victim") F},
        {TYPE, PART("name=\"key\"; filename*=utf-8''f", "victim") F},
        {TYPE, K FILE_PART("a\\\"; name=\\\"key")},
        {TYPE, K PART("name=\"file\"; filename=\"f\"; filename*=utf-8''g", "b")},
        {TYPE, K PART("filename=\"f\"; name=\"file\"", "b")},
        // lines of a part
        {TYPE, "--B\r\nContent-Disposition: form-data;\r\n name=\"key\"\r\n\r\nvictim\r\n" F},
        {TYPE, "--B\r\nContent-Disposition: form-data; name=\"acl\"\r\nContent-Disposition: "
               "form-data; name=\"key\"\r\n\r\nk\r\n" K F},
        {TYPE, "--B\r\nX: y\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n" F},
        {TYPE, "--B\r\nContent-Disposition: form-data; name=\"key\"\r\nContent-Type: "
               "text/plain; charset=utf-16\r\n\r\nk\r\n" F},
        {TYPE, "--B\r\nContent-Disposition : form-data; name=\"key\"\r\n\r\nk\r\n" F},
        {TYPE, "--B\r\nContent-Disposition: attachment; name=\"key\"\r\n\r\nk\r\n" F},
        {TYPE, "--B\r\nContent-Disposition:\tform-data; name=\"key\"\r\n\r\nk\r\n" F},
        {TYPE, "--B\r\nContent-Disposition: form-data; name=\"key\"\n\r\n\r\nk\r\n" F},
        {TYPE, "--B\r\n\r\n\r\nk\r\n" K F},
        // the boundary elsewhere
        {TYPE, FIELD("acl", "x\n--B\nContent-Disposition: form-data; name=\"key\"") K F},
        {TYPE, FIELD("acl", "x--B") K F},
        {TYPE, FIELD("acl", "x\r\n--BB") K F},
        {TYPE, "--B\r\nContent-Disposition: form-data; name=\"--B\"\r\n\r\nk\r\n" K F},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char key[1100];
        cr_expect(read_form(rows[i].type, rows[i].head, strlen(rows[i].head), key) ==
                      PASS_FORM_REFUSED,
                  "row %zu: %s", i, rows[i].head);
    }
    struct arena *arena = arena_new(1u << 20);
    struct headers headers = {0};
    struct pass_form form;
    cr_assert(headers_add(&headers, arena, SPAN("Content-Type"), SPAN(TYPE)));
    cr_assert(headers_add(&headers, arena, SPAN("content-type"), SPAN("text/plain")));
    cr_assert_eq(pass_form_read(arena, &headers, SPAN("bkt"), SPAN(K F), &form), PASS_FORM_REFUSED);
    arena_free(arena);
}

// A form that is cut at any byte is never read wrongly: either more bytes are requested, or the key
// is right.
Test(pass_form, cut_anywhere)
{
    static const char head[] = FIELD("acl", "private") FIELD("key", "dir/k") FILE_PART("x");
    char key[1100];
    bool found = false;
    for (size_t len = 0; len <= sizeof(head) - 1; len++) {
        enum pass_form_state state = read_form(TYPE, head, len, key);
        cr_assert(state == PASS_FORM_MORE || state == PASS_FORM_KEY, "%zu", len);
        cr_assert(state != PASS_FORM_KEY || strcmp(key, "dir/k") == 0);
        cr_assert(!found || state == PASS_FORM_KEY);
        found = state == PASS_FORM_KEY;
    }
    cr_assert(found);
}

// Checks the rest of the form after the first byte of the file, in pieces of every size.
Test(pass_form, tails)
{
    static const char large[3000] = {[0] = '\r', '\n', '-', '-', 'b'};
    static const struct {
        const char *tail;
        enum err err;
        bool is_closed;
    } rows[] = {
        {"bytes\r\n--B--\r\n", ERR_OK, true},
        {"\r\n--B--", ERR_OK, true},
        {"\r\n\r\n-\r\n--\r\n--b--\r\n--B--\r\n", ERR_OK, true},
        {"bytes\r\n" FIELD("submit", "Upload") "--B--\r\n", ERR_OK, true},
        {"bytes\r\n--B-", ERR_OK, false},
        {"bytes", ERR_OK, false},
        {"bytes\r\n--B--\r", ERR_OK, false},
        {"bytes\r\n" FIELD("submit", "Upload"), ERR_OK, false},
        {"bytes\r\n" FIELD("key", "victim") "--B--\r\n", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n" FIELD("bucket", "b") "--B--\r\n", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n" FIELD("policy", "b") "--B--\r\n", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n" FIELD("x-amz-copy-source", "b") "--B--\r\n", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n" FILE_PART("y"), ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n" PART("name*=utf-8''key", "victim") "--B--", ERR_INVALID_ARGUMENT, false},
        {"bytes\n--B--\r\n", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n--Bx", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n--B \r\n", ERR_INVALID_ARGUMENT, false},
        {"x--B--\r\n", ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n--B--\r\n" K, ERR_INVALID_ARGUMENT, false},
        {"bytes\r\n--B--x", ERR_INVALID_ARGUMENT, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        size_t len = strlen(rows[i].tail);
        for (size_t piece = 1; piece <= len; piece++) {
            struct pass_form_tail tail;
            pass_form_tail_init(&tail, SPAN("B"));
            cr_assert_eq(pass_form_tail_feed(&tail, (struct span){large, sizeof(large)}), ERR_OK);
            enum err err = ERR_OK;
            for (size_t at = 0; err == ERR_OK && at < len; at += piece) {
                err = pass_form_tail_feed(
                    &tail, (struct span){rows[i].tail + at, min_u64(piece, len - at)});
            }
            cr_assert_eq(err, rows[i].err, "row %zu in pieces of %zu", i, piece);
            cr_assert(err != ERR_OK || pass_form_tail_is_closed(&tail) == rows[i].is_closed,
                      "row %zu", i);
        }
    }
    struct pass_form_tail tail; // lines of a part are bounded
    pass_form_tail_init(&tail, SPAN("B"));
    cr_assert_eq(pass_form_tail_feed(&tail, SPAN("x\r\n--B\r\n")), ERR_OK);
    cr_assert_eq(pass_form_tail_feed(&tail, (struct span){large, sizeof(large)}),
                 ERR_INVALID_ARGUMENT);
}

// A signature is found anywhere before the file, in either of its two kinds.
Test(pass_form, signatures)
{
    static const struct {
        const char *head;
        bool is_signed;
    } rows[] = {
        {FIELD("key", "k") FIELD("acl", "private") FILE_PART("x"), false},
        {FIELD("policy", "e30=") FIELD("key", "k") FILE_PART("x"), true},
        {FIELD("key", "k") FIELD("X-Amz-Signature", "00") FILE_PART("x"), true},
        {FIELD("key", "k") FIELD("AWSAccessKeyId", "AK") FIELD("signature", "s") FILE_PART("x"),
         true},
        {FIELD("key", "k") FIELD("x-amz-credential", "AK/1/r/s3/aws4_request") FILE_PART("x"),
         true},
        {FIELD("key", "policy") FIELD("x-amz-meta-policy", "x") FILE_PART("policy"), false},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct arena *arena = arena_new(1u << 20);
        struct headers headers = {0};
        struct pass_form form;
        cr_assert(headers_add(&headers, arena, SPAN("content-type"), SPAN(TYPE)));
        cr_expect_eq(
            pass_form_read(arena, &headers, SPAN("bkt"), span_from_cstr(rows[i].head), &form),
            PASS_FORM_KEY, "row %zu", i);
        cr_expect_eq(form.is_signed, rows[i].is_signed, "row %zu", i);
        arena_free(arena);
    }
}
