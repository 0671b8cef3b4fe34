// SPDX-License-Identifier: Apache-2.0
// The cache directory and its disk: how much of it the store uses, whether it has room, and whether
// it works. All other inner rooms use it. It knows neither segments nor index.
#ifndef FOREBAY_STORE_DISK_DISK_H
#define FOREBAY_STORE_DISK_DISK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "store/disk/disk_fault.h"
#include "store/disk/disk_format.h"
#include "store/disk/disk_room.h"
#include "store/disk/store_dir.h"

struct store_disk {
    struct store_dir dir;
    // The supply thread changes these four once there are threads: store_size.c.
    _Atomic uint64_t capacity_bytes;      // cache.size
    _Atomic uint64_t ceiling_bytes;       // used_bytes never exceeds it
    _Atomic uint64_t segment_limit_bytes; // segments are made up to here; the rest is for the index
    atomic_uint min_free_percent;
    _Atomic uint64_t used_bytes;    // reserved before they are written
    uint64_t other_bytes;           // of the directory, beside segments and index
    atomic_uint segment_size_bytes; // as `format` has it
    struct disk_room room;
    atomic_int make_err; // why no segment can be made; ERR_OK: the last one could
    // False: the directory was unusable at the start, and the store holds nothing, for the life of
    // the process or until there is room (store_late.c).
    atomic_bool attached;
    atomic_bool is_disowned; // nobody believes the index that lies there: store_unattached.c
    _Atomic uint64_t filling_off_until_us; // monotonic; 0: filling
    atomic_uint filling_off_ms;            // the pause, doubled from failure to failure
    atomic_int filling_off_errno;          // of the failure that began the pause
    _Atomic uint64_t short_until_us;       // monotonic; descriptors are short until then
    atomic_int short_err;                  // why
    _Atomic uint64_t read_errors_since_us;
    atomic_uint read_errors;
    _Atomic uint64_t reading_off_until_us;
    atomic_bool disk_trouble_told;
};

// Real monotonic time, which pthread waits by, whatever a test has done to the clock.
static inline uint64_t disk_real_us(void)
{
    struct timespec now;
    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline struct timespec disk_timespec_of_us(uint64_t us)
{
    return (struct timespec){.tv_sec = (time_t)(us / 1000000),
                             .tv_nsec = (long)(us % 1000000 * 1000)};
}

// The directory's own keyed hash of (realm, bucket, key). Any thread.
struct hash128 disk_hash(const struct store_disk *disk, struct span realm, struct span bucket,
                         struct span key);

// --- space; any thread

// Counts `bytes` against cache.size unless more than `limit_bytes` would be used then.
bool disk_space_reserve(struct store_disk *disk, uint64_t bytes, uint64_t limit_bytes) MUST_USE;
void disk_space_give(struct store_disk *disk, uint64_t bytes);
// Sizes that cache.size comes to. Before threads, or on the supply thread.
void disk_set_sizes(struct store_disk *disk, uint64_t capacity_bytes, uint64_t ceiling_bytes,
                    uint64_t segment_limit_bytes);
void disk_set_ceiling(struct store_disk *disk, uint64_t bytes);
void disk_set_min_free(struct store_disk *disk, unsigned percent);
// Segments are of this size, a power of two; `format` says so when it is written next.
void disk_set_segment_size(struct store_disk *disk, uint32_t bytes);
// Space is counted from now on, and so much is used already; or it is counted no more.
void disk_space_begin(struct store_disk *disk, uint64_t other_bytes);
void disk_space_end(struct store_disk *disk);
// Everything that holds bytes works.
void disk_set_attached(struct store_disk *disk);
// Bytes that the store must free before it uses no more than cache.size.
uint64_t disk_excess(const struct store_disk *disk);

// --- trouble; any thread

// The disk is in trouble, or no longer: shows it in metrics, and logs the end of it.
void disk_tell_trouble(struct store_disk *disk, bool trouble);
// A write, sync, allocation or commit failed: nothing is stored for a while (5 s, doubled up to 60
// s). EMFILE and ENFILE are no failure of the disk: descriptors are short for a second instead.
void disk_filling_off(struct store_disk *disk, const char *what, int errno_value);
// One went well: the next failure begins with the short pause again.
void disk_filling_well(struct store_disk *disk);
bool disk_is_filling(const struct store_disk *disk);
// Nothing is stored for a second, because a segment could not be opened or made: ERR_DESCRIPTORS if
// the process has no descriptor left, else ERR_UNREADABLE.
void disk_fall_short(struct store_disk *disk, enum err err);
// That error within the second, ERR_OK otherwise.
enum err disk_shortage(const struct store_disk *disk);
// Why the last segment could not be made; ERR_OK: it could.
void disk_set_make_err(struct store_disk *disk, enum err err);
// May look-ups search the index, or have too many reads failed lately?
bool disk_is_reading(const struct store_disk *disk);
// The device failed a read: above 100 in a minute, look-ups find nothing for 10 s.
void disk_read_failed(struct store_disk *disk);

#endif
