// SPDX-License-Identifier: Apache-2.0
// Conditional requests, made by the key's home: one for all who ask meanwhile (rule 29 of README.md).
#include "fill/home_private.h"

#include <stdlib.h>

static void revalidation_start(struct home_key *h, const struct subscription *first);

static bool same_version(const struct store_object *a, const struct store_object *b)
{
    return a != NULL && b != NULL && a->etag.len > 0 && span_equal(a->etag, b->etag);
}

static void revalidation_answer(struct revalidation *c, struct subscription *sub, enum err err,
                                struct span document)
{
    struct revalidated_message *m = message_revalidated_new(c->home->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_REVALIDATED;
    m->err = err;
    if (err == ERR_NOT_MODIFIED && !same_version(sub->ask.object, c->asked)) {
        m->outcome = OUTCOME_REJOIN; // asked about another version
    } else if (err == ERR_OK && same_version(sub->ask.object, c->found)) {
        m->err = ERR_NOT_MODIFIED; // an origin that ignores conditions
    } else if (err == ERR_OK) {
        m->object = store_object_ref(c->found);
    }
    m->document = message_document(document);
    message_send(sub->at, &m->base);
}

// What the answer means for the record in the index, and for a read that may follow.
static void revalidation_conclude(struct revalidation *c, enum err err)
{
    struct home_key *h = c->home;
    if (err == ERR_OK && fill_version_checksums(c->found->headers).len > 0) {
        struct store_object **described = home_described(h);
        store_object_unref(*described);
        *described = store_object_ref(c->found);
    }
    struct home_visible v = home_look_up(h);
    if (!v.found) {
        return;
    }
    bool same = (err == ERR_NOT_MODIFIED && c->asked != NULL && home_visible_is(&v, c->asked)) ||
                (err == ERR_OK && home_visible_is(&v, c->found));
    if (same) {
        struct store_renewal renewal = {.hash = h->key->hash, .generation = v.generation};
        store_renew(h->fw->worker, h->fw->store, &renewal, 1, c->began_us);
    } else if (err == ERR_OK || err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET) {
        home_invalidate(h);
    }
}

static void revalidation_free(void *ptr)
{
    struct revalidation *c = ptr;
    check(list_empty(&c->waiters));
    object_key_unref(c->key);
    store_object_unref(c->asked);
    store_object_unref(c->found);
    free(c);
}

static void on_revalidation_end(struct origin_fetch *f, enum err err)
{
    struct revalidation *c = f->ctx;
    struct home_key *h = c->home;
    check(h->revalidation == c);
    if (err == ERR_OK && c->found == NULL) {
        err = ERR_ORIGIN_PROTOCOL;
    }
    h->revalidation = NULL;
    // Sent before an invalidation it says nothing to anyone. Sent inside a write it is true for its
    // readers, who came before that write's reply, but no longer than the write is open.
    bool outdated = c->floor != h->floor;
    if (!outdated && h->open_writes == 0) {
        revalidation_conclude(c, err);
    }
    struct subscription *sub;
    while ((sub = home_unhold(&c->waiters)) != NULL) {
        if (outdated ||
            !fill_error_is_shared(err, c->key->credentials, sub->ask.key->credentials)) {
            home_answer_again(h, sub);
        } else {
            revalidation_answer(c, sub, err, f->error_answer);
        }
    }
    worker_free_later(h->fw->worker, revalidation_free, c);
    if (!list_empty(&h->next_revalidation)) {
        struct list_node *first = list_first(&h->next_revalidation);
        revalidation_start(h, container_of(first, struct held, node)->subscription);
        list_append_all(&h->revalidation->waiters, &h->next_revalidation);
    }
    home_maybe_free(h);
}

static enum err on_revalidation_head(struct origin_fetch *f)
{
    struct revalidation *c = f->ctx;
    check(c->found == NULL);
    c->found = fill_version_from_fetch(c->home->key, f, NULL);
    return c->found != NULL ? ERR_OK : ERR_ORIGIN_PROTOCOL;
}

static enum err on_revalidation_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void revalidation_start(struct home_key *h, const struct subscription *first)
{
    struct store_object *asked = first->ask.object;
    check(h->revalidation == NULL);
    struct revalidation *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->home = h;
    c->key = object_key_ref(first->ask.key);
    c->asked = asked != NULL ? store_object_ref(asked) : NULL;
    c->floor = h->floor;
    c->began_us = worker_now_us(h->fw->worker);
    list_init(&c->waiters);
    h->revalidation = c;
    c->fetch.head = true;
    c->fetch.bucket = h->key->bucket;
    c->fetch.key = h->key->key;
    c->fetch.credentials = c->key->credentials;
    c->fetch.ask_checksums = true;
    if (asked != NULL) {
        c->fetch.if_none_match = c->asked->etag;
    }
    c->fetch.on_head = on_revalidation_head;
    c->fetch.on_body = on_revalidation_body;
    c->fetch.on_end = on_revalidation_end;
    c->fetch.ctx = c;
    stats_add(COUNTER_revalidations, 1);
    origin_fetch_start(h->fw->worker, h->key->origin, &c->fetch);
}

void home_on_revalidate(struct fill_worker *fw, struct ask_message *m)
{
    struct home_key *h = home_get(fw, m->base.key);
    if (h->revalidation == NULL) {
        revalidation_start(h, m->subscription);
    } else if (m->subscription->ask.strict || h->doubts > 0) {
        stats_add(COUNTER_revalidations_joined, 1);
        home_hold(&h->next_revalidation, m->subscription);
        return;
    } else {
        stats_add(COUNTER_revalidations_joined, 1);
    }
    home_hold(&h->revalidation->waiters, m->subscription);
}
