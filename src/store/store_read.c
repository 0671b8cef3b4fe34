// SPDX-License-Identifier: Apache-2.0
// Reads runs for hits, in the three ways that store.h describes. Runs on the worker that asks.
//
// No byte of a run is trusted before its header is verified. The header's magic, checksum,
// position, salt, object hash and ETag must be those of the place. Each worker caches accepted
// headers, with the checksums of their payload (run_cache.c). The payload is trusted if the
// checksums of its units are right. store_read_small() and store_read_start() verify the checksums
// at every read. For the fast way, each unit is verified once per process; see segment_log.c.
//
// After a mismatch the bytes are read a second time. If they differ again, the run is dropped.
//
// The general way reads payload that is not in memory past the page cache, unless it is admitted
// there (page_admission.c). Such a read sets no verified mark, because a mark speaks of the page
// cache. If it fails or finds a mismatch, the second read goes through the page cache, and only
// that one decides. A read borrows one descriptor at a time. With two, the reads that hold a first
// one could keep each other from a second one.
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "stats/stats.h"
#include "store/store_private.h"

static_assert(STORE_CHECKSUM_UNIT == CHUNK_SIZE, "a chunk takes one unit");
static_assert(STORE_READ_MAX % STORE_CHECKSUM_UNIT == 0, "a read covers at most one unit more");

// --- headers

static bool object_has_key(const struct store_object *object, struct hash128 hash,
                           struct span realm, struct span bucket, struct span key)
{
    return hash128_equal(object->hash, hash) && span_equal(object->key, key) &&
           span_equal(object->bucket, bucket) && span_equal(object->realm, realm);
}

// Adds a verified header to the run cache. ERR_UNREADABLE: the index no longer has the object's
// description. A caller that wants only bytes needs no description. Its entry then has generation
// 0, so that nobody uses it as a description.
static enum err info_add(struct store_worker *sw, const struct store_place *place,
                         const struct run_header *header, bool wants_object,
                         struct run_info **ret_info)
{
    char described[STORE_DESCRIBED_MAX];
    size_t len = 0;
    // segment_run_accept() has compared the header with the place.
    check(hash128_equal(header->hash, place->hash));
    struct store_object *object = NULL;
    if (place->is_described && index_described(&sw->store->index, &sw->reader, place->hash,
                                               place->generation, described, &len)) {
        object = index_described_object(header, place->generation, (struct span){described, len});
    } else if (!place->is_described || !wants_object) {
        object = store_object_from_header(header, place->is_described ? 0 : place->generation);
    }
    if (object == NULL) {
        return place->is_described ? ERR_UNREADABLE : ERR_CORRUPT;
    }
    *ret_info = run_cache_add(&sw->runs, place, object, header);
    store_object_unref(object);
    return ERR_OK;
}

// Returns the cached entry of the place's run, if it is of the same object and version.
static struct run_info *info_find(struct store_worker *sw, const struct store_place *place)
{
    struct run_info *info = run_cache_find(&sw->runs, place);
    if (info == NULL || info->etag_hash != place->etag_hash ||
        !hash128_equal(info->object->hash, place->hash) ||
        info->object->generation != place->generation ||
        info->unit_count != run_unit_count(place->payload_len)) {
        return NULL;
    }
    return info;
}

static void unmark_neighbour(const struct store_place *place, int fd)
{
    segment_unmark_neighbour(place->segment, place->header_offset, place->first_unit, fd);
}

static enum err read_nowait(const struct store_place *place, uint64_t offset, char *buf, size_t len)
{
    check(place->segment != NULL && len > 0);
    int fd = segment_borrow(place->segment);
    if (fd < 0) {
        return ERR_AGAIN; // opening the file may block
    }
    unmark_neighbour(place, fd);
    struct iovec iov = {buf, len};
    size_t got = 0;
    enum err err = disk_io_read_nowait(fd, &iov, 1, offset, &got);
    segment_return(place->segment);
    if (err == ERR_OK && got < len) {
        // The page cache has only a part of the bytes, or the file is too short. The general way
        // finds out which.
        return ERR_AGAIN;
    }
    return err;
}

// Finds the header in the run cache, or reads it without blocking. The entry is borrowed until the
// next call that adds an entry. On ERR_CORRUPT and ERR_IO the caller drops the run.
static enum err info_get_nowait(struct store_worker *sw, const struct store_place *place,
                                bool wants_object, struct run_info **ret_info)
{
    struct run_info *info = info_find(sw, place);
    if (info != NULL) {
        *ret_info = info;
        return ERR_OK;
    }
    check(place->header_len <= sizeof(sw->header_bytes));
    enum err err = ERR_CORRUPT;
    for (unsigned tries = 0; tries < 2 && err == ERR_CORRUPT; tries++) {
        err = read_nowait(place, place->header_offset, sw->header_bytes, place->header_len);
        struct run_header header;
        if (err == ERR_OK) {
            err = segment_run_accept((struct span){sw->header_bytes, place->header_len}, place,
                                     &header);
        }
        if (err == ERR_OK) {
            err = info_add(sw, place, &header, wants_object, &info);
        }
    }
    if (err == ERR_OK) {
        *ret_info = info;
    }
    return err;
}

enum err store_object_get(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object)
{
    struct store_worker *sw = store_worker_of(w);
    struct run_info *info = NULL;
    check(place->segment != NULL);
    enum err err = info_get_nowait(sw, place, true, &info);
    if (err == ERR_OK && !object_has_key(info->object, hash, realm, bucket, key)) {
        err = ERR_CORRUPT;
    }
    if (err == ERR_OK) {
        *ret_object = store_object_ref(info->object);
    } else if (err != ERR_AGAIN && err != ERR_UNREADABLE) {
        store_drop_place(store, place, place->hash, err);
    }
    return err;
}

// --- the small way

// Allocates a chunk for a client that is waiting. A used-up memory budget must not block that
// client, so the chunk may exceed the budget. It is counted nevertheless.
static struct chunk *chunk_for_read(void)
{
    struct chunk *chunk = chunk_new();
    return chunk != NULL ? chunk : chunk_new_forced();
}

// Reads the payload if the header is cached. Otherwise reads both at once, because they are
// adjacent.
static enum err read_small_once(struct store_worker *sw, const struct store_place *place,
                                struct chunk *chunk, struct run_info **ret_info,
                                struct span *ret_payload)
{
    struct run_info *info = info_find(sw, place);
    uint32_t begin = info != NULL ? place->payload_offset : place->header_offset;
    uint32_t head_len = place->payload_offset - begin;
    uint32_t len = head_len + place->payload_len;
    check(len <= CHUNK_SIZE);
    enum err err = len > 0 ? read_nowait(place, begin, chunk->data, len) : ERR_OK;
    if (err != ERR_OK) {
        return err;
    }
    chunk->len = len;
    if (info == NULL) {
        struct run_header header;
        err = segment_run_accept((struct span){chunk->data, head_len}, place, &header);
        err = err == ERR_OK ? info_add(sw, place, &header, true, &info) : ERR_CORRUPT;
        if (err != ERR_OK) {
            return err;
        }
    }
    struct span payload = {chunk->data + head_len, place->payload_len};
    if (payload.len > 0 && disk_crc32c(payload.ptr, payload.len) != info->unit_crc[0]) {
        return ERR_CORRUPT;
    }
    *ret_info = info;
    *ret_payload = payload;
    return ERR_OK;
}

enum err store_read_small(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object,
                          struct chunk **ret_chunk, struct span *ret_payload)
{
    struct store_worker *sw = store_worker_of(w);
    check(place->segment != NULL);
    check(place->payload_len <= STORE_SMALL_MAX);
    check(place->payload_offset - place->header_offset <= RUN_HEADER_MAX);
    struct chunk *chunk = chunk_for_read();
    struct run_info *info = NULL;
    enum err err = ERR_CORRUPT;
    for (unsigned tries = 0; tries < 2 && err == ERR_CORRUPT; tries++) {
        err = read_small_once(sw, place, chunk, &info, ret_payload);
    }
    if (err == ERR_OK && !object_has_key(info->object, hash, realm, bucket, key)) {
        err = ERR_CORRUPT;
    }
    if (err != ERR_OK) {
        chunk_unref(chunk);
        if (err != ERR_AGAIN && err != ERR_UNREADABLE) {
            store_drop_place(store, place, place->hash, err);
        }
        return err;
    }
    *ret_object = store_object_ref(info->object);
    *ret_chunk = chunk;
    return ERR_OK;
}

// --- the fast way

static void on_range_released(void *ctx)
{
    segment_unpin(ctx);
}

static int range_borrow(void *ctx)
{
    return segment_borrow(ctx);
}

static void range_give_back(void *ctx)
{
    segment_return(ctx);
}

// The checksum units that contain a given range of a payload.
struct read_units {
    uint32_t first, count;
    uint64_t begin; // offset of the first unit in the payload
};

static struct read_units units_of(uint64_t begin, uint64_t len)
{
    uint32_t first = (uint32_t)(begin / STORE_CHECKSUM_UNIT);
    uint32_t last = len > 0 ? (uint32_t)((begin + len - 1) / STORE_CHECKSUM_UNIT) : first;
    return (struct read_units){first, len > 0 ? last - first + 1 : 0,
                               (uint64_t)first * STORE_CHECKSUM_UNIT};
}

static bool range_is_good(const struct file_range *range, uint64_t offset, uint64_t len)
{
    check(offset >= range->check_offset);
    struct read_units units = units_of(offset - range->check_offset, len);
    return segment_is_verified(range->release_ctx, range->verify_unit + units.first, units.count);
}

bool store_range_ready(struct worker *w, struct store *store, const struct store_place *place,
                       uint64_t first_byte, uint64_t len, struct file_range *ret_range)
{
    check(place->segment != NULL);
    uint64_t run_begin = place->first_block * place->block_size_bytes;
    check(first_byte >= run_begin);
    check(len > 0);
    check(first_byte - run_begin + len <= place->payload_len);
    if (store->verify_always || place->payload_len < RUN_PACKED_MAX) {
        return false;
    }
    uint64_t begin = first_byte - run_begin;
    struct read_units units = units_of(begin, len);
    struct segment *segment = place->segment;
    struct run_info *info;
    // Without a header, this process is still writing the run.
    bool has_header = place->header_len > 0;
    if (!segment_is_verified(segment, place->first_unit + units.first, units.count) ||
        (has_header && info_get_nowait(store_worker_of(w), place, false, &info) != ERR_OK)) {
        return false;
    }
    int fd = segment_borrow(segment);
    if (fd < 0) {
        return false;
    }
    bool resident = disk_io_resident(fd, place->payload_offset + begin, len);
    segment_return(segment);
    if (!resident) {
        // The next read loads these units from the device, so it must verify them again.
        segment_set_verified(segment, place->first_unit + units.first, units.count, false);
        return false;
    }
    segment_pin_again(segment);
    *ret_range = (struct file_range){
        .was_ready = true,
        .fd = -1,
        .borrow = range_borrow,
        .give_back = range_give_back,
        .offset = place->payload_offset + begin,
        .len = len,
        .release = on_range_released,
        .release_ctx = segment,
        .is_good = range_is_good,
        .check_offset = place->payload_offset,
        .verify_unit = place->first_unit,
    };
    return true;
}

// --- the general way

struct read_state {
    char *header_bytes;
    struct run_info *info;
    int fd_plus_1;      // 1 + the descriptor that is borrowed; 0: none is borrowed
    bool is_direct;     // that descriptor reads past the page cache
    bool direct_failed; // so the page cache is read
};

static int read_fd(const struct store_read *read)
{
    return ((const struct read_state *)(const void *)read->engine_private)->fd_plus_1 - 1;
}

static struct read_state *read_state_of(struct store_read *read)
{
    static_assert(sizeof(struct read_state) <= sizeof(read->engine_private),
                  "fits what the door reserves");
    return (struct read_state *)(void *)read->engine_private;
}

static bool read_is_direct(const struct store_read *read)
{
    return ((const struct read_state *)(const void *)read->engine_private)->is_direct;
}

static void read_return(struct store_read *read)
{
    struct read_state *state = read_state_of(read);
    if (state->is_direct) {
        segment_return_direct(read->place.segment);
    } else if (state->fd_plus_1 != 0) {
        segment_return(read->place.segment);
    }
    state->fd_plus_1 = 0;
    state->is_direct = false;
}

static void read_finish(struct store_read *read, enum err err)
{
    struct read_state *state = read_state_of(read);
    check(err != ERR_OK || read->header || read->span_count > 0 || read->len == 0);
    check(err != ERR_OK || !read->header || read->object != NULL);
    read_return(read);
    free(state->header_bytes);
    run_cache_info_unref(state->info);
    *state = (struct read_state){0};
    if (err != ERR_OK) {
        for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
            chunk_unref(read->chunks[i]);
            read->chunks[i] = NULL;
        }
        read->span_count = 0;
        if (err == ERR_CORRUPT || err == ERR_IO) {
            store_drop_place(read->store, &read->place, read->place.hash, err);
        }
    }
    read->err = err;
    read->done(read);
}

static void read_op_start(struct store_read *read, int fd, unsigned iov_count, uint64_t offset,
                          void (*done)(struct disk_op *op))
{
    check(fd >= 0 && iov_count > 0 && iov_count <= ARRAY_LEN(read->iov));
    read->op.kind = DISK_READ;
    read->op.fd = fd;
    read->op.is_direct = read_is_direct(read);
    read->op.offset = offset;
    read->op.iov = read->iov;
    read->op.iov_count = iov_count;
    read->op.done = done;
    disk_io_start(read->worker, &read->op);
}

static struct read_units read_units_of(const struct store_read *read)
{
    return units_of(read->first_byte - read->place.first_block * read->place.block_size_bytes,
                    read->len);
}

static uint32_t unit_len(const struct store_place *place, uint32_t unit)
{
    return (uint32_t)min_u64(STORE_CHECKSUM_UNIT,
                             place->payload_len - (uint64_t)unit * STORE_CHECKSUM_UNIT);
}

static void on_payload_read(struct disk_op *op);
static void on_header_read(struct disk_op *op);
static void read_open(struct store_read *read);

// Returns whether the page cache has the units.
static bool read_is_resident(const struct store_read *read, const struct read_units *units)
{
    uint64_t end = min_u64(units->begin + (uint64_t)units->count * STORE_CHECKSUM_UNIT,
                           read->place.payload_len);
    return disk_io_resident(read_fd(read), read->place.payload_offset + units->begin,
                            end - units->begin);
}

// Returns whether the units of the place's run have verified marks. Shorter runs share pages.
static bool place_is_marked(const struct store_place *place)
{
    return place->payload_len >= RUN_PACKED_MAX;
}

// Allocates a chunk for each unit. If the memory budget is used up, shortens the read to the units
// that have one, but at least to the first one.
static void read_take_chunks(struct store_read *read)
{
    struct read_units units = read_units_of(read);
    for (uint32_t i = 0; i < units.count && read->chunks[i] == NULL; i++) {
        read->chunks[i] = i == 0 ? chunk_for_read() : chunk_new();
        if (read->chunks[i] == NULL) {
            uint64_t run_begin = read->place.first_block * read->place.block_size_bytes;
            uint64_t end_byte = run_begin + units.begin + (uint64_t)i * STORE_CHECKSUM_UNIT;
            check(end_byte > read->first_byte && end_byte < read->first_byte + read->len);
            read->len = end_byte - read->first_byte;
            return;
        }
    }
}

// Reads the units into chunks. A direct read takes whole pages: the last of a run's payload goes on
// after its end.
static void read_units_start(struct store_read *read)
{
    read_take_chunks(read);
    struct read_units units = read_units_of(read);
    for (uint32_t i = 0; i < units.count; i++) {
        uint64_t len = unit_len(&read->place, units.first + i);
        read->iov[i] =
            (struct iovec){read->chunks[i]->data,
                           read_is_direct(read) ? align_up_u64(len, RUN_PAYLOAD_ALIGN) : len};
    }
    read_op_start(read, read_fd(read), units.count, read->place.payload_offset + units.begin,
                  on_payload_read);
}

static void read_through_page_cache(struct store_read *read, bool is_resident)
{
    check(!read_is_direct(read));
    read->source = is_resident ? STORE_READ_MEMORY : STORE_READ_DEVICE;
    unmark_neighbour(&read->place, read_fd(read));
    read_units_start(read);
}

// Continues when a read past the page cache has failed or cannot begin.
static void read_after_direct(struct store_read *read)
{
    read_return(read);
    read_state_of(read)->direct_failed = true;
    read_open(read);
}

static void on_direct_opened(void *ctx, enum err err, int fd)
{
    struct store_read *read = ctx;
    struct read_state *state = read_state_of(read);
    check(state->fd_plus_1 == 0 && !state->is_direct && (err != ERR_OK || fd >= 0));
    if (err == ERR_OK) {
        state->fd_plus_1 = fd + 1;
        state->is_direct = true;
    }
    if (read->cancelled) {
        read_finish(read, ERR_CANCELLED);
    } else if (err == ERR_OK) {
        read->source = STORE_READ_DIRECT;
        read_units_start(read);
    } else {
        read_after_direct(read);
    }
}

// Returns false if the segment cannot be read like that.
static bool read_past_page_cache(struct store_read *read)
{
    struct segment *segment = read->place.segment;
    int fd = segment_borrow_direct(segment);
    if (fd < 0 && !segment_borrow_direct_start(read->worker, segment, on_direct_opened, read)) {
        return false;
    }
    read_return(read);
    if (fd >= 0) {
        on_direct_opened(read, ERR_OK, fd);
    }
    return true;
}

static void read_payload(struct store_read *read)
{
    struct read_units units = read_units_of(read);
    const struct store_place *place = &read->place;
    check(!read->header && units.count > 0 && units.count <= ARRAY_LEN(read->chunks));
    check(read_state_of(read)->info != NULL);
    bool is_marked = place_is_marked(place);
    bool is_resident = is_marked && read_is_resident(read, &units);
    if (is_marked && !is_resident) {
        // Otherwise another worker could send the units from the page cache before a read has
        // verified them there. Some file systems load pages for a direct read, too.
        segment_set_verified(place->segment, place->first_unit + units.first, units.count, false);
    }
    if (!is_marked || is_resident || read_state_of(read)->direct_failed ||
        page_admission_take(&read->store->page_admission, place->segment_number,
                            place->first_unit + units.first, units.count * STORE_CHECKSUM_UNIT) ||
        !read_past_page_cache(read)) {
        read_through_page_cache(read, is_resident);
    }
}

// Selects the requested bytes in the units that were read.
static void read_cut_spans(struct store_read *read, const struct read_units *units)
{
    uint64_t begin = read->first_byte - read->place.first_block * read->place.block_size_bytes;
    uint64_t end = begin + read->len;
    for (uint32_t i = 0; i < units->count; i++) {
        uint64_t unit_begin = (uint64_t)(units->first + i) * STORE_CHECKSUM_UNIT;
        uint64_t from = max_u64(begin, unit_begin);
        uint64_t to = min_u64(end, unit_begin + STORE_CHECKSUM_UNIT);
        check(from < to && read->chunks[i] != NULL);
        read->spans[i] =
            (struct span){read->chunks[i]->data + (from - unit_begin), (size_t)(to - from)};
        read->chunks[i]->len = unit_len(&read->place, units->first + i);
    }
    read->span_count = units->count;
}

static enum err read_verify(const struct store_read *read, const struct read_units *units,
                            const struct run_info *info)
{
    uint64_t wanted = 0;
    check(units->count > 0 && units->count <= ARRAY_LEN(read->chunks));
    for (uint32_t i = 0; i < units->count; i++) {
        wanted += unit_len(&read->place, units->first + i);
    }
    // A direct read may read more bytes than the payload has.
    if (read->op.result < (int64_t)wanted || units->first + units->count > info->unit_count) {
        return ERR_CORRUPT;
    }
    for (uint32_t i = 0; i < units->count; i++) {
        uint32_t unit = units->first + i;
        if (disk_crc32c(read->chunks[i]->data, unit_len(&read->place, unit)) !=
            info->unit_crc[unit]) {
            return ERR_CORRUPT;
        }
    }
    return ERR_OK;
}

static void on_payload_read(struct disk_op *op)
{
    struct store_read *read = container_of(op, struct store_read, op);
    check(read->span_count == 0 && read_state_of(read)->info != NULL);
    if (read->cancelled) {
        read_finish(read, ERR_CANCELLED);
        return;
    }
    struct read_units units = read_units_of(read);
    bool was_direct = read_is_direct(read);
    enum err err = op->err;
    if (err == ERR_OK) {
        err = read_verify(read, &units, read_state_of(read)->info);
    }
    if (was_direct && err != ERR_OK) {
        if (disk_op_is_refused(op)) {
            segment_direct_refused(read->place.segment, op);
        }
        read_after_direct(read);
        return;
    }
    if (place_is_marked(&read->place) && !was_direct && (err == ERR_OK || err == ERR_CORRUPT)) {
        segment_set_verified(read->place.segment, read->place.first_unit + units.first, units.count,
                             err == ERR_OK);
    }
    if (err == ERR_CORRUPT && !read->repeated) {
        read->repeated = true;
        read_through_page_cache(read, false);
        return;
    }
    if (err == ERR_OK) {
        read_cut_spans(read, &units);
    }
    read_finish(read, err);
}

// Continues when the header is known: returns its object, or reads the payload.
static void read_with_info(struct store_read *read, struct run_info *info)
{
    if (read->header) {
        bool same = object_has_key(info->object, read->hash, read->realm, read->bucket, read->key);
        if (same) {
            read->object = store_object_ref(info->object);
        }
        read_finish(read, same ? ERR_OK : ERR_CORRUPT);
        return;
    }
    read_state_of(read)->info = run_cache_info_ref(info);
    if (read->len == 0) {
        read_finish(read, ERR_OK);
        return;
    }
    read_payload(read);
}

static void read_header(struct store_read *read)
{
    read->iov[0] = (struct iovec){read_state_of(read)->header_bytes, read->place.header_len};
    unmark_neighbour(&read->place, read_fd(read));
    read_op_start(read, read_fd(read), 1, read->place.header_offset, on_header_read);
}

static void on_header_read(struct disk_op *op)
{
    struct store_read *read = container_of(op, struct store_read, op);
    struct read_state *state = read_state_of(read);
    check(state->header_bytes != NULL && state->info == NULL);
    if (read->cancelled || op->err != ERR_OK) {
        read_finish(read, read->cancelled ? ERR_CANCELLED : op->err);
        return;
    }
    struct run_header header;
    struct span bytes = {state->header_bytes, (size_t)op->result};
    struct run_info *info = NULL;
    enum err err = segment_run_accept(bytes, &read->place, &header);
    if (err == ERR_OK) {
        err = info_add(store_worker_of(read->worker), &read->place, &header, read->header, &info);
    }
    if (err == ERR_OK) {
        read_with_info(read, info);
    } else if (err == ERR_UNREADABLE) {
        read_finish(read, err);
    } else if (!read->repeated) {
        read->repeated = true;
        read_header(read);
    } else {
        read_finish(read, ERR_CORRUPT);
    }
}

// Continues when the segment is open: finds the header in the run cache, or reads it.
static void read_begin(struct store_read *read)
{
    struct read_state *state = read_state_of(read);
    if (state->info != NULL) { // a read past the page cache has failed
        read_payload(read);
        return;
    }
    struct run_info *info = info_find(store_worker_of(read->worker), &read->place);
    if (info != NULL) {
        read_with_info(read, info);
    } else {
        check(state->header_bytes == NULL && state->fd_plus_1 > 0);
        state->header_bytes = malloc(read->place.header_len);
        check(state->header_bytes != NULL);
        read_header(read);
    }
}

static void on_read_opened(void *ctx, enum err err, int fd)
{
    struct store_read *read = ctx;
    check(read_state_of(read)->fd_plus_1 == 0 && (err != ERR_OK || fd >= 0));
    if (err == ERR_OK) {
        read_state_of(read)->fd_plus_1 = fd + 1;
    }
    if (read->cancelled || err != ERR_OK) {
        read_finish(read, read->cancelled ? ERR_CANCELLED : err);
        return;
    }
    read_begin(read);
}

// Borrows the descriptor for the page cache.
static void read_open(struct store_read *read)
{
    int fd = segment_borrow(read->place.segment);
    if (fd < 0) {
        segment_borrow_start(read->worker, read->place.segment, on_read_opened, read);
    } else {
        on_read_opened(read, ERR_OK, fd);
    }
}

static void on_read_task(struct task *task)
{
    struct store_read *read = container_of(task, struct store_read, task);
    check(read_state_of(read)->fd_plus_1 == 0 && read->span_count == 0);
    if (read->cancelled) {
        read_finish(read, ERR_CANCELLED);
        return;
    }
    read_open(read);
}

void store_read_start(struct worker *w, struct store_read *read)
{
    check(read->place.segment != NULL);
    check(read->done != NULL && read->place.header_len <= RUN_HEADER_MAX);
    uint64_t run_begin = read->place.first_block * read->place.block_size_bytes;
    check(read->header || read->len <= STORE_READ_MAX);
    check(read->header || (read->first_byte >= run_begin &&
                           read->first_byte - run_begin + read->len <= read->place.payload_len));
    read->worker = w;
    memset(read->chunks, 0, sizeof(read->chunks));
    memset(read->engine_private, 0, sizeof(read->engine_private));
    memset(&read->op, 0, sizeof(read->op));
    read->span_count = 0;
    read->object = NULL;
    read->err = ERR_OK;
    read->cancelled = read->repeated = false;
    worker_task_init(&read->task, on_read_task);
    // The task runs in this turn of the loop. The disk operations that it starts are submitted in
    // the same turn.
    worker_defer(w, &read->task);
}

void store_read_cancel(struct store_read *read)
{
    check(read->worker != NULL && read->done != NULL);
    read->cancelled = true;
    disk_io_cancel(&read->op);
}

bool store_is_in_memory(struct worker *w, const struct store_place *place, uint64_t first_byte,
                        uint64_t len)
{
    uint64_t run_begin = place->first_block * place->block_size_bytes;
    check(place->segment != NULL && first_byte >= run_begin);
    struct read_units units = units_of(first_byte - run_begin, len);
    uint64_t end =
        min_u64(units.begin + (uint64_t)units.count * STORE_CHECKSUM_UNIT, place->payload_len);
    int fd = segment_borrow(place->segment);
    if (fd < 0) {
        return false; // opening the file may wait for the disk
    }
    bool has_header = info_find(store_worker_of(w), place) != NULL ||
                      disk_io_resident(fd, place->header_offset, place->header_len);
    bool is_there =
        has_header && disk_io_resident(fd, place->payload_offset + units.begin, end - units.begin);
    segment_return(place->segment);
    return is_there;
}

// --- late reads

static uint64_t read_bytes(const struct store_read *read)
{
    return read->header ? read->place.header_len : read->len;
}

void store_read_late(const struct store_read *read)
{
    disk_read_late(&read->store->disk, read_bytes(read));
}

void store_read_late_over(const struct store_read *read)
{
    disk_read_late_over(&read->store->disk);
}

void store_read_in_time(const struct store_read *read)
{
    disk_read_in_time(&read->store->disk, read_bytes(read));
}

bool store_is_slow(const struct store *store)
{
    return disk_is_slow(&store->disk);
}

bool store_is_stuck(const struct store *store)
{
    return disk_is_stuck(&store->disk);
}

bool store_takes_read(const struct store_read *read)
{
    return disk_takes_read(&read->store->disk);
}

bool store_times_reads(void)
{
    return !store_fault_is_steady();
}
