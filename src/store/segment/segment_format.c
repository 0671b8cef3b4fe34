// SPDX-License-Identifier: Apache-2.0
// The on-disk format of segments, version 2. Pure encode and decode; any thread. All numbers are
// little endian, every CRC is CRC32C with the usual inversion at both ends, unnamed bytes are zero.
//
// A segment is a file of fixed size: a power of two plus a 64th of it. It is allocated whole,
// written front to back, and freed as a whole. Before that, a full segment returns its unused bytes
// (segment_trim.c). A segment is never truncated. No byte is written twice, with three exceptions:
//
// - A bad run gets a mark in its header and its row.
// - If a table is damaged and cannot take a mark, the seal is erased.
// - A clean stop writes a table into a segment that the next process continues to write.
//
// Segment numbers are never reused. Each segment has a random salt, which the index and every run
// repeat. So a reader detects a stale place.
//
//   0     segment header (one sector)
//   512   seal (one sector), zero until the segment is full
//   4096  runs, each beginning at a multiple of 512
//   ...   the table of the runs (segment_table.c), up to the end; an append leaves room for it
//
// Segment header                     Seal                           Intent
//   0   8  magic "FBSEGMT1"            0   8  magic "FBSEAL01"        0   8  magic "FBINTNT1"
//   8   4  format version              8   4  format version          8   4  format version
//   12  4  segment number              12  4  segment number          12  4  segment number
//   16  8  salt                        16  8  salt                    16  8  salt
//   24  16 creation id of the cache    24  4  end of the last run     24  4  offset of this sector
//   40  8  size of the file            28  4  checksum units used     28  4  end of the run
//   48  8  wall clock at creation, us  32  4  runs begun              32  4  header offset
//                                      36  4  rows of the table       36  4  payload offset
//                                      40  4  id of the table's writing
//                                      44  4  unused bytes returned
//                                             (segment_trim.c)
//   508 4  CRC of 0..507               508 4  CRC of 0..507           508 4  CRC of 0..507
//
// A run is a header and a payload. The payload is one or more adjacent whole blocks of one version.
// A run has one of three shapes, depending on the length of the payload:
//
//   below 32 KiB    [header][payload]                  one write, one read gets both
//   up to 256 KiB   [header][..4096][payload]          one write; payload at a multiple of 4,096
//   longer          [intent][header][..4096][payload]  intent first, then payload, the header last
//
// The intent has its own sector and is never rewritten. The run's header may be missing, because of
// a crash or because the writer cancelled the run. The intent then says which bytes must not be
// written again. After such an incomplete run, a scan continues sector by sector. A run with an
// intent ends at a multiple of 4,096, so that direct I/O can write its payload. Older programs
// ended it at a multiple of 512.
//
// Run header
//   0   8  magic "FBRUNHD1"                64  4  block size
//   8   4  format version                  68  4  number of blocks
//   12  4  length of this header           72  8  first block
//   16  8  salt of the segment             80  8  keyed hash of realm, bucket, key: high half
//   24  4  segment number                  88  8  low half
//   28  4  offset of this header           96  8  Last-Modified, seconds, signed; 0 unknown
//   32  4  payload offset                  104 2  length of realm       110 2  of ETag
//   36  4  payload length                  106 2  of bucket             112 2  of versionId
//   40  4  end of the run                  108 2  of key                114 2  of the reply headers
//   44  4  ordinal of its first unit       116 2  number of checksum units
//   48  8  generation                      118 6  zero
//   56  8  object size                     124 4  CRC of the whole header but these four bytes
//   128    CRC of each 64 KiB of payload, 4 bytes each; then realm, bucket, key, ETag, versionId,
//   reply headers
//
// The generation in a header may be provisional. The index has the final one. A header's generation
// only orders versions of a key when the index is rebuilt. Checksum units are numbered through a
// segment, so that the verified marks in memory have no gaps.
//
// To mark a run as bad, segment_list_mark_bad() rewrites its header with a hash that does not match
// its key. It also marks the run's row in the table.
//
// A reader accepts a header if
//
// - magic, version and CRC are right,
// - the header is consistent in itself,
// - salt, segment number and offset are those of the place that was read, and
// - realm, bucket and key are the requested ones.
//
// The reader accepts a unit of payload if the unit's CRC is right.
#include "store/segment/segment_format.h"

static const char magic_segment[8] = {'F', 'B', 'S', 'E', 'G', 'M', 'T', '1'};
static const char magic_seal[8] = {'F', 'B', 'S', 'E', 'A', 'L', '0', '1'};
static const char magic_intent[8] = {'F', 'B', 'I', 'N', 'T', 'N', 'T', '1'};
static const char magic_run[8] = {'F', 'B', 'R', 'U', 'N', 'H', 'D', '1'};

#define SECTOR_CRC_AT 508u
#define RUN_CRC_AT 124u

static_assert(SEGMENT_DATA_OFFSET % RUN_PAYLOAD_ALIGN == 0, "runs begin aligned");
static_assert(RUN_CRC_AT + 4 == RUN_HEADER_FIXED, "the checksum ends the fixed part");
static_assert(RUN_HEADER_FIXED + 4 * RUN_UNITS_MAX + RUN_REALM_MAX + RUN_BUCKET_MAX + RUN_KEY_MAX +
                      RUN_ETAG_MAX + RUN_VERSION_ID_MAX + STORE_HEADERS_MAX <=
                  RUN_HEADER_MAX,
              "every header fits");
static_assert(RUN_HEADER_MAX + STORE_SMALL_MAX <= CHUNK_SIZE, "one chunk takes the small way");
static_assert(STORE_HEADERS_MAX <= UINT16_MAX, "lengths fit their fields");
static_assert(STORE_CHECKSUM_UNIT == CHUNK_SIZE, "a unit is a chunk");

// --- sectors

void segment_sector_head(char *sector, const char magic[8], uint32_t number, uint64_t salt)
{
    memcpy(sector, magic, 8);
    wire_put_u32(sector + 8, SEGMENT_FORMAT_VERSION);
    wire_put_u32(sector + 12, number);
    wire_put_u64(sector + 16, salt);
}

static void sector_begin(char *sector, const char magic[8], uint32_t number, uint64_t salt)
{
    memset(sector, 0, SECTOR_SIZE);
    segment_sector_head(sector, magic, number, salt);
}

void segment_sector_end(char *sector)
{
    wire_put_u32(sector + SECTOR_CRC_AT, disk_crc32c(sector, SECTOR_CRC_AT));
}

enum err segment_sector_verify(const char *sector, const char magic[8])
{
    if (memcmp(sector, magic, 8) != 0) {
        return ERR_FORMAT;
    }
    if (wire_get_u32(sector + SECTOR_CRC_AT) != disk_crc32c(sector, SECTOR_CRC_AT) ||
        wire_get_u32(sector + 8) != SEGMENT_FORMAT_VERSION) {
        return ERR_CORRUPT;
    }
    return ERR_OK;
}

void segment_header_encode(const struct segment_header *header, char *ret_sector)
{
    check(header->number != 0 && header->size_bytes <= SEGMENT_FILE_MAX);
    sector_begin(ret_sector, magic_segment, header->number, header->salt);
    memcpy(ret_sector + 24, header->cache_id, CACHE_ID_LEN);
    wire_put_u64(ret_sector + 40, header->size_bytes);
    wire_put_u64(ret_sector + 48, header->created_us);
    segment_sector_end(ret_sector);
}

enum err segment_header_decode(const char *sector, struct segment_header *ret_header)
{
    enum err err = segment_sector_verify(sector, magic_segment);
    if (err != ERR_OK) {
        return err;
    }
    struct segment_header header = {
        .number = wire_get_u32(sector + 12),
        .salt = wire_get_u64(sector + 16),
        .size_bytes = wire_get_u64(sector + 40),
        .created_us = wire_get_u64(sector + 48),
    };
    memcpy(header.cache_id, sector + 24, CACHE_ID_LEN);
    if ((header.size_bytes < SEGMENT_SIZE_MIN && header.size_bytes != disk_segment_size_fixed()) ||
        header.size_bytes > SEGMENT_FILE_MAX) {
        return ERR_CORRUPT;
    }
    *ret_header = header;
    return ERR_OK;
}

void segment_seal_encode(const struct segment_seal *seal, char *ret_sector)
{
    check(seal->number != 0); // 0 means that there is no seal
    check(seal->end_offset <= SEGMENT_FILE_MAX && seal->given_bytes <= SEGMENT_FILE_MAX);
    sector_begin(ret_sector, magic_seal, seal->number, seal->salt);
    wire_put_u32(ret_sector + 24, seal->end_offset);
    wire_put_u32(ret_sector + 28, seal->unit_count);
    wire_put_u32(ret_sector + 32, seal->run_count);
    wire_put_u32(ret_sector + 36, seal->row_count);
    wire_put_u32(ret_sector + 40, seal->table_id);
    wire_put_u32(ret_sector + 44, seal->given_bytes);
    segment_sector_end(ret_sector);
}

enum err segment_seal_decode(const char *sector, struct segment_seal *ret_seal)
{
    enum err err = segment_sector_verify(sector, magic_seal);
    if (err != ERR_OK) {
        return err;
    }
    *ret_seal = (struct segment_seal){
        .number = wire_get_u32(sector + 12),
        .salt = wire_get_u64(sector + 16),
        .end_offset = wire_get_u32(sector + 24),
        .unit_count = wire_get_u32(sector + 28),
        .run_count = wire_get_u32(sector + 32),
        .row_count = wire_get_u32(sector + 36),
        .table_id = wire_get_u32(sector + 40),
        .given_bytes = wire_get_u32(sector + 44),
    };
    return ERR_OK;
}

void segment_run_intent_encode(const struct run_intent *intent, char *ret_sector)
{
    check(intent->offset < intent->header_offset);
    check(intent->header_offset < intent->payload_offset);
    check(intent->payload_offset <= intent->end_offset && intent->end_offset % RUN_ALIGN == 0);
    sector_begin(ret_sector, magic_intent, intent->number, intent->salt);
    wire_put_u32(ret_sector + 24, intent->offset);
    wire_put_u32(ret_sector + 28, intent->end_offset);
    wire_put_u32(ret_sector + 32, intent->header_offset);
    wire_put_u32(ret_sector + 36, intent->payload_offset);
    segment_sector_end(ret_sector);
}

enum err segment_run_intent_decode(const char *sector, struct run_intent *ret_intent)
{
    enum err err = segment_sector_verify(sector, magic_intent);
    if (err != ERR_OK) {
        return err;
    }
    struct run_intent intent = {
        .number = wire_get_u32(sector + 12),
        .salt = wire_get_u64(sector + 16),
        .offset = wire_get_u32(sector + 24),
        .end_offset = wire_get_u32(sector + 28),
        .header_offset = wire_get_u32(sector + 32),
        .payload_offset = wire_get_u32(sector + 36),
    };
    bool ordered = intent.offset < intent.header_offset &&
                   intent.header_offset < intent.payload_offset &&
                   intent.payload_offset <= intent.end_offset;
    if (!ordered || intent.end_offset > SEGMENT_FILE_MAX || intent.end_offset % RUN_ALIGN != 0 ||
        intent.header_offset % RUN_ALIGN != 0) {
        return ERR_CORRUPT;
    }
    *ret_intent = intent;
    return ERR_OK;
}

// --- runs

uint64_t segment_run_object_blocks(uint64_t object_size_bytes, uint32_t block_size_bytes)
{
    check(block_size_bytes > 0);
    if (object_size_bytes == 0) {
        return 1;
    }
    return (object_size_bytes - 1) / block_size_bytes + 1;
}

uint64_t segment_run_payload_len(uint64_t object_size_bytes, uint32_t block_size_bytes,
                                 uint64_t first_block, uint32_t block_count)
{
    uint64_t begin = min_u64(object_size_bytes, first_block * block_size_bytes);
    uint64_t end = object_size_bytes;
    if (block_count <
        segment_run_object_blocks(object_size_bytes, block_size_bytes) - first_block) {
        end = (first_block + block_count) * block_size_bytes;
    }
    return end - begin;
}

uint32_t segment_run_header_len(struct span realm, struct span bucket, struct span key,
                                struct span etag, struct span version_id, struct span headers,
                                uint32_t unit_count)
{
    if (realm.len > RUN_REALM_MAX || bucket.len > RUN_BUCKET_MAX || key.len > RUN_KEY_MAX ||
        etag.len > RUN_ETAG_MAX || version_id.len > RUN_VERSION_ID_MAX ||
        headers.len > STORE_HEADERS_MAX || unit_count > RUN_UNITS_MAX) {
        return 0;
    }
    return (uint32_t)(RUN_HEADER_FIXED + 4 * unit_count + realm.len + bucket.len + key.len +
                      etag.len + version_id.len + headers.len);
}

void segment_run_layout_make(uint32_t start, uint32_t header_len, uint32_t payload_len,
                             struct run_layout *ret_layout)
{
    check(start % RUN_ALIGN == 0);
    check(header_len >= RUN_HEADER_FIXED);
    check(header_len <= RUN_HEADER_MAX && start <= SEGMENT_FILE_MAX);
    struct run_layout layout = {.start = start, .header_offset = start};
    if (payload_len > RUN_ONE_WRITE_MAX) {
        layout.intent = true;
        layout.header_offset = start + SECTOR_SIZE;
    }
    uint32_t behind = layout.header_offset + header_len;
    layout.payload_offset =
        payload_len < RUN_PACKED_MAX ? behind : (uint32_t)align_up_u64(behind, RUN_PAYLOAD_ALIGN);
    layout.end_offset =
        align_up_u64((uint64_t)layout.payload_offset + payload_len, segment_run_end_align(&layout));
    *ret_layout = layout;
}

static uint32_t run_header_crc(const char *bytes, uint32_t len)
{
    check(len >= RUN_HEADER_FIXED && len <= RUN_HEADER_MAX);
    uint32_t crc = disk_crc32c(bytes, RUN_CRC_AT);
    return disk_crc32c_more(crc, bytes + RUN_HEADER_FIXED, len - RUN_HEADER_FIXED);
}

static bool run_header_is_consistent(const struct run_header *h)
{
    if (h->header_offset < SEGMENT_DATA_OFFSET || h->header_offset % RUN_ALIGN != 0 ||
        h->end_offset % RUN_ALIGN != 0 || h->end_offset > SEGMENT_FILE_MAX) {
        return false;
    }
    uint64_t header_end = (uint64_t)h->header_offset + h->header_len;
    if (h->payload_offset < header_end ||
        (uint64_t)h->payload_offset + h->payload_len > h->end_offset) {
        return false;
    }
    if (h->payload_len < RUN_PACKED_MAX ? h->payload_offset != header_end
                                        : h->payload_offset % RUN_PAYLOAD_ALIGN != 0) {
        return false;
    }
    if (h->block_size_bytes < STORE_BLOCK_SIZE_MIN || h->block_size_bytes > STORE_BLOCK_SIZE_MAX ||
        h->block_size_bytes % STORE_CHECKSUM_UNIT != 0) {
        return false;
    }
    uint64_t blocks = segment_run_object_blocks(h->object_size_bytes, h->block_size_bytes);
    if (h->block_count == 0 || h->first_block >= blocks ||
        h->block_count > blocks - h->first_block) {
        return false;
    }
    return h->payload_len == segment_run_payload_len(h->object_size_bytes, h->block_size_bytes,
                                                     h->first_block, h->block_count) &&
           h->unit_count == run_unit_count(h->payload_len);
}

static void append_span(char **at, struct span s)
{
    if (s.len > 0) {
        memcpy(*at, s.ptr, s.len);
        *at += s.len;
    }
}

void segment_run_header_encode(const struct run_header *h, char *ret_bytes)
{
    check(h->header_len == segment_run_header_len(h->realm, h->bucket, h->key, h->etag,
                                                  h->version_id, h->headers, h->unit_count));
    check(run_header_is_consistent(h));
    char *b = ret_bytes;
    memset(b, 0, RUN_HEADER_FIXED);
    memcpy(b, magic_run, 8);
    wire_put_u32(b + 8, SEGMENT_FORMAT_VERSION);
    wire_put_u32(b + 12, h->header_len);
    wire_put_u64(b + 16, h->salt);
    wire_put_u32(b + 24, h->number);
    wire_put_u32(b + 28, h->header_offset);
    wire_put_u32(b + 32, h->payload_offset);
    wire_put_u32(b + 36, h->payload_len);
    wire_put_u32(b + 40, h->end_offset);
    wire_put_u32(b + 44, h->first_unit);
    wire_put_u64(b + 48, h->generation);
    wire_put_u64(b + 56, h->object_size_bytes);
    wire_put_u32(b + 64, h->block_size_bytes);
    wire_put_u32(b + 68, h->block_count);
    wire_put_u64(b + 72, h->first_block);
    wire_put_u64(b + 80, h->hash.hi);
    wire_put_u64(b + 88, h->hash.lo);
    wire_put_u64(b + 96, (uint64_t)h->last_modified);
    wire_put_u16(b + 104, (uint16_t)h->realm.len);
    wire_put_u16(b + 106, (uint16_t)h->bucket.len);
    wire_put_u16(b + 108, (uint16_t)h->key.len);
    wire_put_u16(b + 110, (uint16_t)h->etag.len);
    wire_put_u16(b + 112, (uint16_t)h->version_id.len);
    wire_put_u16(b + 114, (uint16_t)h->headers.len);
    wire_put_u16(b + 116, (uint16_t)h->unit_count);
    char *at = b + RUN_HEADER_FIXED;
    append_span(&at, (struct span){h->unit_crcs, (size_t)h->unit_count * 4});
    append_span(&at, h->realm);
    append_span(&at, h->bucket);
    append_span(&at, h->key);
    append_span(&at, h->etag);
    append_span(&at, h->version_id);
    append_span(&at, h->headers);
    check(at == b + h->header_len);
    wire_put_u32(b + RUN_CRC_AT, run_header_crc(b, h->header_len));
}

uint32_t segment_run_header_peek_len(struct span bytes)
{
    if (bytes.len < RUN_HEADER_FIXED || memcmp(bytes.ptr, magic_run, 8) != 0) {
        return 0;
    }
    uint32_t len = wire_get_u32(bytes.ptr + 12);
    return len >= RUN_HEADER_FIXED && len <= RUN_HEADER_MAX ? len : 0;
}

static struct span take_span(const char **at, const char *len_at)
{
    struct span s = {*at, wire_get_u16(len_at)};
    *at += s.len;
    return s;
}

enum err segment_run_header_decode(struct span bytes, struct run_header *ret_header)
{
    uint32_t len = segment_run_header_peek_len(bytes);
    if (len == 0) {
        return ERR_FORMAT;
    }
    const char *b = bytes.ptr;
    if (len > bytes.len || wire_get_u32(b + 8) != SEGMENT_FORMAT_VERSION ||
        wire_get_u32(b + RUN_CRC_AT) != run_header_crc(b, len)) {
        return ERR_CORRUPT;
    }
    struct run_header h = {
        .header_len = len,
        .salt = wire_get_u64(b + 16),
        .number = wire_get_u32(b + 24),
        .header_offset = wire_get_u32(b + 28),
        .payload_offset = wire_get_u32(b + 32),
        .payload_len = wire_get_u32(b + 36),
        .end_offset = wire_get_u32(b + 40),
        .first_unit = wire_get_u32(b + 44),
        .generation = wire_get_u64(b + 48),
        .object_size_bytes = wire_get_u64(b + 56),
        .block_size_bytes = wire_get_u32(b + 64),
        .block_count = wire_get_u32(b + 68),
        .first_block = wire_get_u64(b + 72),
        .hash = {wire_get_u64(b + 80), wire_get_u64(b + 88)},
        .last_modified = (int64_t)wire_get_u64(b + 96),
        .unit_count = wire_get_u16(b + 116),
    };
    const char *at = b + RUN_HEADER_FIXED;
    uint64_t sum = RUN_HEADER_FIXED + 4 * (uint64_t)h.unit_count;
    for (unsigned i = 104; i <= 114; i += 2) {
        sum += wire_get_u16(b + i);
    }
    if (sum != len) {
        return ERR_CORRUPT;
    }
    h.unit_crcs = at;
    at += (size_t)h.unit_count * 4;
    h.realm = take_span(&at, b + 104);
    h.bucket = take_span(&at, b + 106);
    h.key = take_span(&at, b + 108);
    h.etag = take_span(&at, b + 110);
    h.version_id = take_span(&at, b + 112);
    h.headers = take_span(&at, b + 114);
    check(at == b + len); // the lengths add up
    if (len != segment_run_header_len(h.realm, h.bucket, h.key, h.etag, h.version_id, h.headers,
                                      h.unit_count) ||
        !run_header_is_consistent(&h)) {
        return ERR_CORRUPT;
    }
    *ret_header = h;
    return ERR_OK;
}

enum err segment_run_accept(struct span bytes, const struct store_place *place,
                            struct run_header *ret_header)
{
    struct run_header h;
    enum err err = segment_run_header_decode(bytes, &h);
    if (err != ERR_OK) {
        return ERR_CORRUPT;
    }
    bool same =
        h.number == place->segment_number && h.salt == place->salt &&
        h.header_offset == place->header_offset && h.header_len == place->header_len &&
        h.payload_offset == place->payload_offset && h.payload_len == place->payload_len &&
        h.first_unit == place->first_unit && h.first_block == place->first_block &&
        h.block_count == place->block_count && h.block_size_bytes == place->block_size_bytes &&
        hash128_equal(h.hash, place->hash) && hash64(h.etag.ptr, h.etag.len, 0) == place->etag_hash;
    if (!same) {
        return ERR_CORRUPT;
    }
    *ret_header = h;
    return ERR_OK;
}
