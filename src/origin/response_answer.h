// SPDX-License-Identifier: Apache-2.0
// Judges an origin's answer to a fetch, once net/response_head.c has found its head well formed:
// does it answer the request, which version is it, and may it be stored? Pure: no I/O, no clock;
// memory only from the head's arena.
#ifndef FOREBAY_ORIGIN_RESPONSE_ANSWER_H
#define FOREBAY_ORIGIN_RESPONSE_ANSWER_H

#include <time.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/headers.h"
#include "net/net.h"
#include "origin/origin.h"

struct response_asked {
    bool head, has_range;
    uint64_t first, last; // last UINT64_MAX: to the end
    uint64_t suffix;      // instead of these: bytes at the end; 0: not used
    struct span if_match;
    bool of_store; // the origin is a store, whatever its headers say
};

struct response_answer {
    uint64_t size_bytes, body_first, body_len; // of the body that follows; 0 for HEAD
    struct span etag, version_id;
    bool weak_or_no_etag;
    enum origin_forbids forbids; // why it must not be stored
    time_t last_modified;
    struct headers headers, checksums;
};

// Judges a 200 or 206: status, range, length and ETag must match the request.
//
// - ERR_ORIGIN_CHANGED: its ETag differs from If-Match.
// - ERR_ORIGIN_UNFIT: it may be true, but cannot fill a cache. It has no length, or is the whole
//   object for a range, or its range has no total or is shorter than requested.
// - ERR_ORIGIN_PROTOCOL: it contradicts itself, or names no bytes, or bytes that were not
//   requested.
enum err response_answer_judge(struct response_head *h, const struct response_asked *asked,
                               struct response_answer *ret_answer) MUST_USE;
// Returns true, with ETag and first byte, if the body is all or part of one version with a usable
// ETag.
bool response_answer_names_part(const struct response_head *h, struct span *ret_etag,
                                uint64_t *ret_first);
// Returns the size from "Content-Range: bytes */N" of a 416. Returns false without one.
bool response_answer_unsatisfied_size(const struct response_head *h, uint64_t *ret_size);

#endif
