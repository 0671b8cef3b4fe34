// SPDX-License-Identifier: Apache-2.0
// Records of the index: encode and decode. Pure; any thread.
#ifndef FOREBAY_STORE_INDEX_FORMAT_H
#define FOREBAY_STORE_INDEX_FORMAT_H

#include "store/segment/segment_format.h"

#define INDEX_FORMAT_VERSION 1u
#define INDEX_OBJECT_KEY_LEN 16u
#define INDEX_PLACE_KEY_LEN 16u
#define INDEX_OBJECT_LEN 92u // bytes of a record without checksums
#define INDEX_OBJECT_MAX (INDEX_OBJECT_LEN + 1 + STORE_SUMS_MAX + STORE_DESCRIBED_MAX)
#define INDEX_PLACE_LEN 60u
#define INDEX_META_LEN 40u

#define INDEX_WHOLE 1u   // one run holds the whole object; `place` is its place
#define INDEX_REBUILT 2u // found in a segment, so it is revalidated before the first use
// `described` has the object's reply headers. They replace those in the headers of its runs.
#define INDEX_DESCRIBED 4u
// The high byte of the flags is the count of power cuts when the record was validated. If the
// directory's count differs now, the record is revalidated, because a drive that lies about syncs
// may have lost a newer record or a delete.
#define INDEX_CUTS_SHIFT 8u

struct index_place {
    uint32_t number, header_offset, header_len, payload_offset, payload_len, first_unit,
        block_count;
    uint64_t salt;
};

struct index_record {
    uint64_t generation, size_bytes, etag_hash;
    // Only the process `opener` may use validated_mono_ms. Other processes use validated_wall_ms.
    uint64_t validated_wall_ms, validated_mono_ms;
    uint32_t opener;
    uint32_t block_size_bytes;
    uint16_t flags;
    struct index_place place; // with INDEX_WHOLE: the place of the only run
    struct store_sums sums;   // checksums of this version
    // With INDEX_DESCRIBED: the bytes that index_described_encode() made. They belong to the page
    // or buffer from which the record was decoded.
    struct span described;
};

struct index_meta {
    uint8_t cache_id[CACHE_ID_LEN];
    uint64_t blocks;
};

// Encodes the version's description: Last-Modified, version id and reply headers, which run headers
// have, too. Returns its length, or 0 if it is too long.
size_t index_described_encode(const struct store_object *object,
                              char ret[STORE_DESCRIBED_MAX]) MUST_USE;
// Returns the version of a run, with the description `described` instead of the one in the run's
// header. Returns NULL if `described` is damaged, or if the result exceeds a limit.
struct store_object *index_described_object(const struct run_header *header, uint64_t generation,
                                            struct span described) MUST_USE;

void index_object_key(struct hash128 hash, char ret_key[INDEX_OBJECT_KEY_LEN]);
void index_place_key(uint64_t generation, uint64_t first_block, char ret_key[INDEX_PLACE_KEY_LEN]);
void index_place_key_parse(const char *key, uint64_t *ret_generation, uint64_t *ret_first_block);
struct hash128 index_object_key_parse(const char *key);

// Returns the encoded length.
size_t index_object_encode(struct hash128 hash, const struct index_record *record,
                           char ret[INDEX_OBJECT_MAX]) MUST_USE;
// Returns false if the value is not a record, is damaged, or belongs to another key.
bool index_object_decode(struct hash128 hash, struct span value,
                         struct index_record *ret_record) MUST_USE;
// `hash` identifies the object of the place.
void index_place_encode(uint64_t generation, uint64_t first_block, struct hash128 hash,
                        const struct index_place *place, char ret[INDEX_PLACE_LEN]);
bool index_place_decode(uint64_t generation, uint64_t first_block, struct span value,
                        struct hash128 *ret_hash, struct index_place *ret_place) MUST_USE;
void index_meta_encode(const struct index_meta *meta, char ret[INDEX_META_LEN]);
bool index_meta_decode(struct span value, struct index_meta *ret_meta) MUST_USE;

// Returns the address of LMDB's map, for which LMDB has no call. Computes it from the address of a
// value, because each page begins with its own number.
const char *index_map_of(const void *value);

struct index_place index_place_of(const struct store_place *place);
struct store_place index_place_to_store(const struct index_place *place, uint64_t generation,
                                        uint64_t first_block, uint32_t block_size_bytes);
bool index_place_equal(const struct index_place *a, const struct index_place *b);

#endif
