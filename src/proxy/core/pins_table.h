// SPDX-License-Identifier: Apache-2.0
// The list of what is pinned while the process runs: lines, each an object or a prefix of a bucket.
// Immutable, so that workers look it up without a lock. Pure, but for the references; any thread.
#ifndef FOREBAY_PROXY_CORE_PINS_H
#define FOREBAY_PROXY_CORE_PINS_H

#include <stdatomic.h>

#include "proxy/proxy.h"

struct pins_line {
    struct span name; // "bucket/key", in the table's memory
    bool is_prefix;
    uint64_t until_s; // wall clock; 0: for good
    unsigned parent;  // the next shorter prefix that holds it; pins_table.count: none
};

struct pins_table {
    atomic_uint refs;
    unsigned count;
    uint64_t next_until_s;                  // when the first of them ends; 0: none does
    struct pins_line lines[PROXY_PINS_MAX]; // by name, an object before the prefix of its name
    char *names;
};

struct pins_table *pins_table_ref(struct pins_table *table);
void pins_table_unref(struct pins_table *table); // NULL is fine
// Does a line hold the object? `table` may be NULL: nothing is pinned. Allocates nothing.
bool pins_table_has(const struct pins_table *table, struct span bucket, struct span key);

// `from` (NULL: none) without what has ended by `now_s`, and with (`pins`) or without the items;
// each that made a difference is marked so. An item that is there already gets the new end. NULL:
// more than PROXY_PINS_MAX.
struct pins_table *pins_table_change(const struct pins_table *from, bool pins,
                                     struct proxy_pin *items, unsigned count, uint64_t now_s);

// As text, a line each: "object|prefix END NAME", the name in percent coding.
void pins_table_render(const struct pins_table *table, struct buf *out);
// NULL: no such text.
struct pins_table *pins_table_parse(struct span text);

#endif
