// SPDX-License-Identifier: Apache-2.0
// What the files of a key's home share: home.c (which version is current, publication), home_write.c
// (invalidation, open writes), home_revalidate.c (conditional requests). All of it runs on the home's
// worker.
#ifndef FOREBAY_FILL_HOME_PRIVATE_H
#define FOREBAY_FILL_HOME_PRIVATE_H

#include "fill/fill_private.h"

enum home_state { HOME_NONE, HOME_DECIDING, HOME_KNOWN };

struct held { // a subscription that waits here
    struct list_node node;
    struct subscription *subscription;
};

struct revalidation { // one conditional request for all who ask meanwhile
    struct origin_fetch fetch;
    struct home_key *home;
    struct object_key *key;     // of who asked first: with these credentials
    struct store_object *asked; // its ETag went along; NULL: none
    struct store_object *found;
    struct list waiters;
    uint64_t floor, began_us;
};

struct home_key {
    struct list_node map_node;
    struct fill_worker *fw;
    struct object_key *key;
    enum home_state state;
    uint64_t token; // of the first request, while the run that carries it is in its table; else 0
    struct store_object *known; // with its generation
    struct list held;
    unsigned posted; // puts not yet visible
    uint64_t floor;
    uint64_t acked[FILL_WORKERS_MAX];
    bool has_floor;   // not lifted yet
    unsigned deletes; // not yet visible
    bool delete_owed; // one failed: the floor stays until it is repeated with success
    struct timer delete_timer;
    unsigned delete_failures;
    unsigned open_writes;
    unsigned doubts;      // of these
    struct list starting; // writes that wait for the delete
    struct list closing;  // writes that wait for the acknowledgements
    struct revalidation *revalidation;
    struct list next_revalidation; // strict readers that came after it was sent
};

// The visible record that counts at the home.
struct home_visible {
    bool found;
    uint64_t generation, etag_hash;
    uint32_t block_size_bytes;
};

// --- home.c --------------------------------------------------------------------------------------

struct home_key *home_find(struct fill_worker *fw, struct hash128 hash); // NULL: there is none
struct home_key *home_get(struct fill_worker *fw, struct object_key *key);
void home_free_all(
    struct fill_worker *fw); // with the worker: keys whose delete the disk still refuses
void home_maybe_free(struct home_key *h); // when nothing of the key is undecided any more
void home_hold(struct list *list, struct subscription *sub);
struct subscription *home_unhold(struct list *list); // the oldest; NULL: there is none
struct home_visible home_look_up(struct home_key *h);
bool home_visible_is(const struct home_visible *v, const struct store_object *object);
// Is `object` the version that counts now: known here, else visible in the index?
bool home_is_current(struct home_key *h, const struct store_object *object);
void home_answer_again(struct home_key *h, struct subscription *sub);
// Where a version of this key, with checksums, is remembered; another key's may lie there.
struct store_object **home_described(struct home_key *h);
void home_forget(struct home_key *h); // what is known, or being decided
void home_route_held(struct home_key *h);

// --- fill_assert.c -------------------------------------------------------------------------------

void fill_assert_home(const struct home_key *h); // aborts when what must hold does not

// --- home_write.c --------------------------------------------------------------------------------

void home_invalidate(struct home_key *h);
void home_on_delete_timer(struct timer *timer);

#endif
