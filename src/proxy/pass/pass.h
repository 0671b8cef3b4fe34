// SPDX-License-Identifier: Apache-2.0
// Handles requests that the cache does not answer, and keeps listings.
#ifndef FOREBAY_PROXY_PASS_PASS_H
#define FOREBAY_PROXY_PASS_PASS_H

#include "proxy/core/core.h"

// --- serve_pass.c --------------------------------------------------------------------------------

void serve_pass_done(struct request *r); // called in on_done; cancels or detaches the relay

// --- list_cache.c --------------------------------------------------------------------------------

void list_cache_free(struct proxy_worker *pw); // called when the worker ends
void list_cache_drop_key(struct proxy_worker *pw, const struct object_key *key);
// Called when the worker has new cache rules. Drops the pages that they do not allow.
void list_cache_apply_rules(struct proxy_worker *pw);

// --- pass_doubt.c --------------------------------------------------------------------------------

void pass_doubt_free_all(struct proxy_worker *pw); // called when the worker ends

#endif
