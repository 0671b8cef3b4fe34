// SPDX-License-Identifier: Apache-2.0
// Finds a header by name in one step. A request may have hundreds of headers, and may name hundreds
// of them in its signature. If each name were searched from the start of the list, a small request
// could cost milliseconds. A list of usual length is still searched, because that costs less than
// building an index. A plain value on the stack; one thread.
#ifndef FOREBAY_BASE_HEADERS_INDEX_H
#define FOREBAY_BASE_HEADERS_INDEX_H

#include <stdint.h>

#include "base/headers.h"

#define HEADERS_INDEX_BUCKETS 128u
#define HEADERS_INDEX_NONE UINT16_MAX
// up to this many headers, the list is searched and no index is built
#define HEADERS_INDEX_WALKED 32u

struct headers_index {
    const struct headers *headers;         // must not change while the index is used
    uint16_t first[HEADERS_INDEX_BUCKETS]; // both arrays are unused if the list is searched
    uint16_t next[HEADERS_MAX];
};

void headers_index_build(struct headers_index *index, const struct headers *headers);
// Returns the position of the first header of that name, ignoring case, or HEADERS_INDEX_NONE.
unsigned headers_index_find(const struct headers_index *index, struct span name);
// Returns the position of the next header with the same name as the one at `position`.
unsigned headers_index_next(const struct headers_index *index, unsigned position);

#endif
