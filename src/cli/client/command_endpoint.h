// SPDX-License-Identifier: Apache-2.0
// Looks at an endpoint of the S3 API on this host.
#ifndef FOREBAY_CLI_COMMAND_ENDPOINT_H
#define FOREBAY_CLI_COMMAND_ENDPOINT_H

#include <stdbool.h>

struct config;
struct origin_client_value;

// Returns true if a Forebay answers at this URL, and its host is a loopback address. Otherwise, and
// if nothing answers within two seconds, returns false. Sends one request, which a Forebay refuses
// without asking its origin.
bool command_endpoint_is_forebay(const char *url);
// Returns true, and the endpoint, if the AWS SDKs of this environment have an endpoint that a
// server with these settings does not use, as commands_endpoint_is_unused() says. Returns false
// also if the endpoint is a Forebay on this host, which the user's S3 clients are meant to use.
bool command_endpoint_unused(const struct config *config, struct origin_client_value *ret_endpoint);

#endif
