// SPDX-License-Identifier: Apache-2.0
// Opens the cache directory later if its file system was full at the start; see store_late.c.
// Shared inside the room only.
#ifndef FOREBAY_STORE_STORE_LATE_H
#define FOREBAY_STORE_STORE_LATE_H

#include <pthread.h>

#include "store/disk/disk_thread.h"
#include "store/store.h"

// Callbacks that repeat the opening. On the late thread, which holds store_dir.format_lock while it
// calls mark_open().
struct store_late_host {
    enum err (*begin)(struct store *store, const struct store_options *options, uint64_t ours,
                      struct buf *ret_why);
    enum err (*mark_open)(struct store *store, struct buf *ret_why);
    void (*begin_threads)(struct store *store);
    void (*give_up)(struct store *store);
};

// Settings that may change before the directory is attached.
struct store_late_settings {
    unsigned changes; // counts changes since the start
    bool has_new_limits;
    struct store_limits limits;
    struct store_group groups[STORE_GROUPS_MAX];
    unsigned group_count;
    store_group_fn group_of;
    void *group_ctx;
};

struct store_late {
    struct store_late_host host;
    // Used by the late thread only.
    struct store_options options; // of the attempt; they own what they point to
    struct store_late_settings now;
    struct { // its lock is held briefly
        pthread_mutex_t lock;
        pthread_cond_t wake;
        struct disk_thread thread;
        struct store_late_settings settings;
    } guarded;
};

void store_late_init(struct store_late *late, const struct store_late_host *host);
void store_late_done(struct store_late *late);
// Starts the thread that tries again. Called when the store could not be opened for lack of room.
void store_late_start(struct store *store, const struct store_options *options);
void store_late_stop(struct store *store);
// Keep the settings for later. Return false if the store is attached and takes them itself.
bool store_late_limits(struct store *store, const struct store_limits *limits);
bool store_late_groups(struct store *store, const struct store_group *groups, unsigned group_count);
bool store_late_group_of(struct store *store, store_group_fn group_of, void *ctx);

#endif
