// SPDX-License-Identifier: Apache-2.0
// Applies changes to the three tables. Runs on the index writer, inside its transaction.
//
// Each commit keeps these invariants. An object with INDEX_WHOLE has no entry in "places". An
// object without INDEX_WHOLE has at least one entry there, and all its entries have its generation.
// So a record exists as long as one of its runs, and a newer generation leaves no entry of an older
// one. Damaged records count as absent.
//
// Room. LMDB extends its file when it runs out of pages. So before a transaction the file grows by
// the most pages that the transaction may touch. The estimate is one path of pages for each key,
// but at most all pages of the trees plus those that splits can add. It must not be too high,
// because segments cannot use that room. A page takes 34 records (21 with the longest checksums, 4
// with the longest headers) or 47 places. After a split, a page takes half as many more before it
// splits again. Removals split no page. A record that gains checksums counts as a put.
//
// A transaction writes each touched page to another page of the file, and the next two transactions
// cannot reuse the old page. LMDB's file never shrinks. So a transaction takes only as many changes
// as touch 1/TXN_PARTS of cache.size, or fewer if there is less room. This keeps the index of tiny
// objects near the size of its records, however many changes are made at once.
//
// One change may remove all runs of a large object, which touches pages, too. The change removes
// only as many runs as the transaction has room for, and continues in the next transaction
// (ERR_AGAIN). Until then the object's record keeps the remaining runs.
#include "store/index/index_apply.h"

#include <errno.h>

#include "store/index/index_writer.h"
#include "store/segment/segment_log.h"

#define PAGE_BYTES 4096u
#define PAGES_SLACK 64u
#define TXN_PARTS 32u // a transaction copies at most 1/32 of cache.size

// A low estimate of how many places of one generation share a leaf. They are neighbours in the
// tree. A leaf holds up to 47 places, and at least half as many.
#define PLACES_PER_PAGE 8u
// Each transaction may remove this many places without reserving more pages. PAGES_SLACK, which it
// always reserves, is enough for them.
#define PLACES_LEAST 128u
#define PLACES_MOST 65536u // the most places that a transaction removes, in some 50 ms
// Above PLACES_LEAST, a transaction reserves pages for this many places at a time.
#define PLACES_PER_GROWTH 64u
static_assert(PLACES_LEAST / PLACES_PER_PAGE <= PAGES_SLACK, "any transaction has these pages");
static_assert(PLACES_PER_GROWTH % PLACES_PER_PAGE == 0, "places ask for whole pages");

static bool txn_failed(struct index_txn *t, int rc)
{
    if (rc != 0 && rc != MDB_NOTFOUND && t->rc == 0) {
        t->rc = rc;
    }
    return t->rc != 0 || t->err != ERR_OK;
}

static void txn_want_pages(struct index_txn *t, uint64_t more)
{
    check(t->txn != NULL);
    t->pages += more;
    if (t->pages > t->pages_ready && t->err == ERR_OK) {
        t->err = index_grow(t->index, t->env, t->pages * PAGE_BYTES);
        t->pages_ready = atomic_load(&t->index->allocated_bytes) / PAGE_BYTES;
    }
    check(t->pages <= t->pages_ready || t->err != ERR_OK);
}

// Reserves `more` pages of the file for the transaction, and grows the file if needed. Returns
// false if cache.size has no room for them now.
static bool txn_gets_pages(struct index_txn *t, uint64_t more)
{
    if (t->pages + more > t->pages_ready &&
        !index_has_room(t->index, (t->pages + more) * PAGE_BYTES)) {
        return false;
    }
    txn_want_pages(t, more);
    if (t->err == ERR_DISK_FULL && t->index->is_short) { // a segment took the room in the meantime
        check(t->pages >= more);
        t->err = ERR_OK;
        t->pages -= more;
        return false;
    }
    return true;
}

// Returns true if the transaction may remove one more place.
static bool txn_takes_place(struct index_txn *t)
{
    check(t->places <= t->places_max);
    if (t->places == t->places_max) {
        return false;
    }
    bool grows = t->places >= PLACES_LEAST && t->places % PLACES_PER_GROWTH == 0;
    if (grows && !txn_gets_pages(t, PLACES_PER_GROWTH / PLACES_PER_PAGE)) {
        t->places_max = t->places;
        return false;
    }
    t->places++;
    return true;
}

static void txn_abort(struct index_txn *t)
{
    if (t->txn != NULL) {
        mdb_txn_abort(t->txn);
        t->txn = NULL;
    }
}

// The trees of "objects" and "places" together.
struct trees {
    uint64_t pages;
    unsigned depth; // sum of both depths; one change copies this many pages
};

static int txn_measure(const struct index_txn *t, struct trees *ret_trees)
{
    const MDB_dbi tables[] = {t->env->objects, t->env->places};
    check(t->txn != NULL && tables[0] != tables[1]);
    int rc = 0;
    *ret_trees = (struct trees){.depth = 0};
    for (size_t i = 0; i < ARRAY_LEN(tables) && rc == 0; i++) {
        MDB_stat s = {0};
        rc = mdb_stat(t->txn, tables[i], &s);
        ret_trees->pages += s.ms_branch_pages + s.ms_leaf_pages + s.ms_overflow_pages;
        ret_trees->depth += s.ms_depth;
    }
    return rc;
}

// Returns the most pages that puts can add. A put adds at most three entries.
static uint64_t split_pages(uint64_t pages, unsigned put_count)
{
    return min_u64(3ull * put_count, 2 * pages + put_count / 3);
}

static uint64_t touched_pages(const struct trees *trees, unsigned put_count, unsigned removal_count)
{
    uint64_t paths = ((uint64_t)put_count + removal_count) * (trees->depth + 4);
    return min_u64(paths, trees->pages + split_pages(trees->pages, put_count));
}

// Sets t->changes_max to the number of changes for which there is room, and reserves it. Sets
// t->err if there is no room for `least` changes.
static void txn_take_room(struct index_txn *t, const struct trees *trees, unsigned put_count,
                          unsigned removal_count, unsigned least)
{
    struct index *index = t->index;
    uint64_t touched_max = index->disk->capacity_bytes / TXN_PARTS / PAGE_BYTES;
    unsigned count = put_count + removal_count;
    check(least > 0 && count > 0);
    t->places_max =
        (unsigned)min_u64(max_u64(touched_max * PLACES_PER_PAGE, PLACES_LEAST), PLACES_MOST);
    for (;;) {
        unsigned puts = count < put_count ? count : put_count;
        uint64_t touched = touched_pages(trees, puts, count - puts);
        bool fits = touched <= touched_max &&
                    index_has_room(index, (t->pages + touched + PAGES_SLACK) * PAGE_BYTES);
        if (fits || count <= least) {
            t->changes_max = count;
            txn_want_pages(t, touched + PAGES_SLACK);
            return;
        }
        count = count / 2 > least ? count / 2 : least;
    }
}

enum err index_txn_begin(struct index_txn *t, struct index *index, unsigned put_count,
                         unsigned removal_count, unsigned least, int *ret_rc)
{
    *t = (struct index_txn){.index = index, .env = atomic_load(&index->current)};
    MDB_envinfo info;
    struct trees trees;
    int rc = t->env == NULL ? MDB_NOTFOUND : mdb_env_info(t->env->env, &info);
    rc = rc != 0 ? rc : mdb_txn_begin(t->env->env, NULL, 0, &t->txn);
    rc = rc != 0 ? rc : txn_measure(t, &trees);
    if (rc != 0) {
        *ret_rc = rc;
        txn_abort(t);
        return ERR_IO;
    }
    t->pages = info.me_last_pgno + 1;
    t->pages_ready = atomic_load(&index->allocated_bytes) / PAGE_BYTES;
    txn_take_room(t, &trees, put_count, removal_count, least);
    if (t->err != ERR_OK) {
        enum err err = t->err;
        txn_abort(t);
        *ret_rc = 0;
        return err;
    }
    check(t->changes_max > 0 && t->places_max >= PLACES_LEAST);
    return ERR_OK;
}

// --- records

static bool record_get(struct index_txn *t, struct hash128 hash, struct index_record *ret_record)
{
    char key_bytes[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    int rc = mdb_get(t->txn, t->env->objects, &key, &value);
    if (txn_failed(t, rc) || rc != 0 ||
        !index_object_decode(hash, (struct span){value.mv_data, value.mv_size}, ret_record)) {
        return false;
    }
    // Copy the description, because the next put may reuse LMDB's page.
    struct span *described = &ret_record->described;
    if (described->len > 0) {
        memcpy(t->described, described->ptr, described->len);
        described->ptr = t->described;
    }
    return true;
}

static void record_put(struct index_txn *t, struct hash128 hash, const struct index_record *record)
{
    char key_bytes[INDEX_OBJECT_KEY_LEN];
    char value_bytes[INDEX_OBJECT_MAX];
    check(record->generation != 0);
    check(((record->flags & INDEX_DESCRIBED) != 0) == (record->described.len > 0));
    index_object_key(hash, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value = {index_object_encode(hash, record, value_bytes), value_bytes};
    (void)txn_failed(t, mdb_put(t->txn, t->env->objects, &key, &value, 0)); // the error is in t->rc
}

static void record_delete(struct index_txn *t, struct hash128 hash)
{
    char key_bytes[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    (void)txn_failed(t, mdb_del(t->txn, t->env->objects, &key, NULL)); // the error is in t->rc
}

// --- places

static bool place_get(struct index_txn *t, uint64_t generation, uint64_t first_block,
                      struct hash128 hash, struct index_place *ret_place)
{
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(generation, first_block, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    struct hash128 owner;
    int rc = mdb_get(t->txn, t->env->places, &key, &value);
    return !txn_failed(t, rc) && rc == 0 &&
           index_place_decode(generation, first_block, (struct span){value.mv_data, value.mv_size},
                              &owner, ret_place) &&
           hash128_equal(owner, hash);
}

// Returns whether the place's segment still exists. If it does not, the run's bytes are gone, and
// the index will soon forget the place.
static bool place_lives(const struct index_txn *t, const struct index_place *place)
{
    struct segment *segment = segment_log_entry(t->index->log, place->number);
    bool lives = segment_pin(segment, place->number);
    if (lives) {
        segment_unpin(segment);
    }
    return lives;
}

// Reports to the policy that a run leaves the index while its segment stays. If the commit then
// fails, the policy undervalues a run that is hidden anyway.
static void place_gone(const struct index_txn *t, struct hash128 hash, uint64_t first_block,
                       const struct index_place *place)
{
    if (place_lives(t, place)) {
        t->index->host.gone(t->index->host.ctx, hash, first_block, place->number,
                            place->header_offset);
    }
}

static void place_put(struct index_txn *t, uint64_t generation, uint64_t first_block,
                      struct hash128 hash, const struct index_place *place)
{
    struct index_place before;
    check(generation != 0);
    check(place->number != 0 && place->block_count > 0);
    if (place_get(t, generation, first_block, hash, &before)) {
        t->blocks -= before.block_count;
    }
    char key_bytes[INDEX_PLACE_KEY_LEN];
    char value_bytes[INDEX_PLACE_LEN];
    index_place_key(generation, first_block, key_bytes);
    index_place_encode(generation, first_block, hash, place, value_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value = {sizeof(value_bytes), value_bytes};
    (void)txn_failed(t, mdb_put(t->txn, t->env->places, &key, &value, 0)); // the error is in t->rc
    t->blocks += place->block_count;
}

static void place_delete(struct index_txn *t, uint64_t generation, uint64_t first_block)
{
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(generation, first_block, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    (void)txn_failed(t, mdb_del(t->txn, t->env->places, &key, NULL)); // the error is in t->rc
}

// Returns true, with the first block, if the cursor is at a place of this generation.
static bool cursor_is_at(const MDB_val *key, uint64_t generation, uint64_t *ret_first_block)
{
    uint64_t at_generation;
    if (key->mv_size != INDEX_PLACE_KEY_LEN) {
        return false;
    }
    index_place_key_parse(key->mv_data, &at_generation, ret_first_block);
    return at_generation == generation;
}

// Opens a cursor at the first place of the generation at *block or later, and sets *block. Returns
// NULL if there is none or LMDB fails.
static MDB_cursor *places_open(struct index_txn *t, uint64_t generation, uint64_t *block,
                               MDB_val *ret_key, MDB_val *ret_value)
{
    MDB_cursor *cursor = NULL;
    if (txn_failed(t, mdb_cursor_open(t->txn, t->env->places, &cursor))) {
        return NULL;
    }
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(generation, *block, key_bytes);
    *ret_key = (MDB_val){sizeof(key_bytes), key_bytes};
    int rc = mdb_cursor_get(cursor, ret_key, ret_value, MDB_SET_RANGE);
    if (txn_failed(t, rc) || rc != 0 || !cursor_is_at(ret_key, generation, block)) {
        mdb_cursor_close(cursor);
        return NULL;
    }
    return cursor;
}

// Finds the first place of the generation at *block or later. Returns false if there is none.
static bool places_next(struct index_txn *t, uint64_t generation, uint64_t *block)
{
    MDB_val key, value;
    MDB_cursor *cursor = places_open(t, generation, block, &key, &value);
    if (cursor != NULL) {
        mdb_cursor_close(cursor);
    }
    return cursor != NULL;
}

// Returns true if the generation has more than `most` places.
static bool places_exceed(struct index_txn *t, uint64_t generation, uint64_t most)
{
    MDB_val key, value;
    uint64_t block = 0, count = 0;
    MDB_cursor *cursor = places_open(t, generation, &block, &key, &value);
    if (cursor == NULL) {
        return false;
    }
    int rc = 0;
    while (!txn_failed(t, rc) && rc == 0 && cursor_is_at(&key, generation, &block) &&
           ++count <= most) {
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return count > most;
}

// Removes as many places of the generation as the transaction has room for. Returns false if places
// remain.
static bool places_remove(struct index_txn *t, uint64_t generation)
{
    MDB_val key, value;
    uint64_t first_block = 0;
    MDB_cursor *cursor = places_open(t, generation, &first_block, &key, &value);
    if (cursor == NULL) {
        return true;
    }
    int rc = 0;
    bool is_left = false;
    while (!txn_failed(t, rc) && rc == 0 && cursor_is_at(&key, generation, &first_block)) {
        struct hash128 owner;
        struct index_place place;
        is_left = !txn_takes_place(t);
        if (is_left) {
            break;
        }
        if (index_place_decode(generation, first_block, (struct span){value.mv_data, value.mv_size},
                               &owner, &place)) {
            t->blocks -= place.block_count;
            place_gone(t, owner, first_block, &place);
        }
        rc = mdb_cursor_del(cursor, 0);
        // Move to the row after the deleted one.
        rc = rc != 0 ? rc : mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return !is_left;
}

// Removes the object. If the transaction has no room to remove all its places, keeps the record and
// returns false.
static bool object_remove(struct index_txn *t, struct hash128 hash,
                          const struct index_record *record)
{
    check(record->generation != 0);
    if ((record->flags & INDEX_WHOLE) != 0) {
        t->blocks -= record->place.block_count;
        place_gone(t, hash, 0, &record->place);
    } else if (!places_remove(t, record->generation)) {
        return false;
    }
    record_delete(t, hash);
    return true;
}

// --- changes

static void record_validate(const struct index *index, struct index_record *record,
                            uint64_t mono_ms, uint64_t wall_ms)
{
    check(index->opener != 0); // 0 stands for no process
    record->validated_mono_ms = mono_ms;
    record->validated_wall_ms = wall_ms;
    record->opener = index->opener;
    record->flags &= (uint16_t)((1u << INDEX_CUTS_SHIFT) - 1) & (uint16_t)~INDEX_REBUILT;
    record->flags |= (uint16_t)(index->cuts << INDEX_CUTS_SHIFT);
}

bool index_change_is_whole(const struct index_change *c)
{
    return c->place.first_block == 0 &&
           c->place.block_count == segment_run_object_blocks(c->size_bytes, c->block_size_bytes);
}

// Adds the change's place to `record`, which is of the same version, and writes the record. Returns
// ERR_AGAIN, without adding the new run, if places that it replaces remain.
static enum err object_add_place(struct index_txn *t, const struct index_change *c,
                                 struct index_record *record, bool is_new)
{
    struct index_place place = index_place_of(&c->place);
    check(!is_new || (record->generation == c->generation && record->place.number == 0));
    check(record->size_bytes == c->size_bytes && record->etag_hash == c->etag_hash);
    check(record->block_size_bytes == c->block_size_bytes);
    bool was_whole = !is_new && (record->flags & INDEX_WHOLE) != 0;
    if (index_change_is_whole(c)) {
        if (was_whole) {
            t->blocks -= record->place.block_count;
        } else if (!is_new && !places_remove(t, record->generation)) {
            // The new run replaces all places, but one transaction cannot remove them all. Write
            // the record now, because the caller may have changed its generation.
            record_put(t, c->hash, record);
            return ERR_AGAIN;
        }
        record->flags |= INDEX_WHOLE;
        record->place = place;
        record->sums = c->sums.len > 0 ? c->sums : record->sums;
        t->blocks += place.block_count;
    } else {
        if (was_whole) { // some blocks of the whole run are being replaced: keep the other ones
            t->blocks -= record->place.block_count;
            place_put(t, record->generation, 0, c->hash, &record->place);
            // Perhaps only the header of the whole run has the checksums.
            record->sums = (struct store_sums){0};
        }
        record->sums = c->sums.len > 0 ? c->sums : record->sums;
        record->flags &= (uint16_t)~INDEX_WHOLE;
        place_put(t, record->generation, c->place.first_block, c->hash, &place);
    }
    record_put(t, c->hash, record);
    return ERR_OK;
}

static bool version_is_same(const struct index_record *record, const struct index_change *c)
{
    return record->etag_hash == c->etag_hash && record->size_bytes == c->size_bytes &&
           record->block_size_bytes == c->block_size_bytes;
}

// Returns how many blocks the existing run of the record has from the change's first block on.
static uint64_t record_has(struct index_txn *t, const struct index_change *c,
                           const struct index_record *record)
{
    struct index_place place;
    if ((record->flags & INDEX_WHOLE) != 0) {
        bool lives = place_lives(t, &record->place);
        return lives ? record->place.block_count - c->place.first_block : 0;
    }
    bool any = place_get(t, record->generation, c->place.first_block, c->hash, &place);
    return any && place_lives(t, &place) ? place.block_count : 0;
}

static struct index_record record_new(const struct index_change *c)
{
    return (struct index_record){
        .generation = c->generation,
        .size_bytes = c->size_bytes,
        .etag_hash = c->etag_hash,
        .block_size_bytes = c->block_size_bytes,
    };
}

// Gives the record the change's generation and freshness. Its places move to that generation.
// Returns false, and changes nothing, if it has more places than the transaction can move.
static bool MUST_USE object_confirm(struct index_txn *t, const struct index_change *c,
                                    struct index_record *record)
{
    uint64_t from = record->generation;
    check(record->etag_hash == c->etag_hash && record->size_bytes == c->size_bytes);
    check(c->generation != 0);
    check(t->places <= t->places_max);
    bool moves = from != c->generation && (record->flags & INDEX_WHOLE) == 0;
    uint64_t most = t->places_max - t->places;
    if (moves && (places_exceed(t, from, PLACES_LEAST) || most < PLACES_LEAST)) {
        uint64_t pages = 2 * most / PLACES_PER_PAGE;
        if (places_exceed(t, from, most) || !txn_gets_pages(t, pages)) {
            return false;
        }
    }
    uint64_t blocks = segment_run_object_blocks(record->size_bytes, record->block_size_bytes);
    uint64_t next = 0;
    struct index_place place;
    record_validate(t->index, record, c->validated_mono_ms, c->validated_wall_ms);
    record->generation = c->generation;
    for (uint64_t i = 1; moves && i <= blocks && places_next(t, from, &next); i++) {
        if (place_get(t, from, next, c->hash, &place)) {
            t->blocks -= place.block_count;
            place_put(t, c->generation, next, c->hash, &place);
        }
        place_delete(t, from, next);
    }
    return true;
}

static enum err apply_put(struct index_txn *t, const struct index_change *c)
{
    struct index_record record;
    bool is_new = true;
    check(c->generation != 0 && c->place.segment != NULL);
    if (record_get(t, c->hash, &record)) {
        // The generation of a record that was rebuilt from a segment comes from a run's header, and
        // may be provisional.
        bool found_in_segment = (record.flags & INDEX_REBUILT) != 0;
        if ((record.generation > c->generation && !found_in_segment) ||
            (record.generation == c->generation && !version_is_same(&record, c))) {
            return ERR_CANCELLED;
        }
        is_new = record.generation != c->generation;
        if (found_in_segment && version_is_same(&record, c) && object_confirm(t, c, &record)) {
            is_new = false;
            // Keep the run found in the segment if it has more blocks than the new one.
            if (record_has(t, c, &record) > c->place.block_count) {
                record_put(t, c->hash, &record);
                return ERR_OK;
            }
        } else if (is_new && !object_remove(t, c->hash, &record)) {
            return ERR_AGAIN;
        }
    }
    if (is_new) {
        record = record_new(c);
        record_validate(t->index, &record, c->validated_mono_ms, c->validated_wall_ms);
    }
    return object_add_place(t, c, &record, is_new);
}

// Adds a run found in a segment. Existing records of the index take precedence.
static enum err apply_put_rebuilt(struct index_txn *t, const struct index_change *c)
{
    struct index_record record;
    bool is_new = true;
    check(c->generation != 0 && c->answer == NULL);
    if (record_get(t, c->hash, &record)) {
        if (version_is_same(&record, c)) {
            if (record_has(t, c, &record) >= c->place.block_count) {
                return ERR_CANCELLED;
            }
            is_new = false;
        } else if ((record.flags & INDEX_REBUILT) == 0 || record.generation >= c->generation) {
            return ERR_CANCELLED;
        } else if (!object_remove(t, c->hash, &record)) {
            return ERR_AGAIN;
        }
    }
    if (is_new) {
        record = record_new(c);
        record.flags = INDEX_REBUILT;
    }
    return object_add_place(t, c, &record, is_new);
}

// Replaces the headers of the record's version. Its runs stay, under the new generation.
static enum err apply_redescribe(struct index_txn *t, const struct index_change *c)
{
    struct index_record record;
    check(c->described != NULL && c->described_len <= STORE_DESCRIBED_MAX);
    if (!record_get(t, c->hash, &record) || record.generation != c->from ||
        record.etag_hash != c->etag_hash || record.size_bytes != c->size_bytes) {
        return ERR_CANCELLED;
    }
    if (!object_confirm(t, c, &record)) {
        // This transaction cannot move all of the places, and runs that stay must not get the new
        // headers.
        return ERR_CANCELLED;
    }
    record.flags |= INDEX_DESCRIBED;
    record.described = (struct span){c->described, c->described_len};
    record.sums = c->sums.len > 0 ? c->sums : record.sums;
    record_put(t, c->hash, &record);
    return ERR_OK;
}

static enum err apply_delete(struct index_txn *t, const struct index_change *c)
{
    struct index_record record;
    if (record_get(t, c->hash, &record)) {
        if (record.generation < c->generation && !object_remove(t, c->hash, &record)) {
            return ERR_AGAIN;
        }
    } else {
        record_delete(t, c->hash); // the record is damaged or absent
    }
    return ERR_OK;
}

static enum err apply_delete_at(struct index_txn *t, const struct index_change *c)
{
    struct index_record record;
    struct index_place there;
    struct index_place place = index_place_of(&c->place);
    if (!record_get(t, c->hash, &record)) {
        return ERR_OK;
    }
    if ((record.flags & INDEX_WHOLE) != 0) {
        if (index_place_equal(&record.place, &place)) {
            // The object has one place, so one call removes all of it.
            (void)object_remove(t, c->hash, &record);
        }
        return ERR_OK;
    }
    if (place_get(t, record.generation, c->place.first_block, c->hash, &there) &&
        index_place_equal(&there, &place)) {
        t->blocks -= there.block_count;
        place_gone(t, c->hash, c->place.first_block, &there);
        place_delete(t, record.generation, c->place.first_block);
        if (!places_exceed(t, record.generation, 0)) {
            record_delete(t, c->hash);
        }
    }
    return ERR_OK;
}

// Moves the run to its copy, if the index still has the run that was copied. Changes nothing if
// that run was deleted or replaced.
static enum err apply_move(struct index_txn *t, const struct index_change *c)
{
    struct index_record record;
    struct index_place there;
    struct index_place from = index_place_of(&c->move->from);
    struct index_place to = index_place_of(&c->place);
    check(to.block_count == from.block_count && to.payload_len == from.payload_len);
    check(!index_place_equal(&from, &to));
    if (!record_get(t, c->hash, &record)) {
        return ERR_CANCELLED;
    }
    if ((record.flags & INDEX_WHOLE) != 0) {
        if (!index_place_equal(&record.place, &from)) {
            return ERR_CANCELLED;
        }
        record.place = to;
        record_put(t, c->hash, &record);
        return ERR_OK;
    }
    if (!place_get(t, record.generation, c->place.first_block, c->hash, &there) ||
        !index_place_equal(&there, &from)) {
        return ERR_CANCELLED;
    }
    t->blocks -= there.block_count;
    place_put(t, record.generation, c->place.first_block, c->hash, &to);
    return ERR_OK;
}

enum err index_txn_apply(struct index_txn *t, const struct index_change *change)
{
    check(t->txn != NULL && t->env != NULL);
    if (txn_failed(t, 0)) {
        return ERR_IO;
    }
    switch (change->kind) {
    case INDEX_PUT:
        return apply_put(t, change);
    case INDEX_PUT_REBUILT:
        return apply_put_rebuilt(t, change);
    case INDEX_REDESCRIBE:
        return apply_redescribe(t, change);
    case INDEX_DELETE:
        return apply_delete(t, change);
    case INDEX_DELETE_AT:
        return apply_delete_at(t, change);
    case INDEX_MOVE:
        return apply_move(t, change);
    case INDEX_CONDEMN: // index_condemn.c has written the marks
    case INDEX_DROP:
    case INDEX_FIT:
    case INDEX_NOTHING:
        return ERR_OK;
    }
    return ERR_OK;
}

void index_txn_renew(struct index_txn *t, const struct renewal_copy *renewal)
{
    struct index_record record;
    check(t->txn != NULL && renewal->generation != 0);
    if (!txn_failed(t, 0) && record_get(t, renewal->hash, &record) &&
        record.generation == renewal->generation) {
        record_validate(t->index, &record, renewal->validated_mono_ms, renewal->validated_wall_ms);
        record.sums = renewal->sums.len > 0 ? renewal->sums : record.sums;
        record_put(t, renewal->hash, &record);
    }
}

int index_txn_commit(struct index_txn *t)
{
    struct index *index = t->index;
    check(t->txn != NULL && t->env == atomic_load(&index->current));
    check(t->pages <= t->pages_ready || t->err != ERR_OK);
    int64_t blocks = (int64_t)atomic_load(&index->blocks) + t->blocks;
    struct index_meta meta = {.blocks = blocks > 0 ? (uint64_t)blocks : 0};
    memcpy(meta.cache_id, index->disk->dir.format.cache_id, CACHE_ID_LEN);
    char bytes[INDEX_META_LEN];
    index_meta_encode(&meta, bytes);
    MDB_val key = {1, (void *)(uintptr_t) "m"};
    MDB_val value = {sizeof(bytes), bytes};
    MDB_stat stat = {0};
    if (!txn_failed(t, mdb_put(t->txn, t->env->meta, &key, &value, 0))) {
        (void)txn_failed(t, mdb_stat(t->txn, t->env->objects, &stat)); // the error is in t->rc
    }
    disk_call_begins(index->disk, DISK_CALL_INDEX);
    int failed = store_fault_strike(STORE_FAULT_COMMIT);
    if (t->rc != 0 || t->err != ERR_OK || failed != 0) {
        int rc = t->rc != 0 ? t->rc : failed != 0 ? failed : ENOSPC;
        txn_abort(t);
        disk_call_ends(index->disk, DISK_CALL_INDEX);
        return rc;
    }
    int rc = mdb_txn_commit(t->txn);
    disk_call_ends(index->disk, DISK_CALL_INDEX);
    t->txn = NULL;
    if (rc == 0) {
        index_count(index, stat.ms_entries, meta.blocks);
    }
    return rc;
}
