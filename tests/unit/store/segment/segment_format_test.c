// SPDX-License-Identifier: Apache-2.0
// Proves: encoded segment bytes are decoded unchanged, damaged bytes are refused, and layouts keep
// their promises.
#include "store/segment/segment_format.h"

#include <stdlib.h>

#include "test.h"

#define PAYLOAD_OF(units) ((units)*STORE_CHECKSUM_UNIT)

static struct run_header sample(uint32_t payload_len, const char *crcs)
{
    struct run_header h = {
        .salt = 0x1122334455667788u,
        .number = 7,
        .payload_len = payload_len,
        .first_unit = 3,
        .unit_count = run_unit_count(payload_len),
        .generation = 42,
        .object_size_bytes = payload_len,
        .block_size_bytes = 1u << 20,
        .block_count = (uint32_t)segment_run_object_blocks(payload_len, 1u << 20),
        .hash = {1, 2},
        .last_modified = -5,
        .realm = SPAN("default"),
        .bucket = SPAN("bkt"),
        .key = SPAN("a/b c"),
        .etag = SPAN("\"abc\""),
        .version_id = SPAN("v1"),
        .headers = SPAN("Content-Type: x\r\n"),
        .unit_crcs = crcs,
    };
    h.header_len = segment_run_header_len(h.realm, h.bucket, h.key, h.etag, h.version_id, h.headers,
                                          h.unit_count);
    struct run_layout layout;
    segment_run_layout_make(SEGMENT_DATA_OFFSET, h.header_len, payload_len, &layout);
    h.header_offset = layout.header_offset;
    h.payload_offset = layout.payload_offset;
    h.end_offset = (uint32_t)layout.end_offset;
    return h;
}

Test(segment_format, crc32c_is_castagnoli_also_in_pieces)
{
    cr_assert_eq(disk_crc32c("123456789", 9), 0xE3069283u);
    cr_assert_eq(disk_crc32c_more(disk_crc32c("1234", 4), "56789", 5), 0xE3069283u);
    cr_assert_eq(disk_crc32c("", 0), 0u);
}

Test(segment_format, a_header_is_decoded_as_it_was_encoded)
{
    static const uint32_t lens[] = {0, 1, 32767, 32768, 65537, 262144, 262145, 4u << 20};
    char crcs[4 * RUN_UNITS_MAX];
    for (unsigned i = 0; i < sizeof(crcs); i++) {
        crcs[i] = (char)i;
    }
    for (unsigned i = 0; i < ARRAY_LEN(lens); i++) {
        struct run_header h = sample(lens[i], crcs);
        char *bytes = malloc(h.header_len);
        segment_run_header_encode(&h, bytes);
        struct run_header d;
        cr_assert(segment_run_header_decode((struct span){bytes, h.header_len}, &d) == ERR_OK);
        cr_assert(d.salt == h.salt && d.number == h.number && d.header_offset == h.header_offset);
        cr_assert(d.header_len == h.header_len && d.payload_offset == h.payload_offset);
        cr_assert(d.payload_len == h.payload_len && d.end_offset == h.end_offset);
        cr_assert(d.first_unit == 3 && d.unit_count == h.unit_count && d.generation == 42);
        cr_assert(d.object_size_bytes == lens[i] && d.block_count == h.block_count);
        cr_assert(hash128_equal(d.hash, h.hash) && d.last_modified == -5);
        cr_assert(span_equal(d.realm, h.realm) && span_equal(d.bucket, h.bucket));
        cr_assert(span_equal(d.key, h.key) && span_equal(d.etag, h.etag));
        cr_assert(span_equal(d.version_id, h.version_id) && span_equal(d.headers, h.headers));
        for (uint32_t u = 0; u < h.unit_count; u++) {
            cr_assert_eq(run_header_unit_crc(&d, u), wire_get_u32(crcs + 4 * u));
        }
        free(bytes);
    }
}

Test(segment_format, each_flipped_bit_and_each_cut_of_a_header_is_refused)
{
    char crcs[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct run_header h = sample(70000, crcs);
    char *bytes = malloc(h.header_len);
    segment_run_header_encode(&h, bytes);
    struct run_header d;
    for (uint32_t bit = 0; bit < 8 * h.header_len; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        cr_assert(segment_run_header_decode((struct span){bytes, h.header_len}, &d) != ERR_OK);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (uint32_t len = 0; len < h.header_len; len++) {
        char *cut = malloc(len + 1);
        memcpy(cut, bytes, len);
        cr_assert(segment_run_header_decode((struct span){cut, len}, &d) != ERR_OK);
        free(cut);
    }
    free(bytes);
}

// A header with a right checksum over wrong numbers must not be accepted either.
Test(segment_format, inconsistent_headers_with_right_checksums_are_refused)
{
    static const struct {
        unsigned at;
        uint32_t value;
    } lies[] = {
        {12, 200},      {28, 100},        {28, 4097}, {32, 4096},       {36, 70001},
        {36, 1u << 30}, {40, 1},          {40, 512},  {40, UINT32_MAX}, {64, 0},
        {64, 65537},    {64, 1u << 31},   {68, 0},    {68, 2},          {68, UINT32_MAX},
        {72, 1},        {72, UINT32_MAX}, {56, 0},    {60, UINT32_MAX}, {8, 1},
    };
    char crcs[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct run_header h = sample(70000, crcs);
    char *bytes = malloc(RUN_HEADER_MAX);
    struct run_header d;
    for (unsigned i = 0; i < ARRAY_LEN(lies); i++) {
        memset(bytes, 0, RUN_HEADER_MAX);
        segment_run_header_encode(&h, bytes);
        wire_put_u32(bytes + lies[i].at, lies[i].value);
        uint32_t len = wire_get_u32(bytes + 12);
        uint32_t crc = disk_crc32c(bytes, 124);
        wire_put_u32(bytes + 124, disk_crc32c_more(crc, bytes + 128, len - 128));
        cr_assert(segment_run_header_decode((struct span){bytes, RUN_HEADER_MAX}, &d) != ERR_OK,
                  "lie %u", i);
    }
    free(bytes);
}

Test(segment_format, sectors_are_decoded_and_damaged_ones_refused)
{
    char sector[SECTOR_SIZE];
    struct segment_header header = {.number = 9, .salt = 77, .size_bytes = SEGMENT_SIZE_MIN};
    memset(header.cache_id, 5, sizeof(header.cache_id));
    struct segment_header header_out;
    segment_header_encode(&header, sector);
    cr_assert(segment_header_decode(sector, &header_out) == ERR_OK);
    cr_assert(header_out.number == 9 && header_out.salt == 77);
    for (unsigned bit = 0; bit < 8 * SECTOR_SIZE; bit++) {
        sector[bit / 8] ^= (char)(1 << bit % 8);
        cr_assert(segment_header_decode(sector, &header_out) != ERR_OK);
        sector[bit / 8] ^= (char)(1 << bit % 8);
    }
    struct segment_seal seal = {9, 77, 8192, 12, 3, 2, 5, 4096};
    struct segment_seal seal_out;
    segment_seal_encode(&seal, sector);
    cr_assert(segment_seal_decode(sector, &seal_out) == ERR_OK);
    cr_assert(seal_out.end_offset == 8192 && seal_out.unit_count == 12 && seal_out.run_count == 3);
    cr_assert(seal_out.row_count == 2 && seal_out.table_id == 5 && seal_out.given_bytes == 4096);
    cr_assert(segment_header_decode(sector, &header_out) == ERR_FORMAT);
    struct run_intent intent = {9, 77, 4096, 1u << 20, 4608, 8192};
    struct run_intent intent_out;
    segment_run_intent_encode(&intent, sector);
    cr_assert(segment_run_intent_decode(sector, &intent_out) == ERR_OK);
    cr_assert(intent_out.end_offset == 1u << 20 && intent_out.header_offset == 4608);
    sector[100] ^= 1;
    cr_assert(segment_run_intent_decode(sector, &intent_out) == ERR_CORRUPT);
}

Test(segment_format, layouts_align_and_do_not_overlap)
{
    for (uint32_t payload = 0; payload < 600000; payload += 1021) {
        for (uint32_t header = RUN_HEADER_FIXED; header < RUN_HEADER_MAX; header += 3001) {
            struct run_layout l;
            segment_run_layout_make(8192, header, payload, &l);
            cr_assert(l.header_offset % RUN_ALIGN == 0 && l.end_offset % RUN_ALIGN == 0);
            cr_assert(l.payload_offset >= l.header_offset + header);
            cr_assert(l.end_offset >= l.payload_offset + payload);
            cr_assert(l.intent == (payload > RUN_ONE_WRITE_MAX));
            cr_assert(l.header_offset == (l.intent ? 8704u : 8192u));
            if (payload < RUN_PACKED_MAX) {
                cr_assert(l.payload_offset == l.header_offset + header);
            } else {
                cr_assert(l.payload_offset % RUN_PAYLOAD_ALIGN == 0);
            }
        }
    }
}

Test(segment_format, a_small_object_takes_little_more_than_its_bytes)
{
    struct run_header h = sample(10240, "abcd");
    cr_assert(h.end_offset - h.header_offset <= 10240 + 512);
}

Test(segment_format, strings_beyond_their_limits_have_no_header)
{
    static char long_key[RUN_KEY_MAX + 1];
    struct span none = {NULL, 0};
    struct span key = {long_key, sizeof(long_key)};
    cr_assert_eq(segment_run_header_len(none, none, key, none, none, none, 1), 0u);
    key.len--;
    cr_assert(segment_run_header_len(none, none, key, none, none, none, 1) > 0);
    cr_assert_eq(segment_run_header_len(none, none, key, none, none, none, RUN_UNITS_MAX + 1), 0u);
}
