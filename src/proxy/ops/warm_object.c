// SPDX-License-Identifier: Apache-2.0
// Warms one object of a job. It looks up the cached bytes as a reader would, and requests the
// missing ones run by run. These requests have a lower priority than those of readers. If a reader
// requests the same run, fill joins the two requests. Runs on the job's worker.
//
//   version not known   requests the first run from the key's home (ROUTE), which names the version
//   version known       confirms the version first, if the listing names another one or it is
//                       stale by its rule. Then requests each missing run from its stripe's
//                       owner (JOIN)
//   all bytes cached    asks the home for the checksums, unless the record or a run's header has
//                       them
//   version replaced    restarts, a few times. The owner (GONE) or the home has found it out
//   not stored for now  waits for the other runs in flight, and restarts later (warm_pace.c)
#include "proxy/ops/warm_private.h"

#include <stdlib.h>
#include <string.h>

#define WINDOWS_MAX 16u // maximum windows looked up in one step

struct warm_run_node {
    struct list_node node;
    struct warm_run run;
};

// Takes the key and the rule from the present settings.
static void take_rule(struct warm_object *o, struct span key)
{
    const struct proxy_warm *job = o->job;
    o->live = live_ref(job->pw->live);
    o->key = inspect_key(job->proxy, o->live, job->proxy->realm, o->item->bucket, key);
    o->rule = rules_find(o->live, o->item->bucket, key);
}

struct warm_object *warm_object_new(struct proxy_warm *job, struct warm_item *item, struct span key,
                                    const struct list_entry *entry)
{
    struct warm_object *o = calloc(1, sizeof(*o));
    check(o != NULL);
    check(item->refs > 0);
    o->job = job;
    o->item = item;
    item->refs++;
    list_node_init(&o->node);
    list_init(&o->runs);
    take_rule(o, key);
    o->end_byte = UINT64_MAX;
    o->size_bytes = WARM_SIZE_UNKNOWN;
    check(item->is_prefix == (entry != NULL));
    if (entry != NULL) {
        o->listed_size = o->wanted_bytes = entry->size_bytes;
        o->listed_etag = entry->etag_hash;
        fill_describe_listed(job->pw->fill, o->key->bucket, o->key->key, entry->size_bytes);
    } else {
        o->first_byte = o->at = item->first_byte;
        o->end_byte = item->end_byte;
    }
    return o;
}

void warm_object_free(struct warm_object *o)
{
    check(o->run_count == 0 && list_empty(&o->runs));
    check(o->phase != WARM_PHASE_HEADER && o->check == NULL);
    object_key_unref(o->key);
    store_object_unref(o->object);
    live_unref(o->live);
    warm_room_item_unref(o->job, o->item);
    free(o);
}

// --- what is known of the object -----------------------------------------------------------------

static uint64_t end_of(const struct warm_object *o)
{
    return o->size_bytes == WARM_SIZE_UNKNOWN ? 0 : min_u64(o->end_byte, o->size_bytes);
}

static void take_size(struct warm_object *o, uint64_t size_bytes)
{
    check(size_bytes != WARM_SIZE_UNKNOWN);
    o->size_bytes = size_bytes;
    uint64_t end = end_of(o), wanted = end > o->first_byte ? end - o->first_byte : 0;
    // A listed object was counted with its listed size.
    atomic_fetch_add(&o->job->published.bytes, wanted - o->wanted_bytes);
    o->wanted_bytes = wanted;
}

static void take_version(struct warm_object *o, struct store_object *version)
{
    check(version != NULL);
    store_object_unref(o->object);
    o->object = store_object_ref(version);
    o->etag_hash = hash64(version->etag.ptr, version->etag.len, 0);
    take_size(o, version->size_bytes);
}

static void note_done(struct warm_object *o, uint64_t first, uint64_t end)
{
    first = max_u64(first, o->first_byte);
    end = min_u64(end, end_of(o));
    uint64_t more = end > first ? end - first : 0;
    check(o->size_bytes != WARM_SIZE_UNKNOWN);
    more = min_u64(more, o->wanted_bytes - min_u64(o->wanted_bytes, o->done_bytes));
    o->done_bytes += more;
    atomic_fetch_add(&o->job->published.bytes_done, more);
}

static enum warm_step fail(struct warm_object *o, enum err err, const char *why)
{
    check(err != ERR_OK);
    o->err = err;
    o->why = why;
    warm_object_leave(o);
    warm_phase_enter(o, WARM_PHASE_FAILED);
    return WARM_OVER;
}

// Drops everything that the job has found out about the object.
static void forget(struct warm_object *o)
{
    store_object_unref(o->object);
    o->object = NULL;
    o->is_confirmed = o->is_looked_for = false;
    o->at = o->first_byte;
    atomic_fetch_sub(&o->job->published.bytes_done, o->done_bytes);
    o->done_bytes = 0;
}

static enum warm_step restart(struct warm_object *o)
{
    if (++o->restarts > WARM_RESTARTS_MAX) {
        return fail(o, ERR_ORIGIN_CHANGED, "it changes faster than it can be fetched");
    }
    warm_object_leave(o);
    forget(o);
    if (o->phase == WARM_PHASE_HEADER || o->phase == WARM_PHASE_CONFIRM) {
        warm_phase_enter(o, WARM_PHASE_FETCH);
    }
    return WARM_ASKED;
}

// Moves the object to the front of the ready ones, so that objects that have begun end before new
// ones begin.
static void changed(struct warm_object *o)
{
    struct proxy_warm *job = o->job;
    check(o->phase != WARM_PHASE_PAUSED); // a paused object has nothing in flight
    list_remove(&o->node);
    list_push_front(&job->ready, &o->node);
    worker_defer(job->pw->worker, &job->task);
}

// --- runs ----------------------------------------------------------------------------------------

// Returns the text of a word of refusals.def, or of a reason for which an origin forbids storing.
static const char *text_of(const char *word)
{
    enum refusal why = refusal_of_word(word);
    if (why != REFUSAL_none) {
        return refusal_text(why)->text;
    }
    for (int i = ORIGIN_FORBIDS_NOTHING + 1; word != NULL && i < ORIGIN_FORBIDS_COUNT; i++) {
        const struct origin_forbids_text *row = origin_forbids_text((enum origin_forbids)i);
        if (strcmp(row->word, word) == 0) {
            return row->text;
        }
    }
    return "not stored";
}

static void check_leave(struct warm_object *o)
{
    if (o->check != NULL) {
        subscription_leave(o->check);
        o->check = NULL;
    }
}

// Refuses the object, which ends after its runs in flight. `why` is REFUSAL_none if the origin
// forbids storing.
static enum warm_step refuse(struct warm_object *o, enum refusal why, const char *text)
{
    o->why = text;
    o->is_excluded = why == REFUSAL_rule || why == REFUSAL_too_large;
    if (o->phase != WARM_PHASE_REFUSED) {
        warm_phase_enter(o, WARM_PHASE_REFUSED);
    }
    return WARM_OVER;
}

static void run_end(struct warm_run *run)
{
    struct warm_run_node *node = container_of(run, struct warm_run_node, run);
    struct warm_object *o = run->object;
    check(run->sub != NULL && o->run_count > 0);
    subscription_leave(run->sub);
    list_remove(&node->node);
    o->run_count--;
    warm_pace_ended(o->job);
    free(node);
}

// Tries the object again later, because the reason of the refusal passes. `asked_us` is the time of
// the refused request.
static void put_off(struct warm_object *o, uint64_t asked_us, enum refusal why)
{
    check(refusal_text(why)->passes);
    o->later = why;
    if (o->phase == WARM_PHASE_FETCH || o->phase == WARM_PHASE_CONFIRM) {
        check_leave(o); // its answer is of no use when the object begins again
        warm_phase_enter(o, WARM_PHASE_LATER);
    }
    if (why != REFUSAL_too_young) { // too_young is a state of the object, not of the server
        warm_pace_refused(o->job, asked_us, why);
    }
}

// Called when a run was refused storage, for the reason `word`. If the reason passes, the object is
// tried again later, after its other runs have ended. Otherwise it is refused, and its other runs
// are cancelled.
static void run_refused(struct warm_run *run, const char *word)
{
    struct warm_object *o = run->object;
    uint64_t asked_us = run->asked_us;
    enum refusal why = refusal_of_word(word);
    if (why == REFUSAL_none || !refusal_text(why)->passes) {
        warm_object_leave(o);
        (void)refuse(o, why, text_of(word));
        return;
    }
    run_end(run);
    put_off(o, asked_us, why);
}

static void on_run_ended(struct warm_run *run)
{
    struct warm_object *o = run->object;
    struct subscription *sub = run->sub;
    const struct store_place *place = &sub->place; // set if the run was already stored
    uint64_t first = run->first_byte;
    uint64_t end = place->segment == NULL
                       ? sub->run_end_byte
                       : place->first_block * place->block_size_bytes + place->payload_len;
    end = min_u64(end, run->end_byte);
    enum subscription_outcome outcome = sub->outcome;
    enum err err = sub->err;
    bool is_ours = !sub->joined && !sub->whole;
    uint64_t asked_us = run->asked_us;
    if (outcome == OUTCOME_REJOIN && err != ERR_OK) { // it was being written, and the write failed
        run_refused(run, refusal_text(refusal_of_error(err))->word);
        return;
    }
    run_end(run);
    if (outcome == OUTCOME_DONE && o->object != NULL && (end > first || end_of(o) == 0)) {
        note_done(o, first, end);
        o->has_fetched |= is_ours;
        if (is_ours) {
            warm_pace_stored(o->job);
        }
        stats_add(COUNTER_warm_bytes, is_ours ? end - first : 0);
        atomic_fetch_add(&o->job->published.bytes_fetched, is_ours ? end - first : 0);
        o->at = end < end_of(o) ? min_u64(o->at, max_u64(end, o->first_byte))
                                : o->at; // the run may have become shorter: look up the rest again
    } else if (outcome == OUTCOME_GONE) {
        (void)restart(o);
    } else if (outcome == OUTCOME_ERROR && err == ERR_ORIGIN_FULL) {
        put_off(o, asked_us, REFUSAL_no_connection);
    } else if (outcome == OUTCOME_ERROR) {
        (void)fail(o, err, NULL);
    } else { // ask again: the index has the run by now, or never will
        o->at = min_u64(o->at, max_u64(first, o->first_byte));
        o->is_looked_for = o->is_looked_for && end_of(o) > 0;
        if (++o->restarts > WARM_RESTARTS_MAX * 8) {
            (void)fail(o, ERR_ORIGIN_CHANGED, "it changes faster than it can be fetched");
        }
    }
}

static void on_run(void *ctx, struct subscription *sub)
{
    struct warm_run *run = ctx;
    struct warm_object *o = run->object;
    check(run->sub == sub && o->run_count > 0);
    check(o->phase == WARM_PHASE_FETCH || o->phase == WARM_PHASE_CONFIRM ||
          o->phase == WARM_PHASE_LATER || o->phase == WARM_PHASE_REFUSED);
    if (sub->answer != NULL && o->object == NULL) {
        take_version(o, sub->answer);
    }
    if (sub->state == SUBSCRIPTION_ENDED) {
        on_run_ended(run);
    } else if (sub->answer != NULL && (!sub->stored || sub->weak)) {
        run_refused(run,
                    sub->weak ? origin_forbids_text(ORIGIN_FORBIDS_ETAG)->word : sub->unstored_why);
    }
    changed(o);
}

static enum warm_step ask_run(struct warm_object *o, uint64_t next_present)
{
    struct proxy_warm *job = o->job;
    check(o->phase == WARM_PHASE_FETCH && o->at < next_present);
    uint64_t size = o->object != NULL ? o->object->block_size_bytes : o->rule->block_size_bytes;
    uint64_t block = o->at / size;
    uint64_t end = o->object != NULL    ? end_of(o)
                   : o->item->is_prefix ? max_u64(o->listed_size, 1)
                                        : o->end_byte;
    end = max_u64(min_u64(end, next_present), o->at + 1);
    uint64_t most = max_u64(store_run_bytes_long(job->pw->store) / size, 1);
    uint64_t count = min_u64((end - 1) / size - block + 1, min_u64(most, STORE_RUN_BLOCKS_MAX));
    check(size > 0 && count > 0);
    struct warm_run_node *node = calloc(1, sizeof(*node));
    check(node != NULL);
    list_node_init(&node->node);
    list_push_back(&o->runs, &node->node);
    node->run.object = o;
    node->run.asked_us = worker_now_us(job->pw->worker);
    node->run.first_byte = block * size;
    node->run.end_byte = (block + count) * size;
    struct fill_ask ask = {.key = o->key,
                           .client = job->client,
                           .object = o->object,
                           .purpose = FILL_TO_WARM,
                           .with_checksums = o->object == NULL,
                           .first_byte = node->run.first_byte,
                           .block = block,
                           .block_count = (uint32_t)count,
                           .block_size_bytes = (uint32_t)size};
    o->at = node->run.end_byte;
    o->is_looked_for = true;
    o->run_count++;
    warm_pace_asked(job, min_u64(node->run.end_byte, end) - node->run.first_byte);
    node->run.sub = subscription_ask(job->pw->fill, &ask, on_run, &node->run);
    return o->object == NULL ? WARM_WAITS : WARM_ASKED; // the first run's answer names the version
}

// --- its version ---------------------------------------------------------------------------------

static void on_checked(void *ctx, struct subscription *sub)
{
    struct warm_object *o = ctx;
    if (sub->state != SUBSCRIPTION_ENDED) {
        return;
    }
    enum err err = sub->err;
    bool again = sub->outcome == OUTCOME_REJOIN;
    struct store_object *found = sub->answer != NULL ? store_object_ref(sub->answer) : NULL;
    check(o->phase == WARM_PHASE_CONFIRM && o->check == sub);
    check_leave(o);
    if (again) {
        (void)restart(o);
    } else if (err == ERR_OK || err == ERR_NOT_MODIFIED) {
        warm_phase_enter(o, WARM_PHASE_FETCH);
        o->is_confirmed = true;
        if (found != NULL) {
            take_version(o, found);
        }
    } else if (err == ERR_ORIGIN_FULL) {
        put_off(o, o->checked_us, REFUSAL_no_connection);
    } else {
        (void)fail(o, err, NULL);
    }
    store_object_unref(found);
    changed(o);
}

static enum warm_step confirm(struct warm_object *o)
{
    struct fill_ask ask = {.kind = FILL_ASK_CURRENT_TO_READ,
                           .key = o->key,
                           .client = o->job->client,
                           .object = o->object,
                           .strict = true};
    check(o->check == NULL && o->object != NULL);
    warm_phase_enter(o, WARM_PHASE_CONFIRM);
    o->checked_us = worker_now_us(o->job->pw->worker);
    o->check = subscription_ask(o->job->pw->fill, &ask, on_checked, o);
    return WARM_WAITS;
}

static void on_header_read(struct store_read *read)
{
    struct warm_object *o = container_of(read, struct warm_object, read);
    check(o->phase == WARM_PHASE_HEADER && o->object == NULL);
    for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
        chunk_unref(read->chunks[i]);
    }
    if (read->err == ERR_OK) {
        warm_phase_enter(o, WARM_PHASE_FETCH);
        take_version(o, read->object);
    } else {
        (void)restart(o); // its record is deleted, or soon will be
    }
    store_object_unref(read->object);
    store_place_unpin(&read->place);
    changed(o);
}

// Finds the version, from the header of any of the object's runs.
static enum warm_step describe(struct warm_object *o, struct store_view *view)
{
    check(view->found && o->object == NULL && o->run_count == 0);
    struct proxy_worker *pw = o->job->pw;
    struct store_place *place = view->place_count > 0 ? &view->places[0] : &view->any;
    struct store_object *found = NULL;
    if (place->segment == NULL) {
        return restart(o);
    }
    enum err err = store_object_get(pw->worker, pw->store, place, o->key->hash, o->key->realm,
                                    o->key->bucket, o->key->key, &found);
    if (err == ERR_OK) {
        take_version(o, found);
        store_object_unref(found);
        return WARM_ASKED;
    }
    if (err != ERR_AGAIN) {
        return restart(o);
    }
    o->read = (struct store_read){.store = pw->store,
                                  .place = *place,
                                  .header = true,
                                  .hash = o->key->hash,
                                  .realm = o->key->realm,
                                  .bucket = o->key->bucket,
                                  .key = o->key->key,
                                  .done = on_header_read};
    place->segment = NULL; // the read owns its pin
    warm_phase_enter(o, WARM_PHASE_HEADER);
    store_read_start(pw->worker, &o->read);
    return WARM_WAITS;
}

static bool must_confirm(const struct warm_object *o, const struct store_view *view)
{
    if (o->is_confirmed) {
        return false;
    }
    if (o->item->is_prefix && o->listed_etag != 0) {
        return o->listed_etag != view->etag_hash || view->rebuilt;
    }
    return freshness_check(o->rule, view) == FRESHNESS_STALE;
}

// Moves o->at past the cached bytes. If a gap follows, sets *ret_next to the start of the next
// cached bytes; UINT64_MAX: there are none.
static void skip_present(struct warm_object *o, const struct store_view *view, uint64_t end,
                         uint64_t *ret_next)
{
    *ret_next = UINT64_MAX;
    check(view->found);
    for (unsigned i = 0; i < view->place_count && o->at < end; i++) {
        const struct store_place *place = &view->places[i];
        uint64_t first = place->first_block * place->block_size_bytes;
        uint64_t last = first + place->payload_len;
        if (first <= o->at && o->at < last) {
            note_done(o, o->at, last);
            o->at = last;
        } else if (first > o->at) {
            *ret_next = first;
            return;
        }
    }
}

// Examines one window. Returns WARM_OVER if all of it is cached, so that the next one may be
// examined.
static enum warm_step look(struct warm_object *o, struct store_view *view)
{
    check(o->phase == WARM_PHASE_FETCH && o->check == NULL);
    uint64_t window_end = o->at + STORE_WINDOW_MAX, next = UINT64_MAX;
    bool is_other = o->object != NULL && view->found && view->etag_hash != o->etag_hash;
    if (view->found && !is_other) {
        if (must_confirm(o, view)) {
            return o->object == NULL ? describe(o, view) : confirm(o);
        }
        if (o->size_bytes == WARM_SIZE_UNKNOWN) {
            take_size(o, view->size_bytes);
        }
        skip_present(o, view, min_u64(window_end, end_of(o)), &next);
        if (o->at >= min_u64(window_end, end_of(o))) {
            o->is_looked_for = true;
            return WARM_OVER;
        }
        if (o->object == NULL) {
            return describe(o, view);
        }
    }
    uint64_t size = o->size_bytes != WARM_SIZE_UNKNOWN ? o->size_bytes : o->listed_size;
    enum refusal why = proxy_rule_excludes(o->rule, size);
    if (why == REFUSAL_none) {
        why = o->job->pace.refuses;
    }
    if (why == REFUSAL_none &&
        !store_would_keep(o->job->pw->store, o->key->hash, o->at / o->rule->block_size_bytes,
                          o->key->limits.group)) {
        why = REFUSAL_not_admitted;
    }
    if (why != REFUSAL_none) {
        return refuse(o, why, refusal_text(why)->text);
    }
    return ask_run(o, next);
}

// --- its checksums -------------------------------------------------------------------------------

static void on_described(void *ctx, struct subscription *sub)
{
    struct warm_object *o = ctx;
    if (sub->state == SUBSCRIPTION_ENDED) {
        check(o->check == sub);
        check_leave(o);
        warm_phase_enter(o, WARM_PHASE_DONE); // with any answer: all wanted bytes are cached
        changed(o);
    }
}

// Called when all wanted bytes are cached. Asks for the object's checksums. Returns WARM_OVER if
// there is nothing to ask.
static enum warm_step learn_checksums(struct warm_object *o)
{
    static _Thread_local struct store_view view;
    struct proxy_worker *pw = o->job->pw;
    enum warm_step step = WARM_OVER;
    check(o->phase == WARM_PHASE_FETCH && o->run_count == 0);
    if (!origin_capabilities(o->key->origin)->has_checksums) {
        return WARM_OVER;
    }
    store_lookup(pw->worker, pw->store, o->key->hash, o->first_byte, o->first_byte + 1,
                 fill_floor(pw->fill, o->key->hash), &view);
    bool is_other = o->object != NULL && view.found && view.etag_hash != o->etag_hash;
    bool is_here = o->object != NULL || view.found;
    struct span headers = o->object != NULL ? o->object->headers : (struct span){NULL, 0};
    bool are_known = is_other || !is_here ||
                     checksums_known(headers, view.found ? &view.sums : NULL) != CHECKSUMS_UNKNOWN;
    if (!are_known && o->object == NULL) {
        step = describe(o, &view);
    } else if (!are_known) {
        struct fill_ask ask = {.kind = FILL_ASK_CHECKSUMS_NOW,
                               .key = o->key,
                               .client = o->job->client,
                               .object = o->object,
                               .purpose = FILL_TO_WARM};
        warm_phase_enter(o, WARM_PHASE_SUMS);
        o->check = subscription_ask(pw->fill, &ask, on_described, o);
        step = WARM_WAITS;
    }
    store_view_done(&view);
    return step;
}

// --- its next step -------------------------------------------------------------------------------

// Restarts an object that has waited after a refusal. Begins at its first byte, and applies the
// current rules.
static void begin_again(struct warm_object *o)
{
    struct object_key *key = o->key;
    struct live *live = o->live;
    check(o->run_count == 0 && o->check == NULL);
    warm_phase_enter(o, WARM_PHASE_FETCH);
    take_rule(o, key->key);
    object_key_unref(key);
    live_unref(live);
    forget(o);
    o->later = REFUSAL_none;
}

static bool is_whole(const struct warm_object *o)
{
    return o->is_looked_for && o->size_bytes != WARM_SIZE_UNKNOWN && o->at >= end_of(o);
}

// A step in FETCH: examines one window, or asks for the checksums if no byte is missing.
static enum warm_step fetch_step(struct warm_object *o)
{
    static _Thread_local struct store_view view;
    struct proxy_worker *pw = o->job->pw;
    if (o->run_count > 0 && (is_whole(o) || o->object == NULL)) {
        return WARM_WAITS;
    }
    if (is_whole(o)) {
        enum warm_step step = learn_checksums(o);
        if (step == WARM_OVER && o->phase == WARM_PHASE_FETCH) {
            warm_phase_enter(o, WARM_PHASE_DONE);
        }
        return step == WARM_ASKED ? WARM_OVER : step; // the version is known now
    }
    store_lookup(pw->worker, pw->store, o->key->hash, o->at, o->at + STORE_WINDOW_MAX,
                 fill_floor(pw->fill, o->key->hash), &view);
    unsigned runs = o->run_count;
    enum warm_step step = look(o, &view);
    store_view_done(&view);
    return o->run_count > runs || step == WARM_WAITS ? step : WARM_OVER;
}

enum warm_step warm_object_step(struct warm_object *o)
{
    check(list_node_linked(&o->node) && !o->job->is_over);
    if (o->phase == WARM_PHASE_PAUSED) { // only objects whose time has come are ready
        begin_again(o);
    }
    for (unsigned i = 0; i < WINDOWS_MAX; i++) {
        enum warm_step step = WARM_OVER;
        switch (o->phase) {
        case WARM_PHASE_FETCH:
            step = fetch_step(o);
            break;
        case WARM_PHASE_HEADER:
        case WARM_PHASE_CONFIRM:
        case WARM_PHASE_SUMS:
            return WARM_WAITS;
        case WARM_PHASE_LATER:
        case WARM_PHASE_REFUSED:
            return o->run_count > 0 ? WARM_WAITS : WARM_OVER;
        default:
            check(o->phase == WARM_PHASE_DONE || o->phase == WARM_PHASE_FAILED);
            return WARM_OVER;
        }
        if (step != WARM_OVER) {
            return step;
        }
    }
    return WARM_ASKED; // the rest in another turn
}

void warm_object_leave(struct warm_object *o)
{
    struct list_node *node;
    while ((node = list_first(&o->runs)) != NULL) {
        run_end(&container_of(node, struct warm_run_node, node)->run);
    }
    check_leave(o);
}
