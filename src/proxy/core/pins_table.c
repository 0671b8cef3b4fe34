// SPDX-License-Identifier: Apache-2.0
// Like rules of the configuration, a rule by command matches by a glob. The glob is the object's
// name with a backslash before each special character, and `**` after it for a prefix. On disk, and
// for operators, the rule is shown as the name itself.
#include "proxy/core/pins_table.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define MATCH_SIZE (2 * PINS_NAME_MAX + sizeof("**"))

struct pins_table *pins_table_ref(struct pins_table *table)
{
    check(atomic_load_explicit(&table->refs, memory_order_relaxed) > 0);
    atomic_fetch_add_explicit(&table->refs, 1, memory_order_relaxed);
    return table;
}

void pins_table_unref(struct pins_table *table)
{
    check(table == NULL || atomic_load_explicit(&table->refs, memory_order_relaxed) > 0);
    if (table != NULL && atomic_fetch_sub_explicit(&table->refs, 1, memory_order_acq_rel) == 1) {
        free(table->matches);
        free(table);
    }
}

// --- globs ---------------------------------------------------------------------------------------

static char *match_append(char *at, struct span name)
{
    for (size_t i = 0; i < name.len; i++) {
        if (strchr("*?{},\\", name.ptr[i]) != NULL) {
            *at++ = '\\';
        }
        *at++ = name.ptr[i];
    }
    return at;
}

// Writes the glob of an item. Returns false if the item names no bucket or its name is too long.
static bool match_make(const struct proxy_pin *item, char ret_match[MATCH_SIZE])
{
    if (item->bucket.len == 0 || item->bucket.len + 1 + item->key.len > PINS_NAME_MAX) {
        return false;
    }
    char *at = match_append(ret_match, item->bucket);
    *at++ = '/';
    at = match_append(at, item->key);
    memcpy(at, item->is_prefix ? "**" : "", item->is_prefix ? sizeof("**") : 1);
    return true;
}

struct span pins_table_name(const struct proxy_rule *rule, char ret_text[PINS_NAME_MAX],
                            bool *ret_is_prefix)
{
    const char *at = rule->match;
    size_t len = 0;
    for (; *at != '\0' && *at != '*'; at++) {
        at += *at == '\\';
        check(*at != '\0' && len < PINS_NAME_MAX);
        ret_text[len++] = *at;
    }
    *ret_is_prefix = *at == '*';
    return (struct span){ret_text, len};
}

// --- making --------------------------------------------------------------------------------------

static int rule_compare(const void *a, const void *b)
{
    char text_a[PINS_NAME_MAX], text_b[PINS_NAME_MAX];
    bool is_prefix_a, is_prefix_b;
    struct span name_a = pins_table_name(a, text_a, &is_prefix_a);
    struct span name_b = pins_table_name(b, text_b, &is_prefix_b);
    int by_name = span_compare(name_a, name_b);
    return by_name != 0 ? by_name : (int)is_prefix_a - (int)is_prefix_b;
}

// Sorts the rules, and copies the globs, which they borrowed until now.
static void table_finish(struct pins_table *table)
{
    check(table->count <= PROXY_PINS_MAX && table->matches == NULL);
    size_t size = 0;
    qsort(table->rules, table->count, sizeof(table->rules[0]), rule_compare);
    for (unsigned i = 0; i < table->count; i++) {
        size += strlen(table->rules[i].match) + 1;
    }
    char *at = table->matches = malloc(size + 1);
    check(at != NULL);
    for (unsigned i = 0; i < table->count; i++) {
        struct proxy_rule *rule = &table->rules[i];
        size_t len = strlen(rule->match) + 1;
        memcpy(at, rule->match, len);
        rule->match = at;
        at += len;
        check(at <= table->matches + size);
        if (rule->until_s != 0 &&
            (table->next_until_s == 0 || rule->until_s < table->next_until_s)) {
            table->next_until_s = rule->until_s;
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

static struct proxy_rule *rule_find(struct pins_table *table, const char *match)
{
    for (unsigned i = 0; i < table->count; i++) {
        if (strcmp(table->rules[i].match, match) == 0) {
            return &table->rules[i];
        }
    }
    return NULL;
}

// Adds or replaces the rule, which borrows `match`. Returns false if the table is full.
static bool rule_put(struct pins_table *table, const char *match, uint64_t until_s,
                     bool *ret_is_changed)
{
    struct proxy_rule *rule = rule_find(table, match);
    if (rule == NULL && table->count == PROXY_PINS_MAX) {
        return false;
    }
    *ret_is_changed = rule == NULL || rule->until_s != until_s;
    rule = rule != NULL ? rule : &table->rules[table->count++];
    *rule = (struct proxy_rule){
        .match = match, .group = STORE_GROUP_PINS, .pin = true, .until_s = until_s};
    return true;
}

static void rule_remove(struct pins_table *table, const char *match, bool *ret_is_changed)
{
    struct proxy_rule *rule = rule_find(table, match);
    *ret_is_changed = rule != NULL;
    if (rule != NULL) {
        *rule = table->rules[--table->count];
    }
}

struct pins_table *pins_table_change(const struct pins_table *from, bool pins,
                                     struct proxy_pin *items, unsigned count, uint64_t now_s)
{
    struct pins_table *table = table_new();
    bool has_room = true;
    char *matches = malloc((size_t)count * MATCH_SIZE + 1);
    check(matches != NULL);
    for (unsigned i = 0; from != NULL && i < from->count; i++) {
        check(from->rules[i].pin && from->rules[i].match != NULL);
        if (from->rules[i].until_s == 0 || from->rules[i].until_s > now_s) {
            table->rules[table->count++] = from->rules[i];
        }
    }
    for (unsigned i = 0; i < count && has_room; i++) {
        char *match = matches + (size_t)i * MATCH_SIZE;
        bool has_match = match_make(&items[i], match);
        items[i].is_changed = false;
        if (pins) {
            has_room = has_match && rule_put(table, match, items[i].until_s, &items[i].is_changed);
        } else if (has_match) {
            rule_remove(table, match, &items[i].is_changed);
        }
    }
    if (has_room) {
        table_finish(table);
    } else {
        free(table);
        table = NULL;
    }
    free(matches);
    return table;
}

// --- as text -------------------------------------------------------------------------------------

void pins_table_render(const struct pins_table *table, struct buf *out)
{
    char text[PINS_NAME_MAX];
    for (unsigned i = 0; i < table->count; i++) {
        bool is_prefix;
        struct span name = pins_table_name(&table->rules[i], text, &is_prefix);
        buf_printf(out, "%s %llu ", is_prefix ? "prefix" : "object",
                   (unsigned long long)table->rules[i].until_s);
        buf_append_uri_encoded(out, name, true);
        buf_append_cstr(out, "\n");
    }
}

// Parses a line. Writes the name to `ret_name`, from which the item borrows.
static bool line_parse(struct span text, char ret_name[3 * PINS_NAME_MAX],
                       struct proxy_pin *ret_item)
{
    struct span kind, until;
    size_t len = 0;
    if (!span_split(&text, ' ', &kind) || !span_split(&text, ' ', &until) || text.ptr == NULL ||
        text.len > 3 * PINS_NAME_MAX || !span_to_u64(until, &ret_item->until_s) ||
        !span_uri_decode(text, ret_name, &len)) {
        return false;
    }
    ret_item->is_prefix = span_equal_cstr(kind, "prefix");
    ret_item->key = (struct span){ret_name, len};
    return (ret_item->is_prefix || span_equal_cstr(kind, "object")) && len > 0 &&
           memchr(ret_name, '\0', len) == NULL && memchr(ret_name, '/', len) != NULL &&
           span_split(&ret_item->key, '/', &ret_item->bucket);
}

struct pins_table *pins_table_parse(struct span text)
{
    struct pins_table *table = table_new();
    char *matches = malloc(PROXY_PINS_MAX * MATCH_SIZE);
    check(matches != NULL);
    bool is_good = true;
    struct span line;
    while (is_good && text.len > 0 && span_split(&text, '\n', &line)) {
        char name[3 * PINS_NAME_MAX], *match = matches + (size_t)table->count * MATCH_SIZE;
        struct proxy_pin item = {0};
        is_good = table->count < PROXY_PINS_MAX && line_parse(line, name, &item) &&
                  match_make(&item, match) &&
                  rule_put(table, match, item.until_s, &item.is_changed);
    }
    if (is_good) {
        table_finish(table);
    } else {
        free(table);
        table = NULL;
    }
    free(matches);
    return table;
}
