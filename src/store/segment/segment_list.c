// SPDX-License-Identifier: Apache-2.0
// Lists the runs of a segment. While the segment fills, there is a row in memory for each complete
// run. The thread that wrote the run has added it. When the segment is full and its last hold is
// gone, the freeing thread writes the rows as the segment's table and frees them. For a segment
// found at the start, the rows are read from its table or found by a scan.
//
// The order of writes, chosen so that a power cut between any two does no harm:
//
//   1. A worker writes payload and header. A header without its payload fails checksums.
//   2. The index writer syncs the segment, commits the run's place, and releases the run's hold.
//   3. The freeing thread writes the table when the last hold is gone. By then all runs that the
//      index names are synced.
//   4. The freeing thread writes the seal, with the number of rows and the id that the table got in
//      step 3.
//   5. The index writer marks a bad run in its header and its row, before the commit that removes
//      the run from the index. If the key is condemned, it also syncs the marks before that commit
//      (index_condemn.c).
//
// Nothing is synced between table and seal, so a power cut can leave these states:
//
// - A seal without its complete table, or with a table that a clean stop wrote earlier and that has
//   another id. The segment counts as having no table. It is scanned, and the case is counted.
// - A table without its seal. The segment counts as not sealed, and is scanned.
// - A torn sector of a table with a mark. The sector fails its checksum, so the segment is scanned,
//   and the scan finds the marked header.
// - A row whose run never reached the disk. The index does not name the run, because it was not
//   synced. A reader of the row finds no valid header at its offset.
//
// Locks: rows_guard guards the rows. Workers take it, too, so it is held only briefly. A loop over
// many rows releases it every TABLE_STEP_PAGES. A thread that writes a table or a mark takes
// seal_lock first. So each mark is either in the rows before the table is written, or is written
// into the table afterwards.
#include "store/segment/segment_list.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/random.h"
#include "stats/stats.h"
#include "store/segment/segment_log.h"
#include "store/segment/segment_trim.h"

#define PAGES_PER_WRITE 64u

// --- in memory

void segment_list_note(struct segment *segment, const struct segment_row *row)
{
    struct segment_log *log = segment->log;
    check(atomic_load(&segment->holds) > 0); // the hold delays the seal until the row is added
    check(row->header_offset >= SEGMENT_DATA_OFFSET && row->header_offset % RUN_ALIGN == 0);
    check(row->payload_offset >= row->header_offset + row->header_len);
    check(row->payload_offset < log->segment_size_bytes && !row->is_bad);
    pthread_mutex_lock(&log->rows_guard);
    if (segment->rows != NULL) {
        segment_rows_add(segment->rows, row);
    }
    pthread_mutex_unlock(&log->rows_guard);
}

// Returns a copy of the rows, or NULL if they are not in memory. Sets *ret_salt to 0 if this
// process has not examined the segment. Copies in steps, so that workers can add rows in between.
static struct segment_rows *rows_of(struct segment *segment, uint64_t *ret_salt)
{
    struct segment_log *log = segment->log;
    struct segment_rows *copy = segment_rows_new();
    bool there = true;
    // The loop ends, because the number of runs is bounded.
    for (bool whole = false; there && !whole;) {
        pthread_mutex_lock(&log->rows_guard);
        *ret_salt = segment->salt;
        there = segment->rows != NULL;
        whole = there && segment_rows_copy_on(copy, segment->rows);
        pthread_mutex_unlock(&log->rows_guard);
    }
    check(!there || segment_rows_count(copy) <= log->segment_size_bytes / RUN_ALIGN);
    if (!there) { // the rows are not in memory, or were written to disk during the copy
        segment_rows_free(copy);
        copy = NULL;
    }
    return copy;
}

// --- the table on disk

static struct segment_table_id table_id_of(const struct segment *segment, uint64_t salt,
                                           uint32_t id)
{
    return (struct segment_table_id){atomic_load(&segment->number), salt, id};
}

static enum err table_write(const struct segment *segment, int fd, const struct segment_rows *rows)
{
    uint32_t bytes = segment_table_bytes(segment_rows_count(rows));
    uint32_t pages = bytes / TABLE_PAGE_BYTES;
    off_t offset = segment->log->segment_size_bytes - bytes;
    check(offset >= (off_t)SEGMENT_DATA_OFFSET && offset % TABLE_PAGE_BYTES == 0);
    for (uint32_t at = 0; at < pages; at += PAGES_PER_WRITE) {
        struct iovec iov[PAGES_PER_WRITE];
        unsigned count = (unsigned)min_u64(PAGES_PER_WRITE, pages - at);
        for (unsigned i = 0; i < count; i++) {
            iov[i] = (struct iovec){segment_rows_page(rows, at + i), TABLE_PAGE_BYTES};
        }
        size_t len = (size_t)count * TABLE_PAGE_BYTES;
        int failed = store_fault_strike(STORE_FAULT_TABLE);
        if (failed != 0 || pwritev(fd, iov, (int)count, offset) != (ssize_t)len) {
            return ERR_IO;
        }
        offset += (off_t)len;
    }
    return ERR_OK;
}

static enum err table_read(const struct segment *segment, int fd, uint32_t row_count,
                           const struct segment_table_id *id, struct segment_rows **ret_rows)
{
    uint32_t size = segment->log->segment_size_bytes;
    if (row_count > size / RUN_ALIGN) {
        return ERR_CORRUPT;
    }
    uint32_t len = segment_table_bytes(row_count);
    check(fd >= 0 && id->number != 0);
    char *bytes = malloc(max_u64(len, 1));
    check(bytes != NULL);
    int failed = store_fault_strike(STORE_FAULT_TABLE);
    ssize_t got = failed != 0 ? -1 : pread(fd, bytes, len, (off_t)(size - len));
    enum err err = got < 0 ? ERR_IO : ERR_CORRUPT;
    if (got == (ssize_t)len) {
        stats_add(COUNTER_segment_list_bytes, len);
        err = segment_rows_decode((struct span){bytes, len}, row_count, size, id, ret_rows);
    }
    free(bytes);
    return err;
}

// Reads the rows of a sealed segment from its table. Returns ERR_FORMAT if the segment has no seal.
static enum err table_of(struct segment *segment, uint64_t *ret_salt,
                         struct segment_rows **ret_rows)
{
    struct segment_header header;
    struct segment_seal seal;
    int fd;
    enum err err = segment_log_identify(segment, &header, &seal);
    if (err != ERR_OK) {
        return err;
    }
    *ret_salt = header.salt;
    if (seal.number == 0) {
        return ERR_FORMAT;
    }
    err = segment_borrow_wait(segment, &fd);
    if (err == ERR_OK) {
        struct segment_table_id id = table_id_of(segment, header.salt, seal.table_id);
        err = table_read(segment, fd, seal.row_count, &id, ret_rows);
        segment_return(segment);
    }
    if (err == ERR_CORRUPT) {
        stats_add(COUNTER_segment_tables_bad, 1);
        log_warn_condition("segment_table_refused", "number=%u", atomic_load(&segment->number));
    }
    return err;
}

// --- listing

struct scan_rows {
    const struct store_disk *disk;
    bool (*on_row)(void *ctx, const struct segment_row *row);
    void *ctx;
};

static bool on_run_scanned(void *ctx, const struct run_header *header)
{
    struct scan_rows *scan = ctx;
    check(scan->on_row != NULL);
    struct hash128 hash = disk_hash(scan->disk, header->realm, header->bucket, header->key);
    struct segment_row row = segment_row_of_header(header);
    row.is_bad = !hash128_equal(hash, header->hash);
    return scan->on_row(scan->ctx, &row);
}

enum err segment_list_scan(struct segment *segment, uint64_t salt,
                           bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx,
                           struct segment_scan_result *ret_result)
{
    struct scan_rows scan = {segment->log->disk, on_row, ctx};
    stats_add(COUNTER_segment_list_scan, 1);
    return segment_log_scan(segment, salt, on_run_scanned, &scan, ret_result);
}

static enum err rows_list(const struct segment_rows *rows,
                          bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx)
{
    uint32_t count = segment_rows_count(rows);
    for (uint32_t at = 0; at < count; at++) {
        struct segment_row row;
        segment_rows_get(rows, at, &row);
        if (!on_row(ctx, &row)) {
            return ERR_CANCELLED;
        }
    }
    return ERR_OK;
}

enum err segment_list(struct segment *segment,
                      bool (*on_row)(void *ctx, const struct segment_row *row), void *ctx,
                      uint64_t *ret_salt)
{
    (void)store_fault_strike(STORE_FAULT_SCAN); // a test may pause the thread here
    uint64_t salt;
    struct segment_rows *rows = rows_of(segment, &salt);
    if (rows == NULL) {
        enum err err = table_of(segment, &salt, &rows);
        if (err != ERR_OK && salt == 0) {
            return err;
        }
        *ret_salt = salt;
        if (err != ERR_OK) {
            struct segment_scan_result result;
            return segment_list_scan(segment, salt, on_row, ctx, &result);
        }
        stats_add(COUNTER_segment_list_table, 1);
    }
    check(rows != NULL);
    *ret_salt = salt;
    enum err err = rows_list(rows, on_row, ctx);
    segment_rows_free(rows);
    return err;
}

// --- sealing

static uint32_t table_id_new(void)
{
    return (uint32_t)random_u64() | 1u;
}

// Finishes the segment's rows and writes them as a table. Called under seal_lock.
static enum err rows_write_locked(struct segment *segment, int fd, uint32_t table_id,
                                  uint32_t *ret_row_count)
{
    struct segment_table_id id = table_id_of(segment, segment->salt, table_id);
    struct segment_log *log = segment->log;
    struct segment_rows *rows = NULL;
    uint32_t page = 0;
    for (bool finished = false; !finished;) {
        pthread_mutex_lock(&log->rows_guard);
        // Rows cannot change: no thread has a hold, and this thread has seal_lock.
        rows = segment->rows;
        finished = rows == NULL || segment_rows_finish_on(rows, &id, &page);
        pthread_mutex_unlock(&log->rows_guard);
    }
    if (rows == NULL) {
        return ERR_IO;
    }
    *ret_row_count = segment_rows_count(rows);
    check(page == segment_table_bytes(*ret_row_count) / TABLE_PAGE_BYTES);
    return table_write(segment, fd, rows);
}

static enum err seal_write_locked(struct segment *segment, int fd, uint32_t given_bytes)
{
    struct segment_log *log = segment->log;
    struct segment_seal seal = {.number = atomic_load(&segment->number),
                                .table_id = table_id_new(),
                                .given_bytes = given_bytes};
    enum err err = rows_write_locked(segment, fd, seal.table_id, &seal.row_count);
    if (err != ERR_OK) {
        return err;
    }
    pthread_mutex_lock(&log->guarded.lock);
    seal.salt = segment->salt;
    seal.end_offset = segment->append_offset;
    seal.unit_count = segment->unit_count;
    seal.run_count = segment->run_count;
    check(seal.number != 0 &&
          (segment->state == SEGMENT_SEALED || segment->state == SEGMENT_DYING));
    pthread_mutex_unlock(&log->guarded.lock);
    char sector[SECTOR_SIZE];
    segment_seal_encode(&seal, sector);
    ssize_t written = pwrite(fd, sector, sizeof(sector), SEGMENT_SEAL_OFFSET);
    if (written != (ssize_t)sizeof(sector)) {
        return ERR_IO;
    }
    stats_add(COUNTER_segment_sealed_bytes, log->segment_size_bytes);
    uint64_t used =
        (uint64_t)seal.end_offset + segment_table_bytes(seal.row_count) + seal.given_bytes;
    // `used` may exceed the size if a crash has damaged the segment.
    stats_add(COUNTER_segment_unused_bytes,
              log->segment_size_bytes - min_u64(used, log->segment_size_bytes));
    return ERR_OK;
}

void segment_list_seal(struct segment *segment)
{
    struct segment_log *log = segment->log;
    check(atomic_load(&segment->holds) == 0); // a full segment gets no more holds
    struct segment_rows *rows = NULL;
    int fd;
    if (segment_borrow_wait(segment, &fd) != ERR_OK) {
        return; // the rows stay in memory, and a later start scans the unsealed segment
    }
    pthread_mutex_lock(&log->rows_guard);
    // Only a thread with a hold adds a row, and no hold is left.
    bool is_listed = segment->rows != NULL;
    uint32_t row_count = is_listed ? segment_rows_count(segment->rows) : 0;
    pthread_mutex_unlock(&log->rows_guard);
    uint32_t given_bytes = is_listed ? segment_trim(segment, fd, row_count) : 0;
    pthread_mutex_lock(&log->seal_lock);
    bool is_written = seal_write_locked(segment, fd, given_bytes) == ERR_OK;
    if (is_written) {
        pthread_mutex_lock(&log->rows_guard);
        rows = segment->rows;
        check(rows != NULL); // only this thread removes the rows
        segment->rows = NULL;
        pthread_mutex_unlock(&log->rows_guard);
    } else {
        log_warn_condition("seal_failed", "number=%u", atomic_load(&segment->number));
    }
    pthread_mutex_unlock(&log->seal_lock);
    segment_return(segment);
    segment_rows_free(rows);
    segment_trim_given(segment, is_written ? given_bytes : 0);
}

enum err segment_list_save(struct segment *segment, uint32_t *ret_row_count, uint32_t *ret_table_id)
{
    struct segment_log *log = segment->log;
    int fd;
    enum err err = segment_borrow_wait(segment, &fd);
    if (err != ERR_OK) {
        return err;
    }
    uint32_t table_id = table_id_new();
    pthread_mutex_lock(&log->seal_lock);
    err = rows_write_locked(segment, fd, table_id, ret_row_count);
    pthread_mutex_unlock(&log->seal_lock);
    if (err == ERR_OK && fdatasync(fd) != 0) {
        err = ERR_IO;
    }
    segment_return(segment);
    *ret_table_id = table_id;
    return err;
}

enum err segment_list_load(struct segment *segment, uint64_t salt, uint32_t row_count,
                           uint32_t table_id, struct segment_rows **ret_rows)
{
    struct segment_table_id id = table_id_of(segment, salt, table_id);
    int fd;
    enum err err = segment_borrow_wait(segment, &fd);
    if (err == ERR_OK) {
        err = table_read(segment, fd, row_count, &id, ret_rows);
        segment_return(segment);
    }
    return err;
}

// --- marks

// Erases the seal of a table that is corrupt, so that the bad run cannot be marked in it. Without a
// seal nobody uses the table: the segment is scanned, and the scan finds the mark in the run's
// header.
static enum err seal_erase(int fd)
{
    static const char nothing[SECTOR_SIZE];
    ssize_t written = pwrite(fd, nothing, sizeof(nothing), SEGMENT_SEAL_OFFSET);
    return written == (ssize_t)sizeof(nothing) ? ERR_OK : ERR_IO;
}

// Marks a bad run in its header. The run is removed from the index, but a scan would find it again.
// So its header is rewritten with a hash that does not match its key. A look-up refuses such a
// header, because it differs from the index. A scan skips it, as it skips runs of other caches.
// Versions of Forebay without marks do the same. If a power cut tears the header, it fails its
// checksum, which has the same effect.
static enum err header_mark_bad(int fd, const struct store_place *place)
{
    char bytes[RUN_HEADER_MAX], marked[RUN_HEADER_MAX];
    if (place->header_len < RUN_HEADER_FIXED || place->header_len > RUN_HEADER_MAX) {
        return ERR_OK; // no run has such a header
    }
    struct run_header h;
    ssize_t got = pread(fd, bytes, place->header_len, place->header_offset);
    if (got != (ssize_t)place->header_len ||
        segment_run_header_decode((struct span){bytes, place->header_len}, &h) != ERR_OK ||
        h.header_len != place->header_len || h.number != place->segment_number ||
        h.salt != place->salt || h.header_offset != place->header_offset ||
        !hash128_equal(h.hash, place->hash)) {
        return got < 0 ? ERR_IO : ERR_OK;
    }
    h.hash = (struct hash128){~h.hash.hi, ~h.hash.lo};
    segment_run_header_encode(&h, marked);
    ssize_t put = pwrite(fd, marked, h.header_len, h.header_offset);
    return put == (ssize_t)h.header_len ? ERR_OK : ERR_IO;
}

static enum err table_mark_bad(struct segment *segment, int fd, const struct store_place *place)
{
    char sector[SECTOR_SIZE];
    struct segment_seal seal;
    ssize_t got = pread(fd, sector, sizeof(sector), SEGMENT_SEAL_OFFSET);
    if (got != (ssize_t)sizeof(sector)) {
        return ERR_IO;
    }
    struct segment_rows *rows = NULL;
    if (segment_seal_decode(sector, &seal) != ERR_OK || seal.salt != place->salt) {
        return ERR_OK; // the segment has no table to take a mark
    }
    struct segment_table_id id = table_id_of(segment, place->salt, seal.table_id);
    enum err err = table_read(segment, fd, seal.row_count, &id, &rows);
    if (err != ERR_OK) {
        return err == ERR_CORRUPT ? seal_erase(fd) : err;
    }
    uint32_t at;
    if (segment_rows_mark_bad(rows, place, &at)) {
        check(at < seal.row_count);
        uint32_t page = at / TABLE_PAGE_ROWS;
        uint32_t in_page = at % TABLE_PAGE_ROWS / TABLE_SECTOR_ROWS * SECTOR_SIZE;
        off_t offset = segment->log->segment_size_bytes - segment_table_bytes(seal.row_count);
        segment_rows_finish(rows, &id);
        ssize_t put = pwrite(fd, segment_rows_page(rows, page) + in_page, SECTOR_SIZE,
                             offset + (off_t)page * TABLE_PAGE_BYTES + in_page);
        err = put == (ssize_t)SECTOR_SIZE ? ERR_OK : ERR_IO;
    }
    segment_rows_free(rows);
    return err;
}

enum err segment_list_mark_bad(struct segment *segment, int fd, const struct store_place *place)
{
    struct segment_log *log = segment->log;
    check(fd >= 0 && (atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) > 0);
    uint32_t at;
    pthread_mutex_lock(&log->seal_lock);
    pthread_mutex_lock(&log->rows_guard);
    bool in_memory = segment->rows != NULL;
    if (in_memory && segment->salt == place->salt) {
        // Without a row there is no such run, which is no error.
        (void)segment_rows_mark_bad(segment->rows, place, &at);
    }
    pthread_mutex_unlock(&log->rows_guard);
    enum err err = in_memory ? ERR_OK : table_mark_bad(segment, fd, place);
    pthread_mutex_unlock(&log->seal_lock);
    return err == ERR_OK ? header_mark_bad(fd, place) : err;
}
