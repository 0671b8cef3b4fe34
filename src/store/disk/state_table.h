// SPDX-License-Identifier: Apache-2.0
// The table of the state that the store keeps in addition to cached bytes, with rows of the kinds
// in state_table.def. It is part of `format`, so one write replaces all of it, and a crash leaves
// the old table or the new one. Pure. Unless there are no other threads, callers hold
// `format_lock`, or `condemned_lock` for STATE_CONDEMNED (store_dir.h).
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

// For each kind, for example EPOCHS: STATE_EPOCHS_MAX is the largest number of its rows, and
// STATE_EPOCHS_FIRST the index of its first row in the table.
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
    // For each kind, the row that all names without a row share.
    struct state_row others[STATE_KINDS];
    struct state_row rows[STATE_ROWS];
};

// Returns the first row of a kind; there are table->count[kind] of them.
struct state_row *state_table_rows(struct state_table *table, enum state_kind kind);
// Returns the key's row, or NULL if it has none.
struct state_row *state_table_find(struct state_table *table, enum state_kind kind,
                                   struct hash128 key);
// Returns the key's row, or a new one with number 0. If none is free, returns the shared row, NULL,
// or a row taken from another key; see state_table.def.
struct state_row *state_table_put(struct state_table *table, enum state_kind kind,
                                  struct hash128 key);
// Returns true if the kind has a row, or its shared row has a number or a flag.
bool state_table_has(const struct state_table *table, enum state_kind kind);
// Removes all rows of a kind except the shared one.
void state_table_clear(struct state_table *table, enum state_kind kind);

// Appends the table to `out` as lines of text.
void state_table_render(const struct state_table *table, struct buf *out);
// Parses the lines at the beginning of `rest` and removes them from it. Returns false if a line is
// damaged. The caller has zeroed *ret_table.
bool state_table_parse(struct span *rest, struct state_table *ret_table);

#endif
