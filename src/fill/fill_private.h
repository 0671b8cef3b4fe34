// SPDX-License-Identifier: Apache-2.0
// What the files of this room share: the per-worker context, the messages between workers, a run in
// flight and the readers attached to it.
#ifndef FOREBAY_FILL_FILL_PRIVATE_H
#define FOREBAY_FILL_FILL_PRIVATE_H

#include <pthread.h>

#include "base/check.h"
#include "fill/fill.h"
#include "fill/message.h"
#include "stats/stats.h"

#define FILL_STRIPE_BYTES (64u << 20)
#define FILL_WORKERS_MAX 64u
#define FILL_MAP_BUCKETS 4096u
#define FILL_KINDS 4096u
#define FILL_LISTED (1u << 20)
#define FILL_UNCACHEABLE 4096u
// Slots of fill_learn.c: versions that are being asked about, and origins that are not asked for a
// time.
#define FILL_LEARN_VERSIONS 16384u
#define FILL_LEARN_ORIGINS 64u
#define FILL_RUN_SUMS 8192u
#define FILL_RUN_SUM_WAYS                                                                          \
    8u // in a set: of two runs of one object hardly ever one drives out the other
#define FILL_VERDICTS 1024u
#define FILL_GIVEN 2048u
#define FILL_REDESCRIBED 1024u
// Bytes that a reader of a stored run holds unsent: all of a run where there is memory. It asks
// again for what comes above that.
#define FILL_QUEUE_MAX STORE_RUN_MAX
#define FILL_QUEUE_LEAST (2u * CHUNK_SIZE) // whatever happens: what comes in one turn
#define FILL_QUEUES_MIN 64u                // so many such readers must not use up limits.max_buffer

struct fill;
struct whole_sums;

// --- tables keyed by the 128-bit object hash -----------------------------------------------------

struct fill_map {
    struct list buckets[FILL_MAP_BUCKETS];
    unsigned count;
};
static inline struct list *fill_map_bucket(struct fill_map *map, struct hash128 hash)
{
    return &map->buckets[hash.lo % FILL_MAP_BUCKETS];
}
static inline void fill_map_init(struct fill_map *map)
{
    for (unsigned i = 0; i < FILL_MAP_BUCKETS; i++) {
        list_init(&map->buckets[i]);
    }
    map->count = 0;
}

// --- room and worker -----------------------------------------------------------------------------

#define FILL_HERE_SLOTS 16384u
#define FILL_HERE_WAYS 4u // in a set
#define FILL_OPEN_BUCKETS 1024u

struct run_sum_slot {
    _Atomic uint64_t name, end_byte, crc, verdicts, proof;
};

struct fill_room {
    struct fill_options options;
    // message_dispatch(); who sends a message need not know its receivers.
    void (*deliver)(struct worker *to, struct message *message);
    unsigned worker_count;
    struct fill_worker *workers;
    _Atomic uint64_t *here;        // FILL_HERE_SLOTS names of blocks, fill_here.c
    _Atomic uint64_t *kinds;       // FILL_KINDS, fill_describe.c; a hint, of any worker
    _Atomic uint16_t *listed;      // FILL_LISTED, fill_describe.c; a hint
    _Atomic uint64_t *uncacheable; // FILL_UNCACHEABLE, fill_uncacheable.c; a hint
    struct {                       // fill_learn.c
        atomic_uint in_flight;
        _Atomic uint64_t versions[FILL_LEARN_VERSIONS], paused[FILL_LEARN_ORIGINS];
    } learning;
    struct run_sum_slot *run_sums;            // FILL_RUN_SUMS, reply_sum.c
    _Atomic uint64_t verdicts[FILL_VERDICTS]; // reply_sum.c
    struct {
        pthread_mutex_t lock;
        atomic_uint count; // keys in all buckets, readable without the lock
        struct list buckets[FILL_OPEN_BUCKETS];
    } open; // open_keys.c
};

struct given_slot {
    struct hash128 hash;
    struct home_given given;
};

struct redescribed_slot {
    struct hash128 hash;
    struct home_redescribed last; // of this key
    uint64_t any_us; // when the last of the keys was redescribed that gave way to others
};

struct fill_worker {
    struct fill_room *room;
    struct store *store;
    struct worker *worker;
    unsigned index;
    struct fill_map fills;    // struct fill.map_node: runs in flight, of stripes this worker owns
    struct fill *memory_lead; // goes on while memory is short, so that something does
    struct fill_map homes;    // struct home_key.map_node
    struct fill_map floors;   // fill_floor.c: not yet lifted
    struct whole_sums *whole_sums; // NULL until the first
    struct {                       // home_kept.c
        struct fill_map map;       // struct kept_answer.map_node
        struct list by_age;        // struct kept_answer.age_node, the oldest first
        uint64_t bytes;            // of BUDGET_ANSWERS
    } kept;
    struct given_slot given[FILL_GIVEN];                   // home_given.c; by key hash
    struct redescribed_slot redescribed[FILL_REDESCRIBED]; // home_redescribed.c; by key hash
    uint64_t next_token;
    unsigned unsure; // deletes of what nobody could look at, of all its homes
};

// --- fill_floor.c --------------------------------------------------------------------------------

void fill_floor_raise(struct fill_worker *fw, struct hash128 hash, uint64_t generation);
// Rule 26: only if the floor is still that one.
void fill_floor_lift(struct fill_worker *fw, struct hash128 hash, uint64_t generation);
void fill_floor_free_all(struct fill_worker *fw); // with the worker: those that were not lifted
// With the room, when nothing runs: keys whose doubt outlives the process, which its bucket carries
// on (store_doubt()).
void home_free_all(struct fill_worker *fw);
void home_kept_free_all(struct fill_worker *fw); // with the worker

// --- open_keys.c ---------------------------------------------------------------------------------

void open_keys_init(struct fill_room *room);
void open_keys_done(struct fill_room *room);
bool open_keys_has(struct fill_room *room,
                   const struct object_key *key); // does a write hold it open?

// --- object_key.c --------------------------------------------------------------------------------

// The same key in another epoch of its bucket.
struct object_key *object_key_in_epoch(const struct fill_worker *fw, const struct object_key *key,
                                       uint64_t epoch);
// The worker that owns the stripe of `first_byte`; stripe 0's is the key's home.
struct fill_worker *object_key_owner(const struct fill_worker *fw, const struct object_key *key,
                                     uint64_t first_byte);
static inline struct fill_worker *object_key_home(const struct fill_worker *fw,
                                                  const struct object_key *key)
{
    return object_key_owner(fw, key, 0);
}

// --- whole_sum.c: what the origin says its objects add up to -------------------------------------

// Kind and value of a checksum of the whole object that can be computed here; NONE: there is none.
enum s3_checksum whole_sum_wanted(const struct store_object *object, struct span *ret_value);
// Is `sum`, of all bytes of `object`, what the origin says? If not that is counted and logged. Ends
// the sum.
bool whole_sum_is_right(const struct object_key *key, const struct store_object *object,
                        struct s3_checksum_state *sum) MUST_USE;
// One run of a larger object, on the key's home; takes `sum` over, whose kind combines. False: now
// the object is whole, and it is not what the origin says.
bool whole_sum_add(struct fill_worker *fw, const struct object_key *key,
                   const struct store_object *object, uint64_t first_byte, uint64_t end_byte,
                   struct s3_checksum_state *sum) MUST_USE;
void whole_sums_free(struct whole_sums *sums); // with its worker; NULL is fine

// --- reply_sum.c ---------------------------------------------------------------------------------

void reply_sum_note(const struct fill *fill); // all of it has come, and nobody has its last byte
// The object was judged wrong: replies under way are cut.
void reply_sum_condemn(struct fill_worker *fw, const struct store_object *object);

// --- a run in flight; belongs to the worker that owns its stripe ---------------------------------

#define SUBSCRIPTION_MAGIC 0x53554253u
#define FILL_MAGIC 0x46494C4Cu
#define FILL_RESUMES_MAX 3u
#define FILL_RESUME_DELAY_MS 50u
#define FILL_UNSTORED_WINDOW (1u << 20)
// What the run that leads may hold that is not written yet, though memory is used up.
#define FILL_LEAD_AHEAD (512u << 10)
// How long a paused transfer keeps its place at the origin.
#define FILL_PAUSE_MAX_MS 500u
// How often, at most, it is asked whether readers of a run that is being written wait in vain.
#define FILL_PLACE_WAITS_MAX 20u
// A reader of a parked run has taken all but this part of a window before the next piece is asked
// for.
#define FILL_PIECES_PER_WINDOW 4u
// How far a reader of an unstored run may be behind the fastest before it goes on alone; less while
// memory is short.
#define FILL_DETACH_BEHIND (2u << 20)

enum fill_state { FILL_ASKED, FILL_BODY, FILL_WRITING, FILL_WRITTEN };

struct fill {
    uint32_t magic;
    struct list_node map_node;
    struct fill_worker *fw;
    struct object_key *key;
    enum fill_state state;
    bool in_table, doomed, unstored, abandoned, dead;
    uint64_t token;                 // of the home's first request; 0: none
    const char *unstored_why;       // a word for people; NULL: it is stored, or had been
    enum err failed;                // why there never was a head; goes out with FIRST_END
    struct span failed_document;    // valid while the fill fails
    struct store_object *object;    // asked for with If-Match, or learned from the head
    struct store_object *described; // has this version's checksums, from a HEAD; or NULL
    uint64_t asked_us;              // when the request was sent
    bool has_head, weak;
    bool is_for_bound; // replicas have several versions: only who has bytes of this one is given it
    uint64_t first_block;
    uint32_t block_count, block_size_bytes;
    uint64_t first_byte, end_byte; // end is exact after the head
    uint64_t received;             // next byte expected, absolute
    uint64_t retained_from;        // chunks below this were given up
    struct chunk **chunks;         // chunk_count of them, once there is a head
    unsigned chunk_count;
    struct store_run *run;
    bool is_promised;                   // room for it as a long run, until it has begun
    struct store_place pages;           // what is written of it: pinned; no segment: nothing is
    struct s3_checksum_state *checksum; // of what has come; NULL: the origin named none
    bool is_judged, is_wrong;           // all of it has come; it is not what the origin says
    struct store_place place;
    struct list readers;
    uint64_t client;                             // for whom it is fetched
    struct origin_trace trace;                   // and for which of their requests
    char origin_id[ORIGIN_ID_SIZE];              // of the origin's last answer
    unsigned origin_status;                      // of its first answer
    bool ahead;                                  // nobody wants it yet
    uint64_t wanted_first_byte, wanted_end_byte; // by who began it
    unsigned resumes;
    struct origin_fetch fetch;
    bool fetching, finishing, memory_waiting;
    bool paused_memory, paused_window, paused_disk, paused;
    bool parking, parked, in_pieces; // fill_pause.c
    uint64_t parked_us;
    unsigned place_waits;
    uint64_t asked_end_byte; // of the request that is under way
    struct timer pause_timer;
    bool looks_empty; // no byte could be asked for: asked for whole
    // fill_unknown.c
    struct origin_condition condition; // of who began it, until there is a head
    uint64_t suffix_bytes; // wanted at the object's end; 0: where the run begins is known
    uint64_t skip_bytes;   // still to come in the body before the run begins
    // fill_describe.c
    bool asks_whole;   // its first request has no range
    bool describing;   // a HEAD is out beside it
    bool head_waits;   // the run's head has come before HEAD's answer
    enum err head_err; // why the head that had waited was not taken
    struct origin_fetch describe;
    struct message memory_message;
    struct task deliver_task;
    struct timer resume_timer;
    bool resume_waiting;
};

struct attachment {
    struct list_node node;
    struct fill *fill; // NULL once FINAL was sent
    struct subscription *subscription;
    struct fill_worker *at;
    struct store_object *wanted;                 // bound to it when has_sent
    const struct sigv4_credentials *credentials; // its reader's, compared only
    bool has_sent, waiting_place, left;
    bool is_condition;     // of its reader is the condition that the run was begun with
    bool behind, no_pages; // rule 34
    bool ahead;            // rule 20
    uint64_t next_byte;    // delivered up to here
    uint64_t acked_byte;
};

static inline struct fill *fill_of(void *ptr)
{
    struct fill *fill = ptr;
    check(fill != NULL && fill->magic == FILL_MAGIC);
    return fill;
}

static inline bool fill_same_version(const struct store_object *a, const struct store_object *b)
{
    return a->etag.len > 0 && span_equal(a->etag, b->etag);
}

// And with the same headers, as far as both say.
static inline bool fill_same_headers(const struct store_object *a, const struct store_object *b)
{
    return fill_same_version(a, b) &&
           (a->headers.len == 0 || b->headers.len == 0 || fill_version_is_alike(a, b));
}

// What the origin told one who asked with `asked` is true for one with `other`, too: it is about
// the way to the origin, or they are the same there (rule 22).
static inline bool fill_error_is_shared(enum err err, const struct sigv4_credentials *asked,
                                        const struct sigv4_credentials *other)
{
    bool is_error = err != ERR_OK && err != ERR_NOT_MODIFIED;
    bool is_of_way = error_row(err)->status == 503 && err != ERR_ORIGIN_CREDENTIALS;
    return !is_error || is_of_way || asked == other;
}

// By which a version is told from another of its key; never 0.
static inline uint64_t etag_version_hash(struct span etag)
{
    return max_u64(hash64(etag.ptr, etag.len, 0), 1);
}
static inline uint64_t version_hash(const struct store_object *object)
{
    return etag_version_hash(object->etag);
}

// May a run of `version` (0: not known yet), asked for at that time, be older than what was given?
// Not one of that very version, whenever it was asked for.
static inline bool home_given_precedes(const struct home_given *given, uint64_t version,
                                       uint64_t asked_us)
{
    bool is_given = version != 0 && version == given->version;
    bool is_denied =
        asked_us <= given->denied_until_us && (version == 0 || version == given->denied);
    return is_denied || (!is_given && asked_us <= max_u64(given->any_until_us, given->until_us));
}

// Has a reader got the version of `object` with other headers, and after those of `object` were
// asked for?
static inline bool home_given_outdates(const struct home_given *given,
                                       const struct store_object *object)
{
    return given->described == version_hash(object) &&
           object->learnt_us <= given->described_until_us &&
           fill_version_headers_hash(object) != given->headers;
}

// Does `object` have headers that its version has had once, and has no more?
static inline bool home_redescribed_outdates(const struct home_redescribed *redescribed,
                                             const struct store_object *object)
{
    return redescribed->at_us > 0 && object->learnt_us <= redescribed->at_us &&
           fill_version_headers_hash(object) != redescribed->headers;
}

// --- fill.c --------------------------------------------------------------------------------------

// The key is invalidated: its runs in flight here take no joins and are not published.
void fill_doom(struct fill_worker *fw, struct hash128 hash);

// Is a run in flight here that a reader of this version can join? If the object's size was not
// known the run is at the key's home instead of the owner of its stripe (rule 2).
bool fill_has_run(struct fill_worker *fw, const struct subscription *sub);
void fill_maybe_free(struct fill *fill);  // frees it when nothing holds it any more
void fill_drop_chunks(struct fill *fill); // no reader is sent any more from them
void fill_leave_table(struct fill *fill); // no more joins; FIRST_END if it has a token; may free it
void fill_release_promise(struct fill *fill); // of room for a long run
void fill_send_first_end(struct fill *fill);  // the home forgets it, if it waits for it
void fill_send_version(struct fill *fill); // the home learns what the head said, if it waits for it
// Takes the reader out with its one FINAL. document: the origin's error, copied.
void fill_end_attachment(struct attachment *a, enum subscription_outcome outcome, enum err err,
                         struct span document);
void fill_final_all(struct fill *fill, enum subscription_outcome outcome, enum err err,
                    struct span document);
// The run fails: each reader for whom that is no answer asks again.
void fill_fail_all(struct fill *fill, enum err err, struct span document);
void fill_send_head(struct fill *fill, struct attachment *a);
void fill_on_no_readers(struct fill *fill); // rule 21: the last one left or was taken out

// --- fill_assert.c -------------------------------------------------------------------------------

// Abort when what must hold does not.
void fill_assert_run(const struct fill *fill);
void fill_assert_subscription(const struct subscription *sub);

// --- fill_deliver.c ------------------------------------------------------------------------------

void fill_deliver(struct fill *fill); // sends readers what has come; paces an unstored run
void fill_on_deliver(struct task *task);
void fill_on_run_progress(void *ctx, const struct store_place *pages);
void fill_drop_pages(struct fill *fill); // what was written of its run is at its place, or nowhere
struct chunk *fill_chunk(struct fill *fill); // never NULL: a run out of memory pauses instead
// May this stored run go on though memory is used up? One of each worker may.
bool fill_take_lead(struct fill *fill);
void fill_yield_lead(struct fill *fill);

// --- fill_learn.c --------------------------------------------------------------------------------

// May one more HEAD for checksums that nobody waits for be sent there? Counts a refusal.
bool fill_learn_may_ask(struct fill_worker *fw, const struct origin *origin) MUST_USE;
// The home has answered what fill_learn_claim() allowed.
void fill_learn_release(struct fill_worker *fw, const struct object_key *key,
                        const struct store_object *object);
void fill_learn_begin(struct fill_worker *fw); // such a HEAD is sent
// It has ended. One that has failed pauses them for its origin.
void fill_learn_end(struct fill_worker *fw, const struct origin *origin, bool has_failed);

// --- fill_uncacheable.c --------------------------------------------------------------------------

void fill_uncacheable_forget(struct fill_worker *fw,
                             struct hash128 hash); // the key was invalidated

// --- fill_here.c --------------------------------------------------------------------------------

// Who joins the run from now on is given its blocks from here; or is not any more.
void fill_here_note(const struct fill *fill, bool is_here);

// --- fill_describe.c -----------------------------------------------------------------------------

// Is the new run, which `ask` begins, asked for without a range, so that the answer has the
// object's checksums? If the checksums are not wanted, only an object that a listing named as small
// is asked for so.
bool fill_describe_asks_whole(const struct fill *fill, const struct fill_ask *ask, bool are_wanted);
void fill_describe_start(struct fill *fill); // sends a HEAD beside the run
bool fill_describe_holds(struct fill *fill); // is the run's head held for the answer?
void fill_describe_stop(struct fill *fill);  // the answer is not wanted any more
// Notes whether objects of this kind fit in a run.
void fill_describe_learn(const struct fill *fill);

// --- fill_unknown.c ------------------------------------------------------------------------------

// The run's request without a version: what of its reader's goes to the origin.
void fill_unknown_ask(struct fill *fill, struct origin_fetch *f);
// Did the request end with what the origin makes of the condition?
bool fill_unknown_is_judged(const struct fill *fill, enum err err);
void fill_unknown_end(struct fill *fill, enum err err); // then: its end
// By version_hash(), what a 304 confirms and a 412 denies; 0: not known.
uint64_t fill_unknown_version(const struct fill *fill);
// The size is known, and with it where the last bytes wanted lie.
void fill_unknown_place(struct fill *fill, uint64_t size_bytes);

// --- subscription.c ------------------------------------------------------------------------------

// It asks for the same bytes in blocks of this size, which are those of the version that it is
// given.
void subscription_use_blocks(struct subscription *sub, uint32_t block_size_bytes);
// Its suffix becomes the place that it has in an object of that size.
void subscription_place_suffix(struct subscription *sub, uint64_t size_bytes);

// --- fill_pause.c --------------------------------------------------------------------------------

void fill_pause_update(struct fill *fill); // what pauses the run has changed
void fill_pause_over(struct fill *fill);   // its transfer has ended or goes on
void fill_on_pause_timer(struct timer *timer);
void fill_wait_for_place(struct fill *fill); // readers of a run that is being written: rule 20
void fill_park(struct fill *fill);           // its transfer has ended: the rest is asked for later
uint64_t fill_window_fastest(const struct fill *fill); // how far its fastest reader is
void fill_window_update(struct fill *fill);            // does an unstored run wait for it?
uint64_t fill_piece_end(const struct fill *fill);      // how far the next request goes

// --- fill_fetch.c --------------------------------------------------------------------------------

void fill_fetch(struct fill *fill);                  // asks the origin for what has not come yet
enum err fill_take_head(struct fill *fill) MUST_USE; // the run's head: what it says is believed
void fill_on_resume_timer(struct timer *timer);
void fill_complete(struct fill *fill);                 // everything wanted has come
void fill_shorten(struct fill *fill, uint64_t blocks); // no more than these are wanted
void fill_drop_run(struct fill *fill);                 // nothing of it is stored

#endif
