// SPDX-License-Identifier: Apache-2.0
// VERSION-TRACE_ID-PARENT_ID-FLAGS, in lower case alone: 2, 32, 16 and 2 hexadecimal digits. A
// version to come may have more behind another dash; ff is none. Ids of zeros are none. Pure.
#include "proxy/log/trace_parent.h"

#define TRACE_AT 3u
#define TRACE_LEN 32u
#define PARENT_AT 36u
#define PARENT_LEN 16u
#define FLAGS_AT 53u
#define LEN 55u
#define FLAG_SAMPLED 1u

static bool read_hex(struct span value, size_t at, size_t len, uint64_t *ret_number)
{
    struct span digits = {value.ptr + at, len};
    *ret_number = 0;
    for (size_t i = 0; i < len; i++) {
        *ret_number = *ret_number << 4 | (unsigned)(hex_digit(digits.ptr[i]) & 15);
    }
    return hex_is_lower(digits);
}

static bool is_shaped(struct span value)
{
    return value.len >= LEN && value.ptr[TRACE_AT - 1] == '-' && value.ptr[PARENT_AT - 1] == '-' &&
           value.ptr[FLAGS_AT - 1] == '-' && (value.len == LEN || value.ptr[LEN] == '-');
}

bool trace_parent_sampled(const struct headers *headers, uint64_t ret_trace_id[2])
{
    struct span value;
    uint64_t version, parent, flags;
    if (!headers_get(headers, SPAN("traceparent"), &value) ||
        headers_count(headers, SPAN("traceparent")) > 1 || !is_shaped(value)) {
        return false;
    }
    bool is_read = read_hex(value, 0, 2, &version) &&
                   read_hex(value, TRACE_AT, TRACE_LEN / 2, &ret_trace_id[0]) &&
                   read_hex(value, TRACE_AT + TRACE_LEN / 2, TRACE_LEN / 2, &ret_trace_id[1]) &&
                   read_hex(value, PARENT_AT, PARENT_LEN, &parent) &&
                   read_hex(value, FLAGS_AT, 2, &flags);
    return is_read && version != 0xff && (version != 0 || value.len == LEN) && parent != 0 &&
           (ret_trace_id[0] | ret_trace_id[1]) != 0 && (flags & FLAG_SAMPLED) != 0;
}
