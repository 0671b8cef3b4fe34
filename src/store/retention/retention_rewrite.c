// SPDX-License-Identifier: Apache-2.0
// Copies the survivors of a segment, run by run, into another segment that holds only survivors.
// Then the old segment is freed like any other. Runs on the retention thread, while readers still
// read the old copies. The steps for each run:
//
//   1. Read the run's header and payload, and verify each checksum, as for a reader.
//   2. Write the new copy. If it needs an intent: intent, payload, then header.
//   3. Sync, after every few MiB, so that the index writer's own sync has little to do.
//   4. Move the run in the index, if the index still names the old copy. Otherwise a delete or a
//      newer run wins.
//
// The old segment is freed after all moves are committed or refused.
//
// A crash between any two steps does no harm. Until the move is committed, the index names the old
// copy, and the file of its segment is not unlinked. After the commit, the index names the new
// copy, which is synced. The index does not name the other copy. A rebuild may find both copies.
// They have the same generation and bytes, so it takes either. A later write or condemnation names
// a key and a generation, so it applies to both copies.
//
// A run that cannot be read or fails a checksum is dropped, as if a reader had read it. If no spare
// segment is left, or the disk has errors, the remaining survivors are dropped with their segment,
// because new runs have priority. Pinned runs are copied first. They may use the last spare
// segment, which workers must not take. If a pinned run cannot be copied, its segment stays, and is
// tried again a few times.
#include "store/retention/retention_rewrite.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "stats/stats.h"
#include "store/index/index_sync.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_free.h"
#include "store/segment/segment_list.h"
#include "store/segment/segment_log.h"
#include "store/state/state_condemned.h"

#define PIECE_BYTES (4 * STORE_CHECKSUM_UNIT) // bytes per read or write
#define SYNC_BYTES (4u << 20)
#define MOVES_AT_ONCE 512u // moves reported to the policy under one hold of the lock, at most

static_assert(PIECE_BYTES % STORE_CHECKSUM_UNIT == 0, "a piece is verified by itself");

struct rewriting {
    struct retention *retention;
    struct segment_log *log;
    const struct retention_job *job;
    struct segment *segment; // pinned
    int fd;                  // descriptor of `segment`
    uint64_t salt;
    struct segment_row *rows; // rows of the survivors
    bool *row_pinned;
    uint32_t row_count;
    bool pins_left; // some pinned runs could not be copied
    // Moves of the copied runs. Copies from move `unsent` on are not synced, and their moves are
    // not sent to the index.
    struct index_move *moves;
    uint32_t move_count, unsent;
    uint64_t unsynced_bytes;
    char *head, *out; // head: the old header; out: the new header, then a piece of payload
};

// --- runs to rewrite

static int start_compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool on_row(void *ctx, const struct segment_row *row)
{
    struct rewriting *rw = ctx;
    const struct retention_job *job = rw->job;
    check(rw->row_count <= job->count);
    const uint32_t *start =
        bsearch(&row->header_offset, job->starts, job->count, sizeof(*job->starts), start_compare);
    if (rw->row_count < job->count && start != NULL) {
        rw->row_pinned[rw->row_count] = job->pinned != NULL && job->pinned[start - job->starts];
        rw->rows[rw->row_count++] = *row;
    }
    return true;
}

// --- one run

static bool pread_all(int fd, char *buf, size_t len, uint64_t offset)
{
    size_t done = 0;
    while (done < len) {
        ssize_t got = pread(fd, buf + done, len - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

static enum err write_all(struct rewriting *rw, int fd, const char *buf, size_t len,
                          uint64_t offset)
{
    int failed = store_fault_strike(STORE_FAULT_REWRITE);
    size_t done = 0;
    while (failed == 0 && done < len) {
        ssize_t put = pwrite(fd, buf + done, len - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        failed = put < 0 ? errno : put == 0 ? ENOSPC : 0;
        done += put > 0 ? (size_t)put : 0;
    }
    if (failed != 0) {
        disk_filling_off(rw->log->disk, "rewrite", failed);
        return ERR_DISK_FULL;
    }
    return ERR_OK;
}

enum err retention_head_read(const struct store_disk *disk, const struct store_place *from, int fd,
                             char *bytes, struct run_header *ret_header)
{
    check(from->header_len <= RUN_HEADER_MAX);
    check(from->segment != NULL);
    check(fd >= 0);
    segment_unmark_neighbour(from->segment, from->header_offset, from->first_unit, fd);
    if (!pread_all(fd, bytes, from->header_len, from->header_offset)) {
        return ERR_IO;
    }
    struct run_header header;
    enum err err = segment_run_accept((struct span){bytes, from->header_len}, from, &header);
    if (err != ERR_OK ||
        !hash128_equal(disk_hash(disk, header.realm, header.bucket, header.key), header.hash)) {
        return ERR_CORRUPT;
    }
    *ret_header = header;
    return ERR_OK;
}

static bool piece_is_right(const struct run_header *header, uint32_t at, const char *bytes,
                           uint32_t len)
{
    check(at % STORE_CHECKSUM_UNIT == 0);
    for (uint32_t done = 0; done < len; done += STORE_CHECKSUM_UNIT) {
        uint32_t unit_len = (uint32_t)min_u64(STORE_CHECKSUM_UNIT, len - done);
        if (disk_crc32c(bytes + done, unit_len) !=
            run_header_unit_crc(header, (at + done) / STORE_CHECKSUM_UNIT)) {
            return false;
        }
    }
    return true;
}

// Reads and verifies `len` bytes of the payload from byte `at` on, which is a multiple of the unit.
// If the bytes are not in the page cache, first clears their verified marks, as for a reader.
static enum err piece_read(struct rewriting *rw, const struct run_header *header, uint32_t at,
                           char *ret_bytes, uint32_t len)
{
    check(len > 0 && len <= PIECE_BYTES);
    check(at < header->payload_len && len <= header->payload_len - at);
    uint64_t offset = (uint64_t)header->payload_offset + at;
    uint32_t first_unit = header->first_unit + at / STORE_CHECKSUM_UNIT;
    bool is_marked = header->payload_len >= RUN_PACKED_MAX;
    if (is_marked && !disk_io_resident(rw->fd, offset, len)) {
        segment_set_verified(rw->segment, first_unit, run_unit_count(len), false);
    }
    for (unsigned tries = 0; tries < 2; tries++) { // after a mismatch, read once more
        if (!pread_all(rw->fd, ret_bytes, len, offset)) {
            return ERR_IO;
        }
        if (piece_is_right(header, at, ret_bytes, len)) {
            return ERR_OK;
        }
    }
    if (is_marked) {
        segment_set_verified(rw->segment, first_unit, run_unit_count(len), false);
    }
    return ERR_CORRUPT;
}

static enum err intent_write(struct rewriting *rw, int fd, const struct segment_reservation *to)
{
    char sector[SECTOR_SIZE];
    struct run_intent intent = {
        .number = to->number,
        .salt = to->salt,
        .offset = to->layout.start,
        .end_offset = (uint32_t)to->layout.end_offset,
        .header_offset = to->layout.header_offset,
        .payload_offset = to->layout.payload_offset,
    };
    segment_run_intent_encode(&intent, sector);
    return write_all(rw, fd, sector, sizeof(sector), to->layout.start);
}

// Copies the payload of a run with an intent. For a run without one, only reads the payload into
// `out`, after the room for the header, because run_write() writes both at once.
static enum err payload_copy(struct rewriting *rw, int fd, const struct run_header *from,
                             const struct segment_reservation *to, uint32_t head_bytes)
{
    enum err err = to->layout.intent ? intent_write(rw, fd, to) : ERR_OK;
    char *piece = rw->out + head_bytes;
    for (uint32_t at = 0; at < from->payload_len && err == ERR_OK; at += PIECE_BYTES) {
        uint32_t len = (uint32_t)min_u64(PIECE_BYTES, from->payload_len - at);
        err = piece_read(rw, from, at, piece, len);
        if (err == ERR_OK && to->layout.intent) {
            err = write_all(rw, fd, piece, len, (uint64_t)to->layout.payload_offset + at);
        }
    }
    return err;
}

static enum err run_write(struct rewriting *rw, int fd, const struct run_header *from,
                          const struct segment_reservation *to, struct run_header *ret_header)
{
    const struct run_layout *layout = &to->layout;
    struct run_header header = *from;
    header.number = to->number;
    header.salt = to->salt;
    header.header_offset = layout->header_offset;
    header.payload_offset = layout->payload_offset;
    header.end_offset = (uint32_t)layout->end_offset;
    header.first_unit = to->first_unit;
    uint32_t head_bytes =
        layout->intent ? header.header_len : layout->payload_offset - layout->header_offset;
    check(layout->intent || header.payload_len <= PIECE_BYTES);
    check(to->segment != rw->segment); // a survivor never moves within its segment
    check(layout->header_offset <= layout->payload_offset);
    check(head_bytes <= RUN_HEADER_MAX + RUN_PAYLOAD_ALIGN);
    segment_unmark_neighbour(to->segment, layout->start, to->first_unit, fd);
    enum err err = payload_copy(rw, fd, from, to, head_bytes);
    if (err != ERR_OK) {
        return err;
    }
    memset(rw->out, 0, head_bytes);
    segment_run_header_encode(&header, rw->out);
    uint32_t len = head_bytes + (layout->intent ? 0 : header.payload_len);
    err = write_all(rw, fd, rw->out, len, layout->header_offset);
    if (err == ERR_OK && header.payload_len >= RUN_PACKED_MAX) {
        segment_set_verified(to->segment, to->first_unit, header.unit_count, true);
    }
    *ret_header = header;
    return err;
}

static void reservation_return(const struct segment_reservation *to)
{
    segment_unhold(to->segment);
    segment_unpin(to->segment);
}

// Copies one run. Returns ERR_OK if it was copied and its move added, ERR_CORRUPT or ERR_IO if this
// run is lost, and ERR_CANCELLED if the run is bad or condemned. After any other error no more runs
// can be copied.
static enum err run_copy(struct rewriting *rw, const struct segment_row *row)
{
    struct retention *r = rw->retention;
    check(rw->move_count < rw->job->count); // `moves` has an entry for each run
    struct store_place from = segment_row_place(row, rw->job->number, rw->salt);
    from.segment = rw->segment;
    if (row->is_bad || segment_is_bad(rw->segment, row->header_offset) ||
        state_condemned_has(r->condemned, row->hash, row->generation)) {
        return ERR_CANCELLED;
    }
    struct run_header header, copy;
    enum err err = retention_head_read(r->disk, &from, rw->fd, rw->head, &header);
    struct segment_reservation to;
    if (err == ERR_OK) {
        struct segment_want want = {.header_len = header.header_len,
                                    .payload_len = header.payload_len,
                                    .is_long = segment_run_is_long(r->disk->segment_size_bytes,
                                                                   header.block_count,
                                                                   header.payload_len)};
        enum err room = segment_log_reserve_apart(rw->log, SEGMENT_SLOT_SURVIVORS, &want, &to);
        if (room != ERR_OK) {
            return room;
        }
        int fd;
        err = segment_borrow_wait(to.segment, &fd) == ERR_OK ? ERR_OK : ERR_UNREADABLE;
        if (err == ERR_OK) {
            err = run_write(rw, fd, &header, &to, &copy);
            segment_return(to.segment);
        }
        if (err != ERR_OK) {
            reservation_return(&to); // the reserved bytes stay unused
        }
    }
    if (err == ERR_CORRUPT || err == ERR_IO) {
        r->host.drop(r->host.ctx, &from, row->hash, err);
    }
    if (err != ERR_OK) {
        return err;
    }
    struct segment_row copied = segment_row_of_header(&copy);
    segment_list_note(to.segment, &copied);
    struct index_move *move = &rw->moves[rw->move_count++];
    *move = (struct index_move){.hash = row->hash, .from = from, .to = run_header_place(&copy)};
    move->to.segment = to.segment;
    rw->unsynced_bytes += (uint64_t)to.layout.end_offset - to.layout.start;
    return ERR_OK;
}

// --- all runs

// Syncs the copies made since the last call, and queues their moves for the index writer.
static void moves_send(struct rewriting *rw)
{
    struct segment *target = NULL;
    enum err err = ERR_OK;
    check(rw->unsent <= rw->move_count);
    for (; rw->unsent < rw->move_count; rw->unsent++) {
        struct index_move *move = &rw->moves[rw->unsent];
        if (move->to.segment != target) {
            target = move->to.segment;
            err = index_sync_segment(target);
        }
        move->err = err;
        if (err == ERR_OK) {
            index_writer_move(rw->retention->writer, move);
        } else {
            segment_unhold(target);
            segment_unpin(target);
        }
    }
    rw->unsynced_bytes = 0;
    check(rw->unsent == rw->move_count);
}

static bool must_end(const struct rewriting *rw)
{
    return atomic_load(&rw->log->room) == 0 || !disk_is_filling(rw->log->disk) ||
           retention_stopping(rw->retention);
}

// Returns false if no more runs can be copied, because there is no room or the disk has errors.
static bool copy_one(struct rewriting *rw, uint32_t at)
{
    check(at < rw->row_count);
    enum err err = run_copy(rw, &rw->rows[at]);
    if (rw->unsynced_bytes >= SYNC_BYTES) {
        moves_send(rw);
    }
    retention_drain(rw->retention);
    return err == ERR_OK || err == ERR_CORRUPT || err == ERR_IO || err == ERR_CANCELLED;
}

// Copies all runs: first the pinned ones, as long as there is any room, then the others.
static void copy_all(struct rewriting *rw)
{
    bool well = true;
    for (uint32_t i = 0; i < rw->row_count && !rw->pins_left; i++) {
        if (rw->row_pinned[i]) {
            well = disk_is_filling(rw->log->disk) && !retention_stopping(rw->retention) &&
                   copy_one(rw, i);
            rw->pins_left = !well;
        }
    }
    for (uint32_t i = 0; i < rw->row_count && well && !must_end(rw); i++) {
        if (!rw->row_pinned[i]) {
            well = copy_one(rw, i);
        }
    }
    moves_send(rw);
}

static void moves_tell(struct rewriting *rw)
{
    struct retention *r = rw->retention;
    uint64_t bytes = 0;
    // All moves were sent, and the caller has waited for their results.
    check(rw->unsent == rw->move_count);
    check(rw->move_count <= rw->row_count);
    for (uint32_t i = 0; i < rw->move_count; i += MOVES_AT_ONCE) {
        pthread_mutex_lock(&r->lock);
        for (uint32_t j = i; j < rw->move_count && j < i + MOVES_AT_ONCE; j++) {
            const struct index_move *move = &rw->moves[j];
            uint32_t index;
            uint32_t len = move->to.payload_offset - move->to.header_offset + move->to.payload_len;
            if (move->err != ERR_OK) {
                continue;
            }
            bytes += len;
            segment_note_moved(rw->segment, move->to.block_count, move->to.payload_len);
            if (policy_segment_find(r->policy, rw->job->number, move->from.header_offset, &index)) {
                policy_segment_move(r->policy, rw->job->number, index, move->to.segment_number,
                                    move->to.header_offset, len);
            }
        }
        pthread_mutex_unlock(&r->lock);
    }
    stats_add(COUNTER_retention_rewritten_bytes, bytes);
}

// Returns whether the segment stays because its pinned runs found no room. The policy may then pick
// it again later.
static bool stays_for_pins(struct rewriting *rw)
{
    struct retention *r = rw->retention;
    pthread_mutex_lock(&r->lock);
    r->pins.tries = rw->pins_left ? r->pins.tries + 1 : 0;
    bool stays = rw->pins_left && r->pins.tries <= RETENTION_PINS_TRIES;
    if (stays) {
        policy_segment_seal(r->policy, rw->job->number);
    }
    pthread_mutex_unlock(&r->lock);
    return stays;
}

static void rewriting_done(struct rewriting *rw)
{
    free(rw->rows);
    free(rw->row_pinned);
    free(rw->moves);
    free(rw->head);
    free(rw->out);
}

static void rewriting_init(struct rewriting *rw, struct retention *r,
                           const struct retention_job *job)
{
    *rw = (struct rewriting){.retention = r, .log = r->log, .job = job};
    check(job->number != 0);
    rw->segment = segment_log_entry(r->log, job->number);
    check(rw->segment != NULL);
    rw->rows = calloc(job->count, sizeof(*rw->rows));
    rw->row_pinned = calloc(job->count, sizeof(*rw->row_pinned));
    rw->moves = calloc(job->count, sizeof(*rw->moves));
    rw->head = malloc(RUN_HEADER_MAX);
    rw->out = malloc(RUN_HEADER_MAX + RUN_PAYLOAD_ALIGN + PIECE_BYTES);
    check(rw->rows != NULL);
    check(rw->row_pinned != NULL);
    check(rw->moves != NULL);
    check(rw->head != NULL);
    check(rw->out != NULL);
}

void retention_rewrite(struct retention *r, const struct retention_job *job)
{
    struct rewriting rw;
    rewriting_init(&rw, r, job);
    if (!segment_pin(rw.segment, job->number)) {
        rewriting_done(&rw); // another thread has freed the segment in the meantime
        return;
    }
    if (segment_list(rw.segment, on_row, &rw, &rw.salt) == ERR_OK &&
        segment_borrow_wait(rw.segment, &rw.fd) == ERR_OK) {
        copy_all(&rw);
        segment_return(rw.segment);
        (void)index_writer_flush(r->writer); // the result is in `err` of each move
        moves_tell(&rw);
    }
    if (!retention_stopping(r) && !stays_for_pins(&rw)) {
        // The eviction also drops survivors that were not copied.
        segment_free_doom_full(rw.log, rw.segment);
    }
    segment_unpin(rw.segment);
    rewriting_done(&rw);
}
