// SPDX-License-Identifier: Apache-2.0
// The door for commands that need no open store: they inspect or prepare a cache directory, or
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
    STORE_FOUND_NOTHING, // the directory does not exist
    STORE_FOUND_EMPTY,
    STORE_FOUND_CACHE, // a cache of a format that this program reads
    STORE_FOUND_OLDER,
    STORE_FOUND_NEWER,
    STORE_FOUND_OTHER // neither empty nor a cache
};
struct store_look {
    enum store_found found;
    // Version of the format; owner, group and mode of the directory.
    unsigned version, uid, gid, mode;
    bool is_in_use; // another process uses it
};
// Inspects the directory and changes nothing. May block.
enum err store_look(const char *path, struct store_look *ret_look) MUST_USE;

struct store_prepare_options {
    const char *dir;
    bool has_owner;
    unsigned uid, gid;
    bool wipe_older;
};
// Creates the directory and its parents if they do not exist. Makes the owner the only user of the
// directory (0700), and of a cache in it. Removes a cache of an older format if wipe_older is set,
// and nothing else. Writes one line to ret_what in any case. May block. Errors:
// - ERR_FORMAT: the directory is not a cache, or it is an older cache and wipe_older is not set.
// - ERR_IN_USE: another process uses the directory.
// - ERR_INVALID: a component of the path is a symbolic link.
// - Others come from the file system.
enum err store_prepare(const struct store_prepare_options *options, struct buf *ret_what) MUST_USE;

// Removes a directory that has a cache of this format and is not in use. Leaves any other directory
// as it is. For callers that have created the directory for their own use. May block.
void store_discard(const char *path);

// --- store_replay.c: what the retention policy would have kept -----------------------------------

struct store_replay_options {
    enum store_policy policy;
    uint64_t capacity_bytes; // available to segments: cache.size without cache.headroom
    // Length of each block, above 0. The caller keeps the array until store_replay_free().
    const uint32_t *lens;
    uint32_t block_count;
    uint64_t mean_bytes;        // mean length of a block, in bytes
    uint32_t segment_bytes;     // 0: computed from capacity_bytes and mean_bytes
    uint32_t segment_bytes_min; // at least twice the longest block
    uint32_t spares, batch; // segments kept free; events that the policy gets at once, 1 to 1,024
};
// Returns how many segments such a cache has. A replay has at least STORE_REPLAY_SEGMENTS_MIN,
// whatever the capacity, because with fewer segments its result would be too good.
#define STORE_REPLAY_SEGMENTS_MIN 6u
uint64_t store_replay_segments(const struct store_replay_options *options);
struct store_replay;
struct store_replay *store_replay_new(const struct store_replay_options *options);
void store_replay_free(struct store_replay *replay);
#define STORE_REPLAY_PARTS 8u // a partial read counts as this part of the block: one eighth
// Reads a block. Returns true if the block is stored (a hit). Otherwise stores it if the policy
// admits it, and returns false. `is_part`: only a part of the block is read.
bool store_replay_access(struct store_replay *replay, uint32_t block, bool is_part);
struct store_replay_figures {
    uint64_t admitted_bytes, rewritten_bytes, unranked_runs;
};
void store_replay_figures(struct store_replay *replay, struct store_replay_figures *ret_figures);

#endif
