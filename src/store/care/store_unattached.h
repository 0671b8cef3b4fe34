// SPDX-License-Identifier: Apache-2.0
// Tasks of a process that could not use its cache directory; see store_unattached.c.
#ifndef FOREBAY_STORE_STORE_UNATTACHED_H
#define FOREBAY_STORE_STORE_UNATTACHED_H

#include "base/error.h"

struct store_disk;
// Makes sure that no later process trusts an index in the directory. On an error one may, so the
// caller must not send the write. Blocks. Each call tries again.
enum err store_unattached_disown(struct store_disk *disk) MUST_USE;

#endif
