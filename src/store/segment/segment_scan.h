// SPDX-License-Identifier: Apache-2.0
// Finds the runs of a segment without the index. Pure but for the reads it is given; any thread.
#ifndef FOREBAY_STORE_SEGMENT_SCAN_H
#define FOREBAY_STORE_SEGMENT_SCAN_H

#include "store/segment/segment_format.h"

struct segment_scan {
    // Fills `buf` with `len` bytes of the segment; never asked past size_bytes. Bytes that cannot
    // be read come back as zeros (the scan goes on behind them).
    void (*read)(void *ctx, uint64_t offset, char *buf, size_t len);
    // Next offset >= `offset` where there may be data; NULL when that is not known.
    uint64_t (*next_data)(void *ctx, uint64_t offset);
    // A whole run header at its place; its spans live until the call returns. False stops the scan.
    bool (*on_run)(void *ctx, const struct run_header *header);
    void *ctx;    // of on_run
    void *io_ctx; // of the other two
    uint32_t number;
    uint64_t salt;
    uint64_t size_bytes;
};

struct segment_scan_result {
    uint32_t end_offset; // behind everything found: where writing may go on
    uint32_t unit_count; // checksum units given out so far
    uint32_t run_count;
    uint32_t torn_count; // intents without a header
    bool is_partial;     // something could not be read: set by who reads
};

// ERR_NO_MEMORY, ERR_CANCELLED (on_run said stop).
enum err segment_scan_run(const struct segment_scan *scan,
                          struct segment_scan_result *ret_result) MUST_USE;

#endif
