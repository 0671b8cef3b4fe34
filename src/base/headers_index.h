// SPDX-License-Identifier: Apache-2.0
// Finds headers by name in one step each. A request may hold hundreds of headers and name hundreds
// of them in its signature; walking the list for each name would let small requests cost
// milliseconds. A list of usual length is walked, which costs less than an index. A plain value on
// the stack; one thread.
#ifndef FOREBAY_BASE_HEADERS_INDEX_H
#define FOREBAY_BASE_HEADERS_INDEX_H

#include <stdint.h>

#include "base/headers.h"

#define HEADERS_INDEX_BUCKETS 128u
#define HEADERS_INDEX_NONE UINT16_MAX
#define HEADERS_INDEX_WALKED 32u // headers up to which the list is walked

struct headers_index {
    const struct headers *headers;         // must not change while the index is used
    uint16_t first[HEADERS_INDEX_BUCKETS]; // both unused where the list is walked
    uint16_t next[HEADERS_MAX];
};

void headers_index_build(struct headers_index *index, const struct headers *headers);
// Position of the first header of that name, case ignored; HEADERS_INDEX_NONE: there is none.
unsigned headers_index_find(const struct headers_index *index, struct span name);
// Position of the next header with the name of the one at `position`, in order of arrival.
unsigned headers_index_next(const struct headers_index *index, unsigned position);

#endif
