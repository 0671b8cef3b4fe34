// SPDX-License-Identifier: Apache-2.0
// SIGHUP, for command_serve.c.
#ifndef FOREBAY_COMMAND_RELOAD_H
#define FOREBAY_COMMAND_RELOAD_H

#include <pthread.h>

#include "commands/commands_private.h"
#include "http/http.h"
#include "proxy/proxy.h"
#include "s3/s3.h"
#include "store/store.h"

struct command_reload {
    int argc; // of the start; argv too
    char **argv;
    const struct config *first;
    struct store *store; // set when they are there, and the three below
    struct proxy *proxy;
    struct http_server *http;
    struct access_keys **access_keys; // the current ones
    bool has_failed;                  // the last time
    uint64_t good_since_s;            // what the gauge says
    struct {
        pthread_mutex_t lock;
        struct config *latest; // NULL: that of the start
    } guarded;
};

void command_reload_init(struct command_reload *reload, int argc, char **argv,
                         const struct config *config);
void command_reload_done(struct command_reload *reload); // after the admin thread; zeros are fine
// The log says what became of it, and so do these: errors, and keys that wait for a restart, a line each.
enum err command_reload_now(struct command_reload *reload, struct buf *ret_errors,
                            struct buf *ret_restart);
// What is in force, as JSON: command_settings.h. Any thread.
void command_reload_show(void *ctx, struct buf *out);
// What of the configuration limits the store.
struct store_limits command_store_limits(const struct config *c);

#endif
