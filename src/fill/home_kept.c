// SPDX-License-Identifier: Apache-2.0
// Kept answers: the origin's last answers about keys of which nothing is stored. A HEAD describes
// an object without its bytes, so no record can hold the answer. Clients that send several HEADs
// before they read would otherwise ask the origin each time.
//
// A kept answer counts like a record that was validated when the origin was asked (rule 32 of
// README.md). The reader decides whether it is fresh. The kept answer stops counting in each of
// these cases:
// - a reader is given another version or other headers of the key
// - the key is invalidated
// - a run of another version is published
//
// After that, only the checksums of the version that it names are used. The end of a write to the
// key drops the kept answer. A home's entry may be freed earlier, so kept answers are in a table of
// the home's worker.
//
// All kept answers together take at most 1/KEPT_SHARE of limits.max_buffer, and at most
// KEPT_BYTES_MAX. Each worker has an equal part of that. When its part is full, the answer that was
// kept longest ago is dropped.
#include "fill/home_private.h"

#include <stdlib.h>

#define KEPT_SHARE 16u
#define KEPT_BYTES_MAX (16u << 20)

struct kept_answer {
    struct list_node map_node, age_node;
    struct store_object *object;
    bool counts;       // false: only its version's checksums are used
    uint64_t asked_us; // when the origin was asked
    uint64_t bytes;    // bytes charged to the budget
};

static uint64_t answer_bytes(const struct store_object *object)
{
    return sizeof(struct kept_answer) + sizeof(*object) + object->realm.len + object->bucket.len +
           object->key.len + object->etag.len + object->version_id.len + object->headers.len;
}

static void answer_free(struct fill_worker *fw, struct kept_answer *a)
{
    check(fw->kept.bytes >= a->bytes && fw->kept.map.count > 0);
    chunk_budget_discharge(BUDGET_ANSWERS, a->bytes);
    fw->kept.bytes -= a->bytes;
    fw->kept.map.count--;
    list_remove(&a->map_node);
    list_remove(&a->age_node);
    store_object_unref(a->object);
    free(a);
}

static struct kept_answer *answer_find(const struct home_key *h)
{
    list_for_each(node, fill_map_bucket(&h->fw->kept.map, h->key->hash))
    {
        struct kept_answer *a = container_of(node, struct kept_answer, map_node);
        if (hash128_equal(a->object->hash, h->key->hash)) {
            return a;
        }
    }
    return NULL;
}

struct store_object *home_kept(const struct home_key *h)
{
    const struct kept_answer *a = answer_find(h);
    return a != NULL && a->counts ? a->object : NULL;
}

struct store_object *home_described(const struct home_key *h)
{
    const struct kept_answer *a = answer_find(h);
    return a != NULL ? a->object : NULL;
}

uint64_t home_kept_us(const struct home_key *h)
{
    const struct kept_answer *a = answer_find(h);
    return a != NULL ? a->asked_us : 0;
}

static void drop_oldest(struct fill_worker *fw)
{
    check(!list_empty(&fw->kept.by_age));
    stats_add(COUNTER_answers_pushed_out, 1);
    answer_free(fw, container_of(list_first(&fw->kept.by_age), struct kept_answer, age_node));
}

// Charges the answer, and drops older ones if necessary. Returns false if there is no room for it.
static bool take_room(struct fill_worker *fw, uint64_t bytes)
{
    uint64_t all = min_u64(chunk_budget_max_bytes() / KEPT_SHARE, KEPT_BYTES_MAX);
    uint64_t share = all / fw->room->worker_count;
    if (bytes > share) {
        return false;
    }
    while (fw->kept.bytes + bytes > share ||
           !chunk_budget_try_charge(BUDGET_ANSWERS, fw->kept.bytes, bytes)) {
        if (list_empty(&fw->kept.by_age)) {
            return false;
        }
        drop_oldest(fw);
    }
    fw->kept.bytes += bytes;
    check(fw->kept.bytes <= share);
    return true;
}

void home_keep(struct home_key *h, struct store_object *object, uint64_t asked_us)
{
    struct fill_worker *fw = h->fw;
    uint64_t bytes = answer_bytes(object);
    check(hash128_equal(object->hash, h->key->hash)); // answer_find() finds the answer by this hash
    home_unkeep(h);
    if (!take_room(fw, bytes)) {
        stats_add(COUNTER_answers_pushed_out, 1);
        return;
    }
    struct kept_answer *a = calloc(1, sizeof(*a));
    check(a != NULL);
    list_node_init(&a->map_node);
    list_node_init(&a->age_node);
    a->object = store_object_ref(object);
    a->counts = true;
    a->asked_us = asked_us;
    a->bytes = bytes;
    fw->kept.map.count++;
    list_push_back(fill_map_bucket(&fw->kept.map, h->key->hash), &a->map_node);
    list_push_back(&fw->kept.by_age, &a->age_node);
}

void home_unkeep(struct home_key *h)
{
    struct kept_answer *a = answer_find(h);
    if (a != NULL) {
        answer_free(h->fw, a);
    }
}

void home_kept_outdate(struct home_key *h)
{
    struct kept_answer *a = answer_find(h);
    if (a != NULL && checksums_lines(a->object->headers).len > 0) {
        a->counts = false;
    } else if (a != NULL) {
        answer_free(h->fw, a);
    }
}

void home_kept_outdate_by(struct home_key *h, const struct store_object *object)
{
    const struct store_object *kept = home_kept(h);
    if (kept != NULL && !fill_same_headers(kept, object)) {
        home_kept_outdate(h);
    }
}

void home_kept_free_all(struct fill_worker *fw)
{
    while (!list_empty(&fw->kept.by_age)) {
        answer_free(fw, container_of(list_first(&fw->kept.by_age), struct kept_answer, age_node));
    }
    check(fw->kept.bytes == 0 && fw->kept.map.count == 0);
}
