// SPDX-License-Identifier: Apache-2.0
// The endpoint and the region that Forebay takes from variables and profiles are those of the AWS
// SDKs.
#include <unistd.h>

#include "harness.h"
#include "test.h"

static const char *const variables[] = {
    "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL",   "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_REGION",          "AWS_DEFAULT_REGION", "AWS_PROFILE",
    "AWS_CA_BUNDLE"};

static const char config_text[] =
    "[default]\r\nendpoint_url = http://default:1\r\nregion = eu-west-1\r\n"
    "[profile plain]\nregion=ap-south-1\nca_bundle = /etc/ca.pem\n# endpoint_url = http://comment\n"
    "[profile services]\nservices = lab\nendpoint_url = http://profile:2\n"
    "[services lab]\ndynamodb =\n  endpoint_url = http://dynamodb:3\n"
    "s3 =\n  # endpoint_url = http://comment\n\n  addressing_style = path\n"
    "  endpoint_url = http://s3:4\n"
    "[profile other]\nservices = other\nendpoint_url = http://profile:5\n"
    "[services other]\ns3 =\nsts =\n  endpoint_url = http://sts:6\n"
    "[profile \"two words\"]\ns3 =\n  endpoint_url = http://nested:7\nendpoint_url=http://two:8\n"
    "[profile ignores]\nendpoint_url = http://ignored:9\nignore_configured_endpoint_urls = True\n"
    "[plain]\nendpoint_url = http://no-profile\n";

static void set_up(struct harness *h)
{
    char path[512];
    for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
        unsetenv(variables[i]);
    }
    harness_make_root(h);
    harness_write(h, "config", config_text, strlen(config_text));
    harness_path(h, "config", path, sizeof(path));
    setenv("AWS_CONFIG_FILE", path, 1);
    static const char keys[] = "[in-keys]\nendpoint_url = http://keys:10\n";
    harness_write(h, "credentials", keys, strlen(keys));
    harness_path(h, "credentials", path, sizeof(path));
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
}

Test(origin_client, the_endpoint_of_the_profile_is_found)
{
    static const struct {
        const char *profile, *endpoint, *source;
    } cases[] = {{"", "http://default:1", "profile default"},
                 {"plain", "", ""},
                 {"services", "http://s3:4", "the services of profile services"},
                 {"other", "http://profile:5", "profile other"},
                 {"two words", "http://two:8", "profile two words"},
                 {"in-keys", "http://keys:10", "profile in-keys"},
                 {"ignores", "", ""},
                 {"missing", "", ""}};
    struct harness h = {0};
    struct origin_client client;
    set_up(&h);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        setenv("AWS_PROFILE", cases[i].profile, 1);
        origin_client_read(&client);
        cr_assert_str_eq(client.endpoint.text, cases[i].endpoint, "%s: %s", cases[i].profile,
                         client.endpoint.text);
        cr_assert_str_eq(client.endpoint.source, cases[i].source);
        cr_assert(client.endpoint.text[0] == '\0' || strcmp(client.endpoint.word, "URL") == 0);
    }
    harness_remove_root(&h);
}

Test(origin_client, another_profile_with_another_endpoint_is_named_if_nothing_chooses_one)
{
    struct harness h = {0};
    struct origin_client client;
    set_up(&h);
    origin_client_read(&client);
    cr_assert_str_eq(client.other.text, "http://s3:4");
    cr_assert_str_eq(client.other.source, "the services of profile services");
    setenv("AWS_PROFILE", "other", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.other.text, "");
    unsetenv("AWS_PROFILE");
    setenv("AWS_ENDPOINT_URL", "http://all:1", 1); // wins over the endpoint of each profile
    origin_client_read(&client);
    cr_assert_str_eq(client.other.text, "");
    unsetenv("AWS_ENDPOINT_URL");
    static const char same[] = "[default]\nendpoint_url = http://a:1\n"
                               "[profile same]\nendpoint_url = http://a:1\n[profile none]\n";
    harness_write(&h, "config", same, strlen(same));
    origin_client_read(&client);
    cr_assert_str_eq(client.other.text, "");
    harness_remove_root(&h);
}

Test(origin_client, variables_win_over_the_profile)
{
    struct harness h = {0};
    struct origin_client client;
    set_up(&h);
    setenv("AWS_PROFILE", "services", 1);
    setenv("AWS_ENDPOINT_URL", "http://all:1", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.endpoint.text, "http://all:1");
    cr_assert_str_eq(client.endpoint.source, "env AWS_ENDPOINT_URL");
    setenv("AWS_ENDPOINT_URL_S3", "http://s3:2", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.endpoint.text, "http://s3:2");
    cr_assert_str_eq(client.endpoint.word, "\"$AWS_ENDPOINT_URL_S3\"");
    harness_remove_root(&h);
}

Test(origin_client, configured_endpoints_can_be_ignored)
{
    struct harness h = {0};
    struct origin_client client;
    set_up(&h);
    setenv("AWS_ENDPOINT_URL_S3", "http://s3:2", 1);
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    origin_client_read(&client);
    cr_assert(client.ignores_endpoints);
    cr_assert_str_eq(client.endpoint.text, "");
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "false", 1); // wins over the profile
    setenv("AWS_PROFILE", "ignores", 1);
    unsetenv("AWS_ENDPOINT_URL_S3");
    origin_client_read(&client);
    cr_assert_not(client.ignores_endpoints);
    cr_assert_str_eq(client.endpoint.text, "http://ignored:9");
    harness_remove_root(&h);
}

Test(origin_client, the_region_is_the_first_that_is_valid)
{
    struct harness h = {0};
    struct origin_client client;
    set_up(&h);
    setenv("AWS_PROFILE", "plain", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.region.text, "ap-south-1");
    cr_assert_str_eq(client.region.source, "profile plain");
    setenv("AWS_DEFAULT_REGION", "eu-north-1", 1);
    setenv("AWS_REGION", "not a region", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.region.text, "eu-north-1");
    cr_assert_str_eq(client.region.source, "env AWS_DEFAULT_REGION");
    setenv("AWS_REGION", "us-west-2", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.region.text, "us-west-2");
    harness_remove_root(&h);
}

Test(origin_client, the_authorities_are_those_of_the_variable_or_the_profile)
{
    struct harness h = {0};
    struct origin_client client;
    set_up(&h);
    origin_client_read(&client);
    cr_assert_str_eq(client.ca_file.text, "");
    setenv("AWS_PROFILE", "plain", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.ca_file.text, "/etc/ca.pem");
    cr_assert_str_eq(client.ca_file.source, "profile plain");
    setenv("AWS_CA_BUNDLE", "/home/ca.pem", 1);
    origin_client_read(&client);
    cr_assert_str_eq(client.ca_file.text, "/home/ca.pem");
    cr_assert_str_eq(client.ca_file.source, "env AWS_CA_BUNDLE");
    harness_remove_root(&h);
}
