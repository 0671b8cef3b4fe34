// SPDX-License-Identifier: Apache-2.0
// Proves: a scan finds every whole run, also after torn ones, and nothing else.
#include "store/segment/segment_scan.h"

#include <stdlib.h>

#include "test.h"

#define SIZE (4u << 20)
#define NUMBER 5u
#define SALT 99u

struct image {
    char *bytes;
    uint32_t append, runs_found;
    uint64_t generations[4096];
};

static void image_read(void *ctx, uint64_t offset, char *buf, size_t len)
{
    struct image *image = ctx;
    cr_assert(offset + len <= SIZE);
    memcpy(buf, image->bytes + offset, len);
}

static bool image_run(void *ctx, const struct run_header *header)
{
    struct image *image = ctx;
    cr_assert(image->runs_found < 4096);
    cr_assert(header->number == NUMBER && header->salt == SALT);
    cr_assert(header->realm.len + header->bucket.len + header->key.len < 4096);
    image->generations[image->runs_found++] = header->generation;
    return true;
}

static struct segment_scan_result scan(struct image *image)
{
    struct segment_scan_result result;
    struct segment_scan scan = {.read = image_read,
                                .on_run = image_run,
                                .ctx = image,
                                .io_ctx = image,
                                .number = NUMBER,
                                .salt = SALT,
                                .size_bytes = SIZE};
    image->runs_found = 0;
    cr_assert(segment_scan_run(&scan, &result) == ERR_OK);
    return result;
}

enum shape { WHOLE, WITHOUT_HEADER, OTHER_SALT, OTHER_PLACE };

static void add(struct image *image, uint32_t payload_len, uint64_t generation, enum shape shape)
{
    static char crcs[4 * RUN_UNITS_MAX];
    struct run_header h = {
        .salt = shape == OTHER_SALT ? SALT + 1 : SALT,
        .number = NUMBER,
        .payload_len = payload_len,
        .unit_count = run_unit_count(payload_len),
        .generation = generation,
        .object_size_bytes = payload_len,
        .block_size_bytes = 1u << 20,
        .block_count = (uint32_t)segment_run_object_blocks(payload_len, 1u << 20),
        .key = SPAN("key"),
        .etag = SPAN("\"e\""),
        .unit_crcs = crcs,
    };
    struct span none = {NULL, 0};
    h.header_len = segment_run_header_len(none, none, h.key, h.etag, none, none, h.unit_count);
    struct run_layout l;
    segment_run_layout_make(image->append, h.header_len, payload_len, &l);
    cr_assert(l.end_offset <= SIZE);
    h.header_offset = l.header_offset + (shape == OTHER_PLACE ? 512 : 0);
    h.payload_offset = l.payload_offset + (shape == OTHER_PLACE ? 512 : 0);
    h.end_offset = (uint32_t)l.end_offset + (shape == OTHER_PLACE ? 512 : 0);
    if (shape == OTHER_PLACE) {
        h.payload_offset = payload_len < RUN_PACKED_MAX
                               ? h.header_offset + h.header_len
                               : (uint32_t)align_up_u64(h.payload_offset, 4096);
        h.end_offset = (uint32_t)align_up_u64(h.payload_offset + payload_len, 512);
    }
    if (l.intent) {
        struct run_intent intent = {
            NUMBER, SALT, l.start, (uint32_t)l.end_offset, l.header_offset, l.payload_offset};
        segment_run_intent_encode(&intent, image->bytes + l.start);
    }
    memset(image->bytes + l.payload_offset, 0x5a, payload_len);
    if (shape != WITHOUT_HEADER) {
        segment_run_header_encode(&h, image->bytes + l.header_offset);
    }
    image->append = (uint32_t)l.end_offset;
}

static struct image *image_new(void)
{
    struct image *image = calloc(1, sizeof(*image));
    image->bytes = calloc(1, SIZE);
    image->append = SEGMENT_DATA_OFFSET;
    return image;
}

static void image_free(struct image *image)
{
    free(image->bytes);
    free(image);
}

Test(segment_scan, every_whole_run_is_found_behind_torn_ones_and_strangers_are_not)
{
    struct image *image = image_new();
    add(image, 100, 1, WHOLE);
    add(image, 300000, 2, WITHOUT_HEADER); // announced: jumped over
    add(image, 40000, 3, WHOLE);
    add(image, 20000, 4, WITHOUT_HEADER); // in one write: sector by sector
    add(image, 300000, 5, WHOLE);
    add(image, 70000, 6, OTHER_SALT);
    add(image, 1000, 7, OTHER_PLACE);
    add(image, 0, 8, WHOLE);
    struct segment_scan_result r = scan(image);
    cr_assert(image->runs_found == 4);
    cr_assert(image->generations[0] == 1 && image->generations[1] == 3);
    cr_assert(image->generations[2] == 5 && image->generations[3] == 8);
    cr_assert(r.run_count == 4 && r.torn_count == 1 && r.end_offset == image->append);
    image_free(image);
}

Test(segment_scan, an_announced_run_at_the_end_keeps_its_room)
{
    struct image *image = image_new();
    add(image, 100, 1, WHOLE);
    add(image, 1u << 20, 2, WITHOUT_HEADER);
    struct segment_scan_result r = scan(image);
    cr_assert(image->runs_found == 1 && r.torn_count == 1 && r.end_offset == image->append);
    image_free(image);
}

Test(segment_scan, an_intent_without_a_header_hides_no_run_in_its_span)
{
    struct image *image = image_new();
    add(image, 1u << 20, 1, WITHOUT_HEADER); // announced; it ended early and gave back the rest
    image->append = SEGMENT_DATA_OFFSET + (128u << 10);
    add(image, 1000, 2, WHOLE);
    image->append += 700u << 10;
    add(image, 400000, 3, WHOLE); // over the end that the intent names
    struct segment_scan_result r = scan(image);
    cr_assert(image->runs_found == 2, "%u", image->runs_found);
    cr_assert(image->generations[0] == 2 && image->generations[1] == 3);
    cr_assert(r.torn_count == 1 && r.end_offset == image->append);
    image_free(image);
}

Test(segment_scan, an_intent_keeps_its_room_when_the_runs_in_its_span_end_before_it)
{
    struct image *image = image_new();
    add(image, 1u << 20, 1, WITHOUT_HEADER);
    uint32_t end = image->append;
    image->append = SEGMENT_DATA_OFFSET + (128u << 10);
    add(image, 1000, 2, WHOLE);
    struct segment_scan_result r = scan(image);
    cr_assert(image->runs_found == 1 && r.end_offset == end);
    image_free(image);
}

Test(segment_scan, writing_continues_where_nothing_was_ever_written)
{
    struct image *image = image_new();
    add(image, 100, 1, WHOLE);
    add(image, 40000, 2, WHOLE);
    uint32_t header = image->append;
    add(image, 20000, 3, WHOLE);
    image->bytes[header + 40] ^= 1; // nobody knows what lies there
    struct segment_scan_result r = scan(image);
    cr_assert(image->runs_found == 2);
    cr_assert(r.end_offset == image->append, "%u of %u", r.end_offset, image->append);
    image_free(image);
}

Test(segment_scan, payload_that_looks_like_runs_is_jumped_over)
{
    struct image *image = image_new();
    add(image, 3u << 20, 1, WHOLE);
    uint32_t end = image->append;
    image->append = 1u << 20;
    add(image, 100, 2, WHOLE); // inside the payload of the first
    struct segment_scan_result r = scan(image);
    cr_assert(image->runs_found == 1 && image->generations[0] == 1 && r.end_offset == end);
    image_free(image);
}

Test(segment_scan, damage_anywhere_never_crashes_and_costs_only_the_damaged_runs)
{
    struct image *image = image_new();
    for (unsigned i = 0; i < 60; i++) {
        add(image, i % 3 == 0 ? 200 : i % 3 == 1 ? 40000 : 66000, i + 1, WHOLE);
    }
    char *pristine = malloc(SIZE);
    memcpy(pristine, image->bytes, SIZE);
    uint64_t seed = 12345;
    for (unsigned round = 0; round < 300; round++) {
        memcpy(image->bytes, pristine, SIZE);
        for (unsigned i = 0; i < 5; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            image->bytes[seed >> 33 & (SIZE - 1)] ^= (char)(1 << (seed >> 60 & 7));
        }
        (void)scan(image);
        cr_assert(image->runs_found >= 55 && image->runs_found <= 60);
    }
    for (unsigned i = 0; i < SIZE; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        image->bytes[i] = (char)(seed >> 56);
    }
    (void)scan(image);
    cr_assert(image->runs_found == 0);
    free(pristine);
    image_free(image);
}

static bool image_stop(void *ctx, const struct run_header *header)
{
    (void)header;
    return ++((struct image *)ctx)->runs_found < 2;
}

Test(segment_scan, the_caller_can_stop_it)
{
    struct image *image = image_new();
    for (unsigned i = 0; i < 5; i++) {
        add(image, 100, i, WHOLE);
    }
    struct segment_scan_result result;
    struct segment_scan scan = {.read = image_read,
                                .on_run = image_stop,
                                .ctx = image,
                                .io_ctx = image,
                                .number = NUMBER,
                                .salt = SALT,
                                .size_bytes = SIZE};
    cr_assert(segment_scan_run(&scan, &result) == ERR_CANCELLED);
    cr_assert(image->runs_found == 2);
    image_free(image);
}
