// SPDX-License-Identifier: Apache-2.0
// The origins that a configuration names.
#ifndef FOREBAY_SERVER_COMMAND_ORIGINS_H
#define FOREBAY_SERVER_COMMAND_ORIGINS_H

#include <semaphore.h>
#include <stdatomic.h>

#include "commands/commands.h"
#include "config/config.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "proxy/proxy.h"
#include "store/store.h"

#define COMMAND_ORIGINS_MAX PROXY_PLACES_MAX // of buckets, in a process

struct command_origin {
    char *identity;       // what it is made of; NULL: the default one
    uint64_t descriptors; // that it may take
};

struct command_origins {
    struct origin *
        *origins; // [0] is the default one, then each that a bucket has of its own, or has had
    struct command_origin *items;
    atomic_uint origin_count;     // any thread may look at so many of `origins`
    struct proxy_bucket *buckets; // those of now; the texts are their configuration's
    unsigned bucket_count;
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
void command_origins_close(struct command_origins *o); // origin_close() of each
void command_origins_free(struct command_origins *o);  // after loop_stop(); zeros are fine

// --- a reload, step by step ----------------------------------------------------------------------

struct command_origins_reload {
    const struct config *first, *latest;
    struct store *store;
    struct loop *loop;
    const struct command_limits_plan *plan;
};
struct command_origins_now {
    unsigned known_count; // origins that were open before
    bool *is_used;
    struct origin_update **updates; // of those that were, and are used
    struct proxy_bucket *buckets;
    unsigned bucket_count;
};
// Opens what is new and judges the rest; nobody uses it yet. `now` is for
// command_origins_now_free(), whatever the outcome.
enum err command_origins_prepare(struct command_origins *o, const struct command_origins_reload *r,
                                 struct command_origins_now *now, struct buf *ret_why) MUST_USE;
// Before requests go by now->buckets, which are those of *o from then on. `probed` as in
// origin_probe_start().
void command_origins_use(struct command_origins *o, struct command_origins_now *now, sem_t *probed);
// When they do.
void command_origins_rest(struct command_origins *o, struct command_origins_now *now,
                          struct store *store);
void command_origins_now_free(struct command_origins_now *now); // zeros are fine
// What /metrics says of all of them together. Any thread.
void command_origins_metrics(struct origin *const *origins, unsigned count, struct buf *out);

#endif
