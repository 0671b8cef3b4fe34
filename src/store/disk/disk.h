// SPDX-License-Identifier: Apache-2.0
// The cache directory and its disk: how much space the store uses, whether there is room, and
// whether the disk works. All other inner rooms use it. It knows neither segments nor index.
#ifndef FOREBAY_STORE_DISK_DISK_H
#define FOREBAY_STORE_DISK_DISK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "stats/stats.h"
#include "store/disk/disk_fault.h"
#include "store/disk/disk_format.h"
#include "store/disk/disk_room.h"
#include "store/disk/disk_thread.h"
#include "store/disk/store_dir.h"

// The calls of the store's own threads to the disk. At most one of each kind runs at a time.
enum disk_call {
    DISK_CALL_FORMAT,  // the file `format` is written
    DISK_CALL_INDEX,   // payload is synced before a commit of the index, or the commit is written
    DISK_CALL_SEGMENT, // a segment is created
    DISK_CALL_COUNT
};

#define DISK_FOREVER UINT64_MAX
// Segments being evicted at the same time, at most, when cache.size or the file system demands it.
#define DISK_GOING_MAX 4u

struct store_disk {
    struct store_dir dir;
    // Held while an unusable directory is opened late or disowned, which a hung disk may make last.
    // Taken before the lock of `format`, and only by threads that may wait for the disk.
    pthread_mutex_t opening_lock;
    struct disk_spares spares; // for all threads of the store
    // While threads run, only the supply thread changes the next four values (store_size.c).
    _Atomic uint64_t capacity_bytes;      // cache.size
    _Atomic uint64_t ceiling_bytes;       // used_bytes never exceeds this
    _Atomic uint64_t segment_limit_bytes; // segments may use up to this; the rest is for the index
    atomic_uint min_free_percent;
    _Atomic uint64_t used_bytes;    // reserved before bytes are written
    uint64_t other_bytes;           // files of the directory other than segments and index
    atomic_uint segment_size_bytes; // as in `format`
    struct disk_room room;
    atomic_int make_err; // error of the last creation of a segment; ERR_OK: it succeeded
    // False: the directory was unusable at the start, so the store holds nothing. It stays false
    // for the life of the process, or until there is room (store_late.c).
    atomic_bool attached;
    // The index in the directory is marked or removed, so no later process trusts it:
    // store_unattached.c.
    atomic_bool is_disowned;
    // No run is stored until this monotonic time. 0: no pause; DISK_FOREVER: until a restart.
    _Atomic uint64_t filling_off_until_us;
    atomic_uint filling_off_ms;   // length of that pause, doubled with each failure
    atomic_int filling_off_errno; // errno of the failure that began the pause
    // No run is stored until this monotonic time, because of short_err.
    _Atomic uint64_t short_until_us;
    atomic_int short_err; // the reason: ERR_DESCRIPTORS or ERR_UNREADABLE
    _Atomic uint64_t read_errors_since_us;
    atomic_uint read_errors;
    _Atomic uint64_t reading_off_until_us;
    atomic_bool is_in_trouble;   // from the first failed write to the first that succeeds
    atomic_uint reads_late;      // late reads in flight
    atomic_uint slowness;        // rises with each late read, and falls with each read in time
    _Atomic uint64_t late_bytes; // the largest late read since slowness was 0
    // Monotonic; until then a slow disk gets no read that the origin can answer.
    _Atomic uint64_t probe_at_us;
    _Atomic uint64_t call_began_ms[DISK_CALL_COUNT]; // monotonic; 0: no such call runs
};

// Returns the real monotonic time, which pthread uses for waits, even if a test has changed the
// clock.
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

// Returns the keyed hash of (realm, bucket, key); each directory has its own hash key. Any thread.
struct hash128 disk_hash(const struct store_disk *disk, struct span realm, struct span bucket,
                         struct span key);

// --- space; any thread

// Reserves `bytes` of cache.size. Returns false if more than `limit_bytes` would then be used.
bool disk_space_reserve(struct store_disk *disk, uint64_t bytes, uint64_t limit_bytes) MUST_USE;
void disk_space_give(struct store_disk *disk, uint64_t bytes);
// Sets the sizes that follow from cache.size. Called before threads start, or on the supply thread.
void disk_set_sizes(struct store_disk *disk, uint64_t capacity_bytes, uint64_t ceiling_bytes,
                    uint64_t segment_limit_bytes);
void disk_set_ceiling(struct store_disk *disk, uint64_t bytes);
void disk_set_min_free(struct store_disk *disk, unsigned percent);
// Sets the size of segments, a power of two. The next write of `format` records it.
void disk_set_segment_size(struct store_disk *disk, uint32_t bytes);
// disk_space_begin() starts counting space, with `other_bytes` in use. disk_space_end() stops it.
void disk_space_begin(struct store_disk *disk, uint64_t other_bytes);
void disk_space_end(struct store_disk *disk);
// Writes the state table to `format` durably. If the directory is not usable, writes nothing and
// returns ERR_OK. The caller holds store_dir.format_lock. Blocks.
enum err disk_commit_state(struct store_disk *disk) MUST_USE;
// Marks the directory as usable. Called once all parts of the store work.
void disk_set_attached(struct store_disk *disk);
// Returns the bytes that the store must free to use no more than cache.size.
uint64_t disk_excess(const struct store_disk *disk);

// --- calls that may hang; any thread

void disk_call_begins(struct store_disk *disk, enum disk_call call);
void disk_call_ends(struct store_disk *disk, enum disk_call call);
// Returns for how long the call has been running. 0: it does not run.
uint64_t disk_call_age_ms(const struct store_disk *disk, enum disk_call call);

// --- trouble; any thread

// Returns disk_full or disk_degraded from the first failed write to the first success, also between
// the pauses of disk_filling_off(), and while the directory is not attached.
enum refusal disk_trouble(const struct store_disk *disk);
// Called after a failed write, sync, allocation or commit. Stores nothing for a while: 5 s, doubled
// up to 60 s. EMFILE and ENFILE are no failure of the disk: storing then stops for a second only.
void disk_filling_off(struct store_disk *disk, const char *what, int errno_value);
// Stores nothing any more if the directory was removed: only a restart makes it again.
void disk_look_at_directory(struct store_disk *disk);
// Called after a success. Resets the length of the next pause to 5 s.
void disk_filling_well(struct store_disk *disk);
bool disk_is_filling(const struct store_disk *disk);
// Stores nothing for a second, because a segment could not be opened or created: ERR_DESCRIPTORS if
// the process has no free descriptor, else ERR_UNREADABLE.
void disk_fall_short(struct store_disk *disk, enum err err);
// Returns the error of disk_fall_short() during that second, ERR_OK afterwards.
enum err disk_shortage(const struct store_disk *disk);
// Sets the error of the last attempt to create a segment; ERR_OK: it succeeded.
void disk_set_make_err(struct store_disk *disk, enum err err);
// Returns true if look-ups may search the index, false if too many reads failed lately.
bool disk_is_reading(const struct store_disk *disk);
// Called after a failed read. After more than 100 in a minute, look-ups find nothing for 10 s.
void disk_read_failed(struct store_disk *disk);
// Judge reads that have a time limit: store_read_late() and its neighbours in store.h.
void disk_read_late(struct store_disk *disk, uint64_t bytes);
void disk_read_late_over(struct store_disk *disk);
void disk_read_in_time(struct store_disk *disk, uint64_t bytes);
bool disk_is_slow(const struct store_disk *disk);
bool disk_is_stuck(const struct store_disk *disk);
bool disk_takes_read(struct store_disk *disk);

#endif
