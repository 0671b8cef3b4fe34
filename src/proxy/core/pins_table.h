// SPDX-License-Identifier: Apache-2.0
// Rules by command (proxy_pin()): each pins an object, or all that begins with a prefix, until a
// time. A table of them is immutable, so that workers match it without a lock (rules.c). Pure,
// apart from the references; any thread.
#ifndef FOREBAY_PROXY_CORE_PINS_TABLE_H
#define FOREBAY_PROXY_CORE_PINS_TABLE_H

#include <stdatomic.h>

#include "proxy/proxy.h"

#define PINS_NAME_MAX (255u + 1u + S3_KEY_MAX) // "bucket/key"

struct pins_table {
    atomic_uint refs;
    unsigned count;
    uint64_t next_until_s;                   // when the first of them ends; 0: none does
    struct proxy_rule rules[PROXY_PINS_MAX]; // by name, an object before the prefix of its name
    char *matches;                           // memory of the globs
};

struct pins_table *pins_table_ref(struct pins_table *table);
void pins_table_unref(struct pins_table *table); // NULL is fine

// Returns `from` without the rules that end by `now_s`, and with (`pins`) or without the items. An
// item that is there already gets the new end. Marks each item that made a difference. NULL: more
// than PROXY_PINS_MAX. `from` NULL: no rules.
struct pins_table *pins_table_change(const struct pins_table *from, bool pins,
                                     struct proxy_pin *items, unsigned count, uint64_t now_s);

// Returns the "bucket/key" that a rule's glob stands for, or all names that begin with it.
struct span pins_table_name(const struct proxy_rule *rule, char ret_text[PINS_NAME_MAX],
                            bool *ret_is_prefix);

// As text, a line each: "object|prefix END NAME", the name in percent coding.
void pins_table_render(const struct pins_table *table, struct buf *out);
// NULL: no such text.
struct pins_table *pins_table_parse(struct span text);

#endif
