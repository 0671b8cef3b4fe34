// SPDX-License-Identifier: Apache-2.0
// The effective configuration as JSON, for `check -T --json` and for /api/v1/config. It contains no
// secrets, because settings hold only the paths of files with secrets. Runs on any thread.
#ifndef FOREBAY_SERVER_COMMAND_SETTINGS_H
#define FOREBAY_SERVER_COMMAND_SETTINGS_H

#include <jansson.h>

#include "config/config.h"

// Returns setting i: key, value as written in a file, source ("default", "FILE:LINE:COL", "env
// NAME", "--KEY") and reload, which is "live" if a reload applies the setting, else "restart".
json_t *command_settings_row(const struct config *config, unsigned i);
// Returns entry i of buckets[]: name, origin, source.
json_t *command_settings_bucket(const struct config *config, unsigned i);
// Returns entry i of rules[]: match, source.
json_t *command_settings_rule(const struct config *config, unsigned i);

// Returns access_log.path in the form that proxy.h expects.
const char *command_settings_access_log(const struct config *c);
// Looks whether a start could open the access log.
enum err command_settings_check_access_log(const struct config *c, struct buf *ret_why) MUST_USE;

// Appends {"settings": [...], "buckets": [...], "rules": [...]}, one entry per line. Settings that
// need a restart come from `first`, and all others from `latest`. Without a reload both are the
// same.
void command_settings_render(struct buf *out, const struct config *first,
                             const struct config *latest);

#endif
