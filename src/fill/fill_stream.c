// SPDX-License-Identifier: Apache-2.0
// Streamed runs: their owner knows, before it asks the origin, that the store will not take them.
//
// A miss that is not stored must cost the origin no more than without a cache. So a streamed run
// has the bytes that its reader wants, not whole blocks, and its length is limited by the stripe
// only. Readers that come while the run goes join it as they join any run that is not stored (rule
// 23).
//
// The request has a range, also for a whole object. The total in Content-Range contradicts an
// origin that names a wrong length, which a client could not tell from the right one. Only if the
// reader wants checksums of a whole object, the request has no range, so that one answer brings
// bytes and checksums. Then these contradict a wrong length.
//
// The store refuses a run for one of these reasons:
//
//   too-large      the object's size is known and exceeds max_object_size
//   disk-full ...  the store takes no run at all, and not only for a moment
//   not-admitted   the policy would refuse the run. That is a guess. So the policy learns of the
//                  bytes that came, as if each part of them had been offered to the store.
//   disk-slow      the disk has the bytes, and the origin is asked because it is slow. One late
//                  read makes no disk slow. Its run has at most the length of a stored run, because
//                  the disk may well bring the next bytes in time.
//
// If the index has a usable record of the object, other parts of it may be cached. Then the run
// ends where a stored run would end.
//
// Runs on the stripe's owner.
#include "fill/fill_private.h"

// Returns true if the reader wants only a part of the blocks that it asks for. The policy admits
// every such run.
static bool wants_part(const struct fill_ask *ask)
{
    uint64_t size = ask->block_size_bytes, first = ask->block * size;
    uint64_t end = first + ask->block_count * size;
    end = ask->object != NULL ? min_u64(end, ask->object->size_bytes) : end;
    return ask->suffix_bytes > 0 || ask->first_byte > first ||
           (ask->end_byte != 0 && ask->end_byte < end);
}

enum refusal fill_stream_reason(struct fill_worker *fw, const struct fill_ask *ask)
{
    const struct object_limits *limits = &ask->key->limits;
    if (ask->purpose != FILL_TO_SEND) {
        return REFUSAL_none; // it wants no bytes
    }
    if (ask->index == FILL_INDEX_SLOW) {
        return store_is_slow(fw->store) ? REFUSAL_disk_slow : REFUSAL_none;
    }
    if (ask->object != NULL && limits->max_object_size_bytes != 0 &&
        ask->object->size_bytes > limits->max_object_size_bytes) {
        return REFUSAL_too_large;
    }
    enum refusal why = store_refuses_all(fw->store);
    if (why != REFUSAL_none || wants_part(ask) ||
        store_would_take(fw->store, ask->key->hash, ask->block, limits->group)) {
        return why;
    }
    // On a full disk a run of any worth would be refused.
    return store_refuses(fw->store) == REFUSAL_disk_full ? REFUSAL_disk_full : REFUSAL_not_admitted;
}

// Returns the end of the bytes that the run may bring: the end of what the reader wants, of the
// stripe, or the start of another run in flight.
static uint64_t stream_limit(const struct fill *fill, const struct fill_ask *ask)
{
    uint64_t first = ask->first_byte, stripe = fill->fw->room->options.stripe_bytes;
    uint64_t limit = (first / stripe + 1) * stripe;
    limit = ask->end_byte != 0 ? min_u64(limit, ask->end_byte) : limit;
    limit = ask->object != NULL ? min_u64(limit, ask->object->size_bytes) : limit;
    list_for_each(node, fill_map_bucket(&fill->fw->fills, fill->key->hash))
    {
        struct fill *other = container_of(node, struct fill, map_node);
        if (hash128_equal(other->key->hash, fill->key->hash) && !other->doomed &&
            other->first_byte > first) {
            limit = min_u64(limit, other->first_byte);
        }
    }
    return max_u64(limit, first + 1); // an empty object is requested without a range
}

void fill_stream_begin(struct fill *fill, const struct fill_ask *ask, enum refusal why,
                       bool has_record)
{
    check(fill->phase == FILL_ASKED && !fill_is_fetching(fill) && why != REFUSAL_none);
    uint64_t limit = stream_limit(fill, ask);
    fill->limit_byte = has_record ? min_u64(limit, fill->limit_byte) : limit;
    fill->refused = why;
    fill->unstored_why = refusal_text(why)->word;
    fill->first_byte = fill->end_byte = ask->first_byte;
    fill->received = fill->retained_from = fill->noted_byte = ask->first_byte;
    check(fill->limit_byte > fill->first_byte);
}

void fill_stream_note(struct fill *fill)
{
    uint64_t size = fill->block_size_bytes;
    uint64_t run = max_u64(store_run_bytes_max(fill->fw->store) / size, 1) * size;
    while (fill->refused == REFUSAL_not_admitted && fill->noted_byte < fill->received) {
        uint64_t end = min_u64(fill->noted_byte + run, fill->end_byte);
        store_note_refused(fill->fw->worker, fill->fw->store, fill->key->hash,
                           fill->noted_byte / size, end - fill->noted_byte,
                           fill->key->limits.group);
        fill->noted_byte = end;
    }
    // A run that is stored would leave the table now. From then on the home may decide again.
    if (fill_is_streamed(fill) &&
        fill->received - fill->first_byte >= store_run_bytes_long(fill->fw->store)) {
        fill_send_first_end(fill);
    }
}
