// SPDX-License-Identifier: Apache-2.0
// The origins that a configuration names.
#ifndef FOREBAY_COMMANDS_COMMAND_ORIGINS_H
#define FOREBAY_COMMANDS_COMMAND_ORIGINS_H

#include "config/config.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "proxy/proxy.h"

// Both lists are the caller's to free, with free(); each origin with origin_free().
struct command_origins {
    struct origin *
        *origins; // [0] is the default one, then one a configured bucket that has its own
    unsigned origin_count;
    struct proxy_bucket *buckets; // as many as the configuration has
};
// `endpoint` with the region in it; false: it is a directory.
#define COMMAND_ORIGINS_URL_MAX 1024u
bool command_origins_url(const struct config *c, const char *endpoint,
                         char ret_url[COMMAND_ORIGINS_URL_MAX]) MUST_USE;
// What the default origin is made of. The texts are the configuration's.
struct origin_options command_origins_options(const struct config *c, unsigned connections);
// Errors are those of origin_new(); what was opened before is in *o, whatever the outcome.
enum err command_origins_open(const struct config *c, unsigned connections, struct loop *loop,
                              struct command_origins *o, struct buf *ret_why) MUST_USE;
// What a later configuration says of those that `first` has opened (buckets are those of `first`), one update
// each; errors are those of origin_update_new(), and what was made before is in ret_updates, whatever the outcome.
enum err command_origins_update(const struct config *first, const struct config *c,
                                struct origin *const *origins, struct origin_update **ret_updates,
                                struct buf *ret_why) MUST_USE;
// What /metrics says of all of them together. Any thread.
void command_origins_metrics(struct origin *const *origins, unsigned count, struct buf *out);

#endif
