// SPDX-License-Identifier: Apache-2.0
// Conditional requests, made by the key's home: one for all who ask meanwhile (rules 29, 31 and 32 of
// README.md).
#include "fill/home_private.h"

#include <stdlib.h>

// Versions that give way to others in the table of those described, within so long.
#define DESCRIBED_MAX 4096u
#define DESCRIBED_US 600000000u
// Who wants checksums with bytes that are at hand waits so long for them; for so long after that nobody does.
#define PATIENCE_MS 1000u
#define MUTE_US 10000000u

static void revalidation_start(struct home_key *h, const struct subscription *first,
                               bool describes);

static bool same_version(const struct store_object *a, const struct store_object *b)
{
    return a != NULL && b != NULL && a->etag.len > 0 && span_equal(a->etag, b->etag);
}

static void revalidation_answer(struct revalidation *c, struct subscription *sub)
{
    struct revalidated_message *m = message_revalidated_new(c->home->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_REVALIDATED;
    m->err = c->err;
    bool asks_any = sub->ask.object == NULL;
    if (c->err == ERR_NOT_MODIFIED && asks_any) {
        m->object = store_object_ref(c->asked); // what the home knew
    } else if (c->err == ERR_NOT_MODIFIED && !same_version(sub->ask.object, c->asked)) {
        m->outcome = OUTCOME_REJOIN; // asked about another version
    } else if (c->err == ERR_OK && sub->ask.with_checksums &&
               same_version(sub->ask.object, c->found)) {
        m->outcome = OUTCOME_DESCRIBED;
        m->object = store_object_ref(c->found);
    } else if (c->err == ERR_OK && same_version(sub->ask.object, c->found)) {
        m->err = ERR_NOT_MODIFIED; // an origin that ignores conditions
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

// The version that the answer names; NULL: none.
static const struct store_object *revalidation_names(const struct revalidation *c)
{
    return c->err == ERR_OK ? c->found : c->err == ERR_NOT_MODIFIED ? c->asked : NULL;
}

static void home_describe(struct home_key *h, struct store_object *found)
{
    struct store_object **described = home_described(h);
    store_object_unref(*described);
    *described = store_object_ref(found);
}

// Rule 31: what the answer means for what counts here: the record, the version known, a first request.
static void revalidation_conclude(struct revalidation *c)
{
    struct home_key *h = c->home;
    const struct store_object *named = revalidation_names(c);
    if (c->err == ERR_OK && fill_version_checksums(c->found->headers).len > 0) {
        home_describe(h, c->found);
    }
    struct home_visible v = home_look_up(h);
    if (!home_find_out(h, named) && v.found && !home_is_open(h)) {
        struct store_renewal renewal = {.hash = h->key->hash, .generation = v.generation};
        store_renew(h->fw->worker, h->fw->store, &renewal, 1, c->began_us);
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
    free((void *)(uintptr_t)c->document.ptr);
    free(c);
}

static void revalidation_end(struct revalidation *c, bool outdated)
{
    struct subscription *sub;
    while ((sub = home_unhold(&c->waiters)) != NULL) {
        if (outdated ||
            !fill_error_is_shared(c->err, c->key->credentials, sub->ask.key->credentials)) {
            home_answer_again(c->home, sub);
        } else {
            revalidation_answer(c, sub);
        }
    }
    worker_free_later(c->home->fw->worker, revalidation_free, c);
}

void home_answer_concluded(struct home_key *h)
{
    struct list_node *node;
    while ((node = list_pop_front(&h->concluded)) != NULL) {
        revalidation_end(container_of(node, struct revalidation, node), false);
    }
}

// --- who wants checksums -------------------------------------------------------------------------

static bool can_do_without(const struct subscription *sub)
{
    return sub->ask.with_checksums && !sub->ask.insists;
}

static void answer_described(struct home_key *h, struct subscription *sub,
                             struct store_object *described)
{
    struct revalidated_message *m = message_revalidated_new(h->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_DESCRIBED;
    m->object = described != NULL ? store_object_ref(described) : NULL;
    message_send(sub->at, &m->base);
}

static bool is_mute(const struct home_key *h)
{
    const struct fill_worker *fw = h->fw;
    return fw->mute == h->key->origin && worker_now_us(fw->worker) < fw->mute_until_us;
}

static void note_mute(struct home_key *h)
{
    h->fw->mute = h->key->origin;
    h->fw->mute_until_us = worker_now_us(h->fw->worker) + MUTE_US;
}

static void go_without(struct home_key *h, struct list *list)
{
    struct list others;
    struct subscription *sub;
    list_init(&others);
    while ((sub = home_unhold(list)) != NULL) {
        if (can_do_without(sub)) {
            answer_described(h, sub, NULL);
        } else {
            home_hold(&others, sub);
        }
    }
    list_append_all(list, &others);
}

void home_on_patience(struct timer *timer)
{
    struct home_key *h = container_of(timer, struct home_key, patience);
    if (h->revalidation != NULL) {
        note_mute(h);
        go_without(h, &h->revalidation->waiters);
        go_without(h, &h->next_revalidation);
    }
}

// --- requests ------------------------------------------------------------------------------------

static void on_revalidation_end(struct origin_fetch *f, enum err err)
{
    struct revalidation *c = f->ctx;
    struct home_key *h = c->home;
    check(h->revalidation == c);
    h->revalidation = NULL;
    c->err = err == ERR_OK && c->found == NULL ? ERR_ORIGIN_PROTOCOL : err;
    c->document = message_document(f->error_answer);
    if (c->describes && error_row(c->err)->status == 503) {
        note_mute(h);
    }
    // Sent before an invalidation it says nothing to anyone.
    bool outdated = c->floor != h->floor;
    bool concludes = revalidation_names(c) != NULL || err_says_absent(c->err);
    if (outdated || !concludes) {
        revalidation_end(c, outdated);
    } else {
        revalidation_conclude(c);
        list_push_back(&h->concluded, &c->node);
    }
    if (!list_empty(&h->next_revalidation)) {
        struct list_node *first = list_first(&h->next_revalidation);
        bool describes = false;
        list_for_each(node, &h->next_revalidation)
        {
            describes |= container_of(node, struct held, node)->subscription->ask.with_checksums;
        }
        revalidation_start(h, container_of(first, struct held, node)->subscription, describes);
        list_append_all(&h->revalidation->waiters, &h->next_revalidation);
    }
    if (h->revalidation == NULL || !h->revalidation->describes) {
        timer_stop(&h->patience);
    }
    home_settle(h);
}

static enum err on_revalidation_head(struct origin_fetch *f)
{
    struct revalidation *c = f->ctx;
    check(c->found == NULL);
    c->found = fill_version_from_fetch(c->home->key, f, NULL);
    return c->found != NULL ? ERR_OK : ERR_ORIGIN_UNFIT;
}

static enum err on_revalidation_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void revalidation_start(struct home_key *h, const struct subscription *first, bool describes)
{
    struct store_object *asked = first->ask.object;
    check(h->revalidation == NULL);
    if (asked == NULL && h->state == HOME_KNOWN) {
        asked = h->known;
    }
    struct revalidation *c = revalidation_new(h, first->ask.key, asked);
    h->revalidation = c;
    c->fetch.head = true;
    c->fetch.bucket = h->key->bucket;
    c->fetch.key = h->key->key;
    c->fetch.credentials = c->key->credentials;
    c->fetch.client = first->ask.client;
    c->trace = first->ask.trace;
    c->fetch.trace = &c->trace;
    c->fetch.ask_checksums = true;
    c->describes = describes;
    if (asked != NULL && !describes) {
        c->fetch.if_none_match = c->asked->etag;
    }
    c->fetch.on_head = on_revalidation_head;
    c->fetch.on_body = on_revalidation_body;
    c->fetch.on_end = on_revalidation_end;
    c->fetch.ctx = c;
    stats_add(COUNTER_revalidations, 1);
    origin_fetch_start(h->fw->worker, c->key->origin, &c->fetch);
}

// Rule 32: the version that is known here is as good as a record.
static void home_answer_known(struct home_key *h, struct subscription *sub)
{
    struct revalidated_message *m = message_revalidated_new(h->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_REVALIDATED;
    m->object = store_object_ref(h->known);
    m->validated_us = h->known_us;
    message_send(sub->at, &m->base);
}

// Is the version asked about described already? Nor is the origin asked where many others had to be, or when
// it does not answer: a reader can do without.
static bool home_answer_described(struct home_key *h, struct subscription *sub)
{
    struct fill_worker *fw = h->fw;
    struct store_object *described = *home_described(h);
    bool is_this_key = described != NULL && hash128_equal(described->hash, h->key->hash);
    if (h->state == HOME_KNOWN && fill_version_checksums(h->known->headers).len > 0) {
        described = h->known;
    } else if (!is_this_key && can_do_without(sub) && is_mute(h)) {
        described = NULL;
    } else if (!is_this_key && described != NULL) {
        uint64_t now_us = worker_now_us(fw->worker);
        if (now_us - fw->described_us > DESCRIBED_US) {
            fw->described_us = now_us;
            fw->described_count = 0;
        }
        if (fw->described_count++ < DESCRIBED_MAX) {
            return false;
        }
        described = NULL;
    } else if (described == NULL) {
        return false;
    }
    if (described != NULL && !same_version(sub->ask.object, described)) {
        return false;
    }
    answer_described(h, sub, described);
    return true;
}

// Rules 29 and 32.
static void home_revalidate(struct home_key *h, struct subscription *sub)
{
    home_drop_refused(h, sub);
    sub->ask.strict |= h->doubts > 0;
    bool asks_any = sub->ask.object == NULL && !sub->ask.strict;
    if (sub->ask.with_checksums && home_answer_described(h, sub)) {
        return;
    }
    if (asks_any && h->state == HOME_KNOWN) {
        home_answer_known(h, sub);
        return;
    }
    if (asks_any && !sub->ask.skip_index) {
        struct home_visible v = home_look_up(h);
        if (v.found && !v.rebuilt) {
            home_answer_again(h, sub); // since the reader looked
            return;
        }
    }
    bool is_new = h->revalidation == NULL;
    if (is_new) {
        revalidation_start(h, sub, sub->ask.with_checksums);
    } else {
        stats_add(COUNTER_revalidations_joined, 1);
    }
    bool waits =
        !is_new && (sub->ask.strict || (sub->ask.with_checksums && !h->revalidation->describes));
    home_hold(waits ? &h->next_revalidation : &h->revalidation->waiters, sub);
    if (can_do_without(sub) && h->patience.heap_slot == 0) {
        timer_start(&h->patience, PATIENCE_MS);
    }
}

void home_on_revalidate(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    home_revalidate(h, m->subscription);
    home_maybe_free(h);
}

// Rule 31. Whoever was told it may have asked before others were given another version: then nobody can say
// which is newer, and no run that is under way counts for either.
void home_on_told(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    struct subscription *sub = m->subscription;
    struct store_object *object = sub->ask.object;
    struct home_given given = home_given(h);
    uint64_t version = object != NULL ? version_hash(object) : 0;
    bool may_be_older = home_given_precedes(&given, version, sub->ask.asked_us);
    (void)home_find_out(h, object);
    if (may_be_older) {
        home_give(h, NULL);
    }
    struct revalidation *c = revalidation_new(h, sub->ask.key, NULL);
    c->found = object != NULL ? store_object_ref(object) : NULL;
    c->err = object != NULL ? ERR_OK : ERR_NO_SUCH_KEY;
    home_hold(&c->waiters, sub);
    list_push_back(&h->concluded, &c->node);
    home_settle(h);
}
