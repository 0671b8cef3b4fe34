// SPDX-License-Identifier: Apache-2.0
// Checks the invariants of a run in flight, a key's home and a subscription. They hold whenever
// their worker has finished with them. Each function checks one struct and is called where the
// state changes, in every build. Builds with fault injection also check the lists that belong to
// the struct.
#include "fill/home_private.h"

// --- a run in flight -----------------------------------------------------------------------------

static void assert_attachments(const struct fill *fill)
{
#ifdef FOREBAY_FAULTS
    list_for_each(node, &fill->readers)
    {
        const struct attachment *a = container_of(node, struct attachment, node);
        check(a->fill == fill);
        check(a->subscription != NULL);
        check(!a->has_sent || a->wanted != NULL);
        check(a->next_byte >= fill->first_byte);
        check(a->acked_byte <= a->next_byte);
    }
    for (uint64_t i = 0; i < fill->chunk_count; i++) {
        const struct chunk *chunk = fill->chunks[i];
        bool has_come = fill->first_byte + i * CHUNK_SIZE < fill->received;
        bool is_released = fill->first_byte + (i + 1) * CHUNK_SIZE <= fill->retained_from;
        check(chunk == NULL || (fill->phase < FILL_WRITTEN && !is_released));
        check(chunk != NULL || !has_come || is_released || fill->phase >= FILL_WRITING);
    }
#else
    (void)fill;
#endif
}

static void assert_transfer(const struct fill *fill)
{
    check(fill->phase <= FILL_BODY || !fill_is_fetching(fill) || fill->phase == FILL_LEFT);
    switch (fill->transfer) {
    case TRANSFER_IDLE:
        check(fill->phase > FILL_BODY);
        break;
    case TRANSFER_PARKED:
        check(fill->phase == FILL_BODY && fill->pause != FILL_PAUSE_NONE && !fill->weak);
        break;
    case TRANSFER_RESUMING:
        check(fill->phase == FILL_BODY || fill->range == FILL_RANGE_FOR_NO_BYTES);
        break;
    case TRANSFER_RUNNING:
        check(fill->phase <= FILL_BODY && fill->pause == FILL_PAUSE_NONE);
        break;
    case TRANSFER_PAUSED:
        check(fill->phase <= FILL_BODY);
        break;
    case TRANSFER_HELD:
        check(fill->phase == FILL_ASKED && fill->describing);
        break;
    case TRANSFER_CANCELLED:
        break;
    }
    check(fill->pause == FILL_PAUSE_NONE || fill->phase == FILL_BODY);
    check(fill->pause != FILL_PAUSE_WINDOW || fill_is_unstored(fill));
    check(fill->pause != FILL_PAUSE_MEMORY || !fill_is_unstored(fill));
    check(fill->pause != FILL_PAUSE_DISK || fill->run != NULL);
    check(fill->head_err == ERR_OK || fill->transfer == TRANSFER_CANCELLED);
    check(fill->fw->memory_lead != fill || fill_is_fetching(fill) || fill->phase == FILL_WRITING ||
          fill->transfer == TRANSFER_PARKED);
}

void fill_assert_run(const struct fill *fill)
{
    check(fill->magic == FILL_MAGIC);
    check(fill->phase <= FILL_FREED && fill->transfer <= TRANSFER_CANCELLED);
    check(!fill_has_head(fill) || fill->object != NULL);
    check(fill->block_count > 0);
    check(fill->first_byte >= fill->first_block * fill->block_size_bytes);
    check(fill_is_streamed(fill) || fill->first_byte == fill->first_block * fill->block_size_bytes);
    check(fill->limit_byte > fill->first_byte && fill->limit_byte >= fill->end_byte);
    check(!fill_is_streamed(fill) || (fill_is_unstored(fill) && fill->run == NULL));
    check(fill->received >= fill->first_byte);
    check(fill->retained_from >= fill->first_byte);
    check(!fill_has_head(fill) || fill->received <= fill->end_byte);
    check(fill->phase < FILL_WRITING || !fill_is_listed(fill) || fill_has_come(fill));
    check(!fill->weak || fill_is_unstored(fill));
    check(fill->verdict == FILL_VERDICT_OPEN || fill->received == fill->end_byte);
    check(fill->verdict != FILL_VERDICT_WRONG || fill->phase < FILL_WRITING ||
          !fill_is_listed(fill));
    check(fill->run == NULL || (fill->phase == FILL_BODY && !fill_is_unstored(fill)));
    check(!fill->is_promised || fill->phase == FILL_ASKED);
    check(fill->place.segment == NULL || fill->phase == FILL_WRITTEN);
    check(fill->pages.segment == NULL || fill->run != NULL || fill->phase == FILL_WRITING);
    check(fill->pages.segment != NULL || fill->pages.payload_len == 0);
    // A written run has no readers, because each was given the run's place.
    check(fill->phase < FILL_WRITTEN || list_empty(&fill->readers));
    // Rule 19: a run that has left the table has sent FIRST_END.
    check(fill->token == 0 || fill_is_listed(fill));
    check(fill_is_listed(fill) == list_node_linked(&fill->map_node));
    check(fill->phase != FILL_FREED || (!fill->describing && !fill->memory_waiting));
    assert_transfer(fill);
    assert_attachments(fill);
}

// --- a key's home --------------------------------------------------------------------------------

static void assert_acknowledgements(const struct home_key *h)
{
#ifdef FOREBAY_FAULTS
    for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
        check(h->acked[i] <= h->floor);
        // Rule 26: a floor is lifted only when every worker has acknowledged it.
        check(h->has_floor || h->acked[i] == h->floor);
    }
    list_for_each(node, &h->starting)
    {
        check(container_of(node, struct key_write, node)->on_ready != NULL);
    }
    list_for_each(other, &h->closing)
    {
        check(container_of(other, struct key_write, node)->on_ended != NULL);
    }
#else
    (void)h;
#endif
}

void fill_assert_home(const struct home_key *h)
{
    check(h->state <= HOME_KNOWN);
    check((h->known != NULL) == (h->state == HOME_KNOWN));
    check(h->known == NULL || h->known->generation != 0);
    check(h->known == NULL || h->known->generation >= h->floor);
    check(h->state != HOME_DECIDING || h->token != 0);
    check(h->state != HOME_NONE || h->token == 0);
    // Rule 13: the state KNOWN ends with FIRST_END.
    check(h->state != HOME_KNOWN || h->token != 0);
    check(!h->found.has || h->state == HOME_DECIDING);
    check(h->found.has || h->found.object == NULL);
    // Rules 11 and 31: readers are held while the version is being decided. In the state NONE they
    // are held only while a delete is not durable yet or an acknowledgement is missing.
    check(list_empty(&h->held) || h->state == HOME_DECIDING ||
          (h->state == HOME_NONE && !home_is_settled(h)));
    // Rule 11: a first request is sent only after all acknowledgements.
    check(h->state == HOME_NONE || home_is_acknowledged(h));
    check(list_empty(&h->publishing) || h->state == HOME_DECIDING);
    check(!h->has_floor || h->floor != 0);
    // Rule 26: the floor stays while a write is open.
    check(h->has_floor || h->open_writes == 0);
    // Rule 27: a write starts when its delete is durable.
    check(list_empty(&h->starting) || (h->deletes > 0 && h->open_writes > 0));
    // Rule 28: a write is open until it has been answered.
    check(list_empty(&h->closing) || h->open_writes > 0);
    // Rule 31: answers wait only while something is unsettled.
    check(list_empty(&h->concluded) || h->described != NULL || !home_is_settled(h));
    check(h->doubts <= h->open_writes);
    check(h->revalidation != NULL || list_empty(&h->next_revalidation));
    assert_acknowledgements(h);
}

// --- a subscription ------------------------------------------------------------------------------

static void assert_pieces(const struct subscription *sub)
{
#ifdef FOREBAY_FAULTS
    uint64_t bytes = 0, next_byte = 0;
    list_for_each(node, &sub->pieces)
    {
        const struct piece *piece = container_of(node, struct piece, node);
        bool is_chunk = piece->chunk != NULL;
        check(is_chunk == (piece->pages.segment == NULL));
        check(piece->len > 0);
        check(!is_chunk || piece->offset + piece->len <= CHUNK_SIZE);
        check(next_byte == 0 || piece->first_byte == next_byte); // pieces are in order
        next_byte = piece->first_byte + piece->len;
        bytes += is_chunk ? piece->len : 0;
    }
    check(bytes == sub->queued_bytes);
    check(next_byte == 0 || next_byte == sub->next_byte);
    check(next_byte == 0 || next_byte <= sub->run_end_byte);
#else
    (void)sub;
#endif
}

void fill_assert_subscription(const struct subscription *sub)
{
    check(sub->magic == SUBSCRIPTION_MAGIC);
    check(sub->state <= SUBSCRIPTION_ENDED && sub->flow <= FLOW_WANTS);
    check((sub->outcome != OUTCOME_NONE) == (sub->state == SUBSCRIPTION_ENDED));
    check(sub->state != SUBSCRIPTION_ASKED || (sub->attachment == NULL && sub->answer == NULL));
    check(sub->state == SUBSCRIPTION_ASKED || sub->state == SUBSCRIPTION_ENDED ||
          sub->attachment != NULL);
    check((sub->attachment != NULL) == (sub->owner != NULL));
    // Rule 10: an attached reader owes one LEAVE, and sends it when it leaves.
    check(sub->state != SUBSCRIPTION_ATTACHED || sub->on_change != NULL);
    check(sub->state != SUBSCRIPTION_LEAVING || sub->on_change == NULL);
    check(sub->place.segment == NULL || sub->state == SUBSCRIPTION_ENDED);
    check(!list_empty(&sub->pieces) || sub->queued_bytes == 0);
    check(list_empty(&sub->pieces) || (sub->answer != NULL && sub->on_change != NULL));
    check(sub->flow == FLOW_FOLLOWS || sub->stored);
    check(sub->flow != FLOW_WANTS || list_empty(&sub->pieces));
    check(!sub->weak || !sub->stored);
    assert_pieces(sub);
}
