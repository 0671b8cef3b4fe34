// SPDX-License-Identifier: Apache-2.0
// Hexadecimal digits. Pure; any thread.
#include "base/bytes.h"

// One more than the value; 0: it is none.
static const int8_t values[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

static inline int digit(char c)
{
    return values[(unsigned char)c] - 1;
}

int hex_digit(char c)
{
    return digit(c);
}

bool hex_decode(struct span s, uint8_t *ret_bytes, size_t bytes_len)
{
    if (s.len % 2 != 0 || s.len / 2 != bytes_len) {
        return false;
    }
    int all = 0;
    for (size_t i = 0; i < s.len; i++) {
        all |= digit(s.ptr[i]);
    }
    for (size_t i = 0; all >= 0 && i < bytes_len; i++) {
        ret_bytes[i] = (uint8_t)(digit(s.ptr[2 * i]) << 4 | digit(s.ptr[2 * i + 1]));
    }
    return all >= 0;
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
