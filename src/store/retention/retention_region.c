// SPDX-License-Identifier: Apache-2.0
// The memory of the policy's arrays is mapped to an unlinked file in the cache directory. So the
// kernel may write its pages to the file and reclaim their memory. The file counts in cache.size.
//
// The map has room for as many runs as the cache can rank. The file is only as large as the present
// runs need. So a cache of small objects can rank all of them, and a cache of large objects wastes
// no space. The file grows in steps of a 64th. Each step is reserved and allocated before the
// policy touches it, because a write to an unallocated page could end the process. If cache.size or
// the disk has no room, new runs are not ranked, and a later run tries again.
//
// If the file system cannot allocate such a file, or is full, the arrays are in plain memory, with
// room for fewer runs. The kernel cannot write plain memory back to the file system.
//
// The file grows under the retention's lock, on any thread that passes events to the policy. No
// worker does that.
#include "store/retention/retention_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "store/segment/segment_log.h"

#define REGION_FILE "policy.map"
#define GROW_AGAIN_US 1000000u // time from a failure to grow to the next attempt

static bool region_allocate(struct retention_region *region, uint64_t bytes)
{
    struct store_disk *disk = region->disk;
    uint64_t have = atomic_load(&region->counted_bytes);
    check(region->fd >= 0);
    check(bytes >= have && bytes <= region->map_bytes); // the file never shrinks
    if (!disk_space_reserve(disk, bytes - have, disk->capacity_bytes)) {
        return false;
    }
    // Allocate all blocks now. Otherwise a write to the map on a full disk would end the process.
    if (fallocate(region->fd, 0, (off_t)have, (off_t)(bytes - have)) != 0) {
        disk_space_give(disk, bytes - have);
        return false;
    }
    atomic_store(&region->counted_bytes, bytes);
    return true;
}

static bool map_file(struct retention_region *region, uint64_t least)
{
    int folder = region->disk->dir.fd;
    check(region->fd < 0);
    check(atomic_load(&region->counted_bytes) == 0);
    region->fd = openat(folder, REGION_FILE,
                        O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (region->fd < 0) {
        return false;
    }
    (void)unlinkat(folder, REGION_FILE, 0); // if this fails, the next process truncates the file
    if (region_allocate(region, least)) {
        region->map = mmap(NULL, region->map_bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_NORESERVE, region->fd, 0);
    }
    return region->map != MAP_FAILED;
}

bool retention_region_open(struct retention_region *region, struct store_disk *disk,
                           unsigned segments_max, size_t least, size_t most)
{
    check(disk != NULL);
    check(least <= most);
    *region = (struct retention_region){
        .disk = disk, .map = MAP_FAILED, .map_bytes = align_up_u64(most, 4096), .fd = -1};
    // The smallest caches have no file, because it would take the room of a segment.
    bool is_small = segments_max <= SEGMENT_COUNT_MIN;
    if (!is_small && map_file(region, align_up_u64(least, 4096))) {
        return true;
    }
    region->is_refused = !is_small;
    if (region->fd >= 0) {
        (void)close(region->fd); // nothing was written, so an error loses nothing
        region->fd = -1;
    }
    disk_space_give(disk, atomic_exchange(&region->counted_bytes, 0));
    return false;
}

void retention_region_in_memory(struct retention_region *region, size_t bytes)
{
    check(region->map == MAP_FAILED); // retention_region_open() has found no file
    check(region->fd < 0);
    check(atomic_load(&region->counted_bytes) == 0);
    region->map_bytes = align_up_u64(bytes, 4096);
    if (region->is_refused) {
        log_warn("policy_in_memory", "bytes=%llu", (unsigned long long)region->map_bytes);
    }
    region->map = mmap(NULL, region->map_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(region->map != MAP_FAILED);
}

bool retention_region_grow(void *ctx, size_t bytes)
{
    struct retention_region *region = ctx;
    check(bytes <= region->map_bytes);
    uint64_t wanted = align_up_u64(bytes, 4096);
    if (region->fd < 0 || wanted <= atomic_load(&region->counted_bytes)) {
        return true;
    }
    uint64_t now_us = disk_real_us();
    if (region->refused_us != 0 && now_us - region->refused_us < GROW_AGAIN_US) {
        return false;
    }
    check(region->map != MAP_FAILED);
    bool grown = region_allocate(region, wanted);
    if (!grown && region->refused_us == 0) {
        log_warn("policy_map_full", "bytes=%llu",
                 (unsigned long long)atomic_load(&region->counted_bytes));
    }
    region->refused_us = grown ? 0 : now_us;
    return grown;
}

uint64_t retention_region_counted(const struct retention_region *region)
{
    return atomic_load(&region->counted_bytes);
}

void retention_region_close(struct retention_region *region)
{
    if (region->disk == NULL) {
        return;
    }
    check(region->map != MAP_FAILED);
    (void)munmap(region->map, region->map_bytes); // cannot fail
    if (region->fd >= 0) {
        (void)close(region->fd); // frees the file, which has no name
    }
    disk_space_give(region->disk, atomic_load(&region->counted_bytes));
    region->disk = NULL;
}
