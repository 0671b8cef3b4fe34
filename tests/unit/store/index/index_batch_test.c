// SPDX-License-Identifier: Apache-2.0
// Proves: the changes of a batch are sorted by key. Those of one key keep the order in which they
// came.
#include "store/index/index_batch.h"

#include <stdlib.h>

#include "test.h"

Test(index_batch, keys_are_sorted_and_changes_of_one_key_stay_in_order)
{
    enum { OWED = 20, COUNT = 500 };
    static struct index_change changes[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        changes[i].hash = (struct hash128){i * 7919 % 13, i * 104729 % 5};
        changes[i].generation = i;
        bool last = i + 1 == OWED || i + 1 == COUNT;
        changes[i].next = last ? NULL : &changes[i + 1];
    }
    struct index_batch batch;
    index_batch_init(&batch, &changes[0], &changes[OWED], COUNT);
    cr_assert_eq(batch.count, (unsigned)COUNT);
    for (unsigned i = 1; i < COUNT; i++) {
        const struct index_change *a = batch.changes[i - 1];
        const struct index_change *b = batch.changes[i];
        cr_assert(a->hash.hi < b->hash.hi ||
                  (a->hash.hi == b->hash.hi &&
                   (a->hash.lo < b->hash.lo ||
                    (a->hash.lo == b->hash.lo && a->generation < b->generation))));
    }
    cr_assert(changes[OWED - 1].next == NULL && changes[0].next == &changes[1], "lists stay");
    index_batch_done(&batch);
    index_batch_init(&batch, NULL, NULL, 0);
    index_batch_done(&batch);
}
