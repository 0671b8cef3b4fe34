// SPDX-License-Identifier: Apache-2.0
// The public header of the server. command_serve() (commands/commands.def) builds all parts and
// runs them. Commands that inspect a configuration without a server use the server's code for
// certificates, origins, limits, rules and settings.
#ifndef FOREBAY_SERVER_SERVER_H
#define FOREBAY_SERVER_SERVER_H

#include "server/command_certificate.h"
#include "server/command_limits.h"
#include "server/command_origins.h"
#include "server/command_rules.h"
#include "server/command_settings.h"

#endif
