// SPDX-License-Identifier: Apache-2.0
// Proves: listings predict which object comes next, and only where clients begin objects in the
// order of the listing.
#include "proxy/core/core.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static int origins[2];
static struct series_table *table;
static uint64_t left_out_before;

static const struct origin *origin_at(unsigned i)
{
    return (const struct origin *)(const void *)&origins[i];
}

static void list_in(unsigned origin, const char *bucket, const char *name, bool follows)
{
    series_listed(table, origin_at(origin), span_from_cstr(bucket), span_from_cstr(name), follows);
}

static struct object_key key_of(const char *name)
{
    return (struct object_key){.bucket = SPAN("bucket"),
                               .key = span_from_cstr(name),
                               .origin = (struct origin *)(void *)&origins[0]};
}

static const char *numbered(const char *prefix, unsigned number)
{
    static char names[4][64];
    static unsigned at;
    at = (at + 1) % 4;
    (void)snprintf(names[at], sizeof(names[at]), "%s%04u", prefix, number);
    return names[at];
}

// A listing of `count` objects.
static void list(const char *prefix, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        list_in(0, "bucket", numbered(prefix, i), i > 0);
    }
}

static bool begin(const char *name)
{
    struct object_key key = key_of(name);
    return series_begin(table, &key);
}

static void read_one(const char *name)
{
    (void)begin(name);
    series_end(table);
}

// Whether this is the name of the next object. NULL: there is none.
static bool next_is(const char *of, const char *wanted)
{
    struct object_key key = key_of(of);
    char text[S3_KEY_MAX];
    struct span name;
    bool has_next = series_next(table, &key, text, &name);
    return has_next == (wanted != NULL) && (!has_next || span_equal_cstr(name, wanted));
}

static void refuse(const char *name, bool is_gone)
{
    struct object_key key = key_of(name);
    series_refuse(table, &key, is_gone);
}

static bool missed(const char *name)
{
    struct object_key key = key_of(name);
    return series_missed(table, &key);
}

static uint64_t left_out(void)
{
    return stats_sum(COUNTER_readahead_names_left_out) - left_out_before;
}

static void begin_table(void)
{
    left_out_before = stats_sum(COUNTER_readahead_names_left_out);
    table = series_table_new();
}

static void end_table(void)
{
    series_table_free(table);
}

Test(series, the_third_in_order_names_the_fourth_once)
{
    begin_table();
    list("s/", 8);
    for (unsigned i = 0; i < 2; i++) {
        read_one(numbered("s/", i));
        cr_assert(next_is(numbered("s/", i), NULL));
    }
    read_one("s/0002");
    cr_assert(next_is("s/0002", "s/0003"));
    cr_assert(next_is("s/0002", NULL));
    cr_assert(begin("s/0003")); // was named
    series_end(table);
    cr_assert_not(begin("s/0004"));
    series_end(table);
    cr_assert(next_is("s/0004", "s/0005"));
    end_table();
}

// The order is the listing's. Each folder, bucket and origin has a series of its own, and no series
// crosses them.
Test(series, the_next_object_is_the_next_of_its_folder_in_the_listing)
{
    begin_table();
    const char *const names[] = {"a/1", "a/10", "a/9", "a/b", "a/c", "a/d", "a/e", "a/f"};
    for (unsigned i = 0; i < 8; i++) {
        list_in(0, "bucket", names[i], i > 0);
        list_in(1, "bucket", names[i], i > 0);
        list_in(0, "other", names[i], i > 0);
    }
    list_in(0, "bucket", "b/1", true);
    for (unsigned i = 0; i < 3; i++) {
        read_one(names[i]);
    }
    cr_assert(next_is("a/9", "a/b"));
    for (unsigned i = 3; i < 8; i++) {
        read_one(names[i]);
    }
    cr_assert(next_is("a/f", NULL)); // the last one
    cr_assert(next_is("b/1", NULL));
    cr_assert(next_is("unknown", NULL));
    end_table();
}

// Between pages of a listing that were not joined there is a gap, until a listing joins them.
Test(series, a_gap)
{
    begin_table();
    for (unsigned i = 0; i < 8; i++) {
        list_in(0, "bucket", numbered("s/", i), i > 0 && i != 3);
    }
    for (unsigned i = 0; i < 3; i++) {
        read_one(numbered("s/", i));
    }
    cr_assert(next_is("s/0002", NULL));
    list_in(0, "bucket", "s/0003", true);
    cr_assert(next_is("s/0002", "s/0003"));
    end_table();
}

// A new name is inserted between its two neighbours. A removed name makes the ones around it
// neighbours.
Test(series, comes_and_goes)
{
    begin_table();
    list("s/", 12);
    list_in(0, "bucket", "s/0002a", false);
    for (unsigned i = 0; i < 3; i++) {
        read_one(numbered("s/", i));
    }
    cr_assert(next_is("s/0002", "s/0002a"));
    refuse("s/0002a", true);
    cr_assert(next_is("s/0002", "s/0003"));
    refuse("s/0003", true);
    cr_assert(next_is("s/0002", "s/0004"));
    refuse("s/0000", true);
    read_one("s/0004");
    cr_assert(next_is("s/0004", "s/0005"));
    end_table();
}

// The series ends at an object that was denied, until it is listed again.
Test(series, denied)
{
    begin_table();
    list("s/", 8);
    for (unsigned i = 0; i < 3; i++) {
        read_one(numbered("s/", i));
    }
    cr_assert(next_is("s/0002", "s/0003"));
    refuse("s/0003", false);
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 4; i < 8; i++) {
            read_one(numbered("s/", i));
        }
        for (unsigned i = 0; i < 3; i++) {
            read_one(numbered("s/", i));
        }
        cr_assert(next_is("s/0002", NULL));
    }
    list("s/", 8);
    cr_assert(next_is("s/0002", "s/0003"));
    end_table();
}

// Clients that read objects in no order make no object the next one, however many readers there
// are.
Test(series, in_any_order)
{
    enum { COUNT = 200, ROUNDS = 20 };
    uint32_t state = 12345;
    for (unsigned readers = 1; readers <= 16; readers *= 4) {
        begin_table();
        list("s/", COUNT);
        unsigned order[COUNT], named = 0, under_way = 0;
        for (unsigned i = 0; i < COUNT; i++) {
            order[i] = i;
        }
        for (unsigned round = 0; round < ROUNDS; round++) {
            for (unsigned i = COUNT - 1; i > 0; i--) {
                state = state * 1664525u + 1013904223u;
                unsigned j = (state >> 8) % (i + 1), kept = order[i];
                order[i] = order[j];
                order[j] = kept;
            }
            for (unsigned i = 0; i < COUNT; i++) {
                if (under_way == readers) {
                    series_end(table);
                    under_way--;
                }
                struct object_key key = key_of(numbered("s/", order[i]));
                char text[S3_KEY_MAX];
                struct span name;
                (void)series_begin(table, &key);
                under_way++;
                named += series_next(table, &key, text, &name);
            }
        }
        while (under_way > 0) {
            series_end(table);
            under_way--;
        }
        cr_assert_leq(named, ROUNDS * COUNT / 100, "%u readers: %u", readers, named);
        end_table();
    }
}

// Readers work side by side, each on every fourth object. Each of them names an object that none of
// them has.
Test(series, side_by_side)
{
    begin_table();
    enum { READERS = 4, COUNT = 64 };
    list("s/", COUNT);
    unsigned named = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        if (i >= READERS) {
            series_end(table);
        }
        (void)begin(numbered("s/", i));
        if (i >= READERS - 1) {
            struct object_key key = key_of(numbered("s/", i - READERS + 1));
            char text[S3_KEY_MAX];
            struct span name;
            bool has_next = series_next(table, &key, text, &name);
            cr_assert(!has_next || span_compare(name, span_from_cstr(numbered("s/", i))) > 0);
            named += has_next;
        }
    }
    for (unsigned i = 0; i < READERS; i++) {
        series_end(table);
    }
    cr_assert_gt(named, COUNT / 2);
    end_table();
}

// After one fetch in vain, the series needs more objects in order. After a fetch that was read, it
// needs as many as before.
Test(series, in_vain)
{
    begin_table();
    list("s/", 64);
    for (unsigned i = 0; i < 3; i++) {
        read_one(numbered("s/", i));
    }
    cr_assert(next_is("s/0002", "s/0003"));
    cr_assert(missed("s/0003"));
    for (unsigned i = 20; i < 24; i++) {
        read_one(numbered("s/", i));
        cr_assert(next_is(numbered("s/", i), NULL));
    }
    read_one("s/0024");
    cr_assert(next_is("s/0024", "s/0025"));
    read_one("s/0025");
    cr_assert_not(missed("s/0025"));
    for (unsigned i = 40; i < 43; i++) {
        read_one(numbered("s/", i));
    }
    cr_assert(next_is("s/0042", "s/0043"));
    end_table();
}

// A second epoch is read like the first one. A client that returns to an object which was read long
// ago names nothing.
Test(series, epochs)
{
    begin_table();
    list("s/", 16);
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        unsigned named = 0;
        for (unsigned i = 0; i < 16; i++) {
            read_one(numbered("s/", i));
            named += i + 1 < 16 && next_is(numbered("s/", i), numbered("s/", i + 1));
        }
        cr_assert_eq(named, 16 - 3);
    }
    cr_assert(next_is("s/0005", NULL));
    end_table();
}

// The product of two counts of readers is 2^33.
Test(series, a_crowd)
{
    enum { CROWD = 1 << 16 };
    begin_table();
    list("s/", 8);
    for (unsigned i = 0; i < CROWD; i++) {
        (void)begin("elsewhere");
    }
    (void)begin("s/0000");
    series_end(table);
    series_end(table);
    (void)begin("s/0001"); // 2^17 in front of it may be near
    cr_assert(next_is("s/0001", NULL));
    for (unsigned i = 0; i < CROWD; i++) {
        series_end(table);
    }
    end_table();
}

// There are more series than slots: the least recently used one is dropped, and its names are
// counted.
Test(series, places)
{
    begin_table();
    char folder[16];
    for (unsigned i = 0; i <= 32; i++) {
        (void)snprintf(folder, sizeof(folder), "%02u/", i);
        list(folder, 8);
    }
    cr_assert_eq(left_out(), 8);
    for (unsigned i = 0; i < 3; i++) {
        read_one(numbered("00/", i));
        read_one(numbered("01/", i));
    }
    cr_assert(next_is("00/0002", NULL));
    cr_assert(next_is("01/0002", "01/0003"));
    end_table();
}

// There are more names than there is room for: other series give way, then the newest names are
// left out.
Test(series, names)
{
    begin_table();
    list("a/", 100);
    char name[700];
    memset(name, 'x', sizeof(name));
    memcpy(name, "b/", 2);
    for (unsigned i = 0; i < 2000; i++) {
        (void)snprintf(name + 690, sizeof(name) - 690, "%08u", i);
        name[698] = '\0';
        list_in(0, "bucket", name, i > 0);
    }
    cr_assert_eq(left_out(), 100 + 2000 - (1u << 20) / 696);
    for (unsigned i = 0; i < 3; i++) {
        read_one(numbered("a/", i));
    }
    cr_assert(next_is("a/0002", NULL));
    uint64_t before = left_out();
    for (unsigned i = 0; i < 20000; i++) {
        char many[32];
        (void)snprintf(many, sizeof(many), "c/%06u", i);
        list_in(0, "bucket", many, i > 0);
    }
    cr_assert_eq(left_out(), before + (1u << 20) / 696 + 20000 - 16384);
    end_table();
}

// Names that are none, and the longest.
Test(series, odd_names)
{
    begin_table();
    list_in(0, "bucket", "folder/", false);
    list_in(0, "bucket", "", false);
    char name[S3_KEY_MAX + 2];
    memset(name, 'x', sizeof(name));
    name[S3_KEY_MAX + 1] = '\0';
    list_in(0, "bucket", name, false);
    cr_assert(next_is(name, NULL));
    name[S3_KEY_MAX] = '\0';
    for (char c = 'a'; c <= 'h'; c++) {
        name[S3_KEY_MAX - 1] = c;
        list_in(0, "bucket", name, c > 'a');
    }
    for (char c = 'a'; c <= 'c'; c++) {
        name[S3_KEY_MAX - 1] = c;
        read_one(name);
    }
    char wanted[S3_KEY_MAX + 1];
    memcpy(wanted, name, sizeof(wanted));
    wanted[S3_KEY_MAX - 1] = 'd';
    cr_assert(next_is(name, wanted));
    end_table();
}

static void *reader_of(void *ctx)
{
    unsigned first = *(const unsigned *)ctx;
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = first; i < 32; i += 4) {
            char name[16], text[S3_KEY_MAX];
            (void)snprintf(name, sizeof(name), "s/%04u", i);
            struct object_key key = key_of(name);
            struct span next;
            (void)series_begin(table, &key);
            list_in(0, "bucket", name, i > 0);
            if (series_next(table, &key, text, &next) && i % 8 == 3) {
                key.key = next;
                series_refuse(table, &key, true);
            }
            series_end(table);
        }
    }
    return NULL;
}

// Any thread.
Test(series, threads)
{
    begin_table();
    list("s/", 32);
    pthread_t threads[4];
    unsigned firsts[4];
    for (unsigned i = 0; i < 4; i++) {
        firsts[i] = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, reader_of, &firsts[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
    }
    end_table();
}
