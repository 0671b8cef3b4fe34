// SPDX-License-Identifier: Apache-2.0
// Any bytes as a segment image: no crash. Only headers are returned that are whole, at their own
// position and of this segment. The first byte says how often checksums are corrected, so that the
// fuzzer gets past them.
#include <stdlib.h>
#include <string.h>

#include "store/segment/segment_scan.h"

#define SIZE (1u << 18)
#define NUMBER 1u
#define SALT 2u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct image {
    char *bytes;
    uint64_t end; // of the last run found
};

static void image_read(void *ctx, uint64_t offset, char *buf, size_t len)
{
    check(offset + len <= SIZE);
    memcpy(buf, ((struct image *)ctx)->bytes + offset, len);
}

static bool image_run(void *ctx, const struct run_header *h)
{
    struct image *image = ctx;
    check(h->number == NUMBER);
    check(h->salt == SALT);
    check(h->header_offset >= image->end);
    check((uint64_t)h->payload_offset + h->payload_len <= h->end_offset);
    check(h->end_offset <= SIZE);
    check(h->unit_count == run_unit_count(h->payload_len));
    image->end = h->end_offset;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < h->unit_count; i++) {
        sum += run_header_unit_crc(h, i);
    }
    // Encoded again it is the same bytes.
    char *again = malloc(h->header_len);
    segment_run_header_encode(h, again);
    check(memcmp(again, image->bytes + h->header_offset, h->header_len) == 0 || sum == UINT32_MAX);
    free(again);
    return true;
}

// Fills in what a fuzzer does not guess: 'R' begins a run header that names its own position and
// this segment, and whose length agrees with its parts.
static void dress(char *sector, uint32_t at)
{
    uint32_t len = RUN_HEADER_FIXED + 4u * wire_get_u16(sector + 116);
    for (unsigned i = 104; i <= 114; i += 2) {
        len += wire_get_u16(sector + i);
    }
    memcpy(sector, "FBRUNHD1", 8);
    wire_put_u32(sector + 8, SEGMENT_FORMAT_VERSION);
    wire_put_u32(sector + 12, len);
    wire_put_u64(sector + 16, SALT);
    wire_put_u32(sector + 24, NUMBER);
    wire_put_u32(sector + 28, at);
}

static void put_right(char *bytes)
{
    for (uint32_t at = 0; at + SECTOR_SIZE <= SIZE; at += SECTOR_SIZE) {
        char *sector = bytes + at;
        if (sector[0] == 'R') {
            dress(sector, at);
        } else if (sector[0] == 'I') {
            memcpy(sector, "FBINTNT1", 8);
        }
        uint32_t len = segment_run_header_peek_len((struct span){sector, SIZE - at});
        if (len != 0 && len <= SIZE - at) {
            uint32_t crc = disk_crc32c(sector, 124);
            wire_put_u32(sector + 124,
                         disk_crc32c_more(crc, sector + RUN_HEADER_FIXED, len - RUN_HEADER_FIXED));
        } else if (memcmp(sector, "FBINTNT1", 8) == 0) {
            wire_put_u32(sector + 508, disk_crc32c(sector, 508));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > SIZE - SEGMENT_DATA_OFFSET) {
        return 0;
    }
    struct image image = {.bytes = calloc(1, SIZE)};
    memcpy(image.bytes + SEGMENT_DATA_OFFSET, data + 1, size - 1);
    if (data[0] % 4 != 0) {
        put_right(image.bytes);
    }
    struct segment_scan scan = {.read = image_read,
                                .on_run = image_run,
                                .ctx = &image,
                                .io_ctx = &image,
                                .number = NUMBER,
                                .salt = SALT,
                                .size_bytes = SIZE};
    struct segment_scan_result result;
    check(segment_scan_run(&scan, &result) == ERR_OK);
    check(result.end_offset <= SIZE);
    struct segment_header header;
    struct segment_seal seal;
    if (size > SECTOR_SIZE) {
        (void)(segment_header_decode((const char *)data, &header) == ERR_OK);
        (void)(segment_seal_decode((const char *)data, &seal) == ERR_OK);
    }
    free(image.bytes);
    return 0;
}
