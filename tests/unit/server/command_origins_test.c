// SPDX-License-Identifier: Apache-2.0
// Proves: messages about a bucket's own origin name the settings where the user has them.
#include "server/command_origins.h"
#include "test.h"

static void expect(const struct config_bucket *bucket, const char *endpoint,
                   const char *credentials)
{
    struct arena *arena = arena_new(4096);
    struct origin_settings s = command_origins_settings(arena, bucket);
    cr_assert_str_eq(origin_settings_name(&s, ORIGIN_SETTING_ENDPOINT), endpoint);
    cr_assert_str_eq(origin_settings_name(&s, ORIGIN_SETTING_CREDENTIALS), credentials);
    cr_assert_str_eq(origin_settings_name(&s, ORIGIN_SETTING_REGION), "buckets[near].region");
    cr_assert_str_eq(origin_settings_name(&s, ORIGIN_SETTING_ADDRESSING),
                     "buckets[near].addressing");
    arena_free(arena);
}

Test(command_origins, a_setting_is_named_where_the_bucket_has_it)
{
    const struct config_bucket own = {.name = "near",
                                      .endpoint = "http://127.0.0.1:1",
                                      .access_key_file = "/a",
                                      .secret_key_file = "/s"};
    const struct config_bucket anonymous = {.name = "near", .anonymous = true};
    const struct config_bucket directory = {
        .name = "near", .kind = CONFIG_BUCKET_DIRECTORY, .directory = "/data/near"};
    const struct config_bucket inherited = {.name = "near", .region = "eu-west-1"};
    expect(&own, "buckets[near].endpoint", "buckets[near].credentials");
    expect(&anonymous, "origin.endpoint", "buckets[near].credentials");
    expect(&directory, "buckets[near].origin", "credentials.source");
    expect(&inherited, "origin.endpoint", "credentials.source");
}

Test(command_origins, region_is_filled_into_the_endpoint)
{
    char url[COMMAND_ORIGINS_URL_MAX];
    cr_assert(command_origins_url("https://s3.{region}.example", "eu-west-1", url));
    cr_assert_str_eq(url, "https://s3.eu-west-1.example");
    cr_assert(command_origins_url("https://s3.example", "eu-west-1", url));
    cr_assert_str_eq(url, "https://s3.example");
    cr_assert_not(command_origins_url("dir:/data", "auto", url));
}
