// SPDX-License-Identifier: Apache-2.0
// Duties of a process that could not use its directory; see store_unattached.c.
#ifndef FOREBAY_STORE_STORE_UNATTACHED_H
#define FOREBAY_STORE_STORE_UNATTACHED_H

#include "base/error.h"

struct store_disk;
// ERR_OK: no later process will trust an index in the directory. Otherwise one may, and the caller
// must not make the index untrue. Blocks; each call tries again.
enum err store_unattached_disown(struct store_disk *disk) MUST_USE;

#endif
