// SPDX-License-Identifier: Apache-2.0
// Verifies everything that is stored, slowly and in the background. Used inside this room only.
#ifndef FOREBAY_STORE_SCRUB_H
#define FOREBAY_STORE_SCRUB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/disk/disk_thread.h"
#include "store/store.h"

struct segment_log;
struct write_backlog;

// The scrub's callback. drop() removes a bad run from the store. Called on the scrub thread.
struct scrub_host {
    void *ctx;
    void (*drop)(void *ctx, const struct store_place *place, struct hash128 hash, enum err why);
};

struct scrub {
    struct segment_log *log;
    const struct write_backlog *backlog;
    struct scrub_host host;
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        uint64_t bytes_per_s;         // 0: read nothing, unless a round is ordered
        uint64_t ordered_bytes_per_s; // rate of an ordered round; 0: none is ordered
        unsigned changes;          // counts changes of a rate, orders of a round, and cancellations
        bool is_wanted;            // a round must begin at once
        bool is_cancelled;         // the round in progress must end
        struct disk_thread thread; // started with the first rate above 0
        // Progress of the current or last round, for other threads. elapsed_us is not set.
        struct store_scrub told;
        uint64_t began_us, ended_us;
    } guarded;
    // Used by the thread only.
    char *window, *header;
    uint32_t window_offset, window_len; // the part of the segment that is in `window`
    uint32_t number;                    // number of the segment in the window
    uint64_t salt;
    unsigned changes_seen;     // value of guarded.changes at the last wait
    uint64_t due_us;           // real monotonic time before which nothing may be read
    bool is_direct;            // the first reads have proved that they bypass the page cache
    atomic_bool is_impossible; // reads cannot bypass the page cache
    unsigned doubts;
    unsigned unreadable_in_row;               // consecutive runs that could not be read
    uint64_t runs_seen, bytes_seen, bad_seen; // counted in the current round
};

void scrub_init(struct scrub *scrub, struct segment_log *log, const struct write_backlog *backlog,
                const struct scrub_host *host);
// Sets a new rate, which begins a round unless it is 0. Not on a worker.
void scrub_set_rate(struct scrub *scrub, uint64_t bytes_per_s);
void scrub_stop(struct scrub *scrub);

#endif
