// SPDX-License-Identifier: Apache-2.0
// The memory side of the index. When a key's home accepts a change (a run, a delete, a renewal), it
// first enters the change here. From then on the look-ups of all workers see the change. LMDB is
// the durable copy: the index writer writes changes to it in batches and then removes them from
// here. After a crash only LMDB's copy exists.
//
// An entry says two things about its key. LMDB's records below `floor` do not count. The version,
// if there is one, is newer and has the listed places. A put of a newer generation raises the floor
// to that generation. So the replaced version stays hidden even if the put is removed because the
// disk refuses it. A look-up reads the entry, then LMDB, and uses the newer generation. It merges
// places of the same generation.
//
// Order. A change is entered here before the index writer receives it, and removed only after its
// commit. A look-up reads the memory side before it opens its view of LMDB. This has three
// consequences:
//
// - If the look-up no longer finds a change here, the change is committed, so the view contains it.
// - If the look-up finds a place both here and in LMDB, it is the same place, and is merged.
// - If a floor has been removed, LMDB has nothing below it.
//
// The index writer removes a place by its generation and position, and a floor only if it was not
// raised since. So it never removes a later change.
//
// Recovery finds runs in segments that may be older than a delete which is already durable. While
// recovery runs, the floors of deletes therefore stay, up to a limit. The index writer checks them
// (index_memory_judge_rebuilt()) before it adds such a run.
//
// Readers take no lock. An entry is immutable and replaced as a whole. The places of a version are
// a list that grows at its head and loses single places. A reader may still use an item that was
// removed. So the item is retired with the current epoch, and the epoch is raised. A reader
// announces its epoch before it loads any pointer. All these accesses are in one total order. So
// either the reclaiming thread sees the announcement, or the reader does not find the item. Pins
// are independent of this: they belong to the index writer's change, and a reader pins by number.
//
// A change holds its shard's lock briefly. Only the key's home and the index writer take the lock.
#include "store/index/index_memory.h"

#include <assert.h>
#include <stdlib.h>

#include "stats/stats.h"

static_assert(offsetof(struct memory_place, retired) == 0, "retired and freed by this address");
static_assert(offsetof(struct memory_version, retired) == 0, "retired and freed by this address");
static_assert(offsetof(struct memory_entry, retired) == 0, "retired and freed by this address");

void index_memory_init(struct index_memory *memory, unsigned reader_count)
{
    check(reader_count > 0 && reader_count <= MEMORY_READERS_MAX);
    memset(memory, 0, sizeof(*memory));
    atomic_store(&memory->epoch, 1);
    memory->reader_count = reader_count;
    memory->pending_bytes_max = UINT64_MAX;
    uint64_t budget = chunk_budget_max_bytes(); // 0: there is no limit
    uint64_t fit = budget > 0 ? budget / 8 * 3 / MEMORY_PENDING_BYTES : MEMORY_PENDING_MAX;
    memory->pending_max = (unsigned)min_u64(fit, MEMORY_PENDING_MAX);
    memory->readers = aligned_alloc(64, MEMORY_READERS_MAX * sizeof(*memory->readers));
    memory->shards = aligned_alloc(64, MEMORY_SHARDS * sizeof(*memory->shards));
    check(memory->readers != NULL);
    check(memory->shards != NULL);
    memset(memory->readers, 0, MEMORY_READERS_MAX * sizeof(*memory->readers));
    memset(memory->shards, 0, MEMORY_SHARDS * sizeof(*memory->shards));
    for (unsigned i = 0; i < MEMORY_SHARDS; i++) {
        check(pthread_mutex_init(&memory->shards[i].lock, NULL) == 0);
    }
}

// --- readers

bool index_memory_enter(struct index_memory *memory, unsigned reader)
{
    if (atomic_load(&memory->count) == 0) {
        return false;
    }
    check(reader < memory->reader_count);
    check(atomic_load_explicit(&memory->readers[reader].epoch, memory_order_relaxed) == 0);
    atomic_store(&memory->readers[reader].epoch, atomic_load(&memory->epoch));
    return true;
}

void index_memory_leave(struct index_memory *memory, unsigned reader)
{
    check(reader < memory->reader_count);
    check(atomic_load_explicit(&memory->readers[reader].epoch, memory_order_relaxed) != 0);
    atomic_store_explicit(&memory->readers[reader].epoch, 0, memory_order_release);
}

static struct memory_shard *shard_of(const struct index_memory *memory, struct hash128 hash)
{
    return &memory->shards[hash.hi % MEMORY_SHARDS];
}

static _Atomic(struct memory_entry *) *bucket_of(const struct index_memory *memory,
                                                 struct hash128 hash)
{
    return &shard_of(memory, hash)->buckets[hash.lo % MEMORY_BUCKETS];
}

const struct memory_entry *index_memory_find(const struct index_memory *memory, struct hash128 hash)
{
    const struct memory_entry *entry = atomic_load(bucket_of(memory, hash));
    while (entry != NULL && !hash128_equal(entry->hash, hash)) {
        entry = atomic_load(&entry->next);
    }
    return entry;
}

bool index_memory_has_room(const struct index_memory *memory)
{
    return atomic_load_explicit(&memory->pending, memory_order_relaxed) < memory->pending_max &&
           atomic_load_explicit(&memory->pending_bytes, memory_order_relaxed) <
               memory->pending_bytes_max;
}

bool index_memory_leaves_room(const struct index_memory *memory, unsigned asked)
{
    uint64_t bytes_max =
        atomic_load_explicit(&memory->pending_bytes_max, memory_order_relaxed) / 4 * 3;
    return atomic_load_explicit(&memory->pending, memory_order_relaxed) + asked <
               memory->pending_max / 4 * 3 &&
           atomic_load_explicit(&memory->pending_bytes, memory_order_relaxed) < bytes_max;
}

bool index_memory_is_heavy(const struct index_memory *memory)
{
    return atomic_load_explicit(&memory->pending_bytes, memory_order_relaxed) >=
           atomic_load_explicit(&memory->pending_bytes_max, memory_order_relaxed) /
               MEMORY_PENDING_HEAVY_PART;
}

// --- removing

static void retire_locked(struct index_memory *memory, struct memory_shard *shard, void *ptr)
{
    struct memory_retired *retired = ptr;
    check(retired->next == NULL && retired->epoch == 0); // an item is retired only once
    retired->epoch = atomic_fetch_add(&memory->epoch, 1);
    retired->next = shard->retired;
    shard->retired = retired;
}

static void retire_version_locked(struct index_memory *memory, struct memory_shard *shard,
                                  struct memory_version *version)
{
    if (version == NULL) {
        return;
    }
    struct memory_place *place = atomic_load(&version->first);
    while (place != NULL) {
        struct memory_place *next = atomic_load(&place->next);
        retire_locked(memory, shard, place);
        place = next;
    }
    retire_locked(memory, shard, version);
}

static uint64_t oldest_reader(const struct index_memory *memory)
{
    uint64_t oldest = UINT64_MAX;
    for (unsigned i = 0; i < memory->reader_count; i++) {
        uint64_t epoch = atomic_load(&memory->readers[i].epoch);
        oldest = epoch != 0 ? min_u64(oldest, epoch) : oldest;
    }
    return oldest;
}

void index_memory_reclaim(struct index_memory *memory)
{
    for (unsigned i = 0; i < MEMORY_SHARDS; i++) {
        struct memory_shard *shard = &memory->shards[i];
        struct memory_retired *gone = NULL;
        pthread_mutex_lock(&shard->lock);
        uint64_t oldest = shard->retired != NULL ? oldest_reader(memory) : 0;
        struct memory_retired **at = &shard->retired;
        while (*at != NULL) { // the list's length is bounded by the number of changes
            struct memory_retired *retired = *at;
            if (retired->epoch < oldest) {
                *at = retired->next;
                retired->next = gone;
                gone = retired;
            } else {
                at = &retired->next;
            }
        }
        pthread_mutex_unlock(&shard->lock);
        while (gone != NULL) {
            struct memory_retired *next = gone->next;
            free(gone);
            gone = next;
        }
    }
}

// --- entries

// Returns the link that points to the key's entry, or to the NULL at the end of its bucket.
static _Atomic(struct memory_entry *) *entry_link_locked(struct index_memory *memory,
                                                         struct hash128 hash)
{
    _Atomic(struct memory_entry *) *link = bucket_of(memory, hash);
    struct memory_entry *entry;
    while ((entry = atomic_load(link)) != NULL && !hash128_equal(entry->hash, hash)) {
        link = &entry->next;
    }
    return link;
}

// Returns a copy of the key's entry, or an empty entry.
static struct memory_entry entry_copy(const struct memory_entry *entry, struct hash128 hash)
{
    struct memory_entry copy = {.hash = hash};
    if (entry != NULL) {
        copy.floor = entry->floor;
        copy.deleted = entry->deleted;
        copy.floor_durable = entry->floor_durable;
        copy.owed = entry->owed;
        copy.version = entry->version;
    }
    return copy;
}

// Publishes `changed` in place of the entry to which `link` points. Removes that entry if `changed`
// has neither a floor nor a version.
static void entry_replace_locked(struct index_memory *memory, _Atomic(struct memory_entry *) *link,
                                 const struct memory_entry *changed)
{
    struct memory_shard *shard = shard_of(memory, changed->hash);
    struct memory_entry *before = atomic_load(link);
    struct memory_entry *next = before != NULL ? atomic_load(&before->next) : NULL;
    check(before == NULL || hash128_equal(before->hash, changed->hash));
    check(changed->version == NULL || changed->version->generation >= changed->floor);
    check(changed->deleted <= changed->floor);
    check(!changed->floor_durable || (!changed->owed && changed->floor != 0));
    if (changed->floor == 0 && changed->version == NULL) {
        if (before != NULL) {
            atomic_store(link, next);
            check(atomic_fetch_sub(&memory->count, 1) > 0);
        }
    } else {
        struct memory_entry *made = malloc(sizeof(*made));
        check(made != NULL);
        *made = *changed;
        atomic_init(&made->next, next);
        if (before == NULL) {
            atomic_fetch_add(&memory->count, 1);
        }
        atomic_store(link, made);
    }
    if (before != NULL) {
        if (before->version != changed->version) {
            retire_version_locked(memory, shard, before->version);
        }
        retire_locked(memory, shard, before);
    }
}

static void entry_raise_floor(struct memory_entry *entry, uint64_t floor)
{
    if (floor > entry->floor) {
        entry->floor = floor;
        entry->floor_durable = false;
    }
    if (entry->version != NULL && entry->version->generation < entry->floor) {
        entry->version = NULL;
    }
}

// --- changes

static struct memory_version *version_new(const struct memory_put *put)
{
    struct memory_version *version = calloc(1, sizeof(*version));
    check(version != NULL);
    version->generation = put->generation;
    version->size_bytes = put->size_bytes;
    version->etag_hash = put->etag_hash;
    version->block_size_bytes = put->block_size_bytes;
    atomic_init(&version->validated_mono_ms, put->validated_mono_ms);
    atomic_init(&version->validated_wall_ms, put->validated_wall_ms);
    version->sums = put->sums;
    return version;
}

static bool version_is_same(const struct memory_version *version, const struct memory_put *put)
{
    return version->etag_hash == put->etag_hash && version->size_bytes == put->size_bytes &&
           version->block_size_bytes == put->block_size_bytes;
}

static void version_add_place(struct memory_version *version, const struct store_place *place)
{
    struct memory_place *made = calloc(1, sizeof(*made));
    check(made != NULL);
    made->place = *place;
    atomic_init(&made->next, atomic_load(&version->first));
    atomic_store(&version->first, made);
}

bool index_memory_put(struct index_memory *memory, const struct memory_put *put)
{
    struct memory_shard *shard = shard_of(memory, put->hash);
    bool entered = true;
    check(put->generation != 0 && put->sums.len <= STORE_SUMS_MAX);
    check(put->place == NULL || put->place->generation == put->generation);
    pthread_mutex_lock(&shard->lock);
    _Atomic(struct memory_entry *) *link = entry_link_locked(memory, put->hash);
    struct memory_entry *before = atomic_load(link);
    struct memory_version *version = before != NULL ? before->version : NULL;
    bool same = version != NULL && version->generation == put->generation;
    bool older = before != NULL && (put->generation < before->floor ||
                                    (version != NULL && put->generation < version->generation));
    if (older || (same && !version_is_same(version, put))) {
        entered = false;
    } else if (same && put->place != NULL) {
        version_add_place(version, put->place);
    } else if (!same) {
        struct memory_entry changed = entry_copy(before, put->hash);
        entry_raise_floor(&changed, put->generation);
        if (put->place != NULL) {
            changed.version = version_new(put);
            version_add_place(changed.version, put->place);
        }
        entry_replace_locked(memory, link, &changed);
    }
    pthread_mutex_unlock(&shard->lock);
    return entered;
}

void index_memory_hide(struct index_memory *memory, struct hash128 hash, uint64_t floor)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    _Atomic(struct memory_entry *) *link = entry_link_locked(memory, hash);
    struct memory_entry changed = entry_copy(atomic_load(link), hash);
    entry_raise_floor(&changed, floor);
    changed.deleted = max_u64(changed.deleted, floor);
    entry_replace_locked(memory, link, &changed);
    pthread_mutex_unlock(&shard->lock);
}

static struct memory_version *version_find_locked(struct index_memory *memory, struct hash128 hash,
                                                  uint64_t generation)
{
    struct memory_entry *entry = atomic_load(entry_link_locked(memory, hash));
    struct memory_version *version = entry != NULL ? entry->version : NULL;
    return version != NULL && version->generation == generation ? version : NULL;
}

void index_memory_renew(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                        uint64_t mono_ms, uint64_t wall_ms)
{
    if (atomic_load(&memory->count) == 0) {
        return;
    }
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    struct memory_version *version = version_find_locked(memory, hash, generation);
    if (version != NULL && atomic_load(&version->validated_mono_ms) < mono_ms) {
        atomic_store(&version->validated_mono_ms, mono_ms);
        atomic_store(&version->validated_wall_ms, wall_ms);
    }
    pthread_mutex_unlock(&shard->lock);
}

bool index_memory_knows(struct index_memory *memory, struct hash128 hash)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    bool known = atomic_load(entry_link_locked(memory, hash)) != NULL;
    pthread_mutex_unlock(&shard->lock);
    return known;
}

// --- calls of the index writer

bool index_memory_validated(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                            uint64_t *ret_mono_ms, uint64_t *ret_wall_ms)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    struct memory_version *version = version_find_locked(memory, hash, generation);
    if (version != NULL) {
        *ret_mono_ms = atomic_load(&version->validated_mono_ms);
        *ret_wall_ms = atomic_load(&version->validated_wall_ms);
    }
    pthread_mutex_unlock(&shard->lock);
    return version != NULL;
}

static bool place_is_same(const struct store_place *a, const struct store_place *b)
{
    return a->segment_number == b->segment_number && a->header_offset == b->header_offset &&
           a->salt == b->salt && a->first_block == b->first_block;
}

void index_memory_drop_place(struct index_memory *memory, struct hash128 hash, uint64_t generation,
                             const struct store_place *place)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    struct memory_version *version = version_find_locked(memory, hash, generation);
    check(place->generation == generation);
    _Atomic(struct memory_place *) *link = version != NULL ? &version->first : NULL;
    struct memory_place *at = NULL;
    while (link != NULL && (at = atomic_load(link)) != NULL && !place_is_same(&at->place, place)) {
        link = &at->next;
    }
    if (at != NULL) {
        atomic_store(link, atomic_load(&at->next));
        retire_locked(memory, shard, at);
        if (atomic_load(&version->first) == NULL) {
            _Atomic(struct memory_entry *) *entry = entry_link_locked(memory, hash);
            struct memory_entry changed = entry_copy(atomic_load(entry), hash);
            changed.version = NULL;
            entry_replace_locked(memory, entry, &changed);
        }
    }
    pthread_mutex_unlock(&shard->lock);
}

void index_memory_floor_durable(struct index_memory *memory, struct hash128 hash, uint64_t floor)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    _Atomic(struct memory_entry *) *link = entry_link_locked(memory, hash);
    struct memory_entry *before = atomic_load(link);
    if (before != NULL && before->floor != 0 && before->floor <= floor && !before->floor_durable) {
        struct memory_entry changed = entry_copy(before, hash);
        bool stays =
            atomic_load(&memory->recovering) && atomic_load(&memory->count) <= MEMORY_FLOORS_MAX;
        changed.floor = stays ? changed.deleted : 0;
        changed.deleted = changed.floor;
        changed.floor_durable = changed.floor != 0;
        changed.owed = false;
        entry_replace_locked(memory, link, &changed);
    }
    pthread_mutex_unlock(&shard->lock);
}

bool index_memory_owe(struct index_memory *memory, struct hash128 hash, uint64_t floor)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    _Atomic(struct memory_entry *) *link = entry_link_locked(memory, hash);
    struct memory_entry *before = atomic_load(link);
    bool owe = before != NULL && before->floor >= floor && !before->floor_durable && !before->owed;
    if (owe) {
        struct memory_entry changed = entry_copy(before, hash);
        check(changed.floor != 0);
        changed.owed = true;
        entry_replace_locked(memory, link, &changed);
    }
    pthread_mutex_unlock(&shard->lock);
    return owe;
}

uint64_t index_memory_owed(struct index_memory *memory, struct hash128 hash)
{
    struct memory_shard *shard = shard_of(memory, hash);
    pthread_mutex_lock(&shard->lock);
    struct memory_entry *entry = atomic_load(entry_link_locked(memory, hash));
    uint64_t floor = entry != NULL && entry->owed ? entry->floor : 0;
    pthread_mutex_unlock(&shard->lock);
    return floor;
}

uint64_t index_memory_judge_rebuilt(struct index_memory *memory, const struct memory_put *found)
{
    struct memory_shard *shard = shard_of(memory, found->hash);
    uint64_t generation = found->generation;
    check(found->place == NULL); // a run found in a segment never enters the memory side
    pthread_mutex_lock(&shard->lock);
    struct memory_entry *entry = atomic_load(entry_link_locked(memory, found->hash));
    if (entry != NULL && entry->version != NULL) {
        // Use the version in the entry, because the key's home has decided which version counts and
        // what its generation is.
        generation = version_is_same(entry->version, found) ? entry->version->generation : 0;
    } else if (entry != NULL && generation < entry->floor) {
        generation = 0;
    }
    pthread_mutex_unlock(&shard->lock);
    return generation;
}

// Removes all durable floors of the shard. With `owed`, removes the owed floors instead.
static void shard_let_floors_go(struct index_memory *memory, struct memory_shard *shard, bool owed)
{
    pthread_mutex_lock(&shard->lock);
    for (unsigned i = 0; i < MEMORY_BUCKETS; i++) {
        _Atomic(struct memory_entry *) *link = &shard->buckets[i];
        struct memory_entry *entry;
        while ((entry = atomic_load(link)) != NULL) {
            if (!(owed ? entry->owed : entry->floor_durable)) {
                link = &entry->next;
                continue;
            }
            struct memory_entry changed = entry_copy(entry, entry->hash);
            changed.floor = changed.deleted = 0;
            changed.floor_durable = changed.owed = false;
            bool stays = changed.version != NULL;
            entry_replace_locked(memory, link, &changed);
            link = stays ? &atomic_load(link)->next : link;
        }
    }
    pthread_mutex_unlock(&shard->lock);
}

void index_memory_recovering(struct index_memory *memory, bool recovering)
{
    atomic_store(&memory->recovering, recovering);
    for (unsigned i = 0; i < MEMORY_SHARDS && !recovering; i++) {
        shard_let_floors_go(memory, &memory->shards[i], false);
    }
}

void index_memory_forgive(struct index_memory *memory)
{
    for (unsigned i = 0; i < MEMORY_SHARDS; i++) {
        shard_let_floors_go(memory, &memory->shards[i], true);
    }
}

void index_memory_done(struct index_memory *memory)
{
    if (memory->shards == NULL) {
        return;
    }
    for (unsigned i = 0; i < MEMORY_SHARDS; i++) {
        struct memory_shard *shard = &memory->shards[i];
        pthread_mutex_lock(&shard->lock);
        for (unsigned j = 0; j < MEMORY_BUCKETS; j++) {
            struct memory_entry *entry;
            while ((entry = atomic_load(&shard->buckets[j])) != NULL) {
                struct memory_entry empty = {.hash = entry->hash};
                entry_replace_locked(memory, &shard->buckets[j], &empty);
            }
        }
        pthread_mutex_unlock(&shard->lock);
    }
    for (unsigned i = 0; i < memory->reader_count; i++) {
        check(atomic_load(&memory->readers[i].epoch) == 0);
    }
    check(atomic_load(&memory->count) == 0);
    index_memory_reclaim(memory);
    for (unsigned i = 0; i < MEMORY_SHARDS; i++) {
        check(memory->shards[i].retired == NULL);
        check(pthread_mutex_destroy(&memory->shards[i].lock) == 0);
    }
    free(memory->shards);
    free(memory->readers);
    memory->shards = NULL;
    memory->readers = NULL;
}
