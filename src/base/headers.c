// SPDX-License-Identifier: Apache-2.0
// Header lists. Pure; any thread.
#include "base/headers.h"

#include <string.h>

enum {
    BYTE_TOKEN = 1, // RFC 9110 tchar
    BYTE_CLEAN = 2  // not a control character, except for tab
};

#define T (BYTE_TOKEN | BYTE_CLEAN)
#define C BYTE_CLEAN
static const uint8_t byte_class[256] = {
    ['\t'] = C,        [' '] = C,         ['!'] = T,         ['"'] = C,         ['#' ... '\''] = T,
    ['(' ... ')'] = C, ['*' ... '+'] = T, [','] = C,         ['-' ... '.'] = T, ['/'] = C,
    ['0' ... '9'] = T, [':' ... '@'] = C, ['A' ... 'Z'] = T, ['[' ... ']'] = C, ['^' ... 'z'] = T,
    ['{'] = C,         ['|'] = T,         ['}'] = C,         ['~'] = T,         [0x80 ... 0xff] = C,
};
#undef T
#undef C

static bool grow(struct headers *h, struct arena *arena, unsigned cap)
{
    struct header *items = arena_take(arena, cap * sizeof(*items));
    if (items == NULL) {
        return false;
    }
    if (h->count > 0) {
        memcpy(items, h->items, h->count * sizeof(*items));
    }
    h->items = items;
    h->cap = cap;
    return true;
}

bool headers_reserve(struct headers *h, struct arena *arena, unsigned count)
{
    unsigned cap = (unsigned)min_u64((uint64_t)h->count + count, HEADERS_MAX);
    return cap <= h->cap || grow(h, arena, cap);
}

bool headers_add(struct headers *h, struct arena *arena, struct span name, struct span value)
{
    if (h->count == HEADERS_MAX) {
        return false;
    }
    if (h->count == h->cap && !grow(h, arena, h->cap < 8 ? 16 : h->cap * 2)) {
        return false;
    }
    if (h->count == 0) {
        h->names = HEADERS_NOTED;
    }
    if (h->names != 0) {
        h->names |= headers_bit(name);
    }
    h->items[h->count++] = (struct header){name, value};
    return true;
}

unsigned headers_find(const struct headers *h, struct span name, struct span *ret_value)
{
    unsigned count = 0;
    for (unsigned i = 0; i < h->count; i++) {
        if (span_equal_nocase(h->items[i].name, name) && count++ == 0) {
            *ret_value = h->items[i].value;
        }
    }
    return count;
}

void headers_remove(struct headers *h, struct span name)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < h->count; i++) {
        if (!span_equal_nocase(h->items[i].name, name)) {
            h->items[kept++] = h->items[i];
        }
    }
    h->count = kept;
}

bool headers_is_hop_by_hop(struct span name)
{
    static const char names[][20] = {"connection",    "keep-alive", "te",
                                     "trailer",       "upgrade",    "transfer-encoding",
                                     "http2-settings"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (span_equal_nocase(name, span_from_cstr(names[i]))) {
            return true;
        }
    }
    return span_starts_with_nocase(name, SPAN("proxy-"));
}

bool headers_list_has(struct span value, struct span token)
{
    struct span piece;
    while (span_split(&value, ',', &piece)) {
        if (span_equal_nocase(span_trim(piece), token)) {
            return true;
        }
    }
    return false;
}

bool headers_have_in_list(const struct headers *h, struct span name, struct span token)
{
    bool found = false;
    for (unsigned i = 0; headers_may_have(h, name) && i < h->count && !found; i++) {
        found =
            span_equal_nocase(h->items[i].name, name) && headers_list_has(h->items[i].value, token);
    }
    return found;
}

bool headers_value_is_clean(struct span value)
{
    size_t i = 0;
    while (i < value.len && (byte_class[(unsigned char)value.ptr[i]] & BYTE_CLEAN) != 0) {
        i++;
    }
    return i == value.len;
}

bool headers_name_is_token(struct span name)
{
    size_t i = 0;
    while (i < name.len && (byte_class[(unsigned char)name.ptr[i]] & BYTE_TOKEN) != 0) {
        i++;
    }
    return i == name.len && i > 0;
}
