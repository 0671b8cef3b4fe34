// SPDX-License-Identifier: Apache-2.0
// Reloads on SIGHUP, on /api/v1/reload and when files change, for command_serve.c.
#ifndef FOREBAY_SERVER_COMMAND_RELOAD_H
#define FOREBAY_SERVER_COMMAND_RELOAD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "auth/auth.h"
#include "commands/commands.h"
#include "control/control.h"
#include "http/http.h"
#include "proxy/proxy.h"
#include "s3/s3.h"
#include "server/command_origins.h"
#include "server/command_rules.h"
#include "server/command_watch.h"
#include "store/store.h"

#define COMMAND_RELOAD_TEXT_MAX 256u

struct command_reload {
    int argc; // command line with which this process was started
    char **argv;
    const struct config *first;
    struct store *store; // set when the object exists, like the members below
    struct proxy *proxy;
    struct http_server *http;
    struct admin *admin;
    struct loop *loop;
    struct command_origins *origins;
    const struct command_limits_plan *descriptors;
    sem_t *probed;                    // as in origin_probe_start()
    struct origin *sts_origin;        // NULL: none
    struct access_keys **access_keys; // the current table; a reload replaces it
    struct command_rules *rules;      // the current rules; a reload replaces them
    struct command_watch watch;
    atomic_bool needs_restart;            // settings have changed that need a restart
    uint64_t good_since_s;                // time of the last successful reload, for its gauge
    uint64_t grace_ms;                    // shutdown.grace, for the main thread
    atomic_bool is_disk_needed;           // readiness needs the disk, see cache.disk_failure
    atomic_bool names_buckets;            // /metrics has rows for each bucket
    sem_t told;                           // posted when every worker has applied a reload
    unsigned told_due;                    // posts of `told` that have not come yet
    char remedy[COMMAND_RELOAD_TEXT_MAX]; // for a failed reload; constant
    struct {
        pthread_mutex_t lock;
        struct config *latest;                // the configuration of the last reload; NULL: `first`
        char failed[COMMAND_RELOAD_TEXT_MAX]; // first error of the last reload; "": it succeeded
        char unrenewed[COMMAND_RELOAD_TEXT_MAX]; // why the former certificate stays in use; or ""
    } guarded;
};

void command_reload_init(struct command_reload *reload, int argc, char **argv,
                         const struct config *config);
void command_reload_done(
    struct command_reload *reload); // call it after the admin thread has ended; accepts zeros
// The outcome of a reload, one line each: errors, changed settings that now apply, and changed
// settings that need a restart. The log contains the same.
struct command_reload_report {
    struct buf errors, applied, restart;
};
void command_reload_report_init(struct command_reload_report *report);
void command_reload_report_done(struct command_reload_report *report);
// Returns true if a file that Forebay has read has changed. Call it often.
bool command_reload_is_due(struct command_reload *reload);
enum err command_reload_now(struct command_reload *reload, struct command_reload_report *report);
// Returns true if the last reload failed, and its first error, which may be cut. Any thread.
bool command_reload_has_failed(struct command_reload *reload,
                               char ret_error[COMMAND_RELOAD_TEXT_MAX]);
// Returns true if the last reload kept the former certificate because the renewal is not complete,
// and what is wrong with it. Any thread.
bool command_reload_is_unrenewed(struct command_reload *reload,
                                 char ret_why[COMMAND_RELOAD_TEXT_MAX]);
// Renders the settings in force as JSON: command_settings.h. Any thread.
void command_reload_show(void *ctx, struct buf *out);
// Returns how large the cache can become, and warns, if cache.size is more than that; else 0.
uint64_t command_size_beyond(const struct config *c, const struct store *store);
// Returns the limits of the store from the configuration.
struct store_limits command_store_limits(const struct config *c);
// Returns the settings that requests use. The configuration owns the texts; `rules` and `origins`
// own the rules and the buckets.
struct proxy_settings command_proxy_settings(const struct config *c,
                                             const struct command_rules *rules,
                                             const struct command_origins *origins);
struct http_limits command_http_limits(const struct config *c,
                                       const struct command_limits_plan *descriptors);
struct admin_access_options command_admin_access(const struct config *c);

#endif
