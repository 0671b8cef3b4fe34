// SPDX-License-Identifier: Apache-2.0
// Syncs payload before the index names it. Runs on the index writer, before each commit.
#include "store/index/index_sync.h"

#include <errno.h>
#include <unistd.h>

#include "store/index/index_writer.h"
#include "store/segment/segment_log.h"

enum err index_sync_segment(struct segment *segment)
{
    struct segment_log *log = segment->log;
    int fd;
    check(log != NULL);
    int failed = store_fault_strike(STORE_FAULT_SYNC);
    enum err err = segment_borrow_wait(segment, &fd);
    if (err == ERR_UNREADABLE || err == ERR_DESCRIPTORS) {
        return err;
    }
    if (failed == 0 && (err != ERR_OK || disk_io_sync_blocking(fd) != 0)) {
        failed = err != ERR_OK ? EIO : errno;
    }
    if (err == ERR_OK) {
        segment_return(segment);
    }
    if (failed != 0) {
        segment_log_abandon(log, segment);
        disk_filling_off(log->disk, "sync", failed);
    }
    return failed == 0 ? ERR_OK : ERR_IO;
}

void index_sync_batch(struct index_writer *writer, const struct index_change *batch)
{
    struct segment_log *log = writer->index->log;
    disk_call_begins(log->disk, DISK_CALL_INDEX);
    if (batch != NULL && atomic_exchange(&log->names_unsynced, false)) {
        // A failure is ignored here. The names of new segments are then not durable, so only a
        // power cut can lose them.
        (void)fsync(log->disk->dir.segments_fd);
    }
    struct segment *synced[64];
    unsigned count = 0;
    for (const struct index_change *c = batch; c != NULL; c = c->next) {
        bool adds = c->kind == INDEX_PUT || c->kind == INDEX_MOVE;
        bool seen = !adds;
        for (unsigned i = 0; i < count && !seen; i++) {
            seen = synced[i] == c->place.segment;
        }
        if (!seen) {
            check(c->place.segment != NULL && c->place.segment->log == log);
            // This may fail, for example if the segment cannot be opened now. That is safe: if a
            // power cut then loses the run, its checksums fail and it is a miss.
            (void)index_sync_segment(c->place.segment);
            // If the list is full, a segment may be synced twice, which is cheap.
            if (count < ARRAY_LEN(synced)) {
                synced[count++] = c->place.segment;
            }
        }
        if (adds) {
            page_window_add(&writer->written, log, &c->place);
        }
    }
    disk_call_ends(log->disk, DISK_CALL_INDEX);
}
