// SPDX-License-Identifier: Apache-2.0
// Refuses symbolic links in the cache directory; see store_links.c.
#ifndef FOREBAY_STORE_STORE_LINKS_H
#define FOREBAY_STORE_STORE_LINKS_H

#include <stdbool.h>

#include "base/bytes.h"
#include "base/error.h"

// Returns ERR_FORMAT, with one line in ret_why, if a file or folder that Forebay opens in the
// directory is a link.
enum err store_links_refuse(int dir_fd, const char *path, struct buf *ret_why) MUST_USE;
bool store_links_is_link(int folder_fd, const char *name);

#endif
