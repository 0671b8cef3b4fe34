// SPDX-License-Identifier: Apache-2.0
// Returns the unused bytes of a full segment to the file system, so that they no longer count in
// cache.size. A run is stored in one segment, and only four runs of 900 KB fit into 4 MiB. Without
// trimming, a sixth of such a cache would be empty. Splitting runs is no alternative. A run of one
// block cannot be split, and bytes that are read together would be in two files.
//
// The hole is punched between the last run and the place of the table. By then no run is being
// written to the segment: its state is SEALED, so no new run begins in it, and it has no holds, so
// all earlier ones have ended. Only the table and the seal are written later, outside the hole. The
// hole begins at a page that holds no byte of a run, so nobody reads or sends bytes of the hole.
// The file keeps its size, and the table its offset.
//
// There are two exceptions. Unused bytes below a 64th of the file are not worth a hole. A cache of
// few segments is not trimmed. There, the eviction of a trimmed segment would often free too little
// for a whole new one, and all runs would wait for a second eviction.
//
// These steps, in this order, keep the cache within cache.size:
//
//   1. Punch the hole.
//   2. Ask the file system how many blocks are gone.
//   3. Write the seal, which records the bytes.
//   4. Make the space available to other segments.
//
// At the next start a segment counts as smaller only if both its seal and the file system say so
// (segment_files.c). After a crash between two steps, or a power cut that undid the hole, it counts
// as whole. The start then removes what exceeds cache.size (store_fit.c). A segment that counts as
// smaller is never written again, whatever a crash has left of its seal (segment_log_adopt()).
//
// Runs on the freeing thread, and once more when the log closes.
#include "store/segment/segment_trim.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_log.h"

#define TRIM_PARTS 64u // a hole is at least 1/64 of the file
#define TRIM_ALIGN 4096u

static_assert(TRIM_ALIGN % TABLE_PAGE_BYTES == 0, "the hole ends where the table begins");

uint32_t segment_trim(struct segment *segment, int fd, uint32_t row_count)
{
    struct segment_log *log = segment->log;
    uint32_t size = log->segment_size_bytes;
    struct stat st;
    pthread_mutex_lock(&log->guarded.lock);
    uint64_t begin = align_up_u64(segment->append_offset, TRIM_ALIGN);
    bool is_whole = segment->given_bytes == 0;
    check(segment->state == SEGMENT_SEALED || segment->state == SEGMENT_DYING);
    check(atomic_load(&segment->holds) == 0);
    pthread_mutex_unlock(&log->guarded.lock);
    uint64_t end = size - segment_table_bytes(row_count);
    check(end <= size && end % TRIM_ALIGN == 0);
    bool is_many = atomic_load(&log->segments_max) >= SEGMENT_TRIM_SEGMENTS_MIN;
    if (!is_whole || !is_many || begin + size / TRIM_PARTS > end) {
        return 0;
    }
    int failed = store_fault_strike(STORE_FAULT_TRIM);
    if (failed == 0 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin,
                                 (off_t)(end - begin)) != 0) {
        failed = errno;
    }
    if (failed == EOPNOTSUPP) {
        atomic_store(&log->no_holes, true);
    }
    if (failed != 0) {
        return 0; // the file keeps its blocks
    }
    return fstat(fd, &st) == 0 ? (uint32_t)min_u64(end - begin, segment_file_missing(&st, size))
                               : 0;
}

void segment_trim_given(struct segment *segment, uint32_t bytes)
{
    struct segment_log *log = segment->log;
    if (bytes == 0) {
        return;
    }
    pthread_mutex_lock(&log->guarded.lock);
    check(segment->given_bytes == 0 && bytes < log->segment_size_bytes);
    segment->given_bytes = bytes;
    pthread_mutex_unlock(&log->guarded.lock);
    stats_add(COUNTER_segment_given_bytes, bytes);
    disk_space_give(log->disk, bytes);
    segment_log_want(log, false); // wake the supply thread, because a new segment may fit now
}
