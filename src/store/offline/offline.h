// SPDX-License-Identifier: Apache-2.0
// The door for commands that need no open store. They inspect or prepare a cache directory, or
// replay a trace through the retention policy.
#ifndef FOREBAY_STORE_OFFLINE_OFFLINE_H
#define FOREBAY_STORE_OFFLINE_OFFLINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "store/store.h"

// --- store_prepare.c: a cache directory from outside; no store is open in this process -----------

enum store_found {
    STORE_FOUND_NOTHING, // no such directory
    STORE_FOUND_EMPTY,
    STORE_FOUND_CACHE, // of this version's format
    STORE_FOUND_OLDER,
    STORE_FOUND_NEWER,
    STORE_FOUND_OTHER // not a cache
};
struct store_look {
    enum store_found found;
    unsigned version, uid, gid, mode; // version of the format; the others of the directory
    bool is_in_use;                   // by another process
};
// Inspects the directory and changes nothing. May block.
enum err store_look(const char *path, struct store_look *ret_look) MUST_USE;

struct store_prepare_options {
    const char *dir;
    bool has_owner;
    unsigned uid, gid;
    bool wipe_older;
};
// Creates the directory and its parents if they do not exist. Gives it, and a cache in it, to the
// owner alone (0700). Removes a cache of an older format if wipe_older is set, and never another
// directory. ERR_FORMAT: the directory is not a cache, or is an older one and wipe_older is not
// set. ERR_IN_USE: another process uses it. ERR_INVALID: a component of the path is a symbolic
// link. Other errors come from the file system. Writes one line to ret_what in any case. May block.
enum err store_prepare(const struct store_prepare_options *options, struct buf *ret_what) MUST_USE;

// Removes a directory that holds a cache of this format and is not in use; leaves any other. For a
// directory that the caller has created for itself. May block.
void store_discard(const char *path);

// --- store_replay.c: what the retention policy would have kept -----------------------------------

struct store_replay_options {
    enum store_policy policy;
    uint64_t capacity_bytes; // for segments: without cache.headroom
    // length of each block, above 0; owned by the caller, which keeps it as long as the replay
    const uint32_t *lens;
    uint32_t block_count;
    uint64_t mean_bytes;        // mean length of a block
    uint32_t segment_bytes;     // 0: computed from capacity_bytes and mean_bytes
    uint32_t segment_bytes_min; // at least twice the longest block
    uint32_t spares, batch;     // segments kept free; events sent to the policy at once, 1 to 1,024
};
// Returns how many segments such a cache has. A replay has at least six whatever the capacity,
// because with fewer its result would claim too much.
#define STORE_REPLAY_SEGMENTS_MIN 6u
uint64_t store_replay_segments(const struct store_replay_options *options);
struct store_replay;
struct store_replay *store_replay_new(const struct store_replay_options *options);
void store_replay_free(struct store_replay *replay);
#define STORE_REPLAY_PARTS 8u // parts of a block that is read in parts
// Returns true if the block is stored (a hit). Otherwise stores it now, if the policy admits it.
// `is_part`: only a part of the block is read.
bool store_replay_access(struct store_replay *replay, uint32_t block, bool is_part);
struct store_replay_figures {
    uint64_t admitted_bytes, rewritten_bytes, unranked_runs;
};
void store_replay_figures(struct store_replay *replay, struct store_replay_figures *ret_figures);

#endif
