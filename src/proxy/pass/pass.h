// SPDX-License-Identifier: Apache-2.0
// A request that the cache does not answer, and kept listings.
#ifndef FOREBAY_PROXY_PASS_PASS_H
#define FOREBAY_PROXY_PASS_PASS_H

#include "proxy/core/core.h"

// --- serve_pass.c --------------------------------------------------------------------------------

void serve_pass_done(struct request *r); // on_done: cancels the relay

// --- list_cache.c --------------------------------------------------------------------------------

void list_cache_free(struct proxy_worker *pw); // when the worker ends
void list_cache_drop_key(struct proxy_worker *pw, const struct object_key *key);
// Call it when the worker has new cache rules. Drops the pages that the new rules do not allow.
void list_cache_apply_rules(struct proxy_worker *pw);

// --- pass_doubt.c --------------------------------------------------------------------------------

void pass_doubt_free_all(struct proxy_worker *pw); // when the worker ends

#endif
