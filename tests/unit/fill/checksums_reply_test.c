// SPDX-License-Identifier: Apache-2.0
// Proves: a reply made of several runs is judged wrong only if its bytes do not match the origin's
// checksum, or may be those of a run that was wrong. It does not matter which reader had the runs
// fetched, nor in which order.
#include "fill/fill_private.h"
#include "world_private.h"

#include <stdio.h>

#include "test.h"

#define SIZE 100000u
#define RUN 10000u

static struct run_sum_slot run_sums[FILL_RUN_SUMS];
static struct fill_room room = {.run_sums = run_sums};
static struct fill_worker fw = {.room = &room};
static char data[SIZE], headers[200];
static struct store_object object;
static uint64_t cut_before, unjudged_before;

// Tests may share a process.
static void forget_other_tests(void)
{
    memset(run_sums, 0, sizeof(run_sums));
    cut_before = stats_sum(COUNTER_origin_checksum_cut);
    unjudged_before = stats_sum(COUNTER_origin_checksum_unjudged);
}

static void begin(enum s3_checksum kind, const char *type)
{
    static const char *const NAMES[] = {[S3_CHECKSUM_CRC32] = "crc32",
                                        [S3_CHECKSUM_CRC32C] = "crc32c",
                                        [S3_CHECKSUM_CRC64NVME] = "crc64nvme",
                                        [S3_CHECKSUM_SHA256] = "sha256"};
    for (unsigned i = 0; i < SIZE; i++) {
        data[i] = (char)(i * 131 + i / 7);
    }
    char right[64];
    struct s3_checksum_state *whole = s3_checksum_new(kind);
    s3_checksum_update(whole, (struct span){data, SIZE});
    s3_checksum_final(whole, right);
    s3_checksum_free(whole);
    snprintf(headers, sizeof(headers), "x-amz-checksum-%s: %s\r\nx-amz-checksum-type: %s\r\n",
             NAMES[kind], right, type);
    object.etag = SPAN("\"a\"");
    object.headers = span_from_cstr(headers);
    object.size_bytes = SIZE;
}

// A run that has come whole.
static void note(uint64_t first, uint64_t end)
{
    struct fill fill = {.fw = &fw,
                        .phase = FILL_BODY,
                        .object = &object,
                        .first_byte = first,
                        .received = first,
                        .end_byte = end};
    checksums_run_begin(&fill);
    s3_checksum_update(fill.checksum, (struct span){data + first, end - first});
    fill.received = end;
    checksums_run_judge(&fill);
    checksums_run_drop(&fill);
}

static void note_all(void)
{
    for (uint64_t at = SIZE; at > 0; at -= RUN) {
        note(at - RUN, at);
    }
}

static struct checksums_reply begun(void)
{
    struct checksums_reply total = {0};
    checksums_reply_begin(&fw, object.hash, &total);
    return total;
}

static bool goes_on(struct checksums_reply *total, uint64_t end_byte)
{
    return !checksums_reply_is_wrong(&fw, &object, total, end_byte);
}

// A reply that sends slices of this size.
static bool is_wrong(uint64_t slice)
{
    struct checksums_reply total = begun();
    bool wrong = false;
    for (uint64_t at = slice; at < SIZE; at += slice) {
        cr_assert(goes_on(&total, at), "only the last slice is held");
    }
    wrong = !goes_on(&total, SIZE);
    checksums_reply_done(&total);
    return wrong;
}

static uint64_t cut(void)
{
    return stats_sum(COUNTER_origin_checksum_cut) - cut_before;
}

static uint64_t unjudged(void)
{
    return stats_sum(COUNTER_origin_checksum_unjudged) - unjudged_before;
}

Test(checksums_reply, every_crc)
{
    forget_other_tests();
    static const enum s3_checksum KINDS[] = {S3_CHECKSUM_CRC32, S3_CHECKSUM_CRC32C,
                                             S3_CHECKSUM_CRC64NVME};
    static const uint64_t SLICES[] = {1, 999, RUN, 3 * RUN + 7, SIZE};
    for (unsigned i = 0; i < ARRAY_LEN(KINDS); i++) {
        begin(KINDS[i], "FULL_OBJECT");
        note_all();
        for (unsigned j = 0; j < ARRAY_LEN(SLICES); j++) {
            cr_assert_not(is_wrong(SLICES[j]));
        }
        cr_assert_eq(unjudged(), 0);
        object.etag = SPAN("\"b\"");
        data[77777] ^= 1;
        note_all();
        cr_assert(is_wrong(999), "kind %u", i);
        cr_assert_eq(cut(), i + 1);
    }
}

Test(checksums_reply, sums_that_cannot_be_combined_are_not_wrong)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32, "COMPOSITE");
    data[1] ^= 1;
    cr_assert_not(is_wrong(RUN));
    begin(S3_CHECKSUM_SHA256, "FULL_OBJECT");
    cr_assert_not(is_wrong(RUN));
    cr_assert_eq(unjudged(), 0);
    begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
    note(0, RUN);
    note(2 * RUN, SIZE); // the sum of one between them is lost
    cr_assert_not(is_wrong(RUN));
    cr_assert_eq(unjudged(), 1);
    cr_assert_eq(cut(), 0);
}

// The sum of a run counts only if the reply has the whole run. It may be the sum of an earlier run.
Test(checksums_reply, a_run_counts_when_all_of_it_has_come)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
    data[5] ^= 1;
    note(0, RUN);
    data[5] ^= 1;
    checksums_condemn(&fw, &object);
    struct checksums_reply total = begun();
    cr_assert(goes_on(&total, RUN / 2));
    note_all();
    cr_assert(goes_on(&total, SIZE));
    checksums_reply_done(&total);
}

// A streamed run that brings bytes from `first` to the object's end, PIECE bytes at a time.
static void stream(uint64_t first, uint64_t piece)
{
    struct fill fill = {.fw = &fw,
                        .phase = FILL_BODY,
                        .object = &object,
                        .refused = REFUSAL_disk_full,
                        .first_byte = first,
                        .received = first,
                        .end_byte = SIZE};
    checksums_run_begin(&fill);
    while (fill.received < SIZE) {
        uint64_t n = min_u64(piece, SIZE - fill.received);
        checksums_run_take(&fill, (struct span){data + fill.received, n});
        fill.received += n;
    }
    checksums_run_judge(&fill);
    checksums_run_drop(&fill);
}

// The sums of a streamed run are those of parts, whatever pieces its bytes come in. So a reader
// that was sent away from one run, and goes on with another, is judged by both.
Test(checksums_reply, streamed_run_has_a_sum_for_each_part)
{
    static const uint64_t PIECES[] = {1, 999, WORLD_BLOCK, SIZE};
    world.options.readahead = true; // a run has WORLD_BLOCK bytes at most
    for (unsigned i = 0; i < ARRAY_LEN(PIECES); i++) {
        forget_other_tests();
        begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
        stream(0, PIECES[i]);
        cr_assert_not(is_wrong(RUN));
        cr_assert_eq(unjudged(), 0);
        struct checksums_reply total = begun();
        data[WORLD_BLOCK + 10] ^= 1;
        stream(30000, PIECES[i]); // the rest of a reply that has left the first run
        cr_assert_not(goes_on(&total, SIZE), "piece %llu", (unsigned long long)PIECES[i]);
        checksums_reply_done(&total);
        cr_assert_eq(cut(), 1);
    }
}

// The run was fetched again and is right, but the reply may have the earlier bytes.
Test(checksums_reply, a_reply_begun_before_its_object_was_wrong_is_cut)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC64NVME, "FULL_OBJECT");
    struct checksums_reply before = begun();
    checksums_condemn(&fw, &object);
    struct checksums_reply after = begun();
    note_all();
    cr_assert_not(goes_on(&before, SIZE));
    cr_assert(goes_on(&after, SIZE));
    cr_assert_eq(cut(), 1);
    cr_assert_eq(unjudged(), 0);
    checksums_reply_done(&before);
    checksums_reply_done(&after);
}

// The wrong run may be stored, and is handed out until the home has judged it.
Test(checksums_reply, a_reply_after_a_wrong_one_is_judged_by_the_same_runs)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
    data[RUN] ^= 1;
    note_all();
    cr_assert(is_wrong(RUN));
    cr_assert(is_wrong(RUN));
    data[RUN] ^= 1;
    note(RUN, 2 * RUN);
    cr_assert_not(is_wrong(RUN));
    cr_assert_eq(cut(), 2);
    cr_assert_eq(unjudged(), 0);
}

// There are more runs than slots: the other runs' sums do not cut a reply whose runs were fetched
// again.
Test(checksums_reply, runs_that_share_slots_fetched_again)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
    for (uint64_t at = 0; at < SIZE; at += 10) {
        note(at, at + 10);
    }
    checksums_condemn(&fw, &object);
    struct checksums_reply after = begun();
    for (uint64_t at = 0; at < SIZE; at += 10) {
        data[at] ^= 1;
        note(at, at + 10);
    }
    cr_assert(goes_on(&after, SIZE));
    cr_assert_eq(cut(), 0);
    checksums_reply_done(&after);
}

// One of the two is wrong. A later reply is judged by runs that come later.
Test(checksums_reply, two_runs_of_the_same_bytes_with_different_sums)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32C, "FULL_OBJECT");
    struct checksums_reply total = begun();
    note_all();
    data[RUN + 1] ^= 1;
    note(RUN, 2 * RUN);
    cr_assert_not(goes_on(&total, SIZE));
    checksums_reply_done(&total);
    data[RUN + 1] ^= 1;
    cr_assert_not(is_wrong(RUN));
    cr_assert_eq(unjudged(), 1);
    note(RUN, 2 * RUN);
    cr_assert_not(is_wrong(RUN));
    cr_assert_eq(unjudged(), 1);
}

// A slot that is half written is none.
Test(checksums_reply, a_slot_that_does_not_fit_its_proof_is_not_believed)
{
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
    note_all();
    for (unsigned i = 0; i < FILL_RUN_SUMS; i++) {
        atomic_fetch_xor(&run_sums[i].crc, 1);
    }
    cr_assert_not(is_wrong(RUN));
    cr_assert_eq(unjudged(), 1);
}

Test(checksums_reply, runs_of_one_object_do_not_drive_each_other_out)
{
    enum { PIECE = SIZE / 1000 + 1 };
    forget_other_tests();
    begin(S3_CHECKSUM_CRC32, "FULL_OBJECT");
    for (uint64_t at = 0; at < SIZE; at += PIECE) {
        note(at, min_u64(at + PIECE, SIZE));
    }
    cr_assert_not(is_wrong(SIZE));
    cr_assert_eq(unjudged(), 0);
}
