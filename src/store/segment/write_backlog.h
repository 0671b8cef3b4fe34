// SPDX-License-Identifier: Apache-2.0
// The device's backlog: payload of all workers' runs that is not on the device yet. Storing must
// not slow reading, so a run begins only while the device keeps up. Otherwise the payload is only
// streamed to the client, and may be stored when it is requested again. Any thread.
#ifndef FOREBAY_STORE_WRITE_BACKLOG_H
#define FOREBAY_STORE_WRITE_BACKLOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

// A write that takes longer is slow. After a slow write, readers do not wait for the device.
#define WRITE_BACKLOG_SLOW_US 250000u
// The device counts as slow for this long after a slow write. After that, read-ahead and warm may
// write again. They wait for a fast device, and without a write nobody would learn that it is fast
// again.
#define WRITE_BACKLOG_DOUBT_US 1000000u
// No run begins above this backlog. It is large enough for a burst: a disk of 300 MB/s writes it in
// most of a second. If limits.max_buffer is small, the limit on queued chunks is reached first.
#define WRITE_BACKLOG_MAX (256u << 20)
// The least memory for chunks that wait to be written, whatever limits.max_buffer is.
#define WRITE_BACKLOG_QUEUE_MIN (1u << 20)
// The least room for the backlog, whatever the memory limit is. Twice as much holds one largest
// block.
#define WRITE_BACKLOG_ROOM_MIN (8u << 20)

struct write_backlog {
    uint64_t room_bytes;             // share of the memory limit; UINT64_MAX: there is no limit
    _Atomic uint64_t promised_bytes; // bytes of begun runs that were not received yet
    _Atomic uint64_t queued_bytes;   // bytes in chunks that were received but not written yet
    _Atomic uint64_t dirty_bytes;    // bytes in the page cache that are not on the device yet
    atomic_bool stalled;             // a run was cancelled, and no write has ended since
    // The device counts as slow until this time, because of a slow write.
    _Atomic uint64_t slow_until_us;
    atomic_uint writing_count; // number of writes in flight
    // Time at which the last write ended, or at which the first of the writes in flight began.
    _Atomic uint64_t moved_us;
};

// `memory_bytes` is the memory that bytes of the backlog may take; 0: there is no limit.
void write_backlog_init(struct write_backlog *backlog, uint64_t memory_bytes);
// Returns true if one more run may begin.
bool write_backlog_takes(const struct write_backlog *backlog);
// Returns why write_backlog_takes() or write_backlog_is_over() refuses a run: ERR_BUFFER_FULL if a
// larger limits.max_buffer would have avoided it, else ERR_DISK_BUSY.
enum err write_backlog_error(const struct write_backlog *backlog, uint64_t now_us);
// Returns true if written pages take so much memory that further payload shall be written past the
// page cache.
bool write_backlog_crowds_memory(const struct write_backlog *backlog);
// Returns true if the bytes that wait for the device take too much memory. The caller then cancels
// its run.
bool write_backlog_is_over(const struct write_backlog *backlog);
// Returns true if more than half of the chunks that may wait for the device do. Runs then write
// them into the page cache, which takes a burst that is faster than the device.
bool write_backlog_is_long(const struct write_backlog *backlog);
// Records that a run was cancelled. No run begins until a write in flight has ended.
void write_backlog_stall(struct write_backlog *backlog);
// Returns true if the device is fast enough for a reader to wait until bytes are written.
bool write_backlog_is_quick(const struct write_backlog *backlog, uint64_t now_us);
// Called when a write begins.
void write_backlog_begins(struct write_backlog *backlog, uint64_t now_us);
void write_backlog_ends(struct write_backlog *backlog, uint64_t now_us, uint64_t took_us);

// --- moving bytes from one counter of the backlog to the next

// A run has begun: adds to promised_bytes.
void write_backlog_promise(struct write_backlog *backlog, uint64_t bytes);
// The origin will not send these promised bytes: subtracts them.
void write_backlog_forget(struct write_backlog *backlog, uint64_t bytes);
// Promised bytes were received: moves them from promised_bytes to queued_bytes.
void write_backlog_append(struct write_backlog *backlog, uint64_t bytes);
// Queued bytes were written or dropped: subtracts them from queued_bytes.
void write_backlog_written(struct write_backlog *backlog, uint64_t bytes);
// Written bytes wait for write-back: adds to dirty_bytes.
void write_backlog_push(struct write_backlog *backlog, uint64_t bytes);
// The write-back has ended: subtracts from dirty_bytes.
void write_backlog_pushed(struct write_backlog *backlog, uint64_t bytes);

#endif
