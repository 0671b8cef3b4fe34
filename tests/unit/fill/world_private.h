// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the simulated world. world.c: loop, mailboxes, clock, events, begin and
// end. world_store.c, world_origin.c: those doors. world_client.c: http, the request around
// serve_get.c, clients and writers. Single-threaded.
#ifndef FOREBAY_TESTS_PROTOCOL_WORLD_PRIVATE_H
#define FOREBAY_TESTS_PROTOCOL_WORLD_PRIVATE_H

#include "world.h"

#define MAX_CLIENTS 64
#define MAX_FETCHES 256
#define MAX_WRITERS 32
#define MAX_TELLERS 32
#define MAX_EVENTS 1024
#define MAX_HOLDS 16
#define MAX_BLOCKS 64u
#define MAX_EDITIONS 256

struct worker {
    unsigned index;
    void *slots[WORKER_SLOT_COUNT_];
    struct list tasks;
};

struct queue {
    struct message *first, **last;
};

#define WORLD_HEADERS_MAX 128u

struct segment_headers {
    uint64_t generation; // that shows them
    char text[WORLD_HEADERS_MAX];
    size_t len;
    time_t last_modified;
};

struct segment { // one run
    struct list_node node;
    char headers[WORLD_HEADERS_MAX];
    size_t headers_len;
    time_t last_modified;
    struct segment_headers described; // by the index; generation 0: not
    struct world_key *key;
    bool dying, bad;
    bool writing; // its run is not finished
    bool indexed; // look-ups find it
    bool durable; // the next process will find it
    bool pending; // a put of it has not been committed
    unsigned pins, holds;
    uint64_t first_block;
    uint32_t block_count;
    int version;
    uint64_t generation;
};

struct change { // of the index
    struct world_key *key;
    struct segment *put; // NULL: a delete
    uint64_t floor;
    struct store_delete *delete; // NULL: it has been answered, the store goes on trying
    uint64_t from;               // a version of this generation has other headers; 0: it has not
    struct segment_headers described;
    uint64_t validated_us;
};

struct store_run {
    struct list_node node;
    struct world_key *key;
    int version;
    uint64_t first_block;
    uint32_t blocks;
    struct chunk *chunks[256];
    unsigned chunk_count, written_count;
    bool finishing, given_up;
    bool is_writing; // and goes on until nothing waits
    void (*done)(void *ctx, enum err err, const struct store_place *place);
    void *ctx;
    void (*on_written)(void *ctx, const struct store_place *pages);
    void *watch_ctx;
    struct segment *segment;
    struct worker *worker;
};

struct fetch_play {
    struct origin_fetch *f;
    struct worker *worker;
    struct world_key *key;
    bool used, cancelled, paused, evaluated, answered;
    enum err refused;
    int version, edition;
    uint64_t next, end;
    bool will_reset;
    struct arena *arena;
};

struct client {
    bool used;
    struct worker *worker;
    struct world_key *key;
    unsigned principal;
    struct http_request http;
    struct arena *arena;
    struct request *r;
    struct http_exchange *x;
    enum client_outcome outcome;
    enum err err;
    enum request_result result;
    bool replied, ended, told, wants, slow, has_checksums;
    unsigned status;
    int version, floor_version, floor_edition;
    int start_version, if_match; // the origin's when it asked; of its condition, 0: none
    uint64_t start_us;
    uint64_t length, received, first;
};

struct http_exchange {
    int client;
    struct http_source *source;
};

struct writer {
    bool used, ready, refused, wrote, replied;
    struct world_key *key;
    struct key_write kw;
    struct open_keys *open; // of a request's write; NULL: a doubt, which its home holds open
    int version;
};

struct teller {
    bool used, answered;
    struct world_key *key;
    struct worker *worker;
    int version;
    struct subscription *sub;
};

struct world_key {
    unsigned index;
    // origin
    int version, acked_version;
    int seen_version; // the newest that any client was given
    // Changes of headers alone: a number that each answer names in its headers.
    int edition, seen_edition;
    uint64_t replaced_us[WORLD_VERSIONS], redescribed_us[MAX_EDITIONS]; // 0: still current
    unsigned doubts; // that hold: nobody is given what was true before he came
    bool missing[WORLD_VERSIONS];
    uint64_t size_bytes[WORLD_VERSIONS];
    unsigned sent[WORLD_VERSIONS][MAX_BLOCKS];
    unsigned sent_by_suffix[WORLD_VERSIONS][MAX_BLOCKS];
    // index
    bool found, rebuilt;
    uint64_t record_generation;
    int record_version;
    struct store_sums sums;
    uint64_t validated_us;
    // its durable copy
    bool durable_found;
    uint64_t durable_generation;
    int durable_version;
    bool delete_failed; // the disk's fault: to a check's reader that it did not wait for
};

struct hold {
    enum event_kind kind;
    int a, b;
    int message; // type; -1: any
};

struct world {
    struct world_options options;
    uint64_t random, now_us;
    struct proxy proxy;
    struct live live;
    struct fill_room *room;
    struct proxy_worker pw[WORLD_WORKERS];
    struct worker workers[WORLD_WORKERS];
    struct worker *current;
    struct queue mail[WORLD_WORKERS + 1][WORLD_WORKERS];
    void (*fill_deliver)(struct worker *to, struct message *message);
    struct timer *timers[64];
    unsigned timer_count;
    struct {
        void (*fn)(void *);
        void *ptr;
    } dead[4096];
    unsigned dead_count;
    struct hold holds[MAX_HOLDS];
    unsigned hold_count;
    struct proxy_rule rule;
    struct world_key keys[WORLD_KEYS];
    struct world_key *key;                   // that the script is about
    unsigned epoch_holds;                    // writes not yet over
    uint64_t noted_bytes;                    // refused bytes that the policy learned of
    unsigned long_asks, longs_promised;      // of room for long runs
    uint64_t epoch;                          // of the one bucket
    struct store_epoch_change *epoch_change; // begun, and answered by the test
    unsigned epoch_ends;
    // origin
    struct fetch_play fetches[MAX_FETCHES];
    unsigned requests, heads;
    bool is_silent;
    bool names_no_checksums, names_wrong_checksums;
    bool shorten_next, has_shortened; // an answer's length and total lack a byte
    enum err fail_next;
    unsigned denied; // principal; 0: none
    char principals[WORLD_PRINCIPALS];
    unsigned reset_next;
    uint64_t next_size_bytes;
    // store
    bool refuse, disk_is_behind, fail_commit, fail_write;
    bool lookups_off; // the index cannot be looked at
    bool was_blind;
    bool is_noted; // the bucket, as written to
    enum err fail_read;
    uint64_t generation;
    struct list segments;
    struct list runs;
    struct change changes[256]; // not yet durable, in order
    unsigned change_count;
    struct store_read *reads[64];
    unsigned read_count, reads_late;
    bool is_stuck, is_in_trouble;
    unsigned objects;
    // clients
    struct client clients[MAX_CLIENTS];
    struct writer writers[MAX_WRITERS];
    struct teller tellers[MAX_TELLERS];
    uint64_t counters[COUNTER_COUNT_];
};
extern struct world world;

unsigned rnd(unsigned below);
void mail_push(struct queue *q, struct message *message);
void turn_end(struct worker *w); // runs after every event on a worker
// All in one bucket of the tables; key k's home is worker k.
struct hash128 hash_of(const struct world_key *key);
struct world_key *key_of_hash(struct hash128 hash);
struct object_key *object_key_of(struct world_key *key);
const struct sigv4_credentials *credentials_of(unsigned principal);
char letter_of(const struct world_key *key, int version);
bool all_bytes_are(struct span bytes, char letter);
int version_of(struct span etag);
struct span etag_of(int version, char *buf, size_t size);

void fetch_step(struct fetch_play *p);
void run_step(struct store_run *run);
bool commit_wanted(void);
void judge_crash(void); // as if the process were killed now
void commit(void);
void read_complete(unsigned i);
void store_end(void);
void client_pull(struct client *c);
void client_tell_done(struct client *c);

#endif
