// SPDX-License-Identifier: Apache-2.0
// Declares what the files of a key's home share. home.c decides the version and publishes runs.
// home_write.c invalidates and holds writes open. home_revalidate.c checks whether a version is
// current. All of it runs on the home's worker.
#ifndef FOREBAY_FILL_HOME_PRIVATE_H
#define FOREBAY_FILL_HOME_PRIVATE_H

#include "fill/fill_private.h"

// Maximum number of deletes in flight on each worker for which no reader waits. Each keeps a struct
// home_key in memory. Above this limit the whole bucket is put in doubt instead of a delete that
// would be posted because no look-up was possible (rule 33), and readers wait for late deletes.
#define HOME_UNAWAITED_MAX 1024u

enum home_state {
#define HOME_PHASE(name, ...) HOME_##name,
#include "fill/phases.def"
};

struct held_publish { // a PUBLISH that came while the version was being decided
    struct list_node node;
    struct publish_message message;
};

// The version that other answers named while a request of the home was in flight.
struct home_noted {
    bool has; // at least one other answer has come
    // The version that they named. NULL: they said that there is no object, they disagree about the
    // version or its headers, or they named a version without its headers.
    struct store_object *object;
};

struct revalidation {      // one HEAD, shared by all readers that ask while it is in flight
    struct list_node node; // in home_key.concluded once the origin has answered
    struct origin_fetch fetch;
    struct origin_trace trace;
    struct home_key *home;
    struct object_key *key;     // the key of the first waiter, with its credentials
    struct store_object *asked; // the version asked about; NULL: none
    struct store_object *found;
    struct store_object *by_head; // the HEAD's answer, if a GET was sent after it; otherwise NULL
    struct home_noted given;      // versions given to readers since the request was sent
    // The request was sent for checksums alone, and no client waited for it then.
    bool is_learning;
    struct list waiters;
    uint64_t floor, began_us;
    uint64_t concluded_us; // when the origin's answer was known; 0: it is not
    enum err err;          // result of the HEAD
    struct span document;  // the origin's error; a copy
};

// Returns true if the HEAD reports a change that may not be real. The home then asks again with GET
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
    struct home_noted found;  // versions named by other answers while the version is being decided
    struct store_object *put; // the last version published since this entry was created; or NULL
    struct list held;       // readers held until the version is decided, or no delete is in flight
    struct list publishing; // struct held_publish: runs that wait until the version is decided
    uint64_t floor;
    uint64_t acked[FILL_WORKERS_MAX]; // last floor that each worker has acknowledged
    bool has_floor;                   // the floor is not lifted on the workers yet
    unsigned deletes;                 // deletes that are not durable yet, for which writes wait
    unsigned awaited;    // those of them that are not late, for which readers wait, too
    enum err delete_err; // result of the last delete that ended
    // Deletes in flight that were posted because no look-up was possible (rule 33). Nobody waits
    // for them.
    unsigned unsure;
    bool is_hidden; // a delete counted in `unsure` is in flight, and no run was put since
    unsigned open_writes;
    unsigned doubts;      // number of open writes with is_doubt
    struct list starting; // writes that wait for the delete to be durable
    struct list closing;  // writes that wait for all workers to acknowledge the floor
    struct revalidation *revalidation;
    // Readers that wait for the next request, which is sent after they asked.
    struct list next_revalidation;
    // Checks (struct revalidation) that the origin has answered. Their readers still wait for an
    // invalidation to complete.
    struct list concluded;
    // The visible version with its new headers, while they are written to the index. NULL: none.
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

// The key's record in the index, as one look-up found it. A record below the home's floor is not
// found.
struct home_visible {
    bool found, rebuilt;
    bool unknown; // the look-up failed, so there may be a record
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    struct store_sums sums;
};

// --- phases.c ------------------------------------------------------------------------------------

void fill_home_enter(struct home_key *h, enum home_state to);

// --- home.c --------------------------------------------------------------------------------------

// Returns NULL if the home has no entry for the key.
struct home_key *home_find(struct fill_worker *fw, struct hash128 hash);
struct home_key *home_get(struct fill_worker *fw, struct object_key *key);
// Frees the entry, unless something about the key is still undecided.
void home_maybe_free(struct home_key *h);
static inline void home_hold(struct list *list, struct subscription *sub)
{
    list_push_back(list, &sub->held_node);
}
// Removes the oldest reader from the list, and returns it. NULL: the list is empty.
static inline struct subscription *home_unhold(struct list *list)
{
    struct list_node *node = list_pop_front(list);
    return node != NULL ? container_of(node, struct subscription, held_node) : NULL;
}
struct home_visible home_look_up(struct home_key *h);
// Rule 31. Returns true if a crash now could bring back a version older than the one that a reader
// is about to get. Returns false if a note on disk says that the bucket is being written to,
// because the next process then confirms everything that it finds there.
bool home_awaits_disk(const struct home_key *h);
// Returns true if a first request may be sent. It must wait for a delete that a crash would undo,
// because it may find a version newer than the deleted one (rule 31). It must also wait until every
// worker has acknowledged the last floor: until then, a first request sent before the invalidation
// may still find a newer version than this one.
static inline bool home_may_decide(const struct home_key *h)
{
    return home_is_acknowledged(h) && !home_awaits_disk(h);
}
// Returns true if the record names the version of `object`.
bool home_visible_is(const struct home_visible *v, const struct store_object *object);
// Returns the visible version if `h` published it or took over its headers. Otherwise NULL.
const struct store_object *home_visible_object(const struct home_key *h,
                                               const struct home_visible *v);
// Returns true if `object` is the current version. That is the one known to `h`; if none is known,
// the one that is visible in the index or kept.
bool home_is_current(struct home_key *h, const struct store_object *object);
// Rule 31. Call it when a client is about to be given the version that an origin's answer names
// (NULL: no such object). Invalidates the visible or known version if it is another, or if the
// known version has other headers. Returns true if it invalidated. `may_be_older`: the answer may
// be older than one that was given while its request was in flight.
bool home_find_out(struct home_key *h, struct store_object *object, bool may_be_older);
// Rule 32. Answers the reader with `version`, which counts as confirmed at `asked_us`.
void home_answer_version(struct home_key *h, struct subscription *sub, struct store_object *version,
                         uint64_t asked_us);
// Rule 32. Answers a reader that has no version with the kept answer. Returns false if no kept
// answer is valid now.
bool home_answer_kept(struct home_key *h, struct subscription *sub);
void home_forget(struct home_key *h); // forgets the version that is known, or stops deciding
void home_route_held(struct home_key *h);
void home_publish_held(struct home_key *h);
// Rule 9. Invalidates the version that answered 412 to this reader, if it is still current.
void home_drop_refused(struct home_key *h, struct subscription *sub);

// --- home_given.c --------------------------------------------------------------------------------

struct home_given home_given(struct home_key *h);
// Returns true if an answer that names this version may be older than the version given last,
// because its request was sent at `asked_us`. 0: the answer says that there is no object.
bool home_given_since(struct home_key *h, uint64_t version, uint64_t asked_us);
// Adds the version that one more answer names. NULL: the answer says that there is no object, or it
// has no headers that can be compared.
void home_note(struct home_noted *noted, struct store_object *object);
void home_note_forget(struct home_noted *noted);
// Returns true if a noted answer differs from `object` in its version or headers. The two answers
// were in flight at the same time, so it is not known which is newer.
bool home_note_contradicts(const struct home_noted *noted, const struct store_object *object);
// Notes that a reader is given this version, so that no reader gets an older one from now on. NULL:
// the reader gets the answer that there is no such object.
void home_give(struct home_key *h, struct store_object *object);
// As home_give(), for the version with this version_hash(), whose headers are not known. 0: it may
// be any version, or none.
void home_give_named(struct home_key *h, uint64_t version);
// Notes that a client got an answer which says that this version is not current. From now on, no
// reader gets bytes of this version that were requested before now.
void home_deny(struct home_key *h, uint64_t version);
// Called if an answer names the version of `object`, and another answer that was in flight at the
// same time names another version or none, or this one with other headers. It is not known which
// answer is newer. So headers of this version that were requested until now do not count any more,
// and the kept answer is outdated.
void home_doubt_headers(struct home_key *h, const struct store_object *object);

// --- home_kept.c ---------------------------------------------------------------------------------

// Returns the version in the key's kept answer. NULL: no kept answer is valid.
struct store_object *home_kept(const struct home_key *h);
uint64_t home_kept_us(const struct home_key *h); // when the origin was asked for the kept answer
// As home_kept(), even if the kept answer is outdated. Use it only for the checksums of the version
// that it names.
struct store_object *home_described(const struct home_key *h);
// Keeps the origin's answer, if there is room for it.
void home_keep(struct home_key *h, struct store_object *object, uint64_t asked_us);
void home_unkeep(struct home_key *h);
void home_kept_outdate(struct home_key *h); // marks the kept answer as outdated
// Marks the kept answer as outdated, unless it names this version with the same headers.
void home_kept_outdate_by(struct home_key *h, const struct store_object *object);

// --- home_redescribed.c --------------------------------------------------------------------------

struct home_redescribed home_redescribed(struct home_key *h);
// Notes that the headers of the current version have changed to those of `object`. NULL: its
// present headers are not known, so headers learnt before now are not used any more.
void home_redescribe(struct home_key *h, const struct store_object *object);

// --- fill_assert.c -------------------------------------------------------------------------------

void fill_assert_home(const struct home_key *h); // aborts if an invariant is broken

// --- home_write.c --------------------------------------------------------------------------------

void home_invalidate(struct home_key *h);
// Writes the headers of `found` to the index. A request sent at `asked_us` found them for the
// visible version. The version's bytes stay cached, and nothing else changes until the index has
// the headers. Returns false if the bytes cannot stay.
bool home_take_over(struct home_key *h, const struct home_visible *v, struct store_object *found,
                    uint64_t asked_us) MUST_USE;
// Rule 33. Deletes whatever the index may hold of the key, without an invalidation. Nobody waits
// for the delete, so that a disk in trouble delays no reader. While such a delete is in flight, the
// home posts another only if something was put in between.
void home_delete_unseen(struct home_key *h);
// Continues all readers and writes whose acknowledgements or deletes are complete. May free `h`.
void home_settle(struct home_key *h);

// --- home_revalidate.c ---------------------------------------------------------------------------

void home_answer_concluded(struct home_key *h);

#endif
