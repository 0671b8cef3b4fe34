// SPDX-License-Identifier: Apache-2.0
// The one table of what the store remembers in addition to bytes: rows of the kinds in
// state_table.def. It is part of `format`, so one write replaces all of it, and a crash leaves the
// old table or the new one. Pure. Callers hold the lock of `format`, for STATE_CONDEMNED the other
// lock that store_dir.h names, unless there are no other threads.
#ifndef FOREBAY_STORE_DISK_STATE_TABLE_H
#define FOREBAY_STORE_DISK_STATE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash.h"

enum state_kind {
#define STATE(name, row, others, max, beyond, flagged) STATE_##name,
#include "store/disk/state_table.def"
#undef STATE
    STATE_KINDS
};

// For each kind, as STATE_EPOCHS_MAX: how many rows it has; and as STATE_EPOCHS_FIRST: which one in
// the table is its first.
enum {
#define STATE(name, row, others, max, beyond, flagged) STATE_##name##_MAX = (max),
#include "store/disk/state_table.def"
#undef STATE
#define STATE(name, row, others, max, beyond, flagged)                                             \
    STATE_##name##_FIRST, STATE_##name##_LAST = STATE_##name##_FIRST + (max)-1,
#include "store/disk/state_table.def"
#undef STATE
    STATE_ROWS
};

struct state_row {
    struct hash128 key;
    uint64_t number;
    bool flag;
};

struct state_table {
    unsigned count[STATE_KINDS];
    struct state_row others[STATE_KINDS]; // of all names without a row
    struct state_row rows[STATE_ROWS];
};

// Returns the first row of a kind; there are table->count[kind] of them.
struct state_row *state_table_rows(struct state_table *table, enum state_kind kind);
// NULL: the key has no row.
struct state_row *state_table_find(struct state_table *table, enum state_kind kind,
                                   struct hash128 key);
// Returns the key's row, else a new one: zeros. When none is free, the others' line, NULL or the
// row of another key: see state_table.def.
struct state_row *state_table_put(struct state_table *table, enum state_kind kind,
                                  struct hash128 key);
// Returns true if the kind has a row, or the others' line says something.
bool state_table_has(const struct state_table *table, enum state_kind kind);
// Removes all rows of a kind. The others' line stays.
void state_table_clear(struct state_table *table, enum state_kind kind);

// As lines of text, appended.
void state_table_render(const struct state_table *table, struct buf *out);
// Takes the lines from the beginning of `rest`. False: a line is damaged. `ret_table`: zeros
// before.
bool state_table_parse(struct span *rest, struct state_table *ret_table);

#endif
