// SPDX-License-Identifier: Apache-2.0
// The pieces of a line of the access log. No secret reaches a line: no header that signs, no token,
// and no signature of a query. Text that a client chose (key, user agent, range) is escaped, so
// that a request is one line. Pure.
#include <string.h>

#include "proxy/log/access_log_private.h"

#define HEADER_SHOWN_MAX 512u

void access_log_line_init(struct access_log_line *line, struct access_log_date *date)
{
    line->date = date;
    line->len = 0;
    line->is_full = false;
}

void access_log_line_bytes(struct access_log_line *line, const char *bytes, size_t len)
{
    check(line->len <= sizeof(line->bytes));
    if (len > sizeof(line->bytes) - line->len) {
        line->is_full = true;
        return;
    }
    if (len > 0) {
        memcpy(line->bytes + line->len, bytes, len);
    }
    line->len += len;
}

void access_log_line_text(struct access_log_line *line, const char *text)
{
    access_log_line_bytes(line, text, strlen(text));
}

void access_log_line_u64(struct access_log_line *line, uint64_t value)
{
    char digits[U64_DIGITS_MAX];
    struct span text = span_of_u64(value, digits);
    access_log_line_bytes(line, text.ptr, text.len);
}

void access_log_line_ms(struct access_log_line *line, uint64_t us)
{
    access_log_line_u64(line, us / 1000);
    char rest[4] = {'.', (char)('0' + us / 100 % 10), (char)('0' + us / 10 % 10),
                    (char)('0' + us % 10)};
    access_log_line_bytes(line, rest, sizeof(rest));
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

#define EACH(byte) ((byte)*UINT64_C(0x0101010101010101))

// Returns true if eight bytes are plain (is_plain()). It tests them at once, because nearly all
// logged bytes are plain.
static bool are_plain(const char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    uint64_t quote = word ^ EACH('"'), backslash = word ^ EACH('\\'), del = word ^ EACH(0x7f);
    // The top bit is set in each byte below 0x20, and maybe in the bytes that follow such a byte.
    uint64_t low = (word - EACH(0x20)) & ~word;
    uint64_t zero = ((quote - EACH(1)) & ~quote) | ((backslash - EACH(1)) & ~backslash) |
                    ((del - EACH(1)) & ~del);
    return ((word | low | zero) & EACH(0x80)) == 0;
}

// Returns the length of the UTF-8 sequence at the start of `s`, or 0 if there is none.
static size_t utf8_len(struct span s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t len = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                 : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                : 0;
    if (len == 0 || s.len < len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ||
        (p[0] == 0xc2 && p[1] < 0xa0)) { // C1 control characters
        return 0;
    }
    return len;
}

void access_log_line_escaped(struct access_log_line *line, struct span s)
{
    while (s.len > 0) {
        size_t plain = 0;
        while (plain < s.len && is_plain((unsigned char)s.ptr[plain])) {
            plain += s.len - plain >= 8 && are_plain(s.ptr + plain) ? 8 : 1;
        }
        access_log_line_bytes(line, s.ptr, plain);
        s.ptr += plain;
        s.len -= plain;
        if (s.len == 0) {
            return;
        }
        size_t wide = utf8_len(s);
        if (wide > 0) {
            access_log_line_bytes(line, s.ptr, wide);
        } else if (*s.ptr == '"' || *s.ptr == '\\') {
            char pair[2] = {'\\', *s.ptr};
            access_log_line_bytes(line, pair, 2);
        } else {
            char hex[3], text[6] = {'\\', 'u', '0', '0'};
            hex_encode(s.ptr, 1, hex);
            text[4] = hex[0];
            text[5] = hex[1];
            access_log_line_bytes(line, text, sizeof(text));
        }
        s.ptr += wide > 0 ? wide : 1;
        s.len -= wide > 0 ? wide : 1;
    }
}

void access_log_line_coded(struct access_log_line *line, struct span s, bool keep_blanks)
{
    access_log_line_coded_up_to(line, s, keep_blanks, SIZE_MAX);
}

void access_log_line_coded_up_to(struct access_log_line *line, struct span s, bool keep_blanks,
                                 size_t end)
{
    static const char HEX[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s.len && line->len + 3 <= end; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c > 0x20 && c < 0x7f && c != '"' && c != '\\') {
            access_log_line_bytes(line, s.ptr + i, 1);
        } else if (c == ' ' && keep_blanks) {
            access_log_line_literal(line, " ");
        } else {
            char coded[3] = {'%', HEX[c >> 4], HEX[c & 15]};
            access_log_line_bytes(line, coded, 3);
        }
    }
}

void access_log_line_date(struct access_log_line *line, uint64_t wall_us)
{
    struct access_log_date *date = line->date;
    int64_t s = (int64_t)(wall_us / 1000000);
    if (s != date->s) {
        date->s = s;
        date_format_iso((time_t)s, 0, date->text);
    }
    unsigned ms = (unsigned)(wall_us / 1000 % 1000);
    check(date->text[DATE_ISO_LEN] == '\0');
    char rest[5] = {'.', (char)('0' + ms / 100), (char)('0' + ms / 10 % 10), (char)('0' + ms % 10),
                    'Z'};
    access_log_line_bytes(line, date->text, DATE_ISO_LEN - sizeof(rest));
    access_log_line_bytes(line, rest, sizeof(rest));
}

struct span access_log_line_shortened(struct span value)
{
    value.len = min_u64(value.len, HEADER_SHOWN_MAX);
    return value;
}
