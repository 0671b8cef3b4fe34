// SPDX-License-Identifier: Apache-2.0
// Verifies the origin's checksum of a whole object. An object that comes in one run is summed as it
// comes (fill_fetch.c). For an object in several runs, the key's home keeps the sum of each stored
// run until together they are the whole object. Neighbouring sums become one piece, so that an
// object read in order is always one piece. CRCs only: no other checksum can be combined from
// pieces.
//
// The pieces of an object are in a balanced tree of the C library. No two of them touch, so they
// are in one order. A piece that touches or overlaps another compares equal to it. So a new piece
// finds the pieces that it merges with in logarithmic time.
//
// Runs on the home's worker. Each worker has at most SUM_PIECES_MAX pieces. Above that it drops the
// object that no run was added to for the longest time, and counts that.
#include "fill/fill_private.h"

#include <search.h>
#include <stdlib.h>

#include "base/log.h"

#define SUM_PIECES_MAX 32768u // about 5 MiB

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
    struct list by_age; // least recently added to first
    unsigned piece_count;
};

// --- what the origin says ------------------------------------------------------------------------

enum s3_checksum whole_sum_wanted(const struct store_object *object, struct span *ret_value)
{
    struct span lines = fill_version_checksums(object->headers), line;
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

bool whole_sum_is_right(const struct object_key *key, const struct store_object *object,
                        struct s3_checksum_state *sum)
{
    struct span value = {NULL, 0};
    char computed[64];
    check(sum != NULL);
    (void)whole_sum_wanted(object, &value);
    s3_checksum_final(sum, computed);
    if (span_equal_cstr(value, computed)) {
        return true;
    }
    stats_add(COUNTER_origin_checksum_failures, 1);
    log_error("origin_checksum_mismatch", "bucket=%s key=%s etag=%s expected=%s computed=%s",
              log_quote(key->bucket), log_key(key->key), log_quote(object->etag), log_quote(value),
              computed);
    return false;
}

// --- the table -----------------------------------------------------------------------------------

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

void whole_sums_free(struct whole_sums *sums)
{
    if (sums == NULL) {
        return;
    }
    while (!list_empty(&sums->by_age)) {
        whole_sum_free(sums, container_of(list_first(&sums->by_age), struct whole_sum, age_node));
    }
    check(sums->piece_count == 0);
    free(sums);
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

// Returns the entry of this version, as the most recent one. An entry of another version of the key
// is freed.
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
// the pieces that it covers. If others cover it already, it is freed, and NULL is returned.
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

bool whole_sum_add(struct fill_worker *fw, const struct object_key *key,
                   const struct store_object *object, uint64_t first_byte, uint64_t end_byte,
                   struct s3_checksum_state *sum)
{
    check(sum != NULL && first_byte < end_byte && end_byte <= object->size_bytes);
    struct span value;
    enum s3_checksum kind = whole_sum_wanted(object, &value);
    check(s3_checksum_combines(kind));
    struct sum_piece *piece = calloc(1, sizeof(*piece));
    check(piece != NULL);
    *piece = (struct sum_piece){.first_byte = first_byte, .end_byte = end_byte, .sum = sum};
    struct whole_sums *sums = sums_of(fw);
    struct whole_sum *ws = whole_sum_get(sums, key->hash, object, kind);
    struct sum_piece *whole = piece_add(sums, ws, piece);
    bool right = true;
    if (whole != NULL && whole->first_byte == 0 && whole->end_byte == object->size_bytes) {
        right = whole_sum_is_right(key, object, whole->sum);
        whole_sum_free(sums, ws);
    }
    while (sums->piece_count > SUM_PIECES_MAX) {
        whole_sum_free(sums, container_of(list_first(&sums->by_age), struct whole_sum, age_node));
        stats_add(COUNTER_origin_checksum_given_up, 1);
    }
    return right;
}
