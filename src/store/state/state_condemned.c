// SPDX-License-Identifier: Apache-2.0
// Remembers keys whose cached bytes contradict the origin's checksum. No table lists all runs of a
// key. The index names some of them, has replaced or refused others, and has not found the rest
// yet. So a key is condemned as a whole, by a row in `format`. The row says that no run of the key
// below a generation may be trusted, wherever that run is found. Bytes that are fetched afterwards
// have a higher generation.
//
// A row takes effect in this process at once. It becomes durable with the next write of `format`,
// like all rows that were added before that write. A thread of the blocking pool or the index
// writer writes `format`, whichever comes first. The index writer tries it before it answers the
// key's delete. If the disk refuses, the failure is counted, and the delete is answered all the
// same. Each turn of the supply thread then tries again. A crash before it succeeds loses the rows.
// By then the runs that the index knows are marked in their segments (index_condemn.c), but a
// rebuild may find others again.
//
// Before the next process serves any request, it hides the keys of all rows. It also queues their
// deletes. Recovery skips their runs in segments. Rows are removed only when the directory is
// emptied.
//
// At most STATE_CONDEMNED_MAX keys have a row. A further key replaces the row with the lowest
// generation. From then on, no run in a segment below that generation is trusted, whatever its key.
// This is permanent, and it is counted. By then the index has deleted the replaced key, unless
// STATE_CONDEMNED_MAX keys were condemned while the index writer was stalled.
//
// Earlier versions kept the keys in the file `condemned`, in lines of 64 bytes. A start reads that
// file into the rows, and removes it once the rows are durable:
//
//   0   4  "FBCD"
//   4   4  CRC32C of the rest
//   8  16  hash of the key
//  24   8  generation below which its runs are not trusted
//  32   8  generation below which no run of any key is trusted
//  40  24  zeros
#include "store/state/state_condemned.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "stats/stats.h"

#define OLD_FILE "condemned"
#define OLD_MAGIC 0x44434246u
#define OLD_LINE_LEN 64u
#define OLD_LINES_MAX 256u

static struct state_table *table_of(const struct store_condemned *condemned)
{
    return &condemned->disk->dir.format.state;
}

// --- the file of earlier versions ----------------------------------------------------------------

static void old_line_take(struct state_table *table, const char *bytes)
{
    if (wire_get_u32(bytes) != OLD_MAGIC ||
        wire_get_u32(bytes + 4) != disk_crc32c(bytes + 8, OLD_LINE_LEN - 8)) {
        return; // a power cut has torn the line, so the key's delete was not answered
    }
    struct hash128 hash = {wire_get_u64(bytes + 8), wire_get_u64(bytes + 16)};
    struct state_row *row = state_table_put(table, STATE_CONDEMNED, hash);
    struct state_row *others = &table->others[STATE_CONDEMNED];
    row->number = max_u64(row->number, wire_get_u64(bytes + 24));
    others->number = max_u64(others->number, wire_get_u64(bytes + 32));
}

static enum err old_file_take(int dir_fd, struct state_table *table)
{
    char bytes[OLD_LINES_MAX * OLD_LINE_LEN];
    int fd = openat(dir_fd, OLD_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? ERR_OK : error_from_errno(errno);
    }
    ssize_t len = pread(fd, bytes, sizeof(bytes), 0);
    enum err err = len < 0 ? error_from_errno(errno) : ERR_OK;
    (void)close(fd); // only read, so an error loses nothing
    for (ssize_t at = 0; at + (ssize_t)OLD_LINE_LEN <= len; at += OLD_LINE_LEN) {
        old_line_take(table, bytes + at);
    }
    return err;
}

// --- rows ----------------------------------------------------------------------------------------

enum err state_condemned_load(struct store_condemned *condemned)
{
    struct store_dir *dir = &condemned->disk->dir;
    check(dir->fd >= 0 && !atomic_load(&condemned->disk->attached));
    check(atomic_load(&condemned->added) == 0);
    struct state_table *table = table_of(condemned);
    enum err err = ERR_OK;
    if (dir->fresh) { // the directory was empty, so no earlier run is left
        state_table_clear(table, STATE_CONDEMNED);
        table->others[STATE_CONDEMNED] = (struct state_row){0};
        (void)unlinkat(dir->fd, OLD_FILE, 0); // fails if there is no such file, which is no error
    } else {
        err = old_file_take(dir->fd, table);
    }
    atomic_store(&condemned->any, state_table_has(table, STATE_CONDEMNED));
    return err;
}

void state_condemned_each(struct store_condemned *condemned,
                          void (*on_key)(void *ctx, struct hash128 hash, uint64_t below), void *ctx)
{
    struct state_table *table = table_of(condemned);
    const struct state_row *rows = state_table_rows(table, STATE_CONDEMNED);
    check(!condemned->disk->dir.fresh || table->count[STATE_CONDEMNED] == 0);
    for (unsigned i = 0; i < table->count[STATE_CONDEMNED]; i++) {
        on_key(ctx, rows[i].key, rows[i].number);
    }
    // The file may not exist. If it stays, the next start reads it again.
    (void)unlinkat(condemned->disk->dir.fd, OLD_FILE, 0);
}

void state_condemned_add(struct store_condemned *condemned, struct hash128 hash, uint64_t below)
{
    struct state_table *table = table_of(condemned);
    check(below > 0);
    pthread_mutex_lock(&condemned->disk->dir.condemned_lock);
    bool pushes_out = table->count[STATE_CONDEMNED] == STATE_CONDEMNED_MAX &&
                      state_table_find(table, STATE_CONDEMNED, hash) == NULL;
    struct state_row *row = state_table_put(table, STATE_CONDEMNED, hash);
    check(row != NULL && hash128_equal(row->key, hash));
    row->number = max_u64(row->number, below);
    atomic_store(&condemned->any, true);
    atomic_fetch_add(&condemned->added, 1);
    pthread_mutex_unlock(&condemned->disk->dir.condemned_lock);
    stats_add(COUNTER_condemned_shared, pushes_out ? 1 : 0);
}

enum err state_condemned_save(struct store_condemned *condemned)
{
    enum err err = ERR_OK;
    if (atomic_load(&condemned->saved) == atomic_load(&condemned->added)) {
        return ERR_OK; // checked without the lock, because its holder may wait for a hung disk
    }
    pthread_mutex_lock(&condemned->disk->dir.format_lock);
    uint64_t added = atomic_load(&condemned->added);
    check(atomic_load(&condemned->saved) <= added);
    if (atomic_load(&condemned->saved) != added) {
        err =
            store_fault_strike(STORE_FAULT_NOTE) != 0 ? ERR_IO : disk_commit_state(condemned->disk);
        if (err == ERR_OK) {
            atomic_store(&condemned->saved, added);
        }
    }
    pthread_mutex_unlock(&condemned->disk->dir.format_lock);
    return err;
}

bool state_condemned_has(struct store_condemned *condemned, struct hash128 hash,
                         uint64_t generation)
{
    if (!atomic_load(&condemned->any)) {
        return false;
    }
    struct state_table *table = table_of(condemned);
    pthread_mutex_lock(&condemned->disk->dir.condemned_lock);
    const struct state_row *row = state_table_find(table, STATE_CONDEMNED, hash);
    check(state_table_has(table, STATE_CONDEMNED));
    bool has = generation < table->others[STATE_CONDEMNED].number ||
               (row != NULL && generation < row->number);
    pthread_mutex_unlock(&condemned->disk->dir.condemned_lock);
    return has;
}

void state_condemned_init(struct store_condemned *condemned, struct store_disk *disk)
{
    check(disk != NULL && !atomic_load(&condemned->any));
    condemned->disk = disk;
}
