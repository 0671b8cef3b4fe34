// SPDX-License-Identifier: Apache-2.0
// A small world around the real fill.c, home.c, reader.c, invalidate.c and serve_get.c: workers
// whose mailboxes, disk, index and origin move one event at a time, chosen by a seed or by a
// script. The doors of loop, store, origin and http are played by world.c; the code under test is
// the product's own, one run of the world is single-threaded.
//
// The oracle: every block of version v holds the byte v. A reply that looks complete must be of the
// one version that its ETag names, not older than what a writer was told had been written before
// the reader began; every reader ends; nothing leaks.
#ifndef FOREBAY_TESTS_PROTOCOL_WORLD_H
#define FOREBAY_TESTS_PROTOCOL_WORLD_H

#include "proxy/proxy_private.h"

#define WORLD_WORKERS 3
#define WORLD_BLOCK 65536u
#define WORLD_BLOCKS 5u // with a stripe of 2 blocks: 3 stripes
#define WORLD_SIZE ((uint64_t)WORLD_BLOCKS * WORLD_BLOCK - 100)

// What may happen next.
enum event_kind {
    EVENT_MESSAGE, // a = sender, b = receiver: the oldest message between them is delivered
    EVENT_ORIGIN,  // fetch i moves one step: answer, a piece of body, end
    EVENT_WRITTEN, // a run is on disk
    EVENT_COMMIT,  // the index writer commits what was posted
    EVENT_READ,    // a disk read completes
    EVENT_TIMER,
    EVENT_PULL, // client i's socket takes a slice
    EVENT_DONE  // an exchange that has ended tells its user
};

struct world_options {
    uint64_t seed;
    bool refuse_store;      // every run goes unstored
    unsigned reset_percent; // bodies that break off
    unsigned fail_percent;  // requests that fail before the head
};

void world_begin(const struct world_options *options);
// One random event; false when nothing is left to happen.
bool world_step(void);
// The next event of that kind; a and b as above, -1: any. False: there is none.
bool world_do(enum event_kind kind, int a, int b);
// Delivers every message under way (and what they cause), nothing else.
void world_deliver_all(void);
void world_run(void); // until nothing is left
void world_end(void); // checks that nothing leaked; frees

// Clients.
enum client_outcome { CLIENT_OPEN, CLIENT_COMPLETE, CLIENT_CUT, CLIENT_ERROR, CLIENT_LEFT };
// Starts a GET at `worker` for bytes [first, last]; last UINT64_MAX = whole. Returns its number.
int client_get(unsigned worker, uint64_t first, uint64_t last);
void client_leave(int client);
enum client_outcome client_outcome(int client);
int client_version(int client); // version that the reply's ETag named
enum err client_err(int client);
uint64_t client_received(int client);

// The origin.
int origin_version(void);
void origin_overwrite(void);                       // behind our back
unsigned origin_sent(int version, unsigned block); // how often its last byte came from the origin
unsigned origin_requests(void);
void origin_fail_next(enum err err); // the next request fails before its head
void origin_reset_next(void);        // the next body breaks off half-way

// A writer: WBEGIN, then (WREADY) the origin changes, then WEND, then (WDONE) the reply.
int writer_begin(unsigned worker);
bool writer_ready(int writer);
void writer_write(int writer); // the origin takes it; WEND
bool writer_replied(int writer);

// The store.
void store_evict(unsigned block);   // the segment of the visible run with this block starts dying
bool store_visible(unsigned block); // any version
int store_visible_version(void);    // 0: no record
void store_fail_next_commit(void);
void store_refuse(bool refuse);

uint64_t counter(enum counter c); // since world_begin()

#endif
