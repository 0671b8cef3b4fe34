// SPDX-License-Identifier: Apache-2.0
// Checks an origin's answer to a fetch: whether it answers the request, which version it has, and
// whether it may be stored. net/response_head.c has already found its head well formed. Pure: no
// I/O and no clock; memory comes only from the head's arena.
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
    uint64_t first, last; // If `last` is UINT64_MAX, the range reaches to the end.
    uint64_t suffix;      // If not 0, the range is the last `suffix` bytes instead.
    struct span if_match;
    bool of_store; // Forebay knows that this is S3, whatever its headers are.
};

struct response_answer {
    // The size of the whole object, and the part of it that the body has. For HEAD, body_len is 0.
    uint64_t size_bytes, body_first, body_len;
    struct span etag, version_id;
    bool weak_or_no_etag;
    enum origin_forbids forbids; // Why the answer must not be stored.
    time_t last_modified;
    struct headers headers, checksums;
};

// Checks a 200 or 206. Its status, range, length and ETag must match the request, otherwise:
//
// - ERR_ORIGIN_CHANGED: the answer's ETag differs from If-Match.
// - ERR_ORIGIN_UNFIT: the answer may be correct, but cannot fill a cache. It has no length, or has
//   the whole object although a range was requested, or its range has no total or is shorter than
//   requested.
// - ERR_ORIGIN_PROTOCOL: the answer contradicts itself, has no valid range, or has bytes that were
//   not requested.
enum err response_answer_judge(struct response_head *h, const struct response_asked *asked,
                               struct response_answer *ret_answer) MUST_USE;
// Returns true if the body is all or part of one version that has a usable ETag. Then sets
// *ret_etag, and *ret_first to the position of the body's first byte in the object.
bool response_answer_names_part(const struct response_head *h, struct span *ret_etag,
                                uint64_t *ret_first);
// Reads the object's size from "Content-Range: bytes */N" in a 416. Returns false if that is
// missing.
bool response_answer_unsatisfied_size(const struct response_head *h, uint64_t *ret_size);

#endif
