// SPDX-License-Identifier: Apache-2.0
// Returns unused bytes of a full segment to the file system. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_TRIM_H
#define FOREBAY_STORE_SEGMENT_TRIM_H

#include "store/segment/segment_log.h"

#define SEGMENT_TRIM_SEGMENTS_MIN 8u // a cache of fewer segments is not trimmed

// Punches a hole between the last run and the room for a table of `row_count` rows. The segment is
// full, has no holds, and its table is not written yet. Returns the number of bytes freed. Returns
// 0 if they are too few or the file system cannot punch holes. May block.
uint32_t segment_trim(struct segment *segment, int fd, uint32_t row_count) MUST_USE;
// Makes the trimmed bytes available to other segments. Called after the seal that records them was
// written.
void segment_trim_given(struct segment *segment, uint32_t bytes);

#endif
