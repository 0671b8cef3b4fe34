// SPDX-License-Identifier: Apache-2.0
// What is left over of a full segment goes back to the file system, and counts no more in
// cache.size. A run lies in one segment, whole, and of runs of 900 KB only four fit into 4 MiB:
// without this a sixth of the cache would hold nothing. Runs are not split instead: an object of
// one block could not be, and what is read at once would lie in two files.
//
// A hole is punched between the last run and the table, while nothing of the segment is being
// written, nor will be: it is SEALED, nothing is held, and the hole begins with a page of which no
// run has a byte. So nobody who reads or sends from the segment meets it, the file keeps its size,
// and the table its place. What is less than a 64th of the file stays. So does all in a cache of a
// few segments: what one that goes gives is then too often not enough for a whole new one, and
// everything waits for the second.
//
// The order, and why cache.size holds: hole -> the file system says that the blocks are gone ->
// seal, which says how much -> the room is given to others. At the next start a segment counts as
// less than whole only where both its seal and the file system say so (segment_files.c): after a
// crash between any two of these it counts whole, and so does one whose hole a power cut has
// undone; then what is too much goes first (store_fit.c). What counts as less than whole is never
// written to again, whatever a crash has left of its seal (segment_log_adopt()).
//
// On the freeing thread, and once more when the log closes.
#include "store/segment/segment_trim.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_log.h"

#define TRIM_PARTS 64u // of the file: less is not worth a hole
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
    pthread_mutex_unlock(&log->guarded.lock);
    uint64_t end = size - segment_table_bytes(row_count);
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
        return 0; // it stays as large as it is
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
    segment->given_bytes = bytes;
    pthread_mutex_unlock(&log->guarded.lock);
    stats_add(COUNTER_segment_given_bytes, bytes);
    disk_space_give(log->disk, bytes);
    segment_log_want(log, false); // there may be room for another
}
