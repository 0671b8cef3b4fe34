// SPDX-License-Identifier: Apache-2.0
// A fill is a run in flight, on the worker that owns its stripe. The owner asks the origin for each
// block only once.
//
// Everything here runs on the stripe's owner, which reaches readers on other workers by messages. A
// fill is freed when it has left the table and its transfer, its HEAD and its wait for memory are
// over.
//
// phases.def has the phases of a run and of its transfer. This table shows what happens to a run in
// each phase:
//
//   ASKED    - A reader that joins waits for the head.
//            - The origin fails: all readers for which the error holds get it; the others ask
//              again.
//            - 416 for the first byte: the run is requested without a range, once.
//            - The answer denies the version (412, 404, 416, another ETag or size): the readers get
//              GONE, and the home drops the record.
//            - The last reader leaves: the run is cancelled at once.
//   BODY     - A reader that joins gets the bytes that are there, then the rest.
//            - The body breaks: the rest is requested with Range and If-Match. When the budget for
//              that is used up, the readers are cut, and whole blocks are kept.
//            - The origin denies the version: as in ASKED.
//            - The last reader leaves: the block in flight is finished and kept.
//            - The store refuses the run: it continues unstored, within a window of its fastest
//              reader (1 MiB, less while memory is short). Slow readers are removed.
//            - The run stays paused: it is parked, and its slot at the origin is freed
//              (fill_pause.c).
//   WRITING  - A reader that joins gets the bytes while they are in memory. Otherwise it waits for
//              the place.
//            - The last reader leaves: the run continues.
//            - The store fails: readers that wait ask again.
//   WRITTEN  - A reader that joins gets the place.
//            - The run stays until the home has answered.
//   LEFT     - No reader joins. The index answers readers that come now.
//
// A write to the key dooms the fill in any phase: no reader joins it and it is never published, but
// its readers keep it.
//
// A reader that joined gets ATTACHED, then HEAD, BODY..., and exactly one FINAL. It sends exactly
// one LEAVE, on its own or in answer to FINAL. Each side frees its half when it has sent its last
// message and received the other's.
//
// Payload is in chunks of 64 KiB. The store and each reader's queue hold references of their own.
// While memory is ample the fill keeps its references until the run ends, so that late readers
// start at once. Otherwise it releases a chunk as soon as it is written or delivered. A full
// limits.max_buffer pauses the transfer and never fails a request.

#include "fill/fill_private.h"

#include <stdlib.h>

// --- readers that join ---------------------------------------------------------------------------

// Answers with the place of a run that is written and not yet published.
static void fill_answer_place(struct fill *fill, struct subscription *sub)
{
    check(fill->phase == FILL_WRITTEN && fill->place.segment != NULL);
    struct store_place place = fill->place;
    if (!store_place_pin(&place)) {
        message_send_again(fill->fw, sub);
        return;
    }
    struct answer_message *m = message_place_new(fill->fw, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_DONE;
    m->object = store_object_ref(fill->object);
    m->place = place;
    message_send(sub->at, &m->base);
}

static void fill_attach(struct fill *fill, struct subscription *sub, bool joined)
{
    check(fill_is_listed(fill));
    if (fill->phase == FILL_WRITTEN) {
        fill_answer_place(fill, sub);
        return;
    }
    struct attachment *a = calloc(1, sizeof(*a));
    check(a != NULL);
    list_node_init(&a->node);
    a->fill = fill;
    a->subscription = sub;
    a->at = sub->at;
    a->has_sent = sub->ask.has_sent;
    fill->fetch.is_bound |= a->has_sent;
    a->wanted = sub->ask.object != NULL ? store_object_ref(sub->ask.object) : NULL;
    a->credentials = sub->ask.key->credentials;
    a->no_pages = sub->ask.no_pages;
    a->ahead = sub->ask.purpose != FILL_TO_SEND;
    a->next_byte = max_u64(sub->ask.first_byte, fill->first_byte);
    a->acked_byte = a->next_byte;
    a->is_condition = !joined && fill->condition.kind != ORIGIN_CONDITION_NONE;
    // A reader that begins below retained_from gets those bytes from the disk, if the run is
    // stored.
    a->waiting_place = a->ahead || a->next_byte < fill->retained_from;
    list_push_back(&fill->readers, &a->node);
    if (fill->fetch.ahead && !a->ahead) {
        fill->trace = sub->ask.trace;
        origin_fetch_hasten(&fill->fetch, sub->ask.client);
        if (fill->describing) {
            origin_fetch_hasten(&fill->describe, sub->ask.client);
        }
    }
    stats_add(COUNTER_coalesced_waiters, 1);
    struct attached_message *m = message_attached_new(fill->fw, NULL);
    m->subscription = sub;
    m->attachment = a;
    m->joined = joined;
    m->whole = fill_has_come(fill);
    m->here_end_byte = fill->received;
    message_send(a->at, &m->base);
    if (fill_has_head(fill)) {
        fill_send_head(fill, a);
        worker_defer(fill->fw->worker, &fill->deliver_task);
    }
}

// --- asks ----------------------------------------------------------------------------------------

// Rule 6. Returns true if the written run's segment is being freed before the home has answered.
static bool fill_has_lost_its_place(const struct fill *fill)
{
    struct store_place place = fill->place;
    if (fill->phase != FILL_WRITTEN || store_place_pin(&place)) {
        store_place_unpin(&place);
        return false;
    }
    return true;
}

// Returns true if a reader can join the run. `first` is the first request; NULL: the reader names a
// version.
static bool fill_takes(const struct fill *fill, const struct subscription *sub,
                       const struct first_message *first)
{
    bool has_place = sub->ask.suffix_bytes == 0 && (fill->suffix_bytes == 0 || fill_has_head(fill));
    // The comparison uses bytes, because another reader's rule may give the object blocks of
    // another size.
    uint64_t wanted = sub->ask.first_byte;
    if (fill->doomed || !has_place || wanted < fill->first_byte || wanted >= fill->limit_byte ||
        fill_has_lost_its_place(fill)) {
        return false;
    }
    if ((fill->audience == FILL_FOR_BOUND && !sub->ask.has_sent) ||
        (fill->audience == FILL_FOR_NAMED && first != NULL)) {
        return false;
    }
    uint64_t version = fill->object != NULL ? version_hash(fill->object) : 0;
    if (first != NULL && home_given_precedes(&first->given, version, fill->asked_us)) {
        return false;
    }
    if (first != NULL && fill->object != NULL &&
        (home_redescribed_outdates(&first->redescribed, fill->object) ||
         home_given_outdates(&first->given, fill->object))) {
        return false;
    }
    if (first == NULL && fill->object != NULL &&
        (sub->ask.object == NULL || !fill_same_version(fill->object, sub->ask.object))) {
        return false;
    }
    if (first == NULL && fill->object != NULL && !sub->ask.has_sent &&
        !fill_same_headers(fill->object, sub->ask.object)) {
        return false; // the reader would get the run's headers
    }
    uint64_t at = max_u64(sub->ask.first_byte, fill->first_byte) - fill->first_byte;
    uint64_t chunk = at / CHUNK_SIZE;
    bool is_there = (chunk < fill->chunk_count && fill->chunks[chunk] != NULL) ||
                    (at < fill->pages.payload_len && !sub->ask.no_pages);
    if (fill->phase == FILL_WRITING && !is_there &&
        !store_keeps_up(fill->fw->worker, fill->fw->store)) {
        return false; // rule 20: the disk has a backlog, so nobody waits for the place
    }
    if (!fill_is_unstored(fill)) {
        return true;
    }
    // A reader that is already too far behind gets a run of its own, because this one would remove
    // it at once.
    return sub->ask.first_byte >= fill->retained_from &&
           fill->received <= sub->ask.first_byte + chunk_budget_lean(FILL_DETACH_BEHIND);
}

// Rule 16: finds a run in flight that the reader can join.
static struct fill *fill_find(struct fill_worker *fw, const struct subscription *sub,
                              const struct first_message *first)
{
    list_for_each(node, fill_map_bucket(&fw->fills, sub->ask.key->hash))
    {
        struct fill *fill = container_of(node, struct fill, map_node);
        if (hash128_equal(fill->key->hash, sub->ask.key->hash) && fill_takes(fill, sub, first)) {
            return fill;
        }
    }
    return NULL;
}

// Rule 16: looks in the index once more. Returns the number of absent blocks, at most `count`, from
// the reader's block to the first cached one. 0: the reader's block is cached. Only a record that
// the reader can use counts: of any version if the reader names none, otherwise of its own.
static uint64_t fill_absent(struct fill_worker *fw, const struct subscription *sub, uint64_t count,
                            bool *ret_has_record)
{
    *ret_has_record = false;
    static _Thread_local struct store_view view;
    uint64_t size = sub->ask.block_size_bytes;
    check(count > 0 && size > 0);
    if (sub->ask.index != FILL_INDEX_COUNTS) {
        return count;
    }
    store_lookup(fw->worker, fw->store, sub->ask.key->hash, sub->ask.block * size,
                 (sub->ask.block + count) * size, fill_floor(fw, sub->ask.key->hash), &view);
    bool counts = view.found && !view.rebuilt && view.block_size_bytes == size;
    if (counts && sub->ask.object != NULL) {
        counts = view.etag_hash == hash64(sub->ask.object->etag.ptr, sub->ask.object->etag.len, 0);
    }
    for (unsigned i = 0; counts && i < view.place_count; i++) {
        const struct store_place *place = &view.places[i];
        if (place->first_block + place->block_count > sub->ask.block) {
            uint64_t first = max_u64(place->first_block, sub->ask.block);
            count = min_u64(count, first - sub->ask.block);
        }
    }
    store_view_done(&view);
    *ret_has_record = counts;
    return count;
}

// Returns how many blocks a new run may cover. It must not extend past the stripe, the size of a
// long run, the object, or the start of a run in flight.
static uint64_t fill_extent(struct fill_worker *fw, const struct subscription *sub)
{
    uint64_t size = sub->ask.block_size_bytes, stripe = fw->room->options.stripe_bytes;
    uint64_t stripe_end = ((sub->ask.block * size) / stripe + 1) * stripe;
    uint64_t count =
        min_u64(sub->ask.block_count, max_u64(store_run_bytes_long(fw->store) / size, 1));
    count = min_u64(count, (stripe_end - sub->ask.block * size) / size);
    if (sub->ask.object != NULL) {
        uint64_t blocks = store_object_block_count(sub->ask.object);
        count = min_u64(count, blocks > sub->ask.block ? blocks - sub->ask.block : 1);
    }
    list_for_each(node, fill_map_bucket(&fw->fills, sub->ask.key->hash))
    {
        struct fill *fill = container_of(node, struct fill, map_node);
        if (hash128_equal(fill->key->hash, sub->ask.key->hash) && !fill->doomed &&
            fill->first_byte > sub->ask.block * size) {
            uint64_t before = fill->first_byte - sub->ask.block * size;
            count = min_u64(count, (before + size - 1) / size);
        }
    }
    return max_u64(count, 1);
}

static struct fill *fill_new(struct fill_worker *fw, struct subscription *sub, uint64_t token,
                             uint32_t block_count)
{
    struct fill *fill = calloc(1, sizeof(*fill));
    check(fill != NULL && block_count > 0 && sub->ask.block_size_bytes > 0);
    fill->magic = FILL_MAGIC;
    fill->fw = fw;
    fill->key = object_key_ref(sub->ask.key);
    fill->token = token;
    fill->object = sub->ask.object != NULL ? store_object_ref(sub->ask.object) : NULL;
    fill->asked_us = worker_now_us(fw->worker);
    fill->described = sub->described;
    sub->described = NULL;
    fill->fetch.client = sub->ask.client;
    fill->fetch.ahead = sub->ask.purpose != FILL_TO_SEND;
    fill->is_readahead = sub->ask.purpose == FILL_TO_READ_AHEAD;
    fill->index = sub->ask.index;
    fill->trace = sub->ask.trace;
    fill->condition = sub->ask.condition;
    fill->suffix_bytes = sub->ask.suffix_bytes;
    fill->wanted_first_byte = sub->ask.first_byte;
    fill->wanted_end_byte = sub->ask.end_byte;
    fill->first_block = sub->ask.block;
    fill->block_size_bytes = sub->ask.block_size_bytes;
    fill->block_count = block_count;
    fill->first_byte = fill->first_block * fill->block_size_bytes;
    fill->end_byte = fill->first_byte;
    fill->limit_byte = fill->first_byte + block_count * (uint64_t)fill->block_size_bytes;
    fill->received = fill->retained_from = fill->first_byte;
    list_init(&fill->readers);
    list_node_init(&fill->map_node);
    worker_task_init(&fill->deliver_task, fill_on_deliver);
    timer_init(fw->worker, &fill->timer, fill_on_timer);
    list_push_back(fill_map_bucket(&fw->fills, fill->key->hash), &fill->map_node);
    fw->fills.count++;
    stats_add(COUNTER_fills_started, 1);
    stats_add(COUNTER_fills_inflight, 1);
    return fill;
}

// Declines a first request (rules 17, 29). The home stops waiting for it, and the reader looks in
// the index again.
static void fill_decline_first(struct fill_worker *fw, struct subscription *sub, uint64_t token)
{
    check(token != 0);
    struct first_end_message *m = message_first_end_new(fw, sub->ask.key);
    m->token = token;
    message_send(object_key_home(fw, sub->ask.key), &m->base);
    message_send_again(fw, sub);
}

bool fill_has_run(struct fill_worker *fw, const struct subscription *sub)
{
    return fill_find(fw, sub, NULL) != NULL;
}

// Begins a run of `count` blocks at most.
static struct fill *fill_new_run(struct fill_worker *fw, struct subscription *sub, uint64_t token,
                                 uint64_t count, bool has_record)
{
    enum refusal refused = fill_stream_reason(fw, &sub->ask);
    uint64_t short_count = max_u64(store_run_bytes_max(fw->store) / sub->ask.block_size_bytes, 1);
    bool is_stored = refused == REFUSAL_none;
    bool is_long = is_stored && count > short_count && store_long_promise(fw->store);
    bool is_cut = is_stored && count > short_count && !is_long;
    struct fill *fill = fill_new(fw, sub, token, (uint32_t)(is_cut ? short_count : count));
    fill->is_promised = is_long;
    if (!is_stored) {
        fill_stream_begin(fill, &sub->ask, refused, has_record);
    }
    return fill;
}

// Asks the origin for a new run.
static void fill_begin(struct fill_worker *fw, struct subscription *sub, uint64_t token,
                       uint64_t count, bool has_record)
{
    struct fill *fill = fill_new_run(fw, sub, token, count, has_record);
    bool is_from_start = token != 0 && fill->suffix_bytes == 0 && fill->first_byte == 0 &&
                         origin_capabilities(fill->key->origin)->has_checksums;
    bool describes = is_from_start && sub->ask.with_checksums && fill->described == NULL;
    if (is_from_start && fill_describe_asks_whole(fill, &sub->ask, describes)) {
        fill->range = FILL_RANGE_NONE;
    }
    check(fill->object == NULL ||
          (fill->suffix_bytes == 0 && fill->condition.kind == ORIGIN_CONDITION_NONE));
    fill_attach(fill, sub, false);
    if (describes && fill->range == FILL_RANGE_OF_RUN) {
        // The HEAD is sent first, so that no run holds a slot at the origin while its HEAD waits
        // for one.
        fill_describe_start(fill);
    }
    fill_fetch(fill);
    fill_assert_run(fill);
}

// Rule 16: looks for a run in flight, then in the index, then asks the origin.
static void fill_ask(struct fill_worker *fw, struct subscription *sub,
                     const struct first_message *first)
{
    check(fill_ask_is_for_bytes(sub->ask.kind));
    check((first != NULL) == (sub->ask.object == NULL)); // JOIN names a version, FIRST none
    uint64_t token = first != NULL ? first->token : 0;
    check((token != 0) == (first != NULL));
    bool is_owner =
        object_key_owner(fw, sub->ask.key, sub->ask.block * sub->ask.block_size_bytes) == fw;
    // Rule 2: only the owner of the stripe or the home asks the origin.
    check(is_owner || object_key_home(fw, sub->ask.key) == fw);
    struct fill *fill = fill_find(fw, sub, first);
    if (fill == NULL && !is_owner) {
        message_send_again(fw, sub); // the run that the home saw here has ended
        return;
    }
    if (fill != NULL && token != 0 && sub->ask.strict) {
        // A strict reader does not share a request that was sent before it asked.
        fill_decline_first(fw, sub, token);
        return;
    }
    if (fill != NULL) {
        stats_add(COUNTER_fills_joined, 1);
        // A join resets the run's count of retries. origin_retry_take() limits the retries of the
        // whole origin.
        fill->resumes = 0;
        if (token != 0) {
            fill_send_first_end(fill); // rule 17: end the older token first
            fill->token = token;
            fill_send_version(fill);
        }
        fill_attach(fill, sub, true);
        fill_assert_run(fill);
        return;
    }
    bool has_record;
    uint64_t count = fill_absent(fw, sub, fill_extent(fw, sub), &has_record);
    if (count == 0 && token != 0) {
        fill_decline_first(fw, sub, token);
        return;
    }
    if (count == 0) {
        message_send_again(fw, sub);
        return;
    }
    fill_begin(fw, sub, token, count, has_record);
}

void fill_on_join(struct fill_worker *fw, struct ask_message *m)
{
    fill_ask(fw, m->subscription, NULL);
}

void fill_on_first(struct fill_worker *fw, struct first_message *m)
{
    fill_ask(fw, m->subscription, m);
}

// --- leaving -------------------------------------------------------------------------------------

void fill_on_leave(struct fill_worker *fw, struct leave_message *m)
{
    (void)fw;
    struct attachment *a = m->attachment;
    struct fill *fill = a->fill;
    check(a->at == m->base.from); // rule 10: the reader's worker sends one LEAVE
    if (fill != NULL) {
        fill_end_attachment(a, OUTCOME_DONE, ERR_OK, (struct span){0});
    }
    store_object_unref(a->wanted);
    free(a);
    if (fill == NULL) { // FINAL was sent before this message came
        return;
    }
    if (list_empty(&fill->readers)) {
        fill_on_no_readers(fill);
    }
    fill_assert_run(fill);
}

void fill_on_taken(struct fill_worker *fw, struct taken_message *m)
{
    struct attachment *a = m->attachment;
    a->acked_byte += m->bytes;
    check(a->at == m->base.from && a->acked_byte <= a->next_byte);
    if (a->fill != NULL && fill_is_unstored(a->fill)) {
        worker_defer(fw->worker, &a->fill->deliver_task);
    }
}

// Rule 34. Delivers bytes again that the reader has dropped: from memory, pages or the run's place.
void fill_on_want(struct fill_worker *fw, struct want_message *m)
{
    struct attachment *a = m->attachment;
    check(a->at == m->base.from && m->first_byte <= a->next_byte);
    if (a->fill == NULL) { // FINAL was sent before this message came
        return;
    }
    check(m->first_byte >= a->acked_byte && !fill_is_unstored(a->fill));
    a->behind = true;
    a->no_pages |= m->no_pages;
    a->next_byte = m->first_byte;
    worker_defer(fw->worker, &a->fill->deliver_task);
}

// Rule 25: sends readers away from a run whose version is not known yet. It may find a newer
// version than the one that the home decides after the invalidation.
static void fill_turn_away(struct fill *fill)
{
    if (fill->phase == FILL_ASKED && fill->object == NULL) {
        fill_final_all(fill, OUTCOME_REJOIN, ERR_OK, (struct span){0});
        fill_on_no_readers(fill);
    }
}

void fill_doom(struct fill_worker *fw, struct hash128 hash)
{
    list_for_each(node, fill_map_bucket(&fw->fills, hash))
    {
        struct fill *fill = container_of(node, struct fill, map_node);
        if (hash128_equal(fill->key->hash, hash) && !fill->doomed) {
            fill->doomed = true;
            fill_here_note(fill, false);
            stats_add(COUNTER_fills_doomed, 1);
            fill_turn_away(fill);
        }
    }
}
