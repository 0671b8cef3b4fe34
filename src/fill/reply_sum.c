// SPDX-License-Identifier: Apache-2.0
// Verifies replies that are made of several runs. The last bytes of such a reply are sent only if
// all of its bytes match the origin's checksum. The home also verifies the object (whole_sum.c),
// but only when the last run is written, and a reply does not wait for the disk.
//
// A run's owner notes the run's sum when its last byte has come, before any reader gets that byte.
// So a reply that has all bytes of a run finds its sum here, on any worker, without a message. CRCs
// only. The slots are few, in sets of FILL_RUN_SUM_WAYS, and a later sum may replace an older one.
// A reply that misses a sum is not verified, which is counted; the home still verifies the stored
// runs.
//
// A slot is written without a lock. Its `proof` does not match while another word is being written.
//
// A run may be fetched again, with right bytes, while a reply still has the wrong bytes of the
// earlier fetch. So a reply is cut, whatever the sums here say, if it began before one of these
// verdicts: its object was judged wrong, or two runs of the same bytes had different sums. The
// verdicts are counted by a few bits of the object's hash, so at worst replies of another object
// are cut too. A sum from before the last verdict still counts until its run has come again. Its
// bytes may be stored, and are handed out until the home has verified them too.
#include "base/log.h"
#include "fill/fill_private.h"

#define NOTHING UINT64_MAX // an end that no reply reaches
static_assert(FILL_RUN_SUMS % FILL_RUN_SUM_WAYS == 0, "the sets fill the table");

struct run_sum {
    uint64_t name, end_byte, crc, verdicts;
};

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

void reply_sum_note(const struct fill *fill)
{
    struct span value;
    enum s3_checksum kind = whole_sum_wanted(fill->object, &value);
    if (fill->checksum == NULL || !s3_checksum_combines(kind)) {
        return;
    }
    struct run_sum sum = {.name = name_of(fill->object, kind, fill->first_byte),
                          .end_byte = fill->end_byte,
                          .crc = s3_checksum_crc(fill->checksum),
                          .verdicts = atomic_load(verdicts_on(fill->fw, fill->object->hash))};
    struct run_sum former;
    if (slot_read(fill->fw->room, sum.name, &former) && former.verdicts == sum.verdicts &&
        former.end_byte == sum.end_byte && former.crc != sum.crc) {
        reply_sum_condemn(fill->fw, fill->object);
        sum.end_byte = NOTHING; // nobody knows which of the two is right
    }
    slot_write(fill->fw->room, &sum);
}

void reply_sum_condemn(struct fill_worker *fw, const struct store_object *object)
{
    atomic_fetch_add(verdicts_on(fw, object->hash), 1);
}

void reply_sum_begin(struct fill_worker *fw, struct hash128 key_hash, struct reply_sum *total)
{
    total->verdicts = atomic_load(verdicts_on(fw, key_hash));
}

void reply_sum_done(struct reply_sum *total)
{
    s3_checksum_free(total->sum);
    *total = (struct reply_sum){0};
}

// Adds the next run. Returns false if its sum is not here, or if the reply does not have all of the
// run: the sum may then be that of an earlier run.
static bool total_grow(struct fill_worker *fw, const struct store_object *object,
                       struct reply_sum *total, uint64_t end_byte)
{
    struct run_sum sum;
    if (!slot_read(fw->room, name_of(object, total->kind, total->end_byte), &sum)) {
        return false;
    }
    if (sum.end_byte > end_byte) {
        return false;
    }
    check(sum.end_byte > total->end_byte); // the reply advances
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

static bool total_is_right(struct reply_sum *total, const struct store_object *object)
{
    struct span value = {NULL, 0};
    char computed[64];
    (void)whole_sum_wanted(object, &value);
    s3_checksum_final(total->sum, computed);
    return span_equal_cstr(value, computed);
}

bool reply_sum_is_wrong(struct fill_worker *fw, const struct store_object *object,
                        struct reply_sum *total, uint64_t end_byte)
{
    if (!total->has_kind) {
        struct span value;
        total->has_kind = true;
        total->kind = whole_sum_wanted(object, &value);
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
    bool is_wrong = is_known && !was_wrong && !total_is_right(total, object);
    if (is_wrong) {
        reply_sum_condemn(fw, object);
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
