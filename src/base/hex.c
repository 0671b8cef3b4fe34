// SPDX-License-Identifier: Apache-2.0
// Hexadecimal digits. Pure; any thread.
#include <endian.h>
#include <string.h>

#include "base/bytes.h"

#define EACH(byte) (0x0101010101010101u * (uint64_t)(byte))

// Value of each hex digit plus 1; 0 for other characters.
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

// Converts four bytes to eight digits. The first byte is the lowest of the word. Each nibble is
// moved to a byte of its own. Then '0' is added to each of these bytes. Bytes above 9 also get the
// distance between the digits and the letters.
static uint64_t four_to_digits(uint32_t bytes)
{
    uint64_t spread = bytes;
    spread = (spread | spread << 16) & 0x0000ffff0000ffffu;
    spread = (spread | spread << 8) & 0x00ff00ff00ff00ffu;
    spread = (spread >> 4 | spread << 8) & EACH(0x0f);
    uint64_t above_9 = (spread + EACH(6)) >> 4 & EACH(1);
    return spread + EACH('0') + above_9 * ('a' - '9' - 1);
}

void hex_encode(const void *bytes, size_t len, char *ret_hex)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *from = bytes;
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        uint32_t four;
        memcpy(&four, from + i, sizeof(four));
        uint64_t eight = htole64(four_to_digits(le32toh(four)));
        memcpy(ret_hex + 2 * i, &eight, sizeof(eight));
    }
    for (; i < len; i++) {
        ret_hex[2 * i] = digits[from[i] >> 4];
        ret_hex[2 * i + 1] = digits[from[i] & 15];
    }
    ret_hex[2 * len] = '\0';
}

// Sets the highest bit of each byte that is in [least, most]. No byte of `word` may be above 0x7f.
static uint64_t are_between(uint64_t word, uint8_t least, uint8_t most)
{
    return (word + EACH(0x80 - least)) & ~(word + EACH(0x7f - most));
}

bool hex_is_lower(struct span s)
{
    size_t i = 0;
    uint64_t all = EACH(0x80);
    for (; i + 8 <= s.len; i += 8) {
        uint64_t word;
        memcpy(&word, s.ptr + i, sizeof(word));
        uint64_t low = word & EACH(0x7f);
        all &= (are_between(low, '0', '9') | are_between(low, 'a', 'f')) & ~word;
    }
    bool are_lower = all == EACH(0x80);
    for (; are_lower && i < s.len; i++) {
        are_lower = digit(s.ptr[i]) >= 0 && (s.ptr[i] < 'A' || s.ptr[i] > 'F');
    }
    return are_lower;
}
