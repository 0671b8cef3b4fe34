// SPDX-License-Identifier: Apache-2.0
// Holders: under whose names copies of a key may lie in the cache directory, realms and origins as
// keys file and configuration name them. A write invalidates its key under the names of its own
// process; what lies in the directory outlives those lists, and a holder that was away while writes
// passed comes back with old copies.
//
// So each holder has a number that is part of its keys' names, and a line in `format` for as long
// as every process reaches it: a start takes away the lines of those that it does not name, before
// it serves anybody, and whoever has no line gets a new number, under which nothing was ever held.
// What it held before is out of reach for good, and goes by eviction. A holder that is named by
// each start keeps number and copies. Within a process none goes: a reload only adds
// (access_keys_keep_realms()).
//
// Beyond STORE_HOLDERS_MAX a holder has no line, and a new number at each start. A directory from
// before there were numbers may have missed writes already: only origins keep what they hold there.
//
// Threads: at the opening, before all others; then any that may block, under the lock of `format`.
#include <stdlib.h>

#include "stats/stats.h"
#include "store/state/state_holder.h"

static struct store_holder_line *line_find(struct store_format *format, struct hash128 holder)
{
    for (unsigned i = 0; i < format->holder_count; i++) {
        if (hash128_equal(format->holders[i].holder, holder)) {
            return &format->holders[i];
        }
    }
    return NULL;
}

static void holder_enter(const struct store_disk *disk, struct store_format *format,
                         struct store_holder *holder, bool is_first)
{
    struct hash128 hash = disk_hash(disk, SPAN("holder"), holder->kind, holder->name);
    struct store_holder_line *line = line_find(format, hash);
    if (line != NULL) {
        holder->number = line->number;
        return;
    }
    holder->number = is_first && holder->is_origin ? 0 : ++format->last_holder;
    if (format->holder_count < STORE_HOLDERS_MAX) {
        format->holders[format->holder_count++] =
            (struct store_holder_line){.holder = hash, .number = holder->number};
    } else {
        stats_add(COUNTER_holders_unnoted, 1);
    }
}

void state_holders_load(struct store_disk *disk, struct store_holder *holders, unsigned count)
{
    struct store_format *format = &disk->dir.format;
    struct store_format *before = malloc(sizeof(*before));
    check(before != NULL);
    *before = *format;
    bool is_first = before->last_holder == 0;
    format->last_holder = max_u64(before->last_holder, 1); // from here on there are numbers
    format->holder_count = 0;
    for (unsigned i = 0; i < count; i++) {
        struct hash128 hash = disk_hash(disk, SPAN("holder"), holders[i].kind, holders[i].name);
        const struct store_holder_line *line = line_find(before, hash);
        if (line != NULL && line_find(format, hash) == NULL) {
            format->holders[format->holder_count++] = *line;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        holder_enter(disk, format, &holders[i], is_first);
    }
    free(before);
}

enum err state_holders_add(struct store_disk *disk, struct store_holder *holders, unsigned count)
{
    struct store_format *format = &disk->dir.format;
    enum err err = ERR_OK;
    pthread_mutex_lock(&disk->dir.format_lock);
    unsigned lines = format->holder_count;
    uint64_t last = format->last_holder;
    for (unsigned i = 0; i < count; i++) {
        holder_enter(disk, format, &holders[i], false);
    }
    if (disk->attached && format->last_holder != last) {
        err = store_dir_write_format(&disk->dir);
    }
    if (err != ERR_OK) {
        format->holder_count = lines; // the numbers stay used: they may have reached the disk
    }
    pthread_mutex_unlock(&disk->dir.format_lock);
    return err;
}
