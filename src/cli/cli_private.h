// SPDX-License-Identifier: Apache-2.0
// Shared by the files of src/cli itself.
#ifndef FOREBAY_CLI_CLI_PRIVATE_H
#define FOREBAY_CLI_CLI_PRIVATE_H

#include "commands/commands.h"
#include "origin/origin.h"

// --- command_env.c -------------------------------------------------------------------------------

// command_env_variables() calls on_variable() for each variable that points clients at `url`. It
// returns false if `url` is not http://HOST:PORT or https://HOST:PORT.
typedef void command_env_variable_fn(void *ctx, const char *name, const char *value);
bool command_env_variables(const char *url, bool global, command_env_variable_fn *on_variable,
                           void *ctx);
// Warns in the name of the command `name` if clients will ignore those variables.
void command_env_warn_of_ignored(const struct origin_client *client, const char *name);

// --- command_help.c ------------------------------------------------------------------------------

void command_help_hint(struct buf *out); // says how to begin
void command_help_render(const struct command *command, struct buf *out);

// --- command_help_settings.c ---------------------------------------------------------------------

// Returns the columns that help fits, also if a pager shows it.
unsigned command_help_columns(void);
// Appends what the tables of settings and lists say of a word. Returns false if they lack it.
bool command_help_setting(struct buf *out, const char *word);
// Reports a word that is neither a command nor a setting. Returns EXIT_CODE_USAGE.
int command_help_unknown(const char *word);

// --- command_plan.c and command_profile.c --------------------------------------------------------

// The cache that both assume if the user does not say otherwise.
#define COMMAND_PLAN_HEADROOM_PERCENT 10u // the default of cache.headroom
#define COMMAND_PLAN_WORKERS 8u

#endif
