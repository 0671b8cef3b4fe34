// SPDX-License-Identifier: Apache-2.0
// Finds the runs of a segment without the index. Pure except for the read callbacks; any thread.
#ifndef FOREBAY_STORE_SEGMENT_SCAN_H
#define FOREBAY_STORE_SEGMENT_SCAN_H

#include "store/segment/segment_format.h"

struct segment_scan {
    // Fills `buf` with `len` bytes of the segment, all below size_bytes. Sets bytes that cannot be
    // read to zero, so that the scan continues after them.
    void (*read)(void *ctx, uint64_t offset, char *buf, size_t len);
    // Returns the next offset >= `offset` that may hold data. NULL if the caller cannot tell.
    uint64_t (*next_data)(void *ctx, uint64_t offset);
    // Called for each complete run header that states its own offset. The header's spans are valid
    // until the call returns. Returns false to stop the scan.
    bool (*on_run)(void *ctx, const struct run_header *header);
    void *ctx;    // argument of on_run()
    void *io_ctx; // argument of the other two callbacks
    uint32_t number;
    uint64_t salt;
    uint64_t size_bytes;
};

struct segment_scan_result {
    uint32_t end_offset; // offset after everything that was found, where writes may continue
    uint32_t unit_count; // checksum units used so far
    uint32_t run_count;
    uint32_t torn_count; // number of intents without a run header: incomplete runs
    bool is_partial;     // some bytes could not be read; the caller sets it
};

// Scans the segment. Returns ERR_NO_MEMORY, or ERR_CANCELLED if on_run() returned false.
enum err segment_scan_run(const struct segment_scan *scan,
                          struct segment_scan_result *ret_result) MUST_USE;

#endif
