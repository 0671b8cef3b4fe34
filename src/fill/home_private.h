// SPDX-License-Identifier: Apache-2.0
// Shared by the files of a key's home: home.c (which version is current, publication), home_write.c
// (invalidation, open writes) and home_revalidate.c (is a version current?). All of it runs on the
// home's worker.
#ifndef FOREBAY_FILL_HOME_PRIVATE_H
#define FOREBAY_FILL_HOME_PRIVATE_H

#include "fill/fill_private.h"

// Maximum number of deletes in flight, per worker, that were posted because no look-up was possible
// (rule 33). Each keeps its home's entry alive. Above this limit the whole bucket is in doubt
// instead.
#define HOME_UNSURE_MAX 1024u

enum home_state {
#define HOME_PHASE(name, ...) HOME_##name,
#include "fill/phases.def"
};

struct held_publish { // a PUBLISH that came while the version was being decided
    struct list_node node;
    struct publish_message message;
};

// The news from other answers while one answer was in flight.
struct home_noted {
    bool has;
    // The version that they named. NULL: no object, more than one version or description, or a
    // version without its headers.
    struct store_object *object;
};

struct revalidation {      // one HEAD for all that ask while it is in flight
    struct list_node node; // when answered: in home_key.concluded
    struct origin_fetch fetch;
    struct origin_trace trace;
    struct home_key *home;
    struct object_key *key;     // the first asker's, with its credentials
    struct store_object *asked; // the version asked about; NULL: none
    struct store_object *found;
    struct store_object *by_head; // HEAD's answer if GET was sent after it; else NULL
    struct home_noted given;      // to readers, since the request was sent
    // It is sent for the checksums alone, and no client waited for it when it was sent.
    bool is_learning;
    struct list waiters;
    uint64_t floor, began_us;
    enum err err;         // the result
    struct span document; // the origin's error; a copy
};

// Returns true if the answer may not be a real change, so that the home asks again with GET
// (home_doubt.c).
bool home_doubts_answer(struct revalidation *c);

struct home_key {
    struct list_node map_node;
    struct fill_worker *fw;
    struct object_key *key;
    enum home_state state; // fill_home_enter() alone writes it
    // Token of the first request, while the run that carries it is in its owner's table. 0: none.
    uint64_t token;
    struct store_object *known; // the known version, with its generation
    uint64_t known_us;          // when the request that found it was sent
    struct home_noted found;    // by other answers, while the version is being decided
    struct store_object *put;   // the last version published in this entry's life; or NULL
    struct list held;           // readers held until it is decided, or no delete is in flight
    struct list publishing;     // struct held_publish: held until it is decided
    uint64_t floor;
    uint64_t acked[FILL_WORKERS_MAX];
    bool has_floor;      // the floor is not lifted yet
    unsigned deletes;    // deletes that are not durable yet and that writes or readers wait for
    enum err delete_err; // result of the last of them that ended
    // Deletes posted because no look-up was possible (rule 33). Nobody waits for them.
    unsigned unsure;
    bool is_hidden; // one of those is in flight, and nothing was put since
    unsigned open_writes;
    unsigned doubts;      // open writes that are doubts
    struct list starting; // writes that wait for the delete
    struct list closing;  // writes that wait for the acknowledgements
    struct revalidation *revalidation;
    struct list next_revalidation; // waiters that need a request sent after they asked
    // struct revalidation: the origin has answered, but what its answer
    // invalidates is not gone yet.
    struct list concluded;
    // The visible version with its new headers, while the index takes them over. NULL: none.
    struct store_object *described;
};

// Returns true if every worker has acknowledged the last floor.
static inline bool home_is_acknowledged(const struct home_key *h)
{
    bool acked = true;
    for (unsigned i = 0; acked && i < h->fw->room->worker_count; i++) {
        acked = h->acked[i] == h->floor;
    }
    return acked;
}

// Returns true if a write is open, so that no run of the key is published.
static inline bool home_is_open(const struct home_key *h)
{
    return h->open_writes > 0 || open_keys_has(h->fw->room, h->key);
}

// Returns true if every worker has acknowledged the last floor and no delete is outstanding.
static inline bool home_is_settled(const struct home_key *h)
{
    return h->deletes == 0 && home_is_acknowledged(h);
}

// The visible record, not below the home's floor.
struct home_visible {
    bool found, rebuilt;
    bool unknown; // the look-up could not look: there may be a record
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    struct store_sums sums;
};

// --- phases.c ------------------------------------------------------------------------------------

void fill_home_enter(struct home_key *h, enum home_state to);

// --- home.c --------------------------------------------------------------------------------------

struct home_key *home_find(struct fill_worker *fw, struct hash128 hash); // NULL: there is none
struct home_key *home_get(struct fill_worker *fw, struct object_key *key);
void home_maybe_free(struct home_key *h); // frees it if nothing of the key is undecided
static inline void home_hold(struct list *list, struct subscription *sub)
{
    list_push_back(list, &sub->held_node);
}
static inline struct subscription *home_unhold(struct list *list) // the oldest; NULL: none
{
    struct list_node *node = list_pop_front(list);
    return node != NULL ? container_of(node, struct subscription, held_node) : NULL;
}
struct home_visible home_look_up(struct home_key *h);
// Rule 31. Returns true if a crash now could bring back a version older than the one that a reader
// is about to get. It cannot if the bucket is noted as written to, because the next process
// confirms whatever it finds there.
bool home_awaits_disk(const struct home_key *h);
// Returns true if a first request may be sent. It must wait for a delete that a crash would undo,
// because it may find a version newer than the deleted one (rule 31). It must also wait until every
// worker has met the last invalidation: until then a first request from before the invalidation may
// find a newer version than this one.
static inline bool home_may_decide(const struct home_key *h)
{
    return home_is_acknowledged(h) && !home_awaits_disk(h);
}
// Returns true if the record names the version of `object`.
bool home_visible_is(const struct home_visible *v, const struct store_object *object);
// Returns the visible version if this entry published it or took over its headers. Otherwise NULL.
const struct store_object *home_visible_object(const struct home_key *h,
                                               const struct home_visible *v);
// Returns true if `object` is the current version: the one known here, otherwise the one visible in
// the index or kept.
bool home_is_current(struct home_key *h, const struct store_object *object);
// Rule 31. Call it when a client is about to be given the version that an origin's answer names
// (NULL: no such object). Invalidates the visible or known version if it is another, or if the
// known version has other headers. Returns true if it invalidated.
bool home_find_out(struct home_key *h, struct store_object *object);
// Rule 32. Answers with the version, which counts like a record confirmed at `asked_us`.
void home_answer_version(struct home_key *h, struct subscription *sub, struct store_object *version,
                         uint64_t asked_us);
// Rule 32. Answers a reader that has no version with the kept answer. Returns false if no kept
// answer counts now.
bool home_answer_kept(struct home_key *h, struct subscription *sub);
void home_forget(struct home_key *h); // forgets the version that is known or being decided
void home_route_held(struct home_key *h);
void home_publish_held(struct home_key *h);
// Rule 9. Invalidates the version that answered 412 to this reader, if it is still current.
void home_drop_refused(struct home_key *h, struct subscription *sub);

// --- home_given.c --------------------------------------------------------------------------------

struct home_given home_given(struct home_key *h);
// Adds the version that one more answer names. NULL: the answer says that there is no object, or
// describes none that can be compared.
void home_note(struct home_noted *noted, struct store_object *object);
void home_note_forget(struct home_noted *noted);
// Returns true if a noted answer names another version than `object`, or other headers. Both
// answers were in flight at once, so nobody can say which is newer.
bool home_note_contradicts(const struct home_noted *noted, const struct store_object *object);
// Notes that this version is given, so that no reader gets an older one from now on. NULL: there is
// no such object.
void home_give(struct home_key *h, struct store_object *object);
// The same for the version with this version_hash(), whose headers are not known. 0: it may be any
// version, or none.
void home_give_named(struct home_key *h, uint64_t version);
// Notes that a client got an answer that denies this version: it is not current. No reader gets the
// version any more unless it was requested later.
void home_deny(struct home_key *h, uint64_t version);
// Notes that two answers in flight at once describe this version differently, or that one names
// another version. Nobody can say which is newer, so no description learnt until now counts.
void home_doubt_headers(struct home_key *h, const struct store_object *object);

// --- home_kept.c ---------------------------------------------------------------------------------

// Returns the version in the key's kept answer. NULL: no kept answer counts.
struct store_object *home_kept(const struct home_key *h);
uint64_t home_kept_us(const struct home_key *h); // when the origin was asked for it
// The same, even if the kept answer does not count any more. Use it only for the checksums of the
// version that it names.
struct store_object *home_described(const struct home_key *h);
// Keeps the origin's answer, if there is room for it.
void home_keep(struct home_key *h, struct store_object *object, uint64_t asked_us);
void home_unkeep(struct home_key *h);
void home_kept_outdate(struct home_key *h); // the kept answer does not count any more
// The same, unless the kept answer has this version and the same headers.
void home_kept_outdate_by(struct home_key *h, const struct store_object *object);

// --- home_redescribed.c --------------------------------------------------------------------------

struct home_redescribed home_redescribed(struct home_key *h);
// Notes that the current version has the headers of `object` now and had others before. NULL:
// nobody can say which headers it has now, so none that were learnt before now count.
void home_redescribe(struct home_key *h, const struct store_object *object);

// --- fill_assert.c -------------------------------------------------------------------------------

void fill_assert_home(const struct home_key *h); // aborts if an invariant is broken

// --- home_write.c --------------------------------------------------------------------------------

void home_invalidate(struct home_key *h);
// Has the index take over the headers of `found`, which a question sent at `asked_us` found for the
// visible version. Its bytes stay, and nothing else changes until the index has taken them over.
// Returns false if the bytes cannot stay.
bool home_take_over(struct home_key *h, const struct home_visible *v, struct store_object *found,
                    uint64_t asked_us) MUST_USE;
// Rule 33. Deletes whatever the index may hold of the key, without an invalidation. Nobody waits
// for it, so that a disk in trouble delays no reader. While one is in flight, another is
// posted only after a put.
void home_delete_unseen(struct home_key *h);
// Continues all that waited for acknowledgements or deletes and need not wait any more. May free
// `h`.
void home_settle(struct home_key *h);

// --- home_revalidate.c ---------------------------------------------------------------------------

void home_answer_concluded(struct home_key *h);

#endif
