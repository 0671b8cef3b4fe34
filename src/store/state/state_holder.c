// SPDX-License-Identifier: Apache-2.0
// Holders: the realms and origins under whose names the cache directory may have copies of a key.
// The keys file and the configuration name them. A write invalidates its key only under the holders
// that its own process knows. But copies stay on disk when a holder is removed from those files. If
// it is added again later, its copies may have missed writes.
//
// So each holder has a number that is part of its keys' names, and a line in `format`. A holder
// without a line gets a new number, under which nothing was ever stored. A start moves the lines of
// all holders that it does not name to the lines of former holders, before it serves any request.
// If a former holder is named again, its kind decides:
//
//   origin   gets its former number, so its copies count again. The origin is put in doubt before
//            any request uses it: each copy is revalidated once (state_doubt_origin()). The first
//            write that passes removes the lines of all former holders before it is sent
//            (state_write_note()). It may change the same objects under another spelling of an
//            endpoint, and the doubt relies on the clock. So copies count again after a start with
//            a mistyped endpoint, but not after work with another one.
//   realm    gets a new number. Its earlier copies are unreachable for good, and eviction frees
//            their space.
//
// A holder that each start names keeps its number and its copies. But requests to a bucket may have
// used another origin, which leaves now. It may be another name of the same store, and writes may
// have used it. So if a holder leaves, each copy is revalidated once (state_doubt_all()). This
// includes realms, because a line does not tell realms from origins. A running process removes no
// holder: a reload only adds some (access_keys_keep_realms()).
//
// A bucket may have another name at its origin, and a start may give it back the name that it had
// before. Both may be names of one bucket. So a start also lists such names as holders, although
// their numbers are used for nothing (command_holders.c): if one leaves, each copy is revalidated.
//
// Earlier versions did not distinguish the stores that an endpoint reaches in several regions. So a
// start doubts each origin whose name they may have given to several stores. It does so once. Then
// the line of a holder that no configuration names, NAMES_ONE_STORE, says that each name is that of
// one store. If an earlier version runs in between, it removes the line.
//
// Above STATE_HOLDERS_MAX holders, the others have no line, so they get new numbers at each start.
// Above STATE_FORMER_MAX former holders, the one that left first loses its line. A start lists its
// origins first, and moves lines in the reverse order, so of the holders that leave at one start,
// realms lose their lines first. A directory from a version without numbers may have missed writes
// already, so only origins keep their copies there.
//
// Threads: only the main thread writes rows of holders, so it may read them without a lock. It
// holds store_dir.format_lock while it writes them, unless no other thread runs yet. Rows of former
// holders are read and written under that lock.
#include <stdlib.h>

#include "stats/stats.h"
#include "store/state/state_holder.h"

// Its kind is that of no other holder.
#define NAMES_ONE_STORE SPAN("rule"), SPAN("a name is that of one store")

static uint64_t number_new(struct state_table *state, const struct store_holder *holder,
                           bool is_first)
{
    return is_first && holder->is_origin ? 0 : ++state->others[STATE_HOLDERS].number;
}

static void holder_enter(struct store_disk *disk, struct store_doubts *doubts,
                         struct store_holder *holder, bool is_first)
{
    struct state_table *state = &disk->dir.format.state;
    struct hash128 hash = disk_hash(disk, SPAN("holder"), holder->kind, holder->name);
    struct state_row *row = state_table_find(state, STATE_HOLDERS, hash);
    if (row != NULL) {
        check(row->number <= state->others[STATE_HOLDERS].number);
        holder->number = row->number;
        return;
    }
    const struct state_row *former = state_table_find(state, STATE_FORMER, hash);
    holder->is_back = former != NULL && holder->is_origin;
    holder->number = holder->is_back ? former->number : number_new(state, holder, is_first);
    check(holder->number <= state->others[STATE_HOLDERS].number);
    if (holder->is_back) {
        state_doubt_origin(doubts, holder->name);
    }
    state_table_remove(state, STATE_FORMER, hash);
    row = state_table_put(state, STATE_HOLDERS, hash);
    if (row != NULL) {
        row->number = holder->number;
    } else {
        stats_add(COUNTER_holders_unnoted, 1);
    }
}

static void former_enter(struct state_table *state, const struct state_row *row)
{
    bool is_full = state->count[STATE_FORMER] == STATE_FORMER_MAX;
    stats_add(COUNTER_holders_unnoted, is_full ? 1 : 0);
    state_table_put(state, STATE_FORMER, row->key)->number = row->number;
    state->others[STATE_FORMER].number = 1;
    check(state->count[STATE_FORMER] <= STATE_FORMER_MAX);
}

// Returns a copy of the rows that this file changes.
static struct state_table *rows_copy(struct state_table *state)
{
    struct state_table *copy = calloc(1, sizeof(*copy));
    check(copy != NULL);
    state_table_copy(copy, state, STATE_HOLDERS);
    state_table_copy(copy, state, STATE_FORMER);
    return copy;
}

// Doubts the origins whose copies may be those of another store, because an earlier version stored
// them. Notes that later copies are not.
static void shared_names_end(struct store_disk *disk, struct store_doubts *doubts,
                             struct state_table *before, bool is_first,
                             const struct store_holder *holders, unsigned count)
{
    struct state_table *state = &disk->dir.format.state;
    struct hash128 rule = disk_hash(disk, SPAN("holder"), NAMES_ONE_STORE);
    bool is_ended = state_table_find(before, STATE_HOLDERS, rule) != NULL;
    for (unsigned i = 0; i < count && !is_ended; i++) {
        struct hash128 hash = disk_hash(disk, SPAN("holder"), holders[i].kind, holders[i].name);
        bool had_copies =
            is_first ? !disk->dir.fresh : state_table_find(before, STATE_HOLDERS, hash) != NULL;
        if (holders[i].was_shared && had_copies) {
            state_doubt_origin(doubts, holders[i].name);
        }
    }
    state_table_remove(state, STATE_FORMER, rule);
    (void)state_table_put(state, STATE_HOLDERS, rule); // without room, the next start doubts again
}

void state_holders_load(struct store_disk *disk, struct store_doubts *doubts,
                        struct store_holder *holders, unsigned count)
{
    struct state_table *state = &disk->dir.format.state;
    check(holders != NULL || count == 0);
    struct state_table *before = rows_copy(state);
    uint64_t *last = &state->others[STATE_HOLDERS].number;
    bool is_first = *last == 0;
    *last = max_u64(*last, 1); // above 0: this directory has numbers from now on
    state_table_clear(state, STATE_HOLDERS);
    for (unsigned i = 0; i < count; i++) {
        struct hash128 hash = disk_hash(disk, SPAN("holder"), holders[i].kind, holders[i].name);
        const struct state_row *row = state_table_find(before, STATE_HOLDERS, hash);
        if (row != NULL) { // finds a free row, because it had one before
            state_table_put(state, STATE_HOLDERS, hash)->number = row->number;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        holder_enter(disk, doubts, &holders[i], is_first);
    }
    shared_names_end(disk, doubts, before, is_first, holders, count);
    bool has_left = before->count[STATE_HOLDERS] == STATE_HOLDERS_MAX; // maybe one without a line
    for (unsigned i = before->count[STATE_HOLDERS]; i-- > 0;) {
        const struct state_row *row = &state_table_rows(before, STATE_HOLDERS)[i];
        if (state_table_find(state, STATE_HOLDERS, row->key) == NULL) {
            former_enter(state, row);
            has_left = true;
        }
    }
    if (has_left) {
        state_doubt_all(doubts);
    }
    atomic_fetch_add(&doubts->unsaved, state->count[STATE_FORMER] > 0 ? 1 : 0);
    free(before);
}

// Assigns the numbers of the holders that have a line. Returns true if all have one: then nothing
// is written, and the call does not wait for the lock of `format`, which a hung disk may hold.
static bool holders_are_known(struct store_disk *disk, struct store_holder *holders, unsigned count)
{
    struct state_table *state = &disk->dir.format.state;
    bool are_known = true;
    for (unsigned i = 0; i < count; i++) {
        struct hash128 hash = disk_hash(disk, SPAN("holder"), holders[i].kind, holders[i].name);
        const struct state_row *row = state_table_find(state, STATE_HOLDERS, hash);
        are_known = are_known && row != NULL;
        holders[i].number = row != NULL ? row->number : 0;
    }
    return are_known;
}

enum err state_holders_add(struct store_disk *disk, struct store_doubts *doubts,
                           struct store_holder *holders, unsigned count)
{
    struct state_table *state = &disk->dir.format.state;
    enum err err = ERR_OK;
    if (holders_are_known(disk, holders, count)) {
        return ERR_OK;
    }
    pthread_mutex_lock(&disk->dir.format_lock);
    struct state_table *before = rows_copy(state);
    for (unsigned i = 0; i < count; i++) {
        holder_enter(disk, doubts, &holders[i], false);
    }
    err = disk_commit_state(disk);
    if (err != ERR_OK) {
        // `others` still counts the new numbers as used, because they may be on disk. Doubts stay.
        state_table_copy(state, before, STATE_HOLDERS);
        state_table_copy(state, before, STATE_FORMER);
    }
    pthread_mutex_unlock(&disk->dir.format_lock);
    free(before);
    return err;
}
