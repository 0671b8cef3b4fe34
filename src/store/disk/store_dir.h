// SPDX-License-Identifier: Apache-2.0
// The cache directory: its lock, its `format` file and what it takes up.
#ifndef FOREBAY_STORE_STORE_DIR_H
#define FOREBAY_STORE_STORE_DIR_H

#include <limits.h>
#include <pthread.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "store/disk/disk_format.h"

// Segments a clean stop leaves open: one per worker at most, and the spare ones.
#define STORE_APPEND_MAX 160u
#define STORE_BOOT_ID_MAX 63u
#define STORE_EPOCHS_MAX 256u       // buckets with an epoch of their own (state_epoch.c)
#define STORE_DOUBTS_MAX 64u        // buckets whose doubts are their own (state_doubt.c)
#define STORE_HOLDERS_MAX 512u      // holders whose number lasts (state_holder.c)
#define STORE_DIR_PRIVATE "forebay" // the folder in a directory that others may change
// Lock, format, folders and LMDB's lock file, with room to spare.
#define STORE_OVERHEAD_BYTES (128u << 10)

struct store_append {
    uint32_t number, offset, unit_count, run_count;
    uint32_t row_count, table_id; // of the table that it was left with
};

struct store_epoch_line {
    struct hash128 bucket;
    uint64_t epoch;
};

struct store_holder_line {
    struct hash128 holder;
    uint64_t number;
};

struct store_doubt_line {
    struct hash128 bucket;
    uint64_t until_wall_ms; // 0: never was in doubt
    bool is_written_to;     // by the process that has the directory
};

// What the file `format` says.
struct store_format {
    uint8_t cache_id[CACHE_ID_LEN];
    uint64_t hash_key;
    uint32_t segment_size_bytes;
    uint32_t next_segment;    // numbers below may have been used
    uint64_t next_generation; // generations below may have been used
    char boot_id[STORE_BOOT_ID_MAX + 1];
    uint8_t cuts;          // boots that ended without a clean stop, modulo 256
    bool clean;            // false: opened and not (yet) closed
    uint64_t index_txn;    // of the last commit: at the clean stop, else at opening
    uint64_t other_epochs; // of all buckets that have no line below
    unsigned epoch_count;
    struct store_epoch_line epochs[STORE_EPOCHS_MAX];
    uint64_t last_holder; // numbers up to this may have been used; 0: a directory without any
    unsigned holder_count;
    struct store_holder_line holders[STORE_HOLDERS_MAX];
    struct store_doubt_line other_doubts; // of all buckets that have no line below
    unsigned doubt_count;
    struct store_doubt_line doubts[STORE_DOUBTS_MAX];
    unsigned append_count;
    struct store_append append[STORE_APPEND_MAX]; // after a clean stop: where writing may go on
};
void store_format_render(const struct store_format *format, struct buf *out);
enum err store_format_parse(struct span text, struct store_format *ret_format) MUST_USE;

// A name in the folder for which `skip` does not say so; false: there is none. May block.
bool store_dir_other(int fd, bool (*skip)(const char *name), char ret_name[NAME_MAX + 1]);
// The same, but for what an empty file system has and what a start that came to nothing leaves.
bool store_dir_is_foreign(int fd, char ret_name[NAME_MAX + 1]);
// The version that `format` in this folder names; 0: there is none of ours.
unsigned store_dir_version(int fd);

struct store_dir {
    char *path;
    int fd, lock_fd, segments_fd, index_fd; // index_fd: the folder, for the marker
    struct store_format format;
    // Taken by whoever changes and writes `format` while the store is open; no other lock is taken
    // while it is held.
    pthread_mutex_t format_lock;
    bool fresh;       // `format` was made now
    bool was_used;    // there was one before
    int failed_errno; // of the last thing it refused
};
// Makes the directory (0700) and the folders in it, locks it, reads or makes `format`. A directory
// that others may change is entered by one folder more; dir->path says so. One that holds something
// and no `format` is refused: it is somebody's. ERR_IN_USE, ERR_FORMAT with text; other errors:
// unusable, with text. `dir` needs store_dir_close() in any case.
enum err store_dir_open(struct store_dir *dir, const char *path, struct buf *ret_why) MUST_USE;
void store_dir_close(struct store_dir *dir);
// A directory that could not be opened to its end is left to others; store_dir_open() may be tried
// again.
void store_dir_give_up(struct store_dir *dir);
// Closes what is open of it, its locks too; path and `format` stay.
void store_dir_leave(struct store_dir *dir);
// Path of the folder `index`, appended.
void store_dir_index_path(const struct store_dir *dir, struct buf *out);
// Replaces `format` atomically by dir->format; it lasts when this says ERR_OK.
enum err store_dir_write_format(struct store_dir *dir) MUST_USE;
// Bytes of everything that is neither segment nor index, rounded up generously. Bounded work.
uint64_t store_dir_other_bytes(const struct store_dir *dir);
// What the file system has.
struct store_space {
    uint64_t free_bytes, size_bytes, free_inodes;
    bool has_inodes; // else it makes as many as it needs
};
enum err store_dir_space(const struct store_dir *dir, struct store_space *ret_space) MUST_USE;
void store_boot_id(char ret_boot_id[STORE_BOOT_ID_MAX + 1]);

#endif
