// SPDX-License-Identifier: Apache-2.0
// The lines are sorted, and each knows the next shorter prefix that holds it. What holds a name
// lies at or before its place; whatever stands between a prefix and a name that it holds begins
// with that prefix, too. So a look-up is a search for the last line that is not behind the name,
// and its chain of prefixes.
#include "proxy/core/pins_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define NAME_MAX_BYTES (255u + 1u + S3_KEY_MAX)

struct pins_table *pins_table_ref(struct pins_table *table)
{
    atomic_fetch_add_explicit(&table->refs, 1, memory_order_relaxed);
    return table;
}

void pins_table_unref(struct pins_table *table)
{
    if (table != NULL && atomic_fetch_sub_explicit(&table->refs, 1, memory_order_acq_rel) == 1) {
        free(table->names);
        free(table);
    }
}

static int line_compare(const void *a, const void *b)
{
    const struct pins_line *x = a, *y = b;
    int by_name = span_compare(x->name, y->name);
    return by_name != 0 ? by_name : (int)x->is_prefix - (int)y->is_prefix;
}

static bool line_holds(const struct pins_line *line, struct span name)
{
    return name.len >= line->name.len && (line->is_prefix || name.len == line->name.len) &&
           memcmp(name.ptr, line->name.ptr, line->name.len) == 0;
}

static bool name_make(struct span bucket, struct span key, char ret_text[NAME_MAX_BYTES],
                      struct span *ret_name)
{
    if (bucket.len == 0 || bucket.len + 1 + key.len > NAME_MAX_BYTES) {
        return false;
    }
    memcpy(ret_text, bucket.ptr, bucket.len);
    ret_text[bucket.len] = '/';
    if (key.len > 0) {
        memcpy(ret_text + bucket.len + 1, key.ptr, key.len);
    }
    *ret_name = (struct span){ret_text, bucket.len + 1 + key.len};
    return true;
}

bool pins_table_has(const struct pins_table *table, struct span bucket, struct span key)
{
    char text[NAME_MAX_BYTES];
    struct span name;
    if (table == NULL || table->count == 0 || !name_make(bucket, key, text, &name)) {
        return false;
    }
    unsigned low = 0, high = table->count; // the first line behind the name
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (span_compare(table->lines[middle].name, name) > 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    for (unsigned at = low > 0 ? low - 1 : table->count; at < table->count;
         at = table->lines[at].parent) { // each is shorter, or an object before its prefix
        if (line_holds(&table->lines[at], name)) {
            return true;
        }
    }
    return false;
}

// --- making --------------------------------------------------------------------------------------

// Names are borrowed until now: sorted, copied, chained.
static void table_finish(struct pins_table *table)
{
    size_t len = 0;
    qsort(table->lines, table->count, sizeof(table->lines[0]), line_compare);
    for (unsigned i = 0; i < table->count; i++) {
        len += table->lines[i].name.len;
    }
    char *at = table->names = malloc(len + 1);
    check(at != NULL);
    table->next_until_s = 0;
    for (unsigned i = 0; i < table->count; i++) {
        struct pins_line *line = &table->lines[i];
        memcpy(at, line->name.ptr, line->name.len);
        line->name.ptr = at;
        at += line->name.len;
        unsigned parent = i > 0 ? i - 1 : table->count;
        while (parent < table->count &&
               !(table->lines[parent].is_prefix && line_holds(&table->lines[parent], line->name))) {
            parent = table->lines[parent].parent;
        }
        line->parent = parent;
        if (line->until_s != 0 &&
            (table->next_until_s == 0 || line->until_s < table->next_until_s)) {
            table->next_until_s = line->until_s;
        }
    }
}

static struct pins_table *table_new(void)
{
    struct pins_table *table = calloc(1, sizeof(*table));
    check(table != NULL);
    atomic_init(&table->refs, 1);
    return table;
}

static struct pins_line *line_find(struct pins_table *table, struct span name, bool is_prefix)
{
    for (unsigned i = 0; i < table->count; i++) {
        struct pins_line *line = &table->lines[i];
        if (line->is_prefix == is_prefix && span_compare(line->name, name) == 0) {
            return line;
        }
    }
    return NULL;
}

// `ret_name`: memory for its name, which is the line's then. False: no room.
static bool line_add(struct pins_table *table, struct proxy_pin *item, char *ret_name)
{
    struct span name;
    if (!name_make(item->bucket, item->key, ret_name, &name)) {
        return false;
    }
    struct pins_line *line = line_find(table, name, item->is_prefix);
    if (line == NULL && table->count == PROXY_PINS_MAX) {
        return false;
    }
    item->is_changed = line == NULL || line->until_s != item->until_s;
    if (line == NULL) {
        line = &table->lines[table->count++];
    }
    *line =
        (struct pins_line){.name = name, .is_prefix = item->is_prefix, .until_s = item->until_s};
    return true;
}

static void line_remove(struct pins_table *table, struct proxy_pin *item)
{
    char text[NAME_MAX_BYTES];
    struct span name;
    struct pins_line *line = name_make(item->bucket, item->key, text, &name)
                                 ? line_find(table, name, item->is_prefix)
                                 : NULL;
    item->is_changed = line != NULL;
    if (line != NULL) {
        *line = table->lines[--table->count];
    }
}

struct pins_table *pins_table_change(const struct pins_table *from, bool pins,
                                     struct proxy_pin *items, unsigned count, uint64_t now_s)
{
    struct pins_table *table = table_new();
    bool has_room = true;
    char *names = malloc((size_t)count * NAME_MAX_BYTES + 1);
    check(names != NULL);
    for (unsigned i = 0; from != NULL && i < from->count; i++) {
        if (from->lines[i].until_s == 0 || from->lines[i].until_s > now_s) {
            table->lines[table->count++] = from->lines[i];
        }
    }
    for (unsigned i = 0; i < count && has_room; i++) {
        if (pins) {
            has_room = line_add(table, &items[i], names + (size_t)i * NAME_MAX_BYTES);
        } else {
            line_remove(table, &items[i]);
        }
    }
    if (has_room) {
        table_finish(table);
    } else {
        free(table);
        table = NULL;
    }
    free(names);
    return table;
}

// --- as text -------------------------------------------------------------------------------------

void pins_table_render(const struct pins_table *table, struct buf *out)
{
    for (unsigned i = 0; i < table->count; i++) {
        const struct pins_line *line = &table->lines[i];
        buf_printf(out, "%s %llu ", line->is_prefix ? "prefix" : "object",
                   (unsigned long long)line->until_s);
        buf_append_uri_encoded(out, line->name, true);
        buf_append_cstr(out, "\n");
    }
}

static bool line_parse(struct span text, char *ret_name, struct pins_line *ret_line)
{
    struct span kind, until;
    size_t len = 0;
    if (!span_split(&text, ' ', &kind) || !span_split(&text, ' ', &until) || text.ptr == NULL ||
        text.len > 3 * NAME_MAX_BYTES || !span_to_u64(until, &ret_line->until_s) ||
        !span_uri_decode(text, ret_name, &len)) {
        return false;
    }
    ret_line->is_prefix = span_equal_cstr(kind, "prefix");
    ret_line->name = (struct span){ret_name, len};
    return (ret_line->is_prefix || span_equal_cstr(kind, "object")) && len <= NAME_MAX_BYTES &&
           len > 0 && memchr(ret_name, '/', len) != NULL;
}

struct pins_table *pins_table_parse(struct span text)
{
    struct pins_table *table = table_new();
    char *names = malloc(text.len + 1); // decoded they are no longer
    check(names != NULL);
    char *at = names;
    bool is_good = true;
    struct span line;
    while (is_good && text.len > 0 && span_split(&text, '\n', &line)) {
        is_good =
            table->count < PROXY_PINS_MAX && line_parse(line, at, &table->lines[table->count]);
        at += is_good ? table->lines[table->count].name.len : 0;
        table->count += is_good;
    }
    if (is_good) {
        table_finish(table);
    } else {
        free(table);
        table = NULL;
    }
    free(names);
    return table;
}
