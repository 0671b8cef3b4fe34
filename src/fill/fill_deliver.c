// SPDX-License-Identifier: Apache-2.0
// Delivers a run's bytes to its readers, and manages the run's memory. Runs on the stripe's owner.
//
// A delivery sends each reader the new bytes that the reader has not been sent yet. How long the
// run keeps a chunk depends on memory:
//   ample        until the run ends, so that late readers start at once
//   less         until every reader was sent the chunk and pages can serve late readers
//   short        until every reader was sent the chunk; a run that is not stored always does this
//
// Bytes that were written into the page cache can be sent from there, because their checksums were
// computed before. A reader that has fallen behind continues from the pages (rule 34), and so does
// one whose bytes are not in memory any more. Other bytes come from memory or, at the run's end,
// from its place.
//
// Three things pause a transfer (fill_pause.c). An unstored run waits for its fastest reader (its
// window). A stored run waits for memory, except the leading run of each worker. The leading run
// waits for the disk.
#include "fill/fill_private.h"

static void fill_on_memory(struct worker *w, struct message *message)
{
    (void)w;
    struct fill *fill = fill_of(container_of(message, struct fill, memory_message));
    check(fill->memory_waiting);
    fill->memory_waiting = false;
    fill_pause_end(fill, FILL_PAUSE_MEMORY);
    fill_pause_update(fill);
    fill_maybe_free(fill);
    fill_assert_run(fill);
}

// Runs on the thread that freed memory.
static void on_memory_free(void *ctx)
{
    struct fill *fill = ctx;
    mailbox_send_from_any_thread(fill->fw->worker, &fill->memory_message);
}

// Called when a write of the run to disk has ended. `pages` is the part written so far.
void fill_on_run_progress(void *ctx, const struct store_place *pages)
{
    struct fill *fill = fill_of(ctx);
    check(fill->phase == FILL_BODY || fill->phase == FILL_WRITING);
    if (pages != NULL && fill->pages.segment != NULL) {
        fill->pages.payload_len = pages->payload_len;
    } else if (pages != NULL) {
        fill->pages = *pages;
        if (!store_place_pin(&fill->pages)) {
            fill->pages = (struct store_place){0};
        }
    }
    worker_defer(fill->fw->worker, &fill->deliver_task);
    if (fill->pause == FILL_PAUSE_DISK &&
        store_run_unwritten_bytes(fill->run) < FILL_LEAD_UNWRITTEN) {
        fill_pause_end(fill, FILL_PAUSE_DISK);
        fill_pause_update(fill);
    }
    fill_assert_run(fill);
}

static void fill_wait_for_disk(struct fill *fill)
{
    check(fill->fw->memory_lead == fill);
    if (fill->run != NULL && store_run_unwritten_bytes(fill->run) >= FILL_LEAD_UNWRITTEN) {
        fill->pause = FILL_PAUSE_DISK;
    }
}

struct chunk *fill_chunk(struct fill *fill)
{
    struct chunk *chunk = chunk_new();
    if (chunk != NULL) {
        return chunk;
    }
    chunk = chunk_new_forced();
    // The window already limits an unstored run, so the run does not wait for memory.
    if (fill_is_unstored(fill)) {
        fill_window_update(fill);
        stats_add(COUNTER_buffer_paused, fill->pause == FILL_PAUSE_WINDOW ? 1 : 0);
        return chunk;
    }
    if (fill->run != NULL) {
        store_run_write_now(fill->run); // because no other bytes may follow until then
    }
    if (fill_take_lead(fill)) {
        fill_wait_for_disk(fill);
        return chunk;
    }
    stats_add(COUNTER_buffer_paused, 1);
    fill->pause = FILL_PAUSE_MEMORY;
    if (!fill->memory_waiting) {
        fill->memory_waiting = true;
        fill->memory_message.deliver = fill_on_memory;
        chunk_budget_wait(on_memory_free, fill);
    }
    return chunk;
}

// Rule 34. Returns false if the reader's next bytes are not written, or if pages cannot be sent to
// it.
static bool fill_deliver_pages(struct fill *fill, struct attachment *a)
{
    check(fill->phase == FILL_BODY || fill->phase == FILL_WRITING);
    uint64_t end = fill->first_byte + fill->pages.payload_len;
    struct store_place pages = fill->pages;
    if (a->no_pages || a->next_byte >= end || !store_place_pin(&pages)) {
        return false;
    }
    struct pages_message *m = message_pages_new(fill->fw, NULL);
    m->subscription = a->subscription;
    m->pages = pages;
    m->first_byte = a->next_byte;
    a->next_byte = end;
    message_send(a->at, &m->base);
    return true;
}

static void fill_deliver_to(struct fill *fill, struct attachment *a)
{
    a->waiting_place = a->ahead;
    while (!a->ahead && a->next_byte < fill->received) {
        uint64_t at = a->next_byte - fill->first_byte;
        check(at / CHUNK_SIZE < fill->chunk_count);
        struct chunk *chunk = fill->chunks[at / CHUNK_SIZE];
        bool from_pages = a->behind || chunk == NULL || fill->phase == FILL_WRITING;
        if (from_pages && fill_deliver_pages(fill, a)) {
            continue;
        }
        if (chunk == NULL) {
            a->waiting_place = true;
            return;
        }
        uint32_t offset = (uint32_t)(at % CHUNK_SIZE);
        uint32_t len = (uint32_t)min_u64(CHUNK_SIZE - offset, fill->received - a->next_byte);
        check(offset + len <= chunk->len);
        struct body_message *m = message_body_new(fill->fw, NULL);
        m->subscription = a->subscription;
        m->chunk = chunk_ref(chunk);
        m->offset = offset;
        m->len = len;
        m->first_byte = a->next_byte;
        a->next_byte += len;
        message_send(a->at, &m->base);
    }
}

// Removes the readers of an unstored run that are too far behind the bytes received, except the
// fastest one. They ask again.
static void fill_pace(struct fill *fill)
{
    uint64_t fastest = fill_window_fastest(fill);
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        // `acked_byte` may be above `received`, because a reader may begin later in the run.
        if (a->waiting_place ||
            (a->acked_byte != fastest &&
             fill->received > a->acked_byte + chunk_budget_lean(FILL_DETACH_BEHIND))) {
            stats_add(COUNTER_readers_detached, 1);
            fill_end_attachment(a, OUTCOME_REJOIN, ERR_OK, (struct span){0});
        }
    }
    fill_window_update(fill);
    fill_pause_update(fill);
}

// Returns true if a present reader cannot be sent pages. Late readers are assumed to be the same.
static bool fill_has_readers_without_pages(const struct fill *fill)
{
    bool any = false;
    list_for_each(node, &fill->readers)
    {
        any |= container_of(node, struct attachment, node)->no_pages;
    }
    return any;
}

// Releases the whole chunks below `keep_from` that every reader was sent. A reader that waits for
// the run's place needs none.
static void fill_release_chunks(struct fill *fill, uint64_t keep_from)
{
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        if (!a->waiting_place) {
            keep_from = min_u64(keep_from, a->next_byte);
        }
    }
    // Only whole chunks are released; the one that is being filled stays.
    check(keep_from >= fill->first_byte && keep_from <= fill->received);
    uint64_t whole = (keep_from - fill->first_byte) / CHUNK_SIZE;
    for (uint64_t i = (fill->retained_from - fill->first_byte) / CHUNK_SIZE; i < whole; i++) {
        chunk_unref(fill->chunks[i]);
        fill->chunks[i] = NULL;
    }
    if (fill->phase == FILL_WRITING) {
        fill_here_note(fill, false);
    }
    fill->retained_from = max_u64(fill->retained_from, fill->first_byte + whole * CHUNK_SIZE);
}

void fill_deliver_bytes(struct fill *fill)
{
    check(fill_has_head(fill) && fill->verdict != FILL_VERDICT_WRONG);
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        fill_deliver_to(fill, a);
        if (fill->phase == FILL_WRITING && !a->waiting_place) { // rule 32: the reader joined late
            fill_end_attachment(a, OUTCOME_DONE, ERR_OK, (struct span){0});
        }
    }
}

void fill_deliver(struct fill *fill)
{
    if (!fill_has_head(fill) || fill->verdict == FILL_VERDICT_WRONG) {
        return;
    }
    fill_deliver_bytes(fill);
    if (fill->phase == FILL_WRITING) {
        fill_wait_for_place(fill);
    }
    if (fill_is_unstored(fill)) {
        fill_pace(fill);
    }
    if (fill_is_unstored(fill) || chunk_budget_is_short()) {
        fill_release_chunks(fill, fill->received);
    } else if (!chunk_budget_is_ample() && !fill_has_readers_without_pages(fill)) {
        fill_release_chunks(fill, fill->first_byte + fill->pages.payload_len);
    }
}

void fill_on_deliver(struct task *task)
{
    struct fill *fill = fill_of(container_of(task, struct fill, deliver_task));
    fill_deliver(fill);
    if (fill->phase == FILL_BODY && fill->pause == FILL_PAUSE_MEMORY && fill_take_lead(fill)) {
        fill_pause_update(fill); // another run has passed the lead to this one
    }
    if (fill->phase == FILL_BODY && list_empty(&fill->readers)) {
        // The last readers were removed, for example because they wanted another version.
        fill_on_no_readers(fill);
    }
    fill_assert_run(fill);
}
