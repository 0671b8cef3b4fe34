// SPDX-License-Identifier: Apache-2.0
// Strict check of an origin's answer from its raw header lines, before anyone believes it. Pure: no
// I/O, no clock; memory only from the caller's arena. One thread at a time.
//
// Life: response_head_init(), response_head_line() for every raw line until it says that the head
// is complete, then the fields may be read, and response_head_judge() compares the answer of a
// fetch with what was asked.
#ifndef FOREBAY_ORIGIN_RESPONSE_HEAD_H
#define FOREBAY_ORIGIN_RESPONSE_HEAD_H

#include <time.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/headers.h"
#include "origin/origin.h"

// Metadata of 2 KiB, as S3 allows it, may be several hundred headers. ERR_ORIGIN_HEAD_TOO_LARGE
// names both figures. libcurl refuses heads of 300 KiB.
#define RESPONSE_HEADERS_MAX 1024u     // of a head; below HEADERS_MAX by what a reply of ours adds
#define RESPONSE_HEAD_MAX (256u << 10) // bytes of all header lines, interim heads included
#define RESPONSE_INTERIM_MAX 16u       // 1xx heads before the final one

struct response_head {
    struct arena *arena;
    bool is_head_request;
    enum { RESPONSE_STATUS_LINE, RESPONSE_HEADERS, RESPONSE_INTERIM, RESPONSE_DONE } state;
    size_t head_bytes;
    unsigned interim_count;

    // After the head is complete
    unsigned status, version_minor;
    bool is_strict;  // every line was well formed; false: never store
    bool has_length; // Content-Length
    uint64_t length;
    bool is_chunked;        // Transfer-Encoding: chunked
    struct headers headers; // all that were well formed, values trimmed; copies in the arena

    bool last_was_framing, has_last; // what a folded line would continue
};

void response_head_init(struct response_head *h, struct arena *arena, bool is_head_request);
// Takes one raw line, CRLF included. *ret_done: the head is complete (further lines are trailers
// and ignored). ERR_ORIGIN_PROTOCOL: the answer must not be believed; close the connection.
// ERR_ORIGIN_HEAD_TOO_LARGE: likewise, more than RESPONSE_HEADERS_MAX headers or RESPONSE_HEAD_MAX
// bytes. ERR_NO_MEMORY.
enum err response_head_line(struct response_head *h, struct span line, bool *ret_done) MUST_USE;

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
enum err response_head_judge(struct response_head *h, const struct response_asked *asked,
                             struct response_answer *ret_answer) MUST_USE;
// Is the body a part of one version that can be named, or all of it? Its ETag and first byte.
bool response_head_names_part(const struct response_head *h, struct span *ret_etag,
                              uint64_t *ret_first);
// Size from "Content-Range: bytes */N" of a 416; false without one.
bool response_head_unsatisfied_size(const struct response_head *h, uint64_t *ret_size);

#endif
