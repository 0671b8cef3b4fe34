// SPDX-License-Identifier: Apache-2.0
// Creates and frees the room, with one context per worker.
#include "fill/fill_private.h"
#include "fill/home_private.h"
#include "fill/message.h"

#include <stdlib.h>

struct fill_room *fill_room_new(const struct fill_options *options)
{
    struct fill_room *room = calloc(1, sizeof(*room));
    check(room != NULL);
    room->options = *options;
    room->deliver = message_dispatch;
    if (room->options.stripe_bytes == 0) {
        room->options.stripe_bytes = FILL_STRIPE_BYTES;
    }
    room->worker_count = loop_worker_count(options->loop);
    check(room->worker_count > 0 && room->worker_count <= FILL_WORKERS_MAX);
    room->workers = calloc(room->worker_count, sizeof(*room->workers));
    check(room->workers != NULL);
    room->here = calloc(FILL_HERE_SLOTS, sizeof(*room->here));
    room->ahead = calloc(FILL_AHEAD_MARKS, sizeof(*room->ahead));
    room->kinds = calloc(FILL_KINDS, sizeof(*room->kinds));
    // The kernel gives memory to a page of this table only when an object in it is listed.
    room->listed = calloc(FILL_LISTED, sizeof(*room->listed));
    room->uncacheable = calloc(FILL_UNCACHEABLE, sizeof(*room->uncacheable));
    room->run_sums = calloc(FILL_RUN_SUMS, sizeof(*room->run_sums));
    check(room->here != NULL && room->ahead != NULL && room->kinds != NULL &&
          room->listed != NULL && room->uncacheable != NULL && room->run_sums != NULL);
    open_keys_init(room);
    for (unsigned i = 0; i < room->worker_count; i++) {
        struct fill_worker *fw = &room->workers[i];
        fw->room = room;
        fw->store = options->store;
        fw->worker = loop_worker(options->loop, i);
        fw->index = i;
        fill_map_init(&fw->fills);
        fill_map_init(&fw->homes);
        fill_map_init(&fw->floors);
        fill_map_init(&fw->kept.map);
        list_init(&fw->kept.by_age);
        worker_slot_set(fw->worker, WORKER_SLOT_FILL, fw);
    }
    return room;
}

void fill_room_free(struct fill_room *room)
{
    if (room == NULL) {
        return;
    }
    for (unsigned i = 0; i < room->worker_count; i++) {
        struct fill_worker *fw = &room->workers[i];
        fill_floor_free_all(fw);
        home_free_all(fw);
        checksums_objects_free(fw);
        home_kept_free_all(fw);
    }
    open_keys_done(room);
    free(room->here);
    free(room->ahead);
    free(room->kinds);
    free(room->listed);
    free(room->uncacheable);
    free(room->run_sums);
    free(room->workers);
    free(room);
}
