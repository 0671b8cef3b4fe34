// SPDX-License-Identifier: Apache-2.0
// Proves: the verdict on an object that the policy refuses advises a larger cache only if the file
// system has room for it, and the verdict on an absent object names a change of the origin.
#include <string.h>

#include "proxy/proxy.h"
#include "test.h"

Test(inspect_verdict, a_short_file_system_is_not_mended_by_a_larger_cache)
{
    struct proxy_rule rule = {.cache = true};
    struct proxy_object object = {.rule = &rule};
    struct store_summary store = {0};
    struct proxy_verdict verdict = proxy_verdict(&object, &store);
    cr_assert_str_eq(verdict.reason, "not-admitted");
    cr_assert_not_null(strstr(verdict.remedy, "raise cache.size as forebay profile advises"));
    store.short_of = "min_free";
    verdict = proxy_verdict(&object, &store);
    cr_assert_str_eq(verdict.reason, "not-admitted");
    cr_assert_not_null(strstr(verdict.remedy, "see the condition disk-short"));
}

Test(inspect_verdict, an_absent_object_may_have_been_read_and_not_admitted)
{
    struct proxy_rule rule = {.cache = true};
    struct proxy_object object = {.rule = &rule, .is_wanted = true};
    struct store_summary store = {0};
    struct proxy_verdict verdict = proxy_verdict(&object, &store);
    cr_assert_str_eq(verdict.reason, "absent");
    cr_assert_not_null(strstr(verdict.text, "was read but not admitted"));
}

Test(inspect_verdict, an_absent_object_at_a_changed_origin_names_the_change)
{
    struct proxy_rule rule = {.cache = true};
    struct proxy_object object = {.rule = &rule, .is_wanted = true};
    struct store_summary store = {.former_origin = "http://former"};
    struct proxy_verdict verdict = proxy_verdict(&object, &store);
    cr_assert(strcmp(verdict.reason, "absent") == 0 && strstr(verdict.text, "evicted") != NULL);
    object.is_at_default = true;
    verdict = proxy_verdict(&object, &store);
    cr_assert(strcmp(verdict.reason, "absent") == 0);
    cr_assert_not_null(strstr(verdict.text, "another origin.endpoint"));
    object.trouble.text = "it does not answer";
    cr_assert_not_null(strstr(proxy_verdict(&object, &store).text, "another origin.endpoint"));
}

// While the origin is in trouble, the verdict on a copy that it must confirm promises no hit.
Test(inspect_verdict, a_stale_copy_of_an_origin_in_trouble_says_what_the_next_read_gets)
{
    struct proxy_rule rule = {.cache = true, .ttl_ms = 1};
    struct proxy_object object = {.rule = &rule,
                                  .copy = PROXY_COPY_STALE,
                                  .range_blocks = 1,
                                  .cached_blocks = 1,
                                  .range_cached_blocks = 1};
    struct store_summary store = {0};
    cr_assert_str_eq(proxy_verdict(&object, &store).reason, "stale");
    object.trouble = (struct origin_trouble_text){.text = "it is down", .remedy = "start it"};
    struct proxy_verdict verdict = proxy_verdict(&object, &store);
    cr_assert_str_eq(verdict.reason, "origin");
    cr_assert_not_null(strstr(verdict.text, "the next read fails"));
    cr_assert_str_eq(verdict.remedy, "start it");
    object.may_be_stale = true;
    cr_assert_str_eq(proxy_verdict(&object, &store).reason, "stale-if-error");
    object.trouble.is_verdict = true;
    cr_assert_not_null(strstr(proxy_verdict(&object, &store).text, "403"));
    object.copy = PROXY_COPY_FRESH;
    cr_assert_str_eq(proxy_verdict(&object, &store).reason, "hit");
}

Test(inspect_verdict, a_copy_in_doubt_of_an_origin_in_trouble_says_why_it_must_be_confirmed)
{
    struct proxy_rule rule = {.cache = true};
    struct proxy_object object = {.rule = &rule,
                                  .copy = PROXY_COPY_FRESH,
                                  .is_doubted = true,
                                  .range_blocks = 1,
                                  .cached_blocks = 1,
                                  .range_cached_blocks = 1};
    struct store_summary store = {0};
    cr_assert_str_eq(proxy_verdict(&object, &store).reason, "in-doubt");
    object.trouble = (struct origin_trouble_text){.text = "it is down", .remedy = "start it"};
    struct proxy_verdict verdict = proxy_verdict(&object, &store);
    cr_assert_str_eq(verdict.reason, "origin");
    cr_assert_not_null(strstr(verdict.text, "killed during writes"));
    cr_assert_not_null(strstr(verdict.text, "the next read fails"));
    cr_assert_str_eq(verdict.remedy, "start it");
}
