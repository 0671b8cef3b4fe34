// SPDX-License-Identifier: Apache-2.0
// What the origin lists below a URI and what of it is cached, page after page, for commands. Main
// thread.
#ifndef FOREBAY_CLI_COMMAND_PAGES_H
#define FOREBAY_CLI_COMMAND_PAGES_H

#include "cli/client/command_client.h"

// One object; `object` is borrowed. Anything but EXIT_CODE_OK ends the walk with that code.
typedef int command_pages_fn(void *ctx, const json_t *object);
int command_pages_walk(struct command_client *client, const char *uri, command_pages_fn *on_object,
                       void *ctx);
// "s3://BUCKET/KEY" of an object that was found below `uri`.
void command_pages_uri(const char *uri, const char *key, struct buf *ret_uri);

#endif
