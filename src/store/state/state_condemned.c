// SPDX-License-Identifier: Apache-2.0
// Keys whose cached bytes contradict the origin's checksum. No table lists all runs of a key: the
// index names some, has replaced or refused others, and has not found the rest yet. So a key is
// condemned as a whole: its line says that no run of it below a generation is to be trusted,
// wherever that run is found. Bytes that are fetched afterwards have a higher generation.
//
// A line counts in this process at once. A thread of the blocking pool or the index writer,
// whichever comes first, writes it to the file `condemned` of the cache directory. The index writer
// also syncs it before it answers the key's delete. The next process hides the keys of all lines
// before it serves any request, has them deleted, and passes over their runs in segments.
//
// At most STORE_CONDEMNED_MAX keys have a line of their own. The one that was condemned longest ago
// makes room. Its generation then holds for the runs of all keys that are found in segments:
// coarse, counted, and never forgotten. (By then the index has deleted that key, unless
// STORE_CONDEMNED_MAX keys were condemned while the index writer stood still.) Each line in the
// file carries the generation for all keys, so that a line is replaced in one write.
//
//   0   4  "FBCD"
//   4   4  CRC32C of the rest
//   8  16  hash of the key
//  24   8  generation below which its runs are not believed
//  32   8  the same for all keys
//  40  24  zeros
#include "store/state/state_condemned.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "stats/stats.h"

#define CONDEMNED_FILE "condemned"
#define CONDEMNED_MAGIC 0x44434246u

// --- the file ------------------------------------------------------------------------------------

static void line_encode(const struct condemned_line *line, char *ret_bytes)
{
    memset(ret_bytes, 0, CONDEMNED_LINE_LEN);
    wire_put_u32(ret_bytes, CONDEMNED_MAGIC);
    wire_put_u64(ret_bytes + 8, line->hash.hi);
    wire_put_u64(ret_bytes + 16, line->hash.lo);
    wire_put_u64(ret_bytes + 24, line->below);
    wire_put_u64(ret_bytes + 32, line->others_below);
    wire_put_u32(ret_bytes + 4, disk_crc32c(ret_bytes + 8, CONDEMNED_LINE_LEN - 8));
}

static bool line_decode(const char *bytes, struct condemned_line *ret_line)
{
    if (wire_get_u32(bytes) != CONDEMNED_MAGIC ||
        wire_get_u32(bytes + 4) != disk_crc32c(bytes + 8, CONDEMNED_LINE_LEN - 8)) {
        return false;
    }
    ret_line->hash = (struct hash128){wire_get_u64(bytes + 8), wire_get_u64(bytes + 16)};
    ret_line->below = wire_get_u64(bytes + 24);
    ret_line->others_below = wire_get_u64(bytes + 32);
    return true;
}

static enum err file_open_locked(struct store_condemned *condemned)
{
    if (condemned->fd < 0) {
        condemned->fd = openat(condemned->disk->dir.fd, CONDEMNED_FILE,
                               O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    }
    return condemned->fd >= 0 ? ERR_OK : error_from_errno(errno);
}

enum err state_condemned_write(struct store_condemned *condemned, unsigned line)
{
    char bytes[CONDEMNED_LINE_LEN];
    pthread_mutex_lock(&condemned->file_lock);
    enum err err = file_open_locked(condemned);
    pthread_mutex_lock(&condemned->guarded.lock);
    line_encode(&condemned->guarded.lines[line], bytes);
    pthread_mutex_unlock(&condemned->guarded.lock);
    int failed = store_fault_strike(STORE_FAULT_NOTE);
    if (err == ERR_OK &&
        (failed != 0 || pwrite(condemned->fd, bytes, sizeof(bytes),
                               (off_t)line * CONDEMNED_LINE_LEN) != (ssize_t)sizeof(bytes))) {
        err = ERR_IO;
    }
    pthread_mutex_unlock(&condemned->file_lock);
    return err;
}

enum err state_condemned_sync(struct store_condemned *condemned)
{
    pthread_mutex_lock(&condemned->file_lock);
    enum err err = file_open_locked(condemned);
    if (err == ERR_OK && (fdatasync(condemned->fd) != 0 || fsync(condemned->disk->dir.fd) != 0)) {
        err = error_from_errno(errno);
    }
    pthread_mutex_unlock(&condemned->file_lock);
    return err;
}

// --- lines ---------------------------------------------------------------------------------------

// The key's line, else a free one, else the one that was condemned longest ago.
static unsigned line_for_locked(const struct store_condemned *condemned, struct hash128 hash)
{
    const struct condemned_line *lines = condemned->guarded.lines;
    unsigned oldest = 0;
    for (unsigned i = 0; i < STORE_CONDEMNED_MAX; i++) {
        if (lines[i].below != 0 && hash128_equal(lines[i].hash, hash)) {
            return i;
        }
        oldest = lines[i].below < lines[oldest].below ? i : oldest;
    }
    return oldest;
}

unsigned state_condemned_add(struct store_condemned *condemned, struct hash128 hash, uint64_t below)
{
    pthread_mutex_lock(&condemned->guarded.lock);
    unsigned at = line_for_locked(condemned, hash);
    struct condemned_line *line = &condemned->guarded.lines[at];
    bool pushes_out = line->below != 0 && !hash128_equal(line->hash, hash);
    if (pushes_out) {
        condemned->guarded.others_below = max_u64(condemned->guarded.others_below, line->below);
    }
    line->hash = hash;
    line->below = pushes_out ? below : max_u64(line->below, below);
    line->others_below = condemned->guarded.others_below;
    atomic_store(&condemned->any, true);
    pthread_mutex_unlock(&condemned->guarded.lock);
    stats_add(COUNTER_condemned_shared, pushes_out ? 1 : 0);
    return at;
}

bool state_condemned_has(struct store_condemned *condemned, struct hash128 hash,
                         uint64_t generation)
{
    if (!atomic_load(&condemned->any)) {
        return false;
    }
    pthread_mutex_lock(&condemned->guarded.lock);
    bool has = generation < condemned->guarded.others_below;
    for (unsigned i = 0; i < STORE_CONDEMNED_MAX && !has; i++) {
        const struct condemned_line *line = &condemned->guarded.lines[i];
        has = generation < line->below && hash128_equal(line->hash, hash);
    }
    pthread_mutex_unlock(&condemned->guarded.lock);
    return has;
}

void state_condemned_load(struct store_condemned *condemned,
                          void (*on_line)(void *ctx, struct hash128 hash, uint64_t below),
                          void *ctx)
{
    char bytes[STORE_CONDEMNED_MAX * CONDEMNED_LINE_LEN];
    if (condemned->disk->dir.fresh) { // generations start over, and no old run is left
        (void)unlinkat(condemned->disk->dir.fd, CONDEMNED_FILE, 0);
    }
    int fd = openat(condemned->disk->dir.fd, CONDEMNED_FILE,
                    O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t len = fd >= 0 ? pread(fd, bytes, sizeof(bytes), 0) : 0;
    condemned->fd = fd;
    for (unsigned i = 0; (ssize_t)((i + 1) * CONDEMNED_LINE_LEN) <= len; i++) {
        struct condemned_line *line = &condemned->guarded.lines[i];
        if (!line_decode(bytes + (size_t)i * CONDEMNED_LINE_LEN, line)) {
            continue; // torn by a power cut, before anybody went by it
        }
        condemned->guarded.others_below =
            max_u64(condemned->guarded.others_below, line->others_below);
        atomic_store(&condemned->any, true);
        on_line(ctx, line->hash, line->below);
    }
}

void state_condemned_init(struct store_condemned *condemned, struct store_disk *disk)
{
    condemned->disk = disk;
    condemned->fd = -1;
    check(pthread_mutex_init(&condemned->guarded.lock, NULL) == 0);
    check(pthread_mutex_init(&condemned->file_lock, NULL) == 0);
}

void state_condemned_done(struct store_condemned *condemned)
{
    if (condemned->fd >= 0) {
        (void)close(condemned->fd); // synced with each line that anybody went by
    }
    check(pthread_mutex_destroy(&condemned->guarded.lock) == 0);
    check(pthread_mutex_destroy(&condemned->file_lock) == 0);
}
