// SPDX-License-Identifier: Apache-2.0
// The key of a form upload is found before its file, wherever the bytes were cut, and nowhere else.
#include "proxy/pass_private.h"

#include <string.h>

#include "test.h"

#define TYPE "multipart/form-data; boundary=\"B\""
#define FIELD(name, value)                                                                         \
    "--B\r\nContent-Disposition: form-data; name=\"" name "\"\r\n\r\n" value "\r\n"
#define FILE_PART(filename)                                                                        \
    "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" filename                   \
    "\"\r\nContent-Type: text/plain\r\n\r\nbytes\r\n--B--\r\n"

static enum pass_form_state find(const char *type, const char *head, size_t len, char *ret_key)
{
    struct arena *arena = arena_new(1u << 20);
    struct span key = {NULL, 0};
    bool is_signed = false;
    enum pass_form_state state =
        pass_form_find_key(arena, span_from_cstr(type), (struct span){head, len}, &key, &is_signed);
    ret_key[0] = '\0';
    if (state == PASS_FORM_KEY) {
        memcpy(ret_key, key.ptr, key.len);
        ret_key[key.len] = '\0';
    }
    arena_free(arena);
    return state;
}

Test(pass_form, keys)
{
    static const struct {
        const char *type, *head;
        enum pass_form_state state;
        const char *key;
    } rows[] = {
        {TYPE, FIELD("key", "a/b c") FILE_PART("x"), PASS_FORM_KEY, "a/b c"},
        {TYPE, FIELD("acl", "private") FIELD("key", "k") FILE_PART("x"), PASS_FORM_KEY, "k"},
        {TYPE, FIELD("key", "up/${filename}") FILE_PART("C:\\\\dir\\\\x.txt"), PASS_FORM_KEY,
         "up/x.txt"},
        {TYPE, FIELD("key", "up/${filename}-${filename}") FILE_PART("y"), PASS_FORM_KEY, "up/y-y"},
        {TYPE, "preamble\r\n" FIELD("key", "k") FILE_PART("x"), PASS_FORM_KEY, "k"},
        {"Multipart/Form-Data;boundary=B", FIELD("Key", "k") FILE_PART("x"), PASS_FORM_KEY, "k"},
        {TYPE, FILE_PART("x"), PASS_FORM_MISSING, ""},
        {TYPE, FIELD("key", "a") FIELD("key", "b") FILE_PART("x"), PASS_FORM_MISSING, ""},
        {TYPE, FIELD("acl", "x") "--B--\r\n", PASS_FORM_MISSING, ""},
        {TYPE, FIELD("key", "") FILE_PART("x"), PASS_FORM_MISSING, ""},
        {"text/plain", FIELD("key", "k") FILE_PART("x"), PASS_FORM_MISSING, ""},
        {"multipart/form-data", FIELD("key", "k") FILE_PART("x"), PASS_FORM_MISSING, ""},
        {TYPE, FIELD("key", "k"), PASS_FORM_MORE, ""},
        {TYPE, "", PASS_FORM_MORE, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char key[1100];
        cr_expect(find(rows[i].type, rows[i].head, strlen(rows[i].head), key) == rows[i].state,
                  "row %zu", i);
        cr_expect(strcmp(key, rows[i].key) == 0, "row %zu", i);
    }
}

// Cut anywhere, a form is never read wrongly: more is asked for, or the key is right.
Test(pass_form, cut_anywhere)
{
    static const char head[] = FIELD("acl", "private") FIELD("key", "dir/k") FILE_PART("x");
    char key[1100];
    bool found = false;
    for (size_t len = 0; len <= sizeof(head) - 1; len++) {
        enum pass_form_state state = find(TYPE, head, len, key);
        cr_assert(state == PASS_FORM_MORE || state == PASS_FORM_KEY);
        cr_assert(state != PASS_FORM_KEY || strcmp(key, "dir/k") == 0);
        cr_assert(!found || state == PASS_FORM_KEY);
        found = state == PASS_FORM_KEY;
    }
    cr_assert(found);
}

// A signature is seen wherever it stands before the file, in either of its two kinds.
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
        struct span key;
        bool is_signed = !rows[i].is_signed;
        cr_expect_eq(
            pass_form_find_key(arena, SPAN(TYPE), span_from_cstr(rows[i].head), &key, &is_signed),
            PASS_FORM_KEY, "row %zu", i);
        cr_expect_eq(is_signed, rows[i].is_signed, "row %zu", i);
        arena_free(arena);
    }
}
