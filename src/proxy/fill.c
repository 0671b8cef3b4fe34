// SPDX-License-Identifier: Apache-2.0
// Fills: runs in flight, on the worker that owns their stripe. No block is asked of the origin
// twice.
//
// Threads: everything here runs on the stripe's owner; readers on other workers are reached by
// messages. A fill lives until it has left the table and its transfer, its store run and its memory
// wait are over.
//
//   state     a reader joins         origin fails            other version      last reader leaves
//   store refuses ASKED     waits                  one error to all        GONE, dropped cancelled
//   at once     (not asked yet) BODY      gets what is there,    the rest is asked with  GONE,
//   dropped      the current block is  goes on unstored:
//             then the rest          Range + If-Match; then                     finished and kept
//             window of 1 MiB, slow
//                                    cut, whole blocks kept readers detached
//   WRITING   waits for the place                                               goes on readers
//   rejoin WRITTEN   PLACE                                                             goes on
//   (left)    the index answers
//
// A write to the key dooms the fill in any state: it takes no joins and is never published, its
// readers keep it.
//
// Attachment: a reader that joined gets ATTACHED, then HEAD, BODY..., and exactly one FINAL; it
// sends exactly one LEAVE (on its own or in answer to FINAL). Either side frees its half when it
// has done the one and seen the other.
//
// Memory: payload lies in chunks of 64 KiB. The store and each reader's queue hold references of
// their own; the fill keeps its own until the run ends while memory is plentiful (late joiners
// start at once), and gives them up as soon as delivered when it is not. limits.max_buffer pauses
// the transfer, it never fails a request.

#include "proxy/proxy_private.h"

#include <stdlib.h>
#include <string.h>

#define FILL_MAGIC 0x46494C4Cu
#define FILL_RESUMES_MAX 3u
#define FILL_RESUME_DELAY_MS 50u
#define FILL_UNSTORED_WINDOW (1u << 20)
#define FILL_DETACH_BEHIND (2u << 20)
#define FILL_CHUNKS_MAX (STORE_BLOCK_SIZE_MAX / CHUNK_SIZE)

enum fill_state { FILL_ASKED, FILL_BODY, FILL_WRITING, FILL_WRITTEN };

struct fill {
    uint32_t magic;
    struct list_node map_node;
    struct proxy_worker *pw;
    struct object_key *key;
    enum fill_state state;
    bool in_table, doomed, unstored, abandoned, dead;
    uint64_t token;              // of the home's first request; 0: none
    enum err failed;             // why there never was a head; told with FIRSTEND
    struct span failed_document; // valid while the fill fails
    struct store_object *object; // asked for with If-Match, or learned from the head
    bool has_head, weak;
    uint64_t first_block;
    uint32_t block_count, block_size_bytes;
    uint64_t first_byte, end_byte; // end is exact after the head
    uint64_t received;             // next byte expected, absolute
    uint64_t retained_from;        // chunks below this were given up
    struct chunk *chunks[FILL_CHUNKS_MAX];
    struct store_run *run;
    struct store_place place;
    struct list readers;
    unsigned resumes;
    struct origin_fetch fetch;
    bool fetching, finishing, memory_waiting;
    bool paused_memory, paused_window, paused;
    struct message memory_message;
    struct task deliver_task;
    struct timer resume_timer;
    bool resume_waiting;
};

struct fill_reader {
    struct list_node node;
    struct fill *fill; // NULL once FINAL was sent
    struct reader *reader;
    struct proxy_worker *at;
    struct store_object *wanted; // bound to it when has_sent
    bool has_sent, waiting_place, left;
    uint64_t next_byte; // delivered up to here
    uint64_t acked_byte;
};

static void fill_fetch(struct fill *fill);
static void fill_leave_table(struct fill *fill);
static void fill_complete(struct fill *fill);

static struct fill *as_fill(void *ptr)
{
    struct fill *fill = ptr;
    check(fill != NULL && fill->magic == FILL_MAGIC);
    return fill;
}

static bool same_version(const struct store_object *a, const struct store_object *b)
{
    return a->etag.len > 0 && span_equal(a->etag, b->etag);
}

// --- life
// ------------------------------------------------------------------------------------------------------

static void fill_free(void *ptr)
{
    struct fill *fill = as_fill(ptr);
    check(list_empty(&fill->readers) && fill->run == NULL && fill->place.segment == NULL);
    for (unsigned i = 0; i < FILL_CHUNKS_MAX; i++) {
        chunk_unref(fill->chunks[i]);
    }
    task_cancel(&fill->deliver_task);
    timer_done(&fill->resume_timer);
    store_object_unref(fill->object);
    object_key_unref(fill->key);
    fill->magic = 0;
    free(fill);
}

static void fill_maybe_free(struct fill *fill)
{
    if (fill->dead || fill->in_table || fill->fetching || fill->finishing || fill->memory_waiting ||
        !list_empty(&fill->readers)) {
        return;
    }
    fill->dead = true;
    stats_sub(COUNTER_fills_inflight, 1);
    worker_free_later(fill->pw->worker, fill_free, fill);
}

static void fill_send_firstend(struct fill *fill)
{
    if (fill->token == 0) {
        return;
    }
    struct wire *wire = wire_new(fill->pw, WIRE_FIRSTEND, fill->key);
    wire->token = fill->token;
    wire->err = fill->failed;
    wire->document = span_heap_copy(fill->failed_document);
    fill->token = 0;
    wire_send(object_key_home(fill->pw, fill->key), wire);
}

// Rule 19: an entry with a token tells the home exactly once when it leaves.
static void fill_leave_table(struct fill *fill)
{
    if (!fill->in_table) {
        return;
    }
    fill->in_table = false;
    list_remove(&fill->map_node);
    fill->pw->fills.count--;
    fill_send_firstend(fill);
    for (unsigned i = 0; i < FILL_CHUNKS_MAX; i++) {
        chunk_unref(fill->chunks[i]);
        fill->chunks[i] = NULL;
    }
    if (fill->place.segment != NULL) {
        store_place_unhold(&fill->place);
        store_place_unpin(&fill->place);
    }
    fill_maybe_free(fill);
}

static void fill_send_version(struct fill *fill)
{
    if (fill->token == 0 || !fill->has_head) {
        return;
    }
    if (fill->weak) {
        fill_send_firstend(fill); // nothing to name it by: let the others ask for themselves
        return;
    }
    struct wire *wire = wire_new(fill->pw, WIRE_VERSION, fill->key);
    wire->token = fill->token;
    wire->object = store_object_ref(fill->object);
    wire_send(object_key_home(fill->pw, fill->key), wire);
}

// --- readers
// ------------------------------------------------------------------------------------------------------

static void fill_reader_final(struct fill_reader *fr, enum reader_outcome outcome, enum err err,
                              struct span document)
{
    struct fill *fill = fr->fill;
    struct wire *wire = wire_new(fill->pw, WIRE_FINAL, NULL);
    wire->reader = fr->reader;
    wire->outcome = outcome;
    wire->err = err;
    wire->document = span_heap_copy(document);
    if (outcome == OUTCOME_DONE && fr->waiting_place && fill->place.segment != NULL) {
        struct store_place place = fill->place;
        if (store_place_pin(&place)) {
            wire->place = place;
        }
    }
    list_remove(&fr->node);
    fr->fill = NULL;
    stats_sub(COUNTER_coalesced_waiters, 1);
    wire_send(fr->at, wire);
    if (fr->left) {
        store_object_unref(fr->wanted);
        free(fr);
    }
}

static void fill_final_all(struct fill *fill, enum reader_outcome outcome, enum err err,
                           struct span document)
{
    list_for_each(node, &fill->readers)
    {
        fill_reader_final(container_of(node, struct fill_reader, node), outcome, err, document);
    }
}

static void fill_send_head(struct fill *fill, struct fill_reader *fr)
{
    struct wire *wire = wire_new(fill->pw, WIRE_HEAD, NULL);
    wire->reader = fr->reader;
    wire->object = store_object_ref(fill->object);
    wire->flag = !fill->unstored;
    wire->end_byte = fill->end_byte;
    wire->block = fill->weak;
    wire_send(fr->at, wire);
}

static void reader_answer_again(struct proxy_worker *pw, struct reader *reader)
{
    struct wire *wire = wire_new(pw, WIRE_AGAIN, NULL);
    wire->reader = reader;
    wire_send(reader->at, wire);
}

// Answers with the pending place: written, not yet visible.
static void fill_answer_place(struct fill *fill, struct reader *reader)
{
    struct store_place place = fill->place;
    if (!store_place_pin(&place)) {
        reader_answer_again(fill->pw, reader);
        return;
    }
    struct wire *wire = wire_new(fill->pw, WIRE_PLACE, NULL);
    wire->reader = reader;
    wire->object = store_object_ref(fill->object);
    wire->place = place;
    wire_send(reader->at, wire);
}

static void fill_attach(struct fill *fill, struct reader *reader, bool joined)
{
    if (fill->state == FILL_WRITTEN) {
        fill_answer_place(fill, reader);
        return;
    }
    struct fill_reader *fr = calloc(1, sizeof(*fr));
    check(fr != NULL);
    list_node_init(&fr->node);
    fr->fill = fill;
    fr->reader = reader;
    fr->at = reader->at;
    fr->has_sent = reader->has_sent;
    fr->wanted = reader->object != NULL ? store_object_ref(reader->object) : NULL;
    fr->next_byte = max_u64(reader->first_byte, fill->first_byte);
    fr->acked_byte = fr->next_byte;
    fr->waiting_place = fill->state == FILL_WRITING || fr->next_byte < fill->retained_from;
    list_push_back(&fill->readers, &fr->node);
    stats_add(COUNTER_coalesced_waiters, 1);
    struct wire *wire = wire_new(fill->pw, WIRE_ATTACHED, NULL);
    wire->reader = reader;
    wire->attachment = fr;
    wire->flag = joined;
    wire_send(fr->at, wire);
    if (fill->has_head) {
        fill_send_head(fill, fr);
        worker_defer(fill->pw->worker, &fill->deliver_task);
    }
}

// --- delivery
// -------------------------------------------------------------------------------------------------------

static bool memory_is_short(void)
{
    return chunk_budget_used_bytes() > chunk_budget_max_bytes() / 2;
}

static void fill_pause_update(struct fill *fill)
{
    bool pause = fill->paused_memory || fill->paused_window;
    if (pause == fill->paused || !fill->fetching) {
        return;
    }
    fill->paused = pause;
    if (pause) {
        origin_fetch_pause(&fill->fetch);
    } else {
        origin_fetch_resume(&fill->fetch);
    }
}

static void fill_on_memory(struct worker *w, struct message *message)
{
    (void)w;
    struct fill *fill = as_fill(container_of(message, struct fill, memory_message));
    fill->memory_waiting = false;
    fill->paused_memory = false;
    fill_pause_update(fill);
    fill_maybe_free(fill);
}

// While memory is short, one run of each worker goes on all the same: paused runs hold chunks that
// are not full yet, so all of them together could wait for each other. What it holds beyond the
// limit is given up as it is delivered.
static bool fill_take_lead(struct fill *fill)
{
    if (fill->pw->memory_lead == NULL && fill->fetching && !fill->paused_window) {
        fill->pw->memory_lead = fill;
    }
    bool leads = fill->pw->memory_lead == fill;
    fill->paused_memory &= !leads;
    return leads;
}

static void fill_pass_lead(struct fill *fill)
{
    struct proxy_worker *pw = fill->pw;
    if (pw->memory_lead != fill) {
        return;
    }
    pw->memory_lead = NULL;
    for (unsigned i = 0; i < PROXY_MAP_BUCKETS && pw->memory_lead == NULL; i++) {
        list_for_each(node, &pw->fills.buckets[i])
        {
            struct fill *next = container_of(node, struct fill, map_node);
            if (next->paused_memory && fill_take_lead(next)) {
                fill_pause_update(next);
                break;
            }
        }
    }
}

// Runs on whatever thread freed memory.
static void on_memory_free(void *ctx)
{
    struct fill *fill = ctx;
    mailbox_send_from_any_thread(fill->pw->worker, &fill->memory_message);
}

static struct chunk *fill_chunk(struct fill *fill)
{
    struct chunk *chunk = chunk_new();
    if (chunk != NULL) {
        return chunk;
    }
    chunk = chunk_new_forced();
    if (fill_take_lead(fill)) {
        return chunk;
    }
    stats_add(COUNTER_buffer_paused, 1);
    fill->paused_memory = true;
    if (!fill->memory_waiting) {
        fill->memory_waiting = true;
        fill->memory_message.deliver = fill_on_memory;
        chunk_budget_wait(on_memory_free, fill);
    }
    return chunk;
}

static void fill_deliver_reader(struct fill *fill, struct fill_reader *fr)
{
    while (!fr->waiting_place && fr->next_byte < fill->received) {
        uint64_t at = fr->next_byte - fill->first_byte;
        struct chunk *chunk = fill->chunks[at / CHUNK_SIZE];
        if (chunk == NULL) {
            fr->waiting_place = true;
            return;
        }
        uint32_t offset = (uint32_t)(at % CHUNK_SIZE);
        uint32_t len = (uint32_t)min_u64(CHUNK_SIZE - offset, fill->received - fr->next_byte);
        struct wire *wire = wire_new(fill->pw, WIRE_BODY, NULL);
        wire->reader = fr->reader;
        wire->chunk = chunk_ref(chunk);
        wire->offset = offset;
        wire->len = len;
        wire->first_byte = fr->next_byte;
        fr->next_byte += len;
        wire_send(fr->at, wire);
    }
}

// An unstored run may not run ahead of its fastest reader by more than a window; who falls too far
// behind the fastest goes on alone.
static void fill_pace(struct fill *fill)
{
    uint64_t fastest = 0;
    list_for_each(node, &fill->readers)
    {
        fastest = max_u64(fastest, container_of(node, struct fill_reader, node)->acked_byte);
    }
    list_for_each(node2, &fill->readers)
    {
        struct fill_reader *fr = container_of(node2, struct fill_reader, node);
        if (fr->waiting_place ||
            (fr->acked_byte != fastest && fill->received - fr->acked_byte > FILL_DETACH_BEHIND)) {
            stats_add(COUNTER_readers_detached, 1);
            fill_reader_final(fr, OUTCOME_REJOIN, ERR_OK, (struct span){0});
        }
    }
    uint64_t window = memory_is_short() ? FILL_UNSTORED_WINDOW / 8 : FILL_UNSTORED_WINDOW;
    fill->paused_window =
        fill->state == FILL_BODY && fill->received > max_u64(fastest, fill->first_byte) + window;
    if (fill->paused_window) {
        fill_pass_lead(fill);
    } else if (fill->paused_memory) {
        (void)fill_take_lead(fill);
    }
    fill_pause_update(fill);
}

static void fill_give_up_chunks(struct fill *fill)
{
    uint64_t keep_from = fill->received;
    list_for_each(node, &fill->readers)
    {
        struct fill_reader *fr = container_of(node, struct fill_reader, node);
        if (!fr->waiting_place) {
            keep_from = min_u64(keep_from, fr->next_byte);
        }
    }
    // Only whole chunks; the one being filled stays.
    uint64_t whole = (keep_from - fill->first_byte) / CHUNK_SIZE;
    for (uint64_t i = (fill->retained_from - fill->first_byte) / CHUNK_SIZE; i < whole; i++) {
        chunk_unref(fill->chunks[i]);
        fill->chunks[i] = NULL;
    }
    fill->retained_from = max_u64(fill->retained_from, fill->first_byte + whole * CHUNK_SIZE);
}

static void fill_deliver(struct fill *fill)
{
    if (!fill->has_head) {
        return;
    }
    list_for_each(node, &fill->readers)
    {
        fill_deliver_reader(fill, container_of(node, struct fill_reader, node));
    }
    if (fill->unstored) {
        fill_pace(fill);
    }
    if (fill->unstored || memory_is_short()) {
        fill_give_up_chunks(fill);
    }
}

static void on_deliver(struct task *task)
{
    struct fill *fill = as_fill(container_of(task, struct fill, deliver_task));
    fill_deliver(fill);
}

// --- ends
// --------------------------------------------------------------------------------------------------------------

static void fill_drop_run(struct fill *fill)
{
    if (fill->run != NULL) {
        store_run_abort(fill->run);
        fill->run = NULL;
    }
}

// Rule 22: this version is no more.
static void fill_gone(struct fill *fill)
{
    fill_drop_run(fill);
    if (fill->object != NULL) {
        struct wire *wire = wire_new(fill->pw, WIRE_GONEV, fill->key);
        wire->object = store_object_ref(fill->object);
        wire_send(object_key_home(fill->pw, fill->key), wire);
    }
    fill_final_all(fill, OUTCOME_GONE, ERR_ORIGIN_CHANGED, (struct span){0});
    fill_leave_table(fill);
}

static void fill_fail(struct fill *fill, enum err err, struct span document)
{
    stats_add(COUNTER_fills_failed, 1);
    fill_drop_run(fill);
    fill_deliver(fill);
    fill_final_all(fill, OUTCOME_ERROR, err, document);
    fill->failed = fill->has_head ? ERR_OK : err;
    fill->failed_document = document;
    fill_leave_table(fill);
    fill->failed_document = (struct span){0};
}

// Body broken and the budget used up: whole blocks so far are kept, readers are cut.
static void fill_cut(struct fill *fill, enum err err)
{
    uint64_t blocks = (fill->received - fill->first_byte) / fill->block_size_bytes;
    fill_deliver(fill);
    fill_final_all(fill, OUTCOME_ERROR, err, (struct span){0});
    if (fill->run == NULL || blocks == 0) {
        fill_fail(fill, err, (struct span){0});
        return;
    }
    fill->block_count = (uint32_t)blocks;
    fill->end_byte = fill->first_byte + blocks * fill->block_size_bytes;
    fill->received = fill->end_byte;
    fill_complete(fill);
}

static void on_run_written(void *ctx, enum err err, const struct store_place *place)
{
    struct fill *fill = as_fill(ctx);
    fill->finishing = false;
    if (err != ERR_OK) {
        stats_add(COUNTER_fills_unstored, 1);
        fill_final_all(fill, OUTCOME_REJOIN, ERR_OK, (struct span){0});
        fill_leave_table(fill);
        fill_maybe_free(fill);
        return;
    }
    fill->place = *place;
    fill->state = FILL_WRITTEN;
    fill_final_all(fill, OUTCOME_DONE, ERR_OK, (struct span){0});
    if (fill->doomed) {
        fill_leave_table(fill);
        fill_maybe_free(fill);
        return;
    }
    struct wire *wire = wire_new(fill->pw, WIRE_PUBLISH, fill->key);
    wire->fill = fill;
    wire->object = store_object_ref(fill->object);
    wire->place = *place; // borrowed: the fill keeps its pin until VISIBLE or DROPPED
    wire_send(object_key_home(fill->pw, fill->key), wire);
}

// Everything wanted has been received.
static void fill_complete(struct fill *fill)
{
    fill_deliver(fill);
    list_for_each(node, &fill->readers)
    {
        struct fill_reader *fr = container_of(node, struct fill_reader, node);
        if (!fr->waiting_place) {
            fill_reader_final(fr, OUTCOME_DONE, ERR_OK, (struct span){0});
        }
    }
    if (fill->run == NULL) {
        stats_add(COUNTER_fills_unstored, 1);
        fill_final_all(fill, OUTCOME_REJOIN, ERR_OK, (struct span){0});
        fill_leave_table(fill);
        return;
    }
    fill->state = FILL_WRITING;
    fill->finishing = true;
    struct store_run *run = fill->run;
    fill->run = NULL;
    stats_add(COUNTER_filled_bytes_demand, fill->end_byte - fill->first_byte);
    store_run_finish(run, fill->block_count, on_run_written, fill);
}

void fill_on_visible(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    stats_add(COUNTER_fills_stored, 1);
    fill_leave_table(as_fill(wire->fill));
}

void fill_on_dropped(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    stats_add(COUNTER_fills_dropped, 1);
    fill_leave_table(as_fill(wire->fill));
}

// --- the transfer
// ----------------------------------------------------------------------------------------------------------

// Rule 18: the head has come; readers bound to another version are taken out.
static void fill_announce(struct fill *fill)
{
    fill_send_version(fill);
    list_for_each(node, &fill->readers)
    {
        struct fill_reader *fr = container_of(node, struct fill_reader, node);
        if (fr->has_sent && fr->wanted != NULL && !same_version(fr->wanted, fill->object)) {
            fill_reader_final(fr, OUTCOME_REJOIN, ERR_OK, (struct span){0});
            continue;
        }
        fill_send_head(fill, fr);
    }
}

static void fill_begin_run(struct fill *fill, const struct origin_fetch *f)
{
    const struct proxy_rule *rule = fill->key->rule;
    fill->unstored = true;
    bool too_large =
        rule->max_object_size_bytes != 0 && fill->object->size_bytes > rule->max_object_size_bytes;
    if (!f->storable || f->too_young || fill->weak || !rule->cache || too_large || fill->doomed) {
        return;
    }
    enum err err = store_run_begin(fill->pw->worker, fill->pw->store, fill->object,
                                   fill->first_block, fill->block_count, &fill->run);
    fill->unstored = err != ERR_OK;
}

static enum err on_fetch_head(struct origin_fetch *f)
{
    struct fill *fill = as_fill(f->ctx);
    if (fill->abandoned) {
        return ERR_CANCELLED;
    }
    if (fill->has_head) { // the rest of a broken body: If-Match made sure of the version
        bool fits =
            f->body_first == fill->received && f->body_len == fill->end_byte - fill->received;
        return fits ? ERR_OK : ERR_ORIGIN_PROTOCOL;
    }
    struct store_object *object = freshness_object_from_fetch(fill->key, f);
    if (object == NULL) {
        return ERR_ORIGIN_PROTOCOL;
    }
    if (fill->object != NULL && fill->object->size_bytes != object->size_bytes) {
        store_object_unref(object); // one of the two answers lied
        return ERR_ORIGIN_CHANGED;
    }
    object->block_size_bytes = fill->block_size_bytes;
    uint64_t end = min_u64(fill->first_byte + (uint64_t)fill->block_count * fill->block_size_bytes,
                           object->size_bytes);
    if (f->body_first != fill->first_byte || end < fill->first_byte ||
        f->body_len != end - fill->first_byte ||
        (end == fill->first_byte && object->size_bytes > 0)) {
        store_object_unref(object);
        return ERR_ORIGIN_PROTOCOL;
    }
    store_object_unref(fill->object);
    fill->object = object;
    fill->weak = f->weak_or_no_etag;
    fill->has_head = true;
    fill->end_byte = end;
    uint64_t blocks =
        (end - fill->first_byte + fill->block_size_bytes - 1) / fill->block_size_bytes;
    fill->block_count = (uint32_t)max_u64(blocks, 1); // an empty object has one block of 0 bytes
    fill->state = FILL_BODY;
    fill_begin_run(fill, f);
    fill_announce(fill);
    return ERR_OK;
}

static enum err on_fetch_body(struct origin_fetch *f, struct span data)
{
    struct fill *fill = as_fill(f->ctx);
    if (fill->abandoned) {
        return ERR_CANCELLED;
    }
    while (data.len > 0 && fill->received < fill->end_byte) {
        uint64_t at = fill->received - fill->first_byte;
        struct chunk **slot = &fill->chunks[at / CHUNK_SIZE];
        uint32_t offset = (uint32_t)(at % CHUNK_SIZE);
        if (*slot == NULL) {
            *slot = fill_chunk(fill);
        }
        uint64_t room = min_u64(CHUNK_SIZE - offset, fill->end_byte - fill->received);
        size_t n = (size_t)min_u64(room, data.len);
        memcpy((*slot)->data + offset, data.ptr, n);
        (*slot)->len = offset + (uint32_t)n;
        fill->received += n;
        data.ptr += n;
        data.len -= n;
        if (fill->run != NULL && (offset + n == CHUNK_SIZE || fill->received == fill->end_byte)) {
            store_run_append(fill->run, *slot);
        }
    }
    worker_defer(fill->pw->worker, &fill->deliver_task);
    fill_pause_update(fill);
    // The last reader left and the block it was in is whole: nothing more is wanted.
    return data.len > 0 && fill->received == fill->end_byte ? ERR_CANCELLED : ERR_OK;
}

static void on_resume_timer(struct timer *timer)
{
    struct fill *fill = as_fill(container_of(timer, struct fill, resume_timer));
    fill->resume_waiting = false;
    fill_fetch(fill);
}

static bool err_is_broken_body(enum err err)
{
    return err == ERR_ORIGIN_RESET || err == ERR_ORIGIN_TIMEOUT || err == ERR_ORIGIN_CONNECT ||
           err == ERR_ORIGIN_5XX || err == ERR_ORIGIN_SLOWDOWN || err == ERR_ORIGIN_DNS;
}

// Answers to a request for a known version that say there is no such thing: deleted, or of another
// size.
static bool err_denies_version(enum err err)
{
    return err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET || err == ERR_INVALID_RANGE;
}

static void on_fetch_end(struct origin_fetch *f, enum err err)
{
    struct fill *fill = as_fill(f->ctx);
    fill->fetching = false;
    fill->paused = false;
    fill_pass_lead(fill);
    if (fill->abandoned) {
        fill_maybe_free(fill);
        return;
    }
    if (fill->has_head && fill->received == fill->end_byte) {
        fill_complete(fill);
        return;
    }
    if (err == ERR_OK) {
        err = ERR_ORIGIN_RESET;
    }
    if (err == ERR_ORIGIN_CHANGED || (fill->object != NULL && err_denies_version(err))) {
        fill_gone(fill);
    } else if (!fill->has_head) {
        fill_fail(fill, err, f->error_document);
    } else if (err_is_broken_body(err) && fill->resumes < FILL_RESUMES_MAX && !fill->weak &&
               origin_retry_take(fill->key->origin)) {
        stats_add(COUNTER_fills_resumed, 1);
        fill->resume_waiting = true;
        timer_start(&fill->resume_timer, (uint64_t)FILL_RESUME_DELAY_MS << fill->resumes);
        fill->resumes++;
    } else {
        fill_cut(fill, err);
    }
}

static void fill_fetch(struct fill *fill)
{
    struct origin_fetch *f = &fill->fetch;
    memset(f, 0, sizeof(*f));
    f->bucket = fill->key->bucket;
    f->key = fill->key->key;
    f->credentials = fill->key->credentials;
    bool empty = fill->object != NULL && fill->object->size_bytes == 0;
    f->has_range = !empty;
    f->first = fill->received;
    uint64_t end = fill->has_head
                       ? fill->end_byte
                       : fill->first_byte + (uint64_t)fill->block_count * fill->block_size_bytes;
    if (fill->object != NULL) {
        end = min_u64(end, fill->object->size_bytes);
        f->if_match = fill->object->etag;
    }
    f->last = end > 0 ? end - 1 : 0;
    f->on_head = on_fetch_head;
    f->on_body = on_fetch_body;
    f->on_end = on_fetch_end;
    f->ctx = fill;
    fill->fetching = true;
    fill->paused = false;
    origin_fetch_start(fill->pw->worker, fill->key->origin, f);
    if (fill->paused_memory) {
        (void)fill_take_lead(fill);
    }
    fill_pause_update(fill);
}

// --- asks
// -------------------------------------------------------------------------------------------------------------------

static bool fill_takes(const struct fill *fill, const struct reader *reader, bool first)
{
    if (fill->doomed || reader->block < fill->first_block ||
        reader->block >= fill->first_block + fill->block_count) {
        return false;
    }
    if (!first && fill->object != NULL &&
        (reader->object == NULL || !same_version(fill->object, reader->object))) {
        return false;
    }
    return !(fill->unstored && fill->has_head && reader->first_byte < fill->retained_from);
}

// Rule 16: a live entry for the block.
static struct fill *fill_find(struct proxy_worker *pw, const struct reader *reader, bool first)
{
    list_for_each(node, key_map_bucket(&pw->fills, reader->key->hash))
    {
        struct fill *fill = container_of(node, struct fill, map_node);
        if (hash128_equal(fill->key->hash, reader->key->hash) && fill_takes(fill, reader, first)) {
            return fill;
        }
    }
    return NULL;
}

// Rule 16: the index once more. How many of `count` blocks from the reader's on are absent; 0: its
// block is there. Only what the reader can use counts: any version if it has sent nothing, else its
// own.
static uint64_t fill_absent(struct proxy_worker *pw, const struct reader *reader, uint64_t count)
{
    static _Thread_local struct store_view view;
    uint64_t size = reader->block_size_bytes;
    if (reader->skip_index) {
        return count;
    }
    store_lookup(pw->worker, pw->store, reader->key->hash, reader->block * size,
                 (reader->block + count) * size, bar_floor(pw, reader->key->hash), &view);
    bool counts = view.found && !view.rebuilt && view.block_size_bytes == size;
    if (counts && reader->object != NULL) {
        counts = view.etag_hash == hash64(reader->object->etag.ptr, reader->object->etag.len, 0);
    }
    for (unsigned i = 0; counts && i < view.place_count; i++) {
        const struct store_place *place = &view.places[i];
        if (place->first_block + place->block_count > reader->block) {
            uint64_t first = max_u64(place->first_block, reader->block);
            count = min_u64(count, first - reader->block);
        }
    }
    store_view_done(&view);
    return count;
}

// How many blocks a new run may cover: not past the stripe, a run's size, the object, or a run in
// flight.
static uint64_t fill_extent(struct proxy_worker *pw, const struct reader *reader)
{
    uint64_t size = reader->block_size_bytes;
    uint64_t stripe_end = ((reader->block * size) / PROXY_STRIPE_BYTES + 1) * PROXY_STRIPE_BYTES;
    uint64_t count =
        min_u64(reader->block_count, max_u64(store_run_bytes_max(pw->store) / size, 1));
    count = min_u64(count, (stripe_end - reader->block * size) / size);
    if (reader->object != NULL) {
        uint64_t blocks = store_object_block_count(reader->object);
        count = min_u64(count, blocks > reader->block ? blocks - reader->block : 1);
    }
    list_for_each(node, key_map_bucket(&pw->fills, reader->key->hash))
    {
        struct fill *fill = container_of(node, struct fill, map_node);
        if (hash128_equal(fill->key->hash, reader->key->hash) && !fill->doomed &&
            fill->first_block > reader->block) {
            count = min_u64(count, fill->first_block - reader->block);
        }
    }
    return max_u64(count, 1);
}

static struct fill *fill_new(struct proxy_worker *pw, const struct reader *reader, uint64_t token,
                             uint32_t block_count)
{
    struct fill *fill = calloc(1, sizeof(*fill));
    check(fill != NULL);
    fill->magic = FILL_MAGIC;
    fill->pw = pw;
    fill->key = object_key_ref(reader->key);
    fill->token = token;
    fill->object = reader->object != NULL ? store_object_ref(reader->object) : NULL;
    fill->first_block = reader->block;
    fill->block_size_bytes = reader->block_size_bytes;
    fill->block_count = block_count;
    fill->first_byte = fill->first_block * fill->block_size_bytes;
    fill->end_byte = fill->first_byte;
    fill->received = fill->retained_from = fill->first_byte;
    list_init(&fill->readers);
    list_node_init(&fill->map_node);
    task_init(&fill->deliver_task, on_deliver);
    timer_init(pw->worker, &fill->resume_timer, on_resume_timer);
    list_push_back(key_map_bucket(&pw->fills, fill->key->hash), &fill->map_node);
    pw->fills.count++;
    fill->in_table = true;
    stats_add(COUNTER_fills_started, 1);
    stats_add(COUNTER_fills_inflight, 1);
    return fill;
}

// Rules 17, 29: the first request is not made: the home forgets it, the reader looks again.
static void fill_decline_first(struct proxy_worker *pw, struct reader *reader, uint64_t token)
{
    struct wire *wire = wire_new(pw, WIRE_FIRSTEND, reader->key);
    wire->token = token;
    wire_send(object_key_home(pw, reader->key), wire);
    reader_answer_again(pw, reader);
}

static void fill_ask(struct proxy_worker *pw, struct reader *reader, uint64_t token)
{
    struct fill *fill = fill_find(pw, reader, token != 0);
    if (fill != NULL && token != 0 && reader->check_strict) {
        fill_decline_first(pw, reader, token); // it was sent before the reader asked
        return;
    }
    if (fill != NULL) {
        stats_add(COUNTER_fills_joined, 1);
        if (token != 0) {
            fill_send_firstend(fill); // an older token is answered before it is replaced
            fill->token = token;
            fill_send_version(fill);
        }
        fill_attach(fill, reader, true);
        return;
    }
    uint64_t count = fill_absent(pw, reader, fill_extent(pw, reader));
    if (count == 0 && token != 0) {
        fill_decline_first(pw, reader, token);
        return;
    }
    if (count == 0) {
        reader_answer_again(pw, reader);
        return;
    }
    fill = fill_new(pw, reader, token, (uint32_t)count);
    fill_attach(fill, reader, false);
    fill_fetch(fill);
}

void fill_on_join(struct proxy_worker *pw, struct wire *wire)
{
    fill_ask(pw, wire->reader, 0);
}

void fill_on_first(struct proxy_worker *pw, struct wire *wire)
{
    fill_ask(pw, wire->reader, wire->token);
}

// --- leaving
// ------------------------------------------------------------------------------------------------------------------

// Rule 21. Before the head the entry leaves in that moment; in the body the block under way is
// finished and kept.
static void fill_on_no_readers(struct fill *fill)
{
    if (fill->state == FILL_WRITING || fill->state == FILL_WRITTEN || fill->abandoned) {
        return;
    }
    uint64_t done = fill->received - fill->first_byte;
    if (fill->state == FILL_BODY && fill->run != NULL && !fill->doomed) {
        uint64_t blocks = max_u64((done + fill->block_size_bytes - 1) / fill->block_size_bytes, 1);
        if (fill->resume_waiting) {
            blocks = done / fill->block_size_bytes;
        }
        if (blocks > 0) {
            fill->block_count = (uint32_t)min_u64(fill->block_count, blocks);
            fill->end_byte = min_u64(fill->end_byte,
                                     fill->first_byte + blocks * (uint64_t)fill->block_size_bytes);
            if (fill->received < fill->end_byte) {
                return; // the rest of this block is on its way
            }
            fill->received = fill->end_byte;
            if (fill->fetching) {
                origin_fetch_cancel(&fill->fetch); // on_fetch_end completes it
            } else {
                timer_stop(&fill->resume_timer);
                fill_complete(fill);
            }
            return;
        }
    }
    stats_add(COUNTER_fills_cancelled, 1);
    fill->abandoned = true;
    timer_stop(&fill->resume_timer);
    fill_drop_run(fill);
    if (fill->fetching) {
        origin_fetch_cancel(&fill->fetch);
    }
    fill_leave_table(fill);
}

void fill_on_leave(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    struct fill_reader *fr = wire->attachment;
    struct fill *fill = fr->fill;
    fr->left = true;
    if (fill == NULL) { // FINAL crossed it on the way
        store_object_unref(fr->wanted);
        free(fr);
        return;
    }
    fill_reader_final(fr, OUTCOME_DONE, ERR_OK, (struct span){0});
    if (list_empty(&fill->readers)) {
        fill_on_no_readers(fill);
    }
}

void fill_on_taken(struct proxy_worker *pw, struct wire *wire)
{
    struct fill_reader *fr = wire->attachment;
    fr->acked_byte += wire->len;
    if (fr->fill != NULL && fr->fill->unstored) {
        worker_defer(pw->worker, &fr->fill->deliver_task);
    }
}

void fill_doom(struct proxy_worker *pw, struct hash128 hash)
{
    list_for_each(node, key_map_bucket(&pw->fills, hash))
    {
        struct fill *fill = container_of(node, struct fill, map_node);
        if (hash128_equal(fill->key->hash, hash) && !fill->doomed) {
            fill->doomed = true;
            stats_add(COUNTER_fills_doomed, 1);
        }
    }
}
