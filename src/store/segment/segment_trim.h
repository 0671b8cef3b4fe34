// SPDX-License-Identifier: Apache-2.0
// What is left over of a full segment goes back to the file system. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_TRIM_H
#define FOREBAY_STORE_SEGMENT_TRIM_H

#include "store/segment/segment_log.h"

#define SEGMENT_TRIM_SEGMENTS_MIN 8u // that fit the cache: with fewer nothing is given back

// Of a sealed segment of which nothing is held, before its table is written behind it: gives back
// what lies between its last run and the room of a table of so many rows. Bytes given; 0: too
// little, or the file system cannot. May block.
uint32_t segment_trim(struct segment *segment, int fd, uint32_t row_count) MUST_USE;
// The seal that says so is written: others may have the room.
void segment_trim_given(struct segment *segment, uint32_t bytes);

#endif
