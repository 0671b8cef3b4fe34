// SPDX-License-Identifier: Apache-2.0
// Remembers the default origin of the last start. See state_origin.c.
#ifndef FOREBAY_STORE_STATE_STATE_ORIGIN_H
#define FOREBAY_STORE_STATE_STATE_ORIGIN_H

#include "store/disk/disk.h"

#define STATE_ORIGIN_MAX 4095u

// Notes the default origin of this start in an open directory. Sets ret_former to the one that the
// last start has noted, if it is another, else to "".
void state_origin_exchange(const struct store_dir *dir, const char *now,
                           char ret_former[STATE_ORIGIN_MAX + 1]);

#endif
