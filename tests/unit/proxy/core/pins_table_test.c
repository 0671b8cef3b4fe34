// SPDX-License-Identifier: Apache-2.0
// Proves: rules made by command match exactly their pins, as a plain search would, and each ends at
// its time. Rendered text is parsed to the same table. A text that is no table is refused.
#include "proxy/core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static struct proxy_pin pin(const char *bucket, const char *key, bool is_prefix, uint64_t until_s)
{
    return (struct proxy_pin){.bucket = span_from_cstr(bucket),
                              .key = span_from_cstr(key),
                              .is_prefix = is_prefix,
                              .until_s = until_s};
}

static bool has(struct pins_table *table, const char *bucket, const char *key)
{
    static const struct proxy_rule rule = {.cache = true, .group = STORE_PRIORITY_NORMAL};
    struct live live = {.pins = table};
    unsigned group = rules_group(&live, &rule, span_from_cstr(bucket), span_from_cstr(key));
    return group == STORE_GROUP_PINS;
}

Test(pins_table, holds)
{
    struct proxy_pin items[] = {pin("b", "dir/", true, 0), pin("b", "dir/sub/", true, 0),
                                pin("b", "one", false, 0), pin("c", "", true, 0),
                                pin("b", "two", false, 0), pin("b", "two", true, 0),
                                pin("d", "dir/", false, 0)};
    struct pins_table *table = pins_table_change(NULL, true, items, ARRAY_LEN(items), 0);
    cr_assert(has(table, "b", "dir/") && has(table, "b", "dir/x") && has(table, "b", "dir/sub/x"));
    cr_assert(has(table, "b", "dir/sua") && has(table, "b", "dir/zz"));
    cr_assert(has(table, "b", "one") && !has(table, "b", "one1") && !has(table, "b", "on"));
    cr_assert(has(table, "b", "two") && has(table, "b", "two/x"));
    cr_assert(has(table, "c", "") && has(table, "c", "any/thing"));
    cr_assert(has(table, "d", "dir/") && !has(table, "d", "dir/x"));
    cr_assert(!has(table, "b", "") && !has(table, "b", "dir") && !has(table, "bb", "dir/x"));
    cr_assert(!has(table, "a", "x") && !has(table, "e", "x") && !has(NULL, "b", "one"));
    pins_table_unref(table);
}

// Compares with a search through all pins, over names that are prefixes of each other.
Test(pins_table, holds_as_a_plain_search_says)
{
    unsigned seed = 1;
    for (unsigned round = 0; round < 200; round++) {
        char names[24][8];
        struct proxy_pin items[24];
        for (unsigned i = 0; i < ARRAY_LEN(items); i++) {
            unsigned len = (unsigned)rand_r(&seed) % 6;
            for (unsigned j = 0; j < len; j++) {
                names[i][j] = "ab/*,\\"[rand_r(&seed) % 6];
            }
            names[i][len] = '\0';
            items[i] = pin("b", names[i], rand_r(&seed) % 3 == 0 || len == 0, 0);
        }
        struct pins_table *table =
            pins_table_change(NULL, true, items, 1 + (unsigned)rand_r(&seed) % 24, 0);
        for (unsigned n = 0; n < 400; n++) {
            char key[8];
            unsigned len = (unsigned)rand_r(&seed) % 7;
            for (unsigned j = 0; j < len; j++) {
                key[j] = "ab/*,\\"[rand_r(&seed) % 6];
            }
            key[len] = '\0';
            char name[16];
            (void)snprintf(name, sizeof(name), "b/%s", key);
            bool holds = false;
            for (unsigned i = 0; i < table->count; i++) {
                bool is_prefix;
                char text[PINS_NAME_MAX];
                struct span pinned = pins_table_name(&table->rules[i], text, &is_prefix);
                bool begins = strncmp(name, pinned.ptr, pinned.len) == 0;
                holds |= begins && (is_prefix || strlen(name) == pinned.len);
            }
            cr_assert_eq(has(table, "b", key), holds, "round %u, %s", round, name);
        }
        pins_table_unref(table);
    }
}

// A sign of the glob in a key stands for itself, and the longest key is matched to its end.
Test(pins_table, matches_names_literally)
{
    static char stars[S3_KEY_MAX + 1], other[S3_KEY_MAX + 1];
    memset(stars, '*', S3_KEY_MAX);
    memset(other, '*', S3_KEY_MAX);
    other[S3_KEY_MAX - 1] = 'x';
    struct proxy_pin items[] = {pin("b", "{a,b}?", false, 0), pin("b", "c*/", true, 0),
                                pin("b", stars, false, 0)};
    struct pins_table *table = pins_table_change(NULL, true, items, ARRAY_LEN(items), 0);
    cr_assert(has(table, "b", "{a,b}?") && !has(table, "b", "ax") && !has(table, "b", "{a,b}x"));
    cr_assert(has(table, "b", "c*/x") && !has(table, "b", "cx/x"));
    cr_assert(has(table, "b", stars) && !has(table, "b", other) && !has(table, "b", "x"));
    pins_table_unref(table);
}

// The rule of the configuration decides whether there is anything to pin.
Test(pins_table, gives_way_to_rules_that_store_nothing_or_pin_themselves)
{
    struct proxy_pin items[] = {pin("b", "", true, 0)};
    struct pins_table *table = pins_table_change(NULL, true, items, 1, 0);
    struct proxy_rule rules[] = {{.cache = false, .group = 7},
                                 {.cache = true, .pin = true, .group = 12},
                                 {.cache = true, .group = 9}};
    struct live live = {.pins = table}, bare = {.pins = NULL};
    static const unsigned groups[] = {7, 12, STORE_GROUP_PINS};
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        cr_assert_eq(rules_group(&live, &rules[i], SPAN("b"), SPAN("k")), groups[i]);
        cr_assert_eq(rules_group(&bare, &rules[i], SPAN("b"), SPAN("k")), rules[i].group);
    }
    pins_table_unref(table);
}

Test(pins_table, changes)
{
    struct proxy_pin first[] = {pin("b", "a", false, 100), pin("b", "p", true, 0)};
    struct pins_table *one = pins_table_change(NULL, true, first, 2, 10);
    cr_assert(first[0].is_changed && first[1].is_changed && one->next_until_s == 100);
    struct proxy_pin again[] = {pin("b", "p", true, 0), pin("b", "a", false, 200)};
    struct pins_table *two = pins_table_change(one, true, again, 2, 50);
    cr_assert(!again[0].is_changed && again[1].is_changed && two->count == 2);
    cr_assert_eq(two->next_until_s, 200);
    struct pins_table *three = pins_table_change(two, false, NULL, 0, 200);
    cr_assert(three->count == 1 && three->next_until_s == 0 && !has(three, "b", "a"));
    struct proxy_pin off[] = {pin("b", "p", false, 0), pin("b", "p", true, 0)};
    struct pins_table *four = pins_table_change(three, false, off, 2, 0);
    cr_assert(!off[0].is_changed && off[1].is_changed && four->count == 0);
    cr_assert(has(one, "b", "a") && has(two, "b", "pq"), "the ones before stay as they are");
    pins_table_unref(one);
    pins_table_unref(two);
    pins_table_unref(three);
    pins_table_unref(four);
}

Test(pins_table, ends)
{
    static struct proxy_pin items[PROXY_PINS_MAX + 1];
    static char names[PROXY_PINS_MAX + 1][8];
    for (unsigned i = 0; i <= PROXY_PINS_MAX; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "%u", i);
        items[i] = pin("b", names[i], false, 0);
    }
    cr_assert_null(pins_table_change(NULL, true, items, PROXY_PINS_MAX + 1, 0));
    struct pins_table *table = pins_table_change(NULL, true, items, PROXY_PINS_MAX, 0);
    cr_assert_null(pins_table_change(table, true, &items[PROXY_PINS_MAX], 1, 0));
    struct pins_table *same = pins_table_change(table, true, items, 3, 0);
    cr_assert_eq(same->count, PROXY_PINS_MAX);
    pins_table_unref(same);
    pins_table_unref(table);
}

Test(pins_table, text)
{
    struct proxy_pin items[] = {pin("b", "a b\n%", false, 7), pin("c", "", true, 0),
                                pin("c", "\xff/x", true, 0)};
    struct pins_table *table = pins_table_change(NULL, true, items, ARRAY_LEN(items), 0);
    struct buf text, again;
    buf_init(&text, 4096);
    buf_init(&again, 4096);
    pins_table_render(table, &text);
    struct pins_table *parsed = pins_table_parse(buf_span(&text));
    cr_assert_not_null(parsed);
    cr_assert(has(parsed, "b", "a b\n%") && has(parsed, "c", "any") && parsed->next_until_s == 7);
    pins_table_render(parsed, &again);
    cr_assert(span_equal(buf_span(&text), buf_span(&again)));
    pins_table_unref(parsed);
    pins_table_unref(table);
    static const char *const bad[] = {"prefix 0\n",    "prefix x b/\n",   "thing 0 b/\n",
                                      "object 0 b\n",  "object 0 b/%4\n", "object 0 b/%00\n",
                                      "object 0 /k\n", "object 0 \n",     "\n"};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_null(pins_table_parse(span_from_cstr(bad[i])), "%s", bad[i]);
    }
    struct buf many;
    buf_init(&many, 65536);
    for (unsigned i = 0; i <= PROXY_PINS_MAX; i++) {
        buf_printf(&many, "object 0 b/%u\n", i);
    }
    cr_assert_null(pins_table_parse(buf_span(&many)));
    buf_done(&many);
    struct pins_table *none = pins_table_parse((struct span){0});
    cr_assert_eq(none->count, 0);
    pins_table_unref(none);
    buf_done(&text);
    buf_done(&again);
}
