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
// If the store has no room for a long run, as in small caches, a run may be shorter than a small
// object. Such a run is requested by its range, as for a large kind, because cutting the transfer
// would fetch bytes twice.
//
// A run that is fetched ahead of readers (a warm job) is requested without a range only if its kind
// has proved to be small. The job is not in a hurry, and a HEAD costs less than the bytes lost with
// a cut.
//
// Large kinds are not requested whole each time, because each cut loses a connection and up to some
// MiB. The run waits for their HEAD, because without the checksums neither the reply nor the stored
// run could be verified.
//
// An object has two kinds. The first consists of its bucket, its own folder and its key's ending.
// The second has the first folder of the key instead of its own. The second decides while the first
// is unknown, because there are few chunks in a folder (`c/0/3/2`). Each kind has a score between
// -KIND_SCORE_MAX and KIND_SCORE_MAX. An object that fits in a run adds 1, and a larger one
// subtracts KIND_SCORE_MAX. A kind is large while its score is negative. So, in the long run, at
// most one transfer is cut for every KIND_SCORE_MAX small objects.
//
// If two kinds share a slot, the later one starts from 0. All workers share the kinds and the
// listed objects, as hints. A listed object has a name of 15 bits, and one bit that says whether it
// fits in a run. Everything else runs on the stripe's owner.
#include "fill/fill_private.h"

#define ENDING_MAX 16u
#define KIND_SCORE_MAX 16
// A run's head is held for the answer to HEAD as long as the head itself took, but within these
// limits.
#define DESCRIBE_WAIT_LEAST_MS 100u
#define DESCRIBE_WAIT_MAX_MS 1000u

static uint64_t run_bytes(const struct fill_worker *fw)
{
    return min_u64(store_run_bytes_long(fw->store), fw->room->options.stripe_bytes);
}

static bool fits_in_run(const struct fill_worker *fw, uint64_t size_bytes)
{
    return size_bytes <= run_bytes(fw);
}

// --- listed --------------------------------------------------------------------------------------

enum listed { LISTED_NOT, LISTED_SMALL, LISTED_LARGE };
#define LISTED_NAME_SHIFT 49u // the name is the hash's upper 15 bits, above the bit for small

static _Atomic uint16_t *listed_slot(struct fill_room *room, struct span bucket, struct span key,
                                     uint16_t *ret_name)
{
    uint64_t hash = hash64(key.ptr, key.len, hash64(bucket.ptr, bucket.len, 0));
    *ret_name = (uint16_t)(max_u64(hash >> LISTED_NAME_SHIFT, 1) << 1); // 0: an unused slot
    return &room->listed[hash % FILL_LISTED];
}

void fill_describe_listed(struct fill_worker *fw, struct span bucket, struct span key,
                          uint64_t size_bytes)
{
    uint16_t name;
    _Atomic uint16_t *slot = listed_slot(fw->room, bucket, key, &name);
    uint16_t value = (uint16_t)(name | (fits_in_run(fw, size_bytes) ? 1 : 0));
    atomic_store_explicit(slot, value, memory_order_relaxed);
}

static enum listed listed_as(const struct fill *fill)
{
    uint16_t name;
    _Atomic uint16_t *slot = listed_slot(fill->fw->room, fill->key->bucket, fill->key->key, &name);
    uint16_t value = atomic_load_explicit(slot, memory_order_relaxed);
    if ((value & ~1u) != name) {
        return LISTED_NOT;
    }
    return (value & 1u) != 0 ? LISTED_SMALL : LISTED_LARGE;
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

// Returns the kind of the run's object. The first `width` bytes of its key are the folder.
static struct kind kind_in(const struct fill *fill, size_t width, enum kind_reach reach)
{
    struct span name = fill->key->key, bucket = fill->key->bucket, ending = ending_of(name);
    uint64_t hash = hash64(name.ptr, width, hash64(bucket.ptr, bucket.len, reach));
    hash = ending.len > 0 ? hash64(ending.ptr, ending.len, hash) : hash;
    struct kind kind = {.slot = &fill->fw->room->kinds[hash % FILL_KINDS],
                        .name = (uint32_t)(hash >> KIND_NAME_SHIFT)};
    uint64_t known = atomic_load_explicit(kind.slot, memory_order_relaxed);
    if (known >> KIND_NAME_SHIFT == kind.name && known != 0) { // 0: an unused slot
        kind.score = (int)(uint32_t)known - KIND_SCORE_MAX;
    }
    return kind;
}

static struct kind kind_of(const struct fill *fill, enum kind_reach reach)
{
    struct span name = fill->key->key;
    size_t width = reach == KIND_OF_FOLDER ? name.len : span_find(name, '/');
    while (reach == KIND_OF_FOLDER && width > 0 && name.ptr[width - 1] != '/') {
        width--;
    }
    return kind_in(fill, width < name.len ? width : 0, reach);
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
    bool is_small = fits_in_run(fill->fw, size_bytes);
    for (enum kind_reach reach = 0; reach < KIND_REACHES; reach++) {
        struct kind kind = kind_of(fill, reach);
        kind_add(&kind, is_small);
    }
    if (!is_small && listed_as(fill) == LISTED_SMALL) { // the object has grown since
        fill_describe_listed(fill->fw, fill->key->bucket, fill->key->key, size_bytes);
    }
}

// Returns a positive score for a small kind, a negative one for a large kind, 0 if unknown.
static int kinds_score(const struct fill *fill)
{
    int narrow = kind_of(fill, KIND_OF_FOLDER).score;
    return narrow != 0 ? narrow : kind_of(fill, KIND_OF_FIRST_FOLDER).score;
}

// Returns true if the run can hold every object that fits in a long run. A reader that wants
// checksums asks up to the object's end if it knows the end. So its run holds the whole object
// unless the store or another run has shortened it. Other readers may want only a part of the
// object.
static bool may_hold_all(const struct fill *fill, const struct fill_ask *ask, bool are_wanted)
{
    uint64_t size = fill->block_size_bytes, needed = run_bytes(fill->fw);
    if (are_wanted) {
        needed = min_u64(needed, ask->block_count * size);
    }
    return fill->block_count * size >= needed;
}

bool fill_describe_asks_whole(const struct fill *fill, const struct fill_ask *ask, bool are_wanted)
{
    if (!may_hold_all(fill, ask, are_wanted)) {
        return false;
    }
    enum listed listed = listed_as(fill);
    bool asks = listed == LISTED_SMALL;
    if (listed == LISTED_NOT && are_wanted) {
        asks = kinds_score(fill) >= (fill->fetch.ahead ? 1 : 0);
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
