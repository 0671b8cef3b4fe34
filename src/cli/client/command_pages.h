// SPDX-License-Identifier: Apache-2.0
// Lists the objects that the origin has below a URI, with the cached part of each, page after page.
// For commands, on the main thread.
#ifndef FOREBAY_CLI_COMMAND_PAGES_H
#define FOREBAY_CLI_COMMAND_PAGES_H

#include "cli/client/command_client.h"

// The client's status after a walk if the origin has no such bucket.
#define COMMAND_PAGES_NO_BUCKET 404u

// Receives one object, which is borrowed. A result other than EXIT_CODE_OK ends the walk with that
// code.
typedef int command_pages_fn(void *ctx, const json_t *object);
int command_pages_walk(struct command_client *client, const char *uri, command_pages_fn *on_object,
                       void *ctx);
// Writes the "s3://BUCKET/KEY" of an object that was found below `uri`.
void command_pages_uri(const char *uri, const char *key, struct buf *ret_uri);

#endif
