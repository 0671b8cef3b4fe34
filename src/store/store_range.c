// SPDX-License-Identifier: Apache-2.0
// The fast way of a hit: bytes that are verified and in memory leave as a range of the segment's
// file. Each unit is verified once per process; see segment_log.c. Runs on the worker that asks.
#include "store/store_private.h"

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

static bool range_is_good(const struct file_range *range, uint64_t offset, uint64_t len)
{
    check(offset >= range->check_offset);
    struct store_units units = store_units_of(offset - range->check_offset, len);
    return segment_is_verified(range->release_ctx, range->verify_unit + units.first, units.count);
}

// Some bytes of a longer range may be unverified or have left memory. Then this many bytes are
// looked at alone.
#define RANGE_PART (512u << 10)

static bool is_verified(const struct store_place *place, uint64_t begin, uint64_t len)
{
    struct store_units units = store_units_of(begin, len);
    return segment_is_verified(place->segment, place->first_unit + units.first, units.count);
}

// Returns how many of the `len` bytes of the payload are verified and resident: all of them, or
// those of the first part, or none. The first part is verified.
static uint64_t ready_bytes(int fd, const struct store_place *place, uint64_t begin, uint64_t len)
{
    uint64_t part = min_u64(len, RANGE_PART), offset = place->payload_offset + begin;
    if (len > part && is_verified(place, begin, len) && disk_io_resident(fd, offset, len)) {
        return len;
    }
    if (disk_io_resident(fd, offset, part)) {
        return part;
    }
    // The next read loads these units from the device, so it must verify them again.
    struct store_units units = store_units_of(begin, part);
    segment_set_verified(place->segment, place->first_unit + units.first, units.count, false);
    return 0;
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
    struct segment *segment = place->segment;
    // Without a header, this process is still writing the run.
    bool has_header = place->header_len > 0;
    if (!is_verified(place, begin, min_u64(len, RANGE_PART)) ||
        (has_header && store_read_header(store_worker_of(w), place) != ERR_OK)) {
        return false;
    }
    int fd = segment_borrow(segment);
    if (fd < 0) {
        return false;
    }
    uint64_t ready = ready_bytes(fd, place, begin, len);
    segment_return(segment);
    if (ready == 0) {
        return false;
    }
    segment_pin_again(segment);
    *ret_range = (struct file_range){
        .was_ready = true,
        .fd = -1,
        .borrow = range_borrow,
        .give_back = range_give_back,
        .offset = place->payload_offset + begin,
        .len = ready,
        .release = on_range_released,
        .release_ctx = segment,
        .is_good = range_is_good,
        .check_offset = place->payload_offset,
        .verify_unit = place->first_unit,
    };
    return true;
}
