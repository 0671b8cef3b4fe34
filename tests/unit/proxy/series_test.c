// SPDX-License-Identifier: Apache-2.0
// Which object comes next is told from numbers in names, and only where objects are begun in order.
#include "proxy/get_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

#define REACH 8u

static struct object_key *key_of(const char *realm, const char *name)
{
    size_t len = strlen(name);
    struct object_key *key = calloc(1, sizeof(*key) + len + 1);
    check(key != NULL);
    atomic_init(&key->refs, 1);
    key->realm = span_from_cstr(realm);
    key->bucket = SPAN("bucket");
    memcpy(key + 1, name, len);
    key->key = (struct span){(const char *)(key + 1), len};
    return key;
}

static void begin_in(struct series_table *table, const char *realm, const char *name)
{
    static uint64_t now_us;
    struct object_key *key = key_of(realm, name);
    series_begin(table, key, REACH, ++now_us);
    object_key_unref(key);
}

static void begin(struct series_table *table, const char *name)
{
    begin_in(table, "|origin", name);
}

// Is that the name of what comes next? NULL: nothing does.
static bool next_is(struct series_table *table, const char *of, const char *wanted)
{
    struct object_key *key = key_of("|origin", of);
    char text[S3_KEY_MAX];
    struct span name;
    bool has_next = series_next(table, key, REACH, text, &name);
    object_key_unref(key);
    return has_next == (wanted != NULL) && (!has_next || span_equal_cstr(name, wanted));
}

// The third in order; the number is the one that differs, and keeps its width.
Test(series, names)
{
    static const char *const rows[][4] = {
        {"s/shard-000008.tar", "s/shard-000009.tar", "s/shard-000010.tar", "s/shard-000011.tar"},
        {"train-008-of-100.tar", "train-009-of-100.tar", "train-010-of-100.tar",
         "train-011-of-100.tar"},
        {"7", "8", "9", "10"},
        {"part8.x", "part9.x", "part10.x", "part11.x"},
        {"998.tar", "999.tar", "1000.tar", "1001.tar"},
        {"0.tar", "1.tar", "2.tar", "3.tar"},
        {"e1/a.07", "e1/a.08", "e1/a.10", "e1/a.11"},
        {"3/data", "4/data", "5/data", "6/data"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct series_table table = {0};
        begin(&table, rows[i][0]);
        cr_assert(next_is(&table, rows[i][0], NULL));
        begin(&table, rows[i][1]);
        cr_assert(next_is(&table, rows[i][1], NULL));
        begin(&table, rows[i][2]);
        cr_assert(next_is(&table, rows[i][2], rows[i][3]), "%s", rows[i][3]);
        series_forget(&table);
    }
}

// Names that count in another way, that differ in more, or that have no number to speak of.
Test(series, no_series)
{
    static const char *const rows[][3] = {
        {"a8", "a9", "a010"},
        {"a1-1", "a2-2", "a3-3"},
        {"a1.tar", "a2.tar", "a3.gz"},
        {"a1/1", "a2/1", "a2/2"},
        {"x", "y", "z"},
        {"a1", "a2", "b3"},
        {"1111111111111111111111", "1111111111111111111112", "1111111111111111111113"},
        {"", "1", ""},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct series_table table = {0};
        for (unsigned j = 0; j < 3; j++) {
            begin(&table, rows[i][j]);
        }
        cr_assert(next_is(&table, rows[i][2], NULL), "%s", rows[i][2]);
        series_forget(&table);
    }
}

// Another realm's objects are not the same series.
Test(series, realms)
{
    struct series_table table = {0};
    begin(&table, "1");
    begin_in(&table, "other|origin", "2");
    begin(&table, "3");
    begin_in(&table, "other|origin", "4");
    cr_assert(next_is(&table, "3", NULL));
    begin(&table, "4");
    cr_assert(next_is(&table, "4", "5"));
    series_forget(&table);
}

// Readers side by side, in nearly any order; what is named is named once, and not too far.
Test(series, side_by_side)
{
    struct series_table table = {0};
    static const char *const names[] = {"s2", "s0", "s1", "s3", "s2", "s6", "s5", "s4"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        begin(&table, names[i]);
    }
    cr_assert(next_is(&table, "s4", "s7"));
    cr_assert(next_is(&table, "s6", "s8"));
    cr_assert(next_is(&table, "s5", "s9"));
    begin(&table, "s7");
    cr_assert(next_is(&table, "s7", "s10"));
    for (unsigned i = 11; i <= 7 + REACH; i++) {
        char wanted[8];
        (void)snprintf(wanted, sizeof(wanted), "s%u", i);
        cr_assert(next_is(&table, "s7", wanted));
    }
    cr_assert(next_is(&table, "s7", NULL));
    series_forget(&table);
}

// Shuffled ones are no series, nor is one whose end was reached, until it is read in order again.
Test(series, ends)
{
    struct series_table table = {0};
    static const char *const names[] = {"s10", "s11", "s50", "s51", "s20", "s70", "s71", "s40"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        begin(&table, names[i]);
        cr_assert(next_is(&table, names[i], NULL));
    }
    begin(&table, "s41");
    begin(&table, "s42");
    cr_assert(next_is(&table, "s42", "s43"));
    struct object_key *key = key_of("|origin", "s43");
    series_end(&table, key);
    object_key_unref(key);
    cr_assert(next_is(&table, "s42", NULL));
    begin(&table, "s0");
    begin(&table, "s1");
    cr_assert(next_is(&table, "s1", NULL));
    begin(&table, "s2");
    cr_assert(next_is(&table, "s2", "s3"));
    series_forget(&table);
}

// More series than there are places: the one that was used least lately goes.
Test(series, places)
{
    struct series_table table = {0};
    char name[16];
    for (unsigned i = 0; i <= SERIES_MAX; i++) {
        for (unsigned j = 0; j < 3; j++) {
            (void)snprintf(name, sizeof(name), "%c-%u", (char)('a' + i), j);
            begin(&table, name);
        }
    }
    cr_assert(next_is(&table, "a-2", NULL));
    cr_assert(next_is(&table, "b-2", "b-3"));
    series_forget(&table);
}

// A name that would be too long is none.
Test(series, longest)
{
    struct series_table table = {0};
    char name[S3_KEY_MAX + 2];
    memset(name, 'x', sizeof(name));
    name[S3_KEY_MAX] = '\0';
    for (char digit = '7'; digit <= '9'; digit++) {
        name[S3_KEY_MAX - 1] = digit;
        begin(&table, name);
    }
    cr_assert(next_is(&table, name, NULL));
    series_forget(&table);
}
