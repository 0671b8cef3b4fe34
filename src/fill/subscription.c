// SPDX-License-Identifier: Apache-2.0
// A subscription: one attachment of a request to a run in flight, or one question to a key's home.
//
// It belongs to its request's worker. Each ask (ROUTE, JOIN, REVALIDATE) gets exactly one answer:
// ATTACHED, PLACE, AGAIN, ERROR or REVALIDATED. ATTACHED is followed by exactly one FINAL and owes
// exactly one LEAVE. A request that ends earlier calls subscription_leave(). The subscription then
// waits for the messages that are still due, and releases whatever they carry.

#include "fill/fill_private.h"

#include <stdlib.h>
#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static struct subscription *as_subscription(struct subscription *sub)
{
    check(sub != NULL && sub->magic == SUBSCRIPTION_MAGIC);
    return sub;
}

// Returns true while a run's owner may send to this reader.
static bool is_attached(const struct subscription *sub)
{
    return sub->state == SUBSCRIPTION_ATTACHED || sub->state == SUBSCRIPTION_LEAVING;
}

static void piece_free(struct subscription *sub, struct piece *piece)
{
    check(piece->chunk == NULL || sub->queued_bytes >= piece->len);
    list_remove(&piece->node);
    sub->queued_bytes -= piece->chunk != NULL ? piece->len : 0;
    chunk_unref(piece->chunk);
    store_place_unpin(&piece->pages);
    free(piece);
}

// Drops pieces from the end of the queue, until at most `keep_bytes` are left.
static void subscription_drop_pieces(struct subscription *sub, uint64_t keep_bytes)
{
    struct list_node *node;
    while ((node = list_last(&sub->pieces)) != NULL &&
           (keep_bytes == 0 || sub->queued_bytes > keep_bytes)) {
        struct piece *piece = container_of(node, struct piece, node);
        sub->next_byte = piece->first_byte;
        piece_free(sub, piece);
    }
}

static void subscription_lag(struct subscription *sub)
{
    sub->flow = sub->flow == FLOW_FOLLOWS ? FLOW_LAGS : sub->flow;
}

// Drops what a reader of a stored run has queued beyond its share. The run's owner has those bytes
// too, in memory or on disk, and the reader asks for them again when its share is sent. So the
// memory can serve other readers. A reader that keeps up never queues more than its share. The
// share is never 0, because a reader without a share would ask for the same bytes for ever.
static void subscription_yield_pieces(struct subscription *sub)
{
    uint64_t most = min_u64(FILL_QUEUE_MAX, chunk_budget_max_bytes() / FILL_QUEUES_MIN);
    uint64_t share = chunk_budget_is_used_up() ? FILL_QUEUE_USED_UP
                                               : max_u64(chunk_budget_lean(most), FILL_QUEUE_LEAST);
    if (sub->stored && sub->queued_bytes > share) {
        stats_add(COUNTER_readers_detached, sub->flow == FLOW_FOLLOWS ? 1 : 0);
        subscription_lag(sub);
        subscription_drop_pieces(sub, share);
    }
}

static void subscription_free(void *ptr)
{
    struct subscription *sub = ptr;
    check(sub->on_change == NULL);
    subscription_drop_pieces(sub, 0);
    store_place_unpin(&sub->place);
    store_object_unref(sub->ask.object);
    store_object_unref(sub->ask.refused);
    store_object_unref(sub->answer);
    store_object_unref(sub->described);
    object_key_unref(sub->ask.key);
    free((void *)(uintptr_t)sub->error_answer.ptr);
    sub->magic = 0;
    free(sub);
}

static void subscription_send_leave(struct subscription *sub)
{
    check(sub->attachment != NULL && sub->owner != NULL);
    fill_subscription_enter(sub, SUBSCRIPTION_LEAVING); // rule 10: one LEAVE
    struct leave_message *m = message_leave_new(sub->at, NULL);
    m->attachment = sub->attachment;
    message_send(sub->owner, &m->base);
}

void subscription_leave(struct subscription *sub)
{
    as_subscription(sub);
    check(sub->on_change != NULL);
    sub->on_change = NULL;
    subscription_drop_pieces(sub, 0);
    if (sub->state == SUBSCRIPTION_ENDED) {
        worker_free_later(sub->at->worker, subscription_free, sub);
    } else if (sub->state == SUBSCRIPTION_ATTACHED) {
        subscription_send_leave(sub);
    }
    fill_assert_subscription(sub);
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
    check(on_change != NULL && ask->key != NULL);
    bool wants_bytes = fill_ask_is_for_bytes(ask->kind);
    check(!wants_bytes || (ask->block_size_bytes > 0 && ask->block_count > 0));
    check(!wants_bytes || ask->first_byte / ask->block_size_bytes == ask->block);
    check(!ask->has_sent || ask->object != NULL); // rule 8: a reply that has begun has a version
    struct subscription *sub = calloc(1, sizeof(*sub));
    check(sub != NULL);
    sub->magic = SUBSCRIPTION_MAGIC;
    sub->state = SUBSCRIPTION_ASKED;
    sub->on_change = on_change;
    sub->ctx = ctx;
    sub->at = fw;
    sub->asked_us = worker_now_us(fw->worker);
    sub->ask = *ask;
    sub->ask.key = object_key_ref(ask->key);
    sub->ask.object = version_ref(ask->object);
    sub->ask.refused = version_ref(ask->refused);
    sub->no_pages = ask->no_pages;
    sub->next_byte = ask->first_byte;
    list_init(&sub->pieces);
    list_node_init(&sub->held_node);
    bool joins = wants_bytes && ask->object != NULL;
    // JOIN goes to the owner of the stripe, any other ask to the key's home, which owns stripe 0.
    uint64_t stripe_byte = joins ? ask->block * ask->block_size_bytes : 0;
    struct ask_message *m = ask->kind == FILL_ASK_TELL ? message_told_new(fw, sub->ask.key)
                            : !wants_bytes             ? message_revalidate_new(fw, sub->ask.key)
                            : joins                    ? message_join_new(fw, sub->ask.key)
                                                       : message_route_new(fw, sub->ask.key);
    m->subscription = sub;
    message_send(object_key_owner(fw, sub->ask.key, stripe_byte), &m->base);
    fill_assert_subscription(sub);
    return sub;
}

bool subscription_takes_suffix(const struct store *store, uint32_t block_size_bytes,
                               uint64_t suffix_bytes)
{
    bool is_streamed = store_refuses_all(store) != REFUSAL_none;
    uint64_t most = is_streamed ? STORE_RUN_MAX : store_run_bytes_max(store);
    uint64_t blocks = most / block_size_bytes;
    return suffix_bytes > 0 && blocks > 0 &&
           suffix_bytes <= blocks * block_size_bytes - (block_size_bytes - 1);
}

void subscription_use_blocks(struct subscription *sub, uint32_t block_size_bytes)
{
    check(block_size_bytes > 0 && sub->ask.block_size_bytes > 0);
    struct fill_ask *ask = &sub->ask;
    uint64_t size = block_size_bytes;
    uint64_t end = (ask->block + ask->block_count) * (uint64_t)ask->block_size_bytes;
    if (size == ask->block_size_bytes) {
        return;
    }
    ask->block_size_bytes = block_size_bytes;
    ask->block = ask->first_byte / size;
    uint64_t blocks = (end - ask->block * size + size - 1) / size; // `end` is after first_byte
    ask->block_count = (uint32_t)min_u64(blocks, STORE_RUN_BLOCKS_MAX);
}

void subscription_place_suffix(struct subscription *sub, uint64_t size_bytes)
{
    check(sub->ask.suffix_bytes > 0 && sub->ask.block_size_bytes > 0);
    uint64_t block_size = sub->ask.block_size_bytes;
    sub->ask.first_byte = size_bytes - min_u64(sub->ask.suffix_bytes, size_bytes);
    sub->ask.end_byte = size_bytes;
    sub->ask.block = sub->ask.first_byte / block_size;
    uint64_t bytes = size_bytes - sub->ask.block * block_size;
    uint64_t blocks = max_u64((bytes + block_size - 1) / block_size, 1);
    sub->ask.block_count = (uint32_t)min_u64(blocks, STORE_RUN_BLOCKS_MAX);
    sub->ask.suffix_bytes = 0;
}

void subscription_pop(struct subscription *sub)
{
    struct list_node *node = list_first(&sub->pieces);
    check(sub->on_change != NULL && node != NULL);
    struct piece *piece = container_of(node, struct piece, node);
    uint32_t bytes = piece->len;
    piece_free(sub, piece);
    if (chunk_budget_is_short()) {
        subscription_yield_pieces(sub); // drops pieces that were queued while memory was not short
    }
    fill_assert_subscription(sub);
    if (sub->state == SUBSCRIPTION_ATTACHED && !sub->stored) {
        struct taken_message *m = message_taken_new(sub->at, NULL);
        m->attachment = sub->attachment;
        m->bytes = bytes;
        message_send(sub->owner, &m->base);
    }
}

void subscription_want(struct subscription *sub, uint64_t byte)
{
    check(sub->on_change != NULL);
    if (sub->flow != FLOW_LAGS || sub->state != SUBSCRIPTION_ATTACHED ||
        !list_empty(&sub->pieces)) {
        return;
    }
    sub->flow = FLOW_WANTS;
    sub->next_byte = byte;
    struct want_message *m = message_want_new(sub->at, NULL);
    m->attachment = sub->attachment;
    m->first_byte = byte;
    m->no_pages = sub->no_pages;
    message_send(sub->owner, &m->base);
    fill_assert_subscription(sub);
}

void subscription_refuse_pages(struct subscription *sub)
{
    check(sub->on_change != NULL && sub->stored);
    subscription_drop_pieces(sub, 0);
    sub->no_pages = true;
    subscription_lag(sub);
    fill_assert_subscription(sub);
}

// --- answers -------------------------------------------------------------------------------------

static void subscription_changed(struct subscription *sub)
{
    fill_assert_subscription(sub);
    if (sub->on_change != NULL) {
        sub->on_change(sub->ctx, sub);
    }
}

// Takes ownership of a reference in a message. References that are left in a message are released
// after its delivery.
static void take_object(struct subscription *sub, struct store_object **object)
{
    check(sub->answer == NULL);
    sub->answer = *object;
    *object = NULL;
}

// Takes ownership of a pinned place, or unpins it if the reader has left.
static void take_place(struct subscription *sub, struct store_place *place)
{
    check(sub->place.segment == NULL && sub->state != SUBSCRIPTION_ENDED);
    if (sub->on_change == NULL) {
        store_place_unpin(place);
    } else {
        sub->place = *place;
    }
}

// Handles the last answer: the subscription ends, and is freed if its reader has left.
static void subscription_end(struct subscription *sub, struct answer_message *m)
{
    check(m->outcome != OUTCOME_NONE && sub->error_answer.ptr == NULL);
    if (m->object != NULL) {
        take_object(sub, &m->object);
    }
    take_place(sub, &m->place);
    sub->error_answer = m->document;
    m->document = (struct span){0};
    sub->validated_us = m->validated_us;
    sub->outcome = m->outcome;
    sub->err = m->err;
    fill_subscription_enter(sub, SUBSCRIPTION_ENDED);
    if (sub->on_change == NULL) {
        worker_free_later(sub->at->worker, subscription_free, sub);
    }
    subscription_changed(sub);
}

void subscription_on_attached(struct fill_worker *fw, struct attached_message *m)
{
    (void)fw;
    struct subscription *sub = as_subscription(m->subscription);
    check(m->attachment != NULL && m->base.from != NULL);
    fill_subscription_enter(sub, SUBSCRIPTION_ATTACHED);
    sub->attachment = m->attachment;
    sub->owner = m->base.from;
    sub->next_byte = sub->ask.first_byte; // the home may have converted a suffix to a range
    sub->joined = m->joined;
    sub->whole = m->whole;
    sub->here_end_byte = m->here_end_byte;
    if (sub->on_change == NULL) {
        subscription_send_leave(sub);
    }
    fill_assert_subscription(sub);
}

void subscription_on_head(struct fill_worker *fw, struct head_message *m)
{
    (void)fw;
    struct subscription *sub = as_subscription(m->subscription);
    check(is_attached(sub) && m->object != NULL);
    take_object(sub, &m->object);
    if (sub->ask.suffix_bytes > 0) {
        subscription_place_suffix(sub, sub->answer->size_bytes);
        sub->next_byte = sub->ask.first_byte;
    }
    sub->stored = m->stored;
    sub->unstored_why = m->unstored_why;
    sub->origin_status = m->origin_status;
    memcpy(sub->origin_id, m->origin_id, sizeof(sub->origin_id));
    sub->run_end_byte = m->end_byte;
    sub->weak = m->weak;
    subscription_changed(sub);
}

// Returns true if `first_byte` follows the last piece. Messages that the owner sent before it got a
// WANT may begin anywhere in the run.
static bool subscription_takes(struct subscription *sub, uint64_t first_byte)
{
    if (sub->on_change == NULL || first_byte != sub->next_byte) {
        if (sub->on_change != NULL && first_byte > sub->next_byte) {
            subscription_lag(sub);
        }
        return false;
    }
    sub->flow = FLOW_FOLLOWS;
    return true;
}

static struct piece *subscription_add_piece(struct subscription *sub, uint64_t first_byte,
                                            uint32_t len)
{
    struct piece *piece = calloc(1, sizeof(*piece));
    check(piece != NULL && len > 0);
    list_node_init(&piece->node);
    piece->len = len;
    piece->first_byte = first_byte;
    list_push_back(&sub->pieces, &piece->node);
    sub->next_byte = first_byte + len;
    return piece;
}

void subscription_on_body(struct fill_worker *fw, struct body_message *m)
{
    (void)fw;
    struct subscription *sub = as_subscription(m->subscription);
    check(is_attached(sub) && sub->answer != NULL);
    if (!subscription_takes(sub, m->first_byte)) {
        return;
    }
    struct piece *piece = subscription_add_piece(sub, m->first_byte, m->len);
    piece->chunk = m->chunk;
    m->chunk = NULL;
    piece->offset = m->offset;
    sub->queued_bytes += piece->len;
    subscription_yield_pieces(sub);
    subscription_changed(sub);
}

void subscription_on_pages(struct fill_worker *fw, struct pages_message *m)
{
    (void)fw;
    struct subscription *sub = as_subscription(m->subscription);
    check(is_attached(sub) && sub->answer != NULL);
    if (sub->no_pages || !subscription_takes(sub, m->first_byte)) {
        store_place_unpin(&m->pages);
        return;
    }
    uint64_t end = m->pages.first_block * m->pages.block_size_bytes + m->pages.payload_len;
    struct piece *piece =
        subscription_add_piece(sub, m->first_byte, (uint32_t)(end - m->first_byte));
    piece->pages = m->pages;
    m->pages.segment = NULL;
    subscription_changed(sub);
}

void subscription_on_final(struct fill_worker *fw, struct answer_message *m)
{
    (void)fw;
    struct subscription *sub = as_subscription(m->subscription);
    check(is_attached(sub) && m->object == NULL);
    if (sub->state == SUBSCRIPTION_ATTACHED) {
        subscription_send_leave(sub);
    }
    subscription_end(sub, m);
}

// Rule 10: handles the only answer to an ask that is not attached to a run.
void subscription_on_answer(struct fill_worker *fw, struct answer_message *m)
{
    (void)fw;
    struct subscription *sub = as_subscription(m->subscription);
    check(sub->state == SUBSCRIPTION_ASKED);
    sub->whole = m->place.segment != NULL;
    subscription_end(sub, m);
}
