// SPDX-License-Identifier: Apache-2.0
// A key's home is the worker that owns its stripe 0. It alone decides which version is current,
// names generations and posts the key's index changes. All of this runs on that worker. An entry
// exists while something about the key is undecided (home_private.h). Rules 11 to 15 of README.md.
//
// For each state, the list below says what the home does with each message:
//
//   NONE      ROUTE: the first case that fits:
//             - A record is visible, not below the floor: AGAIN. The reader's own look-up finds it.
//             - A delete is in flight that a crash would undo, or a worker has not acknowledged the
//               last floor: the reader is held.
//             - A kept answer suffices (home_kept.c): it is the answer.
//             - Otherwise a new token goes out with FIRST: DECIDING.
//   DECIDING  - ROUTE: the reader is held.
//             - VERSION with the token: KNOWN; the held readers are routed.
//             - FIRST_END with the token: NONE; the held readers are routed again, or fail with the
//               origin's error.
//             - PUBLISH: held.
//   KNOWN     - ROUTE: JOIN goes to the stripe's owner.
//             - REVALIDATE of a reader without a version: the known version is the answer.
//             - FIRST_END: NONE. The runs that were published are visible in the index.
//   (any)     - An invalidation (home_write.c): NONE; the held readers are routed again. A VERSION
//               or FIRST_END that comes later has an old token and decides nothing.
#include "base/date.h"
#include "fill/home_private.h"

#include <stdlib.h>

// --- entries -------------------------------------------------------------------------------------

struct home_key *home_find(struct fill_worker *fw, struct hash128 hash)
{
    list_for_each(node, fill_map_bucket(&fw->homes, hash))
    {
        struct home_key *h = container_of(node, struct home_key, map_node);
        if (hash128_equal(h->key->hash, hash)) {
            return h;
        }
    }
    return NULL;
}

struct home_key *home_get(struct fill_worker *fw, struct object_key *key)
{
    check(object_key_home(fw, key) == fw); // rule 1: only the home decides
    struct home_key *h = home_find(fw, key->hash);
    if (h != NULL) {
        return h;
    }
    h = calloc(1, sizeof(*h));
    check(h != NULL);
    h->fw = fw;
    h->key = object_key_ref(key);
    list_node_init(&h->map_node);
    list_init(&h->held);
    list_init(&h->starting);
    list_init(&h->closing);
    list_init(&h->next_revalidation);
    list_init(&h->concluded);
    list_init(&h->publishing);
    list_push_back(fill_map_bucket(&fw->homes, key->hash), &h->map_node);
    fw->homes.count++;
    return h;
}

static void home_drop(struct home_key *h)
{
    store_object_unref(h->known);
    store_object_unref(h->put);
    store_object_unref(h->described);
    object_key_unref(h->key);
    free(h);
}

static void home_free(void *ptr)
{
    struct home_key *h = ptr;
    check(h->state == HOME_NONE && !list_node_linked(&h->map_node));
    home_drop(h);
}

void home_free_all(struct fill_worker *fw)
{
    for (unsigned i = 0; i < FILL_MAP_BUCKETS; i++) {
        list_for_each(node, &fw->homes.buckets[i])
        {
            list_remove(node);
            home_drop(container_of(node, struct home_key, map_node));
        }
    }
    fw->homes.count = 0;
}

void home_maybe_free(struct home_key *h)
{
    fill_assert_home(h);
    bool idle = h->state == HOME_NONE && !h->has_floor && h->deletes == 0 && h->unsure == 0 &&
                h->open_writes == 0 && h->revalidation == NULL && h->described == NULL &&
                list_empty(&h->held) && list_empty(&h->starting) && list_empty(&h->closing) &&
                list_empty(&h->next_revalidation) && list_empty(&h->concluded);
    if (idle && list_node_linked(&h->map_node)) {
        check(h->fw->homes.count > 0);
        list_remove(&h->map_node);
        h->fw->homes.count--;
        worker_free_later(h->fw->worker, home_free, h);
    }
}

struct home_visible home_look_up(struct home_key *h)
{
    static _Thread_local struct store_view view;
    store_lookup(h->fw->worker, h->fw->store, h->key->hash, 0, 1, h->floor, &view);
    struct home_visible v = {.found = view.found, .unknown = view.unknown};
    if (v.found) {
        v.rebuilt = view.rebuilt;
        v.generation = view.generation;
        v.size_bytes = view.size_bytes;
        v.sums = view.sums;
        v.etag_hash = view.etag_hash;
        v.block_size_bytes = view.block_size_bytes;
        check(v.generation >= h->floor); // rule 5: look-ups ignore older records
    }
    store_view_done(&view);
    return v;
}

bool home_awaits_disk(const struct home_key *h)
{
    return h->awaited > 0 &&
           !store_write_is_noted(h->fw->store, span_from_cstr(origin_place(h->key->origin)),
                                 h->key->bucket);
}

bool home_visible_is(const struct home_visible *v, const struct store_object *object)
{
    return v->found && object->etag.len > 0 &&
           v->etag_hash == hash64(object->etag.ptr, object->etag.len, 0);
}

const struct store_object *home_visible_object(const struct home_key *h,
                                               const struct home_visible *v)
{
    bool is_put = v->found && h->put != NULL && h->put->generation == v->generation;
    return is_put ? h->put : NULL;
}

bool home_is_current(struct home_key *h, const struct store_object *object)
{
    if (h->state == HOME_KNOWN) {
        return span_equal(h->known->etag, object->etag);
    }
    struct home_visible v = home_look_up(h);
    const struct store_object *kept = home_kept(h);
    return home_visible_is(&v, object) ||
           (!v.found && kept != NULL && fill_same_version(kept, object));
}

// --- deciding ------------------------------------------------------------------------------------

static void home_answer_error(struct home_key *h, struct subscription *sub, enum err err,
                              struct span document)
{
    check(err != ERR_OK);
    struct answer_message *m = message_error_new(h->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_ERROR;
    m->err = err;
    m->document = message_document(document);
    message_send(sub->at, &m->base);
}

// Rule 11, version known: sends JOIN to the owner, for that version.
static void home_forward(struct home_key *h, struct subscription *sub)
{
    check(h->state == HOME_KNOWN);
    subscription_use_blocks(sub, h->known->block_size_bytes);
    if (sub->ask.suffix_bytes > 0) {
        subscription_place_suffix(sub, h->known->size_bytes);
    }
    uint64_t first_byte = sub->ask.block * sub->ask.block_size_bytes;
    if (first_byte > 0 && first_byte >= h->known->size_bytes) {
        // The known version is shorter than the wanted range, so there is nothing to ask the origin
        // for.
        home_answer_error(h, sub, ERR_INVALID_RANGE, (struct span){0});
        return;
    }
    store_object_unref(sub->ask.object);
    sub->ask.object = store_object_ref(h->known);
    sub->ask.condition.kind = ORIGIN_CONDITION_NONE; // the reader evaluates its condition itself
    struct ask_message *m = message_join_new(h->fw, h->key);
    m->subscription = sub;
    message_send(fill_has_run(h->fw, sub) ? h->fw : object_key_owner(h->fw, h->key, first_byte),
                 &m->base);
}

void home_answer_version(struct home_key *h, struct subscription *sub, struct store_object *version,
                         uint64_t asked_us)
{
    check(version != NULL && sub->ask.object == NULL);
    struct answer_message *m = message_revalidated_new(h->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_REVALIDATED;
    m->object = store_object_ref(version);
    m->validated_us = asked_us;
    message_send(sub->at, &m->base);
}

// --- kept answers --------------------------------------------------------------------------------

// Returns true if the kept answer counts. It does not count while a first request is in flight,
// because that request's readers get its version before the home does. It does not count either
// while a worker may hold anything older, a write is open or a record may be visible.
static bool kept_counts(struct home_key *h)
{
    if (home_kept(h) == NULL || h->state != HOME_NONE || !home_may_decide(h) || home_is_open(h)) {
        return false;
    }
    struct home_visible v = home_look_up(h);
    return !v.found && !v.unknown;
}

bool home_answer_kept(struct home_key *h, struct subscription *sub)
{
    if (!kept_counts(h)) {
        return false;
    }
    stats_add(COUNTER_answers_used, 1);
    home_answer_version(h, sub, home_kept(h), home_kept_us(h));
    return true;
}

static bool is_not_modified_since(const struct store_object *kept, const char *text)
{
    time_t date = 0;
    return kept->last_modified != 0 && date_parse_http(span_from_cstr(text), &date) &&
           kept->last_modified <= date;
}

// Returns true if the kept answer saves the reader a request to the origin. That is so if the
// origin would only answer 304, or if the kept size says where a suffix begins. Any other condition
// goes to the origin with the first request for bytes, which costs no more and is never out of
// date.
static bool kept_helps(const struct store_object *kept, const struct fill_ask *ask)
{
    bool is_this = span_equal_cstr(kept->etag, ask->condition.value);
    switch (ask->condition.kind) {
    case ORIGIN_CONDITION_NONE:
        return ask->suffix_bytes > 0;
    case ORIGIN_IF_MATCH:
        return ask->suffix_bytes > 0 && is_this;
    case ORIGIN_IF_NONE_MATCH:
        return is_this;
    case ORIGIN_IF_MODIFIED_SINCE:
        return is_not_modified_since(kept, ask->condition.value);
    case ORIGIN_IF_UNMODIFIED_SINCE:
        return false;
    }
    return false;
}

// Rule 11. Answers a reader that wants bytes with the kept version, if that version is fresh and
// saves a request. Returns false if the first request must decide.
static bool home_route_kept(struct home_key *h, struct subscription *sub)
{
    const struct store_object *kept = home_kept(h);
    if (kept == NULL || sub->ask.strict || !kept_helps(kept, &sub->ask)) {
        return false;
    }
    uint64_t age_us = worker_now_us(h->fw->worker) - home_kept_us(h);
    return age_us / 1000 <= sub->ask.fresh_ms && home_answer_kept(h, sub);
}

// --- routing -------------------------------------------------------------------------------------

// Rule 11, nothing known: sends FIRST, and the first request decides.
static void home_decide(struct home_key *h, struct subscription *sub)
{
    check(h->state == HOME_NONE && list_empty(&h->held));
    if (home_described(h) != NULL && sub->described == NULL) {
        sub->described = store_object_ref(home_described(h));
    }
    fill_home_enter(h, HOME_DECIDING);
    h->token = ++h->fw->next_token;
    struct first_message *m = message_first_new(h->fw, h->key);
    m->subscription = sub;
    m->token = h->token;
    m->given = home_given(h);
    m->redescribed = home_redescribed(h);
    message_send(object_key_owner(h->fw, h->key, sub->ask.block * sub->ask.block_size_bytes),
                 &m->base);
}

void home_drop_refused(struct home_key *h, struct subscription *sub)
{
    if (sub->ask.refused == NULL) {
        return;
    }
    bool current = home_is_current(h, sub->ask.refused);
    store_object_unref(sub->ask.refused);
    sub->ask.refused = NULL;
    if (current) {
        home_invalidate(h);
    }
}

// Rule 11. Routes a reader while no version is known or being decided.
static void home_route_unknown(struct home_key *h, struct subscription *sub)
{
    struct home_visible v = home_look_up(h);
    if (v.found) {
        message_send_again(h->fw, sub);
        return;
    }
    if (!home_may_decide(h) || !list_empty(&h->held)) {
        sub->unsettled_us = worker_now_us(h->fw->worker);
        home_hold(&h->held, sub);
        return;
    }
    if (v.unknown) {
        home_delete_unseen(h);
    }
    if (!home_route_kept(h, sub)) {
        home_decide(h, sub);
    }
}

// Rule 11. Answers a reader's ROUTE, forwards it to an owner, or holds the reader.
static void home_route(struct home_key *h, struct subscription *sub)
{
    // Rule 7: ROUTE names no version.
    check(fill_ask_is_for_bytes(sub->ask.kind) && sub->ask.object == NULL);
    if (sub->unsettled_us != 0) {
        sub->settle_us += worker_now_us(h->fw->worker) - sub->unsettled_us;
        sub->unsettled_us = 0;
    }
    home_drop_refused(h, sub);
    sub->ask.strict |= h->doubts > 0;
    if (h->state != HOME_NONE && sub->ask.strict) {
        message_send_again(h->fw, sub); // the request in flight was sent before this reader came
    } else if (h->state == HOME_KNOWN && sub->ask.kind == FILL_ASK_BYTES_OR_VERSION) {
        home_answer_version(h, sub, h->known, h->known_us); // rule 32: no bytes are needed
    } else if (h->state == HOME_KNOWN) {
        home_forward(h, sub);
    } else if (h->state == HOME_DECIDING) {
        sub->met_token = sub->met_token != 0 ? sub->met_token : h->token;
        home_hold(&h->held, sub);
    } else {
        home_route_unknown(h, sub);
    }
}

void home_route_held(struct home_key *h)
{
    struct list waiting;
    list_init(&waiting);
    list_append_all(&waiting, &h->held);
    struct subscription *sub;
    while ((sub = home_unhold(&waiting)) != NULL) {
        home_route(h, sub);
    }
}

// Rule 22: sends the error to all readers that waited for the same first request and for which it
// holds. The others are held again:
// - A range past the end concerns its own reader only.
// - A condition concerns its own reader, and readers with the same condition.
// - A 412 says that another version than the reader's is current. It does not concern readers that
//   came after the request was sent, because their version may be the newer one.
//
// If the error concerns a condition, readers without one come first in the new order, because their
// request cannot fail on a condition.
static void home_fail_held(struct home_key *h, struct first_end_message *m)
{
    struct list others, conditional;
    struct subscription *sub;
    list_init(&others);
    list_init(&conditional);
    while ((sub = home_unhold(&h->held)) != NULL) {
        bool is_condition = m->condition.kind != ORIGIN_CONDITION_NONE;
        bool may_be_older = m->err == ERR_PRECONDITION_FAILED && sub->met_token == m->token;
        if (m->err != ERR_INVALID_RANGE && !may_be_older &&
            (!is_condition || origin_condition_equal(&m->condition, &sub->ask.condition)) &&
            fill_error_is_shared(m->err, m->base.key->credentials, sub->ask.key->credentials)) {
            home_answer_error(h, sub, m->err, m->document);
        } else {
            bool has_one = sub->ask.condition.kind != ORIGIN_CONDITION_NONE;
            home_hold(is_condition && has_one ? &conditional : &others, sub);
        }
    }
    list_append_all(&h->held, &others);
    list_append_all(&h->held, &conditional);
}

void home_forget(struct home_key *h)
{
    if (h->state != HOME_NONE) {
        fill_home_enter(h, HOME_NONE);
    }
    h->token = 0;
    home_note_forget(&h->found);
    store_object_unref(h->known);
    h->known = NULL;
}

void home_on_route(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    home_route(h, m->subscription);
    home_maybe_free(h);
}

// Returns the generation for a put. A run of the visible version gets that version's generation, so
// that it adds to the runs in the index. A run of another version, or in blocks of another size,
// gets a new generation, whose first put hides the older one.
static uint64_t home_generation_of(struct home_key *h, const struct home_visible *v,
                                   const struct store_object *object)
{
    bool same = home_visible_is(v, object) && v->block_size_bytes == object->block_size_bytes;
    return same ? v->generation : store_generation_next(h->fw->store);
}

// Rule 31. Returns true if `object`, which a first request found, must not be given. That is so if
// a check found another version or other headers while the request was in flight, or if the index
// shows another version now. Nobody can say which of the two is older.
static bool home_is_in_doubt(struct home_key *h, const struct home_visible *v,
                             const struct store_object *object)
{
    return home_note_contradicts(&h->found, object) || (v->found && !home_visible_is(v, object));
}

bool home_find_out(struct home_key *h, struct store_object *object, bool may_be_older)
{
    struct home_visible v = home_look_up(h);
    bool other_visible = v.found && (object == NULL || !home_visible_is(&v, object));
    bool other_known =
        h->state == HOME_KNOWN && (object == NULL || !span_equal(h->known->etag, object->etag));
    if (h->state == HOME_KNOWN && !other_known && !fill_same_headers(h->known, object)) {
        home_redescribe(h, object);
        other_known = true;
    }
    home_give(h, object);
    if (may_be_older) {
        home_give_named(h, 0); // no run in flight counts, neither of this version nor of another
    }
    if (v.unknown && !v.found) {
        home_delete_unseen(h);
    }
    if (other_visible || other_known) {
        home_invalidate(h);
        return true;
    }
    if (h->state == HOME_DECIDING) {
        home_note(&h->found, object);
    }
    return false;
}

// Handles VERSION (rule 12): a first request has found a version. If the token is current and no
// other answer contradicts it, the version becomes the known one, and the held readers are routed.
void home_on_version(struct fill_worker *fw, struct version_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    check(m->token != 0 && m->object != NULL);
    if (h->token != m->token) {
        // The token is old, so this version decides nothing. But readers of the run get the
        // version, so the home treats it like one that a check has found.
        bool may_be_older = home_given_since(h, version_hash(m->object), m->asked_us);
        (void)home_find_out(h, m->object, may_be_older);
        home_maybe_free(h);
        return;
    }
    check(h->state == HOME_DECIDING);
    struct home_visible v = home_look_up(h);
    if (home_is_in_doubt(h, &v, m->object)) {
        home_doubt_headers(h, m->object);
        home_invalidate(h);
        return;
    }
    h->known = store_object_with_generation(m->object, home_generation_of(h, &v, m->object));
    h->known_us = m->asked_us;
    fill_home_enter(h, HOME_KNOWN);
    home_note_forget(&h->found);
    home_give(h, h->known);
    home_publish_held(h);
    home_route_held(h);
    fill_assert_home(h);
}

// Rule 31. Returns true if a first request ended without a head but with an answer that its readers
// get: there is no object, or a verdict on a condition.
static bool first_end_tells(const struct first_end_message *m)
{
    return m->err == ERR_NO_SUCH_KEY || m->condition.kind != ORIGIN_CONDITION_NONE;
}

// Returns the version that the answer denies without naming the current one. 0: it names the
// current one, or says that there is none.
static uint64_t first_end_denies(const struct first_end_message *m)
{
    return m->err == ERR_PRECONDITION_FAILED ? m->version : 0;
}

// Rule 31. Returns true if the answer contradicts another answer that came while this one was being
// decided. Nobody can say which is newer.
static bool first_end_is_in_doubt(const struct home_key *h, const struct first_end_message *m)
{
    bool is_found = h->found.object != NULL && version_hash(h->found.object) == m->version;
    bool is_denied = first_end_denies(m) != 0;
    return h->found.has && (h->found.object == NULL || is_found == is_denied);
}

// Compares the answer with the visible and the known version. Returns true if it contradicts one of
// them, which the home has then invalidated. `may_be_older` as in home_find_out().
static bool home_find_out_by_end(struct home_key *h, const struct first_end_message *m,
                                 bool may_be_older)
{
    if (m->version == 0) {
        return home_find_out(h, NULL, may_be_older);
    }
    bool is_denied = first_end_denies(m) != 0;
    struct home_visible v = home_look_up(h);
    bool is_visible = v.found && max_u64(v.etag_hash, 1) == m->version;
    bool is_known = h->state == HOME_KNOWN && version_hash(h->known) == m->version;
    if (is_denied) {
        home_deny(h, m->version);
    } else {
        home_give_named(h, may_be_older ? 0 : m->version);
    }
    if ((v.found && is_visible == is_denied) || (h->state == HOME_KNOWN && is_known == is_denied)) {
        home_invalidate(h);
        return true;
    }
    if (h->state == HOME_DECIDING) {
        home_note(&h->found, NULL); // the answer has no description of the version
    }
    return false;
}

// Handles the answer to a first request that still decides. Returns true if it contradicts another
// answer. Then it decides nothing: the home has invalidated the key and routed the held readers
// again.
static bool home_doubts_end(struct home_key *h, const struct first_end_message *m)
{
    if (!first_end_tells(m)) {
        return false;
    }
    bool in_doubt = first_end_is_in_doubt(h, m);
    if (home_find_out_by_end(h, m, in_doubt)) {
        return true;
    }
    if (in_doubt) {
        home_invalidate(h);
    }
    return in_doubt;
}

// Handles FIRST_END (rule 13): a first request has ended. If the token is current, the home forgets
// the known version. If no version was found, the held readers get the error or are routed again.
void home_on_first_end(struct fill_worker *fw, struct first_end_message *m)
{
    struct home_key *h = home_find(fw, m->base.key->hash);
    check(m->token != 0);
    if (h == NULL || h->token != m->token) {
        if (first_end_tells(m)) {
            h = home_get(fw, m->base.key);
            bool may_be_older = home_given_since(h, m->version, m->asked_us);
            (void)home_find_out_by_end(h, m, may_be_older);
            home_maybe_free(h);
        }
        return;
    }
    bool decided = h->state == HOME_KNOWN;
    if (!decided && home_doubts_end(h, m)) {
        return;
    }
    home_forget(h);
    if (m->err == ERR_ORIGIN_PROTOCOL) {
        home_unkeep(h); // the answer may contradict the kept one, and either may be wrong
    }
    if (!decided) {
        home_publish_held(h);
        if (m->err != ERR_OK) {
            home_fail_held(h, m);
        }
        home_route_held(h);
    }
    home_maybe_free(h);
}

// --- publication ---------------------------------------------------------------------------------

static void home_answer_fill(struct fill_worker *owner, struct fill *fill,
                             struct verdict_message *m)
{
    m->fill = fill;
    message_send(owner, &m->base);
}

// Rule 14. Returns true if no invalidation affects the run. home_on_publish() asks this when the
// PUBLISH arrives, because then only acknowledgements that the sender sent earlier have arrived.
// While the index replaces the version's headers, every run is refused: it has the earlier headers
// or the generation that is being replaced.
static bool home_is_undoomed(const struct home_key *h, const struct publish_message *m)
{
    return h->described == NULL && !home_is_open(h) && h->acked[m->base.from->index] == h->floor;
}

// Rule 14. Returns true if `object` has headers that its version had earlier. A run of
// `generation`, the one that counts now (0: none), is never outdated.
static bool home_is_outdated(struct home_key *h, const struct store_object *object,
                             uint64_t generation)
{
    struct home_redescribed redescribed = home_redescribed(h);
    struct home_given given = home_given(h);
    return (generation == 0 || object->generation != generation) &&
           (home_redescribed_outdates(&redescribed, object) || home_given_outdates(&given, object));
}

// Rule 14. Returns the generation under which the run is put. 0: the run is not accepted.
static uint64_t home_accepts(struct home_key *h, const struct publish_message *m)
{
    if (!home_is_undoomed(h, m)) {
        return 0;
    }
    check(h->state != HOME_DECIDING);
    if (h->state == HOME_KNOWN) {
        bool fits = span_equal(h->known->etag, m->object->etag) &&
                    h->known->block_size_bytes == m->object->block_size_bytes &&
                    !home_is_outdated(h, m->object, h->known->generation);
        return fits ? h->known->generation : 0;
    }
    struct home_visible v = home_look_up(h);
    if (home_is_outdated(h, m->object, v.found ? v.generation : 0)) {
        return 0;
    }
    struct home_given given = home_given(h);
    const struct store_object *kept = home_kept(h);
    bool is_kept = kept != NULL && fill_same_headers(kept, m->object);
    bool fits = v.found
                    ? home_visible_is(&v, m->object)
                    : is_kept || !home_given_precedes(&given, version_hash(m->object), m->asked_us);
    return fits ? home_generation_of(h, &v, m->object) : 0;
}

static bool home_sum_is_right(struct home_key *h, struct publish_message *m)
{
    struct s3_checksum_state *sum = m->sum;
    m->sum = NULL; // owned by checksums_object_add() now
    return checksums_object_add(h->fw, h->key, m->object, m->first_byte, m->end_byte, sum);
}

// Puts the run in the index, or refuses it (rules 14 and 15).
static void home_publish(struct home_key *h, struct publish_message *m)
{
    uint64_t generation = home_accepts(h, m);
    if (generation != 0 && !home_sum_is_right(h, m)) {
        store_condemn(h->fw->worker, h->fw->store, h->key->hash, &m->place);
        home_invalidate(h); // this also removes the earlier runs of the object
        // A reply that begins after this finds none of those runs.
        checksums_condemn(h->fw, m->object);
        generation = 0;
    }
    if (generation == 0) {
        home_answer_fill(m->base.from, m->fill, message_dropped_new(h->fw, NULL));
        return;
    }
    check(generation >= h->floor && h->state != HOME_DECIDING);
    struct store_object *object = store_object_with_generation(m->object, generation);
    struct store_sums sums =
        checksums_of_run(m->object, m->first_byte, m->end_byte, home_described(h));
    // A run of a version that was requested with If-Match has headers that were learnt earlier.
    uint64_t validated_us = min_u64(m->asked_us, object->learnt_us);
    store_put(h->fw->worker, h->fw->store, object, &m->place, &sums, validated_us);
    h->is_hidden = false;
    home_kept_outdate_by(h, object);
    store_object_unref(h->put);
    h->put = object;
    home_answer_fill(m->base.from, m->fill, message_visible_new(h->fw, NULL));
}

static void home_hold_publish(struct home_key *h, struct publish_message *m)
{
    struct held_publish *held = malloc(sizeof(*held));
    check(held != NULL);
    list_node_init(&held->node);
    held->message = *m;
    m->object = NULL;
    m->sum = NULL;
    list_push_back(&h->publishing, &held->node);
}

void home_publish_held(struct home_key *h)
{
    struct list_node *node;
    while (h->state != HOME_DECIDING && (node = list_pop_front(&h->publishing)) != NULL) {
        struct held_publish *held = container_of(node, struct held_publish, node);
        home_publish(h, &held->message);
        store_object_unref(held->message.object);
        s3_checksum_free(held->message.sum);
        free(held);
    }
}

void home_on_publish(struct fill_worker *fw, struct publish_message *m)
{
    check(m->fill != NULL && m->object != NULL && m->place.segment != NULL);
    check(m->first_byte <= m->end_byte && m->end_byte <= m->object->size_bytes);
    // Rule 2: the sender owns the run's stripe, or is the home if the object's size was unknown.
    check(m->base.from == fw || m->base.from == object_key_owner(fw, m->base.key, m->first_byte));
    struct home_key *h = home_get(fw, m->base.key);
    if (h->state == HOME_DECIDING && home_is_undoomed(h, m)) {
        home_hold_publish(h, m); // the run may be of the version that is being decided
    } else {
        home_publish(h, m);
    }
    home_maybe_free(h);
}
