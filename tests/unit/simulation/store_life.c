// SPDX-License-Identifier: Apache-2.0
// One life of a store: opens it, goes through the steps, judges all that it gives back.
#include "life.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "past.h"
#include "schedule.h"
#include "stats/stats.h"
#include "store/store.h"
#include "turns.h"

#define SIZE_BYTES (16ull << 20)
#define BLOCK 65536u
#define BULK_AT_ONCE 12u
#define PATIENCE_US 900000000u // longer than any time-out of the store's
#define LAST_CALLS_US 61000000u

struct past *past;

static struct {
    struct store *store;
    const char *dir;
    bool is_attached;      // it uses its directory
    uint64_t floors[KEYS]; // of this process: nothing below is found, whatever it is
    unsigned writing[KEYS];
    unsigned open; // fetches, reads, writes, epochs that have not ended
    unsigned open_writes;
    bool is_epoch_open;
    struct fetch *fetches;
} life;

// --- ends

static bool is_durable_since(uint64_t at_us)
{
    return past->plan.is_honest && past->plan.lives[past->life].disk.slow_per_k == 0 &&
           schedule_monotonic_us() >= at_us + DURABLE_US;
}

static void past_becomes_durable(void)
{
    for (unsigned i = 0; i < past->put_count; i++) {
        struct put_past *put = &past->puts[i];
        put->is_durable |= put->life == past->life && is_durable_since(put->at_us);
    }
    for (unsigned i = 0; i < KEYS; i++) {
        struct key_past *k = &past->keys[i];
        k->is_kept = k->is_kept && (k->is_durable || is_durable_since(k->kept_at_us));
        k->is_durable = k->is_kept;
    }
}

static void life_over(int code) __attribute__((noreturn));
static void life_over(int code)
{
    past_becomes_durable();
    past->monotonic_us = schedule_monotonic_us();
    past->wall_us = schedule_wall_us();
    if (disk_has_lied() && !past->has_lied) {
        past->has_lied = true;
        past->tally[TALLY_LIES]++;
    }
    _exit(code);
}

void life_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = snprintf(past->failure, sizeof(past->failure), "life %u: ", past->life);
    (void)vsnprintf(past->failure + len, sizeof(past->failure) - (size_t)len, format, args);
    va_end(args);
    life_over(LIFE_FAILED);
}

void life_end(void)
{
    bool is_kill = past->plan.lives[past->life].disk.end == DISK_END_KILL;
    past->tally[is_kill ? TALLY_KILLS : TALLY_CUTS]++;
    past->tally[TALLY_CUTS_AT_START] += past->is_opening;
    life_over(LIFE_STRUCK);
}

void life_is_bystander(void)
{
    disk_is_bystander();
}

static void tell(const char *format, ...) PRINTF_LIKE(1, 2);
static void tell(const char *format, ...)
{
    if (!past->is_loud) {
        return;
    }
    va_list args;
    va_start(args, format);
    fprintf(stderr, "    %llu ms, call %u: ", (unsigned long long)schedule_monotonic_us() / 1000,
            disk_calls());
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

// --- versions

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t size_of(unsigned key, unsigned number)
{
    uint64_t dice = mix(key * 1000 + number + 1);
    if (key >= PLAN_KEYS) {
        return 3 * BLOCK + dice % BLOCK;
    }
    static const uint64_t sizes[] = {0, 700, 9000, 70000, BLOCK, 2 * BLOCK + 1, 150000, 5 * BLOCK};
    return sizes[dice % ARRAY_LEN(sizes)];
}

static uint64_t word_of(unsigned key, unsigned number, uint64_t at)
{
    return mix(((uint64_t)key << 32 | number) * 0x9e3779b97f4a7c15u + at);
}

// `offset` is a multiple of 8.
static void bytes_of(unsigned key, unsigned number, uint64_t offset, char *ret_bytes, size_t len)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = word_of(key, number, (offset + i) / 8);
        memcpy(ret_bytes + i, &word, min_u64(8, len - i));
    }
}

static void judge_bytes(unsigned key, unsigned number, uint64_t offset, struct span bytes)
{
    static char expected[CHUNK_SIZE];
    for (size_t at = 0; at < bytes.len; at += sizeof(expected)) {
        size_t len = min_u64(sizeof(expected), bytes.len - at);
        bytes_of(key, number, offset + at, expected, len);
        if (memcmp(expected, bytes.ptr + at, len) != 0) {
            life_fail("key %u version %u: wrong bytes from %llu on", key, number,
                      (unsigned long long)(offset + at));
        }
    }
}

static struct span etag_of(unsigned number, char *text, size_t size)
{
    return (struct span){text, (size_t)snprintf(text, size, "\"v%u\"", number)};
}

static struct span name_of(unsigned key, char *text, size_t size)
{
    return (struct span){text, (size_t)snprintf(text, size, "key-%u", key)};
}

// The epoch is part of the names.
static struct span realm_now(char *text, size_t size)
{
    uint64_t epoch = store_epoch(life.store, SPAN("origin"), SPAN("bucket"));
    return (struct span){text,
                         (size_t)snprintf(text, size, "realm-%llu", (unsigned long long)epoch)};
}

static struct hash128 hash_of(unsigned key)
{
    char realm[40], name[16];
    return store_hash(life.store, realm_now(realm, sizeof(realm)), SPAN("bucket"),
                      name_of(key, name, sizeof(name)));
}

static uint64_t generation_next(void)
{
    uint64_t generation = store_generation_next(life.store);
    if (!life.is_attached) {
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
    life.open--;
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
        store_put(w, life.store, f->object, &f->place, f->began_us);
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

// A version that is held whole goes by its generation still.
static uint64_t generation_for(struct worker *w, unsigned key, struct span etag)
{
    static struct store_view view;
    store_lookup(w, life.store, hash_of(key), 0, 1, life.floors[key], &view);
    bool is_same = view.found && !view.rebuilt && view.etag_hash == hash64(etag.ptr, etag.len, 0) &&
                   schedule_random(2) == 0;
    uint64_t generation = is_same ? view.generation : generation_next();
    store_view_done(&view);
    return generation;
}

static void do_fetch(struct worker *w, void *ctx)
{
    unsigned key = *(unsigned *)ctx;
    char realm[40], name[16], etag[16];
    unsigned number = past->keys[key].number;
    struct span tag = etag_of(number, etag, sizeof(etag));
    struct store_object *object = store_object_new(
        hash_of(key), realm_now(realm, sizeof(realm)), SPAN("bucket"),
        name_of(key, name, sizeof(name)), tag, (struct span){NULL, 0},
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
    life.open++;
    struct store_run *run;
    enum err err = store_run_begin(w, life.store, object, first, count, &run);
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
    turns_on_worker(schedule_random(TURNS_WORKERS), do_fetch, &key);
}

static void fetches_doom(unsigned key)
{
    past->keys[key].is_kept = past->keys[key].is_durable = false;
    for (struct fetch *f = life.fetches; f != NULL; f = f->next) {
        f->is_doomed |= f->key == key;
    }
}

// --- what is found

static unsigned number_of(unsigned key, const struct store_view *view)
{
    char text[16];
    for (unsigned n = past->keys[key].number + 1; n-- > 0;) {
        struct span etag = etag_of(n, text, sizeof(text));
        if (hash64(etag.ptr, etag.len, 0) == view->etag_hash) {
            return n;
        }
    }
    life_fail("key %u: a version that never was", key);
}

static unsigned judge_view(unsigned key, const struct store_view *view)
{
    const struct key_past *k = &past->keys[key];
    unsigned number = number_of(key, view);
    unsigned long long generation = view->generation;
    tell("found key %u version %u generation %llu%s, %u places", key, number, generation,
         view->rebuilt ? ", to be confirmed" : "", view->place_count);
    if (view->size_bytes != size_of(key, number)) {
        life_fail("key %u version %u: wrong size", key, number);
    }
    if (generation < life.floors[key]) {
        life_fail("key %u: found below a floor of this process", key);
    }
    if (generation < k->condemned_below && !past->has_lied) {
        life_fail("key %u: what was condemned is found, generation %llu", key, generation);
    }
    if (!view->rebuilt && generation < k->floor && !past->has_lied) { // they may have begun anew
        life_fail("key %u: generation %llu is found, deletes were answered up to %llu", key,
                  generation, (unsigned long long)k->floor);
    }
    if (!view->rebuilt && number < k->acked_number) {
        life_fail("key %u: version %u after an acknowledged write of %u", key, number,
                  k->acked_number);
    }
    return number;
}

struct reading {
    struct store_read read;
    struct store_view view;
    unsigned key, number, next;
    uint64_t at;
    bool is_header;
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
    if (err != ERR_CORRUPT && err != ERR_UNREADABLE && past->plan.is_honest) {
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
    } else if (r->is_header) {
        judge_header(r, read->object);
        store_object_unref(read->object);
        past->tally[TALLY_SERVED]++;
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

static void read_start(struct worker *w, struct reading *r, const struct store_place *place,
                       uint64_t len)
{
    char realm[40], name[16];
    memset(&r->read, 0, sizeof(r->read));
    r->read.store = life.store;
    r->read.place = *place;
    r->read.done = on_read;
    r->is_header = len == 0;
    if (r->is_header) {
        struct span key = name_of(r->key, name, sizeof(name));
        struct store_object *object;
        enum err err =
            store_object_get(w, life.store, place, place->hash, realm_now(realm, sizeof(realm)),
                             SPAN("bucket"), key, &object);
        if (err == ERR_OK) {
            judge_header(r, object);
            store_object_unref(object);
        } else if (err != ERR_AGAIN) {
            reading_failed(r, err);
        }
    }
    r->read.header = false;
    r->read.first_byte = r->at;
    r->read.len = len;
    store_read_start(w, &r->read);
}

static void judge_range(struct worker *w, struct reading *r, const struct store_place *place,
                        uint64_t len)
{
    struct file_range range;
    if (!store_range_ready(w, life.store, place, r->at, len, &range)) {
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
        r->at = r->at == UINT64_MAX ? begin : r->at;
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
    life.open--;
}

static void do_read(struct worker *w, void *ctx)
{
    unsigned key = *(unsigned *)ctx;
    struct reading *r = calloc(1, sizeof(*r));
    check(r != NULL);
    past->tally[TALLY_READ]++;
    store_lookup(w, life.store, hash_of(key), 0, 6 * BLOCK, life.floors[key], &r->view);
    if (!r->view.found && !r->view.unknown && past->keys[key].is_durable && !past->has_bulk) {
        life_fail("key %u: what was durable is lost", key);
    }
    if (r->view.found) {
        r->number = judge_view(key, &r->view);
        past->tally[TALLY_UNCONFIRMED] += r->view.rebuilt;
    }
    r->key = key;
    r->at = UINT64_MAX;
    life.open++;
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
    store_lookup(w, life.store, hash_of(key), 0, 1, life.floors[key], &view);
    if (view.found && judge_view(key, &view) == past->keys[key].number) {
        struct store_renewal renewal = {hash_of(key), view.generation};
        store_renew(w, life.store, &renewal, 1, worker_now_us(w));
        tell("renewed key %u generation %llu", key, (unsigned long long)view.generation);
        // What was found at the origin just now may be used, whatever was deleted before.
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
    life.floors[key] = floor;
    fetches_doom(key);
    tell("delete key %u below %llu", key, (unsigned long long)floor);
    store_delete(w, life.store, &write->deletion);
}

static void writing_free(struct writing *write)
{
    life.writing[write->key]--;
    life.open_writes--;
    life.open--;
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
    k->floor = max_u64(k->floor, life.is_attached ? d->floor : past->generation + 1);
    if (write->is_condemnation) {
        // Of a disk that takes no line some runs are forgotten: see src/store/index_condemn.c.
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
    life.open++;
    turns_on_worker(home_of(key), do_delete, write);
}

static void do_condemn(struct worker *w, void *ctx)
{
    static struct store_view view;
    unsigned key = *(unsigned *)ctx;
    store_lookup(w, life.store, hash_of(key), 0, 1, life.floors[key], &view);
    store_condemn(w, life.store, hash_of(key),
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
        if (life.is_attached) {
            past->epoch = store_epoch(life.store, SPAN("origin"), SPAN("bucket"));
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
    life.open--;
    free(raising);
}

static void do_raise(struct worker *w, void *ctx)
{
    struct raising *raising = ctx;
    store_epoch_begin(w, life.store, SPAN("origin"), SPAN("bucket"), &raising->change);
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
    life.open++;
    turns_on_worker(0, do_raise, raising);
}

// --- steps

static void judge_room(void)
{
    uint64_t used = disk_used_bytes(life.dir);
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
    while (life.open > 0 || !turns_are_over()) {
        turns_step(1000000);
        if (schedule_monotonic_us() > until_us) {
            life_fail("%u calls never ended", life.open);
        }
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
        write_key(key, false);
        break;
    case STEP_RENEW:
        if (life.writing[key] == 0 && !life.is_epoch_open) {
            turns_on_worker(home_of(key), do_renew, &key);
        }
        break;
    case STEP_CONDEMN:
        if (life.writing[key] == 0 && !life.is_epoch_open && life.is_attached) {
            turns_on_worker(home_of(key), do_condemn, &key);
            write_key(key, true);
        }
        break;
    case STEP_EPOCH:
        raise_epoch();
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
    struct store_options options = {
        .dir = life.dir,
        .size_bytes = SIZE_BYTES,
        .headroom_percent = 10,
        .block_size_bytes_max = BLOCK,
        .descriptors_max = plan->is_descriptors_few ? 2 : 0,
    };
    struct buf why;
    buf_init(&why, 4000);
    past->is_opening = true;
    enum err err = store_open(&options, NULL, &life.store, &why);
    past->is_opening = false;
    if (err == ERR_FORMAT && past->has_lied) {
        life_over(LIFE_REFUSED); // the file that says what the directory is never came to the disk
    }
    if (err != ERR_OK) {
        life_fail("does not open: %s: %s", error_row(err)->name, buf_cstr(&why));
    }
    buf_done(&why);
    struct store_summary summary;
    store_summarize(life.store, &summary);
    life.is_attached = summary.capacity_bytes > 0;
    if (!life.is_attached && past->plan.is_honest) {
        life_fail("does not use its directory");
    }
    uint64_t epoch = store_epoch(life.store, SPAN("origin"), SPAN("bucket"));
    if (past->has_index && past->plan.is_honest &&
        stats_sum(COUNTER_index_rebuilds) + stats_sum(COUNTER_degraded_index) > 0) {
        life_fail("the index is given up though the disk is honest");
    }
    past->has_index = true;
    if (epoch < past->epoch && life.is_attached && !past->has_lied) {
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

// Nothing fails any more: all is found out about, and the store takes what it is given.
static void last_calls(void)
{
    struct store_summary summary;
    go_on_for(LAST_CALLS_US);
    store_summarize(life.store, &summary);
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

void store_life(const char *dir)
{
    const struct life *plan = &past->plan.lives[past->life];
    bool is_last = past->life + 2 >= past->plan.life_count;
    life.dir = dir;
    if (!past->is_loud) {
        log_init(LOG_LEVEL_ERROR, false);
        check(freopen("/dev/null", "w", stderr) != NULL);
    }
    chunk_budget_init(256ull << 20);
    schedule_begin(past->plan.seed * 16 + past->life, past->monotonic_us, past->wall_us);
    disk_begin(dir, &plan->disk);
    turns_begin();
    open_store(plan);
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
        store_close(life.store);
        judge_room();
    } else {
        disk_strike();
    }
    tell("closed");
    life_over(0);
}
