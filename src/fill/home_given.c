// SPDX-License-Identifier: Apache-2.0
// Remembers which version a key's home gave last: the one that a first request or a check found. A
// run of another version that was requested earlier may be older, so no reader may get it any more
// (rules 14 and 16 of README.md). An answer that may be older than the one given before it names no
// version here (rule 31).
//
// A home's entry is freed when nothing about its key is undecided, but a run in flight may live
// longer. So these versions are in a table of the home's worker. Keys may share a slot. When
// another key takes the slot, only the time of the earlier key is kept. A run may then be refused
// storage or joins without need, but an old run is never accepted.
#include "fill/home_private.h"

// A worker's clock does not advance within a turn of its loop. The clocks of two workers differ by
// at most this.
#define GIVEN_SLACK_US 1000000u

static struct given_slot *given_slot(struct home_key *h)
{
    return &h->fw->given[h->key->hash.lo / FILL_MAP_BUCKETS % FILL_GIVEN];
}

struct home_given home_given(struct home_key *h)
{
    const struct given_slot *slot = given_slot(h);
    return hash128_equal(slot->hash, h->key->hash)
               ? slot->given
               : (struct home_given){.any_until_us = slot->given.any_until_us};
}

bool home_given_since(struct home_key *h, uint64_t version, uint64_t asked_us)
{
    struct home_given given = home_given(h);
    return home_given_precedes(&given, version, asked_us);
}

// Gives the slot to this key. If another key had it, only that key's time is kept, and then also
// applies to this key.
static struct home_given *given_take(struct home_key *h)
{
    struct given_slot *slot = given_slot(h);
    struct home_given *given = &slot->given;
    if (!hash128_equal(slot->hash, h->key->hash)) {
        uint64_t until_us = max_u64(given->until_us, given->denied_until_us);
        *given = (struct home_given){.any_until_us = max_u64(given->any_until_us, until_us)};
        slot->hash = h->key->hash;
    }
    return given;
}

void home_note(struct home_noted *noted, struct store_object *object)
{
    bool is_same = object != NULL && !home_note_contradicts(noted, object);
    if (is_same && noted->has && object->headers.len == 0) {
        return; // a read that bypassed the cache names no headers
    }
    store_object_unref(noted->object);
    noted->object = is_same ? store_object_ref(object) : NULL;
    noted->has = true;
}

void home_note_forget(struct home_noted *noted)
{
    store_object_unref(noted->object);
    *noted = (struct home_noted){0};
}

bool home_note_contradicts(const struct home_noted *noted, const struct store_object *object)
{
    return noted->has && (noted->object == NULL || !fill_same_headers(noted->object, object));
}

// If a check is in flight, records in the check the version that a reader gets before its answer.
// NULL: as in home_note().
static void given_note(struct home_key *h, struct store_object *object)
{
    if (h->revalidation != NULL) {
        home_note(&h->revalidation->given, object);
    }
}

static void given_name(struct home_key *h, uint64_t version)
{
    struct home_given *given = given_take(h);
    if (home_kept(h) != NULL && version_hash(home_kept(h)) != version) {
        home_kept_outdate(h);
    }
    if (given->version != version) {
        // Nobody knows which of the two versions is newer.
        given->any_until_us = max_u64(given->any_until_us, given->until_us);
        given->version = version;
    }
    given->until_us = worker_now_us(h->fw->worker) + GIVEN_SLACK_US;
}

void home_give_named(struct home_key *h, uint64_t version)
{
    given_note(h, NULL);
    given_name(h, version);
}

static void given_describe(struct home_key *h, uint64_t version, uint64_t headers)
{
    check(version != 0);
    struct home_given *given = given_take(h);
    given->described = version;
    given->headers = headers;
    given->described_until_us = worker_now_us(h->fw->worker);
}

void home_give(struct home_key *h, struct store_object *object)
{
    given_note(h, object);
    given_name(h, object != NULL ? version_hash(object) : 0);
    if (object != NULL && object->headers.len > 0) {
        home_kept_outdate_by(h, object);
        struct home_given given = home_given(h);
        bool in_doubt = home_given_outdates(&given, object);
        given_describe(h, version_hash(object), in_doubt ? 0 : fill_version_headers_hash(object));
    }
}

void home_doubt_headers(struct home_key *h, const struct store_object *object)
{
    struct home_given given = home_given(h);
    uint64_t version = version_hash(object);
    if (given.version == version || given.described == version) {
        given_describe(h, version, 0);
    }
    home_kept_outdate(h);
}

void home_deny(struct home_key *h, uint64_t version)
{
    check(version != 0);
    given_note(h, NULL);
    struct home_given *given = given_take(h);
    if (home_kept(h) != NULL && version_hash(home_kept(h)) == version) {
        home_kept_outdate(h);
    }
    if (given->denied != version) {
        given->any_until_us = max_u64(given->any_until_us, given->denied_until_us);
        given->denied = version;
    }
    given->denied_until_us = worker_now_us(h->fw->worker) + GIVEN_SLACK_US;
}
