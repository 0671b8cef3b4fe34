// SPDX-License-Identifier: Apache-2.0
// All files of the cache directory share this code; see disk_format.h.
#include "store/disk/disk_format.h"

#include <assert.h>
#include <stdlib.h>

#include <isa-l/crc.h>

#include "base/check.h"

#ifdef FOREBAY_FAULTS
#define TEST_SIZE_MIN (128u << 10)

// Returns the environment variable FOREBAY_SEGMENT_SIZE, a power of two, because tests with many
// segments need small ones. 0: it is not set, or is not valid.
uint32_t disk_segment_size_fixed(void)
{
    const char *text = getenv("FOREBAY_SEGMENT_SIZE");
    uint64_t size = 0;
    if (text == NULL || !span_to_u64(span_from_cstr(text), &size) || size < TEST_SIZE_MIN ||
        size > SEGMENT_SIZE_MAX || (size & (size - 1)) != 0) {
        return 0;
    }
    return (uint32_t)size;
}
#endif

static_assert((SEGMENT_SIZE_MIN & (SEGMENT_SIZE_MIN - 1)) == 0, "sizes are powers of two");
static_assert((SEGMENT_SIZE_MAX & (SEGMENT_SIZE_MAX - 1)) == 0, "sizes are powers of two");

uint32_t disk_crc32c_more(uint32_t crc, const void *bytes, size_t len)
{
    check(bytes != NULL || len == 0);
    const unsigned char *at = bytes;
    while (len > 0) {
        int piece = len > (1u << 30) ? 1 << 30 : (int)len;
        // The library's parameter is not const, although the library does not write to it.
        crc = ~crc32_iscsi((unsigned char *)(uintptr_t)at, piece, ~crc);
        at += piece;
        len -= (size_t)piece;
    }
    return crc;
}

uint32_t disk_crc32c(const void *bytes, size_t len)
{
    return disk_crc32c_more(0, bytes, len);
}

bool disk_format_line(struct span *rest, const char *name, struct span *ret_value)
{
    check(name[0] != 0 && strchr(name, ' ') == NULL); // a name is one word
    struct span ahead = *rest;
    struct span line;
    struct span word;
    if (!span_split(&ahead, '\n', &line) || !span_split(&line, ' ', &word) ||
        !span_equal_cstr(word, name) || line.ptr == NULL) {
        return false;
    }
    check(ahead.len < rest->len); // each call shortens `rest`, so a loop over lines ends
    *rest = ahead;
    *ret_value = line;
    return true;
}

uint64_t disk_u64_of_bytes(const uint8_t bytes[8])
{
    uint64_t value = 0;
    for (unsigned i = 0; i < 8; i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}
