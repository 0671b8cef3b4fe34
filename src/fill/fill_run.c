// SPDX-License-Identifier: Apache-2.0
// The parts of a run in flight that all its files use: its end, the messages to its readers and to
// its key's home, and which run leads while memory is short. These functions call no other file of
// the run, except to ask for a later delivery. Runs on the stripe's owner. fill.c has the table of
// phases.
#include "fill/fill_private.h"

#include <stdlib.h>

// --- life ----------------------------------------------------------------------------------------

static void fill_free(void *ptr)
{
    struct fill *fill = fill_of(ptr);
    check(fill->phase == FILL_FREED && fill->transfer == TRANSFER_IDLE);
    check(list_empty(&fill->readers) && fill->run == NULL);
    check(fill->place.segment == NULL && fill->pages.segment == NULL);
    for (unsigned i = 0; i < fill->chunk_count; i++) {
        chunk_unref(fill->chunks[i]);
    }
    free(fill->chunks);
    worker_task_cancel(&fill->deliver_task);
    timer_done(&fill->timer);
    checksums_run_drop(fill);
    store_object_unref(fill->object);
    store_object_unref(fill->described);
    object_key_unref(fill->key);
    fill->magic = 0;
    free(fill);
}

void fill_maybe_free(struct fill *fill)
{
    if (fill->phase != FILL_LEFT || fill_is_fetching(fill) || fill->describing ||
        fill->memory_waiting) {
        return;
    }
    fill_enter(fill, FILL_FREED);
    stats_sub(COUNTER_fills_inflight, 1);
    worker_free_later(fill->fw->worker, fill_free, fill);
}

// Returns the version_hash() of the version that a 304 confirms or a 412 denies. 0: not known.
static uint64_t judged_version(const struct fill *fill)
{
    struct span etag;
    if (fill->failed == ERR_NOT_MODIFIED) {
        bool is_named = headers_get(&fill->fetch.headers, SPAN("ETag"), &etag);
        return is_named ? etag_version_hash(etag) : 0;
    }
    bool is_denied = fill->condition.kind == ORIGIN_IF_MATCH;
    return is_denied ? etag_version_hash(span_from_cstr(fill->condition.value)) : 0;
}

void fill_send_first_end(struct fill *fill)
{
    if (fill->token == 0) {
        return;
    }
    struct first_end_message *m = message_first_end_new(fill->fw, fill->key);
    m->token = fill->token;
    m->err = fill->failed;
    if (fill->failed == ERR_NOT_MODIFIED || fill->failed == ERR_PRECONDITION_FAILED) {
        m->condition = fill->condition;
        m->version = judged_version(fill);
    }
    m->asked_us = fill->asked_us;
    m->document = message_document(fill->failed_document);
    fill->token = 0;
    message_send(object_key_home(fill->fw, fill->key), &m->base);
}

void fill_send_version(struct fill *fill)
{
    if (fill->token == 0 || !fill_has_head(fill)) {
        return;
    }
    if (fill->weak) {
        // Without a strong ETag, other readers fetch the object for themselves.
        fill_send_first_end(fill);
        return;
    }
    check(fill->object != NULL && fill->object->etag.len > 0);
    struct version_message *m = message_version_new(fill->fw, fill->key);
    m->token = fill->token;
    m->object = store_object_ref(fill->object);
    m->asked_us = fill->asked_us;
    message_send(object_key_home(fill->fw, fill->key), &m->base);
}

// --- what a run holds ----------------------------------------------------------------------------

void fill_drop_chunks(struct fill *fill)
{
    fill_here_note(fill, false);
    for (unsigned i = 0; i < fill->chunk_count; i++) {
        chunk_unref(fill->chunks[i]);
        fill->chunks[i] = NULL;
    }
}

void fill_release_promise(struct fill *fill)
{
    if (fill->is_promised) {
        fill->is_promised = false;
        store_long_release(fill->fw->store);
    }
}

void fill_drop_pages(struct fill *fill)
{
    store_place_unpin(&fill->pages);
    fill->pages.payload_len = 0;
}

void fill_pause_end(struct fill *fill, enum fill_pause reason)
{
    check(reason != FILL_PAUSE_NONE);
    if (fill->pause == reason) {
        fill->pause = FILL_PAUSE_NONE;
    }
}

void fill_drop_run(struct fill *fill)
{
    if (fill->run != NULL) {
        check(fill->phase == FILL_BODY);
        store_run_abort(fill->run);
        fill->run = NULL;
        fill_pause_end(fill, FILL_PAUSE_DISK);
    }
}

void fill_cancel(struct fill *fill)
{
    if (fill_is_fetching(fill) && fill->transfer != TRANSFER_CANCELLED) {
        fill_transfer_enter(fill, TRANSFER_CANCELLED);
        origin_fetch_cancel(&fill->fetch);
    }
}

void fill_stop_waiting(struct fill *fill)
{
    if (fill->transfer == TRANSFER_PARKED || fill->transfer == TRANSFER_RESUMING) {
        fill_transfer_enter(fill, TRANSFER_IDLE);
    }
}

// --- the run that leads while memory is short ----------------------------------------------------

// When memory is used up, one stored run of each worker continues: it leads. Without it all paused
// runs could wait for each other, because each holds chunks that are not full yet. The leading run
// may exceed the limit, but releases its chunks as they are delivered and written. It waits for the
// disk when many bytes are unwritten. It leads until all of it is written, so that many short runs
// hold no more than one long run.
static bool may_lead(const struct fill *fill)
{
    return fill_is_fetching(fill) || fill->transfer == TRANSFER_PARKED;
}

bool fill_take_lead(struct fill *fill)
{
    check(!fill_is_unstored(fill) && fill_is_listed(fill));
    if (fill->fw->memory_lead == NULL && may_lead(fill)) {
        fill->fw->memory_lead = fill;
    }
    bool leads = fill->fw->memory_lead == fill;
    if (leads) {
        fill_pause_end(fill, FILL_PAUSE_MEMORY);
    }
    return leads;
}

// Passes the lead to another run, which continues in its own turn (fill_on_deliver()).
void fill_yield_lead(struct fill *fill)
{
    struct fill_worker *fw = fill->fw;
    if (fw->memory_lead != fill) {
        return;
    }
    fw->memory_lead = NULL;
    for (unsigned i = 0; i < FILL_MAP_BUCKETS && fw->memory_lead == NULL; i++) {
        list_for_each(node, &fw->fills.buckets[i])
        {
            struct fill *next = container_of(node, struct fill, map_node);
            if (next->pause == FILL_PAUSE_MEMORY && may_lead(next)) {
                check(next != fill && !fill_is_unstored(next));
                fw->memory_lead = next;
                worker_defer(fw->worker, &next->deliver_task);
                break;
            }
        }
    }
}

// --- the end -------------------------------------------------------------------------------------

// Rule 19: a run with a token sends FIRST_END exactly once, when it leaves the table.
void fill_leave_table(struct fill *fill)
{
    check(fill->fw->fills.count > 0);
    check(list_empty(&fill->readers) && fill->run == NULL);
    fill_enter(fill, FILL_LEFT);
    fill->pause = FILL_PAUSE_NONE;
    list_remove(&fill->map_node);
    fill->fw->fills.count--;
    fill_send_first_end(fill);
    fill_release_promise(fill);
    fill_stop_waiting(fill);
    fill_cancel(fill);
    if (fill->describing) {
        origin_fetch_cancel(&fill->describe);
    }
    fill_yield_lead(fill);
    fill_drop_chunks(fill);
    fill_drop_pages(fill);
    if (fill->place.segment != NULL) {
        check(fill->place.block_count == fill->block_count);
        store_place_unhold(&fill->place);
        store_place_unpin(&fill->place);
    }
    fill_maybe_free(fill);
}

// --- readers -------------------------------------------------------------------------------------

void fill_end_attachment(struct attachment *a, enum subscription_outcome outcome, enum err err,
                         struct span document)
{
    struct fill *fill = a->fill;
    check(fill != NULL && outcome != OUTCOME_NONE); // rule 10: one FINAL
    check(outcome != OUTCOME_ERROR || err != ERR_OK);
    struct answer_message *m = message_final_new(fill->fw, NULL);
    m->subscription = a->subscription;
    m->outcome = outcome;
    m->err = err;
    m->document = message_document(document);
    if (outcome == OUTCOME_DONE && a->waiting_place && fill->place.segment != NULL) {
        struct store_place place = fill->place;
        if (store_place_pin(&place)) {
            m->place = place;
        }
    }
    list_remove(&a->node);
    a->fill = NULL;
    stats_sub(COUNTER_coalesced_waiters, 1);
    message_send(a->at, &m->base);
}

void fill_final_all(struct fill *fill, enum subscription_outcome outcome, enum err err,
                    struct span document)
{
    list_for_each(node, &fill->readers)
    {
        fill_end_attachment(container_of(node, struct attachment, node), outcome, err, document);
    }
}

// Rule 22. A range past the end is an error for a reader without a version only, because a reader
// with a version knows its size.
static bool fill_error_is_for(const struct fill *fill, const struct attachment *a, enum err err)
{
    bool is_other_version = err == ERR_INVALID_RANGE && a->wanted != NULL;
    return !is_other_version && fill_error_is_shared(err, fill->key->credentials, a->credentials);
}

void fill_fail_all(struct fill *fill, enum err err, struct span document)
{
    check(err != ERR_OK);
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        bool is_for = fill_error_is_for(fill, a, err);
        fill_end_attachment(a, is_for ? OUTCOME_ERROR : OUTCOME_REJOIN, is_for ? err : ERR_OK,
                            is_for ? document : (struct span){0});
    }
}

void fill_send_head(struct fill *fill, struct attachment *a)
{
    check(fill_has_head(fill) && a->fill == fill);
    struct head_message *m = message_head_new(fill->fw, NULL);
    m->subscription = a->subscription;
    m->object = store_object_ref(fill->object);
    m->stored = !fill_is_unstored(fill);
    m->origin_status = fill->origin_status;
    m->unstored_why = fill->unstored_why;
    memcpy(m->origin_id, fill->origin_id, sizeof(m->origin_id));
    m->end_byte = fill->end_byte;
    m->weak = fill->weak;
    message_send(a->at, &m->base);
}
