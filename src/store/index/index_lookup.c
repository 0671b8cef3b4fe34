// SPDX-License-Identifier: Apache-2.0
// Looks up a key: reads the memory side, then LMDB, and returns one answer. Runs on the worker that
// asks. Takes no lock and allocates nothing.
//
// A look-up renews the worker's only read transaction, copies what it needs out of the map, and
// resets the transaction. No view is kept across turns of the loop, so LMDB can reuse pages and the
// file does not grow. The memory side is read first, for the reason in index_memory.c. The key's
// renewal is read before the view is opened for the same reason: the index writer removes the
// renewal after the commit.
//
// The memory side may have a version of the key, and LMDB a record. The newer generation counts,
// unless it is below the floor. There is one exception: a version that a home has put takes
// precedence over a record that recovery found in a segment, whatever the generation in the header
// of that run.
//
// A damaged value cannot cause a wrong answer. Each value has a checksum over itself and its key.
// The reader verifies the run at the place by salt, header and full key. A bad record is a miss,
// but the key does not count as absent.
#include "base/clock.h"
#include "stats/stats.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_log.h"

// If the window has no place, this many other places are tried for a run's header.
#define LOOKUP_ANY_MAX 8u
static_assert(STORE_VIEW_PLACES_MAX * STORE_BLOCK_SIZE_MIN == STORE_WINDOW_MAX,
              "a view holds the smallest runs of the longest window");

struct lookup {
    struct index *index;
    struct index_reader *reader;
    struct hash128 hash;
    uint64_t first_byte, end_byte;
    uint64_t first, end; // the blocks that contain the window [first_byte, end_byte)
    struct store_view *view;
    const struct memory_version *version; // the memory side's version, if it counts; else NULL
    // Places of `version` in the window, in ascending order.
    const struct memory_place *pending[STORE_VIEW_PLACES_MAX];
    unsigned pending_count, pending_next;
    const struct memory_place *some; // the newest place of `version`, in the window or not
    bool is_described;               // the version's record in LMDB has a description
    struct renewal_copy renewal;     // the key's renewal of any generation; generation 0: none
};

// --- LMDB

struct index_env *index_reader_enter(struct index *index, struct index_reader *reader)
{
    check(!atomic_load_explicit(&reader->busy, memory_order_relaxed)); // views are not nested
    atomic_store(&reader->busy, true);
    struct index_env *env = atomic_load(&index->current);
    int rc = env == NULL ? MDB_NOTFOUND : 0;
    if (rc == 0 && reader->txn == NULL) {
        rc = mdb_txn_begin(env->env, NULL, MDB_RDONLY, &reader->txn);
        if (rc == 0) {
            rc = mdb_cursor_open(reader->txn, env->places, &reader->cursor);
            if (rc != 0) {
                mdb_txn_abort(reader->txn);
                reader->txn = NULL;
            }
        }
        reader->env = env;
    } else if (rc == 0) {
        check(reader->env == env);
        rc = mdb_txn_renew(reader->txn);
    }
    if (rc != 0) {
        atomic_store(&reader->busy, false);
        return NULL;
    }
    return env;
}

void index_reader_leave(struct index_reader *reader)
{
    check(atomic_load_explicit(&reader->busy, memory_order_relaxed) && reader->txn != NULL);
    mdb_txn_reset(reader->txn);
    atomic_store(&reader->busy, false);
}

static enum index_held record_find(struct index *index, struct index_env *env,
                                   struct index_reader *reader, struct hash128 hash,
                                   struct index_record *ret_record)
{
    check(reader->txn != NULL && reader->env == env);
    if (!index_proof_object(index, env, reader->txn, hash)) {
        return INDEX_UNKNOWN;
    }
    char key_bytes[INDEX_OBJECT_KEY_LEN];
    index_object_key(hash, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    int rc = mdb_get(reader->txn, env->objects, &key, &value);
    if (rc == 0 &&
        index_object_decode(hash, (struct span){value.mv_data, value.mv_size}, ret_record)) {
        return INDEX_HELD;
    }
    (void)count_if(rc == 0, COUNTER_index_bad_records);
    return rc == MDB_NOTFOUND ? INDEX_ABSENT : INDEX_UNKNOWN;
}

enum index_held index_lookup_durable(struct index *index, struct index_reader *reader,
                                     struct hash128 hash)
{
    struct index_record record;
    struct index_env *env = index_reader_enter(index, reader);
    if (env == NULL) {
        return INDEX_UNKNOWN;
    }
    enum index_held held = record_find(index, env, reader, hash, &record);
    index_reader_leave(reader);
    return held;
}

bool index_described(struct index *index, struct index_reader *reader, struct hash128 hash,
                     uint64_t generation, char ret_described[STORE_DESCRIBED_MAX], size_t *ret_len)
{
    struct index_record record;
    struct index_env *env = index_reader_enter(index, reader);
    if (env == NULL) {
        return false;
    }
    bool is_it = record_find(index, env, reader, hash, &record) == INDEX_HELD &&
                 record.generation == generation && (record.flags & INDEX_DESCRIBED) != 0;
    check(!is_it || record.described.len <= STORE_DESCRIBED_MAX);
    *ret_len = is_it ? record.described.len : 0;
    if (is_it) {
        memcpy(ret_described, record.described.ptr, record.described.len);
    }
    index_reader_leave(reader);
    return is_it;
}

// --- places

// Pins a place. Returns false if its segment is gone or its run is marked as bad. `durable`: the
// place is from LMDB. If its segment is gone, queues the removal of the place from LMDB.
static bool view_pin(struct lookup *l, struct store_place *found, bool durable)
{
    struct segment_log *log = l->index->log;
    check(found->segment_number != 0 && found->block_count > 0);
    struct segment *segment = segment_log_entry(log, found->segment_number);
    if (!segment_pin(segment, found->segment_number)) {
        // The segment is gone, and its number is never used again.
        if (durable && segment_log_lacks(log, found->segment_number)) {
            index_writer_remove_later(l->index->writer, l->hash, found, false);
        }
        return false;
    }
    if (segment_is_bad(segment, found->header_offset) ||
        (uint64_t)found->payload_offset + found->payload_len > log->segment_size_bytes) {
        segment_unpin(segment);
        return false;
    }
    found->segment = segment;
    found->hash = l->hash;
    found->etag_hash = l->view->etag_hash;
    found->is_described = l->is_described;
    return true;
}

static bool view_add(struct lookup *l, struct store_place place, bool durable)
{
    struct store_view *view = l->view;
    if (view->place_count == STORE_VIEW_PLACES_MAX || !view_pin(l, &place, durable)) {
        return false;
    }
    view->places[view->place_count++] = place;
    return true;
}

// Adds the pending places that begin at `block` or before. Returns true if one that was added
// begins at `block`.
static bool view_add_pending(struct lookup *l, uint64_t block)
{
    bool there = false;
    check(l->pending_next <= l->pending_count && l->pending_count <= STORE_VIEW_PLACES_MAX);
    while (l->pending_next < l->pending_count &&
           l->pending[l->pending_next]->place.first_block <= block) {
        const struct store_place *place = &l->pending[l->pending_next++]->place;
        there = view_add(l, *place, false) && place->first_block == block;
    }
    return there;
}

static void view_add_durable(struct lookup *l, const struct index_place *place, uint64_t block)
{
    if (!view_add_pending(l, block)) {
        struct store_place found =
            index_place_to_store(place, l->view->generation, block, l->view->block_size_bytes);
        (void)view_add(l, found, true); // an unpinned place is left out, so its blocks are misses
    }
}

// Reads the place of one row. Sets *ret_good if the place is intact and of this version. Returns
// false after the last row of the version.
static bool row_read(const struct lookup *l, const MDB_val *key, const MDB_val *value,
                     uint64_t *ret_block, struct index_place *ret_place, bool *ret_good)
{
    const struct store_view *view = l->view;
    uint64_t generation;
    struct hash128 owner;
    if (key->mv_size != INDEX_PLACE_KEY_LEN) {
        return false;
    }
    index_place_key_parse(key->mv_data, &generation, ret_block);
    if (generation != view->generation) {
        return false;
    }
    bool decoded = index_place_decode(
        generation, *ret_block, (struct span){value->mv_data, value->mv_size}, &owner, ret_place);
    (void)count_if(!decoded, COUNTER_index_bad_records);
    *ret_good =
        decoded && hash128_equal(owner, l->hash) &&
        ret_place->payload_len == segment_run_payload_len(view->size_bytes, view->block_size_bytes,
                                                          *ret_block, ret_place->block_count);
    return true;
}

// Verifies the pages of up to `max` rows, then moves the cursor to the first row from `key` on.
static int rows_get(struct lookup *l, MDB_val *key, MDB_val *value, unsigned max)
{
    bool good = index_proof_rows(l->index, l->reader->env, l->reader->txn, key->mv_data, max);
    return good ? mdb_cursor_get(l->reader->cursor, key, value, MDB_SET_RANGE) : MDB_CORRUPTED;
}

// Adds the places that overlap the window, for an object of several runs. Starts before the window,
// because an earlier run may reach into it.
static void add_rows(struct lookup *l)
{
    uint64_t reach = max_u64(1, STORE_RUN_MAX / l->view->block_size_bytes) - 1;
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(l->view->generation, l->first > reach ? l->first - reach : 0, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    uint64_t block;
    struct index_place place;
    bool good;
    int rc = rows_get(l, &key, &value, 2 * STORE_VIEW_PLACES_MAX);
    for (unsigned i = 0; rc == 0 && i < 2 * STORE_VIEW_PLACES_MAX; i++) {
        if (!row_read(l, &key, &value, &block, &place, &good) || block >= l->end) {
            break;
        }
        if (good && block + place.block_count > l->first) {
            view_add_durable(l, &place, block);
        }
        rc = mdb_cursor_get(l->reader->cursor, &key, &value, MDB_NEXT);
    }
}

// Finds any run of the object, because the header of each run describes the version.
static void any_row(struct lookup *l)
{
    char key_bytes[INDEX_PLACE_KEY_LEN];
    index_place_key(l->view->generation, 0, key_bytes);
    MDB_val key = {sizeof(key_bytes), key_bytes};
    MDB_val value;
    uint64_t block;
    struct index_place place;
    bool good;
    int rc = rows_get(l, &key, &value, LOOKUP_ANY_MAX);
    for (unsigned i = 0; rc == 0 && i < LOOKUP_ANY_MAX; i++) {
        if (!row_read(l, &key, &value, &block, &place, &good)) {
            break;
        }
        struct store_place found =
            index_place_to_store(&place, l->view->generation, block, l->view->block_size_bytes);
        if (good && view_pin(l, &found, true)) {
            l->view->any = found;
            break;
        }
        rc = mdb_cursor_get(l->reader->cursor, &key, &value, MDB_NEXT);
    }
}

static bool any_pending(struct lookup *l)
{
    const struct memory_place *at = l->version != NULL ? l->some : NULL;
    for (unsigned i = 0; at != NULL && i < LOOKUP_ANY_MAX; i++) {
        struct store_place found = at->place;
        if (view_pin(l, &found, false)) {
            l->view->any = found;
            return true;
        }
        at = atomic_load(&at->next);
    }
    return false;
}

// Converts the window from bytes to blocks of this version.
static void lookup_window(struct lookup *l, uint64_t size_bytes, uint32_t block_size_bytes)
{
    uint64_t blocks = segment_run_object_blocks(size_bytes, block_size_bytes);
    check(blocks > 0);
    l->first = l->first_byte / block_size_bytes;
    l->end = l->end_byte / block_size_bytes + (l->end_byte % block_size_bytes != 0);
    l->end = min_u64(max_u64(l->end, l->first + 1), blocks);
}

// Picks the version's places in the window, in ascending order. The list has newer places first. Of
// two places that begin at the same block, the newer counts. Called before LMDB's view is opened,
// so that the view has each place that the index writer has already moved from the list to LMDB.
static void pick_pending(struct lookup *l)
{
    check(l->version->generation != 0 && l->pending_count == 0);
    lookup_window(l, l->version->size_bytes, l->version->block_size_bytes);
    const struct memory_place *at = l->some = atomic_load(&l->version->first);
    // The list has at most MEMORY_PENDING_MAX places, plus those of runs in flight.
    for (; at != NULL; at = atomic_load(&at->next)) {
        uint64_t block = at->place.first_block;
        if (block >= l->end || block + at->place.block_count <= l->first) {
            continue;
        }
        unsigned i = l->pending_count;
        while (i > 0 && l->pending[i - 1]->place.first_block > block) {
            i--;
        }
        if ((i > 0 && l->pending[i - 1]->place.first_block == block) ||
            l->pending_count == STORE_VIEW_PLACES_MAX) {
            continue;
        }
        memmove(&l->pending[i + 1], &l->pending[i], (l->pending_count - i) * sizeof(l->pending[0]));
        l->pending[i] = at;
        l->pending_count++;
    }
}

// --- the answer

static uint64_t age_ms(uint64_t then, uint64_t now)
{
    return now >= then ? now - then : UINT64_MAX;
}

static void view_take_record(struct lookup *l, const struct index_record *record)
{
    struct store_view *view = l->view;
    view->found = true;
    l->is_described = (record->flags & INDEX_DESCRIBED) != 0;
    view->generation = record->generation;
    view->size_bytes = record->size_bytes;
    view->block_size_bytes = record->block_size_bytes;
    view->etag_hash = record->etag_hash;
    view->sums = record->sums;
    view->rebuilt =
        (record->flags & INDEX_REBUILT) != 0 || record->flags >> INDEX_CUTS_SHIFT != l->index->cuts;
    if (l->renewal.generation == record->generation) {
        view->rebuilt = false;
        view->age_ms = age_ms(l->renewal.validated_mono_ms, clock_monotonic_ms());
        view->sums = l->renewal.sums.len > 0 ? l->renewal.sums : record->sums;
    } else if (view->rebuilt || record->validated_wall_ms == 0) {
        view->age_ms = UINT64_MAX;
    } else if (record->opener == l->index->opener) {
        view->age_ms = age_ms(record->validated_mono_ms, clock_monotonic_ms());
    } else {
        view->age_ms = age_ms(record->validated_wall_ms, clock_wall_us() / 1000);
    }
}

static void view_take_version(struct lookup *l)
{
    struct store_view *view = l->view;
    view->found = true;
    view->generation = l->version->generation;
    view->size_bytes = l->version->size_bytes;
    view->block_size_bytes = l->version->block_size_bytes;
    view->etag_hash = l->version->etag_hash;
    view->rebuilt = false;
    view->age_ms = age_ms(atomic_load(&l->version->validated_mono_ms), clock_monotonic_ms());
    bool has_learnt = l->renewal.generation == view->generation && l->renewal.sums.len > 0;
    view->sums = has_learnt ? l->renewal.sums : l->version->sums;
}

static bool version_is_of(const struct memory_version *version, const struct index_record *record)
{
    return version->generation == record->generation && version->etag_hash == record->etag_hash &&
           version->size_bytes == record->size_bytes &&
           version->block_size_bytes == record->block_size_bytes;
}

// Chooses between the memory side's version and LMDB's record. If the record counts, sets
// l->version to NULL. If the version counts, sets *held to INDEX_ABSENT. Keeps both if they are the
// same version.
static void lookup_choose(struct lookup *l, const struct index_record *record,
                          enum index_held *held)
{
    if (l->version == NULL || *held != INDEX_HELD || version_is_of(l->version, record)) {
        return;
    }
    if (record->generation > l->version->generation && (record->flags & INDEX_REBUILT) == 0) {
        l->version = NULL;
        l->pending_count = 0;
    } else {
        *held = INDEX_ABSENT;
    }
}

static void lookup_places(struct lookup *l, const struct index_record *record)
{
    bool whole = record != NULL && (record->flags & INDEX_WHOLE) != 0;
    bool cursor =
        record != NULL && !whole && mdb_cursor_renew(l->reader->txn, l->reader->cursor) == 0;
    check(record == NULL || record->generation == l->view->generation);
    check(l->version == NULL || l->version->generation == l->view->generation);
    if (l->first < l->end) {
        if (whole) {
            view_add_durable(l, &record->place, 0);
        } else if (cursor) {
            add_rows(l);
        }
        (void)view_add_pending(l, UINT64_MAX);
    }
    if (l->view->place_count > 0 || any_pending(l)) {
        return;
    }
    if (whole) {
        struct store_place found =
            index_place_to_store(&record->place, l->view->generation, 0, l->view->block_size_bytes);
        if (view_pin(l, &found, true)) {
            l->view->any = found;
        }
    } else if (cursor) {
        any_row(l);
    }
}

void index_lookup(struct index *index, struct index_reader *reader, bool durable,
                  struct hash128 hash, uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                  struct store_view *ret_view)
{
    struct lookup l;
    check(ret_view->place_count == 0 && ret_view->any.segment == NULL);
    check(index->readers[reader->number] == reader);
    l.index = index;
    l.reader = reader;
    l.hash = hash;
    l.first_byte = first_byte;
    l.end_byte = end_byte;
    l.view = ret_view;
    l.version = NULL;
    l.pending_count = l.pending_next = 0;
    l.is_described = false;
    bool inside = index_memory_enter(&index->memory, reader->number);
    const struct memory_entry *entry = inside ? index_memory_find(&index->memory, hash) : NULL;
    if (entry != NULL) {
        floor = max_u64(floor, entry->floor);
        l.version = entry->version;
    }
    if (l.version != NULL && l.version->generation < floor) {
        l.version = NULL;
    }
    if (l.version != NULL) {
        pick_pending(&l);
    }
    if (!index_renewal_find(index, hash, &l.renewal)) {
        l.renewal.generation = 0;
    }
    struct index_env *env = durable ? index_reader_enter(index, reader) : NULL;
    struct index_record record;
    enum index_held held =
        env != NULL ? record_find(index, env, reader, hash, &record) : INDEX_UNKNOWN;
    if (held == INDEX_HELD && record.generation < floor) {
        held = INDEX_ABSENT;
    }
    lookup_choose(&l, &record, &held);
    if (held == INDEX_HELD) {
        view_take_record(&l, &record);
    } else if (l.version != NULL) {
        view_take_version(&l);
    }
    check(!ret_view->found || ret_view->generation >= floor);
    ret_view->unknown = held == INDEX_UNKNOWN;
    if (ret_view->found) {
        lookup_window(&l, ret_view->size_bytes, ret_view->block_size_bytes);
        lookup_places(&l, held == INDEX_HELD ? &record : NULL);
    }
    if (env != NULL) {
        index_reader_leave(reader);
    }
    if (inside) {
        index_memory_leave(&index->memory, reader->number);
    }
}
