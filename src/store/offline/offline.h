// SPDX-License-Identifier: Apache-2.0
// The door for commands that need no open store: they look at a cache directory from outside,
// prepare one, or replay a trace through the retention policy.
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
    STORE_FOUND_CACHE, // of this program's format
    STORE_FOUND_OLDER,
    STORE_FOUND_NEWER,
    STORE_FOUND_OTHER // something else
};
struct store_look {
    enum store_found found;
    unsigned version, uid, gid, mode; // of the format, of the directory
    bool is_in_use;                   // by another process
};
// Changes nothing. May block.
enum err store_look(const char *path, struct store_look *ret_look) MUST_USE;

struct store_prepare_options {
    const char *dir;
    bool has_owner;
    unsigned uid, gid;
    bool wipe_older;
};
// Makes the directory (and those above it) where it is not there, and the owner's alone (0700), a
// cache that it holds included; removes one of an older format if told so, never another one.
// ERR_FORMAT: it is no cache, or one that may not be removed; ERR_IN_USE; ERR_INVALID: a symbolic
// link on the way; others of the file system. One line in ret_what, whatever the outcome. May
// block.
enum err store_prepare(const struct store_prepare_options *options, struct buf *ret_what) MUST_USE;

// Removes a directory that holds a cache of this format and is not in use; any other one stays. For
// one that the caller has made for itself. May block.
void store_discard(const char *path);

// --- store_replay.c: what the retention policy would have kept -----------------------------------

struct store_replay_options {
    enum store_policy policy;
    uint64_t capacity_bytes; // of segments: without what cache.headroom keeps
    const uint32_t *lens; // of each block, above 0; the caller's, for as long as the replay lives
    uint32_t block_count;
    uint64_t mean_bytes;        // of a block
    uint32_t segment_bytes;     // 0: as many blocks as fit
    uint32_t segment_bytes_min; // at least twice the longest block
    uint32_t spares, batch;     // segments kept free; events told at once, 1 to 1,024
};
// How many segments such a cache has. A replay has six whatever the capacity: of less it would tell
// too much.
#define STORE_REPLAY_SEGMENTS_MIN 6u
uint64_t store_replay_segments(const struct store_replay_options *options);
struct store_replay;
struct store_replay *store_replay_new(const struct store_replay_options *options);
void store_replay_free(struct store_replay *replay);
#define STORE_REPLAY_PARTS 8u // a block has, where it is read in parts
// Is it held? Otherwise it is stored now, if the policy admits it. `is_part`: only a part of it is
// read.
bool store_replay_access(struct store_replay *replay, uint32_t block, bool is_part);
struct store_replay_figures {
    uint64_t admitted_bytes, rewritten_bytes, unranked_runs;
};
void store_replay_figures(struct store_replay *replay, struct store_replay_figures *ret_figures);

#endif
