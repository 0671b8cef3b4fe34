// SPDX-License-Identifier: Apache-2.0
// The live view of requests. When a request ends, its worker writes the line of access_log_json.c
// into a ring of its own. It does so for every request, even if the access log leaves it out. While
// nobody watches, a worker only reads a flag. While somebody watches, a worker still never waits. A
// line that does not fit is lost and counted.
//
// One thread takes the lines. The first line that is written after a take wakes it.
#include "proxy/log/access_log_private.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING_BYTES (256u << 10)
#define BATCH_BYTES (64u << 10)
static_assert(BATCH_BYTES >= ACCESS_LOG_LINE_MAX && RING_BYTES >= BATCH_BYTES, "a line fits");

struct live_worker {
    struct access_log_ring lines;
    atomic_ulong lost;
    struct access_log_date date; // used by the worker only
};

struct access_log_live {
    atomic_bool is_on;
    atomic_bool is_asleep;
    int wake_fd;
    unsigned worker_count;
    struct live_worker *workers;
    char *batch; // used by the thread only
};

struct access_log_live *access_log_live_new(unsigned worker_count)
{
    check(worker_count > 0);
    struct access_log_live *live = calloc(1, sizeof(*live));
    check(live != NULL);
    live->worker_count = worker_count;
    live->workers = aligned_alloc(64, worker_count * sizeof(*live->workers));
    live->batch = malloc(BATCH_BYTES);
    check(live->workers != NULL && live->batch != NULL);
    for (unsigned i = 0; i < worker_count; i++) {
        live->workers[i] = (struct live_worker){.date.s = INT64_MIN};
        access_log_ring_init(&live->workers[i].lines, RING_BYTES); // no pages until used
    }
    live->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    check(live->wake_fd >= 0);
    return live;
}

void access_log_live_free(struct access_log_live *live)
{
    if (live == NULL) {
        return;
    }
    for (unsigned i = 0; i < live->worker_count; i++) {
        access_log_ring_done(&live->workers[i].lines);
    }
    (void)close(live->wake_fd); // nobody writes to it any more
    free(live->workers);
    free(live->batch);
    free(live);
}

void access_log_live_write(struct access_log_live *live, const struct log_entry *entry)
{
    unsigned index = entry->r->pw->index;
    check(index < live->worker_count);
    if (!atomic_load_explicit(&live->is_on, memory_order_relaxed)) {
        return;
    }
    struct live_worker *worker = &live->workers[index];
    struct access_log_line line;
    access_log_line_init(&line, &worker->date);
    access_log_json(&line, entry);
    check(line.len <= sizeof(line.bytes));
    if (line.is_full || !access_log_ring_put(&worker->lines, line.bytes, line.len)) {
        atomic_fetch_add_explicit(&worker->lost, 1, memory_order_relaxed);
        stats_add(COUNTER_live_log_dropped, 1);
    }
    if (atomic_load(&live->is_asleep) && atomic_exchange(&live->is_asleep, false)) {
        uint64_t one = 1;
        (void)!write(live->wake_fd, &one, sizeof(one)); // a full counter wakes as well
    }
}

// --- the taker -----------------------------------------------------------------------------------

int proxy_live_fd(const struct proxy *proxy)
{
    check(proxy->log_live != NULL);
    return proxy->log_live->wake_fd;
}

void proxy_live_turn(struct proxy *proxy, bool is_on)
{
    struct access_log_live *live = proxy->log_live;
    check(live != NULL);
    for (unsigned i = 0; i < live->worker_count && is_on; i++) {
        access_log_ring_clear(&live->workers[i].lines);
        atomic_store(&live->workers[i].lost, 0);
    }
    atomic_store(&live->is_asleep, is_on);
    atomic_store(&live->is_on, is_on);
}

uint64_t proxy_live_take(struct proxy *proxy, proxy_live_fn on_lines, void *ctx)
{
    struct access_log_live *live = proxy->log_live;
    uint64_t lost = 0;
    uint64_t count;
    (void)!read(live->wake_fd, &count, sizeof(count)); // the value is not used
    // Set the flag before looking at the rings, so that a line that is put later wakes this thread.
    atomic_store(&live->is_asleep, true);
    for (unsigned i = 0; i < live->worker_count; i++) {
        struct live_worker *worker = &live->workers[i];
        size_t done = 0, len = 1;
        while (done < RING_BYTES && len > 0) {
            len = access_log_ring_take(&worker->lines, live->batch, BATCH_BYTES,
                                       access_log_ring_filled(&worker->lines));
            if (len > 0) {
                check(live->batch[len - 1] == '\n');
                on_lines(ctx, (struct span){live->batch, len});
            }
            done += len;
        }
        lost += atomic_exchange(&worker->lost, 0);
    }
    return lost;
}
