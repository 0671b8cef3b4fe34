// SPDX-License-Identifier: Apache-2.0
// How the first run of an unknown object is asked for, so that its reader has the object's
// checksums. S3 names them in answers to HEAD and of whole objects, never of ranges.
//
//   listed as small, or of a    The request has no range, so one answer brings bytes and
//   kind that may be small      checksums. If the object is larger than the run, the run takes
//                               its bytes and ends the transfer there. That costs a connection
//                               and what the socket still held, but no request.
//   listed as large, or of a    The run is asked for by its range, and a HEAD is sent beside it.
//   large kind                  The run's head is held until HEAD has answered, but no longer
//                               than it took to come itself. After that the reply goes without
//                               checksums, and its home has a HEAD sent that nobody waits for.
//
// If the store has no room for a long run, as in small caches, a run may be shorter than a small
// object. Forebay asks for such a run by its range, as for a large kind, because a cut would bring
// bytes twice.
//
// What is fetched ahead of readers (a warm job) is asked for whole only if its kind is known to be
// small: the job does not hurry, and a HEAD costs less than what a cut loses.
//
// Large kinds are not asked for whole each time, because a connection and up to some MiB are lost
// with each cut. Their HEAD is waited for, because nobody could judge the reply or what is stored
// of it if the checksums came later.
//
// An object is of two kinds: one is its bucket, its own folder and its key's ending, the other has
// the first folder instead. The second decides while the first is unknown, because chunks lie few
// to a folder (`c/0/3/2`). Each kind has a score between -KIND_SCORE_MAX and KIND_SCORE_MAX. An
// object that fits in a run adds 1, a larger one takes KIND_SCORE_MAX away, and a kind is large
// while its score is negative. So one transfer is cut for KIND_SCORE_MAX small objects at most, in
// the long run.
//
// If two kinds share a slot, the later one begins anew. Kinds and what listings named are hints of
// all workers. A listed object has a name of 15 bits, and one bit that says whether it fits in a
// run. All else runs on the stripe's owner.
#include "fill/fill_private.h"

#define ENDING_MAX 16u
#define KIND_SCORE_MAX 16
// How long a run's head is held for the HEAD beside it: as long as it took to come itself, within
// these.
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
#define LISTED_NAME_SHIFT 49u // of a hash: 15 bits, in a slot above the one that says small

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

// Digits number the objects of one kind, as those of chunks do (`c/0/3`, `0.3`): they are no
// ending.
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

// `width` bytes of the key's name are the folder's.
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
    if (score != kind->score) { // no store where nothing changes: the slots are shared
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
    if (!is_small && listed_as(fill) == LISTED_SMALL) { // it has grown since
        fill_describe_listed(fill->fw, fill->key->bucket, fill->key->key, size_bytes);
    }
}

// Above 0: small, below: large, 0: unknown.
static int kinds_score(const struct fill *fill)
{
    int narrow = kind_of(fill, KIND_OF_FOLDER).score;
    return narrow != 0 ? narrow : kind_of(fill, KIND_OF_FIRST_FOLDER).score;
}

// Does the run hold all of an object that fits in a long run? A reader who wants checksums asks up
// to the object's end as far as it is known, so its run holds the object unless the store or
// another run has shortened it. Other readers may want less than the object.
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
        asks = kinds_score(fill) >= (fill->ahead ? 1 : 0);
    }
    stats_add(COUNTER_fills_whole, asks ? 1 : 0);
    return asks;
}

// --- HEAD beside a run ---------------------------------------------------------------------------

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
    (void)err; // whatever it is, the run goes on without
    check(fill->describing);
    fill->describing = false;
    if (!fill->head_waits) {
        fill_maybe_free(fill);
        return;
    }
    fill->head_waits = false;
    timer_stop(&fill->pause_timer);
    fill->head_err = fill_take_head(fill);
    if (fill->head_err != ERR_OK) {
        origin_fetch_cancel(&fill->fetch); // on_fetch_end() says why
    } else {
        fill_pause_update(fill);
    }
    fill_assert_run(fill);
}

void fill_describe_start(struct fill *fill)
{
    struct origin_fetch *f = &fill->describe;
    check(!fill->describing && !fill->fetching && !fill->has_head);
    f->head = true;
    f->bucket = fill->key->bucket;
    f->key = fill->key->key;
    f->credentials = fill->key->credentials;
    f->client = fill->client;
    f->ahead = fill->ahead;
    f->trace = &fill->trace;
    f->ask_checksums = f->for_checksums = true;
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
    uint64_t took_ms = (worker_now_us(fill->fw->worker) - fill->asked_us) / 1000;
    uint64_t wait_ms = min_u64(max_u64(took_ms, DESCRIBE_WAIT_LEAST_MS), DESCRIBE_WAIT_MAX_MS);
    fill->head_waits = true;
    fill_pause_update(fill);
    timer_start(&fill->pause_timer, wait_ms);
    return true;
}

void fill_describe_stop(struct fill *fill)
{
    fill->head_waits = false;
    if (fill->describing) {
        origin_fetch_cancel(&fill->describe);
    }
}
