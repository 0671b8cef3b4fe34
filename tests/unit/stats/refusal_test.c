// SPDX-License-Identifier: Apache-2.0
// Every row of refusals.def is found by its word and by its error, and has a text and a remedy of
// its own.
#include <string.h>

#include "stats/stats.h"
#include "test.h"

Test(refusal, each_row_is_found_by_its_word)
{
    for (int i = REFUSAL_none + 1; i < REFUSAL_COUNT_; i++) {
        const struct refusal_text *row = refusal_text((enum refusal)i);
        cr_assert_eq((int)refusal_of_word(row->word), i, "%s", row->word);
        cr_assert(row->text[0] != '\0' && row->remedy[0] != '\0', "%s", row->word);
    }
    cr_assert_eq((int)refusal_of_word(NULL), (int)REFUSAL_none);
    cr_assert_eq((int)refusal_of_word("weak-etag"), (int)REFUSAL_none);
}

// A count is shown long after the state that it counts, and a single late read begins no condition.
Test(refusal, no_remedy_refers_to_a_condition_that_need_not_hold)
{
    for (int i = REFUSAL_none + 1; i < REFUSAL_COUNT_; i++) {
        const char *remedy = refusal_text((enum refusal)i)->remedy;
        cr_assert_null(strstr(remedy, "condition"), "%s", remedy);
        cr_assert_null(strstr(remedy, "disk-"), "%s", remedy);
    }
}

Test(refusal, each_resource_has_an_error_of_its_own)
{
    static const struct {
        enum err err;
        enum refusal why;
    } rows[] = {
        {ERR_NOT_ADMITTED, REFUSAL_not_admitted}, {ERR_DISK_BUSY, REFUSAL_disk_busy},
        {ERR_BUFFER_FULL, REFUSAL_buffer_full},   {ERR_NO_SEGMENT, REFUSAL_no_segment},
        {ERR_DISK_FULL, REFUSAL_disk_full},       {ERR_IO, REFUSAL_disk_degraded},
        {ERR_INDEX_BUSY, REFUSAL_index_busy},     {ERR_INDEX_FULL, REFUSAL_index_full},
        {ERR_DESCRIPTORS, REFUSAL_descriptors},   {ERR_LIMIT, REFUSAL_too_large},
        {ERR_CORRUPT, REFUSAL_disk_degraded},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert_eq((int)refusal_of_error(rows[i].err), (int)rows[i].why, "%s",
                     error_name(rows[i].err));
    }
}

Test(refusal, a_count_is_the_metric_with_its_word)
{
    uint64_t before = refusal_sum(REFUSAL_index_busy);
    refusal_count(REFUSAL_index_busy);
    cr_assert_eq(refusal_sum(REFUSAL_index_busy), before + 1);
    cr_assert_str_eq(stats_metric(COUNTER_admission_rejected_index_busy),
                     "forebay_cache_admission_rejected_total");
    cr_assert_eq(refusal_sum(REFUSAL_memory), 0u); // a state, which is not counted
}
