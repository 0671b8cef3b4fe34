// SPDX-License-Identifier: Apache-2.0
// Verifies bytes against the origin's checksum of the whole object, in three places.
//
// A run. Its checksum (the sum) is computed as the bytes arrive. If the run is the whole object,
// the sum is compared before any reader gets the last byte. Otherwise the sum serves the other two
// places, if it is a CRC. No other checksum can be combined from pieces. A streamed run may be as
// long as many runs. It has one CRC for each part with the length of a run, for replies only.
//
// A stored object in several runs. The key's home keeps the sum of each stored run until together
// they are the whole object. Neighbouring sums become one piece, so that an object read in order is
// always one piece. The pieces of an object are in a balanced tree of the C library. Pieces in the
// tree never touch each other, so they have one order. A piece that touches or overlaps another
// compares equal to it. So a new piece finds the pieces that it merges with in logarithmic time.
// Each worker has at most SUM_PIECES_MAX pieces. Above that the worker drops the object to which no
// run was added for the longest time, and counts the drop.
//
// A reply of several runs. Its last bytes are sent only if all of its bytes match. It does not wait
// for the home, which judges only when the last run is written. A run's owner notes the run's sum
// when its last byte has come, before any reader gets that byte. So a reply that has all bytes of a
// run finds its sum here, on any worker, without a message. The slots are few, in sets of
// FILL_RUN_SUM_WAYS, and a later sum may replace an older one. A reply that misses a sum is not
// verified, which is counted. A slot is written without a lock. Its `proof` is a hash of its other
// words, so a reader skips a slot that is being written.
//
// A run may be fetched again, with right bytes, while a reply still has the wrong bytes of the
// earlier fetch. So a reply is cut, whatever the sums here say, if it began before one of these
// verdicts: its object was judged wrong, or two runs of the same bytes had different sums. Objects
// that share a few bits of their hashes share one counter of verdicts, so at worst replies of
// another object are cut too. A sum from before the last verdict still counts until its run is
// fetched again. The run's bytes may be stored, and replies get them until the home has verified
// them too.
#include "fill/fill_private.h"

#include <search.h>
#include <stdlib.h>

#include "base/log.h"

#define SUM_PIECES_MAX 32768u // about 5 MiB

#define NOTHING UINT64_MAX // an end_byte that no reply reaches
static_assert(FILL_RUN_SUMS % FILL_RUN_SUM_WAYS == 0, "the sets fill the table");

struct sum_piece {
    uint64_t first_byte, end_byte;
    struct s3_checksum_state *sum;
};

struct whole_sum { // the sums of one version of one object
    struct list_node map_node, age_node;
    struct hash128 key_hash;
    uint64_t etag_hash, size_bytes;
    enum s3_checksum kind;
    void *pieces; // a tree of tsearch(3)
    unsigned piece_count;
};

struct whole_sums {
    struct fill_map map;
    struct list by_age; // the one to which no run was added for the longest time is first
    unsigned piece_count;
};

struct run_sum { // the sum of a run that was received, for replies
    uint64_t name, end_byte, crc, verdicts;
};

// Returns the kind of a checksum of the whole object that Forebay can compute, and its value.
// S3_CHECKSUM_NONE: there is none.
static enum s3_checksum wanted_of(const struct store_object *object, struct span *ret_value)
{
    struct span lines = checksums_lines(object->headers), line;
    enum s3_checksum kind = S3_CHECKSUM_NONE;
    while (lines.len > 0 && span_split(&lines, '\n', &line)) {
        size_t colon = span_find(line, ':');
        if (colon == line.len) {
            continue;
        }
        struct span name = {line.ptr, colon};
        struct span value = {line.ptr + colon + 1, line.len - colon - 1};
        value = span_ends_with(value, SPAN("\r")) ? (struct span){value.ptr, value.len - 1} : value;
        value = span_trim(value);
        if (span_equal(name, SPAN("x-amz-checksum-type")) &&
            !span_equal_nocase(value, SPAN("FULL_OBJECT"))) {
            return S3_CHECKSUM_NONE;
        }
        if (kind == S3_CHECKSUM_NONE && span_find(value, '-') == value.len) {
            // A value "...-N" is a checksum of the parts' checksums, and cannot be used.
            kind = s3_checksum_from_name(name);
            *ret_value = value;
        }
    }
    return kind;
}

// Finalises `sum`, of all bytes of the object, and compares it with the origin's checksum.
static bool sum_matches(const struct store_object *object, struct s3_checksum_state *sum,
                        struct span *ret_wanted, char ret_computed[64])
{
    check(sum != NULL);
    (void)wanted_of(object, ret_wanted);
    s3_checksum_final(sum, ret_computed);
    return span_equal_cstr(*ret_wanted, ret_computed);
}

static bool object_is_right(const struct store_object *object, struct s3_checksum_state *sum)
{
    struct span wanted = {NULL, 0};
    char computed[64];
    bool is_right = sum_matches(object, sum, &wanted, computed);
    if (!is_right) {
        stats_add(COUNTER_origin_checksum_failures, 1);
        log_error("origin_checksum_mismatch", "bucket=%s key=%s etag=%s expected=%s computed=%s",
                  log_quote(object->bucket), log_key(object->key), log_quote(object->etag),
                  log_quote(wanted), computed);
    }
    return is_right;
}

// --- the sums of runs that have come, for replies ------------------------------------------------

static uint64_t name_of(const struct store_object *object, enum s3_checksum kind,
                        uint64_t first_byte)
{
    uint64_t words[5] = {object->hash.lo, object->hash.hi, version_hash(object), kind, first_byte};
    return max_u64(hash64(words, sizeof(words), 0), 1);
}

static uint64_t proof_of(const struct run_sum *sum)
{
    return hash64(sum, sizeof(*sum), 1);
}

static struct run_sum_slot *set_of(struct fill_room *room, uint64_t name)
{
    return &room->run_sums[name % (FILL_RUN_SUMS / FILL_RUN_SUM_WAYS) * FILL_RUN_SUM_WAYS];
}

// Returns the slot of that name in a set, or NULL. Name 0 finds a free slot.
static struct run_sum_slot *slot_find(struct run_sum_slot *set, uint64_t name)
{
    for (unsigned i = 0; i < FILL_RUN_SUM_WAYS; i++) {
        if (atomic_load_explicit(&set[i].name, memory_order_relaxed) == name) {
            return &set[i];
        }
    }
    return NULL;
}

static bool slot_read(struct fill_room *room, uint64_t name, struct run_sum *ret_sum)
{
    struct run_sum_slot *slot = slot_find(set_of(room, name), name);
    if (slot == NULL) {
        return false;
    }
    struct run_sum sum = {
        .name = atomic_load_explicit(&slot->name, memory_order_relaxed),
        .end_byte = atomic_load_explicit(&slot->end_byte, memory_order_relaxed),
        .crc = atomic_load_explicit(&slot->crc, memory_order_relaxed),
        .verdicts = atomic_load_explicit(&slot->verdicts, memory_order_relaxed),
    };
    if (sum.name != name ||
        atomic_load_explicit(&slot->proof, memory_order_relaxed) != proof_of(&sum)) {
        return false;
    }
    *ret_sum = sum;
    return true;
}

static void slot_write(struct fill_room *room, const struct run_sum *sum)
{
    struct run_sum_slot *set = set_of(room, sum->name), *slot = slot_find(set, sum->name);
    slot = slot != NULL ? slot : slot_find(set, 0); // 0 finds a free slot
    slot = slot != NULL ? slot : &set[(sum->name >> 32) % FILL_RUN_SUM_WAYS];
    atomic_store_explicit(&slot->name, sum->name, memory_order_relaxed);
    atomic_store_explicit(&slot->end_byte, sum->end_byte, memory_order_relaxed);
    atomic_store_explicit(&slot->crc, sum->crc, memory_order_relaxed);
    atomic_store_explicit(&slot->verdicts, sum->verdicts, memory_order_relaxed);
    atomic_store_explicit(&slot->proof, proof_of(sum), memory_order_relaxed);
}

static _Atomic uint64_t *verdicts_on(struct fill_worker *fw, struct hash128 key_hash)
{
    return &fw->room->verdicts[key_hash.lo % FILL_VERDICTS];
}

void checksums_condemn(struct fill_worker *fw, const struct store_object *object)
{
    atomic_fetch_add(verdicts_on(fw, object->hash), 1);
}

// Notes the sum of the run, or of the part of it that has just come, for replies. Call it before
// any reader gets the last of these bytes.
static void run_note(const struct fill *fill, uint64_t end_byte)
{
    struct span value;
    enum s3_checksum kind = wanted_of(fill->object, &value);
    if (fill->checksum == NULL || !s3_checksum_combines(kind)) {
        return;
    }
    struct run_sum sum = {.name = name_of(fill->object, kind, fill->summed_from),
                          .end_byte = end_byte,
                          .crc = s3_checksum_crc(fill->checksum),
                          .verdicts = atomic_load(verdicts_on(fill->fw, fill->object->hash))};
    struct run_sum former;
    if (slot_read(fill->fw->room, sum.name, &former) && former.verdicts == sum.verdicts &&
        former.end_byte == sum.end_byte && former.crc != sum.crc) {
        checksums_condemn(fill->fw, fill->object);
        sum.end_byte = NOTHING; // nobody knows which of the two is right
    }
    slot_write(fill->fw->room, &sum);
}

// --- a run ---------------------------------------------------------------------------------------

static bool is_whole(const struct fill *fill)
{
    return fill->first_byte == 0 && fill->end_byte == fill->object->size_bytes;
}

void checksums_run_drop(struct fill *fill)
{
    s3_checksum_free(fill->checksum);
    fill->checksum = NULL;
}

static void sum_begin(struct fill *fill, uint64_t first_byte)
{
    struct span value;
    enum s3_checksum kind = wanted_of(fill->object, &value);
    bool wanted = is_whole(fill) || s3_checksum_combines(kind);
    checksums_run_drop(fill);
    fill->checksum = wanted && kind != S3_CHECKSUM_NONE ? s3_checksum_new(kind) : NULL;
    fill->summed_from = first_byte;
}

void checksums_run_begin(struct fill *fill)
{
    check(fill->phase == FILL_BODY && fill->received == fill->first_byte);
    sum_begin(fill, fill->first_byte);
}

// Returns the end of the bytes that get one sum. A streamed run is summed in parts with the length
// of a stored run. So a reply finds the sums whether its bytes come from this run or from another.
static uint64_t part_end(const struct fill *fill)
{
    struct span value;
    if (!fill_is_streamed(fill) || !s3_checksum_combines(wanted_of(fill->object, &value))) {
        return fill->end_byte;
    }
    uint64_t part = store_run_bytes_long(fill->fw->store);
    return min_u64((fill->summed_from / part + 1) * part, fill->end_byte);
}

void checksums_run_take(struct fill *fill, struct span data)
{
    uint64_t at = fill->received;
    while (fill->checksum != NULL && data.len > 0) {
        uint64_t end = part_end(fill);
        check(at < end);
        size_t n = (size_t)min_u64(data.len, end - at);
        s3_checksum_update(fill->checksum, (struct span){data.ptr, n});
        at += n;
        data = (struct span){data.ptr + n, data.len - n};
        if (at == end && end < fill->end_byte) {
            run_note(fill, end);
            sum_begin(fill, end);
        }
    }
}

// Compares the sum once. A reply does not know whether a large object came in one run, so the sum
// of such a run is noted too.
void checksums_run_judge(struct fill *fill)
{
    check(fill_has_come(fill));
    if (fill->checksum == NULL || fill->verdict != FILL_VERDICT_OPEN) {
        return;
    }
    fill->verdict = FILL_VERDICT_PASSED;
    // The run may have been whole until it was cut at a block's end.
    if (!is_whole(fill) || fill->summed_from > 0) {
        struct span value;
        run_note(fill, fill->end_byte);
        if (!s3_checksum_combines(wanted_of(fill->object, &value))) {
            checksums_run_drop(fill);
        }
        return;
    }
    if (!object_is_right(fill->object, fill->checksum)) {
        fill->verdict = FILL_VERDICT_WRONG;
    } else if (fill->object->size_bytes > store_run_bytes_max(fill->fw->store)) {
        run_note(fill, fill->end_byte);
    }
    checksums_run_drop(fill);
}

// --- a stored object in several runs -------------------------------------------------------------

static int piece_compare(const void *a, const void *b)
{
    const struct sum_piece *x = a;
    const struct sum_piece *y = b;
    return (x->first_byte > y->end_byte) - (x->end_byte < y->first_byte);
}

static void piece_free(void *ptr)
{
    struct sum_piece *piece = ptr;
    s3_checksum_free(piece->sum);
    free(piece);
}

static void piece_take_out(struct whole_sums *sums, struct whole_sum *ws, struct sum_piece *piece)
{
    check(sums->piece_count > 0 && ws->piece_count > 0);
    check(tdelete(piece, &ws->pieces, piece_compare) != NULL);
    sums->piece_count--;
    ws->piece_count--;
}

static void whole_sum_free(struct whole_sums *sums, struct whole_sum *ws)
{
    check(sums->piece_count >= ws->piece_count);
    sums->piece_count -= ws->piece_count;
    tdestroy(ws->pieces, piece_free);
    list_remove(&ws->map_node);
    list_remove(&ws->age_node);
    free(ws);
}

void checksums_objects_free(struct fill_worker *fw)
{
    struct whole_sums *sums = fw->whole_sums;
    if (sums == NULL) {
        return;
    }
    while (!list_empty(&sums->by_age)) {
        whole_sum_free(sums, container_of(list_first(&sums->by_age), struct whole_sum, age_node));
    }
    check(sums->piece_count == 0);
    free(sums);
    fw->whole_sums = NULL;
}

static struct whole_sums *sums_of(struct fill_worker *fw)
{
    if (fw->whole_sums == NULL) {
        fw->whole_sums = calloc(1, sizeof(*fw->whole_sums));
        check(fw->whole_sums != NULL);
        fill_map_init(&fw->whole_sums->map);
        list_init(&fw->whole_sums->by_age);
    }
    return fw->whole_sums;
}

// Returns the entry of this version, and moves it to the end of by_age. An entry of another version
// of the key is freed.
static struct whole_sum *whole_sum_get(struct whole_sums *sums, struct hash128 hash,
                                       const struct store_object *object, enum s3_checksum kind)
{
    uint64_t etag_hash = hash64(object->etag.ptr, object->etag.len, 0);
    list_for_each(node, fill_map_bucket(&sums->map, hash))
    {
        struct whole_sum *ws = container_of(node, struct whole_sum, map_node);
        if (!hash128_equal(ws->key_hash, hash)) {
            continue;
        }
        if (ws->etag_hash == etag_hash && ws->size_bytes == object->size_bytes &&
            ws->kind == kind) {
            list_remove(&ws->age_node);
            list_push_back(&sums->by_age, &ws->age_node);
            return ws;
        }
        whole_sum_free(sums, ws);
        break;
    }
    struct whole_sum *ws = calloc(1, sizeof(*ws));
    check(ws != NULL);
    ws->key_hash = hash;
    ws->etag_hash = etag_hash;
    ws->size_bytes = object->size_bytes;
    ws->kind = kind;
    list_node_init(&ws->map_node);
    list_node_init(&ws->age_node);
    list_push_back(fill_map_bucket(&sums->map, hash), &ws->map_node);
    list_push_back(&sums->by_age, &ws->age_node);
    return ws;
}

// Merges two pieces that touch into the first.
static void piece_merge(struct sum_piece *left, struct sum_piece *right)
{
    check(left->end_byte == right->first_byte && right->first_byte < right->end_byte);
    s3_checksum_append(left->sum, right->sum, right->end_byte - right->first_byte);
    left->end_byte = right->end_byte;
    piece_free(right);
}

// Adds a piece, and returns it merged with its neighbours. A piece that was fetched again replaces
// the pieces that it overlaps. If another piece already covers the new one, the new one is freed,
// and NULL is returned.
static struct sum_piece *piece_add(struct whole_sums *sums, struct whole_sum *ws,
                                   struct sum_piece *piece)
{
    struct sum_piece **found;
    // Takes each touching piece out of the tree.
    while ((found = tfind(piece, &ws->pieces, piece_compare)) != NULL) {
        struct sum_piece *other = *found;
        if (other->first_byte <= piece->first_byte && other->end_byte >= piece->end_byte) {
            piece_free(piece);
            return NULL;
        }
        piece_take_out(sums, ws, other);
        if (other->end_byte == piece->first_byte) {
            piece_merge(other, piece);
            piece = other;
        } else if (other->first_byte == piece->end_byte) {
            piece_merge(piece, other);
        } else {
            piece_free(other);
        }
    }
    check(tsearch(piece, &ws->pieces, piece_compare) != NULL);
    sums->piece_count++;
    ws->piece_count++;
    return piece;
}

bool checksums_object_add(struct fill_worker *fw, const struct object_key *key,
                          const struct store_object *object, uint64_t first_byte, uint64_t end_byte,
                          struct s3_checksum_state *sum)
{
    if (sum == NULL) {
        return true;
    }
    check(first_byte < end_byte && end_byte <= object->size_bytes);
    struct span wanted;
    enum s3_checksum kind = wanted_of(object, &wanted);
    check(s3_checksum_combines(kind));
    struct sum_piece *piece = calloc(1, sizeof(*piece));
    check(piece != NULL);
    *piece = (struct sum_piece){.first_byte = first_byte, .end_byte = end_byte, .sum = sum};
    struct whole_sums *sums = sums_of(fw);
    struct whole_sum *ws = whole_sum_get(sums, key->hash, object, kind);
    struct sum_piece *whole = piece_add(sums, ws, piece);
    bool right = true;
    if (whole != NULL && whole->first_byte == 0 && whole->end_byte == object->size_bytes) {
        right = object_is_right(object, whole->sum);
        whole_sum_free(sums, ws);
    }
    while (sums->piece_count > SUM_PIECES_MAX) {
        whole_sum_free(sums, container_of(list_first(&sums->by_age), struct whole_sum, age_node));
        stats_add(COUNTER_origin_checksum_given_up, 1);
    }
    return right;
}

// --- a reply of several runs ---------------------------------------------------------------------

void checksums_reply_begin(struct fill_worker *fw, struct hash128 key_hash,
                           struct checksums_reply *total)
{
    total->verdicts = atomic_load(verdicts_on(fw, key_hash));
}

void checksums_reply_done(struct checksums_reply *total)
{
    s3_checksum_free(total->sum);
    *total = (struct checksums_reply){0};
}

// Adds the sum of the reply's next run. Returns false if no sum is noted, or if the reply does not
// have all of that run. The sum may then be that of an earlier, longer run.
static bool total_grow(struct fill_worker *fw, const struct store_object *object,
                       struct checksums_reply *total, uint64_t end_byte)
{
    struct run_sum sum;
    if (!slot_read(fw->room, name_of(object, total->kind, total->end_byte), &sum)) {
        return false;
    }
    if (sum.end_byte > end_byte) {
        return false;
    }
    check(sum.end_byte > total->end_byte); // a run has bytes, so the reply advances
    struct s3_checksum_state *next = s3_checksum_of_crc(total->kind, sum.crc);
    if (total->sum == NULL) {
        total->sum = next;
    } else {
        s3_checksum_append(total->sum, next, sum.end_byte - total->end_byte);
        s3_checksum_free(next);
    }
    total->end_byte = sum.end_byte;
    return true;
}

bool checksums_reply_is_wrong(struct fill_worker *fw, const struct store_object *object,
                              struct checksums_reply *total, uint64_t end_byte)
{
    if (!total->has_kind) {
        struct span value;
        total->has_kind = true;
        total->kind = wanted_of(object, &value);
    }
    if (!s3_checksum_combines(total->kind)) {
        return false;
    }
    check(end_byte <= object->size_bytes);
    while (total->end_byte < end_byte && total_grow(fw, object, total, end_byte)) {
    }
    if (end_byte < object->size_bytes) {
        return false;
    }
    bool is_known = total->end_byte == object->size_bytes;
    bool was_wrong = atomic_load(verdicts_on(fw, object->hash)) != total->verdicts;
    struct span wanted = {NULL, 0};
    char computed[64];
    bool is_wrong = is_known && !was_wrong && !sum_matches(object, total->sum, &wanted, computed);
    if (is_wrong) {
        checksums_condemn(fw, object);
    }
    if (is_wrong || was_wrong) {
        stats_add(COUNTER_origin_checksum_cut, 1);
        log_error("reply_cut_by_checksum", "bucket=%s key=%s etag=%s", log_quote(object->bucket),
                  log_key(object->key), log_quote(object->etag));
        return true;
    }
    stats_add(COUNTER_origin_checksum_unjudged, is_known ? 0 : 1);
    return false;
}
