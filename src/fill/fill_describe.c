// SPDX-License-Identifier: Apache-2.0
// The origin's checksums of an object that is fetched for the first time, by a reader who wants them. A
// run is asked for by its range, and S3 names them in answers to HEAD and of whole objects only. So
//
//   where it was listed as small, or objects  the run is asked for without a range: nothing is asked
//   of its kind have proven small             twice
//   else                                      HEAD goes out beside the run, whose head waits for the
//                                             answer, not for ever
//
// A kind is a bucket, a folder and the ending of a key's name. It counts as small when many of its
// objects in a row, whoever read them, fitted in a run. An object is of two kinds: one has its own folder, the other
// the first folder of its name, which counts where its own has too few objects to prove anything (chunks, as `c/0/3/2`). An object that was asked for whole and is larger
// is asked for again, by its range: what the origin had sent until then is lost. So its kind must then
// prove itself anew, KIND_AGAIN times as long each time. Two kinds in one slot: the later one begins
// anew. Kinds are a hint, of any worker, and so is what a listing named: a name of 15 bits for each object,
// and whether it fits in a run. All else runs on the stripe's owner.
#include "fill/fill_private.h"

#define ENDING_MAX 16u
#define KIND_PROOF 16u         // so many in a row
#define KIND_AGAIN 16u         // times as many after each that was large
#define KIND_WRONG_MAX 4u      // of which that many count: 2^20 in a row
#define DESCRIBE_WAIT_MS 1000u // that the head of a run waits for the answer to HEAD

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

// In a slot: the name, how often its kind was wrong, how many were small since.
#define KIND_NAME_SHIFT 32u
#define KIND_WRONG_SHIFT 24u
#define KIND_COUNT_MAX ((1u << KIND_WRONG_SHIFT) - 1)

enum kind_reach { KIND_OF_FOLDER, KIND_OF_FIRST_FOLDER, KIND_REACHES };

struct kind {
    _Atomic uint64_t *slot;
    uint32_t name, wrong, count;
};

// Digits number the objects of one kind, as those of chunks do (`c/0/3`, `0.3`): they are no ending.
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
    if (known >> KIND_NAME_SHIFT == kind.name) {
        kind.wrong = (uint32_t)known >> KIND_WRONG_SHIFT;
        kind.count = (uint32_t)known & KIND_COUNT_MAX;
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

static void kind_store(const struct kind *kind)
{
    uint64_t known = (uint64_t)kind->name << KIND_NAME_SHIFT |
                     (uint64_t)kind->wrong << KIND_WRONG_SHIFT | kind->count;
    atomic_store_explicit(kind->slot, known, memory_order_relaxed);
}

static uint32_t kind_proof(const struct kind *kind)
{
    uint32_t proof = KIND_PROOF;
    for (unsigned i = 0; i < kind->wrong; i++) {
        proof *= KIND_AGAIN;
    }
    return proof;
}

static bool kind_is_proven(const struct kind *kind)
{
    return kind->count >= kind_proof(kind);
}

void fill_describe_learn(const struct fill *fill)
{
    bool is_small = fits_in_run(fill->fw, fill->object->size_bytes);
    for (enum kind_reach reach = 0; reach < KIND_REACHES; reach++) {
        struct kind kind = kind_of(fill, reach);
        if (is_small && !kind_is_proven(&kind)) {
            kind.count++;
            kind_store(&kind);
        } else if (!is_small && kind.count > 0) {
            kind.count = 0;
            kind_store(&kind);
        }
    }
}

void fill_describe_was_wrong(const struct fill *fill, uint64_t size_bytes)
{
    stats_add(COUNTER_fills_whole_wrong, 1);
    if (listed_as(fill) != LISTED_NOT) { // it has changed since
        fill_describe_listed(fill->fw, fill->key->bucket, fill->key->key, size_bytes);
        return;
    }
    for (enum kind_reach reach = 0; reach < KIND_REACHES; reach++) {
        struct kind kind = kind_of(fill, reach);
        kind.wrong += kind_is_proven(&kind) && kind.wrong < KIND_WRONG_MAX;
        kind.count = 0;
        kind_store(&kind);
    }
}

// A folder that has been wrong speaks for itself.
static bool kinds_say_small(const struct fill *fill)
{
    struct kind narrow = kind_of(fill, KIND_OF_FOLDER), wide = kind_of(fill, KIND_OF_FIRST_FOLDER);
    return kind_is_proven(&narrow) || (narrow.wrong == 0 && kind_is_proven(&wide));
}

bool fill_describe_asks_whole(const struct fill *fill, bool are_wanted)
{
    enum listed listed = listed_as(fill);
    bool asks = listed == LISTED_SMALL;
    if (listed == LISTED_NOT && are_wanted) {
        asks = kinds_say_small(fill);
    }
    stats_add(COUNTER_fills_whole, asks ? 1 : 0);
    return asks;
}

// --- HEAD ----------------------------------------------------------------------------------------

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

bool fill_describe_is_free(const struct fill *fill)
{
    return (uint64_t)fill->block_count * fill->block_size_bytes >= run_bytes(fill->fw);
}

bool fill_describe_holds(struct fill *fill)
{
    const struct origin_fetch *f = &fill->fetch;
    if (!fill->describing || f->checksums.count > 0 || f->body_len == 0) {
        return false;
    }
    fill->head_waits = true;
    fill_pause_update(fill);
    timer_start(&fill->pause_timer, DESCRIBE_WAIT_MS);
    return true;
}

void fill_describe_stop(struct fill *fill)
{
    fill->head_waits = false;
    if (fill->describing) {
        origin_fetch_cancel(&fill->describe);
    }
}
