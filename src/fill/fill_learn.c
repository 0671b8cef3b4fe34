// SPDX-License-Identifier: Apache-2.0
// Limits the HEADs that learn the checksums of stored objects while no client waits for them
// (home_revalidate.c). A hit decides here whether it asks the key's home at all. A refusal costs a
// few loads:
//
//   LEARNING_MAX of them are in flight             asked about when the object is read again
//   one failed at that origin PAUSE_MS ago         the same, for all objects of that origin
//   this version is being asked about              its other hits neither ask nor wait
//
// All workers share the slots. A slot holds a name of 36 bits and a time. It belongs to that name
// until the home releases it, or until PAUSE_MS have passed. A version can use any of WAYS slots.
// If other versions hold all of them, the version is asked about when it is read again. Any worker.
#include "fill/fill_private.h"

#define LEARNING_MAX 1024u
#define PAUSE_MS 10000u
#define WAYS 8u
#define NAME_SHIFT 28u // the time in the lower bits is in milliseconds and wraps after three days
#define TIME_MASK ((UINT64_C(1) << NAME_SHIFT) - 1)
static_assert(FILL_LEARN_VERSIONS % WAYS == 0, "the sets fill the table");
static_assert(PAUSE_MS < TIME_MASK, "a pause fits the field of the time");

static uint64_t now_ms(const struct fill_worker *fw)
{
    return worker_now_us(fw->worker) / 1000;
}

static uint64_t name_of(uint64_t hash)
{
    return max_u64(hash >> NAME_SHIFT, 1) << NAME_SHIFT; // 0 is a free slot
}

static bool is_over(const struct fill_worker *fw, uint64_t value)
{
    return value == 0 || ((now_ms(fw) - value) & TIME_MASK) >= PAUSE_MS;
}

static uint64_t version_of(const struct object_key *key, const struct store_object *object)
{
    return hash64(object->etag.ptr, object->etag.len, key->hash.lo);
}

// Returns the first of the slots that may hold the version.
static _Atomic uint64_t *version_slots(struct fill_worker *fw, uint64_t version)
{
    return &fw->room->learning.versions[version % (FILL_LEARN_VERSIONS / WAYS) * WAYS];
}

static bool is_named(uint64_t value, uint64_t hash)
{
    return value >> NAME_SHIFT == name_of(hash) >> NAME_SHIFT;
}

static uint64_t origin_hash(const struct origin *origin)
{
    return hash64(&origin, sizeof(origin), 0);
}

static _Atomic uint64_t *origin_slot(struct fill_worker *fw, const struct origin *origin)
{
    return &fw->room->learning.paused[origin_hash(origin) % FILL_LEARN_ORIGINS];
}

static bool is_paused(struct fill_worker *fw, const struct origin *origin)
{
    uint64_t value = atomic_load_explicit(origin_slot(fw, origin), memory_order_relaxed);
    return is_named(value, origin_hash(origin)) && !is_over(fw, value);
}

bool fill_learn_may_ask(struct fill_worker *fw, const struct origin *origin)
{
    bool may =
        atomic_load_explicit(&fw->room->learning.in_flight, memory_order_relaxed) < LEARNING_MAX &&
        !is_paused(fw, origin);
    stats_add(COUNTER_checksum_heads_skipped, may ? 0 : 1);
    return may;
}

bool fill_learn_claim(struct fill_worker *fw, const struct object_key *key,
                      const struct store_object *object)
{
    uint64_t version = version_of(key, object);
    _Atomic uint64_t *slots = version_slots(fw, version), *free = NULL;
    uint64_t free_value = 0;
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t value = atomic_load_explicit(&slots[i], memory_order_relaxed);
        if (is_over(fw, value)) {
            free = &slots[i];
            free_value = value;
        } else if (is_named(value, version)) {
            return false;
        }
    }
    return free != NULL && fill_learn_may_ask(fw, key->origin) &&
           atomic_compare_exchange_strong(free, &free_value,
                                          name_of(version) | (now_ms(fw) & TIME_MASK));
}

void fill_learn_release(struct fill_worker *fw, const struct object_key *key,
                        const struct store_object *object)
{
    uint64_t version = version_of(key, object);
    _Atomic uint64_t *slots = version_slots(fw, version);
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t value = atomic_load_explicit(&slots[i], memory_order_relaxed);
        if (is_named(value, version)) {
            (void)atomic_compare_exchange_strong(&slots[i], &value, 0); // fails if reused
        }
    }
}

void fill_learn_begin(struct fill_worker *fw)
{
    atomic_fetch_add(&fw->room->learning.in_flight, 1);
}

void fill_learn_end(struct fill_worker *fw, const struct origin *origin, bool has_failed)
{
    unsigned before = atomic_fetch_sub(&fw->room->learning.in_flight, 1);
    check(before > 0);
    if (has_failed) {
        uint64_t value = name_of(origin_hash(origin)) | (now_ms(fw) & TIME_MASK);
        atomic_store_explicit(origin_slot(fw, origin), value, memory_order_relaxed);
    }
}
