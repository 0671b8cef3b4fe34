// SPDX-License-Identifier: Apache-2.0
// Makes a cache directory fit a cache.size that is smaller than its content. Runs at the start,
// before anything in the directory is open, so that the limit holds from the first request on.
//
// Removes the following, in this order, until the rest leaves the headroom free:
//
// - The part of the index file that was allocated ahead.
// - The index, if it would take a quarter of the cache or the space of the last segments. LMDB
//   never returns pages, so the file cannot shrink. Recovery rebuilds the index from the remaining
//   segments.
// - Empty segments.
// - The oldest segments.
//
// If more than half of the cached bytes are removed, the index is removed, too, because most of its
// entries would be wrong.
//
// If the file system has no room for `format` and for a growth of the index, the oldest segments
// are removed. Otherwise the start would fail (store_late.c), and all cached bytes would be lost.
//
// After a crash in between, the directory may still be too large, or the index may name segments
// that are gone. Their runs are misses.
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "store/index/index_verify.h"
#include "store/segment/segment_files.h"
#include "store/store_private.h"

#define INDEX_SHARE 4u // if the cache is too full, an index larger than 1/4 of it is rebuilt

static int number_ascending(const void *a, const void *b)
{
    uint32_t x = ((const struct segment_file *)a)->number;
    uint32_t y = ((const struct segment_file *)b)->number;
    return (x > y) - (x < y);
}

struct fitting {
    struct store *store;
    struct segment_file *files; // sorted by number, the oldest first
    size_t count;
    uint64_t cost, used; // disk usage in bytes: of one full segment, and of the whole cache
    size_t empty_gone, full_gone;
};

// Removes segments, oldest first, until the cache is small enough. only_empty: keeps segments with
// content.
static void fit_segments(struct fitting *f, bool only_empty)
{
    int segments_fd = f->store->disk.dir.segments_fd;
    size_t kept = 0;
    check(segments_fd >= 0 && f->cost > 0);
    for (size_t i = 0; i < f->count; i++) {
        bool over = f->used > f->store->disk.segment_limit_bytes;
        char name[SEGMENT_NAME_LEN];
        segment_name(f->files[i].number, name);
        if (!over || (only_empty && !segment_file_is_empty(segments_fd, f->files[i].number)) ||
            unlinkat(segments_fd, name, 0) != 0) { // a file that cannot be removed still counts
            f->files[kept++] = f->files[i];
            continue;
        }
        f->used -= f->cost - f->files[i].given_bytes;
        f->empty_gone += only_empty;
        f->full_gone += !only_empty;
    }
    check(kept <= f->count);
    f->count = kept;
}

bool store_fit_index(const struct store *store, uint64_t index_bytes)
{
    uint64_t segments =
        SEGMENT_COUNT_MIN * segment_cost_bytes(store->disk.dir.format.segment_size_bytes);
    return index_bytes <= store->disk.capacity_bytes / INDEX_SHARE &&
           store_size_fixed(store) + segments + index_bytes <= store->disk.segment_limit_bytes;
}

static uint64_t files_cost(const struct fitting *f)
{
    uint64_t bytes = f->count * f->cost;
    for (size_t i = 0; i < f->count; i++) {
        bytes -= f->files[i].given_bytes;
    }
    return bytes;
}

#define START_BYTES (1u << 20) // free bytes that a start may need
// At most this many are removed for a start, because more would not help if these do not.
#define START_SEGMENTS_MAX 4u
static_assert(START_BYTES <= STORE_SIZE_MIN, "a start needs less than the smallest cache");
static_assert(START_BYTES <= SEGMENT_SIZE_MIN, "one segment may be enough");

// Removes some of the oldest segments until the file system has room for a start.
static void fit_full_disk(struct fitting *f)
{
    int segments_fd = f->store->disk.dir.segments_fd;
    size_t gone = 0, most = min_u64(START_SEGMENTS_MAX, f->count);
    struct store_space space;
    while (gone < most && store_dir_space(&f->store->disk.dir, &space) == ERR_OK &&
           space.free_bytes < START_BYTES) {
        char name[SEGMENT_NAME_LEN];
        segment_name(f->files[gone].number, name);
        if (unlinkat(segments_fd, name, 0) != 0) {
            break;
        }
        gone++;
    }
    if (gone > 0) {
        f->count -= gone;
        memmove(f->files, f->files + gone, f->count * sizeof(*f->files));
        log_warn("cache_shrunk",
                 "reason=no_space removed=%zu segments=%zu text=\"the file system of cache.dir has "
                 "no space, so cached data was removed\"",
                 gone, f->count);
    }
}

size_t store_fit(struct store *store, struct segment_file *files, size_t count)
{
    uint64_t other = store->disk.other_bytes;
    check(!store->disk.attached && atomic_load(&store->index.current) == NULL);
    uint64_t index = index_file_bytes(store->disk.dir.index_fd);
    struct fitting f = {.store = store, .files = files, .count = count};
    f.cost = segment_cost_bytes(store->disk.dir.format.segment_size_bytes);
    qsort(files, count, sizeof(*files), number_ascending);
    fit_full_disk(&f);
    f.used = other + files_cost(&f) + index;
    if (f.used <= store->disk.capacity_bytes) {
        return f.count;
    }
    check(f.count <= count);
    uint64_t before = f.used;
    uint64_t cut = index_file_cut(store->disk.dir.index_fd);
    bool drop = !store_fit_index(store, cut);
    f.used = other + files_cost(&f) + (drop ? 0 : cut);
    fit_segments(&f, true);
    fit_segments(&f, false);
    drop = drop || f.full_gone > f.count;
    if (drop) {
        index_remove_files(store->disk.dir.index_fd);
    }
    log_warn("cache_shrunk",
             "was_bytes=%llu now_bytes=%llu segments=%zu removed=%zu empty=%zu index=%s text=\"the "
             "cache was larger than cache.size, so cached data was removed\"",
             (unsigned long long)before, (unsigned long long)f.used, f.count, f.full_gone,
             f.empty_gone, drop ? "dropped" : "kept");
    return f.count;
}
