// SPDX-License-Identifier: Apache-2.0
// Access traces: the requests of training, several jobs, one-time scans and popular sets. All are
// generated from their names, so that the same name, block count and seed always give the same
// requests.
#ifndef FOREBAY_TESTS_TOOLS_TRACES_H
#define FOREBAY_TESTS_TOOLS_TRACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_COUNTS 1u  // a request of the measured part
#define TRACE_COUNTS2 2u // of a part of it, which some traces set apart
#define TRACE_PART 4u    // an eighth of a block is wanted, and the others soon

struct trace {
    char name[64];
    uint32_t request_count, request_cap, block_count, first_counted;
    uint32_t *blocks;    // of each request
    uint8_t *flags;      // of each request
    uint32_t *len_units; // of each block; NULL: all are one unit
    uint64_t base_units; // what a share of 1 stands for
};

extern const char *const trace_names[]; // NULL at the end

// False: no such name.
bool trace_make(struct trace *trace, const char *name, uint32_t n, uint64_t seed);
#define TRACE_BASE_MAX (1ull << 50)
#define TRACE_BLOCK_BYTES_MAX (1u << 30)
#define TRACE_REQUESTS_MAX (1u << 30)
// The format: a line with the base in bytes, then for each request the block number, the bytes of
// the block, and the sum of the flags above. Returns NULL, or the fault; *ret_line is its line (0:
// the whole file).
const char *trace_read(struct trace *trace, const char *path, unsigned *ret_line);
void trace_done(struct trace *trace);
uint64_t trace_checksum(const struct trace *trace);
uint32_t trace_len(const struct trace *trace, uint32_t block);
bool trace_is_of_one_length(const struct trace *trace);
// Returns the hits of the counted requests for a cache of this size that knows the future. If
// blocks have several lengths, returns an upper bound.
uint64_t trace_optimum(const struct trace *trace, uint64_t capacity_units);

#endif
