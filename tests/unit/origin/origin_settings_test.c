// SPDX-License-Identifier: Apache-2.0
// Proves: texts about an origin name the settings that the origin has.
#include <string.h>

#include "origin/origin.h"
#include "test.h"

static void expect(const struct origin_settings *settings, const char *text, const char *rendered)
{
    struct buf out;
    buf_init(&out, 4096);
    origin_settings_render(settings, text, &out);
    cr_assert_str_eq(buf_cstr(&out), rendered);
    buf_done(&out);
}

Test(origin_settings, a_setting_without_a_name_of_its_own_is_that_of_the_default_origin)
{
    struct origin_settings settings = {0};
    cr_assert_str_eq(origin_settings_name(&settings, ORIGIN_SETTING_REGION), "origin.region");
    expect(&settings, "set origin.endpoint or credentials.source",
           "set origin.endpoint or credentials.source");
}

Test(origin_settings, each_setting_in_a_text_gets_its_own_name_once)
{
    struct origin_settings settings = {
        {[ORIGIN_SETTING_ENDPOINT] = "buckets[origin.region].endpoint",
         [ORIGIN_SETTING_REGION] = "buckets[b].region",
         [ORIGIN_SETTING_CREDENTIALS] = "buckets[b].credentials"}};
    cr_assert_str_eq(origin_settings_name(&settings, ORIGIN_SETTING_REGION), "buckets[b].region");
    expect(&settings, "", "");
    expect(&settings, "origin.endpoint", "buckets[origin.region].endpoint");
    expect(&settings, "set origin.region, or look at credentials.source: not at origin.ca_file",
           "set buckets[b].region, or look at buckets[b].credentials: not at origin.ca_file");
    expect(&settings, "set origin.addressing to path, or origin.endpoint, or origin.endpoint",
           "set origin.addressing to path, or buckets[origin.region].endpoint, or "
           "buckets[origin.region].endpoint");
}
