// SPDX-License-Identifier: Apache-2.0
// Proves: an object that comes in several runs is verified when it is whole, whatever the order.
#include "fill/fill_private.h"

#include <stdio.h>
#include <time.h>

#include "test.h"

#define SIZE 100000u
#define RUN 1000u

static struct fill_room room;
static struct fill_worker fw = {.room = &room};
static struct object_key key;
static char data[SIZE], headers[200];
static struct store_object object;
static uint64_t failures_before; // of other tests, which may share the process

static struct s3_checksum_state *sum_of(uint64_t first, uint64_t end)
{
    struct s3_checksum_state *s = s3_checksum_new(S3_CHECKSUM_CRC64NVME);
    s3_checksum_update(s, (struct span){data + first, end - first});
    return s;
}

static void begin(const char *etag, const char *value)
{
    failures_before = stats_sum(COUNTER_origin_checksum_failures);
    for (unsigned i = 0; i < SIZE; i++) {
        data[i] = (char)(i * 131 + i / 7);
    }
    char right[64];
    struct s3_checksum_state *whole = sum_of(0, SIZE);
    s3_checksum_final(whole, right);
    s3_checksum_free(whole);
    snprintf(headers, sizeof(headers),
             "ETag: x\r\nx-amz-checksum-crc64nvme: %s\r\nx-amz-checksum-type: FULL_OBJECT\r\n",
             value != NULL ? value : right);
    object.etag = span_from_cstr(etag);
    object.headers = span_from_cstr(headers);
    object.size_bytes = SIZE;
}

static bool add(uint64_t first, uint64_t end)
{
    return checksums_object_add(&fw, &key, &object, first, end, sum_of(first, end));
}

static uint64_t failures(void)
{
    return stats_sum(COUNTER_origin_checksum_failures) - failures_before;
}

static void end(void)
{
    checksums_objects_free(&fw);
}

Test(checksums_object, in_order_backwards_and_shuffled)
{
    unsigned order[SIZE / RUN];
    begin("\"a\"", "AAAAAAAAAAA=");
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < SIZE / RUN; i++) {
            order[i] = round % 2 == 0 ? i : SIZE / RUN - 1 - i;
        }
        for (unsigned i = SIZE / RUN - 1; round > 1 && i > 0; i--) {
            unsigned j = (unsigned)((i * 7919 + round * 104729) % (i + 1)), was = order[i];
            order[i] = order[j];
            order[j] = was;
        }
        bool is_right = round % 3 != 0; // a wrong one is found by its last run, too
        begin("\"a\"", is_right ? NULL : "AAAAAAAAAAA=");
        uint64_t before = failures();
        for (unsigned i = 0; i + 1 < SIZE / RUN; i++) {
            cr_assert(add(order[i] * RUN, (order[i] + 1) * RUN), "round %u", round);
        }
        unsigned last = order[SIZE / RUN - 1];
        cr_assert_eq(add(last * RUN, (last + 1) * RUN), is_right, "round %u", round);
        cr_assert_eq(failures(), before + (is_right ? 0 : 1));
    }
    end();
}

Test(checksums_object, bytes_that_come_again_count_once)
{
    begin("\"a\"", NULL);
    cr_assert(add(0, 3000));
    cr_assert(add(1000, 2000)); // covered
    cr_assert(add(5000, 6000));
    cr_assert(add(5500, 8000)); // replaces what it covers in part
    cr_assert(add(3000, 5500));
    cr_assert(add(8000, SIZE - 1));
    cr_assert(add(SIZE - 1, SIZE));
    cr_assert_eq(failures(), 0);
    end();
}

Test(checksums_object, another_version_starts_from_nothing)
{
    begin("\"a\"", "AAAAAAAAAAA=");
    cr_assert(add(0, 50000));
    begin("\"b\"", NULL);
    cr_assert(add(50000, SIZE));
    cr_assert(add(0, 50000));
    cr_assert_eq(failures(), 0);
    end();
}

Test(checksums_object, the_oldest_object_is_dropped_when_there_are_too_many_pieces)
{
    begin("\"a\"", "AAAAAAAAAAA=");
    cr_assert(add(0, 50000));
    for (uint64_t i = 0; i < SIZE; i += 2) { // no two of them are neighbours
        key.hash.lo = 1 + i;
        cr_assert(add(i, i + 1));
    }
    cr_assert_gt(stats_sum(COUNTER_origin_checksum_given_up), 0);
    key.hash.lo = 0;
    cr_assert(add(50000, SIZE)); // its first half is forgotten: nothing can be said
    cr_assert_eq(failures(), 0);
    end();
}

static double cpu_s(void)
{
    struct timespec now;
    cr_assert(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// Half way there are 25,000 pieces, none of them a neighbour of another.
Test(checksums_object, a_hundred_thousand_pieces_in_any_order_cost_little_each)
{
    static unsigned order[SIZE];
    begin("\"a\"", NULL);
    for (unsigned i = 0; i < SIZE; i++) {
        order[i] = i;
    }
    uint64_t state = 12345;
    for (unsigned i = SIZE - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        unsigned j = (unsigned)((state >> 33) % (i + 1)), was = order[i];
        order[i] = order[j];
        order[j] = was;
    }
    uint64_t given_up = stats_sum(COUNTER_origin_checksum_given_up);
    double begun = cpu_s(), most = 0, slice = begun;
    for (unsigned i = 0; i < SIZE; i++) {
        cr_assert(add(order[i], order[i] + 1), "%u", i);
        if (i % 1000 == 999) {
            double now = cpu_s();
            most = now - slice > most ? now - slice : most;
            slice = now;
        }
    }
    fprintf(stderr, "checksums_object: 100,000 pieces in %.3f s, the slowest 1,000 in %.3f s\n",
            slice - begun, most);
    cr_assert(most < 0.1, "1,000 pieces took %.3f s", most); // of a list: 25 million steps
    cr_assert_eq(stats_sum(COUNTER_origin_checksum_given_up), given_up);
    cr_assert_eq(failures(), 0);
    cr_assert(add(0, SIZE / 2)); // the whole was judged, and forgotten
    cr_assert_eq(failures(), 0);
    end();
}
