// SPDX-License-Identifier: Apache-2.0
// Proves: a look-up misses no renewal that the index writer commits during the look-up.
#include <dlfcn.h>
#include <lmdb.h>
#include <string.h>

#include "base/clock.h"
#include "store/store_fixture.h"
#include "waiting.h"

// This thread's next mdb_get() waits until this index has written all its renewals.
static _Thread_local struct index *awaited;

// Takes the place of LMDB's function, also in the store.
int mdb_get(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)
{
    int (*real)(MDB_txn *, MDB_dbi, MDB_val *, MDB_val *);
    void *found = dlsym(RTLD_NEXT, "mdb_get");
    memcpy(&real, &found, sizeof(real));
    int rc = real(txn, dbi, key, data);
    if (awaited != NULL) {
        wait_for(atomic_load(&awaited->renewal_count) == 0);
        awaited = NULL;
    }
    return rc;
}

struct look {
    struct box *box;
    const struct object *object;
    struct store_view view;
};

// Renews the object and looks it up. The writer commits the renewal when the look-up has LMDB's
// record from before.
static void look_while_a_renewal_is_written(struct worker *w, void *ctx)
{
    struct look *look = ctx;
    struct store *store = look->box->store;
    const struct object *object = look->object;
    struct store_renewal renewal = {.hash = box_hash(look->box, object->key),
                                    .generation = object->generation};
    store_renew(w, store, &renewal, 1, worker_now_us(w));
    awaited = &store->index;
    store_lookup(w, store, renewal.hash, 0, object->size, 0, &look->view);
    cr_assert(awaited == NULL);
    store_view_done(&look->view);
}

Test(index_lookup, a_renewal_counts_while_the_index_writer_commits_it)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    struct object object = {"k", "\"e\"", 1000, BLOCK, store_generation_next(box.store)};
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert(index_writer_flush(&box.store->writer) == ERR_OK);
    clock_test_advance_us(3600ull * 1000000);
    static struct look look;
    look = (struct look){.box = &box, .object = &object};
    box_on_worker(&box, 0, look_while_a_renewal_is_written, &look);
    cr_assert(look.view.found && look.view.age_ms < 60000);
    box_close(&box);
    box_remove(&box);
}
