// SPDX-License-Identifier: Apache-2.0
// Proves: `keys new` prints a keys file that grants exactly what --allow says.
#include "test.h"

#include "auth/auth.h"
#include "commands/commands.h"
#include "output.h"
#include "s3/s3.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// The first principal of the file that was printed.
static const struct access_keys_principal *principal_of(const char *text,
                                                        struct access_keys **ret_table)
{
    char path[] = "/tmp/forebay-keys-XXXXXX";
    char id[64] = "";
    struct buf errors;
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    buf_init(&errors, 65536);
    enum err err = access_keys_load(path, ret_table, &errors);
    cr_assert_eq(err, ERR_OK);
    unlink(path);
    buf_done(&errors);
    cr_assert_eq(sscanf(text, "- id: %63s", id), 1);
    return access_keys_find(*ret_table, span_from_cstr(id));
}

static const char *print(const char *a, const char *b, const char *c, int *ret_code)
{
    const char *const words[] = {"keys", a, b, c, NULL};
    return output_of_command(words, ret_code);
}

Test(command_keys, the_entry_can_be_loaded)
{
    struct access_keys *table = NULL;
    int code;
    const char *text = print("new", "trainer", "--allow=data/a\"b\\:c/ #:write,any", &code);
    cr_assert_eq(code, EXIT_CODE_OK);
    const struct access_keys_principal *p = principal_of(text, &table);
    cr_assert_not_null(p);
    cr_assert_eq(p->id.len, 20);
    cr_assert_eq(p->secret.len, 40);
    cr_assert_eq(p->allow_count, 1);
    cr_assert(span_equal_cstr(p->allow[0].bucket, "data"));
    cr_assert(span_equal_cstr(p->allow[0].prefix, "a\"b\\:c/ #"));
    cr_assert_eq(p->allow[0].ops, S3_ALLOW_WRITE | S3_ALLOW_ANY);
    access_keys_unref(table);
}

Test(command_keys, without_allow_it_may_do_nothing_and_with_a_bucket_it_reads)
{
    struct access_keys *table = NULL;
    int code;
    const struct access_keys_principal *p = principal_of(print("new", "x", NULL, &code), &table);
    cr_assert_eq(p->allow_count, 0);
    access_keys_unref(table);
    p = principal_of(print("new", "x", "--allow=b", &code), &table);
    cr_assert_eq(p->allow_count, 1);
    cr_assert_eq(p->allow[0].prefix.len, 0);
    cr_assert_eq(p->allow[0].ops, S3_ALLOW_READ | S3_ALLOW_LIST);
    access_keys_unref(table);
}

Test(command_keys, no_two_are_the_same)
{
    char first[4096];
    int code;
    (void)snprintf(first, sizeof(first), "%s", print("new", "x", NULL, &code));
    cr_assert_str_neq(first, print("new", "x", NULL, &code));
}

Test(command_keys, mistakes)
{
    static const char *const bad[][3] = {
        {"old", "x", NULL},
        {"new", "x y", NULL},
        {"new", "", NULL},
        {"new", "x", "--allow="},
        {"new", "x", "--allow=/p"},
        {"new", "x", "--allow=b:raed"},
        {"new", "x", "--allow=b:"},
        {"new", "x", "--allow=b/\n"},
        {"new", NULL, NULL},
        {"new", "x", "--allow=b/\xff"},
        {"new", "x", "--allow=b/\xc2\x85"},
        {"new", "x", "--allow=b/\xe2\x80\xa8"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int code;
        cr_assert_str_eq(print(bad[i][0], bad[i][1], bad[i][2], &code), "");
        cr_assert_eq(code, EXIT_CODE_USAGE);
    }
}
