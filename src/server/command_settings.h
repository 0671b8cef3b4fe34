// SPDX-License-Identifier: Apache-2.0
// The effective configuration as JSON, for `check -T --json` and for /api/v1/config. There are no
// secrets in it: those stand in files, whose paths are what a setting says. Any thread.
#ifndef FOREBAY_SERVER_COMMAND_SETTINGS_H
#define FOREBAY_SERVER_COMMAND_SETTINGS_H

#include <jansson.h>

#include "config/config.h"

// Setting i: key, value as a file has it, source ("default", "FILE:LINE:COL", "env NAME", "--KEY"),
// and what a reload makes of it: "live" or "restart".
json_t *command_settings_row(const struct config *config, unsigned i);
// Entry i of buckets[]: name, origin, source.
json_t *command_settings_bucket(const struct config *config, unsigned i);
// Entry i of rules[]: match, source.
json_t *command_settings_rule(const struct config *config, unsigned i);

// {"settings": [...], "buckets": [...], "rules": [...]}, an entry a line. Appended. `first` is in
// force where a change waits for a restart, `latest` where a reload makes it; without a reload they
// are the same.
void command_settings_render(struct buf *out, const struct config *first,
                             const struct config *latest);

#endif
