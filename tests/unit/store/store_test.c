// SPDX-License-Identifier: Apache-2.0
// The store through its door, on both I/O engines.
#include "store_fixture.h"
#include "test.h"

#include <stdio.h>

static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};

#define EACH_ENGINE(box, size)                                                                     \
    for (unsigned engine_index = 0; engine_index < ARRAY_LEN(engines); engine_index++)             \
        for (bool once = (box_init(box, engines[engine_index], size), true); once;                 \
             once = (box_remove(box), false))

Test(store, what_was_written_is_found_and_read_also_after_a_restart)
{
    // Objects of every shape: empty, packed, one write, long, several runs.
    static const uint64_t sizes[] = {0,      1,      500,     10000,       16384,  16385,
                                     32767,  32768,  65536,   65537,       112000, 262144,
                                     262145, 700001, 4 * MIB, 9 * MIB + 17};
    struct box box;
    EACH_ENGINE(&box, 256 * MIB)
    {
        if (!box_open(&box)) {
            continue;
        }
        struct object objects[ARRAY_LEN(sizes)];
        char keys[ARRAY_LEN(sizes)][32];
        for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "key %u", i);
            objects[i] = (struct object){keys[i], "\"tag\"", sizes[i], i % 2 == 0 ? BLOCK : 1 * MIB,
                                         store_generation_next(box.store)};
            cr_assert(box_put(&box, &objects[i]) == ERR_OK);
        }
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
                for (unsigned w = 0; w < 2; w++) {
                    cr_assert(box_read(&box, w, &objects[i]) == max_u64(1, sizes[i]),
                              "size %llu round %u", (unsigned long long)sizes[i], round);
                }
            }
            if (round == 0) {
                box_close(&box);
                cr_assert(box_open(&box));
            }
        }
        struct store_summary summary;
        store_summarize(box.store, &summary);
        cr_assert(summary.objects == ARRAY_LEN(sizes));
        cr_assert(!summary.degraded && !summary.rebuilding);
        box_close(&box);
    }
}
