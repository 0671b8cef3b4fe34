// SPDX-License-Identifier: Apache-2.0
// Keeps the floors of keys on one worker. Records of a generation below the floor do not count. A
// floor stays from the key's invalidation until the home lifts it (rules 5, 25, 26). Runs on that
// worker.
#include "fill/fill_private.h"

#include <stdlib.h>

struct key_floor {
    struct list_node map_node;
    struct hash128 hash;
    uint64_t generation;
};

static struct key_floor *floor_find(struct fill_worker *fw, struct hash128 hash)
{
    list_for_each(node, fill_map_bucket(&fw->floors, hash))
    {
        struct key_floor *floor = container_of(node, struct key_floor, map_node);
        if (hash128_equal(floor->hash, hash)) {
            return floor;
        }
    }
    return NULL;
}

uint64_t fill_floor(struct fill_worker *fw, struct hash128 hash)
{
    if (fw->floors.count == 0) {
        return 0;
    }
    struct key_floor *floor = floor_find(fw, hash);
    return floor != NULL ? floor->generation : 0;
}

void fill_floor_raise(struct fill_worker *fw, struct hash128 hash, uint64_t generation)
{
    struct key_floor *floor = floor_find(fw, hash);
    if (floor == NULL) {
        floor = calloc(1, sizeof(*floor));
        check(floor != NULL);
        list_node_init(&floor->map_node);
        floor->hash = hash;
        list_push_back(fill_map_bucket(&fw->floors, hash), &floor->map_node);
        fw->floors.count++;
    }
    check(floor->generation < generation); // rule 3: generations only rise
    floor->generation = generation;
}

void fill_floor_lift(struct fill_worker *fw, struct hash128 hash, uint64_t generation)
{
    struct key_floor *floor = floor_find(fw, hash);
    check(floor == NULL || floor->generation >= generation); // rule 26: no later floor is lifted
    if (floor != NULL && floor->generation == generation) {
        check(fw->floors.count > 0);
        list_remove(&floor->map_node);
        fw->floors.count--;
        free(floor);
    }
}

void fill_floor_free_all(struct fill_worker *fw)
{
    for (unsigned i = 0; i < FILL_MAP_BUCKETS; i++) {
        list_for_each(node, &fw->floors.buckets[i])
        {
            list_remove(node);
            free(container_of(node, struct key_floor, map_node));
        }
    }
}
