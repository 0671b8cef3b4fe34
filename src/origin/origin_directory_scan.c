// SPDX-License-Identifier: Apache-2.0
// Walks through a bucket's folder in the order of full key bytes. Runs on the threads of the pool
// for blocking calls; one walk runs on one thread at a time.
//
// Inside a folder, names are sorted with a '/' after each subfolder's name. When the walk comes to
// a subfolder in this order, it enters it at once. The result is exactly the order of full keys:
// "a-b" before "a/x", because '-' sorts before '/'. So a walk needs only the sorted names of the
// folders on its path.
//
// When a page is full, its walk is parked under the last name of the page. The request for the next
// page finds the walk by that name, and continues without reading a folder again. At most
// PARKED_MAX walks are parked. The longest unused is dropped first.
//
// Memory: for each folder on its path, a walk has a window of names (origin_directory_window.c),
// which the budget counts. If the budget is used up, parked walks are dropped first. After that,
// windows become small. A listing then takes longer, but is never refused.
//
// A symbolic link is listed as its target, if that is inside the tree. A folder that is its own
// ancestor is not entered. Names that are too long for a key, special files and paths that Forebay
// may not read are left out. If any other call fails, the listing fails, because a listing must not
// be shorter than the tree.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "origin/origin_directory_private.h"

#define PARKED_MAX 16u
#define PARKED_MS_MAX 120000u
#define DEPTH_MAX (S3_KEY_MAX / 2 + 1)

struct level {
    struct origin_directory_window window;
    size_t path_len; // Length of this folder's path in scan.path, with its '/'.
    uint32_t dev_major, dev_minor;
    uint64_t inode;
};

struct scan {
    struct list_node node; // Links the walk into origin_directory_scans.parked.
    struct buf bucket, prefix, delimiter, last; // Together they identify a parked walk.
    uint64_t parked_at_ms;

    // Room for the '/' after the longest folder.
    char path[S3_KEY_MAX + 2]; // The path of the current folder, and then the current name.
    struct level **levels;     // The folders on the path.
    unsigned level_count;
    struct buf after, skip; // Names up to `after`, or beginning with `skip`, are left out.
    bool has_pending;       // `pending` is the next name, found after the last page was full.
    enum origin_directory_kind pending_kind;
    struct buf pending;
};

struct origin_directory_scans {
    int root_fd;
    struct {
        pthread_mutex_t mutex;
        struct list parked; // oldest first
        unsigned count;
    } locked;
};

static void buf_set(struct buf *b, struct span s)
{
    b->len = 0;
    buf_append_span(b, s);
}

static bool drop_parked(struct origin_directory_scans *scans);

// --- One folder ----------------------------------------------------------------------------------

static void level_free(struct level *level)
{
    if (level != NULL) {
        origin_directory_window_done(&level->window);
        free(level);
    }
}

// Writes "bucket/", the first `path_len` bytes of the scan's path, and `name` to `out`. Returns the
// result as a C string.
static const char *full_path(const struct scan *scan, size_t path_len, const char *name,
                             struct buf *out)
{
    out->len = 0;
    buf_append_span(out, buf_span(&scan->bucket));
    buf_append_char(out, '/');
    buf_append(out, scan->path, path_len);
    buf_append_cstr(out, name);
    return buf_cstr(out);
}

static enum err kind_of_entry(const struct scan *scan, int root_fd, size_t path_len,
                              const struct dirent *entry, enum origin_directory_kind *ret_kind)
{
    *ret_kind = ORIGIN_DIRECTORY_NEITHER;
    switch (entry->d_type) {
    case DT_REG:
        *ret_kind = ORIGIN_DIRECTORY_FILE;
        return ERR_OK;
    case DT_DIR:
        *ret_kind = ORIGIN_DIRECTORY_FOLDER;
        return ERR_OK;
    case DT_LNK:
    case DT_UNKNOWN:
        break;
    default:
        return ERR_OK;
    }
    struct buf path;
    buf_init(&path, 4096);
    const char *text = full_path(scan, path_len, entry->d_name, &path);
    enum err err =
        buf_ok(&path) ? origin_directory_file_kind(root_fd, text, ret_kind) : ERR_NO_MEMORY;
    buf_done(&path);
    return origin_directory_left_out(err);
}

// Returns true if the listing must have neither this name nor any key below it, because they all
// sort at or before `after`.
static bool lies_before(struct span after, struct span path, struct span name, bool is_folder)
{
    if (after.len == 0) {
        return false;
    }
    // Compares path + name with `after` without joining them.
    size_t shared = path.len < after.len ? path.len : after.len;
    int order = memcmp(path.ptr, after.ptr, shared);
    if (order == 0 && path.len > after.len) {
        order = 1;
    }
    if (order != 0) {
        return order < 0;
    }
    struct span rest = {after.ptr + path.len, after.len - path.len};
    if (is_folder && span_starts_with(rest, name)) {
        return false;
    }
    return span_compare(name, rest) <= 0;
}

static bool give_back(void *ctx)
{
    return drop_parked(ctx);
}

static enum err level_add(struct origin_directory_scans *scans, const struct scan *scan,
                          struct level *level, const char *text, enum origin_directory_kind kind)
{
    char full[ORIGIN_DIRECTORY_NAME_MAX + 1];
    bool is_folder = kind == ORIGIN_DIRECTORY_FOLDER;
    int len = snprintf(full, sizeof(full), "%s%s", text, is_folder ? "/" : "");
    check(len > 0 && (size_t)len < sizeof(full));
    struct span name = {full, (size_t)len}, path = {scan->path, level->path_len};
    return lies_before(buf_span(&scan->after), path, name, is_folder)
               ? ERR_OK
               : origin_directory_window_add(&level->window, name, kind, give_back, scans);
}

// Returns the part of the prefix with which the names in this folder must begin. Empty: any name.
static struct span level_filter(const struct scan *scan, const struct level *level)
{
    struct span prefix = buf_span(&scan->prefix);
    return prefix.len > level->path_len
               ? (struct span){prefix.ptr + level->path_len, prefix.len - level->path_len}
               : (struct span){NULL, 0};
}

// Reads the next window of names from the open folder `fd`, whose path is `text`, and closes it.
static enum err level_read_names(struct origin_directory_scans *scans, const struct scan *scan,
                                 struct level *level, int fd, const char *text)
{
    DIR *dir = NULL;
    enum err err = origin_directory_file_names(fd, text, &dir);
    if (err != ERR_OK) {
        return err;
    }
    struct dirent *entry = NULL;
    struct span filter = level_filter(scan, level);
    while (err == ERR_OK && (err = origin_directory_file_next(dir, text, &entry)) == ERR_OK &&
           entry != NULL) {
        struct span name = span_from_cstr(entry->d_name);
        if (origin_directory_file_is_dot(entry->d_name) || !span_starts_with(name, filter) ||
            level->path_len + name.len > S3_KEY_MAX) {
            continue;
        }
        enum origin_directory_kind kind;
        err = kind_of_entry(scan, scans->root_fd, level->path_len, entry, &kind);
        if (kind != ORIGIN_DIRECTORY_NEITHER) {
            err = level_add(scans, scan, level, entry->d_name, kind);
        }
    }
    (void)closedir(dir);
    origin_directory_window_sort(&level->window);
    return err;
}

static enum err level_read(struct origin_directory_scans *scans, const struct scan *scan,
                           struct level *level, int fd)
{
    struct buf path;
    buf_init(&path, 4096);
    enum err err =
        level_read_names(scans, scan, level, fd, full_path(scan, level->path_len, "", &path));
    buf_done(&path);
    return err;
}

// --- Entering folders ----------------------------------------------------------------------------

static struct level *top(const struct scan *scan)
{
    return scan->levels[scan->level_count - 1];
}

static void level_pop(struct scan *scan)
{
    level_free(top(scan));
    scan->level_count--;
}

static bool is_ancestor(const struct scan *scan, const struct statx *stat)
{
    for (unsigned i = 0; i < scan->level_count; i++) {
        const struct level *level = scan->levels[i];
        if (level->inode == stat->stx_ino && level->dev_major == stat->stx_dev_major &&
            level->dev_minor == stat->stx_dev_minor) {
            return true;
        }
    }
    return false;
}

// Opens the folder scan->path[0, path_len). Errors as of origin_directory_tree_error().
static enum err folder_open(const struct origin_directory_scans *scans, const struct scan *scan,
                            size_t path_len, int flags, int *ret_fd)
{
    struct buf path;
    buf_init(&path, 4096);
    const char *text = full_path(scan, path_len, "", &path);
    enum err err = ERR_NO_MEMORY;
    if (buf_ok(&path)) {
        *ret_fd = origin_directory_file_open_blocking(scans->root_fd, text, flags | O_DIRECTORY);
        err = *ret_fd < 0 ? origin_directory_tree_error(errno, text) : ERR_OK;
    }
    buf_done(&path);
    return err;
}

// Enters the folder scan->path[0, path_len). If `names` is false, its names are not read, because
// it is only a component of the prefix. Returns ERR_NO_SUCH_KEY if the folder is gone, or if it is
// not entered because it is its own ancestor or too deep. On errors, the walk stays where it was.
static enum err level_push(struct origin_directory_scans *scans, struct scan *scan, size_t path_len,
                           bool names)
{
    if (scan->level_count == DEPTH_MAX) {
        return ERR_NO_SUCH_KEY;
    }
    int fd;
    struct statx stat;
    enum err err = folder_open(scans, scan, path_len, names ? O_RDONLY : O_PATH, &fd);
    if (err != ERR_OK) {
        return err;
    }
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO, &stat) != 0) {
        err = origin_directory_error(errno);
    } else if (is_ancestor(scan, &stat)) {
        err = ERR_NO_SUCH_KEY;
    }
    if (err != ERR_OK) {
        (void)close(fd);
        return err == ERR_ORIGIN_CHANGED ? ERR_ORIGIN_5XX : err;
    }
    struct level *level = calloc(1, sizeof(*level));
    struct level **levels = realloc(scan->levels, (scan->level_count + 1) * sizeof(struct level *));
    if (levels != NULL) {
        scan->levels = levels;
    }
    if (level == NULL || levels == NULL) {
        free(level);
        (void)close(fd);
        return ERR_NO_MEMORY;
    }
    origin_directory_window_init(&level->window);
    level->path_len = path_len;
    level->dev_major = stat.stx_dev_major;
    level->dev_minor = stat.stx_dev_minor;
    level->inode = stat.stx_ino;
    if (names) {
        err = level_read(scans, scan, level, fd);
    } else {
        (void)close(fd);
    }
    if (err != ERR_OK) {
        level_free(level);
        return err;
    }
    scan->levels[scan->level_count++] = level;
    return ERR_OK;
}

// Reads the next window of names. If the folder was removed since, the window stays empty. A folder
// that may no longer be read is an error, because a part of its names was listed already.
static enum err level_refill(struct origin_directory_scans *scans, const struct scan *scan,
                             struct level *level)
{
    int fd;
    origin_directory_window_advance(&level->window);
    enum err err = folder_open(scans, scan, level->path_len, O_RDONLY, &fd);
    if (err == ERR_OK) {
        err = level_read(scans, scan, level, fd);
    }
    return err == ERR_ACCESS_DENIED ? err : origin_directory_left_out(err);
}

static bool delimiter_is_slash(const struct scan *scan)
{
    return span_equal_cstr(buf_span(&scan->delimiter), "/");
}

// Writes the next name in key order to `ret_name`. It is the key of a file or, if the delimiter is
// "/", also the path of a folder. *ret_kind is ORIGIN_DIRECTORY_NEITHER at the end.
static enum err scan_next(struct origin_directory_scans *scans, struct scan *scan,
                          struct buf *ret_name, enum origin_directory_kind *ret_kind)
{
    *ret_kind = ORIGIN_DIRECTORY_NEITHER;
    while (scan->level_count > 0) {
        struct level *level = top(scan);
        struct origin_directory_window *window = &level->window;
        struct span skip = buf_span(&scan->skip);
        struct span path = {scan->path, level->path_len};
        if (skip.len > 0 && span_starts_with(path, skip)) {
            level_pop(scan);
            continue;
        }
        if (window->next == window->name_count && origin_directory_window_is_cut(window)) {
            enum err err = level_refill(scans, scan, level);
            if (err != ERR_OK) {
                return err;
            }
        }
        if (window->next == window->name_count) {
            level_pop(scan);
            continue;
        }
        size_t i = window->next++;
        struct span name = origin_directory_window_name(window, i);
        enum origin_directory_kind kind = window->names[i].kind;
        check(path.len + name.len < sizeof(scan->path));
        memcpy(scan->path + path.len, name.ptr, name.len);
        struct span full = {scan->path, path.len + name.len};
        if (full.len > S3_KEY_MAX || (skip.len > 0 && span_starts_with(full, skip))) {
            continue;
        }
        if (kind == ORIGIN_DIRECTORY_FOLDER && !delimiter_is_slash(scan)) {
            enum err err = origin_directory_left_out(level_push(scans, scan, full.len, true));
            if (err != ERR_OK) {
                return err;
            }
            continue;
        }
        ret_name->len = 0;
        buf_append_span(ret_name, full);
        *ret_kind = kind;
        return buf_ok(ret_name) ? ERR_OK : ERR_NO_MEMORY;
    }
    return ERR_OK;
}

// --- Life cycle of a walk ------------------------------------------------------------------------

static void scan_free(struct scan *scan)
{
    if (scan == NULL) {
        return;
    }
    while (scan->level_count > 0) {
        level_pop(scan);
    }
    free(scan->levels);
    buf_done(&scan->bucket);
    buf_done(&scan->prefix);
    buf_done(&scan->delimiter);
    buf_done(&scan->last);
    buf_done(&scan->after);
    buf_done(&scan->skip);
    buf_done(&scan->pending);
    free(scan);
}

// Returns the part of `key` up to and including the first delimiter after the prefix. Empty: there
// is no delimiter.
static struct span common_prefix(struct span key, struct span prefix, struct span delimiter)
{
    if (delimiter.len == 0 || key.len <= prefix.len || !span_starts_with(key, prefix)) {
        return (struct span){NULL, 0};
    }
    const char *rest = key.ptr + prefix.len;
    const char *at = memmem(rest, key.len - prefix.len, delimiter.ptr, delimiter.len);
    if (at == NULL) {
        return (struct span){NULL, 0};
    }
    return (struct span){key.ptr, (size_t)(at - key.ptr) + delimiter.len};
}

static enum err scan_new(struct origin_directory_scans *scans, struct span bucket,
                         const struct s3_listing_query *query, struct scan **ret_scan)
{
    struct scan *scan = calloc(1, sizeof(*scan));
    if (scan == NULL) {
        return ERR_NO_MEMORY;
    }
    struct buf *bufs[] = {&scan->bucket, &scan->prefix, &scan->delimiter, &scan->last,
                          &scan->after,  &scan->skip,   &scan->pending};
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++) {
        list_node_init(&scan->node);
        buf_init(bufs[i], 4096);
    }
    buf_set(&scan->bucket, bucket);
    buf_set(&scan->prefix, query->prefix);
    buf_set(&scan->delimiter, query->delimiter);
    buf_set(&scan->after, query->after);
    struct span fold = common_prefix(query->after, query->prefix, query->delimiter);
    if (fold.len > 0 && fold.len == query->after.len) {
        buf_set(&scan->skip, fold); // the previous page ended with this common prefix
    }
    // The folders that the prefix names are opened without reading their names. The names of the
    // last one are read.
    size_t base = query->prefix.len;
    while (base > 0 && query->prefix.ptr[base - 1] != '/') {
        base--;
    }
    struct span above = {query->prefix.ptr, base};
    struct span filter = {query->prefix.ptr + base, query->prefix.len - base};
    bool possible =
        query->prefix.len <= S3_KEY_MAX &&
        (filter.len == 0 || memchr(filter.ptr, '\0', filter.len) == NULL) &&
        (base == 0 || origin_directory_key_is_valid((struct span){above.ptr, base - 1}));
    enum err err = ERR_OK;
    if (possible && base > 0) {
        memcpy(scan->path, above.ptr, base);
    }
    for (size_t i = 0; possible && err == ERR_OK && i <= base; i++) {
        if (i == 0 || scan->path[i - 1] == '/') {
            err = level_push(scans, scan, i, i == base);
            possible = err == ERR_OK;
        }
    }
    err = err == ERR_NO_SUCH_KEY ? ERR_OK : err; // no key begins with the prefix
    if (err != ERR_OK || !possible) {
        while (scan->level_count > 0) {
            level_pop(scan);
        }
    }
    if (err != ERR_OK) {
        scan_free(scan);
        return err;
    }
    *ret_scan = scan;
    return ERR_OK;
}

// --- Parking -------------------------------------------------------------------------------------

struct origin_directory_scans *origin_directory_scans_new(int root_fd)
{
    struct origin_directory_scans *scans = calloc(1, sizeof(*scans));
    check(scans != NULL);
    scans->root_fd = root_fd;
    check(pthread_mutex_init(&scans->locked.mutex, NULL) == 0);
    list_init(&scans->locked.parked);
    return scans;
}

static void unpark_locked(struct origin_directory_scans *scans, struct scan *scan)
{
    list_remove(&scan->node);
    scans->locked.count--;
}

// Moves parked walks that are too old or too many to a list, which the caller frees after it has
// released the lock.
static void trim_locked(struct origin_directory_scans *scans, uint64_t now_ms, struct list *ret_out)
{
    struct list_node *node;
    while ((node = list_first(&scans->locked.parked)) != NULL) {
        struct scan *scan = container_of(node, struct scan, node);
        if (scans->locked.count <= PARKED_MAX && now_ms - scan->parked_at_ms <= PARKED_MS_MAX) {
            break;
        }
        unpark_locked(scans, scan);
        list_push_back(ret_out, &scan->node);
    }
}

static void free_all(struct list *list)
{
    struct list_node *node;
    while ((node = list_pop_front(list)) != NULL) {
        scan_free(container_of(node, struct scan, node));
    }
}

void origin_directory_scans_free(struct origin_directory_scans *scans)
{
    if (scans == NULL) {
        return;
    }
    free_all(&scans->locked.parked);
    check(pthread_mutex_destroy(&scans->locked.mutex) == 0);
    free(scans);
}

#ifdef FOREBAY_FAULTS
unsigned origin_directory_scans_parked(struct origin_directory_scans *scans)
{
    check(pthread_mutex_lock(&scans->locked.mutex) == 0);
    unsigned count = scans->locked.count;
    check(pthread_mutex_unlock(&scans->locked.mutex) == 0);
    return count;
}
#endif

static void scan_park(struct origin_directory_scans *scans, struct scan *scan)
{
    struct list out;
    list_init(&out);
    scan->parked_at_ms = clock_monotonic_ms();
    check(pthread_mutex_lock(&scans->locked.mutex) == 0);
    list_push_back(&scans->locked.parked, &scan->node);
    scans->locked.count++;
    trim_locked(scans, scan->parked_at_ms, &out);
    check(pthread_mutex_unlock(&scans->locked.mutex) == 0);
    free_all(&out);
}

// Drops the longest unused walk. Returns false if none is parked.
static bool drop_parked(struct origin_directory_scans *scans)
{
    check(pthread_mutex_lock(&scans->locked.mutex) == 0);
    struct list_node *node = list_first(&scans->locked.parked);
    struct scan *scan = node != NULL ? container_of(node, struct scan, node) : NULL;
    if (scan != NULL) {
        unpark_locked(scans, scan);
    }
    check(pthread_mutex_unlock(&scans->locked.mutex) == 0);
    scan_free(scan);
    return scan != NULL;
}

static struct scan *scan_unpark(struct origin_directory_scans *scans, struct span bucket,
                                const struct s3_listing_query *query)
{
    struct scan *found = NULL;
    struct list out;
    list_init(&out);
    check(pthread_mutex_lock(&scans->locked.mutex) == 0);
    trim_locked(scans, clock_monotonic_ms(), &out);
    list_for_each(node, &scans->locked.parked)
    {
        struct scan *scan = container_of(node, struct scan, node);
        if (found == NULL && span_equal(buf_span(&scan->bucket), bucket) &&
            span_equal(buf_span(&scan->prefix), query->prefix) &&
            span_equal(buf_span(&scan->delimiter), query->delimiter) &&
            span_equal(buf_span(&scan->last), query->after)) {
            found = scan;
        }
    }
    if (found != NULL) {
        unpark_locked(scans, found);
    }
    check(pthread_mutex_unlock(&scans->locked.mutex) == 0);
    free_all(&out);
    return found;
}

// --- A page --------------------------------------------------------------------------------------

struct page_builder {
    struct origin_directory_scans *scans;
    struct scan *scan;
    const struct s3_listing_query *query;
    struct arena *arena;
    struct s3_listing_entry *entries;
    struct span *prefixes;
    size_t entry_count, prefix_count;
    struct buf path;
};

static enum err add_prefix(struct page_builder *b, struct span prefix)
{
    struct span copy = arena_copy(b->arena, prefix);
    if (copy.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    b->prefixes[b->prefix_count++] = copy;
    buf_set(&b->scan->skip, copy);
    buf_set(&b->scan->last, copy);
    return ERR_OK;
}

static enum err add_entry(struct page_builder *b, struct span key)
{
    struct statx stat;
    b->path.len = 0;
    buf_append_span(&b->path, buf_span(&b->scan->bucket));
    buf_append_char(&b->path, '/');
    buf_append_span(&b->path, key);
    if (!buf_ok(&b->path)) {
        return ERR_NO_MEMORY;
    }
    enum err err = origin_directory_file_stat(b->scans->root_fd, buf_cstr(&b->path), 0, &stat);
    if (err != ERR_OK || !S_ISREG(stat.stx_mode)) {
        // The file may have been removed or replaced since its folder was read.
        return origin_directory_left_out(err);
    }
    char etag[ORIGIN_DIRECTORY_ETAG_LEN + 1];
    origin_directory_file_etag(&stat, etag);
    struct s3_listing_entry *entry = &b->entries[b->entry_count];
    entry->key = arena_copy(b->arena, key);
    entry->etag = arena_copy(b->arena, span_from_cstr(etag));
    if (entry->key.ptr == NULL || entry->etag.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    entry->size = stat.stx_size;
    entry->last_modified = (time_t)stat.stx_mtime.tv_sec;
    entry->last_modified_ms = 0; // whole seconds, like the Last-Modified header
    b->entry_count++;
    buf_set(&b->scan->last, entry->key);
    return ERR_OK;
}

static enum err add_name(struct page_builder *b, struct span name, enum origin_directory_kind kind)
{
    if (kind == ORIGIN_DIRECTORY_FOLDER) {
        b->path.len = 0;
        buf_append_span(&b->path, buf_span(&b->scan->bucket));
        buf_append_char(&b->path, '/');
        buf_append_span(&b->path, name);
        bool has_file = false;
        enum err err =
            origin_directory_folder_has_file(b->scans->root_fd, buf_cstr(&b->path), &has_file);
        // Without a file, no key begins with the folder's path.
        return err == ERR_OK && has_file ? add_prefix(b, name) : err;
    }
    struct span prefix = common_prefix(name, b->query->prefix, b->query->delimiter);
    return prefix.len > 0 ? add_prefix(b, prefix) : add_entry(b, name);
}

static enum err next_name(struct page_builder *b, struct buf *name,
                          enum origin_directory_kind *ret_kind)
{
    struct scan *scan = b->scan;
    if (scan->has_pending) {
        scan->has_pending = false;
        buf_set(name, buf_span(&scan->pending));
        *ret_kind = scan->pending_kind;
        return buf_ok(name) ? ERR_OK : ERR_NO_MEMORY;
    }
    return scan_next(b->scans, scan, name, ret_kind);
}

static enum err build_page(struct page_builder *b, bool *ret_more)
{
    struct buf name;
    enum origin_directory_kind kind = ORIGIN_DIRECTORY_FILE;
    enum err err = ERR_OK;
    buf_init(&name, 4096);
    while (err == ERR_OK && b->entry_count + b->prefix_count < b->query->max_keys) {
        err = next_name(b, &name, &kind);
        if (err != ERR_OK || kind == ORIGIN_DIRECTORY_NEITHER) {
            break;
        }
        err = add_name(b, buf_span(&name), kind);
    }
    if (err == ERR_OK && kind != ORIGIN_DIRECTORY_NEITHER && b->query->max_keys > 0) {
        err = next_name(b, &b->scan->pending, &b->scan->pending_kind);
        b->scan->has_pending = err == ERR_OK && b->scan->pending_kind != ORIGIN_DIRECTORY_NEITHER;
        *ret_more = b->scan->has_pending;
    }
    buf_done(&name);
    return err;
}

enum err origin_directory_scan_page(struct origin_directory_scans *scans, struct span bucket,
                                    const struct s3_listing_query *query, struct arena *arena,
                                    struct s3_listing_page *ret_page)
{
    enum err err = origin_directory_bucket(scans->root_fd, bucket);
    if (err != ERR_OK) {
        return err;
    }
    check(query->max_keys <= 1000);
    struct page_builder b = {.scans = scans, .query = query, .arena = arena};
    b.entries = arena_alloc(arena, (query->max_keys + 1) * sizeof(b.entries[0]));
    b.prefixes = arena_alloc(arena, (query->max_keys + 1) * sizeof(b.prefixes[0]));
    if (b.entries == NULL || b.prefixes == NULL) {
        return ERR_NO_MEMORY;
    }
    b.scan = query->after.len > 0 ? scan_unpark(scans, bucket, query) : NULL;
    if (b.scan == NULL) {
        err = scan_new(scans, bucket, query, &b.scan);
        if (err != ERR_OK) {
            return err;
        }
    }
    buf_init(&b.path, 4096);
    bool more = false;
    err = build_page(&b, &more);
    buf_done(&b.path);
    if (err == ERR_OK) {
        *ret_page =
            (struct s3_listing_page){.entries = b.entries,
                                     .entry_count = b.entry_count,
                                     .common_prefixes = b.prefixes,
                                     .common_prefix_count = b.prefix_count,
                                     .truncated = more,
                                     .last_name = arena_copy(arena, buf_span(&b.scan->last))};
    }
    if (err == ERR_OK && more) {
        scan_park(scans, b.scan);
    } else {
        scan_free(b.scan);
    }
    return err;
}
