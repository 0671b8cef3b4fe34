// SPDX-License-Identifier: Apache-2.0
// Chooses the request for the first run of an unknown object, so that its reader also gets the
// object's checksums. S3 names them in answers to HEAD and to GET of a whole object, never of a
// range.
//
//   listed as small, or of a    The request has no range, so one answer brings bytes and
//   kind that may be small      checksums. If the object is larger than the run, the run takes
//                               its bytes and ends the transfer there. That costs a connection
//                               and what the socket still held, but no request.
//   listed as large, or of a    The run is requested by its range, and a HEAD is sent at the same
//   large kind                  time. The run's head is held until the HEAD is answered, but no
//                               longer than the head itself took to arrive. After that the reply
//                               is sent without checksums, and the home sends a HEAD that nobody
//                               waits for.
//
// If the store has no room for a long run, as in small caches, the run is a short one. Then an
// object counts as small if it fits in a short run.
//
// A run that is only streamed (fill_stream.c) is requested without a range if its reader wants the
// whole object and its checksums. The object's kind does not matter. For other readers the run is
// requested by its range, because only the total in Content-Range reveals a wrong length.
//
// A run that is fetched ahead of readers (a warm job) is requested without a range only if its kind
// has proved to be small. The job is not in a hurry, and a HEAD costs less than the bytes lost with
// a cut.
//
// Other large kinds are not requested whole each time, because each cut loses a connection and up
// to some MiB. The run waits for their HEAD, because without the checksums neither the reply nor
// the stored run could be verified.
//
// An object has two kinds. The first consists of its bucket, its own folder and its key's ending.
// The second has the first folder of the key instead of its own. The second decides while the first
// is unknown, because there are few chunks in a folder (`c/0/3/2`). Each kind has a score between
// -KIND_SCORE_MAX and KIND_SCORE_MAX. An object that fits in a run adds 1, and a larger one
// subtracts KIND_SCORE_MAX. A kind is large while its score is negative. So, in the long run, at
// most one transfer is cut for every KIND_SCORE_MAX small objects. A kind has one score for short
// runs and one for long runs.
//
// If two kinds share a slot, the later one starts from 0. All workers share the kinds and the
// listed objects, as hints. A listed object has a name of 14 bits, and two bits that say in which
// run it fits. Everything else runs on the stripe's owner.
#include "fill/fill_private.h"

#define ENDING_MAX 16u
#define KIND_SCORE_MAX 16
// A run's head is held for the answer to HEAD as long as the head itself took, but within these
// limits.
#define DESCRIBE_WAIT_LEAST_MS 100u
#define DESCRIBE_WAIT_MAX_MS 1000u

// The least run in which an object fits. Everything that fits in a short run fits in a long one.
enum fit { FIT_UNKNOWN, FIT_SHORT, FIT_LONG, FIT_NONE };

static uint64_t run_bytes(const struct fill_worker *fw, enum fit fit)
{
    check(fit == FIT_SHORT || fit == FIT_LONG);
    uint64_t bytes =
        fit == FIT_SHORT ? store_run_bytes_max(fw->store) : store_run_bytes_long(fw->store);
    return min_u64(bytes, fw->room->options.stripe_bytes);
}

static enum fit fit_of(const struct fill_worker *fw, uint64_t size_bytes)
{
    return size_bytes <= run_bytes(fw, FIT_SHORT)  ? FIT_SHORT
           : size_bytes <= run_bytes(fw, FIT_LONG) ? FIT_LONG
                                                   : FIT_NONE;
}

// --- listed --------------------------------------------------------------------------------------

#define LISTED_FIT 3u         // the bits that hold an enum fit
#define LISTED_NAME_SHIFT 50u // the name, above them, is the hash's upper 14 bits

static _Atomic uint16_t *listed_slot(struct fill_room *room, struct span bucket, struct span key,
                                     uint16_t *ret_name)
{
    uint64_t hash = hash64(key.ptr, key.len, hash64(bucket.ptr, bucket.len, 0));
    *ret_name = (uint16_t)((hash >> LISTED_NAME_SHIFT) << 2);
    return &room->listed[hash % FILL_LISTED];
}

void fill_describe_listed(struct fill_worker *fw, struct span bucket, struct span key,
                          uint64_t size_bytes)
{
    uint16_t name;
    _Atomic uint16_t *slot = listed_slot(fw->room, bucket, key, &name);
    uint16_t value = (uint16_t)(name | (uint16_t)fit_of(fw, size_bytes));
    atomic_store_explicit(slot, value, memory_order_relaxed);
}

// Returns FIT_UNKNOWN if no listing has named the object.
static enum fit listed_as(const struct fill *fill)
{
    uint16_t name;
    _Atomic uint16_t *slot = listed_slot(fill->fw->room, fill->key->bucket, fill->key->key, &name);
    uint16_t value = atomic_load_explicit(slot, memory_order_relaxed);
    return (value & ~LISTED_FIT) == name ? (enum fit)(value & LISTED_FIT) : FIT_UNKNOWN;
}

// --- kinds ---------------------------------------------------------------------------------------

// A slot holds the kind's name above its score, which is kept as an unsigned offset from
// -KIND_SCORE_MAX.
#define KIND_NAME_SHIFT 32u

enum kind_reach { KIND_OF_FOLDER, KIND_OF_FIRST_FOLDER, KIND_REACHES };

struct kind {
    _Atomic uint64_t *slot;
    uint32_t name;
    int score; // 0: unknown
};

// Returns the key's ending after the last dot. An ending of digits only does not count, because
// digits number the objects of one kind (chunks `c/0/3`, `0.3`).
static struct span ending_of(struct span name)
{
    size_t dot = name.len;
    bool has_other = false;
    while (dot > 0 && name.ptr[dot - 1] != '.' && name.ptr[dot - 1] != '/') {
        dot--;
        has_other |= name.ptr[dot] < '0' || name.ptr[dot] > '9';
    }
    bool has_ending =
        has_other && dot > 0 && name.ptr[dot - 1] == '.' && name.len - dot <= ENDING_MAX;
    return has_ending ? (struct span){name.ptr + dot, name.len - dot} : (struct span){NULL, 0};
}

// Returns the kind of the run's object, with its score for runs of that length. The first `width`
// bytes of the object's key are the folder.
static struct kind kind_in(const struct fill *fill, size_t width, enum kind_reach reach,
                           enum fit run)
{
    struct span name = fill->key->key, bucket = fill->key->bucket, ending = ending_of(name);
    uint64_t seed = reach + (uint64_t)run * KIND_REACHES;
    uint64_t hash = hash64(name.ptr, width, hash64(bucket.ptr, bucket.len, seed));
    hash = ending.len > 0 ? hash64(ending.ptr, ending.len, hash) : hash;
    struct kind kind = {.slot = &fill->fw->room->kinds[hash % FILL_KINDS],
                        .name = (uint32_t)(hash >> KIND_NAME_SHIFT)};
    uint64_t known = atomic_load_explicit(kind.slot, memory_order_relaxed);
    if (known >> KIND_NAME_SHIFT == kind.name && known != 0) { // 0: an unused slot
        kind.score = (int)(uint32_t)known - KIND_SCORE_MAX;
    }
    return kind;
}

static struct kind kind_of(const struct fill *fill, enum kind_reach reach, enum fit run)
{
    struct span name = fill->key->key;
    size_t width = reach == KIND_OF_FOLDER ? name.len : span_find(name, '/');
    while (reach == KIND_OF_FOLDER && width > 0 && name.ptr[width - 1] != '/') {
        width--;
    }
    return kind_in(fill, width < name.len ? width : 0, reach, run);
}

static void kind_add(const struct kind *kind, bool is_small)
{
    int score = kind->score + (is_small ? 1 : -KIND_SCORE_MAX);
    score = score < -KIND_SCORE_MAX  ? -KIND_SCORE_MAX
            : score > KIND_SCORE_MAX ? KIND_SCORE_MAX
                                     : score;
    if (score != kind->score) { // do not write if nothing changes: the slots are shared
        uint64_t known =
            (uint64_t)kind->name << KIND_NAME_SHIFT | (uint32_t)(score + KIND_SCORE_MAX);
        atomic_store_explicit(kind->slot, known, memory_order_relaxed);
    }
}

void fill_describe_learn(const struct fill *fill)
{
    uint64_t size_bytes = fill->object->size_bytes;
    enum fit fit = fit_of(fill->fw, size_bytes), listed = listed_as(fill);
    for (enum fit run = FIT_SHORT; run <= FIT_LONG; run++) {
        for (enum kind_reach reach = 0; reach < KIND_REACHES; reach++) {
            struct kind kind = kind_of(fill, reach, run);
            kind_add(&kind, fit <= run);
        }
    }
    if (listed != FIT_UNKNOWN && fit > listed) { // the object has grown since
        fill_describe_listed(fill->fw, fill->key->bucket, fill->key->key, size_bytes);
    }
}

// Returns a positive score for a small kind, a negative one for a large kind, 0 if unknown.
static int kinds_score(const struct fill *fill, enum fit run)
{
    int narrow = kind_of(fill, KIND_OF_FOLDER, run).score;
    return narrow != 0 ? narrow : kind_of(fill, KIND_OF_FIRST_FOLDER, run).score;
}

// Returns true if the run can hold every object that fits in such a run. A reader that wants
// checksums asks up to the object's end if it knows the end. So its run holds the whole object
// unless the store or another run has shortened it. Other readers may want only a part of the
// object.
static bool may_hold_all(const struct fill *fill, const struct fill_ask *ask, bool are_wanted,
                         enum fit run)
{
    uint64_t size = fill->block_size_bytes, needed = run_bytes(fill->fw, run);
    if (are_wanted) {
        needed = min_u64(needed, ask->block_count * size);
    }
    return fill->block_count * size >= needed;
}

// Returns true if the run probably holds the whole object. `run`: the length of the run.
static bool holds_all(const struct fill *fill, bool are_wanted, enum fit run)
{
    enum fit listed = listed_as(fill);
    if (listed != FIT_UNKNOWN) {
        return listed <= run;
    }
    return are_wanted && kinds_score(fill, run) >= (fill->fetch.ahead ? 1 : 0);
}

bool fill_describe_asks_whole(const struct fill *fill, const struct fill_ask *ask, bool are_wanted)
{
    bool asks;
    if (fill_is_streamed(fill)) {
        asks = are_wanted && ask->end_byte == UINT64_MAX;
    } else if (may_hold_all(fill, ask, are_wanted, FIT_LONG)) {
        asks = holds_all(fill, are_wanted, FIT_LONG);
    } else {
        asks = may_hold_all(fill, ask, are_wanted, FIT_SHORT) &&
               holds_all(fill, are_wanted, FIT_SHORT);
    }
    stats_add(COUNTER_fills_whole, asks ? 1 : 0);
    return asks;
}

// --- a HEAD at the same time as the run ----------------------------------------------------------

static enum err on_describe_head(struct origin_fetch *f)
{
    struct fill *fill = fill_of(f->ctx);
    check(fill->describing && fill->described == NULL);
    fill->described = fill_version_from_fetch(fill->key, f, NULL);
    return ERR_OK;
}

static enum err on_describe_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void on_describe_end(struct origin_fetch *f, enum err err)
{
    struct fill *fill = fill_of(f->ctx);
    (void)err; // the run continues without checksums
    check(fill->describing);
    fill->describing = false;
    if (fill->transfer != TRANSFER_HELD) {
        fill_maybe_free(fill);
        return;
    }
    fill_transfer_enter(fill, TRANSFER_PAUSED);
    fill->head_err = fill_take_head(fill);
    if (fill->head_err != ERR_OK) {
        fill_cancel(fill); // on_fetch_end() reports the error
    } else {
        fill_pause_update(fill);
    }
    fill_assert_run(fill);
}

void fill_describe_start(struct fill *fill)
{
    struct origin_fetch *f = &fill->describe;
    check(!fill->describing && fill->phase == FILL_ASKED && !fill_is_fetching(fill));
    check(fill->described == NULL && fill->range == FILL_RANGE_OF_RUN);
    f->kind = ORIGIN_HEAD;
    f->bucket = fill->key->bucket;
    f->key = fill->key->key;
    f->credentials = fill->key->credentials;
    f->client = fill->fetch.client;
    f->ahead = fill->fetch.ahead;
    f->trace = &fill->trace;
    f->wants_checksums = ORIGIN_CHECKSUMS_ONLY;
    f->on_head = on_describe_head;
    f->on_body = on_describe_body;
    f->on_end = on_describe_end;
    f->ctx = fill;
    fill->describing = true;
    stats_add(COUNTER_fills_described, 1);
    stats_add(COUNTER_checksum_heads, 1);
    origin_fetch_start(fill->fw->worker, fill->key->origin, f);
}

bool fill_describe_holds(struct fill *fill)
{
    const struct origin_fetch *f = &fill->fetch;
    if (!fill->describing || f->checksums.count > 0 || f->body_len == 0) {
        return false;
    }
    check(fill->phase == FILL_ASKED && fill->transfer == TRANSFER_RUNNING);
    uint64_t took_ms = (worker_now_us(fill->fw->worker) - fill->asked_us) / 1000;
    uint64_t wait_ms = min_u64(max_u64(took_ms, DESCRIBE_WAIT_LEAST_MS), DESCRIBE_WAIT_MAX_MS);
    fill_transfer_enter(fill, TRANSFER_HELD);
    origin_fetch_pause(&fill->fetch);
    timer_start(&fill->timer, wait_ms);
    return true;
}
