// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: checks how long the credentials for an origin last. Also checks whether this
// host reaches the instance metadata service, which provides credentials on EC2.
#include <string.h>

#include "base/clock.h"
#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"
#include "origin/origin.h"

#define EXPIRY_YELLOW_S 900 // same as the alert ForebayCredentialsExpiring

void command_doctor_expiry(struct doctor *d, const struct origin *origin)
{
    struct origin_times times;
    origin_times(origin, &times);
    if (times.credentials_expire_s == 0) {
        return;
    }
    int64_t left_s = times.credentials_expire_s - clock_wall_s();
    if (left_s <= 0) {
        command_doctor_red_of_origin(
            d, "expiry", "get new ones, or use a source that renews them (credentials.source)",
            "the credentials have expired", origin_describe(origin));
    } else if (left_s < EXPIRY_YELLOW_S) {
        command_doctor_find(d, DOCTOR_YELLOW, "expiry",
                            "check that the source issues new ones before then",
                            "%s: the credentials expire in %s", origin_describe(origin),
                            command_time((double)left_s));
    } else {
        command_doctor_find(d, DOCTOR_GREEN, "expiry", NULL, "%s: the credentials last %s",
                            origin_describe(origin), command_time((double)left_s));
    }
}

void command_doctor_metadata(struct doctor *d, bool is_missed)
{
    enum config_credentials_source source = d->config->credentials_source;
    const char *endpoint;
    bool is_directory = strncmp(d->config->origin_endpoint, "dir:", 4) == 0;
    if (is_directory || (source != CONFIG_CREDENTIALS_AUTO && source != CONFIG_CREDENTIALS_IMDS)) {
        return;
    }
    switch (origin_metadata_ask(&endpoint)) {
    case ORIGIN_METADATA_ANSWERS:
        command_doctor_find(d, DOCTOR_GREEN, "metadata", NULL, "%s gives session tokens", endpoint);
        break;
    case ORIGIN_METADATA_DISABLED:
        if (is_missed) {
            command_doctor_find(d, DOCTOR_YELLOW, "metadata",
                                "if the instance's role is wanted, unset AWS_EC2_METADATA_DISABLED",
                                "not asked: AWS_EC2_METADATA_DISABLED is set");
        } else {
            command_doctor_find(d, DOCTOR_GREEN, "metadata", NULL, "not asked, and not needed");
        }
        break;
    case ORIGIN_METADATA_SILENT:
        if (is_missed) {
            command_doctor_find(
                d, DOCTOR_YELLOW, "metadata",
                "on EC2 give the instance a role; a container wants a hop limit of 2 (aws ec2 "
                "modify-instance-metadata-options --http-put-response-hop-limit 2)",
                "%s gives no session token", endpoint);
        } else {
            command_doctor_find(d, DOCTOR_GREEN, "metadata", NULL,
                                "%s does not answer, and is not needed", endpoint);
        }
        break;
    }
}
