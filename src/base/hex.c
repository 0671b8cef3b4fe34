// SPDX-License-Identifier: Apache-2.0
// Hexadecimal digits. Pure; any thread.
#include "base/bytes.h"

int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

bool hex_decode(struct span s, uint8_t *ret_bytes, size_t bytes_len)
{
    if (s.len % 2 != 0 || s.len / 2 != bytes_len) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (hex_digit(s.ptr[i]) < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < bytes_len; i++) {
        ret_bytes[i] = (uint8_t)(hex_digit(s.ptr[2 * i]) << 4 | hex_digit(s.ptr[2 * i + 1]));
    }
    return true;
}

void hex_encode(const void *bytes, size_t len, char *ret_hex)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = bytes;
    for (size_t i = 0; i < len; i++) {
        ret_hex[2 * i] = digits[from[i] >> 4];
        ret_hex[2 * i + 1] = digits[from[i] & 15];
    }
    ret_hex[2 * len] = '\0';
}
