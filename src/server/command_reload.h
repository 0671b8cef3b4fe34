// SPDX-License-Identifier: Apache-2.0
// SIGHUP, /api/v1/reload and files that change, for command_serve.c.
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

struct command_reload {
    int argc; // of the start; argv too
    char **argv;
    const struct config *first;
    struct store *store; // set when they are there, and the three below
    struct proxy *proxy;
    struct http_server *http;
    struct admin *admin;
    struct loop *loop;
    struct command_origins *origins;
    const struct command_limits_plan *descriptors;
    sem_t *probed;                    // as in origin_probe_start(), for good
    struct origin *sts_origin;        // or NULL
    struct access_keys **access_keys; // the current ones
    struct command_rules *rules;      // likewise
    struct command_watch watch;
    bool has_failed;            // the last time
    uint64_t good_since_s;      // what the gauge says
    uint64_t grace_ms;          // shutdown.grace, for the main thread
    atomic_bool is_disk_needed; // to be ready: cache.disk_failure
    sem_t told;                 // posted when every worker has heard of a reload
    struct {
        pthread_mutex_t lock;
        struct config *latest; // NULL: that of the start
    } guarded;
};

void command_reload_init(struct command_reload *reload, int argc, char **argv,
                         const struct config *config);
void command_reload_done(struct command_reload *reload); // after the admin thread; zeros are fine
// What became of it, a line each: errors, keys that have changed and are gone by, and those that
// wait for a restart. The log says the same.
struct command_reload_report {
    struct buf errors, applied, restart;
};
void command_reload_report_init(struct command_reload_report *report);
void command_reload_report_done(struct command_reload_report *report);
// To be asked often: a file that was read is another one now.
bool command_reload_is_due(struct command_reload *reload);
enum err command_reload_now(struct command_reload *reload, struct command_reload_report *report);
// What is in force, as JSON: command_settings.h. Any thread.
void command_reload_show(void *ctx, struct buf *out);
// What of the configuration limits the store.
struct store_limits command_store_limits(const struct config *c);
// What of it requests go by. The texts are the configuration's, rules and buckets those of the
// other two.
struct proxy_settings command_proxy_settings(const struct config *c,
                                             const struct command_rules *rules,
                                             const struct command_origins *origins);
struct http_limits command_http_limits(const struct config *c,
                                       const struct command_limits_plan *descriptors);
struct admin_access_options command_admin_access(const struct config *c);
const char *command_access_log_path(const struct config *c); // as proxy.h wants it

#endif
