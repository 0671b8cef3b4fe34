// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room: a loop with one origin on it, and calls that start on a worker
// while the test's own thread waits for their end.
#ifndef FOREBAY_TESTS_UNIT_ORIGIN_HARNESS_H
#define FOREBAY_TESTS_UNIT_ORIGIN_HARNESS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "origin/origin.h"
#include "origin/origin_private.h"

struct harness {
    struct loop *loop;
    struct origin *origin;
    struct buf why;
    char root[256]; // a temporary folder, gone after harness_done()
};

struct origin_options harness_options(const char *endpoint);
// Starts a loop of `workers` with the engine, and the origin. Returns origin_new()'s error. Without
// an origin, the loop is stopped again.
enum err harness_init(struct harness *h, unsigned workers, enum disk_engine engine,
                      const struct origin_options *options);
// The same with the folder `root` as the origin.
void harness_init_directory(struct harness *h, unsigned workers, enum disk_engine engine);
void harness_done(struct harness *h);
void harness_make_root(struct harness *h);
void harness_remove_root(struct harness *h);
void harness_write(const struct harness *h, const char *path, const void *bytes, size_t len);
void harness_mkdir(const struct harness *h, const char *path);
void harness_path(const struct harness *h, const char *path, char *ret_path, size_t size);

// One fetch, run to its end.
struct fetch_run {
    // asked
    bool head, has_range, ask_checksums, get_decides, is_bound, has_stale;
    uint64_t first, last;
    const char *bucket, *key, *if_match, *if_none_match;
    const struct sigv4_credentials *credentials;
    void (*on_head_hook)(struct fetch_run *run);
    void (*on_body_hook)(struct fetch_run *run);
    enum err head_answer;     // the result of on_head
    bool pause_every_piece;   // pause in on_body, resume from a timer
    unsigned cancel_at_piece; // 1: in the first on_body; 0: never
    bool cancel_at_once;
    void *ctx;
    // answered
    enum err err;
    unsigned status, heads, pieces, ends;
    uint64_t size_bytes, body_first, body_len;
    char etag[256], version_id[64], bucket_region[64], content_type[128], error_answer[512];
    bool storable, too_young, weak_or_no_etag;
    time_t last_modified;
    unsigned header_count, checksum_count;
    struct buf body;
};
void fetch_run(struct harness *h, unsigned worker, struct fetch_run *run);
void fetch_run_done(struct fetch_run *run);

// One relay of a request in raw form, run to its end.
struct relay_run {
    // asked
    const char *method, *target, *bucket; // bucket NULL: the request's own
    const char *headers[32];              // "Name: value"
    enum origin_body body;
    const char *upload;
    uint64_t upload_len; // 0: strlen(upload)
    const char *payload_hash;
    bool pause_every_piece, pause_upload, pause_at_head, cancel_at_head, cancel_on_resume;
    // answered
    enum err err;
    unsigned status, heads, ends, uploads;
    bool has_length, names_part;
    uint64_t length;
    struct buf answer_headers; // "Name: value\n"...
    struct buf answer;
};
void relay_run(struct harness *h, unsigned worker, struct relay_run *run);
void relay_run_done(struct relay_run *run);

// Runs fn(ctx) on the worker and waits until it has called harness_signal().
struct harness_wait {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done;
};
void harness_wait_init(struct harness_wait *wait);
void harness_signal(struct harness_wait *wait);
void harness_wait_for(struct harness_wait *wait);
void harness_on_worker(struct harness *h, unsigned worker, void (*fn)(struct worker *w, void *ctx),
                       void *ctx);

#endif
