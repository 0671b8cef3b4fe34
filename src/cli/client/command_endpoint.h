// SPDX-License-Identifier: Apache-2.0
// Looks at an endpoint of the S3 API on this host.
#ifndef FOREBAY_CLI_COMMAND_ENDPOINT_H
#define FOREBAY_CLI_COMMAND_ENDPOINT_H

#include <stdbool.h>

// Returns true if a Forebay answers at this URL, and its host is a loopback address. Otherwise, and
// if nothing answers within the timeout, returns false. Sends one request, which a Forebay refuses
// without asking its origin.
bool command_endpoint_is_forebay(const char *url, unsigned timeout_ms);

#endif
