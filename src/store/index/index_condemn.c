// SPDX-License-Identifier: Apache-2.0
// Marks bad runs in their segments (segment_list.c) before the index forgets them. Otherwise a
// rebuild would find them again, and a revalidation would confirm only their version, not their
// bytes. Runs on the index writer.
//
// A condemned key has a row in `format` (state_condemned.c), which says that its runs below a
// generation are bad. The row is durable before the batch is committed. If `format` cannot be
// written, this is counted and the commit goes ahead. The key's known runs are marked as well:
// every run in the index, every put that comes earlier in the batch, and the run whose bytes were
// found to be wrong. The marks are synced before the commit. A segment in which a run cannot be
// marked is abandoned.
//
// A run that fails its checksum is marked, too, when it is removed from the index. This mark needs
// no sync, because a run that is found again fails its checksum again.
#include "store/index/index_condemn.h"

#include <unistd.h>

#include "base/log.h"
#include "stats/stats.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_list.h"
#include "store/segment/segment_log.h"

#define SYNC_TOGETHER 64u

struct condemning {
    struct index *index;
    struct segment *marked[SYNC_TOGETHER]; // pinned segments whose marks are not synced yet
    unsigned marked_count;
};

static void condemning_sync(struct condemning *c)
{
    check(c->marked_count <= SYNC_TOGETHER);
    for (unsigned i = 0; i < c->marked_count; i++) {
        int fd;
        bool synced = false;
        if (segment_borrow_wait(c->marked[i], &fd) == ERR_OK) {
            synced = store_fault_strike(STORE_FAULT_SYNC) == 0 && fdatasync(fd) == 0;
            segment_return(c->marked[i]);
        }
        if (!synced) {
            segment_log_abandon(c->index->log, c->marked[i]);
        }
        segment_unpin(c->marked[i]);
    }
    c->marked_count = 0;
}

static void condemning_note(struct condemning *c, struct segment *segment)
{
    for (unsigned i = 0; i < c->marked_count; i++) {
        if (c->marked[i] == segment) {
            return;
        }
    }
    if (c->marked_count == SYNC_TOGETHER) {
        condemning_sync(c);
    }
    check(c->marked_count < ARRAY_LEN(c->marked));
    segment_pin_again(segment);
    c->marked[c->marked_count++] = segment;
}

static void condemn_place(struct condemning *c, const struct store_place *place)
{
    check(place->segment_number != 0);
    struct segment *segment = segment_log_entry(c->index->log, place->segment_number);
    if (!segment_pin(segment, place->segment_number)) {
        return; // no mark is needed, because the segment is being evicted
    }
    // The last unit before this run may share a page with the run's header. Marking the run may
    // read that page from the device, and then the unit's bytes in it are not verified.
    if (place->first_unit > 0) {
        segment_set_verified(segment, place->first_unit - 1, 1, false);
    }
    int fd;
    enum err err = segment_borrow_wait(segment, &fd);
    if (err == ERR_OK) {
        err = store_fault_strike(STORE_FAULT_MARK) != 0 ? ERR_IO
                                                        : segment_list_mark_bad(segment, fd, place);
        segment_return(segment);
    }
    if (err == ERR_OK) {
        condemning_note(c, segment);
    } else {
        segment_log_abandon(c->index->log, segment);
    }
    segment_unpin(segment);
}

// Marks all runs of the key that the index holds.
static void condemn_known(struct condemning *c, MDB_txn *txn, struct index_env *env,
                          struct hash128 hash)
{
    struct index *index = c->index;
    char key_bytes[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    struct index_record record;
    MDB_cursor *cursor = NULL;
    if (!index_proof_object(index, env, txn, hash) ||
        mdb_get(txn, env->objects, &key, &value) != 0 ||
        !index_object_decode(hash, (struct span){value.mv_data, value.mv_size}, &record)) {
        return;
    }
    if ((record.flags & INDEX_WHOLE) != 0) {
        struct store_place place =
            index_place_to_store(&record.place, record.generation, 0, record.block_size_bytes);
        place.hash = hash;
        condemn_place(c, &place);
        return;
    }
    char place_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(record.generation, 0, place_bytes);
    if (!index_proof_rows(index, env, txn, place_bytes, UINT32_MAX) ||
        mdb_cursor_open(txn, env->places, &cursor) != 0) {
        return;
    }
    key = (MDB_val){sizeof(place_bytes), place_bytes};
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    // The loop ends at the first row of another generation.
    while (rc == 0 && key.mv_size == INDEX_PLACE_KEY_LEN) {
        uint64_t generation, first_block;
        struct hash128 owner;
        struct index_place found;
        index_place_key_parse(key.mv_data, &generation, &first_block);
        if (generation != record.generation) {
            break;
        }
        if (index_place_decode(generation, first_block, (struct span){value.mv_data, value.mv_size},
                               &owner, &found)) {
            struct store_place place =
                index_place_to_store(&found, generation, first_block, record.block_size_bytes);
            place.hash = owner;
            condemn_place(c, &place);
        }
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
}

static void condemn_key(struct condemning *c, const struct index_change *batch,
                        const struct index_change *change)
{
    check(change->kind == INDEX_CONDEMN && change->answer == NULL);
    for (const struct index_change *put = batch; put != change; put = put->next) {
        if (put->kind == INDEX_PUT && hash128_equal(put->hash, change->hash)) {
            condemn_place(c, &put->place);
        }
    }
    struct index_env *env = atomic_load(&c->index->current);
    MDB_txn *txn = NULL;
    if (env != NULL && mdb_txn_begin(env->env, NULL, MDB_RDONLY, &txn) == 0) {
        condemn_known(c, txn, env, change->hash);
        mdb_txn_abort(txn);
    }
    if (change->place.header_len > 0) {
        condemn_place(c, &change->place);
    }
}

// Makes the rows of condemned keys durable. This comes before the marks, because a row covers more
// runs. A failure does not stop the batch. Returns false if the batch condemns no key.
static bool condemn_lines(struct index *index, const struct index_change *batch)
{
    bool any = false;
    for (const struct index_change *change = batch; change != NULL; change = change->next) {
        any = any || change->kind == INDEX_CONDEMN;
    }
    enum err err = any ? index->host.condemned_save(index->host.ctx) : ERR_OK;
    if (err != ERR_OK) {
        stats_add(COUNTER_condemned_unwritten, 1);
        log_warn_condition("condemned_not_noted", "err=%s dir=%s", error_name(err),
                           log_quote(span_from_cstr(index->disk->dir.path)));
    }
    return any;
}

void index_condemn_batch(struct index *index, const struct index_change *batch)
{
    struct condemning c = {.index = index};
    bool sync = condemn_lines(index, batch);
    for (const struct index_change *change = batch; change != NULL; change = change->next) {
        if (change->kind == INDEX_CONDEMN) {
            condemn_key(&c, batch, change);
        } else if (change->is_bad) {
            check(change->kind == INDEX_DELETE_AT);
            condemn_place(&c, &change->place);
        }
    }
    if (sync) {
        condemning_sync(&c);
    }
    for (unsigned i = 0; i < c.marked_count; i++) {
        segment_unpin(c.marked[i]);
    }
}
