// SPDX-License-Identifier: Apache-2.0
// Packs an object's checksum headers into few bytes, so that an index can keep them for many
// objects. Input and output are text lines. Each line becomes one item:
//
//   none      the origin has said that the object has no checksum; never sent to a client
//   type      x-amz-checksum-type: FULL_OBJECT or COMPOSITE
//   digest    a known algorithm, the raw digest, and the number of parts if the value ends in "-N"
//   text      any other line
//   too long  the object has checksums that do not fit; only the origin can supply them
//
// Items keep their order. If no line has a digest, the result is "none", because a type alone says
// nothing. If one line does not fit, the result is "too long" and no line is kept, because a client
// would take the others for all there are. Pure; any thread.
#include "s3/s3.h"

#include <assert.h>
#include <openssl/evp.h>

#include <string.h>

#define ITEM_NONE 0x01u
#define ITEM_FULL_OBJECT 0x02u
#define ITEM_COMPOSITE 0x03u
#define ITEM_TEXT 0x04u // followed by one byte with the length, then by "name: value"
static_assert(S3_SUMS_ELSEWHERE == 0x05u && S3_SUMS_TOO_LONG == 0x06u, "the next ones");
#define ITEM_DIGEST 0x10u // plus the index in `algorithms`; the digest follows
// flag of a digest item: the number of parts follows in two bytes, little endian
#define ITEM_PARTS 0x80u
#define PARTS_MAX 0xffffu
#define DIGEST_MAX 64u
#define BASE64_MAX 89u // Base64 of the longest digest, and a NUL

#define PREFIX "x-amz-checksum-"

// Items on disk contain the index of a row, so add rows only at the end.
static const struct {
    const char *name;
    uint8_t len;
} algorithms[] = {{"crc32", 4},      {"crc32c", 4},   {"crc64nvme", 8}, {"sha1", 20},
                  {"sha256", 32},    {"xxhash64", 8}, {"xxhash3", 8},   {"md5", 16},
                  {"xxhash128", 16}, {"sha512", 64}};
static_assert(ARRAY_LEN(algorithms) <= 16, "four bits of an item");

struct packing {
    uint8_t *at, *end;
    bool has_digest;
    bool is_too_long;
};

static bool pack_item(struct packing *p, unsigned item, struct span bytes, struct span more)
{
    if ((size_t)(p->end - p->at) < 1 + bytes.len + more.len) {
        return false;
    }
    *p->at++ = (uint8_t)item;
    memcpy(p->at, bytes.ptr, bytes.len);
    memcpy(p->at + bytes.len, more.ptr, more.len);
    p->at += bytes.len + more.len;
    return true;
}

// Decodes Base64 of exactly `len` bytes. Rejects text that an encoder would write in another way.
static bool digest_parse(struct span text, size_t len, uint8_t ret_digest[DIGEST_MAX + 2])
{
    char again[BASE64_MAX];
    if (text.len != (len + 2) / 3 * 4 ||
        EVP_DecodeBlock(ret_digest, (const unsigned char *)text.ptr, (int)text.len) < (int)len) {
        return false;
    }
    // the return value is the known length
    (void)EVP_EncodeBlock((unsigned char *)again, ret_digest, (int)len);
    return memcmp(again, text.ptr, text.len) == 0;
}

static bool pack_digest(struct packing *p, struct span name, struct span value)
{
    struct span digest = value;
    uint64_t parts = 0;
    size_t dash = span_find(value, '-');
    if (dash < value.len) {
        struct span count = {value.ptr + dash + 1, value.len - dash - 1};
        digest.len = dash;
        if (!span_to_u64(count, &parts) || parts > PARTS_MAX || count.ptr[0] == '0') {
            return false;
        }
    }
    uint8_t bytes[DIGEST_MAX + 2];
    char count[2] = {(char)parts, (char)(parts >> 8)};
    for (unsigned i = 0; i < ARRAY_LEN(algorithms); i++) {
        if (span_equal_cstr(name, algorithms[i].name) &&
            digest_parse(digest, algorithms[i].len, bytes)) {
            return pack_item(p, ITEM_DIGEST + i + (parts > 0 ? ITEM_PARTS : 0),
                             (struct span){(char *)bytes, algorithms[i].len},
                             (struct span){count, parts > 0 ? sizeof(count) : 0});
        }
    }
    return false;
}

// Packs one line, without the prefix "x-amz-checksum-" and the line's end.
static void pack_line(struct packing *p, struct span line)
{
    size_t colon = span_find(line, ':');
    if (colon == line.len) {
        return;
    }
    struct span name = {line.ptr, colon};
    struct span value = span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1});
    bool is_full = span_equal_cstr(value, "FULL_OBJECT");
    if (span_equal_cstr(name, "type") && (is_full || span_equal_cstr(value, "COMPOSITE"))) {
        unsigned item = is_full ? ITEM_FULL_OBJECT : ITEM_COMPOSITE;
        p->is_too_long |= !pack_item(p, item, SPAN(""), SPAN(""));
        return;
    }
    bool is_packed = pack_digest(p, name, value);
    if (!is_packed && line.len <= UINT8_MAX) {
        char len = (char)line.len;
        is_packed = pack_item(p, ITEM_TEXT, (struct span){&len, 1}, line);
    }
    p->is_too_long |= !is_packed;
    p->has_digest |= !span_equal_cstr(name, "type");
}

size_t s3_sums_pack(struct span lines, uint8_t ret_bytes[S3_SUMS_MAX])
{
    struct packing p = {.at = ret_bytes, .end = ret_bytes + S3_SUMS_MAX};
    struct span line;
    if (lines.len == 0) {
        return 0;
    }
    while (lines.len > 0 && span_split(&lines, '\n', &line)) {
        if (span_ends_with(line, SPAN("\r"))) {
            line.len--;
        }
        bool is_none = span_equal_cstr(line, "x-amz-checksum-none: -");
        if (span_starts_with(line, SPAN(PREFIX)) && !is_none) {
            line.ptr += sizeof(PREFIX) - 1;
            line.len -= sizeof(PREFIX) - 1;
            pack_line(&p, line);
        }
    }
    if (!p.has_digest || p.is_too_long) {
        p.at = ret_bytes;
        *p.at++ = p.has_digest ? S3_SUMS_TOO_LONG : ITEM_NONE;
    }
    return (size_t)(p.at - ret_bytes);
}

// --- back to lines -------------------------------------------------------------------------------

static bool take(struct span *packed, size_t len, struct span *ret_piece)
{
    if (packed->len < len) {
        return false;
    }
    *ret_piece = (struct span){packed->ptr, len};
    packed->ptr += len;
    packed->len -= len;
    return true;
}

static bool render_digest(struct span *packed, uint8_t item, struct span_writer *w)
{
    unsigned i = (item & ~ITEM_PARTS) - ITEM_DIGEST;
    struct span digest, parts = {0};
    if (i >= ARRAY_LEN(algorithms) || !take(packed, algorithms[i].len, &digest) ||
        ((item & ITEM_PARTS) != 0 && !take(packed, 2, &parts))) {
        return false;
    }
    char base64[BASE64_MAX];
    (void)EVP_EncodeBlock((unsigned char *)base64, (const unsigned char *)digest.ptr,
                          (int)digest.len); // the return value is the known length
    span_writer_put(w, span_from_cstr(algorithms[i].name));
    span_writer_put(w, SPAN(": "));
    span_writer_put(w, span_from_cstr(base64));
    if (parts.len > 0) {
        span_writer_put(w, SPAN("-"));
        span_writer_put_u64(w,
                            (uint64_t)(uint8_t)parts.ptr[0] | (uint64_t)(uint8_t)parts.ptr[1] << 8);
    }
    return true;
}

static bool render_text(struct span *packed, struct span_writer *w)
{
    struct span len, text;
    if (!take(packed, 1, &len) || !take(packed, (uint8_t)len.ptr[0], &text)) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if ((uint8_t)text.ptr[i] < ' ' || text.ptr[i] == 0x7f) {
            return false; // a control byte would end or spoil the header's line
        }
    }
    span_writer_put(w, text);
    return true;
}

static bool render_item(struct span *packed, uint8_t item, struct span_writer *w)
{
    switch (item) {
    case ITEM_NONE:
        span_writer_put(w, SPAN("none: -"));
        return true;
    case ITEM_FULL_OBJECT:
        span_writer_put(w, SPAN("type: FULL_OBJECT"));
        return true;
    case ITEM_COMPOSITE:
        span_writer_put(w, SPAN("type: COMPOSITE"));
        return true;
    case ITEM_TEXT:
        return render_text(packed, w);
    default:
        return item >= ITEM_DIGEST && render_digest(packed, item, w);
    }
}

struct span s3_sums_render(struct span packed, char ret_text[S3_SUMS_TEXT_MAX])
{
    struct span_writer w = {ret_text, ret_text + S3_SUMS_TEXT_MAX};
    struct span item;
    check(packed.len <= S3_SUMS_MAX);
    while (take(&packed, 1, &item)) {
        span_writer_put(&w, SPAN(PREFIX));
        if (!render_item(&packed, (uint8_t)item.ptr[0], &w)) {
            return (struct span){NULL, 0};
        }
        span_writer_put(&w, SPAN("\r\n"));
    }
    return (struct span){ret_text, (size_t)(w.at - ret_text)};
}

bool s3_sums_has_none(struct span packed)
{
    return packed.len == 1 && (uint8_t)packed.ptr[0] == ITEM_NONE;
}

bool s3_sums_are_too_long(struct span packed)
{
    return packed.len == 1 && (uint8_t)packed.ptr[0] == S3_SUMS_TOO_LONG;
}
