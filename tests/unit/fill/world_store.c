// SPDX-License-Identifier: Apache-2.0
// The door of store, played: an index with one record per key, segments of one run each, commits
// and disk operations that wait for their event.
#include "world_private.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_CHUNKS 16u

uint64_t store_generation_next(struct store *store)
{
    (void)store;
    return ++world.generation;
}

// The world's one bucket stays in the epoch that a test gave it.
uint64_t store_epoch(const struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    return world.epoch;
}

uint64_t store_epoch_hold(struct store *store, struct span origin, struct span bucket)
{
    world.epoch_holds++;
    return store_epoch(store, origin, bucket);
}

void store_epoch_release(struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    check(world.epoch_holds > 0);
    world.epoch_holds--;
}

void store_epoch_begin(struct worker *w, struct store *store, struct span origin,
                       struct span bucket, struct store_epoch_change *change)
{
    (void)w, (void)store;
    check(span_equal_cstr(origin, origin_endpoint(NULL)) && bucket.len > 0);
    world.epoch_change = change;
}

void store_epoch_end(struct store_epoch_change *change)
{
    check(change == world.epoch_change);
    world.epoch_ends++;
}

uint64_t store_run_bytes_max(const struct store *store)
{
    (void)store;
    return world.options.readahead ? WORLD_BLOCK : STORE_RUN_MAX;
}

uint64_t store_run_bytes_long(const struct store *store)
{
    return world.options.long_runs ? STORE_RUN_MAX : store_run_bytes_max(store);
}

enum refusal store_refuses(const struct store *store)
{
    (void)store;
    return REFUSAL_none; // a run that only the policy refuses
}

enum refusal store_refuses_all(const struct store *store)
{
    (void)store;
    unsigned percent = world.options.full_percent;
    return percent > 0 && rnd(100) < percent ? REFUSAL_disk_full : REFUSAL_none;
}

void store_note_refused(struct worker *w, struct store *store, struct hash128 hash,
                        uint64_t first_block, uint64_t payload_len, unsigned group)
{
    (void)w, (void)store, (void)hash, (void)first_block, (void)group;
    world.noted_bytes += payload_len;
}

// Every other time.
bool store_long_promise(struct store *store)
{
    (void)store;
    bool is_promised = world.long_asks++ % 2 == 0;
    world.longs_promised += is_promised;
    return is_promised;
}

void store_long_release(struct store *store)
{
    (void)store;
    check(world.longs_promised > 0);
    world.longs_promised--;
}

// --- versions ------------------------------------------------------------------------------------

struct hash128 store_hash(const struct store *store, struct span realm, struct span bucket,
                          struct span key)
{
    (void)store, (void)realm, (void)bucket;
    return hash_of(&world.keys[key.ptr[0] - '0']);
}

struct store_object *store_object_new(struct hash128 hash, struct span realm, struct span bucket,
                                      struct span key, struct span etag, struct span version_id,
                                      struct span headers, uint64_t size_bytes,
                                      uint32_t block_size_bytes, time_t last_modified)
{
    (void)realm, (void)bucket, (void)key, (void)version_id;
    struct store_object *o = calloc(1, sizeof(*o) + etag.len + headers.len + 2);
    check(o != NULL);
    atomic_init(&o->refs, 1);
    o->hash = hash;
    o->size_bytes = size_bytes;
    o->block_size_bytes = block_size_bytes;
    o->last_modified = last_modified;
    if (etag.len > 0) {
        memcpy((char *)(o + 1), etag.ptr, etag.len);
        o->etag = (struct span){(char *)(o + 1), etag.len};
    }
    if (headers.len > 0) {
        char *at = (char *)(o + 1) + etag.len + 1;
        memcpy(at, headers.ptr, headers.len);
        o->headers = (struct span){at, headers.len};
    }
    world.objects++;
    return o;
}

struct store_object *store_object_ref(struct store_object *o)
{
    atomic_fetch_add(&o->refs, 1);
    return o;
}

void store_object_unref(struct store_object *o)
{
    if (o != NULL && atomic_fetch_sub(&o->refs, 1) == 1) {
        world.objects--;
        free(o);
    }
}

struct store_object *store_object_with_generation(const struct store_object *o, uint64_t generation)
{
    struct span none = {0};
    struct store_object *copy =
        store_object_new(o->hash, none, none, none, o->etag, none, o->headers, o->size_bytes,
                         o->block_size_bytes, o->last_modified);
    copy->generation = generation;
    copy->learnt_us = o->learnt_us;
    return copy;
}

uint64_t store_object_block_count(const struct store_object *o)
{
    return max_u64((o->size_bytes + o->block_size_bytes - 1) / o->block_size_bytes, 1);
}

// --- places --------------------------------------------------------------------------------------

static void segment_settle(struct segment *s)
{
    if (s->dying && s->pins == 0 && !s->indexed && !s->durable) {
        list_remove(&s->node);
        free(s);
    }
}

// Removes the record from look-ups. `durably`: also from those of the next process.
static void unindex(struct segment *s, bool durably)
{
    s->indexed = false;
    s->dying = true;
    s->durable &= !durably;
    segment_settle(s);
}

bool store_place_pin(struct store_place *place)
{
    if (place->segment->dying) {
        return false;
    }
    place->segment->pins++;
    return true;
}

void store_place_pin_again(const struct store_place *place)
{
    check(place->segment->pins > 0);
    place->segment->pins++;
}

void store_place_unpin(struct store_place *place)
{
    if (place->segment != NULL) {
        check(place->segment->pins > 0);
        place->segment->pins--;
        segment_settle(place->segment);
        place->segment = NULL;
    }
}

void store_place_unhold(struct store_place *place)
{
    check(place->segment->holds > 0);
    place->segment->holds--;
    if (!place->segment->indexed && !place->segment->durable && place->segment->holds == 0) {
        place->segment->dying = true; // dropped: nobody will find it again
    }
}

static struct store_place place_of(struct segment *s)
{
    uint64_t block = world.rule.block_size_bytes, first = s->first_block * block;
    uint64_t size = s->key->size_bytes[s->version];
    return (struct store_place){
        .segment = s,
        .payload_len = (uint32_t)min_u64((uint64_t)s->block_count * block, size - first),
        .generation = s->generation,
        .first_block = s->first_block,
        .block_count = s->block_count,
        .is_described = s->described.generation != 0,
        .block_size_bytes = (uint32_t)block};
}

static struct segment *segment_at(const struct world_key *k, uint64_t first_block)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->key == k && s->indexed && s->generation == k->record_generation &&
            s->first_block == first_block) {
            return s;
        }
    }
    return NULL;
}

static struct segment *segment_of_block(const struct world_key *k, unsigned block, bool indexed)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->key == k && !s->writing && s->indexed >= indexed && !s->dying &&
            block >= s->first_block && block < s->first_block + s->block_count) {
            return s;
        }
    }
    return NULL;
}

// --- look-up -------------------------------------------------------------------------------------

static void view_places(struct store_view *v, const struct world_key *k, uint64_t first_byte,
                        uint64_t end_byte)
{
    uint64_t block = world.rule.block_size_bytes;
    for (uint64_t b = 0; b < MAX_BLOCKS; b++) {
        struct segment *s = segment_at(k, b);
        if (s == NULL || s->bad || (world.lookups_off && !s->pending)) {
            continue;
        }
        bool in_window = s->first_block * block < end_byte &&
                         (s->first_block + s->block_count) * block > first_byte;
        struct store_place place = place_of(s);
        if (!store_place_pin(&place)) {
            continue;
        }
        if (in_window) {
            v->places[v->place_count++] = place;
        } else if (v->any.segment == NULL) {
            v->any = place;
        } else {
            store_place_unpin(&place);
        }
    }
    if (v->place_count > 0) {
        store_place_unpin(&v->any);
    }
}

// The memory side has the record: a put of it is not durable yet.
static bool is_in_memory(const struct world_key *k)
{
    for (unsigned i = 0; i < world.change_count; i++) {
        const struct segment *put = world.changes[i].put;
        if (put != NULL && put->key == k && put->indexed &&
            put->generation == k->record_generation) {
            return true;
        }
    }
    return false;
}

void store_lookup(struct worker *w, struct store *store, struct hash128 hash, uint64_t first_byte,
                  uint64_t end_byte, uint64_t floor, struct store_view *v)
{
    (void)w, (void)store;
    const struct world_key *k = key_of_hash(hash);
    v->unknown = world.lookups_off;
    v->found = k->found && k->record_generation >= floor && (!world.lookups_off || is_in_memory(k));
    v->place_count = 0;
    v->any.segment = NULL;
    if (!v->found) {
        return;
    }
    char text[32];
    struct span etag = etag_of(k->record_version, text, sizeof(text));
    v->generation = k->record_generation;
    v->size_bytes = k->size_bytes[k->record_version];
    v->block_size_bytes = world.rule.block_size_bytes;
    v->etag_hash = hash64(etag.ptr, etag.len, 0);
    v->rebuilt = k->rebuilt;
    v->sums = k->sums;
    v->age_ms = k->rebuilt ? UINT64_MAX : (world.now_us - k->validated_us) / 1000;
    view_places(v, k, first_byte, end_byte);
}

void store_view_done(struct store_view *v)
{
    for (unsigned i = 0; i < v->place_count; i++) {
        store_place_unpin(&v->places[i]);
    }
    v->place_count = 0;
    store_place_unpin(&v->any);
}

// --- reading -------------------------------------------------------------------------------------

static struct store_object *object_at(const struct store_place *place)
{
    char text[32];
    const struct segment *s = place->segment;
    struct span none = {0};
    struct hash128 hash = hash_of(s->key);
    bool is_described = place->is_described;
    struct span headers = is_described ? (struct span){s->described.text, s->described.len}
                                       : (struct span){s->headers, s->headers_len};
    struct store_object *object =
        store_object_new(hash, none, none, none, etag_of(s->version, text, sizeof(text)), none,
                         headers, s->key->size_bytes[s->version], world.rule.block_size_bytes,
                         is_described ? s->described.last_modified : s->last_modified);
    object->generation = place->generation;
    return object;
}

// Is it described by the index, which describes another version by now?
static bool is_past(const struct store_place *place)
{
    return place->is_described && place->segment->described.generation != place->generation;
}

static enum err read_luck(struct segment *s)
{
    enum err err = world.fail_read;
    world.fail_read = ERR_OK;
    if (err == ERR_OK && rnd(100) < world.options.bad_percent) {
        err = rnd(2) == 0 ? ERR_IO : ERR_CORRUPT;
    }
    if (err == ERR_CORRUPT) {
        s->bad = true; // remembered: no look-up finds it again
    }
    return err;
}

enum err store_object_get(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object)
{
    (void)w, (void)store, (void)hash, (void)realm, (void)bucket, (void)key;
    check(place->segment->pins > 0);
    if (rnd(100) < world.options.cold_percent) {
        return ERR_AGAIN;
    }
    if (is_past(place)) {
        return ERR_UNREADABLE;
    }
    *ret_object = object_at(place);
    return ERR_OK;
}

enum err store_read_small(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object,
                          struct chunk **ret_chunk, struct span *ret_payload)
{
    (void)w, (void)store, (void)hash, (void)realm, (void)bucket, (void)key;
    if (rnd(100) < world.options.cold_percent) {
        return ERR_AGAIN;
    }
    if (is_past(place)) {
        return ERR_UNREADABLE;
    }
    *ret_object = object_at(place);
    *ret_chunk = chunk_new_forced();
    memset((*ret_chunk)->data, letter_of(place->segment->key, place->segment->version),
           place->payload_len);
    *ret_payload = (struct span){(*ret_chunk)->data, place->payload_len};
    return ERR_OK;
}

static void on_range_released(void *ctx)
{
    struct segment *s = ctx;
    check(s->pins > 0);
    s->pins--;
    segment_settle(s);
}

bool store_range_ready(struct worker *w, struct store *store, const struct store_place *place,
                       uint64_t first_byte, uint64_t len, struct file_range *ret_range)
{
    (void)w, (void)store;
    uint64_t begin = place->first_block * place->block_size_bytes;
    check(first_byte >= begin && first_byte + len <= begin + place->payload_len);
    check(place->segment->pins > 0);
    if (rnd(100) >= world.options.pages_percent) {
        return false;
    }
    place->segment->pins++;
    *ret_range = (struct file_range){
        .len = len, .release = on_range_released, .release_ctx = place->segment};
    return true;
}

void store_read_start(struct worker *w, struct store_read *read)
{
    read->worker = w;
    check(world.read_count < ARRAY_LEN(world.reads));
    world.reads[world.read_count++] = read;
}

void store_read_cancel(struct store_read *read)
{
    read->cancelled = true;
}

bool store_is_in_memory(struct worker *w, const struct store_place *place, uint64_t first_byte,
                        uint64_t len)
{
    (void)w, (void)place, (void)first_byte, (void)len;
    unsigned percent = world.options.limit_percent;
    return percent == 0 || rnd(100) >= percent;
}

bool store_times_reads(void)
{
    return true;
}

void store_read_late(const struct store_read *read)
{
    (void)read;
    world.reads_late++;
}

unsigned store_reads_late(void)
{
    return world.reads_late;
}

void store_read_late_over(const struct store_read *read)
{
    (void)read;
    check(world.reads_late-- > 0);
}

void store_read_in_time(const struct store_read *read)
{
    (void)read;
}

bool store_is_slow(const struct store *store)
{
    (void)store;
    return world.options.slow_disk;
}

bool store_is_stuck(const struct store *store)
{
    (void)store;
    return world.is_stuck;
}

void store_stick(bool is_stuck)
{
    world.is_stuck = is_stuck;
}

bool store_takes_read(const struct store_read *read)
{
    (void)read;
    return !world.options.slow_disk && (world.options.limit_percent == 100 || rnd(2) == 0);
}

void read_complete(unsigned i)
{
    struct store_read *read = world.reads[i];
    struct worker *w = read->worker;
    struct segment *s = read->place.segment;
    world.reads[i] = world.reads[--world.read_count];
    world.current = w;
    check(s->pins > 0);
    read->err = read->cancelled ? ERR_CANCELLED : read_luck(s);
    if (read->err == ERR_OK && read->header && is_past(&read->place)) {
        read->err = ERR_UNREADABLE;
    }
    if (read->err == ERR_OK && read->header) {
        read->object = object_at(&read->place);
    }
    for (uint64_t left = read->len; read->err == ERR_OK && left > 0;) {
        struct chunk *chunk = chunk_new_forced();
        size_t n = (size_t)min_u64(left, CHUNK_SIZE);
        memset(chunk->data, letter_of(s->key, s->version), n);
        read->chunks[read->span_count] = chunk;
        read->spans[read->span_count++] = (struct span){chunk->data, n};
        left -= n;
    }
    read->done(read);
    turn_end(w);
}

// --- writing a run -------------------------------------------------------------------------------

enum err store_run_begin(struct worker *w, struct store *store, struct store_object *object,
                         uint64_t first_block, uint32_t block_count, struct store_run_use use,
                         struct store_run **ret_run)
{
    (void)store, (void)use;
    if (world.refuse || world.disk_is_behind) {
        return ERR_DISK_FULL;
    }
    struct store_run *run = calloc(1, sizeof(*run));
    check(run != NULL);
    list_node_init(&run->node);
    list_push_back(&world.runs, &run->node);
    run->key = key_of_hash(object->hash);
    run->version = version_of(object->etag);
    run->first_block = first_block;
    run->worker = w;
    run->segment = calloc(1, sizeof(*run->segment));
    check(run->segment != NULL);
    *run->segment = (struct segment){.key = run->key,
                                     .first_block = first_block,
                                     .block_count = block_count,
                                     .version = run->version,
                                     .writing = true,
                                     .pins = 1,
                                     .holds = 1};
    check(object->headers.len <= sizeof(run->segment->headers));
    run->segment->headers_len = object->headers.len;
    run->segment->last_modified = object->last_modified;
    if (object->headers.len > 0) {
        memcpy(run->segment->headers, object->headers.ptr, object->headers.len);
    }
    list_node_init(&run->segment->node);
    list_push_back(&world.segments, &run->segment->node);
    *ret_run = run;
    return ERR_OK;
}

void store_run_append(struct store_run *run, struct chunk *chunk)
{
    struct span bytes = {chunk->data, chunk->len};
    cr_assert(all_bytes_are(bytes, letter_of(run->key, run->version)),
              "a stored byte is of another version");
    check(run->chunk_count < ARRAY_LEN(run->chunks));
    run->chunks[run->chunk_count++] = run->given_up ? NULL : chunk_ref(chunk);
    run->is_writing |= !world.options.gathers || chunk_budget_is_short() ||
                       run->chunk_count - run->written_count >= GROUP_CHUNKS;
}

void store_run_write_now(struct store_run *run)
{
    run->is_writing = run->written_count < run->chunk_count;
}

uint64_t store_run_unwritten_bytes(const struct store_run *run)
{
    return run->given_up ? 0 : (uint64_t)(run->chunk_count - run->written_count) * CHUNK_SIZE;
}

void store_run_give_up(struct store_run *run)
{
    run->given_up = world.disk_is_behind = true;
    for (unsigned i = run->written_count; i < run->chunk_count; i++) {
        chunk_unref(run->chunks[i]);
        run->chunks[i] = NULL;
    }
}

bool store_keeps_up(struct worker *w, const struct store *store)
{
    (void)w, (void)store;
    return !world.disk_is_behind;
}

bool store_would_take(const struct store *store, struct hash128 hash, uint64_t first_block,
                      unsigned group)
{
    (void)store, (void)hash, (void)first_block, (void)group;
    unsigned percent = world.options.unwanted_percent;
    return percent == 0 || rnd(100) >= percent;
}

void store_note_read(struct worker *w, struct store *store, const struct store_place *place,
                     uint64_t bytes, unsigned group)
{
    (void)w, (void)store, (void)place, (void)bytes, (void)group;
}

void store_fall_behind(bool behind)
{
    world.disk_is_behind = behind;
}

void store_run_watch(struct store_run *run,
                     void (*on_written)(void *ctx, const struct store_place *pages), void *ctx)
{
    run->on_written = on_written;
    run->watch_ctx = ctx;
}

static void run_free(struct store_run *run)
{
    for (unsigned i = run->written_count; i < run->chunk_count; i++) {
        chunk_unref(run->chunks[i]);
    }
    list_remove(&run->node);
    free(run);
}

void store_run_finish(struct store_run *run, uint32_t block_count,
                      void (*done)(void *ctx, enum err err, const struct store_place *place),
                      void *ctx)
{
    uint64_t size = run->key->size_bytes[run->version], block = world.rule.block_size_bytes;
    uint64_t first = run->first_block * block;
    uint64_t bytes = min_u64(block_count * block, size - first);
    check(block_count > 0 && run->chunk_count == (bytes + CHUNK_SIZE - 1) / CHUNK_SIZE);
    run->blocks = block_count;
    run->done = done;
    run->ctx = ctx;
    run->finishing = true;
}

// Nothing of it is kept, except pinned parts.
static void run_lose_segment(struct store_run *run)
{
    run->segment->dying = true;
    run->segment->pins--;
    run->segment->holds--;
    segment_settle(run->segment);
}

void store_run_abort(struct store_run *run)
{
    run_lose_segment(run);
    run_free(run);
}

static void run_finished(struct store_run *run)
{
    struct worker *w = run->worker;
    world.current = w;
    if (run->given_up || world.fail_write) {
        world.fail_write &= run->given_up;
        run_lose_segment(run);
        run->done(run->ctx, run->given_up ? ERR_DISK_BUSY : ERR_IO, NULL);
    } else {
        run->segment->block_count = run->blocks;
        run->segment->writing = false;
        struct store_place place = place_of(run->segment);
        run->done(run->ctx, ERR_OK, &place);
    }
    run_free(run);
    turn_end(w);
}

void run_step(struct store_run *run)
{
    if (run->written_count < run->chunk_count) {
        chunk_unref(run->chunks[run->written_count++]);
        run->is_writing = run->written_count < run->chunk_count;
        struct store_place pages = place_of(run->segment);
        pages.payload_len = (uint32_t)min_u64(run->written_count * CHUNK_SIZE, pages.payload_len);
        world.current = run->worker;
        if (run->on_written != NULL) {
            run->on_written(run->watch_ctx, run->given_up ? NULL : &pages);
        }
        turn_end(run->worker);
        return;
    }
    run_finished(run);
}

// --- index changes -------------------------------------------------------------------------------

// No sums in this world, so nothing is ever condemned.
void store_condemn(struct worker *w, struct store *store, struct hash128 hash,
                   const struct store_place *place)
{
    (void)w, (void)store, (void)hash, (void)place;
    check(false);
}

void store_renew(struct worker *w, struct store *store, const struct store_renewal *renewals,
                 size_t count, uint64_t began_us)
{
    (void)w, (void)store;
    for (size_t i = 0; i < count; i++) {
        struct world_key *k = key_of_hash(renewals[i].hash);
        if (k->found && k->record_generation == renewals[i].generation) {
            k->validated_us = max_u64(k->validated_us, began_us);
            k->rebuilt = false;
            k->sums = renewals[i].sums.len > 0 ? renewals[i].sums : k->sums;
        }
    }
}

static void change_add(struct change change)
{
    check(world.change_count < ARRAY_LEN(world.changes));
    world.changes[world.change_count++] = change;
}

// A record exists as long as one of its blocks.
static void record_settle(struct world_key *k)
{
    bool any = false, any_durable = false;
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        any |= s->key == k && s->indexed && s->generation == k->record_generation;
        any_durable |= s->key == k && s->durable && s->generation == k->durable_generation;
    }
    k->found = k->found && any;
    k->durable_found = k->durable_found && any_durable;
}

static void hide_below(struct world_key *k, uint64_t floor)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->key == k && s->indexed && s->generation < floor) {
            unindex(s, false);
        }
    }
    record_settle(k);
}

static void delete_below(struct world_key *k, uint64_t floor)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->key == k && s->durable && s->generation < floor) {
            unindex(s, true);
        }
    }
    record_settle(k);
}

void store_put(struct worker *w, struct store *store, const struct store_object *object,
               const struct store_place *place, const struct store_sums *sums,
               uint64_t validated_us)
{
    (void)w, (void)store;
    struct world_key *k = key_of_hash(object->hash);
    uint64_t generation = object->generation;
    struct segment *s = place->segment;
    cr_assert(generation > 0, "a put without a generation");
    cr_assert(!k->found || generation >= k->record_generation, "a put of an older generation");
    cr_assert(s->pins > 0 && !s->dying, "the index names a freed segment");
    cr_assert(!(k->found && k->record_generation == generation && k->record_version != s->version),
              "one generation names two versions");
    cr_assert(validated_us > 0 || object->learnt_us == 0, "validated at no time");
    cr_assert(validated_us <= world.now_us, "validated in the future");
    if (!k->found || k->record_generation != generation) {
        k->validated_us = validated_us;
        k->rebuilt = false;
        k->sums = (struct store_sums){0};
    }
    k->sums = sums->len > 0 ? *sums : k->sums;
    k->found = true;
    k->record_generation = generation;
    k->record_version = s->version;
    struct segment *replaced = segment_at(k, s->first_block);
    if (replaced != NULL) {
        unindex(replaced, false);
    }
    s->indexed = s->pending = true;
    s->generation = generation;
    s->pins++;
    s->holds++;
    hide_below(k, generation);
    change_add((struct change){.key = k, .put = s});
}

// done() runs on the posting worker, by a message.
struct done_message {
    struct message message;
    struct store_delete *delete;
};

static void on_done_message(struct worker *to, struct message *message)
{
    (void)to;
    struct done_message *m = container_of(message, struct done_message, message);
    struct store_delete *d = m->delete;
    free(m);
    d->done(d);
}

static void delete_answer(struct store_delete *d, enum err err)
{
    struct done_message *m = calloc(1, sizeof(*m));
    check(m != NULL);
    d->err = err;
    m->message.deliver = on_done_message;
    m->delete = d;
    mail_push(&world.mail[WORLD_WORKERS][d->worker->index], &m->message);
}

// Nothing of the key is cached or in flight.
static bool delete_is_needless(const struct world_key *k)
{
    bool any = world.lookups_off;
    for (unsigned i = 0; i < world.change_count; i++) {
        any |= world.changes[i].key == k;
    }
    list_for_each(node, &world.segments)
    {
        const struct segment *s = container_of(node, struct segment, node);
        any |= s->key == k && (s->indexed || s->durable);
    }
    return !any;
}

void store_delete(struct worker *w, struct store *store, struct store_delete *d)
{
    (void)store;
    d->worker = w;
    struct world_key *k = key_of_hash(d->hash);
    if (delete_is_needless(k)) {
        delete_answer(d, ERR_OK);
        return;
    }
    hide_below(k, d->floor);
    change_add((struct change){.key = k, .floor = d->floor, .delete = d});
}

bool store_redescribe(struct worker *w, struct store *store, const struct store_redescription *r,
                      struct store_delete *d)
{
    (void)store;
    const struct store_object *object = r->object;
    struct world_key *k = key_of_hash(r->hash);
    cr_assert(r->generation > r->from && object->headers.len <= WORLD_HEADERS_MAX);
    if (rnd(8) == 0) {
        return false; // as where the headers are too long
    }
    d->worker = w;
    struct change change = {
        .key = k, .delete = d, .from = r->from, .validated_us = r->validated_us};
    change.described = (struct segment_headers){.generation = r->generation,
                                                .len = object->headers.len,
                                                .last_modified = object->last_modified};
    memcpy(change.described.text, object->headers.ptr, object->headers.len);
    change_add(change);
    return true;
}

// Gives the stored version its new headers, and all its runs the new generation.
static enum err redescribe_apply(const struct change *c)
{
    struct world_key *k = c->key;
    if (!k->durable_found || k->durable_generation != c->from) {
        return ERR_CANCELLED;
    }
    bool is_visible = k->found && k->record_generation == c->from;
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->key != k || s->generation != c->from) {
            continue;
        }
        if (s->durable) {
            s->generation = c->described.generation;
            s->described = c->described;
        } else if (s->indexed) {
            unindex(s, false); // it came after the version was described
        }
    }
    k->durable_generation = c->described.generation;
    if (is_visible) {
        k->record_generation = c->described.generation;
        k->validated_us = c->validated_us;
        k->rebuilt = false;
    }
    record_settle(k);
    return ERR_OK;
}

// The durable copy takes a put; of another generation it removes what is older.
static void put_apply(struct world_key *k, struct segment *s)
{
    if (k->durable_found && s->generation < k->durable_generation) {
        return;
    }
    k->durable_found = true;
    k->durable_generation = s->generation;
    k->durable_version = s->version;
    list_for_each(node, &world.segments)
    {
        struct segment *old = container_of(node, struct segment, node);
        if (old->key == k && old != s && old->durable && old->first_block == s->first_block) {
            unindex(old, true);
        }
    }
    s->durable = true;
    delete_below(k, s->generation);
}

static void put_end(struct segment *s, bool fail)
{
    s->pending = false;
    if (fail && s->indexed) {
        unindex(s, true);
    }
    struct store_place place = place_of(s);
    store_place_unhold(&place);
    store_place_unpin(&place);
}

// Returns false if the next commit has to repeat it.
static bool change_apply(struct change *c, bool fail)
{
    if (c->put != NULL) {
        if (!fail) {
            put_apply(c->key, c->put);
        }
        put_end(c->put, fail);
        return true;
    }
    if (c->from != 0) {
        delete_answer(c->delete, fail ? ERR_IO : redescribe_apply(c));
        return true;
    }
    if (!fail) {
        delete_below(c->key, c->floor);
    }
    c->key->delete_failed |= fail;
    if (c->delete != NULL) {
        delete_answer(c->delete, fail ? ERR_IO : ERR_OK);
        c->delete = NULL;
    }
    return !fail;
}

void store_deletes_are_late(void)
{
    for (unsigned i = 0; i < world.change_count; i++) {
        struct store_delete *d = world.changes[i].delete;
        if (d != NULL && d->on_late != NULL) {
            world.changes[i].key->delete_failed = true; // a crash may bring back what it hides
            world.current = d->worker;
            d->on_late(d);
            world.current = NULL;
        }
    }
}

static bool segment_is_lost(const struct segment *s)
{
    return (s->dying || s->bad) && (s->indexed || s->durable);
}

bool commit_wanted(void)
{
    bool any = world.change_count > 0;
    list_for_each(node, &world.segments)
    {
        any |= segment_is_lost(container_of(node, struct segment, node));
    }
    return any;
}

void judge_crash(void)
{
    for (unsigned i = 0; i < WORLD_KEYS; i++) {
        const struct world_key *k = &world.keys[i];
        bool is_safe = !k->durable_found || k->rebuilt;
        cr_assert(is_safe || k->durable_version >= k->acked_version,
                  "a crash now would bring back what an answered write replaced: seed %llu",
                  (unsigned long long)world.options.seed);
        cr_assert(is_safe || k->delete_failed || world.was_blind || world.is_noted ||
                      k->durable_version >= k->seen_version,
                  "a crash now would bring back what is older than what was given: seed %llu",
                  (unsigned long long)world.options.seed);
    }
}

void commit(void)
{
    bool fail = world.fail_commit;
    world.fail_commit = false;
    unsigned kept = 0;
    for (unsigned i = 0; i < world.change_count; i++) {
        if (!change_apply(&world.changes[i], fail)) {
            world.changes[kept++] = world.changes[i];
        }
    }
    world.change_count = kept;
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (segment_is_lost(s) && !s->pending) {
            unindex(s, true);
        }
    }
    for (unsigned i = 0; i < WORLD_KEYS; i++) {
        record_settle(&world.keys[i]);
    }
}

// --- what scripts do -----------------------------------------------------------------------------

void store_evict(unsigned block)
{
    struct segment *s = segment_of_block(world.key, block, false);
    if (s != NULL && s->holds == 0) {
        s->dying = true;
        segment_settle(s);
    }
}

bool store_visible(unsigned block)
{
    return segment_of_block(world.key, block, true) != NULL;
}

int store_visible_version(void)
{
    return world.key->found ? world.key->record_version : 0;
}

void store_fail_next_commit(void)
{
    world.fail_commit = true;
}

void store_hide(bool hide)
{
    world.lookups_off = hide;
    world.was_blind |= hide;
}

void store_fail_next_write(void)
{
    world.fail_write = true;
}

void store_fail_next_read(enum err err)
{
    world.fail_read = err;
}

void store_refuse(bool refuse)
{
    world.refuse = refuse;
}

void store_rebuilt(void)
{
    world.key->rebuilt = true;
}

void store_note(void)
{
    world.is_noted = true;
}

bool store_write_is_noted(const struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    return world.is_noted;
}

void store_end(void)
{
    unsigned long long seed = (unsigned long long)world.options.seed;
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        cr_assert(s->pins == 0 && s->holds == 0, "a pin is left: seed %llu", seed);
        list_remove(&s->node);
        free(s);
    }
    cr_assert(list_empty(&world.runs), "a run is left: seed %llu", seed);
}

// Of the world's one bucket: what is there is confirmed before it is used.
void store_doubt(struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)bucket;
    check(span_equal_cstr(origin, origin_endpoint(NULL)));
    for (unsigned i = 0; i < WORLD_KEYS; i++) {
        world.keys[i].rebuilt |= world.keys[i].found;
    }
}

bool store_is_doubted(const struct store *store, struct span origin, struct span bucket,
                      uint64_t age_ms)
{
    (void)store;
    (void)origin;
    (void)bucket;
    (void)age_ms;
    return false;
}

uint64_t store_doubt_until_s(const struct store *store, struct span origin, struct span bucket)
{
    (void)store;
    (void)origin;
    (void)bucket;
    return 0;
}
