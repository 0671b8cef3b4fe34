// SPDX-License-Identifier: Apache-2.0
// Holders: the realms and origins under whose names the cache directory may have copies of a key.
// The keys file and the configuration name them. A write invalidates its key only under the holders
// that its own process knows. But copies stay on disk when a holder is removed from those files. If
// it is added again later, its copies may have missed writes.
//
// So each holder has a number that is part of its keys' names, and a line in `format` as long as
// every process names it. A start removes the lines of all other holders before it serves any
// request. A holder without a line gets a new number, under which nothing was ever stored. Its
// earlier copies are unreachable for good, and eviction frees their space. A holder that each start
// names keeps its number and its copies. A running process removes no holder: a reload only adds
// some (access_keys_keep_realms()).
//
// Above STATE_HOLDERS_MAX holders, the others have no line, so they get new numbers at each start.
// A directory from a version without numbers may have missed writes already, so only origins keep
// their copies there.
//
// Threads: only the main thread writes rows, so it may read them without a lock. It holds
// store_dir.format_lock while it writes them, unless no other thread runs yet.
#include <stdlib.h>

#include "stats/stats.h"
#include "store/state/state_holder.h"

static void holder_enter(const struct store_disk *disk, struct state_table *state,
                         struct store_holder *holder, bool is_first)
{
    struct hash128 hash = disk_hash(disk, SPAN("holder"), holder->kind, holder->name);
    struct state_row *row = state_table_find(state, STATE_HOLDERS, hash);
    if (row != NULL) {
        check(row->number <= state->others[STATE_HOLDERS].number);
        holder->number = row->number;
        return;
    }
    holder->number = is_first && holder->is_origin ? 0 : ++state->others[STATE_HOLDERS].number;
    row = state_table_put(state, STATE_HOLDERS, hash);
    check(holder->number <= state->others[STATE_HOLDERS].number);
    if (row != NULL) {
        row->number = holder->number;
    } else {
        stats_add(COUNTER_holders_unnoted, 1);
    }
}

void state_holders_load(struct store_disk *disk, struct store_holder *holders, unsigned count)
{
    struct state_table *state = &disk->dir.format.state;
    check(holders != NULL || count == 0);
    struct state_table *before = malloc(sizeof(*before));
    check(before != NULL);
    *before = *state;
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
        holder_enter(disk, state, &holders[i], is_first);
    }
    check(state->others[STATE_HOLDERS].number >= before->others[STATE_HOLDERS].number);
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

enum err state_holders_add(struct store_disk *disk, struct store_holder *holders, unsigned count)
{
    struct state_table *state = &disk->dir.format.state;
    enum err err = ERR_OK;
    if (holders_are_known(disk, holders, count)) {
        return ERR_OK;
    }
    pthread_mutex_lock(&disk->dir.format_lock);
    unsigned rows = state->count[STATE_HOLDERS];
    uint64_t last = state->others[STATE_HOLDERS].number;
    for (unsigned i = 0; i < count; i++) {
        holder_enter(disk, state, &holders[i], false);
    }
    if (state->others[STATE_HOLDERS].number != last) {
        err = disk_commit_state(disk);
    }
    check(state->others[STATE_HOLDERS].number >= last && state->count[STATE_HOLDERS] >= rows);
    if (err != ERR_OK) {
        // `others` still counts the new numbers as used, because they may be on disk.
        state->count[STATE_HOLDERS] = rows;
    }
    pthread_mutex_unlock(&disk->dir.format_lock);
    return err;
}
