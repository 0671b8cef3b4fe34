// SPDX-License-Identifier: Apache-2.0
// Marks a run on disk as bad. Blocks; never on a worker.
#ifndef FOREBAY_STORE_SEGMENT_MARK_H
#define FOREBAY_STORE_SEGMENT_MARK_H

#include "store/segment/segment_format.h"

// What no scan will find any more once `fd` is synced. ERR_OK also when there is no such run at
// that place; place->hash is its key's.
enum err segment_mark_bad(int fd, const struct store_place *place) MUST_USE;

#endif
