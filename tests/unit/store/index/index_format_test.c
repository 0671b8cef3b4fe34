// SPDX-License-Identifier: Apache-2.0
// Proves: records of the index survive a round trip. Every flipped bit, other key or senseless
// place is a bad record.
#include "store/index/index_format.h"

#include "test.h"

static const struct index_place place_sample = {3, 4096, 300, 8192, 70000, 5, 1, 0xfeed};

static struct index_record record_sample(void)
{
    return (struct index_record){.generation = 9,
                                 .size_bytes = 70000,
                                 .etag_hash = 11,
                                 .validated_wall_ms = 12,
                                 .validated_mono_ms = 13,
                                 .opener = 14,
                                 .block_size_bytes = 1u << 20,
                                 .flags = INDEX_WHOLE | INDEX_REBUILT,
                                 .place = place_sample};
}

static void expect_round_trip(unsigned sums_len, struct span described)
{
    struct hash128 hash = {1, 2};
    struct index_record in = record_sample();
    struct index_record out;
    char bytes[INDEX_OBJECT_MAX + 1] = {0};
    in.sums.len = (uint8_t)sums_len;
    for (unsigned i = 0; i < sums_len; i++) {
        in.sums.bytes[i] = (uint8_t)(i + 1);
    }
    bool is_described = described.len > 0;
    in.flags |= is_described ? INDEX_DESCRIBED : 0;
    in.described = described;
    struct span value = {bytes, index_object_encode(hash, &in, bytes)};
    cr_assert(value.len == INDEX_OBJECT_LEN + is_described + sums_len + described.len);
    cr_assert(index_object_decode(hash, value, &out));
    cr_assert(out.generation == 9 && out.size_bytes == 70000 && out.etag_hash == 11);
    cr_assert(out.validated_wall_ms == 12 && out.validated_mono_ms == 13 && out.opener == 14);
    cr_assert(out.flags == in.flags && index_place_equal(&out.place, &place_sample));
    cr_assert(out.place.payload_len == 70000 && out.place.first_unit == 5);
    cr_assert(span_equal(out.described, described));
    cr_assert(memcmp(&out.sums, &in.sums, sizeof(in.sums)) == 0, "what is not used is zero");
    cr_assert(!index_object_decode((struct hash128){1, 3}, value, &out));
    cr_assert(!index_object_decode((struct hash128){0, 2}, value, &out));
    for (unsigned bit = 0; bit < 8 * value.len; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        cr_assert(!index_object_decode(hash, value, &out));
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    cr_assert(!index_object_decode(hash, (struct span){bytes, value.len - 1}, &out));
    cr_assert(!index_object_decode(hash, (struct span){bytes, value.len + 1}, &out));
}

Test(index_format, an_object_is_decoded_as_encoded_and_only_under_its_key)
{
    expect_round_trip(0, (struct span){0});
}

Test(index_format, an_objects_checksums_are_part_of_its_record)
{
    for (unsigned len = 1; len <= STORE_SUMS_MAX; len++) {
        expect_round_trip(len, (struct span){0});
    }
}

Test(index_format, an_objects_headers_may_be_part_of_its_record)
{
    struct span none = {0}, key = SPAN("k"), etag = SPAN("\"e\"");
    static char text[STORE_DESCRIBED_MAX];
    memset(text, 'h', sizeof(text));
    for (size_t len = 0; len <= sizeof(text) - 10; len += 79) {
        struct store_object *object =
            store_object_new((struct hash128){1, 2}, none, key, key, etag, SPAN("id"),
                             (struct span){text, len}, 70000, 1u << 20, 77);
        char described[STORE_DESCRIBED_MAX];
        size_t described_len = index_described_encode(object, described);
        cr_assert_eq(described_len, len + 12 <= sizeof(described) ? len + 12 : 0);
        if (described_len > 0) {
            expect_round_trip(3, (struct span){described, described_len});
            expect_round_trip(STORE_SUMS_MAX, (struct span){described, described_len});
        }
        struct run_header header = {.hash = {1, 2},
                                    .bucket = key,
                                    .key = key,
                                    .etag = etag,
                                    .headers = SPAN("old"),
                                    .object_size_bytes = 70000,
                                    .block_size_bytes = 1u << 20};
        struct store_object *out =
            index_described_object(&header, 9, (struct span){described, described_len});
        cr_assert_eq(out != NULL, described_len > 0);
        if (out != NULL) {
            cr_assert(span_equal(out->headers, object->headers) && out->generation == 9);
            cr_assert(span_equal_cstr(out->version_id, "id") && out->last_modified == 77);
        }
        store_object_unref(out);
        store_object_unref(object);
    }
}

Test(index_format, a_place_is_decoded_as_encoded_and_only_under_its_key)
{
    char bytes[INDEX_PLACE_LEN];
    struct hash128 hash = {1, 2};
    struct hash128 owner;
    struct index_place out;
    index_place_encode(9, 64, hash, &place_sample, bytes);
    struct span value = {bytes, sizeof(bytes)};
    cr_assert(index_place_decode(9, 64, value, &owner, &out));
    cr_assert(hash128_equal(owner, hash) && index_place_equal(&out, &place_sample));
    cr_assert(!index_place_decode(9, 65, value, &owner, &out));
    cr_assert(!index_place_decode(8, 64, value, &owner, &out));
    for (unsigned bit = 0; bit < 8 * INDEX_PLACE_LEN; bit++) {
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        cr_assert(!index_place_decode(9, 64, value, &owner, &out));
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
}

Test(index_format, senseless_places_with_right_checksums_are_bad)
{
    struct index_place bad[] = {
        {0, 4096, 300, 8192, 70000, 5, 1, 1},      // no segment
        {3, 4096, 100, 8192, 70000, 5, 1, 1},      // header too short
        {3, 4096, 20000, 40960, 70000, 5, 1, 1},   // too long
        {3, 0, 300, 8192, 70000, 5, 1, 1},         // in the head of the segment
        {3, 8192, 300, 8192, 70000, 5, 1, 1},      // overlap
        {3, 4096, 300, 8192, UINT32_MAX, 5, 1, 1}, // beyond any segment
        {3, 4096, 300, 8192, 70000, 5, 0, 1},      // no block
        {3, 4096, 300, 8192, 1000, 5, 1, 1},       // packed, yet apart from its header
        {3, 4096, 300, 8704, 70000, 5, 1, 1},      // not packed, yet within a page
    };
    char bytes[INDEX_PLACE_LEN];
    struct hash128 owner;
    struct index_place out;
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        index_place_encode(9, 64, (struct hash128){1, 2}, &bad[i], bytes);
        cr_assert(!index_place_decode(9, 64, (struct span){bytes, sizeof(bytes)}, &owner, &out),
                  "place %u", i);
    }
}

// A record is written only with a generation, and with the flag only if it has a description. Users
// of records rely on both.
Test(index_format, senseless_objects_with_right_checksums_are_bad)
{
    char bytes[INDEX_OBJECT_MAX];
    struct hash128 hash = {1, 2};
    struct index_record out;
    struct index_record none = record_sample(), empty = record_sample();
    none.generation = 0;
    empty.flags |= INDEX_DESCRIBED;
    empty.described = SPAN("");
    size_t len = index_object_encode(hash, &none, bytes);
    cr_assert_not(index_object_decode(hash, (struct span){bytes, len}, &out));
    len = index_object_encode(hash, &empty, bytes);
    cr_assert_not(index_object_decode(hash, (struct span){bytes, len}, &out));
}

Test(index_format, place_keys_sort_by_generation_and_block)
{
    char a[INDEX_PLACE_KEY_LEN], b[INDEX_PLACE_KEY_LEN], c[INDEX_PLACE_KEY_LEN];
    index_place_key(1, 300, a);
    index_place_key(2, 1, b);
    index_place_key(2, 256, c);
    cr_assert(memcmp(a, b, sizeof(a)) < 0 && memcmp(b, c, sizeof(b)) < 0);
    uint64_t generation, block;
    index_place_key_parse(c, &generation, &block);
    cr_assert(generation == 2 && block == 256);
}

Test(index_format, the_meta_record_names_its_cache)
{
    struct index_meta meta = {.cache_id = "0123456789abcde", .blocks = 77};
    struct index_meta out;
    char bytes[INDEX_META_LEN];
    index_meta_encode(&meta, bytes);
    cr_assert(index_meta_decode((struct span){bytes, sizeof(bytes)}, &out));
    cr_assert(out.blocks == 77 && memcmp(out.cache_id, meta.cache_id, CACHE_ID_LEN) == 0);
    bytes[20] ^= 1;
    cr_assert(!index_meta_decode((struct span){bytes, sizeof(bytes)}, &out));
}
