// SPDX-License-Identifier: Apache-2.0
// Fetches a run from the origin into the store: the request, the head, the body, retries after a
// break, and all ends. Runs on the stripe's owner. phases.def has the phases of a run and of its
// transfer; the head of fill.c says what happens to a run in each.
#include "fill/fill_private.h"

#include <stdlib.h>
#include <string.h>

// --- ends ----------------------------------------------------------------------------------------

// Rule 22. Ends a run whose version the origin has denied.
static void fill_gone(struct fill *fill)
{
    check(!fill_is_fetching(fill));
    fill_drop_run(fill);
    if (fill->object != NULL) {
        struct version_message *m = message_version_gone_new(fill->fw, fill->key);
        m->object = store_object_ref(fill->object);
        message_send(object_key_home(fill->fw, fill->key), &m->base);
    }
    fill_final_all(fill, OUTCOME_GONE, ERR_ORIGIN_CHANGED, (struct span){0});
    fill_leave_table(fill);
}

static void fill_fail(struct fill *fill, enum err err, struct span document)
{
    check(err != ERR_OK && !fill_is_fetching(fill));
    stats_add(COUNTER_fills_failed, 1);
    fill_drop_run(fill);
    fill_deliver(fill);
    fill_fail_all(fill, err, document);
    fill->failed = fill_has_head(fill) ? ERR_OK : err;
    fill->failed_document = document;
    fill_leave_table(fill);
    fill->failed_document = (struct span){0};
}

static void fill_shorten(struct fill *fill, uint64_t blocks)
{
    check(fill_has_head(fill) && blocks > 0);
    fill->block_count = (uint32_t)min_u64(fill->block_count, blocks);
    fill->end_byte =
        min_u64(fill->end_byte, fill->first_byte + blocks * (uint64_t)fill->block_size_bytes);
    if (fill->received > fill->end_byte) {
        fill->received = fill->end_byte;
        checksums_run_drop(fill); // the sum covers more bytes than are kept
    }
}

static void on_run_written(void *ctx, enum err err, const struct store_place *place)
{
    struct fill *fill = fill_of(ctx);
    check(fill->phase == FILL_WRITING && fill->run == NULL);
    timer_stop(&fill->timer);
    fill_yield_lead(fill);
    fill_deliver_bytes(fill); // for readers that joined after the last byte had arrived
    fill_drop_chunks(fill);
    fill_drop_pages(fill);
    if (err != ERR_OK) {
        stats_add(COUNTER_fills_unstored, 1);
        // The error makes readers that can wait pause before they ask again.
        fill_final_all(fill, OUTCOME_REJOIN, err, (struct span){0});
        fill_leave_table(fill);
        return;
    }
    check(place->segment != NULL && place->block_count == fill->block_count);
    fill->place = *place;
    fill_enter(fill, FILL_WRITTEN);
    fill_final_all(fill, OUTCOME_DONE, ERR_OK, (struct span){0});
    if (fill->doomed) {
        fill_leave_table(fill);
        return;
    }
    fill_here_note(fill, true);
    struct publish_message *m = message_publish_new(fill->fw, fill->key);
    m->fill = fill;
    m->object = store_object_ref(fill->object);
    m->first_byte = fill->first_byte;
    m->end_byte = fill->end_byte;
    m->asked_us = fill->asked_us;
    m->sum = fill->checksum;
    fill->checksum = NULL;
    check(m->first_byte <= m->end_byte && m->end_byte <= m->object->size_bytes);
    m->place = *place; // borrowed: the fill keeps its pin until VISIBLE or DROPPED
    message_send(object_key_home(fill->fw, fill->key), &m->base);
    fill_assert_run(fill);
}

static void fill_complete(struct fill *fill)
{
    check(fill->phase == FILL_BODY && fill_has_come(fill) && !fill_is_fetching(fill));
    checksums_run_judge(fill); // otherwise the body triggers this; an empty object has none
    if (fill->verdict == FILL_VERDICT_WRONG) {
        fill_final_all(fill, OUTCOME_ERROR, ERR_ORIGIN_PROTOCOL, (struct span){0});
        fill_fail(fill, ERR_ORIGIN_PROTOCOL, (struct span){0});
        return;
    }
    fill_deliver(fill);
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        if (!a->waiting_place) {
            fill_end_attachment(a, OUTCOME_DONE, ERR_OK, (struct span){0});
        }
    }
    if (fill->run == NULL) {
        stats_add(COUNTER_fills_unstored, 1);
        fill_final_all(fill, OUTCOME_REJOIN, ERR_OK, (struct span){0});
        fill_leave_table(fill);
        return;
    }
    fill_enter(fill, FILL_WRITING);
    fill->pause = FILL_PAUSE_NONE;
    fill_wait_for_place(fill);
    struct store_run *run = fill->run;
    fill->run = NULL;
    if (chunk_budget_is_short()) {
        fill_drop_chunks(fill); // a reader that joins now waits for the place
    } else {
        fill_here_note(fill, !fill->doomed);
    }
    stats_add(COUNTER_filled_bytes_demand, fill->end_byte - fill->first_byte);
    store_run_finish(run, fill->block_count, on_run_written, fill);
}

// Ends a run whose body broke after its last retry. Cuts the readers, and keeps the whole blocks.
static void fill_cut(struct fill *fill, enum err err)
{
    uint64_t blocks = (fill->received - fill->first_byte) / fill->block_size_bytes;
    fill_deliver(fill);
    fill_fail_all(fill, err, (struct span){0});
    if (fill->run == NULL || blocks == 0) {
        fill_fail(fill, err, (struct span){0});
        return;
    }
    fill_shorten(fill, blocks);
    fill_complete(fill);
}

// Rule 21: keeps what a run without readers has fetched. If the run is being stored, completes the
// block in flight and drops the later blocks. Returns false if nothing of the run can be kept.
static bool fill_keep_blocks(struct fill *fill)
{
    check(fill->phase == FILL_BODY);
    if (fill->run == NULL || fill->doomed) {
        return false;
    }
    uint64_t done = fill->received - fill->first_byte, size = fill->block_size_bytes;
    // Without a call at the origin no block is in flight.
    uint64_t blocks = fill_is_fetching(fill) ? max_u64((done + size - 1) / size, 1) : done / size;
    if (blocks == 0) {
        return false;
    }
    fill_shorten(fill, blocks);
    if (!fill_has_come(fill)) {
        return true; // the rest of this block is in flight
    }
    if (fill_is_fetching(fill)) {
        fill_cancel(fill); // on_fetch_end() completes it
    } else {
        fill_stop_waiting(fill);
        fill_complete(fill);
    }
    return true;
}

// Rule 21. Ends a run without readers: before the head at once, otherwise after the block in
// flight.
void fill_on_no_readers(struct fill *fill)
{
    check(list_empty(&fill->readers));
    if (fill->phase > FILL_BODY || (fill->phase == FILL_BODY && fill_keep_blocks(fill))) {
        return;
    }
    stats_add(COUNTER_fills_cancelled, 1);
    fill_drop_run(fill);
    fill_leave_table(fill);
}

void fill_on_visible(struct fill_worker *fw, struct verdict_message *m)
{
    (void)fw;
    struct fill *fill = fill_of(m->fill);
    check(fill->phase == FILL_WRITTEN); // rule 20: only a written run was published
    stats_add(COUNTER_fills_stored, 1);
    fill_leave_table(fill);
    fill_assert_run(fill);
}

void fill_on_dropped(struct fill_worker *fw, struct verdict_message *m)
{
    (void)fw;
    struct fill *fill = fill_of(m->fill);
    check(fill->phase == FILL_WRITTEN); // rule 20: only a written run was published
    stats_add(COUNTER_fills_dropped, 1);
    fill_leave_table(fill);
    fill_assert_run(fill);
}

// --- the transfer --------------------------------------------------------------------------------

// Returns true if the head shows that the reader must not get the run. That is so if the reader has
// sent bytes of another version, or if it is not in the run's audience.
static bool fill_leaves_out(const struct fill *fill, const struct attachment *a)
{
    bool is_of_other =
        a->has_sent && a->wanted != NULL && !fill_same_version(a->wanted, fill->object);
    return is_of_other || (fill->audience == FILL_FOR_BOUND && !a->has_sent) ||
           (fill->audience == FILL_FOR_NAMED && a->wanted == NULL);
}

// Rules 16, 18 and 22: announces the head, and removes the readers that must not get the run.
static void fill_announce(struct fill *fill)
{
    if (fill->audience != FILL_FOR_ALL) {
        fill_send_first_end(fill); // this answer decides nothing for the home
    }
    fill_send_version(fill);
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        if (fill_leaves_out(fill, a)) {
            fill_end_attachment(a, OUTCOME_REJOIN, ERR_OK, (struct span){0});
            continue;
        }
        fill_send_head(fill, a);
    }
}

// Rule 14. Returns true if the run would begin a record with headers that its own answer
// contradicts. That happens if a reader in mid-body asks for its version by ETag, and a write has
// given that version other headers since. If a record is visible, the run adds to it and does not
// change its headers.
static bool fill_is_outdated(const struct fill *fill)
{
    static _Thread_local struct store_view view;
    if (fill->audience == FILL_FOR_ALL) {
        return false;
    }
    store_lookup(fill->fw->worker, fill->fw->store, fill->key->hash, fill->first_byte,
                 fill->first_byte + 1, fill_floor(fill->fw, fill->key->hash), &view);
    bool is_visible = view.found;
    store_view_done(&view);
    return !is_visible;
}

// Returns in a word why the run must not be stored; NULL: it may be stored. Counts the reason, so
// call it once for each run.
static const char *fill_forbids_storing(const struct fill *fill, const struct origin_fetch *f)
{
    const struct object_limits *limits = &fill->key->limits;
    bool too_large = limits->max_object_size_bytes != 0 &&
                     fill->object->size_bytes > limits->max_object_size_bytes;
    if (limits->cache && !too_large && f->forbids != ORIGIN_FORBIDS_NOTHING) {
        return origin_forbids_text(f->forbids)->word;
    }
    bool is_overwritten = fill->doomed || fill_is_outdated(fill);
    bool is_held = fill->index == FILL_INDEX_SLOW;
    enum refusal why = !limits->cache   ? REFUSAL_rule
                       : too_large      ? REFUSAL_too_large
                       : f->too_young   ? REFUSAL_too_young
                       : is_overwritten ? REFUSAL_overwritten
                       : is_held        ? REFUSAL_disk_slow
                                        : fill->refused;
    if (why == REFUSAL_none) {
        return NULL;
    }
    refusal_count(why);
    return refusal_text(why)->word;
}

static void fill_begin_run(struct fill *fill, const struct origin_fetch *f)
{
    fill->unstored_why = fill_forbids_storing(fill, f);
    if (f->forbids != ORIGIN_FORBIDS_NOTHING) {
        fill_uncacheable_note(fill->fw, fill->key->hash, f->forbids);
    } else {
        fill_uncacheable_forget(fill->fw, fill->key->hash);
    }
    if (fill->unstored_why != NULL) {
        return;
    }
    struct store_run_use use = {
        .group = fill->key->limits.group,
        .is_part = fill->wanted_first_byte > fill->first_byte ||
                   (fill->wanted_end_byte != 0 && fill->wanted_end_byte < fill->end_byte),
        .is_ahead = fill->fetch.ahead};
    enum err err = store_run_begin(fill->fw->worker, fill->fw->store, fill->object,
                                   fill->first_block, fill->block_count, use, &fill->run);
    if (err == ERR_OK) {
        fill_ahead_mark(fill);
        store_run_watch(fill->run, fill_on_run_progress, fill);
    } else {
        // The store has counted the refusal.
        fill->unstored_why = refusal_text(refusal_of_error(err))->word;
    }
}

// Allocates exactly the pointers that the run needs, because most objects are small and an owner
// has many fills.
static void fill_expect_chunks(struct fill *fill)
{
    check(fill->chunks == NULL && fill->end_byte >= fill->first_byte);
    fill->chunk_count =
        (unsigned)((fill->end_byte - fill->first_byte + CHUNK_SIZE - 1) / CHUNK_SIZE);
    fill->chunks = calloc(max_u64(fill->chunk_count, 1), sizeof(*fill->chunks));
    check(fill->chunks != NULL);
}

// Returns the version that the answer describes. If the run asked for a known version, it keeps
// that version's headers. Otherwise the headers of a reply would depend on where in the object it
// begins. If the answer has other headers, the run is for readers that named the version.
static struct store_object *fill_head_version(struct fill *fill)
{
    const struct origin_fetch *f = &fill->fetch;
    struct store_object *object = fill_version_from_fetch(
        fill->key, f, fill->object != NULL ? fill->object : fill->described);
    if (object != NULL && fill->object != NULL) {
        fill->audience = fill_same_headers(fill->object, object) ? FILL_FOR_ALL : FILL_FOR_NAMED;
        struct store_object *described = fill_version_described_by(object, fill->object);
        store_object_unref(object);
        return described;
    }
    if (object != NULL) {
        object->learnt_us = fill->asked_us;
    }
    return object;
}

// Returns ERR_OK unless an earlier answer named another size for this version. Then one of the two
// is wrong.
static enum err fill_contradicted(const struct fill *fill, const struct store_object *object)
{
    const struct store_object *described = fill->described;
    if (fill->object != NULL) {
        return fill->object->size_bytes == object->size_bytes ? ERR_OK : ERR_ORIGIN_CHANGED;
    }
    bool is_other = described != NULL && fill_same_version(described, object) &&
                    described->size_bytes != object->size_bytes;
    return is_other ? ERR_ORIGIN_PROTOCOL : ERR_OK;
}

enum err fill_take_head(struct fill *fill)
{
    check(fill->phase == FILL_ASKED && fill_is_fetching(fill));
    const struct origin_fetch *f = &fill->fetch;
    struct store_object *object = fill_head_version(fill);
    if (object == NULL) {
        return ERR_ORIGIN_UNFIT;
    }
    enum err err = fill_contradicted(fill, object);
    if (err != ERR_OK) {
        store_object_unref(object);
        return err;
    }
    object->block_size_bytes = fill->block_size_bytes;
    bool is_suffix = fill->suffix_bytes > 0;
    if (is_suffix) {
        fill_unknown_place(fill, object->size_bytes);
    }
    uint64_t end = min_u64(fill->limit_byte, object->size_bytes);
    bool begins = is_suffix ? f->body_first <= fill->first_byte : f->body_first == fill->first_byte;
    bool is_cut = fill->range == FILL_RANGE_NONE && end < object->size_bytes;
    // An object that looked empty may have grown since.
    bool fits =
        f->body_first + f->body_len == end ||
        ((is_cut || fill->range == FILL_RANGE_FOR_NO_BYTES) && f->body_len == object->size_bytes);
    if (!begins || end < fill->first_byte || !fits ||
        (end == fill->first_byte && object->size_bytes > 0)) {
        store_object_unref(object);
        return ERR_ORIGIN_PROTOCOL;
    }
    bool is_first = fill->object == NULL;
    store_object_unref(fill->object);
    fill->object = object;
    fill->weak = f->weak_or_no_etag;
    if (f->is_bound && f->forbids == ORIGIN_FORBIDS_VERSIONS) {
        fill->audience = FILL_FOR_BOUND;
    }
    span_to_text(f->origin_id, fill->origin_id, sizeof(fill->origin_id));
    fill->origin_status = f->status;
    fill->end_byte = fill->asked_end_byte = end;
    fill->skip_bytes = fill->first_byte - f->body_first;
    uint64_t blocks =
        (end - fill->first_byte + fill->block_size_bytes - 1) / fill->block_size_bytes;
    fill->block_count = (uint32_t)max_u64(blocks, 1); // an empty object has one block of 0 bytes
    fill_expect_chunks(fill);
    fill_enter(fill, FILL_BODY);
    if (is_first) { // once for each object, not for each run
        fill_describe_learn(fill);
    }
    stats_add(COUNTER_fills_whole_cut, is_cut ? 1 : 0);
    fill_begin_run(fill, f);
    fill_release_promise(fill);
    checksums_run_begin(fill);
    fill_announce(fill);
    fill_assert_run(fill);
    return ERR_OK;
}

static enum err on_fetch_head(struct origin_fetch *f)
{
    struct fill *fill = fill_of(f->ctx);
    if (fill->phase == FILL_LEFT) {
        return ERR_CANCELLED;
    }
    if (fill_has_head(fill)) { // the rest of a broken body; If-Match ensures the version
        if (f->forbids == ORIGIN_FORBIDS_VERSIONS) {
            fill_uncacheable_note(fill->fw, fill->key->hash, f->forbids);
            fill->audience = f->is_bound ? FILL_FOR_BOUND : fill->audience;
        }
        bool fits =
            f->body_first == fill->received && f->body_len == fill->asked_end_byte - fill->received;
        return fits ? ERR_OK : ERR_ORIGIN_PROTOCOL;
    }
    return fill_describe_holds(fill) ? ERR_OK : fill_take_head(fill);
}

static enum err on_fetch_body(struct origin_fetch *f, struct span data)
{
    struct fill *fill = fill_of(f->ctx);
    if (fill->phase == FILL_LEFT) {
        return ERR_CANCELLED;
    }
    check(fill->phase == FILL_BODY);
    size_t skipped = (size_t)min_u64(fill->skip_bytes, data.len);
    fill->skip_bytes -= skipped;
    data = (struct span){data.ptr + skipped, data.len - skipped};
    bool are_first = fill->received == fill->first_byte;
    while (data.len > 0 && fill->received < fill->end_byte) {
        uint64_t at = fill->received - fill->first_byte;
        check(at / CHUNK_SIZE < fill->chunk_count);
        struct chunk **slot = &fill->chunks[at / CHUNK_SIZE];
        uint32_t offset = (uint32_t)(at % CHUNK_SIZE);
        if (*slot == NULL) {
            *slot = fill_chunk(fill);
        }
        uint64_t room = min_u64(CHUNK_SIZE - offset, fill->end_byte - fill->received);
        size_t n = (size_t)min_u64(room, data.len);
        memcpy((*slot)->data + offset, data.ptr, n);
        (*slot)->len = offset + (uint32_t)n;
        checksums_run_take(fill, (struct span){data.ptr, n});
        fill->received += n;
        data.ptr += n;
        data.len -= n;
        if (fill->run != NULL && (offset + n == CHUNK_SIZE || fill->received == fill->end_byte)) {
            store_run_append(fill->run, *slot);
        }
    }
    if (fill->received == fill->end_byte) {
        checksums_run_judge(fill);
    }
    fill_stream_note(fill);
    if (are_first) {
        // The first bytes are delivered at once, so that they leave together with the reply's head.
        // HEAD and VERSION were sent before (rule 18), so these bytes arrive after them. If the
        // delivery removes the last reader, the task ends the run.
        fill_deliver(fill);
    }
    worker_defer(fill->fw->worker, &fill->deliver_task);
    fill_window_update(fill); // update now, because one turn may bring all that the socket holds
    fill_pause_update(fill);
    fill_assert_run(fill);
    // The answer holds more than the run if the request had no range, or if the run's last reader
    // has left since.
    bool has_more = data.len > 0 || f->body_first + f->body_len > fill->end_byte;
    return has_more && fill->received == fill->end_byte ? ERR_CANCELLED : ERR_OK;
}

static bool err_is_broken_body(enum err err)
{
    return err == ERR_ORIGIN_RESET || err == ERR_ORIGIN_TIMEOUT || err == ERR_ORIGIN_CONNECT ||
           err == ERR_ORIGIN_5XX || err == ERR_ORIGIN_SLOWDOWN || err == ERR_ORIGIN_UNAVAILABLE ||
           err == ERR_ORIGIN_DNS || err == ERR_ORIGIN_FULL ||
           err == ERR_LIMIT; // no slot or no descriptor is free
}

// Returns true for errors that show that the known version is no longer current: the object was
// deleted or has another size.
static bool err_denies_version(enum err err)
{
    return err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET || err == ERR_INVALID_RANGE;
}

// Requests the rest later, because the call that has ended is still on the stack.
static void fill_resume(struct fill *fill, uint64_t delay_ms)
{
    check(fill->phase <= FILL_BODY && fill->resumes < FILL_RESUMES_MAX);
    fill_transfer_enter(fill, TRANSFER_RESUMING);
    timer_start(&fill->timer, delay_ms);
}

// Requests the object without a range, if the origin has answered 416 for its first byte. No range
// of an empty object can be satisfied. Returns false if that does not apply.
static bool fill_ask_otherwise(struct fill *fill, enum err err)
{
    bool no_first_byte = err == ERR_INVALID_RANGE && fill->object == NULL &&
                         fill->first_byte == 0 && fill->range != FILL_RANGE_FOR_NO_BYTES;
    if (no_first_byte) {
        fill->range = FILL_RANGE_FOR_NO_BYTES;
        fill_resume(fill, 0);
    }
    return no_first_byte;
}

// Handles a transfer that ended with `err` while bytes are missing: requests them, or ends the run.
static void fill_broke(struct fill *fill, enum err err)
{
    if (fill_ask_otherwise(fill, err)) {
        return;
    }
    if (fill_unknown_is_judged(fill, err)) {
        fill_unknown_end(fill, err);
    } else if (err == ERR_ORIGIN_CHANGED || (fill->object != NULL && err_denies_version(err))) {
        fill_gone(fill);
    } else if (!fill_has_head(fill)) {
        fill_fail(fill, err, fill->fetch.error_answer);
    } else if (err_is_broken_body(err) && fill->resumes < FILL_RESUMES_MAX && !fill->weak &&
               origin_retry_take(fill->key->origin)) {
        stats_add(COUNTER_fills_resumed, 1);
        fill_resume(fill, (uint64_t)FILL_RESUME_DELAY_MS << fill->resumes);
        fill->resumes++;
    } else {
        fill_cut(fill, err);
    }
}

// Continues a run whose transfer has ended, according to its phase and the bytes received.
static void on_fetch_end(struct origin_fetch *f, enum err err)
{
    struct fill *fill = fill_of(f->ctx);
    check(fill_is_fetching(fill));
    bool is_cancelled = fill->transfer == TRANSFER_CANCELLED;
    fill_transfer_enter(fill, TRANSFER_IDLE);
    if (fill->phase == FILL_LEFT) {
        fill_maybe_free(fill);
        return;
    }
    check(fill->phase == FILL_ASKED || fill->phase == FILL_BODY);
    bool has_come = fill_has_come(fill);
    if (!has_come || fill->run == NULL) { // a run that is being written keeps the lead
        fill_yield_lead(fill);
    }
    if (has_come) {
        fill_complete(fill);
        return;
    }
    bool is_piece = err == ERR_OK && fill->received == fill->asked_end_byte;
    if (fill->phase == FILL_BODY && (is_cancelled || is_piece)) {
        fill_park(fill);
        fill_assert_run(fill);
        return;
    }
    if (fill->head_err != ERR_OK) {
        err = fill->head_err;
        fill->head_err = ERR_OK;
    }
    fill_broke(fill, err != ERR_OK ? err : ERR_ORIGIN_RESET);
    fill_assert_run(fill);
}

// Returns true if a client has received bytes of the version.
static bool fill_has_sent(const struct fill *fill)
{
    bool has_sent = false;
    list_for_each(node, &fill->readers)
    {
        has_sent |= container_of(node, struct attachment, node)->has_sent;
    }
    return has_sent;
}

// Returns the end byte of the next request.
static uint64_t fill_request_end(const struct fill *fill)
{
    if (!fill_has_head(fill)) {
        uint64_t end = fill->limit_byte;
        return fill->object != NULL ? min_u64(end, fill->object->size_bytes) : end;
    }
    // A transfer may break after its whole piece was received. Then the rest of the run is
    // requested.
    bool is_open = fill->received < fill->asked_end_byte;
    return is_open ? min_u64(fill->asked_end_byte, fill->end_byte) : fill->end_byte;
}

void fill_fetch(struct fill *fill)
{
    check(fill->phase <= FILL_BODY && !fill_is_fetching(fill));
    struct origin_fetch *f = &fill->fetch;
    bool is_empty = fill->object != NULL && fill->object->size_bytes == 0;
    fill->asked_end_byte = fill_request_end(fill);
    *f = (struct origin_fetch){
        .bucket = fill->key->bucket,
        .key = fill->key->key,
        .credentials = fill->key->credentials,
        .client = f->client,
        .trace = &fill->trace,
        .ahead = f->ahead,
        .wants_checksums = ORIGIN_CHECKSUMS_TOO,
        .kind = !is_empty && (fill_has_head(fill) || fill->range == FILL_RANGE_OF_RUN)
                    ? ORIGIN_GET_RANGE
                    : ORIGIN_GET_WHOLE,
        .first = fill->received,
        .last = fill->asked_end_byte > 0 ? fill->asked_end_byte - 1 : 0,
        .on_head = on_fetch_head,
        .on_body = on_fetch_body,
        .on_end = on_fetch_end,
        .ctx = fill};
    if (fill->object != NULL) {
        f->if_match = fill->object->etag;
        f->is_bound = fill_has_head(fill) || fill_has_sent(fill);
    } else {
        fill_unknown_ask(fill, f);
    }
    fill->skip_bytes = 0;
    fill_transfer_enter(fill, TRANSFER_RUNNING);
    origin_fetch_start(fill->fw->worker, fill->key->origin, f);
    if (fill->pause == FILL_PAUSE_MEMORY) {
        (void)fill_take_lead(fill);
    }
    fill_pause_update(fill);
}
