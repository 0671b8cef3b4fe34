// SPDX-License-Identifier: Apache-2.0
// Checks an origin's answer to a fetch after net/response_head.c has found its head well formed:
// whether it answers the request, which version it has, and whether it may be stored. Pure: no I/O,
// no clock; memory only from the head's arena.
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
    uint64_t suffix;      // if not 0: the last `suffix` bytes, not `first` to `last`
    struct span if_match;
    bool of_store; // it is an S3 store, even if its headers do not show that
};

struct response_answer {
    // The size of the whole object, and the part of it in the body, which is 0 bytes for HEAD.
    uint64_t size_bytes, body_first, body_len;
    struct span etag, version_id;
    bool weak_or_no_etag;
    enum origin_forbids forbids; // why it must not be stored
    time_t last_modified;
    struct headers headers, checksums;
};

// Judges a 200 or 206: status, range, length and ETag must match the request.
//
// - ERR_ORIGIN_CHANGED: the answer's ETag differs from If-Match.
// - ERR_ORIGIN_UNFIT: the answer may be correct, but cannot fill a cache. It has no length, or has
//   the whole object although a range was requested, or its range has no total or is shorter than
//   requested.
// - ERR_ORIGIN_PROTOCOL: the answer contradicts itself, has no valid range, or has bytes that were
//   not requested.
enum err response_answer_judge(struct response_head *h, const struct response_asked *asked,
                               struct response_answer *ret_answer) MUST_USE;
// Returns true if the body is all or part of one version with a usable ETag. Sets *ret_etag and the
// position of the body's first byte in the object.
bool response_answer_names_part(const struct response_head *h, struct span *ret_etag,
                                uint64_t *ret_first);
// Returns the size from "Content-Range: bytes */N" of a 416. Returns false without one.
bool response_answer_unsatisfied_size(const struct response_head *h, uint64_t *ret_size);

#endif
