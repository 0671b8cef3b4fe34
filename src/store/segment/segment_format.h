// SPDX-License-Identifier: Apache-2.0
// The format of a segment file: encode and decode. segment_format.c lists the offsets. Pure; any
// thread.
#ifndef FOREBAY_STORE_SEGMENT_FORMAT_H
#define FOREBAY_STORE_SEGMENT_FORMAT_H

#include <assert.h>

#include "store/disk/disk_format.h"
#include "store/store.h"

#define SECTOR_SIZE 512u
#define SEGMENT_SEAL_OFFSET SECTOR_SIZE
#define SEGMENT_DATA_OFFSET 4096u
#define SEGMENT_FILE_MAX (SEGMENT_SIZE_MAX + SEGMENT_SIZE_MAX / 64)
// Returns the size of the file for a segment size, which is a power of two. The file has extra
// bytes for headers and the table. So runs whose length divides the segment size leave little room
// unused.
static inline uint32_t segment_file_bytes(uint32_t segment_size_bytes)
{
    bool fixed = segment_size_bytes == disk_segment_size_fixed();
    return segment_size_bytes + (fixed ? 0 : segment_size_bytes / 64);
}

#define RUN_ALIGN SECTOR_SIZE
#define RUN_PAYLOAD_ALIGN 4096u
#define RUN_PACKED_MAX 32768u     // a shorter payload follows its header without a gap
#define RUN_ONE_WRITE_MAX 262144u // a run with a longer payload begins with an intent
#define RUN_HEADER_FIXED 128u
#define RUN_HEADER_MAX 16384u
#define RUN_UNITS_MAX (STORE_BLOCK_SIZE_MAX / STORE_CHECKSUM_UNIT)
#define RUN_REALM_MAX 255u
#define RUN_BUCKET_MAX 255u
#define RUN_KEY_MAX 1024u
#define RUN_ETAG_MAX 1024u
#define RUN_VERSION_ID_MAX 1024u

// Returns the longest run that a segment stores without special treatment. A longer run of more
// than one block is long: see store_long.c.
static inline uint64_t segment_run_bytes_max(uint32_t segment_size_bytes)
{
    uint64_t quarter = segment_size_bytes / 4;
    return quarter < STORE_RUN_MAX ? quarter : STORE_RUN_MAX;
}
static inline bool segment_run_is_long(uint32_t segment_size_bytes, uint32_t block_count,
                                       uint64_t payload_len)
{
    return block_count > 1 && payload_len > segment_run_bytes_max(segment_size_bytes);
}

// Write and verify the fields that all sectors except run headers have in common: the first 24
// bytes, and the CRC at the end.
void segment_sector_head(char *sector, const char magic[8], uint32_t number, uint64_t salt);
void segment_sector_end(char *sector);
enum err segment_sector_verify(const char *sector, const char magic[8]) MUST_USE;

struct segment_header {
    uint32_t number;
    uint64_t salt;
    uint64_t size_bytes;
    uint64_t created_us; // wall clock at creation
    uint8_t cache_id[CACHE_ID_LEN];
};
void segment_header_encode(const struct segment_header *header, char *ret_sector);
enum err segment_header_decode(const char *sector, struct segment_header *ret_header) MUST_USE;

// The seal of a full segment, which is written once. A segment without a seal may hold runs that
// the index does not know.
struct segment_seal {
    uint32_t number; // 0: there is no seal
    uint64_t salt;
    uint32_t end_offset, unit_count, run_count;
    uint32_t row_count, table_id; // row count and id of the table at the segment's end
    // Bytes between the last run and the table that were returned to the file system.
    uint32_t given_bytes;
};
void segment_seal_encode(const struct segment_seal *seal, char *ret_sector);
enum err segment_seal_decode(const char *sector, struct segment_seal *ret_seal) MUST_USE;

// Announces a run that is too long for one write. Written before the run.
struct run_intent {
    uint32_t number;
    uint64_t salt;
    uint32_t offset;     // offset of the intent itself
    uint32_t end_offset; // end of the whole run
    uint32_t header_offset, payload_offset;
};
void segment_run_intent_encode(const struct run_intent *intent, char *ret_sector);
enum err segment_run_intent_decode(const char *sector, struct run_intent *ret_intent) MUST_USE;

struct run_header {
    uint64_t salt;
    uint32_t number; // segment number
    uint32_t header_offset, header_len, payload_offset, payload_len;
    uint32_t end_offset; // offset after the run, where the next run may begin
    uint32_t first_unit; // number of the run's first checksum unit, counted in the segment
    uint32_t unit_count;
    uint64_t generation, object_size_bytes;
    uint32_t block_size_bytes, block_count;
    uint64_t first_block;
    struct hash128 hash;
    int64_t last_modified;
    // After decoding, the strings and unit_crcs point into the decoded bytes.
    struct span realm, bucket, key, etag, version_id, headers;
    const char *unit_crcs; // checksums of the units, 4 bytes each, little endian
};

// Returns the length of a header with these strings and that many units; 0 if a string is too long.
uint32_t segment_run_header_len(struct span realm, struct span bucket, struct span key,
                                struct span etag, struct span version_id, struct span headers,
                                uint32_t unit_count);
// `ret_bytes` holds header->header_len bytes.
void segment_run_header_encode(const struct run_header *header, char *ret_bytes);
// Decodes a header. Accepts it only if its checksum is right and it is consistent in itself. The
// caller compares salt, number, offsets and key. Returns ERR_FORMAT if no header begins here, and
// ERR_CORRUPT if the header is damaged.
enum err segment_run_header_decode(struct span bytes, struct run_header *ret_header) MUST_USE;
// Returns the length that the header states, so that the caller knows how much to read. The length
// is not verified by the checksum. Returns 0 if no header begins here.
uint32_t segment_run_header_peek_len(struct span bytes);

static inline uint32_t run_header_unit_crc(const struct run_header *header, uint32_t unit)
{
    check(unit < header->unit_count);
    return wire_get_u32(header->unit_crcs + (size_t)unit * 4);
}

static inline uint32_t run_unit_count(uint32_t payload_len)
{
    return (payload_len + STORE_CHECKSUM_UNIT - 1) / STORE_CHECKSUM_UNIT;
}

// Returns the payload length of `block_count` blocks from `first_block` on. The object's last block
// may be short.
uint64_t segment_run_payload_len(uint64_t object_size_bytes, uint32_t block_size_bytes,
                                 uint64_t first_block, uint32_t block_count);
uint64_t segment_run_object_blocks(uint64_t object_size_bytes, uint32_t block_size_bytes);

// The offsets of the parts of a run that begins at `start`, a multiple of RUN_ALIGN.
struct run_layout {
    bool intent; // the run begins with an intent sector at `start`
    uint32_t start, header_offset, payload_offset;
    uint64_t end_offset;
};
void segment_run_layout_make(uint32_t start, uint32_t header_len, uint32_t payload_len,
                             struct run_layout *ret_layout);
// Returns what the end of a run is a multiple of. The payload of a long run takes whole pages, so
// that it can be written past the page cache.
static inline uint32_t segment_run_end_align(const struct run_layout *layout)
{
    return layout->intent ? RUN_PAYLOAD_ALIGN : RUN_ALIGN;
}

static inline struct store_place run_header_place(const struct run_header *header)
{
    return (struct store_place){
        .segment_number = header->number,
        .header_offset = header->header_offset,
        .header_len = header->header_len,
        .payload_offset = header->payload_offset,
        .payload_len = header->payload_len,
        .first_unit = header->first_unit,
        .salt = header->salt,
        .generation = header->generation,
        .first_block = header->first_block,
        .block_count = header->block_count,
        .block_size_bytes = header->block_size_bytes,
        .hash = header->hash,
        .etag_hash = hash64(header->etag.ptr, header->etag.len, 0),
    };
}

// Decodes a header and compares it with the place. Returns ERR_CORRUPT if it is damaged or differs.
enum err segment_run_accept(struct span bytes, const struct store_place *place,
                            struct run_header *ret_header) MUST_USE;
// Returns a counted object with copies of a decoded header's strings; NULL if one exceeds a limit.
struct store_object *store_object_from_header(const struct run_header *header, uint64_t generation);

#endif
