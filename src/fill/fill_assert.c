// SPDX-License-Identifier: Apache-2.0
// The invariants of a run in flight, a key's home and a subscription, which hold whenever their
// worker has finished with them. Each function checks one struct and is called where the state
// changes, in every build. Builds with fault injection also check the lists that belong to the
// struct.
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
        bool given_up = fill->first_byte + (i + 1) * CHUNK_SIZE <= fill->retained_from;
        bool may_be_gone = given_up || fill->state >= FILL_WRITING; // may be released
        check(chunk == NULL || (fill->in_table && fill->state < FILL_WRITTEN));
        check(chunk == NULL || !given_up);
        check(chunk != NULL || !has_come || may_be_gone || !fill->in_table);
    }
#else
    (void)fill;
#endif
}

void fill_assert_run(const struct fill *fill)
{
    check(fill->magic == FILL_MAGIC);
    check(fill->state <= FILL_WRITTEN);
    check(fill->has_head == (fill->state != FILL_ASKED));
    check(!fill->has_head || fill->object != NULL);
    check(fill->block_count > 0);
    check(fill->first_byte == fill->first_block * fill->block_size_bytes);
    check(fill->received >= fill->first_byte);
    check(fill->retained_from >= fill->first_byte);
    check(!fill->has_head || fill->received <= fill->end_byte);
    check(!fill->weak || fill->unstored);
    check(!fill->is_wrong || (fill->received == fill->end_byte && fill->state <= FILL_BODY));
    check(fill->run == NULL || (fill->state == FILL_BODY && !fill->unstored));
    check(!fill->finishing || fill->state == FILL_WRITING);
    check(fill->place.segment == NULL || fill->state == FILL_WRITTEN);
    check(fill->place.segment == NULL || fill->in_table);
    check(fill->pages.segment == NULL || fill->run != NULL || fill->finishing);
    check(fill->pages.segment != NULL || fill->pages.payload_len == 0);
    check(fill->state != FILL_WRITTEN || list_empty(&fill->readers)); // its readers got the place
    check(fill->state < FILL_WRITING || !fill->fetching);
    check(fill->token == 0 || fill->in_table); // rule 19
    check(fill->in_table == list_node_linked(&fill->map_node));
    check(!fill->abandoned || (!fill->in_table && list_empty(&fill->readers)));
    check(!fill->resume_waiting || fill->state == FILL_BODY || fill->looks_empty);
    check(!fill->head_waits || (fill->describing && fill->fetching && !fill->has_head));
    check(!fill->resume_waiting || !fill->fetching);
    check(!fill->paused || (fill->fetching && !fill->parking));
    check(!fill->parking || fill->fetching);
    check(!fill->parked || (fill->state == FILL_BODY && !fill->fetching && !fill->resume_waiting));
    check(!fill->parked || fill->paused_memory || fill->paused_window || fill->paused_disk);
    check(!fill->paused_disk || fill->run != NULL);
    check(fill->fw->memory_lead != fill || fill->fetching || fill->finishing);
    assert_attachments(fill);
}

// --- a key's home --------------------------------------------------------------------------------

static void assert_acknowledgements(const struct home_key *h)
{
#ifdef FOREBAY_FAULTS
    for (unsigned i = 0; i < h->fw->room->worker_count; i++) {
        check(h->acked[i] <= h->floor);
        check(h->has_floor || h->acked[i] == h->floor); // rule 26
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
    check(h->state != HOME_KNOWN || h->token != 0); // rule 13
    check(!h->has_found || h->state == HOME_DECIDING);
    check(list_empty(&h->held) || h->state == HOME_DECIDING ||
          (h->state == HOME_NONE && !home_is_settled(h)));   // rule 31
    check(h->state == HOME_NONE || home_is_acknowledged(h)); // rule 11
    check(list_empty(&h->publishing) || h->state == HOME_DECIDING);
    check(!h->has_floor || h->floor != 0);
    check(h->has_floor || h->open_writes == 0);                                      // rule 26
    check(list_empty(&h->starting) || (h->deletes > 0 && h->open_writes > 0));       // rule 27
    check(list_empty(&h->closing) || h->open_writes > 0);                            // rule 28
    check(list_empty(&h->concluded) || h->described != NULL || !home_is_settled(h)); // rule 31
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
    check(sub->state <= SUBSCRIPTION_ENDED);
    check((sub->outcome != OUTCOME_NONE) == (sub->state == SUBSCRIPTION_ENDED));
    check(sub->state != SUBSCRIPTION_ASKED || (sub->attachment == NULL && sub->answer == NULL));
    check(sub->state != SUBSCRIPTION_ATTACHED || sub->attachment != NULL);
    check((sub->attachment != NULL) == (sub->owner != NULL));
    check(!sub->has_left || sub->attachment != NULL);
    // Rule 10: an attached reader owes one LEAVE.
    check(sub->state != SUBSCRIPTION_ATTACHED || sub->has_left == (sub->on_change == NULL));
    check(sub->state != SUBSCRIPTION_ENDED || sub->attachment == NULL || sub->has_left);
    check(sub->place.segment == NULL || sub->state == SUBSCRIPTION_ENDED);
    check(!list_empty(&sub->pieces) || sub->queued_bytes == 0);
    check(list_empty(&sub->pieces) || (sub->answer != NULL && sub->on_change != NULL));
    check(!sub->lagging || sub->stored);
    check(!sub->wanting || sub->lagging);
    check(!sub->weak || !sub->stored);
    assert_pieces(sub);
}
