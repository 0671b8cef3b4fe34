// SPDX-License-Identifier: Apache-2.0
// What operators see: probes, metrics and a little information over HTTP, on a thread of its own,
// so that a busy worker never delays an answer and a slow scraper never delays a worker.
//
//   GET /livez /readyz /startupz   200 or 503, one line of JSON with the reason
//   GET /metrics                   Prometheus text format 0.0.4
//   GET /version                   what runs here and where its S3 API listens
//   GET /api/v1/config             effective settings; unix socket or loopback only, Host checked
#ifndef FOREBAY_ADMIN_ADMIN_H
#define FOREBAY_ADMIN_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define ADMIN_CONNECTIONS_MAX 32u // at once; more wait to be accepted, or are closed

// Answers a probe. True = 200. `why` takes a reason in words (also when true); at most 512 bytes.
// Runs on the admin thread.
typedef bool (*admin_probe_fn)(void *ctx, struct buf *why);
// Appends text. Runs on the admin thread.
typedef void (*admin_render_fn)(void *ctx, struct buf *out);

// All pointers are copied or used only while admin runs; strings must outlive it.
struct admin_options {
    const char *host;          // numeric address; NULL = no TCP listener
    uint16_t port;             // 0 = chosen by the kernel
    const char *socket_path;   // NULL = no unix socket
    bool socket_optional;      // a socket that cannot be had is a warning in the log, not an error
    const char *const *listen; // addresses of the S3 API as clients reach them, for /version
    unsigned listen_count;
    const char *io_engine; // "io_uring" or "threads", for forebay_build_info and /version
    admin_probe_fn alive;  // heartbeat of every worker
    admin_probe_fn ready;
    admin_probe_fn started;
    admin_render_fn metrics; // more rows of Prometheus text; NULL = none
    admin_render_fn config;  // text of /api/v1/config; NULL = 404
    void *ctx;               // of all callbacks
};

struct admin;

// Binds and starts the thread. On failure nothing is left behind and `ret_why` says in one line
// what could not be bound and what to do.
enum err admin_start(const struct admin_options *options, struct admin **ret_admin,
                     struct buf *ret_why) MUST_USE;
// "127.0.0.1:9001" with the real port, "" without a TCP listener. Lives as long as `admin`.
const char *admin_listen_address(const struct admin *admin);
// Stops the thread, closes everything, removes the socket's file. NULL is fine.
void admin_stop(struct admin *admin);

// Everything /metrics says, without the callback's part. Any thread.
void admin_render_metrics(struct buf *out, const char *io_engine);

// The other end, for commands: one GET of `path` at "unix:/PATH", "http://HOST:PORT" or
// "HOST:PORT". ERR_ORIGIN_CONNECT when nobody answers there, ERR_ORIGIN_PROTOCOL when what answers
// is no HTTP. Blocks at most about `timeout_ms`. The body is appended to `ret_body`.
enum err admin_client_get(const char *address, const char *path, unsigned timeout_ms,
                          unsigned *ret_status, struct buf *ret_body) MUST_USE;

#endif
