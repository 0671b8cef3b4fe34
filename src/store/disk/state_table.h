// SPDX-License-Identifier: Apache-2.0
// The table of the store's state other than cached bytes. state_table.def lists the kinds of its
// rows. The table is part of `format`, so one write replaces all of it, and a crash leaves either
// the old table or the new one. Pure. Callers hold `format_lock`, or `condemned_lock` for
// STATE_CONDEMNED (store_dir.h), unless there are no other threads.
#ifndef FOREBAY_STORE_DISK_STATE_TABLE_H
#define FOREBAY_STORE_DISK_STATE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash.h"

// The largest number that a table read from `format` may have. Far above any that is ever used, and
// adding to it does not overflow.
#define STATE_NUMBER_MAX INT64_MAX

enum state_kind {
#define STATE(name, row, others, max, beyond, flagged) STATE_##name,
#include "store/disk/state_table.def"
#undef STATE
    STATE_KINDS
};

// For each kind, such as EPOCHS: STATE_EPOCHS_MAX is the maximum number of its rows, and
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
    // For each kind, the row shared by all names that have no row of their own.
    struct state_row others[STATE_KINDS];
    struct state_row rows[STATE_ROWS];
};

// Returns the first row of a kind; there are table->count[kind] of them.
struct state_row *state_table_rows(struct state_table *table, enum state_kind kind);
// Returns the key's row, or NULL if it has none.
struct state_row *state_table_find(struct state_table *table, enum state_kind kind,
                                   struct hash128 key);
// Returns the key's row, or a new one with number 0. If no row is free, the kind decides what it
// returns: the shared row, NULL, or the row of another key (state_table.def).
struct state_row *state_table_put(struct state_table *table, enum state_kind kind,
                                  struct hash128 key);
// Removes the key's row, if there is one. Later rows keep their order.
void state_table_remove(struct state_table *table, enum state_kind kind, struct hash128 key);
// Returns true if the kind has a row, or if its shared row has a number or a flag.
bool state_table_has(const struct state_table *table, enum state_kind kind);
// Removes all rows of a kind except the shared one.
void state_table_clear(struct state_table *table, enum state_kind kind);
// Replaces the rows of a kind, except the shared one, by those of another table.
void state_table_copy(struct state_table *to, struct state_table *from, enum state_kind kind);

// Appends the table to `out` as lines of text.
void state_table_render(const struct state_table *table, struct buf *out);
// Parses the lines at the beginning of `rest`, and removes them from `rest`. Returns false if a
// line is malformed. *ret_table must be zeroed.
bool state_table_parse(struct span *rest, struct state_table *ret_table);

#endif
