// SPDX-License-Identifier: Apache-2.0
// Remembers versions whose headers changed while their ETag stayed (a copy onto itself, an upload
// of the same bytes). Nothing older than the new headers is published or given to a reader (rules
// 14, 16 and 31 of README.md). The change raises the floor above all runs that are stored or in
// flight. But a reader in mid-body continues with its version, because the bytes are the same, and
// begins runs that carry the old headers. This table identifies those runs.
//
// The table outlives the home's entry, like the one in home_given.c. Keys may share a slot. When
// another key takes the slot, only the time of the earlier key's change is kept. A run may then
// stay unstored without need, but a run with old headers is never stored.
#include "fill/home_private.h"

static struct redescribed_slot *redescribed_slot(struct home_key *h)
{
    return &h->fw->redescribed[h->key->hash.lo / FILL_MAP_BUCKETS % FILL_REDESCRIBED];
}

struct home_redescribed home_redescribed(struct home_key *h)
{
    const struct redescribed_slot *slot = redescribed_slot(h);
    return hash128_equal(slot->hash, h->key->hash)
               ? slot->last
               : (struct home_redescribed){.at_us = slot->any_us};
}

void home_redescribe(struct home_key *h, const struct store_object *object)
{
    check(object == NULL || object->etag.len > 0);
    struct redescribed_slot *slot = redescribed_slot(h);
    if (!hash128_equal(slot->hash, h->key->hash)) {
        slot->any_us = max_u64(slot->any_us, slot->last.at_us);
        slot->hash = h->key->hash;
    }
    slot->last = (struct home_redescribed){
        .at_us = worker_now_us(h->fw->worker),
        .headers = object != NULL ? fill_version_headers_hash(object) : 0};
    stats_add(COUNTER_redescribed, 1);
}
