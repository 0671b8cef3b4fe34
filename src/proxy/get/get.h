// SPDX-License-Identifier: Apache-2.0
// A GET or HEAD that the cache may answer.
#ifndef FOREBAY_PROXY_GET_GET_H
#define FOREBAY_PROXY_GET_GET_H

#include "proxy/core/core.h"

// --- serve_get.c ---------------------------------------------------------------------------------

// on_done, first: what is said of the blocks of a reply is true of those that were sent.
void serve_get_sum_up(struct request *r);
// on_done: gives back everything, leaves fills. False: a disk read is still out, request_recycle()
// follows.
bool serve_get_done(struct request *r);
struct span
serve_get_version(const struct request *r); // ETag of the version answered with; empty: none

// --- readahead.c ---------------------------------------------------------------------------------

void readahead_free(struct readahead *readahead); // with its worker; NULL is fine

#endif
