// SPDX-License-Identifier: Apache-2.0
#include "fill_life.h"

#include <stdlib.h>

#include "fill/fill.h"
#include "life.h"
#include "origin_play.h"
#include "schedule.h"
#include "turns.h"

#define ASKS_MAX 50u
#define RUN_BLOCKS 64u

static struct fill_room *room;

static void on_invalidated(void *ctx, struct worker *w, const struct object_key *key)
{
    (void)ctx, (void)w, (void)key; // nothing else is remembered of it
}

void fill_life_begin(void)
{
    struct fill_options options = {
        .store = alive.store, .stripe_bytes = 2 * BLOCK, .on_invalidated = on_invalidated};
    room = fill_room_new(&options);
}

void fill_life_end(void)
{
    fill_room_free(room);
}

struct object_key *fill_life_key(unsigned key)
{
    char name[16];
    struct object_key from = {.bucket = SPAN("bucket"),
                              .key = name_of(key, name, sizeof(name)),
                              .epoch = fill_epoch(alive.store, NULL, SPAN("bucket")),
                              .limits = {.cache = true, .block_size_bytes = BLOCK}};
    return object_key_new(alive.store, &from);
}

uint64_t fill_life_floor(struct worker *w, struct hash128 hash)
{
    return fill_floor(fill_worker_of(w), hash);
}

// --- readers

struct get {
    struct fill_ask ask;
    unsigned worker, key;
    unsigned least; // version that was acknowledged when it began
    unsigned asks;
    bool confirms; // asks the origin, even if a version is cached
    uint64_t next;
    uint64_t done; // so much it has of the version it asked for last
};

static void on_change(void *ctx, struct subscription *sub);

static void get_end(struct get *g)
{
    object_key_unref(g->ask.key);
    store_object_unref(g->ask.object);
    free(g);
    alive.open--;
}

static void get_go_on(struct worker *w, struct get *g);
static void get_ask(struct worker *w, struct get *g, struct store_object *object, uint64_t byte,
                    bool revalidate);

static unsigned judge_answer(const struct get *g, const struct store_object *answer)
{
    unsigned number = number_of(g->key, hash64(answer->etag.ptr, answer->etag.len, 0));
    if (number < g->least) {
        life_fail("key %u: a reader is given version %u after an acknowledged write of %u", g->key,
                  number, g->least);
    }
    return number;
}

static void take_pieces(struct get *g, struct subscription *sub)
{
    struct list_node *node;
    while ((node = list_first(&sub->pieces)) != NULL) {
        const struct piece *piece = container_of(node, struct piece, node);
        unsigned number = judge_answer(g, sub->answer);
        uint64_t skip = (8 - piece->first_byte % 8) % 8;
        if (piece->chunk != NULL && skip < piece->len) {
            judge_bytes(g->key, number, piece->first_byte + skip,
                        (struct span){piece->chunk->data + piece->offset + skip,
                                      piece->len - (size_t)skip});
            past->tally[TALLY_SERVED]++;
        }
        g->next = piece->first_byte + piece->len;
        subscription_pop(sub);
    }
}

static void on_change(void *ctx, struct subscription *sub)
{
    struct get *g = ctx;
    struct worker *w = turns_worker(g->worker);
    take_pieces(g, sub);
    if (sub->state != SUBSCRIPTION_ENDED) {
        if (schedule_random(50) == 0) { // the client is gone
            subscription_leave(sub);
            get_end(g);
        } else if (sub->state == SUBSCRIPTION_ATTACHED && g->next > 0) {
            subscription_want(sub, g->next);
        }
        return;
    }
    enum subscription_outcome outcome = sub->outcome;
    enum err err = sub->err;
    struct store_object *answer = sub->answer != NULL ? store_object_ref(sub->answer) : NULL;
    if (sub->answer != NULL && outcome != OUTCOME_ERROR) {
        unsigned number = judge_answer(g, sub->answer);
        tell("key %u version %u: outcome %d %s", g->key, number, (int)outcome,
             error_row(err)->name);
    } else if (outcome == OUTCOME_REVALIDATED && err == ERR_NOT_MODIFIED) {
        (void)judge_answer(g, g->ask.object);
    }
    subscription_leave(sub);
    if (outcome == OUTCOME_DONE && answer != NULL && g->next > 0 && g->next < answer->size_bytes &&
        g->next % BLOCK == 0) {
        g->done = g->next;
        get_ask(w, g, answer, g->next, false); // a run ends with its owner's stripe
        return;
    }
    if (outcome == OUTCOME_REVALIDATED && answer != NULL && g->ask.object == NULL) {
        get_ask(w, g, answer, 0, false); // its bytes could not be described here
        return;
    }
    store_object_unref(answer);
    if (outcome == OUTCOME_REJOIN && !g->confirms) {
        get_go_on(w, g);
        return;
    }
    if (outcome == OUTCOME_ERROR && past->plan.is_honest && err != ERR_ORIGIN_RESET) {
        life_fail("key %u: a reader failed: %s", g->key, error_row(err)->name);
    }
    get_end(g);
}

// Returns the cached version if its header can be read now, and sets the position from which on it
// is missing. UINT64_MAX: all is cached.
static struct store_object *held(struct worker *w, const struct get *g, bool *ret_found,
                                 bool *ret_rebuilt, uint64_t *ret_missing)
{
    static struct store_view view;
    const struct object_key *key = g->ask.key;
    struct store_object *object = NULL;
    *ret_missing = g->done;
    *ret_found = *ret_rebuilt = false;
    store_lookup(w, alive.store, key->hash, 0, 6 * BLOCK, fill_life_floor(w, key->hash), &view);
    if (view.found) {
        (void)judge_view(g->key, &view, g->least);
        const struct store_place *place = view.place_count > 0 ? &view.places[0] : &view.any;
        for (unsigned i = 0; i < view.place_count; i++) {
            uint64_t begin = view.places[i].first_block * BLOCK;
            *ret_missing =
                begin <= *ret_missing ? begin + view.places[i].payload_len : *ret_missing;
        }
        bool is_whole = view.place_count > 0 && *ret_missing >= view.size_bytes;
        *ret_missing = is_whole ? UINT64_MAX : *ret_missing / BLOCK * BLOCK;
        *ret_rebuilt = view.rebuilt;
        *ret_found = true;
        if (place->segment != NULL && store_object_get(w, alive.store, place, key->hash, key->realm,
                                                       key->bucket, key->key, &object) != ERR_OK) {
            object = NULL;
        }
    }
    store_view_done(&view);
    return object;
}

// From the block on that begins at `byte`, or is it still current? Takes the reference to `object`.
static void get_ask(struct worker *w, struct get *g, struct store_object *object, uint64_t byte,
                    bool revalidate)
{
    if (++g->asks > ASKS_MAX) {
        life_fail("key %u: asked for ever", g->key);
    }
    store_object_unref(g->ask.object);
    g->ask.object = object;
    g->ask.kind = revalidate ? FILL_ASK_CURRENT : FILL_ASK_BYTES;
    g->ask.first_byte = byte;
    g->ask.block = byte / BLOCK;
    g->next = 0;
    (void)subscription_ask(fill_worker_of(w), &g->ask, on_change, g);
}

// Works as a request does: a cached version is confirmed if necessary, and missing bytes are
// requested from the first one on.
static void get_go_on(struct worker *w, struct get *g)
{
    bool found, rebuilt;
    uint64_t missing;
    struct store_object *object = held(w, g, &found, &rebuilt, &missing);
    if (g->done > 0 && (object == NULL || !span_equal(object->etag, g->ask.object->etag))) {
        g->done = 0; // that was another version
        store_object_unref(object);
        object = held(w, g, &found, &rebuilt, &missing);
    }
    if (object != NULL && (rebuilt || g->confirms)) {
        get_ask(w, g, object, 0, true);
    } else if (g->confirms || (missing == UINT64_MAX && !rebuilt)) {
        store_object_unref(object); // the step that reads looks at it
        get_end(g);
    } else {
        past->tally[TALLY_STORED] += object == NULL;
        // The version cannot be described now, so the home has to find out which one is current.
        bool revalidate = object == NULL && found;
        g->ask.index = revalidate ? FILL_INDEX_UNREADABLE : FILL_INDEX_COUNTS;
        get_ask(w, g, object, object != NULL ? missing : 0, revalidate);
    }
}

static void do_get(struct worker *w, void *ctx)
{
    const struct get *wanted = ctx;
    struct get *g = calloc(1, sizeof(*g));
    check(g != NULL);
    *g = *wanted;
    g->least = past->keys[g->key].acked_number;
    g->ask = (struct fill_ask){.key = fill_life_key(g->key),
                               .no_pages = true,
                               .block_count = RUN_BLOCKS,
                               .block_size_bytes = BLOCK};
    alive.open++;
    get_go_on(w, g);
}

void fill_life_get(unsigned worker, unsigned key)
{
    struct get wanted = {.worker = worker, .key = key};
    turns_on_worker(worker, do_get, &wanted);
}

void fill_life_confirm(unsigned worker, unsigned key)
{
    struct get wanted = {.worker = worker, .key = key, .confirms = true};
    turns_on_worker(worker, do_get, &wanted);
}

// --- writers

struct writer {
    struct key_write kw;
    unsigned key, number; // 0: the origin was not asked
};

static void on_ready(struct key_write *kw)
{
    struct writer *writer = container_of(kw, struct writer, kw);
    tell("write of key %u may begin: %s", writer->key, error_row(kw->err)->name);
    if (kw->err == ERR_OK) {
        writer->number = ++past->keys[writer->key].number;
        check(writer->number < VERSIONS_MAX);
    } else {
        past->tally[TALLY_DELETES_FAILED]++;
        if (past->plan.is_honest && past->plan.lives[past->life].disk.slow_per_k == 0) {
            life_fail("key %u: a write is refused", writer->key);
        }
    }
    invalidate_end(kw->at, kw);
}

static void on_ended(struct key_write *kw)
{
    struct writer *writer = container_of(kw, struct writer, kw);
    struct key_past *k = &past->keys[writer->key];
    tell("write of key %u version %u is acknowledged", writer->key, writer->number);
    k->acked_number = k->acked_number > writer->number ? k->acked_number : writer->number;
    past->tally[TALLY_ACKNOWLEDGED]++;
    object_key_unref(kw->key);
    free(writer);
    alive.open--;
}

static void do_write(struct worker *w, void *ctx)
{
    struct writer *writer = calloc(1, sizeof(*writer));
    check(writer != NULL);
    writer->key = *(unsigned *)ctx;
    writer->kw.key = fill_life_key(writer->key);
    writer->kw.on_ready = on_ready;
    writer->kw.on_ended = on_ended;
    alive.open++;
    invalidate_begin(fill_worker_of(w), &writer->kw);
}

void fill_life_write(unsigned worker, unsigned key)
{
    turns_on_worker(worker, do_write, &key);
}

struct bucket_writer {
    struct bucket_write bw;
    unsigned numbers[PLAN_KEYS];
    bool is_written;
};

static void on_bucket_ready(struct bucket_write *bw)
{
    struct bucket_writer *writer = container_of(bw, struct bucket_writer, bw);
    tell("write of the bucket may begin: %s", error_row(bw->err)->name);
    if (bw->err == ERR_OK) {
        writer->is_written = true;
        for (unsigned key = 0; key < PLAN_KEYS; key++) {
            writer->numbers[key] = ++past->keys[key].number;
        }
    } else if (past->plan.is_honest) {
        life_fail("a write of the bucket is refused");
    }
    invalidate_bucket_end(bw->at, bw);
}

static void on_bucket_ended(struct bucket_write *bw)
{
    struct bucket_writer *writer = container_of(bw, struct bucket_writer, bw);
    for (unsigned key = 0; key < PLAN_KEYS && writer->is_written; key++) {
        struct key_past *k = &past->keys[key];
        k->acked_number =
            k->acked_number > writer->numbers[key] ? k->acked_number : writer->numbers[key];
    }
    past->tally[TALLY_EPOCHS]++;
    tell("write of the bucket is acknowledged");
    free(writer);
    alive.open--;
}

static void do_write_bucket(struct worker *w, void *ctx)
{
    (void)ctx;
    struct bucket_writer *writer = calloc(1, sizeof(*writer));
    check(writer != NULL);
    writer->bw.on_ready = on_bucket_ready;
    writer->bw.on_ended = on_bucket_ended;
    alive.open++;
    invalidate_bucket_begin(fill_worker_of(w), &writer->bw, NULL, SPAN("bucket"));
}

void fill_life_write_bucket(unsigned worker)
{
    turns_on_worker(worker, do_write_bucket, NULL);
}
