// SPDX-License-Identifier: Apache-2.0
// Counts the memory of all warm jobs together. It is charged to the budget, and limited to a share
// of it. It consists of the objects in progress, and of the names that jobs have received or listed
// and not begun. Any thread adds names; the job's worker releases them. Only one thread at a time
// asks whether more names fit.
//
// A job may hold as many bytes of names as are free when it asks. So a single job gets half of the
// room, each further job gets some, and their shares approach each other. A caller that finds no
// room asks again later, because jobs release names as they proceed. Each job may always have
// WARM_OBJECTS_LEAST objects and one page of its listing.
#include "proxy/ops/warm_private.h"

#include <stdlib.h>

#define ROOM_SHARE 16u // fraction (1/n) of limits.max_buffer
#define ROOM_LEAST (4u << 20)
#define ALLOCATION_BYTES 16u // overhead of malloc() for each allocation

uint64_t proxy_warm_room_bytes(void)
{
    return max_u64(chunk_budget_max_bytes() / ROOM_SHARE, ROOM_LEAST);
}

// --- names ---------------------------------------------------------------------------------------

static uint64_t names_of(uint64_t bucket_len, uint64_t key_len)
{
    return sizeof(struct warm_item) + bucket_len + key_len + 1 + ALLOCATION_BYTES;
}

static void names_add(struct proxy_warm *job, uint64_t bytes)
{
    atomic_fetch_add(&job->names_bytes, bytes);
    atomic_fetch_add(&job->proxy->warm_room.names_bytes, bytes);
    chunk_budget_charge(BUDGET_WARM, bytes);
    stats_add(COUNTER_warm_names, bytes);
}

static void names_take(struct proxy_warm *job, uint64_t bytes)
{
    check(atomic_fetch_sub(&job->names_bytes, bytes) >= bytes);
    check(atomic_fetch_sub(&job->proxy->warm_room.names_bytes, bytes) >= bytes);
    chunk_budget_discharge(BUDGET_WARM, bytes);
    stats_sub(COUNTER_warm_names, bytes);
}

bool proxy_warm_has_room(const struct proxy *proxy, const struct proxy_warm *job,
                         const struct proxy_warm_item *items, unsigned count)
{
    uint64_t max = proxy_warm_room_bytes();
    uint64_t used = atomic_load(&proxy->warm_room.names_bytes);
    uint64_t wanted = job != NULL ? atomic_load(&job->names_bytes) : 0;
    for (unsigned i = 0; i < count; i++) {
        wanted += names_of(items[i].bucket.len, items[i].key.len);
    }
    bool fits = wanted == 0 || (used < max && wanted <= max - used);
    stats_add(COUNTER_warm_names_refused, fits ? 0 : 1);
    return fits;
}

struct warm_item *warm_room_item_new(struct proxy_warm *job, const struct proxy_warm_item *from)
{
    check(from->bucket.len > 0 && from->first_byte <= from->end_byte);
    struct warm_item *item = calloc(1, sizeof(*item) + from->bucket.len + from->key.len + 1);
    check(item != NULL);
    names_add(job, names_of(from->bucket.len, from->key.len));
    list_node_init(&item->node);
    item->refs = 1;
    char *at = item->names;
    item->bucket = ops_name_copy(&at, from->bucket);
    item->key = ops_name_copy(&at, from->key);
    item->is_prefix = from->is_prefix;
    item->first_byte = from->first_byte;
    item->end_byte = from->end_byte;
    return item;
}

void warm_room_item_unref(struct proxy_warm *job, struct warm_item *item)
{
    check(item == NULL || item->refs > 0);
    if (item != NULL && --item->refs == 0) {
        names_take(job, names_of(item->bucket.len, item->key.len));
        free(item);
    }
}

// --- pages ---------------------------------------------------------------------------------------

void warm_room_page_come(struct warm_page *page)
{
    check(page->phase == WARM_PAGE_READY && page->call.count <= PROXY_LIST_MAX);
    page->bytes = PROXY_LIST_MAX * sizeof(struct list_entry);
    for (unsigned i = 0; i < page->call.count; i++) {
        page->bytes += page->call.entries[i].key.len;
    }
    names_add(page->job, page->bytes);
}

void warm_room_page_gone(struct warm_page *page)
{
    check(page->phase == WARM_PAGE_READY);
    names_take(page->job, page->bytes);
}

bool warm_room_lists_ahead(const struct proxy_warm *job)
{
    return atomic_load(&job->proxy->warm_room.names_bytes) < proxy_warm_room_bytes();
}

// --- objects -------------------------------------------------------------------------------------

static uint64_t object_bytes(const struct warm_object *o)
{
    const struct object_key *key = o->key;
    return sizeof(*o) + sizeof(*key) + key->bucket.len + key->key.len + 2 * ALLOCATION_BYTES;
}

bool warm_room_takes_object(const struct proxy_warm *job)
{
    return job->object_count < 2 * job->options.concurrency + WARM_OBJECTS_LEAST &&
           (job->object_count < WARM_OBJECTS_LEAST ||
            atomic_load(&job->proxy->warm_room.objects_bytes) < proxy_warm_room_bytes());
}

void warm_room_object_come(struct warm_object *o)
{
    check(o->held_bytes == 0 && list_node_linked(&o->node));
    o->held_bytes = object_bytes(o);
    o->job->object_count++;
    atomic_fetch_add(&o->job->proxy->warm_room.objects_bytes, o->held_bytes);
    chunk_budget_charge(BUDGET_WARM, o->held_bytes);
    stats_add(COUNTER_warm_objects_held, o->held_bytes);
}

void warm_room_object_gone(struct warm_object *o)
{
    struct proxy *proxy = o->job->proxy;
    check(o->job->object_count > 0 && o->held_bytes > 0);
    o->job->object_count--;
    check(atomic_fetch_sub(&proxy->warm_room.objects_bytes, o->held_bytes) >= o->held_bytes);
    chunk_budget_discharge(BUDGET_WARM, o->held_bytes);
    stats_sub(COUNTER_warm_objects_held, o->held_bytes);
}
