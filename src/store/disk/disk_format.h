// SPDX-License-Identifier: Apache-2.0
// Shared by all files of the cache directory: the format version, the sizes allowed for segments,
// little-endian numbers, and the checksum. Pure; any thread.
#ifndef FOREBAY_STORE_DISK_DISK_FORMAT_H
#define FOREBAY_STORE_DISK_DISK_FORMAT_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"

#define SEGMENT_FORMAT_VERSION 2u
#define SEGMENT_SIZE_MIN (4u << 20)
#define SEGMENT_SIZE_MAX (256u << 20)
#define CACHE_ID_LEN 16u

#ifdef FOREBAY_FAULTS
uint32_t disk_segment_size_fixed(void); // the size that a test sets; 0: none
#else
#define disk_segment_size_fixed() 0u
#endif

// Returns the CRC32C (Castagnoli, as in iSCSI): disk_crc32c("123456789") is 0xE3069283.
uint32_t disk_crc32c(const void *bytes, size_t len);
// Continues a CRC: `crc` is that of the bytes before, or 0 if there are none.
uint32_t disk_crc32c_more(uint32_t crc, const void *bytes, size_t len);

// Removes the next line from `rest` and returns its value, if the line has this name and a value.
// Otherwise changes nothing and returns false.
bool disk_format_line(struct span *rest, const char *name, struct span *ret_value);
// Decodes a big-endian number.
uint64_t disk_u64_of_bytes(const uint8_t bytes[8]);

static inline void wire_put_u16(char *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, sizeof(value));
}

static inline void wire_put_u32(char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

static inline void wire_put_u64(char *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static inline uint16_t wire_get_u16(const char *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof(value));
    return le16toh(value);
}

static inline uint32_t wire_get_u32(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

static inline uint64_t wire_get_u64(const char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

#endif
