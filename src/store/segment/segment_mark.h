// SPDX-License-Identifier: Apache-2.0
// Marks a run on disk as bad. Blocks, so never on a worker.
#ifndef FOREBAY_STORE_SEGMENT_MARK_H
#define FOREBAY_STORE_SEGMENT_MARK_H

#include "store/segment/segment_format.h"

// Rewrites the run's header so that no scan finds the run, once `fd` is synced. ERR_OK also if no
// such run is at that place. place->hash is that of its key.
enum err segment_mark_bad(int fd, const struct store_place *place) MUST_USE;

#endif
