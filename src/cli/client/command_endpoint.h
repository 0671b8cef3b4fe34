// SPDX-License-Identifier: Apache-2.0
// Looks at an endpoint of S3 clients: does it lead to this server, or to another Forebay?
#ifndef FOREBAY_CLI_COMMAND_ENDPOINT_H
#define FOREBAY_CLI_COMMAND_ENDPOINT_H

#include <stdbool.h>

#include "commands/commands.h"

struct config;
struct origin_client_value;

// Returns true if a Forebay answers at this URL, and its host is a loopback address. Otherwise, and
// if nothing answers within two seconds, returns false. Sends one request, which a Forebay refuses
// without asking its origin.
bool command_endpoint_is_forebay(const char *url);
// The same, for a host anywhere, and for https with any certificate.
bool command_endpoint_answers(const char *url);
// Returns true if the URL leads to one of the listeners, by whatever name or address of this host.
// A listener on 0.0.0.0 or [::] accepts every address of this host. May wait for a name server.
bool command_endpoint_leads_to(const char *url, commands_address_fn address, const void *ctx);
// Returns true, and the endpoint, if the AWS SDKs of this environment have an endpoint that a
// server with these settings does not use, as commands_endpoint_is_unused() says. Returns false
// also if the endpoint is a Forebay on this host, which the user's S3 clients are meant to use.
bool command_endpoint_unused(const struct config *config, struct origin_client_value *ret_endpoint);

#endif
