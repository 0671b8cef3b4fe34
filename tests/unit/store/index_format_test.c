// SPDX-License-Identifier: Apache-2.0
// Records of the index: round trips, and every flipped bit, other key or senseless place is a bad
// record.
#include "store/index_format.h"

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

static void expect_round_trip(unsigned sums_len)
{
    struct hash128 hash = {1, 2};
    struct index_record in = record_sample();
    struct index_record out;
    char bytes[INDEX_OBJECT_MAX + 1] = {0};
    in.sums.len = (uint8_t)sums_len;
    for (unsigned i = 0; i < sums_len; i++) {
        in.sums.bytes[i] = (uint8_t)(i + 1);
    }
    struct span value = {bytes, index_object_encode(hash, &in, bytes)};
    cr_assert(value.len == INDEX_OBJECT_LEN + sums_len);
    cr_assert(index_object_decode(hash, value, &out));
    cr_assert(out.generation == 9 && out.size_bytes == 70000 && out.etag_hash == 11);
    cr_assert(out.validated_wall_ms == 12 && out.validated_mono_ms == 13 && out.opener == 14);
    cr_assert(out.flags == in.flags && index_place_equal(&out.place, &place_sample));
    cr_assert(out.place.payload_len == 70000 && out.place.first_unit == 5);
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
    expect_round_trip(0);
}

Test(index_format, an_objects_checksums_are_part_of_its_record)
{
    for (unsigned len = 1; len <= STORE_SUMS_MAX; len++) {
        expect_round_trip(len);
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
