// SPDX-License-Identifier: Apache-2.0
// What a write that passes through makes untrue is removed on every worker: the writer's side of
// it, and every worker's answer to an invalidation. The home (home.c) decides; rules 24-28 of its
// head comment.

#include "proxy/proxy_private.h"

#include <stdlib.h>

static struct bar *bar_find(struct proxy_worker *pw, struct hash128 hash)
{
    list_for_each(node, key_map_bucket(&pw->bars, hash))
    {
        struct bar *bar = container_of(node, struct bar, map_node);
        if (hash128_equal(bar->hash, hash)) {
            return bar;
        }
    }
    return NULL;
}

uint64_t bar_floor(struct proxy_worker *pw, struct hash128 hash)
{
    if (pw->bars.count == 0) {
        return 0;
    }
    struct bar *bar = bar_find(pw, hash);
    return bar != NULL ? bar->floor : 0;
}

// Rule 25: raise the bar, doom every run of the key in flight here, forget what is remembered of
// it, acknowledge.
void invalidate_on_inval(struct proxy_worker *pw, struct wire *wire)
{
    struct bar *bar = bar_find(pw, wire->key->hash);
    if (bar == NULL) {
        bar = calloc(1, sizeof(*bar));
        check(bar != NULL);
        list_node_init(&bar->map_node);
        bar->hash = wire->key->hash;
        list_push_back(key_map_bucket(&pw->bars, bar->hash), &bar->map_node);
        pw->bars.count++;
    }
    check(bar->floor < wire->floor);
    bar->floor = wire->floor;
    fill_doom(pw, wire->key->hash);
    list_cache_drop_key(pw, wire->key);
    struct wire *ack = wire_new(pw, WIRE_ACK, wire->key);
    ack->floor = wire->floor;
    wire_send(wire->from, ack);
}

// Rule 26: a worker lifts only a bar equal to that floor.
void invalidate_on_unbar(struct proxy_worker *pw, struct wire *wire)
{
    struct bar *bar = bar_find(pw, wire->key->hash);
    if (bar != NULL && bar->floor == wire->floor) {
        list_remove(&bar->map_node);
        pw->bars.count--;
        free(bar);
    }
}

void invalidate_begin(struct proxy_worker *pw, struct key_write *kw)
{
    list_node_init(&kw->node);
    kw->at = pw;
    struct wire *wire = wire_new(pw, WIRE_WBEGIN, kw->key);
    wire->write = kw;
    wire_send(object_key_home(pw, kw->key), wire);
}

void invalidate_end(struct proxy_worker *pw, struct key_write *kw)
{
    struct wire *wire = wire_new(pw, WIRE_WEND, kw->key);
    wire->write = kw;
    wire_send(object_key_home(pw, kw->key), wire);
}

void invalidate_on_wready(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    wire->write->on_ready(wire->write);
}

void invalidate_on_wdone(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    wire->write->on_ended(wire->write);
}
