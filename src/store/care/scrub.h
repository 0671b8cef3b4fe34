// SPDX-License-Identifier: Apache-2.0
// Goes through all that is held and verifies it, slowly. Shared inside the room only.
#ifndef FOREBAY_STORE_SCRUB_H
#define FOREBAY_STORE_SCRUB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

struct segment_log;
struct write_backlog;

// A run is not what it should be, and leaves the store. On the scrub thread.
struct scrub_host {
    void *ctx;
    void (*drop)(void *ctx, const struct store_place *place, struct hash128 hash, enum err why);
};

struct scrub {
    struct segment_log *log;
    const struct write_backlog *backlog;
    struct scrub_host host;
    pthread_t thread;
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        uint64_t bytes_per_s;         // 0: nothing is read, unless a round is ordered
        uint64_t ordered_bytes_per_s; // of the round that somebody waits for; 0: none is ordered
        unsigned changes;             // of these two
        bool is_wanted;               // a round, at once
        bool is_cancelled;            // the one that runs
        bool stop;
        bool has_thread;
        struct store_scrub told; // of the last round, elapsed_us aside
        uint64_t began_us, ended_us;
    } guarded;
    // Of the thread.
    char *window, *header;
    uint32_t window_offset, window_len; // what of the segment is in it
    uint32_t number;                    // of the segment
    uint64_t salt;
    unsigned changes_seen;     // of guarded.changes, by the last wait
    uint64_t due_us;           // real; no byte before
    bool is_direct;            // found out: the page cache is passed by
    atomic_bool is_impossible; // it is not
    unsigned doubts;
    unsigned unreadable_in_row;               // runs
    uint64_t runs_seen, bytes_seen, bad_seen; // in this round
};

void scrub_init(struct scrub *scrub, struct segment_log *log, const struct write_backlog *backlog,
                const struct scrub_host *host);
// A new rate, which begins a round unless it is 0. Not on a worker.
void scrub_set_rate(struct scrub *scrub, uint64_t bytes_per_s);
void scrub_stop(struct scrub *scrub);

#endif
