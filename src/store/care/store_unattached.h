// SPDX-License-Identifier: Apache-2.0
// What a process that could not use its directory must do about it, see store_unattached.c.
#ifndef FOREBAY_STORE_STORE_UNATTACHED_H
#define FOREBAY_STORE_STORE_UNATTACHED_H

#include "base/error.h"

struct store_disk;
// ERR_OK: no later process believes an index that lies in the directory. Otherwise one may, and
// what would make it untrue must not be done. Blocks; tries anew with each call.
enum err store_unattached_disown(struct store_disk *disk) MUST_USE;

#endif
