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

// Segments that the process after a clean stop may continue: at most one per worker, and spare
// ones.
#define STORE_APPEND_MAX 160u
#define STORE_BOOT_ID_MAX 63u
// Versions of `format` that this program reads. It writes the lowest one that knows all its
// rows. An older program, which does not know such rows, then refuses the cache.
#define STORE_FORMAT_VERSION_MIN SEGMENT_FORMAT_VERSION
#define STORE_FORMAT_VERSION_CONDEMNED 3u
#define STORE_FORMAT_VERSION_MAX 4u
#define STORE_DIR_PRIVATE "forebay" // the private folder in a directory that others may change
// Disk usage assumed for the files `lock` and `format`, the folders, and LMDB's lock file.
#define STORE_OVERHEAD_BYTES (128u << 10)

struct store_append {
    uint32_t number, offset, unit_count, run_count;
    // Both describe the segment's table, which was written at the clean stop.
    uint32_t row_count, table_id;
};

// The content of the file `format`.
struct store_format {
    uint8_t cache_id[CACHE_ID_LEN];
    uint64_t hash_key;
    uint32_t segment_size_bytes;
    uint32_t next_segment;    // segment numbers from this one on were never used
    uint64_t next_generation; // generations from this one on were never used
    char boot_id[STORE_BOOT_ID_MAX + 1];
    uint8_t cuts; // boots of the machine that ended without a clean stop of Forebay, modulo 256
    bool clean;   // false: a process has opened the cache and not closed it
    // Id of the last commit of the index: at the clean stop, or at the opening if there was none.
    uint64_t index_txn;
    struct state_table state;
    unsigned append_count;
    // The segments that the next process may continue after a clean stop.
    struct store_append append[STORE_APPEND_MAX];
};
void store_format_render(const struct store_format *format, struct buf *out);
enum err store_format_parse(struct span text, struct store_format *ret_format) MUST_USE;

// Finds an entry of the folder for which `skip` returns false. Returns false if there is none. May
// block.
bool store_dir_other(int fd, bool (*skip)(const char *name), char ret_name[NAME_MAX + 1]);
// Like store_dir_other(), but skips entries of an empty file system and those that a failed start
// leaves.
bool store_dir_is_foreign(int fd, char ret_name[NAME_MAX + 1]);
// Returns the version in the folder's `format`. Returns 0 if that is not a `format` of Forebay.
unsigned store_dir_version(int fd);

struct store_dir {
    char *path;
    // Descriptors of the directory, the lock file and the two folders.
    int fd, lock_fd, segments_fd, index_fd;
    struct store_format format;
    // Held by a thread that changes and writes `format` while other threads run.
    pthread_mutex_t format_lock;
    // Guards the rows of condemned keys, to which workers add. Held briefly. Taken after
    // format_lock.
    pthread_mutex_t condemned_lock;
    bool fresh;       // the cache is empty: the directory had none, or this process emptied it
    bool was_used;    // the directory had a `format` before
    int failed_errno; // errno of the last failure
};
// Creates the directory (0700) and its folders, locks it, and reads or creates `format`. If others
// may change the directory, enters its private folder; dir->path then includes that folder. Refuses
// a non-empty directory without `format`, because it belongs to somebody. ERR_IN_USE and
// ERR_FORMAT: refused. Other errors: the directory cannot be used. ret_why has a text in each case.
// The caller calls store_dir_close() in any case.
enum err store_dir_open(struct store_dir *dir, const char *path, struct buf *ret_why) MUST_USE;
void store_dir_close(struct store_dir *dir);
// Called if the cache cannot be opened. Releases the locks, so that other processes can use the
// directory. Keeps them if store_dir_open() has already opened the folder `index`.
void store_dir_give_up(struct store_dir *dir);
// Closes the descriptors and releases the locks. dir->path and dir->format stay valid.
void store_dir_leave(struct store_dir *dir);
// Appends the path of the folder `index`.
void store_dir_index_path(const struct store_dir *dir, struct buf *out);
// Replaces `format` atomically by dir->format. ERR_OK: the change is durable.
enum err store_dir_write_format(struct store_dir *dir) MUST_USE;
// Returns the disk usage, rounded up, of all files that are neither segments nor index. The work is
// bounded.
uint64_t store_dir_other_bytes(const struct store_dir *dir);
// The space of the file system.
struct store_space {
    uint64_t free_bytes, size_bytes, free_inodes;
    bool has_inodes; // false: the file system creates inodes on demand
};
enum err store_dir_space(const struct store_dir *dir, struct store_space *ret_space) MUST_USE;
// Returns true if the directory, or a folder of it that holds the cache, was removed while it was
// open. Open files can still be read, but the next process does not find it.
bool store_dir_is_removed(const struct store_dir *dir);
void store_boot_id(char ret_boot_id[STORE_BOOT_ID_MAX + 1]);

#endif
