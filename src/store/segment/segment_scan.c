// SPDX-License-Identifier: Apache-2.0
// Walks a segment from run to run. A sector holds one of three things:
//
// - A run header. The scan reports the run and jumps to its end.
// - An intent. The run's header is in the next sector. If there is no header, the run is
//   incomplete, and nothing will be written to its bytes.
// - Something else: an incomplete run that was written at once, payload, or nothing yet. The scan
//   continues with the next sector.
//
// The scan jumps only over runs that have a header, because older versions stored runs in the bytes
// that an intent names. A header that states another offset or segment counts as something else.
// The table of a segment that was continued after a clean stop counts as empty.
//
// Later writes continue after the last sector that is not empty, so they never overwrite a run that
// the scan did not recognise. The scan reads into one buffer that moves forward, so it reads each
// byte about once. It skips ranges that the file system reports as empty.
#include "store/segment/segment_scan.h"

#include <stdlib.h>

#include "store/segment/segment_table.h"

#define WINDOW_BYTES 262144u
static_assert(WINDOW_BYTES >= 2 * RUN_HEADER_MAX,
              "a header fits after any sector of the first half");

struct scanner {
    const struct segment_scan *scan;
    char *window;
    uint64_t window_offset;
    size_t window_len;
};

// Returns `len` bytes at `offset`, or fewer at the end of the segment.
static struct span scanner_bytes(struct scanner *s, uint64_t offset, size_t len)
{
    check(len <= WINDOW_BYTES);
    check(offset <= s->scan->size_bytes);
    len = (size_t)min_u64(len, s->scan->size_bytes - offset);
    if (offset < s->window_offset || offset + len > s->window_offset + s->window_len) {
        s->window_offset = offset;
        s->window_len = (size_t)min_u64(WINDOW_BYTES, s->scan->size_bytes - offset);
        s->scan->read(s->scan->io_ctx, offset, s->window, s->window_len);
    }
    check(offset >= s->window_offset && offset + len <= s->window_offset + s->window_len);
    return (struct span){s->window + (offset - s->window_offset), len};
}

static bool scanner_header(struct scanner *s, uint64_t offset, struct run_header *ret_header)
{
    uint32_t len = segment_run_header_peek_len(scanner_bytes(s, offset, RUN_HEADER_FIXED));
    if (len == 0) {
        return false;
    }
    struct run_header header;
    if (segment_run_header_decode(scanner_bytes(s, offset, len), &header) != ERR_OK ||
        header.number != s->scan->number || header.salt != s->scan->salt ||
        header.header_offset != offset || header.end_offset > s->scan->size_bytes) {
        return false;
    }
    *ret_header = header;
    return true;
}

static bool scanner_intent(struct scanner *s, uint64_t offset, struct run_intent *ret_intent)
{
    struct span sector = scanner_bytes(s, offset, SECTOR_SIZE);
    struct run_intent intent;
    if (sector.len < SECTOR_SIZE || segment_run_intent_decode(sector.ptr, &intent) != ERR_OK ||
        intent.number != s->scan->number || intent.salt != s->scan->salt ||
        intent.offset != offset || intent.end_offset > s->scan->size_bytes) {
        return false;
    }
    *ret_intent = intent;
    return true;
}

static bool scanner_is_empty(struct scanner *s, uint64_t offset)
{
    static const char nothing[SECTOR_SIZE];
    struct span sector = scanner_bytes(s, offset, SECTOR_SIZE);
    return memcmp(sector.ptr, nothing, sector.len) == 0 ||
           (sector.len == SECTOR_SIZE &&
            segment_table_sector_is_ours(sector.ptr, s->scan->number, s->scan->salt));
}

static uint64_t scanner_skip_holes(struct scanner *s, uint64_t offset)
{
    if (s->scan->next_data == NULL || offset < s->window_offset + s->window_len) {
        return offset;
    }
    uint64_t next = s->scan->next_data(s->scan->io_ctx, offset);
    return next <= offset ? offset
                          : min_u64(next & ~(uint64_t)(RUN_ALIGN - 1), s->scan->size_bytes);
}

enum err segment_scan_run(const struct segment_scan *scan, struct segment_scan_result *ret_result)
{
    check(scan->read != NULL && scan->on_run != NULL);
    check(scan->number != 0 && scan->size_bytes <= SEGMENT_FILE_MAX);
    struct scanner s = {.scan = scan, .window = malloc(WINDOW_BYTES)};
    if (s.window == NULL) {
        return ERR_NO_MEMORY;
    }
    struct segment_scan_result result = {0};
    enum err err = ERR_OK;
    uint64_t offset = SEGMENT_DATA_OFFSET;
    uint64_t end = offset;
    while (offset + SECTOR_SIZE <= scan->size_bytes) {
        check(offset % RUN_ALIGN == 0);
        struct run_header header;
        struct run_intent intent;
        bool announced = scanner_intent(&s, offset, &intent);
        if (scanner_header(&s, announced ? intent.header_offset : offset, &header)) {
            check(header.end_offset > offset); // the scan ends, because each step advances
            result.run_count++;
            uint64_t units = (uint64_t)header.first_unit + header.unit_count;
            result.unit_count = (uint32_t)min_u64(max_u64(units, result.unit_count), UINT32_MAX);
            offset = header.end_offset;
            end = max_u64(end, offset);
            if (!scan->on_run(scan->ctx, &header)) {
                err = ERR_CANCELLED;
                break;
            }
            continue;
        }
        if (announced) {
            result.torn_count++;
            end = max_u64(end, intent.end_offset);
        } else if (!scanner_is_empty(&s, offset)) {
            end = max_u64(end, offset + SECTOR_SIZE);
        }
        offset = scanner_skip_holes(&s, offset + RUN_ALIGN);
    }
    check(end >= SEGMENT_DATA_OFFSET && end <= max_u64(scan->size_bytes, SEGMENT_DATA_OFFSET));
    result.end_offset = (uint32_t)end;
    free(s.window);
    if (err == ERR_OK) {
        *ret_result = result;
    }
    return err;
}
