// SPDX-License-Identifier: Apache-2.0
// Admits runs by the device's backlog. A run that has begun is usually completed, so its bytes are
// promised to the device. Promised bytes count only once the device lags: above a quarter of
// WRITE_BACKLOG_MAX. Otherwise too many runs could begin at the same moment. While the device keeps
// up, promised bytes do not count, so that runs which wait for a slow origin do not block an idle
// disk. The first run after the backlog has shrunk is stored, whatever its key or size.
//
// Under a memory limit, the kernel cannot free a page before the device has it. If most of the
// memory is such pages, the kernel stops writers or kills the process. So the backlog has a share
// of the limit as its room:
//
//   above half of the room   long runs are written past the page cache, if the file system can
//   above the room           no run begins
//   above twice the room     a run that receives more bytes is cancelled
//
// A run in progress is cancelled in two more cases. In the first case, the device stalls, and the
// chunks that wait for it would take the memory that readers need. In the second case, the device
// stalls, and the run's readers would wait for it.
#include "store/segment/write_backlog.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/chunk.h"
#include "stats/stats.h"
#include "store/disk/disk_fault.h"

static uint64_t queue_max(void)
{
    return max_u64(chunk_budget_max_bytes() / 4, WRITE_BACKLOG_QUEUE_MIN);
}

static uint64_t owed_bytes(const struct write_backlog *backlog)
{
    return atomic_load(&backlog->queued_bytes) + atomic_load(&backlog->dirty_bytes);
}

void write_backlog_init(struct write_backlog *backlog, uint64_t memory_bytes)
{
    *backlog = (struct write_backlog){
        .room_bytes =
            memory_bytes == 0 ? UINT64_MAX : max_u64(memory_bytes, WRITE_BACKLOG_ROOM_MIN)};
}

bool write_backlog_takes(const struct write_backlog *backlog)
{
    if (store_fault_is_steady()) {
        return true;
    }
    uint64_t owed = owed_bytes(backlog);
    bool stands = atomic_load(&backlog->stalled) && atomic_load(&backlog->writing_count) > 0;
    if (atomic_load(&backlog->queued_bytes) > queue_max() ||
        owed > min_u64(WRITE_BACKLOG_MAX, backlog->room_bytes) || stands) {
        return false;
    }
    return owed <= WRITE_BACKLOG_MAX / 4 ||
           owed + atomic_load(&backlog->promised_bytes) <= WRITE_BACKLOG_MAX;
}

enum err write_backlog_error(const struct write_backlog *backlog, uint64_t now_us)
{
    uint64_t owed = owed_bytes(backlog);
    bool is_small = queue_max() < WRITE_BACKLOG_MAX / 4 && owed <= WRITE_BACKLOG_MAX / 4;
    bool lacks_room =
        owed > backlog->room_bytes && atomic_load(&backlog->queued_bytes) <= queue_max();
    return is_small && !lacks_room && write_backlog_is_quick(backlog, now_us) ? ERR_BUFFER_FULL
                                                                              : ERR_DISK_BUSY;
}

bool write_backlog_is_over(const struct write_backlog *backlog)
{
    return !store_fault_is_steady() && (atomic_load(&backlog->queued_bytes) > 2 * queue_max() ||
                                        owed_bytes(backlog) / 2 > backlog->room_bytes);
}

bool write_backlog_crowds_memory(const struct write_backlog *backlog)
{
    return owed_bytes(backlog) > backlog->room_bytes / 2;
}

bool write_backlog_is_long(const struct write_backlog *backlog)
{
    return !store_fault_is_steady() && atomic_load(&backlog->queued_bytes) > queue_max() / 2;
}

void write_backlog_stall(struct write_backlog *backlog)
{
    atomic_store(&backlog->stalled, true);
}

bool write_backlog_is_quick(const struct write_backlog *backlog, uint64_t now_us)
{
    if (store_fault_is_steady()) {
        return true;
    }
    return now_us >= atomic_load(&backlog->slow_until_us) &&
           (atomic_load(&backlog->writing_count) == 0 ||
            now_us < atomic_load(&backlog->moved_us) + WRITE_BACKLOG_SLOW_US);
}

void write_backlog_begins(struct write_backlog *backlog, uint64_t now_us)
{
    if (atomic_fetch_add(&backlog->writing_count, 1) == 0) {
        atomic_store(&backlog->moved_us, now_us);
    }
}

void write_backlog_ends(struct write_backlog *backlog, uint64_t now_us, uint64_t took_us)
{
    check(atomic_fetch_sub(&backlog->writing_count, 1) > 0);
    check(now_us >= took_us);
    atomic_store(&backlog->moved_us, now_us);
    atomic_store(&backlog->slow_until_us,
                 took_us > WRITE_BACKLOG_SLOW_US ? now_us + WRITE_BACKLOG_DOUBT_US : 0);
    atomic_store(&backlog->stalled, false);
}

static void take(_Atomic uint64_t *counter, uint64_t bytes)
{
    check(atomic_fetch_sub(counter, bytes) >= bytes);
}

void write_backlog_promise(struct write_backlog *backlog, uint64_t bytes)
{
    atomic_fetch_add(&backlog->promised_bytes, bytes);
}

void write_backlog_forget(struct write_backlog *backlog, uint64_t bytes)
{
    take(&backlog->promised_bytes, bytes);
}

void write_backlog_append(struct write_backlog *backlog, uint64_t bytes)
{
    take(&backlog->promised_bytes, bytes);
    atomic_fetch_add(&backlog->queued_bytes, bytes);
    stats_add(COUNTER_write_backlog, bytes);
}

void write_backlog_written(struct write_backlog *backlog, uint64_t bytes)
{
    take(&backlog->queued_bytes, bytes);
    stats_sub(COUNTER_write_backlog, bytes);
}

void write_backlog_push(struct write_backlog *backlog, uint64_t bytes)
{
    atomic_fetch_add(&backlog->dirty_bytes, bytes);
    stats_add(COUNTER_write_backlog, bytes);
}

void write_backlog_pushed(struct write_backlog *backlog, uint64_t bytes)
{
    take(&backlog->dirty_bytes, bytes);
    stats_sub(COUNTER_write_backlog, bytes);
}
