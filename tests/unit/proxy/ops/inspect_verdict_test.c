// SPDX-License-Identifier: Apache-2.0
// Proves: the verdict on an object that the policy refuses advises a larger cache only if the file
// system has room for it.
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
    cr_assert_not_null(strstr(verdict.remedy, "raise cache.size"));
    store.short_of = "min_free";
    verdict = proxy_verdict(&object, &store);
    cr_assert_str_eq(verdict.reason, "not-admitted");
    cr_assert_not_null(strstr(verdict.remedy, "free space on the file system"));
}
