// SPDX-License-Identifier: Apache-2.0
// The table of the store's state other than cached bytes; see state_table.h. Pure.
#include "store/disk/state_table.h"

#include <string.h>

#include "base/check.h"
#include "store/disk/disk_format.h"

enum beyond { SHARES, WITHOUT, LOWEST, OLDEST };

static const struct {
    const char *row, *others;
    unsigned first, max;
    enum beyond beyond;
    bool flagged;
} KINDS[STATE_KINDS] = {
#define STATE(name, row, others, max, beyond, flagged)                                             \
    {row, others, STATE_##name##_FIRST, max, beyond, flagged},
#include "store/disk/state_table.def"
#undef STATE
};

struct state_row *state_table_rows(struct state_table *table, enum state_kind kind)
{
    check(kind < STATE_KINDS && table->count[kind] <= KINDS[kind].max);
    return &table->rows[KINDS[kind].first];
}

struct state_row *state_table_find(struct state_table *table, enum state_kind kind,
                                   struct hash128 key)
{
    struct state_row *rows = state_table_rows(table, kind);
    for (unsigned i = 0; i < table->count[kind]; i++) {
        if (hash128_equal(rows[i].key, key)) {
            return &rows[i];
        }
    }
    return NULL;
}

static struct state_row *row_push_out(struct state_table *table, enum state_kind kind)
{
    struct state_row *rows = state_table_rows(table, kind), *lowest = rows;
    for (unsigned i = 1; i < table->count[kind]; i++) {
        lowest = rows[i].number < lowest->number ? &rows[i] : lowest;
    }
    check(KINDS[kind].beyond == LOWEST && table->count[kind] == KINDS[kind].max);
    table->others[kind].number = max_u64(table->others[kind].number, lowest->number);
    return lowest;
}

struct state_row *state_table_put(struct state_table *table, enum state_kind kind,
                                  struct hash128 key)
{
    struct state_row *row = state_table_find(table, kind, key);
    if (row != NULL) {
        return row;
    }
    if (table->count[kind] == KINDS[kind].max && KINDS[kind].beyond == OLDEST) {
        state_table_remove(table, kind, state_table_rows(table, kind)->key);
    }
    bool is_full = table->count[kind] == KINDS[kind].max;
    if (is_full && KINDS[kind].beyond != LOWEST) {
        return KINDS[kind].beyond == SHARES ? &table->others[kind] : NULL;
    }
    row =
        is_full ? row_push_out(table, kind) : &state_table_rows(table, kind)[table->count[kind]++];
    check(row >= state_table_rows(table, kind));
    check(row < state_table_rows(table, kind) + table->count[kind]);
    memset(row, 0, sizeof(*row));
    row->key = key;
    return row;
}

void state_table_remove(struct state_table *table, enum state_kind kind, struct hash128 key)
{
    struct state_row *row = state_table_find(table, kind, key);
    if (row == NULL) {
        return;
    }
    const struct state_row *end = state_table_rows(table, kind) + table->count[kind];
    check(row < end);
    memmove(row, row + 1, (size_t)(end - row - 1) * sizeof(*row));
    table->count[kind]--;
}

bool state_table_has(const struct state_table *table, enum state_kind kind)
{
    check(kind < STATE_KINDS);
    return table->count[kind] > 0 || table->others[kind].number > 0 || table->others[kind].flag;
}

void state_table_clear(struct state_table *table, enum state_kind kind)
{
    memset(state_table_rows(table, kind), 0, KINDS[kind].max * sizeof(struct state_row));
    table->count[kind] = 0;
}

void state_table_copy(struct state_table *to, struct state_table *from, enum state_kind kind)
{
    check(to != from);
    memcpy(state_table_rows(to, kind), state_table_rows(from, kind),
           KINDS[kind].max * sizeof(struct state_row));
    to->count[kind] = from->count[kind];
}

// --- as text -------------------------------------------------------------------------------------

static void number_render(const struct state_row *row, bool flagged, struct buf *out)
{
    buf_printf(out, " %llu", (unsigned long long)row->number);
    if (flagged) {
        buf_printf(out, " %d", row->flag);
    }
    buf_append_cstr(out, "\n");
}

void state_table_render(const struct state_table *table, struct buf *out)
{
    for (unsigned kind = 0; kind < STATE_KINDS; kind++) {
        const struct state_row *others = &table->others[kind];
        check(table->count[kind] <= KINDS[kind].max);
        check(!others->flag || KINDS[kind].flagged);
        if (others->number > 0 || others->flag) {
            buf_append_cstr(out, KINDS[kind].others);
            number_render(others, KINDS[kind].flagged, out);
        }
        for (unsigned i = 0; i < table->count[kind]; i++) {
            const struct state_row *row = &table->rows[KINDS[kind].first + i];
            buf_printf(out, "%s %016llx%016llx", KINDS[kind].row, (unsigned long long)row->key.hi,
                       (unsigned long long)row->key.lo);
            number_render(row, KINDS[kind].flagged, out);
        }
    }
}

static bool number_parse(struct span value, bool flagged, struct state_row *ret_row)
{
    struct span number = value;
    uint64_t flag = 0;
    if (flagged && (!span_split(&value, ' ', &number) || !span_to_u64(value, &flag) || flag > 1)) {
        return false;
    }
    ret_row->flag = flag == 1;
    return span_to_u64(number, &ret_row->number) && ret_row->number <= STATE_NUMBER_MAX;
}

static bool row_parse(struct span value, bool flagged, struct state_row *ret_row)
{
    struct span word;
    uint8_t hash[16];
    if (!span_split(&value, ' ', &word) || !hex_decode(word, hash, sizeof(hash)) ||
        value.ptr == NULL) {
        return false;
    }
    ret_row->key =
        (struct hash128){.hi = disk_u64_of_bytes(hash), .lo = disk_u64_of_bytes(hash + 8)};
    return number_parse(value, flagged, ret_row);
}

bool state_table_parse(struct span *rest, struct state_table *ret_table)
{
    struct span value;
    for (unsigned kind = 0; kind < STATE_KINDS; kind++) {
        bool flagged = KINDS[kind].flagged;
        if (disk_format_line(rest, KINDS[kind].others, &value) &&
            !number_parse(value, flagged, &ret_table->others[kind])) {
            return false;
        }
        unsigned *count = &ret_table->count[kind];
        check(*count == 0); // the caller has zeroed the table
        while (*count < KINDS[kind].max && disk_format_line(rest, KINDS[kind].row, &value)) {
            if (!row_parse(value, flagged, &state_table_rows(ret_table, kind)[(*count)++])) {
                return false;
            }
        }
    }
    return true;
}
