// SPDX-License-Identifier: Apache-2.0
// Checks whether a version is current. The key's home asks the origin, once for all that ask while
// the answer is in flight (rules 29, 31 and 32 of README.md).
//
// The home sends HEAD without a condition and compares the answer itself, because a 304 says
// nothing of the headers:
// - Same ETag and same headers: the version is confirmed.
// - Same ETag and other headers (a copy onto itself, an upload of the same bytes): the bytes stay,
//   and the index takes the headers over (home_take_over()).
// - Another ETag, or bytes that cannot stay: it is a new version, and its bytes are fetched again.
//
// The answer also names the version's checksums, which are kept with the record. A reader of bytes
// does not wait for missing checksums. Instead the home sends a HEAD that nobody waits for and that
// yields to all other requests. The next reader then finds the checksums. checksums.c says which
// readers cause such a HEAD.
#include "fill/home_private.h"

#include <stdlib.h>

static void revalidation_start(struct home_key *h, const struct subscription *first,
                               bool is_learning);

static bool same_version(const struct store_object *a, const struct store_object *b)
{
    return a != NULL && b != NULL && fill_same_version(a, b);
}

// Returns true if the origin's answer describes the version as `object` does.
static bool revalidation_confirms(const struct revalidation *c, const struct store_object *object)
{
    return c->err == ERR_OK && same_version(object, c->found) &&
           fill_version_is_alike(object, c->found);
}

static void revalidation_answer(struct revalidation *c, struct subscription *sub)
{
    check(!fill_ask_is_for_bytes(sub->ask.kind));
    struct answer_message *m = message_revalidated_new(c->home->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_REVALIDATED;
    m->err = c->err;
    bool asks_any = sub->ask.object == NULL;
    if (asks_any && revalidation_confirms(c, c->asked)) {
        m->err = ERR_NOT_MODIFIED;
        m->object = store_object_ref(c->asked); // the description that the home knew
    } else if (revalidation_confirms(c, sub->ask.object) &&
               fill_ask_is_for_checksums(sub->ask.kind)) {
        m->outcome = OUTCOME_DESCRIBED;
        m->object = store_object_ref(c->found);
    } else if (revalidation_confirms(c, sub->ask.object)) {
        m->err = ERR_NOT_MODIFIED;
    } else if (c->err == ERR_OK) {
        m->object = store_object_ref(c->found);
    }
    m->document = message_document(c->document);
    message_send(sub->at, &m->base);
}

static bool err_says_absent(enum err err)
{
    return err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET;
}

// Returns the visible version as this home published it, or as a reader that asks about it
// describes it. NULL: neither did.
static const struct store_object *revalidation_visible(const struct revalidation *c,
                                                       const struct home_visible *v)
{
    const struct store_object *put = home_visible_object(c->home, v);
    if (put != NULL) {
        return put;
    }
    if (c->asked != NULL && c->asked->generation == v->generation) {
        return c->asked;
    }
    list_for_each(node, &c->waiters)
    {
        const struct subscription *sub = container_of(node, struct subscription, held_node);
        if (sub->ask.object != NULL && sub->ask.object->generation == v->generation) {
            return sub->ask.object;
        }
    }
    return NULL;
}

// Keeps the answer for the next reader that asks (home_kept.c). It serves as the version's record
// until a run of the version is stored.
static void revalidation_keep(struct revalidation *c, bool is_newest)
{
    bool may_be_kept =
        c->fetch.forbids == ORIGIN_FORBIDS_NOTHING && !c->fetch.too_young && c->key->limits.cache;
    check(!is_newest || c->found != NULL);
    if (is_newest && may_be_kept) {
        home_keep(c->home, c->found, c->began_us);
    }
}

// Rule 31: applies the answer to the record, the known version and a first request in flight.
static void revalidation_conclude(struct revalidation *c)
{
    struct home_key *h = c->home;
    check(c->err != ERR_OK || c->found != NULL);
    struct store_object *found = c->err == ERR_OK ? c->found : NULL;
    bool is_newest = found != NULL && !home_note_contradicts(&c->given, found);
    bool may_be_older =
        found != NULL && !is_newest && home_given_since(h, version_hash(found), c->began_us);
    struct home_visible v = home_look_up(h);
    const struct store_object *visible = v.found ? revalidation_visible(c, &v) : NULL;
    const struct store_object *compared = visible != NULL ? visible : c->asked;
    if (home_find_out(h, found, may_be_older)) {
        revalidation_keep(c, is_newest);
        return;
    }
    if (h->described != NULL) {
        if (found == NULL || !fill_same_headers(h->described, found)) {
            home_invalidate(h); // nobody can say which of the two is newer
        }
        return;
    }
    if (v.found && compared != NULL && !revalidation_confirms(c, compared)) {
        home_redescribe(h, is_newest ? found : NULL);
        if (!is_newest || !home_take_over(h, &v, found, c->began_us)) {
            home_invalidate(h);
            revalidation_keep(c, is_newest);
        }
    } else if (v.found && compared != NULL && !home_is_open(h)) {
        struct store_renewal renewal = {.hash = h->key->hash, .generation = v.generation};
        if (v.sums.len == 0 && checksums_lines(found->headers).len > 0) {
            renewal.sums = checksums_learnt(found, v.size_bytes);
        }
        store_renew(h->fw->worker, h->fw->store, &renewal, 1, c->began_us);
    } else if (!v.found) {
        revalidation_keep(c, is_newest);
    }
}

static struct revalidation *revalidation_new(struct home_key *h, struct object_key *key,
                                             struct store_object *asked)
{
    struct revalidation *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->home = h;
    c->key = object_key_ref(key);
    list_node_init(&c->node);
    c->asked = asked != NULL ? store_object_ref(asked) : NULL;
    c->floor = h->floor;
    c->began_us = worker_now_us(h->fw->worker);
    list_init(&c->waiters);
    return c;
}

static void revalidation_free(void *ptr)
{
    struct revalidation *c = ptr;
    check(list_empty(&c->waiters));
    object_key_unref(c->key);
    store_object_unref(c->asked);
    store_object_unref(c->found);
    store_object_unref(c->by_head);
    home_note_forget(&c->given);
    free((void *)(uintptr_t)c->document.ptr);
    free(c);
}

static void revalidation_end(struct revalidation *c, bool says_nothing)
{
    struct subscription *sub;
    while ((sub = home_unhold(&c->waiters)) != NULL) {
        if (c->concluded_us != 0) {
            sub->settle_us += worker_now_us(c->home->fw->worker) - c->concluded_us;
        }
        if (says_nothing ||
            !fill_error_is_shared(c->err, c->key->credentials, sub->ask.key->credentials)) {
            message_send_again(c->home->fw, sub);
        } else {
            revalidation_answer(c, sub);
        }
    }
    worker_free_later(c->home->fw->worker, revalidation_free, c);
}

void home_answer_concluded(struct home_key *h)
{
    check(home_may_decide(h) && h->described == NULL); // rule 31: answers wait until then
    struct list_node *node;
    while ((node = list_pop_front(&h->concluded)) != NULL) {
        revalidation_end(container_of(node, struct revalidation, node), false);
    }
}

// --- answers with checksums ----------------------------------------------------------------------

static void answer_described(struct home_key *h, struct subscription *sub,
                             struct store_object *described)
{
    struct answer_message *m = message_revalidated_new(h->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_DESCRIBED;
    m->object = described; // takes over the caller's reference
    message_send(sub->at, &m->base);
}

// Returns the version asked about with its checksums (a reference), if they are known here; or
// NULL.
static struct store_object *with_checksums(struct home_key *h, const struct store_object *asked)
{
    if (checksums_are_named(h->known, asked)) {
        return store_object_ref(h->known);
    }
    if (checksums_are_named(home_described(h), asked)) {
        return store_object_ref(home_described(h));
    }
    char text[S3_SUMS_TEXT_MAX];
    struct home_visible v = home_look_up(h);
    bool is_asked = home_visible_is(&v, asked) && v.size_bytes == asked->size_bytes;
    struct span lines = checksums_render(is_asked ? &v.sums : NULL, text);
    return lines.len > 0 ? fill_version_with_checksums(asked, lines) : NULL;
}

static void home_learnt(struct revalidation *c)
{
    check(c->asked != NULL && c->home->revalidation != c);
    bool has_told = c->found != NULL && checksums_lines(c->found->headers).len > 0;
    checksums_learn_release(c->home->fw, c->home->key, c->asked);
    checksums_learn_end(c->home->fw, c->home->key->origin, !has_told && !err_says_absent(c->err));
}

// Answers a reader that asks only for checksums. Returns false, without an answer, if the checksums
// are unknown and the reader must wait for them (FILL_ASK_CHECKSUMS_NOW). A warm job waits only if
// a request about the key is in flight, or if a HEAD may be sent.
static bool home_answer_described(struct home_key *h, struct subscription *sub)
{
    check(sub->ask.object != NULL);
    struct store_object *described = with_checksums(h, sub->ask.object);
    bool is_out = h->revalidation != NULL;
    bool insists = sub->ask.kind == FILL_ASK_CHECKSUMS_NOW;
    if (described == NULL && insists &&
        (sub->ask.purpose == FILL_TO_SEND || is_out ||
         checksums_learn_may_ask(h->fw, h->key->origin))) {
        return false;
    }
    if (described == NULL && !insists && !is_out) {
        if (checksums_learn_may_ask(h->fw, h->key->origin)) {
            revalidation_start(h, sub, true);
        } else {
            checksums_learn_release(h->fw, h->key, sub->ask.object);
        }
    }
    answer_described(h, sub, described);
    return true;
}

// --- requests ------------------------------------------------------------------------------------

static void on_revalidation_end(struct origin_fetch *f, enum err err)
{
    struct revalidation *c = f->ctx;
    struct home_key *h = c->home;
    check(h->revalidation == c);
    c->err = err == ERR_OK && c->found == NULL ? ERR_ORIGIN_PROTOCOL : err;
    if (c->floor == h->floor && home_doubts_answer(c)) {
        c->by_head = c->found;
        c->found = NULL;
        f->kind = ORIGIN_HEAD_BY_GET;
        origin_fetch_start(h->fw->worker, c->key->origin, f);
        return;
    }
    h->revalidation = NULL;
    c->document = message_document(f->error_answer);
    if (c->is_learning) {
        home_learnt(c);
    }
    // A request that was sent before an invalidation answers nobody.
    bool outdated = c->floor != h->floor;
    bool concludes = c->err == ERR_OK || err_says_absent(c->err);
    if (outdated || !concludes) {
        // A failed HEAD for checksums alone says nothing of the version, so readers that joined it
        // ask again.
        revalidation_end(c, outdated || c->is_learning);
    } else {
        revalidation_conclude(c);
        c->concluded_us = worker_now_us(h->fw->worker);
        list_push_back(&h->concluded, &c->node);
    }
    if (!list_empty(&h->next_revalidation)) {
        struct list_node *first = list_first(&h->next_revalidation);
        revalidation_start(h, container_of(first, struct subscription, held_node), false);
        list_for_each(node, &h->next_revalidation)
        {
            h->revalidation->fetch.has_stale &=
                container_of(node, struct subscription, held_node)->ask.has_stale;
        }
        list_append_all(&h->revalidation->waiters, &h->next_revalidation);
    }
    home_settle(h);
}

static enum err on_revalidation_head(struct origin_fetch *f)
{
    struct revalidation *c = f->ctx;
    check(c->found == NULL);
    // Uses the reader's key, because the home's key may come from a write, for which no rule is
    // looked up.
    c->found = fill_version_from_fetch(c->key, f, NULL);
    if (c->found == NULL) {
        return ERR_ORIGIN_UNFIT;
    }
    c->found->learnt_us = c->began_us;
    return ERR_OK;
}

static enum err on_revalidation_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void revalidation_start(struct home_key *h, const struct subscription *first,
                               bool is_learning)
{
    struct store_object *asked = first->ask.object;
    check(h->revalidation == NULL && (asked != NULL || !is_learning));
    if (asked == NULL && h->state == HOME_KNOWN) {
        asked = h->known;
    }
    struct revalidation *c = revalidation_new(h, first->ask.key, asked);
    h->revalidation = c;
    c->fetch.kind = ORIGIN_HEAD;
    c->fetch.bucket = h->key->bucket;
    c->fetch.key = h->key->key;
    c->fetch.credentials = c->key->credentials;
    c->fetch.client = first->ask.client;
    c->trace = first->ask.trace;
    c->fetch.trace = &c->trace;
    c->fetch.wants_checksums = is_learning ? ORIGIN_CHECKSUMS_ONLY : ORIGIN_CHECKSUMS_TOO;
    c->is_learning = is_learning;
    c->fetch.ahead = is_learning;
    if (is_learning) {
        checksums_learn_begin(h->fw);
    }
    c->fetch.has_stale = is_learning || first->ask.has_stale;
    c->fetch.get_decides = asked != NULL || first->ask.kind == FILL_ASK_CURRENT_TO_READ;
    c->fetch.on_head = on_revalidation_head;
    c->fetch.on_body = on_revalidation_body;
    c->fetch.on_end = on_revalidation_end;
    c->fetch.ctx = c;
    bool for_checksums = fill_ask_is_for_checksums(first->ask.kind);
    stats_add(for_checksums ? COUNTER_checksum_heads : COUNTER_revalidations, 1);
    origin_fetch_start(h->fw->worker, c->key->origin, &c->fetch);
}

// Returns true if a record is visible that the reader does not ask about. Then nobody could compare
// the answer's headers with the record's, unless this entry published the record.
static bool home_shows_another(struct home_key *h, const struct subscription *sub)
{
    struct home_visible v = home_look_up(h);
    if (!v.found || home_visible_object(h, &v) != NULL) {
        return v.found && !v.rebuilt && sub->ask.object == NULL && !sub->ask.strict;
    }
    return sub->ask.object == NULL ? !v.rebuilt : sub->ask.object->generation != v.generation;
}

// Answers a reader that asks for the current version, or holds the reader until the origin has
// answered (rules 29 and 32).
static void home_revalidate(struct home_key *h, struct subscription *sub)
{
    check(!fill_ask_is_for_bytes(sub->ask.kind) && sub->ask.kind != FILL_ASK_TELL);
    home_drop_refused(h, sub);
    sub->ask.strict |= h->doubts > 0;
    bool asks_any = sub->ask.object == NULL && !sub->ask.strict;
    bool for_checksums = fill_ask_is_for_checksums(sub->ask.kind);
    if (for_checksums && home_answer_described(h, sub)) {
        return;
    }
    if (asks_any && h->state == HOME_KNOWN) {
        home_answer_version(h, sub, h->known, h->known_us);
        return;
    }
    if (sub->ask.index == FILL_INDEX_COUNTS && !for_checksums && home_shows_another(h, sub)) {
        message_send_again(h->fw, sub); // the record appeared after the reader's look-up
        return;
    }
    if (asks_any && home_answer_kept(h, sub)) {
        return;
    }
    bool is_new = h->revalidation == NULL;
    if (is_new) {
        revalidation_start(h, sub, for_checksums && sub->ask.purpose != FILL_TO_SEND);
    } else {
        stats_add(COUNTER_revalidations_joined, 1);
        h->revalidation->fetch.get_decides |=
            sub->ask.kind == FILL_ASK_CURRENT_TO_READ || sub->ask.object != NULL;
        if (h->revalidation->fetch.ahead && sub->ask.purpose == FILL_TO_SEND) {
            origin_fetch_hasten(&h->revalidation->fetch, sub->ask.client);
        }
    }
    // The request in flight may bring an older version than a reader has been given since it was
    // sent. A reader that asks now must not get that version, so it waits for the next request
    // (rule 31).
    bool waits = !is_new && (sub->ask.strict || h->revalidation->given.has);
    h->revalidation->fetch.has_stale &= waits || sub->ask.has_stale || is_new;
    sub->shares_check = !is_new && !waits;
    home_hold(waits ? &h->next_revalidation : &h->revalidation->waiters, sub);
}

void home_on_revalidate(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    home_revalidate(h, m->subscription);
    home_maybe_free(h);
}

// Handles TOLD (rule 31): an answer that bypassed the cache named this version, or no object. If
// its request was sent before other clients got another version, the order of the two versions is
// unknown. Then no run in flight counts for either.
void home_on_told(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    struct subscription *sub = m->subscription;
    check(sub->ask.kind == FILL_ASK_TELL);
    struct store_object *object = sub->ask.object;
    uint64_t version = object != NULL ? version_hash(object) : 0;
    (void)home_find_out(h, object, home_given_since(h, version, sub->ask.asked_us));
    struct revalidation *c = revalidation_new(h, sub->ask.key, NULL);
    c->found = object != NULL ? store_object_ref(object) : NULL;
    c->err = object != NULL ? ERR_OK : ERR_NO_SUCH_KEY;
    home_hold(&c->waiters, sub);
    list_push_back(&h->concluded, &c->node);
    home_settle(h);
}
