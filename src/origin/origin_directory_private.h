// SPDX-License-Identifier: Apache-2.0
// The declarations that the files of the directory driver share: names and versions of files, and
// walks in key order.
#ifndef FOREBAY_ORIGIN_DIRECTORY_PRIVATE_H
#define FOREBAY_ORIGIN_DIRECTORY_PRIVATE_H

#include <dirent.h>
#include <sys/stat.h>

#include "origin/origin_private.h"

#define ORIGIN_DIRECTORY_ETAG_LEN 34u // 32 hex digits and "-1", without quotes.

struct origin_directory_scans;

struct origin_directory {
    int root_fd;
    struct origin_directory_scans *scans;
};

// --- origin_directory_file.c: pure, and a few calls of openat2 -----------------------------------

// Flags for openat2: symbolic links may lead anywhere inside the tree, but never out of it.
#define ORIGIN_DIRECTORY_RESOLVE (RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
#define ORIGIN_DIRECTORY_STATX_MASK                                                                \
    (STATX_TYPE | STATX_SIZE | STATX_MTIME | STATX_CTIME | STATX_INO)

// Opens a path below `dir_fd` by openat2 with ORIGIN_DIRECTORY_RESOLVE. Blocks. Returns -1 and sets
// errno on failure.
int origin_directory_file_open_blocking(int dir_fd, const char *path, int flags);
// Opens the path with O_PATH and `flags`, and stats it. Errors as of origin_directory_tree_error().
enum err origin_directory_file_stat(int root_fd, const char *path, int flags,
                                    struct statx *ret_stat) MUST_USE;
// Finds the type of a path below the root. Symbolic links are followed inside the tree. NEITHER:
// another type, or an error as of origin_directory_tree_error().
enum origin_directory_kind {
    ORIGIN_DIRECTORY_NEITHER,
    ORIGIN_DIRECTORY_FILE,
    ORIGIN_DIRECTORY_FOLDER
};
enum err origin_directory_file_kind(int root_fd, const char *path,
                                    enum origin_directory_kind *ret_kind) MUST_USE;
// Opens a folder for reading its names. Takes ownership of `fd`, which is the result of opening
// `path`. If it is negative, errno has the reason.
enum err origin_directory_file_names(int fd, const char *path, DIR **ret_dir) MUST_USE;
// Reads the next name of the folder `path`. At the end, *ret_entry is NULL and the result ERR_OK.
enum err origin_directory_file_next(DIR *dir, const char *path, struct dirent **ret_entry) MUST_USE;
bool origin_directory_file_is_dot(const char *name); // Returns true for "." and "..".
// Finds out whether there is a file below the folder `path`, which is relative to the root and ends
// with '/'. Does not enter links to folders, so the search ends. If more folders wait to be
// searched than fit into the buffer, assumes that there is a file.
enum err origin_directory_folder_has_file(int root_fd, const char *path, bool *ret_found) MUST_USE;
bool origin_directory_bucket_is_valid(struct span bucket);
// Returns true if a file can have this key: it has no empty, "." or ".." component, no NUL, and at
// most S3_KEY_MAX bytes.
bool origin_directory_key_is_valid(struct span key);
// Returns "bucket/key". Returns NULL if no file can have this bucket and key, or if memory is
// short.
char *origin_directory_file_path(struct arena *arena, struct span bucket, struct span key);
// Makes the ETag from size, mtime, ctime and inode. The buffer has ORIGIN_DIRECTORY_ETAG_LEN + 1
// bytes.
void origin_directory_file_etag(const struct statx *stat, char *ret_etag);
bool origin_directory_file_same(const struct statx *a, const struct statx *b);
// Returns true if the file may have changed less than 2 s ago, so that a further change might not
// show in its times.
bool origin_directory_file_too_young(const struct statx *stat, uint64_t now_wall_us);
struct span origin_directory_content_type(struct span key);
// Maps an errno. All errors that mean "there is no such file" become ERR_NO_SUCH_KEY.
enum err origin_directory_error(int errno_value);
// Maps the errno of a call for a listing or a bucket. Logs it, unless `path` is gone.
//
// - ERR_NO_SUCH_KEY: the path is gone, or leads out of the tree.
// - ERR_ACCESS_DENIED: Forebay may not read it.
// - Any other error: it is unknown what the path has. So it must not count as gone.
enum err origin_directory_tree_error(int errno_value, const char *path);
// Returns ERR_OK if a listing leaves out the path that has this error, because it is gone or
// because Forebay may not read it. Otherwise returns the error, with which the listing must fail.
enum err origin_directory_left_out(enum err err);

// --- origin_directory_window.c: one thread at a time ---------------------------------------------

// The longest name in a window: a key's longest component, and the '/' after a folder's name.
// Names on FUSE can be longer than NAME_MAX.
#define ORIGIN_DIRECTORY_NAME_MAX (S3_KEY_MAX + 1u)

// One name. Its bytes are in origin_directory_window.bytes. A folder's name ends in '/'.
struct origin_directory_name {
    uint32_t offset;
    uint16_t len;
    uint8_t kind;
};

struct origin_directory_window {
    struct buf bytes;
    struct origin_directory_name *names;
    size_t name_count, name_cap;
    size_t next;            // Index of the first name that the walk has not used yet.
    struct buf from;        // Names up to this one were in previous windows.
    struct buf bound;       // Names above this one did not fit. Empty: all did.
    uint64_t charged_bytes; // Memory of the window that the budget counts.
};
void origin_directory_window_init(struct origin_directory_window *w);
void origin_directory_window_done(struct origin_directory_window *w);
// Adds one name of the folder; the names may come in any order. If memory is short, calls
// give_back(), which frees memory elsewhere and returns true, or returns false if it cannot.
enum err origin_directory_window_add(struct origin_directory_window *w, struct span name,
                                     enum origin_directory_kind kind, bool (*give_back)(void *ctx),
                                     void *ctx) MUST_USE;
// Sorts the names after the last one was added.
void origin_directory_window_sort(struct origin_directory_window *w);
struct span origin_directory_window_name(const struct origin_directory_window *w, size_t i);
// Returns true if the folder has names above those of the window. To get them, the caller advances
// the window and adds all names of the folder again.
bool origin_directory_window_is_cut(const struct origin_directory_window *w);
void origin_directory_window_advance(struct origin_directory_window *w);

// --- origin_directory_scan.c: pool threads -------------------------------------------------------

struct origin_directory_scans *origin_directory_scans_new(int root_fd);
void origin_directory_scans_free(struct origin_directory_scans *scans);
#ifdef FOREBAY_FAULTS
unsigned origin_directory_scans_parked(struct origin_directory_scans *scans);
#endif

// Makes one page of a listing of `bucket`, with all its memory in `arena`. Returns
// ERR_NO_SUCH_BUCKET, ERR_NO_MEMORY, ERR_LIMIT, or ERR_ORIGIN_5XX if a folder cannot be read.
// Returns ERR_ACCESS_DENIED if Forebay may not read the folder that the prefix names.
enum err origin_directory_scan_page(struct origin_directory_scans *scans, struct span bucket,
                                    const struct s3_listing_query *query, struct arena *arena,
                                    struct s3_listing_page *ret_page) MUST_USE;
// --- origin_directory_buckets.c: pool threads, and the start -------------------------------------

// Lists the first-level folders, which are the buckets, in the order of their names.
enum err origin_directory_buckets(int root_fd, struct arena *arena,
                                  struct s3_bucket_entry **ret_buckets, size_t *ret_count) MUST_USE;
// Returns ERR_OK if the bucket's folder can be opened, and ERR_NO_SUCH_BUCKET if it does not exist.
// Any other error means that this is unknown.
enum err origin_directory_bucket(int root_fd, struct span bucket) MUST_USE;
// Maps the errno of a failed open of the bucket's folder `name`.
enum err origin_directory_bucket_error(int errno_value, const char *name);
// Returns the number of first-level entries that are not folders, and adds the names of the first
// few to `names`.
size_t origin_directory_top_files(int root_fd, struct buf *names);

// --- origin_directory_relay.c --------------------------------------------------------------------

void origin_directory_relay_start(struct origin_worker *ow, struct origin_relay *r);

#endif
