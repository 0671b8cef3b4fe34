// SPDX-License-Identifier: Apache-2.0
// What the files of a key's home share: home.c (which version is current, publication),
// home_write.c (invalidation, open writes), home_revalidate.c (is a version current?). All of it
// runs on the home's worker.
#ifndef FOREBAY_FILL_HOME_PRIVATE_H
#define FOREBAY_FILL_HOME_PRIVATE_H

#include "fill/fill_private.h"

// Deletes of what nobody could look at (rule 33) that a worker's homes have on their way: each
// holds its home's entry. Above, the bucket is in doubt instead.
#define HOME_UNSURE_MAX 1024u

enum home_state { HOME_NONE, HOME_DECIDING, HOME_KNOWN };

struct held { // a subscription that waits here
    struct list_node node;
    struct subscription *subscription;
};

struct held_publish { // that came while the version was being decided
    struct list_node node;
    struct publish_message message;
};

struct revalidation {      // one HEAD for all who ask while it is out
    struct list_node node; // answered, in the home's list of those that wait
    struct origin_fetch fetch;
    struct origin_trace trace;
    struct home_key *home;
    struct object_key *key;     // of who asked first: with these credentials
    struct store_object *asked; // about which version; NULL: none
    struct store_object *found;
    struct store_object *by_head; // what HEAD said before GET was asked; NULL: it was not doubted
    bool is_learning; // for the checksums alone, and no client has waited when it was sent
    struct list waiters;
    uint64_t floor, began_us;
    enum err err;         // the answer
    struct span document; // its error; a copy
};

// The answer may be no change: it is to be asked for once more, by GET (home_doubt.c).
bool home_doubts_answer(struct revalidation *c);

struct home_key {
    struct list_node map_node;
    struct fill_worker *fw;
    struct object_key *key;
    enum home_state state;
    uint64_t token; // of the first request, while the run that carries it is in its table; else 0
    struct store_object *known; // with its generation
    uint64_t known_us;          // when the request was sent that found it
    // What has been found elsewhere while this is being decided; NULL: no object, more than one
    // answer, or one that says no more than a version's name.
    bool has_found;
    struct store_object *found;
    struct store_object *put; // the last that was published while this entry lived; or NULL
    struct list held;         // until it is decided, or no delete is on its way
    struct list publishing;   // struct held_publish: until it is decided
    uint64_t floor;
    uint64_t acked[FILL_WORKERS_MAX];
    bool has_floor;      // not lifted yet
    unsigned deletes;    // not yet durable, and waited for
    enum err delete_err; // of the last of these that has ended
    unsigned unsure;     // deletes of what nobody could look at (rule 33): nobody waits for them
    bool is_hidden;      // one of them is on its way, and nothing was put since
    unsigned open_writes;
    unsigned doubts;      // of these
    struct list starting; // writes that wait for the delete
    struct list closing;  // writes that wait for the acknowledgements
    struct revalidation *revalidation;
    struct list next_revalidation; // those for whom the one that was sent will not do
    struct list concluded; // struct revalidation: answered, until what it made untrue is gone
    // The visible version as it is described now, while the index takes that over. NULL: it does
    // not.
    struct store_object *described;
};

// Every worker has acknowledged the last floor.
static inline bool home_is_acknowledged(const struct home_key *h)
{
    bool acked = true;
    for (unsigned i = 0; acked && i < h->fw->room->worker_count; i++) {
        acked = h->acked[i] == h->floor;
    }
    return acked;
}

// A write is open: nothing of the key is published.
static inline bool home_is_open(const struct home_key *h)
{
    return h->open_writes > 0 || open_keys_has(h->fw->room, h->key);
}

// And no delete is outstanding.
static inline bool home_is_settled(const struct home_key *h)
{
    return h->deletes == 0 && home_is_acknowledged(h);
}

// The visible record that counts at the home.
struct home_visible {
    bool found, rebuilt;
    bool unknown; // there may be one all the same
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    struct store_sums sums;
};

// --- home.c --------------------------------------------------------------------------------------

struct home_key *home_find(struct fill_worker *fw, struct hash128 hash); // NULL: there is none
struct home_key *home_get(struct fill_worker *fw, struct object_key *key);
void home_maybe_free(struct home_key *h); // when nothing of the key is undecided any more
void home_hold(struct list *list, struct subscription *sub);
struct subscription *home_unhold(struct list *list); // the oldest; NULL: there is none
struct home_visible home_look_up(struct home_key *h);
// Rule 31: could a crash now bring back what is older than what somebody is about to be given? Not
// where the bucket is noted as written to: whatever the next process finds there it confirms first.
bool home_awaits_disk(const struct home_key *h);
// May a first request go out? What it finds may be newer than what a delete removes that a crash
// would undo (31). It may be older than what a first request from before an invalidation has found,
// as long as a worker has not met that one.
static inline bool home_may_decide(const struct home_key *h)
{
    return home_is_acknowledged(h) && !home_awaits_disk(h);
}
// Is `object` the version that the record names?
bool home_visible_is(const struct home_visible *v, const struct store_object *object);
// As somebody described it to this entry's home; NULL: nobody has.
const struct store_object *home_visible_object(const struct home_key *h,
                                               const struct home_visible *v);
// Is `object` the version that counts now: known here, else visible in the index?
bool home_is_current(struct home_key *h, const struct store_object *object);
// Rule 31: the origin has this version (NULL: no such object), and somebody is given it. What
// counts here and is another is invalidated, and true returned. So it is if the version known here
// has other headers.
bool home_find_out(struct home_key *h, struct store_object *object);
// Rule 32: the version is as good as a record that was confirmed when the origin was asked.
void home_answer_version(struct home_key *h, struct subscription *sub, struct store_object *version,
                         uint64_t asked_us);
void home_answer_again(struct home_key *h, struct subscription *sub);
// Rule 32. Answers a reader who has nothing with the kept version. False: none counts now.
bool home_answer_kept(struct home_key *h, struct subscription *sub);
void home_forget(struct home_key *h); // what is known, or being decided
void home_route_held(struct home_key *h);
void home_publish_held(struct home_key *h);
// Rule 9: the version that answered 412 to this reader counts no more.
void home_drop_refused(struct home_key *h, struct subscription *sub);

// --- home_given.c --------------------------------------------------------------------------------

struct home_given home_given(struct home_key *h);
// From now on older versions are given to nobody. NULL: there is no such object.
void home_give(struct home_key *h, const struct store_object *object);
// The same of the version with this version_hash(), whose headers are not known. 0: it may be any,
// or none.
void home_give_named(struct home_key *h, uint64_t version);
// A client has been told that this version is not the current one: it is given to nobody that was
// not asked for later.
void home_deny(struct home_key *h, uint64_t version);
// Two answers that were under way at once describe this version otherwise, or name another: which
// is newer nobody can say. Nothing counts that was learnt until now.
void home_doubt_headers(struct home_key *h, const struct store_object *object);

// Was somebody given another version than `object`, or other headers of it, since then? Exact for
// this worker's clock.
bool home_was_given_other(struct home_key *h, const struct store_object *object, uint64_t since_us);

// --- home_kept.c ---------------------------------------------------------------------------------

// Returns what the origin last said of the key, while nothing of it was stored; NULL: nothing that
// counts is kept.
struct store_object *home_kept(const struct home_key *h);
uint64_t home_kept_us(const struct home_key *h); // when the origin was asked
// Likewise, also where it does not count any more: only for the checksums of the version that it
// names.
struct store_object *home_described(const struct home_key *h);
// Keeps what the origin has said, unless there is no room for it.
void home_keep(struct home_key *h, struct store_object *object, uint64_t asked_us);
void home_unkeep(struct home_key *h);
void home_kept_outdate(struct home_key *h); // what is kept counts no more
// Likewise, unless it is of this version with the same headers.
void home_kept_outdate_by(struct home_key *h, const struct store_object *object);

// --- home_redescribed.c --------------------------------------------------------------------------

struct home_redescribed home_redescribed(struct home_key *h);
// The origin describes the current version as `object` does, and did otherwise before.
void home_redescribe(struct home_key *h, const struct store_object *object);

// --- fill_assert.c -------------------------------------------------------------------------------

void fill_assert_home(const struct home_key *h); // aborts when what must hold does not

// --- home_write.c --------------------------------------------------------------------------------

void home_invalidate(struct home_key *h);
// The visible version has the headers of `found` now, found by a question sent at `asked_us`. Its
// bytes stay, and nothing else changes until the index has taken the headers over. False: they
// cannot stay.
bool home_take_over(struct home_key *h, const struct home_visible *v, struct store_object *found,
                    uint64_t asked_us) MUST_USE;
// Rule 33: what may be held is deleted, without an invalidation, and nobody waits for it: a disk
// that is in trouble holds up no reader. Once is enough until something is put.
void home_delete_unseen(struct home_key *h);
// Whatever waited for acknowledgements or deletes and need not wait any more goes on; may free `h`.
void home_settle(struct home_key *h);

// --- home_revalidate.c ---------------------------------------------------------------------------

void home_answer_concluded(struct home_key *h);

#endif
