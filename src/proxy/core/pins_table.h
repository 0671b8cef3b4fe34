// SPDX-License-Identifier: Apache-2.0
// Rules by command (proxy_pin()). Each pins an object, or all objects whose names begin with a
// prefix, until a given time. A table of rules is immutable, so that workers match it without a
// lock (rules.c). Pure, apart from the references; any thread.
#ifndef FOREBAY_PROXY_CORE_PINS_TABLE_H
#define FOREBAY_PROXY_CORE_PINS_TABLE_H

#include <stdatomic.h>

#include "proxy/proxy.h"

#define PINS_NAME_MAX (255u + 1u + S3_KEY_MAX) // maximum length of "bucket/key"

struct pins_table {
    atomic_uint refs;
    unsigned count;
    uint64_t next_until_s; // earliest end of a rule; 0: no rule ends
    // sorted by name; an object sorts before the prefix of the same name
    struct proxy_rule rules[PROXY_PINS_MAX];
    char *matches; // the memory that holds the globs of all rules
};

struct pins_table *pins_table_ref(struct pins_table *table);
void pins_table_unref(struct pins_table *table); // NULL is fine

// Returns a copy of `from` (NULL: no rules). Rules that end at or before `now_s` are left out. If
// `pins` is true, the items are added; an item that is there already gets the new end. Otherwise
// the items are removed. Sets is_changed of each item that made a difference. Returns NULL if there
// would be more than PROXY_PINS_MAX rules, or if the name of an item to add is too long.
struct pins_table *pins_table_change(const struct pins_table *from, bool pins,
                                     struct proxy_pin *items, unsigned count, uint64_t now_s);

// Returns the "bucket/key" that the rule matches. *ret_is_prefix: it matches all names that begin
// with that.
struct span pins_table_name(const struct proxy_rule *rule, char ret_text[PINS_NAME_MAX],
                            bool *ret_is_prefix);

// Appends the table as text, one line per rule: "object|prefix END NAME", with NAME
// percent-encoded.
void pins_table_render(const struct pins_table *table, struct buf *out);
// Parses such text. Returns NULL if it is malformed.
struct pins_table *pins_table_parse(struct span text);

#endif
