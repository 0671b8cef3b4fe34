// SPDX-License-Identifier: Apache-2.0
// The calls of the store's own threads to the disk. A call that does not return fails nothing, so
// only its age shows that the disk hangs. Any thread.
#include "base/clock.h"
#include "store/disk/disk.h"

void disk_call_begins(struct store_disk *disk, enum disk_call call)
{
    atomic_store(&disk->call_began_ms[call], clock_monotonic_ms());
}

void disk_call_ends(struct store_disk *disk, enum disk_call call)
{
    atomic_store(&disk->call_began_ms[call], 0);
}

uint64_t disk_call_age_ms(const struct store_disk *disk, enum disk_call call)
{
    uint64_t began_ms = atomic_load(&disk->call_began_ms[call]), now_ms = clock_monotonic_ms();
    return began_ms != 0 ? now_ms - min_u64(now_ms, began_ms) : 0;
}
