// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room: a store over a temporary directory with a running loop, and its
// calls made from the test's thread. Payload bytes are a function of the key's name and the offset,
// so a wrong byte is found, wherever it comes from.
#ifndef FOREBAY_TESTS_UNIT_STORE_FIXTURE_H
#define FOREBAY_TESTS_UNIT_STORE_FIXTURE_H

#include "store/store_private.h"

#define MIB (1ull << 20)
#define BLOCK 65536u

struct box {
    char dir[512];
    enum disk_engine engine;
    struct store_options options;
    struct loop *loop;
    struct store *store;
    bool has_long_runs;                    // objects are put as runs that want a promise
    unsigned reads[STORE_READ_DIRECT + 1]; // general reads that succeeded, by their source
    uint64_t most_spans;                   // of one such read: a chunk each
};

// Fills in defaults and makes the directory; box_open() comes next. Returns false, with a message,
// if this machine refuses the engine.
void box_init(struct box *box, enum disk_engine engine, uint64_t size_bytes);
bool box_open(struct box *box);
bool box_open_workers(struct box *box, unsigned workers);
void box_close(struct box *box);  // a clean stop
void box_remove(struct box *box); // the directory too
enum err box_try_open(struct box *box, struct buf *ret_why);

struct object {
    const char *key;
    const char *etag;
    uint64_t size;
    uint32_t block_size;
    uint64_t generation;
};
struct hash128 box_hash(const struct box *box, const char *key);
void object_bytes(const struct object *object, uint64_t offset, char *ret_bytes, size_t len);
struct store_object *box_object(const struct box *box, const struct object *object);

// The cache does not fit into memory: bytes stay in the page cache if they are read again before
// `room_bytes` others. Called before box_open().
void box_has_little_memory(struct box *box, uint64_t room_bytes);

bool box_has_direct_io(const struct box *box); // its file system opens files with O_DIRECT

// Runs fn on worker `index` and waits.
void box_on_worker(struct box *box, unsigned index, void (*fn)(struct worker *w, void *ctx),
                   void *ctx);

// Writes [first_block, first_block + block_count) on worker `index`, all of it or `finish_blocks`
// of it. Waits while the supply thread has no segment ready yet. With ERR_OK the place is pinned
// and held.
enum err box_write(struct box *box, unsigned index, const struct object *object,
                   uint64_t first_block, uint32_t block_count, uint32_t finish_blocks,
                   struct store_place *ret_place);
// Whether the write is refused only because the supply thread has no segment ready yet, or none
// that may be evicted.
static inline bool box_has_no_segment(enum err err)
{
    return err == ERR_NO_SEGMENT || err == ERR_DISK_FULL;
}
// Puts the run; visible when it returns.
void box_enter(struct box *box, const struct object *object, const struct store_place *place);
// The same, and waits until it is durable. ERR_CANCELLED: it is not visible.
enum err box_post_put(struct box *box, const struct object *object,
                      const struct store_place *place);
enum err box_post_delete(struct box *box, const char *key, uint64_t floor);
enum err box_post_delete_at(struct box *box, const char *key, const struct store_place *place);
// Returns when the home's call has returned. The index writer is still working on it.
void box_condemn(struct box *box, const char *key, const struct store_place *place);
void box_let_go(struct store_place *place); // unhold and unpin
// Writes, publishes and releases the run.
enum err box_put_run(struct box *box, const struct object *object, uint64_t first_block,
                     uint32_t block_count);
enum err box_put(struct box *box, const struct object *object); // in runs of up to 4 MiB
void box_renew(struct box *box, const char *key, uint64_t generation);

// Looks the whole object up (up to a window) on worker `index` and reads what is there by every way
// that works, judging each byte. Returns the number of bytes that were there and right; a wrong
// byte fails the test.
uint64_t box_read(struct box *box, unsigned index, const struct object *object);
// Only the look-up; without places kept.
void box_look(struct box *box, const struct object *object, struct store_view *ret_view);

uint64_t dir_bytes(const char *path); // as du counts
bool box_is_sealed(struct box *box);  // all that is full has its table

#endif
