// SPDX-License-Identifier: Apache-2.0
// A simulated world around the real rooms fill and proxy/get: workers whose mailboxes, disk, index,
// clock and origin advance one event at a time, chosen by a seed or by a script. The files world*.c
// replace loop, store, origin and http. The code under test is the product's own. Everything runs
// on one thread.
//
// The oracle: every byte of version v of key k is one letter, unique to them. It checks that:
// - a reply that looks complete is of the one version that its ETag names
// - that version is not older than the last write that was answered before the reader began; under
//   `strict` not older than the origin was then; under `ttl` not older than a ttl before
// - the index never goes back behind an answered write, so that a crash brings nothing back
// - every reader ends, and nothing leaks
#ifndef FOREBAY_TESTS_PROTOCOL_WORLD_H
#define FOREBAY_TESTS_PROTOCOL_WORLD_H

#include "fill/fill_private.h"
#include "proxy/core/core.h"

#define WORLD_WORKERS 3u
#define WORLD_KEYS 2u
#define WORLD_PRINCIPALS 3u
#define WORLD_BLOCK 65536u
#define WORLD_BLOCKS 5u // 3 stripes
#define WORLD_STRIPE (2u * WORLD_BLOCK)
#define WORLD_SIZE ((uint64_t)WORLD_BLOCKS * WORLD_BLOCK - 100)
#define WORLD_VERSIONS 64

// Key k's home is worker k; its stripe s belongs to worker (k + s) mod 3. So of key 0, blocks 0 and
// 1 belong to worker 0 (the home), 2 and 3 to worker 1, 4 to worker 2.

// The kinds of events.
enum event_kind {
    EVENT_MESSAGE, // a = sender, b = receiver: the oldest message between them is delivered
    EVENT_ORIGIN,  // fetch a moves one step: evaluated, answered, a piece of body, end
    EVENT_WRITTEN, // a chunk of a run, or at last the run, is on disk
    EVENT_COMMIT,  // the index writer commits what was posted
    EVENT_READ,    // a disk read completes
    EVENT_TIMER,
    EVENT_PULL, // client a's socket takes a slice
    EVENT_DONE  // an exchange that has ended calls its user
};

struct world_options {
    uint64_t seed;
    bool strict;               // the rule's freshness; neither: immutable
    bool ttl;                  // 60 s; stale for an hour more while the origin fails
    uint64_t size_bytes;       // 0: WORLD_SIZE
    uint32_t block_size_bytes; // 0: WORLD_BLOCK
    uint32_t piece_bytes;      // body bytes per event; 0: random
    uint64_t buffer_bytes;     // memory for payload; 0: plenty
    bool refuse_store;         // every run goes unstored
    unsigned full_percent;     // asks before which the store says that it refuses all runs
    unsigned unwanted_percent; // asks for which the policy says that it would refuse the run
    bool readahead;            // readers in sequence are run ahead of
    bool long_runs;            // of more than store_run_bytes_max(): with readahead
    bool no_etag;              // the origin sends none
    unsigned reset_percent;    // bodies that break off
    unsigned fail_percent;     // requests that fail before the head
    unsigned slow_percent;     // clients that take one slice in 50 turns
    unsigned cold_percent;     // disk reads of headers that would block
    unsigned bad_percent;      // disk reads that fail their checksum
    unsigned limit_percent;    // disk reads with a time limit, because the origin is fast
    bool slow_disk;            // which takes no read that the origin can answer
    unsigned pages_percent; // file ranges that can be sent when they are asked for; 0: as under TLS
    bool noted;             // as after store_note()
    bool gathers;           // a run is written in groups of chunks, as past the page cache
};

void world_begin(const struct world_options *options);
// One random event; false when nothing is left to happen.
bool world_step(void);
// The next event of that kind, held or not; a and b as above, -1: any. False: there is none.
bool world_do(enum event_kind kind, int a, int b);
// Events of that kind wait until world_release().
void world_hold(enum event_kind kind, int a, int b);
// A message of that type waits, and with it all that follow on its way.
void world_hold_message(enum fill_message_type type, int from, int to);
void world_release(void);
bool world_has_message(enum fill_message_type type); // one is the next on its way
// Delivers every message under way (and what they cause), nothing else.
void world_deliver_all(void);
bool world_has_floor(unsigned worker); // of any key
void world_run(void);                  // until nothing is left but what is held
void world_end(void);                  // releases and runs; checks that nothing leaked; frees
void world_use_key(unsigned key);      // the key that the calls below are about; 0 at first
void world_advance_ms(uint64_t ms);

// Clients.
enum client_outcome {
    CLIENT_OPEN,
    CLIENT_COMPLETE,
    CLIENT_CUT,
    CLIENT_ERROR,
    CLIENT_LEFT,
    CLIENT_PASSED // handed to the way of requests that are not cached
};
struct client_ask {
    unsigned worker;
    unsigned principal; // 1, 2: one with credentials of its own at the origin; 0: any other
    bool head, has_range, no_cache, checksums;
    uint64_t first, last;        // last UINT64_MAX: to the end
    uint64_t suffix;             // 0: none
    int if_match, if_none_match; // versions; 0: none
};
int client_start(const struct client_ask *ask); // returns its number
// GET at `worker` for bytes [first, last]; 0 and UINT64_MAX: without Range.
int client_get(unsigned worker, uint64_t first, uint64_t last);
int client_head(unsigned worker);
void client_leave(int client);
enum client_outcome client_outcome(int client);
int client_version(int client); // version that the reply's ETag named
enum err client_err(int client);
unsigned client_status(int client); // 0: no reply yet
uint64_t client_length(int client); // announced
uint64_t client_received(int client);
enum request_result client_result(int client);
bool client_has_checksums(int client); // its reply names them

// The origin.
int origin_version(void);
void origin_overwrite(void);  // behind our back
void origin_redescribe(void); // other headers, the same ETag and bytes; each reply's are judged
void origin_resize(uint64_t size_bytes);           // the next overwrite has this size
void origin_remove(void);                          // a version that is not there
unsigned origin_sent(int version, unsigned block); // how often its last byte came from the origin
unsigned origin_sent_by_suffix(int version,
                               unsigned block); // to those for the object's last bytes
unsigned origin_requests(void);                 // since world_begin(), of all keys
unsigned origin_ahead(void);                    // requests under way that nobody waits for
void origin_falls_silent(void);                 // no request gets an answer
unsigned origin_heads(void);                    // HEADs among them
void origin_name_wrong_checksums(void);         // that nothing adds up to
void origin_shorten_next(void);                 // the next answer names a byte less, and has it
void origin_name_no_checksums(void);            // it has none of any object
void origin_trouble(bool is_in_trouble);        // reads of the disk have no time limit
void origin_deny(unsigned principal);           // its requests get 403
void origin_fail_next(enum err err);            // the next request fails before its head
void origin_reset_next(unsigned times);         // the next `times` bodies break off after one piece

// A reader that bypasses the cache. The origin has answered with that version, its newest or an
// older one (0: no such object), and the key's home gets TOLD before the client gets the answer.
int teller_start(unsigned worker, int version);
bool teller_answered(int teller);

// A writer: WRITE_BEGIN, then (WRITE_READY) the origin changes, then WRITE_END, then (WRITE_DONE)
// the reply.
int writer_begin(unsigned worker);
bool writer_ready(int writer);
void writer_write(int writer);   // the origin takes it, if the writer may ask; WRITE_END
bool writer_refused(int writer); // ready, but the origin must not be asked
bool writer_replied(int writer);
// A doubt: a write of unknown outcome, which the origin may apply until the doubt ends, or never.
int doubt_begin(unsigned worker);
void doubt_apply(int writer);
void doubt_end(int writer);

// The store.
void store_evict(unsigned block); // the segment of the run with this block starts dying; the index
                                  // names it until the next commit
bool store_visible(unsigned block); // any version
int store_visible_version(void);    // 0: no record
void store_fail_next_commit(void);
void store_hide(bool hide);       // the index cannot be looked at: every look-up is unknown
void store_fail_next_write(void); // of a run
void store_fail_next_read(
    enum err err); // ERR_CORRUPT: the block leaves the index, ERR_IO: it stays
void store_refuse(bool refuse);
void store_stick(bool is_stuck);     // reads in flight do not end
unsigned store_reads_late(void);     // in flight
void store_fall_behind(bool behind); // the disk takes less than it is given
void store_rebuilt(void);            // the record now comes from segments
void store_deletes_are_late(void);   // tells the home so, of each delete in flight
void store_note(void); // the bucket is noted as written to: after a crash all of it is confirmed

uint64_t counter(enum counter c); // since world_begin()

#endif
