// SPDX-License-Identifier: Apache-2.0
// Writes a run, from store_run_begin() to the place that it gets. A run belongs to its worker until
// done() or abort. At most one of its disk operations is in flight, and the run is never freed
// before that operation ends.
//
//   payload up to 256 KiB   keeps chunks until finish, then writes header and payload together
//   longer                  writes the intent at begin, chunks in groups as they come, and the
//                           header at finish
//
// An error is kept and reported at finish. Chunks that still arrive are released at once. If
// something of a cancelled run was written, its reservation stays in the segment unused: a hole. An
// intent is a sector before a long run that says where the run will end. If there is one, the hole
// is the whole reservation, even after a crash. A run that turns out shorter returns the rest of
// its reservation when its header is written, because the header says where the run ends.
//
// The backlog (write_backlog.c) helps to decide whether a run begins. It counts each byte of the
// run: promised at begin, queued with its chunk, and then written.
//
// The chunks of a longer run are written past the page cache, unless its bytes will be read soon:
// because the cache fits into memory (page_admission.c), or because the run is fetched ahead of its
// reader. A training set is larger than memory, and its pages would be gone before they are read
// again. Readers that come too late for the chunks then wait for the run's end. While many chunks
// wait for the device, they are written into the page cache, so that a burst is stored. All other
// bytes go there, too, and its pages are pushed to the device (segment_push.c). But while such
// pages crowd a limited memory (write_backlog.c), all chunks of longer runs pass it. One run may be
// written both ways. No page has bytes of both, because the payload begins and ends with a page of
// its own, and a write begins with a checksum unit.
#include <errno.h>
#include <stdlib.h>

#include "stats/stats.h"
#include "store/segment/segment_list.h"
#include "store/store_private.h"

#define RUN_MAGIC 0x52554e57u
#define CHUNKS_PER_WRITE 16u
static_assert(STORE_RUN_BLOCKS_MAX * STORE_BLOCK_SIZE_MIN == STORE_RUN_MAX,
              "the longest run of the smallest blocks");
static_assert(STORE_RUN_MAX <= STORE_BLOCK_SIZE_MAX, "a block is the longest payload");

// The last word of the caller: more bytes follow, these were all, or the run is to be dropped.
enum run_end { RUN_GOES_ON, RUN_FINISHES, RUN_IS_ABORTED };
enum run_step { RUN_IDLE, RUN_INTENT, RUN_PAYLOAD, RUN_HEADER };
// The segment's descriptor that the operation in flight uses.
enum run_file { RUN_FILE_NONE, RUN_FILE_PAGED, RUN_FILE_DIRECT };

struct store_run {
    uint32_t magic;
    struct worker *worker;
    struct store *store;
    struct store_object *object;
    struct segment_reservation reservation;
    uint64_t first_block, generation;
    uint32_t block_count, payload_len; // values at begin; store_run_finish() may lower them
    uint32_t begun_len;
    uint32_t header_len, unit_count;
    struct retention_answer answer;
    uint32_t appended_units, written_units;
    uint64_t appended_bytes;
    uint32_t writing_units; // number of units that the operation in flight writes
    uint32_t paged_units;   // units from the first one on that the page cache has
    enum run_step step;
    uint64_t began_us; // when the operation in flight began
    enum run_file file;
    bool skips_page_cache;  // its payload shall be written past the page cache
    bool is_direct_refused; // the file system refused a write of this run past the page cache
    bool has_pages;         // some of its payload was written through the page cache
    bool is_wanted_now;     // the next write of payload does not wait for more chunks
    enum err err;
    enum run_end end;
    bool touched; // something was written to the reservation
    bool is_long; // a long run, see store_long.c
    char *head;   // the sector of the intent; later the header and its padding
    void (*done)(void *ctx, enum err err, const struct store_place *place);
    void *ctx;
    // NULL: store_run_watch() was not called.
    void (*on_written)(void *ctx, const struct store_place *pages);
    void *watch_ctx;
    struct disk_op op;
    struct task task; // calls run_go() later, if no disk operation is in flight that would call it
    struct iovec iov[CHUNKS_PER_WRITE + 1];
    uint32_t *unit_crc;     // CRC of each unit, little-endian as on disk; stored after `chunks`
    struct chunk *chunks[]; // unit_count entries; NULL unless appended and not yet written
};

static struct store_run *as_run(void *ptr)
{
    struct store_run *run = ptr;
    check(run->magic == RUN_MAGIC);
    return run;
}

// --- ends of a run

static uint64_t run_unit_bytes(const struct store_run *run, uint32_t unit)
{
    return min_u64(STORE_CHECKSUM_UNIT, run->begun_len - (uint64_t)unit * STORE_CHECKSUM_UNIT);
}

// Drops all chunks except those that are being written.
static void run_drop_chunks(struct store_run *run)
{
    check(run->written_units + run->writing_units <= run->appended_units);
    for (uint32_t i = run->written_units + run->writing_units; i < run->appended_units; i++) {
        if (run->chunks[i] != NULL) {
            write_backlog_written(&run->store->backlog, run_unit_bytes(run, i));
            chunk_unref(run->chunks[i]);
            run->chunks[i] = NULL;
        }
    }
}

static void run_free(struct store_run *run)
{
    check(run->step == RUN_IDLE && run->file == RUN_FILE_NONE && run->writing_units == 0);
    check(run->appended_bytes <= run->begun_len);
    worker_task_cancel(&run->task);
    run_drop_chunks(run);
    atomic_fetch_sub(&run->store->longs.running, run->is_long);
    write_backlog_forget(&run->store->backlog, run->begun_len - run->appended_bytes);
    store_object_unref(run->object);
    free(run->head);
    run->magic = 0;
    free(run);
}

// Returns the end of all bytes that were written for the run. Called when none of its operations is
// in flight. Bytes that were written after a shortened payload are not reused for other runs.
static uint32_t run_end_offset(const struct store_run *run)
{
    uint64_t used = max_u64(run->payload_len, (uint64_t)run->written_units * STORE_CHECKSUM_UNIT);
    used = min_u64(used, run->begun_len);
    const struct run_layout *layout = &run->reservation.layout;
    return (uint32_t)align_up_u64(layout->payload_offset + used, segment_run_end_align(layout));
}

// Returns the unused rest of the reservation to the segment. Called when the header, which says
// where the run ends, has been written.
static void run_give_rest(struct store_run *run)
{
    uint32_t end = run_end_offset(run);
    check(run->touched && end <= run->reservation.layout.end_offset);
    if (end < run->reservation.layout.end_offset) {
        // The run keeps the verified marks of all units that were written, also after its end.
        uint32_t units = (uint32_t)max_u64(run->unit_count, run->written_units);
        // If this fails, the rest stays a hole.
        (void)segment_log_shorten(&run->reservation, end, units);
    }
}

// Discards the run: releases pin and hold. Also returns the reservation if nothing was written to
// it.
static void run_give_up(struct store_run *run)
{
    struct segment *segment = run->reservation.segment;
    if (!run->touched) {
        // If this fails, the reservation stays a hole.
        (void)segment_log_shorten(&run->reservation, run->reservation.layout.start, 0);
    }
    segment_unhold(segment);
    segment_unpin(segment);
}

static struct store_place run_place(const struct store_run *run)
{
    return (struct store_place){
        .segment = run->reservation.segment,
        .segment_number = run->reservation.number,
        .header_offset = run->reservation.layout.header_offset,
        .header_len = run->header_len,
        .payload_offset = run->reservation.layout.payload_offset,
        .payload_len = run->payload_len,
        .salt = run->reservation.salt,
        .generation = run->generation,
        .first_block = run->first_block,
        .block_count = run->block_count,
        .block_size_bytes = run->object->block_size_bytes,
        .first_unit = run->reservation.first_unit,
        .has_no_pages = !run->has_pages,
        .hash = run->object->hash,
        .etag_hash = hash64(run->object->etag.ptr, run->object->etag.len, 0),
    };
}

static void run_end(struct store_run *run)
{
    bool keep = run->end == RUN_FINISHES && run->err == ERR_OK;
    check(run->end != RUN_GOES_ON);
    check(!keep || run->written_units >= run->unit_count);
    if (!keep) {
        run_give_up(run);
    }
    if (run->end != RUN_IS_ABORTED) {
        struct store_place place = run_place(run);
        run->done(run->ctx, run->err, keep ? &place : NULL);
    }
    run_free(run);
}

// --- writing

static void run_go(struct store_run *run);
static void on_run_op(struct disk_op *op);

static void run_submit(struct store_run *run, enum run_file file, int fd)
{
    check(fd >= 0 && run->file == RUN_FILE_NONE && run->step != RUN_IDLE);
    run->file = file;
    run->op.fd = fd;
    run->op.is_direct = file == RUN_FILE_DIRECT;
    disk_io_start(run->worker, &run->op);
}

static void run_submit_paged(struct store_run *run, int fd)
{
    // Writing a part of a page makes the kernel read the rest of it from the device.
    if (run->step != RUN_PAYLOAD) {
        segment_unmark_neighbour(run->reservation.segment, (uint32_t)run->op.offset,
                                 run->reservation.first_unit, fd);
    }
    run_submit(run, RUN_FILE_PAGED, fd);
}

static void on_run_opened(void *ctx, enum err err, int fd)
{
    struct store_run *run = as_run(ctx);
    check(run->step != RUN_IDLE && run->file == RUN_FILE_NONE);
    if (err != ERR_OK) {
        run->op.err = err;
        on_run_op(&run->op);
        return;
    }
    run_submit_paged(run, fd);
}

static void run_write_paged(struct store_run *run)
{
    struct segment *segment = run->reservation.segment;
    check(run->step != RUN_IDLE && run->file == RUN_FILE_NONE);
    int fd = segment_borrow(segment);
    if (fd >= 0) {
        run_submit_paged(run, fd);
    } else {
        segment_borrow_start(run->worker, segment, on_run_opened, run);
    }
}

// Direct I/O writes whole pages, so what follows the payload in its last page is written, too.
static void run_fill_page(struct store_run *run)
{
    struct iovec *last = &run->iov[run->op.iov_count - 1];
    const struct chunk *chunk = run->chunks[run->written_units + run->writing_units - 1];
    size_t whole = align_up_u64(last->iov_len, RUN_PAYLOAD_ALIGN);
    check(last->iov_base == chunk->data && whole <= CHUNK_SIZE);
    if (chunk->len < whole) { // never bytes of another object
        memset((char *)last->iov_base + chunk->len, 0, whole - chunk->len);
    }
    last->iov_len = whole;
}

static void on_run_opened_direct(void *ctx, enum err err, int fd)
{
    struct store_run *run = as_run(ctx);
    check(run->step == RUN_PAYLOAD);
    if (err != ERR_OK) {
        run_write_paged(run);
        return;
    }
    run_fill_page(run);
    run_submit(run, RUN_FILE_DIRECT, fd);
}

// Returns false if the segment cannot be written like that.
static bool run_write_direct(struct store_run *run)
{
    struct segment *segment = run->reservation.segment;
    int fd = segment_borrow_direct(segment);
    if (fd >= 0) {
        on_run_opened_direct(run, ERR_OK, fd);
        return true;
    }
    return segment_borrow_direct_start(run->worker, segment, on_run_opened_direct, run);
}

// Returns whether the next write of payload passes the page cache.
static bool run_passes_page_cache(const struct store_run *run)
{
    const struct write_backlog *backlog = &run->store->backlog;
    return !run->is_direct_refused && (write_backlog_crowds_memory(backlog) ||
                                       (run->skips_page_cache && !write_backlog_is_long(backlog)));
}

static void run_start_op(struct store_run *run, enum run_step step, unsigned iov_count,
                         uint32_t offset, bool is_direct)
{
    check(run->step == RUN_IDLE && step != RUN_IDLE);
    check(iov_count > 0 && iov_count <= ARRAY_LEN(run->iov));
    check(run->end != RUN_IS_ABORTED && run->err == ERR_OK);
    run->step = step;
    run->touched = true;
    run->began_us = worker_now_us(run->worker);
    write_backlog_begins(&run->store->backlog, run->began_us);
    run->op.kind = DISK_WRITE;
    run->op.offset = offset;
    run->op.iov = run->iov;
    run->op.iov_count = iov_count;
    run->op.done = on_run_op;
    if (!is_direct || !run_write_direct(run)) {
        run_write_paged(run);
    }
}

static void run_write_intent(struct store_run *run)
{
    const struct segment_reservation *r = &run->reservation;
    check(r->layout.intent && !run->touched && run->head == NULL);
    struct run_intent intent = {
        .number = r->number,
        .salt = r->salt,
        .offset = r->layout.start,
        .end_offset = (uint32_t)r->layout.end_offset,
        .header_offset = r->layout.header_offset,
        .payload_offset = r->layout.payload_offset,
    };
    run->head = calloc(1, SECTOR_SIZE);
    check(run->head != NULL);
    segment_run_intent_encode(&intent, run->head);
    run->iov[0] = (struct iovec){run->head, SECTOR_SIZE};
    run_start_op(run, RUN_INTENT, 1, r->layout.start, false);
}

// Fills iov[] from `first_iov` on with the next group of chunks, up to payload_len. Returns how
// many.
static unsigned run_fill_iov(struct store_run *run, unsigned first_iov)
{
    unsigned count = 0;
    check(run->writing_units == 0 && first_iov <= 1);
    while (count < CHUNKS_PER_WRITE && run->written_units + count < run->appended_units) {
        uint32_t unit = run->written_units + count;
        uint64_t at = (uint64_t)unit * STORE_CHECKSUM_UNIT;
        if (at >= run->payload_len) {
            break;
        }
        check(run->chunks[unit] != NULL);
        run->iov[first_iov + count] = (struct iovec){
            run->chunks[unit]->data, (size_t)min_u64(STORE_CHECKSUM_UNIT, run->payload_len - at)};
        count++;
    }
    check(run->written_units + count <= run->appended_units);
    run->writing_units = count;
    return count;
}

static struct run_header run_header_of(const struct store_run *run)
{
    const struct segment_reservation *r = &run->reservation;
    const struct store_object *o = run->object;
    return (struct run_header){
        .salt = r->salt,
        .number = r->number,
        .header_offset = r->layout.header_offset,
        .header_len = run->header_len,
        .payload_offset = r->layout.payload_offset,
        .payload_len = run->payload_len,
        .end_offset = run_end_offset(run),
        .first_unit = r->first_unit,
        .unit_count = run->unit_count,
        .generation = run->generation,
        .object_size_bytes = o->size_bytes,
        .block_size_bytes = o->block_size_bytes,
        .block_count = run->block_count,
        .first_block = run->first_block,
        .hash = o->hash,
        .last_modified = (int64_t)o->last_modified,
        .realm = o->realm,
        .bucket = o->bucket,
        .key = o->key,
        .etag = o->etag,
        .version_id = o->version_id,
        .headers = o->headers,
        .unit_crcs = (const char *)run->unit_crc,
    };
}

// Writes the header. If the run has no intent, also writes its payload, in the same operation.
static void run_write_header(struct store_run *run)
{
    const struct run_layout *layout = &run->reservation.layout;
    check(run->end == RUN_FINISHES && run->appended_bytes >= run->payload_len);
    struct run_header header = run_header_of(run);
    uint32_t head_bytes =
        layout->intent ? header.header_len : layout->payload_offset - layout->header_offset;
    free(run->head);
    run->head = calloc(1, head_bytes);
    check(run->head != NULL);
    segment_run_header_encode(&header, run->head);
    run->iov[0] = (struct iovec){run->head, head_bytes};
    unsigned count = layout->intent ? 0 : run_fill_iov(run, 1);
    // All payload is written before the header, or with it.
    check(run->written_units + count >= run->unit_count);
    run_start_op(run, RUN_HEADER, 1 + count, layout->header_offset, false);
}

// Adds the complete run to the segment's rows and reports it to the policy. This is right even if
// the caller does not enter the run in the index, because a scan of the segment would find it.
static void run_note(const struct store_run *run)
{
    check(run->written_units >= run->unit_count && run->err == ERR_OK);
    struct run_header header = run_header_of(run);
    struct segment_row row = segment_row_of_header(&header);
    segment_list_note(run->reservation.segment, &row);
    retention_stored(run->worker, &run->store->retention, &row, run->reservation.number,
                     &run->answer);
}

static void run_op_failed(struct store_run *run, const struct disk_op *op)
{
    check(op->err != ERR_OK);
    if (run->err == ERR_OK) {
        run->err = op->err;
    }
    if (op->err == ERR_UNREADABLE || op->err == ERR_DESCRIPTORS) {
        // The segment could not be opened, so nothing was written and the device has not failed.
        return;
    }
    disk_filling_off(&run->store->disk, "write", op->errno_value != 0 ? op->errno_value : ENOSPC);
}

// Releases the chunks of the operation that has ended. If the page cache has them, marks their
// units as verified, because their checksums were computed before they were written.
static void run_units_written(struct store_run *run, bool are_paged)
{
    uint64_t bytes = 0;
    check(run->written_units + run->writing_units <= run->appended_units);
    run->has_pages |= are_paged && run->writing_units > 0;
    run->paged_units +=
        are_paged && run->paged_units == run->written_units ? run->writing_units : 0;
    if (are_paged && run->payload_len >= RUN_PACKED_MAX) {
        segment_set_verified(run->reservation.segment,
                             run->reservation.first_unit + run->written_units, run->writing_units,
                             true);
    }
    for (uint32_t i = 0; i < run->writing_units; i++) {
        uint32_t unit = run->written_units + i;
        bytes += run_unit_bytes(run, unit);
        chunk_unref(run->chunks[unit]);
        run->chunks[unit] = NULL;
    }
    run->written_units += run->writing_units;
    run->writing_units = 0;
    write_backlog_written(&run->store->backlog, bytes);
}

static void run_tell_written(struct store_run *run)
{
    if (run->on_written == NULL || run->end == RUN_IS_ABORTED) {
        return;
    }
    struct store_place pages = run_place(run);
    pages.header_len = 0;
    pages.payload_len =
        (uint32_t)min_u64((uint64_t)run->paged_units * STORE_CHECKSUM_UNIT, run->payload_len);
    run->on_written(run->watch_ctx, run->err == ERR_OK && pages.payload_len > 0 ? &pages : NULL);
}

// Returns the descriptor. A run may wait long for its origin between two writes.
static void run_return(struct store_run *run)
{
    if (run->file == RUN_FILE_DIRECT) {
        segment_return_direct(run->reservation.segment);
    } else if (run->file == RUN_FILE_PAGED) {
        segment_return(run->reservation.segment);
    }
    run->file = RUN_FILE_NONE;
}

static void on_run_op(struct disk_op *op)
{
    struct store_run *run = as_run(container_of(op, struct store_run, op));
    enum run_step step = run->step;
    check(step != RUN_IDLE);
    bool was_direct = run->file == RUN_FILE_DIRECT;
    run_return(run);
    run->step = RUN_IDLE;
    uint64_t now_us = worker_now_us(run->worker);
    write_backlog_ends(&run->store->backlog, now_us, now_us - run->began_us);
    if (disk_op_is_refused(op)) {
        segment_direct_refused(run->reservation.segment, op);
        run->is_direct_refused = true;
        run->writing_units = 0;
        run_go(run); // writes the same units again, or drops them
        return;
    }
    bool are_paged = op->err == ERR_OK && !was_direct;
    run_units_written(run, are_paged);
    if (are_paged) {
        segment_push(run->worker, &store_worker_of(run->worker)->pusher, run->reservation.segment,
                     op->offset, op->offset + (uint64_t)op->result);
    }
    if (op->err != ERR_OK) {
        run_op_failed(run, op);
        run_drop_chunks(run);
    } else if (step == RUN_HEADER) {
        disk_filling_well(&run->store->disk);
        run_give_rest(run);
        run_note(run);
        run_end(run);
        return;
    }
    run_tell_written(run);
    run_go(run);
}

// Starts the next step, if there is one to take. No other function does.
static void run_go(struct store_run *run)
{
    if (run->step != RUN_IDLE) {
        return;
    }
    if (run->err != ERR_OK || run->end == RUN_IS_ABORTED) {
        run_drop_chunks(run);
        if (run->end != RUN_GOES_ON) {
            run_end(run);
        }
        return;
    }
    const struct run_layout *layout = &run->reservation.layout;
    bool all_appended = run->appended_bytes >= run->payload_len;
    if (layout->intent && run_fill_iov(run, 0) > 0) {
        bool is_direct = run_passes_page_cache(run);
        unsigned least = is_direct ? CHUNKS_PER_WRITE : CHUNKS_PER_WRITE / 4;
        if (run->writing_units < least && run->end == RUN_GOES_ON && !all_appended &&
            !run->is_wanted_now && !chunk_budget_is_short()) {
            run->writing_units = 0;
            return; // wait for more chunks, so that writes are larger
        }
        run->is_wanted_now = false;
        run_start_op(run, RUN_PAYLOAD, run->writing_units,
                     layout->payload_offset + run->written_units * STORE_CHECKSUM_UNIT, is_direct);
        return;
    }
    if (run->end == RUN_FINISHES) {
        run_write_header(run);
    }
}

static void on_run_task(struct task *task)
{
    run_go(as_run(container_of(task, struct store_run, task)));
}

// --- called by other rooms

bool store_keeps_up(struct worker *w, const struct store *store)
{
    return write_backlog_takes(&store->backlog) &&
           write_backlog_is_quick(&store->backlog, worker_now_us(w));
}

enum refusal store_waits_for(struct worker *w, const struct store *store, unsigned asked)
{
    enum err err = store_shortage(store);
    return err != ERR_OK ? refusal_of_error(err)
           : !store_keeps_up(w, store)
               ? refusal_of_error(write_backlog_error(&store->backlog, worker_now_us(w)))
           : index_memory_leaves_room(&store->index.memory, asked) || store_fault_is_steady()
               ? REFUSAL_none
               : REFUSAL_index_busy;
}

// Reserves room for the run if the policy and the backlog accept it.
static enum err run_reserve(struct worker *w, struct store *store,
                            const struct store_object *object, uint64_t first_block,
                            struct store_run_use use, const struct segment_want *want,
                            struct retention_answer *ret_answer,
                            struct segment_reservation *ret_reservation)
{
    enum policy_verdict verdict = retention_admit(&store->retention, object->hash, first_block,
                                                  use.group, use.is_part, ret_answer);
    if (!write_backlog_takes(&store->backlog)) {
        return write_backlog_error(&store->backlog, worker_now_us(w));
    }
    if (verdict == POLICY_REFUSE) { // without room, a run of any worth would be refused
        return atomic_load(&store->log.no_room) ? ERR_DISK_FULL : ERR_NOT_ADMITTED;
    }
    enum err err;
    unsigned tries = 0;
    do {
        err = verdict == POLICY_PROBATION
                  ? segment_log_reserve_apart(&store->log, SEGMENT_SLOT_PROBATION, want,
                                              ret_reservation)
                  : segment_log_reserve(&store->log, worker_index(w), want, ret_reservation);
    } while (err == ERR_NO_SEGMENT && !atomic_load(&store->log.no_room) &&
             atomic_load(&store->disk.make_err) == ERR_OK && store_fault_waits(tries++));
    stats_add(COUNTER_retention_probation, err == ERR_OK && verdict == POLICY_PROBATION);
    if (err == ERR_NO_SEGMENT && atomic_load(&store->disk.make_err) != ERR_OK) {
        return (enum err)atomic_load(&store->disk.make_err);
    }
    return err == ERR_NO_SEGMENT && atomic_load(&store->log.no_room) ? ERR_DISK_FULL : err;
}

// Returns whether the page cache shall have the payload. Notes it for later reads, too. A short run
// is always written into the page cache and read from it, so it is not noted.
static bool is_for_page_cache(struct store *store, const struct segment_reservation *reservation,
                              uint32_t payload_len, struct store_run_use use)
{
    bool is_admitted = true;
    if (payload_len < RUN_PACKED_MAX) {
        return true;
    }
    for (uint32_t at = 0; at < payload_len; at += STORE_READ_MAX) {
        is_admitted = page_admission_take(&store->page_admission, reservation->number,
                                          reservation->first_unit + at / STORE_CHECKSUM_UNIT,
                                          min_u64(STORE_READ_MAX, payload_len - at));
    }
    return is_admitted || use.is_ahead;
}

static enum err run_begin(struct worker *w, struct store *store, struct store_object *object,
                          uint64_t first_block, uint32_t block_count, struct store_run_use use,
                          struct store_run **ret_run)
{
    uint64_t blocks = store_object_block_count(object);
    check(block_count > 0);
    check(first_block < blocks);
    check(block_count <= blocks - first_block);
    enum err err;
    unsigned tries = 0;
    do {
        err = store_shortage(store);
    } while (err == ERR_INDEX_BUSY && store_fault_waits(tries++));
    if (err != ERR_OK) {
        return err;
    }
    uint64_t payload_len = segment_run_payload_len(object->size_bytes, object->block_size_bytes,
                                                   first_block, block_count);
    if (payload_len > STORE_BLOCK_SIZE_MAX || object->block_size_bytes % STORE_CHECKSUM_UNIT != 0 ||
        (block_count > 1 && payload_len > STORE_RUN_MAX)) {
        return ERR_LIMIT;
    }
    uint32_t units = run_unit_count((uint32_t)payload_len);
    uint32_t header_len =
        segment_run_header_len(object->realm, object->bucket, object->key, object->etag,
                               object->version_id, object->headers, units);
    check(header_len > 0 && header_len <= RUN_HEADER_MAX);
    struct segment_reservation reservation;
    struct retention_answer answer;
    struct segment_want want = {
        .header_len = header_len,
        .payload_len = (uint32_t)payload_len,
        .is_long = segment_run_is_long(store->disk.segment_size_bytes, block_count, payload_len)};
    if (want.is_long && store_long_note(store)) {
        segment_log_want(&store->log, false);
    }
    err = run_reserve(w, store, object, first_block, use, &want, &answer, &reservation);
    retention_missed(w, &store->retention, object->hash, first_block, payload_len, &answer,
                     err == ERR_OK);
    if (err != ERR_OK) {
        return err;
    }
    check(reservation.segment != NULL && reservation.layout.end_offset > reservation.layout.start);
    struct store_run *run =
        calloc(1, sizeof(*run) + units * (sizeof(run->chunks[0]) + sizeof(run->unit_crc[0])));
    check(run != NULL);
    run->magic = RUN_MAGIC;
    run->unit_crc = (uint32_t *)(void *)&run->chunks[units];
    run->worker = w;
    run->store = store;
    run->object = store_object_ref(object);
    run->reservation = reservation;
    run->first_block = first_block;
    run->answer = answer;
    run->generation = object->generation != 0 ? object->generation : store_generation_next(store);
    run->block_count = block_count;
    run->payload_len = run->begun_len = (uint32_t)payload_len;
    run->header_len = header_len;
    run->unit_count = units;
    run->is_long = want.is_long;
    run->skips_page_cache = !is_for_page_cache(store, &reservation, (uint32_t)payload_len, use);
    atomic_fetch_add(&store->longs.running, run->is_long);
    worker_task_init(&run->task, on_run_task);
    write_backlog_promise(&store->backlog, payload_len);
    if (reservation.layout.intent) {
        run_write_intent(run);
    }
    *ret_run = run;
    return ERR_OK;
}

enum err store_run_begin(struct worker *w, struct store *store, struct store_object *object,
                         uint64_t first_block, uint32_t block_count, struct store_run_use use,
                         struct store_run **ret_run)
{
    check(use.group <= STORE_GROUP_PINS);
    enum err err = run_begin(w, store, object, first_block, block_count, use, ret_run);
    if (err != ERR_OK) {
        refusal_count(refusal_of_error(err));
    }
    return err;
}

static void run_leave_out(struct store_run *run, enum err why)
{
    check(as_run(run)->end != RUN_IS_ABORTED);
    if (run->err == ERR_OK) {
        run->err = why;
        refusal_count(refusal_of_error(why));
        write_backlog_stall(&run->store->backlog);
        run_drop_chunks(run);
    }
}

void store_run_give_up(struct store_run *run)
{
    run_leave_out(run, ERR_DISK_BUSY);
}

void store_run_append(struct store_run *run, struct chunk *chunk)
{
    as_run(run);
    uint64_t left = run->payload_len - run->appended_bytes;
    check(run->end == RUN_GOES_ON);
    check(left > 0);
    check(run->appended_bytes % STORE_CHECKSUM_UNIT == 0); // the last chunk is the only shorter one
    check(run->appended_units < run->unit_count);
    uint32_t len = (uint32_t)min_u64(left, STORE_CHECKSUM_UNIT);
    check(chunk->len >= len);
    uint32_t unit = run->appended_units;
    wire_put_u32((char *)&run->unit_crc[unit], disk_crc32c(chunk->data, len));
    run->chunks[unit] = chunk_ref(chunk);
    run->appended_units++;
    run->appended_bytes += len;
    write_backlog_append(&run->store->backlog, len);
    if (write_backlog_is_over(&run->store->backlog)) {
        run_leave_out(run, write_backlog_error(&run->store->backlog, worker_now_us(run->worker)));
    }
    if (run->err != ERR_OK) {
        run_drop_chunks(run);
    }
    run_go(run);
}

void store_run_write_now(struct store_run *run)
{
    check(as_run(run)->end == RUN_GOES_ON);
    run->is_wanted_now = run->appended_units > run->written_units + run->writing_units;
    run_go(run);
}

uint64_t store_run_unwritten_bytes(const struct store_run *run)
{
    bool dropped = run->err != ERR_OK || run->end == RUN_IS_ABORTED;
    uint32_t units = dropped ? run->writing_units : run->appended_units - run->written_units;
    return (uint64_t)units * STORE_CHECKSUM_UNIT;
}

void store_run_watch(struct store_run *run,
                     void (*on_written)(void *ctx, const struct store_place *pages), void *ctx)
{
    check(as_run(run)->on_written == NULL && run->end == RUN_GOES_ON);
    run->on_written = on_written;
    run->watch_ctx = ctx;
}

void store_run_finish(struct store_run *run, uint32_t block_count,
                      void (*done)(void *ctx, enum err err, const struct store_place *place),
                      void *ctx)
{
    as_run(run);
    check(run->end == RUN_GOES_ON && done != NULL);
    check(block_count > 0 && block_count <= run->block_count);
    run->end = RUN_FINISHES;
    run->done = done;
    run->ctx = ctx;
    uint64_t payload_len = segment_run_payload_len(
        run->object->size_bytes, run->object->block_size_bytes, run->first_block, block_count);
    check(payload_len <= run->appended_bytes);
    if (block_count < run->block_count) {
        // With fewer units the header is shorter, and the space reserved after it stays empty. The
        // space after the payload is returned only once the header is written. Until then, the
        // intent says that the run has all of it.
        run->block_count = block_count;
        run->payload_len = (uint32_t)payload_len;
        run->header_len -= 4 * (run->unit_count - run_unit_count(run->payload_len));
        run->unit_count = run_unit_count(run->payload_len);
    }
    // A task calls run_go() later, so that done() does not run inside this call.
    worker_defer(run->worker, &run->task);
}

void store_run_abort(struct store_run *run)
{
    if (run == NULL) {
        return;
    }
    as_run(run);
    check(run->end == RUN_GOES_ON);
    run->end = RUN_IS_ABORTED;
    worker_defer(run->worker, &run->task);
}
