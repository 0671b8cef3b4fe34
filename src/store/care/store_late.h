// SPDX-License-Identifier: Apache-2.0
// Opens the cache directory later if its file system was full at the start; see store_late.c. Used
// inside this room only.
#ifndef FOREBAY_STORE_STORE_LATE_H
#define FOREBAY_STORE_STORE_LATE_H

#include <pthread.h>

#include "store/disk/disk_thread.h"
#include "store/store.h"

// Callbacks for the steps of opening the store. On the thread of store_late.c.
struct store_late_host {
    enum err (*begin)(struct store *store, const struct store_options *options, uint64_t ours,
                      struct buf *ret_why);
    void (*begin_threads)(struct store *store);
    void (*give_up)(struct store *store);
};

struct store_late {
    struct store_late_host host;
    // Options for the next attempt, with copies of what they point to. Guarded by the lock.
    struct store_options options;
    struct store_group groups[STORE_GROUPS_MAX];
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;
        struct disk_thread thread;
        store_group_fn group_of;
        void *group_ctx;
    } guarded;
};

void store_late_init(struct store_late *late, const struct store_late_host *host);
void store_late_done(struct store_late *late);
// Starts the thread that tries again. Called when the store could not be opened for lack of room.
void store_late_start(struct store *store, const struct store_options *options);
void store_late_stop(struct store *store);
// Each keeps the setting for the next attempt. Returns false if the store is attached; the caller
// must then apply the setting to it.
bool store_late_limits(struct store *store, const struct store_limits *limits);
bool store_late_groups(struct store *store, const struct store_group *groups, unsigned group_count);
bool store_late_group_of(struct store *store, store_group_fn group_of, void *ctx);

#endif
