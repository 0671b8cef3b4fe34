// SPDX-License-Identifier: Apache-2.0
// The cache directory: its lock, its `format` file and its disk usage.
#ifndef FOREBAY_STORE_DISK_STORE_DIR_H
#define FOREBAY_STORE_DISK_STORE_DIR_H

#include <limits.h>
#include <pthread.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "store/disk/disk_format.h"
#include "store/disk/state_table.h"

// Segments that a clean stop leaves open: at most one per worker, and the spare ones.
#define STORE_APPEND_MAX 160u
#define STORE_BOOT_ID_MAX 63u
// Versions of `format` that this program reads. It writes the higher one while there are rows of
// condemned keys, so that a program that does not know them refuses the cache.
#define STORE_FORMAT_VERSION_MIN SEGMENT_FORMAT_VERSION
#define STORE_FORMAT_VERSION_MAX 3u
#define STORE_DIR_PRIVATE "forebay" // the private folder in a directory that others may change
// For lock, format, folders and LMDB's lock file, with room to spare.
#define STORE_OVERHEAD_BYTES (128u << 10)

struct store_append {
    uint32_t number, offset, unit_count, run_count;
    uint32_t row_count, table_id; // of the table that was written at the stop
};

// The content of the file `format`.
struct store_format {
    uint8_t cache_id[CACHE_ID_LEN];
    uint64_t hash_key;
    uint32_t segment_size_bytes;
    uint32_t next_segment;    // segment numbers from this one on were never used
    uint64_t next_generation; // generations from this one on were never used
    char boot_id[STORE_BOOT_ID_MAX + 1];
    uint8_t cuts; // boots that ended without a clean stop, modulo 256
    bool clean;   // false: opened and not yet closed
    // Id of the index's last commit at the clean stop; without one, at the opening.
    uint64_t index_txn;
    struct state_table state;
    unsigned append_count;
    // After a clean stop: the segments in which writing may continue.
    struct store_append append[STORE_APPEND_MAX];
};
void store_format_render(const struct store_format *format, struct buf *out);
enum err store_format_parse(struct span text, struct store_format *ret_format) MUST_USE;

// Finds a name in the folder for which `skip` returns false. Returns false if there is none. May
// block.
bool store_dir_other(int fd, bool (*skip)(const char *name), char ret_name[NAME_MAX + 1]);
// The same, except for entries of an empty file system and those that a failed start leaves.
bool store_dir_is_foreign(int fd, char ret_name[NAME_MAX + 1]);
// Returns the version in this folder's `format`; 0 if that is not one of Forebay.
unsigned store_dir_version(int fd);

struct store_dir {
    char *path;
    int fd, lock_fd, segments_fd, index_fd; // index_fd: the folder index/
    struct store_format format;
    // Held by a thread that changes and writes `format` while the store is open.
    pthread_mutex_t format_lock;
    // Guards the rows of condemned keys, which workers add. Held briefly; taken after format_lock.
    pthread_mutex_t condemned_lock;
    bool fresh;       // this process found or made the directory empty
    bool was_used;    // `format` existed before
    int failed_errno; // errno of the last refusal
};
// Creates the directory (0700) and its folders, locks it, and reads or creates `format`. If others
// may change the directory, enters its private folder; dir->path then includes that. Refuses a
// non-empty directory without `format`, because it belongs to somebody. ERR_IN_USE, ERR_FORMAT:
// with a text in ret_why; other errors: unusable, with a text. The caller calls store_dir_close()
// in any case.
enum err store_dir_open(struct store_dir *dir, const char *path, struct buf *ret_why) MUST_USE;
void store_dir_close(struct store_dir *dir);
// Releases a directory if a later step of the opening failed, so that other processes can use it.
// store_dir_open() may then be tried again.
void store_dir_give_up(struct store_dir *dir);
// Closes its descriptors and locks; path and `format` stay.
void store_dir_leave(struct store_dir *dir);
// Appends the path of the folder `index`.
void store_dir_index_path(const struct store_dir *dir, struct buf *out);
// Replaces `format` atomically with dir->format. It is durable if this returns ERR_OK.
enum err store_dir_write_format(struct store_dir *dir) MUST_USE;
// Returns the bytes of all files that are neither segment nor index, rounded up. Bounded work.
uint64_t store_dir_other_bytes(const struct store_dir *dir);
// The space of the file system.
struct store_space {
    uint64_t free_bytes, size_bytes, free_inodes;
    bool has_inodes; // false: it creates inodes on demand
};
enum err store_dir_space(const struct store_dir *dir, struct store_space *ret_space) MUST_USE;
void store_boot_id(char ret_boot_id[STORE_BOOT_ID_MAX + 1]);

#endif
