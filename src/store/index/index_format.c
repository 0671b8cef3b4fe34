// SPDX-License-Identifier: Apache-2.0
// The format of the index, version 1. Pure; any thread. The index is three LMDB tables in one file.
// Numbers in values are little endian, those in keys big endian so that they sort.
//
//  "objects": key = 128-bit keyed hash of (realm, bucket, key); 92 to 163 bytes, more with flag 4
//    0   4  CRC32C of the key and all following bytes
//    4   2  version
//    6   2  low byte, flags: 1 whole, 2 rebuilt, 4 described; high byte: power cuts
//    8   8  generation
//    16  8  object size
//    24  8  hash of the ETag
//    32  8  validated at, wall clock, ms
//    40  8  validated at, monotonic clock of process `opener`, ms
//    48  4  opener
//    52  4  block size
//    56  4  number of blocks of the place
//    60  32 place of the run that holds the whole object, with flag "whole"; else 0
//    92  up to 71: the version's checksums, packed (s3/s3_sums.c)
//
// The checksums are left out if none is known, or if the headers of the runs have them. With flag
// "described", a byte with the length of the checksums comes before them. After them comes the
// version's description: Last-Modified 8, length of the version id 2, version id, reply headers.
// The flag is set if the version's runs were stored when it had other headers. A release that does
// not know this flag treats a page with such a record as damaged, and rebuilds the index from
// segments.
//
//  "places": key = generation, first block; 60 bytes; used for objects of several runs
//    0   4  CRC32C of the key and all following bytes
//    4   2  version, then 2 zero
//    8   16 hash of the object
//    24  4  number of blocks
//    28  32 place
//
//  "meta": key "m"; 40 bytes
//    0   4  CRC32C of all following bytes
//    4   4  version
//    8   16 creation id of the cache
//    24  8  number of blocks
//    32  8  zero
//
// A place is: segment number 4, header offset 4, header length 4, payload offset 4, payload length
// 4, first unit 4, salt 8.
//
// LMDB has no checksums, so each value has its own. It covers the key, too, so a record under
// another key is detected like a flipped bit. A bad record is a miss.
#include "store/index/index_format.h"

static_assert(INDEX_OBJECT_LEN <= 96,
              "an object costs 183 bytes in all, and 1.5 for each byte of its checksums");
static_assert(60 + 32 == INDEX_OBJECT_LEN, "checksums begin after the place");
static_assert(28 + 32 == INDEX_PLACE_LEN, "the place ends the record");
static_assert(32 + 8 == INDEX_META_LEN, "zeros end the record");
static_assert(8 + CACHE_ID_LEN == 24, "the cache's id is between version and number of blocks");
static_assert(STORE_DESCRIBED_MAX <= UINT16_MAX, "the length of a version id has two bytes");
static_assert(STORE_SUMS_MAX <= UINT8_MAX, "the length of the checksums has one byte");
static_assert(INDEX_DESCRIBED < 1u << INDEX_CUTS_SHIFT, "the flags are in the low byte");

static void put_be64(char *at, uint64_t value)
{
    value = htobe64(value);
    memcpy(at, &value, sizeof(value));
}

static uint64_t get_be64(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return be64toh(value);
}

void index_object_key(struct hash128 hash, char ret_key[INDEX_OBJECT_KEY_LEN])
{
    put_be64(ret_key, hash.hi);
    put_be64(ret_key + 8, hash.lo);
}

struct hash128 index_object_key_parse(const char *key)
{
    return (struct hash128){get_be64(key), get_be64(key + 8)};
}

void index_place_key(uint64_t generation, uint64_t first_block, char ret_key[INDEX_PLACE_KEY_LEN])
{
    put_be64(ret_key, generation);
    put_be64(ret_key + 8, first_block);
}

void index_place_key_parse(const char *key, uint64_t *ret_generation, uint64_t *ret_first_block)
{
    *ret_generation = get_be64(key);
    *ret_first_block = get_be64(key + 8);
}

static uint32_t value_crc(const char key[16], const char *value, size_t len)
{
    return disk_crc32c_more(disk_crc32c(key, 16), value + 4, len - 4);
}

static void place_put(char *at, const struct index_place *place)
{
    wire_put_u32(at, place->number);
    wire_put_u32(at + 4, place->header_offset);
    wire_put_u32(at + 8, place->header_len);
    wire_put_u32(at + 12, place->payload_offset);
    wire_put_u32(at + 16, place->payload_len);
    wire_put_u32(at + 20, place->first_unit);
    wire_put_u64(at + 24, place->salt);
}

static struct index_place place_get(const char *at, uint32_t block_count)
{
    return (struct index_place){
        .number = wire_get_u32(at),
        .header_offset = wire_get_u32(at + 4),
        .header_len = wire_get_u32(at + 8),
        .payload_offset = wire_get_u32(at + 12),
        .payload_len = wire_get_u32(at + 16),
        .first_unit = wire_get_u32(at + 20),
        .block_count = block_count,
        .salt = wire_get_u64(at + 24),
    };
}

// Verifies the properties of a place on which its users rely. A checksum does not prove them.
static bool place_is_sane(const struct index_place *place)
{
    return place->number != 0 && place->block_count != 0 && place->header_len >= RUN_HEADER_FIXED &&
           place->header_len <= RUN_HEADER_MAX && place->header_offset >= SEGMENT_DATA_OFFSET &&
           (place->payload_len < RUN_PACKED_MAX
                ? (uint64_t)place->header_offset + place->header_len == place->payload_offset
                : (uint64_t)place->header_offset + place->header_len <= place->payload_offset &&
                      place->payload_offset % RUN_PAYLOAD_ALIGN == 0) &&
           (uint64_t)place->payload_offset + place->payload_len <= SEGMENT_FILE_MAX;
}

static bool place_fits_object(const struct index_place *place, const struct index_record *record)
{
    return place->block_count ==
               segment_run_object_blocks(record->size_bytes, record->block_size_bytes) &&
           place->payload_len == record->size_bytes;
}

size_t index_object_encode(struct hash128 hash, const struct index_record *record,
                           char ret[INDEX_OBJECT_MAX])
{
    bool is_described = (record->flags & INDEX_DESCRIBED) != 0;
    char *sums = ret + INDEX_OBJECT_LEN + is_described;
    size_t len = INDEX_OBJECT_LEN + is_described + record->sums.len;
    check(record->sums.len <= STORE_SUMS_MAX);
    memset(ret, 0, INDEX_OBJECT_LEN);
    wire_put_u16(ret + 4, INDEX_FORMAT_VERSION);
    wire_put_u16(ret + 6, record->flags);
    wire_put_u64(ret + 8, record->generation);
    wire_put_u64(ret + 16, record->size_bytes);
    wire_put_u64(ret + 24, record->etag_hash);
    wire_put_u64(ret + 32, record->validated_wall_ms);
    wire_put_u64(ret + 40, record->validated_mono_ms);
    wire_put_u32(ret + 48, record->opener);
    wire_put_u32(ret + 52, record->block_size_bytes);
    if ((record->flags & INDEX_WHOLE) != 0) {
        check(place_fits_object(&record->place, record));
        wire_put_u32(ret + 56, record->place.block_count);
        place_put(ret + 60, &record->place);
    }
    memcpy(sums, record->sums.bytes, record->sums.len);
    if (is_described) {
        check(record->described.len <= STORE_DESCRIBED_MAX);
        check(record->described.len == 0 || record->described.ptr != NULL);
        ret[INDEX_OBJECT_LEN] = (char)record->sums.len;
        memcpy(ret + len, record->described.ptr, record->described.len);
        len += record->described.len;
    }
    char key[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key);
    wire_put_u32(ret, value_crc(key, ret, len));
    return len;
}

// Decodes the end of a record, after the place: checksums and, if present, the description.
static bool tail_get(struct span tail, struct index_record *record)
{
    bool is_described = (record->flags & INDEX_DESCRIBED) != 0;
    size_t len = tail.len;
    if (is_described) {
        len = tail.len > 0 ? (uint8_t)tail.ptr[0] : SIZE_MAX;
        tail = (struct span){tail.ptr + 1, tail.len - min_u64(tail.len, 1)};
    }
    if (len > STORE_SUMS_MAX || len > tail.len) {
        return false;
    }
    record->sums.len = (uint8_t)len;
    memcpy(record->sums.bytes, tail.ptr, len);
    record->described = (struct span){tail.ptr + len, tail.len - len};
    return record->described.len <= STORE_DESCRIBED_MAX &&
           is_described == (record->described.len > 0);
}

bool index_object_decode(struct hash128 hash, struct span value, struct index_record *ret_record)
{
    char key[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key);
    const char *v = value.ptr;
    if (value.len < INDEX_OBJECT_LEN || value.len > INDEX_OBJECT_MAX ||
        wire_get_u32(v) != value_crc(key, v, value.len) ||
        wire_get_u16(v + 4) != INDEX_FORMAT_VERSION) {
        return false;
    }
    struct index_record record = {
        .flags = wire_get_u16(v + 6),
        .generation = wire_get_u64(v + 8),
        .size_bytes = wire_get_u64(v + 16),
        .etag_hash = wire_get_u64(v + 24),
        .validated_wall_ms = wire_get_u64(v + 32),
        .validated_mono_ms = wire_get_u64(v + 40),
        .opener = wire_get_u32(v + 48),
        .block_size_bytes = wire_get_u32(v + 52),
    };
    if (!tail_get((struct span){v + INDEX_OBJECT_LEN, value.len - INDEX_OBJECT_LEN}, &record)) {
        return false;
    }
    if (record.generation == 0 || record.block_size_bytes < STORE_BLOCK_SIZE_MIN ||
        record.block_size_bytes > STORE_BLOCK_SIZE_MAX) {
        return false;
    }
    if ((record.flags & INDEX_WHOLE) != 0) {
        record.place = place_get(v + 60, wire_get_u32(v + 56));
        if (!place_is_sane(&record.place) || !place_fits_object(&record.place, &record)) {
            return false;
        }
    }
    *ret_record = record;
    return true;
}

#define DESCRIBED_FIXED 10u

size_t index_described_encode(const struct store_object *object, char ret[STORE_DESCRIBED_MAX])
{
    size_t len = DESCRIBED_FIXED + object->version_id.len + object->headers.len;
    if (len > STORE_DESCRIBED_MAX) {
        return 0;
    }
    wire_put_u64(ret, (uint64_t)object->last_modified);
    wire_put_u16(ret + 8, (uint16_t)object->version_id.len);
    char *at = ret + DESCRIBED_FIXED;
    if (object->version_id.len > 0) {
        memcpy(at, object->version_id.ptr, object->version_id.len);
    }
    if (object->headers.len > 0) {
        memcpy(at + object->version_id.len, object->headers.ptr, object->headers.len);
    }
    return len;
}

struct store_object *index_described_object(const struct run_header *header, uint64_t generation,
                                            struct span described)
{
    const char *d = described.ptr;
    size_t id_len = described.len >= DESCRIBED_FIXED ? wire_get_u16(d + 8) : SIZE_MAX;
    if (described.len < DESCRIBED_FIXED || id_len > described.len - DESCRIBED_FIXED) {
        return NULL;
    }
    check(generation != 0);
    struct span version_id = {d + DESCRIBED_FIXED, id_len};
    struct span headers = {version_id.ptr + id_len, described.len - DESCRIBED_FIXED - id_len};
    struct store_object *object = store_object_new(
        header->hash, header->realm, header->bucket, header->key, header->etag, version_id, headers,
        header->object_size_bytes, header->block_size_bytes, (time_t)wire_get_u64(d));
    if (object != NULL) {
        object->generation = generation;
    }
    return object;
}

void index_place_encode(uint64_t generation, uint64_t first_block, struct hash128 hash,
                        const struct index_place *place, char ret[INDEX_PLACE_LEN])
{
    memset(ret, 0, INDEX_PLACE_LEN);
    wire_put_u16(ret + 4, INDEX_FORMAT_VERSION);
    wire_put_u64(ret + 8, hash.hi);
    wire_put_u64(ret + 16, hash.lo);
    wire_put_u32(ret + 24, place->block_count);
    place_put(ret + 28, place);
    char key[INDEX_PLACE_KEY_LEN];
    index_place_key(generation, first_block, key);
    wire_put_u32(ret, value_crc(key, ret, INDEX_PLACE_LEN));
}

bool index_place_decode(uint64_t generation, uint64_t first_block, struct span value,
                        struct hash128 *ret_hash, struct index_place *ret_place)
{
    char key[INDEX_PLACE_KEY_LEN];
    index_place_key(generation, first_block, key);
    const char *v = value.ptr;
    if (value.len != INDEX_PLACE_LEN || wire_get_u32(v) != value_crc(key, v, INDEX_PLACE_LEN) ||
        wire_get_u16(v + 4) != INDEX_FORMAT_VERSION) {
        return false;
    }
    struct index_place place = place_get(v + 28, wire_get_u32(v + 24));
    if (!place_is_sane(&place)) {
        return false;
    }
    *ret_hash = (struct hash128){wire_get_u64(v + 8), wire_get_u64(v + 16)};
    *ret_place = place;
    return true;
}

void index_meta_encode(const struct index_meta *meta, char ret[INDEX_META_LEN])
{
    memset(ret, 0, INDEX_META_LEN);
    wire_put_u32(ret + 4, INDEX_FORMAT_VERSION);
    memcpy(ret + 8, meta->cache_id, CACHE_ID_LEN);
    wire_put_u64(ret + 24, meta->blocks);
    wire_put_u32(ret, disk_crc32c(ret + 4, INDEX_META_LEN - 4));
}

bool index_meta_decode(struct span value, struct index_meta *ret_meta)
{
    const char *v = value.ptr;
    if (value.len != INDEX_META_LEN || wire_get_u32(v) != disk_crc32c(v + 4, INDEX_META_LEN - 4) ||
        wire_get_u32(v + 4) != INDEX_FORMAT_VERSION) {
        return false;
    }
    memcpy(ret_meta->cache_id, v + 8, CACHE_ID_LEN);
    ret_meta->blocks = wire_get_u64(v + 24);
    return true;
}

#define PAGE_BYTES 4096u

static const char *page_of(const void *value)
{
    return (const char *)value - (uintptr_t)value % PAGE_BYTES;
}

const char *index_map_of(const void *value)
{
    return page_of(value) - wire_get_u64(page_of(value)) * PAGE_BYTES;
}

struct index_place index_place_of(const struct store_place *place)
{
    return (struct index_place){
        .number = place->segment_number,
        .header_offset = place->header_offset,
        .header_len = place->header_len,
        .payload_offset = place->payload_offset,
        .payload_len = place->payload_len,
        .first_unit = place->first_unit,
        .block_count = place->block_count,
        .salt = place->salt,
    };
}

struct store_place index_place_to_store(const struct index_place *place, uint64_t generation,
                                        uint64_t first_block, uint32_t block_size_bytes)
{
    return (struct store_place){
        .segment_number = place->number,
        .header_offset = place->header_offset,
        .header_len = place->header_len,
        .payload_offset = place->payload_offset,
        .payload_len = place->payload_len,
        .salt = place->salt,
        .generation = generation,
        .first_block = first_block,
        .block_count = place->block_count,
        .block_size_bytes = block_size_bytes,
        .first_unit = place->first_unit,
    };
}

bool index_place_equal(const struct index_place *a, const struct index_place *b)
{
    return a->number == b->number && a->header_offset == b->header_offset && a->salt == b->salt;
}
