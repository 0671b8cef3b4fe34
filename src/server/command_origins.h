// SPDX-License-Identifier: Apache-2.0
// The origins that a configuration names.
#ifndef FOREBAY_SERVER_COMMAND_ORIGINS_H
#define FOREBAY_SERVER_COMMAND_ORIGINS_H

#include <semaphore.h>
#include <stdatomic.h>

#include <jansson.h>

#include "commands/commands.h"
#include "config/config.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "proxy/proxy.h"
#include "store/store.h"

#define COMMAND_ORIGINS_MAX PROXY_PLACES_MAX // origins of buckets in one process

struct command_origin {
    char *identity;       // see command_origins.c; NULL: the default origin
    uint64_t descriptors; // descriptors reserved for the origin
};

struct command_origins {
    struct origin **origins; // [0] is the default one; then the buckets' own, including former ones
    struct command_origin *items;
    atomic_uint origin_count; // any thread may read the first `origin_count` entries of `origins`
    struct proxy_bucket *buckets; // current buckets; the configuration owns their texts
    unsigned bucket_count;
    unsigned numbered_count; // origins that have the store's number; only reloads open others
};
// Writes `endpoint` with the region filled in. `region` is a setting, which may be the text "auto".
// Returns false if the endpoint is a directory.
#define COMMAND_ORIGINS_URL_MAX 1024u
bool command_origins_url(const char *endpoint, const char *region,
                         char ret_url[COMMAND_ORIGINS_URL_MAX]) MUST_USE;
// Returns the options of the default origin. The configuration owns their texts.
struct origin_options command_origins_options(const struct config *c, unsigned connections);
// Returns the names of the settings of a bucket's own origin, which the arena owns. Endpoint and
// credentials are named where the configuration has them: in the bucket's entry, or as those of the
// default origin. Region and addressing are always named in the entry, because there they change no
// other bucket.
struct origin_settings command_origins_settings(struct arena *arena, const struct config_bucket *b);
// Opens the origins. Errors are those of origin_new(). On failure, *o holds the origins that were
// opened before it.
enum err command_origins_open(const struct config *c, unsigned connections, struct loop *loop,
                              struct command_origins *o, struct buf *ret_why) MUST_USE;
void command_origins_close(struct command_origins *o); // calls origin_close() for each
void command_origins_free(struct command_origins *o);  // after loop_stop(); accepts zeros

// --- a reload, step by step ----------------------------------------------------------------------

struct command_origins_reload {
    const struct config *first, *latest;
    struct store *store;
    struct loop *loop;
    const struct command_limits_plan *plan;
};
struct command_origins_move {
    struct store_doubt_open from, to; // at the former origin, and at the new one
};
struct command_origins_now {
    unsigned known_count;           // origins that were open before the reload
    bool *is_used;                  // for each known origin: the new configuration names it
    struct origin_update **updates; // for each known origin that is still used
    struct proxy_bucket *buckets;
    unsigned bucket_count;
    struct command_origins_move *moved; // the doubts of each bucket that gets another origin
    unsigned moved_count;
};
// Opens new origins and checks the others, without using any of them yet. The caller passes `now`
// to command_origins_now_free() in any case.
enum err command_origins_prepare(struct command_origins *o, const struct command_origins_reload *r,
                                 struct command_origins_now *now, struct buf *ret_why) MUST_USE;
// Makes now->buckets the buckets of *o, and puts those that move in doubt. Call it before requests
// use these buckets. Each origin that ends its rest is probed; `probed` is as in
// origin_probe_start().
void command_origins_use(struct command_origins *o, struct command_origins_now *now,
                         struct store *store, sem_t *probed);
// Lets unused origins rest (origin_rest()), and ends the doubts that no write in flight needs. Call
// it once requests use the new buckets. `by_all`: every worker does so.
void command_origins_rest(struct command_origins *o, struct command_origins_now *now,
                          struct store *store, bool by_all);
void command_origins_now_free(struct command_origins_now *now); // accepts zeros
// Appends the names of the origins in use, for people. If there are many, appends only the first
// three names. Any thread.
void command_origins_names(struct origin *const *origins, unsigned count, struct buf *out);
// Returns how soon the origins in use answer; admin_summary.c describes the rows. Any thread.
json_t *command_origins_json(struct origin *const *origins, unsigned count);
// Renders the metrics of all origins together. Any thread.
void command_origins_metrics(struct origin *const *origins, unsigned count, struct buf *out);

#endif
