// SPDX-License-Identifier: Apache-2.0
// Remembers keys whose cached bytes were found to be wrong. See state_condemned.c.
#ifndef FOREBAY_STORE_STATE_STATE_CONDEMNED_H
#define FOREBAY_STORE_STATE_STATE_CONDEMNED_H

#include <stdatomic.h>

#include "store/disk/disk.h"

struct store_condemned {
    struct store_disk *disk;
    atomic_bool any;        // false: no key is condemned
    _Atomic uint64_t added; // how often this process has condemned a key
    // How many of these are surely durable. The thread that sets it holds store_dir.format_lock.
    _Atomic uint64_t saved;
};

void state_condemned_init(struct store_condemned *condemned, struct store_disk *disk);

// Loads the keys that earlier processes condemned, from `format` and from the file of earlier
// versions. Called before `format` is written and before threads start. Returns an error if the
// file of earlier versions exists but cannot be read. The cache must not be used then.
enum err state_condemned_load(struct store_condemned *condemned) MUST_USE;
// Calls on_key() for each condemned key. on_key() must hide the key and remove it from the index.
// Called after `format` has been written and before threads start.
void state_condemned_each(struct store_condemned *condemned,
                          void (*on_key)(void *ctx, struct hash128 hash, uint64_t below),
                          void *ctx);
// Condemns all runs of the key with a generation below `below`, wherever they are found. Any
// thread.
void state_condemned_add(struct store_condemned *condemned, struct hash128 hash, uint64_t below);
// Makes all keys durable that were added before the call. Blocks. After an error the keys stay
// condemned in this process, but the next process may not know them.
enum err state_condemned_save(struct store_condemned *condemned) MUST_USE;
// Returns true if a run of this key and generation is wrong or may be wrong. Any thread.
bool state_condemned_has(struct store_condemned *condemned, struct hash128 hash,
                         uint64_t generation);

#endif
