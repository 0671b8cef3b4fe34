// SPDX-License-Identifier: Apache-2.0
// Keys whose cached bytes were found to be wrong, see state_condemned.c.
#ifndef FOREBAY_STORE_STATE_STATE_CONDEMNED_H
#define FOREBAY_STORE_STATE_STATE_CONDEMNED_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/disk/disk.h"

#define STORE_CONDEMNED_MAX 256u
#define CONDEMNED_LINE_LEN 64u // in the file

struct condemned_line {
    struct hash128 hash;
    uint64_t
        below; // runs of the key with a generation below this are not to be believed; 0: no line
    uint64_t
        others_below; // nor are those of any key below this, as it was when the line was written
};

struct store_condemned {
    struct store_disk *disk;
    atomic_bool any; // false: nothing ever was condemned
    struct {
        pthread_mutex_t lock; // held for a moment; none is taken under it but by the file's
        struct condemned_line lines[STORE_CONDEMNED_MAX];
        uint64_t others_below; // of keys that have lost their line
    } guarded;
    pthread_mutex_t file_lock; // around writing; blocks
    int fd;                    // -1: not opened yet
};

void state_condemned_init(struct store_condemned *condemned,
                          struct store_disk *disk); // zeroed before
void state_condemned_done(struct store_condemned *condemned);

// Loads the lines of former processes, before there are threads. on_line() must hide the key, and
// have it leave the index.
void state_condemned_load(struct store_condemned *condemned,
                          void (*on_line)(void *ctx, struct hash128 hash, uint64_t below),
                          void *ctx);
// All runs of the key with a generation below: not believed from now on, whoever finds them. Any
// thread. The line's number, for the call below.
unsigned state_condemned_add(struct store_condemned *condemned, struct hash128 hash,
                             uint64_t below);
// The line survives this process when this says ERR_OK, a power cut when the next call does. They
// block.
enum err state_condemned_write(struct store_condemned *condemned, unsigned line) MUST_USE;
enum err state_condemned_sync(struct store_condemned *condemned) MUST_USE;
// Is a run of this key and generation known to be wrong, or may it be? Any thread.
bool state_condemned_has(struct store_condemned *condemned, struct hash128 hash,
                         uint64_t generation);

#endif
