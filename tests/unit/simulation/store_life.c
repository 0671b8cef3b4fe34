// SPDX-License-Identifier: Apache-2.0
// One life of a store: opens it, runs the steps, and judges everything that it returns.
#include "life.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "fill/object_key.h"
#include "fill_life.h"
#include "judge.h"
#include "origin_play.h"
#include "schedule.h"
#include "stats/stats.h"
#include "store/store_private.h"
#include "turns.h"

#define SIZE_BYTES (16ull << 20)
#define BULK_AT_ONCE 12u
#define PATIENCE_US 900000000u // longer than any time-out of the store's
#define LAST_CALLS_US 61000000u

static struct {
    unsigned writing[KEYS];
    unsigned open_writes;
    bool is_epoch_open;
    struct fetch *fetches;
} life;

// --- names and generations

struct names {
    struct hash128 hash;
    struct span realm, key;
    char realm_text[64], key_text[16];
};

// Returns the names under which a key is cached. The epoch is part of them.
static void names_of(unsigned key, struct names *ret_names)
{
    struct names *n = ret_names;
    n->key = name_of(key, n->key_text, sizeof(n->key_text));
    if (past->plan.has_fill) {
        struct object_key *made = fill_life_key(key);
        check(made->realm.len <= sizeof(n->realm_text));
        memcpy(n->realm_text, made->realm.ptr, made->realm.len);
        n->realm = (struct span){n->realm_text, made->realm.len};
        n->hash = made->hash;
        object_key_unref(made);
        return;
    }
    uint64_t epoch = store_epoch(alive.store, SPAN("origin"), SPAN("bucket"));
    int len =
        snprintf(n->realm_text, sizeof(n->realm_text), "realm-%llu", (unsigned long long)epoch);
    n->realm = (struct span){n->realm_text, (size_t)len};
    n->hash = store_hash(alive.store, n->realm, SPAN("bucket"), n->key);
}

static struct hash128 hash_of(unsigned key)
{
    struct names names;
    names_of(key, &names);
    return names.hash;
}

static uint64_t generation_next(void)
{
    uint64_t generation = store_generation_next(alive.store);
    if (!alive.is_attached) {
        return generation; // of this process alone
    }
    if (generation <= past->generation && !past->has_lied) {
        life_fail("generation %llu after %llu", (unsigned long long)generation,
                  (unsigned long long)past->generation);
    }
    past->generation = max_u64(past->generation, generation);
    return generation;
}

static unsigned home_of(unsigned key)
{
    return key % TURNS_WORKERS;
}

// --- fetches

struct fetch {
    struct fetch *next;
    struct message message;
    unsigned key, number;
    struct store_object *object;
    struct store_place place;
    uint64_t began_us;
    bool is_doomed;
};

static void fetch_free(struct fetch *f)
{
    struct fetch **at = &life.fetches;
    while (*at != f) {
        at = &(*at)->next;
    }
    *at = f->next;
    store_object_unref(f->object);
    free(f);
    alive.open--;
}

static void remember_put(const struct fetch *f)
{
    past->puts[past->put_count % PUTS_MAX] = (struct put_past){f->key,
                                                               past->life,
                                                               f->place.segment_number,
                                                               f->place.header_offset,
                                                               f->place.salt,
                                                               schedule_monotonic_us(),
                                                               false};
    past->put_count++;
    check(past->put_count < PUTS_MAX);
    struct key_past *k = &past->keys[f->key];
    bool is_named_so = hash128_equal(f->object->hash, hash_of(f->key)) && !life.is_epoch_open;
    if (is_named_so) { // a longer run, found by its header, may take an earlier one's place
        *k =
            (struct key_past){k->number, k->acked_number,        k->floor, k->condemned_below, true,
                              false,     schedule_monotonic_us()};
    }
}

// At the key's home.
static void on_publish(struct worker *w, struct message *message)
{
    struct fetch *f = container_of(message, struct fetch, message);
    if (!f->is_doomed) {
        store_put(w, alive.store, f->object, &f->place, NULL, f->began_us);
        past->tally[TALLY_STORED]++;
        remember_put(f);
        tell("put key %u version %u generation %llu", f->key, f->number,
             (unsigned long long)f->object->generation);
    }
    store_place_unhold(&f->place);
    store_place_unpin(&f->place);
    fetch_free(f);
}

static void on_run_written(void *ctx, enum err err, const struct store_place *place)
{
    struct fetch *f = ctx;
    if (err != ERR_OK) {
        fetch_free(f);
        return;
    }
    f->place = *place;
    f->message.deliver = on_publish;
    mailbox_send(turns_worker(home_of(f->key)), &f->message);
}

static void fetch_append(struct fetch *f, struct store_run *run, uint64_t first_block,
                         uint32_t count)
{
    uint64_t begin = first_block * BLOCK;
    uint64_t end = min_u64(f->object->size_bytes, begin + (uint64_t)count * BLOCK);
    for (uint64_t at = begin; at < end; at += CHUNK_SIZE) {
        struct chunk *chunk = chunk_new_forced();
        chunk->len = (uint32_t)min_u64(CHUNK_SIZE, end - at);
        bytes_of(f->key, f->number, at, chunk->data, chunk->len);
        store_run_append(run, chunk);
        chunk_unref(chunk);
    }
}

// Returns the generation for a new copy. A version that is cached already keeps its generation, in
// half of the cases.
static uint64_t generation_for(struct worker *w, unsigned key, struct span etag)
{
    static struct store_view view;
    store_lookup(w, alive.store, hash_of(key), 0, 1, alive.floors[key], &view);
    bool is_same = view.found && !view.rebuilt && view.etag_hash == hash64(etag.ptr, etag.len, 0) &&
                   schedule_random(2) == 0;
    uint64_t generation = is_same ? view.generation : generation_next();
    store_view_done(&view);
    return generation;
}

static void do_fetch(struct worker *w, void *ctx)
{
    unsigned key = *(unsigned *)ctx;
    struct names names;
    char etag[16];
    names_of(key, &names);
    unsigned number = past->keys[key].number;
    struct span tag = etag_of(number, etag, sizeof(etag));
    struct store_object *object = store_object_new(
        names.hash, names.realm, SPAN("bucket"), names.key, tag, (struct span){NULL, 0},
        SPAN("Content-Type: text/plain\r\n"), size_of(key, number), BLOCK, 1700000000);
    check(object != NULL);
    object->generation = generation_for(w, key, tag);
    uint32_t blocks = (uint32_t)store_object_block_count(object);
    uint64_t first = schedule_random(3) == 0 ? schedule_random(blocks) : 0;
    uint32_t count = schedule_random(3) == 0 ? 1 + schedule_random((unsigned)(blocks - first))
                                             : (uint32_t)(blocks - first);
    struct fetch *f = calloc(1, sizeof(*f));
    check(f != NULL);
    *f = (struct fetch){.next = life.fetches,
                        .key = key,
                        .number = number,
                        .object = object,
                        .began_us = worker_now_us(w)};
    life.fetches = f;
    alive.open++;
    struct store_run *run;
    enum err err = store_run_begin(w, alive.store, object, first, count,
                                   (struct store_run_use){.group = STORE_PRIORITY_NORMAL}, &run);
    if (err != ERR_OK) {
        tell("refused key %u: %s", key, error_row(err)->name);
        past->tally[TALLY_REFUSED]++;
        fetch_free(f);
        return;
    }
    fetch_append(f, run, first, count);
    if (schedule_random(16) == 0) {
        store_run_abort(run);
        fetch_free(f);
    } else {
        store_run_finish(run, schedule_random(8) == 0 ? 1 : count, on_run_written, f);
    }
}

static void fetch(unsigned key)
{
    unsigned worker = schedule_random(TURNS_WORKERS);
    if (past->plan.has_fill) {
        fill_life_get(worker, key);
    } else {
        turns_on_worker(worker, do_fetch, &key);
    }
}

static void fetches_doom(unsigned key)
{
    past->keys[key].is_kept = past->keys[key].is_durable = false;
    for (struct fetch *f = life.fetches; f != NULL; f = f->next) {
        f->is_doomed |= f->key == key;
    }
}

// --- reading

struct reading {
    struct store_read read;
    struct store_view view;
    unsigned key, number, next;
    uint64_t at;
};

static void reading_go_on(struct worker *w, struct reading *r);

static void judge_damage(const struct reading *r, const struct store_place *place)
{
    for (unsigned i = 0; i < past->put_count; i++) {
        const struct put_past *put = &past->puts[i];
        if (put->segment_number == place->segment_number &&
            put->header_offset == place->header_offset && put->salt == place->salt &&
            (put->is_durable || put->life == past->life) && past->plan.is_honest) {
            life_fail("key %u version %u: damaged on an honest disk", r->key, r->number);
        }
    }
}

static void reading_failed(struct reading *r, enum err err)
{
    if (err == ERR_CORRUPT) {
        judge_damage(r, &r->read.place);
    }
    if (err != ERR_CORRUPT && err != ERR_UNREADABLE && err != ERR_DESCRIPTORS &&
        past->plan.is_honest) {
        life_fail("key %u: read failed: %s", r->key, error_row(err)->name);
    }
    past->tally[TALLY_DAMAGED] += err == ERR_CORRUPT;
}

static void judge_header(const struct reading *r, const struct store_object *object)
{
    char text[16];
    if (!span_equal(object->etag, etag_of(r->number, text, sizeof(text))) ||
        !span_equal(object->key, name_of(r->key, text, sizeof(text)))) {
        life_fail("key %u: a header of something else", r->key);
    }
}

static void on_read(struct store_read *read)
{
    struct reading *r = container_of(read, struct reading, read);
    if (read->err != ERR_OK) {
        reading_failed(r, read->err);
        r->next++;
        r->at = UINT64_MAX;
    } else {
        for (unsigned i = 0; i < read->span_count; i++) {
            judge_bytes(r->key, r->number, r->at, read->spans[i]);
            r->at += read->spans[i].len;
        }
        past->tally[TALLY_SERVED]++;
    }
    for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
        chunk_unref(read->chunks[i]);
    }
    reading_go_on(read->worker, r);
}

// The ways that need no waiting, where they are open.
static void judge_at_once(struct worker *w, const struct reading *r,
                          const struct store_place *place)
{
    struct names names;
    struct store_object *object = NULL;
    struct chunk *chunk = NULL;
    struct span payload = {NULL, 0};
    names_of(r->key, &names);
    if (!hash128_equal(names.hash, place->hash)) {
        return; // the epoch has gone on
    }
    enum err err = store_object_get(w, alive.store, place, names.hash, names.realm, SPAN("bucket"),
                                    names.key, &object);
    if (err == ERR_OK) {
        judge_header(r, object);
        store_object_unref(object);
    }
    if (place->payload_len > STORE_SMALL_MAX) {
        return;
    }
    err = store_read_small(w, alive.store, place, names.hash, names.realm, SPAN("bucket"),
                           names.key, &object, &chunk, &payload);
    if (err == ERR_OK) {
        judge_header(r, object);
        judge_bytes(r->key, r->number, place->first_block * BLOCK, payload);
        store_object_unref(object);
        chunk_unref(chunk);
        past->tally[TALLY_SERVED]++;
    }
}

static void read_start(struct worker *w, struct reading *r, const struct store_place *place,
                       uint64_t len)
{
    memset(&r->read, 0, sizeof(r->read));
    r->read.store = alive.store;
    r->read.place = *place;
    r->read.done = on_read;
    r->read.first_byte = r->at;
    r->read.len = len;
    store_read_start(w, &r->read);
}

static void judge_range(struct worker *w, struct reading *r, const struct store_place *place,
                        uint64_t len)
{
    struct file_range range;
    if (!store_range_ready(w, alive.store, place, r->at, len, &range)) {
        return;
    }
    static char bytes[STORE_READ_MAX];
    int fd = range.borrow(range.release_ctx);
    if (fd >= 0) {
        bool is_whole = pread(fd, bytes, range.len, (off_t)range.offset) == (ssize_t)range.len;
        if (is_whole) {
            judge_bytes(r->key, r->number, r->at, (struct span){bytes, range.len});
        }
        range.give_back(range.release_ctx);
    }
    range.release(range.release_ctx);
}

static void reading_go_on(struct worker *w, struct reading *r)
{
    while (r->next < r->view.place_count) {
        const struct store_place *place = &r->view.places[r->next];
        uint64_t begin = place->first_block * BLOCK;
        if (r->at == UINT64_MAX) {
            judge_at_once(w, r, place);
            r->at = begin;
        }
        uint64_t left = begin + place->payload_len - r->at;
        if (left > 0) {
            uint64_t len = min_u64(left, schedule_random(2) == 0 ? STORE_READ_MAX : 8 * 5000);
            judge_range(w, r, place, len);
            read_start(w, r, place, len);
            return;
        }
        r->next++;
        r->at = UINT64_MAX;
    }
    store_view_done(&r->view);
    free(r);
    alive.open--;
}

static void do_read(struct worker *w, void *ctx)
{
    unsigned key = *(unsigned *)ctx;
    struct reading *r = calloc(1, sizeof(*r));
    check(r != NULL);
    past->tally[TALLY_READ]++;
    struct hash128 hash = hash_of(key);
    uint64_t floor = past->plan.has_fill ? fill_life_floor(w, hash) : alive.floors[key];
    store_lookup(w, alive.store, hash, 0, 6 * BLOCK, floor, &r->view);
    if (!r->view.found && !r->view.unknown && past->keys[key].is_durable && !past->has_bulk) {
        life_fail("key %u: what was durable is lost", key);
    }
    if (r->view.found) {
        r->number = judge_view(key, &r->view, past->keys[key].acked_number);
        past->tally[TALLY_UNCONFIRMED] += r->view.rebuilt;
    }
    r->key = key;
    r->at = UINT64_MAX;
    alive.open++;
    reading_go_on(w, r);
}

static void read_key(unsigned key)
{
    turns_on_worker(schedule_random(TURNS_WORKERS), do_read, &key);
}

static void do_renew(struct worker *w, void *ctx)
{
    static struct store_view view;
    unsigned key = *(unsigned *)ctx;
    store_lookup(w, alive.store, hash_of(key), 0, 1, alive.floors[key], &view);
    if (view.found &&
        judge_view(key, &view, past->keys[key].acked_number) == past->keys[key].number) {
        struct store_renewal renewal = {.hash = hash_of(key), .generation = view.generation};
        store_renew(w, alive.store, &renewal, 1, worker_now_us(w));
        tell("renewed key %u generation %llu", key, (unsigned long long)view.generation);
        // The version was found at the origin just now, so it may be used after earlier deletes.
        past->keys[key].floor = min_u64(past->keys[key].floor, view.generation);
    }
    store_view_done(&view);
}

// --- writes

struct writing {
    struct store_delete deletion;
    unsigned key;
    bool is_second, is_condemnation;
    unsigned refusals; // of the disk, when it began
};

static void on_deleted(struct store_delete *d);

static void do_delete(struct worker *w, void *ctx)
{
    struct writing *write = ctx;
    unsigned key = write->key;
    uint64_t floor = generation_next();
    write->deletion =
        (struct store_delete){.hash = hash_of(key), .floor = floor, .done = on_deleted};
    alive.floors[key] = floor;
    fetches_doom(key);
    tell("delete key %u below %llu", key, (unsigned long long)floor);
    store_delete(w, alive.store, &write->deletion);
}

static void writing_free(struct writing *write)
{
    life.writing[write->key]--;
    life.open_writes--;
    alive.open--;
    free(write);
}

static void on_deleted(struct store_delete *d)
{
    struct writing *write = container_of(d, struct writing, deletion);
    struct key_past *k = &past->keys[write->key];
    tell("deleted key %u below %llu: %s", write->key, (unsigned long long)d->floor,
         error_row(d->err)->name);
    if (d->err != ERR_OK) {
        past->tally[TALLY_DELETES_FAILED]++;
        if (past->plan.is_honest && past->plan.lives[past->life].disk.slow_per_k == 0) {
            life_fail("key %u: delete failed", write->key);
        }
        writing_free(write);
        return;
    }
    k->floor = max_u64(k->floor, alive.is_attached ? d->floor : past->generation + 1);
    if (write->is_condemnation) {
        // If the disk takes no line, some runs are forgotten: see src/store/index/index_condemn.c.
        bool has_line = disk_refusals() == write->refusals;
        k->condemned_below = has_line ? d->floor : k->condemned_below;
        past->tally[TALLY_CONDEMNED]++;
        writing_free(write);
    } else if (!write->is_second) {
        k->number++;
        check(k->number < VERSIONS_MAX);
        write->is_second = true;
        turns_on_worker(home_of(write->key), do_delete, write);
    } else {
        k->acked_number = k->number;
        past->tally[TALLY_ACKNOWLEDGED]++;
        writing_free(write);
    }
}

static void write_key(unsigned key, bool is_condemnation)
{
    if (life.writing[key] > 0 || life.is_epoch_open) {
        return;
    }
    struct writing *write = calloc(1, sizeof(*write));
    check(write != NULL);
    write->key = key;
    write->is_condemnation = is_condemnation;
    write->refusals = disk_refusals();
    life.writing[key]++;
    life.open_writes++;
    alive.open++;
    turns_on_worker(home_of(key), do_delete, write);
}

static void do_condemn(struct worker *w, void *ctx)
{
    static struct store_view view;
    unsigned key = *(unsigned *)ctx;
    store_lookup(w, alive.store, hash_of(key), 0, 1, alive.floors[key], &view);
    store_condemn(w, alive.store, hash_of(key),
                  view.found && view.place_count > 0 ? &view.places[0] : NULL);
    store_view_done(&view);
}

// --- epochs

struct raising {
    struct store_epoch_change change;
};

static void on_raised(struct store_epoch_change *change, enum err err)
{
    struct raising *raising = container_of(change, struct raising, change);
    tell("epoch: %s", error_row(err)->name);
    if (err == ERR_OK) {
        if (alive.is_attached) {
            past->epoch = store_epoch(alive.store, SPAN("origin"), SPAN("bucket"));
        }
        for (unsigned key = 0; key < KEYS; key++) { // that changed the names of all
            past->keys[key].is_kept = past->keys[key].is_durable = false;
        }
        for (unsigned key = 0; key < PLAN_KEYS; key++) {
            past->keys[key].number++;
        }
        store_epoch_end(change);
        for (unsigned key = 0; key < PLAN_KEYS; key++) {
            past->keys[key].acked_number = past->keys[key].number;
        }
        past->tally[TALLY_EPOCHS]++;
    } else if (past->plan.is_honest) {
        life_fail("the epoch could not be raised");
    }
    life.is_epoch_open = false;
    alive.open--;
    free(raising);
}

static void do_raise(struct worker *w, void *ctx)
{
    struct raising *raising = ctx;
    store_epoch_begin(w, alive.store, SPAN("origin"), SPAN("bucket"), &raising->change);
}

static void raise_epoch(void)
{
    if (life.open_writes > 0 || life.is_epoch_open) {
        return;
    }
    struct raising *raising = calloc(1, sizeof(*raising));
    check(raising != NULL);
    raising->change.done = on_raised;
    for (unsigned key = 0; key < KEYS; key++) {
        past->keys[key].is_kept = past->keys[key].is_durable = false;
    }
    life.is_epoch_open = true;
    alive.open++;
    turns_on_worker(0, do_raise, raising);
}

// --- steps

static void judge_room(void)
{
    uint64_t used = disk_used_bytes(alive.dir);
    if (used > SIZE_BYTES) {
        life_fail("%llu bytes on disk", (unsigned long long)used);
    }
}

static void go_on_for(uint64_t us)
{
    for (uint64_t until_us = schedule_monotonic_us() + us; schedule_monotonic_us() < until_us;) {
        turns_step(until_us - schedule_monotonic_us());
    }
}

static void settle(void)
{
    uint64_t until_us = schedule_monotonic_us() + PATIENCE_US;
    while (alive.open > 0 || !turns_are_over() || !origin_play_is_over()) {
        turns_step(1000000);
        if (schedule_monotonic_us() > until_us) {
            life_fail("%u calls never ended", alive.open);
        }
    }
    static uint64_t told, told_given;
    uint64_t rewritten = stats_sum(COUNTER_retention_rewritten_bytes);
    uint64_t given = stats_sum(COUNTER_segment_given_bytes);
    past->tally[TALLY_REWRITTEN] += (rewritten - told) / 1024;
    past->tally[TALLY_GIVEN] += (given - told_given) / 1024;
    told = rewritten;
    told_given = given;
}

static void change_something(const struct step *step)
{
    unsigned key = step->key;
    bool is_free = life.writing[key] == 0 && !life.is_epoch_open;
    switch (step->kind) {
    case STEP_WRITE:
        write_key(key, false);
        break;
    case STEP_RENEW:
        if (is_free) {
            turns_on_worker(home_of(key), do_renew, &key);
        }
        break;
    case STEP_CONDEMN:
        if (is_free && alive.is_attached) {
            turns_on_worker(home_of(key), do_condemn, &key);
            write_key(key, true);
        }
        break;
    default:
        raise_epoch();
        break;
    }
}

static void change_by_fill(const struct step *step)
{
    unsigned worker = schedule_random(TURNS_WORKERS);
    switch (step->kind) {
    case STEP_WRITE:
        fill_life_write(worker, step->key);
        break;
    case STEP_RENEW:
        fill_life_confirm(worker, step->key);
        break;
    case STEP_EPOCH:
        fill_life_write_bucket(worker);
        break;
    default: // it condemns what contradicts a checksum of the origin's: the played one has none
        break;
    }
}

static void take_step(const struct step *step)
{
    schedule_seed(step->seed);
    tell("%s", step_name(step->kind));
    unsigned key = step->key;
    switch (step->kind) {
    case STEP_FETCH:
        fetch(key);
        break;
    case STEP_READ:
        read_key(key);
        break;
    case STEP_WRITE:
    case STEP_RENEW:
    case STEP_CONDEMN:
    case STEP_EPOCH:
        if (past->plan.has_fill) {
            change_by_fill(step);
        } else {
            change_something(step);
        }
        break;
    case STEP_BULK:
        past->has_bulk = true;
        for (unsigned i = 0; i < BULK_AT_ONCE; i++) {
            fetch(PLAN_KEYS + (step->amount + i) % PLAN_BULK_KEYS);
            turns_step(1000);
        }
        break;
    case STEP_WAIT:
        go_on_for(step->amount % 3 == 0 ? step->amount * 3000 : step->amount);
        break;
    case STEP_SETTLE:
        settle();
        break;
    case STEP_KINDS_:
        break;
    }
    for (unsigned turns = schedule_random(12); turns > 0; turns--) {
        turns_step(100);
    }
    judge_room();
}

static void open_store(const struct life *plan)
{
    // There are enough small segments for survivors to be rewritten. Half of each survive.
    bool learns = past->plan.has_policy;
    check(setenv("FOREBAY_SEGMENT_SIZE", learns ? "1048576" : "", 1) == 0);
    struct store_options options = {
        .policy = learns ? STORE_POLICY_EPOCH : STORE_POLICY_LRU,
        .dir = alive.dir,
        .size_bytes = SIZE_BYTES,
        .headroom_percent = learns ? 35 : 10,
        .block_size_bytes_max = BLOCK,
        .descriptors_max = plan->is_descriptors_few ? 2 : 0,
    };
    struct buf why;
    buf_init(&why, 4000);
    past->is_opening = true;
    enum err err = store_open(&options, NULL, &alive.store, &why);
    past->is_opening = false;
    if (err == ERR_FORMAT && past->has_lied) {
        life_over(LIFE_REFUSED); // the file that says what the directory is never came to the disk
    }
    if (err != ERR_OK) {
        life_fail("does not open: %s: %s", error_row(err)->name, buf_cstr(&why));
    }
    buf_done(&why);
    atomic_store(&alive.store->retention.keeps_half, learns);
    struct store_summary summary;
    store_summarize(alive.store, &summary);
    alive.is_attached = summary.capacity_bytes > 0;
    if (!alive.is_attached && past->plan.is_honest) {
        life_fail("does not use its directory");
    }
    uint64_t epoch = store_epoch(alive.store, SPAN("origin"), SPAN("bucket"));
    if (past->has_index && past->plan.is_honest &&
        (stats_sum(COUNTER_index_rebuilds) > 0 || summary.rebuilding)) {
        life_fail("the index was discarded although the disk is honest");
    }
    past->has_index = true;
    if (epoch < past->epoch && alive.is_attached && !past->has_lied) {
        life_fail("epoch %llu after %llu", (unsigned long long)epoch,
                  (unsigned long long)past->epoch);
    }
}

// At once, or when room has been made.
static void must_be_taken(unsigned key)
{
    unsigned long refused;
    unsigned tries = 0;
    do {
        if (++tries > 5) {
            life_fail("refuses key %u though nothing fails", key);
        }
        refused = past->tally[TALLY_REFUSED];
        fetch(key);
        settle();
        go_on_for(tries * 1000000);
    } while (past->tally[TALLY_REFUSED] != refused);
}

// Nothing fails any more: the store finds out about everything, and stores what it gets.
static void last_calls(void)
{
    struct store_summary summary;
    go_on_for(LAST_CALLS_US);
    store_summarize(alive.store, &summary);
    if (summary.degraded || summary.rebuilding) {
        life_fail("degraded %d, rebuilding %d though nothing fails", summary.degraded,
                  summary.rebuilding);
    }
    for (unsigned key = 0; key < PLAN_KEYS; key++) {
        read_key(key);
        settle();
        must_be_taken(key);
        read_key(key);
        settle();
    }
    for (unsigned key = PLAN_KEYS; key < KEYS; key++) {
        read_key(key);
    }
    settle();
    judge_room();
}

// One thread runs at a time, so handing on is faster that way.
static void stay_on_one_processor(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    (void)sched_setaffinity(0, sizeof(one), &one); // where that is refused it only takes longer
}

void store_life(const char *dir)
{
    const struct life *plan = &past->plan.lives[past->life];
    bool is_last = past->life + 2 >= past->plan.life_count;
    alive.dir = dir;
    if (!past->is_loud) {
        log_init(LOG_LEVEL_ERROR, false);
        check(freopen("/dev/null", "w", stderr) != NULL);
    }
    chunk_budget_init(256ull << 20);
    stay_on_one_processor();
    schedule_begin(past->plan.seed * 16 + past->life, past->monotonic_us, past->wall_us);
    disk_begin(dir, &plan->disk);
    turns_begin(past->plan.has_fill ? origin_play_step : NULL);
    open_store(plan);
    if (past->plan.has_fill) {
        fill_life_begin();
    }
    tell("open");
    judge_room();
    for (unsigned i = 0; i < plan->step_count; i++) {
        if (!plan->steps[i].is_left_out) {
            take_step(&plan->steps[i]);
        }
    }
    if (is_last) {
        last_calls();
    }
    if (plan->ending == ENDING_STOP) {
        settle();
        if (past->plan.has_fill) {
            fill_life_end();
        }
        store_close(alive.store);
        judge_room();
    } else {
        disk_strike();
    }
    tell("closed");
    life_over(0);
}
