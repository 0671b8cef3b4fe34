// SPDX-License-Identifier: Apache-2.0
// The scrub thread reads every run of every full segment and verifies its checksums, so that it
// finds decayed bytes before a client requests them. It drops a bad run as a reader would: the run
// is a miss at once, leaves the index, and is marked in its segment. The next read fetches the
// bytes from the origin.
//
// The thread reads with O_DIRECT, which bypasses the page cache. So it verifies the bytes on the
// device even if memory has a good copy, and it does not evict pages that readers need. A file
// system may use the page cache in spite of O_DIRECT. The first reads show whether it does. If so,
// the scrub stops and logs that. A file system may also do so for some reads only, and bring
// unverified pages into memory. So each read clears all verified marks (segment_log.h) of the
// segment, and the segment's next reader verifies again.
//
// If the device can no longer be read at all, dropping runs would not help. So a round ends after
// UNREADABLE_MAX unreadable runs in a row.
//
// The scrub does not slow clients down: its rate is a setting, its reads have the idle I/O class,
// and it waits while writes lag behind. It holds neither a pin nor a descriptor while it waits. If
// the segment is evicted in that time, the scrub skips the rest of it.
//
// A round reads the segments that are full when it begins, oldest first. The next round begins an
// hour after that, when the rate changes, or when a caller orders one. An ordered round has its own
// rate. If a round is in progress, it continues as the ordered one, at that rate.
#include "store/care/scrub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_list.h"
#include "store/store_private.h"

#define WINDOW_BYTES (512u << 10)
#define ROUND_US 3600000000u
#define TICK_US 1000000u // how often the thread checks whether a round is due
#define BEHIND_US 100000u
// The scrub stops after this many reads that used the page cache. Other programs may cause a few.
#define DOUBTS_MAX 3u
// The device is at fault after more than this many unreadable runs in a row.
#define UNREADABLE_MAX 16u
#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_IDLE (3 << 13)
static_assert(WINDOW_BYTES >= STORE_CHECKSUM_UNIT + DISK_DIRECT_ALIGN,
              "a unit fits, wherever it begins");
static_assert(WINDOW_BYTES >= RUN_HEADER_MAX + DISK_DIRECT_ALIGN, "so does a header");
static_assert(WINDOW_BYTES % DISK_DIRECT_ALIGN == 0, "O_DIRECT reads whole blocks");

// --- waiting

// Returns the rate. 0: nothing may be read.
static uint64_t rate_locked(const struct scrub *scrub)
{
    uint64_t ordered = scrub->guarded.ordered_bytes_per_s;
    return ordered > 0 ? ordered : scrub->guarded.bytes_per_s;
}

// Waits until `until_us`, or until a rate or an order has changed since this function last
// returned. Returns false if the thread must stop, or must read nothing now.
static bool scrub_wait(struct scrub *scrub, uint64_t until_us)
{
    struct timespec until = disk_timespec_of_us(until_us);
    int rc = 0;
    pthread_mutex_lock(&scrub->guarded.lock);
    while (!disk_thread_stops(&scrub->guarded.thread) &&
           scrub->guarded.changes == scrub->changes_seen && rc == 0 && disk_real_us() < until_us) {
        rc = pthread_cond_timedwait(&scrub->guarded.wake, &scrub->guarded.lock, &until);
    }
    scrub->changes_seen = scrub->guarded.changes;
    bool go_on = !disk_thread_stops(&scrub->guarded.thread) && !scrub->guarded.is_cancelled &&
                 rate_locked(scrub) > 0;
    pthread_mutex_unlock(&scrub->guarded.lock);
    return go_on;
}

static bool disk_is_behind(const struct write_backlog *backlog)
{
    return atomic_load(&backlog->writing_count) > 0 &&
           (!write_backlog_takes(backlog) ||
            !write_backlog_is_quick(backlog, clock_monotonic_us()));
}

// Waits until `bytes` may be read at the set rate.
static bool scrub_pace(struct scrub *scrub, uint32_t bytes)
{
    while (disk_is_behind(scrub->backlog)) {
        if (!scrub_wait(scrub, disk_real_us() + BEHIND_US)) {
            return false;
        }
    }
    if (!scrub_wait(scrub, scrub->due_us)) {
        return false;
    }
    pthread_mutex_lock(&scrub->guarded.lock);
    uint64_t rate = max_u64(1, rate_locked(scrub));
    pthread_mutex_unlock(&scrub->guarded.lock);
    // The next read is due one interval from now, so a late read does not speed up those that
    // follow. After a change of the rate, one read may be early.
    scrub->due_us = disk_real_us() + (uint64_t)bytes * 1000000 / rate;
    return true;
}

// --- reading

// Checks whether the read has bypassed the page cache.
static void judge_direct(struct scrub *scrub, int fd, uint32_t offset, uint32_t len)
{
    if (!disk_io_resident(fd, offset, len)) {
        scrub->is_direct = true;
    } else if (++scrub->doubts == DOUBTS_MAX) {
        scrub->is_impossible = true;
    }
}

// Returns true for temporary errors, after which the run is not called bad.
static bool is_passing(int errno_value)
{
    return errno_value == ENOMEM || errno_value == EAGAIN || errno_value == EINTR;
}

static enum err window_read(struct scrub *scrub, struct segment *segment, uint32_t offset,
                            uint32_t len)
{
    char name[SEGMENT_NAME_LEN];
    check(scrub->number != 0 && offset % DISK_DIRECT_ALIGN == 0);
    check(len > 0 && len <= WINDOW_BYTES);
    segment_name(scrub->number, name);
    int failed = store_fault_strike(STORE_FAULT_SCRUB);
    int fd = openat(scrub->log->disk->dir.segments_fd, name,
                    O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        scrub->is_impossible = errno == EINVAL;
        // EINVAL: no O_DIRECT here; else: no free descriptor, or the file is gone.
        return ERR_CANCELLED;
    }
    bool judges = !scrub->is_direct && disk_io_residency_mode() != DISK_RESIDENCY_NONE;
    if (judges) {
        // If this call fails, a later read decides.
        (void)posix_fadvise(fd, offset, len, POSIX_FADV_DONTNEED);
    }
    segment_unmark_all(segment);
    ssize_t got = failed == 0 ? pread(fd, scrub->window, len, offset) : -1;
    failed = failed == 0 && got < 0 ? errno : failed;
    segment_unmark_all(segment);
    if (judges && got > 0) {
        judge_direct(scrub, fd, offset, len);
    }
    (void)close(fd); // nothing was written, so an error loses nothing
    if (failed == EINVAL) {
        scrub->is_impossible = true;
    }
    scrub->window_len = got > 0 ? (uint32_t)got : 0;
    check(scrub->window_len <= len);
    stats_add(COUNTER_scrub_bytes, scrub->window_len);
    scrub->bytes_seen += scrub->window_len;
    if (scrub->is_impossible || is_passing(failed)) {
        return ERR_CANCELLED;
    }
    return failed != 0 ? ERR_IO : ERR_OK;
}

// Reads `len` bytes of the segment. ERR_CANCELLED: the segment is gone, or the scrub must stop.
static enum err scrub_bytes(struct scrub *scrub, uint32_t offset, uint32_t len,
                            struct span *ret_bytes)
{
    uint32_t end = offset + len;
    check(len > 0 && len <= WINDOW_BYTES - DISK_DIRECT_ALIGN);
    if (offset < scrub->window_offset || end > scrub->window_offset + scrub->window_len) {
        struct segment *segment = segment_log_entry(scrub->log, scrub->number);
        uint32_t from = offset & ~(DISK_DIRECT_ALIGN - 1);
        uint32_t size = scrub->log->segment_size_bytes;
        uint32_t want = (uint32_t)min_u64(WINDOW_BYTES, size - from);
        scrub->window_len = 0;
        if (!scrub_pace(scrub, want) || !segment_pin(segment, scrub->number)) {
            return ERR_CANCELLED;
        }
        scrub->window_offset = from;
        enum err err = window_read(scrub, segment, from, want);
        if (err == ERR_IO) { // read less, because only bytes after `end` may be unreadable
            want = (uint32_t)align_up_u64(end, DISK_DIRECT_ALIGN) - from;
            err = window_read(scrub, segment, from, want);
        }
        segment_unpin(segment);
        if (err != ERR_OK) {
            return err;
        }
        if (end > from + scrub->window_len) {
            return ERR_CORRUPT;
        }
    }
    check(offset >= scrub->window_offset && end <= scrub->window_offset + scrub->window_len);
    *ret_bytes = (struct span){scrub->window + (offset - scrub->window_offset), len};
    return ERR_OK;
}

// --- a run

struct scrub_run {
    uint32_t header_offset, header_len;
};

static enum err run_verify(struct scrub *scrub, const struct scrub_run *run)
{
    struct run_header h;
    struct span bytes;
    enum err err = scrub_bytes(scrub, run->header_offset, run->header_len, &bytes);
    if (err != ERR_OK) {
        return err;
    }
    check(bytes.len <= RUN_HEADER_MAX);
    // Copy the header, because a later read reuses the window.
    memcpy(scrub->header, bytes.ptr, bytes.len);
    if (segment_run_header_decode((struct span){scrub->header, bytes.len}, &h) != ERR_OK ||
        h.number != scrub->number || h.salt != scrub->salt ||
        h.header_offset != run->header_offset || h.header_len != run->header_len ||
        h.end_offset > scrub->log->segment_size_bytes) {
        return ERR_CORRUPT;
    }
    for (uint32_t unit = 0; unit < h.unit_count; unit++) {
        uint32_t at = unit * STORE_CHECKSUM_UNIT;
        uint32_t len = (uint32_t)min_u64(STORE_CHECKSUM_UNIT, h.payload_len - at);
        err = scrub_bytes(scrub, h.payload_offset + at, len, &bytes);
        if (err != ERR_OK) {
            return err;
        }
        if (disk_crc32c(bytes.ptr, bytes.len) != run_header_unit_crc(&h, unit)) {
            return ERR_CORRUPT;
        }
    }
    return ERR_OK;
}

struct row_wanted {
    uint32_t header_offset;
    struct segment_row row;
    bool found;
};

static bool on_row_compared(void *ctx, const struct segment_row *row)
{
    struct row_wanted *wanted = ctx;
    if (row->header_offset == wanted->header_offset) {
        wanted->row = *row;
        wanted->found = !row->is_bad;
    }
    return !wanted->found;
}

// Drops a bad run. Its header may be damaged, so its row is taken from the segment's list of runs.
static void run_drop(struct scrub *scrub, const struct scrub_run *run, enum err why)
{
    struct segment *segment = segment_log_entry(scrub->log, scrub->number);
    check(why == ERR_CORRUPT || why == ERR_IO);
    struct row_wanted wanted = {.header_offset = run->header_offset};
    uint64_t salt;
    if (!segment_pin(segment, scrub->number)) {
        return; // the segment is being evicted, and the run with it
    }
    // The error does not matter, because `wanted.found` says whether there is a row.
    (void)!segment_list(segment, on_row_compared, &wanted, &salt);
    if (wanted.found) {
        struct store_place place = segment_row_place(&wanted.row, scrub->number, salt);
        place.segment = segment;
        scrub->host.drop(scrub->host.ctx, &place, place.hash, why);
        scrub->bad_seen++;
        stats_add(why == ERR_CORRUPT ? COUNTER_checksum_failures_scrub : COUNTER_scrub_unreadable,
                  1);
    }
    segment_unpin(segment);
}

// Verifies a run. Returns false if the segment is gone or the scrub must stop.
static bool scrub_run(struct scrub *scrub, const struct scrub_run *run)
{
    struct segment *segment = segment_log_entry(scrub->log, scrub->number);
    if (segment_is_bad(segment, run->header_offset)) {
        return true;
    }
    enum err err = run_verify(scrub, run);
    if (err == ERR_CORRUPT) { // after a mismatch, read and verify once more, as a reader does
        scrub->window_len = 0;
        err = run_verify(scrub, run);
    }
    scrub->unreadable_in_row = err == ERR_IO ? scrub->unreadable_in_row + 1 : 0;
    if (err == ERR_CANCELLED || scrub->unreadable_in_row > UNREADABLE_MAX) {
        return false;
    }
    scrub->runs_seen++;
    check(scrub->bad_seen < scrub->runs_seen);
    if (err != ERR_OK) {
        scrub->window_len = 0;
        run_drop(scrub, run, err);
    }
    return true;
}

// --- a segment

struct run_list {
    struct scrub_run *runs;
    uint32_t count, max;
};

static bool on_row_listed(void *ctx, const struct segment_row *row)
{
    struct run_list *list = ctx;
    if (list->count == list->max) {
        list->max = (uint32_t)max_u64(64, 2ull * list->max);
        list->runs = realloc(list->runs, list->max * sizeof(*list->runs));
        check(list->runs != NULL);
    }
    if (!row->is_bad) {
        list->runs[list->count++] = (struct scrub_run){row->header_offset, row->header_len};
    }
    return true;
}

static int run_ascending(const void *a, const void *b)
{
    const struct scrub_run *x = a;
    const struct scrub_run *y = b;
    return (x->header_offset > y->header_offset) - (x->header_offset < y->header_offset);
}

// Scrubs a segment. Returns false if it was skipped, because it is still being written or is gone.
static bool scrub_segment(struct scrub *scrub, uint32_t number)
{
    struct segment *segment = segment_log_entry(scrub->log, number);
    struct run_list list = {.count = 0};
    check(number != 0);
    if (!segment_pin(segment, number)) {
        return false;
    }
    bool listed = segment_is_full(segment) &&
                  segment_list(segment, on_row_listed, &list, &scrub->salt) == ERR_OK;
    segment_unpin(segment);
    if (listed && list.count > 0) {
        scrub->number = number;
        scrub->window_len = 0;
        qsort(list.runs, list.count, sizeof(*list.runs), run_ascending);
        for (uint32_t i = 0; i < list.count && scrub_run(scrub, &list.runs[i]); i++) {
        }
    }
    free(list.runs);
    return listed;
}

// --- a round

static int number_ascending(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t *numbers_of_all(struct segment_log *log, uint32_t *ret_count)
{
    uint32_t max = atomic_load(&log->segment_count);
    uint32_t *numbers = calloc((size_t)max + 1, sizeof(*numbers));
    check(numbers != NULL);
    uint32_t count = 0;
    for (uint32_t i = 0; i <= log->table_mask && count < max; i++) {
        uint32_t number = atomic_load(&log->table[i].number);
        if (number != 0) {
            numbers[count++] = number;
        }
    }
    qsort(numbers, count, sizeof(*numbers), number_ascending);
    *ret_count = count;
    return numbers;
}

// Publishes the progress of the round.
static void round_tell(struct scrub *scrub, uint32_t segments_done, uint32_t segments_left_out)
{
    check(segments_left_out <= segments_done && scrub->bad_seen <= scrub->runs_seen);
    pthread_mutex_lock(&scrub->guarded.lock);
    struct store_scrub *told = &scrub->guarded.told;
    check(told->state == STORE_SCRUB_RUNS && segments_done <= told->segments);
    told->segments_done = segments_done;
    told->segments_left_out = segments_left_out;
    told->runs = scrub->runs_seen;
    told->bytes = scrub->bytes_seen;
    told->bad_runs = scrub->bad_seen;
    pthread_mutex_unlock(&scrub->guarded.lock);
}

static void round_begin(struct scrub *scrub, uint32_t segments)
{
    scrub->runs_seen = scrub->bytes_seen = scrub->bad_seen = 0;
    scrub->unreadable_in_row = 0;
    scrub->due_us = 0; // the pace of the previous round does not matter
    pthread_mutex_lock(&scrub->guarded.lock);
    check(scrub->guarded.told.state == STORE_SCRUB_RUNS && scrub->guarded.told.round > 0);
    scrub->guarded.told = (struct store_scrub){
        .state = STORE_SCRUB_RUNS, .round = scrub->guarded.told.round, .segments = segments};
    scrub->guarded.began_us = clock_monotonic_us();
    pthread_mutex_unlock(&scrub->guarded.lock);
}

static void round_end(struct scrub *scrub, bool is_whole)
{
    bool is_given_up = scrub->is_impossible || scrub->unreadable_in_row > UNREADABLE_MAX;
    pthread_mutex_lock(&scrub->guarded.lock);
    check(scrub->guarded.told.state == STORE_SCRUB_RUNS);
    scrub->guarded.told.state = is_whole      ? STORE_SCRUB_DONE
                                : is_given_up ? STORE_SCRUB_GIVEN_UP
                                              : STORE_SCRUB_CANCELLED;
    scrub->guarded.ended_us = clock_monotonic_us();
    scrub->guarded.ordered_bytes_per_s = 0;
    scrub->guarded.is_cancelled = false;
    pthread_mutex_unlock(&scrub->guarded.lock);
}

static void scrub_round(struct scrub *scrub)
{
    uint64_t began_us = disk_real_us();
    uint32_t count, left_out = 0;
    uint32_t *numbers = numbers_of_all(scrub->log, &count);
    round_begin(scrub, count);
    bool whole = true;
    for (uint32_t i = 0; i < count && whole; i++) {
        left_out += !scrub_segment(scrub, numbers[i]);
        whole = scrub_wait(scrub, 0) && !scrub->is_impossible &&
                scrub->unreadable_in_row <= UNREADABLE_MAX;
        round_tell(scrub, i + 1, left_out);
    }
    free(numbers);
    round_end(scrub, whole);
    if (scrub->unreadable_in_row > UNREADABLE_MAX) {
        log_warn("scrub_given_up", "why=device_unreadable runs=%llu bad=%llu",
                 (unsigned long long)scrub->runs_seen, (unsigned long long)scrub->bad_seen);
    }
    if (!whole) {
        return;
    }
    uint64_t took_ms = (disk_real_us() - began_us) / 1000;
    stats_add(COUNTER_scrub_rounds, 1);
    log_info("scrub_done", "segments=%u runs=%llu bytes=%llu bad=%llu took_ms=%llu", count,
             (unsigned long long)scrub->runs_seen, (unsigned long long)scrub->bytes_seen,
             (unsigned long long)scrub->bad_seen, (unsigned long long)took_ms);
}

// --- the thread

// Waits until a round is due. Returns false if the thread must stop.
static bool round_wait(struct scrub *scrub, uint64_t began_us)
{
    pthread_mutex_lock(&scrub->guarded.lock);
    bool due = false;
    while (!disk_thread_stops(&scrub->guarded.thread) && !due) {
        bool late = clock_monotonic_us() - began_us >= ROUND_US;
        due = !scrub->is_impossible && rate_locked(scrub) > 0 &&
              (late || scrub->guarded.is_wanted) && atomic_load(&scrub->log->examined);
        if (!due) {
            struct timespec until = disk_timespec_of_us(disk_real_us() + TICK_US);
            // The loop checks again in any case, so the result does not matter.
            (void)pthread_cond_timedwait(&scrub->guarded.wake, &scrub->guarded.lock, &until);
        }
    }
    scrub->guarded.is_wanted = false;
    scrub->guarded.is_cancelled = false;
    scrub->guarded.told.round += due;
    scrub->guarded.told.state = due ? STORE_SCRUB_RUNS : scrub->guarded.told.state;
    pthread_mutex_unlock(&scrub->guarded.lock);
    return due;
}

static void *scrub_main(void *ctx)
{
    struct scrub *scrub = ctx;
    thread_begin("store-scrub", THREAD_BEHIND);
    // Kernels without I/O classes ignore this.
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
    check(scrub->window == NULL && scrub->header == NULL);
    scrub->window = aligned_alloc(DISK_DIRECT_ALIGN, WINDOW_BYTES);
    scrub->header = malloc(RUN_HEADER_MAX);
    check(scrub->window != NULL);
    check(scrub->header != NULL);
    uint64_t began_us = clock_monotonic_us();
    while (round_wait(scrub, began_us)) {
        began_us = clock_monotonic_us();
        scrub_round(scrub);
        if (scrub->is_impossible) {
            log_warn("scrub_impossible", "why=no_direct_io dir=%s",
                     log_quote(span_from_cstr(scrub->log->disk->dir.path)));
        }
    }
    free(scrub->window);
    free(scrub->header);
    return NULL;
}

void scrub_init(struct scrub *scrub, struct segment_log *log, const struct write_backlog *backlog,
                const struct scrub_host *host)
{
    check(host->drop != NULL);
    *scrub = (struct scrub){.log = log, .backlog = backlog, .host = *host};
    check(pthread_mutex_init(&scrub->guarded.lock, NULL) == 0);
    clock_cond_init(&scrub->guarded.wake);
}

static void start_locked(struct scrub *scrub)
{
    scrub->guarded.changes++;
    pthread_cond_signal(&scrub->guarded.wake);
    if (rate_locked(scrub) > 0 && scrub->guarded.thread.phase == DISK_THREAD_NEW) {
        disk_thread_start(&scrub->guarded.thread, &scrub->log->disk->spares, scrub_main, scrub);
    }
}

void scrub_set_rate(struct scrub *scrub, uint64_t bytes_per_s)
{
    pthread_mutex_lock(&scrub->guarded.lock);
    bool changed = scrub->guarded.bytes_per_s != bytes_per_s;
    scrub->guarded.bytes_per_s = bytes_per_s;
    scrub->guarded.is_wanted = scrub->guarded.is_wanted || (changed && bytes_per_s > 0);
    if (changed) {
        start_locked(scrub);
    }
    pthread_mutex_unlock(&scrub->guarded.lock);
}

enum err store_scrub_begin(struct store *store, uint64_t bytes_per_s)
{
    struct scrub *scrub = &store->scrub;
    check(bytes_per_s > 0);
    if (!store->disk.attached) {
        return ERR_NOT_FOUND;
    }
    if (scrub->is_impossible) {
        return ERR_INVALID;
    }
    pthread_mutex_lock(&scrub->guarded.lock);
    if (scrub->guarded.is_cancelled) {
        pthread_mutex_unlock(&scrub->guarded.lock);
        return ERR_AGAIN;
    }
    scrub->guarded.ordered_bytes_per_s = bytes_per_s;
    if (scrub->guarded.told.state != STORE_SCRUB_RUNS) {
        scrub->guarded.is_wanted = true;
        scrub->guarded.told =
            (struct store_scrub){.state = STORE_SCRUB_WAITS, .round = scrub->guarded.told.round};
        scrub->guarded.began_us = clock_monotonic_us();
    }
    start_locked(scrub);
    pthread_mutex_unlock(&scrub->guarded.lock);
    return ERR_OK;
}

void store_scrub_cancel(struct store *store)
{
    struct scrub *scrub = &store->scrub;
    pthread_mutex_lock(&scrub->guarded.lock);
    if (scrub->guarded.told.state == STORE_SCRUB_WAITS) {
        scrub->guarded.told.state = STORE_SCRUB_CANCELLED;
        scrub->guarded.ended_us = clock_monotonic_us();
        scrub->guarded.ordered_bytes_per_s = 0;
        scrub->guarded.is_wanted = false;
    }
    scrub->guarded.is_cancelled = scrub->guarded.told.state == STORE_SCRUB_RUNS;
    scrub->guarded.changes++;
    pthread_cond_signal(&scrub->guarded.wake);
    pthread_mutex_unlock(&scrub->guarded.lock);
}

void store_scrub_read(struct store *store, struct store_scrub *ret_scrub)
{
    struct scrub *scrub = &store->scrub;
    pthread_mutex_lock(&scrub->guarded.lock);
    *ret_scrub = scrub->guarded.told;
    bool is_over = ret_scrub->state >= STORE_SCRUB_DONE;
    uint64_t end_us = is_over ? scrub->guarded.ended_us : clock_monotonic_us();
    if (ret_scrub->state != STORE_SCRUB_NONE) {
        ret_scrub->elapsed_us = end_us - scrub->guarded.began_us;
    }
    check(ret_scrub->segments_done <= ret_scrub->segments);
    ret_scrub->bytes_per_s = rate_locked(scrub);
    ret_scrub->is_impossible = scrub->is_impossible;
    pthread_mutex_unlock(&scrub->guarded.lock);
}

void scrub_stop(struct scrub *scrub)
{
    disk_thread_stop(&scrub->guarded.thread, &scrub->guarded.lock, &scrub->guarded.wake);
    check(pthread_mutex_destroy(&scrub->guarded.lock) == 0);
    pthread_cond_destroy(&scrub->guarded.wake);
}
