// SPDX-License-Identifier: Apache-2.0
// Keeps the policy's knowledge in the file `policy` of the cache directory. The file is a sequence
// of pieces (policy_save.c). Before each piece is its length in 4 bytes, little endian. A rename
// replaces the file. The file is not synced, because the load verifies each piece and skips those
// that a power cut has damaged. The last piece is not the policy's: it has the last misses of
// clients (stats.h). The file counts in cache.size. If there is no room for a new file, the old one
// stays.
#include "store/retention/retention_state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/segment/segment_log.h"

#define STATE_FILE "policy"
#define STATE_FILE_NEW "policy.new"
#define STATE_PAGE 4096u

uint64_t retention_state_bytes(const struct store_disk *disk)
{
    struct stat st;
    bool there = fstatat(disk->dir.fd, STATE_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;
    return there ? (uint64_t)st.st_blocks * 512 : 0;
}

// --- the piece with the last misses, in the byte order of the host

#define MISSES_MAGIC 0x4d734246u

struct misses_piece {
    uint32_t magic, zero;
    uint64_t count, us, checksum;
};

static uint64_t misses_checksum(const struct misses_piece *piece)
{
    return hash64(piece, offsetof(struct misses_piece, checksum), 0);
}

static size_t misses_save(char *bytes)
{
    struct stats_misses misses = stats_misses();
    struct misses_piece piece = {.magic = MISSES_MAGIC, .count = misses.count, .us = misses.us};
    piece.checksum = misses_checksum(&piece);
    memcpy(bytes, &piece, sizeof(piece));
    return sizeof(piece);
}

// Returns false if the piece is another one, or damaged.
static bool misses_load(const char *bytes, size_t len)
{
    struct misses_piece piece;
    if (len != sizeof(piece)) {
        return false;
    }
    memcpy(&piece, bytes, sizeof(piece));
    if (piece.magic != MISSES_MAGIC || piece.checksum != misses_checksum(&piece)) {
        return false;
    }
    stats_misses_restore((struct stats_misses){piece.count, piece.us});
    return true;
}

// --- loading

// Reads the next piece. Returns false at the end of the file.
static bool piece_read(int fd, char *piece, uint32_t *ret_len)
{
    char head[4];
    if (read(fd, head, sizeof(head)) != (ssize_t)sizeof(head)) {
        return false;
    }
    uint32_t len = wire_get_u32(head);
    if (len > POLICY_PIECE_MAX || read(fd, piece, len) != (ssize_t)len) {
        return false;
    }
    *ret_len = len;
    return true;
}

static int file_open(const struct store_disk *disk)
{
    return openat(disk->dir.fd, STATE_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

uint32_t retention_state_former(const struct store_disk *disk)
{
    char head[POLICY_PIECE_HEAD];
    int fd = file_open(disk);
    if (fd < 0) {
        return 0;
    }
    ssize_t len = pread(fd, head, sizeof(head), 4);
    (void)close(fd); // only read, so an error loses nothing
    return len > 0 ? policy_saved_former(head, (size_t)len) : 0;
}

// Loads all pieces. Returns false if retention was stopped before the last one.
static bool file_load(struct retention *r, int fd)
{
    check(fd >= 0);
    char *piece = malloc(POLICY_PIECE_MAX);
    check(piece != NULL);
    uint32_t len;
    unsigned count = 0, refused = 0;
    bool stops;
    while (!(stops = retention_stopping(r)) && piece_read(fd, piece, &len)) {
        count++;
        if (misses_load(piece, len)) {
            continue;
        }
        pthread_mutex_lock(&r->lock);
        refused += policy_load(r->policy, piece, len) != ERR_OK;
        pthread_mutex_unlock(&r->lock);
    }
    if (refused > 0) {
        // Harmless: the policy learns again. It also happens after a large change of cache.size.
        log_info("policy_state_refused", "pieces=%u of=%u", refused, count);
    } else {
        log_debug("policy_state_loaded", "pieces=%u", count);
    }
    free(piece);
    return !stops;
}

// Begins each loaded segment that still exists, and removes the other loaded ones from the policy.
// If the last process was killed, the retention thread will also list these segments, because they
// may hold runs that were stored after the last save.
static void state_is_loaded_locked(struct retention *r)
{
    struct segment_log *log = r->log;
    check(r->phase == RETENTION_LOADING);
    unsigned behind = r->was_clean ? 0 : 1;
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        struct segment *segment = &log->table[i];
        struct retention_segment *known = &r->segments[i];
        uint32_t number = atomic_load(&segment->number);
        bool is_loaded = !known->is_ranked && policy_segment_knows(r->policy, number);
        if (is_loaded && segment_pin(segment, number)) {
            known->is_ranked = policy_segment_begin(r->policy, number);
            known->lost_runs_then = atomic_load(&r->lost_runs) - behind;
            segment_unpin(segment);
        }
    }
    policy_load_done(r->policy);
    retention_enter(r, RETENTION_LEARNING);
}

void retention_state_load(struct retention *r)
{
    check(retention_learns(r));
    struct stat st;
    int fd = file_open(r->disk);
    bool is_whole = true;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        is_whole = file_load(r, fd);
    }
    if (fd >= 0) {
        (void)close(fd); // only read, so an error loses nothing
    }
    pthread_mutex_lock(&r->lock);
    if (is_whole) {
        state_is_loaded_locked(r);
    } else {
        retention_enter(r, RETENTION_UNREAD);
    }
    pthread_mutex_unlock(&r->lock);
}

// --- saving

static bool piece_write(struct store_disk *disk, int fd, const char *bytes, size_t len,
                        uint64_t *written, uint64_t *reserved)
{
    check(len > 4 && len <= 4 + POLICY_PIECE_MAX);
    check(*written <= *reserved);
    uint64_t needed = align_up_u64(*written + len, STATE_PAGE);
    if (needed > *reserved) {
        if (!disk_space_reserve(disk, needed - *reserved, disk->capacity_bytes)) {
            return false;
        }
        *reserved = needed;
    }
    *written += len;
    return write(fd, bytes, len) == (ssize_t)len;
}

static bool file_save(struct retention *r, int fd, uint64_t *reserved)
{
    char *bytes = malloc(4 + POLICY_PIECE_MAX);
    check(bytes != NULL);
    struct policy_cursor cursor = {0};
    uint64_t written = 0;
    size_t len = 1;
    bool well = true;
    while (well && len > 0) { // policy_save() returns 0 after the last piece, which ends the loop
        pthread_mutex_lock(&r->lock);
        len = policy_save(r->policy, &cursor, bytes + 4);
        check(len <= POLICY_PIECE_MAX);
        pthread_mutex_unlock(&r->lock);
        wire_put_u32(bytes, (uint32_t)len);
        well = len == 0 || piece_write(r->disk, fd, bytes, 4 + len, &written, reserved);
        retention_drain(r);
    }
    len = misses_save(bytes + 4);
    wire_put_u32(bytes, (uint32_t)len);
    well = well && piece_write(r->disk, fd, bytes, 4 + len, &written, reserved);
    free(bytes);
    return well;
}

void retention_state_save(struct retention *r)
{
    int folder = r->disk->dir.fd;
    uint64_t reserved = 0;
    check(retention_learns(r));
    if (!retention_is_ready(r)) {
        return; // the load was interrupted, so the file on disk has more knowledge
    }
    int fd = openat(folder, STATE_FILE_NEW,
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    bool well = fd >= 0 && file_save(r, fd, &reserved);
    if (fd >= 0 && close(fd) != 0) {
        well = false;
    }
    struct policy_stats stats;
    pthread_mutex_lock(&r->lock);
    policy_stats(r->policy, &stats);
    pthread_mutex_unlock(&r->lock);
    log_info("retention",
             "admitted_bytes=%llu refused_bytes=%llu rewritten_bytes=%llu dropped_bytes=%llu "
             "unranked_runs=%llu silences=%llu known_share=%.3f bar=%.3g",
             (unsigned long long)stats.admitted_bytes, (unsigned long long)stats.refused_bytes,
             (unsigned long long)stats.rewritten_bytes, (unsigned long long)stats.dropped_bytes,
             (unsigned long long)stats.unranked_runs, (unsigned long long)stats.silences,
             (double)stats.known_share, (double)stats.bar);
    if (well && renameat(folder, STATE_FILE_NEW, folder, STATE_FILE) == 0) {
        disk_space_give(r->disk, r->state_bytes);
        r->state_bytes = reserved;
        return;
    }
    (void)unlinkat(folder, STATE_FILE_NEW, 0); // if this fails, the next process counts the file
    disk_space_give(r->disk, reserved);
    stats_add(COUNTER_retention_saves_failed, 1);
}
