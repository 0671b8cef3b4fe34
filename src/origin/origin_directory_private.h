// SPDX-License-Identifier: Apache-2.0
// The declarations that the files of the directory driver share: names and versions of files, and
// walks in key order.
#ifndef FOREBAY_ORIGIN_DIRECTORY_PRIVATE_H
#define FOREBAY_ORIGIN_DIRECTORY_PRIVATE_H

#include <dirent.h>
#include <sys/stat.h>

#include "origin/origin_private.h"

#define ORIGIN_DIRECTORY_ETAG_LEN 34u // 32 hex digits and "-1", without quotes

struct origin_directory_scans;

struct origin_directory {
    int root_fd;
    struct origin_directory_scans *scans;
};

// --- origin_directory_file.c: pure, and a few calls of openat2 -----------------------------------

// openat2 flags: symbolic links may point anywhere inside the tree, never out of it.
#define ORIGIN_DIRECTORY_RESOLVE (RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
#define ORIGIN_DIRECTORY_STATX_MASK                                                                \
    (STATX_TYPE | STATX_SIZE | STATX_MTIME | STATX_CTIME | STATX_INO)

// Blocking openat2 below `dir_fd` with ORIGIN_DIRECTORY_RESOLVE. Returns -1 and sets errno on
// failure.
int origin_directory_file_open_blocking(int dir_fd, const char *path, int flags);
// The type of a path below the root; links are followed inside the tree.
enum origin_directory_kind {
    ORIGIN_DIRECTORY_NEITHER,
    ORIGIN_DIRECTORY_FILE,
    ORIGIN_DIRECTORY_FOLDER
};
enum origin_directory_kind origin_directory_file_kind(int root_fd, const char *path);
// Opens the folder `fd` for reading its names, and takes ownership of `fd`, which may be below 0.
DIR *origin_directory_file_names(int fd);
bool origin_directory_bucket_is_valid(struct span bucket);
// Returns true if the key may be a file: no empty, "." or ".." component, no NUL, at most
// S3_KEY_MAX bytes.
bool origin_directory_key_is_valid(struct span key);
// Returns "bucket/key"; NULL if either cannot be a file, or memory is short.
char *origin_directory_file_path(struct arena *arena, struct span bucket, struct span key);
// Makes the ETag from size, mtime, ctime and inode. The buffer has ORIGIN_DIRECTORY_ETAG_LEN + 1
// bytes.
void origin_directory_file_etag(const struct statx *stat, char *ret_etag);
bool origin_directory_file_same(const struct statx *a, const struct statx *b);
// Returns true if the file changed less than 2 s ago by its own clock or ours.
bool origin_directory_file_too_young(const struct statx *stat, uint64_t now_wall_us);
struct span origin_directory_content_type(struct span key);
// Returns ERR_NO_SUCH_KEY for all errors that mean "there is no such file".
enum err origin_directory_error(int errno_value);

// --- origin_directory_window.c: one thread at a time ---------------------------------------------

#define ORIGIN_DIRECTORY_NAME_MAX 256u // NAME_MAX and a folder's '/'

// A name, whose bytes are in origin_directory_window.bytes. A folder's name ends in '/'.
struct origin_directory_name {
    uint32_t offset;
    uint16_t len;
    uint8_t kind;
};

struct origin_directory_window {
    struct buf bytes;
    struct origin_directory_name *names;
    size_t name_count, name_cap;
    size_t next;            // index of the first name that the walk has not used yet
    struct buf from;        // names up to this one belong to previous windows
    struct buf bound;       // names above this one did not fit and were dropped; empty: all fitted
    uint64_t charged_bytes; // charged to the memory budget
};
void origin_directory_window_init(struct origin_directory_window *w);
void origin_directory_window_done(struct origin_directory_window *w);
// Adds one name of the folder, in any order. If memory is short, calls `give_back`, which frees
// memory elsewhere, or returns false if it cannot.
enum err origin_directory_window_add(struct origin_directory_window *w, struct span name,
                                     enum origin_directory_kind kind, bool (*give_back)(void *ctx),
                                     void *ctx) MUST_USE;
void origin_directory_window_sort(struct origin_directory_window *w); // after the last add()
struct span origin_directory_window_name(const struct origin_directory_window *w, size_t i);
// Returns true if the folder has names above those of the window. The caller then advances and adds
// all names again.
bool origin_directory_window_is_cut(const struct origin_directory_window *w);
void origin_directory_window_advance(struct origin_directory_window *w);

// --- origin_directory_scan.c: pool threads -------------------------------------------------------

struct origin_directory_scans *origin_directory_scans_new(int root_fd);
void origin_directory_scans_free(struct origin_directory_scans *scans);
#ifdef FOREBAY_FAULTS
unsigned origin_directory_scans_parked(struct origin_directory_scans *scans);
#endif

// Makes one page of a listing of `bucket`, with everything in `arena`. ERR_NO_SUCH_BUCKET,
// ERR_NO_MEMORY, ERR_LIMIT.
enum err origin_directory_scan_page(struct origin_directory_scans *scans, struct span bucket,
                                    const struct s3_listing_query *query, struct arena *arena,
                                    struct s3_listing_page *ret_page) MUST_USE;
// --- origin_directory_buckets.c: pool threads, and the start -------------------------------------

// Lists the first-level folders in the order of their names.
enum err origin_directory_buckets(int root_fd, struct arena *arena,
                                  struct s3_bucket_entry **ret_buckets, size_t *ret_count) MUST_USE;
// Returns ERR_NO_SUCH_BUCKET if there is no such folder.
enum err origin_directory_bucket(int root_fd, struct span bucket) MUST_USE;
// Returns how many first-level entries are not folders; adds the first names to `names`.
size_t origin_directory_top_files(int root_fd, struct buf *names);

// --- origin_directory_relay.c --------------------------------------------------------------------

void origin_directory_relay_start(struct origin_worker *ow, struct origin_relay *r);

#endif
