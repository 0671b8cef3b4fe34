// SPDX-License-Identifier: Apache-2.0
// A GET or HEAD that the cache may answer.
#ifndef FOREBAY_PROXY_GET_GET_H
#define FOREBAY_PROXY_GET_GET_H

#include "proxy/core/core.h"

// --- serve_get.c ---------------------------------------------------------------------------------

// Called first in on_done. Sets r->blocks_hit and r->result from the bytes that were sent.
void serve_get_sum_up(struct request *r);
// Called in on_done. Releases everything and leaves the runs and the disk read.
void serve_get_done(struct request *r);
struct span
serve_get_version(const struct request *r); // ETag of the version in the reply; empty: none

// --- readahead.c ---------------------------------------------------------------------------------

void readahead_free(struct readahead *readahead); // called when the worker ends; NULL is fine

#endif
