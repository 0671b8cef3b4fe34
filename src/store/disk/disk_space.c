// SPDX-License-Identifier: Apache-2.0
// Space. used_bytes is the maximum that the directory may take on disk. The store raises it before
// it creates a file, so the store alone never takes more than capacity_bytes. Segments may use up
// to segment_limit_bytes; the rest is for the index. Any thread.
#include "stats/stats.h"
#include "store/disk/disk.h"

bool disk_space_reserve(struct store_disk *disk, uint64_t bytes, uint64_t limit_bytes)
{
    uint64_t used = atomic_load(&disk->used_bytes);
    do {
        if (used > limit_bytes || bytes > limit_bytes - used) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&disk->used_bytes, &used, used + bytes));
    stats_add(COUNTER_cache_bytes, bytes);
    return true;
}

void disk_space_give(struct store_disk *disk, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub(&disk->used_bytes, bytes);
    check(before >= bytes);
    stats_sub(COUNTER_cache_bytes, bytes);
}

uint64_t disk_excess(const struct store_disk *disk)
{
    uint64_t used = atomic_load(&disk->used_bytes);
    uint64_t capacity = atomic_load(&disk->capacity_bytes);
    return used > capacity ? used - capacity : 0;
}

struct hash128 disk_hash(const struct store_disk *disk, struct span realm, struct span bucket,
                         struct span key)
{
    const struct span pieces[] = {realm, bucket, key};
    return hash128_of(pieces, ARRAY_LEN(pieces), disk->dir.format.hash_key);
}

void disk_set_sizes(struct store_disk *disk, uint64_t capacity_bytes, uint64_t ceiling_bytes,
                    uint64_t segment_limit_bytes)
{
    check(segment_limit_bytes <= ceiling_bytes);
    atomic_store(&disk->ceiling_bytes, ceiling_bytes);
    atomic_store(&disk->segment_limit_bytes, segment_limit_bytes);
    atomic_store(&disk->capacity_bytes, capacity_bytes);
}

void disk_set_ceiling(struct store_disk *disk, uint64_t bytes)
{
    atomic_store(&disk->ceiling_bytes, bytes);
}

void disk_set_min_free(struct store_disk *disk, unsigned percent)
{
    check(percent <= 100);
    atomic_store(&disk->min_free_percent, percent);
}

void disk_set_segment_size(struct store_disk *disk, uint32_t bytes)
{
    check(bytes > 0 && (bytes & (bytes - 1)) == 0);
    check(bytes <= SEGMENT_SIZE_MAX);
    disk->dir.format.segment_size_bytes = bytes;
    atomic_store(&disk->segment_size_bytes, bytes);
}

void disk_space_begin(struct store_disk *disk, uint64_t other_bytes)
{
    disk->other_bytes = other_bytes;
    atomic_store(&disk->used_bytes, other_bytes);
    stats_add(COUNTER_cache_bytes, other_bytes);
}

void disk_space_end(struct store_disk *disk)
{
    stats_sub(COUNTER_cache_bytes, atomic_exchange(&disk->used_bytes, 0));
    atomic_store(&disk->capacity_bytes, 0);
}

enum err disk_commit_state(struct store_disk *disk)
{
    check(!atomic_load(&disk->attached) || disk->dir.fd >= 0);
    if (!atomic_load(&disk->attached)) {
        return ERR_OK;
    }
    disk_call_begins(disk, DISK_CALL_FORMAT);
    enum err err = store_dir_write_format(&disk->dir);
    disk_call_ends(disk, DISK_CALL_FORMAT);
    return err;
}

void disk_set_attached(struct store_disk *disk)
{
    check(disk->dir.fd >= 0 && disk->dir.lock_fd >= 0);
    check(disk->dir.segments_fd >= 0 && disk->dir.index_fd >= 0);
    atomic_store(&disk->attached, true);
}
