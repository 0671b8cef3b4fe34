// SPDX-License-Identifier: Apache-2.0
// What an origin's answer to a fetch says, once net/response_head.c has found its head well formed:
// does it answer what was asked, which version is it, and may it be stored? Pure: no I/O, no clock;
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
    uint64_t suffix;      // instead: bytes at the end; 0: not
    struct span if_match;
    bool of_store; // the origin is known to be one, whatever its headers say
};

struct response_answer {
    uint64_t size_bytes, body_first, body_len; // of the body that follows; 0 for HEAD
    struct span etag, version_id;
    bool weak_or_no_etag;
    enum origin_forbids forbids; // what of it forbids to store it
    time_t last_modified;
    struct headers headers, checksums;
};

// A 200 or 206 against what was asked: status, range, length and ETag must be the ones asked for.
// ERR_ORIGIN_CHANGED: another ETag than If-Match named. ERR_ORIGIN_UNFIT: it may be true, but no
// cache can be filled by it: no length, the whole object to a range, a range without a total or
// shorter than asked. ERR_ORIGIN_PROTOCOL: it contradicts itself, or names no bytes, or bytes that
// were not asked for.
enum err response_answer_judge(struct response_head *h, const struct response_asked *asked,
                               struct response_answer *ret_answer) MUST_USE;
// Is the body a part of one version that can be named, or all of it? Its ETag and first byte.
bool response_answer_names_part(const struct response_head *h, struct span *ret_etag,
                                uint64_t *ret_first);
// Size from "Content-Range: bytes */N" of a 416; false without one.
bool response_answer_unsatisfied_size(const struct response_head *h, uint64_t *ret_size);

#endif
