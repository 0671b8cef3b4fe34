// SPDX-License-Identifier: Apache-2.0
// Declares what the files of this room share: the context of a worker, the messages between
// workers, runs in flight and the readers attached to them.
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
// Slots of checksums.c. A slot of a version prevents a second HEAD for its checksums. A slot of an
// origin pauses such HEADs after one has failed there.
#define FILL_LEARN_VERSIONS 16384u
#define FILL_LEARN_ORIGINS 64u
#define FILL_RUN_SUMS 8192u
// Slots in each set of `run_sums`. With this many, two runs of one object hardly ever replace each
// other.
#define FILL_RUN_SUM_WAYS 8u
#define FILL_VERDICTS 1024u
#define FILL_GIVEN 2048u
#define FILL_REDESCRIBED 1024u
// Maximum bytes that a reader may queue of a run that is being stored, while memory is ample. The
// reader drops what is beyond it, and asks for it again once its queue is sent (rule 34).
#define FILL_QUEUE_MAX STORE_RUN_MAX
// Bytes that a reader may always queue, even while memory is short. One turn of the loop receives
// about this much.
#define FILL_QUEUE_LEAST (3u * CHUNK_SIZE)
// The same while memory is used up, when runs progress chunk by chunk.
#define FILL_QUEUE_USED_UP (2u * CHUNK_SIZE)
// A reader's queue may hold at most this fraction (1/n) of limits.max_buffer.
#define FILL_QUEUES_MIN 64u

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
#define FILL_HERE_WAYS 4u // slots in a set
#define FILL_AHEAD_MARKS 32768u
#define FILL_OPEN_BUCKETS 1024u

struct run_sum_slot {
    _Atomic uint64_t name, end_byte, crc, verdicts, proof;
};

struct fill_room {
    struct fill_options options;
    // Points to message_dispatch(), so that files that send messages do not depend on the
    // receivers.
    void (*deliver)(struct worker *to, struct message *message);
    unsigned worker_count;
    struct fill_worker *workers;
    _Atomic uint64_t *here;        // names of FILL_HERE_SLOTS received blocks; fill_here.c
    _Atomic uint64_t *ahead;       // FILL_AHEAD_MARKS marks of blocks; fill_ahead.c
    _Atomic uint64_t *kinds;       // scores of FILL_KINDS kinds of objects; fill_describe.c
    _Atomic uint16_t *listed;      // FILL_LISTED objects that a listing named, by size
    _Atomic uint64_t *uncacheable; // FILL_UNCACHEABLE keys with reasons; fill_uncacheable.c
    struct {                       // checksums.c
        atomic_uint in_flight;
        _Atomic uint64_t versions[FILL_LEARN_VERSIONS], paused[FILL_LEARN_ORIGINS];
    } learning;
    struct run_sum_slot *run_sums; // checksums of FILL_RUN_SUMS received runs
    // Counters of judgements that an object's bytes are wrong. Keys share them, by hash; see
    // checksums_verify.c.
    _Atomic uint64_t verdicts[FILL_VERDICTS];
    struct {
        pthread_mutex_t lock;
        atomic_uint count; // number of keys; read without the lock
        struct list buckets[FILL_OPEN_BUCKETS];
    } open; // open_keys.c
};

struct given_slot {
    struct hash128 hash;
    struct home_given given;
};

struct redescribed_slot {
    struct hash128 hash;
    struct home_redescribed last; // latest change of the headers of the key with this hash
    // Time of the latest change among the keys that had this slot earlier.
    uint64_t any_us;
};

struct fill_worker {
    struct fill_room *room;
    struct store *store;
    struct worker *worker;
    unsigned index;
    struct fill_map fills;         // runs in flight that this worker owns, by struct fill.map_node
    struct fill *memory_lead;      // the run that continues while memory is short
    struct fill_map homes;         // entries of keys whose home is this worker
    struct fill_map floors;        // floors of keys that are not lifted yet; fill_floor.c
    struct whole_sums *whole_sums; // checksums of stored objects; NULL until the first sum
    struct {                       // answers that homes keep; home_kept.c
        struct fill_map map;       // struct kept_answer.map_node
        struct list by_age;        // struct kept_answer.age_node, oldest first
        uint64_t bytes;            // bytes charged to BUDGET_ANSWERS
    } kept;
    struct given_slot given[FILL_GIVEN];                   // home_given.c; by key hash
    struct redescribed_slot redescribed[FILL_REDESCRIBED]; // home_redescribed.c; by key hash
    uint64_t next_token;
    // Deletes in flight for which no reader waits, over all homes on this worker: of records that
    // no look-up could read (rule 33), and late ones (rule 31).
    unsigned unawaited;
};

// --- fill_floor.c --------------------------------------------------------------------------------

void fill_floor_raise(struct fill_worker *fw, struct hash128 hash, uint64_t generation);
// Rule 26. Removes the floor if it still has this generation; a newer floor stays.
void fill_floor_lift(struct fill_worker *fw, struct hash128 hash, uint64_t generation);
void fill_floor_free_all(struct fill_worker *fw); // frees floors that were not removed
// Frees the entries that remain when all workers have stopped. Each belongs to a key with an open
// doubt, a write of unknown outcome. In the next process the doubt of the key's bucket, which is on
// disk, replaces it (store_doubt()).
void home_free_all(struct fill_worker *fw);
void home_kept_free_all(struct fill_worker *fw);

// --- open_keys.c ---------------------------------------------------------------------------------

void open_keys_init(struct fill_room *room);
void open_keys_done(struct fill_room *room);
// Returns true if a write holds the key open.
bool open_keys_has(struct fill_room *room, const struct object_key *key);

// --- object_key.c --------------------------------------------------------------------------------

// Returns the same key in another epoch of its bucket.
struct object_key *object_key_in_epoch(const struct fill_worker *fw, const struct object_key *key,
                                       uint64_t epoch);
// Returns the worker that owns the stripe of `first_byte`. The owner of stripe 0 is the key's home.
struct fill_worker *object_key_owner(const struct fill_worker *fw, const struct object_key *key,
                                     uint64_t first_byte);
static inline struct fill_worker *object_key_home(const struct fill_worker *fw,
                                                  const struct object_key *key)
{
    return object_key_owner(fw, key, 0);
}

// --- a run in flight; belongs to the worker that owns its stripe ---------------------------------

#define SUBSCRIPTION_MAGIC 0x53554253u
#define FILL_MAGIC 0x46494C4Cu
#define FILL_RESUMES_MAX 3u
#define FILL_RESUME_DELAY_MS 50u
#define FILL_UNSTORED_WINDOW (1u << 20)
// Maximum bytes that the leading run may hold while memory is used up. They are the unwritten
// bytes, the chunk that is being filled, and the chunk into which a `dir:` origin reads.
#define FILL_LEAD_AHEAD (512u << 10)
#define FILL_LEAD_UNWRITTEN (FILL_LEAD_AHEAD - 2u * CHUNK_SIZE)
// Maximum time that a paused transfer occupies its connection to the origin.
#define FILL_PAUSE_MAX_MS 500u
// While a run is being written, it checks every FILL_PAUSE_MAX_MS whether its readers wait for a
// disk with a backlog. This is the maximum number of checks.
#define FILL_PLACE_WAITS_MAX 20u
// The owner requests the next piece of a parked run when the fastest reader has taken all but this
// fraction (1/n) of a window.
#define FILL_PIECES_PER_WINDOW 4u
// The owner removes a reader of an unstored run if the reader is this far behind the bytes received
// and is not the fastest one. The reader then asks again. The limit is lower while memory is short.
#define FILL_DETACH_BEHIND (2u << 20)

enum fill_phase {
#define RUN_PHASE(name, ...) FILL_##name,
#include "fill/phases.def"
};

enum transfer_phase {
#define TRANSFER_PHASE(name, ...) TRANSFER_##name,
#include "fill/phases.def"
};

// Why a transfer is paused or parked. A run that is not stored waits for its readers only, and a
// stored run for memory or the disk only.
enum fill_pause {
    FILL_PAUSE_NONE,
    FILL_PAUSE_WINDOW, // an unstored run: even its fastest reader is too far behind
    FILL_PAUSE_MEMORY, // a stored run: memory is used up, and another run leads
    FILL_PAUSE_DISK    // a stored run that leads: too many of its bytes are not written yet
};

// Says whether the first request of a run names a range.
enum fill_range {
    FILL_RANGE_OF_RUN,      // the request names the run's range
    FILL_RANGE_NONE,        // no range, so that the answer also has the object's checksums
    FILL_RANGE_FOR_NO_BYTES // no range, because the origin answered 416 for the first byte
};

// Says whether the run's bytes match the origin's checksum of the whole object.
enum fill_verdict {
    FILL_VERDICT_OPEN,   // bytes are missing, or the run has no checksum to compare
    FILL_VERDICT_PASSED, // they match, or the run is only a part of the object
    FILL_VERDICT_WRONG
};

// The readers that may get the bytes of a run.
enum fill_audience {
    FILL_FOR_ALL,
    // Only readers that named its version. The answer's headers differ from those that the cache
    // knows for the version, so readers that named no version must not get the run.
    FILL_FOR_NAMED,
    // Only readers whose clients already have bytes of its version, because the origin's replicas
    // have different versions.
    FILL_FOR_BOUND
};

struct fill {
    uint32_t magic;
    enum fill_phase phase;        // fill_enter() alone writes it
    enum transfer_phase transfer; // fill_transfer_enter() alone writes it
    enum fill_pause pause;
    struct list_node map_node; // in fw->fills, until the run leaves that table
    struct fill_worker *fw;
    struct object_key *key;
    bool doomed;              // invalidated: no reader joins the run, and it is not published
    enum fill_index index;    // as in the ask that began the run
    uint64_t token;           // the home's token, if this run is a first request; otherwise 0
    const char *unstored_why; // one word: why the run is not stored; NULL: it is or was stored
    // Why the store would have refused the run when it was begun (fill_stream.c). REFUSAL_none: the
    // store decides when the head comes.
    enum refusal refused;
    enum err failed; // why no head was accepted; sent with FIRST_END
    // The origin's error document; valid only while the run is being failed.
    struct span failed_document;
    struct store_object *object;    // the version requested with If-Match, or found in the head
    struct store_object *described; // the same version with the checksums from a HEAD; or NULL
    uint64_t asked_us;              // when the run's request was sent
    bool weak; // the version has no strong ETag, so no second request can continue the run
    enum fill_audience audience;
    uint64_t first_block;
    uint32_t block_count, block_size_bytes;
    uint64_t first_byte, end_byte; // end_byte is exact after the head
    uint64_t limit_byte;           // the run ends here, or before it at the object's end
    uint64_t received;             // offset in the object up to which bytes have been received
    uint64_t retained_from;        // chunks below this offset were released
    struct chunk **chunks;         // chunk_count entries, once the head has come
    unsigned chunk_count;
    struct store_run *run;
    bool is_readahead; // begun by read-ahead (fill_ahead.c)
    bool is_promised;  // the store promised room for a long run, and the write has not begun
    // The part of the run that is already written, pinned. Without a segment: nothing is written
    // yet.
    struct store_place pages;
    // Checksum of the bytes received from `summed_from` on. NULL: none is computed, or it is not
    // needed any more.
    struct s3_checksum_state *checksum;
    uint64_t summed_from;
    enum fill_verdict verdict;
    struct store_place place;
    struct list readers;
    // The request in flight, or the last one. `fetch.client` is the client for which the run is
    // fetched. `fetch.ahead` is true until a reader wants the run's bytes.
    struct origin_fetch fetch;
    struct origin_trace trace;                   // trace ids of the client's request
    char origin_id[ORIGIN_ID_SIZE];              // request id of the origin's last answer
    unsigned origin_status;                      // status of the origin's first answer
    uint64_t wanted_first_byte, wanted_end_byte; // wanted by the reader that began the run
    uint64_t noted_byte; // of a streamed run: the policy knows of the bytes below this one
    enum fill_range range;
    uint64_t asked_end_byte; // end byte of the request in flight, or of the next one
    uint64_t skip_bytes;     // bytes of the body still to skip before the run begins
    unsigned resumes;
    // `phase` and `transfer` determine what the timer does; see fill_on_timer().
    struct timer timer;
    uint64_t parked_us;
    unsigned place_waits;
    bool memory_waiting; // memory_message will be delivered when memory is free
    struct message memory_message;
    struct task deliver_task;
    // Used by fill_unknown.c: the condition of the client that began the run, such as
    // If-None-Match. The origin evaluates it. After the head has come, it has no effect.
    struct origin_condition condition;
    uint64_t suffix_bytes; // bytes wanted at the object's end; 0: the run's first byte is known
    // Used by fill_describe.c:
    bool describing;   // a HEAD is in flight at the same time as `fetch`
    enum err head_err; // why the run's head, which waited for that HEAD, was refused
    struct origin_fetch describe;
};

struct attachment {
    struct list_node node;
    struct fill *fill; // NULL after FINAL was sent
    struct subscription *subscription;
    struct fill_worker *at;
    struct store_object *wanted; // the version wanted; if has_sent, no other will do
    // The reader's credentials. Only their address is compared.
    const struct sigv4_credentials *credentials;
    bool has_sent, waiting_place;
    bool is_condition;     // the run was begun with this reader's condition
    bool behind, no_pages; // rule 34: the reader has dropped bytes; it cannot be sent pages
    bool ahead;            // rule 20: the reader gets no bytes, only the end
    uint64_t next_byte;    // end of the bytes delivered
    uint64_t acked_byte;
};

static inline struct fill *fill_of(void *ptr)
{
    struct fill *fill = ptr;
    check(fill != NULL && fill->magic == FILL_MAGIC);
    return fill;
}

// Returns true if the origin's head was accepted and the run is in the table.
static inline bool fill_has_head(const struct fill *fill)
{
    return fill->phase >= FILL_BODY && fill->phase <= FILL_WRITTEN;
}

// Returns true until the run leaves its worker's table.
static inline bool fill_is_listed(const struct fill *fill)
{
    return fill->phase < FILL_LEFT;
}

// Returns true if all bytes of the run have been received.
static inline bool fill_has_come(const struct fill *fill)
{
    return fill_has_head(fill) && fill->received == fill->end_byte;
}

static inline bool fill_is_unstored(const struct fill *fill)
{
    return fill->unstored_why != NULL;
}

// Returns true if it was known that the run is not stored before the origin was asked for it.
static inline bool fill_is_streamed(const struct fill *fill)
{
    return fill->refused != REFUSAL_none;
}

// Returns true while a request of the run is in flight at the origin.
static inline bool fill_is_fetching(const struct fill *fill)
{
    return fill->transfer >= TRANSFER_RUNNING;
}

static inline bool fill_same_version(const struct store_object *a, const struct store_object *b)
{
    return a->etag.len > 0 && span_equal(a->etag, b->etag);
}

// Returns true if both are the same version, and their headers are the same or one of them names
// none.
static inline bool fill_same_headers(const struct store_object *a, const struct store_object *b)
{
    return fill_same_version(a, b) &&
           (a->headers.len == 0 || b->headers.len == 0 || fill_version_is_alike(a, b));
}

// Rule 22. Returns true if an error that the origin sent to a request with credentials `asked` also
// holds for a request with `other`. It does if the error is about reaching the origin, or if the
// credentials are the same.
static inline bool fill_error_is_shared(enum err err, const struct sigv4_credentials *asked,
                                        const struct sigv4_credentials *other)
{
    bool is_error = err != ERR_OK && err != ERR_NOT_MODIFIED;
    bool is_of_way = error_row(err)->status == 503 && err != ERR_ORIGIN_CREDENTIALS;
    return !is_error || is_of_way || asked == other;
}

// Returns the hash that identifies a version of a key. Never 0.
static inline uint64_t etag_version_hash(struct span etag)
{
    return max_u64(hash64(etag.ptr, etag.len, 0), 1);
}
static inline uint64_t version_hash(const struct store_object *object)
{
    return etag_version_hash(object->etag);
}

// Returns true if a run of `version`, requested at `asked_us`, may be older than the version that
// the home gave to a reader last. If `version` is 0, the run's version is not known yet. A run of
// the given version itself is never older, unless an answer has denied that version (412).
static inline bool home_given_precedes(const struct home_given *given, uint64_t version,
                                       uint64_t asked_us)
{
    bool is_given = version != 0 && version == given->version;
    bool is_denied =
        asked_us <= given->denied_until_us && (version == 0 || version == given->denied);
    return is_denied || (!is_given && asked_us <= max_u64(given->any_until_us, given->until_us));
}

// Returns true if the home gave a reader the version of `object` with other headers, after the
// headers of `object` were requested.
static inline bool home_given_outdates(const struct home_given *given,
                                       const struct store_object *object)
{
    return given->described == version_hash(object) &&
           object->learnt_us <= given->described_until_us &&
           fill_version_headers_hash(object) != given->headers;
}

// Returns true if the headers of `object` are outdated: its version has other headers now.
static inline bool home_redescribed_outdates(const struct home_redescribed *redescribed,
                                             const struct store_object *object)
{
    return redescribed->at_us > 0 && object->learnt_us <= redescribed->at_us &&
           fill_version_headers_hash(object) != redescribed->headers;
}

// --- fill.c --------------------------------------------------------------------------------------

// Dooms the key's runs in flight on this worker: readers cannot join them, and they are not
// published.
void fill_doom(struct fill_worker *fw, struct hash128 hash);
// Returns true if a run in flight on this worker has the bytes that the reader wants. The key's
// home has such a run, instead of the stripe's owner, if the object's size was unknown (rule 2).
bool fill_has_run(struct fill_worker *fw, const struct subscription *sub);

// --- fill_run.c ----------------------------------------------------------------------------------

// Frees a run that has left the table, unless a call or message is due.
void fill_maybe_free(struct fill *fill);
// Releases all chunks. Readers get no more bytes from memory.
void fill_drop_chunks(struct fill *fill);
// Unpins the written part of the run. Readers then use the run's place, or ask again.
void fill_drop_pages(struct fill *fill);
void fill_drop_run(struct fill *fill);        // stores nothing of the run
void fill_release_promise(struct fill *fill); // releases the room promised for a long run
void fill_pause_end(struct fill *fill, enum fill_pause reason); // clears this reason to pause
// Cancels the transfer, if one is in flight. on_fetch_end() then decides how the run continues.
void fill_cancel(struct fill *fill);
void fill_stop_waiting(struct fill *fill); // ends PARKED or RESUMING without another request
// Returns true if this stored run continues although memory is used up. On each worker one run, the
// leading one, may do so.
bool fill_take_lead(struct fill *fill);
void fill_yield_lead(struct fill *fill);
// Removes the run from the table, so that no reader can join it. Sends FIRST_END if the run has a
// token. May free the run.
void fill_leave_table(struct fill *fill);
// Sends FIRST_END to the home, if the run has a token.
void fill_send_first_end(struct fill *fill);
// Sends VERSION to the home, if the run has a token and a head.
void fill_send_version(struct fill *fill);
void fill_send_head(struct fill *fill, struct attachment *a);
// Removes the reader from the run and sends its FINAL. Copies `document`, the origin's error.
void fill_end_attachment(struct attachment *a, enum subscription_outcome outcome, enum err err,
                         struct span document);
void fill_final_all(struct fill *fill, enum subscription_outcome outcome, enum err err,
                    struct span document);
// Ends the run with an error. Readers for which the error does not hold ask again (rule 22).
void fill_fail_all(struct fill *fill, enum err err, struct span document);

// --- phases.c ------------------------------------------------------------------------------------

void fill_enter(struct fill *fill, enum fill_phase to);
void fill_transfer_enter(struct fill *fill, enum transfer_phase to); // stops the run's timer
void fill_subscription_enter(struct subscription *sub, enum subscription_state to);

// --- fill_assert.c -------------------------------------------------------------------------------

// Abort if an invariant is broken.
void fill_assert_run(const struct fill *fill);
void fill_assert_subscription(const struct subscription *sub);

// --- fill_deliver.c ------------------------------------------------------------------------------

void fill_deliver(struct fill *fill);       // sends new bytes to readers; paces an unstored run
void fill_deliver_bytes(struct fill *fill); // sends new bytes to readers, and nothing else
void fill_on_deliver(struct task *task);
void fill_on_run_progress(void *ctx, const struct store_place *pages);
struct chunk *fill_chunk(struct fill *fill); // never NULL: without memory the run pauses instead

// --- fill_uncacheable.c --------------------------------------------------------------------------

void fill_uncacheable_forget(struct fill_worker *fw, struct hash128 hash);

// --- fill_ahead.c --------------------------------------------------------------------------------

// Marks the blocks of a run that read-ahead began, and removes the marks of any other run's blocks.
// Call it before the run's first byte can be read.
void fill_ahead_mark(const struct fill *fill);

// --- fill_here.c --------------------------------------------------------------------------------

// Records whether a reader that joins the run from now on gets its blocks without another request
// to the origin.
void fill_here_note(const struct fill *fill, bool is_here);

// --- fill_describe.c -----------------------------------------------------------------------------

// Decides whether the new run, which `ask` begins, is requested without a range, so that the answer
// has the object's checksums. If `are_wanted` is false, the reader does not want checksums. Then it
// returns true only if a listing showed that the object is small and the run may be stored.
bool fill_describe_asks_whole(const struct fill *fill, const struct fill_ask *ask, bool are_wanted);
void fill_describe_start(struct fill *fill); // sends a HEAD at the same time as the run's request
// Returns true if the run's head must wait until the HEAD is answered. Then the transfer is HELD.
bool fill_describe_holds(struct fill *fill);
// Records whether the object fits in a run, for later objects of the same kind.
void fill_describe_learn(const struct fill *fill);

// --- fill_stream.c -------------------------------------------------------------------------------

// Returns why the store will not take the run that the reader asks for. REFUSAL_none: the run may
// be stored.
enum refusal fill_stream_reason(struct fill_worker *fw, const struct fill_ask *ask);
// Makes a new run a streamed one, for that reason. `has_record`: the index has a record of the
// object that the reader can use.
void fill_stream_begin(struct fill *fill, const struct fill_ask *ask, enum refusal why,
                       bool has_record);
void fill_stream_note(struct fill *fill); // call it when bytes of the run have been received

// --- fill_unknown.c ------------------------------------------------------------------------------

// Adds the reader's condition or suffix range to the request of a run without a version.
void fill_unknown_ask(struct fill *fill, struct origin_fetch *f);
// Returns true if the request ended because the origin evaluated the condition.
bool fill_unknown_is_judged(const struct fill *fill, enum err err);
// Ends a run whose condition the origin has answered with 304 or 412.
void fill_unknown_end(struct fill *fill, enum err err);
// Sets the run's first byte and length, now that the object's size is known.
void fill_unknown_place(struct fill *fill, uint64_t size_bytes);

// --- subscription.c ------------------------------------------------------------------------------

// Converts the ask's block numbers to the block size of the version that it gets. The bytes that it
// asks for stay the same.
void subscription_use_blocks(struct subscription *sub, uint32_t block_size_bytes);
// Converts the ask's suffix to a range in an object of that size.
void subscription_place_suffix(struct subscription *sub, uint64_t size_bytes);

// --- fill_pause.c --------------------------------------------------------------------------------

void fill_pause_update(struct fill *fill); // call it when a reason to pause may have changed
// Rule 20: makes readers that wait for the run's place ask again if the disk has a backlog.
void fill_wait_for_place(struct fill *fill);
void fill_park(struct fill *fill); // parks a run whose transfer has ended
// The run's only timer. Its effect depends on the phases of the run and of its transfer.
void fill_on_timer(struct timer *timer);
// Returns the offset up to which the run's fastest reader has taken bytes.
uint64_t fill_window_fastest(const struct fill *fill);
void fill_window_update(struct fill *fill); // sets or clears FILL_PAUSE_WINDOW of an unstored run

// --- fill_fetch.c --------------------------------------------------------------------------------

void fill_fetch(struct fill *fill);                  // asks the origin for the missing bytes
enum err fill_take_head(struct fill *fill) MUST_USE; // checks and accepts the run's head
void fill_on_no_readers(struct fill *fill);          // rule 21: the last reader left or was removed

#endif
