// SPDX-License-Identifier: Apache-2.0
// A subscription: one attachment of a request to a run in flight, or one question to a key's home.
//
// It lives on its request's worker. Each ask (ROUTE, JOIN, CHECK) gets exactly one answer: ATTACHED,
// PLACE, AGAIN, ERROR or CHECKED. ATTACHED is followed by exactly one FINAL and owes exactly one
// LEAVE. A request that ends earlier lets go with subscription_leave(); the subscription then waits
// alone for what it still owes and is owed, and gives back whatever arrives.

#include "fill/fill_private.h"

#include <stdlib.h>
#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static struct subscription *as_subscription(struct subscription *sub)
{
    check(sub != NULL && sub->magic == SUBSCRIPTION_MAGIC);
    return sub;
}

static void subscription_drop_pieces(struct subscription *sub)
{
    struct list_node *node;
    while ((node = list_pop_front(&sub->pieces)) != NULL) {
        struct piece *piece = container_of(node, struct piece, node);
        chunk_unref(piece->chunk);
        free(piece);
    }
    sub->queued_bytes = 0;
}

static void subscription_free(void *ptr)
{
    struct subscription *sub = ptr;
    check(sub->on_change == NULL);
    subscription_drop_pieces(sub);
    store_place_unpin(&sub->place);
    store_object_unref(sub->ask.object);
    store_object_unref(sub->ask.refused);
    store_object_unref(sub->described);
    store_object_unref(sub->answer);
    object_key_unref(sub->ask.key);
    free((void *)(uintptr_t)sub->error_answer.ptr);
    sub->magic = 0;
    free(sub);
}

static void subscription_send_leave(struct subscription *sub)
{
    if (sub->attachment == NULL || sub->has_left) {
        return;
    }
    sub->has_left = true;
    struct wire *wire = wire_new(sub->at, WIRE_LEAVE, NULL);
    wire->attachment = sub->attachment;
    wire_send(sub->owner, wire);
}

void subscription_leave(struct subscription *sub)
{
    as_subscription(sub);
    check(sub->on_change != NULL);
    sub->on_change = NULL;
    subscription_drop_pieces(sub);
    if (sub->state == SUBSCRIPTION_ENDED) {
        worker_free_later(sub->at->worker, subscription_free, sub);
    } else if (sub->state == SUBSCRIPTION_ATTACHED) {
        subscription_send_leave(sub);
    }
}

// --- asks ----------------------------------------------------------------------------------------

static struct store_object *version_ref(struct store_object *object)
{
    return object != NULL ? store_object_ref(object) : NULL;
}

struct subscription *
subscription_ask(struct fill_worker *fw, const struct fill_ask *ask,
                 void (*on_change)(void *ctx, struct subscription *subscription), void *ctx)
{
    struct subscription *sub = calloc(1, sizeof(*sub));
    check(sub != NULL && on_change != NULL);
    sub->magic = SUBSCRIPTION_MAGIC;
    sub->state = SUBSCRIPTION_ASKED;
    sub->on_change = on_change;
    sub->ctx = ctx;
    sub->at = fw;
    sub->ask = *ask;
    sub->ask.key = object_key_ref(ask->key);
    sub->ask.object = version_ref(ask->object);
    sub->ask.refused = version_ref(ask->refused);
    list_init(&sub->pieces);
    bool joins = !ask->revalidate && ask->object != NULL;
    uint64_t stripe_byte = joins ? ask->block * ask->block_size_bytes : 0; // 0: the key's home
    struct wire *wire = wire_new(fw,
                                 ask->revalidate ? WIRE_CHECK
                                 : joins         ? WIRE_JOIN
                                                 : WIRE_ROUTE,
                                 sub->ask.key);
    wire->subscription = sub;
    wire_send(object_key_owner(fw, sub->ask.key, stripe_byte), wire);
    return sub;
}

void subscription_taken(struct subscription *sub, uint64_t bytes)
{
    check(sub->queued_bytes >= bytes);
    sub->queued_bytes -= bytes;
    if (sub->state == SUBSCRIPTION_ATTACHED && !sub->has_left && !sub->stored) {
        struct wire *wire = wire_new(sub->at, WIRE_TAKEN, NULL);
        wire->attachment = sub->attachment;
        wire->len = (uint32_t)bytes;
        wire_send(sub->owner, wire);
    }
}

// --- answers -------------------------------------------------------------------------------------

static void subscription_changed(struct subscription *sub)
{
    if (sub->on_change != NULL) {
        sub->on_change(sub->ctx, sub);
    }
}

// The last answer: the subscription ends, or is freed when nobody is left.
static void subscription_end(struct subscription *sub, enum subscription_outcome outcome,
                             struct wire *wire)
{
    sub->state = SUBSCRIPTION_ENDED;
    sub->outcome = outcome;
    sub->err = wire->err;
    sub->place = wire->place;
    if (wire->object != NULL && sub->answer == NULL) {
        sub->answer = wire->object;
        wire->object = NULL;
    }
    sub->error_answer = wire->document;
    wire->document = (struct span){0};
    if (sub->on_change == NULL) {
        worker_free_later(sub->at->worker, subscription_free, sub);
    } else {
        subscription_changed(sub);
    }
}

void subscription_on_attached(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    struct subscription *sub = as_subscription(wire->subscription);
    check(sub->state == SUBSCRIPTION_ASKED);
    sub->state = SUBSCRIPTION_ATTACHED;
    sub->attachment = wire->attachment;
    sub->owner = wire->from;
    sub->joined = wire->flag;
    if (sub->on_change == NULL) {
        subscription_send_leave(sub);
    }
}

void subscription_on_head(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    struct subscription *sub = as_subscription(wire->subscription);
    check(sub->answer == NULL);
    sub->answer = wire->object;
    wire->object = NULL;
    sub->stored = wire->flag;
    sub->run_end_byte = wire->end_byte;
    sub->weak = wire->block != 0;
    subscription_changed(sub);
}

void subscription_on_body(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    struct subscription *sub = as_subscription(wire->subscription);
    if (sub->on_change == NULL || sub->lagging) {
        return;
    }
    if (sub->stored && sub->queued_bytes > chunk_budget_lean(FILL_QUEUE_MAX)) {
        sub->lagging = true; // the rest comes from disk
        stats_add(COUNTER_readers_detached, 1);
        return;
    }
    struct piece *piece = calloc(1, sizeof(*piece));
    check(piece != NULL);
    list_node_init(&piece->node);
    piece->chunk = wire->chunk;
    wire->chunk = NULL;
    piece->offset = wire->offset;
    piece->len = wire->len;
    piece->first_byte = wire->first_byte;
    list_push_back(&sub->pieces, &piece->node);
    sub->queued_bytes += piece->len;
    subscription_changed(sub);
}

void subscription_on_final(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    struct subscription *sub = as_subscription(wire->subscription);
    check(sub->state == SUBSCRIPTION_ATTACHED);
    subscription_send_leave(sub);
    if (sub->on_change == NULL) {
        store_place_unpin(&wire->place);
    }
    subscription_end(sub, wire->outcome, wire);
}

void subscription_on_place(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    struct subscription *sub = as_subscription(wire->subscription);
    if (sub->on_change == NULL) {
        store_place_unpin(&wire->place);
    }
    subscription_end(sub, OUTCOME_DONE, wire);
}

void subscription_on_again(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    subscription_end(as_subscription(wire->subscription), OUTCOME_REJOIN, wire);
}

void subscription_on_error(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    subscription_end(as_subscription(wire->subscription), OUTCOME_ERROR, wire);
}

void subscription_on_checked(struct fill_worker *fw, struct wire *wire)
{
    (void)fw;
    subscription_end(as_subscription(wire->subscription), wire->outcome, wire);
}
